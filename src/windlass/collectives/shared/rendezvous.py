"""How the members of a group find each other's memory: each gives a record, and gets everyone's, through the store."""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from windlass.collectives.machine import machine_id
from windlass.collectives.shared.segments import PLACE_BYTES, Place
from windlass.errors import ClusterError, UsageError

_FORMAT = struct.Struct(f"<{PLACE_BYTES}sq16s64s")

Exchange = Callable[[bytes], Sequence[bytes]]
"""Gives this member's bytes to all, and all members' bytes to this one, in rank order. Blocks."""


class Record(NamedTuple):
    """Who a member is and where its memory is. `born` tells its process from a later one with the same number."""

    place: Place
    born: int
    machine: bytes
    host: str

    def pack(self) -> bytes:
        return _FORMAT.pack(self.place.pack(), self.born, self.machine, self.host.encode()[:64])

    @staticmethod
    def unpack(packed: bytes) -> Record:
        place, born, machine, host = _FORMAT.unpack(packed)
        return Record(Place.unpack(place), born, machine, host.rstrip(b"\0").decode(errors="replace"))


def own_record(place: Place) -> Record:
    return Record(place, born_of(place.pid), machine_id(), platform.node())


def meet(exchange: Exchange, place: Place, size: int) -> list[Record]:
    """Everybody's record. UsageError, naming the rank, if somebody is on another machine."""
    mine = own_record(place)
    found = [Record.unpack(bytes(each)) for each in exchange(mine.pack())]
    if len(found) != size:
        raise ClusterError(f"the group has {size} members, but {len(found)} records came: a worker joined or left")
    for rank, record in enumerate(found):
        if record.machine != mine.machine:
            raise UsageError(
                f"rank {rank} runs on '{record.host}', this one on '{mine.host}' (or in another container): they share "
                "no memory; make the group over torch.distributed or MPI instead"
            )
    return found


def born_of(pid: int) -> int:
    """When the process of this number began, in the kernel's ticks; -1 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return -1
