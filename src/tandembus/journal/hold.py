"""The hold: a file in the folder of the log that asks the broker not to drop what is still needed.

It is renewed while the journal runs, also when nothing happens. `store.folder.held_back` is what
the broker makes of it: a wish with an end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from zlib import crc32

from tandembus.errors import StoreError
from tandembus.store.segment import Damage, pack_hold, unpack_hold
from tandembus.store.segment import Hold as Wish

RENEW_S: Final = 30.0


class Hold:
    """Of the journal in `out` on the log in `folder`."""

    def __init__(self, folder: Path, out: Path, *, lasts_ms: int, most_bytes: int) -> None:
        name = f"journal-{crc32(str(out.resolve()).encode()):08x}.hold"
        self.path = folder / name
        self._lasts_ms = lasts_ms
        self._most_bytes = most_bytes

    def keep(self, place: int) -> None:
        """The log from `place` on is needed."""
        # Not `.new`: the broker takes those away when it opens.
        unfinished = self.path.with_suffix(".hold.part")
        try:
            unfinished.write_bytes(pack_hold(Wish(place, self._lasts_ms, self._most_bytes)))
            unfinished.replace(self.path)
        except OSError as error:
            raise StoreError(
                f"the log cannot be held back ({error}): run as the broker's user, or --no-hold"
            ) from error

    def release(self) -> None:
        self.path.unlink(missing_ok=True)

    def place(self) -> int | None:
        try:
            return unpack_hold(self.path.read_bytes(), self.path.name).place
        except (OSError, Damage):
            return None
