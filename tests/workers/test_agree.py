"""The simulator against a real broker and real pools, step by step in the order of a plan's events.

Time is the test's: a handler ends when the plan says that it has taken its time, the next message
is sent when the plan says that it arrives. So it can be compared message by message, on a machine
however slow. `make simulate-agrees` does the same in real time, and compares how long they waited.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from tandembus.clock import SystemClock
from tandembus.workers import Pool, Worker
from tandembus.workers.planning import NATIVE, Arrival, Form, Plan, PlannedLevel, Service, work
from tandembus.workers.planning_run import play
from tandembus.workers.receiving import Source
from tests.workers import agree
from tests.workers.bus import Bus, until

SERVICE = Service((1.0,), is_exponential=True)
PLAN = Plan(
    tuple(PlannedLevel(name, 1.0, SERVICE) for name in ("high", "middle", "low")),
    workers=3,
    # What comes at once is at once with its pool; a queue that is silent is empty.
    trip_ms=0,
    look_ms=0,
    seconds=7,
    warm_s=0,
    seed=5,
)


class Gated(Worker):
    """Keeps each message until the test says that its time is over."""

    def __init__(self, count: int) -> None:
        self.gates = [asyncio.Event() for _ in range(count)]
        self.begun: list[int] = []

    async def process_message(self, message: Any) -> None:
        index = int(str(message).split()[0])
        self.begun.append(index)
        await self.gates[index].wait()

    def open(self) -> None:
        for gate in self.gates:
            gate.set()


class Steps:
    """What a plan's events come to, one after the other."""

    def __init__(self, plan: Plan, form: Form) -> None:
        self.form = form
        self.arrivals = work(plan)
        found = play(plan, form, self.arrivals, until_all_is_done=True)
        self.begun = [(at, each) for at, each in zip(found, self.arrivals, strict=True)]

    def events(self) -> list[tuple[float, Arrival, bool]]:
        """When, which message, and whether it is its end."""
        ends = [(at + each.service_ms, each, True) for at, each in self.begun if at is not None]
        comes = [(each.at_ms, each, False) for each in self.arrivals]
        return sorted(ends + comes, key=lambda event: event[0])

    def order(self, until_ms: float) -> list[int]:
        """The messages that are begun by then, in this order."""
        done = [(at, each.index) for at, each in self.begun if at is not None and at <= until_ms]
        return [index for _, index in sorted(done)]

    def ended(self, until_ms: float) -> int:
        return sum(at + each.service_ms <= until_ms for at, each in self.begun if at is not None)

    def taken(self, until_ms: float, level: int | None) -> int:
        """Messages that a level's receiver has then: being worked on, and one in hand."""
        count = has_more = 0
        for at, each in self.begun:
            assert at is not None
            if level in (None, each.level) and each.at_ms <= until_ms:
                count += at <= until_ms < at + each.service_ms
                has_more |= at > until_ms
        return count + has_more


@pytest.mark.req("P4")
@pytest.mark.req("P5")
@pytest.mark.parametrize("form", ["strict", "weighted", "one-pool", "pool-a-level"])
def test_real_pools_begin_what_the_simulator_begins(bus: Bus, form: Form) -> None:
    """The same messages in the same order, at every arrival and every end."""
    steps = Steps(PLAN, form)
    assert len(steps.arrivals) > 15

    async def test(client: ServiceBusClient) -> None:
        names = agree.queues(bus.lean, PLAN, form)
        worker = Gated(len(steps.arrivals))
        pools = list(agree.pools(PLAN, form, names, worker, client, SystemClock()))
        async with AsyncExitStack() as stack:
            for pool in pools:
                await stack.enter_async_context(pool)
            stack.callback(worker.open)
            for event in steps.events():
                await step(names, pools, worker, *event)

    async def step(
        names: list[str],
        pools: list[Pool],
        worker: Gated,
        at_ms: float,
        arrival: Arrival,
        is_end: bool,
    ) -> None:
        if is_end:
            worker.gates[arrival.index].set()
        else:
            bus.send_all(names[arrival.level], [agree.outgoing(PLAN, arrival)])
        expected = steps.order(at_ms)
        await until(lambda: len(worker.begun) >= len(expected))
        # Only when the last one is settled does the number of those taken say something.
        ended = steps.ended(at_ms)
        await until(lambda: sum(each.total() for pool in pools for each in pool.outcomes) == ended)
        for number, source in enumerate(each for pool in pools for each in pool.sources):
            wanted = steps.taken(at_ms, None if form in NATIVE else number)
            await until(partial(_has, source, wanted))
        assert worker.begun == expected

    bus.run(test)


def _has(source: Source, taken: int) -> bool:
    return source.taken == taken


def test_what_make_simulate_agrees_compares(bus: Bus) -> None:
    """The tool of `make simulate-agrees`, small and in one form: it measures every message. How
    near it comes is not asked here, where the machine may be busy with anything."""
    plan = Plan(
        (PlannedLevel("high", 20, Service((0.02,))), PlannedLevel("low", 20, Service((0.02,)))),
        workers=2,
        seconds=1,
        warm_s=0,
    )
    measured = asyncio.run(agree.measure(bus.broker, plan, ["one-pool"], begin_in_s=0.5))
    found = list(agree.compare(plan, measured))
    assert [each.level for each in found] == ["high", "low"]
    assert sum(each.messages for each in found) == len(work(plan))
    assert all(each.simulated_s >= 0 and each.measured_s > -1 for each in found)
    near, far = (
        agree.Compared("strict", "l", 1, 1.0, 1.15),
        agree.Compared("strict", "l", 1, 1, 1.2),
    )
    assert (near.is_near, far.is_near) == (True, False)
