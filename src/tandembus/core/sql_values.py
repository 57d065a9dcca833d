"""Types of the SQL filter language: what may be compared, added, multiplied, and to what it widens.

Here live the rules for two given values, but for string + string, which `sql_compile.py` gathers.
Unknown and null are handled here for arithmetic (an unknown operand gives unknown), and in
`sql_compile.py` for comparisons. The rule: as in C#, with three differences that a broker needs.
Integers that leave 64 bits and any division by zero are errors, never a silent wrap, infinity or
NaN; a decimal meets a double as a double, because the language has no decimal constant; a
comparison of unrelated types is no error: `=` is false, `<>` is true, an order is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Context as DecimalContext
from decimal import Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from enum import Enum, auto
from typing import Any, Final
from uuid import UUID

from tandembus.errors import FilterError
from tandembus.model import Duration, Symbol, Timestamp, Value

TICKS_PER_MS: Final = 10_000

_SMALLEST_LONG: Final = -(2**63)
_LARGEST_LONG: Final = 2**63 - 1

_DECIMAL: Final = DecimalContext(
    prec=34, Emin=-6143, Emax=6144, traps=[InvalidOperation, DivisionByZero, Overflow]
)
"""AMQP's decimal128. Own, so that no other code's context changes what a filter selects."""


class Family(Enum):
    BOOLEAN = auto()
    INTEGER = auto()
    DOUBLE = auto()
    DECIMAL = auto()
    TEXT = auto()
    BINARY = auto()
    UUID = auto()
    DATE = auto()
    DURATION = auto()


_FAMILIES: Final[Mapping[type, Family]] = {
    bool: Family.BOOLEAN,
    int: Family.INTEGER,
    float: Family.DOUBLE,
    Decimal: Family.DECIMAL,
    str: Family.TEXT,
    Symbol: Family.TEXT,
    bytes: Family.BINARY,
    UUID: Family.UUID,
    Timestamp: Family.DATE,
    Duration: Family.DURATION,
}
_NUMBERS: Final = frozenset((Family.INTEGER, Family.DOUBLE, Family.DECIMAL))
_READY: Final = frozenset((int, str, float))
"""Types that need no widening among themselves: nearly all that is compared."""
_ORDERED: Final = _NUMBERS | {Family.TEXT, Family.DATE, Family.DURATION}


def family_of(value: Value) -> Family | None:
    """None for null."""
    return _FAMILIES.get(type(value))


# --- comparison -----------------------------------------------------------------------------------


def equal(left: Value, right: Value) -> bool:
    """Of two values that are not null."""
    pair = _widened(left, right)
    return pair is not None and bool(pair[0] == pair[1])


def compare(left: Value, right: Value, holds: Callable[[Any, Any], bool]) -> bool | None:
    """Whether an order `holds` (`operator.lt`, …) between two values that are not null; None: they
    have no order."""
    if type(left) is type(right) and type(left) in _READY:
        return holds(left, right)
    pair = _widened(left, right)
    if pair is None or _FAMILIES[type(pair[0])] not in _ORDERED:
        return None
    return holds(pair[0], pair[1])


def _widened(left: Value, right: Value) -> tuple[Any, Any] | None:
    """Both as one type, or None if they are unrelated."""
    a, b = family_of(left), family_of(right)
    if a is b:
        return _without_nan(left, right) if a is Family.DECIMAL else (left, right)
    if a not in _NUMBERS or b not in _NUMBERS:
        return None
    if Family.DOUBLE in (a, b):
        return double(left), double(right)
    return _without_nan(left, right)


def _without_nan(left: Any, right: Any) -> tuple[Any, Any]:
    """A decimal NaN raises where a double's answers false: take the double's."""
    a, b = Decimal(left), Decimal(right)
    return (math.nan, math.nan) if a.is_nan() or b.is_nan() else (a, b)


def double(number: Any) -> float:
    """A number as a double. A signalling decimal NaN would raise: it is NaN too."""
    if isinstance(number, Decimal) and number.is_nan():
        return math.nan
    return float(number)


# --- arithmetic -----------------------------------------------------------------------------------


def add(left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    match family_of(left), family_of(right):
        case Family.DATE, Family.DURATION:
            return _date(left, right, 1)
        case Family.DURATION, Family.DURATION:
            return Duration(_long(_integer(left) + _integer(right)))
    return _calculate("+", left, right)


def subtract(left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    match family_of(left), family_of(right):
        case Family.DATE, Family.DATE:
            return Duration(_long((_integer(left) - _integer(right)) * TICKS_PER_MS))
        case Family.DATE, Family.DURATION:
            return _date(left, right, -1)
        case Family.DURATION, Family.DURATION:
            return Duration(_long(_integer(left) - _integer(right)))
    return _calculate("-", left, right)


def multiply(left: Value, right: Value) -> Value:
    return None if left is None or right is None else _calculate("*", left, right)


def divide(left: Value, right: Value) -> Value:
    return None if left is None or right is None else _calculate("/", left, right)


def remainder(left: Value, right: Value) -> Value:
    return None if left is None or right is None else _calculate("%", left, right)


OPERATORS: Final[Mapping[str, Callable[[Value, Value], Value]]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
}


def signed(sign: str, operand: Value) -> Value:
    match operand:
        case None:
            return None
        case Duration():
            return Duration(_long(-operand)) if sign == "-" else operand
        case bool() | Timestamp():
            pass
        case int():
            return _long(-operand) if sign == "-" else operand
        case float():
            return -operand if sign == "-" else operand
        case Decimal():
            return operand.copy_negate() if sign == "-" else operand
    raise FilterError(f"The sign {sign} does not apply to {_described(operand)}.")


def _calculate(operator: str, left: Value, right: Value) -> Value:
    """Two numbers, as the wider of their types."""
    a, b = family_of(left), family_of(right)
    if a not in _NUMBERS or b not in _NUMBERS:
        raise FilterError(
            f"The operator {operator} does not apply to {_described(left)} and {_described(right)}."
        )
    if a is b is Family.INTEGER:
        return _long(_LONG[operator](_integer(left), _integer(right)))
    if Family.DOUBLE in (a, b):
        return _DOUBLE[operator](double(left), double(right))
    try:
        return _DECIMALS[operator](Decimal(_number(left)), Decimal(_number(right)))
    except DecimalException as error:
        raise FilterError(f"Decimal arithmetic failed: {type(error).__name__}.") from None


def _not_zero(divisor: Any) -> None:
    if divisor == 0:
        raise FilterError("Division by zero.")


def _divide_long(left: int, right: int) -> int:
    _not_zero(right)
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder_long(left: int, right: int) -> int:
    _not_zero(right)
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _divide_double(left: float, right: float) -> float:
    _not_zero(right)
    return left / right


def _remainder_double(left: float, right: float) -> float:
    _not_zero(right)
    # Python's fmod raises where IEEE 754 says NaN.
    return math.nan if math.isinf(left) else math.fmod(left, right)


def _divide_decimal(left: Decimal, right: Decimal) -> Decimal:
    _not_zero(right)
    return _DECIMAL.divide(left, right)


def _remainder_decimal(left: Decimal, right: Decimal) -> Decimal:
    _not_zero(right)
    return _DECIMAL.remainder(left, right)


_LONG: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide_long,
    "%": _remainder_long,
}
_DOUBLE: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide_double,
    "%": _remainder_double,
}
_DECIMALS: Final[Mapping[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": _DECIMAL.add,
    "-": _DECIMAL.subtract,
    "*": _DECIMAL.multiply,
    "/": _divide_decimal,
    "%": _remainder_decimal,
}


def _integer(value: Value) -> int:
    assert isinstance(value, int)
    return int(value)


def _number(value: Value) -> int | Decimal:
    assert isinstance(value, int | Decimal)
    return value


def _long(value: int) -> int:
    if not _SMALLEST_LONG <= value <= _LARGEST_LONG:
        raise FilterError("An integer does not fit 64 bits.")
    return value


def _date(date: Value, duration: Value, sign: int) -> Timestamp:
    # A date holds milliseconds: what a duration has below them is cut off.
    milliseconds = _divide_long(_integer(duration), TICKS_PER_MS)
    return Timestamp(_long(_integer(date) + sign * milliseconds))


def _described(value: Value) -> str:
    family = family_of(value)
    return "a value" if family is None else f"a {family.name.lower()}"
