"""An optimizer over leased work: what a step is, when workers make unequally many of them."""

from __future__ import annotations

import copy
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import windlass as wl

SIZE, BATCH = 60, 5
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(SIZE, 4, generator=GENERATOR)
Y = X @ torch.tensor([[1.0], [-1.0], [2.0], [0.5]])
START = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def loss_of(model, indices):
    return nn.functional.mse_loss(model(X[indices]), Y[indices])


def optimize(store, model, kind=torch.optim.Adam, **options):
    return wl.torch.Optimizer(
        kind(model.parameters(), lr=0.05), store, named_parameters=model.named_parameters(), **options
    )


def plainly(together, epochs):
    """One process, whole batches of `together` samples, in the order in which the store deals them out."""
    model = copy.deepcopy(START)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for batch in wl.Store().batches(SIZE, batch_size=together, epochs=epochs):
        optimizer.zero_grad()
        loss_of(model, batch.indices).backward()
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def with_global_batch(store, together, epochs, **options):
    model = copy.deepcopy(START)
    optimizer = optimize(store, model, **options)
    for batch in store.batches(SIZE, batch_size=BATCH, epochs=epochs, global_batch=together):
        (batch.weight * loss_of(model, batch.indices)).backward()
        if batch.is_last:
            optimizer.step(completes=batch)
            optimizer.zero_grad()
    return [one.detach().clone() for one in model.parameters()], repr(optimizer)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_with_a_global_batch_any_number_of_workers_gives_what_one_process_gives(workers):
    expected = plainly(20, 3)
    with wl.Cluster(engine="threads", servers=2, workers=workers, timeout=30) as cluster:
        for found, told in cluster.run(with_global_batch, 20, 3):
            assert "plan='at step'" in told
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_global_batch_can_have_buckets_of_one_parameter_and_unused_ones():
    with wl.Cluster(engine="threads", servers=1, workers=2, timeout=30) as cluster:
        expected = plainly(20, 1)
        for found, _ in cluster.run(with_global_batch, 20, 1, find_unused_parameters=True):
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_steps_with_and_without_a_global_batch_do_not_mix(two):
    def train(store):
        model = copy.deepcopy(START)
        optimizer = optimize(store, model)
        for options in ({"global_batch": 10}, {}):
            for batch in store.batches(SIZE, batch_size=BATCH, **options):
                (batch.weight * loss_of(model, batch.indices)).backward()
                if batch.is_last:
                    optimizer.step(completes=batch)

    wanted = r"was with batches\(global_batch=\), this one is without.*Make an optimizer"
    with pytest.raises(wl.UsageError, match=wanted):
        two.run(train)


def test_a_step_before_the_last_batch_of_a_share_says_to_wait_for_it():
    store = wl.Store()
    model = copy.deepcopy(START)
    optimizer = optimize(store, model)
    batch = next(store.batches(SIZE, batch_size=BATCH, global_batch=20))
    (batch.weight * loss_of(model, batch.indices)).backward()
    with pytest.raises(wl.UsageError, match=r"not the last of its step: push once, when batch\.is_last"):
        optimizer.step()


def test_a_worker_that_finds_no_work_holds_nobody_up(three):
    """It never makes a step, so the others must not need it for theirs."""
    has_all = threading.Barrier(3)  # one batch for each of the others, and it comes when they have them

    def train(store):
        model = copy.deepcopy(START)
        optimizer = optimize(store, model)
        if store.rank == 0:
            has_all.wait(60)
        steps = 0
        for batch in store.batches(2 * BATCH, batch_size=BATCH):
            has_all.wait(60)
            optimizer.zero_grad()
            loss_of(model, batch.indices).backward()
            optimizer.step(completes=batch)
            steps += 1
        return steps, [one.detach().clone() for one in model.parameters()]

    results = three.run(train)
    assert [steps for steps, _ in results] == [0, 1, 1]
    for _, found in results:  # who made none has the values all the same
        assert all(torch.equal(one, other) for one, other in zip(found, results[0][1], strict=True))
    assert not torch.equal(results[0][1][0], START[0].weight)


def test_gradients_leave_early_from_the_third_step_on():
    store = wl.Store()
    model = copy.deepcopy(START)
    optimizer = optimize(store, model)
    plans = []
    for batch in store.batches(SIZE, batch_size=20):
        optimizer.zero_grad()
        loss_of(model, batch.indices).backward()
        optimizer.step()
        plans.append(repr(optimizer).split("plan=")[1].split("'")[1])
    assert plans == ["first", "early", "early"]
    assert all(len(store.begun_batches) == 0 for _ in plans)


@pytest.mark.parametrize("first", [0, 3])
def test_gradients_that_are_changed_before_the_step_are_refused(two, first):
    """From the first step on, or later: it would have to be the mean that is clipped."""

    def train(store):
        model = copy.deepcopy(START)
        optimizer = optimize(store, model, overlap=False)
        for done, batch in enumerate(store.batches(SIZE, batch_size=BATCH, epochs=3)):
            optimizer.zero_grad()
            loss_of(model, batch.indices).backward()
            if done >= first:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()

    with pytest.raises(wl.UsageError, match=r"changed between backward\(\) and step\(\), so every worker needs"):
        two.run(train)


def test_under_eventual_consistency_each_worker_clips_its_own():
    def train(store):
        model = copy.deepcopy(START)
        optimizer = optimize(store, model, torch.optim.SGD)
        for batch in store.batches(SIZE, batch_size=BATCH):
            optimizer.zero_grad()
            loss_of(model, batch.indices).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
        moved = [(one - other).detach() for one, other in zip(model.parameters(), START.parameters(), strict=True)]
        return float(torch.cat([one.reshape(-1) for one in moved]).norm())

    with wl.Cluster(engine="threads", workers=2, consistency=wl.Eventual(), timeout=30) as cluster:
        for moved in cluster.run(train):
            assert 0 < moved <= 12 * 0.05 * 0.01


def test_a_grad_scaler_works_on_each_workers_own_gradients(two):
    def train(store):
        model = copy.deepcopy(START)
        optimizer = optimize(store, model, torch.optim.SGD)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for batch in store.batches(SIZE, batch_size=BATCH, epochs=2):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, batch.indices)).backward()
            scaler.step(optimizer)
            scaler.update()
        return float(loss_of(model, np.arange(SIZE)).detach())

    before = float(loss_of(START, np.arange(SIZE)).detach())
    assert all(after < before for after in two.run(train))


@pytest.mark.parametrize("missing", [True, False])
def test_workers_whose_first_steps_find_other_parameters_are_named(two, missing):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 1), nn.Linear(4, 1)

    def train(store):
        model = Two()
        optimizer = optimize(store, model, torch.optim.SGD, find_unused_parameters=not missing)
        for batch in store.batches(SIZE, batch_size=BATCH):
            optimizer.zero_grad()
            out = model.one(X[batch.indices])
            (out if store.rank else out + model.two(X[batch.indices])).mean().backward()
            optimizer.step()
            time.sleep(0.02)  # let both have some
        return True

    if missing:
        met = r"worker-1 has no gradient of 'two\.\w+', worker-0 has one"
        came_later = r"worker-1: 'two\.\w+' got no gradient in this step, and had one in the first"
        with pytest.raises(wl.UsageError, match=f"{met}|{came_later}"):
            two.run(train)
    else:
        assert two.run(train) == [True, True]


def test_a_state_that_was_loaded_is_what_leased_work_goes_on_with(two):
    plain = copy.deepcopy(START)
    inner = torch.optim.Adam(plain.parameters(), lr=0.05)
    loss_of(plain, np.arange(SIZE)).backward()
    inner.step()
    saved = copy.deepcopy(inner.state_dict())

    def train(store):
        model = copy.deepcopy(plain)
        optimizer = optimize(store, model)
        optimizer.load_state_dict(saved)
        for batch in store.batches(SIZE, batch_size=SIZE // 2, global_batch=SIZE):
            (batch.weight * loss_of(model, batch.indices)).backward()
            if batch.is_last:
                optimizer.step(completes=batch)
        return [one.detach().clone() for one in model.parameters()], optimizer.state_dict()["state"][0]["step"]

    expected = copy.deepcopy(plain)
    again = torch.optim.Adam(expected.parameters(), lr=0.05)
    again.load_state_dict(copy.deepcopy(saved))  # torch would count on in it
    loss_of(expected, np.arange(SIZE)).backward()
    again.step()
    for found, step in two.run(train):
        assert step == 2
        for one, other in zip(found, expected.parameters(), strict=True):
            torch.testing.assert_close(one, other.detach(), atol=1e-5, rtol=1e-4)
