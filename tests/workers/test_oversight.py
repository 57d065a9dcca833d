"""Depths, autoscale and targets with a real broker; a broker that goes and comes."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from tandembus.clock import MovableClock, SystemClock
from tandembus.testing import BrokerProcess
from tandembus.workers import (
    Alert,
    Level,
    Outcome,
    Overseer,
    Pool,
    PoolOptions,
    QueueLooker,
    Scale,
    Target,
    Worker,
)
from tandembus.workers.depth import MOST_COUNTED, Depth
from tests.workers.bus import Bus, Holding, Recorder, options, running, until


@pytest.mark.req("P8")
@pytest.mark.parametrize("has_key", [True, False], ids=["by administration", "by browsing"])
def test_length_and_age_of_a_queue(bus: Bus, has_key: bool) -> None:
    """With Manage the length is counted by the broker, without it by browsing; what this process
    has taken does not wait."""
    queue = bus.queue()
    topic = bus.queue() + "-topic"
    bus.broker.create_topic(topic)
    bus.broker.create_subscription(topic, "sub")

    async def test(client: ServiceBusClient) -> None:
        clock = MovableClock()
        clock.not_before(round(bus.broker.clock.now().timestamp() * 1000))
        text = bus.broker.connection_string if has_key else None
        looker = QueueLooker(client, text, clock)
        level = Level("l", queue=queue)
        assert await looker.look(level, ()) == Depth(0, None)
        bus.send(queue, ["old"])
        bus.broker.clock.advance(minutes=10)
        clock.advance(600_000)
        bus.send(queue, ["new", "newer"])
        bus.send(topic, ["x", "y"])
        found = await looker.look(level, ())
        assert found.waiting == 3
        assert 600 <= (found.oldest_s or 0) < 700
        found = await looker.look(level, {1})
        assert found.waiting == 2
        assert (found.oldest_s or 0) < 600
        subscription = Level("s", topic=topic, subscription="sub")
        assert (await looker.look(subscription, ())).waiting == 2
        bus.send(queue, ["more"] * MOST_COUNTED)
        assert (await looker.look(level, ())).waiting == (MOST_COUNTED + 3 if has_key else 1_000)
        assert looker.operations["count"] == (5 if has_key else 0)
        await looker.close()

    bus.run(test)


@pytest.mark.req("P8")
def test_the_age_of_sessions_is_not_known(bus: Bus) -> None:
    """They cannot be browsed without one; their length is known all the same."""
    queue = bus.queue(RequiresSession=True)

    async def test(client: ServiceBusClient) -> None:
        bus.send(queue, ["m"], session_id="s")
        looker = QueueLooker(client, bus.broker.connection_string, SystemClock())
        assert await looker.look(Level("l", queue=queue, sessions=1), ()) == Depth(1, None)
        missing = await looker.look(Level("l", queue=f"{queue}-missing"), ())
        assert missing == Depth(None, None)
        await looker.close()

    bus.run(test)


class Slow(Worker):
    def __init__(self) -> None:
        self.done = 0
        self.most = self.now = 0

    async def process_message(self, message: Any) -> Outcome | None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        self.now -= 1
        self.done += 1
        return None


@pytest.mark.req("P8")
def test_a_real_pool_grows_with_its_queue_and_shrinks_again(bus: Bus) -> None:
    """Within its bounds, and all is done."""
    queue = bus.queue()
    scale = Scale(
        min=1, max=6, waiting_per_worker=10, every_s=0.1, up_cooldown_s=0.2, down_after_s=1
    )

    async def test(client: ServiceBusClient) -> None:
        worker = Slow()
        pool = Pool(worker, options(queue, scale=scale), client)
        looker = QueueLooker(client, bus.broker.connection_string, SystemClock())
        sizes: list[int] = []
        async with Overseer([pool], looker) as overseer:
            assert overseer.every_s == 0.1
            bus.send(queue, ["m"] * 200)
            while worker.done < 200 or pool.size > 1:
                sizes.append(pool.size)
                await asyncio.sleep(0.01)
        assert max(sizes) == 6
        assert set(sizes) <= set(range(1, 7))
        assert 1 < worker.most <= 6

    bus.run(test)


@pytest.mark.req("P7")
def test_a_missed_target_is_an_alert_and_what_is_attained_again_ends_it(bus: Bus) -> None:
    """A level that stands still while its message is older than promised."""
    queue = bus.queue()
    level = Level("high", queue=queue, target=Target(within_s=60, window_s=10))

    async def test(client: ServiceBusClient) -> None:
        clock = MovableClock()
        clock.not_before(round(bus.broker.clock.now().timestamp() * 1000))
        worker, alerts = Recorder(), list[Alert]()
        pool = Pool(worker, PoolOptions("mail", (level,), is_suspended=True), client, clock=clock)
        looker = QueueLooker(client, bus.broker.connection_string, clock)
        overseer = Overseer([pool], looker, on_alert=alerts.append, every_s=0.05, clock=clock)
        async with overseer:
            bus.send(queue, ["late"])
            await until(lambda: overseer.status()[0].levels[0].waiting == 1)
            assert not alerts
            clock.advance(61_000)
            await until(lambda: len(alerts) == 1)
            assert str(alerts[0]) == ("mail/high: target missed: 0.0 % within 60 s, promised 99 %")
            pool.resume()
            await until(lambda: pool.outcomes[0]["Complete"] == 1)
            assert overseer.is_alert  # it was late
            clock.advance(12_000)
            await until(lambda: len(alerts) == 2)
            assert alerts[1].is_over

    bus.run(test)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


# The SDK does not close the socket of a connection that broke; it is collected in this test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_broker_that_goes_and_comes_back(tmp_path: Path) -> None:
    """Whatever the SDK says meanwhile, the pool goes on; what was in work comes again."""
    port = _free_port()
    arguments = ["--emulator", "--port", str(port)]
    with BrokerProcess.start(tmp_path, arguments) as broker:
        bus = Bus(broker)
        queue = bus.queue()

        async def test(client: ServiceBusClient) -> None:
            worker = Holding()
            worker.is_preemptible = False  # type: ignore[misc]
            async with running(worker, client, options(queue)) as pool:
                bus.send(queue, ["before"])
                await until(lambda: worker.seen)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.restart)
                worker.is_open = True
                await until(lambda: pool.busy == 0)
                other = Bus(broker)
                other.send(queue, ["after"])
                await until(lambda: "after" in worker.seen)
                other.close()

        bus.run(test)
        bus.close()
    gc.collect()
