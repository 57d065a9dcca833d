"""The same with one native priority queue of Tandem's: no topic, no filters, one pool.

    python examples/priority_pattern/native.py                          # a broker of its own
    python examples/priority_pattern/native.py CONNECTION_STRING        # Tandem

The queue gives each message its level by a rule on the same property, so the sender is that of
`story.py`. Low messages are not starved either: with aging they rise. The exit code is 1 if
something is not as it says.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from azure.servicebus.aio import ServiceBusClient
from priority_workers import PriorityWorker
from story import EACH, send_batch

from tandembus.client import Client
from tandembus.testing import LocalBroker
from tandembus.workers import Level, Pool, PoolOptions


class OrderWorker(PriorityWorker):
    """One worker for all: the queue knows who is next."""

    async def process_message(self, message: Any) -> None:
        self.finished(message)


def make_queue(connection_string: str) -> None:
    """Two levels, 0 and 1; what has waited for a minute counts as high."""
    with Client(connection_string) as client:
        client.entities.create_queue(
            "orders",
            PriorityLevels=2,
            PrioritySource="rules",
            PriorityRules="1: Priority = 'High'",
            PriorityAgingSeconds=60,
        )


async def story(connection_string: str) -> None:
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        async with client.get_queue_sender("orders") as sender:
            print(f"{EACH} low and {EACH} high messages, each kind in one batch:", flush=True)
            await send_batch(sender, "Low", [f"low {number}" for number in range(EACH)])
            await send_batch(sender, "High", [f"high {number}" for number in range(EACH)])
        options = PoolOptions("orders", (Level("orders", queue="orders"),))
        async with Pool(OrderWorker(), options, client), asyncio.timeout(60):
            while len(PriorityWorker.order) < 2 * EACH:
                await asyncio.sleep(0.01)


def run(connection_string: str) -> None:
    make_queue(connection_string)
    asyncio.run(story(connection_string))


def main(arguments: Sequence[str]) -> int:
    if arguments:
        run(arguments[0])
    else:
        with LocalBroker.start() as broker:
            run(broker.connection_string)
    is_right = PriorityWorker.order == ["high"] * EACH + ["low"] * EACH
    print("all high messages first" if is_right else "NOT all high messages first")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
