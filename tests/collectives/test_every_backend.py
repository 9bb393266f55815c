"""Every strategy, on every backend, of every size, under every reducer, gives what plain numpy gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectives.cases import MOVING, REDUCING, STRATEGIES, Case, expected
from tests.collectives.crews import CREWS

FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "uint8", "int32", "int16", "uint32")
LARGE = 700_001
"""Several pieces on their way through shared memory, and not a multiple of anything."""


@pytest.fixture(scope="module", params=list(CREWS))
def crew(request):
    made = CREWS[request.param]()
    yield made
    made.close()


@st.composite
def cases(draw) -> Case:
    verb = draw(st.sampled_from([*REDUCING * 3, *MOVING]))
    reduce = draw(st.sampled_from(("sum", "mean", "min", "max", "product", "any", "all")))
    numbers = FLOATS + INTEGERS
    fitting = {"mean": FLOATS, "any": ("bool",), "all": ("bool",), "sum": numbers, "product": numbers}
    dtype = draw(st.sampled_from(fitting.get(reduce, (*numbers, "bool"))))
    shape = draw(
        st.lists(st.integers(0, 7), max_size=3).map(tuple)
        | st.tuples(st.sampled_from((1, 2, 3, 4, 5, 9, 1000, 4095, 4096, 4097, 9001)))
    )
    framework = draw(st.sampled_from(("numpy", "torch")))
    return Case(
        verb=verb,
        strategy=draw(st.sampled_from(STRATEGIES)),
        reduce=reduce,
        dtype=dtype,
        shape=shape,
        framework="torch" if dtype == "bfloat16" else framework,
        is_strided=draw(st.booleans()),
        in_buffer=draw(st.booleans()),
        root=draw(st.integers(0, 7)),
        seed=draw(st.integers(0, 99)),
    )


def check(crew, case: Case) -> None:
    fitted = replace(case, root=case.root % crew.size, in_buffer=case.in_buffer and not case.is_strided)
    results = crew.perform(fitted)
    for rank, (result, right) in enumerate(zip(results, expected(fitted, crew.size), strict=True)):
        np.testing.assert_array_equal(result, right, err_msg=f"rank {rank} in {fitted}")
        assert result.dtype == right.dtype


@settings(
    max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases())
def test_a_collective_gives_what_plain_numpy_gives(crew, case):
    check(crew, case)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_reduces_a_tensor_of_many_pieces(crew, strategy):
    check(crew, Case(strategy=strategy, shape=(LARGE,), reduce="mean"))


@pytest.mark.parametrize("verb", [*REDUCING, *MOVING])
@pytest.mark.parametrize("in_buffer", [False, True])
def test_every_verb_moves_a_tensor_of_many_pieces(crew, verb, in_buffer):
    check(crew, Case(verb=verb, shape=(LARGE // 4, 3), in_buffer=in_buffer, root=crew.size - 1, framework="torch"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64"])
@pytest.mark.parametrize("reduce", ["sum", "max", "product"])
def test_a_large_tensor_of_any_type_takes_the_same_ways(crew, dtype, reduce):
    for in_buffer in (False, True):
        check(crew, Case(shape=(300_003,), dtype=dtype, reduce=reduce, framework="torch", in_buffer=in_buffer))
