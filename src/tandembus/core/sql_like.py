"""LIKE: a pattern of `%` (any run) and `_` (one character), matched in linear time.

Here live the pattern and its search. Nulls and types are `sql_compile.py`. The rule: no `re` and no
backtracking. A matcher that retries after each `%` costs pattern times text, which is how LIKE
became a way to stop other brokers (CVE-2026-67240, CVE-2026-67413).

`%` cuts a pattern into pieces of fixed length. The first stands at the start, the last at the end,
and each one between is taken at the leftmost place behind its predecessor: as a piece has one
length, the leftmost place never spoils a later one, so nothing is tried twice. A piece with one
literal run is looked for by `str.find`; one with several, like `a_b`, by Shift-And (Baeza-Yates and
Gonnet, 1992): bit i of an integer says that the first i + 1 characters of the piece end here, a `_`
being a bit that every character sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tandembus.errors import FilterError
from tandembus.limits import MAX_SQL_STEPS, MAX_SQL_TEXT

CHARACTERS_PER_STEP: Final = 64
"""What the interpreter's own search or copy does in about the time of one step of ours."""

_LONG_RUN: Final = 100
_LONG_TEXT: Final = 4 * MAX_SQL_TEXT
"""From these sizes on CPython's `str.find` is linear; below, it may try each place anew."""


class Meter:
    """The steps of the evaluation that is under way. Only what depends on the length of a value is
    counted here: all else is done at most once, and was charged with the tokens of the text."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0

    def charge(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_SQL_STEPS:
            raise FilterError(f"The evaluation takes more than {MAX_SQL_STEPS} steps.")

    def charge_text(self, length: int) -> None:
        self.charge(1 + length // CHARACTERS_PER_STEP)


class Piece(NamedTuple):
    """The part of a pattern between two `%`."""

    length: int
    runs: tuple[tuple[int, str], ...]
    """The literal text, cut at each `_`, with its place in the piece."""
    masks: Mapping[str, int]
    """For Shift-And: by character, the places between the first and the last literal that it fits.
    Empty if the piece has fewer than two runs."""
    wildcards: int
    """Those places that every character fits."""

    def stands_at(self, text: str, start: int, meter: Meter) -> bool:
        """Whether the piece is found at exactly that place (the text is long enough)."""
        meter.charge(1 + len(self.runs))
        return all(text.startswith(run, start + offset) for offset, run in self.runs)

    def find(self, text: str, start: int, end: int, meter: Meter) -> int:
        """Where in `text[start:end]` the leftmost occurrence begins, or -1."""
        if end - start < self.length:
            return -1
        if not self.runs:
            return start
        if self.masks:
            return self._shift_and(text, start, end, meter)
        ((offset, run),) = self.runs
        tail = self.length - offset - len(run)
        found = _search(text, run, start + offset, end - tail, meter)
        return found - offset if found >= 0 else -1

    def _shift_and(self, text: str, start: int, end: int, meter: Meter) -> int:
        offset, first = self.runs[0]
        last_offset, last = self.runs[-1]
        width = last_offset + len(last) - offset
        accept = 1 << (width - 1)
        masks, wildcards = self.masks, self.wildcards
        index = start + offset
        stop = end - (self.length - offset - width)
        most = MAX_SQL_STEPS - meter.steps
        state = steps = 0
        while index < stop and steps <= most:
            if not state:
                # Nothing has begun: jump to where something can.
                index = _search(text, first, index, stop, meter)
                if index < 0:
                    break
            state = (state << 1 | 1) & masks.get(text[index], wildcards)
            index += 1
            steps += 1
            if state & accept:
                meter.charge(steps)
                return index - width - offset
        meter.charge(steps)
        return -1


@dataclass(frozen=True, slots=True)
class Pattern:
    pieces: tuple[Piece, ...]

    def matches(self, text: str, meter: Meter) -> bool:
        first, last = self.pieces[0], self.pieces[-1]
        if len(self.pieces) == 1:
            return len(text) == first.length and first.stands_at(text, 0, meter)
        end = len(text) - last.length
        position = first.length
        if position > end:
            return False
        if not first.stands_at(text, 0, meter) or not last.stands_at(text, end, meter):
            return False
        for piece in self.pieces[1:-1]:
            start = piece.find(text, position, end, meter)
            if start < 0:
                return False
            position = start + piece.length
        return True


def _search(text: str, run: str, start: int, end: int, meter: Meter) -> int:
    """`text.find(run, start, end)`, in linear time and charged."""
    if len(run) < _LONG_RUN or end - start >= _LONG_TEXT:
        found = text.find(run, start, end)
    else:
        # A long run in a short text would be tried at each place, up to 0.2 µs a character. In a
        # text that padding makes long it is not; what is found in the padding is not found.
        found = start + text[start:end].ljust(_LONG_TEXT, "\0").find(run)
        if not start <= found <= end - len(run):
            found = -1
    meter.charge_text((end if found < 0 else found) - start)
    return found


def compile_pattern(pattern: str, escape: str | None) -> Pattern:
    """The pattern; a character behind `escape` stands for itself."""
    if len(pattern) > MAX_SQL_TEXT:
        # A pattern can be a property, and those are longer than any text of a rule.
        raise FilterError(f"The LIKE pattern is longer than {MAX_SQL_TEXT} characters.")
    if escape is not None and len(escape) != 1:
        raise FilterError("ESCAPE takes a string of one character.")
    pieces: list[Piece] = []
    piece: list[str | None] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise FilterError("The LIKE pattern ends with its escape character.")
            piece.append(literal)
        elif character == "%":
            # `%%` is `%`: an empty piece between two others says nothing.
            if piece or not pieces:
                pieces.append(_piece(piece))
            piece = []
        else:
            piece.append(None if character == "_" else character)
    pieces.append(_piece(piece))
    return Pattern(tuple(pieces))


def _piece(characters: list[str | None]) -> Piece:
    """From its characters, None for each `_`."""
    if None not in characters:
        literal = "".join(c for c in characters if c is not None)
        return Piece(len(literal), ((0, literal),) if literal else (), {}, 0)
    runs: list[tuple[int, str]] = []
    begin = 0
    while begin < len(characters):
        end = begin
        while end < len(characters) and characters[end] is not None:
            end += 1
        if end > begin:
            runs.append((begin, "".join(c for c in characters[begin:end] if c is not None)))
        begin = end + 1
    masks: dict[str, int] = {}
    wildcards = 0
    if len(runs) > 1:
        first, (last, text) = runs[0][0], runs[-1]
        for place, character in enumerate(characters[first : last + len(text)]):
            if character is None:
                wildcards |= 1 << place
            else:
                masks[character] = masks.get(character, 0) | 1 << place
        masks = {character: mask | wildcards for character, mask in masks.items()}
    return Piece(len(characters), tuple(runs), masks, wildcards)
