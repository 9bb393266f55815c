"""Gradients averaged over the workers by the end of backward, as DistributedDataParallel does it."""

from __future__ import annotations

import numpy as np
import torch

from windlass.torch.lane import Lane
from windlass.torch.meeting import forget
from windlass.torch.shared_model import Lanes, SharedModel
from windlass.types import Sequential
from windlass.worker.task import Task


class Averaging:
    """After `finish` every parameter's `.grad` is the mean over all workers. Buckets leave as they fill, if gradients
    are reported to `on_gradient` during backward; `finish` sends the rest and waits.

    The first `finish` is where the workers agree on which parameters take part.
    """

    def __init__(self, model: SharedModel) -> None:
        self.lanes: Lanes | None = None
        self._model = model
        self.has_given = False  # gradients are means, of this step
        self._used = f"{model.options.name}/used"

    def on_gradient(self, number: int) -> None:
        if self.lanes is not None and self._model.options.overlap:
            full = self.lanes.stage(number)
            if full is not None:
                full.send()

    def finish(self) -> None:
        lanes = self.lanes or self._declare()
        unused = self._send_used()
        for lane in lanes:
            if lane.task is None:
                self._send_rest(lanes, lane)
        used = np.asarray(unused.wait()) if unused is not None else None
        for lane in lanes.first_needed_first():
            for number, part in lane.take():
                if used is None or used[number]:
                    self._give(number, part)
        self.has_given = True

    def _declare(self) -> Lanes:
        model = self._model
        lanes = model.lanes(model.agree_on_gradients(), f"{model.options.name}/gradient")
        for lane in lanes:
            lane.declare(consistency=Sequential())
        if model.options.find_unused_parameters:
            forget(model.store, self._used)
            model.store.create(self._used, np.zeros(len(model.tensors), np.int32), consistency=Sequential())
        self.lanes = lanes
        return lanes

    def _send_used(self) -> Task | None:
        """Where parameters may be unused, count by whom each was used: what nobody used keeps no gradient."""
        model = self._model
        if not model.options.find_unused_parameters:
            return None
        used = np.array([tensor.grad is not None for tensor in model.tensors], np.int32)
        task: Task = model.store.pushpull(self._used, used, wait=False)
        return task

    def _send_rest(self, lanes: Lanes, lane: Lane) -> None:
        model = self._model
        for number in lane.missing:
            if model.tensors[number].grad is not None:
                lanes.stage(number)
        lanes.check_full(lane)
        if lane.missing:
            lane.stage_zeros()
        lane.send()

    def _give(self, number: int, mean: torch.Tensor) -> None:
        tensor = self._model.tensors[number]
        tensor.grad = mean.to(tensor.device)  # the same memory where it is on the CPU

    def reset(self) -> None:
        """A step is over."""
        self.has_given = False

    def forget(self) -> None:
        """Delete its keys. Every worker calls it; blocks."""
        if self.lanes is not None:
            self.lanes.forget()
            self.lanes = None
