"""What the syphon costs, on real brokers: counted by them, by the SDK, and by the ledger (N11)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

from tandembus.client import Client, OutgoingMessage
from tandembus.pairing import syphon, wire
from tandembus.pairing.aio import PairedNamespace
from tandembus.pairing.options import LONG_POLL
from tandembus.testing import LocalBroker
from tests.pairing.audit import audit
from tests.pairing.scene import home, payloads, run


@pytest.mark.req("N11")
def test_the_ledger_is_the_brokers_own_count() -> None:
    """Sends, receives, pings, peeks: what the ledger says is what the two brokers have written
    down, to the last one."""
    entries = {entry.what: entry for entry in audit(123)}
    for entry in entries.values():
        assert entry.ledger == entry.brokers, entry
    assert entries["sends to the primary"].ledger == 3 * 7 + 123
    assert entries["sends to backlogs"].ledger == 123
    # More on a busy machine: what comes when the SDK has given up waiting is let go, and counted.
    assert entries["receives from backlogs"].ledger >= 123
    assert entries["pings"].ledger == 3


class AnHour:
    """Of ten queues, when it has come: 40 long polls that are over soon, and then such as they
    are."""

    def __init__(self) -> None:
        self.left = 0

    def total_seconds(self) -> float:
        self.left -= 1
        return 0.3 if self.left >= 0 else LONG_POLL.total_seconds()


@pytest.mark.req("N9")
@pytest.mark.req("N11")
def test_an_hour_of_an_idle_syphon(
    primary: LocalBroker, secondary: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten backlog queues of a real broker: 40 receives that bring nothing, and so often the SDK has
    offered credit; the next ones wait, for 15 minutes each."""
    primary.create_queue("orders")
    asked = 0
    hour = AnHour()
    original = PyamqpTransportAsync.reset_link_credit_async

    async def counting(handler: Any, link_credit: int) -> None:
        nonlocal asked
        asked += 1
        await original(handler, link_credit)

    monkeypatch.setattr(syphon, "LONG_POLL", hour)
    monkeypatch.setattr(PyamqpTransportAsync, "reset_link_credit_async", staticmethod(counting))
    assert timedelta(minutes=15) == LONG_POLL

    async def story(bus: PairedNamespace) -> None:
        while asked < 10:
            await asyncio.sleep(0.02)
        hour.left = 40
        with Client(secondary.connection_string) as client:
            for index in range(10):
                with client.sender(f"localhost/x-servicebus-transfer/{index}") as sender:
                    sender.send(OutgoingMessage(b"wake up", properties={"x-ms-path": "orders"}))
        while bus.ledger.total().empty_receives < 40 or asked < 60:
            await asyncio.sleep(0.02)
        total = bus.ledger.total()
        assert (total.backlog_receives, total.empty_receives, asked) == (10, 40, 60)

    run(primary, secondary, story, backlog_queue_count=10)


@pytest.mark.req("N11")
def test_what_comes_late(
    primary: LocalBroker, secondary: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive that ends with the first messages, while others are on their way: they are taken
    with the next one, so each is received, and paid for, once. In order."""
    primary.create_queue("orders")
    original = wire.speak_bytes

    def hasty(handler: Any) -> Any:
        if hasattr(handler, "receive_messages"):
            handler._further_pull_receive_timeout = 0
        return original(handler)

    monkeypatch.setattr(wire, "speak_bytes", hasty)
    ended: list[int] = []
    late = wire.late

    def counted(receiver: Any) -> int:
        ended.append(late(receiver))
        return ended[-1]

    monkeypatch.setattr(wire, "late", counted)

    async def fill(bus: PairedNamespace) -> None:
        bus.engage("orders", hold=True)
        async with bus.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(f"{n:03}") for n in range(300)])

    run(primary, secondary, fill, enable_syphon=False)

    async def story(bus: PairedNamespace) -> None:
        await home(bus, 300)
        total = bus.ledger.total()
        assert (total.backlog_receives, total.syphon_sends) == (300, 300)

    run(primary, secondary, story)
    assert sum(ended) > 0, "some were late"
    assert [int(each[-3:]) for each in payloads(primary, "orders", 300)] == list(range(300))
