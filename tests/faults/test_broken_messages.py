"""Messages that no honest peer sends, over links that are proven: their sender may suffer, nobody else does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass import filters as wf
from windlass._wire import messages as m
from windlass._wire.effects import Send
from windlass.types import Block, Role

STEPS = 40
ODD = (-(2**63), -1, 0, 1, 5, 2**31, 2**62)


def _broken(rng: random.Random, me: Any, keys: list[Any]) -> tuple[Any, tuple[Block, ...]]:
    """A write, a commit, a deposit or a wish for ids, wrong in one way or several."""
    key, odd = rng.choice([*keys, 999]), rng.choice(ODD)
    pieces = tuple(
        (rng.choice((-1, 0, 1, 99)), rng.choice((-5, 0, 3)), rng.choice((-1, 0, 10, 2**40)))
        for _ in range(rng.randrange(3))
    )
    data = tuple(Block(np.zeros(rng.choice((0, 1, 24, 2000)), np.uint8)) for _ in range(rng.randrange(3)))
    match rng.randrange(4):
        case 0:
            return m.Write(request=odd, key=key, shard=rng.choice((-1, 0, 1, 99)), pieces=pieces, write=odd), data
        case 1:
            is_passed_on = rng.random() < 0.5
            return m.Commit(request=odd, key=key, writer=me, write=odd, round=odd, is_passed_on=is_passed_on), ()
        case 2:
            deposited = m.Deposited(key=key, saver=me, snapshot=odd, name="x", dtype="O", part=odd, parts=odd)
            return deposited, data
    return m.NeedIds(key=key, shard=odd, clock=odd, part=odd, digest="none", pull=odd), ()


def _break_or_work(store: wl.Store) -> tuple[float, float]:
    store.create("w", np.zeros(100, np.float32), update="add", consistency=wl.Eventual())
    store.create_table("t", dim=4, update="add", consistency=wl.Eventual(), filters=[wf.IdCache()])
    rng, state = random.Random(5), store._client.state
    servers = [who for who, node in state.nodes.items() if node.role is Role.SERVER]
    for _ in range(STEPS):
        if store.rank == 0:
            message, data = _broken(rng, state.me, [entry.key.id for entry in store._entries.values()])
            store._client.post(Send(rng.choice(servers), message, data))
        else:
            rows = np.ones((20, 4), np.float32)
            store.push({"w": np.ones(100, np.float32), "t": rows}, ids={"t": np.arange(20)}).wait()
    store.barrier()
    return float(store.pull("w").sum()), float(store.pull("t", ids=np.arange(30)).sum())


def test_servers_count_on_for_everybody_whatever_one_worker_sends() -> None:
    with wl.Cluster(servers=2, workers=2, replicas=1, timeout=20.0) as cluster:
        assert cluster.run(_break_or_work) == [(STEPS * 100.0, STEPS * 80.0)] * 2
        assert all(node.state == "alive" for node in cluster.nodes())


def test_a_worker_hangs_up_on_a_server_that_it_cannot_understand_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with wl.Cluster(engine="threads", timeout=10.0) as cluster:
        server = next(loop for loop in cluster._engine._loops if loop.name == "server-0")  # type: ignore[union-attr]

        def work(store: wl.Store) -> float:
            store.create("w", np.zeros(4, np.float32), update="add", filters=[wf.Cast("bfloat16")])
            store.push("w", np.ones(4, np.float32)).wait()
            key = store._entries["w"].key.id
            nonsense = m.Residual(key=key, name="values", dtype="nonsense", meta={}, part=0, parts=1)
            server.hub.send(Send(store._client.state.me, nonsense, (Block(np.zeros(8, np.uint8)),)))
            for _ in range(5):
                store.push("w", np.ones(4, np.float32)).wait()
            return float(store.pull("w")[0])

        assert cluster.run(work) == [6.0]
    assert "could not handle Residual from server-0" in caplog.text
