"""Time to live (T13)."""

from __future__ import annotations

import pytest

from tandembus.core.commands import Disposition
from tandembus.core.state import State
from tandembus.errors import MessageLockLostError
from tandembus.model import Edits
from tests.unit.core.world import HOUR, MINUTE, SECOND, World, settling, states

DEAD = "q/$DeadLetterQueue"


@pytest.mark.req("T13")
def test_an_expired_message_vanishes(lived: World) -> None:
    """At its time, though nobody asks; its body with it."""
    lived.queue("q")
    lived.send("q", "a", ttl_ms=SECOND)
    lived.send("q", "b")
    lived.wait(SECOND - 1)
    lived.lull()
    assert lived.waiting("q") == ["a", "b"]
    lived.wait(1)
    assert lived.waiting("q") == ["b"]
    assert len(lived.freed) == 1
    assert lived.dead("q") == []


@pytest.mark.req("T13")
@pytest.mark.parametrize(
    ("of_message", "of_entity"), [(2, 5), (5, 2), (2, None), (None, 2), (2, 2)]
)
def test_the_smaller_wins(lived: World, of_message: int | None, of_entity: int | None) -> None:
    """Of the message's own and the entity's default."""
    settings = {} if of_entity is None else {"default_ttl_ms": of_entity * SECOND}
    lived.queue("q", **settings)
    lived.send("q", "a", ttl_ms=None if of_message is None else of_message * SECOND)
    lived.lull()
    lived.wait(2 * SECOND - 1)
    assert lived.waiting("q") == ["a"]
    lived.wait(1)
    assert lived.waiting("q") == []


@pytest.mark.req("T13")
@pytest.mark.parametrize(
    ("of_topic", "of_subscription", "of_message"), [(2, 9, 9), (9, 2, 9), (9, 9, 2)]
)
def test_on_a_subscription_the_topics_counts_too(
    lived: World, of_topic: int, of_subscription: int, of_message: int
) -> None:
    """The smallest of three."""
    lived.topic("t", default_ttl_ms=of_topic * SECOND)
    path = lived.subscription("t", "s", default_ttl_ms=of_subscription * SECOND)
    lived.send("t", "a", ttl_ms=of_message * SECOND)
    lived.lull()
    lived.wait(2 * SECOND - 1)
    assert lived.waiting(path) == ["a"]
    lived.wait(1)
    assert lived.waiting(path) == []


@pytest.mark.req("T13")
def test_where_the_entity_says_so_they_dead_letter(lived: World) -> None:
    """With the reason TTLExpiredException, and their number; there they live for ever."""
    lived.queue("q", dead_letter_on_expiration=True)
    lived.send("q", "a", "b", ttl_ms=SECOND)
    lived.abandon("q", lived.receive_one("q"), edits=Edits({"n": 1}))
    lived.lull()
    lived.wait(SECOND)
    lived.lull()
    assert lived.dead("q") == [
        (body, "TTLExpiredException", "The message expired and was dead lettered.") for body in "ab"
    ]
    lived.wait(1_000 * HOUR)
    first, second = lived.receive(DEAD, 2)
    assert (first.sequence_number, first.delivery_count) == (1, 1)
    assert lived.read(first).properties["n"] == 1
    assert second.sequence_number == 2


@pytest.mark.req("T13")
def test_a_late_tick_delivers_nothing_expired(world: World) -> None:
    """Even if the broker had no time to look: what has expired is never handed out."""
    world.queue("q", dead_letter_on_expiration=True)
    world.send("q", "a", "b", ttl_ms=SECOND)
    world.send("q", "c")
    world.now += SECOND
    assert world.texts(world.receive("q", 9)) == ["c"]
    assert world.dead_reasons("q") == [(b, "TTLExpiredException") for b in "ab"]


@pytest.mark.req("T13")
def test_a_locked_message_does_not_expire(lived: World) -> None:
    """Its holder can complete it; when the lock ends otherwise, it expires then."""
    lived.queue("q", dead_letter_on_expiration=True)
    lived.send("q", "completed", "abandoned", "run out", ttl_ms=SECOND)
    completed, abandoned, _ = lived.receive("q", 3)
    lived.wait(30 * SECOND)
    assert states(lived.browse("q")) == [State.LOCKED] * 3
    lived.complete("q", completed)
    lived.abandon("q", abandoned)
    lived.settle_down()
    assert lived.dead_reasons("q") == [("abandoned", "TTLExpiredException")]
    lived.wait(30 * SECOND)
    lived.lull()
    assert [body for body, _ in lived.dead_reasons("q")] == ["abandoned", "run out"]
    assert lived.waiting("q") == []


@pytest.mark.req("T13")
def test_a_released_expired_message_is_not_delivered_again(world: World) -> None:
    """Not even to a receiver that waits for it."""
    world.queue("q")
    world.send("q", "a", ttl_ms=SECOND)
    delivery = world.receive_one("q")
    other = world.attach("q")
    world.offer(other, 1)
    world.wait(SECOND)
    world.release("q", delivery)
    world.settle_down()
    assert world.arrived(other) == []
    assert world.waiting("q") == []
    world.refused(MessageLockLostError, settling("q", Disposition.COMPLETE, delivery))


@pytest.mark.req("T13", "T10")
def test_a_deferred_message_does_not_expire(lived: World) -> None:
    """It waits for its number (PRODUCT.md B.4)."""
    lived.queue("q", dead_letter_on_expiration=True)
    lived.send("q", "a", ttl_ms=SECOND)
    lived.defer("q", lived.receive_one("q"))
    lived.wait(HOUR)
    lived.lull()
    lived.wait(HOUR)
    assert lived.texts(lived.receive_deferred("q", 1)) == ["a"]
    assert lived.dead("q") == []


@pytest.mark.req("T13")
def test_in_sessions_and_partitions(lived: World) -> None:
    """The same there; a session whose messages have all expired is not offered."""
    lived.queue("s", requires_session=True)
    lived.queue("p", enable_partitioning=True, dead_letter_on_expiration=True)
    lived.send("s", "a", session_id="short", ttl_ms=SECOND)
    lived.send("s", "b", session_id="long")
    lived.send("p", *"abcdef", ttl_ms=SECOND)
    lived.lull()
    lived.wait(SECOND)
    assert lived.accept_session("s").session_id == "long"
    assert lived.waiting("s") == ["b"]
    assert sorted(lived.dead_reasons("p")) == [(b, "TTLExpiredException") for b in "abcdef"]


@pytest.mark.req("T13")
def test_many_lives_of_different_length(world: World) -> None:
    """Each ends at its own time, in whatever order they came; the broker knows its next
    deadline."""
    world.queue("q")
    lives = [7, 3, 9, 1, 5, 8, 2, 6, 4]
    for seconds in lives:
        world.send("q", str(seconds), ttl_ms=seconds * SECOND)
    for gone in range(1, 10):
        assert world.namespace.next_deadline() == world.now + SECOND
        world.wait(SECOND)
        assert world.waiting("q") == [str(n) for n in lives if n > gone]


@pytest.mark.req("T13")
def test_down_while_they_expired(world: World) -> None:
    """A broker that comes back after their time delivers none of them."""
    world.queue("q", dead_letter_on_expiration=True)
    world.send("q", "a", ttl_ms=MINUTE)
    world.send("q", "b", ttl_ms=2 * HOUR)
    world.restart(HOUR)
    assert world.dead_reasons("q") == [("a", "TTLExpiredException")]
    assert world.consume("q") == ["b"]


@pytest.mark.req("T13")
def test_a_changed_default_holds_for_new_messages(lived: World) -> None:
    """What is there keeps the life that it was given."""
    lived.queue("q", default_ttl_ms=HOUR)
    lived.send("q", "old")
    lived.update("q", default_ttl_ms=MINUTE)
    lived.send("q", "new")
    lived.lull()
    lived.wait(MINUTE)
    assert lived.waiting("q") == ["old"]
    lived.wait(HOUR)
    assert lived.waiting("q") == []


def test_a_life_longer_than_time(lived: World) -> None:
    """The latest time and the longest life that AMQP can write do not make a number that no
    column can hold."""
    lived.queue("q")
    lived.send("q", "late", ttl_ms=2**32 - 1, scheduled_ms=2**63 - 1)
    lived.lull()
    assert [shown.state for shown in lived.browse("q")] == [State.SCHEDULED]
