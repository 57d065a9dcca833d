"""A large message on its way out: read from the log piece by piece, as its receiver takes it.

Here live the sources of bytes that a link writes from: the pieces of one stored message, and a row
of bytes and such sources. The rule: what is being read is pinned, so that neither the end of its
message nor compaction takes it away; whoever opens a source closes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import TypeAlias

from tandembus.core.effects import Delivery
from tandembus.engine.engine import Engine
from tandembus.model import LargePayload
from tandembus.server.outgoing import encoded

Part: TypeAlias = "bytes | PieceReader"


class PieceReader:
    """The rest of a stored message behind its head."""

    def __init__(self, engine: Engine, body: int, payload: LargePayload) -> None:
        self._engine = engine
        self._body = body
        self._payload = payload
        self._ends = list(accumulate(size for _, size in payload.pieces))
        self._is_open = True
        engine.pin(body)

    def __len__(self) -> int:
        return self._payload.body_bytes

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from `at` on."""
        assert self._is_open, "what was closed may be freed"
        first = self._payload.skip + at
        parts: list[bytes] = []
        while size:
            place = bisect_right(self._ends, first)
            piece = self._engine.piece(self._payload.pieces[place][0])
            begin = first - (self._ends[place] - len(piece))
            parts.append(piece[begin : begin + size])
            first += len(parts[-1])
            size -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Nothing more is read. It may be called again."""
        if self._is_open:
            self._is_open = False
            if self._engine.failure is None:
                self._engine.unpin(self._body)


class Stream:
    """Bytes and sources, one behind the other; closed by itself when its end was read."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.is_open = True
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def head(self) -> bytes:
        """The bytes before the first that are read."""
        return b"".join(takewhile(lambda part: isinstance(part, bytes), self.parts))  # type: ignore[arg-type]

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from `at` on."""
        found: list[bytes] = []
        left = size
        while left:
            place = bisect_right(self._ends, at)
            part = self.parts[place]
            begin = at - (self._ends[place] - len(part))
            count = min(left, len(part) - begin)
            if isinstance(part, PieceReader):
                found.append(part.read(begin, count))
            else:
                found.append(part[begin : begin + count])
            at += count
            left -= count
        if at == len(self):
            self.close()
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """Nothing more is read. It may be called again."""
        self.is_open = False
        for part in self.parts:
            if isinstance(part, PieceReader):
                part.close()


def joined(messages: Sequence[bytes | Stream]) -> bytes | Stream:
    """Messages one behind the other."""
    parts: list[Part] = []
    for message in messages:
        if isinstance(message, Stream):
            parts += message.parts
        else:
            parts.append(message)
    whole = [part for part in parts if isinstance(part, bytes)]
    return b"".join(whole) if len(whole) == len(parts) else Stream(parts)


def as_bytes(message: bytes | Stream) -> bytes:
    """All of it in memory."""
    return message if isinstance(message, bytes) else message.read(0, len(message))


def shown(engine: Engine, delivery: Delivery, *, is_whole: bool) -> tuple[bytes, int]:
    """A message for the console, and its size; a large one without its body, unless it is wanted
    as a whole."""
    (payload,) = engine.bodies((delivery.body,))
    message = payload.head if isinstance(payload, LargePayload) else payload
    if is_whole:
        message = engine.body(delivery.body)
    return encoded(message, delivery, shows_state=True), len(payload)
