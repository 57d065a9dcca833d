"""A message as subscription rules see it: its properties under the edits that already lie over it.

Here live the look-up of application properties (any case) and of system properties (by name).
Whether a name of a system property exists at all is `sql_parser.py`. The rule: reading changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from tandembus.core.sql_values import TICKS_PER_MS
from tandembus.model import Duration, Edits, Message, MessageId, Millis, Timestamp, Value


@dataclass(slots=True)
class Context:
    """A message as rules see it. Make one for a message and use it for all rules: it remembers what
    it
    had to work out."""

    message: Message
    facts: Mapping[str, Value]
    """System properties that the broker knows, by their Service Bus name (`SequenceNumber`, …)."""
    edits: Edits
    """What already lies over the message."""
    new_id: Callable[[], UUID]
    """Where newid() takes its values from: core has no randomness of its own."""
    _properties: Mapping[str, Value] | None = field(default=None, init=False, repr=False)
    _folded: dict[str, str] | None = field(default=None, init=False, repr=False)

    @property
    def properties(self) -> Mapping[str, Value]:
        """The application properties under the edits."""
        if self._properties is None:
            stored = self.message.properties
            edits = self.edits
            if edits.properties or edits.removed:
                stored = {k: v for k, v in stored.items() if k not in edits.removed}
                stored.update(edits.properties)
            self._properties = stored
        return self._properties

    def find(self, name: str, folded: str) -> str | None:
        """The property's name as the message spells it: `name` itself, else the first that differs
        only
        in case. None: there is none."""
        properties = self.properties
        if name in properties:
            return name
        if self._folded is None:
            self._folded = {}
            for spelled in properties:
                self._folded.setdefault(spelled.casefold(), spelled)
        return self._folded.get(folded)

    def system(self, name: str) -> Value:
        """A system property by its Service Bus name; None: it has no value."""
        if name in self.edits.system:
            return self.edits.system[name]
        read = _FROM_MESSAGE.get(name)
        return self.facts.get(name) if read is None else read(self.message)


def _identifier(value: MessageId | None) -> str | None:
    """An id as the SDKs show it: text, whatever its AMQP type."""
    match value:
        case None | str():
            return value
        case bytes():
            return value.hex()
        case _:
            return str(value)


def _duration(value_ms: Millis | None) -> Duration | None:
    return None if value_ms is None else Duration(value_ms * TICKS_PER_MS)


def _date(value_ms: Millis | None) -> Timestamp | None:
    return None if value_ms is None else Timestamp(value_ms)


_FROM_MESSAGE: Final[Mapping[str, Callable[[Message], Value]]] = {
    "MessageId": lambda message: _identifier(message.message_id),
    "CorrelationId": lambda message: _identifier(message.correlation_id),
    "ContentType": lambda message: message.content_type,
    "Label": lambda message: message.label,
    "To": lambda message: message.to,
    "ReplyTo": lambda message: message.reply_to,
    "SessionId": lambda message: message.session_id,
    "ReplyToSessionId": lambda message: message.reply_to_session_id,
    "PartitionKey": lambda message: message.partition_key,
    "ViaPartitionKey": lambda message: message.via_partition_key,
    "TimeToLive": lambda message: _duration(message.ttl_ms),
    "ScheduledEnqueueTimeUtc": lambda message: _date(message.scheduled_ms),
}
"""All other system properties are facts of the broker."""
