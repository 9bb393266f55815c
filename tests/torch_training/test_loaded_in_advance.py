"""What takes torch long to load is loaded once, in the process that workers are forked from."""

from __future__ import annotations

import sys

import pytest
import torch

import windlass as wl


def load_optimizer(store):
    before = len(sys.modules)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    return len(sys.modules) - before


def test_workers_load_nothing_for_an_optimizer_where_the_driver_has_made_one():
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with wl.Cluster(workers=2) as cluster:
        assert cluster.run(load_optimizer) == [0, 0]


def test_what_the_driver_has_not_loaded_is_loaded_by_who_wants_it(monkeypatch: pytest.MonkeyPatch):
    """It takes as long as torch itself, and not everybody who has tensors makes optimizers."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with wl.Cluster(workers=1) as cluster:
        (loaded,) = cluster.run(load_optimizer)
    assert loaded > 100
