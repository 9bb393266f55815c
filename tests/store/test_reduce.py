import sys
import types

import numpy as np
import pytest

from tests.store.slots import make_slot, push, value
from windlass.errors import UsageError
from windlass.store.reduce import BUILT_IN, Reducer, reducer_rule, resolve_reducer
from windlass.types import Array, Rule

PRODUCT = Reducer("product", np.multiply, 1)
NOT_A_REDUCER = 5
HERE = __name__


@pytest.mark.parametrize(
    ("name", "combine", "identity", "text"),
    [
        ("minus", np.subtract, 0, r"'minus' is not commutative: combine\(-3, -2\) is -1 but combine\(-2, -3\) is 1"),
        ("average", lambda a, b: (a + b) / 2, 0.0, r"'average' is not associative: combine\(combine\("),
        ("max0", np.maximum, 0, r"'max0' is not neutral in its identity: combine\(-3, 0\) is 0 but should be -3"),
        ("dot", lambda a, b: np.dot(a, b), 0, r"'dot' must combine element by element: .* gave shape \(\)"),
        ("crash", lambda a, b: a + b.missing, 0, r"'crash' must combine two numpy arrays.*raised AttributeError"),
    ],
)
def test_a_reducer_that_breaks_a_law_is_refused_with_the_numbers(
    name: str, combine: object, identity: float, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        Reducer(name, combine, identity)  # type: ignore[arg-type]


def test_laws_are_checked_on_booleans_if_the_identity_is_one() -> None:
    Reducer("xor", np.logical_xor, False)
    with pytest.raises(UsageError, match="not neutral"):
        Reducer("xor", np.logical_xor, 0)


def test_floating_point_reducers_are_allowed_their_rounding() -> None:
    assert Reducer("logaddexp", np.logaddexp, float("-inf")).name == "logaddexp"


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("sum", "float32", [3, -1, 7]), ("mean", "float64", [1, -1 / 3, 7 / 3]), ("min", "int16", [-1, -2, 1]),
        ("max", "float32", [3, 1, 4]), ("sum", "int64", [3, -1, 7]), ("sum", "uint8", [3, 255, 7]),
    ],
)  # fmt: skip
def test_built_in_reducers(name: str, dtype: str, expected: list[float]) -> None:
    slot = make_slot(3, dtype, name)
    rows = np.array([[1, 0, 2], [-1, -2, 4], [3, 1, 1]]).astype(dtype)
    push(slot, *rows, divisor=3)
    np.testing.assert_array_equal(value(slot), np.array(expected, dtype))


@pytest.mark.parametrize(("name", "expected"), [("any", [1, 1, 0]), ("all", [1, 0, 0]), ("max", [1, 1, 0])])
def test_boolean_reducers_take_any_nonzero_byte_as_true(name: str, expected: list[int]) -> None:
    slot = make_slot(3, "bool", name)
    push(slot, np.array([1, 7, 0], np.uint8), np.array([2, 0, 0], np.uint8), np.array([True, False, False]))
    assert slot.block.array.tolist() == expected
    slot.write(1, 3, np.array([9, 0], np.uint8))
    assert slot.block.array.tolist() == [expected[0], 1, 0]


def test_minimum_and_maximum_hand_nan_on_from_either_side() -> None:
    for name in ("min", "max"):
        slot = make_slot(2, "float32", name)
        push(slot, np.array([np.nan, 1], np.float32), np.array([1, np.nan], np.float32))
        assert np.isnan(value(slot)).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 13])
def test_a_sum_is_taken_in_the_order_given_bit_for_bit(count: int) -> None:
    rng = np.random.default_rng(count)
    rows = (rng.standard_normal((count, 5000)) * 10.0 ** rng.integers(-8, 8, (count, 5000))).astype(np.float32)
    slot = make_slot(5000)
    push(slot, *rows)
    expected = rows[0].copy()
    for row in rows[1:]:
        expected += row
    np.testing.assert_array_equal(value(slot), expected)


def test_any_number_of_inputs_uses_one_compilation() -> None:
    from windlass.store import kernels

    slot = make_slot(4)
    for count in (1, 2, 3, 20):
        push(slot, *np.ones((count, 4), np.float32))
        assert value(slot).tolist() == [count] * 4
    types_compiled = [signature[1] for signature in kernels.assign.signatures]  # type: ignore[attr-defined]
    assert len(types_compiled) == len(set(types_compiled))


@pytest.mark.parametrize(
    ("name", "dtype", "text"),
    [
        ("mean", "int32", "reduce='mean' needs a floating-point key, got int32"),
        ("mean", "bool", "reduce='mean' needs a floating-point key, got bool"),
        ("sum", "bool", "reduce='sum' of bool values does not fit a bool: use 'any' or 'all'"),
        ("any", "int8", "reduce='any' needs a bool key, got int8: use 'max' or 'min'"),
    ],
)
def test_a_reduction_that_the_type_cannot_hold_is_refused(name: str, dtype: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make_slot(1, dtype, name)


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_a_custom_reducer_folds_in_order_and_works_with_every_kind_of_update(dtype: str) -> None:
    rows = np.array([[1, 2, 3], [4, 5, 6], [2, 2, 2]], dtype)
    slot = make_slot(3, dtype, PRODUCT)
    push(slot, *rows)
    assert value(slot).tolist() == [8, 20, 36]
    slot = make_slot(3, dtype, PRODUCT, "merge")
    slot.write(0, 3, np.array([1, 2, 3], dtype))
    push(slot, *rows, is_pinned=True)
    assert value(slot).tolist() == [8, 40, 108]


def test_a_custom_reducer_that_raises_leaves_the_slot_as_it_was() -> None:
    calls = []

    def picky(a: Array, b: Array) -> Array:
        calls.append(1)
        if len(calls) > 20:
            raise RuntimeError("enough")
        return a + b

    slot = make_slot(4, reduce=Reducer("picky", picky, 0))
    calls.extend([1] * (19 - len(calls)))
    ones = np.ones(2, np.float32)
    with pytest.raises(RuntimeError, match="enough"):
        push(slot, (0, ones), (0, ones), (2, ones), (2, ones))
    assert value(slot).tolist() == [0, 0, 0, 0]


def test_rules_name_built_ins_by_their_short_name() -> None:
    for name, reducer in BUILT_IN.items():
        assert reducer_rule(name) == reducer_rule(reducer) == Rule(name)
        assert resolve_reducer(Rule(name), {}) is reducer


def test_a_reducer_of_a_module_is_named_by_its_import_path() -> None:
    rule = reducer_rule(PRODUCT)
    assert rule == Rule(f"{HERE}:PRODUCT") == reducer_rule(f"{HERE}:PRODUCT")
    assert resolve_reducer(rule, {}) is PRODUCT


def test_a_reducer_without_import_path_is_refused_in_a_cluster_and_registered_in_an_embedded_store() -> None:
    nameless = Reducer("mine", lambda a, b: a + b, 0)
    with pytest.raises(UsageError, match="the reducer 'mine' has no import path: in a cluster it is named by one"):
        reducer_rule(nameless)
    local: dict[str, object] = {}
    rule = reducer_rule(nameless, local)
    assert resolve_reducer(rule, local) is nameless
    assert reducer_rule(nameless, local) == rule
    other = Reducer("mine", lambda a, b: b + a, 0)
    assert resolve_reducer(reducer_rule(other, local), local) is other
    with pytest.raises(UsageError, match="'local:mine' was declared by an embedded store and is known only there"):
        resolve_reducer(rule, {})


def test_a_reducer_of_main_has_no_import_path_that_another_process_could_use() -> None:
    main, reducer = sys.modules["__main__"], Reducer("own", np.add, 0)
    main.own = reducer  # type: ignore[attr-defined]
    try:
        with pytest.raises(UsageError, match="not __main__"):
            reducer_rule(reducer)
    finally:
        del main.own  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("summ", "expected reduce= one of 'sum', 'mean', .*got 'summ'"),
        ("no_such_module:x", "cannot import 'no_such_module'"),
        (f"{HERE}:MISSING", "does not exist"),
        (f"{HERE}:NOT_A_REDUCER", "must be a wl.Reducer made at module level, found int 5"),
        ("numpy:ndarray", "must be a wl.Reducer made at module level, found the class ndarray"),
    ],
)
def test_a_path_that_names_no_reducer_says_what_was_expected_and_found(path: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        resolve_reducer(Rule(path), {})
    with pytest.raises(UsageError, match=text):
        reducer_rule(path)


def test_what_is_not_a_reducer_is_refused() -> None:
    with pytest.raises(UsageError, match=r"or a wl\.Reducer, got function"):
        reducer_rule(lambda a, b: a + b)  # type: ignore[arg-type]


def test_the_name_of_a_reducer_held_by_two_modules_does_not_depend_on_import_order() -> None:
    reducer = Reducer("twice", np.add, 0)
    for name in ("windlass_test_zz", "windlass_test_aa"):
        sys.modules[name] = module = types.ModuleType(name)
        module.TWICE = reducer  # type: ignore[attr-defined]
    try:
        assert reducer_rule(reducer).path == "windlass_test_aa:TWICE"
    finally:
        del sys.modules["windlass_test_zz"], sys.modules["windlass_test_aa"]
