"""What a node writes down: all of it, up to a limit, and readable to where it was cut off."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import windlass as wl
from tests.trace.checks import nodes_of, read, spans_of
from windlass.trace import recorder as recorder_module
from windlass.trace.collector import Collector, check_path
from windlass.trace.recorder import Recorder, open_recorder
from windlass.trace.spans import Category, Span


def push(number: int, began: int = 1 << 60, ended: int = 1 << 60) -> Span:
    args = {"key": "w", "clock": number}
    return Span(Category.PUSH, "push w", 0, began, ended, args, (1, number, 0, number))


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    collector = Collector(str(tmp_path / "out.json"))
    yield collector
    collector.write()


def written(collector: Collector) -> dict:
    collector.write()
    return read(Path(collector.path))


def ticking() -> Iterator[int]:
    return iter(range(0, 10**12, 1000))


def test_every_span_of_every_thread_is_in_the_file(collector):
    record = collector.record("worker-0")
    clock = ticking()
    recorder = Recorder(record, 7, clock=lambda: next(clock))

    def work(thread: int) -> None:
        for number in range(500):
            recorder.add(push(thread * 1000 + number, 1000 * number, 1000 * number + 1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    recorder.close()
    trace = written(collector)
    clocks = sorted(span["args"]["clock"] for span in spans_of(trace, "worker-0"))
    assert clocks == [thread * 1000 + number for thread in range(4) for number in range(500)]
    assert trace["otherData"] == {"made_by": "windlass", "dropped": {}, "missing": []}


def test_a_node_stops_noting_at_the_limit_and_says_how_much_it_dropped(collector, caplog):
    recorder = Recorder(collector.record("worker-0"), 7, max_spans=1000)
    for number in range(1234):
        recorder.add(push(number, recorder.now(), recorder.now()))
    recorder.close()
    with caplog.at_level(logging.WARNING, "windlass"):
        trace = written(collector)
    assert len(spans_of(trace, "worker-0")) == 1000
    assert trace["otherData"]["dropped"] == {"worker-0": 234}
    assert "lacks the last 234 spans of worker-0" in caplog.text


@pytest.mark.parametrize("cut_bytes", [1, 3, 40])
def test_a_record_that_was_cut_in_the_middle_of_a_write_is_read_to_the_last_whole_one(collector, cut_bytes):
    recorder = Recorder(collector.record("worker-0"), 7)
    for number in range(recorder_module.BATCH_SPANS * 3):
        recorder.add(push(number, recorder.now(), recorder.now()))
    recorder.close()
    [(_, file)] = collector._files
    size = file.seek(0, os.SEEK_END)
    file.truncate(size - cut_bytes)
    assert len(spans_of(written(collector), "worker-0")) == recorder_module.BATCH_SPANS * 2


def test_what_is_older_than_a_quarter_of_a_second_is_in_the_record_before_the_end(collector):
    now = [0]
    recorder = Recorder(collector.record("worker-0"), 7, clock=lambda: now[0])
    recorder.add(push(1, 0, 10))
    [(_, file)] = collector._files
    before = os.fstat(file.fileno()).st_size
    now[0] = 300_000_000
    recorder.add(push(2, 10, now[0]))
    assert os.fstat(file.fileno()).st_size > before
    assert len(spans_of(written(collector), "worker-0")) == 2  # though nobody closed the recorder
    recorder.close()


def test_a_node_that_never_began_is_named_as_missing(collector):
    collector.record("worker-0")
    Recorder(collector.record("worker-1"), 8).close()
    trace = written(collector)
    assert nodes_of(trace) == ["worker-1"]
    assert trace["otherData"]["missing"] == ["worker-0"]


def test_nothing_at_all_is_still_a_trace(collector):
    assert written(collector)["traceEvents"] == []


def test_two_processes_that_had_the_same_seat_are_told_apart_and_servers_come_first(collector):
    for name in ("worker-0", "server-0", "worker-0"):
        Recorder(collector.record(name), 7).close()
    assert nodes_of(written(collector)) == ["server-0", "worker-0", "worker-0 (2)"]


def test_a_record_has_one_writer(collector, caplog):
    record = collector.record("worker-0")
    with caplog.at_level(logging.WARNING, "windlass"):
        first = open_recorder(record, 7)
        assert open_recorder(record, 8) is None
        assert open_recorder("/nowhere/at/all", 8) is None
    assert caplog.text.count("is not traced") == 2
    assert open_recorder("", 8) is None
    assert first is not None
    first.close()


FORKS = """
import os, sys
from tests.trace.test_records import push
from windlass.trace.collector import Collector
from windlass.trace.recorder import Recorder

collector = Collector(sys.argv[1])
recorder = Recorder(collector.record("worker-0"), 7)
recorder.add(push(1))
pid = os.fork()
if pid == 0:
    for number in range(1000):
        recorder.add(push(number))
    recorder.close()
    collector.write()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert not os.path.exists(collector.path)
recorder.close()
collector.write()
"""


def test_a_forked_copy_writes_nothing_of_its_parents(tmp_path):
    path = tmp_path / "out.json"
    # in an interpreter of its own: other tests leave threads here, and a process with threads should not fork
    subprocess.run([sys.executable, "-c", FORKS, path], check=True, timeout=60)
    assert len(spans_of(read(path), "worker-0")) == 1


def test_a_record_that_cannot_be_written_stops_the_trace_and_not_the_node(caplog):
    with caplog.at_level(logging.WARNING, "windlass"):
        recorder = Recorder("/dev/full", 7)
        for number in range(1000):
            recorder.add(push(number))
        recorder.close()
    assert caplog.text.count("No space left") == 1


def test_a_compressed_trace_holds_the_same(tmp_path):
    collector = Collector(str(tmp_path / "out.json.gz"))
    recorder = Recorder(collector.record("worker-0"), 7)
    recorder.add(push(1))
    recorder.close()
    assert len(spans_of(written(collector), "worker-0")) == 1
    assert len(wl.trace.load(collector.path)) == len(read(Path(collector.path))["traceEvents"])
    assert [path.name for path in tmp_path.iterdir()] == ["out.json.gz"]


def test_a_trace_that_cannot_be_written_is_refused_before_anything_starts(tmp_path):
    for given, why in (
        (tmp_path / "no" / "out.json", "there is no directory"),
        (tmp_path, "it is a directory"),
        (3, "expects the path of a file"),
    ):
        with pytest.raises(wl.UsageError, match=why):
            check_path(given)
        with pytest.raises(wl.UsageError, match=why):
            wl.Cluster(engine="threads", trace=given)
        with pytest.raises(wl.UsageError, match=why):
            wl.Store(trace=given)
    assert check_path(None) == check_path("") == ""


def test_a_disk_that_fills_up_at_the_end_is_said_and_leaves_no_half_a_file(tmp_path):
    collector = Collector(str(tmp_path / "sub"))
    Recorder(collector.record("worker-0"), 7).close()
    os.mkdir(tmp_path / "sub")
    (tmp_path / "sub" / "in the way").touch()
    with pytest.raises(wl.ClusterError, match="could not be written"):
        collector.write()
    assert [path.name for path in tmp_path.iterdir()] == ["sub"]
    collector.write()
