"""Preemption (P6) against a real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from tandembus.workers import GiveBack, Level, Outcome, PoolOptions, Worker
from tandembus.workers.wire import UNCOUNTED
from tests.workers import preempt
from tests.workers.bus import Bus, Holding, options, running, until

pytestmark = pytest.mark.req("P6")


def test_low_work_makes_room_and_resumes_from_its_state(bus: Bus) -> None:
    """A busy pool of one: higher work begins as soon as the handler has stopped; its message comes
    again with the state that it saved, and not counted as a delivery."""
    high, low = bus.queue(), bus.queue()

    async def test(client: ServiceBusClient) -> None:
        worker = Holding()
        async with running(worker, client, options(high, low)) as pool:
            bus.send(low, ["low"])
            await until(lambda: worker.seen == ["low"])
            bus.send(high, ["high"])
            await until(lambda: worker.seen == ["low", "high"])
            worker.is_open = True
            await until(lambda: pool.outcomes[1]["Complete"] == 1)
        assert worker.seen == ["low", "high", "low"]
        assert worker.states == [None, None, b"low at 1"]
        assert worker.counts == [0, 0, 0]
        assert pool.preemptions == 1
        assert pool.outcomes[1] == {"GiveBack": 1, "Complete": 1}

    bus.run(test)


def test_equal_work_and_handlers_that_did_not_opt_in_are_left_alone(bus: Bus) -> None:
    high, low = bus.queue(), bus.queue()

    async def test(client: ServiceBusClient) -> None:
        stubborn = Holding()
        stubborn.is_preemptible = False  # type: ignore[misc]
        async with running(stubborn, client, options(high, low)) as pool:
            bus.send(low, ["low"])
            await until(lambda: stubborn.seen)
            bus.send(high, ["high"])
            await until(lambda: pool.sources[0].taken)
            assert not stubborn.works[0].is_stop_requested
            stubborn.is_open = True
            await until(lambda: pool.outcomes[0]["Complete"] == 1)
        assert stubborn.seen == ["low", "high"]
        willing = Holding()
        async with running(willing, client, options(high, low)) as pool:
            bus.send(high, ["first", "second"])
            await until(lambda: pool.sources[0].taken == 2)
            assert not willing.works[0].is_stop_requested
            willing.is_open = True
            await until(lambda: pool.outcomes[0]["Complete"] == 2)
        assert pool.preemptions == 0

    bus.run(test)


class Counting(Worker):
    """A blocking handler that counts to ten, and remembers how far it came."""

    is_preemptible = True

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.counts: list[int] = []

    def process_message(self, message: Any) -> Outcome | None:
        self.counts.append(self.work.delivery_count)
        if str(message) == "high":
            return None
        for step in range(int(self.work.state or b"0"), 10):
            self.steps.append(step)
            if self.work.wait_for_stop(0.05):
                return GiveBack(str(step + 1).encode())
        return None


@pytest.mark.parametrize("state_in", ["property", "session"])
def test_a_thread_goes_on_where_it_was(bus: Bus, state_in: Any) -> None:
    """Interrupted several times, each step is done once; with the state on the message, and in the
    state of its session."""
    has_sessions = state_in == "session"
    high, low = bus.queue(), bus.queue(RequiresSession=has_sessions)
    levels = (
        Level("high", queue=high),
        Level("low", queue=low, sessions=int(has_sessions), state_in=state_in),
    )

    async def test(client: ServiceBusClient) -> None:
        worker = Counting()
        async with running(worker, client, PoolOptions("pool", levels)) as pool:
            bus.send(low, ["low"], **({"session_id": "s"} if has_sessions else {}))
            for done in range(3):
                await until(lambda done=done: len(worker.steps) > 2 * done)  # type: ignore[misc]
                bus.send(high, ["high"])
                await until(
                    lambda done=done: pool.outcomes[0]["Complete"] == done + 1  # type: ignore[misc]
                )
            await until(lambda: pool.outcomes[1]["Complete"] == 1)
        assert worker.steps == list(range(10))
        assert set(worker.counts) == {0}
        assert pool.outcomes[1]["GiveBack"] >= 1
        if has_sessions:
            async with client.get_queue_receiver(low, session_id="s") as receiver:
                assert not await receiver.session.get_state()

    bus.run(test)


def test_a_pool_that_ends_saves_the_state(bus: Bus) -> None:
    """The next pool, in another process perhaps, goes on from it."""
    queue = bus.queue()

    async def test(client: ServiceBusClient) -> None:
        first, second = Holding(), Holding()
        bus.send(queue, ["m"])
        async with running(first, client, options(queue)):
            await until(lambda: first.seen)
        second.is_open = True
        async with running(second, client, options(queue)) as pool:
            await until(lambda: pool.outcomes[0]["Complete"] == 1)
        assert second.states == [b"m at 1"]
        assert second.counts == [0]

    bus.run(test)


def test_modified_and_not_counted(bus: Bus) -> None:
    """The broker's side: the property asks for it; the others are kept, and as often as one
    likes."""
    queue = bus.queue(MaxDeliveryCount=2)

    async def test(client: ServiceBusClient) -> None:
        bus.send(queue, ["m"])
        async with client.get_queue_receiver(queue) as receiver:
            for number in range(4):
                [message] = await receiver.receive_messages(1, max_wait_time=30)
                assert message.delivery_count == 0
                properties = message.application_properties or {}
                assert properties.get(b"n") == (number - 1 if number else None)
                await receiver._handler.settle_messages_async(
                    message._delivery_id,
                    message._delivery_tag,
                    "modified",
                    undeliverable_here=False,
                    message_annotations={"n": number, UNCOUNTED: True},
                    await_outcome=True,
                )
            [message] = await receiver.receive_messages(1, max_wait_time=30)
            await receiver.abandon_message(message)
            [message] = await receiver.receive_messages(1, max_wait_time=30)
            assert message.delivery_count == 1
            await receiver.complete_message(message)

    bus.run(test)


def test_many_preemptions_lose_nothing(bus: Bus) -> None:
    """The tool of `make preemption`, small: every step of every low message is done exactly once,
    no delivery is counted."""
    found = asyncio.run(preempt.measure(bus.broker, count=12))
    assert found.preemptions >= 12
    assert found.is_whole
    assert found.most_deliveries == 0
    assert len(found.delays_ms) == 12
