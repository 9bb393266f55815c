from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import windlass as wl
from tests.apps.sets import cut
from windlass.apps import lenet, report
from windlass.apps.fashion import SAMPLE, Data, Source, Split
from windlass.apps.plan import Plan, Seat

BATCH = 33  # two workers' shares are 17 and 16, four devices' 9, 8, 8 and 8
STEPS = 50
IMAGES = BATCH * STEPS - 10  # the last batch is smaller
TESTS = 121


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return cut(tmp_path_factory.mktemp("set"), train=IMAGES, test=TESTS)


Parameters = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def plain(source: Source) -> Parameters:
    """Where fifty steps of a loop as in any torch tutorial lead."""
    train, _ = source.load()
    images = torch.tensor(train.images)[:, None] / 255
    labels = torch.tensor(train.labels, dtype=torch.int64)
    network = lenet.lenet(0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2)
    order = torch.from_numpy(np.random.default_rng((0, 0)).permutation(IMAGES))
    for rows in order.split(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images[rows]), labels[rows]).backward()
        optimizer.step()
    return network.state_dict()


def train(source: Source, workers: int, devices: int, *, engine: str = "threads", **plan: object) -> list[Parameters]:
    """The parameters of every worker after an epoch."""
    asked = {"epochs": 1, "batch_size": BATCH, **plan}
    with wl.Cluster(servers=2, workers=workers, engine=engine, deterministic=True) as cluster:
        plan = Plan(source=source, devices=("cpu",) * (workers * devices), **asked)
        found = cluster.run(lenet.train, plan)
        steps, epochs = report.read(cluster.store(), tests=TESTS)
    assert [one.steps for one in steps] == [STEPS] * workers
    assert sum(one.images for one in steps) == IMAGES
    assert len(epochs) == 1
    return found


def assert_same(found: Parameters, expected: Parameters) -> None:
    """To float32 rounding: a thousandth of how far a parameter has come since its first value. Rounding alone is a
    hundredth of that; but where it moves an input of a ReLU across 0, a gradient jumps, on some processors."""
    for name, first in lenet.lenet(0).state_dict().items():
        moved = (expected[name] - first).abs().max()
        assert moved > 1e-5
        assert (found[name] - expected[name]).abs().max() < 1e-3 * moved, name


@pytest.mark.parametrize(
    ("workers", "devices", "options"),
    [
        (1, 1, {}),
        (2, 1, {"engine": "processes"}),
        (1, 2, {}),
        (2, 2, {}),
        (3, 1, {"mode": "allreduce"}),
    ],
    ids=["1 worker", "2 workers", "2 devices", "2 workers × 2 devices", "3 workers, allreduce"],
)
def test_fifty_steps_lead_where_the_plain_loop_leads(source, plain, workers, devices, options) -> None:
    for found in train(source, workers, devices, **options):
        assert_same(found, plain)


def test_the_loop_without_windlass_leads_there_too(source, plain) -> None:
    class Silent:
        def step(self, done: report.Steps) -> None: ...

        def epoch(self, number: int, share: report.Share) -> None:
            assert (share.images, share.tested) == (IMAGES, TESTS)

    assert_same(lenet.train_alone(Plan(source=source, epochs=1, batch_size=BATCH), Silent()), plain)


def test_two_deterministic_runs_are_the_same_bit_for_bit(source) -> None:
    one, two = (train(source, 3, 1) for _ in range(2))
    for found in (*one, *two):
        assert all(torch.equal(found[name], one[0][name]) for name in found)


def test_another_seed_leads_elsewhere(source, plain) -> None:
    with pytest.raises(AssertionError):
        assert_same(train(source, 1, 1, seed=1)[0], plain)


# --- sharing ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 400), st.integers(1, 9))
def test_shares_are_the_whole_and_differ_by_one_at_most(length, workers) -> None:
    rows = np.arange(length)
    shares = [Seat(rank, workers).share(rows) for rank in range(workers)]
    assert np.array_equal(np.concatenate(shares), rows)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 2**31))
def test_an_epoch_has_every_image_once_in_an_order_of_its_own(images, batch_size, seed) -> None:
    plan = Plan(source=Source(SAMPLE), batch_size=batch_size, seed=seed)
    first = list(plan.batches(images, 0))
    assert sorted(np.concatenate(first)) == list(range(images))
    assert {len(batch) for batch in first[:-1]} <= {batch_size}
    assert all(map(np.array_equal, first, plan.batches(images, 0)))
    if images > 20:
        assert not np.array_equal(np.concatenate(first), np.concatenate(list(plan.batches(images, 1))))


def test_the_test_is_shared_and_summed(tmp_path) -> None:
    """Three workers find what one finds alone, each on its own third."""
    source = cut(tmp_path, train=4, test=100)
    found = []
    for workers in (1, 3):
        with wl.Cluster(workers=workers, engine="threads") as cluster:
            plan = Plan(source=source, devices=("cpu",) * workers, epochs=2, batch_size=4)
            cluster.run(lenet.train, plan)
            found.append([(epoch.loss, epoch.accuracy) for epoch in report.read(cluster.store(), tests=100)[1]])
    assert np.allclose(found[0], found[1], rtol=1e-5)


def test_an_epoch_is_over_when_every_worker_has_tested() -> None:
    with wl.Store() as store:
        report.declare(store, workers=2, epochs=3)
        for rank, tested in ((0, 6), (1, 5)):
            assert report.read(store, tests=11)[1] == []
            row = report.row_of(
                report.Share(loss=3.0, images=4, correct=tested - 1, tested=tested, seconds=rank + 1), rank, 2
            )
            store.push(report.EPOCHS, row, range=(6, 12))
        assert report.read(store, tests=11)[1] == [report.Epoch(2, 6 / 8, 9 / 11, 2.0, 4.0)]


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "batch_size", "images", "workers", "message"),
    [
        (3, 4, 8, 2, "devices expects as many for each of 2 workers, got 3"),
        (4, 3, 9, 2, "a batch is shared by 4 devices; with batches of 3 the last of 9 images has 3"),
        (4, 8, 19, 2, "with batches of 8 the last of 19 images has 3: choose another batch size"),
        (4, 8, 8, 4, "4 devices share the test, which has only 2 images"),
    ],
)
def test_a_plan_that_leaves_a_device_idle_is_refused(devices, batch_size, images, workers, message) -> None:
    plan = Plan(source=Source(Path()), devices=("cpu",) * devices, batch_size=batch_size)
    train, test = (Split(np.zeros((n, 28, 28), np.uint8), np.zeros(n, np.uint8)) for n in (images, 2))
    with pytest.raises(wl.UsageError, match=message):
        plan.check(Data(train, test), workers)
