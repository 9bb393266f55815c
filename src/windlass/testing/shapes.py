"""Which kinds of keys explored runs have, beside dense ones without filters: drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from windlass.filters import Filter, IdCache, RandomSkip, SmallGradient, TopK
from windlass.store.initial import initial_rule
from windlass.testing.examples import Turned
from windlass.testing.history import KeyShape
from windlass.types import TableSpec

if TYPE_CHECKING:
    from windlass.testing.limits import Limits

MAX_ROWS = 7
ID_LIST_BYTES = (0, 24, 60, 1 << 20)
"""How much servers keep of lists of ids: little enough, mostly, that what they are asked for is gone."""

DENSE_FILTERS: tuple[tuple[Filter, ...], ...] = (
    (Turned(),), (RandomSkip(0.5),), (TopK(0.3),), (SmallGradient(0.5),), (SmallGradient(0.5), RandomSkip(0.3)),
)  # fmt: skip
TABLE_FILTERS: tuple[tuple[Filter, ...], ...] = (
    (IdCache(),), (IdCache(),), (IdCache(), Turned()), (Turned(),), (IdCache(), RandomSkip(0.5)), (RandomSkip(0.4),),
    (IdCache(), TopK(0.5)), (SmallGradient(0.5), IdCache()),
)  # fmt: skip
"""What they keep back they keep exactly, so that every mark is sent whole, or not yet."""


def dressed(shape: KeyShape, rng: random.Random, limits: Limits) -> KeyShape:
    """The same as a table, perhaps; with filters, perhaps."""
    if rng.random() < limits.tables:
        shape = _as_table(shape, rng, limits)
    if rng.random() < limits.filters:
        chains = limits.chains or (DENSE_FILTERS if shape.table is None else TABLE_FILTERS)
        shape = replace(shape, filters=rng.choice(chains))
    return shape


def _as_table(shape: KeyShape, rng: random.Random, limits: Limits) -> KeyShape:
    num_rows = rng.randint(2, MAX_ROWS)
    ids = {0, -1, (1 << 63) - 1, -(1 << 63)} if rng.random() < 0.3 else set()
    while len(ids) < num_rows:
        ids.add(rng.randint(-50, 50))
    chosen = tuple(rng.sample(sorted(ids), num_rows))
    size = min(shape.slot_size, 600)
    table = TableSpec(dim=size, init=initial_rule(None), slots=shape.num_slots)
    if limits.ageing and rng.random() < limits.ageing:
        limit = rng.choice(({"max_rows": 4}, {"ttl_updates": 2}, {"ttl_seconds": 0.5}, {"ttl_seconds": 0.1}))
        table = TableSpec(dim=size, init=initial_rule(None), slots=shape.num_slots, **limit)
    return replace(shape, slot_size=size, num_slots=num_rows, table=table, ids=chosen)


def leasable(shape: KeyShape) -> KeyShape:
    """Without what would keep a batch's work for the push of another batch, which may not count; and nothing goes."""
    exact = tuple(one for one in shape.filters if not one.is_lossy)
    if shape.table is None:
        return replace(shape, filters=exact)
    table = TableSpec(dim=shape.slot_size, init=shape.table.init, slots=shape.table.slots)
    return replace(shape, filters=exact, table=table)
