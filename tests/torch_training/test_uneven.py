"""Workers that do not do the same number of things. Who waits in vain hears of it at once, not after `timeout`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import windlass as wl

TIMEOUT_SECONDS = 150.0
SOON_SECONDS = 50.0


@pytest.fixture(scope="module", params=["threads", "processes"])
def pair(request):
    with wl.Cluster(engine=request.param, servers=2, workers=2, timeout=TIMEOUT_SECONDS) as cluster:
        yield cluster


def train(store, steps, **options):
    model = nn.Linear(3, 2)
    optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), store, **options)
    for _ in range(steps[store.rank]):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    return True


def assert_fails_soon(cluster, match, function, *args, **kwargs):
    began = time.monotonic()
    with pytest.raises(wl.UsageError, match=match):
        cluster.run(function, *args, **kwargs)
    assert time.monotonic() - began < SOON_SECONDS


@pytest.mark.parametrize("mode", ["store", "allreduce"])
def test_a_worker_with_more_steps_hears_that_the_other_has_finished(pair, mode):
    wanted = r"worker-1 has finished its function and makes no further step; worker-0 waits for its push \d+ on 'optim"
    assert_fails_soon(pair, wanted, train, (7, 6), mode=mode)
    assert pair.run(train, (2, 2)) == [True, True]  # the next run is a run like any other


def test_a_worker_that_steps_once_does_not_hold_up_one_that_steps_twice(pair):
    assert_fails_soon(pair, "worker-0 has finished its function", train, (1, 2))


def test_a_worker_that_never_makes_its_optimizer_is_named(pair):
    def only_rank_0(store):
        if store.rank == 0:
            train(store, (3, 3))

    assert_fails_soon(pair, "worker-1 has finished its function.* worker-0 waits to hear from it", only_rank_0)


def test_a_barrier_that_one_worker_does_not_come_to_ends(pair):
    def only_rank_1(store):
        if store.rank == 1:
            store.barrier()

    wanted = r"worker-0 has finished .* worker-1 waits for it at barrier\(\)\. Let all .*call barrier\(\) equally often"
    assert_fails_soon(pair, wanted, only_rank_1)


def test_a_key_that_only_the_second_worker_creates_ends(pair):
    def only_rank_1(store):
        if store.rank == 1:
            store.create("lonely", torch.ones(3))

    assert_fails_soon(pair, r"worker-0 has finished its function: create\('lonely'\).* waits in vain", only_rank_1)


def test_a_collective_that_one_worker_does_not_come_to_ends(pair):
    def uneven(store):
        group = wl.Group(store)
        if store.rank == 0:
            group.allreduce(torch.ones(3))

    assert_fails_soon(pair, r"allreduce.*rank 1 \(pid \d+\) has finished its function", uneven)


def test_a_bounded_store_hears_of_it_when_the_delay_is_used_up(pair):
    def uneven(store, extra):
        store.create("count", torch.zeros(3), update="add", consistency=wl.Bounded(2))
        for _ in range(3 + extra * (store.rank == 0)):
            store.pushpull("count", torch.ones(3))
        return True

    assert pair.run(uneven, 2) == [True, True]
    assert_fails_soon(pair, "worker-1 has finished its function.* waits for its push 7 on 'count'", uneven, 3)


def test_what_a_finished_worker_has_pushed_still_counts(pair):
    """It may be on its way, or wait for its turn, when its function returns."""

    def ahead(store):
        store.create("w", torch.zeros(3))
        if store.rank == 0:
            time.sleep(0.3)  # the other has finished by then
            return [float(store.pushpull("w", torch.ones(3))[0]) for _ in range(20)]
        for _ in range(20):
            store.push("w", torch.ones(3))
            store.pull("w", wait=False)  # the next push waits for it
        return []

    assert pair.run(ahead)[0] == [2.0] * 20


def test_what_a_worker_said_in_an_earlier_exchange_is_not_taken_for_what_it_says_now():
    was_told = threading.Event()

    def leaves(store):
        first = store.exchange(bytes([store.rank]))
        if store.rank == 0:
            store.close()
            was_told.wait(60)  # it has left, and has not finished
            return first
        with pytest.raises(wl.ClusterError, match="worker-0 left"):
            store.exchange(b"x")
        was_told.set()
        return first

    with wl.Cluster(engine="threads", workers=2, timeout=TIMEOUT_SECONDS) as cluster:
        assert cluster.run(leaves) == [[b"\0", b"\1"]] * 2


def test_what_a_worker_said_alone_in_a_run_that_failed_is_not_counted_in_the_next():
    def fails(store):
        store.exchange(b"a")
        if store.rank == 1:
            time.sleep(0.5)  # the other has said it by then
            raise ValueError("enough")
        store.exchange(b"b")

    with wl.Cluster(workers=2, timeout=30) as cluster:
        for _ in range(2):
            with pytest.raises(ValueError, match="enough"):
                cluster.run(fails)
        assert cluster.run(lambda store: store.exchange(bytes([store.rank]))) == [[b"\0", b"\1"]] * 2


# --- scripts: a worker whose script has ended has left, and rounds go on ---------------------------------------------

SCRIPT = """
import sys, time, torch, windlass as wl
from torch import nn

first_to_go, clips, has_optimizer = int(sys.argv[1]), sys.argv[2] == "clip", sys.argv[3] == "optimizer"
store = wl.connect()
torch.manual_seed(0)
model = nn.Linear(3, 2)
if has_optimizer or store.rank != first_to_go:
    optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), store)
    for step in range(6 if store.rank == first_to_go else 10):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).mean().backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    if store.rank != first_to_go:
        print("weight", model.weight.detach().flatten().tolist())
else:
    while not any(key.startswith("windlass/exchange") for key in store.status()["keys"]):  # the other waits
        time.sleep(0.05)
"""


def run_script(tmp_path, *arguments):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    windlass = os.path.join(os.path.dirname(sys.executable), "windlass")
    command = [windlass, "run", "--servers", "2", "--workers", "2", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


@pytest.mark.parametrize(("goes", "clips"), [(1, "plain"), (0, "clip")])
def test_rounds_go_on_without_a_worker_whose_script_has_ended(tmp_path, goes, clips):
    done = run_script(tmp_path, str(goes), clips, "optimizer")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"worker-{goes} has left; rounds go on with 1 worker") == 1
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).mean().backward()
        if clips == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    said = json.loads(done.stdout.split("weight ")[1])
    torch.testing.assert_close(torch.tensor(said), model.weight.detach().flatten())


def test_a_script_that_ends_before_its_optimizer_is_named_by_those_who_need_it(tmp_path):
    done = run_script(tmp_path, "1", "plain", "none")
    assert done.returncode == 1
    assert "worker-1 left before it came to where every worker is needed" in done.stderr
