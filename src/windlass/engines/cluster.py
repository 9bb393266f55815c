"""`wl.Cluster`: a group of servers, a group of workers and their manager, for as long as a `with` block lasts."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sys
import weakref
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from types import TracebackType
from typing import Any

import msgspec

from windlass._words import count as counted
from windlass.engines._launch import files_told
from windlass.engines._saving import Autosave, SavePlan, restorable, restore
from windlass.engines._sharing import SharedEngine
from windlass.engines.config import OWN_LEDGER, NodeConfig, Options, from_environment, open_store
from windlass.engines.processes import ProcessEngine, check_replicas, check_transport
from windlass.engines.threads import ThreadEngine
from windlass.errors import LostRange, UsageError, options_checked, unknown_options
from windlass.server.state import ServerState
from windlass.trace.collector import check_path
from windlass.types import Consistency, Node, Role, Sequential, check_consistency
from windlass.worker.driver import DriverStore
from windlass.worker.shield import uninterrupted
from windlass.worker.store import Store

log = logging.getLogger("windlass")

_UNSAVED = "; the keys have their values until the cluster is closed: cluster.store().save() saves them elsewhere"


class Cluster:
    """Starts a manager, servers and workers, and ends them all when the block is left, however it is left.

        with wl.Cluster(servers=2, workers=4) as cluster:
            results = cluster.run(train, epochs=3)

    `engine="processes"` (the default) forks real processes on this machine; `"threads"` runs the same nodes as
    threads. `transport` is "shm" (shared memory), "tcp" or "tls" (then with `tls=(certfile, keyfile, cafile)`).
    `on_worker_loss` says what a run does when a worker's process dies: "fail" (raise, the default), "continue" without
    it (its result is a LostWorker), or "wait" for another that takes its seat and runs the function from its beginning.
    With `replicas=k` every value is on k servers more, and up to k may die at the same time without a loss;
    `lease_seconds` is how long a silent one is waited for. Other options are those of StoreOptions: consistency,
    deterministic, check_finite, timeout, warn_seconds, chunk_bytes; and `link_bytes_per_second`, which no link over TCP
    exceeds in either direction; and `journal`, a file for the manager's notes instead of one in memory; and
    `chaos=True`, for a cluster that `wl.Chaos` is to disturb.

    With `checkpoint="path"` every `run` ends with a save there, of which `keep=3` stay; `checkpoint_every=60` saves
    every minute meanwhile, too. When a server is lost with what only it held, `on_server_loss="restore"` goes back to
    the last checkpoint and calls the function again; "fail", the default, raises LostRange. With `load="path"` the
    store begins with that checkpoint, or with the newest in that directory; where there is none yet, it begins empty.
    Not thread-safe.
    """

    @options_checked
    def __init__(
        self,
        *,
        servers: int = 1,
        workers: int = 1,
        engine: str = "processes",
        transport: str = "auto",
        replicas: int = 0,
        consistency: Consistency | None = None,
        **options: Any,
    ) -> None:
        if not (isinstance(servers, int) and isinstance(workers, int)) or servers < 1 or workers < 1:
            raise UsageError(f"a cluster expects at least 1 server and 1 worker, got {servers!r} and {workers!r}")
        check_replicas(replicas, servers)
        self.num_servers, self.num_workers = servers, workers
        state = options.pop("_server_state", None)
        has_workers = options.pop("_has_workers", True)
        self._save_plan = SavePlan.taken_from(options)
        chaos = options.pop("chaos", False)
        if not isinstance(chaos, bool) or (chaos and engine == "threads"):
            raise UsageError(f"chaos expects True or False, and engine='processes', got {chaos!r} and {engine!r}")
        self._save_plan.check_place()
        begins_with = self._save_plan.to_load(log.warning)
        restores = self._save_plan.on_server_loss == "restore"
        given = {"replicas": replicas, "chaos": OWN_LEDGER if chaos else "", "restores": restores}
        chosen = _options(consistency, options | given)
        self._is_open, self._owner = True, os.getpid()
        make: Callable[[], ProcessEngine | ThreadEngine]
        if engine == "threads" and transport != "auto":
            raise UsageError(f"transport expects 'auto' with engine='threads', got {transport!r}: nodes share memory")
        if engine == "threads":
            make = partial(
                ThreadEngine, servers=servers, workers=workers, options=chosen, server_state=state or ServerState
            )
        elif engine == "processes":
            if transport == "tls" and chosen.tls is None:
                raise UsageError("transport='tls' expects tls=(certfile, keyfile, cafile)")
            path = f"{state.__module__}:{state.__qualname__}" if state else ""
            make = partial(
                ProcessEngine,
                servers=servers,
                workers=workers,
                transport=check_transport(transport),
                options=chosen,
                server_state=path,
                has_workers=has_workers,
            )
        else:
            raise UsageError(f"engine expects 'processes' or 'threads', got {engine!r}")
        self._engine = _opened(make)
        if begins_with:
            try:
                self._engine.driver().load(begins_with)
            except BaseException:
                self.close()
                raise

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `function(store, *args, **kwargs)` in every worker and give the results in rank order.

        Blocks. The first exception of a worker is raised here, with its rank and traceback as a note; the others'
        waits are ended. After a failed run the next one starts with new workers; keys and values stay. A run that ended
        well, but whose checkpoint cannot be saved, is a ClusterError that says why, and which is the last good one.
        """
        self._check_open()
        if not callable(function):
            raise UsageError(f"run expects a function of a store, got {type(function).__name__}")
        if self._save_plan.path:
            self._engine.driver()  # now: two threads are about to want it
        for num_restores in count():
            try:
                with files_told("run a function"), Autosave(self._save_plan, self._engine.driver, advice=_UNSAVED):
                    return self._engine.run(function, args, kwargs, is_again=num_restores > 0)
            except LostRange as lost:
                path = restorable(self._save_plan, self._engine, num_restores)
                if not path:
                    raise
                text = "elements [%d, %d) of '%s' were lost with %s; going back to '%s', and the function is run again"
                log.warning(text, lost.lo, lost.hi, lost.key, lost.server, path)
                restore(self._engine, self.num_servers, path)
        raise AssertionError

    def store(self) -> DriverStore:
        """A handle for this process: it reads the newest round and can `assign` between rounds. It cannot push."""
        self._check_open()
        return self._engine.driver()

    def nodes(self) -> list[Node]:
        """Manager, servers and workers, the departed included, each with name, role, pid, address and state."""
        self._check_open()
        said = self.store()._manager_says()["nodes"]
        return [_node(one) for one in said]

    @property
    def last_checkpoint(self) -> str:
        """The path of the last checkpoint that was saved or loaded here, by whomever; empty if there is none."""
        self._check_open()
        return str(self.store()._manager_says()["checkpoint"])

    def add_server(self) -> str:
        """Start one more server and give its name; shards move to it while everything goes on. Blocks until it has
        joined. May be called from another thread while `run` is under way."""
        self._check_open()
        with files_told("add a server"):
            name = self._engine.add_server()
        self.num_servers += 1
        return name

    def add_worker(self) -> str:
        """Start one more worker and give its name. It takes part in the run that is under way, if there is one: its
        result comes after the others'; work that is leased by `store.batches` is shared with it. Blocks until it has
        joined. May be called from another thread while `run` is under way."""
        self._check_open()
        with files_told("add a worker"):
            name = self._engine.add_worker()
        self.num_workers += 1
        return name

    def remove_server(self, name: str) -> None:
        """Have a server hand over all that it holds and end it. Blocks until it has left. May be called from another
        thread while `run` is under way. SIGTERM to a server does the same."""
        self._check_open()
        self._engine.remove_server(name)
        self.num_servers -= 1

    @options_checked
    def share(self, namespace: str, *, workers: int = 1) -> Cluster:
        """Another job on this cluster's servers: a cluster of its own workers, ranks and keys, under this name. Close
        it before this one; its keys stay until they are deleted."""
        self._check_open()
        if not isinstance(namespace, str) or not namespace or "/" in namespace:
            raise UsageError(f"namespace expects a name without '/', got {namespace!r:.60}")
        if type(self._engine) is not ProcessEngine:
            raise UsageError("share expects a cluster with engine='processes' that has servers of its own")
        if type(workers) is not int or workers < 1:
            raise UsageError(f"a job expects at least 1 worker, got {workers!r}")
        job = object.__new__(Cluster)
        job.num_servers, job.num_workers, job._is_open, job._owner = self.num_servers, workers, True, self._owner
        job._save_plan = SavePlan()
        job._engine = _opened(partial(SharedEngine, self._engine, namespace, workers))
        return job

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("the cluster is closed")
        if os.getpid() != self._owner:  # whose channels these are: two would take each other's answers
            raise UsageError("this cluster is another process's: after a fork, the child needs one of its own")

    def close(self) -> None:
        """End every node. Safe to repeat."""
        with uninterrupted():
            if self._is_open:
                self._is_open = False
                self._engine.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        who = f"{counted(self.num_servers, 'server')}, {counted(self.num_workers, 'worker')}"
        return f"<Cluster {who} | {state}>"


@options_checked
def connect(
    *, manager: str | None = None, token: str | None = None, rank: int | None = None, namespace: str | None = None
) -> Store:
    """Join the cluster that this process was started in, as a worker: inside `windlass run`, or with the manager's
    address and the cluster's token given. Blocks until every node is there. Without arguments, a second call gives the
    same store. With a `namespace` it is another job's worker: keys, ranks and rounds are those of the namespace."""
    is_default = manager is None and token is None and rank is None and namespace is None
    earlier = _joined() if is_default else None
    if earlier is not None:
        return earlier
    config: NodeConfig = from_environment(manager=manager, token=token, rank=rank, namespace=namespace)
    with files_told("join the cluster"):
        store = open_store(config)
    atexit.register(_leave, store)
    if config.options.restores:
        _say_losses()
    if is_default:
        _here.append(weakref.ref(store))
    return store


@cache
def _say_losses() -> None:
    """Once in a process, however often it joins: a hook over a hook would be kept for each time."""
    sys.excepthook = partial(_say_loss, sys.excepthook)


def _say_loss(
    otherwise: Callable[..., object], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A script ends because its run goes back to a checkpoint: that is a line, and no traceback."""
    if isinstance(error, LostRange) and error.is_restored and error.checkpoint:
        print(f"{kind.__name__}: {error}", file=sys.stderr)
    else:
        otherwise(kind, error, trace)


def _leave(store: Store) -> None:
    """A script that just ends says goodbye like one that closes. One that failed says nothing, and stays a member until
    its process has ended: else rounds would go on without it for as long as that takes."""
    if getattr(sys, "last_value", None) is None or hasattr(sys, "ps1"):
        store.close()


_here: list[weakref.ref[Store]] = []
"""The store by which this process has joined the cluster that it was started in: it is one worker, not several."""


def _joined() -> Store | None:
    store = _here[-1]() if _here else None
    return store if store is not None and store.is_usable else None


def _opened(make: Callable[[], ProcessEngine | ThreadEngine]) -> ProcessEngine | ThreadEngine:
    """An engine whose nodes are up, or nothing. Ctrl-C is let in where this waits for others, and then closes it."""
    engine: ProcessEngine | ThreadEngine | None = None
    try:
        with files_told("open a cluster"), uninterrupted():
            engine = make()
            engine.open()
        return engine
    except BaseException:
        if engine is not None:
            engine.close()
        raise


_INNER = frozenset({"options", "restores"})  # of Options and Cluster: not for users


def _options(consistency: Consistency | None, options: dict[str, Any]) -> Options:
    unknown = sorted(set(options) - set(Options.__struct_fields__))
    if unknown:
        known = sorted({*inspect.signature(Cluster).parameters, *Options.__struct_fields__, *SavePlan.OPTIONS} - _INNER)
        raise unknown_options("Cluster", unknown, known)
    if consistency is not None:
        check_consistency(consistency)
    options["trace"] = check_path(options.get("trace"))
    chosen = msgspec.structs.replace(Options(), consistency=consistency or Sequential(), **options)
    chosen.for_store()  # checks them
    return chosen


def _node(said: dict[str, Any]) -> Node:
    return Node(
        name=said["name"],
        role=Role(said["role"]),
        incarnation=said["incarnation"],
        rank=said["rank"],
        pid=said["pid"],
        addresses=(said["address"],),
        state=said["state"],
    )
