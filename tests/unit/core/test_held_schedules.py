"""What is scheduled in a transaction, with its numbers told at once, and duplicate detection (T12,
T23): an id counts from the commit on, and a rollback leaves it free."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandembus.changes import Enqueued, Note, Noted, Removal, Removed, ScheduleHeld
from tandembus.core import commands as c
from tandembus.core.namespace import Namespace
from tandembus.errors import MessageNotFoundError, NotAllowedError
from tandembus.store.records import decode_group
from tests.unit.core.world import MINUTE, SECOND, START, World, facts, message

HERE = Path(__file__).parent


@pytest.fixture(params=["queue", "topic", "partitioned", "sessions", "partitioned sessions"])
def detecting(request: pytest.FixtureRequest, lived: World) -> World:
    """An entity `q` that detects duplicates."""
    detects: dict[str, Any] = {"requires_duplicate_detection": True}
    if request.param == "topic":
        lived.topic("q", **detects)
        lived.subscription("q", "s")
        return lived
    if "partitioned" in request.param:
        detects["enable_partitioning"] = True
    lived.queue("q", requires_session="sessions" in request.param, **detects)
    return lived


def held(world: World, transaction: int, *bodies: str, key: str = "1") -> list[int]:
    """Scheduled in a transaction for in a minute; their numbers."""
    due = world.now + MINUTE
    letters = [message(each, message_id=key, session_id="x", scheduled_ms=due) for each in bodies]
    return list(world.do(c.Send("q", letters, transaction=transaction, is_numbered=True)))


def sent(world: World, body: str, key: str = "1") -> bool:
    """Whether it was taken, and not dropped as a duplicate."""
    return world.send("q", body, message_id=key, session_id="x") != [0]


def bodies(world: World) -> list[str]:
    """What there is, in any state, once all that is due has been done."""
    world.settle_down()
    path = "q/Subscriptions/s" if "q/Subscriptions/s" in world.namespace else "q"
    return world.waiting("q") if path == "q" else world.waiting("q") + world.waiting(path)


def both_ways(world: World) -> None:
    """From the log and from an index it is what it is now, with what is held and what is known."""
    replayed = Namespace()
    for change in world.changes:
        replayed.replay(change)
    for again in (replayed, Namespace.load(b"".join(world.namespace.dump()))):
        assert facts(again) == facts(world.namespace)
        for mine, other in zip(world.namespace.entities, again.entities, strict=True):
            assert other.held == mine.held
            assert other.duplicates._seen == mine.duplicates._seen


def fail(world: World, transaction: int) -> None:
    world.do(c.Discharge(transaction, fail=True))


def failed_commit(world: World, transaction: int) -> None:
    world.queue("other")
    number = world.schedule("other", "x", after_ms=MINUTE)
    world.do(c.CancelScheduled("other", number, transaction))
    world.cancel("other", *number)
    world.refused(MessageNotFoundError, c.Discharge(transaction))
    world.tick()


def time_out(world: World, _: int) -> None:
    world.wait(2 * MINUTE)


def killed(world: World, _: int) -> None:
    world.restart()


@pytest.mark.req("T12", "T23")
@pytest.mark.parametrize("rollback", [fail, failed_commit, time_out, killed])
def test_a_schedule_that_is_rolled_back_leaves_its_id_free(
    detecting: World, rollback: Callable[[World, int], None]
) -> None:
    """Its number is used up; the retry with the same id is taken, and is not lost."""
    transaction = detecting.do(c.Declare())
    (number,) = held(detecting, transaction, "first")
    both_ways(detecting)
    rollback(detecting, transaction)
    both_ways(detecting)
    detecting.refused(MessageNotFoundError, c.CancelScheduled("q", [number]))
    assert sent(detecting, "again")
    detecting.lull()
    assert not sent(detecting, "once more")
    assert bodies(detecting) == ["again"]
    both_ways(detecting)


@pytest.mark.req("T12", "T23")
def test_its_id_counts_from_the_commit_on(detecting: World) -> None:
    """For a window that begins there."""
    transaction = detecting.do(c.Declare())
    assert held(detecting, transaction, "first") != [0]
    detecting.wait(30 * SECOND)
    detecting.do(c.Discharge(transaction))
    both_ways(detecting)
    detecting.lull()
    assert not sent(detecting, "second")
    detecting.wait(10 * MINUTE - 1)
    assert not sent(detecting, "third")
    detecting.wait(1)
    assert sent(detecting, "fourth")
    assert bodies(detecting) == ["first", "fourth"]


@pytest.mark.req("T12", "T23")
def test_the_id_came_from_elsewhere_while_it_was_held(detecting: World) -> None:
    """That message is taken. By the commit, which succeeds, the held one is the duplicate: it is
    dropped, and its number cancelled."""
    transaction = detecting.do(c.Declare())
    (number,) = held(detecting, transaction, "held")
    assert sent(detecting, "other")
    held(detecting, transaction, "more", key="2")
    both_ways(detecting)
    detecting.do(c.Discharge(transaction))
    both_ways(detecting)
    detecting.lull()
    notes = [each for each in detecting.changes if isinstance(each, Noted)]
    assert [each.note for each in notes if each.note != Note.MANAGED] == [Note.DUPLICATE_DROPPED]
    removed = [each for each in detecting.changes if isinstance(each, Removed)]
    assert Removal.CANCELLED in [each.reason for each in removed]
    detecting.refused(MessageNotFoundError, c.CancelScheduled("q", [number]))
    detecting.wait(MINUTE)
    assert sorted(bodies(detecting)) == ["more", "other"]


@pytest.mark.req("T12", "T23")
def test_two_of_one_transaction(detecting: World) -> None:
    """In one request or in two: the second is the duplicate of the first at once."""
    transaction = detecting.do(c.Declare())
    (first, second) = held(detecting, transaction, "first", "second")
    assert first != 0
    assert second == 0
    assert held(detecting, transaction, "third") == [0]
    both_ways(detecting)
    detecting.do(c.Discharge(transaction))
    both_ways(detecting)
    detecting.wait(MINUTE)
    assert bodies(detecting) == ["first"]


@pytest.mark.req("T12", "T23")
@pytest.mark.parametrize("is_first_committed", [True, False])
def test_two_transactions_hold_one_id(detecting: World, is_first_committed: bool) -> None:
    """Which of them is kept is decided by the first that is committed."""
    one, other = detecting.do(c.Declare()), detecting.do(c.Declare())
    assert held(detecting, one, "one") != [0]
    assert held(detecting, other, "other") != [0]
    detecting.do(c.Discharge(one, fail=not is_first_committed))
    detecting.do(c.Discharge(other))
    both_ways(detecting)
    detecting.wait(MINUTE)
    assert bodies(detecting) == ["one" if is_first_committed else "other"]


@pytest.mark.req("T12", "T23")
@pytest.mark.parametrize("is_sent_first", [True, False])
def test_sent_and_scheduled_in_one_transaction(detecting: World, is_sent_first: bool) -> None:
    """By the commit, in the order in which it was asked: one of them is there."""
    transaction = detecting.do(c.Declare())
    if not is_sent_first:
        held(detecting, transaction, "scheduled")
    plain = message("sent", message_id="1", session_id="x")
    detecting.do(detecting.sending("q", plain, transaction=transaction))
    if is_sent_first:
        held(detecting, transaction, "scheduled")
    detecting.do(c.Discharge(transaction))
    both_ways(detecting)
    detecting.wait(MINUTE)
    assert bodies(detecting) == ["sent" if is_sent_first else "scheduled"]


@pytest.mark.req("T12", "T23")
def test_cancelled_in_its_transaction_and_dropped(detecting: World) -> None:
    """A transaction that cancels what it scheduled is committed also if that is a duplicate."""
    transaction = detecting.do(c.Declare())
    numbers = held(detecting, transaction, "held")
    detecting.do(c.CancelScheduled("q", numbers, transaction))
    assert sent(detecting, "other")
    detecting.do(c.Discharge(transaction))
    both_ways(detecting)
    assert bodies(detecting) == ["other"]


@pytest.mark.req("T12", "T23")
def test_cancelled_from_elsewhere_while_it_is_held(detecting: World) -> None:
    """Then nothing is left to be committed."""
    transaction = detecting.do(c.Declare())
    detecting.do(c.CancelScheduled("q", held(detecting, transaction, "held")))
    detecting.do(c.Discharge(transaction))
    both_ways(detecting)
    assert sent(detecting, "other")
    assert bodies(detecting) == ["other"]


def test_the_log_says_that_it_is_held_before_it_is_there(world: World) -> None:
    """So a replay never takes its id for one that was accepted."""
    world.queue("q", requires_duplicate_detection=True)
    held(world, world.do(c.Declare()), "a")
    kinds = [type(each) for each in world.changes[-2:]]
    assert kinds == [ScheduleHeld, Enqueued]


# --- what older brokers have written --------------------------------------------------------------


def old(name: str) -> bytes:
    """What the broker wrote when it still remembered ids of what is held: a queue `q` with `done`,
    scheduled in a transaction that was committed, `open`, whose transaction is open, `plain`, and
    the id `failed` of one that was rolled back."""
    return zlib.decompress((HERE / name).read_bytes())


def of_index() -> Namespace:
    return Namespace.load(old("index_version_6.zlib"))


def of_log() -> Namespace:
    namespace = Namespace()
    for change, _ in decode_group(old("log_of_index_version_6.zlib")):
        namespace.replay(change)
    return namespace


@pytest.mark.req("T12", "T23")
@pytest.mark.parametrize("opened", [of_index, of_log])
def test_what_an_older_broker_held_is_what_it_was(opened: Callable[[], Namespace]) -> None:
    """Its log and its index are the same as ever, with all four ids; and as what is written now."""
    namespace = opened()
    queue = namespace.find("q")
    assert queue.held == {3: None}
    assert facts(namespace) == facts(of_log())
    for key in ("done", "failed", "open", "plain"):
        assert queue.duplicates.has_seen(f"str:{key}", START, MINUTE)
    again = Namespace.load(b"".join(namespace.dump()))
    assert again.find("q").held == {3: None}
    namespace.restart(START)
    assert [each.sequence_number for each in queue.browse(0, 10, None)] == [1, 4]


# --- partitions -----------------------------------------------------------------------------------


@pytest.mark.req("T14", "T23")
@pytest.mark.parametrize("exists", [True, False])
def test_one_session_in_two_spellings_is_one_partition(world: World, exists: bool) -> None:
    """A transaction, and a batch, is for one session however its id is written; another session is
    refused."""
    world.queue("q", requires_session=True, enable_partitioning=True)
    if exists:
        world.send("q", "before", session_id="Order-1")
    transaction = world.do(c.Declare())
    for name in ("ORDER-1", "order-1"):
        world.do(world.sending("q", name, session_id=name, transaction=transaction))
    other = world.sending("q", "x", session_id="order-2", transaction=transaction)
    world.refused(NotAllowedError, other)
    mixed = [message(each, session_id=each) for each in ("Order-1", "oRDER-1")]
    world.do(c.Send("q", mixed, transaction=transaction, is_batch=True))
    world.do(c.Discharge(transaction))
    world.restart()
    world.tick()
    held = world.accept_session("q", "order-1")
    expected = ["before"] * exists + ["ORDER-1", "order-1", "Order-1", "oRDER-1"]
    assert world.texts(world.take(held.link, 9)) == expected


def test_partition_keys_have_a_case(world: World) -> None:
    """Where ids are keys and no sessions, they differ."""
    world.queue("q", enable_partitioning=True)
    transaction = world.do(c.Declare())
    world.do(world.sending("q", "a", session_id="A", transaction=transaction))
    other = world.sending("q", "a", session_id="a", transaction=transaction)
    world.refused(NotAllowedError, other)


def test_what_has_no_key_is_sent_along(world: World) -> None:
    """A transaction has one key in a partitioned queue, and messages without one."""
    world.queue("q", enable_partitioning=True)
    transaction = world.do(c.Declare())
    world.do(world.sending("q", "a", partition_key="k", transaction=transaction))
    world.do(world.sending("q", "b", transaction=transaction))
    world.do(c.Discharge(transaction))
    assert sorted(world.waiting("q")) == ["a", "b"]
