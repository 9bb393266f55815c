"""How the members of a group find each other's memory: each gives a record, and gets everyone's, through the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from windlass.collectives.members import MEMBER_BYTES, Member, this_member
from windlass.collectives.shared.segments import Place
from windlass.errors import ClusterError, UsageError

Exchange = Callable[[bytes], Sequence[bytes]]
"""Gives this member's bytes to all, and all members' bytes to this one, in rank order. Blocks."""


class Record(NamedTuple):
    """Who a member is and where its memory is."""

    member: Member
    place: Place

    def pack(self) -> bytes:
        return self.member.pack() + self.place.pack()

    @staticmethod
    def unpack(packed: bytes) -> Record:
        return Record(Member.unpack(packed[:MEMBER_BYTES]), Place.unpack(packed[MEMBER_BYTES:]))


def meet(exchange: Exchange, place: Place, size: int) -> list[Record]:
    """Everybody's record. UsageError, naming the rank, if somebody is on another machine."""
    mine = Record(this_member(), place)
    found = [Record.unpack(bytes(each)) for each in exchange(mine.pack())]
    if len(found) != size:
        raise ClusterError(f"the group has {size} members, but {len(found)} records came: a worker joined or left")
    for rank, (member, _) in enumerate(found):
        if member.machine != mine.member.machine:
            raise UsageError(
                f"rank {rank} runs on '{member.host}', this one on '{mine.member.host}' (or in another container): "
                "they share no memory; make the group over torch.distributed or MPI instead"
            )
    return found
