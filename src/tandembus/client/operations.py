"""What can be asked of an entity's `$management`, one function each (WIRE.md §7), without I/O.

Arguments in, the reply's values out; the very AMQP types that Azure looks for are written here.
How a request travels is `nodes` and `conversation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from tandembus.amqp.types import Array, Described, Int, Long, UInt
from tandembus.client.messages import OutgoingMessage, ReceivedMessage, Unsent
from tandembus.errors import ProtocolError
from tandembus.model import Millis, Timestamp, Value

if TYPE_CHECKING:
    from tandembus.client.conversation import Conversation

_EVER: Final = 253_402_300_800_000
"""The end of .NET's calendar: sessions whenever they were touched."""
PAGE: Final = 100


class Settlement(Enum):
    """What can become of a locked message; the value is the word of update-disposition."""

    COMPLETE = "completed"
    ABANDON = "abandoned"
    DEFER = "defered"
    DEAD_LETTER = "suspended"
    RELEASE = "released"
    """Back as if it had never been delivered. Over its link only."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """A correlation filter: what is set must be equal."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    subject: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    filter: str | Correlation = "1=1"
    """SQL, or what must be equal."""
    action: str | None = None
    """SQL."""


# --- messages -------------------------------------------------------------------------------------


async def browse(
    conversation: Conversation,
    path: str,
    from_sequence_number: int,
    count: int,
    session_id: str | None = None,
) -> list[ReceivedMessage]:
    """One page, of at most `count`: the broker may give fewer; an empty one is the end."""
    body: dict[str, object] = {
        "from-sequence-number": Long(from_sequence_number),
        "message-count": Int(count),
    }
    if session_id is not None:
        body["session-id"] = session_id
    reply = await conversation.manage(path, "com.microsoft:peek-message", body)
    return [
        ReceivedMessage(_message(each), -1, b"", None) for each in _list(reply.body, "messages")
    ]


async def receive_deferred(
    conversation: Conversation,
    path: str,
    numbers: Sequence[int],
    *,
    is_locking: bool = True,
    session_id: str | None = None,
    link_name: str | None = None,
) -> list[ReceivedMessage]:
    """All of them, or MessageNotFoundError."""
    body: dict[str, object] = {
        "sequence-numbers": _longs(numbers),
        "receiver-settle-mode": UInt(1 if is_locking else 0),
    }
    if session_id is not None:
        body["session-id"] = session_id
    operation = "com.microsoft:receive-by-sequence-number"
    reply = await conversation.manage(path, operation, body, link_name=link_name)
    found = []
    for each in _list(reply.body, "messages"):
        token = each.get("lock-token") if isinstance(each, dict) else None
        tag = token.bytes_le if isinstance(token, UUID) else b""
        found.append(ReceivedMessage(_message(each), -1, tag, None))
    return found


async def schedule(
    conversation: Conversation, path: str, messages: Sequence[Unsent], at_ms: Millis
) -> list[int]:
    """Their sequence numbers, by which they can be cancelled."""
    items: list[dict[str, object]] = []
    for message in messages:
        given = message if isinstance(message, OutgoingMessage) else OutgoingMessage(message)
        # Azure wants an id with each; one that its sender did not give is made up here.
        message_id = given.message_id
        if message_id is None:
            message_id = f"{conversation.clock.random_bits(128):032x}"
        payload = replace(given, message_id=message_id, scheduled_ms=at_ms).encoded()
        item: dict[str, object] = {"message-id": message_id, "message": payload}
        for name, value in (
            ("session-id", given.session_id),
            ("partition-key", given.partition_key),
            ("via-partition-key", given.via_partition_key),
        ):
            if value is not None:
                item[name] = value
        items.append(item)
    reply = await conversation.manage(path, "com.microsoft:schedule-message", {"messages": items})
    return [int(each) for each in _list(reply.body, "sequence-numbers")]


async def cancel_scheduled(conversation: Conversation, path: str, numbers: Sequence[int]) -> None:
    operation = "com.microsoft:cancel-scheduled-message"
    await conversation.manage(path, operation, {"sequence-numbers": _longs(numbers)})


async def delete_messages(
    conversation: Conversation, path: str, count: int, before_ms: Millis
) -> int:
    """Delete up to `count` waiting messages that were enqueued before; how many there were."""
    body = {"message-count": Int(count), "enqueued-time-utc": Timestamp(before_ms)}
    reply = await conversation.manage(path, "com.microsoft:batch-delete-messages", body)
    deleted = reply.body.get("message-count", 0)
    return deleted if isinstance(deleted, int) else 0


async def change_priority(conversation: Conversation, path: str, number: int, level: int) -> None:
    """Give a message that waits another level. Tandem's own; needs Manage."""
    body = {"sequence-number": Long(number), "level": Int(level)}
    await conversation.manage(path, "tandem:change-priority", body)


# --- beyond Azure (docs/wire-extensions.md) -------------------------------------------------------

DELAY: Final = "x-tandem-delay-ms"
"""Among the properties of an abandoned message: how long it stays away."""


@dataclass(frozen=True, slots=True)
class SessionCounts:
    sessions: int
    """With a message in any state, a holder or a state."""
    available: int
    """With a message that waits, and without a holder."""
    locked: int
    with_state: int


def with_delay(properties: Mapping[str, Value] | None, delay_ms: Millis) -> Mapping[str, Value]:
    """The properties to modify of what is to come back later."""
    return {**(properties or {}), DELAY: Long(delay_ms)}


async def search(
    conversation: Conversation,
    path: str,
    from_sequence_number: int,
    count: int,
    *,
    filter: str | None = None,
    states: Sequence[str] = (),
    session_id: str | None = None,
) -> tuple[list[ReceivedMessage], int | None]:
    """Browse by a SQL filter and by state. One page, and where the next begins; None: that was all.
    A page may be empty and not the last."""
    body: dict[str, object] = {
        "from-sequence-number": Long(from_sequence_number),
        "message-count": Int(count),
    }
    if filter is not None:
        body["filter"] = filter
    if states:
        body["states"] = list(states)
    if session_id is not None:
        body["session-id"] = session_id
    reply = await conversation.manage(path, "tandem:browse", body)
    found = [
        ReceivedMessage(_message(each), -1, b"", None) for each in _list(reply.body, "messages")
    ]
    following = reply.body.get("next-sequence-number")
    return found, int(following) if isinstance(following, int) else None


async def discard(conversation: Conversation, path: str, numbers: Sequence[int]) -> None:
    """All of them, or MessageNotFoundError."""
    await conversation.manage(path, "tandem:discard", {"sequence-numbers": _longs(numbers)})


async def reactivate(conversation: Conversation, path: str, numbers: Sequence[int]) -> None:
    """All of them, or MessageNotFoundError."""
    await conversation.manage(path, "tandem:reactivate", {"sequence-numbers": _longs(numbers)})


async def dead_letter_session(
    conversation: Conversation,
    path: str,
    session_id: str,
    *,
    reason: str | None = None,
    description: str | None = None,
    link_name: str | None = None,
) -> int:
    """The whole session, however long; how many messages it had."""
    body: dict[str, object] = {"session-id": session_id}
    if reason is not None:
        body["deadletter-reason"] = reason
    if description is not None:
        body["deadletter-description"] = description
    total = 0
    operation = "tandem:dead-letter-session"
    while True:
        reply = await conversation.manage(path, operation, body, link_name=link_name)
        moved = reply.body.get("message-count")
        if not isinstance(moved, int) or moved <= 0:
            return total
        total += moved


async def count_sessions(conversation: Conversation, path: str) -> SessionCounts:
    reply = await conversation.manage(path, "tandem:count-sessions", {})
    names = ("sessions", "available", "locked", "with-state")
    counts = [reply.body.get(name) for name in names]
    if not all(isinstance(count, int) for count in counts):
        raise ProtocolError("The broker does not say how many sessions there are.")
    return SessionCounts(*map(int, cast("list[int]", counts)))


# --- locks ----------------------------------------------------------------------------------------


async def update_disposition(
    conversation: Conversation,
    path: str,
    tokens: Sequence[UUID],
    how: Settlement,
    *,
    reason: str | None = None,
    description: str | None = None,
    properties: Mapping[str, Value] | None = None,
    session_id: str | None = None,
) -> None:
    """Settle by lock token: whatever has become of the link that it came on (T11)."""
    body: dict[str, object] = {
        "disposition-status": how.value,
        "lock-tokens": Array(tokens, 0x98),
    }
    for name, value in (
        ("deadletter-reason", reason),
        ("deadletter-description", description),
        ("session-id", session_id),
    ):
        if value is not None:
            body[name] = value
    if properties:
        body["properties-to-modify"] = dict(properties)
    await conversation.manage(path, "com.microsoft:update-disposition", body)


async def renew_locks(
    conversation: Conversation, path: str, tokens: Sequence[UUID], link_name: str | None = None
) -> list[Millis]:
    """Until when each is locked now. All of them, or MessageLockLostError."""
    body = {"lock-tokens": Array(tokens, 0x98)}
    reply = await conversation.manage(path, "com.microsoft:renew-lock", body, link_name=link_name)
    return [int(each) for each in _list(reply.body, "expirations")]


# --- sessions -------------------------------------------------------------------------------------


async def renew_session(
    conversation: Conversation, path: str, session_id: str, link_name: str
) -> Millis:
    operation = "com.microsoft:renew-session-lock"
    reply = await conversation.manage(
        path, operation, {"session-id": session_id}, link_name=link_name
    )
    end = reply.body.get("expiration")
    if not isinstance(end, int):
        raise ProtocolError("The broker does not say until when the session is locked.")
    return int(end)


async def get_session_state(
    conversation: Conversation, path: str, session_id: str, link_name: str
) -> bytes | None:
    operation = "com.microsoft:get-session-state"
    reply = await conversation.manage(
        path, operation, {"session-id": session_id}, link_name=link_name
    )
    state = reply.body.get("session-state")
    return state if isinstance(state, bytes) else None


async def set_session_state(
    conversation: Conversation, path: str, session_id: str, state: bytes | None, link_name: str
) -> None:
    body = {"session-id": session_id, "session-state": state}
    operation = "com.microsoft:set-session-state"
    await conversation.manage(path, operation, body, link_name=link_name)


async def list_sessions(conversation: Conversation, path: str) -> list[str]:
    """All sessions that have messages or a state."""
    found: list[str] = []
    while True:
        body = {
            "last-updated-time": Timestamp(_EVER),
            "skip": Int(len(found)),
            "top": Int(PAGE),
        }
        reply = await conversation.manage(path, "com.microsoft:get-message-sessions", body)
        page = [str(each) for each in _list(reply.body, "sessions-ids")]
        found += page
        if len(page) < PAGE:
            return found


# --- rules ----------------------------------------------------------------------------------------

_FIELDS: Final = (
    ("correlation-id", "correlation_id"),
    ("message-id", "message_id"),
    ("to", "to"),
    ("reply-to", "reply_to"),
    ("label", "subject"),
    ("session-id", "session_id"),
    ("reply-to-session-id", "reply_to_session_id"),
    ("content-type", "content_type"),
)
"""Of a correlation filter: keys on the way out, and the order of the list on the way in."""


async def add_rule(conversation: Conversation, path: str, rule: Rule) -> None:
    description: dict[str, object] = {}
    if isinstance(rule.filter, str):
        description["sql-filter"] = {"expression": rule.filter}
    else:
        wanted: dict[str, object] = {
            key: getattr(rule.filter, name)
            for key, name in _FIELDS
            if getattr(rule.filter, name) is not None
        }
        if rule.filter.properties:
            wanted["properties"] = dict(rule.filter.properties)
        description["correlation-filter"] = wanted
    if rule.action is not None:
        description["sql-rule-action"] = {"expression": rule.action}
    body = {"rule-name": rule.name, "rule-description": description}
    await conversation.manage(path, "com.microsoft:add-rule", body)


async def remove_rule(conversation: Conversation, path: str, name: str) -> None:
    await conversation.manage(path, "com.microsoft:remove-rule", {"rule-name": name})


async def list_rules(conversation: Conversation, path: str) -> list[Rule]:
    found: list[Rule] = []
    while True:
        body = {"top": Int(PAGE), "skip": Int(len(found))}
        reply = await conversation.manage(path, "com.microsoft:enumerate-rules", body)
        page = [_rule(each) for each in _list(reply.body, "rules")]
        found += page
        if len(page) < PAGE:
            return found


def _rule(item: object) -> Rule:
    described = item.get("rule-description") if isinstance(item, dict) else None
    try:
        filter_, action, name = cast("Described", described).value[:3]  # type: ignore[index]
        expressions = action.value
        return Rule(str(name), _filter(filter_), str(expressions[0]) if expressions else None)
    except (AttributeError, TypeError, ValueError, IndexError):
        raise ProtocolError("The broker describes a rule in an unknown form.") from None


def _filter(described: Described) -> str | Correlation:
    values = cast("list[Any]", described.value)
    match described.descriptor:
        case 0x13_7000_0007:
            return "1=1"
        case 0x13_7000_0008:
            return "1=0"
        case 0x13_7000_0006:
            return str(values[0])
        case 0x13_7000_0009:
            given = dict(zip((name for _, name in _FIELDS), values, strict=False))
            properties = values[8] if len(values) > 8 and isinstance(values[8], dict) else {}
            texts = {name: None if it is None else str(it) for name, it in given.items()}
            return Correlation(**texts, properties=properties)
    raise ValueError(described.descriptor)


# --- replies --------------------------------------------------------------------------------------


def _list(body: Mapping[str, object], name: str) -> list[Any]:
    """What a reply holds there; nothing if it is not there."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ProtocolError(f"'{name}' of a reply is not a list.")
    return value


def _message(item: object) -> bytes:
    payload = item.get("message") if isinstance(item, dict) else None
    if not isinstance(payload, bytes):
        raise ProtocolError("A reply lacks a message that it should have.")
    return payload


def _longs(numbers: Sequence[int]) -> Array:
    return Array(numbers, 0x81)
