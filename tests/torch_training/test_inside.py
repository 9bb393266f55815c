"""The torch optimizer inside a wl.torch.Optimizer: who steps, and what was made on it before."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch

import windlass as wl

from .problem import Net, assert_close, batches, loss_of, values

REFUSED = r"worker-0: a wl.torch.Optimizer was made of this SGD.*call step\(\) of the wl.torch.Optimizer"


def made(store, **options):
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, inner, wl.torch.Optimizer(inner, store, **options)


def one_step(model, steps, clears):
    x, y = batches(1)[0]
    clears.zero_grad()
    loss_of(model, x, y).backward()
    steps.step()


def test_a_step_of_the_optimizer_inside_is_refused_where_the_servers_step():
    with wl.Store() as store:
        model, inner, optimizer = made(store)
        before = values(model)
        with pytest.raises(wl.UsageError, match=REFUSED):
            one_step(model, inner, inner)
        assert_close(values(model), before, atol=0)
        optimizer.step()
        assert store.version(next(iter(store.keys()))) == 1


def test_a_grad_scaler_that_is_given_the_optimizer_inside_is_refused():
    with wl.Store() as store:
        model, inner, _optimizer = made(store)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model, *batches(1)[0])).backward()
        with pytest.raises(wl.UsageError, match=REFUSED):
            scaler.step(inner)


def test_an_optimizer_that_was_not_kept_is_not_stepped_around():
    with wl.Store() as store:
        model = Net()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        wl.torch.Optimizer(inner, store)
        gc.collect()
        with pytest.raises(wl.UsageError, match=REFUSED):
            one_step(model, inner, inner)


def test_the_optimizer_inside_steps_again_once_the_other_is_closed():
    with wl.Store() as store:
        model, inner, optimizer = made(store)
        one_step(model, optimizer, inner)
        optimizer.close()
        before = values(model)
        one_step(model, inner, inner)
        assert not torch.equal(values(model)["first.weight"], before["first.weight"])


@pytest.mark.parametrize("second", ["store", "allreduce"])
def test_another_made_of_the_same_optimizer_takes_over(second):
    with wl.Store() as store:
        model, inner, first = made(store)
        one_step(model, first, first)
        other = wl.torch.Optimizer(inner, store, mode=second)
        first.close()  # is closed already: what the other has refused stays refused
        if second == "store":
            with pytest.raises(wl.UsageError, match=REFUSED):
                one_step(model, inner, inner)
        one_step(model, other, other)


def test_with_allreduce_the_optimizer_inside_steps():
    with wl.Store() as store:
        model, inner, optimizer = made(store, mode="allreduce")
        before = values(model)
        one_step(model, optimizer, inner)
        assert not torch.equal(values(model)["first.weight"], before["first.weight"])


@pytest.mark.parametrize("mode", ["store", "allreduce"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_scaled", [False, True], ids=["plain", "scaled"])
def test_a_scheduler_on_the_optimizer_inside_sets_the_rates_without_a_warning(mode, when, is_scaled):
    def train(store, steps=4):
        model = Net()
        inner = torch.optim.SGD(model.parameters(), lr=0.4)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5) if when == "before" else None
        optimizer = inner if store is None else wl.torch.Optimizer(inner, store, mode=mode)
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
        scaler = torch.amp.GradScaler("cpu", enabled=is_scaled)
        for x, y in batches(steps):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        return values(model), scheduler.get_last_lr()

    with warnings.catch_warnings(), wl.Store() as store:
        warnings.simplefilter("error")
        found, rates = train(store)
        wanted, wanted_rates = train(None)
    assert rates == wanted_rates == [0.4 / 16]
    assert_close(found, wanted)


def test_a_scheduler_that_steps_before_any_step_still_warns():
    with wl.Store() as store:
        model = Net()
        inner = torch.optim.SGD(model.parameters(), lr=0.4)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
        _optimizer = wl.torch.Optimizer(inner, store)
        with pytest.warns(UserWarning, match="before `optimizer.step"):
            scheduler.step()
