"""Whatever comes off the wire, a server either reads it or says in words what is wrong with it."""

from __future__ import annotations

import copy

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import windlass as wl
from tests.filters.making import CODERS, EXACT, Ends, Sign, chains, numbers
from windlass import filters as wf

pytestmark = pytest.mark.timeout(300)  # the kernels may have to be compiled first
# What is drawn is encoded, and the first to be encoded waits for the compiler.
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def check_read(ends, payload, size):
    """Decode; what is not refused must be sound, and what is refused was found wrong, not stumbled over."""
    refused, decoded = None, None
    try:
        decoded = ends.receiver.decode(payload, size=size)
    except wl.PeerError as error:
        refused = error
    if refused is not None:
        assert str(refused).startswith("'w': ")
        assert "expected" in str(refused)
        assert refused.__cause__ is None or isinstance(refused.__cause__, wl.PeerError)
    elif isinstance(decoded, wf.NeedIds):
        assert isinstance(decoded.digest, str)
    elif size is not None:
        assert decoded.values.shape == (size,)
    else:
        assert decoded.values.shape == (len(decoded.ids), ends.chain.target.width)


def leaves(value, path=()):
    """The paths of everything in a meta."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, each in items for leaf in leaves(each, (*path, key)))]


def put(meta, path, value):
    """The meta with something else in one place."""
    if not path:
        return value
    meta = copy.deepcopy(meta)
    at = meta
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return meta


@st.composite
def damaged(draw):
    """A payload that was in order, with something changed in it."""
    is_table = draw(st.booleans())
    filters = draw(chains(for_table=is_table) | st.just([Sign()]))
    rows = draw(st.integers(0, 40))
    ends = Ends(filters, width=3 if is_table else None)
    ids = np.arange(rows, dtype=np.int64) if is_table else None
    payload = ends.send(numbers(rows * (3 if is_table else 1), rows).reshape((rows, 3) if is_table else rows), ids=ids)
    meta, buffers = payload.meta, list(payload.buffers)
    for _ in range(draw(st.integers(1, 2))):
        what = draw(st.sampled_from(["meta", "number", "cut", "grow", "flip", "drop", "swap", "junk"]))
        if what in ("meta", "number") and isinstance(meta, dict):
            path = draw(st.sampled_from(leaves(meta)))
            small = st.integers(-2, 50) | st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63)])
            meta = put(meta, path, draw(JUNK if what == "meta" else small))
        elif what == "junk":
            meta = draw(JUNK)
        elif buffers:
            at = draw(st.integers(0, len(buffers) - 1))
            data = bytearray(buffers[at])
            if what == "cut":
                data = data[: draw(st.integers(0, len(data)))]
            elif what == "grow":
                data += b"x" * draw(st.integers(1, 9))
            elif what == "flip" and data:
                data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
            buffers[at] = data
            if what == "drop":
                del buffers[at]
            elif what == "swap":
                buffers.reverse()
    return ends, wf.Payload(meta, buffers), None if is_table else rows


@QUICK
@given(damaged())
def test_a_damaged_payload_is_read_or_refused_in_words(case):
    ends, payload, size = case
    with np.errstate(all="ignore"):
        check_read(ends, payload, size)


@QUICK
@given(st.sampled_from([*EXACT, *CODERS, wf.Zstd(), wf.IdCache()]), JUNK, st.lists(st.binary(max_size=40), max_size=4))
def test_junk_is_refused_in_words(each, meta, buffers):
    ends = Ends([each], width=2 if isinstance(each, wf.IdCache) else None)
    check_read(ends, wf.Payload(meta, buffers), None if ends.chain.target.is_table else 10)


@pytest.mark.parametrize("each", [*EXACT, *CODERS, wf.Zstd()], ids=str)
def test_a_payload_for_another_range_is_refused(each):
    ends = Ends([each])
    payload = ends.send(numbers(40, 1))
    for size in (0, 39, 41, 400):
        with pytest.raises(wl.PeerError, match="'w': a payload cannot be read: expected"):
            ends.receiver.decode(payload, size=size)


def test_a_bomb_is_not_inflated():
    import zstandard

    ends = Ends([wf.Zstd()])
    bomb = zstandard.ZstdCompressor().compress(bytes(100 << 20))
    payload = ends.send(np.zeros(100, np.float32))
    for length in (400, 100 << 20):
        own = {"arrays": [["values", "float32", length // 4]], "lengths": [length], "packed": 1}
        meta = {**payload.meta, "filters": [own], "arrays": [["values", "uint8", len(bomb)]]}
        with pytest.raises(wl.PeerError, match=r"expected \d+ bytes from Zstd|expected at most"):
            ends.receiver.decode(wf.Payload(meta, [bomb]), size=100)


@pytest.mark.parametrize("positions", [[0, 5, 5], [5, 0], [9, 10], [-1, 3], [2**40]], ids=str)
def test_positions_that_do_not_ascend_or_lie_outside_cannot_be_said(positions):
    """Gaps are never negative, so only the last can be wrong: it is checked against the range."""
    def varint(gap):
        out = bytearray()
        while True:
            out.append((gap & 127) | (128 if gap > 127 else 0))
            gap >>= 7
            if not gap:
                return bytes(out)

    gaps, last = b"", -1
    for each in positions:
        gaps += varint((each - last - 1) % 2**62)
        last = each
    ends = Ends([wf.TopK(0.5)])
    header = [["gaps", "uint8", len(positions)], ["values", "float32", len(positions)]]
    payload = wf.Payload({"rows": 10, "arrays": header, "filters": [{}]}, [gaps, np.ones(len(positions), np.float32)])
    with pytest.raises(wl.PeerError, match="the bytes say something else"):
        ends.receiver.decode(payload, size=10)


@pytest.mark.parametrize("count", [11, 2**40, 2**62])
def test_no_memory_is_made_for_a_selection_of_more_rows_than_there_are(count):
    ends = Ends([wf.TopK(0.5)])
    for kind in ("bits", "gaps"):
        header = [[kind, "uint8", count], ["values", "float32", 0]]
        payload = wf.Payload({"rows": 10, "arrays": header, "filters": [{}]}, [b"ab", b""])
        with pytest.raises(wl.PeerError, match=f"expected a selection of {count} of 10 rows as {kind}, got 2 bytes"):
            ends.receiver.decode(payload, size=10)


def test_rows_for_a_list_of_another_length_are_refused():
    ends = Ends([wf.IdCache()], width=1)
    ends.receiver.decode(ends.send(np.ones((5, 1), np.float32), ids=np.arange(5, dtype=np.int64)))
    short = ends.send(np.ones((3, 1), np.float32), ids=np.arange(3, dtype=np.int64))
    named = ends.send(np.ones((5, 1), np.float32), ids=np.arange(5, dtype=np.int64))
    meta = {**short.meta, "digest": named.meta["digest"]}
    del meta["ids"]
    with pytest.raises(wl.PeerError, match="expected the values of 5 ids, got those of 3 rows"):
        ends.receiver.decode(wf.Payload(meta, short.buffers[1:]))


def test_rows_beyond_the_limit_are_refused():
    ends = Ends([wf.RandomSkip(0.5)], width=1)
    small = wf.Receiver(ends.chain, max_rows=10)
    payload = ends.send(np.ones((100, 1), np.float32), ids=np.arange(100, dtype=np.int64))
    with pytest.raises(wl.PeerError, match="expected 'rows' from 0 to 10"):
        small.decode(payload)


def test_a_filter_that_stumbles_over_a_payload_is_named_and_harms_nothing():
    ends = Ends([Sign()])
    payload = ends.send(np.ones(4, np.float32))
    payload.meta["arrays"] = [["values", "float32", 1]]
    with pytest.raises(wl.PeerError, match="'w': a payload cannot be read: expected 4 values of int8"):
        ends.receiver.decode(payload, size=4)


def test_a_meta_is_plain_values_and_small():
    ends = Ends([wf.IdCache(), wf.TopK(0.5), wf.Int8(), wf.Zstd()], width=4)
    payload = ends.sender.encode(np.ones((1000, 4), np.float32), ids=np.arange(1000, dtype=np.int64))
    assert len(msgspec.msgpack.encode(payload.meta)) < 250
