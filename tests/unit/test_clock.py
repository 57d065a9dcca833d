"""`clock.py`: time that only goes forward."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from tandembus.clock import NS_PER_MS, ManualClock, MovableClock, SystemClock

DAY_NS = 86_400_000 * NS_PER_MS


class Machine:
    """The two clocks of a machine, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steady_ns = 5_000_000_000
        self.wall_ns = 1_700_000_000_000_000_000
        monkeypatch.setattr(time, "clock_gettime_ns", lambda _: self.steady_ns)
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ns)

    def pass_ms(self, ms: int) -> None:
        self.steady_ns += ms * NS_PER_MS
        self.wall_ns += ms * NS_PER_MS


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_it_tells_the_wall_clock(machine: Machine) -> None:
    clock = SystemClock()
    machine.pass_ms(1_234)
    assert clock.now_ms() == 1_700_000_001_234


@pytest.mark.req("S4")
@pytest.mark.parametrize("step_ns", [-DAY_NS, DAY_NS])
def test_a_step_of_the_wall_clock_is_worn_off_slowly(machine: Machine, step_ns: int) -> None:
    """Time never runs backwards, and a lock of 60 s lasts 54 to 66 s, whatever the wall clock
    does."""
    clock = SystemClock()
    machine.pass_ms(1)
    times = [clock.now_ms()]
    machine.wall_ns += step_ns
    for _ in range(60):
        machine.pass_ms(1_000)
        times.append(clock.now_ms())
    assert all(a <= b for a, b in pairwise(times))
    assert abs(times[-1] - times[0] - 60_000) <= 6_001  # whole milliseconds
    assert times[-1] - times[0] != 60_000


def test_a_small_difference_is_worn_off_completely(machine: Machine) -> None:
    clock = SystemClock()
    machine.wall_ns += 50 * NS_PER_MS
    machine.pass_ms(10_000)
    assert clock.now_ms() == machine.wall_ns // NS_PER_MS


def test_it_is_not_before_what_the_log_says(machine: Machine) -> None:
    """A former life whose wall clock was ahead: time goes on from there, slower."""
    clock = SystemClock()
    ahead = clock.now_ms() + 3_600_000
    clock.not_before(ahead)
    assert clock.now_ms() == ahead
    machine.pass_ms(10_000)
    assert clock.now_ms() == ahead + 9_000
    clock.not_before(5)
    assert clock.now_ms() == ahead + 9_000


def test_the_real_one() -> None:
    clock = SystemClock()
    times = [clock.now_ms() for _ in range(1_000)]
    assert times == sorted(times)
    assert abs(times[-1] - time.time_ns() // NS_PER_MS) < 5_000
    assert clock.stopwatch_ns() <= clock.stopwatch_ns()
    assert clock.random_bits(64) != clock.random_bits(64)


def test_the_manual_one() -> None:
    clock = ManualClock(1_000, seed=3)
    clock.advance(5)
    assert clock.now_ms() == 1_005
    clock.not_before(2_000)
    clock.not_before(1_500)
    assert clock.now_ms() == 2_000
    first, second = clock.stopwatch_ns(), clock.stopwatch_ns()
    assert 2_000 * NS_PER_MS < first < second < 2_001 * NS_PER_MS
    assert clock.random_bits(64) == ManualClock(seed=3).random_bits(64)
    with pytest.raises(AssertionError):
        clock.advance(-1)


def test_a_clock_that_tests_move(machine: Machine) -> None:
    """Real time passes on it, and what a test adds, stays; never backwards."""
    clock = MovableClock()
    began = clock.now_ms()
    machine.pass_ms(1_000)
    clock.advance(60_000)
    assert clock.now_ms() == began + 61_000
    assert clock.moved_ms == 60_000
    clock.not_before(began)
    assert clock.now_ms() == began + 61_000
    clock.not_before(began + 100_000)
    machine.pass_ms(5)
    assert clock.now_ms() == began + 100_005
    assert clock.random_bits(64) != clock.random_bits(64)
    assert clock.stopwatch_ns() <= clock.stopwatch_ns()
    with pytest.raises(AssertionError):
        clock.advance(-1)
