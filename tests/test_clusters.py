"""A cluster begins, works, fails and ends: with real processes and real signals."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from itertools import count

import numpy as np
import psutil
import pytest

import windlass as wl
from tests.busy import is_within
from tests.engines.processes import left_after


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def gone_within(processes: list[psutil.Process], seconds: float) -> bool:
    return left_after([process.pid for process in processes], seconds) == []


def test_two_servers_and_four_workers_are_ready_within_five_seconds_and_gone_after_the_block():
    began = time.monotonic()
    with wl.Cluster(servers=2, workers=4) as cluster:
        assert is_within(time.monotonic() - began, 5)
        names = [node.name for node in cluster.nodes()]
        assert names == ["manager", "server-0", "server-1", "worker-0", "worker-1", "worker-2", "worker-3"]
        assert all(node.state == "alive" and psutil.pid_exists(node.pid) for node in cluster.nodes())
        processes = descendants()
        assert len(processes) >= 7
    assert gone_within(processes, 2)
    with pytest.raises(wl.UsageError, match="closed"):
        cluster.run(lambda store: None)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_single_worker_that_fails_can_run_again(engine):
    with wl.Cluster(workers=1, engine=engine) as cluster:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                cluster.run(lambda store: 1 / 0)
            assert cluster.run(_sum) == [[1.0] * 4]


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_an_exception_arrives_with_its_rank_and_traceback_and_ends_the_others_waits(engine):
    def work(store):
        store.create("w", np.zeros(4, np.float32), update="add")
        if store.rank == 1:
            raise KeyError("the dog ate it")
        return store.pushpull("w", np.ones(4, np.float32)).tolist()

    with wl.Cluster(servers=1, workers=3, engine=engine) as cluster:
        began = time.monotonic()
        with pytest.raises(KeyError, match="the dog ate it") as caught:
            cluster.run(work)
        assert is_within(time.monotonic() - began, 5)
        note = "\n".join(caught.value.__notes__)
        assert "raised in worker-1" in note
        assert 'raise KeyError("the dog ate it")' in note
        # New workers take the seats; keys and values stay.
        assert cluster.run(lambda store: (store.rank, store.keys())) == [(rank, ["w"]) for rank in range(3)]
        assert cluster.run(_sum) == [[3.0] * 4] * 3


def _sum(store):
    store.create("v", np.zeros(4, np.float32))
    return store.pushpull("v", np.ones(4, np.float32)).tolist()


def test_an_exception_that_cannot_be_pickled_arrives_as_text():
    def work(store):
        class Local(Exception):
            def __reduce__(self):
                raise TypeError("no")

        raise Local("strange")

    with wl.Cluster(workers=1) as cluster, pytest.raises(wl.ClusterError, match=r"(?s)worker-0 .*strange"):
        cluster.run(work)


def test_a_killed_worker_is_named_with_its_signal():
    def work(store):
        store.create("w", np.zeros(4, np.float32))
        if store.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return store.pushpull("w", np.ones(4, np.float32), timeout=30).tolist()

    with wl.Cluster(servers=1, workers=3) as cluster:
        named = r"worker-2 \(pid \d+\) was killed by SIGKILL during the run; with .*on_worker_loss='continue'"
        with pytest.raises(wl.ClusterError, match=named) as failure:
            cluster.run(work)
        assert failure.value.__context__ is None  # how it was noticed is nobody's business
        assert cluster.run(_sum) == [[3.0] * 4] * 3


def test_the_death_of_a_server_that_replicas_make_up_for_is_logged_once_and_a_removal_is_not(caplog):
    def work(store, pid):
        store.create("w", np.zeros(4, np.float32), update="add")
        if store.rank == 0 and pid:
            os.kill(pid, signal.SIGKILL)
        return store.pushpull("w", np.ones(4, np.float32), timeout=30).tolist()

    with wl.Cluster(servers=3, workers=2, replicas=1) as cluster, caplog.at_level(logging.WARNING):
        cluster.remove_server("server-2")
        [pid] = [node.pid for node in cluster.nodes() if node.name == "server-0"]
        assert cluster.run(work, pid) == [[2.0] * 4] * 2
        deadline = time.monotonic() + 10
        while "server-0" not in caplog.text and time.monotonic() < deadline:
            cluster.run(work, 0)  # the first may be over before the end of the process is known
        cluster.run(work, 0)
    assert caplog.text.count(f"server-0 (pid {pid}) was killed by SIGKILL; others have what it held") == 1
    assert "server-2" not in caplog.text


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_death_of_a_server_is_a_clear_error_in_every_worker_within_a_second(transport):
    def work(store, pid):
        store.create("w", np.zeros(100_000, np.float32))
        killed_at = 0.0
        try:
            for step in count():
                store.pushpull("w", np.ones(100_000, np.float32))
                if store.rank == 0 and step == 1:  # its second round: everybody has had the first
                    killed_at = time.monotonic()
                    os.kill(pid, signal.SIGKILL)
        except wl.ClusterError as error:
            return killed_at, time.monotonic(), type(error).__name__, str(error)

    with wl.Cluster(servers=2, workers=4, transport=transport, chunk_bytes=64 << 10) as cluster:
        victim = next(node for node in cluster.nodes() if node.name == "server-1")
        told = cluster.run(work, victim.pid)
        killed_at = told[0][0]
        for _, told_at, name, text in told:
            assert is_within(told_at - killed_at, 1)
            assert name == "LostRange"
            assert "of 'w' were held by server-1, which died" in text
        states = {node.name: node.state for node in cluster.nodes()}
        assert states["server-1"] == "gone"
        assert states["server-0"] == "alive"


def test_a_key_of_a_dead_server_is_an_error_at_once_for_new_workers_too():
    def work(store):
        store.create("w", np.zeros(100_000, np.float32))
        return store.rank

    with wl.Cluster(servers=2, workers=2, chunk_bytes=64 << 10) as cluster:
        cluster.run(work)
        os.kill(next(node.pid for node in cluster.nodes() if node.name == "server-0"), signal.SIGKILL)
        with pytest.raises(ZeroDivisionError):
            cluster.run(lambda store: 1 / 0)
        began = time.monotonic()
        with pytest.raises(wl.LostRange, match="of 'w' were held by"):
            cluster.run(work)
        assert is_within(time.monotonic() - began, 5)


def test_an_updater_that_cannot_even_be_made_on_a_server_harms_nobody():
    from windlass.testing.examples import Picky

    def work(store):
        with pytest.raises(wl.UsageError, match=r"'bad' cannot be held: ValueError: not in process"):
            store.create("bad", np.zeros(4, np.float32), update=Picky(pid=os.getpid()))
        return _sum(store)

    with wl.Cluster(servers=2, workers=1) as cluster:
        assert cluster.run(work) == [[1.0] * 4]
        assert all(node.state == "alive" for node in cluster.nodes())


def test_a_large_chunk_with_its_optimizer_state_is_saved_and_loaded(tmp_path):
    path = str(tmp_path / "big")

    def work(store):
        store.create("w", np.zeros(8 << 20, np.float32), update=wl.Adam(lr=0.1))
        store.pushpull("w", np.ones(8 << 20, np.float32))
        store.save(path)
        before = store.pull("w").copy()
        store.pushpull("w", np.ones(8 << 20, np.float32))
        store.load(path)
        return np.array_equal(store.pull("w"), before)

    with wl.Cluster(servers=1, workers=1, chunk_bytes=32 << 20, transport="tcp") as cluster:
        assert cluster.run(work) == [True]


def test_ctrl_c_in_the_middle_of_a_call_leaves_a_store_that_works(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, threading, time
            import numpy as np
            import windlass as wl

            signal.signal(signal.SIGINT, signal.default_int_handler)
            store = wl.Store()
            store.create("w", np.zeros(300_000, np.int64), update="add")
            store.pushpull("w", np.ones(300_000, np.int64))  # compiles the kernel: calls are to be struck, not numba
            is_over, is_inside = threading.Event(), threading.Event()

            def strike():
                while not is_over.is_set():
                    if is_inside.wait(0.1):  # one strike for each time: none hits this script's own lines
                        is_inside.clear()
                        time.sleep(0.003)
                        os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=strike)
            strikes = 0
            try:
                thread.start()
                until = time.monotonic() + 2
                while time.monotonic() < until:
                    try:
                        is_inside.set()
                        while time.monotonic() < until:
                            store.pushpull("w", np.ones(300_000, np.int64), timeout=5)
                    except KeyboardInterrupt:
                        strikes += 1
            finally:
                while True:
                    try:
                        is_over.set()
                        thread.join()
                        break
                    except KeyboardInterrupt:
                        pass
            value = store.pull("w", timeout=5)
            assert strikes > 20, strikes
            assert value.min() == value.max() == store.version("w")
            print("fine")
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=150)
    assert done.stdout == "fine\n", done.stderr


SCRIPT = """
    import signal
    import numpy as np
    import windlass as wl

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell may have switched Ctrl-C off

    def train(store):
        store.create("w", np.zeros(1000, np.float32))
        if store.rank == 0:
            print("up", flush=True)
        while True:
            store.pushpull("w", np.ones(1000, np.float32))

    with wl.Cluster(servers=2, workers=2) as cluster:
        cluster.run(train)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_two_seconds_after_the_driver_is_interrupted_or_killed(signum, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(SCRIPT))  # no __main__ guard: none is needed
    driver = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert driver.stdout is not None
    try:
        assert driver.stdout.readline() == b"up\n"
        processes = psutil.Process(driver.pid).children(recursive=True)
        assert len(processes) >= 5
        driver.send_signal(signum)
        assert gone_within(processes, 2)
        driver.wait(60)
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
    assert not [name for name in os.listdir("/dev/shm") if "windlass" in name]


def test_functions_of_a_notebook_lambdas_and_closures_run_as_workers():
    factor = 3
    namespace: dict = {"__name__": "__main__"}
    exec("def cell(store, x):\n    return helper(x) + store.rank\ndef helper(x):\n    return x * 10\n", namespace)
    with wl.Cluster(workers=2) as cluster:
        assert cluster.run(lambda store: store.rank * factor) == [0, 3]
        assert cluster.run(namespace["cell"], 4) == [40, 41]


def test_a_sequential_run_repeats_bit_for_bit():
    def work(store):
        store.create("w", np.zeros(50_000, np.float32), update=wl.SGD(lr=0.1, momentum=0.9))
        rng = np.random.default_rng(store.rank)
        for _ in range(10):
            got = store.pushpull("w", rng.standard_normal(50_000).astype(np.float32))
        return got.tobytes()

    runs = []
    for _ in range(2):
        with wl.Cluster(servers=2, workers=3, deterministic=True, chunk_bytes=64 << 10) as cluster:
            runs.append(cluster.run(work))
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 1


def test_a_forked_child_is_told_to_open_a_cluster_of_its_own_and_harms_nobody():
    with wl.Cluster() as cluster, cluster.share("tune") as job:
        calls = [lambda: cluster.run(_sum), lambda: job.run(_sum), cluster.nodes, cluster.add_server, cluster.store]
        if (pid := os.fork()) == 0:
            num_told = 0
            try:
                for call in calls:
                    with pytest.raises(wl.UsageError, match=r"^this cluster is another process's: after a fork"):
                        call()
                    num_told += 1
                cluster.close()
            finally:
                os._exit(num_told)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len(calls)
        assert cluster.run(_sum) == job.run(_sum) == [[1.0] * 4]


def test_a_checkpoint_carries_values_and_optimizer_state_to_another_number_of_servers(tmp_path):
    path = str(tmp_path / "model.safetensors")
    gradients = [np.random.default_rng(step).standard_normal(40_000).astype(np.float32) for step in range(6)]

    def steps(store, first, last, save_to=None, load_from=None):
        if load_from and store.rank == 0:
            store.load(load_from)
        store.barrier()
        store.create("w", np.zeros(40_000, np.float32), update=wl.Adam(lr=0.1))
        for step in range(first, last):
            got = store.pushpull("w", gradients[step])
        store.barrier()
        if save_to and store.rank == 0:
            store.save(save_to)
        return got

    with wl.Cluster(servers=2, workers=2, chunk_bytes=64 << 10) as cluster:
        cluster.run(steps, 0, 3, save_to=path)
        straight = cluster.run(steps, 3, 6)[0]
    with wl.Cluster(servers=1, workers=2, chunk_bytes=64 << 10) as cluster:
        assert np.array_equal(cluster.run(steps, 3, 6, load_from=path)[1], straight)


def test_a_broken_checkpoint_is_refused(tmp_path):
    path = tmp_path / "broken"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(wl.UsageError, match="broken or foreign file"):
        wl.Store().load(str(path))


def test_connect_outside_a_cluster_says_what_to_do(monkeypatch):
    monkeypatch.delenv("WINDLASS_MANAGER", raising=False)
    with pytest.raises(wl.UsageError, match=r"WINDLASS_MANAGER is not set; start the script with `windlass run`"):
        wl.connect()


def test_a_cluster_over_tls_works_and_needs_its_files(tmp_path):
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2"]
    subprocess.run([*make, "-subj", "/CN=windlass"], check=True, capture_output=True)
    with wl.Cluster(servers=2, workers=2, transport="tls", tls=(cert, key, cert), chunk_bytes=64 << 10) as cluster:
        assert cluster.run(_sum) == [[2.0] * 4] * 2
        assert all(node.address.startswith("tls:127.0.0.1:") for node in cluster.nodes() if node.role == "server")
    with pytest.raises(wl.UsageError, match="transport='tls' expects tls="):
        wl.Cluster(transport="tls")


def test_a_link_stays_below_the_rate_that_it_was_given():
    def work(store):
        store.create("w", np.zeros(1_000_000, np.float32))
        grad = np.ones(1_000_000, np.float32)
        store.pushpull("w", grad)
        began = time.monotonic()
        store.pushpull("w", grad)
        return time.monotonic() - began

    with wl.Cluster(transport="tcp", link_bytes_per_second=20_000_000) as cluster:
        [seconds] = cluster.run(work)
    assert 0.3 < seconds < 3  # 4 MB there and 4 MB back
    with pytest.raises(wl.UsageError, match=r"link_bytes_per_second expects a whole number"):
        wl.Cluster(link_bytes_per_second=-1)


def test_a_key_that_was_deleted_and_made_anew_is_the_new_one_to_the_driver(tmp_path):
    """A wl.torch.Optimizer does that in every run; a driver that looked before would otherwise never save again."""

    def make(store, value):
        store.create("w", np.full(4, value), update="add")
        store.push("w", np.zeros(4)).wait()

    def make_anew(store):
        store.barrier()
        if store.rank == 0:
            store.delete("w")
        store.barrier()
        store._put_down("w")
        make(store, 2.0)

    with wl.Cluster(engine="threads", servers=1, workers=2, checkpoint=tmp_path / "saved") as cluster:
        cluster.run(make, 1.0)
        driver = cluster.store()
        assert (driver.version("w"), driver.pull("w").tolist()) == (1, [1.0] * 4)
        cluster.run(make_anew)
        assert (driver.version("w"), driver.pull("w").tolist()) == (1, [2.0] * 4)
        assert wl.checkpoint.Reader(cluster.last_checkpoint).array("w").tolist() == [2.0] * 4
        cluster.run(lambda store: store.delete("w") if store.rank == 0 else None)
        with pytest.raises(wl.UsageError, match="'w'"):
            driver.pull("w")
