"""The columns and the kinds of the journal, as plain data; docs/journal.md is the same for people.

One row is one event. Rows lie in the order of the log: `(namespace, place, row)` is unique, and
`time` never goes back along it. The folder of the table is `namespace=…/hour=…/*.parquet`; both are
columns as well. The rule: a column is never given another meaning; a new one is added at the end
and is null in older files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa


class Column(NamedTuple):
    name: str
    type: str
    """In Spark's words; `timestamp` is in milliseconds, UTC."""
    meaning: str


PARTITIONS: Final = (
    Column("namespace", "string", "the namespace whose log this is"),
    Column("hour", "string", "of `time`, in UTC: `2026-10-03T14`"),
)
"""The folders; the rest is in the files."""

COLUMNS: Final = (
    Column("place", "bigint", "of the record in the log; never changes its meaning"),
    Column("row", "int", "of the event in its record: one delivery may hold 500 messages"),
    Column("stretch", "int", "1, 2, …: raised where the journal lost the log and began anew"),
    Column("time", "timestamp", "when it was written; never goes back"),
    Column("kind", "string", "what happened: see the table of kinds"),
    Column("delta", "tinyint", "messages that the entity has more (1), fewer (-1) or not (0)"),
    Column("entity", "string", "its path; null for an event of the whole namespace"),
    Column("entity_id", "bigint", "never used again, where a path may be"),
    Column("entity_kind", "string", "`queue`, `topic`, `subscription`, `dead_letter`"),
    Column("sequence_number", "bigint", "of the message in its entity"),
    Column("former_sequence_number", "bigint", "`activated`: the number it had as scheduled"),
    Column("body", "bigint", "number of the stored message, which its copies share"),
    Column("message_id", "string", "of what clients send; null for copies: join on `body`"),
    Column("session_id", "string", "of the message, or the session that it is about"),
    Column("destination", "string", "in a backlog queue: where the syphon is to bring it"),
    Column("size", "int", "of the stored message, in bytes"),
    Column("level", "tinyint", "priority level; the highest goes first"),
    Column("hops", "tinyint", "how often it was forwarded"),
    Column("enqueued_time", "timestamp", "when the message came (scheduled: became active)"),
    Column("due_time", "timestamp", "`scheduled`, or given back with a delay: until when"),
    Column("locked_until", "timestamp", "`delivered`, `renewed`, `session_locked`"),
    Column("wait_ms", "bigint", "from `enqueued_time` to the delivery, or to its end without one"),
    Column("lock_ms", "bigint", "from that delivery to this event; null if it was not locked"),
    Column("delivery_count", "int", "deliveries so far, this one included"),
    Column("link", "bigint", "of the sender or receiver; null for the broker itself"),
    Column("operations", "bigint", "how many operations the row stands for, mostly 1"),
    Column("messages", "bigint", "`browsed`: how many were shown; else null"),
    Column("reason", "string", "of a dead letter; of the end of a session's lock"),
    Column("detail", "string", "free text: description, settings, rule, version"),
)


class Kind(NamedTuple):
    name: str
    delta: int
    meaning: str


KINDS: Final = (
    # A message comes into an entity.
    Kind("accepted", 1, "a client sent it"),
    Kind("scheduled", 1, "a client sent it for later; takes part under another number when due"),
    Kind("copied", 1, "a topic gave a subscription its copy"),
    Kind("transferred", 1, "it was forwarded into this entity"),
    Kind("buried", 1, "it came into this dead-letter queue, with the number it had"),
    Kind("carried_over", 1, "it was there when this stretch of the journal began"),
    # It leaves.
    Kind("completed", -1, "its receiver settled it"),
    Kind("taken", -1, "delivered to a receiver in receive-and-delete mode: both in one"),
    Kind("expired", -1, "its time to live was over"),
    Kind("cancelled", -1, "a scheduled message was taken back"),
    Kind("purged", -1, "deleted in a batch"),
    Kind("forwarded", -1, "it went on to another entity, see `transferred`"),
    Kind("published", -1, "a topic has given out its copies, see `copied`"),
    Kind("dead_lettered", -1, "it went to the dead-letter queue, see `buried`"),
    Kind("deleted", -1, "its entity was deleted with it"),
    # It stays.
    Kind("activated", 0, "a scheduled message became active: its number changed"),
    Kind("delivered", 0, "locked for a receiver"),
    Kind("renewed", 0, "its lock was renewed"),
    Kind("abandoned", 0, "its receiver gave it back; `due_time`: it comes back only then"),
    Kind("lock_expired", 0, "its lock ran out"),
    Kind("released", 0, "given back without having been tried: not counted"),
    Kind("session_closed", 0, "its session's receiver went away: not counted"),
    Kind("session_expired", 0, "its session's lock ran out"),
    Kind("restarted", 0, "its lock ended with the broker's life"),
    Kind("deferred", 0, "set aside, to be asked for by number"),
    Kind("reactivated", 0, "a deferred or delayed message waits again"),
    Kind("level_changed", 0, "`level` is the new one"),
    # What an entity was asked, and what befell it.
    Kind("duplicate_dropped", 0, "sent again within the window of duplicate detection"),
    Kind("no_subscription", 0, "a topic's message that no rule selected"),
    Kind("browsed", 0, "messages were peeked at"),
    Kind("polled", 0, "a receiver asked and there was nothing"),
    Kind("pinged", 0, "a ping of a paired namespace: never stored"),
    Kind("managed", 0, "a management request"),
    Kind("session_locked", 0, "a receiver has the session, or renewed it"),
    Kind("session_unlocked", 0, "`reason` says why"),
    Kind("session_state_set", 0, "by a receiver"),
    Kind("entity_created", 0, "`detail` has the settings"),
    Kind("entity_updated", 0, "`detail` has the settings"),
    Kind("entity_deleted", 0, "its messages are `deleted`, one row each, before"),
    Kind("rule_added", 0, "`detail` has the rule"),
    Kind("rule_removed", 0, "`detail` has its name"),
    Kind("cursor_moved", 0, "a reader's cursor, `detail` has its name"),
    Kind("cursor_dropped", 0, "`detail` has its name"),
    Kind("tap_trimmed", 0, "what had passed is not held back any more"),
    Kind("other", 0, "`detail` has the name of the record"),
    # The namespace and the journal itself.
    Kind("started", 0, "the broker serves again; `detail` has its version"),
    Kind("lost", 0, "a repair gave up a part of the log; `detail` has the places"),
    Kind("missed", 0, "the log was dropped before the journal had it; `detail` has the places"),
    Kind("began", 0, "the journal starts to tell here: see below"),
)

ARRIVALS: Final = tuple(kind.name for kind in KINDS if kind.delta > 0)
ENDS: Final = tuple(kind.name for kind in KINDS if kind.delta < 0)
DELIVERIES: Final = ("delivered", "taken")
RETURNS: Final = (
    "abandoned", "lock_expired", "released", "session_closed", "session_expired", "restarted",
)  # fmt: skip

KIND_NAMES: Final = tuple(kind.name for kind in KINDS)
CODES: Final = {name: code for code, name in enumerate(KIND_NAMES)}
"""The number of each kind, for arrays."""
ENTITY_KINDS: Final = ("queue", "topic", "subscription", "dead_letter")
"""By `changes.EntityKind`."""


def spark_schema() -> str:
    """For `spark.read.schema(…).parquet(folder)`: nothing is guessed, and no file is opened."""
    return ", ".join(f"{column.name} {column.type}" for column in (*COLUMNS, *PARTITIONS))


def plain_schema() -> pa.Schema:
    """As Arrow, every text as it is."""
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "tinyint": pa.int8(),
        "timestamp": pa.timestamp("ms", "UTC"),
        "string": pa.string(),
    }
    return pa.schema([pa.field(column.name, types[column.type]) for column in COLUMNS])


def arrow_schema() -> pa.Schema:
    """Of the files: texts that repeat are dictionaries, which Spark reads as strings."""
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    repeated = {"kind", "entity", "entity_kind", "session_id", "reason"}
    return pa.schema(
        [field.with_type(word) if field.name in repeated else field for field in plain_schema()]
    )
