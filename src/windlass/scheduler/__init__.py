"""Who does what: work leased in small batches, each counted once."""

from windlass.scheduler.hosted import Hosted
from windlass.scheduler.state import SchedulerState

__all__ = ["Hosted", "SchedulerState"]
