"""The log is kept for a reader beside the broker, as long as that is reasonable and no longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandembus.journal.hold import Hold
from tandembus.limits import DISK_FREE_MIN_BYTES, MAX_HOLD_BYTES, MAX_HOLD_MS
from tandembus.store.files import FileStore
from tests.crash.recording_disk import RecordingDisk

SMALL = 64 * 1024
DAY_MS = 24 * 3_600_000


def filled(folder: Path | str, disk: RecordingDisk | None = None) -> FileStore:
    store = FileStore(folder, segment_bytes=SMALL, disk=disk)
    for _ in range(60):
        store.append([b"x" * 5_000])
    return store


def drop(store: FileStore) -> int:
    """All that may go; returns the oldest place that is left."""
    store.save_index(store.end, [b"index"])
    store.drop_before(store.end)
    return store.start


def test_what_is_held_is_not_dropped(tmp_path: Path) -> None:
    """Nor after a restart of the broker; and when it is let go, it goes."""
    hold = Hold(tmp_path, tmp_path / "out", lasts_ms=DAY_MS, most_bytes=1 << 30)
    store = filled(tmp_path)
    hold.keep(100_000)
    assert 0 < drop(store) <= 100_000
    store.close()
    store = FileStore(tmp_path, segment_bytes=SMALL)
    assert store.start <= 100_000 == hold.place()
    assert drop(store) <= 100_000
    hold.release()
    store.append([b"more"])
    assert drop(store) > 200_000
    store.close()


def test_one_that_was_not_renewed_in_time_does_not_count(tmp_path: Path) -> None:
    hold = Hold(tmp_path, tmp_path / "out", lasts_ms=DAY_MS, most_bytes=1 << 30)
    store = filled(tmp_path)
    hold.keep(0)
    written = max(path.stat().st_mtime for path in tmp_path.glob("*.log"))
    os.utime(hold.path, (written, written - 25 * 3_600))
    assert drop(store) > 200_000
    store.close()


def test_one_that_keeps_too_much_does_not_count(tmp_path: Path) -> None:
    hold = Hold(tmp_path, tmp_path / "out", lasts_ms=DAY_MS, most_bytes=200_000)
    store = filled(tmp_path)
    hold.keep(0)
    assert drop(store) > 200_000
    store.close()


def test_no_reader_can_ask_for_more_than_the_broker_allows(tmp_path: Path) -> None:
    hold = Hold(tmp_path, tmp_path / "out", lasts_ms=1 << 60, most_bytes=1 << 60)
    store = filled(tmp_path)
    hold.keep(0)
    written = max(path.stat().st_mtime for path in tmp_path.glob("*.log"))
    os.utime(hold.path, (written, written - MAX_HOLD_MS // 1000 - 60))
    assert drop(store) > 200_000
    assert MAX_HOLD_BYTES < 1 << 60
    store.close()


@pytest.mark.parametrize("data", [b"", b"rot" * 30])
def test_a_damaged_one_does_not_count_and_does_no_harm(tmp_path: Path, data: bytes) -> None:
    store = filled(tmp_path)
    (tmp_path / "journal-00000000.hold").write_bytes(data)
    assert drop(store) > 200_000
    store.close()


def test_none_counts_while_the_disk_is_nearly_full() -> None:
    """The broker's own life goes first."""
    disk = RecordingDisk()
    store = filled("data", disk)
    from tandembus.store.segment import Hold as Wish
    from tandembus.store.segment import pack_hold

    disk.create("data/journal-1.hold").pwrite([pack_hold(Wish(0, 1 << 50, 1 << 50))], 0)
    assert drop(store) == 0
    disk.free = 2 * DISK_FREE_MIN_BYTES - 1
    store.append([b"more"])
    assert drop(store) > 200_000
