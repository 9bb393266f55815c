"""An optimizer that goes on with what the store has of an earlier one."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

import windlass as wl

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(8, 6, generator=GENERATOR)
Y = torch.randn(8, 3, generator=GENERATOR)
START = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
ADAM = {"lr": 0.05}


def optimize(store, model, **options):
    adam = torch.optim.Adam(model.parameters(), **ADAM)
    return wl.torch.Optimizer(adam, store, named_parameters=model.named_parameters(), **options)


def train(store, until, **options):
    """Steps until the servers have made so many, whichever run made the first of them; and the values then."""
    model = copy.deepcopy(START)
    optimizer = optimize(store, model, **options)
    began = optimizer.version
    for step in range(began, until):
        advance(store, model, optimizer, step)
    return began, [one.detach().clone() for one in model.parameters()]


def advance(store, model, optimizer, step, most=None):
    part = slice(4 * store.rank, 4 * store.rank + 4)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(X[part] + step / 10), Y[part]).backward()
    if most is not None:
        nn.utils.clip_grad_norm_(model.parameters(), most)
    optimizer.step()


@pytest.fixture(scope="module")
def expected():
    """After ten steps that nothing has interrupted."""
    with wl.Cluster(engine="threads", servers=2, workers=2) as cluster:
        return cluster.run(train, 10)[0][1]


def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_been(expected, tmp_path):
    with wl.Cluster(engine="threads", servers=2, workers=2) as cluster:
        assert cluster.run(train, 4, resume=True)[0][0] == 0  # nothing to go on with
        cluster.store().save(tmp_path)
    with wl.Cluster(engine="threads", servers=3, workers=2) as cluster:
        cluster.store().load(tmp_path)
        for began, found in cluster.run(train, 10, resume=True):
            assert began == 4
            assert all(map(torch.equal, found, expected))


def test_it_goes_on_from_an_earlier_run_of_the_same_cluster(expected):
    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        cluster.run(train, 3)
        cluster.run(train, 7, resume=True)
        found = cluster.run(train, 10, resume=True)
        assert [began for began, _ in found] == [7, 7]
        assert all(map(torch.equal, found[1][1], expected))


def test_without_it_a_run_begins_with_the_values_of_its_model(expected):
    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        cluster.run(train, 3)
        began, found = cluster.run(train, 10)[0]
        assert began == 0
        assert all(map(torch.equal, found, expected))


def test_a_server_that_is_lost_costs_the_steps_since_the_checkpoint_and_no_more(expected, tmp_path):
    def work(store, victim, folder):
        model = copy.deepcopy(START)
        optimizer = optimize(store, model, resume=True)
        began = optimizer.version
        for step in range(began, 10):
            advance(store, model, optimizer, step)
            if store.rank == 0 and began == 0 and step == 5:
                store.save(folder)
            if store.rank == 0 and began == 0 and step == 7:
                os.kill(victim, signal.SIGKILL)
        return began, [one.detach().clone() for one in model.parameters()]

    with wl.Cluster(servers=1, workers=2, on_server_loss="restore") as cluster:
        victim = next(node.pid for node in cluster.nodes() if node.role == "server")
        for began, found in cluster.run(work, victim, str(tmp_path)):
            assert began == 6
            assert all(map(torch.equal, found, expected))


def test_a_model_is_saved_after_one_round_also_in_the_middle_of_a_long_backward(tmp_path):
    is_slow = threading.Event()

    def rest(*_):
        is_slow.set()
        time.sleep(3.0)

    def slowly(store):
        model = copy.deepcopy(START)
        optimizer = optimize(store, model, bucket_bytes=0)  # a key for each parameter
        for step in range(4):
            if step == 3:  # from the third step on gradients leave during backward
                model[1].register_full_backward_hook(rest)
            advance(store, model, optimizer, step)

    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        run = threading.Thread(target=cluster.run, args=(slowly,))
        run.start()
        assert is_slow.wait(60)
        time.sleep(0.2)
        ahead = [cluster.store().version(f"optimizer/{name}") for name in ("2.weight", "0.weight")]
        saved = wl.checkpoint.Reader(cluster.store().save(tmp_path))
        run.join()
    assert ahead == [4, 3]
    moments = {str(key.moment) for name, key in saved.keys.items() if "gradient" not in name}
    assert moments == {"the state after round 4"}


def test_gradients_that_are_clipped_stay_those_of_one_process_after_it(tmp_path):
    def clip(store, until, **options):
        model = copy.deepcopy(START)
        optimizer = optimize(store, model, **options)
        for step in range(optimizer.version, until):
            advance(store, model, optimizer, step, most=0.1)
        return [one.detach().clone() for one in model.parameters()]

    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        whole = cluster.run(clip, 8)[0]
        cluster.run(clip, 4)
        for found in cluster.run(clip, 8, resume=True):
            assert all(map(torch.equal, found, whole))


def test_leased_work_and_values_go_on_together(tmp_path):
    size, batch_size = 64, 4

    def work(store, until, **options):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = wl.torch.Optimizer(sgd, store, named_parameters=model.named_parameters(), **options)
        for number, batch in enumerate(store.batches(size, batch_size=batch_size, global_batch=8, name="work")):
            (-batch.weight * model(torch.ones(len(batch.indices), 1)).mean()).backward()  # a step adds 1
            if batch.is_last:
                optimizer.step(completes=batch)
                optimizer.zero_grad()
            if until and number + 1 >= until:
                break
        return store.version(f"{optimizer.name}/weight")

    with wl.Cluster(engine="threads", servers=2, workers=1) as cluster:
        assert cluster.run(work, 6)[0] == 3
        cluster.store().save(tmp_path)
    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        cluster.store().load(tmp_path)
        cluster.run(work, 0, resume=True)
        assert cluster.store().version("optimizer/weight") == size // 8
        assert cluster.store().pull("optimizer/weight").tolist() == [size // 8]


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.first(x))


PARTLY = Partly()


def test_parameters_that_took_no_part_keep_the_models_values(tmp_path):
    def partly(store, until):
        model = copy.deepcopy(PARTLY)
        optimizer = optimize(store, model, resume=True)
        began = optimizer.version
        for step in range(began, until):
            advance(store, model, optimizer, step)
        assert torch.equal(model.unused.weight, PARTLY.unused.weight)
        return began, model.first.weight.detach().clone()

    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        _, whole = cluster.run(partly, 5)[0]
    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        cluster.run(partly, 2)
        for began, found in cluster.run(partly, 5):
            assert began == 2
            assert torch.equal(found, whole)


def test_an_optimizer_that_begins_anew_leaves_the_keys_of_others_alone():
    def both(store, until, **options):
        first, second = (copy.deepcopy(START) for _ in range(2))
        optimize(store, first)
        optimizer = optimize(store, second, name="second", **options)
        began = optimizer.version
        for step in range(began, until):
            advance(store, second, optimizer, step)
        return began

    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        assert cluster.run(both, 3) == [0, 0]
        assert cluster.run(train, 1)[0][0] == 0  # somebody else in between
        assert cluster.run(both, 5, resume=True) == [3, 3]


def test_another_model_of_the_same_name_is_refused():
    def make(store, model, **options):
        names = [f"p{number}" for number in range(len(list(model.parameters())))]
        adam, named = torch.optim.Adam(model.parameters(), **ADAM), zip(names, model.parameters(), strict=True)
        return wl.torch.Optimizer(adam, store, named_parameters=named, bucket_bytes=0, **options)

    def partly(store):
        model = copy.deepcopy(PARTLY)
        advance(store, model, make(store, model), 0)

    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        cluster.run(partly)
        with pytest.raises(wl.UsageError, match="'optimizer' of a model of 6 parameters, this one has 2"):
            cluster.run(lambda store: make(store, nn.Linear(6, 5), resume=True))


def test_keys_of_other_buckets_are_refused():
    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        cluster.run(train, 1)
        with pytest.raises(wl.UsageError, match=r"resume=True: the store has 'optimizer/0\.weight\.\.2\.bias', which"):
            cluster.run(train, 2, resume=True, bucket_bytes=0)


def test_other_rates_than_declared_are_refused_by_name():
    def faster(store):
        model = copy.deepcopy(START)
        adam = torch.optim.Adam(model.parameters(), lr=0.5)
        wl.torch.Optimizer(adam, store, named_parameters=model.named_parameters(), resume=True)

    with wl.Cluster(engine="threads", servers=1, workers=1) as cluster:
        cluster.run(train, 1)
        with pytest.raises(wl.UsageError, match=r"optimizer/0\.weight.*declared already.*0\.05.*0\.5"):
            cluster.run(faster)


def test_some_keys_of_a_first_step_are_not_gone_on_with(expected, caplog):
    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster:
        cluster.run(train, 2, bucket_bytes=0)
        cluster.store().delete("optimizer/0.bias")
        began, found = cluster.run(train, 10, resume=True, bucket_bytes=0)[0]
        assert began == 0
        assert all(map(torch.equal, found, expected))
    assert "'optimizer' begins anew: the store has not all keys" in caplog.text


def test_it_needs_values_on_the_servers():
    store = wl.Store()
    model = copy.deepcopy(START)
    with pytest.raises(wl.UsageError, match="resume=True expects mode='store'"):
        optimize(store, model, mode="allreduce", resume=True)
    with pytest.raises(wl.UsageError, match="version expects mode='store'"):
        _ = optimize(store, model, mode="allreduce").version


def test_workers_that_differ_in_it_are_told():
    with wl.Cluster(engine="threads", servers=1, workers=2) as cluster, pytest.raises(wl.UsageError) as told:
        cluster.run(lambda store: train(store, 1, resume=store.rank == 0))
    assert "worker-1 has resume=False, worker-0 resume=True" in str(told.value)
