"""Rows as messages: each judged by itself, and the same message again after a round trip."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.amqp.types import encode
from tandembus.errors import ArgumentError
from tandembus.model import Timestamp
from tandembus.spark.columns import NAMES
from tandembus.spark.rows import BadRow, check_columns, messages
from tandembus.spark.schema import arrow_schema, body_of, record_batch
from tests.unit.spark.test_schema import VALUES, page


def sent(batch: pa.RecordBatch) -> list[AmqpMessage]:
    found = list(messages(batch, "job/0/", 100))
    assert not [each for each in found if isinstance(each, BadRow)]
    return [AmqpMessage(each.payload) for each in found if not isinstance(each, BadRow)]


def reasons(**columns: list[Any]) -> list[str | None]:
    batch = pa.RecordBatch.from_pydict(columns)
    found = messages(batch, "job/0/")
    return [str(each.error) if isinstance(each, BadRow) else None for each in found]


@pytest.mark.req("D2")
def test_ids_are_the_rows_own_or_made_from_its_place() -> None:
    """So that the same row has the same id whenever it is sent."""
    batch = pa.RecordBatch.from_pydict({"body": [b"a", b"b"], "message_id": ["own", None]})
    assert [each.message_id for each in sent(batch)] == ["own", "job/0/101"]
    alone = pa.RecordBatch.from_pydict({"body": ["text"]})
    (found,) = sent(alone)
    assert found.message_id == "job/0/100"
    assert body_of(found) == (b"text", None)
    more = pa.RecordBatch.from_pydict({"body": ["text"], "subject": ["s"]})
    assert sent(more)[0].message_id == "job/0/100"


@pytest.mark.req("D1")
def test_every_property_is_a_column() -> None:
    when = datetime(2026, 1, 31, 12, tzinfo=UTC)
    batch = pa.RecordBatch.from_pydict(
        {
            "body": [b"x"],
            "message_id": ["m"],
            "correlation_id": ["c"],
            "session_id": ["s"],
            "partition_key": ["s"],
            "subject": ["l"],
            "content_type": ["text/plain"],
            "to": ["t"],
            "reply_to": ["r"],
            "reply_to_session_id": ["rs"],
            "time_to_live_ms": [5],
            "scheduled_enqueue_time": [when],
            "priority": [9],
            "properties": pa.array([[("a", "1"), ("b", "x")]], pa.map_(pa.string(), pa.string())),
            "property_types": pa.array([[("a", "int")]], pa.map_(pa.string(), pa.string())),
        }
    )
    (found,) = sent(batch)
    assert (found.message_id, found.correlation_id, found.session_id) == ("m", "c", "s")
    assert (found.partition_key, found.label, found.content_type) == ("s", "l", "text/plain")
    assert (found.to, found.reply_to, found.reply_to_session_id) == ("t", "r", "rs")
    assert (found.ttl_ms, found.priority) == (5, 9)
    assert found.scheduled_ms == int(when.timestamp() * 1000)
    assert found.properties == {"a": 1, "b": "x"}


def test_properties_of_a_struct_keep_their_types() -> None:
    when = datetime(2026, 1, 31, 12, tzinfo=UTC)
    given = {"n": 1, "f": 1.5, "b": True, "t": when, "d": Decimal("1.5"), "s": "x", "none": None}
    batch = pa.RecordBatch.from_pylist([{"body": b"", "properties": given}])
    (found,) = sent(batch)
    assert found.properties == {**given, "t": Timestamp(int(when.timestamp() * 1000))}


@pytest.mark.req("D4")
def test_what_was_read_can_be_written_and_is_the_same() -> None:
    """Every column, every type of property, every kind of body."""
    originals = [
        encode_message(
            body=b"x",
            message_id="m",
            session_id="s",
            label="l",
            ttl_ms=5,
            priority=3,
            properties={f"p{at}": value for at, value in enumerate(VALUES)},
        ),
        encode_message(body=None, message_id="n") + b"\x00\x53\x77" + encode("text"),
        encode_message(body=None, message_id="o") + b"\x00\x53\x76" + encode([1, "a"]),
    ]
    batch = record_batch(page(*originals), "orders", NAMES, arrow_schema(NAMES))
    for before, after in zip(map(AmqpMessage, originals), sent(batch), strict=True):
        assert after.properties == before.properties
        assert body_of(after) == body_of(before)
        for name in ("message_id", "session_id", "label", "ttl_ms", "priority", "to"):
            assert getattr(after, name) == getattr(before, name)


@pytest.mark.req("D8")
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"message_id": ["x" * 129]}, "message_id has 129 characters"),
        ({"session_id": ["x" * 129]}, "session_id has 129 characters"),
        ({"partition_key": ["x" * 129]}, "partition_key has 129 characters"),
        ({"priority": [10]}, "priority is 10"),
        ({"time_to_live_ms": [-1]}, "time_to_live_ms is -1"),
        ({"body_type": ["xml"]}, "body_type is 'xml'"),
        ({"body_type": ["amqp"]}, "no encoded AMQP body"),
        ({"properties": [["a"]]}, "neither a map nor a struct"),
        ({"properties": [{"a": {"b": 1}}]}, "no simple value"),
        ({"properties": [{"a": "x"}], "property_types": [{"a": "int"}]}, "no value of type 'int'"),
    ],
)
def test_a_bad_row_says_why_and_the_others_go_on(columns: dict[str, list[Any]], told: str) -> None:
    both = {name: [None, values[0]] for name, values in columns.items()}
    first, second = reasons(body=[b"fine", b"bad"], **both)
    assert first is None
    assert told in (second or "")


def test_columns_are_checked_by_name() -> None:
    check_columns(["body", "sequence_number", "enqueued_time"])
    with pytest.raises(ArgumentError, match="'boddy' is no column of a message"):
        check_columns(["boddy"])
    with pytest.raises(ArgumentError, match="no column 'body'"):
        check_columns(["message_id"])


def test_ids_of_other_types_are_text() -> None:
    """A uuid as it is written, bytes as hexadecimal digits."""
    found = record_batch(
        page(
            encode_message(body=b"", message_id=UUID(int=1)),
            encode_message(body=b"", message_id=b"\x01"),
            encode_message(body=b"", message_id=7),
        ),
        "orders",
        ("message_id",),
        arrow_schema(("message_id",)),
    )
    assert found.column(0).to_pylist() == [str(UUID(int=1)), "01", "7"]
