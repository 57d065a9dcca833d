"""`engine/blocking.py`: the engine as a plain object, with real threads and files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tandembus.changes import Mode
from tandembus.clock import ManualClock
from tandembus.core.commands import (
    Attach,
    CreateQueue,
    DeleteEntity,
    Disposition,
    Send,
    Settle,
)
from tandembus.core.effects import Effect, LinkClosed
from tandembus.engine.blocking import BlockingEngine, open_engine
from tandembus.engine.engine import Tuning
from tandembus.errors import EntityNotFoundError, Refused, StoreError, StoreInUseError
from tandembus.limits import KIB
from tandembus.settings import QueueSettings
from tandembus.store.files import FileStore
from tests.unit.engine.world import FaultyStore, Plain


def test_send_receive_complete_and_come_back(tmp_path: Path) -> None:
    """The whole life of a message, and two lives of a broker."""
    with open_engine(tmp_path, decode=Plain) as engine:
        engine.execute(CreateQueue("q"))
        assert list(engine.execute(Send("q", [Plain(b"one"), Plain(b"two")]))) == [1, 2]
        first, second = engine.receive("q", 5)
        assert engine.body(first.body) == b"one"
        assert first.token is not None
        engine.execute(Settle("q", [first.token], Disposition.COMPLETE))
        assert second.delivery_count == 0
    with open_engine(tmp_path, decode=Plain) as engine:
        assert engine.recovered.records == 0
        (again,) = engine.receive("q", 5, Mode.RECEIVE_AND_DELETE)
        assert engine.body(again.body) == b"two"
        assert again.delivery_count == 1
        assert engine.receive("q", 5) == []


def test_a_refusal_is_raised(tmp_path: Path) -> None:
    with open_engine(tmp_path, decode=Plain) as engine:
        with pytest.raises(EntityNotFoundError):
            engine.execute(DeleteEntity("nowhere"))
        replies = engine.execute_all([CreateQueue("q"), CreateQueue("q")])
        assert replies[0] is None
        assert isinstance(replies[1], Refused)


def test_what_is_due_is_done_at_the_next_call(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_engine(tmp_path, decode=Plain, clock=clock) as engine:
        engine.execute(CreateQueue("q", QueueSettings(lock_duration_ms=5_000)))
        engine.execute(Send("q", [Plain(b"one")]))
        (first,) = engine.receive("q")
        assert engine.receive("q") == []
        clock.advance(5_001)
        (second,) = engine.receive("q")
        assert second.delivery_count == first.delivery_count + 1


def test_many_commands_share_few_commits(tmp_path: Path) -> None:
    with open_engine(tmp_path, decode=Plain) as engine:
        engine.execute(CreateQueue("q"))
        before = engine.engine.metrics.commits
        replies = engine.execute_all(Send("q", [Plain(b"x" * 100)]) for _ in range(5_000))
        assert [list(r) for r in replies] == [[n] for n in range(1, 5_001)]
        assert engine.engine.metrics.commits - before < 50


def test_killed_and_opened_again(tmp_path: Path) -> None:
    """What was answered is there, though nobody stopped cleanly."""
    engine = open_engine(tmp_path, decode=Plain)
    engine.execute(CreateQueue("q"))
    engine.execute_all(Send("q", [Plain(b"%d" % n)]) for n in range(100))
    with pytest.raises(StoreInUseError):
        open_engine(tmp_path, decode=Plain)
    engine.abandon()
    with open_engine(tmp_path, decode=Plain) as again:
        assert again.recovered.records >= 102
        found = again.receive("q", 200)
        assert [again.body(d.body) for d in found] == [b"%d" % n for n in range(100)]


def test_other_effects_go_to_the_caller(tmp_path: Path) -> None:
    effects: list[Effect] = []
    with open_engine(tmp_path, decode=Plain, on_effect=effects.append) as engine:
        engine.execute(CreateQueue("q"))
        engine.execute(Attach(1, "q"))
        engine.execute(DeleteEntity("q"))
    assert [type(e) for e in effects] == [LinkClosed]


def test_a_store_that_fails(tmp_path: Path) -> None:
    engine = BlockingEngine(FaultyStore(fails_at=3), decode=Plain)
    engine.execute(CreateQueue("q"))
    with pytest.raises(StoreError, match="gone"):
        engine.execute(Send("q", [Plain(b"lost")]))
    with pytest.raises(StoreError, match="gone"):
        engine.execute(CreateQueue("r"))
    with pytest.raises(StoreError, match="gone"):
        engine.close()
    with pytest.raises(StoreError, match="gone"):
        BlockingEngine(FaultyStore(fails_at=1), decode=Plain)


def test_threads_files_and_compaction_together(tmp_path: Path) -> None:
    """Small segments, so that indexes, moves and drops run beside the commits; killed twice. What
    was kept is there with its bytes, what was completed is not."""
    tuning = Tuning(
        segment_bytes=64 * KIB, move_bytes=8 * KIB, group_bytes=16 * KIB, cache_bytes=32 * KIB
    )
    rng = random.Random(3)
    kept: dict[int, bytes] = {}
    completed: set[int] = set()
    for life in range(3):
        store = FileStore(tmp_path, segment_bytes=64 * KIB)
        engine = BlockingEngine(store, decode=Plain, tuning=tuning)
        if not life:
            engine.execute(CreateQueue("q", QueueSettings(max_delivery_count=100)))
        for delivery in engine.receive("q", 10_000):
            assert engine.body(delivery.body) == kept[delivery.sequence_number]
            assert delivery.sequence_number not in completed
        for _ in range(40):
            payloads = [rng.randbytes(rng.randrange(3_000)) for _ in range(20)]
            numbers = engine.execute(Send("q", [Plain(p) for p in payloads]))
            kept.update(zip(numbers, payloads, strict=True))
            found = engine.receive("q", 100)
            done = [d for d in found if rng.random() < 0.9]
            tokens = [d.token for d in done if d.token is not None]
            engine.execute(Settle("q", tokens, Disposition.COMPLETE))
            for delivery in done:
                del kept[delivery.sequence_number]
                completed.add(delivery.sequence_number)
        assert engine.engine.metrics.indexes_saved > 3
        engine.abandon()
    with open_engine(tmp_path, decode=Plain) as engine:
        found = engine.receive("q", 10_000)
        assert {d.sequence_number: engine.body(d.body) for d in found} == kept
