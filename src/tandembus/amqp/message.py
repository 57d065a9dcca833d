"""Message sections (AMQP 1.0 §3.2): where they are, what core asks of them, and edits to them.

Here live `sections`, the lazy `AmqpMessage`, a plain encoder, and `edited`. What the broker writes
on delivery (delivery count, sequence number, lock) and what a property causes do not live here.

The rule: the sender's bytes are the message. They are walked once, section by section; a section is
parsed only if somebody asks, and an edit replaces exactly the elements that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from tandembus.amqp.types import (
    NULL,
    Buffer,
    Described,
    compound,
    decode,
    decode_descriptor,
    encode,
    encode_binary,
    encode_boolean,
    encode_composite,
    encode_described,
    encode_list,
    encode_map,
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_ubyte,
    encode_uint,
    encode_ulong,
    encode_uuid,
    skip,
)
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.limits import MAX_DURATION_MS, MAX_NODES_PER_FRAME, MAX_SECTIONS
from tandembus.model import (
    PING_CONTENT_TYPE,
    Duration,
    Edits,
    MessageId,
    Millis,
    Symbol,
    Timestamp,
    Value,
    as_compared,
)

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
PARTITION_KEY: Final = "x-opt-partition-key"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"

_SYMBOLIC: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}

_LISTS: Final = b"\x45\xc0\xd0"
_MAPS: Final = b"\xc1\xd1"
_BINARIES: Final = b"\xa0\xb0"
_CONTENTS: Final = {
    HEADER: _LISTS, DELIVERY_ANNOTATIONS: _MAPS, MESSAGE_ANNOTATIONS: _MAPS, PROPERTIES: _LISTS,
    APPLICATION_PROPERTIES: _MAPS, DATA: _BINARIES, SEQUENCE: _LISTS, FOOTER: _MAPS,
}  # fmt: skip

# A second section of the first kind is refused if one of the second kinds came before it: all are
# unique, but data and sequence may repeat themselves, and a body is of one kind. (§3.2)
_BODY: Final = 1 << DATA | 1 << SEQUENCE | 1 << VALUE
_EXCLUDES: Final = {code: 1 << code for code in range(HEADER, FOOTER + 1)}
_EXCLUDES[DATA] = 1 << SEQUENCE | 1 << VALUE
_EXCLUDES[SEQUENCE] = 1 << DATA | 1 << VALUE
_EXCLUDES[VALUE] = _BODY


def sections(payload: Buffer, *, most: int = MAX_SECTIONS) -> list[tuple[int, int, int]]:
    """(descriptor code, start, end) of each section of an encoded message, in the order received.

    Any order is accepted (azure-servicebus puts delivery-annotations last), but every section must
    be known, hold the right kind of value, and not be there twice. `most` are allowed for the body;
    the others do not count, so that what the broker adds never makes a message unreadable.
    """
    found: list[tuple[int, int, int]] = []
    seen = 0
    at = 0
    size = len(payload)
    while at < size:
        if len(found) >= most and len(found) - (seen & ~_BODY).bit_count() >= most:
            raise ProtocolError(f"A message has more than {most} sections.")
        code, value_at = section_at(payload, at)
        end = skip(payload, value_at)
        seen = with_section(seen, code, payload[value_at])
        found.append((code, at, end))
        at = end
    return found


def with_section(seen: int, code: int, constructor: int) -> int:
    """The sections `seen`, and one more. Raises if it does not go with them, or holds a value of
    another type than it must."""
    if code != VALUE and constructor not in _CONTENTS[code]:
        raise ProtocolError(f"Section 0x{code:02x} holds the wrong type of value.")
    if seen & _EXCLUDES[code]:
        raise ProtocolError(f"Section 0x{code:02x} does not go with an earlier one.")
    return seen | 1 << code


def section_at(payload: Buffer, at: int) -> tuple[int, int]:
    """The descriptor code of the section at `at`, and where its value starts."""
    if payload[at] != 0x00:
        raise ProtocolError("A message section has no descriptor.")
    descriptor, value_at = decode_descriptor(payload, at + 1)
    # Matched whole: a prefix that passed for the name has been an attack (CVE-2026-67416).
    code = _SYMBOLIC.get(descriptor, 0) if isinstance(descriptor, str) else descriptor
    if not HEADER <= code <= FOOTER:
        raise ProtocolError("A message section has an unknown descriptor.")
    return code, value_at


def without_body(message: bytes) -> bytes:
    """The other sections."""
    return b"".join(
        message[start:end]
        for code, start, end in sections(message)
        if code not in (DATA, SEQUENCE, VALUE)
    )


def batch_messages(payload: bytes) -> list[bytes]:
    """The encoded messages inside a batch envelope, in order; its own sections mean nothing."""
    messages = []
    for code, start, end in sections(payload, most=len(payload)):
        if code == DATA:
            value_at = section_at(payload, start)[1]
            messages.append(payload[value_at + (2 if payload[value_at] == 0xA0 else 5) : end])
    if not messages:
        raise ProtocolError("A batch holds one message at least, in data sections.")
    return messages


# --- reading --------------------------------------------------------------------------------------

# The first four bytes of a section as nearly every client writes it, to its slot in `_starts` plus
# the width of its length: one lookup checks descriptor and type. The kinds of body share a slot.
_LENGTH32: Final = 8
_LENGTH0: Final = 16
_SLOTS: Final = {code: min(code - HEADER, 5) for code in range(HEADER, FOOTER)} | {FOOTER: 6}
_WIDTHS: Final = {0x4: _LENGTH0, 0xA: 0, 0xC: 0, 0xB: _LENGTH32, 0xD: _LENGTH32}


def _usual_openings() -> dict[bytes, int]:
    openings = {}
    for code, slot in _SLOTS.items():
        for constructor in _CONTENTS.get(code, b"\x45\xa0\xa1\xb0\xb1\xc0\xc1\xd0\xd1"):
            opening = bytes((0x00, 0x53, code, constructor))
            openings[opening] = slot + _WIDTHS[constructor >> 4]
    return openings


_opening: Final = _usual_openings().get
_u32: Final = Struct(">I").unpack_from

_SIMPLE: Final = frozenset(Value.__args__) - {Described}
"""As filters see values; what is described is looked into (`as_compared`)."""
_TEXT_FIELDS: Final = (2, 3, 4, 6, 10, 12)
_PING_MARK: Final = PING_CONTENT_TYPE.encode()
_PING_WITHIN: Final = 4_096
"""A ping is empty: its content type stands near the start."""


class ParsedMessage:
    """One encoded message, as core sees it (`model.Message`), all of it parsed."""

    __slots__ = (
        "content_type", "correlation_id", "is_ping", "label", "message_id", "partition_key",
        "payload", "priority", "properties", "reply_to", "reply_to_session_id", "scheduled_ms",
        "session_id", "to", "ttl_ms", "via_partition_key",
    )  # fmt: skip

    payload: bytes
    ttl_ms: Millis | None
    priority: int | None
    scheduled_ms: Millis | None
    partition_key: str | None
    via_partition_key: str | None
    message_id: MessageId | None
    correlation_id: MessageId | None
    session_id: str | None
    reply_to_session_id: str | None
    content_type: str | None
    is_ping: bool
    label: str | None
    to: str | None
    reply_to: str | None
    properties: Mapping[str, Value]
    """Application properties. A nested or unknown described value appears as its encoded bytes."""


class AmqpMessage(ParsedMessage):
    """One encoded message that is parsed when it is asked.

    Construction finds the borders of the sections and refuses what `sections` refuses. The rest is
    parsed by groups on first use and then kept: header, annotations, properties, application
    properties. Contents that break the standard raise `ProtocolError` at that first use; `check`
    brings that moment forward, so that nothing raises later.

    `payload` is the bytes as received, with one exception: section descriptors in a long or
    symbolic form become `00 53 xx`, because azure-servicebus cannot read any other.
    """

    __slots__ = ("_starts",)

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        starts = [0] * 7
        at = 0
        size = len(payload)
        try:
            while at < size:
                slot = _opening(payload[at : at + 4])
                if slot is None:
                    starts = self._walk()
                    break
                if slot < _LENGTH32:
                    end = at + 5 + payload[at + 4]
                elif slot < _LENGTH0:
                    slot -= _LENGTH32
                    end = at + 8 + _u32(payload, at + 4)[0]
                else:
                    slot -= _LENGTH0
                    end = at + 4
                if starts[slot]:
                    starts = self._walk()
                    break
                starts[slot] = at + 3
                at = end
            else:
                if at != size:
                    raise ProtocolError("A message section is longer than the message.")
        except (IndexError, StructError):
            raise ProtocolError("A message ends inside a section.") from None
        self._starts = starts
        # Most messages have neither, and a plain queue asks for both: no parsing, not even a call.
        if not starts[0]:
            self.ttl_ms = self.priority = None
        if not starts[2]:
            self.scheduled_ms = self.partition_key = self.via_partition_key = None

    def _walk(self) -> list[int]:
        """Starts of the section values, for a message that is not of the usual shape."""
        payload = self.payload
        found = sections(payload)
        parts = []
        for code, start, end in found:
            value_at = section_at(payload, start)[1]
            parts.append(b"\x00\x53" + bytes((code,)) + payload[value_at:end])
        self.payload = payload = b"".join(parts)
        starts = [0] * 7
        at = 0
        for (code, _, _), part in zip(found, parts, strict=True):
            slot = _SLOTS[code]
            starts[slot] = starts[slot] or at + 3
            at += len(part)
        return starts

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Reached only while the slot of `name` is empty; filling it makes the next one plain.
            fill = _GROUPS.get(name)
            if fill is None:
                raise AttributeError(name)
            fill(self)
            return getattr(self, name)

    def check(self) -> None:
        """Parse all that is not parsed yet; after this no attribute raises."""
        for name in ("ttl_ms", "scheduled_ms", "message_id", "properties"):
            getattr(self, name)

    def _fill_header(self) -> None:
        fields = _fields(self.payload, self._starts[0], 5)
        priority, ttl = fields[1], fields[2]
        if not (priority is None or type(priority) is int) or not (ttl is None or type(ttl) is int):
            raise ProtocolError("The header's priority or ttl is not a number.")
        if (priority is not None and not 0 <= priority < 256) or (ttl is not None and ttl < 0):
            raise ProtocolError("The header's priority or ttl is out of range.")
        if ttl == _LONGEST_TTL:
            ttl = self._long_ttl() or ttl
        self.priority, self.ttl_ms = priority, ttl

    def _long_ttl(self) -> Millis | None:
        """A time to live that the header has no room for, as .NET writes it."""
        if not self._starts[3]:
            return None
        fields = _fields(self.payload, self._starts[3], 13)
        ends, begins = fields[8], fields[9]
        if type(ends) is Timestamp and type(begins) is Timestamp and ends - begins > _LONGEST_TTL:
            return min(ends - begins, MAX_DURATION_MS)
        return None

    def _fill_annotations(self) -> None:
        annotations, _ = decode(self.payload, self._starts[2])
        assert isinstance(annotations, dict)
        scheduled = annotations.get(SCHEDULED)
        # azure-servicebus writes back as a long what it received as a timestamp.
        if scheduled is not None and (
            not isinstance(scheduled, int) or isinstance(scheduled, bool)
        ):
            raise ProtocolError(f"{SCHEDULED} is not a timestamp.")
        self.scheduled_ms = None if scheduled is None else int(scheduled)
        self.partition_key = _text(annotations.get(PARTITION_KEY))
        self.via_partition_key = _text(annotations.get(VIA_PARTITION_KEY))

    def _fill_properties(self) -> None:
        start = self._starts[3]
        fields: list[object] = _fields(self.payload, start, 13) if start else [None] * 13
        for at in _TEXT_FIELDS:
            value = fields[at]
            if value is not None and type(value) is not str:
                fields[at] = _text(value)
        self.message_id = _message_id(fields[0])
        self.correlation_id = _message_id(fields[5])
        texts = cast("list[str | None]", fields)
        self.to, self.label, self.reply_to = texts[2], texts[3], texts[4]
        self.content_type = texts[6]
        self.is_ping = texts[6] == PING_CONTENT_TYPE and self._is_empty()
        self.session_id, self.reply_to_session_id = texts[10], texts[12]

    def _is_empty(self) -> bool:
        """Whether it has no body, or one without a byte."""
        bodies = [start for code, start, _ in sections(self.payload) if _SLOTS[code] == 5]
        if not bodies:
            return True
        at = bodies[0] + 3
        is_empty = self.payload[at : at + 2] in _NO_BYTES or self.payload[at] == 0x40
        return is_empty and len(bodies) == 1

    def _fill_is_ping(self) -> None:
        """Looking for the bytes first saves nearly all from being parsed."""
        self.is_ping = False
        if self.payload.find(_PING_MARK, 0, _PING_WITHIN) >= 0:
            self._fill_properties()

    def _fill_application_properties(self) -> None:
        if not self._starts[4]:
            self.properties = {}
            return
        found, _ = decode(self.payload, self._starts[4])
        assert isinstance(found, dict)
        for name, value in found.items():
            if type(name) is not str or type(value) not in _SIMPLE:
                found = _simplified(self.payload, self._starts[4])
                break
        self.properties = found


_GROUPS: Final[dict[str, Callable[[AmqpMessage], None]]] = {
    **dict.fromkeys(("ttl_ms", "priority"), AmqpMessage._fill_header),
    **dict.fromkeys(
        ("scheduled_ms", "partition_key", "via_partition_key"), AmqpMessage._fill_annotations
    ),
    **dict.fromkeys(
        (
            "message_id",
            "to",
            "label",
            "reply_to",
            "correlation_id",
            "content_type",
            "session_id",
            "reply_to_session_id",
        ),
        AmqpMessage._fill_properties,
    ),
    "is_ping": AmqpMessage._fill_is_ping,
    "properties": AmqpMessage._fill_application_properties,
}


def _fields(payload: bytes, at: int, most: int) -> list[object]:
    """The fields of a header or properties list, with the ones left out at the end as None.

    On the way of every message, so the usual types are read here; `decode` knows the others.
    """
    fields: list[object] = [None] * most
    try:
        if payload[at] == 0xC0:
            count = payload[at + 2]
            end = at + 2 + payload[at + 1]
            at += 3
        else:
            count, at, end = compound(payload, at)
        if count > most:
            raise ProtocolError("A header or properties section has too many fields.")
        for place in range(count):
            code = payload[at]
            if code == 0x40:
                at += 1
            elif code == 0xA1:
                start = at + 2
                at = start + payload[at + 1]
                fields[place] = payload[start:at].decode()
            elif code == 0xA3:
                start = at + 2
                at = start + payload[at + 1]
                fields[place] = payload[start:at].decode("ascii")
            elif code == 0x50 or code == 0x52:
                fields[place] = payload[at + 1]
                at += 2
            elif code == 0x70:
                fields[place] = _u32(payload, at + 1)[0]
                at += 5
            else:
                fields[place], at = decode(payload, at)
    except UnicodeDecodeError:
        raise ProtocolError("A string is not UTF-8, or a symbol not ASCII.") from None
    except (IndexError, StructError):
        raise ProtocolError("A message ends inside a section.") from None
    if at != end:
        raise ProtocolError("The size of a list differs from its contents.")
    return fields


def _text(value: object) -> str | None:
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        # azure-servicebus writes back as binary what it received as a string.
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    raise ProtocolError("A property that must be text is not.")


def _message_id(value: object) -> MessageId | None:
    if value is None or type(value) is str:
        return value
    if type(value) is int or isinstance(value, UUID | bytes):
        return value
    if isinstance(value, Symbol):
        return str(value)
    raise ProtocolError("A message id is none of string, ulong, uuid and binary.")


_TICKS_PER_MS: Final = 10_000


def _simplified(payload: bytes, at: int) -> dict[str, Value]:
    """Application properties, when a key is a symbol or a value is not simple."""
    properties: dict[str, Value] = {}
    count, at, end = compound(payload, at)
    for _ in range(count // 2):
        key, value_at = decode(payload, at)
        value, at = decode(payload, value_at)
        if not isinstance(key, str):
            raise ProtocolError("The name of an application property is not a string.")
        if isinstance(value, Described):
            value = as_compared(value)
            if value is None:
                value = payload[value_at:at]
        if type(value) not in _SIMPLE:
            value = payload[value_at:at]
        properties[str(key)] = value  # type: ignore[assignment]
    assert at == end, "decode has checked the size of the whole map"
    return properties


# --- writing --------------------------------------------------------------------------------------


def encode_message(
    *,
    body: bytes | str | None = b"",
    message_id: MessageId | None = None,
    correlation_id: MessageId | None = None,
    session_id: str | None = None,
    reply_to_session_id: str | None = None,
    content_type: str | None = None,
    label: str | None = None,
    to: str | None = None,
    reply_to: str | None = None,
    properties: Mapping[str, Value] | None = None,
    ttl_ms: Millis | None = None,
    priority: int | None = None,
    durable: bool | None = None,
    scheduled_ms: Millis | None = None,
    partition_key: str | None = None,
    via_partition_key: str | None = None,
    annotations: Mapping[str, object] | None = None,
) -> bytes:
    """One message. Bytes or text become one data section, as in the SDKs; None gives no body."""
    parts = []
    if ttl_ms is not None or priority is not None or durable is not None:
        header = [
            NULL if durable is None else encode_boolean(durable),
            NULL if priority is None else encode_ubyte(priority),
            _encode_ttl(ttl_ms),
        ]
        parts.append(encode_composite(HEADER, header))
    marks: dict[str, object] = dict(annotations or {})
    for name, value in (
        (SCHEDULED, None if scheduled_ms is None else Timestamp(scheduled_ms)),
        (PARTITION_KEY, partition_key),
        (VIA_PARTITION_KEY, via_partition_key),
    ):
        if value is not None:
            marks[name] = value
    if marks:
        parts.append(encode_described(MESSAGE_ANNOTATIONS, _encode_pairs(marks, encode_symbol)))
    fields = [NULL] * 13
    for at, identifier in ((0, message_id), (5, correlation_id)):
        fields[at] = _encode_id(identifier)
    for at, text in ((2, to), (3, label), (4, reply_to), (10, session_id)):
        fields[at] = _encode_text(text)
    fields[6] = NULL if content_type is None else encode_symbol(content_type)
    fields[12] = _encode_text(reply_to_session_id)
    if any(field != NULL for field in fields):
        parts.append(encode_composite(PROPERTIES, fields))
    if properties:
        pairs = _encode_pairs(properties, encode_string)
        parts.append(encode_described(APPLICATION_PROPERTIES, pairs))
    if body is not None:
        raw = body.encode() if isinstance(body, str) else body
        parts.append(encode_described(DATA, encode_binary(raw)))
    return b"".join(parts)


def _encode_pairs(pairs: Mapping[str, object], encode_key: Callable[[str], bytes]) -> bytes:
    return encode_map([part for key, it in pairs.items() for part in (encode_key(key), encode(it))])


def _encode_text(value: Value) -> bytes:
    if value is None:
        return NULL
    return encode_string(value if isinstance(value, str) else str(value))


def _encode_content_type(value: Value) -> bytes:
    return NULL if value is None else encode_symbol(str(value))


def _encode_id(value: Value) -> bytes:
    """A message id keeps its type: duplicate detection tells a uuid from its text. (§3.2.11)"""
    match value:
        case None:
            return NULL
        case UUID():
            return encode_uuid(value)
        case bytes():
            return encode_binary(value)
        case int() if type(value) is int:
            return encode_ulong(value)
        case _:
            return encode_string(str(value))


def _encode_ttl(value: Value) -> bytes:
    if value is None:
        return NULL
    if not isinstance(value, int) or isinstance(value, bool | Timestamp) or value < 0:
        raise ArgumentError("TimeToLive must be a length of time.")
    if isinstance(value, Duration):
        value //= _TICKS_PER_MS
    # The header has room for 49 days; the largest value stands for all longer ones.
    return encode_uint(min(int(value), 0xFFFF_FFFF))


def _encode_time(value: Value) -> bytes:
    if not isinstance(value, int) or isinstance(value, bool | Duration):
        raise ArgumentError("ScheduledEnqueueTimeUtc must be a time.")
    return encode_timestamp(value)


_FieldEncoder = Callable[[Value], bytes]

# System property: its section, its place there, its type.
_HEADER_FIELDS: Final[dict[str, tuple[int, _FieldEncoder]]] = {"TimeToLive": (2, _encode_ttl)}
_PROPERTY_FIELDS: Final[dict[str, tuple[int, _FieldEncoder]]] = {
    "MessageId": (0, _encode_id),
    "To": (2, _encode_text),
    "Label": (3, _encode_text),
    "ReplyTo": (4, _encode_text),
    "CorrelationId": (5, _encode_id),
    "ContentType": (6, _encode_content_type),
    "SessionId": (10, _encode_text),
    "ReplyToSessionId": (12, _encode_text),
}
_ANNOTATION_KEYS: Final[dict[str, tuple[str, _FieldEncoder]]] = {
    "PartitionKey": (PARTITION_KEY, _encode_text),
    "ScheduledEnqueueTimeUtc": (SCHEDULED, _encode_time),
}


_NO_BYTES: Final = (b"\xa0\x00", b"\xa1\x00")
_LONGEST_TTL: Final = 0xFFFF_FFFF
"""Milliseconds, 49.7 days: the header has room for no more."""


def with_lifetime(payload: bytes, begins: Millis, ends: Millis) -> bytes:
    """The message with these creation-time and absolute-expiry-time."""
    parts = [(code, payload[start:end]) for code, start, end in sections(payload)]
    fields = {8: encode_timestamp(ends), 9: encode_timestamp(begins)}
    _edit_section(parts, PROPERTIES, lambda old: _edited_list(old, fields))
    return b"".join(part for _, part in parts)


def edited(payload: bytes, edits: Edits) -> bytes:
    """`payload` with `edits` laid over it.

    Elements that no edit names, and whole sections that none touches, keep their bytes. Raises
    `ArgumentError` for a value that its place cannot hold: whoever accepts edits from a peer or a
    rule calls this once at that time, so that it cannot happen on delivery.
    """
    header: dict[int, bytes] = {}
    fields: dict[int, bytes] = {}
    annotations: dict[str, bytes | None] = {}
    for name, value in edits.system.items():
        if name in _HEADER_FIELDS:
            place, write = _HEADER_FIELDS[name]
            header[place] = write(value)
        elif name in _PROPERTY_FIELDS:
            place, write = _PROPERTY_FIELDS[name]
            fields[place] = write(value)
        elif name in _ANNOTATION_KEYS:
            key, write = _ANNOTATION_KEYS[name]
            annotations[key] = None if value is None else write(value)
        else:
            raise ArgumentError(f"The system property '{name}' cannot be changed.")
    properties: dict[str, bytes | None] = dict.fromkeys(edits.removed)
    properties.update((name, encode(value)) for name, value in edits.properties.items())

    parts = [(code, payload[start:end]) for code, start, end in sections(payload)]
    if header:
        _edit_section(parts, HEADER, lambda old: _edited_list(old, header))
    if annotations:
        _edit_section(
            parts, MESSAGE_ANNOTATIONS, lambda old: _edited_map(old, annotations, encode_symbol)
        )
    if fields:
        _edit_section(parts, PROPERTIES, lambda old: _edited_list(old, fields))
    if properties:
        _edit_section(
            parts, APPLICATION_PROPERTIES, lambda old: _edited_map(old, properties, encode_string)
        )
    return b"".join(part for _, part in parts)


def _edit_section(
    parts: list[tuple[int, bytes]], code: int, edit: Callable[[bytes], bytes]
) -> None:
    """Replace the value of one section, or put the section where the standard wants it (§3.2).

    `edit` gets the old value, or nothing, and gives the new one; nothing takes the section away.
    """
    place = next((i for i, (other, _) in enumerate(parts) if other == code), -1)
    if place >= 0:
        _, part = parts.pop(place)
        value = edit(part[section_at(part, 0)[1] :])
    else:
        place = next((i for i, (other, _) in enumerate(parts) if other > code), len(parts))
        value = edit(b"")
    if value:
        parts.insert(place, (code, encode_described(code, value)))


def _edited_list(old: bytes, changes: Mapping[int, bytes]) -> bytes:
    fields: list[bytes] = []
    if old:
        count, at, end = compound(old, 0)
        for _ in range(count):
            start, at = at, skip(old, at)
            fields.append(old[start:at])
        if at != end:
            raise ProtocolError("The size of a list differs from its contents.")
    fields += [NULL] * (max(changes) + 1 - len(fields))
    for place, field in changes.items():
        fields[place] = field
    while fields and fields[-1] == NULL:
        fields.pop()
    return encode_list(fields) if fields or old else b""


def _edited_map(
    old: bytes, changes: Mapping[str, bytes | None], encode_key: Callable[[str], bytes]
) -> bytes:
    """The map with some values set, or with None removed; pairs stay in their order."""
    to_write = {key: value for key, value in changes.items() if value is not None}
    pairs: list[bytes] = []
    if old:
        count, at, end = compound(old, 0)
        for _ in range(count // 2):
            start = at
            key, value_at = decode(old, at)
            at = skip(old, value_at)
            if not isinstance(key, str) or key not in changes:
                pairs += (old[start:value_at], old[value_at:at])
            elif key in to_write:
                pairs += (old[start:value_at], to_write.pop(key))
        if at != end:
            raise ProtocolError("The size of a map differs from its contents.")
    for name, value in to_write.items():
        pairs += (encode_key(name), value)
    if len(pairs) > MAX_NODES_PER_FRAME:
        raise ArgumentError("A message has too many properties.")
    return encode_map(pairs) if pairs else b""
