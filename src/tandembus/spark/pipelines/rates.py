"""`rates`: what came, went, waited and failed, by entity, level and window of time (D5)."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tandembus.journal.schema import ARRIVALS, DELIVERIES, RETURNS
from tandembus.spark.pipelines.cube import count_of, is_backlog

SENT = ("accepted", "scheduled")


def rates(cube: DataFrame, window_s: int) -> DataFrame:
    """One row for each window in which something happened. `waiting` is how many messages of the
    level the entity has at its end; `…_per_s` are the means over the window."""
    rows = cube.groupBy("namespace", "entity", "entity_kind", "level", "window").agg(
        count_of(SENT).alias("sent"),
        count_of(ARRIVALS).alias("arrived"),
        count_of(DELIVERIES).alias("delivered"),
        count_of(("completed", "taken")).alias("completed"),
        count_of(RETURNS).alias("returned"),
        count_of(("expired",)).alias("expired"),
        count_of(("dead_lettered",)).alias("dead_lettered"),
        count_of(("duplicate_dropped",)).alias("duplicates_dropped"),
        count_of(ARRIVALS, "bytes").alias("bytes_in"),
        count_of(DELIVERIES, "bytes").alias("bytes_out"),
        F.sum("net").alias("net"),
    )
    so_far = (
        Window.partitionBy("namespace", "entity", "level")
        .orderBy("window")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return rows.where("entity IS NOT NULL").select(
        *(name for name in rows.columns if name != "net"),
        F.sum("net").over(so_far).alias("waiting"),
        (F.col("sent") / window_s).alias("sent_per_s"),
        (F.col("completed") / window_s).alias("completed_per_s"),
    )


def overall(cube: DataFrame, window_s: int) -> DataFrame:
    """All queues and subscriptions together, one row for each window. Dead-letter queues are left
    out, because what lies there waits for nobody, and backlog queues, because what lies there will
    arrive once more."""
    rows = (
        cube.where("entity_kind IN ('queue', 'subscription')")
        .where(~is_backlog())
        .groupBy("window")
        .agg(
            count_of(ARRIVALS).alias("arrived"),
            count_of(("completed", "taken")).alias("completed"),
            F.sum("net").alias("net"),
        )
    )
    so_far = Window.orderBy("window").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return rows.select(
        "window",
        "arrived",
        "completed",
        F.sum("net").over(so_far).alias("waiting"),
        (F.col("arrived") / window_s).alias("arrived_per_s"),
        (F.col("completed") / window_s).alias("completed_per_s"),
    ).orderBy("window")


def by_level(rates: DataFrame) -> DataFrame:
    """From the table of `rates`: one row for each entity and level."""
    sums = "sent arrived delivered completed returned expired dead_lettered bytes_in bytes_out"
    return (
        rates.groupBy("namespace", "entity", "entity_kind", "level")
        .agg(
            *(F.sum(name).alias(name) for name in sums.split()),
            F.max_by("waiting", "window").alias("waiting"),
            F.max("completed_per_s").alias("busiest_per_s"),
        )
        .orderBy(F.desc("arrived"))
    )
