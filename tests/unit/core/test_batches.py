"""Batches for a partitioned entity (FW6)."""

from __future__ import annotations

import pytest

from tandembus.core import commands as c
from tandembus.errors import NotAllowedError
from tandembus.model import PING_CONTENT_TYPE
from tests.unit.core.world import World, message


def batch(path: str, *keys: str | None, **more: object) -> c.Send:
    """One message for each partition key, in one transfer."""
    letters = [message("x", partition_key=key) for key in keys]
    return c.Send(path, letters, is_batch=True, **more)  # type: ignore[arg-type]


@pytest.mark.req("T18", "S2")
def test_fw6_a_batch_with_different_partition_keys_is_refused(world: World) -> None:
    """All of it, and the text says which keys. In a transaction it is refused at once."""
    world.queue("q", enable_partitioning=True)
    world.topic("t", enable_partitioning=True)
    transaction = world.do(c.Declare())
    for path in ("q", "t"):
        refusal = world.refused(NotAllowedError, batch(path, "a", "b", "a"))
        assert "different partition keys ('a', 'b')" in str(refusal)
        assert "Send one batch for each key" in str(refusal)
        world.refused(NotAllowedError, batch(path, "a", "b", transaction=transaction))
        world.refused(NotAllowedError, batch(path, "a", None), match="'a', none")


@pytest.mark.req("T18", "S2", "T14")
def test_fw6_in_a_partitioned_queue_with_sessions_the_session_is_the_key(world: World) -> None:
    world.queue("q", enable_partitioning=True, requires_session=True)
    letters = [message("x", session_id=session) for session in "ab"]
    world.refused(NotAllowedError, c.Send("q", letters, is_batch=True))
    world.do(c.Send("q", [letters[0], letters[0]], is_batch=True))


@pytest.mark.req("S2")
def test_fw6_what_is_no_batch_or_has_one_key_is_taken(world: World) -> None:
    """One key, none at all, an entity that is not partitioned, and messages that were sent one by
    one and came together."""
    world.queue("q", enable_partitioning=True)
    world.queue("plain")
    world.queue("sessions", requires_session=True)
    world.do(batch("q", "a", "a"))
    world.do(batch("q", None, None, None))
    world.do(batch("plain", "a", "b"))
    letters = [message("x", session_id=session) for session in "ab"]
    world.do(c.Send("sessions", letters, is_batch=True))
    letters = [message("x", partition_key=key) for key in "ab"]
    numbers = world.do(c.Send("q", letters, each=True))
    assert len(set(numbers)) == 2
    ping = message(None, content_type=PING_CONTENT_TYPE)
    world.do(c.Send("q", [message("x", partition_key="a"), ping], is_batch=True))
