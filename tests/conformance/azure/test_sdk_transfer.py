"""Transfer dead-letter queues with the official SDK, unmodified (T20): its sub-queue, its runtime
counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sdk = pytest.importorskip("azure.servicebus")

from azure.servicebus.management import ServiceBusAdministrationClient  # noqa: E402

from tandembus.testing import LocalBroker  # noqa: E402
from tests.conformance.azure.admin_server import make_certificate  # noqa: E402

pytestmark = pytest.mark.req("T20")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalBroker, Path]]:
    certificate, key = make_certificate(tmp_path_factory.mktemp("certificate"))
    with LocalBroker.start(certificate=certificate, private_key=key) as started:
        yield started, certificate


def test_fw7_the_sdk_receives_what_could_not_be_forwarded(
    broker: tuple[LocalBroker, Path],
) -> None:
    """From a queue and from a subscription: `ServiceBusSubQueue.TRANSFER_DEAD_LETTER`."""
    server, certificate = broker
    text = server.connection_string
    admin = ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=str(certificate)
    )
    admin.create_queue("target")
    admin.create_queue("source", forward_to="target")
    admin.create_topic("events")
    admin.create_subscription("events", "all", forward_to="target")
    target = admin.get_queue("target")
    target.status = "SendDisabled"
    admin.update_queue(target)
    client: Any = sdk.ServiceBusClient.from_connection_string(
        text, connection_verify=str(certificate)
    )
    where = sdk.ServiceBusSubQueue.TRANSFER_DEAD_LETTER
    with client:
        with client.get_queue_sender("source") as sender:
            sender.send_messages([sdk.ServiceBusMessage(f"m{n}") for n in range(2)])
        with client.get_topic_sender("events") as sender:
            sender.send_messages(sdk.ServiceBusMessage("copy"))
        info = admin.get_queue_runtime_properties("source")
        counts = (info.active_message_count, info.dead_letter_message_count)
        assert counts == (info.transfer_message_count, 0) == (0, 0)
        assert (info.transfer_dead_letter_message_count, info.total_message_count) == (2, 2)
        shown = admin.get_subscription_runtime_properties("events", "all")
        assert shown.transfer_dead_letter_message_count == 1
        with client.get_queue_receiver("source", sub_queue=where) as receiver:
            assert [str(each) for each in receiver.peek_messages(5)] == ["m0", "m1"]
            first, *_ = receiver.receive_messages(max_message_count=1, max_wait_time=5)
            assert first.dead_letter_reason == "MessagingEntityDisabled"
            assert "'target'" in first.dead_letter_error_description
            receiver.complete_message(first)
        with client.get_queue_receiver("source", sub_queue="deadletter") as receiver:
            assert receiver.peek_messages(5) == []
        with client.get_subscription_receiver("events", "all", sub_queue=where) as receiver:
            (copy,) = receiver.receive_messages(max_wait_time=5)
            assert str(copy) == "copy"
            receiver.complete_message(copy)
    assert admin.get_queue_runtime_properties("source").transfer_dead_letter_message_count == 1
