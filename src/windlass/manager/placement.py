"""Which server holds which slot: the least loaded by bytes, in runs, so that a message to a server covers much."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.types import Incarnation, KeySpec


def place(spec: KeySpec, load: Mapping[Incarnation, int]) -> tuple[Incarnation, ...]:
    """The server of each slot of a new key, given the bytes each server holds already.

    Slots are dealt so that every server ends as near to the same total as whole slots allow; equal servers are taken
    in the order of `load`. A server's slots are next to each other.
    """
    order = list(load)
    totals = dict(load)
    dealt: dict[Incarnation, int] = dict.fromkeys(order, 0)
    for slot in range(spec.num_slots):
        lo, hi = spec.slot_range(slot)
        lightest = min(order, key=totals.__getitem__)
        totals[lightest] += max(1, (hi - lo) * spec.itemsize)
        dealt[lightest] += 1
    return tuple(server for server in order for _ in range(dealt[server]))


def load_of(spec: KeySpec, slots: tuple[Incarnation, ...]) -> dict[Incarnation, int]:
    """Bytes of this value on each server. A zero-size slot counts one byte: it costs its server messages."""
    load: dict[Incarnation, int] = {}
    for slot, server in enumerate(slots):
        lo, hi = spec.slot_range(slot)
        load[server] = load.get(server, 0) + max(1, (hi - lo) * spec.itemsize)
    return load
