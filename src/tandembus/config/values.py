"""How a value is written in a file, in the environment or as a flag, and how it is shown.

A reader takes what was written (a text, or what TOML and JSON have made of it) and the name of the
place, and returns the value or raises ArgumentError with that name. Names are compared without
regard to case, `-` and `_`: `LockDuration`, `lock-duration` and `lock_duration` are one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from tandembus.atom import read_duration
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from tandembus.model import NEVER, Millis

Reader: TypeAlias = Callable[[object, str], Any]
T = TypeVar("T")

_UNITS: Final = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
_SPAN: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[dhms]))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_NEVER: Final = ("never", "infinite")


def plain(name: str) -> str:
    """A name without what makes no difference."""
    return name.replace("-", "").replace("_", "").lower()


def find_name(name: str, known: Iterable[str], where: str, what: str = "setting") -> str:
    """The known name that is meant. Raises ArgumentError, with what was probably meant."""
    by_plain = {plain(each): each for each in known}
    found = by_plain.get(plain(name))
    if found is not None:
        return found
    near = get_close_matches(plain(name), by_plain, 1, 0.6)
    hint = f"; did you mean '{by_plain[near[0]]}'?" if near else ""
    raise ArgumentError(f"{where}: there is no {what} '{name[:80]}'{hint}")


def wrong(where: str, value: object, wanted: str) -> ArgumentError:
    return ArgumentError(f"{where} is {wanted}, not {value!r:.80}")


# --- readers --------------------------------------------------------------------------------------


def text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise wrong(where, value, "a text")
    return value


def text_or_none(value: object, where: str) -> str | None:
    """An empty text is none: so the emulator's file has it."""
    return None if value is None else text(value, where) or None


def path(value: object, where: str) -> Path:
    if isinstance(value, Path):
        return value
    if not (written := text(value, where)):
        raise ArgumentError(f"{where} is empty: name a path. (`.` is the current folder.)")
    return Path(written)


def integer(value: object, where: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(where, value, "a whole number")
    return value


def boolean(value: object, where: str) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "yes", "no"):
        return value.strip().lower() in ("true", "yes")
    if not isinstance(value, bool):
        raise wrong(where, value, "true or false")
    return value


def integers(value: object, where: str) -> tuple[int, ...]:
    """A list, or numbers with commas between."""
    return tuple(integer(each, where) for each in _listed(value, where))


def texts(value: object, where: str) -> tuple[str, ...]:
    return tuple(text(each, where) for each in _listed(value, where))


def _listed(value: object, where: str) -> Iterable[object]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if not isinstance(value, list | tuple):
        raise wrong(where, value, "a list")
    return value


def duration(value: object, where: str) -> Millis:
    """`30s`, `1h30m`, `7d`, `500ms`, `never`, `PT30S` as in Azure, or a number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return round(value * SECOND_MS)
    if isinstance(value, str):
        said = value.strip()
        if said.lower() in _NEVER:
            return NEVER
        if _SPAN.fullmatch(said):
            parts = _PART.findall(said)
            return round(sum(float(count) * _UNITS[unit] for count, unit in parts))
        if said[:1] in ("P", "p"):
            try:
                return read_duration(said.upper())
            except ProtocolError:
                pass
        elif re.fullmatch(r"\d+(\.\d+)?", said):
            return round(float(said) * SECOND_MS)
    raise wrong(where, value, "a time such as 30s, 1h30m, 7d or PT30S")


def moment(value: str, now_ms: Millis, where: str) -> Millis:
    """A point of time: `2026-01-31T12:00:00Z` (without a zone: UTC), or from now on, `10m`."""
    try:
        when = datetime.fromisoformat(value.strip())
    except ValueError:
        try:
            return now_ms + duration(value, where)
        except ArgumentError:
            raise wrong(where, value, "a time such as 10m or 2026-01-31T12:00:00Z") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return round(when.timestamp() * SECOND_MS)


def table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise wrong(where, value, "a table")
    return value


# --- shown ----------------------------------------------------------------------------------------


def show_duration(ms: Millis) -> str:
    """As short as it can be written, and read again: `1h30m`."""
    if ms >= NEVER:
        return "never"
    parts = []
    for unit, size in _UNITS.items():
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def show_moment(ms: Millis) -> str:
    return datetime.fromtimestamp(ms / SECOND_MS, UTC).isoformat(timespec="milliseconds")[:23] + "Z"


def show_url(url: str) -> str:
    """Without the password that may be in it, also one that is not written as it should be."""
    url = re.sub(r"(://[^:@/?]*):.*@", r"\1@", url)
    return re.sub(r"(?i)\b((?:ssl)?password)=[^&]*", r"\1=…", url)
