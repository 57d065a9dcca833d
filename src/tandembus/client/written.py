"""A message as JSON, and by a SQL filter: what the command line and the console have in common.

The JSON of a message that was received is JSON of one that can be sent: what only the broker says
is read over.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from tandembus.amqp.message import AmqpMessage
from tandembus.client.messages import OutgoingMessage, ReceivedMessage
from tandembus.config.values import find_name, moment, show_moment
from tandembus.core.sql import Context, compile_filter
from tandembus.errors import ArgumentError, FilterError
from tandembus.limits import SECOND_MS
from tandembus.model import NO_EDITS, Duration, Millis, Timestamp, Value

STATES: Final = ("active", "deferred", "scheduled")
"""By their number on the wire."""
_TEXTS: Final = (
    "message_id",
    "correlation_id",
    "session_id",
    "partition_key",
    "subject",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
)
_BROKERS: Final = (
    "sequence_number",
    "enqueued_time",
    "state",
    "delivery_count",
    "locked_until",
    "dead_letter_reason",
    "dead_letter_description",
    "dead_letter_source",
)
_SENDERS: Final = (
    "body",
    "body_base64",
    "body_value",
    *_TEXTS,
    "properties",
    "time_to_live_s",
    "priority",
    "scheduled_enqueue_time",
)


def state_of(message: ReceivedMessage) -> str:
    return STATES[message.state] if message.state < len(STATES) else str(message.state)


# --- JSON -----------------------------------------------------------------------------------------


def as_json(message: ReceivedMessage, *, has_body: bool = True) -> dict[str, object]:
    """What is set, and nothing else."""
    tree: dict[str, object] = {
        "sequence_number": message.sequence_number,
        "enqueued_time": show_moment(message.enqueued_ms),
        "state": state_of(message),
        "delivery_count": message.delivery_count,
    }
    if has_body:
        tree.update(body_of(message))
    for name in _TEXTS:
        value = getattr(message, name)
        if value is not None:
            tree[name] = plain_value(value)
    if message.properties:
        tree["properties"] = {name: plain_value(it) for name, it in message.properties.items()}
    for name, ms in (
        ("scheduled_enqueue_time", message.scheduled_ms),
        ("locked_until", message.locked_until_ms),
    ):
        if ms is not None:
            tree[name] = show_moment(ms)
    if message.ttl_ms is not None:
        tree["time_to_live_s"] = message.ttl_ms / SECOND_MS
    for name in ("priority", "dead_letter_reason", "dead_letter_description", "dead_letter_source"):
        value = getattr(message, name)
        if value is not None:
            tree[name] = value
    return tree


def body_of(message: ReceivedMessage) -> dict[str, object]:
    value = message.value
    if value is not None:
        return {"body_value": plain_value(value)}
    try:
        return {"body": message.body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(message.body).decode()}


def plain_value(value: object) -> object:
    """A value of AMQP as JSON can have it."""
    match value:
        case Timestamp():
            return show_moment(int(value))
        case Duration():
            return str(value)
        case None | bool() | int() | float():
            return value
        case str():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(name): plain_value(each) for name, each in value.items()}
        case list() | tuple():
            return [plain_value(each) for each in value]
    return str(value)


def from_json(tree: object, where: str, now_ms: Millis) -> OutgoingMessage:
    """A message to send. Raises ArgumentError, with the place."""
    if not isinstance(tree, dict):
        raise ArgumentError(f'{where}: a message is an object: {{"body": "…"}}')
    said = {
        find_name(name, (*_SENDERS, *_BROKERS), where, "field"): it for name, it in tree.items()
    }
    bodies = [name for name in ("body", "body_base64", "body_value") if name in said]
    if len(bodies) > 1:
        raise ArgumentError(f"{where}: {' and '.join(bodies)} are given; one body is enough")
    fields: dict[str, Any] = {}
    for name in _TEXTS:
        if said.get(name) is not None:
            fields[name] = str(said[name])
    properties = said.get("properties") or {}
    if not isinstance(properties, dict):
        raise ArgumentError(f"{where}: properties is an object")
    fields["properties"] = {
        name: cast(Value, it) if isinstance(it, bool | int | float | str | None) else json.dumps(it)
        for name, it in properties.items()
    }
    if said.get("time_to_live_s") is not None:
        fields["ttl_ms"] = round(float(said["time_to_live_s"]) * SECOND_MS)
    if said.get("priority") is not None:
        fields["priority"] = int(said["priority"])
    when = said.get("scheduled_enqueue_time")
    if when is not None:
        fields["scheduled_ms"] = moment(str(when), now_ms, f"{where}: scheduled_enqueue_time")
    return OutgoingMessage(_written_body(said, where), **fields)


def _written_body(said: Mapping[str, Any], where: str) -> bytes:
    if "body_base64" in said:
        try:
            return base64.b64decode(said["body_base64"], validate=True)
        except (ValueError, TypeError):
            raise ArgumentError(f"{where}: body_base64 is not base64") from None
    body = said.get("body", said.get("body_value", ""))
    return (body if isinstance(body, str) else json.dumps(body)).encode()


# --- by a filter ----------------------------------------------------------------------------------


def context_of(message: ReceivedMessage) -> Context:
    """A message as SQL sees it."""
    facts: dict[str, Value] = {
        "SequenceNumber": message.sequence_number,
        "EnqueuedTimeUtc": Timestamp(message.enqueued_ms),
        "DeliveryCount": message.delivery_count,
        "State": state_of(message).title(),
    }
    return Context(AmqpMessage(message.payload), facts, NO_EDITS, uuid.uuid4)


def matcher(sql: str | None) -> Callable[[ReceivedMessage], bool]:
    """Whether a message passes a filter; one at which it fails does not. Raises FilterError."""
    if sql is None:
        return lambda message: True
    compiled = compile_filter(sql)

    def matches(message: ReceivedMessage) -> bool:
        try:
            return compiled.matches(context_of(message))
        except FilterError:
            return False

    return matches
