"""Speed and targets of a level (P7). Pure: times come in with every call.

    Meter      how long messages waited and took, over the last minutes and in all
    TargetWatch    whether the target is attained, and when there is an alert

A message counts for its target when its work is done: completed within `within_s` of its arrival,
or not. While nothing at all is done and the oldest message is older than that, the target is
missed, too: a pool that stands still attains nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, log
from typing import Final

from tandembus.model import Millis
from tandembus.workers.options import Target

BUCKET_MS: Final[Millis] = 1_000
MAX_WINDOW_MS: Final[Millis] = 3_600_000
_GROWTH: Final = log(1.05)
"""A waiting time is known to 5 %: that is what a bin of the histogram spans."""

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""Of the histograms that Prometheus gets."""


def _bin(ms: Millis) -> int:
    return 0 if ms < 1 else 1 + int(log(ms) / _GROWTH)


def _middle_ms(number: int) -> float:
    return 0.0 if number == 0 else exp((number - 0.5) * _GROWTH)


class Histogram:
    """In all, since the start: what Prometheus reads."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Upper bound and how many were not above it."""
        total = 0
        for bound, count in zip(BOUNDS_S, self.counts, strict=False):
            total += count
            yield f"{bound:g}", total
        yield "+Inf", total + self.counts[-1]


@dataclass(slots=True)
class _Bucket:
    start_ms: Millis
    waits: dict[int, int] = field(default_factory=dict)
    begun: int = 0
    done: int = 0
    within: int = 0
    work_ms: Millis = 0


class Meter:
    """What one level did. Waiting is from arrival in the queue to the begin of its work; the time
    for the target is to the end of it."""

    def __init__(self, target: Target | None = None, window_ms: Millis | None = None) -> None:
        self._within_ms = None if target is None else round(target.within_s * 1000)
        wanted = 60_000 if target is None else round(target.window_s * 1000)
        self._keep_ms = min(MAX_WINDOW_MS, window_ms or max(wanted, 300_000))
        self._buckets: deque[_Bucket] = deque()
        self.waits = Histogram()
        self.works = Histogram()

    def begun(self, waited_ms: Millis, now_ms: Millis) -> None:
        waited_ms = max(0, waited_ms)  # the broker's clock may be ahead of ours
        bucket = self._bucket(now_ms)
        number = _bin(waited_ms)
        bucket.waits[number] = bucket.waits.get(number, 0) + 1
        bucket.begun += 1
        self.waits.add(waited_ms / 1000)

    def done(self, in_all_ms: Millis, work_ms: Millis, now_ms: Millis) -> None:
        """Its work is finished, `in_all_ms` after its arrival."""
        bucket = self._bucket(now_ms)
        bucket.done += 1
        bucket.work_ms += work_ms
        bucket.within += self._within_ms is None or in_all_ms <= self._within_ms
        self.works.add(work_ms / 1000)

    def _bucket(self, now_ms: Millis) -> _Bucket:
        start = now_ms - now_ms % BUCKET_MS
        if not self._buckets or self._buckets[-1].start_ms < start:
            self._buckets.append(_Bucket(start))
            while self._buckets[0].start_ms <= now_ms - self._keep_ms - BUCKET_MS:
                self._buckets.popleft()
        return self._buckets[-1]

    def _since(self, window_ms: Millis, now_ms: Millis) -> list[_Bucket]:
        return [each for each in self._buckets if each.start_ms > now_ms - window_ms - BUCKET_MS]

    def quantile_s(self, part: float, now_ms: Millis, window_ms: Millis = 60_000) -> float | None:
        """So much of the messages begun in the window had waited at most so long; to 5 %."""
        merged: dict[int, int] = {}
        for bucket in self._since(window_ms, now_ms):
            for number, count in bucket.waits.items():
                merged[number] = merged.get(number, 0) + count
        total = sum(merged.values())
        passed = 0
        for number in sorted(merged):
            passed += merged[number]
            if passed >= part * total:
                return _middle_ms(number) / 1000
        return None

    def rate(self, now_ms: Millis, window_ms: Millis = 10_000) -> float:
        """Messages done in a second, over the window and the part of a bucket before it."""
        first_ms = now_ms - window_ms
        first_ms -= first_ms % BUCKET_MS
        done = sum(each.done for each in self._buckets if each.start_ms >= first_ms)
        return done / ((now_ms - first_ms) / 1000)

    def mean_work_s(self, now_ms: Millis, window_ms: Millis = 60_000) -> float | None:
        buckets = self._since(window_ms, now_ms)
        done = sum(each.done for each in buckets)
        return sum(each.work_ms for each in buckets) / done / 1000 if done else None

    def within(self, window_ms: Millis, now_ms: Millis) -> tuple[int, int]:
        """How many were done in the window, and how many of them within the target's time."""
        buckets = self._since(window_ms, now_ms)
        return sum(each.done for each in buckets), sum(each.within for each in buckets)


@dataclass(frozen=True, slots=True)
class Attainment:
    """How a target stands."""

    target: Target
    percent: float | None
    """Of the messages done in the window; None: too few to judge, and none is late."""
    done: int
    is_attained: bool
    is_alert: bool


@dataclass(frozen=True, slots=True)
class Alert:
    """What a callback gets: a target begins to be missed, or (`is_over`) is attained again."""

    pool: str
    level: str
    attainment: Attainment
    is_over: bool

    def __str__(self) -> str:
        target, percent = self.attainment.target, self.attainment.percent
        shown = "nothing is done" if percent is None else f"{percent:.1f} %"
        verb = "attained again" if self.is_over else "missed"
        return (
            f"{self.pool}/{self.level}: target {verb}: {shown} within {target.within_s:g} s, "
            f"promised {target.percent:g} %"
        )


class TargetWatch:
    """One level's target over time."""

    def __init__(self, target: Target, meter: Meter) -> None:
        self._target = target
        self._meter = meter
        self._missed_since_ms: Millis | None = None
        self._missed_ms: Millis = 0
        self.is_alert = False

    def look(self, oldest_s: float | None, now_ms: Millis) -> Attainment:
        """`oldest_s` is the age of the oldest waiting message, if that is known."""
        target = self._target
        done, within = self._meter.within(round(target.window_s * 1000), now_ms)
        percent: float | None = None
        if done >= target.at_least:
            percent = 100.0 * within / done
        elif done == 0 and oldest_s is not None and oldest_s > target.within_s:
            percent = 0.0
        is_attained = percent is None or percent >= target.percent
        if not is_attained:
            self._missed_ms = now_ms
            if self._missed_since_ms is None:
                self._missed_since_ms = now_ms
            self.is_alert |= now_ms - self._missed_since_ms >= target.for_s * 1000
        elif percent is not None or now_ms - self._missed_ms > target.window_s * 1000:
            # That there is nothing to judge for a moment (the late message is being worked on) ends
            # no alert.
            self._missed_since_ms = None
            self.is_alert = False
        return Attainment(target, percent, done, is_attained, self.is_alert)
