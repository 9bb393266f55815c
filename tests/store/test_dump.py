from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.store.slots import bfloat16, make_slot, push, value
from windlass.errors import UsageError
from windlass.store.dense import DenseSlot
from windlass.store.update import FTRL, SGD, Adagrad, Adam, Updater
from windlass.types import STORAGE, Array, Block

SIZE = 40


@dataclass(frozen=True)
class Growing(Updater):
    """An updater that names its state only when it needs it."""

    lr: float = 0.1

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        seen = state.setdefault("seen", np.zeros_like(value))
        seen += np.abs(grad)
        value -= self.lr * grad / (1 + seen) / step


def train(slot: DenseSlot, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for ranges in ([(0, SIZE), (0, SIZE)], [(3, 9)], [(0, 20), (10, 30)], [(0, SIZE)]):
        pieces = []
        for lo, hi in ranges:
            numbers = (rng.standard_normal(hi - lo) * 4).astype(np.float32)
            pieces.append((lo, bfloat16(numbers) if slot.dtype == "bfloat16" else numbers.astype(slot.dtype)))
        push(slot, *pieces)


def over_the_wire(dumped: tuple[dict[str, Array], dict[str, Any]]) -> tuple[dict[str, Array], dict[str, Any]]:
    arrays, meta = dumped
    raw = {name: np.frombuffer(each.tobytes(), np.uint8) for name, each in arrays.items()}
    return raw, msgspec.msgpack.decode(msgspec.msgpack.encode(meta))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "updater", [SGD(momentum=0.9, dampening=0.1), Adam(), Adagrad(lr_decay=0.1), FTRL(), Growing()],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_a_restored_slot_goes_on_bit_for_bit(updater: Updater, dtype: str) -> None:
    straight = make_slot(SIZE, dtype, update=updater)
    train(straight, 1)
    restored = make_slot(SIZE, dtype, update=updater)
    train(restored, 5)  # it held something else before
    restored.restore(*over_the_wire(straight.dump()))
    for slot in (straight, restored):
        train(slot, 2)
    (first, first_meta), (second, second_meta) = straight.dump(), restored.dump()
    assert first_meta == second_meta
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name].view(np.uint8), second[name].view(np.uint8), err_msg=name)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64"])
def test_values_without_state_come_back(dtype: str) -> None:
    slot, other = make_slot(4, dtype, "max"), make_slot(4, dtype, "max")
    slot.write(0, 4, np.array([1, 0, 1, 1], STORAGE[dtype]))
    other.restore(*slot.dump())
    assert value(other).tolist() == value(slot).tolist()


def test_a_dump_is_a_copy() -> None:
    slot = make_slot(3)
    arrays, _ = slot.dump()
    push(slot, np.ones(3, np.float32))
    assert arrays["value"].tolist() == [0, 0, 0]


def test_an_empty_slot_is_dumped_and_restored() -> None:
    slot, again = make_slot(0, update=Adam()), make_slot(0, update=Adam())
    again.restore(*over_the_wire(slot.dump()))
    assert [array.size for array in again.dump()[0].values()] == [0] * len(slot.dump()[0])


def test_restoring_a_pinned_slot_hands_the_old_block_back() -> None:
    slot = make_slot(3)
    block: Block = slot.block
    source = make_slot(3)
    source.write(0, 3, np.ones(3, np.float32))
    assert slot.restore(*source.dump(), is_pinned=True) is block
    assert not block.array.any()
    assert value(slot).tolist() == [1, 1, 1]


def test_a_dump_of_something_else_is_refused_and_changes_nothing() -> None:
    slot = make_slot(3, update=SGD(momentum=0.9))
    with pytest.raises(UsageError, match="the dump is of 4 x float32, this slot holds 3 x float32"):
        slot.restore(*make_slot(4, update=SGD(momentum=0.9)).dump())
    with pytest.raises(UsageError, match=r"made under another updater: it has the state \['exp_avg', 'exp_avg_sq'\]"):
        slot.restore(*make_slot(3, update=Adam()).dump())
    arrays, meta = make_slot(3, update=SGD(momentum=0.9)).dump()
    arrays["state.momentum_buffer"] = np.zeros(2, np.float32)
    with pytest.raises(UsageError, match=r"should be of 3 elements, got \{'momentum_buffer': 2\}"):
        slot.restore(arrays, meta)
    assert value(slot).tolist() == [0, 0, 0]
