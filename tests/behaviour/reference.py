"""The updaters' formulas in plain numpy of double precision, row by row: what tables are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import windlass as wl


class Reference:
    """A dictionary of rows, each with the state of its own that the updater keeps."""

    def __init__(self, update: Any, *, start: float, dim: int) -> None:
        self._update, self._start, self._dim = update, start, dim
        self._rows: dict[int, np.ndarray] = {}
        self._state: dict[int, dict[str, Any]] = {}

    def step(self, ids: list[int], grads: np.ndarray) -> None:
        """One update: each id once."""
        for id, grad in zip(ids, grads.astype(np.float64), strict=True):
            row = self._rows.setdefault(id, np.full(self._dim, self._start))
            state = self._state.setdefault(id, {"step": 0})
            state["step"] += 1
            self._rows[id] = self._one(row, grad, state)

    def rows(self, ids: Iterable[int]) -> np.ndarray:
        return np.array([self._rows.get(id, np.full(self._dim, self._start)) for id in ids])

    def _one(self, row: np.ndarray, grad: np.ndarray, state: dict[str, Any]) -> np.ndarray:
        rule = self._update
        if rule == "add":
            return row + grad
        if isinstance(rule, wl.SGD):
            if rule.momentum:
                state["v"] = rule.momentum * state["v"] + grad if "v" in state else grad
                grad = state["v"]
            return row - rule.lr * grad
        if isinstance(rule, wl.RowwiseAdagrad):
            state["sum"] = state.get("sum", 0.0) + np.mean(grad * grad)
            return row - rule.lr * grad / (np.sqrt(state["sum"]) + rule.eps)
        if isinstance(rule, wl.Adagrad):
            state["sum"] = state.get("sum", 0.0) + grad * grad
            return row - rule.lr * grad / (np.sqrt(state["sum"]) + rule.eps)
        if isinstance(rule, wl.Adam):
            one, two = rule.betas
            state["m"] = one * state.get("m", 0.0) + (1 - one) * grad
            state["v"] = two * state.get("v", 0.0) + (1 - two) * grad * grad
            m, v = state["m"] / (1 - one ** state["step"]), state["v"] / (1 - two ** state["step"])
            return row - rule.lr * m / (np.sqrt(v) + rule.eps)
        assert isinstance(rule, wl.FTRL)
        n = state.get("n", np.zeros(self._dim))
        sigma = (np.sqrt(n + grad * grad) - np.sqrt(n)) / rule.lr
        state["z"] = state.get("z", 0.0) + grad - sigma * row
        state["n"] = n + grad * grad
        shrunk = np.sign(state["z"]) * np.maximum(np.abs(state["z"]) - rule.l1, 0)
        return -shrunk / ((rule.beta + np.sqrt(state["n"])) / rule.lr + rule.l2)
