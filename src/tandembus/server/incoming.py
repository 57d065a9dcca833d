"""What a transfer carries becomes messages that core can take, or is refused.

Here live: the two message formats, the limits of properties, the message id that the broker makes
up, and the tidying of a message before it is stored. What happens to the message is core's; what a
receiver gets is `outgoing`.

The rule: after `messages_of` no attribute of a message raises, and its payload is *tidy*:

- it has a message id;
- header, delivery-annotations and message-annotations come first, in this order (azure-servicebus
  puts its delivery-annotations last), are well-formed, and are there only if they say something;
  application properties come before the body;
- nothing in them is the broker's to say: no delivery count, sequence number, lock or state. Clients
  send a received message again with all of these still set (WIRE §5.2).

So a delivery only has to look at the first bytes, and has nothing to take out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, cast

from tandembus.amqp.message import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PARTITION_KEY,
    SCHEDULED,
    VIA_PARTITION_KEY,
    AmqpMessage,
    ParsedMessage,
    batch_messages,
    edited,
    sections,
)
from tandembus.amqp.types import (
    NULL,
    compound,
    decode,
    encode_composite,
    encode_described,
    encode_map,
    encode_string,
    encode_timestamp,
    skip,
)
from tandembus.errors import ArgumentError, MessageSizeExceededError, ProtocolError
from tandembus.limits import (
    BATCH_ENVELOPE,
    MAX_BATCH_BYTES,
    MAX_MESSAGE_ID,
    MAX_PARTITION_KEY,
    MAX_PROPERTIES,
    MAX_PROPERTY_COUNT,
    MAX_PROPERTY_VALUE,
    MAX_SESSION_ID,
)
from tandembus.model import PING_CONTENT_TYPE, Edits, MessageId, Value

SINGLE: Final = 0
BATCH: Final = 0x8001_3700
"""The message format of a batch: each data section is an encoded message (WIRE §5.2)."""

BROKER_ANNOTATIONS: Final = frozenset({
    "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until", "x-opt-lock-token",
    "x-opt-enqueue-sequence-number", "x-opt-message-state", "x-opt-deadletter-source",
    "x-opt-partition-id",
})  # fmt: skip
"""What only the broker says about a message; from a sender it is dropped."""

_BROKERS: Final = frozenset(name.encode() for name in BROKER_ANNOTATIONS)
_RIGHT_TYPES: Final = {
    SCHEDULED.encode(): 0x83,
    PARTITION_KEY.encode(): 0xA1,
    VIA_PARTITION_KEY.encode(): 0xA1,
}
_SMALLEST_LIMIT: Final = min(MAX_MESSAGE_ID, MAX_SESSION_ID, MAX_PARTITION_KEY)
_EMPTY_MAPS: Final = (b"\xc1\x01\x00", b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00")
_u32: Final = Struct(">I").unpack_from
_DATA: Final = b"\x00\x53\x75"
_MOST_IN_8: Final = 5 + 256
_data8: Final = Struct(">IB").pack
_data32: Final = Struct(">II").pack


def messages_of(
    payload: bytes, message_format: int, random_bits: Callable[[int], int]
) -> list[ParsedMessage]:
    """The messages of one transfer, in order, checked and tidied.

    Raises `ProtocolError` for bytes that are no message, and a `Refused` that names the property
    for a message that is over a limit; one bad message refuses the whole batch. `random_bits`
    (`Clock.random_bits`) is asked for 128 for each message without a message id.
    """
    if message_format == SINGLE:
        return [message_of(_not_empty(payload), random_bits)]
    if message_format != BATCH:
        raise ArgumentError(f"The message format 0x{message_format:08x} is not known.")
    # An SDK fills its batch up to the size that was announced, and adds the envelope.
    if len(payload) > MAX_BATCH_BYTES + BATCH_ENVELOPE:
        raise MessageSizeExceededError(
            f"The batch has {len(payload)} bytes; at most {MAX_BATCH_BYTES} are allowed."
        )
    messages: list[ParsedMessage] = []
    try:
        for inner in batch_messages(payload):
            messages.append(message_of(_not_empty(inner), random_bits))
    except ArgumentError as error:
        raise ArgumentError(f"Message {len(messages) + 1} of the batch: {error}") from None
    return messages


def _not_empty(payload: bytes) -> bytes:
    if not payload:
        raise ArgumentError("The transfer has no bytes: a message has at least one section.")
    return payload


def message_of(payload: bytes, random_bits: Callable[[int], int]) -> ParsedMessage:
    """One message. On the way of every send, so it fills the lazy attributes of the message
    itself: once all are filled, nobody looks at `_starts` again, and the payload may change."""
    message = AmqpMessage(payload)
    payload = message.payload
    starts = message._starts
    head = b""
    body_size = 0
    if starts[5] and max(starts) == starts[5]:
        head = payload[: starts[5] - 3]
        body_size = len(payload) - len(head)
        twin = _twins.get(head)
        if twin is not None:
            return twin.with_body(payload[len(head) :], f"{random_bits(128):032x}")
    message._fill_properties()
    at = starts[4]
    if at:
        if at > starts[5] > 0:
            return message_of(_in_order(payload), random_bits)
        properties = _usual_properties(payload, at)
        if properties is None:
            _check_simple(payload, at)
        else:
            message.properties = properties
        if len(message.properties) > MAX_PROPERTY_COUNT:
            raise ArgumentError(
                f"The message has {len(message.properties)} application properties; "
                f"at most {MAX_PROPERTY_COUNT} are allowed."
            )
    else:
        message.properties = {}
    if starts[6]:
        decode(payload, starts[6])
    if len(payload) > MAX_PROPERTY_VALUE:
        _check_sizes(payload, starts)
    at = starts[3]
    if at and (payload[at] != 0xC0 or payload[at + 1] > _SMALLEST_LIMIT):
        _check_length("MessageId", message.message_id, MAX_MESSAGE_ID)
        _check_length("SessionId", message.session_id, MAX_SESSION_ID)
        _check_length("ReplyToSessionId", message.reply_to_session_id, MAX_SESSION_ID)

    place = 0
    if starts[0] or starts[1] or starts[2]:
        opening, end = _tidy_opening(message, payload, starts)
        if end < 0:
            return message_of(_in_order(payload), random_bits)
        place = len(opening)
        if payload[:end] != opening:
            payload = opening + payload[end:]
        if at:
            at += place - end
    if message.message_id is None:
        message.message_id = made_up = f"{random_bits(128):032x}"
        payload = _with_id(payload, at, place, made_up)
        if 0 < len(head) <= _LARGEST_HEAD:
            _remember(head, payload[: len(payload) - body_size], message)
    message.payload = payload
    return message


# --- twins ----------------------------------------------------------------------------------------
# A sender's messages differ in their bodies, and in the ids that it gives them. Those to which the
# broker gives the id (no SDK sends one unless asked) often have the same sections before the body,
# byte for byte: what was read, checked and tidied for one is good for the next.

_LARGEST_HEAD: Final = 1_024
_MOST_TWINS: Final = 256


class Twin(NamedTuple):
    head: bytes
    """The sections before the body, as they were sent."""
    before: bytes
    """The tidy ones, up to the id,"""
    behind: bytes
    """and behind it."""
    values: tuple[Any, ...]
    """What all of them say; in the order of `with_body`."""

    def with_body(self, body: bytes, message_id: str) -> ParsedMessage:
        _, before, behind, values = self
        it = _new_message(ParsedMessage)
        it.payload = b"".join((before, message_id.encode(), behind, body))
        it.message_id = message_id
        (
            it.ttl_ms, it.priority, it.scheduled_ms, it.partition_key, it.via_partition_key,
            it.correlation_id, it.session_id, it.reply_to_session_id, it.content_type, it.label,
            it.to, it.reply_to, it.properties, it.is_ping,
        ) = values  # fmt: skip
        return it


_new_message: Final = cast("Callable[[type[ParsedMessage]], ParsedMessage]", object.__new__)
_values: Final = attrgetter(
    "ttl_ms", "priority", "scheduled_ms", "partition_key", "via_partition_key", "correlation_id",
    "session_id", "reply_to_session_id", "content_type", "label", "to", "reply_to", "properties",
    "is_ping",
)  # fmt: skip
_twins: dict[bytes, Twin] = {}


def _remember(head: bytes, tidy: bytes, message: AmqpMessage) -> None:
    if message.content_type == PING_CONTENT_TYPE:
        return  # whether it is a ping, its body says
    before, _, behind = tidy.partition(str(message.message_id).encode())
    if len(_twins) >= _MOST_TWINS:
        _twins.clear()
    _twins[head] = Twin(head, before, behind, _values(message))


_IDS_AT_ONCE: Final = 32


class Intake:
    """Takes single messages of one sender: most are twins of the one before."""

    __slots__ = ("_id_at", "_ids", "_last", "_random_bits")

    def __init__(self, random_bits: Callable[[int], int]) -> None:
        self._random_bits = random_bits
        self._last: Twin | None = None
        self._ids = ""
        """Made up, 32 letters each, and used up to `_id_at`."""
        self._id_at = 0

    def take(self, payload: bytes) -> ParsedMessage:
        """As `message_of`."""
        last = self._last
        if last is not None:
            at = len(last.head)
            size = len(payload) - at
            # Is it this head and one data section? Then nothing else is in it.
            if size >= _MOST_IN_8:
                opening = _data32(0x0053_75B0, size - 8)
            else:
                opening = _data8(0x0053_75A0, size - 5) if size >= 5 else b"no data"
            if payload.startswith(opening, at) and payload.startswith(last.head):
                id_at = self._id_at
                message_id = self._ids[id_at : id_at + 32]
                if not message_id:
                    bits = self._random_bits(128 * _IDS_AT_ONCE)
                    self._ids = f"{bits:0{32 * _IDS_AT_ONCE}x}"
                    message_id, id_at = self._ids[:32], 0
                self._id_at = id_at + 32
                return last.with_body(payload[at:], message_id)
        message = message_of(_not_empty(payload), self._random_bits)
        self._last = _twins.get(payload[: payload.find(_DATA)])
        return message


# --- application properties -----------------------------------------------------------------------

_FIXED: Final[dict[int, tuple[int, Callable[[bytes, int], tuple[Value, ...]]]]] = {
    code: (Struct(layout).size, Struct(layout).unpack_from)
    for code, layout in (
        (0x50, ">B"), (0x51, ">b"), (0x52, ">B"), (0x53, ">B"), (0x54, ">b"), (0x55, ">b"),
        (0x60, ">H"), (0x61, ">h"), (0x70, ">I"), (0x71, ">i"), (0x80, ">Q"), (0x81, ">q"),
        (0x82, ">d"),
    )
}  # fmt: skip
_CONSTANTS: Final[dict[int, Value]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_COMPOUND: Final = 0xC0
_EMPTY_LIST: Final = 0x45
_plain: Final = _FIXED.get


def _usual_properties(payload: bytes, at: int) -> dict[str, Value] | None:
    """The map at `at`, if all it holds are short strings, numbers and booleans; None for all
    others, right or wrong: the general reader is asked then, which takes three times as long."""
    found: dict[str, Value] = {}
    try:
        if payload[at] == 0xC1:
            left = payload[at + 2]
            end = at + 2 + payload[at + 1]
            at += 3
        else:
            left = _u32(payload, at + 5)[0]
            if left > 2 * MAX_PROPERTY_COUNT:
                return None
            end = at + 5 + _u32(payload, at + 1)[0]
            at += 9
        while left > 0:
            left -= 2
            if payload[at] != 0xA1:
                return None
            start = at + 2
            at = start + payload[at + 1]
            name = payload[start:at].decode()
            code = payload[at]
            if code == 0xA1:
                start = at + 2
                at = start + payload[at + 1]
                found[name] = payload[start:at].decode()
            elif (reader := _plain(code)) is not None:
                found[name] = reader[1](payload, at + 1)[0]
                at += 1 + reader[0]
            elif code in _CONSTANTS:
                found[name] = _CONSTANTS[code]
                at += 1
            elif code == 0x56 and payload[at + 1] < 2:
                found[name] = payload[at + 1] == 1
                at += 2
            else:
                return None
    except (IndexError, StructError, UnicodeDecodeError):
        return None
    return found if at == end and left == 0 else None


def _pairs(payload: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Where each key and each value of the map at `at` starts, and where the value ends."""
    count, at, _ = compound(payload, at)
    for _ in range(count // 2):
        value_at = skip(payload, at)
        end = skip(payload, value_at)
        yield at, value_at, end
        at = end


def _check_simple(payload: bytes, at: int) -> None:
    """Raises if a value of the map at `at` is a list, a map or an array: AMQP 1.0 §3.2.5 allows
    simple types only, and so does Service Bus."""
    for key_at, value_at, _ in _pairs(payload, at):
        code = payload[value_at]
        if code == 0:  # described, as Microsoft's libraries write a URI or a time span
            code = payload[skip(payload, value_at + 1)]
        if code >= _COMPOUND or code == _EMPTY_LIST:
            name = str(decode(payload, key_at)[0])
            raise ArgumentError(
                f"The application property '{name:.80}' is a list, a map or an array: only simple "
                "types are allowed. Put it into the body, or encode it as text."
            )


# --- limits ---------------------------------------------------------------------------------------


def _check_length(name: str, value: MessageId | None, most: int) -> None:
    if isinstance(value, str | bytes) and len(value) > most:
        what = "characters" if isinstance(value, str) else "bytes"
        raise ArgumentError(f"{name} has {len(value)} {what}; at most {most} are allowed.")


def _check_sizes(payload: bytes, starts: list[int]) -> None:
    """The sizes of properties, in a message that is large enough to break them."""
    total = sum(skip(payload, at) - at for at in starts[:5] if at)
    if total <= MAX_PROPERTY_VALUE:
        return
    largest, name = 0, ""
    if starts[4]:
        for key_at, value_at, end in _pairs(payload, starts[4]):
            # A value of this length has a constructor and four bytes for its length.
            if end - value_at - 5 > largest:
                largest, name = end - value_at - 5, str(decode(payload, key_at)[0])
    if largest > MAX_PROPERTY_VALUE:
        raise ArgumentError(
            f"The application property '{name:.80}' has {largest} bytes; "
            f"at most {MAX_PROPERTY_VALUE} are allowed."
        )
    if total > MAX_PROPERTIES:
        hint = f" The largest application property is '{name:.80}' with {largest}." if name else ""
        raise ArgumentError(
            f"The properties and annotations of the message have {total} bytes together; "
            f"at most {MAX_PROPERTIES} are allowed.{hint}"
        )


# --- the tidy message -----------------------------------------------------------------------------


def _in_order(payload: bytes) -> bytes:
    """The message with its sections in the order of §3.2; those of a body keep theirs."""
    found = sorted(sections(payload), key=lambda section: section[0])
    return b"".join(payload[start:end] for _, start, end in found)


def _tidy_opening(message: AmqpMessage, payload: bytes, starts: list[int]) -> tuple[bytes, int]:
    """Header and annotations as they are stored, and where those that were sent end; -1 if they do
    not open the message in the order of §3.2."""
    opening = b""
    end = 0
    start = starts[0]
    if start:
        if start != 3:
            return b"", -1
        end = skip(payload, 3)
        message._fill_header()
        opening = _tidy_header(payload[3:end])
    start = starts[1]
    if start:
        if start != end + 3:
            return b"", -1
        _, end = decode(payload, start)  # nobody else has looked at them yet
        opening += _tidy_annotations(DELIVERY_ANNOTATIONS, payload, start, None)
    start = starts[2]
    if start:
        if start != end + 3:
            return b"", -1
        end = skip(payload, start)
        if payload[start:end] in _EMPTY_MAPS:  # @azure/service-bus always has one
            message.scheduled_ms = message.partition_key = message.via_partition_key = None
            return opening, end
        message._fill_annotations()
        _check_length("PartitionKey", message.partition_key, MAX_PARTITION_KEY)
        _check_length("ViaPartitionKey", message.via_partition_key, MAX_PARTITION_KEY)
        opening += _tidy_annotations(MESSAGE_ANNOTATIONS, payload, start, message)
    return opening, end


@lru_cache(maxsize=256)
def _tidy_header(value: bytes) -> bytes:
    """The header section: as it was sent, but without the delivery count, which is the broker's.

    Kept for the next message: a sender has one or two different headers, and hardly any has ten
    bytes. `AmqpMessage` has checked priority and ttl.
    """
    count, at, end = compound(value, 0)
    fields = []
    for _ in range(count):
        start, at = at, skip(value, at)
        fields.append(value[start:at])
    if at != end:
        raise ProtocolError("The size of a list differs from its contents.")
    for place in (0, 3):
        if place < len(fields) and fields[place][0] not in (0x40, 0x41, 0x42, 0x56):
            raise ProtocolError("The header's durable or first-acquirer is not a boolean.")
    return encode_composite(HEADER, fields[:4]) if any(it != NULL for it in fields[:4]) else b""


def _tidy_annotations(section: int, payload: bytes, at: int, message: AmqpMessage | None) -> bytes:
    """The annotations at `at` without the broker's. Those of the message that the broker reads get
    the type that a receiver expects: azure-servicebus sends a string back as binary, and a
    timestamp as an integer."""
    items: list[bytes] = []
    for key_at, value_at, end in _pairs(payload, at):
        name = payload[key_at + (2 if payload[key_at] < 0xB0 else 5) : value_at]
        if name in _BROKERS:
            continue
        value: bytes | None = payload[value_at:end]
        if message is not None and name in _RIGHT_TYPES and payload[value_at] != _RIGHT_TYPES[name]:
            value = _retyped(name, message)
        if value is not None:
            items += (payload[key_at:value_at], value)
    return encode_described(section, encode_map(items)) if items else b""


def _retyped(name: bytes, message: AmqpMessage) -> bytes | None:
    """None where the message says nothing: a null, or a key that another one overrides."""
    if name == SCHEDULED.encode():
        time = message.scheduled_ms
        return None if time is None else encode_timestamp(time)
    is_via = name == VIA_PARTITION_KEY.encode()
    text = message.via_partition_key if is_via else message.partition_key
    return None if text is None else encode_string(text)


def _with_id(payload: bytes, at: int, place: int, message_id: str) -> bytes:
    """The message with a message id of 32 characters, which it did not have.

    `at` is where its properties are, or 0; `place` is where they have to be. Neither SDK sends a
    message id unless the user gives one, so the lists that they write are edited by hand.
    """
    field = b"\xa1\x20" + message_id.encode()
    if not at:
        return b"".join((payload[:place], b"\x00\x53\x73\xc0\x23\x01", field, payload[place:]))
    code = payload[at]
    if code == 0x45:
        return b"".join((payload[:at], b"\xc0\x23\x01", field, payload[at + 1 :]))
    if code == 0xC0 and payload[at + 2] and payload[at + 1] <= 255 - 33:
        opening = bytes((0xC0, payload[at + 1] + 33, payload[at + 2]))
        return b"".join((payload[:at], opening, field, payload[at + 4 :]))
    if code == 0xD0 and payload[at + 5 : at + 9] != b"\x00\x00\x00\x00":
        size = (_u32(payload, at + 1)[0] + 33).to_bytes(4, "big")
        opening = payload[: at + 1] + size + payload[at + 5 : at + 9]
        return b"".join((opening, field, payload[at + 10 :]))
    return edited(payload, Edits(system={"MessageId": message_id}))
