"""Addresses as text, and the sockets they stand for.

    unix:@windlass-5f3c...    Linux abstract socket: no file, so nothing can leak; carries references
    tcp:127.0.0.1:4711        plain TCP
    tls:10.0.0.5:4711         TCP under TLS
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum

from windlass.errors import UsageError

BACKLOG = 1024
_UNIX_BUFFER_BYTES = 4 << 20
_SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; the socket module does not name it
_NON_BLOCKING = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


class Scheme(StrEnum):
    UNIX = "unix"
    TCP = "tcp"
    TLS = "tls"


@dataclass(frozen=True, slots=True)
class Address:
    """One parsed address. `host` is the name for Unix sockets."""

    scheme: Scheme
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.scheme is Scheme.UNIX:
            return f"unix:@{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}:{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises UsageError, saying which forms there are, for any other text."""
    scheme, _, rest = text.partition(":")
    if scheme == Scheme.UNIX and rest.startswith("@") and 1 < len(rest) < 100:
        return Address(Scheme.UNIX, rest[1:])
    if scheme in (Scheme.TCP, Scheme.TLS):
        host, _, port = rest.rpartition(":")
        if host and port.isascii() and port.isdigit() and int(port) < 65536:
            return Address(Scheme(scheme), host.removeprefix("[").removesuffix("]"), int(port))
    raise UsageError(f"expected an address like unix:@name, tcp:host:port or tls:host:port, got {text!r}")


def listen(form: str) -> tuple[socket.socket, Address]:
    """A listening socket, and where it can be dialled. `form` is an address, or "unix" for a fresh name. Raises
    UsageError if the address cannot be had."""
    address = Address(Scheme.UNIX, f"windlass-{secrets.token_hex(8)}") if form == "unix" else parse_address(form)
    try:
        sock = _socket_for(address)
        try:
            if address.scheme is Scheme.UNIX:
                sock.bind("\0" + address.host)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address.host, address.port))
                address = Address(address.scheme, address.host, sock.getsockname()[1])
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise UsageError(f"cannot listen on {address}: {error.strerror or error}") from error
    return sock, address


def begin_connect(address: Address) -> tuple[socket.socket, bool]:
    """A socket that is connecting, and whether it is connected already. Raises OSError; BlockingIOError means that
    the listener's queue is full now. A host that is a name is looked up, which may block: publish numbers."""
    sock = _socket_for(address)
    try:
        if address.scheme is Scheme.UNIX:
            sock.connect("\0" + address.host)
            return sock, True
        try:
            sock.connect((address.host, address.port))
        except BlockingIOError:  # EINPROGRESS: TCP never says "queue full" this way
            return sock, False
        return sock, True
    except BaseException:
        sock.close()
        raise


def tune(sock: socket.socket, scheme: Scheme, bytes_per_second: int = 0) -> None:
    """Set the options that a link wants. TCP's buffers are left to the kernel, which fits them to the path: fixed ones
    of 0.5 to 4 MiB were no faster on loopback, and would throttle a long path. The kernel also keeps what leaves a
    socket below `bytes_per_second`, if not 0."""
    if scheme is Scheme.UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if bytes_per_second:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", bytes_per_second))


def advertised(address: Address, host: str) -> Address:
    """Where others dial a listener: `host` if given. Raises UsageError for one bound to every interface without."""
    if address.scheme is Scheme.UNIX:
        return address
    if host:
        return Address(address.scheme, host, address.port)
    try:
        is_everywhere = ipaddress.ip_address(address.host).is_unspecified
    except ValueError:
        is_everywhere = False
    if is_everywhere:
        raise UsageError(f"{address} is every interface; say with advertise_host which one others should dial")
    return address


def _socket_for(address: Address) -> socket.socket:
    if address.scheme is Scheme.UNIX:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | _NON_BLOCKING)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM | _NON_BLOCKING)
