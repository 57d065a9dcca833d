"""`tests/crash/kill.py`: a slice of `make kill`, and its canary."""

from __future__ import annotations

from pathlib import Path

from tests.crash.kill import Books, run, run_canary


def test_three_kills_cost_nothing(tmp_path: Path) -> None:
    """A loaded process is killed three times: all that it had confirmed is there, and no more."""
    books = run(3, (0.2, 0.5), seed=7, folder=tmp_path)
    assert books.is_clean, (books.lost, books.resurrected, books.gaps, books.strange)
    assert books.audits >= 2
    assert len(books.stored) > 50


def test_canary_writes_kept_in_the_process(tmp_path: Path) -> None:
    """A store that keeps its writes for a while loses them with the process: it is reported."""
    books = run_canary(3, tmp_path)
    assert books.lost or books.resurrected, books.strange


def test_the_books_know_a_loss_a_ghost_and_a_gap() -> None:
    """Each complaint, from lines that a worker could have written."""
    lines = ["send plain 1 2 3", "sent plain 1 1 2 3", "end 2", "ended 2"]
    good = ["here plain 1 1 WAITING", "here plain 3 3 WAITING", "audited"]
    books = Books()
    books.read(lines)
    books.read(good)
    assert books.is_clean
    books.read(["here plain 1 1 WAITING", "audited"])
    assert books.lost == {3}
    books = Books()
    books.read(lines)
    books.read([*good[:2], "here plain 2 2 WAITING", "audited"])
    assert books.resurrected == {2}
    books = Books()
    books.read(lines)
    books.read([*good, "send plain 4", "sent plain 5 4"])
    assert books.gaps
