"""How long a failure is felt, and what it costs to be ready for one: each function measures one promise."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

import windlass as wl
from bench.loaded import ELEMENTS, WORKERS, Load, first_after, longest_within, median_push, rate, rate_within, sleeping
from bench.table import Extra
from bench.targets import Verdict
from windlass.engines.config import environment
from windlass.testing.explorer import Limits
from windlass.testing.havoc import Hand
from windlass.testing.seeds import Crew, Tally, explore_all
from windlass.types import Role

SERVERS = 3
STOP_LEASE_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 0.25


def _cluster(**options: Any) -> wl.Cluster:
    return wl.Cluster(**{"servers": SERVERS, "workers": WORKERS, "replicas": 1, **options})


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


# --- servers that are lost --------------------------------------------------------------------------------------------


def measure_killed_servers(repeats: int) -> list[Extra]:
    """SIGKILL; then a new server takes the seat, and when the chains are whole, the next one is killed."""
    moments: list[float] = []

    def plan(hand: Hand) -> None:
        for _ in range(repeats):
            hand.kill(hand.rng.choice(hand.servers()))
            moments.append(hand.shots[-1].at)
            hand.await_whole(2)
            hand.add_server()
            hand.await_whole(2)
            time.sleep(0.2)

    with _cluster() as cluster:
        pushes = Load(cluster).during(plan)
    found = [first_after(pushes, moment) for moment in moments]
    usual = median_push(pushes, 0.0, float("inf"))
    what = f"server SIGKILL to the first acknowledged push begun after it (a push usually takes {_ms(usual)})"
    return [
        Extra(f"{what}: median of {repeats}", _ms(statistics.median(found)),
              Verdict("≤ 300 ms", statistics.median(found) <= 0.3)),
        Extra(f"{what}: worst of {repeats}", _ms(max(found)), Verdict("≤ 1000 ms", max(found) <= 1.0)),
    ]  # fmt: skip


def measure_stopped_servers(repeats: int) -> list[Extra]:
    """SIGSTOP, until it is out; then it is waked, and ends."""
    moments: list[float] = []

    def plan(hand: Hand) -> None:
        for _ in range(repeats):
            name = hand.rng.choice(hand.servers())
            hand.stop(name)
            moments.append(hand.shots[-1].at)
            hand.await_whole(2)
            hand.add_server()
            hand.await_whole(2)
            hand.resume(name)
            hand.await_end(name)
            time.sleep(0.2)

    with _cluster(lease_seconds=STOP_LEASE_SECONDS) as cluster:
        pushes = Load(cluster).during(plan)
    worst = max(first_after(pushes, moment) for moment in moments)
    limit = STOP_LEASE_SECONDS + 0.5
    what = f"server SIGSTOP to the first acknowledged push begun after it, lease {STOP_LEASE_SECONDS:g} s"
    return [Extra(f"{what}: worst of {repeats}", _ms(worst), Verdict(f"≤ {limit * 1e3:.0f} ms", worst <= limit))]


# --- workers that are lost --------------------------------------------------------------------------------------------


def measure_killed_workers(repeats: int) -> list[Extra]:
    """Workers that came by themselves, as `windlass run` starts them, so that no driver ends the others' waits."""
    worst = max(_one_killed_worker() for _ in range(repeats))
    what = f"worker SIGKILL to the end of the first round without it, in every other worker: worst of {repeats}"
    return [Extra(what, _ms(worst), Verdict("≤ 500 ms", worst <= 0.5))]


def _one_killed_worker() -> float:
    with _cluster(_has_workers=False) as cluster:
        crew = []
        for rank in range(WORKERS):
            env = os.environ | environment(cluster._engine.config(Role.WORKER, rank))  # type: ignore[union-attr]
            command = [sys.executable, "-m", "bench.recovery", str(ELEMENTS)]
            crew.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        try:
            for one in crew:
                assert one.stdout is not None
                assert one.stdout.readline() == "ready\n"
            time.sleep(0.5)
            moment = time.monotonic()
            os.kill(crew[-1].pid, signal.SIGKILL)
            time.sleep(1.0)
        finally:
            for one in crew:
                one.kill()
        said = [[float(line) for line in one.communicate()[0].splitlines()] for one in crew]
        # The first acknowledgement may be of a round that still had the dead one in it; the second is not.
        return max([end for end in ended if end > moment][1] for ended in said[:-1]) - moment


def lone_worker(elements: int) -> None:
    """One of that crew: pushes for ever, and says when each push was acknowledged."""
    store = wl.connect()
    store.create("model", np.zeros(elements, np.float32), update=wl.SGD(lr=0.1))
    gradient = np.full(elements, 1e-3, np.float32)
    for _ in range(3):
        store.push("model", gradient).wait()
    print("ready", flush=True)
    while True:
        store.push("model", gradient).wait()
        print(time.monotonic(), flush=True)


# --- servers that come ------------------------------------------------------------------------------------------------


def measure_added_servers(repeats: int) -> list[Extra]:
    spans: list[tuple[float, float]] = []

    def plan(hand: Hand) -> None:
        time.sleep(1.0)
        for _ in range(repeats):
            began = time.monotonic()
            name = hand.add_server()
            hand.wait_until(lambda name=name: _is_settled(hand, name), f"{name} has its share")
            time.sleep(0.3)  # what is still under way counts, too
            spans.append((began, time.monotonic()))
            hand.remove_server(name)
            hand.await_whole(2)

    with _cluster() as cluster:
        pushes = Load(cluster).during(plan)
    longest = max(longest_within(pushes, *span) for span in spans)
    usual = longest_within(pushes, spans[0][0] - 1.0, spans[0][0])
    took = statistics.median(end - begin for begin, end in spans)
    what = f"the longest push while a server is added ({took:.1f} s each; in the second before it, {_ms(usual)})"
    limit = LONGEST_WAIT_SECONDS
    return [Extra(f"{what}: worst of {repeats}", _ms(longest), Verdict(f"≤ {_ms(limit)}", longest <= limit))]


def _is_settled(hand: Hand, name: str) -> bool:
    """Whether a new server has about its share, and every chain its length."""
    chains = hand.chains()
    held = sum(name in chain for chain in chains)
    members = sum(len(chain) for chain in chains)
    return all(len(chain) == 2 for chain in chains) and held >= 0.75 * members / len(hand.servers())


# --- what it costs ----------------------------------------------------------------------------------------------------


def measure_replication(repeats: int, seconds: float = 1.5) -> list[Extra]:
    """Two clusters, by turns; whatever else the machine does hits them alike."""
    rates: dict[int, list[float]] = {0: [], 1: []}
    with _cluster(replicas=0) as bare, _cluster(replicas=1) as replicated:
        for _ in range(repeats):
            for replicas, cluster in ((0, bare), (1, replicated)):
                rates[replicas].append(rate(Load(cluster).during(sleeping(seconds))))
    plain, safe = statistics.median(rates[0]), statistics.median(rates[1])
    cost = 1 - safe / plain
    found = f"{cost:.0%} ({plain:.1f} rounds/s without, {safe:.1f} with)"
    return [Extra("throughput that one replica costs", found, Verdict("≤ 45 %", cost <= 0.45))]


def measure_snapshots(repeats: int, seconds: float = 1.0) -> list[Extra]:
    """One cluster under load, by turns left alone and saved again and again, to a directory on disk. Each turn is
    compared with the one before it: whatever else the machine does hits both alike."""
    turns: list[tuple[tuple[float, float], tuple[float, float]]] = []
    took: list[float] = []

    def plan(hand: Hand) -> None:
        with tempfile.TemporaryDirectory() as place:
            for _ in range(repeats):
                began = time.monotonic()
                time.sleep(seconds)
                middle = time.monotonic()
                while time.monotonic() < middle + seconds:
                    one = time.monotonic()
                    hand.cluster.store().save(place, keep=2)
                    took.append(time.monotonic() - one)
                turns.append(((began, middle), (middle, time.monotonic())))

    with _cluster() as cluster:
        pushes = Load(cluster).during(plan)
    alone, saved = ([rate_within(pushes, *turn[which]) for turn in turns] for which in (0, 1))
    cost = 1 - statistics.median(after / before for before, after in zip(alone, saved, strict=True))
    rates = f"{statistics.median(alone):.1f} rounds/s without, {statistics.median(saved):.1f} with"
    found = f"{cost:.0%} ({rates}; a save takes {_ms(statistics.median(took))})"
    what = f"throughput that snapshots cost while they run: median of {repeats}"
    return [Extra(what, found, Verdict("≤ 10 %", cost <= 0.1))]


def measure_simulation(seconds: float) -> list[Extra]:
    """The protocol under the explorer, in one process and on all cores, as CI does it; judging is part of the time.
    An event is anything that is handed to a node: a message that came over a link, a link that is up or down, work that
    was put off, a tick. Of one process the time is the processor's, so that others on the machine do not count; of all
    cores it is the clock's."""
    limits = Limits()
    batch = 100
    one = Tally()
    explore_all(range(10), limits)
    while one.seconds < seconds:
        one.add(explore_all(range(one.num_seeds, one.num_seeds + batch), limits))
    with Crew() as crew:
        crew.explore(range(2 * batch), limits)  # until all have started
        began = time.perf_counter()
        num_seeds = max(2 * batch, one.num_seeds)
        every = crew.explore(range(num_seeds), limits)
        took = time.perf_counter() - began
    return [
        _simulated("one process", one, one.seconds, 0),
        _simulated(f"{crew.num_processes} processes, as CI explores", every, took, 50_000),
    ]


def _simulated(who: str, tally: Tally, seconds: float, least: int) -> Extra:
    events, messages = tally.shots.delivered / seconds, tally.shots.messages / seconds
    text = f"{messages:,.0f}/s, of {events:,.0f} events/s ({tally.num_seeds / seconds:.0f} seeds/s)"
    verdict = Verdict(f"≥ {least:,}/s", messages >= least) if least else Verdict("", None)
    return Extra(f"simulated protocol messages, {who}", text, verdict)


if __name__ == "__main__":
    lone_worker(int(sys.argv[1]))
