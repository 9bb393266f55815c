"""The bytes of docs/protocol.md, pinned. A change here is a change of protocol: raise a version, or do not make it.

`python -m tests.transport.test_golden_bytes` writes the table of messages in docs/protocol.md anew.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from windlass._wire import auth
from windlass._wire.auth import Acceptor, Dialler, Verdict
from windlass._wire.frame import (
    FrameLimits,
    decode_message,
    encode_goodbye,
    encode_message,
    encode_retire,
    encode_segments,
    parse_header,
)
from windlass._wire.messages import Ack, AnyMessage, Pull, Release
from windlass.types import Incarnation, KeyId

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
KEY = KeyId(7)


def test_a_message_without_data() -> None:
    golden = "57 4c 01 00  0c 00 00 00  00 00 00 00 00 00 00 00   93  95 a3 41 63 6b 07 00 03 a0  90  90"
    assert encode_message(Ack(key=KEY, shard=0, clock=3)) == bytes.fromhex(golden)


@pytest.mark.parametrize(
    ("message", "golden"),
    [
        (Release(pins=(1, 2)), "92 a7 52 65 6c 65 61 73 65 92 01 02"),
        (
            Pull(pull=5, key=KEY, shard=0, clock=3, pieces=((0, 0, 16),)),
            "98 a4 50 75 6c 6c 05 07 00 03 91 93 00 00 10 a0 00",
        ),
    ],
)
def test_a_message_is_an_array_that_begins_with_its_name(message: AnyMessage, golden: str) -> None:
    assert encode_message(message)[16:] == bytes.fromhex(f"93 {golden} 90 90")


def test_inline_buffers_are_named_by_their_lengths() -> None:
    golden = "57 4c 01 00  0e 00 00 00  05 00 00 00 00 00 00 00   93  95 a3 41 63 6b 07 00 03 a0  92 02 03  90"
    assert encode_message(Ack(key=KEY, shard=0, clock=3), [2, 3], (), 5) == bytes.fromhex(golden)


def test_references_are_named_by_segment_offset_and_length() -> None:
    meta = "93  95 a3 41 63 6b 07 00 03 a0  90  91 93 09 cd 10 00 ce 00 01 00 00"
    golden = f"57 4c 01 00  16 00 00 00  00 00 00 00 00 00 00 00   {meta}"
    assert encode_message(Ack(key=KEY, shard=0, clock=3), (), [(9, 4096, 65536)]) == bytes.fromhex(golden)


def test_control_frames() -> None:
    rest = "00 00 00 00 00 00 00 00"
    segments = f"57 4c 01 01  08 00 00 00  {rest}   91 92 09 ce 04 00 00 00"
    assert encode_segments([(9, 64 << 20)]) == bytes.fromhex(segments)
    assert encode_retire([9]) == bytes.fromhex(f"57 4c 01 02  02 00 00 00  {rest}   91 09")
    assert encode_goodbye("bye") == bytes.fromhex(f"57 4c 01 03  04 00 00 00  {rest}   a3 62 79 65")


def test_a_golden_frame_is_read_back() -> None:
    frame = bytes.fromhex("574c0100 0e000000 0500000000000000 93 95a341636b070003a0 920203 90")
    kind, meta_bytes, payload_bytes = parse_header(memoryview(frame), 0, FrameLimits())
    assert (kind, meta_bytes, payload_bytes) == (0, 14, 5)
    assert decode_message(memoryview(frame)[16:], 5, FrameLimits()) == (Ack(key=KEY, shard=0, clock=3), [2, 3], [])


def test_the_handshake() -> None:
    a = Dialler(Incarnation(1), Incarnation(2), b"token", bytes(range(32)), after=5)
    b = Acceptor(Incarnation(2), b"token", bytes(range(32, 64)), lambda _: Verdict.ACCEPTED)
    one, two, five, nothing = ((n).to_bytes(8, "little") for n in (1, 2, 5, 0))
    hello = b"WLHS\x01\x00\x00\x00" + one + two + five + bytes(range(32))
    answer = b"WLHS\x01\x01\x00\x00" + two + one + nothing + bytes(range(32, 64))
    proof = hmac.new(b"token", b"windlass dialler\0" + hello + answer, hashlib.sha256).digest()
    verdict = b"\0" + hmac.new(b"token", b"windlass acceptor\0" + b"\0" + hello + answer, hashlib.sha256).digest()
    assert a.hello == hello
    assert b.receive(a.hello) == answer
    assert a.receive(answer) == proof
    assert proof.hex() == "98a8e10c1ef283c3a01f7e8f389dc062b387cc70ce945df316e6568fdffa8a1b"
    assert b.receive(proof) == verdict
    assert verdict.hex() == "0049d9ad9366bb9c258ac9c40dfd6682da06ec33c9e9d47b43ec0a877a3541dbfa"
    assert {code.name: code.value for code in auth.Verdict} == {
        "ACCEPTED": 0, "BAD_TOKEN": 1, "WRONG_PEER": 2, "DUPLICATE": 3, "FULL": 4
    }


def message_table() -> str:
    rows = ["| message | fields, in order |", "|---|---|"]
    for kind in get_args(AnyMessage):
        names = []
        for info in msgspec.structs.fields(kind):
            is_required = info.default is msgspec.NODEFAULT and info.default_factory is msgspec.NODEFAULT
            names.append(f"`{info.name}`" if is_required else f"`{info.name}`?")
        rows.append(f"| `{kind.__name__}` | {' '.join(names)} |")
    return "\n".join(rows)


def test_the_table_of_messages_is_up_to_date() -> None:
    assert PROTOCOL.read_text().count(message_table()) == 1, (
        "messages.py and docs/protocol.md differ; if the change keeps to the rules of section 5, run "
        "python -m tests.transport.test_golden_bytes"
    )


if __name__ == "__main__":
    page = PROTOCOL.read_text()
    PROTOCOL.write_text(re.sub(r"\| message \| fields,.*?\n(?=\n)", message_table() + "\n", page, flags=re.DOTALL))
