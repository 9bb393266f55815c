from __future__ import annotations

import bz2
import gzip
import lzma
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apps.logistic.data import make, write_libsvm
from windlass.apps.logistic import BadLine, Rows, Source
from windlass.apps.logistic.rows import join
from windlass.errors import UsageError


def same(a: Rows, b: Rows) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("starts", "ids", "values", "labels"))


def read(tmp_path, text, name="data.libsvm", **options):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Source(str(path), **options).read()


def test_a_libsvm_line_is_a_label_and_pairs(tmp_path):
    lines = "+1 3:0.5 7:-2e-1 # a comment", "", "# nothing", "0 9223372036854775807:1", "-1", "1\t4:.25 4:1.\r", "1 5:1"
    found = read(tmp_path, "\n".join(lines))
    assert found.labels.tolist() == [1, -1, -1, 1, 1]
    assert found.starts.tolist() == [0, 2, 3, 3, 5, 6]
    assert found.ids.tolist() == [3, 7, (1 << 63) - 1, 4, 4, 5]
    assert found.values.tolist() == [np.float32(x) for x in (0.5, -0.2, 1, 0.25, 1, 1)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("yes 1:1", "expected a label, a number, got 'yes'"),
        ("2 1:1", "expected a label of 1, and -1 or 0 for the other class, got '2'"),
        ("1 x:1", "with a whole number from 0 to 2**63 - 1 for the index, got 'x:1'"),
        ("1 -3:1", "with a whole number from 0 to 2**63 - 1 for the index, got '-3:1'"),
        ("1 9223372036854775808:1", "with a whole number from 0 to 2**63 - 1 for the index"),
        ("1 qid:3 1:1", "index:value, with a whole number"),
        ("1 3", "expected index:value, with a colon after the index, got '3'"),
        ("1 3 4:1", "expected index:value, with a colon after the index, got '3'"),
        ("1 3:", "expected index:value, with a finite number, got '3:'"),
        ("1 3:1:2", "expected index:value, with a finite number, got '3:1:2'"),
        ("1 3:nan", "with a finite number, got '3:nan'"),
        ("1 3:1e39", "with a finite number, got '3:1e39'"),
        ("1 3:1e", "with a finite number, got '3:1e'"),
        ("\x00\x01\x02", "expected a label, a number"),
    ],
)
def test_a_broken_line_is_named_with_file_number_and_what_was_expected(tmp_path, line, text):
    with pytest.raises(BadLine) as caught:
        read(tmp_path, f"1 1:1\n# here\n\n{line}\n-1 2:1\n", "train.libsvm")
    assert "train.libsvm, line 4: expected " in str(caught.value)
    assert text in str(caught.value)
    assert caught.value.line == 4
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_line_number_counts_from_the_beginning_of_the_file_in_every_part(tmp_path):
    path = tmp_path / "long.libsvm"
    path.write_text("1 1:1\n" * 900 + "1 1:\n" + "1 1:1\n" * 99)
    with pytest.raises(BadLine, match="line 901"):
        Source(str(path)).read(rank=3, workers=4)
    assert len(Source(str(path)).read(rank=0, workers=4)) in range(245, 256)


@settings(max_examples=25, deadline=None)
@given(workers=st.integers(1, 9), stretch=st.integers(1, 200), is_packed=st.booleans(), seed=st.integers(0, 5))
def test_the_parts_of_all_workers_are_the_whole_file(tmp_path_factory, workers, stretch, is_packed, seed):
    rows = make(20, 30, 3, seed)
    path = tmp_path_factory.mktemp("parts") / "rows.libsvm"
    write_libsvm(path, rows)
    if is_packed:
        packed = path.with_suffix(".libsvm.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    source = Source(str(path), stretch_bytes=stretch)
    parts = [source.read(rank, workers) for rank in range(workers)]
    if not is_packed:
        assert same(join(parts), rows)
    found = sorted(tuple(each.values[each.starts[i] : each.starts[i + 1]]) for each in parts for i in range(len(each)))
    assert found == sorted(tuple(rows.values[rows.starts[i] : rows.starts[i + 1]]) for i in range(len(rows)))


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_packed_files_are_read_as_they_are(tmp_path, suffix, pack):
    assert len(read(tmp_path, pack(b"1 1:1\n-1 2:1\n"), f"a.libsvm{suffix}")) == 2
    assert len(read(tmp_path, pack(b"1,1\n0,2\n"), f"a.csv{suffix}")) == 2
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path, pack(b"1 1:1\n" * 1000)[:-9], f"cut.libsvm{suffix}")


@settings(max_examples=60, deadline=None)
@given(
    number=st.floats(allow_nan=False, allow_infinity=False, width=32), form=st.sampled_from(["{}", "{:.9e}", "{:+}"])
)
def test_numbers_are_read_as_python_reads_them(tmp_path_factory, number, form):
    text = form.format(number)
    found = read(tmp_path_factory.mktemp("number"), f"1 1:{text}\n").values[0]
    assert found == pytest.approx(float(text), rel=2e-7, abs=1e-44)


def test_a_csv_file_has_a_label_first_or_in_a_named_column(tmp_path):
    plain = read(tmp_path, "1,0.5,0,2\n-1, 0 ,1 ,\t0\n".replace("\t", ""), "a.csv")
    assert plain.ids.tolist() == [1, 3, 2]
    assert plain.values.tolist() == [0.5, 2, 1]
    assert plain.labels.tolist() == [1, -1]
    named = read(tmp_path, '"x",clicked,y\r\n3,1,0\r\n0,0,4\r\n', "b.csv", label="clicked")
    assert named.labels.tolist() == [1, -1]
    assert list(zip(named.ids.tolist(), named.values.tolist(), strict=True)) == [(1, 3), (2, 4)]
    by_number = read(tmp_path, "5\t1\n6\t0\n", "c.tsv", label="2")
    assert by_number.labels.tolist() == [1, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n1,2\n", "line 2: expected 3 fields, got 2"),
        ("1,2,3\n1,2,3,4\n", "line 2: expected 3 fields, got 4"),
        ("l,a,b\n1,2,3\n1,x,3\n", "line 3: expected a finite number, got 'x'"),
        ("l,a,b\n1,2,3\n1,,3\n", "line 3: expected a finite number, got ''"),
        ("l,a,b\n7,2,3\n", "line 2: expected a label of 1, and -1 or 0 for the other class, got '7'"),
    ],
)
def test_a_broken_csv_line_is_named(tmp_path, text, message):
    with pytest.raises(BadLine) as caught:
        read(tmp_path, text, "table.csv")
    assert f"table.csv, {message}" in str(caught.value)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        Source(str(tmp_path / "nothing.libsvm")).read()
    with pytest.raises(UsageError, match=r"there is no column 'y' for the label; it has a, b"):
        read(tmp_path, "a,b\n1,2\n", "x.csv", label="y")
    with pytest.raises(UsageError, match="expected the format"):
        Source("x", format="arff").check()


def test_rows_are_checked():
    with pytest.raises(UsageError, match="a label for each of 2 rows"):
        Rows.of([0, 1, 2], [1, 2], [1.0, 1.0], [1])
    with pytest.raises(UsageError, match="is not finite"):
        Rows.of([0, 1], [1], [np.nan], [1])
    with pytest.raises(UsageError, match="starts that rise"):
        Rows.of([0, 3], [1], [1.0], [1])
