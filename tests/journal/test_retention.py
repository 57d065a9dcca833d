"""Old hours go; what was there at the new beginning is told once more, so that sums still hold."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

from bench.journal_log import write_log
from tandembus.journal.files import spans
from tandembus.journal.run import Journal, JournalOptions
from tests.journal.reading import table


def kept(folder: Path, out: Path, hours: int | None) -> list[dict[str, Any]]:
    options = JournalOptions(folder, out, keep_hours=hours, piece_bytes=20_000)
    journal = Journal(options)
    journal.run(Event(), until_end=True)
    journal.close()
    rows: list[dict[str, Any]] = table(out).to_pylist()
    return rows


def open_messages(rows: list[dict[str, Any]]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for row in rows:
        key = (row["entity_id"], row["sequence_number"])
        if row["delta"] == 1:
            assert key not in found
            found.add(key)
        elif row["delta"] == -1:
            found.remove(key)
    return found


def test_what_is_left_can_still_be_added_up(tmp_path: Path) -> None:
    """Three of each group of ten messages stay; hours are removed twice."""
    write_log(tmp_path / "log", 2_000, size=50, group=10, step_ms=100_000, left=3)
    everything = kept(tmp_path / "log", tmp_path / "all", None)
    first = kept(tmp_path / "log", tmp_path / "out", 4)
    second = kept(tmp_path / "log", tmp_path / "out", 2)
    for rows, hours in ((first, 5), (second, 3)):
        assert len(rows) < len(everything)
        assert open_messages(rows) == open_messages(everything)
        assert len(open_messages(rows)) == 600
        folders = {span.hour for span in spans(tmp_path / "out" / "namespace=default")}
        assert len(folders) <= hours
    # The same rows as before, from the border on, but for what is told once more.
    told = [row for row in second if row["kind"] not in ("began", "carried_over")]
    assert told == everything[-len(told) :]
    anchors = {r["entity_id"]: r["sequence_number"] for r in second if r["kind"] == "began"}
    begun = {
        row["entity_id"]: row["sequence_number"] for row in reversed(told) if row["delta"] == 1
    }
    assert {e: n - 1 for e, n in begun.items()} == {e: anchors[e] for e in begun}


def test_a_journal_goes_on_after_old_hours_went(tmp_path: Path) -> None:
    """Its position is in the names of the files that are left."""
    write_log(tmp_path / "log", 1_000, size=50, group=10, step_ms=100_000)
    kept(tmp_path / "log", tmp_path / "out", 1)
    again = kept(tmp_path / "log", tmp_path / "out", 1)
    places = [(row["place"], row["row"]) for row in again]
    assert len(set(places)) == len(places) > 0
