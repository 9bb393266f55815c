"""How links come to be: listeners, callers that have not proved the token yet, and dials under way.

Strangers get as far as this file and no further. A caller may take a descriptor and a few hundred bytes, for
`prove_seconds` at most, and only `max_unproven` of them at a time.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Protocol

from windlass._transport.address import Address, Scheme, begin_connect, tune
from windlass._transport.dialling import RETRY_SECONDS, Attempt, admission, attempt_for
from windlass._transport.link import Link, LinkState
from windlass._transport.listeners import Listeners
from windlass._transport.options import TransportOptions
from windlass._transport.proving import Proving
from windlass._transport.rivals import Pedigree, newcomer_wins, own_dial_stands
from windlass._transport.tls import TlsContexts
from windlass._wire.auth import NONCE_BYTES, Acceptor, Claim, Dialler, DuplicateLink, HandshakeError, Verdict
from windlass.errors import PeerError
from windlass.types import Incarnation

_ACCEPTS_PER_TURN = 64
_OUT_OF_FILES_SECONDS = 0.1

_log = logging.getLogger("windlass.transport")


class Keeper(Protocol):
    """What the doors need of the hub."""

    def watch(self, link: Link) -> None: ...

    def listen(self, fd: int, is_listening: bool) -> None: ...

    def write(self, link: Link) -> None: ...

    def opened(self, link: Link) -> None: ...

    def unreachable(self, peer: Incarnation, reason: str) -> None: ...

    def forget(self, link: Link) -> None: ...

    def holder(self, peer: Incarnation) -> Link | None: ...

    @property
    def num_links(self) -> int: ...


class Doors:
    """Makes links for a hub, in the hub's thread. `by_fd` holds every link of the hub, open ones too."""

    def __init__(self, hub: Keeper, me: Incarnation, token: bytes, options: TransportOptions) -> None:
        self.by_fd: dict[int, Link] = {}
        self._hub, self._me, self._token, self._options = hub, me, token, options
        self._unproven: dict[Link, None] = {}  # callers, oldest first
        self._attempts: dict[Incarnation, Attempt] = {}
        self._last_link: dict[Incarnation, int] = {}  # the newest link with each peer that we know of
        self._warned_at = 0.0
        self._tls = None if options.tls is None else TlsContexts(options.tls)
        self._listeners = Listeners(
            options.listen, options.advertise_host, has_tls=self._tls is not None, watch=hub.listen
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._listeners.addresses

    @property
    def due(self) -> float | None:
        """When `expire` has something to do; None: nothing is under way."""
        resume_at = self._listeners.resume_at
        if not self._attempts and not self._unproven and resume_at is None:
            return None
        times = [attempt.due for attempt in self._attempts.values()]
        if self._unproven:
            times.append(next(iter(self._unproven)).deadline)
        if resume_at is not None:
            times.append(resume_at)
        return min(times)

    def close(self) -> None:
        for link in list(self.by_fd.values()):
            self._hub.forget(link)
        self._listeners.close()
        self._attempts.clear()
        self._unproven.clear()

    # --- dialling -----------------------------------------------------------------------------------------------------

    def dial(self, peer: Incarnation, addresses: Sequence[str]) -> None:
        if peer in self._attempts:
            return
        if peer == self._me:
            self._hub.unreachable(peer, f"node {peer} dialled itself")
            return
        attempt = self._attempts[peer] = attempt_for(peer, addresses)
        self._try_next(attempt)

    def cancel(self, peer: Incarnation) -> bool:
        """Give up dialling this peer, without a word; whether it was being dialled."""
        attempt = self._attempts.pop(peer, None)
        if attempt is not None and attempt.link is not None:
            self._hub.forget(attempt.link)
        return attempt is not None

    def _try_next(self, attempt: Attempt) -> None:
        now = time.monotonic()
        if attempt.retry_at is None:
            attempt.give_up_at = now + self._options.dial_seconds
        attempt.link = attempt.retry_at = None
        while attempt.addresses:
            address = attempt.addresses[0]
            try:
                sock, is_connected = begin_connect(address)
            except BlockingIOError:
                if now < attempt.give_up_at:
                    attempt.retry_at = now + RETRY_SECONDS
                    return
                attempt.failures.append(f"{address}: its queue of callers stayed full")
            except OSError as error:
                attempt.failures.append(f"{address}: {error.strerror or error}")
            else:
                attempt.addresses.popleft()
                self._dialled(attempt, sock, address, is_connected)
                return
            attempt.addresses.popleft()
            attempt.give_up_at = now + self._options.dial_seconds
        del self._attempts[attempt.peer]
        self._hub.unreachable(attempt.peer, attempt.reason())

    def _dialled(self, attempt: Attempt, sock: socket.socket, address: Address, is_connected: bool) -> None:
        link = Link(sock, address, time.monotonic() + self._options.dial_seconds)
        link.peer, link.is_dialled = attempt.peer, True
        attempt.link = link
        self.by_fd[link.fd] = link
        if is_connected:
            link.state = LinkState.PROVING
        self._hub.watch(link)
        if is_connected:
            self._introduce(link)

    def _introduce(self, link: Link) -> None:
        try:
            self._prepare(link)
        except OSError as error:
            self._failed(link, error.strerror or str(error))
            return
        after = self._last_link.get(link.peer, 0)
        handshake = Dialler(self._me, link.peer, self._token, secrets.token_bytes(NONCE_BYTES), after)
        link.state, link.proving = LinkState.PROVING, Proving(handshake, has_side=link.carries_references)
        link.pedigree = Pedigree(self._me, handshake.link)
        link.outbox.add(handshake.hello)
        self._hub.write(link)

    def _prepare(self, link: Link) -> None:
        assert isinstance(link.sock, socket.socket)
        tune(link.sock, link.where.scheme, self._options.link_bytes_per_second)
        if link.where.scheme is Scheme.TLS:
            if self._tls is None:
                raise OSError("it needs TransportOptions(tls=TlsFiles(...)), got none")
            link.encrypt(self._tls)

    # --- accepting ----------------------------------------------------------------------------------------------------

    def answer(self, fd: int) -> None:
        """Somebody is at this listener."""
        listener = self._listeners.get(fd)
        if listener is None:
            return  # its event was already under way when it was closed
        sock, address = listener
        for _ in range(_ACCEPTS_PER_TURN):
            now = time.monotonic()
            oldest = next(iter(self._unproven), None)
            since = now if oldest is None else oldest.deadline - self._options.prove_seconds
            decision = admission(len(self._unproven), self._options.max_unproven, since, now)
            if not decision.admit:
                self._listeners.pause(decision.wait_until)
                return
            try:
                caller, _ = sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._warn(f"cannot accept callers at {address}: {error.strerror or error}; trying again")
                self._listeners.pause(now + _OUT_OF_FILES_SECONDS)
                return
            if decision.drop_oldest and oldest is not None:
                self._failed(oldest, "it did not prove the cluster token before others came")
            self._accepted(caller, address, now)

    def _accepted(self, caller: socket.socket, address: Address, now: float) -> None:
        caller.setblocking(False)
        link = Link(caller, address, now + self._options.prove_seconds)
        try:
            self._prepare(link)
        except OSError:
            link.close()  # it hung up already
            return
        link.state = LinkState.PROVING
        handshake = Acceptor(self._me, self._token, secrets.token_bytes(NONCE_BYTES), self._judge)
        link.proving = Proving(handshake, has_side=link.carries_references)
        self.by_fd[link.fd] = link
        self._unproven[link] = None
        self._hub.watch(link)

    def _judge(self, claim: Claim) -> Verdict:
        old = self._hub.holder(claim.peer)
        if old is not None:
            return Verdict.ACCEPTED if newcomer_wins(claim, old.pedigree) else Verdict.DUPLICATE
        return Verdict.ACCEPTED if self._hub.num_links < self._options.max_links else Verdict.FULL

    # --- proving ------------------------------------------------------------------------------------------------------

    def advance(self, link: Link) -> None:
        """The socket of a link that is not open yet is ready for something."""
        if link.state is LinkState.CONNECTING:
            assert isinstance(link.sock, socket.socket)
            error = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._failed(link, os.strerror(error))
            else:
                self._introduce(link)
            return
        assert link.proving is not None
        try:
            is_proved = link.proving.advance(link.sock, link.outbox)
        except HandshakeError as error:
            if error.farewell:
                link.outbox.add(error.farewell)
                self._hub.write(link)
            self._failed(link, str(error), is_duplicate=isinstance(error, DuplicateLink))
        except PeerError as error:
            self._failed(link, str(error))
        except EOFError:
            reason = link.write_error or "it closed the connection before the cluster token was proved"
            self._failed(link, reason, is_harmless=True)
        except OSError as error:
            self._failed(link, error.strerror or str(error), is_harmless=True)
        else:
            if link.outbox:
                self._hub.write(link)
            if is_proved:
                self._proved(link)

    def _proved(self, link: Link) -> None:
        if link.is_dialled:
            del self._attempts[link.peer]
        else:
            assert link.proving is not None
            assert isinstance(link.proving.handshake, Acceptor)
            claim = link.proving.handshake.claim
            assert claim is not None
            link.peer, link.pedigree = claim.peer, Pedigree(claim.peer, claim.link)
            del self._unproven[link]
            self._listeners.resume()
            if not own_dial_stands(self._me, link.peer):
                self.cancel(link.peer)
        self._last_link[link.peer] = link.pedigree.link
        self._hub.opened(link)

    def _failed(self, link: Link, reason: str, *, is_duplicate: bool = False, is_harmless: bool = False) -> None:
        self._hub.forget(link)
        if not link.is_dialled:
            del self._unproven[link]
            self._listeners.resume()
            text = f"a caller at {link.where} was turned away: {reason}"
            if is_harmless:  # a node that computes comes back when it looks at its links; one that was killed does not
                _log.info(text)
            else:
                self._warn(text)
            return
        attempt = self._attempts[link.peer]
        attempt.failures.append(f"{link.where}: {reason}")
        if is_duplicate:  # another address leads to the same node and the same answer
            attempt.addresses.clear()
        self._try_next(attempt)

    def expire(self, now: float) -> None:
        """Do what is due by now."""
        for attempt in list(self._attempts.values()):
            if attempt.due <= now:
                if attempt.retry_at is not None:
                    self._try_next(attempt)
                elif attempt.link is not None:
                    self._failed(attempt.link, f"no answer within {self._options.dial_seconds:g} s")
        for link in list(self._unproven):
            if link.deadline > now:
                break
            reason = f"it did not prove the cluster token within {self._options.prove_seconds:g} s"
            self._failed(link, reason, is_harmless=True)
        if self._listeners.resume_at is not None and self._listeners.resume_at <= now:
            self._listeners.resume()

    def _warn(self, text: str) -> None:
        # At most one a second: whoever floods the port must not flood the log.
        now = time.monotonic()
        if now >= self._warned_at + 1:
            self._warned_at = now
            _log.warning(text)
