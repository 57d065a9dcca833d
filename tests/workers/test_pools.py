"""Pools against a real broker: order, outcomes, locks, the end, what can be changed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from tandembus.clock import MovableClock
from tandembus.errors import ArgumentError
from tandembus.workers import (
    Abandon,
    DailyWindow,
    DeadLetter,
    Defer,
    Level,
    Outcome,
    PermanentError,
    PoolOptions,
    Worker,
)
from tests.workers.bus import Bus, Holding, Left, Recorder, options, running, until


@pytest.mark.req("P4")
@pytest.mark.parametrize("prefetch", [1, 5])
def test_one_pool_serves_higher_queues_first(bus: Bus, prefetch: int) -> None:
    """Three queues with twenty messages each, sent in the wrong order: one worker gets them by
    level, and in the order of each queue."""
    high, middle, low = bus.queue(), bus.queue(), bus.queue()

    async def test(client: ServiceBusClient) -> None:
        for queue, name in ((low, "l"), (middle, "m"), (high, "h")):
            bus.send(queue, [f"{name}{number}" for number in range(20)])
        worker = Recorder()
        how = options(high, middle, low, prefetch=prefetch, look_ms=1_000)
        async with running(worker, client, how) as pool:
            await until(lambda: len(worker.seen) == 60)
        assert worker.seen == [f"{name}{number}" for name in "hml" for number in range(20)]
        assert [dict(each) for each in pool.outcomes] == [{"Complete": 20}] * 3
        assert bus.left(low) == []

    bus.run(test)


@pytest.mark.req("P4")
def test_what_a_busy_pool_has_in_hand_is_bounded(bus: Bus) -> None:
    """One message with the worker, and `prefetch` of each level: all others are there for others,
    and a higher one that comes is next."""
    high, low = bus.queue(), bus.queue()

    async def test(client: ServiceBusClient) -> None:
        bus.send(low, [f"l{number}" for number in range(10)])
        worker = Holding()
        worker.is_preemptible = False  # type: ignore[misc]
        async with running(worker, client, options(high, low)) as pool:
            await until(lambda: pool.sources[1].taken == 2)
            assert bus.bodies(low) == [f"l{number}" for number in range(2, 10)]
            bus.send(high, ["h"])
            await until(lambda: pool.sources[0].taken == 1)
            worker.is_open = True
            await until(lambda: len(worker.seen) == 3)
        assert worker.seen == ["l0", "h", "l1"]

    bus.run(test)


class Moody(Worker):
    """Does what a message says."""

    dead_letter_on = (ZeroDivisionError,)

    def process_message(self, message: Any) -> Outcome | None:
        assert threading.current_thread() is not threading.main_thread()
        match str(message):
            case "abandon once" if self.work.delivery_count == 0:
                return Abandon()
            case "fail once" if self.work.delivery_count == 0:
                raise OSError("not now")
            case "dead":
                return DeadLetter("Bad", "very")
            case "permanent":
                raise PermanentError("Unreadable", "no JSON")
            case "divide":
                return 1 // 0  # type: ignore[return-value]
            case "defer":
                return Defer()
            case "nonsense":
                return "done"  # type: ignore[return-value]
        return None


@pytest.mark.req("P9")
def test_the_outcome_is_what_a_handler_returns_or_raises(bus: Bus) -> None:
    """A plain `def` runs in a thread; complete, abandon, dead-letter and defer by value or by kind
    of exception; what is no outcome is abandoned, and so ends in the dead-letter queue."""
    queue = bus.queue(MaxDeliveryCount=3)
    bodies = ["good", "abandon once", "fail once", "dead", "permanent", "divide", "defer"]

    async def test(client: ServiceBusClient) -> None:
        bus.send(queue, [*bodies, "nonsense"])
        async with running(Moody(), client, options(queue, size=4)) as pool:
            await until(lambda: sum(pool.outcomes[0].values()) == 12)
        assert pool.outcomes[0] == {"Complete": 3, "Abandon": 5, "DeadLetter": 3, "Defer": 1}
        assert {each.body: each.reason for each in bus.left(queue, dead=True)} == {
            "dead": "Bad",
            "permanent": "Unreadable",
            "divide": "ZeroDivisionError",
            "nonsense": "MaxDeliveryCountExceeded",
        }
        async with client.get_queue_receiver(queue) as receiver:
            peeked = await receiver.peek_messages(10, sequence_number=1)
            assert [str(each) for each in peeked] == ["defer"]

    bus.run(test)


def _has_renewed(operations: Counter[str], times: int) -> bool:
    return operations["renew"] >= times


def test_locks_are_renewed_while_a_handler_works(bus: Bus) -> None:
    """Also of what is in hand: after twice their time the messages are still ours."""
    queue = bus.queue(LockDuration="PT1M")

    async def test(client: ServiceBusClient) -> None:
        bus.send(queue, ["working", "in hand"])
        worker, clock = Holding(), MovableClock()
        # For the pool it is later than for the broker: so it renews at once.
        clock.not_before(round(bus.broker.clock.now().timestamp() * 1000) + 59_500)
        async with running(worker, client, options(queue), clock=clock) as pool:
            operations = pool.sources[0].operations
            await until(lambda: pool.sources[0].taken == 2)
            for _ in range(3):
                # What was under way before does not count: two of each.
                enough = operations["renew"] + 4
                await until(partial(_has_renewed, operations, enough))
                bus.broker.clock.advance(seconds=40)
                clock.advance(40_000)
            worker.is_open = True
            await until(lambda: pool.outcomes[0]["Complete"] == 2)
        assert worker.counts == [0, 0]

    bus.run(test)


def test_a_lost_lock_is_said_and_its_message_comes_again(bus: Bus) -> None:
    """The handler is told; what it does then settles nothing."""
    queue = bus.queue(LockDuration="PT5S")

    async def test(client: ServiceBusClient) -> None:
        bus.send(queue, ["m"])
        worker, clock = Holding(), MovableClock()
        clock.not_before(round(bus.broker.clock.now().timestamp() * 1000))
        async with running(worker, client, options(queue), clock=clock) as pool:
            await until(lambda: worker.seen)
            bus.broker.clock.advance(seconds=6)
            await until(lambda: worker.works[0].is_lock_lost)
            worker.is_open = True
            await until(lambda: pool.outcomes[0]["Complete"] == 1)
        assert pool.outcomes[0]["lost"] == 1
        assert worker.counts == [0, 1]

    bus.run(test)


def test_the_end_finishes_what_was_begun_and_gives_back_the_rest(bus: Bus) -> None:
    """Begun: completed. In hand: at its place again, uncounted."""
    queue = bus.queue()

    async def test(client: ServiceBusClient) -> None:
        bus.send(queue, ["a", "b", "c"])
        worker = Holding()
        worker.is_preemptible = False  # type: ignore[misc]
        async with running(worker, client, options(queue)) as pool:
            await until(lambda: pool.sources[0].taken == 2)
            asyncio.get_running_loop().call_later(0.2, worker.gates["a"].set)
        assert worker.seen == ["a"]
        assert bus.left(queue) == [Left("b", 0), Left("c", 0)]

    bus.run(test)


def test_what_does_not_end_in_time_is_given_back(bus: Bus) -> None:
    """A handler of asyncio is cancelled; no delivery is counted."""
    queue = bus.queue()

    async def test(client: ServiceBusClient) -> None:
        bus.send(queue, ["a"])
        worker = Holding()
        worker.is_preemptible = False  # type: ignore[misc]
        async with running(worker, client, options(queue, stop_s=0.1)):
            await until(lambda: worker.seen)
        assert bus.left(queue) == [Left("a", 0)]

    bus.run(test)


@pytest.mark.req("P5")
def test_a_level_is_suspended_and_resumed(bus: Bus) -> None:
    """What it has in hand goes back at once, uncounted; other levels go on."""
    high, low = bus.queue(), bus.queue()

    async def test(client: ServiceBusClient) -> None:
        worker = Recorder()
        async with running(worker, client, options(high, low)) as pool:
            bus.send(low, ["l1"])
            await until(lambda: worker.seen == ["l1"])
            pool.suspend("level1")
            await until(lambda: not pool.sources[1].is_open)
            bus.send(low, ["l2"])
            bus.send(high, ["h1"])
            await until(lambda: worker.seen == ["l1", "h1"])
            assert bus.bodies(low) == ["l2"]
            bus.send(low, ["l3"])
            pool.resume("level1")
            await until(lambda: worker.seen == ["l1", "h1", "l3"])
            with pytest.raises(ArgumentError, match="no level 'x'"):
                pool.suspend("x")
        assert worker.counts == [0, 0, 0]

    bus.run(test)


@pytest.mark.req("P5")
def test_pools_of_different_sizes_and_their_change(bus: Bus) -> None:
    """A pool a level: each works on as many at once as it is large; smaller, larger, none."""
    high, low = bus.queue(), bus.queue()

    async def test(client: ServiceBusClient) -> None:
        for queue in (high, low):
            bus.send(queue, [f"{number}" for number in range(20)])
        first, second = Holding(), Holding()
        first.is_preemptible = second.is_preemptible = False  # type: ignore[misc]
        async with (
            running(first, client, options(high, size=4)) as large,
            running(second, client, options(low, size=1)) as small,
        ):
            await until(lambda: large.busy == 4 and small.busy == 1)
            large.resize(2)
            for name in "01":
                first.gates[name].set()
            await until(lambda: large.busy == 2)
            small.resize(3)
            await until(lambda: small.busy == 3)
            assert len(first.seen) == 4
            first.is_open = second.is_open = True
            await until(lambda: len(first.seen) == len(second.seen) == 20)
            small.resize(0)
            bus.send(low, ["late"])
            await until(lambda: small.sources[0].taken)
            assert "late" not in second.seen
            small.resize(1)
            await until(lambda: "late" in second.seen)
            with pytest.raises(ArgumentError):
                small.resize(-1)

    bus.run(test)


@pytest.mark.req("P5")
def test_a_pool_works_in_its_daily_window_only(bus: Bus) -> None:
    """Outside of it nothing is taken; when it begins, work does; when it ends, no more."""
    queue = bus.queue()

    async def test(client: ServiceBusClient) -> None:
        clock, worker = MovableClock(), Recorder()
        day_ms = 86_400_000
        clock.advance(day_ms - clock.now_ms() % day_ms + 3 * 3_600_000)  # 03:00 of a day
        how = options(queue, windows=(DailyWindow.parse("04:00-05:00"),))
        async with running(worker, client, how, clock=clock) as pool:
            bus.send(queue, ["a"])
            assert not pool.is_active(0)
            assert not pool.sources[0].is_feeding
            clock.advance(3_600_000)
            pool.look_at_the_clock()
            await until(lambda: worker.seen == ["a"])
            clock.advance(3_600_000)
            pool.look_at_the_clock()
            await until(lambda: not pool.sources[0].is_open)
            bus.send(queue, ["b"])
            assert bus.bodies(queue) == ["b"]
        assert worker.seen == ["a"]

    bus.run(test)


def test_sessions_keep_their_order(bus: Bus) -> None:
    """Three at once, each in its order, one message of a session at a time."""
    queue = bus.queue(RequiresSession=True)

    class Sessions(Worker):
        def __init__(self) -> None:
            self.seen: list[tuple[str, str]] = []
            self.now: set[str] = set()
            self.most = 0

        async def process_message(self, message: Any) -> None:
            assert message.session_id not in self.now
            self.now.add(message.session_id)
            self.most = max(self.most, len(self.now))
            await asyncio.sleep(0.01)
            self.now.remove(message.session_id)
            self.seen.append((message.session_id, str(message)))

    async def test(client: ServiceBusClient) -> None:
        for session in "abcd":
            bodies = [f"{number}" for number in range(5)]
            bus.send(queue, bodies, session_id=session)
        worker = Sessions()
        how = PoolOptions("pool", (Level("only", queue=queue, sessions=3),), size=4)
        async with running(worker, client, how) as pool:
            await until(lambda: pool.outcomes[0]["Complete"] == 20)
        for session in "abcd":
            own = [body for each, body in worker.seen if each == session]
            assert own == [f"{number}" for number in range(5)]
        assert worker.most <= 3

    bus.run(test)


def test_a_queue_that_is_not_there_yet_keeps_nobody_waiting(bus: Bus) -> None:
    """A level that cannot be reached is passed over; when it can, it is first again."""
    low = bus.queue()
    high = f"{low}-later"

    async def test(client: ServiceBusClient) -> None:
        worker = Recorder()
        bus.send(low, ["l"])
        async with running(worker, client, options(high, low)) as pool:
            await until(lambda: worker.seen == ["l"])
            bus.broker.create_queue(high)
            bus.send(high, ["h"])
            await until(lambda: worker.seen == ["l", "h"])
            assert pool.outcomes[0]["Complete"] == 1 or pool.busy <= 1

    bus.run(test)


@pytest.mark.req("P11")
def test_what_is_asked_of_the_broker_is_counted(bus: Bus) -> None:
    """With one message in hand at a time: a receive and a settlement each, and the open ones."""
    queue = bus.queue()

    async def test(client: ServiceBusClient) -> None:
        bus.send(queue, ["m"] * 10)
        worker = Recorder()
        async with running(worker, client, options(queue)) as pool:
            await until(lambda: pool.outcomes[0]["Complete"] == 10)
            assert pool.operations() == {"receive": 11, "received": 10, "settle": 10}

    bus.run(test)
