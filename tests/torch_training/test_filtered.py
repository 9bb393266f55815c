"""Gradients that go through filters on their way to the servers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import windlass as wl
from windlass import filters as wf

GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(64, 32, generator=GENERATOR)
Y = torch.tanh(X @ torch.randn(32, 4, generator=GENERATOR))
START = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
STEPS = 60


def train(store, *, most=None, steps=STEPS, **options):
    """The loss in the end, the parameters, and what the filters say."""
    model = copy.deepcopy(START)
    sgd = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    optimizer = wl.torch.Optimizer(sgd, store, named_parameters=model.named_parameters(), **options)
    part = slice(store.rank, None, store.num_workers)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(X[part]), Y[part]).backward()
        if most is not None:
            nn.utils.clip_grad_norm_(model.parameters(), most)
        optimizer.step()
    loss = float(nn.functional.mse_loss(model(X), Y).detach())
    return loss, [one.detach().clone() for one in model.parameters()], store.status()["filters"]


@pytest.fixture(scope="module")
def cluster():
    with wl.Cluster(engine="threads", servers=2, workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plain(cluster):
    return cluster.run(train)[0]


@pytest.mark.parametrize(
    ("filters", "less"),
    [([wf.Cast("bfloat16")], 2), ([wf.Int8()], 3.8), ([wf.TopK(fraction=0.25), wf.Int8()], 8), (["zstd"], 1)],
    ids=str,
)
def test_fewer_bytes_train_about_as_well(cluster, plain, filters, less):
    (loss, found, told), (_, others, _) = cluster.run(train, filters=filters)
    assert loss < 1.3 * plain[0]
    assert all(map(torch.equal, found, others))  # parameters come back whole
    [key] = [key for key in told if key.startswith("optimizer/")]
    passed = told[key]["filters"]
    assert passed[-1]["after"] * less <= passed[0]["before"] * 1.01
    assert passed[0]["before"] >= STEPS * 4 * sum(one.numel() for one in found)


def test_what_changes_nothing_changes_no_bit(cluster, plain):
    assert all(map(torch.equal, cluster.run(train, filters=[wf.Zstd()])[0][1], plain[1]))


def test_clipped_gradients_go_through_them(cluster):
    loss, _, _ = cluster.run(train, most=0.5)[0]
    filtered, _, told = cluster.run(train, most=0.5, filters=[wf.Int8()])[0]
    assert filtered < 1.3 * loss
    assert any(key.startswith("optimizer/") for key in told)


@pytest.mark.parametrize("consistency", [wl.Bounded(2), wl.Eventual()], ids=str)
def test_without_rounds_they_train(consistency):
    with wl.Cluster(engine="threads", servers=1, workers=2, consistency=consistency) as cluster:
        loss, _, _ = cluster.run(train, filters=[wf.Int8()])[0]
    assert loss < 0.5 * float(nn.functional.mse_loss(START(X), Y).detach())


def test_a_run_that_goes_on_has_the_residuals_that_were_saved(tmp_path):
    filters = [wf.TopK(fraction=0.1)]
    with wl.Cluster(engine="threads", servers=2, workers=2) as cluster:
        whole = cluster.run(train, steps=12, filters=filters)[0][1]
    with wl.Cluster(engine="threads", servers=2, workers=2) as cluster:
        cluster.run(train, steps=8, filters=filters)
        cluster.store().save(tmp_path)
    with wl.Cluster(engine="threads", servers=2, workers=2) as cluster:
        cluster.store().load(tmp_path)
        for _, found, told in cluster.run(train, steps=4, filters=filters, resume=True):
            assert told["optimizer/0.weight..2.bias"]["residual_norm"] > 0
            for one, other in zip(found, whole, strict=True):
                torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)


def test_what_does_not_fit_is_refused():
    store, model = wl.Store(), copy.deepcopy(START)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(wl.UsageError, match="filters= expects mode='store'"):
        wl.torch.Optimizer(sgd, store, mode="allreduce", filters=[wf.Int8()])
    with pytest.raises(wl.UsageError, match="filters= expects a list of filters"):
        wl.torch.Optimizer(sgd, store, filters=wf.Int8())
    for kkt in (wf.KKT(), "kkt"):
        with pytest.raises(wl.UsageError, match="KKT goes by the updater's threshold, and torch's SGD has none"):
            wl.torch.Optimizer(sgd, store, filters=[kkt])
    with pytest.raises(wl.UsageError, match="IdCache"):
        train(store, filters=[wf.IdCache()])


def test_workers_that_differ_in_them_are_told(cluster):
    with pytest.raises(wl.UsageError, match=r"worker-1 has filters=\[\], worker-0 filters=\[{'int8': "):
        cluster.run(lambda store: train(store, filters=[wf.Int8()] if store.rank == 0 else []))
