"""Reading an entity by position: in bulk and in order, without touching what is read.

A *position* is the count of a message within its partition, in the order of arrival: the sequence
number without the bits of the partition. Dead letters keep the number that they had, and come in
any order; so in a dead-letter queue the position is a count of its own, and there is one partition.
Positions only grow, and what came before the tail of a `Survey` never changes its position: a range
of positions can be read again.

Scheduled messages are not there: each gets a new number, and so its position, when it is due. All
others are, whatever their state. With a tap (`cursors`) also those that have left.

The rule: a look at the rows is bounded (`MAX_ROWS_LOOKED`), a removal is bounded
(`MAX_BATCH_DELETE`); whoever wants more asks again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tandembus import limits
from tandembus.changes import CursorDropped, CursorMoved, EntityKind, Note, Noted, Removal
from tandembus.core import lifecycle
from tandembus.core.commands import Advance, DropCursor, MoveCursor, OpenTap, Scan, Survey
from tandembus.core.cursors import Cursors
from tandembus.core.state import State
from tandembus.errors import ArgumentError, NotAllowedError, QuotaExceededError
from tandembus.model import Millis

if TYPE_CHECKING:
    from tandembus.core.queue import Queue
    from tandembus.core.registry import Registry
    from tandembus.core.table import Chunk, Table

_HIDDEN: Final = (State.GONE, State.SCHEDULED)
_SHOWN: Final = bytes(state not in _HIDDEN for state in range(256))


class Extent(NamedTuple):
    """Where the messages of one partition lie."""

    first: int
    """The lowest position that there is; the tail, if there is none."""
    tail: int
    """The position of the message that comes next: all before it is decided and durable."""
    floor: int
    """Below this a tap has lost what had left."""
    since: int
    """From here on all was enqueued at the time that was asked for, or later."""


class Lie(NamedTuple):
    extents: list[Extent]
    cursors: dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class Stretch:
    end: int
    count: int
    size: int
    """Bytes of the messages as they are stored."""


@dataclass(slots=True)
class Rows:
    """Messages in a row, column by column."""

    following: int
    """The position to go on from."""
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    bodies: array[int] = field(default_factory=lambda: array("Q"))
    enqueued: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("I"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    levels: array[int] = field(default_factory=lambda: array("B"))
    states: array[int] = field(default_factory=lambda: array("B"))
    edits: dict[int, bytes] = field(default_factory=dict)
    """By row."""


_Row = tuple[int, int, "Chunk", int, bytes | None]
"""Position, sequence number, where its facts are, edits."""


class Reading:
    """Carries out the commands that read by position. Belongs to the namespace."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.handlers: dict[type, Callable[[Any, Millis], object]] = {
            Survey: self._survey,
            Advance: self._advance,
            Scan: self._scan,
            MoveCursor: self._move_cursor,
            OpenTap: self._open_tap,
            DropCursor: self._drop_cursor,
        }

    def _survey(self, command: Survey, now: Millis) -> Lie:
        queue = self._registry.holder(command.path)
        if command.since_ms is not None and queue.arrivals is not None:
            raise NotAllowedError(
                f"'{queue.path}' is in the order of death: no time divides it. Filter by it."
            )
        queue.accessed_ms = now
        cursors = {} if queue.cursors is None else queue.cursors.by_name
        return Lie(
            [_extent(queue, at, command.since_ms) for at in range(_partitions(queue))],
            {name: dict(cursor.positions) for name, cursor in cursors.items()},
        )

    def _advance(self, command: Advance, now: Millis) -> Stretch:
        queue = self._registry.holder(command.path)
        _check(queue, command.partition, command.start, command.end)
        if command.max_count < 1 or command.max_bytes < 1:
            raise ArgumentError("An advance must have room for one message.")
        end = min(command.end, _tail(queue, command.partition))
        if _is_plain(queue, command.partition):
            table = queue.parts[command.partition].table
            return _measure_chunks(table, command.start, end, command.max_count, command.max_bytes)
        rows = _rows(queue, command.partition, command.start, end)
        end = max(command.start, end)
        return _measure_rows(rows, end, command.max_count, command.max_bytes)

    def _scan(self, command: Scan, now: Millis) -> Rows:
        queue = self._registry.holder(command.path)
        _check(queue, command.partition, command.start, command.end)
        if command.max_count < 1 or command.max_bytes < 1:
            raise ArgumentError("A page must have room for one message.")
        queue.accessed_ms = now
        end = min(command.end, _tail(queue, command.partition))
        page = Rows(max(command.start, end))
        count, size = min(command.max_count, limits.MAX_SCAN), 0
        for position, number, chunk, row, edits in _rows(
            queue, command.partition, command.start, end
        ):
            size += chunk.sizes[row]
            if len(page.numbers) >= count or (size > command.max_bytes and page.numbers):
                page.following = position
                break
            if edits is not None:
                page.edits[len(page.numbers)] = edits
            page.numbers.append(number)
            page.bodies.append(chunk.bodies[row])
            page.enqueued.append(chunk.enqueued[row])
            page.sizes.append(chunk.sizes[row])
            page.counts.append(chunk.count(row))
            page.levels.append(chunk.level(row))
            page.states.append(chunk.states[row])
        queue.book.emit(Noted(now, queue.id, Note.BROWSED, len(page.numbers), 0, None))
        return page

    # --- cursors ----------------------------------------------------------------------------------

    def _move_cursor(self, command: MoveCursor, now: Millis) -> int:
        queue = self._registry.holder(command.path)
        name, partition, position = command.name, command.partition, command.position
        _check(queue, partition, position, position)
        if position > _tail(queue, partition):
            raise ArgumentError(f"'{queue.path}' has not come to position {position} yet.")
        cursors = _cursors(queue, name)
        cursor = cursors.by_name.get(name)
        held = None if cursor is None else cursor.positions.get(partition)
        if held is not None and held >= position:
            return held
        if held is not None and command.removes:
            if not queue.gives_messages:
                raise NotAllowedError(f"'{queue.path}' gives out no messages now.")
            numbers: list[int] = []
            for at, number, *_ in _rows(queue, partition, held, position):
                if queue.find(number) is None:
                    continue  # only held back: it has left already
                if len(numbers) == limits.MAX_BATCH_DELETE:
                    position = at
                    break
                numbers.append(number)
            lifecycle.leave(queue, numbers, Removal.COMPLETED, now)
        retention_ms = 0 if cursor is None else cursor.retention_ms
        self._put(queue, cursors, name, partition, position, retention_ms, now)
        queue.accessed_ms = now
        return position

    def _open_tap(self, command: OpenTap, now: Millis) -> None:
        queue = self._registry.holder(command.path)
        if queue.kind is EntityKind.DEAD_LETTER:
            raise NotAllowedError("A dead-letter queue has no tap: nothing passes through it.")
        if not 0 < command.retention_ms <= limits.MAX_TAP_MS:
            raise ArgumentError(f"A tap holds back for 1 to {limits.MAX_TAP_MS} ms.")
        cursors = _cursors(queue, command.name)
        cursor = cursors.by_name.get(command.name)
        for partition in range(_partitions(queue)):
            held = None if cursor is None else cursor.positions.get(partition)
            position = _extent(queue, partition, None).first if held is None else held
            self._put(queue, cursors, command.name, partition, position, command.retention_ms, now)

    def _put(
        self,
        queue: Queue,
        cursors: Cursors,
        name: str,
        partition: int,
        position: int,
        retention_ms: Millis,
        now: Millis,
    ) -> None:
        change = CursorMoved(now, queue.id, partition, position, retention_ms, name)
        queue.book.emit(change)
        queue.cursors = cursors
        cursors.move(name, partition, position, retention_ms)
        if retention_ms:
            queue.book.wake(queue, cursors.next_deadline())

    def _drop_cursor(self, command: DropCursor, now: Millis) -> None:
        queue = self._registry.holder(command.path)
        if queue.cursors is not None and command.name in queue.cursors.by_name:
            queue.book.emit(CursorDropped(now, queue.id, command.name))
            queue.cursors.drop(command.name)


def _cursors(queue: Queue, name: str) -> Cursors:
    """Those of the queue, with room for one of that name."""
    if not 0 < len(name) <= limits.MAX_CURSOR_NAME:
        raise ArgumentError(f"A cursor's name has 1 to {limits.MAX_CURSOR_NAME} characters.")
    cursors = queue.cursors or Cursors(queue.book)
    if name not in cursors.by_name and len(cursors.by_name) >= limits.MAX_CURSORS:
        raise QuotaExceededError(
            f"'{queue.path}' has {limits.MAX_CURSORS} cursors, the most it can."
        )
    return cursors


# --- positions ------------------------------------------------------------------------------------


def _partitions(queue: Queue) -> int:
    return 1 if queue.arrivals is not None else len(queue.parts)


def _check(queue: Queue, partition: int, start: int, end: int) -> None:
    if not 0 <= partition < _partitions(queue):
        raise ArgumentError(f"'{queue.path}' has no partition {partition}.")
    if not 0 <= start <= end:
        raise ArgumentError("A range of positions begins at 0 or later, and ends behind that.")


def _tail(queue: Queue, partition: int) -> int:
    last = queue.parts[partition].last if queue.arrivals is None else queue.arrivals.last
    return last + 1


def _extent(queue: Queue, partition: int, since_ms: Millis | None) -> Extent:
    tail = _tail(queue, partition)
    first = next((row[0] for row in _rows(queue, partition, 0, tail)), tail)
    floor = 0 if queue.cursors is None else queue.cursors.floors.get(partition, 0)
    since = first
    if since_ms is not None:
        since = tail
        for position, _, chunk, row, _ in _rows(queue, partition, 0, tail, since_ms):
            if chunk.enqueued[row] >= since_ms:
                since = position
                break
    return Extent(first, tail, floor, since)


def _is_plain(queue: Queue, partition: int) -> bool:
    """Whether the rows of the table are all that there is, in their order."""
    has_held = queue.cursors is not None and partition in queue.cursors.held
    return queue.arrivals is None and not has_held


def _rows(
    queue: Queue, partition: int, start: int, end: int, since_ms: Millis = 0
) -> Iterator[_Row]:
    """What is shown, by position. With `since_ms` whole chunks that are older may be left out."""
    if queue.arrivals is not None:
        return _arrived(queue, start, end)
    part = queue.parts[partition]
    edits = queue.edits.get

    def of_table() -> Iterator[_Row]:
        for chunk, row in _shown(part.table, start, end, since_ms):
            index = chunk.indexes[row]
            number = part.number(index)
            yield index, number, chunk, row, edits(number)

    cursors = queue.cursors
    if cursors is None or partition not in cursors.held:
        return of_table()
    kept, held_edits = cursors.held[partition], cursors.edits.get

    def held() -> Iterator[_Row]:
        for chunk, row in _shown(kept, start, end, since_ms):
            index = chunk.indexes[row]
            more = held_edits((partition, index))
            yield index, part.number(index), chunk, row, more

    return merge(of_table(), held(), key=lambda row: row[0])


def _shown(table: Table, start: int, end: int, since_ms: Millis) -> Iterator[tuple[Chunk, int]]:
    for chunk, first, last in table.runs(start, end):
        if chunk.enqueued[last - 1] < since_ms:
            continue
        marks = chunk.states[first:last].tobytes().translate(_SHOWN)
        at = -1
        while (at := marks.find(1, at + 1)) >= 0:
            yield chunk, first + at


def _arrived(queue: Queue, start: int, end: int) -> Iterator[_Row]:
    arrivals = queue.arrivals
    assert arrivals is not None
    for at in range(bisect_left(arrivals.positions, start), len(arrivals.positions)):
        position, number = arrivals.positions[at], arrivals.numbers[at]
        if position >= end:
            return
        found = queue.find(number)
        if found is not None:
            yield position, number, found.chunk, found.row, queue.edits.get(number)


def _measure_chunks(table: Table, start: int, end: int, max_count: int, max_bytes: int) -> Stretch:
    """A chunk at a time, where a whole one fits: 10 ns a message."""
    count = size = looked = 0
    for chunk, first, last in table.runs(start, end):
        if looked >= limits.MAX_ROWS_LOOKED:
            return Stretch(chunk.indexes[first], count, size)
        looked += last - first
        marks = chunk.states[first:last].tobytes().translate(_SHOWN)
        shown, sizes = marks.count(1), chunk.sizes[first:last]
        total = sum(sizes) if shown == len(marks) else sum(compress(sizes, marks))
        if count + shown <= max_count and size + total <= max_bytes:
            count, size = count + shown, size + total
            continue
        for row in compress(range(first, last), marks):
            more = chunk.sizes[row]
            if count >= max_count or (count and size + more > max_bytes):
                return Stretch(chunk.indexes[row], count, size)
            count, size = count + 1, size + more
    return Stretch(max(start, end), count, size)


def _measure_rows(rows: Iterator[_Row], end: int, max_count: int, max_bytes: int) -> Stretch:
    count = size = 0
    for position, _, chunk, row, _ in rows:
        more = chunk.sizes[row]
        is_full = count >= max_count or (count and size + more > max_bytes)
        if is_full or count >= limits.MAX_ROWS_WALKED:
            return Stretch(position, count, size)
        count, size = count + 1, size + more
    return Stretch(end, count, size)
