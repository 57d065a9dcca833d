"""What is in the folder of a file store: names, and which of the files belong to the log.

    0000000000000000.log   segment; the name is the place of its first group, in hexadecimal
    0000000000a3f018.index index of all before that place
    floor                  nothing before this place is needed any more
    *.spare                a dropped segment, to be used again: overwriting syncs faster
    *.new                  not finished; removed by the next open
    *.hold                 a reader beside the broker needs the log from that place on
    lock                   held by the process that has the store open

What lives here: `survey`, which reads the headers and writes nothing. What does not: what is done
about it (`files.py`, `check.py`). The rule: a file that is missing is only taken for a dropped one
if the floor says so; in every other case the log is corrupt.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from operator import attrgetter

from tandembus.errors import CorruptLogError, StoreError
from tandembus.limits import DISK_FREE_MIN_BYTES, MAX_HOLD_BYTES, MAX_HOLD_MS
from tandembus.store.api import GROUP_HEADER
from tandembus.store.disk import Disk, File
from tandembus.store.segment import (
    HEAD,
    HEADER,
    Damage,
    IndexHeader,
    SegmentHeader,
    unpack_floor,
    unpack_hold,
    unpack_index,
    unpack_segment,
)


class Segment:
    """One file of the log."""

    __slots__ = ("base", "file", "header", "is_dropped", "name", "size")

    def __init__(self, name: str, header: SegmentHeader, size: int) -> None:
        self.name = name
        self.header = header
        self.base = header.base
        self.size = size
        self.file: File | None = None
        self.is_dropped = False

    def offset(self, place: int) -> int:
        return HEADER + place - self.base

    def has_room(self, place: int, length: int) -> bool:
        """For a group of that length at `place`, and a mark behind it."""
        return self.offset(place) + length + GROUP_HEADER <= self.size


base_of = attrgetter("base")


def log_name(place: int) -> str:
    return f"{place:016x}.log"


def index_name(place: int) -> str:
    return f"{place:016x}.index"


@dataclass(slots=True)
class Survey:
    segments: list[Segment] = field(default_factory=list)
    """Oldest first, without gaps; none in a new folder."""
    floor: int = 0
    has_no_floor: bool = False
    is_floor_damaged: bool = False
    indexes: dict[int, IndexHeader] = field(default_factory=dict)
    """By place: those whose header is whole, and from whose place the log is there."""
    bad_index: str | None = None
    spares: list[tuple[str, int]] = field(default_factory=list)
    """Name and size."""
    leftovers: list[str] = field(default_factory=list)
    """Nobody needs these: unfinished, or dropped."""
    warnings: list[str] = field(default_factory=list)


def survey(disk: Disk, folder: str, *, keeps_dropped: bool) -> Survey:
    """Which files make up the log. Raises CorruptLogError if one that is needed is missing."""
    found = Survey()
    names = disk.list_folder(folder)
    found.leftovers = [name for name in names if name.endswith(".new")]
    for name in names:
        if name.endswith(".spare"):
            found.spares.append((name, disk.open(os.path.join(folder, name)).size()))
        elif name.endswith(".index"):
            _read_index(disk, folder, name, found)
    logs = [name for name in names if name.endswith(".log")]
    found.has_no_floor = "floor" not in names
    if logs:
        _find_segments(disk, folder, logs, found, keeps_dropped=keeps_dropped)
    elif found.indexes or not found.has_no_floor:
        damage = Damage("all segments are missing, this speaks of them", 0)
        raise corrupt(damage, next(n for n in names if n == "floor" or n.endswith(".index")))
    found.indexes = {p: header for p, header in found.indexes.items() if p >= found.floor}
    return found


def _read_index(disk: Disk, folder: str, name: str, found: Survey) -> None:
    try:
        header = unpack_index(disk.open(os.path.join(folder, name)).pread(HEAD, 0), name)
        if name != index_name(header.place):
            raise Damage("the index belongs to another place", 0)
    except Damage as damage:
        found.warnings.append(f"{name}: {damage.what}")
        found.bad_index = name
    else:
        found.indexes[header.place] = header


def _find_segments(
    disk: Disk, folder: str, logs: list[str], found: Survey, *, keeps_dropped: bool
) -> None:
    floor: int | None = 0
    if not found.has_no_floor:
        floor = _read_floor(disk, folder, found)
    elif logs != [log_name(0)]:
        raise no_floor()
    if floor is not None and not keeps_dropped:
        # What a drop left behind when it was interrupted. Its header does not matter.
        found.leftovers += [name for name in logs if name < log_name(floor)]
        logs = [name for name in logs if name >= log_name(floor)]
    segments = [_read_segment(disk, folder, name) for name in logs]
    first = max(0, len(segments) - 1)
    while first > 0 and _follows(segments[first - 1], segments[first]):
        first -= 1
    if floor is None and first == 0:
        # The files are without a gap: with one fault at a time, none of them is missing.
        floor = segments[0].base
    if floor is None or floor not in map(base_of, segments[first:]):
        damage = Damage("a segment before this one is missing or too short", 0)
        raise corrupt(damage, segments[first].name if segments else "floor")
    found.leftovers += [segment.name for segment in segments[:first]]
    found.segments = segments[first:]
    found.floor = floor


def _read_floor(disk: Disk, folder: str, found: Survey) -> int | None:
    try:
        return unpack_floor(disk.open(os.path.join(folder, "floor")).pread(HEAD, 0), "floor")
    except Damage as damage:
        found.warnings.append(f"floor: {damage.what}")
        found.is_floor_damaged = True
        return None


def _read_segment(disk: Disk, folder: str, name: str) -> Segment:
    file = disk.open(os.path.join(folder, name))
    try:
        header = unpack_segment(file.pread(HEAD, 0), name)
        if name != log_name(header.base):
            raise Damage("the segment belongs to another place", 0)
    except Damage as damage:
        raise corrupt(damage, name) from None
    return Segment(name, header, file.size())


def _follows(segment: Segment, following: Segment) -> bool:
    """Whether no segment is missing between the two, as far as the headers tell."""
    return (
        segment.header.number + 1 == following.header.number
        and segment.offset(following.base) <= segment.size
    )


def held_back(disk: Disk, folder: str, place: int, end: int, written_ms: int) -> int:
    """`place`, or the earlier one from which a reader beside the broker still needs the log.

    A hold is a wish: one that its reader did not renew in time (counted back from the last write of
    the log), that keeps too much, or that is damaged does not count, and none does while the disk
    is nearly full. So a reader that died cannot fill the disk."""
    names = [name for name in disk.list_folder(folder) if name.endswith(".hold")]
    if not names or disk.free_bytes(folder) < 2 * DISK_FREE_MIN_BYTES:
        return place
    for name in names:
        try:
            file = disk.open(os.path.join(folder, name))
            hold = unpack_hold(file.pread(HEAD, 0), name)
        except (FileNotFoundError, Damage, StoreError):
            continue
        is_new = written_ms - file.modified_ms() <= min(hold.lasts_ms, MAX_HOLD_MS)
        if is_new and end - hold.place <= min(hold.most_bytes, MAX_HOLD_BYTES):
            place = min(place, hold.place)
    return place


def no_floor() -> CorruptLogError:
    what = "the file is missing: lost, or the folder is an unfinished copy"
    return CorruptLogError(what, segment="floor", offset=0)


def corrupt(damage: Damage, name: str) -> CorruptLogError:
    return CorruptLogError(damage.what, segment=name, offset=damage.offset)
