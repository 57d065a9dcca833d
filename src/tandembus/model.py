"""The words that all parts share: values of a message, what core sees of a message, and edits to
it.

Here live plain values. Behaviour, settings with their ranges (`settings.py`) and anything that
changes do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast
from uuid import UUID

Millis: TypeAlias = int
"""Milliseconds since 1970-01-01 UTC, or a length of time in milliseconds."""

NEVER: Final[Millis] = 0xFFFF_FFFF_FFFF_FFFF
"""Later than any time: "does not expire", "no deadline"."""

new_tuple: Final = cast("Callable[[Any, tuple[Any, ...]], Any]", tuple.__new__)
"""A named tuple of all its fields, without the call of its own constructor: for what is made for
every message."""

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"


class Timestamp(int):
    """A UTC time in milliseconds, told apart from a plain integer."""

    __slots__ = ()


class Duration(int):
    """A length of time in 100 ns ticks (the wire's `com.microsoft:timespan`)."""

    __slots__ = ()


class Symbol(str):
    """An AMQP symbol."""

    __slots__ = ()


# The integers, the float and the text that Python has no type for. They compare and hash as numbers
# and texts; what is written again with the type that it had keeps its class.


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    __slots__ = ()


class Float(float):
    """A single-precision float."""

    __slots__ = ()


class Char(str):
    """One Unicode character, told apart from a string."""

    __slots__ = ()


class Described(NamedTuple):
    """A value with its descriptor: a ulong or a symbol, AMQP reserves all others (§1.2)."""

    descriptor: int | Symbol
    value: object


class Secret(str):
    """A key. Shows itself to nobody by accident."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __format__(self, spec: str) -> str:
        return "***"


Value: TypeAlias = (
    None
    | bool
    | int
    | float
    | str
    | bytes
    | Decimal
    | UUID
    | Timestamp
    | Duration
    | Symbol
    | Described
)
"""What an application property can hold. Nested values are kept in the payload, never looked at."""

_TICKS_AT_1970: Final = 621_355_968_000_000_000
_TICKS_PER_MS: Final = 10_000


def as_compared(value: Value) -> Value:
    """The value as filters see it: an integer is an integer, and of the described types that
    Microsoft's libraries write a URI is a text and a time with an offset is a time."""
    kind = type(value)
    if kind is Described:
        assert isinstance(value, Described)
        inner = value.value
        if value.descriptor == "com.microsoft:uri" and isinstance(inner, str):
            return str(inner)
        if value.descriptor == "com.microsoft:datetime-offset" and isinstance(inner, int):
            return Timestamp((inner - _TICKS_AT_1970) // _TICKS_PER_MS)
        return None
    if kind in _COMPARED:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return str(value) if isinstance(value, str) else value


_COMPARED: Final = frozenset(
    (type(None), bool, int, float, str, bytes, Decimal, UUID, Timestamp, Duration, Symbol)
)

MessageId: TypeAlias = str | int | bytes | UUID


class LargePayload:
    """An encoded message whose body is stored in pieces, which came before the message was whole.

    Its length is that of the whole message, like that of `bytes`.
    """

    __slots__ = ("body_bytes", "head", "is_joined", "pieces", "skip")

    def __init__(
        self, head: bytes, pieces: Sequence[tuple[int, int]], skip: int, body_bytes: int
    ) -> None:
        self.head = head
        """The sections before the body, tidy as every stored message."""
        self.pieces = pieces
        """The number and the length of each piece."""
        self.skip = skip
        """Bytes of the first piece that come before the body."""
        self.body_bytes = body_bytes
        """The body with all that follows it. What the last piece has beyond is no part of it."""
        self.is_joined = False
        """Whether a stored message has these pieces; if not, whoever stored them drops them."""

    def __len__(self) -> int:
        return len(self.head) + self.body_bytes


Payload: TypeAlias = bytes | LargePayload
"""An encoded message: in one piece, or in several."""


class Message(Protocol):
    """What core may ask of a message. The body is inside `payload`, and core never looks there.

    An implementation parses lazily: a plain queue asks for the first group only.
    """

    @property
    def payload(self) -> Payload: ...
    @property
    def ttl_ms(self) -> Millis | None: ...
    @property
    def scheduled_ms(self) -> Millis | None: ...
    @property
    def is_ping(self) -> bool:
        """Whether it only asks if the entity would take a message: it is never stored (N8)."""
        ...

    # sessions, duplicate detection, partitions, priorities
    @property
    def message_id(self) -> MessageId | None: ...
    @property
    def session_id(self) -> str | None: ...
    @property
    def partition_key(self) -> str | None: ...
    @property
    def priority(self) -> int | None: ...

    # rules
    @property
    def correlation_id(self) -> MessageId | None: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def label(self) -> str | None: ...
    @property
    def to(self) -> str | None: ...
    @property
    def reply_to(self) -> str | None: ...
    @property
    def reply_to_session_id(self) -> str | None: ...
    @property
    def via_partition_key(self) -> str | None: ...
    @property
    def properties(self) -> Mapping[str, Value]: ...


@dataclass(frozen=True, slots=True)
class Edits:
    """What the broker changes on a message after it was stored: dead-letter reasons, properties to
    modify, rule actions. Laid over the stored bytes when the message is handed out."""

    properties: Mapping[str, Value] = field(default_factory=dict)
    """Application properties to set."""
    removed: frozenset[str] = frozenset()
    """Application properties to take away."""
    system: Mapping[str, Value] = field(default_factory=dict)
    """System properties to set, by their Service Bus name (`Label`, `SessionId`, …); None
    clears."""

    def then(self, later: Edits) -> Edits:
        """This, and `later` on top of it."""
        properties = {k: v for k, v in self.properties.items() if k not in later.removed}
        properties.update(later.properties)
        removed = self.removed.difference(later.properties) | later.removed
        return Edits(properties, removed, {**self.system, **later.system})

    def __bool__(self) -> bool:
        return bool(self.properties or self.removed or self.system)


NO_EDITS: Final = Edits()
