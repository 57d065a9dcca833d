"""Reading the journal: which files, which hours, and what is wrong with a row or a file (D8).

The rule: what cannot be understood never stops a job and is never left out in silence. A row goes
to the quarantine table with its reason, a file that cannot be opened with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tandembus.errors import ArgumentError
from tandembus.journal.schema import KIND_NAMES, spark_schema

QUARANTINE: Final = "reason string, source string, record string"
"""The columns of the quarantine table: why, from which file or entity, and the row as JSON."""
PROBLEM: Final = "problem"


class Quarantined(NamedTuple):
    """A row of it."""

    reason: str
    source: str | None
    record: str | None


@dataclass(frozen=True, slots=True)
class Span:
    """A range of time; None is open."""

    start: datetime | None = None
    end: datetime | None = None

    def of(self, frame: DataFrame, time: str = "time", hour: str | None = "hour") -> DataFrame:
        """Rows from `start` on, and before `end`. Folders of other hours are not opened."""
        for bound, sign in ((self.start, ">="), (self.end, "<")):
            if bound is None:
                continue
            moment = bound.astimezone(UTC)
            if hour is not None:
                frame = frame.where(F.expr(f"{hour} {sign[0]}= '{moment:%Y-%m-%dT%H}'"))
            text = moment.strftime("%Y-%m-%d %H:%M:%S.%f")
            frame = frame.where(F.expr(f"{time} {sign} TIMESTAMP '{text}+00:00'"))
        return frame


def read_journal(
    spark: SparkSession, folders: Sequence[str], span: Span | None = None
) -> DataFrame:
    """Events of one or several journals."""
    frames = [spark.read.schema(spark_schema()).parquet(folder) for folder in folders]
    if not frames:
        raise ArgumentError("give the folder of a journal")
    return (span or Span()).of(reduce(DataFrame.unionByName, frames))


def flagged(events: DataFrame) -> DataFrame:
    """With `problem`: null, or what is wrong with the row."""
    kind = F.col("kind")
    found = F.lit(None).cast("string")
    problems: list[tuple[Column, Column]] = [
        (F.col("lock_ms") < 0, F.lit("lock_ms is negative")),
        (F.col("wait_ms") < 0, F.lit("wait_ms is negative")),
        (F.col("size") < 0, F.lit("size is negative")),
        (F.col("operations") < 0, F.lit("operations is negative")),
        (~kind.isin(*KIND_NAMES), F.concat(F.lit("unknown kind: "), kind)),
        (kind.isNull(), F.lit("there is no kind")),
        (F.col("time").isNull(), F.lit("there is no time")),
    ]
    for is_wrong, why in problems:
        found = F.when(is_wrong, why).otherwise(found)
    return events.withColumn(PROBLEM, found)


def good(frame: DataFrame) -> DataFrame:
    return frame.where(F.col(PROBLEM).isNull()).drop(PROBLEM)


def bad(frame: DataFrame) -> DataFrame:
    """The rows of the quarantine table."""
    names = [name for name in frame.columns if name != PROBLEM]
    return frame.where(F.col(PROBLEM).isNotNull()).select(
        F.col(PROBLEM).alias("reason"),
        F.input_file_name().alias("source"),
        F.to_json(F.struct(*names)).alias("record"),
    )


class Footers(NamedTuple):
    """What the ends of Parquet files say."""

    rows: int
    first: datetime | None
    last: datetime | None
    """Of `time`."""
    broken: list[Quarantined]
    """Files that cannot be opened."""


def footers(files: Iterable[str]) -> Footers:
    """Only the ends of the files are read."""
    from pyarrow import ArrowException, fs, parquet

    rows, times, broken = 0, [], []
    for uri in files:
        try:
            system, path = fs.FileSystem.from_uri(uri)
            metadata = parquet.read_metadata(path, filesystem=system)
        except (ArrowException, OSError, ValueError) as error:
            broken.append(Quarantined(f"the file cannot be read: {error}", uri, None))
            continue
        rows += metadata.num_rows
        column = metadata.schema.names.index("time") if "time" in metadata.schema.names else None
        for number in range(metadata.num_row_groups if column is not None else 0):
            statistics = metadata.row_group(number).column(column).statistics
            if statistics is not None and statistics.has_min_max:
                times += [statistics.min, statistics.max]
    return Footers(rows, min(times, default=None), max(times, default=None), broken)
