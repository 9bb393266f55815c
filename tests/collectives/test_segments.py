"""Finding and opening each other's memory: only the very memory that was announced, by a process of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import windlass as wl
from windlass.collectives.members import Member, Watch, this_member
from windlass.collectives.shared.rendezvous import Record, meet
from windlass.collectives.shared.segments import OwnSegment, open_segment


def test_a_segment_is_seen_by_all_who_open_it_and_stays_while_anyone_has_it():
    own = OwnSegment(5000)
    other = open_segment(own.place, "rank 1")
    own.array[7] = 42
    other.array[8] = 43
    assert (other.array[7], own.array[8]) == (42, 43)
    own.hide()
    with pytest.raises(wl.ClusterError, match=r"cannot open the memory of rank 1 \(pid \d+\): No such file"):
        open_segment(own.place, "rank 1")
    array = other.array
    del own, other
    assert array[7] == 42


def test_memory_that_is_not_what_was_announced_is_not_opened():
    own = OwnSegment(100)
    for wrong in (own.place._replace(inode=own.place.inode + 1), own.place._replace(nbytes=101)):
        with pytest.raises(wl.ClusterError, match=r"the memory of rank 2 .* is not the one it announced"):
            open_segment(wrong, "rank 2")
    with open(os.devnull, "rb+") as other:
        unsealed = own.place._replace(fd=other.fileno(), inode=os.fstat(other.fileno()).st_ino, nbytes=0)
        with pytest.raises(wl.ClusterError, match="is not the one it announced"):
            open_segment(unsealed, "rank 2")


def test_a_member_on_another_machine_is_named():
    def exchange(mine: bytes) -> list[bytes]:
        record = Record.unpack(mine)
        far = record.member._replace(machine=b"x" * 16, host="far-away")
        return [mine, Record(far, record.place).pack()]

    own = OwnSegment(100)
    with pytest.raises(wl.UsageError, match=r"rank 1 runs on 'far-away'.*torch.distributed or MPI instead"):
        meet(exchange, own.place, 2)
    with pytest.raises(wl.ClusterError, match="the group has 3 members, but 2 records came"):
        meet(exchange, own.place, 3)


def test_a_record_survives_the_trip_through_the_store():
    record = Record(this_member(), OwnSegment(10).place)
    assert Record.unpack(record.pack()) == record


def test_a_process_that_took_a_dead_members_number_is_not_taken_for_it():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        here = this_member()
        alive = Member(here.machine, process.pid, _born(process.pid), here.host)
        watch = Watch([here, alive])
        assert watch.dead() == set()
        with pytest.raises(wl.ClusterError, match=rf"rank 1 \(pid {process.pid}\) died while the group was formed"):
            Watch([here, alive._replace(born=alive.born - 1)])
        process.kill()
        process.wait()
        assert watch.dead() == {1}
        watch.close()
        watch.close()
    with pytest.raises(wl.ClusterError, match="died while the group was formed"):
        Watch([here, alive])


def _born(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])
