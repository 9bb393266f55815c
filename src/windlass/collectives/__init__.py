"""ALL TOGETHER: reductions in which every member ends with the result, over devices or over processes."""

from windlass.collectives.devices import allreduce, allreduce_many
from windlass.collectives.group import Group
from windlass.collectives.strategies import plan

__all__ = ["Group", "allreduce", "allreduce_many", "plan"]
