"""Workers whose function has returned, and which of the others' waits are in vain because of it.

A finished worker stays a member: it serves the next run. So a round that it makes no push for never closes in this
one, and who waits for that round should hear of it at once. A finished worker leaves a *tally*, how many pushes it made
on each key. A wait for a later push than that is in vain; one for an earlier push is not, it may still be on its way.

It may have finished because of what the last generation told it, that a server is lost, say. Whoever has not heard of
that generation will: the reason is the cluster's, and no other is given before.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from windlass._wire import messages as m
from windlass.errors import UsageError
from windlass.types import Bounded, Bytes, Generation, KeyId, Role
from windlass.worker.client import Client, Waitable
from windlass.worker.ops import Op, Request
from windlass.worker.state import Submit
from windlass.worker.store import BARRIER, EXCHANGE, Store

Pushes = dict[KeyId, int]


_NOT_MISSED = 1 << 62
"""In a tally: nobody waits for a push on this key."""


class Tally(msgspec.Struct, frozen=True):
    """How many pushes a worker has made on each key, and the last generation that it knew."""

    pushes: Pushes
    generation: Generation


class Finished(msgspec.Struct, frozen=True):
    """Driver to a worker that still runs: this one has finished, after so many pushes."""

    rank: int
    tally: Tally


def tally(store: Store) -> Tally:
    """Of this worker now, the pushes that wait for their turn included; of a store that is not usable, none."""

    def count() -> Pushes:
        entries = store._entries.values()
        made = {one.key.id: one.key.clock + sum(op.push is not None for op in one.key.queue) for one in entries}
        return made | {one.key.id: _NOT_MISSED for one in entries if one.is_resting}

    pushes = store._client.undisturbed(count) if store.is_usable else {}
    return Tally(pushes, store._client.state.generation)


class Doubts:
    """Whether a wait of this worker is in vain. Called by the thread that waits, while it has the turn."""

    def __init__(self, client: Client) -> None:
        """Begins without any: nobody has finished."""
        client.doubt, client.finished = None, {}
        self._client = client
        self._finished: dict[int, Tally] = {}
        self._asked: dict[int, bool] = {}  # waits for a first value: whether the server said that it lacks one

    def add(self, finished: Finished) -> None:
        """Another worker has finished. From any thread."""
        self._finished = {**self._finished, finished.rank: finished.tally}
        self._client.finished = {rank: one.generation for rank, one in self._finished.items()}
        self._client.doubt = self
        self._client.hub.wake()

    def __call__(self, task: Waitable) -> UsageError | None:
        state = self._client.state
        finished = {rank: one.pushes for rank, one in self._finished.items() if one.generation <= state.generation}
        for op in state.ops.values():
            if op.owner is task or any(queued.owner is task for queued in op.key.queue):
                for rank, made in finished.items():
                    if _is_in_vain(op, made):
                        return UsageError(self._told(op, f"worker-{rank}", made))
        for request in list(state.requests.values()):
            if getattr(request.finish, "__self__", None) is task:
                return self._lacks_first_value(request, task, finished)
        return None

    def _told(self, op: Op, name: str, made: Pushes) -> str:
        key, me = op.key.spec.name, f"worker-{self._client.state.rank}"
        then = "Let all workers make equally many"
        if key == BARRIER:
            what, then = f"{me} waits for it at barrier()", "Let all workers call barrier() equally often"
        elif key.startswith(EXCHANGE):
            what = f"{me} waits to hear from it, in making a wl.torch.Optimizer or Group, say, or in its first steps"
        elif op.key.id not in made:
            what = f"{me} waits for its push on '{key}', which it never used"
        else:
            what = f"{me} waits for its push {made[op.key.id] + 1} on '{key}'"
        if self._client.state.is_late:
            then = f"{me} came to a run under way, and began at the beginning: deal out the steps by store.batches()"
        return f"{name} has finished its function and makes no further step; {what}. {then}"

    def _lacks_first_value(self, request: Request, task: Waitable, finished: dict[int, Pushes]) -> UsageError | None:
        """A key begins with the lowest rank's value. If that one has finished, and the server still lacks the value, it
        will not come."""
        message = request.make(request.number)
        if not isinstance(message, m.Attach) or message.clock >= 0:
            return None
        lowest = min(node.rank for node in self._client.state.nodes.values() if node.role is Role.WORKER)
        if lowest not in finished:
            return None
        if self._asked.setdefault(request.number, False):
            return UsageError(
                f"worker-{lowest} has finished its function: {task.text} waits in vain. Let every worker create the key"
            )

        def hear(answer: Any, data: tuple[Bytes, ...], error: Exception | None, number: int = request.number) -> None:
            self._asked[number] = answer is not None and "first value" in str(answer.detail)

        if request.peer is None:
            return None
        ask = Request(request.peer, lambda n: m.Inspect(request=n, key=message.key), hear)
        self._client._perform(self._client.state.handle(Submit(ask), time.monotonic()))
        return None


def _is_in_vain(op: Op, made: Pushes) -> bool:
    """Whether the operation waits for a push that a worker who made these has not made. Rounds up to `since` were
    closed before this worker began."""
    key = op.key
    if op.reads_newest:
        return False
    if key.is_sequential:
        return op.clock > max(made.get(key.id, 0), key.since)
    policy = key.spec.consistency
    if not isinstance(policy, Bounded) or op.pull is None or key.id not in made:
        return False
    return op.clock - policy.delay > made[key.id]
