"""A plan: what will arrive, how long it will take, and who will work on it. Plain values, and the
work that follows from them.

A plan can be tried in several forms before anything is deployed (`planning_run`), each with the
same work:

    strict, weighted, aged   one native priority queue in that order, and one pool
    one-pool                 a queue for each level, one pool that serves the higher first
    pool-a-level             a queue for each level, and workers of its own for each
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from math import ceil, fsum
from operator import attrgetter
from random import Random
from typing import Final, Literal, TypeAlias

from tandembus import limits
from tandembus.errors import ArgumentError
from tandembus.settings import PrioritySettings
from tandembus.workers.options import MAX_PREFETCH, MAX_SIZE, Target

Form: TypeAlias = Literal["strict", "weighted", "aged", "one-pool", "pool-a-level"]
FORMS: Final[tuple[Form, ...]] = ("strict", "weighted", "aged", "one-pool", "pool-a-level")
NATIVE: Final[frozenset[Form]] = frozenset({"strict", "weighted", "aged"})

MAX_MESSAGES: Final = 1_000_000
"""Of one simulation: some minutes, and some hundred megabytes."""
ENOUGH: Final = 20_000
"""Messages, where no duration is given."""
ENOUGH_OF_A_LEVEL: Final = 300
MOST_OF_ITSELF: Final = 200_000


def _check(is_right: bool, words: str) -> None:
    if not is_right:
        raise ArgumentError(words)


@dataclass(frozen=True, slots=True)
class Service:
    """How long a handler takes: always the same, exponential, or one of those that were
    measured."""

    times_s: tuple[float, ...]
    """The one time, the mean, or all that were measured."""
    is_exponential: bool = False

    def __post_init__(self) -> None:
        _check(bool(self.times_s), "service: no time is given")
        _check(all(0 < each < 86_400 for each in self.times_s), "service: a time is above 0 s")

    @property
    def mean_s(self) -> float:
        return sum(self.times_s) / len(self.times_s)

    def draw_s(self, random: Random) -> float:
        if self.is_exponential:
            return random.expovariate(1 / self.times_s[0])
        return random.choice(self.times_s)


@dataclass(frozen=True, slots=True)
class PlannedLevel:
    name: str
    rate: float
    """Messages a second, arriving at random (Poisson)."""
    service: Service
    weight: int | None = None
    """Its share in weighted order; None: twice that of the next lower level."""
    workers: int | None = None
    """Its own, with a pool a level; None: all levels share by their load."""
    target: Target | None = None

    def __post_init__(self) -> None:
        _check(bool(self.name), "level: name is missing")
        _check(0 < self.rate <= 100_000, f"level '{self.name}': rate is above 0, in messages/s")
        _check(
            self.workers is None or 1 <= self.workers <= MAX_SIZE,
            f"level '{self.name}': workers is 1 to {MAX_SIZE}",
        )

        most = limits.MAX_PRIORITY_WEIGHT
        _check(
            self.weight is None or 1 <= self.weight <= most,
            f"level '{self.name}': weight is 1 to {most}",
        )

    @property
    def load(self) -> float:
        """How many workers it keeps busy."""
        return self.rate * self.service.mean_s


@dataclass(frozen=True, slots=True)
class Plan:
    """The highest level first."""

    levels: tuple[PlannedLevel, ...]
    workers: int | None = None
    """In all; None: the sum of the levels' own."""
    aging_s: float = 30.0
    """In aged order a waiting message counts one level higher after each such time."""
    prefetch: int = 1
    look_ms: int = 100
    trip_ms: float = 2.0
    """The way to the broker and back."""
    seconds: float | None = None
    """How long messages arrive; None: until there are enough of each level."""
    warm_s: float | None = None
    """The beginning that is left out of the figures; None: a tenth."""
    seed: int = 1
    forms: tuple[Form, ...] = FORMS

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        most = limits.MAX_PRIORITY_LEVELS
        _check(1 <= len(names) <= most, f"there are 1 to {most} levels, not {len(names)}")
        _check(len(set(names)) == len(names), "two levels of one name")
        own = [level.workers is not None for level in self.levels]
        _check(all(own) or not any(own), "workers is given for all levels, or for none")
        _check(self.workers is not None or all(own), "workers is missing: how many are there?")
        _check(1 <= self.size <= MAX_SIZE, f"workers is 1 to {MAX_SIZE}")
        _check(1 <= self.prefetch <= MAX_PREFETCH, f"prefetch is 1 to {MAX_PREFETCH}")
        _check(self.look_ms >= 0, "look_ms is not negative")
        _check(0 <= self.trip_ms <= 60_000, "trip_ms is 0 to 60,000")
        least_s, most_s = limits.MIN_AGING_MS / 1000, limits.MAX_AGING_MS / 1000
        _check(least_s <= self.aging_s <= most_s, f"aging_s is {least_s:g} to {most_s:,.0f}")
        _check(bool(self.forms), "there is no form")
        for form in self.forms:
            _check(form in FORMS, f"there is no form '{form}': {', '.join(FORMS)}")
        _check(self.duration_s > 0, "seconds is above 0")
        _check(0 <= self.warm_until_s < self.duration_s, "warm_s is less than seconds")
        count = self.rate * self.duration_s
        _check(
            count <= MAX_MESSAGES,
            f"{count:,.0f} messages in {self.duration_s:,.0f} s are too many to simulate "
            f"({MAX_MESSAGES:,}): take fewer seconds",
        )

    @property
    def size(self) -> int:
        """Workers in all."""
        return self.workers or sum(level.workers or 0 for level in self.levels)

    @property
    def rate(self) -> float:
        return sum(level.rate for level in self.levels)

    @property
    def load(self) -> float:
        return _load(self.levels)

    @property
    def duration_s(self) -> float:
        if self.seconds is not None:
            return self.seconds
        rarest = min(level.rate for level in self.levels)
        most = min(ENOUGH_OF_A_LEVEL / rarest, MOST_OF_ITSELF / self.rate)
        return float(ceil(max(ENOUGH / self.rate, most)))

    @property
    def warm_until_s(self) -> float:
        return self.duration_s / 10 if self.warm_s is None else self.warm_s

    @property
    def priority(self) -> PrioritySettings:
        """Of the native queue, with aging and weights."""
        top = len(self.levels) - 1
        given = [
            2 ** min(9, top - index) if level.weight is None else level.weight
            for index, level in enumerate(self.levels)
        ]
        return PrioritySettings(
            levels=len(self.levels),
            aging_ms_per_level=round(self.aging_s * 1000),
            weights=tuple(reversed(given)),
        )

    def sizes(self) -> tuple[int, ...] | None:
        """Workers of each level, with a pool a level. Where they are not given, each gets one, and
        the others go where the load is highest for each worker. None: there are too few."""
        if self.levels[0].workers is not None:
            return tuple(level.workers or 0 for level in self.levels)
        if self.size < len(self.levels):
            return None
        sizes = [1] * len(self.levels)
        for _ in range(self.size - len(sizes)):
            loads = [level.load / size for level, size in zip(self.levels, sizes, strict=True)]
            sizes[loads.index(max(loads))] += 1
        return tuple(sizes)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message."""

    index: int
    at_ms: float
    level: int
    service_ms: float


def work(plan: Plan) -> list[Arrival]:
    """All that arrives, in order; the same for the same plan and seed."""
    streams = [_stream(plan, level) for level in range(len(plan.levels))]
    ordered = merge(*streams, key=attrgetter("at_ms"))
    return [
        Arrival(index, each.at_ms, each.level, each.service_ms)
        for index, each in enumerate(ordered)
    ]


def _stream(plan: Plan, level: int) -> Iterator[Arrival]:
    """Of one level. Each level has its chances to itself: another level changes nothing here."""
    planned = plan.levels[level]
    gaps = Random(f"{plan.seed} {level} arrivals")
    services = Random(f"{plan.seed} {level} services")
    at_s = gaps.expovariate(planned.rate)
    while at_s < plan.duration_s:
        yield Arrival(0, at_s * 1000, level, planned.service.draw_s(services) * 1000)
        at_s += gaps.expovariate(planned.rate)


def warnings(plan: Plan) -> list[str]:
    """What will not hold, whatever the order."""
    found = []
    if plan.load >= plan.size and set(plan.forms) != {"pool-a-level"}:
        late = _starving(plan.levels, plan.size)
        found.append(
            f"overloaded: {plan.load:.2f} workers are kept busy, and there are {plan.size} "
            f"({_needed(plan.load)} would do); in strict order and with one pool that is at the "
            f"cost of '{late}' and below"
        )
    sizes = plan.sizes()
    if "pool-a-level" in plan.forms:
        for level, size in zip(plan.levels, sizes or (), strict=sizes is not None):
            if level.load >= size:
                found.append(
                    f"overloaded with a pool a level: '{level.name}' keeps {level.load:.2f} "
                    f"workers busy, and has {size} ({_needed(level.load)} would do)"
                )
    if found:
        found.append(
            "waits of what is overloaded grow for as long as it lasts: the figures are those of "
            f"{plan.duration_s:,g} s"
        )
    if "pool-a-level" in plan.forms and sizes is None:
        found.append(f"pool-a-level is left out: {plan.size} workers for {len(plan.levels)} levels")
    return found


def _starving(levels: Sequence[PlannedLevel], size: int) -> str:
    """The highest level that does not get all it needs."""
    loads = (_load(levels[: number + 1]) for number in range(len(levels)))
    late = (level.name for level, load in zip(levels, loads, strict=True) if load >= size)
    return next(late, levels[-1].name)


def _load(levels: Sequence[PlannedLevel]) -> float:
    """Rounded once: `sum` rounds at each step up to Python 3.11, and compensates from 3.12 on, so
    it can differ from a running total."""
    return fsum(level.load for level in levels)


def _needed(load: float) -> int:
    """Workers for a load, a fifth of their time free."""
    return ceil(load / 0.8)
