"""The side process: follows the log, writes files, holds the log back, and can be killed at any
moment.

A state is saved now and then, always right after a file was finished; after a restart the log is
read from there again, and what the files have already is not written twice. The hold is at the
state, because that is what will be read. So the order is: file, state, hold.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

from tandembus.errors import StoreError
from tandembus.journal.files import Files
from tandembus.journal.follow import PIECE, Dropped, Follower
from tandembus.journal.hold import RENEW_S, Hold
from tandembus.journal.log import beginning, log_folder
from tandembus.journal.retention import retain
from tandembus.journal.state import Opening, Saved, load, save

_log: Final = logging.getLogger("tandembus.journal")

POLL_S: Final = 0.25
FILE_ROWS: Final = 2_000_000
STATE_BYTES: Final = 256 << 20
"""A state is saved after so much log, or after four times its own size if that is more."""
KEEP_STATES: Final = 2


@dataclass(frozen=True, slots=True)
class JournalOptions:
    folder: Path
    """Of the broker's data, or of the log itself."""
    out: Path
    namespace: str = "default"
    every_s: float = 60.0
    """A file is finished at least so often while there are events."""
    keep_hours: int | None = None
    """None: for ever."""
    hold_hours: float = 24.0
    """So long after the journal's end the broker keeps the log for it."""
    hold_bytes: int = 16 << 30
    """And not more of the log than this."""
    has_hold: bool = True
    file_rows: int = FILE_ROWS
    piece_bytes: int = PIECE
    """So much of the log is read at once."""
    state_bytes: int = STATE_BYTES


class Journal:
    """One run. `step` takes the next piece of the log; `run` does so until it is told to stop."""

    def __init__(self, options: JournalOptions) -> None:
        self.options = options
        self.log = log_folder(options.folder)
        self.files = Files(options.out, options.namespace)
        self._hold: Hold | None = None
        try:
            if options.has_hold:
                self._hold = Hold(
                    self.log,
                    self.files.folder,
                    lasts_ms=int(options.hold_hours * 3_600_000),
                    most_bytes=options.hold_bytes,
                )
            self._resume()
        except BaseException:
            self.files.close()
            raise

    @property
    def place(self) -> int:
        """How far the log has been read."""
        return self._follower.place

    def step(self) -> bool:
        """False: there is nothing more for now."""
        try:
            piece = self._follower.read(self.options.piece_bytes)
        except Dropped as dropped:
            self._begin_anew(dropped.first)
            return True
        if piece is None:
            return False
        if self._opening is not None:
            self._open(piece.place, piece.first_time())
        for batch in self.transcript.take(piece):
            self.files.add(batch)
        if self.files.rows >= self.options.file_rows:
            self.finish()
        return True

    def finish(self) -> None:
        """Make a file of what was read, and save the state if that is due."""
        self.files.finish(self.place)
        if self.place - self._saved_at >= max(self.options.state_bytes, 4 * self._state_bytes):
            self.save()
            self._retain()

    def save(self) -> None:
        """The state as it is now. Only right after a file was finished."""
        number = self._follower.number
        self._save(Saved(self.transcript, self.place, number, self.files.position))

    def run(self, stop: Event, *, until_end: bool = False) -> None:
        """Until `stop` is set, or until the end of the log; then everything read is in files."""
        began = renewed = time.monotonic()
        while not stop.is_set():
            has_more = self.step()
            now = time.monotonic()
            if not self.files.rows:
                began = now
            elif now - began >= self.options.every_s:
                self.finish()
                began = now
            if now - renewed >= RENEW_S:
                self._renew()
                renewed = now
            if not has_more:
                if until_end:
                    break
                stop.wait(POLL_S)
        self.files.finish(self.place)
        self.save()
        self._retain()

    def close(self) -> None:
        self._follower.close()
        self.files.close()

    # --- where to begin ---------------------------------------------------------------------------

    def _resume(self) -> None:
        self._opening: Opening | None = None
        self._renew_at = 0
        saved = self._newest_state()
        if saved is None:
            if self.files.stretch:
                raise StoreError(
                    f"{self.files.states} has no state that goes with the files beside it: "
                    "use another --out"
                )
            if self._hold is not None:
                self._hold.keep(0)
            saved = beginning(self.log, 1, str(self.files.states))
            self._start(saved)
            self._save(saved)
        else:
            self._start(saved)

    def _newest_state(self) -> Saved | None:
        for path in sorted(self.files.states.glob("*.parquet"), reverse=True):
            try:
                saved = load(path, str(self.files.states))
            except StoreError as error:
                _log.warning("%s", error)
                continue
            stretch = saved.transcript.stretch
            if stretch == self.files.stretch and saved.position > self.files.position:
                raise StoreError(
                    f"files are missing behind place {self.files.position:#x} in "
                    f"{self.files.folder}: put them back, or use another --out"
                )
            if stretch >= self.files.stretch:
                self._state_bytes = path.stat().st_size
                return saved
        return None

    def _start(self, saved: Saved) -> None:
        self.transcript = saved.transcript
        self._follower = Follower(self.log, saved.place, saved.number)
        self._saved_at = saved.place
        if saved.transcript.stretch > self.files.stretch:
            self._opening = saved.opening
            self.files.begin(saved.transcript.stretch, saved.place)
            if saved.transcript.time:  # an index says when it was; an empty log does not
                self._open(saved.place, saved.transcript.time)
        self._renew_at = saved.place
        self._renew()

    def _open(self, place: int, time_ms: int) -> None:
        """The first rows of a stretch."""
        assert self._opening is not None
        self.transcript.time = time_ms
        for batch in self.transcript.begin(place - 1, *self._opening):
            self.files.add(batch)
        self._opening = None

    def _begin_anew(self, first: int) -> None:
        """The log was dropped before it was read: a stretch ends here."""
        missed = f"{self.place:#x} to {first:#x}"
        _log.error("the log from %s was dropped before the journal had it", missed)
        self.files.finish(self.place)
        self._follower.close()
        saved = beginning(self.log, self.files.stretch + 1, str(self.files.states))
        saved = saved._replace(opening=saved.opening._replace(missed=missed))
        self._start(saved)
        self._save(saved)

    # --- what is kept -----------------------------------------------------------------------------

    def _save(self, saved: Saved) -> None:
        name = f"{saved.transcript.stretch:06}-{saved.place:016x}.parquet"
        self._state_bytes = save(self.files.states / name, saved)
        self._saved_at = self._renew_at = saved.place
        for old in sorted(self.files.states.glob("*.parquet"), reverse=True)[KEEP_STATES:]:
            old.unlink()
        self._renew()

    def _renew(self) -> None:
        if self._hold is not None:
            self._hold.keep(self._renew_at)

    def _retain(self) -> None:
        if self.options.keep_hours is not None:
            gone = retain(self.files, self.options.keep_hours, self.transcript.time)
            if gone:
                _log.info("%d files were older than %d hours", gone, self.options.keep_hours)
