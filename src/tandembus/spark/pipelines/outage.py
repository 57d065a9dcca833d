"""`outage`: the story of a pair over time: what went straight, around, and home (N4 to N9).

Backlog queues are known by their names, so the journals of both namespaces tell it together; that
of the secondary alone tells all but the pings and what went straight.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tandembus.spark.pipelines.cube import count_of, is_backlog
from tandembus.spark.pipelines.rates import SENT


def outage(cube: DataFrame) -> DataFrame:
    """A row for each window. `in_backlog` is what is left at its end."""
    is_around = is_backlog() & (F.col("entity_kind") == "queue")
    rows = (
        cube.withColumn("around", is_around)
        .groupBy("window")
        .agg(
            _when(~F.col("around") & F.col("kind").isin(*SENT), "events").alias("sent_straight"),
            _when(F.col("around") & (F.col("kind") == "accepted"), "events").alias("sent_around"),
            _when(F.col("around") & F.col("kind").isin("completed", "taken"), "events").alias(
                "brought_home"
            ),
            _when(F.col("around") & (F.col("kind") == "dead_lettered"), "events").alias(
                "not_understood"
            ),
            _when(F.col("around"), "net").alias("net"),
            count_of(("pinged",), "operations").alias("pings"),
            count_of(("started",)).alias("starts"),
        )
    )
    so_far = Window.orderBy("window").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return rows.select(
        *(name for name in rows.columns if name != "net"),
        F.sum("net").over(so_far).alias("in_backlog"),
    ).orderBy("window")


def _when(condition: Column, measure: str) -> Column:
    return F.coalesce(F.sum(F.when(condition, F.col(measure))), F.lit(0))
