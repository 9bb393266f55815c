"""Checkpoints that nobody has to think of: saved while a run goes on, and gone back to when a server is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike, fspath
from types import TracebackType
from typing import Any, ClassVar, Protocol

from windlass.checkpoint import Reader, exists, verify
from windlass.checkpoint.folder import Folder
from windlass.checkpoint.listing import NUMBERED, State, list_folder, look_at
from windlass.errors import ClusterError, DamagedCheckpoint, LostRange, UsageError, WindlassError
from windlass.types import Role
from windlass.worker.checkpoint import load
from windlass.worker.driver import DriverStore

log = logging.getLogger("windlass")

MAX_RESTORES = 3
"""How often one run goes back to a checkpoint before the loss of a server is an error."""

STOP_SECONDS = 1.0
"""How long a run that failed waits for a save that is under way; it is then as if that had been killed."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Where checkpoints go, how often, how many stay; and what is done when a server is lost with what only it held."""

    OPTIONS: ClassVar = ("checkpoint", "checkpoint_every", "keep", "on_server_loss", "load")

    path: str = ""
    every_seconds: float | None = None
    keep: int | None = 3
    on_server_loss: str = "fail"
    load: str = ""  # what the store has before the first run
    is_command: bool = False  # given by the options of a command: errors call them so

    def __post_init__(self) -> None:
        every = self.every_seconds
        none = "" if self.is_command else ", or None"
        if every is not None and (isinstance(every, bool) or not isinstance(every, int | float) or not 0 < every < 1e9):
            raise UsageError(f"{self._called('checkpoint_every')} expects seconds above 0{none}, got {every!r}")
        if every is not None and not self.path:
            place = "--checkpoint" if self.is_command else "checkpoint="
            raise UsageError(f"{self._called('checkpoint_every')} expects {place} to say where checkpoints are saved")
        if self.keep is not None and (type(self.keep) is not int or self.keep < 1):
            raise UsageError(f"keep expects a whole number of at least 1, or None to remove nothing, got {self.keep!r}")
        if self.on_server_loss not in ("fail", "restore"):
            called, given = self._called("on_server_loss"), self.on_server_loss
            raise UsageError(f"{called} expects 'fail' or 'restore', got {given!r}")

    def _called(self, option: str) -> str:
        return f"--{option.replace('_', '-')}" if self.is_command else option

    def check_place(self) -> None:
        """Raise UsageError where nothing can be saved: better now than after hours of training."""
        if self.path:
            try:
                Folder.at(self.path).make()
            except ClusterError as error:
                raise UsageError(f"{self._called('checkpoint')} expects a place to save to: {error}") from None

    def to_load(self, warn: Callable[[str], object]) -> str:
        """The checkpoint to begin with; empty where the run begins anew, and `warn` is told if that may be a surprise.
        Raises UsageError for what can be no place of checkpoints, and DamagedCheckpoint if the newest there is."""
        if self.load:
            if exists(self.load):
                return Reader(self.load).path
            folder = Folder.at(self.load)
            if folder.is_file():
                raise UsageError(f"{self._called('load')} expects a checkpoint, or a directory of them, got a file")
            if not folder.exists() and NUMBERED.fullmatch(folder.name):
                raise UsageError(f"{self._called('load')} expects a checkpoint: there is none at '{self.load}'")
            warn(f"there is no checkpoint in '{self.load}' yet: this run begins anew")
        elif self.path:
            there = [one.path for one in list_folder(Folder.at(self.path)) if one.state is State.COMPLETE]
            if there:
                warn(f"there are checkpoints in '{self.path}', the newest is '{there[-1]}'; {self._begins_anew()}")
        return ""

    def _begins_anew(self) -> str:
        instead = f"--load {self.path}" if self.is_command else f"load='{self.path}'"
        kept = f"--keep {self.keep}" if self.is_command else f"keep={self.keep}"
        removed = f", and {kept} will remove the oldest" if self.keep is not None else ""
        return f"this run begins anew, unless it loads one itself{removed}; {instead} goes on with the newest"

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> SavePlan:
        """Take what concerns checkpoints out of a cluster's options."""
        return cls(
            _path(options, "checkpoint"),
            options.pop("checkpoint_every", None),
            options.pop("keep", 3),
            options.pop("on_server_loss", "fail"),
            _path(options, "load"),
        )


def _path(options: dict[str, Any], name: str) -> str:
    path: str | PathLike[str] | None = options.pop(name, None)
    if path is not None and not isinstance(path, str | PathLike):
        raise UsageError(f"{name} expects a path or a URL, got {path!r:.60}")
    return fspath(path) if path is not None else ""


class Autosave:
    """Inside the block a thread saves every so often; at its end everything is saved once more, unless by an exception.
    What cannot be saved meanwhile is warned of, and tried again the next time. What cannot be saved at the end is
    raised: LostRange if it was lost with a server, else a ClusterError with the reason and `advice`. `store` gives the
    handle to save by; `warn` is called in the thread."""

    def __init__(
        self,
        plan: SavePlan,
        store: Callable[[], DriverStore],
        *,
        warn: Callable[[str], object] = log.warning,
        advice: str = "",
    ) -> None:
        self._plan, self._store, self._warn, self._advice = plan, store, warn, advice
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Autosave:
        if self._plan.every_seconds is not None:
            self._thread = threading.Thread(target=self._run, name="windlass-autosave", daemon=True)
            self._thread.start()
        return self

    def _run(self) -> None:
        while not self._is_over.wait(self._plan.every_seconds):
            try:
                self._save()
            except LostRange:
                return  # it cannot be saved later either, and the run will hear of it
            except (WindlassError, OSError) as error:
                if not self._is_over.is_set():
                    then = f"it is tried again in {self._plan.every_seconds:g} s"
                    self._warn(f"no checkpoint was saved to '{self._plan.path}': {error}; {then}")

    def _save(self) -> None:
        store = self._store()  # what nobody has pushed to is not worth a checkpoint, and must not push out one that is
        store._saver.save(store._every_name, self._plan.path, keep=self._plan.keep, needs_updates=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(None if kind is None else STOP_SECONDS)
        if kind is None and self._plan.path:
            self._save_at_last()

    def _save_at_last(self) -> None:
        try:
            self._save()
        except LostRange:
            raise
        except (WindlassError, OSError) as error:
            last = self._last_good()
            before = f"the last good checkpoint is '{last}'" if last else "there is no checkpoint of it"
            raise ClusterError(
                f"the run ended well, but could not be saved to '{self._plan.path}': {error}; {before}{self._advice}"
            ) from error

    def _last_good(self) -> str:
        """The last checkpoint of this cluster, if it is still there; empty if not, or if that cannot be found out."""
        with suppress(WindlassError, OSError):
            path = str(self._store()._manager_says()["checkpoint"])
            listed = look_at(Folder.at(path)) if path else None
            if listed is not None and listed.state is State.COMPLETE:
                return path
        return ""


class Engine(Protocol):
    """What it takes to go back to a checkpoint."""

    def driver(self) -> DriverStore: ...

    def add_server(self) -> str: ...

    def replace_workers(self) -> None: ...


def restorable(plan: SavePlan, engine: Engine, num_restores: int) -> str:
    """The checkpoint to go back to after a server was lost; empty if there is none, or that is not to be done."""
    if plan.on_server_loss != "restore" or num_restores >= MAX_RESTORES:
        return ""
    return str(engine.driver()._manager_says()["checkpoint"])


def restore(engine: Engine, num_servers: int, path: str) -> None:
    """Start as many servers as are missing, and new workers; then every key is as it was in this checkpoint, and no
    other is there. Blocks."""
    problems = verify(Reader(path))  # before anything is taken away
    if problems:
        raise DamagedCheckpoint(path, [str(problem) for problem in problems])
    driver = engine.driver()
    nodes = driver._manager_says()["nodes"]
    alive = sum(node["role"] == Role.SERVER and node["state"] == "alive" for node in nodes)
    for _ in range(num_servers - alive):
        engine.add_server()
    engine.replace_workers()
    for name in driver._every_name():
        driver.delete(name)
    load(driver._client, path, is_same_run=True)
