"""How large a pool should be, in a simulated hour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.workers.autoscale import Scaler, Seen
from tandembus.workers.options import Scale

pytestmark = pytest.mark.req("P8")

SCALE = Scale(min=1, max=50, waiting_per_worker=20, oldest_s=5)


@dataclass
class Life:
    sizes: list[int]
    ages: list[float]

    @property
    def reversals(self) -> int:
        """How often it turned from growing to shrinking or back."""
        turns = [
            (after > before) - (after < before)
            for before, after in pairwise(self.sizes)
            if after != before
        ]
        return sum(first != second for first, second in pairwise(turns))


def live(scale: Scale, rate: Callable[[int], float], work_s: float, seconds: int) -> Life:
    """A queue with arrivals of `rate(second)` a second, and workers that take `work_s` each."""
    scaler = Scaler(scale, scale.min, 0)
    life = Life([], [])
    arrived = done = busy_s = 0.0
    arrivals: list[float] = [0.0]
    for second in range(seconds):
        arrived += rate(second)
        arrivals.append(arrived)
        worked = min(arrived - done, scaler.size / work_s)
        done += worked
        busy_s += worked * work_s
        since = next(at for at, total in enumerate(arrivals) if total >= done)
        age = float(second - since) if arrived - done >= 1 else 0.0
        if (second + 1) % round(scale.every_s) == 0:
            seen = Seen(busy_s / scale.every_s, int(arrived - done), age)
            scaler.decide(seen, second * 1_000)
            busy_s = 0.0
        life.sizes.append(scaler.size)
        life.ages.append(age)
    return life


def test_a_step_of_ten_times_is_followed_and_comes_to_rest() -> None:
    """Ten times the load: the age is below its bound again, within the bounds, with no more than
    two reversals; and when the step is over the pool is small again."""
    life = live(SCALE, lambda s: 20.0 if 300 <= s < 1_800 else 2.0, work_s=0.5, seconds=3_600)
    assert all(SCALE.min <= size <= SCALE.max for size in life.sizes)
    assert life.reversals <= 2
    assert max(life.sizes[300:420]) >= 10
    assert max(life.ages[480:1_800]) <= 5
    assert life.sizes[-1] <= 3


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.1, 30),
    st.floats(0.05, 1.0),
    st.floats(0.05, 0.3),
    st.integers(1, 9),
)
def test_a_level_load_comes_to_rest(
    rate: float, work_s: float, tolerance: float, waiting: int
) -> None:
    """For any load that the pool can carry: after ten minutes its size changes no more."""
    scale = Scale(min=1, max=60, waiting_per_worker=waiting, oldest_s=5, tolerance=tolerance)
    life = live(scale, lambda _: rate, work_s, seconds=1_800)
    assert len(set(life.sizes[600:])) == 1
    assert life.sizes[-1] >= rate * work_s - 1e-6


def scaler(scale: Scale, size: int) -> Scaler:
    return Scaler(scale, size, 0)


def test_what_is_needed() -> None:
    """The most of what each says, within the bounds."""
    pool = scaler(SCALE, 10)
    assert pool.needed(Seen(busy=8)) == 10
    assert pool.needed(Seen(busy=0)) == 1
    assert pool.needed(Seen(busy=1, waiting=100)) == 5
    assert pool.needed(Seen(busy=1, oldest_s=10)) == 20
    assert pool.needed(Seen(busy=1, oldest_s=5)) == 2
    assert pool.needed(Seen(busy=1, waiting=1, is_target_missed=True)) == 15
    assert pool.needed(Seen(busy=1, is_target_missed=True)) == 2
    assert pool.needed(Seen(busy=999)) == 50


def test_it_grows_by_no_more_than_its_factor_and_then_rests() -> None:
    pool = scaler(Scale(min=1, max=50, up_cooldown_s=10), 4)
    assert pool.decide(Seen(busy=40), 1_000) == 8
    assert pool.decide(Seen(busy=40), 10_999) == 8
    assert pool.decide(Seen(busy=40), 11_000) == 16


def test_it_shrinks_to_the_most_of_the_last_time() -> None:
    pool = scaler(Scale(min=1, max=50, down_after_s=60), 20)
    for second in range(0, 60, 5):
        assert pool.decide(Seen(busy=8 if second == 30 else 1), second * 1_000) == 20
    assert pool.decide(Seen(busy=1), 60_000) == 10
    assert pool.decide(Seen(busy=1), 90_000) == 10
    assert pool.decide(Seen(busy=1), 91_000) == 2


def test_a_small_difference_is_none() -> None:
    pool = scaler(Scale(min=1, max=50, utilization=1, tolerance=0.1, down_after_s=0), 30)
    assert pool.decide(Seen(busy=32), 0) == 30
    assert pool.decide(Seen(busy=28), 1) == 30
    assert pool.decide(Seen(busy=27), 2) == 27


def test_a_pool_of_none_comes_back_for_one_message() -> None:
    pool = scaler(Scale(min=0, max=5, down_after_s=10), 1)
    assert pool.decide(Seen(busy=0), 0) == 1
    assert pool.decide(Seen(busy=0), 10_000) == 0
    assert pool.decide(Seen(busy=0, waiting=1), 20_000) == 1
