"""The grammar of SQL filters and actions: tokens to a tree.

Here live the parser and everything that can be refused when a rule is created: grammar, nesting,
parameters without a value, system properties that do not exist or cannot be written. What a tree
means for a message is `sql_compile.py`. The rule: a tree is never deeper than `MAX_SQL_DEPTH`,
because chains of one operator are flat and every other nesting is counted.

    condition  := conjunction (OR conjunction)*
    conjunction:= negation (AND negation)*
    negation   := NOT negation | comparison
    comparison := sum [(= | <> | != | > | >= | < | <=) sum | IS [NOT] NULL
                       | [NOT] IN ( sum, … ) | [NOT] LIKE sum [ESCAPE sum]]
    sum        := product ((+ | -) product)*
    product    := signed ((* | / | %) signed)*
    signed     := (+ | -) signed | primary
    primary    := constant | @parameter | property | EXISTS ( property ) | ( condition )
                | newid() | property ( sum ) | p ( sum )
    statements := (SET property = sum | REMOVE property) [;] …

A condition is not a value (`(a = 1) + 2` is refused), and a value is a condition only if it can be
a boolean: a property, TRUE, FALSE or a boolean parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tandembus.core.sql_lexer import LARGEST_INTEGER, Kind, Token, error_at, tokenize
from tandembus.core.sql_tree import (
    SYSTEM_PROPERTIES,
    WRITABLE_PROPERTIES,
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
    Predicate,
    PropertyByName,
    RemoveStatement,
    SetStatement,
    Signed,
    Statement,
    SystemProperty,
    UserProperty,
)
from tandembus.errors import FilterError
from tandembus.limits import MAX_SQL_DEPTH, MAX_SQL_STATEMENTS
from tandembus.model import Value

SMALLEST_LONG: Final = -(2**63)
LARGEST_ULONG: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Parsed:
    """A filter's condition with the number of its tokens, which is what it costs at most to walk
    it."""

    condition: Condition
    tokens: int


@dataclass(frozen=True, slots=True)
class ParsedAction:
    statements: tuple[Statement, ...]
    tokens: int


def parse_filter(text: str, parameters: Mapping[str, Value]) -> Parsed:
    parser = _Parser(text, parameters)
    condition = parser.filter()
    return Parsed(condition, parser.size)


def parse_action(text: str, parameters: Mapping[str, Value]) -> ParsedAction:
    parser = _Parser(text, parameters)
    statements = parser.statements()
    return ParsedAction(statements, parser.size)


def resolve_property(written: str) -> UserProperty | SystemProperty:
    """What `property('written')` names: `sys.` and `user.` in front are scopes, as in the text."""
    scope, dot, name = written.partition(".")
    match scope.casefold() if dot else "":
        case "sys":
            return system_property(name)
        case "user":
            return UserProperty(name)
        case _:
            return UserProperty(written)


def system_property(name: str) -> SystemProperty:
    known = SYSTEM_PROPERTIES.get(name.casefold())
    if known is None:
        raise FilterError(f"There is no system property '{name}'.")
    return SystemProperty(known)


# --- the parser -----------------------------------------------------------------------------------

_COMPARISONS: Final = frozenset(("=", "<>", "!=", ">", ">=", "<", "<="))


class _Parser:
    """Recursive descent; `_deeper` counts the recursion."""

    __slots__ = ("_depth", "_index", "_parameters", "_tokens", "size")

    def __init__(self, text: str, parameters: Mapping[str, Value]) -> None:
        self._tokens = tokenize(text)
        self._index = 0
        self._depth = 0
        self._parameters = {name.removeprefix("@").casefold(): v for name, v in parameters.items()}
        self.size = len(self._tokens) - 1

    def filter(self) -> Condition:
        condition = self._as_condition(self._condition())
        self._expect_end()
        return condition

    def statements(self) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while self._peek().kind is not Kind.END:
            if len(found) == MAX_SQL_STATEMENTS:
                raise FilterError(f"The action has more than {MAX_SQL_STATEMENTS} statements.")
            found.append(self._statement())
            self._take_symbol(";")
        if not found:
            raise error_at("an action without statements", 1)
        return tuple(found)

    # tokens

    def _peek(self) -> Token:
        return self._tokens[self._index]

    def _next(self) -> Token:
        token = self._tokens[self._index]
        if token.kind is not Kind.END:
            self._index += 1
        return token

    def _take_keyword(self, word: str) -> bool:
        token = self._peek()
        if token.kind is Kind.KEYWORD and token.text == word:
            self._index += 1
            return True
        return False

    def _take_symbol(self, symbol: str) -> bool:
        token = self._peek()
        if token.kind is Kind.SYMBOL and token.text == symbol:
            self._index += 1
            return True
        return False

    def _expect_symbol(self, symbol: str) -> None:
        if not self._take_symbol(symbol):
            raise self._unexpected(f"'{symbol}' expected")

    def _expect_end(self) -> None:
        if self._peek().kind is not Kind.END:
            raise self._unexpected("an operator expected")

    def _unexpected(self, wanted: str) -> FilterError:
        token = self._peek()
        return error_at(f"{wanted}, not {token.describe()},", token.position)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_SQL_DEPTH:
            raise FilterError(f"The SQL expression is nested deeper than {MAX_SQL_DEPTH}.")
        yield
        self._depth -= 1

    # statements

    def _statement(self) -> Statement:
        token = self._next()
        word = token.text.upper() if token.kind is Kind.NAME else ""
        position = self._peek().position
        if word == "SET":
            target = self._property()
            if isinstance(target, SystemProperty) and target.name not in WRITABLE_PROPERTIES:
                raise error_at(f"system property {target.name}, which cannot be set,", position)
            self._expect_symbol("=")
            return SetStatement(target, self._value())
        if word == "REMOVE":
            target = self._property()
            if isinstance(target, SystemProperty):
                raise error_at(
                    f"REMOVE of system property {target.name} (set it to NULL)", position
                )
            return RemoveStatement(target)
        raise error_at(f"SET or REMOVE expected, not {token.describe()},", token.position)

    # conditions

    def _condition(self) -> Condition:
        first = self._conjunction()
        if not self._take_keyword("OR"):
            return first
        parts = [self._as_condition(first), self._as_condition(self._conjunction())]
        while self._take_keyword("OR"):
            parts.append(self._as_condition(self._conjunction()))
        return Or(tuple(parts))

    def _conjunction(self) -> Condition:
        first = self._negation()
        if not self._take_keyword("AND"):
            return first
        parts = [self._as_condition(first), self._as_condition(self._negation())]
        while self._take_keyword("AND"):
            parts.append(self._as_condition(self._negation()))
        return And(tuple(parts))

    def _negation(self) -> Condition:
        if not self._take_keyword("NOT"):
            return self._comparison()
        with self._deeper():
            return Not(self._as_condition(self._negation()))

    def _comparison(self) -> Condition:
        left = self._sum()
        token = self._peek()
        if token.kind is Kind.SYMBOL and token.text in _COMPARISONS:
            self._next()
            operator = "<>" if token.text == "!=" else token.text
            return Comparison(operator, self._as_value(left), self._value())
        if self._take_keyword("IS"):
            is_negated = self._take_keyword("NOT")
            if not self._take_keyword("NULL"):
                raise self._unexpected("NULL expected")
            if not isinstance(left, UserProperty | SystemProperty | PropertyByName):
                raise error_at("IS NULL of something that is no property", token.position)
            return _negated(IsNull(left), is_negated)
        is_negated = self._take_keyword("NOT")
        if self._take_keyword("IN"):
            return _negated(In(self._as_value(left), self._items()), is_negated)
        if self._take_keyword("LIKE"):
            pattern = self._value()
            escape = self._value() if self._take_keyword("ESCAPE") else None
            return _negated(Like(self._as_value(left), pattern, escape), is_negated)
        if is_negated:
            raise self._unexpected("IN or LIKE expected")
        return left

    def _items(self) -> tuple[Expression, ...]:
        self._expect_symbol("(")
        items = [self._value()]
        while self._take_symbol(","):
            items.append(self._value())
        self._expect_symbol(")")
        return tuple(items)

    # values

    def _value(self) -> Expression:
        return self._as_value(self._sum())

    def _sum(self) -> Condition:
        first = self._product()
        rest: list[tuple[str, Expression]] = []
        while (token := self._peek()).kind is Kind.SYMBOL and token.text in ("+", "-"):
            self._next()
            rest.append((token.text, self._as_value(self._product())))
        return Arithmetic(self._as_value(first), tuple(rest)) if rest else first

    def _product(self) -> Condition:
        first = self._signed()
        rest: list[tuple[str, Expression]] = []
        while (token := self._peek()).kind is Kind.SYMBOL and token.text in ("*", "/", "%"):
            self._next()
            rest.append((token.text, self._as_value(self._signed())))
        return Arithmetic(self._as_value(first), tuple(rest)) if rest else first

    def _signed(self) -> Condition:
        token = self._peek()
        if token.kind is not Kind.SYMBOL or token.text not in ("+", "-"):
            return self._primary()
        self._next()
        following = self._peek()
        if token.text == "-" and following.kind is Kind.NUMBER:
            self._next()
            return Constant(-following.number)
        with self._deeper():
            return Signed(token.text, self._as_value(self._signed()))

    def _primary(self) -> Condition:
        token = self._peek()
        match token.kind:
            case Kind.TEXT:
                self._next()
                return Constant(token.text)
            case Kind.NUMBER:
                self._next()
                if isinstance(token.number, int) and token.number == LARGEST_INTEGER:
                    raise error_at("a number that is too large", token.position)
                return Constant(token.number)
            case Kind.PARAMETER:
                self._next()
                return Constant(self._parameter(token))
            case Kind.KEYWORD:
                return self._keyword()
            case Kind.NAME if self._tokens[self._index + 1][:2] == (Kind.SYMBOL, "("):
                return self._function()
            case Kind.NAME | Kind.DELIMITED:
                return self._property()
            case _:
                if not self._take_symbol("("):
                    raise self._unexpected("a value expected")
                with self._deeper():
                    inner = self._condition()
                    self._expect_symbol(")")
                    return inner

    def _keyword(self) -> Condition:
        if self._take_keyword("TRUE"):
            return Constant(True)
        if self._take_keyword("FALSE"):
            return Constant(False)
        if self._take_keyword("NULL"):
            return Constant(None)
        if not self._take_keyword("EXISTS"):
            raise self._unexpected("a value expected")
        self._expect_symbol("(")
        operand = self._property()
        self._expect_symbol(")")
        return Exists(operand)

    def _function(self) -> Expression:
        name = self._next()
        self._expect_symbol("(")
        match name.text.casefold():
            case "newid":
                self._expect_symbol(")")
                return NewId()
            case "property" | "p":
                with self._deeper():
                    argument = self._value()
                    self._expect_symbol(")")
                if isinstance(argument, Constant) and isinstance(argument.value, str):
                    return resolve_property(argument.value)
                return PropertyByName(argument)
            case _:
                raise error_at(f"unknown function '{name.text}'", name.position)

    def _property(self) -> UserProperty | SystemProperty:
        token = self._next()
        if token.kind not in (Kind.NAME, Kind.DELIMITED):
            raise error_at(f"a property expected, not {token.describe()},", token.position)
        if token.kind is not Kind.NAME or not self._take_symbol("."):
            return UserProperty(token.text)
        name = self._next()
        if name.kind not in (Kind.NAME, Kind.DELIMITED):
            raise error_at(f"a name expected, not {name.describe()},", name.position)
        match token.text.casefold():
            case "sys":
                return system_property(name.text)
            case "user":
                return UserProperty(name.text)
            case _:
                raise error_at(f"scope '{token.text}' is neither sys nor user,", token.position)

    def _parameter(self, token: Token) -> Value:
        try:
            value = self._parameters[token.text.casefold()]
        except KeyError:
            raise FilterError(f"The parameter @{token.text} has no value.") from None
        if isinstance(value, int) and not SMALLEST_LONG <= value <= LARGEST_ULONG:
            raise FilterError(f"The parameter @{token.text} does not fit 64 bits.")
        return value

    # which of the two

    def _as_value(self, node: Condition) -> Expression:
        if isinstance(node, Predicate):
            raise self._unexpected(
                "a condition stands where a value is needed; an operator expected"
            )
        return node

    def _as_condition(self, node: Condition) -> Condition:
        match node:
            case Constant(bool()):
                return node
            case Constant() | NewId() | Signed() | Arithmetic():
                raise self._unexpected("a comparison expected after a value that is no condition")
            case _:
                return node


def _negated(predicate: Predicate, is_negated: bool) -> Predicate:
    return Not(predicate) if is_negated else predicate
