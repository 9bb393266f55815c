"""What the workers of an explored run do: drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import replace

from windlass._wire.messages import Workload
from windlass.testing.history import KeyShape
from windlass.testing.limits import Limits
from windlass.testing.program import Plan
from windlass.testing.shapes import dressed, leasable

LARGE_SLOT = 2100
"""Elements of a slot that is sent from where it lies, under a pin."""


def draw_plan(rng: random.Random, limits: Limits, *, is_large: bool) -> Plan:
    """Keys, and how often and in which order they are pushed to."""
    num_seats = rng.randint(*limits.workers) + limits.joins + limits.aims
    clock = rng.randint(*limits.clock)
    keys = []
    for number in range(rng.randint(*limits.keys)):
        slot_size = LARGE_SLOT if is_large else num_seats * clock
        shape = KeyShape(f"k{number}", rng.choice(limits.consistencies), slot_size, rng.randint(1, 4))
        keys.append(dressed(shape, rng, limits) if limits.tables or limits.filters else shape)
    if limits.leases and rng.random() < limits.leases:
        return _lease_plan(rng, keys, num_seats)
    order = [number for number in range(len(keys)) for _ in range(clock)]
    rng.shuffle(order)
    return Plan(keys, order, clock, num_seats, ranges=rng.choice((0.0, 0.5)), waits=rng.choice((0.2, 0.6, 1.0)))


def _lease_plan(rng: random.Random, keys: list[KeyShape], num_seats: int) -> Plan:
    batch_size = rng.randint(1, 3)
    leased = Workload(
        name="work", size=rng.randint(1, 20), batch_size=batch_size, epochs=rng.randint(1, 2),
        step_batches=rng.choice((0, 0, 2, 4)),
    )  # fmt: skip
    shapes = [leasable(replace(shape, slot_size=max(1, leased.epoch_batches * leased.epochs))) for shape in keys]
    return Plan(shapes, [], 0, num_seats, ranges=0.0, waits=rng.choice((0.2, 0.6, 1.0)), leased=leased)
