"""The contenders of the training benchmark: groups of processes that stay alive, asleep, while others are measured."""

from __future__ import annotations

import sys
from typing import Protocol

import torch

import windlass as wl
from bench.children import Children
from bench.jobs import Job
from bench.peers import ROOT

_jobs: dict[str, Job] = {}
"""In a worker of ours: the job under way. Kept between runs, so that memory is warm."""


class Trainer(Protocol):
    name: str

    def prepare(self, network: str) -> None: ...
    def seconds(self, steps: int) -> float: ...
    def close(self) -> None: ...


class Theirs:
    """Processes that run `bench.train_rank`."""

    def __init__(self, name: str, size: int = 2) -> None:
        self.name = name
        self._children = Children(name)
        # Two OpenMP threads that spin where they wait triple the plain loop's step as soon as anybody else runs: the
        # kernel then puts both on one core, and each burns the time slice of the one it waits for.
        environment = {"PYTHONPATH": ROOT, "GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "passive"}
        meeting = str(self._children.folder / "meeting")
        try:
            for rank in range(size):
                command = (sys.executable, "-m", "bench.train_rank", name, self._children.address)
                self._children.start((*command, str(rank), str(size), meeting), environment)
            self._children.gather(size)
        except BaseException:
            self.close()
            raise

    def prepare(self, network: str) -> None:
        self._children.ask("prepare", network)

    def seconds(self, steps: int) -> float:
        return float(max(self._children.ask("loop", steps)))

    def straggle(self, case: str, steps: int) -> float:
        """Seconds that DDP takes for so many steps with slow ranks."""
        return float(max(self._children.ask("straggle", (case, steps))))

    def close(self) -> None:
        self._children.close()


class Ours:
    """A cluster of 2 servers and 2 workers, with `wl.torch.Optimizer` in one of its modes."""

    def __init__(self, cluster: wl.Cluster, mode: str) -> None:
        self.name = mode
        self._cluster = cluster

    def prepare(self, network: str) -> None:
        self._cluster.run(_prepare, network, self.name)

    def seconds(self, steps: int) -> float:
        return float(max(self._cluster.run(_loop, self.name, steps)))

    def close(self) -> None:
        self._cluster.close()


def _prepare(store: wl.Store, network: str, mode: str) -> None:
    torch.set_num_threads(1)
    job = _jobs[mode] = Job(network, store.num_workers)
    job.optimizer = wl.torch.Optimizer(job.optimizer, store, mode=mode, name=f"{network}-{mode}")
    job.seconds(3, store.barrier)


def _loop(store: wl.Store, mode: str, steps: int) -> float:
    return _jobs[mode].seconds(steps, store.barrier)
