"""Ids found for many messages at once are those that decoding each of them gives."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.journal.message_ids import find_message_ids

ids = st.one_of(
    st.none(),
    st.text(max_size=40),
    st.text("a", min_size=250, max_size=300),
    st.integers(0, 2**64 - 1),
    st.uuids(),
    st.binary(max_size=20),
)
messages = st.builds(
    encode_message,
    body=st.binary(max_size=400),
    message_id=ids,
    ttl_ms=st.one_of(st.none(), st.integers(0, 10**9)),
    session_id=st.one_of(st.none(), st.text(max_size=5)),
    scheduled_ms=st.one_of(st.none(), st.integers(0, 10**12)),
    label=st.one_of(st.none(), st.text(max_size=300)),
    properties=st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 9), max_size=3),
)


def found_ids(payloads: list[bytes]) -> list[str | None]:
    data = b"".join(payloads) + bytes(16)
    ends = np.cumsum([len(payload) for payload in payloads]).astype("i8")
    starts = np.append(0, ends[:-1]).astype("i8")
    texts, odd = find_message_ids(data, starts, ends)
    result: list[str | None] = []
    for row in range(len(payloads)):
        begin, length = int(texts.starts[row]), int(texts.lengths[row])
        text = data[begin : begin + length].decode() if length >= 0 else None
        result.append(odd.get(row, text))
    return result


@given(st.lists(messages, min_size=1, max_size=8))
def test_the_same_ids_as_by_decoding(payloads: list[bytes]) -> None:
    assert found_ids(payloads) == [_text(AmqpMessage(p).message_id) for p in payloads]


def test_sections_in_an_unusual_form_are_decoded_one_by_one() -> None:
    """A symbolic descriptor of the properties, and an empty message."""
    symbol = b"\x00\xa3\x14amqp:properties:list\xc0\x05\x01\xa1\x02ab"
    assert found_ids([symbol, b"", encode_message(body=b"", message_id="x")]) == ["ab", None, "x"]


def test_a_length_that_lies_is_not_believed() -> None:
    """The id claims 255 bytes in a list of five: nothing outside of the message is read."""
    lie = b"\x00\x53\x73\xc0\x05\x01\xa1\xffab\x00\x53\x75\xa0\x01x"
    assert found_ids([lie, encode_message(body=b"secret", message_id="y")]) == [None, "y"]


def _text(message_id: Any) -> str | None:
    match message_id:
        case None:
            return None
        case bytes():
            return message_id.hex()
        case UUID() | int() | str():
            return str(message_id)
    raise AssertionError(message_id)
