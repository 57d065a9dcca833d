"""What a receiver decides about a message, and that it can be read back (T5, T9, T10)."""

from __future__ import annotations

import pytest

from tandembus.changes import Mode
from tandembus.core.commands import DeleteMessages, Disposition
from tandembus.core.state import State
from tandembus.errors import (
    ArgumentError,
    MessageLockLostError,
    MessageNotFoundError,
    NotAllowedError,
)
from tandembus.limits import MAX_BATCH_DELETE
from tandembus.model import Edits
from tests.unit.core.world import (
    HOUR,
    MINUTE,
    World,
    message,
    numbers,
    settling,
    states,
)

DEAD = "q/$DeadLetterQueue"


# --- receive and delete ---------------------------------------------------------------------------


@pytest.mark.req("T5")
def test_receive_and_delete(lived: World) -> None:
    """Gone as it is sent: browsing does not show it, no restart brings it back, its body is
    freed."""
    lived.queue("q")
    lived.send("q", "a", "b")
    (delivery,) = lived.receive("q", mode=Mode.RECEIVE_AND_DELETE)
    assert (delivery.token, delivery.locked_until_ms) == (None, 0)
    assert lived.read(delivery).body == "a"
    assert delivery.body in lived.freed
    assert lived.waiting("q") == ["b"]
    lived.lull()
    lived.wait(HOUR)
    assert lived.consume("q") == ["b"]


@pytest.mark.req("T5")
def test_receive_and_delete_by_a_client_that_is_gone(world: World) -> None:
    """What was sent to a link that then broke does not come back."""
    world.queue("q")
    link = world.attach("q", Mode.RECEIVE_AND_DELETE)
    world.offer(link, 10)
    world.send("q", "a", "b")
    world.detach(link)
    world.restart()
    assert world.waiting("q") == []
    assert world.send("q", "c") == [3]


# --- complete, abandon, release -------------------------------------------------------------------


@pytest.mark.req("T9")
def test_complete(lived: World) -> None:
    """The message is gone for good."""
    lived.queue("q")
    lived.send("q", "a", "b")
    first, second = lived.receive("q", 2)
    lived.complete("q", first)
    lived.release("q", second)
    lived.lull()
    assert lived.waiting("q") == ["b"]
    assert lived.freed == {first.body}


@pytest.mark.req("T9")
def test_abandon_with_changes(lived: World) -> None:
    """Properties are set and taken away, and add up over several abandons; the body stays."""
    lived.queue("q")
    lived.send("q", "a", properties={"colour": "red", "size": 1}, label="keep")
    lived.abandon("q", lived.receive_one("q"), edits=Edits({"colour": "blue", "tries": 1}))
    lived.lull()
    delivery = lived.receive_one("q")
    seen = lived.read(delivery)
    assert dict(seen.properties) == {"colour": "blue", "size": 1, "tries": 1}
    lived.abandon("q", delivery, edits=Edits({"tries": 2}, frozenset({"size"})))
    lived.lull()
    delivery = lived.receive_one("q")
    assert delivery.delivery_count == 2
    seen = lived.read(delivery)
    assert dict(seen.properties) == {"colour": "blue", "tries": 2}
    assert (seen.body, seen.message.label) == ("a", "keep")


@pytest.mark.req("T9")
def test_changes_stay_through_what_follows(lived: World) -> None:
    """A lock that runs out, a release, a deferral: what was changed before is still so."""
    lived.queue("q")
    lived.send("q", "a")
    lived.abandon("q", lived.receive_one("q"), edits=Edits({"n": 1}))
    lived.receive_one("q")
    lived.wait(MINUTE)
    lived.release("q", lived.receive_one("q"))
    lived.defer("q", lived.receive_one("q"))
    lived.lull()
    (deferred,) = lived.receive_deferred("q", 1)
    assert dict(lived.read(deferred).properties) == {"n": 1}


@pytest.mark.req("T9")
def test_release_is_no_penalty(lived: World) -> None:
    """Back in its place, the count as it was."""
    lived.queue("q", max_delivery_count=2)
    lived.send("q", "a", "b")
    for _ in range(5):
        first, second = lived.receive("q", 2)
        assert lived.texts([first, second]) == ["a", "b"]
        assert first.delivery_count == 0
        lived.release("q", second, first)
        lived.lull()
    assert lived.dead("q") == []


# --- dead-letter ----------------------------------------------------------------------------------


@pytest.mark.req("T9")
def test_dead_letter_with_reason_description_and_properties(lived: World) -> None:
    """All three can be read back in the dead-letter queue, with all that the message had."""
    lived.queue("q")
    lived.send("q", "a", properties={"colour": "red"}, message_id="m")
    lived.dead_letter(
        "q",
        lived.receive_one("q"),
        reason="too old",
        description="it was sent yesterday",
        edits=Edits({"seen by": "me"}),
    )
    lived.lull()
    assert lived.waiting("q") == []
    (delivery,) = lived.receive(DEAD)
    seen = lived.read(delivery)
    assert dict(seen.properties) == {
        "colour": "red",
        "seen by": "me",
        "DeadLetterReason": "too old",
        "DeadLetterErrorDescription": "it was sent yesterday",
    }
    assert (seen.body, seen.message.message_id) == ("a", "m")
    assert delivery.delivery_count == 0
    lived.complete(DEAD, delivery)
    assert delivery.body in lived.freed


@pytest.mark.req("T9")
def test_dead_letter_without_reason(lived: World) -> None:
    """Then there is no such property (WIRE.md §5.6); the delivery count is kept."""
    lived.queue("q")
    lived.send("q", "a")
    lived.abandon("q", lived.receive_one("q"))
    lived.dead_letter("q", lived.receive_one("q"))
    lived.lull()
    (delivery,) = lived.receive(DEAD)
    assert dict(lived.read(delivery).properties) == {}
    assert delivery.delivery_count == 1


@pytest.mark.req("T9")
def test_a_dead_letter_cannot_die_again(world: World) -> None:
    """It can be completed, abandoned, released and deferred there."""
    world.queue("q")
    world.send("q", "a")
    world.dead_letter("q", world.receive_one("q"))
    delivery = world.receive_one(DEAD)
    world.refused(NotAllowedError, settling(DEAD, Disposition.DEAD_LETTER, delivery))
    world.abandon(DEAD, delivery, edits=Edits({"n": 1}))
    delivery = world.receive_one(DEAD)
    world.defer(DEAD, delivery)
    (deferred,) = world.receive_deferred(DEAD, 1)
    assert dict(world.read(deferred).properties) == {"n": 1}
    world.complete(DEAD, deferred)


@pytest.mark.req("T9")
def test_dead_letters_are_in_the_order_of_their_numbers(lived: World) -> None:
    """Whenever each of them died."""
    lived.queue("q")
    lived.send("q", *"abcde")
    received = lived.receive("q", 5)
    for at in (4, 1, 3, 0):
        lived.dead_letter("q", received[at])
    lived.complete("q", received[2])
    lived.lull()
    assert lived.consume(DEAD) == ["a", "b", "d", "e"]


def test_a_waiting_receiver_of_dead_letters(world: World) -> None:
    """Has the message as soon as it died."""
    world.queue("q")
    link = world.attach(DEAD)
    world.offer(link, 1)
    world.send("q", "a")
    world.dead_letter("q", world.receive_one("q"), reason="why")
    assert world.texts(world.arrived(link)) == ["a"]


# --- several at once ------------------------------------------------------------------------------


@pytest.mark.req("T9")
@pytest.mark.parametrize("disposition", list(Disposition))
def test_several_at_once(world: World, disposition: Disposition) -> None:
    """One command settles them all, or, with one lock lost, none."""
    world.queue("q")
    world.send("q", *"abc")
    received = world.receive("q", 3)
    world.release("q", received[1])
    world.refused(MessageLockLostError, settling("q", disposition, *received))
    world.do(settling("q", disposition, received[0], received[2]))
    rest = {
        Disposition.COMPLETE: (["b"], []),
        Disposition.DEAD_LETTER: (["b"], ["a", "c"]),
    }.get(disposition, (["a", "b", "c"], []))
    assert (world.waiting("q"), world.waiting(DEAD)) == rest
    world.restart()
    assert (world.waiting("q"), world.waiting(DEAD)) == rest


# --- deferred -------------------------------------------------------------------------------------


@pytest.mark.req("T10")
def test_a_deferred_message_is_received_by_its_number_only(lived: World) -> None:
    """No receiver gets it; browsing shows it; its number leads to it, also after a restart, with
    what was changed."""
    lived.queue("q")
    lived.send("q", "a", "b")
    lived.defer("q", lived.receive_one("q"), edits=Edits({"step": 2}))
    lived.lull()
    assert lived.consume("q") == ["b"]
    (shown,) = lived.browse("q")
    assert (shown.sequence_number, shown.state) == (1, State.DEFERRED)
    (deferred,) = lived.receive_deferred("q", 1)
    assert deferred.locked_until_ms == lived.now + MINUTE
    assert dict(lived.read(deferred).properties) == {"step": 2}
    assert deferred.delivery_count == 1
    lived.complete("q", deferred)
    assert lived.waiting("q") == []


@pytest.mark.req("T10")
def test_a_deferred_message_stays_deferred(lived: World) -> None:
    """Abandoned, released, deferred again, or its lock ran out, it is deferred as before, and
    deliveries that failed count."""
    lived.queue("q")
    lived.send("q", "a")
    lived.defer("q", lived.receive_one("q"))
    lived.abandon("q", *lived.receive_deferred("q", 1), edits=Edits({"n": 1}))
    lived.release("q", *lived.receive_deferred("q", 1))
    lived.defer("q", *lived.receive_deferred("q", 1))
    lived.receive_deferred("q", 1)
    lived.wait(MINUTE)
    lived.lull()
    assert states(lived.browse("q")) == [State.DEFERRED]
    assert lived.receive("q") == []
    (deferred,) = lived.receive_deferred("q", 1)
    assert deferred.delivery_count == 4
    assert dict(lived.read(deferred).properties) == {"n": 1}


@pytest.mark.req("T10")
def test_receiving_by_number_is_all_or_nothing(world: World) -> None:
    """A number that is not deferred, or not there, or locked, refuses all of them."""
    world.queue("q")
    world.send("q", *"abc")
    first, second = world.receive("q", 2)
    world.defer("q", first, second)
    for other in (3, 99):
        command = world.receiving_deferred("q", 1, other)
        world.refused(MessageNotFoundError, command)
    world.refused(ArgumentError, world.receiving_deferred("q", 1, 1))
    (locked,) = world.receive_deferred("q", 2)
    world.refused(MessageNotFoundError, world.receiving_deferred("q", 1, 2))
    world.release("q", locked)
    assert numbers(world.receive_deferred("q", 2, 1)) == [2, 1]


@pytest.mark.req("T10", "T5")
def test_receive_and_delete_by_number(lived: World) -> None:
    """A deferred message can be taken away at once, too."""
    lived.queue("q")
    lived.send("q", "a", "b")
    lived.defer("q", *lived.receive("q", 2))
    (taken,) = lived.receive_deferred("q", 2, mode=Mode.RECEIVE_AND_DELETE)
    assert taken.token is None
    lived.lull()
    assert lived.waiting("q") == ["a"]


@pytest.mark.req("T10", "T8")
def test_a_deferred_message_can_be_delivered_too_often(world: World) -> None:
    """It goes where such messages go; it can be dead-lettered by its receiver, too."""
    world.queue("q", max_delivery_count=2)
    world.send("q", "a", "b")
    world.defer("q", *world.receive("q", 2))
    world.abandon("q", *world.receive_deferred("q", 1))
    world.dead_letter("q", *world.receive_deferred("q", 2), reason="enough")
    assert world.dead_reasons("q") == [("a", "MaxDeliveryCountExceeded"), ("b", "enough")]


# --- deleting in bulk -----------------------------------------------------------------------------


@pytest.mark.req("T17")
def test_batch_delete(lived: World) -> None:
    """The oldest waiting messages enqueued before a time, and no other: not what is locked,
    deferred or scheduled."""
    lived.queue("q")
    lived.send("q", *"abcdef")
    locked, deferred = lived.receive("q", 2)
    lived.defer("q", deferred)
    lived.schedule("q", "later", after_ms=HOUR)
    early = lived.now + 1
    lived.wait(10)
    lived.send("q", "young")
    assert lived.do(DeleteMessages("q", 2, early)) == 2
    assert lived.waiting("q") == ["a", "b", "e", "f", "later", "young"]
    assert lived.do(DeleteMessages("q", MAX_BATCH_DELETE, early)) == 2
    assert lived.do(DeleteMessages("q", MAX_BATCH_DELETE, early)) == 0
    lived.complete("q", locked)
    lived.lull()
    assert lived.waiting("q") == ["b", "later", "young"]
    assert lived.consume("q") == ["young"]
    lived.refused(ArgumentError, DeleteMessages("q", 0, early))


@pytest.mark.req("T17")
def test_batch_delete_in_partitions_and_sessions(lived: World) -> None:
    """All partitions; with a session's id, only that session's."""
    lived.queue("p", enable_partitioning=True)
    lived.send("p", *[str(n) for n in range(20)])
    lived.queue("s", requires_session=True)
    for session in "xyx":
        lived.send("s", session, session_id=session)
    lived.lull()
    assert lived.do(DeleteMessages("p", 15, lived.now + 1)) == 15
    assert lived.do(DeleteMessages("p", 15, lived.now + 1)) == 5
    assert lived.do(DeleteMessages("s", 9, lived.now + 1, "x")) == 2
    assert lived.do(DeleteMessages("s", 9, lived.now + 1, "unknown")) == 0
    assert lived.waiting("s") == ["y"]


def test_the_number_of_messages_in_one_delete_is_bounded(world: World) -> None:
    """4,000, whatever is asked."""
    world.queue("q")
    each = message("a")
    for _ in range(2):
        world.send("q", *[each] * 2_500)
    assert world.do(DeleteMessages("q", 1_000_000, world.now + 1)) == MAX_BATCH_DELETE
    assert len(world.receive("q", 5_000)) == 1_000
