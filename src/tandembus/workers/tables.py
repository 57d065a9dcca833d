"""Tables of a TOML file, read by their keys: every mistake is an error that names its place.

A reader takes a value and the words for its place, and returns what it stands for or raises
ArgumentError. A key that is not known is refused: a typing mistake would be a plan or a pool that
does something else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, Final, TypeAlias, TypeVar

from tandembus.errors import ArgumentError

T = TypeVar("T")
Reader: TypeAlias = Callable[[Any, str], Any]


def _of(kind: type, words: str) -> Reader:
    def read(value: Any, where: str) -> Any:
        # In Python, but not in TOML, true is a number.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ArgumentError(f"{where} is {words}, not {value!r}")
        return value

    return read


def number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentError(f"{where} is a number, not {value!r}")
    return value


text: Final = _of(str, "a text")
integer: Final = _of(int, "a whole number")
boolean: Final = _of(bool, "true or false")


def table(keys: Mapping[str, Reader], make: type) -> Reader:
    """A dataclass, made of the fields that `keys` names."""
    needed = [
        each.name
        for each in fields(make)
        if each.default is MISSING and each.default_factory is MISSING
    ]

    def read(value: Any, where: str) -> Any:
        found = read_fields(value, keys, where)
        for name in needed:
            if name not in found:
                raise ArgumentError(f"{where}: {name} is missing")
        return placed(where, lambda: make(**found))

    return read


def read_fields(value: Any, keys: Mapping[str, Reader], where: str) -> dict[str, Any]:
    """The keys of a table and what they stand for."""
    if not isinstance(value, dict):
        raise ArgumentError(f"{where} is a table, not {value!r}")
    found = {}
    for key, each in value.items():
        if key not in keys:
            near = get_close_matches(key, keys, 1)
            meant = f" (did you mean '{near[0]}'?)" if near else ""
            raise ArgumentError(f"{where}: unknown key '{key}'{meant}")
        found[key] = keys[key](each, f"{where}: {key}")
    return found


def listed(each: Reader, name: str = "name") -> Reader:
    """A list of such; an entry is called by its `name`, or by its number."""

    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ArgumentError(f"{where} is a list, not {value!r}")
        found = []
        for count, one in enumerate(value, 1):
            label = one.get(name, count) if isinstance(one, dict) else count
            found.append(each(one, f"{where} {label!r}"))
        return tuple(found)

    return read


def placed(where: str, make: Callable[[], T]) -> T:
    """What `make` makes; what it finds wrong gets its place."""
    try:
        return make()
    except ArgumentError as error:
        # A value may say itself what it is, as `where` does at its end.
        itself, _, rest = str(error).partition(": ")
        words = rest if where.endswith(itself) else error
        raise ArgumentError(f"{where}: {words}") from error


def read_toml(content: str, keys: Mapping[str, Reader], name: str) -> dict[str, Any]:
    """The fields of a whole file."""
    try:
        return read_fields(tomllib.loads(content), keys, name)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{name}: {error}") from error
