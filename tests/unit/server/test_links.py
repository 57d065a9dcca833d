"""Links of a gateway: what is left in the broker when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Event, LinkDetached
from tandembus.clock import ManualClock
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.model import Symbol
from tandembus.server.broker import Broker
from tandembus.server.gateway import Gateway
from tandembus.server.outlet import SESSION_FILTER, TIMEOUT
from tandembus.settings import QueueSettings
from tandembus.store.memory import MemoryStore


def test_a_wait_for_a_session_that_ends_leaves_nothing() -> None:
    """The SDKs ask for the next session again and again, and each time may wait in vain: the link
    is refused, the peer detaches, and the broker has forgotten it, before the connection ends."""

    async def scene() -> None:
        clock = ManualClock()
        broker = await Broker.open(
            "default", MemoryStore(), on_failure=lambda error: None, clock=clock
        )
        await broker.execute(c.CreateQueue("q", QueueSettings(requires_session=True)), everything())
        client = Connection(Role.CLIENT, container_id="c", use_sasl=False)
        events: list[Event] = []

        def heard(data: Sequence[Any]) -> None:
            for each in data:
                events.extend(client.receive_data(bytes(each)))

        gateway = Gateway(broker, heard, lambda: None, peer="p", on_open=lambda: None)
        client.open()
        session = client.begin()
        session.attach(
            "next",
            is_sender=False,
            source=p.Source("q", filter={SESSION_FILTER: None}),
            properties={TIMEOUT: 500},
        )
        for _ in range(3):  # the attach; the wait is over; the client's answer to the refusal
            for data in client.data_to_send():
                gateway.receive(bytes(data))
            await broker.execute(c.Browse("q", 0, 1), everything())
            clock.advance(1_000)
            broker.engine.engine.tick()
            await broker.execute(c.Browse("q", 0, 1), everything())
            await asyncio.sleep(0)
        assert any(isinstance(event, LinkDetached) for event in events)
        assert not broker._owners
        gateway.lost()
        await broker.close()

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_only_filters_in_force_are_confirmed() -> None:
    """AMQP 1.0 §3.5.3: a selector that nobody applies is not in the answer to the attach."""

    async def scene() -> None:
        broker = await Broker.open("default", MemoryStore(), on_failure=lambda error: None)
        await broker.execute(c.CreateQueue("q", QueueSettings()), everything())
        client = Connection(Role.CLIENT, container_id="c", use_sasl=False)

        def heard(data: Sequence[Any]) -> None:
            for each in data:
                client.receive_data(bytes(each))

        gateway = Gateway(broker, heard, lambda: None, peer="p", on_open=lambda: None)
        client.open()
        selector = {Symbol("apache.org:selector-filter:string"): "colour = 'red'"}
        link = client.begin().attach(
            "selecting", is_sender=False, source=p.Source("q", filter=selector)
        )
        for data in client.data_to_send():
            gateway.receive(bytes(data))
        await broker.execute(c.Browse("q", 0, 1), everything())
        await asyncio.sleep(0)
        assert link.remote is not None
        assert link.remote.source == p.Source("q")
        gateway.lost()
        await broker.close()

    asyncio.run(asyncio.wait_for(scene(), 30))
