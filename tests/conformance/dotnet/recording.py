"""What the real .NET SDK sent and what a broker answered: the traces, taken apart.

A `.cap` file has lines `C|S MILLISECONDS LENGTH`, each followed by that many bytes; C is the
client. Here they become frames in the order in which they were complete. The `.txt` beside each is
for people. How they are played again is `replay`, and `replay_admin` for HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandembus.amqp.frames import frame_opening
from tandembus.server.websocket import WebSocket
from tests.conformance.amqp.peer import Empty, read

TRACES: Final = Path(__file__).parent / "traces"
_HTTP_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes that were read at once."""

    is_client: bool
    at_ms: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame or a protocol header. Empty frames are left out."""

    is_client: bool
    at_ms: int
    channel: int
    performative: Any
    raw: bytes


def names() -> list[str]:
    """The scenarios that have a trace."""
    return sorted({path.name.split(".")[0] for path in TRACES.glob("*.cap")})


def chunks(name: str, number: int) -> list[Chunk]:
    data = (TRACES / f"{name}.{number}.cap").read_bytes()
    found = []
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        side, ms, length = data[at:end].split()
        at = end + 1 + int(length)
        found.append(Chunk(side == b"C", int(ms), data[end + 1 : at]))
        at += data[at : at + 1] == b"\n" and int(length) == 0
    return found


def frames(recorded: list[Chunk]) -> list[Frame]:
    """The frames of one connection, of both sides, in order."""
    found: list[Frame] = []
    rests = {True: b"", False: b""}
    for chunk in recorded:
        data = rests[chunk.is_client] + chunk.data
        while size := _size(data):
            raw, data = data[:size], data[size:]
            ((channel, performative),) = read(raw)
            if not isinstance(performative, Empty):
                found.append(Frame(chunk.is_client, chunk.at_ms, channel, performative, raw))
        rests[chunk.is_client] = data
    assert not any(rests.values()), "the trace ends inside a frame"
    return found


def _size(data: bytes) -> int:
    """Of the first frame, if it is all here."""
    if len(data) < 8:
        return 0
    size = 8 if data[:4] == b"AMQP" else frame_opening(data, 0)[0]
    return size if size <= len(data) else 0


def inside_websocket(recorded: list[Chunk]) -> tuple[bytes, list[Chunk]]:
    """The client's HTTP request, and the chunks of AMQP after the handshake."""
    requests = [each.data for each in recorded if each.is_client]
    request = requests[0]
    assert request.endswith(_HTTP_END)
    sides = {True: WebSocket(), False: _Unmasked()}
    inner = []
    for chunk in recorded:
        if chunk.data.startswith((b"GET ", b"HTTP/1.1 101")):
            continue
        data = sides[chunk.is_client].receive(chunk.data)
        inner.append(Chunk(chunk.is_client, chunk.at_ms, data))
    return request, inner


class _Unmasked(WebSocket):
    """The frames of a server, read by a peer: they are not masked."""

    def __init__(self) -> None:
        super().__init__()
        self._data = b""

    def receive(self, data: bytes) -> bytes:
        self._data += data
        stream = b""
        while len(self._data) >= 2:
            length, at = self._data[1], 2
            if length == 126:
                length, at = int.from_bytes(self._data[2:4], "big"), 4
            elif length == 127:
                length, at = int.from_bytes(self._data[2:10], "big"), 10
            if len(self._data) < at + length:
                break
            if self._data[0] & 0x0F in (0, 2):
                stream += self._data[at : at + length]
            self._data = self._data[at + length :]
        return stream
