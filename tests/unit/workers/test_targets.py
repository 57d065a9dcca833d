"""Speed, attainment and alerts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandembus.workers.options import Target
from tandembus.workers.targets import Alert, Attainment, Histogram, Meter, TargetWatch

pytestmark = pytest.mark.req("P7")

TARGET = Target(within_s=10, percent=90, window_s=60)


def watched(target: Target = TARGET) -> tuple[Meter, TargetWatch]:
    meter = Meter(target)
    return meter, TargetWatch(target, meter)


def test_attainment_is_of_what_was_done_in_the_window() -> None:
    """Nine of ten within the time attain 90 %; what is older than the window counts no more."""
    meter, watch = watched()
    meter.done(99_000, 1, 0)
    for number in range(10):
        meter.done(10_001 if number == 0 else 10_000, 1, 100_000)
    found = watch.look(None, 100_000)
    assert (found.percent, found.done, found.is_attained) == (90.0, 10, True)
    meter.done(10_001, 1, 101_000)
    assert not watch.look(None, 101_000).is_attained
    assert watch.look(None, 170_000) == Attainment(TARGET, None, 0, True, False)


def test_a_pool_that_stands_still_attains_nothing() -> None:
    """Nothing done, and the oldest is too old: missed. Nothing done, and nothing waits: not."""
    _, watch = watched()
    assert watch.look(9.9, 0).is_attained
    assert watch.look(10.1, 1).percent == 0.0
    assert watch.look(None, 2).is_attained


def test_an_alert_begins_after_its_time_and_ends_at_once() -> None:
    """A short dip is none; what is attained again is over."""
    meter, watch = watched(Target(within_s=10, percent=90, window_s=10, for_s=30))
    meter.done(11_000, 1, 0)
    assert not watch.look(None, 0).is_alert
    meter.done(11_000, 1, 29_999)
    assert not watch.look(None, 29_999).is_alert
    assert watch.look(None, 30_000).is_alert
    for _ in range(10):
        meter.done(1, 1, 30_100)
    assert not watch.look(None, 30_100).is_alert


def test_nothing_to_judge_for_a_moment_ends_no_alert() -> None:
    """The late message is being worked on: it does not wait any more, and is not done yet."""
    _, watch = watched()
    assert watch.look(11.0, 1_000).is_alert
    assert watch.look(None, 2_000).is_alert
    assert watch.look(None, 61_000).is_alert
    assert not watch.look(None, 61_001).is_alert


def test_too_few_messages_are_not_judged() -> None:
    meter, watch = watched(Target(within_s=1, at_least=3))
    meter.done(2_000, 1, 0)
    assert watch.look(None, 0).is_attained
    meter.done(2_000, 1, 0)
    meter.done(2_000, 1, 0)
    assert not watch.look(None, 0).is_attained


def test_an_alert_says_what_is_missed() -> None:
    alert = Alert("mail", "high", Attainment(TARGET, 81.25, 16, False, True), is_over=False)
    assert str(alert) == "mail/high: target missed: 81.2 % within 10 s, promised 90 %"


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=200), st.floats(0, 1))
def test_quantiles_are_right_to_five_percent(waits: list[int], part: float) -> None:
    meter = Meter()
    for wait in waits:
        meter.begun(wait, 1_000)
    exact = sorted(waits)[max(0, -int(-part * len(waits) // 1) - 1)]
    found = meter.quantile_s(part, 1_000)
    assert found is not None
    assert abs(found * 1000 - exact) <= max(1, 0.05 * exact)


def test_rate_and_work_are_of_the_last_time() -> None:
    meter = Meter()
    for second in range(100):
        for _ in range(5):
            meter.done(1, 200, second * 1_000)
    assert meter.rate(99_000, 10_000) == pytest.approx(5, rel=0.11)
    assert meter.rate(99_999, 10_000) == pytest.approx(5, rel=0.01)
    assert meter.mean_work_s(99_000) == pytest.approx(0.2)
    assert meter.rate(1_000_000) == 0
    assert meter.mean_work_s(1_000_000) is None
    assert meter.quantile_s(0.5, 99_000) is None


def test_a_meter_keeps_no_more_than_its_windows() -> None:
    """A process that runs for months does not grow."""
    meter = Meter(TARGET)
    for second in range(10_000):
        meter.done(1, 1, second * 1_000)
    assert len(meter._buckets) <= 302


def test_a_histogram_counts_up() -> None:
    histogram = Histogram()
    for value in (0.001, 0.005, 0.006, 4_000):
        histogram.add(value)
    counts = dict(histogram.cumulative())
    assert counts["0.005"] == 2
    assert counts["0.01"] == 3
    assert counts["3600"] == 3
    assert counts["+Inf"] == histogram.count == 4
