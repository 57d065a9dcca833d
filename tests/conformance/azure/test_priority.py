"""Priorities and rates beside the official SDK, unmodified: its administration client passes over
Tandem's own settings without harming them, its senders wait when they are told to, and its
receivers get the highest first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

sdk = pytest.importorskip("azure.servicebus")

from azure.servicebus import exceptions as e  # noqa: E402 - after the SDK was found
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader  # noqa: E402
from azure.servicebus.management import ServiceBusAdministrationClient  # noqa: E402

from tandembus.client import Client, OutgoingMessage  # noqa: E402
from tandembus.core.state import State  # noqa: E402
from tandembus.errors import ArgumentError, MessageNotFoundError, ServerBusyError  # noqa: E402
from tandembus.testing import LocalBroker  # noqa: E402
from tests.conformance.azure.admin_server import make_certificate  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
RULES = "2: tier = 'paying'\n1: tier = 'trial' OR size > 3"
RICH = {
    "PriorityLevels": "3",
    "PrioritySource": "rules",
    "PriorityRules": RULES,
    "PriorityAgingSeconds": "90.5",
    "PriorityWeights": "1 2 4",
    "RateLimit": "1000/s burst 5000",
    "SenderRateLimit": "100/s",
    "TenantRateLimit": "6/min",
    "TenantProperty": "customer",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key = make_certificate(folder)
    with LocalBroker.start(certificate=certificate, private_key=key) as started:
        started.certificate = certificate  # type: ignore[attr-defined]
        yield started


@pytest.fixture
def lean(broker: LocalBroker) -> Iterator[Client]:
    with Client(broker.connection_string) as client:
        yield client


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[Any]:
    string = broker.connection_string
    with sdk.ServiceBusClient.from_connection_string(string, retry_total=0) as opened:
        yield opened


@pytest.fixture
def admin(broker: LocalBroker) -> Iterator[Any]:
    string = ";".join(
        part
        for part in broker.connection_string.split(";")
        if not part.startswith("UseDevelopmentEmulator")
    )
    certificate: Path = broker.certificate  # type: ignore[attr-defined]
    with ServiceBusAdministrationClient.from_connection_string(
        string, connection_verify=str(certificate), retry_total=0
    ) as opened:
        yield opened


def extensions(settings: Any) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key in RICH}


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.req("P1", "P2", "P3", "P10", "C2")
def test_an_sdk_that_does_not_know_them_does_no_harm(lean: Client, admin: Any) -> None:
    """Created by the lean client; read, listed and updated by the official one, which shows all it
    knows and leaves the rest as it was."""
    created = lean.entities.create_queue("rich", LockDuration="PT30S", **RICH)
    assert extensions(created.settings) == RICH
    queue = admin.get_queue("rich")
    assert queue.lock_duration == timedelta(seconds=30)
    assert "rich" in [each.name for each in admin.list_queues()]
    assert admin.get_queue_runtime_properties("rich").total_message_count == 0
    queue.max_delivery_count = 3
    admin.update_queue(queue)
    after = lean.entities.get_queue("rich").settings
    assert after["MaxDeliveryCount"] == "3"
    assert extensions(after) == RICH
    (listed,) = [each for each in lean.entities.list_queues() if each.name == "rich"]
    assert extensions(listed.settings) == RICH


@pytest.mark.req("P1", "C2")
def test_of_topics_and_subscriptions(lean: Client, admin: Any) -> None:
    """Rates are the topic's, priorities the subscription's; the others are refused by name."""
    lean.entities.create_topic("news", RateLimit="5/s")
    lean.entities.create_subscription("news", "all", PriorityLevels=4, PriorityAgingSeconds=60)
    topic, subscription = admin.get_topic("news"), admin.get_subscription("news", "all")
    topic.user_metadata, subscription.user_metadata = "a", "b"
    admin.update_topic(topic)
    admin.update_subscription("news", subscription)
    assert lean.entities.get_topic("news").settings["RateLimit"] == "5/s"
    settings = lean.entities.get_subscription("news", "all").settings
    assert settings["UserMetadata"] == "b"
    assert (settings["PriorityLevels"], settings["PrioritySource"]) == ("4", "header")
    assert settings["PriorityAgingSeconds"] == "60"
    with pytest.raises(ArgumentError, match="'PriorityLevels' is not an extension here"):
        lean.entities.create_topic("no", PriorityLevels=3)
    with pytest.raises(ArgumentError, match="'RateLimit' is not an extension here"):
        lean.entities.create_subscription("news", "no", RateLimit="1/s")


@pytest.mark.req("P1", "P10")
def test_an_update_that_knows_them_changes_them(lean: Client) -> None:
    """One by one, taken away by None, and all at once by one level."""
    lean.entities.create_queue("changing", PriorityLevels=3, RateLimit="10/s")
    lean.entities.update_queue("changing", PriorityAgingSeconds=5, RateLimit=None)
    settings = lean.entities.get_queue("changing").settings
    assert settings["PriorityAgingSeconds"] == "5"
    assert settings["PriorityLevels"] == "3"
    assert "RateLimit" not in settings
    lean.entities.update_queue("changing", PriorityLevels=1)
    settings = lean.entities.get_queue("changing").settings
    assert not [name for name in settings if name.startswith("Priority")]


@pytest.mark.req("P2", "P10")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"PriorityLevels": 99}, "PriorityLevels"),
        ({"PriorityRules": "1: tier = "}, "near|expected|end|filter"),
        ({"RateLimit": "fast"}, "RateLimit"),
        ({"TenantProperty": "customer"}, "TenantProperty"),
    ],
)
def test_what_is_wrong_is_refused(lean: Client, settings: Any, named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        lean.entities.create_queue("wrong", **settings)


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.req("P1")
def test_the_highest_is_received_first(lean: Client, client: Any) -> None:
    """By the header's priority, which this SDK sends with the AMQP form of a message."""
    lean.entities.create_queue("urgent", PriorityLevels=10)
    with client.get_queue_sender("urgent") as sender:
        for body, priority in (("a", 1), ("b", 9), ("c", 4), ("d", 9)):
            header = AmqpMessageHeader(priority=priority)
            sender.send_messages(AmqpAnnotatedMessage(data_body=[body.encode()], header=header))
    with client.get_queue_receiver("urgent", max_wait_time=5) as receiver:
        received = [str(message) for message in receiver.receive_messages(4)]
    assert received == ["b", "d", "c", "a"]


@pytest.mark.req("P1")
@pytest.mark.parametrize("prefetch", [0, 4])
def test_what_is_handed_out_early_is_bounded_by_credit(
    broker: LocalBroker, lean: Client, prefetch: int
) -> None:
    """A high message passes every low one but those that the receiver had asked for before: none
    without prefetch. With credit, it always gets the highest that there is at that moment."""
    assert broker.server is not None
    name = f"prefetched-{prefetch}"
    lean.entities.create_queue(name, PriorityLevels=2, PriorityProperty="level")
    with lean.sender(name) as sender:
        sender.send_all([b"low"] * 9).check()
        with lean.receiver(name, prefetch=prefetch) as receiver:
            counts = broker.server.broker.namespace.find(name).counts
            deadline = time.monotonic() + 60
            while counts[State.LOCKED] < prefetch and time.monotonic() < deadline:
                time.sleep(0.001)
            sender.send(OutgoingMessage(b"high", properties={"level": 1}))
            bodies = [receiver.receive(1)[0].body for _ in range(10)]
    assert bodies.index(b"high") == prefetch


@pytest.mark.req("P1", "P2")
def test_a_waiting_message_gets_another_level(broker: LocalBroker, lean: Client) -> None:
    """At once, for everybody, and still after a restart; what does not wait has none to change."""
    lean.entities.create_queue("changed", PriorityProperty="level", PriorityLevels=3)
    with lean.sender("changed") as sender:
        sender.send_all([b"a", b"b", b"c"]).check()
    lean.change_priority(3, 2, "changed")
    lean.change_priority(2, 1, "changed")
    with pytest.raises(MessageNotFoundError):
        lean.change_priority(4, 1, "changed")
    with pytest.raises(ArgumentError, match="0 to 2, not 3"):
        lean.change_priority(1, 3, "changed")
    broker.stop()
    broker.restart()
    with Client(broker.connection_string) as again, again.receiver("changed") as receiver:
        received = receiver.receive(3)
        assert [message.body for message in received] == [b"c", b"b", b"a"]
        with pytest.raises(MessageNotFoundError):
            again.change_priority(3, 1, "changed")


def test_the_page(broker: LocalBroker, tmp_path: Path) -> None:
    """The program of docs/priority.md does what it says."""
    page = (ROOT / "docs" / "priority.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (program,) = [each for each in programs if "create_queue" in each]
    path = tmp_path / "program.py"
    path.write_text(f"connection_string = {broker.connection_string!r}\n{program}")
    found = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (found.stdout, found.stderr) == ("[b'free', b'paying', b'trial']\n", "")


# --- rates ----------------------------------------------------------------------------------------


@pytest.mark.req("P10", "T1")
def test_the_sdk_is_told_to_wait(broker: LocalBroker, lean: Client, client: Any) -> None:
    """Its own exception for it, with the time in the text; once the time has passed, the same send
    is taken. Sequence numbers have no gap."""
    lean.entities.create_queue("slow", RateLimit="1/h burst 2")
    with client.get_queue_sender("slow") as sender:
        sender.send_messages([sdk.ServiceBusMessage("a"), sdk.ServiceBusMessage("b")])
        with pytest.raises(e.ServiceBusServerBusyError, match=r"50009.*Please wait \d+") as caught:
            sender.send_messages(sdk.ServiceBusMessage("c"))
        assert "TrackingId" in str(caught.value)
        with pytest.raises(e.ServiceBusServerBusyError, match="Please wait"):
            sender.schedule_messages(sdk.ServiceBusMessage("c"), broker.clock.now())
        broker.clock.advance(hours=1)
        sender.send_messages(sdk.ServiceBusMessage("c"))
    received = lean.browse("slow")
    assert [(each.body, each.sequence_number) for each in received] == [
        (b"a", 1),
        (b"b", 2),
        (b"c", 3),
    ]


@pytest.mark.req("P10")
def test_the_sdk_tries_again_by_itself(broker: LocalBroker, lean: Client) -> None:
    """What is refused as retryable succeeds in a later attempt, without a word to the user."""
    lean.entities.create_queue("patient", RateLimit="2/s burst 1")
    with (
        sdk.ServiceBusClient.from_connection_string(
            broker.connection_string, retry_total=50, retry_backoff_factor=0.1, retry_mode="fixed"
        ) as client,
        client.get_queue_sender("patient") as sender,
    ):
        for number in range(3):
            sender.send_messages(sdk.ServiceBusMessage(str(number)))
    with lean.receiver("patient") as receiver:
        assert [message.body for message in receiver.receive(9)] == [b"0", b"1", b"2"]
    condition = "com.microsoft:server-busy"
    assert broker.server is not None
    assert broker.server.broker.engine.engine.metrics.refused[condition] >= 2


@pytest.mark.req("P10")
def test_a_program_can_read_how_long(broker: LocalBroker, lean: Client) -> None:
    """In the error's info: on a link and in a reply of $management."""
    lean.entities.create_queue("told", RateLimit="1/min")
    with lean.sender("told") as sender:
        sender.send(b"a")
        with pytest.raises(ServerBusyError, match="takes 1/min") as caught:
            sender.send(b"b")
        assert 50_000 < caught.value.retry_after_ms <= 60_000
    with pytest.raises(ServerBusyError) as caught:
        lean.schedule([b"c"], 0, "told")
    assert 50_000 < caught.value.retry_after_ms <= 60_000


@pytest.mark.req("P10")
def test_a_sender_is_whoever_has_the_key(broker: LocalBroker, lean: Client) -> None:
    """Two connections with one key are one sender, another key is another one."""
    lean.entities.create_queue("shared", SenderRateLimit="2/h")
    with Client(broker.connection_string) as other:
        for client in (lean, other):
            with client.sender("shared") as sender:
                sender.send(b"a")
        with other.sender("shared") as sender, pytest.raises(ServerBusyError, match="RootManage"):
            sender.send(b"c")
