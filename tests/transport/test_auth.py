"""The handshake alone: bytes in, bytes out."""

from __future__ import annotations

import pytest

from windlass._wire.auth import (
    HELLO,
    NONCE_BYTES,
    PROOF_BYTES,
    VERDICT_BYTES,
    Acceptor,
    Claim,
    Dialler,
    DuplicateLink,
    Verdict,
)
from windlass.errors import PeerError, UsageError
from windlass.types import Incarnation

TOKEN = b"secret"
N1, N2, N3 = bytes([1]) * NONCE_BYTES, bytes([2]) * NONCE_BYTES, bytes([3]) * NONCE_BYTES
ONE, TWO, THREE = Incarnation(1), Incarnation(2), Incarnation(3)


def accept(_: Claim) -> Verdict:
    return Verdict.ACCEPTED


def dialler(*, token: bytes = TOKEN, nonce: bytes = N1, wanted: Incarnation = TWO) -> Dialler:
    return Dialler(ONE, wanted, token, nonce, after=5)


def test_two_nodes_with_the_token_learn_who_the_other_is() -> None:
    a, b = dialler(), Acceptor(TWO, TOKEN, N2, accept)
    proof = a.receive(b.receive(a.hello))
    assert a.receive(b.receive(proof)) == b""
    assert (a.needed, b.needed) == (0, 0)
    assert b.claim == Claim(ONE, a.link, 5)
    assert a.peer == TWO


def test_every_message_has_a_fixed_size() -> None:
    a, b = dialler(), Acceptor(TWO, TOKEN, N2, accept)
    assert (a.needed, b.needed, len(a.hello)) == (HELLO.size, HELLO.size, HELLO.size)
    hello = b.receive(a.hello)
    proof = a.receive(hello)
    verdict = b.receive(proof)
    assert (len(hello), len(proof), len(verdict)) == (HELLO.size, PROOF_BYTES, VERDICT_BYTES)
    assert a.needed == VERDICT_BYTES


def test_a_wrong_token_is_clear_to_both() -> None:
    a, b = dialler(token=b"another"), Acceptor(TWO, TOKEN, N2, accept)
    proof = a.receive(b.receive(a.hello))
    with pytest.raises(PeerError, match="node 1, did not prove the cluster token; check WINDLASS_TOKEN") as refusal:
        b.receive(proof)
    farewell = refusal.value.farewell  # type: ignore[attr-defined]
    assert farewell[1:] == bytes(PROOF_BYTES)  # a stranger is never given a MAC
    with pytest.raises(PeerError, match="node 2 says that this node did not prove the cluster token; check WINDLASS"):
        a.receive(farewell)


def test_an_acceptor_without_the_token_is_found_out() -> None:
    a, b = dialler(), Acceptor(TWO, b"another", N2, accept)
    a.receive(b.receive(a.hello))
    for verdict in Verdict:
        if verdict is not Verdict.BAD_TOKEN:
            with pytest.raises(PeerError, match="node 2 did not prove the cluster token"):
                a.receive(bytes([verdict]) + bytes(PROOF_BYTES))


def test_a_proof_reflected_to_its_maker_fails() -> None:
    # The attacker has no token. Called by a victim, it calls the victim back and lets it answer its own challenge.
    victim = dialler(wanted=TWO)
    victims_door = Acceptor(ONE, TOKEN, N3, accept)
    magic, version, _, _, me, _, after, nonce = HELLO.unpack(victim.hello)
    forged = HELLO.pack(magic, version, 0, 0, 2, me, after, nonce)
    challenge = victims_door.receive(forged)
    _, _, _, _, _, _, _, their_nonce = HELLO.unpack(challenge)
    answer = victim.receive(HELLO.pack(magic, version, 1, 0, 2, me, 0, their_nonce))
    with pytest.raises(PeerError, match="did not prove the cluster token"):
        victims_door.receive(answer)
    with pytest.raises(PeerError, match="did not prove the cluster token"):
        victim.receive(bytes([Verdict.ACCEPTED]) + answer)


def test_a_hello_played_back_to_its_maker_is_refused_by_role() -> None:
    a = dialler()
    with pytest.raises(PeerError, match="expected a hello of role 1, got role 0"):
        a.receive(a.hello)


def test_a_recorded_proof_does_not_open_another_link() -> None:
    a, b = dialler(), Acceptor(TWO, TOKEN, N2, accept)
    proof = a.receive(b.receive(a.hello))
    b.receive(proof)
    later = Acceptor(TWO, TOKEN, N3, accept)
    later.receive(a.hello)
    with pytest.raises(PeerError, match="did not prove the cluster token"):
        later.receive(proof)


def test_a_proof_speaks_for_one_pair_of_nodes_only() -> None:
    a, b = dialler(), Acceptor(TWO, TOKEN, N2, accept)
    proof = a.receive(b.receive(a.hello))
    for field in (4, 5, 6):  # who, whom, after
        parts = list(HELLO.unpack(a.hello))
        parts[field] += 1
        other = Acceptor(Incarnation(parts[5]), TOKEN, N2, accept)
        other.receive(HELLO.pack(*parts))
        with pytest.raises(PeerError, match="did not prove the cluster token"):
            other.receive(proof)


def test_an_acceptor_that_is_not_the_one_wanted_refuses() -> None:
    a, b = dialler(wanted=THREE), Acceptor(TWO, TOKEN, N2, accept)
    with pytest.raises(PeerError, match="wanted node 3, got node 2") as refusal:
        b.receive(a.receive(b.receive(a.hello)))
    with pytest.raises(PeerError, match="dialled node 3, got node 2: another process has that address now"):
        a.receive(refusal.value.farewell)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("verdict", "complaint", "kind"),
    [
        (Verdict.DUPLICATE, "holds another link with this node", DuplicateLink),
        (Verdict.FULL, "raise max_links there", PeerError),
    ],
)
def test_a_refusal_says_why_and_is_authentic(verdict: Verdict, complaint: str, kind: type[PeerError]) -> None:
    a, b = dialler(), Acceptor(TWO, TOKEN, N2, lambda _: verdict)
    with pytest.raises(PeerError, match=f"turned away: {verdict.name}") as refusal:
        b.receive(a.receive(b.receive(a.hello)))
    assert b.claim is None
    farewell = refusal.value.farewell  # type: ignore[attr-defined]
    forged = bytes([Verdict.ACCEPTED]) + farewell[1:]
    with pytest.raises(PeerError, match="did not prove the cluster token"):
        a.receive(forged)
    with pytest.raises(kind, match=complaint):
        a.receive(farewell)


def test_what_is_not_a_hello_is_refused_before_anything_else() -> None:
    for data, complaint in (
        (b"GET / HTTP/1.1\r\n".ljust(HELLO.size), "expected a Windlass hello beginning with b'WLHS', got b'GET '"),
        (b"WLHS\x09".ljust(HELLO.size, b"\0"), "expected handshake version 1, got 9"),
    ):
        with pytest.raises(PeerError, match=complaint):
            Acceptor(TWO, TOKEN, N2, accept).receive(data)


def test_an_empty_token_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="set WINDLASS_TOKEN"):
        dialler(token=b"")
