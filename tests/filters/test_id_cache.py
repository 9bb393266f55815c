"""A list of ids is sent once; a server that does not have it asks for it."""

from __future__ import annotations

import numpy as np
import pytest

import windlass as wl
from tests.filters.making import Ends, numbers, over_the_wire
from windlass import filters as wf

pytestmark = pytest.mark.timeout(300)  # the kernels may have to be compiled first
IDS = np.array([5, -3, 0, 2**63 - 1, -(2**63)], np.int64)
ROWS = np.arange(10, dtype=np.float32).reshape(5, 2)


def test_a_list_is_sent_once_and_named_from_then_on():
    ends = Ends([wf.IdCache()], width=2)
    sizes = []
    for _ in range(3):
        payload = ends.send(ROWS, ids=IDS)
        sizes.append(payload.nbytes)
        decoded = ends.receiver.decode(payload)
        assert np.array_equal(decoded.ids, IDS)
        assert np.array_equal(decoded.values, ROWS)
    assert sizes == [40 + 40, 40, 40]


def test_ids_and_rows_need_not_lie_side_by_side():
    ends = Ends([wf.IdCache(), wf.Cast()], width=2)
    wide = np.repeat(IDS, 2)[::2]
    payload = ends.send(np.asfortranarray(ROWS), ids=wide)
    decoded = ends.receiver.decode(payload)
    assert np.array_equal(decoded.ids, IDS)
    assert np.array_equal(decoded.values, ROWS)


def test_the_order_of_a_list_belongs_to_it():
    ends = Ends([wf.IdCache()], width=2)
    for ids in (IDS, IDS[::-1].copy(), IDS[:4], IDS):
        decoded = ends.receiver.decode(ends.send(ROWS[: len(ids)], ids=ids))
        assert np.array_equal(decoded.ids, ids)


def test_other_filters_leave_rows_out_of_a_list_that_stays_the_same():
    ends = Ends([wf.IdCache(), wf.TopK(0.4, feedback=False), wf.Zstd()], width=2)
    for push, rows in enumerate([ROWS[::-1].copy(), ROWS, ROWS[::-1].copy()]):
        payload = ends.send(rows, ids=IDS)
        assert ("ids" in payload.meta) == (push == 0)
        decoded = ends.receiver.decode(payload)
        assert decoded.ids.tolist() == (IDS[3:] if push == 1 else IDS[:2]).tolist()


def test_a_server_that_has_not_the_list_asks_for_it_and_counts_nothing():
    ends = Ends([wf.IdCache(), wf.Int8()], width=2)
    ends.send(ROWS, ids=IDS)
    mine = ends.sender.encode(ROWS, ids=IDS)
    heir = wf.Receiver(ends.chain)
    asked = heir.decode(over_the_wire(mine))
    assert asked == wf.NeedIds(mine.digest)
    decoded = heir.decode(over_the_wire(mine.in_full()))
    assert np.array_equal(decoded.ids, IDS)
    assert np.array_equal(decoded.values, ends_rows(ends, mine))
    assert not isinstance(heir.decode(over_the_wire(mine)), wf.NeedIds), "it has the list now"


def ends_rows(ends, payload):
    """What a server that knows the list makes of a payload."""
    knowing = wf.Receiver(ends.chain)
    knowing.decode(payload.in_full())
    return knowing.decode(payload).values


def test_after_a_generation_change_ids_are_sent_in_full():
    ends = Ends([wf.IdCache()], width=2)
    ends.send(ROWS, ids=IDS)
    assert "ids" not in ends.send(ROWS, ids=IDS).meta
    ends.sender.forget_peers()
    assert "ids" in ends.send(ROWS, ids=IDS).meta
    assert "ids" not in ends.send(ROWS, ids=IDS).meta


def test_what_one_peer_knows_another_is_still_told():
    ends = Ends([wf.IdCache()], width=2)
    told = [("ids" in ends.send(ROWS, ids=IDS, peer=peer).meta) for peer in (1, 2, 1, 2)]
    assert told == [True, True, False, False]


def test_a_pull_names_the_list_for_the_push_that_follows():
    ends = Ends([wf.IdCache()], width=2, lists=wf.IdLists())
    first = ends.sender.name_ids(IDS)
    assert np.array_equal(ends.receiver.lists.resolve(first), IDS)
    payload = ends.send(ROWS, ids=IDS)
    assert payload.nbytes == ROWS.nbytes
    assert np.array_equal(ends.receiver.decode(payload).ids, IDS)
    again = ends.sender.name_ids(IDS)
    assert again.ids is None
    assert np.array_equal(ends.receiver.lists.resolve(again), IDS)
    assert wf.IdLists().resolve(again) == wf.NeedIds(again.digest)


def test_the_least_recently_used_lists_go_first():
    lists = wf.IdLists(max_bytes=100)
    named = [wf.Sender(wf.Chain([wf.IdCache()], wf.Target("t", width=1))).name_ids(IDS + number) for number in range(3)]
    for each in named[:2]:
        lists.resolve(each)
    assert lists.get(named[0].digest) is not None
    lists.resolve(named[2])
    assert [lists.get(each.digest) is not None for each in named] == [True, False, True]
    assert lists.nbytes == 80
    assert (lists.hits, lists.misses) == (3, 1)
    large = np.arange(1000, dtype=np.int64)
    assert np.array_equal(lists.resolve(wf.NamedIds(wf.lists.digest_of(large), large)), large)
    assert len(lists) == 2, "what is larger than all the room is read, and not kept"


def test_a_server_that_keeps_too_little_is_soon_sent_its_ids_in_full():
    """Two messages for every push would be worse than no cache at all."""
    ends = Ends([wf.IdCache()], width=1, lists=wf.IdLists(max_bytes=1 << 16))
    lists = [np.arange(4096, dtype=np.int64) + number for number in range(4)]
    asked = 0
    for push in range(400):
        mine = ends.sender.encode(np.ones((4096, 1), np.float32), ids=lists[push % 4])
        decoded = ends.receiver.decode(over_the_wire(mine))
        if isinstance(decoded, wf.NeedIds):
            asked += 1
            decoded = ends.receiver.decode(over_the_wire(ends.sender.resend(mine, decoded)))
        assert np.array_equal(decoded.ids, lists[push % 4])
    assert 0 < asked <= 12


def test_a_list_that_is_not_what_its_digest_says_is_refused():
    ends = Ends([wf.IdCache()], width=2)
    payload = ends.send(ROWS, ids=IDS)
    ends.receiver.decode(payload)
    payload.buffers[0][0] ^= 1
    with pytest.raises(wl.PeerError, match="expected ids with the digest"):
        ends.receiver.decode(payload)
    with pytest.raises(wl.PeerError, match="expected ids with the digest"):
        wf.IdLists().resolve(wf.NamedIds("0" * 32, IDS))


def test_digests_of_similar_lists_differ():
    seen = set()
    base = np.arange(64, dtype=np.int64)
    for position in range(64):
        for bit in range(64):
            changed = base.copy()
            changed[position] ^= np.int64(-(2**63)) if bit == 63 else np.int64(1 << bit)
            seen.add(wf.lists.digest_of(changed))
    for size in range(64):
        seen.add(wf.lists.digest_of(np.zeros(size, np.int64)))
    assert len(seen) == 64 * 64 + 64
    assert len({each[:16] for each in seen}) == len({each[16:] for each in seen}) == len(seen)


def test_id_cache_and_int8_cut_the_bytes_of_wide_rows_by_four():
    ends = Ends([wf.IdCache(), wf.Int8()], width=16)
    ids = np.random.default_rng(0).permutation(32_000).astype(np.int64)
    rows = numbers(16 * 32_000, 0).reshape(-1, 16)
    ends.sender.name_ids(ids)
    payload = ends.sender.encode(rows, ids=ids)
    assert payload.nbytes * 4.3 < rows.nbytes + ids.nbytes
