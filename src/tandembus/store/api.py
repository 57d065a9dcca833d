"""What a store must do, and nothing more: append a group, read a place, replay from a place, drop
before a place; and keep one index, a summary of all before a place, so that opening need not scan.

A *place* is a byte position in one endless log; it never changes its meaning. Groups lie one behind
the other without gaps: a group appended at `end` takes `GROUP_HEADER + len(body)` bytes, so the
writer knows the place of every record before the group is written. How the log is cut into files
(or rows) is the store's own affair.

`append` is called by one thread at a time; `read` by any thread, also while `append` runs. A call
that fails raises `StoreError` and leaves the store unusable: the process must end, and the next
open finds what was durable. Nothing is retried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview
View: TypeAlias = bytes | mmap
"""What is only looked at; a slice of either is `bytes`."""

GROUP_HEADER: Final = 40
"""Bytes before the body of each group."""


class Group(NamedTuple):
    place: int
    """Where the group begins; its body begins at `place + GROUP_HEADER`."""
    body: bytes


class Index(NamedTuple):
    place: int
    """The index sums up the log before this place; replay goes on from here."""
    data: bytes


class Store(Protocol):
    @property
    def start(self) -> int:
        """The oldest place that can still be read."""
        ...

    @property
    def end(self) -> int:
        """Where the next group will begin."""
        ...

    def append(self, body: Sequence[Buffer]) -> int:
        """Write one group (the buffers joined) and return when it is on stable storage. Returns the
        new `end`."""
        ...

    def read(self, place: int, length: int) -> bytes:
        """Up to `length` bytes from `place` (fewer only at the end of the log or of a part of it);
        never past what was appended. Raises StoreError for a place that was dropped."""
        ...

    def view(self, place: int) -> tuple[int, View] | None:
        """(begin, bytes): a stretch of the log with `place` in it, without a copy, for one who
        wants some of it here and there; None if that cannot be had. To be looked into only at
        places that may still be read."""
        ...

    def replay(self, place: int) -> Iterator[Group]:
        """Every group from `place` on, oldest first, each checked. Raises CorruptLogError."""
        ...

    def drop_before(self, place: int) -> None:
        """Nothing before `place` is needed any more. May free less, never more. Only places at or
        before the saved index may be given."""
        ...

    def save_index(self, place: int, data: Sequence[Buffer]) -> None:
        """Keep `data` as the index at `place`; durable and whole, or the former one stays."""
        ...

    def load_index(self) -> Index | None:
        """The newest whole index from whose place the log can be replayed."""
        ...

    def mark_idle(self) -> None:
        """Nothing more to append for now: say so where the next group will be, so that a damaged
        last group cannot pass for a write that was never finished. Need not be durable."""
        ...

    def locate(self, place: int) -> tuple[str, int]:
        """Where a place is, for people: the file (or table) and the offset in it."""
        ...

    def free_bytes(self) -> int:
        """How much more can be written before the disk is full."""
        ...

    def bytes_on_disk(self) -> int: ...

    def close(self) -> None:
        """Release everything. Appends that returned stay durable without it."""
        ...


@runtime_checkable
class Leased(Protocol):
    """A store that another process can take over."""

    @property
    def is_sure(self) -> bool:
        """Whether nobody can have taken it over yet. If not, only an append that returns shows that
        nobody has: until then, what this process knows may be old."""
        ...
