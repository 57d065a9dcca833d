"""A journal as rows of Python values, for tests."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tandembus.journal.files import spans
from tandembus.journal.run import Journal, JournalOptions
from tandembus.journal.schema import plain_schema


def write_journal(folder: Path, out: Path, **options: Any) -> Journal:
    """All that is durable in `folder`; closed on return."""
    journal = Journal(JournalOptions(folder, out, **options))
    try:
        journal.run(Event(), until_end=True)
    finally:
        journal.close()
    return journal


def table(out: Path, namespace: str = "default") -> pa.Table:
    """Every row, in the order of the files; times as milliseconds."""
    schema = plain_schema()
    found = [
        pq.ParquetFile(span.path).read().cast(schema)
        for span in spans(out / f"namespace={namespace}")
    ]
    whole = pa.concat_tables(found) if found else schema.empty_table()
    for at, field in enumerate(schema):
        if pa.types.is_timestamp(field.type):
            whole = whole.set_column(at, field.name, whole[field.name].cast(pa.int64()))
    return whole


def rows(out: Path, namespace: str = "default") -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in table(out, namespace).to_pylist()
    ]
