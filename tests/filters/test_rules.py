"""Filters are named on the wire, never sent."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

import windlass as wl
from tests.filters.making import CODERS, EXACT, Sign
from windlass import filters as wf
from windlass.types import Rule


@pytest.mark.parametrize("each", [*EXACT, *CODERS, wf.IdCache(), wf.Zstd(level=3), Sign(step=0.5)], ids=str)
def test_a_filter_is_the_same_after_a_trip_over_the_wire(each):
    rules = wf.filter_rules([each])
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(rules), type=tuple[Rule, ...])
    assert sent == rules
    assert wf.resolve_filters(sent, {}) == (each,)


def test_a_filter_of_ones_own_is_named_by_its_import_path():
    assert wf.filter_rules([Sign(step=0.5)]) == (Rule("tests.filters.making:Sign", {"step": 0.5}),)


def test_built_in_filters_have_short_names():
    assert wf.filter_rules(["id_cache", wf.Int8(block=64)])[0] == Rule("id_cache", {})
    assert wf.resolve_filters(wf.filter_rules(["int8"]), {}) == (wf.Int8(),)


def test_a_filter_that_cannot_be_imported_stays_with_an_embedded_store():
    @dataclass(frozen=True)
    class Own(wf.Filter):
        size: int = 1

    local = {}
    (rule,) = wf.filter_rules([Own(2)], local)
    assert wf.resolve_filters([rule], local) == (Own(2),)
    with pytest.raises(wl.UsageError, match="has no import path"):
        wf.filter_rules([Own()])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([wf.Int8], r"did you mean Int8\(...\)\?"),
        (["int9"], "filters= any of 'id_cache'"),
        (wf.Int8(), "filters= expects a list of filters"),
        ("int8", "filters= expects a list of filters"),
        ([3], "filters= expects any of"),
    ],
)
def test_what_is_no_filter_is_refused(given, text):
    with pytest.raises(wl.UsageError, match=text):
        wf.filter_rules(given)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule("tests.filters.making:Ends"), "must be a subclass of wl.filters.Filter"),
        (Rule("tests.filters.nowhere:X"), "cannot import 'tests.filters.nowhere'"),
        (Rule("int8", {"bloc": 3}), r"Int8\(\) got unknown option bloc; did you mean block\?"),
    ],
)
def test_a_rule_that_names_no_filter_is_refused(rule, text):
    with pytest.raises(wl.UsageError, match=text):
        wf.resolve_filters([rule], {})


def test_the_filters_are_there_without_an_import_of_their_own():
    assert wl.filters.TopK(0.5) == wf.TopK(0.5)
    for name in wf.__all__:
        assert hasattr(wl.filters, name)
