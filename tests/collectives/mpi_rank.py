"""One rank of the MPI crew, under mpirun: `python -m tests.collectives.mpi_rank ADDRESS`. Performs what it is sent."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Client

import windlass as wl
from tests.collectives.cases import perform


def main() -> None:
    group = wl.Group("mpi")
    with Client(sys.argv[1], authkey=bytes.fromhex(os.environ["CREW_KEY"])) as driver:
        driver.send((group.rank, repr(group)))
        while True:
            try:
                case = driver.recv()
            except EOFError:
                return
            try:
                driver.send((perform(group, case), None))
            except Exception as error:
                driver.send((None, error))


if __name__ == "__main__":
    main()
