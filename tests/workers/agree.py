"""The simulator beside a real broker with real workers: mean waits of each level, in every form.

    python -m tests.workers.agree --seconds 180

One plan is played twice: by the simulator in virtual time, and by a broker in a process of its own,
pools on the official SDK, and handlers that take the planned time. Both get the same messages at
the same times, so the difference is that of the model and not of chance. Exit code 1 when a mean
wait differs by more than 15 %.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from azure.servicebus.aio import ServiceBusClient

from tandembus.client import Client, OutgoingMessage
from tandembus.clock import Clock, SystemClock
from tandembus.testing import BrokerProcess
from tandembus.testing.broker import TestBroker
from tandembus.workers import Level, Pool, PoolOptions, Worker
from tandembus.workers.planning import (
    FORMS,
    NATIVE,
    Arrival,
    Form,
    Plan,
    PlannedLevel,
    Service,
    work,
)
from tandembus.workers.planning_run import play
from tandembus.workers.wire import connect

MOST: Final = 0.15
LEAST_S: Final = 0.01
"""Less than this is the broker's and the machine's time, which no plan knows."""
EXPONENTIAL: Final = Service((1.0,), is_exponential=True)
PLAN: Final = Plan(
    (
        PlannedLevel("high", 0.65, EXPONENTIAL),
        PlannedLevel("middle", 0.75, EXPONENTIAL),
        PlannedLevel("low", 1.1, EXPONENTIAL),
    ),
    workers=3,
    aging_s=2.0,
    trip_ms=6.0,
    seconds=180,
    warm_s=0,
    seed=6,
)
_numbers = count(1)


def queues(client: Client, plan: Plan, form: Form) -> list[str]:
    """New ones: of each level, the highest first."""
    name = f"{form}-{next(_numbers)}"
    if form not in NATIVE:
        names = [f"{name}-{level.name}" for level in plan.levels]
        for each in names:
            client.entities.create_queue(each)
        return names
    more: dict[str, Any] = {}
    weights = plan.priority.weights
    assert weights is not None
    if form == "weighted":
        more["PriorityWeights"] = " ".join(map(str, weights))
    elif form == "aged":
        more["PriorityAgingSeconds"] = f"{plan.aging_s:g}"
    client.entities.create_queue(
        name,
        PriorityLevels=len(plan.levels),
        PrioritySource="property",
        PriorityProperty="Level",
        **more,
    )
    return [name] * len(plan.levels)


def pools(
    plan: Plan, form: Form, names: Sequence[str], worker: Worker, client: Any, clock: Clock
) -> Iterator[Pool]:
    """Over such queues, as the form has them."""
    if form == "pool-a-level":
        groups = [[name] for name in names]
        sizes = plan.sizes()
        assert sizes is not None
    else:
        groups = [list(dict.fromkeys(names))]
        sizes = (plan.size,)
    for group, size in zip(groups, sizes, strict=True):
        levels = tuple(Level(each, queue=each) for each in group)
        options = PoolOptions(
            f"{form} {group[0]}", levels, size, prefetch=plan.prefetch, look_ms=plan.look_ms
        )
        yield Pool(worker, options, client, clock=clock)


def outgoing(plan: Plan, arrival: Arrival) -> OutgoingMessage:
    body = f"{arrival.index} {arrival.service_ms}".encode()
    return OutgoingMessage(body, properties={"Level": len(plan.levels) - 1 - arrival.level})


class Timed(Worker):
    """Takes the time that a message says, and remembers how long it had waited."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.waits_s: dict[int, float] = {}

    async def process_message(self, message: Any) -> None:
        index, service_ms = str(message).split()
        arrived_ms = message.enqueued_time_utc.timestamp() * 1000
        self.waits_s[int(index)] = (self._clock.now_ms() - arrived_ms) / 1000
        await asyncio.sleep(float(service_ms) / 1000)


@dataclass(frozen=True)
class Compared:
    form: Form
    level: str
    messages: int
    simulated_s: float
    measured_s: float

    @property
    def difference(self) -> float:
        return self.measured_s / self.simulated_s - 1

    @property
    def is_near(self) -> bool:
        gap_s = abs(self.measured_s - self.simulated_s)
        return gap_s <= max(LEAST_S, MOST * self.simulated_s)


@contextmanager
def sending(
    client: Client, plan: Plan, names: Sequence[str], arrivals: Sequence[Arrival], begin: float
) -> Iterator[None]:
    """Each message at its time, from a thread of its own."""

    def run() -> None:
        senders = {name: client.sender(name) for name in names}
        for arrival in arrivals:
            time.sleep(max(0.0, begin + arrival.at_ms / 1000 - time.monotonic()))
            senders[names[arrival.level]].send(outgoing(plan, arrival))

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


async def measure(
    broker: TestBroker, plan: Plan, forms: Sequence[Form], begin_in_s: float = 3.0
) -> dict[Form, Timed]:
    """All forms at once, beside each other: none of them keeps the machine busy."""
    arrivals, clock = work(plan), SystemClock()
    workers: dict[Form, Timed] = {form: Timed(clock) for form in forms}
    async with AsyncExitStack() as stack:
        begin = time.monotonic() + begin_in_s
        for form in forms:
            lean = stack.enter_context(Client(broker.connection_string))
            names = queues(lean, plan, form)
            sdk: ServiceBusClient = await stack.enter_async_context(
                connect(broker.connection_string)
            )
            for pool in pools(plan, form, names, workers[form], sdk, clock):
                await stack.enter_async_context(pool)
            stack.enter_context(sending(lean, plan, names, arrivals, begin))
        while any(len(worker.waits_s) < len(arrivals) for worker in workers.values()):
            await asyncio.sleep(0.2)
    return workers


def compare(plan: Plan, measured: dict[Form, Timed]) -> Iterator[Compared]:
    arrivals = work(plan)
    for form, worker in measured.items():
        begun = play(plan, form, arrivals, until_all_is_done=True)
        for number, level in enumerate(plan.levels):
            mine = [each for each in arrivals if each.level == number]
            simulated = [((begun[each.index] or 0.0) - each.at_ms) / 1000 for each in mine]
            waited = [worker.waits_s[each.index] for each in mine]
            yield Compared(
                form,
                level.name,
                len(mine),
                sum(simulated) / len(mine),
                sum(waited) / len(mine),
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=PLAN.seconds)
    parser.add_argument("--seed", type=int, default=PLAN.seed)
    options = parser.parse_args()
    plan = replace(PLAN, seconds=options.seconds, seed=options.seed)
    print(
        f"{plan.rate:g} messages/s for {plan.seconds:g} s keep {plan.load:.2f} of {plan.size} "
        "workers busy; the same messages at the same times, simulated and measured:"
    )
    with BrokerProcess.start(arguments=["--emulator"]) as broker:
        found = list(compare(plan, asyncio.run(measure(broker, plan, FORMS))))
    print(f"\n{'form':<13} {'level':<8} {'messages':>8} {'simulated':>10} {'measured':>10}")
    for each in found:
        mark = "" if each.is_near else "  !"
        print(
            f"{each.form:<13} {each.level:<8} {each.messages:>8} {each.simulated_s:>9.3f}s "
            f"{each.measured_s:>9.3f}s {each.difference:>+7.1%}{mark}"
        )
    worst = max(abs(each.difference) for each in found)
    is_right = all(each.is_near for each in found)
    verdict = f"within {MOST:.0%}" if is_right else f"NOT within {MOST:.0%}"
    print(f"mean waits agree {verdict}; the largest difference is {worst:.1%}")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
