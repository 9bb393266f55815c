"""The sockets that a node can be called at."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from windlass._transport.address import Address, advertised, listen
from windlass.errors import UsageError


class Listeners:
    """Listening sockets, watched or not: while they are not, callers wait in the kernel's queue. `watch(fd, on)` is
    how the owner's epoll is told."""

    def __init__(
        self, forms: Sequence[str], advertise_host: str, *, has_tls: bool, watch: Callable[[int, bool], None]
    ) -> None:
        self.addresses: tuple[str, ...] = ()
        self.resume_at: float | None = None
        """When they are watched again; None while they are."""
        self._watch = watch
        self._sockets: dict[int, tuple[socket.socket, Address]] = {}
        try:
            for form in forms:
                if form.startswith("tls:") and not has_tls:
                    raise UsageError(f"listening on {form} needs TransportOptions(tls=TlsFiles(...)), got none")
                sock, address = listen(form)
                self._sockets[sock.fileno()] = (sock, address)
                self.addresses += (str(advertised(address, advertise_host)),)
                watch(sock.fileno(), True)
        except BaseException:
            self.close()
            raise

    def get(self, fd: int) -> tuple[socket.socket, Address] | None:
        """The listener of this descriptor, and its address."""
        return self._sockets.get(fd)

    def pause(self, until: float) -> None:
        """Let callers wait."""
        if self.resume_at is None:
            for fd in self._sockets:
                self._watch(fd, False)
        self.resume_at = until

    def resume(self) -> None:
        """Answer callers again. Harmless while they are answered."""
        if self.resume_at is not None:
            self.resume_at = None
            for fd in self._sockets:
                self._watch(fd, True)

    def close(self) -> None:
        """Safe to repeat."""
        for sock, _ in self._sockets.values():
            sock.close()
        self._sockets.clear()
