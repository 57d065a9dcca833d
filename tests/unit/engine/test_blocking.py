"""`engine/blocking.py`: the engine as a plain object, with real threads and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.changes import Mode
from tandem.clock import ManualClock
from tandem.core.commands import (
    CreateQueue,
    DeleteEntity,
    Disposition,
    Send,
    Settle,
)
from tandem.core.effects import Effect, LinkClosed
from tandem.engine.blocking import BlockingEngine, open_engine
from tandem.errors import EntityNotFoundError, Refused, StoreError, StoreInUseError
from tandem.settings import QueueSettings
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
        from tandem.core.commands import Attach

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
