"""Strangers, liars and the dying: one link suffers, the others go on."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from tests.busy import is_within
from tests.transport.rig import FORMS, TOKEN, Node, ack, expect_soon, linked, node, open_files, private, resident_bytes
from windlass._transport.options import TransportOptions
from windlass._wire.auth import HELLO
from windlass._wire.effects import LinkDown, LinkUp, Received
from windlass._wire.frame import HEADER, encode_message
from windlass.types import Incarnation

TCP = "tcp:127.0.0.1:0"


def connect(one: Node) -> socket.socket:
    scheme, _, rest = one.hub.addresses[0].partition(":")
    if scheme == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect("\0" + rest[1:])
    else:
        host, _, port = rest.rpartition(":")
        sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    return sock


def was_closed(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_wrong_token_is_reported_to_the_dialler_and_logged_by_the_acceptor(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = node(1, form), node(2, token=b"guess")
    with one.hub, two.hub:
        two.hub.dial(one.me, one.hub.addresses)
        expect_soon([one, two], lambda: bool(two.of(LinkDown)))
        assert "did not prove the cluster token; check WINDLASS_TOKEN" in two.of(LinkDown)[0].reason
        assert one.events == []
        assert "node 2, did not prove the cluster token; check WINDLASS_TOKEN" in caplog.text


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("said", [b"", b"WLHS"])
def test_a_caller_that_goes_away_by_itself_is_no_warning(
    form: str, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """So goes a node that is killed as it dials."""
    one = node(1, form)
    with one.hub, caplog.at_level("INFO", logger="windlass"):
        with connect(one) as stranger:
            stranger.send(said)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # over TCP it is a reset
        expect_soon([one], lambda: "was turned away" in caplog.text)
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_a_node_that_is_not_the_one_dialled_says_so() -> None:
    one, two = node(1, "unix"), node(2)
    with one.hub, two.hub:
        two.hub.dial(Incarnation(5), one.hub.addresses)
        expect_soon([one, two], lambda: bool(two.of(LinkDown)))
        assert "dialled node 5, got node 1" in two.of(LinkDown)[0].reason
        assert one.events == []


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_random_bytes_on_a_live_port_harm_nobody(form: str) -> None:
    rng = random.Random(1)
    with linked(form) as (one, two):
        before, files = 0, open_files()
        for attack in range(300):
            if attack == 50:
                before = resident_bytes()
            with connect(one) as stranger:
                stranger.setblocking(True)
                try:
                    stranger.sendall(rng.randbytes(rng.choice((1, 63, 64, 65, 500, 100_000))))
                except OSError:
                    pass  # turned away while still talking
                two.send(one, ack(attack), *private(1))
                expect_soon([one, two], lambda attack=attack: len(one.messages) == attack + 1)  # type: ignore[misc]
        expect_soon([one, two], lambda: len(open_files()) <= len(files))
        assert one.of(LinkDown) == two.of(LinkDown) == []
        assert resident_bytes() - before < 16 << 20


def test_frames_before_the_proof_are_not_read() -> None:
    one = node(1, TCP)
    with one.hub, connect(one) as stranger:
        stranger.send(encode_message(ack(1)) * 10)
        expect_soon([one], lambda: was_closed(stranger))
        assert one.events == []


def test_a_hello_and_no_proof_gets_nowhere() -> None:
    one = node(1, TCP, options=TransportOptions(listen=(TCP,), prove_seconds=0.1))
    with one.hub, connect(one) as stranger:
        stranger.send(HELLO.pack(b"WLHS", 1, 0, 0, 2, 1, 0, bytes(32)))
        began = time.monotonic()
        expect_soon([one], lambda: was_closed(stranger))
        assert time.monotonic() - began >= 0.1
        assert one.events == []


def test_strangers_that_wait_make_room_for_others_and_are_dropped_at_the_deadline() -> None:
    options = TransportOptions(listen=(TCP,), max_unproven=4, prove_seconds=1.5)
    one, two = node(1, options=options), node(2)
    with one.hub, two.hub:
        strangers = [connect(one) for _ in range(12)]
        two.hub.dial(one.me, one.hub.addresses)
        began = time.monotonic()
        expect_soon([one, two], lambda: bool(two.of(LinkUp)))
        assert is_within(time.monotonic() - began, 4)
        expect_soon([one, two], lambda: all(map(was_closed, strangers)))
        for stranger in strangers:
            stranger.close()


def test_more_links_than_allowed_are_refused_with_the_reason() -> None:
    one, two, three = node(1, options=TransportOptions(listen=("unix",), max_links=1)), node(2), node(3)
    with one.hub, two.hub, three.hub:
        two.hub.dial(one.me, one.hub.addresses)
        expect_soon([one, two], lambda: bool(two.of(LinkUp)))
        three.hub.dial(one.me, one.hub.addresses)
        expect_soon([one, three], lambda: bool(three.of(LinkDown)))
        assert "raise max_links there" in three.of(LinkDown)[0].reason


def test_a_malformed_frame_closes_that_link_only() -> None:
    one, liar, honest = node(1, "unix"), node(2), node(3)
    nodes = [one, liar, honest]
    try:
        for other in (liar, honest):
            other.hub.dial(one.me, one.hub.addresses)
        expect_soon(nodes, lambda: bool(liar.of(LinkUp) and honest.of(LinkUp)))
        liar.send(one, ack(1))
        link = liar.hub._links[one.me]
        link.outbox.add(HEADER.pack(b"WL", 1, 0, 5, 1 << 50) + b"hello")
        liar.hub.flush()
        honest.send(one, ack(2))
        expect_soon(nodes, lambda: bool(one.of(LinkDown)) and ack(2) in one.messages)
        assert one.of(LinkDown)[0].peer == liar.me
        assert "expected at most 67108864 bytes of payload, got 1125899906842624" in one.of(LinkDown)[0].reason
        assert ack(1) in one.messages  # what came before the malformed frame counts
        honest.send(one, ack(3))
        expect_soon(nodes, lambda: ack(3) in one.messages)
    finally:
        for each in nodes:
            each.hub.close()


def test_a_large_frame_that_is_only_promised_costs_no_memory() -> None:
    with linked(TCP) as (one, two):
        link = two.hub._links[one.me]
        frame = encode_message(ack(1), [64 << 20], (), 64 << 20)
        before = resident_bytes()
        link.outbox.add(frame)
        two.hub.flush()
        for _ in range(20):
            one.poll(0.001)
        assert resident_bytes() - before < 8 << 20


PEER = """
import sys
from windlass._transport.hub import SocketHub
from windlass._wire.effects import LinkUp, Received, Send
hub = SocketHub(2, sys.argv[1].encode())
hub.dial(1, sys.argv[2:])
while True:
    for event in hub.poll(None):
        if isinstance(event, Received):
            hub.send(Send(1, event.message))
"""


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_killed_process_is_noticed_at_once_and_its_memory_stays_readable(form: str) -> None:
    one = node(1, form)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PEER, TOKEN.decode(), *one.hub.addresses]
    with one.hub, subprocess.Popen(command, env=environment) as process:
        expect_soon([one], lambda: bool(one.of(LinkUp)), 30)
        process.send_signal(signal.SIGKILL)
        process.wait()
        began = time.monotonic()
        expect_soon([one], lambda: bool(one.of(LinkDown)))
        assert is_within(time.monotonic() - began, 1)
        assert one.of(LinkDown)[0].peer == 2


def test_a_reset_connection_is_a_link_down() -> None:
    with linked(TCP) as (one, two):
        sock = two.hub._links[one.me].sock
        assert isinstance(sock, socket.socket)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        two.hub._epoll.unregister(sock.fileno())
        sock.close()
        expect_soon([one], lambda: bool(one.of(LinkDown)))
        assert "the connection to node 2 broke: Connection reset by peer" in one.of(LinkDown)[0].reason
        two.hub._links.clear()
        two.hub._doors.by_fd.clear()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_thousand_links_on_one_hub(form: str) -> None:
    one = node(1, form)
    others = [node(2 + n) for n in range(1000)]
    with one.hub, ExitStack() as opened:
        for other in others:
            opened.callback(other.hub.close)  # whatever happens: a thousand files are in the way of other tests
            other.hub.dial(one.me, one.hub.addresses)
        until = time.monotonic() + 120
        waiting = others
        while waiting:
            assert time.monotonic() < until
            one.poll(0)
            for other in waiting:
                if any(isinstance(event, LinkDown) for event in other.poll(0)):
                    other.hub.dial(one.me, one.hub.addresses)  # turned away, as the machine is slow: it comes again
            waiting = [other for other in waiting if not other.of(LinkUp)]
        expect_soon([one], lambda: len({event.peer for event in one.of(LinkUp)}) == 1000)
        for other in others:
            one.send(other, ack(other.me))
        one.hub.flush()
        for other in others:
            expect_soon([other], lambda other=other: other.messages == [ack(other.me)])  # type: ignore[misc]
            other.send(one, ack(0))
            other.hub.close()
        expect_soon([one], lambda: len(one.of(LinkDown)) == len(one.of(LinkUp)))
        assert len(one.of(Received)) == 1000
