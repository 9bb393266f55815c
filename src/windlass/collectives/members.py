"""Who the members of a group are, as processes; and whether those of this machine still live."""

from __future__ import annotations

import hashlib
import os
import platform
import select
import struct
from collections.abc import Sequence
from typing import NamedTuple

from windlass.errors import ClusterError

_FORMAT = struct.Struct("<16sqq64s")


class Member(NamedTuple):
    """One member's process. `machine` is the same for all that see each other's processes; `born` tells a process from
    a later one with the same number."""

    machine: bytes
    pid: int
    born: int
    host: str

    def pack(self) -> bytes:
        return _FORMAT.pack(self.machine, self.pid, self.born, self.host.encode()[:64])

    @staticmethod
    def unpack(packed: bytes) -> Member:
        machine, pid, born, host = _FORMAT.unpack(packed)
        return Member(machine, pid, born, host.rstrip(b"\0").decode(errors="replace"))


MEMBER_BYTES = _FORMAT.size


def this_member() -> Member:
    """One boot of one machine, and one namespace of processes, is a machine."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read()
    machine = hashlib.blake2b(boot + os.readlink("/proc/self/ns/pid").encode(), digest_size=16).digest()
    return Member(machine, os.getpid(), _born(os.getpid()), platform.node())


def _born(pid: int) -> int:
    """When the process of this number began, in the kernel's ticks; -1 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return -1


class Watch:
    """Holds a pidfd for each process of this machine that members run in. A member that is a thread of this very
    process is not watched: it cannot die alone."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._ranks: dict[int, list[int]] = {}  # by pidfd
        self._poll = select.poll()
        here, by_pid = this_member(), dict[int, int]()
        try:
            for rank, member in enumerate(members):
                if member.machine != here.machine or member.pid == here.pid:
                    continue
                if member.pid not in by_pid:
                    by_pid[member.pid] = self._open(rank, member)
                self._ranks[by_pid[member.pid]].append(rank)
        except BaseException:
            self.close()
            raise

    def _open(self, rank: int, member: Member) -> int:
        try:
            fd = os.pidfd_open(member.pid)
        except OSError as error:
            raise ClusterError(f"rank {rank} (pid {member.pid}) died while the group was formed") from error
        self._ranks[fd] = []
        self._poll.register(fd, select.POLLIN)
        if _born(member.pid) != member.born:
            raise ClusterError(f"rank {rank} (pid {member.pid}) died while the group was formed")
        return fd

    def dead(self) -> set[int]:
        """The ranks whose process has ended. Does not block."""
        return {rank for fd, _ in self._poll.poll(0) for rank in self._ranks[fd]}

    def close(self) -> None:
        """Safe to repeat."""
        for fd in self._ranks:
            os.close(fd)
        self._ranks.clear()
        self._poll = select.poll()


def named(members: Sequence[Member], ranks: Sequence[int]) -> str:
    """These members, for an error's text."""
    return " and ".join(f"rank {rank} (pid {members[rank].pid})" for rank in ranks)
