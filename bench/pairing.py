"""What pairing costs while all is well, how soon a sender is back, how fast a backlog comes home.

  python -m bench.pairing [--sends N] [--drain N] [--interval SECONDS]

Everything is a ratio or a time within one run, on two brokers of this machine:
- the send rate of a paired sender against the plain SDK's, in turns, blocking and asyncio (N3);
- from the primary's return to the first send on it: killed, frozen, cut off (N8);
- a backlog of N messages: its drain, and the syphon's rate against a bare receive and send of the
  lean client, which is the least that any mover has to do.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from tandem.client import Client
from tandem.pairing import Health, PairingOptions, pair_namespace
from tandem.pairing import aio as paired_aio
from tandem.pairing.options import backlog_path
from tandem.testing import BrokerProcess

ROUNDS = 11
BATCH = 100


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def options(**changes: Any) -> PairingOptions:
    settings: dict[str, Any] = {
        "backlog_queue_count": 1,
        "failover_interval": timedelta(),
        "client_options": {"retry_total": 0},
        **changes,
    }
    return PairingOptions(**settings)


# --- healthy --------------------------------------------------------------------------------------


def healthy_blocking(primary: str, secondary: str, sends: int) -> float:
    """The median of the ratios of rounds that follow on each other, each way first in turn."""
    with (
        pair_namespace(primary, secondary, options()) as bus,
        ServiceBusClient.from_connection_string(primary) as client,
        client.get_queue_sender("plain") as plain,
        bus.get_queue_sender("paired") as paired,
    ):

        def timed(sender: Any) -> float:
            begin = time.perf_counter()
            for _ in range(sends):
                sender.send_messages(ServiceBusMessage(b"x" * 100))
            return time.perf_counter() - begin

        timed(plain), timed(paired)
        ratios = []
        for number in range(ROUNDS):
            if number % 2:
                first, second = timed(plain), timed(paired)
            else:
                second, first = timed(paired), timed(plain)
            ratios.append(first / second)
        return statistics.median(ratios)


async def healthy_asyncio(primary: str, secondary: str, sends: int) -> float:
    async with (
        await paired_aio.pair_namespace(primary, secondary, options()) as bus,
        AsyncServiceBusClient.from_connection_string(primary) as client,
        client.get_queue_sender("plain") as plain,
        bus.get_queue_sender("paired") as paired,
    ):

        async def timed(sender: Any) -> float:
            begin = time.perf_counter()
            for _ in range(sends):
                await sender.send_messages(ServiceBusMessage(b"x" * 100))
            return time.perf_counter() - begin

        await timed(plain)
        await timed(paired)
        ratios = []
        for number in range(ROUNDS):
            if number % 2:
                first, second = await timed(plain), await timed(paired)
            else:
                second, first = await timed(paired), await timed(plain)
            ratios.append(first / second)
        return statistics.median(ratios)


# --- the return -----------------------------------------------------------------------------------


def kill_and_mend(broker: BrokerProcess) -> Callable[[], None]:
    broker.kill()
    return broker.restart


def freeze_and_mend(broker: BrokerProcess) -> Callable[[], None]:
    broker.process.send_signal(signal.SIGSTOP)
    return lambda: broker.process.send_signal(signal.SIGCONT)


def disable_and_mend(broker: BrokerProcess) -> Callable[[], None]:
    entities = Client(broker.connection_string).entities
    entities.update_queue("paired", Status="Disabled")

    def mend() -> None:
        entities.update_queue("paired", Status="Active")

    return mend


async def comes_back(
    primary: BrokerProcess,
    secondary: BrokerProcess,
    interval_s: float,
    outage: Callable[[BrokerProcess], Callable[[], None]],
) -> float:
    """Seconds from the primary's return to the first message that it takes from the sender."""
    chosen = options(
        ping_primary_interval=timedelta(seconds=interval_s), send_timeout=timedelta(seconds=2)
    )
    async with (
        await paired_aio.pair_namespace(
            primary.connection_string, secondary.connection_string, chosen
        ) as bus,
        bus.get_queue_sender("paired") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("before"))
        mend = await asyncio.to_thread(outage, primary)
        while bus.status().entities[0].health is not Health.FAILED_OVER:
            await sender.send_messages(ServiceBusMessage("during"))
        await asyncio.sleep(1.5 * interval_s)
        await asyncio.to_thread(mend)
        begin = time.perf_counter()
        before = bus.ledger.total().primary_sends
        while bus.ledger.total().primary_sends == before:
            await sender.send_messages(ServiceBusMessage("after"))
            await asyncio.sleep(0.01)
        return time.perf_counter() - begin


# --- the drain ------------------------------------------------------------------------------------


def fill(primary: str, secondary: str, count: int) -> float:
    begin = time.perf_counter()
    with (
        pair_namespace(primary, secondary, options()) as bus,
        bus.get_queue_sender("paired") as sender,
    ):
        bus.engage("paired", hold=True)
        for first in range(0, count, BATCH):
            sender.send_messages(
                [
                    ServiceBusMessage(b"x" * 100, message_id=f"{number}", session_id="s")
                    for number in range(first, min(first + BATCH, count))
                ]
            )
    return time.perf_counter() - begin


async def drain(primary: str, secondary: str, count: int) -> float:
    async with await paired_aio.pair_namespace(
        primary, secondary, options(enable_syphon=True)
    ) as bus:
        assert bus.syphon is not None
        begin = time.perf_counter()
        while bus.syphon.flow.completed < count:
            await asyncio.sleep(0.05)
        return time.perf_counter() - begin


def bare(primary: str, secondary: str, count: int) -> float:
    """The lean client: receive, send, complete, and nothing else."""
    path = backlog_path("localhost", 0)
    with (
        Client(secondary) as there,
        there.receiver(path) as receiver,
        Client(primary) as here,
        here.sender("bare") as sender,
    ):
        begin = time.perf_counter()
        moved = 0
        while moved < count:
            messages = receiver.receive(BATCH, wait_s=10)
            sender.send_all([message.body for message in messages])
            receiver.complete(messages)
            moved += len(messages)
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sends", type=int, default=300, help="a round (300)")
    parser.add_argument("--drain", type=int, default=100_000, help="messages (100,000)")
    parser.add_argument("--interval", type=float, default=3.0, help="between pings (3)")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        folder = Path(name)
        primary = BrokerProcess.start(folder / "a", ["--emulator", "--port", str(free_port())])
        secondary = BrokerProcess.start(folder / "b", ["--emulator"])
        with primary, secondary:
            for queue in ("plain", "paired", "bare"):
                primary.create_queue(queue, MaxSizeInMegabytes=5120)
            here, there = primary.connection_string, secondary.connection_string
            ratio = healthy_blocking(here, there, given.sends)
            print(f"healthy, blocking: {ratio:.3f} of the plain SDK's send rate", flush=True)
            ratio = asyncio.run(healthy_asyncio(here, there, given.sends))
            print(f"healthy, asyncio:  {ratio:.3f} of the plain SDK's send rate", flush=True)
            for outage in (kill_and_mend, freeze_and_mend, disable_and_mend):
                took_s = asyncio.run(comes_back(primary, secondary, given.interval, outage))
                what = outage.__name__.partition("_")[0]
                print(
                    f"first send after the return ({what}): {took_s:.2f} s, with a ping every "
                    f"{given.interval:g} s",
                    flush=True,
                )
            asyncio.run(drain(here, there, 0))
            _measure_drain(here, there, given.drain)


def _measure_drain(here: str, there: str, count: int) -> None:
    # What the outages have left is first brought home.
    entities = Client(there).entities
    path = backlog_path("localhost", 0)
    left = entities.get_queue(path).counts["ActiveMessageCount"]
    asyncio.run(drain(here, there, left))
    least = max(BATCH, count // 5)
    fill(here, there, least)
    bare_rate = least / bare(here, there, least)
    filled_s = fill(here, there, count)
    took_s = asyncio.run(drain(here, there, count))
    print(f"filled {count:,} in {filled_s:.1f} s ({count / filled_s:,.0f}/s, blocking SDK)")
    print(
        f"drained {count:,} in {took_s:.1f} s: {count / took_s:,.0f}/s, "
        f"{count / took_s / bare_rate:.2f} of a bare receive and send of the lean client "
        f"({bare_rate:,.0f}/s)"
    )


if __name__ == "__main__":
    main()
