"""AMQP values and messages under Hypothesis: round trips, and bytes that nobody would write."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.amqp import types as t
from tandembus.amqp.message import AmqpMessage, ParsedMessage, edited, encode_message, sections
from tandembus.errors import ProtocolError
from tandembus.model import Duration, Edits, Symbol, Timestamp, Value

FEW = settings(max_examples=300, deadline=None)

ascii_text = st.text(st.characters(max_codepoint=127), max_size=20)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
longs = st.integers(-(2**63), 2**63 - 1)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(t.UByte),
    st.integers(0, 2**16 - 1).map(t.UShort),
    st.integers(0, 2**32 - 1).map(t.UInt),
    st.integers(0, 2**64 - 1).map(t.ULong),
    st.integers(-128, 127).map(t.Byte),
    st.integers(-(2**15), 2**15 - 1).map(t.Short),
    st.integers(-(2**31), 2**31 - 1).map(t.Int),
    longs.map(t.Long),
    st.floats(width=32, allow_nan=False).map(t.Float),
    st.floats(allow_nan=False),
    st.characters(exclude_categories=["Cs"]).map(t.Char),
    longs.map(Timestamp),
    longs.map(Duration),
    st.uuids(),
    st.binary(max_size=300),
    text,
    ascii_text.map(Symbol),
    st.decimals(allow_nan=False, places=3, min_value=-(10**20), max_value=10**20),
)
keys = st.one_of(text, ascii_text.map(Symbol), st.integers(0, 2**64 - 1).map(t.ULong), st.binary())
descriptors = st.one_of(st.integers(0, 2**64 - 1), ascii_text.map(Symbol))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(keys, inner, max_size=5),
        st.builds(t.Described, descriptors, inner),
        st.lists(st.integers(0, 2**32 - 1).map(t.UInt), max_size=5).map(
            lambda items: t.Array(items, 0x70)
        ),
        st.lists(ascii_text.map(Symbol), max_size=5).map(lambda items: t.Array(items, 0xA3)),
    ),
    max_leaves=12,
)
"""Nested lightly: well below 16 levels."""


def shape(value: object) -> object:
    """The value with its types, so that 1, True and UInt(1) differ."""
    if isinstance(value, t.Described):
        return ("described", value.descriptor, shape(value.value))
    if isinstance(value, list):
        return (type(value), [shape(item) for item in value])
    if isinstance(value, dict):
        return [(shape(key), shape(item)) for key, item in value.items()]
    return (type(value), value)


@FEW
@given(values, st.binary(max_size=3), st.binary(max_size=3))
def test_round_trip(value: object, before: bytes, after: bytes) -> None:
    """AMQP 1.0 §1.6: what is encoded comes back with its types, wherever it stands; skip agrees."""
    raw = t.encode(value)
    whole = before + raw + after
    found, end = t.decode(whole, len(before), typed=True)
    assert end == len(before) + len(raw) == t.skip(whole, len(before))
    assert shape(found) == shape(value)
    assert t.decode(memoryview(whole), len(before), typed=True) == (found, end)
    assert t.decode(whole, len(before)) == (found, end)


wild = st.one_of(
    st.binary(max_size=80),
    st.lists(st.sampled_from(bytes(n for n, w in enumerate(t._WIDTHS) if w != -9) + b"\0\1\2\3"))
    .map(bytes),
)  # fmt: skip


def survives(raw: bytes) -> None:
    for typed in (False, True):
        try:
            value, end = t.decode(raw, typed=typed)
        except ProtocolError:
            continue
        assert 0 < end <= len(raw)
        assert t.skip(raw, 0) == end
        again, _ = t.decode(t.encode(value), typed=typed)
        assert again == value or "nan" in repr(value).lower()


@FEW
@given(wild)
def test_any_bytes_give_a_value_or_a_protocol_error(raw: bytes) -> None:
    """RELIABILITY S1-S3: nothing else escapes, and what is read can be written and read again."""
    survives(raw)


@FEW
@given(values, st.data())
def test_damaged_values_give_a_value_or_a_protocol_error(
    value: object, data: st.DataObject
) -> None:
    """RELIABILITY S1-S3: one byte changed, or the end cut off, of something that was valid."""
    raw = bytearray(t.encode(value))
    place = data.draw(st.integers(0, len(raw) - 1))
    survives(bytes(raw[:place]))
    raw[place] = data.draw(st.integers(0, 255))
    survives(bytes(raw))


@FEW
@given(st.decimals())
def test_decimals_round_to_decimal128(value: Decimal) -> None:
    """AMQP 1.0 §1.6.15: any decimal encodes; read back it is within half a unit of 34 digits."""
    found, _ = t.decode(t.encode(value))
    assert isinstance(found, Decimal)
    if value.is_nan():
        assert found.is_nan()
    elif len(value.as_tuple().digits) <= 34 and abs(value.adjusted()) < 6000:
        assert found == value


simple = st.one_of(
    st.none(), st.booleans(), longs, st.floats(allow_nan=False), text, st.binary(max_size=20),
    st.uuids(), longs.map(Timestamp), ascii_text.map(Symbol),
)  # fmt: skip
properties = st.dictionaries(text, simple, max_size=5)


@FEW
@given(properties, properties, st.sets(text, max_size=3), st.none() | text, st.binary(max_size=300))
def test_edits_act_like_a_dictionary(
    before: dict[str, Value],
    put: dict[str, Value],
    removed: set[str],
    label: str | None,
    body: bytes,
) -> None:
    """WIRE §6.1: `edited` does to the bytes what the edits say, and nothing to anything else."""
    removed -= put.keys()
    payload = encode_message(
        body=body, properties=before, message_id="id", label="old", ttl_ms=5, priority=1
    )
    after = AmqpMessage(edited(payload, Edits(put, frozenset(removed), {"Label": label})))
    expected = {name: it for name, it in before.items() if name not in removed} | put
    assert after.properties == expected
    assert (after.label, after.message_id, after.ttl_ms, after.priority) == (label, "id", 5, 1)
    data = sections(payload)[-1]
    assert after.payload.endswith(payload[data[1] :])


@FEW
@given(st.data())
def test_any_bytes_make_a_message_or_a_protocol_error(data: st.DataObject) -> None:
    """AMQP 1.0 §3.2, RELIABILITY S5: the fast walk accepts what `sections` accepts; after `check`
    nothing raises; an edit of a checked message gives a message."""
    raw = bytearray(
        encode_message(
            body=data.draw(st.none() | st.binary(max_size=9)),
            message_id=data.draw(st.none() | text),
            session_id=data.draw(st.none() | text),
            properties=data.draw(properties),
            ttl_ms=data.draw(st.none() | st.integers(0, 2**32 - 1)),
            scheduled_ms=data.draw(st.none() | longs),
        )
    )
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    payload = bytes(raw) + data.draw(st.sampled_from([b"", b"\x00\x53\x75\xa0\x00", b"\x00"]))
    try:
        found = sections(payload)
    except ProtocolError:
        found = None
    try:
        message = AmqpMessage(payload)
    except ProtocolError:
        assert found is None
        return
    assert found is not None
    try:
        message.check()
    except ProtocolError:
        return
    for name in ParsedMessage.__slots__:
        getattr(message, name)
    changed = AmqpMessage(edited(message.payload, Edits({"a": 1}, frozenset(), {"Label": "l"})))
    changed.check()
    # By their text: a byte that was changed may have made a NaN, which equals nothing.
    assert repr(changed.properties) == repr({**message.properties, "a": 1})
    assert changed.label == "l"
    assert changed.message_id == message.message_id
