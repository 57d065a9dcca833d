"""`replay`: a range of a capture, sent into an entity again (D4).

Hours are sent one after the other and each in the order of arrival, as fast as `rate` allows. A
message gets an id that names its run, so that a run that was interrupted can be started again: what
arrived already is dropped by duplicate detection, where the entity has it. A run of its own has ids
of its own, so that replaying twice sends twice; with `keep_ids` messages have the ids they had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tandembus.errors import ArgumentError
from tandembus.spark.pipelines.capture import KEYS
from tandembus.spark.pipelines.checkpoints import Checkpoint
from tandembus.spark.pipelines.events import Span
from tandembus.spark.pipelines.files import Folder
from tandembus.spark.pipelines.running import Outcome

DONE: Final = "done.txt"
"""In the checkpoint: the hours that have been sent, one a line."""
CHUNK: Final = 500
"""Rows that go at a time when the rate is limited."""


@dataclass(frozen=True, slots=True)
class Replay:
    into: str
    span: Span
    where: str | None = None
    """SQL over the columns of the capture."""
    rate: float | None = None
    """Messages a second, of all tasks together."""
    tasks: int = 2
    keep_ids: bool = False


def chosen(capture: DataFrame, replay: Replay) -> DataFrame:
    """The rows of the range that the filter lets through."""
    rows = replay.span.of(capture, "enqueued_time")
    if replay.where:
        try:
            rows = rows.where(replay.where)
        except Exception as error:
            raise ArgumentError(f"--where cannot be understood: {_brief(error)}") from error
    return rows


def sendable(rows: DataFrame, run: str, *, keep_ids: bool = False) -> DataFrame:
    """As the data source takes them. Times that are over are left out; everything else is sent as
    it was."""
    columns = [name for name in rows.columns if name not in (*KEYS, "data", "message_id")]
    made = F.concat_ws("/", F.lit(f"replay-{run}"), F.col("entity"), F.col("sequence_number"))
    message_id = F.coalesce(F.col("message_id"), made) if keep_ids else made
    dropped = ("scheduled_enqueue_time", "enqueued_time", "delivery_count", "state", "size",
               "dead_letter_reason", "dead_letter_description", "dead_letter_source")  # fmt: skip
    kept = [name for name in columns if name not in dropped and name != "sequence_number"]
    return rows.select(message_id.alias("message_id"), *kept)


def in_order(rows: DataFrame, tasks: int) -> DataFrame:
    """In the order of arrival within each task; a session is in one task. What has no session is
    dealt to all of them: with one task everything is in order."""
    key = F.coalesce(F.col("session_id"), F.col("sequence_number").cast("string"))
    return rows.repartition(tasks, key).sortWithinPartitions("enqueued_time", "sequence_number")


def paced(rows: DataFrame, rate: float | None, tasks: int) -> DataFrame:
    """The same rows, not more than so many a second in all: each task has its share."""
    if rate is None:
        return rows
    share = rate / tasks

    def pace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin, sent = time.monotonic(), 0
        for batch in batches:
            step = max(1, min(CHUNK, int(share)))
            for at in range(0, batch.num_rows, step):
                part = batch.slice(at, step)
                time.sleep(max(0.0, begin + sent / share - time.monotonic()))
                yield part
                sent += part.num_rows

    return rows.mapInArrow(pace, rows.schema)


def run(
    spark: SparkSession,
    capture: DataFrame,
    replay: Replay,
    connection_string: str,
    checkpoint: Checkpoint,
    quarantine: str,
    told: Callable[[Outcome, int, int], None],
) -> Outcome:
    """All hours of the range that the checkpoint does not say are done."""
    folder = Folder(spark, checkpoint.path)
    done = (folder.read(DONE) or "").split()
    rows = chosen(capture, replay)
    hours = [row["hour"] for row in rows.select("hour").distinct().orderBy("hour").collect()]
    outcome = Outcome()
    for number, hour in enumerate(hours):
        told(outcome, number, len(hours))
        if hour in done:
            continue
        counted = Observation("replayed")
        of_hour = in_order(rows.where(F.col("hour") == hour), replay.tasks)
        ready = sendable(of_hour, checkpoint.id, keep_ids=replay.keep_ids)
        ready = paced(ready, replay.rate, replay.tasks).observe(
            counted, F.count(F.lit(1)).alias("all")
        )
        writer: Any = ready.write.format("servicebus").mode("append")
        writer.option("connectionString", connection_string).option("entity", replay.into).option(
            "quarantine", quarantine
        ).save()
        done.append(hour)
        folder.write(DONE, "\n".join(done) + "\n")
        outcome.events += counted.get["all"]
        outcome.batches += 1
    told(outcome, len(hours), len(hours))
    return outcome


def _brief(error: BaseException) -> str:
    return str(error).partition("\n")[0]
