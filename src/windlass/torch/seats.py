"""Who takes a step together, where every worker has everybody's mean gradients and pushes a share of them."""

from __future__ import annotations

import numpy as np

from windlass.store.updater import AssignInStep
from windlass.torch.meeting import forget
from windlass.torch.shared_model import SharedModel
from windlass.types import Sequential
from windlass.worker.task import Task


class Seats:
    """A round on a small key at the end of every backward and at every step.

    At a step it tells who takes it: a worker may have left, of which another does not know yet, and shares must fit
    together. And it is where workers meet that come for different things, one for its step and another for one more
    backward: elsewhere they would wait for each other, here the servers refuse the round and name them.
    """

    def __init__(self, model: SharedModel, count: int) -> None:
        """Every worker makes one; blocks. There are `count` seats, one for each rank."""
        self._store, self._key = model.store, f"{model.options.name}/seats"
        self._count = count
        forget(self._store, self._key)
        model.keys.add(self._key)
        self._store.create(self._key, np.zeros(count, np.int32), update=AssignInStep(), consistency=Sequential())

    def call(self, step: int, backwards: int) -> Task:
        """Say that this worker has ended so many backwards of a step. A step that is over counts as none of the next.
        The task is done when all have said the same, and fails if they have not."""
        here = np.zeros(self._count, np.int32)
        here[self._store.rank] = 1
        hyper = {"step": step, "backwards": backwards}
        task: Task = self._store.pushpull(self._key, here, hyper=hyper, wait=False)
        return task

    def take(self, task: Task) -> tuple[int, int]:
        """This worker's place among those who were there, and how many they were. Blocks."""
        taken = np.flatnonzero(task.wait()).tolist()
        return taken.index(self._store.rank), len(taken)
