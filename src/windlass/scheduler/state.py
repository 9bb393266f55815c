"""The scheduler: gives out batches of work, and sees to it that each is counted once. `handle(event, now) -> effects`.

Whether a batch counts is for the servers to say: a push carries the batches that it completes, and every shard counts
each of them once. So whatever the scheduler forgets or gives out twice, no sample counts twice; what it must not do is
forget one. It asks the servers when somebody who held batches is gone, and before it calls an epoch done. That an epoch
is done is all that it writes down: for the rest a new one asks the servers, and hears from the workers what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Event, Log, Persist, Received, Send, Tick
from windlass._wire.records import EpochDone
from windlass.consistency import Counted
from windlass.scheduler.book import Book
from windlass.scheduler.inquiry import Inquiry
from windlass.scheduler.work import Work
from windlass.types import SERVER, WORKER, Generation, Incarnation, Node

ASK_AGAIN_SECONDS = 0.5


class SchedulerState:
    """One for all namespaces; each workload belongs to one, and is done by its workers."""

    def __init__(self, epochs: Mapping[tuple[str, str], int]) -> None:
        """`epochs` are those that are done already of each namespace's workloads."""
        self._epochs = dict(epochs)
        self.generation = Generation(0, 0)
        self.workers: dict[Incarnation, Node] = {}
        self.servers: set[Incarnation] = set()
        self._works: dict[tuple[str, str], Work] = {}
        self._loaded: set[str] = set()  # namespaces whose epochs the servers know better than we do
        self._early: list[Received] = []  # before the first generation
        self._next_ask = 1
        self._now = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._now = now
        match event:
            case Received(message=m.Take()):
                return self._on_take(event)
            case Received(peer=peer, message=m.Holding() as holding):
                return self._on_holding(event, peer, holding)
            case Received(peer=peer, message=m.Tallied() as tallied):
                return self._on_tallied(peer, tallied)
            case Received(peer=peer, message=m.Loaded() as loaded):
                return self._on_loaded(peer, loaded)
            case Received(message=m.Membership() as membership):
                return self._on_membership(membership)
            case Tick():
                return self._on_tick()
            case _:
                return []

    # --- workers ------------------------------------------------------------------------------------------------------

    def _on_take(self, event: Received) -> list[Effect]:
        peer, take = event.peer, event.message
        assert isinstance(take, m.Take)
        if not self.generation.number:
            self._early.append(event)
            return []
        if peer not in self.workers:
            return []  # its generation is over, or still to come: it asks again then
        namespace = self.workers[peer].namespace
        problem = _problem(take.workload)
        work = self._works.get((namespace, take.workload.name))
        if work is not None and work.workload != take.workload:
            begun, now = _words(work.workload), _words(take.workload)
            problem = f"batches('{take.workload.name}') was begun as {begun}, got {now}"
        if problem:
            return [Send(peer, m.Refused(request=take.request, is_usage=True, reason=problem))]
        effects: list[Effect] = []
        if work is None:
            work, effects = self._begin(namespace, take.workload, take.waits)
        if work.is_late(peer, take):
            return effects
        if work.book is None:
            work.early.append((peer, take))
            return effects
        return effects + self._take(work, work.book, peer, take)

    def _on_holding(self, event: Received, peer: Incarnation, holding: m.Holding) -> list[Effect]:
        """A worker says what it has been given, by another scheduler, say. It will ask when it is done."""
        if not self.generation.number:
            self._early.append(event)
            return []
        if peer not in self.workers:
            return []
        namespace = self.workers[peer].namespace
        work = self._works.get((namespace, holding.workload.name))
        effects: list[Effect] = []
        if work is None:
            work, effects = self._begin(namespace, holding.workload, holding.waits)
        if holding.is_entering:
            work.entering.add(peer)
        elif holding.is_outside:
            work.outside.add(peer)
        work.founders.add(peer)
        if work.book is None:
            work.holding[peer] = holding.held
        else:
            work.book.claim(peer, holding.held, self._now)
        return effects

    def _begin(self, namespace: str, workload: m.Workload, waits: m.Waits) -> tuple[Work, list[Effect]]:
        founders = {who for who in self._crew(namespace) if not self.workers[who].is_late}
        work = Work(workload, namespace, founders=founders, waits=waits)
        self._works[(namespace, workload.name)] = work
        return work, self._inquire(work, None)

    def _take(self, work: Work, book: Book, peer: Incarnation, take: m.Take) -> list[Effect]:
        book.keys |= set(take.keys)
        book.has_word = book.has_word or bool(take.keys or take.done)
        book.may_copy = take.waits is not m.Waits.ROUNDS
        book.finish(peer, take.done, self._now)
        book.claim(peer, take.held, self._now)
        if take.is_leaving:
            work.leave(peer)
            farewell = self._granted(book, take.request, is_over=True)
            return [Send(peer, farewell), *self._go_on(work, book)]
        work.come(peer, take, self._now)
        return self._go_on(work, book)

    def _go_on(self, work: Work, book: Book) -> list[Effect]:
        """Answer everybody who can be answered now."""
        effects: list[Effect] = []
        if work.inquiry is None and book.doubted:
            effects += self._inquire(work, frozenset(book.doubted))
        if work.inquiry is None and not book.is_over and book.is_epoch_done:
            effects += self._inquire(work, frozenset(book.done))
        if book.is_over:
            asking, work.asking = work.asking, {}
            over = [Send(peer, self._granted(book, one.request, is_over=True)) for peer, one in asking.items()]
            return [*effects, *over]
        for peer in work.let_in(book):
            request = work.asking.pop(peer).request
            effects.append(Send(peer, self._granted(book, request, may_enter=True)))
        present = self._crew(work.namespace)
        for peer, one in list(work.asking.items()):
            batches = book.give(peer, self._now, work.crew(present)) if work.may_work(peer, book) else ()
            if batches or work.must_answer(peer, book, self._now):
                del work.asking[peer]
                effects.append(Send(peer, self._granted(book, one.request, batches=batches)))
                if not batches:
                    work.outside.add(peer)
        return effects

    def _granted(self, book: Book, request: int, **what: Any) -> m.Granted:
        """An answer, as of the generation that we know: we count on nobody who is gone in it."""
        term, number = self.generation
        return m.Granted(request=request, keys=tuple(sorted(book.keys)), term=term, number=number, **what)

    def _crew(self, namespace: str) -> set[Incarnation]:
        return {who for who, node in self.workers.items() if node.namespace == namespace}

    # --- servers ------------------------------------------------------------------------------------------------------

    def _inquire(self, work: Work, batches: frozenset[int] | None) -> list[Effect]:
        """Ask the servers about these batches. Where no push is known to carry any, the workers' word is all there
        is."""
        book = work.book
        keys = tuple(sorted(book.keys if book is not None else work.seen))
        if book is not None and batches is not None and not keys:
            return self._settle(work, book, batches, Counted(above=book.done))
        work.inquiry = Inquiry(self._next_ask, work.workload.name, keys, batches)
        work.asked_at = self._now
        self._next_ask += 1
        return [Send(server, work.inquiry.message) for server in sorted(self.servers)]

    def _on_tallied(self, peer: Incarnation, tallied: m.Tallied) -> list[Effect]:
        for work in self._works.values():
            inquiry = work.inquiry
            if inquiry is None or inquiry.ask != tallied.ask:
                continue
            inquiry.hear(peer, tallied)
            if not inquiry.is_answered(self.servers):
                if inquiry.is_heard(self.servers) and not inquiry.keys:  # now ask those, too, who know nothing of it
                    work.seen = inquiry.seen
                    return self._inquire(work, None)
                return []
            work.inquiry, book = None, work.book
            if book is None:
                return self._open(work, inquiry)
            batches = inquiry.batches or frozenset()
            if book.is_epoch_done and not (book.done <= batches and book.keys <= set(inquiry.keys)):
                return self._inquire(work, frozenset(book.done))  # asked before the end, this tells of some only
            counted = inquiry.counted if inquiry.seen else Counted(above=batches)  # the keys were deleted
            return self._settle(work, book, batches, counted)
        return []

    def _on_loaded(self, peer: Incarnation, loaded: m.Loaded) -> list[Effect]:
        """Work goes on from what the checkpoint counts, or from its beginning. Nobody is at it while one is loaded; if
        somebody is all the same, it goes on as it was."""
        self._loaded.add(loaded.namespace)
        effects: list[Effect] = [Send(peer, m.Done(request=loaded.request))]
        for which in [which for which, work in self._works.items() if which[0] == loaded.namespace and work.is_idle]:
            del self._works[which]
        for namespace, name in [which for which in self._epochs if which[0] == loaded.namespace]:
            if (namespace, name) not in self._works:
                del self._epochs[namespace, name]
                effects.append(Persist(EpochDone(namespace=namespace, workload=name, epochs=0)))
        return effects

    def _open(self, work: Work, inquiry: Inquiry) -> list[Effect]:
        """The servers have told what they count. Those keys are asked again about what is doubted: were there none, it
        would be done again, for nothing. One that knows of no batch yet is asked at the end of the epoch, when somebody
        has told of it."""
        counted = inquiry.counted
        epoch = self._epochs.get((work.namespace, work.workload.name), 0)
        if work.namespace in self._loaded and work.workload.epoch_batches:
            epoch = max(epoch, counted.floor // work.workload.epoch_batches)
        book = work.book = Book(work.workload, counted, epoch)
        book.keys |= inquiry.seen
        effects: list[Effect] = []
        for peer, held in work.holding.items():
            if peer in self.workers:
                book.claim(peer, held, self._now)
        early, work.early = work.early, []
        for peer, take in early:
            if peer in self.workers:
                effects += self._take(work, book, peer, take)
        return effects

    def _settle(self, work: Work, book: Book, batches: frozenset[int], counted: Counted) -> list[Effect]:
        was_end = book.is_epoch_done
        if was_end and book.keys and not book.has_word:
            # Whoever pushed these may have died between two keys, and of the second nobody knows. Who does one of them
            # again tells of all keys, and these are asked then.
            counted = Counted(above=[batch for batch in batches if batch in counted and batch != min(batches)])
        missing = sorted(batch for batch in batches if batch not in counted)
        book.settle(batches, [batch for batch in batches if batch in counted])
        again = [batch for batch in missing if batch not in book.done]
        effects: list[Effect] = []
        if again:
            some = ", ".join(map(str, again[:5])) + (" ..." if len(again) > 5 else "")
            count = f"{len(again)} batches are" if len(again) > 1 else "1 batch is"
            effects.append(Log("info", f"'{work.workload.name}': {count} given out again ({some})"))
        elif missing:
            text = f"{len(missing)} batches were not pushed to every key that others of '{work.workload.name}' went to"
            effects.append(Log("warning", f"{text}; there they do not count"))
        if not again and was_end and book.is_epoch_done:
            book.end_epoch()
            record = EpochDone(namespace=work.namespace, workload=work.workload.name, epochs=book.epoch)
            effects.append(Persist(record))
            end = "the last epoch" if book.is_over else f"epoch {book.epoch - 1}"
            effects.append(Log("info", f"'{work.workload.name}': {end} is done"))
        return effects + self._go_on(work, book)

    def describe(self) -> dict[str, Any]:
        """What `status` shows of leased work: plain data."""
        return {
            f"{namespace}/{name}" if namespace else name: {
                "name": name,
                "size": work.workload.size,
                "batch_size": work.workload.batch_size,
                "epochs": work.workload.epochs,
                "epoch": work.book.epoch if work.book is not None else 0,
                "done": len(work.book.done) if work.book is not None else 0,
                "held": len(work.book.held) if work.book is not None else 0,
            }
            for (namespace, name), work in self._works.items()
        }

    # --- members ------------------------------------------------------------------------------------------------------

    def _on_membership(self, membership: m.Membership) -> list[Effect]:
        generation = Generation(membership.term, membership.number)
        if generation <= self.generation:
            return []
        self.generation = generation
        before = self.workers
        self.workers = {node.incarnation: node for node in membership.nodes if node.role is WORKER}
        self.servers = {node.incarnation for node in membership.nodes if node.role is SERVER}
        effects: list[Effect] = []
        for work in self._works.values():
            for who in before.keys() - self.workers.keys():
                work.leave(who)
                work.heard.pop(who, None)
                if work.book is not None:
                    work.book.lose(who)
            effects += self._ask_again(work)
            if work.book is not None:
                effects += self._go_on(work, work.book)
        early, self._early = self._early, []
        for event in early:
            effects += self.handle(event, self._now)
        return effects

    def _on_tick(self) -> list[Effect]:
        effects: list[Effect] = []
        for work in self._works.values():
            if work.inquiry is not None and self._now - work.asked_at >= ASK_AGAIN_SECONDS:
                effects += self._ask_again(work)
            if work.book is not None:
                effects += self._go_on(work, work.book)
        return effects

    def _ask_again(self, work: Work) -> list[Effect]:
        return [] if work.inquiry is None else self._inquire(work, work.inquiry.batches)


def _problem(workload: m.Workload) -> str:
    if workload.size < 0 or workload.batch_size < 1 or workload.epochs < 0 or workload.step_batches < 0:
        return f"batches('{workload.name}') expects sizes of at least 1, got {_words(workload)}"
    return ""


def _words(workload: m.Workload) -> str:
    together = f", batches a step: {workload.step_batches}" if workload.step_batches else ""
    return f"{workload.size} samples in batches of {workload.batch_size}, epochs: {workload.epochs}{together}"
