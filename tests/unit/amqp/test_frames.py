"""Frames: the check of their first bytes, the receive buffer, and output in few pieces."""

from __future__ import annotations

import pytest

from tandembus.amqp.frames import (
    LARGE,
    ReceiveBuffer,
    check_opening,
    coalesced,
    frame,
    frame_opening,
    require_fit,
)
from tandembus.errors import ArgumentError, ProtocolError


def test_frame() -> None:
    """Size, DOFF 2, type and channel, then the body."""
    whole = frame(b"body", 5, 1)
    assert frame_opening(whole) == (12, 2, 1, 5)
    assert whole[8:] == b"body"


@pytest.mark.parametrize(
    ("size", "offset", "kind"),
    [(7, 2, 0), (0, 2, 0), (101, 2, 0), (0xFFFF_FFFF, 2, 0), (50, 1, 0), (50, 13, 0), (50, 2, 2)],
)
def test_openings_that_are_refused(size: int, offset: int, kind: int) -> None:
    """Too small, too large, a data offset outside, an unknown type."""
    with pytest.raises(ProtocolError):
        check_opening(size, offset, kind, 100)


def test_openings_that_are_allowed() -> None:
    """The limit itself, an empty frame, an extended header, SASL."""
    check_opening(100, 2, 0, 100)
    check_opening(8, 2, 1, 100)
    check_opening(100, 25, 0, 100)


def test_buffer_completes_a_frame() -> None:
    """Nothing comes out before the frame is whole; then all at once, and the buffer is empty."""
    buffer = ReceiveBuffer()
    assert buffer.fill(b"all") == (b"all", 0)
    buffer.keep(frame(b"body")[:9], 100)
    assert buffer.fill(b"od") is None
    assert buffer.fill(b"y+") == (frame(b"body") + b"+", 0)
    assert len(buffer) == 0


def test_buffer_looks_at_the_size_first() -> None:
    """Four bytes are enough to refuse, and eight to look at the rest of the opening."""
    buffer = ReceiveBuffer()
    buffer.keep(b"\x00\x00\x00", 100)
    assert buffer.fill(b"\x65") == (b"\x00\x00\x00\x65", 0)
    with pytest.raises(ProtocolError):
        buffer.keep(b"\x00\x00\x00\x65", 100)
    assert len(buffer) == 0
    buffer.keep(b"\x00\x00\x00\x20\x02", 100)
    assert buffer.fill(b"\x00\x00") is None
    assert buffer.fill(b"\x00") is not None


def test_buffer_gives_a_rest_again() -> None:
    """What was read and not looked at comes first, and without a copy if nothing follows."""
    buffer = ReceiveBuffer()
    data = b"done and not done"
    buffer.rest = (data, 9)
    filled = buffer.fill(b"")
    assert filled == (data, 9)
    buffer.rest = filled
    assert buffer.fill(b", and more") == (b"not done, and more", 0)
    assert buffer.rest is None


def test_buffer_of_a_header() -> None:
    """Each byte of a protocol header is looked at when it comes."""
    buffer = ReceiveBuffer()
    buffer.keep(b"AM", 100, is_header=True)
    assert buffer.fill(b"Q") == (b"AMQ", 0)


def test_coalesced() -> None:
    """Small pieces are joined, large ones are the very same objects."""
    large = b"x" * LARGE
    data = coalesced([b"a", b"b", large, memoryview(large), b"c", b"d"])
    assert data[0] == b"ab"
    assert data[1] is large
    assert isinstance(data[2], memoryview)
    assert data[3] == b"cd"
    assert coalesced([large]) == [large]


def test_fit() -> None:
    """A frame that the peer would refuse is never written."""
    assert require_fit(b"x" * 512, 512)
    with pytest.raises(ArgumentError):
        require_fit(b"x" * 513, 512)
