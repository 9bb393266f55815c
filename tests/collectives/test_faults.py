"""Members that die, stop or are interrupted: real processes and real signals, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import windlass as wl
from tests.busy import is_within


def until_it_fails(store, folder: str, elements: int, options: dict) -> None:
    """All-reduce again and again; write down how that ended."""
    with wl.Group(store) as group:
        tensor = group.buffer(elements) if options.pop("in_buffer", False) else np.zeros(elements, np.float32)
        group.allreduce(tensor)
        note(folder, "pid", store.rank, str(os.getpid()))
        try:
            while True:
                group.allreduce(tensor, **options)
        except wl.WindlassError as error:
            note(folder, "said", store.rank, f"{type(error).__name__}\n{time.monotonic()}\n{error}")
            raise


def note(folder: str, what: str, rank: int, text: str) -> None:
    part = Path(folder, f"{what}-{rank}.part")
    part.write_text(text)
    part.rename(Path(folder, f"{what}-{rank}"))


def read(folder: Path, what: str, rank: int, seconds: float = 30.0) -> str:
    deadline = time.monotonic() + seconds
    while not (folder / f"{what}-{rank}").exists():
        assert time.monotonic() < deadline, f"nothing from rank {rank}"
        time.sleep(0.01)
    return (folder / f"{what}-{rank}").read_text()


@contextmanager
def reducing(folder: Path, elements: int, **options: object) -> Iterator[list[int]]:
    """Three workers that all-reduce until something happens; their process numbers."""
    with wl.Cluster(servers=1, workers=3) as cluster:
        failures: list[BaseException] = []

        def run() -> None:
            try:
                cluster.run(until_it_fails, str(folder), elements, options)
            except wl.WindlassError as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        pids = [int(read(folder, "pid", rank)) for rank in range(3)]
        try:
            yield pids
        finally:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
            thread.join(20)
        assert failures, "the run should have failed"


@pytest.mark.parametrize(
    ("elements", "options"),
    [(400_000, {}), (400_000, {"in_buffer": True})],
    ids=["in pieces", "in the buffer"],
)
def test_a_member_that_is_killed_is_named_to_the_others_within_a_second(tmp_path, elements, options):
    with reducing(tmp_path, elements, **options) as pids:
        time.sleep(0.1)
        killed = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        for rank in (0, 2):
            kind, when, text = read(tmp_path, "said", rank).split("\n")
            assert kind == "ClusterError"
            assert is_within(float(when) - killed, 1.5)
            assert f"rank 1 (pid {pids[1]}) died" in text
            assert text.startswith(f"allreduce of float32 of shape ({elements},)")


def test_a_member_that_is_stopped_is_late_and_named(tmp_path):
    with reducing(tmp_path, 10_000, timeout=3.0) as pids:
        os.kill(pids[2], signal.SIGSTOP)
        stopped = time.monotonic()
        for rank in (0, 1):
            kind, when, text = read(tmp_path, "said", rank).split("\n")
            assert kind == "TimeoutError"
            assert 2.5 < float(when) - stopped < 30
            assert text.startswith("allreduce of float32 of shape (10000,), reduce='sum'")
            assert f"waited 3 s for rank 2 (pid {pids[2]})" in text
        os.kill(pids[2], signal.SIGCONT)
        kind, _, text = read(tmp_path, "said", 2).split("\n")  # it finds that the others have given up
        assert kind == "ClusterError"
        assert "gave up in allreduce of float32 of shape (10000,)" in text


def test_ctrl_c_ends_a_wait_and_is_told_to_the_others(tmp_path):
    def work(store):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        group = wl.Group(store)
        if store.rank == 0:
            began = time.monotonic()
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                group.barrier()
            note(str(tmp_path), "struck", 0, "")
            return time.monotonic() - began
        read(tmp_path, "struck", 0)
        group.barrier()  # rank 0 had come to it before it was interrupted
        with pytest.raises(wl.ClusterError, match=r"allreduce of .*: rank 0 \(pid \d+\) gave up in barrier"):
            group.allreduce(np.zeros(3))
        return 0.0

    with wl.Cluster(servers=1, workers=2) as cluster:
        waited, _ = cluster.run(work)
    assert waited > 0.15
    assert is_within(waited, 3)
