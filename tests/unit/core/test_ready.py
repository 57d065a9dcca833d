"""Who is next: runs, returns, levels, aging, shares; and that depth costs nothing."""

from __future__ import annotations

from random import Random

import pytest

from tandembus.core.ready import Ready
from tandembus.core.state import State
from tandembus.core.table import Chunk, Table

WAITING, LOCKED = int(State.WAITING), int(State.LOCKED)


class CountingTable(Table):
    """Counts how often it is asked."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def find(self, index: int) -> tuple[Chunk, int] | None:
        self.asked += 1
        return super().find(index)

    def next_index(self, index: int) -> int:
        self.asked += 1
        return super().next_index(index)


class Line:
    """A table and its order, as a queue uses them."""

    def __init__(
        self,
        levels: int = 1,
        aging_ms: int | None = None,
        weights: tuple[int, ...] | None = None,
    ) -> None:
        self.table = CountingTable()
        self.ready = Ready(self.table, levels, aging_ms, weights)
        self.last = 0

    def send(self, level: int = 0, now: int = 0) -> int:
        self.last += 1
        self.table.add(self.last, self.last, now, 1, WAITING, level=level)
        self.ready.push(self.last, level)
        return self.last

    def take(self, now: int = 0) -> int | None:
        """Lock the next one."""
        chosen = self.ready.first(now)
        if chosen is None:
            return None
        self.ready.take(chosen, now)
        chosen.chunk.states[chosen.row] = LOCKED
        return chosen.at

    def drain(self, now: int = 0) -> list[int]:
        found = []
        while (index := self.take(now)) is not None:
            found.append(index)
        return found

    def back(self, index: int) -> None:
        found = self.table.find(index)
        assert found is not None
        chunk, row = found
        chunk.states[row] = WAITING
        self.ready.put_back(index, chunk.level(row))

    def remove(self, index: int) -> None:
        found = self.table.find(index)
        assert found is not None
        self.table.remove(*found)


def test_first_in_first_out() -> None:
    """The lowest number first; `first` alone takes nothing."""
    line = Line()
    for _ in range(5):
        line.send()
    assert [line.ready.first(0) is not None for _ in range(3)] == [True] * 3
    assert line.drain() == [1, 2, 3, 4, 5]
    assert line.take() is None
    line.send()
    assert line.take() == 6


def test_what_comes_back_goes_to_its_place() -> None:
    """Whatever order the returns have, also twice."""
    line = Line()
    for _ in range(6):
        line.send()
    assert [line.take() for _ in range(4)] == [1, 2, 3, 4]
    for index in (3, 1, 4):
        line.back(index)
    assert [line.take() for _ in range(2)] == [1, 3]
    line.back(3)
    line.back(1)
    assert line.drain() == [1, 3, 4, 5, 6]


def test_what_left_by_another_door_is_passed_over() -> None:
    """Expired, purged or deferred messages are still named in the order, but not given."""
    line = Line()
    for _ in range(10):
        line.send()
    for index in (1, 2, 5, 10):
        line.remove(index)
    line.take()
    line.back(3)
    line.remove(3)
    assert line.drain() == [4, 6, 7, 8, 9]


def test_rows_in_between() -> None:
    """A dead-letter queue gets late ones with lower numbers: they go first."""
    line = Line()
    for index in (5, 9, 2, 7, 1):
        line.table.add(index, index, 0, 1, WAITING)
        line.ready.push(index, 0)
    assert line.drain() == [1, 2, 5, 7, 9]


def test_levels() -> None:
    """The highest level first, in order within one; a return goes to its place in its level."""
    line = Line(levels=3)
    for level in (0, 2, 1, 2, 0, 1):
        line.send(level)
    assert [line.take() for _ in range(3)] == [2, 4, 3]
    line.back(2)
    line.back(3)
    assert line.drain() == [2, 3, 6, 1, 5]


def test_a_changed_level() -> None:
    """The old place is forgotten, there and back again too; nothing is given twice."""
    line = Line(levels=3)
    for _ in range(3):
        line.send(0)

    def change(index: int, level: int) -> None:
        found = line.table.find(index)
        assert found is not None
        found[0].set_level(found[1], level)
        line.ready.put_back(index, level)

    change(3, 2)
    change(2, 1)
    change(2, 0)
    change(1, 2)
    change(1, 0)
    assert line.drain() == [3, 1, 2]


def test_aging() -> None:
    """One level for each step of waiting, up to the top; equal then, the older goes first."""
    line = Line(levels=3, aging_ms=100)
    old = line.send(0, now=0)
    middle = line.send(1, now=150)
    young = line.send(2, now=199)
    assert line.ready.effective(0, 0, 99) == 0
    assert line.ready.effective(0, 0, 100) == 1
    assert line.ready.effective(0, 0, 10_000) == 2
    assert line.ready.effective(2, 50, 20) == 2
    assert line.take(now=199) == young
    line.back(young)
    assert [line.take(now=200) for _ in range(3)] == [old, young, middle]


@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (2, 3, 5), (1, 10, 100)])
def test_shares(weights: tuple[int, ...]) -> None:
    """With all levels busy each gets exactly its share in every round, spread out."""
    line = Line(levels=len(weights), weights=weights)
    total = sum(weights)
    level_of = {}
    for _ in range(3 * total):
        for level in range(len(weights)):
            level_of[line.send(level)] = level
    for _ in range(3):
        taken = [line.take() for _ in range(total)]
        levels = [level_of[index] for index in taken if index is not None]
        assert [levels.count(level) for level in range(len(weights))] == list(weights)


def test_a_level_without_messages_saves_nothing_up() -> None:
    """A share is of what is there: after a pause a level does not flood the others."""
    line = Line(levels=2, weights=(1, 1))
    for _ in range(100):
        line.send(1)
    for _ in range(50):
        line.take()
    low = [line.send(0) for _ in range(50)]
    taken = [line.take() for _ in range(20)]
    assert sum(index in low for index in taken) == 10


def test_against_a_sorted_list() -> None:
    """Sends, takes, returns and removals by chance: always the highest level's lowest number."""
    random = Random(11)
    line, waiting, locked = Line(levels=4), dict[int, int](), dict[int, int]()
    for _ in range(5_000):
        choice = random.random()
        if choice < 0.4:
            level = random.randrange(4)
            waiting[line.send(level)] = level
        elif choice < 0.7:
            index = line.take()
            expected = min(waiting, key=lambda each: (-waiting[each], each), default=None)
            assert index == expected
            if index is not None:
                locked[index] = waiting.pop(index)
        elif choice < 0.85 and locked:
            index = random.choice(sorted(locked))
            line.back(index)
            waiting[index] = locked.pop(index)
        elif waiting:
            index = random.choice(sorted(waiting))
            line.remove(index)
            del waiting[index]


# --- depth costs nothing --------------------------------------------------------------------------


def test_a_million_purged_messages_do_not_slow_the_next_receive() -> None:
    """The order still names them; it leaps over them a chunk at a time, counted in questions to the
    table. The second receive asks as little as on an empty queue."""
    count = 1_000_000
    line = Line()
    table = line.table
    add = table.add
    for index in range(1, count + 1):
        add(index, index, 0, 1, WAITING)
    line.ready.push_run(1, count + 1)
    line.last = count
    find, drop = Table.find, table.remove
    for index in range(1, count + 1):
        found = find(table, index)
        assert found is not None
        drop(*found)
    last = line.send()
    table.asked = 0
    assert line.take() == last
    assert table.asked <= 8
    line.send()
    table.asked = 0
    assert line.take() == last + 1
    assert table.asked <= 2


@pytest.mark.parametrize("depth", [1_000, 50_000])
def test_a_receive_costs_the_same_at_any_depth(depth: int) -> None:
    """Four questions to the table for a receive, a return and a receive again."""
    line = Line()
    for _ in range(depth):
        line.send()
    line.table.asked = 0
    first = line.take()
    assert first == 1
    line.back(first)
    assert line.take() == 1
    assert line.table.asked <= 4


def test_stripes_of_dead_messages() -> None:
    """Every second message gone: each receive passes over one, not over all."""
    line = Line()
    for _ in range(20_000):
        line.send()
    for index in range(1, 20_001, 2):
        line.remove(index)
    line.table.asked = 0
    assert [line.take() for _ in range(1_000)] == list(range(2, 2_001, 2))
    assert line.table.asked <= 4_000
