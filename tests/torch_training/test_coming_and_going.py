"""Workers that come, die and are replaced while a model is trained: with SIGKILL, on real processes."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import windlass as wl

SIZE, BATCH, EPOCHS = 300, 10, 2


@pytest.fixture(scope="module")
def replacing():
    with wl.Cluster(servers=1, workers=2, on_worker_loss="wait", timeout=100) as cluster:
        yield cluster


class Counting(nn.Module):
    """Its parameters count how often each sample was trained on, if the step sums shares of a global batch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(SIZE)) for _ in range(2))

    def forward(self, samples):
        return -(self.first[samples].mean() + self.second[samples].mean())


def die(store, number, when):
    """If it is the turn of this worker, and the first in its seat."""
    if (store.rank, number) in when and not store._client.state.is_late:
        os.kill(os.getpid(), signal.SIGKILL)


def count_samples(store, together, dies):
    model = Counting()
    optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=float(together)), store, bucket_bytes=0)
    die(store, -1, dies)
    for done, batch in enumerate(store.batches(SIZE, batch_size=BATCH, epochs=EPOCHS, global_batch=together)):
        time.sleep(0.005)
        (batch.weight * model(torch.from_numpy(batch.indices))).backward()
        die(store, done, dies)
        if batch.is_last:
            optimizer.step(completes=batch)
            optimizer.zero_grad()
    return model.first.detach().numpy().copy(), model.second.detach().numpy().copy()


def fit(store, dies=(), pause=0.005, flag=None):
    """A small regression; and a key that counts samples beside it. After some steps a worker that comes later is waited
    for, which makes the flag a file."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))  # each worker's own values, which do not count
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    optimizer = wl.torch.Optimizer(inner, store, named_parameters=model.named_parameters())
    if flag is not None and store._client.state.is_late:
        flag.touch()
    store.create("samples", np.zeros(SIZE), update="add")
    mine = 0
    for batch in store.batches(SIZE, batch_size=BATCH, epochs=EPOCHS):
        time.sleep(pause)
        for _ in range(1000 if mine == 5 and flag is not None else 0):
            if not flag.exists():
                time.sleep(0.05)
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + batch.epoch)  # the same for everybody, however late
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[batch.indices]), y[batch.indices]).backward()
        die(store, mine, dies)
        seen = np.zeros(SIZE)
        seen[batch.indices] = 1
        store.push("samples", seen, completes=batch)
        optimizer.step(completes=batch)
        mine += 1
    loss = float(nn.functional.mse_loss(model(x), y).detach())
    return mine, store.pull("samples"), loss, [one.detach().numpy().copy() for one in model.parameters()]


def check(results, survivors):
    told = [one for one in results if not isinstance(one, wl.LostWorker)]
    assert len(told) == survivors
    for _, samples, loss, parameters in told:
        np.testing.assert_array_equal(samples, EPOCHS)
        assert loss < 2.0  # it was about 5
        for one, other in zip(parameters, told[0][3], strict=True):
            np.testing.assert_array_equal(one, other)
    return told


@pytest.mark.parametrize(
    ("on_loss", "consistency"), [("continue", wl.Sequential()), ("wait", wl.Sequential()), ("wait", wl.Eventual())]
)
def test_every_sample_counts_once_whoever_dies(on_loss, consistency):
    """Rank 0 dies with its optimizer just made, another in the middle of a step, then both in the middle of one."""
    survivors = 3 if on_loss == "wait" else 1
    with wl.Cluster(
        servers=2, workers=3, replicas=1, consistency=consistency, on_worker_loss=on_loss, timeout=100
    ) as cluster:
        results = cluster.run(count_samples, 30, {(0, -1), (1, 3)})
        told = [one for one in results if not isinstance(one, wl.LostWorker)]
        assert len(told) == survivors
        for counts in told:
            for one in counts:
                np.testing.assert_array_equal(one, EPOCHS)
        check(cluster.run(fit, {(0, 2), (2, 4)}), survivors)


def test_a_worker_that_is_added_takes_the_models_values_and_its_part_of_the_work(tmp_path):
    with wl.Cluster(servers=1, workers=2, timeout=100) as cluster:
        added = []

        def add():
            while "samples" not in cluster.store().status()["keys"]:
                time.sleep(0.05)
            added.append(cluster.add_worker())

        thread = threading.Thread(target=add)
        thread.start()
        results = cluster.run(fit, pause=0.05, flag=tmp_path / "flag")
        thread.join()
        assert added == ["worker-2"]
        told = check(results, 3)
        assert all(mine >= 1 for mine, *_ in told)
        assert cluster.run(group_sum) == [3.0] * 3  # in the next run it is a worker like the others


def group_sum(store):
    model = nn.Linear(2, 1)
    optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), store)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return float(wl.Group(store).allreduce(torch.ones(1))[0])


def late_model(store, how):
    """The first worker is killed once it has made a step; who takes its seat makes another kind of optimizer."""
    is_late = store._client.state.is_late
    model = nn.Linear(3, 2 if is_late and how == "shape" else 1)
    mode = "allreduce" if how == "allreduce" else "store"
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = wl.torch.Optimizer(inner, store, mode=mode, named_parameters=model.named_parameters())
    steps = store.batches(10, batch_size=1) if mode == "store" else range(10)
    for _ in steps:
        if not is_late and store.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        if how == "clips":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("shape", r"worker-1 has parameter 'weight' of shape \(2, 3\).* where worker-0 has .*\(1, 3\)"),
        ("allreduce", r"worker-1 came to a run under way, and every worker has to make every step.*mode='store'"),
        ("clips", r"gradients are changed between backward\(\) and step\(\), so every worker needs everybody's"),
    ],
)
def test_a_worker_that_comes_later_is_refused_in_words(replacing, how, wanted):
    with pytest.raises(wl.UsageError, match=wanted):
        replacing.run(late_model, how)
