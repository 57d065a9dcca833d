"""`engine/aio.py`: the engine on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tandembus.changes import Mode
from tandembus.clock import ManualClock
from tandembus.core.commands import Attach, CreateQueue, DeleteEntity, Flow, Send
from tandembus.core.effects import Deliver, Effect
from tandembus.engine.aio import AsyncEngine
from tandembus.engine.engine import Tuning
from tandembus.errors import EntityNotFoundError, ServerBusyError, StoreError
from tandembus.limits import KIB
from tandembus.settings import QueueSettings
from tandembus.store.api import Store
from tandembus.store.files import FileStore
from tandembus.store.memory import MemoryStore
from tests.unit.engine.world import FaultyStore, Plain


class Client:
    """An edge: keeps what it is told."""

    def __init__(self) -> None:
        self.effects: asyncio.Queue[Effect] = asyncio.Queue()
        self.failures: list[StoreError] = []

    async def open(self, store: Store, **more: Any) -> AsyncEngine:
        return await AsyncEngine.open(
            store,
            decode=Plain,
            on_effect=self.effects.put_nowait,
            on_failure=self.failures.append,
            **more,
        )


def run(scene: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scene(Client()), 30)

    asyncio.run(main())


def test_a_life_on_files(tmp_path: Path) -> None:
    async def scene(client: Client) -> None:
        engine = await client.open(FileStore(tmp_path / "log"))
        await engine.execute(CreateQueue("q"))
        await engine.execute(Attach(1, "q", Mode.RECEIVE_AND_DELETE))
        await engine.execute(Flow(1, 10, 5))
        assert list(await engine.execute(Send("q", [Plain(b"one")]))) == [1]
        effect = await client.effects.get()
        assert isinstance(effect, Deliver)
        assert engine.body(effect.deliveries[0].body) == b"one"
        with pytest.raises(EntityNotFoundError):
            await engine.execute(DeleteEntity("nowhere"))
        await engine.close()
        again = await client.open(FileStore(tmp_path / "log"))
        await again.execute(Attach(1, "q"))
        await again.close()

    run(scene)


def test_one_turn_of_the_loop_shares_a_group() -> None:
    async def scene(client: Client) -> None:
        engine = await client.open(MemoryStore())
        await engine.execute(CreateQueue("q"))
        before = engine.metrics.commits
        sends = [engine.execute(Send("q", [Plain(b"%d" % n)])) for n in range(200)]
        replies = await asyncio.gather(*sends)
        assert [list(r) for r in replies] == [[n] for n in range(1, 201)]
        assert engine.metrics.commits - before <= 2
        await engine.close()

    run(scene)


def test_a_moved_clock_is_caught_up_with() -> None:
    """All that has become due has happened and is on disk when `catch_up` returns, also what the
    first of it has caused; and the next deadline is not forgotten."""

    async def scene(client: Client) -> None:
        clock = ManualClock()
        engine = await client.open(MemoryStore(), clock=clock)
        await engine.execute(CreateQueue("q", QueueSettings(lock_duration_ms=60_000)))
        await engine.execute(Attach(1, "q"))
        await engine.execute(Flow(1, 10, 5))
        for minutes in (10, 20):
            due = clock.now_ms() + minutes * 60_000
            await engine.execute(Send("q", [Plain(b"%d" % minutes, scheduled_ms=due)]))
        clock.advance(10 * 60_000)
        await engine.catch_up()
        assert client.effects.qsize() == 1, "the first was delivered"
        clock.advance(60_000)
        await engine.catch_up()
        assert client.effects.qsize() == 2, "its lock ran out, and it was delivered again"
        clock.advance(60 * 60_000)
        await engine.catch_up()
        assert client.effects.qsize() >= 3
        await engine.close()

    run(scene)


def test_the_timer_wakes_by_itself() -> None:
    """A scheduled message becomes active and is delivered with nobody calling."""

    async def scene(client: Client) -> None:
        engine = await client.open(MemoryStore())
        await engine.execute(CreateQueue("q"))
        await engine.execute(Attach(1, "q"))
        await engine.execute(Flow(1, 10, 5))
        due = engine._clock.now_ms() + 30
        await engine.execute(Send("q", [Plain(b"later", scheduled_ms=due)]))
        effect = await client.effects.get()
        assert isinstance(effect, Deliver)
        assert engine._clock.now_ms() >= due
        await engine.close()

    run(scene)


def test_congestion_is_waited_for() -> None:
    """An edge that asks first is never refused; one that does not, is told to come again."""

    async def scene(client: Client) -> None:
        engine = await client.open(MemoryStore(), tuning=Tuning(staged_bytes=64 * KIB))
        await engine.execute(CreateQueue("q"))
        replies: list[object] = []
        for _ in range(500):
            await engine.uncongested()
            engine.submit(Send("q", [Plain(b"x" * 1_000)]), replies.append)
        await engine.execute(Send("q", [Plain(b"last")]))
        assert len(replies) == 500
        assert not any(isinstance(r, ServerBusyError) for r in replies)
        replies.clear()
        for _ in range(500):
            engine.submit(Send("q", [Plain(b"x" * 1_000)]), replies.append)
        assert engine.is_congested
        await engine.uncongested()
        await engine.execute(CreateQueue("r"))
        assert any(isinstance(r, ServerBusyError) for r in replies)
        await engine.close()

    run(scene)


def test_a_failure_reaches_everybody() -> None:
    async def scene(client: Client) -> None:
        engine = await client.open(FaultyStore(fails_at=3))
        await engine.execute(CreateQueue("q"))
        waiting = [asyncio.ensure_future(engine.execute(CreateQueue(f"q{n}"))) for n in range(3)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(r) for r in results] == [StoreError] * 3
        assert len(client.failures) == 1
        await engine.uncongested()
        with pytest.raises(StoreError, match="gone"):
            await engine.execute(CreateQueue("r"))
        with pytest.raises(StoreError, match="gone"):
            await engine.close()
        with pytest.raises(StoreError, match="gone"):
            await client.open(FaultyStore(fails_at=1))

    run(scene)


def test_a_cancelled_caller_disturbs_nobody() -> None:
    async def scene(client: Client) -> None:
        engine = await client.open(MemoryStore())
        task = asyncio.ensure_future(engine.execute(CreateQueue("q", QueueSettings())))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await engine.execute(Attach(1, "q"))
        await engine.close()

    run(scene)


def test_a_deadline_that_moves_nearer_is_kept() -> None:
    async def scene(client: Client) -> None:
        clock = ManualClock()
        engine = await client.open(MemoryStore(), clock=clock)
        await engine.execute(CreateQueue("q", QueueSettings(lock_duration_ms=300_000)))
        far = clock.now_ms() + 3_000_000
        await engine.execute(Send("q", [Plain(b"far", scheduled_ms=far)]))
        await engine.execute(Attach(1, "q"))
        await engine.execute(Flow(1, 10, 5))
        near = clock.now_ms() + 20
        await engine.execute(Send("q", [Plain(b"near", scheduled_ms=near)]))
        clock.advance(20)
        await client.effects.get()
        await engine.close()

    run(scene)
