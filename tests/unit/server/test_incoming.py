"""What a transfer carries: formats, limits, the made-up message id, and the tidy payload."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus import limits
from tandembus.amqp import message as m
from tandembus.amqp import types as t
from tandembus.amqp.message import AmqpMessage, ParsedMessage, encode_message, sections
from tandembus.errors import ArgumentError, MessageSizeExceededError, ProtocolError, TandemError
from tandembus.model import PING_CONTENT_TYPE, Timestamp, Value
from tandembus.server.incoming import BATCH, BROKER_ANNOTATIONS, Intake, messages_of

DATA = t.encode_described(m.DATA, t.encode_binary(b"body"))
MADE_UP = "0000000000000000000000000000abcd"


def bits(count: int) -> int:
    assert count == 128
    return 0xABCD


def taken(payload: bytes) -> ParsedMessage:
    (message,) = messages_of(payload, 0, bits)
    return message


def mapped(code: int, *parts: bytes) -> bytes:
    return t.encode_described(code, t.encode_map(parts))


def listed(code: int, *parts: bytes) -> bytes:
    return t.encode_described(code, t.encode_list(parts))


def codes(payload: bytes) -> list[int]:
    return [code for code, _, _ in sections(payload)]


def section(payload: bytes, code: int) -> object:
    """What the section of that code holds."""
    at = next(start for other, start, _ in sections(payload) if other == code)
    return t.decode(payload, at + 3)[0]


ATTRIBUTES = [name for name in ParsedMessage.__slots__ if name != "payload"]


def is_settled(message: ParsedMessage) -> None:
    """The attributes are those of the payload, and taking the payload again changes nothing."""
    again = AmqpMessage(message.payload)
    for name in ATTRIBUTES:
        assert repr(getattr(message, name)) == repr(getattr(again, name)), name
    assert taken(message.payload).payload == message.payload


# --- formats --------------------------------------------------------------------------------------


def test_a_usual_message_is_not_touched() -> None:
    """WIRE §5.1: the sender's bytes are stored, the very same object."""
    payload = encode_message(body=b"x", message_id="id", properties={"a": 1, "b": "two"})
    message = taken(payload)
    assert message.payload is payload
    assert message.properties == {"a": 1, "b": "two"}
    is_settled(message)


def test_a_batch_gives_its_messages_in_order() -> None:
    """WIRE §5.2: each data section is a message; the envelope's properties mean nothing."""
    inner = [encode_message(body=b"x", message_id=str(n)) for n in range(300)]
    envelope = listed(m.PROPERTIES, t.encode("0")) + b"".join(
        t.encode_described(m.DATA, t.encode_binary(it)) for it in inner
    )
    found = messages_of(envelope, BATCH, bits)
    assert [it.message_id for it in found] == [str(n) for n in range(300)]
    assert [it.payload for it in found] == inner


def test_an_error_says_which_message_of_a_batch() -> None:
    inner = [encode_message(message_id="a"), encode_message(message_id="x" * 129)]
    envelope = b"".join(t.encode_described(m.DATA, t.encode_binary(it)) for it in inner)
    with pytest.raises(ArgumentError, match="Message 2 of the batch: MessageId has 129 characters"):
        messages_of(envelope, BATCH, bits)


def test_other_formats_and_large_batches_are_refused() -> None:
    with pytest.raises(ArgumentError, match="0x80013701 is not known"):
        messages_of(DATA, 0x8001_3701, bits)
    with pytest.raises(MessageSizeExceededError, match="at most 1048576"):
        messages_of(bytes(limits.MAX_BATCH_BYTES + limits.BATCH_ENVELOPE + 1), BATCH, bits)
    with pytest.raises(ProtocolError):
        messages_of(b"", BATCH, bits)


# --- what Azure refuses, too (FW6) ---------------------------------------------------------------


@pytest.mark.req("T18")
def test_fw6_a_transfer_without_bytes_is_refused() -> None:
    """It is no message; neither by itself nor as a message of a batch."""
    with pytest.raises(ArgumentError, match="The transfer has no bytes"):
        messages_of(b"", 0, bits)
    with pytest.raises(ArgumentError, match="The transfer has no bytes"):
        Intake(bits).take(b"")
    empty = t.encode_described(m.DATA, b"\xa0\x00")
    with pytest.raises(ArgumentError, match="Message 2 of the batch: The transfer has no bytes"):
        messages_of(t.encode_described(m.DATA, t.encode(DATA)) + empty, BATCH, bits)


@pytest.mark.req("T18", "T22")
@pytest.mark.parametrize(
    "value",
    [
        t.encode_list([t.encode(1)]),
        b"\x45",
        t.encode_map([t.encode("a"), t.encode(1)]),
        t.encode_array(["a"], 0xA1),
        b"\x00\xa3\x01x" + t.encode_list([t.encode(1)]),
    ],
)
def test_fw6_a_property_that_is_no_simple_value_is_refused(value: bytes) -> None:
    """AMQP 1.0 §3.2.5: no list, map or array, described or not. The text names the property."""
    section = mapped(
        m.APPLICATION_PROPERTIES, t.encode("fine"), t.encode(1), t.encode("odd"), value
    )
    with pytest.raises(
        ArgumentError, match="application property 'odd' is a list, a map or an array"
    ):
        messages_of(section + DATA, 0, bits)


def test_fw6_a_described_simple_value_is_kept() -> None:
    """Microsoft's libraries write a URI and a time span so."""
    value = b"\x00\xa3\x01x" + t.encode("y")
    payload = mapped(m.APPLICATION_PROPERTIES, t.encode("d"), value) + DATA
    (message,) = messages_of(payload, 0, bits)
    assert value in message.payload


PING = encode_message(content_type=PING_CONTENT_TYPE, body=None)


@pytest.mark.req("N8")
@pytest.mark.parametrize("bodies", [(b"", b"x"), (b"x", b""), (b"x", b"", b"y", b"")])
def test_fw6_only_an_empty_message_is_a_ping(bodies: tuple[bytes, ...]) -> None:
    """Whatever came before it with the same sections and another body."""
    intake = Intake(bits)
    for body in bodies:
        payload = PING + t.encode_described(m.DATA, t.encode(body))
        assert intake.take(payload).is_ping is (body == b"")
        assert messages_of(payload, 0, bits)[0].is_ping is (body == b"")
    assert intake.take(PING).is_ping


# --- the message id -------------------------------------------------------------------------------

LONG_LABEL = t.encode("l" * 240)


@pytest.mark.parametrize(
    "payload",
    [
        DATA,
        listed(m.PROPERTIES) + DATA,
        t.encode_described(m.PROPERTIES, b"\xc0\x01\x00") + DATA,
        t.encode_described(m.PROPERTIES, b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00") + DATA,
        listed(m.PROPERTIES, t.NULL) + DATA,
        listed(m.PROPERTIES, *[t.NULL] * 13) + DATA,
        listed(m.PROPERTIES, t.NULL, t.NULL, t.NULL, LONG_LABEL) + DATA,
        listed(m.PROPERTIES, t.NULL, t.NULL, t.NULL, t.encode("l" * 215)) + DATA,
        listed(m.PROPERTIES, t.NULL, t.NULL, t.NULL, t.encode("l" * 216)) + DATA,
        listed(m.PROPERTIES, t.NULL, t.NULL, t.NULL, t.encode("l" * 300)) + DATA,
        mapped(m.APPLICATION_PROPERTIES, t.encode("k"), t.encode(1)) + DATA,
        encode_message(body=b"body", durable=True, partition_key="p"),
        encode_message(body=b"body", durable=True, partition_key="p", label="l"),
        DATA + listed(m.PROPERTIES, t.NULL, t.NULL, t.NULL, t.encode("l")),
    ],
)
def test_a_missing_message_id_is_made_up_and_stored(payload: bytes) -> None:
    """WIRE §0.5: @azure/service-bus cannot settle a message without one. It is in the payload, so
    every delivery shows the same; all else stays as it was."""
    message = taken(payload)
    assert message.message_id == MADE_UP
    is_settled(message)
    before = AmqpMessage(payload)
    for name in ATTRIBUTES:
        if name != "message_id":
            assert getattr(message, name) == getattr(before, name), name
    assert message.payload.endswith(DATA) or payload.startswith(DATA)


def test_twins_differ_in_body_and_id_only() -> None:
    """What was read for one message is used for the next with the same sections before its body;
    what comes behind the body is looked at all the same."""
    numbers = iter(range(100))

    def drawn(count: int) -> int:
        return next(numbers)

    head = (
        listed(m.HEADER, t.encode_boolean(True), t.encode_ubyte(7), t.encode_uint(5_000))
        + mapped(m.MESSAGE_ANNOTATIONS, t.encode_symbol("mine"), t.encode_int(3))
        + listed(m.PROPERTIES, t.NULL, t.NULL, t.encode_string("there"))
        + mapped(m.APPLICATION_PROPERTIES, t.encode_string("colour"), t.encode_string("red"))
    )
    bodies = [DATA, t.encode_described(m.DATA, t.encode_binary(b"x" * 70_000)), DATA + DATA]
    for number, body in enumerate(bodies):
        (message,) = messages_of(head + body, 0, drawn)
        assert message.message_id == f"{number:032x}"
        assert (message.priority, message.ttl_ms, message.to) == (7, 5_000, "there")
        assert message.properties == {"colour": "red"}
        assert message.payload.endswith(body)
        is_settled(message)
    intake = Intake(drawn)
    for size in (0, 1, 255, 256, 70_000):
        for _ in range(2):  # the second one is known by its first bytes
            body = t.encode_described(m.DATA, t.encode_binary(b"x" * size))
            taken_in = intake.take(head + body)
            assert taken_in.payload.endswith(body)
            assert taken_in.properties == {"colour": "red"}
            is_settled(taken_in)
    for rest in (b"", b"\x00\x53\x75\xa0", DATA[:-1], DATA + b"\x00", DATA + DATA):
        try:
            expected = messages_of(head + rest, 0, lambda _: 5)[0].payload
        except ProtocolError:
            with pytest.raises(ProtocolError):
                intake.take(head + rest)
        else:
            assert len(intake.take(head + rest).payload) == len(expected)
    broken = head + DATA + t.encode_described(m.FOOTER, b"\xc1\x04\x02\xa3\x05f\x40")
    with pytest.raises(ProtocolError):
        messages_of(broken, 0, drawn)


@pytest.mark.parametrize("message_id", ["id", "", UUID(int=5), b"\x01", 0, 7])
def test_a_message_id_keeps_its_type(message_id: str | UUID | bytes | int) -> None:
    """AMQP 1.0 §3.2.4: string, uuid, binary and ulong are all message ids."""
    payload = encode_message(message_id=message_id)
    assert taken(payload).payload is payload


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("MessageId", encode_message(message_id="é" * 129)),
        ("MessageId", encode_message(message_id=b"x" * 129)),
        ("SessionId", encode_message(message_id="i", session_id="x" * 129)),
        ("ReplyToSessionId", encode_message(message_id="i", reply_to_session_id="x" * 129)),
        ("PartitionKey", encode_message(message_id="i", partition_key="x" * 129)),
        ("ViaPartitionKey", encode_message(message_id="i", via_partition_key="x" * 129)),
    ],
)
def test_a_long_identifier_is_named(name: str, payload: bytes) -> None:
    """PRODUCT B.5: the error says which property it is, its length and the limit."""
    with pytest.raises(ArgumentError, match=rf"^{name} has 129 \w+; at most 128 are allowed"):
        taken(payload)


def test_identifiers_of_the_largest_length_pass() -> None:
    it = "é" * 128
    message = taken(
        encode_message(
            message_id=it, session_id=it, reply_to_session_id=it, partition_key=it,
            via_partition_key=it,
        )
    )  # fmt: skip
    assert message.message_id == message.session_id == message.partition_key == it


def test_a_large_application_property_is_named() -> None:
    """Azure/azure-sdk-for-net#15325: Azure only says that it cannot process the request."""
    most = limits.MAX_PROPERTY_VALUE
    fits: dict[str, Value] = {"small": 1, "large": "x" * most}
    assert taken(encode_message(message_id="i", properties=fits)).properties == fits
    over: dict[str, Value] = {"small": 1, "large": "x" * (most + 1)}
    with pytest.raises(ArgumentError, match="property 'large' has 32769 bytes; at most 32768"):
        taken(encode_message(message_id="i", properties=over))


def test_all_properties_together_have_a_limit() -> None:
    over: dict[str, Value] = {f"p{n}": "x" * 30_000 for n in range(3)}
    with pytest.raises(ArgumentError, match=r"have 90\d\d\d bytes together; at most 65536 .*'p0'"):
        taken(encode_message(message_id="i", properties=over))
    with pytest.raises(ArgumentError, match="together"):
        taken(encode_message(message_id="i", label="x" * 70_000))
    body = b"x" * 200_000
    assert taken(encode_message(message_id="i", body=body, label="x" * 60_000)).label


def test_the_number_of_properties_has_a_limit() -> None:
    most = limits.MAX_PROPERTY_COUNT
    for count in (most, most + 1, 4_000):
        payload = encode_message(message_id="i", properties={f"{n:x}": 1 for n in range(count)})
        if count == most:
            assert len(taken(payload).properties) == most
        else:
            with pytest.raises(ArgumentError, match=f"{count} application properties; at most 256"):
                taken(payload)


# --- tidying --------------------------------------------------------------------------------------


def test_what_only_the_broker_says_is_dropped() -> None:
    """WIRE §5.2: clients send a received message again with all of these still set."""
    annotations: dict[str, object] = dict.fromkeys(sorted(BROKER_ANNOTATIONS), 1)
    payload = encode_message(message_id="i", annotations={**annotations, "x-opt-mine": 5})
    message = taken(payload)
    assert section(message.payload, m.MESSAGE_ANNOTATIONS) == {"x-opt-mine": 5}
    is_settled(message)
    message = taken(encode_message(message_id="i", annotations=annotations))
    assert codes(message.payload) == [m.PROPERTIES, m.DATA]


def test_delivery_annotations_are_kept_but_for_the_lock_token() -> None:
    """WIRE §5.2, §1.7: the sender's own come back to the receiver; azure-servicebus sends them
    after the body."""
    token = (t.encode_symbol("x-opt-lock-token"), t.encode(UUID(int=1)))
    own = (t.encode_symbol("mine"), t.encode("x"))
    bare = encode_message(message_id="i")
    message = taken(bare + mapped(m.DELIVERY_ANNOTATIONS, *token, *own))
    assert message.payload == mapped(m.DELIVERY_ANNOTATIONS, *own) + bare
    assert taken(bare + mapped(m.DELIVERY_ANNOTATIONS, *token)).payload == bare
    with pytest.raises(ProtocolError):
        taken(bare + t.encode_described(m.DELIVERY_ANNOTATIONS, b"\xc1\x03\x02\x40\x01"))


def test_the_header_is_kept_but_for_the_delivery_count() -> None:
    """WIRE §5.2: header.delivery-count is ignored on input."""
    bare = encode_message(message_id="i")
    fields = [t.encode(True), t.encode_ubyte(9), t.encode_uint(5), t.encode(False)]
    message = taken(listed(m.HEADER, *fields, t.encode_uint(7)) + bare)
    assert message.payload == listed(m.HEADER, *fields) + bare
    assert (message.priority, message.ttl_ms) == (9, 5)
    is_settled(message)
    assert taken(listed(m.HEADER, *[t.NULL] * 4, t.encode_uint(7)) + bare).payload == bare
    for bad in ([t.encode(1)], [t.NULL, t.NULL, t.NULL, t.encode("x")]):
        with pytest.raises(ProtocolError):
            taken(listed(m.HEADER, *bad) + bare)


def test_the_empty_sections_of_javascript_are_dropped() -> None:
    """WIRE §1.7: @azure/service-bus always writes a header as list0 and annotations as map32."""
    bare = encode_message(message_id="i", label="l")
    for empty in (b"\xc1\x01\x00", b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00"):
        opening = listed(m.HEADER) + t.encode_described(m.MESSAGE_ANNOTATIONS, empty)
        message = taken(opening + bare)
        assert message.payload == bare
        is_settled(message)
    kept = t.encode_described(m.MESSAGE_ANNOTATIONS, b"\xc1\x07\x02\x43\x71\x00\x00\x00\x00")
    assert taken(kept + bare).payload == kept + bare


def test_annotations_that_came_back_get_their_types_again() -> None:
    """azure-servicebus sends back a string as binary, and a timestamp as an integer (WIRE §5.3)."""
    annotations = {
        m.PARTITION_KEY: b"p",
        m.VIA_PARTITION_KEY: b"v",
        m.SCHEDULED: 1_700_000_000_000,
    }
    message = taken(encode_message(message_id="i", annotations=annotations))
    found = section(message.payload, m.MESSAGE_ANNOTATIONS)
    assert found == {
        m.PARTITION_KEY: "p",
        m.VIA_PARTITION_KEY: "v",
        m.SCHEDULED: Timestamp(1_700_000_000_000),
    }
    assert isinstance(found, dict)
    assert type(found[m.SCHEDULED]) is Timestamp
    is_settled(message)


def test_a_known_annotation_twice_is_no_trap() -> None:
    """A repeated key counts with its last value; here that one is null."""
    key = t.encode_symbol(m.PARTITION_KEY)
    payload = mapped(m.MESSAGE_ANNOTATIONS, key, t.encode(b"p"), key, t.NULL)
    message = taken(payload + encode_message(message_id="i"))
    assert message.partition_key is None
    is_settled(message)


def test_sections_get_their_order() -> None:
    """AMQP 1.0 §3.2; two data sections keep theirs."""
    parts = [
        t.encode_described(m.DATA, t.encode_binary(b"one")),
        mapped(m.FOOTER, t.encode_symbol("f"), t.encode(1)),
        mapped(m.APPLICATION_PROPERTIES, t.encode("k"), t.encode(1)),
        listed(m.HEADER, t.encode(True)),
        t.encode_described(m.DATA, t.encode_binary(b"two")),
        listed(m.PROPERTIES, t.encode("id")),
    ]
    message = taken(b"".join(parts))
    one, footer, properties, header, two, ids = parts
    assert message.payload == header + ids + properties + one + two + footer
    assert message.properties == {"k": 1}
    is_settled(message)


def test_fx13_values_keep_their_bytes() -> None:
    """What azure-servicebus cannot read is stored as it came: `outgoing` converts it for that
    client alone."""
    pairs = [
        *(t.encode("a"), bytes.fromhex("74 32800007")),  # 7 as decimal32
        *(t.encode("b"), bytes.fromhex("84 3180000000003039")),  # 123.45 as decimal64
        *(t.encode("c"), t.encode(Decimal("1.20"))),
        *(t.encode("d"), t.encode("text")),
    ]
    pairs += [t.encode("e"), t.encode_char("A")]
    before = mapped(m.APPLICATION_PROPERTIES, *pairs) + DATA
    marks = [*pairs, t.encode("f"), t.encode_list(pairs)]
    notes = mapped(m.DELIVERY_ANNOTATIONS, *marks) + mapped(m.MESSAGE_ANNOTATIONS, *marks)
    whole = notes + listed(m.PROPERTIES, t.encode("id")) + before
    message = taken(whole)
    assert message.payload == whole
    assert {k: str(v) for k, v in message.properties.items()} == {
        "a": str(AmqpMessage(before).properties["a"]),
        "b": str(AmqpMessage(before).properties["b"]),
        "c": "1.20",
        "d": "text",
        "e": "A",
    }
    is_settled(message)


# --- any bytes ------------------------------------------------------------------------------------

names = st.text(max_size=12)
simple: st.SearchStrategy[Value] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False),
    st.text(max_size=300), st.binary(max_size=20), st.uuids(),
    st.integers(0, 2**40).map(Timestamp), st.decimals(allow_nan=False, allow_infinity=False),
)  # fmt: skip
annotation_keys = st.sampled_from([*sorted(BROKER_ANNOTATIONS), "x-opt-mine", "other"])
messages = st.builds(
    encode_message,
    body=st.none() | st.binary(max_size=40),
    message_id=st.none() | st.text(max_size=20) | st.uuids() | st.integers(0, 2**64 - 1),
    session_id=st.none() | st.text(max_size=140),
    label=st.none() | st.text(max_size=300),
    properties=st.dictionaries(names, simple, max_size=5),
    ttl_ms=st.none() | st.integers(0, 2**33),
    durable=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 255),
    partition_key=st.none() | st.text(max_size=20),
    scheduled_ms=st.none() | st.integers(0, 2**45),
    annotations=st.dictionaries(annotation_keys, simple, max_size=4),
)


@settings(max_examples=150, deadline=None)
@given(messages, st.randoms(use_true_random=False), st.integers(0, 3))
def test_any_bytes_give_tidy_messages_or_an_error(
    payload: bytes, chance: object, hits: int
) -> None:
    """H-list: a mutated message is refused with an error of ours, or is as good as any other."""
    raw = bytearray(payload)
    for _ in range(hits if raw else 0):
        at = chance.randrange(len(raw))  # type: ignore[attr-defined]
        raw[at] = chance.randrange(256)  # type: ignore[attr-defined]
    try:
        message = taken(bytes(raw))
    except TandemError:
        return
    is_settled(message)
    assert message.message_id is not None
    found = codes(message.payload)
    opening = [code for code in found if code <= m.MESSAGE_ANNOTATIONS]
    assert found[: len(opening)] == sorted(opening)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(names, simple, max_size=6), st.booleans())
def test_properties_are_those_of_the_general_reader(found: dict[str, Value], is_wide: bool) -> None:
    """The short way and the general one read the same."""
    pairs = [it for k, v in found.items() for it in (t.encode(k), t.encode(v))]
    body = t.encode_map(pairs)
    if is_wide and body[0] == 0xC1:
        size, count = (body[1] + 3).to_bytes(4, "big"), body[2].to_bytes(4, "big")
        body = b"\xd1" + size + count + body[3:]
    payload = encode_message(message_id="i") + t.encode_described(m.APPLICATION_PROPERTIES, body)
    assert repr(taken(payload).properties) == repr(AmqpMessage(payload).properties)


def test_fx14_a_batch_has_no_limit_but_its_size() -> None:
    """.NET fills a megabyte with tens of thousands of small messages; an SDK adds the envelope to
    what it was told."""
    one = b"\x00\x53\x75\xa0\x07\x00\x53\x75\xa0\x02hi"
    count = (limits.MAX_BATCH_BYTES + limits.BATCH_ENVELOPE) // len(one)
    assert len(messages_of(one * count, BATCH, lambda bits: 1)) == count > 80_000
    with pytest.raises(MessageSizeExceededError, match="at most 1048576 are allowed"):
        messages_of(one * (count + 1), BATCH, lambda bits: 1)
