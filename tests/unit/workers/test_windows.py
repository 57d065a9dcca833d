"""Times of the day."""

from __future__ import annotations

from datetime import UTC, datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandembus.errors import ArgumentError
from tandembus.workers.options import DailyWindow
from tandembus.workers.windows import is_open, next_change_ms, zone

pytestmark = pytest.mark.req("P5")

NIGHT = (DailyWindow.parse("22:00-06:00"),)


def ms(text: str, place: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone(place)).timestamp() * 1000)


@pytest.mark.parametrize(
    ("clock", "open_"),
    [("21:59", False), ("22:00", True), ("23:59", True), ("05:59", True), ("06:00", False)],
)
def test_a_window_over_midnight(clock: str, open_: bool) -> None:
    """From its begin on, and to its end, which is not in it."""
    assert is_open(NIGHT, UTC, ms(f"2026-01-01T{clock}:00")) is open_


def test_without_windows_it_is_always_time() -> None:
    assert is_open((), UTC, 0)
    assert next_change_ms((), UTC, 0) is None


def test_several_windows_and_the_end_of_a_day() -> None:
    both = (DailyWindow.parse("09:00-12:00"), DailyWindow.parse("18:00-24:00"))
    assert is_open(both, UTC, ms("2026-01-01T23:59:59"))
    assert not is_open(both, UTC, ms("2026-01-02T00:00:00"))
    assert next_change_ms(both, UTC, ms("2026-01-01T12:00:00")) == ms("2026-01-01T18:00:00")


def test_windows_that_touch_are_one() -> None:
    """At an edge where nothing changes there is no change."""
    both = (DailyWindow.parse("08:00-12:00"), DailyWindow.parse("12:00-16:00"))
    assert next_change_ms(both, UTC, ms("2026-01-01T09:00:00")) == ms("2026-01-01T16:00:00")


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-28", 7), ("2026-10-24", 9), ("2026-06-01", 8)]
)
def test_a_night_with_a_change_of_the_clocks(day: str, hours: int) -> None:
    """22:00 to 06:00 is by the clock on the wall, whatever that does meanwhile."""
    berlin = zone("Europe/Berlin")
    start = ms(f"{day}T22:00:00", "Europe/Berlin")
    assert is_open(NIGHT, berlin, start)
    assert next_change_ms(NIGHT, berlin, start) == start + hours * 3_600_000


@pytest.mark.parametrize("text", ["22:00", "22-6-7", "25:00-06:00", "", "ten-eleven"])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(ArgumentError, match="22:00-06:00"):
        DailyWindow.parse(text)


def test_what_is_no_zone() -> None:
    with pytest.raises(ArgumentError, match="Mars"):
        zone("Mars/Olympus")


@given(
    st.lists(st.tuples(st.integers(0, 1439), st.integers(0, 1439)), min_size=1, max_size=3),
    st.integers(0, 10 * 86_400_000),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]),
)
def test_nothing_changes_before_the_next_change(
    minutes: list[tuple[int, int]], start: int, place: str
) -> None:
    """For any windows: up to what `next_change_ms` says all is as it is now, and there not."""
    windows = [
        DailyWindow(time(first // 60, first % 60), time(last // 60, last % 60))
        for first, last in minutes
    ]
    now = ms("2026-03-25T00:00:00") + start
    change = next_change_ms(windows, zone(place), now)
    is_now = is_open(windows, zone(place), now)
    if change is not None:
        assert is_open(windows, zone(place), change) is not is_now
    for step in range(0, (change or now + 86_400_000) - now, 1_200_000):
        assert is_open(windows, zone(place), now + step) is is_now
