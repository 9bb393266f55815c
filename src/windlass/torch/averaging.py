"""Gradients averaged over the workers by the end of backward, as DistributedDataParallel does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from windlass.errors import UsageError
from windlass.store.updater import AssignInStep
from windlass.torch.lane import Lane
from windlass.torch.meeting import BACKWARD, EQUALLY_OFTEN, STEP, forget, same_call
from windlass.torch.seats import Seats
from windlass.torch.shared_model import Lanes, SharedModel, late
from windlass.types import Sequential
from windlass.worker.task import Task


class Averaging:
    """After `finish` every parameter's `.grad` is the mean over all workers. Buckets leave as they fill, if gradients
    are reported to `on_gradient` during backward; `finish` sends the rest and waits.

    The first `finish` is where the workers agree on which parameters take part. Where `reset` is called after every
    step, `compares=True` lets them see in the first two that they call the same, and do the same to their gradients.
    Later, what leaves says of which step it is, and the servers refuse to average gradients of different steps.
    """

    def __init__(self, model: SharedModel, *, compares: bool = False, gives_views: bool = False) -> None:
        self.lanes: Lanes | None = None
        self._model = model
        self.has_given = False  # gradients are means, of this step
        self._used = f"{model.options.name}/gradients used"
        self._is_first = True  # no step has been taken: who takes part may still grow
        self._rehearsals = 2 if compares else 0  # steps in which the workers still compare what they do
        self._step, self._is_over = 0, False  # the step that gradients are of; whether it has been taken
        self._versions: int | None = None  # of the parameters, at its last backward
        self._is_counted = False  # whether they were looked at in this one
        self._gives_views = gives_views
        self._backwards = 0  # in this step
        self.seats: Seats | None = None  # where they are needed

    def on_gradient(self, number: int) -> None:
        if self.lanes is not None and self._model.options.overlap:
            if self._is_first and not self.lanes.has(number):
                return  # it is taken in at the end of this backward
            full = self.lanes.stage(number)
            if full is not None:
                self._send(full)

    def _send(self, lane: Lane) -> None:
        self._count_steps()
        lane.send({"step": self._step})

    def _count_steps(self) -> None:
        """Once in a backward. Where no `reset` tells that a step is over, changed parameters do: any optimizer may have
        made it."""
        if self._is_counted:
            return
        versions = sum(tensor._version for tensor in self._model.tensors)
        if self._is_over or self._versions not in (None, versions):
            self._step, self._backwards = self._step + 1, 0
        self._is_over, self._is_counted, self._versions = False, True, versions

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Say what it means that the servers have refused a round."""
        try:
            yield
        except UsageError as error:
            if "'step'" not in str(error):
                raise
            raise UsageError(
                f"{self._model.who}: the workers are not at the same step, because one ran backward() more often than "
                f"another: {error}. {EQUALLY_OFTEN}"
            ) from error

    def take_seat(self) -> tuple[int, int]:
        """At a step, which begins another: this worker's place among those who take it, and how many they are. Every
        worker calls it; blocks."""
        assert self.seats is not None
        with self._explaining():
            return self.seats.take(self.seats.call(self._step + 1, 0))

    def finish_backward(self) -> None:
        """Average what is complete: before the step another backward may bring the rest."""
        self.finish(may_lack=True)

    def compare(self) -> None:
        """At a step, once gradients are averaged: UsageError if a worker does not come to it, or has other gradients.
        Every worker calls it; blocks in the first two steps."""
        if self._rehearsals:
            grads = [tensor.grad for tensor in self._model.tensors if tensor.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
            same_call(self._model.store, STEP, norm)

    def check_complete(self) -> None:
        """UsageError if a backward broke off after gradients had left: the others count on them."""
        if self.lanes is None or torch._C._current_graph_task_id() >= 0:
            return
        for lane in self.lanes:
            if lane.task is not None:
                name = self._model.names[lane.bucket.members[0]]
                raise UsageError(
                    f"{self._model.who}: a backward() failed after the gradient of '{name}' had left, and the other "
                    "workers' means have it: it cannot be run again. Begin again from a checkpoint; run what may fail "
                    "inside no_sync()"
                )

    def finish(self, *, may_lack: bool = False) -> None:
        """Average every gradient. UsageError if one is missing, unless the bucket `may_lack` it and stay behind."""
        if self._rehearsals:
            if self.lanes is not None and not may_lack:  # the others wait for what is missing: they cannot come
                for lane in self.lanes:
                    self.lanes.check_full(lane)
            same_call(self._model.store, BACKWARD)
        if self._is_first and self.lanes is not None and self._outsider() is not None:
            self._abandon()
        lanes = self.lanes or self._declare()
        self.check_all_take_part()
        unused = self._send_used()
        for lane in lanes:
            if lane.task is None:
                self._send_rest(lanes, lane, may_lack)
        self._meet()
        used = np.asarray(unused.wait()) if unused is not None else None
        sent = [lane for lane in lanes.first_needed_first() if lane.task is not None]
        for lane in sent:
            self._check_untouched(lane)
        for lane in sent:
            with self._explaining():
                parts = lane.take()
            for number, part in parts:
                if used is None or used[number]:
                    self._give(number, part)
        self.has_given, self._is_counted = len(sent) == len(list(lanes)), False

    def _meet(self) -> None:
        self._count_steps()
        self._backwards += 1
        if self.seats is not None:
            with self._explaining():
                self.seats.take(self.seats.call(self._step, self._backwards))

    def _declare(self) -> Lanes:
        model = self._model
        lanes = model.lanes(model.agree_on_gradients(), f"{model.options.name}/gradient")
        for lane in lanes:
            lane.declare(update=AssignInStep(), consistency=Sequential())
        if model.options.find_unused_parameters:
            forget(model.store, self._used)
            model.keys.add(self._used)
            model.store.create(self._used, np.zeros(len(model.tensors), np.int32), consistency=Sequential())
        self.lanes = lanes
        if self._gives_views:
            self.give_views()
        return lanes

    def _send_used(self) -> Task | None:
        """Where parameters may be unused, count by whom each was used: what nobody used keeps no gradient."""
        model = self._model
        if not model.options.find_unused_parameters:
            return None
        used = np.array([tensor.grad is not None for tensor in model.tensors], np.int32)
        task: Task = model.store.pushpull(self._used, used, wait=False)
        return task

    def _send_rest(self, lanes: Lanes, lane: Lane, may_lack: bool) -> None:
        model = self._model
        has_all = all(tensor.grad is not None for tensor in lane.tensors.values())
        if may_lack and not has_all and not model.options.find_unused_parameters:
            lane.drop()
            return
        for number in lane.missing:
            if model.tensors[number].grad is not None:
                lanes.stage(number)
        lanes.check_full(lane)
        if lane.missing:
            lane.stage_zeros()
        self._send(lane)

    def _give(self, number: int, mean: torch.Tensor) -> None:
        tensor = self._model.tensors[number]
        # On the CPU the same memory. By `.data`, because views would share one version counter.
        tensor.grad = mean.to(tensor.device).data

    def _outsider(self) -> int | None:
        """A parameter with a gradient that takes no part, or None."""
        assert self.lanes is not None
        for number, tensor in enumerate(self._model.tensors):
            if tensor.grad is not None and not self.lanes.has(number):
                return number
        return None

    def check_all_take_part(self) -> None:
        """UsageError if a parameter has a gradient that would go by unnoticed."""
        number = self._outsider() if self.lanes is not None else None
        if number is not None:
            raise UsageError(late(self._model, number))

    def _abandon(self) -> None:
        """More parameters have gradients than were known of: begin again with all of them. What is under way is waited
        for first."""
        assert self.lanes is not None
        for lane in self.lanes:
            if lane.task is not None:
                for number, part in lane.take():
                    self._give(number, part)
            lane.drop()
        self.forget()

    def _check_untouched(self, lane: Lane) -> None:
        number = lane.touched()
        if number is not None and lane.tensors[number].grad is not None:
            raise UsageError(
                f"{self._model.who}: the gradient of '{self._model.names[number]}' was changed after it had left: put "
                "hooks that change gradients on the parameters before wrapping, or change gradients after backward()"
            )

    def reset(self) -> None:
        """A step is over."""
        self.has_given, self._is_over, self._is_counted = False, True, False
        self._is_first = self.lanes is None
        self._rehearsals = max(0, self._rehearsals - 1)

    def give_views(self) -> None:
        """From now on gradients, and then their means, are views of the store's buffers."""
        assert self.lanes is not None
        for lane in self.lanes:
            lane.gives_views = True
            lane.land_in_buffers()

    def forget(self) -> None:
        """Delete its keys. Every worker calls it; blocks."""
        if self.lanes is not None:
            self.lanes.forget()
            self.lanes = None
