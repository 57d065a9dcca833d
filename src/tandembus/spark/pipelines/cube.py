"""The journal added up: what all tables over time are made of, and why a stream needs no state.

`cube` counts events by namespace, entity, level, window of time and kind; `together` adds up cubes,
and gives the same columns. So a stream writes one small cube for each micro-batch, and the table is
their sum: an event that comes late counts like any other, and a batch that is done again after a
crash writes the same cube again. A batch job has one cube for everything. Percentiles are kept as
KLL sketches, which can be added up, too (mergeable to some 1.7 % of rank).

The rule: nothing here knows what a table wants to show; that is in `rates`, `latency`, `states`,
`ledger`, `autoscale` and `outage`, each a function from a cube to a table.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tandembus.journal.schema import DELIVERIES

KEYS: Final = ("namespace", "stretch", "entity", "entity_kind", "level", "window", "kind")
SUMS: Final = ("events", "operations", "units", "bytes", "net", "planned_ms", "wait_ms", "lock_ms")
MOST: Final = ("longest_wait_ms", "longest_work_ms")
SKETCHES: Final = ("waits", "works", "totals")

BACKLOG: Final = "/x-servicebus-transfer/"
"""In the name of every backlog queue (N2)."""
UNIT_BYTES: Final = 64 * 1024
"""A message is billed once for each so many bytes that it has (`ledger`)."""


def window_of(time: Column, window_s: int) -> Column:
    """The begin of the window of time that `time` is in."""
    return F.timestamp_seconds(F.floor(F.unix_seconds(time) / window_s) * window_s)


def total_ms() -> Column:
    """From a message's arrival to the event."""
    return F.unix_millis("time") - F.unix_millis("enqueued_time")


def cube(
    events: DataFrame, window_s: int, unit_bytes: int = UNIT_BYTES, *, has_sketches: bool = True
) -> DataFrame:
    """Events of the journal, counted. Without sketches there are no percentiles, and it is faster.

    The waits are those for the first delivery: a later one waited for another reason. `works` is
    the time under the lock that ended well, `totals` is from arrival to that end.
    """
    kind = F.col("kind")
    operations = F.coalesce(F.col("operations"), F.lit(1))
    is_first = kind.isin(*DELIVERIES) & (F.coalesce(F.col("delivery_count"), F.lit(1)) <= 1)
    first_wait = F.when(is_first, F.col("wait_ms"))
    work = F.when(kind == "completed", F.col("lock_ms"))
    sums = {
        "events": F.lit(1),
        "operations": operations,
        "units": operations
        * F.greatest(F.ceil(F.coalesce(F.col("size"), F.lit(0)) / unit_bytes), F.lit(1)),
        "bytes": F.col("size").cast("bigint"),
        "net": F.col("delta").cast("bigint"),
        "planned_ms": F.when(
            kind == "scheduled", F.unix_millis("due_time") - F.unix_millis("time")
        ),
        "wait_ms": F.col("wait_ms"),
        "lock_ms": F.col("lock_ms"),
    }
    measures = [F.coalesce(F.sum(of), F.lit(0)).alias(name) for name, of in sums.items()]
    measures += [
        F.max(first_wait).alias("longest_wait_ms"),
        F.max(work).alias("longest_work_ms"),
    ]
    if has_sketches:
        total = F.when(kind.isin("completed", "taken"), total_ms())
        measures += [
            F.kll_sketch_agg_bigint(of).alias(name)
            for name, of in zip(SKETCHES, (first_wait, work, total), strict=True)
        ]
    keys = {**{name: F.col(name) for name in KEYS}, "window": window_of(F.col("time"), window_s)}
    return events.groupBy(*(of.alias(name) for name, of in keys.items())).agg(*measures)


def together(cubes: DataFrame) -> DataFrame:
    """Several cubes as one."""
    measures = [F.sum(name).alias(name) for name in SUMS]
    measures += [F.max(name).alias(name) for name in MOST]
    measures += [
        F.kll_merge_agg_bigint(name).alias(name) for name in SKETCHES if name in cubes.columns
    ]
    return cubes.groupBy(*KEYS).agg(*measures)


def settled(cube: DataFrame) -> DataFrame:
    """The same, so that the sums of `net` are right where the journal began anew: what an earlier
    stretch left there is taken away where the next one begins, which says what is there itself."""
    if (cube.agg(F.max("stretch")).first() or (None,))[0] in (None, 1):
        return cube
    of_stretch = ("namespace", "stretch")
    begins = cube.groupBy(*of_stretch).agg(F.min("window").alias("begin"))
    before = begins.select("namespace", (F.col("stretch") - 1).alias("stretch"), "begin")
    left = (
        cube.groupBy(*of_stretch, "entity", "entity_kind", "level")
        .agg((-F.sum("net")).alias("net"))
        .join(F.broadcast(before), list(of_stretch))
        .withColumnRenamed("begin", "window")
        .withColumn("kind", F.lit("began"))
    )
    for name in SUMS:
        if name != "net":
            left = left.withColumn(name, F.lit(0).cast("bigint"))
    return cube.unionByName(left, allowMissingColumns=True)


def count_of(kinds: tuple[str, ...], measure: str = "events") -> Column:
    """The sum of a measure over rows of these kinds, for `agg`."""
    return F.coalesce(F.sum(F.when(F.col("kind").isin(*kinds), F.col(measure))), F.lit(0))


def is_backlog() -> Column:
    """Whether `entity` is a backlog queue, or its dead-letter queue."""
    return F.coalesce(F.col("entity").contains(BACKLOG), F.lit(False))
