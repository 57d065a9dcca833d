"""The log in segment files, the default store: see docs/log-format.md for every byte.

What lives here: when files are written, synced, renamed and removed, and how the end is found after
a crash. What does not: which files belong together (`folder.py`), the bytes of a header
(`segment.py`), the system calls (`disk.py`), what a group means (`records.py`), and telling an
operator (`check.py`).

The rule: a name is only given to a file that is whole and synced, and a group is only written when
all before it is durable. So after a power cut a file with a final name and a bad header, or a bad
group with anything behind it, is rot and never a crash: the open refuses and says where.

Threads: `append` and `mark_idle` belong to one thread, `save_index`, `drop_before` and `backup` to
any, `read`, `replay` and the properties to all.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from threading import Lock
from typing import Final
from zlib import crc32

from tandembus.errors import CorruptLogError, StoreError, StoreInUseError
from tandembus.store.api import GROUP_HEADER, Buffer, Group, Index, View
from tandembus.store.disk import VIEW_STEP, Disk, File, RealDisk
from tandembus.store.folder import (
    Segment,
    base_of,
    corrupt,
    held_back,
    index_name,
    log_name,
    no_floor,
    survey,
)
from tandembus.store.segment import (
    GROUP,
    HEAD,
    HEADER,
    MARK,
    Damage,
    IndexHeader,
    SegmentHeader,
    Walk,
    find_later,
    pack_floor,
    pack_group,
    pack_index,
    pack_segment,
    unpack_group,
)

SEGMENT_BYTES: Final = 64 << 20
VIEW_BYTES: Final = 8 << 20
OPEN_FILES: Final = 64
SPARES: Final = 1
"""Dropped segments kept for use again: one will do where dropping keeps up with filling."""
MAX_GROUP: Final = 0x7FFF_0000
"""Linux writes at most this much in one call."""
_COPY: Final = 1 << 20


class FileStore:
    """See `tandembus.store.api.Store` for the contract."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        disk: Disk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        retention_bytes: int | None = None,
        retention_ms: int | None = None,
        recycle: bool = True,
        create: bool = True,
    ) -> None:
        """Opens the store, recovers from whatever ended its former life, or says what is wrong.

        `retention_*`: what was dropped stays readable until it exceeds either one (its age is
        counted back from the last write of the log)."""
        if segment_bytes < HEADER + 2 * GROUP_HEADER:
            raise ValueError(f"segment_bytes must be at least {HEADER + 2 * GROUP_HEADER}")
        self.folder = os.fspath(folder)
        self.warnings: list[str] = []
        """Damage that was found and could be gone round, each naming its file."""
        self._disk: Disk = RealDisk() if disk is None else disk
        self._segment_bytes = segment_bytes
        self._retention_bytes = retention_bytes
        self._retention_ms = retention_ms
        self._has_retention = retention_bytes is not None or retention_ms is not None
        self._recycle = recycle and not self._has_retention
        self._broken: str | None = None
        self._is_marked = False
        self._copying = 0
        self._lock = Lock()
        """Guards the list of segments and the open files; never held during a sync."""
        self._upkeep = Lock()
        """One of save_index, drop_before and the start of a backup at a time."""
        self._open_files: OrderedDict[int, Segment] = OrderedDict()
        self._segments: list[Segment] = []
        """Oldest first, without gaps. Replaced, never changed, so that a reader needs no lock."""
        self._spares: list[str] = []
        self._indexes: dict[int, IndexHeader] = {}
        """The indexes that can be used, as far as their headers tell."""
        self._bad_index: str | None = None
        self._floor = 0
        self._tail = (0, 1)
        """Where the next group begins, and its number: changed together."""
        self._lock_file: File | None = None
        try:
            with self._failing("cannot open"):
                self._recover(create)
        except BaseException:
            self._release()
            raise

    # --- the contract -----------------------------------------------------------------------------

    @property
    def start(self) -> int:
        return self._segments[0].base

    @property
    def end(self) -> int:
        return self._tail[0]

    def append(self, body: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(body)
        place, number = self._tail
        length = GROUP_HEADER + len(data)
        if length > MAX_GROUP:
            raise StoreError(f"a group of {length} bytes is too long")
        try:
            if not self._active.has_room(place, length):
                self._roll(length)
            header = pack_group(
                GROUP, self._active.header.life, number, place, len(data), crc32(data)
            )
            self._is_marked = False
            self._active_file.pwrite_synced((header, data), self._active.offset(place))
        except OSError as error:
            raise self._failed("cannot append", error) from error
        self._tail = (place + length, number + 1)
        return place + length

    def mark_idle(self) -> None:
        """Nothing is being written: say so behind the last group, without a sync.

        A torn last group and one that rotted look alike. With the mark behind it, which reaches the
        disk some seconds later by itself, the last group is known to have been whole. Costs one
        small write to the cache; takes no place, the next group overwrites it."""
        self._check()
        if not self._is_marked:
            try:
                self._active_file.pwrite([self._mark()], self._active.offset(self.end))
            except OSError as error:
                raise self._failed("cannot mark the end", error) from error
            self._is_marked = True

    def read(self, place: int, length: int) -> bytes:
        self._check()
        segment, end = self._segment_of(place)
        length = min(length, end - place)
        try:
            data = self._file(segment).pread(length, segment.offset(place))
        except OSError as error:
            raise self._failed("cannot read", error) from error
        if segment.is_dropped:
            # Looked at after the read: the file may hold something else by now.
            raise _dropped(segment)
        if len(data) < length:
            raise CorruptLogError(
                "the file is too short", segment=segment.name, offset=segment.offset(place)
            )
        return data

    def view(self, place: int) -> tuple[int, View] | None:
        self._check()
        segment, end = self._segment_of(place)
        offset = segment.offset(place) // VIEW_STEP * VIEW_STEP
        length = min(VIEW_BYTES, segment.offset(end) - offset)
        with self._failing("cannot read"):
            view = self._file(segment).view(length, offset)
        return None if view is None else (segment.base - HEADER + offset, view)

    def _segment_of(self, place: int) -> tuple[Segment, int]:
        """The segment that a place is in, and where it ends by now."""
        segments = self._segments
        end = self._tail[0]
        if not segments[0].base <= place <= end:
            raise StoreError(f"place {place} is not in the log ({segments[0].base} to {end})")
        found = bisect_right(segments, place, key=base_of)
        return segments[found - 1], segments[found].base if found < len(segments) else end

    def replay(self, place: int) -> Iterator[Group]:
        self._check()
        segments = self._segments
        end, _ = self._tail
        if not segments[0].base <= place <= end:
            raise StoreError(f"place {place} is not in the log ({segments[0].base} to {end})")
        return self._replay(segments[bisect_right(segments, place, key=base_of) - 1 :], place, end)

    def _replay(self, segments: list[Segment], place: int, end: int) -> Iterator[Group]:
        number: int | None = None
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            limit = end if following is None else min(end, following.base)
            if place == segment.base:
                if number not in (None, segment.header.first_group):
                    raise corrupt(Damage("groups are missing before this segment", 0), segment.name)
                number = segment.header.first_group
            with self._failing("cannot read"):
                file = self._file(segment)
            walk = Walk(file, segment.header, place, number=number, limit=limit)
            try:
                yield from walk
            except Damage as damage:
                if segment.is_dropped:  # and perhaps written again
                    raise _dropped(segment) from None
                raise corrupt(damage, segment.name) from None
            except OSError as error:
                raise self._failed("cannot read", error) from error
            self.warnings += [
                f"{segment.name}: places {first} to {last} were given up by a repair"
                for first, last in walk.lost
            ]
            place, number = limit, walk.number

    def drop_before(self, place: int) -> None:
        self._check()
        with self._upkeep, self._failing("cannot drop"):
            if place > max(self._indexes, default=0):
                raise StoreError(f"place {place} is behind the last index")
            segments = self._segments
            if place > self._floor:
                written_ms = self._active_file.modified_ms()
                place = held_back(self._disk, self.folder, place, self.end, written_ms)
            floor = segments[max(0, bisect_right(segments, place, key=base_of) - 1)].base
            if floor > self._floor:
                # First of all, so that a missing file is known to be dropped, not lost.
                self._replace("floor", [pack_floor(floor)])
                self._floor = floor
            unneeded = [s for s in segments if s.base < self._floor]
            self._remove(list(takewhile(self._is_too_old, unneeded)))

    def save_index(self, place: int, data: Sequence[Buffer]) -> None:
        self._check()
        with self._upkeep, self._failing("cannot save the index"):
            oldest = max(self._floor, max(self._indexes, default=0))
            if not oldest <= place <= self.end:
                raise StoreError(f"an index at {place} is not between {oldest} and {self.end}")
            data = [memoryview(part).cast("B") for part in data]
            length = checksum = 0
            for part in data:
                length += len(part)
                checksum = crc32(part, checksum)
            header = IndexHeader(place, self._number_at(place), length, checksum)
            self._replace(index_name(place), [pack_index(header), *data])
            kept = {place, max((p for p in self._indexes if p < place), default=place)}
            for name in self._disk.list_folder(self.folder):
                if name.endswith(".index") and name not in map(index_name, kept):
                    self._disk.unlink(self._path(name))
            self._indexes = {p: h for p, h in self._indexes.items() if p in kept}
            self._indexes[place] = header

    def load_index(self) -> Index | None:
        self._check()
        with self._upkeep, self._failing("cannot load the index"):
            for place in sorted(self._indexes, reverse=True):
                header = self._indexes[place]
                data = self._disk.open(self._path(index_name(place))).pread(header.length, HEAD)
                if len(data) == header.length and crc32(data) == header.checksum:
                    return Index(place, data)
                self._spurn_index(index_name(place), "the index fails its checksum")
                del self._indexes[place]
            if self._floor > 0:
                damage = Damage("no usable index, and the log before it was dropped", 0)
                raise corrupt(damage, self._bad_index or "*.index")
            return None

    def _spurn_index(self, name: str, what: str) -> None:
        self.warnings.append(f"{name}: {what}")
        self._bad_index = name

    def bytes_on_disk(self) -> int:
        return (
            sum(s.size for s in self._segments)
            + len(self._spares) * self._segment_bytes
            + sum(HEAD + header.length for header in list(self._indexes.values()))
        )

    def close(self) -> None:
        """Also leaves the mark of a clean end, synced, and no spare."""
        if self._lock_file is not None and self._broken is None:
            try:
                self._active_file.pwrite_synced([self._mark()], self._active.offset(self.end))
                while self._spares:
                    self._disk.unlink(self._path(self._spares.pop()))
            except OSError as error:
                raise self._failed("cannot close", error) from error
            finally:
                self._release()
        self._release()

    # --- more than the contract -------------------------------------------------------------------

    def free_bytes(self) -> int:
        """What the file system still has, for the engine's watermark."""
        self._check()
        with self._failing("cannot look at the disk"):
            return self._disk.free_bytes(self.folder)

    def locate(self, place: int) -> tuple[str, int]:
        """The file and the offset of a place, for the words of an error."""
        segments = self._segments
        segment = segments[max(0, bisect_right(segments, place, key=base_of) - 1)]
        return segment.name, segment.offset(place)

    def backup(self, target: str | os.PathLike[str]) -> int:
        """Copy the store to an empty or new folder while appends go on; returns the place up to
        which the copy goes. The copy opens as a store. A copy that was interrupted does not: its
        floor comes last. A failure here leaves this store as it was."""
        self._check()
        with self._upkeep:
            place = max(self._indexes, default=None)
            index = None if place is None else self._disk.open(self._path(index_name(place)))
            end, number = self._tail
            segments = [s for s in self._segments if self._floor <= s.base <= end]
            files = [self._file(s) for s in segments]
            floor = self._floor
            self._copying += 1  # from here on a dropped file is unlinked, not written again
        try:
            folder = os.fspath(target)
            self._disk.make_folder(folder)
            if self._disk.list_folder(folder):
                raise StoreError(f"{folder} is not empty")
            for segment, file in zip(segments, files, strict=True):
                copy = self._disk.create(os.path.join(folder, segment.name))
                copy.allocate(segment.size)
                is_last = segment is segments[-1]
                size = segment.offset(end) if is_last else segment.size
                for offset in range(0, size, _COPY):
                    copy.pwrite([file.pread(min(_COPY, size - offset), offset)], offset)
                if is_last:
                    mark = pack_group(MARK, segment.header.life, number - 1, end, 0)
                    copy.pwrite([mark], size)
                copy.sync()
                copy.close()
            if index is not None and place is not None:
                copy = self._disk.create(os.path.join(folder, index_name(place)))
                for offset in range(0, index.size(), _COPY):
                    copy.pwrite([index.pread(_COPY, offset)], offset)
                copy.sync()
                copy.close()
            self._disk.sync_folder(folder)
            self._replace("floor", [pack_floor(floor)], folder)
        except OSError as error:
            raise StoreError(f"cannot back up to {target}: {error}") from error
        finally:
            with self._upkeep:
                self._copying -= 1
        return end

    # --- opening ----------------------------------------------------------------------------------

    def _recover(self, create: bool) -> None:
        if create:
            self._disk.make_folder(self.folder)
        names = self._disk.list_folder(self.folder)
        if not create and not any(name.endswith(".log") for name in names):
            raise StoreError(f"there is no store in {self.folder}")
        self._lock_file = self._disk.lock(self._path("lock"))
        if self._lock_file is None:
            raise StoreInUseError(f"{self.folder} is in use by another process")
        # A killed process may have left names that only the cache knows.
        self._disk.sync_folder(self.folder)
        found = survey(self._disk, self.folder, keeps_dropped=self._has_retention)
        self.warnings += found.warnings
        self._bad_index = found.bad_index
        self._indexes = found.indexes
        self._floor = found.floor
        for name, size in found.spares:
            if size == self._segment_bytes and self._recycle and len(self._spares) < SPARES:
                self._spares.append(name)
            else:
                found.leftovers.append(name)
        for name in found.leftovers:
            self._disk.unlink(self._path(name))
        if found.segments:
            self._segments = found.segments
            self._find_end()
        else:
            self._create_segment(SegmentHeader(0, 1, 1, self._life()), 0)
        if found.has_no_floor and self.end > 0:
            # The very first open writes it second. Later it is never missing.
            raise no_floor()
        if found.has_no_floor or found.is_floor_damaged:
            self._replace("floor", [pack_floor(self._floor)])

    def _find_end(self) -> None:
        """Walk the last segment, and cut what a crash left half written behind its last group."""
        active = self._segments[-1]
        file = self._disk.open(self._path(active.name), writable=True)
        self._active, self._active_file = active, file
        # A killed process may have left a group in the cache that is not yet on the disk: it will
        # be served from now on, so it must be.
        file.settle()
        place, number = active.base, active.header.first_group
        known = max(self._indexes, default=-1)
        if known >= place:
            # All before an index was durable when it was saved: the end is not before it.
            place, number = known, self._indexes[known].next_group
            if active.offset(place) > active.size:
                raise corrupt(Damage("the file is too short", active.size), active.name)
        walk = Walk(file, active.header, place, number=number)
        try:
            for _ in walk:
                pass
        except Damage as damage:
            # A write that was never acknowledged is the last thing in the log.
            if find_later(file, active.header, walk.place) is not None:
                raise corrupt(damage, active.name) from None
        assert walk.number is not None
        self._tail = (walk.place, walk.number)
        if not walk.is_marked:
            file.pwrite_synced([self._mark()], active.offset(walk.place))
        self._is_marked = True

    # --- writing ----------------------------------------------------------------------------------

    def _roll(self, length: int) -> None:
        """Begin a segment in which a group of that length has room. All before is durable."""
        place, number = self._tail
        if place == self._active.base:
            # Still empty (a crash came after its birth): a second one would have the same name.
            self._active.size = HEADER + length + GROUP_HEADER
            self._active_file.allocate(self._active.size)
            self._active_file.sync()
            return
        header = SegmentHeader(place, self._active.header.number + 1, number, self._life())
        self._create_segment(header, length)

    def _create_segment(self, header: SegmentHeader, length: int) -> None:
        size = max(self._segment_bytes, HEADER + length + GROUP_HEADER)
        name = log_name(header.base)
        with self._lock:
            spare = self._spares.pop() if self._spares and size == self._segment_bytes else None
        unfinished = self._path(spare or name + ".new")
        if spare:
            file = self._disk.open(unfinished, writable=True)
        else:
            file = self._disk.create(unfinished)
            file.allocate(size)
        file.pwrite([pack_segment(header)], 0)
        file.sync()
        self._disk.rename(unfinished, self._path(name))
        self._disk.sync_folder(self.folder)
        self._active, self._active_file = Segment(name, header, size), file
        with self._lock:
            self._segments = [*self._segments, self._active]

    def _replace(self, name: str, data: Sequence[Buffer], folder: str | None = None) -> None:
        """Write a small file so that after a crash it is the old one or the new one, whole."""
        folder = folder or self.folder
        path = os.path.join(folder, name)
        file = self._disk.create(path + ".new")
        file.pwrite(data, 0)
        file.sync()
        file.close()
        self._disk.rename(path + ".new", path)
        self._disk.sync_folder(folder)

    def _remove(self, dropped: list[Segment]) -> None:
        if not dropped:
            return
        with self._lock:
            self._segments = self._segments[len(dropped) :]
            for segment in dropped:
                segment.is_dropped = True
                segment.file = None
                self._open_files.pop(segment.base, None)
        spares: list[str] = []
        for segment in dropped:
            path = self._path(segment.name)
            is_usable = self._recycle and not self._copying and segment.size == self._segment_bytes
            if is_usable and len(self._spares) + len(spares) < SPARES:
                spares.append(segment.name.replace(".log", ".spare"))
                self._disk.rename(path, self._path(spares[-1]))
            else:
                self._disk.unlink(path)
        # Before it is written again: else the old name could come back with the new content.
        self._disk.sync_folder(self.folder)
        with self._lock:
            self._spares += spares

    def _is_too_old(self, segment: Segment) -> bool:
        """Whether a segment that nobody needs is beyond the retention."""
        if not self._has_retention:
            return True
        kept = sum(s.size for s in self._segments if segment.base <= s.base < self._floor)
        if self._retention_bytes is not None and kept > self._retention_bytes:
            return True
        if self._retention_ms is None:
            return False
        age = self._active_file.modified_ms() - self._file(segment).modified_ms()
        return age > self._retention_ms

    # --- small things -----------------------------------------------------------------------------

    def _file(self, segment: Segment) -> File:
        """The open file of a segment; the least used ones are closed."""
        with self._lock:
            if segment.is_dropped:
                raise _dropped(segment)
            file = segment.file
            if file is None:
                file = segment.file = self._disk.open(self._path(segment.name))
                self._open_files[segment.base] = segment
                if len(self._open_files) > OPEN_FILES:
                    self._open_files.popitem(last=False)[1].file = None
            else:
                self._open_files.move_to_end(segment.base)
            return file

    def _number_at(self, place: int) -> int:
        """The number of the group that begins at `place`."""
        end, number = self._tail
        if place == end:
            return number
        segment = self._segments[bisect_right(self._segments, place, key=base_of) - 1]
        data = self._file(segment).pread(GROUP_HEADER, segment.offset(place))
        header = unpack_group(data, 0, segment.header.life)
        if header is None or header.place != place:
            raise StoreError(f"no group begins at place {place}")
        return header.number

    def _mark(self) -> bytes:
        end, number = self._tail
        return pack_group(MARK, self._active.header.life, number - 1, end, 0)

    def _life(self) -> int:
        return int.from_bytes(self._disk.entropy(8), "little")

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _check(self) -> None:
        if self._broken is not None:
            raise StoreError(self._broken)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: OSError) -> StoreError:
        """From here on nothing is sure about the disk: the store is done."""
        self._broken = f"{what} in {self.folder}: {error}"
        return StoreError(self._broken)

    def _release(self) -> None:
        with self._lock:
            for segment in self._segments:
                segment.file = None
            self._open_files.clear()
        self.__dict__.pop("_active_file", None)
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None
        self._broken = self._broken or f"{self.folder} is closed"


def _dropped(segment: Segment) -> StoreError:
    return StoreError(f"the segment at place {segment.base} was dropped")
