"""`capture`: the messages of entities as a table of Parquet files, each message in it once (D4).

    <out>/entity=orders/hour=2026-10-03T14/batch=3f2a91c0-00000007/part-….parquet
    <out>/_delta_log/                      the same files as a Delta table, with --format delta
    <out>_quarantine/batch=…/              what could not be understood, with the reason

A micro-batch writes the folders that bear its own name and no others, so one that is done again
after a crash replaces what it had written: at rest every reader, Spark or not, finds each message
once. In a Delta table a batch is one transaction, and one that the table has is not written again.

With a schema for JSON bodies the column `data` has them parsed, and bodies that do not fit it go to
quarantine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tandembus.errors import ArgumentError
from tandembus.spark.pipelines.checkpoints import Checkpoint
from tandembus.spark.pipelines.events import PROBLEM, good
from tandembus.spark.pipelines.running import Outcome

KEYS: Final = ("entity", "hour", "batch")
FORMATS: Final = ("parquet", "delta")
_CORRUPT: Final = "_corrupt"


@dataclass(frozen=True, slots=True)
class Capture:
    """What to capture, and how."""

    out: str
    format: str = "parquet"
    body_schema: str | None = None
    """Of JSON bodies, in DDL: `id BIGINT, name STRING`."""

    @property
    def quarantine(self) -> str:
        return f"{self.out.rstrip('/')}_quarantine"


def prepared(messages: DataFrame, body_schema: str | None = None) -> DataFrame:
    """Messages with `hour`, with `data` if there is a schema, and with `problem`: null, or why the
    row is for quarantine."""
    rows = messages.withColumn("hour", F.date_format("enqueued_time", "yyyy-MM-dd'T'HH"))
    problem = F.when(F.col("enqueued_time").isNull(), F.lit("there is no enqueued time"))
    if body_schema is None:
        return rows.withColumn(PROBLEM, problem)
    parsed = f"{body_schema}, {_CORRUPT} STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    rows = rows.withColumn("data", F.from_json(F.decode("body", "utf-8"), parsed, options))
    problem = (
        problem.when(F.col("body").isNull(), F.lit("there is no body"))
        .when(F.col("data").isNull(), F.lit("the body is not JSON"))
        .when(F.col(f"data.{_CORRUPT}").isNotNull(), F.lit("the body does not fit the schema"))
    )
    return rows.withColumn(PROBLEM, problem).withColumn("data", F.col("data").dropFields(_CORRUPT))


def start(
    messages: DataFrame,
    capture: Capture,
    checkpoint: Checkpoint,
    trigger: Mapping[str, Any],
    told: Callable[[Outcome], None],
) -> tuple[StreamingQuery, Outcome]:
    """A started query over a stream of messages."""
    if capture.format not in FORMATS:
        raise ArgumentError(f"the format is one of {', '.join(FORMATS)}, not '{capture.format}'")
    if capture.format == "delta" and "://" in capture.out:
        raise ArgumentError("a Delta table is written to a folder of this machine")
    outcome = Outcome()
    # Times as all readers know them, not in the old form of 96 bits.
    messages.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

    def on_batch(batch: DataFrame, number: int) -> None:
        name = checkpoint.batch(number)
        table = DeltaLog(capture.out, checkpoint.id) if capture.format == "delta" else None
        if table is not None and table.has(number):
            return
        counted = Observation("captured")
        rows = prepared(batch, capture.body_schema).observe(
            counted, F.count(F.lit(1)).alias("all"), F.count(F.col(PROBLEM)).alias("bad")
        )
        rows = rows.withColumn("batch", F.lit(name))
        write_batch(good(rows), capture.out)
        if table is not None:
            table.add(number, name)
        outcome.batches += 1
        outcome.events += counted.get["all"]
        if counted.get["bad"]:
            outcome.quarantined += counted.get["bad"]
            _quarantine(prepared(batch, capture.body_schema), name, capture)
        outcome.tables["captured"] = outcome.events - outcome.quarantined
        told(outcome)

    query = (
        messages.writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", checkpoint.path)
        .trigger(**trigger)
        .start()
    )
    return query, outcome


def write_batch(rows: DataFrame, out: str) -> None:
    """Replaces the folders of this batch, and only these."""
    (
        rows.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*KEYS)
        .parquet(out)
    )


def _quarantine(rows: DataFrame, batch: str, capture: Capture) -> None:
    bad = rows.where(F.col(PROBLEM).isNotNull()).drop("data", "hour")
    (
        bad.withColumnRenamed(PROBLEM, "reason")
        .write.mode("overwrite")
        .parquet(f"{capture.quarantine}/batch={batch}")
    )


def read_capture(spark: SparkSession, path: str) -> DataFrame:
    """A captured table. What the folders say stays text: `hour` is not turned into a time."""
    inferred = "spark.sql.sources.partitionColumnTypeInference.enabled"
    before = spark.conf.get(inferred)
    spark.conf.set(inferred, "false")
    try:
        return spark.read.parquet(path)
    finally:
        spark.conf.set(inferred, str(before))


class DeltaLog:
    """The files of a capture as a Delta table, by the `deltalake` package: no Java, no jar."""

    def __init__(self, out: str, query: str) -> None:
        self._out = Path(unquote(urlsplit(out).path)) if out.startswith("file:") else Path(out)
        self._query = query

    def _table(self) -> Any:
        try:
            from deltalake import DeltaTable
        except ImportError as error:
            raise ArgumentError("Delta needs more: pip install 'tandembus[delta]'") from error
        return DeltaTable(self._out) if DeltaTable.is_deltatable(str(self._out)) else None

    def has(self, number: int) -> bool:
        """Whether the table has this batch of this query: then it must not be written again."""
        table = self._table()
        if table is None:
            return False
        done = table.transaction_version(self._query)
        return done is not None and done >= number

    def add(self, number: int, batch: str) -> None:
        """The files of a batch, in one transaction that says so."""
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.transaction import AddAction, create_table_with_add_actions

        files = sorted(self._out.glob(f"entity=*/hour=*/batch={batch}/*.parquet"))
        if not files:
            return
        actions = [_action(AddAction, self._out, path) for path in files]
        schema = Schema.from_arrow(_arrow_schema(files[0]))
        properties = CommitProperties(app_transactions=[Transaction(self._query, number)])
        table = self._table()
        if table is None:
            create_table_with_add_actions(
                str(self._out), schema, actions, mode="error", partition_by=list(KEYS),
                commit_properties=properties,
            )  # fmt: skip
        else:
            table.create_write_transaction(
                actions, "append", schema, list(KEYS), commit_properties=properties
            )


def _action(make: Callable[..., Any], out: Path, path: Path) -> Any:
    relative = path.relative_to(out)
    folders = (part.partition("=") for part in relative.parts[:-1])
    return make(
        path=relative.as_posix(),
        size=path.stat().st_size,
        partition_values={name: unquote(value) for name, _, value in folders},
        modification_time=int(path.stat().st_mtime * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": _rows(path)}),
    )


def _rows(path: Path) -> int:
    from pyarrow import parquet

    return int(parquet.read_metadata(path).num_rows)


def _arrow_schema(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    schema = parquet.read_schema(path).remove_metadata()
    for key in KEYS:
        schema = schema.append(pa.field(key, pa.string()))
    return schema


def stream_of(
    spark: SparkSession, connection_string: str, entities: Sequence[str], options: Mapping[str, str]
) -> DataFrame:
    """The entities as a stream, through the data source."""
    reader = (
        spark.readStream.format("servicebus")
        .option("connectionString", connection_string)
        .option("entity", ",".join(entities))
    )
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()
