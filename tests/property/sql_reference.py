"""The SQL filter language a second time: slow, plain, and sharing no code with `tandembus.core`.

Written from WIRE section 11 and the decisions in the docstrings of `core/sql*.py`. It parses
character by character, keeps the tree as nested tuples, evaluates by walking them, and matches LIKE
with a table of all prefixes. What it and the real one disagree about is a bug in one of them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context as DecimalContext
from decimal import Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from fractions import Fraction
from typing import Any
from uuid import UUID

from tandembus.model import Duration, Symbol, Timestamp

Tree = tuple[Any, ...]


class Refusal(Exception):
    """The text cannot be a filter or an action."""


class Failure(Exception):
    """The evaluation failed."""


# --- text to tree ---------------------------------------------------------------------------------

RESERVED = "AND OR NOT IN LIKE ESCAPE IS NULL EXISTS TRUE FALSE".split()
SYSTEM = (
    "MessageId CorrelationId ContentType Label To ReplyTo SessionId ReplyToSessionId PartitionKey "
    "ViaPartitionKey TimeToLive EnqueuedTimeUtc ScheduledEnqueueTimeUtc ExpiresAtUtc "
    "SequenceNumber EnqueuedSequenceNumber DeliveryCount DeadLetterSource LockedUntilUtc LockToken "
    "State Size"
).split()
WRITABLE = (
    "MessageId CorrelationId ContentType Label To ReplyTo SessionId ReplyToSessionId TimeToLive "
    "PartitionKey ScheduledEnqueueTimeUtc"
).split()


def is_letter(character: str) -> bool:
    return unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lm", "Lo")


def is_name_character(character: str) -> bool:
    return is_letter(character) or unicodedata.category(character) == "Nd" or character == "_"


def is_digit(character: str) -> bool:
    return character != "" and character in "0123456789"


def words_of(text: str) -> list[tuple[str, Any]]:
    """(kind, content) of each word; kinds: name, quoted, keyword, parameter, string, integer, real,
    sign."""
    if len(text) > 1024:
        raise Refusal("too long")
    words: list[tuple[str, Any]] = []
    rest = text
    while rest:
        head = rest[0]
        if head.isspace():
            rest = rest[1:]
            continue
        if is_letter(head):
            taken = take_while(rest, is_name_character)
            is_keyword = taken.isascii() and taken.upper() in RESERVED
            words.append(("keyword", taken.upper()) if is_keyword else ("name", taken))
            rest = rest[len(taken) :]
        elif is_digit(head) or (head == "." and is_digit(rest[1:2])):
            word, rest = number_of(rest)
            words.append(word)
        elif head in "'\"[":
            content, rest = quoted_of(rest[1:], "]" if head == "[" else head)
            if head != "'" and content == "":
                raise Refusal("empty name")
            words.append(("string" if head == "'" else "quoted", content))
        elif head == "@":
            taken = take_while(rest[1:], is_name_character)
            if not taken:
                raise Refusal("parameter")
            words.append(("parameter", taken))
            rest = rest[1 + len(taken) :]
        elif rest[:2] in ("<>", "!=", "<=", ">="):
            words.append(("sign", rest[:2]))
            rest = rest[2:]
        elif head in "=<>+-*/%(),.;":
            words.append(("sign", head))
            rest = rest[1:]
        else:
            raise Refusal("character")
    if len(words) > 200:
        raise Refusal("too many words")
    return words


def take_while(text: str, test: Callable[[str], bool]) -> str:
    taken = ""
    for character in text:
        if not test(character):
            break
        taken += character
    return taken


def number_of(text: str) -> tuple[tuple[str, Any], str]:
    written = take_while(text, is_digit)
    kind = "integer"
    if text[len(written) : len(written) + 1] == ".":
        kind = "real"
        written += "." + take_while(text[len(written) + 1 :], is_digit)
    tail = text[len(written) :]
    if tail[:1] in ("e", "E"):
        sign = tail[1:2] if tail[1:2] in ("+", "-") else ""
        exponent = take_while(tail[1 + len(sign) :], is_digit)
        if exponent:
            kind = "real"
            written += tail[0] + sign + exponent
    tail = text[len(written) :]
    if tail and is_name_character(tail[0]):
        raise Refusal("number in a name")
    if kind == "integer":
        if int(written) > 2**63:
            raise Refusal("large integer")
        return ("integer", int(written)), tail
    if math.isinf(float(written)):
        raise Refusal("large real")
    return ("real", float(written)), tail


def quoted_of(text: str, close: str) -> tuple[str, str]:
    content = ""
    while text:
        if text.startswith(close + close):
            content += close
            text = text[2:]
        elif text.startswith(close):
            return content, text[1:]
        else:
            content += text[0]
            text = text[1:]
    raise Refusal("not closed")


VALUES = ("constant", "user", "system", "named", "newid", "sign", "+", "-", "*", "/", "%")


@dataclass
class Reader:
    words: list[tuple[str, Any]]
    parameters: dict[str, Any]
    at: int = 0

    def word(self, ahead: int = 0) -> tuple[str, Any]:
        index = self.at + ahead
        return self.words[index] if index < len(self.words) else ("end", None)

    def took(self, kind: str, content: str) -> bool:
        if self.word() == (kind, content):
            self.at += 1
            return True
        return False

    def need(self, kind: str, content: str) -> None:
        if not self.took(kind, content):
            raise Refusal(f"{content} expected")

    def whole_filter(self) -> Tree:
        tree = truth(self.disjunction(0))
        if self.word()[0] != "end":
            raise Refusal("trailing words")
        return tree

    def whole_action(self) -> list[Tree]:
        found: list[Tree] = []
        while self.word()[0] != "end":
            kind, content = self.word()
            self.at += 1
            if kind != "name" or content.upper() not in ("SET", "REMOVE"):
                raise Refusal("statement")
            target = self.property()
            if content.upper() == "REMOVE":
                if target[0] == "system":
                    raise Refusal("remove of a system property")
                found.append(("remove", target[1]))
            else:
                if target[0] == "system" and target[1] not in WRITABLE:
                    raise Refusal("not writable")
                self.need("sign", "=")
                found.append(("set", target, value(self.sum(0))))
            self.took("sign", ";")
        if not 1 <= len(found) <= 32:
            raise Refusal("number of statements")
        return found

    def disjunction(self, depth: int) -> Tree:
        tree = self.conjunction(depth)
        while self.took("keyword", "OR"):
            tree = ("or", truth(tree), truth(self.conjunction(depth)))
        return tree

    def conjunction(self, depth: int) -> Tree:
        tree = self.negation(depth)
        while self.took("keyword", "AND"):
            tree = ("and", truth(tree), truth(self.negation(depth)))
        return tree

    def negation(self, depth: int) -> Tree:
        if self.took("keyword", "NOT"):
            return ("not", truth(self.negation(deeper(depth))))
        return self.relation(depth)

    def relation(self, depth: int) -> Tree:
        left = self.sum(depth)
        kind, content = self.word()
        if kind == "sign" and content in ("=", "<>", "!=", "<", "<=", ">", ">="):
            self.at += 1
            return ("compare", content, value(left), value(self.sum(depth)))
        if self.took("keyword", "IS"):
            negative = self.took("keyword", "NOT")
            self.need("keyword", "NULL")
            if left[0] not in ("user", "system", "named"):
                raise Refusal("IS NULL of no property")
            return ("not", ("null", left)) if negative else ("null", left)
        negative = self.took("keyword", "NOT")
        tree: Tree
        if self.took("keyword", "IN"):
            self.need("sign", "(")
            items = [value(self.sum(depth))]
            while self.took("sign", ","):
                items.append(value(self.sum(depth)))
            self.need("sign", ")")
            tree = ("in", value(left), items)
        elif self.took("keyword", "LIKE"):
            pattern = value(self.sum(depth))
            escape = value(self.sum(depth)) if self.took("keyword", "ESCAPE") else None
            check_like(pattern, escape)
            tree = ("like", value(left), pattern, escape)
        elif negative:
            raise Refusal("NOT")
        else:
            return left
        return ("not", tree) if negative else tree

    def sum(self, depth: int) -> Tree:
        tree = self.product(depth)
        while self.word() in (("sign", "+"), ("sign", "-")):
            sign = self.word()[1]
            self.at += 1
            tree = (sign, value(tree), value(self.product(depth)))
        return tree

    def product(self, depth: int) -> Tree:
        tree = self.signed(depth)
        while self.word() in (("sign", "*"), ("sign", "/"), ("sign", "%")):
            sign = self.word()[1]
            self.at += 1
            tree = (sign, value(tree), value(self.signed(depth)))
        return tree

    def signed(self, depth: int) -> Tree:
        if self.took("sign", "-"):
            kind, content = self.word()
            if kind in ("integer", "real"):
                self.at += 1
                return ("constant", -content)
            return ("sign", "-", value(self.signed(deeper(depth))))
        if self.took("sign", "+"):
            return ("sign", "+", value(self.signed(deeper(depth))))
        return self.primary(depth)

    def primary(self, depth: int) -> Tree:
        kind, content = self.word()
        if kind == "name" and self.word(1) == ("sign", "("):
            return self.function(depth)
        if kind in ("name", "quoted"):
            return self.property()
        self.at += 1
        if kind == "integer" and content > 2**63 - 1:
            raise Refusal("large integer")
        if kind in ("string", "integer", "real"):
            return ("constant", content)
        if kind == "parameter":
            for name, given in self.parameters.items():
                if name.lstrip("@").lower() == content.lower():
                    return ("constant", given)
            raise Refusal("parameter")
        if (kind, content) in (("keyword", "TRUE"), ("keyword", "FALSE")):
            return ("constant", content == "TRUE")
        if (kind, content) == ("keyword", "NULL"):
            return ("constant", None)
        if (kind, content) == ("keyword", "EXISTS"):
            self.need("sign", "(")
            operand = self.property()
            self.need("sign", ")")
            return ("exists", operand)
        if (kind, content) == ("sign", "("):
            tree = self.disjunction(deeper(depth))
            self.need("sign", ")")
            return tree
        raise Refusal("value expected")

    def function(self, depth: int) -> Tree:
        name = self.word()[1].lower()
        self.at += 2
        if name == "newid":
            self.need("sign", ")")
            return ("newid",)
        if name not in ("p", "property"):
            raise Refusal("function")
        argument = value(self.sum(deeper(depth)))
        self.need("sign", ")")
        if argument[0] == "constant" and isinstance(argument[1], str):
            try:
                return named(argument[1])
            except Failure as error:
                raise Refusal(str(error)) from None
        return ("named", argument)

    def property(self) -> Tree:
        kind, content = self.word()
        if kind not in ("name", "quoted"):
            raise Refusal("property")
        self.at += 1
        if kind == "quoted" or not self.took("sign", "."):
            return ("user", content)
        inner_kind, inner = self.word()
        if inner_kind not in ("name", "quoted"):
            raise Refusal("property")
        self.at += 1
        if content.lower() == "user":
            return ("user", inner)
        if content.lower() != "sys":
            raise Refusal("scope")
        try:
            return ("system", system_name(inner))
        except Failure as error:
            raise Refusal(str(error)) from None


def deeper(depth: int) -> int:
    if depth == 32:
        raise Refusal("depth")
    return depth + 1


def value(tree: Tree) -> Tree:
    if tree[0] not in VALUES:
        raise Refusal("condition as value")
    return tree


def truth(tree: Tree) -> Tree:
    if tree[0] in ("newid", "sign", "+", "-", "*", "/", "%"):
        raise Refusal("value as condition")
    if tree[0] == "constant" and not isinstance(tree[1], bool):
        raise Refusal("constant as condition")
    return tree


def check_like(pattern: Tree, escape: Tree | None) -> None:
    """What is wrong with constants is refused at once."""
    character = None
    if escape is not None:
        if escape[0] != "constant" or escape[1] is None:
            return
        character = escape[1]
        if not isinstance(character, str) or len(character) != 1:
            raise Refusal("escape")
    if pattern[0] == "constant" and isinstance(pattern[1], str):
        try:
            pattern_signs(pattern[1], character)
        except Failure as error:
            raise Refusal(str(error)) from None


def system_name(written: str) -> str:
    if written.lower() == "subject":
        return "Label"
    for name in SYSTEM:
        if name.lower() == written.casefold():
            return name
    raise Failure("no such system property")


def named(written: str) -> Tree:
    if written.lower().startswith("sys."):
        return ("system", system_name(written[4:]))
    if written.lower().startswith("user."):
        return ("user", written[5:])
    return ("user", written)


# --- tree to result -------------------------------------------------------------------------------


@dataclass
class World:
    """What is known of the message: application properties, system properties, new ids."""

    properties: dict[str, Any]
    system: dict[str, Any]
    new_id: Callable[[], UUID]

    def spelled(self, name: str) -> str | None:
        if name in self.properties:
            return name
        for candidate in self.properties:
            if candidate.casefold() == name.casefold():
                return candidate
        return None


def kind_of(operand: Any) -> str:
    for kind, name in (
        (bool, "boolean"),
        (Timestamp, "date"),
        (Duration, "duration"),
        (int, "integer"),
        (float, "double"),
        (Decimal, "decimal"),
        (str, "text"),
        (bytes, "binary"),
        (UUID, "uuid"),
    ):
        if isinstance(operand, kind):
            return name
    raise AssertionError(operand)


def compute(tree: Tree, world: World) -> Any:
    """The value of an expression; None: null or unknown."""
    match tree:
        case ("constant", constant):
            return constant
        case ("user", name):
            spelled = world.spelled(name)
            return None if spelled is None else world.properties[spelled]
        case ("system", name):
            return world.system.get(name)
        case ("named", argument):
            written = compute(argument, world)
            if written is None:
                return None
            if not isinstance(written, str):
                raise Failure("name of a property")
            return compute(named(written), world)
        case ("newid",):
            return world.new_id()
        case ("sign", sign, operand):
            given = compute(operand, world)
            if given is None:
                return None
            kind = kind_of(given)
            if kind not in ("integer", "double", "decimal", "duration"):
                raise Failure("sign")
            if sign == "+":
                return given
            if kind == "decimal":
                return given.copy_negate()
            if kind == "double":
                return -given
            return (Duration if kind == "duration" else int)(in_long(-int(given)))
        case (operator, left, right):
            return calculate(operator, compute(left, world), compute(right, world))
    raise AssertionError(tree)


def in_long(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise Failure("overflow")
    return number


def calculate(operator: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    kinds = (kind_of(left), kind_of(right))
    if kinds == ("text", "text") and operator == "+":
        if len(left) + len(right) > 32768:
            raise Failure("long text")
        return f"{left}{right}"
    if kinds == ("date", "date") and operator == "-":
        return Duration(in_long((int(left) - int(right)) * 10_000))
    if kinds == ("date", "duration") and operator in ("+", "-"):
        shift = math.trunc(Fraction(int(right), 10_000))
        return Timestamp(in_long(int(left) + (shift if operator == "+" else -shift)))
    if kinds == ("duration", "duration") and operator in ("+", "-"):
        ticks = int(left) + (int(right) if operator == "+" else -int(right))
        return Duration(in_long(ticks))
    if not set(kinds) <= {"integer", "double", "decimal"}:
        raise Failure("types")
    if operator in ("/", "%") and right == 0:
        raise Failure("division by zero")
    if "double" in kinds:
        a, b = float(left), float(right)
        if operator == "%":
            return math.nan if math.isinf(a) else math.fmod(a, b)
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[
            operator
        ]()
    if "decimal" in kinds:
        return calculate_decimal(operator, Decimal(left), Decimal(right))
    quotient = math.trunc(Fraction(left, right)) if operator in ("/", "%") else 0
    return in_long(
        {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "/": quotient,
            "%": left - right * quotient,
        }[operator]
    )


def calculate_decimal(operator: str, left: Decimal, right: Decimal) -> Decimal:
    context = DecimalContext(
        prec=34, Emin=-6143, Emax=6144, traps=[InvalidOperation, DivisionByZero, Overflow]
    )
    names = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder"}
    try:
        result: Decimal = getattr(context, names[operator])(left, right)
    except DecimalException as error:
        raise Failure("decimal") from error
    return result


def relation(operator: str, left: Any, right: Any) -> bool | None:
    """Of two values that are not null."""
    kinds = {kind_of(left), kind_of(right)}
    if kinds == {"integer", "double"} or kinds == {"decimal", "double"}:
        left, right = float(left), float(right)
    elif kinds == {"integer", "decimal"} or kinds == {"decimal"}:
        left, right = Fraction(left), Fraction(right)
    elif len(kinds) == 2:
        return {"=": False, "<>": True, "!=": True}.get(operator)
    elif operator not in ("=", "<>", "!=") and kinds & {"boolean", "binary", "uuid"}:
        return None
    results: dict[str, Callable[[], Any]] = {
        "=": lambda: left == right,
        "<>": lambda: left != right,
        "!=": lambda: left != right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
    }
    return bool(results[operator]())


def pattern_signs(pattern: str, escape: str | None) -> list[tuple[str, str]]:
    """("any", ""), ("one", "") or ("is", character), for each sign of the pattern."""
    if len(pattern) > 1024:
        raise Failure("long pattern")
    signs: list[tuple[str, str]] = []
    index = 0
    while index < len(pattern):
        if pattern[index] == escape:
            index += 1
            if index == len(pattern):
                raise Failure("dangling escape")
            signs.append(("is", pattern[index]))
        elif pattern[index] == "%":
            signs.append(("any", ""))
        elif pattern[index] == "_":
            signs.append(("one", ""))
        else:
            signs.append(("is", pattern[index]))
        index += 1
    return signs


def like(text: str, signs: list[tuple[str, str]]) -> bool:
    """By a table: fits[i] says whether the signs so far match the first i characters."""
    fits = [True] + [False] * len(text)
    for kind, character in signs:
        following = [False] * len(fits)
        for length in range(len(fits)):
            if kind == "any":
                following[length] = any(fits[: length + 1])
            elif length > 0 and fits[length - 1]:
                following[length] = kind == "one" or text[length - 1] == character
        fits = following
    return fits[-1]


def decide(tree: Tree, world: World) -> bool | None:
    """The truth of a condition."""
    match tree:
        case ("or", left, right):
            first = decide(left, world)
            if first is True:
                return True
            second = decide(right, world)
            return True if second is True else (None if None in (first, second) else False)
        case ("and", left, right):
            first = decide(left, world)
            if first is False:
                return False
            second = decide(right, world)
            return False if second is False else (None if None in (first, second) else True)
        case ("not", operand):
            return {True: False, False: True, None: None}[decide(operand, world)]
        case ("compare", operator, left, right):
            a, b = compute(left, world), compute(right, world)
            return None if a is None or b is None else relation(operator, a, b)
        case ("null", operand):
            return compute(operand, world) is None
        case ("exists", ("user", name)):
            return world.spelled(name) is not None
        case ("exists", ("system", name)):
            return world.system.get(name) is not None
        case ("in", left, items):
            return decide_in(compute(left, world), items, world)
        case ("like", left, pattern, escape):
            return decide_like(left, pattern, escape, world)
    given = compute(tree, world)
    return given if given is True or given is False else None


def decide_in(given: Any, items: list[Tree], world: World) -> bool | None:
    if given is None:
        return None
    answers = []
    for item in items:
        other = compute(item, world)
        answers.append(None if other is None else relation("=", given, other))
        if answers[-1] is True:
            return True
    return None if None in answers else False


def decide_like(left: Tree, pattern: Tree, escape: Tree | None, world: World) -> bool | None:
    text, written = compute(left, world), compute(pattern, world)
    character = None
    if escape is not None:
        character = compute(escape, world)
        if character is None:
            return None
    if not isinstance(text, str) or not isinstance(written, str):
        return None
    if escape is not None and (not isinstance(character, str) or len(character) != 1):
        raise Failure("escape")
    return like(text, pattern_signs(written, character))


# --- actions --------------------------------------------------------------------------------------

LONGEST = {"MessageId": 128, "SessionId": 128, "ReplyToSessionId": 128, "PartitionKey": 128}


def run(statements: list[Tree], world: World) -> None:
    """The statements in their order; `world` is changed."""
    for statement in statements:
        match statement:
            case ("remove", name):
                spelled = world.spelled(name)
                if spelled is not None:
                    del world.properties[spelled]
            case ("set", ("user", name), expression):
                given = compute(expression, world)
                spelled = world.spelled(name)
                if spelled is not None:
                    given = fitted(given, world.properties[spelled])
                world.properties[name if spelled is None else spelled] = given
            case ("set", ("system", name), expression):
                world.system[name] = fitted_system(name, compute(expression, world))


def fitted(given: Any, existing: Any) -> Any:
    if given is None or existing is None:
        return given
    have, want = kind_of(given), kind_of(existing)
    if want == "double" and have in ("integer", "decimal"):
        return float(given)
    if want == "decimal" and have == "integer":
        return Decimal(given)
    if want == have == "text":
        return type(existing)(given)
    return given


def fitted_system(name: str, given: Any) -> Any:
    if given is None:
        return None
    wanted = {"TimeToLive": Duration, "ScheduledEnqueueTimeUtc": Timestamp}.get(name)
    if wanted is not None:
        if type(given) is not wanted:
            raise Failure("type of a system property")
        return given
    if type(given) not in (str, Symbol, int, UUID):
        raise Failure("type of a system property")
    if len(str(given)) > LONGEST.get(name, 10**9):
        raise Failure("long system property")
    return str(given)


def filter_result(text: str, parameters: dict[str, Any], world: World) -> bool | None:
    tree = Reader(words_of(text), parameters).whole_filter()
    return decide(tree, world)


def action_result(text: str, parameters: dict[str, Any], world: World) -> None:
    run(Reader(words_of(text), parameters).whole_action(), world)
