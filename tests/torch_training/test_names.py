"""Several optimizers and models on one store: what their keys are called, and what becomes of them."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

import windlass as wl

START = nn.Linear(3, 2)


def optimizer_of(model, store, lr=0.1, **options):
    return wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=lr), store, **options)


def step(model, optimizer, scale=1.0):
    optimizer.zero_grad()
    (scale * model(torch.ones(4, 3)).mean()).backward()
    optimizer.step()


def plainly(scale, steps):
    model = copy.deepcopy(START)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        step(model, optimizer, scale)
    return model.weight.detach()


@pytest.mark.parametrize("mode", ["store", "allreduce"])
def test_two_optimizers_without_names_do_not_share_keys(two, mode):
    """As a GAN has them: equal shapes, other gradients."""

    def train(store):
        models = [copy.deepcopy(START), copy.deepcopy(START)]
        optimizers = [optimizer_of(model, store, mode=mode) for model in models]
        for _ in range(4):
            for scale, model, optimizer in zip((1.0, -2.0), models, optimizers, strict=True):
                step(model, optimizer, scale)
        return [one.name for one in optimizers], [model.weight.detach().clone() for model in models]

    for names, weights in two.run(train):
        assert names[1] == f"{names[0]}-2" if names[0] == "optimizer" else len(set(names)) == 2
        torch.testing.assert_close(weights[0], plainly(1.0, 4))
        torch.testing.assert_close(weights[1], plainly(-2.0, 4))


def test_two_wrapped_models_without_names_do_not_share_keys(two):
    def train(store):
        models = [copy.deepcopy(START), copy.deepcopy(START)]
        wrapped = [wl.torch.wrap(model, store) for model in models]
        for scale, model in zip((1.0, -2.0), wrapped, strict=True):
            (scale * model(torch.ones(4, 3)).mean()).backward()
        return [model.weight.grad[0, 0].item() for model in models]

    assert two.run(train) == [[0.5, -1.0]] * 2


def test_a_second_optimizer_of_the_same_name_takes_over_and_the_first_says_so():
    with wl.Store() as store:
        models = [copy.deepcopy(START), copy.deepcopy(START)]
        first, second = (optimizer_of(model, store, name="main") for model in models)
        step(models[1], second)
        torch.testing.assert_close(models[1].weight.detach(), plainly(1.0, 1))
        with pytest.raises(wl.UsageError, match="'main', is closed, or another of its name"):
            first.step()


def test_a_second_wrapped_model_of_the_same_name_takes_over_and_the_first_says_so():
    with wl.Store() as store:
        first, _ = (wl.torch.wrap(copy.deepcopy(START), store, name="main") for _ in range(2))
        with pytest.raises(wl.UsageError, match="another model took over the name 'main'"):
            first(torch.ones(4, 3))
        with torch.no_grad():
            assert first(torch.ones(4, 3)).shape == (4, 2)


def test_a_name_is_free_again_when_its_optimizer_is_closed_dropped_or_made_anew():
    with wl.Store() as store:
        model = copy.deepcopy(START)
        first = optimizer_of(model, store)
        anew = optimizer_of(model, store)  # over the same parameters
        assert anew.name == first.name == "optimizer"
        anew.close()
        other = optimizer_of(copy.deepcopy(START), store)
        assert other.name == "optimizer"
        assert optimizer_of(copy.deepcopy(START), store).name == "optimizer-2"
        del other, first, anew
        gc.collect()
        assert optimizer_of(copy.deepcopy(START), store).name == "optimizer"


@pytest.mark.parametrize("clips", [False, True])
def test_optimizers_that_are_gone_leave_no_keys_behind(two, clips):
    """Each has other buckets, hence keys of other names."""

    def train(store):
        counts = []
        for width in range(3, 9):
            model = nn.Sequential(nn.Linear(3, width), *(nn.Linear(width, width) for _ in range(width)))
            optimizer = optimizer_of(model, store, bucket_bytes=0)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                if clips:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
            store.barrier()
            counts.append((len(store.keys()), 2 + 2 * width))
            optimizer.close()
            store.barrier()
        return counts

    for counts in two.run(train):
        extra = {found - own for found, own in counts} if not clips else {found - 2 * own for found, own in counts}
        assert len(extra) == 1, counts


@pytest.mark.parametrize("kind", ["store", "allreduce", "wrap"])
def test_many_optimizers_made_and_dropped_hold_the_memory_of_a_few(kind):
    """Without waiting for Python's collector of circles."""

    def train(store):
        most = 0
        gc.disable()
        try:
            for _ in range(12):
                model = nn.Linear(50, 50)
                inner = torch.optim.SGD(model.parameters(), lr=0.1)
                made = wl.torch.wrap(model, store) if kind == "wrap" else optimizer_of(model, store, mode=kind)
                for _ in range(3):
                    (made if kind == "wrap" else model)(torch.ones(2, 50)).sum().backward()
                    (inner if kind == "wrap" else made).step()
                said = store.status()["servers"]["server-0"]["keys"]
                held = [key["value_bytes"] for name, key in said.items() if not name.startswith("windlass/")]
                most = max(most, sum(held))
        finally:
            gc.enable()
        return most

    with wl.Cluster(engine="threads", workers=2, timeout=20) as cluster:
        for most in cluster.run(train):
            assert most <= 4 * 4 * 2550  # two that are alive at a time, each with gradients and parameters
