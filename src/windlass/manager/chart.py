"""Where every shard is, where it should be, and the next steps from one to the other.

A shard gets a new member of its chain as a *learner*, shown everything by the last of the chain while pushes go on, and
then appended. Its chain gets another order, or loses a member that lives, by *settling*: the head pauses, all of the
chain come to the same entry, and the next generation names the new chain. Nothing is copied then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from windlass._wire.messages import Move, Recruited, Settled
from windlass.manager.cuts import Pair, broken, joined, pair
from windlass.manager.placement import Load, count_shards, place, shard_bytes
from windlass.types import Chain, Generation, Incarnation, KeyId, KeySpec

MAX_UNDER_WAY = 4
"""How many shards change their chains at the same time. Each new copy is in memory twice meanwhile, slot by slot."""

TOLERANCE = 1.05
"""How far above the mean the fullest server may be before shards are moved away from it: half of what is promised."""

NOBODY = Incarnation(0)


@dataclass(slots=True)
class Charted:
    """A key's shards: the chain of each, its learner if it has one, and the chain it is to have if that is another."""

    id: KeyId
    spec: KeySpec
    chains: list[Chain]
    learners: dict[int, Incarnation] = field(default_factory=dict)
    targets: dict[int, Chain] = field(default_factory=dict)
    settling: set[int] = field(default_factory=set)
    since: dict[int, Generation] = field(default_factory=dict)  # when the step under way began
    is_placed: bool = False  # whether its servers have said that they hold it
    sizes: list[int] = field(init=False)  # bytes of each shard

    def __post_init__(self) -> None:
        self.sizes = shard_bytes(self.spec, len(self.chains))

    def move(self, shard: int, *, is_settled: bool = False) -> Move:
        learner = self.learners.get(shard, NOBODY)
        return Move(key=self.id, shard=shard, chain=self.chains[shard], learner=learner, is_settled=is_settled)

    def nbytes(self, shard: int) -> int:
        return self.sizes[shard]


@dataclass(slots=True)
class Steps:
    """What to publish, and whom to ask to settle: (head, key, shard)."""

    moves: list[Move] = field(default_factory=list)
    settles: list[tuple[Incarnation, KeyId, int]] = field(default_factory=list)


@dataclass(slots=True)
class Parting:
    """What becomes of chains over links that are cut: the links that cost somebody a place, and of how many shards each
    server has lost one."""

    moves: list[Move] = field(default_factory=list)
    costly: set[Pair] = field(default_factory=set)
    out: Counter[Incarnation] = field(default_factory=Counter)


class Chart:
    """Pure. `servers` are those alive, in the order of their ranks; `leaving` those of them that are to be emptied."""

    def __init__(self, replicas: int, shards_per_server: int = 0) -> None:
        self.replicas = replicas
        self.keys: dict[KeyId, Charted] = {}
        self.servers: list[Incarnation] = []
        self.leaving: set[Incarnation] = set()
        self._ranks: dict[Incarnation, int] = {}
        self.load = Load()
        self.generation = Generation(0, 0)  # the one that will be published next
        self._shards_per_server = shards_per_server
        self._short: set[KeyId] = set()  # keys with a chain that lacks a replica: few, or all, but not worth a search
        self._is_uneven = False  # a server has come or gone: look whether shards should move
        self.doubted: set[Pair] = set()  # links between servers that new chains keep off
        self.has_changed = False  # since chains were last looked at for links that are cut

    # --- keys -------------------------------------------------------------------------------------------------------

    def place(self, key: KeyId, spec: KeySpec) -> Charted:
        staying = self._staying() or self.servers
        num_shards = self._count_shards(spec.num_slots, len(staying))
        placed = place(spec, num_shards, staying, self.load, self.replicas)
        chains = [joined(chain, self.doubted) for chain in placed]
        self.load.add(spec, chains)
        charted = self.keys[key] = Charted(key, spec, list(chains))
        self._measure(charted)
        self.has_changed = True
        return charted

    def _count_shards(self, num_slots: int, num_servers: int) -> int:
        if self._shards_per_server:
            return min(num_slots, self._shards_per_server * num_servers)
        return count_shards(num_slots, num_servers, self.replicas)

    def restore(self, key: KeyId, spec: KeySpec, chains: list[Chain], *, is_placed: bool) -> Charted:
        """A key that another manager has placed."""
        self.load.add(spec, chains)
        charted = self.keys[key] = Charted(key, spec, list(chains), is_placed=is_placed)
        self._measure(charted)
        return charted

    def drop(self, key: KeyId) -> None:
        charted = self.keys.pop(key)
        self._short.discard(key)
        self.load.add(charted.spec, charted.chains, times=-1)

    def _measure(self, key: Charted) -> None:
        """Note whether all chains of a key are as long as they should be."""
        if any(len(chain) <= self.replicas for chain in key.chains):
            self._short.add(key.id)
        else:
            self._short.discard(key.id)

    def moves(self) -> list[Move]:
        """Where everything is, for somebody who may have missed some generations."""
        return [key.move(shard) for key, shard in self._shards()]

    def _shards(self, keys: Iterable[Charted] | None = None) -> Iterator[tuple[Charted, int]]:
        for key in self.keys.values() if keys is None else keys:
            for shard in range(len(key.chains)):
                yield key, shard

    def _resting(self, keys: Iterable[Charted] | None = None) -> list[tuple[Charted, int, Chain]]:
        """Shards, of these keys or of all, of which nothing is under way."""
        return [
            (key, shard, key.chains[shard]) for key, shard in self._shards(keys)
            if key.is_placed and shard not in key.targets and key.chains[shard]
        ]  # fmt: skip

    def _staying(self) -> list[Incarnation]:
        return [server for server in self.servers if server not in self.leaving]

    def holds(self, server: Incarnation) -> bool:
        return any(server in key.chains[shard] or key.learners.get(shard) == server for key, shard in self._shards())

    def can_lose(self, server: Incarnation) -> bool:
        """Whether all that this server holds is elsewhere, too."""
        return not any(key.chains[shard] == (server,) for key, shard in self._shards())

    # --- servers come and go ------------------------------------------------------------------------------------------

    def join(self, server: Incarnation, rank: int, *, is_late: bool) -> None:
        self._ranks[server] = rank
        self.servers = sorted([*self.servers, server], key=self._ranks.__getitem__)
        self._is_uneven = self._is_uneven or is_late

    def lose(self, server: Incarnation) -> list[Move]:
        """Take a dead server out of every chain. What was under way with those begins anew."""
        self.servers.remove(server)
        self.leaving.discard(server)
        self._is_uneven = True
        moves: list[Move] = []
        for key, shard in self._shards():
            chain = key.chains[shard]
            target = key.targets.get(shard, ())
            if server in chain or server in target or key.learners.get(shard) == server:
                self._cancel(key, shard)
                self._rechain(key, shard, tuple(other for other in chain if other != server))
                moves.append(key.move(shard))
        return moves

    def part(self, cuts: Collection[Pair]) -> Parting:
        """Let no chain go over these links, nor a learner hang on one. Of two neighbours that cannot reach each other
        the later goes out: whoever comes earlier has all that it has, and the head stays the head."""
        self.has_changed = False
        parting = Parting()
        for key, shard in self._shards():
            chain, learner = key.chains[shard], key.learners.get(shard)
            kept = joined(chain, cuts)
            hanging = kept if learner is None else (*kept[-1:], learner)
            over = broken(chain, cuts) | broken(hanging, cuts)
            if not key.is_placed or not (over or self._aims_over(key, shard)):
                continue
            self._cancel(key, shard)
            self._rechain(key, shard, kept)
            parting.moves.append(key.move(shard))
            parting.costly |= over
            parting.out.update(server for server in chain if server not in kept)
        return parting

    def _aims_over(self, key: Charted, shard: int) -> bool:
        """Whether the shard is on its way to a chain over a link that is doubted now. If a new member is shown it, that
        is judged by the link that it hangs on."""
        return shard in key.settling and bool(broken(key.targets[shard], self.doubted))

    def _cancel(self, key: Charted, shard: int) -> None:
        key.learners.pop(shard, None)
        key.targets.pop(shard, None)
        key.settling.discard(shard)

    def _rechain(self, key: Charted, shard: int, chain: Chain) -> None:
        self.load.move(-key.nbytes(shard), key.chains[shard])
        self.load.move(key.nbytes(shard), chain)
        key.chains[shard] = chain
        self._measure(key)
        self.has_changed = True

    # --- the next steps -----------------------------------------------------------------------------------------------

    def plan(self) -> Steps:
        """Begin what can be begun now, a few shards at a time: missing replicas first, then servers that leave, then
        balance. It is asked for with every key that is declared, and looks at all of them only where there is a
        reason."""
        steps, room = Steps(), -1
        for key, shard, target in self._wanted():
            if room < 0:
                room = max(0, MAX_UNDER_WAY - sum(len(key.targets) for key in self.keys.values()))
            if room == 0:
                break
            room -= 1
            key.targets[shard] = target
            self._go_on(key, shard, steps)
        return steps

    def _wanted(self) -> Iterator[tuple[Charted, int, Chain]]:
        """Shards at rest, and the chains that they should have."""
        yield from self._missing()
        if self.leaving:
            yield from self._vacating()
        if self._is_uneven:
            found = False
            for one in self._balancing():
                found = True
                yield one
            self._is_uneven = found or any(key.targets for key in self.keys.values())

    def _missing(self) -> Iterator[tuple[Charted, int, Chain]]:
        for key, shard, chain in self._resting([self.keys[key] for key in sorted(self._short)]):
            if len(chain) <= self.replicas:
                recruit = self._lightest(chain, chain[-1:])
                if recruit is not None:
                    yield key, shard, (*chain, recruit)

    def _vacating(self) -> Iterator[tuple[Charted, int, Chain]]:
        for key, shard, chain in self._resting():
            going = [server for server in chain if server in self.leaving]
            if going:
                instead = self._lightest(chain, chain)
                others = tuple(server for server in chain if server != going[0])
                if instead is not None:
                    yield key, shard, tuple(instead if server == going[0] else server for server in chain)
                elif others and not broken(others, self.doubted):
                    yield key, shard, others

    def _lightest(self, chain: Chain, neighbours: Chain) -> Incarnation | None:
        """Who should hold a shard that these hold already, too, and can reach its neighbours."""
        others = [
            server for server in self._staying()
            if server not in chain and not any(pair(server, one) in self.doubted for one in neighbours)
        ]  # fmt: skip
        return min(others, key=self._planned, default=None)

    def _planned(self, server: Incarnation) -> int:
        """Bytes on a server when everything under way is done."""
        held = self.load.held.get(server, 0)
        for key in self.keys.values():
            for shard, target in key.targets.items():
                held += key.nbytes(shard) * ((server in target) - (server in key.chains[shard]))
        return held

    def _balancing(self) -> Iterator[tuple[Charted, int, Chain]]:
        """From the fullest server to the emptiest, as long as that makes them more alike."""
        staying = self._staying()
        while len(staying) > 1:
            held = {server: self._planned(server) for server in staying}
            full, empty = max(staying, key=held.__getitem__), min(staying, key=held.__getitem__)
            gap = held[full] - held[empty]
            if held[full] * len(staying) <= TOLERANCE * sum(held.values()):
                break
            fitting = [
                (key, shard, chain) for key, shard, chain in self._resting()
                if full in chain and empty not in chain and key.nbytes(shard) < gap
                and not any(pair(empty, one) in self.doubted for one in chain)
            ]  # fmt: skip
            if not fitting:
                break
            sizes = [key.nbytes(shard) for key, shard, _ in fitting]
            best = max((size for size in sizes if size <= gap / 2), default=min(sizes))  # the small ones come last
            key, shard, chain = fitting[sizes.index(best)]
            yield key, shard, tuple(empty if server == full else server for server in chain)
        yield from self._spreading_heads(staying)

    def _spreading_heads(self, staying: list[Incarnation]) -> Iterator[tuple[Charted, int, Chain]]:
        """Let another member of its chain speak for a shard, where that evens out the work. Costs no copy."""
        heads = dict.fromkeys(staying, 0)
        for key, shard in self._shards():
            chain = key.targets.get(shard, key.chains[shard])
            if chain and chain[0] in heads:
                heads[chain[0]] += key.nbytes(shard)
        for key, shard, chain in self._resting():
            if len(chain) < 2 or chain[0] not in heads:
                continue
            nbytes, idlest = key.nbytes(shard), min(chain, key=lambda server: heads.get(server, 1 << 62))
            order = (idlest, *(server for server in chain if server != idlest))
            if idlest in heads and heads[chain[0]] - heads[idlest] > nbytes and not broken(order, self.doubted):
                heads[chain[0]] -= nbytes
                heads[idlest] += nbytes
                yield key, shard, order

    # --- steps that are done ------------------------------------------------------------------------------------------

    def recruited(self, said: Recruited, last: Incarnation) -> Steps | None:
        """The learner has all that the chain has, says the last of it. None: that is an old story."""
        key, shard, learner = self.keys.get(said.key), said.shard, said.learner
        if key is None or key.learners.get(shard) != learner or key.chains[shard][-1:] != (last,):
            return None
        if Generation(said.term, said.number) < key.since[shard]:
            return None
        del key.learners[shard]
        self._rechain(key, shard, (*key.chains[shard], learner))
        steps = Steps()
        self._go_on(key, shard, steps)
        if not steps.moves:
            steps.moves.append(key.move(shard))
        return steps

    def settled(self, said: Settled, head: Incarnation) -> list[Move] | None:
        """The head has paused and all of its chain have the same. None: that is an old story."""
        key, shard = self.keys.get(said.key), said.shard
        if key is None or shard not in key.settling or key.chains[shard][:1] != (head,):
            return None
        if Generation(said.term, said.number) < key.since[shard]:
            return None
        self._rechain(key, shard, key.targets[shard])
        self._cancel(key, shard)
        return [key.move(shard, is_settled=True)]

    def _go_on(self, key: Charted, shard: int, steps: Steps) -> None:
        """Begin the next step of a shard on its way to its target; at its target, it is at rest."""
        chain, target = key.chains[shard], key.targets.get(shard)
        if target is None:
            return
        key.since[shard] = self.generation
        self.has_changed = True
        new = next((server for server in target if server not in chain), None)
        if new is not None:
            key.learners[shard] = new
            steps.moves.append(key.move(shard))
        elif chain != target:
            key.settling.add(shard)
            steps.settles.append((chain[0], key.id, shard))
        else:
            self._cancel(key, shard)


def latest(moves: Sequence[Move]) -> list[Move]:
    """One move for each shard; it is settled if any of them was."""
    settled = {(move.key, move.shard) for move in moves if move.is_settled}
    last = {(move.key, move.shard): move for move in moves}
    return [msgspec.structs.replace(move, is_settled=which in settled) for which, move in last.items()]
