"""How two nodes prove the cluster token to each other before any other byte counts. No I/O; nonces are arguments.

The node that opens the connection is the *dialler*, the other the *acceptor*. Four messages of fixed size:

    dialler -> acceptor   hello     who I am, whom I want, a fresh nonce
    acceptor -> dialler   hello     who I am, a fresh nonce
    dialler -> acceptor   proof     HMAC(token, "dialler", both hellos)
    acceptor -> dialler   verdict   a code, and HMAC(token, "acceptor", code, both hellos)

The role is in every MAC, so a proof reflected to its maker fails; both nonces are, so a recorded one fails; both
incarnations are, so a proof speaks for one pair only. The dialler proves first: a stranger who finds the port is
never given a MAC of anything. The token never travels. The bytes after the handshake are not authenticated: where
others can write to the network, use TLS as well.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from windlass.errors import PeerError, UsageError
from windlass.types import Incarnation

MAGIC = b"WLHS"
VERSION = 1
NONCE_BYTES = 32
HELLO = struct.Struct("<4sBBHQQQ32s")
PROOF_BYTES = 32
VERDICT_BYTES = 1 + PROOF_BYTES

_DIALLER, _ACCEPTOR = 0, 1


class Verdict(IntEnum):
    """What the acceptor makes of a dialler. All but BAD_TOKEN are said under MAC."""

    ACCEPTED = 0
    BAD_TOKEN = 1
    WRONG_PEER = 2
    DUPLICATE = 3
    FULL = 4


@dataclass(frozen=True, slots=True)
class Claim:
    """What a dialler has proved: who it is, this link's number, and the last link with us that it knew when it
    dialled (0: none). See _transport/rivals.py for what these numbers decide."""

    peer: Incarnation
    link: int
    after: int


class HandshakeError(PeerError):
    """The handshake ends here. `farewell` is what the other side should still be sent, so that it knows why."""

    def __init__(self, reason: str, farewell: bytes = b"") -> None:
        super().__init__(reason)
        self.farewell = farewell


class DuplicateLink(HandshakeError):
    """The acceptor holds a link with this dialler that is to be kept instead."""


class Dialler:
    """The handshake as the dialler sees it. Read exactly `needed` bytes, give them to `receive`, send what it
    returns; finished when `needed` is 0. `receive` raises HandshakeError (a PeerError)."""

    def __init__(self, me: Incarnation, wanted: Incarnation, token: bytes, nonce: bytes, after: int = 0) -> None:
        check_token(token)
        self.peer = wanted
        self.link = _link_number(nonce)
        self.needed = HELLO.size
        self._token = token
        self.hello = HELLO.pack(MAGIC, VERSION, _DIALLER, 0, me, wanted, after, nonce)
        self._theirs = b""
        self._found = wanted

    def receive(self, data: bytes) -> bytes:
        if not self._theirs:
            found, _, _, _ = _parse_hello(data, _ACCEPTOR)
            self._theirs, self._found, self.needed = data, Incarnation(found), VERDICT_BYTES
            return _mac(self._token, b"dialler", self.hello, data)
        self._judge(data[0], data[1:])
        self.needed = 0
        return b""

    def _judge(self, code: int, proof: bytes) -> None:
        who = f"node {self._found}"
        if code == Verdict.BAD_TOKEN:
            raise HandshakeError(f"{who} says that this node did not prove the cluster token; check WINDLASS_TOKEN")
        expected = _mac(self._token, b"acceptor", bytes([code]), self.hello, self._theirs)
        if not hmac.compare_digest(expected, proof):
            raise HandshakeError(f"{who} did not prove the cluster token; check WINDLASS_TOKEN")
        if code == Verdict.DUPLICATE:
            raise DuplicateLink(f"{who} holds another link with this node; dial again if that one is dead")
        if code == Verdict.FULL:
            raise HandshakeError(f"{who} has as many links as it allows; raise max_links there")
        if code == Verdict.WRONG_PEER or self._found != self.peer:
            raise HandshakeError(f"dialled node {self.peer}, got {who}: another process has that address now")
        if code != Verdict.ACCEPTED:
            raise HandshakeError(f"expected a verdict from 0 to {max(Verdict):d} of {who}, got {code}")


class Acceptor:
    """The handshake as the acceptor sees it; used like Dialler. `judge` is asked once the dialler has proved the
    token, and its verdict is sent; `claim` is set when it is ACCEPTED."""

    def __init__(self, me: Incarnation, token: bytes, nonce: bytes, judge: Callable[[Claim], Verdict]) -> None:
        check_token(token)
        self.claim: Claim | None = None
        self.needed = HELLO.size
        self._me, self._token, self._nonce, self._judge = me, token, nonce, judge
        self._hello = self._theirs = b""
        self._said = (0, 0, 0, b"")

    def receive(self, data: bytes) -> bytes:
        if not self._theirs:
            self._said = _parse_hello(data, _DIALLER)
            self._theirs, self.needed = data, PROOF_BYTES
            self._hello = HELLO.pack(MAGIC, VERSION, _ACCEPTOR, 0, self._me, self._said[0], 0, self._nonce)
            return self._hello
        return self._weigh(data)

    def _weigh(self, proof: bytes) -> bytes:
        peer, wanted, after, nonce = self._said
        who = f"the dialler, which calls itself node {peer},"
        if not hmac.compare_digest(_mac(self._token, b"dialler", self._theirs, self._hello), proof):
            farewell = bytes([Verdict.BAD_TOKEN]) + bytes(PROOF_BYTES)
            raise HandshakeError(f"{who} did not prove the cluster token; check WINDLASS_TOKEN", farewell)
        if wanted != self._me:
            farewell = self._verdict(Verdict.WRONG_PEER)
            raise HandshakeError(f"{who} wanted node {wanted}, got node {self._me}", farewell)
        if peer == self._me:
            raise HandshakeError(f"{who} has this node's own number", self._verdict(Verdict.WRONG_PEER))
        claim = Claim(Incarnation(peer), _link_number(nonce), after)
        verdict = self._judge(claim)
        if verdict is not Verdict.ACCEPTED:
            raise HandshakeError(f"{who} was turned away: {verdict.name}", self._verdict(verdict))
        self.claim, self.needed = claim, 0
        return self._verdict(verdict)

    def _verdict(self, verdict: Verdict) -> bytes:
        return bytes([verdict]) + _mac(self._token, b"acceptor", bytes([verdict]), self._theirs, self._hello)


def check_token(token: bytes) -> None:
    """Raises UsageError for a token that proves nothing."""
    if not token:
        raise UsageError("expected a cluster token, got an empty one; set WINDLASS_TOKEN")


def _mac(token: bytes, role: bytes, *parts: bytes) -> bytes:
    # Every part has a fixed size for its role, so their concatenation can be read in one way only.
    return hmac.digest(token, b"windlass " + role + b"\0" + b"".join(parts), hashlib.sha256)


def _link_number(nonce: bytes) -> int:
    return int.from_bytes(nonce[:8], "little") | 1  # never 0, which means "none"


def _parse_hello(data: bytes, expected_role: int) -> tuple[int, int, int, bytes]:
    magic, version, role, reserved, me, wanted, after, nonce = HELLO.unpack(data)
    if magic != MAGIC:
        raise HandshakeError(f"expected a Windlass hello beginning with {MAGIC!r}, got {magic!r}")
    if version != VERSION:
        raise HandshakeError(f"expected handshake version {VERSION}, got {version}; run one Windlass on all nodes")
    if role != expected_role or reserved:
        raise HandshakeError(f"expected a hello of role {expected_role}, got role {role}, reserved {reserved}")
    return me, wanted, after, nonce
