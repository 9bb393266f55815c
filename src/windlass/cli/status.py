"""`windlass status`: find clusters, look at them, show what was seen."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from windlass._transport.address import parse_address
from windlass._words import say
from windlass.cli.tables import show
from windlass.engines.config import NodeConfig, find_clusters, from_environment
from windlass.engines.look import Looker
from windlass.errors import UsageError, WindlassError


def status(manager: str, *, is_json: bool) -> int:
    """Blocks for five seconds at most; the exit status: 0 when there is a cluster and every node of it answered."""
    seen = _look_at_all(_named(manager) if manager else list(find_clusters()))
    if is_json:
        print(json.dumps(seen, indent=2))
    elif seen:
        console = Console(highlight=False)
        for one in seen:
            show(console, one)
    else:
        say(Console(stderr=True), "No cluster of this user runs on this machine.")
    return 0 if seen and not any(one["problems"] for one in seen) else 1


def _named(manager: str) -> list[tuple[int, NodeConfig]]:
    for address in manager.split(","):
        parse_address(address)
    try:
        return [(0, from_environment(manager=manager))]
    except UsageError:
        raise UsageError("--manager expects the token of its cluster in the environment: set WINDLASS_TOKEN") from None


def _look_at_all(clusters: list[tuple[int, NodeConfig]]) -> list[dict[str, Any]]:
    """All at once, so that one that does not answer takes no time from the others."""
    if not clusters:
        return []
    with ThreadPoolExecutor(len(clusters)) as pool:
        return [one for one in pool.map(lambda found: _look_at(*found), clusters) if one is not None]


def _look_at(driver: int, config: NodeConfig) -> dict[str, Any] | None:
    """One cluster, as plain data. None for one that ended while we looked."""
    about: dict[str, Any] = {
        "driver": driver,
        "command": _command(driver),
        "manager": list(config.manager),
        "expected": {"servers": config.num_servers, "workers": config.num_workers} if driver else {},
    }
    try:
        with Looker(config) as looker:
            return about | looker.everything()
    except WindlassError as error:
        if driver and not Path(f"/proc/{driver}").exists():
            return None
        return about | {"generation": None, "nodes": [], "keys": {}, "servers": {}, "problems": [str(error)]}


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        # The interpreter says nothing about the job, nor do the directories on the way to the program.
        return " ".join([Path(words[1]).name, *words[2:]] if len(words) > 2 else words).strip()
    return ""
