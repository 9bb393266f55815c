"""Judges a history: was every pull, and the final value, what the key's consistency promises?

DESIGN section 2 in terms of bits. *In* means counted once. A bit is *visible* to a pull where both the push and the
pull cover it. For a pull after n own pushes, on every slot:

    always       no bit twice, none that nobody pushed; each worker's bits form a prefix; own pushes up to n are in;
                 what an earlier pull of the same worker saw is still in
    Sequential   of every worker exactly the pushes up to n; of a departed one those up to n or to its *cut*, the same
                 cut in every pull, on every slot, and not before its last acknowledged push (where a server died in
                 the same run, each slot may have a cut of its own: docs/failure-model.md says when)
    Bounded(d)   the first n - d of every live worker are in that had begun on the key when the pull did
    not Seq.     what was acknowledged before the pull began is in
    a driver's   the value after one and the same round on every slot; what was acknowledged before is in
    a snapshot   the same, and on a sequential key it is the round that the saver was told
    final        everything acknowledged is in

Of a table whose rows may go only this is judged: no bit twice, none that nobody pushed. What a push carries is what was
sent with it: a mark that a filter keeps back belongs to the push that it is sent with. A pull that names a list of ids
which its server has lost is asked again; so on such a table, where there are no rounds, an *earlier* pull is one that
was answered before the later one began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from windlass.filters import IdCache
from windlass.testing.history import NEWEST, History, KeyShape, Marks, Pulled, Pushed, WorkerLog
from windlass.types import Array, Bounded, Sequential

FINAL = "the final value"
FAR = 1 << 60
"""A push that nobody makes."""
_At = tuple[str, int, int]
"""Puller, slot, worker."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise. `where` names the pull, `slot` the slot of it."""

    rule: str
    worker: str
    key: str
    where: str
    slot: int
    expected: str
    got: str

    @property
    def reason(self) -> str:
        where = f"{self.worker}, '{self.key}', {self.where}, slot {self.slot}"
        return f"{self.rule}: {where}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Verdict:
    violations: tuple[Violation, ...]
    num_pulls: int

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def reason(self) -> str:
        """The first few violations in words; empty when there are none."""
        shown = [violation.reason for violation in self.violations[:5]]
        more = len(self.violations) - len(shown)
        return "\n".join(shown) + (f"\n... and {more} more" if more else "")


def judge(history: History) -> Verdict:
    """Judge every pull and the final values. Pure; safe to repeat."""
    violations: list[Violation] = []
    num_pulls = 0
    for shape in history.keys.values():
        judged = _KeyJudge(shape, history.workers)
        for log in history.workers:
            for number, event in enumerate(log.events, 1):
                if type(event) is Pulled and event.key == shape.name:
                    num_pulls += 1
                    judged.pull(log, event, number)
        for number, saved in enumerate(history.snapshots, 1):
            if saved.key == shape.name:
                num_pulls += 1
                judged.snapshot(saved, number)
        if shape.name in history.final:
            judged.final(history.final[shape.name])
        violations += judged.violations
    return Verdict(tuple(violations), num_pulls)


class _Seen(msgspec.Struct):
    """What one slot of one pull shows of one worker: the last push that is in, the first visible one that is not."""

    last_in: int
    first_out: int


class _Cut(msgspec.Struct):
    """Where a departed worker's pushes end, as far as the pulls tell, and which pull told."""

    at_least: int = 0
    at_least_by: str = "nobody"
    below: int = 1 << 60
    below_by: str = "nobody"


@dataclass(slots=True)
class _KeyJudge:
    shape: KeyShape
    logs: list[WorkerLog]
    violations: list[Violation] = field(default_factory=list)
    pushes: list[list[Pushed]] = field(init=False)
    made: list[list[tuple[int, int, int, Marks | None, int, float]]] = field(init=False)
    """The same, as it is looked at for every slot of every pull: bit, lo, hi, marks, clock, invoked."""
    cuts: dict[int, _Cut] = field(default_factory=dict)  # of each worker
    floors: dict[_At, int] = field(default_factory=dict)  # what was seen before
    late_floors: list[tuple[float, _At, int]] = field(default_factory=list)  # and from when on that counts
    asks_again: bool = field(init=False)

    def __post_init__(self) -> None:
        self.pushes = [log.pushes(self.shape.name) for log in self.logs]
        self.made = [
            [(one.bit, one.lo, one.hi, one.marks, one.clock, one.invoked) for one in made] for made in self.pushes
        ]
        names_lists = any(isinstance(one, IdCache) for one in self.shape.filters)
        self.asks_again = names_lists and not isinstance(self.shape.consistency, Sequential)

    # --- one pull -----------------------------------------------------------------------------------------------------

    def pull(self, log: WorkerLog, pull: Pulled, number: int) -> None:
        where = f"call {number} (pull after {pull.clock} pushes)" if pull.clock != NEWEST else f"call {number} (read)"
        decoded = self._decode(log.name, where, pull, pull.responded)
        if self.asks_again:
            self._raise_floors(log.name, pull.invoked)
        if pull.clock == NEWEST:
            self._newest(log.name, where, decoded, pull)
            return
        judge_one = self._sequential if isinstance(self.shape.consistency, Sequential) else self._arrival
        for slot, seen in decoded:
            for index, one in enumerate(seen):
                if one.first_out <= one.last_in:
                    self._order(log.name, where, slot, index, one)
                if one.last_in or one.first_out < FAR:  # else it shows nothing of this worker
                    self._monotonic(log.name, where, slot, index, one, pull)
                if one.first_out <= pull.clock and self.logs[index] is log:
                    self._fail("own pushes", log.name, where, slot, f"own push {one.first_out} to be in", "it is not")
                judge_one(log.name, where, slot, index, one, pull)

    def _newest(self, reader: str, where: str, decoded: list[tuple[int, list[_Seen]]], pull: Pulled) -> None:
        """A driver's read: some round r, no matter which, but one."""
        low, low_by, high, high_by = 0, 0, 1 << 60, 0
        for slot, seen in decoded:
            for index, one in enumerate(seen):
                self._order(reader, where, slot, index, one)
                self._monotonic(reader, where, slot, index, one, pull)
                self._acked_before(reader, where, slot, index, one, pull)
                if one.last_in > low:
                    low, low_by = one.last_in, slot
                if self.logs[index].departed is None and one.first_out < high:
                    high, high_by = one.first_out, slot
        if isinstance(self.shape.consistency, Sequential) and low >= high:
            got = f"round {low} on slot {low_by}, but not round {high} on slot {high_by}"
            self._fail("torn", reader, where, high_by, "one and the same round everywhere", got)

    def snapshot(self, saved: Pulled, number: int) -> None:
        """What was saved: exactly one round on every slot, the one that is told; or a state of each shard that existed.
        All that was acknowledged before is in, and nothing twice."""
        is_sequential = isinstance(self.shape.consistency, Sequential)
        where = f"snapshot {number}" + (f" (after round {saved.clock})" if is_sequential else "")
        for slot, seen in self._decode("a saver", where, saved, saved.responded):
            for index, one in enumerate(seen):
                self._order("a saver", where, slot, index, one)
                self._acked_before("a saver", where, slot, index, one, saved)
                if is_sequential:
                    self._sequential("a saver", where, slot, index, one, saved)

    def final(self, value: Array) -> None:
        whole = Pulled(self.shape.name, 0, 0, self.shape.size, value, 0.0, 1e300)
        for slot, seen in self._decode("everybody", FINAL, whole, whole.responded):
            for index, one in enumerate(seen):
                self._order("everybody", FINAL, slot, index, one)
                acked = max([p.clock for p in self.pushes[index] if p.acked is not None], default=0)
                if one.first_out <= acked:
                    expected = f"acknowledged push {one.first_out} of {self.logs[index].name} to be in"
                    self._fail("acknowledged", "everybody", FINAL, slot, expected, "it is not")
                elif isinstance(self.shape.consistency, Sequential) and self.logs[index].departed is not None:
                    self._bound_cut("everybody", FINAL, slot, index, one, 1 << 59)

    def _decode(
        self, puller: str, where: str, pull: Pulled, until: float
    ) -> list[tuple[int, list[_Seen]]]:
        """What every slot of a value shows of every worker. Nothing may be in it twice, before it was made, or that
        nobody made."""
        size = self.shape.slot_size
        counts = pull.value.tolist()
        found: list[tuple[int, list[_Seen]]] = []
        matched = 0
        for slot, lo, hi, offset in self._spans(pull):
            start = slot * size
            row: list[_Seen] = []
            for index, made in enumerate(self.made):
                last_in, first_out = 0, FAR
                for bit, from_, to, marks, clock, invoked in made:
                    for at in (start + bit,) if marks is None else marks.get(slot, ()):
                        if not (lo <= at < hi and from_ <= at < to):
                            continue
                        count = counts[at - offset]
                        if count == 0:
                            if clock < first_out:
                                first_out = clock
                            continue
                        matched += 1
                        last_in = clock
                        if count != 1 or invoked > until:
                            self._find_odd(puller, where, slot, (index, clock), count, is_early=invoked > until)
                row.append(_Seen(last_in, first_out))
            found.append((slot, row))
        nonzero = len(counts) - counts.count(0)
        if nonzero != matched:
            expected = f"only the {matched} elements that somebody pushed"
            self._fail("never made", puller, where, pull.lo // size, expected, f"{nonzero} elements that are not 0")
        return [] if self.shape.forgets else found

    def _find_odd(
        self, puller: str, where: str, slot: int, push: tuple[int, int], count: float, *, is_early: bool
    ) -> None:
        which = f"push {push[1]} of {self.logs[push[0]].name}"
        if count != 1:
            self._fail("once", puller, where, slot, f"{which} at most once", f"{count} times")
        if is_early:
            self._fail("causal", puller, where, slot, f"no {which} before it was made", "it")

    def _spans(self, pull: Pulled) -> Iterator[tuple[int, int, int, int]]:
        """The slots of a pulled value: which, from which element to which, and which element its value begins with."""
        size, lo, hi = self.shape.slot_size, pull.lo, pull.hi
        if pull.rows is not None:
            for position, slot in enumerate(pull.rows):
                yield slot, slot * size, (slot + 1) * size, (slot - position) * size
        elif lo < hi:
            for slot in range(lo // size, -(-hi // size)):
                yield slot, lo, hi, lo

    # --- the rules ----------------------------------------------------------------------------------------------------

    def _order(self, puller: str, where: str, slot: int, index: int, seen: _Seen) -> None:
        if seen.first_out <= seen.last_in:  # equal: half of what it carries is in
            expected = f"the pushes of {self.logs[index].name} without a gap"
            self._fail("order", puller, where, slot, expected, f"push {seen.last_in} but not {seen.first_out}")

    def _monotonic(self, puller: str, where: str, slot: int, index: int, seen: _Seen, pull: Pulled) -> None:
        at = (puller, slot, index)
        floor = self.floors.get(at, 0)
        if seen.first_out <= floor:
            expected = f"push {floor} of {self.logs[index].name}, which an earlier pull has seen"
            self._fail("monotonic", puller, where, slot, expected, f"not even push {seen.first_out}")
        if seen.last_in > floor and self.asks_again:
            self.late_floors.append((pull.responded, at, seen.last_in))
        elif seen.last_in > floor:
            self.floors[at] = seen.last_in

    def _raise_floors(self, puller: str, now: float) -> None:
        """What this one's pulls that were answered before now have seen counts from now on."""
        still = []
        for responded, at, last_in in self.late_floors:
            if at[0] == puller and responded < now:
                self.floors[at] = max(self.floors.get(at, 0), last_in)
            else:
                still.append((responded, at, last_in))
        self.late_floors = still

    def _sequential(self, puller: str, where: str, slot: int, index: int, seen: _Seen, pull: Pulled) -> None:
        who, clock, got = self.logs[index], pull.clock, ""
        if seen.last_in > clock:
            got = f"push {seen.last_in}"
        elif who.departed is not None:
            self._bound_cut(puller, where, slot, index, seen, clock)
        elif seen.first_out <= clock:
            got = f"no push {seen.first_out}"
        elif (made := self._made(index, pull.responded)) < clock:  # nothing marks a push that was never made
            got = f"an answer when it had made {made}"
        if got:
            self._fail("sequential", puller, where, slot, f"exactly the pushes of {who.name} up to {clock}", got)

    def _bound_cut(self, puller: str, where: str, slot: int, index: int, seen: _Seen, clock: int) -> None:
        """The last push of a departed worker counts everywhere or nowhere: all pulls must agree on one cut."""
        if index not in self.cuts:
            acked = max((push.clock for push in self.pushes[index] if push.acked is not None), default=0)
            self.cuts[index] = _Cut(acked, "its acknowledgement")
        cut = self.cuts[index]
        if seen.last_in > cut.at_least:
            cut.at_least, cut.at_least_by = seen.last_in, f"{puller}, {where}, slot {slot}"
        if seen.first_out <= clock and seen.first_out < cut.below:
            cut.below, cut.below_by = seen.first_out, f"{puller}, {where}, slot {slot}"
        if cut.at_least >= cut.below:
            expected = f"push {cut.below} of departed {self.logs[index].name} everywhere or nowhere"
            got = f"push {cut.at_least} is in by {cut.at_least_by}, push {cut.below} is out by {cut.below_by}"
            self._fail("departed", puller, where, slot, expected, got)
            self.cuts[index] = _Cut()

    def _arrival(self, puller: str, where: str, slot: int, index: int, seen: _Seen, pull: Pulled) -> None:
        who, policy = self.logs[index], self.shape.consistency
        if type(policy) is Bounded and pull.clock > policy.delay:
            needed = pull.clock - policy.delay
            missing = min(seen.first_out, self._made(index, pull.responded) + 1)
            is_live = who.departed is None or who.departed > pull.responded
            began = pull.invoked if pull.awaited_from is None else pull.awaited_from
            if missing <= needed and is_live and who.entered.get(pull.key, 0.0) < began:
                expected = f"the first {needed} pushes of {who.name}, delay is {policy.delay}"
                self._fail("bounded", puller, where, slot, expected, f"no push {missing}")
        if seen.first_out < FAR:  # else there is none that it could miss
            self._acked_before(puller, where, slot, index, seen, pull)

    def _acked_before(self, puller: str, where: str, slot: int, index: int, seen: _Seen, pull: Pulled) -> None:
        for push in self.pushes[index]:
            if push.clock >= seen.first_out and push.acked is not None and push.acked < pull.invoked:
                expected = f"push {push.clock} of {self.logs[index].name}, acknowledged before the pull began"
                self._fail("acknowledged", puller, where, slot, expected, f"no push {seen.first_out}")
                break

    def _made(self, index: int, until: float) -> int:
        """The clock that this worker had reached by then."""
        for push in reversed(self.pushes[index]):
            if push.invoked <= until:
                return push.clock
        return self.logs[index].since.get(self.shape.name, 0)

    def _fail(self, rule: str, worker: str, where: str, slot: int, expected: str, got: str) -> None:
        self.violations.append(Violation(rule, worker, self.shape.name, where, slot, expected, got))
