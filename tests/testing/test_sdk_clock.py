"""An hour in no time, with the official SDK: a lock of 60 s, a schedule of 1 h, a life of 1 day.

Nothing here waits for the clock of the wall: what a test moves has happened when `advance` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tandembus.testing import LocalBroker, LocalNamespace

sdk = pytest.importorskip("azure.servicebus")
aio = pytest.importorskip("azure.servicebus.aio")


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as running:
        yield running


@pytest.fixture
def namespace(broker: LocalBroker) -> Iterator[LocalNamespace]:
    with broker.namespace() as fresh:
        yield fresh


@pytest.mark.req("T6", "T7", "T11", "S8", "T13")
def test_a_lock_a_schedule_and_a_life(namespace: LocalNamespace) -> None:
    """Each ends when the test says so, and not a minute before."""
    namespace.create_queue("q", LockDuration="PT1M")
    with sdk.ServiceBusClient.from_connection_string(namespace.connection_string) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages(
                [
                    sdk.ServiceBusMessage("work"),
                    sdk.ServiceBusMessage("short-lived", time_to_live=timedelta(days=1)),
                ]
            )
            due = namespace.clock.now() + timedelta(hours=1)
            sender.schedule_messages(sdk.ServiceBusMessage("later"), due)
        with client.get_queue_receiver("q", max_wait_time=10) as receiver:
            (first,) = receiver.receive_messages()
            namespace.clock.advance(seconds=59)
            assert receiver.peek_messages(sequence_number=1)[0].delivery_count == 0
            namespace.clock.advance(seconds=1)
            (again,) = receiver.receive_messages()
            assert (str(again), again.delivery_count) == ("work", 1)
            with pytest.raises(sdk.exceptions.MessageLockLostError):
                receiver.complete_message(first)
            receiver.complete_message(again)

            namespace.clock.advance(minutes=58)
            states = [each.state for each in receiver.peek_messages(5, sequence_number=1)]
            active, scheduled = (
                sdk.ServiceBusMessageState.ACTIVE,
                sdk.ServiceBusMessageState.SCHEDULED,
            )
            assert states == [active, scheduled]
            namespace.clock.advance(minutes=1)
            came = receiver.peek_messages(5, sequence_number=1)
            assert [str(each) for each in came] == ["short-lived", "later"]
            assert came[1].enqueued_time_utc >= due - timedelta(milliseconds=1)

            namespace.clock.advance(hours=22, minutes=58)
            assert len(receiver.peek_messages(5, sequence_number=1)) == 2
            namespace.clock.advance(minutes=2)
            (left,) = receiver.peek_messages(5, sequence_number=1)
            assert str(left) == "later"


@pytest.mark.req("T6", "S8", "T13")
def test_all_three_with_asyncio(namespace: LocalNamespace) -> None:
    """The clock is moved in a thread: it waits for the broker, and the loop must go on."""
    namespace.create_queue("q", LockDuration="PT1M")

    async def run() -> None:
        client = aio.ServiceBusClient.from_connection_string(namespace.connection_string)
        async with client, client.get_queue_sender("q") as sender:
            await sender.send_messages(
                [
                    sdk.ServiceBusMessage("work"),
                    sdk.ServiceBusMessage("short-lived", time_to_live=timedelta(days=1)),
                ]
            )
            due = await asyncio.to_thread(namespace.clock.now) + timedelta(hours=1)
            await sender.schedule_messages(sdk.ServiceBusMessage("later"), due)
            async with client.get_queue_receiver("q", max_wait_time=10) as receiver:
                (first,) = await receiver.receive_messages()
                assert str(first) == "work"
                await asyncio.to_thread(namespace.clock.advance, minutes=1)
                (again,) = await receiver.receive_messages()
                assert (str(again), again.delivery_count) == ("work", 1)
                await receiver.complete_message(again)
                await asyncio.to_thread(namespace.clock.advance, days=1)
                (left,) = await receiver.receive_messages(max_message_count=5)
                assert str(left) == "later"
                await receiver.complete_message(left)

    asyncio.run(run())
