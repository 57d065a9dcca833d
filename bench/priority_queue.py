"""What priorities cost: a queue of ten levels beside a plain one, on one broker, by one client.

    make bench-priority ARGS="--waiting 100000"

Both queues are filled to the same number of waiting messages, then received from, in slices that
take turns, so that whatever else the machine does strikes both alike. The broker is a process of
its own on real files; the lean client sends and receives. Ratios are medians over the pairs of
slices, of what is done in a second and of the broker's CPU time for one message.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tandembus.client import Client, OutgoingMessage
from tandembus.client.blocking import Receiver, Sender
from tandembus.testing import BrokerProcess

PLAIN: Final = "plain"
KINDS: Final[Mapping[str, Mapping[str, str | int]]] = {
    "levels": {"PriorityLevels": 10},
    "aged": {"PriorityLevels": 10, "PriorityAgingSeconds": 60},
    "weighted": {"PriorityLevels": 10, "PriorityWeights": "1 2 3 4 5 6 7 8 9 10"},
}
CREDIT: Final = 1_000


class Slice(NamedTuple):
    per_s: float
    cpu_us: float
    """Of the broker, for one message."""


def messages(count: int, size: int, random: Random) -> Iterator[OutgoingMessage]:
    body = b"x" * size
    for _ in range(count):
        yield OutgoingMessage(body, priority=random.randrange(10))


def measured(broker: BrokerProcess, count: int, work: Callable[[], None]) -> Slice:
    cpu, began = cpu_s(broker), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return Slice(count / seconds, (cpu_s(broker) - cpu) / count * 1e6)


def cpu_s(broker: BrokerProcess) -> float:
    threads = Path(f"/proc/{broker.process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def send(sender: Sender, batch: list[OutgoingMessage]) -> None:
    """Single messages, pipelined, each on disk at the end."""
    for message in batch:
        sender.post(message)
    sender.flush()


def fill(sender: Sender, count: int, size: int, random: Random) -> None:
    sender.send_all(messages(count, size, random)).check()


def receive(receiver: Receiver, count: int) -> None:
    """Received and completed."""
    while count:
        received = receiver.receive(min(CREDIT, count), wait_s=60)
        receiver.complete(received)
        count -= len(received)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--slices", type=int, default=40)
    parser.add_argument("--per-slice", type=int, default=5_000)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="levels")
    options = parser.parse_args()
    kinds = list(KINDS) if options.kind == "all" else [options.kind]
    random = Random(5)
    with (
        BrokerProcess.start() as broker,
        Client(broker.connection_string, timeout_s=600) as client,
    ):
        client.entities.create_queue(PLAIN, MaxSizeInMegabytes=5_120)
        for kind in kinds:
            client.entities.create_queue(kind, MaxSizeInMegabytes=5_120, **KINDS[kind])
        queues = [PLAIN, *kinds]
        senders = {queue: client.sender(queue) for queue in queues}
        rates: dict[str, list[Slice]] = {queue: [] for queue in queues}
        for _ in range(options.slices):
            for queue in queues:
                batch = list(messages(options.per_slice, options.size, random))
                work = partial(send, senders[queue], batch)
                rates[queue].append(measured(broker, options.per_slice, work))
        show("sent", rates)
        more = options.waiting - options.slices * options.per_slice
        for queue in queues:
            if more > 0:
                fill(senders[queue], more, options.size, random)
            counts = client.entities.get_queue(queue).counts
            print(f"{queue:<10}{counts['ActiveMessageCount']:>12,} waiting", flush=True)
            senders[queue].close()
        receivers = {queue: client.receiver(queue) for queue in queues}
        rates = {queue: [] for queue in queues}
        for _ in range(options.slices):
            for queue in queues:
                work = partial(receive, receivers[queue], options.per_slice)
                rates[queue].append(measured(broker, options.per_slice, work))
        show("received", rates)
    return 0


def show(what: str, rates: dict[str, list[Slice]]) -> None:
    plain = rates[PLAIN]
    print(f"{what:<12}{'messages/s':>12}{'of plain':>10}{'broker CPU':>14}{'of plain':>10}")
    for queue, found in rates.items():
        pairs = list(zip(found, plain, strict=True))
        rate = statistics.median(one.per_s for one in found)
        cpu = statistics.median(one.cpu_us for one in found)
        faster = statistics.median(one.per_s / other.per_s for one, other in pairs)
        dearer = statistics.median(one.cpu_us / other.cpu_us for one, other in pairs)
        print(f"{queue:<12}{rate:>12,.0f}{faster:>10.2f}{cpu:>11.1f} µs{dearer:>10.2f}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
