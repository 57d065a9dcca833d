"""Who is served next, and who makes room."""

from __future__ import annotations

import heapq
from collections import deque
from enum import Enum
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.workers.order import OPENING_MS, Order, Running, Serve, Wait

LOOK = 100
HIGH, LOW = 0, 1

pytestmark = pytest.mark.req("P4")


def order(size: int = 1, levels: int = 2, prefetch: int = 1) -> Order[str]:
    return Order(size, [prefetch] * levels, LOOK, 0)


def test_the_highest_in_hand_is_served() -> None:
    """Whatever came first."""
    pool = order(size=2)
    pool.arrived(LOW, "low", 0, 0)
    pool.arrived(HIGH, "high", 0, 0)
    assert pool.next(0) == Serve(HIGH, "high")
    assert pool.room(HIGH) == 1
    assert pool.room(LOW) == 0


def test_a_lower_message_waits_until_a_higher_queue_is_known_to_be_empty() -> None:
    """A queue that was asked has `look_ms` to answer; after that its silence counts."""
    pool = order()
    pool.arrived(LOW, "low", 0, 0)
    assert pool.next(0) == Wait(OPENING_MS)
    pool.asked(HIGH, 10)
    assert pool.next(20) == Wait(110)
    assert pool.next(109) == Wait(110)
    assert pool.next(110) == Serve(LOW, "low")


def test_asking_again_after_silence_is_the_same_question() -> None:
    """A long poll that ends and begins again does not hold lower work up."""
    pool = order()
    pool.asked(HIGH, 0)
    pool.answered(HIGH)
    pool.asked(HIGH, 5_000)
    pool.arrived(LOW, "low", 0, 0)
    assert pool.next(5_000) == Serve(LOW, "low")


def test_where_one_was_waiting_others_may_be() -> None:
    """After a high message that had waited, its queue is asked before anything lower."""
    pool = order(size=2)
    pool.asked(HIGH, 0)
    pool.arrived(LOW, "low", 0, 0)
    pool.arrived(HIGH, "high", 0, 10)
    pool.answered(HIGH)
    assert pool.next(500) == Serve(HIGH, "high")
    assert pool.next(500) == Wait(500 + OPENING_MS)
    pool.asked(HIGH, 502)
    assert pool.next(502) == Wait(602)


@pytest.mark.parametrize("ahead", [0, 3_600_000, -3_600_000])
def test_a_message_that_has_just_arrived_leaves_nothing_behind(ahead: int) -> None:
    """A trickle of high work does not keep idle workers from low work, whatever the difference of
    the clocks: the first message into an empty queue tells it."""
    pool = order(size=3, prefetch=9)
    pool.asked(HIGH, 0)
    for item in "abc":
        pool.arrived(LOW, item, 0, 0)
    pool.arrived(HIGH, "first", 500 + ahead, 500)
    pool.answered(HIGH)
    assert pool.next(500) == Serve(HIGH, "first")
    assert pool.next(500) == Serve(LOW, "a")
    pool.asked(HIGH, 500)
    pool.arrived(HIGH, "second", 540 + ahead, 542)
    pool.answered(HIGH)
    assert pool.next(542) == Serve(HIGH, "second")
    pool.busy = 0
    assert pool.next(542) == Serve(LOW, "b")
    pool.asked(HIGH, 542)
    pool.arrived(HIGH, "waited", 600 + ahead, 601)
    pool.answered(HIGH)
    assert pool.next(701) == Serve(HIGH, "waited")
    assert pool.next(701) == Wait(701 + OPENING_MS)


def test_without_a_measure_every_message_counts_as_old() -> None:
    """A backlog at the start: the broker's clock may be anything."""
    pool = order(size=2)
    pool.arrived(LOW, "low", 0, 0)
    pool.asked(HIGH, 0)
    pool.arrived(HIGH, "high", 20, 20)
    pool.answered(HIGH)
    assert pool.next(20) == Serve(HIGH, "high")
    assert pool.next(20) == Wait(20 + OPENING_MS)


def test_nobody_waits_for_a_level_that_is_absent() -> None:
    """Suspended, or not to be reached."""
    pool = order()
    pool.arrived(LOW, "low", 0, 0)
    pool.absent(HIGH)
    assert pool.next(0) == Serve(LOW, "low")


def test_without_a_free_worker_nothing_is_begun() -> None:
    """Also not when a pool has become smaller than what is busy."""
    pool = order(size=2)
    for item in "ab":
        pool.arrived(HIGH, item, 0, 0)
        assert isinstance(pool.next(0), Serve)
    pool.size = 1
    pool.arrived(HIGH, "c", 0, 0)
    assert pool.next(0) is None
    pool.finished()
    assert pool.next(0) is None
    pool.finished()
    assert pool.next(0) == Serve(HIGH, "c")


def test_what_is_in_hand_can_be_taken_out() -> None:
    """A lost lock, a level that is suspended."""
    pool = order(prefetch=2)
    pool.arrived(HIGH, "a", 0, 0)
    pool.arrived(HIGH, "b", 0, 0)
    assert pool.removed(HIGH, "a")
    assert not pool.removed(HIGH, "a")
    assert pool.held(HIGH) == 1
    assert pool.emptied(HIGH) == ["b"]
    assert pool.room(HIGH) == 2


# --- preemption -----------------------------------------------------------------------------------


def running(
    key: int, level: int, *, begun: int = 0, willing: bool = True, asked: bool = False
) -> Running:
    return Running(key, level, begun, willing, asked)


def busy(size: int, held: list[int], levels: int = 3) -> Order[str]:
    pool = order(size=size, levels=levels, prefetch=9)
    pool.busy = size
    for level in held:
        pool.arrived(level, "x", 0, 0)
    return pool


@pytest.mark.req("P6")
def test_the_lowest_and_latest_makes_room() -> None:
    """It loses least."""
    jobs = [running(1, 1), running(2, 2, begun=5), running(3, 2, begun=9)]
    assert busy(3, [0]).victims(jobs) == [3]
    assert busy(3, [0, 0]).victims(jobs) == [3, 2]


@pytest.mark.req("P6")
@pytest.mark.parametrize(
    ("held", "jobs"),
    [
        ([0], [running(1, 0), running(2, 0)]),
        ([1], [running(1, 1), running(2, 0)]),
        ([0], [running(1, 2, willing=False), running(2, 2, willing=False)]),
        ([0], [running(1, 2, asked=True), running(2, 2)]),
        ([], [running(1, 2), running(2, 2)]),
    ],
    ids=["nothing lower", "the same level", "nobody is willing", "one is asked already", "no need"],
)
def test_nobody_makes_room_without_need(held: list[int], jobs: list[Running]) -> None:
    """Equal work is never interrupted, and no more than there is work to take the places."""
    assert busy(2, held).victims(jobs) == []


@pytest.mark.req("P6")
def test_a_free_worker_spares_everybody() -> None:
    pool = busy(2, [0])
    pool.busy = 1
    assert pool.victims([running(1, 2)]) == []


# --- any arrivals ---------------------------------------------------------------------------------


class Asking(Enum):
    """What a level's receive is doing."""

    NO = "no"
    FLOW = "on its way to the broker"
    WAITING = "at the broker"
    ANSWER = "on its way back"


class Model:
    """Queues behind a way of `rtt` ms, and a pool that asks as its shell does."""

    def __init__(
        self, levels: int, size: int, prefetch: int, rtt: int, skew: int, works: list[int]
    ) -> None:
        self.skew = skew
        """The broker's clock before the pool's."""
        self.pool: Order[int] = Order(size, [prefetch] * levels, LOOK, 0)
        self.queues: list[deque[int]] = [deque() for _ in range(levels)]
        self.asking = [Asking.NO] * levels
        self.rtt, self.works = rtt, works
        self.events: list[tuple[int, int, str, int, int]] = []
        self.numbers = count()
        self.now = 0
        self.since: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        """Message → level, from its arrival until it is begun."""
        self.begun: list[int] = []

    def at(self, when: int, kind: str, level: int, item: int = 0) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), kind, level, item))

    def run(self) -> None:
        self.turn()
        while self.events:
            self.now, _, kind, level, item = heapq.heappop(self.events)
            match kind:
                case "send":
                    self.queues[level].append(item)
                    self.since[item], self.waiting[item] = self.now, level
                case "flow":
                    self.asking[level] = Asking.WAITING
                case "answer":
                    self.asking[level] = Asking.NO
                    self.pool.arrived(level, item, self.since[item] + self.skew, self.now)
                    self.pool.answered(level)
                case "done":
                    self.pool.finished()
            self.broker()
            self.turn()

    def broker(self) -> None:
        for level, queue in enumerate(self.queues):
            if self.asking[level] is Asking.WAITING and queue:
                self.asking[level] = Asking.ANSWER
                self.at(self.now + self.rtt // 2, "answer", level, queue.popleft())

    def turn(self) -> None:
        while True:
            for level in range(len(self.queues)):
                if self.asking[level] is Asking.NO and self.pool.room(level) > 0:
                    self.asking[level] = Asking.FLOW
                    self.pool.asked(level, self.now)
                    self.at(self.now + self.rtt // 2, "flow", level)
            match self.pool.next(self.now):
                case Serve(level, item):
                    del self.waiting[item]
                    self.check(level)
                    self.begun.append(item)
                    self.at(self.now + self.works[item % len(self.works)], "done", level)
                case Wait(until):
                    self.at(until, "look", 0)
                    return
                case None:
                    return

    def check(self, begun: int) -> None:
        for item, level in self.waiting.items():
            # The one that was served before it may have seemed younger by half the way, and the
            # question for this one goes there and back.
            allowed = LOOK + self.rtt + self.rtt // 2
            assert level >= begun or self.now - self.since[item] <= allowed


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3_000)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 80),
    st.sampled_from([0, 5, -1_000, 600_000]),
    st.lists(st.integers(0, 400), min_size=1, max_size=5),
)
def test_no_message_is_begun_while_a_higher_one_waits(
    sends: list[tuple[int, int]], size: int, prefetch: int, rtt: int, skew: int, works: list[int]
) -> None:
    """For any arrivals, service times, clocks and way to the broker: when a message is begun, none
    of a higher level has been waiting for longer than `look_ms` and the way there, back and there
    again; and all are begun."""
    model = Model(3, size, prefetch, rtt, skew, works)
    for item, (level, when) in enumerate(sends):
        model.at(when, "send", level, item)
    model.run()
    assert sorted(model.begun) == list(range(len(sends)))
