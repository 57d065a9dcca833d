"""Rows that cannot be sent, kept with the reason: a Parquet file for each task that had some.

The file's name is the task's, and it is there whole or not at all: a task that runs again puts the
same file in its place. The columns of the rows are kept as they were, so that they can be mended
and written again; what is said of them begins with an underscore.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tandembus.errors import ArgumentError
from tandembus.spark.rows import BadRow


class Quarantine:
    """Of one task. Without a folder, the first bad row is an error."""

    def __init__(self, folder: str | None, entity: str, task: str) -> None:
        self._folder = folder
        self._entity = entity
        self._task = task
        self._tables: list[Any] = []
        self.count = 0

    def add(self, batch: Any, bad: Sequence[BadRow], first: int) -> None:
        """Rows of a batch whose first row is number `first` of the task."""
        if not bad:
            return
        if self._folder is None:
            raise ArgumentError(
                f"Row {first + bad[0].row} cannot be sent to '{self._entity}': {bad[0].error} "
                "Set the option 'quarantine' to a folder to put such rows aside and go on."
            )
        rows = pa.Table.from_batches([batch]).take([each.row for each in bad])
        now = datetime.now(UTC)
        said = {
            "_reason": pa.array([str(each.error) for each in bad], pa.string()),
            "_condition": pa.array([each.error.condition for each in bad], pa.string()),
            "_entity": pa.array([self._entity] * len(bad), pa.string()),
            "_task": pa.array([self._task] * len(bad), pa.string()),
            "_row": pa.array([first + each.row for each in bad], pa.int64()),
            "_time": pa.array([now] * len(bad), pa.timestamp("us", tz="UTC")),
        }
        for name, column in said.items():
            rows = rows.append_column(name, column)
        self._tables.append(rows)
        self.count += len(bad)

    def close(self) -> None:
        """Write what there is."""
        if not self._tables:
            return
        assert self._folder is not None
        system, folder = pafs.FileSystem.from_uri(_uri(self._folder))
        name = hashlib.sha256(self._task.encode()).hexdigest()[:32]
        system.create_dir(folder, recursive=True)
        # Spark and others pass over names that begin with a dot or an underscore.
        unfinished = f"{folder}/.{name}.unfinished"
        pq.write_table(pa.concat_tables(self._tables), unfinished, filesystem=system)
        system.move(unfinished, f"{folder}/{name}.parquet")


def _uri(folder: str) -> str:
    """A path of this machine as pyarrow wants it, which Spark also writes `file:/…`; others say
    their scheme."""
    if "://" in folder and not folder.startswith("file:"):
        return folder
    path = folder.removeprefix("file:")
    return Path(f"/{path.lstrip('/')}" if path.startswith("/") else path).absolute().as_uri()
