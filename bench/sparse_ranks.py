"""One process of a peer: `python -m bench.sparse_ranks redis|rpc|torch ADDRESS RANK WORKERS MEETING NUM_IDS`, started
by sparse_peers.py. It carries out what the driver sends over its connection, and blocks in a read in between."""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Client
from typing import Any, Protocol

import numpy as np

from bench import sparse_rpc
from bench.sparse_load import DIM, LR, Ids, Load, Rows, check_step, load


class Peer(Protocol):
    def push(self, ids: Ids, grads: Rows) -> None: ...
    def pull(self, ids: Ids) -> Rows: ...
    def step(self, work: Load, turn: int) -> None: ...


class Redis:
    """A row is a string of 64 bytes. Redis adds no rows, so the worker takes the step itself and writes the result:
    that what another worker wrote in between is lost would have to be mended by a script, which is slower by far."""

    def __init__(self, rank: int, meeting: str, num_ids: int) -> None:
        import redis

        self._client = redis.Redis(port=int(meeting))
        self._rows = np.empty((0, DIM), np.float32)
        for lo in range(0, num_ids if rank == 0 else 0, 50_000):
            ids = np.arange(lo, min(num_ids, lo + 50_000))
            self._client.execute_command(*self._set(ids, np.ones((ids.size, DIM), np.float32)))

    def push(self, ids: Ids, grads: Rows) -> None:
        self._client.execute_command(*self._set(ids, self.pull(ids) - LR * grads))

    def pull(self, ids: Ids) -> Rows:
        return self._taken(self._client.execute_command(*self._get(ids)))

    def step(self, work: Load, turn: int) -> None:
        """What was pulled last is what is pushed now. Both commands are sent at once."""
        now, then = turn % len(work.ids), (turn + 1) % len(work.ids)
        if len(self._rows) != work.ids[now].size:
            self._rows = self.pull(work.ids[now])
        both = self._client.pipeline(transaction=False)
        both.execute_command(*self._set(work.ids[now], self._rows - LR * work.grads[now]))
        both.execute_command(*self._get(work.ids[then]))
        self._rows = self._taken(both.execute()[1])

    @staticmethod
    def _get(ids: Ids) -> list[Any]:
        names = ids.tobytes()
        return ["MGET", *(names[at : at + 8] for at in range(0, len(names), 8))]

    @staticmethod
    def _set(ids: Ids, rows: Rows) -> list[Any]:
        names, values = ids.tobytes(), rows.tobytes()
        command: list[Any] = [None] * (2 * ids.size + 1)
        command[0] = "MSET"
        command[1::2] = [names[at : at + 8] for at in range(0, len(names), 8)]
        command[2::2] = [values[at : at + 4 * DIM] for at in range(0, len(values), 4 * DIM)]
        return command

    @staticmethod
    def _taken(values: list[bytes]) -> Rows:
        return np.frombuffer(b"".join(values), np.float32).reshape(-1, DIM)


class Rpc:
    """torch.rpc: an nn.Embedding in another process; a step is one call, which pushes and pulls."""

    def __init__(self, rank: int, num_workers: int, meeting: str) -> None:
        import torch
        import torch.distributed.rpc as rpc

        torch.set_num_threads(1)
        self._torch, self._rpc = torch, rpc
        sparse_rpc.join(f"worker-{rank}", rank, num_workers, meeting)

    def push(self, ids: Ids, grads: Rows) -> None:
        self._call(sparse_rpc.push, ids, grads)

    def pull(self, ids: Ids) -> Rows:
        return self._call(sparse_rpc.pull, ids).numpy()

    def step(self, work: Load, turn: int) -> None:
        now, then = turn % len(work.ids), (turn + 1) % len(work.ids)
        self._call(sparse_rpc.push_and_pull, work.ids[now], work.grads[now], work.ids[then])

    def _call(self, function: Any, *arrays: Any) -> Any:
        return self._rpc.rpc_sync(sparse_rpc.SERVER, function, tuple(map(self._torch.from_numpy, arrays)))


class Torch:
    """nn.Embedding in this very process: nothing travels. torch takes the cores it likes."""

    def __init__(self, num_ids: int) -> None:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._torch = torch
        sparse_rpc.hold(num_ids)

    def push(self, ids: Ids, grads: Rows) -> None:
        sparse_rpc.push(self._torch.from_numpy(ids), self._torch.from_numpy(grads))

    def pull(self, ids: Ids) -> Rows:
        return sparse_rpc.pull(self._torch.from_numpy(ids)).numpy()

    def step(self, work: Load, turn: int) -> None:
        self.push(work.ids[turn % len(work.ids)], work.grads[turn % len(work.ids)])
        self.pull(work.ids[(turn + 1) % len(work.ids)])


def check(peer: Peer, number: int) -> None:
    ids = np.array([number])
    before = peer.pull(ids).copy()
    peer.push(ids, np.ones((1, DIM), np.float32))
    check_step(before, peer.pull(ids))


def serve(peer: Peer, address: str, rank: int, num_ids: int) -> None:
    work, turn = load(num_ids, rank), 0
    with Client(address, authkey=bytes.fromhex(os.environ["BENCH_KEY"])) as driver:
        driver.send(rank)
        while True:
            try:
                verb, number = driver.recv()
            except EOFError:
                return
            begin = time.perf_counter()
            if verb == "check":
                check(peer, num_ids - 1 - rank)
            for _ in range(number):
                turn += 1
                peer.step(work, turn)
            driver.send((time.perf_counter() - begin) / max(1, number))


def main(name: str, address: str, *rest: str) -> None:
    rank, num_workers, meeting, num_ids = int(rest[0]), int(rest[1]), rest[2], int(rest[3])
    if name == "rpc" and rank == num_workers:
        sparse_rpc.hold(num_ids)
        sparse_rpc.join(sparse_rpc.SERVER, rank, num_workers, meeting)
        sys.stdin.read()  # the driver's end of it closes when all is over
        os._exit(0)
    peer: Peer = Redis(rank, meeting, num_ids) if name == "redis" else Torch(num_ids)
    if name == "rpc":
        peer = Rpc(rank, num_workers, meeting)
    serve(peer, address, rank, num_ids)
    os._exit(0)  # torch.rpc's own way to leave waits for all others


if __name__ == "__main__":
    main(*sys.argv[1:])
