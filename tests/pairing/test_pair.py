"""Paired namespaces over two real brokers, asyncio and blocking (N1 to N8, N10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusSender,
)
from azure.servicebus.aio import ServiceBusSender as AsyncServiceBusSender
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from tandembus.client import Client
from tandembus.errors import ArgumentError
from tandembus.pairing import (
    AzureAdministration,
    BacklogMessageSizeError,
    BacklogUnavailableError,
    EntityChanged,
    Health,
    Namespace,
    PairedSender,
    PairFaultedError,
    PairingOptions,
    Probe,
    SideFaulted,
    pair_namespace,
    probing,
)
from tandembus.pairing import aio as paired_aio
from tandembus.pairing.options import BACKLOG_SETTINGS
from tandembus.pairing.probing import ping
from tandembus.testing import BrokerProcess, LocalBroker
from tests.client.certificates import make as make_certificate
from tests.pairing.turnstile import Turnstile, Way

AT_ONCE = PairingOptions(
    backlog_queue_count=2,
    failover_interval=timedelta(),
    ping_primary_interval=timedelta(milliseconds=300),
    client_options={"retry_total": 0},
    send_timeout=timedelta(seconds=20),
)
PATIENCE_S = 60


def options(**changes: Any) -> PairingOptions:
    settings = {name: getattr(AT_ONCE, name) for name in AT_ONCE.__slots__}
    return PairingOptions(**{**settings, **changes})


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


async def eventually_so(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


def received(broker: LocalBroker, queue: str, count: int, **how: Any) -> list[Any]:
    """What the queue has, completed."""
    found: list[ServiceBusReceivedMessage] = []
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue, **how) as receiver,
    ):
        while len(found) < count:
            some = receiver.receive_messages(count - len(found), max_wait_time=PATIENCE_S)
            assert some, f"{len(found)} of {count} came"
            for message in some:
                receiver.complete_message(message)
            found += some
    return found


def depth(broker: LocalBroker, queue: str) -> int:
    return Client(broker.connection_string).entities.get_queue(queue).counts["ActiveMessageCount"]


def backlog(broker: LocalBroker, count: int = 2) -> int:
    return sum(depth(broker, f"localhost/x-servicebus-transfer/{n}") for n in range(count))


# --- N1, N2 ---------------------------------------------------------------------------------------


@pytest.mark.req("N1")
@pytest.mark.req("N2")
def test_backlog_queues_are_made(primary: LocalBroker, secondary: LocalBroker) -> None:
    """With the names and the settings of N2; one that exists is left as it is, even if it differs;
    extra ones stay."""
    entities = Client(secondary.connection_string).entities
    entities.create_queue("contoso/x-servicebus-transfer/1", LockDuration="PT30S")
    entities.create_queue("contoso/x-servicebus-transfer/7")
    chosen = options(primary_name="contoso", backlog_queue_count=3)
    with pair_namespace(primary.connection_string, secondary.connection_string, chosen):
        names = sorted(each.name for each in entities.list_queues())
    assert names == [f"contoso/x-servicebus-transfer/{n}" for n in (0, 1, 2, 7)]
    made = entities.get_queue(names[0]).settings
    shown = {name: made[name] for name in BACKLOG_SETTINGS}
    assert shown == {
        "MaxSizeInMegabytes": "5120",
        "MaxDeliveryCount": "2147483647",
        "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
        "AutoDeleteOnIdle": "P10675199DT2H48M5.4775807S",
        "LockDuration": "PT1M",
        "DeadLetteringOnMessageExpiration": "true",
        "EnableBatchedOperations": "true",
    }
    assert made["RequiresSession"] == made["RequiresDuplicateDetection"] == "false"
    assert entities.get_queue(names[1]).settings["LockDuration"] == "PT30S"
    with pair_namespace(primary.connection_string, secondary.connection_string, chosen):
        assert len(entities.list_queues()) == 4, "nothing new, nothing gone"


@pytest.mark.req("N1")
@pytest.mark.req("N2")
def test_other_ways_to_reach_them(primary: LocalBroker, tmp_path: Path) -> None:
    """Who has no connection strings gives factories for clients, and the SDK's administration
    client, which is over TLS only."""
    certificate, key = make_certificate(tmp_path)
    primary.create_queue("orders")
    with LocalBroker.start(certificate=certificate, private_key=key) as secondary:
        inside_tls = secondary.connection_string.replace(";UseDevelopmentEmulator=true", "")
        administration = ServiceBusAdministrationClient.from_connection_string(
            inside_tls, connection_verify=str(certificate)
        )

        def connect(**more: Any) -> ServiceBusClient:
            return ServiceBusClient.from_connection_string(secondary.connection_string, **more)

        second = Namespace("b", connect, administration=AzureAdministration(administration))
        chosen = options(primary_name="contoso", backlog_queue_count=1)
        with administration, pair_namespace(primary.connection_string, second, chosen) as bus:
            made = administration.get_queue("contoso/x-servicebus-transfer/0")
            assert made.max_delivery_count == BACKLOG_SETTINGS["MaxDeliveryCount"]
            assert made.max_size_in_megabytes == 5120
            assert made.lock_duration == timedelta(minutes=1)
            assert made.dead_lettering_on_message_expiration
            bus.engage("orders", hold=True)
            with bus.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("x"))
            assert second.administration is not None
            assert second.administration.depth(made.name).waiting == 1
            assert not second.administration.ensure_queue(made.name)


def test_strings_of_one_entity(primary: LocalBroker, secondary: LocalBroker) -> None:
    """Are of no use to a pair, and it says so."""
    with pytest.raises(ArgumentError, match="EntityPath"):
        pair_namespace(f"{primary.connection_string}EntityPath=q", secondary.connection_string)
    with pytest.raises(ValueError, match="at least one secondary"):
        pair_namespace(primary.connection_string, [])


def test_it_has_what_the_sdks_sender_has(primary: LocalBroker, secondary: LocalBroker) -> None:
    """Every call and property, of both halves of the SDK."""
    for mine, theirs in (
        (PairedSender, ServiceBusSender),
        (paired_aio.PairedSender, AsyncServiceBusSender),
    ):
        public = {name for name in dir(theirs) if not name.startswith("_")}
        assert public <= set(dir(mine)), public - set(dir(mine))
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        sender = bus.get_queue_sender("orders", client_identifier="me")
        assert sender.client_identifier == "me"
        assert sender.fully_qualified_namespace == primary.address
        assert sender.entity_name == "orders"


# --- N3 to N8 -------------------------------------------------------------------------------------


@pytest.mark.req("N3")
def test_healthy(primary: LocalBroker, secondary: LocalBroker) -> None:
    """Nothing changes: every message goes the straight way, and the secondary is not spoken to."""
    primary.create_queue("orders")
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        secondary.stop()
        with bus.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("one"))
            sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
            batch = sender.create_message_batch()
            batch.add_message(ServiceBusMessage("four"))
            sender.send_messages(batch)
            (number,) = sender.schedule_messages(
                ServiceBusMessage("never"), datetime.now(UTC) + timedelta(hours=1)
            )
            sender.cancel_scheduled_messages(number)
            sender.send_messages([])
        operations = bus.ledger.total()
    assert (operations.primary_sends, operations.total) == (5, 0)
    assert [str(each) for each in received(primary, "orders", 4)] == "one two three four".split()


@pytest.mark.req("N4")
@pytest.mark.req("N5")
@pytest.mark.req("N8")
def test_out_and_back(primary: LocalBroker, secondary: LocalBroker) -> None:
    """The primary goes: single, list, batch and scheduled sends go on, to one backlog queue. It
    comes back: a ping brings the sender home by itself, and nobody ever receives a ping."""
    primary.create_queue("orders")
    events: list[EntityChanged] = []
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        bus.subscribe(lambda event: events.append(event))  # type: ignore[arg-type]
        sender = bus.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("before"))
        # A broker in a thread comes back on another port; so the entity is taken away instead.
        disable(primary, "orders")
        sender.send_messages(ServiceBusMessage("single"))
        sender.send_messages([ServiceBusMessage("of"), ServiceBusMessage("two")])
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("batched"))
        sender.send_messages(batch)
        later = datetime.now(UTC) + timedelta(hours=1)
        numbers = sender.schedule_messages([ServiceBusMessage("later")], later)
        assert numbers == [0], "the primary has not numbered it"
        with pytest.raises(MessageNotFoundError, match="scheduled through a backlog"):
            sender.cancel_scheduled_messages(numbers)
        (entity,) = bus.status().entities
        assert (entity.health, entity.sent_to_backlog) == (Health.FAILED_OVER, 5)
        depths = [depth(secondary, f"localhost/x-servicebus-transfer/{n}") for n in range(2)]
        assert sorted(depths) == [0, 5], "all in the one that this sender has chosen"
        enable(primary, "orders")
        eventually(lambda: bus.status().entities[0].health is Health.HEALTHY)
        sender.send_messages(ServiceBusMessage("after"))
        assert bus.ledger.total().pings == 1
    assert [(event.was, event.now) for event in events] == [
        (Health.HEALTHY, Health.FAILED_OVER),
        (Health.FAILED_OVER, Health.HEALTHY),
    ]
    assert [str(each) for each in received(primary, "orders", 2)] == ["before", "after"]
    assert depth(primary, "orders") == 0


def disable(broker: LocalBroker, queue: str) -> None:
    Client(broker.connection_string).entities.update_queue(queue, Status="Disabled")


def enable(broker: LocalBroker, queue: str) -> None:
    Client(broker.connection_string).entities.update_queue(queue, Status="Active")


@pytest.mark.req("N4")
@pytest.mark.req("N8")
@pytest.mark.parametrize("how", list(Probe))
def test_a_primary_that_is_silent(
    primary: LocalBroker, secondary: LocalBroker, how: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and says nothing: a time-out is a failure, also of a link that was never
    open, of a batch, and of a probe. It speaks again: the sender is back."""
    primary.create_queue("orders")
    chosen = options(probe=how, primary_name="p", send_timeout=timedelta(seconds=1))
    monkeypatch.setattr(probing, "MIN_PROBE_S", 1.0)
    with Turnstile(primary.port) as turnstile:
        way_in = primary.connection_string.replace(primary.address, f"127.0.0.1:{turnstile.port}")
        with pair_namespace(way_in, secondary.connection_string, chosen) as bus:
            turnstile.turn(Way.SILENT)
            sender = bus.get_queue_sender("orders")
            batch = sender.create_message_batch()
            batch.add_message(ServiceBusMessage("one"))
            sender.send_messages(batch)
            bus.mark_healthy("orders")
            sender.send_messages(ServiceBusMessage("two"))
            assert bus.ledger.total().backlog_sends == 2
            turnstile.turn(Way.OPEN)
            eventually(lambda: bus.status().entities[0].health is Health.HEALTHY)
            sender.send_messages(ServiceBusMessage("three"))
    assert [str(each) for each in received(primary, "orders", 1)] == ["three"]


def test_a_connection_that_broke_is_closed(secondary: LocalBroker) -> None:
    """The SDK forgets its socket. Whoever has warnings as errors would hear of it much later, from
    the garbage collector."""
    with (
        BrokerProcess.start() as broker,
        pair_namespace(broker.connection_string, secondary.connection_string, AT_ONCE) as bus,
    ):
        broker.create_queue("orders")
        sender = bus.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("before"))
        used = sender.primary_sender()._handler._connection._transport.sock
        broker.kill()
        sender.send_messages(ServiceBusMessage("after"))
        assert backlog(secondary) == 1
        sender.close()
        assert used.fileno() == -1


@pytest.mark.req("N4")
def test_before_the_interval_is_over(primary: LocalBroker, secondary: LocalBroker) -> None:
    """A failure is the caller's to see, as the SDK's own exception; a success resets the timer."""
    primary.create_queue("orders")
    chosen = options(failover_interval=timedelta(minutes=1))
    with pair_namespace(primary.connection_string, secondary.connection_string, chosen) as bus:
        sender = bus.get_queue_sender("orders")
        disable(primary, "orders")
        for _ in range(2):
            with pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("x"))
        assert bus.status().entities[0].health is Health.TIMING
        enable(primary, "orders")
        sender.send_messages(ServiceBusMessage("y"))
        assert bus.status().entities[0].health is Health.HEALTHY
    assert backlog(secondary) == 0


@pytest.mark.req("N4")
def test_what_is_the_callers_fault_does_not_fail_over(
    primary: LocalBroker, secondary: LocalBroker
) -> None:
    """An entity that is not there, a message that is too large, or without its session id."""
    primary.create_queue("sessions", RequiresSession=True)
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        with pytest.raises((MessagingEntityNotFoundError, ServiceBusError)):
            bus.get_queue_sender("missing").send_messages(ServiceBusMessage("x"))
        sender = bus.get_queue_sender("sessions")
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 300_000, session_id="a"))
        with pytest.raises(ServiceBusError, match="session"):
            sender.send_messages(ServiceBusMessage("x"))
        assert {each.health for each in bus.status().entities} == {Health.HEALTHY}
    assert backlog(secondary) == 0


@pytest.mark.req("N5")
def test_a_backlog_queue_that_fails(primary: LocalBroker, secondary: LocalBroker) -> None:
    """It leaves the rotation for all senders, another is used; when none is left, the caller is
    told so."""
    primary.create_queue("orders")
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        bus.engage("orders", hold=True)
        senders = [bus.get_queue_sender("orders") for _ in range(6)]
        for sender in senders:
            sender.send_messages(ServiceBusMessage("x"))
        chosen = senders[0]._course.queue
        assert chosen is not None
        disable(secondary, f"localhost/x-servicebus-transfer/{chosen.place}")
        for sender in senders:
            sender.send_messages(ServiceBusMessage("y"))
        assert len(bus.status().out_of_rotation) == 1
        other = f"localhost/x-servicebus-transfer/{1 - chosen.place}"
        assert depth(secondary, other) >= 6
        disable(secondary, other)
        with pytest.raises(BacklogUnavailableError, match="none of the 2 backlog queues"):
            senders[0].send_messages(ServiceBusMessage("z"))


@pytest.mark.req("N5")
def test_a_second_secondary(primary: LocalBroker, secondary: LocalBroker) -> None:
    """Is used when the first has no queue left."""
    primary.create_queue("orders")
    with LocalBroker.start() as third:
        both = [secondary.connection_string, third.connection_string]
        with pair_namespace(primary.connection_string, both, AT_ONCE) as bus:
            bus.engage("orders", hold=True)
            sender = bus.get_queue_sender("orders")
            sender.send_messages(ServiceBusMessage("x"))
            secondary.stop()
            sender.send_messages(ServiceBusMessage("y"))
        assert backlog(third) == 1


@pytest.mark.req("N7")
def test_too_large_for_the_backlog(primary: LocalBroker, secondary: LocalBroker) -> None:
    """A message that fits only without what it needs on its way has an error of its own, and
    nothing of the call is sent."""
    primary.create_queue("orders")
    limit = 256 * 1024
    large = ServiceBusMessage(b"x" * (limit - 45), message_id="m")
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        sender = bus.get_queue_sender("orders")
        sender.send_messages(large)
        bus.engage("orders", hold=True)
        with pytest.raises(BacklogMessageSizeError, match="fits the limit of 262144, but not with"):
            sender.send_messages(large)
        with pytest.raises(MessageSizeExceededError, match="exceeds the limit") as caught:
            sender.send_messages(ServiceBusMessage(b"x" * (limit + 100)))
        assert not isinstance(caught.value, BacklogMessageSizeError)
        sender.send_messages(ServiceBusMessage(b"x" * (limit - 400), message_id="m"))
    assert backlog(secondary) == 1


def test_a_batch_that_grows_is_split(primary: LocalBroker, secondary: LocalBroker) -> None:
    """A full batch is larger with what each message gets; it goes in several, without loss."""
    primary.create_queue("orders")
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        sender = bus.get_queue_sender("orders")
        batch = sender.create_message_batch()
        try:
            while True:
                batch.add_message(ServiceBusMessage("x" * 100, session_id="s"))
        except MessageSizeExceededError:
            count = len(batch)
        bus.engage("orders", hold=True)
        sender.send_messages(batch)
    assert count > 1_000
    assert backlog(secondary) == count


@pytest.mark.req("N8")
def test_the_ping() -> None:
    """Empty, of its content type, with a second to live."""
    made = ping()
    assert made.content_type == "application/vnd.ms-servicebus-ping"
    assert made.time_to_live == timedelta(seconds=1)
    assert made.body is None


@pytest.mark.req("N8")
def test_a_ping_to_sessions(primary: LocalBroker, secondary: LocalBroker) -> None:
    """A queue with sessions takes it, though it has no session id; it is counted nowhere."""
    primary.create_queue("orders", RequiresSession=True)
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        bus.engage("orders")
        eventually(lambda: bus.status().entities[0].health is Health.HEALTHY)
        assert bus.ledger.total().pings == 1
        assert bus.status().changes == {
            (Health.HEALTHY, Health.FAILED_OVER): 1,
            (Health.FAILED_OVER, Health.HEALTHY): 1,
        }
    assert depth(primary, "orders") == 0


@pytest.mark.req("N8")
@pytest.mark.parametrize("how", list(Probe))
def test_probes(primary: LocalBroker, secondary: LocalBroker, how: Probe) -> None:
    """By ping or by a link alone: the entity is healthy again when it answers. A link is no
    operation."""
    primary.create_topic("news")
    primary.create_subscription("news", "all")
    chosen = options(probe=how)
    with pair_namespace(primary.connection_string, secondary.connection_string, chosen) as bus:
        sender = bus.get_topic_sender("news")
        bus.engage("news")
        sender.send_messages(ServiceBusMessage("x"))
        assert backlog(secondary) == 1
        eventually(lambda: bus.status().entities[0].health is Health.HEALTHY)
        assert bus.ledger.total().pings == (how is Probe.PING)
        sender.send_messages(ServiceBusMessage("y"))
        receiver = bus.get_subscription_receiver("news", "all")
        with receiver:
            (message,) = receiver.receive_messages(5, max_wait_time=PATIENCE_S)
            assert str(message) == "y", "and no ping"


def test_a_closed_sender(primary: LocalBroker, secondary: LocalBroker) -> None:
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        sender = bus.get_queue_sender("orders")
        sender.close()
        with pytest.raises(ValueError, match="closed"):
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ValueError, match="timeout"):
            bus.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=0)


# --- asyncio --------------------------------------------------------------------------------------


@pytest.mark.req("N1")
@pytest.mark.req("N4")
@pytest.mark.req("N8")
def test_asyncio(primary: LocalBroker, secondary: LocalBroker) -> None:
    """The same with asyncio: the calls of the SDK's sender, out and back, and home again."""
    primary.create_queue("orders")

    async def story() -> None:
        chosen = options(enable_syphon=True)
        async with (
            await paired_aio.pair_namespace(
                primary.connection_string, secondary.connection_string, chosen
            ) as bus,
            bus.get_queue_sender("orders") as sender,
        ):
            await sender.send_messages(ServiceBusMessage("before"))
            await asyncio.to_thread(disable, primary, "orders")
            await sender.send_messages(ServiceBusMessage("single"))
            await sender.send_messages(ServiceBusMessage(name) for name in ("of", "two"))
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("batched"))
            await sender.send_messages(batch)
            due = datetime.now(UTC) + timedelta(seconds=1)
            assert await sender.schedule_messages(ServiceBusMessage("later"), due) == [0]
            await asyncio.to_thread(enable, primary, "orders")
            await eventually_so(lambda: bus.status().entities[0].health is Health.HEALTHY)
            await sender.send_messages(ServiceBusMessage("after"))
            assert bus.syphon is not None
            syphon = bus.syphon
            await eventually_so(lambda: syphon.flow.completed == 5)
        assert syphon.flow.in_hand == 0

    asyncio.run(story())
    got = sorted(str(each) for each in received(primary, "orders", 7))
    assert got == sorted("before single of two batched later after".split())
    assert backlog(secondary) == 0


# --- N10 ------------------------------------------------------------------------------------------


@pytest.mark.req("N10")
@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_close_and_fault(primary: LocalBroker, secondary: LocalBroker, side: str) -> None:
    """With a syphon: one side is closed, the other is not within the grace, so it is faulted, and
    its senders say why."""
    primary.create_queue("orders")
    chosen = options(enable_syphon=True, close_grace=timedelta(milliseconds=300))
    events: list[Any] = []
    with pair_namespace(primary.connection_string, secondary.connection_string, chosen) as bus:
        bus.subscribe(events.append)
        sender = bus.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("x"))
        if side == "primary":
            bus.close_primary()
            bus.engage("orders", hold=True)
        else:
            bus.close_secondary()
        eventually(lambda: "faulted" in (bus.status().primary, bus.status().secondary))
        with pytest.raises(PairFaultedError, match="did not follow"):
            sender.send_messages(ServiceBusMessage("y"))
        assert [event.side for event in events if hasattr(event, "side")] == [
            "secondary" if side == "primary" else "primary"
        ]


@pytest.mark.req("N10")
@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_fault_with_asyncio(primary: LocalBroker, secondary: LocalBroker, side: str) -> None:
    """One side is faulted: its senders say why at once. The other does not follow within the
    grace, so the syphon faults it, and its senders say that."""
    primary.create_queue("orders")
    assert timedelta(seconds=5) == PairingOptions().close_grace
    chosen = options(enable_syphon=True, close_grace=timedelta(milliseconds=300))

    async def story() -> None:
        events: list[Any] = []
        async with await paired_aio.pair_namespace(
            primary.connection_string, secondary.connection_string, chosen
        ) as bus:
            bus.subscribe(events.append)
            straight, around = bus.get_queue_sender("orders"), bus.get_queue_sender("bills")
            bus.engage("bills", hold=True)
            first, second = (straight, around) if side == "primary" else (around, straight)
            await first.send_messages(ServiceBusMessage("x"))
            await bus.fault(side, ServiceBusConnectionError(message="the line is cut"))
            with pytest.raises(PairFaultedError, match="the line is cut"):
                await first.send_messages(ServiceBusMessage("y"))
            await eventually_so(
                lambda: {bus.status().primary, bus.status().secondary} == {"faulted"}
            )
            with pytest.raises(PairFaultedError, match="did not follow"):
                await second.send_messages(ServiceBusMessage("z"))
            other = "secondary" if side == "primary" else "primary"
            assert [event.side for event in events if isinstance(event, SideFaulted)] == [other]

    asyncio.run(story())


@pytest.mark.req("N10")
def test_both_closed_in_time(primary: LocalBroker, secondary: LocalBroker) -> None:
    """Then nothing is faulted; and without a syphon nothing ever is."""
    for has_syphon in (True, False):
        chosen = options(enable_syphon=has_syphon, close_grace=timedelta(milliseconds=200))
        with pair_namespace(primary.connection_string, secondary.connection_string, chosen) as bus:
            bus.close_primary()
            if has_syphon:
                bus.close_secondary()
            time.sleep(0.5)
            assert "faulted" not in (bus.status().primary, bus.status().secondary)


@pytest.mark.req("N10")
def test_fault_by_hand(primary: LocalBroker, secondary: LocalBroker) -> None:
    """A side that is faulted with an error says it to its senders."""
    with pair_namespace(primary.connection_string, secondary.connection_string, AT_ONCE) as bus:
        sender = bus.get_queue_sender("orders")
        bus.fault("primary", ServiceBusConnectionError(message="the line is cut"))
        with pytest.raises(PairFaultedError, match="the line is cut"):
            sender.send_messages(ServiceBusMessage("x"))
