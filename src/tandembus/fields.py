"""Plain values by name: how a field of a settings object is read, and how a wrong one is refused.

Here live the readers of single values and `read_fields` over a table of them. Which fields there
are, and their ranges, is `settings` and `extensions`. The rule: an `ArgumentError` names the
property as its user calls it, and shows the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from tandembus.errors import ArgumentError
from tandembus.model import NEVER, Millis

Reader: TypeAlias = Callable[[str, object], object]
Table: TypeAlias = Mapping[str, tuple[str, Reader]]
"""Our name of a field → the name that its user calls it by, and how it is read."""


def bad(name: str, value: object, why: str) -> ArgumentError:
    return ArgumentError(f"SubCode=40000. {why} Parameter name: {name}. Actual value was {value}.")


def check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise bad(name, value, f"The value must be between {low} and {high}.")


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise bad(name, repr(value), "It must be true or false.")
    return value


def integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad(name, repr(value), "It must be an integer.")
    return value


def or_none(name: str, value: object) -> int | None:
    return None if value is None else integer(name, value)


def or_never(name: str, value: object) -> Millis:
    return NEVER if value is None else integer(name, value)


def text(name: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise bad(name, repr(value), "It must be a text.")
    return value


def required(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise bad(name, type(value).__name__, "It must be a text.")
    return value


def kind_of(cls: type) -> str:
    return cls.__name__.removesuffix("Settings")


def read_fields(
    cls: type[Any], table: Table, data: Mapping[str, object], prefix: str = ""
) -> dict[str, Any]:
    """The arguments of a settings class, from what its `to_json` has made."""
    known = {field.name for field in fields(cls)}
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in known:
            raise ArgumentError(f"SubCode=40000. A {kind_of(cls)} has no property '{name}'.")
        shown, read = table[name]
        values[name] = read(prefix + shown, value)
    return values
