"""The hand-written readers and writers, against the general decoder; and what both refuse."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandembus.amqp import fast
from tandembus.amqp import performatives as p
from tandembus.amqp.types import (
    NULL,
    decode,
    encode,
    encode_binary,
    encode_boolean,
    encode_composite,
    encode_described,
    encode_list,
    encode_uint,
)
from tandembus.errors import EntityNotFoundError, ProtocolError

uints = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
booleans = st.one_of(st.none(), st.booleans())
states = st.sampled_from(
    [
        None,
        p.ACCEPTED,
        p.RELEASED,
        p.Rejected(),
        p.Rejected(p.Error("a:b", "text", {"k": "v"})),
        p.Modified(True, False),
        p.Received(1, 2),
        p.Declared(b"txn"),
        p.TransactionalState(b"txn", p.ACCEPTED),
    ]
)


def listed(*values: bytes | None, width: int = 8) -> bytes:
    """A list with these encoded fields, in the form that is asked for."""
    parts = [NULL if value is None else value for value in values]
    body = b"".join(parts)
    if width == 8 and len(body) < 255:
        return bytes((0xC0, len(body) + 1, len(parts))) + body
    return b"\xd0" + (len(body) + 4).to_bytes(4, "big") + len(parts).to_bytes(4, "big") + body


def optional(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return encode_boolean(value)
    if isinstance(value, bytes):
        return encode_binary(value)
    if isinstance(value, int):
        return encode_uint(value)
    return p.encode_performative(value)


@given(
    uints,
    st.one_of(st.none(), uints),
    st.one_of(st.none(), st.binary(max_size=32)),
    st.sampled_from([None, 0, 0x80013700, 7]),
    booleans,
    booleans,
    states,
    booleans,
    st.integers(0, 6),
    st.sampled_from([8, 32]),
    st.binary(max_size=40),
)
def test_transfer_in_all_forms(
    handle: int,
    delivery_id: int | None,
    tag: bytes | None,
    message_format: int | None,
    settled: bool | None,
    more: bool | None,
    state: p.DeliveryState | None,
    aborted: bool | None,
    omitted: int,
    width: int,
    payload: bytes,
) -> None:
    """Short and long lists, nulls and values, with and without the table of usual endings."""
    values = [handle, delivery_id, tag, message_format, settled, more, None, state, None, aborted]
    values = [*values, None]
    while omitted and values[-1] is None:
        values.pop()
        omitted -= 1
    raw = b"before" + listed(*map(optional, values), width=width) + payload
    expected = (
        handle, delivery_id, tag, message_format, settled is True, more is True, state,
        aborted is True, len(raw) - len(payload),
    )  # fmt: skip
    assert fast.decode_transfer(raw + b"after", 6, len(raw)) == expected


@given(st.booleans(), uints, st.one_of(st.none(), uints), booleans, states, booleans)
def test_disposition_in_all_forms(
    role: bool,
    first: int,
    last: int | None,
    settled: bool | None,
    state: p.DeliveryState | None,
    batchable: bool | None,
) -> None:
    """As above; `last` is `first` if it is not there."""
    values = [role, first, last, settled, state, batchable]
    while values[-1] is None:
        values.pop()
    raw = b"before" + listed(*map(optional, values))
    expected = (role, first, first if last is None else last, settled is True, state)
    assert fast.decode_disposition(raw + b"after", 6, len(raw)) == expected


@given(st.lists(st.one_of(st.none(), uints), min_size=7, max_size=7), st.booleans(), st.booleans())
def test_flow_there_and_back(numbers: list[int | None], drain: bool, echo: bool) -> None:
    """The three mandatory numbers are there, or the flow is refused."""
    raw = fast.encode_flow(*numbers, drain=drain, echo=echo)  # type: ignore[arg-type]
    if None in numbers[1:4]:
        with pytest.raises(ProtocolError):
            fast.decode_flow(raw, 3, len(raw))
    else:
        assert fast.decode_flow(raw, 3, len(raw)) == (*numbers, drain, echo)


@given(st.integers(0, 65535), uints, uints, st.binary(max_size=32), st.booleans(), st.binary())
def test_transfer_opening(
    channel: int, handle: int, delivery_id: int, tag: bytes, settled: bool, payload: bytes
) -> None:
    """The fast writer gives what the general one gives, in fixed widths."""
    raw = fast.transfer_opening(channel, handle, delivery_id, tag, settled, len(payload)) + payload
    assert int.from_bytes(raw[:4], "big") == len(raw)
    assert raw[4:6] == b"\x02\x00"
    assert int.from_bytes(raw[6:8], "big") == channel
    value, end = decode(raw, 8)
    assert value == (0x14, [handle, delivery_id, tag, 0, settled])
    assert raw[end:] == payload


@given(st.booleans(), uints, uints, st.booleans(), states)
def test_disposition_frame(
    role: bool, first: int, last: int, settled: bool, state: p.DeliveryState | None
) -> None:
    """Short and long states."""
    for outcome in (state, p.Rejected(p.Error("a:b", "x" * 300))):
        raw = fast.disposition_frame(7, role, first, last, settled, fast.encode_state(outcome))
        assert int.from_bytes(raw[:4], "big") == len(raw)
        assert raw[4:11] == b"\x02\x00\x00\x07\x00\x53\x15"
        found = fast.decode_disposition(raw, 11, len(raw))
        assert found == (role, first, last, settled, outcome)


def test_state_within_a_frame() -> None:
    """What is too long for the peer loses text and info, not its meaning."""
    long = p.Rejected(p.Error("com.microsoft:timeout", "x" * 1000, {"a": "b" * 1000}))
    short, _ = p.decode_performative(fast.encode_state(long, 512))
    assert short == p.Rejected(p.Error("com.microsoft:timeout", "x" * 60))
    modified = p.Modified(True, True, {"a": "b" * 1000})
    assert p.decode_performative(fast.encode_state(modified, 512))[0] == p.Rejected()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xa1\x01x",
        b"\xc0",
        b"\xc0\x01",
        b"\xc0\x01\x00",
        b"\xc0\x01\x0c" + NULL * 12,
        b"\xc0\xff\x01\x43",
        b"\xc0\x03\x01\x43\x43",
        b"\xc0\x02\x02\x43",
        b"\xd0\x00\x00",
        b"\xc0\x03\x01\xa0\x05",
        listed(encode("handle")),
        listed(encode_boolean(True)),
        listed(encode_uint(0), encode_boolean(True)),
        listed(encode_uint(0), encode_uint(0), encode_uint(0)),
        listed(encode_uint(0), encode_uint(0), b"\xa0\x81" + b"x" * 129, encode_uint(0), NULL),
        listed(encode_uint(0), encode_uint(0), encode_binary(b"t"), encode_boolean(True)),
        listed(encode_uint(0), encode_uint(0), encode_binary(b"t"), NULL, encode_uint(0)),
        listed(encode_uint(0), NULL, NULL, NULL, NULL, encode_uint(1)),
        listed(encode_uint(0), NULL, NULL, NULL, NULL, NULL, NULL, encode("state")),
        listed(encode_uint(0), NULL, NULL, NULL, NULL, NULL, NULL, b"\x00\x53\x29\x45"),
        listed(encode_uint(0), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, encode_uint(1)),
    ],
)
def test_transfers_that_are_refused(raw: bytes) -> None:
    """Cut, overlong, miscounted, or with a field of the wrong type."""
    with pytest.raises(ProtocolError):
        fast.decode_transfer(raw, 0, len(raw))


@pytest.mark.parametrize("size", [129, 255, 256])
@pytest.mark.parametrize("state", [NULL, b"\x00\x53\x24\x45"])
def test_a_tag_that_is_too_long_is_told_the_limit(size: int, state: bytes) -> None:
    """Whichever way it is read."""
    tag = encode_binary(b"x" * size)
    raw = listed(encode_uint(0), encode_uint(0), tag, encode_uint(0), NULL, NULL, NULL, state)
    with pytest.raises(ProtocolError, match=f"has {size} bytes; at most 128 are allowed"):
        fast.decode_transfer(raw, 0, len(raw))


def test_transfer_that_leaves_its_frame() -> None:
    """A list that goes on behind the frame's end is refused, whatever follows."""
    raw = listed(encode_uint(0), encode_uint(1), encode_binary(b"t"), encode_uint(0), b"\x42")
    for end in range(len(raw)):
        with pytest.raises(ProtocolError):
            fast.decode_transfer(raw, 0, end)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x45",
        listed(encode_uint(1), encode_uint(1)),
        listed(encode_boolean(True)),
        listed(encode_boolean(True), NULL),
        listed(encode_boolean(True), encode_uint(1), encode_boolean(True)),
        listed(encode_boolean(True), encode_uint(1), NULL, encode_uint(1)),
        listed(encode_boolean(True), encode_uint(1), NULL, NULL, encode_uint(1)),
        listed(encode_boolean(True), encode_uint(1)) + b"\x40",
        listed(encode_boolean(True), encode_uint(1), NULL, NULL, b"\x00\x53\x24\x45") + b"\x40",
    ],
)
def test_dispositions_that_are_refused(raw: bytes) -> None:
    """A missing field, one of the wrong type, or bytes behind the list."""
    with pytest.raises(ProtocolError):
        fast.decode_disposition(raw, 0, len(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x45",
        listed(NULL, encode_uint(1), encode_uint(1)),
        listed(encode_boolean(True), encode_uint(1), encode_uint(1), encode_uint(1)),
        listed(NULL, encode_uint(1), encode_uint(1), encode_uint(1)) + b"\x40",
        listed(NULL, *[encode_uint(1)] * 7, encode_uint(1)),
        listed(NULL, *[encode_uint(1)] * 7, NULL, encode_uint(1)),
    ],
)
def test_flows_that_are_refused(raw: bytes) -> None:
    """As above."""
    with pytest.raises(ProtocolError):
        fast.decode_flow(raw, 0, len(raw))


def test_booleans_of_two_bytes() -> None:
    """0x56 is a boolean as well as 0x41 and 0x42."""
    raw = listed(b"\x56\x01", b"\x52\x01", NULL, b"\x56\x01")
    assert fast.decode_disposition(raw, 0, len(raw)) == (True, 1, 1, True, None)


def test_any_bytes() -> None:
    """Mutated performatives give a value or ProtocolError, in all four readers."""
    chance = random.Random(5)
    seeds = [
        fast.transfer_opening(0, 1, 2, b"tag", False, 0)[11:],
        fast.encode_flow(1, 2, 3, 4, 5, 6, 7, drain=True)[3:],
        fast.disposition_frame(0, True, 1, 2, True, fast.encode_state(p.Rejected()))[11:],
        p.encode_performative(p.Attach("n", 0, True, source=p.Source("q"), properties={"a": 1})),
    ]
    for _ in range(20_000):
        raw = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        data = bytes(raw[: chance.randint(1, len(raw))])
        for read in (fast.decode_transfer, fast.decode_disposition, fast.decode_flow):
            with suppress(ProtocolError):
                read(data, 0, len(data))
        with suppress(ProtocolError):
            p.decode_performative(data)


def test_error_of_ours() -> None:
    """An error of the tree becomes one of the wire."""
    error = p.Error.of(EntityNotFoundError("q"))
    assert error.condition == "amqp:not-found"
    assert "'q'" in (error.description or "")


def test_condition_of_any_text() -> None:
    """A condition that cannot be a symbol is still written."""
    back, _ = p.decode_performative(p.encode_performative(p.Error("ä:b")))
    assert back == p.Error("?:b")


def test_unknown_composite() -> None:
    """A descriptor that nothing here has."""
    with pytest.raises(ProtocolError):
        p.decode_performative(encode_described(0x99, encode_list([])))
    with pytest.raises(ProtocolError):
        p.decode_performative(encode_composite(0x14, [encode_uint(1)]))
