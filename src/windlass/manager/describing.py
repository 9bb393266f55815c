"""Nodes and keys as plain data and in words."""

from __future__ import annotations

from typing import Any

from windlass.types import KeyId, KeySpec, Node


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
    parts = [
        f"{field} was {getattr(known, field)!r}, got {getattr(new, field)!r}"
        for field in known.__struct_fields__
        if getattr(known, field) != getattr(new, field)
    ]
    return "; ".join(parts)
