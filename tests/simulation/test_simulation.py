"""The simulator: a slice of `make simulate`, and canaries that show that its checkers see.

A canary is a fault put into the product on purpose; some seed among a few must find it, and name
the promise that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from tandembus.changes import Change, Delivered, Enqueued, Mode, Removal, Removed, Returned
from tandembus.core import lifecycle
from tandembus.core.duplicates import Duplicates
from tandembus.core.namespace import Namespace
from tandembus.core.queue import Queue
from tandembus.engine.committer import Committer
from tandembus.engine.engine import Engine
from tests.simulation.checkers import Violation
from tests.simulation.mix import draw
from tests.simulation.run import Verdict, judge
from tests.simulation.world import World

TEN_MINUTES = 1 / 6


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_no_promise_is_broken(first: int) -> None:
    """20 seeds of ten minutes, with all their faults."""
    for seed in range(first, first + 5):
        verdict = judge(seed, TEN_MINUTES)
        assert not verdict.violation, verdict


def test_same_seed_same_trace() -> None:
    """A seed is all there is: what it finds can be found again."""
    for seed in (3, 4):
        assert World(seed, hours=TEN_MINUTES).run() == World(seed, hours=TEN_MINUTES).run()


def test_a_cancel_without_an_answer_is_no_cancel() -> None:
    """The crash came before the answer, and the message is still scheduled: nobody was told
    otherwise."""
    verdict = judge(676_175_556, 1.0)
    assert not verdict.violation, verdict


def test_the_seeds_reach_what_they_are_for() -> None:
    """Every feature, both stores, and every kind of fault."""
    mixes = [draw(seed) for seed in range(100)]
    assert {name for mix in mixes for name in mix.features} >= {"sessions", "topics", "levels"}
    assert 20 < sum(mix.is_on_files for mix in mixes) < 80
    assert any(mix.leaps for mix in mixes)
    unseen = {"crashes", "crashes in recovery", "torn", "disk errors", "clean stops"}
    for seed in range(20, 60):
        verdict = judge(seed, TEN_MINUTES)
        assert not verdict.violation, verdict
        unseen -= set(verdict.counts)
        if not unseen:
            break
    assert not unseen


# --- canaries -------------------------------------------------------------------------------------


def caught(
    seeds: Collection[int], *, hours: float = 0.5, forgets: Collection[str] = ()
) -> Verdict | None:
    """The first verdict that is a violation."""
    for seed in seeds:
        verdict = judge(seed, hours, forgets=forgets)
        if verdict.violation:
            return verdict
    return None


def busy_seeds(count: int, *features: str, on_files: bool | None = None) -> list[int]:
    """Seeds that crash, and that have these features."""
    found: list[int] = []
    seed = 1_000
    while len(found) < count:
        mix = draw(seed)
        if mix.crashes >= 6 and set(features) <= set(mix.features):
            if on_files is None or mix.is_on_files == on_files:
                found.append(seed)
        seed += 1
    return found


def expect(verdict: Verdict | None, *promises: str) -> None:
    assert verdict is not None, "the checkers are blind"
    assert verdict.violation.split(":")[0] in promises, verdict


def test_canary_answers_before_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that lets answers and deliveries out before they are durable."""
    take, release = Engine._take, Engine._release

    def hasty_release(engine: Engine) -> None:
        durable = engine._committer.durable
        engine._committer.durable = 1 << 60
        try:
            release(engine)
        finally:
            engine._committer.durable = durable

    def hasty_take(engine: Engine, *arguments: Any, **more: Any) -> None:
        take(engine, *arguments, **more)
        engine._release()

    monkeypatch.setattr(Engine, "_release", hasty_release)
    monkeypatch.setattr(Engine, "_take", hasty_take)
    expect(caught(busy_seeds(10)), "P1", "P2", "P3", "P5", "P8", "P13")


def test_canary_a_write_that_is_not_synced() -> None:
    """A log whose groups are written and not synced: a power cut loses what was acknowledged, or
    the bodies of what an index, which is synced, still has (P13)."""
    caught_one = caught(busy_seeds(10, on_files=True), forgets={"write"})
    expect(caught_one, "P1", "P2", "P3", "P5", "P8", "P13")


def replay_without(kind: Callable[[Change], bool]) -> Callable[[Namespace, Change], None]:
    replay = Namespace.replay

    def forgetful(namespace: Namespace, change: Change) -> None:
        if not kind(change):
            replay(namespace, change)

    return forgetful


def test_canary_completion_forgotten_at_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that does not play completions again: they come back."""

    def is_completion(change: Change) -> bool:
        return isinstance(change, Removed) and change.reason == Removal.COMPLETED

    monkeypatch.setattr(Namespace, "replay", replay_without(is_completion))
    expect(caught(busy_seeds(6)), "P2", "P5")


def test_canary_taken_forgotten_at_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that does not play receive-and-delete again: a second delivery."""

    def is_taking(change: Change) -> bool:
        return isinstance(change, Delivered) and change.mode == Mode.RECEIVE_AND_DELETE

    monkeypatch.setattr(Namespace, "replay", replay_without(is_taking))
    expect(caught(busy_seeds(10, "takes")), "P3")


def test_canary_returns_forgotten_at_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that forgets what was abandoned: the deliveries before are not counted."""
    monkeypatch.setattr(
        Namespace, "replay", replay_without(lambda change: isinstance(change, Returned))
    )
    assert caught(busy_seeds(10)) is not None


def test_canary_a_transaction_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that puts the parts of a transaction into several groups: half of it survives."""
    stage = Engine._stage

    def is_part(change: Change) -> bool:
        if isinstance(change, Removed):
            return change.reason == Removal.COMPLETED
        return isinstance(change, Enqueued) and change.payload is not None

    def piecemeal(engine: Engine, changes: list[Change], *rest: Any, **more: Any) -> None:
        if len(changes) > 1 and all(map(is_part, changes)):
            for change in changes:
                stage(engine, [change], *rest, **more)
                engine._committer.cut()
        else:
            stage(engine, changes, *rest, **more)

    monkeypatch.setattr(Engine, "_stage", piecemeal)
    expect(caught(busy_seeds(40, "transactions")), "P1", "P9")


def test_canary_duplicates_forgotten_at_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core whose duplicate history does not survive."""
    replay = Namespace.replay

    def forgetful(namespace: Namespace, change: Change) -> None:
        if isinstance(change, Enqueued):
            change = change._replace(duplicate_key=None)
        replay(namespace, change)

    monkeypatch.setattr(Namespace, "replay", forgetful)
    monkeypatch.setattr(Duplicates, "load", classmethod(lambda cls, *source: _emptied(*source)))
    expect(caught(busy_seeds(10, "duplicates")), "P8")


def _emptied(source: Any, version: int) -> Duplicates:
    assert version > 5
    source.bytes()
    return Duplicates()


def test_canary_schedules_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that activates a scheduled message a second before its time."""
    activate = lifecycle.activate_due
    monkeypatch.setattr(lifecycle, "activate_due", lambda queue, now: activate(queue, now + 1_000))
    expect(caught(busy_seeds(10, "schedules")), "P7")


def test_canary_a_delay_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that brings back what was put off half a second before its time."""
    delay = Queue.delay
    monkeypatch.setattr(
        Queue, "delay", lambda queue, n, why, due, x: delay(queue, n, why, due - 500, x)
    )
    expect(caught(busy_seeds(10)), "P7")


def test_canary_a_number_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that does not learn its last number from an index."""
    load = Queue.load

    def forgetful(queue: Queue, *source: Any) -> None:
        load(queue, *source)
        for part in queue.parts:
            part.last = max(0, part.last - 1)

    monkeypatch.setattr(Queue, "load", forgetful)
    assert caught(busy_seeds(10)) is not None


def test_canary_a_lock_that_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue whose locks end four seconds before the receiver was told."""
    lock = Queue.lock

    def short(
        queue: Queue, number: int, chunk: Any, row: int, nonce: int, until: int, *rest: Any
    ) -> None:
        lock(queue, number, chunk, row, nonce, until - 4_000, *rest)

    monkeypatch.setattr(Queue, "lock", short)
    expect(caught(busy_seeds(6)), "P4")


def test_canary_a_commit_that_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer that now and then says "written" without having written."""
    write = Committer._write

    def lazy(committer: Committer, body: list[Any]) -> tuple[int, int]:
        committer.__dict__["turn"] = turn = committer.__dict__.get("turn", 0) + 1
        if turn % 50 == 0:
            return committer._store.end + 40 + sum(map(len, body)), 0
        return write(committer, body)

    monkeypatch.setattr(Committer, "_write", lazy)
    assert caught(busy_seeds(6)) is not None


def test_a_violation_says_which_promise() -> None:
    assert str(Violation("P1", "a message is lost")) == "P1: a message is lost"


def test_who_gets_an_answer_in_the_last_moment_and_asks_for_more_is_answered() -> None:
    """Seed 187483845: a commit that was done while it was handed over let a message out, whose
    settlement was the last command of all; nobody handed that over any more."""
    World(187_483_845, hours=1.0).run()
