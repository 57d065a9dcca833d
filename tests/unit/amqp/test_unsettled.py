"""Unsettled deliveries: ranges, wrapping ids, and a cost that follows what is found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandembus.amqp.unsettled import MASK, Unsettled, is_after, rows


def test_serial_numbers() -> None:
    """RFC 1982: later by less than half of the circle."""
    assert is_after(1, 0)
    assert not is_after(0, 1)
    assert not is_after(5, 5)
    assert is_after(3, 2**32 - 3)
    assert not is_after(2**32 - 3, 3)


def filled(start: int, count: int) -> Unsettled[int]:
    unsettled: Unsettled[int] = Unsettled()
    for number in range(count):
        unsettled.add(start + number & MASK, number)
    return unsettled


def test_single() -> None:
    """One id is found once."""
    unsettled = filled(5, 3)
    assert unsettled.take(6, 6) == [(6, 1)]
    assert unsettled.take(6, 6) == []
    assert len(unsettled) == 2


def test_range_over_the_wrap() -> None:
    """Ids that wrap are in order, and a range may begin before and end after all of them."""
    unsettled = filled(2**32 - 3, 6)
    assert [it for it, _ in unsettled.take(2**32 - 2, 1)] == [2**32 - 2, 2**32 - 1, 0, 1]
    assert [it for it, _ in unsettled.take(2**32 - 100, 100)] == [2**32 - 3, 2]
    assert unsettled.take(0, 10) == []


def test_ranges_beside() -> None:
    """Ranges wholly before or behind find nothing."""
    unsettled = filled(100, 10)
    assert unsettled.take(0, 99) == []
    assert unsettled.take(110, 500) == []
    assert unsettled.take(50, 100) == [(100, 0)]
    assert len(unsettled) == 9


def test_order_is_cleaned() -> None:
    """Ids that left do not pile up."""
    unsettled: Unsettled[None] = Unsettled()
    for number in range(50_000):
        unsettled.add(number, None)
        unsettled.entries.pop(number)
    assert len(unsettled.order) <= 1025


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32))
def test_against_a_plain_set(start: int, seed: int) -> None:
    """Any mix of adding, popping and taking agrees with a list of numbers that do not wrap."""
    chance = random.Random(seed)
    unsettled: Unsettled[int] = Unsettled()
    alive: set[int] = set()
    top = start
    for _ in range(60):
        match chance.randrange(5):
            case 0 | 1:
                top += chance.choice((1, 1, 1, 7))
                unsettled.add(top & MASK, top)
                alive.add(top)
            case 4:
                row = range(top + 1, top + chance.randrange(2, 6))
                unsettled.add_row(row[0] & MASK, row)
                alive.update(row)
                top = row[-1]
            case 2 if alive:
                it = chance.choice(sorted(alive))
                alive.remove(it)
                assert unsettled.entries.pop(it & MASK) == it
            case _:
                first = top - chance.randrange(40)
                last = first + chance.randrange(40)
                expected = sorted(it for it in alive if first <= it <= last)
                assert [it for _, it in unsettled.take(first & MASK, last & MASK)] == expected
                alive.difference_update(expected)
        if chance.random() < 0.1:
            unsettled.clean()
    assert set(unsettled.entries.values()) == alive


def test_ids_out_of_order() -> None:
    """Threads of one client count without a lock: what they mix up is found by ranges all the
    same, also over the end of the numbers, and an id can come again once it was settled."""
    unsettled: Unsettled[str] = Unsettled()
    for delivery_id in (MASK - 1, 1, MASK, 3, 0, 2):
        unsettled.add(delivery_id, f"d{delivery_id}")
    assert unsettled.take(1, 1) == [(1, "d1")]
    unsettled.add(1, "again")
    taken = unsettled.take(MASK, 2)
    assert taken == [(MASK, f"d{MASK}"), (0, "d0"), (1, "again"), (2, "d2")]
    unsettled.clean()
    assert unsettled.order == [MASK - 1, 3]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], []),
        ([7], [(7, 7)]),
        ([3, 1, 2], [(1, 3)]),
        ([9, 1, 2, 5, 4], [(1, 2), (4, 5), (9, 9)]),
        ([1, 2, 2, 4], [(1, 2), (4, 4)]),
        ([2**32 - 1, 0], [(0, 0), (2**32 - 1, 2**32 - 1)]),
    ],
)
def test_rows(ids: list[int], expected: list[tuple[int, int]]) -> None:
    """Neighbours are told of together, in whatever order they came."""
    assert list(rows(ids)) == expected
