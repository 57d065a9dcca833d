"""What is wrong with a folder of the file store, in words, and what can be done about it.

What lives here: `check`, which reads everything and writes nothing, and `repair`. What does not:
the recovery after a crash, which needs neither (`files.py`).

The rule: a repair never loses anything silently. It cuts a write that was never acknowledged, puts
aside an index that an older one can replace, and writes again what can be told from the rest. What
was acknowledged and is damaged is only given up when told to (`accept_loss`), and then by its
places and with a copy of the damaged bytes; the log keeps a note of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

from tandembus.errors import StoreError, StoreInUseError
from tandembus.store.api import GROUP_HEADER
from tandembus.store.disk import Disk, File, RealDisk
from tandembus.store.folder import Segment, index_name, log_name
from tandembus.store.segment import (
    GROUP,
    HEAD,
    HEADER,
    LOST,
    MARK,
    Damage,
    SegmentHeader,
    Walk,
    find_later,
    pack_floor,
    pack_group,
    pack_segment,
    unpack_floor,
    unpack_group,
    unpack_index,
    unpack_segment,
)


@dataclass(frozen=True, slots=True)
class Problem:
    file: str
    offset: int
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.file} at offset {self.offset}: {self.what}. {self.advice}"


@dataclass(slots=True)
class Report:
    folder: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and no problem: a write that a crash tore, old losses."""
    actions: list[str] = field(default_factory=list)
    """What a repair did."""
    segments: int = 0
    groups: int = 0
    bytes: int = 0
    """Of whole groups, headers included."""
    start: int = 0
    end: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.problems


def check(folder: str | os.PathLike[str], *, disk: Disk | None = None) -> Report:
    """Read everything, write nothing. Raises StoreInUseError while a broker has the folder open:
    check a backup of it instead."""
    inspection = _Inspection(os.fspath(folder), disk or RealDisk())
    try:
        inspection.run()
    finally:
        inspection.release()
    return inspection.report


def repair(
    folder: str | os.PathLike[str], *, accept_loss: bool = False, disk: Disk | None = None
) -> Report:
    """Do what can be done; returns a fresh report with `actions`."""
    inspection = _Inspection(os.fspath(folder), disk or RealDisk())
    actions: list[str] = []
    try:
        inspection.run()
        actions += [repairing() for repairing in inspection.harmless]
        if accept_loss:
            actions += [repairing() for repairing in inspection.lossy]
    except OSError as error:
        raise StoreError(f"cannot repair {folder}: {error}") from error
    finally:
        inspection.release()
    report = check(folder, disk=disk)
    report.actions = actions
    return report


_RESTORE = "Restore the folder from a backup"
_ACCEPT = "Restore a backup, or give these places up with repair --accept-loss"


class _Inspection:
    """One look at a folder: the report, and the repairs that it offers."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.report = Report(folder)
        self.harmless: list[Callable[[], str]] = []
        self.lossy: list[Callable[[], str]] = []
        self._folder = folder
        self._disk = disk
        self._lock: File | None = None

    def run(self) -> None:
        try:
            names = self._disk.list_folder(self._folder)
            if "lock" in names:
                self._lock = self._disk.lock(self._path("lock"))
                if self._lock is None:
                    raise StoreInUseError(f"{self._folder} is in use: check a backup of it")
            segments = self._segments([name for name in names if name.endswith(".log")])
            if not segments:
                if names:
                    self._problem(names[0], 0, "there is no readable segment", _RESTORE)
                return
            floor = self._floor(names, segments)
            for segment, following in zip(segments, [*segments[1:], None], strict=True):
                self._walk(segment, following)
            self._indexes([name for name in names if name.endswith(".index")], floor)
        except OSError as error:
            raise StoreError(f"cannot read {self._folder}: {error}") from error

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- segments ---------------------------------------------------------------------------------

    def _segments(self, names: list[str]) -> list[Segment]:
        found: list[Segment] = []
        damaged: list[tuple[str, str]] = []
        for name in names:
            file = self._disk.open(self._path(name))
            try:
                header = unpack_segment(file.pread(HEAD, 0), name)
                if name != log_name(header.base):
                    raise Damage("the segment belongs to another place", 0)
            except Damage as damage:
                damaged.append((name, damage.what))
            else:
                found.append(Segment(name, header, file.size()))
        for name, what in damaged:
            guess = self._guess_header(name, found)
            if guess is None:
                self._problem(name, 0, what, _RESTORE)
            else:
                size = self._disk.open(self._path(name)).size()
                found.append(Segment(name, guess, size))
                advice = "Its groups tell what stood there: repair writes it again"
                self._problem(name, 0, what, advice)
                self.harmless.append(partial(self._set_header, name, guess))
        found.sort(key=lambda segment: segment.base)
        self.report.segments = len(found)
        if found:
            self.report.start, self.report.end = found[0].base, found[-1].base
        return found

    def _guess_header(self, name: str, others: list[Segment]) -> SegmentHeader | None:
        """From the first group, which carries the life, and the neighbours' numbers."""
        data = self._disk.open(self._path(name)).pread(GROUP_HEADER, HEADER)
        life = int.from_bytes(data[4:12], "little")
        first = unpack_group(data, 0, life)
        if first is None or first.kind != GROUP or name != log_name(first.place):
            return None
        before = [s.header.number + 1 for s in others if s.base < first.place]
        behind = [s.header.number - 1 for s in others if s.base > first.place]
        number = max(before, default=min(behind, default=1))
        return SegmentHeader(first.place, number, first.number, life)

    def _walk(self, segment: Segment, following: Segment | None) -> None:
        report = self.report
        file = self._disk.open(self._path(segment.name))
        limit = None if following is None else following.base
        if following is not None and following.header.number != segment.header.number + 1:
            self._problem(following.name, 0, "a segment before this one is missing", _RESTORE)
            limit = None
        place, number = segment.base, segment.header.first_group
        while limit is None or place < limit:
            walk = Walk(file, segment.header, place, number=number, limit=limit)
            try:
                for group in walk:
                    report.groups += 1
                    report.bytes += GROUP_HEADER + len(group.body)
            except Damage as damage:
                later = find_later(file, segment.header, walk.place)
                if later is None and limit is None:
                    self._tail(segment, file, walk)
                    report.end = walk.place
                    return
                to = later.place if later else limit
                assert to is not None
                last = later.number - (later.kind != MARK) if later else None
                if last is None:
                    assert following is not None
                    last = following.header.first_group - 1
                what = f"{damage.what}: places {walk.place} to {to}, {to - walk.place} bytes"
                self._problem(segment.name, damage.offset, what, _ACCEPT)
                self.lossy.append(partial(self._give_up, segment, walk.place, to, last))
                place, number = to, last + 1
            else:
                place = walk.place
                number = walk.number or number
            report.notes += [
                f"{segment.name}: places {a} to {b} were given up by a repair" for a, b in walk.lost
            ]
            report.end = place
            if walk.is_marked:
                return

    def _tail(self, segment: Segment, file: File, walk: Walk) -> None:
        """What lies behind the last group: nothing, or a write that never came to its end."""
        data = file.pread(GROUP_HEADER, segment.offset(walk.place))
        if segment.header.life.to_bytes(8, "little") != data[4:12]:
            return
        self.report.notes.append(
            f"{segment.name} at offset {segment.offset(walk.place)}: a write that was interrupted, "
            "never acknowledged; the next open cuts it"
        )
        assert walk.number is not None
        number, place = walk.number, walk.place

        def cut() -> str:
            mark = pack_group(MARK, segment.header.life, number - 1, place, 0)
            self._write(segment.name, mark, segment.offset(place))
            return f"{segment.name}: cut the interrupted write at place {place}"

        self.harmless.append(cut)

    def _give_up(self, segment: Segment, place: int, to: int, number: int) -> str:
        """Copy the damaged bytes aside, then stand a note of the loss in their place."""
        file = self._disk.open(self._path(segment.name))
        aside = f"{place:016x}.damaged"
        copy = self._disk.create(self._path(aside))
        copy.pwrite([file.pread(to - place, segment.offset(place))], 0)
        copy.sync()
        self._disk.sync_folder(self._folder)
        length = to - place - GROUP_HEADER
        header = pack_group(LOST, segment.header.life, number, place, length)
        self._write(segment.name, header, segment.offset(place))
        return f"{segment.name}: GAVE UP places {place} to {to}; their bytes are in {aside}"

    def _set_header(self, name: str, header: SegmentHeader) -> str:
        self._write(name, pack_segment(header), 0)
        return f"{name}: wrote the header again"

    # --- floor and indexes ------------------------------------------------------------------------

    def _floor(self, names: list[str], segments: list[Segment]) -> int:
        first = segments[0].base
        if "floor" not in names:
            if len(segments) > 1 or segments[0].size > HEADER:
                advice = "If this is no unfinished copy, repair --accept-loss writes it again"
                self._problem("floor", 0, "the file is missing", advice)
                self.lossy.append(partial(self._set_floor, first))
            return first
        try:
            floor = unpack_floor(self._disk.open(self._path("floor")).pread(HEAD, 0), "floor")
        except Damage as damage:
            self._problem("floor", 0, damage.what, "Repair writes it again")
            self.harmless.append(partial(self._set_floor, first))
            return first
        if floor not in [segment.base for segment in segments]:
            self._problem("floor", 0, f"the segment at place {floor} is missing", _RESTORE)
        return floor

    def _set_floor(self, floor: int) -> str:
        file = self._disk.create(self._path("floor.new"))
        file.pwrite([pack_floor(floor)], 0)
        file.sync()
        self._disk.rename(self._path("floor.new"), self._path("floor"))
        self._disk.sync_folder(self._folder)
        return f"floor: set to place {floor}"

    def _indexes(self, names: list[str], floor: int) -> None:
        whole: list[str] = []
        damaged: list[tuple[str, int, str]] = []
        for name in names:
            file = self._disk.open(self._path(name))
            try:
                header = unpack_index(file.pread(HEAD, 0), name)
                data = file.pread(header.length, HEAD)
                if len(data) != header.length or crc32(data) != header.checksum:
                    raise Damage("the index fails its checksum", HEAD)
                if name != index_name(header.place) or header.place > self.report.end:
                    raise Damage("the index belongs to another place or log", 0)
            except Damage as damage:
                damaged.append((name, damage.offset, damage.what))
            else:
                whole += [name] if header.place >= floor else []
        can_do_without = bool(whole) or floor == 0
        for name, offset, what in damaged:
            advice = "Repair puts it aside; the log replaces it" if can_do_without else _RESTORE
            self._problem(name, offset, what, advice)
            if can_do_without:
                self.harmless.append(partial(self._put_aside, name))
        if not whole and not damaged and floor > 0:
            what = "no index is there, and the log before it was dropped"
            self._problem("*.index", 0, what, _RESTORE)

    def _put_aside(self, name: str) -> str:
        self._disk.rename(self._path(name), self._path(name + ".damaged"))
        self._disk.sync_folder(self._folder)
        return f"{name}: put aside as {name}.damaged"

    # --- small things -----------------------------------------------------------------------------

    def _write(self, name: str, data: bytes, offset: int) -> None:
        self._disk.open(self._path(name), writable=True).pwrite_synced([data], offset)

    def _problem(self, file: str, offset: int, what: str, advice: str) -> None:
        self.report.problems.append(Problem(file, offset, what, advice))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)
