"""Message sections: borders, lazy reading, and edits that leave all other bytes alone."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from uuid import UUID

import pytest

from tandembus import limits
from tandembus.amqp import message as m
from tandembus.amqp import types as t
from tandembus.amqp.message import AmqpMessage, ParsedMessage, edited, encode_message, sections
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.model import Duration, Edits, Message, Symbol, Timestamp, Value

DATA = t.encode_described(m.DATA, t.encode_binary(b"body"))


def mapped(code: int, *parts: bytes) -> bytes:
    return t.encode_described(code, t.encode_map(parts))


def listed(code: int, *parts: bytes) -> bytes:
    return t.encode_described(code, t.encode_list(parts))


def codes(payload: bytes) -> list[int]:
    return [code for code, _, _ in sections(payload)]


FULL = encode_message(
    body=b"x" * 1024,
    message_id="id",
    correlation_id=UUID(int=7),
    session_id="s",
    reply_to_session_id="rs",
    content_type="text/plain",
    label="l",
    to="t",
    reply_to="r",
    properties={"a": 1, "b": "two"},
    ttl_ms=60_000,
    priority=7,
    durable=True,
    scheduled_ms=1_700_000_000_000,
    partition_key="s",
    via_partition_key="v",
)


def test_every_attribute_is_read() -> None:
    """AMQP 1.0 §3.2.1-5, WIRE §5.2: where Service Bus keeps each system property."""
    message: Message = AmqpMessage(FULL)
    assert message.payload == FULL
    assert message.ttl_ms == 60_000
    assert message.priority == 7
    assert message.scheduled_ms == 1_700_000_000_000
    assert type(message.scheduled_ms) is int
    assert message.partition_key == "s"
    assert message.via_partition_key == "v"
    assert message.message_id == "id"
    assert message.correlation_id == UUID(int=7)
    assert message.session_id == "s"
    assert message.reply_to_session_id == "rs"
    assert message.content_type == "text/plain"
    assert type(message.content_type) is str
    assert message.label == "l"
    assert message.to == "t"
    assert message.reply_to == "r"
    assert message.properties == {"a": 1, "b": "two"}


@pytest.mark.parametrize("payload", [b"", DATA, listed(m.HEADER) + listed(m.PROPERTIES) + DATA])
def test_everything_may_be_absent(payload: bytes) -> None:
    """AMQP 1.0 §3.2, WIRE §1.7: no section is needed, not even a body; lists may be list0."""
    message = AmqpMessage(payload)
    message.check()
    assert message.properties == {}
    for name in ParsedMessage.__slots__:
        if name not in ("payload", "properties", "is_ping"):
            assert getattr(message, name) is None, name


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    """The lazy attributes do not swallow mistakes in our own code."""
    with pytest.raises(AttributeError):
        AmqpMessage(FULL).subject  # type: ignore[attr-defined]  # noqa: B018


def test_parsed_groups_are_kept() -> None:
    """A property is parsed once: the same object comes back."""
    message = AmqpMessage(FULL)
    assert message.properties is message.properties
    assert message.message_id is message.message_id


def test_sections_in_any_order() -> None:
    """AMQP 1.0 §3.2 fixes an order; azure-servicebus puts delivery-annotations last (WIRE §1.7)."""
    last = mapped(m.DELIVERY_ANNOTATIONS, t.encode_symbol("k"), t.encode("v"))
    payload = DATA + listed(m.PROPERTIES, t.encode("id")) + last
    assert codes(payload) == [m.DATA, m.PROPERTIES, m.DELIVERY_ANNOTATIONS]
    assert AmqpMessage(payload).message_id == "id"


def test_section_borders_cover_the_message() -> None:
    """AMQP 1.0 §3.2: each section starts where the one before ended, over bytes and views."""
    found = sections(FULL)
    assert [code for code, _, _ in found] == [0x70, 0x72, 0x73, 0x74, 0x75]
    assert found[0][1] == 0
    assert found[-1][2] == len(FULL)
    for (_, _, end), (_, start, _) in pairwise(found):
        assert end == start
    assert sections(memoryview(FULL)) == found


@pytest.mark.parametrize(
    "code",
    [code for code in range(m.HEADER, m.FOOTER + 1) if code not in (m.DATA, m.SEQUENCE)],
)
def test_a_section_cannot_be_there_twice(code: int) -> None:
    """AMQP 1.0 §3.2, RELIABILITY S5: zero or one of each, in whatever place."""
    one = listed(code) if code in (m.HEADER, m.PROPERTIES, m.VALUE) else mapped(code)
    for payload in (one + one, one + DATA + one):
        for read in (AmqpMessage, sections):
            with pytest.raises(ProtocolError):
                read(payload)


def test_a_body_is_of_one_kind() -> None:
    """AMQP 1.0 §3.2.6-8: many data or many sequence sections or one value, never a mixture."""
    sequence, value = listed(m.SEQUENCE, t.NULL), t.encode_described(m.VALUE, t.encode("x"))
    for good in (DATA * 3, sequence * 3, value, DATA + listed(m.PROPERTIES) + DATA):
        assert AmqpMessage(good).payload == good
        assert sections(good)
    for bad in (DATA + sequence, DATA + value, value + DATA, sequence + value, value + value):
        for read in (AmqpMessage, sections):
            with pytest.raises(ProtocolError):
                read(bad)


def test_a_value_may_be_of_any_type() -> None:
    """AMQP 1.0 §3.2.8: the value section holds anything, also what the fast walk does not know."""
    for value in (None, 1, "text", UUID(int=1), t.Array([1], 0x50), t.Described(5, [1])):
        payload = listed(m.PROPERTIES, t.encode("id"))
        payload += t.encode_described(m.VALUE, t.encode(value))
        assert AmqpMessage(payload).message_id == "id"
        assert AmqpMessage(payload).payload == payload


def test_sections_are_bounded() -> None:
    """RELIABILITY S4: 1,000 sections are read, one more is refused."""
    tiny = t.encode_described(m.DATA, t.encode_binary(b""))
    AmqpMessage(tiny * limits.MAX_SECTIONS)
    with pytest.raises(ProtocolError):
        AmqpMessage(tiny * (limits.MAX_SECTIONS + 1))


def test_a_message_of_the_most_sections_can_be_edited() -> None:
    """What the broker adds (an id, properties of a rule) does not count: else a message would be
    taken that nobody, not even a recovery, could read again."""
    tiny = t.encode_described(m.DATA, t.encode_binary(b"")) * limits.MAX_SECTIONS
    whole = edited(tiny, Edits(properties={"a": 1}, system={"MessageId": "m", "PartitionKey": "p"}))
    assert len(sections(whole)) == limits.MAX_SECTIONS + 3
    assert AmqpMessage(whole).message_id == "m"
    with pytest.raises(ProtocolError):
        AmqpMessage(whole + t.encode_described(m.DATA, t.encode_binary(b"")))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("amqp:header:list", m.HEADER),
        ("amqp:properties:list", m.PROPERTIES),
        ("amqp:amqp-sequence:list", m.SEQUENCE),
    ],
)
def test_descriptors_in_every_form(name: str, code: int) -> None:
    """AMQP 1.0 §1.5: ulong and symbol are equal; stored, all become the form clients can read."""
    canonical = listed(code, t.NULL)
    for descriptor in (b"\x80" + code.to_bytes(8, "big"), t.encode_symbol(name)):
        payload = b"\x00" + descriptor + t.encode([None]) + mapped(m.FOOTER)
        assert codes(payload) == [code, m.FOOTER]
        assert AmqpMessage(payload).payload == canonical + mapped(m.FOOTER)


def test_symbolic_sections_are_read() -> None:
    """AMQP 1.0 §3.2.4: properties under a symbolic descriptor after the body are not overlooked."""
    payload = DATA + b"\x00" + t.encode_symbol("amqp:properties:list") + t.encode(["id"])
    assert AmqpMessage(payload).message_id == "id"


@pytest.mark.parametrize(
    "payload",
    [
        b"\x40",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x75",
        b"\x00\x53\x75\xa0",
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x75\xb0\x00\x00",
        b"\x00\x53\x75\xb0\xff\xff\xff\xffabc",
        b"\x00\x53\x79\x45",
        b"\x00\x53\x6f\x45",
        b"\x00\x44\x45",
        b"\x00\x53\x70\x40",
        b"\x00\x53\x70\xc1\x01\x00",
        b"\x00\x53\x74\x45",
        b"\x00\x53\x75\xa1\x01x",
        b"\x00\x53\x77\x99",
        b"\x00\xa3\x0camqp:header:" + b"\x45",
        b"\x00" + t.encode_symbol("amqp:header:listx") + b"\x45",
        b"\x00" + t.encode_symbol("amqp:header") + b"\x45",
        b"\x00" + t.encode("amqp:header:list") + b"\x45",
        DATA + b"\x00",
    ],
)
def test_bad_sections_are_refused_at_once(payload: bytes) -> None:
    """AMQP 1.0 §3.2, RELIABILITY S5: exact descriptors, right types, nothing left over or cut."""
    for read in (AmqpMessage, sections):
        with pytest.raises(ProtocolError):
            read(payload)


@pytest.mark.parametrize(
    "payload",
    [
        listed(m.HEADER, t.NULL, t.encode("high")),
        listed(m.HEADER, t.NULL, t.encode(-1)),
        listed(m.HEADER, t.NULL, t.NULL, t.encode(-1)),
        listed(m.HEADER, t.NULL, t.NULL, t.encode(True)),
        listed(m.HEADER, *[t.NULL] * 6),
        listed(m.PROPERTIES, *[t.NULL] * 14),
        listed(m.PROPERTIES, t.encode(1.5)),
        listed(m.PROPERTIES, t.NULL, t.NULL, t.encode(1)),
        listed(m.PROPERTIES, b"\xa1\x01\xff"),
        listed(m.PROPERTIES, b"\xa3\x01\xff"),
        listed(m.PROPERTIES, b"\xa1\x05x"),
        listed(m.PROPERTIES, b"\x70\x00"),
        listed(m.PROPERTIES, t.NULL, t.NULL, t.encode(b"\xff")),
        b"\x00\x53\x73\xc0\x00",
        b"\x00\x53\x73\xc0\x03\x01\x40\x40",
        mapped(m.MESSAGE_ANNOTATIONS, t.encode_symbol(m.SCHEDULED), t.encode("soon")),
        mapped(m.MESSAGE_ANNOTATIONS, t.encode_symbol(m.SCHEDULED), t.encode(True)),
        mapped(m.MESSAGE_ANNOTATIONS, t.encode_symbol(m.PARTITION_KEY), t.encode(1)),
        mapped(m.APPLICATION_PROPERTIES, t.encode(1), t.encode(1)),
        mapped(m.APPLICATION_PROPERTIES, b"\xa1\x01\xff", t.encode(1)),
    ],
)
def test_check_finds_bad_contents(payload: bytes) -> None:
    """AMQP 1.0 §3.2.1-5: wrong types inside a section are found by `check`, at the edge."""
    for whole in (payload, payload + DATA):
        message = AmqpMessage(whole)
        with pytest.raises(ProtocolError):
            message.check()


@pytest.mark.parametrize("identifier", ["text", 7, 2**63, b"\x00\xff", UUID(int=5)])
def test_message_ids_keep_their_type(identifier: str | int | bytes | UUID) -> None:
    """AMQP 1.0 §3.2.11-14: string, ulong, binary and uuid ids stay what they are."""
    message = AmqpMessage(encode_message(message_id=identifier, correlation_id=identifier))
    assert message.message_id == message.correlation_id == identifier
    assert type(message.message_id) is type(identifier)


def test_what_azure_servicebus_writes_back() -> None:
    """WIRE §5.2: a resent message has binary for text and long for timestamps in annotations."""
    payload = mapped(
        m.MESSAGE_ANNOTATIONS,
        *(t.encode_symbol(m.SCHEDULED), t.encode(1_700_000_000_000)),
        *(t.encode_symbol(m.PARTITION_KEY), t.encode(b"key")),
    )
    message = AmqpMessage(payload)
    assert message.scheduled_ms == 1_700_000_000_000
    assert message.partition_key == "key"


def test_application_properties_of_every_simple_type() -> None:
    """AMQP 1.0 §3.2.5: all simple types are seen; a symbol stays a symbol."""
    properties: dict[str, Value] = {
        "none": None,
        "bool": True,
        "long": -5,
        "double": 1.5,
        "text": "é",
        "binary": b"\x00",
        "decimal": Decimal("1.2345"),
        "uuid": UUID(int=9),
        "time": Timestamp(5),
        "span": Duration(5),
        "symbol": Symbol("s"),
    }
    found = AmqpMessage(encode_message(properties=properties)).properties
    assert found == properties
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in properties.items()
    }


def test_other_application_properties_appear_as_bytes() -> None:
    """AMQP 1.0 §3.2.5 allows simple values only; others are kept, visible as their encoding."""
    nested, described = t.encode([1, {"a": 2}]), t.encode(t.Described(5, "x"))
    payload = mapped(
        m.APPLICATION_PROPERTIES,
        *(t.encode("nested"), nested),
        *(t.encode("described"), described),
        *(t.encode_symbol("symbolic"), t.encode(1)),
        *(t.encode("uri"), t.encode(t.Described(Symbol("com.microsoft:uri"), "http://x"))),
        *(
            t.encode("offset"),
            t.encode(t.Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_050_000)),
        ),
    )
    found = AmqpMessage(payload).properties
    assert found == {
        "nested": nested,
        "described": described,
        "symbolic": 1,
        "uri": "http://x",
        "offset": Timestamp(5),
    }
    assert all(type(name) is str for name in found)


def test_batches() -> None:
    """WIRE §5.2: format 0x80013700 is one message per data section, more than 1,000 of them too."""
    inner = [encode_message(body=str(n), message_id=str(n)) for n in range(1_500)]
    inner.append(encode_message(body=b"x" * 1000))
    envelope = listed(m.PROPERTIES, t.encode("0"))
    envelope += b"".join(t.encode_described(m.DATA, t.encode_binary(one)) for one in inner)
    assert m.batch_messages(envelope) == inner
    for bad in (b"", listed(m.PROPERTIES)):
        with pytest.raises(ProtocolError):
            m.batch_messages(bad)


def test_bodies() -> None:
    """WIRE §5.7: bytes and text become one data section, None no body."""
    assert encode_message() == hexed("00 53 75 a0 00")
    assert encode_message(body="é") == hexed("00 53 75 a0 02 c3a9")
    assert encode_message(body=None) == b""


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


# --- edits ----------------------------------------------------------------------------------------


def test_no_edits_no_change() -> None:
    """WIRE §5.1: the sender's bytes are the message."""
    assert edited(FULL, Edits()) == FULL


def test_application_properties_are_set_and_removed() -> None:
    """WIRE §6.1: others keep their exact bytes and their order; the rest of the message too."""
    odd = b"\x80" + (5).to_bytes(8, "big")  # a long form that we would not write
    nested = t.encode([1])
    before = listed(m.PROPERTIES, t.encode("id"))
    payload = before + mapped(
        m.APPLICATION_PROPERTIES,
        *(t.encode("a"), odd),
        *(t.encode("b"), t.encode(1)),
        *(t.encode("c"), nested),
        *(t.encode("d"), t.NULL),
    )
    payload += DATA
    after = edited(payload, Edits({"b": "new", "e": True}, frozenset({"d", "unknown"})))
    assert (
        after
        == before
        + mapped(
            m.APPLICATION_PROPERTIES,
            *(t.encode("a"), odd),
            *(t.encode("b"), t.encode("new")),
            *(t.encode("c"), nested),
            *(t.encode("e"), t.encode(True)),
        )
        + DATA
    )


def test_dead_letter_reasons_on_a_message_without_properties() -> None:
    """WIRE §5.6: the section is made, in its place before the body (AMQP 1.0 §3.2)."""
    last = mapped(m.DELIVERY_ANNOTATIONS)
    payload = listed(m.HEADER) + DATA + last
    after = edited(payload, Edits({"DeadLetterReason": "r", "DeadLetterErrorDescription": ""}))
    assert codes(after) == [m.HEADER, m.APPLICATION_PROPERTIES, m.DATA, m.DELIVERY_ANNOTATIONS]
    assert AmqpMessage(after).properties == {
        "DeadLetterReason": "r",
        "DeadLetterErrorDescription": "",
    }
    assert after.endswith(DATA + last)


def test_a_repeated_property_is_edited_everywhere() -> None:
    """AMQP 1.0 §1.6.23: of a key that is there twice, no old value survives an edit."""
    twice = mapped(m.APPLICATION_PROPERTIES, *(t.encode("a"), t.encode(1)) * 2)
    assert AmqpMessage(edited(twice, Edits({"a": 2}))).properties == {"a": 2}
    assert edited(twice, Edits({}, frozenset({"a"}))) == b""


def test_every_system_property_is_set() -> None:
    """WIRE §11.6: the writable system properties, laid over a message that has none of them."""
    edits = Edits(
        system={
            "MessageId": UUID(int=1),
            "CorrelationId": "c",
            "ContentType": "text/plain",
            "Label": "l",
            "To": "t",
            "ReplyTo": "r",
            "SessionId": "s",
            "ReplyToSessionId": "rs",
            "TimeToLive": Duration(50_000_000),
            "PartitionKey": "p",
            "ScheduledEnqueueTimeUtc": Timestamp(77),
        }
    )
    after = edited(DATA, edits)
    assert codes(after) == [m.HEADER, m.MESSAGE_ANNOTATIONS, m.PROPERTIES, m.DATA]
    message = AmqpMessage(after)
    assert message.message_id == UUID(int=1)
    assert message.correlation_id == "c"
    assert message.content_type == "text/plain"
    assert (message.label, message.to, message.reply_to) == ("l", "t", "r")
    assert (message.session_id, message.reply_to_session_id) == ("s", "rs")
    assert message.ttl_ms == 5_000
    assert message.partition_key == "p"
    assert message.scheduled_ms == 77


def test_system_properties_are_cleared_alone() -> None:
    """WIRE §11.6: None clears one property; its neighbours and the unknown fields stay."""
    every = dict.fromkeys(
        ["MessageId", "Label", "TimeToLive", "PartitionKey", "ScheduledEnqueueTimeUtc"]
    )
    after = AmqpMessage(edited(FULL, Edits(system=every)))
    assert after.message_id is None
    assert after.label is None
    assert after.ttl_ms is None
    assert after.partition_key is None
    assert after.scheduled_ms is None
    assert after.priority == 7
    assert after.via_partition_key == "v"
    assert after.correlation_id == UUID(int=7)
    assert after.session_id == "s"
    assert after.properties == {"a": 1, "b": "two"}


def test_untouched_fields_keep_their_bytes() -> None:
    """WIRE §5.1: user-id, creation-time and the like are not decoded and written again."""
    fields = [t.NULL, t.encode(b"user"), t.NULL, t.encode("old"), *[t.NULL] * 5]
    fields += [t.encode(Timestamp(5)), t.NULL, b"\x70\x00\x00\x00\x01"]
    payload = listed(m.PROPERTIES, *fields) + DATA
    fields[3] = t.encode("new")
    assert edited(payload, Edits(system={"Label": "new"})) == listed(m.PROPERTIES, *fields) + DATA


def test_a_long_ttl_takes_the_largest_value() -> None:
    """AMQP 1.0 §3.2.1: ttl is a uint of milliseconds, so 49 days are the most it can say."""
    after = edited(b"", Edits(system={"TimeToLive": Duration(2**62)}))
    assert AmqpMessage(after).ttl_ms == 0xFFFF_FFFF


@pytest.mark.parametrize(
    "edits",
    [
        Edits(system={"TimeToLive": "long"}),
        Edits(system={"TimeToLive": -1}),
        Edits(system={"ScheduledEnqueueTimeUtc": "soon"}),
        Edits(system={"SequenceNumber": 1}),
        Edits({"n": 2**70}),
    ],
)
def test_edits_that_no_message_can_hold(edits: Edits) -> None:
    """WIRE §11.6: read-only properties and impossible values are argument errors."""
    with pytest.raises(ArgumentError):
        edited(FULL, edits)


def test_rewritten_sections_take_the_descriptor_that_clients_read() -> None:
    """WIRE §1.6: a section that an edit rewrites starts with 00 53 xx."""
    payload = b"\x00" + t.encode_symbol("amqp:properties:list") + t.encode(["id"]) + DATA
    after = edited(payload, Edits(system={"Label": "l"}))
    assert after.startswith(b"\x00\x53\x73")
    assert AmqpMessage(after).message_id == "id"


@pytest.mark.parametrize(
    "payload", [b"\x00\x53\x73\xc0\x03\x01\x40\x40", b"\x00\x53\x74\xc1\x04\x02\x40\x40\x40"]
)
def test_edits_do_not_hide_bad_contents(payload: bytes) -> None:
    """AMQP 1.0 §1.6.22-23: a size that contradicts the contents is refused, not repaired."""
    with pytest.raises(ProtocolError):
        edited(payload, Edits({"a": 1}, frozenset(), {"Label": "l"}))
