"""AMQP over WebSocket (RFC 6455) without I/O: the handshake's answer, and frames both ways.

The borders of WebSocket messages mean nothing to AMQP (WIRE.md §1.2): what comes out of `receive`
is one stream of bytes. Compression is never agreed to, so there is nothing to blow up.
"""

from __future__ import annotations

import base64
import hashlib
from struct import Struct
from typing import Final

from tandembus.errors import ProtocolError
from tandembus.http import Request, Response, text
from tandembus.limits import FRAMES_AT_ONCE, MAX_FRAME_BYTES

SUBPROTOCOL: Final = "AMQPWSB10"
PATH: Final = ("$servicebus", "websocket")
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE, _PING, _PONG = 0x2, 0x8, 0x9, 0xA
_CONTINUATION: Final = 0x0
_CONTROL_MOST: Final = 125
_U16: Final = Struct("!H")
_U64: Final = Struct("!Q")


def answer(request: Request) -> Response:
    """101, or why not."""
    key = request.headers.get("sec-websocket-key") or ""
    offered = (request.headers.get("sec-websocket-protocol") or "").replace(",", " ").split()
    # .NET writes a slash at the end.
    path = tuple(segment.lower() for segment in request.path if segment)
    if "websocket" not in request.headers.words("upgrade") or path != PATH or not key:
        return text(400, "This is not an AMQP WebSocket.")
    if request.headers.get("sec-websocket-version") != "13":
        return Response(426, (("Sec-WebSocket-Version", "13"),))
    if SUBPROTOCOL not in offered and "amqp" not in offered:
        return text(400, f"The subprotocol {SUBPROTOCOL} is needed.")
    digest = hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()
    return Response(
        101,
        (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", base64.b64encode(digest).decode()),
            ("Sec-WebSocket-Protocol", SUBPROTOCOL if SUBPROTOCOL in offered else "amqp"),
        ),
    )


class WebSocket:
    """The server's end, after the handshake."""

    __slots__ = ("_buffer", "_is_inside", "has_more", "is_closed", "out")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_inside = False
        """Whether a message in several frames is under way."""
        self.is_closed = False
        self.has_more = False
        """Whether `receive` has left something: call it again, with nothing or with more."""
        self.out: list[bytes] = []
        """Control frames to be written."""

    def receive(self, data: bytes) -> bytes:
        """The bytes of the stream inside. Raises ProtocolError."""
        self._buffer += data
        stream: list[bytes] = []
        self.has_more = False
        left = FRAMES_AT_ONCE
        while not self.is_closed:
            frame = self._next_frame()
            if frame is None:
                break
            left -= 1
            self.has_more = left <= 0  # ten thousand empty frames fit one read
            opcode, payload = frame
            if opcode in (_BINARY, _CONTINUATION):
                stream.append(payload)
            elif opcode == _PING:
                self.out.append(_header(_PONG, len(payload)) + payload)
            elif opcode == _CLOSE:
                self.out.append(_header(_CLOSE, len(payload[:2])) + payload[:2])
                self.is_closed = True
            if self.has_more:
                break
        return b"".join(stream)

    def _next_frame(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        is_last, opcode, length, at = first & 0x80, first & 0x0F, second & 0x7F, 2
        if first & 0x70 or not second & 0x80:
            raise ProtocolError("A WebSocket frame has reserved bits, or is not masked.")
        if opcode >= _CLOSE:
            if not is_last or length > _CONTROL_MOST or opcode > _PONG:
                raise ProtocolError("A WebSocket control frame is fragmented, too long or unknown.")
        elif opcode not in (_BINARY, _CONTINUATION) or (opcode == _CONTINUATION) != self._is_inside:
            raise ProtocolError("Only binary WebSocket messages are taken, their frames in order.")
        if length == 126:
            if len(buffer) < 4:
                return None
            (length,), at = _U16.unpack_from(buffer, 2), 4
        elif length == 127:
            if len(buffer) < 10:
                return None
            (length,), at = _U64.unpack_from(buffer, 2), 10
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"A WebSocket frame of {length} bytes is longer than is allowed.")
        end = at + 4 + length
        if len(buffer) < end:
            return None
        payload = _unmasked(bytes(buffer[at + 4 : end]), bytes(buffer[at : at + 4]))
        del buffer[:end]
        if opcode < _CLOSE:
            self._is_inside = not is_last
        return opcode, payload


def framed(size: int) -> bytes:
    """The header of one binary frame of `size` bytes from the server."""
    return _header(_BINARY, size)


def _header(opcode: int, size: int) -> bytes:
    if size <= _CONTROL_MOST:
        return bytes((0x80 | opcode, size))
    if size < 1 << 16:
        return bytes((0x80 | opcode, 126)) + _U16.pack(size)
    return bytes((0x80 | opcode, 127)) + _U64.pack(size)


def _unmasked(data: bytes, mask: bytes) -> bytes:
    """One big exclusive or: a thousand times faster than byte by byte."""
    if not data:
        return data
    repeated = (mask * (len(data) // 4 + 1))[: len(data)]
    whole = int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")
    return whole.to_bytes(len(data), "big")
