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
