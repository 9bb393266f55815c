"""ALL TOGETHER: reductions in which every member ends with the result, over devices or over processes."""

from windlass.collectives.devices import allreduce, allreduce_many

__all__ = ["allreduce", "allreduce_many"]
