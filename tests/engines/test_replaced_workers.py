"""Where a worker's seat is taken again (`on_worker_loss="wait"`): what needs every worker goes on, or says at once why
it does not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import windlass as wl


def _die_once(flag: Path) -> None:
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _meet_thrice(store: wl.Store, flag: Path, dies_after: int) -> list[float]:
    """Between two barriers, worker 0 notes a step, which all see after the second."""
    store.create("steps", np.zeros(1, np.float32), update="add", consistency=wl.Eventual())
    seen = []
    for step in range(3):
        store.barrier()
        if store.rank == 1 and step == dies_after:
            _die_once(flag)
        if store.rank == 0:
            store.push("steps", np.ones(1, np.float32)).wait()
        store.barrier()
        seen.append(float(store.pull("steps")[0]))
    return seen


@pytest.mark.timeout(60)
def test_a_worker_in_the_seat_of_another_passes_the_barriers_that_the_others_have_passed(tmp_path: Path) -> None:
    with wl.Cluster(servers=2, workers=3, on_worker_loss="wait", timeout=20.0) as cluster:
        for run, dies_after in enumerate((0, 2, 1)):
            flag = tmp_path / str(run)
            first, second, third = cluster.run(_meet_thrice, flag, dies_after)
            assert flag.exists()
            base = 3.0 * run
            assert first == third == [base + 1, base + 2, base + 3]
            # It sees what is there by now in what it does again, and from where it was on the same as the others.
            assert second[dies_after:] == first[dies_after:]


def _reduce_until_one_dies(store: wl.Store, flag: Path, when: str) -> None:
    if store.rank == 1 and when == "making":
        _die_once(flag)
    with wl.Group(store) as group:
        for step in range(50):
            group.allreduce(np.ones(8, np.float32))
            if store.rank == 1 and step == 3:
                _die_once(flag)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("making", "worker-1 came to a run under way: what needs every worker at its beginning, a Group"),
        ("reducing", r"rank 1 \(pid \d+\) died; make a new group of those who are left, or start again"),
    ],
)
def test_a_group_that_loses_a_member_is_an_error_at_once_though_the_seat_is_taken_again(
    tmp_path: Path, when: str, words: str
) -> None:
    """Who comes later cannot be in it: its memory was shown to those who were there."""
    began = time.monotonic()
    with (
        wl.Cluster(servers=1, workers=3, on_worker_loss="wait", timeout=40.0) as cluster,
        pytest.raises(wl.WindlassError, match=words),
    ):
        cluster.run(_reduce_until_one_dies, tmp_path / "flag", when)
    assert time.monotonic() - began < 20


def _count_to_thirty(store: wl.Store, flag: Path) -> None:
    store.create("sum", np.zeros(1, np.float32), update="add")
    for step in range(30):
        store.pushpull("sum", np.ones(1, np.float32))
        if store.rank == 1 and step == 3:
            _die_once(flag)


@pytest.mark.timeout(60)
def test_a_worker_that_begins_again_where_steps_are_counted_is_told_to_lease_them(tmp_path: Path) -> None:
    words = r"worker-0 has finished.* worker-1 came to a run under way.* deal out the steps by store.batches\(\)"
    with (
        wl.Cluster(servers=1, workers=2, on_worker_loss="wait", timeout=40.0) as cluster,
        pytest.raises(wl.UsageError, match=words),
    ):
        cluster.run(_count_to_thirty, tmp_path / "flag")
