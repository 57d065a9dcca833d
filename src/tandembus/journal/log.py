"""The events of a log as they are now, without keeping anything: for a look, and for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandembus.config.server import check_kept_here
from tandembus.errors import StoreError
from tandembus.journal.events import Entities
from tandembus.journal.follow import PIECE, Dropped, Follower
from tandembus.journal.join import Messages
from tandembus.journal.state import Opening, Saved, from_index
from tandembus.journal.transcript import Transcript


def log_folder(folder: Path) -> Path:
    """Of a broker's data folder, or that folder itself. Raises StoreError if there is no log, and
    ArgumentError if it is in a database."""
    check_kept_here(folder)
    inner = folder / "log"
    found = inner if inner.is_dir() else folder
    if not found.is_dir():
        raise StoreError(f"there is no log in {folder}")
    return found


def beginning(folder: Path, stretch: int = 1, spill: str | None = None) -> Saved:
    """Where a log can be told from: its first place, or the broker's index where that has been
    dropped."""
    follower = Follower(folder, 0)
    try:
        follower.read(1 << 16)
    except Dropped as dropped:
        saved = from_index(folder, stretch, spill)
        if saved is None:
            raise StoreError(
                f"the log in {folder} begins at {dropped.first:#x} and has no index"
            ) from None
        return saved
    finally:
        follower.close()
    transcript = Transcript(Messages(spill), Entities(), stretch=stretch)
    return Saved(transcript, 0, None, 0, Opening([]))


def read_events(folder: Path, *, piece_bytes: int = PIECE) -> Iterator[Any]:
    """Record batches of all that is durable in the log now."""
    log = log_folder(folder)
    saved = beginning(log)
    transcript, is_begun = saved.transcript, False
    follower = Follower(log, saved.place, saved.number)
    try:
        while True:
            piece = follower.read(piece_bytes)
            if not is_begun and (piece is not None or transcript.time):
                is_begun = True
                if not transcript.time and piece is not None:
                    transcript.time = piece.first_time()
                yield from transcript.begin(saved.place - 1, *saved.opening)
            if piece is None:
                return
            yield from transcript.take(piece)
    except Dropped:
        raise StoreError(
            f"the broker dropped a part of the log in {folder} while it was read: run "
            "`tandem journal`, which holds it back"
        ) from None
    finally:
        follower.close()
