"""Reading by position: what a range holds, how far one gets, cursors that remove, and taps."""

from __future__ import annotations

from typing import Any

import pytest

from tandembus import limits
from tandembus.changes import CursorMoved, Removal, Removed
from tandembus.core.commands import Advance, DropCursor, MoveCursor, OpenTap, Scan, Survey
from tandembus.core.positions import Extent, Lie, Rows, Stretch
from tandembus.core.table import CHUNK
from tandembus.core.tokens import PARTITION_SHIFT
from tandembus.errors import (
    ArgumentError,
    MessageLockLostError,
    NotAllowedError,
    QuotaExceededError,
)
from tandembus.model import NEVER, Edits
from tests.unit.core.world import HOUR, MINUTE, SECOND, World

DEAD = "q/$DeadLetterQueue"


def scan(world: World, path: str, start: int = 0, end: int = NEVER, **more: Any) -> Rows:
    more = {"max_count": 1_000, "max_bytes": NEVER, "partition": 0, **more}
    rows = world.do(Scan(path, more["partition"], start, end, more["max_count"], more["max_bytes"]))
    assert isinstance(rows, Rows)
    return rows


def texts(world: World, rows: Rows) -> list[str]:
    return [bytes(world.payloads[body])[-1:].decode() for body in rows.bodies]


def survey(world: World, path: str, since_ms: int | None = None) -> Lie:
    lie = world.do(Survey(path, since_ms))
    assert isinstance(lie, Lie)
    return lie


def advance(world: World, path: str, start: int, end: int = NEVER, **most: int) -> Stretch:
    stretch = world.do(Advance(path, 0, start, end, **most))
    assert isinstance(stretch, Stretch)
    return stretch


@pytest.mark.req("D1")
def test_a_range_holds_all_but_what_is_scheduled(lived: World) -> None:
    """In any state, by position; a scheduled one is there when it is due, behind the others."""
    lived.queue("q")
    lived.send("q", *"abc")
    lived.schedule("q", "d", after_ms=HOUR)
    lived.send("q", "e")
    first, second, _ = lived.receive("q", 3)
    lived.defer("q", second)
    lived.abandon("q", first, edits=Edits({"n": 1}))
    rows = scan(lived, "q")
    assert (list(rows.numbers), texts(lived, rows)) == ([1, 2, 3, 5], list("abce"))
    assert rows.following == 6 == survey(lived, "q").extents[0].tail
    assert list(rows.counts) == [1, 1, 0, 0]
    assert list(rows.edits) == [0]
    lived.wait(HOUR)
    assert texts(lived, scan(lived, "q", 6)) == ["d"]


@pytest.mark.req("D1")
def test_pages_add_up(lived: World) -> None:
    """Bounded in messages and in bytes, but one at least; each goes on where the last ended."""
    lived.queue("q")
    lived.send("q", *"abcdefg")
    size = scan(lived, "q").sizes[0]
    start, found = 0, ""
    while page := scan(lived, "q", start, 7, max_count=2).numbers:
        rows = scan(lived, "q", start, 7, max_count=2)
        found += "".join(texts(lived, rows))
        start = rows.following
        assert len(page) <= 2
    assert (found, start) == ("abcdef", 7)
    assert texts(lived, scan(lived, "q", max_bytes=3 * size)) == list("abc")
    assert texts(lived, scan(lived, "q", max_bytes=1)) == ["a"]
    assert scan(lived, "q", 100).following == 100


@pytest.mark.req("D1")
def test_how_far_one_gets(lived: World) -> None:
    """In messages and bytes, over holes, never behind the tail, and always by one message."""
    lived.queue("q")
    lived.send("q", *"abcdefgh")
    lived.complete("q", *lived.receive("q", 3))
    size = scan(lived, "q").sizes[0]
    assert advance(lived, "q", 0) == Stretch(9, 5, 5 * size)
    assert advance(lived, "q", 0, max_count=2) == Stretch(6, 2, 2 * size)
    assert advance(lived, "q", 0, max_bytes=3 * size + 1) == Stretch(7, 3, 3 * size)
    assert advance(lived, "q", 0, max_bytes=1) == Stretch(5, 1, size)
    assert advance(lived, "q", 0, 5) == Stretch(5, 1, size)
    assert advance(lived, "q", 9) == Stretch(9, 0, 0)
    assert survey(lived, "q").extents == [Extent(4, 9, 0, 4)]


def test_many_chunks_are_counted_at_once(world: World) -> None:
    """Whole chunks and their parts add up to the same."""
    world.queue("q")
    count = 2 * CHUNK + 100
    for start in range(0, count, 4_000):
        world.send("q", *["x"] * min(4_000, count - start))
    size = scan(world, "q", max_count=1).sizes[0]
    assert advance(world, "q", 0) == Stretch(count + 1, count, count * size)
    assert advance(world, "q", 10, max_count=CHUNK + 7) == Stretch(
        10 + CHUNK + 7, CHUNK + 7, (CHUNK + 7) * size
    )
    assert advance(world, "q", 10, max_bytes=(CHUNK + 7) * size).count == CHUNK + 7
    ends = [0]
    while ends[-1] <= count:
        ends.append(advance(world, "q", ends[-1], max_count=1_000).end)
    assert len(ends) == -(-count // 1_000) + 1


def test_a_walk_is_bounded(lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Message by message, in a dead-letter queue and with a tap."""
    monkeypatch.setattr(limits, "MAX_ROWS_WALKED", 2)
    lived.queue("q")
    lived.send("q", *"abc")
    lived.dead_letter("q", *lived.receive("q", 3))
    assert advance(lived, DEAD, 0).end == 3
    assert advance(lived, DEAD, 3).end == 4


def test_an_advance_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends early, at a position from which the next one goes on."""
    monkeypatch.setattr(limits, "MAX_ROWS_LOOKED", 1)
    world.queue("q")
    for _ in range(3):
        world.send("q", *["x"] * CHUNK)
    first = advance(world, "q", 0)
    assert first.count == CHUNK
    assert advance(world, "q", first.end).count == CHUNK


@pytest.mark.req("D1")
def test_from_a_time_on(lived: World) -> None:
    lived.queue("q")
    for text in "abc":
        lived.send("q", text)
        lived.wait(MINUTE)
    since = lived.now - 2 * MINUTE
    assert survey(lived, "q", since).extents[0].since == 2
    assert survey(lived, "q", lived.now).extents[0].since == 4
    assert survey(lived, "q", 0).extents[0].since == 1


@pytest.mark.req("D1")
def test_partitions_have_positions_of_their_own(lived: World) -> None:
    lived.queue("q", enable_partitioning=True)
    for index in range(40):
        lived.send("q", "x", partition_key=f"k{index}")
    extents = survey(lived, "q").extents
    assert len(extents) == limits.MAX_PARTITIONS
    found: list[int] = []
    for partition, extent in enumerate(extents):
        rows = scan(lived, "q", 0, extent.tail, partition=partition)
        assert all(number >> PARTITION_SHIFT == partition for number in rows.numbers)
        found += rows.numbers
    assert len(set(found)) == 40
    lived.refused(ArgumentError, Scan("q", 16, 0, 1, 1, 1), "no partition 16")


@pytest.mark.req("D1")
def test_dead_letters_are_read_in_the_order_of_their_death(lived: World) -> None:
    """By number, a later one could lie before what was read already."""
    lived.queue("q")
    lived.send("q", *"abcd")
    first, second, third, _ = lived.receive("q", 4)
    lived.dead_letter("q", third)
    rows = scan(lived, DEAD)
    assert (texts(lived, rows), rows.following) == (["c"], 2)
    lived.dead_letter("q", first)
    lived.dead_letter("q", second)
    lived.restart()
    rows = scan(lived, DEAD, 2)
    assert (texts(lived, rows), list(rows.numbers)) == (["a", "b"], [1, 2])
    assert advance(lived, DEAD, 0, max_count=2).end == 3
    lived.complete(DEAD, *lived.receive(DEAD, 1))
    assert texts(lived, scan(lived, DEAD)) == ["c", "b"]


def test_arrivals_that_have_left_are_forgotten(world: World) -> None:
    """What was dead and is gone costs nothing for ever."""
    world.queue("q")
    for _ in range(3):
        world.send("q", *["x"] * 1_000)
        world.dead_letter("q", *world.receive("q", 1_000))
        world.consume(DEAD)
    arrivals = world[DEAD].arrivals
    assert arrivals is not None
    assert arrivals.last == 3_000
    assert len(arrivals.numbers) <= 1_100


# --- cursors --------------------------------------------------------------------------------------


@pytest.mark.req("D2")
def test_a_cursor_removes_what_it_has_passed_and_only_that(lived: World) -> None:
    """The first move only says where it begins; then each removes from there on, once, and with
    its own change in the same breath."""
    lived.queue("q")
    lived.send("q", *"abcdef")
    assert lived.do(MoveCursor("q", "spark", 0, 3, removes=True)) == 3
    assert lived.waiting("q") == list("abcdef")
    before = len(lived.changes)
    assert lived.do(MoveCursor("q", "spark", 0, 5, removes=True)) == 5
    assert lived.waiting("q") == list("abef")
    removed, moved = lived.changes[before:]
    assert isinstance(removed, Removed)
    assert removed.reason == Removal.COMPLETED
    assert isinstance(moved, CursorMoved)
    lived.restart()
    assert lived.do(MoveCursor("q", "spark", 0, 4, removes=True)) == 5
    assert lived.waiting("q") == list("abef")
    assert survey(lived, "q").cursors == {"spark": {0: 5}}
    lived.do(DropCursor("q", "spark"))
    lived.do(DropCursor("q", "spark"))
    assert survey(lived, "q").cursors == {}


@pytest.mark.req("D2")
def test_a_cursor_passes_over_what_is_scheduled_and_takes_what_is_locked(lived: World) -> None:
    """What a scan of the range shows is what goes: a lock of somebody else is lost."""
    lived.queue("q")
    lived.send("q", "a")
    lived.schedule("q", "b", after_ms=HOUR)
    lived.send("q", "c")
    (held,) = lived.receive("q")
    lived.do(MoveCursor("q", "spark", 0, 1))
    lived.do(MoveCursor("q", "spark", 0, 4, removes=True))
    assert lived.waiting("q") == ["b"]
    with pytest.raises(MessageLockLostError):
        lived.complete("q", held)
    lived.wait(HOUR)
    assert texts(lived, scan(lived, "q", 4)) == ["b"]


def test_a_removal_is_bounded(lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how far it has come, and goes on when asked again."""
    monkeypatch.setattr(limits, "MAX_BATCH_DELETE", 2)
    lived.queue("q")
    lived.send("q", *"abcde")
    lived.do(MoveCursor("q", "spark", 0, 1))
    assert lived.do(MoveCursor("q", "spark", 0, 6, removes=True)) == 3
    assert lived.do(MoveCursor("q", "spark", 0, 6, removes=True)) == 5
    assert lived.do(MoveCursor("q", "spark", 0, 6, removes=True)) == 6
    assert lived.waiting("q") == []


def test_what_a_cursor_may_not(lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CURSORS", 1)
    lived.queue("q")
    lived.topic("t")
    lived.refused(ArgumentError, MoveCursor("q", "spark", 0, 2), "has not come to position 2")
    lived.refused(ArgumentError, MoveCursor("q", "", 0, 1), "1 to 128 characters")
    lived.refused(ArgumentError, Scan("q", 0, 3, 2, 1, 1), "range of positions")
    lived.refused(ArgumentError, Advance("q", 0, 0, 1, max_count=0), "room for one message")
    lived.refused(ArgumentError, OpenTap("q", "tap", 0), "holds back for")
    lived.refused(NotAllowedError, Survey("t"), "is a topic")
    lived.refused(NotAllowedError, OpenTap(DEAD, "tap", 1), "no tap")
    lived.refused(NotAllowedError, Survey(DEAD, 1), "order of death")
    lived.do(MoveCursor("q", "one", 0, 1))
    lived.refused(QuotaExceededError, MoveCursor("q", "two", 0, 1), "1 cursors")


# --- taps -----------------------------------------------------------------------------------------


@pytest.mark.req("D2")
def test_a_tap_reads_what_others_have_completed(lived: World) -> None:
    """All that passed since it was opened, in its place, edits and all, until it has passed it."""
    lived.queue("q")
    lived.send("q", "a")
    lived.consume("q")
    lived.do(OpenTap("q", "tap", HOUR))
    lived.send("q", *"bcd")
    lived.lull()
    second, third, _ = lived.receive("q", 3)
    lived.abandon("q", second, edits=Edits({"n": 1}))
    lived.complete("q", third)
    lived.complete("q", *lived.receive("q"))
    lived.restart()
    rows = scan(lived, "q")
    assert (list(rows.numbers), texts(lived, rows)) == ([2, 3, 4], list("bcd"))
    assert list(rows.edits) == [0]
    assert survey(lived, "q").extents == [Extent(2, 5, 0, 2)]
    assert advance(lived, "q", 0, max_count=2).end == 4
    lived.do(MoveCursor("q", "tap", 0, 3))
    assert texts(lived, scan(lived, "q")) == ["c", "d"]
    lived.do(DropCursor("q", "tap"))
    assert texts(lived, scan(lived, "q")) == ["d"]


@pytest.mark.req("D2")
def test_a_tap_lets_go_in_time_and_says_so(lived: World) -> None:
    """Its floor rises above what it could not hold."""
    lived.queue("q")
    lived.do(OpenTap("q", "tap", MINUTE))
    lived.send("q", *"ab")
    lived.consume("q")
    lived.wait(30 * SECOND)
    lived.send("q", "c")
    lived.consume("q")
    lived.wait(32 * SECOND)
    assert texts(lived, scan(lived, "q")) == ["c"]
    assert survey(lived, "q").extents == [Extent(3, 4, 3, 3)]
    lived.restart()
    assert survey(lived, "q").extents == [Extent(3, 4, 3, 3)]
    lived.wait(HOUR)
    assert survey(lived, "q").extents == [Extent(4, 4, 4, 4)]


def test_a_tap_lets_go_of_what_is_too_much(lived: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lived.queue("q")
    lived.do(OpenTap("q", "tap", HOUR))
    lived.send("q", *"abcd")
    size = scan(lived, "q").sizes[0]
    monkeypatch.setattr(limits, "MAX_TAP_BYTES", 2 * size)
    lived.consume("q")
    lived.settle_down()
    assert texts(lived, scan(lived, "q")) == ["c", "d"]
    assert survey(lived, "q").extents[0].floor == 3


def test_a_tap_goes_with_its_queue(lived: World) -> None:
    lived.queue("q")
    lived.do(OpenTap("q", "tap", HOUR))
    lived.send("q", "a")
    lived.consume("q")
    assert not lived.freed
    lived.delete("q")
    assert lived.freed


def test_a_tap_with_partitions_and_scheduled_messages(lived: World) -> None:
    """Each partition is held by itself; a cancelled message never passed."""
    lived.queue("q", enable_partitioning=True)
    lived.do(OpenTap("q", "tap", HOUR))
    (number,) = lived.schedule("q", "x", after_ms=HOUR)
    lived.cancel("q", number)
    for index in range(20):
        lived.send("q", "x", partition_key=f"k{index}")
    lived.consume("q")
    found = [
        number
        for partition, extent in enumerate(survey(lived, "q").extents)
        for number in scan(lived, "q", 0, extent.tail, partition=partition).numbers
    ]
    assert len(set(found)) == len(found) == 20
