"""What pairing costs while all is well, how soon a sender is back, how fast a backlog comes home.

  python -m bench.pairing [--sends N] [--drain N] [--interval SECONDS]

Everything is a ratio or a time within one run, on two brokers of this machine:
- the send rate of a paired sender against the plain SDK's, in turns, blocking and asyncio (N3);
- from the primary's return to the first send on it: killed, frozen, cut off, refusing (N8);
- a backlog of N messages: its drain, and the syphon's rate against a bare receive and send of the
  lean client before and after it, which is the least that any mover has to do (N9);
- the ledger beside the brokers' own count of operations, and an hour of an idle syphon (N11).

It prints a table, with what is asked for, and ends with 1 if a time or a count is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from tandembus.client import Client
from tandembus.pairing import Health, PairingOptions, pair_namespace
from tandembus.pairing import aio as paired_aio
from tandembus.pairing.options import backlog_path
from tandembus.testing import BrokerProcess
from tests.pairing.audit import audit, idle
from tests.pairing.lines import free_port
from tests.pairing.turnstile import Turnstile, Way

CHUNK = 20
"""Sends in a row; short, so that whatever else the machine does hits both ways alike."""
BATCH = 100
QUEUES = 10
HEALTHY = 0.95
AUDITED = 1_000


@dataclass(frozen=True)
class Line:
    """Of the table."""

    what: str
    measured: str
    asked: str = ""
    is_so: bool = True


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
    """The median of the ratios of chunks that follow on each other, each way first in turn."""
    with (
        pair_namespace(primary, secondary, options()) as bus,
        ServiceBusClient.from_connection_string(primary) as client,
        client.get_queue_sender("plain") as plain,
        bus.get_queue_sender("paired") as paired,
    ):

        def timed(sender: Any) -> float:
            begin = time.perf_counter()
            for _ in range(CHUNK):
                sender.send_messages(ServiceBusMessage(b"x" * 100))
            return time.perf_counter() - begin

        timed(plain), timed(paired)
        ratios = []
        for number in range(max(1, sends // CHUNK)):
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
            for _ in range(CHUNK):
                await sender.send_messages(ServiceBusMessage(b"x" * 100))
            return time.perf_counter() - begin

        await timed(plain)
        await timed(paired)
        ratios = []
        for number in range(max(1, sends // CHUNK)):
            if number % 2:
                first, second = await timed(plain), await timed(paired)
            else:
                second, first = await timed(paired), await timed(plain)
            ratios.append(first / second)
        return statistics.median(ratios)


# --- the return -----------------------------------------------------------------------------------


class Primary:
    """A broker behind a proxy, and the ways to take it away; each returns what mends it."""

    def __init__(self, broker: BrokerProcess, turnstile: Turnstile) -> None:
        self._broker = broker
        self._turnstile = turnstile
        self.way_in = broker.connection_string.replace(
            broker.address, f"127.0.0.1:{turnstile.port}"
        )

    def killed(self) -> Callable[[], None]:
        self._broker.kill()
        return self._broker.restart

    def frozen(self) -> Callable[[], None]:
        process = self._broker.process
        process.send_signal(signal.SIGSTOP)
        return lambda: process.send_signal(signal.SIGCONT)

    def cut_off(self) -> Callable[[], None]:
        self._turnstile.turn(Way.CUT)
        return lambda: self._turnstile.turn(Way.OPEN)

    def refusing(self) -> Callable[[], None]:
        entities = Client(self._broker.connection_string).entities
        entities.update_queue("paired", Status="Disabled")

        def mend() -> None:
            entities.update_queue("paired", Status="Active")

        return mend


async def comes_back(
    way_in: str, secondary: str, interval_s: float, outage: Callable[[], Callable[[], None]]
) -> float:
    """Seconds from the primary's return to the first message that it takes from the sender."""
    chosen = options(
        primary_name="localhost",
        ping_primary_interval=timedelta(seconds=interval_s),
        send_timeout=timedelta(seconds=2),
    )
    async with (
        await paired_aio.pair_namespace(way_in, secondary, chosen) as bus,
        bus.get_queue_sender("paired") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("before"))
        mend = await asyncio.to_thread(outage)
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


def fill(primary: str, secondary: str, count: int, queues: int = 1) -> float:
    """By several senders, so that they spread over the queues."""
    begin = time.perf_counter()
    with pair_namespace(primary, secondary, options(backlog_queue_count=queues)) as bus:
        bus.engage("paired", hold=True)
        senders = [bus.get_queue_sender("paired") for _ in range(4 * queues - 3)]
        for first in range(0, count, BATCH):
            senders[first // BATCH % len(senders)].send_messages(
                [
                    ServiceBusMessage(b"x" * 100, message_id=f"{number}", session_id="s")
                    for number in range(first, min(first + BATCH, count))
                ]
            )
    return time.perf_counter() - begin


async def drain(primary: str, secondary: str, count: int, queues: int = 1) -> float:
    async with await paired_aio.pair_namespace(
        primary, secondary, options(enable_syphon=True, backlog_queue_count=queues)
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sends", type=int, default=3_000, help="each way (3,000)")
    parser.add_argument("--drain", type=int, default=100_000, help="messages (100,000)")
    parser.add_argument("--interval", type=float, default=3.0, help="between pings (3)")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    table: list[Line] = []

    def show(line: Line) -> None:
        table.append(line)
        print(f"… {line.what}: {line.measured}", flush=True)

    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        folder = Path(name)
        broker = BrokerProcess.start(folder / "a", ["--emulator", "--port", str(free_port())])
        secondary = BrokerProcess.start(folder / "b", ["--emulator"])
        with broker, secondary, Turnstile(broker.port) as turnstile:
            for queue in ("plain", "paired", "bare"):
                broker.create_queue(queue, MaxSizeInMegabytes=5120)
            here, there = broker.connection_string, secondary.connection_string
            _healthy(here, there, given.sends, show)
            _returns(Primary(broker, turnstile), there, given.interval, show)
            _drain(here, there, given.drain, show)
    _counts(show)
    print(f"\n{'':52}{'measured':>28}{'asked for':>16}")
    for line in table:
        print(f"{line.what:52}{line.measured:>28}{line.asked:>16}{'' if line.is_so else '   NO'}")
    return 0 if all(line.is_so for line in table) else 1


Show = Callable[[Line], None]


def _healthy(here: str, there: str, sends: int, show: Show) -> None:
    """A ratio says nothing certain on a busy machine: it is shown, and not judged."""
    aim = f"≥ {HEALTHY}"
    ratio = healthy_blocking(here, there, sends)
    show(Line("healthy, blocking: rate against the plain SDK's", f"{ratio:.3f}", aim))
    ratio = asyncio.run(healthy_asyncio(here, there, sends))
    show(Line("healthy, asyncio: rate against the plain SDK's", f"{ratio:.3f}", aim))


def _returns(primary: Primary, there: str, interval_s: float, show: Show) -> None:
    limit_s = interval_s + 1
    for outage in (primary.killed, primary.frozen, primary.cut_off, primary.refusing):
        took_s = asyncio.run(comes_back(primary.way_in, there, interval_s, outage))
        what = f"first send after the return ({outage.__name__.replace('_', ' ')})"
        show(Line(what, f"{took_s:.2f} s", f"≤ {limit_s:g} s", took_s <= limit_s))


def _drain(here: str, there: str, count: int, show: Show) -> None:
    # What the outages have left is first brought home.
    path = backlog_path("localhost", 0)
    left = Client(there).entities.get_queue(path).counts["ActiveMessageCount"]
    asyncio.run(drain(here, there, left))
    some = max(BATCH, count // 10)
    fill(here, there, some)
    bare_s = bare(here, there, some)
    filled_s = fill(here, there, count, QUEUES)
    took_s = asyncio.run(drain(here, there, count, QUEUES))
    fill(here, there, some)
    single_s = asyncio.run(drain(here, there, some))
    fill(here, there, some)
    bare_s += bare(here, there, some)
    bare_rate = 2 * some / bare_s
    show(Line(f"{count:,} into {QUEUES} backlog queues", f"{count / filled_s:,.0f}/s"))
    show(Line("bare receive and send of the lean client", f"{bare_rate:,.0f}/s"))
    for moved, seconds, queues in ((count, took_s, QUEUES), (some, single_s, 1)):
        rate = moved / seconds
        what = f"{moved:,} drained from {queues} backlog queue{'s' * (queues > 1)}"
        show(Line(what, f"{seconds:.1f} s, {rate:,.0f}/s", f"bare × {rate / bare_rate:.2f}"))


def _counts(show: Show) -> None:
    for what, ledger, brokers in audit(AUDITED):
        show(Line(f"ledger: {what}", f"{ledger:,}", f"{brokers:,}", ledger == brokers))
    hour, counted = idle(10, 1)
    show(Line("idle syphon, 10 queues, an hour: receives", str(hour), "40", hour == counted == 40))


if __name__ == "__main__":
    sys.exit(main())
