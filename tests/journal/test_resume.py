"""However the log is cut into pieces, and wherever the journal is killed: the same table."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from bench.journal_log import write_log
from tandembus.errors import StoreError
from tandembus.journal.files import spans
from tandembus.journal.run import Journal, JournalOptions
from tandembus.store.files import FileStore
from tests.journal.crashed import History, copy_out, crashed_log
from tests.journal.reading import table, write_journal


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume") / "log"
    crashed_log(2, folder, steps=200)
    return folder


@pytest.fixture(scope="module")
def whole(log: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """In one go."""
    out = tmp_path_factory.mktemp("whole")
    write_journal(log, out)
    return table(out)


@pytest.mark.parametrize("piece_bytes", [1_000, 30_000])
def test_the_size_of_the_pieces_does_not_matter(
    log: Path, whole: pa.Table, tmp_path: Path, piece_bytes: int
) -> None:
    write_journal(log, tmp_path, piece_bytes=piece_bytes, file_rows=150)
    assert table(tmp_path) == whole


@pytest.mark.parametrize("seed", range(3))
def test_killed_anywhere_it_goes_on_exactly(
    log: Path, whole: pa.Table, tmp_path: Path, seed: int
) -> None:
    """Dropped after any step, with rows read and not written, with a file and without the state
    that follows it, with leftovers of an unfinished file."""
    rng = random.Random(seed)
    options = JournalOptions(log, tmp_path, piece_bytes=2_000, file_rows=40, state_bytes=9_000)
    steps = kills = 0
    while True:
        journal = Journal(options)
        has_more = True
        for _ in range(rng.randrange(1, 15)):
            has_more = journal.step()
            steps += 1
        if not has_more:
            journal.files.finish(journal.place)
            if rng.random() < 0.5:
                journal.save()
            journal.close()
            break
        if rng.random() < 0.3:
            journal.finish()
        journal.close()
        for folder in (journal.files.states, *journal.files.folder.glob("hour=*")):
            (folder / ".half.parquet.new").write_bytes(b"half")
        kills += 1
    assert kills > 3
    assert table(tmp_path) == whole


def test_a_log_that_grows_is_followed(whole: pa.Table, tmp_path: Path) -> None:
    """Through the lives of the same broker, seen in many states, each of them as a kill would leave
    it; files that were only begun are not taken."""
    history = History(2, steps=200, ends=4)
    folder = tmp_path / "log"
    journal = None
    for step in history.run():
        if step % 23 == 0:
            copy_out(history.disk, folder)
            journal = journal or Journal(JournalOptions(folder, tmp_path / "out"))
            while journal.step():
                pass
            if step % 2:
                journal.finish()
    assert journal is not None
    copy_out(history.disk, folder)
    journal.close()
    write_journal(folder, tmp_path / "out")
    assert table(tmp_path / "out") == whole


def test_a_file_for_each_hour_and_its_name_says_from_where_to_where(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 2_000, size=50, group=10, step_ms=100_000)
    write_journal(tmp_path / "log", tmp_path / "out", piece_bytes=20_000)
    found = spans(tmp_path / "out" / "namespace=default")
    assert len({span.hour for span in found}) == len(found) == 6
    assert all(one.end == other.begin for one, other in pairwise(found))
    assert table(tmp_path / "out").num_rows == 6_006


def test_what_is_known_of_many_messages_lies_in_a_file(
    log: Path, whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a bound the table of messages is mapped, and says the same."""
    monkeypatch.setattr("tandembus.journal.join.SPILL_ROWS", 512)
    write_journal(log, tmp_path)
    assert table(tmp_path) == whole


def test_two_journals_do_not_write_to_one_folder(log: Path, tmp_path: Path) -> None:
    journal = Journal(JournalOptions(log, tmp_path))
    with pytest.raises(StoreError, match="another journal"):
        Journal(JournalOptions(log, tmp_path))
    journal.close()


def test_missing_files_are_noticed(log: Path, tmp_path: Path) -> None:
    """In the middle, and at the end."""
    write_journal(log, tmp_path, piece_bytes=2_000, file_rows=100)
    found = spans(tmp_path / "namespace=default")
    for gone in (found[2], found[-1]):
        kept = gone.path.read_bytes()
        gone.path.unlink()
        with pytest.raises(StoreError, match="files are missing"):
            Journal(JournalOptions(log, tmp_path))
        gone.path.write_bytes(kept)
    shutil.rmtree(tmp_path / "namespace=default" / "_state")
    with pytest.raises(StoreError, match="no state"):
        Journal(JournalOptions(log, tmp_path))


def test_what_was_dropped_before_it_was_read_is_a_new_stretch(tmp_path: Path) -> None:
    """Nobody held it back. What is there then is told anew, and what is missing is told, too."""
    history = History(6, steps=260, ends=0, is_held=False)
    folder = tmp_path / "log"
    options = JournalOptions(folder, tmp_path / "out", has_hold=False)
    journal = None
    stretch = 1
    for step in history.run():
        if step == 40:
            copy_out(history.disk, folder)
            journal = Journal(options)
            while journal.step():
                pass
    copy_out(history.disk, folder)
    assert journal is not None
    while journal.step():
        pass
    journal.files.finish(journal.place)
    journal.save()
    journal.close()
    rows = table(tmp_path / "out").to_pylist()
    stretch = max(row["stretch"] for row in rows)
    assert stretch == 2
    assert [row["detail"] for row in rows if row["kind"] == "missed"] != []
    ledger = history.ledger
    there: dict[int, int] = {}
    for row in rows:
        if row["stretch"] == 2 and row["entity_id"] is not None:
            there[row["entity_id"]] = there.get(row["entity_id"], 0) + row["delta"]
    expected = {number: len(entity.rows) for number, entity in ledger.entities.items()}
    assert {k: v for k, v in there.items() if v} == {k: v for k, v in expected.items() if v}


def test_a_journal_can_begin_at_the_index_of_an_old_log(tmp_path: Path) -> None:
    """The first journal of a broker whose log has been dropped before."""
    history = History(6, steps=260, ends=0, is_held=False)
    for _ in history.run():
        pass
    copy_out(history.disk, tmp_path / "log")
    store = FileStore(tmp_path / "log", segment_bytes=history.shape.segment_bytes)
    assert store.start > 0
    store.close()
    write_journal(tmp_path / "log", tmp_path / "out")
    rows = table(tmp_path / "out").to_pylist()
    kinds = {row["kind"] for row in rows}
    assert "carried_over" in kinds
    assert "missed" not in kinds
    there = sum(row["delta"] for row in rows)
    assert there == sum(len(entity.rows) for entity in history.ledger.entities.values())
