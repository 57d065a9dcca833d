"""Running a pipeline over the journal: once, or live and resumed where it stopped (D5, D8).

What is written below the output folder:

    <table>/            Parquet, the whole table, new after each run or micro-batch
    <table>.csv         the same for people, if wanted
    quarantine/         what could not be understood, with the reason
    _reduced/           what the tables are made from; a stream adds to it

A batch run reads all events and forgets nothing. A live run takes the new files of the journal for
each micro-batch; the tables are the sum of all batches, so they are exact as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import crc32

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tandembus.errors import ArgumentError
from tandembus.journal.schema import spark_schema
from tandembus.spark.pipelines.checkpoints import Checkpoint
from tandembus.spark.pipelines.events import (
    PROBLEM,
    QUARANTINE,
    Quarantined,
    Span,
    bad,
    flagged,
    footers,
    good,
    read_journal,
)
from tandembus.spark.pipelines.files import Folder
from tandembus.spark.pipelines.shelf import Shelf
from tandembus.spark.pipelines.view import REDUCERS, JournalPipeline, Tables, View

REDUCED: Final = "_reduced"
QUARANTINED: Final = "quarantine"
MAX_FILES: Final = 200
"""Of the journal, in one micro-batch."""
MAX_IN_ONE: Final = 500_000
"""Rows that one task is faster with than several that have to exchange them."""


@dataclass(slots=True)
class Outcome:
    """What a run did."""

    events: int = 0
    quarantined: int = 0
    batches: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    """Rows of each table."""


def needs_of(pipelines: Iterable[JournalPipeline]) -> list[str]:
    """What they are reduced from, each once."""
    return sorted({need for each in pipelines for need in each.needs}, reverse=True)


def run_once(
    spark: SparkSession,
    pipelines: Sequence[JournalPipeline],
    journals: Sequence[str],
    view: View,
    out: str,
    span: Span,
    begin: Callable[[str], None],
) -> tuple[Outcome, Tables]:
    """Several pipelines over the same events; what they are reduced to is computed once. The tables
    are not written yet. `begin` is told what is done next."""
    outcome = Outcome(batches=1)
    events = flagged(read_existing(spark, journals, span))
    view = replace(view, has_sketches=any(each.needs_sketches for each in pipelines))
    reduced = {}
    for number, need in enumerate(needs_of(pipelines)):
        begin(f"events to {need.replace('_', ' ')}")
        path = f"{out}/{REDUCED}/{need}"
        counted, made = Observation(), Observation()
        rows = events.observe(counted, F.count(F.lit(1)).alias("all"), _bads())
        frame = REDUCERS[need].of_events(good(rows), view)
        frame.observe(made, F.count(F.lit(1)).alias("all")).write.mode("overwrite").parquet(path)
        reduced[need] = spark.read.schema(frame.schema).parquet(path)
        if made.get["all"] <= MAX_IN_ONE:
            reduced[need] = reduced[need].coalesce(1)
        reduced[need] = REDUCERS[need].finished(reduced[need])
        if number == 0:
            outcome.events = counted.get["all"]
            outcome.quarantined = counted.get["bad"]
    broken = _broken(events.inputFiles(), outcome.events, span)
    has_bad_rows = outcome.quarantined > 0
    outcome.quarantined += len(broken)
    quarantine(spark, bad(events) if has_bad_rows else None, broken, out)
    tables: Tables = {}
    for each in pipelines:
        tables |= each.tables(reduced, view)
    return outcome, tables


def run_live(
    spark: SparkSession,
    pipeline: JournalPipeline,
    journals: Sequence[str],
    view: View,
    out: str,
    checkpoint: Checkpoint,
    trigger: Mapping[str, Any],
    told: Callable[[Outcome], None],
    max_files: int = MAX_FILES,
) -> tuple[StreamingQuery, Outcome]:
    """A started query; each micro-batch brings the tables up to date."""
    outcome = Outcome()
    view = replace(view, has_sketches=pipeline.needs_sketches)
    shelves = {
        need: Shelf(spark, f"{out}/{REDUCED}/{need}", REDUCERS[need]) for need in pipeline.needs
    }

    looked: set[str] = set()

    def on_batch(batch: DataFrame, number: int) -> None:
        name = checkpoint.batch(number)
        outcome.quarantined += _quarantine_files(spark, journals, out, looked)
        events = flagged(batch)
        counted = Observation("events")
        rows = events.observe(counted, F.count(F.lit(1)).alias("all"), _bads())
        for index, (need, shelf) in enumerate(shelves.items()):
            frame = good(rows if index == 0 else events)
            shelf.put(name, REDUCERS[need].of_events(frame, view))
        outcome.batches += 1
        outcome.events += counted.get["all"]
        if counted.get["bad"]:
            outcome.quarantined += counted.get["bad"]
            bad(events).write.mode("overwrite").parquet(f"{out}/{QUARANTINED}/batch={name}")
        reduced = {need: shelf.finished() for need, shelf in shelves.items()}
        for table, frame in pipeline.tables(reduced, view).items():
            outcome.tables[table] = keep(table, frame, out)
        told(outcome)

    streams = [
        spark.readStream.schema(spark_schema())
        .option("maxFilesPerTrigger", max_files)
        .parquet(journal)
        for journal in journals
    ]
    stream = streams[0]
    for other in streams[1:]:
        stream = stream.unionByName(other)
    query = (
        stream.writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", checkpoint.path)
        .trigger(**trigger)
        .start()
    )
    return query, outcome


# --- parts ----------------------------------------------------------------------------------------


def keep(name: str, table: DataFrame, out: str) -> int:
    """Written; its rows."""
    counted = Observation()
    rows = table.observe(counted, F.count(F.lit(1)).alias("all"))
    rows.write.mode("overwrite").parquet(f"{out}/{name}")
    return int(counted.get["all"])


def quarantine(
    spark: SparkSession, rows: DataFrame | None, more: Sequence[Quarantined], out: str
) -> None:
    """The quarantine table of a run that reads everything: it replaces that of the last one."""
    frames = [] if rows is None else [rows]
    if more:
        frames.append(spark.createDataFrame([tuple(each) for each in more], QUARANTINE))
    Folder(spark, out).remove(QUARANTINED)
    for frame in frames:
        frame.write.mode("append").parquet(f"{out}/{QUARANTINED}")


def _quarantine_files(
    spark: SparkSession, journals: Sequence[str], out: str, looked: set[str]
) -> int:
    """Files of a live journal that cannot be opened, which Spark passes over; how many. Each is put
    in its own place, so that to find it again after a restart changes nothing."""
    files = set(read_journal(spark, journals).inputFiles()) - looked
    looked |= files
    broken = footers(sorted(files)).broken
    for each in broken:
        place = f"{out}/{QUARANTINED}/batch=file-{crc32(str(each.source).encode()):08x}"
        spark.createDataFrame([tuple(each)], QUARANTINE).write.mode("overwrite").parquet(place)
    return len(broken)


def part_done(spark: SparkSession) -> float:
    """How much of what Spark does now it has done, by tasks."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    tasks = sum(each.numTasks for each in stages if each)
    return sum(each.numCompletedTasks for each in stages if each) / tasks if tasks else 0.0


def _bads() -> Any:
    return F.count(F.col(PROBLEM)).alias("bad")


def read_existing(spark: SparkSession, journals: Sequence[str], span: Span) -> DataFrame:
    """The events, if there are any."""
    for journal in journals:
        if not Folder(spark, journal).names():
            raise ArgumentError(f"there is no journal in {journal}")
    return read_journal(spark, journals, span)


def _broken(files: Sequence[str], rows: int, span: Span) -> list[Quarantined]:
    """Files that cannot be opened; and rows that were passed over inside of one."""
    found = footers(files)
    missing = found.rows - rows if span == Span() else 0
    if missing <= 0:
        return found.broken
    why = f"{missing:,} rows of the journal could not be read: a file is damaged inside"
    return [*found.broken, Quarantined(why, None, None)]
