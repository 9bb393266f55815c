"""What is to be fitted, and how."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from windlass.errors import UsageError
from windlass.types import Consistency, Sequential

ALGORITHMS = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The objective is the sum over all examples of log(1 + exp(-label × margin)), plus `l1` times the sum of the
    weights' magnitudes. The bias, where `intercept` says there is one, is not penalised.

    `algorithm` 1 steps along the whole gradient; 3 goes through the features block by block, with `delay` blocks under
    way while the next one is computed, and leaves out what the penalty keeps at 0. A *pass* is one over all features,
    and so over all examples. It ends after `max_passes` (0: `most_passes`), or when the objective falls by less than
    `tolerance` of itself. `blocks=0` takes as many as an example has features. Runs with the same seed and sequential
    consistency repeat."""

    l1: float = 1.0
    algorithm: int = 3
    intercept: bool = True
    consistency: Consistency = field(default_factory=Sequential)
    delay: int = 0
    blocks: int = 0
    max_passes: int = 0
    tolerance: float = 1e-7
    seed: int = 0
    name: str = "logistic"

    def check(self) -> None:
        """Raise UsageError for what could only fail later."""
        if not (isinstance(self.l1, int | float) and math.isfinite(self.l1) and self.l1 >= 0):
            raise UsageError(f"l1 must be a finite number, 0 or more, got {self.l1!r}")
        if self.algorithm not in ALGORITHMS:
            raise UsageError(f"expected algorithm 1 or 3, got {self.algorithm!r}")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise UsageError(f"tolerance must be a finite number, 0 or more, got {self.tolerance!r}")
        for name in ("delay", "blocks", "max_passes"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise UsageError(f"{name} must be a whole number, 0 or more, got {value!r}")
        if self.algorithm == 1 and (self.delay or self.blocks):
            raise UsageError("algorithm 1 has no blocks: delay and blocks are for algorithm 3")

    @property
    def most_passes(self) -> int:
        """As many as it may need on data whose features always come together; more where steps are smaller."""
        most = 2000 if self.algorithm == 1 else 200
        return self.max_passes or (most if isinstance(self.consistency, Sequential) else 3 * most)

    def key(self, what: str) -> str:
        return f"{self.name}/{what}"

    def step(self, num_workers: int) -> float:
        """What a step is multiplied by. Where every push is a step of its own there are as many for each worker's part
        of the gradient as there are workers, which must not take the weights further than one."""
        return 1.0 if isinstance(self.consistency, Sequential) else 1.0 / num_workers
