"""Messages to send and as received: bytes stay bytes, and every section is found."""

from __future__ import annotations

from uuid import UUID

import pytest

from tandembus.amqp.message import AmqpMessage, batch_messages, encode_message
from tandembus.amqp.types import Described, Long, encode, encode_described
from tandembus.client.messages import (
    _MOST,
    BATCH,
    SINGLE,
    Batch,
    OutgoingMessage,
    ReceivedMessage,
    TooLarge,
    batches,
    data_section,
    encoded,
)
from tandembus.errors import NotAllowedError
from tandembus.model import Timestamp

DATA, SEQUENCE, VALUE, FOOTER, ANNOTATIONS = 0x75, 0x76, 0x77, 0x78, 0x72


def came(payload: bytes, tag: bytes = b"") -> ReceivedMessage:
    return ReceivedMessage(payload, 0, tag, None)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_bytes_are_a_body(size: int) -> None:
    """Of any length, without a copy into another form; nothing else is in the message."""
    body = bytes(size)
    payload = encoded(body)
    assert payload == data_section(body)
    assert payload.endswith(body)
    assert len(payload) - size in (5, 8)
    assert came(payload).body == body
    assert AmqpMessage(payload).message_id is None


def test_text_is_a_body_too() -> None:
    assert came(encoded(OutgoingMessage("größer"))).body == "größer".encode()
    assert came(encoded(OutgoingMessage(None, message_id="m"))).body == b""


def test_bodies_of_all_kinds() -> None:
    """Several data sections, a value, sequences, none; with and without a footer."""
    two = data_section(b"one ") + data_section(b"two")
    footer = encode_described(FOOTER, encode({"f": 1}))
    for end in (b"", footer):
        assert came(two + end).body == b"one two"
        assert came(data_section(b"x") + end).body == b"x"
        value = came(encode_described(VALUE, encode([1, "a"])) + end)
        assert (value.body, value.value) == (b"", [1, "a"])
        rows = b"".join(encode_described(SEQUENCE, encode([number])) for number in range(3))
        assert came(rows + end).value == [[0], [1], [2]]
        nothing = came(encode_message(body=None, message_id="m") + end)
        assert (nothing.body, nothing.value) == (b"", None)
    assert came(data_section(b"x")).value is None


def test_what_the_broker_says() -> None:
    """From the annotations; also with other ones among them, and in the short forms of Azure."""
    usual = {
        "x-opt-sequence-number": Long(7),
        "x-opt-enqueued-time": Timestamp(1_700_000_000_123),
        "x-opt-locked-until": Timestamp(1_700_000_060_123),
    }
    odd = {
        **usual,
        "x-opt-message-state": 1,
        "x-opt-deadletter-source": "orders",
        "note": "x-opt-sequence-number",
        "x-opt-scheduled-enqueue-time": Timestamp(1_600_000_000_000),
    }
    for said in (usual, odd):
        message = came(encode_message(body=b"x", annotations=said), bytes(range(16)))
        assert message.sequence_number == 7
        assert message.enqueued_ms == 1_700_000_000_123
        assert message.locked_until_ms == 1_700_000_060_123
        assert message.lock_token == UUID(bytes_le=bytes(range(16)))
    assert message.state == 1
    assert message.dead_letter_source == "orders"
    assert message.scheduled_ms == 1_600_000_000_000
    bare = came(data_section(b"x"))
    assert (bare.sequence_number, bare.enqueued_ms, bare.locked_until_ms) == (0, 0, None)
    assert (bare.state, bare.dead_letter_source, bare.delivery_count) == (0, None, 0)
    with pytest.raises(NotAllowedError):
        _ = bare.lock_token
    assert "7" in repr(message)


def test_what_the_sender_said() -> None:
    """Every field of an outgoing message is found on the received one."""
    sent = OutgoingMessage(
        b"x",
        message_id=UUID(int=5),
        correlation_id="c",
        session_id="s",
        partition_key="s",
        subject="l",
        content_type="t",
        to="a",
        reply_to="b",
        reply_to_session_id="d",
        properties={"DeadLetterReason": "bad", "DeadLetterErrorDescription": "very"},
        ttl_ms=1_000,
        priority=3,
    )
    message = came(sent.encoded())
    for name in (
        "message_id", "correlation_id", "session_id", "partition_key", "subject", "content_type",
        "to", "reply_to", "reply_to_session_id", "properties", "ttl_ms", "priority",
    ):  # fmt: skip
        assert getattr(message, name) == getattr(sent, name), name
    assert message.dead_letter_reason == "bad"
    assert message.dead_letter_description == "very"
    header = encode_described(0x70, encode([True, None, None, None, 4]))
    assert came(header + data_section(b"x")).delivery_count == 4


def test_sections_in_a_long_form() -> None:
    """A peer may write symbolic descriptors; they mean the same."""
    payload = encode(Described(0x8000_0000, None))  # to be sure that encode knows described values
    assert payload
    symbolic = b"\x00\xa3\x10amqp:data:binary\xa0\x01x"
    assert came(symbolic).body == b"x"


# --- batches --------------------------------------------------------------------------------------


def inner(batch: Batch | TooLarge) -> list[bytes]:
    assert isinstance(batch, Batch)
    if batch.message_format == SINGLE:
        return [batch.payload]
    assert batch.message_format == BATCH
    return batch_messages(batch.payload)


def test_batches_are_full_and_fit() -> None:
    """As few as possible, none larger than allowed, in order, and counted."""
    bodies = [bytes(number % 2_000) for number in range(3_000)]
    found = list(batches(bodies, 65_536, 65_536))
    assert [came(each).body for batch in found for each in inner(batch)] == bodies
    sizes = [len(batch.payload) for batch in found if isinstance(batch, Batch)]
    assert max(sizes) <= 65_536
    assert min(sizes[:-1]) > 60_000
    first = 0
    for batch in found:
        assert isinstance(batch, Batch)
        assert batch.first == first
        first += batch.count
    assert first == 3_000


def test_one_alone_is_no_batch() -> None:
    """It travels as it is; so does one that is too large for a batch but not for the entity."""
    (only,) = batches([b"x"], 65_536, 65_536)
    assert only == Batch(data_section(b"x"), SINGLE, 0, 1)
    found = list(batches([b"a", b"b", bytes(70_000), b"c"], 65_536, 262_144))
    assert [batch.first for batch in found] == [0, 2, 3]
    assert [len(inner(batch)) for batch in found] == [2, 1, 1]


def test_one_that_fits_nowhere() -> None:
    """It is named, and the others go."""
    found = list(batches([bytes(70_000), b"a", bytes(80_000)], 65_536, 65_536))
    assert [type(each) for each in found] == [TooLarge, Batch, TooLarge]
    assert [each.first for each in found] == [0, 1, 2]


def test_a_batch_has_a_longest_row() -> None:
    """Of messages, however small they are."""
    found = list(batches([b""] * (_MOST + 1), 1_000_000, 1_000_000))
    assert [len(inner(each)) for each in found] == [_MOST, 1]


def test_the_envelope_names_the_session() -> None:
    """Azure chooses the partition by it; an envelope of plain bytes has nothing to say."""
    messages = [OutgoingMessage(b"x", session_id="s", message_id=str(n)) for n in range(3)]
    (batch,) = batches(messages, 65_536, 65_536)
    assert isinstance(batch, Batch)
    envelope = AmqpMessage(batch.payload)
    assert (envelope.session_id, envelope.message_id) == ("s", "0")
    assert [AmqpMessage(each).message_id for each in inner(batch)] == ["0", "1", "2"]
    (plain,) = batches([b"x", b"y"], 65_536, 65_536)
    assert isinstance(plain, Batch)
    assert plain.payload[2] == DATA


def test_nothing_to_send() -> None:
    assert list(batches([], 65_536, 65_536)) == []
