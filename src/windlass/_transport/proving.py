"""A handshake on a socket: the reads that auth.py asks for, and the side channel that a Unix link is given with it."""

from __future__ import annotations

import array
import os
import socket

from windlass._transport.outbox import Outbox
from windlass._transport.segments import SideChannel, receive_fds
from windlass._transport.tls import TlsSocket
from windlass._wire.auth import VERDICT_BYTES, Acceptor, Dialler


class Proving:
    """One side's handshake under way. `has_side`: the link is a Unix one, and `side` is set when it is finished.
    Whoever ends it closes it: a side channel that was not taken over is then closed too."""

    def __init__(self, handshake: Dialler | Acceptor, *, has_side: bool) -> None:
        self.handshake = handshake
        self.side: SideChannel | None = None
        self._has_side = has_side
        self._fds: list[int] = []
        self._begun = b""

    def advance(self, sock: socket.socket | TlsSocket, outbox: Outbox) -> bool:
        """Read what is due, no byte more, and queue the answer; True when the handshake is finished. Raises PeerError,
        EOFError, OSError. Descriptors that are not due are closed by the kernel: no room is offered for them."""
        handshake = self.handshake
        while handshake.needed:
            if not self._read_exactly(sock, handshake.needed):
                return False
            data, self._begun = self._begun, b""
            reply = handshake.receive(data)
            if reply and not handshake.needed and self._has_side:
                self._hand_over_side(sock, reply)
            elif reply:
                outbox.add(reply)
        if self._has_side and self.side is None:
            fds, self._fds = self._fds, []
            self.side = SideChannel.from_fds(fds)
        return True

    def take_side(self) -> SideChannel | None:
        """The side channel, which is the caller's to close from now on."""
        side, self.side = self.side, None
        return side

    def close(self) -> None:
        """Safe to repeat."""
        if self.side is not None:
            self.side.close()
        while self._fds:
            os.close(self._fds.pop())

    def _read_exactly(self, sock: socket.socket | TlsSocket, nbytes: int) -> bool:
        is_side_due = self._has_side and isinstance(self.handshake, Dialler) and nbytes == VERDICT_BYTES
        while (missing := nbytes - len(self._begun)) > 0:
            try:
                if is_side_due and isinstance(sock, socket.socket):
                    came, fds = receive_fds(sock, missing, 1)
                    self._fds += fds
                else:
                    came = sock.recv(missing)
            except BlockingIOError:
                return False
            if not came:
                raise EOFError
            self._begun += came
        return True

    def _hand_over_side(self, sock: socket.socket | TlsSocket, verdict: bytes) -> None:
        assert isinstance(sock, socket.socket)
        self.side, theirs = SideChannel.pair()
        with theirs:
            fds = array.array("i", [theirs.fileno()])
            # The socket is new and all before was answered, so there is room for these few bytes.
            sock.sendmsg([verdict], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
