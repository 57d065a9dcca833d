"""The real disk."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tandembus.store import disk as disk_module
from tandembus.store.api import Buffer
from tandembus.store.disk import VIEW_STEP, RealDisk, RealFile


def test_a_file_is_written_read_resized_and_found(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "f")
    file = disk.create(path)
    file.allocate(100)
    file.pwrite([b"ab", bytearray(b"cd"), memoryview(b"ef")], 10)
    file.pwrite_synced([b"gh"], 16)
    file.settle()
    assert file.pread(8, 10) == b"abcdefgh"
    assert file.pread(50, 90) == bytes(10)
    assert file.size() == 100
    assert file.modified_ms() > 0
    file.truncate(12)
    file.sync()
    file.close()
    file.close()
    disk.rename(path, path + "2")
    disk.sync_folder(str(tmp_path))
    assert disk.list_folder(str(tmp_path)) == ["f2"]
    assert disk.open(path + "2").pread(99, 10) == b"ab"
    disk.unlink(path + "2")
    assert len(disk.entropy(8)) == 8


@pytest.mark.skipif(
    sys.platform != "linux" or tuple(map(int, os.uname().release.split(".")[:2])) < (6, 5),
    reason="the system does not tell what is in memory",
)
def test_a_view_is_given_of_what_is_in_memory(tmp_path: Path) -> None:
    """It shows what is written later, too; what only the disk has is never shown: an error of the
    disk would be the end of the process."""
    file = RealDisk().create(str(tmp_path / "f"))
    file.allocate(8 * VIEW_STEP)
    file.pwrite([os.urandom(4 * VIEW_STEP)], 0)
    view = file.view(3 * VIEW_STEP - 100, VIEW_STEP)
    assert view is not None
    assert view[:] == file.pread(3 * VIEW_STEP - 100, VIEW_STEP)
    file.pwrite([b"later"], VIEW_STEP + 7)
    assert view[7:12] == b"later"
    del view
    assert file.view(8 * VIEW_STEP, 0) is None, "half of it was never read"
    file.settle()
    assert file.view(VIEW_STEP, 0) is None, "it is on the disk alone"
    file.truncate(VIEW_STEP)
    assert file.view(2 * VIEW_STEP, 0) is None, "it is not there any more"


def test_there_is_no_view_where_the_system_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().create(str(tmp_path / "f"))
    file.pwrite([bytes(VIEW_STEP)], 0)
    monkeypatch.setattr(disk_module, "_CACHESTAT", 100_000)
    assert file.view(VIEW_STEP, 0) is None
    monkeypatch.setattr(disk_module, "_syscall", None)
    assert file.view(VIEW_STEP, 0) is None


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "f"))
    parts = [bytes([number % 256]) * 3 for number in range(2000)]
    file.pwrite(parts, 5)
    assert file.pread(6000, 5) == b"".join(parts)


def test_a_short_write_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def short(fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        return real(fd, [b"".join(buffers)[:7]], offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    file = RealDisk().create(str(tmp_path / "f"))
    file.pwrite_synced([b"0123456789", b"abcdefghij"], 3)
    assert file.pread(20, 3) == b"0123456789abcdefghij"


def test_without_the_flag_a_write_is_followed_by_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old kernels and some file systems refuse RWF_DSYNC; then two calls do what one would."""
    real = os.pwritev
    synced: list[int] = []

    def refuse(fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "no such flag")
        return real(fd, buffers, offset)

    monkeypatch.setattr(disk_module, "_DSYNC", 2)
    monkeypatch.setattr(os, "pwritev", refuse)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file = RealDisk().create(str(tmp_path / "f"))
    file.pwrite_synced([b"ab"], 0)
    file.pwrite_synced([b"cd"], 2)
    assert file.pread(4, 0) == b"abcd"
    assert len(synced) == 2


def test_a_failed_write_is_told(tmp_path: Path) -> None:
    RealDisk().create(str(tmp_path / "f")).close()
    file = RealDisk().open(str(tmp_path / "f"))
    with pytest.raises(OSError):
        file.pwrite_synced([b"x"], 0)


def test_a_lock_has_one_holder_and_ends_with_it(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "lock")
    held = disk.lock(path)
    assert held is not None
    assert disk.lock(path) is None
    held.close()
    assert disk.lock(path) is not None


def test_a_folder_is_made_with_all_above_it(tmp_path: Path) -> None:
    disk, folder = RealDisk(), str(tmp_path / "a" / "b" / "c")
    disk.make_folder(folder)
    disk.make_folder(folder)
    assert disk.list_folder(folder) == []
    with pytest.raises(FileNotFoundError):
        disk.list_folder(folder + "x")


def test_a_file_closes_with_its_last_user(tmp_path: Path) -> None:
    """A reader may hold the file of a segment that is dropped meanwhile."""
    file = RealDisk().create(str(tmp_path / "f"))
    assert isinstance(file, RealFile)
    fd = file._fd
    del file
    with pytest.raises(OSError):
        os.fstat(fd)
