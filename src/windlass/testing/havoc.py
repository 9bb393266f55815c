"""Faults for real clusters: while its workers play a script, a thread of the driver kills, stops, adds and removes
servers. It writes down every shot, so that a test can tell that its fault happened, and when.

    def plan(hand: Hand) -> None:
        hand.await_version("w", 20)
        hand.kill("server-1")

    report = perform(cluster, script, plan)
    assert [shot.what for shot in report.shots] == ["kill"]
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass._ledger import Faults, Ledger
from windlass._wire.effects import Dial, Effect, Event, Hangup, LinkDown, LinkUp, Received, Send
from windlass._wire.messages import Membership
from windlass.engines.cluster import Cluster
from windlass.engines.processes import ProcessEngine
from windlass.errors import UsageError
from windlass.server.state import ServerState
from windlass.testing.mutants import InheritsEarly
from windlass.types import MANAGER, Role
from windlass.worker.state import Call, Submit
from windlass.worker.store import Store

PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Shot:
    """One fault that happened. `at` is of the clock that the players' stamps are of."""

    what: str
    who: str
    at: float


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint, and when it was asked for and complete."""

    path: str
    began: float
    ended: float


Plan = Callable[["Hand"], None]


@dataclass(slots=True)
class Hand:
    """Does the faults. Every wait has an end. For one thread, beside the one that is in `cluster.run`."""

    cluster: Cluster
    rng: random.Random
    shots: list[Shot] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)  # servers that are not to be in any chain again
    saves: list[Save] = field(default_factory=list)
    _pids: dict[str, int] = field(default_factory=dict)

    # --- looking ------------------------------------------------------------------------------------------------------

    def pid(self, name: str) -> int:
        if name not in self._pids:
            self._pids |= {node.name: node.pid for node in self.cluster.nodes()}
        return self._pids[name]

    def servers(self) -> list[str]:
        """Those that are there and are to stay, by name."""
        nodes = self.cluster.nodes()
        alive = [node.name for node in nodes if node.name.startswith("server-") and node.state == "alive"]
        return [name for name in alive if name not in self.lost]

    def chains(self) -> list[list[str]]:
        """The chain of every shard of every key."""
        said: dict[str, Any] = self.cluster.store()._manager_says()["keys"]
        return [chain for key in said.values() for chain in key["shards"]]

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(f"after {PATIENCE_SECONDS:g} s still waiting until {what}; shots: {self.shots}")
            time.sleep(POLL_SECONDS)

    def await_version(self, key: str, version: int) -> None:
        """Wait until a key has taken so many updates."""
        store = self.cluster.store()

        def is_there() -> bool:
            with suppress(UsageError):  # it is not declared yet
                return store.version(key) >= version
            return False

        self.wait_until(is_there, f"'{key}' has {version} updates")

    def await_whole(self, length: int) -> None:
        """Wait until every chain has so many members, none of them lost."""

        def is_whole() -> bool:
            chains = self.chains()
            return bool(chains) and all(len(chain) == length and not self.lost & set(chain) for chain in chains)

        self.wait_until(is_whole, f"every chain has {length} members")

    def await_end(self, name: str) -> None:
        """Wait until a server's process has ended, by itself or not."""
        pid = self.pid(name)
        self.wait_until(lambda: is_over(pid), f"{name} (pid {pid}) ends")

    # --- doing --------------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL, "kill", is_lost=True)

    def stop(self, name: str) -> None:
        """As a machine that hangs: it says nothing, and its links stay open. It is out when its lease is over."""
        self._signal(name, signal.SIGSTOP, "stop", is_lost=True)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT, "resume", is_lost=True)

    def ask_to_leave(self, name: str) -> None:
        """As whoever takes a machine back: it hands over what it holds, then ends."""
        self._signal(name, signal.SIGTERM, "terminate", is_lost=True)

    def cut_links(self, name: str) -> None:
        """Break a server's links to all other servers. They must be of the kind that can: Brittle."""
        self._signal(name, signal.SIGUSR1, "cut", is_lost=False)

    def keep_apart(self, *names: str, seconds: float = 60.0) -> None:
        """Let these nodes, and nobody else, be unable to reach each other. The cluster must be one for chaos."""
        numbers = [node.incarnation for node in self.cluster.nodes() if node.name in names]
        self._note("part", ",".join(names))
        sides = tuple((number,) for number in numbers)
        self._ledger().write_faults(Faults(sides=sides, until=time.monotonic() + seconds))

    def mute(self, name: str) -> None:
        """From now on nothing gets through between this server and the first one, and no link breaks. They must be of
        the kind that can: Mute."""
        self._signal(name, signal.SIGUSR1, "mute", is_lost=False)

    def let_meet(self) -> None:
        self._note("meet", "")
        self._ledger().write_faults(Faults())

    def _ledger(self) -> Ledger:
        engine = self.cluster._engine
        assert isinstance(engine, ProcessEngine), "a cluster of processes"
        assert engine.ledger is not None, "wl.Cluster(chaos=True)"
        return engine.ledger

    def add_server(self) -> str:
        name = self.cluster.add_server()
        self._note("add", name)
        return name

    def remove_server(self, name: str) -> None:
        self._note("remove", name)
        self.lost.add(name)
        self.cluster.remove_server(name)

    def save(self, root: str) -> str:
        """Save everything, as it is while the script is being played."""
        began = time.monotonic()
        path = self.cluster.store().save(root, name=f"save-{len(self.saves)}")
        self.saves.append(Save(path, began, time.monotonic()))
        return path

    def _signal(self, name: str, number: signal.Signals, what: str, *, is_lost: bool) -> None:
        pid = self.pid(name)
        if is_lost:
            self.lost.add(name)
        self._note(what, name)
        os.kill(pid, number)

    def _note(self, what: str, who: str) -> None:
        self.shots.append(Shot(what, who, time.monotonic()))


class Havoc:
    """A plan under way in a thread of its own; when it is over there is a file `over`, if one is named. Leaving the
    block waits for its end and raises what it raised."""

    def __init__(self, cluster: Cluster, plan: Plan, seed: int, over: str = "") -> None:
        self.hand = Hand(cluster, random.Random(f"havoc/{seed}"))
        self._plan = plan
        self._over = over
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="windlass-havoc", daemon=True)

    def _run(self) -> None:
        try:
            self._plan(self.hand)
        except BaseException as error:
            self._error = error
        finally:
            with suppress(FileNotFoundError):  # nobody waits for it any more
                if self._over:
                    Path(self._over).touch()

    def __enter__(self) -> Hand:
        self._thread.start()
        return self.hand

    def __exit__(self, kind: object, *exception: object) -> None:
        self._thread.join(PATIENCE_SECONDS if kind is None else 1.0)
        if kind is None and self._error is not None:
            raise self._error
        assert kind is not None or not self._thread.is_alive(), f"the plan did not end; shots: {self.hand.shots}"


def is_over(pid: int) -> bool:
    """Whether a process runs no more; one that waits to be buried runs nothing."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


# --- links that break -------------------------------------------------------------------------------------------------


class Brittle(ServerState):
    """A server whose links to the other servers break at every SIGUSR1, whatever is under way on them."""

    _num_asked = _num_broken = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        signal.signal(signal.SIGUSR1, self._ask)

    def _ask(self, *_: object) -> None:
        self._num_asked += 1

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        if self._num_broken == self._num_asked:
            return effects
        self._num_broken = self._num_asked
        others = [node.incarnation for node in self.nodes.values() if node.role is Role.SERVER]
        linked = [who for who in others if who in self._linked]
        return [*effects, *(Hangup(who, "cut by a test") for who in linked)]


# --- who cannot reach the manager -------------------------------------------------------------------------------------


class CutOff(ServerState):
    """A server that SIGUSR1 cuts off from the manager, and from nobody else: it goes on and does not know that it is
    out."""

    _is_asked = _is_cut = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        signal.signal(signal.SIGUSR1, self._ask)

    def _ask(self, *_: object) -> None:
        self._is_asked = True

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self._is_cut and isinstance(event, Received | LinkUp | LinkDown) and event.peer == MANAGER:
            return []
        effects = super().handle(event, now)
        if not self._is_asked:
            return effects
        effects = [one for one in effects if not isinstance(one, Send | Dial) or one.peer != MANAGER]
        if self._is_cut:
            return effects
        self._is_cut = True
        return [*effects, Hangup(MANAGER, "cut off by a test")]


class Mute(ServerState):
    """A server that SIGUSR1 keeps from the first one, without a word: links stay open, and nothing gets through."""

    _is_mute = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        signal.signal(signal.SIGUSR1, self._fall_silent)

    def _fall_silent(self, *_: object) -> None:
        self._is_mute = True

    def handle(self, event: Event, now: float) -> list[Effect]:
        first = {node.incarnation for node in self.nodes.values() if node.role is Role.SERVER and node.rank == 0}
        if self._is_mute and isinstance(event, Received) and event.peer in first:
            return []
        effects = super().handle(event, now)
        return [one for one in effects if not (self._is_mute and isinstance(one, Send) and one.peer in first)]


class InheritsEarlyFromCutOff(CutOff, InheritsEarly):
    """The mutant, on servers that can be cut off."""


class Deaf:
    """A worker that does not hear of new generations until `hear`."""

    def __init__(self, store: Store) -> None:
        self._client = store._client
        self._missed: list[Event] = []
        self._handle = self._client.state.handle
        self._client.state.handle = self._filter  # type: ignore[method-assign]

    def _filter(self, event: Event | Submit, now: float) -> list[Effect | Call]:
        if isinstance(event, Received) and isinstance(event.message, Membership):
            self._missed.append(event)
            return []
        return self._handle(event, now)

    def hear(self) -> int:
        """Gives how many generations it had missed."""
        client = self._client
        client.state.handle = self._handle  # type: ignore[method-assign]
        client._turn.take()
        try:
            for event in self._missed:
                client._perform(self._handle(event, time.monotonic()))
            client.hub.flush()
        finally:
            client._leave()
        return len(self._missed)
