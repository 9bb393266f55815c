"""Carries out a plan on a cluster that runs: fires its faults, lifts them, replaces servers, and times the recoveries.

One thread turns it, from `begin` to `end`. Whatever happens, `lift` leaves no node stopped and no link cut.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from windlass._ledger import Faults
from windlass._words import count
from windlass.chaos.departures import Departures
from windlass.chaos.obstacles import obstacle
from windlass.chaos.plan import Deed, Plan, Shot, Target
from windlass.chaos.report import Fault, Unfired, seconds_in_words
from windlass.chaos.scene import Scene, signal_process
from windlass.errors import ClusterError
from windlass.types import MANAGER, Array, Role

TURN_SECONDS = 0.01
"""How often the workers' notes are looked at: recoveries are told to within that."""
LOOK_EVERY_SECONDS = 0.25
RENEW_SECONDS = 30.0
"""Faults of links are written with an end, so that they do not outlive whoever wrote them."""
NOTICE_SECONDS = 0.06
"""A partition begins when all nodes have noticed it: what was pushed before that tells nothing."""
IN_USE_SECONDS = 2.0
"""A key is in use if a push on it was acknowledged within that time: it will be pushed to again, and is waited for."""


@dataclass(slots=True, eq=False)
class _Open:
    """A fault of which something is still to come: to be lifted, or to be recovered from."""

    fault: Fault
    shot: Shot
    fired_at: float
    names: frozenset[str]
    keys: frozenset[int]  # on which pushes are to go through again
    workers: frozenset[int]  # whose pushes count; empty: anybody's
    incarnations: dict[str, int]
    lift_at: float = 0.0
    term: str = ""
    seen: dict[int, float] = field(default_factory=dict)  # the first push on each of the keys, in seconds after it

    @property
    def is_of_manager(self) -> bool:
        return self.names == {"manager"}

    @property
    def is_awaited(self) -> bool:
        """Whether its recovery is still to be seen."""
        return self.fault.recovery_seconds is None and (bool(self.keys) or self.is_of_manager)


class Firing:
    """`say` is called with each thing that happens, in words."""

    def __init__(self, plan: Plan, scene: Scene, say: Callable[[str], None]) -> None:
        self.plan, self.scene, self._say = plan, scene, say
        self.faults: list[Fault] = []
        self.unfired: list[Unfired] = []
        self.departures = Departures()
        self.began_at = 0.0
        self.doing = ""
        self._rng = random.Random(f"chaos/{plan.seed}/firing")
        self._open: list[_Open] = []
        self._seats: dict[int, tuple[int, Fault]] = {}  # servers that may be lost: rank, and by which fault, the latest
        self._joining: set[str] = set()  # new servers that have not been seen yet
        self._manager_kills: list[float] = []
        self._has_conditions = False
        self._written_at = 0.0
        self._written = Faults()

    # --- in order -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.began_at = time.monotonic()
        self._has_conditions = bool(self.plan.drop or self.plan.delay_seconds)
        if self._has_conditions:
            held = [f"{self.plan.drop:.1%} of frames lost"] if self.plan.drop else []
            held += [f"frames {seconds_in_words(self.plan.delay_seconds)} late"] if self.plan.delay_seconds else []
            self._tell(", ".join(held))
        self._write(time.monotonic())

    def turn(self) -> None:
        """What is due now, and a short sleep."""
        now = time.monotonic()
        is_awaited = any(one.is_of_manager and one.is_awaited for one in self._open)
        if now - self.scene.looked_at > (TURN_SECONDS if is_awaited else LOOK_EVERY_SECONDS):
            if self.scene.look():
                self._notice_departures(now)
            self._replace()
            self._write(now)
        for one in [one for one in self._open if one.lift_at and now >= one.lift_at]:
            self._lift(one)
        self._watch()
        time.sleep(TURN_SECONDS)

    def try_fire(self, shot: Shot) -> str:
        """Fire it if it may be fired now; why not, otherwise."""
        is_fresh = self.scene.look()
        targets = [shot.target] if shot.target is not None else [one for side in shot.sides for one in side]
        names = {target: self._name(target) for target in targets}
        missing = [str(target) for target, name in names.items() if name is None]
        if missing:
            return f"there is no {', '.join(missing)}"
        victims = [name for name in names.values() if name is not None]
        if shot.sides and any(one.shot.sides and one.lift_at for one in self._open):
            return "another partition lasts"
        if not is_fresh and any(one.startswith("server-") for one in victims):
            return "the manager does not say how the cluster is, and what a server has may be the last"
        situation = self.scene.situation(self._disturbed(), self._manager_kills)
        reason = obstacle(victims, self._is_lasting(shot, victims), situation, time.monotonic())
        if reason:
            return reason
        try:
            self._fire(shot, {target: name for target, name in names.items() if name is not None})
        except ClusterError as error:
            return str(error)
        return ""

    def give_up(self, shot: Shot, reason: str) -> None:
        """It could not be fired in its time."""
        self.unfired.append(Unfired(what=str(shot), at=round(shot.at, 3), reason=reason))
        self._tell(f"could not {shot}: {reason}")

    @property
    def lifted_at(self) -> float:
        """When the last of those that have an end is due to end; 0 without any."""
        return max((one.lift_at for one in self._open), default=0.0)

    @property
    def is_recovering(self) -> bool:
        """Whether something is still to be seen: pushes that go through again, or a new server in a dead one's seat."""
        is_seat_empty = any(fault.what == Deed.KILL for _, fault in self._seats.values()) and self.plan.replaces
        return is_seat_empty or bool(self._joining) or any(one.is_awaited for one in self._open)

    def lift(self) -> None:
        """End every fault that has an end: nobody stays stopped, no link stays cut. Safe to repeat."""
        self._has_conditions = False
        for one in [one for one in self._open if one.lift_at]:
            self._lift(one)
        self._write(time.monotonic())

    # --- one fault ----------------------------------------------------------------------------------------------------

    def _name(self, target: Target) -> str | None:
        """The node that is meant, if it is there. Of several, one that is undisturbed; of servers, one that holds a
        part of what is being pushed to, so that it is felt."""
        if target.rank is not None or target.role is Role.MANAGER:
            return target.name if target.name in self.scene.nodes else None
        names = sorted(name for name, node in self.scene.nodes.items() if node["role"] == target.role)
        calm = [name for name in names if name not in self._disturbed()]
        used = in_use(self.scene.rows(), time.monotonic())
        busy = [name for name in calm if target.role is Role.SERVER and used & self.scene.keys_on(frozenset({name}))]
        return self._rng.choice(busy or calm or names) if names else None

    def _disturbed(self) -> frozenset[str]:
        """Who is stopped or kept apart, and whose death the manager has not noticed yet: what it says of chains is
        still as they were."""
        held = {name for one in self._open if one.lift_at for name in one.names}
        killed = {who for who, (_, fault) in self._seats.items() if fault.what == Deed.KILL}
        return frozenset(held | {name for name, node in self.scene.nodes.items() if int(node["incarnation"]) in killed})

    @staticmethod
    def _is_lasting(shot: Shot, victims: list[str]) -> bool:
        """A node that is cut off from the manager is out, and so may be one that is stopped, on a slow machine."""
        return shot.deed is not Deed.PARTITION or "manager" in victims

    def _fire(self, shot: Shot, names: dict[Target, str]) -> None:
        victims = frozenset(names.values())
        fault = Fault(what=shot.deed.value, who=", ".join(names.values()), at=0.0)
        fired = time.monotonic()
        if shot.deed is Deed.PARTITION:
            fault.who = "|".join(",".join(names[target] for target in side) for side in shot.sides)
        else:
            number = signal.SIGKILL if shot.deed is Deed.KILL else signal.SIGSTOP
            fault.pid = self.scene.signal(next(iter(victims)), number)
        fault.at = round(fired - self.began_at, 3)
        one = _Open(
            fault,
            shot,
            fired,
            victims,
            self._keys_of(victims, fired),
            self._workers_of(shot, victims),
            {name: int(self.scene.nodes[name]["incarnation"]) for name in victims},
            lift_at=fired + shot.held_seconds if shot.held_seconds else 0.0,
            term=self.scene.generation.partition(".")[0],
        )
        self.departures.spare(one.incarnations.values())
        for name in victims:
            if name.startswith("server-") and self._is_lasting(shot, list(victims)):
                self._seats[one.incarnations[name]] = (int(self.scene.nodes[name]["rank"]), fault)
                if not self.plan.replaces:
                    fault.note = "not replaced"
        if shot.deed is Deed.KILL and "manager" in victims:
            self._manager_kills.append(fired)
        self._open.append(one)
        self.faults.append(fault)
        done = {Deed.KILL: "killed", Deed.STOP: "stopped", Deed.PARTITION: "kept apart"}[shot.deed]
        held = f", for {seconds_in_words(shot.held_seconds)}" if shot.held_seconds else ""
        self._tell(f"{done} {fault.who}{f' (pid {fault.pid})' if fault.pid else ''}{held}")
        self._write(fired)

    def _keys_of(self, victims: frozenset[str], now: float) -> frozenset[int]:
        """Keys in use whose pushes the fault concerns: those that its servers hold a part of; without any, all."""
        servers = frozenset(name for name in victims if name.startswith("server-"))
        return in_use(self.scene.rows(), now) & (self.scene.keys_on(servers) if servers else self.scene.user_keys())

    def _workers_of(self, shot: Shot, victims: frozenset[str]) -> frozenset[int]:
        """Whose pushes tell that it is over: of a partition those who are on a side of it, of a worker that is killed
        the others."""
        workers = {int(n["incarnation"]): name for name, n in self.scene.nodes.items() if n["role"] == Role.WORKER}
        among = {who for who, name in workers.items() if name in victims}
        if shot.deed is Deed.PARTITION:
            return frozenset(among)
        return frozenset(workers.keys() - among) if shot.deed is Deed.KILL and among else frozenset()

    def _lift(self, one: _Open) -> None:
        one.lift_at = 0.0
        if one.shot.deed is Deed.STOP:
            with suppress(ClusterError):  # it has ended meanwhile
                signal_process(one.fault.pid, signal.SIGCONT, self.scene.there.roots)
        one.fault.held_seconds = round(time.monotonic() - one.fired_at, 3)
        self._tell(f"{'waked' if one.shot.deed is Deed.STOP else 'joined'} {one.fault.who} again")
        self._write(time.monotonic())

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _notice_departures(self, now: float) -> None:
        for one in self.departures.look(self.scene.all_nodes, now - self.began_at):
            then = f", and {one.note}" if one.note else ""
            self._tell(f"{one.who} (pid {one.pid}) is gone by itself{then}")

    def _replace(self) -> None:
        """Put a new server into the seat of each that the generation has left behind."""
        self._joining -= self.scene.nodes.keys()
        alive = {int(node["incarnation"]) for node in self.scene.nodes.values()}
        for incarnation in [who for who in self._seats if alive and who not in alive]:
            rank, fault = self._seats.pop(incarnation)
            if self.plan.replaces:
                fault.note = "replaced"
                self.scene.there.recruit(rank)
                self._joining.add(f"server-{rank}")
                self._tell(f"a new server-{rank} takes the seat")
        self._open = [one for one in self._open if one.lift_at or one.fault.recovery_seconds is None]

    def _watch(self) -> None:
        """Whether pushes go through again after the faults that are open."""
        waiting = [one for one in self._open if one.is_awaited]
        if not waiting:
            return
        rows = self.scene.rows()
        for one in waiting:
            if one.is_of_manager:
                is_back = self.scene.generation.partition(".")[0] not in ("", one.term)
                seconds = self.scene.looked_at - one.fired_at if is_back else None
            else:
                noticed_at = one.fired_at + (NOTICE_SECONDS if one.shot.sides else 0.0)
                one.seen = first_after(rows, noticed_at, one.keys, one.workers) | one.seen
                seconds = max(one.seen.values()) if one.keys and one.keys <= one.seen.keys() else None
            if seconds is not None:
                one.fault.recovery_seconds = round(seconds, 4)
                what = "it answers" if one.is_of_manager else "pushes go through"
                self._tell(f"{one.fault.what} {one.fault.who}: {what} again after {seconds_in_words(seconds)}")

    def settle(self) -> None:
        """Nothing comes any more: say of each fault that is open what was seen."""
        for one in self._open:
            if one.fault.recovery_seconds is None and not one.is_of_manager:
                unseen = len(one.keys - one.seen.keys())
                if one.seen:
                    one.fault.recovery_seconds = round(max(one.seen.values()), 4)
                told = f"{count(unseen, 'key')} not pushed to again" if unseen else "no key in use was concerned"
                one.fault.note = "; ".join(filter(None, (one.fault.note, told)))

    # --- links --------------------------------------------------------------------------------------------------------

    def _write(self, now: float) -> None:
        """Tell the nodes what is wrong with their links now, if that has changed, or was said long ago."""
        apart = [one for one in self._open if one.shot.deed is Deed.PARTITION and one.lift_at]
        sides: tuple[tuple[int, ...], ...] = ()
        if apart:
            one = apart[-1]
            sides = tuple(
                tuple(one.incarnations[name] for target in side if (name := target.name) in one.incarnations)
                for side in one.shot.sides
            )
        nodes = frozenset(int(node["incarnation"]) for node in self.scene.nodes.values()) | {MANAGER}
        wanted = Faults(
            drop=self.plan.drop if self._has_conditions else 0.0,
            delay_seconds=self.plan.delay_seconds if self._has_conditions else 0.0,
            nodes=nodes if self._has_conditions else frozenset(),
            sides=sides,
        )
        if wanted == self._written and now - self._written_at < RENEW_SECONDS / 2:
            return
        self._written, self._written_at = wanted, now
        until = Faults(
            drop=wanted.drop, delay_seconds=wanted.delay_seconds, nodes=wanted.nodes, sides=wanted.sides,
            until=now + RENEW_SECONDS,
        )  # fmt: skip
        self.scene.there.ledger.write_faults(until)

    def _tell(self, text: str) -> None:
        self.doing = text
        self._say(f"{time.monotonic() - self.began_at:6.1f} s  {text}")


def first_after(rows: Array, moment: float, keys: frozenset[int], workers: frozenset[int]) -> dict[int, float]:
    """For each of these keys, how long after the moment a push that was begun after it was acknowledged, if one was, to
    one of these workers (none: to any)."""
    found: dict[int, float] = {}
    for row in rows[rows["began_at"] > moment]:
        key, seconds = int(row["key"]), float(row["acked_at"]) - moment
        if key in keys and (not workers or int(row["incarnation"]) in workers):
            found[key] = min(seconds, found.get(key, seconds))
    return found


def in_use(rows: Array, now: float) -> frozenset[int]:
    """The keys to which somebody has pushed lately."""
    return frozenset(int(key) for key in rows["key"][rows["acked_at"] > now - IN_USE_SECONDS])
