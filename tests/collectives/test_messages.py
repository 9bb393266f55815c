"""Groups over torch.distributed and MPI: different calls, late and dead members, and what must be there before."""

from __future__ import annotations

import os
import signal
import threading
import time
from importlib.util import find_spec

import numpy as np
import pytest
import torch.distributed as dist

import windlass as wl
from tests.busy import is_within
from tests.collectives.crews import in_threads
from tests.collectives.stub_mpi import Comm
from tests.collectives.test_faults import note, read


@pytest.fixture
def groups():
    made = in_threads([lambda end=end: wl.Group(end, timeout=10.0) for end in Comm.world(3)])
    yield made
    for group in made:
        group.close()


def everyone(groups, act):
    return in_threads([lambda group=group: act(group) for group in groups])


def test_calls_that_differ_are_told_in_every_member_and_harm_nothing(groups):
    def act(group):
        with pytest.raises(wl.UsageError, match="all members must make the same calls") as caught:
            group.allreduce(np.zeros(4 if group.rank == 1 else 3))
        return str(caught.value), group.allreduce(np.ones(3)).tolist()

    told = everyone(groups, act)
    assert [total for _, total in told] == [[3.0] * 3] * 3
    assert told[0][0].startswith("rank 1 called allreduce of float64 of shape (4,), reduce='sum', while this one")
    assert told[1][0].startswith("rank 0 called allreduce of float64 of shape (3,)")


def test_a_late_member_is_named_and_the_group_is_broken(groups):
    def act(group):
        if group.rank == 2:
            return repr(group)
        with pytest.raises(wl.TimeoutError, match=r"allreduce of .*: waited 1 s for rank 2, who did not come to it"):
            group.allreduce(np.zeros(3), timeout=1.0)
        with pytest.raises(wl.ClusterError, match="this group is broken since allreduce"):
            group.barrier()
        return repr(group)

    told = everyone(groups, act)
    assert told[2] == "<Group rank 2 of 3 over MPI>"
    assert "is broken since allreduce" in told[0]


def test_large_transfers_go_in_pieces_that_arrive_in_order(groups):
    def act(group):
        tensor = np.arange(3_000_000, dtype=np.float64) * (group.rank + 1)  # 24 MB: six pieces
        return group.allreduce(tensor, "root")[[0, 1, 2_999_999]].tolist()

    assert everyone(groups, act) == [[0.0, 6.0, 6.0 * 2_999_999]] * 3


def test_a_member_that_dies_is_named_over_gloo(tmp_path):
    def work(store, folder):
        dist.init_process_group("gloo", f"file://{folder}/meeting", rank=store.rank, world_size=store.num_workers)
        group = wl.Group("torch", timeout=20.0)
        group.barrier()
        note(folder, "pid", store.rank, str(os.getpid()))
        try:
            while True:
                group.allreduce(np.zeros(1000))
        except wl.WindlassError as error:
            note(folder, "said", store.rank, f"{type(error).__name__} {error}")
            raise

    with wl.Cluster(servers=1, workers=3) as cluster:
        failed = []

        def run() -> None:
            try:
                cluster.run(work, str(tmp_path))
            except wl.WindlassError as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        pids = [int(read(tmp_path, "pid", rank)) for rank in range(3)]
        killed = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        told = [read(tmp_path, "said", rank) for rank in (0, 2)]
        assert is_within(time.monotonic() - killed, 5)
        thread.join(20)
    assert failed
    for text in told:
        assert text.startswith("ClusterError")
        assert "rank 1" in text


def test_torch_and_mpi_must_be_there_before_a_group_is_made():
    assert not dist.is_initialized()
    with pytest.raises(wl.UsageError, match=r"call torch.distributed.init_process_group\(\) first"):
        wl.Group("torch")
    if find_spec("mpi4py") is None:
        with pytest.raises(wl.UsageError, match="needs mpi4py and an MPI library"):
            wl.Group("mpi")
