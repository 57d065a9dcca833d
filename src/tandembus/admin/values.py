"""Values of rules as the administration API writes them: with the type that they have in XML."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final, assert_never
from uuid import UUID

from tandembus.atom import (
    Element,
    read_boolean,
    read_integer,
    read_ticks,
    read_time,
    ticks_duration,
    time,
)
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.model import (
    Byte,
    Char,
    Described,
    Duration,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
    as_compared,
)


def read_value(element: Element) -> Value:
    text = element.text
    try:
        match element.type:
            case "string" | "":
                return text
            case "long":
                return read_integer(text)
            case kind if kind in _INTEGERS:
                return _integer(kind, text)
            case "double":
                return float(text)
            case "float":
                return Float(text)
            case "char":
                return _char(read_integer(text))
            case "decimal":
                return _decimal(text.strip())
            case "boolean":
                return read_boolean(text)
            case "dateTime":
                return Timestamp(read_time(text))
            case "duration":
                return Duration(read_ticks(text))
            case "guid":
                return UUID(text.strip())
            case "base64Binary":
                return base64.b64decode(text, validate=True)
    except (ValueError, OverflowError, InvalidOperation, binascii.Error):
        raise ProtocolError(f"{text[:40]!a} is not a {element.type}.") from None
    raise ArgumentError(f"SubCode=40000. {element.type[:40]!a} is not a type of value.")


_INTEGERS: Final[Mapping[str, tuple[type[int], int, int]]] = {
    "int": (Int, -(2**31), 2**31 - 1),
    "short": (Short, -(2**15), 2**15 - 1),
    "byte": (Byte, -(2**7), 2**7 - 1),
    "unsignedInt": (UInt, 0, 2**32 - 1),
    "unsignedLong": (ULong, 0, 2**64 - 1),
    "unsignedShort": (UShort, 0, 2**16 - 1),
    "unsignedByte": (UByte, 0, 2**8 - 1),
}
"""The type of each, and its range: what is beyond could not be written on AMQP again."""
_NAMES: Final = {kind: name for name, (kind, _, _) in _INTEGERS.items()}
_DIGITS: Final = re.compile(r"[-+]?[0-9]{1,20}")
_SURROGATES: Final = range(0xD800, 0xE000)


def _integer(kind: str, text: str) -> int:
    cls, least, most = _INTEGERS[kind]
    digits = text.strip()
    if not _DIGITS.fullmatch(digits) or not least <= int(digits) <= most:
        raise ValueError(text)
    return cls(int(digits))


def _char(number: int) -> Char:
    if number in _SURROGATES:
        raise ValueError(number)
    return Char(chr(number))


def _decimal(text: str) -> Decimal:
    """Of the size that .NET has: an exponent of a thousand million is no value but an attack."""
    value = Decimal(text)
    if len(text) > 40 or not value.is_finite() or abs(value.adjusted()) > 28:
        raise ValueError(text)
    return value


_SPECIAL: Final = {"inf": "INF", "-inf": "-INF", "nan": "NaN"}


def typed(value: Value) -> tuple[str, str]:
    """The XML Schema type of a value, and its text."""
    match value:
        case None:
            return "string", ""
        case bool():
            return "boolean", "true" if value else "false"
        case Timestamp():
            return "dateTime", time(value)
        case Duration():
            return "duration", ticks_duration(value)
        case int():
            return _NAMES.get(type(value), "long"), str(int(value))
        case float():
            name = "float" if isinstance(value, Float) else "double"
            return name, _SPECIAL.get(repr(value), repr(value))
        case Char():
            return "char", str(ord(value))
        case Described():
            return typed(as_compared(value))
        case Decimal():
            return "decimal", str(value)
        case UUID():
            return "guid", str(value)
        case bytes():
            return "base64Binary", base64.b64encode(value).decode()
        case Symbol() | str():
            return "string", str(value)
        case _:
            assert_never(value)
