"""For models with an L1 penalty: gradients that cannot move a weight away from 0 need not be sent.

Where a weight is 0 and stays 0 after its next update, the Karush-Kuhn-Tucker conditions of the problem hold in that
coordinate. The server knows how much gradient it takes to leave 0, its *threshold*; it comes back with pulls. The
worker keeps, for every coordinate that it has pulled, its *slack*: the threshold where the weight is 0, less than
nothing where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from windlass.errors import UsageError, options_checked
from windlass.filters.filter import is_number, require
from windlass.filters.parcel import Parcel, Target
from windlass.filters.selector import Selector
from windlass.types import Array

ALWAYS_SEND = -1.0
"""The slack of a coordinate whose weight is not 0, or not known."""


@options_checked
@dataclass(frozen=True)
class KKT(Selector):
    """Sends nothing for a row whose weights are 0 and whose gradients are all within the server's threshold, times
    `margin`. What is kept back is added to the next push, as FTRL and other methods want it that add up gradients;
    `feedback=False` is for those that compute the whole gradient anew each time (proximal gradient descent), where an
    old one is worthless.

    The threshold must hold for all workers together: where several push in one round, a margin of 1 / workers is
    safe.

    With `gradient_column=k` a table's row is one weight, its first number, and tells in column k how much gradient the
    server has added up: the threshold is that much less. The other columns never make it worth sending the row."""

    margin: float = 1.0
    gradient_column: int | None = None

    def __post_init__(self) -> None:
        require(is_number(self.margin) and 0 < self.margin <= 1, self, "margin", "above 0 and at most 1")
        column = self.gradient_column
        is_column = column is None or (type(column) is int and column >= 1)
        require(is_column, self, "gradient_column", "a column beside the first, counted from 0, or None")

    def check(self, target: Target) -> None:
        super().check(target)
        if self.gradient_column is not None and self.gradient_column >= (target.width or 1):
            raise UsageError(f"'{target.name}': {self} needs a table with that column, rows have {target.width or 1}")

    def slack(self, weights: Array, threshold: Any, width: int) -> Array:
        """What a pull says of each of these numbers, which are rows of `width`."""
        if self.gradient_column is None:
            return slack_of(weights, threshold)
        rows = weights.reshape(-1, width)
        found = np.full(rows.shape, np.inf, rows.dtype)
        left = np.maximum(threshold - np.abs(rows[:, self.gradient_column]), 0)
        found[:, 0] = slack_of(rows[:, 0], left)
        return found.reshape(-1)

    def choose(self, parcel: Parcel) -> Array:
        from windlass.filters import selecting

        slack = parcel.context.slack
        if slack is None:
            return np.arange(parcel.count, dtype=np.int64)
        if parcel.origin is not None:
            slack = slack.reshape(-1, parcel.width)[parcel.origin].reshape(-1)
        if self.margin != 1:
            slack = slack * slack.dtype.type(self.margin)
        if parcel.width > 1:
            picked = np.empty(parcel.count + 1, np.int64)
            return picked[: selecting.rows_beyond(picked, parcel.values, slack, parcel.width)]
        picked = np.empty(selecting.count_beyond(parcel.values, slack) + 1, np.int64)
        return picked[: selecting.beyond(picked, parcel.values, slack)]


def slack_of(weights: Array, threshold: Any) -> Array:
    """What a pull says of these coordinates: the threshold (a number, or one for each) where the weight is 0."""
    limits = np.asarray(threshold)
    if limits.ndim and limits.size != weights.size:
        raise UsageError(f"expected a threshold, or one for each of {weights.size} weights, got {limits.size}")
    if not np.all(limits >= 0):
        raise UsageError(f"a threshold is at least 0, got {limits.min()}")
    return np.where(weights.reshape(-1) == 0, limits.reshape(-1) if limits.ndim else limits, ALWAYS_SEND)


def ftrl_threshold(z: Array, l1: float) -> Array:
    """How much gradient a weight of FTRL can take before it leaves 0: it is 0 as long as |z| is at most l1."""
    return np.maximum(l1 - np.abs(z), 0)
