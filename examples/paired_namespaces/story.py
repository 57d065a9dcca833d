"""Paired namespaces in a terminal: two real servers, an outage, and the way home.

    python examples/paired_namespaces/story.py

A shop sends its orders to the primary. The primary is killed; the shop goes on selling, and its
orders wait in the secondary. The primary comes back; pings notice it, the syphon brings the orders
home, and the warehouse has every one of them once, in order. Each step checks what it shows; the
exit code is 1 if something is not as it says.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from azure.servicebus import ServiceBusMessage

from tandembus.pairing import EntityChanged, Health, PairingOptions
from tandembus.pairing.aio import PairedNamespace, pair_namespace
from tandembus.testing import BrokerProcess


def say(text: str) -> None:
    print(text, flush=True)


def check(is_so: bool, what: str) -> None:
    if not is_so:
        raise SystemExit(f"NOT as it should be: {what}")


def free_port() -> int:
    """For a server that comes back to the same one; below those that clients are given."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


async def until(bus: PairedNamespace, health: Health) -> None:
    while bus.status().entities[0].health is not health:
        await asyncio.sleep(0.05)


async def story(primary: BrokerProcess, secondary: BrokerProcess) -> None:
    options = PairingOptions(
        backlog_queue_count=1,
        failover_interval=timedelta(seconds=1),
        ping_primary_interval=timedelta(seconds=1),
        return_check_interval=timedelta(milliseconds=200),
        enable_syphon=True,
        ordered_return=True,
        client_options={"retry_total": 0},
    )
    say("1. Two servers, and the only two lines that a program changes:")
    say(
        '   bus = await pair_namespace(primary, secondary, options); bus.get_queue_sender("orders")'
    )
    bus = await pair_namespace(primary.connection_string, secondary.connection_string, options)
    bus.subscribe(tell)
    number = 0

    async def sell(count: int) -> None:
        nonlocal number
        for _ in range(count):
            order = ServiceBusMessage(f"order {number}", message_id=f"{number}", session_id="shop")
            while True:
                try:
                    await sender.send_messages(order)
                    break
                except Exception as error:  # noqa: BLE001 - as a shop would: try again
                    say(f"   order {number} was refused ({type(error).__name__}); again")
                    await asyncio.sleep(0.4)
            number += 1

    async with bus, bus.get_queue_sender("orders") as sender:
        await sell(5)
        say(f"2. {number} orders went straight to the primary. Now it is killed.")
        primary.kill()
        await sell(10)
        status = bus.status()
        waiting = status.entities[0].sent_to_backlog
        say(f"3. {number} orders are taken; {waiting} of them wait in the secondary.")
        check(waiting == 10, "orders of the outage are in the backlog")
        say("4. The primary comes back; a ping will notice it.")
        primary.restart()
        await until(bus, Health.HEALTHY)
        assert bus.syphon is not None
        flow = bus.syphon.flow
        say(f"5. The syphon has brought {flow.completed} orders home; the next go straight again.")
        await sell(5)
        got: list[str] = []
        async with bus.get_queue_receiver("orders", session_id="shop") as receiver:
            while len(got) < number:
                for message in await receiver.receive_messages(number, max_wait_time=5):
                    got.append(str(message))
                    await receiver.complete_message(message)
        check(got == [f"order {n}" for n in range(number)], "every order, once, in order")
        say(f"6. The warehouse has all {number} orders, each once, in the order of their sale.")
        cost = bus.ledger.total()
        say(
            f"7. It cost {cost.total} operations: {cost.backlog_sends} sends to the backlog, "
            f"{cost.backlog_receives} receives from it, {cost.syphon_sends} sends home, "
            f"{cost.expected_receives} receives there, {cost.pings} ping, {cost.peeks} peeks."
        )


def tell(event: object) -> None:
    if isinstance(event, EntityChanged):
        say(f"   >> '{event.path}' is {event.now} (was {event.was}): {event.why[:60]}")


def main() -> int:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="tandem-story-") as name:
        folder = Path(name)
        primary = BrokerProcess.start(folder / "a", ["--emulator", "--port", str(free_port())])
        secondary = BrokerProcess.start(folder / "b", ["--emulator"])
        with primary, secondary:
            primary.create_queue("orders", RequiresSession=True, RequiresDuplicateDetection=True)
            asyncio.run(story(primary, secondary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
