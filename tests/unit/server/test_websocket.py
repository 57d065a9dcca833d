"""AMQP over WebSocket: the handshake's answer, and frames whatever way their bytes are cut."""

from __future__ import annotations

import struct

import pytest

from tandembus.errors import ProtocolError
from tandembus.http import Parser, Request
from tandembus.limits import FRAMES_AT_ONCE
from tandembus.server.websocket import WebSocket, answer, framed

MASK = b"\x01\x02\x03\x04"


def frame(opcode: int, payload: bytes, *, first: int = 0x80, mask: bytes = MASK) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((first | opcode, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((first | opcode, 0x80 | 126)) + struct.pack(">H", size)
    else:
        head = bytes((first | opcode, 0x80 | 127)) + struct.pack(">Q", size)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def asked(*more: str, path: str = "/$servicebus/websocket") -> Request:
    lines = (
        f"GET {path} HTTP/1.1", "Host: h", "Connection: Upgrade", "Upgrade: websocket", *more,
        "", "",
    )  # fmt: skip
    (request,) = Parser().feed("\r\n".join(lines).encode())
    assert isinstance(request, Request)
    return request


USUAL = (
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: AMQPWSB10",
)


def test_the_handshake() -> None:
    """The accept value is that of RFC 6455 §1.3; an offered compression is not agreed to."""
    response = answer(asked(*USUAL, "Sec-WebSocket-Extensions: permessage-deflate"))
    headers = dict(response.headers)
    assert response.status == 101
    assert headers["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert headers["Sec-WebSocket-Protocol"] == "AMQPWSB10"
    assert "Sec-WebSocket-Extensions" not in headers


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (asked(*USUAL, path="/elsewhere"), 400),
        (asked(*USUAL[1:]), 400),
        (asked(USUAL[0], USUAL[2]), 426),
        (asked(*USUAL[:2]), 400),
    ],
)
def test_no_handshake(request_: Request, status: int) -> None:
    assert answer(request_).status == status


def test_the_stream_inside() -> None:
    """Messages, pieces of them and pings in between: only the bytes count, however they are cut."""
    data = (
        frame(0x2, b"one ", first=0)
        + frame(0x9, b"ping")
        + frame(0x0, b"and ", first=0)
        + frame(0x0, b"a piece")
        + frame(0x2, b"z" * 300)
        + frame(0x2, b"y" * 70_000)
    )
    for size in (1, 7, len(data)):
        socket, stream = WebSocket(), b""
        for at in range(0, len(data), size):
            stream += socket.receive(data[at : at + size])
        assert stream == b"one and a piece" + b"z" * 300 + b"y" * 70_000
        assert socket.out == [b"\x8a\x04ping"]


def test_a_close_is_answered() -> None:
    socket = WebSocket()
    assert socket.receive(frame(0x8, b"\x03\xe8bye") + frame(0x2, b"late")) == b""
    assert socket.is_closed
    assert socket.out == [b"\x88\x02\x03\xe8"]


def test_frames_are_read_a_number_at_a_time() -> None:
    """Thousands of empty frames fit one read: the rest waits for another turn, and none is lost."""
    socket = WebSocket()
    count = 3 * FRAMES_AT_ONCE + 5
    stream = socket.receive(frame(0x2, b"x") * count)
    assert len(stream) == FRAMES_AT_ONCE
    while socket.has_more:
        stream += socket.receive(b"")
    assert len(stream) == count


@pytest.mark.parametrize(
    "data",
    [
        frame(0x9, b"x", first=0),
        frame(0x9, b"x" * 126),
        frame(0xB, b""),
        frame(0x1, b"text"),
        frame(0x2, b"compressed", first=0xC0),
        frame(0x0, b"goes on with nothing"),
        frame(0x2, b"a", first=0) + frame(0x2, b"another"),
        b"\x82\x01x",
        b"\x82\xff" + struct.pack(">Q", 1 << 62) + MASK,
    ],
    ids=lambda data: data[:6].hex(),
)
def test_what_breaks_the_rules(data: bytes) -> None:
    """Control frames in pieces, too long or unknown; text; compression; pieces out of order; no
    mask; a size that nobody has (H6)."""
    with pytest.raises(ProtocolError):
        WebSocket().receive(data)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_what_we_write(size: int) -> None:
    header = framed(size)
    assert header[0] == 0x82
    lengths = {2: header[1], 4: int.from_bytes(header[2:4]), 10: int.from_bytes(header[2:10])}
    assert lengths[len(header)] == size
