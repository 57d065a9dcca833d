"""Numbers as people read them: thousands, units, lengths of time, shares."""

from __future__ import annotations

from datetime import datetime
from typing import Final

NONE: Final = "–"
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000


def count(number: float | None) -> str:
    """`12,345`."""
    return NONE if number is None else f"{number:,.0f}"


def rate(number: float | None) -> str:
    """Of something a second; what is small keeps a digit."""
    if number is None:
        return NONE
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def length(ms: float | None) -> str:
    """`850 ms`, `3.2 s`, `4 min 5 s`, `2 h 10 min`, `3 days 4 h`."""
    if ms is None:
        return NONE
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < _MINUTE_MS:
        return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"
    if ms < _HOUR_MS:
        return _two(ms / 1000, 60, "min", "s")
    if ms < 48 * _HOUR_MS:
        return _two(ms / _MINUTE_MS, 60, "h", "min")
    return _two(ms / _HOUR_MS, 24, "days", "h")


def _two(number: float, size: int, large: str, small: str) -> str:
    whole, rest = divmod(round(number), size)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def size(number: float | None) -> str:
    """Bytes, by thousands."""
    if number is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return (
                f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
            )
        number /= 1000
    return f"{number:,.1f} TB"


def percent(share: float | None) -> str:
    """Of a hundred, given as one; never 100 % unless it is all, nor 0 % unless it is none."""
    if share is None:
        return NONE
    number = 100 * share
    if 99.95 <= number < 100:
        return "over 99.9 %"
    if 0 < number < 0.05:
        return "under 0.1 %"
    return f"{number:.0f} %" if number in (0, 100) or 10 <= number < 99 else f"{number:.1f} %"


def money(amount: float | None, currency: str) -> str:
    if amount is None:
        return NONE
    digits = 2 if amount >= 0.01 or amount == 0 else 4
    return f"{amount:,.{digits}f} {currency}".strip()


def clock(time: datetime, *, with_day: bool = False) -> str:
    """UTC."""
    return f"{time:%Y-%m-%d %H:%M:%S}" if with_day else f"{time:%H:%M:%S}"


def plural(number: float, one: str, many: str | None = None) -> str:
    """`1 message`, `2 messages`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"
