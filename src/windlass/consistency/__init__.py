"""When a push counts and when a pull may be answered: decisions that return their reason."""

from windlass.consistency.clocks import Admission, Clocks
from windlass.consistency.ledger import Counted, Ledger
from windlass.consistency.rounds import Contribution, Keeper, Rounds
from windlass.consistency.verdict import YES, Verdict, may_pull

__all__ = ["YES", "Admission", "Clocks", "Contribution", "Counted", "Keeper", "Ledger", "Rounds", "Verdict", "may_pull"]
