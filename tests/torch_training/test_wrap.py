"""The DDP-shaped form, and training without waiting for everybody."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import windlass as wl

from .problem import BATCH, Net, assert_close, batches, loss_of, share, values


def train(store, is_quiet=False, passes=1):
    model = Net(seed=0 if store is None else store.rank)
    wrapped = model if store is None else wl.torch.wrap(model, store)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    data = iter(batches(6 * passes))
    for _ in range(6):
        optimizer.zero_grad()
        for index in range(passes):
            x, y = share(store, *next(data))
            if is_quiet and store is not None and index < passes - 1:
                with wrapped.no_sync():
                    loss_of(wrapped, x, y).backward()
            else:
                loss_of(wrapped, x, y).backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 0.1)
        optimizer.step()
    return values(model)


@pytest.mark.parametrize(("is_quiet", "passes"), [(False, 1), (False, 2), (True, 3)])
def test_a_wrapped_model_trains_as_in_one_process_with_any_optimizer(two, is_quiet, passes):
    want = train(None, is_quiet, passes)
    for got in two.run(train, is_quiet, passes):
        assert_close(got, want)


def test_buffers_begin_as_rank_0s_and_can_be_shared_again(two):
    def work(store):
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
        model[1].running_mean.fill_(float(store.rank + 1))
        wrapped = wl.torch.wrap(model, store)
        begun = model[1].running_mean.clone()
        wrapped(torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(store.rank)))
        moved = model[1].running_mean.clone()
        wrapped.share_buffers()
        return begun, moved, model[1].running_mean.clone(), int(model[1].num_batches_tracked)

    one, other = two.run(work)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[0], torch.full((4,), 1.0))
    assert not torch.equal(one[1], other[1])
    assert torch.equal(one[2], other[2])
    assert torch.equal(one[2], one[1])


def test_buffers_of_any_dtype_are_shared(two):
    def work(store):
        model = nn.Linear(3, 1)
        rank = store.rank
        model.register_buffer("mask", torch.full((2, 2), bool(rank)))
        model.register_buffer("turn", torch.full((2,), complex(rank, rank)))
        model.register_buffer("wide", torch.full((1, 4), float(rank)).expand(3, 4))
        model.register_buffer("none", torch.empty(0))
        wl.torch.wrap(model, store)
        return model.mask.any().item(), model.turn.abs().sum().item(), model.wide.sum().item(), model.wide.shape

    assert two.run(work) == [(False, 0.0, 0.0, (3, 4))] * 2


def test_state_dicts_have_the_names_that_ddp_gives(two):
    def work(store):
        wrapped = wl.torch.wrap(Net(), store)
        return sorted(wrapped.state_dict()), repr(wrapped)

    names, shown = two.run(work)[0]
    assert names == ["module.first.bias", "module.first.weight", "module.second.bias", "module.second.weight"]
    assert "worker-0 of 2" in shown


def test_two_models_train_on_one_store_under_names_of_their_own(two):
    def work(store):
        models = [Net(seed=7), Net(seed=8)]
        optimizers = [
            wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), store, name=name)
            for model, name in zip(models, ("generator", "critic"), strict=True)
        ]
        for x, y in batches(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss_of(model, *share(store, x, y)).backward()
                optimizer.step()
        return [values(model) for model in models]

    got = two.run(work)
    for index in range(2):
        assert_close(got[0][index], got[1][index], atol=0)


def test_a_second_run_begins_from_its_own_models_not_from_what_the_servers_kept(two):
    first = two.run(train)
    again = two.run(train)
    for one, other in zip(first, again, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("consistency", [wl.Bounded(1), wl.Bounded(4), wl.Eventual()], ids=str)
@pytest.mark.parametrize("clips", [False, True], ids=["early", "at step"])
def test_training_converges_without_rounds(consistency, clips):
    def work(store):
        model = Net(seed=store.rank)
        optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.5), store)
        x, y = share(store, *batches(1)[0])
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses, repr(optimizer)

    with wl.Cluster(engine="threads", servers=2, workers=3, consistency=consistency, timeout=20) as cluster:
        for losses, shown in cluster.run(work):
            assert losses[-1] < 0.5 * losses[0]
            assert ("at step" if clips else "early") in shown


def test_one_worker_without_rounds_is_the_plain_loop():
    model = Net()
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    other = Net()
    with wl.Store(consistency=wl.Eventual()) as store:
        optimizer = wl.torch.Optimizer(torch.optim.Adam(other.parameters(), lr=0.01), store)
        for x, y in batches(6):
            for net, stepper in ((model, plain), (other, optimizer)):
                stepper.zero_grad()
                loss_of(net, x, y).backward()
                stepper.step()
    assert_close(values(other), values(model))
