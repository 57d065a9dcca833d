"""Who is next: the order of receiving, and nothing else.

    session (a link has one, or the queue has none)
      → effective level: the message's level, raised by one for each `aging` it has waited, up to
        the top; or, with weights, the levels take turns by their shares
        → sequence number: first in, first out

A message that comes back (abandoned, its lock ran out) goes to its own place in this order. What is
kept here are numbers of waiting messages, as runs, so that a queue in order costs nothing and a
deep one is as fast as a shallow one. Messages that left by another door (expired, purged) are still
named here; `Table` says so when they come up, and they are passed over.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from tandem.core.state import State
from tandem.core.table import Chunk, Table
from tandem.model import Millis

_WAITING: Final = int(State.WAITING)
_TRIM: Final = 1_024


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

    def _lowest(self) -> int | None:
        runs, head, back = self.runs, self.head, self._back
        if head < len(runs):
            index = runs[head]
            return back[0] if back and back[0] < index else index
        return back[0] if back else None

    @property
    def has_returns(self) -> bool:
        return bool(self._back)

    def drop_many(self, count: int) -> None:
        """Take away the first `count` numbers of the first run."""
        self.runs[self.head] += count
        if self.runs[self.head] == self.runs[self.head + 1]:
            self._advance()

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
            self._advance()

    def _advance(self) -> None:
        self.head += 2
        if self.head >= len(self.runs):
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
            self._advance()


class Ready:
    """The waiting messages of a partition, or of one session."""

    __slots__ = ("_aging", "_lanes", "_table", "_turns", "_weights")

    def __init__(
        self,
        table: Table,
        levels: int = 1,
        aging_ms: Millis | None = None,
        weights: Sequence[int] | None = None,
    ) -> None:
        self._table = table
        self._lanes = [Lane(level) for level in range(levels)]
        self._aging = aging_ms
        self._weights = weights
        self._turns = [0] * levels
        """How far each level is behind its share."""

    def push(self, index: int, level: int) -> None:
        lane = self._lanes[level]
        runs = lane.runs
        if lane.head < len(runs) and runs[-1] == index:
            runs[-1] = index + 1  # in order, as most queues are most of the time
        else:
            lane.push(index)

    def push_run(self, start: int, end: int) -> None:
        self._lanes[0].push_run(start, end)

    def put_back(self, index: int, level: int) -> None:
        self._lanes[level].put_back(index)

    def only_run(self) -> tuple[int, int] | None:
        """The numbers start ≤ n < end that are next, in a row, if it is as simple as that: one
        level, and nothing that came back. Whether their messages still wait is not said."""
        lane = self._lanes[0]
        if len(self._lanes) > 1 or lane.has_returns or lane.head >= len(lane.runs):
            return None
        return lane.runs[lane.head], lane.runs[lane.head + 1]

    def take_run(self, count: int) -> None:
        """Take the first `count` numbers of `only_run`."""
        self._lanes[0].drop_many(count)

    def first(self, now: Millis) -> Next | None:
        """The message that is next; `take` takes it."""
        if len(self._lanes) == 1:
            lane = self._lanes[0]
            found = lane.first(self._table)
            return None if found is None else Next(lane, found[0], found[1], found[2], 0)
        ranked: dict[int, Next] = {}
        for lane in reversed(self._lanes):
            found = lane.first(self._table)
            if found is None:
                continue
            index, chunk, row = found
            rank = self.effective(lane.level, chunk.enqueued[row], now)
            best = ranked.get(rank)
            if best is None or index < best.at:
                ranked[rank] = Next(lane, index, chunk, row, rank)
        if not ranked:
            return None
        if self._weights is None or len(ranked) == 1:
            return ranked[max(ranked)]
        weights, turns = self._weights, self._turns
        return ranked[max(ranked, key=lambda rank: (turns[rank] + weights[rank], rank))]

    def effective(self, level: int, enqueued: Millis, now: Millis) -> int:
        """The level as it counts now, never above the top."""
        if self._aging is None or now <= enqueued:
            return level
        return min(len(self._lanes) - 1, level + (now - enqueued) // self._aging)

    def take(self, chosen: Next, now: Millis) -> None:
        chosen.lane.drop(chosen.at)
        if self._weights is not None:
            self._count_turn(chosen, now)

    def _count_turn(self, chosen: Next, now: Millis) -> None:
        """Smooth weighted round robin: every level that waits earns its weight, the one that was
        served pays for all. A level that has nothing to send neither earns nor owes."""
        weights, turns = self._weights, self._turns
        assert weights is not None
        waiting = {chosen.rank}
        for lane in self._lanes:
            found = lane.first(self._table)
            if found is not None:
                waiting.add(self.effective(lane.level, found[1].enqueued[found[2]], now))
        for rank in range(len(turns)):
            turns[rank] = turns[rank] + weights[rank] if rank in waiting else 0
        turns[chosen.rank] -= sum(weights[rank] for rank in waiting)
