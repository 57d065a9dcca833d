"""`states`: where the time of messages went: scheduled, waiting, worked on, in vain (D5).

The time of a message that has left is its wait up to the last delivery and the time under that last
lock. Locks that ended otherwise (abandoned, expired, released …) lie inside that wait; they are
taken out of it and shown as *in vain*.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tandembus.journal.schema import ENDS, RETURNS
from tandembus.spark.pipelines.cube import count_of

STATES: Final = ("scheduled", "waiting", "worked_on", "in_vain", "given_up")
_UNDONE: Final = ("expired", "dead_lettered", "purged", "cancelled", "deleted")
_DONE: Final = ("completed", "taken")
_MOVED: Final = tuple(sorted(set(ENDS) - set(_DONE) - set(_UNDONE)))


def states(cube: DataFrame) -> DataFrame:
    """A row for each entity, level and state: milliseconds in all, how many messages they belong
    to, and the share of all time of that entity and level."""
    sums = (
        cube.where("entity IS NOT NULL")
        .groupBy("namespace", "entity", "entity_kind", "level")
        .agg(
            count_of(("scheduled",), "planned_ms").alias("scheduled_ms"),
            (count_of((*_DONE, *_MOVED), "wait_ms") - count_of(RETURNS, "lock_ms")).alias("rest"),
            count_of(("completed",), "lock_ms").alias("worked_on_ms"),
            count_of(RETURNS, "lock_ms").alias("in_vain_ms"),
            (count_of(_UNDONE, "wait_ms") + count_of(_UNDONE, "lock_ms")).alias("given_up_ms"),
            count_of(("scheduled",)).alias("scheduled"),
            count_of((*_DONE, *_MOVED)).alias("waiting"),
            count_of(("completed",)).alias("worked_on"),
            count_of(RETURNS).alias("in_vain"),
            count_of(_UNDONE).alias("given_up"),
        )
        .withColumn("waiting_ms", F.greatest(F.col("rest"), F.lit(0)))
    )
    each = F.array(
        *(
            F.struct(
                F.lit(state).alias("state"),
                F.col(f"{state}_ms").alias("ms"),
                F.col(state).alias("messages"),
            )
            for state in STATES
        )
    )
    whole = sum((F.col(f"{state}_ms") for state in STATES[1:]), F.col(f"{STATES[0]}_ms"))
    return (
        sums.withColumn("whole", whole)
        .select("namespace", "entity", "entity_kind", "level", "whole", F.explode(each).alias("it"))
        .select(
            "namespace",
            "entity",
            "entity_kind",
            "level",
            "it.*",
            F.when(F.col("whole") > 0, F.col("it.ms") / F.col("whole")).alias("share"),
        )
        .where("messages > 0")
    )
