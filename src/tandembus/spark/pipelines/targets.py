"""`targets`: whether each level kept its promise, and whether one starved (P7, D5).

A message counts for the window in which it *arrived*. It attains its target when it was completed
within that time. One that expired or was dead-lettered has missed it; so has one that still waits
and is older than that when the journal ends. These are counts, not estimates.

A level starves in a window in which it had messages all the time, got none delivered, and another
level of the same entity did.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tandembus.errors import ArgumentError
from tandembus.journal.schema import ARRIVALS
from tandembus.spark.pipelines.cube import total_ms, window_of
from tandembus.workers.options import Target
from tandembus.workers.pools_file import read_pools

KEYS: Final = ("namespace", "entity", "level", "window")
SUMS: Final = ("arrived", "done", "within", "given_up", "moved_on")
_GIVEN_UP: Final = ("expired", "dead_lettered")
_MOVED: Final = ("forwarded", "published", "cancelled", "purged", "deleted")


@dataclass(frozen=True, slots=True)
class LevelTarget:
    """What is promised for a level of an entity; for all of its levels if it names none."""

    entity: str
    level: int | None
    target: Target


def read_targets(path: Path) -> tuple[LevelTarget, ...]:
    """Either a file of pools (`tandem workers run`), or `[[target]]` with `entity`, `level` if only
    one is meant, `within_s` and `percent`."""
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: {error}") from error
    if "pool" in found:
        levels = [
            level for entry in read_pools(text, path.name).pools for level in entry.options.levels
        ]
        return tuple(
            LevelTarget(level.path, None, level.target) for level in levels if level.target
        )
    targets = []
    for number, each in enumerate(found.get("target", ()), 1):
        where = f"{path}: target {number}"
        for key in each.keys() - {"entity", "level", "within_s", "percent"}:
            raise ArgumentError(f"{where}: unknown key '{key}'")
        try:
            target = Target(float(each["within_s"]), float(each.get("percent", 99.0)))
            targets.append(LevelTarget(str(each["entity"]), each.get("level"), target))
        except KeyError as error:
            raise ArgumentError(f"{where}: {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{where}: {error}") from error
    if not targets:
        raise ArgumentError(f"{path}: there is no [[target]] and no [[pool]]")
    return tuple(targets)


def arrivals(events: DataFrame, targets: Sequence[LevelTarget], window_s: int) -> DataFrame:
    """What became of the messages of each window of arrival; `together` adds such tables up."""
    kind = F.col("kind")
    is_done = kind.isin("completed", "taken")
    within = F.when(is_done & (total_ms() <= _within_s(targets) * 1000), 1)
    is_end = is_done | kind.isin(*_GIVEN_UP) | kind.isin(*_MOVED)
    came = F.coalesce("enqueued_time", "time")
    return (
        events.where(kind.isin(*ARRIVALS) | is_end)
        .groupBy("namespace", "entity", "level", window_of(came, window_s).alias("window"))
        .agg(
            _count(kind.isin(*ARRIVALS)).alias("arrived"),
            _count(is_done).alias("done"),
            F.coalesce(F.sum(within), F.lit(0)).alias("within"),
            _count(kind.isin(*_GIVEN_UP)).alias("given_up"),
            _count(kind.isin(*_MOVED)).alias("moved_on"),
            F.max(F.when(is_done, total_ms())).alias("longest_ms"),
            F.max("time").alias("last_time"),
        )
    )  # fmt: skip


def together(tables: DataFrame) -> DataFrame:
    return tables.groupBy(*KEYS).agg(
        *(F.sum(name).alias(name) for name in SUMS),
        F.max("longest_ms").alias("longest_ms"),
        F.max("last_time").alias("last_time"),
    )


def attainment(
    arrived: DataFrame, targets: Sequence[LevelTarget], window_s: int, *, by_window: bool = False
) -> DataFrame:
    """For each level (and window): `judged` messages, `attained` of them, `percent`, `waiting` that
    may still make it, `overdue` that will not."""
    end = F.max("last_time").over(Window.partitionBy("namespace"))
    open_ = F.greatest(
        F.col("arrived") - F.col("done") - F.col("given_up") - F.col("moved_on"), F.lit(0)
    )
    is_late = F.unix_seconds("window") + window_s + F.col("within_s") <= F.unix_seconds("end")
    keys = KEYS if by_window else KEYS[:3]
    rows = (
        arrived.withColumn("end", end)
        .withColumn("within_s", _within_s(targets))
        .withColumn("promised_percent", _percent(targets))
        .withColumn("open", open_)
        .withColumn("overdue", F.when(is_late, F.col("open")).otherwise(0))
        .groupBy(*keys, "within_s", "promised_percent")
        .agg(
            *(F.sum(name).alias(name) for name in (*SUMS, "open", "overdue")),
            F.max("longest_ms").alias("longest_ms"),
        )
    )
    judged = F.col("done") + F.col("given_up") + F.col("overdue")
    percent = F.when(judged > 0, 100.0 * F.col("within") / judged)
    return rows.select(
        *keys,
        "within_s",
        "promised_percent",
        "arrived",
        judged.alias("judged"),
        F.col("within").alias("attained"),
        percent.alias("percent"),
        (percent >= F.col("promised_percent")).alias("is_attained"),
        (F.col("open") - F.col("overdue")).alias("waiting"),
        "overdue",
        "given_up",
        "longest_ms",
    ).orderBy(*keys)


def starvation(rates: DataFrame) -> DataFrame:
    """From the table of `rates`: for each level, in how many windows it starved, and when first."""
    of_entity = ["namespace", "entity"]
    grid = (
        rates.select(*of_entity, "window")
        .distinct()
        .join(rates.select(*of_entity, "level").distinct(), of_entity)
    )
    # A level that gets nothing and is sent nothing has no row of its own in a window.
    so_far = Window.partitionBy(*of_entity, "level").orderBy("window")
    same_level = F.col("grid.level").eqNullSafe(F.col("rates.level"))
    same = [F.col(f"grid.{name}") == F.col(f"rates.{name}") for name in (*of_entity, "window")]
    rows = (
        grid.alias("grid")
        .join(rates.alias("rates"), [*same, same_level], "left")
        .select(
            *(f"grid.{name}" for name in (*of_entity, "level", "window")),
            F.coalesce("rates.delivered", F.lit(0)).alias("delivered"),
            F.col("rates.waiting").alias("waiting"),
        )
        .withColumn("waiting", F.coalesce(F.last("waiting", True).over(so_far), F.lit(0)))
        .withColumn("before", F.coalesce(F.lag("waiting").over(so_far), F.lit(0)))
        .withColumn("all", F.sum("delivered").over(Window.partitionBy(*of_entity, "window")))
    )
    starves = F.col("starves")
    return (
        rows.withColumn(
            "starves", F.expr("before > 0 AND waiting > 0 AND delivered = 0 AND all > 0")
        )
        .groupBy(*of_entity, "level")
        .agg(
            _count(starves).alias("starved_windows"),
            F.min(F.when(starves, F.col("window"))).alias("first_starved"),
            F.max(F.when(starves, F.col("waiting"))).alias("most_waiting"),
        )
        .where("starved_windows > 0")
    )


def _count(condition: Column) -> Column:
    return F.coalesce(F.sum(F.when(condition, 1)), F.lit(0))


def _chosen(targets: Sequence[LevelTarget], what: str) -> Column:
    """Of the target of the row's entity and level; one that names the level wins."""
    found = F.lit(None).cast("double")
    for each in sorted(targets, key=lambda it: it.level is not None):
        is_it = F.col("entity") == each.entity
        if each.level is not None:
            is_it &= F.col("level") == each.level
        found = F.when(is_it, F.lit(float(getattr(each.target, what)))).otherwise(found)
    return found


def _within_s(targets: Sequence[LevelTarget]) -> Column:
    return _chosen(targets, "within_s")


def _percent(targets: Sequence[LevelTarget]) -> Column:
    return _chosen(targets, "percent")
