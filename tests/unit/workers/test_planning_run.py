"""The simulator against what queueing theory and the promises of the orders say. Always the same
chances, so what holds here holds."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import pytest

from tandembus.workers import wire
from tandembus.workers.options import Target
from tandembus.workers.planning import Form, Plan, PlannedLevel, Service, work
from tandembus.workers.planning_run import GAP_MS, FormResult, play, quantile, simulate

MEAN_S = 0.1
EXPONENTIAL = Service((MEAN_S,), is_exponential=True)


def plan(*rates: float, workers: int = 1, form: Form = "one-pool", seconds: float = 2_000) -> Plan:
    """Nothing is lost on the way, nobody looks: as the books have it."""
    levels = [
        PlannedLevel(f"level{number}", rate, EXPONENTIAL) for number, rate in enumerate(rates)
    ]
    return Plan(
        tuple(levels), workers=workers, forms=(form,), look_ms=0, trip_ms=0, seconds=seconds
    )


def only(found: Plan) -> FormResult:
    (form,) = simulate(found).forms
    return form


def test_one_queue_and_one_worker() -> None:
    """M/M/1: the mean wait is ρ/(1 − ρ) of a service, the 99th percentile follows from the law."""
    (level,) = only(plan(7.0)).levels
    assert level.mean_s == pytest.approx(MEAN_S * 0.7 / 0.3, rel=0.1)
    assert level.p99_s == pytest.approx(1.416, rel=0.15)  # 0.7 · e^(−3 t) = 0.01
    assert level.utilization == pytest.approx(0.7, rel=0.02)
    assert level.p50_s < level.p95_s < level.p99_s < level.max_s


def test_higher_levels_first_with_one_pool() -> None:
    """Message by message as a few lines say it that know nothing of queues, receives and pools: one
    worker takes the highest level, and of it the oldest message."""
    found = plan(3.0, 5.0, 1.0, seconds=500)
    arrivals = work(found)
    expected, waiting = dict[int, float](), list[tuple[int, int]]()
    coming, free_ms = list(reversed(arrivals)), 0.0
    while coming or waiting:
        if not waiting:
            free_ms = max(free_ms, coming[-1].at_ms)
        while coming and coming[-1].at_ms <= free_ms:
            arrival = coming.pop()
            heappush(waiting, (arrival.level, arrival.index))
        _, index = heappop(waiting)
        expected[index] = free_ms
        free_ms += arrivals[index].service_ms
    begun = play(found, "one-pool", arrivals, until_all_is_done=True)
    assert begun == [expected[index] for index in range(len(arrivals))]


def test_a_pool_a_level() -> None:
    """What one level gets is what it would get alone."""
    both = plan(7.0, 9.0, workers=2, form="pool-a-level", seconds=300)
    alone = plan(7.0, seconds=300)
    arrivals = work(both)
    begun = play(both, "pool-a-level", arrivals)
    of_the_first = [at for at, each in zip(begun, arrivals, strict=True) if each.level == 0]
    assert of_the_first == play(alone, "one-pool", work(alone))
    first, second = only(both).levels
    assert first.utilization < 0.8 < second.utilization


def test_shares_in_weighted_order() -> None:
    """More than all workers can do of each level: what is done is shared as it was planned."""
    found = plan(20.0, 20.0, form="weighted", seconds=500)
    found = replace(found, levels=(replace(found.levels[0], weight=3), found.levels[1]))
    begun = play(found, "weighted", arrivals := work(found))
    done = [arrivals[index].level for index, at in enumerate(begun) if at is not None]
    assert done.count(0) / done.count(1) == pytest.approx(3, rel=0.01)


def test_strict_order_starves_and_aging_does_not() -> None:
    """More high work than can be done: in strict order nothing low is ever begun, and with aging
    each of it after it has become equal, in the order of arrival."""
    found = replace(plan(11.0, 1.0, seconds=600), aging_s=20.0, warm_s=0.0)
    _, low = only(replace(found, forms=("strict",))).levels
    assert low.left > 0.98 * low.arrived
    assert low.max_s > 580
    high, low = only(replace(found, forms=("aged",))).levels
    assert low.left < 0.25 * low.arrived
    # From 20 s on nothing overtakes it: what was there before it is at most the whole backlog.
    behind_s = (12.0 * 600 - 10.0 * 600) / 10.0
    assert low.max_s <= 20 + behind_s
    assert high.max_s <= 20 + behind_s


def test_targets() -> None:
    """What is done within its time, of all that could be judged."""
    found = plan(7.0)
    level = replace(found.levels[0], target=Target(within_s=1.0))
    (result,) = only(replace(found, levels=(level,))).levels
    # M/M/1: the time to the end of the work is exponential, with rate μ − λ.
    assert result.attained_percent == pytest.approx(100 * (1 - 2.718281828**-3.0), abs=1.5)


def test_what_is_in_hand_cannot_be_overtaken() -> None:
    """A higher message of a native queue waits for what its pool has received already, a queue a
    level does not: the price of prefetch is in the figures."""
    found = replace(plan(2.0, 6.0, seconds=700), forms=("strict", "one-pool"))
    native, pool = simulate(found).forms
    assert native.levels[0].mean_s > pool.levels[0].mean_s
    deeper = only(replace(found, forms=("strict",), prefetch=20))
    assert deeper.levels[0].mean_s > 2 * native.levels[0].mean_s


@pytest.mark.parametrize("form", ["strict", "weighted", "aged", "one-pool", "pool-a-level"])
@pytest.mark.parametrize("prefetch", [1, 5])
def test_all_is_done_once_and_nobody_is_idle_for_long(form: Form, prefetch: int) -> None:
    """Every message is begun, after it arrived; no more at once than there are workers."""
    found = replace(plan(4.0, 9.0, 2.0, workers=3, seconds=200), prefetch=prefetch, trip_ms=4)
    arrivals = work(found)
    begun = play(found, form, arrivals, until_all_is_done=True)
    spans = []
    for arrival, at_ms in zip(arrivals, begun, strict=True):
        assert at_ms is not None
        assert at_ms >= arrival.at_ms
        spans += [(at_ms, 1), (at_ms + arrival.service_ms, -1)]
    busy = most = 0
    for _, change in sorted(spans):
        busy += change
        most = max(most, busy)
    assert most == 3


def test_the_way_to_the_broker_is_waited_for() -> None:
    """With one message in hand, a worker that is done has the next one already; the first one of
    an idle time has to come."""
    near, far = plan(1.0), replace(plan(1.0), trip_ms=100.0)
    differing_s = only(far).levels[0].mean_s - only(near).levels[0].mean_s
    assert 0.04 < differing_s < 0.08


def test_the_gap_is_that_of_the_receives() -> None:
    assert GAP_MS == wire.GAP_S * 1000


def test_a_quantile_is_a_value_that_was_there() -> None:
    assert quantile([], 0.5) == 0
    assert quantile([1.0], 0.99) == 1
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.75) == 3
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.76) == 4
