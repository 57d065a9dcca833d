"""Every durable fact, as a value. The log is a list of these; core's state is what they add up to.

A *change* is decided by `core` (never elsewhere), written by `engine` through `store.records`, and
played again by `Namespace.replay` after a restart. The reports and the audit are made from the same
records, so a change carries what they need: times, sizes, levels and counts.

The order of the fields is the order on disk (docs/log-format.md): integers first, then `str`, then
`bytes`. To add a fact, add a class here with the next free code and a line in `Namespace.replay`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tandembus.model import (
    NO_EDITS,
    Byte,
    Char,
    Described,
    Duration,
    Edits,
    Float,
    Int,
    Long,
    Millis,
    Payload,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)


class Removal(IntEnum):
    """Why a message left its queue."""

    COMPLETED = 0
    EXPIRED = 1
    CANCELLED = 2
    PURGED = 3
    FORWARDED = 4
    DEAD_LETTERED = 5
    PUBLISHED = 7  # 6 was never written
    """A topic's scheduled message that became due and went to the subscriptions."""


class Return(IntEnum):
    """Why a message came back to its place. All but RELEASED and SESSION_CLOSED count as a
    delivery."""

    ABANDONED = 0
    LOCK_EXPIRED = 1
    RELEASED = 2
    SESSION_CLOSED = 3
    RESTARTED = 4
    SESSION_EXPIRED = 5

    @property
    def is_counted(self) -> bool:
        return self not in (Return.RELEASED, Return.SESSION_CLOSED)


class Mode(IntEnum):
    PEEK_LOCK = 0
    RECEIVE_AND_DELETE = 1


class EntityKind(IntEnum):
    QUEUE = 0
    TOPIC = 1
    SUBSCRIPTION = 2
    DEAD_LETTER = 3
    """A dead-letter queue, or a transfer dead-letter queue."""


TRANSFER_BIT: Final = 0x8000_0000
"""A transfer dead-letter queue has the number of its queue, subscription or topic, and this bit.
It has no record of its own: it is there as long as its entity is."""


class Note(IntEnum):
    """What happened without changing anything: kept for the ledger and the reports."""

    BROWSED = 0
    PINGED = 1
    DUPLICATE_DROPPED = 2
    POLLED = 3
    """A receive, or the wait for a session, that brought nothing."""
    MANAGED = 4
    """A request that only looked (a session's state, an entity's description), and has no other
    record."""
    NO_SUBSCRIPTION = 5
    """A topic took a message that no rule selected."""


class EntityCreated(NamedTuple):
    time: Millis
    entity: int
    kind: int
    parent: int
    """The topic of a subscription, the owner of a dead-letter queue; 0 otherwise."""
    origin: int
    """Sequence numbers start after this one (0 but in tests of the roll-over)."""
    path: str
    settings: str
    """JSON of the settings."""


class EntityUpdated(NamedTuple):
    time: Millis
    entity: int
    settings: str


class EntityDeleted(NamedTuple):
    time: Millis
    entity: int


class RuleAdded(NamedTuple):
    time: Millis
    entity: int
    rule: str
    """JSON of the rule."""


class RuleRemoved(NamedTuple):
    time: Millis
    entity: int
    name: str


class Enqueued(NamedTuple):
    """A message came into a queue: sent, forwarded, dead-lettered, or scheduled."""

    time: Millis
    """The enqueue time (for a scheduled message: when it was scheduled)."""
    entity: int
    sequence_number: int
    body: int
    """The number of the stored body. Copies in several queues share one."""
    state: int
    expires_ms: Millis
    due_ms: Millis
    """When a scheduled message becomes active; 0 otherwise."""
    size: int
    level: int
    hops: int
    delivery_count: int
    """What came along into a dead-letter queue; 0 otherwise."""
    link: int
    session_id: str | None
    duplicate_key: str | None
    edits: bytes | None
    payload: Payload | None
    """The stored bytes; None where `body` was stored by an earlier record. Of a large message the
    record has the head, and a `PiecesJoined` before it says where the rest is."""


class Activated(NamedTuple):
    """A scheduled message became active: a new number, its enqueue time is now."""

    time: Millis
    entity: int
    sequence_number: int
    new_sequence_number: int
    expires_ms: Millis


class Delivered(NamedTuple):
    time: Millis
    entity: int
    link: int
    mode: int
    locked_until_ms: Millis
    rows: bytes
    """`DELIVERED_ROW` per message: sequence number, nonce of the token, size, delivery count,
    level."""


class Renewed(NamedTuple):
    time: Millis
    entity: int
    locked_until_ms: Millis
    sequence_numbers: bytes


class Returned(NamedTuple):
    time: Millis
    entity: int
    reason: int
    edits: bytes | None
    """The edits of the one message that this is about, all of them; None: unchanged."""
    sequence_numbers: bytes


class Deferred(NamedTuple):
    time: Millis
    entity: int
    edits: bytes | None
    sequence_numbers: bytes


class Delayed(NamedTuple):
    """Abandoned with a delay: back in its place at `due_ms`, which a `Reactivated` will say."""

    time: Millis
    entity: int
    reason: int
    """A `Return`: whether it counts as a delivery."""
    due_ms: Millis
    edits: bytes | None
    sequence_numbers: bytes


class Reactivated(NamedTuple):
    """Deferred or delayed messages wait again, each in its place and with its number."""

    time: Millis
    entity: int
    sequence_numbers: bytes


class ScheduleHeld(NamedTuple):
    """Messages that are scheduled in a transaction, with their numbers given at once: `is_held` as
    long as it is open, and none becomes active. A restart cancels those that are held.

    It comes before the `Enqueued` of what is held, so that the id of a held message is not taken
    for one that was accepted: the history of duplicates gets it when the transaction is committed.
    Older logs have it behind; there the `Enqueued` has put the id into the history."""

    time: Millis
    entity: int
    is_held: int
    sequence_numbers: bytes


class Removed(NamedTuple):
    time: Millis
    entity: int
    reason: int
    sequence_numbers: bytes


class SessionLocked(NamedTuple):
    time: Millis
    entity: int
    link: int
    locked_until_ms: Millis
    session_id: str


class SessionUnlocked(NamedTuple):
    time: Millis
    entity: int
    reason: int
    session_id: str


class SessionStateSet(NamedTuple):
    time: Millis
    entity: int
    session_id: str
    state: bytes | None


class LevelChanged(NamedTuple):
    time: Millis
    entity: int
    sequence_number: int
    level: int


class CursorMoved(NamedTuple):
    """A reader of that name has come so far in a partition."""

    time: Millis
    entity: int
    partition: int
    position: int
    retention_ms: Millis
    """How long it holds back what it has not passed; 0: it does not."""
    name: str


class CursorDropped(NamedTuple):
    time: Millis
    entity: int
    name: str


class TapTrimmed(NamedTuple):
    """What was held back before this position is not held back any more."""

    time: Millis
    entity: int
    partition: int
    position: int


class Noted(NamedTuple):
    time: Millis
    entity: int
    note: int
    number: int
    link: int
    text: str | None


class BodyMoved(NamedTuple):
    """Compaction wrote a body again, further on in the log. Changes no queue."""

    body: int
    payload: bytes


class PieceStored(NamedTuple):
    """A part of a message that is still arriving. Changes no queue; one that no message has joined
    by the end of the log is dropped."""

    body: int
    payload: bytes


class PiecesJoined(NamedTuple):
    """The message stored as `body` by the next record is large: its body is in these pieces."""

    body: int
    skip: int
    """Bytes of the first piece that come before the body."""
    body_bytes: int
    pieces: bytes
    """`PIECE_ROW` per piece: number, length."""


class Started(NamedTuple):
    """The broker recovered and serves again. Every lock of its former life ended here."""

    time: Millis
    version: str


Change: TypeAlias = (
    EntityCreated
    | EntityUpdated
    | EntityDeleted
    | RuleAdded
    | RuleRemoved
    | Enqueued
    | Activated
    | Delivered
    | Renewed
    | Returned
    | Deferred
    | Delayed
    | Reactivated
    | ScheduleHeld
    | Removed
    | SessionLocked
    | SessionUnlocked
    | SessionStateSet
    | LevelChanged
    | CursorMoved
    | CursorDropped
    | TapTrimmed
    | Noted
    | BodyMoved
    | PieceStored
    | PiecesJoined
    | Started
)

DELIVERED_ROW: Final = Struct("<QQIIB")
PIECE_ROW: Final = Struct("<QI")

RIDES_ALONG: Final = frozenset({Delivered, Renewed, Noted, SessionLocked})
"""Changes that need no sync of their own: losing one in a crash only means that a lock ends early.
A `Delivered` of receive-and-delete is the exception, see `needs_sync`."""


def needs_sync(change: Change) -> bool:
    """Whether an answer that rests on this change must wait until it is on disk."""
    if type(change) is Delivered:
        return change.mode == Mode.RECEIVE_AND_DELETE
    return type(change) not in RIDES_ALONG


def delivered_rows(rows: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """(sequence number, nonce, size, delivery count, level) of each message of a `Delivered`."""
    return DELIVERED_ROW.iter_unpack(rows)


# --- edits and property values as JSON: rare, small, and readable in a log dump -------------------


def value_to_json(value: Value) -> object:
    """A property value as JSON; what JSON lacks is tagged, so that it comes back as it was."""
    match value:
        case Timestamp():
            return {"$timestamp": int(value)}
        case Duration():
            return {"$duration": int(value)}
        case Symbol():
            return {"$symbol": str(value)}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case UUID():
            return {"$uuid": str(value)}
        case Decimal():
            return {"$decimal": str(value)}
        case Described(descriptor, inner):
            return {"$described": [value_to_json(descriptor), value_to_json(inner)]}  # type: ignore[arg-type]
        case Float():
            return {"$single": repr(value)}
        case float() if not math.isfinite(value):
            return {"$float": repr(value)}
        case Long():
            return int(value)
        case _ if (tag := _TAG_OF.get(type(value))) is not None:
            return {tag: value}
        case _:
            return value


_TAGS: Final[Mapping[str, type]] = {
    "$timestamp": Timestamp,
    "$duration": Duration,
    "$symbol": Symbol,
    "$uuid": UUID,
    "$decimal": Decimal,
    "$float": float,
}


_TAG_OF: Final[Mapping[type, str]] = {
    kind: f"${kind.__name__.lower()}"
    for kind in (UByte, UShort, UInt, ULong, Byte, Short, Int, Char)
}
_TYPE_OF: Final[Mapping[str, type]] = {
    **_TAGS,
    "$single": Float,
    **{tag: kind for kind, tag in _TAG_OF.items()},
}


def value_from_json(value: object) -> Value:
    if not isinstance(value, dict):
        assert value is None or isinstance(value, bool | int | float | str)
        return value
    ((tag, text),) = value.items()
    if tag == "$bytes":
        return base64.b64decode(text)
    if tag == "$described":
        descriptor, inner = map(value_from_json, text)
        assert isinstance(descriptor, int | Symbol)
        return Described(descriptor, inner)
    result: Value = _TYPE_OF[tag](text)
    return result


def encode_edits(edits: Edits) -> bytes | None:
    if not edits:
        return None
    return json.dumps(
        {
            "set": {k: value_to_json(v) for k, v in edits.properties.items()},
            "removed": sorted(edits.removed),
            "system": {k: value_to_json(v) for k, v in edits.system.items()},
        },
        separators=(",", ":"),
    ).encode()


def decode_edits(data: bytes | None) -> Edits:
    if data is None:
        return NO_EDITS
    tree = json.loads(data)
    return Edits(
        {k: value_from_json(v) for k, v in tree["set"].items()},
        frozenset(tree["removed"]),
        {k: value_from_json(v) for k, v in tree["system"].items()},
    )
