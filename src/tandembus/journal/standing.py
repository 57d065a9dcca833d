"""What the broker's own index says is there: rows as at the beginning of a stretch.

The index is made from the broker's memory, the journal from its log. Where both speak of the same
place they must agree, and the audit compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tandembus.journal.arrow import SCHEMA
from tandembus.journal.files import spans
from tandembus.journal.log import log_folder
from tandembus.journal.schema import PARTITIONS, plain_schema
from tandembus.journal.state import from_index


def standing(folder: Path, namespace: str = "default", journals: Sequence[str | Path] = ()) -> Any:
    """A table with the columns of the journal, partitions included. With the folders of `journals`,
    only an index is taken that the journal of this namespace has come up to; empty without one."""
    found = from_index(log_folder(folder), 1, until=_position(namespace, journals))
    batches = []
    if found is not None:
        batches = list(found.transcript.begin(found.place - 1, *found.opening))
    table = pa.Table.from_batches(batches, SCHEMA).cast(plain_schema())
    for column, value in zip(PARTITIONS, (namespace, ""), strict=True):
        table = table.append_column(column.name, pa.repeat(value, table.num_rows))
    return table


def _position(namespace: str, journals: Sequence[str | Path]) -> int | None:
    """The journal has all before this place; None if it is not among these."""
    places = []
    for journal in journals:
        own = Path(journal) / f"namespace={namespace}"
        places += [span.end for span in spans(own)[-1:]]
        states = sorted(own.glob("_state/*.parquet"))
        places += [int(path.stem.rpartition("-")[2], 16) for path in states[-1:]]
    return max(places, default=None)
