"""Pings of paired namespaces, as the broker sees them: its half of N8. The other half is the
client's, so no test here is marked as its proof."""

from __future__ import annotations

from tandembus.changes import Note, Noted
from tandembus.core.commands import Declare, Discharge
from tandembus.errors import EntityDisabledError, EntityNotFoundError
from tandembus.model import PING_CONTENT_TYPE
from tandembus.settings import EntityStatus
from tests.unit.core.world import SECOND, World, facts, message

PING = message(None, content_type=PING_CONTENT_TYPE, ttl_ms=SECOND)


def test_a_ping_is_acknowledged_and_swallowed(world: World) -> None:
    """No receiver gets it, no browser sees it, it is not counted and uses no number; the journal
    has it, because it costs."""
    assert PING_CONTENT_TYPE == "application/vnd.ms-servicebus-ping"
    world.queue("q")
    link = world.attach("q")
    world.offer(link, 5)
    before = facts(world.namespace)
    assert world.send("q", PING) == [0]
    assert facts(world.namespace) == before
    assert world.arrived(link) == []
    assert world.browse("q") == []
    assert world.payloads == {}
    notes = [c.note for c in world.changes if isinstance(c, Noted)]
    assert notes == [Note.PINGED, Note.BROWSED]
    assert world.send("q", "a") == [1]
    world.restart()
    assert world.consume("q") == ["a"]


def test_a_ping_to_a_topic(world: World) -> None:
    """Goes to no subscription, and is forwarded nowhere."""
    world.queue("target")
    world.topic("t")
    path = world.subscription("t", "s")
    world.queue("q", forward_to="target")
    assert world.send("t", PING) == [0]
    assert world.send("q", PING) == [0]
    world.settle_down()
    assert [world.waiting(each) for each in (path, "t", "q", "target")] == [[], [], [], []]


def test_a_ping_to_a_session_queue(world: World) -> None:
    """Has no session id, and needs none: what it asks is whether the queue can be reached."""
    world.queue("q", requires_session=True)
    assert world.send("q", PING) == [0]


def test_pings_among_messages(world: World) -> None:
    """In a batch, in a transaction, with an id that was seen before, with a time to come."""
    world.queue("q", requires_duplicate_detection=True)
    later = message(
        None, content_type=PING_CONTENT_TYPE, message_id="1", scheduled_ms=world.now + SECOND
    )
    assert world.send("q", message("a", message_id="1"), PING, later, "b") == [1, 0, 0, 2]
    transaction = world.do(Declare())
    world.do(world.sending("q", PING, "c", transaction=transaction))
    world.do(Discharge(transaction))
    world.wait(10 * SECOND)
    assert world.consume("q") == ["a", "b", "c"]


def test_a_ping_with_properties(world: World) -> None:
    """However much a client library writes beside the content type."""
    world.queue("q")
    trace = {"Diagnostic-Id": "d" * 300, "x-ms-path": "p" * 260}
    long = message(None, content_type=PING_CONTENT_TYPE, properties=trace)
    assert world.send("q", long) == [0]
    assert world.browse("q") == []


def test_a_ping_is_refused_where_a_message_would_be(world: World) -> None:
    """An entity that is disabled or gone is not healthy."""
    world.queue("q", status=EntityStatus.SEND_DISABLED)
    world.refused(EntityDisabledError, world.sending("q", PING))
    world.refused(EntityNotFoundError, world.sending("unknown", PING))


def test_what_only_looks_like_a_ping(world: World) -> None:
    """Another content type is a message like any other."""
    world.queue("q")
    for content_type in ("application/json", f"{PING_CONTENT_TYPE}s", "ping"):
        assert world.send("q", "a", content_type=content_type) != [0]
