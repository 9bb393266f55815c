"""What torch does: an embedding with sparse gradients and SGD, and the functions that torch.rpc calls on it. A module
of its own, since they are found by its name in either process."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from bench.sparse_load import DIM, LR

SERVER = "server"

_held: dict[str, Any] = {}


def hold(num_ids: int) -> None:
    """Make the embedding of this process."""
    import torch

    embedding = torch.nn.Embedding(num_ids, DIM, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=LR)
    _held.update(embedding=embedding, optimizer=optimizer, lock=threading.Lock())


def push(ids: Any, grads: Any) -> None:
    import torch

    weight = _held["embedding"].weight
    grad = torch.sparse_coo_tensor(ids[None], grads, weight.shape, is_coalesced=True, check_invariants=False)
    with _held["lock"]:  # torch.rpc serves several workers at once
        weight.grad = grad
        _held["optimizer"].step()


def pull(ids: Any) -> Any:
    import torch

    with torch.no_grad():
        return _held["embedding"](ids)


def push_and_pull(ids: Any, grads: Any, then: Any) -> Any:
    push(ids, grads)
    return pull(then)


def join(name: str, rank: int, num_workers: int, meeting: str) -> None:
    """Enter torch.rpc's group of all workers and the server."""
    import torch
    import torch.distributed.rpc as rpc

    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}", num_worker_threads=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of how it uses itself
        rpc.init_rpc(name, rank=rank, world_size=num_workers + 1, rpc_backend_options=options)
