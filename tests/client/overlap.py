"""T2: many sends at a time over a long line, and the same one by one, with both clients.

    python -m tests.client.overlap --count 100

The line has 70 ms of round trip (`tandembus.testing.DelayingProxy`) and the disk takes 10 ms for a
commit, however large its group. One by one, a send takes both; overlapped, many share them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tandembus.client import AsyncClient, Client
from tandembus.store.api import Buffer
from tandembus.store.memory import MemoryStore
from tandembus.testing import DelayingProxy, LocalBroker

ROUND_TRIP_MS = 70
STORAGE_MS = 10
COUNT = 100
BOUND_S = 1.0
"""What T2 allows for 100 overlapped sends."""


class SlowStore(MemoryStore):
    """A disk that takes its time for every group, and counts them."""

    def __init__(self, storage_ms: float) -> None:
        super().__init__()
        self._storage_s = storage_ms / 1000
        self.groups = 0

    def append(self, body: Sequence[Buffer]) -> int:
        self.groups += 1
        time.sleep(self._storage_s)
        return super().append(body)


@contextmanager
def far_broker(
    round_trip_ms: float = ROUND_TRIP_MS, storage_ms: float = STORAGE_MS
) -> Iterator[tuple[str, SlowStore]]:
    """The connection string of a broker with a queue `far`, at the end of a long line; its disk."""
    store = SlowStore(storage_ms)
    with LocalBroker.start(store=store) as broker:
        broker.create_queue("far")
        with DelayingProxy(broker.port, round_trip_ms) as proxy:
            yield proxy.connection_string(broker.connection_string), store


Timed = tuple[float, float]
"""Seconds of `count` sends overlapped, and one by one (scaled up from `singles`)."""


def our_blocking_client(connection_string: str, count: int, singles: int) -> Timed:
    with Client(connection_string) as client, client.sender("far") as sender:
        sender.send(b"warm")
        began = time.perf_counter()
        posted = [sender.post(b"%d" % number) for number in range(count)]
        for each in posted:
            each.wait()
        overlapped = time.perf_counter() - began
        began = time.perf_counter()
        for number in range(singles):
            sender.send(b"%d" % number)
        return overlapped, (time.perf_counter() - began) * count / singles


def our_async_client(connection_string: str, count: int, singles: int) -> Timed:
    async def run() -> Timed:
        async with (
            AsyncClient(connection_string) as client,
            await client.sender("far") as sender,
        ):
            await sender.send(b"warm")
            return await _timed(sender.send, str.encode, count, singles)

    return asyncio.run(run())


def the_official_sdk(connection_string: str, count: int, singles: int) -> Timed:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    async def run() -> Timed:
        client = ServiceBusClient.from_connection_string(connection_string)
        async with client, client.get_queue_sender("far") as sender:
            await sender.send_messages(ServiceBusMessage("warm"))
            return await _timed(sender.send_messages, ServiceBusMessage, count, singles)

    return asyncio.run(run())


async def _timed(
    send: Callable[[Any], Awaitable[None]],
    message: Callable[[str], Any],
    count: int,
    singles: int,
) -> Timed:
    began = time.perf_counter()
    await asyncio.gather(*(send(message(str(number))) for number in range(count)))
    overlapped = time.perf_counter() - began
    began = time.perf_counter()
    for number in range(singles):
        await send(message(str(number)))
    return overlapped, (time.perf_counter() - began) * count / singles


CLIENTS: dict[str, Callable[[str, int, int], Timed]] = {
    "Tandem's client, blocking": our_blocking_client,
    "Tandem's client, asyncio": our_async_client,
    "azure-servicebus, asyncio": the_official_sdk,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="overlap")
    parser.add_argument("--count", type=int, default=COUNT, help="sends (100)")
    options = parser.parse_args(arguments)
    count = options.count
    print(f"{count} sends, {ROUND_TRIP_MS} ms round trip, {STORAGE_MS} ms for each commit")
    slowest = 0.0
    for name, run in CLIENTS.items():
        with far_broker() as (connection_string, store):
            overlapped, one_by_one = run(connection_string, count, count)
            slowest = max(slowest, overlapped)
            print(
                f"{name}: overlapped {overlapped:.2f} s, one by one {one_by_one:.2f} s, "
                f"{store.groups} commits",
                flush=True,
            )
    is_met = slowest < BOUND_S * count / COUNT
    print(
        f"T2 {'holds' if is_met else 'DOES NOT HOLD'}: {count} overlapped sends took "
        f"{slowest:.2f} s at most, {BOUND_S * count / COUNT:.2f} s are allowed"
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
