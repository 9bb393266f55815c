"""Nodes and keys as plain data and in words."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

from windlass.manager.chart import Parting
from windlass.manager.cuts import Pair
from windlass.types import Incarnation, KeyId, KeySpec, Node, Role, Rule


def describe_node(node: Node, state: str) -> dict[str, Any]:
    return {
        "name": node.name,
        "role": str(node.role),
        "rank": node.rank,
        "incarnation": node.incarnation,
        "pid": node.pid,
        "address": node.address,
        "state": state,
    }


def describe_nodes(here: Iterable[Node], awaited: Container[Incarnation], gone: Iterable[Node]) -> list[dict[str, Any]]:
    """The manager first, then by role and rank, then those who are gone."""
    placed = sorted(here, key=lambda node: (node.role is not Role.MANAGER, node.role, node.rank))
    there = [describe_node(node, "awaited" if node.incarnation in awaited else "alive") for node in placed]
    return there + [describe_node(node, "gone") for node in gone]


def describe_key(number: KeyId, spec: KeySpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "namespace": spec.namespace,
        "id": number,
        "shape": list(spec.shape),
        "is_table": spec.table is not None,
        "dtype": spec.dtype,
        "reduce": spec.reduce.path,
        "update": spec.update.path,
        "consistency": repr(spec.consistency),
    }


def difference(known: KeySpec, new: KeySpec) -> str:
    """How a second declaration departs from the first, field by field; empty when it does not."""
    if known == new:
        return ""
    if (known.table is None) != (new.table is None):
        return f"as {_kind(known)}, and now as {_kind(new)}"
    before, after = _declared(known), _declared(new)
    told = (_unlike(field, before[field], after[field]) for field in before if before[field] != after[field])
    return "; ".join(told)


def _kind(spec: KeySpec) -> str:
    return f"a dense key of shape {spec.shape}" if spec.table is None else f"a table of dim {spec.table.dim}"


def _declared(spec: KeySpec) -> dict[str, Any]:
    """What its user may have said, by name: of a table, its shape says nothing that `dim` does not."""
    fields = {field: getattr(spec, field) for field in spec.__struct_fields__ if field != "table"}
    if spec.table is not None:
        del fields["shape"]
        fields = {field: getattr(spec.table, field) for field in spec.table.__struct_fields__} | fields
    return fields


def _unlike(field: str, was: Any, now: Any) -> str:
    if isinstance(was, Rule) and isinstance(now, Rule) and was.path == now.path:  # only its numbers differ
        names = [name for name in {**was.config, **now.config} if was.config.get(name) != now.config.get(name)]
        return "; ".join(
            f"{field} {was.path}: {name} was {was.config.get(name)!r}, got {now.config.get(name)!r}" for name in names
        )
    return f"{field} was {_spoken(was)}, got {_spoken(now)}"


def _spoken(value: Any) -> str:
    if isinstance(value, Rule):
        numbers = ", ".join(f"{name}={each!r}" for name, each in value.config.items())
        return f"{value.path}({numbers})" if numbers else f"'{value.path}'"
    if isinstance(value, tuple) and any(isinstance(each, Rule) for each in value):
        return f"[{', '.join(map(_spoken, value))}]"
    return repr(value)


def describe_again(link: Pair, name: Callable[[Incarnation], str]) -> str:
    return f"{' and '.join(sorted(map(name, link)))} reach each other again: chains may go over that link"


def describe_parting(parting: Parting, name: Callable[[Incarnation], str]) -> str:
    """Why chains have changed, and who goes on without whom."""
    links = ", ".join(sorted(" and ".join(sorted(map(name, link))) for link in parting.costly))
    without = ", ".join(sorted(f"{count} without {name(server)}" for server, count in parting.out.items()))
    going = f"shards go on: {without}" if without else "what was to go over that link goes elsewhere"
    if not links:
        return "a shard was on its way to a chain over a link that is cut"
    return f"{links} do not reach each other, though all reach the manager; {going}"
