"""How far named readers of a queue have come, and what is held back for them.

A *cursor* is a name and a position in each partition. A *tap* is a cursor that holds messages back:
what leaves the queue, but is not passed yet, can still be scanned (`positions`), until the tap has
passed it or its time, counted from its arrival, is over.

Here lives what changes do to them, and what time does; `positions` decides the rest. What is held
back keeps its body in the log and a row here, about 40 bytes; it counts against no quota, but
`MAX_TAP_BYTES` bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tandembus import limits
from tandembus.changes import TapTrimmed
from tandembus.core.state import State
from tandembus.core.table import Chunk, Table
from tandembus.model import NEVER, Millis

if TYPE_CHECKING:
    from tandembus.core.book import Book
    from tandembus.core.packing import Reader, Writer
    from tandembus.core.queue import Queue

_SLACK_MS = limits.SECOND_MS
"""What is over its time is let go in one go: not a tick for each message."""


class Cursor:
    __slots__ = ("positions", "retention_ms")

    def __init__(self, retention_ms: Millis = 0) -> None:
        self.retention_ms = retention_ms
        """0: it holds nothing back."""
        self.positions: dict[int, int] = {}
        """By partition: the first that it has not passed."""


class Cursors:
    """All of one queue."""

    __slots__ = ("_book", "by_name", "edits", "floors", "held", "held_bytes")

    def __init__(self, book: Book) -> None:
        self._book = book
        self.by_name: dict[str, Cursor] = {}
        self.held: dict[int, Table] = {}
        """Rows of messages that have left, by partition."""
        self.held_bytes = 0
        self.edits: dict[tuple[int, int], bytes] = {}
        """Of messages that have left, by partition and index."""
        self.floors: dict[int, int] = {}
        """Below this, what has left was let go before every tap had passed it."""

    # --- what changes do --------------------------------------------------------------------------

    def move(self, name: str, partition: int, position: int, retention_ms: Millis) -> None:
        cursor = self.by_name.setdefault(name, Cursor())
        cursor.retention_ms = retention_ms
        cursor.positions[partition] = position
        self._let_go(partition, self._slowest(partition))

    def drop(self, name: str) -> None:
        del self.by_name[name]
        for partition in list(self.held):
            self._let_go(partition, self._slowest(partition))

    def trim(self, partition: int, position: int) -> None:
        self.floors[partition] = max(position, self.floors.get(partition, 0))
        self._let_go(partition, position)

    def keep(self, partition: int, index: int, chunk: Chunk, row: int, edits: bytes | None) -> bool:
        """Take over a message that leaves, and its body. False: no tap wants it."""
        if chunk.states[row] == State.SCHEDULED or index < self.floors.get(partition, 0):
            return False
        if index < self._slowest(partition):
            return False
        table = self.held.get(partition)
        if table is None:
            table = self.held[partition] = Table()
        table.add(
            index,
            chunk.bodies[row],
            chunk.enqueued[row],
            chunk.sizes[row],
            State.WAITING,
            level=chunk.level(row),
            count=chunk.count(row),
        )
        self.held_bytes += chunk.sizes[row]
        if edits is not None:
            self.edits[partition, index] = edits
        return True

    def _slowest(self, partition: int) -> int:
        """What the slowest tap has not passed; NEVER without one."""
        return min(
            (
                cursor.positions.get(partition, 0)
                for cursor in self.by_name.values()
                if cursor.retention_ms
            ),
            default=NEVER,
        )

    def _let_go(self, partition: int, position: int) -> None:
        table = self.held.get(partition)
        if table is None:
            return
        gone: list[int] = []
        for chunk, row in table.rows_from(0):
            if chunk.indexes[row] >= position:
                break
            gone.append(chunk.indexes[row])
        for index in gone:
            found = table.find(index)
            assert found is not None
            chunk, row = found
            self._book.release(chunk.bodies[row])
            self.held_bytes -= chunk.sizes[row]
            self.edits.pop((partition, index), None)
            table.remove(chunk, row)

    # --- time and room ----------------------------------------------------------------------------

    @property
    def retention_ms(self) -> Millis:
        return max((cursor.retention_ms for cursor in self.by_name.values()), default=0)

    def next_deadline(self) -> Millis:
        """When something held back is over its time, or too much is held back."""
        oldest = min((chunk.enqueued[row] for chunk, row in self._oldest()), default=NEVER)
        return oldest if oldest == NEVER else self.deadline_of(oldest)

    def deadline_of(self, enqueued_ms: Millis) -> Millis:
        """The same, if nothing older than this is held back."""
        if self.held_bytes > limits.MAX_TAP_BYTES:
            return 0
        return enqueued_ms + self.retention_ms + _SLACK_MS

    def _oldest(self) -> Iterator[tuple[Chunk, int]]:
        for table in self.held.values():
            yield from _first(table)

    def overdue(self, now: Millis) -> list[tuple[int, int]]:
        """(partition, position) below which all is to be let go: over its time, or too much."""
        found: list[tuple[int, int]] = []
        most = self.held_bytes - limits.MAX_TAP_BYTES
        before = now - self.retention_ms
        for partition, table in self.held.items():
            position = 0
            for chunk, row in table.rows_from(0):
                if chunk.enqueued[row] > before and most <= 0:
                    break
                most -= chunk.sizes[row]
                position = chunk.indexes[row] + 1
            if position:
                found.append((partition, position))
        return found

    def every_body(self) -> Iterator[int]:
        for table in self.held.values():
            for chunk, row in table.rows_from(0):
                yield chunk.bodies[row]

    # --- for the index ----------------------------------------------------------------------------

    def dump(self, out: Writer) -> None:
        about: dict[str, Any] = {
            "cursors": {
                name: [cursor.retention_ms, list(cursor.positions.items())]
                for name, cursor in self.by_name.items()
            },
            "floors": list(self.floors.items()),
            "held": list(self.held),
            "bytes": self.held_bytes,
        }
        out.json(about)
        for table in self.held.values():
            table.dump(out)
        out.number(len(self.edits))
        for (partition, index), edits in self.edits.items():
            out.number(partition)
            out.number(index)
            out.bytes(edits)

    def load(self, source: Reader) -> None:
        about = source.json()
        for name, (retention_ms, positions) in about["cursors"].items():
            cursor = self.by_name[name] = Cursor(retention_ms)
            cursor.positions.update(positions)
        self.floors.update(about["floors"])
        self.held_bytes = about["bytes"]
        for partition in about["held"]:
            self.held[partition] = Table.load(source)
        for _ in range(source.number()):
            partition, index = source.number(), source.number()
            edits = source.bytes()
            assert edits is not None
            self.edits[partition, index] = edits


def let_go(queue: Queue, now: Millis) -> None:
    """What taps hold back longer than they may, or more than they may."""
    if queue.cursors is not None and queue.cursors.next_deadline() <= now:
        for partition, position in queue.cursors.overdue(now):
            queue.book.emit(TapTrimmed(now, queue.id, partition, position))
            queue.cursors.trim(partition, position)


def _first(table: Table) -> Iterator[tuple[Chunk, int]]:
    for found in table.rows_from(0):
        yield found
        return
