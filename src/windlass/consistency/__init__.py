"""When a push counts and when a pull may be answered: decisions that return their reason."""

from windlass.consistency.batches import Counted, CountedBatches, common
from windlass.consistency.clocks import Admission, Clocks
from windlass.consistency.rounds import Contribution, Keeper, Rounds
from windlass.consistency.verdict import YES, Verdict, may_pull

__all__ = [
    "YES",
    "Admission",
    "Clocks",
    "Contribution",
    "Counted",
    "CountedBatches",
    "Keeper",
    "Rounds",
    "Verdict",
    "common",
    "may_pull",
]
