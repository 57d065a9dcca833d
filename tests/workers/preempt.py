"""How soon higher work begins on a busy pool, and whether anything of the interrupted work is lost.

    python -m tests.workers.preempt --count 1000

A pool of one worker is busy with low messages, each of many small steps. High messages are sent one
after the other, each when the worker is busy with low work. Measured is the time from the send to
the begin of the high handler. Every low message keeps a count of its steps in its saved state: in
the end each step was done exactly once. Exit code 1 when something was lost, done twice or counted
as a delivery, or when the 99th percentile is above --within-ms.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from tandembus.client import Client, OutgoingMessage
from tandembus.testing import BrokerProcess
from tandembus.testing.broker import TestBroker
from tandembus.workers import GiveBack, Level, Outcome, Pool, PoolOptions, Worker

STEPS = 100
STEP_S = 0.005


@dataclass
class Found:
    delays_ms: list[float] = field(default_factory=list)
    preemptions: int = 0
    most_deliveries: int = 0
    steps: Counter[tuple[str, int]] = field(default_factory=Counter)
    low: int = 0

    @property
    def is_whole(self) -> bool:
        """Each step of each low message once."""
        return len(self.steps) == self.low * STEPS and set(self.steps.values()) == {1}

    def quantile_ms(self, part: float) -> float:
        return sorted(self.delays_ms)[min(len(self.delays_ms) - 1, int(part * len(self.delays_ms)))]


class Stepper(Worker):
    is_preemptible = True

    def __init__(self, found: Found) -> None:
        self.found = found
        self.begun = asyncio.Event()
        self.is_low = asyncio.Event()
        self.done = 0

    async def process_message(self, message: Any) -> Outcome | None:
        work = self.work
        self.found.most_deliveries = max(self.found.most_deliveries, work.delivery_count)
        if work.level == "high":
            self.begun.set()
            return None
        self.is_low.set()
        try:
            for step in range(int(work.state or b"0"), STEPS):
                self.found.steps[str(message), step] += 1
                if await work.stop_requested(STEP_S):
                    return GiveBack(str(step + 1).encode())
            self.done += 1
            return None
        finally:
            self.is_low.clear()


async def measure(broker: TestBroker, count: int) -> Found:
    found = Found()
    high, low = f"high-{time.monotonic_ns()}", f"low-{time.monotonic_ns()}"
    broker.create_queue(high)
    broker.create_queue(low)
    worker = Stepper(found)
    levels = (Level("high", queue=high), Level("low", queue=low))
    lean = Client(broker.connection_string)
    sdk = ServiceBusClient.from_connection_string(broker.connection_string)
    with lean, lean.sender(high) as to_high, lean.sender(low) as to_low:
        async with sdk, Pool(worker, PoolOptions("pool", levels), sdk) as pool:
            for number in range(count):
                while found.low < worker.done + 3:
                    to_low.send(OutgoingMessage(f"{found.low}".encode()))
                    found.low += 1
                await worker.is_low.wait()
                worker.begun.clear()
                sent = time.monotonic()
                await asyncio.to_thread(to_high.send, OutgoingMessage(b"high"))
                await worker.begun.wait()
                found.delays_ms.append((time.monotonic() - sent) * 1000)
                if (number + 1) % 100 == 0:
                    print(f"{number + 1} of {count}", flush=True)
            while worker.done < found.low:
                await asyncio.sleep(0.01)
            found.preemptions = pool.preemptions
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--within-ms", type=float, default=200.0)
    options = parser.parse_args()
    with BrokerProcess.start(arguments=["--emulator"]) as broker:
        found = asyncio.run(measure(broker, options.count))
    is_right = found.is_whole and found.most_deliveries == 0
    is_soon = found.quantile_ms(0.99) <= options.within_ms
    print(
        f"{len(found.delays_ms)} high messages on a busy pool, {found.preemptions} preemptions: "
        f"begun after {found.quantile_ms(0.5):.1f} ms (p50), {found.quantile_ms(0.99):.1f} ms "
        f"(p99), {max(found.delays_ms):.1f} ms (most); {found.low} low messages of {STEPS} steps, "
        f"{'each step done once' if found.is_whole else 'STEPS LOST OR DONE TWICE'}, "
        f"highest delivery count {found.most_deliveries}"
        f"{'' if is_soon else f'; NOT within {options.within_ms:g} ms'}"
    )
    return 0 if is_right and is_soon else 1


if __name__ == "__main__":
    sys.exit(main())
