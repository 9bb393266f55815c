"""Shortest paths by the algebra of min and plus: a push of distances is merged by min, so the nearest stays.

Bellman and Ford's algorithm, with the edges split over workers: in a *round* each worker relaxes its own edges until
they give nothing more, starting from what all of them know, and pushes the distances that it has found.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from windlass.errors import UsageError
from windlass.types import Array, Sequential
from windlass.worker.store import Store


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of a graph of `num_nodes`: from each source to a target, so long. Lengths are not negative."""

    num_nodes: int
    sources: Array
    targets: Array
    lengths: Array

    def __post_init__(self) -> None:
        for name in ("sources", "targets"):
            nodes: Array = np.asarray(getattr(self, name))
            if nodes.dtype.kind not in "iu" or nodes.ndim != 1:
                raise UsageError(f"Edges({name}=...): expected one whole number for each edge, got {nodes.dtype}")
            if nodes.size and not 0 <= nodes.min() <= nodes.max() < self.num_nodes:
                raise UsageError(f"Edges({name}=...): nodes are from 0 to {self.num_nodes - 1}")
            object.__setattr__(self, name, np.ascontiguousarray(nodes, np.int64))
        lengths = np.ascontiguousarray(self.lengths, np.float64)
        object.__setattr__(self, "lengths", lengths)
        if not self.sources.shape == self.targets.shape == lengths.shape:
            raise UsageError("Edges(...): every edge has a source, a target and a length")
        if lengths.size and not lengths.min() >= 0:
            raise UsageError("Edges(lengths=...): lengths must be numbers, and not negative")

    def part(self, rank: int, num_workers: int) -> Edges:
        """One worker's edges: those that begin in its share of the nodes, which are neighbours by number."""
        lo, hi = (self.num_nodes * each // num_workers for each in (rank, rank + 1))
        mine = (self.sources >= lo) & (self.sources < hi)
        return Edges(self.num_nodes, self.sources[mine], self.targets[mine], self.lengths[mine])


@dataclass(frozen=True, slots=True)
class Paths:
    """How far each node is from the source (infinity: there is no path), and after how many rounds that was known."""

    distances: Array
    rounds: int


def shortest_paths(store: Store, edges: Edges, source: int, *, key: str = "distances") -> Paths:
    """The distances from one node, over the edges that all workers have together. Every worker calls it with its own
    and the same source, on a key that nothing else uses; all get the same. UsageError where the key has distances from
    another node. Blocks for as many rounds as it takes, at most one for each node."""
    from windlass.apps.sketch import kernels  # here, because importing numba takes most of a second

    if not 0 <= source < edges.num_nodes:
        raise UsageError(f"shortest_paths(source={source}): nodes are from 0 to {edges.num_nodes - 1}")
    first = np.full(edges.num_nodes, np.inf)
    first[source] = 0
    store.create(key, first, reduce="min", update="merge", consistency=Sequential())
    known, rounds = store.pull(key, out=np.empty_like(first)), 0
    if known[source] != 0:
        raise UsageError(f"shortest_paths(source={source}): '{key}' has distances from another node; use another key")
    while True:
        found = known.copy()
        while kernels.relax(found, edges.sources, edges.targets, edges.lengths):
            pass
        # Everybody pulls the value of the same round, and so all see in the same one that it is the last.
        merged, rounds = store.pushpull(key, found, out=np.empty_like(first)), rounds + 1
        if np.array_equal(merged, known):
            return Paths(known, rounds)
        known = merged


def dijkstra(edges: Edges, source: int) -> Array:
    """The same by one process that has all edges, with a heap: to compare with."""
    order = np.argsort(edges.sources, kind="stable")
    starts = np.searchsorted(edges.sources[order], np.arange(edges.num_nodes + 1)).tolist()
    targets, lengths = edges.targets[order].tolist(), edges.lengths[order].tolist()
    distances = [float("inf")] * edges.num_nodes
    distances[source] = 0.0
    heap = [(0.0, source)]
    while heap:
        far, node = heapq.heappop(heap)
        if far > distances[node]:
            continue
        for i in range(starts[node], starts[node + 1]):
            through = far + lengths[i]
            if through < distances[targets[i]]:
                distances[targets[i]] = through
                heapq.heappush(heap, (through, targets[i]))
    return np.array(distances)


def random_edges(num_nodes: int, num_edges: int, *, seed: int = 0) -> Edges:
    """Edges between any two nodes, of lengths from 0 to 1."""
    rng = np.random.default_rng(seed)
    sources, targets = rng.integers(0, num_nodes, (2, num_edges))
    return Edges(num_nodes, sources, targets, rng.random(num_edges))
