"""What an event says of its message: size, level, when it came, how long it waited and was locked.

The log says this where the message came and where it was delivered; the event of its end has only
its number. So what is known of each message that is there is kept, in 42 bytes, from the event that
brought it to the one that ended it.

Rows lie in pages by number (as in the broker numbers of an entity are dense), so that finding them
is arithmetic. A table beyond `SPILL_ROWS` lies in a file that has no name: the system keeps in
memory what is used. The rule: nothing here depends on how the log was cut into pieces.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tandembus.journal.events import Array, Events
from tandembus.journal.schema import ARRIVALS, CODES, ENDS, KIND_NAMES, RETURNS

_SHIFT: Final = 8
PAGE: Final = 1 << _SHIFT
SPILL_ROWS: Final = 2 << 20

ROW: Final = np.dtype(
    [
        ("enqueued", "<i8"), ("body", "<i8"), ("locked", "<i8"), ("size", "<i4"), ("link", "<i4"),
        ("count", "<i4"), ("session", "<i4"), ("level", "i1"), ("is_there", "i1"),
    ]
)  # fmt: skip
"""`locked`: since when, 0 if it is not; `session`: its number here, 0 for none."""


def _flags(*names: str) -> Array:
    return np.array([name in names for name in KIND_NAMES], bool)


_ACTIVATED: Final = CODES["activated"]
_COMES: Final = _flags(*ARRIVALS)
_GOES: Final = _flags(*ENDS)
_DELIVERS: Final = _flags("delivered", "taken")
_LOCKS: Final = _flags("delivered")
_UNLOCKS: Final = _flags(*RETURNS, "deferred")
_LEVELS: Final = _flags("delivered", "taken", "level_changed")
_STAYS: Final = _flags(
    "delivered", "renewed", *RETURNS, "deferred", "reactivated", "level_changed", "no_subscription"
)


class Messages:
    """Every message that is there, with what was said of it."""

    def __init__(self, folder: str | None = None) -> None:
        """`folder`: for the file of a large table; None: the system's own for such things."""
        self._folder = folder
        self._rows = np.zeros(PAGE, ROW)
        self._alive = np.zeros(1, "i8")
        self._free = [0]
        self._pages: dict[tuple[int, int], int] = {}
        """(entity, number >> _SHIFT) → page."""
        self._keys: dict[int, tuple[int, int]] = {}
        """The way back."""
        self.sessions: list[str] = [""]
        self._session_numbers: dict[str, int] = {"": 0}
        self.count = 0
        self.unknown = 0
        """Events of messages that never came. In a whole log there are none."""

    # --- one batch --------------------------------------------------------------------------------

    def join(self, events: Events) -> None:
        """Fill in what the columns lack, and take note of what happened."""
        self._number_sessions(events)
        kind = events["kind"]
        comes, changes = _COMES[kind], kind == _ACTIVATED
        rows = np.flatnonzero(comes | changes | _GOES[kind] | _STAYS[kind])
        if not len(rows):
            return
        comes, changes, kind = comes[rows], changes[rows], kind[rows]
        entity, number = events["entity"][rows], events["number"][rows]
        slots = self._slots(entity, number, comes | changes)
        self._arrive(events, rows[comes], slots[comes])
        formers = self._activate(events, rows[changes], slots[changes])
        follows = ~(comes | changes) & (slots >= 0)
        self.unknown += int((slots < 0).sum())
        if follows.any():
            self._follow(events, rows[follows], slots[follows])
        ends = slots[_GOES[kind] & (slots >= 0)]
        self._count(slots[comes | changes], np.concatenate([ends, formers]))
        # A forwarded message that its target knew already: the note has no number, the record
        # behind it has.
        dropped = np.flatnonzero(events["kind"][:-1] == CODES["duplicate_dropped"])
        dropped = dropped[events["kind"][dropped + 1] == CODES["forwarded"]]
        events["body"][dropped] = events["body"][dropped + 1]

    def _number_sessions(self, events: Events) -> None:
        session = events["session"]
        numbers = self._session_numbers
        for row, text in events.texts["session_id"].items():
            session[row] = numbers[text] if text in numbers else self.session(text)

    def _arrive(self, events: Events, rows: Array, slots: Array) -> None:
        new = np.zeros(len(rows), ROW)
        for name in ("enqueued", "body", "size", "level", "count"):
            new[name] = events[name][rows]
        new["session"] = np.maximum(events["session"][rows], 0)
        new["is_there"] = 1
        self._rows[slots] = new

    def _activate(self, events: Events, rows: Array, slots: Array) -> Array:
        """A scheduled message goes on under a new number. Returns the slots of the old ones."""
        former = self._slots(events["entity"][rows], events["former"][rows], np.zeros(0, bool))
        is_known = former >= 0
        rows, slots, former = rows[is_known], slots[is_known], former[is_known]
        known = self._rows[former]
        known["enqueued"] = events["enqueued"][rows]
        known["locked"] = 0
        self._rows[slots] = known
        for name in ("body", "size", "level", "count", "session"):
            events[name][rows] = known[name]
        return former

    def _follow(self, events: Events, rows: Array, slots: Array) -> None:
        """All that happens to a message after it came, message by message and in order."""
        order = np.argsort(slots, kind="stable")
        rows, slots = rows[order], slots[order]
        kind, time = events["kind"][rows], events["time"][rows]
        known = self._rows[slots]
        position = np.arange(len(rows))
        is_first = np.ones(len(rows), bool)
        is_first[1:] = slots[1:] != slots[:-1]
        first = np.maximum.accumulate(np.where(is_first, position, 0))

        locks, delivers = _LOCKS[kind], _DELIVERS[kind]
        link = np.maximum(events["link"][rows], 0)
        locked = _Latest(first, locks | _UNLOCKS[kind], position)
        since = locked.before(np.where(locks, time, 0), known["locked"])
        holder = locked.before(np.where(locks, link, 0), known["link"])
        counted = _Latest(first, delivers, position)
        own_count, own_level = events["count"][rows], events["level"][rows]
        count = counted.upto(own_count, known["count"])
        levelled = _Latest(first, _LEVELS[kind], position)
        level = levelled.upto(own_level, known["level"])

        enqueued = known["enqueued"]
        is_held = (since > 0) & ~delivers
        wait = np.where(is_held, since, time) - enqueued
        says_wait = delivers | is_held | _GOES[kind]
        columns = events.columns
        columns["wait"][rows] = np.where(says_wait, np.maximum(wait, 0), -1)
        columns["lock"][rows] = np.where(is_held, np.maximum(time - since, 0), -1)
        columns["enqueued"][rows] = enqueued
        columns["body"][rows] = known["body"]
        columns["size"][rows] = known["size"]
        columns["session"][rows] = known["session"]
        columns["level"][rows] = level
        columns["count"][rows] = count
        columns["link"][rows] = np.where(
            delivers, events["link"][rows], np.where(is_held & (holder > 0), holder, -1)
        )

        last = np.flatnonzero(np.append(is_first[1:], True))
        after = known[last]
        after["locked"] = locked.upto(np.where(locks, time, 0), known["locked"])[last]
        after["link"] = locked.upto(np.where(locks, link, 0), known["link"])[last]
        after["count"], after["level"] = count[last], level[last]
        self._rows[slots[last]] = after

    # --- where a message is -----------------------------------------------------------------------

    def _slots(self, entity: Array, number: Array, comes: Array) -> Array:
        """The slot of each message; -1 if it is not there. Pages are made for those that come."""
        if not len(entity):
            return np.zeros(0, "i8")
        page = number >> _SHIFT
        starts = np.ones(len(entity), bool)
        starts[1:] = (entity[1:] != entity[:-1]) | (page[1:] != page[:-1])
        begin = np.flatnonzero(starts)
        wanted = np.logical_or.reduceat(comes, begin).tolist() if len(comes) else None
        keys = zip(entity[begin].tolist(), page[begin].tolist(), strict=True)
        pages = self._pages
        found: list[int] = []
        # Within a batch the first arrival may come after its page was asked for in vain only if the
        # log is damaged; so one way through is enough.
        for at, key in enumerate(keys):
            slot = pages.get(key, -1)
            if slot < 0 and wanted is not None and wanted[at]:
                slot = pages[key] = self._new_page()
                self._keys[slot] = key
            found.append(slot)
        base = np.array(found, "i8")
        of = np.cumsum(starts) - 1
        slots = base[of] * PAGE + (number & (PAGE - 1))
        return np.where(base[of] < 0, -1, slots)

    def _count(self, came: Array, went: Array) -> None:
        """Keep the number of messages of each page; give back pages that have none."""
        self._rows["is_there"][went] = 0
        self.count += len(came) - len(went)
        self._alive += np.bincount(came >> _SHIFT, minlength=len(self._alive))
        self._alive -= np.bincount(went >> _SHIFT, minlength=len(self._alive))
        touched = np.unique(went >> _SHIFT)
        self._drop(touched[self._alive[touched] <= 0].tolist())

    def _drop(self, gone: list[int]) -> None:
        for page in gone:
            del self._pages[self._keys.pop(page)]
            self._alive[page] = 0
        self._free += gone

    def _new_page(self) -> int:
        if not self._free:
            self._grow()
        page = self._free.pop()
        self._rows[page * PAGE : (page + 1) * PAGE] = np.zeros(1, ROW)
        return page

    def _grow(self) -> None:
        pages = len(self._alive)
        rows = _table(2 * pages * PAGE, self._folder)
        rows[: pages * PAGE] = self._rows
        self._rows = rows
        self._alive = np.concatenate([self._alive, np.zeros(pages, "i8")])
        self._free = list(range(2 * pages - 1, pages - 1, -1))

    # --- all of them ------------------------------------------------------------------------------

    def of(self, entity: int) -> Iterator[tuple[Array, Array]]:
        """(numbers, rows) of the messages of an entity, page by page, in order."""
        for page, slot in sorted(
            (key[1], slot) for key, slot in self._pages.items() if key[0] == entity
        ):
            rows = self._rows[slot * PAGE : (slot + 1) * PAGE]
            there = np.flatnonzero(rows["is_there"])
            if len(there):
                yield (page << _SHIFT) + there, rows[there]

    def _pages_of(self, entity: int) -> list[tuple[int, int]]:
        return sorted((key[1], slot) for key, slot in self._pages.items() if key[0] == entity)

    def entities(self) -> list[int]:
        return sorted({entity for entity, _ in self._pages})

    def forget(self, entity: int) -> None:
        """The entity was deleted, with its messages."""
        gone = [slot for _, slot in self._pages_of(entity)]
        self.count -= int(sum(self._alive[slot] for slot in gone))
        self._drop(gone)

    def put(self, entity: int, numbers: Array, rows: Array) -> None:
        """Messages that are known from elsewhere: a saved state, or the broker's index."""
        entities, comes = np.full(len(numbers), entity, "i8"), np.ones(len(numbers), bool)
        slots = self._slots(entities, numbers, comes)
        self._rows[slots] = rows
        self._count(slots, np.zeros(0, "i8"))

    def session(self, text: str) -> int:
        """The number of a session here."""
        if text not in self._session_numbers:
            self._session_numbers[text] = len(self.sessions)
            self.sessions.append(text)
        return self._session_numbers[text]

    def trim_sessions(self) -> None:
        """Forget the sessions that no message belongs to."""
        used = np.zeros(len(self.sessions), bool)
        used[0] = True
        for slot in self._pages.values():
            rows = self._rows[slot * PAGE : (slot + 1) * PAGE]
            used[rows["session"][rows["is_there"] == 1]] = True
        to = np.cumsum(used) - 1
        for slot in self._pages.values():
            rows = self._rows[slot * PAGE : (slot + 1) * PAGE]
            rows["session"] = np.where(rows["is_there"] == 1, to[rows["session"]], 0)
        self.sessions = [text for text, is_used in zip(self.sessions, used, strict=True) if is_used]
        self._session_numbers = {text: number for number, text in enumerate(self.sessions)}


class _Latest:
    """For rows in runs: the latest setter of a value at or before each row of its run."""

    def __init__(self, first: Array, sets: Array, position: Array) -> None:
        self._upto = np.maximum.accumulate(np.where(sets, position, -1))
        self._before = np.append(-1, self._upto[:-1])
        self._is_set = self._upto >= first
        self._is_set_before = self._before >= first

    def upto(self, own: Array, known: Array) -> Array:
        """This row counts; `known` where none of the run did before."""
        return np.where(self._is_set, own[self._upto], known)

    def before(self, own: Array, known: Array) -> Array:
        """This row does not count."""
        return np.where(self._is_set_before, own[self._before], known)


def _table(rows: int, folder: str | None) -> Array:
    if rows < SPILL_ROWS:
        return np.zeros(rows, ROW)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.ftruncate(file.fileno(), rows * ROW.itemsize)
        mapped = mmap.mmap(file.fileno(), rows * ROW.itemsize)
    table: np.ndarray[Any, Any] = np.frombuffer(mapped, ROW)
    return table
