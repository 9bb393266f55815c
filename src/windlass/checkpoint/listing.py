"""The checkpoints of one directory: which there are, which is the newest, which may go.

There is no pointer to the newest that could be wrong: it is found by looking at the manifests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from windlass.checkpoint.folder import Folder
from windlass.checkpoint.manifest import MANIFEST, SHARD_NAME, UNFINISHED, Manifest, unseal
from windlass.errors import DamagedCheckpoint, UsageError

NUMBERED = re.compile(r"step-[0-9]{6,}")
"""The names that we give. What a user has named is his: `keep` does not count or remove it."""


class State(StrEnum):
    COMPLETE = "complete"
    UNFINISHED = "unfinished"  # somebody is writing it, or died while he did
    DAMAGED = "damaged"  # by what can be seen without reading it all; `verify` reads it all


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint, as far as it can be known without reading its shards."""

    name: str
    path: str
    state: State
    manifest: Manifest | None = None
    problem: str = ""
    modified: float | None = None

    @property
    def order(self) -> tuple[bool, int, str]:
        """Oldest first; those whose place nobody knows come last."""
        return self.manifest is None, self.manifest.sequence if self.manifest else 0, self.name


def look_at(folder: Folder) -> Listed | None:
    """The checkpoint in this folder; None if there is none."""
    files = folder.files()
    name, path = folder.name, str(folder)
    if MANIFEST not in files:
        return Listed(name, path, State.UNFINISHED) if UNFINISHED in files else None
    modified = folder.modified(MANIFEST)
    try:
        manifest = unseal(folder.read(MANIFEST), path)
    except (DamagedCheckpoint, UsageError) as error:
        problem = error.problems[0] if isinstance(error, DamagedCheckpoint) else str(error)
        return Listed(name, path, State.DAMAGED, problem=problem, modified=modified)
    problem = _seen(manifest, files)
    return Listed(name, path, State.DAMAGED if problem else State.COMPLETE, manifest, problem, modified)


def _seen(manifest: Manifest, files: dict[str, int]) -> str:
    """What the sizes of the files tell."""
    for file in manifest.files:
        if file.name not in files:
            return f"{file.name} is missing"
        if files[file.name] != file.nbytes:
            return f"{file.name} has {files[file.name]} bytes, {file.nbytes} were written"
    return ""


def list_checkpoints(path: str | os.PathLike[str]) -> list[Listed]:
    """Every checkpoint in this directory, oldest first. Raises UsageError if there is no such directory."""
    folder = Folder.at(path)
    if folder.is_file():
        raise UsageError(f"'{path}': expected a directory of checkpoints, got a broken or foreign file")
    if not folder.exists():
        raise UsageError(f"'{path}': no such file or directory; a save makes it")
    return list_folder(folder)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a checkpoint to load in this directory, or this is one. What was never finished is none, and a
    directory that is not there has none: a job that goes on from where it was begins anew there. A damaged one counts,
    so that `load` says what is wrong with it."""
    folder = Folder.at(path)
    if not folder.exists():
        return False
    own = look_at(folder)
    return any(one.state is not State.UNFINISHED for one in ([own] if own else list_folder(folder)))


def list_folder(folder: Folder) -> list[Listed]:
    """As `list_checkpoints`; none are in a folder that is not there."""
    found = [one for name in folder.folders() if (one := look_at(folder.child(name))) is not None]
    return sorted(found, key=lambda one: one.order)


def latest(path: str | os.PathLike[str]) -> str:
    """The path of the newest checkpoint in a directory. One that was never finished does not count.

    Raises UsageError if there is none, and DamagedCheckpoint if the newest is damaged: the text says which is the
    newest good one, but it is the caller who decides to go back to it.
    """
    listed = list_checkpoints(path)
    good = [one for one in listed if one.state is State.COMPLETE]
    damaged = [one for one in listed if one.state is State.DAMAGED and _is_newer(one, good)]
    if damaged:
        instead = f"the newest good one is '{good[-1].path}'" if good else "there is no other"
        raise DamagedCheckpoint(damaged[-1].path, [damaged[-1].problem], instead)
    if not good:
        unfinished = ", ".join(f"'{one.name}' was never finished" for one in listed)
        raise UsageError(f"no checkpoint in '{path}'{': ' if unfinished else ''}{unfinished}")
    return good[-1].path


def instead_of(folder: Folder) -> str:
    """What to load where this one turned out to be damaged while it was read: of its neighbours the newest whose files
    are all there. What they hold is not looked at."""
    parent, _, name = str(folder).rstrip("/").rpartition("/")
    others = [one for one in list_folder(Folder.at(parent)) if one.state is State.COMPLETE and one.name != name]
    return f"the newest other one is '{others[-1].path}'" if others else "there is no other beside it"


def _is_newer(one: Listed, good: Sequence[Listed]) -> bool:
    """Than the newest good one; where it cannot be told it counts as newer, so that nobody goes back unawares."""
    if not good:
        return True
    newest = good[-1]
    if one.manifest and newest.manifest:
        return one.manifest.sequence > newest.manifest.sequence
    return one.modified is None or newest.modified is None or one.modified >= newest.modified


def find(path: str | os.PathLike[str]) -> Folder:
    """The folder of the checkpoint that `path` names: itself, or the newest in it."""
    folder = Folder.at(path)
    files = folder.files()
    if MANIFEST not in files and UNFINISHED in files:
        raise UsageError(f"the checkpoint '{path}' was never finished; `windlass checkpoint ls` shows which were")
    return folder if MANIFEST in files else Folder.at(latest(path))


# --- removing ---------------------------------------------------------------------------------------------------------


def mark(folder: Folder) -> None:
    """From now on what no manifest names is a leftover, until `sweep` has removed it."""
    folder.write(UNFINISHED, [b"A save is under way here, or was killed; the next save removes what it has left.\n"])


def sweep(folder: Folder) -> None:
    """Remove what a save left that was killed, in its own checkpoint or in one that it was removing. What a manifest
    names stays, and so does everything beside a manifest that cannot be read, and whatever is not ours."""
    files = folder.files()
    if UNFINISHED not in files:
        if not files and NUMBERED.fullmatch(folder.name):
            folder.remove_if_empty()  # it was killed before its first file, or after its last
        return
    named: set[str] = set()
    if MANIFEST in files:
        try:
            named = {file.name for file in unseal(folder.read(MANIFEST), str(folder)).files}
        except (DamagedCheckpoint, UsageError):
            return
    for name in files:
        if (SHARD_NAME.fullmatch(name) and name not in named) or name == f"{MANIFEST}.part":
            folder.remove(name)
    folder.remove(UNFINISHED)
    folder.remove_if_empty()


def prune(root: Folder, listed: Sequence[Listed], keep: int) -> None:
    """Of the numbered checkpoints that are whole, leave the newest `keep`."""
    numbered = [one for one in listed if one.state is State.COMPLETE and NUMBERED.fullmatch(one.name)]
    for one in sorted(numbered, key=lambda one: one.order)[:-keep]:
        folder = root.child(one.name)
        # First it is no checkpoint any more, then its files go: half of one must never look like a whole one.
        mark(folder)
        folder.remove(MANIFEST)
        sweep(folder)
