"""The message ids of many encoded messages at once, without decoding any of them.

The sections of a message (AMQP 1.0 §3.2) are walked for all messages side by side: each step looks
at the head of one section of every message that has not come to its properties yet. The id is the
first field of the properties. What is written in an unusual way is decoded one by one.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from tandembus.amqp.message import AmqpMessage
from tandembus.errors import TandemError

Array: TypeAlias = "np.ndarray[Any, Any]"

_PROPERTIES: Final = 0x73
_SMALL: Final = 0x53
"""The constructor of a small ulong, which every descriptor of a section is."""
# By constructor: how many bytes its length has; 9 for what is not a list, a map or a binary.
_WIDTH: Final = np.full(256, 9, "i8")
_WIDTH[[0xA0, 0xA1, 0xC0, 0xC1]] = 1
_WIDTH[[0xB0, 0xB1, 0xD0, 0xD1]] = 4
_WIDTH[0x45] = 0


class Texts:
    """A column of texts: where each begins in a buffer of bytes, and how long it is (-1: null)."""

    __slots__ = ("lengths", "starts")

    def __init__(self, count: int) -> None:
        self.starts = np.zeros(count, "i8")
        self.lengths = np.full(count, -1, "i8")

    def bytes_in(self, buffer: Array) -> Array:
        """All of them, one behind the other."""
        return gather(buffer, self.starts, np.maximum(self.lengths, 0))


def gather(buffer: Array, starts: Array, lengths: Array) -> Array:
    """The bytes of `buffer[start : start + length]` for each, one behind the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    found: Array = buffer[np.arange(total) + np.repeat(starts - ends + lengths, lengths)]
    return found


def find_message_ids(data: bytes, starts: Array, ends: Array) -> tuple[Texts, dict[int, str]]:
    """Of the messages `data[start:end]`: the ids that are texts, and the others by row.

    `data` must go on for 16 bytes behind the last message: the groups' headers see to that, or the
    caller does."""
    count = len(starts)
    found, odd = Texts(count), np.zeros(count, bool)
    buffer = np.frombuffer(data, "u1")
    long = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))
    rows = np.flatnonzero(ends > starts)
    at, limit = starts[rows], ends[rows] - 4
    while len(rows):
        code, constructor = buffer[at + 2], buffer[at + 3]
        is_usual = (buffer[at] == 0) & (buffer[at + 1] == _SMALL)
        width = _WIDTH[constructor]
        is_usual &= width < 9
        odd[rows[~is_usual]] = True
        is_last = is_usual & (code == _PROPERTIES)
        length = np.where(width == 1, buffer[at + 4], np.where(width == 4, long[at + 4], 0))
        heads, at = at + 4, at + 4 + width + length
        section = (heads[is_last], width[is_last], at[is_last])
        _read_ids(buffer, long, rows[is_last], *section, found, odd)
        goes_on = is_usual & ~is_last & (at < limit)
        rows, at, limit = rows[goes_on], at[goes_on], limit[goes_on]
    others = {}
    for row in np.flatnonzero(odd).tolist():
        text = _text(data[int(starts[row]) : int(ends[row])])
        if text is not None:
            others[row] = text
    return found, others


def _read_ids(
    buffer: Array,
    long: Array,
    rows: Array,
    at: Array,
    width: Array,
    end: Array,
    found: Texts,
    odd: Array,
) -> None:
    """`at`: behind the constructor of the list of properties; `end`: behind the section."""
    has_fields = np.where(width == 1, buffer[at + 1], np.where(width == 4, long[at + 4], 0)) > 0
    rows, end = rows[has_fields], end[has_fields]
    at = at[has_fields] + 2 * width[has_fields]
    constructor = buffer[at]
    is_short, is_long = constructor == 0xA1, constructor == 0xB1
    starts = at + np.where(is_short, 2, 5)
    # Signed first: numpy 2.5 refuses -1 beside unsigned numbers.
    longer = np.where(is_long, long[at + 1].astype("i8"), -1)
    lengths = np.where(is_short, buffer[at + 1], longer).astype("i8")
    # What a client claims about lengths is not believed beyond its own section.
    is_whole = (starts + lengths <= end) & (is_short | is_long)
    found.starts[rows] = starts
    found.lengths[rows] = np.where(is_whole, lengths, -1)
    odd[rows[~is_whole & (constructor != 0x40)]] = True


def _text(payload: bytes) -> str | None:
    try:
        message_id = AmqpMessage(payload).message_id
    except TandemError:
        return None
    if message_id is None:
        return None
    return message_id.hex() if isinstance(message_id, bytes) else str(message_id)
