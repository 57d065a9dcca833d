"""Messages as a client sees them: one to send, one that was received, and batches.

Here live their fields and their bytes. How they travel is `sending` and `receiving`.

The rule: bytes stay bytes. A body that is given as bytes is framed, never copied into another form;
what was received is walked when a field is asked for, and parsed only as far as that field needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from tandembus.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    PROPERTIES,
    SCHEDULED,
    SEQUENCE,
    VALUE,
    AmqpMessage,
    edited,
    encode_message,
    sections,
)
from tandembus.amqp.types import compound, decode
from tandembus.errors import MessageSizeExceededError, NotAllowedError
from tandembus.model import NO_EDITS, Edits, MessageId, Millis, Value

if TYPE_CHECKING:
    from tandembus.client.receiving import ReceiverLink

SINGLE: Final = 0
BATCH: Final = 0x8001_3700
"""The message format of a batch: each data section is an encoded message (WIRE.md §5.2)."""

_SHORT: Final = b"\x00\x53\x75\xa0"
_LONG: Final = b"\x00\x53\x75\xb0"
_length: Final = [bytes((size,)) for size in range(256)]
_length32: Final = Struct(">I").pack


def data_section(raw: bytes) -> bytes:
    """Bytes as the body of a message."""
    size = len(raw)
    if size < 256:
        return _SHORT + _length[size] + raw
    return _LONG + _length32(size) + raw


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send: `OutgoingMessage(b"…", session_id="a", properties={"tier": "gold"})`."""

    body: bytes | str | None = b""
    _: KW_ONLY
    message_id: MessageId | None = None
    correlation_id: MessageId | None = None
    session_id: str | None = None
    partition_key: str | None = None
    subject: str | None = None
    content_type: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)
    """Application properties."""
    ttl_ms: Millis | None = None
    priority: int | None = None
    """Of the AMQP header, 0 to 9; a priority queue looks at it."""
    scheduled_ms: Millis | None = None
    """When it shall be enqueued (milliseconds since 1970)."""
    via_partition_key: str | None = None

    def encoded(self) -> bytes:
        return encode_message(
            body=self.body,
            message_id=self.message_id,
            correlation_id=self.correlation_id,
            session_id=self.session_id,
            reply_to_session_id=self.reply_to_session_id,
            content_type=self.content_type,
            label=self.subject,
            to=self.to,
            reply_to=self.reply_to,
            properties=self.properties,
            ttl_ms=self.ttl_ms,
            priority=self.priority,
            scheduled_ms=self.scheduled_ms,
            partition_key=self.partition_key,
            via_partition_key=self.via_partition_key,
        )


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A message that is encoded already, body and all."""

    payload: bytes

    @classmethod
    def again(cls, received: ReceivedMessage, edits: Edits = NO_EDITS) -> EncodedMessage:
        """One that was received, to be sent anew: with what its sender said, whatever its body is,
        and without what the broker has added."""
        payload = edited(received.payload, edits)
        message = AmqpMessage(payload)
        head = encode_message(
            body=None,
            ttl_ms=message.ttl_ms,
            priority=message.priority,
            partition_key=message.partition_key,
        )
        kept = [payload[at:end] for code, at, end in sections(payload) if code in _SENDERS]
        return cls(head + b"".join(kept))

    def encoded(self) -> bytes:
        return self.payload


_SENDERS: Final = (PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE)
"""The sections that are the sender's own."""

Unsent: TypeAlias = bytes | OutgoingMessage
Sendable: TypeAlias = Unsent | EncodedMessage
"""Bytes are a message with that body and nothing else; the broker gives it a message id."""


def encoded(message: Sendable) -> bytes:
    return data_section(message) if type(message) is bytes else _encoded(message)


def _encoded(message: Sendable) -> bytes:
    return data_section(message) if isinstance(message, bytes) else message.encoded()


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transfer carries: `count` messages, the first of which is number `first`."""

    payload: bytes
    message_format: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A message that the link does not take."""

    first: int
    error: MessageSizeExceededError


def batches(
    messages: Iterable[Sendable], max_batch_bytes: int, max_message_bytes: int
) -> Iterator[Batch | TooLarge]:
    """The messages in as few transfers as fit, in their order. One alone travels as it is."""
    parts: list[bytes] = []
    size = _ENVELOPE
    first = number = 0
    for message in messages:
        if type(message) is bytes:
            length = len(message)
            if length < 256:
                inner = _SHORT + _length[length] + message
            else:
                inner = _LONG + _length32(length) + message
        else:
            inner = _encoded(message)
        length = len(inner)
        if size + length + 8 > max_batch_bytes or len(parts) == 2 * _MOST:
            if parts:
                yield _batch(parts, first)
                parts = []
                size = _ENVELOPE
            first = number
            if _ENVELOPE + length + 8 > max_batch_bytes:
                yield _alone(inner, number, max_message_bytes)
                number += 1
                first = number
                continue
        parts += (_SHORT + _length[length] if length < 256 else _LONG + _length32(length), inner)
        size += length + 8
        number += 1
    if parts:
        yield _batch(parts, first)


_MOST: Final = 4_500
"""Messages of one transfer: the broker works on one transfer at a time."""
_ENVELOPE: Final = 512
"""Room for what the envelope repeats of its first message: three texts of 128 characters."""


def _alone(inner: bytes, number: int, most: int) -> Batch | TooLarge:
    if len(inner) <= most:
        return Batch(inner, SINGLE, number, 1)
    return TooLarge(number, too_large(len(inner), most))


def too_large(size: int, most: int) -> MessageSizeExceededError:
    return MessageSizeExceededError(f"The message has {size} bytes; the entity takes {most}.")


def _batch(parts: list[bytes], first: int) -> Batch:
    if len(parts) == 2:
        return Batch(parts[1], SINGLE, first, 1)
    # The envelope names what decides the partition, as the SDKs do: Azure looks at nothing else.
    opening = parts[1]
    if opening[2] != DATA:
        message = AmqpMessage(opening)
        envelope = encode_message(
            body=None,
            message_id=message.message_id,
            session_id=message.session_id,
            partition_key=message.partition_key,
        )
        if len(envelope) <= _ENVELOPE:
            parts.insert(0, envelope)
    return Batch(b"".join(parts), BATCH, first, len(parts) // 2)


# --- received -------------------------------------------------------------------------------------


class ReceivedMessage:
    """A message as it came. It is settled with the receiver that it came from, or by its lock token
    (`Client.settle`)."""

    __slots__ = (
        "_annotations", "_message", "delivery_id", "is_settled", "link", "payload", "tag",
    )  # fmt: skip

    def __init__(
        self, payload: bytes, delivery_id: int, tag: bytes, link: ReceiverLink | None
    ) -> None:
        self.payload = payload
        """All its bytes, as AMQP encodes them."""
        self.delivery_id = delivery_id
        self.tag = tag
        """The lock token in the form of .NET; empty where there is no lock."""
        self.link = link
        self.is_settled = False
        self._message: AmqpMessage | None = None
        self._annotations: dict[str, object] | None = None

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.sequence_number} {self.message_id!r:.60}>"

    # --- body -------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The bytes of its data sections; nothing if its body is not bytes (see `value`)."""
        message = self._message or self._walked()
        start = message._starts[5]
        payload = message.payload
        if not start or payload[start - 1] != DATA:
            return b""
        if payload[start] == 0xA0:
            begin = start + 2
            end = begin + payload[start + 1]
        else:
            begin = start + 5
            end = begin + int.from_bytes(payload[start + 1 : begin], "big")
        if end == len(payload):
            return payload[begin:]
        parts = []
        for code, at, stop in sections(payload):
            if code == DATA:
                parts.append(payload[at + (5 if payload[at + 3] == 0xA0 else 8) : stop])
        return b"".join(parts)

    @property
    def value(self) -> object:
        """The body that is an AMQP value, or the list of its sequences; None for bytes."""
        message = self._message or self._walked()
        start = message._starts[5]
        payload = message.payload
        if not start or payload[start - 1] == DATA:
            return None
        if payload[start - 1] == VALUE:
            return decode(payload, start)[0]
        found = sections(payload)
        return [decode(payload, at + 3)[0] for code, at, _ in found if code not in _AROUND]

    # --- what its sender said ---------------------------------------------------------------------

    @property
    def message_id(self) -> MessageId | None:
        return (self._message or self._walked()).message_id

    @property
    def correlation_id(self) -> MessageId | None:
        return (self._message or self._walked()).correlation_id

    @property
    def session_id(self) -> str | None:
        return (self._message or self._walked()).session_id

    @property
    def partition_key(self) -> str | None:
        return (self._message or self._walked()).partition_key

    @property
    def subject(self) -> str | None:
        return (self._message or self._walked()).label

    @property
    def content_type(self) -> str | None:
        return (self._message or self._walked()).content_type

    @property
    def to(self) -> str | None:
        return (self._message or self._walked()).to

    @property
    def reply_to(self) -> str | None:
        return (self._message or self._walked()).reply_to

    @property
    def reply_to_session_id(self) -> str | None:
        return (self._message or self._walked()).reply_to_session_id

    @property
    def ttl_ms(self) -> Millis | None:
        return (self._message or self._walked()).ttl_ms

    @property
    def priority(self) -> int | None:
        return (self._message or self._walked()).priority

    @property
    def properties(self) -> Mapping[str, Value]:
        """Application properties."""
        return (self._message or self._walked()).properties

    @property
    def dead_letter_reason(self) -> str | None:
        return _text(self.properties.get("DeadLetterReason"))

    @property
    def dead_letter_description(self) -> str | None:
        return _text(self.properties.get("DeadLetterErrorDescription"))

    # --- what the broker says ---------------------------------------------------------------------

    @property
    def sequence_number(self) -> int:
        return _number(self._annotated("x-opt-sequence-number")) or 0

    @property
    def enqueued_ms(self) -> Millis:
        return _number(self._annotated("x-opt-enqueued-time")) or 0

    @property
    def locked_until_ms(self) -> Millis | None:
        """As it was when the message was received; renewing does not change it here."""
        until = _number(self._annotated("x-opt-locked-until"))
        return None if until is None or until < 0 else until  # of what is only peeked at

    @property
    def scheduled_ms(self) -> Millis | None:
        return _number(self._annotated(SCHEDULED))

    @property
    def state(self) -> int:
        """0 active, 1 deferred, 2 scheduled."""
        return _number(self._annotated("x-opt-message-state")) or 0

    @property
    def dead_letter_source(self) -> str | None:
        return _text(self._annotated("x-opt-deadletter-source"))

    @property
    def delivery_count(self) -> int:
        """Earlier deliveries that failed."""
        message = self._message or self._walked()
        start = message._starts[0]
        if not start:
            return 0
        header, _ = decode(message.payload, start)
        assert isinstance(header, list)
        return _number(header[4]) or 0 if len(header) > 4 else 0

    @property
    def lock_token(self) -> UUID:
        """Raises NotAllowedError for a message that is not locked."""
        if len(self.tag) != 16:
            raise NotAllowedError("The message is not locked: it was browsed, or deleted at once.")
        return UUID(bytes_le=self.tag)

    # --- inside -----------------------------------------------------------------------------------

    def _walked(self) -> AmqpMessage:
        message = self._message = AmqpMessage(self.payload)
        return message

    def _annotated(self, name: str) -> object:
        found = self._annotations
        if found is None:
            message = self._message or self._walked()
            start = message._starts[2]
            found = self._annotations = _annotations(message.payload, start) if start else {}
        return found.get(name)


_AROUND: Final = (*range(0x70, 0x76), 0x78)
_q: Final = Struct(">q").unpack_from


def _annotations(payload: bytes, at: int) -> dict[str, object]:
    """The annotations at `at`. Nearly all are what a broker writes, a few numbers of eight bytes:
    these are read here, the others by `decode`, which takes three times as long."""
    found: dict[str, object] = {}
    count, here, end = compound(payload, at)
    for _ in range(count // 2):
        start = here + 2
        value = start + payload[here + 1]
        if payload[here] != 0xA3 or value + 9 > end or payload[value] not in (0x81, 0x83):
            break
        found[payload[start:value].decode("ascii", "replace")] = _q(payload, value + 1)[0]
        here = value + 9
    else:
        return found
    whole, _ = decode(payload, at)
    assert isinstance(whole, dict)
    return {str(name): value for name, value in whole.items()}


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)
