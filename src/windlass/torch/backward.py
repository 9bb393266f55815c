"""When gradients are ready: for each parameter during backward, and at its end."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_LISTENER = "_windlass_backward"


class _Listener:
    """What a parameter remembers of who listens to it; copies and pickles of the parameter do not."""

    def __init__(self, backward: Callable[[], Backward | None] = lambda: None) -> None:
        self.backward = backward

    def __reduce__(self) -> Any:
        return _Listener, ()


class Backward:
    """Calls `on_gradient(number)` as soon as a parameter's gradient is accumulated, and `on_end()` when backward is
    over, before its caller goes on; what these raise, `backward()` raises.

    `passes[number]` counts the gradients accumulated since `reset`. Inside `quiet()` they are only counted, and
    `has_unsent` says so until the next end.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        on_gradient: Callable[[int], None],
        on_end: Callable[[], None],
    ) -> None:
        self.passes = [0] * len(tensors)
        self.is_quiet = False
        self.has_unsent = False
        self.is_closed = False
        # Weakly: whose methods these are keeps this, and a circle would live until Python looks for circles.
        self._on_gradient, self._on_end = _weakly(on_gradient), _weakly(on_end)
        self._graph = -1  # the backward for which the end is already asked for
        for tensor in tensors:
            # Two that both listen to a parameter would both send its gradients: the newer takes over.
            earlier = getattr(tensor, _LISTENER, None)
            other = earlier.backward() if isinstance(earlier, _Listener) else None
            if other is not None:
                other.close()
            setattr(tensor, _LISTENER, _Listener(weakref.ref(self)))
        self._hooks = [
            tensor.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
            for number, tensor in enumerate(tensors)
        ]

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        # By a weak reference: torch keeps hooks where Python's collector does not look, and a strong one would keep
        # every model that was ever trained.
        me = weakref.ref(self)

        def accumulated(_tensor: torch.Tensor) -> None:
            backward = me()
            if backward is not None:
                backward._accumulated(number)

        return accumulated

    def _accumulated(self, number: int) -> None:
        self.passes[number] += 1
        if self.is_quiet:
            self.has_unsent = True
            return
        graph = torch._C._current_graph_task_id()
        if graph != self._graph:
            self._graph = graph
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end)
        call = self._on_gradient()
        if call is not None:
            call(number)

    def _end(self) -> None:
        self.has_unsent = False
        call = self._on_end()
        if call is not None:
            call()

    @contextmanager
    def quiet(self) -> Any:
        """Gradients accumulate in the parameters and nothing leaves."""
        before, self.is_quiet = self.is_quiet, True
        try:
            yield
        finally:
            self.is_quiet = before

    def reset(self) -> None:
        self.passes = [0] * len(self.passes)
        self.has_unsent = False

    def close(self) -> None:
        self.is_closed = True
        for hook in self._hooks:
            hook.remove()


def _weakly(function: Callable[..., None]) -> Callable[[], Callable[..., None] | None]:
    """A method of something that may go, or a plain function, which stays."""
    return weakref.WeakMethod(function) if inspect.ismethod(function) else lambda: function
