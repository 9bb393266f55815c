"""Imports point one way: what each part may import of the others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import windlass

ROOT = Path(windlass.__file__).parent
LOW = {"errors", "types"}
ALLOWED = {
    "errors": set(),
    "types": {"errors"},
    "store": LOW,
    "collectives": LOW | {"store"},
    "consistency": LOW,
    "filters": LOW | {"store"},
    "_wire": LOW,
    "_ledger": {"types"},
    "_transport": LOW | {"_wire", "_ledger"},
    "manager": LOW | {"_wire"},
    "scheduler": LOW | {"_wire", "consistency"},
    "trace": LOW,
    "checkpoint": LOW,
    "server": LOW | {"_wire", "store", "consistency", "filters", "trace"},
    "worker": LOW | {"_wire", "_transport", "_ledger", "store", "filters", "trace", "checkpoint"},
    "engines": LOW
    | {"_wire", "_transport", "_ledger", "store", "manager", "scheduler", "server", "worker", "trace", "checkpoint"},
    "chaos": LOW | {"_ledger", "engines"},
    "torch": LOW | {"store", "collectives", "worker", "engines"},
    "apps": LOW | {"torch", "worker", "store", "filters", "engines"},
}


def imports(path: Path) -> set[str]:
    """The parts of windlass that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("windlass.") and name.count(".")}
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_only_what_is_below_it(part):
    files = [ROOT / f"{part}.py"] if (ROOT / f"{part}.py").exists() else sorted((ROOT / part).rglob("*.py"))
    assert files
    for file in files:
        reached = imports(file) - {part}
        assert reached <= ALLOWED[part], f"{file.relative_to(ROOT)} imports {sorted(reached - ALLOWED[part])}"


@pytest.mark.parametrize("role", ["manager", "server", "worker"])
def test_a_state_machine_imports_no_transport_thread_or_clock(role):
    tree = ast.parse((ROOT / role / "state.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names.isdisjoint({"socket", "threading", "time", "random", "uuid", "logging", "secrets", "os"})
    assert "_transport" not in imports(ROOT / role / "state.py")


def test_the_public_names_are_all_there_and_nothing_public_is_unlisted():
    for name in windlass.__all__:
        assert hasattr(windlass, name)
    parts = {path.stem for path in ROOT.iterdir()}
    public = {name for name in vars(windlass) if not name.startswith("_")} - parts - {"importlib", "Any"}
    assert public == set(windlass.__all__)


def test_two_clusters_fit_in_one_process():
    import numpy as np

    def work(store, add):
        store.create("w", np.zeros(3, np.float32))
        return store.pushpull("w", np.full(3, add, np.float32)).tolist()

    with windlass.Cluster(engine="threads", workers=2) as one, windlass.Cluster(engine="threads", workers=3) as two:
        assert one.run(work, 1) == [[2.0] * 3] * 2
        assert two.run(work, 10) == [[30.0] * 3] * 3
