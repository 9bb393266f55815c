"""A saver in a story: it takes the steps of `store.save`, one at a time, as the script says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from windlass.worker.ops import KeyInfo, Op, Request
from windlass.worker.snapshot import Announcer, Melted, Snapshot, Steps

Said = Callable[[str], None]


@dataclass(slots=True)
class Saving:
    """One worker's snapshots. `go_on` takes up steps that let a moment pass."""

    submit: Callable[[Op | Request], None]
    announcer: Announcer = field(default_factory=Announcer)
    number: int = 0
    snapshot: Snapshot | None = None
    go_on: Callable[[], None] = lambda: None

    def freeze(self, key: KeyInfo, said: Said) -> None:
        self.number += 1
        self.snapshot = Snapshot(self.number, self.announcer)
        self._drive(self.snapshot.freeze([key]), lambda rounds: said(f"has 'w' frozen after round {rounds[key]}"), said)

    def read(self, key: KeyInfo, said: Said) -> None:
        assert self.snapshot is not None

        def tell(saved: list[Any]) -> None:
            said(f"saves {' '.join(str(slot.arrays['value'][0]) for slot in saved)}")

        self._drive(self.snapshot.read(key, range(key.spec.num_slots)), tell, said)

    def _drive(self, steps: Steps[Any], end: Callable[[Any], None], said: Said) -> None:
        def send(answers: Any) -> None:
            try:
                asks = steps.send(answers)
            except StopIteration as stop:
                end(stop.value)
                return
            except Melted as melted:
                said(f"must begin anew: {melted}")
                return
            if not asks:
                self.go_on = lambda: send([])
                return
            got: dict[int, Any] = {}
            for number, ask in enumerate(asks):
                self.submit(Request(ask.to, ask.make, self._into(got, number, len(asks), send)))

        send(None)

    def _into(self, got: dict[int, Any], number: int, wanted: int, send: Callable[[Any], None]) -> Any:
        def finish(answer: Any, data: Any, error: Any) -> None:
            got[number] = (answer, tuple(part.copy() for part in data))
            if len(got) == wanted:
                send([got[index] for index in range(wanted)])

        return finish
