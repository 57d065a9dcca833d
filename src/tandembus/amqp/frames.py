"""Frames (AMQP 1.0 §2.3) and protocol headers (§2.2): how they are told apart, checked and built.

Here live the receive buffer, the check of a frame's first eight bytes, and the builders of frames.
What is inside a frame (`performatives`, `fast`) and what it means (`connection`) do not.

The rule: a size is compared with the limit of the phase before a byte of that frame is kept, so the
buffer never holds more than one frame of the limit and one read of the socket.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from tandembus.amqp.types import Buffer
from tandembus.errors import ArgumentError, ProtocolError

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8
"""A protocol header and the fixed part of a frame are of the same length."""

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""A frame without a body: the peer is alive. (§2.4.5)"""

LARGE: Final = 32 * 1024
"""Pieces of output of this size are handed over as they are."""

frame_opening: Final = Struct(">IBBH").unpack_from
"""Size, data offset in words of four bytes, type, channel. (§2.3.1)"""
_size_of: Final = Struct(">I").unpack_from
_pack: Final = Struct(">IBBH").pack


def frame(body: bytes, channel: int = 0, kind: int = AMQP_FRAME) -> bytes:
    """`body` (a performative, with its payload if any) as one frame; the data offset is always 2,
    because azure-servicebus reads no other."""
    return _pack(HEADER_BYTES + len(body), 2, kind, channel) + body


def check_opening(size: int, offset: int, kind: int, limit: int) -> None:
    """Raise `ProtocolError` unless a frame may open like this, where `limit` bytes are allowed."""
    if not HEADER_BYTES <= size <= limit:
        raise ProtocolError(f"A frame of {size} bytes; 8 to {limit} are allowed.")
    if offset < 2 or offset * 4 > size:
        raise ProtocolError("A frame's data offset points outside of it.")
    if kind not in (AMQP_FRAME, SASL_FRAME):
        raise ProtocolError(f"Frames of type {kind} are not known.")


class ReceiveBuffer:
    """Bytes of a frame that has not arrived completely. Linear in time, however small the pieces:
    a frame is copied out once, when its last byte is here."""

    __slots__ = ("_kept", "_needed", "rest")

    def __init__(self) -> None:
        self._kept = bytearray()
        self._needed = 0
        self.rest: tuple[bytes, int] | None = None
        """What came and was not looked at, and from where on; `fill` gives it again."""

    def __len__(self) -> int:
        return len(self._kept)

    def fill(self, data: bytes) -> tuple[bytes, int] | None:
        """All that is here now, and where it begins, if it completes what was begun; the buffer is
        then empty."""
        if self.rest is not None:
            whole, at = self.rest
            self.rest = None
            return (whole[at:] + data, 0) if data else (whole, at)
        if not self._kept:
            return data, 0
        self._kept += data
        if len(self._kept) < self._needed:
            return None
        whole = bytes(self._kept)
        self._kept = bytearray()
        return whole, 0

    def keep(self, rest: bytes, limit: int, *, is_header: bool = False) -> None:
        """Keep the beginning of a frame (or of a protocol header) until more can be said of it.

        Raises `ProtocolError`, keeping nothing, if its size shows already that it is not allowed.
        """
        have = len(rest)
        if is_header:
            self._needed = have + 1
        elif have < 4:
            self._needed = 4
        else:
            (size,) = _size_of(rest)
            if not HEADER_BYTES <= size <= limit:
                raise ProtocolError(f"A frame of {size} bytes; 8 to {limit} are allowed.")
            self._needed = HEADER_BYTES if have < HEADER_BYTES else size
        self._kept += rest


def coalesced(chunks: list[Buffer]) -> list[Buffer]:
    """The same bytes in few pieces: small ones are joined, large ones are not copied."""
    data: list[Buffer] = []
    small: list[Buffer] = []
    for chunk in chunks:
        if len(chunk) < LARGE:
            small.append(chunk)
            continue
        if small:
            data.append(b"".join(small))
            small = []
        data.append(chunk)
    if small:
        data.append(b"".join(small))
    return data


def require_fit(frame_bytes: bytes, limit: int) -> bytes:
    """The frame, or `ArgumentError` if the peer would have to refuse it. (§2.7.1 max-frame-size)"""
    if len(frame_bytes) > limit:
        raise ArgumentError(f"A frame of {len(frame_bytes)} bytes; the peer takes {limit}.")
    return frame_bytes
