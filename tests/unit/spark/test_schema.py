"""Pages as Arrow batches: exactly the schema that Spark compares with, and no message stops it."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tandembus.amqp.message import encode_message
from tandembus.amqp.types import encode
from tandembus.client.positions import Page
from tandembus.errors import ArgumentError
from tandembus.model import Duration, Edits, Symbol, Timestamp, Value
from tandembus.spark.columns import COLUMNS, NAMES
from tandembus.spark.schema import (
    arrow_schema,
    fields_for,
    record_batch,
    text_of,
    type_of,
    value_of,
)

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def page(*messages: bytes, **more: Any) -> Page:
    ends = array("I")
    for message in messages:
        ends.append(len(message) + (ends[-1] if ends else 0))
    count = len(messages)
    return Page(
        count + 1,
        array("Q", range(1, count + 1)),
        array("Q", [1_700_000_000_123] * count),
        array("I", map(len, messages)),
        array("I", [0] * count),
        bytes(count),
        bytes(count),
        ends,
        b"".join(messages),
        **more,
    )


def rows(found: Page, *names: str) -> list[dict[str, Any]]:
    names = names or NAMES
    batch = record_batch(found, "orders", names, arrow_schema(names))
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(names))
    result: list[dict[str, Any]] = batch.to_pylist()
    return result


@pytest.mark.req("D1")
def test_the_schema_is_what_spark_compares_with() -> None:
    """It looks at the first batch, and takes no other string, time or nullability (SPARK-55583)."""
    struct = StructType()
    for column in COLUMNS:
        struct = struct.add(column.name, TYPES[column.type])
        assert TYPES[column.type].simpleString() == column.type
    assert arrow_schema(NAMES).equals(to_arrow_schema(struct, timezone="UTC"))


@pytest.mark.req("D1")
def test_a_message_in_columns() -> None:
    (row,) = rows(
        page(
            encode_message(
                body=b"hello",
                message_id="m",
                correlation_id=UUID(int=7),
                session_id="s",
                label="l",
                content_type="text/plain",
                to="t",
                reply_to="r",
                reply_to_session_id="rs",
                partition_key="s",
                ttl_ms=5_000,
                priority=7,
                scheduled_ms=1_700_000_000_000,
                properties={"n": 1, "t": "x", "none": None},
            )
        )
    )
    when = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert row.pop("enqueued_time") == when
    assert row.pop("scheduled_enqueue_time") == when.replace(microsecond=0)
    assert dict(row.pop("properties")) == {"n": "1", "t": "x", "none": None}
    assert dict(row.pop("property_types")) == {"n": "int", "none": "null"}
    assert row.pop("size") > 50
    assert row == {
        "entity": "orders",
        "sequence_number": 1,
        "message_id": "m",
        "body": b"hello",
        "body_type": None,
        "subject": "l",
        "content_type": "text/plain",
        "correlation_id": str(UUID(int=7)),
        "session_id": "s",
        "partition_key": "s",
        "to": "t",
        "reply_to": "r",
        "reply_to_session_id": "rs",
        "time_to_live_ms": 5_000,
        "priority": 7,
        "delivery_count": 0,
        "state": "active",
        "dead_letter_reason": None,
        "dead_letter_description": None,
        "dead_letter_source": None,
    }


def test_numbers_of_64_bits() -> None:
    found = page(b"\x00\x53\x75\xa0\x00")
    found.sequence_numbers[0] = (1 << 62) + 1
    assert rows(found, "sequence_number") == [{"sequence_number": (1 << 62) + 1}]


def test_what_the_broker_changed_lies_over_the_message() -> None:
    """A dead letter's reason, and where it died."""
    edits = Edits(
        {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"},
        system={"DeadLetterSource": "q"},
    )
    dead, alive = rows(
        page(encode_message(body=b"x"), encode_message(body=b"y"), edits={0: edits}),
        "dead_letter_reason",
        "dead_letter_description",
        "dead_letter_source",
    )
    assert list(dead.values()) == ["r", "d", "q"]
    assert list(alive.values()) == [None, None, None]


@pytest.mark.parametrize(
    ("payload", "body", "kind"),
    [
        (encode_message(body=b""), b"", None),
        (encode_message(body=b"x" * 300), b"x" * 300, None),
        (encode_message(body=None, message_id="m"), None, None),
        (encode_message(body=b"a") + encode_message(body=b"b"), b"ab", None),
        (encode_message(body=b"a") + b"\x00\x53\x78\xc1\x01\x00", b"a", None),
        (b"\x00\x53\x77" + encode("text"), b"text", "string"),
        (b"\x00\x53\x77" + encode([1]), b"\x00\x53\x77" + encode([1]), "amqp"),
        (b"\x00\x53\x76" + encode([1]), b"\x00\x53\x76" + encode([1]), "amqp"),
    ],
)
def test_bodies_of_every_kind(payload: bytes, body: bytes | None, kind: str | None) -> None:
    assert rows(page(payload), "body", "body_type") == [{"body": body, "body_type": kind}]


@pytest.mark.req("D8")
def test_a_strange_message_does_not_stop_the_others() -> None:
    """What cannot be read is null: half a message, a priority that is text, half a character."""
    bad_priority = b"\x00\x53\x70" + encode([True, "high"]) + encode_message(body=b"p")
    lone = encode_message(body=b"c", label="x\x7f").replace(b"x\x7f", b"\xed\xa0")
    found = rows(page(b"\x00\x53\x75", bad_priority, lone, encode_message(body=b"d", label="fine")))
    assert [row["body"] for row in found] == [None, b"p", b"c", b"d"]
    assert [row["priority"] for row in found] == [None] * 4
    assert found[3]["subject"] == "fine"


def test_only_what_is_needed_travels() -> None:
    assert fields_for(("entity", "size", "sequence_number")) == "none"
    assert fields_for(("entity", "subject")) == "properties"
    assert fields_for(("body",)) == "all"


VALUES: list[Value] = [
    None,
    "text",
    "",
    True,
    False,
    -1,
    1 << 62,
    1.5,
    float("inf"),
    Decimal("1.50"),
    UUID(int=5),
    b"\x00\xff",
    Timestamp(1_700_000_000_123),
    Timestamp(-62_135_596_800_001),
    Duration(7),
    Symbol("s"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_it_was(value: Value) -> None:
    found = value_of(text_of(value), type_of(value))
    assert found == value
    assert type(found) is type(value)


def test_what_is_no_value() -> None:
    for text, kind in (("x", "int"), ("x", "colour"), ("maybe", "bool"), ("!", "binary")):
        with pytest.raises(ArgumentError, match="no value of type"):
            value_of(text, kind)


def test_maps_without_an_entry_are_null() -> None:
    found = rows(
        page(encode_message(body=b"a"), encode_message(body=b"b", properties={"k": "v"})),
        "properties",
        "property_types",
    )
    assert found == [
        {"properties": None, "property_types": None},
        {"properties": [("k", "v")], "property_types": None},
    ]
    assert pa.types.is_map(arrow_schema(("properties",)).field(0).type)
