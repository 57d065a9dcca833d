"""A pair with a syphon over two real brokers: how a test begins and ends one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from tandembus.client import Client, ReceiveMode
from tandembus.pairing import PairingOptions
from tandembus.pairing.aio import PairedNamespace, pair_namespace
from tandembus.testing import LocalBroker

PATIENCE_S = 60.0
QUEUE = "localhost/x-servicebus-transfer/0"


def options(**changes: Any) -> PairingOptions:
    settings: dict[str, Any] = {
        "backlog_queue_count": 1,
        "failover_interval": timedelta(),
        "ping_primary_interval": timedelta(milliseconds=300),
        "return_check_interval": timedelta(milliseconds=100),
        "enable_syphon": True,
        "client_options": {"retry_total": 0},
    }
    return PairingOptions(**{**settings, **changes})


def run(
    primary: LocalBroker,
    secondary: LocalBroker,
    story: Callable[[PairedNamespace], Awaitable[None]],
    **changes: Any,
) -> None:
    async def main() -> None:
        bus = await pair_namespace(
            primary.connection_string, secondary.connection_string, options(**changes)
        )
        async with bus:
            await asyncio.wait_for(story(bus), PATIENCE_S)

    asyncio.run(main())


async def home(bus: PairedNamespace, count: int) -> None:
    """Until so many are home and nothing is in hand."""
    assert bus.syphon is not None
    while bus.syphon.flow.completed + bus.syphon.flow.dead_lettered < count:
        await asyncio.sleep(0.02)
    assert bus.syphon.flow.in_hand == 0


def payloads(broker: LocalBroker, path: str, count: int) -> list[bytes]:
    """The bytes that a receiver gets, taken out of the queue."""
    with (
        Client(broker.connection_string) as client,
        client.receiver(path, mode=ReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        found: list[bytes] = []
        while len(found) < count:
            some = receiver.receive(count - len(found), wait_s=PATIENCE_S)
            assert some, f"{len(found)} of {count} came"
            found += [message.payload for message in some]
        return found
