"""Options of the source: read from text, refused by name, and in the manual, all of them."""

from __future__ import annotations

import pytest

from tandembus.errors import ArgumentError
from tandembus.spark.columns import COLUMNS, NAMES
from tandembus.spark.options import ENVIRONMENT, TABLE, parse_read, parse_write
from tandembus.spark.source import ServiceBusSource

SECRET = "c2VjcmV0"
PLACE = f"Endpoint=sb://localhost:1;SharedAccessKeyName=k;SharedAccessKey={SECRET}"
GIVEN = {"connectionString": PLACE, "entity": "orders"}


def test_what_is_not_said_has_a_default() -> None:
    found = parse_read(GIVEN, streams=True)
    assert found.entities == ("orders",)
    assert found.columns == NAMES
    assert (found.starting, found.ending, found.consumes) == ("earliest", "latest", False)
    assert (found.partitions, found.bytes_per_partition) == (None, 16 << 20)
    assert (found.max_messages, found.max_bytes, found.tap_ms) == (None, None, None)
    assert found.fails_on_data_loss
    assert not found.has_cursor
    assert found.target.retry_ms == 120_000
    assert found.target.extensions is None


def test_names_are_taken_in_any_case_and_values_in_their_units() -> None:
    found = parse_read(
        {
            **GIVEN,
            "ENTITY": "a, b/Subscriptions/c",
            "maxbytespertrigger": "2m",
            "MaxMessagesPerTrigger": "7",
            "retryTimeout": "90s",
            "tap": "1h",
            "startingTime": "2026-01-31T12:00:00Z",
            "extensions": "false",
        },
        streams=True,
    )
    assert found.entities == ("a", "b/Subscriptions/c")
    assert (found.max_bytes, found.max_messages) == (2 << 20, 7)
    assert found.target.retry_ms == 90_000
    assert found.target.extensions is False
    assert found.tap_ms == 3_600_000
    assert found.starting_ms == 1_769_860_800_000
    assert found.has_cursor


def test_bodies_can_be_left_out() -> None:
    assert "body" not in parse_read({**GIVEN, "body": "false"}, streams=False).columns
    chosen = parse_read({**GIVEN, "columns": "size, entity"}, streams=False).columns
    assert chosen == ("size", "entity")


@pytest.mark.parametrize(
    ("options", "streams", "told"),
    [
        (
            {"maxMesages": "1"},
            True,
            "'maxmesages' is not an option of the servicebus source. There",
        ),
        ({"quarantine": "x"}, True, "'quarantine' is an option for: write"),
        ({"mode": "consume"}, False, "'mode' is an option for: stream"),
        ({"endingTime": "1"}, True, "'endingTime' is an option for: read"),
        ({"mode": "drain"}, True, "'mode' is one of browse, consume; not 'drain'"),
        ({"body": "no"}, True, "'body' is one of true, false"),
        ({"columns": "sise"}, True, "There is no column 'sise'"),
        ({"partitions": "0"}, True, "'partitions' is a number above 0"),
        ({"maxBytesPerTrigger": "much"}, True, "a number of bytes"),
        ({"tap": "long"}, True, "a length of time"),
        ({"tap": "1h", "mode": "consume"}, True, "'tap' is for mode 'browse'"),
        ({"startingTime": "noon"}, True, "'startingTime' is a time"),
        ({"startingPosition": "[1]"}, True, "'startingPosition' is earliest, latest"),
        ({"filter": "a = = b"}, True, "'filter' is not a SQL filter"),
        ({"entity": "a,,b"}, True, "'entity' is missing"),
        ({"connectionString": "x"}, True, "connection string"),
    ],
)
def test_what_is_wrong_is_told_by_name(options: dict[str, str], streams: bool, told: str) -> None:
    with pytest.raises(ArgumentError, match=".*".join(told.split("…"))) as caught:
        parse_read({**GIVEN, **options}, streams=streams)
    assert SECRET not in str(caught.value)


def test_before_it_is_known_what_it_is_for_both_are_taken() -> None:
    """Spark asks for the schema before it says whether it reads a stream."""
    assert parse_read({**GIVEN, "mode": "consume"}, streams=None).consumes
    assert parse_read({**GIVEN, "endingPosition": "7"}, streams=None).ending == 7


def test_positions() -> None:
    assert parse_read({**GIVEN, "startingPosition": "LATEST"}, streams=True).starting == "latest"
    found = parse_read({**GIVEN, "startingPosition": '{"a#1": 5}'}, streams=True)
    assert found.starting == {"a#1": 5}


def test_the_connection_string_can_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds a key; and it may name the entity."""
    with pytest.raises(ArgumentError, match=ENVIRONMENT):
        parse_read({"entity": "orders"}, streams=True)
    monkeypatch.setenv(ENVIRONMENT, f"{PLACE};EntityPath=orders")
    assert parse_read({}, streams=True).entities == ("orders",)
    assert parse_write({}).entity == "orders"


def test_a_key_does_not_show_itself() -> None:
    assert SECRET not in repr(parse_read(GIVEN, streams=True))
    assert SECRET not in repr(parse_write(GIVEN))


def test_writing() -> None:
    found = parse_write({**GIVEN, "quarantine": "/q", "messageIdPrefix": "nightly"})
    assert (found.entity, found.quarantine, found.prefix) == ("orders", "/q", "nightly")
    assert parse_write(GIVEN).prefix is None
    with pytest.raises(ArgumentError, match="one queue or topic"):
        parse_write({**GIVEN, "entity": "a,b"})


@pytest.mark.req("D1")
def test_the_manual_has_every_option_and_column() -> None:
    """As they are; nothing else."""
    manual = ServiceBusSource.__doc__ or ""
    rows = [line.strip() for line in manual.splitlines() if line.strip().startswith("| `")]
    options = [
        f"| `{it.name}` | {', '.join(it.use.split())} | {f'`{it.default}`' if it.default else ''} "
        f"| {it.what} |"
        for it in TABLE
    ]
    columns = [
        f"| `{it.name}` | {it.type} | {'yes' if it.is_sent else ''} | {it.what} |" for it in COLUMNS
    ]
    assert rows == options + columns
