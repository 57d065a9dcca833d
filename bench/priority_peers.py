"""Tandem's priority queue beside RabbitMQ's classic priority queue, on the same machine.

    python -m bench.priority_peers [--rounds 3] [--secs 5] [--overload-secs 40]

1. Speed: durable messages of 1 KB, priorities 0 to 9 in turn, sent and received together by the
   generators of `bench/src`, 500 in flight, each message confirmed. Medians of the rounds, and the
   ratio; a plain queue of each beside it.
2. Overload: a consumer that does 100 messages a second, one in hand, gets 120 high (priority 9) and
   5 low (priority 0) each second: what becomes of the low ones. Python clients on both sides.

Debian, root: RabbitMQ is installed and started as `bench/peers` does it, on loopback, and ended.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from bench.queues import STRING
from tandembus.client import Client, OutgoingMessage

HERE = Path(__file__).resolve().parent
LEVELS = 10
MAX_ROUNDS = 9
AGING_S = 0.5
CONSUMED = 100.0
"""Messages a second, in the overload."""
HIGH_RATE, LOW_RATE = 120.0, 5.0
_STAMP = struct.Struct("<d")


def load_peers() -> Any:
    """`bench/peers`, which is a program, as a module."""
    loader = SourceFileLoader("peers", str(HERE / "peers"))
    spec = spec_from_loader("peers", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


peers = load_peers()


class Tandem(peers.Broker):  # type: ignore[misc, name-defined]
    """As a user starts it, with a plain queue and two with priorities."""

    sasl = ("--sasl", "plain", "--user", "RootManageSharedAccessKey", "--pass", "SAS_KEY_VALUE")

    def __init__(self) -> None:
        super().__init__("ours", peers.free_port(21600), "%d")

    def command(self) -> tuple[list[str], dict[str, str]]:
        serve = ["serve", self.dir, "--host", "127.0.0.1", "--port", str(self.port), "--emulator"]
        return [sys.executable, "-m", "tandembus.cli", *serve], {"PYTHONPATH": str(HERE.parent)}

    @property
    def connection_string(self) -> str:
        return STRING.format(port=self.port)

    def prepare(self) -> None:
        kinds = {
            "plain": {},
            "strict": {"PriorityLevels": LEVELS},
            "aged": {"PriorityLevels": LEVELS, "PriorityAgingSeconds": f"{AGING_S:g}"},
        }
        with Client(self.connection_string) as client:
            for name, settings in kinds.items():
                for number in range(MAX_ROUNDS + 1):
                    client.entities.create_queue(
                        f"{name}-{number}", MaxSizeInMegabytes=5120, **settings
                    )


class Rabbit(peers.Rabbit):  # type: ignore[misc, name-defined]
    """One node: plain queues q0 …, and p0 … with priorities."""

    sasl = ()

    def __init__(self) -> None:
        super().__init__("classic")

    def prepare(self) -> None:
        super().prepare()
        self.declare("p", f'[{{<<"x-max-priority">>,byte,{LEVELS}}}]')


# --- speed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lane:
    """One way to a queue."""

    words: str
    broker: Any
    generator: str
    address: str
    has_priorities: bool = True
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def run(self, number: int, seconds: float) -> None:
        """Sent and received together. Each round has a queue of its own: what was under way at the
        end of the last one comes back when its locks run out."""
        address = self.address.replace("%d", str(number))
        spread = ("--spread", LEVELS) if self.has_priorities else ()
        how = {"gen": self.generator, "extra": list(self.broker.sasl)}
        limit = seconds + 60
        receiver = peers.launch(
            self.broker, "recv", address, "-t", seconds, "--idle", 3, "--wait", 10, **how
        )
        sender = peers.launch(self.broker, "send", address, "-t", seconds, *spread, **how)
        sent = peers.result(sender, limit)
        received = peers.result(receiver, limit)
        assert sent["bad"] == received["dups"] == 0, (sent, received)
        self.rates.append(received["rate"])


def measure_speed(tandem: Tandem, rabbit: Rabbit, rounds: int, seconds: float) -> list[Lane]:
    lanes = [
        Lane("Tandem, plain queue", tandem, "amqpload", "plain-%d", has_priorities=False),
        Lane("Tandem, 10 levels", tandem, "amqpload", "strict-%d"),
        Lane("Tandem, 10 levels, aging", tandem, "amqpload", "aged-%d"),
        Lane("RabbitMQ classic, plain, 0-9-1", rabbit, "amqp091load", "q%d", has_priorities=False),
        Lane("RabbitMQ classic, x-max-priority 10, 0-9-1", rabbit, "amqp091load", "p%d"),
        Lane("RabbitMQ classic, x-max-priority 10, 1.0", rabbit, "amqpload", "/amq/queue/p5%d"),
    ]
    for number in range(rounds):
        for lane in lanes[number % len(lanes) :] + lanes[: number % len(lanes)]:
            lane.run(number, seconds)
            peers.settle(lane.broker)
            peers.say(f"round {number + 1}: {lane.words}: {lane.rates[-1]:,.0f}/s")
    return lanes


def show_speed(lanes: list[Lane]) -> None:
    print("\nsend and receive together, durable, confirmed, 1 KB, priorities 0 to 9 in turn")
    for lane in lanes:
        print(f"  {lane.words:<44} {lane.rate:>9,.0f}/s")
    plain, strict, aged, rabbit_plain, native, amqp1 = lanes
    print(
        f"  Tandem / RabbitMQ, 10 levels: {strict.rate / native.rate:.2f} (its native protocol), "
        f"{strict.rate / amqp1.rate:.2f} (AMQP 1.0); with aging {aged.rate / native.rate:.2f}, "
        f"{aged.rate / amqp1.rate:.2f}"
    )
    print(
        f"  10 levels / plain: Tandem {strict.rate / plain.rate:.2f}, with aging "
        f"{aged.rate / plain.rate:.2f}; RabbitMQ {native.rate / rabbit_plain.rate:.2f}"
    )


# --- overload -------------------------------------------------------------------------------------

Send = Callable[[bytes, int], None]
"""A body and its priority; returns when it is confirmed."""
Receive = Callable[[], bytes | None]
"""The next body, settled at the next call; None: there is none for a moment."""


class TandemQueue:
    def __init__(self, broker: Tandem, queue: str) -> None:
        self._broker, self._queue = broker, queue

    @contextmanager
    def sender(self) -> Iterator[Send]:
        with Client(self._broker.connection_string) as client, client.sender(self._queue) as link:
            yield lambda body, priority: link.send(OutgoingMessage(body, priority=priority))

    @contextmanager
    def receiver(self) -> Iterator[Receive]:
        string = self._broker.connection_string
        with Client(string) as client, client.receiver(self._queue) as link:
            had: list[Any] = []

            def receive() -> bytes | None:
                if had:
                    link.complete(had.pop())
                had.extend(link.receive(1, wait_s=0.2))
                return had[0].body if had else None

            yield receive


class RabbitQueue:
    def __init__(self, broker: Rabbit, queue: str) -> None:
        self._broker, self._queue = broker, queue

    @contextmanager
    def _channel(self, **how: Any) -> Iterator[Any]:
        import amqp  # comes with kombu

        with amqp.Connection(f"127.0.0.1:{self._broker.port}", **how) as connection:
            yield connection.channel()

    @contextmanager
    def sender(self) -> Iterator[Send]:
        import amqp

        with self._channel(confirm_publish=True) as channel:
            yield lambda body, priority: channel.basic_publish_confirm(
                amqp.Message(body, priority=priority, delivery_mode=2), routing_key=self._queue
            )

    @contextmanager
    def receiver(self) -> Iterator[Receive]:
        with self._channel() as channel:
            channel.basic_qos(0, 1, False)
            came: list[Any] = []
            channel.basic_consume(self._queue, callback=came.append)
            had: list[Any] = []

            def receive() -> bytes | None:
                if had:
                    channel.basic_ack(had.pop().delivery_tag)
                if not came:
                    try:
                        channel.connection.drain_events(timeout=0.2)
                    except TimeoutError:
                        return None
                had.extend(came[:1])
                del came[:1]
                body = had[0].body if had else None
                return body.encode("latin-1") if isinstance(body, str) else body

            yield receive


@dataclass
class Fate:
    """Of the messages of one priority."""

    sent: int = 0
    waits_s: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    """How long those had waited that were never received."""

    @property
    def longest_s(self) -> float:
        return max([*self.waits_s, *self.left], default=0.0)


def overload(queue: TandemQueue | RabbitQueue, seconds: float) -> dict[int, Fate]:
    """High and low senders, one slow consumer, for so long."""
    fates = {9: Fate(), 0: Fate()}
    pending: dict[int, set[float]] = {9: set(), 0: set()}
    end = time.monotonic() + seconds

    def send(priority: int, rate: float) -> None:
        due = time.monotonic()
        link: AbstractContextManager[Send] = queue.sender()
        with link as publish:
            while due < end:
                time.sleep(max(0.0, due - time.monotonic()))
                at = time.monotonic()
                pending[priority].add(at)
                publish(_STAMP.pack(at) + bytes([priority]), priority)
                fates[priority].sent += 1
                due += 1 / rate

    threads = [threading.Thread(target=send, args=each) for each in ((9, HIGH_RATE), (0, LOW_RATE))]
    with queue.receiver() as receive:
        for thread in threads:
            thread.start()
        free_at = time.monotonic()
        while time.monotonic() < end:
            body = receive()
            if body is None:
                continue
            at, priority = _STAMP.unpack(body[:8])[0], body[8]
            fates[priority].waits_s.append(time.monotonic() - at)
            pending[priority].discard(at)
            free_at = max(free_at + 1 / CONSUMED, time.monotonic() - 1 / CONSUMED)
            time.sleep(max(0.0, free_at - time.monotonic()))
        over = time.monotonic()
        for thread in threads:
            thread.join()
    for priority, fate in fates.items():
        fate.left = [over - at for at in pending[priority]]
    return fates


def show_overload(words: str, fates: dict[int, Fate]) -> None:
    high, low = fates[9], fates[0]
    print(
        f"  {words:<36} low: {len(low.waits_s):>5} of {low.sent:>5} received, longest wait "
        f"{low.longest_s:6.1f} s ({len(low.left)} still waiting); high: {len(high.waits_s):>6} of "
        f"{high.sent:>6}, longest wait {high.longest_s:5.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, choices=range(1, MAX_ROUNDS + 1), default=3)
    parser.add_argument("--secs", type=float, default=5.0, help="of one run of the first part")
    parser.add_argument("--overload-secs", type=float, default=40.0)
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("--work", default=os.path.expanduser("~/.cache/bench-peers"))
    options = parser.parse_args()
    work = os.path.abspath(options.work)
    peers.OPT = argparse.Namespace(
        work=work, bin=work + "/bin", size=1024, window=500, quick=False, keep=False, nice=0,
        audit=False, sdk=False, no_install=options.no_install, names=["rabbit-classic"],
    )  # fmt: skip
    peers.set_up()
    tandem, rabbit = Tandem(), Rabbit()
    peers.BROKERS.extend([tandem, rabbit])
    for broker in (tandem, rabbit):
        broker.start()
        broker.ready()
        broker.prepare()
    show_speed(measure_speed(tandem, rabbit, options.rounds, options.secs))
    seconds = options.overload_secs
    print(
        f"\n{CONSUMED:g}/s are consumed, {HIGH_RATE:g}/s high and {LOW_RATE:g}/s low arrive, for "
        f"{seconds:g} s"
    )
    print(
        f"  with aging of {AGING_S:g} s a level, nothing overtakes a message after "
        f"{(LEVELS - 1) * AGING_S:g} s; then it waits for what was there before it"
    )
    for words, queue in (
        ("Tandem, strict", TandemQueue(tandem, f"strict-{MAX_ROUNDS}")),
        (f"Tandem, aging {AGING_S:g} s a level", TandemQueue(tandem, f"aged-{MAX_ROUNDS}")),
        ("RabbitMQ, x-max-priority 10", RabbitQueue(rabbit, f"p{MAX_ROUNDS}")),
    ):
        show_overload(words, overload(queue, seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
