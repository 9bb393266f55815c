"""Whether the others still live."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence

from windlass.collectives.shared.rendezvous import Record, born_of
from windlass.errors import ClusterError


class Watch:
    """Holds a pidfd for each process that members run in. A member that is a thread of this very process is not
    watched: it cannot die alone."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._ranks: dict[int, list[int]] = {}  # by pidfd
        self._poll = select.poll()
        by_pid: dict[int, int] = {}
        try:
            for rank, record in enumerate(records):
                pid = record.place.pid
                if pid == os.getpid():
                    continue
                if pid not in by_pid:
                    by_pid[pid] = self._open(rank, record)
                self._ranks[by_pid[pid]].append(rank)
        except BaseException:
            self.close()
            raise

    def _open(self, rank: int, record: Record) -> int:
        pid = record.place.pid
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            raise ClusterError(f"rank {rank} (pid {pid}) died while the group was formed") from error
        self._ranks[fd] = []
        self._poll.register(fd, select.POLLIN)
        if born_of(pid) != record.born:
            raise ClusterError(f"rank {rank} (pid {pid}) died while the group was formed")
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
