"""Every limit exceeded is the SDK's own exception for it, and nothing is lost (T18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

sdk = pytest.importorskip("azure.servicebus")

from azure.servicebus import exceptions as e  # noqa: E402 - after the SDK was found

from tandembus.client import Client  # noqa: E402
from tandembus.testing import LocalBroker  # noqa: E402

pytestmark = pytest.mark.req("T18")


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as started:
        started.create_queue("orders")
        started.create_queue("talks", RequiresSession=True)
        started.create_queue("off", Status="Disabled")
        started.create_queue("full")
        started.create_topic("news")
        started.create_subscription("news", "all")
        yield started


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[Any]:
    string = broker.connection_string
    with sdk.ServiceBusClient.from_connection_string(string, retry_total=0) as opened:
        yield opened


def send(client: Any, queue: str, *messages: Any) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(list(messages))


def drained(client: Any, queue: str) -> list[str]:
    """What is there, received and completed."""
    found = []
    with client.get_queue_receiver(queue, max_wait_time=1) as receiver:
        for message in receiver:
            found.append(str(message))
            receiver.complete_message(message)
    return found


def test_a_message_that_is_too_large(client: Any) -> None:
    send(client, "orders", sdk.ServiceBusMessage("before"))
    with client.get_queue_sender("orders") as sender:
        with pytest.raises(e.MessageSizeExceededError):
            sender.send_messages(sdk.ServiceBusMessage(b"x" * 2_000_000))
        sender.send_messages(sdk.ServiceBusMessage("after"))
    assert drained(client, "orders") == ["before", "after"]


def test_a_queue_that_is_full(broker: LocalBroker, client: Any) -> None:
    """What was taken before stays, and room that is made can be used."""
    assert broker.server is not None
    queue = broker.server.broker.namespace.find("full")
    queue.max_bytes = 3_000  # a gigabyte would take a while
    send(client, "full", *(sdk.ServiceBusMessage(str(n) * 900) for n in range(3)))
    with pytest.raises(e.ServiceBusQuotaExceededError, match=r"maximum entity size.*TrackingId"):
        send(client, "full", sdk.ServiceBusMessage("y" * 900))
    assert [text[0] for text in drained(client, "full")] == ["0", "1", "2"]
    send(client, "full", sdk.ServiceBusMessage("z"))
    assert drained(client, "full") == ["z"]


@pytest.mark.parametrize(
    ("error", "attempt"),
    [
        # The token for an entity that is not there is refused with 404, as on Azure (WIRE.md §0);
        # the SDK for Python makes this of it.
        (e.ServiceBusAuthenticationError, lambda c: send(c, "nowhere", sdk.ServiceBusMessage("x"))),
        (e.ServiceBusAuthenticationError, lambda c: drained(c, "nowhere")),
        (e.MessagingEntityDisabledError, lambda c: send(c, "off", sdk.ServiceBusMessage("x"))),
        (e.MessagingEntityDisabledError, lambda c: drained(c, "off")),
        (e.ServiceBusError, lambda c: send(c, "talks", sdk.ServiceBusMessage("no session"))),
    ],
    ids=["send nowhere", "receive nowhere", "send off", "receive off", "no session id"],
)
def test_an_entity_that_cannot(
    client: Any, error: type[Exception], attempt: Callable[[Any], object]
) -> None:
    with pytest.raises(error):
        attempt(client)


def test_an_entity_that_goes_away(broker: LocalBroker, client: Any) -> None:
    broker.create_queue("brief")
    with client.get_queue_sender("brief") as sender:
        sender.send_messages(sdk.ServiceBusMessage("x"))
        Client(broker.connection_string).entities.delete_queue("brief")
        with pytest.raises((e.MessagingEntityNotFoundError, e.ServiceBusAuthenticationError)):
            sender.send_messages(sdk.ServiceBusMessage("y"))


def test_a_key_that_is_wrong(broker: LocalBroker) -> None:
    string = broker.connection_string.replace(broker.key, "bm90IHRoZSBrZXk=")
    client = sdk.ServiceBusClient.from_connection_string(string, retry_total=0)
    with client, pytest.raises(e.ServiceBusAuthenticationError):
        send(client, "orders", sdk.ServiceBusMessage("x"))


def test_a_lock_that_ran_out(broker: LocalBroker, client: Any) -> None:
    """The message is there again, with its delivery counted."""
    send(client, "orders", sdk.ServiceBusMessage("slow"))
    with client.get_queue_receiver("orders", max_wait_time=2) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=5)
        broker.clock.advance(minutes=2)
        with pytest.raises(e.MessageLockLostError):
            receiver.complete_message(message)
    with client.get_queue_receiver("orders", max_wait_time=2) as receiver:
        (again,) = receiver.receive_messages(max_wait_time=5)
        assert (str(again), again.delivery_count) == ("slow", 1)
        receiver.complete_message(again)
        with pytest.raises(e.MessageAlreadySettled):
            receiver.complete_message(again)


def test_a_message_that_is_not_deferred(client: Any) -> None:
    receiver = client.get_queue_receiver("orders", max_wait_time=1)
    with receiver, pytest.raises(e.MessageNotFoundError):
        receiver.receive_deferred_messages(99_999)


def test_sessions_that_cannot_be_had(client: Any) -> None:
    """One that somebody holds; and none at all, in the time that the receiver gives it."""
    send(client, "talks", sdk.ServiceBusMessage("x", session_id="a"))
    with client.get_queue_receiver("talks", session_id="a", max_wait_time=2) as holder:
        (message,) = holder.receive_messages(max_wait_time=5)
        other = client.get_queue_receiver("talks", session_id="a")
        with pytest.raises(e.SessionCannotBeLockedError), other:
            other.receive_messages(max_wait_time=1)
        holder.complete_message(message)
    with (
        pytest.raises(e.OperationTimeoutError),
        client.get_queue_receiver(
            "talks", session_id=sdk.NEXT_AVAILABLE_SESSION, max_wait_time=1
        ) as nobody,
    ):
        nobody.receive_messages(max_wait_time=1)


def test_a_session_that_was_lost(broker: LocalBroker, client: Any) -> None:
    send(client, "talks", sdk.ServiceBusMessage("x", session_id="b"))
    with client.get_queue_receiver("talks", session_id="b", max_wait_time=2) as holder:
        (message,) = holder.receive_messages(max_wait_time=5)
        broker.clock.advance(minutes=6)
        with pytest.raises(e.SessionLockLostError):
            holder.session.renew_lock()
        with pytest.raises(e.SessionLockLostError):
            holder.complete_message(message)
    with client.get_queue_receiver("talks", session_id="b", max_wait_time=2) as holder:
        (message,) = holder.receive_messages(max_wait_time=5)
        assert str(message) == "x"
        holder.complete_message(message)


@pytest.mark.req("T17")
@pytest.mark.parametrize("size", [100, 1_000])
def test_a_batch_that_the_sdk_calls_full_is_taken(
    broker: LocalBroker, client: Any, size: int
) -> None:
    """The loop of every sample: add until ValueError, send. The SDK counts without the envelope."""
    queue = f"filled-{size}"
    broker.create_queue(queue)
    added = 0
    with client.get_queue_sender(queue) as sender:
        batch = sender.create_message_batch()
        with suppress(ValueError):
            while True:
                message = sdk.ServiceBusMessage(b"x" * size, message_id=f"{size}-{added:09}")
                batch.add_message(message)
                added += 1
        sender.send_messages(batch)
    with Client(broker.connection_string) as lean:
        assert sum(1 for _ in lean.browse_all(queue)) == added
