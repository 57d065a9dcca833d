"""`dead-letters`: what was given up, by entity and reason, with samples to look at.

A sample is enough to find the message: `tandem peek ENTITY/$DeadLetterQueue --from NUMBER`. Three
are kept of each reason: the first, the last, and the one that was tried most often; so a reason
with a million messages needs no more memory than one with three.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

KEYS: Final = ("namespace", "entity", "reason")
_SAMPLES: Final = {"first": "first_time", "last": "last_time", "stubborn": "most_deliveries"}


def dead_letters(events: DataFrame) -> DataFrame:
    """Of events of the journal; `together` puts several such tables into one."""
    sample = F.struct("time", "sequence_number", "delivery_count", "session_id", "size", "detail")
    tried = F.coalesce("delivery_count", F.lit(0))
    return (
        events.where("kind = 'dead_lettered'")
        .groupBy(*KEYS)
        .agg(
            F.count("*").alias("messages"),
            F.min("time").alias("first_time"),
            F.max("time").alias("last_time"),
            F.max(tried).alias("most_deliveries"),
            F.min_by(sample, "time").alias("first"),
            F.max_by(sample, "time").alias("last"),
            F.max_by(sample, tried).alias("stubborn"),
        )
    )


def together(tables: DataFrame) -> DataFrame:
    return tables.groupBy(*KEYS).agg(
        F.sum("messages").alias("messages"),
        F.min("first_time").alias("first_time"),
        F.max("last_time").alias("last_time"),
        F.max("most_deliveries").alias("most_deliveries"),
        *(_best(name, by) for name, by in _SAMPLES.items()),
    )


def _best(name: str, by: str) -> Column:
    choose = F.min_by if name == "first" else F.max_by
    return choose(name, by).alias(name)
