"""The words of the SQL filter language: text to tokens.

Here live the token and the two bounds on a text (characters, tokens). What the words mean together
is `sql_parser.py`. The rule: every text gives a list of tokens or a `FilterError` that says where.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final, NamedTuple

from tandembus.errors import FilterError
from tandembus.limits import MAX_SQL_TEXT, MAX_SQL_TOKENS

KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE")
)
"""Words that are no property names unless they stand in [brackets] or "quotes". `SET` and `REMOVE`
are
not here: they have a meaning only where a statement begins."""

_SYMBOLS: Final = frozenset("=<>+-*/%(),.;")
_DOUBLE_SYMBOLS: Final = frozenset(("<>", "!=", "<=", ">="))
_DIGITS: Final = frozenset("0123456789")

LARGEST_INTEGER: Final = 2**63
"""One more than a long holds, because `-9223372036854775808` is a sign and a number."""


class Kind(Enum):
    NAME = "a name"
    DELIMITED = "a delimited name"
    KEYWORD = "a keyword"
    PARAMETER = "a parameter"
    TEXT = "a string"
    NUMBER = "a number"
    SYMBOL = "a symbol"
    END = "the end"


class Token(NamedTuple):
    kind: Kind
    text: str
    """A keyword in capitals, a name or string without its quotes, a parameter without its @."""
    number: int | float
    """The value of a NUMBER; 0 for all others."""
    position: int
    """Counted from 1, for people."""

    def describe(self) -> str:
        return "the end" if self.kind is Kind.END else f"'{self.text}'"


def tokenize(text: str) -> list[Token]:
    """The tokens of `text`, closed by one of kind END."""
    if len(text) > MAX_SQL_TEXT:
        raise FilterError(f"The SQL expression is longer than {MAX_SQL_TEXT} characters.")
    tokens: list[Token] = []
    index = 0
    while index < len(text):
        character = text[index]
        if character.isspace():
            index += 1
            continue
        token, index = _next_token(text, index)
        tokens.append(token)
        if len(tokens) > MAX_SQL_TOKENS:
            raise FilterError(f"The SQL expression has more than {MAX_SQL_TOKENS} words.")
    tokens.append(Token(Kind.END, "", 0, len(text) + 1))
    return tokens


def error_at(what: str, position: int) -> FilterError:
    return FilterError(f"The SQL expression is not valid: {what} at position {position}.")


def _next_token(text: str, start: int) -> tuple[Token, int]:
    """The token that begins at `start`, and the index behind it."""
    character = text[start]
    following = text[start + 1 : start + 2]
    if character.isalpha():
        end = _end_of_name(text, start)
        word = text[start:end]
        # A keyword is ASCII: `ı` and `ſ` fold to letters of `IN` and `IS`, and are not meant.
        if word.isascii() and word.upper() in KEYWORDS:
            return Token(Kind.KEYWORD, word.upper(), 0, start + 1), end
        return Token(Kind.NAME, word, 0, start + 1), end
    if character in _DIGITS or (character == "." and following in _DIGITS):
        return _number(text, start)
    match character:
        case "'":
            return _delimited(text, start, "'", Kind.TEXT)
        case '"':
            return _delimited(text, start, '"', Kind.DELIMITED)
        case "[":
            return _delimited(text, start, "]", Kind.DELIMITED)
        case "@":
            end = _end_of_name(text, start + 1)
            if end == start + 1:
                raise error_at("a parameter without a name", start + 1)
            return Token(Kind.PARAMETER, text[start + 1 : end], 0, start + 1), end
    if character + following in _DOUBLE_SYMBOLS:
        return Token(Kind.SYMBOL, character + following, 0, start + 1), start + 2
    if character in _SYMBOLS:
        return Token(Kind.SYMBOL, character, 0, start + 1), start + 1
    raise error_at(f"unexpected character {character!r}", start + 1)


def _is_in_name(character: str) -> bool:
    # .NET's IsLetter is Lu, Ll, Lt, Lm, Lo and its IsDigit is Nd: exactly these two.
    return character.isalpha() or character.isdecimal() or character == "_"


def _end_of_name(text: str, start: int) -> int:
    end = start
    while end < len(text) and _is_in_name(text[end]):
        end += 1
    return end


def _end_of_digits(text: str, start: int) -> int:
    end = start
    while end < len(text) and text[end] in _DIGITS:
        end += 1
    return end


def _delimited(text: str, start: int, close: str, kind: Kind) -> tuple[Token, int]:
    """What stands between delimiters, the closing one doubled standing for itself."""
    pieces: list[str] = []
    index = start + 1
    while True:
        end = text.find(close, index)
        if end < 0:
            raise error_at(f"{kind.value} that is not closed", start + 1)
        pieces.append(text[index:end])
        if text[end + 1 : end + 2] != close:
            break
        index = end + 2
    content = close.join(pieces)
    if kind is Kind.DELIMITED and not content:
        raise error_at("an empty name", start + 1)
    return Token(kind, content, 0, start + 1), end + 1


def _number(text: str, start: int) -> tuple[Token, int]:
    """An integer, a decimal with point, or one in scientific notation."""
    end = _end_of_digits(text, start)
    is_integer = True
    if text[end : end + 1] == ".":
        is_integer = False
        end = _end_of_digits(text, end + 1)
    if text[end : end + 1] in ("e", "E"):
        digits = end + 2 if text[end + 1 : end + 2] in ("+", "-") else end + 1
        exponent_end = _end_of_digits(text, digits)
        if exponent_end > digits:
            is_integer = False
            end = exponent_end
    if end < len(text) and _is_in_name(text[end]):
        raise error_at("a number that runs into a name", start + 1)
    written = text[start:end]
    number = int(written) if is_integer else float(written)
    if number > LARGEST_INTEGER if is_integer else math.isinf(number):
        raise error_at("a number that is too large", start + 1)
    return Token(Kind.NUMBER, written, number, start + 1), end
