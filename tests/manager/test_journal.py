"""The manager's journal: what was written is read again, whatever was torn off its end; and one manager holds it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windlass as wl
from windlass._wire.messages import Move
from windlass.errors import ClusterError, UsageError
from windlass.manager import journal as journal_module
from windlass.manager.journal import MAGIC, Journal, whole_records
from windlass.manager.records import AnyRecord, Image, KeyDropped, KeyPlaced, NewKey, Published, Term
from windlass.types import Incarnation, KeyId, KeySpec, Node, Role, Rule, Sequential

A, B, C = Incarnation(11), Incarnation(12), Incarnation(13)


def node(who: Incarnation, role: Role = Role.SERVER) -> Node:
    return Node(name=f"{role}-{who}", role=role, incarnation=who, rank=int(who), pid=int(who), addresses=("unix:@x",))


def spec(name: str) -> KeySpec:
    return KeySpec(
        name=name, shape=(8,), dtype="float32", reduce=Rule(path="sum"), update=Rule(path="add"),
        consistency=Sequential(), chunk_bytes=1024,
    )  # fmt: skip


def move(key: int, shard: int, *chain: Incarnation, is_settled: bool = False) -> Move:
    return Move(key=KeyId(key), shard=shard, chain=chain, is_settled=is_settled)


STORY: list[AnyRecord] = [
    Published(number=1, joined=(node(A), node(B), node(C, Role.WORKER))),
    NewKey(key=KeyId(1), spec=spec("w"), chains=((A, B), (B, A))),
    KeyPlaced(key=KeyId(1)),
    NewKey(key=KeyId(2), spec=spec("x"), chains=((A, B),)),
    KeyDropped(key=KeyId(2)),
    Published(number=2, left=(A,), moves=(move(1, 0, B), move(1, 1, B))),
]


def write(path: Path, records: list[AnyRecord]) -> None:
    with Journal(str(path)) as journal:
        for record in records:
            journal.append(record)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "j", STORY)
    with Journal(str(tmp_path / "j")) as journal:
        image = journal.image
    assert (image.term, image.number, image.next_key) == (2, 2, 3)
    assert set(image.nodes) == {B, C}
    assert set(image.departed) == {A}
    assert image.keys[KeyId(1)].chains == [(B,), (B,)]
    assert image.keys[KeyId(1)].is_placed
    assert image.dropped == {KeyId(2): "x"}
    assert image.keys[KeyId(1)].doubted == {0}, "A was head of the first shard, and may not know that it is out"


def test_every_start_has_a_higher_term_and_it_is_on_disk(tmp_path: Path) -> None:
    terms = []
    for _ in range(3):
        with Journal(str(tmp_path / "j")) as journal:
            terms.append(journal.image.term)
        assert Image(record for record, _ in whole_records((tmp_path / "j").read_bytes())).term == terms[-1]
    assert terms == [1, 2, 3]


def test_of_the_journal_of_a_cluster_that_is_no_more_only_the_term_counts(tmp_path: Path) -> None:
    write(tmp_path / "j", STORY)
    with Journal(str(tmp_path / "j"), is_new=True) as journal:
        assert (journal.image.term, journal.image.number, journal.image.keys) == (2, 0, {})
    with Journal(str(tmp_path / "j")) as journal:
        assert (journal.image.term, journal.image.number, journal.image.nodes) == (3, 0, {})


def test_a_second_manager_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    held = r"another manager holds the journal .*j; .*stop that one first"
    with Journal(str(tmp_path / "j")), pytest.raises(ClusterError, match=held):
        Journal(str(tmp_path / "j"))
    Journal(str(tmp_path / "j")).close()


def test_a_cluster_on_a_journal_that_it_cannot_have_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "j")
    with Journal(place), pytest.raises(ClusterError, match="another manager holds the journal"):
        wl.Cluster(journal=place)
    with pytest.raises(UsageError, match=r"journal .* cannot be opened: No such file or directory"):
        wl.Cluster(journal=str(tmp_path / "nowhere" / "j"))
    assert "Traceback" not in capfd.readouterr().err


def test_the_lock_holds_for_a_journal_in_the_memory_of_another_process() -> None:
    held = os.memfd_create("journal")
    try:
        path = f"/proc/{os.getpid()}/fd/{held}"
        with Journal(path) as first:
            first.append(STORY[0])
            with pytest.raises(ClusterError, match="another manager holds the journal"):
                Journal(path)
        with Journal(path) as second:
            assert second.image.term == 2
            assert set(second.image.nodes) == {A, B, C}
    finally:
        os.close(held)


def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("do not touch")
    with pytest.raises(UsageError, match="notes is not a manager's journal"):
        Journal(str(tmp_path / "notes"))
    assert (tmp_path / "notes").read_text() == "do not touch"


def test_a_directory_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="journal /nowhere/j cannot be opened: No such file"):
        Journal("/nowhere/j")


@given(st.data())
def test_a_journal_cut_anywhere_recovers_a_prefix_and_goes_on(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "j"
        write(path, STORY)
        whole = path.read_bytes()
        records = [record for record, _ in whole_records(whole)]
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        kept = [record for record, end in whole_records(whole) if end <= cut]
        with Journal(str(path)) as journal:
            assert list(journal.image.records())[1:] == list(Image(kept).records())[1:]
            assert journal.image.term == Image(kept).term + 1
            journal.append(STORY[0])
        again = [record for record, _ in whole_records(path.read_bytes())]
        assert again == [*kept, Term(term=Image(kept).term + 1), STORY[0]]
        assert records[: len(kept)] == kept


@given(st.data())
def test_a_flipped_bit_ends_the_journal_where_it_is(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "j"
        write(path, STORY)
        whole = bytearray(path.read_bytes())
        at = data.draw(st.integers(len(MAGIC), len(whole) - 1))
        kept = [record for record, end in whole_records(bytes(whole)) if end <= at]
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
        assert [record for record, _ in whole_records(bytes(whole))] == kept


def test_a_long_journal_is_written_anew_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    toggles: list[AnyRecord] = []
    for number in range(3, 203):
        toggles.append(Published(number=number, moves=(move(1, 1, B, C) if number % 2 else move(1, 1, B),)))
    write(path, [*STORY, *toggles])
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 1000)
    before, said = path.stat().st_size, list(Image(record for record, _ in whole_records(path.read_bytes())).records())
    with Journal(str(path)) as journal:
        assert path.stat().st_size < before / 4
        assert list(journal.image.records())[1:] == said[1:]
        with pytest.raises(ClusterError, match="another manager"):
            Journal(str(path))
    with Journal(str(path)) as journal:
        assert journal.image.term == 3
        assert journal.image.next_key == 3
        assert list(journal.image.records())[1:] == said[1:]
    assert os.listdir(tmp_path) == ["j"]


def test_a_head_that_was_silent_is_doubted_until_another_has_settled(tmp_path: Path) -> None:
    image = Image(STORY)
    assert image.keys[KeyId(1)].doubted == {0}
    image.apply(Published(number=3, moves=(move(1, 0, C, B, is_settled=True),)))
    assert not image.keys[KeyId(1)].doubted
    image.apply(Published(number=4, left=(C,), dead=(C,), moves=(move(1, 0, B),)))
    assert not image.keys[KeyId(1)].doubted, "C is certainly dead"
