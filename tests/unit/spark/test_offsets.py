"""Offsets: their text, admission, and what counts as lost. The traps of Spark that they avoid."""

from __future__ import annotations

import json

import pytest

from tandembus.errors import ArgumentError
from tandembus.spark.offsets import Offset, Reach, admit, decode, encode, entity_of, key_of, lost


@pytest.mark.req("D1")
def test_the_same_offset_is_the_same_text() -> None:
    """Spark compares the text: another order of keys would be a new batch, for ever."""
    one = json.dumps(encode({"b": 2, "a": 1}))
    other = json.dumps(encode({"a": 1, "b": 2}))
    assert one == other == '{"a": "1", "b": "2"}'
    assert json.dumps(encode(decode(one))) == one
    named = json.dumps(encode({"b": 2, "a": 1}, "etl"))
    assert json.dumps(encode(decode(named), "etl")) == named
    assert decode(named) == {"a": 1, "b": 2}


def test_numbers_beyond_53_bits_come_back() -> None:
    """As text: a reader that takes numbers for doubles loses none of their digits."""
    number = (1 << 63) + 1
    assert decode(json.dumps(encode({"a": number}))) == {"a": number}


def test_what_is_not_an_offset() -> None:
    for text in ('{"a": "x"}', "[1]", "7"):
        with pytest.raises(ArgumentError, match="not an offset"):
            decode(text)


def test_keys() -> None:
    assert (key_of("q", 0, 1), key_of("q", 3, 16)) == ("q", "q#3")
    assert entity_of("t/Subscriptions/s") == ("t/Subscriptions/s", 0)
    assert entity_of("q#15") == ("q", 15)


def dense(key: str, start: int, end: int, messages: int | None, size: int | None) -> Reach:
    """Every position has a message of 10 bytes."""
    most = end - start
    if messages is not None:
        most = min(most, messages)
    if size is not None:
        most = min(most, max(1, size // 10))
    return Reach(start + most, most, 10 * most)


@pytest.mark.req("D1")
def test_a_batch_is_shared_by_what_each_has_to_come() -> None:
    start: Offset = {"a": 0, "b": 0, "c": 5}
    tail: Offset = {"a": 100, "b": 300, "c": 5}
    assert admit(start, tail, None, None, dense) == tail
    end = admit(start, tail, 100, None, dense)
    assert end == {"a": 25, "b": 75, "c": 5}
    assert admit(start, tail, None, 400, dense) == {"a": 10, "b": 30, "c": 5}
    assert admit(start, tail, 1_000, 10, dense) == {"a": 1, "b": 1, "c": 5}


def test_every_key_gets_on() -> None:
    """However small the batch is, and however long another key's queue."""
    end = admit({"a": 0, "b": 0}, {"a": 1, "b": 1_000_000}, 10, None, dense)
    assert end == {"a": 1, "b": 9}
    assert admit({"a": 7}, {"a": 7}, 10, None, dense) == {"a": 7}


def test_room_that_one_does_not_use_goes_to_the_others() -> None:
    def thin(key: str, start: int, end: int, messages: int | None, size: int | None) -> Reach:
        return Reach(end, 1, 10) if key == "a" else dense(key, start, end, messages, size)

    assert admit({"a": 0, "b": 0}, {"a": 50, "b": 50}, 40, None, thin) == {"a": 50, "b": 39}


@pytest.mark.req("D1")
def test_what_is_lost() -> None:
    """An entity that is gone or was made anew, or a tap that let go; being behind is none."""
    tail = {"a": 10, "b": 10}
    assert lost({"a": 10, "b": 3}, tail, {}) == []
    assert "not there any more" in lost({"c": 1}, tail, {})[0]
    assert "made anew" in lost({"a": 11}, tail, {})[0]
    assert "has let go" in lost({"a": 3}, tail, {"a": 4})[0]
