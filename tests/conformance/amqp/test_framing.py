"""AMQP 1.0 part 2, §2.1-2.3: version negotiation and framing."""

from __future__ import annotations

import pytest

from tandembus.amqp.connection import Role
from tandembus.amqp.events import Closed, Heartbeat, Opened
from tandembus.amqp.frames import EMPTY_FRAME, TLS_HEADER, frame
from tandembus.amqp.performatives import Close, Open, encode_performative
from tests.conformance.amqp.peer import AMQP_HEADER, SASL_HEADER, Header, Peer, closed_with

OPEN = encode_performative(Open("peer"))


def test_header_is_answered() -> None:
    """AMQP 1.0 §2.2: each peer sends a protocol header; a supported one is answered in kind."""
    peer = Peer()
    assert peer.raw(AMQP_HEADER) == []
    assert peer.answer() == Header(AMQP_HEADER)


@pytest.mark.parametrize(
    "header",
    [b"AMQP\x00\x00\x09\x01", b"AMQP\x00\x02\x00\x00", TLS_HEADER, b"HTTP/1.1"],
    ids=["0-9-1", "2.0", "TLS", "no AMQP"],
)
def test_header_mismatch(header: bytes) -> None:
    """AMQP 1.0 §2.2: an unsupported header is answered with a supported one, then the end."""
    peer = Peer()
    (closed,) = peer.raw(header)
    assert isinstance(closed, Closed)
    assert peer.answer() == Header(AMQP_HEADER)
    assert peer.connection.is_finished


def test_header_before_the_peers() -> None:
    """AMQP 1.0 §2.2: a client may send its header and more before it has seen the server's."""
    peer = Peer(Role.CLIENT)
    peer.connection.open()
    header, opening = peer.answers()
    assert header == Header(AMQP_HEADER)
    assert isinstance(opening, Open)


def test_client_meets_another_version() -> None:
    """AMQP 1.0 §2.2: a client that gets another header than its own ends the connection."""
    peer = Peer(Role.CLIENT)
    assert closed_with(peer.raw(b"AMQP\x00\x00\x09\x01")) == "amqp:not-implemented"
    assert peer.connection.is_finished


def test_header_refused_at_its_first_byte() -> None:
    """AMQP 1.0 §2.2: what cannot become a header is refused without waiting for eight bytes."""
    assert closed_with(Peer().raw(b"G")) == "amqp:not-implemented"
    peer = Peer()
    assert peer.raw(b"AM") == []
    assert closed_with(peer.raw(b"X")) == "amqp:not-implemented"


def test_data_offset_too_small() -> None:
    """AMQP 1.0 §2.3.1: a DOFF below 2 is malformed."""
    peer = Peer().opened()
    events = peer.raw(b"\x00\x00\x00\x08\x01\x00\x00\x00")
    assert closed_with(events) == "amqp:connection:framing-error"


def test_data_offset_beyond_the_frame() -> None:
    """AMQP 1.0 §2.3.1: a DOFF that points behind the frame is malformed."""
    peer = Peer().opened()
    assert closed_with(peer.raw(b"\x00\x00\x00\x08\x03\x00\x00\x00")) is not None


def test_extended_header_is_skipped() -> None:
    """AMQP 1.0 §2.3.2: the extended header between the frame header and DOFF is ignored."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    extended = (16 + len(OPEN)).to_bytes(4, "big") + b"\x04\x00\x00\x00" + b"\xff" * 8 + OPEN
    (opened,) = peer.raw(extended)
    assert isinstance(opened, Opened)


@pytest.mark.parametrize("size", range(8))
def test_frame_smaller_than_its_header(size: int) -> None:
    """AMQP 1.0 §2.3.1: a frame of less than 8 bytes is malformed."""
    peer = Peer().opened()
    events = peer.raw(size.to_bytes(4, "big") + b"\x02\x00\x00\x00")
    assert closed_with(events) == "amqp:connection:framing-error"
    close = peer.answer()
    assert isinstance(close, Close)
    assert close.error is not None


def test_unknown_frame_type() -> None:
    """AMQP 1.0 §2.3.1: only types 0 and 1 are defined; others end the connection here."""
    peer = Peer().opened()
    assert closed_with(peer.raw(frame(OPEN, kind=2))) == "amqp:connection:framing-error"


def test_sasl_frame_after_sasl() -> None:
    """AMQP 1.0 §2.3.1: a frame of the SASL type has no place among AMQP frames."""
    peer = Peer().opened()
    assert closed_with(peer.raw(frame(OPEN, kind=1))) == "amqp:connection:framing-error"


def test_empty_frame() -> None:
    """AMQP 1.0 §2.3.3: an empty body is allowed; it only shows that the peer is alive."""
    assert Peer().opened().raw(EMPTY_FRAME) == [Heartbeat()]


def test_body_without_a_performative() -> None:
    """AMQP 1.0 §2.3.3: a frame's body begins with a performative."""
    peer = Peer().opened()
    assert closed_with(peer.raw(frame(b"\xa1\x04text"))) == "amqp:decode-error"


def test_unknown_performative() -> None:
    """AMQP 1.0 §2.3.3: a described type that is no performative is refused."""
    peer = Peer().opened()
    assert closed_with(peer.raw(frame(b"\x00\x53\x19\x45"))) == "amqp:decode-error"


def test_symbolic_descriptor() -> None:
    """AMQP 1.0 §1.2/§2.7: a performative's descriptor may be its symbol, matched whole."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    (opened,) = peer.raw(frame(b"\x00\xa3\x0eamqp:open:list" + OPEN[3:]))
    assert isinstance(opened, Opened)
    peer = Peer()
    peer.raw(AMQP_HEADER)
    assert closed_with(peer.raw(frame(b"\x00\xa3\x0famqp:open:list2" + OPEN[3:]))) is not None


def test_bytes_behind_a_performative() -> None:
    """AMQP 1.0 §2.3.3: only a transfer has a payload."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    assert closed_with(peer.raw(frame(OPEN + b"\x40"))) == "amqp:decode-error"


def test_frames_in_any_pieces() -> None:
    """AMQP 1.0 §2.3: frames are self-delimiting; where the transport cuts them means nothing."""
    peer = Peer()
    data = AMQP_HEADER + frame(OPEN)
    events = [event for at in range(len(data)) for event in peer.raw(data[at : at + 1])]
    assert [type(event) for event in events] == [Opened]


def test_size_above_the_limit_is_not_kept() -> None:
    """AMQP 1.0 §2.7.1 max-frame-size: a larger frame is refused by its first four bytes."""
    peer = Peer(max_frame_size=1024).opened()
    assert closed_with(peer.raw(b"\x00\x00\x04\x01")) == "amqp:connection:framing-error"


def test_limit_before_open() -> None:
    """AMQP 1.0 §2.7.1: before open no size is negotiated; 8 KiB are taken, and not more."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    big = encode_performative(Open("peer", properties={"pad": "x" * 8000}))
    assert isinstance(peer.raw(frame(big))[0], Opened)
    peer = Peer()
    peer.raw(AMQP_HEADER)
    assert closed_with(peer.raw((8193).to_bytes(4, "big"))) == "amqp:connection:framing-error"


def test_error_before_open_is_still_told() -> None:
    """AMQP 1.0 §2.4.1/§2.7.9: our open goes before our close, also where the peer's never came."""
    peer = Peer()
    peer.raw(AMQP_HEADER + frame(b"\x00\x53\x11\x45"))
    header, opening, close = peer.answers()
    assert isinstance(header, Header)
    assert isinstance(opening, Open)
    assert isinstance(close, Close)


def test_sasl_header_where_sasl_is_done() -> None:
    """AMQP 1.0 §5.3: a second SASL header is a mismatch."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    peer.answers()
    assert closed_with(peer.raw(SASL_HEADER)) is not None
