"""The story of `make autoscale` with a clock that the test moves: the real overseer, scaler, meters
and targets, over a queue and workers that are numbers."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection

import pytest

from tandembus.clock import ManualClock
from tandembus.workers.depth import Depth
from tandembus.workers.options import Level, PoolOptions
from tandembus.workers.running import Overseer
from tests.unit.workers.test_running import FakePool
from tests.workers.autoscale import LOW_RATE, SCALE, SERVICE_S, STEP, TARGET, Story, reversals

TICK_MS = 50

pytestmark = pytest.mark.req("P8")


class VirtualPool(FakePool):
    """Its queue, and workers that take their time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(
            PoolOptions("work", (Level("all", queue="q", target=TARGET),), scale=SCALE)
        )
        self.waiting: deque[int] = deque()
        self.running: list[tuple[int, int]] = []
        self.done = 0
        self._clock = clock

    def tick(self) -> None:
        now, (meter,) = self._clock.now_ms(), self.meters
        work_ms = round(SERVICE_S * 1000)
        for begun_ms, arrived_ms in list(self.running):
            if now >= begun_ms + work_ms:
                self.running.remove((begun_ms, arrived_ms))
                meter.done(now - arrived_ms, work_ms, now)
                self.done += 1
        while self.waiting and len(self.running) < self.size:
            arrived_ms = self.waiting.popleft()
            self.running.append((now, arrived_ms))
            meter.begun(now - arrived_ms, now)
        self.busy_s += len(self.running) * TICK_MS / 1000


class VirtualLooker:
    def __init__(self, pool: VirtualPool, clock: ManualClock) -> None:
        self.operations: Counter[str] = Counter()
        self._pool = pool
        self._clock = clock

    async def look(self, level: Level, begun: Collection[int]) -> Depth:
        waiting = self._pool.waiting
        oldest = (self._clock.now_ms() - waiting[0]) / 1000 if waiting else None
        return Depth(len(waiting), oldest)

    async def close(self) -> None: ...


def live(rate_at: Callable[[float], float], story: Story, seconds: int) -> None:
    """Of such a pool: it is ticked, fed and looked at."""
    clock = ManualClock()
    pool = VirtualPool(clock)
    looker = VirtualLooker(pool, clock)
    overseer = Overseer([pool], looker, on_alert=story.alerts.append, clock=clock)
    due_s = 0.0
    for tick in range(seconds * 1000 // TICK_MS):
        at_s = tick * TICK_MS / 1000
        while due_s <= at_s < seconds - 1:  # the last ones have time to be done
            pool.waiting.append(clock.now_ms())
            story.sent += 1
            due_s += 1 / rate_at(due_s)
        pool.tick()
        if tick % round(SCALE.every_s * 1000 / TICK_MS) == 0:
            asyncio.run(overseer.look())
            found = overseer.status()[0].levels[0].attainment
            assert found is not None
            story.times_s.append(at_s)
            story.sizes.append(pool.size)
            story.attained.append(found.is_attained)
        clock.advance(TICK_MS)
    story.done = pool.done


def test_a_step_of_ten_times() -> None:
    """The target is missed, the pool grows, it is attained again, the pool shrinks again: never
    outside of its bounds, and it turns once."""
    story = Story(15, 75)
    live(lambda at_s: LOW_RATE * (STEP if 15 <= at_s < 75 else 1), story, seconds=120)
    assert story.problems == []
    assert [alert.is_over for alert in story.alerts] == [False, True]
    assert story.attained_again_s is not None
    assert 5 < story.attained_again_s < 30
    assert max(story.sizes) >= LOW_RATE * STEP * SERVICE_S
    assert story.sizes[-1] <= 2
    assert reversals(story.sizes) == 1


@pytest.mark.parametrize("rate", [1.0, 7.0, 33.0, 61.0])
def test_a_level_load_is_not_followed_up_and_down(rate: float) -> None:
    """It comes to the size that the load needs, and stays there."""
    story = Story(0, 120)
    live(lambda _: rate, story, seconds=120)
    assert reversals(story.sizes) <= 1
    assert len(set(story.sizes[-80:])) == 1
    assert story.sizes[-1] >= rate * SERVICE_S
    assert story.attained[-1]


def test_a_story_says_what_is_wrong() -> None:
    story = Story(1, 4, [0, 1, 2, 3], [1, 30, 2, 3], [True, True, True, False], sent=2, done=1)
    assert story.problems == [
        "the pool left its bounds",
        "the target was not attained again",
        "2 sent, 1 done",
    ]
    story = Story(0, 4, [0, 1, 2, 3], [1, 2, 1, 2, 1], [True, False, False, True])
    assert story.problems == ["it turned 3 times"]
    assert story.attained_again_s == 2
