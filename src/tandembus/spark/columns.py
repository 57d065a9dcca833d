"""The columns of a message: what can be read, and what of it can be written. Words only."""

from __future__ import annotations

from typing import Final, NamedTuple


class Column(NamedTuple):
    name: str
    type: str
    """As Spark calls it."""
    is_sent: bool
    """Whether it can be written; the others are the broker's own."""
    what: str


COLUMNS: Final = (
    Column("entity", "string", False, "The entity that it was read from."),
    Column("sequence_number", "bigint", False, "The broker's number."),
    Column("enqueued_time", "timestamp", False, "When it arrived."),
    Column("message_id", "string", True, "The sender's id; what duplicates are known by."),
    Column("body", "binary", True, "The bytes of the body; to write, text is taken as well."),
    Column("body_type", "string", True, "null: bytes; `string`: an AMQP string; `amqp`: other AMQP "
           "sections, as they are encoded."),
    Column("subject", "string", True, "The label."),
    Column("content_type", "string", True, "The MIME type of the body."),
    Column("correlation_id", "string", True, "The id of the message that this one answers."),
    Column("session_id", "string", True, "The session, which has an order."),
    Column("partition_key", "string", True, "What decides the partition."),
    Column("to", "string", True, "The address, for applications."),
    Column("reply_to", "string", True, "Where an answer is to go."),
    Column("reply_to_session_id", "string", True, "And in which session."),
    Column("time_to_live_ms", "bigint", True, "After this it expires."),
    Column("scheduled_enqueue_time", "timestamp", True, "To write: when it is to be enqueued."),
    Column("priority", "int", True, "Of the AMQP header, 0 to 9."),
    Column("delivery_count", "int", False, "Deliveries that failed."),
    Column("state", "string", False, "`active` or `deferred`."),
    Column("size", "int", False, "Bytes of the whole message as it is stored."),
    Column("dead_letter_reason", "string", False, "Why it is dead."),
    Column("dead_letter_description", "string", False, "And what was said to it."),
    Column("dead_letter_source", "string", False, "The entity in which it died."),
    Column("properties", "map<string,string>", True, "Application properties, as text."),
    Column("property_types", "map<string,string>", True, "The types of those that are not text."),
)  # fmt: skip
NAMES: Final = tuple(column.name for column in COLUMNS)
BODIES: Final = ("body", "body_type")
BY_NAME: Final = {column.name: column for column in COLUMNS}
