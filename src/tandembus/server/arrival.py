"""A large message on its way in: its parts go to disk as they come, and only its head is kept.

Here live the search for the borders of sections in a message that comes in parts, and the pieces
that a sender's unfinished message has on disk. What an ordinary message goes through is `incoming`,
and the head of a large one goes through it, too.

The rule: the body is never looked into. It is what stands between the sections before it and the
sections that azure-servicebus writes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final

from tandembus.amqp.message import DATA, FOOTER, section_at, with_section
from tandembus.amqp.types import decode_descriptor
from tandembus.core.overlay import Edited
from tandembus.errors import ArgumentError, ProtocolError, ServerBusyError, TandemError
from tandembus.limits import (
    KIB,
    MAX_ALL_UNFINISHED_BYTES,
    MAX_PIECES,
    MAX_PROPERTIES,
    MAX_SECTIONS,
    MAX_UNFINISHED_BYTES,
    MIN_PIECE_COST,
)
from tandembus.model import NO_EDITS, LargePayload, Message
from tandembus.server.incoming import message_of

if TYPE_CHECKING:
    from tandembus.server.gateway import Gateway

_MOST_OF_HEAD: Final = 2 * MAX_PROPERTIES
"""Bytes before the body: `incoming` says which of the properties is too large, up to here."""
_MOST_OF_OPENING: Final = 1 * KIB
"""Bytes of a descriptor, a constructor and a length. Longer ones are no section that we know."""
_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZES: Final = {0xA: 1, 0xC: 1, 0xE: 1, 0xB: 4, 0xD: 4, 0xF: 4}
_u32: Final = Struct(">I").unpack_from


class Borders:
    """Where the body of a message begins and ends, found while the message comes."""

    def __init__(self) -> None:
        self.head = bytearray()
        """The sections beside the body."""
        self.body_at: int | None = None
        self.body_end: int | None = None
        """Where sections of the head follow the body; None: the body is the rest."""
        self.size = 0
        """Bytes that have come."""
        self._next = 0
        """Where the next section begins."""
        self._begun = b""
        """What has come of that section, as far as it is needed."""
        self._seen = 0
        self._count = 0

    def feed(self, part: bytes) -> None:
        """The next bytes of the message. Raises `ProtocolError` or `ArgumentError` for what cannot
        be a message."""
        skipped = self._next - self.size
        self.size += len(part)
        if skipped >= len(part):
            return
        data = self._begun + part[max(0, skipped) :]
        at = 0
        while at < len(data):
            opening = _opening(data, at)
            if opening is None:
                break
            code, constructor, length = opening
            is_body = DATA <= code <= FOOTER
            if not is_body and at + length > len(data):
                if length > _MOST_OF_HEAD:
                    raise ArgumentError(
                        f"A section of properties has {length} bytes; at most {MAX_PROPERTIES} are "
                        "allowed for all of them."
                    )
                break
            self._add(code, constructor, is_body=is_body)
            if not is_body:
                self.head += data[at : at + length]
            at += length
            self._next += length
        self._begun = data[at:]

    def end(self) -> tuple[int, int]:
        """The message is whole: where its body is."""
        if self._begun or self._next != self.size:
            raise ProtocolError("A message ends inside a section.")
        begin = self.size if self.body_at is None else self.body_at
        return begin, self.size if self.body_end is None else self.body_end

    def _add(self, code: int, constructor: int, *, is_body: bool) -> None:
        self._seen = with_section(self._seen, code, constructor)
        self._count += 1
        if self._count > MAX_SECTIONS:
            raise ProtocolError(f"A message has more than {MAX_SECTIONS} sections.")
        if is_body:
            if self.body_end is not None:
                raise ProtocolError("The body of a large message is not in one place.")
            if self.body_at is None:
                self.body_at = self._next
        elif self.body_at is not None and self.body_end is None:
            self.body_end = self._next
        if len(self.head) > _MOST_OF_HEAD:
            raise ArgumentError(
                f"The properties and annotations of the message have more than {MAX_PROPERTIES} "
                "bytes together, which is the most that is allowed."
            )


def _opening(data: bytes, at: int) -> tuple[int, int, int] | None:
    """The code of the section at `at`, its constructor, and its length with its descriptor; None:
    not enough of it has come."""
    try:
        code, value_at = section_at(data, at)
        constructor, end = data[value_at], value_at + 1
        while not data[end - 1]:  # a value that is described once more
            _, end = decode_descriptor(data, end)
            end += 1
        kind = data[end - 1] >> 4
        width = _WIDTHS.get(kind)
        if width is None:
            width = _SIZES.get(kind, 0)
            if not width:
                raise ArgumentError(f"0x{data[end - 1]:02x} is no constructor.")
            width += data[end] if width == 1 else _u32(data, end)[0]
    except (ProtocolError, IndexError, StructError):
        if len(data) - at >= _MOST_OF_OPENING:
            raise
        return None
    return code, constructor, end + width - at


class Unfinished:
    """The pieces of one connection's messages that have not been decided about."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.unstored_bytes = 0
        """Of pieces that wait for the disk."""
        self.bytes = 0
        """What all of them count (`_cost`)."""

    def store(self, piece: bytes) -> int:
        """The number of the piece. Raises `ServerBusyError` if there is no room."""
        size, broker = len(piece), self._gateway.broker
        cost = _cost(size)
        if self.bytes + cost > MAX_UNFINISHED_BYTES:
            raise ServerBusyError("Too many large messages of this connection are unfinished.")
        if broker.unfinished_bytes + cost > MAX_ALL_UNFINISHED_BYTES:
            raise ServerBusyError("Too many large messages are unfinished.")

        def stored(_: object) -> None:
            self.unstored_bytes -= size

        number = broker.engine.engine.store_piece(piece, stored)
        self.unstored_bytes += size
        self.bytes += cost
        broker.unfinished_bytes += cost
        return number

    def decided(self, pieces: Sequence[tuple[int, int]]) -> None:
        """These are the stored message's, or were dropped."""
        cost = sum(_cost(size) for _, size in pieces)
        self.bytes -= cost
        self._gateway.broker.unfinished_bytes -= cost

    def drop(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Nobody needs them."""
        self._gateway.broker.engine.engine.drop_pieces(pieces)
        self.decided(pieces)

    def random_bits(self, count: int) -> int:
        return self._gateway.random_bits(count)


def _cost(size: int) -> int:
    return max(size, MIN_PIECE_COST)


class Arrival:
    """One message that comes in parts. Whatever becomes of it, `drop` or `release` ends it."""

    def __init__(self, unfinished: Unfinished) -> None:
        self._unfinished = unfinished
        self._borders = Borders()
        self._pieces: list[tuple[int, int]] = []
        """The number and the length of each."""
        self._error: TandemError | None = None
        """Why it will be refused, once all of it has come."""
        self._payload: LargePayload | None = None

    def take(self, part: bytes) -> None:
        """The next bytes."""
        if self._error is None:
            try:
                self._borders.feed(part)
                self._store(part)
            except TandemError as error:
                self._error = error
                self.drop()

    def whole(self, last: bytes) -> Message:
        """The message, with its last bytes. Raises what is wrong with it, and has dropped it."""
        self.take(last)
        if self._error is not None:
            raise self._error
        try:
            begin, end = self._borders.end()
            message = message_of(bytes(self._borders.head), self._unfinished.random_bits)
        except TandemError:
            self.drop()
            raise
        at, skip = 0, begin
        while skip and skip >= self._pieces[at][1]:
            skip -= self._pieces[at][1]
            at += 1
        self._unfinished.drop(self._pieces[:at])
        del self._pieces[:at]
        self._payload = LargePayload(message.payload, tuple(self._pieces), skip, end - begin)
        return Edited(message, NO_EDITS, self._payload)

    def release(self) -> None:
        """It was decided about: its pieces are the stored message's, or nobody's."""
        if self._payload is not None and self._payload.is_joined:
            self._unfinished.decided(self._pieces)
            self._pieces = []
        else:
            self.drop()

    def drop(self) -> None:
        """It will not be stored."""
        self._unfinished.drop(self._pieces)
        self._pieces = []

    def _store(self, part: bytes) -> None:
        if not part:
            return
        if len(self._pieces) >= MAX_PIECES:
            raise ServerBusyError("The message comes in too many small parts.")
        self._pieces.append((self._unfinished.store(part), len(part)))
