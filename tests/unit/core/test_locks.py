"""Peek-lock: exclusive, renewable, and over when it is over (T6, T7, T8, T11)."""

from __future__ import annotations

import pytest

from tandembus.changes import Mode
from tandembus.core.commands import Disposition, Flow, Renew
from tandembus.core.state import State
from tandembus.errors import ArgumentError, MessageLockLostError, NotAllowedError
from tandembus.limits import DEFAULT_LOCK_MS, DEFAULT_MAX_DELIVERY_COUNT, MAX_LOCK_MS
from tests.unit.core.world import (
    MINUTE,
    SECOND,
    START,
    World,
    numbers,
    settling,
    states,
    tokens,
)

EVERY_DISPOSITION = list(Disposition)


# --- exclusive ------------------------------------------------------------------------------------


@pytest.mark.req("T6")
def test_a_lock_lasts_for_the_lock_duration(world: World) -> None:
    """60 s by default; a browser sees that it is locked, without its token."""
    world.queue("q")
    world.send("q", "a")
    delivery = world.receive_one("q")
    assert delivery.locked_until_ms == START + DEFAULT_LOCK_MS == START + 60 * SECOND
    assert delivery.token is not None
    assert delivery.state is State.LOCKED
    (shown,) = world.browse("q")
    assert shown.state is State.LOCKED
    assert shown.token is None


@pytest.mark.req("T6")
def test_the_longest_lock_is_five_minutes(world: World) -> None:
    """And no longer one can be had."""
    world.queue("q", lock_duration_ms=5 * MINUTE)
    assert MAX_LOCK_MS == 5 * MINUTE
    world.send("q", "a")
    assert world.receive_one("q").locked_until_ms == world.now + 5 * MINUTE
    with pytest.raises(ArgumentError, match="LockDuration"):
        world.queue("other", lock_duration_ms=5 * MINUTE + 1)


@pytest.mark.req("T6")
def test_other_receivers_pass_over_a_locked_message(world: World) -> None:
    """Each gets the next unlocked one; nobody gets one twice."""
    world.queue("q")
    world.send("q", "a", "b", "c")
    one, other = world.attach("q"), world.attach("q")
    assert world.texts(world.take(one)) == ["a"]
    assert world.texts(world.take(other)) == ["b"]
    assert world.texts(world.take(one)) == ["c"]
    assert world.take(other) == []


@pytest.mark.req("T6")
def test_waiting_receivers_take_turns(world: World) -> None:
    """Credit of several links is served in turn, as messages come."""
    world.queue("q")
    links = [world.attach("q") for _ in range(3)]
    for link in links:
        world.offer(link, 2)
    world.send("q", *"abcdef")
    assert [world.texts(world.arrived(link)) for link in links] == [
        ["a", "d"],
        ["b", "e"],
        ["c", "f"],
    ]


def test_no_credit_no_delivery(world: World) -> None:
    """Credit is absolute and can be taken back; a drained link has none left and says how much."""
    world.queue("q")
    link = world.attach("q")
    world.offer(link, 5)
    world.offer(link, 0)
    world.send("q", "a")
    assert world.arrived(link) == []
    assert world.do(Flow(link, 5, 1, drain=True)) == 4
    assert world.texts(world.arrived(link)) == ["a"]
    world.send("q", "b")
    assert world.arrived(link) == []


def test_a_link_that_is_not_attached(world: World) -> None:
    """Has no credit to give; one that is cannot be attached again."""
    world.queue("q")
    world.refused(NotAllowedError, Flow(99, 1, 1))
    link = world.attach("q")
    world.detach(link)
    world.detach(link)
    world.refused(NotAllowedError, Flow(link, 1, 1))


@pytest.mark.req("T6")
def test_renewing(world: World) -> None:
    """The lock then ends a lock duration from now; again and again, for hours."""
    world.queue("q")
    world.send("q", "a", "b")
    first, second = world.receive("q", 2)
    for _ in range(100):
        world.wait(59 * SECOND)
        assert world.renew("q", first, second) == [world.now + MINUTE] * 2
    world.wait(MINUTE - 1)
    world.complete("q", first)
    world.wait(1)
    (again,) = world.receive("q")
    assert again.sequence_number == second.sequence_number
    assert again.delivery_count == 1


@pytest.mark.req("T6")
def test_renewing_one_lock_leaves_the_others(world: World) -> None:
    """They end in their own time, in whatever order they were renewed."""
    world.queue("q")
    world.send("q", "a", "b", "c")
    first, _, third = world.receive("q", 3)
    world.wait(30 * SECOND)
    world.renew("q", third)
    world.renew("q", first)
    world.wait(30 * SECOND)
    assert states(world.browse("q")) == [State.LOCKED, State.WAITING, State.LOCKED]
    world.wait(30 * SECOND)
    assert states(world.browse("q")) == [State.WAITING] * 3


@pytest.mark.req("T6")
def test_a_changed_lock_duration_holds_for_new_locks(world: World) -> None:
    """Old locks end when they were promised to, before or after the new ones."""
    world.queue("q", lock_duration_ms=5 * MINUTE)
    world.send("q", "a", "b", "c")
    world.receive("q")
    world.update("q", lock_duration_ms=10 * SECOND)
    world.receive("q")
    world.update("q", lock_duration_ms=MINUTE)
    world.receive("q")
    world.wait(10 * SECOND)
    assert states(world.browse("q")) == [State.LOCKED, State.WAITING, State.LOCKED]
    world.wait(50 * SECOND)
    assert states(world.browse("q")) == [State.LOCKED, State.WAITING, State.WAITING]
    world.wait(4 * MINUTE)
    assert states(world.browse("q")) == [State.WAITING] * 3


# --- the way back ---------------------------------------------------------------------------------


@pytest.mark.req("T7")
@pytest.mark.parametrize("how", ["abandoned", "runs out"])
def test_back_to_its_old_place(world: World, how: str) -> None:
    """At the head of the order, before what was behind it, its delivery count one higher."""
    world.queue("q")
    world.send("q", "a", "b", "c", "d")
    first, second = world.receive("q", 2)
    world.complete("q", first)
    if how == "abandoned":
        world.abandon("q", second)
    else:
        world.wait(MINUTE)
    received = world.receive("q", 9)
    assert world.texts(received) == ["b", "c", "d"]
    assert [each.delivery_count for each in received] == [1, 0, 0]
    assert received[0].sequence_number == second.sequence_number
    assert received[0].enqueued_ms == second.enqueued_ms


@pytest.mark.req("T7")
def test_many_come_back_in_order(lived: World) -> None:
    """Abandoned in any order, they are received in the order of their numbers."""
    lived.queue("q")
    lived.send("q", *"abcdef")
    received = lived.receive("q", 5)
    for at in (3, 0, 4, 1, 2):
        lived.abandon("q", received[at])
    lived.lull()
    assert lived.consume("q") == list("abcdef")


@pytest.mark.req("T7")
def test_a_waiting_receiver_gets_what_comes_back(world: World) -> None:
    """As soon as the lock is over, in the same tick."""
    world.queue("q")
    world.send("q", "a")
    world.receive_one("q")
    other = world.attach("q")
    world.offer(other, 1)
    world.wait(MINUTE)
    (again,) = world.arrived(other)
    assert again.delivery_count == 1
    assert again.locked_until_ms == world.now + MINUTE


@pytest.mark.req("T7")
def test_a_late_tick(world: World) -> None:
    """The lock is over at its time even if the broker looks later: its holder has lost it."""
    world.queue("q")
    world.send("q", "a")
    delivery = world.receive_one("q")
    world.now += MINUTE
    for disposition in EVERY_DISPOSITION:
        world.refused(MessageLockLostError, settling("q", disposition, delivery))
    world.refused(MessageLockLostError, Renew("q", tokens([delivery])))
    world.tick()
    assert world.receive_one("q").delivery_count == 1


@pytest.mark.req("T7", "T11")
def test_a_restart_ends_every_lock(world: World) -> None:
    """What was locked in the former life comes back to its place, and counts as delivered."""
    world.queue("q")
    world.send("q", "a", "b", "c")
    first, second = world.receive("q", 2)
    world.complete("q", first)
    for life in range(1, 4):
        world.restart()
        world.refused(MessageLockLostError, settling("q", Disposition.COMPLETE, second))
        received = world.receive("q", 9)
        assert world.texts(received) == ["b", "c"]
        assert [each.delivery_count for each in received] == [life, life - 1]


# --- too often ------------------------------------------------------------------------------------


@pytest.mark.req("T8")
@pytest.mark.parametrize("how", ["abandoned", "runs out"])
def test_ten_deliveries_are_enough(lived: World, how: str) -> None:
    """After the tenth one that failed it is in the dead-letter queue, and says why."""
    assert DEFAULT_MAX_DELIVERY_COUNT == 10
    lived.queue("q")
    lived.send("q", "a", "b")
    for count in range(10):
        delivery = lived.receive_one("q")
        assert lived.read(delivery).body == "a"
        assert delivery.delivery_count == count
        if how == "abandoned":
            lived.abandon("q", delivery)
        else:
            lived.wait(MINUTE)
        lived.lull()
    assert lived.consume("q") == ["b"]
    ((body, reason, description),) = lived.dead("q")
    assert (body, reason) == ("a", "MaxDeliveryCountExceeded")
    assert description == "Message could not be consumed after 10 delivery attempts."
    (dead,) = lived.receive("q/$DeadLetterQueue")
    assert (dead.sequence_number, dead.delivery_count) == (1, 10)


@pytest.mark.req("T8")
def test_a_limit_of_one(lived: World) -> None:
    """The first failure is the last; releasing is no failure."""
    lived.queue("q", max_delivery_count=1)
    lived.send("q", "a")
    for _ in range(5):
        lived.release("q", lived.receive_one("q"))
    lived.abandon("q", lived.receive_one("q"))
    lived.lull()
    assert lived.dead_reasons("q") == [("a", "MaxDeliveryCountExceeded")]
    assert lived.waiting("q") == []


@pytest.mark.req("T8")
def test_restarts_count_too(world: World) -> None:
    """A message that ends the broker each time it is delivered does not come for ever."""
    world.queue("q", max_delivery_count=3)
    world.send("q", "poison")
    for _ in range(3):
        assert len(world.receive("q")) == 1
        world.restart()
    assert world.dead_reasons("q") == [("poison", "MaxDeliveryCountExceeded")]


@pytest.mark.req("T8")
def test_a_lower_limit_counts_at_the_next_failure(world: World) -> None:
    """A message that had more deliveries already is not looked for."""
    world.queue("q")
    world.send("q", "a")
    for _ in range(4):
        world.abandon("q", world.receive_one("q"))
    world.update("q", max_delivery_count=2)
    delivery = world.receive_one("q")
    assert delivery.delivery_count == 4
    world.abandon("q", delivery)
    assert world.dead_reasons("q") == [("a", "MaxDeliveryCountExceeded")]


@pytest.mark.req("T8")
def test_dead_letters_do_not_die(lived: World) -> None:
    """In a dead-letter queue deliveries are counted, but nothing follows from it."""
    lived.queue("q", max_delivery_count=2)
    lived.send("q", "a")
    lived.dead_letter("q", lived.receive_one("q"))
    for count in range(5):
        delivery = lived.receive_one("q/$DeadLetterQueue")
        assert delivery.delivery_count == count
        lived.abandon("q/$DeadLetterQueue", delivery)
        lived.lull()
    assert lived.consume("q/$DeadLetterQueue") == ["a"]


# --- lost -----------------------------------------------------------------------------------------


@pytest.mark.req("T11")
@pytest.mark.parametrize("disposition", EVERY_DISPOSITION)
def test_nothing_is_settled_after_the_lock_ran_out(world: World, disposition: Disposition) -> None:
    """Not even if the same link has locked it again: the old token is dead."""
    world.queue("q")
    world.send("q", "a")
    old = world.receive_one("q")
    world.wait(MINUTE)
    world.refused(MessageLockLostError, settling("q", disposition, old))
    new = world.receive_one("q")
    assert new.token != old.token
    world.refused(MessageLockLostError, settling("q", disposition, old))
    world.refused(MessageLockLostError, Renew("q", tokens([old])))
    world.complete("q", new)


@pytest.mark.req("T11")
@pytest.mark.parametrize("first", EVERY_DISPOSITION)
@pytest.mark.parametrize("second", EVERY_DISPOSITION)
def test_nothing_is_settled_twice(world: World, first: Disposition, second: Disposition) -> None:
    """Whatever was decided first stays."""
    world.queue("q")
    world.send("q", "a")
    delivery = world.receive_one("q")
    world.do(settling("q", first, delivery))
    world.refused(MessageLockLostError, settling("q", second, delivery))
    world.refused(MessageLockLostError, Renew("q", tokens([delivery])))


@pytest.mark.req("T11")
@pytest.mark.parametrize("disposition", EVERY_DISPOSITION)
def test_a_token_that_holds_nothing(world: World, disposition: Disposition) -> None:
    """Another message's, another queue's, one byte changed, of another length."""
    world.queue("q")
    world.queue("other")
    world.send("q", "a")
    world.send("other", "b")
    ours, theirs = world.receive_one("q"), world.receive_one("other")
    assert ours.token is not None
    bent = ours._replace(token=bytes([ours.token[0], *ours.token[1:15], ours.token[15] ^ 1]))
    short = ours._replace(token=ours.token[:15])
    empty = ours._replace(token=b"")
    for bad in (theirs, bent, short, empty):
        world.refused(MessageLockLostError, settling("q", disposition, bad))
        world.refused(MessageLockLostError, Renew("q", tokens([bad])))
    world.complete("q", ours)
    world.complete("other", theirs)


@pytest.mark.req("T11")
def test_one_token_twice_in_a_command(world: World) -> None:
    """Refused as a whole."""
    world.queue("q")
    world.send("q", "a")
    delivery = world.receive_one("q")
    world.refused(MessageLockLostError, settling("q", Disposition.COMPLETE, delivery, delivery))
    world.complete("q", delivery)


@pytest.mark.req("T11")
def test_a_lock_outlives_its_link(world: World) -> None:
    """After a break it stays until it runs out, and its token settles or renews it from
    elsewhere."""
    world.queue("q")
    world.send("q", "a", "b")
    link = world.attach("q")
    first, second = world.take(link, 2)
    world.detach(link)
    assert world.receive("q") == []
    world.complete("q", first)
    world.renew("q", second)
    world.wait(MINUTE)
    (again,) = world.receive("q")
    assert numbers([again]) == numbers([second])
    assert again.delivery_count == 1


@pytest.mark.req("T11")
def test_tokens_of_receive_and_delete(world: World) -> None:
    """There are none: nothing can be settled."""
    world.queue("q")
    world.send("q", "a")
    (delivery,) = world.receive("q", mode=Mode.RECEIVE_AND_DELETE)
    assert delivery.token is None
