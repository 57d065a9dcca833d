"""The messages of one partition of a queue: columns of numbers, about 30 bytes a message.

Here lives where a message's facts are kept, found and thrown away. What the facts mean, and which
may change when, is `queue`. Bodies are not here, only their numbers.

A row is found by its *index*: the count of the message within its partition, which only grows.
Rows lie in chunks, sorted by index. A row is never moved within its chunk while it is alive; rows
of messages that are gone stay until their chunk is thin enough to be swept, or empty and dropped.
So adding, finding and removing cost the same whether a thousand messages wait or ten million.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from sys import byteorder
from typing import Final

from tandembus.core.packing import Reader, Writer
from tandembus.core.state import State
from tandembus.model import NEVER, Millis

CHUNK: Final = 4_096
"""Rows in a chunk: small enough that looking through one is nothing (0.2 ms), large enough that a
chunk's own objects (2 KB) weigh nothing beside its rows."""

_GONE: Final = int(State.GONE)
_SWEEP: Final = 8
"""A chunk is swept when fewer than one row in so many is alive."""

REQUIRED: Final = (
    ("indexes", "Q"),
    ("bodies", "Q"),
    ("enqueued", "Q"),
    ("sizes", "I"),
    ("states", "B"),
)
OPTIONAL: Final = (
    ("counts", "I", 0),
    ("expires", "Q", NEVER),
    ("levels", "B", 0),
    ("dues", "Q", 0),
    ("sessions", "I", 0),
    ("hops", "B", 0),
    ("previous", "Q", 0),
    ("following", "Q", 0),
)
"""Columns that most queues never need: a chunk has one from the first row that differs on."""
_DERIVED: Final = ("previous", "following")
"""The order within a session, which is set up anew from the other columns (`sessions`)."""
_SAVED: Final = tuple(column for column in OPTIONAL if column[0] not in _DERIVED)


class Chunk:
    """Rows side by side. The columns are read directly; only `Table` adds and takes away rows."""

    __slots__ = (
        "alive",
        "bodies",
        "counts",
        "dues",
        "enqueued",
        "expires",
        "following",
        "has_more",
        "hops",
        "indexes",
        "levels",
        "next_expiry",
        "previous",
        "sessions",
        "sizes",
        "states",
    )

    def __init__(self) -> None:
        self.indexes = array("Q")
        self.bodies = array("Q")
        self.enqueued = array("Q")
        self.sizes = array("I")
        self.states = array("B")
        self.counts: array[int] | None = None
        self.expires: array[int] | None = None
        self.levels: array[int] | None = None
        self.dues: array[int] | None = None
        self.sessions: array[int] | None = None
        self.hops: array[int] | None = None
        self.previous: array[int] | None = None
        self.following: array[int] | None = None
        self.has_more = False
        """Whether any of the optional columns is there."""
        self.alive = 0
        self.next_expiry: Millis = NEVER
        """No waiting row of this chunk expires before this."""

    def column(self, name: str, typecode: str, default: int) -> array[int]:
        """The optional column `name`, made if it is not there."""
        found: array[int] | None = getattr(self, name)
        if found is None:
            found = array(typecode, [default]) * len(self.indexes)
            setattr(self, name, found)
            self.has_more = True
        return found

    # What a row says, also where the column is not there.

    def count(self, row: int) -> int:
        return 0 if self.counts is None else self.counts[row]

    def level(self, row: int) -> int:
        return 0 if self.levels is None else self.levels[row]

    def expiry(self, row: int) -> Millis:
        return NEVER if self.expires is None else self.expires[row]

    def due(self, row: int) -> Millis:
        return 0 if self.dues is None else self.dues[row]

    def session(self, row: int) -> int:
        return 0 if self.sessions is None else self.sessions[row]

    def hop(self, row: int) -> int:
        return 0 if self.hops is None else self.hops[row]

    def set_count(self, row: int, count: int) -> None:
        self.column("counts", "I", 0)[row] = count

    def set_due(self, row: int, due: Millis) -> None:
        self.column("dues", "Q", 0)[row] = due

    def set_level(self, row: int, level: int) -> None:
        self.column("levels", "B", 0)[row] = level


class Table:
    """All rows of one partition."""

    __slots__ = ("_chunks", "_firsts", "_hot", "last", "next_expiry")

    def __init__(self) -> None:
        self._chunks = [Chunk()]
        self._firsts = [0]
        """The lowest index that each chunk may hold. The first is 0 always: a dead-letter queue may
        take a row older than any that it has."""
        self._hot = self._chunks[0]
        self.last = -1
        """The highest index ever added."""
        self.next_expiry: Millis = NEVER
        """No waiting row expires before this."""

    def add(
        self,
        index: int,
        body: int,
        enqueued: Millis,
        size: int,
        state: int,
        expires: Millis = NEVER,
        level: int = 0,
        due: Millis = 0,
        session: int = 0,
        hops: int = 0,
        count: int = 0,
    ) -> None:
        """A new row: behind all others, or, in a dead-letter queue, between them."""
        if index > self.last:
            chunk, row = self._append(index, body, enqueued, size, state)
        else:
            chunk, row = self._insert(index, body, enqueued, size, state)
        if expires != NEVER or level or due or session or hops or count:
            self._annotate(chunk, row, expires, level, due, session, hops, count)

    def _append(
        self, index: int, body: int, enqueued: Millis, size: int, state: int
    ) -> tuple[Chunk, int]:
        """A new row behind all others."""
        chunk = self._chunks[-1]
        row = len(chunk.indexes)
        if row >= CHUNK:
            chunk = Chunk()
            self._chunks.append(chunk)
            self._firsts.append(index)
            row = 0
        self.last = index
        chunk.alive += 1
        chunk.indexes.append(index)
        chunk.bodies.append(body)
        chunk.enqueued.append(enqueued)
        chunk.sizes.append(size)
        chunk.states.append(state)
        if chunk.has_more:
            for name, _, default in OPTIONAL:
                column = getattr(chunk, name)
                if column is not None:
                    column.append(default)
        return chunk, row

    def append_run(
        self,
        index: int,
        body: int,
        enqueued: Millis,
        sizes: Sequence[int],
        state: int,
        levels: bytes | bytearray = b"",
    ) -> None:
        """New rows behind all others, with indexes and bodies that count up, and nothing more to be
        said of them but, if there are any, their levels."""
        assert index > self.last
        at = 0
        while at < len(sizes):
            chunk = self._chunks[-1]
            room = CHUNK - len(chunk.indexes)
            if room <= 0:
                chunk = Chunk()
                self._chunks.append(chunk)
                self._firsts.append(index + at)
                room = CHUNK
            part = sizes[at : at + room]
            count = len(part)
            chunk.alive += count
            chunk.indexes.extend(range(index + at, index + at + count))
            chunk.bodies.extend(range(body + at, body + at + count))
            chunk.enqueued.extend([enqueued] * count)
            chunk.sizes.extend(part)
            chunk.states.extend([state] * count)
            if chunk.has_more:
                for name, _, default in OPTIONAL:
                    column = getattr(chunk, name)
                    if column is not None:
                        column.extend([default] * count)
            if levels:
                chunk.column("levels", "B", 0)[-count:] = array("B", levels[at : at + count])
            at += count
        self.last = index + len(sizes) - 1

    def _insert(
        self, index: int, body: int, enqueued: Millis, size: int, state: int
    ) -> tuple[Chunk, int]:
        """A row between others: a message came into a dead-letter queue after a younger one."""
        chunk, row = self._make_room(index)
        chunk.alive += 1
        chunk.indexes[row] = index
        chunk.bodies[row] = body
        chunk.enqueued[row] = enqueued
        chunk.sizes[row] = size
        chunk.states[row] = state
        return chunk, row

    def _annotate(
        self,
        chunk: Chunk,
        row: int,
        expires: Millis,
        level: int,
        due: Millis,
        session: int,
        hops: int,
        count: int,
    ) -> None:
        """What most messages do not have."""
        if expires != NEVER:
            chunk.column("expires", "Q", NEVER)[row] = expires
            self.expect_expiry(chunk, expires)
        if level:
            chunk.column("levels", "B", 0)[row] = level
        if due:
            chunk.column("dues", "Q", 0)[row] = due
        if session:
            chunk.column("sessions", "I", 0)[row] = session
        if hops:
            chunk.column("hops", "B", 0)[row] = hops
        if count:
            chunk.column("counts", "I", 0)[row] = count

    def expect_expiry(self, chunk: Chunk, when: Millis) -> None:
        if when < chunk.next_expiry:
            chunk.next_expiry = when
            if when < self.next_expiry:
                self.next_expiry = when

    def _make_room(self, index: int) -> tuple[Chunk, int]:
        at = max(bisect_right(self._firsts, index) - 1, 0)
        if len(self._chunks[at].indexes) >= 2 * CHUNK:
            self._split(at)
            at = bisect_right(self._firsts, index) - 1
        chunk = self._chunks[at]
        row = bisect_left(chunk.indexes, index)
        is_new = row == len(chunk.indexes) or chunk.indexes[row] != index
        assert is_new or chunk.states[row] == _GONE, "an index is used once"
        if is_new:
            for name, _ in REQUIRED:
                getattr(chunk, name).insert(row, 0)
        for name, _, default in OPTIONAL:
            column = getattr(chunk, name)
            if column is not None:
                if is_new:
                    column.insert(row, default)
                else:
                    column[row] = default
        return chunk, row

    def _split(self, at: int) -> None:
        whole, half = self._chunks[at], Chunk()
        for name, *_ in (*REQUIRED, *OPTIONAL):
            column = getattr(whole, name)
            if column is not None:
                setattr(half, name, column[CHUNK:])
                del column[CHUNK:]
        half.has_more = whole.has_more
        for chunk in (whole, half):
            chunk.alive = sum(1 for state in chunk.states if state != _GONE)
        half.next_expiry = whole.next_expiry
        self._chunks.insert(at + 1, half)
        self._firsts.insert(at + 1, half.indexes[0])

    def find(self, index: int) -> tuple[Chunk, int] | None:
        """The row of a message that is not gone."""
        chunk = self._hot
        indexes = chunk.indexes
        if not indexes or not indexes[0] <= index <= indexes[-1]:
            chunk = self._chunks[max(bisect_right(self._firsts, index) - 1, 0)]
            indexes = chunk.indexes
            if not indexes or not indexes[0] <= index <= indexes[-1]:
                return None
            self._hot = chunk
        row = index - indexes[0]
        # Without gaps the row is known; behind a sweep or in a dead-letter queue it is searched.
        if row >= len(indexes) or indexes[row] != index:
            row = bisect_left(indexes, index)
            if row == len(indexes) or indexes[row] != index:
                return None
        return None if chunk.states[row] == _GONE else (chunk, row)

    def remove(self, chunk: Chunk, row: int) -> None:
        """The message is gone. The row may go with it: do not use it after this."""
        chunk.states[row] = _GONE
        chunk.alive -= 1
        if chunk.alive * _SWEEP < len(chunk.indexes) and chunk is not self._chunks[-1]:
            self._sweep(chunk)

    def _sweep(self, chunk: Chunk) -> None:
        at = bisect_right(self._firsts, chunk.indexes[0]) - 1
        if chunk.alive:
            keep = [row for row, state in enumerate(chunk.states) if state != _GONE]
            for name, *_ in (*REQUIRED, *OPTIONAL):
                column = getattr(chunk, name)
                if column is not None:
                    setattr(chunk, name, array(column.typecode, [column[row] for row in keep]))
            before = self._chunks[at - 1] if at else None
            if before is None or len(before.indexes) + len(keep) > CHUNK // _SWEEP:
                return
            self._append_rows(before, chunk)
            if self._hot is chunk:
                self._hot = before
        del self._chunks[at], self._firsts[at]
        self._firsts[0] = 0
        if self._hot is chunk:
            self._hot = self._chunks[-1]

    @staticmethod
    def _append_rows(into: Chunk, chunk: Chunk) -> None:
        """Two thin chunks become one, so that stragglers do not each keep a chunk."""
        for name, typecode, default in OPTIONAL:
            theirs = getattr(chunk, name)
            if theirs is not None or getattr(into, name) is not None:
                into.column(name, typecode, default).extend(chunk.column(name, typecode, default))
        for name, _ in REQUIRED:
            getattr(into, name).extend(getattr(chunk, name))
        into.alive += chunk.alive
        into.next_expiry = min(into.next_expiry, chunk.next_expiry)

    def forget_links(self) -> None:
        """The order within sessions is set up anew."""
        for chunk in self._chunks:
            chunk.previous = chunk.following = None

    def rename_sessions(self, others: Mapping[int, int]) -> None:
        """Rows of a session that is another one now, by number."""
        for chunk in self._chunks if others else ():
            if chunk.sessions is not None:
                numbers = (others.get(number, number) for number in chunk.sessions)
                chunk.sessions = array("I", numbers)

    def clamp_levels(self, top: int) -> None:
        """The queue has fewer levels now: what was above the top is at the top."""
        for chunk in self._chunks:
            if chunk.levels is not None and max(chunk.levels, default=0) > top:
                chunk.levels = array("B", (min(level, top) for level in chunk.levels))

    def next_index(self, index: int) -> int:
        """An index after `index` before which no other row is alive: lets a reader leap over what
        was purged or has expired, a chunk at a time."""
        for at in range(max(bisect_right(self._firsts, index) - 1, 0), len(self._chunks)):
            chunk = self._chunks[at]
            if not chunk.indexes or chunk.indexes[-1] <= index:
                continue
            for row in range(bisect_right(chunk.indexes, index), len(chunk.indexes)):
                if chunk.states[row] != _GONE:
                    return chunk.indexes[row]
            return chunk.indexes[-1] + 1
        return max(index, self.last) + 1

    def rows_from(self, index: int, states: Collection[State] = ()) -> Iterator[tuple[Chunk, int]]:
        """Every row that is not gone, from `index` on; of these states only, if any are named. The
        table must not change meanwhile."""
        wanted = bytes(state in states for state in range(256)) if states else None
        at = max(bisect_right(self._firsts, index) - 1, 0)
        for chunk in self._chunks[at:]:
            start = row = bisect_left(chunk.indexes, index)
            if wanted is not None:
                marks = chunk.states.tobytes().translate(wanted)
                while (row := marks.find(1, row)) >= 0:
                    yield chunk, row
                    row += 1
                continue
            for row in range(start, len(chunk.indexes)):
                if chunk.states[row] != _GONE:
                    yield chunk, row

    def runs(self, start: int, end: int) -> Iterator[tuple[Chunk, int, int]]:
        """The chunks with rows of these indexes, gone or not: each with the first such row, and the
        row behind the last."""
        for chunk in self._chunks[max(bisect_right(self._firsts, start) - 1, 0) :]:
            first = bisect_left(chunk.indexes, start)
            last = bisect_left(chunk.indexes, end)
            if first < last:
                yield chunk, first, last
            elif first < len(chunk.indexes):
                return

    def rows_of_session(self, number: int) -> Iterator[tuple[Chunk, int]]:
        """Every row of a session that is not gone."""
        needle = number.to_bytes(4, byteorder)
        for chunk in self._chunks:
            if chunk.sessions is None:
                continue
            column = chunk.sessions.tobytes()
            at = -1
            while (at := column.find(needle, at + 1)) >= 0:
                if at % 4 == 0 and chunk.states[at // 4] != _GONE:
                    yield chunk, at // 4

    def first_in(self, states: Collection[State]) -> Millis | None:
        """When the first row in one of these states was enqueued."""
        for chunk, row in self.rows_from(0, states):
            return chunk.enqueued[row]
        return None

    def waiting_by_level(self, levels: int) -> list[int]:
        """How many rows wait at each level; a chunk at a time, for whoever watches a queue."""
        found = [0] * levels
        waiting = int(State.WAITING)
        for chunk in self._chunks:
            states = chunk.states.tobytes()
            if chunk.levels is None:
                found[0] += states.count(waiting)
                continue
            # State and level side by side in one byte: eight states, 32 levels.
            both = int.from_bytes(states) | int.from_bytes(chunk.levels.tobytes()) << 3
            marks = both.to_bytes(len(states))
            for level in range(levels):
                found[level] += marks.count(level << 3 | waiting)
        return found

    def expired(self, now: Millis) -> list[int]:
        """Indexes of the waiting rows that expire at `now` or before, oldest first. Sets
        `next_expiry` anew, so each is named once."""
        found: list[int] = []
        waiting = int(State.WAITING)
        for chunk in self._chunks:
            if chunk.next_expiry > now or chunk.expires is None:
                continue
            following = NEVER
            for row, when in enumerate(chunk.expires):
                if when == NEVER or chunk.states[row] != waiting:
                    continue
                if when <= now:
                    found.append(chunk.indexes[row])
                elif when < following:
                    following = when
            chunk.next_expiry = following
        self.next_expiry = min(chunk.next_expiry for chunk in self._chunks)
        return found

    # --- for the index ----------------------------------------------------------------------------

    def waiting_runs(self) -> Iterator[tuple[int, int]]:
        """The indexes of the waiting rows as (start, end); whole chunks at once where they can."""
        waiting = int(State.WAITING)
        for chunk in self._chunks:
            indexes, count = chunk.indexes, len(chunk.indexes)
            if not count:
                continue
            is_whole = indexes[-1] - indexes[0] + 1 == count
            if is_whole and chunk.states.tobytes().count(waiting) == count:
                yield indexes[0], indexes[-1] + 1
                continue
            for row, state in enumerate(chunk.states):
                if state == waiting:
                    yield indexes[row], indexes[row] + 1

    def level_columns(self) -> Iterator[tuple[array[int], array[int], array[int]]]:
        """(indexes, states, levels) of all rows, a chunk at a time."""
        for chunk in self._chunks:
            none = array("B", bytes(len(chunk.indexes))) if chunk.levels is None else chunk.levels
            yield chunk.indexes, chunk.states, none

    def rows_in(self, state: State) -> Iterator[tuple[Chunk, int]]:
        """The rows in one state; chunks without one cost nothing."""
        for chunk in self._chunks:
            states = chunk.states.tobytes()
            row = states.find(state)
            while row >= 0:
                yield chunk, row
                row = states.find(state, row + 1)

    def totals(self) -> Iterator[tuple[int, int, int]]:
        """(state, messages, bytes), several times for a state."""
        for chunk in self._chunks:
            states = chunk.states.tobytes()
            for state in State:
                count = states.count(state)
                if state == State.GONE or not count:
                    continue
                if count == len(states):
                    yield int(state), count, sum(chunk.sizes)
                else:
                    sizes = zip(chunk.sizes, states, strict=True)
                    yield int(state), count, sum(size for size, own in sizes if own == state)

    def dump(self, out: Writer) -> None:
        out.number(self.last + 1)
        out.number(len(self._chunks))
        for first, chunk in zip(self._firsts, self._chunks, strict=True):
            out.number(first)
            out.number(chunk.alive)
            out.number(chunk.next_expiry)
            for name, _ in REQUIRED:
                out.column(getattr(chunk, name))
            for name, _, _ in _SAVED:
                out.column(getattr(chunk, name))

    @classmethod
    def load(cls, source: Reader) -> Table:
        table = cls()
        table._chunks, table._firsts = [], []
        table.last = source.number() - 1
        for _ in range(source.number()):
            table._firsts.append(source.number())
            chunk = Chunk()
            chunk.alive = source.number()
            chunk.next_expiry = source.number()
            for name, typecode in REQUIRED:
                setattr(chunk, name, source.column(typecode) or array(typecode))
            for name, typecode, _ in _SAVED:
                column = source.column(typecode)
                setattr(chunk, name, column)
                chunk.has_more |= column is not None
            table._chunks.append(chunk)
        table._hot = table._chunks[-1]
        table.next_expiry = min(chunk.next_expiry for chunk in table._chunks)
        return table
