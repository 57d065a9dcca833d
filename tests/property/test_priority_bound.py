"""No message waits longer than docs/priority.md says (P3): for any arrivals, and for a day of more
high work than there are hands.

A queue of L levels is emptied at one message each `s`. A message of level l that finds n others
waiting is received after at most

    aged       (L - 1 - l) · a  +  (n + 1) · s
    weighted   ((n' + 1) / share + W) · s     n': of its own level; share: w / W, W: sum of weights
    strict     no bound

Short in pytest; a day, in virtual time on the real core, as `python -m
tests.property.test_priority_bound`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.changes import Mode
from tandembus.core import commands as c
from tandembus.core import effects as e
from tandembus.core.namespace import Namespace
from tandembus.settings import PrioritySettings, QueueSettings
from tests.property.judge import Letter

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE


def levels(
    count: int, aging: int | None = None, weights: tuple[int, ...] | None = None
) -> PrioritySettings:
    return PrioritySettings(count, "property", "level", (), aging, weights)


def aged_bound(priority: PrioritySettings, level: int, waiting: int, service_ms: int) -> int:
    assert priority.aging_ms_per_level is not None
    rises = (priority.levels - 1 - level) * priority.aging_ms_per_level
    return rises + (waiting + 1) * service_ms


def weighted_bound(priority: PrioritySettings, level: int, waiting: int, service_ms: int) -> int:
    """`waiting`: of its own level."""
    assert priority.weights is not None
    whole = sum(priority.weights)
    return (-(-(waiting + 1) * whole // priority.weights[level]) + whole) * service_ms


@dataclass
class Queue:
    """A priority queue with one consumer, which takes a message each `service_ms`."""

    priority: PrioritySettings
    service_ms: int
    now: int = 1_000_000
    sent: dict[int, tuple[int, int, int | None]] = field(default_factory=dict)
    """Of what waits: when, which level, and its bound."""
    waiting: Counter[int] = field(default_factory=Counter)
    """By level."""
    received: Counter[int] = field(default_factory=Counter)
    longest: Counter[int] = field(default_factory=Counter)
    bounds: Counter[int] = field(default_factory=Counter)
    """The largest that any message had, by level."""

    def __post_init__(self) -> None:
        self.namespace = Namespace()
        settings = QueueSettings(priority=self.priority)
        self.namespace.apply(c.CreateQueue("q", settings), self.now)
        self.namespace.apply(c.Attach(1, "q", Mode.RECEIVE_AND_DELETE), self.now)

    def bound(self, level: int) -> int | None:
        if self.priority.aging_ms_per_level is not None:
            return aged_bound(self.priority, level, len(self.sent), self.service_ms)
        if self.priority.weights is not None:
            return weighted_bound(self.priority, level, self.waiting[level], self.service_ms)
        return None

    def send(self, level: int, count: int = 1) -> None:
        letters = [Letter(b"m", properties={"level": level})] * count
        numbers = self.namespace.apply(c.Send("q", letters), self.now).reply
        assert isinstance(numbers, list | tuple)
        for number in numbers:
            bound = self.bound(level)
            self.sent[number] = (self.now, level, bound)
            self.waiting[level] += 1
            if bound is not None:
                self.bounds[level] = max(self.bounds[level], bound)

    def serve(self) -> int | None:
        """The level of the next message, a moment later; None: nothing waits. Raises
        AssertionError if it has waited too long, or if another one does."""
        self.now += self.service_ms
        outcome = self.namespace.apply(c.Flow(1, 1, self.now, drain=True), self.now)
        for effect in outcome.effects:
            assert isinstance(effect, e.Deliver)
            (delivery,) = effect.deliveries
            at, level, bound = self.sent.pop(delivery.sequence_number)
            waited = self.now - at
            assert bound is None or waited <= bound
            self.waiting[level] -= 1
            self.received[level] += 1
            self.longest[level] = max(self.longest[level], waited)
            return level
        return None

    def check_the_rest(self) -> None:
        """What still waits has not waited too long, either."""
        for at, level, bound in self.sent.values():
            waited = self.now - at
            assert bound is None or waited <= bound
            self.longest[level] = max(self.longest[level], waited)


arrivals = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 5), max_size=4)), min_size=1, max_size=80
)


@pytest.mark.req("P3")
@settings(max_examples=120, deadline=None)
@given(
    arrivals=arrivals,
    count=st.integers(2, 6),
    aging=st.integers(1, 20),
    service=st.integers(1, 10),
    weights=st.none() | st.lists(st.integers(1, 9), min_size=6, max_size=6),
)
def test_no_message_waits_longer_than_its_bound(
    arrivals: list[tuple[int, list[int]]],
    count: int,
    aging: int,
    service: int,
    weights: list[int] | None,
) -> None:
    """Whatever comes, and however much of it: with aging, and with weights."""
    if weights is None:
        priority = levels(count, aging * SECOND // 4)
    else:
        priority = levels(count, None, tuple(weights[:count]))
    queue = Queue(priority, service * 100)
    for rests, batch in arrivals:
        for level in batch:
            queue.send(min(level, count - 1))
        for _ in range(rests):
            queue.serve()
    while queue.serve() is not None:
        pass
    queue.check_the_rest()
    assert not queue.sent


@dataclass(frozen=True)
class Day:
    """High work never runs out: as soon as one is taken, another one is there."""

    hours: float = 24
    per_second: int = 10
    backlog: int = 1_000
    count: int = 10
    aging_ms: int = MINUTE
    low_every_ms: int = 10 * SECOND

    def orders(self) -> Iterator[tuple[str, PrioritySettings]]:
        yield "strict", levels(self.count)
        yield f"aged, {self.aging_ms // SECOND} s a level", levels(self.count, self.aging_ms)
        weights = tuple(range(1, self.count + 1))
        yield f"weighted 1:2:…:{self.count}", levels(self.count, None, weights)

    def run(self, priority: PrioritySettings) -> Queue:
        queue = Queue(priority, SECOND // self.per_second)
        top, end = self.count - 1, queue.now + round(self.hours * HOUR)
        low_at = queue.now
        queue.send(top, self.backlog)
        while queue.now < end:
            if queue.now >= low_at:
                queue.send(0)
                low_at += self.low_every_ms
            if queue.serve() == top:
                queue.send(top)
        queue.check_the_rest()
        return queue


@pytest.mark.req("P3")
def test_an_hour_of_too_much_high_work() -> None:
    """Strict, low work is not received at all; aged and weighted it is, within the bound, and the
    bound is not far off. High work still has nearly all that it had."""
    day = Day(hours=1, per_second=2, backlog=100, count=4, aging_ms=30 * SECOND)
    strict, aged, weighted = (day.run(priority) for _, priority in day.orders())
    assert strict.received[0] == 0
    assert strict.longest[0] >= HOUR - day.low_every_ms
    assert aged.received[0] > 340
    assert 0.5 < aged.longest[0] / aged.bounds[0] <= 1
    assert weighted.received[0] > 340
    assert weighted.longest[0] <= weighted.bounds[0]
    for queue in (aged, weighted):
        assert queue.received[3] > 0.94 * strict.received[3]


def shown(ms: int) -> str:
    seconds = ms / SECOND
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.1f} min"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--per-second", type=int, default=10)
    parser.add_argument("--backlog", type=int, default=1_000)
    options = parser.parse_args()
    day = Day(options.hours, options.per_second, options.backlog)
    print(
        f"{day.count} levels, {day.per_second} messages/s received, {day.backlog:,} high messages "
        f"always waiting, a low one each {day.low_every_ms // SECOND} s, {day.hours:g} hours"
    )
    head = ("order", "high received", "low received", "low waiting", "longest wait of low", "bound")
    print(f"{head[0]:<22}{head[1]:>14}{head[2]:>14}{head[3]:>13}{head[4]:>21}{head[5]:>12}")
    began = time.monotonic()
    for name, priority in day.orders():
        queue = day.run(priority)
        bound = shown(queue.bounds[0]) if queue.bounds[0] else "none"
        print(
            f"{name:<22}{queue.received[day.count - 1]:>14,}{queue.received[0]:>14,}"
            f"{queue.waiting[0]:>13,}{shown(queue.longest[0]):>21}{bound:>12}",
            flush=True,
        )
    print(f"no message waited longer than its bound; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
