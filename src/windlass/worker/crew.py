"""Who is here, in the worker's state: as the newest generation says, and as seen from one seat."""

from __future__ import annotations

from msgspec import structs

from windlass._wire import messages as m
from windlass._wire.effects import Log, Send
from windlass.types import MANAGER, WORKER, Generation, Incarnation, Node


class Crew:
    """The part of a worker that knows the members, and its own seat among those of its namespace."""

    def __init__(self, me: Incarnation, join: m.Join) -> None:
        self.me = me
        self.role = join.role
        self._join = join
        self.rank = 0
        self.generation = Generation(0, 0)
        self.nodes: dict[Incarnation, Node] = {}
        self.departed: dict[Incarnation, Node] = {}
        self._left: set[str] = set()  # workers that left and of whom nothing was said yet

    # --- the own seat -------------------------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        return self._join.namespace

    @property
    def is_late(self) -> bool:
        """Whether this worker came to a run under way."""
        return self._join.is_late

    def arrive(self) -> Send:
        """This worker is late no longer, which the manager has to know."""
        self._join = structs.replace(self._join, is_late=False)
        return Send(MANAGER, self._join)

    @property
    def is_lowest(self) -> bool:
        """Whether no live worker has a lower rank: the first values are this one's to give."""
        return self.rank == self.lowest_rank

    # --- the others ---------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> set[Incarnation]:
        """The workers of the current generation, those of this namespace."""
        return {node.incarnation for node in self._crew()}

    @property
    def num_workers(self) -> int:
        return len(self._crew())

    @property
    def lowest_rank(self) -> int:
        return min(node.rank for node in self._crew())

    @property
    def num_founders(self) -> int:
        """How many seats there are for those who were here when the run began."""
        return 1 + max((node.rank for node in self._crew() if not node.is_late), default=-1)

    def empty_seats(self) -> list[str]:
        """Workers that have left, where somebody of a higher rank is still here."""
        taken = {node.rank for node in self._crew()}
        return [f"worker-{rank}" for rank in range(self.num_founders) if rank not in taken]

    def _crew(self) -> list[Node]:
        return [node for node in self.nodes.values() if self._is_of_crew(node)]

    def _is_of_crew(self, node: Node) -> bool:
        return node.role is WORKER and node.namespace == self._join.namespace

    def name(self, who: Incarnation) -> str:
        if who == MANAGER:
            return "the manager"
        node = self.nodes.get(who) or self.departed.get(who)
        return node.name if node else f"incarnation {who}"

    # --- as they come and go ------------------------------------------------------------------------------------------

    @property
    def is_out(self) -> bool:
        """Whether this is a worker that the generation does not name."""
        return self.role is WORKER and self.me not in self.nodes

    def _take_members(self, membership: m.Membership) -> dict[Incarnation, Node]:
        """A newer generation; who was a member, and is none any more."""
        self.generation = Generation(membership.term, membership.number)
        previous, self.nodes = self.nodes, {node.incarnation: node for node in membership.nodes}
        gone = {who: node for who, node in previous.items() if who not in self.nodes}
        self.departed |= gone
        self._left.update(node.name for node in gone.values() if self._is_of_crew(node))
        if self.role is WORKER and not self.is_out:
            self.rank = self.nodes[self.me].rank
        return gone

    def _tell_left(self) -> list[Log]:
        """Say once which workers have left, when there is a round that goes on without them: the next one, or, if one
        of them died, the one that is waited for. (Who is done may leave while we wait for our last answer.)"""
        seated = {node.name for node in self.nodes.values()}
        left, self._left = sorted(self._left - seated), set()
        workers = f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}"
        return [Log("warning", f"{', '.join(left)} has left; rounds go on with {workers}")] if left else []
