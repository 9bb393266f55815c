"""What runs inside each process of a cluster. `processes.py` starts these in forked children."""

from __future__ import annotations

import gc
import importlib
import math
import os
import pickle
import queue
import signal
import threading
import time
import traceback
from typing import Any

import cloudpickle
import msgspec

from windlass._transport.loop import Loop
from windlass._wire.messages import Join
from windlass.engines._channel import Channel, ChannelClosed
from windlass.engines._compiling import noticed
from windlass.engines._finished import Doubts, Finished, Tally, tally
from windlass.engines._settling import settle
from windlass.engines.config import fresh_incarnation, open_hub, open_store, read_config
from windlass.errors import WindlassError
from windlass.manager.journal import Journal
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.scheduler import Hosted
from windlass.server.state import ServerConfig, ServerState
from windlass.server.traced import make_server
from windlass.store.dense import warm as warm_kernels
from windlass.store.reduce import reducer_rule, resolve_reducer
from windlass.store.update import SGD, resolve_updater, updater_rule
from windlass.trace.recorder import open_recorder
from windlass.types import MANAGER, Incarnation
from windlass.worker.store import Store

MEET_SECONDS = 10.0
"""How long a run waits for every worker to have heard of every other. Raise it if workers join slowly."""

DEAD_SEAT_SECONDS = 0.2
"""Where the loss of a worker ends the run, how long rounds wait for one that died: until then whoever started it has
ended the others. It is short, because a worker may have been started by nobody who does."""


def warm() -> None:
    """Load the kernels that nearly every job uses, once, before any fork; others are loaded when first needed."""
    reducer = resolve_reducer(reducer_rule("sum"), {})
    with noticed():
        for update in ("assign", SGD(lr=0.1)):
            warm_kernels("float32", reducer, resolve_updater(updater_rule(update), {}))


def run_manager(channel: Channel, config: bytes) -> None:
    """Say on the channel where the manager listens, then manage until the channel closes. It goes on from its journal;
    the journal is taken first, so that of two managers only one is ever heard. Why a first one cannot have it, it
    says on the channel instead."""
    node = read_config(config)
    try:
        journal = Journal(node.journal, is_new=not node.is_return)
    except WindlassError as error:
        if node.is_return:
            raise
        channel.send(error)
        return
    with journal, open_hub(MANAGER, node) as hub:
        manager = ManagerConfig(
            num_servers=node.num_servers,
            num_workers=node.num_workers,
            pid=os.getpid(),
            addresses=hub.addresses,
            term=journal.image.term,
            replicas=node.options.replicas,
            lease_seconds=node.options.lease_seconds,
            worker_lease_seconds=node.options.worker_lease_seconds,
            keeps_seats=node.options.on_worker_loss == "wait",
            dead_seat_seconds=DEAD_SEAT_SECONDS if node.options.on_worker_loss == "fail" else 0.0,
            dead_pids=node.dead_pids,
        )
        state = Hosted(ManagerState(manager, journal.image), journal.image.epochs)
        channel.send(hub.addresses)
        _run(Loop(state, hub, "manager", node.options.manager_tick_seconds, journal.append), channel)


def run_server(channel: Channel, config: bytes) -> None:
    """Hold shards until the channel closes, or until SIGTERM and everything is handed over."""
    node = read_config(config)
    me = fresh_incarnation()
    with open_hub(me, node) as hub:
        join = Join(role=node.role, pid=os.getpid(), addresses=hub.addresses, rank=node.rank)
        kind: type[ServerState] = _load(node.state) if node.state else ServerState
        recorder = open_recorder(node.record, me)
        server = ServerConfig(
            join=join, manager=node.manager, lease_seconds=node.options.lease_seconds,
            compiling=noticed,
        )  # fmt: skip
        state = make_server(kind, me, hub.memory, server, recorder)
        hub.dial(MANAGER, node.manager)
        try:
            loop = Loop(state, hub, f"server-{node.rank}", node.options.tick_seconds)
            _run(loop, channel, node.options.notice_seconds)
        finally:
            if recorder is not None:
                recorder.close()


def _run(loop: Loop, channel: Channel, notice_seconds: float = 0.0) -> None:
    """Turn the loop until the channel closes, or the node has stopped. With a notice, SIGTERM asks the node to leave,
    and ends it when the notice is over."""
    is_over, is_asked, deadline = threading.Event(), threading.Event(), math.inf

    def ask(*_: object) -> None:
        is_asked.set()
        loop.hub.wake()

    if notice_seconds:
        signal.signal(signal.SIGTERM, ask)

    def watch() -> None:  # nobody sends on a node's channel: readable means closed
        channel.readable(None)
        is_over.set()
        loop.hub.wake()

    gc.set_threshold(50_000, 20, 100)  # messages are no cycles: looking for some every few rounds is wasted
    threading.Thread(target=watch, name="windlass-watch", daemon=True).start()
    while not is_over.is_set() and loop.stopped is None and time.monotonic() < deadline:
        loop.turn(None)
        if is_asked.is_set():
            is_asked.clear()
            deadline = min(deadline, time.monotonic() + notice_seconds)
            loop.leave()


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class Outcome(msgspec.Struct, frozen=True):
    """How one call ended in one worker: a result, or an exception with its traceback as text."""

    run: int
    result: Any = None
    error: BaseException | None = None
    trace: str = ""
    tally: Tally | None = None  # of a call that returned


class Order(msgspec.Struct, frozen=True):
    """Driver to worker: call this, with these members; none are named for a run that is under way. `call` is (function,
    args, kwargs), pickled apart: whoever takes the order from the channel is not the one to import what the function
    needs."""

    run: int
    members: tuple[Incarnation, ...]
    call: bytes
    num_barriers: int = -1  # that were passed in earlier runs, if that is known


def run_worker(channel: Channel, config: bytes) -> None:
    """Join, say so, then carry out calls as they come on the channel until it closes."""
    node = read_config(config)
    settle(node.num_workers)
    store = open_store(node)
    channel.send(store._client.state.me)
    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, store, orders), name="windlass-orders", daemon=True).start()
    try:
        while (order := orders.get()) is not None:
            if order.members:
                store._client.arrive()
                store._client.meet(order.members, MEET_SECONDS)
            store.num_barriers = order.num_barriers
            _answer(channel, _obey(order, store))
    finally:
        store.close()


def _listen(channel: Channel, store: Store, orders: queue.SimpleQueue[Order | None]) -> None:
    """Take what the driver says, also while a call is under way: who of the others has finished ends waits in vain."""
    doubts = Doubts(store._client)
    while True:
        try:
            said = channel.recv()
        except (EOFError, ChannelClosed):
            orders.put(None)
            return
        if isinstance(said, Finished):
            doubts.add(said)
        else:  # a new run: everybody is back at work
            doubts = Doubts(store._client)
            orders.put(said)


def _obey(order: Order, store: Store) -> Outcome:
    try:
        function, args, kwargs = pickle.loads(order.call)
    except BaseException as error:
        return Outcome(order.run, error=error, trace=traceback.format_exc())
    return call(order.run, function, store, args, kwargs)


def call(run: int, function: Any, store: Store, args: Any, kwargs: Any) -> Outcome:
    try:
        store._leased.run = run
        result = function(store, *args, **kwargs)
        store._leased.close()
        store.raise_unseen()
        return Outcome(run, result=result, tally=tally(store))
    except BaseException as error:
        return Outcome(run, error=error, trace=traceback.format_exc())


def _answer(channel: Channel, outcome: Outcome) -> None:
    """Send an outcome; one that cannot be pickled, or not be rebuilt, is told as text."""
    try:
        if outcome.error is not None:
            pickle.loads(cloudpickle.dumps(outcome.error))
        channel.send((outcome.run, outcome.result, outcome.error, outcome.trace, outcome.tally))
    except ChannelClosed:
        return
    except Exception as problem:
        what = "exception" if outcome.error is not None else "result"
        text = outcome.trace or f"TypeError: the {what} cannot be sent to the driver: {problem}"
        channel.send((outcome.run, None, None, text, None))
