"""The same with one native priority queue of Tandem's: no topic, no filters, one pool.

    python examples/priority_pattern/native.py CONNECTION_STRING QUEUE

The queue gives each message its level by a rule on the same property (`SETTINGS`), so the sender is
that of `story.py`. Low messages are not starved either: with aging they rise.

Levels can not be set over the network yet, so the queue has to be there: the test of this example
makes it inside of its broker's process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

from azure.servicebus.aio import ServiceBusClient
from priority_workers import PriorityWorker
from story import EACH, send_batch

from tandem.settings import PrioritySettings, QueueSettings
from tandem.workers import Level, Pool, PoolOptions

SETTINGS: Final = QueueSettings(
    priority=PrioritySettings(
        levels=2, source="rules", rules=(("Priority = 'High'", 1),), aging_ms_per_level=60_000
    )
)


class OrderWorker(PriorityWorker):
    """One worker for all: the queue knows who is next."""

    async def process_message(self, message: Any) -> None:
        PriorityWorker.order.append(str(message).partition(" ")[0])
        print(f"  {message}", flush=True)


async def story(connection_string: str, queue: str) -> None:
    PriorityWorker.order.clear()
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        async with client.get_queue_sender(queue) as sender:
            await send_batch(sender, "Low", [f"low {number}" for number in range(EACH)])
            await send_batch(sender, "High", [f"high {number}" for number in range(EACH)])
        options = PoolOptions("orders", (Level("orders", queue=queue),))
        async with Pool(OrderWorker(), options, client), asyncio.timeout(60):
            while len(PriorityWorker.order) < 2 * EACH:
                await asyncio.sleep(0.01)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print(__doc__)
        return 2
    asyncio.run(story(*arguments))
    is_right = PriorityWorker.order == ["high"] * EACH + ["low"] * EACH
    print("all high messages first" if is_right else "NOT all high messages first")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
