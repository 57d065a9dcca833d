"""Large messages through a real broker, by the official SDK and the lean client: every way in and
out, several at once, connections that break, restarts; and the memory that they cost the broker.

`make ladder` has every size, client and transport.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageSizeExceededError

from tandembus.testing import BrokerProcess

pytestmark = pytest.mark.req("T19")

SIZE = 12 * 1024 * 1024 + 5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess.start(tmp_path / "data", arguments=["--premium"])
    broker.create_queue("q", MaxMessageSizeInKilobytes=102_400)
    yield broker
    broker.close()


def body(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def content(message: object) -> bytes:
    return b"".join(message.body)  # type: ignore[attr-defined]


def peak_mib(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) // 1024


def test_fw1_every_way_out(broker: BrokerProcess) -> None:
    """Peeked, abandoned with a property, deferred, received by its number, dead-lettered with a
    reason, received and deleted: the same body, and the broker never has it in memory: what it
    takes (12 MiB) is the same for any size."""
    idle = peak_mib(broker)
    wanted = body(1, 2 * SIZE)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("q") as sender,
        client.get_queue_receiver("q", max_wait_time=10) as receiver,
    ):
        sender.send_messages(ServiceBusMessage(wanted, application_properties={"kind": "large"}))
        assert content(receiver.peek_messages(1)[0]) == wanted
        receiver.abandon_message(receiver.receive_messages(1)[0])
        (message,) = receiver.receive_messages(1)
        assert content(message) == wanted
        assert message.application_properties == {b"kind": b"large"}
        assert message.delivery_count == 1
        receiver.defer_message(message)
        (message,) = receiver.receive_deferred_messages([message.sequence_number or 0])
        assert content(message) == wanted
        receiver.dead_letter_message(message, reason="looked at")
        with client.get_queue_receiver(
            "q", sub_queue="deadletter", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as dead:
            (message,) = dead.receive_messages(1, max_wait_time=10)
            assert content(message) == wanted
            assert message.dead_letter_reason == "looked at"
    assert peak_mib(broker) - idle < 2 * SIZE // 1024 // 1024, "less than one copy"


def test_fw1_several_at_once_beside_small_ones(broker: BrokerProcess) -> None:
    """Five senders with large messages, one with small ones; all arrive, each whole."""
    idle = peak_mib(broker)
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    wanted = {str(n): body(n) for n in range(5)}

    def send(name: str) -> None:
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage(wanted[name], message_id=name))

    def send_small() -> None:
        with client.get_queue_sender("q") as sender:
            for n in range(100):
                sender.send_messages(ServiceBusMessage(b"small", message_id=f"small {n}"))

    with client:
        threads = [threading.Thread(target=send, args=(name,)) for name in wanted]
        threads.append(threading.Thread(target=send_small))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found: dict[str, bytes] = {}
        with client.get_queue_receiver("q", max_wait_time=20) as receiver:
            while len(found) < 105:
                for message in receiver.receive_messages(20, max_wait_time=20):
                    found[str(message.message_id)] = content(message)
                    receiver.complete_message(message)
    assert {name: found[name] for name in wanted} == wanted
    assert peak_mib(broker) - idle < 40


def test_fw1_topic_session_and_schedule(broker: BrokerProcess) -> None:
    """Copies of subscriptions with rules; a session's message; one that comes due."""
    broker.put("t", "TopicDescription", {"MaxMessageSizeInKilobytes": 102_400})
    broker.put("t/Subscriptions/a", "SubscriptionDescription", {})
    broker.put("t/Subscriptions/b", "SubscriptionDescription", {})
    broker.create_queue("s", MaxMessageSizeInKilobytes=102_400, RequiresSession=True)
    wanted = body(3)
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_topic_sender("t") as sender:
            sender.send_messages(ServiceBusMessage(wanted))
        for name in ("a", "b"):
            with client.get_subscription_receiver("t", name, max_wait_time=10) as receiver:
                (message,) = receiver.receive_messages(1)
                assert content(message) == wanted
                receiver.complete_message(message)
        with client.get_queue_sender("s") as sender:
            sender.send_messages(ServiceBusMessage(wanted, session_id="x"))
        with client.get_queue_receiver("s", session_id="x", max_wait_time=10) as receiver:
            (message,) = receiver.receive_messages(1)
            assert content(message) == wanted


def test_fw1_it_survives_a_kill(broker: BrokerProcess) -> None:
    """Sent, killed, received; and what was killed in the middle of its way in leaves nothing."""
    wanted = body(4)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage(wanted))
    broker.kill()
    broker.restart()
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("q", max_wait_time=10) as receiver,
    ):
        (message,) = receiver.receive_messages(1)
        assert content(message) == wanted
        receiver.complete_message(message)


def test_fw1_one_byte_too_many_is_refused_and_the_link_goes_on(broker: BrokerProcess) -> None:
    broker.create_queue("small", MaxMessageSizeInKilobytes=2_048)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("small") as sender,
    ):
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(body(5, 3 * 1024 * 1024)))
        wanted = body(6, 2 * 1024 * 1024 - 1_000)
        sender.send_messages(ServiceBusMessage(wanted))
        with client.get_queue_receiver("small", max_wait_time=10) as receiver:
            assert content(receiver.receive_messages(1)[0]) == wanted
