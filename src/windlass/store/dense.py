"""A slot of a dense key: how the contributions of a round become its next value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from windlass.errors import UsageError
from windlass.store.reduce import Op, Reducer, check_reducer
from windlass.store.spans import Spans, segments
from windlass.store.update import Assign, Fused, Merge, Updater
from windlass.store.value import Target, Value
from windlass.types import STORAGE, Array, Block, Bytes, Heap, Memory

_BYTES = np.dtype(np.uint8)
_NOTHING = np.empty(0, np.uint16)


class Contribution(msgspec.Struct, eq=False):
    """Elements lo to hi of a slot, counted from its own start, from one worker. `data` is one-dimensional: bytes, or
    elements of the key's storage type. It is only read."""

    lo: int
    hi: int
    data: Array


class Reduced(msgspec.Struct, frozen=True, eq=False):
    """Elements lo to hi of a slot, reduced and divided: what an update is made of. `data` holds numbers of the type
    that is computed in, as bytes."""

    lo: int
    hi: int
    data: Bytes


@dataclass(slots=True, eq=False)
class _Ice:
    """Arrays beside the published value that somebody keeps as they are. While there are holders, the slot goes on with
    copies of them."""

    arrays: dict[str, Array]
    num_holders: int = 0


class FrozenSlot(NamedTuple):
    """Everything that a slot was made of at one moment. It stays so while `block` is pinned, and until `thaw`."""

    block: Block
    ice: _Ice
    meta: dict[str, Any]


class _Part(msgspec.Struct, frozen=True):
    """A stretch in which the same contributions meet elements of the same step."""

    lo: int
    hi: int
    covering: list[int]
    step: int


class DenseSlot:
    """A slot of one dense key: its value, its optimizer state, its steps. One owner: not thread-safe. Different slots
    may be worked on by different threads at once, and the kernels run without the interpreter lock.

    A UsageError leaves the slot as it was. So does a user's reducer that raises; a user's updater that raises leaves
    the stretch it was given as far as it got.
    """

    def __init__(self, *, size: int, dtype: str, reducer: Reducer, updater: Updater, memory: Memory) -> None:
        """A slot of zeros."""
        self._value = Value(size, dtype, memory)
        check_reducer(reducer, dtype)
        updater.check(dtype, reducer)
        kernels = _load_kernels()
        self.size, self.dtype, self.reducer, self.updater = size, dtype, reducer, updater
        self.state: dict[str, Array] = {}
        self.spans = Spans(size)
        self._kernels = kernels
        self._state_type = self._value.type if self._value.type.kind == "f" else STORAGE["float64"]
        self._job = kernels.new_job(8, size=size, op=reducer.op, dtype=dtype)
        self._reduced_job: Array | None = None  # made when first needed: most slots are not replicated
        self._tuned: tuple[Mapping[str, float], Updater] = ({}, updater)
        self._numbered: Updater | None = None  # whose coefficients `_numbers` are
        self._numbers: Array = _NOTHING
        self._ice: _Ice | None = None  # what somebody keeps of the arrays that we use now
        for name in updater.state_names():
            self._add_state(name)
        is_plain = not self._value.is_half and dtype != "bool"
        self._keeps_one = is_plain and reducer.op in (Op.SUM, Op.MIN, Op.MAX)  # one contribution is what it reduces to
        self._kernel: Any = None
        if isinstance(updater, Fused) and reducer.op is not Op.CUSTOM:
            self._kernel = getattr(kernels, updater.kernel)

    def __repr__(self) -> str:
        return f"<DenseSlot {self.size} x {self.dtype} | {self.reducer.name}, {self.updater}>"

    @property
    def block(self) -> Block:
        """The published value's bytes."""
        return self._value.block

    @property
    def value_bytes(self) -> int:
        return self._value.block.array.nbytes

    @property
    def state_bytes(self) -> int:
        """What is kept beside the published value."""
        master = self._value.array.nbytes if self._value.is_half else 0
        return master + sum(each.nbytes for each in self.state.values())

    def write(self, lo: int, hi: int, data: Array, *, is_pinned: bool = False) -> Block | None:
        """Set elements lo to hi; optimizer state and steps stay. Returns the old block where `is_pinned`."""
        elements = self._value.elements(lo, hi, data)
        if lo == hi:
            return None
        self._unshare()
        target = self._value.elsewhere(is_whole=hi - lo == self.size) if is_pinned else self._value.here()
        self._value.write(lo, hi, elements, target)
        return self._value.swap(target)

    def apply(
        self,
        contributions: Sequence[Contribution],
        *,
        divisor: int,
        hyper: Mapping[str, float] | None,
        is_pinned: bool,
    ) -> Block | None:
        """Reduce the contributions, element by element in the order given, and update once. Elements that nobody
        contributed to do not change in any way. `divisor` is what mean divides by; `hyper` overrides the updater's
        numbers this once. Where `is_pinned` the value moves to a new block and the old one is returned: it is the
        caller's to free when the last reader is gone."""
        if divisor < 1:
            raise UsageError(f"divisor must be at least 1, got {divisor}")
        updater = self._tune(hyper) if hyper else self.updater
        is_whole = self._stage(contributions)
        self._job[self._kernels.DIVISOR] = divisor
        if not is_whole or self._kernel is None or len(self.spans.steps) > 1:
            cut = segments([(each.lo, each.hi) for each in contributions])
            return self._update_parts(self._job, cut, self._aggregated(contributions), updater, is_pinned)
        return self._update_whole(self._job, updater, is_pinned)

    # --- in two halves: what replicas need, and what they do with it --------------------------------------------------

    def reduce(
        self, contributions: Sequence[Contribution], *, divisor: int, room: Callable[[int], Bytes]
    ) -> list[Reduced]:
        """What `apply` would update with, stretch by stretch, each in so many bytes of `room`. `update` with it has
        the same outcome, bit for bit."""
        if divisor < 1:
            raise UsageError(f"divisor must be at least 1, got {divisor}")
        if len(contributions) == 1 and self._keeps_one:
            return self._copy_one(contributions[0], room)
        self._stage(contributions)
        self._job[self._kernels.DIVISOR] = divisor
        itemsize, reduced = self._value.type.itemsize, []
        for lo, hi, covering in segments([(each.lo, each.hi) for each in contributions]):
            data = room((hi - lo) * itemsize)
            self._aggregate(_Part(lo, hi, covering, 0), contributions, data.view(self._value.type))
            reduced.append(Reduced(lo, hi, data))
        return reduced

    def _copy_one(self, given: Contribution, room: Callable[[int], Bytes]) -> list[Reduced]:
        """Nobody else contributed: there is nothing to compute."""
        elements = self._value.elements(given.lo, given.hi, given.data)
        if not elements.size:
            return []
        data = room(elements.nbytes)
        data[:] = elements.view(_BYTES)
        return [Reduced(given.lo, given.hi, data)]

    def update(
        self, reduced: Sequence[Reduced], *, hyper: Mapping[str, float] | None, is_pinned: bool
    ) -> Block | None:
        """Update once, with what `reduce` gave, here or on another server. Returns as `apply` does."""
        updater = self._tune(hyper) if hyper else self.updater
        kernels, job = self._kernels, self._reduced_job
        if job is None:
            job = self._reduced_job = kernels.new_job(8, size=self.size, op=self.reducer.op, dtype=self.dtype)
            job[kernels.READ], job[kernels.ITEMSIZE] = kernels.NATIVE, self._value.type.itemsize
        if len(reduced) > len(job) - kernels.INPUTS:
            room = np.zeros(2 * len(reduced), np.int64)
            job = self._reduced_job = np.concatenate([job[: kernels.INPUTS], room])
        numbers = []
        for index, each in enumerate(reduced):
            data = each.data
            if not kernels.put(job, index, data, each.lo):
                data = np.array(data)
                kernels.put(job, index, data, each.lo)
            numbers.append(data.view(self._value.type))
        job[kernels.COUNT] = len(reduced)
        is_whole = len(reduced) == 1 and reduced[0].lo == 0 and reduced[0].hi == self.size > 0
        if is_whole and self._kernel is not None and len(self.spans.steps) == 1:
            return self._update_whole(job, updater, is_pinned)
        cut = [(each.lo, each.hi, [index]) for index, each in enumerate(reduced)]

        def aggregate(part: _Part) -> Array:
            """A copy: the updater may overwrite it, and others read what was reduced."""
            [index] = part.covering
            lo = reduced[index].lo
            return numbers[index][part.lo - lo : part.hi - lo].copy()

        return self._update_parts(job, cut, aggregate, updater, is_pinned)

    def _update_whole(self, job: Array, updater: Updater, is_pinned: bool) -> Block | None:
        self._unshare()
        steps, value = self.spans.steps, self._value
        target = value.elsewhere(is_whole=True) if is_pinned else value.here()
        self._run(job, updater, target, steps[0] + 1)
        if updater.counts_steps:
            steps[0] += 1
        return value.swap(target)

    # --- the common case: everybody contributed all of it -------------------------------------------------------------

    def _stage(self, contributions: Sequence[Contribution]) -> bool:
        """Put every contribution's address into the job. Whether each covers the whole slot, and there is one."""
        job, put, size, is_half = self._job, self._kernels.put, self.size, self._value.is_half
        count = len(contributions)
        if count > len(job) - self._kernels.INPUTS:
            self._job = job = self._kernels.new_job(2 * count, size=size, op=self.reducer.op, dtype=self.dtype)
        whole_bytes, is_whole = self.value_bytes, count > 0 and size > 0
        if is_half:
            self._read_as(job, contributions)
        for index, each in enumerate(contributions):
            data = each.data
            if is_half and job[self._kernels.ITEMSIZE] != self._value.storage.itemsize:
                _check_wide(each)
                is_whole = is_whole and each.lo == 0 and each.hi == size
            elif each.lo or each.hi != size or data.nbytes != whole_bytes or data.dtype is not _BYTES:
                self._value.elements(each.lo, each.hi, data)
                is_whole = is_whole and each.lo == 0 and each.hi == size
                # The contribution keeps what is put: the job has only its address.
                each.data = data = np.ascontiguousarray(data).view(_BYTES)
            if not put(job, index, data, each.lo):
                each.data = data = np.array(data)
                put(job, index, data, each.lo)
        job[self._kernels.COUNT] = count
        return is_whole

    def _read_as(self, job: Array, contributions: Sequence[Contribution]) -> None:
        """A 16-bit key takes 16-bit numbers or, from filters that compute in it, float32: all of a round alike."""
        kernels, wide = self._kernels, np.dtype(np.float32).itemsize
        is_wide = any(each.hi > each.lo and each.data.nbytes == wide * (each.hi - each.lo) for each in contributions)
        job[kernels.READ] = kernels.NATIVE if is_wide else job[kernels.ENCODING]
        job[kernels.ITEMSIZE] = wide if is_wide else self._value.storage.itemsize

    def threshold(self, lo: int, hi: int) -> Array | float | None:
        """The updater's, of elements lo to hi."""
        return self.updater.threshold({name: each[lo:hi] for name, each in self.state.items()})

    def _run(self, job: Array, updater: Updater, target: Target, step: int) -> None:
        """Reduce and update what the job says, in one pass."""
        numbers = self._numbers
        if updater is not self._numbered or updater.counts_steps:
            assert isinstance(updater, Fused)
            numbers = self._numbers = np.array(updater.coefficients(step), target.array.dtype)
            self._numbered = updater
        states = [self.state.get(name, numbers) for name in updater.state] if updater.state else ()
        self._kernel(self._value.array, target.array, target.published, job, numbers, *states)

    def _tune(self, hyper: Mapping[str, float]) -> Updater:
        if self._tuned[0] != hyper:
            self._tuned = (dict(hyper), self.updater.with_hyper(hyper))
        return self._tuned[1]

    # --- the general case ---------------------------------------------------------------------------------------------

    def _update_parts(
        self,
        job: Array,
        cut: Sequence[tuple[int, int, list[int]]],
        aggregate: Callable[[_Part], Array],
        updater: Updater,
        is_pinned: bool,
    ) -> Block | None:
        """Update stretch by stretch: (lo, hi, which inputs of the job cover it)."""
        if not cut:
            return None
        parts = [
            _Part(lo, hi, covering, step + 1)
            for start, stop, covering in cut
            for lo, hi, step in (self.spans.cut(start, stop) if updater.counts_steps else [(start, stop, 0)])
        ]
        value, is_fused = self._value, self._kernel is not None
        aggregates = [] if is_fused else [aggregate(part) for part in parts]
        is_whole = is_fused and sum(part.hi - part.lo for part in parts) == self.size
        self._unshare()
        target = value.elsewhere(is_whole=is_whole) if is_pinned else value.here()
        try:
            if is_fused:
                for part in parts:
                    self._run(self._part_job(job, part), updater, target, part.step)
            else:
                for part, numbers in zip(parts, aggregates, strict=True):
                    self._update(part, numbers, updater, target)
        except BaseException:
            value.abandon(target)
            raise
        if updater.counts_steps:
            for start, stop, _ in cut:
                self.spans.advance(start, stop)
        return value.swap(target)

    def _part_job(self, whole: Array, part: _Part) -> Array:
        """The staged job, for this part only."""
        kernels, covering = self._kernels, part.covering
        if covering == [0]:  # the usual case
            job = whole[: kernels.INPUTS + 1].copy()
        else:
            job = np.concatenate([whole[: kernels.INPUTS], whole[kernels.INPUTS :][covering]])
        job[kernels.LO], job[kernels.HI], job[kernels.COUNT] = part.lo, part.hi, len(part.covering)
        return job

    def _aggregated(self, contributions: Sequence[Contribution]) -> Callable[[_Part], Array]:
        return lambda part: self._aggregate(part, contributions, np.empty(part.hi - part.lo, self._value.type))

    def _aggregate(self, part: _Part, contributions: Sequence[Contribution], total: Array) -> Array:
        """The part reduced, in `total`."""
        kernels, value = self._kernels, self._value
        if self.reducer.op is not Op.CUSTOM:
            job = self._part_job(self._job, part)
            job[kernels.INPUTS :] += part.lo * job[kernels.ITEMSIZE]
            job[kernels.LO], job[kernels.HI], job[kernels.ENCODING] = 0, part.hi - part.lo, kernels.NATIVE
            kernels.assign(total, total, _NOTHING, job, total[:0])
            return total
        inputs = []
        for each in (contributions[index] for index in part.covering):
            elements = value.elements(each.lo, each.hi, each.data)[part.lo - each.lo : part.hi - each.lo]
            inputs.append(value.decoded(elements))
        total[:] = self.reducer.fold(inputs, int(self._job[kernels.DIVISOR]))
        return total

    def _update(self, part: _Part, aggregate: Array, updater: Updater, target: Target) -> None:
        """Update one part of the target through numpy."""
        lo, hi = part.lo, part.hi
        stretch = target.array[lo:hi]
        if self.dtype == "bool" and self.reducer.op is Op.CUSTOM:
            aggregate = aggregate.view(np.bool_)  # what a user's reducer is given
        if isinstance(updater, Merge):
            numbers = stretch.view(aggregate.dtype)
            numbers[:] = self.reducer.merge(numbers, aggregate)
        elif isinstance(updater, Assign):
            stretch[:] = aggregate
        else:
            state = {name: each[lo:hi] for name, each in self.state.items()}
            updater.update(stretch, aggregate, state, part.step)
            for name in state.keys() - self.state.keys():
                self._add_state(name)[lo:hi] = state[name]
        if self._value.is_half:
            self._kernels.publish(target.published, target.array, lo, hi, int(self._job[self._kernels.ENCODING]))

    def _add_state(self, name: str) -> Array:
        """The state array of this name, made if there is none."""
        if name not in self.state:
            self.state[name] = np.full(self.size, self.updater.initial_state(name), self._state_type)
        return self.state[name]

    # --- keeping and bringing back ------------------------------------------------------------------------------------

    def dump(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that later updates depend on: copies of the arrays by name, and plain values. A slot that
        restores them goes on bit for bit as this one does."""
        arrays = {"value": self.block.array.view(self._value.storage).copy()}
        if self._value.is_half:
            arrays["master"] = self._value.array.copy()
        arrays |= {f"state.{name}": each.copy() for name, each in self.state.items()}
        return arrays, {"size": self.size, "dtype": self.dtype, "spans": self.spans.dump()}

    def freeze(self) -> FrozenSlot:
        """The same without copies. Until `thaw`, what changes is copied first, once; the caller pins the block."""
        if self._ice is None:
            arrays = {"master": self._value.array} if self._value.is_half else {}
            self._ice = _Ice(arrays | {f"state.{name}": each for name, each in self.state.items()})
        self._ice.num_holders += 1
        return FrozenSlot(self.block, self._ice, {"size": self.size, "dtype": self.dtype, "spans": self.spans.dump()})

    def thaw(self, frozen: FrozenSlot) -> None:
        """Nobody needs it any more; once for each `freeze`."""
        frozen.ice.num_holders -= 1

    def frozen_arrays(self, frozen: FrozenSlot) -> dict[str, Array]:
        """As `dump` names them, not copied."""
        return {"value": frozen.block.array.view(self._value.storage), **frozen.ice.arrays}

    def _unshare(self) -> None:
        """About to change: what others keep stays as it is."""
        ice, self._ice = self._ice, None
        if ice is not None and ice.num_holders:
            self.state = {name: each.copy() for name, each in self.state.items()}
            if self._value.is_half:
                self._value.array = self._value.array.copy()

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, Any], *, is_pinned: bool = False) -> Block | None:
        """Become what `dump` gave; its arrays may have come as bytes. Returns the old block where `is_pinned`."""
        if (meta["size"], meta["dtype"]) != (self.size, self.dtype):
            raise UsageError(
                f"the dump is of {meta['size']} x {meta['dtype']}, this slot holds {self.size} x {self.dtype}"
            )
        spans = Spans.restore(self.size, meta["spans"])
        state = {
            name.removeprefix("state."): each.view(self._state_type).copy()
            for name, each in arrays.items() if name.startswith("state.")
        }
        kept = set(self.updater.state_names())
        if kept - set(state) or (isinstance(self.updater, Fused) and set(state) - kept):
            raise UsageError(
                f"the dump was made under another updater: it has the state {sorted(state)}, "
                f"but {self.updater} keeps {sorted(kept)}"
            )
        sizes = {name: each.size for name, each in state.items() if each.size != self.size}
        if sizes:
            raise UsageError(f"the dump's state should be of {self.size} elements, got {sizes}")
        old = self.write(0, self.size, arrays["value"], is_pinned=is_pinned)
        if self._value.is_half:
            self._value.array[:] = arrays["master"].view(np.float32)
        self.state, self.spans = state, spans
        return old


@cache
def _load_kernels() -> Any:
    """When the first slot is made, because importing numba takes most of a second."""
    from windlass.store import kernels

    return kernels


def _check_wide(given: Contribution) -> None:
    expected = 4 * (given.hi - given.lo)
    if given.data.nbytes != expected:
        raise UsageError(f"[{given.lo}, {given.hi}) of float32 is {expected} bytes, got {given.data.nbytes}")


def warm(dtype: str, reducer: Reducer, updater: Updater) -> None:
    """Load (or compile) the kernels that such a key needs, before forking. Starts no thread."""
    slot = DenseSlot(size=1, dtype=dtype, reducer=reducer, updater=updater, memory=Heap())
    data = np.zeros(slot.value_bytes, np.uint8)
    readonly = data.view()
    readonly.flags.writeable = False  # what comes over shared memory is, and is another type to numba
    slot.apply([Contribution(0, 1, data), Contribution(0, 1, readonly)], divisor=1, hyper=None, is_pinned=False)
