"""`engine/compaction.py`: the log stays short, and nothing alive is lost."""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from pathlib import Path

import pytest

from tandembus.core.commands import Send
from tandembus.core.state import State
from tandembus.engine.engine import LATE_READ_MS, Tuning
from tandembus.errors import ArgumentError
from tandembus.limits import KIB
from tandembus.store.api import Store
from tandembus.store.files import FileStore
from tandembus.store.memory import MemoryStore
from tests.unit.engine.world import Plain, World

SEGMENT = 32 * KIB
SMALL = Tuning(segment_bytes=SEGMENT, move_bytes=4 * KIB, group_bytes=8 * KIB, cache_bytes=0)


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    return FileStore(tmp_path / "log", segment_bytes=SEGMENT)


def straggle(world: World, count: int, *, keep_every: int) -> dict[int, bytes]:
    """Send and complete, but leave every so-manieth message locked. Returns the bodies of those."""
    rng = random.Random(5)
    with suppress(ArgumentError):  # it is attached already
        world.attach(7)
    kept: dict[int, bytes] = {}
    for first in range(0, count, 10):
        payloads = [rng.randbytes(1_000) for _ in range(10)]
        world.send(*payloads)
        found = world.receive(7, 10)
        done = []
        for number, delivery in enumerate(found, first):
            if number % keep_every == 0:
                kept[delivery.body] = payloads[number - first]
            else:
                done.append(delivery)
        world.complete(done)
        world.clock.advance(100)
    world.clock.advance(LATE_READ_MS)
    world.send(b"the end")
    world.settle()
    return kept


def snapshot(store: MemoryStore) -> MemoryStore:
    """What a crash at this moment would leave."""
    return copy.deepcopy(store)


def length(store: Store) -> int:
    return store.end - store.start


def test_a_log_of_stragglers_is_compacted(store: Store) -> None:
    """One message in twenty stays. The log shrinks to a small multiple of it, every body that is
    left is read as it was sent, in this life and in the next."""
    world = World(store, tuning=SMALL)
    world.queue(lock_duration_ms=300_000)
    kept = straggle(world, 1_500, keep_every=20)
    live = world.recovered.bodies.live_bytes
    assert world.engine.metrics.bodies_moved > len(kept)
    assert store.end > 1_500 * 1_000
    assert length(store) < 2 * live + 8 * SEGMENT
    assert {n: world.engine.body(n) for n in kept} == kept
    world.stop()
    again = World(store, tuning=SMALL)
    assert {n: again.engine.body(n) for n in kept} == kept
    again.settle()
    again.attach(9)
    found = again.receive(9, 1_000)
    assert len(found) == len(kept) + 1


def test_groups_that_are_durable_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a calm disk a group is reported while it is being handed over, also the one that an index
    waits for: with what came in answer to the group before."""
    world = World(store, tuning=SMALL)
    world.queue()
    monkeypatch.setattr(world.commits, "_is_quick", lambda: True)
    answered: list[object] = []

    def go_on(reply: object) -> None:
        answered.append(reply)
        world.clock.advance(1)  # so long the disk has rested
        world.submit_payload(b"x" * 1_000)

    for _ in range(200):
        world.engine.submit(Send("q", [Plain(b"x" * 1_000)]), go_on)
        world.settle()
    assert len(answered) == 200
    assert world.engine.metrics.indexes_saved > 3
    assert world.engine.namespace.find("q").counts[State.WAITING] == 400


def test_consumed_is_freed(store: Store) -> None:
    """All that came was completed: a few segments are left, and nothing was copied."""
    world = World(store, tuning=SMALL)
    world.queue()
    straggle(world, 600, keep_every=10_000)
    assert length(store) < 8 * SEGMENT
    assert world.engine.metrics.bodies_moved <= 10
    assert world.engine.metrics.indexes_saved > 5


def test_a_crash_at_any_step_of_compaction_loses_nothing() -> None:
    """Before every single step of either lane, the log as it is then is opened by another life."""
    store = MemoryStore()
    world = World(store, tuning=SMALL)
    world.queue(lock_duration_ms=300_000)
    kept = straggle(world, 200, keep_every=5)
    checked = 0
    rng = random.Random(2)
    while checked < 400:
        world.submit_payload(rng.randbytes(900))
        world.engine.flush()
        while world.commits or world.side:
            again = World(snapshot(store), tuning=SMALL)
            assert {n: again.engine.body(n) for n in kept} == kept
            checked += 1
            if not (rng.random() < 0.5 and world.side.step()):
                world.commits.step() or world.side.step()
        for delivery in world.receive(7, 5):
            world.complete([delivery])
        world.clock.advance(LATE_READ_MS)
    assert world.engine.metrics.bodies_moved > 80


def test_a_body_freed_while_it_is_moved_stays_freed() -> None:
    world = World(tuning=SMALL)
    world.queue(lock_duration_ms=300_000)
    world.attach(1)
    world.send(*[b"x" * 1_000 for _ in range(8)])
    old = world.receive(1, 8)
    straggle_until_moving(world)
    assert world.engine._compactor._moved, "a step is on its way"
    world.submit_complete(old)
    world.settle()
    world.clock.advance(LATE_READ_MS)
    world.send(b"the end")
    for delivery in old:
        assert world.recovered.bodies.place(delivery.body) == 0
    again = World(world.store, tuning=SMALL)
    for delivery in old:
        assert again.recovered.bodies.place(delivery.body) == 0


def straggle_until_moving(world: World) -> None:
    """Single steps, until compaction has written some bodies again and waits for the disk."""
    world.attach(7)
    for _ in range(500):
        world.submit_payload(b"y" * 1_000)
        world.flow(7, 1)
        world.engine.flush()
        while world.commits or world.side:
            if not world.commits.step():
                world.side.step()
            if world.engine._compactor._moved:
                return
            if found := world.delivered():
                world.submit_complete(found)
        world.clock.advance(100)


def test_what_a_reader_holds_is_kept() -> None:
    """A journal reader that lags keeps its part of the log, and lets go of it later."""
    world = World(tuning=SMALL)
    world.queue()
    world.engine.hold("journal", 0)
    straggle(world, 400, keep_every=10_000)
    assert world.store.start == 0
    world.engine.hold("journal", 5 * SEGMENT)
    straggle(world, 100, keep_every=10_000)
    assert 0 < world.store.start <= 5 * SEGMENT
    world.engine.hold("journal", None)
    straggle(world, 100, keep_every=10_000)
    assert world.store.start > 5 * SEGMENT


def test_the_index_before_the_newest_can_still_be_used(tmp_path: Path) -> None:
    """One rotten index is no loss: the one before it, and the log behind it, are kept."""
    folder = tmp_path / "log"
    store = FileStore(folder, segment_bytes=SEGMENT)
    world = World(store, tuning=SMALL)
    world.queue(lock_duration_ms=300_000)
    kept = straggle(world, 300, keep_every=10)
    world.stop()
    store.close()
    newest = max(folder.glob("*.index"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 4
    newest.write_bytes(data)
    store = FileStore(folder, segment_bytes=SEGMENT)
    again = World(store, tuning=SMALL)
    assert again.recovered.records > 0
    assert {n: again.engine.body(n) for n in kept} == kept
    store.close()


def test_a_failed_index_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    world = World(store, tuning=SMALL)
    world.queue()

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "save_index", broken)
    world.send(*[b"x" * 1_000 for _ in range(100)])
    assert "No space left" in str(world.failures[0])
