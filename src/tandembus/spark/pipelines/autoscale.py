"""`autoscale`: how many workers each pool would have needed, as `tandem workers` itself decides.

The work that came keeps busy: arrivals a second · mean time under the lock. That, what waits and
its age go through the same `Scaler` that runs pools live, window after window, with its growth,
rest and tolerance; so the advice does not flap either. `advised` puts it into a file of pools that
`tandem workers run` reads.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tandembus.journal.schema import ARRIVALS
from tandembus.spark.pipelines.cube import count_of
from tandembus.workers.autoscale import Scaler, Seen
from tandembus.workers.options import MAX_SIZE, Scale

SCHEMA: Final = (
    "namespace string, pool string, window timestamp, arrivals_per_s double, work_s double, "
    "busy double, waiting bigint, oldest_s double, needed int, size int"
)
SCALE: Final = Scale(min=1, max=MAX_SIZE)
"""Of a pool that no file describes."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Which entities a pool serves, and within which bounds it may be sized."""

    name: str
    entities: tuple[str, ...]
    scale: Scale


def plans_of(pools: Mapping[str, Any]) -> tuple[PoolPlan, ...]:
    """From the table that a file of pools is."""
    found = []
    for pool in pools["pool"]:
        entities = tuple(
            level.get("queue") or f"{level['topic']}/Subscriptions/{level['subscription']}"
            for level in pool["level"]
        )
        given = {"max": MAX_SIZE, **pool.get("scale", {})}
        found.append(PoolPlan(pool["name"], entities, Scale(**given)))
    return tuple(found)


def autoscale(cube: DataFrame, window_s: int, plans: Sequence[PoolPlan] = ()) -> DataFrame:
    """A row for each pool and window: `needed` is what would do, `size` what the pool would have.
    Without `plans` every queue and subscription is a pool of its own, called by its path."""
    pool = F.col("entity")
    for plan in plans:
        pool = F.when(F.col("entity").isin(*plan.entities), F.lit(plan.name)).otherwise(pool)
    served = cube.where("entity_kind IN ('queue', 'subscription')")
    if plans:
        every = [entity for plan in plans for entity in plan.entities]
        served = served.where(F.col("entity").isin(*every))
    rows = (
        served.withColumn("pool", pool)
        .groupBy("namespace", "pool", "window")
        .agg(
            count_of(ARRIVALS).alias("arrived"),
            count_of(("completed",)).alias("completed"),
            count_of(("completed",), "lock_ms").alias("lock_ms"),
            F.sum("net").alias("net"),
            F.max("longest_wait_ms").alias("longest_wait_ms"),
        )
    )
    scales = {plan.name: plan.scale for plan in plans}

    def sized(table: pa.Table) -> pa.Table:
        return pa.Table.from_pylist(list(_sizes(table.to_pylist(), scales, window_s)), _arrow())

    return rows.groupBy("namespace", "pool").applyInArrow(sized, SCHEMA)


def _arrow() -> pa.Schema:
    types = {
        "string": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "double": pa.float64(),
        "bigint": pa.int64(),
        "int": pa.int32(),
    }
    return pa.schema([(name, types[kind]) for name, kind in map(str.split, SCHEMA.split(", "))])


def _sizes(
    rows: list[dict[str, Any]], scales: Mapping[str, Scale], window_s: int
) -> Iterator[dict[str, Any]]:
    """One pool, from its first window to its last; where nothing happened, there is no row of it,
    but time goes on."""
    rows.sort(key=lambda row: row["window"])
    by_window = {row["window"]: row for row in rows}
    now, step = rows[0]["window"], timedelta(seconds=window_s)
    scaler = Scaler(scales.get(rows[0]["pool"], SCALE), 1, round(now.timestamp() * 1000))
    waiting, work_s = 0, 0.0
    while now <= rows[-1]["window"]:
        row = by_window.get(now, {})
        waiting += row.get("net") or 0
        if row.get("completed"):
            work_s = row["lock_ms"] / row["completed"] / 1000
        rate = (row.get("arrived") or 0) / window_s
        seen = Seen(
            busy=rate * work_s,
            waiting=max(0, waiting),
            oldest_s=(row.get("longest_wait_ms") or 0) / 1000,
        )
        size = scaler.decide(seen, round(now.timestamp() * 1000))
        yield {
            "namespace": rows[0]["namespace"],
            "pool": rows[0]["pool"],
            "window": now,
            "arrivals_per_s": rate,
            "work_s": work_s,
            "busy": seen.busy,
            "waiting": seen.waiting,
            "oldest_s": seen.oldest_s,
            "needed": scaler.needed(seen),
            "size": size,
        }
        now += step


# --- a file that `tandem workers` reads -----------------------------------------------------------


def advice(sizes: DataFrame) -> DataFrame:
    """One row for each pool: the bounds that would have done, and its size at the end."""
    return (
        sizes.groupBy("namespace", "pool")
        .agg(
            F.min("size").alias("min"),
            F.max("needed").alias("max"),
            F.max_by("size", "window").alias("size"),
            F.max_by("window", "needed").alias("busiest_window"),
            F.round(F.avg("busy"), 3).alias("mean_busy"),
        )
        .orderBy(F.desc("max"), "pool")
    )


def advised(pools: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A file of pools with the sizes of the advice, as TOML. Comments are not kept."""
    found = copy.deepcopy(dict(pools))
    by_pool = {row["pool"]: row for row in rows}
    for pool in found["pool"]:
        if row := by_pool.get(pool["name"]):
            most = max(int(row["max"]), int(row["min"]), 1)
            pool["size"] = int(row["size"])
            pool["scale"] = {**pool.get("scale", {}), "min": int(row["min"]), "max": most}
    lines = ["# Sizes by `tandem pipeline run autoscale`."]
    lines += [f"{key} = {_toml(value)}" for key, value in found.items() if key != "pool"]
    for pool in found["pool"]:
        lines += ["", "[[pool]]"]
        lines += [f"{key} = {_toml(value)}" for key, value in pool.items() if key != "level"]
        for level in pool["level"]:
            lines += ["", "[[pool.level]]", *(f"{key} = {_toml(it)}" for key, it in level.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)  # the same escapes
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return "{ " + ", ".join(f"{key} = {_toml(it)}" for key, it in value.items()) + " }"
        case _:
            return str(value)


def as_rows(table: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in table.collect()]
