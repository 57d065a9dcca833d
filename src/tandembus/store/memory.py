"""The log in memory, with the contract of `api.py`: for tests, the simulator and brokers that may
forget.

What lives here: the same places, the same refusals, no files. The rule: whatever engine does with a
`FileStore` it can do with this one and see the same; a crash keeps what `append` returned for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from tandembus.errors import CorruptLogError, StoreError
from tandembus.store.api import GROUP_HEADER, Buffer, Group, Index

_NO_LIMIT: Final = 1 << 62


class MemoryStore:
    """See `tandembus.store.api.Store` for the contract."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.free = _NO_LIMIT
        """What `free_bytes` tells; a test sets it to fill the disk."""
        self._log = bytearray()
        self._start = 0
        self._places: list[int] = []
        """Where each group begins."""
        self._index: Index | None = None
        self._broken: str | None = None

    @property
    def start(self) -> int:
        return self._start

    @property
    def end(self) -> int:
        return self._start + len(self._log)

    def append(self, body: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(body)
        place = self.end
        header = place.to_bytes(8) + len(data).to_bytes(4) + crc32(data).to_bytes(4)
        self._log += header.ljust(GROUP_HEADER, b"\0") + data
        self._places.append(place)
        return self.end

    def mark_idle(self) -> None:
        self._check()

    def read(self, place: int, length: int) -> bytes:
        self._check()
        self._check_place(place)
        at = place - self._start
        return bytes(self._log[at : at + length])

    def view(self, place: int) -> None:
        """There is none."""

    def replay(self, place: int) -> Iterator[Group]:
        self._check()
        self._check_place(place)
        return self._replay(place, self.end)

    def _replay(self, place: int, end: int) -> Iterator[Group]:
        while place < end:
            header = self.read(place, GROUP_HEADER)
            length = int.from_bytes(header[8:12])
            body = self.read(place + GROUP_HEADER, length)
            if place.to_bytes(8) != header[:8] or crc32(body).to_bytes(4) != header[12:16]:
                raise CorruptLogError("no group begins", segment="memory", offset=place)
            yield Group(place, body)
            place += GROUP_HEADER + length

    def drop_before(self, place: int) -> None:
        self._check()
        if place > (self._index.place if self._index else 0):
            raise StoreError(f"place {place} is behind the last index")
        kept = max(0, bisect_right([*self._places, self.end], place) - 1)
        start = [*self._places, self.end][kept]
        if start > self._start:
            del self._log[: start - self._start]
            del self._places[:kept]
            self._start = start

    def save_index(self, place: int, data: Sequence[Buffer]) -> None:
        self._check()
        oldest = max(self._start, self._index.place if self._index else 0)
        if not oldest <= place <= self.end:
            raise StoreError(f"an index at {place} is not between {oldest} and {self.end}")
        found = bisect_left(self._places, place)
        if place not in (self.end, *self._places[found : found + 1]):
            raise StoreError(f"no group begins at place {place}")
        self._index = Index(place, b"".join(data))

    def load_index(self) -> Index | None:
        self._check()
        return self._index

    def bytes_on_disk(self) -> int:
        return len(self._log) + (len(self._index.data) if self._index else 0)

    def close(self) -> None:
        self._broken = self._broken or "the store is closed"

    # --- more than the contract -------------------------------------------------------------------

    def free_bytes(self) -> int:
        self._check()
        return self.free

    def locate(self, place: int) -> tuple[str, int]:
        return "memory", place

    def reopened(self) -> MemoryStore:
        """The store as the next open finds it: after `close`, or after a crash at this moment. This
        one is done for."""
        store = MemoryStore()
        store._log = self._log[:]
        store._start = self._start
        store._places = self._places[:]
        store._index = self._index
        store.free = self.free
        self.close()
        return store

    def fail(self, why: str) -> None:
        """From now on every call raises StoreError, as after a disk error."""
        self._broken = why

    def _check(self) -> None:
        if self._broken is not None:
            raise StoreError(self._broken)

    def _check_place(self, place: int) -> None:
        if not self._start <= place <= self.end:
            raise StoreError(f"place {place} is not in the log ({self._start} to {self.end})")
