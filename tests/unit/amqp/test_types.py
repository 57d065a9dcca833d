"""The AMQP 1.0 type system: the standard's encodings byte by byte, and what hostile bytes get."""

from __future__ import annotations

import struct
import tracemalloc
from decimal import Decimal
from uuid import UUID

import pytest

from tandembus import limits
from tandembus.amqp import types as t
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.model import Duration, Symbol, Timestamp


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


def value_of(text: str, *, typed: bool = False) -> object:
    """The value of a complete encoding; also proves that decode and skip end at its last byte."""
    raw = hexed(text)
    value, end = t.decode(raw, typed=typed)
    assert end == len(raw) == t.skip(raw, 0)
    return value


SCALARS: list[tuple[str, object, type]] = [
    ("40", None, type(None)),
    ("41", True, bool),
    ("42", False, bool),
    ("56 01", True, bool),
    ("56 00", False, bool),
    ("50 ff", 255, t.UByte),
    ("60 ffff", 65535, t.UShort),
    ("70 ffffffff", 4294967295, t.UInt),
    ("52 07", 7, t.UInt),
    ("43", 0, t.UInt),
    ("80 ffffffffffffffff", 2**64 - 1, t.ULong),
    ("53 07", 7, t.ULong),
    ("44", 0, t.ULong),
    ("51 ff", -1, t.Byte),
    ("61 8000", -32768, t.Short),
    ("71 80000000", -(2**31), t.Int),
    ("54 80", -128, t.Int),
    ("81 8000000000000000", -(2**63), t.Long),
    ("55 80", -128, t.Long),
    ("72 3fc00000", 1.5, t.Float),
    ("82 3ff8000000000000", 1.5, float),
    ("73 0001f600", "\N{GRINNING FACE}", t.Char),
    ("83 0000018bcfe56800", 1700000000000, Timestamp),
    ("83 ffffffffffffffff", -1, Timestamp),
    ("98 00112233445566778899aabbccddeeff", UUID("00112233-4455-6677-8899-aabbccddeeff"), UUID),
    ("a0 03 0001ff", b"\x00\x01\xff", bytes),
    ("b0 00000003 0001ff", b"\x00\x01\xff", bytes),
    ("a1 03 e282ac", "€", str),
    ("b1 00000003 e282ac", "€", str),
    ("a3 03 666f6f", "foo", Symbol),
    ("b3 00000003 666f6f", "foo", Symbol),
]


@pytest.mark.parametrize(("raw", "expected", "kind"), SCALARS)
def test_each_primitive_encoding(raw: str, expected: object, kind: type) -> None:
    """AMQP 1.0 §1.6.1-21: every constructor gives its value; typed, also its type."""
    plain = value_of(raw)
    assert plain == expected
    numbers = (t.UByte, t.UShort, t.UInt, t.ULong, t.Byte, t.Short, t.Int, t.Long)
    expected_plain = int if kind in numbers else {t.Float: float, t.Char: str}.get(kind, kind)
    assert type(plain) is expected_plain
    typed = value_of(raw, typed=True)
    assert typed == expected
    assert type(typed) is kind


@pytest.mark.parametrize(("raw", "expected", "kind"), SCALARS)
def test_a_typed_value_is_written_with_its_type(raw: str, expected: object, kind: type) -> None:
    """AMQP 1.0 §1.6: what `decode(typed=True)` gives, `encode` writes with the same type."""
    value = value_of(raw, typed=True)
    again, _ = t.decode(t.encode(value), typed=True)
    assert again == value
    assert type(again) is kind


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (1, "55 01"),
        (-129, "81 ffffffffffffff7f"),
        (2**63, "80 8000000000000000"),
        (1.5, "82 3ff8000000000000"),
        ("é", "a1 02 c3a9"),
        (b"", "a0 00"),
        (Symbol("a"), "a3 01 61"),
        (Timestamp(1), "83 0000000000000001"),
        (t.UInt(0), "43"),
        (t.UInt(255), "52 ff"),
        (t.UInt(256), "70 00000100"),
        (t.ULong(0), "44"),
        (t.ULong(256), "80 0000000000000100"),
        (t.Int(-1), "54 ff"),
        (t.Int(128), "71 00000080"),
        ([], "45"),
        ([None], "c0 02 01 40"),
        ({}, "c1 01 00"),
        ({"a": 1}, "c1 06 02 a1 01 61 55 01"),
        ((None, True), "c0 03 02 40 41"),
        (t.Described(0x24, []), "00 53 24 45"),
        (t.Described(Symbol("x"), None), "00 a3 01 78 40"),
    ],
)
def test_values_take_the_shortest_encoding(value: object, raw: str) -> None:
    """AMQP 1.0 §1.6: the compact encodings are used, and a plain int is a long."""
    assert t.encode(value) == hexed(raw)


def test_long_text_and_binary_take_four_byte_lengths() -> None:
    """AMQP 1.0 §1.6.19-21: 255 bytes fit the short form, 256 do not."""
    assert t.encode("x" * 255)[:2] == b"\xa1\xff"
    assert t.encode("x" * 256)[:5] == b"\xb1\x00\x00\x01\x00"
    assert t.encode(b"x" * 256)[:5] == b"\xb0\x00\x00\x01\x00"
    assert t.encode(Symbol("x" * 256))[:5] == b"\xb3\x00\x00\x01\x00"


def test_long_lists_and_maps_take_four_byte_sizes() -> None:
    """AMQP 1.0 §1.6.22-23: more than 254 bytes or 255 elements need list32 and map32."""
    for value in (["x" * 252], [None] * 254, [None] * 255, ["x" * 300], {"k": "x" * 300}):
        raw = t.encode(value)
        assert t.decode(raw) == (value, len(raw))
    assert t.encode([None] * 254)[0] == 0xC0
    assert t.encode([None] * 255)[0] == 0xD0


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        t.UByte(256),
        t.UInt(-1),
        t.Int(2**31),
        t.Float(1e300),
        "\ud800",
        Symbol("é"),
        t.Char("ab"),
        object(),
        [object()],
    ],
)
def test_what_no_type_can_hold_is_refused(value: object) -> None:
    """AMQP 1.0 §1.6: a value out of range is an argument error, never wrapped or cut."""
    with pytest.raises(ArgumentError):
        t.encode(value)


# --- decimals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("94 30380000000000000000000000003039", "1.2345"),
        ("94 b03e0000000000000000000000000001", "-0.1"),
        ("94 30400000000000000000000000000000", "0"),
        ("94 78000000000000000000000000000000", "Infinity"),
        ("94 f8000000000000000000000000000000", "-Infinity"),
        ("94 7c000000000000000000000000000000", "NaN"),
        ("94 7e000000000000000000000000000000", "NaN"),
        ("94 6c100000000000000000000000000000", "0"),
        ("74 3200000f", "1.5"),
        ("74 6cb8967f", "9999999"),
        ("84 31a000000000000f", "1.5"),
        ("84 6c7386f26fc0ffff", "9999999999999999"),
    ],
)
def test_decimals_are_read_as_binary_integer_decimals(raw: str, expected: str) -> None:
    """AMQP 1.0 §1.6.13-15: IEEE 754 decimals; 1.2345 is what azure-servicebus sends for it."""
    value = value_of(raw)
    assert isinstance(value, Decimal)
    assert str(value) == expected


@pytest.mark.parametrize(
    "text",
    ["0", "-0", "1.2345", "-1E+10", "9" * 34, "1E-6176", "9.99E+6144", "Infinity", "-Infinity"],
)
def test_decimals_survive(text: str) -> None:
    """AMQP 1.0 §1.6.15: decimal128 holds 34 digits and exponents from -6176 to 6111."""
    value, _ = t.decode(t.encode(Decimal(text)))
    assert isinstance(value, Decimal)
    assert value == Decimal(text)
    assert value.is_signed() == Decimal(text).is_signed()


def test_a_decimal_beyond_decimal128_is_rounded_as_ieee_754_says() -> None:
    """AMQP 1.0 §1.6.15: too many digits are rounded to even, too large becomes infinite."""
    assert t.decode(t.encode(Decimal("1" * 35)))[0] == Decimal("1" * 34 + "0")
    assert t.decode(t.encode(Decimal("1E+6145")))[0] == Decimal("Infinity")
    assert str(t.decode(t.encode(Decimal("sNaN")))[0]) == "NaN"


# --- compound and described -----------------------------------------------------------------------


def test_nested_lists_and_maps() -> None:
    """AMQP 1.0 §1.6.22-23: compound values nest, and end where their size says."""
    assert value_of("c0 0a 03 45 c1 05 02 a1 01 61 45 41") == [[], {"a": []}, True]
    assert value_of("d0 00000005 00000001 41") == [True]
    assert value_of("d1 00000004 00000000") == {}


def test_the_last_value_of_a_repeated_key_counts() -> None:
    """AMQP 1.0 §1.6.23 forbids repeated keys; we read them as every client does: last wins."""
    assert value_of("c1 0b 04 a1 01 61 55 01 a1 01 61 55 02") == {"a": 2}


def test_arrays() -> None:
    """AMQP 1.0 §1.6.24: one constructor for all elements, described or not."""
    symbols = value_of("e0 06 02 a3 01 61 01 62")
    assert symbols == ["a", "b"]
    assert isinstance(symbols, t.Array)
    assert (symbols.code, symbols.descriptor) == (0xA3, None)
    assert all(type(symbol) is Symbol for symbol in symbols)
    described = value_of("e0 07 02 00 53 05 50 01 02")
    assert described == [1, 2]
    assert isinstance(described, t.Array)
    assert described.descriptor == 5
    assert value_of("f0 0000000d 00000002 71 00000001 ffffffff") == [1, -1]
    assert value_of("e0 09 02 c0 02 01 41 03 02 40 42") == [[True], [None, False]]
    assert value_of("e0 09 02 e0 03 01 50 07 02 00 71") == [[7], []]


def test_an_empty_array_without_constructor() -> None:
    """AMQP 1.0 §1.6.24 wants a constructor; azure-servicebus leaves it out of an empty array."""
    assert value_of("e0 01 00") == []
    assert value_of("f0 00000004 00000000") == []


@pytest.mark.parametrize(
    "array",
    [
        t.Array([Symbol("a"), Symbol("b" * 300)], 0xA3),
        t.Array([1, 300], 0x52),
        t.Array([True, False], 0x56),
        t.Array([-1, 2**40], 0x81),
        t.Array([UUID(int=1), UUID(int=2)], 0x98),
        t.Array(["x", "y"], 0x73),
        t.Array([[1], [], [None] * 300], 0xC0),
        t.Array([{"a": 1}, {}], 0xD1),
        t.Array([t.Array([1], 0x50), t.Array([2, 3], 0x50)], 0xE0),
        t.Array([1, 2], 0x50, Symbol("d")),
        t.Array([], 0x71),
        t.Array([Decimal("1.5")], 0x74),
    ],
)
def test_arrays_survive(array: t.Array) -> None:
    """AMQP 1.0 §1.6.24: encoded in the wide form of the element type, an array reads back equal."""
    raw = t.encode(array)
    again, end = t.decode(raw)
    assert (again, end) == (array, len(raw))
    assert isinstance(again, t.Array)
    assert again.descriptor == array.descriptor


def test_elements_of_two_types_do_not_make_an_array() -> None:
    """AMQP 1.0 §1.6.24: an array is of one type."""
    for items, code in ((["a", b"b"], 0xA1), (["a"], 0x71), ([1], 0x40), ([1], 0x99)):
        with pytest.raises(ArgumentError):
            t.encode_array(items, code)


def test_described_values() -> None:
    """AMQP 1.0 §1.2, §1.5: numeric and symbolic descriptors, short and long, and nested."""
    assert value_of("00 53 24 45") == t.Described(0x24, [])
    assert value_of("00 80 0000000000000024 45") == t.Described(0x24, [])
    assert value_of("00 a3 01 78 41") == t.Described(Symbol("x"), True)
    assert value_of("00 b3 00000001 78 41") == t.Described(Symbol("x"), True)
    assert value_of("00 44 00 53 01 40") == t.Described(0, t.Described(1, None))


def test_a_timespan_is_a_duration() -> None:
    """WIRE §11.4: com.microsoft:timespan, a described long of 100 ns ticks."""
    raw = t.encode(Duration(-5))
    value, end = t.decode(raw)
    assert (value, end) == (Duration(-5), len(raw))
    assert type(value) is Duration
    assert type(t.decode(raw, typed=True)[0]) is Duration
    odd = b"\x00" + t.encode(t.TIMESPAN) + t.encode("5")
    assert t.decode(odd)[0] == t.Described(t.TIMESPAN, "5")
    for number in (b"\x52\x05", b"\x70\x00\x00\x00\x05", b"\x55\x05"):  # with types as without
        short = b"\x00" + t.encode(t.TIMESPAN) + number
        assert t.decode(short)[0] == t.decode(short, typed=True)[0] == Duration(5)
        assert type(t.decode(short, typed=True)[0]) is Duration
    for typed in (False, True):  # a ulong that no timespan can hold
        long = b"\x00" + t.encode(t.TIMESPAN) + b"\x80" + b"\xff" * 8
        assert t.decode(long, typed=typed)[0] == t.Described(t.TIMESPAN, 2**64 - 1)


def test_offsets_and_views() -> None:
    """decode and skip start anywhere, leave later bytes alone, and read views like bytes."""
    raw = b"??" + t.encode(["a", b"b", {"c": Symbol("d")}]) + b"??"
    for buffer in (raw, memoryview(raw)):
        assert t.decode(buffer, 2) == (["a", b"b", {"c": Symbol("d")}], len(raw) - 2)
        assert t.skip(buffer, 2) == len(raw) - 2
    kept = t.decode(memoryview(bytearray(b"\xa0\x01x")))[0]
    assert type(kept) is bytes


def test_composites_leave_out_nulls_at_the_end() -> None:
    """AMQP 1.0 §1.4: trailing null fields of a composite may be omitted."""
    fields = [t.encode_uint(1), t.NULL, t.encode_boolean(True), t.NULL]
    assert t.encode_composite(0x14, fields) == hexed("00 53 14 c0 05 03 52 01 40 41")
    assert t.encode_composite(0x24, [t.NULL]) == hexed("00 53 24 45")


def test_compound_opens_lists_and_maps() -> None:
    """AMQP 1.0 §1.6.22-23: the number of elements and the borders, without decoding one."""
    assert t.compound(b"\x45", 0) == (0, 1, 1)
    assert t.compound(hexed("c0 03 02 40 41"), 0) == (2, 3, 5)
    assert t.compound(hexed("d1 00000006 00000002 40 41"), 0) == (2, 9, 11)
    for raw in ("40", "c0 00", "d0 00000003 000000", "c1 02 01 40", "c0 02 05 40", "e0 01 00"):
        with pytest.raises(ProtocolError):
            t.compound(hexed(raw), 0)


# --- hostile bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "00",
        "00 53",
        "00 53 24",
        "00 a1 01 78 40",
        "00 40 40",
        "00 a3 05 78",
        "00 b3 ffffffff 78",
        "00 a3 01 ff 40",
        "01",
        "46",
        "57 00",
        "99",
        "ff",
        "50",
        "60 00",
        "71 000000",
        "80 00000000000000",
        "83 00",
        "98 00112233",
        "94 00",
        "56 02",
        "73 00110000",
        "73 0000d800",
        "a0",
        "a0 05 00",
        "b0 000000",
        "b0 ffffffff 00",
        "a1 01 ff",
        "a1 03 eda080",
        "b1 00000001 c3",
        "a3 01 e9",
        "b3 00000001 80",
        "c0 00",
        "c0 01",
        "c0 03 01 40",
        "c0 02 02 40",
        "c0 03 01 40 40",
        "c0 03 02 40 a1 01 41",
        "c0 03 01 71 00 00 00 00",
        "d0 00000003 000000",
        "d0 ffffffff 00000001 40",
        "c1 02 01 40",
        "c1 03 02 45 40",
        "c1 14 02 40 98" + "00" * 16,
        "e0 00",
        "e0 01 01",
        "e0 02 01 99",
        "e0 02 00 99",
        "e0 03 02 50 01",
        "e0 06 01 00 53 01 00 40",
        "e0 03 01 40 40",
        "e0 04 01 00 53 05",
        "f0 00000005 ffffffff 40",
        "f0 00000005 ffffffff 50",
    ],
)
def test_bad_bytes_are_a_protocol_error(raw: str) -> None:
    """AMQP 1.0 §1.6, RELIABILITY S1: cut, unknown or contradictory bytes give ProtocolError."""
    for typed in (False, True):
        with pytest.raises(ProtocolError):
            t.decode(hexed(raw), typed=typed)
    with pytest.raises(ProtocolError):
        t.decode(memoryview(hexed(raw)))


@pytest.mark.parametrize("raw", ["", "00", "00 53", "99", "a0", "a1 02 61", "d0 ffffffff 00", "71"])
def test_skip_refuses_what_does_not_fit(raw: str) -> None:
    """AMQP 1.0 §1.2, RELIABILITY S1: skip too compares every length with what is there."""
    with pytest.raises(ProtocolError):
        t.skip(hexed(raw), 0)


def test_arrays_of_zero_width_elements_stay_small() -> None:
    """RELIABILITY S2 (CVE-2026-66079): thousands of nulls are one count, billions refused."""
    for code in (0x40, 0x41, 0x42, 0x43, 0x44, 0x45):
        raw = b"\xf0" + struct.pack(">IIB", 5, limits.MAX_NODES_PER_FRAME, code)
        array, end = t.decode(raw)
        assert (array, end) == (t.ZeroWidthArray(code, limits.MAX_NODES_PER_FRAME), len(raw))
        assert t.encode(array) == raw
        with pytest.raises(ProtocolError):
            t.decode(b"\xf0" + struct.pack(">IIB", 5, limits.MAX_NODES_PER_FRAME + 1, code))
    described = value_of("e0 05 02 00 53 07 40")
    assert described == t.ZeroWidthArray(0x40, 2, 7)
    assert t.encode(described) == hexed("e0 05 02 00 53 07 40")


def test_zero_width_arrays_do_not_add_up() -> None:
    """RELIABILITY S2 (CVE-2026-67414): many such arrays together build no more than themselves."""
    one = hexed("e0 02 ff 40")
    raw = t.encode_list([one] * 9_000)
    tracemalloc.start()
    value, _ = t.decode(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(value, list)
    assert len(value) == 9_000
    assert peak < 60 * len(raw)


def test_depth_is_bounded() -> None:
    """RELIABILITY S3: 16 levels are read, 17 refused, a million cost nothing."""

    def nested(levels: int) -> bytes:
        raw = b"\x40"
        for _ in range(levels):
            raw = t.encode_list([raw])
        return raw

    t.decode(nested(limits.MAX_NESTING))
    with pytest.raises(ProtocolError):
        t.decode(nested(limits.MAX_NESTING + 1))
    described = b"\x00\x53\x01"
    t.decode(described * limits.MAX_NESTING + b"\x40")
    assert t.skip(described * limits.MAX_NESTING + b"\x40", 0) == 3 * limits.MAX_NESTING + 1
    for walk in (lambda raw: t.decode(raw), lambda raw: t.skip(raw, 0)):
        with pytest.raises(ProtocolError):
            walk(described * 1_000_000 + b"\x40")


def test_elements_are_bounded() -> None:
    """RELIABILITY S3: 10,000 elements in one call, however they are spread."""
    t.decode(t.encode_list([t.NULL] * limits.MAX_NODES_PER_FRAME))
    with pytest.raises(ProtocolError):
        t.decode(t.encode_list([t.NULL] * (limits.MAX_NODES_PER_FRAME + 1)))
    inner = t.encode_list([t.NULL] * 200)
    with pytest.raises(ProtocolError):
        t.decode(t.encode_list([inner] * 50))
    with pytest.raises(ProtocolError):
        t.decode(t.encode_array([1] * (limits.MAX_NODES_PER_FRAME + 1), 0x50))


def test_a_length_allocates_nothing() -> None:
    """RELIABILITY S1: a claim of 4 GB is refused before a byte is taken for it."""
    tracemalloc.start()
    for code in (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0):
        for claim in (0xFFFFFFFF, 0x7FFFFFFF, 0x10000000):
            with pytest.raises(ProtocolError):
                t.decode(struct.pack(">BII", code, claim, claim) + b"\x50" * 64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_keys_that_can_be_made_to_collide_are_refused() -> None:
    """RELIABILITY S3: uuids and decimals are wider than a hash; as keys they would cost n² time."""
    keys: list[object] = [UUID(int=1), Decimal(1), [], {}, t.Described(1, None)]
    for key in keys:
        with pytest.raises(ProtocolError):
            t.decode(t.encode_map([t.encode(key), t.NULL]))
