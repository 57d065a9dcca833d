"""Pools that are looked at, scaled and watched; with a clock that the test moves, and fakes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

import pytest

from tandembus.clock import ManualClock
from tandembus.workers.depth import Depth
from tandembus.workers.options import Level, PoolOptions, Scale, Target
from tandembus.workers.running import Overseer
from tandembus.workers.status import lines, prometheus, table
from tandembus.workers.targets import Alert, Meter


class FakePool:
    """A pool that only says what it is told to say."""

    def __init__(self, options: PoolOptions) -> None:
        self.options = options
        self.size = options.first_size
        self.busy = 1
        self.preemptions = 2
        self.meters = [Meter(level.target) for level in options.levels]
        self.outcomes = [Counter({"Complete": 3}) for _ in options.levels]
        self.busy_s = 0.0
        self.suspended: set[str] = set()

    async def start(self) -> None: ...
    async def stop(self, within_s: float | None = None) -> None: ...

    def resize(self, size: int) -> None:
        self.size = size

    def suspend(self, level: str | None = None) -> None: ...
    def resume(self, level: str | None = None) -> None: ...

    def is_active(self, index: int) -> bool:
        return self.options.levels[index].name not in self.suspended

    def working_on(self, index: int) -> set[int]:
        return {7}

    def busy_seconds(self) -> float:
        return self.busy_s

    def operations(self) -> Counter[str]:
        return Counter({"receive": 4})


class FakeLooker:
    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.depths: dict[str, Depth] = {}

    async def look(self, level: Level, begun: Collection[int]) -> Depth:
        assert begun == {7}
        return self.depths.get(level.name, Depth(0, None))

    async def close(self) -> None: ...


class World:
    def __init__(self, scale: Scale | None = None) -> None:
        target = Target(within_s=10, percent=90, window_s=60)
        levels = (Level("high", queue="h", target=target), Level("low", queue="l"))
        self.pool = FakePool(PoolOptions("mail", levels, size=2, scale=scale))
        self.looker = FakeLooker()
        self.clock = ManualClock()
        self.alerts: list[Alert] = []
        self.overseer = Overseer(
            [self.pool], self.looker, on_alert=self.alerts.append, clock=self.clock
        )

    def look(self, seconds: int = 5, busy: float = 0.0) -> None:
        self.clock.advance(seconds * 1_000)
        self.pool.busy_s += busy * seconds
        asyncio.run(self.overseer.look())


@pytest.mark.req("P7")
def test_an_alert_is_told_once_and_so_is_its_end() -> None:
    """By the callback; `is_alert` is what the exit code is made of."""
    world = World()
    world.look()
    assert world.overseer.alerts == 0
    world.looker.depths["high"] = Depth(5, 11.0)
    world.look()
    world.look()
    assert [alert.is_over for alert in world.alerts] == [False]
    assert world.overseer.is_alert is True
    world.pool.meters[0].done(1_000, 10, world.clock.now_ms())
    world.look(1)
    assert [alert.is_over for alert in world.alerts] == [False, True]
    assert world.overseer.alerts == 1


@pytest.mark.req("P8")
def test_a_pool_follows_its_queues() -> None:
    """Length, age, target and what keeps it busy; levels that are suspended have no say."""
    scale = Scale(min=1, max=16, waiting_per_worker=10, oldest_s=5, up_cooldown_s=0)
    world = World(scale)
    world.look()
    assert world.pool.size == 2
    world.looker.depths["low"] = Depth(40, 1.0)
    world.look(busy=2)
    assert world.pool.size == 4
    world.looker.depths["low"] = Depth(40, 10.0)
    world.look(busy=4)
    assert world.pool.size == 8
    world.pool.suspended.add("low")
    for _ in range(20):
        world.look(busy=1)
    assert world.pool.size == 2


@pytest.mark.req("P7")
@pytest.mark.req("P11")
def test_what_is_shown() -> None:
    """Waiting, oldest, rate, waits, target and size of every level; and what it has cost."""
    world = World()
    now = world.clock.now_ms()
    for _ in range(20):
        world.pool.meters[0].begun(200, now)
        world.pool.meters[0].done(400, 100, now)
    world.looker.depths = {"high": Depth(12, 3.25), "low": Depth(None, 700.0)}
    world.look(1)
    status = world.overseer.status()
    high, low = table(status)[1:]
    assert high.split() == "mail high 12 3.2s 2.0 199ms 199ms 100.0/90 % 1/2".split()
    assert low.split() == "low - 12min 0.0 - -".split()
    assert lines(status, "12:00:00")[0] == (
        "12:00:00 mail/high waiting=12 oldest=3.2s rate=2.0/s p50=199ms p99=199ms "
        "target=100.0/90% size=2 busy=1"
    )
    world.pool.suspended.add("low")
    assert "suspended" in table(world.overseer.status())[2]
    text = prometheus(world.overseer.status())
    for line in (
        'tandem_workers_pool_size{pool="mail"} 2',
        'tandem_workers_operations_total{pool="mail",operation="receive"} 4',
        'tandem_workers_waiting{pool="mail",level="high"} 12',
        'tandem_workers_messages_total{pool="mail",level="low",outcome="Complete"} 3',
        'tandem_workers_wait_seconds_bucket{pool="mail",level="high",le="0.25"} 20',
        'tandem_workers_wait_seconds_count{pool="mail",level="high"} 20',
        'tandem_workers_attainment_ratio{pool="mail",level="high"} 1',
        'tandem_workers_alert{pool="mail",level="high"} 0',
        'tandem_workers_active{pool="mail",level="low"} 0',
    ):
        assert line in text.splitlines()
    assert text.count("# TYPE") == text.count("# HELP") == 14
    assert 'waiting{pool="mail",level="low"}' not in text


@pytest.mark.req("P7")
def test_metrics_are_served_over_http() -> None:
    async def ask(path: str) -> bytes:
        world = World()
        server = await world.overseer.serve_metrics(0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(server.sockets[0].getsockname()[0], port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return answer

    good = asyncio.run(ask("/metrics"))
    assert good.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"tandem_workers_pool_size" in good
    assert asyncio.run(ask("/other")).startswith(b"HTTP/1.1 404")
