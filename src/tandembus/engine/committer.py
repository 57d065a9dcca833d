"""Group commit: records gather in a group, a group is one `append` and one sync.

The rule: while one group is being synced, the next one fills. There is no timer: an idle log takes
a record at once, a busy one shares each sync among all that came meanwhile.

The work beside the owner's thread goes through a `Lane`, of which there are two: `ThreadLane` in
production, and `SteppedLane`, which does its work when the simulator or a test says so. Everything
else here belongs to the one thread that owns the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Protocol, TypeAlias

from tandembus.clock import Clock
from tandembus.engine.metrics import Metrics
from tandembus.errors import StoreError
from tandembus.store.api import GROUP_HEADER, Buffer, Leased, Store

Job: TypeAlias = Callable[[], Any]
Done: TypeAlias = Callable[[Any], None]
Post: TypeAlias = Callable[[Callable[[], None]], object]
"""Has a call made in the owner's thread: `loop.call_soon_threadsafe`, or the `put` of a queue."""

IDLE_S: Final = 0.005
"""So long without work, a lane is idle. Shorter than any pause between two clients' requests."""
SMALL_BYTES: Final = 16 * 1024
QUICK_NS: Final = 1_000_000
"""A group so small, on a disk that took no longer the last time, may be written in the owner's
thread: two changes of threads cost more than the write."""


_WAKE: Final[tuple[Job, Done]] = (lambda: None, lambda _: None)


class Lane(Protocol):
    """Does jobs one by one, in order, beside the owner's thread; reports each in that thread."""

    def run(self, job: Job, done: Done) -> None:
        """Do `job`; then `done` gets what it returned, or the exception that it raised."""
        ...

    def run_here(self, job: Job, done: Done) -> None:
        """The same, at once and in the owner's thread, if nothing else is under way: then it is
        reported from within this call."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...


class ThreadLane:
    def __init__(
        self,
        post: Post,
        *,
        name: str,
        when_idle: Callable[[], None] | None = None,
    ) -> None:
        self._post = post
        self._when_idle = when_idle
        self._at_work = Lock()
        """Held during a job, by whichever thread does it, and during `when_idle`."""
        self._is_resting = False
        """The thread has called `when_idle`, and has to be woken to do so again."""
        self._done_here = 0
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        # A daemon: an owner that died of an exception must not leave a process that hangs.
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Job, done: Done) -> None:
        self._jobs.put((job, done))

    def run_here(self, job: Job, done: Done) -> None:
        if not self._jobs.empty() or not self._at_work.acquire(blocking=False):
            self.run(job, done)
            return
        try:
            result = _result(job)
            self._done_here += 1
            if self._is_resting:
                self._is_resting = False
                self._jobs.put(_WAKE)
        finally:
            self._at_work.release()
        done(result)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._next()) is not None:
            job, done = item
            with self._at_work:
                self._post(partial(done, _result(job)))
            del item, job, done  # it may hold an index of 40 MB: not while waiting for the next one

    def _next(self) -> tuple[Job, Done] | None:
        while self._when_idle is not None:
            seen = self._done_here
            try:
                return self._jobs.get(timeout=IDLE_S)
            except Empty:
                pass
            with self._at_work:
                if seen == self._done_here:
                    with suppress(StoreError):  # it comes again, with somebody who waits
                        self._when_idle()
                    self._is_resting = True
            if self._is_resting:
                item = self._jobs.get()
                if item is not _WAKE:
                    self._is_resting = False
                    return item
        return self._jobs.get()


def _result(job: Job) -> Any:
    try:
        return job()
    except Exception as error:  # noqa: BLE001 - whatever it is, the owner must learn of it
        return error


class SteppedLane:
    """Does a job, and reports it, when `step` is called. Same order, same results, no thread.
    `is_quick`: whether a job that may be done at once is."""

    def __init__(
        self,
        *,
        when_idle: Callable[[], None] | None = None,
        is_quick: Callable[[], bool] = lambda: False,
    ) -> None:
        self._when_idle = when_idle
        self._is_quick = is_quick
        self._jobs: deque[tuple[Job, Done]] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def run(self, job: Job, done: Done) -> None:
        self._jobs.append((job, done))

    def run_here(self, job: Job, done: Done) -> None:
        if self._jobs or not self._is_quick():
            self.run(job, done)
        else:
            done(_result(job))

    def step(self) -> bool:
        """Do the oldest job. False if there was none."""
        if not self._jobs:
            return False
        job, done = self._jobs.popleft()
        done(_result(job))
        if not self._jobs and self._when_idle is not None:
            with suppress(StoreError):
                self._when_idle()
        return True

    def close(self) -> None:
        while self.step():
            pass


class Committer:
    """Gathers records into groups and knows which of them are durable.

    Groups have numbers, 1, 2, 3 …; `durable` is the last one that is on disk. The engine appends to
    `filling` and counts `size` itself, because that is the hottest loop of the broker.
    """

    def __init__(
        self,
        store: Store,
        lane: Lane,
        clock: Clock,
        metrics: Metrics,
        *,
        committed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._lane = lane
        self._clock = clock
        self._metrics = metrics
        self._committed = committed
        self._failed = failed
        self._closed: deque[tuple[int, list[Buffer], int]] = deque()
        self._closed_bytes = 0
        self.is_writing = False
        """Whether a group is on its way to the disk."""
        self.is_stopped = False
        self._is_far = isinstance(store, Leased)
        """Whether a write goes over a network, which may be gone for seconds: nobody waits there
        in the owner's thread, however quick it was the last time."""
        self._took_ns = QUICK_NS
        self._rests_from_ns = 0
        """How long the last group took, and when it was on disk."""
        self.durable = 0
        self.end = store.end
        """Behind the last durable group."""
        self.number = 1
        """Of the group that is being filled."""
        self.filling: list[Buffer] = []
        self.size = 0
        self.first_place = store.end + GROUP_HEADER
        """Of the first record of the filling group. Groups are contiguous, so it is known now."""
        self.wants_sync = False
        """Somebody waits for the filling group."""
        self.riding_since: int | None = None
        """When the first record came into the filling group for which nobody waits."""

    @property
    def staged_bytes(self) -> int:
        """What is not durable yet."""
        return self._closed_bytes + self.size

    def cut(self) -> tuple[int, int]:
        """End the filling group. The number of the last group so far, and the place behind it."""
        if self.filling:
            self._closed.append((self.number, self.filling, self.size))
            self._closed_bytes += self.size
            self.first_place += self.size + GROUP_HEADER
            self.number += 1
            self.filling = []
            self.size = 0
        self.wants_sync = False
        self.riding_since = None
        return self.number - 1, self.first_place - GROUP_HEADER

    def flush(self) -> None:
        """Write what somebody waits for, unless a group is being written: then it follows by
        itself. It may report from within (`run_here`): whoever calls this has nothing half done."""
        if self.is_writing or self.is_stopped:
            return
        if not self._closed and self.wants_sync:
            self.cut()
        if self._closed:
            number, body, size = self._closed.popleft()
            self.is_writing = True
            run = self._lane.run_here if self._is_calm(size) else self._lane.run
            run(partial(self._write, body), partial(self._written, number, size))

    def _is_calm(self, size: int) -> bool:
        """Whether the disk has rested for longer than it worked: a busy one has a thread of its
        own, so that the next group fills meanwhile."""
        return (
            not self._is_far
            and size <= SMALL_BYTES
            and self._took_ns < QUICK_NS
            and self._clock.stopwatch_ns() - self._rests_from_ns > self._took_ns
        )

    def stop(self) -> None:
        """Begin nothing more, and report nothing more."""
        self.is_stopped = True

    def _write(self, body: list[Buffer]) -> tuple[int, int]:
        """In the lane: nothing of the owner's is touched here."""
        begun = self._clock.stopwatch_ns()
        end = self._store.append(body)
        return end, self._clock.stopwatch_ns() - begun

    def _written(self, number: int, size: int, result: tuple[int, int] | Exception) -> None:
        if self.is_stopped:
            return
        if isinstance(result, Exception):
            self._failed(result)
            return
        end, elapsed_ns = result
        if end != self.end + GROUP_HEADER + size:
            self._failed(StoreError(f"the log ends at {end:#x}, which is not where it was written"))
            return
        self.is_writing = False
        self._closed_bytes -= size
        self.durable = number
        self.end = end
        self._took_ns = elapsed_ns
        self._rests_from_ns = self._clock.stopwatch_ns()
        self._metrics.committed(size, elapsed_ns)
        self.flush()  # the disk first: it works while the answers go out
        self._committed()
