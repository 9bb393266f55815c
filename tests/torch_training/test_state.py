"""Stopping and going on: the optimizer's state in torch's own form."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import windlass as wl

from .problem import Net, assert_close, batches, loss_of, share, values

OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}
MODES = ("store", "allreduce")


def train(store, make, mode, first, last, loaded=None, clips=False):
    model = Net()
    optimizer = make(model.parameters())
    if store is not None:
        optimizer = wl.torch.Optimizer(optimizer, store, mode=mode)
    if loaded is not None:
        loaded = copy.deepcopy(loaded)  # workers that are threads were given the same tensors
        model.load_state_dict(loaded[0])
        optimizer.load_state_dict(loaded[1])
        if store is not None:
            optimizer.share_parameters()
    for x, y in batches(last)[first:]:
        optimizer.zero_grad()
        loss_of(model, *share(store, x, y)).backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model.state_dict(), optimizer.state_dict()


def assert_same_state(got, want):
    assert got["param_groups"] == want["param_groups"]
    assert got["state"].keys() == want["state"].keys()
    for index, kept in want["state"].items():
        for name, value in kept.items():
            if value is None:
                continue
            torch.testing.assert_close(
                torch.as_tensor(got["state"][index][name]), torch.as_tensor(value), atol=1e-6, rtol=1e-4
            )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_is_what_torch_would_have(two, optimizer, mode):
    make = OPTIMIZERS[optimizer]
    _, want = train(None, make, mode, 0, 5)
    for _, got in two.run(train, make, mode, 0, 5):
        assert_same_state(got, want)


@pytest.mark.parametrize("clips", [False, True], ids=["early", "averaged"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_from_a_state_as_if_it_had_not_stopped(two, optimizer, mode, clips):
    make = OPTIMIZERS[optimizer]
    want, state = train(None, make, mode, 0, 9, clips=clips)
    halfway = two.run(train, make, mode, 0, 4, None, clips)[0]
    for model, got in two.run(train, make, mode, 4, 9, halfway, clips):
        assert_close(model, want, atol=5e-6)
        assert_same_state(got, state)


def test_a_plain_torch_optimizer_loads_the_servers_state(two):
    make = OPTIMIZERS["adam"]
    want, _ = train(None, make, "store", 0, 9)
    halfway = two.run(train, make, "store", 0, 4)[1]
    model, _ = train(None, make, "store", 4, 9, halfway)
    assert_close(model, want, atol=5e-6)


def test_one_worker_alone_may_save_while_the_others_go_on(two):
    def work(store):
        model = Net()
        optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), store)
        saved = None
        for step, (x, y) in enumerate(batches(6)):
            optimizer.zero_grad()
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
            if step == 2 and store.rank == 0:
                saved = optimizer.state_dict()
        return saved

    _, want = train(None, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "store", 0, 3)
    assert_same_state(two.run(work)[0], want)


def test_a_state_loaded_in_the_middle_of_training_counts_from_the_next_step(two):
    make = OPTIMIZERS["momentum"]
    early = train(None, make, "store", 0, 3)

    def work(store):
        model = Net()
        optimizer = make(model.parameters())
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store)
        for step, (x, y) in enumerate(batches(8)):
            if step == 5:
                model.load_state_dict(early[0])
                optimizer.load_state_dict(copy.deepcopy(early[1]))
                if store is not None:
                    optimizer.share_parameters()
            optimizer.zero_grad()
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
        return values(model)

    want = work(None)
    for got in two.run(work):
        assert_close(got, want, atol=5e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_states_of_other_dtypes_travel_too(two, dtype):
    def work(store):
        model = Net(dtype=dtype)
        optimizer = wl.torch.Optimizer(torch.optim.Adam(model.parameters(), lr=0.01), store)
        for x, y in batches(3, dtype):
            optimizer.zero_grad()
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        optimizer.share_parameters()
        again = optimizer.state_dict()
        return state, again

    for state, again in two.run(work):
        assert state["state"].keys() == again["state"].keys() == {0, 1, 2, 3}
        for index, kept in state["state"].items():
            for name, value in kept.items():
                torch.testing.assert_close(again["state"][index][name], value, atol=0.01, rtol=0.01)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["momentum", "adam", "nadam"])
def test_the_state_and_the_groups_that_rank_0_loads_are_everybodys(two, kind, mode):
    make = OPTIMIZERS[kind]

    def saved(steps, lr):
        model = Net()
        optimizer = make(model.parameters())
        for x, y in batches(steps):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        optimizer.param_groups[0]["lr"] = lr
        return copy.deepcopy(optimizer.state_dict())

    states = [saved(3, 0.03), {"state": {}, "param_groups": saved(1, 0.5)["param_groups"]}]

    def work(store, rank):
        model = Net()
        optimizer = make(model.parameters())
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store, mode=mode)
        optimizer.load_state_dict(copy.deepcopy(states[rank]))
        for x, y in batches(4):
            optimizer.zero_grad()
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
        return values(model)

    want = work(None, 0)
    for got in two.run(lambda store: work(store, store.rank)):
        assert_close(got, want, atol=5e-6)


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_the_state_of_a_parameter_that_was_never_used_is_as_torchs(two, options):
    """Adagrad has one from the start; the others have none."""

    def work(store, make):
        model = Net()
        model.unused = nn.Linear(2, 1)
        optimizer = make(model.parameters())
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store, **options)
        for x, y in batches(3):
            optimizer.zero_grad()
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
        return optimizer.state_dict()["state"]

    for make in (lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.5), OPTIMIZERS["momentum"]):
        want = work(None, make)
        for got in two.run(work, make):
            assert got.keys() == want.keys()
            for number, kept in want.items():
                assert got[number].keys() == kept.keys()
                for name, value in kept.items():
                    torch.testing.assert_close(got[number][name], value, atol=1e-5, rtol=1e-5)
