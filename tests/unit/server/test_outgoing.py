"""What a receiver gets: exact bytes, the rules of WIRE §5.3, and azure-servicebus's own decoder."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.amqp import message as m
from tandembus.amqp import types as t
from tandembus.amqp.message import AmqpMessage, encode_message, sections
from tandembus.changes import encode_edits
from tandembus.core.effects import Delivery
from tandembus.core.state import State
from tandembus.model import NEVER, Duration, Edits, Millis, Timestamp, Value
from tandembus.server.incoming import messages_of
from tandembus.server.outgoing import delivery_tag, encoded, render

TOKEN = bytes(range(16))
UUID_OF_TOKEN = UUID("03020100-0504-0706-0809-0a0b0c0d0e0f")
NOW = 1_700_000_000_000


def delivery(
    *,
    token: bytes | None = TOKEN,
    count: int = 0,
    state: State = State.LOCKED,
    edits: Edits | None = None,
    number: int = 1,
) -> Delivery:
    stored = None if edits is None else encode_edits(edits)
    return Delivery(number, 9, token, NOW + 60_000, count, NOW, state, 0, None, stored)


def stored(payload: bytes) -> bytes:
    (message,) = messages_of(payload, 0, lambda _: 0)
    return message.payload


def parts_of(payload: bytes) -> dict[int, Any]:
    """Section code → its value, by our own decoder."""
    return {code: t.decode(payload, start + 3)[0] for code, start, _ in sections(payload)}


def read_by_sdk(payload: bytes) -> Any:
    """The message as azure-servicebus decodes it."""
    decoder = pytest.importorskip("azure.servicebus._pyamqp._decode")
    return decoder.decode_payload(memoryview(payload))


BARE = stored(encode_message(body=b"body", message_id="id"))
FULL = stored(
    encode_message(
        body=b"body", message_id="id", durable=True, priority=7, ttl_ms=5_000, partition_key="k",
        properties={"a": 1}, annotations={"x-opt-mine": "m"},
    )
)  # fmt: skip


# --- exact bytes ----------------------------------------------------------------------------------


def test_the_bytes_of_a_peek_lock_delivery() -> None:
    """WIRE §5.3, §5.4: header, lock token in RFC order, three annotations, then what was sent."""
    expected = (
        bytes.fromhex("00 53 70 c0 06 05 40 40 40 40 43")
        + bytes.fromhex("00 53 71 c1 24 02 a3 10") + b"x-opt-lock-token"
        + bytes.fromhex("98 03020100 0504 0706 0809 0a0b0c0d0e0f")
        + bytes.fromhex("00 53 72 c1 5c 06 a3 15") + b"x-opt-sequence-number"
        + bytes.fromhex("81 0000000000000001 a3 13") + b"x-opt-enqueued-time"
        + b"\x83" + NOW.to_bytes(8, "big") + b"\xa3\x12x-opt-locked-until"
        + b"\x83" + (NOW + 60_000).to_bytes(8, "big")
    )  # fmt: skip
    opening, rest = render(BARE, delivery())
    assert opening == expected
    assert rest is BARE
    assert encoded(BARE, delivery()) == expected + BARE
    assert delivery_tag(delivery()) == TOKEN == UUID_OF_TOKEN.bytes_le


def test_the_bytes_of_receive_and_delete() -> None:
    """WIRE §0.17: an empty map of delivery-annotations that is there, no lock, an empty tag."""
    given = delivery(token=None, count=3)
    expected = (
        bytes.fromhex("00 53 70 c0 07 05 40 40 40 40 52 03 00 53 71 c1 01 00")
        + bytes.fromhex("00 53 72 c1 3f 04 a3 15") + b"x-opt-sequence-number"
        + bytes.fromhex("81 0000000000000001 a3 13") + b"x-opt-enqueued-time"
        + b"\x83" + NOW.to_bytes(8, "big")
    )  # fmt: skip
    assert render(BARE, given, is_settled=True)[0] == expected
    assert delivery_tag(given) == b""
    assert m.DELIVERY_ANNOTATIONS not in parts_of(encoded(BARE, given))  # browsed


def test_the_number_of_annotations() -> None:
    """WIRE §5.3: with a partition key exactly 3 in receive-and-delete and 4 in peek-lock."""
    payload = stored(encode_message(message_id="id", partition_key="k"))
    locked = read_by_sdk(encoded(payload, delivery()))
    assert len(locked.message_annotations) == 4
    assert locked.delivery_annotations == {b"x-opt-lock-token": UUID_OF_TOKEN}
    taken = read_by_sdk(encoded(payload, delivery(token=None), is_settled=True))
    assert taken.message_annotations == {
        b"x-opt-partition-key": b"k",
        b"x-opt-sequence-number": 1,
        b"x-opt-enqueued-time": NOW,
    }
    assert taken.delivery_annotations == {}


# --- header ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent_ms", "entity_ms", "shown_ms"),
    [
        (None, NEVER, None),
        (5_000, NEVER, 5_000),
        (5_000, 9_000, 5_000),
        (5_000, 2_000, 2_000),
        (None, 2_000, 2_000),
        (None, 0xFFFF_FFFF, None),
        (0xFFFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFE),
    ],
)
def test_the_ttl_is_the_senders_unless_the_entity_allows_less(
    sent_ms: Millis | None, entity_ms: Millis, shown_ms: Millis | None
) -> None:
    """WIRE §5.3: the original value, not the remaining time."""
    payload = stored(encode_message(message_id="id", ttl_ms=sent_ms))
    header = read_by_sdk(encoded(payload, delivery(count=300), entity_ttl_ms=entity_ms)).header
    assert tuple(header) == (None, None, shown_ms, None, 300)


@pytest.mark.parametrize("durable", [None, True, False])
@pytest.mark.parametrize("first", [None, True, False])
def test_other_fields_of_the_header_are_the_senders(
    durable: bool | None, first: bool | None
) -> None:
    """WIRE §5.3: null if not given; tests of the SDK compare."""
    fields = [t.encode(durable), t.encode_ubyte(9), t.NULL, t.encode(first), t.encode_uint(99)]
    payload = stored(t.encode_described(m.HEADER, t.encode_list(fields)) + BARE)
    header = read_by_sdk(encoded(payload, delivery(count=2))).header
    assert tuple(header) == (durable, 9, None, first, 2)


# --- annotations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "number"),
    [
        (State.WAITING, 0),
        (State.LOCKED, 0),
        (State.DEFERRED, 1),
        (State.DEFERRED_LOCKED, 1),
        (State.SCHEDULED, 2),
    ],
)
def test_the_state_is_shown_on_request(state: State, number: int) -> None:
    """WIRE §5.3: an int, on peek and deferred receive, never on ordinary deliveries."""
    given = delivery(token=None, state=state)
    shown = parts_of(encoded(BARE, given, shows_state=True))[m.MESSAGE_ANNOTATIONS]
    assert shown["x-opt-message-state"] == number
    assert "x-opt-message-state" not in parts_of(encoded(BARE, given))[m.MESSAGE_ANNOTATIONS]
    assert b"x-opt-message-state\x54" in encoded(BARE, given, shows_state=True)


def test_the_partition_is_shown_where_there_are_partitions() -> None:
    payload = encoded(BARE, delivery(number=3 << 48 | 7), partition_id=3)
    shown = parts_of(payload)[m.MESSAGE_ANNOTATIONS]
    assert shown["x-opt-partition-id"] == 3
    assert shown["x-opt-sequence-number"] == 3 << 48 | 7
    assert b"x-opt-partition-id\x61\x00\x03" in payload


def test_the_senders_annotations_are_kept() -> None:
    """WIRE §5.2: his own annotations, delivery-annotations and footer come back."""
    own = t.encode_map([t.encode_symbol("mine"), t.encode("x")])
    payload = FULL + t.encode_described(m.DELIVERY_ANNOTATIONS, own)
    payload += t.encode_described(m.FOOTER, own)
    shown = parts_of(encoded(stored(payload), delivery()))
    assert shown[m.DELIVERY_ANNOTATIONS] == {"mine": "x", "x-opt-lock-token": UUID_OF_TOKEN}
    assert shown[m.FOOTER] == {"mine": "x"}
    assert shown[m.MESSAGE_ANNOTATIONS] == {
        "x-opt-mine": "m",
        "x-opt-partition-key": "k",
        "x-opt-sequence-number": 1,
        "x-opt-enqueued-time": NOW,
        "x-opt-locked-until": NOW + 60_000,
    }
    taken = parts_of(encoded(stored(payload), delivery(token=None), is_settled=True))
    assert taken[m.DELIVERY_ANNOTATIONS] == {"mine": "x"}


def test_many_annotations_need_the_wide_map() -> None:
    marks = {f"x-opt-{n}": "v" * 50 for n in range(130)}
    payload = stored(encode_message(message_id="id", annotations=marks))
    assert len(parts_of(encoded(payload, delivery()))[m.MESSAGE_ANNOTATIONS]) == 133
    assert len(read_by_sdk(encoded(payload, delivery())).message_annotations) == 133


def test_a_received_message_sent_again_shows_only_the_new_facts() -> None:
    """WIRE §5.2: the facts of the first delivery do not come along."""
    again = stored(encoded(FULL, delivery(number=77, count=5), shows_state=True, partition_id=4))
    assert again == FULL
    shown = parts_of(encoded(again, delivery(token=None)))
    assert shown[m.MESSAGE_ANNOTATIONS]["x-opt-sequence-number"] == 1
    assert "x-opt-locked-until" not in shown[m.MESSAGE_ANNOTATIONS]
    assert m.DELIVERY_ANNOTATIONS not in shown


# --- edits ----------------------------------------------------------------------------------------


def test_edits_are_laid_over() -> None:
    """WIRE §5.6: a dead letter shows its reason as application properties."""
    edits = Edits(
        {"DeadLetterReason": "r"}, frozenset({"a"}), {"Label": "l", "TimeToLive": Duration(10**7)}
    )
    for payload in (BARE, FULL):
        shown = read_by_sdk(encoded(payload, delivery(edits=edits)))
        assert shown.application_properties == {b"DeadLetterReason": b"r"}
        assert shown.properties.subject == b"l"
        assert shown.header.ttl == 1_000
        assert shown.data == [b"body"]


def test_a_forwarded_message_shows_where_it_was() -> None:
    """WIRE §5.3: the first number, and the entity in which it died."""
    marks: dict[str, Value] = {"EnqueuedSequenceNumber": 300, "DeadLetterSource": "orders"}
    for payload in (BARE, FULL):
        shown = read_by_sdk(encoded(payload, delivery(edits=Edits(system=marks))))
        assert shown.message_annotations[b"x-opt-enqueue-sequence-number"] == 300
        assert shown.message_annotations[b"x-opt-deadletter-source"] == b"orders"
        assert shown.properties.message_id == b"id"


def test_no_number_of_core_is_too_large() -> None:
    """Sequence numbers have 64 bits; a long has 63, so the largest ones wrap and do not raise."""
    given = delivery(number=2**64 - 1, edits=Edits(system={"EnqueuedSequenceNumber": 2**64 - 1}))
    shown = parts_of(encoded(BARE, given))[m.MESSAGE_ANNOTATIONS]
    assert shown["x-opt-sequence-number"] == shown["x-opt-enqueue-sequence-number"] == -1


# --- types that azure-servicebus cannot read ------------------------------------------------------


def with_property(value: bytes, **more: Any) -> bytes:
    pairs = t.encode_map([t.encode("d"), value])
    section = t.encode_described(m.APPLICATION_PROPERTIES, pairs)
    payload = encode_message(message_id="id", body=None, **more) + section
    payload += t.encode_described(m.DATA, b"\xa0\x01b")
    is_simple = value[0] < 0xC0
    return stored(payload) if is_simple else payload  # others were stored by brokers before


def test_the_decimal_of_the_contract() -> None:
    """WIRE §5.8: 1.2345 is received as `30 38 … 30 39` and delivered as `0c 38 … 30 39`."""
    sent = t.encode(Decimal("1.2345"))
    assert sent == bytes.fromhex("94 3038 000000000000 000000000000 3039")
    payload = with_property(sent)
    expected = payload.replace(sent, b"\x94\x0c\x38" + sent[3:])
    assert render(payload, delivery())[1] == expected
    assert read_by_sdk(expected).application_properties == {b"d": Decimal("1.2345")}
    assert render(payload, delivery(), reads_all_types=True)[1] is payload


@settings(max_examples=200, deadline=None)
@given(st.decimals() | st.decimals(-(10**12), 10**12, places=4) | st.integers().map(Decimal))
def test_any_decimal_is_read_as_the_same_number(value: Decimal) -> None:
    """What the layout cannot hold is delivered as text, never as another number."""
    payload = with_property(t.encode(value))
    sent = AmqpMessage(payload).properties["d"]
    assert isinstance(sent, Decimal)
    found = read_by_sdk(encoded(payload, delivery())).application_properties[b"d"]
    if not sent.is_finite():
        assert found.is_nan()
    else:
        assert (Decimal(found.decode()) if isinstance(found, bytes) else found) == sent


@pytest.mark.parametrize(
    ("text", "is_decimal"),
    [
        ("0", True),
        ("0E+6000", True),
        ("-1.50", True),
        ("123456789012345678.12", True),
        ("99999999999999999999999999.9", False),
        ("1E+100", True),
        ("1E-40", False),
        ("10000000000E-40", True),
        ("1E+6000", False),
    ],
)
def test_decimals_at_the_ends_of_the_layout(text: str, is_decimal: bool) -> None:
    found = read_by_sdk(encoded(with_property(t.encode(Decimal(text))), delivery()))
    value = found.application_properties[b"d"]
    assert isinstance(value, Decimal) is is_decimal
    assert Decimal(value if is_decimal else value.decode()) == Decimal(text)


def test_a_decimal_in_the_layout_of_dotnet_is_left_alone() -> None:
    """A .NET sender has written it so already."""
    payload = with_property(bytes.fromhex("94 0c38 000000000000 000000000000 3039"))
    assert render(payload, delivery())[1] == payload
    found = read_by_sdk(encoded(payload, delivery())).application_properties
    assert found == {b"d": Decimal("1.2345")}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (t.encode_char("A"), b"A"),
        (t.encode_char("\N{SNOWMAN}"), "\N{SNOWMAN}".encode()),
        (t.encode_char("\U0001f600"), "\U0001f600".encode()),
        (bytes.fromhex("74 32800007"), Decimal(7)),
        (bytes.fromhex("84 31c0000000003039"), Decimal(12345)),
        (t.encode_list([t.encode_char("A"), t.encode(Decimal("1.5"))]), [b"A", Decimal("1.5")]),
        (t.encode_array(["A", "B"], 0x73), [b"A", b"B"]),
        (t.encode_array([Decimal("1.5"), Decimal(2)], 0x94), [Decimal("1.5"), Decimal(2)]),
        (t.encode_array([Decimal("1E-40"), Decimal(2)], 0x94), [b"1E-40", b"2"]),
        (b"\x00\xa3\x01x" + t.encode_char("A"), b"A"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"partition_key": "k", "durable": True}])
def test_other_types_become_readable(value: bytes, expected: object, more: Any) -> None:
    """WIRE §1.6: char, decimal32 and decimal64 end azure-servicebus's receiver."""
    found = read_by_sdk(encoded(with_property(value, **more), delivery()))
    assert found.application_properties == {b"d": expected}
    assert found.data == [b"b"]


@pytest.mark.parametrize(
    "value",
    [t.encode_char("A"), bytes.fromhex("74 32800007"), t.encode_list([t.encode(Decimal("1.5"))])],
)
def test_bodies_and_annotations_become_readable(value: bytes) -> None:
    """A value anywhere ends the receiver, not only one among the application properties."""
    marks = t.encode_map([t.encode_symbol("mine"), value])
    expected = read_by_sdk(encoded(with_property(value), delivery())).application_properties[b"d"]
    bare = encode_message(message_id="id", body=None)
    body = stored(bare + t.encode_described(m.VALUE, value))
    assert read_by_sdk(encoded(body, delivery())).value == expected
    sequence = stored(bare + t.encode_described(m.SEQUENCE, t.encode_list([value])))
    assert read_by_sdk(encoded(sequence, delivery())).sequence == [[expected]]
    noted = stored(t.encode_described(m.MESSAGE_ANNOTATIONS, marks) + bare)
    assert read_by_sdk(encoded(noted, delivery())).message_annotations[b"mine"] == expected
    for payload in (body, sequence):
        assert encoded(payload, delivery(), reads_all_types=True).endswith(payload)


NARROW: dict[bytes, Decimal] = {
    bytes.fromhex("74 32800007"): Decimal(7),
    bytes.fromhex("74 b2000019"): Decimal("-2.5"),
    bytes.fromhex("84 31c0000000003039"): Decimal(12345),
    bytes.fromhex("84 3180000000003039"): Decimal("123.45"),
}
SPOILED: dict[bytes, object] = {
    **NARROW,
    t.encode_char("A"): b"A",
    t.encode(Decimal("1.20")): Decimal("1.20"),
}
PLAIN: dict[bytes, object] = {
    t.encode("total"): b"total", t.encode("x" * 132): b"x" * 132, t.encode("t" * 116): b"t" * 116,
    t.encode(0x74 << 24): 0x74 << 24, t.encode(None): None, t.encode(True): True,
    t.encode_timestamp(0x8494_7400): 0x8494_7400, t.encode("Ä\N{SNOWMAN}"): "Ä\N{SNOWMAN}".encode(),
}  # fmt: skip
named = st.dictionaries(
    st.text("asteÄ", max_size=6), st.sampled_from([*SPOILED, *PLAIN]), max_size=6
)


def as_pairs(values: dict[str, bytes]) -> list[bytes]:
    return [part for name, value in values.items() for part in (t.encode(name), value)]


@settings(max_examples=400, deadline=None)
@given(named, named, named, st.booleans(), st.booleans())
def test_fx13_only_azure_servicebus_gets_other_bytes(
    properties: dict[str, bytes],
    marks: dict[str, bytes],
    inner: dict[str, bytes],
    is_in_list: bool,
    is_data: bool,
) -> None:
    """Wherever such a value is, beside whatever else: the SDK reads it, and every other client gets
    the bytes that were sent."""
    noted = as_pairs(marks)
    if is_in_list:
        noted += [t.encode("list"), t.encode_list(as_pairs(inner))]
    body = t.encode_described(m.DATA, b"\xa0\x01b")
    if not is_data:
        body = t.encode_described(m.VALUE, t.encode_list(as_pairs(inner)))
    head = t.encode_described(m.MESSAGE_ANNOTATIONS, t.encode_map(noted)) if noted else b""
    rest = encode_message(message_id="id", body=None)
    rest += t.encode_described(m.APPLICATION_PROPERTIES, t.encode_map(as_pairs(properties))) + body
    payload = stored(head + rest)
    assert payload == head + rest
    given = encoded(payload, delivery(), reads_all_types=True)
    assert given.endswith(rest)
    assert b"".join(noted) in given
    found = read_by_sdk(encoded(payload, delivery()))
    known = {**SPOILED, **PLAIN}
    wanted = {name.encode(): known[value] for name, value in properties.items()}
    assert (found.application_properties or {}) == wanted
    for name, value in marks.items():
        assert found.message_annotations[name.encode()] == known[value]
    listed = [part for name, value in inner.items() for part in (name.encode(), known[value])]
    if is_in_list:
        assert found.message_annotations[b"list"] == listed
    if not is_data:
        assert found.value == listed


@pytest.mark.parametrize("value", NARROW)
@pytest.mark.parametrize("descriptor", [b"", b"\x00\xa3\x01x", b"\x00\x53\x07"])
@pytest.mark.parametrize("key", [t.encode("d"), t.encode_symbol("d"), b"\xb1\x00\x00\x00\x01d"])
@pytest.mark.parametrize("code", [m.APPLICATION_PROPERTIES, m.MESSAGE_ANNOTATIONS, m.FOOTER])
@pytest.mark.parametrize("is_long", [False, True])
def test_fx13_in_each_section(
    value: bytes, descriptor: bytes, key: bytes, code: int, is_long: bool
) -> None:
    """First and last of a map, described or not, after each kind of key."""
    pairs = [key, descriptor + value, t.encode("z"), t.encode(1), t.encode("e"), descriptor + value]
    filler = [t.encode("filler"), t.encode("x" * 300)] if is_long else []
    section = t.encode_described(code, t.encode_map(filler + pairs))
    parts = {m.PROPERTIES: encode_message(message_id="id", body=None), code: section}
    # A footer is looked at where the body is no data section.
    parts[m.VALUE] = t.encode_described(m.VALUE, t.encode(5))
    payload = stored(b"".join(part for _, part in sorted(parts.items())))
    found = read_by_sdk(encoded(payload, delivery()))
    shown = {
        m.APPLICATION_PROPERTIES: found.application_properties,
        m.MESSAGE_ANNOTATIONS: found.message_annotations,
        m.FOOTER: found.footer,
    }[code]
    assert (shown[b"d"], shown[b"e"]) == (NARROW[value], NARROW[value])
    assert section[6:] in encoded(payload, delivery(), reads_all_types=True) or code != m.FOOTER


def test_a_body_that_is_no_amqp_is_left_alone() -> None:
    """Bodies are not checked on input; an unknown constructor within one must not raise here."""
    body = t.encode_described(m.VALUE, b"\xc0\x04\x01\x01\x94\x73")
    payload = stored(encode_message(message_id="id", body=None) + body)
    assert encoded(payload, delivery()).endswith(body)


# --- the real decoder -----------------------------------------------------------------------------

texts = st.text(max_size=30)
values: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    texts, st.binary(max_size=300), st.uuids(), st.integers(0, 2**40).map(Timestamp),
)  # fmt: skip


def as_sdk(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries({
        "body": st.binary(max_size=600),
        "message_id": st.none() | texts | st.uuids(),
        "session_id": st.none() | texts,
        "label": st.none() | texts,
        "properties": st.dictionaries(texts, values, max_size=5),
        "ttl_ms": st.none() | st.integers(0, 2**32 - 1),
        "durable": st.none() | st.booleans(),
        "priority": st.none() | st.integers(0, 255),
        "partition_key": st.none() | texts,
        "scheduled_ms": st.none() | st.integers(0, 2**45),
        "annotations": st.dictionaries(st.sampled_from(["x-opt-a", "b", "c"]), values),
    }),
    st.none() | st.binary(min_size=16, max_size=16),
    st.integers(0, 400),
    st.booleans(),
    st.none() | st.integers(0, 15),
)  # fmt: skip
def test_azure_servicebus_reads_what_was_sent(
    sent: dict[str, Any],
    token: bytes | None,
    count: int,
    shows_state: bool,
    partition_id: int | None,
) -> None:
    """Round trip: encode, take, deliver, and decode with the decoder of the official SDK."""
    is_settled = token is None
    found = read_by_sdk(
        encoded(
            stored(encode_message(**sent)),
            delivery(token=token, count=count),
            shows_state=shows_state,
            is_settled=is_settled,
            partition_id=partition_id,
        )
    )
    header = (sent["durable"], sent["priority"], sent["ttl_ms"], None, count)
    assert tuple(found.header) == header
    tokens = {} if token is None else {b"x-opt-lock-token": UUID(bytes_le=token)}
    assert found.delivery_annotations == tokens
    marks = {name.encode(): as_sdk(value) for name, value in sent["annotations"].items()}
    never = -62_135_596_800_000 if shows_state else None
    optional = {
        b"x-opt-enqueue-sequence-number": 1 if shows_state else None,
        b"x-opt-locked-until": NOW + 60_000 if token is not None else never,
        b"x-opt-partition-key": as_sdk(sent["partition_key"]),
        b"x-opt-scheduled-enqueue-time": sent["scheduled_ms"],
        b"x-opt-message-state": 0 if shows_state else None,
        b"x-opt-partition-id": partition_id,
    }
    marks |= {name: value for name, value in optional.items() if value is not None}
    marks |= {b"x-opt-sequence-number": 1, b"x-opt-enqueued-time": NOW}
    assert found.message_annotations == marks
    made_up = "0" * 32 if sent["message_id"] is None else sent["message_id"]
    assert found.properties.message_id == as_sdk(made_up)
    assert found.properties.group_id == as_sdk(sent["session_id"])
    assert found.properties.subject == as_sdk(sent["label"])
    properties = {name.encode(): as_sdk(value) for name, value in sent["properties"].items()}
    assert (found.application_properties or {}) == properties
    assert found.data == (None if sent["body"] is None else [sent["body"]])
