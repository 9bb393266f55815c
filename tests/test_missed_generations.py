"""A worker that has not heard of every generation: what it sent may be forgotten where it seems to be."""

from __future__ import annotations

import pytest

from tests.scenarios.stage import Stage, number
from windlass._wire import messages as m
from windlass._wire.effects import Received, Send
from windlass.types import MANAGER


@pytest.mark.parametrize(("later", "is_sent_again"), [(1, False), (2, True)])
def test_a_shard_that_may_have_been_elsewhere_meanwhile_is_sent_again_what_it_has_not_answered(later, is_sent_again):
    """Its head is the same as before; but in a generation between, another may have been, and this one has forgotten
    what was staged."""
    stage = Stage(1, 2, 0, 1)
    worker = stage.workers[number("worker-0")]
    worker.player.push(lambda text: None)
    stage.play()
    state, key = worker.state, worker.player.entry.key
    term, now = state.generation
    nodes = tuple(state.nodes.values())
    moves = (m.Move(key.id, 0, key.chains[0]),)
    told = m.Membership(term=term, number=now + later, nodes=nodes, reason="test", moves=moves)
    effects = state.handle(Received(MANAGER, told), stage.now)
    sent = [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, m.Push)]
    assert [push.clock for push in sent] == ([1] if is_sent_again else [])


def test_what_a_manager_of_a_lower_term_says_moves_nobody_however_high_its_number():
    """It was cut off, or stopped, when another took its place, and would have the head and a worker out."""
    stage = Stage(2, 2, 1, 1)
    stage.kill(MANAGER)
    stage.restart_manager()
    stage.pass_time(0.25)
    server, worker = stage.servers[number("server-0")], stage.workers[number("worker-0")].state
    assert (server.members.generation, worker.generation) == ((2, 1), (2, 1))
    left = tuple(node for node in worker.nodes.values() if node.name not in ("server-0", "worker-0"))
    moves = (m.Move(worker_key(stage), 0, (number("server-1"),)),)
    old = Received(MANAGER, m.Membership(term=1, number=99, nodes=left, reason="test", moves=moves))
    assert server.handle(old, stage.now) == worker.handle(old, stage.now) == []
    assert (server.members.generation, worker.generation) == ((2, 1), (2, 1))
    for who in ("worker-0", "worker-1"):
        stage.workers[number(who)].player.push(lambda text, who=who: stage.lines.append(f"{who} {text}"))
    stage.play()
    assert {line for line in stage.lines if line.endswith("acknowledged")} == {
        f"{who} has push 1 done: acknowledged" for who in ("worker-0", "worker-1")
    }


def worker_key(stage):
    return stage.workers[number("worker-0")].player.entry.key.id
