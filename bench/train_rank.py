"""One process of a contender that is not ours: `python -m bench.train_rank KIND ADDRESS RANK SIZE MEETING`.

KIND is "plain" (one process, a thread per core), "compute" (forward and backward only, nothing is exchanged) or "ddp"
(torch DistributedDataParallel over gloo); "+kept" after it has malloc keep freed memory, as Windlass's workers do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Client

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.jobs import Job
from bench.straggling import straggle
from windlass.engines._settling import settle


def make(kind: str, network: str, size: int) -> tuple[Job, Callable[[], object]]:
    job = Job(network, size, steps_optimizer=kind != "compute")
    if kind == "ddp":
        job.model = DistributedDataParallel(job.model)
        job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.01)
    return job, dist.barrier if size > 1 else lambda: None


def serve(kind: str, address: str, rank: int, size: int, meeting: str) -> None:
    kind, _, extra = kind.partition("+")
    if extra:
        settle(size)
    torch.set_num_threads(len(os.sched_getaffinity(0)) if kind == "plain" else 1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    with Client(address, authkey=bytes.fromhex(os.environ["BENCH_KEY"])) as driver:
        driver.send(rank)
        job = barrier = None
        while True:
            try:
                verb, what = driver.recv()
            except EOFError:
                return
            if verb == "straggle":
                driver.send(straggle(rank, *what))
            elif verb == "prepare":
                job, barrier = make(kind, what, size)
                driver.send(job.seconds(2, barrier))
            else:
                assert job is not None
                assert barrier is not None
                driver.send(job.seconds(what, barrier))


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
