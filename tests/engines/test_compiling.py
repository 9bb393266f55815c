"""Whoever waits for kernels to be compiled is told, and nobody else."""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
import warnings
from contextlib import contextmanager

import numba
import numpy as np
import pytest

import windlass as wl
from tests.engines.targets import SlowMaker
from windlass._wire import messages as m
from windlass._wire.effects import Received
from windlass.engines._compiling import QUIET_SECONDS, SILENCE, _last_told, noticed
from windlass.server.state import ServerConfig, ServerState
from windlass.types import MANAGER, Heap, Incarnation, KeyId, KeySpec, Node, Role, Rule, Sequential

ME, OTHER = Incarnation(1), Incarnation(2)


def test_compiling_that_takes_its_time_is_told_once_while_it_goes_on(caplog, monkeypatch):
    monkeypatch.delenv(SILENCE)
    _last_told.cache_clear()

    def add(a, b):
        return a + b

    threads = set(threading.enumerate())
    with noticed(seconds=0.0):
        numba.njit(add)(1, 2)
        numba.njit(add)(1.0, 2.0)
    (said,) = caplog.messages
    assert said.startswith("compiling kernels, once for each kind of key on a new install: ")
    assert set(threading.enumerate()) <= threads


def test_nobody_is_told_again_of_the_next_kind_of_key_or_by_another_process(capfd, monkeypatch):
    monkeypatch.delenv(SILENCE)
    _last_told.cache_clear()

    def compile_something():
        with noticed(seconds=0.0):
            numba.njit(lambda a: a + 1)(1)

    with noticed():  # as whoever forks has
        pass
    for _ in range(2):
        with warnings.catch_warnings():  # of threads beside this one: the child does not meet them
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            logging.basicConfig(force=True)
            compile_something()
            os._exit(0)
        os.waitpid(child, 0)
    compile_something()
    assert capfd.readouterr().err.count("compiling kernels") == 1


def test_a_kind_of_key_that_comes_much_later_is_told_of(caplog, monkeypatch):
    monkeypatch.delenv(SILENCE)
    _last_told()[:8] = struct.pack("d", time.monotonic() - 2 * QUIET_SECONDS)
    with noticed(seconds=0.0):
        numba.njit(lambda a: a + 1)(1)
    assert len(caplog.messages) == 1


def test_what_is_compiled_fast_or_already_is_not_told(caplog, monkeypatch):
    monkeypatch.delenv(SILENCE)

    @numba.njit
    def add(a, b):
        return a + b

    with noticed(seconds=60.0):
        add(1, 2)
    with noticed(seconds=0.0):
        add(1, 2)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("chains", "tells"), [(((ME,), (OTHER,)), True), (((ME, OTHER),), True), (((OTHER,), (ME,)), False)]
)
def test_of_those_who_load_kernels_for_a_key_its_keeper_would_tell(chains, tells):
    entered = []

    @contextmanager
    def compiling():
        entered.append(ME)
        yield

    join = m.Join(role=Role.SERVER, pid=0, addresses=())
    state = ServerState(ME, Heap(), ServerConfig(join, manager=(), compiling=compiling))
    spec = KeySpec(
        name="w", shape=(2048,), dtype="float32", reduce=Rule("sum"), update=Rule("add"), consistency=Sequential(),
        chunk_bytes=4096,
    )  # fmt: skip
    nodes = tuple(
        Node(name=f"server-{who}", role=Role.SERVER, incarnation=who, rank=who, pid=0, addresses=())
        for who in (ME, OTHER)
    )
    state.handle(Received(MANAGER, m.Membership(term=1, number=1, nodes=nodes, reason="test")), 0.0)
    state.handle(Received(MANAGER, m.Place(key=KeyId(1), spec=spec, chains=chains)), 0.0)
    assert bool(entered) is tells


def test_nobody_wonders_at_a_server_that_makes_a_key_for_long(capfd):
    """Its silence is longer than a lease, and the wait for it longer than others are before they warn."""

    def declare(store):
        for key in ("fast", "slow"):
            store.create(key, np.zeros(3, np.float32), update="add")
            store.pushpull(key, np.ones(3, np.float32))
        return [store.pull(key).tolist() for key in ("fast", "slow")]

    options = {"lease_seconds": 1.0, "worker_lease_seconds": 4.0, "warn_seconds": 2.5}
    with wl.Cluster(servers=2, workers=2, replicas=1, _server_state=SlowMaker, **options) as cluster:
        assert cluster.run(declare) == [[[2.0] * 3] * 2] * 2
    assert capfd.readouterr().err == ""
