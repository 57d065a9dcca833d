"""A pool: so many workers at once over the queues of its levels. The shell for asyncio.

    async with Pool(Mailer(), options, client) as pool:
        await pool.wait()

What it does is decided in `order`; the SDK is `receiving`. Everything here runs in one event loop;
only a handler that is a plain `def` runs in a thread.

A worker is free again when its handler has ended: the message is settled meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Self, cast

from tandembus.clock import Clock, SystemClock
from tandembus.errors import ArgumentError
from tandembus.model import Millis
from tandembus.workers.options import MAX_SIZE, PoolOptions
from tandembus.workers.order import Order, Running, Serve, Wait
from tandembus.workers.outcomes import Abandon, Complete, GiveBack, Outcome
from tandembus.workers.receiving import Source, Taken
from tandembus.workers.targets import Meter
from tandembus.workers.tasks import ended
from tandembus.workers.windows import is_open, next_change_ms, zone
from tandembus.workers.worker import Work, Worker, enter

_log: Final = logging.getLogger("tandembus.workers")

CANCELS: Final = 5
"""How often a handler that does not end in time is cancelled."""
SETTLE_S: Final = 30.0
"""At the end, for settlements that are under way."""
MOST_SLEEP_S: Final = 60.0
"""The clock is looked at so often: a machine may sleep, and its time be set."""


@dataclass(slots=True)
class _Job:
    """A message that is being worked on."""

    taken: Taken
    work: Work
    begun_ms: Millis
    task: asyncio.Task[None]
    has_slot: bool = True


class Pool:
    """Use as a context, or `start` and `stop`. `client` is an asynchronous `ServiceBusClient`."""

    def __init__(
        self, worker: Worker, options: PoolOptions, client: Any, *, clock: Clock | None = None
    ) -> None:
        self.worker = worker
        self.options = options
        self.clock = clock or SystemClock()
        self._zone = zone(options.time_zone)
        now = self.clock.now_ms()
        levels = options.levels
        self._order: Order[Taken] = Order(
            options.first_size,
            [level.sessions or options.prefetch for level in levels],
            options.look_ms,
            now,
        )
        self.sources = [
            Source(index, level, client, self, self.clock) for index, level in enumerate(levels)
        ]
        self.meters = [Meter(level.target) for level in levels]
        self.outcomes: list[Counter[str]] = [Counter() for _ in levels]
        """Of each level: how its messages ended."""
        self.preemptions = 0
        self._jobs: dict[int, _Job] = {}
        self._keys = count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._executor: ThreadPoolExecutor | None = None
        self._is_async = inspect.iscoroutinefunction(worker.process_message)
        self._suspended = {level.name for level in levels} if options.is_suspended else set()
        self._is_stopping = False
        self._has_started = False
        self._ended = asyncio.Event()
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._window_timer: asyncio.TimerHandle | None = None
        self._busy_ms = 0.0
        self._busy_since_ms: Millis = now

    # --- its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        assert not self._has_started, "a pool is started once"
        self._has_started = True
        await self.worker.started()
        self.look_at_the_clock()

    async def stop(self, within_s: float | None = None) -> None:
        """Take no more, give back what is in hand, let what is being worked on end; what has not
        ended in time is given back, too."""
        if self._is_stopping or not self._has_started:
            if self._has_started:
                await self._ended.wait()
            return
        self._is_stopping = True
        for timer in (self._timer, self._window_timer):
            if timer is not None:
                timer.cancel()
        await asyncio.gather(*(source.rest() for source in self.sources))
        for index in range(len(self.sources)):
            self._give_back_hand(index)
        for job in self._jobs.values():
            if self.worker.is_preemptible:
                job.work.request_stop()
        await self._end_jobs(self.options.stop_s if within_s is None else within_s)
        await asyncio.gather(*(source.close() for source in self.sources))
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        await self.worker.stopped()
        self._ended.set()

    async def _end_jobs(self, within_s: float) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=within_s)
        late = [job for job in self._jobs.values() if job.has_slot]
        for job in late:
            _log.warning("%s: a handler did not end in time", self.options.name)
            job.work.request_stop()
        # A handler may do something about its end, so it is not asked too often.
        if not await ended([job.task for job in late], again_s=1.0, times=CANCELS):
            _log.error("%s: a handler refuses to end; its lock runs out", self.options.name)
        settling = self._tasks - {job.task for job in late}
        if settling:
            await asyncio.wait(settling, timeout=SETTLE_S)

    async def wait(self) -> None:
        """Until it has stopped."""
        await self._ended.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- what can be changed (P5) -----------------------------------------------------------------

    @property
    def size(self) -> int:
        return self._order.size

    @property
    def busy(self) -> int:
        return self._order.busy

    def resize(self, size: int) -> None:
        """More workers begin at once; with fewer, those that are busy end their message first."""
        if not 0 <= size <= MAX_SIZE:
            raise ArgumentError(f"a pool has 0 to {MAX_SIZE} workers")
        self._order.size = size
        self._turn()

    def suspend(self, level: str | None = None) -> None:
        """Take no more, from one level or from all; what is in hand goes back, what is begun
        ends."""
        self._suspended |= self._named(level)
        self._feed_or_rest()

    def resume(self, level: str | None = None) -> None:
        self._suspended -= self._named(level)
        self._feed_or_rest()

    def _named(self, level: str | None) -> set[str]:
        names = {each.name for each in self.options.levels}
        if level is not None and level not in names:
            raise ArgumentError(f"pool '{self.options.name}' has no level '{level}'")
        return names if level is None else {level}

    def is_active(self, index: int) -> bool:
        """Whether messages of a level are taken now."""
        return (
            self._has_started
            and not self._is_stopping
            and self.options.levels[index].name not in self._suspended
            and is_open(self.options.windows, self._zone, self.clock.now_ms())
        )

    def look_at_the_clock(self) -> None:
        """A daily window may have begun or ended."""
        if self._is_stopping:
            return
        self._feed_or_rest()
        if self._window_timer is not None:
            self._window_timer.cancel()
        now = self.clock.now_ms()
        change_ms = next_change_ms(self.options.windows, self._zone, now)
        if change_ms is not None:
            wait_s = min(MOST_SLEEP_S, max(0.01, (change_ms - now) / 1000))
            loop = asyncio.get_running_loop()
            self._window_timer = loop.call_later(wait_s, self.look_at_the_clock)

    def _feed_or_rest(self) -> None:
        for index, source in enumerate(self.sources):
            if self.is_active(index) and not source.is_feeding:
                self._order.present(index, self.clock.now_ms())
                source.feed()
            elif not self.is_active(index) and source.is_feeding:
                self._order.absent(index)
                self._background(self._rest(index))
        self._turn()

    async def _rest(self, index: int) -> None:
        source = self.sources[index]
        await source.rest()
        self._give_back_hand(index)
        if not self.is_active(index) and source.taken == 0:
            await source.close()

    def _give_back_hand(self, index: int) -> None:
        for taken in self._order.emptied(index):
            self._background(self.sources[index].settle(taken, GiveBack()))

    # --- Taker: what the sources say --------------------------------------------------------------

    async def room(self, level: int) -> int:
        while (room := self._order.room(level)) <= 0:
            self._room.clear()
            await self._room.wait()
        return room

    def asked(self, level: int) -> None:
        self._order.asked(level, self.clock.now_ms())
        self._turn()

    def answered(self, level: int) -> None:
        self._order.answered(level)

    def absent(self, level: int) -> None:
        self._order.absent(level)
        self._turn()

    def took(self, taken: Taken) -> None:
        self._order.arrived(taken.level, taken, taken.enqueued_ms, self.clock.now_ms())
        self._turn()

    def lost(self, taken: Taken) -> None:
        if self._order.removed(taken.level, taken):
            self.sources[taken.level].let_go(taken)
            self.outcomes[taken.level]["lost"] += 1
            self._turn()

    # --- the next message -------------------------------------------------------------------------

    def _turn(self) -> None:
        """Something has happened: begin what can be begun, and ask for room where none is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_stopping or not self._has_started:
            return
        while True:
            match self._order.next(self.clock.now_ms()):
                case Serve(level, taken):
                    self._begin(level, taken)
                case Wait(until_ms):
                    wait_s = max(0, until_ms - self.clock.now_ms() + 1) / 1000
                    self._timer = asyncio.get_running_loop().call_later(wait_s, self._turn)
                    break
                case None:
                    break
        self._room.set()
        if self.worker.is_preemptible:
            for key in self._order.victims(self._running()):
                self.preemptions += 1
                self._jobs[key].work.request_stop()

    def _running(self) -> Sequence[Running]:
        return [
            Running(key, job.taken.level, job.begun_ms, True, job.work.is_stop_requested)
            for key, job in self._jobs.items()
            if job.has_slot
        ]

    def _begin(self, level: int, taken: Taken) -> None:
        now = self.clock.now_ms()
        self._count_busy(now, self._order.busy - 1)
        self.meters[level].begun(now - taken.enqueued_ms, now)
        name = self.options.levels[level].name
        work = Work(name, taken.state(), taken.message.delivery_count or 0)
        taken.work = work
        key = next(self._keys)
        task = asyncio.create_task(self._work(key, taken, work))
        self._jobs[key] = _Job(taken, work, now, task)
        self._keep(task)

    async def _work(self, key: int, taken: Taken, work: Work) -> None:
        job = self._jobs[key]
        try:
            outcome = await self._handle(taken, work)
        finally:
            job.has_slot = False
            now = self.clock.now_ms()
            self._count_busy(now, self._order.busy)
            self._order.finished()
            self._turn()
        level, source = taken.level, self.sources[taken.level]
        is_settled = await source.settle(taken, outcome)
        del self._jobs[key]
        self.outcomes[level][type(outcome).__name__ if is_settled else "lost"] += 1
        if is_settled and not isinstance(outcome, GiveBack):
            self.meters[level].done(now - taken.enqueued_ms, now - job.begun_ms, now)
        if not self.is_active(level) and not source.is_feeding and source.taken == 0:
            if not self._is_stopping:
                await source.close()

    async def _handle(self, taken: Taken, work: Work) -> Outcome:
        """Run the handler; how it ended."""
        enter(work)
        try:
            if self._is_async:
                returned = await cast(Any, self.worker.process_message(taken.message))
            else:
                context = contextvars.copy_context()
                loop = asyncio.get_running_loop()
                returned = await loop.run_in_executor(
                    self._threads(), context.run, self.worker.process_message, taken.message
                )
                if inspect.isawaitable(returned):
                    returned = await returned
        except asyncio.CancelledError:
            # The pool ends, and this did not in time.
            return GiveBack()
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises has an outcome
            _log.warning("%s/%s: a handler failed", self.options.name, work.level, exc_info=error)
            return self.worker.outcome_of(error)
        if returned is None:
            return Complete()
        if not isinstance(returned, Outcome):
            _log.error("process_message returned %r, which is no outcome", returned)
            return Abandon()
        return returned

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            # Threads are made when they are needed; one that hangs must not keep others waiting.
            most = MAX_SIZE if self.options.scale is None else self.options.most
            name = f"tandem-{self.options.name}"
            self._executor = ThreadPoolExecutor(most, thread_name_prefix=name)
        return self._executor

    def _background(self, work: Any) -> None:
        self._keep(asyncio.create_task(work))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- how busy it was (P8) ---------------------------------------------------------------------

    def _count_busy(self, now_ms: Millis, busy: int) -> None:
        self._busy_ms += busy * (now_ms - self._busy_since_ms)
        self._busy_since_ms = now_ms

    def busy_seconds(self) -> float:
        """The time of all workers with messages, in all: its growth in a second is how many were
        busy."""
        self._count_busy(self.clock.now_ms(), self._order.busy)
        return self._busy_ms / 1000

    def working_on(self, index: int) -> set[int]:
        """Sequence numbers of the messages of a level that are begun. What is in hand still
        waits."""
        jobs = self._jobs.values()
        return {job.taken.sequence_number for job in jobs if job.taken.level == index}

    def operations(self) -> Counter[str]:
        """What the pool has asked of the broker (P11)."""
        total: Counter[str] = Counter()
        for source in self.sources:
            total += source.operations
        return total
