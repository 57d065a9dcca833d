"""A short slice of `make powercut`, and the test of the tester."""

from __future__ import annotations

import random

import pytest

from tandembus.changes import Mode
from tandembus.core import lifecycle
from tandembus.core.commands import Attach, Disposition, Flow, Send, Settle
from tandembus.core.queue import Queue
from tests.crash.engine_images import record_run
from tests.crash.engine_life import Life, Link, OverlappingDisk, Shape, decode
from tests.crash.ledger import Bad, Where, make_payload
from tests.crash.powercut import Job, run
from tests.crash.promises import Promises
from tests.crash.recording_disk import Killed, RecordingDisk, Rename, after_power_cut
from tests.crash.traffic import Traffic


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_no_power_cut_loses_what_was_acknowledged(seed: int) -> None:
    """50 images each: rolled, recycled, dropped and indexed segments, kills, and cuts in the
    recovery."""
    assert [str(found) for found in run(Job("image", seed, 50)) if found.what] == []


@pytest.mark.parametrize("seed", [1, 2])
def test_no_flipped_bit_goes_unnoticed(seed: int) -> None:
    results = [found.what for found in run(Job("flip", seed, 30))]
    assert set(results) == {"detected", "harmless"}


@pytest.mark.parametrize("kind", ["canary", "write", "folder", "file"])
def test_the_harness_finds_what_is_lost_without_a_sync(kind: str) -> None:
    """All syncs left out, or one kind of them: if nothing is found, the harness is blind."""
    results = [found.what for seed in (1, 2) for found in run(Job(kind, seed, 20))]
    assert any(results)


@pytest.mark.parametrize("seed", [1, 4, 8])
def test_no_power_cut_breaks_what_the_engine_promised(seed: int) -> None:
    """35 images each of a whole engine: every kind of command, indexes, compaction, restarts."""
    assert [str(found) for found in run(Job("engine", seed, 35)) if found.what] == []


def test_the_engine_images_come_from_a_log_that_was_compacted() -> None:
    """Else they would prove less than they say."""
    runs = [record_run(seed) for seed in (1, 4, 8)]
    assert all(one.indexes > 2 for one in runs)
    assert sum(one.moved for one in runs) > 10
    renamed = [o for one in runs for o in one.disk.journal if isinstance(o, Rename)]
    assert any(o.new_path.endswith(".spare") for o in renamed)
    assert any(o.path.endswith(".spare") for o in renamed)
    assert any(len(one.lives) > 1 for one in runs)


# --- what long runs have found --------------------------------------------------------------------


def deferred(ttl_ms: int) -> Traffic:
    """A life in which message 1 of "q" was deferred two seconds ago, and somebody waits there."""
    rng, known = random.Random(1), {1: make_payload({"id": 1, "ttl_ms": ttl_ms}, b"")}
    life = Life(OverlappingDisk(1), Shape.draw(rng), known, None, Promises())
    traffic = Traffic(life, rng, known)
    traffic.prepare()
    life.links[1] = Link("q", Mode.PEEK_LOCK, None)
    life.execute(Send("q", [decode(known[1])]))
    life.execute(Attach(1, "q"))
    life.execute(Flow(1, 2, 7))
    (held,) = life.held["q"]
    life.execute(Settle("q", [held.token], Disposition.DEFER))
    life.clock.advance(2_000)
    return traffic


@pytest.mark.parametrize("ttl_ms", [1_000, 10_000])
def test_fk10_a_deferred_message_expires_when_it_is_active_again(ttl_ms: int) -> None:
    """Not while it is deferred; then at once, since somebody asks for it. One whose time is not
    over is there."""
    traffic = deferred(ttl_ms)
    traffic.reactivate("q", 1, 1)
    where = traffic.life.record.intent["message", "q", 1]
    assert isinstance(where, Where)
    assert where.kind == ("dead" if ttl_ms == 1_000 else "here")


@pytest.mark.parametrize(("ttl_ms", "reason"), [(1_000, "other"), (10_000, "TTLExpiredException")])
def test_fk10_the_judge_knows_who_may_expire(
    ttl_ms: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary: an engine that dead-letters what is to be active again is found, if it was alive or
    if it says another reason."""

    def buried(queue: Queue, numbers: list[int], now: int) -> None:
        for number in numbers:
            lifecycle.bury(queue, number, reason, None, now)

    traffic = deferred(ttl_ms)
    monkeypatch.setattr(lifecycle, "reactivate", buried)
    with pytest.raises(Bad, match="one back"):
        traffic.reactivate("q", 1, 1)


@pytest.mark.parametrize("seed", [3_481, 3_961])
def test_fk10_the_runs_that_found_it(seed: int) -> None:
    assert [str(found) for found in run(Job("engine", seed, 5)) if found.what] == []


@pytest.mark.parametrize("fault", ["unsynced", "told early", "dropped early", "index between"])
def test_the_harness_finds_what_an_engine_in_a_hurry_loses(fault: str) -> None:
    results = (run(Job(f"engine: {fault}", seed, 40)) for seed in (4, 8, 3, 2))
    assert any(one.what for found in results for one in found)


def test_what_was_synced_is_there_and_the_rest_may_be() -> None:
    disk = RecordingDisk()
    file = disk.create("f/kept")
    file.pwrite([b"a" * 2000], 0)
    file.sync()
    disk.sync_folder("f")
    disk.note("promised")
    file.pwrite([b"b" * 2000], 0)
    disk.unlink("f/kept")
    disk.create("f/unsure")
    rng = random.Random(1)
    seen = set()
    for _ in range(200):
        image = after_power_cut(disk, rng, cut=disk.cuts() - 1)
        assert image.promised == ["promised"]
        if "f/kept" in image.names:
            content = image.open("f/kept").pread(2000, 0)
            seen.add((len(set(content)), "f/unsure" in image.names))
        else:
            seen.add((0, "f/unsure" in image.names))
    kept = {kinds for kinds, _ in seen}
    assert {0, 1, 2} <= kept  # gone, old or new, and torn between the two
    assert max(kept) > 100  # noise
    assert {is_there for _, is_there in seen} == {True, False}


def test_a_kill_leaves_the_cache_and_may_tear_the_last_write() -> None:
    lengths = set()
    for seed in range(20):
        disk = RecordingDisk(seed)
        file = disk.create("f/x")
        disk.killed_in = 0
        with pytest.raises(Killed):
            file.pwrite([b"0123456789"], 0)
        disk.restart()
        lengths.add(disk.open("f/x").size())
    assert len(lengths) > 4
