"""Plans: what is refused, what work follows, what is warned of."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest

from tandembus.errors import ArgumentError
from tandembus.workers.planning import (
    MAX_MESSAGES,
    Arrival,
    Plan,
    PlannedLevel,
    Service,
    warnings,
    work,
)

FIXED = Service((0.1,))
HIGH = PlannedLevel("high", 5.0, Service((0.1,), is_exponential=True))
LOW = PlannedLevel("low", 10.0, FIXED)
PLAN = Plan((HIGH, LOW), workers=3, seconds=1_000)


def test_the_same_seed_is_the_same_work() -> None:
    """In the order of time, each level at its rate; another level or seed is other work, and what
    one level does is no matter of the others."""
    first = work(PLAN)
    assert first == work(PLAN)
    assert first != work(replace(PLAN, seed=2))
    assert [each.index for each in first] == list(range(len(first)))
    assert all(before.at_ms <= after.at_ms for before, after in pairwise(first))
    assert sum(each.level == 0 for each in first) == pytest.approx(5_000, rel=0.05)
    assert sum(each.level == 1 for each in first) == pytest.approx(10_000, rel=0.05)
    alone = work(Plan((HIGH,), workers=1, seconds=1_000))
    assert _of(first, 0) == _of(alone, 0)


def _of(arrivals: list[Arrival], level: int) -> list[tuple[float, float]]:
    return [(each.at_ms, each.service_ms) for each in arrivals if each.level == level]


def test_how_long_a_handler_takes() -> None:
    """Always the same, exponential, or as it was measured."""
    levels = (
        PlannedLevel("fixed", 20, FIXED),
        PlannedLevel("exponential", 20, Service((0.1,), is_exponential=True)),
        PlannedLevel("measured", 20, Service((0.05, 0.05, 0.2))),
    )
    arrivals = work(Plan(levels, workers=1, seconds=500))
    fixed, exponential, measured = (
        [each.service_ms for each in arrivals if each.level == level] for level in range(3)
    )
    assert set(fixed) == {100.0}
    assert sum(exponential) / len(exponential) == pytest.approx(100, rel=0.05)
    assert sum(each > 100 for each in exponential) / len(exponential) == pytest.approx(0.37, 0.1)
    assert set(measured) == {50.0, 200.0}
    assert measured.count(200.0) / len(measured) == pytest.approx(1 / 3, rel=0.1)
    assert levels[2].service.mean_s == pytest.approx(0.1)


def test_without_a_duration_there_is_enough_of_each_level() -> None:
    """And not more than one waits for."""
    assert Plan((HIGH, LOW), workers=1).duration_s == 1_334
    rare = replace(LOW, rate=0.02)
    assert Plan((HIGH, rare), workers=1).duration_s == 15_000
    rarest = replace(LOW, rate=0.0001)
    assert Plan((HIGH, rarest), workers=1).duration_s < 50_000
    assert PLAN.warm_until_s == 100


def test_who_works_on_what() -> None:
    """Workers of each level: as given, or by their load; in all, as given, or their sum."""
    assert PLAN.sizes() == (1, 2)
    assert replace(PLAN, workers=2).sizes() == (1, 1)
    assert replace(PLAN, workers=1).sizes() is None
    given = (replace(HIGH, workers=4), replace(LOW, workers=1))
    assert Plan(given).sizes() == (4, 1)
    assert Plan(given).size == 5
    assert Plan(given, workers=2).size == 2
    assert PLAN.load == pytest.approx(1.5)


def test_shares() -> None:
    """Of a native queue, which counts levels from the lowest."""
    assert PLAN.priority.weights == (1, 2)
    assert PLAN.priority.aging_ms_per_level == 30_000
    assert replace(PLAN, levels=(replace(HIGH, weight=9), LOW)).priority.weights == (1, 9)


def test_an_overload_is_said() -> None:
    """Who suffers, how many workers would do; only for the forms that are asked for."""
    assert warnings(PLAN) == []
    both, grow, split = warnings(replace(PLAN, workers=1))
    assert "1.50 workers are kept busy, and there are 1 (2 would do)" in both
    assert "at the cost of 'low' and below" in both
    assert "the figures are those of 1,000 s" in grow
    assert "pool-a-level is left out: 1 workers for 2 levels" in split
    own, grow = warnings(replace(PLAN, workers=2))
    assert own.startswith("overloaded with a pool a level: 'low' keeps 1.00 workers busy")
    assert warnings(replace(PLAN, workers=2, forms=("strict",))) == []


@pytest.mark.parametrize("tenths", [(3, 6, 9, 2), (1, 2, 7), (1,) * 10, (7, 1, 2), (9, 8, 3)])
def test_fr11_loads_that_fill_the_workers_exactly(tenths: tuple[int, ...]) -> None:
    """In every order, on every Python: it is an overload, and of a level that is there. Sums of
    tenths are not exact, and `sum` rounds in another way from Python 3.12 on."""
    one_second = Service((1.0,))
    for order in set(permutations(tenths[:4])):
        levels = [
            PlannedLevel(f"level {number}", each / 10, one_second)
            for number, each in enumerate([*order, *tenths[4:]])
        ]
        plan = Plan(tuple(levels), workers=sum(tenths) // 10, seconds=100, forms=("strict",))
        assert plan.load == plan.size
        assert f"at the cost of '{levels[-1].name}' and below" in warnings(plan)[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"levels": ()}, "1 to 32 levels, not 0"),
        ({"levels": (HIGH, HIGH)}, "two levels of one name"),
        ({"levels": (HIGH, replace(LOW, workers=1))}, "for all levels, or for none"),
        ({"levels": [replace(HIGH, name=str(each)) for each in range(33)]}, "1 to 32 levels"),
        ({"workers": None}, "workers is missing"),
        ({"workers": 0}, "workers is"),
        ({"prefetch": 0}, "prefetch is"),
        ({"look_ms": -1}, "look_ms is"),
        ({"trip_ms": -1}, "trip_ms is"),
        ({"aging_s": 0.0}, "aging_s is"),
        ({"forms": ()}, "no form"),
        ({"forms": ("fair",)}, "no form 'fair'"),
        ({"seconds": 0.0}, "seconds is"),
        ({"warm_s": 1_000.0}, "warm_s is"),
        ({"seconds": MAX_MESSAGES / 14}, "too many to simulate"),
    ],
)
def test_what_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        replace(PLAN, **change)


def test_what_is_refused_of_a_level() -> None:
    for wrong in (
        lambda: replace(HIGH, name=""),
        lambda: replace(HIGH, rate=0),
        lambda: replace(HIGH, workers=0),
        lambda: replace(HIGH, weight=0),
        lambda: Service(()),
        lambda: Service((0.1, 0.0)),
    ):
        with pytest.raises(ArgumentError):
            wrong()
