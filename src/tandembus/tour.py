"""The broker without a network, step by step in a terminal: `make tour`.

Send, lock, abandon to the dead-letter queue, schedule, then kill -9 a loaded process and recover
what it had acknowledged. Everything is real: the engine, the log on disk, the killed process. Each
step checks what it shows, and the tour ends with exit code 1 if something is not as it says.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.changes import decode_edits
from tandembus.core.commands import Browse, CreateQueue, Disposition, Send, Settle
from tandembus.core.effects import Delivery
from tandembus.engine.blocking import BlockingEngine, open_engine
from tandembus.settings import QueueSettings

QUEUE = "orders"
DEAD_LETTERS = f"{QUEUE}/$DeadLetterQueue"
BATCH = 50
"""Messages that the loaded process sends with one command."""


def step(number: int, title: str) -> None:
    print(f"\n{number}. {title}", flush=True)


def tell(text: str) -> None:
    print(f"   {text}", flush=True)


def check(is_so: bool, what: str) -> None:
    if not is_so:
        raise SystemExit(f"   NOT as it should be: {what}")


def message(text: str, scheduled_ms: int | None = None) -> AmqpMessage:
    return AmqpMessage(
        encode_message(body=text.encode(), message_id=text, scheduled_ms=scheduled_ms)
    )


def shown(engine: BlockingEngine, delivery: Delivery) -> str:
    text = AmqpMessage(engine.body(delivery.body)).message_id
    times = f"{delivery.delivery_count} time{'' if delivery.delivery_count == 1 else 's'}"
    return f"#{delivery.sequence_number} {text!r}, delivered {times} before"


def settle(engine: BlockingEngine, deliveries: Sequence[Delivery], how: Disposition) -> None:
    tokens = [delivery.token for delivery in deliveries if delivery.token is not None]
    engine.execute(Settle(QUEUE, tokens, how))


def send_and_lock(engine: BlockingEngine) -> None:
    step(1, "Send three messages, receive them under a lock")
    engine.execute(CreateQueue(QUEUE, QueueSettings(max_delivery_count=3)))
    numbers = engine.execute(Send(QUEUE, [message(name) for name in ("apple", "pear", "plum")]))
    tell(f"accepted, on disk, numbered {numbers}")
    check(numbers == [1, 2, 3], "numbers without a gap, from 1")
    first = engine.receive(QUEUE, 1)
    second = engine.receive(QUEUE, 1)
    tell(f"one receiver has {shown(engine, first[0])}")
    tell(f"another passes it over and gets {shown(engine, second[0])}")
    check(second[0].sequence_number == 2, "a locked message is passed over")
    settle(engine, second, Disposition.COMPLETE)
    settle(engine, first, Disposition.RELEASE)
    tell("the second is completed and gone; the first is released, without a penalty")


def to_the_dead_letters(engine: BlockingEngine) -> None:
    step(2, "Abandon a message until it is dead-lettered")
    for _ in range(3):
        deliveries = engine.receive(QUEUE, 1)
        tell(f"received {shown(engine, deliveries[0])}; abandoned")
        settle(engine, deliveries, Disposition.ABANDON)
    (dead,) = engine.execute(Browse(DEAD_LETTERS, 0, 10))
    reason = decode_edits(dead.edits).properties["DeadLetterReason"]
    tell(f"in the dead-letter queue: #{dead.sequence_number}, because {reason!r}")
    check(reason == "MaxDeliveryCountExceeded", "dead-lettered after 3 deliveries")
    (rest,) = engine.receive(QUEUE, 10)
    settle(engine, [rest], Disposition.COMPLETE)


def schedule(engine: BlockingEngine) -> None:
    step(3, "Schedule a message for 1.5 seconds from now")
    due_ms = int(time.time() * 1000) + 1_500
    (number,) = engine.execute(Send(QUEUE, [message("later", due_ms)]))
    (waiting,) = engine.execute(Browse(QUEUE, number, 1))
    tell(
        f"browsing shows it as {waiting.state.name.lower()}, number {number}; receivers see nothing"
    )
    check(engine.receive(QUEUE, 1) == [], "a scheduled message is not there before its time")
    while not (came := engine.receive(QUEUE, 1)):
        time.sleep(0.02)
    late_ms = int(time.time() * 1000) - due_ms
    tell(f"it came {late_ms} ms after its time, with the new number {came[0].sequence_number}")
    check(late_ms >= 0, "never early")
    settle(engine, came, Disposition.COMPLETE)


def kill_and_recover(folder: Path) -> None:
    step(4, "kill -9 a process that sends as fast as it can, then recover")
    command = [sys.executable, "-m", "tandembus.tour", "--worker", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(1.0)
        worker.send_signal(signal.SIGKILL)
        acknowledged = 0
        for line in worker.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
    tell(f"killed after {acknowledged:,} acknowledged messages")
    begin = time.perf_counter()
    with open_engine(folder, decode=AmqpMessage) as engine:
        tell(f"recovered in {(time.perf_counter() - begin) * 1000:.0f} ms")
        numbers: list[int] = []
        while deliveries := engine.receive(QUEUE, 1_000):
            numbers += [delivery.sequence_number for delivery in deliveries]
            settle(engine, deliveries, Disposition.COMPLETE)
        tell(f"{len(numbers):,} are there: all acknowledged ones, and what was on disk beyond them")
        check(len(numbers) >= acknowledged, "no acknowledged message is lost")
        check(
            numbers == list(range(numbers[0], numbers[0] + len(numbers))), "no gap in the numbers"
        )
        (dead,) = engine.execute(Browse(DEAD_LETTERS, 0, 10))
        tell(f"the dead letter #{dead.sequence_number} is there too")


def work(folder: Path) -> None:
    """The loaded process: says after each batch how many messages were acknowledged."""
    with open_engine(folder, decode=AmqpMessage) as engine:
        print("ready", flush=True)
        count = 0
        while True:
            engine.execute(Send(QUEUE, [message(f"m{count + i}") for i in range(BATCH)]))
            count += BATCH
            print(count, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tandembus.tour", description=__doc__)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        work(options.worker)
        return
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tandem-tour-") as name:
        folder = Path(name)
        print("A tour of Tandem's heart. No network yet: the broker itself, and its log on disk.")
        with open_engine(folder, decode=AmqpMessage) as engine:
            send_and_lock(engine)
            to_the_dead_letters(engine)
            schedule(engine)
        kill_and_recover(folder)
    print(f"\nAll as promised, in {time.perf_counter() - begin:.1f} s. See docs/promises.md.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
