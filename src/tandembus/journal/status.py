"""How far a journal is, read from its files: also while it is being written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from tandembus.errors import StoreError
from tandembus.journal.files import spans
from tandembus.journal.follow import durable_end
from tandembus.journal.hold import Hold
from tandembus.journal.log import log_folder


class Status(NamedTuple):
    rows: int
    files: int
    hours: int
    bytes: int
    stretches: int
    position: int
    """The journal has the log before this place."""
    end: int
    """Of what is durable of the log."""
    held: int | None
    """The broker keeps the log from this place on; None: nobody asked for it."""


def status(folder: Path, out: Path, namespace: str) -> Status:
    log = log_folder(folder)
    own = out / f"namespace={namespace}"
    if not own.is_dir():
        raise StoreError(f"there is no journal of {namespace!r} in {out}")
    known = spans(own)
    hold = Hold(log, own, lasts_ms=0, most_bytes=0)
    return Status(
        rows=sum(pq.read_metadata(span.path).num_rows for span in known),
        files=len(known),
        hours=len({span.hour for span in known}),
        bytes=sum(span.path.stat().st_size for span in known),
        stretches=len({span.stretch for span in known}),
        position=known[-1].end if known else 0,
        end=durable_end(log),
        held=hold.place(),
    )
