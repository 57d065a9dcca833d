"""A tree of the SQL filter language to nested closures, which is what runs for each message.

Here lives what an expression means: three-valued logic and the order of evaluation. Types are
`sql_values.py`, LIKE is `sql_like.py`, statements of actions are `sql.py`. The rule: an expression
answers a value, None being both null and unknown (only EXISTS tells them apart); a predicate
answers True, False or None. Operands are evaluated from left to right; AND stops at the first
false, OR at the first true, IN at the first equal item, and what stands behind is not evaluated, so
it cannot fail.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, assert_never

from tandembus.core.sql_context import Context
from tandembus.core.sql_like import Meter, Pattern, compile_pattern
from tandembus.core.sql_parser import resolve_property
from tandembus.core.sql_tree import (
    And,
    Arithmetic,
    Comparison,
    Condition,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    Like,
    NewId,
    Not,
    Or,
    PropertyByName,
    Signed,
    SystemProperty,
    UserProperty,
)
from tandembus.core.sql_values import OPERATORS, compare, equal, signed
from tandembus.errors import FilterError
from tandembus.limits import MAX_PROPERTY_VALUE
from tandembus.model import Value

Truth: TypeAlias = bool | None
"""None: unknown."""
Test: TypeAlias = Callable[[Context], Truth]
Read: TypeAlias = Callable[[Context], Value]

_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_PLAIN: Final = (str, int, bool)
"""Types whose values equal another of exactly the same type as Python says, and quickly."""


class Compiler:
    __slots__ = ("_meter",)

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    # values

    def read(self, node: Expression) -> Read:
        match node:
            case Constant(value):
                return lambda context: value
            case UserProperty(name):
                return _read_user(name)
            case SystemProperty(name):
                return lambda context: context.system(name)
            case PropertyByName(name_node):
                return self._property_by_name(self.read(name_node))
            case NewId():
                return lambda context: context.new_id()
            case Signed(sign, operand):
                read = self.read(operand)
                return lambda context: signed(sign, read(context))
            case Arithmetic():
                return self._arithmetic(node)
            case _:
                assert_never(node)

    def _property_by_name(self, read_name: Read) -> Read:
        def read(context: Context) -> Value:
            written = read_name(context)
            if written is None:
                return None
            if not isinstance(written, str):
                raise FilterError("property() takes a string.")
            match resolve_property(written):
                case SystemProperty(name):
                    return context.system(name)
                case UserProperty(name):
                    found = context.find(name, name.casefold())
                    return None if found is None else context.properties[found]

        return read

    def _arithmetic(self, node: Arithmetic) -> Read:
        first = self.read(node.first)
        rest = tuple((sign, OPERATORS[sign], self.read(operand)) for sign, operand in node.rest)
        meter = self._meter

        def read(context: Context) -> Value:
            value = first(context)
            # Strings are gathered and joined once: to copy them at each + would cost the square of
            # their number. Until then `value` is the first of them, and stands for its type.
            texts: list[str] = []
            length = 0
            for sign, apply, operand in rest:
                other = operand(context)
                if sign == "+" and isinstance(value, str) and isinstance(other, str):
                    texts = texts or [value]
                    texts.append(other)
                    length += len(other)
                    if len(value) + length > MAX_PROPERTY_VALUE:
                        raise FilterError(f"A string has over {MAX_PROPERTY_VALUE} characters.")
                else:
                    value = apply(value, other)
                    texts = []
            if not texts:
                return value
            meter.charge_text(len(texts[0]) + length)
            return "".join(texts)

        return read

    # conditions

    def test(self, node: Condition) -> Test:
        match node:
            case Comparison():
                return self._comparison(node)
            case IsNull(operand):
                read = self.read(operand)
                return lambda context: read(context) is None
            case In():
                return self._in(node)
            case Like():
                return self._like(node)
            case Exists(UserProperty(name)):
                folded = name.casefold()
                return lambda context: context.find(name, folded) is not None
            case Exists(SystemProperty(name)):
                return lambda context: context.system(name) is not None
            case Exists():
                raise AssertionError(node)
            case Not(operand):
                return _test_not(self.test(operand))
            case And(parts):
                return _test_and(tuple(self.test(part) for part in parts))
            case Or(parts):
                return _test_or(tuple(self.test(part) for part in parts))
            case _:
                return _test_value(self.read(node))

    def _comparison(self, node: Comparison) -> Test:
        left, right = self.read(node.left), self.read(node.right)
        if node.operator in _ORDERS:
            return _test_order(left, right, _ORDERS[node.operator])
        wanted = node.operator == "="
        match node.left, node.right:
            case (_, Constant(value)) if type(value) in _PLAIN:
                return _test_constant(left, value, wanted)
            case (Constant(value), _) if type(value) in _PLAIN:
                return _test_constant(right, value, wanted)
            case _:
                return _test_equal(left, right, wanted)

    def _in(self, node: In) -> Test:
        left = self.read(node.left)
        constants = [item.value for item in node.items if isinstance(item, Constant)]
        if len(constants) == len(node.items) and all(type(value) is str for value in constants):
            return _test_in_texts(left, frozenset(constants))
        return _test_in(left, tuple(self.read(item) for item in node.items))

    def _like(self, node: Like) -> Test:
        left = self.read(node.left)
        match node.pattern, node.escape:
            case Constant(str() as pattern), None:
                return _test_like(left, compile_pattern(pattern, None), self._meter)
            case Constant(str() as pattern), Constant(str() as escape):
                return _test_like(left, compile_pattern(pattern, escape), self._meter)
            case _, Constant(value) if value is not None:
                # Whatever the pattern will be: a wrong escape is refused with the rule.
                _escape(value)
        escape_node = node.escape
        read_escape = None if escape_node is None else self.read(escape_node)
        return _test_like_any(left, self.read(node.pattern), read_escape, self._meter)


def _read_user(name: str) -> Read:
    folded = name.casefold()

    def read(context: Context) -> Value:
        # The hot line of every filter: written out, because a call more costs a quarter of it.
        properties = context._properties
        if properties is None:
            properties = context.properties
        value = properties.get(name)
        if value is not None:
            return value
        found = context.find(name, folded)
        return None if found is None else properties[found]

    return read


def _test_value(read: Read) -> Test:
    """A property as condition: one that holds no boolean is unknown."""

    def test(context: Context) -> Truth:
        value = read(context)
        return value if isinstance(value, bool) else None

    return test


def _test_constant(read: Read, constant: Value, wanted: bool) -> Test:
    """`=` (or `<>` if not `wanted`) with a constant: the most frequent filter of all."""
    kind = type(constant)

    def test(context: Context) -> Truth:
        value = read(context)
        if type(value) is kind:
            return (value == constant) is wanted
        return None if value is None else equal(value, constant) is wanted

    return test


def _test_equal(left: Read, right: Read, wanted: bool) -> Test:
    def test(context: Context) -> Truth:
        a, b = left(context), right(context)
        return None if a is None or b is None else equal(a, b) is wanted

    return test


def _test_order(left: Read, right: Read, holds: Callable[[Any, Any], bool]) -> Test:
    def test(context: Context) -> Truth:
        a, b = left(context), right(context)
        return None if a is None or b is None else compare(a, b, holds)

    return test


def _test_in_texts(left: Read, texts: frozenset[Value]) -> Test:
    def test(context: Context) -> Truth:
        value = left(context)
        if value is None:
            return None
        return isinstance(value, str) and value in texts

    return test


def _test_in(left: Read, items: tuple[Read, ...]) -> Test:
    def test(context: Context) -> Truth:
        value = left(context)
        if value is None:
            return None
        result: Truth = False
        for item in items:
            other = item(context)
            if other is None:
                result = None
            elif equal(value, other):
                return True
        return result

    return test


def _test_like(left: Read, pattern: Pattern, meter: Meter) -> Test:
    def test(context: Context) -> Truth:
        value = left(context)
        return pattern.matches(value, meter) if isinstance(value, str) else None

    return test


def _test_like_any(left: Read, pattern: Read, escape: Read | None, meter: Meter) -> Test:
    """LIKE with a pattern, or an escape character, that is known only with the message."""

    def test(context: Context) -> Truth:
        value, written = left(context), pattern(context)
        given = None if escape is None else escape(context)
        if not isinstance(value, str) or not isinstance(written, str):
            return None
        if escape is not None and given is None:
            return None
        compiled = compile_pattern(written, None if given is None else _escape(given))
        meter.charge(len(written))
        return compiled.matches(value, meter)

    return test


def _escape(value: Value) -> str:
    if not isinstance(value, str) or len(value) != 1:
        raise FilterError("ESCAPE takes a string of one character.")
    return value


def _test_not(operand: Test) -> Test:
    def test(context: Context) -> Truth:
        value = operand(context)
        return None if value is None else not value

    return test


def _test_and(parts: tuple[Test, ...]) -> Test:
    def test(context: Context) -> Truth:
        result: Truth = True
        for part in parts:
            value = part(context)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return test


def _test_or(parts: tuple[Test, ...]) -> Test:
    def test(context: Context) -> Truth:
        result: Truth = False
        for part in parts:
            value = part(context)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return test
