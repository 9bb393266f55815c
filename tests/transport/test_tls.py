"""The same links under TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.transport.rig import Node, ack, expect_soon, node, private
from windlass._transport.options import TlsFiles, TransportOptions
from windlass._wire.effects import LinkDown, LinkUp, Received, Sent
from windlass.errors import UsageError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def certificate(folder: Path, name: str) -> TlsFiles:
    """A self-signed certificate, which is its own authority."""
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = ["openssl", "req", "-x509", *curve, "-nodes", "-days", "2", "-subj", "/CN=windlass"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return TlsFiles(certfile=cert, keyfile=key, cafile=cert)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return certificate(tmp_path_factory.mktemp("tls"), "ours")


def pair(files: TlsFiles, theirs: TlsFiles | None) -> tuple[Node, Node]:
    one = node(1, options=TransportOptions(listen=("tls:127.0.0.1:0",), tls=files))
    two = node(2, options=TransportOptions(tls=theirs, dial_seconds=2))
    two.hub.dial(one.me, one.hub.addresses)
    return one, two


def test_messages_and_large_data_go_both_ways_in_order(files: TlsFiles) -> None:
    one, two = pair(files, files)
    with one.hub, two.hub:
        expect_soon([one, two], lambda: bool(one.of(LinkUp) and two.of(LinkUp)))
        assert one.hub.addresses[0].startswith("tls:127.0.0.1:")
        for turn in range(10):
            one.send(two, ack(turn), *private(turn, turn + 1, nbytes=1_000_000), pins=(turn,))
            one.send(two, ack(100 + turn), *private(turn))
            two.send(one, ack(turn), *private(9, nbytes=300_000))
        expect_soon([one, two], lambda: len(two.messages) == 20 and len(one.messages) == 10)
        assert [message.clock for message in two.messages[::2]] == list(range(10))  # type: ignore[union-attr]
        for turn, event in enumerate(two.of(Received)[::2]):
            came = [array.tobytes() for array in event.data]
            assert came == [bytes([turn]) * 1_000_000, bytes([turn + 1]) * 1_000_000]
        assert len(one.of(Sent)) == 10
        one.hub.hangup(two.me, "enough")
        expect_soon([one, two], lambda: bool(two.of(LinkDown)))
        assert two.of(LinkDown)[0].reason == "node 1 hung up: enough"


def test_a_certificate_that_the_authority_did_not_sign_is_refused(files: TlsFiles, tmp_path: Path) -> None:
    one, two = pair(files, certificate(tmp_path, "strange"))
    with one.hub, two.hub:
        expect_soon([one, two], lambda: bool(two.of(LinkDown)))
        assert "certificate verify failed" in two.of(LinkDown)[0].reason.lower()
        assert one.events == []


def test_without_tls_files_a_tls_address_cannot_be_used(files: TlsFiles) -> None:
    one, two = pair(files, None)
    with one.hub, two.hub:
        expect_soon([one, two], lambda: bool(two.of(LinkDown)))
        assert "it needs TransportOptions(tls=TlsFiles(...))" in two.of(LinkDown)[0].reason
    with pytest.raises(UsageError, match="TlsFiles"):
        node(3, "tls:127.0.0.1:0")


def test_a_plain_caller_at_a_tls_port_is_turned_away(files: TlsFiles) -> None:
    one, two = pair(files, files)
    with one.hub, two.hub:
        plain = node(3)
        with plain.hub:
            plain.hub.dial(one.me, [one.hub.addresses[0].replace("tls:", "tcp:")])
            expect_soon([one, two, plain], lambda: bool(plain.of(LinkDown) and two.of(LinkUp)))


def test_unreadable_files_are_the_callers_mistake(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.pem")
    with pytest.raises(UsageError, match="cannot use the TLS files"):
        node(1, options=TransportOptions(tls=TlsFiles(missing, missing, missing)))
