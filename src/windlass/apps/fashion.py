"""Fashion-MNIST: where its files are, and what is in them.

The data are four idx files. A file is known by the SHA-256 of what it unpacks to, because Debian's package and the
original download differ in their gzip headers and in nothing else.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.apps.fetch import fetch
from windlass.errors import UsageError

Bytes = npt.NDArray[np.uint8]
Say = Callable[[str], None]

LABELS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
SIDE = 28
DIGESTS = {
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
}
"""Of each file of the whole set, unpacked; the small ones first, so that a download that cannot work fails early."""

DATA_VARIABLE = "WINDLASS_DATA"
SAMPLE = Path(__file__).parent / "fashion_sample"
SYSTEM = Path("/usr/share/datasets/fashion-mnist")
MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
)
DEBIAN_PACKAGE = "dataset-fashion-mnist"


class Split(NamedTuple):
    """Images, uint8 of shape (n, 28, 28), and for each the number of its label."""

    images: Bytes
    labels: Bytes


class Data(NamedTuple):
    train: Split
    test: Split


@dataclass(frozen=True, slots=True)
class Places:
    """Where the whole set may be, in the order of looking, and how its files are known. `mirrors` are directories on
    the web."""

    cache: Path
    system: Path = SYSTEM
    mirrors: tuple[str, ...] = MIRRORS
    digests: Mapping[str, str] = field(default_factory=lambda: DIGESTS)


@dataclass(frozen=True, slots=True)
class Source:
    """A directory that has the four files."""

    directory: Path
    is_sample: bool = False

    def load(self) -> Data:
        """Read it all: half a second for the whole set. Raises UsageError when the files are not what they should
        be."""
        return Data(self._split("train"), self._split("t10k"))

    def _split(self, part: str) -> Split:
        images = _read_idx(_locate(self.directory, f"{part}-images-idx3-ubyte"))
        labels = _read_idx(_locate(self.directory, f"{part}-labels-idx1-ubyte"))
        if not images.size or images.shape[1:] != (SIDE, SIDE):
            raise UsageError(f"{self.directory}: expected {part} images of {SIDE}×{SIDE}, got shape {images.shape}")
        if labels.shape != images.shape[:1] or labels.max() >= len(LABELS):
            expected = f"{len(images)} {part} labels below {len(LABELS)}"
            raise UsageError(f"{self.directory}: expected {expected}, got shape {labels.shape}, max {labels.max()}")
        return Split(images, labels)


def default_places(environment: Mapping[str, str]) -> Places:
    """The cache is `fashion-mnist` in $WINDLASS_DATA, or else in `windlass` in the user's cache directory."""
    caches = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Places(cache=Path(environment.get(DATA_VARIABLE) or Path(caches, "windlass"), "fashion-mnist"))


def find(wanted: str, places: Places, say: Say) -> Source:
    """Where to read from: `wanted` is "full", "sample", "auto" (the whole set, or else the sample) or a directory.

    The whole set is looked for in the cache, then where Debian's package puts it, then on the web. `say` is told of a
    damaged file, of a download and of its failure. Blocks while it downloads. Raises UsageError when there is no such
    data.
    """
    if wanted == "sample":
        return Source(SAMPLE, is_sample=True)
    if wanted not in ("auto", "full"):
        for name in DIGESTS:
            _locate(Path(wanted), name)
        return Source(Path(wanted))
    for directory in (places.cache, places.system):
        if _is_whole(directory, places.digests, say):
            return Source(directory)
    try:
        _download(places, say)
        return Source(places.cache)
    except OSError as error:
        say(f"Fashion-MNIST could not be downloaded ({error})")
    if wanted == "full":
        raise UsageError(
            f"the whole Fashion-MNIST is not here: install Debian's package {DEBIAN_PACKAGE}, or put its four "
            f"files ({', '.join(f'{name}.gz' for name in DIGESTS)}) into {places.cache}"
        )
    return Source(SAMPLE, is_sample=True)


# --- files ------------------------------------------------------------------------------------------------------------


def _download(places: Places, say: Say) -> None:
    """Fill the cache with what is missing or damaged in it. Raises OSError."""
    say(f"Downloading Fashion-MNIST (30 MB) to {places.cache}")
    for name, digest in places.digests.items():
        target = places.cache / f"{name}.gz"
        if not target.exists() or _damage(target, digest):
            urls = [f"{mirror}/{name}.gz" for mirror in places.mirrors]
            fetch(urls, target, lambda path, digest=digest: _damage(path, digest))  # type: ignore[misc]


def _is_whole(directory: Path, digests: Mapping[str, str], say: Say) -> bool:
    paths = {name: directory / f"{name}.gz" for name in digests}
    if not all(path.exists() for path in paths.values()):
        return False
    damaged = {path: wrong for name, path in paths.items() if (wrong := _damage(path, digests[name]))}
    for path, wrong in damaged.items():
        say(f"{path} is passed over: it {wrong}")
    return not damaged


def _damage(path: Path, digest: str) -> str:
    """What is wrong with a file; nothing if it unpacks to what it should."""
    try:
        found = hashlib.sha256(_unpacked(path)).hexdigest()
    except UsageError as error:
        return f"is damaged: {error.__cause__}"
    return "" if found == digest else f"is damaged: its contents have the SHA-256 {found[:12]}…, not {digest[:12]}…"


def _locate(directory: Path, name: str) -> Path:
    for path in (directory / f"{name}.gz", directory / name):
        if path.is_file():
            return path
    expected = "auto, full, sample or a directory that has the idx files"
    lack = f"which has no {name}.gz" if directory.is_dir() else "where there is no directory"
    raise UsageError(f"the data: expected {expected}, got {directory}, {lack}")


def _unpacked(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _read_idx(path: Path) -> Bytes:
    """An array of bytes: two zeros, 8 for uint8, the number of dimensions, each one big-endian, then the elements."""
    data = _unpacked(path)
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise UsageError(f"{path}: expected an idx file of bytes, got one that begins with {data[:4].hex(' ')}")
    shape = np.frombuffer(data, ">u4", data[3], 4).tolist()
    start = 4 + 4 * data[3]
    if len(data) - start != np.prod(shape):
        raise UsageError(f"{path}: expected {np.prod(shape)} elements for shape {shape}, got {len(data) - start}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def write_idx(path: Path, array: Bytes) -> None:
    """The opposite, packed; the same array makes the same file."""
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.tobytes(), 9, mtime=0))
