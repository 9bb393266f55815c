"""Algorithm 1: every worker pushes its whole gradient, the servers step along it, and every worker pulls all weights.

The weights are a dense key. What the servers keep of a weight is its product with the bound of its second derivative,
which workers add up once, at the beginning.
"""

from __future__ import annotations

import numpy as np

from windlass.apps.logistic.columns import Columns, Features
from windlass.apps.logistic.plan import Plan
from windlass.apps.logistic.progress import LEADS, Share, Teller
from windlass.apps.logistic.proximal import Proximal, led
from windlass.apps.logistic.rows import Floats, Ids, Rows
from windlass.errors import UsageError
from windlass.types import Array, Sequential
from windlass.worker.store import Store

WINDOW_PASSES = 10
MOST_FEATURES = 1 << 28


class GradientFit:
    """One worker's side of a fit. Everything about weights has an element for each id, and at the end the bias's."""

    def __init__(self, store: Store, rows: Rows, plan: Plan, num_features: int) -> None:
        self._store, self._plan, self._size = store, plan, num_features
        self._has_rounds = isinstance(plan.consistency, Sequential)
        features = Features.of(rows)
        self.columns = Columns(rows, features, np.arange(features.ids.size))
        self._chosen = np.arange(len(self.columns))
        self._weights, self._bias, bounds = (plan.key(each) for each in ("weights", "bias", "bounds"))
        mine = np.zeros(num_features + 1, np.float32)
        mine[self.columns.ids], mine[-1] = self.columns.bound(plan.intercept)
        store.create(bounds, np.zeros_like(mine))
        self._bound = np.maximum(store.pushpull(bounds, mine), np.float32(1e-12))
        self.pushed_bytes = self.pulled_bytes = mine.nbytes
        self._told = np.zeros_like(mine)
        # What the servers keep: weights times bounds, now, a pass ago, and where the next step begins.
        self._scaled, self._before, self._base = np.zeros_like(mine), np.zeros_like(mine), np.zeros_like(mine)
        self._lead, self._turn = 0.0, 0
        step = plan.step(store.num_workers)
        for key, size, l1 in ((self._weights, num_features, plan.l1), (self._bias, int(plan.intercept), 0.0)):
            first, update = np.zeros(size, np.float32), Proximal(l1, step)
            store.create(key, first, update=update, consistency=plan.consistency)

    @property
    def weights(self) -> Floats:
        found: Floats = self._scaled / self._bound
        return found

    def run_pass(self) -> None:
        found = np.zeros_like(self._told)
        found[self.columns.ids] = self.columns.gradient()
        found[-1] = self.columns.survey_bias()[0] if self._plan.intercept else 0.0
        change, self._told = found - self._told, found
        given = {self._weights: change[:-1], self._bias: change[self._size : self._size + self._plan.intercept]}
        hyper = {"lead": self._lead, "turn": float(self._turn)}
        self.pushed_bytes += 4 * (self._size + self._plan.intercept)
        self._before = self._scaled
        if self._has_rounds:
            self._take(self._store.pushpull(given, hyper=hyper))
            return
        # So that all look ahead from the same weights, they read what the pushes of all have come to.
        self._store.push(given, hyper=hyper).wait()
        self._store.barrier()
        self._take(dict(zip(given, self._store.pull(list(given)), strict=True)))

    def _take(self, parts: dict[str, Floats]) -> None:
        """The servers have these weights now."""
        self.pulled_bytes += 4 * (self._size + self._plan.intercept)
        self._scaled = np.zeros_like(self._scaled)
        self._scaled[: self._size] = parts[self._weights]
        self._scaled[self._size : self._size + self._plan.intercept] = parts[self._bias]
        self._move((self._scaled - self._base) / self._bound)

    def _move(self, steps: Floats) -> None:
        """The weights have changed by these: the margins follow."""
        self.columns.move(self._chosen, steps[self.columns.ids])
        self.columns.move_bias(float(steps[-1]))

    def look_ahead(self) -> Array:
        """This worker's part of the objective at each of the leads; the penalty is all in one worker's."""
        steps = (self._scaled - self._before) / self._bound
        is_stuck = self._scaled * self._before <= 0
        stuck = np.flatnonzero(is_stuck[self.columns.ids] & (steps[self.columns.ids] != 0))
        losses = self.columns.look_ahead(
            stuck, steps[self.columns.ids[stuck]], float(steps[-1]) if is_stuck[-1] else 0.0, LEADS
        )
        if not self._store.is_lowest:
            return losses
        some = np.flatnonzero(self._scaled[:-1])
        now, before, bound = (each[some].astype(np.float64) for each in (self._scaled, self._before, self._bound))
        norms = [np.abs(led(now, before, lead) / bound).sum() for lead in LEADS.tolist()]
        return losses + self._plan.l1 * np.array(norms)

    def go_ahead(self, lead: float) -> None:
        """Begin the next pass from there."""
        self._lead, self._turn = lead, self._turn + 1
        self._base = led(self._scaled, self._before, lead)
        self._move((self._base - self._scaled) / self._bound)

    def share(self, passes: int, votes: float) -> Share:
        nonzeros = float(np.count_nonzero(self._scaled[:-1])) if self._store.is_lowest else 0.0
        return Share(passes, nonzeros, self.pushed_bytes, self.pulled_bytes, votes)


def fit(store: Store, rows: Rows, plan: Plan, num_features: int, teller: Teller) -> tuple[Ids, Floats, float]:
    """Fit; `num_features` is one more than the highest id that any worker has. Gives the ids and weights that are not
    0, and the bias: the same to every worker."""
    if num_features > MOST_FEATURES:
        raise UsageError(
            f"algorithm 1 keeps a weight for every id up to the highest, which is {num_features - 1}: take algorithm 3"
        )
    run = GradientFit(store, rows, plan, num_features)
    votes = 0.0
    for number in range(plan.most_passes + 1):
        if number:
            run.run_pass()
        told = teller.change(run.share(number, votes), run.look_ahead())
        heard = teller.hear(store.pushpull(teller.key, told))
        if heard.share.votes >= store.num_workers:
            break
        votes = float(teller.spread(WINDOW_PASSES) < plan.tolerance)
        run.go_ahead(heard.best_lead)
    found = run.weights
    kept = np.flatnonzero(found[:-1])
    return kept, found[kept], float(found[-1])
