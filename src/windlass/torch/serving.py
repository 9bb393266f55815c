"""The optimizer on the servers: gradients are pushed, parameters come back.

*Plans*, of which the first two steps choose one. In those gradients are averaged by the end of backward, as DDP does,
so that whatever a script does between backward and step is done to the mean. If it did nothing there, its gradients
leave *early* from then on: pushed during backward, reduced and applied by the servers in one pass. If it clipped or
unscaled them, they go on being *averaged* first, and each worker then pushes its share of them for the servers to
apply. Under bounded delay and eventual consistency there is no mean to wait for: touched gradients leave *at step*.

Leased work (`store.batches`) goes to whoever asks, so workers make unequally many steps, and come and go: nobody can be
met. There each worker chooses for itself, *alone*, and finds in the model's charter what it has to know of the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import Enum

import torch
from torch.autograd.graph import increment_version

from windlass.errors import UsageError
from windlass.filters import Filter
from windlass.torch import state
from windlass.torch.averaging import Averaging
from windlass.torch.backward import Backward
from windlass.torch.charter import Begun
from windlass.torch.lane import Lane
from windlass.torch.meeting import gather, same_part
from windlass.torch.resuming import note_used
from windlass.torch.rules import rule_of
from windlass.torch.seats import Seats
from windlass.torch.shared_model import Lanes, SharedModel, late
from windlass.types import Sequential

log = logging.getLogger("windlass")


class Plan(Enum):
    FIRST = "first"
    EARLY = "early"
    AVERAGED = "averaged"
    AT_STEP = "at step"


class Serving:
    """One optimizer's parameters, updated by the servers."""

    def __init__(
        self, model: SharedModel, optimizer: torch.optim.Optimizer, filters: Sequence[str | Filter] = ()
    ) -> None:
        self.plan = Plan.FIRST
        self.lanes: Lanes | None = None
        self.backward = Backward(model.tensors, self._on_gradient, self._on_end)
        self._model, self._optimizer, self._filters = model, optimizer, filters
        self._versions: list[int] = []  # of the parameters, after the last step
        self._has_warned = False
        self._is_sequential = isinstance(model.store.options.consistency, Sequential)
        self.averaging = Averaging(model, compares=True) if self._is_sequential else None
        self._rules = [rule_of(optimizer, group) for group in optimizer.param_groups]
        self._passes: list[int] | None = None  # how often each gradient is accumulated before it leaves
        self._is_touched_before = False
        self._is_alone = self._is_summed = False
        # What the optimizer has gathered so far, or load_state_dict gave, until there are keys for it:
        self._loaded: state.State = {
            number: dict(optimizer.state[tensor])
            for number, tensor in enumerate(model.tensors)
            if optimizer.state.get(tensor)
        }
        optimizer.state.clear()
        self._aside: state.State = {}  # what was loaded for parameters that take no part
        # As they were at the end of the first backward:
        self._hypers: list[dict[str, float] | None] = []
        self._seen: list[torch.Tensor | None] = []  # copies of the gradients
        self._marks: list[tuple[torch.Tensor | None, int]] = []  # the gradient, and its version
        if model.resumed is not None:
            self._resume(model.resumed)
        elif model.begun is not None:
            self._join(model.begun)

    def _resume(self, begun: Begun) -> None:
        """Go on with the values and the state that the store has of an earlier optimizer. All workers do, together."""
        self._loaded = {}
        self._make(begun, gives=False)
        self._model.charter.tell_begun(begun)
        self._model.has_begun(begun)
        self._take_values()

    def _join(self, begun: Begun) -> None:
        """Others have made steps: take their values and go on with them. Nobody waits for a worker that came later
        until it makes a step itself, or `store.batches` lets it in."""
        model = self._model
        keys = model.store.keys()
        if self._is_sequential and f"{model.options.name}/seats" in keys:
            raise UsageError(
                f"{model.who} came to a run under way, whose gradients are changed between backward() and step(): so "
                "every worker needs everybody's, and has to be there from the first step on"
            )
        self._is_alone, self.averaging = True, None
        self._make(begun, gives=False)
        assert self.lanes is not None
        if model.is_late:
            for lane in self.lanes:
                lane.rest()
        self.refresh()

    # --- during backward --------------------------------------------------------------------------------------------

    def _on_gradient(self, number: int) -> None:
        if self.plan is Plan.EARLY:
            self._send_early(number)
        elif self.plan is Plan.AVERAGED:
            assert self.averaging is not None
            self.averaging.on_gradient(number)

    def _send_early(self, number: int) -> None:
        assert self.lanes is not None
        model = self._model
        if self.lanes.has_left(number):
            raise UsageError(
                f"{model.who}: another gradient of '{model.names[number]}' came after it had left, as in the first "
                "steps; run a backward that is not followed by a step of this optimizer inside "
                "`with optimizer.no_sync():`, or pass overlap=False"
            )
        assert self._passes is not None
        if self.backward.passes[number] >= self._passes[number]:
            full = self.lanes.stage(number)
            if full is not None:
                full.send(self._hyper(full.bucket.group))

    def _on_end(self) -> None:
        self._look_for_work()
        if self.averaging is not None and self.plan in (Plan.FIRST, Plan.AVERAGED):
            self.averaging.finish_backward()
        if self.plan is Plan.FIRST:
            self._hypers = self._all_hypers()
            self._marks = self._marked()
            self._seen = [None if grad is None else grad.detach().clone() for grad, _ in self._marks]
        elif self._is_alone and self.plan is Plan.AT_STEP:
            self._marks = self._marked()

    def _marked(self) -> list[tuple[torch.Tensor | None, int]]:
        grads = [tensor.grad for tensor in self._model.tensors]
        return [(grad, -1 if grad is None else grad._version) for grad in grads]

    def _is_as_marked(self) -> bool:
        """Whether gradients are the same tensors as at the end of backward, and nothing was written to them, were it
        the same values: clipping that changes nothing now may change something later."""
        marks = zip(self._marked(), self._marks, strict=True)
        return all(one is two and version == before for (one, version), (two, before) in marks)

    def _look_for_work(self) -> None:
        """From the first batch of leased work on, this worker chooses alone."""
        if self.plan is Plan.FIRST and self._model.store.begun_batches:
            self._is_alone, self.averaging = True, None

    def _is_touched(self) -> bool:
        """Whether gradients or parameter groups are not as they were at the end of backward."""
        return self._is_changed() or self._hypers != self._all_hypers()

    def _is_changed(self) -> bool:
        is_same = len(self._seen) == len(self._model.tensors) and self._is_as_marked()
        if is_same:  # as far as that shows: what was written through `.data` shows in the copies alone
            pairs = zip(self._marks, self._seen, strict=True)
            is_same = all(grad is None or copy is None or torch.equal(grad, copy) for (grad, _), copy in pairs)
        self._seen, self._marks = [], []
        return not is_same

    def _hyper(self, group: int) -> dict[str, float] | None:
        return self._rules[group].hyper(self._optimizer.param_groups[group], self._model.who)

    def _all_hypers(self) -> list[dict[str, float] | None]:
        return [self._hyper(group) for group in range(len(self._rules))]

    # --- step -------------------------------------------------------------------------------------------------------

    def skip(self) -> None:
        """No step is taken for these gradients."""
        self._check_not_left()
        if self.averaging is not None:
            self.averaging.reset()
        elif self.lanes is not None:  # the others go by this worker's clock: it counts the step
            for lane in self.lanes:
                lane.drop()
                lane.send(is_skipped=True)
            for lane in self.lanes:
                lane.take()
        self.backward.reset()

    def step(self, *, is_touched: bool = False) -> None:
        """Send what has not left, wait for the new values, in the order in which forward needs them. Blocks.
        `is_touched` says that the gradients are not what backward made them, where that does not show."""
        if is_touched:
            self._check_not_left()
        self._check_parameters()
        self._look_for_work()
        self._check_sums()
        if self.plan is Plan.FIRST and self._is_alone:
            self._rehearse_alone(is_touched)
        elif self.plan is Plan.FIRST:
            self._rehearse(is_touched)
        elif self.plan is Plan.AVERAGED:
            if self._model.store.begun_batches:
                raise UsageError(
                    f"{self._model.who}: gradients are changed between backward() and step(), so every worker needs "
                    "everybody's; batches of store.batches() go to whoever asks. Give each worker its own data instead"
                )
            self._step_averaged()
        else:
            if self._is_alone and not is_touched and self._marks and not self._is_as_marked():
                self._refuse_change()
            self._send_rest()
        assert self.lanes is not None
        for lane in self.lanes:
            self._check_untouched(lane)
        for lane in self.lanes.first_needed_first():
            self._give(lane)
        self.backward.reset()
        self._versions = [tensor._version for tensor in self._model.tensors]

    def look(self) -> None:
        """Begin to use the keys, if others have made them. Blocks while they do."""
        model = self._model
        if self.lanes is None and not model.is_closed:
            model.begun = model.charter.begun()
            if model.begun is not None:
                self._join(model.begun)

    def refresh(self) -> None:
        """Take the servers' values as they are now: steps were made without this worker. Blocks."""
        if self.lanes is None or self._model.is_closed:
            return
        with suppress(UsageError):  # others are done with this model, and have deleted its keys
            self._take_values()

    def _take_values(self) -> None:
        assert self.lanes is not None
        for lane in self.lanes:
            lane.ask()
        for lane in self.lanes:
            self._give(lane)
        self._versions = [tensor._version for tensor in self._model.tensors]

    def _rehearse(self, is_touched: bool) -> None:
        """The first two steps: with the first the keys are declared, with the second the plan is chosen, with
        everybody. Two, because what a script does between its steps shows only in the second."""
        model, averaging = self._model, self.averaging
        if averaging is not None:
            if self._must_average():
                averaging.finish()
            averaging.compare()
        is_touched = is_touched or self._is_touched() or not model.options.overlap
        if self.lanes is None:
            if averaging is not None:
                assert averaging.lanes is not None
                numbers = averaging.lanes.numbers
            else:
                numbers = model.agree_on_gradients()
            begun = self._begun(numbers)
            self.lanes = model.lanes(numbers, model.options.name)
            note_used(model.store, model.options.name, begun)
            for lane in self.lanes:
                self._declare(lane)
            if any(gather(model.store, bool(self._loaded))):
                self.load(self._loaded)
            if model.store.is_lowest:
                model.charter.tell_begun(begun)
                model.has_begun(begun)
        if self._passes is None:
            self._passes, self._is_touched_before = list(self.backward.passes), is_touched
        else:
            self._choose(is_touched or self._is_touched_before or self._passes != self.backward.passes)
        if averaging is not None:
            averaging.reset()
        self._send_rest()

    def _choose(self, is_touched: bool) -> None:
        if any(gather(self._model.store, is_touched)):
            self.plan = Plan.AVERAGED if self.averaging is not None else Plan.AT_STEP
            if self.averaging is not None:
                self.averaging.seats = Seats(self._model, self._model.store._client.state.num_founders)
                if self._model.options.gradient_as_bucket_view:
                    self.averaging.give_views()
        else:
            self.plan = Plan.EARLY
            if self.averaging is not None:
                self.averaging.forget()
        self._give_views()

    def _give_views(self) -> None:
        """The plan is chosen. What is averaged first is a view of where that is done."""
        assert self.lanes is not None
        for lane in self.lanes:
            lane.gives_views = self._model.options.gradient_as_bucket_view and self.plan is not Plan.AVERAGED

    def check_may_write(self) -> None:
        """UsageError if gradients are views of what the servers may be reading."""
        for lane in self.lanes or ():
            if lane.gives_views and lane.task is not None:
                raise UsageError(
                    f"{self._model.who}: zero_grad() between backward() and step(): the gradient of "
                    f"'{self._model.names[lane.bucket.members[0]]}' had left, and with gradient_as_bucket_view=True it "
                    "would be changed under way. Call step() first, or run that backward() inside no_sync()"
                )

    # --- alone ------------------------------------------------------------------------------------------------------

    def _rehearse_alone(self, is_scaled: bool) -> None:
        """The first two steps of this worker, where others may be anywhere in their work."""
        is_seen = bool(self._seen)
        is_changed = self._is_changed()
        if is_changed and is_seen and not is_scaled:
            self._refuse_change()
        is_touched = is_changed or is_scaled or self._hypers != self._all_hypers() or not self._model.options.overlap
        if self.lanes is None:
            self._begin_alone()
        if self._passes is None:
            self._passes, self._is_touched_before = list(self.backward.passes), is_touched
        else:
            is_alike = self._passes == self.backward.passes and not self._is_summed
            is_untouched = is_alike and not (is_touched or self._is_touched_before)
            self.plan = Plan.EARLY if is_untouched else Plan.AT_STEP
            self._give_views()
        self._send_rest()

    def _begin_alone(self) -> None:
        """See to it that there are keys: ours, if nobody was before us."""
        model = self._model
        grads = [tensor.grad is not None for tensor in model.tensors]
        if not any(grads):
            raise UsageError(f"{model.who}: step() without any gradient; has backward() run?")
        numbers = [number for number, has in enumerate(grads) if has or model.options.find_unused_parameters]
        mine = self._begun(numbers, is_summed=any(batch.global_batch for batch in model.store.begun_batches))
        begun = model.charter.begin(mine, lambda: self._make(mine, gives=True))
        same_part(mine, begun, model.names)
        if self.lanes is None:
            self._make(begun, gives=False)
        model.has_begun(begun)

    def _begun(self, numbers: Collection[int], *, is_summed: bool = False) -> Begun:
        model = self._model
        takes_part = [number in numbers for number in range(len(model.tensors))]
        return Begun(takes_part, is_summed, rank=model.store.rank, maker=int(model.charter.me))

    def _make(self, begun: Begun, *, gives: bool) -> None:
        """Make the keys, with our values and our state; or, unless we are to give them, use those that there are."""
        model = self._model
        lanes = model.lanes(begun.numbers, model.options.name, is_alone=True)
        if gives:
            note_used(model.store, model.options.name, begun)
        for lane in lanes:
            if gives:
                model.store.delete(lane.key)  # somebody may have died who was about to make it
            self._declare(lane, reduce="sum" if begun.is_summed else "mean", gives=gives)
        if gives and self._loaded:
            state.write(model.store, lanes, self._loaded)
        self._aside = {number: kept for number, kept in self._loaded.items() if not lanes.has(number)}
        self._loaded = {}
        self.lanes, self._is_summed = lanes, begun.is_summed

    def _declare(self, lane: Lane, *, reduce: str = "mean", gives: bool | None = None) -> None:
        update = self._rules[lane.bucket.group].updater
        name = self._model.options.name
        lane.declare(reduce=reduce, update=update, filters=self._filters, gives=gives, together=name)

    def _refuse_change(self) -> None:
        """Under bounded delay and eventual consistency each worker changes its own gradients; in rounds, it would have
        to be their mean."""
        if self._is_sequential:
            raise UsageError(
                f"{self._model.who}: gradients are changed between backward() and step(), so every worker needs "
                "everybody's; batches of store.batches() go to whoever asks. Give each worker its own data instead"
            )

    def _check_sums(self) -> None:
        """Keys either sum shares of a global batch or take the mean of the workers, for good."""
        begun = self._model.store.begun_batches
        if self.lanes is None or self._is_summed == any(batch.global_batch for batch in begun):
            return
        was, now = ("with", "without") if self._is_summed else ("without", "with")
        raise UsageError(
            f"{self._model.who}: the first step of this optimizer was {was} batches(global_batch=), this one is {now}: "
            "the servers sum the shares of a global batch, and take the mean of anything else. Make an optimizer for "
            "each"
        )

    # --- what the servers keep --------------------------------------------------------------------------------------

    def version(self) -> int:
        """How many updates the servers' parameters have taken. Blocks."""
        return 0 if self.lanes is None else self._model.store.version(next(iter(self.lanes)).key)

    def saved(self) -> state.State:
        """The optimizer's state, by the number of the parameter. Blocks; any worker may call it between steps."""
        has_step = not isinstance(self._optimizer, torch.optim.SGD)
        if self.lanes is None:
            return self._loaded
        found = {**self._aside, **state.read(self._model.store, self.lanes, has_step=has_step)}
        if isinstance(self._optimizer, torch.optim.Adagrad):
            for number, parameter in enumerate(self._model.parameters):
                group = self._optimizer.param_groups[parameter.group]
                found.setdefault(number, state.fresh_adagrad(self._model.tensors[number], group))
        return found

    def load(self, loaded: state.State) -> None:
        """Give the servers rank 0's `loaded` state, now or as soon as there are keys. Every worker calls it; blocks."""
        if self.lanes is None:
            self._loaded = loaded
            return
        self._by_rank_0(lambda lanes: state.write(self._model.store, lanes, loaded))
        self._aside = {number: kept for number, kept in loaded.items() if not self.lanes.has(number)}
        self._loaded = {}

    def share_values(self) -> None:
        """Make rank 0's values everybody's and the servers'. Every worker calls it; blocks."""
        self._model.share(self._model.tensors)
        self._versions = [tensor._version for tensor in self._model.tensors]
        if self.lanes is not None:
            self._by_rank_0(lambda lanes: state.write_values(self._model.store, lanes))

    def _by_rank_0(self, write: Callable[[Lanes], None]) -> None:
        assert self.lanes is not None
        store = self._model.store
        store.barrier()
        if store.is_lowest:
            write(self.lanes)
        store.barrier()

    def _send_rest(self) -> None:
        assert self.lanes is not None
        for lane in self.lanes:
            if lane.task is None:
                self._stage_all(lane)
                self.lanes.check_full(lane)
                lane.send(self._hyper(lane.bucket.group))

    def _step_averaged(self) -> None:
        """Every worker has the same gradients: each pushes its share of them."""
        assert self.lanes is not None
        assert self.averaging is not None
        if self._must_average():
            self.averaging.finish()
        self.averaging.reset()
        place, count = self.averaging.take_seat()
        for lane in self.lanes:
            self._stage_all(lane)
            size = 0 if lane.missing else lane.bucket.size
            span = (size * place // count, size * (place + 1) // count)
            lane.send_share(span, count, self._hyper(lane.bucket.group))

    def _must_average(self) -> bool:
        """Whether the last backward was not told to, or gradients were made by hand."""
        return self.backward.has_unsent or (self.averaging is not None and not self.averaging.has_given)

    def _stage_all(self, lane: Lane) -> None:
        assert self.lanes is not None
        for number in lane.missing:
            if self._model.tensors[number].grad is not None:
                self.lanes.stage(number)

    def _check_parameters(self) -> None:
        """Say, once, that a parameter was changed by hand: the servers' value replaces it. And refuse a gradient of a
        parameter that takes no part."""
        model = self._model
        for number, version in enumerate(self._versions):
            if model.tensors[number]._version != version and not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s: '%s' was changed by hand. The servers hold the parameters, and their value replaces it at "
                    "every step; call optimizer.share_parameters() in every worker, or use mode='allreduce'",
                    model.who,
                    model.names[number],
                )
        if self.lanes is not None:
            for number, tensor in enumerate(model.tensors):
                if tensor.grad is not None and not self.lanes.has(number):
                    raise UsageError(late(model, number))

    def _check_not_left(self) -> None:
        """A GradScaler's gradients must not have left: what they were scaled by has not."""
        if self.plan is Plan.EARLY:
            raise UsageError(
                f"{self._model.who}: gradients left during backward, scaled by a GradScaler that the first step did "
                "not have; use it from the first step on, or pass overlap=False to wl.torch.Optimizer"
            )

    def _check_untouched(self, lane: Lane) -> None:
        """What left during backward must be what step would have sent."""
        model = self._model
        number = lane.touched()
        if number is not None:
            what = f"the gradient of '{model.names[number]}' was"
        elif lane.hyper != self._hyper(lane.bucket.group):
            what = f"the parameter group of '{model.names[lane.bucket.members[0]]}' was"
        else:
            return
        raise UsageError(
            f"{model.who}: {what} changed between backward() and step(), and not in the first step: it had left "
            "already; pass overlap=False to wl.torch.Optimizer"
        )

    def _give(self, lane: Lane) -> None:
        """Make the values that came back the parameters'. Memory is swapped, not copied: a graph that still refers to
        the old values finds them, and is told that they are old."""
        given = []
        for number, part in lane.take():
            tensor = self._model.tensors[number]
            if tensor.device.type == "cpu":
                tensor.data = part
            else:
                tensor.data.copy_(part)
            given.append(tensor)
        increment_version(given)
