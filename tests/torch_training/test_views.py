"""Gradients that are views of memory which the servers read: the same results, and nothing is copied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import windlass as wl

from .problem import Net, assert_close, batches, loss_of, share, values

KINDS = ("store", "allreduce", "wrap")


def make(model, store, kind, **options):
    """What forward runs through, and the optimizer."""
    torchs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if store is None:
        return model, torchs
    options.setdefault("gradient_as_bucket_view", True)
    if kind == "wrap":
        return wl.torch.wrap(model, store, **options), torchs
    return model, wl.torch.Optimizer(torchs, store, mode=kind, named_parameters=model.named_parameters(), **options)


def train(store, kind="store", *, passes=1, set_to_none=True, clips=False, is_quiet=False, **options):
    model = Net()
    run, optimizer = make(model, store, kind, **options)
    data = iter(batches(7 * passes))
    places = []
    for _ in range(7):
        optimizer.zero_grad(set_to_none=set_to_none)
        for index in range(passes):
            batch = share(store, *next(data))
            if is_quiet and store is not None and index < passes - 1:
                with (run if kind == "wrap" else optimizer).no_sync():
                    loss_of(run, *batch).backward()
            else:
                loss_of(run, *batch).backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        grads = [parameter.grad for parameter in model.parameters()]
        places.append(None if grads[0] is None else [grad.data_ptr() for grad in grads])
    return values(model), places, repr(optimizer)


@pytest.mark.parametrize("set_to_none", [True, False], ids=["none", "zeroed"])
@pytest.mark.parametrize("clips", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize(("passes", "is_quiet"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_that_of_gradients_of_their_own(two, kind, passes, is_quiet, clips, set_to_none):
    how = {"passes": passes, "is_quiet": is_quiet, "clips": clips, "set_to_none": set_to_none}
    without = two.run(train, kind, gradient_as_bucket_view=False, **how)
    for (got, places, shown), (same, _, _) in zip(two.run(train, kind, **how), without, strict=True):
        assert all(torch.equal(got[name], same[name]) for name in same)
        assert kind != "store" or ("averaged" if clips else "early") in shown
        used = {tuple(each) for each in places[2:]}
        assert len(used) == (1 if kind == "store" and not clips else 2)  # the buffers of the key
    assert_close(two.run(train, kind, **how)[0][0], train(None, **how)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_in_shared_memory_what_is_zeroed_and_added_to_is_not_copied(kind):
    """Real processes: what autograd adds to is the memory that the servers map."""

    def work(store):
        from windlass.torch import lane

        copied = []
        copy = lane.copy_gradient

        def counting(into, grad):
            copied.append(grad.numel())
            copy(into, grad)

        lane.copy_gradient = counting
        try:
            want = train(store, kind, passes=2, set_to_none=False)
        finally:
            lane.copy_gradient = copy
        return want[0], len(copied)

    want = train(None, passes=2, set_to_none=False)[0]
    with wl.Cluster(servers=2, workers=2, timeout=30) as cluster:
        for got, copies in cluster.run(work):
            assert_close(got, want)
            # Each of the 4 parameters while there is no view of it: in the rehearsal, which has two kinds of keys.
            assert copies <= (4 * 8 if kind == "store" else 4)


@pytest.mark.parametrize("consistency", [wl.Bounded(2), wl.Eventual()], ids=str)
def test_one_worker_without_rounds_trains_as_the_plain_loop(consistency):
    for clips in (False, True):
        with wl.Store(consistency=consistency) as store:
            got = train(store, clips=clips, set_to_none=False)[0]
        assert_close(got, train(None, clips=clips, set_to_none=False)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_after_backward_a_view_shows_the_mean_where_the_plan_averages(two, kind):
    def work(store):
        model = nn.Linear(2, 1, bias=False)
        run, optimizer = make(model, store, kind)
        for _ in range(4):
            optimizer.zero_grad(set_to_none=False)
            run(torch.full((1, 2), 1.0 + store.rank)).sum().backward()
            shown = model.weight.grad.tolist()
            nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
        return shown

    assert two.run(work) == [[[1.5, 1.5]]] * 2


def test_zeroing_what_has_left_is_an_error_before_it_is_done(two):
    def work(store):
        model = Net()
        run, optimizer = make(model, store, "store")
        for step in range(4):
            loss_of(run, *share(store, *batches(1)[0])).backward()
            if step == 3:
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    with pytest.raises(wl.UsageError, match=r"worker-\d: zero_grad\(\) between .* of 'second\.\w+' had left"):
        two.run(work)


def test_bfloat16_and_unused_parameters_may_have_views(two):
    def work(store, **options):
        model = Net(dtype=torch.bfloat16)
        model.extra = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        run, optimizer = make(model, store, "allreduce", find_unused_parameters=True, **options)
        for step, (x, y) in enumerate(batches(5, torch.bfloat16)):
            optimizer.zero_grad(set_to_none=bool(step % 2))
            loss = loss_of(run, *share(store, x, y))
            if step == 3 and store.rank == 1:
                loss = loss + model.extra.sum()
            loss.backward()
            optimizer.step()
        return values(model)

    for got, same in zip(two.run(work), two.run(work, gradient_as_bucket_view=False), strict=True):
        assert all(torch.equal(got[name], same[name]) for name in same)
        assert not torch.equal(got["extra"], torch.ones(3, dtype=torch.bfloat16))


def test_gradients_outlive_the_optimizer_they_were_views_for(two):
    def work(store):
        model = Net()
        for _ in range(2):  # the second deletes the first one's keys
            run, optimizer = make(model, store, "allreduce", name="views")
            for x, y in batches(3):
                loss_of(run, *share(store, x, y)).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        return values(model)

    one, other = two.run(work)
    assert_close(one, other, atol=0)
