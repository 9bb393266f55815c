"""Workers that do other things than the others within a step: an error that says so, never a wait until the timeout."""

from __future__ import annotations

import copy
import threading
import time

import pytest
import torch
from torch import nn

import windlass as wl
from windlass.torch.charter import Charter, Draft, Terms

MODES = ["store", "allreduce"]
START = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))


class Failing(nn.Module):
    """Its backward fails, when told to, after the last layer has its gradients."""

    def __init__(self):
        super().__init__()
        self.layers, self.fails = copy.deepcopy(START), False

    def forward(self, x):
        hidden = self.layers[0](x)
        if self.fails:
            hidden.register_hook(self._fail)
        return self.layers[1](hidden)

    def _fail(self, grad):
        raise RuntimeError("no backward today")


def optimize(model, store, mode, **options):
    return wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), store, mode=mode, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counts", [(2, 1), (1, 2)])
def test_other_accumulation_counts_in_the_first_step_are_an_error(two, mode, counts):
    def train(store):
        model = copy.deepcopy(START)
        optimizer = optimize(model, store, mode)
        for _ in range(counts[store.rank]):
            model(torch.ones(4, 3)).mean().backward()
        optimizer.step()

    with pytest.raises(wl.UsageError, match="run backward\\(\\) equally often before a step"):
        two.run(train)


def unlike(store, kind, when, who, how):
    """From step `when` on, this worker runs another number of backwards than the other."""
    model = copy.deepcopy(START)
    if kind == "wrap":
        run, optimizer = wl.torch.wrap(model, store), torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        run, optimizer = model, optimize(model, store, kind, overlap=False)
    for step in range(12):
        optimizer.zero_grad()
        is_unlike = store.rank == who and (step >= when if how == "for good" else step == when)
        for _ in range(2 if is_unlike else 1):
            run(torch.ones(4, 3)).mean().backward()
        optimizer.step()
        reached[store.rank] = step


reached = {}


@pytest.mark.parametrize("kind", [*MODES, "wrap"])
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("how", ["once", "for good"])
def test_other_accumulation_counts_later_are_an_error_at_once(two, kind, who, how):
    """Never one worker's k-th gradient with another's (k+1)-th."""
    wanted = (
        r"workers are not at the same step, because one ran backward\(\) more often.* of '\w+/(gradient/0\.\w+|seats).*"
        r"worker-0 \{'step': \d.*worker-1 \{'step': \d.* equally often before a step"
    )
    reached.clear()
    with pytest.raises(wl.UsageError, match=wanted):
        two.run(unlike, kind, 5, who, how)
    assert max(reached.values()) <= 5


@pytest.mark.parametrize("mode", MODES)
def test_accumulation_inside_no_sync_may_differ(two, mode):
    def train(store):
        model = copy.deepcopy(START)
        optimizer = optimize(model, store, mode)
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.no_sync():
                for _ in range(store.rank):
                    model(torch.ones(4, 3)).mean().backward()
            model(torch.ones(4, 3)).mean().backward()
            optimizer.step()
        return model[0].weight.detach().clone()

    first, second = two.run(train)
    assert torch.equal(first, second)
    assert not torch.equal(first, START[0].weight)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("who", [0, 1])
def test_clipping_in_one_worker_only_is_an_error_that_gives_both_norms(two, mode, who):
    def train(store):
        model = copy.deepcopy(START)
        optimizer = optimize(model, store, mode)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            if store.rank == who:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    with pytest.raises(wl.UsageError, match=r"norm .* in worker-0 and .* in worker-1.* must be done in every worker"):
        two.run(train)


@pytest.mark.parametrize("kind", [*MODES, "wrap"])
@pytest.mark.parametrize("who", [(0, 1), (1,)])
@pytest.mark.parametrize("when", [0, 3])
def test_a_backward_that_fails_midway_and_is_run_again_is_right_or_an_error(two, kind, who, when):
    def train(store):
        model = Failing()
        if kind == "wrap":
            run, optimizer = wl.torch.wrap(model, store, bucket_bytes=0), torch.optim.SGD(model.parameters(), lr=0.1)
        else:
            run, optimizer = model, optimize(model, store, kind, bucket_bytes=0)
        for step in range(5):
            optimizer.zero_grad()
            if step == when and store.rank in who:
                model.fails = True
                with pytest.raises(RuntimeError, match="no backward today"):
                    run(torch.ones(4, 3)).mean().backward()
                model.fails = False
                optimizer.zero_grad()
            run(torch.ones(4, 3)).mean().backward()
            optimizer.step()
        return model.layers[0].weight.detach().clone()

    if when:
        with pytest.raises(wl.UsageError, match=r"gradient of .* had left"):
            two.run(train)
        return
    plain = copy.deepcopy(START)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        plain(torch.ones(4, 3)).mean().backward()
        optimizer.step()
    for found in two.run(train):
        torch.testing.assert_close(found, plain[0].weight.detach())


def test_terms_that_came_while_their_writer_finished_are_found(two):
    """Who looks too early, and then hears that the writer has finished, looks once more."""
    looked = threading.Event()

    class Slow(Charter):
        """What it sees of the store is old by the time it decides."""

        def _read(self, key):
            found = super()._read(key)
            if self._store.rank == 1 and found is None:
                looked.set()
                until = time.monotonic() + 10
                while 0 not in self._store.finished_ranks and time.monotonic() < until:
                    time.sleep(0.001)
            return found

    def agree(store):
        if store.rank == 0:
            assert looked.wait(10)
        terms = Slow(store, 7).agree("something", lambda: Draft(Terms({"who": store.rank}, []), [], None))
        return terms.agreed

    assert two.run(agree) == [{"who": 0}, {"who": 0}]
