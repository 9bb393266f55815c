"""What a SocketHub can be told. Small, frozen, with defaults that suit one machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass._transport.segments import SegmentLimits
from windlass._wire.frame import FrameLimits


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for TLS. Every node shows `certfile` and expects the other's to be signed by `cafile`; for one
    self-signed certificate shared by all nodes the two are the same file. Host names are not compared: who the peer
    is, the token proves."""

    certfile: str
    keyfile: str
    cafile: str


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How a node is reached, and how much it lets others take.

    `listen` has forms ("unix", "tcp:127.0.0.1:0", "tls:10.0.0.5:7000"); empty: the node only dials. A node bound to
    every interface ("tcp:0.0.0.0:0") needs `advertise_host`, which others dial.

    By symptom: raise `dial_seconds` if links fail with "no answer" on a busy machine; raise `max_unproven` if many
    nodes that start at once join slowly; raise `max_links` if nodes are refused as too many; raise `pool_bytes` if
    receiving large values over TCP is slow and memory is not short; set `link_bytes_per_second` if training over TCP
    leaves others on the network no room: the kernel keeps each link, in each direction, below it.
    """

    listen: tuple[str, ...] = ()
    advertise_host: str = ""
    tls: TlsFiles | None = None
    frames: FrameLimits = field(default_factory=FrameLimits)
    segments: SegmentLimits = field(default_factory=SegmentLimits)
    max_links: int = 4096
    max_unproven: int = 64
    prove_seconds: float = 5.0
    dial_seconds: float = 5.0
    close_seconds: float = 1.0
    pool_bytes: int = 4 << 30
    link_bytes_per_second: int = 0
