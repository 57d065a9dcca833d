"""Requests to `$cbs` and `$management`, and their replies, as values (WIRE.md §2, §7).

Here live the shape of a request, the reading of its arguments, and the encoding of a reply with the
very AMQP types that the SDKs look for. What an operation does is `cbs` and `management`; on which
link a reply goes out is the gateway's affair.

The rule: any bytes become a `Request` or an `ArgumentError`, and an argument of the wrong type is
an `ArgumentError` that names it. Integers, floats and characters keep their AMQP type (`UInt`, …).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from typing import Final, TypeAlias, cast
from uuid import UUID

from tandembus import limits
from tandembus.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, VALUE, sections
from tandembus.amqp.performatives import RETRY_AFTER
from tandembus.amqp.types import (
    NULL,
    Array,
    Char,
    Described,
    UInt,
    ULong,
    ZeroWidthArray,
    compound,
    decode,
    decode_descriptor,
    encode,
    encode_composite,
    encode_described,
    encode_int,
    encode_map,
    encode_string,
    encode_symbol,
    skip,
)
from tandembus.errors import ArgumentError, MessageSizeExceededError, ProtocolError
from tandembus.model import Millis, Timestamp, Value
from tandembus.server.stored import Part, Stream

DEFAULT_TIMEOUT_MS: Final = 60 * limits.SECOND_MS
"""What azure-servicebus asks for when its user says nothing."""
MAX_TIMEOUT_MS: Final = limits.HOUR_MS
_MAX_TRACKING_ID: Final = 64
_MAX_TEXT: Final = 2_000
"""Characters of an error's text, which may repeat what the client has sent."""
_PLACES: Final = 13
"""Fields of a properties section (AMQP 1.0 §3.2.4)."""

Id: TypeAlias = str | ULong | UUID | bytes | None
"""A message id, with its AMQP type (AMQP 1.0 §3.2.11-14)."""

_VALUES: Final = (bool, int, float, str, bytes, Decimal, UUID)
"""The simple values; all others of `model.Value` are subclasses of these."""


@dataclass(frozen=True, slots=True)
class Request:
    operation: str
    message_id: Id
    """What the reply's correlation id must be, in value and type."""
    reply_to: str | None = None
    properties: Mapping[str, object] = field(default_factory=dict)
    """Application properties."""
    body: object = None
    """The value; an `ArgumentError` in its place says that it cannot be read, so that at least a
    reply can be sent."""
    timeout_ms: Millis = DEFAULT_TIMEOUT_MS
    associated_link_name: str | None = None
    tracking_id: str | None = None
    """What the client calls this request in its own log."""

    @property
    def arguments(self) -> Arguments:
        """The body of a $management request. `ArgumentError` if it is not a map."""
        if isinstance(self.body, ArgumentError):
            raise self.body
        return Arguments.of(self.body, "The body of the request")


def parse_request(payload: bytes) -> Request:
    """`ArgumentError` for what is not a request; `MessageSizeExceededError` for one too large."""
    if len(payload) > limits.MAX_MANAGEMENT_REQUEST:
        raise MessageSizeExceededError(
            f"A request has at most {limits.MAX_MANAGEMENT_REQUEST} bytes, not {len(payload)}."
        )
    found: dict[int, object] = {}
    try:
        for code, start, _ in sections(payload):
            if code in (PROPERTIES, APPLICATION_PROPERTIES, VALUE):
                found[code] = _section(payload, start, code)
    except ProtocolError as error:
        raise ArgumentError(f"The request cannot be read: {error}") from None
    fields = cast("list[object]", found.get(PROPERTIES, []))
    if len(fields) > _PLACES:
        raise ArgumentError("The properties of the request have too many fields.")
    fields = fields + [None] * (_PLACES - len(fields))
    # azure-servicebus writes names and texts as strings, rhea too; others use symbols.
    properties = {
        str(name): value
        for name, value in cast(
            "dict[object, object]", found.get(APPLICATION_PROPERTIES, {})
        ).items()
        if isinstance(name, str)
    }
    said = Arguments(properties)
    return Request(
        operation=said.text("operation", ""),
        # A client that correlates by itself leaves the message id out.
        message_id=_id(fields[5] if fields[0] is None else fields[0]),
        reply_to=Arguments({"reply-to": fields[4]}).optional_text("reply-to"),
        properties=properties,
        body=found.get(VALUE),
        timeout_ms=_timeout(said),
        associated_link_name=said.optional_text("associated-link-name"),
        tracking_id=_tracking_id(properties.get("com.microsoft:tracking-id")),
    )


def parse_head(payload: bytes) -> Request:
    """What the beginning of a request says, of which the rest was not kept: who asks, and where the
    reply goes. `ArgumentError` if it does not say that."""
    end = 0
    try:
        while True:
            _, value_at = decode_descriptor(payload, end + 1)
            end = skip(payload, value_at)
    except ProtocolError:
        pass
    return parse_request(payload[:end])


def _section(payload: bytes, start: int, code: int) -> object:
    _, value_at = decode_descriptor(payload, start + 1)
    if code != VALUE:
        return decode(payload, value_at, typed=True)[0]
    try:
        return _body(payload, value_at)
    except ProtocolError as error:
        return ArgumentError(f"The body of the request cannot be read: {error}")
    except ArgumentError as error:
        return error


_MESSAGES: Final = b"messages"
_TEXTS: Final = (0xA1, 0xA3, 0xB1, 0xB3)
_MAPS: Final = (0xC1, 0xD1)
_LISTS: Final = (0xC0, 0xD0)
_MOST_FIELDS: Final = 32
"""Keys and values of one message; no SDK has more than ten."""
_NOT_SIMPLE: Final = (list, dict, Described, ZeroWidthArray)
_u32: Final = Struct(">I").unpack_from


def _body(payload: bytes, at: int) -> object:
    """The value of a body. The list of messages to schedule is read apart from the rest: `decode`
    has a bound for one frame, and these may have more values together."""
    if payload[at] not in _MAPS or _MESSAGES not in payload:
        return decode(payload, at, typed=True)[0]
    count, key_at, end = compound(payload, at)
    parts: list[bytes] = []
    messages_at = -1
    for _ in range(count // 2):
        value_at = skip(payload, key_at)
        value_end = skip(payload, value_at)
        parts.append(payload[key_at:value_at])
        name = payload[key_at + (2 if payload[key_at] < 0xB0 else 5) : value_at]
        if name == _MESSAGES and payload[key_at] in _TEXTS:
            # A key that a map repeats counts with its last value.
            messages_at = value_at if payload[value_at] in _LISTS else -1
        parts.append(NULL if messages_at == value_at else payload[value_at:value_end])
        key_at = value_end
    if key_at != end:
        raise ProtocolError("The size of a compound value differs from its contents.")
    body = decode(encode_map(parts), typed=True)[0]
    assert isinstance(body, dict)
    if messages_at >= 0:
        body[_MESSAGES.decode()] = _messages(payload, messages_at)
    return body


def _messages(payload: bytes, at: int) -> list[object]:
    """The list of maps at `at`, whose values are counted by a bound of their own."""
    if payload[at] == 0xD0 and skip(payload, at) - at >= 9:
        count = _u32(payload, at + 5)[0]
        if count > limits.MAX_REQUEST_MESSAGES:
            raise ArgumentError(
                f"The request has {count} messages; at most {limits.MAX_REQUEST_MESSAGES} are "
                "allowed. Send the others with another request."
            )
    count, at, list_end = compound(payload, at)
    found: list[object] = []
    left = limits.MAX_REQUEST_NODES
    for _ in range(count):
        if at >= list_end:
            raise ProtocolError("A list has fewer elements than it says.")
        if payload[at] not in _MAPS:
            raise ArgumentError("An element of 'messages' is not a map.")
        fields, _, _ = compound(payload, at)
        message, end = decode(payload, at, typed=True)
        assert isinstance(message, dict)
        # Nobody sends a key twice, or a value within a value. A decoder's work for these is not
        # known afterwards, so each byte counts for a value.
        is_plain = 2 * len(message) == fields <= _MOST_FIELDS and not any(
            isinstance(value, _NOT_SIMPLE) for value in message.values()
        )
        left -= 1 + fields if is_plain else end - at
        if left < 0:
            raise ArgumentError(
                "The messages of the request have too many fields: at most "
                f"{limits.MAX_REQUEST_NODES} values are allowed beside their bytes."
            )
        found.append(message)
        at = end
    if at != list_end:
        raise ProtocolError("The size of a compound value differs from its contents.")
    return found


def _id(value: object) -> Id:
    if value is None or isinstance(value, ULong | UUID | bytes):
        return value
    if isinstance(value, str) and not isinstance(value, Char):
        return str(value)
    raise ArgumentError("The message id is none of string, ulong, uuid and binary.")


def _timeout(said: Arguments) -> Millis:
    """Nobody means to wait for nothing: zero is "not said"."""
    asked = said.integer("com.microsoft:server-timeout", DEFAULT_TIMEOUT_MS)
    return min(asked, MAX_TIMEOUT_MS) if asked > 0 else DEFAULT_TIMEOUT_MS


def _tracking_id(value: object) -> str | None:
    """It goes into the log and back to the client, so it must be a harmless word."""
    text = str(value) if isinstance(value, str | UUID) else ""
    is_word = 0 < len(text) <= _MAX_TRACKING_ID and text.isascii()
    return text if is_word and text.translate(_NO_MARKS).isalnum() else None


_NO_MARKS: Final = {ord(mark): None for mark in "-_:."}


# --- arguments ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arguments:
    """A map of a request. An argument that is null counts as one that is not there: rhea writes
    null for what a JavaScript program left undefined."""

    values: Mapping[str, object]

    @staticmethod
    def of(value: object, what: str) -> Arguments:
        if not isinstance(value, dict):
            raise ArgumentError(f"{what} is not a map.")
        return Arguments({str(name): it for name, it in value.items() if isinstance(name, str)})

    def optional_text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bytes):
            # azure-servicebus hands on as binary what it has received as a string.
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise _wrong(name, "text") from None
        if not isinstance(value, str):
            raise _wrong(name, "text")
        return str(value)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.optional_text(name)
        value = default if value is None else value
        if value is None:
            raise _missing(name)
        return value

    def optional_integer(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(name, "a number")
        return int(value)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.optional_integer(name)
        value = default if value is None else value
        if value is None:
            raise _missing(name)
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """A number that is not negative."""
        value = self.integer(name, default)
        if value < 0:
            raise ArgumentError(f"'{name}' is negative.")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise _wrong(name, "a boolean")
        return bool(value)

    def binary(self, name: str) -> bytes:
        value = self.values.get(name)
        if value is None:
            raise _missing(name)
        if not isinstance(value, bytes):
            raise _wrong(name, "binary")
        return value

    def optional_map(self, name: str) -> Arguments | None:
        value = self.values.get(name)
        return None if value is None else Arguments.of(value, f"'{name}'")

    def map(self, name: str) -> Arguments:
        found = self.optional_map(name)
        if found is None:
            raise _missing(name)
        return found

    def items(self, name: str, most: int) -> Sequence[object]:
        """The elements, at least one, of an array or a list."""
        value = self.values.get(name)
        if value is None:
            raise _missing(name)
        if not isinstance(value, list):
            raise _wrong(name, "an array")
        if not 1 <= len(value) <= most:
            raise ArgumentError(f"'{name}' has {len(value)} elements; 1 to {most} are allowed.")
        return value

    def integers(self, name: str, most: int) -> list[int]:
        return [Arguments({name: item}).integer(name) for item in self.items(name, most)]

    def uuids(self, name: str, most: int) -> list[UUID]:
        found: list[UUID] = []
        for item in self.items(name, most):
            if not isinstance(item, UUID):
                raise _wrong(name, "an array of uuids")
            found.append(item)
        return found

    def simple_values(self, name: str) -> dict[str, Value]:
        """A map of values as application properties can have them; empty if it is not there."""
        found = self.optional_map(name)
        if found is None:
            return {}
        if len(found.values) > limits.MAX_PROPERTY_COUNT:
            most = limits.MAX_PROPERTY_COUNT
            raise ArgumentError(f"'{name}' has {len(found.values)} entries; {most} are allowed.")
        size = 0
        for key, value in found.values.items():
            if value is not None and not isinstance(value, _VALUES) and not _is_described(value):
                raise ArgumentError(f"'{key}' in '{name}' is not a simple value.")
            if isinstance(value, str | bytes):
                if len(value) > limits.MAX_PROPERTY_VALUE:
                    raise ArgumentError(f"'{key}' in '{name}' is too long.")
                size += len(value)
            size += len(key)
        if size > limits.MAX_PROPERTIES:
            raise ArgumentError(f"'{name}' has more than {limits.MAX_PROPERTIES} bytes.")
        return cast("dict[str, Value]", dict(found.values))


def _is_described(value: object) -> bool:
    """Whether it is one of the described types that Microsoft's libraries write."""
    return isinstance(value, Described) and (
        (value.descriptor == "com.microsoft:uri" and isinstance(value.value, str))
        or (value.descriptor == "com.microsoft:datetime-offset" and isinstance(value.value, int))
    )


def _wrong(name: str, kind: str) -> ArgumentError:
    return ArgumentError(f"'{name}' is not {kind}.")


def _missing(name: str) -> ArgumentError:
    return ArgumentError(f"'{name}' is missing.")


# --- replies --------------------------------------------------------------------------------------


def reply(
    request: Request,
    status: int,
    description: str,
    body: Mapping[str, object] | None = None,
    condition: str | None = None,
    retry_after_ms: Millis | None = None,
) -> bytes | Stream:
    """The encoded answer of $management. Values of `body` say their AMQP type by their class: see
    `longs`, `timestamps`, `uuids`, `strings`. With a large message in it, it is read when it is
    sent."""
    said = [
        encode_string("statusCode"),
        encode_int(status),
        encode_string("statusDescription"),
        encode_string(description),
    ]
    if condition is not None:
        said += (encode_string("errorCondition"), encode_symbol(condition))
    if retry_after_ms is not None:
        said += (encode_string(RETRY_AFTER), encode(UInt(retry_after_ms)))
    message = _addressed(request) + encode_described(APPLICATION_PROPERTIES, encode_map(said))
    if body is not None and _has_stream(body):
        return Stream([message, b"\x00\x53" + bytes((VALUE,)), *_parts(body)])
    if body is not None:
        message += encode_described(VALUE, encode(dict(body)))
    return message


def _has_stream(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_has_stream(each) for each in value.values())
    return isinstance(value, Stream) or (type(value) is list and any(map(_has_stream, value)))


def _parts(value: object) -> list[Part]:
    """The encoding of a value in which there are large messages, each as a binary."""
    if isinstance(value, Stream):
        return [b"\xb0" + len(value).to_bytes(4, "big"), *value.parts]
    items: list[list[Part]]
    if isinstance(value, Mapping):
        opening = b"\xd1"
        items = [part for key, each in value.items() for part in (_parts(key), _parts(each))]
    elif type(value) is list:
        opening = b"\xd0"
        items = [_parts(each) for each in value]
    else:
        return [encode(value)]
    size = 4 + sum(len(part) for item in items for part in item)
    opening += size.to_bytes(4, "big") + len(items).to_bytes(4, "big")
    return [opening, *(part for item in items for part in item)]


def token_reply(request: Request, status: int, description: str) -> bytes:
    """The encoded answer of $cbs. It has no condition: azure-servicebus takes a reply with any for
    a failure of the link, and shows neither status nor text."""
    said = [
        encode_string("status-code"),
        encode_int(status),
        encode_string("status-description"),
        encode_string(description),
    ]
    return _addressed(request) + encode_described(APPLICATION_PROPERTIES, encode_map(said))


def _addressed(request: Request) -> bytes:
    fields = [NULL] * 6
    fields[2] = encode(request.reply_to)
    fields[5] = encode(request.message_id)
    return encode_composite(PROPERTIES, fields)


def _array_of(code: int, kind: Callable[..., object]) -> Callable[[Sequence[object]], Array]:
    return lambda items: Array(map(kind, items), code)


longs = _array_of(0x81, int)
timestamps = _array_of(0x83, Timestamp)
uuids = _array_of(0x98, lambda item: item)
strings = _array_of(0xA1, str)


def tracking_id_of(request: Request, random_bits: Callable[[int], int]) -> str:
    """The client's own word for the request, so that its log and ours meet, or a new one."""
    return request.tracking_id or str(UUID(int=random_bits(128)))


def tracked(text: str, tracking_id: str, tracker: str, now: Millis) -> str:
    """An error's text with what finds it in the log, as Azure writes it (WIRE.md §8.3)."""
    text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    at = datetime.fromtimestamp(now / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text} TrackingId:{tracking_id}, SystemTracker:{tracker}, Timestamp:{at}"
