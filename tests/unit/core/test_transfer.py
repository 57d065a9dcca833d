"""Transfer dead-letter queues: what cannot be forwarded, and why (T20)."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tandembus import limits
from tandembus.changes import Mode
from tandembus.core import commands as c
from tandembus.core.access import Claims, Grant, Right, require
from tandembus.core.commands import Disposition
from tandembus.core.namespace import Namespace
from tandembus.errors import (
    EntityNotFoundError,
    MessageSizeExceededError,
    NotAllowedError,
    UnauthorizedError,
)
from tandembus.limits import MAX_DEAD_LETTER_TEXT
from tandembus.model import NEVER
from tandembus.settings import EntityStatus, TopicSettings
from tandembus.store.records import decode_group
from tests.unit.core.world import MINUTE, SECOND, World, heavy, message, settling

HERE = Path(__file__).parent
TRANSFER = "q/$Transfer/$DeadLetterQueue"


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of `heavy` only say that they are large, and so take no memory."""
    monkeypatch.setattr(limits, "MAX_TRANSACTION_BYTES", 1 << 40)
    monkeypatch.setattr(limits, "MAX_ALL_TRANSACTION_BYTES", 1 << 40)


def refusing(world: World) -> None:
    """A queue `q` that forwards to one that takes nothing."""
    world.queue("target", status=EntityStatus.SEND_DISABLED)
    world.queue("q", forward_to="target", lock_duration_ms=10 * SECOND, max_delivery_count=2)


@pytest.mark.req("T20")
def test_fw7_what_could_not_be_forwarded_is_peeked_received_and_settled(lived: World) -> None:
    """As in a dead-letter queue: it is locked, comes back without end, is deferred and completed;
    it cannot be dead-lettered again."""
    refusing(lived)
    assert lived.send("q", "a", "b", properties={"n": 1}) == [1, 2]
    lived.lull()
    assert lived.waiting(TRANSFER) == ["a", "b"]
    assert lived.dead("q") == []
    assert lived.waiting("q") == []
    for count in range(3):  # more than MaxDeliveryCount
        delivery = lived.receive_one(TRANSFER)
        assert (delivery.sequence_number, delivery.delivery_count) == (1, count)
        lived.abandon(TRANSFER, delivery)
    seen = lived.read(delivery)
    assert seen.properties["DeadLetterReason"] == "MessagingEntityDisabled"
    assert "'target' is currently disabled" in str(seen.properties["DeadLetterErrorDescription"])
    assert seen.properties["n"] == 1
    delivery = lived.receive_one(TRANSFER)
    lived.refused(NotAllowedError, settling(TRANSFER, Disposition.DEAD_LETTER, delivery))
    lived.defer(TRANSFER, delivery)
    lived.lull()
    (deferred,) = lived.receive_deferred(TRANSFER, 1)
    lived.complete(TRANSFER, deferred)
    assert lived.consume(TRANSFER) == ["b"]
    lived.lull()
    assert lived["q"].used_bytes == 0
    assert lived.freed == set(lived.payloads)


@pytest.mark.req("T20")
def test_fw7_the_counts_tell_the_truth(world: World) -> None:
    """What waits to be forwarded is not active; what could not be forwarded is counted apart."""
    world.queue("target")
    world.queue("q")
    world.send("q", "a", "b")
    locked = world.receive_one("q")
    world.answers_loads = False
    world.update("q", forward_to="target")
    queue = world["q"]
    assert (queue.active_count, queue.transfer_count) == (1, 1)
    world.update("target", status=EntityStatus.SEND_DISABLED)
    world.answers_loads = True
    world.settle_down()
    world.dead_letter("q", locked)
    world.settle_down()
    assert (queue.active_count, queue.transfer_count) == (0, 0)
    assert queue.dead_letter_counts == (1, 1)
    assert queue.used_bytes == sum(each.size_bytes for each in queue.its_dead_letters)


@pytest.mark.req("T20")
def test_fw7_it_is_not_forwarded_with_the_dead_letters(lived: World) -> None:
    """Dead letters of the entity go on; what could not be forwarded stays, and never expires."""
    lived.queue("graves")
    lived.queue("target", status=EntityStatus.SEND_DISABLED)
    lived.queue("q", forward_to="target", forward_dead_letters_to="graves", default_ttl_ms=MINUTE)
    lived.send("q", "a")
    lived.wait(10 * MINUTE)
    lived.lull()
    assert lived.waiting(TRANSFER) == ["a"]
    assert lived.waiting("graves") == []


@pytest.mark.req("T20")
def test_fw7_of_a_subscription(lived: World) -> None:
    """Its copy goes to its own queue, and counts against the topic."""
    lived.queue("target", status=EntityStatus.SEND_DISABLED)
    lived.topic("t")
    path = lived.subscription("t", "s", forward_to="target")
    lived.send("t", "a")
    lived.lull()
    assert [body for body, *_ in lived.not_transferred(path)] == ["a"]
    assert lived["t"].used_bytes == lived[path].used_bytes > 0
    lived.delete(path)
    assert lived["t"].used_bytes == 0
    assert lived.freed == set(lived.payloads)


@pytest.mark.req("T20")
def test_fw7_every_entity_has_one_as_long_as_it_exists(world: World) -> None:
    """Empty at first, in any spelling of its path; it cannot be sent to, changed or deleted."""
    refusing(world)
    world.topic("t")
    world.subscription("t", "s")
    for path in ("q", "t", "t/subscriptions/s"):
        where = f"{path}/$transfer/$deadletterqueue"
        assert world[where] is world[f"{path.upper()}/$TRANSFER/$DeadLetterQueue"]
        assert world.waiting(where) == []
        world.attach(where)
    world.refused(NotAllowedError, c.Send(TRANSFER, [message("a")]))
    world.refused(NotAllowedError, c.DeleteEntity(TRANSFER))
    world.refused(EntityNotFoundError, c.Attach(99, "x/$Transfer/$DeadLetterQueue"))
    world.refused(EntityNotFoundError, c.Attach(99, f"q/$DeadLetterQueue/{TRANSFER}"))
    world.send("q", "a")
    link = world.attach(TRANSFER, Mode.RECEIVE_AND_DELETE)
    world.delete("q")
    assert {each.link for each in world.closed} >= {link}
    assert TRANSFER not in world.namespace
    world.queue("q")
    assert world.waiting(TRANSFER) == []


@pytest.mark.req("T20")
def test_fw7_a_receiver_that_waits_gets_it_at_once_and_ends_with_the_entity(world: World) -> None:
    """A disabled entity gives nothing, of its transfer dead-letter queue neither."""
    refusing(world)
    link = world.attach(TRANSFER)
    world.offer(link, 5)
    world.send("q", "a")
    assert world.texts(world.arrived(link)) == ["a"]
    world.update("q", status=EntityStatus.RECEIVE_DISABLED)
    assert [each.link for each in world.closed] == [link]


@pytest.mark.req("T20", "C3")
def test_fw7_the_rights_are_those_of_the_dead_letter_queue(world: World) -> None:
    """Listen on the entity, or on the queue itself."""
    refusing(world)
    command = c.Attach(1, TRANSFER)
    for path in ("q", TRANSFER.lower()):
        require(Claims({path: Grant(path, Right.LISTEN, NEVER)}), command, world.now)
    for path, right in (("q", Right.SEND), ("target", Right.LISTEN)):
        with pytest.raises(UnauthorizedError):
            require(Claims({path: Grant(path, right, NEVER)}), command, world.now)


# --- send-via -------------------------------------------------------------------------------------


@pytest.mark.req("T20", "T23")
@pytest.mark.parametrize("between", ["q", "t"])
@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("missing", "MessagingEntityNotFound"),
        ("disabled", "MessagingEntityDisabled"),
        ("full", "QuotaExceeded"),
        ("too large", "MessageSizeExceeded"),
        ("without session", "Session ID is null."),
    ],
)
def test_fw7_sent_via_another_entity_and_refused(
    lived: World, why: str, reason: str, in_transaction: bool, between: str
) -> None:
    """The message stays in the transfer dead-letter queue of the entity in between, the others of
    its batch arrive, and the sender is not told."""
    roomy = {"max_message_size_kb": 102_400, "max_size_mb": 5 * 1024}
    lived.queue("q", **roomy) if between == "q" else lived.topic("t", **roomy)
    lived.queue("to", max_message_size_kb=102_400, requires_session=why == "without session")
    lived.send("q" if between == "q" else "t", "unrelated")
    if why == "full":
        lived.send("to", *[heavy(100 << 20)] * 10)
    elif why == "too large":
        lived.update("to", max_message_size_kb=1)
    elif why == "disabled":
        lived.update("to", status=EntityStatus.SEND_DISABLED)
    transaction = lived.do(c.Declare()) if in_transaction else None
    if why == "missing":
        lived.delete("to")
    wrong = heavy(100 << 20, body="wrong")
    lived.do(c.Send("to", [wrong], transaction=transaction, via=between))
    if transaction is not None:
        assert lived.not_transferred(between) == []
        lived.do(c.Discharge(transaction))
    lived.lull()
    assert [each[:2] for each in lived.not_transferred(between)] == [("wrong", reason)]
    assert lived.dead("q") == [] if between == "q" else True


@pytest.mark.req("T20", "T23")
def test_fw7_sent_via_each_message_for_itself(world: World) -> None:
    """Of several messages only those that the destination refuses are kept back."""
    world.queue("q")
    world.queue("to", requires_session=True)
    letters = [message("a", session_id="s"), message("b"), message("c", session_id="s")]
    assert world.do(c.Send("to", letters, via="q")) == [1, 1, 2]
    assert world.waiting("to") == ["a", "c"]
    assert world.dead_reasons("q/$Transfer") == [("b", "Session ID is null.")]
    assert world.send("q", "next") == [2]


@pytest.mark.req("T20")
def test_fw7_the_entity_in_between_refuses_for_itself(world: World) -> None:
    """It must be there, take messages of that size, and have room for them."""
    world.queue("to", max_message_size_kb=102_400)
    world.queue("q", max_message_size_kb=1, requires_duplicate_detection=True)
    world.refused(EntityNotFoundError, c.Send("to", [message("a")], via="nowhere"))
    world.refused(MessageSizeExceededError, c.Send("to", [heavy(5_000)], via="q"))
    world.delete("to")
    twins = [message("a", message_id="m"), message("b", message_id="m")]
    world.do(c.Send("to", twins, via="q"))  # it looks for duplicates among its own messages only
    assert [body for body, *_ in world.not_transferred("q")] == ["a", "b"]
    assert world.send("q", "c", message_id="m") == [3]


# --- what older brokers have written --------------------------------------------------------------


def old(name: str) -> bytes:
    """What the broker wrote before it had transfer dead-letter queues: a queue `q` that forwards
    to `target`, which is disabled, with one message that was refused; a topic with a message."""
    return zlib.decompress((HERE / name).read_bytes())


def of_index() -> Namespace:
    return Namespace.load(old("index_version_4.zlib"))


def of_log() -> Namespace:
    namespace = Namespace()
    for change, _ in decode_group(old("log_of_index_version_4.zlib")):
        namespace.replay(change)
    return namespace


@pytest.mark.req("T20")
@pytest.mark.parametrize("opened", [of_index, of_log])
def test_fw7_what_an_older_broker_wrote_still_opens(opened: object) -> None:
    """Its entities have a transfer dead-letter queue like all others; what it dead-lettered stays
    where it is; and what is written now opens again."""
    assert callable(opened)
    namespace = opened()
    namespace.restart(10_000)
    assert namespace.find("q/$DeadLetterQueue").counts[0] == 1
    namespace.apply(c.Send("q", [message("refused now")]), 11_000)
    assert namespace.find(TRANSFER).counts[0] == 1
    assert namespace.find("t/Subscriptions/s").counts[0] == 1
    again = Namespace.load(b"".join(namespace.dump()))
    (shown,) = again.find(TRANSFER).browse(0, 10, None)
    assert shown.sequence_number == 2
    assert again.find("q").dead_letter_counts == (1, 1)


def test_the_transfer_dead_letter_queue_of_a_topic_has_a_lock_duration(world: World) -> None:
    """The default, as a topic has none to set."""
    world.topic("t")
    assert isinstance(world["t"].settings, TopicSettings)
    world.do(c.Send("nowhere", [message("a")], via="t"))
    delivery = world.receive_one("t/$Transfer/$DeadLetterQueue")
    assert delivery.locked_until_ms == world.now + MINUTE


def test_a_long_reason_of_a_receiver_is_cut(world: World) -> None:
    """It is any text, and stays below the limit of properties."""
    world.queue("q")
    world.send("q", "a")
    world.dead_letter("q", world.receive_one("q"), reason="x" * 10_000)
    ((_, reason, _),) = world.dead("q")
    assert reason == "x" * MAX_DEAD_LETTER_TEXT
