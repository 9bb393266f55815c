"""What a node is told when it starts, and how a process learns it from its environment."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from windlass._ledger import Ledger, open_ledger
from windlass._transport.faulty import FaultyHub
from windlass._transport.hub import SocketHub
from windlass._transport.options import TlsFiles, TransportOptions
from windlass._wire.messages import Join
from windlass.errors import UsageError
from windlass.trace.recorder import open_recorder
from windlass.types import Consistency, Incarnation, Role, Sequential
from windlass.worker.driver import DriverStore
from windlass.worker.options import StoreOptions
from windlass.worker.state import WorkerState
from windlass.worker.store import Store
from windlass.worker.traced import make_client
from windlass.worker.witness import Witness

MANAGER_VARIABLE = "WINDLASS_MANAGER"
TOKEN_VARIABLE = "WINDLASS_TOKEN"
RANK_VARIABLE = "WINDLASS_RANK"
OPTIONS_VARIABLE = "WINDLASS_OPTIONS"
LATE_VARIABLE = "WINDLASS_LATE"
NAMESPACE_VARIABLE = "WINDLASS_NAMESPACE"
RECORD_VARIABLE = "WINDLASS_RECORD"
CHAOS_VARIABLE = "WINDLASS_CHAOS"
AWAITED_VARIABLE = "WINDLASS_AWAITED"

JOIN_SECONDS = 60.0
BEACON = "windlass-cluster"
OWN_LEDGER = "own"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of a cluster must agree on; travels to it as one value."""

    consistency: Consistency = msgspec.field(default_factory=Sequential)
    deterministic: bool = False
    check_finite: bool = False
    timeout: float = 300.0
    warn_seconds: float = 10.0
    chunk_bytes: int = 0
    tls: tuple[str, str, str] | None = None
    link_bytes_per_second: int = 0
    trace: str = ""  # where the launcher writes it
    replicas: int = 0
    lease_seconds: float = 3.0
    worker_lease_seconds: float = 30.0
    notice_seconds: float = 30.0
    on_worker_loss: str = "fail"
    journal: str = ""  # the manager's; empty: in memory, for as long as the driver lives
    restores: bool = False  # when a server is lost with what only it held, the launcher goes back to the checkpoint
    chaos: str = ""  # the ledger of a cluster that can be disturbed; empty: it cannot, and pays nothing for it

    @property
    def tick_seconds(self) -> float:
        """How often a server or the manager looks at the clock: often enough for several beats within half a lease."""
        return self.lease_seconds / 16

    @property
    def beat_seconds(self) -> float:
        """How often a worker lets the manager hear of it."""
        return self.worker_lease_seconds / 4

    @property
    def manager_tick_seconds(self) -> float:
        """And the manager, in whose process the scheduler is, where somebody may wait for work."""
        return min(self.tick_seconds, 0.05)

    def for_store(self) -> StoreOptions:
        if not isinstance(self.lease_seconds, int | float) or not self.lease_seconds > 0:
            raise UsageError(f"lease_seconds expects seconds above 0, got {self.lease_seconds!r}")
        if not isinstance(self.worker_lease_seconds, int | float) or not self.worker_lease_seconds > 0:
            raise UsageError(f"worker_lease_seconds expects seconds above 0, got {self.worker_lease_seconds!r}")
        check_on_worker_loss(self.on_worker_loss)
        if not isinstance(self.notice_seconds, int | float) or not self.notice_seconds >= 0:
            raise UsageError(f"notice_seconds expects seconds, 0 or more, got {self.notice_seconds!r}")
        rate = self.link_bytes_per_second
        if not isinstance(rate, int) or rate < 0:
            raise UsageError(f"link_bytes_per_second expects a whole number, 0 for no limit, got {rate!r}")
        fields = {name: getattr(self, name) for name in StoreOptions.__dataclass_fields__}
        return StoreOptions(**fields)


def check_on_worker_loss(given: str, called: str = "on_worker_loss") -> str:
    if given not in ("fail", "continue", "wait"):
        raise UsageError(f"{called} expects 'fail', 'continue' or 'wait', got {given!r}")
    return given


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One node's start."""

    role: Role
    rank: int
    token: str
    listen: tuple[str, ...] = ()
    manager: tuple[str, ...] = ()
    num_servers: int = 1
    num_workers: int = 1
    state: str = ""  # "module:Class" of another state machine for this role; for tests that plant a mistake
    journal: str = ""  # the manager's
    is_late: bool = False  # a worker that comes to a run under way
    namespace: str = ""
    is_return: bool = False  # a manager comes back: the cluster of its journal lives
    dead_pids: tuple[int, ...] = ()  # for a manager that comes back: nodes that have died meanwhile
    record: str = ""  # where this node notes down what it does, if it is traced
    num_awaited: int = 0  # a worker begins when so many are there: after a restart, say
    options: Options = msgspec.field(default_factory=Options)


_options_decoder = msgspec.json.Decoder(Options)
_config_decoder = msgspec.msgpack.Decoder(NodeConfig)


def read_config(data: bytes) -> NodeConfig:
    """What was encoded for a node that starts. Raises MsgspecError for anything else."""
    return _config_decoder.decode(data)


def fresh_incarnation() -> Incarnation:
    """A number that no process has had: 0 is the manager's, so it is never drawn."""
    return Incarnation(secrets.randbits(62) + 1)


def open_hub(me: Incarnation, config: NodeConfig) -> SocketHub:
    tls = TlsFiles(*config.options.tls) if config.options.tls else None
    options = TransportOptions(
        listen=config.listen, tls=tls, link_bytes_per_second=config.options.link_bytes_per_second
    )
    ledger = open_ledger(config.options.chaos) if config.options.chaos else None
    if ledger is not None:
        return FaultyHub(me, config.token.encode(), ledger, options=options)
    return SocketHub(me, config.token.encode(), options=options)


def take_ledger(options: Options) -> Ledger | None:
    """The ledger of a cluster that starts: that of the `windlass chaos` that this process was started by, or a new one
    if the cluster wants one of its own."""
    path = os.environ.get(CHAOS_VARIABLE, "")
    ledger = open_ledger(path) if path else None
    return Ledger.make() if ledger is None and options.chaos == OWN_LEDGER else ledger


def open_store(config: NodeConfig) -> Store:
    """Join the cluster as a worker or as a driver. Blocks until the cluster is complete."""
    me = fresh_incarnation()
    hub = open_hub(me, config)
    join = Join(
        role=config.role,
        pid=os.getpid(),
        addresses=(),
        rank=config.rank,
        namespace=config.namespace,
        is_late=config.is_late,
    )
    options = config.options.for_store()
    recorder = open_recorder(config.record, me)
    state = WorkerState(me, join, config.manager, config.options.beat_seconds)
    state.is_restored = config.options.restores
    client = make_client(hub, state, options, is_eager=False, recorder=recorder)
    if isinstance(hub, FaultyHub) and config.role is Role.WORKER:
        client.witness = Witness(hub.ledger, me)
    try:
        client.join(config.manager, JOIN_SECONDS)
        client.await_workers(config.num_awaited, JOIN_SECONDS)
    except BaseException:
        hub.close()
        raise
    return DriverStore(client, options) if config.role is Role.DRIVER else Store(client, options)


def environment(config: NodeConfig) -> dict[str, str]:
    """What a process needs in its environment for `connect`."""
    return {
        MANAGER_VARIABLE: ",".join(config.manager),
        TOKEN_VARIABLE: config.token,
        RANK_VARIABLE: str(config.rank),
        OPTIONS_VARIABLE: msgspec.json.encode(config.options).decode(),
        RECORD_VARIABLE: config.record,
        LATE_VARIABLE: "1" if config.is_late else "",
        NAMESPACE_VARIABLE: config.namespace,
        AWAITED_VARIABLE: str(config.num_awaited),
    }


def from_environment(**overrides: Any) -> NodeConfig:
    """The one place where the environment is read: argument > environment > default."""
    manager = overrides.get("manager") or os.environ.get(MANAGER_VARIABLE, "")
    token = overrides.get("token") or os.environ.get(TOKEN_VARIABLE, "")
    if not manager or not token:
        missing = MANAGER_VARIABLE if not manager else TOKEN_VARIABLE
        raise UsageError(
            f"connect() found no cluster: {missing} is not set; start the script with `windlass run`, "
            "use `with wl.Cluster(...)`, or wl.Store() for a store in this process alone"
        )
    options = _options_decoder.decode(os.environ.get(OPTIONS_VARIABLE, "{}"))
    rank = overrides.get("rank")
    return NodeConfig(
        role=Role.WORKER,
        rank=int(os.environ.get(RANK_VARIABLE, "-1")) if rank is None else rank,
        token=token,
        manager=tuple(manager.split(",")),
        options=options,
        record=os.environ.get(RECORD_VARIABLE, ""),
        is_late=bool(os.environ.get(LATE_VARIABLE)),
        namespace=overrides.get("namespace") or os.environ.get(NAMESPACE_VARIABLE, ""),
        num_awaited=int(os.environ.get(AWAITED_VARIABLE, "0")),
    )


def announce(config: NodeConfig) -> int:
    """Make a cluster findable by its user's other processes, for as long as the file returned stays open here.

    It is a memfd: no name on any disk, gone with its process, and readable through /proc by this user alone. Unlike
    an environment variable it is not handed on to what the driver starts."""
    beacon = os.memfd_create(BEACON)
    os.write(beacon, msgspec.msgpack.encode(config))
    return beacon


def find_clusters() -> Iterator[tuple[int, NodeConfig]]:
    """The clusters that processes of this user announce on this machine, each once, with the announcer's pid."""
    seen: set[tuple[str, ...]] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for config in _announced(f"/proc/{pid}/fd"):
            if config.manager not in seen:  # a fork of the driver holds a copy
                seen.add(config.manager)
                yield int(pid), config


def _announced(directory: str) -> Iterator[NodeConfig]:
    try:
        files = os.listdir(directory) if os.stat(directory).st_uid == os.geteuid() else []
    except OSError:
        return  # another user's process, or one that ended while we looked
    for file in files:
        with suppress(OSError, msgspec.MsgspecError):  # closed while we looked, or still being written
            if os.readlink(f"{directory}/{file}").startswith(f"/memfd:{BEACON} "):
                with open(f"{directory}/{file}", "rb") as beacon:
                    yield read_config(beacon.read())
