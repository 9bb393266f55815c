"""`wl.torch.Optimizer`: a torch optimizer whose step is a push and a pull."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from windlass.errors import UsageError, options_checked
from windlass.filters import Filter, filter_rules
from windlass.filters.rules import without_threshold
from windlass.store.updater import is_number
from windlass.torch.averaging import Averaging
from windlass.torch.backward import Backward
from windlass.torch.buckets import BUCKET_BYTES
from windlass.torch.inside import NeverSteps, count_step, has_step_hooks, let_step
from windlass.torch.joining import store_for
from windlass.torch.row_gradients import RowGradients
from windlass.torch.serving import Serving
from windlass.torch.shared_model import SharedModel, TrainingOptions
from windlass.torch.telling import rank_0s
from windlass.types import Sequential
from windlass.worker.batches import Batch, check_begun
from windlass.worker.store import Store

MODES = ("store", "allreduce")


class Optimizer(torch.optim.Optimizer):
    """Data-parallel training in one line: `optimizer = wl.torch.Optimizer(optimizer, store)`.

    Every worker makes one, over the same parameters, which then have rank 0's values; with `mode="store"` a worker that
    comes to a run under way has the servers' values, and goes on with the others. `step()` applies the mean of
    all workers' gradients: with `mode="store"` the servers run the optimizer and the new parameters come back; with
    `mode="allreduce"` the mean gradients come back and every worker runs its own, as under DistributedDataParallel.
    Gradients leave during backward. Learning-rate schedulers, parameter groups, GradScaler, clipping and accumulation
    work as with the optimizer inside.

    Without a store it joins the cluster that this process was started in (`wl.connect()`).
    `named_parameters` (`model.named_parameters()`) gives errors and keys their names. `name` begins the names of the
    keys; without one it is "optimizer", then "optimizer-2" and so on, in the order in which they are made. A second of
    the same `name` takes over from the first. `overlap=False` lets nothing leave before backward ends.
    `find_unused_parameters=True` is for forwards that leave parameters out; each parameter is then its own key.
    With `gradient_as_bucket_view=True` gradients are, from the third step on at the latest, views of memory that the
    servers read: they are not there twice, and what `zero_grad(set_to_none=False)` keeps and backward adds to is not
    copied. What is kept of a gradient over a step must then be a copy.
    With `resume=True` it goes on with the parameters and the optimizer state that the store has of one of its name,
    from a checkpoint that was loaded or from an earlier run; where there is none it begins as always. `filters` are
    what gradients go through on their way to the servers (docs/filters.md): `[wl.filters.Int8()]` sends a quarter.
    Raises UsageError, naming worker and parameter, where the workers differ. Not thread-safe.
    """

    @options_checked
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        store: Store | None = None,
        *,
        mode: str = "store",
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        name: str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        resume: bool = False,
        filters: Sequence[str | Filter] = (),
    ) -> None:
        _check(optimizer, mode)
        if resume and mode != "store":
            raise UsageError("resume=True expects mode='store': with mode='allreduce' the store keeps nothing")
        if filters and mode != "store":
            raise UsageError("filters= expects mode='store': what they keep back has to be added to a later step")
        filtered = filter_rules(filters, {})
        if any(rule.path == "kkt" for rule in filtered):
            raise UsageError(without_threshold("filters=", "KKT", f"torch's {type(optimizer).__name__}"))
        store = store_for(store, "wl.torch.Optimizer(optimizer{})")
        if mode == "allreduce" and not isinstance(store.options.consistency, Sequential):
            raise UsageError(
                f"mode='allreduce' expects Sequential(), got {store.options.consistency}: every worker takes the same "
                "step"
            )
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self.mode = mode
        self._inner = optimizer
        options = TrainingOptions(
            name or "", bucket_bytes, overlap, find_unused_parameters, gradient_as_bucket_view, resume
        )
        frozen = [t for group in optimizer.param_groups for t in group["params"] if not t.requires_grad]
        self._model = SharedModel(
            store,
            _named(optimizer, named_parameters),
            options,
            default="optimizer",
            frozen=frozen,
            mode=mode,
            optimizer=type(optimizer).__name__,
            groups=[_numbers(group) for group in optimizer.param_groups],
            filters=[{rule.path: rule.config} for rule in filtered],
        )
        self._serving: Serving | None = None
        self._averaging: Averaging | None = None
        if mode == "store":
            self._serving = Serving(self._model, optimizer, filters)
            self._backward = self._serving.backward
            store._leased.refreshers.add(self._serving)
        else:
            self._averaging = Averaging(self._model, compares=True, gives_views=gradient_as_bucket_view)
            averaging = self._averaging
            self._backward = Backward(self._model.tensors, averaging.on_gradient, averaging.finish_backward)
        self._model.backward = self._backward
        let_step(optimizer)  # whatever was made of it earlier is closed by now, or gone
        if mode == "store":
            optimizer.register_step_pre_hook(NeverSteps(self._backward, self._model.who))
        self._begin_step()

    @property
    def store(self) -> Store:
        return self._model.store

    @property
    def name(self) -> str:
        """What the names of its keys begin with."""
        return self._model.options.name

    @property
    def version(self) -> int:
        """How many updates the servers' parameters have taken, those before a `resume` included: steps, where workers
        push in rounds; else pushes. 0 before the first. Blocks. UsageError with mode="allreduce"."""
        if self._serving is None:
            raise UsageError("version expects mode='store': with mode='allreduce' the servers keep no parameters")
        return self._serving.version()

    @contextmanager
    def no_sync(self) -> Any:
        """Inside it, backward only accumulates gradients, those of the store's tables, too; nothing leaves. The next
        backward outside sends their sum."""
        with self._backward.quiet(), RowGradients.of(self.store).hold():
            yield

    def step(
        self, closure: Callable[[], Any] | None = None, *, completes: Batch | Sequence[Batch] | None = None
    ) -> Any:
        """Apply the mean of all workers' gradients; every parameter is new when it returns. Blocks.

        A step completes the batches of `store.batches` that were begun since the last one. `completes` need not say so:
        it makes sure of it. With `batches(global_batch=)` it applies the sum of the workers' shares: multiply each
        batch's mean loss by `batch.weight`, and step when `batch.is_last`.
        """
        if completes is not None:
            check_begun(self.store, completes)
        if self._backward.is_closed:
            raise UsageError(
                f"{self._model.who}: this optimizer, '{self.name}', is closed, or another of its name or on its "
                "parameters took over"
            )
        if closure is None:
            self._computing.end()
        with self.store.trace("step", category="optimizer"):
            loss = self._step(closure)
        count_step(self._inner)
        self.store.begun_batches.clear()
        self._whole_step.end()
        self._begin_step()
        return loss

    def _begin_step(self) -> None:
        """In a trace, all that the script does between two steps counts as compute."""
        self._whole_step = self.store.trace("training step", category="step")
        self._computing = self.store.trace("forward and backward")
        self._whole_step.begin()
        self._computing.begin()

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if self._serving is not None:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._check_registered()
            with torch.no_grad():
                is_scaled = self._is_scaled()
                if self._unscale():
                    self._serving.step(is_touched=is_scaled)
                else:
                    self._serving.skip()
            return loss
        assert self._averaging is not None
        if self.store.begun_batches:
            raise UsageError(
                f"{self._model.who}: batches of store.batches() go to whoever asks, so workers make unequally many "
                "steps, and with mode='allreduce' each has to make them all; use mode='store'"
            )
        if closure is None:
            self._check_registered()
            if self._backward.has_unsent or not self._averaging.has_given:
                self._averaging.finish()
            self._averaging.check_all_take_part()
            self._averaging.compare()
            self._averaging.reset()
            self._backward.reset()
            if not self._unscale():
                return None
        return self._inner.step(closure)

    # A GradScaler that finds this leaves unscaling, and skipping the step, to `step`: it sets `grad_scale` (None if
    # the script has unscaled already) and `found_inf` for the call. That is how a scaled step is told from another:
    # unscaling alone would not show on the gradients.
    _step_supports_amp_scaling = True

    def _is_scaled(self) -> bool:
        return hasattr(self, "found_inf")

    def _unscale(self) -> bool:
        """Undo a GradScaler's scaling; False if the step must be skipped, because there are infinite gradients."""
        if not self._is_scaled():
            return True
        if float(getattr(self, "found_inf", 0)):
            return False
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            found = [tensor.grad for tensor in self._model.tensors if tensor.grad is not None]
            torch._foreach_mul_(found, 1 / float(scale))
        return True

    def _check_registered(self) -> None:
        """A parameter that was frozen when this was made, or was added since, must not go by unnoticed."""
        known = {id(tensor) for tensor in self._model.tensors}
        for index, group in enumerate(self.param_groups):
            for position, tensor in enumerate(group["params"]):
                if tensor.grad is not None and id(tensor) not in known:
                    raise UsageError(
                        f"{self._model.who}: parameter {position} of group {index}, of shape {tuple(tensor.shape)}, "
                        "has a gradient, but took none when wl.torch.Optimizer was made: make it anew after unfreezing"
                    )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. UsageError if a backward failed after part of the gradients had left; or, where gradients are
        views, before the step() for which they left."""
        averaging = self._averaging if self._serving is None else self._serving.averaging
        if averaging is not None:
            averaging.check_complete()
        if self._serving is not None:
            self._serving.check_may_write()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As the torch optimizer's, which can load it. With mode="store" the state is read from the servers: blocks;
        one worker alone may call it, between two steps."""
        said = self._inner.state_dict()
        if self._serving is not None:
            index = self._indices()
            said["state"] = {index[number]: kept for number, kept in self._serving.saved().items()}
        return said

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, a torch optimizer's or this one's. Every worker calls it; rank 0's state counts, and
        rank 0's parameter groups. Blocks. Of a worker that came later the groups alone are taken: the servers have
        gone on with the state."""
        if self._serving is None:
            state_dict = rank_0s(self._model, state_dict)
        elif not self._model.is_late:  # the state goes to the servers
            groups = rank_0s(self._model, {"param_groups": state_dict["param_groups"]})
            state_dict = {**state_dict, **groups}
        self._inner.load_state_dict(state_dict)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state
        if self._serving is not None:
            loaded = {
                number: dict(self.state[tensor])
                for number, tensor in enumerate(self._model.tensors)
                if self.state.get(tensor)
            }
            self.state.clear()
            if not self._model.is_late or self._serving.lanes is None:
                self._serving.load(loaded)

    def share_parameters(self) -> None:
        """Make rank 0's values of the parameters everybody's, after they were changed by hand (a checkpoint loaded in
        the middle of training, say). Every worker calls it; blocks."""
        if self._serving is not None:
            self._serving.share_values()
        else:
            self._model.share(self._model.tensors)

    def _indices(self) -> list[int]:
        """Where torch's state_dict has each of our parameters: they are counted over all groups."""
        order = {id(tensor): index for index, tensor in enumerate(t for g in self.param_groups for t in g["params"])}
        return [order[id(tensor)] for tensor in self._model.tensors]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "_model"):
            raise UsageError("add parameter groups to the torch optimizer before wl.torch.Optimizer is made of it")
        super().add_param_group(param_group)

    def __deepcopy__(self, memo: Any) -> Any:
        raise UsageError("an optimizer belongs to its store: copy the model, and make another of the copy")

    def close(self) -> None:
        """Take the hooks off the parameters, and leave the name to another; the optimizer inside may step by itself
        again. Safe to repeat; the keys stay."""
        if not self._backward.is_closed:
            let_step(self._inner)
        self._model.close()

    def __repr__(self) -> str:
        how = f" plan={self._serving.plan.value!r}" if self._serving is not None else ""
        model = self._model
        return (
            f"<Optimizer {type(self._inner).__name__} mode={self.mode!r}{how} of {model.who} | "
            f"{len(model.tensors)} parameters>"
        )


def _check(optimizer: torch.optim.Optimizer, mode: str) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"wl.torch.Optimizer expects a torch optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, Optimizer):
        raise UsageError("this is a wl.torch.Optimizer already: give the torch optimizer itself")
    if mode not in MODES:
        raise UsageError(f"mode expects 'store' or 'allreduce', got {mode!r}")
    if mode == "store" and has_step_hooks(optimizer):
        raise UsageError(
            "the torch optimizer has step hooks, and with mode='store' it never steps: register them on the "
            "wl.torch.Optimizer, or use mode='allreduce'"
        )


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    """What a worker could have set differently from the others: learning rate, momentum and the like."""
    return {name: float(value) for name, value in group.items() if is_number(value)}


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor, int]]:
    """The optimizer's parameters that take gradients: name, tensor, group; in the model's order where it is known."""
    names = {id(tensor): (order, name) for order, (name, tensor) in enumerate(named_parameters or ())}
    found: list[tuple[int, str, torch.Tensor, int]] = []
    for group, entries in enumerate(optimizer.param_groups):
        given = entries.get("param_names")
        for position, tensor in enumerate(entries["params"]):
            order, name = names.get(id(tensor), (len(names) + len(found), f"{group}.{position}"))
            if given is not None and id(tensor) not in names:
                name = given[position]
            if names and id(tensor) not in names:
                raise UsageError(f"named_parameters has no parameter {position} of group {group}: pass all of them")
            if tensor.requires_grad:
                found.append((order, name, tensor, group))
    if not found:
        raise UsageError("the optimizer has no parameter that takes gradients")
    return [(name, tensor, group) for _, name, tensor, group in sorted(found, key=lambda one: one[0])]
