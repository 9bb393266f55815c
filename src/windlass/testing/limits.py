"""What the seeds of explored runs may draw."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.filters import Filter
from windlass.types import Bounded, Consistency, Eventual, Sequential

WHATS = ("crash", "stop", "part", "restart", "join")
"""What may be aimed at a node: aims.py says more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the seeds may draw. The defaults draw everything; a test that looks for one thing narrows them."""

    servers: tuple[int, int] = (1, 3)
    workers: tuple[int, int] = (2, 4)
    keys: tuple[int, int] = (1, 2)
    clock: tuple[int, int] = (2, 4)
    consistencies: tuple[Consistency, ...] = (Sequential(), Bounded(1), Bounded(2), Eventual())
    breaks: int = 4
    drops: int = 1
    """Frames that are lost, each with all that comes after it on its link."""
    copies: int = 2
    """Messages that come twice."""
    slows: int = 2
    """Links or nodes that are slow for a while."""
    partitions: int = 1
    """How often some nodes cannot reach others for a while."""
    cuts: int = 1
    """How often two servers cannot reach each other, though the manager reaches both."""
    departures: int = 1
    zombies: int = 1
    joins: int = 1
    readers: int = 0
    """1: in every second run a driver reads the newest round now and then."""
    savers: int = 0
    """1: in every second run a driver saves all keys now and then."""
    replicas: tuple[int, int] = (0, 2)
    crashes: int = 1
    """Servers that die. None that is the last of a chain."""
    orphans: int = 0
    """Servers that die before they hold a key that they alone were to hold a part of."""
    deposed: int = 1
    """Servers that the manager takes for dead while they live."""
    additions: int = 1
    """Servers that come, while the others are at work."""
    drains: int = 1
    """Servers that are asked to leave."""
    restarts: int = 1
    """How often the manager dies, and another starts from what it has written down."""
    leases: float = 0.0
    """How often the workers do leased work, in place of pushes of their own."""
    aims: int = 1
    """How many things happen just before or after a node handles a certain kind of message."""
    hurry: tuple[float, ...] = (0.002, 0.01, 0.03)
    """How likely it is, at each step, that the next thing goes wrong; one of these in each run."""
    kinds: tuple[str, ...] = ()
    """The kinds of message that are aimed at, or come twice; none: any."""
    whats: tuple[str, ...] = WHATS
    """What happens then."""
    large: float = 0.05
    """How often slots are so large that replies go from where they lie, under a pin, instead of by copy."""
    tables: float = 0.0
    """How often a key is a table."""
    filters: float = 0.0
    """How often a key has filters."""
    chains: tuple[tuple[Filter, ...], ...] = ()
    """Which filters it has then; none: any."""
    ageing: float = 0.0
    """How often the rows of a table may go, because they are too many or too old."""


CALM = Limits(
    breaks=0, drops=0, copies=0, slows=0, partitions=0, cuts=0, departures=0, zombies=0, joins=0, crashes=0, deposed=0,
    additions=0, drains=0, restarts=0, aims=0,
)  # fmt: skip
"""Nothing goes wrong, and nobody comes or goes. A test that looks for one thing adds it."""
