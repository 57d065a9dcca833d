"""The engine on an event loop. The loop's thread is the owner.

The rule: what is submitted in one turn of the loop shares a group. At the end of the turn it is
handed to the disk, unless a group is being written; then it waits and grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from tandembus.clock import Clock, SystemClock
from tandembus.core.access import Claims
from tandembus.core.commands import Command
from tandembus.core.effects import Effect
from tandembus.engine.committer import ThreadLane
from tandembus.engine.engine import Done, Engine, Reply, Tuning
from tandembus.engine.metrics import Metrics
from tandembus.engine.recovery import recover
from tandembus.errors import StoreError, TandemError
from tandembus.model import NEVER, Message, Millis
from tandembus.store.api import Store

MAX_SLEEP_MS: Millis = 60_000
"""The broker's time and the loop's drift apart (`clock`); so a long wait is looked at again."""


class AsyncEngine:
    """`await AsyncEngine.open(store, …)`; then `execute`, or `submit` where a task is too much.

    `on_failure` is called once, with the last word of an engine that cannot go on. Owns the store.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        """Use `open`."""
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        post = self._loop.call_soon_threadsafe
        self._lanes = [
            ThreadLane(post, name="tandem-commit", when_idle=store.mark_idle),
            ThreadLane(post, name="tandem-index"),
        ]
        self._has_turn = False
        self.answering: Callable[[bool], None] | None = None
        """Told when the answers of a commit begin to come, and when that was all."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: Millis = NEVER
        self._relieved: list[asyncio.Future[None]] = []
        """Who waits for the next commit."""
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self.engine: Engine

    @classmethod
    async def open(
        cls,
        store: Store,
        *,
        decode: Callable[[bytes], Message],
        on_effect: Callable[[Effect], None],
        on_failure: Callable[[StoreError], None],
        on_fault: Callable[[Exception], None] | None = None,
        clock: Clock | None = None,
        tuning: Tuning | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> AsyncEngine:
        """Recover, and be ready to serve. `progress` is called in another thread."""
        clock = clock or SystemClock()
        self = cls(store, clock)
        try:
            recovered = await asyncio.to_thread(recover, store, progress)
            self.engine = Engine(
                recovered,
                store,
                clock=clock,
                decode=decode,
                on_effect=on_effect,
                on_failure=partial(self._failed, on_failure),
                commit_lane=self._lanes[0],
                side_lane=self._lanes[1],
                tuning=tuning,
                before_commit=self._committing,
                on_commit=self._committed,
                on_fault=on_fault,
            )
            while self.engine.staged_bytes and self.engine.failure is None:
                await self._relief()
            if self.engine.failure is not None:
                raise self.engine.failure
        except BaseException:
            await self._release()
            raise
        self._turn()
        return self

    @property
    def metrics(self) -> Metrics:
        return self.engine.metrics

    @property
    def is_congested(self) -> bool:
        return self.engine.is_congested

    def submit(self, command: Command, done: Done, claims: Claims | None = None) -> None:
        """See `Engine.submit`."""
        self.engine.submit(command, done, claims)
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._turn)

    def begin_turn(self) -> None:
        """What is submitted now shares a group, and goes to the disk at `end_turn`: without waiting
        for another turn of the loop."""
        self._has_turn = True

    def end_turn(self) -> None:
        self._turn()

    async def execute(self, command: Command, claims: Claims | None = None) -> Any:
        """The reply, when it is durable. Raises Refused or StoreError."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.submit(command, partial(_resolve, future), claims)
        reply = await future
        if isinstance(reply, TandemError):
            raise reply
        return reply

    @property
    def body(self) -> Callable[[int], bytes]:
        """See `Engine.body`."""
        return self.engine.body

    async def uncongested(self) -> None:
        """Wait until less is waiting for the disk. Returns at once when that is so, or on a
        failure."""
        while self.engine.is_congested and self.engine.failure is None:
            await self._relief()

    async def catch_up(self) -> None:
        """The clock was moved by hand: do at once all that has become due, and see it on disk."""
        engine = self.engine
        while engine.failure is None and not engine.is_closed:
            if engine.next_deadline() <= self._clock.now_ms():
                if self._timer is not None:
                    self._timer.cancel()
                self._due()
                await asyncio.sleep(0)
            elif engine.staged_bytes:
                await self._relief()
            else:
                if self._timer is not None:
                    self._timer.cancel()  # it counts from before
                    self._timer = None
                self._turn()
                return

    async def close(self) -> None:
        """Clean stop: everything and an index are written. Raises StoreError if that fails."""
        if self.engine.failure is None:
            self.engine.close(partial(_resolve, self._stopped, None))
            await self._stopped
        await self._release()
        if self.engine.failure is not None:
            raise self.engine.failure

    # --- inside -----------------------------------------------------------------------------------

    def _turn(self) -> None:
        """At the end of a turn of the loop: to the disk, and set the timer."""
        self._has_turn = False
        if self.engine.failure is not None or self.engine.is_closed:
            return
        self.engine.flush()
        deadline = self.engine.next_deadline()
        if deadline >= self._timer_ms and self._timer is not None:
            return  # the timer that runs is early enough
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = min(max(0, deadline - self._clock.now_ms()), MAX_SLEEP_MS)
        self._timer_ms = deadline
        self._timer = self._loop.call_later(delay_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        if self.engine.failure is None and not self.engine.is_closed:
            if self.engine.next_deadline() <= self._clock.now_ms():
                self.engine.tick()
            self._turn()

    def _committing(self) -> None:
        self._has_turn = True
        if self.answering is not None:
            self.answering(True)

    def _committed(self) -> None:
        if self.answering is not None:
            self.answering(False)
        relieved, self._relieved = self._relieved, []
        for future in relieved:
            _resolve(future, None)
        self._turn()

    def _failed(self, on_failure: Callable[[StoreError], None], error: StoreError) -> None:
        _resolve(self._stopped, None)
        relieved, self._relieved = self._relieved, []
        for future in relieved:
            _resolve(future, None)
        on_failure(error)

    async def _relief(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._relieved.append(future)
        await future

    async def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for lane in self._lanes:
            await asyncio.to_thread(lane.close)
        self._store.close()


def _resolve(future: asyncio.Future[Any], reply: Reply) -> None:
    if not future.done():  # its task was cancelled: the command is done all the same
        future.set_result(reply)
