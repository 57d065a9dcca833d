"""The log of a broker as the table of the journal, read by Spark itself: for when nobody ran
`tandem journal`.

    from tandembus.spark.segments import read_log
    events = read_log(spark, {"shop": "/var/lib/tandem/shop"})

or, once `LogSource` is registered with `spark.dataSource.register(LogSource)`,

    spark.read.format("tandem_log").option("namespace", "shop").load("/var/lib/tandem/shop")

| option | default | |
|---|---|---|
| `path` | – | the broker's data folder, a backup of it, or the folder of the log |
| `namespace` | `default` | its name in the table |
| `rows` | 65536 | in a batch, at most |

The columns are those of `tandembus.journal.schema`. What is durable when the job runs is read, from
the beginning of the log or, where that was dropped, from the broker's index on; nothing is held
back and nothing is written. One log is one task: what an event says of its message stands where the
message came. For more than a look, or to keep it, run the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tandembus.errors import ArgumentError
from tandembus.journal.schema import spark_schema

FORMAT: Final = "tandem_log"
ROWS: Final = 65_536


def read_log(spark: SparkSession, folders: Mapping[str, str | Path]) -> DataFrame:
    """The events of some logs, by the names of their namespaces."""
    spark.dataSource.register(LogSource)
    frames = [
        spark.read.format(FORMAT).option("namespace", name).load(str(folder))
        for name, folder in folders.items()
    ]
    if not frames:
        raise ArgumentError("give the folder of a log")
    return reduce(DataFrame.unionByName, frames)


class LogSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        path = self.options.get("path")
        if not path:
            raise ArgumentError("option 'path': the data folder of a broker is needed")
        folder = Path(path.removeprefix("file:"))
        namespace, rows = self.options.get("namespace", "default"), self.options.get("rows", ROWS)
        return _Reader(folder, namespace, int(rows), schema)


class _Reader(DataSourceReader):
    def __init__(self, folder: Path, namespace: str, rows: int, schema: StructType) -> None:
        self._folder = folder
        self._namespace = namespace
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from tandembus.journal.log import read_events

        # What Spark takes: microseconds, and no dictionaries.
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for batch in read_events(self._folder):
            for begin in range(0, batch.num_rows, self._rows):
                yield _as_spark(batch.slice(begin, self._rows), schema, self._namespace)


def _as_spark(batch: pa.RecordBatch, schema: pa.Schema, namespace: str) -> pa.RecordBatch:
    import pyarrow.compute as pc

    columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
    columns["namespace"] = pa.repeat(namespace, batch.num_rows)
    columns["hour"] = pc.strftime(batch.column("time"), "%Y-%m-%dT%H")
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in schema], schema=schema
    )
