"""`latency`: how long messages waited, were worked on, and took in all, as percentiles (D5).

The sketches stay in the table, so that hours can be put together into days, and brokers into one,
without the events: `kll_merge_agg_bigint` over `waits`, `works` or `totals`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tandembus.spark.pipelines.cube import SKETCHES

PARTS: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
BY_WINDOW: Final = ("namespace", "entity", "level", "window")
BY_LEVEL: Final = ("namespace", "entity", "level")


def latency(cube: DataFrame, by: tuple[str, ...] = BY_WINDOW) -> DataFrame:
    """Milliseconds. `wait_…`: from arrival to the first delivery; `work_…`: under the lock that was
    completed; `total_…`: from arrival to completion."""
    rows = (
        cube.where("kind IN ('delivered', 'taken', 'completed')")
        .groupBy(*by)
        .agg(
            *(F.kll_merge_agg_bigint(name).alias(name) for name in SKETCHES),
            F.max("longest_wait_ms").alias("longest_wait_ms"),
            F.max("longest_work_ms").alias("longest_work_ms"),
        )
    )
    shown = [
        _quantile(sketch, part).alias(f"{sketch[:-1]}_{name}_ms")
        for sketch in SKETCHES
        for name, part in PARTS.items()
    ]
    counts = [_count(sketch).alias(f"{sketch[:-1]}_count") for sketch in SKETCHES]
    found = rows.select(*by, *counts, *shown, "longest_wait_ms", "longest_work_ms", *SKETCHES)
    return found.orderBy(*by) if by else found


def _count(sketch: str) -> Column:
    return F.coalesce(F.kll_sketch_get_n_bigint(sketch), F.lit(0))


def _quantile(sketch: str, part: float) -> Column:
    """Null where the sketch is empty: the function itself would fail."""
    return F.when(_count(sketch) > 0, F.kll_sketch_get_quantile_bigint(sketch, F.lit(part)))
