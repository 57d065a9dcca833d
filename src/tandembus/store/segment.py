"""The byte form of the store's files, and how a segment is walked: docs/log-format.md in code.

What lives here: the headers of segments, groups, indexes and the floor, and `Walk`, which reads one
segment group by group. What does not: which files there are and when they are written (`files.py`).
The rule: a function here either returns what passed its checks, or raises `Damage` with the offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from tandembus.errors import StoreError
from tandembus.store.api import GROUP_HEADER, Group
from tandembus.store.disk import File

FORMAT: Final = 1
"""The version that this code writes. Older ones it reads, newer ones it refuses by name."""

HEADER: Final = 4096
"""Bytes before the first group of a segment: a page of its own, written once and never again."""

_SEGMENT: Final = Struct("<8sIIQQQQ12xI")
_GROUP: Final = Struct("<4sQQQIII")
_INDEX: Final = Struct("<8sIIQQQI16xI")
_FLOOR: Final = Struct("<8sIIQ36xI")
_HOLD: Final = Struct("<8sIIQQQ20xI")
HEAD: Final = 64
"""Bytes of the header of every file. In every version: magic (8), version (4), …, checksum (4)."""
assert _SEGMENT.size == _INDEX.size == _FLOOR.size == _HOLD.size == HEAD
assert _GROUP.size == GROUP_HEADER

_SEGMENT_MAGIC: Final = b"TandmLog"
_INDEX_MAGIC: Final = b"TandmIdx"
_FLOOR_MAGIC: Final = b"TandmFlr"
_HOLD_MAGIC: Final = b"TandmHld"
GROUP: Final = b"\xe7Grp"
MARK: Final = b"\xe7Mrk"
"""Stands at the end of the log while nothing is being written: all before it is durable."""
LOST: Final = b"\xe7Lst"
"""Stands in place of groups whose loss an operator accepted (`check.repair`)."""

_KINDS: Final = frozenset({GROUP, MARK, LOST})

_CHUNK: Final = 1 << 20


class Damage(Exception):
    """What is wrong, and at which offset of the file. Never leaves the package."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset


class SegmentHeader(NamedTuple):
    base: int
    """The place of its first group."""
    number: int
    """1 for the first segment of the log, 2 for the next: a missing file shows."""
    first_group: int
    """The number that its first group will have."""
    life: int
    """Random, and repeated in each group: what an earlier life of a recycled file left behind, or
    what a client put into a message, cannot pass for a group."""


class GroupHeader(NamedTuple):
    kind: bytes
    number: int
    place: int
    length: int
    checksum: int


class IndexHeader(NamedTuple):
    place: int
    next_group: int
    """The number of the group at `place`."""
    length: int
    checksum: int


class Hold(NamedTuple):
    """A reader of the log still needs it from `place` on."""

    place: int
    lasts_ms: int
    """It counts so long after it was last written."""
    most_bytes: int
    """It counts as long as the log from `place` on is not longer."""


# --- headers --------------------------------------------------------------------------------------


def _sealed(packed: bytes) -> bytes:
    return packed[:-4] + crc32(packed[:-4]).to_bytes(4, "little")


def _opened(data: bytes, magic: bytes, name: str) -> None:
    """Checks that hold for every header of a file."""
    if len(data) < HEAD:
        raise Damage("the file is too short for its header", 0)
    if crc32(data[: HEAD - 4]) != int.from_bytes(data[HEAD - 4 : HEAD], "little"):
        raise Damage("the header fails its checksum", 0)
    if data[:8] != magic:
        raise Damage("the file is of another kind", 0)
    version = int.from_bytes(data[8:12], "little")
    if version > FORMAT:
        raise StoreError(
            f"{name} has format {version}; this Tandem reads up to {FORMAT}: use a newer one"
        )


def pack_segment(header: SegmentHeader) -> bytes:
    return _sealed(_SEGMENT.pack(_SEGMENT_MAGIC, FORMAT, HEADER, *header, 0))


def unpack_segment(data: bytes, name: str) -> SegmentHeader:
    _opened(data, _SEGMENT_MAGIC, name)
    return SegmentHeader(*_SEGMENT.unpack_from(data)[3:7])


def pack_index(header: IndexHeader) -> bytes:
    return _sealed(_INDEX.pack(_INDEX_MAGIC, FORMAT, HEAD, *header, 0))


def unpack_index(data: bytes, name: str) -> IndexHeader:
    _opened(data, _INDEX_MAGIC, name)
    return IndexHeader(*_INDEX.unpack_from(data)[3:7])


def pack_floor(place: int) -> bytes:
    return _sealed(_FLOOR.pack(_FLOOR_MAGIC, FORMAT, HEAD, place, 0))


def unpack_floor(data: bytes, name: str) -> int:
    _opened(data, _FLOOR_MAGIC, name)
    place: int = _FLOOR.unpack_from(data)[3]
    return place


def pack_hold(hold: Hold) -> bytes:
    return _sealed(_HOLD.pack(_HOLD_MAGIC, FORMAT, HEAD, *hold, 0))


def unpack_hold(data: bytes, name: str) -> Hold:
    _opened(data, _HOLD_MAGIC, name)
    return Hold(*_HOLD.unpack_from(data)[3:6])


def pack_group(
    kind: bytes, life: int, number: int, place: int, length: int, checksum: int = 0
) -> bytes:
    packed = _GROUP.pack(kind, life, number, place, length, checksum, 0)
    return packed[:-4] + crc32(packed[:-4]).to_bytes(4, "little")


def unpack_group(data: bytes, at: int, life: int) -> GroupHeader | None:
    """The header of a group, mark or loss of this life at `data[at:]`; None if there is none."""
    if len(data) - at < GROUP_HEADER:
        return None
    kind, found, number, place, length, checksum, own = _GROUP.unpack_from(data, at)
    if found != life or kind not in _KINDS or own != crc32(data[at : at + GROUP_HEADER - 4]):
        return None
    return GroupHeader(kind, number, place, length, checksum)


# --- walking --------------------------------------------------------------------------------------


class Readable(Protocol):
    """What a walk needs of a file; a log that is in no file has it, too."""

    def pread(self, length: int, offset: int) -> bytes: ...


class Walk:
    """The groups of one segment from `place` on, each checked.

    With a `limit` the groups must end exactly there. Without one this is the last segment after a
    crash: the walk ends at a mark, or with Damage where the next group would begin; whether that is
    a torn write or rot, `find_later` tells.
    """

    def __init__(
        self,
        file: Readable,
        header: SegmentHeader,
        place: int,
        *,
        number: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.place = place
        self.number = number
        """The number of the next group; None: not known before the first one."""
        self.lost: list[tuple[int, int]] = []
        """The stretches that were given up by a repair: from, to."""
        self.is_marked = False
        self._file = file
        self._base = header.base
        self._life = header.life
        self._limit = limit
        self._chunk = b""
        self._chunk_place = place

    def __iter__(self) -> Iterator[Group]:
        return self

    def __next__(self) -> Group:
        while self._limit is None or self.place < self._limit:
            header = self._header()
            if header.kind == MARK:
                if self._limit is not None:
                    raise self._damage("the log ends too early")
                self.is_marked = True
                break
            body_at = self._fetch(GROUP_HEADER + header.length) + GROUP_HEADER
            following = self.place + GROUP_HEADER + header.length
            group = Group(self.place, self._chunk[body_at : body_at + header.length])
            if header.kind == GROUP and crc32(group.body) != header.checksum:
                raise self._damage("a group fails its checksum")
            self.number = header.number + 1
            self.place = following
            if header.kind == GROUP:
                return group
            self.lost.append((group.place, following))
        raise StopIteration

    def _header(self) -> GroupHeader:
        at = self._fetch(GROUP_HEADER)
        header = unpack_group(self._chunk, at, self._life)
        if header is None:
            raise self._damage("the header of a group fails its check")
        is_mark = header.kind == MARK
        # A loss may stand for several groups: its number is the last of them.
        is_next = self.number is None or (
            header.number >= self.number
            if header.kind == LOST
            else header.number == self.number - is_mark
        )
        if header.place != self.place or not is_next:
            raise self._damage("a group stands where another one belongs")
        following = self.place + GROUP_HEADER + header.length
        if self._limit is not None and following > self._limit:
            raise self._damage("a group goes beyond the end of its segment")
        return header

    def _fetch(self, length: int) -> int:
        """Have `length` bytes from the current place in the chunk; returns where they begin."""
        at = self.place - self._chunk_place
        if at + length > len(self._chunk):
            wanted = max(length, _CHUNK)
            self._chunk = self._file.pread(wanted, HEADER + self.place - self._base)
            self._chunk_place = self.place
            at = 0
            if len(self._chunk) < length:
                raise self._damage("the file ends inside of a group")
        return at

    def _damage(self, what: str) -> Damage:
        return Damage(what, HEADER + self.place - self._base)


def find_later(file: File, header: SegmentHeader, place: int) -> GroupHeader | None:
    """The next group or mark of this life behind `place`, found by its bytes alone.

    A group is only written when the one before it is durable, so whatever stands behind proves that
    what stands at `place` was acknowledged. Its own place and checksum must fit, and nobody outside
    knows the life: no message can pass for one.
    """
    needle = header.life.to_bytes(8, "little")
    offset = HEADER + place - header.base + 1
    while True:
        chunk = file.pread(_CHUNK, offset)
        if len(chunk) < GROUP_HEADER:
            return None
        at = chunk.find(needle, 4)
        while at >= 0:
            found = unpack_group(chunk, at - 4, header.life)
            if found and found.place - header.base + HEADER == offset + at - 4:
                return found
            at = chunk.find(needle, at + 1)
        offset += len(chunk) - GROUP_HEADER + 1
