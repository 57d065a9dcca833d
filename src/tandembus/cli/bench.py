"""`tandem bench`: a short measurement of this broker on this machine.

It is for a first impression, and for telling two machines or two versions apart; what is measured
beside other brokers is docs/performance.md. Every message is on disk before its send counts.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tandembus.cli import codes
from tandembus.cli.connection import add_connection, connection_string
from tandembus.cli.output import add_json, counted, print_json, print_rows, progress
from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from tandembus.client import Client

_ONE_BY_ONE: Final = 200
_PREFIX: Final = "tandem-bench"


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    parser = commands.add_parser(
        "bench",
        help="a short measurement of a broker on this machine",
        description="Sends messages in batches, receives and completes them, then sends one by one "
        "for the latency. Without a connection string it starts a broker of its own, in a process "
        "of its own and in a folder that is removed again. It makes one queue for each client, and "
        "deletes them.",
        epilog="examples:\n"
        "  tandem bench\n"
        "  tandem bench --messages 200000 --size 200 --clients 4\n"
        "  tandem bench --folder data --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=20_000, help="in all (20,000)")
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body (1,024)")
    parser.add_argument("--clients", type=int, default=1, help="connections, a queue each (1)")
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if min(options.messages, options.clients) < 1 or options.size < 0:
        raise ArgumentError("--messages and --clients are 1 or more, --size is 0 or more.")
    with _broker(options) as target:
        found = measure(options, target)
    if options.json:
        print_json(found)
    else:
        rows = [(name.replace("_", " "), value) for name, value in found.items()]
        print_rows(options, ("what", "value"), rows)
    return codes.WELL


@contextmanager
def _broker(options: argparse.Namespace) -> Iterator[str]:
    """The broker that is named, or one of our own."""
    import os

    from tandembus.cli.connection import VARIABLE

    if options.connection_string or options.folder or os.environ.get(VARIABLE):
        yield connection_string(options)
        return
    from tandembus.testing import BrokerProcess

    with BrokerProcess.start() as broker:
        yield broker.connection_string


def measure(options: argparse.Namespace, target: str) -> dict[str, float]:
    from tandembus.client import Client

    share = max(1, options.messages // options.clients)
    total = share * options.clients
    queues = [f"{_PREFIX}-{number}" for number in range(options.clients)]
    body = b"x" * options.size
    with Client(target, ca_file=options.ca_file) as first:
        for queue in queues:
            first.entities.create_queue(queue)
        try:
            with progress("measuring", 2 * total + _ONE_BY_ONE) as step:
                clients = [Client(target, ca_file=options.ca_file) for _ in queues]
                pairs = list(zip(clients, queues, strict=True))
                try:
                    sent_s = _together(pairs, lambda it, to: _send(it, to, body, share, step))
                    taken_s = _together(pairs, lambda it, to: _receive(it, to, share, step))
                finally:
                    for client in clients:
                        client.close()
                times = _latencies(first, queues[0], body, step)
        finally:
            for queue in queues:
                first.entities.delete_queue(queue)
    return {
        "messages": total,
        "bytes_each": options.size,
        "sent_per_second": round(total / sent_s),
        "received_per_second": round(total / taken_s),
        "latency_ms_median": round(statistics.median(times), 2),
        "latency_ms_p99": round(sorted(times)[len(times) * 99 // 100], 2),
    }


def _together(pairs: list[tuple[Client, str]], work: Any) -> float:
    """All of them at the same time; the seconds that it took."""
    failures: list[BaseException] = []

    def guarded(client: Client, queue: str) -> None:
        try:
            work(client, queue)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=pair, daemon=True) for pair in pairs]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # so that Ctrl-C is heard
            thread.join(0.2)
    if failures:
        raise failures[0]
    return time.perf_counter() - began


def _send(client: Client, queue: str, body: bytes, count: int, step: Any) -> None:
    with client.sender(queue) as sender:
        for start in range(0, count, 1_000):
            some = min(1_000, count - start)
            sender.send_all([body] * some).check()
            step(some)


def _receive(client: Client, queue: str, count: int, step: Any) -> None:
    taken = 0
    with client.receiver(queue, prefetch=1_000) as receiver:
        while taken < count:
            messages = receiver.receive(500, wait_s=10)
            if not messages:
                left = counted(count - taken, "message")
                raise ArgumentError(f"{left} did not come: who else receives?")
            receiver.complete(messages)
            taken += len(messages)
            step(len(messages))


def _latencies(client: Client, queue: str, body: bytes, step: Any) -> list[float]:
    times = []
    with client.sender(queue) as sender:
        for _ in range(_ONE_BY_ONE):
            began = time.perf_counter()
            sender.send(body)
            times.append((time.perf_counter() - began) * 1000)
            step(1)
    return times
