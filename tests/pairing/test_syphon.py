"""The syphon between two real brokers: what it brings home, and how (N6, N9, N11)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tandembus.amqp.message import encode_message, sections
from tandembus.amqp.types import Char, Int, Long, Short, UByte, UInt, ULong, decode, encode
from tandembus.client import Client, OutgoingMessage
from tandembus.model import Symbol, Timestamp
from tandembus.pairing import Health, wire
from tandembus.pairing.aio import PairedNamespace, pair_namespace
from tandembus.pairing.aliases import aliased, restored
from tandembus.testing import LocalBroker
from tests.pairing.scene import PATIENCE_S, QUEUE, home, options, payloads, run

BROKERS = ("x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-enqueue-sequence-number")


def meant(payload: bytes) -> dict[int, Any]:
    """What a sender has said: every section but the broker's own marks; bytes where they count."""
    said: dict[int, Any] = {}
    for code, start, end in sections(payload):
        if code == 0x70:
            fields, _ = decode(payload, start + 3, typed=True)
            assert isinstance(fields, list)
            said[code] = [*fields, *[None] * (5 - len(fields))][:4]
        elif code == 0x72:
            marks, _ = decode(payload, start + 3, typed=True)
            assert isinstance(marks, dict)
            said[code] = {name: it for name, it in marks.items() if name not in BROKERS}
        elif code != 0x71:
            said[code] = said.get(code, b"") + payload[start:end]
    if not said.get(0x72):
        said.pop(0x72, None)
    return said


TYPES = {
    "null": None,
    "yes": True,
    "ubyte": UByte(7),
    "uint": UInt(8),
    "ulong": ULong(2**63),
    "short": Short(-3),
    "int": Int(-4),
    "long": Long(2**60),
    "double": 1.5,
    "char": Char("ß"),
    "time": Timestamp(1_900_000_000_000),
    "uuid": UUID(int=77),
    "binary": b"\xff\x00",
    "text": "Grüße",
    "symbol": Symbol("sym"),
}


@pytest.mark.req("N6")
@pytest.mark.req("N9")
def test_every_byte_comes_home(primary: LocalBroker, secondary: LocalBroker) -> None:
    """What a receiver gets is the same whether it came straight or through a backlog: all AMQP
    types, session, time to live, schedule, annotations, bodies of every kind."""
    primary.create_queue("straight")
    primary.create_queue("around")
    due = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    messages: list[Any] = [
        ServiceBusMessage(b"plain", message_id="1"),
        ServiceBusMessage(
            b"all",
            message_id="2",
            session_id="s",
            partition_key="s",
            correlation_id="c",
            content_type="text/plain",
            subject="subject",
            to="to",
            reply_to="reply",
            reply_to_session_id="there",
            time_to_live=timedelta(hours=3),
            scheduled_enqueue_time_utc=due,
            application_properties={"text": "x", "number": 5, "real": 1.5, "yes": True},
        ),
        AmqpAnnotatedMessage(
            value_body={"key": ["value", 1, None]},
            properties={"message_id": UUID(int=5), "group_id": "g", "user_id": b"me"},
            header={"priority": 3, "durable": True, "time_to_live": 5_000_000},
            annotations={"x-opt-mine": "kept"},
            footer={"check": "sum"},
            application_properties={"price": Decimal("12.50")},
        ),
        AmqpAnnotatedMessage(
            sequence_body=[[1, 2], ["three"]], properties={"message_id": b"\x01\x02"}
        ),
        AmqpAnnotatedMessage(data_body=[b"a", b"b" * 1000], properties={"message_id": "last"}),
    ]

    async def story(bus: PairedNamespace) -> None:
        bus.engage("around", hold=True)
        async with (
            bus.get_queue_sender("straight") as straight,
            bus.get_queue_sender("around") as around,
        ):
            for message in messages:
                # Encoded once: the SDK writes the time of encoding into some.
                batch = await straight.create_message_batch()
                batch.add_message(message)
                await straight.send_messages(batch)
                await around.send_messages(batch)
        await home(bus, len(messages))

    run(primary, secondary, story)
    straight = [meant(each) for each in payloads(primary, "straight", len(messages))]
    around = [meant(each) for each in payloads(primary, "around", len(messages))]
    assert around == straight


@pytest.mark.req("N9")
def test_types_that_the_sdk_cannot_even_say(primary: LocalBroker, secondary: LocalBroker) -> None:
    """Of other senders that put messages into the same backlog: every AMQP type comes home as it
    was."""
    primary.create_queue("straight")
    primary.create_queue("around")
    payload = encode_message(
        body=b"x", message_id=ULong(5), properties=TYPES, annotations={"x-opt-mine": UInt(1)}
    )

    async def story(bus: PairedNamespace) -> None:
        with Client(primary.connection_string) as client, client.sender("straight") as sender:
            sender.send(_Raw(payload))
        on_its_way = aliased(payload, "around", lambda: "id")
        with Client(secondary.connection_string) as client, client.sender(QUEUE) as sender:
            sender.send(_Raw(on_its_way))
        await home(bus, 1)

    run(primary, secondary, story)
    (straight,) = payloads(primary, "straight", 1)
    (around,) = payloads(primary, "around", 1)
    assert meant(around) == meant(straight)


class _Raw(OutgoingMessage):
    """Bytes that are a message already."""

    def __init__(self, payload: bytes) -> None:
        object.__setattr__(self, "body", payload)

    def encoded(self) -> bytes:
        assert isinstance(self.body, bytes)
        return self.body


@pytest.mark.req("N9")
def test_queues_topics_sessions_and_schedules(primary: LocalBroker, secondary: LocalBroker) -> None:
    """Messages for many entities share one backlog queue, and each finds its way; what is scheduled
    through the backlog keeps its time."""
    primary.create_queue("plain")
    primary.create_queue("sessions", RequiresSession=True)
    primary.create_topic("news")
    primary.create_subscription("news", "all")
    due = datetime.now(UTC) + timedelta(hours=2)

    async def story(bus: PairedNamespace) -> None:
        for path in ("plain", "sessions", "news"):
            bus.engage(path, hold=True)
        async with (
            bus.get_queue_sender("plain") as plain,
            bus.get_queue_sender("sessions") as sessions,
            bus.get_topic_sender("news") as news,
        ):
            for n in range(3):
                await plain.send_messages(ServiceBusMessage(f"p{n}"))
                await sessions.send_messages(ServiceBusMessage(f"s{n}", session_id=f"{n % 2}"))
                await news.send_messages(ServiceBusMessage(f"n{n}"))
            assert await plain.schedule_messages(ServiceBusMessage("later"), due) == [0]
        await home(bus, 10)
        async with bus.get_queue_receiver("sessions", session_id="0", max_wait_time=5) as receiver:
            got = await receiver.receive_messages(5, max_wait_time=5)
            assert [str(each) for each in got] == ["s0", "s2"]
        async with bus.get_subscription_receiver("news", "all") as receiver:
            got = await receiver.receive_messages(5, max_wait_time=5)
            assert [str(each) for each in got] == ["n0", "n1", "n2"]

    run(primary, secondary, story)
    entities = Client(primary.connection_string).entities
    counts = entities.get_queue("plain").counts
    assert (counts["ActiveMessageCount"], counts["ScheduledMessageCount"]) == (3, 1)
    primary.clock.advance(hours=2)
    assert len(payloads(primary, "plain", 4)) == 4


@pytest.mark.req("N9")
def test_what_it_cannot_understand(primary: LocalBroker, secondary: LocalBroker) -> None:
    """Is dead-lettered with the reason, and so is what the primary refuses for what it is; the
    others are brought home all the same."""
    primary.create_queue("orders", RequiresSession=True)

    async def story(bus: PairedNamespace) -> None:
        with Client(secondary.connection_string) as client, client.sender(QUEUE) as sender:
            sender.send(OutgoingMessage(b"no path"))
            sender.send(OutgoingMessage(b"wrong", properties={"x-ms-path": 5}))
            # Not an AMQP message inside is not possible; one without its session id is.
            sender.send(OutgoingMessage(b"no session", properties={"x-ms-path": "orders"}))
            good = {"x-ms-path": "orders", "x-ms-sessionid": "s"}
            sender.send(OutgoingMessage(b"good", properties=good))
        await home(bus, 4)
        total = bus.ledger.total()
        assert (total.dead_letters, total.syphon_sends) == (3, 1)
        assert bus.syphon is not None
        assert bus.syphon.flow.dead_lettered == 3

    run(primary, secondary, story)
    with (
        Client(secondary.connection_string) as client,
        client.receiver(f"{QUEUE}/$DeadLetterQueue") as receiver,
    ):
        dead = receiver.receive(3, wait_s=PATIENCE_S)
        reasons = [(each.dead_letter_reason, each.dead_letter_description) for each in dead]
    assert reasons[0] == ("TandemPairingUnreadable", "x-ms-path is missing")
    assert reasons[1] == ("TandemPairingUnreadable", "x-ms-path is not a text")
    assert reasons[2][0] == "TandemPairingRefused"
    assert "session" in str(reasons[2][1])


@pytest.mark.req("N9")
def test_it_holds_back(primary: LocalBroker, secondary: LocalBroker) -> None:
    """While a destination fails its messages wait, and those to others pass them; when it is back
    they come, in their order."""
    primary.create_queue("down")
    primary.create_queue("up")
    entities = Client(primary.connection_string).entities
    entities.update_queue("down", Status="Disabled")

    async def story(bus: PairedNamespace) -> None:
        for path in ("down", "up"):
            bus.engage(path, hold=True)
        async with bus.get_queue_sender("down") as down, bus.get_queue_sender("up") as up:
            await down.send_messages([ServiceBusMessage(f"{n}") for n in range(5)])
            await up.send_messages(ServiceBusMessage("passes"))
            assert bus.syphon is not None
            while bus.syphon.flow.completed < 1 or not bus.syphon.holds.why:
                await asyncio.sleep(0.02)
            assert list(bus.syphon.holds.why) == ["down"]
            await asyncio.to_thread(entities.update_queue, "down", Status="Active")
            await home(bus, 6)
            assert not bus.syphon.holds.why

    run(primary, secondary, story)
    got = payloads(primary, "down", 5)
    assert [each[-1:] for each in got] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(payloads(primary, "up", 1)) == 1


@pytest.mark.req("N9")
def test_a_double_that_an_id_can_tell(primary: LocalBroker, secondary: LocalBroker) -> None:
    """A syphon that died between the send and the completion: the message comes again, with the id
    that it had, and duplicate detection drops it."""
    primary.create_queue("orders", RequiresDuplicateDetection=True)

    async def story(bus: PairedNamespace) -> None:
        bus.engage("orders", hold=True)
        async with bus.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("with", message_id="with"))
            await sender.send_messages(ServiceBusMessage("without an id"))

    run(primary, secondary, story, enable_syphon=False)
    # What the syphon sends before it dies:
    with (
        Client(secondary.connection_string) as there,
        there.receiver(QUEUE) as receiver,
        Client(primary.connection_string) as here,
        here.sender("orders") as sender,
    ):
        for message in receiver.receive(2, wait_s=PATIENCE_S):
            sender.send(_Raw(restored(message.payload).payload))
    secondary.clock.advance(minutes=1)  # the locks of the dead end

    async def again(bus: PairedNamespace) -> None:
        await home(bus, 2)

    run(primary, secondary, again)
    assert (
        Client(primary.connection_string).entities.get_queue("orders").counts["ActiveMessageCount"]
        == 2
    )


@pytest.mark.req("N9")
@pytest.mark.parametrize("count", [2, 1])
def test_a_lock_of_the_dead_keeps_the_order(
    primary: LocalBroker, secondary: LocalBroker, count: int
) -> None:
    """A syphon died with the first messages of a session locked: the next one lets the later ones
    of that session wait, and brings the others. Where there is one backlog queue, the order of the
    sender counts: all that it sent to that entity waits."""
    primary.create_queue("orders", RequiresSession=True)
    primary.create_queue("bills")
    changes = {"backlog_queue_count": count}
    used: list[str] = []

    async def fill(bus: PairedNamespace) -> None:
        bus.engage("orders", hold=True)
        bus.engage("bills", hold=True)
        async with (
            bus.get_queue_sender("orders") as sender,
            bus.get_queue_sender("bills") as other,
        ):
            for n in range(4):
                await sender.send_messages(ServiceBusMessage(f"a{n}", session_id="a"))
            await sender.send_messages(ServiceBusMessage("b0", session_id="b"))
            await other.send_messages(ServiceBusMessage("bill"))
            assert sender._course.queue is not None
            used.append(bus._pair.path_of(sender._course.queue))

    run(primary, secondary, fill, enable_syphon=False, **changes)
    with Client(secondary.connection_string) as there, there.receiver(used[0]) as receiver:
        dead = receiver.receive(2, wait_s=PATIENCE_S)
        assert [each.body for each in dead] == [b"a0", b"a1"]  # and dies

        async def again(bus: PairedNamespace) -> None:
            await home_at_least(bus, count)
            assert bus.syphon is not None
            # The bill goes, and b0 where only the order of sessions counts.
            assert bus.syphon.flow.sent == count
            await asyncio.to_thread(secondary.clock.advance, minutes=1)
            await home(bus, 6)

        run(primary, secondary, again, **changes)
    assert payloads_of_session(primary, "orders", "a", 4) == [b"a0", b"a1", b"a2", b"a3"]
    assert payloads_of_session(primary, "orders", "b", 1) == [b"b0"]


async def home_at_least(bus: PairedNamespace, count: int) -> None:
    assert bus.syphon is not None
    while bus.syphon.flow.completed < count:
        await asyncio.sleep(0.02)


def payloads_of_session(broker: LocalBroker, path: str, session: str, count: int) -> list[bytes]:
    with (
        Client(broker.connection_string) as client,
        client.receiver(path, session=session) as receiver,
    ):
        return [each.body for each in receiver.receive(count, wait_s=PATIENCE_S)]


@pytest.mark.req("N9")
def test_two_syphons(primary: LocalBroker, secondary: LocalBroker) -> None:
    """At work on the same queues: every message once, and each session in order."""
    primary.create_queue("orders", RequiresSession=True, RequiresDuplicateDetection=True)
    sessions, each = 6, 30

    async def story(bus: PairedNamespace) -> None:
        bus.engage("orders", hold=True)

        async def fill(session: str) -> None:
            async with bus.get_queue_sender("orders") as sender:
                for n in range(each):
                    await sender.send_messages(ServiceBusMessage(f"{n:02}", session_id=session))

        await asyncio.gather(*(fill(f"{n}") for n in range(sessions)))
        changes = options(backlog_queue_count=2, syphon_batch=7)
        pairs = [
            await pair_namespace(primary.connection_string, secondary.connection_string, changes)
            for _ in range(2)
        ]
        async with pairs[0], pairs[1]:
            flows = [pair.syphon for pair in pairs if pair.syphon is not None]
            while sum(syphon.flow.completed for syphon in flows) < sessions * each:
                await asyncio.sleep(0.02)
            assert all(syphon.flow.received for syphon in flows), "both have worked"

    run(primary, secondary, story, backlog_queue_count=2, enable_syphon=False)
    for n in range(sessions):
        got = payloads_of_session(primary, "orders", f"{n}", each)
        assert got == [f"{n:02}".encode() for n in range(each)]
    counts = Client(primary.connection_string).entities.get_queue("orders").counts
    assert counts["ActiveMessageCount"] == sessions * each


@pytest.mark.req("N9")
def test_ordered_return(primary: LocalBroker, secondary: LocalBroker) -> None:
    """With `ordered_return` nothing overtakes: after the primary's answer the sender still uses the
    backlog, until all of its own is home."""
    primary.create_queue("orders", RequiresDuplicateDetection=True)

    async def story(bus: PairedNamespace) -> None:
        async with bus.get_queue_sender("orders") as sender:
            count = 0

            async def send(times: int) -> None:
                nonlocal count
                for _ in range(times):
                    await sender.send_messages(ServiceBusMessage(f"{count:04}"))
                    count += 1

            await send(3)
            bus.engage("orders")
            await send(20)
            while bus.status().entities[0].health is not Health.HEALTHY:
                await send(1)
                await asyncio.sleep(0.005)
            await send(5)
            total = bus.ledger.total()
            assert total.primary_sends >= 8
            assert total.backlog_sends >= 20
            assert total.peeks > 0
            while bus.syphon is None or bus.syphon.flow.completed < total.backlog_sends:
                await asyncio.sleep(0.02)
            story_counts.append(count)

    story_counts: list[int] = []
    run(primary, secondary, story, ordered_return=True)
    (count,) = story_counts
    got = [int(each[-4:]) for each in payloads(primary, "orders", count)]
    assert got == list(range(count))


def test_the_seams_of_the_sdk() -> None:
    """What `wire` uses of the SDK's inside is there, in this version of it."""
    encoded = wire.encoded([ServiceBusMessage("x", message_id="m")])
    assert encoded == [encode_message(body=b"x", message_id="m")] or len(encoded) == 1
    assert encode("x") == b"\xa1\x01x"
    with pytest.raises(ValueError, match="uamqp_transport"):
        wire.speak_bytes(type("Sender", (), {"_amqp_transport": object})())
