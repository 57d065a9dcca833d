"""The priority queue pattern with a topic and two subscriptions.

    python examples/priority_pattern/story.py                           # a broker of its own
    python examples/priority_pattern/story.py CONNECTION_STRING         # Tandem, or Azure

A sender marks each message with a property, `Priority`. The topic has two subscriptions, each with
a filter on it. Two pools of workers read them, as `pools.toml` says: four workers for what is
urgent, one for the rest, which is never starved because it is its own. On Azure the topic and its
subscriptions have to be there (see `make_entities`); Tandem's own are made here. The exit code is 1
if something is not as it says.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from priority_workers import PriorityWorker

from tandembus.client import Client, Rule
from tandembus.testing import LocalBroker
from tandembus.workers import Pool
from tandembus.workers.pools_file import load_worker, read_pools

HERE: Final = Path(__file__).resolve().parent
EACH: Final = 10


def make_entities(connection_string: str) -> None:
    """One topic; a subscription for each value of `Priority`."""
    with Client(connection_string) as client:
        client.entities.create_topic("orders")
        for name in ("high", "low"):
            client.entities.create_subscription("orders", name)
            rule = Rule("ByPriority", f"Priority = '{name.capitalize()}'")
            client.entities.create_rule("orders", name, rule)
            client.entities.delete_rule("orders", name, "$Default")


async def send_batch(sender: ServiceBusSender, priority: str, texts: Sequence[str]) -> None:
    """All of them with one call."""
    batch = await sender.create_message_batch()
    for text in texts:
        batch.add_message(ServiceBusMessage(text, application_properties={"Priority": priority}))
    await sender.send_messages(batch)


async def story(connection_string: str) -> None:
    found = read_pools((HERE / "pools.toml").read_text(encoding="utf-8"))
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        async with client.get_topic_sender("orders") as sender:
            print(f"{EACH} low and {EACH} high messages, each kind in one batch:", flush=True)
            await send_batch(sender, "Low", [f"low {number}" for number in range(EACH)])
            await send_batch(sender, "High", [f"high {number}" for number in range(EACH)])
        pools = [
            Pool(load_worker(entry.worker, HERE), entry.options, client) for entry in found.pools
        ]
        await asyncio.gather(*(pool.start() for pool in pools))
        async with asyncio.timeout(60):
            while PriorityWorker.done.total() < 2 * EACH:
                await asyncio.sleep(0.01)
        await asyncio.gather(*(pool.stop() for pool in pools))


def main(arguments: Sequence[str]) -> int:
    if arguments:
        asyncio.run(story(arguments[0]))
    else:
        with LocalBroker.start() as broker:
            make_entities(broker.connection_string)
            asyncio.run(story(broker.connection_string))
    done = PriorityWorker.done
    print(f"done: {done['high']} high, {done['low']} low")
    return 0 if done == {"high": EACH, "low": EACH} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
