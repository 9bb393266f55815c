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
    "_words": set(),
    "_transport": LOW | {"_wire", "_ledger"},
    "manager": LOW | {"_wire"},
    "scheduler": LOW | {"_wire", "consistency"},
    "trace": LOW,
    "checkpoint": LOW,
    "server": LOW | {"_wire", "store", "consistency", "filters", "trace"},
    "worker": LOW | {"_wire", "_transport", "_ledger", "store", "filters", "trace", "checkpoint"},
    "engines": LOW
    | {"_wire", "_transport", "_ledger", "_words", "store"}
    | {"manager", "scheduler", "server", "worker", "trace", "checkpoint"},
    "chaos": LOW | {"_ledger", "_words", "engines"},
    "torch": LOW | {"store", "filters", "collectives", "worker", "engines"},
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


def test_decoders_are_made_when_a_module_is_loaded():
    """By one thread. Where two are the first to decode a type at the same time, msgspec shows the one what the other
    has half made of it. With 0.22 the process crashes, as one did in which threads trained a model."""
    late = []
    for path in sorted(path for path in ROOT.rglob("*.py") if "msgspec" in path.read_text()):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        inner = {node for function in functions for node in ast.walk(function)}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                is_typed = call.func.attr == "decode" and any(keyword.arg == "type" for keyword in call.keywords)
                if is_typed or (call.func.attr == "Decoder" and call in inner):
                    late.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert not late, "make a Decoder beside the type that it decodes"


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
