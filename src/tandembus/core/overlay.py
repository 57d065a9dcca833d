"""A message as it looks with edits laid over it: what rules and queues further on must see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tandembus.core.sql_values import TICKS_PER_MS
from tandembus.model import (
    Duration,
    Edits,
    LargePayload,
    Message,
    MessageId,
    Millis,
    Payload,
    Value,
    as_compared,
)


def laid_over(message: Message, edits: Edits) -> Message:
    return Edited(message, edits) if edits else message


class Edited:
    """Satisfies `model.Message`."""

    __slots__ = ("_edits", "_large", "_message", "_properties")

    def __init__(self, message: Message, edits: Edits, large: LargePayload | None = None) -> None:
        """`large`: what `message` is the head of."""
        self._message = message
        self._edits = edits
        self._large = large
        self._properties: dict[str, Value] | None = None

    def _text(self, name: str, stored: str | None) -> str | None:
        return cast("str | None", self._edits.system.get(name, stored))

    @property
    def payload(self) -> Payload:
        return self._message.payload if self._large is None else self._large

    @property
    def ttl_ms(self) -> Millis | None:
        edited = self._edits.system.get("TimeToLive", self._message.ttl_ms)
        return (
            edited // TICKS_PER_MS
            if isinstance(edited, Duration)
            else cast("Millis | None", edited)
        )

    @property
    def scheduled_ms(self) -> Millis | None:
        return self._message.scheduled_ms

    @property
    def is_ping(self) -> bool:
        return self._large is None and self._message.is_ping

    @property
    def content_type(self) -> str | None:
        return self._text("ContentType", self._message.content_type)

    @property
    def message_id(self) -> MessageId | None:
        edited = self._edits.system.get("MessageId", self._message.message_id)
        return cast("MessageId | None", edited)

    @property
    def session_id(self) -> str | None:
        return self._text("SessionId", self._message.session_id)

    @property
    def partition_key(self) -> str | None:
        return self._text("PartitionKey", self._message.partition_key)

    @property
    def priority(self) -> int | None:
        return self._message.priority

    @property
    def correlation_id(self) -> MessageId | None:
        edited = self._edits.system.get("CorrelationId", self._message.correlation_id)
        return cast("MessageId | None", edited)

    @property
    def label(self) -> str | None:
        return self._text("Label", self._message.label)

    @property
    def to(self) -> str | None:
        return self._text("To", self._message.to)

    @property
    def reply_to(self) -> str | None:
        return self._text("ReplyTo", self._message.reply_to)

    @property
    def reply_to_session_id(self) -> str | None:
        return self._text("ReplyToSessionId", self._message.reply_to_session_id)

    @property
    def via_partition_key(self) -> str | None:
        return self._message.via_partition_key

    @property
    def properties(self) -> Mapping[str, Value]:
        if self._properties is None:
            edits = self._edits
            kept = {k: v for k, v in self._message.properties.items() if k not in edits.removed}
            changed = {name: as_compared(value) for name, value in edits.properties.items()}
            self._properties = {**kept, **changed}
        return self._properties
