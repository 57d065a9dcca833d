"""`engine/committer.py`: the lanes and the groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import pytest

from tandembus.clock import Clock, ManualClock
from tandembus.engine.committer import (
    SMALL_BYTES,
    Committer,
    Done,
    Job,
    Lane,
    SteppedLane,
    ThreadLane,
)
from tandembus.engine.metrics import Metrics
from tandembus.errors import StoreError
from tandembus.store.api import GROUP_HEADER, Buffer
from tandembus.store.memory import MemoryStore


def test_a_thread_reports_in_the_owners_thread_in_order() -> None:
    """Results and exceptions come back where the owner looks for them."""
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
    lane = ThreadLane(calls.put, name="test")
    results: list[object] = []
    threads: list[str] = []

    def job() -> int:
        threads.append(threading.current_thread().name)
        return 5

    def bad_job() -> int:
        raise StoreError("no")

    lane.run(job, results.append)
    lane.run(bad_job, results.append)
    lane.run(job, results.append)
    for _ in range(3):
        calls.get(timeout=10)()
    lane.close()
    assert threads == ["test", "test"]
    assert results[0] == results[2] == 5
    assert isinstance(results[1], StoreError)


def test_a_lane_says_once_that_it_is_idle() -> None:
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
    idle: SimpleQueue[int] = SimpleQueue()

    def when_idle() -> None:
        idle.put(1)
        raise StoreError("of no interest to anybody now")

    lane = ThreadLane(calls.put, name="test", when_idle=when_idle)
    assert idle.get(timeout=10)
    lane.run(lambda: None, lambda _: None)
    calls.get(timeout=10)()
    assert idle.get(timeout=10)
    lane.close()
    assert idle.empty()

    stepped = SteppedLane(when_idle=when_idle)
    stepped.run(lambda: None, lambda _: None)
    stepped.run(lambda: None, lambda _: None)
    assert stepped.step()
    assert idle.empty()
    assert stepped.step()
    assert idle.get_nowait()
    assert not stepped.step()


def test_a_job_can_be_done_in_the_owners_thread() -> None:
    """It is reported at once, and the lane becomes idle again after it."""
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
    idle: SimpleQueue[int] = SimpleQueue()
    lane = ThreadLane(calls.put, name="test", when_idle=lambda: idle.put(1))
    assert idle.get(timeout=10)
    results: list[object] = []
    for _ in range(2):
        lane.run_here(lambda: threading.current_thread().name, results.append)
        assert results.pop() == threading.current_thread().name
        assert idle.get(timeout=10)

    begun, go_on = threading.Event(), threading.Event()

    def slow() -> bool:
        begun.set()
        return go_on.wait(10)

    lane.run(slow, results.append)
    assert begun.wait(10)
    lane.run_here(lambda: threading.current_thread().name, results.append)
    go_on.set()
    for _ in range(2):
        calls.get(timeout=10)()
    assert results == [True, "test"], "a lane at work does it in its own thread, in order"
    lane.close()


class Groups:
    def __init__(self, lane: Lane, store: MemoryStore, clock: Clock | None = None) -> None:
        self.durable: list[int] = []
        self.errors: list[Exception] = []
        self.store = store
        self.committer = Committer(
            store,
            lane,
            clock or ManualClock(),
            Metrics(),
            committed=lambda: self.durable.append(self.committer.durable),
            failed=self._failed,
        )

    def _failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.committer.stop()

    def put(self, data: bytes) -> int:
        committer = self.committer
        place = committer.first_place + committer.size
        committer.filling.append(data)
        committer.size += len(data)
        committer.wants_sync = True
        return place


def test_the_next_group_fills_while_one_is_written() -> None:
    """No timer: the first record goes at once, everything that comes meanwhile shares the next."""
    lane = SteppedLane()
    groups = Groups(lane, MemoryStore())
    places = [groups.put(b"first")]
    groups.committer.flush()
    for n in range(9):
        places.append(groups.put(b"%d" % n))
        groups.committer.flush()
    assert len(lane) == 1
    assert groups.committer.staged_bytes == 5 + 9
    lane.step()
    assert groups.durable == [1]
    assert len(lane) == 1, "the next one follows by itself"
    lane.step()
    assert groups.durable == [1, 2]
    assert groups.committer.staged_bytes == 0
    assert [g.body for g in groups.store.replay(0)] == [b"first", b"012345678"]
    assert groups.store.read(places[0], 5) == b"first"
    assert [groups.store.read(p, 1) for p in places[1:]] == [b"%d" % n for n in range(9)]


def test_a_disk_that_rests_is_written_by_the_owner_and_a_busy_one_by_the_lane() -> None:
    here: list[bool] = []

    class Watched(SteppedLane):
        def run(self, job: Job, done: Done) -> None:
            here.append(False)
            super().run(job, done)

        def run_here(self, job: Job, done: Done) -> None:
            here.append(True)
            super().run(job, done)

    class Disk(MemoryStore):
        takes_ms = 0

        def append(self, body: Sequence[Buffer]) -> int:
            clock.advance(self.takes_ms)
            return super().append(body)

    clock, lane, disk = ManualClock(), Watched(), Disk()
    groups = Groups(lane, disk, clock)

    def write(size: int = 1) -> bool:
        groups.put(bytes(size))
        groups.committer.flush()
        lane.step()
        return here.pop()

    assert not write(), "nobody knows yet how quick the disk is"
    assert not write(), "it has not rested"
    clock.advance(1)
    assert write()
    clock.advance(1)
    assert not write(SMALL_BYTES + 1)
    disk.takes_ms = 1
    clock.advance(1)
    assert write()
    clock.advance(10)
    assert not write(), "a slow disk is not waited for"

    class Database(Disk):
        is_sure = True

    groups = Groups(lane, Database(), clock)
    for _ in range(3):
        clock.advance(1)
        assert not write(), "however quick: a network can be gone the next time"


def test_a_cut_ends_a_group_also_while_one_is_written() -> None:
    lane = SteppedLane()
    groups = Groups(lane, MemoryStore())
    assert groups.committer.cut() == (0, 0), "nothing to cut: the border is where it was"
    groups.put(b"a")
    assert groups.committer.cut() == (1, GROUP_HEADER + 1)
    groups.put(b"b")
    assert groups.committer.cut() == (2, 2 * (GROUP_HEADER + 1))
    groups.committer.flush()
    while lane.step():
        pass
    assert groups.durable == [1, 2]
    assert [g.body for g in groups.store.replay(0)] == [b"a", b"b"]


def test_a_failed_write_is_not_repeated() -> None:
    class Failing(MemoryStore):
        def append(self, body: object) -> int:
            raise StoreError("no space")

    lane = SteppedLane()
    groups = Groups(lane, Failing())
    groups.put(b"a")
    groups.committer.flush()
    lane.step()
    assert [str(e) for e in groups.errors] == ["no space"]
    groups.put(b"b")
    groups.committer.flush()
    assert not lane.step()
    assert groups.durable == []


def test_a_log_that_ends_elsewhere_is_noticed() -> None:
    """Another writer in the same log: the places that we computed would be lies."""
    lane = SteppedLane()
    groups = Groups(lane, MemoryStore())
    groups.put(b"a")
    groups.store.append([b"a stranger's"])
    groups.committer.flush()
    lane.step()
    (error,) = groups.errors
    with pytest.raises(StoreError, match="not where it was written"):
        raise error
