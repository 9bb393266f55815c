"""The stream of objects between driver and child."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from windlass.engines._children import Channel, ChannelClosed


class Interrupt(Exception):
    pass


class Unbuildable:
    def __reduce__(self) -> Any:
        return (int, ("not a number",))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = (Channel(sock) for sock in socket.socketpair())
    yield left, right
    left.close()
    right.close()


@contextmanager
def interrupted_once(is_so: Callable[[], bool]) -> Iterator[None]:
    """Inside, once it is so, an exception out of the main thread's blocking call, as Ctrl-C would raise it."""
    main, is_over = threading.main_thread().ident, threading.Event()
    assert main is not None
    shots = []

    def interrupt(signum: int, frame: object) -> None:
        if not shots:
            shots.append(signum)
            raise Interrupt

    def strike() -> None:
        while not is_over.wait(0.01):
            if is_so():
                signal.pthread_kill(main, signal.SIGALRM)  # again, should it not have been blocking yet

    before = signal.signal(signal.SIGALRM, interrupt)
    striking = threading.Thread(target=strike)
    striking.start()
    try:
        with pytest.raises(Interrupt):
            yield
    finally:
        is_over.set()
        striking.join()
        signal.signal(signal.SIGALRM, before)


def is_receiving() -> bool:
    """Whether the main thread waits for something to receive."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and frame.f_code.co_name == "readable"


def test_objects_travel_both_ways_in_order(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"a": [1, 2.5, None]})
    left.send(b"")
    right.send("back")
    assert [right.recv(), right.recv(), left.recv()] == [{"a": [1, 2.5, None]}, b"", "back"]


def test_a_message_larger_than_the_socket_buffer_arrives_whole(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    array = np.arange(5_000_000)
    sender = threading.Thread(target=left.send, args=(array,))
    sender.start()
    np.testing.assert_array_equal(right.recv(), array)
    sender.join()


def test_lambdas_and_closures_travel(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    offset = 40
    left.send(lambda x: x + offset)
    assert right.recv()(2) == 42


def test_messages_of_many_threads_do_not_mix(ends: tuple[Channel, Channel]) -> None:
    left, right = ends

    def send_many(sender: int) -> None:
        for n in range(30):
            left.send((sender, n, bytes(50_000 * (n % 3))))

    senders = [threading.Thread(target=send_many, args=(i,)) for i in range(4)]
    for sender in senders:
        sender.start()
    got = [right.recv()[:2] for _ in range(120)]
    for sender in senders:
        sender.join()
    assert [[n for i, n in got if i == k] for k in range(4)] == [list(range(30))] * 4


def test_what_was_sent_before_the_end_is_received_before_eof(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    right.send("never read")  # unread data turns the close into a reset
    left.send("last words")
    left.close()
    assert right.recv() == "last words"
    with pytest.raises(EOFError):
        right.recv()
    with pytest.raises(EOFError):
        right.send("too late")


def test_shutting_keeps_what_has_arrived(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send("arrived")
    right.shut()
    assert right.recv() == "arrived"
    with pytest.raises(ChannelClosed):
        right.recv()


def test_closing_wakes_a_receiver_in_another_thread(ends: tuple[Channel, Channel]) -> None:
    left, _ = ends
    outcome: list[BaseException] = []

    def receive() -> None:
        try:
            left.recv()
        except EOFError as error:
            outcome.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    receiver.join(0.05)
    left.close()
    receiver.join(5)
    assert len(outcome) == 1
    assert left.fileno() == -1
    left.close()


def test_an_interrupt_while_waiting_loses_nothing(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    with interrupted_once(is_receiving):
        right.recv()
    left.send("still in step")
    assert right.recv() == "still in step"


def test_an_interrupt_within_a_message_ends_the_stream(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    with interrupted_once(lambda: right.readable(0)):
        left.send(bytes(10_000_000))  # nobody receives it
    with pytest.raises(ChannelClosed):
        left.send("would be taken for the rest")
    with pytest.raises(ChannelClosed):
        right.recv()


def test_what_cannot_be_pickled_is_refused_before_anything_is_sent(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    with pytest.raises(TypeError, match="cannot pickle"):
        left.send(threading.Lock())
    left.send("next")
    assert right.recv() == "next"


def test_what_cannot_be_rebuilt_raises_and_is_skipped(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send(Unbuildable())
    left.send("next")
    with pytest.raises(ValueError, match="not a number"):
        right.recv()
    assert right.recv() == "next"


def test_a_forked_copy_that_closes_does_not_end_the_stream(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    if (pid := os.fork()) == 0:
        left.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    left.send("alive")
    assert right.recv() == "alive"
