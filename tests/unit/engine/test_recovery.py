"""`engine/recovery.py` and `engine/index.py`: the next life knows what the former one knew."""

from __future__ import annotations

import random

import pytest

from tandembus.clock import ManualClock
from tandembus.core.commands import Disposition, Send, Settle
from tandembus.core.namespace import Namespace
from tandembus.engine import index
from tandembus.engine.engine import Tuning
from tandembus.engine.recovery import recover
from tandembus.errors import StoreError
from tandembus.limits import KIB
from tandembus.store.api import Store
from tandembus.store.memory import MemoryStore
from tests.unit.engine.world import Plain, World

SMALL = Tuning(segment_bytes=32 * KIB, move_bytes=4 * KIB, group_bytes=8 * KIB, cache_bytes=0)


def state(namespace: Namespace) -> bytes:
    """All of it but the time of the last look at a queue: looking leaves no record."""
    for queue in namespace.entities:
        queue.accessed_ms = 0
    return b"".join(namespace.dump())


def churn(world: World, rng: random.Random, steps: int) -> None:
    """Some of everything."""
    for _ in range(steps):
        world.clock.advance(rng.randrange(2_000))
        world.engine.tick()
        roll = rng.random()
        if roll < 0.5:
            payloads = [Plain(rng.randbytes(rng.randrange(1_500))) for _ in range(rng.randrange(9))]
            world.submit(Send("q", payloads))
        elif roll < 0.6:
            due = world.clock.now_ms() + rng.randrange(60_000)
            world.submit(Send("q", [Plain(b"later", scheduled_ms=due)]))
        else:
            world.flow(1, rng.randrange(20))
            world.settle()
            for delivery in world.delivered():
                assert delivery.token is not None
                what = rng.choice([*Disposition, *[Disposition.COMPLETE] * 6])
                world.submit(Settle("q", [delivery.token], what))
        if rng.random() < 0.5:
            world.commit()
        if rng.random() < 0.3:
            world.settle()
    world.settle()


def bodies_of(world: World) -> dict[int, bytes]:
    """Every body that is alive, as it is read."""
    numbers = world.recovered.bodies.living_before(1 << 62)
    return {number: world.engine.body(number) for number in numbers}


@pytest.mark.parametrize("seed", range(6))
def test_recovered_is_what_was_before(seed: int) -> None:
    """Index and tail, tail alone: namespace and bodies are byte for byte those of a life that was
    not interrupted, apart from the locks, which end with it."""
    rng = random.Random(seed)
    store: Store = MemoryStore()
    clock = ManualClock(seed=seed)
    tuning = SMALL if seed % 2 else Tuning()
    world = World(store, clock, tuning=tuning)
    world.queue()
    for _ in range(4):
        world.attach(1)
        churn(world, rng, 120)
        world.send(b"so that the last record has the latest time")
        if rng.random() < 0.5:
            world.stop()
        else:
            world.engine.close(lambda: None)
            world.commit()  # the records that rode along; the index is never saved
        before, living = state(world.namespace), bodies_of(world)
        freed = set(world.engine._freed_numbers())
        recovered = recover(store)
        assert state(recovered.namespace) == before
        assert recovered.bodies.count == len(living) - len(freed)
        world = World(store, clock, tuning=tuning)
        world.settle()
        assert bodies_of(world) == {n: p for n, p in living.items() if n not in freed}


def test_a_clean_stop_leaves_nothing_to_replay() -> None:
    world = World()
    world.queue()
    world.send(b"one", b"two")
    world.stop()
    recovered = recover(world.store)
    assert recovered.records == 0
    assert recovered.index_place == world.store.end
    again = World(world.store)
    again.attach(1)
    found = again.receive(1, 5)
    assert [again.engine.body(d.body) for d in found] == [b"one", b"two"]


def test_a_second_stop_right_after_saves_again_only_what_changed() -> None:
    """Each life writes its `Started`, so each stop has a new index; and only one."""
    world = World()
    world.stop()
    again = World(world.store)
    again.settle()
    again.stop()
    assert again.engine.metrics.indexes_saved == 1


def test_locks_of_the_former_life_end() -> None:
    """What was locked comes back, counted, and with a number of deliveries that was not
    forgotten."""
    world = World()
    world.queue()
    world.send(b"one")
    world.attach(1)
    (first,) = world.receive(1, 1)
    world.engine.close(lambda: None)
    world.settle()
    again = World(world.store)
    again.attach(1)
    (second,) = again.receive(1, 1)
    assert second.sequence_number == first.sequence_number
    assert second.delivery_count == first.delivery_count + 1


def test_progress_is_told() -> None:
    world = World(tuning=Tuning(group_bytes=1_000))
    world.queue()
    for _ in range(5):
        world.send(b"x" * 1_000)
    told: list[tuple[int, int]] = []
    recover(world.store, lambda done, total: told.append((done, total)))
    assert len(told) == 7
    assert told == sorted(told)
    assert {total for _, total in told} == {world.store.end}


def test_time_goes_on_where_the_log_ends() -> None:
    """The wall clock of the former life was ahead: the new one does not go back behind its log."""
    world = World(clock=ManualClock(2_000_000_000_000))
    world.queue()
    world.send(b"one")
    world.clock.advance(5_000)
    world.send(b"two")
    behind = ManualClock(1_000_000_000_000)
    again = World(world.store, behind)
    assert behind.now_ms() == 2_000_000_005_000
    again.settle()
    again.stop()
    behind = ManualClock(1_000_000_000_000)
    World(world.store, behind)
    assert behind.now_ms() == 2_000_000_005_000


def test_the_clock_is_not_behind_core_after_a_record_of_an_earlier_time() -> None:
    """A schedule that is activated late has its due time in the log, behind a later one in the same
    group: with the clock behind core an id within its window was taken again."""
    world = World()
    window_ms = 20_000
    world.queue("d", requires_duplicate_detection=True, duplicate_window_ms=window_ms)
    world.queue("q")
    world.queue("late")
    begin = world.clock.now_ms()
    world.execute(Send("d", [Plain(b"one", message_id="one")]))
    world.execute(Send("late", [Plain(b"late", scheduled_ms=begin + 1_000)]))
    world.clock.advance(window_ms)
    latest = world.clock.now_ms()
    world.submit_payload(b"in the same group")
    world.engine.tick()
    world.settle()
    behind = ManualClock(begin)
    again = World(world.store, behind)
    assert again.recovered.time == latest
    assert behind.now_ms() == again.namespace.now == latest


def test_an_index_of_another_version_is_refused() -> None:
    world = World()
    world.queue()
    data = b"".join(index.pack(world.namespace, world.recovered.bodies, [], 5))
    assert index.unpack(data).time == 5
    with pytest.raises(StoreError, match="version 9"):
        index.unpack(b"\x09" + data[1:])
