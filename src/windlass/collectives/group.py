"""`wl.Group`: the members of a collective, whatever lies between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windlass.collectives.backend import Backend
from windlass.collectives.call import BARRIER, Call, DifferentCalls, Terms, Verb, terms
from windlass.collectives.opening import open_backend
from windlass.collectives.reducing import reducer_of
from windlass.collectives.schedule import cut
from windlass.collectives.strategies import Machines, check_machines, check_strategy
from windlass.collectives.tensors import Kind, buffer_kind
from windlass.errors import ClusterError, UsageError, WindlassError, options_checked
from windlass.store.reduce import BUILT_IN, Reducer

_MAX_TERMS = 1024


class Group:
    """Members that reduce, gather and broadcast tensors together.

    `over` says what lies between them: a worker's `wl.Store` (shared memory between the processes of one machine), a
    torch.distributed process group or "torch" for the default one, an mpi4py communicator or "mpi" for COMM_WORLD, or
    a list of devices of this process, and then every call takes a list with one tensor per device.

    Every member makes the same calls in the same order; calls block until the own result is there. A call that differs
    from another member's is a UsageError in all of them, and harmless. A member that dies, leaves or is late
    is a ClusterError or TimeoutError that names it; the group is then broken, and every later call says so. One thread
    at a time.
    """

    @options_checked
    def __init__(self, over: Any, *, machines: Machines | None = None, timeout: float | None = None) -> None:
        """Blocks until every member is here. `machines` says which ranks share a machine, for `hierarchical`, where
        the backend does not know it or should not go by it. `timeout` is in seconds, for this and for every call."""
        self._ended: _Ended | None = None
        self._lock = threading.Lock()
        self._terms: dict[tuple[object, ...], Terms] = {}  # by what the caller says: checked once
        self._backend: Backend
        self._backend, self.timeout = open_backend(over, timeout)
        given = machines if machines is not None else self._backend.machines
        checked = None if given is None else check_machines(given, self.size)
        self._machines = None if checked is None else tuple(tuple(machine) for machine in checked)

    @property
    def rank(self) -> int:
        """This member's place among all; 0 where all members are devices of this process."""
        return self._backend.rank

    @property
    def size(self) -> int:
        return self._backend.size

    def part(self, size: int) -> slice:
        """Which of `size` elements are this member's in `reduce_scatter` and `all_gather_parts`."""
        return slice(*cut(0, size, self.size)[self.rank])

    # --- the calls ----------------------------------------------------------------------------------------------------

    def allreduce(
        self, tensor: Any, strategy: str = "auto", reduce: str | Reducer = "sum", *, timeout: float | None = None
    ) -> Any:
        """Reduce everybody's tensor, in place: afterwards all are the same. Returns it."""
        self._run(Verb.ALLREDUCE, tensor, strategy, reduce, timeout=timeout)
        return tensor

    def reduce_scatter(
        self, tensor: Any, strategy: str = "auto", reduce: str | Reducer = "sum", *, timeout: float | None = None
    ) -> Any:
        """Reduce everybody's tensor, each member only its own part, `group.part(tensor.size)` of the flattened tensor.
        In place: the own part is reduced, and is returned; the other elements are undefined."""
        kind = self._run(Verb.REDUCE_SCATTER, tensor, strategy, reduce, timeout=timeout)
        return self._backend.part(tensor, kind.size)

    def all_gather_parts(self, tensor: Any, strategy: str = "auto", *, timeout: float | None = None) -> Any:
        """Complete everybody's tensor from the members' own parts of it, in place: what `reduce_scatter` left undone.
        Returns it."""
        self._run(Verb.ALL_GATHER, tensor, strategy, None, timeout=timeout)
        return tensor

    def all_gather(self, tensor: Any, strategy: str = "auto", *, timeout: float | None = None) -> Any:
        """Everybody's tensor, in a new one of shape (members, *shape)."""
        self._backend.kind(tensor, Verb.ALL_GATHER)
        made = self._backend.stacked(tensor)
        self._run(Verb.ALL_GATHER, made, strategy, None, timeout=timeout)
        return made

    def broadcast(
        self, tensor: Any, root: int = 0, strategy: str = "auto", *, timeout: float | None = None
    ) -> Any:
        """Everybody's tensor becomes that of the member `root`, in place. Returns it."""
        if not isinstance(root, int) or not 0 <= root < self.size:
            raise UsageError(f"broadcast: root expects a rank from 0 to {self.size - 1}, got {root!r:.40}")
        self._run(Verb.BROADCAST, tensor, strategy, None, root=root, timeout=timeout)
        return tensor

    def barrier(self, timeout: float | None = None) -> None:
        """Return when every member has come here."""
        self._do(Call(BARRIER, None, self.timeout if timeout is None else timeout), self._meet_and_carry_out)

    def buffer(self, shape: int | tuple[int, ...], dtype: Any = "float32", *, timeout: float | None = None) -> Any:
        """A tensor of zeros in memory shared by the group: what is reduced in it, or in a contiguous part of it, is
        not copied in or out. torch's if `dtype` is torch's, else numpy's. All members call it at once."""
        asked = terms(Verb.BUFFER, buffer_kind(shape, dtype))
        call = Call(asked, None, self.timeout if timeout is None else timeout)
        return self._do(call, lambda call: self._backend.buffer(call, dtype))

    # --- how ----------------------------------------------------------------------------------------------------------

    def _run(
        self,
        verb: Verb,
        tensor: Any,
        strategy: str,
        reduce: str | Reducer | None,
        *,
        root: int = 0,
        timeout: float | None,
    ) -> Kind:
        kind = self._backend.kind(tensor, verb)
        key = verb, kind, reduce, strategy, root
        agreed = self._terms.get(key)
        if agreed is None:
            reducer = BUILT_IN["sum"] if reduce is None else reducer_of(reduce, kind.dtype, verb)
            agreed = terms(verb, kind, reducer, check_strategy(strategy), root)
            if len(self._terms) >= _MAX_TERMS:
                self._terms.clear()
            self._terms[key] = agreed
        self._do(Call(agreed, tensor, self.timeout if timeout is None else timeout), self._meet_and_carry_out)
        return kind

    def _meet_and_carry_out(self, call: Call) -> None:
        self._backend.carry_out(call, self._backend.meet(call), self._machines)

    def _do(self, call: Call, act: Callable[[Call], Any]) -> Any:
        """Act, if this member is free to. Whatever goes wrong but a disagreement, which all members notice alike,
        breaks the group: they are no longer in step."""
        if not self._lock.acquire(blocking=False):
            raise UsageError(f"{call.terms.text}: another thread is in a call of this group; one at a time")
        try:
            if self._ended is not None:
                raise self._ended.error(call)
            return act(call)
        except DifferentCalls:
            raise
        except BaseException as error:
            if self._ended is None:
                text = call.terms.text
                self._end(_Ended(ClusterError, f"is broken since {text}: {error}"), f"gave up in {text}")
            raise
        finally:
            self._lock.release()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self, why: _Ended, told: str) -> None:
        if self._ended is None:
            self._ended = why
            self._backend.leave(told)

    def close(self) -> None:
        """Leave. Those who still wait for this member, or will, are told at once. Does not wait for anybody; safe to
        repeat. Buffers stay valid as memory."""
        self._end(_Ended(UsageError, "is closed"), "has left the group: it closed it")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise UsageError("a group cannot be pickled; every member makes its own, over the store it is given")

    def __repr__(self) -> str:
        state = f" | {self._ended.text}" if self._ended is not None else ""
        return f"<Group rank {self.rank} of {self.size} over {self._backend.name}{state}>"


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why nothing can be called any more."""

    family: type[WindlassError]
    text: str

    def error(self, call: Call) -> WindlassError:
        return self.family(f"{call.terms.text}: this group {self.text}; make a new one")
