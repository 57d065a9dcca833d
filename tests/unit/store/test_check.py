"""What `check` says of a hurt folder, and what `repair` makes of it."""

from __future__ import annotations

import pytest

from tandembus.errors import CorruptLogError, StoreInUseError
from tandembus.store.api import GROUP_HEADER, Group
from tandembus.store.check import check, repair
from tandembus.store.files import FileStore
from tandembus.store.folder import index_name, log_name
from tandembus.store.segment import HEAD, HEADER
from tests.crash.recording_disk import RecordingDisk
from tests.unit.store.test_files import FOLDER, content, filled, logs, opened


@pytest.fixture
def disk() -> RecordingDisk:
    """A store of four segments, closed, with two indexes."""
    disk = RecordingDisk()
    store, groups = filled(disk)
    store.save_index(groups[5].place, [b"older"])
    store.save_index(groups[12].place, [b"newer"])
    store.close()
    return disk


PLACES = [190 * number for number in range(21)]
GROUPS = [Group(PLACES[number], bytes([number + 1]) * 150) for number in range(20)]


def replayed(disk: RecordingDisk) -> list[Group]:
    store = opened(disk)
    found = list(store.replay(store.start))
    store.close()
    return found


def test_a_sound_folder_has_no_problems_and_is_not_touched(disk: RecordingDisk) -> None:
    before = {path: bytes(disk.contents[file]) for path, file in disk.names.items()}
    operations = len(disk.journal)
    report = check(FOLDER, disk=disk)
    assert report.is_clean
    assert (report.segments, report.groups, report.bytes) == (4, 20, PLACES[20])
    assert (report.start, report.end) == (0, PLACES[20])
    assert (report.problems, report.notes) == ([], [])
    assert len(disk.journal) == operations
    assert before == {path: bytes(disk.contents[file]) for path, file in disk.names.items()}


def test_a_folder_in_use_is_left_alone(disk: RecordingDisk) -> None:
    store = opened(disk)
    disk.names[f"{FOLDER}/lock"] = disk.names[f"{FOLDER}/floor"]
    with pytest.raises(StoreInUseError):
        check(FOLDER, disk=disk)
    with pytest.raises(StoreInUseError):
        repair(FOLDER, disk=disk)
    store.close()


def test_an_interrupted_write_is_a_note_and_is_cut(disk: RecordingDisk) -> None:
    store = opened(disk)
    store.append([bytes(100)])
    content(disk, logs(disk)[-1])[HEADER + GROUP_HEADER + 20] ^= 1
    disk.restart()
    report = check(FOLDER, disk=disk)
    assert report.is_clean
    assert "never acknowledged" in report.notes[0]
    report = repair(FOLDER, disk=disk)
    assert report.actions == [f"{logs(disk)[-1]}: cut the interrupted write at place {PLACES[20]}"]
    assert report.notes == []
    assert replayed(disk) == GROUPS


@pytest.mark.parametrize("number", [0, 4, 7, 19])
@pytest.mark.parametrize("at", [3, GROUP_HEADER + 5])
def test_lost_places_are_named_and_only_given_up_when_told(
    disk: RecordingDisk, number: int, at: int
) -> None:
    """The first of a segment, the last of one, one in the middle, and the last of the log."""
    name = log_name(PLACES[number // 5 * 5])
    offset = HEADER + PLACES[number % 5]
    content(disk, name)[offset + at] ^= 1
    report = check(FOLDER, disk=disk)
    (problem,) = report.problems
    assert (problem.file, problem.offset) == (name, offset)
    assert f"places {PLACES[number]} to {PLACES[number + 1]}" in problem.what
    assert "--accept-loss" in problem.advice
    assert report.groups == 19

    assert repair(FOLDER, disk=disk).problems == report.problems
    with pytest.raises(CorruptLogError):
        replayed(disk)

    report = repair(FOLDER, disk=disk, accept_loss=True)
    assert report.is_clean
    assert f"GAVE UP places {PLACES[number]} to {PLACES[number + 1]}" in report.actions[0]
    assert "given up" in report.notes[0]
    assert len(content(disk, f"{PLACES[number]:016x}.damaged")) == 190
    assert replayed(disk) == GROUPS[:number] + GROUPS[number + 1 :]
    store = opened(disk)
    store.append([b"goes on"])
    found = list(store.replay(0))
    assert found[-1] == Group(PLACES[20], b"goes on")
    assert "given up" in store.warnings[0]


def test_several_groups_in_a_row_are_one_loss(disk: RecordingDisk) -> None:
    for number in (6, 7, 8):
        content(disk, log_name(PLACES[5]))[HEADER + PLACES[number - 5] + 3] ^= 1
    report = repair(FOLDER, disk=disk, accept_loss=True)
    assert len(report.actions) == 1
    assert replayed(disk) == GROUPS[:6] + GROUPS[9:]


def test_a_damaged_segment_header_is_written_again_without_loss(disk: RecordingDisk) -> None:
    for name in logs(disk):
        hurt = disk.clone()
        content(hurt, name)[20] ^= 1
        assert [problem.file for problem in check(FOLDER, disk=hurt).problems] == [name]
        assert repair(FOLDER, disk=hurt).is_clean
        assert replayed(hurt) == GROUPS


def test_a_missing_segment_can_only_be_restored(disk: RecordingDisk) -> None:
    disk.unlink(f"{FOLDER}/{logs(disk)[1]}")
    report = repair(FOLDER, disk=disk, accept_loss=True)
    assert "a segment before this one is missing" in str(report.problems[0])
    assert "backup" in report.problems[0].advice


def test_a_damaged_index_is_put_aside(disk: RecordingDisk) -> None:
    name = index_name(PLACES[12])
    content(disk, name)[HEAD] ^= 1
    assert [problem.file for problem in check(FOLDER, disk=disk).problems] == [name]
    report = repair(FOLDER, disk=disk)
    assert report.is_clean
    assert f"{name}.damaged" in disk.list_folder(FOLDER)
    store = opened(disk)
    assert store.warnings == []
    assert store.load_index() == (PLACES[5], b"older")


def test_the_only_index_of_a_shortened_log_is_not_put_aside(disk: RecordingDisk) -> None:
    store = opened(disk)
    store.drop_before(PLACES[12])
    store.close()
    content(disk, index_name(PLACES[12]))[HEAD] ^= 1
    report = repair(FOLDER, disk=disk, accept_loss=True)
    assert [problem.file for problem in report.problems] == [index_name(PLACES[12])]
    assert "backup" in report.problems[0].advice
    disk.unlink(f"{FOLDER}/{index_name(PLACES[12])}")
    assert "no index is there" in check(FOLDER, disk=disk).problems[0].what


def test_the_floor_is_written_again(disk: RecordingDisk) -> None:
    content(disk, "floor")[20] ^= 1
    assert repair(FOLDER, disk=disk).is_clean
    disk.unlink(f"{FOLDER}/floor")
    assert not repair(FOLDER, disk=disk).is_clean
    assert repair(FOLDER, disk=disk, accept_loss=True).is_clean
    assert replayed(disk) == GROUPS


def test_an_empty_folder_and_a_new_store_are_sound(disk: RecordingDisk) -> None:
    assert check("elsewhere", disk=disk).is_clean
    FileStore("new", disk=disk).close()
    assert check("new", disk=disk).is_clean
