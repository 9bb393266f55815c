"""Sets of times, as sorted lists of disjoint intervals."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The times that are in any of these."""
    found: list[Interval] = []
    for began, ended in sorted(intervals):
        if found and began <= found[-1][1]:
            if ended > found[-1][1]:
                found[-1] = (found[-1][0], ended)
        elif ended > began:
            found.append((began, ended))
    return found


def intersection(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """The times that are in both of two sets."""
    found: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(other):
        began, ended = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if began < ended:
            found.append((began, ended))
        if one[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """The times of a set that are not in another one."""
    found: list[Interval] = []
    j = 0
    for began, ended in one:
        while j < len(other) and other[j][1] <= began:
            j += 1
        k = j
        while k < len(other) and other[k][0] < ended:
            if began < other[k][0]:
                found.append((began, other[k][0]))
            began = max(began, other[k][1])
            k += 1
        if began < ended:
            found.append((began, ended))
    return found


def length(intervals: list[Interval]) -> float:
    return sum(ended - began for began, ended in intervals)
