"""A pool that follows a load step of ten times, on a real broker.

    python -m tests.workers.autoscale

Messages come at a low rate, then at ten times that, then at the low rate again; a handler takes
0.2 s. The pool may have 1 to 20 workers and a target. Printed is what an operator would see, every
two seconds. Exit code 1 unless the target is attained again during the step, the pool never left
its bounds, it turned at most twice, and every message was done.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from tandembus.client import Client, OutgoingMessage
from tandembus.clock import SystemClock
from tandembus.testing import BrokerProcess
from tandembus.testing.broker import TestBroker
from tandembus.workers import (
    Alert,
    Level,
    Overseer,
    Pool,
    PoolOptions,
    QueueLooker,
    Scale,
    Target,
    Worker,
)
from tandembus.workers.status import lines
from tandembus.workers.wire import connect

SERVICE_S: Final = 0.2
LOW_RATE: Final = 4.0
STEP: Final = 10
SCALE: Final = Scale(
    min=1,
    max=20,
    waiting_per_worker=10,
    oldest_s=2,
    every_s=0.5,
    up_cooldown_s=2,
    down_after_s=10,
)
TARGET: Final = Target(within_s=2, percent=95, window_s=10)


def reversals(sizes: Sequence[int]) -> int:
    """How often a pool turned from growing to shrinking, or back."""
    turns = [after > before for before, after in pairwise(sizes) if after != before]
    return sum(first != second for first, second in pairwise(turns))


@dataclass
class Story:
    """What was seen, look by look."""

    begin_s: float
    end_s: float
    """Of the step."""
    times_s: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    attained: list[bool] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    sent: int = 0
    done: int = 0

    @property
    def attained_again_s(self) -> float | None:
        """How long after the begin of the step the target was attained again, and stayed so until
        its end."""
        during = [
            (at, is_attained)
            for at, is_attained in zip(self.times_s, self.attained, strict=True)
            if self.begin_s <= at < self.end_s
        ]
        if not during or not during[-1][1]:
            return None
        missed = [at for at, is_attained in during if not is_attained]
        return max(missed, default=self.begin_s) - self.begin_s

    @property
    def problems(self) -> list[str]:
        found = []
        if not all(SCALE.min <= size <= SCALE.max for size in self.sizes):
            found.append("the pool left its bounds")
        if reversals(self.sizes) > 2:
            found.append(f"it turned {reversals(self.sizes)} times")
        if self.attained_again_s is None:
            found.append("the target was not attained again")
        if self.done != self.sent:
            found.append(f"{self.sent} sent, {self.done} done")
        return found


class Sleeping(Worker):
    async def process_message(self, message: Any) -> None:
        await asyncio.sleep(SERVICE_S)


def _send(
    broker: TestBroker, queue: str, rate_at: Callable[[float], float], story: Story, seconds: float
) -> None:
    """Evenly, at the rate of the moment."""
    begin = due = time.monotonic()
    with Client(broker.connection_string) as client, client.sender(queue) as sender:
        while due - begin < seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            sender.send(OutgoingMessage(b"m"))
            story.sent += 1
            due += 1 / rate_at(due - begin)


async def follow(
    broker: TestBroker, before_s: float, step_s: float, after_s: float, say: Callable[[str], None]
) -> Story:
    queue = f"work-{time.monotonic_ns()}"
    broker.create_queue(queue)
    story = Story(before_s, before_s + step_s)

    def rate_at(at_s: float) -> float:
        return LOW_RATE * (STEP if story.begin_s <= at_s < story.end_s else 1)

    async with connect(broker.connection_string) as client:
        options = PoolOptions("work", (Level("all", queue=queue, target=TARGET),), scale=SCALE)
        pool = Pool(Sleeping(), options, client)
        looker = QueueLooker(client, broker.connection_string, SystemClock())
        overseer = Overseer([pool], looker, on_alert=story.alerts.append)
        async with overseer:
            whole_s = before_s + step_s + after_s
            thread = threading.Thread(target=_send, args=(broker, queue, rate_at, story, whole_s))
            thread.start()
            began = time.monotonic()
            said_s = 0.0
            while thread.is_alive() or pool.outcomes[0]["Complete"] < story.sent:
                at_s = time.monotonic() - began
                found = overseer.status()[0].levels[0].attainment
                story.times_s.append(at_s)
                story.sizes.append(pool.size)
                story.attained.append(found is None or found.is_attained)
                if at_s >= said_s:
                    said_s += 2
                    (line,) = lines(overseer.status(), f"{at_s:4.0f} s, {rate_at(at_s):2.0f}/s:")
                    say(f"{line} {'#' * pool.size}")
                await asyncio.sleep(0.1)
            await asyncio.to_thread(thread.join)
            story.done = pool.outcomes[0]["Complete"]
    return story


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=float, default=15, help="seconds")
    parser.add_argument("--step", type=float, default=60)
    parser.add_argument("--after", type=float, default=30)
    options = parser.parse_args()
    print(
        f"{LOW_RATE:g} messages/s of {SERVICE_S:g} s each, {STEP} times as many for "
        f"{options.step:g} s; {SCALE.min} to {SCALE.max} workers; target: {TARGET.percent:g} % "
        f"within {TARGET.within_s:g} s, over {TARGET.window_s:g} s"
    )
    with BrokerProcess.start(arguments=["--emulator"]) as broker:
        story = asyncio.run(follow(broker, options.before, options.step, options.after, print))
    again = story.attained_again_s
    print(
        f"target attained again {'never' if again is None else f'{again:.1f} s after the step'}; "
        f"{min(story.sizes)} to {max(story.sizes)} workers within {SCALE.min} to {SCALE.max}; "
        f"{reversals(story.sizes)} reversals; {story.done} of {story.sent} messages done"
    )
    for problem in story.problems:
        print(f"PROBLEM: {problem}")
    return 1 if story.problems else 0


if __name__ == "__main__":
    sys.exit(main())
