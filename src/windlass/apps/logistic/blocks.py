"""Algorithm 3: delayed block proximal gradient.

The features are dealt out to *blocks*. A worker computes its part of the gradient and of the second derivatives for one
block, pushes what has changed of them, and goes on with the next while that travels: up to `delay` blocks are under way
at once. The answer brings the block's weights as the servers have made them, and the margins follow.

The weights are a table. What is left out:
- a feature whose magnitudes add up to no more than the penalty, over all workers, is never anything but 0 (a loss's
  slope is at most 1): it is found out at the beginning, and not looked at again;
- a feature whose weight is 0 and whose gradient is well within the penalty *sleeps*: it is not computed until the next
  *full* pass, which looks at everything;
- the KKT filter sends nothing of a weight that is 0 and stays 0 whatever the worker's part of the gradient;
- a block's list of ids is sent once, and its digest from then on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from windlass.apps.logistic.columns import Columns, Features
from windlass.apps.logistic.plan import Plan
from windlass.apps.logistic.progress import LEADS, Share, Teller
from windlass.apps.logistic.proximal import BlockProximal, led
from windlass.apps.logistic.rows import Floats, Ids, Rows
from windlass.filters import KKT, IdCache
from windlass.types import Array, Sequential
from windlass.worker.store import Store

MOST_BLOCKS = 256
WINDOW_PASSES = 10
"""Without rounds a pass may bring little by chance, and only so many say that nothing more will come."""

FULL_PASSES = (1, 3, 6, 10)
"""The first full passes; then every tenth, and one before the end."""

AWAKE = 0.9
"""A weight of 0 sleeps when its gradient is less than this much of the penalty."""

RELIST = 0.7
"""A shorter list of ids is made, and sent in full once, when less than this much of the last one is awake."""

CAUTION = 0.25
"""How much features of one block that come in the same example count as pulling in one direction. So much more for
every block that is under way; doubled, up to 1, when the objective has risen. Without rounds it may rise by chance:
there what was added wears off."""

CAUTION_LEFT = 0.9
"""So much of it, after every pass in which the objective falls."""


@dataclass(slots=True)
class Block:
    """Neighbouring columns. `listed` are those that are pushed and pulled now."""

    columns: Array
    listed: Array
    is_full: bool = True


@dataclass(slots=True)
class Flight:
    """A block that has been pushed and whose weights have not come yet."""

    block: Block
    task: Any


@dataclass(slots=True)
class Weights:
    """This worker's copy of what the servers have, by column, and what they know of this worker's part."""

    now: Floats
    told: Floats
    shares: Floats
    """Which part of a feature is this worker's, by its magnitudes: of all workers' they add up to 1."""
    before: Floats
    """As they were a pass ago."""
    bias: float = 0.0
    bias_before: float = 0.0
    bias_told: Floats = field(default_factory=lambda: np.zeros(2, np.float32))


class BlockFit:
    """One worker's side of a fit."""

    def __init__(self, store: Store, rows: Rows, plan: Plan, num_blocks: int) -> None:
        self._store, self._plan = store, plan
        self._table, self._bias = plan.key("weights"), plan.key("bias")
        self.pushed_bytes = self.pulled_bytes = 0
        self.caution = min(1.0, CAUTION * (1 + plan.delay))
        self.lead, self.turn = 0.0, 0
        # A block is a small batch, and every slot that it touches costs as much as a hundred rows do.
        self._slots = len(store.status()["servers"])
        self._flights: deque[Flight] = deque()
        features = Features.of(rows)
        totals = self._add_masses(features)
        kept = np.flatnonzero(totals > plan.l1)
        numbers = _deal(features.ids[kept], num_blocks)
        order = np.argsort(numbers, kind="stable")
        self.columns = Columns(rows, features, kept[order])
        bounds = np.searchsorted(numbers[order], np.arange(num_blocks + 1))
        cut = [np.arange(lo, hi) for lo, hi in pairwise(bounds.tolist())]
        self.blocks = [Block(each, each) for each in cut]
        size = len(self.columns)
        shares = (features.masses / np.maximum(totals, np.float32(1e-30))).astype(np.float32)[kept][order]
        self.weights = Weights(
            np.zeros(size, np.float32), np.zeros((size, 2), np.float32), shares, np.zeros(size, np.float32)
        )
        self._declare()

    def _add_masses(self, features: Features) -> Floats:
        """Of each of this worker's features, the sum of its magnitudes over all workers."""
        key, ids = self._plan.key("masses"), features.ids
        self._store.create_table(key, dim=1, update="add", consistency=Sequential(), slots=self._slots)
        found = self._store.pushpull(key, features.masses.reshape(-1, 1), ids=ids)
        self.pushed_bytes += 12 * ids.size
        self.pulled_bytes += 4 * ids.size
        return np.asarray(found, np.float32).reshape(-1)

    def _declare(self) -> None:
        plan, workers = self._plan, self._store.num_workers
        step = plan.step(workers)
        self._store.create_table(
            self._table,
            dim=2,
            update=BlockProximal(plan.l1, step),
            consistency=plan.consistency,
            filters=[IdCache(), KKT(margin=1 / workers, gradient_column=1)],
            slots=self._slots,
        )
        if plan.intercept:
            first = np.zeros(2, np.float32)
            self._store.create(self._bias, first, update=BlockProximal(0.0, step), consistency=plan.consistency)

    # --- a pass ---

    def run_pass(self, number: int, *, is_full: bool) -> None:
        """Every block once, in an order that all workers know."""
        order = np.random.default_rng((self._plan.seed, number)).permutation(len(self.blocks))
        if self._plan.intercept:
            self._move_bias()
        for index in order.tolist():
            block = self.blocks[index]
            if is_full and not block.is_full:
                block.listed, block.is_full = block.columns, True
            while len(self._flights) > self._plan.delay:
                self._land()
            self._launch(block)
        while self._flights:
            self._land()

    @property
    def _hyper(self) -> dict[str, float]:
        return {"lead": self.lead, "turn": float(self.turn)}

    def _launch(self, block: Block) -> None:
        listed, told = block.listed, self.weights.told
        found = self.columns.survey(listed, self.caution)
        change = found - told[listed]
        told[listed] = found
        ids = self.columns.ids[listed]
        task = self._store.pushpull(self._table, change, ids=ids, hyper=self._hyper, wait=False)
        self._flights.append(Flight(block, task))

    def _land(self) -> None:
        flight = self._flights.popleft()
        block, listed = flight.block, flight.block.listed
        rows = flight.task.wait().reshape(-1, 2)
        self._take(listed, rows)
        awake = (rows[:, 0] != 0) | (np.abs(rows[:, 1]) >= AWAKE * self._plan.l1)
        if np.count_nonzero(awake) < RELIST * listed.size:
            block.listed, block.is_full = listed[awake], False

    def _move_bias(self) -> None:
        found = self.columns.survey_bias()
        change, self.weights.bias_told = found - self.weights.bias_told, found
        bias = float(self._store.pushpull(self._bias, change, hyper=self._hyper)[0])
        self.pushed_bytes += change.nbytes
        self.pulled_bytes += change.nbytes
        self._take_bias(bias)

    # --- between passes ---

    def meet(self, *, is_full: bool) -> None:
        """Where workers push without rounds: wait until all have come to the end of this pass, and read what it has
        come to, so that all look ahead from the same weights. After a full pass of all columns: one that sleeps here
        may be awake in another worker."""
        self._store.barrier()
        chosen = [block.columns if is_full else block.listed for block in self.blocks]
        tasks = [self._store.pull(self._table, ids=self.columns.ids[each], wait=False) for each in chosen]
        for each, task in zip(chosen, tasks, strict=True):
            self._take(each, task.wait().reshape(-1, 2))
        if self._plan.intercept:
            bias = self._store.pull(self._bias)
            self.pulled_bytes += bias.nbytes
            self._take_bias(float(bias[0]))

    def _take(self, listed: Array, rows: Floats) -> None:
        """These columns have these weights now."""
        self.pulled_bytes += rows.nbytes
        self.columns.move(listed, rows[:, 0] - self.weights.now[listed])
        self.weights.now[listed] = rows[:, 0]

    def _take_bias(self, bias: float) -> None:
        self.columns.move_bias(bias - self.weights.bias)
        self.weights.bias = bias

    def look_ahead(self) -> Array:
        """This worker's part of the objective at each of the leads."""
        weights = self.weights
        now, before, shares = weights.now, weights.before, weights.shares
        moved = np.flatnonzero(now != before)
        stuck = moved[now[moved] * before[moved] <= 0]
        bias_step = weights.bias - weights.bias_before if weights.bias * weights.bias_before <= 0 else 0.0
        losses = self.columns.look_ahead(stuck, now[stuck] - before[stuck], bias_step, LEADS)
        some = np.flatnonzero(now)
        norms = [np.dot(np.abs(led(now[some], before[some], lead)), shares[some]) for lead in LEADS.tolist()]
        found: Array = losses + self._plan.l1 * np.array(norms)
        return found

    def go_ahead(self, lead: float) -> None:
        """Begin the next pass from there."""
        # The margins follow the weights, and not the way that they themselves have come: what they are off by rounding
        # would be led with it, pass after pass, and the loss falls along that way, too.
        self.lead, self.turn, weights = lead, self.turn + 1, self.weights
        now, before, weights.before = weights.now, weights.before, weights.now.copy()
        weights.now = led(now, before, lead)
        moved = np.flatnonzero(weights.now != now)
        self.columns.move(moved, weights.now[moved] - now[moved])
        bias = np.array([weights.bias_before, weights.bias], np.float32)
        weights.bias_before = weights.bias
        self._take_bias(float(led(bias[1:], bias[:1], lead)[0]))

    def share(self, passes: int, votes: float) -> Share:
        # What the filters have left of the pushes, ids included.
        sent = self._store.status()["filters"][self._table]["filters"][-1]["after"]
        nonzeros = np.sum(self.weights.shares, where=self.weights.now != 0, dtype=np.float64)
        return Share(passes, float(nonzeros), self.pushed_bytes + sent, self.pulled_bytes, votes)


def fit(store: Store, rows: Rows, plan: Plan, features_per_row: float, teller: Teller) -> tuple[Ids, Floats, float]:
    """Fit. Gives the ids and weights that are not 0, and the bias: the same to every worker."""
    num_blocks = plan.blocks or min(MOST_BLOCKS, max(1, round(features_per_row)))
    run = BlockFit(store, rows, plan, num_blocks)
    votes, is_full, has_rounds = 0.0, True, isinstance(plan.consistency, Sequential)
    least_caution = run.caution
    for number in range(plan.most_passes + 1):
        if number:
            run.run_pass(number, is_full=is_full)
            if not has_rounds:
                run.meet(is_full=is_full)
        told = teller.change(run.share(number, votes), run.look_ahead())
        heard = teller.hear(store.pushpull(teller.key, told))
        if heard.share.votes >= store.num_workers:
            break
        if teller.has_risen:
            run.caution = min(1.0, 2 * run.caution)
        elif not has_rounds:
            run.caution = max(least_caution, CAUTION_LEFT * run.caution)
        is_still = teller.spread(1 if has_rounds else WINDOW_PASSES) < plan.tolerance
        votes = float(is_still and is_full)
        is_full = is_still or number + 1 in FULL_PASSES or (number + 1) % 10 == 0
        run.go_ahead(heard.best_lead)
    store.barrier()
    return _read(store, plan, run)


def _read(store: Store, plan: Plan, run: BlockFit) -> tuple[Ids, Floats, float]:
    """All weights that are not 0, from the servers: a worker has only those of its own features."""
    ids, rows = store.pull(plan.key("weights"), range=(0, (1 << 63) - 1))
    kept = np.flatnonzero(rows[:, 0])
    return ids[kept], np.ascontiguousarray(rows[kept, 0]), run.weights.bias


def _deal(ids: Ids, num_blocks: int) -> Array:
    from windlass.apps.logistic import kernels

    blocks = np.empty(ids.size, np.int64)
    kernels.deal(ids, blocks, num_blocks)
    return blocks
