"""The rows of sessions, and the order of the messages that wait in them.

A row has the first and the last waiting message of its session for each level; the others are
linked from there by two columns of the table (`previous`, `following`). Only those that came back
out of order are elsewhere, in the heap of a `SessionLane`.
"""

from __future__ import annotations

from array import array
from heapq import heappop
from typing import Final, NamedTuple

from tandembus import limits
from tandembus.core.ready import Lane
from tandembus.core.state import State
from tandembus.core.table import Chunk, Table
from tandembus.model import Millis

_WAITING: Final = int(State.WAITING)

_MAX_FOLD: Final = limits.MAX_PREFETCH
"""The most messages that are linked again when a holder leaves, and the most linked ones passed on
the way. A session with more stays an object."""

ROW_BYTES: Final = 24
"""A row without its lanes: the id's pointer, two counts, two links."""
LANE_BYTES: Final = 16
"""The first and the last waiting message of one level."""
NAME_BYTES: Final = 132
"""An id without its characters: the string, its number, their entry in the dict."""
TEXT_BYTES: Final = 56
"""A text without its characters."""
STATE_BYTES: Final = 200
"""A state without its bytes: the object, the time, their entry in the dict."""
MAX_COST: Final = (
    ROW_BYTES
    + LANE_BYTES * limits.MAX_PRIORITY_LEVELS
    + NAME_BYTES
    + TEXT_BYTES
    + 8 * limits.MAX_SESSION_ID
)
"""The most memory of a session that nobody holds, beside its state."""


def kept_bytes(levels: int) -> int:
    """The memory of a session that is kept as an object, beside its row, as
    tests/unit/core/test_memory_of_sessions.py measures it."""
    return 600 + 270 * levels


def key_of(session_id: str) -> str:
    """What is the same for ids that differ in case only: they are one session, as in Azure."""
    key = session_id.lower() if session_id.isascii() else "".join(map(_folded, session_id))
    return session_id if key == session_id else key


def _folded(letter: str) -> str:
    """Letter by letter, as .NET compares: "İ" is one letter, and no "i" with a dot behind it. A
    letter beyond ASCII is never one of ASCII."""
    upper = letter.upper()
    small = upper.lower() if len(upper) == 1 else letter.lower()
    return small if len(small) == 1 and small.isascii() == letter.isascii() else letter


def name_bytes(session_id: str) -> int:
    """The memory of an id, and of its key if that is another text."""
    size = len(session_id) * (1 if session_id.isascii() else 4)
    return NAME_BYTES + (size if key_of(session_id) is session_id else 2 * size + TEXT_BYTES)


class SessionState(NamedTuple):
    data: bytes
    changed_ms: Millis


class Page:
    """Rows of sessions, side by side."""

    __slots__ = (
        "earlier", "firsts", "free", "ids", "lasts", "later", "live", "messages", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ids: list[str | None] = []
        self.messages = array("I")
        """In any state."""
        self.waiting = array("I")
        self.later = array("I")
        self.earlier = array("I")
        """Numbers of the neighbours among the available sessions; 0: none."""
        self.firsts = array("Q")
        self.lasts = array("Q")
        """By row and level: the first and the last message in order; 0: none."""
        self.free = array("H")
        """Rows that were used before."""
        self.live = 0

    def append(self, levels: int) -> int:
        """A new row, not in use."""
        self.ids.append(None)
        for column in (self.messages, self.waiting, self.later, self.earlier):
            column.append(0)
        self.firsts.extend([0] * levels)
        self.lasts.extend([0] * levels)
        return len(self.ids) - 1


class SessionLane(Lane):
    """The waiting messages of a session at one level: those in order are linked, those that came
    back out of order are in the heap of `Lane`."""

    __slots__ = ("_at", "_page")

    def __init__(self, level: int, page: Page, at: int) -> None:
        super().__init__(level)
        self._page = page
        self._at = at

    @property
    def back(self) -> list[int]:
        return self._back

    @property
    def is_used(self) -> bool:
        return bool(self._back or self._page.firsts[self._at])

    def first(self, table: Table) -> tuple[int, Chunk, int] | None:
        back = self._back
        while True:
            index = self._page.firsts[self._at]
            if back and (not index or back[0] < index):
                index = back[0]
            elif not index:
                return None
            found = table.find(index)
            if found is not None:
                chunk, row = found
                if chunk.states[row] == _WAITING and chunk.level(row) == self.level:
                    return index, chunk, row
            heappop(back)  # stale: the message does not wait any more

    def drop(self, index: int) -> None:
        """What is linked is unlinked when its state changes."""
        back = self._back
        if back and back[0] == index:
            heappop(back)

    def fold(self, table: Table) -> None:
        """What came back is linked in its place."""
        if not 0 < len(self._back) <= _MAX_FOLD:
            return
        waiting: list[int] = []
        for index in sorted(set(self._back)):
            found = table.find(index)
            if found is not None and found[0].states[found[1]] == _WAITING:
                if found[0].level(found[1]) == self.level:
                    waiting.append(index)
        self._back[:] = _link_all(self._page, self._at, waiting, table)


def link_at_an_end(page: Page, at: int, index: int, table: Table) -> bool:
    """Link a message that goes behind, or before, all that are linked. False: it does not."""
    first, last = page.firsts[at], page.lasts[at]
    if not first:
        page.firsts[at] = page.lasts[at] = index
    elif index > last:
        _link(table, last, index)
        page.lasts[at] = index
    elif index < first:
        _link(table, index, first)
        page.firsts[at] = index
    else:
        return False
    return True


def _link_all(page: Page, at: int, indexes: list[int], table: Table) -> list[int]:
    """Link these messages, lowest first, each in its place. Returns those whose place is too
    far away."""
    before, behind, steps = 0, page.firsts[at], 0
    for count, index in enumerate(indexes):
        while behind and behind < index and steps < _MAX_FOLD:
            before, behind = behind, _following(table, behind)
            steps += 1
        if behind == index:
            continue
        if behind and behind < index:
            return indexes[count:]
        if before:
            _link(table, before, index)
        else:
            page.firsts[at] = index
        if behind:
            _link(table, index, behind)
        else:
            page.lasts[at] = index
        before = index
    return []


def unlink(page: Page, at: int, chunk: Chunk, row: int, table: Table) -> None:
    """Take a message out of the order, if it is linked."""
    index = chunk.indexes[row]
    before = 0 if chunk.previous is None else chunk.previous[row]
    if not before and page.firsts[at] != index:
        return
    behind = 0 if chunk.following is None else chunk.following[row]
    if before or behind:
        _set_link(table, index, "previous", 0)
        _set_link(table, index, "following", 0)
    if before:
        _set_link(table, before, "following", behind)
    else:
        page.firsts[at] = behind
    if behind:
        _set_link(table, behind, "previous", before)
    else:
        page.lasts[at] = before


def _link(table: Table, one: int, other: int) -> None:
    """`other` goes behind `one`."""
    _set_link(table, one, "following", other)
    _set_link(table, other, "previous", one)


def _following(table: Table, index: int) -> int:
    found = table.find(index)
    assert found is not None
    chunk, row = found
    return 0 if chunk.following is None else chunk.following[row]


def _set_link(table: Table, index: int, name: str, to: int) -> None:
    found = table.find(index)
    assert found is not None
    chunk, row = found
    if to or getattr(chunk, name) is not None:
        chunk.column(name, "Q", 0)[row] = to
