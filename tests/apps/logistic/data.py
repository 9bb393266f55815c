"""Generated examples, and a slow and simple solver to compare with."""

from __future__ import annotations

import numpy as np

from windlass.apps.logistic import Rows


def make(num_rows: int = 400, num_features: int = 60, per_row: int = 8, seed: int = 0) -> Rows:
    """Rows with features that are more or less frequent, some of which decide the label."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, num_features + 1)
    chances /= chances.sum()
    ids = [np.sort(rng.choice(num_features, per_row, replace=False, p=chances)) for _ in range(num_rows)]
    values = rng.uniform(0.5, 1.5, (num_rows, per_row))
    truth = np.where(rng.random(num_features) < 0.3, rng.standard_normal(num_features) * 2, 0)
    margins = (truth[np.array(ids)] * values).sum(axis=1) + 0.5
    labels = np.where(rng.random(num_rows) < 1 / (1 + np.exp(-margins)), 1, -1)
    return Rows.of(np.arange(num_rows + 1) * per_row, np.concatenate(ids), values.reshape(-1), labels)


def dense(rows: Rows) -> np.ndarray:
    found = np.zeros((len(rows), int(rows.ids.max()) + 1))
    np.add.at(found, (np.repeat(np.arange(len(rows)), np.diff(rows.starts)), rows.ids), rows.values)
    return found


def objective(rows: Rows, weights: np.ndarray, bias: float, l1: float) -> float:
    margins = rows.labels * (dense(rows) @ weights + bias)
    return float(np.logaddexp(0, -margins).sum() + l1 * np.abs(weights).sum())


def least_objective(rows: Rows, l1: float, *, intercept: bool) -> float:
    """Accelerated proximal gradient descent, begun anew when the objective rises, until nothing moves."""
    matrix = np.hstack([dense(rows), np.ones((len(rows), 1))])
    labels, penalty = rows.labels.astype(np.float64), np.full(matrix.shape[1], l1)
    matrix[:, -1], penalty[-1] = float(intercept), 0.0
    step = 4 / np.linalg.norm(matrix, 2) ** 2
    now = ahead = np.zeros(matrix.shape[1])
    least, streak = np.inf, 0
    for _ in range(20_000):
        slopes = -labels / (1 + np.exp(labels * (matrix @ ahead)))
        moved = ahead - step * (matrix.T @ slopes)
        after = np.sign(moved) * np.maximum(np.abs(moved) - step * penalty, 0)
        found = np.logaddexp(0, -labels * (matrix @ after)).sum() + (penalty * np.abs(after)).sum()
        streak = 0 if found > least else streak + 1
        ahead, done = after + streak / (streak + 3) * (after - now), np.abs(after - now).max() < 1e-10
        now, least = after, min(least, found)
        if done:
            break
    return float(least)


def write_libsvm(path, rows: Rows, label: str = "{:+.0f}") -> None:
    lines = []
    for row in range(len(rows)):
        span = slice(rows.starts[row], rows.starts[row + 1])
        pairs = " ".join(f"{i}:{v:.9g}" for i, v in zip(rows.ids[span], rows.values[span], strict=True))
        lines.append(f"{label.format(rows.labels[row])} {pairs}\n")
    path.write_text("".join(lines))
