"""A workload, and its workers: who is at work on it, who waits outside, who comes in.

Where pushes wait for others (sequential and bounded keys), a worker that comes to the keys of a workload while others
push would begin on one key before a step of theirs and on the next key after it, and from then on wait for them in a
circle. So whoever comes, or comes back from a rest, is let in at a moment when nobody who is at work holds anything:
then all that was pushed is acknowledged, on every key. Until it has begun on all keys nobody gets anything to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass._wire import messages as m
from windlass.scheduler.book import Book
from windlass.scheduler.inquiry import Inquiry
from windlass.types import Incarnation, KeyId

REST_AFTER_SECONDS = 0.05
"""How long who finds nothing to do is left to wait before it is told to rest: others may be done in a moment."""

ANSWER_AFTER_SECONDS = 0.5
"""How long one that waits outside is left without an answer: it asks again, and rests on keys made meanwhile."""


@dataclass(slots=True)
class Asking:
    """A worker that waits for work."""

    request: int
    since: float
    is_outside: bool
    holds: bool  # something that it has not reported as done


@dataclass(slots=True)
class Work:
    """There is no book until the servers have told what is counted."""

    workload: m.Workload
    namespace: str
    founders: set[Incarnation]  # who were there when it began: they have begun on its keys alike
    book: Book | None = None
    inquiry: Inquiry | None = None
    asked_at: float = 0.0
    seen: set[KeyId] = field(default_factory=set)  # keys that know of it, as the servers say
    asking: dict[Incarnation, Asking] = field(default_factory=dict)
    early: list[tuple[Incarnation, m.Take]] = field(default_factory=list)  # before there was a book
    holding: dict[Incarnation, tuple[int, ...]] = field(default_factory=dict)  # and what workers had then
    outside: set[Incarnation] = field(default_factory=set)
    entering: set[Incarnation] = field(default_factory=set)
    left: set[Incarnation] = field(default_factory=set)  # who have left the loop; they may come again
    heard: dict[Incarnation, int] = field(default_factory=dict)  # the number of what each has asked last
    waits: m.Waits = m.Waits.ROUNDS

    def come(self, peer: Incarnation, take: m.Take, now: float) -> None:
        """A worker asks."""
        if take.keys:
            self.waits = take.waits
        self.asking[peer] = Asking(take.request, now, take.is_outside, bool(take.held))
        is_stranger = peer not in self.founders and peer not in self.entering
        was_let_in_by_another = peer in self.outside and not self.is_open_house  # when others might be at work already
        if take.is_outside or is_stranger or was_let_in_by_another:
            self.outside.add(peer)
        else:
            self.outside.discard(peer)
        self.entering.discard(peer)
        self.left.discard(peer)
        self.founders.add(peer)

    def is_late(self, peer: Incarnation, take: m.Take) -> bool:
        """Whether the worker has asked again since: it had its answer, and has told what it has done with it."""
        last, self.heard[peer] = self.heard.get(peer, 0), max(take.request, self.heard.get(peer, 0))
        return take.request < last

    def leave(self, peer: Incarnation) -> None:
        self.asking.pop(peer, None)
        self.outside.discard(peer)
        self.entering.discard(peer)
        self.left.add(peer)

    def crew(self, present: set[Incarnation]) -> set[Incarnation]:
        """Those of whom the next step expects a part. Who has come and not asked yet, rests, or has left is none of
        them: what were kept for it would be missing in the step."""
        return (present & self.founders) - self.outside - self.left

    @property
    def is_idle(self) -> bool:
        """Whether nobody has anything of it, or asks for more."""
        return not (self.asking or self.early or self.holding or (self.book is not None and self.book.held))

    @property
    def is_open_house(self) -> bool:
        """Whether anybody may come at any time: nobody waits for anybody."""
        return self.waits is m.Waits.NOBODY

    def wants_in(self, book: Book) -> list[Incarnation]:
        """Who waits outside, and for whom there is something to do."""
        if self.is_open_house:
            return []
        ready = [peer for peer, one in self.asking.items() if peer in self.outside and one.is_outside]
        room = book.num_open
        if self.workload.step_batches:  # more than make a step are of no use
            inside = {who for holders in book.held.values() for who in holders} | self.asking.keys() - self.outside
            room = min(room, max(0, self.workload.step_batches - len(inside)))
        return ready[:room]

    def let_in(self, book: Book) -> list[Incarnation]:
        """Those who may come in now."""
        if book.held or self.entering:
            return []
        coming = self.wants_in(book)
        self.outside.difference_update(coming)
        self.entering.update(coming)
        return coming

    def may_work(self, peer: Incarnation, book: Book) -> bool:
        """Whether this one may be given something: not while somebody comes in, or wants to."""
        if self.is_open_house:
            return True
        return peer not in self.outside and not self.entering and not self.wants_in(book)

    def must_answer(self, peer: Incarnation, book: Book, now: float) -> bool:
        """Whether this one must be told that there is nothing for it: it has waited long enough; it should rest, since
        it is not one of those who are at work; or others wait for what it has pushed to be acknowledged."""
        one = self.asking[peer]
        if one.is_outside:
            return now - one.since >= ANSWER_AFTER_SECONDS
        if self.is_open_house:
            return now - one.since >= REST_AFTER_SECONDS
        return (
            peer in self.outside
            or (now - one.since >= REST_AFTER_SECONDS and not self.entering)
            or (one.holds and bool(self.wants_in(book)))
        )
