"""TLS for links: the few socket methods that a link uses, on top of the ssl module, never blocking.

Slower than plain TCP (each byte is encrypted, and copied once more); the token handshake and everything after it are
the same. Only TLS 1.3 is spoken. Both sides show a certificate that `cafile` has signed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from windlass._transport.options import TlsFiles
from windlass.errors import UsageError


class TlsContexts:
    """What the dialling and the accepting side need. Raises UsageError for files that cannot be used."""

    def __init__(self, files: TlsFiles) -> None:
        try:
            self._dialler = self._make(ssl.PROTOCOL_TLS_CLIENT, files)
            self._acceptor = self._make(ssl.PROTOCOL_TLS_SERVER, files)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot use the TLS files {files}: {error}") from error
        self._acceptor.num_tickets = 0

    def wrap(self, sock: socket.socket, *, is_dialled: bool) -> TlsSocket:
        """Put TLS on a connected socket; its handshake happens by and by, as the link reads and writes. Raises
        OSError if the connection is gone already."""
        context = self._dialler if is_dialled else self._acceptor
        return TlsSocket(context.wrap_socket(sock, server_side=not is_dialled, do_handshake_on_connect=False))

    @staticmethod
    def _make(side: int, files: TlsFiles) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(files.certfile, files.keyfile)
        context.load_verify_locations(files.cafile)
        return context


class TlsSocket:
    """An SSLSocket with the methods of a socket that a link uses. BlockingIOError where a socket would raise it."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self.waits_for_peer = False
        """Whether the last send took nothing because TLS itself must hear from the peer first."""

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_pending(self) -> bool:
        """Whether bytes are decrypted and not read yet, of which epoll knows nothing."""
        return self._sock.pending() > 0

    def recv(self, nbytes: int) -> bytes:
        try:
            return self._sock.recv(nbytes)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        except ssl.SSLZeroReturnError:
            return b""

    def recv_into(self, view: memoryview) -> int:
        came = 0
        while came < len(view):  # a record at a time: 16 KiB at most
            try:
                nbytes = self._sock.recv_into(view[came:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if came:
                    break
                raise BlockingIOError from error
            except ssl.SSLZeroReturnError:
                break
            if not nbytes:
                break
            came += nbytes
        return came

    def recvmsg_into(self, views: Sequence[memoryview]) -> tuple[int, list[object], int, None]:
        came = 0
        for view in views:
            try:
                nbytes = self.recv_into(view)
            except BlockingIOError:
                if came:
                    break
                raise
            came += nbytes
            if nbytes < len(view):
                break
        return came, [], 0, None

    def send(self, chunk: bytes | bytearray | memoryview) -> int:
        self.waits_for_peer = False
        try:
            return self._sock.send(chunk)
        except ssl.SSLWantReadError:
            self.waits_for_peer = True
            return 0
        except ssl.SSLWantWriteError as error:
            raise BlockingIOError from error

    def sendmsg(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        # What TLS refused must be offered again first and unchanged: the queue's head is, until it is taken.
        taken = 0
        for chunk in chunks:
            try:
                nbytes = self.send(chunk)
            except BlockingIOError:
                if taken:
                    break
                raise
            taken += nbytes
            if nbytes < len(chunk):
                break
        return taken

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()
