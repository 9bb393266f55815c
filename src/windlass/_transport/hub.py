"""All socket links of one node: one epoll, one thread, nothing that blocks.

`poll` is the loop: write what is queued, wait, read each ready link once, and hand out what came. One read per link
and turn keeps a link that sends without pause from starving the others. Making links is in doors.py; this file is what
happens on links that are open.
"""

from __future__ import annotations

import os
import resource
import select
import threading
import time
from collections.abc import Sequence

from windlass._transport.base import HubEvent
from windlass._transport.doors import Doors
from windlass._transport.inbox import Goodbye, Inbox, Scratch
from windlass._transport.link import MAX_COPIED_BYTES, Link, LinkState
from windlass._transport.mapping import ContiguousViews
from windlass._transport.options import TransportOptions
from windlass._transport.patience import Patience
from windlass._transport.pool import BufferPool
from windlass._transport.segments import PeerSegments
from windlass._transport.shared import Arena
from windlass._wire.auth import check_token
from windlass._wire.effects import LinkDown, LinkUp, Send
from windlass._wire.frame import encode_goodbye
from windlass.errors import PeerError, UsageError
from windlass.types import Block, Bytes, Incarnation

SCRATCH_BYTES = 256 << 10
_MAX_READY = 64
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_OPEN = LinkState.OPEN


class SocketHub:
    """`Hub` over Unix sockets with shared memory, TCP and TLS. Use as a context manager, or `close` it.

    Pins of a Send that was carried by reference are never reported Sent: the peer releases them. Nor are those of a
    link that goes down: LinkDown is the report. Raises the process's soft limit of open files to the hard one.
    """

    def __init__(self, me: Incarnation, token: bytes, *, options: TransportOptions | None = None) -> None:
        check_token(token)
        _raise_file_limit()
        self.me = me
        self.memory = Arena()
        self._options = options or TransportOptions()
        self._scratch = Scratch(SCRATCH_BYTES)
        self._pool = BufferPool(self._options.pool_bytes)
        self._views = ContiguousViews()
        self._events: list[HubEvent] = []
        self._num_news = 0  # how many of them are LinkUp or LinkDown
        self._links: dict[Incarnation, Link] = {}
        self._dirty: dict[Link, None] = {}  # links with something queued, in the order they got it
        self._again: dict[Link, None] = {}  # links to read although epoll may not say so
        self._is_closed = False
        self._wake_lock = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._patience = Patience(self._epoll, _MAX_READY)
        self._epoll.register(self._wake_fd, _IN)
        try:
            self._doors = Doors(self, me, token, self._options)
        except BaseException:
            self._epoll.close()
            os.close(self._wake_fd)
            raise

    def __enter__(self) -> SocketHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = ", ".join(self.addresses) or "not listening"
        return f"<SocketHub node {self.me} at {where} | {len(self._links)} links>"

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._doors.addresses

    @property
    def copied_bytes(self) -> int:
        return MAX_COPIED_BYTES

    @property
    def has_unsent(self) -> bool:
        return bool(self._dirty)

    def dial(self, peer: Incarnation, addresses: Sequence[str]) -> None:
        if not self._is_closed and peer not in self._links:
            self._doors.dial(peer, addresses)

    def send(self, send: Send) -> None:
        """Queue; dropped without a word when no link is open. Raises UsageError for data above max_payload_bytes."""
        link = self._links.get(send.peer)
        if link is not None and link.is_known and not link.write_error:
            link.queue(send, self._options.frames.max_payload_bytes)
            self._dirty[link] = None

    def flush(self) -> None:
        if self.memory.retired:
            self._retire_segments()
        for link in list(self._dirty):
            if not link.is_blocked:
                self.write(link)

    def poll(self, timeout: float | None) -> list[HubEvent]:
        if self._is_closed:
            return []
        has_leftover = bool(self._events)
        if self._dirty or self.memory.retired:
            self.flush()
        until = None if timeout is None else time.monotonic() + timeout
        # Links are looked at even if flushing gave events: a caller that always has something to send must hear, too.
        while not has_leftover:
            is_woken = self._turn(self._wait_seconds(until))
            if self._events or is_woken or (until is not None and time.monotonic() >= until):
                break
        if self._num_news:
            return self._take_with_news()
        events, self._events = self._events, []
        return events

    def _take_with_news(self) -> list[HubEvent]:
        """Events while some are of links that came or went: a run without news, or a run of news. A link can be sent
        on only once its LinkUp was handed over: else what is decided before the news would travel on a link not yet
        known, and be given up by the LinkDown of the one it replaced."""
        events = self._events
        is_news = isinstance(events[0], LinkUp | LinkDown)
        end = next((n for n, one in enumerate(events) if isinstance(one, LinkUp | LinkDown) != is_news), len(events))
        run, self._events = events[:end], events[end:]
        if is_news:
            self._num_news -= len(run)
            later = {event.peer for event in self._events if isinstance(event, LinkUp | LinkDown)}
            for peer in {event.peer for event in run if isinstance(event, LinkUp)} - later:
                if peer in self._links:
                    self._links[peer].is_known = True
        return run

    def _tell(self, event: LinkUp | LinkDown) -> None:
        self._events.append(event)
        self._num_news += 1

    def own_unsent(self) -> None:
        for link in self._dirty:
            link.outbox.own()

    def recycle(self, data: tuple[Bytes, ...]) -> None:
        self._pool.give(data)

    def contiguous(self, arrays: Sequence[Bytes]) -> Bytes | None:
        """Received arrays of shared memory, one after the other, as one read-only array without a copy; None where
        their alignment forbids it or they are not shared. It keeps the memory until it is dropped. Quick for parts
        that were asked for a short while ago."""
        return self._views.view(arrays)

    def shares_memory_with(self, peer: Incarnation) -> bool:
        link = self._links.get(peer)
        return link is not None and link.carries_references

    def dedicated(self, nbytes: int) -> Block:
        return self.memory.dedicated(nbytes)

    def hangup(self, peer: Incarnation, reason: str) -> None:
        link = self._links.get(peer)
        if link is not None:
            self._say_goodbye(link, reason)
            self._lose(link, reason)
        elif self._doors.cancel(peer):
            self._tell(LinkDown(peer, reason))

    def wake(self) -> None:
        with self._wake_lock:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Blocks for at most `close_seconds` while peers take what is queued."""
        if self._is_closed:
            return
        self._drain(time.monotonic() + self._options.close_seconds)
        with self._wake_lock:
            self._is_closed = True
        for link in list(self._links.values()):
            self._say_goodbye(link, f"node {self.me} closed")
            self.forget(link)
        self._doors.close()
        self._links.clear()
        self._events.clear()
        self._views.clear()
        self.memory.close()
        self._epoll.close()
        os.close(self._wake_fd)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _wait_seconds(self, until: float | None) -> float | None:
        if self._events or self._again:
            return 0
        due = self._doors.due
        if due is not None and (until is None or due < until):
            until = due
        return None if until is None else max(0.0, until - time.monotonic())

    def _turn(self, wait: float | None) -> bool:
        """One wait, and one read or write of every link that is ready; whether `wake` was called."""
        is_woken = False
        by_fd = self._doors.by_fd
        for fd, mask in self._patience.wait(wait):
            link = by_fd.get(fd)
            if link is None:
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
                    is_woken = True
                else:
                    self._doors.answer(fd)
            elif link.state is _OPEN:
                if mask != _OUT:
                    self._read(link)
                if mask & _OUT and link.state is _OPEN:
                    self.write(link)
            else:
                self._doors.advance(link)
        if self._again:
            again, self._again = self._again, {}
            for link in again:
                if link.state is _OPEN:
                    self._read(link)
                elif link.state is not LinkState.CLOSED:
                    self._doors.advance(link)
        if wait is not None and self._doors.due is not None:
            self._doors.expire(time.monotonic())
        return is_woken

    def _read(self, link: Link) -> None:
        try:
            came = link.read(self._scratch, self._events)
        except PeerError as error:
            self._say_goodbye(link, f"you broke protocol: {error}")
            self._lose(link, f"node {link.peer} broke protocol: {error}")
        except Goodbye as error:
            self._lose(link, f"node {link.peer} hung up: {error}", is_goodbye=True)
        except EOFError:  # without a goodbye: on this machine only the end of its process does that
            self._lose(link, f"node {link.peer} closed the connection", is_death=link.is_local)
        except OSError as error:
            text = f"the connection to node {link.peer} broke: {error.strerror or error}"
            self._lose(link, text, is_death=link.is_local)
        else:
            if link.write_error:
                if came:  # the peer's last words, perhaps why it closed
                    self._again[link] = None
                else:
                    self._lose(link, link.write_error, is_death=link.is_local)
            elif link.has_pending:
                self._again[link] = None

    def write(self, link: Link) -> None:
        """Hand the link's socket as much as it takes."""
        try:
            is_empty = link.outbox.write(link.sock, self._events)
        except OSError as error:
            # What the peer sent before it closed is still to be read; the read will find the end.
            link.write_error = f"the connection to node {link.peer} broke: {error.strerror or error}"
            link.outbox.clear()
            is_empty = True
            self._again[link] = None
        if is_empty:
            self._dirty.pop(link, None)
        else:
            self._dirty[link] = None
        is_blocked = not is_empty and link.waits_for_room
        if link.is_blocked is not is_blocked:
            link.is_blocked = is_blocked
            self._epoll.modify(link.fd, _IN | _OUT if is_blocked else _IN)

    # --- what links become --------------------------------------------------------------------------------------------

    def watch(self, link: Link) -> None:
        """Begin to wait for this link's socket."""
        is_connecting = link.state is LinkState.CONNECTING
        self._epoll.register(link.fd, _IN | _OUT if is_connecting else _IN)
        link.is_blocked = is_connecting

    def listen(self, fd: int, is_listening: bool) -> None:
        """Wait, or do not, for callers at this listener."""
        self._epoll.register(fd, _IN) if is_listening else self._epoll.unregister(fd)

    def holder(self, peer: Incarnation) -> Link | None:
        """The open link to this peer."""
        return self._links.get(peer)

    @property
    def num_links(self) -> int:
        return len(self._links)

    def opened(self, link: Link) -> None:
        """Both sides have proved the token. A link that this one replaces goes down first."""
        peer, proving = link.peer, link.proving
        old = self._links.get(peer)
        if old is not None:
            self._lose(old, "replaced by a newer link")
        side = None if proving is None else proving.take_side()
        segments = None if side is None else PeerSegments(self._options.segments, side)
        link.open(Inbox(peer, self._options.frames, self._pool, segments), segments, self.memory)
        self._links[peer] = link
        self._tell(LinkUp(peer))
        if link.has_pending:
            self._again[link] = None

    def unreachable(self, peer: Incarnation, reason: str) -> None:
        """A dial came to nothing. Not worth a word if the peer has reached us meanwhile."""
        if peer not in self._links:
            self._tell(LinkDown(peer, reason))

    def forget(self, link: Link) -> None:
        """Close a link and stop waiting for it, without a word."""
        if link.state is LinkState.CLOSED:
            return
        del self._doors.by_fd[link.fd]
        self._epoll.unregister(link.fd)
        self._dirty.pop(link, None)
        self._again.pop(link, None)
        link.close()

    def _lose(self, link: Link, reason: str, *, is_death: bool = False, is_goodbye: bool = False) -> None:
        self.forget(link)
        del self._links[link.peer]
        self._tell(LinkDown(link.peer, reason, is_death, is_goodbye))

    def _say_goodbye(self, link: Link, reason: str) -> None:
        link.outbox.add(encode_goodbye(reason))
        try:
            link.outbox.write(link.sock, self._events)
        except OSError:
            pass  # it is being closed anyway

    def _retire_segments(self) -> None:
        numbers = [self.memory.retired.popleft() for _ in range(len(self.memory.retired))]
        for link in self._links.values():
            if link.retire(numbers):
                self._dirty[link] = None

    def _drain(self, until: float) -> None:
        self.flush()
        while self._dirty and (left := until - time.monotonic()) > 0:
            self._turn(left)
            self.flush()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            raise UsageError(f"cannot raise the limit of open files from {soft} to {hard}: {error}") from error
