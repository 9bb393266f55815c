"""What workers have kept back, as a snapshot has it."""

from __future__ import annotations

import numpy as np

from windlass._wire import messages as m
from windlass.server.deposits import Deposits
from windlass.types import Incarnation, KeyId

SAVER, FIRST, LATE = Incarnation(98), Incarnation(10), Incarnation(11)


def _given(number: float) -> tuple[m.Deposited, tuple[np.ndarray, ...]]:
    values = np.full(2, number, np.float32)
    given = m.Deposited(
        key=KeyId(1), saver=SAVER, snapshot=1, name="0.values", dtype="float32", meta={"sent": 1, "los": [0]}, part=0,
        parts=1, attempt=1,
    )  # fmt: skip
    return given, (values.view(np.uint8),)


def test_who_joins_while_residuals_are_read_comes_too_late_for_them() -> None:
    deposits: Deposits[str] = Deposits()
    deposits.ask("snapshot", 3)
    deposits.take("snapshot", FIRST, 0, *_given(1.0))
    assert deposits.frost("snapshot", [FIRST]) is m.Frost.FROZEN
    arrays, meta = deposits.content("snapshot")
    assert deposits.missing("snapshot", [FIRST, LATE]) == []
    deposits.take("snapshot", LATE, 1, *_given(2.0))
    again, meta_again = deposits.content("snapshot")
    assert (again.keys(), meta_again) == (arrays.keys(), meta)
    assert set(meta) == {"0"}
