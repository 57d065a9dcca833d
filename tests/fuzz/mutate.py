"""Bytes that are almost right: mutations that know the constructors of AMQP, and generated values.

Here live `Mutator`, a stream of mutants of seeds, and the generators of AMQP values. What a mutant
is held against is the targets' affair.

The rule: all chance comes from the seed, so a run can be repeated; every mutant costs a few
microseconds, because millions of them are made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from struct import pack
from typing import Final

CODES: Final = bytes.fromhex(
    "00404142434445505152535455566061707172737480818283849498"
    "a0a1a3b0b1b3c0c1d0d1e0f0"
)  # fmt: skip
_IS_CODE: Final = frozenset(CODES)
_NUMBERS8: Final = (0, 1, 2, 7, 8, 0x1F, 0x20, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS32: Final = (
    0, 1, 4, 7, 8, 9, 511, 512, 10_000, 10_001, 65_535, 65_536, 0x7FFF_FFFF, 0x8000_0000,
    0xFFFF_FFF0, 0xFFFF_FFFE, 0xFFFF_FFFF,
)  # fmt: skip
SHORT: Final = 24
LONG: Final = 2_000
MOST: Final = 65_536
"""Bytes of a mutant: one frame of the largest size that is offered."""


class Mutator:
    """Mutants of `seeds`. `mend` sees each mutant of three, and may repair what holds it together
    (the size of a frame), so that the other mistakes are reached."""

    def __init__(
        self, seeds: Sequence[bytes], seed: int, mend: Callable[[bytearray], None] | None = None
    ) -> None:
        assert seeds
        self.seeds = [each[:MOST] for each in seeds]
        self.chance = random.Random(seed)
        self.mend = mend
        self._random = self.chance.random
        self._ways: tuple[Callable[[bytearray], None], ...] = (
            self._flip, self._flip, self._byte, self._byte, self._code, self._code, self._code,
            self._length8, self._length8, self._length32, self._cut, self._delete, self._insert,
            self._double, self._splice, self._value, self._swap, self._shift,
        )  # fmt: skip

    def pick(self) -> bytes:
        """A seed; the long ones, which take hundreds of times as long, are the rare ones."""
        rand = self._random
        while True:
            seed = self.seeds[int(rand() * len(self.seeds))]
            if len(seed) < LONG or rand() < 0.1:
                return seed

    def mutant(self) -> bytes:
        """A seed with mistakes in it."""
        return self.spoiled(self.pick())

    def spoiled(self, data: bytes) -> bytes:
        """`data` with one to six mistakes in it."""
        raw = bytearray(data)
        rand = self._random
        times = 1 + int(rand() * rand() * 6)
        if len(raw) < SHORT:  # there are only so many ways to make one mistake in a few bytes
            times += int(rand() * 5)
        ways = self._ways
        for _ in range(times):
            ways[int(rand() * 18)](raw)
        if self.mend is not None and rand() < 0.67:
            self.mend(raw)
        return bytes(raw if len(raw) <= MOST else raw[:MOST])

    def _at(self, raw: bytearray) -> int:
        return int(self._random() * len(raw))

    def _flip(self, raw: bytearray) -> None:
        if raw:
            raw[self._at(raw)] ^= 1 << int(self._random() * 8)

    def _byte(self, raw: bytearray) -> None:
        if raw:
            raw[self._at(raw)] = int(self._random() * 256)

    def _code(self, raw: bytearray) -> None:
        """Another constructor where one seems to be."""
        for _ in range(8):
            if not raw:
                return
            at = self._at(raw)
            if raw[at] in _IS_CODE:
                raw[at] = CODES[int(self._random() * len(CODES))]
                return

    def _length8(self, raw: bytearray) -> None:
        if raw:
            at = self._at(raw)
            if self._random() < 0.5:
                raw[at] = _NUMBERS8[int(self._random() * len(_NUMBERS8))]
            else:  # off by a little, or what is left
                near = (raw[at] - 1, raw[at] + 1, len(raw) - at, len(raw) - at - 1)
                raw[at] = near[int(self._random() * 4)] & 0xFF

    def _length32(self, raw: bytearray) -> None:
        if len(raw) >= 4:
            at = int(self._random() * (len(raw) - 3))
            number = _NUMBERS32[int(self._random() * len(_NUMBERS32))]
            if self._random() < 0.3:
                number = len(raw) - at - 4
            raw[at : at + 4] = number.to_bytes(4, "big")

    def _cut(self, raw: bytearray) -> None:
        del raw[self._at(raw) :]

    def _delete(self, raw: bytearray) -> None:
        at = self._at(raw)
        del raw[at : at + 1 + int(self._random() * 8)]

    def _insert(self, raw: bytearray) -> None:
        at = self._at(raw)
        raw[at:at] = self.chance.randbytes(1 + int(self._random() * 8))

    def _double(self, raw: bytearray) -> None:
        at = self._at(raw)
        some = raw[at : at + 1 + int(self._random() * 40)]
        raw[at:at] = some * (1 + int(self._random() * 3))

    def _splice(self, raw: bytearray) -> None:
        """A piece of another seed."""
        other = self.pick()
        if other:
            start = int(self._random() * len(other))
            at = self._at(raw)
            piece = other[start : start + 1 + int(self._random() * 60)]
            end = at + len(piece) if self._random() < 0.5 else at
            raw[at:end] = piece

    def _value(self, raw: bytearray) -> None:
        """A whole value, in place of nothing or of a byte."""
        at = self._at(raw)
        raw[at : at + int(self._random() * 2)] = value(self.chance)

    def _swap(self, raw: bytearray) -> None:
        if raw:
            one, other = self._at(raw), self._at(raw)
            raw[one], raw[other] = raw[other], raw[one]

    def _shift(self, raw: bytearray) -> None:
        """Two neighbouring pieces change places."""
        at = self._at(raw)
        middle, end = at + 1 + int(self._random() * 12), at + 13 + int(self._random() * 12)
        raw[at:end] = raw[middle:end] + raw[at:middle]


def mend_frame(raw: bytearray) -> None:
    """The size that a frame says is the one that it has; data offset and type as they should be."""
    if len(raw) >= 8:
        raw[0:4] = len(raw).to_bytes(4, "big")
        raw[4] = 2


# --- generated values -----------------------------------------------------------------------------

_WIDTHS: Final = {
    0x40: 0, 0x41: 0, 0x42: 0, 0x43: 0, 0x44: 0, 0x45: 0, 0x50: 1, 0x51: 1, 0x52: 1, 0x53: 1,
    0x54: 1, 0x55: 1, 0x56: 1, 0x60: 2, 0x61: 2, 0x70: 4, 0x71: 4, 0x72: 4, 0x73: 4, 0x74: 4,
    0x80: 8, 0x81: 8, 0x82: 8, 0x83: 8, 0x84: 8, 0x94: 16, 0x98: 16,
}  # fmt: skip
_FIXED: Final = tuple(_WIDTHS)
_TEXTS: Final = (
    b"", b"a", b"orders", b"amqp:accepted:list", b"com.microsoft:timespan", b"com.microsoft:uri",
    b"com.microsoft:datetime-offset", b"x-opt-partition-key", b"x-opt-scheduled-enqueue-time",
    "é".encode(), b"\xff\xfe", b"\xed\xa0\x80", b"x" * 129, b"y" * 300,
)  # fmt: skip


def value(chance: random.Random, depth: int = 0) -> bytes:
    """An AMQP value, right in most cases."""
    rand = chance.random
    what = rand()
    if what < 0.45 or depth > 4:
        return _scalar(chance)
    if what < 0.65:
        text = _TEXTS[int(rand() * len(_TEXTS))]
        code = (0xA0, 0xA1, 0xA3)[int(rand() * 3)]
        if len(text) < 256 and rand() < 0.8:
            return bytes((code, len(text))) + text
        return pack(">BI", code + 0x10, len(text)) + text
    if what < 0.72:
        descriptor = (b"\x53" + bytes((int(rand() * 256),)), b"\x44", b"\xa3\x01a", b"\x40")
        return b"\x00" + descriptor[int(rand() * rand() * 4)] + value(chance, depth + 1)
    if what < 0.82:
        return array(chance)
    items = [value(chance, depth + 1) for _ in range(int(rand() * rand() * 6))]
    code = 0xC0
    if what > 0.91:
        code = 0xC1
        if len(items) % 2 and rand() < 0.95:
            items.append(b"\x40")
    body = b"".join(items)
    count = len(items) if rand() < 0.97 else int(rand() * 256)
    if len(body) < 255 and rand() < 0.7:
        return bytes((code, len(body) + 1, count)) + body
    return pack(">BII", code + 0x10, len(body) + 4, count) + body


def _scalar(chance: random.Random) -> bytes:
    rand = chance.random
    code = _FIXED[int(rand() * len(_FIXED))]
    width = _WIDTHS[code]
    if code == 0x56 and rand() < 0.9:
        return b"\x56" + bytes((int(rand() * 2),))
    if width and rand() < 0.4:
        edge = (b"\x00" * width, b"\xff" * width, b"\x7f" + b"\xff" * (width - 1),
                b"\x80" + b"\x00" * (width - 1), b"\x00" * (width - 1) + b"\x01")  # fmt: skip
        return bytes((code,)) + edge[int(rand() * 5)]
    return bytes((code,)) + chance.randbytes(width)


def array(chance: random.Random) -> bytes:
    """An array; one of elements without width can claim to have any number of them."""
    rand = chance.random
    code = _FIXED[int(rand() * len(_FIXED))]
    width = _WIDTHS[code]
    count = int(rand() * rand() * 20)
    if rand() < 0.2:
        code, parts = 0xA1, [bytes((1, 97 + int(rand() * 26))) for _ in range(count)]
    elif rand() < 0.2:
        code, parts = 0xC0, [b"\x02\x01\x40" for _ in range(count)]
    else:
        parts = [chance.randbytes(width) for _ in range(count)]
    if not width and rand() < 0.5:
        count = _NUMBERS32[int(rand() * len(_NUMBERS32))]
    opening = b"\x00\x53\x01" if rand() < 0.1 else b""
    body = opening + bytes((code,)) + b"".join(parts)
    if len(body) < 255 and count < 256 and rand() < 0.7:
        return bytes((0xE0, len(body) + 1, count)) + body
    return pack(">BII", 0xF0, len(body) + 4, count) + body
