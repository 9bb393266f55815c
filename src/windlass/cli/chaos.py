"""`windlass chaos -- COMMAND`: the job as a child of this process, disturbed from here, and the report at its end."""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from windlass._ledger import Ledger, Phase
from windlass._words import count
from windlass.chaos.plan import Plan, parse_delay, parse_seconds, parse_share, parse_sides, parse_target
from windlass.chaos.report import Report
from windlass.chaos.scene import There
from windlass.chaos.session import Session
from windlass.cli.chaos_show import Show, show_report
from windlass.engines._children import ForkServer
from windlass.engines.config import CHAOS_VARIABLE, NodeConfig, find_clusters
from windlass.engines.processes import PRELOAD
from windlass.errors import ClusterError, UsageError
from windlass.types import Role

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.05
END_SECONDS = 30.0
"""How long a job that was told to stop may take before it is killed."""
HURRY_SECONDS = 1.5
"""How long shards that change hands are waited for when somebody has asked us to stop."""
WRONG_USE = 2
"""The exit status for a plan that does not fit the job's cluster."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user typed."""

    command: tuple[str, ...]
    kill: tuple[str, ...]
    stop: tuple[str, ...]
    partition: tuple[str, ...]
    drop: str
    delay: str
    every: str
    length: str
    seed: int | None
    replaces: bool
    json: str
    size: tuple[int, int] | None = None
    """Servers and workers, where the command tells."""

    def plan(self) -> Plan:
        """Raises UsageError for what makes no sense, and for a node that the job is known not to have."""
        if not self.command:
            raise UsageError("chaos expects a command after --: windlass chaos --kill server:1 -- windlass run job.py")
        plan = Plan(
            kill=tuple(parse_target(one) for text in self.kill for one in text.split(",")),
            stop=tuple(parse_target(one) for text in self.stop for one in text.split(",")),
            partitions=tuple(map(parse_sides, self.partition)),
            drop=parse_share(self.drop),
            delay_seconds=parse_delay(self.delay),
            every_seconds=parse_seconds(self.every),
            seconds=parse_seconds(self.length),
            seed=random.randrange(1 << 32) if self.seed is None else self.seed,
            replaces=self.replaces,
        )
        if self.size is not None:
            plan.check(num_servers=self.size[0], num_workers=self.size[1])
        return plan


class _Asked:
    """Whether somebody has asked this process to stop. Its children do not hear Ctrl-C: they are told in time. Who asks
    twice has the job killed, and whatever waits for it ends."""

    def __init__(self) -> None:
        self.signum = 0
        self.child: subprocess.Popen[bytes] | None = None
        self._at = 0.0
        self._is_told = self._is_killed = False
        for number in SIGNALS:
            signal.signal(number, self._hear)

    def _hear(self, signum: int, _: object) -> None:
        if not self.signum:
            self.signum, self._at = signum, time.monotonic()
        elif self.child is not None and not self._is_killed:
            self._is_killed = True
            _signal(self.child, signal.SIGKILL)

    def tell(self, child: subprocess.Popen[bytes]) -> None:
        """Pass it on, once: a second Ctrl-C would cut short how the job ends."""
        if not self._is_told and child.poll() is None:
            self._is_told = True
            _signal(child, signal.SIGINT)

    def latest(self, began: float) -> float:
        """When to end what was begun then: in its own time, unless somebody asks for it."""
        if self._is_killed:
            return 0.0
        return max(self._at, began) + HURRY_SECONDS if self.signum else math.inf


def chaos(wanted: Wanted) -> int:
    """Blocks until the job has ended, in whatever way; the exit status."""
    plan = wanted.plan()
    report_file = Path(wanted.json) if wanted.json not in ("", "-") else None
    if report_file is not None and not report_file.absolute().parent.is_dir():
        raise UsageError(f"--json expects a file in a directory that exists, got {wanted.json!r}")
    asked = _Asked()
    with ExitStack() as stack:
        ledger = Ledger.make()
        stack.callback(ledger.close)
        show = Show()
        child = _start(wanted.command, ledger, is_piped=show.is_live)
        asked.child = child
        stack.callback(_end, child)
        with show.of(child):
            forks: list[ForkServer] = []
            if plan.replaces and _may_lose_servers(plan):  # it is made while the job starts
                forks.append(stack.enter_context(ForkServer(preload=PRELOAD, warm="windlass.engines.nodes:warm")))
            try:
                report = _disturb(plan, ledger, child, asked, forks, show.say)
            except UsageError as error:  # said before the job's own last words, which may be many
                show.say(f"{str(error).removeprefix('chaos ')}; the job is told to stop")
                _end(child)
                return WRONG_USE
    show_report(report, is_json=wanted.json == "-")
    if report_file is not None:
        report_file.write_text(json.dumps(report.to_dict(), indent=2) + "\n")
    return 128 + asked.signum if asked.signum else report.status


def _disturb(
    plan: Plan,
    ledger: Ledger,
    child: subprocess.Popen[bytes],
    asked: _Asked,
    forks: list[ForkServer],
    say: Callable[[str], None],
) -> Report:
    def is_over() -> bool:
        return bool(asked.signum) or ledger.phase is Phase.ENDED or child.poll() is not None

    session: Session | None = None
    try:
        config = _find(ledger, is_over)
        if config is not None:
            who = f"{count(config.num_servers, 'server')}, {count(config.num_workers, 'worker')}"
            say(f"seed {plan.seed}, {who}")
            recruit = _recruiter(config, forks)
            session = Session(plan, There(config, ledger, frozenset({os.getpid()}), recruit), say)
            session.run(is_over)
        if asked.signum and child.poll() is None:
            say(f"{signal.Signals(asked.signum).name}: the job is told to stop; a second one kills it")
            asked.tell(child)
            _await(lambda: ledger.phase is Phase.ENDED or child.poll() is not None, END_SECONDS)
        report = Report(seed=plan.seed, seconds=0.0)
        if session is not None:
            latest = partial(asked.latest, time.monotonic())
            report = session.judge("", is_there=child.poll() is None, latest=latest)
        ledger.tell(Phase.JUDGED)
        _await_end(child, asked)
        if session is None and not asked.signum:
            raise ClusterError(f"{_ending(child)} before it had opened a cluster; nothing was disturbed")
        return msgspec.structs.replace(report, job=_ending(child), job_status=_status(child))
    finally:
        ledger.tell(Phase.JUDGED)
        if session is not None:
            session.close()


# --- the cluster ------------------------------------------------------------------------------------------------------


def _find(ledger: Ledger, is_over: Callable[[], bool]) -> NodeConfig | None:
    """The cluster that the job has opened: it announces the ledger that it was given. None if the job ends first."""
    while not is_over():
        for _, config in find_clusters():
            if config.options.chaos == ledger.path:
                return config
        time.sleep(POLL_SECONDS)
    return None


def _may_lose_servers(plan: Plan) -> bool:
    return any(target.role is not Role.WORKER for target in plan.targets)


def _recruiter(config: NodeConfig, forks: list[ForkServer]) -> Callable[[int], None]:
    """Starts servers for somebody else's cluster, as its own launcher would. They are our children, and end with us."""
    scheme = config.manager[0].partition(":")[0]
    listen = "unix" if scheme == "unix" else f"{scheme}:127.0.0.1:0"

    def recruit(rank: int) -> None:
        node = msgspec.structs.replace(config, role=Role.SERVER, rank=rank, listen=(listen,))
        forks[0].spawn(f"server-{rank}", "windlass.engines.nodes:run_server", config=msgspec.msgpack.encode(node))

    return recruit


# --- the job ----------------------------------------------------------------------------------------------------------


def _start(command: tuple[str, ...], ledger: Ledger, *, is_piped: bool) -> subprocess.Popen[bytes]:
    """In a process group of its own: Ctrl-C is for us, and comes to it when nobody of it is stopped any more. If we are
    killed it is told to end."""
    libc = ctypes.CDLL(None)
    stream = subprocess.PIPE if is_piped else None
    with warnings.catch_warnings():
        # A function between fork and exec is frowned upon where there are threads. This one takes no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return subprocess.Popen(
                [_program(command[0]), *command[1:]],
                env=os.environ | {CHAOS_VARIABLE: ledger.path},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                process_group=0,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        except OSError as error:
            raise UsageError(f"chaos cannot start '{command[0]}': {error.strerror or error}") from None


def _program(name: str) -> str:
    """`windlass` is this one, on the path or not."""
    own = Path(sys.argv[0])
    if name == "windlass" and shutil.which(name) is None and own.name == "windlass":
        return str(own.absolute())
    return name


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave no job behind, whatever went wrong."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if child.poll() is None:
            _signal(child, number)
            _await(lambda: child.poll() is not None, END_SECONDS)


def _await(is_so: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS / 5)


def _await_end(child: subprocess.Popen[bytes], asked: _Asked) -> None:
    """Its cluster is gone. What else it does takes as long as it takes, unless somebody has asked us to stop."""
    while child.poll() is None and not asked.signum:
        time.sleep(POLL_SECONDS)
    asked.tell(child)
    _await(lambda: child.poll() is not None, END_SECONDS)
    if child.poll() is None:
        _signal(child, signal.SIGKILL)


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To all of the job's processes that are still in its group."""
    if child.returncode is None:  # else its number may be another's
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)


def _status(child: subprocess.Popen[bytes]) -> int:
    code = child.wait()
    return 128 - code if code < 0 else code


def _ending(child: subprocess.Popen[bytes]) -> str:
    code = child.wait()
    if code < 0:
        return f"the job was killed by {signal.Signals(-code).name}"
    return f"the job ended with status {code}"
