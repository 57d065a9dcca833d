"""What Service Bus does not have: delays, a way back from deferral, sessions as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandembus.changes import Delayed, Reactivated, Return
from tandembus.core.commands import (
    Browse,
    CancelScheduled,
    CountSessions,
    DeadLetterSession,
    Disposition,
    Reactivate,
)
from tandembus.core.effects import SessionCounts
from tandembus.core.state import State
from tandembus.errors import (
    ArgumentError,
    MessageLockLostError,
    MessageNotFoundError,
    NotAllowedError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from tandembus.limits import MAX_ABANDON_DELAY_MS, MAX_RECEIVE_BY_NUMBER
from tandembus.model import Edits
from tandembus.settings import PrioritySettings
from tests.unit.core.world import HOUR, MINUTE, SECOND, World, numbers, settling, states


def put_off(
    world: World,
    path: str,
    delay_ms: int,
    *,
    how: Disposition = Disposition.ABANDON,
    edits: Edits | None = None,
) -> int:
    """Receive the next message and give it back with a delay; its number."""
    delivery = world.receive_one(path)
    world.do(replace(settling(path, how, delivery, edits=edits), delay_ms=delay_ms))
    return delivery.sequence_number


# --- abandon with a delay -------------------------------------------------------------------------


def test_a_delayed_message_comes_back_in_its_place_with_its_number(lived: World) -> None:
    """It is for nobody until its time, then before all that came after it, one delivery older."""
    lived.queue("q")
    first, second = lived.send("q", "a", "b")
    assert put_off(lived, "q", 30 * SECOND, edits=Edits({"tried": 1})) == first
    lived.lull()
    assert lived["q"].counts[State.DELAYED] == 1
    assert states(lived.browse("q")) == [State.DELAYED, State.WAITING]
    lived.wait(30 * SECOND - 1)
    assert numbers(lived.receive("q", 9)) == [second]
    lived.wait(1)
    (back,) = lived.receive("q", 9)
    assert (back.sequence_number, back.delivery_count) == (first, 1)
    assert lived.read(back).properties == {"tried": 1}


def test_a_delay_survives_every_restart(lived: World) -> None:
    """Also the one during which it runs out."""
    lived.queue("q")
    lived.send("q", "a")
    put_off(lived, "q", MINUTE)
    lived.restart()
    assert lived.receive("q") == []
    lived.restart(down_ms=MINUTE)
    lived.settle_down()
    assert lived.consume("q") == ["a"]


def test_the_last_delivery_dead_letters_whatever_the_delay(world: World) -> None:
    """T8 goes first."""
    world.queue("q", max_delivery_count=1)
    world.send("q", "a")
    put_off(world, "q", MINUTE)
    assert world.dead_reasons("q") == [("a", "MaxDeliveryCountExceeded")]


def test_a_release_can_be_delayed_and_still_does_not_count(world: World) -> None:
    world.queue("q", max_delivery_count=1)
    world.send("q", "a")
    put_off(world, "q", MINUTE, how=Disposition.RELEASE)
    (change,) = [each for each in world.changes if isinstance(each, Delayed)]
    assert change.reason == Return.RELEASED
    world.wait(MINUTE)
    assert world.receive_one("q").delivery_count == 0


def test_a_deferred_message_that_is_put_off_stays_deferred(world: World) -> None:
    """Nobody would find it at its time: only its number leads to it."""
    world.queue("q")
    (number,) = world.send("q", "a")
    world.defer("q", world.receive_one("q"))
    (delivery,) = world.receive_deferred("q", number)
    world.do(replace(settling("q", Disposition.ABANDON, delivery), delay_ms=MINUTE))
    world.wait(HOUR)
    assert states(world.browse("q")) == [State.DEFERRED]
    assert world.browse("q")[0].delivery_count == 2


def test_a_delay_outlives_the_time_to_live_and_then_it_expires(world: World) -> None:
    """As with a lock: what somebody works on, or will again, is not taken away meanwhile (T13)."""
    world.queue("q", dead_letter_on_expiration=True)
    world.send("q", "a", ttl_ms=10 * SECOND)
    put_off(world, "q", MINUTE)
    world.wait(30 * SECOND)
    assert states(world.browse("q")) == [State.DELAYED]
    world.wait(30 * SECOND)
    assert world.dead_reasons("q") == [("a", "TTLExpiredException")]


def test_a_delayed_message_of_a_session_lets_the_others_pass(lived: World) -> None:
    """Whoever delays one gives its order up, as with deferral; afterwards it is the first again."""
    lived.queue("q", requires_session=True)
    lived.send("q", "a1", "a2", session_id="a")
    held = lived.accept_session("q", "a")
    first = lived.take(held.link)[0]
    lived.do(replace(settling("q", Disposition.ABANDON, first), delay_ms=10 * SECOND))
    (second,) = lived.take(held.link, 9)
    assert lived.texts([second]) == ["a2"]
    lived.wait(10 * SECOND)
    assert lived.texts(lived.take(held.link, 9)) == ["a1"]
    lived.detach(held.link)
    lived.lull()
    assert lived.texts(lived.take(lived.accept_session("q", "a").link, 9)) == ["a1", "a2"]


def test_a_delayed_message_keeps_its_level(world: World) -> None:
    world.queue("q", priority=PrioritySettings(levels=3))
    world.send("q", "low", priority=0)
    world.send("q", "high", priority=9)
    assert put_off(world, "q", MINUTE) == 2
    world.wait(MINUTE)
    assert world.consume("q") == ["high", "low"]


def test_an_early_return_and_a_second_delay_make_the_first_one_void(world: World) -> None:
    """Only the last delay counts, though the first had been noted."""
    world.queue("q")
    world.send("q", "a")
    number = put_off(world, "q", 10 * SECOND)
    world.do(Reactivate("q", [number]))
    put_off(world, "q", MINUTE)
    world.wait(10 * SECOND)
    assert states(world.browse("q")) == [State.DELAYED]
    world.wait(50 * SECOND)
    assert world.consume("q") == ["a"]


def test_a_delay_has_an_end(world: World) -> None:
    world.queue("q")
    world.send("q", "a")
    delivery = world.receive_one("q")
    command = settling("q", Disposition.ABANDON, delivery)
    for delay_ms in (-1, MAX_ABANDON_DELAY_MS + 1):
        world.refused(ArgumentError, replace(command, delay_ms=delay_ms))
    world.do(replace(command, delay_ms=MAX_ABANDON_DELAY_MS))
    world.wait(MAX_ABANDON_DELAY_MS)
    assert world.consume("q") == ["a"]


def test_a_delayed_message_is_not_a_scheduled_one(world: World) -> None:
    """It was received once: whoever sent it cannot call it back any more."""
    world.queue("q")
    world.send("q", "a")
    number = put_off(world, "q", MINUTE)
    world.refused(MessageNotFoundError, CancelScheduled("q", [number]))
    world.refused(MessageNotFoundError, world.receiving_deferred("q", number))


def test_a_delayed_message_keeps_its_queue_from_being_deleted_as_idle(world: World) -> None:
    world.queue("q", auto_delete_on_idle_ms=5 * MINUTE)
    world.send("q", "a")
    put_off(world, "q", HOUR)
    world.do(Browse("q"))
    for link in list(world["q"].receivers.links):
        world.detach(link)
    world.wait(30 * MINUTE)
    assert "q" in world.namespace


# --- deferred messages return to active -----------------------------------------------------------


def test_a_deferred_message_waits_again_in_its_place(lived: World) -> None:
    lived.queue("q")
    first, second, third = lived.send("q", "a", "b", "c")
    lived.defer("q", *lived.receive("q", 2))
    lived.lull()
    lived.do(Reactivate("q", [second, first, first]))
    lived.lull()
    assert [each for each in lived.changes if isinstance(each, Reactivated)]
    back = lived.receive("q", 9)
    assert numbers(back) == [first, second, third]
    # A restart ends no lock here: nothing was locked when it came.
    assert [each.delivery_count for each in back] == [1, 1, 0]


def test_all_or_none_of_them_return(world: World) -> None:
    """One that is not set aside refuses the whole command."""
    world.queue("q")
    first, second = world.send("q", "a", "b")
    world.defer("q", world.receive_one("q"))
    world.refused(MessageNotFoundError, Reactivate("q", [first, second]))
    world.refused(MessageNotFoundError, Reactivate("q", [99]))
    world.refused(ArgumentError, Reactivate("q", []))
    world.refused(ArgumentError, Reactivate("q", range(MAX_RECEIVE_BY_NUMBER + 1)))
    (delivery,) = world.receive_deferred("q", first)
    world.refused(MessageNotFoundError, Reactivate("q", [first]))
    world.complete("q", delivery)


def test_a_deferred_message_of_a_session_goes_to_its_holder(world: World) -> None:
    world.queue("q", requires_session=True)
    (number,) = world.send("q", "a1", session_id="a")
    held = world.accept_session("q", "a")
    world.defer("q", *world.take(held.link))
    world.offer(held.link, 1)
    world.do(Reactivate("q", [number]))
    assert world.texts(world.arrived(held.link)) == ["a1"]


def test_a_deferred_message_that_expired_meanwhile_expires_when_it_returns(world: World) -> None:
    world.queue("q")
    (number,) = world.send("q", "a", ttl_ms=SECOND)
    world.defer("q", world.receive_one("q"))
    world.wait(HOUR)
    world.do(Reactivate("q", [number]))
    world.settle_down()
    assert world.waiting("q") == []


# --- sessions -------------------------------------------------------------------------------------


@pytest.fixture
def sessions(lived: World) -> World:
    """Two sessions: a with a waiting, a deferred, a delayed and a scheduled message, b with one."""
    lived.queue("q", requires_session=True)
    lived.send("q", "a1", "a2", "a3", session_id="a")
    lived.send("q", "b1", session_id="b")
    lived.schedule("q", "a4", after_ms=HOUR, session_id="a")
    held = lived.accept_session("q", "a")
    one, two = lived.take(held.link, 2)
    lived.defer("q", one)
    lived.do(replace(settling("q", Disposition.ABANDON, two), delay_ms=MINUTE))
    lived.detach(held.link)
    lived.lull()
    return lived


def test_a_whole_session_is_dead_lettered(sessions: World) -> None:
    """All that is there of it, with the reason; what is yet to come, and others, are not."""
    assert sessions.do(DeadLetterSession("q", "a", 0, "poison", "see a1")) == 3
    sessions.lull()
    assert sessions.dead("q") == [
        ("a1", "poison", "see a1"),
        ("a2", "poison", "see a1"),
        ("a3", "poison", "see a1"),
    ]
    assert sessions.waiting("q") == ["b1", "a4"]
    assert sessions.do(DeadLetterSession("q", "a")) == 0
    assert sessions.do(DeadLetterSession("q", "nobody")) == 0


def test_its_holder_dead_letters_a_session_with_what_it_has_locked(sessions: World) -> None:
    """Nobody else can while it is held."""
    held = sessions.accept_session("q", "a")
    (locked,) = sessions.take(held.link, 9)
    sessions.refused(SessionCannotBeLockedError, DeadLetterSession("q", "a"))
    sessions.refused(SessionCannotBeLockedError, DeadLetterSession("q", "a", held.link + 1))
    assert sessions.do(DeadLetterSession("q", "a", held.link)) == 3
    lost = (MessageLockLostError, SessionLockLostError)
    with pytest.raises(lost):
        sessions.complete("q", locked)
    sessions.detach(held.link)
    sessions.lull()
    assert [body for body, _ in sessions.dead_reasons("q")] == ["a1", "a2", "a3"]


def test_a_long_session_is_dead_lettered_in_pieces(world: World) -> None:
    world.queue("q", requires_session=True)
    world.send("q", *"abcde", session_id="a")
    command = DeadLetterSession("q", "a", count=2)
    assert [world.do(command) for _ in range(4)] == [2, 2, 1, 0]
    world.refused(ArgumentError, DeadLetterSession("q", "a", count=0))


def test_sessions_are_counted(sessions: World) -> None:
    """By what an autoscaler asks: how many could be worked on by one more worker."""
    assert sessions.do(CountSessions("q")) == SessionCounts(2, 2, 0, 0)
    held = sessions.accept_session("q", "b")
    assert sessions.do(CountSessions("q")) == SessionCounts(2, 1, 1, 0)
    sessions.complete("q", *sessions.take(held.link))
    sessions.detach(held.link)
    assert sessions.do(CountSessions("q")) == SessionCounts(1, 1, 0, 0)


def test_a_queue_without_sessions_has_none_to_count(world: World) -> None:
    world.queue("q")
    world.refused(NotAllowedError, CountSessions("q"))
    world.refused(NotAllowedError, DeadLetterSession("q", "a"))


# --- browsing by state ----------------------------------------------------------------------------


def test_browsing_by_state(world: World) -> None:
    """From any number on, and no more than asked for."""
    world.queue("q")
    world.send("q", *"abcdef")
    world.defer("q", *world.receive("q", 3))
    world.receive("q", 1)
    assert numbers(world.do(Browse("q", 0, 9, None, (State.DEFERRED,)))) == [1, 2, 3]
    assert numbers(world.do(Browse("q", 2, 1, None, (State.DEFERRED,)))) == [2]
    assert numbers(world.do(Browse("q", 3, 9, None, (State.DEFERRED, State.LOCKED)))) == [3, 4]
    assert numbers(world.do(Browse("q", 0, 9, None, (State.SCHEDULED,)))) == []
