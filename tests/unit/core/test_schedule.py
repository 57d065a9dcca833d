"""Scheduled messages (S6-S8)."""

from __future__ import annotations

import pytest

from tandembus.core.commands import CancelScheduled
from tandembus.core.state import State
from tandembus.core.tokens import PARTITION_SHIFT
from tandembus.errors import MessageNotFoundError
from tandembus.settings import PrioritySettings
from tests.unit.core.world import HOUR, MINUTE, SECOND, World, message, numbers, rule, states


@pytest.mark.req("S6", "S7", "S8")
def test_a_scheduled_message_comes_at_its_time(lived: World) -> None:
    """The number is there at once; browsing shows it; nobody receives it before its time; then it
    has a new number and its enqueue time is its due time."""
    lived.queue("q")
    due = lived.now + HOUR
    assert lived.schedule("q", "later", after_ms=HOUR) == [1]
    assert lived.send("q", "now") == [2]
    lived.lull()
    assert lived.consume("q") == ["now"]
    (shown,) = lived.browse("q")
    assert (shown.sequence_number, shown.state) == (1, State.SCHEDULED)
    assert lived.namespace.next_deadline() <= due
    lived.wait(HOUR - 1)
    assert lived.receive("q") == []
    lived.lull()
    lived.wait(1)
    (delivery,) = lived.receive("q")
    assert lived.read(delivery).body == "later"
    assert delivery.sequence_number == 3
    assert delivery.enqueued_ms == due


@pytest.mark.req("S8")
def test_the_old_number_is_valid_no_longer(lived: World) -> None:
    """Neither browsing nor cancelling finds it; the new one cannot be cancelled either."""
    lived.queue("q")
    lived.schedule("q", "a", after_ms=MINUTE)
    lived.wait(MINUTE)
    lived.lull()
    assert [(d.sequence_number, d.state) for d in lived.browse("q")] == [(2, State.WAITING)]
    lived.refused(MessageNotFoundError, CancelScheduled("q", [1]))
    lived.refused(MessageNotFoundError, CancelScheduled("q", [2]))
    assert lived.send("q", "b") == [3]


@pytest.mark.req("S8")
def test_a_time_in_the_past_is_now(lived: World) -> None:
    """An ordinary message then: one number, received at once."""
    lived.queue("q")
    assert lived.schedule("q", "a", after_ms=-HOUR) == [1]
    assert lived.schedule("q", "b", after_ms=0) == [2]
    assert lived.send("q", "c") == [3]
    lived.lull()
    received = lived.receive("q", 9)
    assert lived.texts(received) == ["a", "b", "c"]
    assert {each.enqueued_ms for each in received} == {lived.now}


@pytest.mark.req("S7")
def test_cancelling_deletes(lived: World) -> None:
    """The message is gone, its body too; cancelling again finds nothing."""
    lived.queue("q")
    lived.schedule("q", "a", "b", "c", after_ms=HOUR)
    lived.lull()
    lived.cancel("q", 1, 3)
    assert lived.waiting("q") == ["b"]
    lived.refused(MessageNotFoundError, CancelScheduled("q", [1]))
    lived.lull()
    lived.wait(HOUR)
    assert lived.consume("q") == ["b"]


@pytest.mark.req("S7")
def test_cancelling_is_all_or_nothing(world: World) -> None:
    """One number that is not scheduled refuses them all: unknown, waiting, or cancelled before."""
    world.queue("q")
    world.schedule("q", "a", after_ms=HOUR)
    world.send("q", "b")
    for other in (2, 3, 99):
        world.refused(MessageNotFoundError, CancelScheduled("q", [1, other]))
    world.cancel("q", 1)
    world.refused(MessageNotFoundError, CancelScheduled("q", [1]))


@pytest.mark.req("S8")
def test_they_come_in_the_order_of_their_times(lived: World) -> None:
    """Not in the order of their numbers; with one time, in the order in which they were
    scheduled."""
    lived.queue("q")
    lived.schedule("q", "third", after_ms=30 * SECOND)
    lived.schedule("q", "first", after_ms=10 * SECOND)
    lived.schedule("q", "second", after_ms=20 * SECOND)
    lived.schedule("q", "second too", after_ms=20 * SECOND)
    lived.lull()
    lived.tick(MINUTE)
    received = lived.receive("q", 9)
    assert lived.texts(received) == ["first", "second", "second too", "third"]
    assert numbers(received) == [5, 6, 7, 8]
    times = [each.enqueued_ms for each in received]
    assert times == sorted(times)


@pytest.mark.req("S8")
def test_a_waiting_receiver_gets_it_at_its_time(world: World) -> None:
    """With credit outstanding it is delivered in the very tick of its deadline."""
    world.queue("q")
    link = world.attach("q")
    world.offer(link, 1)
    world.schedule("q", "a", after_ms=MINUTE)
    world.wait(MINUTE - 1)
    assert world.arrived(link) == []
    world.wait(1)
    (delivery,) = world.arrived(link)
    assert delivery.enqueued_ms == world.now


@pytest.mark.req("S8")
def test_it_survives_restarts(world: World) -> None:
    """Restarts before its time change nothing; a broker that was down at its time makes up for it
    when it comes back."""
    world.queue("q")
    world.schedule("q", "a", after_ms=HOUR)
    world.schedule("q", "b", after_ms=2 * HOUR)
    for _ in range(3):
        world.restart(MINUTE)
    assert states(world.browse("q")) == [State.SCHEDULED, State.SCHEDULED]
    world.wait(HOUR)
    assert world.consume("q") == ["a"]
    world.restart(3 * HOUR)
    received = world.receive("q", 9)
    assert world.texts(received) == ["b"]
    assert numbers(received) == [4]
    world.complete("q", *received)
    world.restart()
    assert world.waiting("q") == []


@pytest.mark.req("S8", "T13")
def test_its_life_begins_at_its_time(lived: World) -> None:
    """A time to live shorter than the wait does no harm, and counts from the activation on."""
    lived.queue("q")
    lived.schedule("q", "a", "b", after_ms=HOUR, ttl_ms=MINUTE)
    lived.wait(HOUR - SECOND)
    lived.lull()
    assert len(lived.browse("q")) == 2
    lived.wait(SECOND + MINUTE - 1)
    lived.complete("q", lived.receive_one("q"))
    lived.wait(1)
    assert lived.waiting("q") == []


@pytest.mark.req("S6", "S8", "T16")
def test_on_a_topic(lived: World) -> None:
    """It waits at the topic, where it is browsed and cancelled, and goes through the rules that
    hold at its time."""
    lived.topic("t")
    early = lived.subscription("t", "early")
    assert lived.schedule("t", "a", "b", after_ms=HOUR, properties={"colour": "red"}) == [1, 2]
    red = lived.subscription("t", "red", rule("red", "colour = 'red'"))
    blue = lived.subscription("t", "blue", rule("blue", "colour = 'blue'"))
    lived.lull()
    assert states(lived.browse("t")) == [State.SCHEDULED, State.SCHEDULED]
    assert lived.browse(early) == []
    lived.cancel("t", 1)
    due = lived.now + HOUR
    lived.wait(HOUR)
    lived.lull()
    assert lived.waiting("t") == []
    assert lived.waiting(blue) == []
    for path in (early, red):
        (delivery,) = lived.receive(path)
        assert lived.read(delivery).body == "b"
        assert (delivery.sequence_number, delivery.enqueued_ms) == (1, due)
    assert lived.send("t", "c") == [4]


@pytest.mark.req("S7", "T14")
def test_in_a_session(lived: World) -> None:
    """It is no reason to offer its session before its time; then it is the session's next one."""
    lived.queue("q", requires_session=True)
    lived.schedule("q", "later", after_ms=MINUTE, session_id="s")
    lived.send("q", "other", session_id="other")
    lived.lull()
    other = lived.accept_session("q")
    assert other.session_id == "other"
    lived.detach(lived.attach("q", session="s"))
    holder = lived.accept_session("q", "s")
    assert lived.take(holder.link) == []
    lived.wait(MINUTE)  # the session's lock is over too
    again = lived.accept_session("q", "s")
    (delivery,) = lived.take(again.link)
    assert lived.read(delivery).body == "later"
    assert delivery.session_id == "s"


@pytest.mark.req("S8", "S2")
def test_in_a_partitioned_queue(lived: World) -> None:
    """The new number is of the same partition."""
    lived.queue("q", enable_partitioning=True)
    (old,) = lived.schedule("q", "a", after_ms=MINUTE, partition_key="k")
    lived.lull()
    lived.wait(MINUTE)
    (delivery,) = lived.receive("q")
    assert delivery.sequence_number == old + 1
    assert delivery.sequence_number >> PARTITION_SHIFT == old >> PARTITION_SHIFT


@pytest.mark.req("S8", "P1")
def test_in_a_priority_queue(lived: World) -> None:
    """It keeps its level."""
    lived.queue("q", priority=PrioritySettings())
    lived.schedule("q", "high", after_ms=MINUTE, priority=9)
    lived.send("q", "low", priority=0)
    lived.lull()
    lived.wait(MINUTE)
    assert lived.consume("q") == ["high", "low"]


@pytest.mark.req("S6", "T12")
def test_duplicates_of_a_scheduled_message(lived: World) -> None:
    """A scheduled message takes part in duplicate detection from the moment it is scheduled."""
    lived.queue("q", requires_duplicate_detection=True)
    lived.schedule("q", "a", after_ms=MINUTE, message_id="1")
    lived.lull()
    assert lived.send("q", "b", message_id="1") == [0]
    lived.wait(MINUTE)
    assert lived.consume("q") == ["a"]


@pytest.mark.req("S6")
def test_a_batch_of_both_kinds(lived: World) -> None:
    """A message with a time and one without it in one batch: numbers in order, each its way."""
    lived.queue("q")
    later = message("later", scheduled_ms=lived.now + MINUTE)
    assert lived.send("q", "now", later, "now too") == [1, 2, 3]
    lived.lull()
    assert lived.consume("q") == ["now", "now too"]
    lived.wait(MINUTE)
    assert lived.consume("q") == ["later"]


@pytest.mark.req("S8")
def test_no_recurrence(world: World) -> None:
    """It comes once."""
    world.queue("q")
    world.schedule("q", "a", after_ms=MINUTE)
    world.wait(MINUTE)
    assert world.consume("q") == ["a"]
    world.wait(10 * HOUR)
    assert world.consume("q") == []
