"""The frame: how one message and its data look on a stream. docs/protocol.md gives the bytes; nothing here does I/O.

A frame is a *header* (16 bytes: what follows, and how much), a *meta* (msgpack) and a *payload* (buffers back to
back, no padding). A MESSAGE's buffers are either all *inline*, in the payload, or all *references* to shared segments
that the sender announced before on the same link.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, TypeVar

import msgspec

from windlass._wire.messages import AnyMessage
from windlass.errors import PeerError

MAGIC = b"WL"
VERSION = 1
HEADER = struct.Struct("<2sBBIQ")
HEADER_BYTES = HEADER.size
MAX_GOODBYE_CHARS = 1000

Reference = tuple[int, int, int]
"""Where a buffer lies: (the sender's segment number, offset, bytes)."""


class Kind(IntEnum):
    """What a frame is for. The header's fourth byte."""

    MESSAGE = 0
    SEGMENTS = 1
    RETIRE = 2
    GOODBYE = 3


_KINDS = {kind.value for kind in Kind}

@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a peer may ask this node to hold. Raise `max_payload_bytes` if a link closes with "expected at most ...
    bytes of payload"; every open link may make the node hold that much once."""

    max_meta_bytes: int = 4 << 20
    max_payload_bytes: int = 64 << 20
    max_buffers: int = 16384


_Natural = Annotated[int, msgspec.Meta(ge=0)]
_encoder = msgspec.msgpack.Encoder()
_encode_into = _encoder.encode_into
_pack_header = HEADER.pack_into

# Nearly every frame is a message, so its first four bytes are compared as one number.
_unpack_words = struct.Struct("<IIQ").unpack_from
_MESSAGE_WORD = int.from_bytes(MAGIC + bytes([VERSION, Kind.MESSAGE]), "little")
_message_decoder = msgspec.msgpack.Decoder(
    tuple[AnyMessage, list[_Natural], list[tuple[_Natural, _Natural, _Natural]]]
)
_segments_decoder = msgspec.msgpack.Decoder(list[tuple[_Natural, _Natural]])
_retire_decoder = msgspec.msgpack.Decoder(list[_Natural])
_goodbye_decoder = msgspec.msgpack.Decoder(str)

_T = TypeVar("_T")

# What msgspec raises on bytes that it cannot read: its own family; UnicodeDecodeError and bad timestamps (ValueError);
# a map whose keys cannot be hashed (TypeError); nesting (RecursionError); a timestamp past year 9999 (OverflowError).
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)


def encode_message(
    message: AnyMessage, lengths: Sequence[int] = (), references: Sequence[Reference] = (), payload_bytes: int = 0
) -> bytearray:
    """Header and meta of a MESSAGE frame; the caller sends `payload_bytes` bytes of buffers after them."""
    frame = bytearray(HEADER_BYTES)
    _encode_into((message, lengths, references), frame, HEADER_BYTES)
    _pack_header(frame, 0, MAGIC, VERSION, 0, len(frame) - HEADER_BYTES, payload_bytes)
    return frame


def encode_segments(segments: Sequence[tuple[int, int]]) -> bytearray:
    """A frame that announces (number, bytes) of segments, whose descriptors travel with its first byte, in order."""
    return _control(Kind.SEGMENTS, segments)


def encode_retire(numbers: Sequence[int]) -> bytearray:
    """A frame that says: these segments will not be referred to again; drop them when you have read them."""
    return _control(Kind.RETIRE, numbers)


def encode_goodbye(reason: str) -> bytearray:
    """The last frame on a link that is closed on purpose."""
    return _control(Kind.GOODBYE, reason[:MAX_GOODBYE_CHARS])


def parse_header(data: memoryview, offset: int, limits: FrameLimits) -> tuple[int, int, int]:
    """(kind, meta bytes, payload bytes) of the header at `offset`; raises PeerError if it is not one, or if it asks
    for more than the limits allow."""
    word, meta_bytes, payload_bytes = _unpack_words(data, offset)
    kind = 0 if word == _MESSAGE_WORD else _other_kind(data, offset)
    if meta_bytes > limits.max_meta_bytes:
        raise PeerError(f"expected at most {limits.max_meta_bytes} bytes of meta, got {meta_bytes}")
    if payload_bytes and (kind or payload_bytes > limits.max_payload_bytes):
        allowed = 0 if kind else limits.max_payload_bytes
        raise PeerError(f"expected at most {allowed} bytes of payload, got {payload_bytes}")
    return kind, meta_bytes, payload_bytes


def _other_kind(data: memoryview, offset: int) -> int:
    magic, version, kind, _, _ = HEADER.unpack_from(data, offset)
    if magic != MAGIC:
        raise PeerError(f"expected a frame beginning with {MAGIC!r}, got {magic!r}")
    if version != VERSION:
        raise PeerError(f"expected frame version {VERSION}, got {version}; run the same Windlass on every node")
    if kind not in _KINDS:
        raise PeerError(f"expected a frame kind from 0 to {max(_KINDS)}, got {kind}")
    return int(kind)


def decode_message(
    meta: memoryview | bytearray, payload_bytes: int, limits: FrameLimits
) -> tuple[AnyMessage, list[int], list[Reference]]:
    """The message, the lengths of its inline buffers, and its references. Raises PeerError for anything malformed."""
    try:
        message, lengths, references = _message_decoder.decode(meta)
    except _UNREADABLE as error:
        raise PeerError(f"expected the meta of a message, got something else: {error}") from error
    if references or len(lengths) != 1 or lengths[0] != payload_bytes:
        _check_buffers(lengths, references, payload_bytes, limits)
    return message, lengths, references


def _check_buffers(lengths: list[int], references: list[Reference], payload_bytes: int, limits: FrameLimits) -> None:
    if references and (lengths or payload_bytes):
        raise PeerError("expected buffers either inline or by reference, got both in one frame")
    if sum(lengths) != payload_bytes:
        raise PeerError(f"expected buffers of {payload_bytes} bytes in all, got lengths of {sum(lengths)}")
    if len(lengths) + len(references) > limits.max_buffers:
        raise PeerError(f"expected at most {limits.max_buffers} buffers, got {len(lengths) + len(references)}")


def decode_segments(meta: memoryview | bytearray) -> list[tuple[int, int]]:
    """The (number, bytes) of each announced segment; PeerError if malformed."""
    return _decode(_segments_decoder, meta, "an announcement of segments")


def decode_retire(meta: memoryview | bytearray) -> list[int]:
    """The numbers of retired segments; PeerError if malformed."""
    return _decode(_retire_decoder, meta, "a list of retired segments")


def decode_goodbye(meta: memoryview | bytearray) -> str:
    """Why the peer closes the link; PeerError if malformed."""
    return _decode(_goodbye_decoder, meta, "a goodbye")[:MAX_GOODBYE_CHARS]


def _control(kind: Kind, content: Any) -> bytearray:
    frame = bytearray(HEADER_BYTES)
    _encoder.encode_into(content, frame, HEADER_BYTES)
    HEADER.pack_into(frame, 0, MAGIC, VERSION, kind, len(frame) - HEADER_BYTES, 0)
    return frame


def _decode(decoder: msgspec.msgpack.Decoder[_T], meta: memoryview | bytearray, what: str) -> _T:
    try:
        return decoder.decode(meta)
    except _UNREADABLE as error:
        raise PeerError(f"expected {what}, got something else: {error}") from error
