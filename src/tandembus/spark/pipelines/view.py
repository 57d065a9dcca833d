"""The pipelines over the journal, as a list: what each is reduced from, and the tables it gives.

A pipeline is a function from DataFrames to DataFrames, so it is the same in a batch, in a stream,
in a test and in somebody's notebook. What must be read from all events goes through a *reducer*:
small tables that can be added up (`cube` says why).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pyspark.sql import DataFrame

from tandembus.spark.pipelines import cube as cubes
from tandembus.spark.pipelines import dead_letters as dead
from tandembus.spark.pipelines import targets as promises
from tandembus.spark.pipelines.autoscale import PoolPlan, advice, autoscale
from tandembus.spark.pipelines.latency import BY_LEVEL, latency
from tandembus.spark.pipelines.ledger import ledger, pairing
from tandembus.spark.pipelines.outage import outage
from tandembus.spark.pipelines.prices import Prices, read_prices
from tandembus.spark.pipelines.rates import overall, rates
from tandembus.spark.pipelines.states import states
from tandembus.spark.pipelines.targets import LevelTarget

Reduced: TypeAlias = Mapping[str, DataFrame]
Tables: TypeAlias = dict[str, DataFrame]


@dataclass(frozen=True, slots=True)
class View:
    """What can be chosen for the pipelines over the journal."""

    window_s: int = 60
    prices: Prices = field(default_factory=read_prices)
    targets: tuple[LevelTarget, ...] = ()
    plans: tuple[PoolPlan, ...] = ()
    has_sketches: bool = True


def _as_it_is(reduced: DataFrame) -> DataFrame:
    return reduced


@dataclass(frozen=True, slots=True)
class Reducer:
    of_events: Callable[[DataFrame, View], DataFrame]
    together: Callable[[DataFrame], DataFrame]
    finished: Callable[[DataFrame], DataFrame] = _as_it_is
    """What is done to the sum of all of it before tables are made."""


REDUCERS: Final[Mapping[str, Reducer]] = {
    "cube": Reducer(
        lambda events, view: cubes.cube(
            events, view.window_s, view.prices.unit_bytes, has_sketches=view.has_sketches
        ),
        cubes.together,
        cubes.settled,
    ),
    "arrivals": Reducer(
        lambda events, view: promises.arrivals(events, view.targets, view.window_s),
        promises.together,
    ),
    "dead_letters": Reducer(lambda events, view: dead.dead_letters(events), dead.together),
}


@dataclass(frozen=True, slots=True)
class JournalPipeline:
    name: str
    summary: str
    needs: tuple[str, ...]
    """Reducers."""
    tables: Callable[[Reduced, View], Tables]
    needs_sketches: bool = False


def _rates(reduced: Reduced, view: View) -> Tables:
    return {
        "rates": rates(reduced["cube"], view.window_s),
        "throughput": overall(reduced["cube"], view.window_s),
    }


def _targets(reduced: Reduced, view: View) -> Tables:
    arrived = reduced["arrivals"]
    return {
        "targets": promises.attainment(arrived, view.targets, view.window_s),
        "targets_by_window": promises.attainment(
            arrived, view.targets, view.window_s, by_window=True
        ),
        "starvation": promises.starvation(rates(reduced["cube"], view.window_s)),
    }


def _autoscale(reduced: Reduced, view: View) -> Tables:
    sizes = autoscale(reduced["cube"], view.window_s, view.plans)
    return {"autoscale": sizes, "advice": advice(sizes)}


PIPELINES: Final[Mapping[str, JournalPipeline]] = {
    each.name: each
    for each in (
        JournalPipeline(
            "rates",
            "messages and bytes in and out, what waits and what fails, over time",
            ("cube",),
            _rates,
        ),
        JournalPipeline(
            "latency",
            "percentiles of waiting, work and both, as sketches that can be added up",
            ("cube",),
            lambda reduced, view: {
                "latency": latency(reduced["cube"]),
                "latency_by_level": latency(reduced["cube"], BY_LEVEL),
            },
            needs_sketches=True,
        ),
        JournalPipeline(
            "states",
            "where the time of messages goes: scheduled, waiting, worked on, in vain",
            ("cube",),
            lambda reduced, view: {"states": states(reduced["cube"])},
        ),
        JournalPipeline(
            "targets",
            "which levels keep their promise, and which starve",
            ("cube", "arrivals"),
            _targets,
        ),
        JournalPipeline(
            "ledger",
            "every billable operation and its price; what pairing costs, apart",
            ("cube",),
            lambda reduced, view: {
                "ledger": ledger(reduced["cube"], view.prices),
                "pairing": pairing(reduced["cube"], view.prices),
            },
        ),
        JournalPipeline(
            "autoscale",
            "how many workers each pool needs; with --pools, as a file for `tandem workers`",
            ("cube",),
            _autoscale,
        ),
        JournalPipeline(
            "dead-letters",
            "what was dead-lettered, by reason, with samples",
            ("dead_letters",),
            lambda reduced, view: {"dead_letters": reduced["dead_letters"]},
        ),
        JournalPipeline(
            "outage",
            "the story of a pair: what went straight, around, and home",
            ("cube",),
            lambda reduced, view: {"outage": outage(reduced["cube"])},
        ),
    )
}
