"""The log of one shard: its changes on their way down the chain of servers that hold it.

Every change of a shard is an *entry*, numbered from 1. The head makes entries; every other member of the chain takes
only the next one, from its predecessor alone, hands it on, and acknowledges it when all after it have it. An entry that
the whole chain has is *safe*. What the head says to anyone that tells of an entry (an acknowledgement, a value that
contains it, the word to close a round) is held back until it is. So whoever is next in the chain knows all that anyone
has been told, and can become the head at any moment.

An entry comes in parts, one for each stretch of data, and its last part says what it is. A member keeps what its
successor has not acknowledged, and sends it again when the link or the chain has changed.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

import msgspec

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Recycle, Send
from windlass.server.pins import Pins
from windlass.types import Block, Bytes, Chain, Incarnation, KeyId, Memory

COPIED_BYTES = 16 * 1024
"""What is sent of at most this size is copied into its frame; anything larger is pinned and sent from where it lies."""


class Standing(Enum):
    HEAD = "head"
    HEIR = "heir"  # first of its chain, but the one before may not know yet, and still answer readers
    FOLLOWER = "follower"
    LEARNER = "learner"  # not of the chain yet: the last of it brings this server up to date
    OUTSIDER = "outsider"  # not of the chain any more


class Teaching(Enum):
    """How far the last of a chain is with its learner."""

    NOBODY = "nobody"
    WAITING = "waiting"  # for the learner to be ready
    SHOWING = "showing"  # entries go to it, but nobody waits for it
    JOINING = "joining"  # it has everything; the chain waits for it, and the manager is told


UNHELD = frozenset((m.Replicate, m.Replicated))
"""What tells nobody of what is not safe: it is how entries become safe."""

Pieces = tuple[m.Piece, ...]
Blocks = tuple[Block, ...]


class Kept(msgspec.Struct):
    """An entry that the successor may not have. `pins` keep its blocks; `attempt` is that of its parts."""

    index: int
    attempt: int
    parts: list[tuple[m.Replicate, Blocks]] = msgspec.field(default_factory=list)
    pins: list[int] = msgspec.field(default_factory=list)


class Coming(msgspec.Struct):
    """A part that came from the predecessor. `release` gives its memory back; `theirs` are its pins on it, `pins` our
    own, on a copy of it."""

    pieces: Pieces
    data: tuple[Bytes, ...]
    release: list[Effect]
    theirs: tuple[Incarnation, tuple[int, ...]]
    pins: list[int] = msgspec.field(default_factory=list)


class Whole(msgspec.Struct, eq=False):
    """An entry that is all here, to be applied."""

    index: int
    entry: m.LogEntry
    parts: list[Coming]


class Log:
    """Decides nothing about values: only who has what, and what may be said."""

    # With more than 30 attributes in a dictionary, each instance has keys of its own, and is three times as slow.
    __slots__ = (
        "_acked", "_applying", "_attempt", "_coming", "_drafts", "_handed_on", "_hands_on", "_held", "_is_taught",
        "_is_teaching", "_joins_at", "_kept", "_memory", "_open", "_pending", "_pins", "_shown", "applied", "chain",
        "downstream", "index", "is_head", "is_heir", "is_last", "key", "learner", "me", "num_filled", "predecessor",
        "replicated_bytes", "safe", "shard", "standing", "successor", "teaching",
    )  # fmt: skip

    def __init__(self, key: KeyId, shard: int, me: Incarnation, pins: Pins, memory: Memory) -> None:
        self.key, self.shard, self.me = key, shard, me
        self.chain: Chain = (me,)
        self.standing = Standing.HEAD
        self.learner: Incarnation | None = None
        self.teaching = Teaching.NOBODY
        self._look()
        self._shown = 0  # the last entry that the learner has
        self._joins_at = 0  # the last one that nobody waited for it to have
        self.index = 0  # the last entry that is whole here
        self.safe = 0  # the last one that everybody after us has
        self.applied = 0  # the last one that is in the value here
        self.replicated_bytes = 0
        self.num_filled = 0  # entries that were made here with data in them: with replicas one for each update
        self._acked = 0  # what the predecessor was told last
        self._pins = pins
        self._memory = memory
        self._kept: deque[Kept] = deque()
        self._open: Kept | None = None  # the entry that is being made, or handed on
        self._pending: tuple[Pieces, Blocks] | None = None  # its last part so far, not sent: it may be the last
        self._coming: list[Coming] = []
        self._attempt = 0  # the predecessor's last to send us an entry; what belongs to earlier ones comes late
        self._applying: deque[Whole] = deque()
        self._drafts: list[Whole] = []  # kept beside the value
        self._handed_on = 0  # the last entry that was, or need not be, sent to whoever comes after us
        self._hands_on = False  # whether the entry that is coming is, part by part
        self._held: deque[tuple[int, Send]] = deque()

    # --- the chain --------------------------------------------------------------------------------------------------

    def enter(self, standing: Standing, chain: Chain) -> None:
        """The shard begins here, in this chain."""
        self.standing, self.chain = standing, chain
        self._look()

    def _look(self) -> None:
        """Who stands where, seen from here. To be called whenever the chain, the standing or the teaching has changed,
        which is seldom: every message asks for these."""
        chain, me, learner = self.chain, self.me, self.learner
        place = chain.index(me) if me in chain else -1
        if 0 <= place < len(chain) - 1:
            downstream: Incarnation | None = chain[place + 1]
        else:
            is_taught = place >= 0 and self.teaching in (Teaching.SHOWING, Teaching.JOINING)
            downstream = learner if is_taught else None
        before = chain[place - 1] if place > 0 else None
        self.downstream = downstream
        """Whom entries go to from here."""
        self.successor = None if self.teaching is Teaching.SHOWING else downstream
        """Whom the chain waits for, after us."""
        self.predecessor = (chain[-1] if chain else None) if self.standing is Standing.LEARNER else before
        self.is_last = self.successor is None
        """Whether nobody is waited for."""
        self.is_head = self.standing is Standing.HEAD
        self.is_heir = self.standing is Standing.HEIR
        self._is_taught = self.standing in (Standing.FOLLOWER, Standing.LEARNER)  # by whoever is before us
        self._is_teaching = self.teaching is not Teaching.NOBODY

    @property
    def is_settled(self) -> bool:
        """Whether all of the chain have all of the log, and nobody waits to be told of it."""
        return self._open is None and self.safe == self.index and not self._held

    def rechain(self, chain: Chain, learner: Incarnation | None) -> list[Effect]:
        """The generation gives the shard this chain. Who becomes its first is an heir, until `inherit`."""
        before, after = self.predecessor, self.downstream
        self.chain = chain
        if self.me not in chain:
            if learner != self.me:
                self.standing = Standing.OUTSIDER
                self._look()
                return self._drop_all()
            self.standing = Standing.LEARNER
        elif chain[0] != self.me:
            self.standing = Standing.FOLLOWER
        elif self.standing is not Standing.HEAD:
            self.standing = Standing.HEIR
        self._teach(learner if chain and chain[-1] == self.me else None)
        self._look()
        effects: list[Effect] = []
        if self.predecessor != before:
            effects += self._forget_coming()
            self._attempt = 0  # others count for themselves
            effects += self.resume()
        if self.downstream is None:
            self._let_go(self.index)
        elif self.downstream != after:
            effects += self.send_again()
        if self.is_last:
            self.safe = self.index
            effects += self.flush(True) if self.is_head else self.acknowledge()
        return effects

    # --- the learner ------------------------------------------------------------------------------------------------

    def _teach(self, learner: Incarnation | None) -> None:
        if learner == self.learner:
            return
        self.learner = learner
        self.teaching = Teaching.NOBODY if learner is None else Teaching.WAITING

    def show(self, lesson: int, counts: dict[str, Any]) -> list[Effect]:
        """The learner is ready, and no entry is half made: from here on entries go to it, each when it is applied here:
        so what it is shown of a slot contains exactly those that it got before."""
        assert self.learner is not None
        self._let_go(self.index)
        self._close_open()
        self.teaching = Teaching.SHOWING
        self._look()
        self._handed_on = self._shown = self.applied
        self._hands_on = False  # what is coming may have been meant for a successor that is gone: it goes when applied
        show = m.Show(key=self.key, shard=self.shard, lesson=lesson, index=self.applied, counts=counts)
        return [Send(self.learner, show)]

    def _copied(self, whole: Whole) -> Kept:
        """What came, to be kept and handed on."""
        kept = Kept(whole.index, self._pins.number())
        for number, coming in enumerate(whole.parts):
            blocks = tuple(self._own(data) for data in coming.data)
            for block in blocks:
                if block.array.nbytes > COPIED_BYTES:
                    kept.pins.append(self._pins.pin(self.me, block))
                    self._pins.retire(block)
            is_last = number == len(whole.parts) - 1
            part = m.Replicate(
                key=self.key, shard=self.shard, index=whole.index, part=number, pieces=coming.pieces,
                entry=whole.entry if is_last else None, attempt=kept.attempt,
            )  # fmt: skip
            kept.parts.append((part, blocks))
        return kept

    def _own(self, data: Bytes) -> Block:
        block = self._memory.allocate(data.nbytes) if data.nbytes > COPIED_BYTES else Block(data.copy())
        block.array[:] = data
        return block

    def on_shown(self, peer: Incarnation) -> None:
        """The learner has everything that it was shown: the chain waits for it from now on."""
        if peer == self.learner and self.teaching is Teaching.SHOWING:
            self.teaching = Teaching.JOINING
            self._look()
            self._joins_at = self.index

    def has_recruit(self) -> bool:
        """Whether the manager should be told of a learner that has everything."""
        return self._is_teaching and self.teaching is Teaching.JOINING and self._shown >= self._joins_at

    def inherit(self) -> None:
        """The old head cannot answer anyone any more: speak for the shard."""
        self.standing = Standing.HEAD
        self._look()

    def resume(self) -> list[Effect]:
        """Tell the predecessor, on a new link or in a new chain, where to go on."""
        if self.predecessor is None:
            return []
        self._acked = self._ackable()
        return [Send(self.predecessor, self._ack(resumes=True))]

    def dissolve(self) -> list[Effect]:
        """The key is deleted: let go of everything; nobody is kept waiting for what will not be safe."""
        effects = [*self._forget_coming(), *(send for _, send in self._held)]
        self._held.clear()
        self._let_go(self.index)
        self._close_open()
        return effects

    def _drop_all(self) -> list[Effect]:
        """We are out: what we had to say is not ours to say any more."""
        while self._held:
            self._unhold(self._held.popleft()[1])
        return self.dissolve()

    @property
    def bytes_per_update(self) -> float:
        """What an update sends down the chain, on average."""
        return self.replicated_bytes / self.num_filled if self.num_filled else 0.0

    # --- making entries ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """An entry is under way: what is read from now on tells of it."""
        if self._open is None:
            self._open = Kept(self.index + 1, self._pins.number())

    def part(self, pieces: Pieces, blocks: Blocks) -> list[Effect]:
        """Data of the entry that is being made. Blocks above COPIED_BYTES came from the server's memory and are ours
        to free."""
        self.begin()
        self.num_filled += self._pending is None
        effects = self._send_pending()
        self._pending = (pieces, blocks)
        assert self._open is not None
        for block in blocks:
            self.replicated_bytes += block.array.nbytes
            if block.array.nbytes > COPIED_BYTES:
                self._open.pins.append(self._pins.pin(self.me, block))
                self._pins.retire(block)
        return effects

    def seal(self, entry: m.LogEntry) -> list[Effect]:
        """The entry is made. It is applied here already."""
        if self.downstream is None:
            self._close_open()
            self.index += 1
            self.safe = self.applied = self._handed_on = self.index
            return []
        self.begin()
        effects = self._send_pending(entry)
        assert self._open is not None
        self._kept.append(self._open)
        self._open = None
        self.index += 1
        self.applied = self._handed_on = self.index
        if self.is_last:
            self.safe = self.index
        return effects

    def _send_pending(self, entry: m.LogEntry | None = None) -> list[Effect]:
        if self._pending is None and entry is None:
            return []
        pieces, blocks = self._pending or ((), ())
        self._pending = None
        assert self._open is not None
        part = m.Replicate(
            key=self.key, shard=self.shard, index=self._open.index, part=len(self._open.parts), pieces=pieces,
            entry=entry, attempt=self._open.attempt,
        )  # fmt: skip
        self._open.parts.append((part, blocks))
        return [] if self.downstream is None else [self._replicate(self.downstream, part, blocks)]

    def _replicate(self, successor: Incarnation, part: m.Replicate, blocks: Blocks) -> Send:
        pins = tuple(self._pins.pin(successor, block) for block in blocks if block.array.nbytes > COPIED_BYTES)
        return Send(successor, msgspec.structs.replace(part, pins=pins) if pins else part, blocks, pins)

    def send_again(self) -> list[Effect]:
        """Everything that whoever comes after us may lack, in order."""
        after = self.downstream
        if after is None:
            return []
        kept = [*self._kept, *([self._open] if self._open is not None else [])]
        for one in kept:
            one.attempt = self._pins.number()
            one.parts = [(msgspec.structs.replace(part, attempt=one.attempt), blocks) for part, blocks in one.parts]
        return [self._replicate(after, part, blocks) for one in kept for part, blocks in one.parts]

    def _let_go(self, index: int) -> None:
        """Everybody after us has the log up to here."""
        self.safe = max(self.safe, index)
        while self._kept and self._kept[0].index <= index:
            for pin in self._kept.popleft().pins:
                self._pins.release(pin)

    def _close_open(self) -> None:
        self._pending = None
        if self._open is not None:
            for pin in self._open.pins:
                self._pins.release(pin)
            self._open = None

    # --- taking entries ---------------------------------------------------------------------------------------------

    def is_from_predecessor(self, peer: Incarnation) -> bool:
        """Whether this peer may change the shard here. Whoever is deposed may not."""
        return self._is_taught and peer == self.predecessor

    def take(
        self, peer: Incarnation, part: m.Replicate, data: tuple[Bytes, ...], *, is_shared: bool
    ) -> tuple[list[Effect], Whole | None]:
        """A part came; gives the entry if it is whole now."""
        release: list[Effect] = [Send(peer, m.Release(pins=part.pins))] if is_shared and part.pins else [Recycle(data)]
        if not self.is_from_predecessor(peer):
            return release, None
        if part.pins and is_shared and (part.index <= self.index or self._coming) and self._is_reading(peer, part.pins):
            release = []  # the same message again: what it names is still needed
        if part.index <= self.index:
            again = [Send(peer, self._ack())] if part.entry is not None else []
            return [*release, *again], None
        if part.index != self.index + 1 or part.attempt < self._attempt:
            return release, None  # a gap: what is between was lost with a link, and will be sent again; or it is late
        effects: list[Effect] = []
        if part.part == 0 and (part.attempt > self._attempt or not self._coming):
            effects += self._forget_coming()  # begun anew, and maybe another entry than before
            self._attempt = part.attempt
            # At once where the next of the chain has all before it; else when it is applied here.
            is_chained = self.downstream is not None and not self._is_teaching
            self._hands_on = is_chained and self._handed_on == self.index
        elif part.attempt != self._attempt or part.part != len(self._coming):
            return release, None  # a gap, or the same message again
        if not self._hands_on:
            self._coming.append(Coming(part.pieces, data, release, (peer, part.pins)))
        else:
            effects += self._hand_on(part, data, release)
        if part.entry is None:
            return effects, None
        coming, self._coming = self._coming, []
        self.index += 1
        if self.is_last:
            self.safe = self.index
        whole = Whole(self.index, part.entry, coming)
        self._applying.append(whole)
        return effects, whole

    def _hand_on(self, part: m.Replicate, data: tuple[Bytes, ...], release: list[Effect]) -> list[Effect]:
        """In the middle of a chain: an own copy is what is applied, kept and sent on."""
        blocks = [self._own(one) for one in data]
        # Two pins of our own: this one until it is applied here, that of `part` until the successor has it.
        pins = [self._pins.pin(self.me, block) for block in blocks if block.array.nbytes > COPIED_BYTES]
        effects: list[Effect] = [*release, *self.part(part.pieces, tuple(blocks))]
        self._coming.append(Coming(part.pieces, tuple(block.array for block in blocks), [], (self.me, ()), pins))
        effects += self._send_pending(part.entry)
        if part.entry is not None:
            assert self._open is not None
            self._kept.append(self._open)
            self._open = None
            self._handed_on = part.index
        return effects

    def _forget_coming(self) -> list[Effect]:
        """Part of an entry, whose rest will not come: it is sent anew, or was never safe."""
        effects = [effect for one in self._coming for effect in self.release(one)]
        self._coming = []
        if not self.is_head:
            self._close_open()
        return effects

    def release(self, part: Coming) -> list[Effect]:
        """The part is not needed any more."""
        for pin in part.pins:
            self._pins.release(pin)
        return part.release

    def reading(self, peer: Incarnation) -> list[int]:
        """That peer's pins on what is still to be applied here."""
        parts = [*self._coming, *(part for whole in (*self._applying, *self._drafts) for part in whole.parts)]
        return [pin for part in parts if part.theirs[0] == peer for pin in part.theirs[1]]

    def _is_reading(self, peer: Incarnation, pins: tuple[int, ...]) -> bool:
        return not set(pins).isdisjoint(self.reading(peer))

    def keep(self, whole: Whole) -> None:
        """The entry is a draft: what it brought is needed until `unkeep`."""
        self._drafts.append(whole)

    def unkeep(self, whole: Whole) -> list[Effect]:
        self._drafts.remove(whole)
        return [effect for part in whole.parts for effect in self.release(part)]

    def drop(self, whole: Whole, *, is_kept: bool = False) -> list[Effect]:
        """The entry is not to be applied any more."""
        self._applying.remove(whole)
        return [] if is_kept else [effect for part in whole.parts for effect in self.release(part)]

    def mark(self, whole: Whole, *, is_kept: bool = False) -> list[Effect]:
        """The entry is in the value here, or kept beside it."""
        self.applied = whole.index
        self._applying.remove(whole)
        handed: list[Effect] = []
        if whole.index > self._handed_on:
            self._handed_on = whole.index
            if self.downstream is not None:
                kept = self._copied(whole)
                self._kept.append(kept)
                handed = [self._replicate(self.downstream, part, blocks) for part, blocks in kept.parts]
        if not is_kept:
            handed += [effect for part in whole.parts for effect in self.release(part)]
        return handed + self.acknowledge()

    def acknowledge(self) -> list[Effect]:
        """Tell the predecessor, if there is something new to tell."""
        ackable = self._ackable()
        if ackable <= self._acked or self.predecessor is None or not self._is_taught:
            return []
        self._acked = ackable
        return [Send(self.predecessor, self._ack())]

    def _ackable(self) -> int:
        """One entry may wait to be applied: then the chain need not wait for it. More would only use up memory."""
        return min(self.safe, self.applied + 1)

    def _ack(self, *, resumes: bool = False) -> m.Replicated:
        return m.Replicated(key=self.key, shard=self.shard, index=self._ackable(), resumes=resumes)

    def on_replicated(self, peer: Incarnation, message: m.Replicated, may_answer: bool) -> list[Effect]:
        """The successor has more of the log than we knew, or lacks some of it."""
        if peer != self.downstream:
            return []
        self._let_go(message.index)
        self._shown = max(self._shown, message.index)
        effects = self.send_again() if message.resumes else []
        return effects + (self.flush(may_answer) if self.is_head else self.acknowledge())

    # --- what may be said -------------------------------------------------------------------------------------------

    def hold_back(self, effects: list[Effect], may_answer: bool) -> list[Effect]:
        """Keep those that tell of what is not safe yet; `flush` gives them when it is."""
        if self.is_last:
            return effects
        tip = self.index + (self._open is not None)
        if self.safe >= tip and may_answer and not self._held:
            return effects
        out: list[Effect] = []
        for effect in effects:
            if type(effect) is Send and type(effect.message) not in UNHELD:
                self._held.append((tip, effect))
            else:
                out.append(effect)
        return out

    def flush(self, may_answer: bool) -> list[Effect]:
        effects: list[Effect] = []
        while self._held and may_answer and (self._held[0][0] <= self.safe or self.is_last):
            effects.append(self._held.popleft()[1])
        return effects

    def seed(self, index: int) -> None:
        """A learner begins: what it is shown is after this entry."""
        self.index = self.safe = self.applied = self._acked = self._handed_on = index
        self._kept.clear()
        self._coming = []

    def drop_reader(self, peer: Incarnation) -> None:
        """The link to this peer is gone: it will ask again."""
        if self._held:
            self._held = deque(held for held in self._held if held[1].peer != peer or self._unhold(held[1]))

    def _unhold(self, send: Send) -> bool:
        for pin in send.pins:
            self._pins.release(pin)
        return False
