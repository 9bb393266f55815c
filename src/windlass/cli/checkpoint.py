"""`windlass checkpoint`: which checkpoints there are, whether they are whole, and what differs between two."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from windlass._words import count, say_marked
from windlass.checkpoint import Difference, Listed, Reader, State, list_checkpoints, verify
from windlass.checkpoint import diff as compare
from windlass.checkpoint.folder import Folder
from windlass.checkpoint.listing import look_at
from windlass.cli.tables import amount

MAX_ROWS = 40
_COLOURS = {State.COMPLETE: "green", State.UNFINISHED: "yellow", State.DAMAGED: "bold red"}


def _found(path: str) -> list[Listed]:
    """The checkpoint at this path, or all that are in it; said on stderr if there is none."""
    one = look_at(Folder.at(path))
    found = [one] if one else list_checkpoints(path)
    if not found:
        say_marked(Console(stderr=True), f"No checkpoint in '{escape(path)}'.")
    return found


def _table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        justify: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=number > 0)
    return table


# --- ls ---------------------------------------------------------------------------------------------------------------


def ls(path: str, *, is_json: bool) -> int:
    """Show them, oldest first; the exit status: 1 if there is none."""
    found = _found(path)
    if is_json:
        print(json.dumps([_plain(one) for one in found], indent=2))
    elif found:
        console = Console(highlight=False)
        console.print(_listing(found))
        for one in found:
            if one.problem:
                say_marked(console, f"[bold red]problem:[/bold red] {escape(f'{one.name}: {one.problem}')}")
    return 0 if found else 1


def _plain(one: Listed) -> dict[str, Any]:
    about: dict[str, Any] = {"name": one.name, "path": one.path, "state": one.state.value, "problem": one.problem}
    if (manifest := one.manifest) is not None:
        keys = {key.spec.name: str(key.moment) for key in manifest.keys}
        about |= {"saved": manifest.created.isoformat(), "step": manifest.step, "bytes": manifest.nbytes, "keys": keys}
    return about


def _listing(found: list[Listed]) -> Table:
    table = _table("checkpoint", "saved", "step", "keys", "bytes", "state", right=("step", "keys", "bytes"))
    for one in found:
        cells = ["", "", "", ""]
        if (manifest := one.manifest) is not None:
            when = manifest.created.astimezone().strftime("%Y-%m-%d %H:%M:%S")
            cells = [when, str(manifest.step), str(len(manifest.keys)), amount(manifest.nbytes)]
        colour = _COLOURS[one.state]
        table.add_row(f"[bold]{escape(one.name)}[/bold]", *cells, f"[{colour}]{one.state}[/{colour}]")
    return table


# --- verify -----------------------------------------------------------------------------------------------------------


def check(path: str) -> int:
    """Read every byte, and say what is not as it was written; the exit status: 1 if there is anything, or nothing."""
    found = _found(path)
    console = Console(highlight=False)
    is_whole = bool(found)
    with _bar() as progress:
        task = progress.add_task("", total=sum(one.manifest.nbytes for one in found if one.manifest))
        for one in found:
            progress.update(task, description=one.name)
            problems = _problems(one, lambda nbytes: progress.advance(task, nbytes))
            # The bar must not be drawn in the middle of a line: they go to different files.
            progress.stop()
            _say(console, one, problems)
            progress.start()
            is_whole = is_whole and not problems
    return 0 if is_whole else 1


@contextmanager
def _bar() -> Iterator[Progress]:
    """On a terminal only, and gone at the end."""
    console = Console(stderr=True, highlight=False)
    bar = BarColumn(bar_width=max(8, min(40, console.width - 50)))
    columns = (TextColumn("{task.description}"), bar, DownloadColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def _problems(one: Listed, on_bytes: Any) -> list[str]:
    if one.manifest is None:
        return [one.problem] if one.problem else []
    return [str(problem) for problem in verify(Reader(one.path), on_bytes)]


def _say(console: Console, one: Listed, problems: list[str]) -> None:
    name = f"[bold]{escape(one.name)}[/bold]"
    if one.state is State.UNFINISHED:
        why = "a save is under way, or was killed; it does not count"
        say_marked(console, f"{name} [yellow]unfinished[/yellow]: {why}")
    elif problems:
        say_marked(console, f"{name} [bold red]damaged[/bold red]")
        for problem in problems:
            say_marked(console, f"  [bold red]problem:[/bold red] {escape(problem)}")
    elif one.manifest is not None:
        keys, files = count(len(one.manifest.keys), "key"), count(len(one.manifest.files), "file")
        read = f"{keys} in {files}, {amount(one.manifest.nbytes)}"
        say_marked(console, f"{name} [green]complete[/green]: {read}, every byte as it was written")
    sys.stdout.flush()


# --- diff -------------------------------------------------------------------------------------------------------------


def diff(before: str, after: str) -> int:
    """Show what differs; the exit status: 1 if anything does."""
    old, new = Reader(before), Reader(after)
    with _bar() as progress:
        task = progress.add_task("comparing", total=sum(reader.manifest.nbytes for reader in (old, new)))
        found = compare(old, new, lambda nbytes: progress.advance(task, nbytes))
    console = Console(highlight=False)
    for mark, reader in (("-", old), ("+", new)):
        when = reader.manifest.created.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        about = f"step {reader.manifest.step}, saved {when}"
        say_marked(console, f"{mark} [bold]{escape(reader.path)}[/bold]  [dim]{about}[/dim]")
    console.print()
    if found.is_same:
        say_marked(console, f"The same: {count(len(new.keys), 'key')}, every bit of every array.")
        return 0
    _show(console, found)
    return 1


def _show(console: Console, found: Difference) -> None:
    for names, what in ((found.removed, "[red]- removed[/red]"), (found.added, "[green]+ added[/green]")):
        for name in names:
            say_marked(console, f"{what} [bold]{escape(name)}[/bold]")
    for name, fields in found.changed.items():
        for field, was, now in fields:
            change = f"{escape(field)} was {escape(was)}, is {escape(now)}"
            say_marked(console, f"[yellow]~ declared[/yellow] [bold]{escape(name)}[/bold]: {change}")
    for name, noun, removed, added in found.rows:
        counts = f"{removed:,} {noun} removed, {added:,} added"
        say_marked(console, f"[yellow]~ {noun}[/yellow] [bold]{escape(name)}[/bold]: {counts}")
    for name, array, path in found.one_sided:
        text = f"[bold]{escape(name)}[/bold]: {escape(array)} is only in {escape(path)}"
        say_marked(console, f"[yellow]~ arrays[/yellow] {text}")
    moved = sorted((one for one in found.arrays if one.differing), key=lambda one: (one.key, one.name))
    if moved:
        table = _table("key", "array", "elements", "differ", "largest |Δ|", right=("elements", "differ", "largest |Δ|"))
        for one in moved[:MAX_ROWS]:
            share = "all" if one.differing == one.elements else f"{min(0.999, one.differing / one.elements):.1%}"
            table.add_row(f"[bold]{escape(one.key)}[/bold]", one.name, f"{one.elements:,}", share, f"{one.max_abs:.4g}")
        console.print(table)
    if len(moved) > MAX_ROWS:
        say_marked(console, f"[dim]and {count(len(moved) - MAX_ROWS, 'more array')}, not shown[/dim]")
    same = len(found.arrays) - len(moved)
    if same:
        verb = "is" if same == 1 else "are"
        say_marked(console, f"[dim]{count(same, 'array')} {verb} the same, bit for bit[/dim]")
