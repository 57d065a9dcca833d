"""The ledger of a pair beside what two real brokers have written down (`audit`), and what an idle
syphon costs in hours that pass at once (`idle`)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import NamedTuple

from azure.servicebus import ServiceBusMessage

from tandembus.pairing import Health, PairingOptions
from tandembus.pairing.aio import PairedNamespace, pair_namespace
from tandembus.pairing.options import backlog_path
from tandembus.pairing.pair import Pair
from tandembus.pairing.syphon import Syphon
from tandembus.store.memory import MemoryStore
from tandembus.testing import LocalBroker
from tests.pairing.accounts import accounts
from tests.pairing.virtual import Life, LoopClock, World, run

PATHS = ("q0", "q1", "q2")
BACKLOG = 2
PATIENCE_S = 120.0


class Entry(NamedTuple):
    """How often an operation was made."""

    what: str
    ledger: int
    brokers: int


def audit(messages: int) -> list[Entry]:
    """Some messages straight, so many through two backlog queues, the return by pings, and the
    syphon's work: what the ledger has counted, and what the brokers have in their logs."""
    here, there = MemoryStore(), MemoryStore()
    with LocalBroker.start(store=here) as primary, LocalBroker.start(store=there) as secondary:
        for path in PATHS:
            primary.create_queue(path, RequiresDuplicateDetection=path == PATHS[0])
        options = PairingOptions(
            backlog_queue_count=BACKLOG,
            primary_name="audit",
            failover_interval=timedelta(),
            ping_primary_interval=timedelta(milliseconds=300),
            enable_syphon=True,
            client_options={"retry_total": 0},
        )

        async def story() -> PairedNamespace:
            bus = await pair_namespace(
                primary.connection_string, secondary.connection_string, options
            )
            async with bus:
                await asyncio.wait_for(_traffic(bus, messages), PATIENCE_S)
            return bus

        ledger = asyncio.run(story()).ledger.total()
        primary.stop()
        secondary.stop()
        mine, theirs = accounts(here.reopened()), accounts(there.reopened())

    def there_are(what: str) -> int:
        return sum(theirs[backlog_path("audit", place), what] for place in range(BACKLOG))

    return [
        Entry(
            "sends to the primary",
            ledger.primary_sends + ledger.syphon_sends,
            sum(mine[path, "sent"] + mine[path, "dropped"] for path in PATHS),
        ),
        Entry("pings", ledger.pings, sum(mine[path, "pinged"] for path in PATHS)),
        Entry("sends to backlogs", ledger.backlog_sends, there_are("sent")),
        Entry("receives from backlogs", ledger.backlog_receives, there_are("delivered")),
        Entry("peeks", ledger.peeks, there_are("browsed")),
    ]


async def _traffic(bus: PairedNamespace, messages: int) -> None:
    senders = [bus.get_queue_sender(path) for path in PATHS]
    for sender in senders:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(7)])
    for path in PATHS:
        bus.engage(path, hold=True)
    sent = 0
    while sent < messages:
        some = min(40, messages - sent)
        await senders[sent % len(PATHS)].send_messages(
            [ServiceBusMessage(f"{n}") for n in range(some)]
        )
        sent += some
    for path in PATHS:
        bus.engage(path)  # and let go: now it is pinged
    while any(each.health is not Health.HEALTHY for each in bus.status().entities):
        await asyncio.sleep(0.02)
    assert bus.syphon is not None
    while bus.syphon.flow.completed < messages:
        await asyncio.sleep(0.02)


# --- idle -----------------------------------------------------------------------------------------


def idle(queues: int, hours: int) -> tuple[int, int]:
    """Empty receives of an idle syphon: what its ledger says, and what the namespace has counted.
    Nothing else may cost anything."""

    async def story() -> tuple[int, int]:
        clock = LoopClock(asyncio.get_running_loop(), 1)
        here, there, life = World(2), World(1), Life()
        options = PairingOptions(backlog_queue_count=queues)
        pair = Pair(here.namespace("p", life), there.namespace("s", life), options, clock, None)
        syphon = Syphon(pair)
        task = asyncio.create_task(syphon.run())
        await asyncio.sleep(hours * 3_600 + 10)
        total = pair.ledger.total()
        await syphon.stop()
        await asyncio.gather(task, return_exceptions=True)
        assert total.total == total.empty_receives, "nothing else"
        return total.empty_receives, there.counts["empty receives"]

    return run(story())
