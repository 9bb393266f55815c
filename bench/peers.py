"""The peers as groups of processes that stay alive, and asleep, while the others are measured."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from bench.children import Children

ROOT = str(Path(__file__).resolve().parent.parent)

# Shared memory with single copy (CMA) where the kernel allows it: OpenMPI's fastest road on one machine. Ranks yield in
# their waits and are not tied to a core: with more processes than cores, spinning would take the core from whom they
# wait for. All-reduce's algorithm is left to OpenMPI's own decision.
MPIRUN = (
    "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
    "--mca", "btl", "vader,self", "--mca", "btl_vader_single_copy_mechanism", "cma",
)
SETTINGS = {
    "gloo": "torch.distributed `all_reduce` in place, TCP over loopback (`GLOO_SOCKET_IFNAME=lo`), one torch thread a "
    "process",
    "mpi": f"mpi4py `Allreduce` from one array into another, `{' '.join(MPIRUN)}`",
}


class MissingPeer(RuntimeError):
    """A peer is not installed: the benchmark means nothing beside nobody."""


class Peer:
    """One peer's group of `workers` processes."""

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self._children = Children(name)
        environment = {"PYTHONPATH": ROOT, "GLOO_SOCKET_IFNAME": "lo", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        program = (sys.executable, "-m", "bench.ranks", name, self._children.address)
        try:
            if name == "mpi":
                self._children.start((*MPIRUN, "-n", str(workers), *program), environment)
            else:
                meeting = str(self._children.folder / "meeting")
                for rank in range(workers):
                    self._children.start((*program, str(rank), str(workers), meeting), environment)
            self._children.gather(workers)
        except BaseException:
            self.close()
            raise

    def prepare(self, elements: int) -> None:
        self._children.ask("prepare", elements)

    def seconds(self, iterations: int) -> float:
        return max(self._children.ask("loop", iterations))

    def drop(self) -> None:
        self._children.ask("prepare", 1)

    def close(self) -> None:
        self._children.close()


def check_peers(names: list[str]) -> None:
    """Raise MissingPeer, with what to do, for the first of these that cannot run."""
    wanted = {"gloo": ["torch"], "mpi": ["mpi4py"]}
    for name in names:
        missing = [module for module in wanted[name] if importlib.util.find_spec(module) is None]
        if name == "mpi" and shutil.which("mpirun") is None:
            missing.append("mpirun")
        if missing:
            raise MissingPeer(
                f"the peer '{name}' needs {' and '.join(missing)}; install it (torch, mpi4py by pip; mpirun with "
                f"OpenMPI of your system) or measure without it: --without {name}"
            )


def version(name: str) -> str:
    """What the peer calls itself."""
    if name == "gloo":
        return f"torch {importlib.metadata.version('torch')}"
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    return f"OpenMPI {said.splitlines()[0].split()[-1]}, mpi4py {importlib.metadata.version('mpi4py')}"
