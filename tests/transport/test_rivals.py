"""Two links between the same two nodes: exactly one survives, the same one on both sides."""

from __future__ import annotations

import random

import pytest

from tests.transport.rig import FORMS, Node, ack, expect_soon, node
from windlass._transport.link import LinkState
from windlass._transport.rivals import Pedigree, newcomer_wins, own_dial_stands
from windlass._wire.auth import Claim
from windlass._wire.effects import LinkDown, LinkUp
from windlass.types import Incarnation

LOW, HIGH = Incarnation(1), Incarnation(2)


def test_whoever_dials_again_has_given_its_old_link_up() -> None:
    assert newcomer_wins(Claim(HIGH, link=9, after=0), Pedigree(HIGH, link=5))
    assert newcomer_wins(Claim(LOW, link=9, after=0), Pedigree(LOW, link=5))


def test_whoever_knew_the_old_link_when_it_dialled_has_given_it_up() -> None:
    assert newcomer_wins(Claim(HIGH, link=9, after=5), Pedigree(LOW, link=5))


def test_of_two_dials_at_once_the_lower_nodes_is_kept() -> None:
    assert newcomer_wins(Claim(LOW, link=9, after=0), Pedigree(HIGH, link=5))
    assert not newcomer_wins(Claim(HIGH, link=9, after=0), Pedigree(LOW, link=5))
    assert own_dial_stands(LOW, HIGH)
    assert not own_dial_stands(HIGH, LOW)


def is_up(one: Node) -> bool:
    links = [event for event in one.events if isinstance(event, LinkUp | LinkDown)]
    return bool(links) and isinstance(links[-1], LinkUp)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("seed", range(25))
def test_nodes_that_dial_each_other_at_once_end_with_one_link_that_works(form: str, seed: int) -> None:
    rng = random.Random(seed)
    one, two = node(1, form), node(2, form)
    nodes = [one, two]
    with one.hub, two.hub:
        dials = [(one, two), (two, one)]
        rng.shuffle(dials)
        for a, b in dials:
            a.hub.dial(b.me, b.hub.addresses)
            for _ in range(rng.randrange(4)):
                rng.choice(nodes).poll(0)
        for _ in range(60):
            rng.choice(nodes).poll(0)
        expect_soon(nodes, lambda: is_up(one) and is_up(two))
        for _ in range(20):
            one.poll(0.0005)
            two.poll(0.0005)
        assert is_up(one)
        assert is_up(two)
        assert (one.hub.num_links, two.hub.num_links) == (1, 1)
        one.send(two, ack(1))
        two.send(one, ack(2))
        expect_soon(nodes, lambda: bool(one.messages and two.messages))
        assert (one.messages, two.messages) == ([ack(2)], [ack(1)])


@pytest.mark.parametrize("is_lower_back", [True, False])
def test_a_node_that_comes_back_replaces_its_half_dead_link(is_lower_back: bool) -> None:
    stayed, left = (node(2, "unix"), node(1)) if is_lower_back else (node(1, "unix"), node(2))
    with stayed.hub:
        left.hub.dial(stayed.me, stayed.hub.addresses)
        expect_soon([stayed, left], lambda: is_up(stayed) and is_up(left))
        # The old process hangs, its socket open; another takes its number up, as after a partition.
        back = node(left.me)
        with back.hub:
            back.hub.dial(stayed.me, stayed.hub.addresses)
            expect_soon([stayed, back], lambda: is_up(back))
            assert stayed.events == [
                LinkUp(left.me), LinkDown(left.me, "replaced by a newer link"), LinkUp(left.me)
            ]
            stayed.send(back, ack(1))
            expect_soon([stayed, back], lambda: back.messages == [ack(1)])
            expect_soon([left], lambda: bool(left.of(LinkDown)))
        left.hub.close()


def test_the_higher_node_too_replaces_a_link_that_it_knows_to_be_dead() -> None:
    # Node 2 was linked by node 1's dial and lost that link, which node 1 has not noticed. Node 2 knows of it, so its
    # own dial is let in.
    one, two = node(1, "unix"), node(2, "unix")
    with one.hub, two.hub:
        one.hub.dial(two.me, two.hub.addresses)
        expect_soon([one, two], lambda: is_up(one) and is_up(two))
        dead = two.hub._links[one.me]
        dead.state = LinkState.PROVING  # closed without a goodbye, and
        with dead.sock.dup():  # type: ignore[union-attr]  # with this copy open node 1 cannot see the end
            two.hub._lose(dead, "cut")
            two.hub.dial(one.me, one.hub.addresses)
            expect_soon([two, one], lambda: len(two.of(LinkUp)) == 2)
            assert one.events == [LinkUp(two.me), LinkDown(two.me, "replaced by a newer link"), LinkUp(two.me)]
            two.send(one, ack(1))
            expect_soon([one, two], lambda: one.messages == [ack(1)])
