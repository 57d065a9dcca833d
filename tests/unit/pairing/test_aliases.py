"""What is put aside on the way into a backlog is put back exactly (N6)."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from tandembus.amqp.message import AmqpMessage, encode_message, sections
from tandembus.amqp.types import (
    Char,
    Float,
    Int,
    Long,
    Short,
    UInt,
    ULong,
    encode,
    encode_composite,
    encode_described,
    encode_map,
    encode_string,
    encode_symbol,
)
from tandembus.model import Duration, Symbol, Timestamp, Value
from tandembus.pairing import wire
from tandembus.pairing.aliases import (
    ALIASES,
    PATH,
    SCHEDULED_TIME,
    SESSION_ID,
    TIME_TO_LIVE,
    Stamp,
    Unreadable,
    aliased,
    restored,
)

NOW = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def new_id() -> str:
    return "made up"


def delivered(payload: bytes, number: int = 7) -> bytes:
    """As a broker hands it out: its own header field and annotations are in front."""
    parts = {code: payload[start:end] for code, start, end in sections(payload)}
    header = encode_composite(
        0x70, [encode(None), encode(None), encode(None), encode(None), encode(UInt(3))]
    )
    token = encode_map([encode_symbol("x-opt-lock-token"), encode(UUID(int=5))])
    marks = encode_map(
        [
            encode_symbol("x-opt-sequence-number"), encode(Long(number)),
            encode_symbol("x-opt-enqueued-time"), encode(Timestamp(1)),
            encode_symbol("x-opt-locked-until"), encode(Timestamp(60_001)),
        ]
    )  # fmt: skip
    rest = b"".join(part for code, part in parts.items() if code not in (0x70, 0x71, 0x72))
    return header + encode_described(0x71, token) + encode_described(0x72, marks) + rest


@pytest.mark.req("N6")
def test_the_aliases_are_those_of_the_original() -> None:
    """SessionId, TimeToLive and ScheduledEnqueueTimeUtc are cleared, and kept under these names
    with their types; the destination is beside them."""
    (payload,) = wire.encoded(
        [
            ServiceBusMessage(
                b"body",
                message_id="m1",
                session_id="s1",
                time_to_live=timedelta(seconds=90),
                scheduled_enqueue_time_utc=NOW,
                application_properties={"colour": "red"},
            )
        ]
    )
    on_its_way = AmqpMessage(aliased(payload, "shop/orders", new_id))
    assert (on_its_way.session_id, on_its_way.ttl_ms, on_its_way.scheduled_ms) == (None,) * 3
    assert on_its_way.message_id == "m1"
    assert on_its_way.properties == {
        "colour": "red",
        "x-ms-path": "shop/orders",
        "x-ms-sessionid": "s1",
        "x-ms-timetolive": 90_000,
        "x-ms-scheduledenqueuetimeutc": Timestamp(NOW.timestamp() * 1000),
    }
    assert isinstance(on_its_way.properties[SCHEDULED_TIME], Timestamp)
    back = restored(on_its_way.payload)
    assert (back.path, back.payload) == ("shop/orders", payload)
    assert back.group == ("shop/orders", "s1")


@pytest.mark.req("N6")
def test_what_the_broker_wrote_goes() -> None:
    """Number, times, lock and delivery count are the secondary's, and not for the primary."""
    (payload,) = wire.encoded([ServiceBusMessage(b"x", message_id="m", session_id="s")])
    back = restored(delivered(aliased(payload, "q", new_id), 7))
    assert back.payload == payload
    assert (back.sequence_number, back.locked_until_ms) == (7, 60_001)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.integers(-(2**40), 2**40).map(Timestamp),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float),
    st.text(max_size=40),
    st.text("abcdef-:", max_size=20).map(Symbol),
    st.characters(codec="utf-8").map(Char),
    st.binary(max_size=300),
    st.uuids(),
)
names = st.text(min_size=1, max_size=20).filter(lambda name: name not in ALIASES)


@pytest.mark.req("N6")
@given(
    ids=st.one_of(st.text(min_size=1, max_size=128), st.uuids(), st.binary(min_size=1)),
    session_id=st.none() | st.text(max_size=128),
    ttl_ms=st.none() | st.integers(0, 2**32 - 1),
    priority=st.none() | st.integers(0, 9),
    scheduled_ms=st.none() | st.integers(0, 2**42),
    properties=st.dictionaries(names, values, max_size=6),
    annotations=st.dictionaries(
        st.text("abc", min_size=1, max_size=8).map("x-opt-mine-{}".format), values, max_size=3
    ),
    body=st.binary(max_size=400),
    stamp=st.none() | st.builds(Stamp, st.just("me"), st.integers(0, 2**50), st.just(("0.3",))),
)
def test_there_and_back(
    ids: str | UUID | bytes,
    session_id: str | None,
    ttl_ms: int | None,
    priority: int | None,
    scheduled_ms: int | None,
    properties: dict[str, object],
    annotations: dict[str, object],
    body: bytes,
    stamp: Stamp | None,
) -> None:
    """Whatever a message has, every byte of it is as before: all AMQP types too."""
    payload = encode_message(
        body=body,
        message_id=ids,
        session_id=session_id,
        ttl_ms=ttl_ms,
        priority=priority,
        scheduled_ms=scheduled_ms,
        properties=properties,  # type: ignore[arg-type]
        annotations=annotations,
        reply_to="r",
        content_type="text/plain",
    )
    back = restored(aliased(payload, "q", new_id, stamp))
    assert {code: payload[a:b] for code, a, b in sections(payload)} == {
        code: _tidy(back.payload[a:b], code, payload) for code, a, b in sections(back.payload)
    }
    assert back.stamp == stamp
    assert back.session_id == session_id


def _tidy(section: bytes, code: int, payload: bytes) -> bytes:
    """A header's list may have grown by nulls at its end; that says the same (§1.4)."""
    if code != 0x70:
        return section
    (original,) = [payload[a:b] for found, a, b in sections(payload) if found == 0x70]
    assert AmqpMessage(section).ttl_ms == AmqpMessage(original).ttl_ms
    assert AmqpMessage(section).priority == AmqpMessage(original).priority
    return original


@pytest.mark.req("N6")
def test_bodies_of_every_kind_stay() -> None:
    """Several data sections, a value, a sequence, a footer."""
    for message in (
        AmqpAnnotatedMessage(data_body=[b"a", b"b" * 300]),
        AmqpAnnotatedMessage(value_body={"key": [1, None, "x"]}),
        AmqpAnnotatedMessage(sequence_body=[[1, 2], ["three"]]),
        AmqpAnnotatedMessage(data_body=b"x", footer={"f": 1}),
    ):
        (payload,) = wire.encoded([message])
        back = restored(aliased(payload, "q", new_id)).payload
        # It had no id, and got one.
        assert AmqpMessage(back).message_id == "made up"
        assert [(code, back[a:b]) for code, a, b in sections(back) if code not in (0x73,)] == [
            (code, payload[a:b]) for code, a, b in sections(payload)
        ]


def test_a_message_without_an_id_gets_one() -> None:
    """So that the primary can tell when the syphon has brought it twice."""
    on_its_way = aliased(encode_message(body=b"x"), "q", new_id)
    assert AmqpMessage(on_its_way).message_id == "made up"


def test_a_reserved_property_is_refused() -> None:
    """What already is an alias could not be told from ours."""
    with pytest.raises(ValueError, match="x-ms-path"):
        aliased(encode_message(properties={PATH: "elsewhere"}), "q", new_id)


@pytest.mark.req("N9")
@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({}, "x-ms-path is missing"),
        ({PATH: 5}, "x-ms-path is not a text"),
        ({PATH: ""}, "x-ms-path is not a text"),
        ({PATH: "q", SESSION_ID: 5}, "x-ms-sessionid is not a text"),
        ({PATH: "q", TIME_TO_LIVE: "long"}, "x-ms-timetolive is not a length of time"),
        ({PATH: "q", TIME_TO_LIVE: -1}, "x-ms-timetolive is not a length of time"),
        ({PATH: "q", TIME_TO_LIVE: Timestamp(5)}, "x-ms-timetolive is not a length of time"),
        ({PATH: "q", SCHEDULED_TIME: "soon"}, "x-ms-scheduledenqueuetimeutc is not a time"),
        ({PATH: "q", "x-tandem-sender": 1}, "x-tandem-sender"),
    ],
)
def test_what_is_not_understood(properties: dict[str, object], why: str) -> None:
    """A wrong type is said, not guessed at."""
    payload = encode_message(properties=properties)  # type: ignore[arg-type]
    with pytest.raises(Unreadable, match=why):
        restored(payload)


def test_bytes_that_are_no_message() -> None:
    """Are unreadable, and nothing else."""
    for payload in (b"\x00", b"hello", struct.pack(">I", 5), b"\x00\x53\x74\xc1\x05\x04\xa1"):
        with pytest.raises(Unreadable):
            restored(payload)


@given(st.binary(max_size=200))
def test_any_bytes(payload: bytes) -> None:
    """No bytes raise anything else."""
    with suppress(Unreadable):
        restored(payload)


@pytest.mark.req("N6")
def test_other_writers() -> None:
    """The length of time may be a timespan, as .NET writes it; the times may be whole numbers."""
    properties: dict[str, Value] = {
        PATH: "q",
        TIME_TO_LIVE: Duration(5_000 * 10_000),
        SCHEDULED_TIME: Long(77),
    }
    back = AmqpMessage(restored(encode_message(properties=properties)).payload)
    assert (back.ttl_ms, back.scheduled_ms, back.properties) == (5_000, 77, {})


def test_a_session_id_as_bytes() -> None:
    """The SDK writes back as binary what it received as a text; it stays as it is."""
    fields = [encode(None)] * 10 + [encode(b"s1")]
    payload = encode_composite(0x73, [encode_string("m"), *fields[1:]]) + encode_message(body=b"x")
    back = restored(aliased(payload, "q", new_id))
    assert (back.payload, back.session_id) == (payload, "s1")
