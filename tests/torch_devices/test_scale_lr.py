"""A learning rate that grows with the batch, warmed up."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import windlass as wl
from tests.torch_devices.models import mlp


def rates(optimizer, schedulers, steps):
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return found


def sgd(lr=0.1):
    return torch.optim.SGD(mlp().parameters(), lr=lr)


def test_the_rate_grows_linearly_to_factor_times_over_the_warm_up():
    optimizer = sgd()
    scheduler = wl.torch.scale_lr(optimizer, 4, warmup_steps=3)
    assert rates(optimizer, [scheduler], 6) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_without_warm_up_it_is_scaled_at_once():
    optimizer = sgd()
    scheduler = wl.torch.scale_lr(optimizer, 0.5)
    assert rates(optimizer, [scheduler], 3) == pytest.approx([0.05] * 3)


def test_groups_are_scaled_each_from_its_own_rate():
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 1.0}]
    optimizer = torch.optim.SGD(groups)
    wl.torch.scale_lr(optimizer, 2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 2.0])


def test_it_combines_with_another_scheduler():
    optimizer = sgd()
    schedulers = [wl.torch.scale_lr(optimizer, 3, warmup_steps=2), StepLR(optimizer, step_size=3, gamma=0.1)]
    assert rates(optimizer, schedulers, 6) == pytest.approx([0.1, 0.2, 0.3, 0.03, 0.03, 0.03])


@pytest.mark.parametrize("at", [0, 2, 5])
@pytest.mark.parametrize("warmup", [0, 4])
def test_it_goes_on_from_a_state_dict(at, warmup):
    optimizer = sgd()
    scheduler = wl.torch.scale_lr(optimizer, 8, warmup_steps=warmup)
    rates(optimizer, [scheduler], at)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    expected = rates(optimizer, [scheduler], 5)
    resumed = sgd()
    again = wl.torch.scale_lr(resumed, 2)
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    assert rates(resumed, [again], 5) == pytest.approx(expected)


@pytest.mark.parametrize(("factor", "warmup"), [(0, 0), (-1, 0), (float("nan"), 0), ("2", 0), (2, -1), (2, 1.5)])
def test_numbers_out_of_range_are_refused(factor, warmup):
    with pytest.raises(wl.UsageError, match="scale_lr expects"):
        wl.torch.scale_lr(sgd(), factor, warmup_steps=warmup)
    with pytest.raises(wl.UsageError, match=r"torch\.optim\.Optimizer, got Sequential"):
        wl.torch.scale_lr(mlp(), 2)
