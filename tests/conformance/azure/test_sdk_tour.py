"""The official Python SDK, unmodified, against a real server process, as most programs use it.

The whole of the SDK's own test-suite is `make sdk-suite`; this is what every commit has to pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

sdk = pytest.importorskip("azure.servicebus")
from tandembus.testing import BrokerProcess  # noqa: E402 - after the SDK was found


def client_of(server: BrokerProcess) -> Any:
    return sdk.ServiceBusClient.from_connection_string(server.connection_string)


@pytest.fixture(scope="module")
def server() -> Iterator[BrokerProcess]:
    with BrokerProcess.start() as started:
        yield started
        assert started.stop() == 0, "Ctrl-C is a clean stop"


def test_send_receive_and_settle(server: BrokerProcess) -> None:
    """Single and batched sends; complete, abandon, defer, dead-letter; each read back."""
    server.create_queue("orders")
    with client_of(server) as client:
        with client.get_queue_sender("orders") as sender:
            message = sdk.ServiceBusMessage("first", application_properties={"colour": "red"})
            sender.send_messages(message)
            sender.send_messages([sdk.ServiceBusMessage(f"m{n}") for n in range(3)])
        with client.get_queue_receiver("orders", max_wait_time=2) as receiver:
            got = receiver.receive_messages(max_message_count=4, max_wait_time=5)
            assert [str(each) for each in got] == ["first", "m0", "m1", "m2"]
            assert [each.sequence_number for each in got] == [1, 2, 3, 4]
            assert got[0].application_properties == {b"colour": b"red"}
            receiver.complete_message(got[0])
            receiver.dead_letter_message(got[1], reason="why", error_description="because")
            receiver.defer_message(got[2])
            receiver.abandon_message(got[3])
            (again,) = receiver.receive_messages(max_wait_time=5)
            assert (str(again), again.delivery_count) == ("m2", 1)
            receiver.complete_message(again)
            (deferred,) = receiver.receive_deferred_messages(3)
            assert str(deferred) == "m1"
            receiver.complete_message(deferred)
            assert receiver.peek_messages(10, sequence_number=1) == []
        with client.get_queue_receiver("orders", sub_queue="deadletter") as receiver:
            (dead,) = receiver.receive_messages(max_wait_time=5)
            assert (str(dead), dead.dead_letter_reason) == ("m0", "why")
            assert dead.dead_letter_error_description == "because"
            receiver.complete_message(dead)


def test_sessions(server: BrokerProcess) -> None:
    """In order, with a state, for one holder at a time."""
    server.create_queue("talks", RequiresSession=True)
    with client_of(server) as client:
        with client.get_queue_sender("talks") as sender:
            sender.send_messages([sdk.ServiceBusMessage(f"a{n}", session_id="a") for n in range(3)])
        with client.get_queue_receiver("talks", session_id="a", max_wait_time=2) as receiver:
            assert receiver.session.get_state() is None
            receiver.session.set_state(b"half way")
            got = receiver.receive_messages(max_message_count=3, max_wait_time=5)
            assert [str(each) for each in got] == ["a0", "a1", "a2"]
            for each in got:
                receiver.complete_message(each)
        with client.get_queue_receiver("talks", session_id="a", max_wait_time=2) as receiver:
            assert receiver.session.get_state() == b"half way"


def test_receive_and_delete_keeps_its_session(server: BrokerProcess) -> None:
    """Nothing is locked that could be lost, so a wait longer than the lock does not end it."""
    server.create_queue("taken", LockDuration="PT5S", RequiresSession=True)
    with client_of(server) as client:
        with client.get_queue_sender("taken") as sender:
            sender.send_messages(sdk.ServiceBusMessage("one", session_id="s"))
        mode = sdk.ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with client.get_queue_receiver(
            "taken", session_id="s", receive_mode=mode, max_wait_time=6
        ) as receiver:
            assert [str(message) for message in receiver] == ["one"]


def test_schedule_and_cancel(server: BrokerProcess) -> None:
    """A scheduled message comes at its time and not before; a cancelled one does not come."""
    server.create_queue("later")
    soon = datetime.now(UTC) + timedelta(seconds=2)
    with client_of(server) as client:
        with client.get_queue_sender("later") as sender:
            numbers = sender.schedule_messages(
                [sdk.ServiceBusMessage("kept"), sdk.ServiceBusMessage("cancelled")], soon
            )
            sender.cancel_scheduled_messages(numbers[1])
        with client.get_queue_receiver("later", max_wait_time=4) as receiver:
            (came,) = receiver.receive_messages(max_message_count=2, max_wait_time=6)
            assert str(came) == "kept"
            assert came.enqueued_time_utc >= soon.replace(
                microsecond=soon.microsecond // 1000 * 1000
            )
            receiver.complete_message(came)


def test_what_is_refused_is_said_in_the_sdks_words(server: BrokerProcess) -> None:
    """An unknown queue, a message that is too large (T18)."""
    errors = pytest.importorskip("azure.servicebus.exceptions")
    server.create_queue("small")
    with client_of(server) as client, client.get_queue_sender("small") as sender:
        with pytest.raises(errors.MessageSizeExceededError):
            sender.send_messages(sdk.ServiceBusMessage("x" * 300_000))
        sender.send_messages(sdk.ServiceBusMessage("fits"))
