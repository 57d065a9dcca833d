"""Pages of messages as Arrow batches, and values of properties as text. No Spark, only Arrow.

The rule: what is not asked for is not parsed, and what cannot be parsed is null, never an error:
one strange message does not stop a job. `property_types` says of what type a property was whose
value is not text, so that a message that is written again is the same.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from tandembus.amqp.message import DATA, VALUE, AmqpMessage, sections
from tandembus.amqp.types import decode
from tandembus.client.positions import Page
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.model import Described, Duration, Symbol, Timestamp, Value, as_compared
from tandembus.spark.columns import BODIES, BY_NAME

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": _TEXTS,
}
_OF_PAGE: Final = ("entity", "sequence_number", "enqueued_time", "delivery_count", "state", "size")
_STATES: Final = ("active", "deferred", "scheduled")


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Exactly what Spark expects of the first batch: it compares."""
    return pa.schema([pa.field(name, _TYPES[BY_NAME[name].type]) for name in names])


def fields_for(names: Sequence[str]) -> str:
    """How much of each message has to travel for these columns."""
    if all(name in _OF_PAGE for name in names):
        return "none"
    return "all" if any(name in BODIES for name in names) else "properties"


def record_batch(page: Page, entity: str, names: Sequence[str], schema: pa.Schema) -> Any:
    """A page as an Arrow batch."""
    is_bare = fields_for(names) == "none"
    shown = _Shown(page, entity, [] if is_bare else list(map(_message, page.payloads())))
    return pa.RecordBatch.from_arrays([_BUILDERS[name](shown) for name in names], schema=schema)


def _message(payload: bytes) -> AmqpMessage:
    try:
        return AmqpMessage(payload)
    except ProtocolError:
        return AmqpMessage(b"")


class _Shown:
    """A page whose messages are taken apart; what several columns need is worked out once."""

    def __init__(self, page: Page, entity: str, messages: list[AmqpMessage]) -> None:
        self.page = page
        self.entity = entity
        self.messages = messages

    @cached_property
    def bodies(self) -> list[tuple[bytes | None, str | None]]:
        return [body_of(message) for message in self.messages]

    @cached_property
    def properties(self) -> dict[int, Mapping[str, Value]]:
        """By row, of those that have any."""
        found: dict[int, Mapping[str, Value]] = {}
        for row, message in enumerate(self.messages):
            if message._starts[4]:
                with suppress(ProtocolError):  # it has none that can be read
                    found[row] = message.properties
        return found


# --- one column each ------------------------------------------------------------------------------

_Builder = Callable[[_Shown], Any]


def _plain(column: array[int], kind: pa.DataType) -> Any:
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def _enqueued(shown: _Shown) -> Any:
    column = _plain(shown.page.enqueued_ms, pa.timestamp("ms", tz="UTC"))
    return column.cast(_TYPES["timestamp"])


def _field(name: str, kind: pa.DataType, read: Callable[[Any], Any] | None = None) -> _Builder:
    """A column of a field that `AmqpMessage` has."""

    def build(shown: _Shown) -> Any:
        try:
            values = [getattr(message, name) for message in shown.messages]
            if read is not None:
                values = [None if value is None else read(value) for value in values]
            return pa.array(values, kind)
        except (ProtocolError, UnicodeError, pa.ArrowException, OverflowError, TypeError):
            careful = [_careful(message, name, read, kind) for message in shown.messages]
            return pa.array(careful, kind)

    return build


def _careful(
    message: AmqpMessage, name: str, read: Callable[[Any], Any] | None, kind: pa.DataType
) -> Any:
    """The same for one message, and null where it is no such value."""
    try:
        value = getattr(message, name)
        value = value if value is None or read is None else read(value)
        return pa.scalar(_printable(value), kind).as_py()
    except (ProtocolError, pa.ArrowException, OverflowError, TypeError):
        return None


def _printable(value: Any) -> Any:
    """Text without what UTF-8 cannot say."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _identifier(value: Any) -> str:
    if type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _time(value: int) -> int:
    return value * 1_000


def body_of(message: AmqpMessage) -> tuple[bytes | None, str | None]:
    """The body, and of what kind it is: see the column `body_type`."""
    start = message._starts[5]
    payload = message.payload
    if not start:
        return None, None
    code = payload[start - 1]
    if code == DATA:
        begin = start + (2 if payload[start] == 0xA0 else 5)
        end = begin + (
            payload[start + 1]
            if payload[start] == 0xA0
            else int.from_bytes(payload[start + 1 : begin], "big")
        )
        if end == len(payload):
            return payload[begin:], None
    try:
        found = [(each, at, end) for each, at, end in sections(payload) if 0x75 <= each <= 0x77]
        if code == DATA:  # several, or a footer behind it
            cut = [
                payload[at + (5 if payload[at + 3] == 0xA0 else 8) : end] for _, at, end in found
            ]
            return b"".join(cut), None
        if code == VALUE:
            value = decode(payload, start)[0]
            if type(value) is str:
                return value.encode("utf-8", "surrogatepass"), "string"
        return b"".join(payload[at:end] for _, at, end in found), "amqp"
    except ProtocolError:
        return None, None


def _dead(name: str) -> _Builder:
    def build(shown: _Shown) -> Any:
        found = {row: it[name] for row, it in shown.properties.items() if name in it}
        return _sparse(len(shown.page), {row: _text(it) for row, it in found.items()})

    return build


def _dead_source(shown: _Shown) -> Any:
    found = {row: it.system.get("DeadLetterSource") for row, it in shown.page.edits.items()}
    return _sparse(len(shown.page), {row: _text(it) for row, it in found.items()})


def _text(value: Value) -> str | None:
    return None if value is None else str(_printable(str(value)))


def _sparse(count: int, found: Mapping[int, str | None]) -> Any:
    """A column of texts that most rows do not have."""
    if not found:
        return pa.nulls(count, pa.string())
    return pa.array(map(found.get, range(count)), pa.string())


def _properties(shown: _Shown) -> Any:
    found = shown.properties.items()
    pairs = {row: [(key, text_of(value)) for key, value in it.items()] for row, it in found}
    return _map_array(len(shown.page), pairs)


def _property_types(shown: _Shown) -> Any:
    pairs: dict[int, list[tuple[str, str | None]]] = {
        row: [(key, kind) for key, value in it.items() if (kind := type_of(value)) is not None]
        for row, it in shown.properties.items()
    }
    return _map_array(len(shown.page), pairs)


def _map_array(count: int, rows: Mapping[int, list[tuple[str, str | None]]]) -> Any:
    """Maps by their three parts: a list of pairs for each row would take five times as long. A row
    without an entry is null."""
    offsets: list[int | None] = []
    keys: list[str] = []
    values: list[str | None] = []
    for row in range(count):
        pairs = rows.get(row)
        offsets.append(len(keys) if pairs else None)
        for key, value in pairs or ():
            keys.append(_printable(key))
            values.append(_printable(value))
    if not keys:
        return pa.nulls(count, _TEXTS)
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


_BUILDERS: Final[Mapping[str, _Builder]] = {
    "entity": lambda shown: pa.repeat(pa.scalar(shown.entity, pa.string()), len(shown.page)),
    "sequence_number": lambda shown: _plain(shown.page.sequence_numbers, pa.int64()),
    "enqueued_time": _enqueued,
    "message_id": _field("message_id", pa.string(), _identifier),
    "body": lambda shown: pa.array([body for body, _ in shown.bodies], pa.binary()),
    "body_type": lambda shown: pa.array([kind for _, kind in shown.bodies], pa.string()),
    "subject": _field("label", pa.string()),
    "content_type": _field("content_type", pa.string()),
    "correlation_id": _field("correlation_id", pa.string(), _identifier),
    "session_id": _field("session_id", pa.string()),
    "partition_key": _field("partition_key", pa.string()),
    "to": _field("to", pa.string()),
    "reply_to": _field("reply_to", pa.string()),
    "reply_to_session_id": _field("reply_to_session_id", pa.string()),
    "time_to_live_ms": _field("ttl_ms", pa.int64()),
    "scheduled_enqueue_time": _field("scheduled_ms", _TYPES["timestamp"], _time),
    "priority": _field("priority", pa.int32()),
    "delivery_count": lambda shown: _plain(shown.page.delivery_counts, pa.int32()),
    "state": lambda shown: pa.array([_STATES[it] for it in shown.page.states], pa.string()),
    "size": lambda shown: _plain(shown.page.sizes, pa.int32()),
    "dead_letter_reason": _dead("DeadLetterReason"),
    "dead_letter_description": _dead("DeadLetterErrorDescription"),
    "dead_letter_source": _dead_source,
    "properties": _properties,
    "property_types": _property_types,
}


# --- values of properties as text, and back -------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def type_of(value: Value) -> str | None:
    """The word for the type of a value that is not text."""
    match value:
        case Symbol():
            return "symbol"
        case str():
            return None
        case None:
            return "null"
        case bool():
            return "bool"
        case Timestamp():
            return "timestamp"
        case Duration():
            return "duration"
        case int():
            return "int"
        case float():
            return "double"
        case Decimal():
            return "decimal"
        case UUID():
            return "uuid"
        case bytes():
            return "binary"
        case Described():
            return type_of(as_compared(value))


def text_of(value: Value) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case Timestamp():
            try:
                time = _EPOCH + timedelta(milliseconds=int(value))
            except OverflowError:
                return str(int(value))
            return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case bytes():
            return base64.b64encode(value).decode()
        case int() if type(value) is not int:
            return str(int(value))
        case _:
            return str(value)


_READERS: Final[Mapping[str, Callable[[str], Value]]] = {
    "bool": lambda text: {"true": True, "false": False}[text],
    "timestamp": lambda text: Timestamp(
        int(text) if text.lstrip("-").isdecimal() else round(_since_epoch_ms(text))
    ),
    "duration": lambda text: Duration(int(text)),
    "int": int,
    "double": float,
    "decimal": Decimal,
    "uuid": UUID,
    "binary": lambda text: base64.b64decode(text, validate=True),
    "symbol": Symbol,
}


def _since_epoch_ms(text: str) -> float:
    return (datetime.fromisoformat(text) - _EPOCH) / timedelta(milliseconds=1)


def value_of(text: str | None, kind: str | None) -> Value:
    """What `text_of` and `type_of` were made from. Raises ArgumentError."""
    if text is None or kind == "null":
        return None
    if kind is None:
        return text
    try:
        return _READERS[kind](text)
    except KeyError:
        raise ArgumentError(f"'{text:.40}' is no value of type '{kind:.40}'.") from None
    except (ValueError, ArithmeticError, TypeError, binascii.Error):
        raise ArgumentError(f"'{text:.40}' is no value of type '{kind}'.") from None
