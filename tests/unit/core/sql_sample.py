"""A message for tests of rules: nothing but its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tandembus.core.sql import Context
from tandembus.model import NO_EDITS, Edits, MessageId, Millis, Value


@dataclass(slots=True)
class SampleMessage:
    properties: Mapping[str, Value] = field(default_factory=dict)
    message_id: MessageId | None = None
    correlation_id: MessageId | None = None
    content_type: str | None = None
    label: str | None = None
    to: str | None = None
    reply_to: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    partition_key: str | None = None
    via_partition_key: str | None = None
    is_ping: bool = False
    ttl_ms: Millis | None = None
    scheduled_ms: Millis | None = None
    priority: int | None = None
    payload: bytes = b""


class CountingIds:
    """newid() for tests: 1, 2, 3, …"""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self) -> UUID:
        self.given += 1
        return UUID(int=self.given)


def context_of(
    message: SampleMessage | None = None,
    *,
    facts: Mapping[str, Value] | None = None,
    edits: Edits = NO_EDITS,
    **properties: Value,
) -> Context:
    """A context of the message given, or of one with these application properties."""
    return Context(message or SampleMessage(properties), facts or {}, edits, CountingIds())
