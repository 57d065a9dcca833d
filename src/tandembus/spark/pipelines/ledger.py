"""`ledger`: every billable operation by namespace, entity and kind, and its price (D6, N11).

The tiers of the prices are those of a month and a namespace. What a row costs is its share of what
its namespace's operations cost in that month; the base price is a row of its own. Pairing's rows
are marked: all that happens on backlog queues, and pings. What a syphoned message costs at home
(a send and a receive, as any other message) is in `pairing`, beside what was counted.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tandembus.spark.pipelines.cube import is_backlog
from tandembus.spark.pipelines.prices import Prices

BASE: Final = "base price"


def ledger(cube: DataFrame, prices: Prices) -> DataFrame:
    """Columns: month, namespace, entity, operation, is_pairing, events, operations (as billed),
    bytes, cost."""
    operation = _operation(prices)
    rows = (
        cube.withColumn("operation", operation)
        .where("operation IS NOT NULL")
        .groupBy(
            F.date_format("window", "yyyy-MM").alias("month"),
            "namespace",
            "entity",
            "operation",
            (is_backlog() | (F.col("kind") == "pinged")).alias("is_pairing"),
        )
        .agg(
            F.sum("operations").alias("events"),
            F.sum("units").alias("operations"),
            F.sum("bytes").alias("bytes"),
        )
    )
    of_month = Window.partitionBy("month", "namespace")
    all_of_month = F.sum("operations").over(of_month)
    priced = rows.withColumn(
        "cost",
        F.when(all_of_month > 0, _price(all_of_month, prices) * F.col("operations") / all_of_month),
    )
    return priced.unionByName(_base(cube, prices)).orderBy("month", "namespace", F.desc("cost"))


def pairing(cube: DataFrame, prices: Prices) -> DataFrame:
    """What pairing has cost, by the kinds of N11. `is_extra`: it would not be there without a
    backlog. `is_counted`: from events; else it follows from what the syphon has completed."""
    of_pair = cube.where(is_backlog() | (F.col("kind") == "pinged"))
    counted = (
        of_pair.withColumn("operation", _operation(prices))
        .where("operation IS NOT NULL")
        .groupBy("operation")
        .agg(F.sum("units").alias("operations"))
        .select(
            F.when(F.col("operation") == "ping", F.lit("ping"))
            .otherwise(F.concat(F.lit("backlog "), F.col("operation")))
            .alias("operation"),
            "operations",
            F.lit(True).alias("is_extra"),
            F.lit(True).alias("is_counted"),
        )
    )
    homes = of_pair.where("kind = 'completed' AND entity_kind = 'queue'").agg(
        F.coalesce(F.sum("units"), F.lit(0)).alias("operations")
    )
    for operation in ("home send", "home receive"):
        counted = counted.unionByName(
            homes.select(
                F.lit(operation).alias("operation"),
                "operations",
                F.lit(False).alias("is_extra"),
                F.lit(False).alias("is_counted"),
            )
        )
    return counted.orderBy("operation")


def _operation(prices: Prices) -> Column:
    """Null: free."""
    found = F.lit(None).cast("string")
    for kind, operation in prices.operations.items():
        found = F.when(F.col("kind") == kind, F.lit(operation)).otherwise(found)
    return found


def _price(operations: Column, prices: Prices) -> Column:
    """As `Prices.of`."""
    parts, below = [], 0.0
    for tier in prices.tiers:
        most = operations if tier.up_to == float("inf") else F.least(operations, F.lit(tier.up_to))
        parts.append(F.greatest(most - below, F.lit(0.0)) * (tier.per_million / 1e6))
        below = tier.up_to
    return reduce(lambda one, other: one + other, parts)


def _base(cube: DataFrame, prices: Prices) -> DataFrame:
    """The hours that the journal spans, for each namespace and month."""
    hours = F.ceil((F.unix_seconds(F.max("window")) - F.unix_seconds(F.min("window")) + 1) / 3600)
    return (
        cube.groupBy(F.date_format("window", "yyyy-MM").alias("month"), "namespace")
        .agg((hours * prices.base_per_hour).alias("cost"))
        .select(
            "month",
            "namespace",
            F.lit(None).cast("string").alias("entity"),
            F.lit(BASE).alias("operation"),
            F.lit(False).alias("is_pairing"),
            F.lit(0).cast("bigint").alias("events"),
            F.lit(0).cast("bigint").alias("operations"),
            F.lit(0).cast("bigint").alias("bytes"),
            "cost",
        )
    )
