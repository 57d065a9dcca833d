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


def test_the_books_know_a_transaction_in_part() -> None:
    """One that was not committed left something; one that may have been did half of it."""
    lines = ["send plain 1", "sent plain 1 1", "begin 1 1 2,3 4 plain"]
    ready = ["ready 1 0"]
    for commit, here, is_good in (
        ([], ["here plain 1 1 WAITING"], True),
        (["rolled 1"], ["here plain 1 1 WAITING"], True),
        ([], ["here plain 1 1 WAITING", "here later 1 4 SCHEDULED"], False),
        (["commit 1"], ["here plain 1 1 WAITING"], True),
        (["commit 1"], [f"here plain {n} {n} WAITING" for n in (2, 3)], False),
        (
            ["commit 1"],
            [*(f"here plain {n} {n} WAITING" for n in (2, 3)), "here later 1 4 SCHEDULED"],
            True,
        ),
        (["commit 1", "committed 1"], ["here plain 1 1 WAITING"], False),
    ):
        books = Books()
        books.read(ready + lines + commit)
        books.read([*ready, *here, "audited"])
        assert (not books.halves and not books.lost and not books.resurrected) is is_good, commit
