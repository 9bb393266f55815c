"""A model's parameters as all workers share them: declared alike everywhere, begun from rank 0's values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import torch

from windlass.errors import UsageError
from windlass.torch.backward import Backward
from windlass.torch.buckets import BUCKET_BYTES, Parameter, plan
from windlass.torch.charter import Begun, Charter, Draft, Terms
from windlass.torch.lane import Lane, check_gradient
from windlass.torch.meeting import forget, gather, same_gradients, same_model
from windlass.torch.names import Names
from windlass.torch.resuming import find_kept, is_lane
from windlass.types import STORAGE, Sequential
from windlass.worker.store import Store

_SPARSE = "sparse parameters and buffers cannot be given to other workers: make them dense"


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What all workers of one model agree on. `name` begins the names of its keys."""

    name: str = ""
    bucket_bytes: int = BUCKET_BYTES
    overlap: bool = True
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.bucket_bytes, int) or self.bucket_bytes < 0:
            raise UsageError(f"bucket_bytes expects a whole number, 0 or more, got {self.bucket_bytes!r}")

    @property
    def most_bucket_bytes(self) -> int:
        """How large a bucket of several parameters may be; 0 where each is by itself."""
        return 0 if self.find_unused_parameters else self.bucket_bytes


class SharedModel:
    """The parameters that take gradients, and the gradients' ways through the store. Every worker makes one, alike;
    that is checked, and a difference is a UsageError that names worker and parameter."""

    def __init__(
        self,
        store: Store,
        named: Sequence[tuple[str, torch.Tensor, int]],
        options: TrainingOptions,
        *,
        default: str,
        frozen: Sequence[torch.Tensor] = (),
        **alike: Any,
    ) -> None:
        """`default` is what its name is made of where the options have none. `frozen` tensors, which take no gradients,
        have rank 0's values afterwards, too."""
        if getattr(store, "is_driver", False):
            raise UsageError("training needs a worker's store: call it in the function given to cluster.run()")
        self.store = store
        self.is_closed = self.is_replaced = False
        self.backward: Backward | None = None  # who listens to its parameters
        self.tensors = [tensor for _, tensor, _ in named]
        self.parameters = [_described(*one) for one in named]
        self.names = [parameter.name for parameter in self.parameters]
        self.begun: Begun | None = None  # what others have begun before this worker came
        self._all = [*self.tensors, *frozen]
        is_served = alike.get("mode") == "store"  # the servers hold the parameters: nobody else is needed
        if any(tensor.layout is not torch.strided for tensor in self._all):
            raise UsageError(_SPARSE)
        terms = self._agree(options, default, alike, is_served)
        self.options = replace(options, name=terms.name)
        self.is_late = self.charter.me not in terms.crew
        self.resumed = None if self.is_late else terms.resumed
        if self.is_late and not is_served:
            raise UsageError(
                f"{self.who} came to a run under way, and every worker has to make every step; use "
                "wl.torch.Optimizer(..., mode='store'), which takes workers at any time"
            )
        if terms.gone and not self.is_late:
            forget(store, *terms.gone)
        self.keys = Names.of(store).register(self.options.name, self)
        if not is_served:
            self.share(self._all)
        elif terms.maker != self.charter.me:
            self._begin()

    @property
    def who(self) -> str:
        return f"worker-{self.store.rank}"

    def _agree(self, options: TrainingOptions, default: str, alike: dict[str, Any], is_served: bool) -> Terms:
        """The terms of this model's charter, which are ours."""
        store, names = self.store, Names.of(self.store)
        taken = names.taken(self.tensors)
        wanted = names.choose(options.name, default, taken)
        agreed = msgspec.msgpack.decode(msgspec.msgpack.encode({**asdict(options), **alike}))
        mine = Terms(agreed=agreed, parameters=self.parameters, name=wanted, rank=store.rank)
        self.charter = Charter(store, names.number(store._leased.run))

        def draft() -> Draft:
            gone, earlier = names.leftovers(wanted, taken)
            # Keys of other names of earlier runs stay: they may be waiting for an optimizer that goes on with them.
            earlier = [key for key in earlier if key.startswith(f"{wanted}/")]
            existing = store.keys()
            strays = [key for key in existing if key not in gone and is_lane(key, wanted, self.names)]
            resumed, kept = None, set[str]()
            if options.resume:
                resumed, kept = find_kept(store, wanted, self.parameters, options.most_bucket_bytes)
            gone, leftovers = ([key for key in keys if key not in kept] for keys in (gone, [*earlier, *strays]))
            values = torch.cat([_bytes(tensor) for tensor in self._all]) if is_served else None
            return Draft(msgspec.structs.replace(mine, gone=gone, resumed=resumed), leftovers, values)

        terms = self.charter.agree(f"a model or optimizer ('{wanted}')", draft)
        same_model(mine, terms)
        names.forget(terms.name, taken)
        return terms

    def _begin(self) -> None:
        """Take the values to begin with, and see what others have begun."""
        values = self.charter.values()
        self.begun = self.charter.begun()
        if values is not None:
            _spread(values, self._all)

    def has_begun(self, begun: Begun) -> None:
        """Those parameters that take part have keys now. The others' values stay, for workers that come later."""
        self.begun = begun
        if all(begun.takes_part) and len(self._all) == len(self.tensors):
            self.charter.forget_values()

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give every worker rank 0's values of these. Every worker calls it; blocks."""
        if self.store.num_workers == 1:
            return
        key, found = "training/first", [tensor for tensor in tensors if tensor.numel()]
        if not found:
            return
        if any(tensor.layout is not torch.strided for tensor in found):
            raise UsageError(_SPARSE)
        flat = torch.cat([_bytes(tensor) for tensor in found])
        forget(self.store, key)
        self.store.create(key, flat, consistency=Sequential())
        flat = self.store.pull(key)
        _spread(flat, found)
        del flat
        forget(self.store, key)

    def agree_on_gradients(self) -> list[int]:
        """The parameters that have a gradient, once every worker has one of the same; all, where some may lack."""
        found = [number for number, tensor in enumerate(self.tensors) if tensor.grad is not None]
        if self.options.find_unused_parameters:
            return list(range(len(self.tensors)))
        names = [self.names[number] for number in found]
        same_gradients(gather(self.store, names))
        if not found:
            raise UsageError(f"{self.who}: step() without any gradient; has backward() run?")
        return found

    def lanes(self, numbers: Sequence[int], prefix: str, *, is_alone: bool = False) -> Lanes:
        """Ways through the store for the gradients of these, not declared yet. What an earlier run left under these
        names is deleted. Every worker calls it, and it blocks; unless this one `is_alone` in calling it."""
        buckets = plan(self.parameters, numbers, self.options.most_bucket_bytes)
        made = [Lane(self.store, f"{prefix}/{bucket.name}", bucket, self.tensors) for bucket in buckets]
        if not is_alone:
            forget(self.store, *(lane.key for lane in made))
        self.keys.update(lane.key for lane in made)
        return Lanes(self, made)

    def close(self) -> None:
        """Take the hooks off the parameters; its name may be used again. Safe to repeat."""
        self.is_closed = True
        if self.backward is not None:
            self.backward.close()

    def replace(self) -> None:
        """Another has its name now."""
        self.is_replaced = not self.is_closed
        self.close()


class Lanes:
    """Every bucket's lane, in the order in which backward fills them."""

    def __init__(self, model: SharedModel, lanes: list[Lane]) -> None:
        self._model = model
        self._lanes = lanes
        self._of = {number: lane for lane in lanes for number in lane.bucket.members}

    def __iter__(self) -> Any:
        return iter(self._lanes)

    @property
    def numbers(self) -> list[int]:
        return sorted(self._of)

    def has(self, number: int) -> bool:
        return number in self._of

    def has_left(self, number: int) -> bool:
        """Whether the gradient of this parameter is on its way, or waits in a bucket for the others."""
        lane = self._of.get(number)
        return lane is not None and (lane.task is not None or lane.is_staged(number))

    def first_needed_first(self) -> list[Lane]:
        return sorted(self._lanes, key=lambda lane: -lane.bucket.priority)

    def stage(self, number: int) -> Lane | None:
        """Take a parameter's gradient; its lane, if that is full now."""
        model = self._model
        lane = self._of.get(number)
        grad = model.tensors[number].grad
        if lane is None:
            raise UsageError(late(model, number))
        if grad is None:
            raise UsageError(f"{model.who}: the gradient of '{model.names[number]}' was taken away before it left")
        check_gradient(model.store, model.parameters[number], grad)
        return lane if lane.stage(number) else None

    def check_full(self, lane: Lane) -> None:
        """UsageError if the lane misses a gradient that it had in the first step, and there is none to stage."""
        model = self._model
        missing = [number for number in lane.missing if model.tensors[number].grad is None]
        if missing and not model.options.find_unused_parameters:
            raise UsageError(
                f"{model.who}: '{model.names[missing[0]]}' got no gradient in this step, and had one in the first; if "
                "forward may leave parameters out, pass find_unused_parameters=True"
            )

    def forget(self) -> None:
        """Delete the keys. Every worker calls it; blocks."""
        gone = [lane.key for lane in self._lanes]
        forget(self._model.store, *gone)
        self._model.keys.difference_update(gone)


def late(model: SharedModel, number: int) -> str:
    """What is said of a parameter that begins to take part too late."""
    return (
        f"{model.who}: '{model.names[number]}' has a gradient now and had none in the first step; if forward may leave "
        "parameters out, pass find_unused_parameters=True"
    )


def _described(name: str, tensor: torch.Tensor, group: int) -> Parameter:
    if str(tensor.dtype).removeprefix("torch.") not in STORAGE:
        hint = "; keep its torch.view_as_real(...) as the parameter" if tensor.is_complex() else ""
        raise UsageError(f"parameter '{name}' is {tensor.dtype}, which no key of a store can hold{hint}")
    return Parameter(name, tuple(tensor.shape), str(tensor.dtype), tensor.element_size(), group)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor holds, whatever its dtype."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def _spread(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Give these tensors the bytes that `_bytes` has made of others of the same shapes, laid end to end."""
    offset = 0
    with torch.no_grad():
        for tensor in tensors:
            part = flat[offset : offset + tensor.numel() * tensor.element_size()].clone()
            value = part.view(tensor.dtype).view(tensor.shape).to(tensor.device)
            offset += part.numel()
            if 0 in tensor.stride():
                tensor.data = value  # an expanded tensor has no room for its elements
            else:
                tensor.copy_(value)
