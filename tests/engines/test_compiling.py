"""Whoever waits for kernels to be compiled is told, and nobody else."""

from __future__ import annotations

import threading

import numba

from windlass.engines._compiling import noticed


def test_compiling_that_takes_its_time_is_told_once_while_it_goes_on(caplog):
    def add(a, b):
        return a + b

    threads = set(threading.enumerate())
    with noticed(seconds=0.0):
        numba.njit(add)(1, 2)
        numba.njit(add)(1.0, 2.0)
    (said,) = caplog.messages
    assert said.startswith("compiling kernels, once for each kind of key on a new install: ")
    assert set(threading.enumerate()) <= threads


def test_what_is_compiled_fast_or_already_is_not_told(caplog):
    @numba.njit
    def add(a, b):
        return a + b

    with noticed(seconds=60.0):
        add(1, 2)
    with noticed(seconds=0.0):
        add(1, 2)
    assert not caplog.messages
