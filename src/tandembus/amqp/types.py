"""AMQP 1.0 values (part 1 of the standard) to bytes and back.

Here live the type system, `decode`, `skip` and the encoders. What a value means (performatives,
message sections) does not live here, and nothing here reads a socket.

The rule: any bytes decode to a value or raise `ProtocolError`, in time and memory bounded by the
number of bytes. The decoder keeps its own stack, compares every length with the bytes that are
there before it takes any, and spends at most `MAX_NODES_PER_FRAME` nodes and `MAX_NESTING` levels
on one call.

What `decode` gives:

    null None · boolean bool · all integers int · float, double float · decimal* Decimal · char str
    timestamp Timestamp · uuid UUID · binary bytes · string str · symbol Symbol · list list
    map dict · array Array, or ZeroWidthArray if its elements take no bytes · described Described,
    but Duration for com.microsoft:timespan

Integers are plain because the broker compares and forwards; the sender's bytes are what it stores.
Where a decoded value has to be written again with the very type it had (properties to modify), use
`decode(…, typed=True)`, which gives UByte … Long, Float and Char: subclasses, so they still compare
and hash as numbers and text. `encode` writes a plain int as long and a plain float as double.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias
from uuid import UUID

from tandembus.errors import ArgumentError, ProtocolError
from tandembus.limits import MAX_NESTING, MAX_NODES_PER_FRAME
from tandembus.model import (
    Byte,
    Char,
    Described,
    Duration,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

__all__ = [
    "Byte", "Char", "Described", "Float", "Int", "Long", "Short", "UByte", "UInt", "ULong",
    "UShort",
]  # fmt: skip

Buffer: TypeAlias = bytes | memoryview

TIMESPAN: Final = Symbol("com.microsoft:timespan")


class Array(list[object]):
    """A list that remembers the constructor of its elements, and their descriptor if any."""

    __slots__ = ("code", "descriptor")

    def __init__(
        self, items: Iterable[object], code: int, descriptor: int | Symbol | None = None
    ) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor


@dataclass(frozen=True, slots=True)
class ZeroWidthArray:
    """An array whose elements take no bytes. Kept as a count: five bytes on the wire can claim four
    billion elements (CVE-2026-66079), so they are never built."""

    code: int
    count: int
    descriptor: int | Symbol | None = None


# --- decoding -------------------------------------------------------------------------------------

_u32: Final = Struct(">I").unpack_from
_u64: Final = Struct(">Q").unpack_from

_CONSTANTS: Final[dict[int, object]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_TYPED_CONSTANTS: Final[dict[int, object]] = {**_CONSTANTS, 0x43: UInt(0), 0x44: ULong(0)}

_Reader: TypeAlias = Callable[[Buffer, int], object]


def _reader(layout: str, wrap: Callable[[int], object] | None = None) -> _Reader:
    unpack = Struct(layout).unpack_from
    if wrap is None:
        return lambda buffer, at: unpack(buffer, at)[0]
    return lambda buffer, at: wrap(unpack(buffer, at)[0])


def _boolean(octet: int) -> bool:
    if octet > 1:
        raise ProtocolError("A boolean octet is neither 0 nor 1.")
    return octet == 1


def _char(point: int) -> str:
    # A surrogate is no character, and could not be encoded again.
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise ProtocolError("A char is not a Unicode scalar value.")
    return chr(point)


def _uuid(buffer: Buffer, at: int) -> UUID:
    return UUID(bytes=bytes(buffer[at : at + 16]))


_LEAST_DOTNET: Final = -4_636
_MOST_DOTNET: Final = -4_608
"""What a decimal128 of Microsoft's library for .NET has for exponents of -28 to 0: two bits in the
middle are missing. Nobody has numbers that are so small."""


def _decimal(width: int, exponent_bits: int, bias: int, digits: int) -> _Reader:
    """A reader of IEEE 754 decimals with the coefficient as a binary integer (BID, §1.6.13-15)."""
    bits = width * 8
    exponent_mask = (1 << exponent_bits) - 1
    most = 10**digits

    def read(buffer: Buffer, at: int) -> Decimal:
        raw = int.from_bytes(buffer[at : at + width], "big")
        sign = "-" if raw >> (bits - 1) else ""
        combination = raw >> (bits - 6) & 0x1F
        if combination == 31:
            return Decimal("NaN")  # quiet: a signalling one raises wherever it is compared
        if combination == 30:
            return Decimal(sign + "Infinity")
        shift = bits - 1 - exponent_bits
        coefficient = 0
        if combination >> 3 == 3:  # the long form: the coefficient's first bits are 100
            shift -= 2
            coefficient = 4 << shift
        coefficient |= raw & ((1 << shift) - 1)
        if coefficient >= most:
            coefficient = 0  # not canonical; the standard reads it as zero
        exponent = (raw >> shift & exponent_mask) - bias
        if _LEAST_DOTNET <= exponent <= _MOST_DOTNET:
            exponent += 4_608
        return Decimal(f"{sign}{coefficient}E{exponent}")

    return read


_PLAIN: Final[dict[int, tuple[int, _Reader]]] = {
    0x50: (1, _reader(">B")),
    0x51: (1, _reader(">b")),
    0x52: (1, _reader(">B")),
    0x53: (1, _reader(">B")),
    0x54: (1, _reader(">b")),
    0x55: (1, _reader(">b")),
    0x56: (1, _reader(">B", _boolean)),
    0x60: (2, _reader(">H")),
    0x61: (2, _reader(">h")),
    0x70: (4, _reader(">I")),
    0x71: (4, _reader(">i")),
    0x72: (4, _reader(">f")),
    0x73: (4, _reader(">I", _char)),
    0x74: (4, _decimal(4, 8, 101, 7)),
    0x80: (8, _reader(">Q")),
    0x81: (8, _reader(">q")),
    0x82: (8, _reader(">d")),
    0x83: (8, _reader(">q", Timestamp)),
    0x84: (8, _decimal(8, 10, 398, 16)),
    0x94: (16, _decimal(16, 14, 6176, 34)),
    0x98: (16, _uuid),
}

# The same without a call of ours, for the types that need no conversion.
_NUMBERS: Final[dict[int, tuple[int, Callable[[Buffer, int], tuple[object, ...]]]]] = {
    code: (width, Struct(layout).unpack_from)
    for code, width, layout in (
        (0x70, 4, ">I"), (0x80, 8, ">Q"), (0x81, 8, ">q"), (0x71, 4, ">i"), (0x55, 1, ">b"),
        (0x54, 1, ">b"), (0x82, 8, ">d"), (0x60, 2, ">H"), (0x61, 2, ">h"), (0x51, 1, ">b"),
    )
}  # fmt: skip
_TYPED: Final[dict[int, tuple[int, _Reader]]] = {
    **_PLAIN,
    0x50: (1, _reader(">B", UByte)),
    0x51: (1, _reader(">b", Byte)),
    0x52: (1, _reader(">B", UInt)),
    0x53: (1, _reader(">B", ULong)),
    0x54: (1, _reader(">b", Int)),
    0x55: (1, _reader(">b", Long)),
    0x60: (2, _reader(">H", UShort)),
    0x61: (2, _reader(">h", Short)),
    0x70: (4, _reader(">I", UInt)),
    0x71: (4, _reader(">i", Int)),
    0x72: (4, _reader(">f", Float)),
    0x73: (4, _reader(">I", lambda point: Char(_char(point)))),
    0x80: (8, _reader(">Q", ULong)),
    0x81: (8, _reader(">q", Long)),
}

# How the decoder reads what a constructor announces, the frequent ways first; all others are 0.
_CONSTANT: Final = 1
_OCTET: Final = 2
_STRING8: Final = 3
_NUMBER: Final = 4
_FIXED: Final = 5


def _ways(octets: Iterable[int], numbers: Iterable[int]) -> bytes:
    ways = bytearray(256)
    for codes, way in (
        (_PLAIN, _FIXED), (numbers, _NUMBER), (octets, _OCTET), (_CONSTANTS, _CONSTANT),
        ((0xA1,), _STRING8),
    ):  # fmt: skip
        for code in codes:
            ways[code] = way
    return bytes(ways)


_PLAIN_WAYS: Final = _ways((0x50, 0x52, 0x53), _NUMBERS)
_TYPED_WAYS: Final = _ways((), ())

# What follows a constructor: that many bytes, or a length of one byte, or of four. (§1.2)
_SIZE8: Final = -1
_SIZE32: Final = -4
_UNKNOWN: Final = -9
_WIDTHS: Final[list[int]] = [_UNKNOWN] * 256
for _code in (0x40, 0x41, 0x42, 0x43, 0x44, 0x45):
    _WIDTHS[_code] = 0
for _code, (_width, _) in _PLAIN.items():
    _WIDTHS[_code] = _width
for _code in (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0):
    _WIDTHS[_code] = _SIZE8
    _WIDTHS[_code + 0x10] = _SIZE32

# Only these can be keys of a map. Compound and described keys cannot be hashed; decimals and uuids
# are wider than a hash, so a peer could choose thousands that collide. Nobody sends any of them.
_KEY_TYPES: Final = frozenset({
    type(None), bool, int, float, str, bytes, Symbol, Timestamp, Duration,
    UByte, UShort, UInt, ULong, Byte, Short, Int, Long, Float, Char,
})  # fmt: skip

# An integer of any width counts the ticks of a timespan, whether or not types are asked for.
_INTEGERS: Final = frozenset({int, UByte, UShort, UInt, ULong, Byte, Short, Int, Long})
_TICKS_END: Final = 1 << 63
"""A ulong beyond this is no timespan: it could not be written as one again."""

_DESCRIBED: Final = 0
_LIST: Final = 1
_MAP: Final = 2
_ARRAY: Final = 3
_KINDS: Final = {
    0xC0: _LIST, 0xD0: _LIST, 0xC1: _MAP, 0xD1: _MAP, 0xE0: _ARRAY, 0xF0: _ARRAY,
}  # fmt: skip


def _cut() -> ProtocolError:
    return ProtocolError("A value is longer than the bytes that hold it.")


def _bad_code(code: int) -> ProtocolError:
    return ProtocolError(f"0x{code:02x} is not a constructor of AMQP 1.0.")


def decode(buffer: Buffer, offset: int = 0, *, typed: bool = False) -> tuple[object, int]:
    """The value that starts at `offset` (not negative), and where it ends.

    Raises `ProtocolError` for anything that is not one complete AMQP value within the limits. Bytes
    after the value are not looked at. A key that a map repeats counts with its last value.
    """
    try:
        if type(buffer) is bytes:
            return _decode(buffer, offset, typed)
        # A view is decoded from a copy of this value alone: slices of bytes are far cheaper.
        end = skip(buffer, offset)
        value, size = _decode(bytes(buffer[offset:end]), 0, typed)
        return value, offset + size
    except UnicodeDecodeError:
        raise ProtocolError("A string is not UTF-8, or a symbol not ASCII.") from None
    except (IndexError, StructError):
        raise _cut() from None


def _decode(buffer: bytes, at: int, typed: bool) -> tuple[object, int]:
    """`decode`, but where the buffer ends too early the exceptions of indexing may come out.

    A read that leaves its container but not the buffer is caught when the container closes.
    """
    if typed:
        ways, constants, fixed = _TYPED_WAYS, _TYPED_CONSTANTS, _TYPED
    else:
        ways, constants, fixed = _PLAIN_WAYS, _CONSTANTS, _PLAIN
    nodes = 0
    # The container being filled; the ones around it wait in `stack`.
    kind = _LIST
    items: list[object] = []
    left = 1
    limit = len(buffer)
    element = -1  # the constructor that all elements of an array share
    descriptor: int | Symbol | None = None
    stack: list[tuple[int, list[object], int, int, int, int | Symbol | None]] = []
    while True:
        while left:
            left -= 1
            if element < 0:
                code = buffer[at]
                at += 1
            else:
                code = element
            way = ways[code]
            if way == _CONSTANT:
                items.append(constants[code])
                continue
            if way == _OCTET:
                items.append(buffer[at])
                at += 1
                continue
            if way == _STRING8:
                end = at + 1 + buffer[at]
                if end > limit:
                    raise _cut()
                items.append(buffer[at + 1 : end].decode())
                at = end
                continue
            if way == _NUMBER:
                width, unpack = _NUMBERS[code]
                items.append(unpack(buffer, at)[0])
                at += width
                continue
            if way == _FIXED:
                width, read = fixed[code]
                if at + width > limit:
                    raise _cut()
                items.append(read(buffer, at))
                at += width
                continue
            if code == 0x45:
                items.append([])
                continue

            if code == 0x00:
                new_descriptor, at = decode_descriptor(buffer, at)
                nodes += 1
                if len(stack) >= MAX_NESTING or nodes > MAX_NODES_PER_FRAME:
                    raise ProtocolError("A value is nested too deep, or has too many elements.")
                stack.append((kind, items, left, limit, element, descriptor))
                kind, items, left, element, descriptor = _DESCRIBED, [], 1, -1, new_descriptor
                continue

            width = _WIDTHS[code]
            if width == _UNKNOWN:
                raise _bad_code(code)
            if width == _SIZE8:
                end = at + 1 + buffer[at]
                at += 1
            else:
                end = at + 4 + _u32(buffer, at)[0]
                at += 4
            if end > limit:
                raise _cut()

            if code < 0xC0:
                raw = buffer[at:end]
                at = end
                if code & 0x0F == 0x03:
                    items.append(Symbol(raw.decode("ascii")))
                elif code & 0x0F == 0x01:
                    items.append(raw.decode())
                else:
                    items.append(raw)
                continue

            # A compound value: its size is known to fit, now its count. (§1.6.22-24)
            if width == _SIZE8:
                count = buffer[at]
                at += 1
            else:
                count = _u32(buffer, at)[0]
                at += 4
            if at > end:
                raise _cut()
            kind_here = _KINDS[code]
            element_here = -1
            descriptor_here: int | Symbol | None = None
            if kind_here == _ARRAY:
                if at == end and not count:  # azure-servicebus leaves the constructor out
                    items.append(Array((), 0x40))
                    continue
                element_here, descriptor_here, at = _element(buffer, at, end)
                if _WIDTHS[element_here] == 0 and count:
                    if count > MAX_NODES_PER_FRAME or at != end:
                        raise ProtocolError("An array of zero-width elements is too long.")
                    items.append(ZeroWidthArray(element_here, count, descriptor_here))
                    continue
            elif kind_here == _MAP and count & 1:
                raise ProtocolError("A map has a key without a value.")
            # Every element takes at least one byte, so no count can promise more than was sent.
            if count > end - at:
                raise _cut()
            nodes += count
            if len(stack) >= MAX_NESTING or nodes > MAX_NODES_PER_FRAME:
                raise ProtocolError("A value is nested too deep, or has too many elements.")
            stack.append((kind, items, left, limit, element, descriptor))
            kind, items, left, limit = kind_here, [], count, end
            element, descriptor = element_here, descriptor_here

        if not stack:
            if at > limit:
                raise _cut()
            return items[0], at
        value: object
        if kind == _DESCRIBED:
            assert descriptor is not None
            value = items[0]
            if (
                descriptor == TIMESPAN
                and isinstance(value, int)
                and type(value) in _INTEGERS
                and value < _TICKS_END
            ):
                value = Duration(value)
            else:
                value = Described(descriptor, value)
        else:
            if at != limit:
                raise ProtocolError("The size of a compound value differs from its contents.")
            if kind == _LIST:
                value = items
            elif kind == _MAP:
                entries: dict[object, object] = {}
                parts = iter(items)
                for key in parts:
                    if type(key) not in _KEY_TYPES:
                        raise ProtocolError("A map has a key of a type that is not accepted.")
                    entries[key] = next(parts)
                value = entries
            else:
                value = Array(items, element, descriptor)
        kind, items, left, limit, element, descriptor = stack.pop()
        items.append(value)


def decode_descriptor(buffer: Buffer, at: int) -> tuple[int | Symbol, int]:
    """The descriptor that starts at `at`, after a 0x00, and where it ends."""
    try:
        code = buffer[at]
        at += 1
        if code == 0x53:
            return buffer[at], at + 1
        if code == 0x44:
            return 0, at
        if code == 0x80:
            return _u64(buffer, at)[0], at + 8
        if code == 0xA3:
            start = at + 1
            end = start + buffer[at]
        elif code == 0xB3:
            start = at + 4
            end = start + _u32(buffer, at)[0]
        else:
            raise ProtocolError("A descriptor is neither a ulong nor a symbol.")
    except (IndexError, StructError):
        raise _cut() from None
    if end > len(buffer):
        raise _cut()
    try:
        return Symbol(str(buffer[start:end], "ascii")), end
    except UnicodeDecodeError:
        raise ProtocolError("A symbol is not ASCII.") from None


def _element(buffer: Buffer, at: int, end: int) -> tuple[int, int | Symbol | None, int]:
    """The constructor of an array's elements: its code, its descriptor, and where it ends."""
    descriptor = None
    if at < end and buffer[at] == 0x00:
        descriptor, at = decode_descriptor(buffer, at + 1)
    if at >= end:
        raise _cut()
    code = buffer[at]
    if _WIDTHS[code] == _UNKNOWN:  # a second 0x00 too: nobody describes a description in an array
        raise _bad_code(code)
    return code, descriptor, at + 1


def skip(buffer: Buffer, offset: int) -> int:
    """Where the value that starts at `offset` ends, without building it or looking inside."""
    try:
        code = buffer[offset]
        at = offset + 1
        depth = 0
        while code == 0x00:
            depth += 1
            if depth > MAX_NESTING:
                raise ProtocolError("A value is nested too deep.")
            _, at = decode_descriptor(buffer, at)
            code = buffer[at]
            at += 1
        width = _WIDTHS[code]
        if width >= 0:
            end = at + width
        elif width == _SIZE8:
            end = at + 1 + buffer[at]
        elif width == _SIZE32:
            end = at + 4 + _u32(buffer, at)[0]
        else:
            raise _bad_code(code)
    except (IndexError, StructError):
        raise _cut() from None
    if end > len(buffer):
        raise _cut()
    return end


def compound(buffer: Buffer, at: int) -> tuple[int, int, int]:
    """The list or map at `at`, opened: (number of elements, where the first starts, where it ends).

    For callers that keep elements as bytes: they `skip` from one to the next.
    """
    end = skip(buffer, at)
    code = buffer[at]
    if code == 0x45:
        return 0, end, end
    if code in (0xC0, 0xC1) and end - at >= 3:
        count, start = buffer[at + 2], at + 3
    elif code in (0xD0, 0xD1) and end - at >= 9:
        count, start = _u32(buffer, at + 5)[0], at + 9
    else:
        raise ProtocolError("A list or a map was expected.")
    if count > end - start or count > MAX_NODES_PER_FRAME:
        raise ProtocolError("A list or a map has too many elements.")
    if code & 1 and count & 1:
        raise ProtocolError("A map has a key without a value.")
    return count, start, end


# --- encoding -------------------------------------------------------------------------------------
# `encode_x` writes one AMQP type in its shortest form. All raise `ArgumentError` for what the type
# cannot hold; nothing is ever cut short or wrapped round in silence.

NULL: Final = b"\x40"
_BYTES: Final = tuple(bytes((n,)) for n in range(256))
_SMALL_UINT: Final = (b"\x43", *(b"\x52" + n for n in _BYTES[1:]))
_SMALL_ULONG: Final = (b"\x44", *(b"\x53" + n for n in _BYTES[1:]))

_DECIMAL128: Final = Context(
    prec=34, rounding=ROUND_HALF_EVEN, Emin=-6143, Emax=6144, clamp=1, traps=[]
)


def _packer(layout: str) -> Callable[[int, object], bytes]:
    pack = Struct(layout).pack

    def write(code: int, value: object) -> bytes:
        try:
            return pack(code, value)
        except (StructError, OverflowError):
            raise ArgumentError(f"{value!r:.80} does not fit its AMQP type.") from None

    return write


_pack_u8 = _packer(">BB")
_pack_i8 = _packer(">Bb")
_pack_u16 = _packer(">BH")
_pack_i16 = _packer(">Bh")
_pack_u32 = _packer(">BI")
_pack_i32 = _packer(">Bi")
_pack_u64 = _packer(">BQ")
_pack_i64 = _packer(">Bq")
_pack_f32 = _packer(">Bf")
_pack_f64 = _packer(">Bd")
_pack_size8: Final = Struct(">BBB").pack
_pack_size32: Final = Struct(">BII").pack


def encode_boolean(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def encode_ubyte(value: int) -> bytes:
    return _pack_u8(0x50, value)


def encode_ushort(value: int) -> bytes:
    return _pack_u16(0x60, value)


def encode_uint(value: int) -> bytes:
    return _SMALL_UINT[value] if 0 <= value < 256 else _pack_u32(0x70, value)


def encode_ulong(value: int) -> bytes:
    return _SMALL_ULONG[value] if 0 <= value < 256 else _pack_u64(0x80, value)


def encode_byte(value: int) -> bytes:
    return _pack_i8(0x51, value)


def encode_short(value: int) -> bytes:
    return _pack_i16(0x61, value)


def encode_int(value: int) -> bytes:
    return _pack_i8(0x54, value) if -128 <= value < 128 else _pack_i32(0x71, value)


def encode_long(value: int) -> bytes:
    return _pack_i8(0x55, value) if -128 <= value < 128 else _pack_i64(0x81, value)


def encode_float(value: float) -> bytes:
    return _pack_f32(0x72, value)


def encode_double(value: float) -> bytes:
    return _pack_f64(0x82, value)


def encode_char(value: str) -> bytes:
    if len(value) != 1 or 0xD800 <= ord(value) <= 0xDFFF:
        raise ArgumentError("A char is one Unicode character.")
    return _pack_u32(0x73, ord(value))


def encode_timestamp(value: int) -> bytes:
    return _pack_i64(0x83, value)


def encode_uuid(value: UUID) -> bytes:
    return b"\x98" + value.bytes


def encode_duration(ticks: int) -> bytes:
    """A `com.microsoft:timespan`: a described long of 100 ns ticks."""
    return b"\x00" + encode_symbol(TIMESPAN) + _pack_i64(0x81, ticks)


def encode_decimal(value: Decimal) -> bytes:
    """As decimal128, the only decimal that azure-servicebus can read; rounded to its 34 digits."""
    value = _DECIMAL128.create_decimal(value)
    sign = 1 << 127 if value.is_signed() else 0
    if value.is_nan():
        raw = 0x7C << 120
    elif value.is_infinite():
        raw = sign | 0x78 << 120
    else:
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        raw = sign | (exponent + 6176) << 113 | int("".join(map(str, digits)))
    return b"\x94" + raw.to_bytes(16, "big")


def _sized(code: int, raw: bytes) -> bytes:
    size = len(raw)
    if size < 256:
        return _BYTES[code] + _BYTES[size] + raw
    return _pack_u32(code + 0x10, size) + raw


def encode_binary(value: bytes) -> bytes:
    return _sized(0xA0, bytes(value))


def encode_string(value: str) -> bytes:
    try:
        return _sized(0xA1, value.encode())
    except UnicodeEncodeError:
        raise ArgumentError("Text holds half of a surrogate pair.") from None


def encode_symbol(value: str) -> bytes:
    try:
        return _sized(0xA3, value.encode("ascii"))
    except UnicodeEncodeError:
        raise ArgumentError("A symbol holds more than ASCII.") from None


def _compound(code: int, items: Sequence[bytes]) -> bytes:
    body = b"".join(items)
    size = len(body)
    count = len(items)
    if size < 255 and count < 256:
        return _pack_size8(code, size + 1, count) + body
    return _pack_size32(code + 0x10, size + 4, count) + body


def encode_list(items: Sequence[bytes]) -> bytes:
    """A list of values that are encoded already."""
    return _compound(0xC0, items) if items else b"\x45"


def encode_map(items: Sequence[bytes]) -> bytes:
    """A map of keys and values that are encoded already, one after the other."""
    assert len(items) % 2 == 0, "a key without a value"
    return _compound(0xC1, items)


def encode_composite(code: int, fields: Sequence[bytes]) -> bytes:
    """A described list with a small-ulong descriptor; null fields at the end are left out.

    Errors are to be written with `encode_described(0x1d, encode_list(…))`: azure-servicebus indexes
    their three fields without looking at the length.
    """
    used = len(fields)
    while used and fields[used - 1] == NULL:
        used -= 1
    return encode_described(code, encode_list(fields[:used]))


def encode_described(code: int, value: bytes) -> bytes:
    """An encoded value under the descriptor `00 53 code`, the only form azure-servicebus reads."""
    return b"\x00\x53" + _BYTES[code] + value


# Elements of an array all take the wide form, so that one constructor serves them all.
_WIDE: Final = {
    0x41: 0x56, 0x42: 0x56, 0x43: 0x70, 0x44: 0x80, 0x52: 0x70, 0x53: 0x80, 0x54: 0x71, 0x55: 0x81,
    0xA0: 0xB0, 0xA1: 0xB1, 0xA3: 0xB3, 0xC0: 0xD0, 0xC1: 0xD1, 0xE0: 0xF0, 0x45: 0xD0,
    0x74: 0x94, 0x84: 0x94,
}  # fmt: skip
_PACKERS: Final = {
    0x50: _pack_u8, 0x51: _pack_i8, 0x56: _pack_u8, 0x60: _pack_u16, 0x61: _pack_i16,
    0x70: _pack_u32, 0x71: _pack_i32, 0x72: _pack_f32, 0x80: _pack_u64, 0x81: _pack_i64,
    0x82: _pack_f64, 0x83: _pack_i64,
}  # fmt: skip


def _widened(code: int, value: object) -> bytes:
    """One element of an array, whose constructor is `code`, without that constructor."""
    if code in _PACKERS:
        return _PACKERS[code](code, value)[1:]
    whole = encode_char(value) if code == 0x73 and isinstance(value, str) else encode(value)
    if _WIDE.get(whole[0], whole[0]) != code:
        raise ArgumentError("The elements of an array are not of one type.")
    if whole[0] == code:
        return whole[1:]
    if code < 0xC0:
        return _pack_u32(0, whole[1])[1:] + whole[2:]
    if whole[0] == 0x45:
        return bytes((0, 0, 0, 4, 0, 0, 0, 0))
    return _pack_size32(0, whole[1] + 3, whole[2])[1:] + whole[3:]


def encode_array(items: Sequence[object], code: int, descriptor: int | str | None = None) -> bytes:
    """An array of `items`, all of the type that the constructor `code` stands for."""
    code = _WIDE.get(code, code)
    if _WIDTHS[code] == _UNKNOWN or (_WIDTHS[code] == 0 and items):
        raise ArgumentError(f"0x{code:02x} cannot be the constructor of array elements.")
    return _array([_widened(code, item) for item in items], len(items), code, descriptor)


def _array(items: list[bytes], count: int, code: int, descriptor: int | str | None) -> bytes:
    body = _BYTES[code] + b"".join(items)
    if descriptor is not None:
        body = b"\x00" + _encode_descriptor(descriptor) + body
    if len(body) < 255 and count < 256:
        return _pack_size8(0xE0, len(body) + 1, count) + body
    return _pack_size32(0xF0, len(body) + 4, count) + body


def _encode_descriptor(descriptor: int | str) -> bytes:
    if isinstance(descriptor, str):
        return encode_symbol(descriptor)
    # Descriptors keep `53 00` for zero as well: clients look at fixed offsets.
    return b"\x53" + _BYTES[descriptor] if 0 <= descriptor < 256 else encode_ulong(descriptor)


def _encode_integer(value: int) -> bytes:
    # SQL actions and `properties` give plain integers; beyond long there is only ulong.
    return encode_ulong(value) if value > 0x7FFF_FFFF_FFFF_FFFF else encode_long(value)


def _encode_mapping(value: Mapping[object, object]) -> bytes:
    return encode_map([encode(part) for pair in value.items() for part in pair])


_ENCODERS: Final[dict[type, Callable[..., bytes]]] = {
    str: encode_string,
    bool: encode_boolean,
    int: _encode_integer,
    float: encode_double,
    bytes: encode_binary,
    type(None): lambda _: NULL,
    Symbol: encode_symbol,
    Timestamp: encode_timestamp,
    Duration: encode_duration,
    UUID: encode_uuid,
    Decimal: encode_decimal,
    UByte: encode_ubyte,
    UShort: encode_ushort,
    UInt: encode_uint,
    ULong: encode_ulong,
    Byte: encode_byte,
    Short: encode_short,
    Int: encode_int,
    Long: encode_long,
    Float: encode_float,
    Char: encode_char,
    bytearray: encode_binary,
    memoryview: encode_binary,
    Array: lambda array: encode_array(array, array.code, array.descriptor),
    ZeroWidthArray: lambda array: _array([], array.count, array.code, array.descriptor),
    Described: lambda it: b"\x00" + _encode_descriptor(it.descriptor) + encode(it.value),
    list: lambda items: encode_list([encode(item) for item in items]),
    tuple: lambda items: encode_list([encode(item) for item in items]),
    dict: _encode_mapping,
}


def encode(value: object) -> bytes:
    """`value` as AMQP: the type that its class stands for, in the shortest form."""
    write = _ENCODERS.get(type(value))
    if write is None:
        for known, write in _ENCODERS.items():  # a subclass, such as an IntEnum
            if isinstance(value, known):
                return write(value)
        raise ArgumentError(f"A {type(value).__name__} has no AMQP type.")
    return write(value)
