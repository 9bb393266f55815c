"""A driver with many open files starts clusters like any other. One that may open no more is told so, and leaves
neither processes nor files behind."""

from __future__ import annotations

from pathlib import Path

from tests.engines.processes import start_driver

SCRIPT = """
import gc, os, resource, time, warnings
import psutil
import windlass as wl

def num_files(): return len(os.listdir("/proc/self/fd"))

warnings.simplefilter("ignore", ResourceWarning)  # a socket that is not reached any more is closed, too
with wl.Cluster(): pass
before = num_files()
held, num_refused, is_open = [], 0, False
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
while num_files() < 64 - 2: held.append(os.open(os.devnull, os.O_RDONLY))
for _ in range(64):
    try:
        with wl.Cluster() as cluster: cluster.run(lambda store: None)
        is_open = True
        break
    except wl.ClusterError as error:
        words = "this process has all 64 files open that it may have; raise the limit (`ulimit -n 65536`), or close"
        assert words in str(error), error
        num_refused += 1
    os.close(held.pop())
assert is_open and num_refused > 10, (is_open, num_refused)
deadline = time.monotonic() + 20
while psutil.Process().children(recursive=True) and time.monotonic() < deadline: time.sleep(0.02)
assert not psutil.Process().children(recursive=True)
gc.collect()
assert num_files() - len(held) <= before, (num_files(), len(held), before)
"""

MANY = """
import os, resource
import windlass as wl

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
with wl.Cluster(workers=2) as cluster:
    assert cluster.run(lambda store: store.rank) == [0, 1]
"""


def test_a_driver_with_more_than_1024_open_files_starts_a_cluster(tmp_path: Path) -> None:
    with start_driver(tmp_path / "driver.py", MANY) as driver:
        _, err = driver.communicate(timeout=100)
    assert (driver.returncode, err) == (0, "")


def test_a_cluster_that_finds_no_files_to_open_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with start_driver(tmp_path / "driver.py", SCRIPT) as driver:
        _, err = driver.communicate(timeout=100)
    said = [line for line in err.splitlines() if "was turned away" not in line]
    assert (driver.returncode, said) == (0, [])
