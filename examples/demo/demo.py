"""Tandem in two minutes: `make demo`, or `python examples/demo/demo.py [--keep] [--folder DIR]`.

Two real brokers on this machine. A shop sends orders of three levels to the first; workers serve
the high ones first. The first broker is killed: the shop goes on, its orders wait in the second,
and come home when the first is back. Then Spark reads what both brokers have written down, and a
report says what happened. Every step checks what it shows; the exit code is 1 if something is not
as it says.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandembus.client import Client
from tandembus.pairing import EntityChanged, PairingOptions, pair_namespace
from tandembus.pairing.blocking import PairedNamespace, PairedSender
from tandembus.pairing.console import show_on_console
from tandembus.testing import BrokerProcess

LEVELS = {"express": 9, "normal": 5, "whenever": 0}
ORDERS = 240


def say(text: str = "") -> None:
    print(text, flush=True)


def step(number: int, text: str) -> None:
    say(f"\n{number}. {text}")


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


def wait_for(what: str, is_so: Callable[[], bool], seconds: float = 60) -> float:
    """Until it is so, saying that we wait; how long it took."""
    began = time.monotonic()
    while not is_so():
        check(time.monotonic() - began < seconds, f"{what} within {seconds:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - began


class Shop:
    """Sends orders through the pair, and tries again what is refused, as a shop would."""

    def __init__(self, sender: PairedSender) -> None:
        self._sender = sender
        self._chance = random.Random(7)
        self.sent = 0

    def sell(self, count: int) -> None:
        for _ in range(count):
            tier = self._chance.choices(list(LEVELS), [1, 3, 4])[0]
            order = ServiceBusMessage(
                f'{{"order": {self.sent}, "tier": "{tier}"}}',
                message_id=f"order-{self.sent}",
                application_properties={"tier": tier},
            )
            order.raw_amqp_message.header.priority = LEVELS[tier]  # type: ignore[union-attr]
            while True:
                try:
                    self._sender.send_messages(order)
                    break
                except ServiceBusError:
                    time.sleep(0.2)
            self.sent += 1


class Warehouse:
    """Receives from the first broker, whenever that is there."""

    def __init__(self, connection_string: str) -> None:
        self._connection_string = connection_string
        self._is_open = threading.Event()
        self._ended = threading.Event()
        self.received: list[str] = []
        self.tiers: list[str] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def open(self) -> None:
        self._is_open.set()

    def close(self) -> None:
        self._is_open.clear()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def _work(self) -> None:
        while not self._ended.is_set():
            if not self._is_open.wait(0.1):
                continue
            try:
                with (
                    ServiceBusClient.from_connection_string(
                        self._connection_string, retry_total=0
                    ) as client,
                    client.get_queue_receiver("orders", max_wait_time=1) as receiver,
                ):
                    while self._is_open.is_set() and not self._ended.is_set():
                        for message in receiver.receive_messages(10, max_wait_time=0.5):
                            receiver.complete_message(message)
                            properties = message.application_properties or {}
                            self.received.append(str(message.message_id))
                            self.tiers.append(bytes(properties[b"tier"]).decode())
            except ServiceBusError:
                time.sleep(0.2)


def tell(event: object) -> None:
    if isinstance(event, EntityChanged):
        say(f"   → {event.path} is {event.now.value}")


def story(primary: BrokerProcess, secondary: BrokerProcess, folder: Path) -> None:
    step(1, "Two brokers are running, each with a console:")
    for name, broker in (("primary", primary), ("secondary", secondary)):
        say(f"   {name:<10} http://127.0.0.1:{broker.port}/$console/   (key: SAS_KEY_VALUE)")
    with Client(primary.connection_string) as client:
        client.entities.create_queue(
            "orders", PriorityLevels=10, RequiresDuplicateDetection=True, PriorityAgingSeconds=60
        )
    options = PairingOptions(
        backlog_queue_count=2,
        failover_interval=timedelta(seconds=1),
        ping_primary_interval=timedelta(seconds=1),
        enable_syphon=True,
        primary_name="primary",
        client_options={"retry_total": 0},
    )
    bus = pair_namespace(primary.connection_string, secondary.connection_string, options)
    bus.subscribe(tell)
    reporter = show_on_console(bus, secondary.connection_string, "the shop")
    warehouse = Warehouse(primary.connection_string)
    try:
        with bus.get_queue_sender("orders") as sender:
            trade(primary, bus, Shop(sender), warehouse)
    finally:
        warehouse.end()
        reporter.stop()
        bus.close()


def trade(primary: BrokerProcess, bus: PairedNamespace, shop: Shop, warehouse: Warehouse) -> None:
    step(2, f"The shop sends {ORDERS} orders of three levels, and nobody works yet.")
    shop.sell(ORDERS)
    say(f"   {shop.sent} orders are on disk. Now the warehouse opens:")
    warehouse.open()
    wait_for("the orders arrive", lambda: len(warehouse.received) == shop.sent)
    first = Counter(warehouse.tiers[: ORDERS // 4])
    shown = ", ".join(f"{count} {tier}" for tier, count in first.most_common())
    say(f"   the first quarter that it got: {shown}")
    check(first["whenever"] == 0, "no order of the lowest level is in the first quarter")

    step(3, "The primary is killed (kill -9) while the shop sells.")
    warehouse.close()
    primary.kill()
    shop.sell(ORDERS // 4)
    backlogged = bus.status().operations.backlog_sends
    say(f"   {shop.sent} orders sold; {backlogged} of them wait in the second broker.")
    check(backlogged > 0, "orders went to the backlog")

    step(4, "The primary comes back.")
    primary.restart()
    warehouse.open()
    took = wait_for("all orders come home", lambda: len(set(warehouse.received)) == shop.sent)
    say(f"   the syphon brought them home; all {shop.sent} orders are there {took:.1f} s after.")
    check(len(warehouse.received) == shop.sent, "every order once")
    shop.sell(10)
    wait_for("the straight way works again", lambda: len(warehouse.received) == shop.sent)
    say("   every order exactly once, and new ones go the straight way again.")


def report(folder: Path) -> None:
    step(5, "Spark reads the logs of both brokers, and writes a report.")
    if find_spec("pyspark") is None:
        say("   pyspark is not installed: pip install 'tandembus[spark]' for this step")
        return
    journals = []
    for name in ("primary", "secondary"):
        journal = folder / "journal" / name
        names = ("--namespace", name, "--out", str(journal))
        run("journal", "run", str(folder / name), *names, "--once", "--quiet")
        journals.append(str(journal))
    out = folder / "report"
    run("report", *journals, "--out", str(out))
    page = next(out.glob("*.html"), None)
    check(page is not None, "there is a report")
    say(f"   the report: {page}")


def run(*words: str) -> None:
    """A command of ours, with what it prints."""
    command = [sys.executable, "-m", "tandembus.cli", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            say(f"   {line.rstrip()}")
    check(process.returncode == 0, f"tandem {words[0]} ended with {process.returncode}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave both brokers running at the end")
    parser.add_argument("--folder", type=Path, help="where everything goes (a temporary folder)")
    parser.add_argument("--no-report", action="store_true", help="without Spark")
    options = parser.parse_args()
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    logging.getLogger("tandembus").setLevel(logging.ERROR)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tandem-demo-"))
    began = time.monotonic()
    brokers: list[BrokerProcess] = []
    try:
        for name in ("primary", "secondary"):
            shutil.rmtree(folder / name, ignore_errors=True)
            arguments = ["--namespace", name, "--emulator", "--host", "127.0.0.1"]
            brokers.append(
                BrokerProcess.start(folder / name, [*arguments, "--port", str(free_port())])
            )
        story(*brokers, folder)
        if not options.no_report:
            report(folder)
        say(f"\nDone in {time.monotonic() - began:.0f} s. Everything lies in {folder}")
        if options.keep:
            say("Both brokers go on; Ctrl-C ends them.")
            while True:
                time.sleep(1)
    except KeyboardInterrupt:
        say("\nEnded.")
    finally:
        for broker in brokers:
            broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
