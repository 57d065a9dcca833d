"""Duplicate detection (T12)."""

from __future__ import annotations

import tracemalloc
from uuid import UUID

import pytest

from tandembus import limits
from tandembus.changes import Note, Noted
from tandembus.core.commands import Declare, Discharge
from tandembus.core.duplicates import Duplicates, duplicate_key
from tandembus.core.packing import Reader, Writer
from tandembus.errors import ArgumentError, MessageSizeExceededError
from tests.unit.core.world import MINUTE, SECOND, World, message


@pytest.fixture
def detecting(lived: World) -> World:
    lived.queue("q", requires_duplicate_detection=True)
    return lived


@pytest.mark.req("T12")
def test_the_second_is_acknowledged_and_dropped(detecting: World) -> None:
    """The send succeeds, the message is not there; the journal says so."""
    assert detecting.send("q", "first", message_id="1") == [1]
    detecting.lull()
    assert detecting.send("q", "second", message_id="1") == [0]
    assert detecting.send("q", "third", message_id="2") == [2]
    assert detecting.consume("q") == ["first", "third"]
    dropped = [c for c in detecting.changes if isinstance(c, Noted)]
    assert [each.note for each in dropped] == [Note.DUPLICATE_DROPPED]


@pytest.mark.req("T12")
def test_the_window_is_ten_minutes(detecting: World) -> None:
    """By default; from the first message on, whatever became of it."""
    detecting.send("q", "first", message_id="1")
    assert detecting.consume("q") == ["first"]
    detecting.wait(10 * MINUTE - 1)
    detecting.lull()
    assert detecting.send("q", "second", message_id="1") == [0]
    detecting.wait(1)
    detecting.lull()
    assert detecting.send("q", "third", message_id="1") == [2]
    detecting.wait(10 * MINUTE - 1)
    assert detecting.send("q", "fourth", message_id="1") == [0]


@pytest.mark.req("T12")
def test_another_window(lived: World) -> None:
    """As the entity says, and as it says later."""
    lived.queue("q", requires_duplicate_detection=True, duplicate_window_ms=20 * SECOND)
    lived.send("q", "a", message_id="1")
    lived.wait(19 * SECOND)
    lived.lull()
    assert lived.send("q", "b", message_id="1") == [0]
    lived.wait(SECOND)
    assert lived.send("q", "c", message_id="1") == [2]
    lived.update("q", duplicate_window_ms=MINUTE)
    lived.wait(59 * SECOND)
    lived.lull()
    assert lived.send("q", "d", message_id="1") == [0]


@pytest.mark.req("T12")
def test_ids_are_kept_exactly_and_compared_with_their_type(detecting: World) -> None:
    """A uuid, its text, a number, its text, its bytes: five ids."""
    uuid = UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
    ids = [uuid, str(uuid), 7, "7", b"7", "A", "a", " a"]
    for each in ids:
        assert detecting.send("q", "x", message_id=each) != [0]
    detecting.lull()
    for each in ids:
        assert detecting.send("q", "y", message_id=each) == [0]
    received = detecting.receive("q", 99)
    assert [detecting.read(each).message.message_id for each in received] == ids


@pytest.mark.req("T12")
def test_messages_without_id_are_all_kept(detecting: World) -> None:
    """Having no id is not an id."""
    assert detecting.send("q", "a") == [1]
    assert detecting.send("q", "b") == [2]


@pytest.mark.req("T12")
def test_within_one_batch(detecting: World) -> None:
    """The first one of the batch counts."""
    assert detecting.send("q", *[message(b, message_id="1") for b in "ab"]) == [1, 0]
    assert detecting.consume("q") == ["a"]


@pytest.mark.req("T12")
def test_only_accepted_messages_are_remembered(world: World) -> None:
    """A refused send, a rolled-back transaction: the next attempt is the first."""
    world.queue("q", requires_duplicate_detection=True, max_message_size_kb=1)
    mine, too_large = message("a", message_id="1"), message("x" * 2_000)
    world.refused(MessageSizeExceededError, world.sending("q", mine, too_large))
    rolled_back = world.do(Declare())
    world.do(world.sending("q", mine, transaction=rolled_back))
    world.do(Discharge(rolled_back, fail=True))
    assert world.send("q", mine) == [1]


@pytest.mark.req("T12")
def test_in_a_transaction(world: World) -> None:
    """A duplicate in it is dropped like any other; the rest is done."""
    world.queue("q", requires_duplicate_detection=True)
    world.send("q", "a", message_id="1")
    transaction = world.do(Declare())
    world.do(world.sending("q", "b", message_id="1", transaction=transaction))
    world.do(world.sending("q", "c", message_id="2", transaction=transaction))
    world.do(Discharge(transaction))
    assert world.consume("q") == ["a", "c"]


@pytest.mark.req("T12")
def test_on_a_topic(lived: World) -> None:
    """Found at the topic: no subscription gets a second copy."""
    lived.topic("t", requires_duplicate_detection=True)
    path = lived.subscription("t", "s")
    lived.send("t", "a", message_id="1")
    lived.lull()
    assert lived.send("t", "b", message_id="1") == [0]
    assert lived.waiting(path) == ["a"]


@pytest.mark.req("T12")
def test_in_a_partitioned_queue(lived: World) -> None:
    """There the partition key is part of the id (PRODUCT.md B.6)."""
    lived.queue("q", requires_duplicate_detection=True, enable_partitioning=True)
    lived.send("q", "a", message_id="1", partition_key="x")
    lived.lull()
    assert lived.send("q", "b", message_id="1", partition_key="x") == [0]
    lived.send("q", "c", message_id="1", partition_key="y")
    assert sorted(lived.waiting("q")) == ["a", "c"]


@pytest.mark.req("T12", "T17")
def test_at_the_target_of_a_forward(lived: World) -> None:
    """A duplicate that comes by forwarding is dropped there, and its body freed."""
    lived.queue("target", requires_duplicate_detection=True)
    lived.queue("q", forward_to="target")
    lived.send("q", "a", message_id="1")
    lived.lull()
    lived.send("q", "b", message_id="1")
    lived.settle_down()
    assert lived.waiting("q") == []
    assert lived.consume("target") == ["a"]
    assert lived.freed == set(lived.payloads)


def test_without_detection_ids_mean_nothing(world: World) -> None:
    """Two messages with one id are two messages."""
    world.queue("q")
    assert world.send("q", "a", "b", message_id="1") == [1, 2]


def test_an_id_has_a_length(world: World) -> None:
    """128 characters (PRODUCT.md B.2)."""
    world.queue("q", requires_duplicate_detection=True)
    world.send("q", "a", message_id="x" * 128)
    world.refused(ArgumentError, world.sending("q", "a", message_id="x" * 129), "MessageId")


def test_the_history_is_bounded_in_time_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is older than the window, or more than the most, is forgotten, oldest first."""
    monkeypatch.setattr(limits, "MAX_DUPLICATE_HISTORY", 3)
    history = Duplicates()
    for n in range(5):
        history.remember(str(n), n, 100)
    assert len(history) == 3
    assert [history.has_seen(str(n), 5, 100) for n in range(5)] == [False, False, True, True, True]
    history.remember("late", 103, 100)
    assert len(history) == 2
    assert not history.has_seen("4", 104, 100)


def test_keys() -> None:
    """Type and value; with the partition key behind them."""
    assert duplicate_key("1", None) != duplicate_key(1, None)
    assert duplicate_key("a", "b") != duplicate_key("a", None)
    assert duplicate_key(b"\xff", None) == duplicate_key(b"\xff", None)


@pytest.mark.req("T12")
def test_an_id_costs_little_however_long_it_is() -> None:
    """A million ids of 120 characters fit beside everything else that an attacker can make the
    broker hold: what is kept of each does not grow with it."""
    history, count = Duplicates(), 50_000
    tracemalloc.start()
    for n in range(count):
        history.remember(f"str:{n:0>120}", n // 10, 1 << 40)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(history) == count
    assert taken < 230 * count


def test_the_history_comes_back_from_an_index() -> None:
    """Also an id that came again after its window, and from an index with the ids themselves."""
    history = Duplicates()
    for key, when in (("a", 1), ("b", 2), ("a", 200), ("c", 201)):
        history.remember(key, when, 150)
    old, new = Writer(), Writer()
    history.dump(new)
    old.number(2)
    for key, when in (("a", 200), ("c", 201)):
        old.text(key)
        old.number(when)
    for data, version in ((new.data, 6), (old.data, 5)):
        again = Duplicates.load(Reader(bytes(data)), version)
        assert [again.has_seen(key, 210, 150) for key in "abc"] == [True, False, True]
        again.remember("d", 360, 150)
        assert [again.has_seen(key, 360, 1_000) for key in "abcd"] == [False, False, False, True]
