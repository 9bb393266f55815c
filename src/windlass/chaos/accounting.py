"""The books: what workers were told has been counted, beside what the servers have counted.

Of every worker and key the ledger has two sums: the elements of pushes that it has *begun*, and of those that were
*acknowledged* to it. The servers have a third: the elements that are in the value, by who gave them. An acknowledged
push is in the value exactly once and another at most once, so

    acknowledged <= counted <= begun

for each worker and key, whoever was killed; and on every shard the worker's applied clock is at least that of its last
acknowledged push. The sums see a push that is counted twice, which moves no clock; the clocks see one that is missing
from a single shard.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from windlass.errors import WindlassError
from windlass.types import Array

POLL_SECONDS = 0.05


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker has noted of one key."""

    incarnation: int
    key: int
    begun_elements: int
    acked_clock: int
    acked_pushes: int
    acked_elements: int


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of one shard has counted, by incarnation; a departed worker has no clock any more."""

    applied: Mapping[int, int]
    counted: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Books:
    """`before` was read before the servers were asked, `after` afterwards: so the comparison holds even while pushes
    go on. A shard that is None is lost. `gaps` says why something could not be seen."""

    before: tuple[Tally, ...]
    after: tuple[Tally, ...]
    shards: Mapping[int, tuple[Shard | None, ...]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)  # of keys and incarnations
    gaps: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the pushes of one worker on one key."""

    worker: str
    key: str
    pushes: int
    reason: str


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """`unjudged`: why the books could not be compared; nothing is proven then."""

    lost: tuple[Finding, ...] = ()
    twice: tuple[Finding, ...] = ()
    num_acked: int = 0
    num_deleted_keys: int = 0
    unjudged: str = ""


def judge(books: Books) -> Findings:
    """Compare. Pushes on keys that have been deleted cannot be judged; they are counted."""
    if books.gaps:
        return Findings(num_acked=sum(one.acked_pushes for one in books.before), unjudged="; ".join(books.gaps))
    begun = {(one.incarnation, one.key): one.begun_elements for one in books.after}
    lost: list[Finding] = []
    twice: list[Finding] = []
    for tally in books.before:
        shards = books.shards.get(tally.key)
        if shards is None:
            continue
        about = {
            "worker": books.names.get(tally.incarnation, f"incarnation {tally.incarnation}"),
            "key": books.names.get(tally.key, f"key {tally.key}"),
        }
        counted = sum(shard.counted.get(tally.incarnation, 0) for shard in shards if shard is not None)
        if told := _lost(tally, shards, counted):
            lost.append(Finding(**about, pushes=told[0], reason=told[1]))
        most = begun.get((tally.incarnation, tally.key), tally.begun_elements)
        if counted > most:
            twice.append(
                Finding(
                    **about,
                    pushes=_in_pushes(counted - most, tally),
                    reason=f"{counted - most:,} elements more are in the value than were ever pushed",
                )
            )
    deleted = {tally.key for tally in books.before if tally.key not in books.shards}
    return Findings(
        lost=tuple(lost),
        twice=tuple(twice),
        num_acked=sum(one.acked_pushes for one in books.before),
        num_deleted_keys=len(deleted),
    )


def _lost(tally: Tally, shards: tuple[Shard | None, ...], counted: int) -> tuple[int, str] | None:
    """How many acknowledged pushes are missing, and how that shows."""
    if not tally.acked_pushes:
        return None
    gone = sum(shard is None for shard in shards)
    if gone:
        return tally.acked_pushes, f"{gone} of {len(shards)} shards of the key are lost"
    clocks = [shard.applied[tally.incarnation] for shard in shards if shard and tally.incarnation in shard.applied]
    behind = tally.acked_clock - min(clocks, default=tally.acked_clock)
    if behind > 0:
        return behind, f"push {tally.acked_clock} was acknowledged, and a shard has counted {min(clocks)}"
    missing = tally.acked_elements - counted
    if missing > 0:
        return _in_pushes(missing, tally), f"{missing:,} elements were acknowledged and are not in the value"
    return None


def _in_pushes(elements: int, tally: Tally) -> int:
    """At least how many pushes so many elements are, if they were all alike."""
    return max(1, math.ceil(elements * tally.acked_pushes / tally.acked_elements)) if tally.acked_elements else 1


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Of leased work: samples that are more than once in the value of some shard, those that are missing from one, and
    how many there were in the epochs that are done."""

    repeated: int = 0
    missed: int = 0
    total: int = 0


def count_samples(said: dict[str, Any]) -> Samples | None:
    """From what the cluster says of itself; None if no work was leased. Of every epoch that is done, each batch has to
    be counted on each shard that the work went to. Whether it is counted there once does not follow from the shard's
    list, in which it is or is not: so a shard also counts the entries that complete a batch which is in it already."""
    workloads = said.get("workloads", {})
    if not workloads:
        return None
    repeated = missed = total = 0
    for workload in workloads.values():
        num_batches = workload["epoch"] * -(-workload["size"] // workload["batch_size"])
        shards = list(_shards_with(said, workload["name"]))
        lacking = {one for shard in shards for one in _missing(shard["batches"][workload["name"]], num_batches)}
        total += workload["epoch"] * workload["size"]
        missed += len(lacking) * workload["batch_size"]
        repeats = (shard["repeats"].get(workload["name"], 0) for shard in shards)
        repeated += max(repeats, default=0) * workload["batch_size"]
    return Samples(repeated=repeated, missed=missed, total=total)


def _shards_with(said: dict[str, Any], workload: str) -> Iterator[dict[str, Any]]:
    """What each head has counted, of the keys that know of the workload at all."""
    for server in said.get("servers", {}).values():
        for key in server.get("keys", {}).values():
            for shard in key.get("counts", {}).values():
                if shard["is_head"] and workload in shard["batches"]:
                    yield shard


def _missing(dumped: list[Any], num_batches: int) -> Iterator[int]:
    floor, above = dumped
    return (one for one in range(floor, num_batches) if one not in above)


# --- reading them -----------------------------------------------------------------------------------------------------


def tallies(rows: Array) -> tuple[Tally, ...]:
    names = Tally.__struct_fields__
    return tuple(Tally(**{name: int(row[name]) for name in names}) for row in rows)


def read_shards(said: dict[str, Any]) -> tuple[dict[int, tuple[Shard | None, ...]], list[str]]:
    """What the heads have counted, by key, from a status with counts; and what is missing from it."""
    found: dict[int, tuple[Shard | None, ...]] = {}
    gaps: list[str] = []
    for name, key in said["keys"].items():
        shards: list[Shard | None] = []
        for number, chain in enumerate(key["shards"]):
            head = said["servers"].get(chain[0], {}).get("keys", {}).get(name, {}) if chain else {}
            counts = head.get("counts", {}).get(number)
            if chain and (counts is None or not counts["is_head"]):
                gaps.append(f"{chain[0]} does not speak for shard {number} of '{name}' yet")
            shards.append(Shard(applied=counts["applied"], counted=counts["counted"]) if chain and counts else None)
        found[key["id"]] = tuple(shards)
    return found, gaps


def read_books(
    rows: Callable[[], Array],
    ask: Callable[[], dict[str, Any]],
    seconds: float,
    latest: Callable[[], float] = lambda: math.inf,
) -> tuple[Books, dict[str, Any]]:
    """Read all books at one time; where a shard is just changing hands, again, for so long, and not after `latest()`,
    which may become earlier meanwhile. Blocks."""
    deadline = time.monotonic() + seconds
    while True:
        before = tallies(rows())
        said: dict[str, Any] = {}
        shards: dict[int, tuple[Shard | None, ...]] = {}
        try:
            said = ask()
            shards, gaps = read_shards(said)
        except WindlassError as error:
            gaps = [str(error)]
        after = tallies(rows())
        if not gaps or time.monotonic() > min(deadline, latest()):
            names = {key["id"]: name for name, key in said.get("keys", {}).items()}
            names |= {node["incarnation"]: node["name"] for node in said.get("nodes", ())}
            return Books(before, after, shards, names, tuple(dict.fromkeys(gaps))), said
        time.sleep(POLL_SECONDS)
