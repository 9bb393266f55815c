"""A cluster as tables for a person, in 80 columns if need be."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from windlass._words import count, say_marked
from windlass.types import Role

MAX_WORKER_COLUMNS = 8
MAX_KEY_ROWS = 30
_GIVING_WAY = ("key", "value", "update", "address", "clocks", "filters", "after each", "kept back (norm)")
"""The columns that are folded on a narrow terminal; of others nothing would be left."""

_UNITS = ("B", "kB", "MB", "GB", "TB")


def show(console: Console, cluster: dict[str, Any]) -> None:
    """Print one cluster, as `Looker.everything` saw it."""
    who = f"pid {cluster['driver']}" if cluster["driver"] else ", ".join(cluster["manager"])
    command = f": {escape(cluster['command'])}" if cluster["command"] else ""
    say_marked(console, f"[bold]Cluster of {who}[/bold]{command}")
    if cluster["generation"]:
        say_marked(console, f"generation {cluster['generation']}{_missing(cluster)}")
        console.print(_nodes(cluster))
        for line in (*_departed(cluster), ""):
            say_marked(console, line)
        keys = {name: key for name, key in cluster["keys"].items() if not name.startswith("windlass/")}
        if keys:
            shown = dict(list(keys.items())[:MAX_KEY_ROWS])
            for table in _fitting(console, _keys(cluster, shown)):
                console.print(table, "", sep="\n")
            console.print(_clocks(cluster, shown))
            if (filters := _filters(cluster, shown)) is not None:
                if not _fits(console, filters):
                    filters = _filters(cluster, shown, "\n")
                console.print("", filters, sep="\n")
            if len(keys) > len(shown):
                more = count(len(keys) - len(shown), "more key")
                say_marked(console, f"[dim]and {more}; --json shows all[/dim]")
        else:
            say_marked(console, "[dim]No keys yet.[/dim]")
        for name, work in cluster.get("workloads", {}).items():
            say_marked(console, _work(name, work))
    for problem in cluster["problems"]:
        say_marked(console, f"[bold red]problem:[/bold red] {escape(problem)}")
    console.print()


def _work(name: str, work: dict[str, Any]) -> str:
    """One line on leased work."""
    if work["epoch"] >= work["epochs"]:
        return f"leased work {escape(name)}: done, {count(work['epochs'], 'epoch')} of {count(work['size'], 'sample')}"
    batches = -(-work["size"] // work["batch_size"])
    return (
        f"leased work {escape(name)}: epoch {work['epoch'] + 1} of {work['epochs']}, "
        f"{work['done']} of {batches} batches done, {work['held']} held"
    )


def _missing(cluster: dict[str, Any]) -> str:
    """What the first generation waits for."""
    if not cluster["generation"].endswith(".0"):
        return ""
    here = Counter(node["role"] for node in cluster["nodes"] if node["state"] == "alive")
    counts = (
        f"{here[kind]} of {count(number, kind)}"
        for kind, number in ((name.removesuffix("s"), number) for name, number in cluster["expected"].items())
    )
    return f"[yellow], not complete: {' and '.join(counts)} here[/yellow]"


def _table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        is_long = heading in _GIVING_WAY
        justify: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not is_long)
    return table


def _nodes(cluster: dict[str, Any]) -> Table:
    table = _table("node", "role", "pid", "state", "address", right=("pid",))
    if all(node["role"] != Role.MANAGER for node in cluster["nodes"]):  # it answered, but does not name itself
        table.add_row("manager", "manager", "", "[green]alive[/green]", escape(", ".join(cluster["manager"])))
    silent = {problem.partition(" ")[0] for problem in cluster["problems"]}
    for node in cluster["nodes"]:
        if node["state"] == "gone":
            continue
        state = "silent" if node["name"] in silent and node["state"] == "alive" else node["state"]
        colour = {"alive": "green", "silent": "yellow"}.get(state, "red")
        address = escape(node["address"]) or "[dim]dials out[/dim]"
        table.add_row(node["name"], node["role"], str(node["pid"]), f"[{colour}]{state}[/{colour}]", address)
    return table


def _departed(cluster: dict[str, Any]) -> list[str]:
    """One line on the nodes that have left; --json shows each."""
    gone = Counter(node["role"] for node in cluster["nodes"] if node["state"] == "gone")
    counts = [count(number, role) for role, number in sorted(gone.items())]
    return [f"[dim]gone: {', '.join(counts)}[/dim]"] if counts else []


_SAID, _HELD = ("value", "update", "consistency"), ("shards", "version", "memory", "waiting")


def _fitting(console: Console, rows: list[dict[str, str]]) -> list[Table]:
    """The keys in one table; where it is too wide, what they were declared as, and then what is held of them."""
    for parts in ([(*_SAID, *_HELD)], [_SAID, _HELD]):
        tables = [_table("key", *part, right=_HELD[1:]) for part in parts]
        for table, part in zip(tables, parts, strict=True):
            for row in rows:
                table.add_row(row["key"], *(row[each] for each in part))
        if all(_fits(console, table) for table in tables):
            break
    return tables


def _fits(console: Console, table: Table) -> bool:
    """Whether nothing of it has to be folded."""
    return console.measure(table, options=console.options.update(max_width=1 << 16)).maximum <= console.width


def _keys(cluster: dict[str, Any], keys: dict[str, Any]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for name, key in keys.items():
        held = {server: said["keys"][name] for server, said in cluster["servers"].items() if name in said["keys"]}
        keeper = held.get(next(iter(key["shards"][0]), ""))
        parts = ("value_bytes", "state_bytes", "staged_bytes")
        rows.append({
            "key": f"[bold]{escape(name)}[/bold]",
            "value": _value(key, held),
            "update": ", ".join(key[part].rpartition(":")[2] for part in ("reduce", "update")),
            "consistency": _policy(key["consistency"]),
            "shards": _places(key["shards"], key["replicas"]),
            "version": str(keeper["version"]) if keeper else "?",
            "memory": amount(sum(one[part] for one in held.values() for part in parts)),
            "waiting": str(sum(one["waiting_pulls"] for one in held.values())),
        })  # fmt: skip
    return rows


def _value(key: dict[str, Any], held: dict[str, dict[str, Any]]) -> str:
    """The shape of a dense value; how many rows a table has."""
    if key.get("is_table"):
        rows = sum(one.get("rows", 0) for one in held.values())
        return f"{key['dtype']} table, {rows:,} × {key['shape'][-1]}"
    return f"{key['dtype']} {'×'.join(map(str, key['shape'])) or 'scalar'}"


def _filters(cluster: dict[str, Any], keys: dict[str, Any], between: str = " ") -> Table | None:
    """What filters made of pushes, and what workers keep back; `between` is what stands between two of them."""
    table = _table("filters", "pushed", "after each", "kept back (norm)", right=("pushed",))
    for name in keys:
        held = [said["keys"][name] for said in cluster["servers"].values() if name in said["keys"]]
        told = [one["filters"] for one in held if one.get("filters")]
        if not told:
            continue
        names = [each["filter"] for each in told[0]]
        before = sum(each[0]["before"] for each in told)
        after = [sum(each[number]["after"] for each in told) for number in range(len(names))]
        norms: dict[str, float] = {}
        for one in held:
            for worker, norm in one.get("residual_norms", {}).items():
                norms[worker] = max(norm, norms.get(worker, 0.0))
        kept = f",{between}".join(f"{worker} {norm:.3g}" for worker, norm in sorted(norms.items()))
        lost = max((one.get("lost_residual_norm", 0.0) for one in held), default=0.0)
        kept += f"[red], lost {lost:.3g}[/red]" if lost else ""
        steps = f" →{between}".join(f"{each} {amount(size)}" for each, size in zip(names, after, strict=True))
        table.add_row(f"[bold]{escape(name)}[/bold]", amount(before), escape(steps), kept)
    return table if table.row_count else None


def _places(shards: list[list[str]], replicas: int) -> str:
    """How many shards each server is the head of, and what is missing."""
    heads = Counter(chain[0].removeprefix("server-") for chain in shards if chain)
    told = " ".join(f"{number}@{server}" for server, number in heads.items())
    lost = sum(not chain for chain in shards)
    lacking = sum(bool(chain) and len(chain) <= replicas for chain in shards)
    told += f" [yellow]{lacking} under-replicated[/yellow]" if lacking else f" ×{replicas + 1}" if replicas else ""
    return f"{told} [red]{lost} lost[/red]".strip() if lost else told


def _policy(text: str) -> str:
    return text.lower().replace("delay=", "").removesuffix("()")


def _clocks(cluster: dict[str, Any], keys: dict[str, Any]) -> Table:
    """How many pushes of each worker are in: on the server that has the fewest, for a push may touch several."""
    workers = [node["name"] for node in cluster["nodes"] if node["role"] == Role.WORKER and node["state"] == "alive"]
    is_wide = len(workers) > MAX_WORKER_COLUMNS
    headings = ("slowest", "fastest", "apart") if is_wide else tuple(workers)
    table = _table("clocks", *headings, right=headings)
    for name in keys:
        seen = [said["keys"][name]["clocks"] for said in cluster["servers"].values() if name in said["keys"]]
        clocks = {worker: min((one.get(worker, 0) for one in seen), default=0) for worker in workers}
        cells = [str(clock) for clock in clocks.values()]
        if is_wide:
            slowest, fastest = min(clocks, key=clocks.__getitem__), max(clocks, key=clocks.__getitem__)
            apart = clocks[fastest] - clocks[slowest]
            cells = [f"{slowest}: {clocks[slowest]}", f"{fastest}: {clocks[fastest]}", str(apart)]
        table.add_row(f"[bold]{escape(name)}[/bold]", *cells)
    return table


def amount(nbytes: float) -> str:
    for unit in _UNITS:
        if nbytes < 1000 or unit == _UNITS[-1]:
            break
        nbytes /= 1000
    return f"{nbytes:.3g} {unit}"
