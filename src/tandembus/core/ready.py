"""Who is next: the order of receiving, and nothing else.

    session (a link has one, or the queue has none)
      → effective level: the message's level, raised by one for each `aging` it has waited, up to
        the top; or, with weights, the levels take turns by their shares
        → sequence number: first in, first out

Within its own level a message never passes an older one: the first of each level are compared, and
with weights those are the levels that take part in a turn.

A message that comes back (abandoned, its lock ran out) goes to its own place in this order. What is
kept here are numbers of waiting messages, as runs, so that a queue in order costs nothing and a
deep one is as fast as a shallow one. Messages that left by another door (expired, purged) are still
named here; `Table` says so when they come up, and they are passed over.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from typing import Final, NamedTuple, TypeAlias

from tandembus.core.state import State
from tandembus.core.table import Chunk, Table
from tandembus.model import Millis

_WAITING: Final = int(State.WAITING)
_TRIM: Final = 1_024


def _leading(column: array[int], rows: list[int], value: int) -> int:
    """In how many of these rows, from the first on, the column has that value."""
    first, count = rows[0], len(rows)
    is_run = rows[-1] - first < count
    found: Sequence[int] = column[first : first + count] if is_run else [column[r] for r in rows]
    if found.count(value) == count:
        return count
    return next(at for at, each in enumerate(found) if each != value)


Rows: TypeAlias = list[tuple[int, int]]
"""(number, row) of messages in one chunk."""


class Next(NamedTuple):
    lane: Lane
    at: int
    chunk: Chunk
    row: int
    rank: int
    """The effective level."""


class Lane:
    """Numbers of one level, lowest first."""

    __slots__ = ("_back", "head", "level", "runs")

    def __init__(self, level: int) -> None:
        self.level = level
        self.runs = array("Q")
        """start, end, start, end, …: numbers start ≤ n < end, rising."""
        self.head = 0
        self._back: list[int] = []
        """Heap of numbers that came back, or came late."""

    def push(self, index: int) -> None:
        runs = self.runs
        if self.head < len(runs):
            end = runs[-1]
            if index == end:
                runs[-1] = index + 1
                return
            if index < end:
                heappush(self._back, index)
                return
        runs.append(index)
        runs.append(index + 1)

    def push_run(self, start: int, end: int) -> None:
        """The numbers from `start` up to `end`, all higher than those that are here."""
        if self.head < len(self.runs) and self.runs[-1] == start:
            self.runs[-1] = end
        else:
            self.runs.extend((start, end))

    def put_back(self, index: int) -> None:
        heappush(self._back, index)

    def first(self, table: Table) -> tuple[int, Chunk, int] | None:
        """The lowest number whose message still waits at this level; what does not is dropped."""
        runs, head = self.runs, self.head
        if head < len(runs) and not self._back:
            found = table.find(runs[head])  # in order, as most queues are most of the time
            if found is not None:
                chunk, row = found
                levels = chunk.levels
                own = 0 if levels is None else levels[row]
                if chunk.states[row] == _WAITING and own == self.level:
                    return runs[head], chunk, row
        while True:
            index = self._lowest()
            if index is None:
                return None
            found = table.find(index)
            if found is not None:
                chunk, row = found
                if chunk.states[row] == _WAITING and chunk.level(row) == self.level:
                    return index, chunk, row
                self.drop(index)
            elif self._back and self._back[0] == index:
                heappop(self._back)
            else:
                self._leap(table.next_index(index))

    def take_row(self, chunk: Chunk, row: int, now: Millis, most: int) -> Rows:
        """What `first` just gave, and what follows it in its chunk and waits in order, as most
        does; all of it is dropped. It must be locked before more is asked for."""
        runs, head, indexes = self.runs, self.head, chunk.indexes
        base, last = indexes[0], indexes[-1]
        if self._back or last - base + 1 != len(indexes):  # come back, or behind a sweep
            index = indexes[row]
            self.drop(index)
            return [(index, row)]
        stop = bisect_right(runs, last, head)
        stop = min(stop + (stop - head) % 2, head + 2 * most)  # a run may end in another chunk
        starts = runs[head:stop:2]
        every = chain.from_iterable(map(range, starts, runs[head + 1 : stop : 2]))
        numbers = list(islice(every, most))
        del numbers[bisect_right(numbers, last) :]
        rows = [number - base for number in numbers]
        count = _leading(chunk.states, rows, _WAITING)
        if chunk.levels is not None:
            count = min(count, _leading(chunk.levels, rows, self.level))
        if chunk.expires is not None:
            expires = chunk.expires
            count = next((at for at in range(count) if expires[rows[at]] <= now), count)
        taken = numbers[count - 1]
        self.head = head + 2 * bisect_right(starts, taken) - 2
        runs[self.head] = taken  # with all before it; `drop` takes the last one
        self.drop(taken)
        return list(zip(numbers[:count], rows, strict=False))

    def _lowest(self) -> int | None:
        runs, head, back = self.runs, self.head, self._back
        if head < len(runs):
            index = runs[head]
            return back[0] if back and back[0] < index else index
        return back[0] if back else None

    @property
    def is_used(self) -> bool:
        """Whether there is any number in it."""
        return bool(self.runs or self._back)

    def drop(self, index: int) -> None:
        """Take away the number that `first` just gave."""
        back = self._back
        if back and back[0] == index:
            heappop(back)
            return
        runs, head = self.runs, self.head
        assert runs[head] == index
        if index + 1 < runs[head + 1]:
            runs[head] = index + 1
        else:
            self._advance(head + 2)

    def _advance(self, head: int) -> None:
        self.head = head
        if head >= len(self.runs):
            del self.runs[:]
            self.head = 0
        elif self.head >= _TRIM and self.head * 2 >= len(self.runs):
            del self.runs[: self.head]
            self.head = 0

    def _leap(self, index: int) -> None:
        """Nothing before `index` is alive: pass over it."""
        while self.head < len(self.runs):
            start, end = self.runs[self.head], self.runs[self.head + 1]
            if start >= index:
                return
            if end > index:
                self.runs[self.head] = index
                return
            self._advance(self.head + 2)


Head: TypeAlias = tuple[int, int, Lane, Chunk, int]
"""The first of a lane: effective level, negative, so that the smallest goes first; number; and
where it is."""


class Ready:
    """The waiting messages of a partition, or of one session."""

    __slots__ = ("_aging", "_lanes", "_table", "_turns", "_weights")

    def __init__(
        self,
        table: Table,
        levels: int = 1,
        aging_ms: Millis | None = None,
        weights: Sequence[int] | None = None,
        lanes: Sequence[Lane] | None = None,
    ) -> None:
        self._table = table
        self._lanes = [Lane(level) for level in range(levels)] if lanes is None else lanes
        self._aging = aging_ms
        self._weights = weights
        self._turns = [0] * levels
        """How far each level is behind its share."""

    @property
    def lanes(self) -> Sequence[Lane]:
        return self._lanes

    def push(self, index: int, level: int) -> None:
        lane = self._lanes[level]
        runs = lane.runs
        if lane.head < len(runs) and runs[-1] == index:
            runs[-1] = index + 1  # in order, as most queues are most of the time
        else:
            lane.push(index)

    def push_run(self, start: int, end: int) -> None:
        self._lanes[0].push_run(start, end)

    def push_rows(self, indexes: array[int], states: array[int], levels: array[int]) -> None:
        """Those of these rows that wait: higher than all that are here, and rising."""
        every = [lane.runs for lane in self._lanes]
        for index, state, level in zip(indexes, states, levels, strict=True):
            if state == _WAITING:
                runs = every[level]
                if runs and runs[-1] == index:
                    runs[-1] = index + 1
                else:
                    runs.append(index)
                    runs.append(index + 1)

    def put_back(self, index: int, level: int) -> None:
        self._lanes[level].put_back(index)

    def first(self, now: Millis) -> Next | None:
        """The message that is next; `take` takes it."""
        if self._aging is None and self._weights is None:
            for lane in reversed(self._lanes):
                found = lane.first(self._table) if lane.is_used else None
                if found is not None:
                    return Next(lane, *found, lane.level)
            return None
        heads = self._heads(now)
        if not heads:
            return None
        if self._weights is None:
            rank, index, lane, chunk, row = min(heads)
        else:
            turns = self._turns[:]
            rank, index, lane, chunk, row = heads[self._share(heads, now)]
            self._turns = turns  # it is not taken yet
        return Next(lane, index, chunk, row, -rank)

    def take(self, chosen: Next, now: Millis) -> None:
        """Take what `first` has just given."""
        if self._weights is not None:
            self._share(self._heads(now), now)
        chosen.lane.drop(chosen.at)

    def pick(self, now: Millis, most: int) -> Iterator[tuple[Chunk, Rows]]:
        """`first` and `take` again and again, for whoever takes many: where the lanes begin is
        looked for once. Numbers and rows, by their chunk; each must have been locked before the
        next is asked for. Ends before one that has expired, which the caller has to remove."""
        if self._weights is not None:
            return self._pick_by_shares(now)
        return self._pick_strictly(now, most) if self._aging is None else self._pick_aged(now)

    def _pick_strictly(self, now: Millis, most: int) -> Iterator[tuple[Chunk, Rows]]:
        for lane in reversed(self._lanes):
            while most > 0 and lane.is_used:
                found = lane.first(self._table)
                if found is None:
                    break
                _, chunk, row = found
                if chunk.expires is not None and chunk.expires[row] <= now:
                    return
                taken = lane.take_row(chunk, row, now, most)
                most -= len(taken)
                yield chunk, taken

    def _pick_aged(self, now: Millis) -> Iterator[tuple[Chunk, Rows]]:
        heads = self._heads(now)
        heapify(heads)
        while heads:
            _, index, lane, chunk, row = heads[0]
            if chunk.expires is not None and chunk.expires[row] <= now:
                return
            lane.drop(index)
            yield chunk, [(index, row)]
            following = self._head(lane, now)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, following)

    def _pick_by_shares(self, now: Millis) -> Iterator[tuple[Chunk, Rows]]:
        heads = self._heads(now)
        while heads:
            at = self._share(heads, now)
            _, index, lane, chunk, row = heads[at]
            if chunk.expires is not None and chunk.expires[row] <= now:
                return
            lane.drop(index)
            yield chunk, [(index, row)]
            following = self._head(lane, now)
            if following is None:
                del heads[at]
            else:
                heads[at] = following

    def _head(self, lane: Lane, now: Millis) -> Head | None:
        found = lane.first(self._table)
        if found is None:
            return None
        index, chunk, row = found
        return -self.effective(lane.level, chunk.enqueued[row], now), index, lane, chunk, row

    def _heads(self, now: Millis) -> list[Head]:
        """The first of each level that has one."""
        heads = [self._head(lane, now) for lane in self._lanes if lane.is_used]
        return [head for head in heads if head is not None]

    def effective(self, level: int, enqueued: Millis, now: Millis) -> int:
        """The level as it counts now, never above the top."""
        if self._aging is None or now <= enqueued:
            return level
        return min(len(self._lanes) - 1, level + (now - enqueued) // self._aging)

    def _share(self, heads: list[Head], now: Millis) -> int:
        """Whose turn it is, by smooth weighted round robin: every level that waits earns its
        weight; the one that is most behind its share, and of two the higher, is served and pays for
        all; a level that has nothing to send neither earns nor owes. Of what counts as that level
        the oldest is served. But first what has expired: it takes no part, and changes nothing."""
        weights, turns = self._weights, self._turns
        assert weights is not None
        fresh, places = [0] * len(turns), [0] * len(turns)
        seen = whole = most = 0
        best = -1
        for at, head in enumerate(heads):
            rank = -head[0]
            expires = head[3].expires
            if expires is not None and expires[head[4]] <= now:
                return at
            if seen >> rank & 1:  # another level that has risen to it
                if head[1] < heads[places[rank]][1]:
                    places[rank] = at
                continue
            seen |= 1 << rank
            places[rank] = at
            weight = weights[rank]
            whole += weight
            earned = fresh[rank] = turns[rank] + weight
            if best < 0 or earned > most or (earned == most and rank > best):
                best, most = rank, earned
        fresh[best] -= whole
        self._turns = fresh
        return places[best]
