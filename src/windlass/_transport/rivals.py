"""Which of two links between the same two nodes is kept. Pure: called without a socket.

Two links arise when both nodes dial at once, or when one node's link broke and it dials again before the other has
noticed. The acceptor of the newer link decides, in its verdict, and the dialler obeys; so both keep the same one.

A node dials only while it has no open link. So if the newcomer's dialler is also the old link's, it has given the old
one up; likewise if it knew the old link when it dialled (`after`). Otherwise they dialled at once, and the link dialled
by the lower incarnation is kept. A node that accepts a link while its own dial is under way drops that dial if it is
the higher of the two, and else lets it run: the other side will prefer it when it arrives, and if it never does (an
address that is reachable one way only) the accepted link stays.

A link that is replaced is reported LinkDown, then LinkUp: what was in flight on it may be lost, and is to be resent.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass._wire.auth import Claim
from windlass.types import Incarnation


@dataclass(frozen=True, slots=True)
class Pedigree:
    """How an open link came to be."""

    dialler: Incarnation
    link: int


def newcomer_wins(newcomer: Claim, old: Pedigree) -> bool:
    """Whether an acceptor that holds `old` should replace it by the link that `newcomer` has just proved."""
    gave_old_up = newcomer.peer == old.dialler or newcomer.after == old.link
    return gave_old_up or newcomer.peer < old.dialler


def own_dial_stands(me: Incarnation, peer: Incarnation) -> bool:
    """Whether a dial of ours goes on although a link from that peer was just accepted."""
    return me < peer
