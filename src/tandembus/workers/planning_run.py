"""A plan, played through in virtual time: who waits how long.

The order is not a model of the order: what waits in a queue is the broker's own `core.ready`, and
who is served next in a pool is the pool's own `order`. Only the time, the way between the two and
the handlers are imitated, as `receiving` and `pools` have them:

    _Queue    at the broker: a table of messages, and who is next
    _Source   one level's receive: asked, answered, asked again when there is room
    _Pool     so many workers
    _World    events in the order of their time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, repeat
from math import ceil
from typing import Final

from tandembus.core.ready import Ready
from tandembus.core.state import State
from tandembus.core.table import Table
from tandembus.workers.order import Order, Serve, Wait
from tandembus.workers.planning import NATIVE, Arrival, Form, Plan, warnings, work

GAP_MS: Final = 20.0
"""A receive of several messages ends when none came for so long (`wire.GAP_S`)."""


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What became of the messages of one level that arrived after the warm-up."""

    name: str
    arrived: int
    left: int
    """Not begun at the end: they count with the time that they had waited until then."""
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    attained_percent: float | None
    """Done within the target's time."""
    utilization: float
    """Of the pool that serves it."""
    waits_s: tuple[float, ...]
    """All of them, sorted."""


@dataclass(frozen=True, slots=True)
class FormResult:
    form: Form
    levels: tuple[LevelResult, ...]


@dataclass(frozen=True, slots=True)
class Simulated:
    plan: Plan
    forms: tuple[FormResult, ...]
    warnings: tuple[str, ...]


def simulate(plan: Plan) -> Simulated:
    """The same work in every form of the plan."""
    arrivals = work(plan)
    forms = [form for form in plan.forms if form != "pool-a-level" or plan.sizes() is not None]
    return Simulated(
        plan,
        tuple(
            FormResult(form, _results(plan, form, arrivals, play(plan, form, arrivals)))
            for form in forms
        ),
        tuple(warnings(plan)),
    )


def play(
    plan: Plan, form: Form, arrivals: Sequence[Arrival], *, until_all_is_done: bool = False
) -> list[float | None]:
    """When each message is begun, in ms; None: not before the end."""
    world = _World(plan.trip_ms)
    begun: list[float | None] = [None] * len(arrivals)
    queues, pools = _arranged(plan, form, world, begun)
    for pool in pools:
        pool.turn()
    _arrive(world, arrivals, queues, len(plan.levels) if form in NATIVE else 1)
    world.run(None if until_all_is_done else plan.duration_s * 1000)
    return begun


def _arranged(
    plan: Plan, form: Form, world: _World, begun: list[float | None]
) -> tuple[list[_Queue], list[_Pool]]:
    """The queue of each level, the highest first, and who serves them."""
    count = len(plan.levels)
    if form in NATIVE:
        priority = plan.priority
        queue = _Queue(
            count,
            priority.aging_ms_per_level if form == "aged" else None,
            priority.weights if form == "weighted" else None,
        )
        return [queue] * count, [_Pool(world, plan, plan.size, [queue], begun)]
    queues = [_Queue() for _ in plan.levels]
    if form == "one-pool":
        return queues, [_Pool(world, plan, plan.size, queues, begun)]
    sizes = plan.sizes()
    assert sizes is not None
    return queues, [
        _Pool(world, plan, size, [queue], begun) for size, queue in zip(sizes, queues, strict=True)
    ]


def _arrive(
    world: _World, arrivals: Sequence[Arrival], queues: Sequence[_Queue], levels: int
) -> None:
    """Each at its time."""
    following = iter(arrivals)

    def later(arrival: Arrival) -> None:
        world.at(arrival.at_ms, lambda: now(arrival))

    def now(arrival: Arrival) -> None:
        # The broker counts levels from the lowest.
        queues[arrival.level].push(arrival, max(0, levels - 1 - arrival.level))
        if (coming := next(following, None)) is not None:
            later(coming)

    if (first := next(following, None)) is not None:
        later(first)


class _World:
    def __init__(self, trip_ms: float) -> None:
        self.now_ms = 0.0
        self.half_ms = trip_ms / 2
        """One way."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when_ms: float, do: Callable[[], None]) -> None:
        heappush(self._events, (when_ms, next(self._numbers), do))

    def run(self, until_ms: float | None) -> None:
        while self._events and (until_ms is None or self._events[0][0] <= until_ms):
            self.now_ms, _, do = heappop(self._events)
            do()


class _Queue:
    """At the broker."""

    def __init__(
        self, levels: int = 1, aging_ms: int | None = None, weights: Sequence[int] | None = None
    ) -> None:
        self._table = Table()
        self._ready = Ready(self._table, levels, aging_ms, weights)
        self._arrivals: dict[int, Arrival] = {}
        self.asker: _Source | None = None
        """Whose receive waits here."""

    def push(self, arrival: Arrival, level: int) -> None:
        index, at_ms = arrival.index, int(arrival.at_ms)
        self._arrivals[index] = arrival
        self._table.add(index, index, at_ms, 1, int(State.WAITING), level=level)
        self._ready.push(index, level)
        if self.asker is not None:
            self.asker.offered()

    def take(self, now_ms: int) -> Arrival | None:
        chosen = self._ready.first(now_ms)
        if chosen is None:
            return None
        self._ready.take(chosen, now_ms)
        self._table.remove(chosen.chunk, chosen.row)
        return self._arrivals.pop(chosen.at)


class _Source:
    """As `receiving.Source`: one receive at a time, for as many messages as there is room."""

    def __init__(self, index: int, queue: _Queue, pool: _Pool) -> None:
        self._index = index
        self._queue = queue
        self._pool = pool
        self._world = pool.world
        self._wanted = 0
        """0: nothing is asked."""
        self._batch: list[Arrival] = []
        self._gap_ms = 0.0

    def ask(self) -> None:
        room = self._pool.order.room(self._index)
        if self._wanted > 0 or room <= 0:
            return
        self._wanted = room
        self._pool.order.asked(self._index, int(self._world.now_ms))
        self._world.at(self._world.now_ms + self._world.half_ms, self._reached)
        self._pool.turn()

    def _reached(self) -> None:
        self._queue.asker = self
        self.offered()

    def offered(self) -> None:
        """The broker may have something."""
        had, now_ms = len(self._batch), self._world.now_ms
        while len(self._batch) < self._wanted:
            found = self._queue.take(int(now_ms))
            if found is None:
                break
            self._batch.append(found)
        if len(self._batch) == self._wanted:
            self._answer()
        elif len(self._batch) > had:
            self._gap_ms = now_ms + GAP_MS
            self._world.at(self._gap_ms, self._end_gap)

    def _end_gap(self) -> None:
        if self._queue.asker is self and self._batch and self._world.now_ms >= self._gap_ms:
            self._answer()

    def _answer(self) -> None:
        self._queue.asker = None
        self._world.at(self._world.now_ms + self._world.half_ms, self._arrived)

    def _arrived(self) -> None:
        order, now_ms = self._pool.order, int(self._world.now_ms)
        for each in self._batch:
            order.arrived(self._index, each, int(each.at_ms), now_ms)
            self._pool.turn()
        order.answered(self._index)
        self._wanted = 0
        self._batch.clear()
        self.ask()


class _Pool:
    """As `pools.Pool`."""

    def __init__(
        self,
        world: _World,
        plan: Plan,
        size: int,
        queues: Sequence[_Queue],
        begun: list[float | None],
    ) -> None:
        self.world = world
        self.order: Order[Arrival] = Order(size, [plan.prefetch] * len(queues), plan.look_ms, 0)
        self._sources = [_Source(index, queue, self) for index, queue in enumerate(queues)]
        self._begun = begun
        self._wake_ms = 0

    def turn(self) -> None:
        now_ms = self.world.now_ms
        while True:
            match self.order.next(int(now_ms)):
                case Serve(_, arrival):
                    self._begun[arrival.index] = now_ms
                    self.world.at(now_ms + arrival.service_ms, self._finished)
                case Wait(until_ms):
                    if until_ms != self._wake_ms:
                        self._wake_ms = until_ms
                        self.world.at(until_ms + 1, self.turn)
                    break
                case None:
                    break
        for source in self._sources:
            source.ask()

    def _finished(self) -> None:
        self.order.finished()
        self.turn()


# --- figures --------------------------------------------------------------------------------------


def _results(
    plan: Plan, form: Form, arrivals: Sequence[Arrival], begun: Sequence[float | None]
) -> tuple[LevelResult, ...]:
    busy_s = _busy_s(plan, arrivals, begun)
    span_s = plan.duration_s - plan.warm_until_s
    if form == "pool-a-level":
        sizes = plan.sizes()
        assert sizes is not None
        used = [each / size / span_s for each, size in zip(busy_s, sizes, strict=True)]
    else:
        used = list(repeat(sum(busy_s) / plan.size / span_s, len(busy_s)))
    return tuple(_level(plan, level, arrivals, begun, used[level]) for level in range(len(used)))


def _busy_s(
    plan: Plan, arrivals: Sequence[Arrival], begun: Sequence[float | None]
) -> Sequence[float]:
    """What each level kept workers busy, after the warm-up."""
    first_ms, last_ms = plan.warm_until_s * 1000, plan.duration_s * 1000
    total = [0.0] * len(plan.levels)
    for arrival, at_ms in zip(arrivals, begun, strict=True):
        if at_ms is not None:
            overlap_ms = min(last_ms, at_ms + arrival.service_ms) - max(first_ms, at_ms)
            total[arrival.level] += max(0.0, overlap_ms) / 1000
    return total


def _level(
    plan: Plan,
    level: int,
    arrivals: Sequence[Arrival],
    begun: Sequence[float | None],
    utilization: float,
) -> LevelResult:
    planned, end_ms = plan.levels[level], plan.duration_s * 1000
    target = planned.target
    waits: list[float] = []
    left = judged = within = 0
    for arrival, at_ms in zip(arrivals, begun, strict=True):
        if arrival.level != level or arrival.at_ms < plan.warm_until_s * 1000:
            continue
        left += at_ms is None
        wait_s = ((end_ms if at_ms is None else at_ms) - arrival.at_ms) / 1000
        waits.append(wait_s)
        if target is not None:
            is_within = wait_s + arrival.service_ms / 1000 <= target.within_s
            # What is neither done nor late at the end is not judged.
            judged += at_ms is not None or not is_within
            within += at_ms is not None and is_within
    waits.sort()
    return LevelResult(
        planned.name,
        len(waits),
        left,
        sum(waits) / len(waits) if waits else 0.0,
        quantile(waits, 0.5),
        quantile(waits, 0.95),
        quantile(waits, 0.99),
        waits[-1] if waits else 0.0,
        100 * within / judged if judged else None,
        utilization,
        tuple(waits),
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """The least value that so much of them are not above."""
    return ordered[max(0, ceil(part * len(ordered)) - 1)] if ordered else 0.0
