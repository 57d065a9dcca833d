"""`server/arrival.py`: where the body of a message begins and ends, in whatever parts it comes."""

from __future__ import annotations

import random

import pytest

from tandembus.amqp.message import AmqpMessage, encode_message, sections
from tandembus.amqp.types import encode_described, encode_map, encode_string, encode_symbol
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.limits import MAX_SECTIONS
from tandembus.server.arrival import Borders

pytestmark = pytest.mark.req("T19")

BODY = bytes(range(256)) * 40
MESSAGES = {
    "data": encode_message(body=BODY, message_id="m", properties={"a": 1}),
    "only data": b"\x00\x53\x75\xb0" + len(BODY).to_bytes(4, "big") + BODY,
    "many data": encode_message(message_id="m")[:0]
    + b"".join(b"\x00\x53\x75\xa0\x03abc" for _ in range(200)),
    "string": b"\x00\x53\x77\xb1" + len(BODY).to_bytes(4, "big") + BODY,
    "long": b"\x00\x53\x77\x81" + bytes(8),
    "described": b"\x00\x53\x77\x00\xa3\x03abc\xb0" + len(BODY).to_bytes(4, "big") + BODY,
    "long descriptor": b"\x00\x80" + bytes(7) + b"\x75\xb0" + len(BODY).to_bytes(4, "big") + BODY,
    "symbolic descriptor": b"\x00\xa3\x10amqp:data:binary\xa0\x01x",
    "annotations last": encode_message(body=BODY, message_id="m")
    + encode_described(0x78, encode_map([encode_symbol("f"), encode_string("foot")]))
    + encode_described(0x71, encode_map([encode_symbol("d"), encode_string("late")])),
}


def split(message: bytes, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    parts = []
    while message:
        size = rng.choice((1, 2, 3, 7, 50, 5_000))
        parts.append(message[:size])
        message = message[size:]
    return parts


def fed(borders: Borders, parts: list[bytes]) -> tuple[int, int]:
    for part in parts:
        borders.feed(part)
    return borders.end()


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("seed", range(5))
def test_fw1_head_and_body_are_found_in_any_parts(name: str, seed: int) -> None:
    """They are those that the message as a whole has."""
    message = MESSAGES[name]
    borders = Borders()
    begin, end = fed(borders, split(message, seed))
    found = sections(message)
    assert message[begin:end] == b"".join(message[s:e] for code, s, e in found if code >= 0x75)
    assert bytes(borders.head) == b"".join(message[s:e] for code, s, e in found if code < 0x75)
    AmqpMessage(bytes(borders.head)).check()


@pytest.mark.parametrize(
    "message",
    [
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x75\xa0\x03abc\x00\x53",
        b"\x00\x53\x75\xa0\x03abc\x00\x53\x77\xa0\x03abc",
        b"\x00\x53\x77\xa0\x03abc\x00\x53\x77\xa0\x03abc",
        b"\x00\x53\x75\xa1\x03abc",
        b"\x00\x53\x79\xa0\x03abc",
        b"\x01" * 5_000,
        b"\x00\x53\x75\xa0\x01a\x00\x53\x71\xc1\x01\x00\x00\x53\x75\xa0\x01a",
        b"\x00\x53\x75\xa0\x01a" * (MAX_SECTIONS + 1),
        b"\x00\x53\x77\x39" * 300,
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_fw1_what_is_no_message_is_refused(message: bytes, seed: int) -> None:
    with pytest.raises((ProtocolError, ArgumentError)):
        fed(Borders(), split(message, seed))


@pytest.mark.parametrize("seed", range(3))
def test_fw1_the_head_has_a_bound(seed: int) -> None:
    """What is not the body is kept in memory, and no more of it than properties may have."""
    large = encode_described(0x74, encode_map([encode_string("a"), encode_string("x" * 150_000)]))
    many = [
        encode_described(code, encode_map([encode_symbol("a"), encode_string("x" * 100_000)]))
        for code in (0x71, 0x72)
    ]
    for message in (large, b"".join(many) + MESSAGES["data"]):
        borders = Borders()
        with pytest.raises(ArgumentError):
            fed(borders, split(message, seed))
        assert len(borders.head) < 300_000


def test_fw1_any_bytes_end_in_an_error_or_a_message() -> None:
    rng = random.Random(7)
    for _ in range(3_000):
        message = bytearray(rng.choice(list(MESSAGES.values()))[:2_000])
        for _ in range(rng.randrange(4)):
            message[rng.randrange(len(message))] = rng.randrange(256)
        borders = Borders()
        try:
            for part in split(bytes(message), rng.randrange(1 << 30)):
                borders.feed(part)
            begin, end = borders.end()
        except (ProtocolError, ArgumentError):
            continue
        assert 0 <= begin <= end <= len(message)
