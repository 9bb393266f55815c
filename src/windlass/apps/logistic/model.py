"""What a fit makes: weights by feature, and what they say of examples."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.apps.logistic.reading import Source, as_source
from windlass.apps.logistic.rows import Floats, Ids, Rows
from windlass.errors import UsageError

FORMAT = "windlass-logistic-1"


class Score(NamedTuple):
    """How a model does on labelled examples."""

    rows: int
    correct: int
    loss: float
    """The mean of log(1 + exp(-label × margin))."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.rows


@dataclass(frozen=True, eq=False)
class Model:
    """Weights of the features with these ids, which rise; all others weigh 0. `objective` is what the fit came to."""

    ids: Ids
    weights: Floats
    bias: float
    l1: float
    objective: float

    def __repr__(self) -> str:
        return f"<Model with {self.ids.size} weights | l1={self.l1:g}, objective {self.objective:.6g}>"

    def margins(self, rows: Rows) -> npt.NDArray[np.float64]:
        """Above 0 for +1."""
        from windlass.apps.logistic import kernels

        found = np.full(len(rows), self.bias, np.float64)
        kernels.score(rows.starts, rows.ids, rows.values, self.ids, self.weights, found)
        return found

    def chances(self, rows: Rows) -> npt.NDArray[np.float64]:
        """The probability of +1."""
        found: npt.NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(self.margins(rows), -700, 700)))
        return found

    def predict(self, rows: Rows) -> Floats:
        """+1 or -1."""
        return np.where(self.margins(rows) > 0, np.float32(1), np.float32(-1))

    def score(self, examples: Rows | Source | str | Path) -> Score:
        """How well it does. A file is read in a stream."""
        stretches = [examples] if isinstance(examples, Rows) else as_source(examples).stretches()
        count, correct, loss = 0, 0, 0.0
        for rows in stretches:
            leads = rows.labels * self.margins(rows)
            count += len(rows)
            correct += int(np.count_nonzero((leads > 0) | ((leads == 0) & (rows.labels < 0))))
            loss += float(np.logaddexp(0, -leads).sum())
        if not count:
            raise UsageError("expected examples to score the model with, got none")
        return Score(count, correct, loss / count)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, in numpy's .npz format."""
        arrays = {name: np.array(getattr(self, name)) for name in ("ids", "weights", "bias", "l1", "objective")}
        try:
            with open(path, "wb") as file:
                np.savez(file, format=np.array(FORMAT), **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise UsageError(f"the model cannot be written to '{path}': {error}") from error


def load(path: str | PathLike[str]) -> Model:
    """The model in a file that `save` wrote."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
            if "format" not in found or str(found["format"]) != FORMAT:
                raise UsageError(f"'{path}' is no model of this kind: expected the format {FORMAT}")
            return Model(found["ids"], found["weights"], *(float(found[name]) for name in ("bias", "l1", "objective")))
    except FileNotFoundError:
        raise UsageError(f"there is no file '{path}'") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        text = f"'{path}' is no model that `windlass logistic --save` wrote; the model comes first, then the data"
        raise UsageError(text) from error
