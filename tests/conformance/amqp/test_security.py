"""AMQP 1.0 part 5: SASL, in both roles."""

from __future__ import annotations

from typing import Any

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Role
from tandembus.amqp.events import Authenticated, Opened
from tandembus.amqp.frames import EMPTY_FRAME, frame
from tests.conformance.amqp.peer import AMQP_HEADER, SASL_HEADER, Header, Peer, closed_with

SASL = 1


def is_right(username: str, password: str) -> bool:
    return (username, password) == ("rule", "key")


def server(**options: Any) -> Peer:
    peer = Peer(use_sasl=True, check_plain=is_right, **options)
    peer.raw(SASL_HEADER)
    return peer


def client(**options: Any) -> Peer:
    return Peer(Role.CLIENT, use_sasl=True, **options)


def test_header_and_mechanisms() -> None:
    """AMQP 1.0 §5.3.2: the SASL header is answered in kind, then come the mechanisms."""
    header, mechanisms = server().answers()
    assert header == Header(SASL_HEADER)
    assert mechanisms == p.SaslMechanisms(("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"))


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS", "EXTERNAL"])
def test_mechanisms_without_a_secret(mechanism: str) -> None:
    """AMQP 1.0 §5.3.3.2: a claim of rights that follows on $cbs needs no secret here."""
    peer = server()
    peer.answers()
    init = p.SaslInit(mechanism, b"\0anything", "host")
    assert peer.send(init, kind=SASL) == [Authenticated(mechanism)]
    assert peer.answer() == p.SaslOutcome(0)


def test_plain() -> None:
    """AMQP 1.0 §5.3.3.2, RFC 4616: the user name and password are checked."""
    peer = server()
    peer.answers()
    assert peer.send(p.SaslInit("PLAIN", b"\0rule\0key"), kind=SASL) == [
        Authenticated("PLAIN", "rule")
    ]


@pytest.mark.parametrize(
    "response", [b"\0rule\0wrong", b"rule\0key", b"", b"\0\xff\0\xff", b"\0rule\0key\0more"]
)
def test_plain_is_wrong(response: bytes) -> None:
    """AMQP 1.0 §5.3.3.6 auth: outcome 1, and the end."""
    peer = server()
    peer.answers()
    events = peer.send(p.SaslInit("PLAIN", response), kind=SASL)
    assert closed_with(events) == "amqp:unauthorized-access"
    assert peer.answer() == p.SaslOutcome(1)
    assert peer.connection.is_finished


def test_plain_by_challenge() -> None:
    """AMQP 1.0 §5.3.3.3-4: without an initial response there is a challenge, then a response."""
    peer = server()
    peer.answers()
    assert peer.send(p.SaslInit("PLAIN"), kind=SASL) == []
    assert peer.answer() == p.SaslChallenge(b"")
    assert peer.send(p.SaslResponse(b"\0rule\0key"), kind=SASL) == [Authenticated("PLAIN", "rule")]


def test_mechanism_that_was_not_offered() -> None:
    """AMQP 1.0 §5.3.3.2 mechanism: one that was not offered fails."""
    peer = server()
    peer.answers()
    peer.send(p.SaslInit("CRAM-MD5"), kind=SASL)
    assert peer.answer() == p.SaslOutcome(1)


def test_plain_is_not_offered_without_a_check() -> None:
    """AMQP 1.0 §5.3.3.1: only what can succeed is offered."""
    peer = Peer(use_sasl=True)
    peer.raw(SASL_HEADER)
    assert "PLAIN" not in peer.answers()[1].sasl_server_mechanisms
    peer.send(p.SaslInit("PLAIN", b"\0rule\0key"), kind=SASL)
    assert peer.answer() == p.SaslOutcome(1)


def test_frame_limit_during_sasl() -> None:
    """AMQP 1.0 §5.3.1: SASL frames have at most 512 bytes."""
    peer = server()
    assert closed_with(peer.raw((513).to_bytes(4, "big"))) == "amqp:connection:framing-error"
    peer = server()
    assert closed_with(peer.raw((512).to_bytes(4, "big"))) is None


def test_amqp_frame_during_sasl() -> None:
    """AMQP 1.0 §5.3.1: frames of another type have no place here."""
    assert closed_with(server().send(p.Open("c"))) == "amqp:connection:framing-error"
    assert closed_with(server().raw(EMPTY_FRAME)) == "amqp:connection:framing-error"


def test_no_close_during_sasl() -> None:
    """AMQP 1.0 §5.3.2: before AMQP is spoken there is nobody to close; it hangs up."""
    peer = server()
    peer.answers()
    peer.raw(frame(b"\x00\x53\x41\x45", kind=SASL))
    assert peer.answers() == []
    assert peer.connection.is_finished


@pytest.mark.parametrize(
    "wrong",
    [p.SaslOutcome(0), p.SaslMechanisms(("PLAIN",)), p.SaslResponse(b""), p.Open("c")],
    ids=lambda it: type(it).__name__,
)
def test_wrong_frame_for_a_server(wrong: object) -> None:
    """AMQP 1.0 §5.3.2: a server waits for init, and for nothing else."""
    assert closed_with(server().send(wrong, kind=SASL)) == "amqp:decode-error"


def test_second_init() -> None:
    """AMQP 1.0 §5.3.2: after the outcome comes the AMQP header, not another try."""
    peer = server()
    peer.send(p.SaslInit("ANONYMOUS"), kind=SASL)
    assert closed_with(peer.send(p.SaslInit("ANONYMOUS"), kind=SASL)) is not None


def test_amqp_after_sasl() -> None:
    """AMQP 1.0 §5.3.2: after the outcome the AMQP header is exchanged, then open."""
    peer = server()
    peer.send(p.SaslInit("ANONYMOUS"), kind=SASL)
    peer.answers()
    peer.raw(AMQP_HEADER)
    assert peer.answer() == Header(AMQP_HEADER)
    assert isinstance(peer.send(p.Open("c"))[0], Opened)


def test_all_in_one_piece() -> None:
    """AMQP 1.0 §5.3.2: a client may send all it has to say at once."""
    peer = Peer(use_sasl=True)
    data = SASL_HEADER + frame(p.encode_performative(p.SaslInit("ANONYMOUS")), kind=SASL)
    data += AMQP_HEADER + frame(p.encode_performative(p.Open("c")))
    assert [type(event) for event in peer.raw(data)] == [Authenticated, Opened]
    names = [type(answer).__name__ for answer in peer.answers()]
    assert names == ["Header", "SaslMechanisms", "SaslOutcome", "Header", "Open"]


def test_sasl_is_required() -> None:
    """AMQP 1.0 §5.1: a server that wants SASL answers the AMQP header with SASL's."""
    peer = Peer(use_sasl=True)
    assert closed_with(peer.raw(AMQP_HEADER)) is not None
    assert peer.answer() == Header(SASL_HEADER)


def test_sasl_is_optional() -> None:
    """AMQP 1.0 §5.1: a server that does not want SASL still speaks it."""
    peer = Peer(use_sasl=False)
    peer.raw(SASL_HEADER)
    assert isinstance(peer.answers()[1], p.SaslMechanisms)


def test_client_is_anonymous() -> None:
    """AMQP 1.0 §5.3.3.2: a client without a user name asks for ANONYMOUS, with its hostname."""
    peer = client(hostname="host")
    assert peer.answer() == Header(SASL_HEADER)
    peer.raw(SASL_HEADER)
    peer.send(p.SaslMechanisms(("PLAIN", "ANONYMOUS")), kind=SASL)
    assert peer.answer() == p.SaslInit("ANONYMOUS", b"", "host")


def test_client_is_plain() -> None:
    """AMQP 1.0 §5.3.3.2: a client with a user name asks for PLAIN."""
    peer = client(username="rule", password="key")
    peer.raw(SASL_HEADER)
    peer.send(p.SaslMechanisms(("PLAIN", "ANONYMOUS")), kind=SASL)
    assert peer.answers()[1].initial_response == b"\0rule\0key"


def test_client_waits_for_the_outcome() -> None:
    """AMQP 1.0 §5.3.2: what a client has queued goes out after the outcome, header first."""
    peer = client()
    peer.connection.open()
    assert peer.answer() == Header(SASL_HEADER)
    peer.raw(SASL_HEADER)
    peer.send(p.SaslMechanisms(("ANONYMOUS",)), kind=SASL)
    assert isinstance(peer.answer(), p.SaslInit)
    assert peer.send(p.SaslOutcome(0), kind=SASL) == [Authenticated("ANONYMOUS")]
    header, opening = peer.answers()
    assert header == Header(AMQP_HEADER)
    assert isinstance(opening, p.Open)


def test_client_is_refused() -> None:
    """AMQP 1.0 §5.3.3.6: any code but 0 ends the connection, and nothing more is sent."""
    peer = client()
    peer.connection.open()
    peer.raw(SASL_HEADER)
    peer.send(p.SaslMechanisms(("ANONYMOUS",)), kind=SASL)
    peer.answers()
    events = peer.send(p.SaslOutcome(1), kind=SASL)
    assert closed_with(events) == "amqp:unauthorized-access"
    assert peer.answers() == []


def test_client_finds_no_mechanism() -> None:
    """AMQP 1.0 §5.3.3.1: without a common mechanism the client gives up."""
    peer = client()
    peer.raw(SASL_HEADER)
    events = peer.send(p.SaslMechanisms(("EXTERNAL",)), kind=SASL)
    assert closed_with(events) == "amqp:unauthorized-access"


def test_client_is_challenged() -> None:
    """AMQP 1.0 §5.3.3.3: a challenge is answered with the response once more."""
    peer = client(username="rule", password="key")
    peer.raw(SASL_HEADER)
    peer.send(p.SaslMechanisms(("PLAIN",)), kind=SASL)
    peer.answers()
    peer.send(p.SaslChallenge(b""), kind=SASL)
    assert peer.answer() == p.SaslResponse(b"\0rule\0key")


def test_wrong_frame_for_a_client() -> None:
    """AMQP 1.0 §5.3.2: a client waits for the mechanisms first, and never for an init."""
    for wrong in (p.SaslOutcome(0), p.SaslChallenge(b""), p.SaslInit("PLAIN")):
        peer = client()
        peer.raw(SASL_HEADER)
        assert closed_with(peer.send(wrong, kind=SASL)) == "amqp:decode-error"


def test_other_header_after_sasl() -> None:
    """AMQP 1.0 §5.3.2: after SASL only the AMQP header is right, and it is what we answer."""
    peer = server()
    peer.send(p.SaslInit("ANONYMOUS"), kind=SASL)
    peer.answers()
    assert closed_with(peer.raw(SASL_HEADER)) == "amqp:not-implemented"
    assert peer.answer() == Header(AMQP_HEADER)
