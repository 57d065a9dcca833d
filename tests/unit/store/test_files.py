"""The file store beyond the contract: what it does to its folder, and with one that was hurt."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tandembus.errors import CorruptLogError, StoreError, StoreInUseError
from tandembus.store import files
from tandembus.store.api import GROUP_HEADER, Group
from tandembus.store.disk import RealDisk
from tandembus.store.files import FileStore
from tandembus.store.folder import index_name, log_name
from tandembus.store.segment import GROUP, HEAD, HEADER, MARK, pack_group
from tests.crash.recording_disk import Killed, Operation, RecordingDisk

SEGMENT = HEADER + 1000
FOLDER = "data"


class FailingDisk(RecordingDisk):
    """Every operation from the n-th on fails, before it has any effect."""

    def __init__(self, error: int, at: int) -> None:
        super().__init__()
        self.error = error
        self.at = at

    def record(self, operation: Operation) -> None:
        self.at -= 1
        if self.at < 0:
            raise OSError(self.error, "on purpose")
        super().record(operation)


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


def opened(disk: RecordingDisk, **options: int) -> FileStore:
    disk.restart()
    return FileStore(FOLDER, disk=disk, segment_bytes=SEGMENT, **options)  # type: ignore[arg-type]


def filled(
    disk: RecordingDisk, count: int = 20, length: int = 150
) -> tuple[FileStore, list[Group]]:
    store = opened(disk)
    groups = []
    for number in range(1, count + 1):
        groups.append(Group(store.end, bytes([number]) * length))
        store.append([groups[-1].body])
    return store, groups


def content(disk: RecordingDisk, name: str) -> bytearray:
    return disk.contents[disk.names[f"{FOLDER}/{name}"]]


def logs(disk: RecordingDisk) -> list[str]:
    return [name for name in disk.list_folder(FOLDER) if name.endswith(".log")]


# --- segments -------------------------------------------------------------------------------------


def test_a_full_segment_is_followed_by_the_next(disk: RecordingDisk) -> None:
    """No group spans two files, and the name of a file is the place of its first group."""
    store, groups = filled(disk)
    names = [log_name(group.place) for group in groups[::5]]
    assert logs(disk) == names
    assert all(len(content(disk, name)) == SEGMENT for name in names)
    assert store.locate(groups[7].place) == (names[1], HEADER + 2 * (GROUP_HEADER + 150))


def test_a_dropped_segment_is_written_again(disk: RecordingDisk) -> None:
    """And what its former life left in it never comes back, not even after a crash."""
    store, groups = filled(disk)
    store.save_index(store.end, [b"index"])
    store.drop_before(groups[12].place)
    assert store.start == groups[10].place
    assert [name for name in disk.list_folder(FOLDER) if name.endswith(".spare")]
    reused = disk.names[f"{FOLDER}/{log_name(0).replace('.log', '.spare')}"]
    store.append([b"x"])
    assert disk.names[f"{FOLDER}/{logs(disk)[-1]}"] == reused
    again = opened(disk)  # killed
    assert list(again.replay(groups[10].place)) == [
        *groups[10:],
        Group(groups[-1].place + 190, b"x"),
    ]


@pytest.mark.parametrize("recycle", [True, False])
def test_space_comes_back_when_all_is_consumed(recycle: bool, tmp_path: Path) -> None:
    store = FileStore(tmp_path, segment_bytes=SEGMENT, recycle=recycle)
    for _ in range(60):
        store.append([bytes(150)])
    store.save_index(store.end, [b""])
    store.drop_before(store.end)
    assert store.bytes_on_disk() == (SEGMENT * (2 if recycle else 1)) + HEAD
    store.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == store.bytes_on_disk() + HEAD


def test_many_segments_need_few_open_files(
    disk: RecordingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "OPEN_FILES", 2)
    store, groups = filled(disk)
    for group in [*groups, *reversed(groups)]:
        assert store.read(group.place + GROUP_HEADER, 150) == group.body
        assert sum(segment.file is not None for segment in store._segments) <= 2


def test_two_processes_cannot_have_one_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with pytest.raises(StoreInUseError):
        FileStore(tmp_path)
    store.close()
    FileStore(tmp_path).close()


def test_a_folder_that_is_not_there_is_only_made_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        FileStore(tmp_path / "a" / "b", create=False)
    with pytest.raises(StoreError, match="no store"):
        FileStore(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []
    FileStore(tmp_path / "a" / "b").close()
    FileStore(tmp_path / "a" / "b", create=False).close()


def test_free_bytes_are_those_of_the_disk(disk: RecordingDisk) -> None:
    disk.free = 12345
    assert opened(disk).free_bytes() == 12345
    assert RealDisk().free_bytes("/") > 0


# --- a crash --------------------------------------------------------------------------------------


def test_a_torn_last_group_is_cut_wherever_it_tore(disk: RecordingDisk) -> None:
    """Every prefix of the last write, with the rest zero or left from a former life."""
    _, groups = filled(disk, 3)
    whole = bytes(content(disk, log_name(0)))
    begin = HEADER + groups[2].place
    for length, rest in itertools.product(range(GROUP_HEADER + 150), (0, 0xE7)):
        torn = content(disk, log_name(0))
        torn[:] = whole
        tail = bytes([rest]) * (GROUP_HEADER + 150 - length)
        torn[begin + length : begin + GROUP_HEADER + 150] = tail
        store = opened(disk)
        assert list(store.replay(0)) == groups[:2]
        assert store.warnings == []
        store.append([b"new"])
        expected = [*groups[:2], Group(groups[2].place, b"new")]
        assert list(opened(disk).replay(0)) == expected


def test_a_group_that_was_written_but_not_answered_is_kept(disk: RecordingDisk) -> None:
    store, groups = filled(disk, 3)
    disk.killed_in = 1  # the write happens, its sync does not
    with pytest.raises(Killed):
        store.append([b"unsure"])
    journal = len(disk.journal)
    store = opened(disk)
    assert list(store.replay(0)) == [*groups, Group(groups[-1].place + 190, b"unsure")]
    assert any("Sync(file=1, write=None)" in repr(op) for op in disk.journal[journal:])


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_mark_tells_rot_from_a_torn_write(disk: RecordingDisk, is_marked: bool) -> None:
    """The last group is hurt. With a mark behind it, it was whole once: nothing is cut."""
    store, groups = filled(disk, 3)
    if is_marked:
        store.mark_idle()
        store.mark_idle()
    for at in range(groups[2].place, groups[2].place + GROUP_HEADER + 150, 3):
        hurt = disk.clone()
        content(hurt, log_name(0))[HEADER + at] ^= 4
        if is_marked:
            with pytest.raises(CorruptLogError) as caught:
                opened(hurt)
            assert caught.value.segment == log_name(0)
            assert caught.value.offset == HEADER + groups[2].place
        else:
            assert list(opened(hurt).replay(0)) == groups[:2]


def test_an_index_bears_witness_that_the_log_was_whole(disk: RecordingDisk) -> None:
    store, groups = filled(disk, 3)
    store.save_index(store.end, [b"index"])
    content(disk, log_name(0))[HEADER + groups[2].place + 60] ^= 1
    store = opened(disk)
    assert store.end == groups[2].place + 190
    with pytest.raises(CorruptLogError):
        list(store.replay(0))


def test_a_message_cannot_pass_for_a_group(disk: RecordingDisk) -> None:
    """A client who knows the format, the place and the number, but not the life of the segment,
    writes a header into a body, and the power fails there."""
    store, groups = filled(disk, 1)
    place = store.end + 2 * GROUP_HEADER
    forged = pack_group(GROUP, 0, 3, place, 0), pack_group(MARK, 0, 9, place + GROUP_HEADER, 0)
    store.append([bytes(GROUP_HEADER), *forged])
    content(disk, log_name(0))[HEADER + groups[0].place + 190] ^= 1
    assert list(opened(disk).replay(0)) == groups


# --- rot ------------------------------------------------------------------------------------------


def test_rot_in_the_middle_stops_the_replay_and_says_where(disk: RecordingDisk) -> None:
    store, groups = filled(disk)
    store.close()
    for group in groups[:-1]:
        hurt = disk.clone()
        name, offset = store.locate(group.place)
        content(hurt, name)[offset + GROUP_HEADER + 7] ^= 128
        with pytest.raises(CorruptLogError) as caught:
            list(opened(hurt).replay(0))
        assert (caught.value.segment, caught.value.offset) == (name, offset)


def test_a_missing_or_short_segment_is_noticed(disk: RecordingDisk) -> None:
    store, _ = filled(disk)
    store.close()
    for name in logs(disk)[:-1]:
        hurt = disk.clone()
        hurt.unlink(f"{FOLDER}/{name}")
        with pytest.raises(CorruptLogError):
            opened(hurt)
        short = disk.clone()
        del content(short, name)[HEADER + 500 :]
        with pytest.raises(CorruptLogError):
            opened(short)
    for name in logs(disk):
        disk.unlink(f"{FOLDER}/{name}")
    with pytest.raises(CorruptLogError, match="all segments are missing"):
        opened(disk)


def test_a_damaged_index_is_replaced_by_the_one_before(disk: RecordingDisk) -> None:
    store, groups = filled(disk)
    for group in groups[3], groups[7], groups[11]:
        store.save_index(group.place, [group.body])
    names = [name for name in disk.list_folder(FOLDER) if name.endswith(".index")]
    assert names == [index_name(groups[7].place), index_name(groups[11].place)]
    for at in (5, HEAD + 5):
        hurt = disk.clone()
        content(hurt, names[1])[at] ^= 1
        store = opened(hurt)
        assert store.load_index() == (groups[7].place, groups[7].body)
        assert [warning.split(":")[0] for warning in store.warnings] == [names[1]]
        store.save_index(groups[15].place, [b"new"])
        assert names[1] not in hurt.list_folder(FOLDER)
        assert opened(hurt).load_index() == (groups[15].place, b"new")


def test_without_any_index_the_whole_log_is_replayed_if_it_is_there(disk: RecordingDisk) -> None:
    store, groups = filled(disk)
    store.save_index(groups[9].place, [b"index"])
    hurt = disk.clone()
    content(hurt, index_name(groups[9].place))[HEAD] ^= 1
    again = opened(hurt)
    assert again.load_index() is None
    assert again.warnings
    store.drop_before(groups[9].place)
    content(disk, index_name(groups[9].place))[HEAD] ^= 1
    with pytest.raises(CorruptLogError, match=index_name(groups[9].place)):
        opened(disk).load_index()
    disk.unlink(f"{FOLDER}/{index_name(groups[9].place)}")
    with pytest.raises(CorruptLogError, match="no usable index"):
        opened(disk).load_index()


def test_a_damaged_floor_is_told_and_mended(disk: RecordingDisk) -> None:
    store, groups = filled(disk)
    store.save_index(groups[12].place, [b""])
    store.drop_before(groups[12].place)
    content(disk, "floor")[17] ^= 1
    store = opened(disk)
    assert store.start == groups[10].place
    assert store.warnings == ["floor: the header fails its checksum"]
    assert opened(disk).warnings == []
    disk.unlink(f"{FOLDER}/floor")
    with pytest.raises(CorruptLogError, match="unfinished copy"):
        opened(disk)


@pytest.mark.parametrize("kind", ["log", "index", "floor"])
def test_a_newer_format_is_refused_by_name(disk: RecordingDisk, kind: str) -> None:
    store, _ = filled(disk, 3)
    store.save_index(0, [b"index"])
    store.close()
    name = next(name for name in disk.list_folder(FOLDER) if name.endswith(kind))
    data = content(disk, name)
    data[8] = 2
    data[HEAD - 4 : HEAD] = crc32(data[: HEAD - 4]).to_bytes(4, "little")
    with pytest.raises(StoreError, match=f"{name} has format 2; this Tandem reads up to 1"):
        opened(disk)


# --- a disk that fails ----------------------------------------------------------------------------


def _work(store: FileStore, done: list[Group]) -> Iterator[None]:
    for number in range(1, 40):
        group = Group(store.end, bytes([number]) * 150)
        store.append([group.body])
        done.append(group)
        yield
        if number % 7 == 0:
            store.save_index(store.end, [b"index"])
            yield
            store.drop_before(done[-4].place)
            yield


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_call_nothing_more_is_done_and_the_next_open_is_clean(error: int) -> None:
    """Every operation of the disk fails once. Nothing that was acknowledged is lost."""
    for at in itertools.count(3):
        disk = FailingDisk(error, at)
        done: list[Group] = []
        store: FileStore | None = None
        try:
            store = opened(disk)
            for _ in _work(store, done):
                pass
            break
        except StoreError as failed:
            cause = failed.__cause__
        assert isinstance(cause, OSError)
        if store is not None:
            _assert_useless(store, disk)
        disk.at = 10**9
        store = opened(disk)
        found = list(store.replay(store.start))
        kept = [group for group in done if group.place >= store.start]
        assert kept in (found, found[:-1])
    assert at > 100


def _assert_useless(store: FileStore, disk: RecordingDisk) -> None:
    operations = len(disk.journal)
    calls: list[Callable[[], object]] = [
        lambda: store.append([b""]),
        lambda: store.read(0, 1),
        lambda: store.mark_idle(),
        lambda: store.save_index(store.end, []),
        lambda: store.drop_before(0),
        lambda: store.load_index(),
        lambda: store.free_bytes(),
    ]
    for call in calls:
        with pytest.raises(StoreError):
            call()
    store.close()
    assert len(disk.journal) == operations


# --- retention and backup -------------------------------------------------------------------------


def test_what_was_dropped_stays_readable_within_the_retention(disk: RecordingDisk) -> None:
    store = opened(disk, retention_bytes=2 * SEGMENT)
    groups = []
    for number in range(1, 31):
        groups.append(Group(store.end, bytes([number]) * 150))
        store.append([groups[-1].body])
    store.save_index(store.end, [b"index"])
    store.drop_before(store.end)
    assert store.start == groups[15].place  # the active segment, and two before it
    assert list(store.replay(store.start)) == groups[15:]
    store.close()
    store = opened(disk, retention_bytes=2 * SEGMENT)
    assert list(store.replay(store.start)) == groups[15:]
    store.close()
    assert opened(disk).start == groups[25].place  # no retention any more


def test_the_retention_may_be_a_time(disk: RecordingDisk) -> None:
    store = opened(disk, retention_ms=1000)
    for number in range(20):
        disk.now_ms += 100
        store.append([bytes([number]) * 150])
    store.save_index(store.end, [b"index"])
    store.drop_before(store.end)
    assert store.start == 5 * 190  # its last write is 1,000 ms before the last of the log
    disk.now_ms += 1
    store.append([bytes(10)])
    store.drop_before(0)
    assert store.start == 10 * 190


def test_a_backup_is_a_store(disk: RecordingDisk) -> None:
    store, groups = filled(disk)
    store.save_index(groups[12].place, [b"index"])
    store.drop_before(groups[12].place)
    assert store.backup("copy") == store.end
    store.append([b"later"])
    copy = FileStore("copy", disk=disk, segment_bytes=SEGMENT)
    assert (copy.start, copy.end) == (groups[10].place, groups[-1].place + 190)
    assert list(copy.replay(copy.start)) == groups[10:]
    assert copy.load_index() == (groups[12].place, b"index")
    copy.append([b"goes on"])
    with pytest.raises(StoreError, match="not empty"):
        store.backup("copy")
    store.append([b"unharmed"])


def test_an_unfinished_backup_is_not_taken_for_a_store(disk: RecordingDisk) -> None:
    complete = 0
    for at in itertools.count(0):
        fresh = disk.clone()
        store, groups = filled(fresh, 8)
        store.save_index(groups[5].place, [b"index"])
        fresh.killed_in = at
        try:
            store.backup("copy")
        except Killed:
            fresh.killed_in = None
        else:
            break
        if "floor" not in fresh.list_folder("copy"):
            with pytest.raises(StoreError):
                FileStore("copy", disk=fresh, segment_bytes=SEGMENT, create=False)
        else:
            complete += 1
            copy = FileStore("copy", disk=fresh, segment_bytes=SEGMENT)
            assert list(copy.replay(0)) == groups
    assert complete == 1  # only the last sync was missing


def test_appends_and_drops_go_on_during_a_backup(tmp_path: Path) -> None:
    """A segment that is dropped in the middle is copied as it was, and not written again."""

    class SlowDisk(RealDisk):
        def create(self, path: str):  # type: ignore[no-untyped-def]
            if "copy" in path:
                for _ in range(7):
                    store.append([bytes([7]) * 150])
                store.save_index(store.end, [b"later"])
                store.drop_before(store.end)
            return super().create(path)

    store = FileStore(tmp_path / "log", segment_bytes=SEGMENT, disk=SlowDisk())
    groups = []
    for number in range(1, 30):
        groups.append(Group(store.end, bytes([number]) * 150))
        store.append([groups[-1].body])
    store.backup(tmp_path / "copy")
    store.close()
    copy = FileStore(tmp_path / "copy", segment_bytes=SEGMENT)
    assert list(copy.replay(0)) == groups
    copy.close()


def test_a_view_of_a_file_that_was_cut_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    """A mapping of what is not there would kill the process (SIGBUS)."""
    store = FileStore(tmp_path)
    for _ in range(10):
        store.append([bytes(10_000)])
    (log,) = tmp_path.glob("*.log")
    os.truncate(log, 50_000)
    assert store.view(60_000) is None
    with pytest.raises(CorruptLogError, match="the file is too short"):
        store.read(60_000, 100)
    os.truncate(log, files.SEGMENT_BYTES)
    store.close()
