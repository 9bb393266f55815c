"""A stream of Python objects over an inherited socketpair.

Cloudpickle is used on these inherited sockets and nowhere else: nothing here may be pointed at a network.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cloudpickle

_HEADER = struct.Struct("<Q")
_ONE_SEND_BYTES = 1 << 16


class ChannelClosed(EOFError):
    """The other end is gone or this end is closed, and all that arrived before was received."""


class Channel:
    """One end of a stream of Python objects between two processes.

    Any thread may send and any may receive. A call interrupted within a message, by Ctrl-C say, closes the channel:
    half a message cannot be taken back. A `recv` that still waits for its first byte may be interrupted freely.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._owner = os.getpid()
        self._sending = threading.Lock()
        self._receiving = threading.Lock()

    def __repr__(self) -> str:
        return f"<Channel {'closed' if self.fileno() < 0 else f'fd={self.fileno()}'}>"

    def fileno(self) -> int:
        """Readable when `recv` has something to return or raise; -1 once closed."""
        return self._sock.fileno()

    def send(self, obj: object) -> None:
        """Blocks until the operating system has taken all of it. Raises ChannelClosed; what cannot be pickled raises
        before anything is sent. Functions and classes of `__main__` travel by value."""
        body = cloudpickle.dumps(obj, protocol=5)
        header = _HEADER.pack(len(body))
        with self._sending, self._whole_message():
            if len(body) <= _ONE_SEND_BYTES:
                self._sock.sendall(header + body)
            else:
                self._sock.sendall(header)
                self._sock.sendall(body)

    def recv(self) -> Any:
        """Blocks for the next object. Raises ChannelClosed, an EOFError, at the end of the stream. An object that
        cannot be rebuilt here raises its own error and is skipped."""
        with self._receiving:
            self.readable(None)
            with self._whole_message():
                (length,) = _HEADER.unpack(self._exactly(_HEADER.size))
                body = self._exactly(length)
        return pickle.loads(body)

    def readable(self, timeout: float | None) -> bool:
        """Waits up to `timeout` seconds for something to receive, the end of the stream included."""
        fd = self.fileno()
        if fd < 0:
            raise ChannelClosed("this channel was closed here")
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1e3))

    def send_fd(self, fd: int) -> None:
        """Pass an open file between two messages; the other end calls `recv_fd` at the same point."""
        with self._sending, self._whole_message():
            socket.send_fds(self._sock, [b"\0"], [fd])

    def recv_fd(self) -> int:
        """The file that the other end passed; the caller closes it. Blocks; raises ChannelClosed."""
        with self._receiving, self._whole_message():
            _, fds, _, _ = socket.recv_fds(self._sock, 1, 1)
            if not fds:
                raise ChannelClosed("the other end of the channel is gone")
            os.set_inheritable(fds[0], False)
            return fds[0]

    def shut(self) -> None:
        """End the stream both ways, for every process that holds this socket; what has arrived stays receivable."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Wakes whoever waits on either end. Safe to repeat. A forked copy of the owner only lets go of its copy."""
        if os.getpid() == self._owner:
            self.shut()
        self._sock.close()

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view, done = memoryview(data), 0
        while done < length:
            count = self._sock.recv_into(view[done:])
            if not count:
                raise ChannelClosed("the other end of the channel is gone")
            done += count
        return data

    @contextmanager
    def _whole_message(self) -> Iterator[None]:
        try:
            yield
        except ChannelClosed:
            raise
        except OSError as error:
            raise ChannelClosed(f"the other end of the channel is gone: {error}") from error
        except BaseException:
            self.shut()
            raise
