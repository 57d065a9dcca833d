"""Reading the log of a running broker: the groups that are durable, and nothing of what is not.

The broker's lock is not asked for, and nothing is written. A group counts as durable when something
of the same life stands behind it: the next group or a mark (`segment.py` says why), or a segment
that begins where it ends. So the journal never knows of a change that a power cut takes back.

A file may be dropped, and used again, while it is being read: every group carries the life of its
segment, so that what is read is right or is noticed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from tandembus.changes import BodyMoved, PiecesJoined, PieceStored
from tandembus.errors import CorruptLogError, StoreError
from tandembus.store.api import GROUP_HEADER
from tandembus.store.folder import log_name
from tandembus.store.records import TABLE
from tandembus.store.segment import (
    GROUP,
    HEAD,
    HEADER,
    LOST,
    MARK,
    Damage,
    SegmentHeader,
    unpack_segment,
)

PIECE: Final = 16 << 20
_GROUP: Final = Struct("<4sQQQIII")
_PREFIX: Final = Struct("<BI")
_TIMELESS: Final = frozenset(
    code for code, cls, *_ in TABLE if cls in (BodyMoved, PieceStored, PiecesJoined)
)


class Dropped(Exception):
    """The log was dropped before it was read: `first` is the oldest place that is left."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.first = first


class Piece(NamedTuple):
    """Some durable groups, one behind the other."""

    place: int
    """Of the first byte of `data`."""
    data: bytes
    bodies: list[tuple[int, int]]
    """Where each group's body begins and ends in `data`."""
    lost: list[tuple[int, int]]
    """Places that a repair has given up: from, to."""
    end: int
    """The place behind the last group."""

    def first_time(self) -> int:
        """Of the first record that has one; 0 if none has."""
        for begin, end in self.bodies:
            while begin < end:
                code, length = _PREFIX.unpack_from(self.data, begin)
                if code not in _TIMELESS:
                    return int.from_bytes(self.data[begin + 5 : begin + 13], "little")
                begin += length + 5
        return 0


class Follower:
    """The log in `folder` from `place` on."""

    def __init__(self, folder: Path, place: int, number: int | None = None) -> None:
        self.folder = folder
        self.place = place
        self.number = number
        """Of the next group; None: not known. It tells this log from another one."""
        self._fd = -1
        self._header: SegmentHeader

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, most: int = PIECE) -> Piece | None:
        """The next durable groups, about `most` bytes of them; None if there are none as yet.

        Raises Dropped, CorruptLogError, and StoreError if the folder holds another log."""
        while True:
            if self._fd < 0 and not self._open():
                return None
            piece = self._read(most)
            if piece is not None:
                return piece
            following = self._following()
            if following is None:
                return None
            # The segment was filled up meanwhile, or even before we looked: once more, and whatever
            # is there now is all there will be.
            piece = self._read(most, is_sealed_at=following)
            if piece is not None:
                return piece
            if self.place != following:
                raise self._unreadable()
            self.close()

    # --- one segment ------------------------------------------------------------------------------

    def _read(self, most: int, *, is_sealed_at: int | None = None) -> Piece | None:
        offset = HEADER + self.place - self._header.base
        data = os.pread(self._fd, most, offset)
        while True:
            found = self._whole(data, is_sealed_at)
            if not isinstance(found, int):
                return found
            if found <= len(data):
                return None
            data = os.pread(self._fd, found, offset)
            if len(data) < found:
                return None

    def _whole(self, data: bytes, is_sealed_at: int | None) -> Piece | int | None:
        """The durable groups at the beginning of `data`; the bytes needed, if that is more."""
        bodies: list[tuple[int, int]] = []
        lost: list[tuple[int, int]] = []
        at, number, life = 0, self.number, self._header.life
        place = self.place
        durable: tuple[int, int | None, int, int] = (0, number, 0, 0)
        """(bytes, number of the next, bodies, losses) before the last header that was found."""
        size = len(data)
        while at + GROUP_HEADER <= size:
            kind, own, found, its_place, length, checksum, sum_ = _GROUP.unpack_from(data, at)
            if own != life or its_place != place + at or sum_ != crc32(data[at : at + 36]):
                break
            if number is None:
                number = found + (kind == MARK)
            if kind == MARK:
                if found == number - 1:
                    durable = (at, number, len(bodies), len(lost))
                break
            if not (found == number or (kind == LOST and found > number)):
                if at == 0:
                    raise self._another()
                break
            durable = (at, number, len(bodies), len(lost))
            end = at + GROUP_HEADER + length
            if end > size:
                if at == 0:
                    whole_group: int = end + GROUP_HEADER
                    return whole_group
                break
            if kind == GROUP:
                if crc32(memoryview(data)[at + GROUP_HEADER : end]) != checksum:
                    break
                bodies.append((at + GROUP_HEADER, end))
            else:
                lost.append((place + at, place + end))
            at, number = end, found + 1
            if place + end == is_sealed_at:
                durable = (at, number, len(bodies), len(lost))
        if durable[0] == 0:
            # One group, whole, and the next header is cut off by the end of what was read?
            needed: int = at + GROUP_HEADER
            return needed if 0 < at <= size < needed else None
        end, self.number, whole, given_up = durable
        self.place = place + end
        return Piece(place, data, bodies[:whole], lost[:given_up], self.place)

    # --- which segment ----------------------------------------------------------------------------

    def _open(self) -> bool:
        bases = self._bases()
        at = bisect_right(bases, self.place) - 1
        if not bases:
            return False
        if at < 0:
            raise Dropped(bases[0])
        path = self.folder / log_name(bases[at])
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Dropped(self._first()) from None
        try:
            self._header = unpack_segment(os.pread(fd, HEAD, 0), path.name)
            if self._header.base != bases[at]:
                raise Dropped(self._first())  # it became another segment while we opened it
        except Damage as damage:
            os.close(fd)
            raise CorruptLogError(damage.what, segment=path.name, offset=damage.offset) from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        if self.place == self._header.base:
            if self.number not in (None, self._header.first_group):
                raise self._another()
            self.number = self._header.first_group
        return True

    def _following(self) -> int | None:
        """The base of the segment behind the open one."""
        bases = self._bases()
        at = bisect_right(bases, self._header.base)
        return bases[at] if at < len(bases) else None

    def _bases(self) -> list[int]:
        return sorted(
            int(name[:-4], 16) for name in os.listdir(self.folder) if name.endswith(".log")
        )

    def _first(self) -> int:
        return min(self._bases(), default=0)

    def _unreadable(self) -> Exception:
        name = log_name(self._header.base)
        try:
            is_there = os.stat(self.folder / name).st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            is_there = False
        if not is_there:
            return Dropped(self._first())
        offset = HEADER + self.place - self._header.base
        return CorruptLogError("a group is damaged", segment=name, offset=offset)

    def _another(self) -> StoreError:
        return StoreError(
            f"{self.folder} holds another log than the journal was made from: use another --out"
        )


def durable_end(folder: Path) -> int:
    """About where the log ends now, for the lag: the last group that is whole."""
    bases = sorted(int(name[:-4], 16) for name in os.listdir(folder) if name.endswith(".log"))
    if not bases:
        return 0
    follower = Follower(folder, bases[-1])
    try:
        while follower.read() is not None:
            pass
    except (Dropped, StoreError):
        pass
    finally:
        follower.close()
    return follower.place
