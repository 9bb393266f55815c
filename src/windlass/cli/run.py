"""`windlass run`: manager, servers, and N copies of a script that join them by `wl.connect()`."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType

from windlass.cli.crew import ANSWER_SECONDS, Crew
from windlass.cli.output import Interrupted, Output
from windlass.cli.script import Script
from windlass.engines._launch import files_told
from windlass.engines._saving import MAX_RESTORES, Autosave, SavePlan, restorable, restore
from windlass.engines.config import Options
from windlass.engines.look import Looker
from windlass.engines.processes import ProcessEngine, check_transport
from windlass.errors import LostRange, UsageError, WindlassError
from windlass.types import Bounded, Consistency, Eventual, Role, Sequential

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Job:
    """What to run, and on what kind of cluster."""

    servers: int
    workers: int
    transport: str
    options: Options
    script: Script
    save: SavePlan


def run(job: Job) -> int:
    """Blocks until the run has ended, in whatever way, and nothing of it is left; the exit status for it."""
    output = Output()
    try:
        with _raised():
            return _run(job, output)
    except Interrupted as interrupt:
        if interrupt.signum != signal.SIGPIPE:
            output.say(f"stopped by {signal.Signals(interrupt.signum).name}{interrupt.left}")
        return 128 + interrupt.signum


def _run(job: Job, output: Output) -> int:
    job.save.check_place()
    if job.save.on_server_loss == "restore" and not job.save.path:
        output.say(
            "--on-server-loss restore, without --checkpoint, can only go back to what the script itself saves"
        )
    begins_with = job.save.to_load(output.say)
    with files_told("open the cluster"):
        engine = ProcessEngine(
            servers=job.servers,
            workers=0 if begins_with else job.workers,  # then it is complete, and can be loaded to, before they come
            transport=_local(job.transport),
            options=job.options,
            server_state="",
            has_workers=False,
        )
    try:
        with files_told("open the cluster"):
            engine.open()
        if begins_with:
            engine.driver().load(begins_with)
            output.say(f"going on from '{begins_with}'")
        for num_restores in count():
            goes_back = job.save.on_server_loss == "restore" and num_restores < MAX_RESTORES
            is_return = num_restores > 0 or bool(begins_with)
            crew = Crew(engine, job.workers, job.script, output, is_return=is_return, goes_back=goes_back)
            lost: LostRange | None = None
            try:
                status = _watch(job, engine, crew, output)
            except LostRange as error:  # all workers have ended well, but what they made is gone
                lost = error
            if lost is None and (status == 0 or not crew.lost_servers):
                return status
            path = restorable(job.save, engine, num_restores)
            died = ", ".join(crew.lost_servers) or (lost.server if lost is not None else "")
            if not path and job.save.on_server_loss == "restore":
                why = "no checkpoint was saved yet" if goes_back else f"a run goes back {MAX_RESTORES} times at most"
                output.say(f"{died} died, and the run does not go back: {why}", is_error=True)
            if not path and lost is not None:
                raise lost
            if not path:
                return status
            output.say(f"{died} died; going back to '{path}', and the workers begin again")
            restore(engine, job.servers, path)
        raise AssertionError
    except Interrupted as interrupt:
        if engine.manager:
            with _unbroken():
                interrupt.left = _left(job, engine)
        raise
    finally:
        _ignore()
        engine.close()
        if engine.collector is not None and engine.collector.written is not None:
            output.say(engine.collector.written.text)


def _watch(job: Job, engine: ProcessEngine, crew: Crew, output: Output) -> int:
    """Start the workers, and give the exit status of the run when they have ended. Raises what Autosave does."""

    def warn(text: str) -> None:
        with suppress(Interrupted):  # the main thread finds out itself that nobody reads
            output.say(text, is_error=True)

    try:
        with Autosave(job.save, engine.driver, warn=warn):
            crew.start()
            status = crew.watch()
            if status or crew.is_alone:
                raise _Unsaved
            return status
    except _Unsaved:
        return status
    finally:
        with _unbroken():  # the end takes two seconds at most, and a second Ctrl-C must not cut it in half
            crew.stop()


def _left(job: Job, engine: ProcessEngine) -> str:
    """What a run that is stopped leaves to go on from. Blocks for half a second at most."""
    try:
        with Looker(engine.config(Role.DRIVER, -1)) as looker:
            path = looker.manager(ANSWER_SECONDS)["checkpoint"]
    except WindlassError:
        return ""
    if path:
        return f"; the last checkpoint is '{path}'"
    return "; no checkpoint was saved yet" if job.save.path else ""


class _Unsaved(Exception):
    """A worker failed, or none has ever joined: what there is now is not saved."""


@contextmanager
def _raised() -> Iterator[None]:
    """Inside, the signals that end a program are raised as Interrupted in whatever the main thread does."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    before = {signum: signal.signal(signum, interrupt) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _ignore() -> None:
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextmanager
def _unbroken() -> Iterator[None]:
    """Inside, those signals are ignored."""
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


# --- what the user typed ----------------------------------------------------------------------------------------------


def parse_consistency(text: str) -> Consistency:
    """"sequential", "bounded", "bounded:2" or "eventual"; anything else is a UsageError."""
    name, _, delay = text.partition(":")
    if name == "sequential" and not delay:
        return Sequential()
    if name == "eventual" and not delay:
        return Eventual()
    if name == "bounded" and (delay.isdecimal() or not delay):
        return Bounded(int(delay)) if delay else Bounded()
    raise UsageError(f"--consistency expects sequential, bounded:DELAY or eventual, got {text!r}")


def check_script(target: str, arguments: list[str], *, is_module: bool) -> Script:
    """The script's command line. Raises UsageError when there is nothing to run, before anything is started."""
    if not is_module:
        path = Path(target)
        if not path.exists():
            names = target.split(".")
            is_like_module = all(map(str.isidentifier, names)) and importlib.util.find_spec(names[0]) is not None
            raise UsageError(f"no script at '{target}'" + (f"; for the module: -m {target}" if is_like_module else ""))
        if path.is_dir() and not (path / "__main__.py").is_file():
            raise UsageError(f"'{target}' is a directory without a __main__.py: name the script")
        return Script((target, *arguments))
    return Script(("-m", target, *arguments))


def _local(transport: str) -> str:
    """Everything is on this machine: there is nothing for TLS to protect, and no place here to name its files."""
    if transport == "tls":
        raise UsageError("--transport expects auto, shm or tcp, got tls; wl.Cluster(transport='tls', tls=...) has it")
    return check_transport(transport)
