"""Daily windows (P5): whether a pool works at a time of the day, and when that changes. Pure.

Times are those of a place, so a day may have 23 or 25 hours there; the hour that is skipped in
spring does not happen, and the one that comes twice in autumn is worked twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tandembus.errors import ArgumentError
from tandembus.model import Millis
from tandembus.workers.options import DailyWindow

_DAYS: Final = 3
"""An edge is never further away than the day after tomorrow."""


def zone(name: str) -> tzinfo:
    """A time zone by its name, `Europe/Berlin`."""
    if name == "UTC":
        return UTC  # also where there is no time zone database
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ArgumentError(f"there is no time zone '{name}'") from error


def is_open(windows: Sequence[DailyWindow], place: tzinfo, now_ms: Millis) -> bool:
    """Whether it is time to work. Without windows it always is."""
    if not windows:
        return True
    clock = datetime.fromtimestamp(now_ms / 1000, place).time()
    return any(_contains(window, clock) for window in windows)


def next_change_ms(windows: Sequence[DailyWindow], place: tzinfo, now_ms: Millis) -> Millis | None:
    """When `is_open` becomes another; None: never."""
    now = is_open(windows, place, now_ms)
    today = datetime.fromtimestamp(now_ms / 1000, place).date()
    edges = set()
    for day in range(-1, _DAYS):
        for window in windows:
            for clock in (window.start, window.end):
                edge = datetime.combine(today + timedelta(days=day), clock, place)
                edges.add(round(edge.timestamp() * 1000))
                edges.add(round(edge.replace(fold=1).timestamp() * 1000))
    for edge_ms in sorted(edges):
        if edge_ms > now_ms and is_open(windows, place, edge_ms) != now:
            return edge_ms
    return None


def _contains(window: DailyWindow, clock: time) -> bool:
    if window.start < window.end:
        return window.start <= clock < window.end
    return clock >= window.start or clock < window.end
