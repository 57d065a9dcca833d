"""The journal's files: each is written under another name, synced, and renamed when it is whole.

    DIR/namespace=NAME/hour=2026-10-03T14/STRETCH-FROM-TO.parquet   places, in hexadecimal
    DIR/namespace=NAME/_state/PLACE.parquet                         what `state` saves
    DIR/namespace=NAME/_lock                                        held while a journal runs

The rule: one file is one stretch of the log and one hour, and its name says from which place to
which. So the position in the log and the rows appear in one rename: after a kill at any moment no
event is missing and none is there twice. Names that begin with `_` or `.` are not part of the
table for Spark and others.
"""

from __future__ import annotations

import fcntl
import os
import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandembus.errors import StoreError
from tandembus.journal.arrow import SCHEMA
from tandembus.journal.state import sync

ROW_GROUP: Final = 1 << 17
_HOUR_MS: Final = 3_600_000
_NAME: Final = re.compile(r"([0-9]+)-([0-9a-f]{16})-([0-9a-f]{16})\.parquet")
_DICTIONARIES: Final = (
    "kind", "entity", "entity_kind", "session_id", "reason", "size", "level", "delta", "hops",
    "entity_id", "delivery_count", "link", "stretch",
)  # fmt: skip
_SEQUENCES: Final = ("place", "row", "time", "sequence_number", "body", "enqueued_time")
_ENCODINGS: Final = dict.fromkeys(_SEQUENCES, "DELTA_BINARY_PACKED")


class Span(NamedTuple):
    """What a file holds."""

    stretch: int
    begin: int
    end: int
    path: Path

    @property
    def hour(self) -> str:
        return self.path.parent.name.removeprefix("hour=")


def spans(folder: Path) -> list[Span]:
    """The files of one namespace, in the order of the log."""
    found = []
    for path in folder.glob("hour=*/*.parquet"):
        match = _NAME.fullmatch(path.name)
        if match:
            stretch, begin, end = match.groups()
            found.append(Span(int(stretch), int(begin, 16), int(end, 16), path))
    return sorted(found)


def hour_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1_000, UTC).strftime("%Y-%m-%dT%H")


class Files:
    """The table of one namespace, for its one writer."""

    def __init__(self, out: Path, namespace: str) -> None:
        self.folder = out / f"namespace={namespace}"
        self.states = self.folder / "_state"
        self.states.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StoreError(f"another journal is being written to {self.folder}") from None
        for left in (*self.folder.glob("hour=*/.*.new"), *self.states.glob("*.new")):
            left.unlink()
        self.spans = known = spans(self.folder)
        for one, other in pairwise(known):
            if one.stretch == other.stretch and one.end != other.begin:
                os.close(self._lock)
                raise StoreError(
                    f"files are missing between {one.path.name} and {other.path.name} in "
                    f"{self.folder}: put them back, or use another --out"
                )
        self.stretch = known[-1].stretch if known else 0
        """The last one; 0: there is none yet."""
        self.position = known[-1].end if known else 0
        """The journal has everything before this place."""
        self._writer: Any = None
        self._path = Path()
        self._begin = self.position
        self._hour = ""
        self._pending: list[Any] = []
        self._pending_rows = 0
        self.rows = 0
        """In the file that is being written."""
        self.written_rows = 0
        self.written_bytes = 0

    def begin(self, stretch: int, place: int) -> None:
        """From here on: that stretch, from that place."""
        assert self._writer is None
        assert stretch > self.stretch
        self.stretch, self.position, self._begin = stretch, place, place

    def add(self, batch: Any) -> None:
        """Events in order; those that the journal has already are left out."""
        places = batch.column("place").to_numpy()
        if len(places) and places[0] < self.position - 1:
            batch = batch.slice(int(np.searchsorted(places, self.position)))
        while batch.num_rows:
            time = batch.column("time").view(pa.int64())
            hour_ms = time[0].as_py() // _HOUR_MS * _HOUR_MS
            count = batch.num_rows
            if time[-1].as_py() >= hour_ms + _HOUR_MS:
                count = int(np.searchsorted(time.to_numpy(), hour_ms + _HOUR_MS))
            hour = hour_of(hour_ms)
            if self._writer is not None and hour != self._hour:
                self.finish(batch.column("place")[0].as_py())
            self._put(batch.slice(0, count), hour)
            batch = batch.slice(count)

    def finish(self, place: int) -> None:
        """Make a file of what was added, and say by its name that the journal goes to `place`."""
        if self._writer is None:
            return  # nothing happened in between: the next file will begin where the last one ended
        self._flush()
        self._writer.close()
        self._writer = None
        self.written_bytes += sync(self._path)
        name = f"{self.stretch}-{self._begin:016x}-{place:016x}.parquet"
        path = self._path.with_name(name)
        self._path.rename(path)
        sync(path.parent)
        self.spans.append(Span(self.stretch, self._begin, place, path))
        self.written_rows += self.rows
        self.position = self._begin = place
        self.rows = 0

    def close(self) -> None:
        """What is not finished is forgotten: it will be read from the log again."""
        if self._writer is not None:
            self._writer.close()
            self._path.unlink()
            self._writer = None
        os.close(self._lock)

    # --- inside -----------------------------------------------------------------------------------

    def _put(self, batch: Any, hour: str) -> None:
        if self._writer is None:
            self._open(hour)
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.rows += batch.num_rows
        if self._pending_rows >= ROW_GROUP:
            self._flush()

    def _open(self, hour: str) -> None:
        folder = self.folder / f"hour={hour}"
        if not folder.exists():
            folder.mkdir(parents=True)
            sync(self.folder)
        self._hour = hour
        self._path = folder / f".{self._begin:016x}.new"
        self._writer = pq.ParquetWriter(
            self._path,
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=list(_DICTIONARIES),
            column_encoding=_ENCODINGS,
        )

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending, SCHEMA).unify_dictionaries()
            self._writer.write_table(table, row_group_size=2 * ROW_GROUP)
            self._pending, self._pending_rows = [], 0
