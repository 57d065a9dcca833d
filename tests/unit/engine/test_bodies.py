"""`engine/bodies.py`: the table of places."""

from __future__ import annotations

import random

import pytest

from tandembus.engine.bodies import FIRST_PIECE, LARGEST, NOWHERE, PAGE, Bodies, size_class


def load(parts: list[bytearray]) -> Bodies:
    return Bodies.load(memoryview(b"".join(parts)))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 1_000, 1_024, 65_535, 65_536, 200_000_000])
def test_a_size_class_is_at_most_an_eighth_too_large(length: int) -> None:
    """Reading the largest length of a class always reads the whole record."""
    largest = LARGEST[size_class(length)]
    assert length <= largest <= length + length // 8


def test_size_classes_are_in_order_and_fit_a_byte() -> None:
    classes = [size_class(n) for n in range(100_000)]
    assert classes == sorted(classes)
    assert size_class((1 << 32) - 1) < 256
    assert list(LARGEST) == sorted(set(LARGEST))


def test_put_move_free() -> None:
    bodies = Bodies()
    bodies.put(7, 100, 40)
    assert bodies.place(7) == 100
    assert bodies.longest(7) >= 40
    assert bodies.count == 1
    bodies.move(7, 900)
    assert bodies.place(7) == 900
    bodies.free(7)
    assert bodies.place(7) == 0
    bodies.move(7, 1_000)
    assert bodies.place(7) == 0, "a body that was freed stays freed"
    assert (bodies.count, bodies.live_bytes) == (0, 0)
    assert bodies.place(PAGE * 50) == 0


def test_a_number_is_used_once_and_freed_once() -> None:
    bodies = Bodies()
    bodies.put(1, 100, 10)
    with pytest.raises(AssertionError):
        bodies.put(1, 200, 10)
    bodies.free(1)
    with pytest.raises(AssertionError):
        bodies.free(1)


def test_against_a_dict() -> None:
    """Any order of puts, moves and frees, dumps and loads: places, counts and the lowest place are
    those of a plain dict."""
    rng = random.Random(1)
    bodies, expected = Bodies(), dict[int, int]()
    number, place = 1, 40
    for step in range(60_000):
        place += rng.randrange(1, 2_000)
        roll = rng.random()
        if roll < 0.5 or not expected:
            bodies.put(number, place, rng.randrange(2_000))
            expected[number] = place
            number += rng.choice((1, 1, 1, 2, 700))
        elif roll < 0.55:
            moved = rng.choice(list(expected)) if len(expected) < 500 else next(iter(expected))
            bodies.move(moved, place)
            expected[moved] = place
        else:
            freed = next(iter(expected)) if rng.random() < 0.9 else next(reversed(expected))
            bodies.free(freed)
            del expected[freed]
        if step % 5_000 == 0:
            bodies = load(bodies.dump())
        if step % 1_000 == 0:
            assert bodies.lowest_place() == min(expected.values(), default=NOWHERE)
            border = place - 20_000
            before = {n for n, p in expected.items() if p < border}
            assert set(bodies.living_before(border)) == before
    assert {n: bodies.place(n) for n in expected} == expected
    assert bodies.count == len(expected)
    for left in expected:
        bodies.free(left)
    assert bodies.live_bytes == 0


def test_dead_pages_go() -> None:
    """A million bodies that came and went leave a page, not nine megabytes."""
    bodies = Bodies()
    for number in range(1, 20 * PAGE):
        bodies.put(number, number * 1_000, 1_000)
        if number > 100:
            bodies.free(number - 100)
    assert sum(map(len, bodies.dump())) < 3 * 9 * PAGE


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("first", [(1, FIRST_PIECE), (FIRST_PIECE, 1)])
def test_the_newest_page_of_each_range_is_kept(first: tuple[int, int], is_loaded: bool) -> None:
    """A queue that runs empty again and again makes no page anew, whether or not a large message
    came before, and the other way round."""
    one, other = first
    bodies = Bodies()
    bodies.put(one, 100, 10)
    bodies.put(other, 200, 10)
    if is_loaded:
        bodies = load(bodies.dump())
    kept = dict(bodies._pages)
    bodies.free(one)
    bodies.free(other)
    for number in range(1, 100):
        for start in first:
            bodies.put(start + number, 1_000 * number, 10)
            bodies.free(start + number)
    assert bodies._pages == kept
    assert all(bodies._pages[key] is page for key, page in kept.items())
    for start in first:
        bodies.put(start + PAGE, 10**6, 10)
    assert len(bodies._pages) == 2, "the former newest pages are empty, and dropped"
    assert not kept.keys() & bodies._pages.keys()


def test_nine_bytes_a_body() -> None:
    bodies = Bodies()
    count = 10 * PAGE
    for number in range(count):
        bodies.put(number, 40 + number, 1)
    assert sum(map(len, bodies.dump())) / count < 9.01
