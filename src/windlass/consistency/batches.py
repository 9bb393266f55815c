"""Which leases of work have been counted on one shard.

A workload's batches are numbered from 0 and given out almost in order, so what is counted is all below some number, and
a few above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class Counted:
    """A set of whole numbers that grows from 0 upwards with few gaps."""

    def __init__(self, floor: int = 0, above: Iterable[int] = ()) -> None:
        self.floor = floor  # all below it are in
        self.above = set(above)
        self._close_up()

    def __contains__(self, number: int) -> bool:
        return number < self.floor or number in self.above

    def __len__(self) -> int:
        return self.floor + len(self.above)

    def add(self, number: int) -> None:
        if number >= self.floor:
            self.above.add(number)
            self._close_up()

    def _close_up(self) -> None:
        while self.floor in self.above:
            self.above.discard(self.floor)
            self.floor += 1


def common(every: Sequence[Counted]) -> Counted:
    """What is in all of them."""
    if not every:
        return Counted()
    floor = min(counted.floor for counted in every)
    highest = max(max(counted.above, default=counted.floor) for counted in every)
    return Counted(floor, (one for one in range(floor, highest + 1) if all(one in counted for counted in every)))


class CountedBatches:
    """What is counted of every workload. *Taken* are batches of pushes that are decided but in no entry yet: for who
    asks whether a batch is free they count, for a learner they do not. `repeats` is for whoever checks the books, and
    decides nothing: how many entries more than one the batches were in."""

    def __init__(self) -> None:
        self.workloads: dict[str, Counted] = {}
        self.repeats: dict[str, int] = {}
        self._taken: dict[str, set[int]] = {}
        self._restored: dict[int, dict[str, Counted]] = {}

    def is_free(self, workload: str, numbers: Iterable[int]) -> bool:
        """Whether none of these leases has been counted, or is about to be."""
        counted, taken = self.workloads.get(workload), self._taken.get(workload, ())
        return not any((counted is not None and number in counted) or number in taken for number in numbers)

    def take(self, workload: str, numbers: Iterable[int]) -> None:
        self._taken.setdefault(workload, set()).update(numbers)

    def count(self, workload: str, numbers: Iterable[int]) -> None:
        """An entry that completes these leases is made: once for each entry."""
        counted, taken = self.workloads.setdefault(workload, Counted()), self._taken.get(workload, set())
        for number in numbers:
            if number in counted:
                self.repeats[workload] = self.repeats.get(workload, 0) + 1
            counted.add(number)
            taken.discard(number)

    def give_up(self, workload: str | None = None, numbers: Iterable[int] = ()) -> None:
        """What was taken, or these of it, will not be in an entry of ours."""
        if workload is None:
            self._taken.clear()
        else:
            self._taken.get(workload, set()).difference_update(numbers)

    def dump(self) -> dict[str, list[object]]:
        return {workload: [counted.floor, sorted(counted.above)] for workload, counted in self.workloads.items()}

    def load(self, dumped: Mapping[str, list[object]], repeats: Mapping[str, int]) -> None:
        self._taken.clear()
        self.workloads, self.repeats = _loaded(dumped), dict(repeats)

    def restore(self, slot: int, dumped: Mapping[str, list[object]]) -> None:
        """A slot is what it was when so much had been counted on it. What a shard counts is what all its slots do: they
        may come from shards that were cut otherwise."""
        self._taken.clear()
        self._restored[slot] = _loaded(dumped)
        every = list(self._restored.values())
        shared = [name for name in every[0] if all(name in one for one in every)]
        self.workloads = {name: common([one[name] for one in every]) for name in shared}


def _loaded(dumped: Mapping[str, list[object]]) -> dict[str, Counted]:
    return {workload: Counted(floor, above) for workload, (floor, above) in dumped.items()}  # type: ignore[arg-type]
