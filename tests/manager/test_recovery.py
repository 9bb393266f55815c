"""How long a manager that has come back waits for the members of the last generation."""

from __future__ import annotations

from windlass.manager.records import Image
from windlass.manager.recovery import PATIENCE_LEASES, Recovery
from windlass.types import Incarnation, Node, Role

SERVERS, WORKER = (Incarnation(1), Incarnation(2)), Incarnation(3)


def recovery(*dead_pids: int) -> Recovery:
    """Of two servers and a worker that have declared no key yet."""
    image = Image()
    for who, role in ((SERVERS[0], Role.SERVER), (SERVERS[1], Role.SERVER), (WORKER, Role.WORKER)):
        image.nodes[who] = Node(name="", role=role, incarnation=who, rank=0, pid=100 + who, addresses=())
    found = Recovery(image, 1.0, dead_pids)
    assert not found.is_over(0.0)
    return found


def test_servers_of_which_none_has_come_are_waited_for_longer_though_they_hold_nothing() -> None:
    waiting = recovery()
    waiting.come(WORKER)
    assert not waiting.is_over(1.5)  # else the worker's first key would find no server
    assert waiting.is_over(PATIENCE_LEASES + 0.1)


def test_one_server_is_enough_to_go_on_without_the_other_that_holds_nothing() -> None:
    waiting = recovery()
    waiting.come(SERVERS[1])
    assert not waiting.is_over(0.9)
    assert waiting.is_over(1.1)


def test_servers_that_are_certainly_dead_are_not_waited_for() -> None:
    waiting = recovery(101, 102)
    assert waiting.is_over(1.1)
