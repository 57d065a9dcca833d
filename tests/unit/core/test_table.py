"""The rows of a partition: found, swept, inserted in between, and leapt over."""

from __future__ import annotations

from random import Random

import pytest

from tandembus.core.packing import Reader, Writer
from tandembus.core.state import State
from tandembus.core.table import CHUNK, Table
from tandembus.model import NEVER

WAITING = int(State.WAITING)


def filled(count: int, start: int = 1) -> Table:
    """Rows `start` … with their index as body, and ten times it as time."""
    table = Table()
    for index in range(start, start + count):
        table.add(index, index, index * 10, 1, WAITING)
    return table


def remove(table: Table, *indexes: int) -> None:
    for index in indexes:
        found = table.find(index)
        assert found is not None, index
        table.remove(*found)


def indexes(table: Table, start: int = 0) -> list[int]:
    return [chunk.indexes[row] for chunk, row in table.rows_from(start)]


def chunks(table: Table) -> int:
    return len({id(chunk) for chunk, _ in table.rows_from(0)})


def check(table: Table, alive: set[int]) -> None:
    """The table has these rows and no others, with their own facts."""
    assert indexes(table) == sorted(alive)
    for index in alive:
        found = table.find(index)
        assert found is not None
        chunk, row = found
        assert (chunk.indexes[row], chunk.bodies[row]) == (index, index)


def reloaded(table: Table) -> Table:
    out = Writer()
    table.dump(out)
    return Table.load(Reader(bytes(out.data)))


def test_rows_are_found_by_index() -> None:
    """Those that are there, and no others; over the borders of chunks."""
    table = filled(3 * CHUNK)
    check(table, set(range(1, 3 * CHUNK + 1)))
    assert table.find(0) is None
    assert table.find(3 * CHUNK + 1) is None
    assert chunks(table) == 3


def test_a_new_table_is_empty() -> None:
    """And says so to every question."""
    table = Table()
    assert table.find(0) is None
    assert indexes(table) == []
    assert table.expired(10) == []
    assert list(table.waiting_runs()) == []
    assert table.next_index(5) == 6


def test_a_removed_row_is_not_found() -> None:
    """Before its chunk is swept and after."""
    table = filled(2 * CHUNK)
    remove(table, 5)
    assert table.find(5) is None
    assert indexes(table)[:6] == [1, 2, 3, 4, 6, 7]


def test_empty_chunks_are_dropped() -> None:
    """In order, as a queue is consumed: memory goes with the messages."""
    table = filled(4 * CHUNK)
    for index in range(1, 3 * CHUNK + 1):
        remove(table, index)
    assert chunks(table) == 1
    check(table, set(range(3 * CHUNK + 1, 4 * CHUNK + 1)))
    remove(table, *range(3 * CHUNK + 1, 4 * CHUNK + 1))
    table.add(4 * CHUNK + 1, 4 * CHUNK + 1, 0, 1, WAITING)
    check(table, {4 * CHUNK + 1})


def test_stragglers_share_a_chunk() -> None:
    """One living row in a hundred does not keep a whole chunk, nor an own one."""
    table = filled(20 * CHUNK)
    alive = set(range(1, 20 * CHUNK + 1, 100)) | set(range(19 * CHUNK + 1, 20 * CHUNK + 1))
    remove(table, *(index for index in range(1, 20 * CHUNK + 1) if index not in alive))
    check(table, alive)
    assert chunks(table) <= 4


def test_optional_columns_survive_a_sweep() -> None:
    """Counts, lives, levels, due times, sessions and hops stay with their row, also where the
    neighbour chunk has no such column."""
    table = Table()
    marked = {index for index in range(1, 3 * CHUNK + 1) if index % 97 == 0}
    for index in range(1, 3 * CHUNK + 1):
        if index in marked:
            table.add(index, index, 0, 1, WAITING, index + 1, 3, 4, 5, 6, 7)
        else:
            table.add(index, index, 0, 1, WAITING)
    bare = range(1, 3 * CHUNK, 500)
    keep = marked | set(bare)
    remove(table, *(index for index in range(1, 2 * CHUNK + 1) if index not in keep))
    for index in sorted(keep):
        found = table.find(index)
        assert found is not None
        chunk, row = found
        facts = (
            chunk.expiry(row), chunk.level(row), chunk.due(row),
            chunk.session(row), chunk.hop(row), chunk.count(row),
        )  # fmt: skip
        assert facts == ((index + 1, 3, 4, 5, 6, 7) if index in marked else (NEVER, 0, 0, 0, 0, 0))


# --- in between -----------------------------------------------------------------------------------


def test_rows_in_between() -> None:
    """A dead-letter queue gets them in any order; they lie in the order of their indexes."""
    table = Table()
    order = list(range(1, 3_001))
    Random(7).shuffle(order)
    for index in order:
        table.add(index, index, 0, 1, WAITING)
    check(table, set(order))


def test_in_reverse_order() -> None:
    """The worst of them: chunks are split on the way, and none grows without bound."""
    table = Table()
    count = 5 * CHUNK
    for index in range(count, 0, -1):
        table.add(index, index, 0, 1, WAITING)
    check(table, set(range(1, count + 1)))
    assert chunks(table) >= 2
    assert max(len(chunk.indexes) for chunk, _ in table.rows_from(0)) <= 2 * CHUNK + 1


def test_an_index_that_was_gone_is_used_again() -> None:
    """A message that was taken out of a dead-letter queue and died again under its number: nothing
    of the old row is left."""
    table = filled(10)
    found = table.find(4)
    assert found is not None
    found[0].set_count(found[1], 9)
    remove(table, 4)
    table.add(4, 44, 1, 1, WAITING)
    found = table.find(4)
    assert found is not None
    assert found[0].bodies[found[1]] == 44
    assert found[0].count(found[1]) == 0
    with pytest.raises(AssertionError, match="an index is used once"):
        table.add(4, 45, 1, 1, WAITING)


def test_a_late_row_below_the_first_chunk() -> None:
    """The first chunks are consumed and dropped, then a message with a low number dies: it gets a
    place, and the sweep of that chunk hits no other."""
    table = filled(3 * CHUNK)
    remove(table, *range(1, CHUNK + 1))
    table.add(5, 5, 0, 1, WAITING)
    alive = {5, *range(CHUNK + 1, 3 * CHUNK + 1)}
    check(table, alive)
    for index in range(CHUNK + 1, 2 * CHUNK + 1):
        remove(table, index)
        alive.discard(index)
    check(table, alive)
    assert 5 in alive


def test_like_a_dead_letter_queue() -> None:
    """Rows come in any order and go in any order, many times over: the table has exactly what a set
    has."""
    random = Random(3)
    table, alive, unused = Table(), set[int](), list(range(1, 12_001))
    random.shuffle(unused)
    while unused or alive:
        coming = random.randrange(1_500)
        for index in unused[:coming]:
            table.add(index, index, 0, 1, WAITING)
        alive.update(unused[:coming])
        del unused[:coming]
        going = random.sample(sorted(alive), min(len(alive), random.randrange(1_500)))
        if random.random() < 0.5:
            going = sorted(alive)[: len(going)]
        remove(table, *going)
        alive.difference_update(going)
        assert indexes(table) == sorted(alive)
        if random.random() < 0.2:
            table = reloaded(table)
    check(table, set())


# --- what readers ask -----------------------------------------------------------------------------


def test_the_next_index_leaps() -> None:
    """To the next living row, or over a whole dead chunk; never over a living one."""
    table = filled(3 * CHUNK)
    remove(table, *range(2, 100))
    assert table.next_index(1) == 100
    remove(table, *range(CHUNK + 1, 2 * CHUNK + 1))
    at, steps = CHUNK, 0
    while table.find(at := table.next_index(at)) is None:
        steps += 1
    assert at == 2 * CHUNK + 1
    assert steps <= 2
    assert table.next_index(3 * CHUNK) == 3 * CHUNK + 1


def test_expired_rows() -> None:
    """Waiting ones whose time has come, each once; `next_expiry` says when to ask again."""
    table = Table()
    for index in range(1, 2 * CHUNK):
        table.add(index, index, 0, 1, WAITING, expires=1_000 + index % 5)
    found = table.find(1)
    assert found is not None
    found[0].states[found[1]] = int(State.LOCKED)
    assert table.next_expiry == 1_000
    assert table.expired(999) == []
    first = table.expired(1_001)
    assert first == [index for index in range(1, 2 * CHUNK) if index % 5 <= 1 and index != 1]
    remove(table, *first)
    assert table.next_expiry == 1_002
    assert table.expired(1_001) == []
    rest = table.expired(2_000)
    assert rest == [index for index in range(1, 2 * CHUNK) if index % 5 > 1]
    assert table.next_expiry == NEVER


def test_runs_and_totals() -> None:
    """For the order after a restart: whole chunks as one run; counts and bytes by state."""
    table = filled(2 * CHUNK)
    assert list(table.waiting_runs()) == [(1, CHUNK + 1), (CHUNK + 1, 2 * CHUNK + 1)]
    found = table.find(3)
    assert found is not None
    found[0].states[found[1]] = int(State.DEFERRED)
    remove(table, 5)
    waiting = [index for start, end in table.waiting_runs() for index in range(start, end)]
    assert waiting == [index for index in range(1, 2 * CHUNK + 1) if index not in (3, 5)]
    totals: dict[int, tuple[int, int]] = {}
    for state, count, size in table.totals():
        have = totals.get(state, (0, 0))
        totals[state] = (have[0] + count, have[1] + size)
    assert totals == {WAITING: (2 * CHUNK - 2,) * 2, int(State.DEFERRED): (1, 1)}
    assert [chunk.indexes[row] for chunk, row in table.rows_in(State.DEFERRED)] == [3]


def test_dumped_and_loaded() -> None:
    """The same table, with and without optional columns; it goes on as before."""
    table = filled(CHUNK + 10)
    table.add(CHUNK + 11, CHUNK + 11, 0, 1, WAITING, expires=77, level=2)
    remove(table, 3)
    again = reloaded(table)
    check(again, {*range(1, CHUNK + 12)} - {3})
    assert (again.last, again.next_expiry) == (CHUNK + 11, 77)
    again.add(CHUNK + 12, CHUNK + 12, 0, 1, WAITING)
    assert again.find(CHUNK + 12) is not None
    assert reloaded(Table()).find(1) is None
