"""One model on many devices of one process, behind the face of the plain model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from torch.func import functional_call

from windlass.collectives import allreduce
from windlass.collectives.strategies import check_strategy
from windlass.errors import UsageError, options_checked
from windlass.torch import devices as on

# The model is the first replica. Each other device has a replica of it, a copy that shares the parameters and has
# buffers of its own. A forward *spreads* each parameter: one node of the autograd graph turns it into a tensor per
# device (a view of the same memory where the device is the same, a copy elsewhere), and the replicas compute with
# those. Backward comes to that node when every replica's gradient of the parameter is there; it reduces them and hands
# the sum on to the one real parameter. So everything that torch offers on a parameter (`.grad`, accumulation, tensor
# and post-accumulate hooks, `torch.autograd.grad`) sees the sum over the devices, as soon as it exists, and once.

_AT_ONCE = 2**63 - 1  # among what backward could run next, the node with the highest number is run first


class DataParallel(nn.Module):
    """`DataParallel(model, ["cuda:0", "cuda:1"])`: a forward splits the batch over the devices and joins the outputs.

    `loss = criterion(model(x), y); loss.backward()` stays as it is, and gives the gradients of the plain model to
    rounding. The model is moved to the first device, where inputs are taken from anywhere and outputs are joined.
    `parameters()`, `state_dict()` and hooks are the plain model's, with its names, and see sums over devices.
    A device may be named several times: `["cpu", "cpu"]` runs two replicas on the CPU.

    Buffers (batch-norm statistics) are kept per device while a layer trains. A layer in eval mode uses the first
    device's, which are those that `state_dict()` holds; `load_state_dict()` gives them to every device. What `train()`,
    `eval()` and `requires_grad_()` did to the model or a part of it, the replicas follow at the next forward; other
    changes to its structure they do not, so wrap it when it is complete. One forward at a time.

    `strategy` is how gradients travel between devices, as in `windlass.allreduce`; "auto" adds them where they are
    when all replicas are on one device.
    """

    @options_checked
    def __init__(self, model: nn.Module, devices: Sequence[on.Device], strategy: str = "auto") -> None:
        super().__init__()
        self.devices = on.resolve(devices)
        self.strategy = str(check_strategy(strategy))
        _check_model(model)
        try:
            self.replicas = (model.to(self.devices[0]), *(_replica(model, device) for device in self.devices[1:]))
        except Exception as error:
            raise UsageError(
                f"{type(model).__name__} cannot be copied to {', '.join(map(str, self.devices))}: {error}; "
                "every device needs a replica, made with copy.deepcopy"
            ) from error
        self._crew: on.Crew | None = None
        # This module stands in the place of the first replica: the same children, parameters and buffers under the
        # same names, for whoever walks over it (an optimizer, a checkpoint, a module that holds this one).
        self._modules = model._modules
        self._parameters = model._parameters
        self._buffers = model._buffers
        self._non_persistent_buffers_set = model._non_persistent_buffers_set
        self._version = model._version
        self.training = model.training
        self.register_load_state_dict_post_hook(_share_buffers)  # type: ignore[no-untyped-call]

    @property
    def module(self) -> nn.Module:
        """The plain model, which is the replica on the first device."""
        return self.replicas[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Split every tensor among the arguments along dim 0, run the replicas at once, join what they return.

        UsageError if the tensors differ in length or are shorter than there are devices. An error in a replica comes
        as it is, with a note that names the device.
        """
        self._check_batch(args, kwargs)
        inputs = on.scatter((args, kwargs), self.devices)
        if len(self.devices) == 1:
            return self.module(*inputs[0][0], **inputs[0][1])
        values = _spread(dict(self.module.named_parameters()), self.devices, self.strategy)
        for replica, device, mine in zip(self.replicas[1:], self.devices[1:], values[1:], strict=True):
            mine.update(_follow(self.module, replica, device))
        calls = [_call(*each) for each in zip(self.replicas, values, inputs, strict=True)]
        crew, self._crew = self._crew or on.Crew(self.devices), None
        outputs = crew.run(calls)
        self._crew = crew  # after an error its threads are out of step: the next forward has new ones
        return on.gather(outputs, self.devices[0])

    def _check_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sizes = sorted(on.rows((args, kwargs)))
        if not sizes:
            raise UsageError("forward got no tensor to split over the devices: pass the batch as tensors")
        if len(sizes) > 1:
            raise UsageError(
                f"forward got tensors of {' and '.join(map(str, sizes))} rows: all are split along dim 0, so all need "
                "the length of the batch; keep what belongs to no sample in the model, as a buffer"
            )
        on.check_batch(sizes[0], self.devices)

    def train(self, mode: bool = True) -> DataParallel:
        self.module.train(mode)
        self.training = mode
        return self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> NoReturn:
        raise UsageError(
            f"a DataParallel model stays on {', '.join(map(str, self.devices))} with the dtype it has: "
            "call to(), cuda(), half() and their like on the plain model, before it is wrapped"
        )

    def _save_to_state_dict(self, *args: Any) -> None:
        self.module._save_to_state_dict(*args)  # a model may have its own way; its children are reached as ours

    def _load_from_state_dict(self, *args: Any) -> None:
        self.module._load_from_state_dict(*args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_crew": None}  # for copy.deepcopy and torch.save: a copy has its own threads

    def extra_repr(self) -> str:
        return f"devices=[{', '.join(map(str, self.devices))}], strategy={self.strategy!r}"


# --- replicas -------------------------------------------------------------------------------------------------------


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"DataParallel expects a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, DataParallel):
        raise UsageError("the model is a DataParallel already: wrap the plain model, `model.module`")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("a scripted model cannot be replicated: wrap the module that it was scripted from")
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UsageError(f"parameter '{name}' has no shape yet: run one batch through the model, then wrap it")


def _replica(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of the model that shares its parameters and has its own buffers, on `device`."""
    replica = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    _give_buffers(model, replica, device)
    return replica


def _give_buffers(model: nn.Module, replica: nn.Module, device: torch.device) -> None:
    for source, target in zip(model.modules(), replica.modules(), strict=True):
        for name, buffer in source._buffers.items():
            target._buffers[name] = None if buffer is None else buffer.detach().to(device, copy=True)


def _share_buffers(model: nn.Module, _incompatible: Any) -> None:
    """After load_state_dict: what was loaded into the first replica's buffers is every device's."""
    assert isinstance(model, DataParallel)
    for replica, device in zip(model.replicas[1:], model.devices[1:], strict=True):
        _give_buffers(model.module, replica, device)


def _follow(model: nn.Module, replica: nn.Module, device: torch.device) -> dict[str, torch.Tensor]:
    """Give the replica's layers the modes of the model's; the buffers that those in eval mode must use, by name."""
    lent: dict[str, torch.Tensor] = {}
    for (name, source), target in zip(model.named_modules(), replica.modules(), strict=True):
        target.training = source.training
        if not source.training:
            prefix = f"{name}." if name else ""
            lent.update({prefix + key: each.to(device) for key, each in source._buffers.items() if each is not None})
    return lent


def _call(replica: nn.Module, values: dict[str, torch.Tensor], inputs: tuple[Any, Any]) -> on.Call:
    return lambda: functional_call(replica, values, *inputs)


# --- parameters and gradients ---------------------------------------------------------------------------------------


def _spread(
    parameters: dict[str, nn.Parameter], devices: Sequence[torch.device], strategy: str
) -> list[dict[str, torch.Tensor]]:
    """For each device, the parameters by name, as tensors from which gradients find their way back."""
    spread: list[dict[str, torch.Tensor]] = [{} for _ in devices]
    for name, parameter in parameters.items():
        if torch.is_grad_enabled() and parameter.requires_grad:
            parts = _Spread.apply(parameter, devices, strategy)  # type: ignore[no-untyped-call]
            _run_at_once(parts[0].grad_fn)
        else:
            parts = tuple(parameter.detach().to(device, non_blocking=True) for device in devices)
        for values, part in zip(spread, parts, strict=True):
            values[name] = part
    return spread


def _run_at_once(node: Any) -> None:
    """Have backward reduce a parameter as soon as it can, and not after all that was recorded later.

    Without it the sums are the same, but may come at the end of backward, where nothing overlaps with it.
    """
    renumber = getattr(node, "_set_sequence_nr", None)
    if renumber is not None:
        renumber(_AT_ONCE)


class _Spread(torch.autograd.Function):
    """A parameter becomes one tensor per device; their gradients become its gradient, their sum."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, devices: Sequence[torch.device], strategy: str) -> Any:
        ctx.set_materialize_grads(False)
        ctx.like, ctx.devices, ctx.strategy = parameter.detach(), devices, strategy
        return tuple(parameter.detach().to(device, non_blocking=True) for device in devices)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        found = [grad for grad in grads if grad is not None]  # a replica may not have used it in this step
        if _adds_at_once(found, ctx.devices, ctx.strategy):
            return _add(found, ctx.like.device), None, None
        owned = list(_owned(grads, ctx.like, ctx.devices))
        allreduce(owned, strategy=ctx.strategy)
        return owned[0], None, None


def _adds_at_once(grads: Sequence[torch.Tensor], devices: Sequence[torch.device], strategy: str) -> bool:
    """Whether to add gradients with torch alone, and not by a strategy.

    Where nothing has to travel, that is one pass over the memory. It is also the only way for what allreduce does not
    know: sparse and complex gradients, and a backward that is itself differentiated.
    """
    if torch.is_grad_enabled() or any(grad.layout != torch.strided or grad.is_complex() for grad in grads):
        return True
    is_wide = all(grad.dtype.itemsize > 2 for grad in grads)  # a sum of 16-bit numbers is rounded once, by allreduce
    return len(devices) == 1 or (strategy == "auto" and is_wide and len(set(devices)) == 1)


def _add(grads: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    total = grads[0].to(device)
    for grad in grads[1:]:
        total = total + grad.to(device)
    return total


def _owned(
    grads: Sequence[torch.Tensor | None], like: torch.Tensor, devices: Sequence[torch.device]
) -> Iterator[torch.Tensor]:
    """Gradients that may be written: autograd may have given the same memory to others too."""
    for grad, device in zip(grads, devices, strict=True):
        if grad is None:
            yield torch.zeros(like.shape, dtype=like.dtype, device=device)
        else:
            yield grad.clone(memory_format=torch.contiguous_format)
