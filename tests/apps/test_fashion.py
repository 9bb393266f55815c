from __future__ import annotations

import gzip
import hashlib
import math
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from windlass.apps import fashion
from windlass.apps.fashion import DIGESTS, SAMPLE, Places, Source, default_places, find, write_idx
from windlass.apps.make_sample import first_of_each
from windlass.errors import UsageError

NOWHERE = Path("/nonexistent")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A mirror of our own: its address and its directory."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    root = tmp_path_factory.mktemp("web")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", root
        server.shutdown()


def packed_file(number: int, name: str) -> bytes:
    shape = (20, 28, 28) if "images" in name else (20,)
    head = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
    return gzip.compress(head + bytes([number]) * math.prod(shape))


SMALL = {name: packed_file(number, name) for number, name in enumerate(DIGESTS)}
"""A whole set of 20 + 20 images: not every machine has the real one."""

KNOWN = {name: hashlib.sha256(gzip.decompress(packed)).hexdigest() for name, packed in SMALL.items()}


def fill(directory: Path, packed: dict[str, bytes] = SMALL) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, contents in packed.items():
        (directory / f"{name}.gz").write_bytes(contents)
    return directory


def looked(wanted: str, places: Places) -> tuple[Source, str]:
    """What was found, and what was said meanwhile."""
    said: list[str] = []
    return find(wanted, places, said.append), "\n".join(said)


# --- the sample -------------------------------------------------------------------------------------------------------


def test_the_sample_has_real_images_of_every_label_in_equal_numbers() -> None:
    source, said = looked("sample", Places(NOWHERE, NOWHERE, ()))
    data = source.load()
    assert source.is_sample
    assert not said
    assert np.bincount(data.train.labels).tolist() == [1000] * 10
    assert np.bincount(data.test.labels).tolist() == [200] * 10
    assert data.train.images.shape == (10_000, 28, 28)
    means = [data.train.images[data.train.labels == label].mean() for label in range(10)]
    assert np.argmax(means) == fashion.LABELS.index("coat")  # the most ink
    assert np.argmin(means) == fashion.LABELS.index("sandal")  # the least


def test_the_sample_is_small_and_carries_the_notice_of_its_makers() -> None:
    assert sum(file.stat().st_size for file in SAMPLE.iterdir()) <= 6e6
    notice = (SAMPLE / "NOTICE").read_text()
    assert "Copyright © 2017 Zalando SE" in notice
    assert "MIT License" in notice


def test_a_sample_is_the_first_images_of_each_label_in_their_order() -> None:
    labels = np.array([1, 0, 1, 1, *range(2, 10), 0, 0], np.uint8)
    images = np.arange(len(labels), dtype=np.uint8)
    chosen = first_of_each(fashion.Split(images, labels), 2)
    assert chosen.images.tolist() == [0, 1, 2, *range(4, 13)]
    assert chosen.labels.tolist() == labels[chosen.images].tolist()


@pytest.mark.skipif(not fashion.SYSTEM.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_the_sample_in_the_package_is_what_the_tool_makes_of_the_whole_set() -> None:
    whole, sample = Source(fashion.SYSTEM).load(), Source(SAMPLE).load()
    for given, count, packed in ((whole.train, 1000, sample.train), (whole.test, 200, sample.test)):
        expected = first_of_each(given, count)
        assert np.array_equal(expected.images, packed.images)
        assert np.array_equal(expected.labels, packed.labels)


# --- the whole set ----------------------------------------------------------------------------------------------------


def test_the_cache_is_where_the_environment_says() -> None:
    home = Path.home() / ".cache/windlass/fashion-mnist"
    assert default_places({}).cache == home
    assert default_places({"XDG_CACHE_HOME": "/a"}).cache == Path("/a/windlass/fashion-mnist")
    assert default_places({"XDG_CACHE_HOME": "/a", "WINDLASS_DATA": "/b"}).cache == Path("/b/fashion-mnist")


def test_the_cache_comes_before_debian_which_comes_before_a_download(tmp_path, web) -> None:
    address, root = web
    fill(root)
    places = Places(tmp_path / "cache", tmp_path / "system", (address,), KNOWN)
    source, said = looked("auto", places)
    assert (source.directory, source.is_sample) == (places.cache, False)
    assert f"Downloading Fashion-MNIST (30 MB) to {places.cache}" in said
    for file in places.cache.iterdir():
        file.unlink()
    fill(places.system)
    assert looked("auto", places) == (Source(places.system), "")
    fill(places.cache)
    assert looked("full", places) == (Source(places.cache), "")
    assert source.load().test.images.shape == (20, 28, 28)


def test_a_damaged_file_in_the_cache_is_named_and_fetched_again(tmp_path, web) -> None:
    address, root = web
    fill(root)
    cache = fill(tmp_path / "cache")
    cut, changed = cache / "train-labels-idx1-ubyte.gz", cache / "t10k-images-idx3-ubyte.gz"
    cut.write_bytes(cut.read_bytes()[:-9])
    changed.write_bytes(gzip.compress(b"something else"))
    untouched = (cache / "t10k-labels-idx1-ubyte.gz").stat().st_mtime_ns
    source, said = looked("auto", Places(cache, NOWHERE, (address,), KNOWN))
    assert f"{cut} is passed over: it is damaged: Compressed file ended before" in said
    assert f"{changed} is passed over: it is damaged: its contents have the SHA-256" in said
    assert looked("full", Places(cache, NOWHERE, (), KNOWN)) == (source, "")
    assert (cache / "t10k-labels-idx1-ubyte.gz").stat().st_mtime_ns == untouched
    assert sorted(file.name for file in cache.iterdir()) == sorted(f"{name}.gz" for name in DIGESTS)


def test_what_a_mirror_has_wrong_is_not_kept_and_the_next_mirror_is_asked(tmp_path, web) -> None:
    address, root = web
    fill(root / "good")
    fill(root / "bad", {name: gzip.compress(b"wrong") for name in SMALL})
    good, bad = f"{address}/good", f"{address}/bad"
    source, said = looked("auto", Places(tmp_path / "one", NOWHERE, (bad,), KNOWN))
    assert source.is_sample
    assert f"could not be downloaded ({bad}/t10k-labels-idx1-ubyte.gz is damaged: its contents have the SHA-256" in said
    assert not list((tmp_path / "one").iterdir())
    source, _ = looked("auto", Places(tmp_path / "two", NOWHERE, (bad, good), KNOWN))
    assert source.directory == tmp_path / "two"


@pytest.mark.parametrize("mirror", ["http://127.0.0.1:9", "http://nowhere.invalid", "{web}/missing"])
def test_without_a_network_the_sample_is_taken_and_why_is_said(tmp_path, web, mirror) -> None:
    source, said = looked("auto", Places(tmp_path / "cache", NOWHERE, (mirror.format(web=web[0]),)))
    assert source.is_sample
    assert "Fashion-MNIST could not be downloaded (http://" in said


def test_a_cache_that_cannot_be_written_is_no_more_than_a_remark(tmp_path) -> None:
    (tmp_path / "file").touch()
    source, said = looked("auto", Places(tmp_path / "file/cache", NOWHERE, ("http://127.0.0.1:9",)))
    assert source.is_sample
    assert "Not a directory" in said


def test_asking_for_the_whole_set_where_it_cannot_be_had_says_how_to_get_it(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"install Debian's package dataset-fashion-mnist, or put .* into .*/cache"):
        looked("full", Places(tmp_path / "cache", NOWHERE, ("http://127.0.0.1:9",), KNOWN))


# --- a directory of one's own -----------------------------------------------------------------------------------------


def test_a_directory_of_idx_files_is_read_packed_or_not(tmp_path) -> None:
    fill(tmp_path)
    plain = tmp_path / "train-labels-idx1-ubyte.gz"
    plain.with_suffix("").write_bytes(gzip.decompress(plain.read_bytes()))
    plain.unlink()
    data = find(str(tmp_path), Places(NOWHERE), print).load()
    assert data.train.images[0, 0, 0] == 3
    assert data.train.labels.tolist() == [1] * 20


def test_a_directory_without_the_files_is_named_with_what_is_missing(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"got .*nothing, where there is no directory"):
        find(str(tmp_path / "nothing"), Places(NOWHERE), print)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match=r"got .*nothing, which has no t10k-labels-idx1-ubyte.gz"):
        find(str(tmp_path / "nothing"), Places(NOWHERE), print)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-images-idx3-ubyte", np.zeros((20, 32, 32), np.uint8), r"images of 28×28, got shape \(20, 32, 32\)"),
        ("train-images-idx3-ubyte", np.zeros((0, 28, 28), np.uint8), r"got shape \(0, 28, 28\)"),
        ("t10k-labels-idx1-ubyte", np.zeros(19, np.uint8), r"20 t10k labels below 10, got shape \(19,\)"),
        ("t10k-labels-idx1-ubyte", np.full(20, 10, np.uint8), r"labels below 10, got shape \(20,\), max 10"),
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(tmp_path, name, array, message) -> None:
    fill(tmp_path)
    write_idx(tmp_path / f"{name}.gz", array)
    with pytest.raises(UsageError, match=message):
        Source(tmp_path).load()


@pytest.mark.parametrize("contents", [b"", b"\0\0\x0d\x01\0\0\0\1zzzz", b"\0\0\x08\x01\0\0\0\5abc", b"\0\0\x08\x03\0"])
def test_a_file_that_is_no_idx_file_is_refused_by_name(tmp_path, contents) -> None:
    fill(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(contents))
    with pytest.raises(UsageError, match=r"train-images-idx3-ubyte.gz: expected"):
        Source(tmp_path).load()
