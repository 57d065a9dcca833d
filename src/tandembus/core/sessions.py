"""The sessions of one queue: the order of their messages, holder, lock and state (T14).

A session exists while it has a message (in any state), a holder or a state. The rules of what may
be done under a session's lock are in `queue`; here is the book-keeping.

A session that only waits is a row: its id, two counts, its place among the available sessions, and
for each level the first and the last of its waiting messages. Those are linked with each other by
two columns of the table, which a chunk has only if a session has a second message (`session_rows`).
A `Session` object is made for whoever asks; it is kept only while a row cannot say all: while it
has a holder, or messages that have come back out of order. Ids are found by `session_names`.

All of it is counted in bytes, for all queues of the namespace together (`Book.session_bytes`);
`admission` holds it against `Book.max_session_bytes`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from tandembus.core.book import Book
from tandembus.core.packing import Reader, Writer
from tandembus.core.ready import Lane, Ready
from tandembus.core.session_names import SessionNames
from tandembus.core.session_rows import (
    LANE_BYTES,
    ROW_BYTES,
    STATE_BYTES,
    Page,
    SessionLane,
    SessionState,
    kept_bytes,
    link_at_an_end,
    name_bytes,
    unlink,
)
from tandembus.core.table import Chunk, Table
from tandembus.model import NEVER, Millis

_SHIFT: Final = 10
_PAGE: Final = 1 << _SHIFT
_MASK: Final = _PAGE - 1


class Session:
    """A session, for whoever asks: what is in its row is read there."""

    __slots__ = (
        "_of", "_page", "_ready", "_row", "held", "id", "link", "locked_until_ms", "number",
    )  # fmt: skip

    def __init__(self, of: Sessions, page: Page, row: int, number: int) -> None:
        self._of = of
        self._page = page
        self._row = row
        self._ready: Ready | None = None
        name = page.ids[row]
        assert name is not None
        self.id = name
        self.number = number
        """Stands for the id in the table's column."""
        self.link: int | None = None
        self.locked_until_ms: Millis = 0
        self.held: set[int] = set()
        """Sequence numbers that its holder has locked."""

    @property
    def messages(self) -> int:
        """In any state."""
        return self._page.messages[self._row]

    @property
    def waiting(self) -> int:
        return self._page.waiting[self._row]

    @property
    def state(self) -> bytes | None:
        found = self._of.states.get(self.number)
        return None if found is None else found.data

    @property
    def ready(self) -> Ready:
        """The order of its waiting messages."""
        ready = self._ready
        if ready is None:
            levels, row, page = self._of.levels, self._row, self._page
            lanes = [SessionLane(level, page, row * levels + level) for level in range(levels)]
            ready = self._ready = self._of.make_ready(self.id, lanes)
        return ready

    @property
    def is_more_than_a_row(self) -> bool:
        """Whether it must be kept. How far each level is behind its weight is not: the next holder
        begins anew, or every session that was ever held would stay an object."""
        if self.link is not None or self.held:
            return True
        return any(lane.back for lane in self._own)

    @property
    def _own(self) -> Iterator[SessionLane]:
        lanes = () if self._ready is None else self._ready.lanes
        return (lane for lane in lanes if isinstance(lane, SessionLane))

    def is_locked(self, now: Millis) -> bool:
        return self.link is not None and now < self.locked_until_ms

    def reorder(self) -> None:
        """The order is set up anew."""
        self._ready = None

    def put_back(self, index: int, level: int) -> None:
        self.ready.put_back(index, level)

    def fold(self, table: Table) -> None:
        """What came back is linked in its place."""
        for lane in self._own:
            lane.fold(table)


class Sessions:
    """All sessions of a queue, by id and by number."""

    __slots__ = (
        "_available_first", "_available_last", "_book", "_deadlines", "_kept", "_names",
        "_next_key", "_pages", "_roomy", "_table_of", "available", "bytes", "levels", "locked",
        "make_ready", "states",
    )  # fmt: skip

    def __init__(
        self,
        book: Book,
        levels: int,
        make_ready: Callable[[str, Sequence[Lane]], Ready],
        table_of: Callable[[str], Table],
    ) -> None:
        self._book = book
        self.levels = levels
        self.make_ready = make_ready
        self._table_of = table_of
        self._names = SessionNames()
        self._pages: dict[int, Page] = {}
        self._roomy: dict[int, None] = {}
        """Pages that have room for a session."""
        self._next_key = 1
        """All pages below it are there: a session's number has 32 bits in the table's column, so
        numbers are used again."""
        self._kept: dict[int, Session] = {}
        """Those of which a row cannot say all."""
        self._available_first = self._available_last = 0
        self.available = 0
        """Sessions without a holder that have a waiting message."""
        self._deadlines: list[tuple[Millis, int]] = []
        """Heap of (end of the lock, number); entries of locks renewed or ended are stale."""
        self.states: dict[int, SessionState] = {}
        """By number."""
        self.locked = 0
        """Sessions that have a holder."""
        self.bytes = 0
        """The memory of all this."""

    # --- which there are --------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, session_id: object) -> bool:
        return isinstance(session_id, str) and session_id in self._names

    def __iter__(self) -> Iterator[Session]:
        for key, page in self._pages.items():
            for row, name in enumerate(page.ids):
                if name is not None:
                    yield self.at(key << _SHIFT | row)

    def names(self) -> list[str]:
        """In no order."""
        return [name for page in self._pages.values() for name in page.ids if name is not None]

    def active_names(self) -> list[str]:
        """The ids of those that have an active message or a state, in no order."""
        found = [
            name
            for page in self._pages.values()
            for name, waiting in zip(page.ids, page.waiting, strict=True)
            if waiting and name is not None
        ]
        more = {session.number for session in self._kept.values() if session.held}
        for number in sorted(more | self.states.keys()):
            page, row = self._pages[number >> _SHIFT], number & _MASK
            if not page.waiting[row]:
                found.append(self.id_of(number))
        return found

    @property
    def kept(self) -> list[Session]:
        """Those that are more than a row; each that has a holder is."""
        return list(self._kept.values())

    def get(self, session_id: str) -> Session | None:
        number = self._find(session_id)
        return None if number is None else self.at(number)

    def _find(self, session_id: str) -> int | None:
        for other in self._names.others(session_id):
            if self.id_of(other) == session_id:
                return other
        return self._names.first(session_id)

    def _find_in(self, session_id: str, table: Table) -> int | None:
        """The session of this id that has its messages in that partition."""
        number = self._find(session_id)
        if number is None or self._table_of(self.id_of(number)) is table:
            return number
        for other in (self._names.first(session_id), *self._names.others(session_id)):
            if other is not None and self._table_of(self.id_of(other)) is table:
                return other
        return None

    def at(self, number: int) -> Session:
        """The session with this number."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        return Session(self, self._pages[number >> _SHIFT], number & _MASK, number)

    def open(self, session_id: str) -> Session:
        """The session, made if it does not exist."""
        number = self._find(session_id)
        return self.at(self._begin(session_id) if number is None else number)

    def id_of(self, number: int) -> str:
        name = self._pages[number >> _SHIFT].ids[number & _MASK]
        assert name is not None
        return name

    def cost(self, session_id: str) -> int:
        """What a session of this id adds to `bytes`."""
        return ROW_BYTES + LANE_BYTES * self.levels + name_bytes(session_id)

    def _charge(self, size: int) -> None:
        self.bytes += size
        self._book.session_bytes += size

    def _begin(self, session_id: str) -> int:
        key = next(reversed(self._roomy), 0)
        if not self._roomy:
            while self._next_key in self._pages:
                self._next_key += 1
            key = self._next_key
            self._add_page(key)
        page = self._pages[key]
        row = page.free.pop() if page.free else self._append(page)
        if not page.free and len(page.ids) == _PAGE:
            del self._roomy[key]
        number = key << _SHIFT | row
        self._name(page, row, number, session_id)
        return number

    def _add_page(self, key: int) -> None:
        self._pages[key] = Page()
        self._roomy[key] = None

    def _append(self, page: Page) -> int:
        self._charge(ROW_BYTES + LANE_BYTES * self.levels)
        return page.append(self.levels)

    def _name(self, page: Page, row: int, number: int, session_id: str) -> None:
        self._charge(name_bytes(session_id))
        page.ids[row] = session_id
        page.live += 1
        self._names.add(session_id, number)

    def _close(self, page: Page, row: int, number: int) -> None:
        """It has nothing any more: its row is free, and its page goes when it is empty."""
        name = page.ids[row]
        assert name is not None
        self._names.remove(name, number)
        self._charge(-name_bytes(name))
        page.ids[row] = None
        page.live -= 1
        key = number >> _SHIFT
        if page.live:
            page.free.append(row)
            self._roomy[key] = None
        else:
            self._charge(-len(page.ids) * (ROW_BYTES + LANE_BYTES * self.levels))
            del self._pages[key]
            self._roomy.pop(key, None)
            self._next_key = max(1, min(self._next_key, key))

    def release_memory(self) -> None:
        """The queue is deleted: its sessions are counted no more."""
        self._charge(-self.bytes)

    # --- messages ---------------------------------------------------------------------------------

    def add(self, session_id: str, table: Table | None = None) -> int:
        """One message more, in any state; `table`: that of its partition, if there are several.
        Returns the session's number. The messages of a session are in one partition: what an old
        log has in two of them, as `A` and as `a`, stays two sessions until one of them is over."""
        number = self._find(session_id) if table is None else self._find_in(session_id, table)
        if number is None:
            number = self._begin(session_id)
        self._pages[number >> _SHIFT].messages[number & _MASK] += 1
        return number

    def arrive(self, number: int, index: int, level: int, table: Table) -> None:
        """A message waits; behind all others, or in its old place."""
        page, row = self._pages[number >> _SHIFT], number & _MASK
        page.waiting[row] += 1
        self.place(number, index, level, table)
        if page.waiting[row] == 1:
            self._update(number)

    def place(self, number: int, index: int, level: int, table: Table) -> None:
        """Put a waiting message into the order."""
        page, at = self._place_of(number, level)
        if not link_at_an_end(page, at, index, table):
            self._keep(number).put_back(index, level)

    def displace(self, number: int, level: int, chunk: Chunk, row: int, table: Table) -> None:
        """Take a waiting message out of the order; `place` puts it in again."""
        page, at = self._place_of(number, level)
        unlink(page, at, chunk, row, table)

    def _place_of(self, number: int, level: int) -> tuple[Page, int]:
        return self._pages[number >> _SHIFT], (number & _MASK) * self.levels + level

    def depart(self, number: int, level: int, chunk: Chunk, row: int, table: Table) -> None:
        """A message waits no more."""
        page, at = self._pages[number >> _SHIFT], number & _MASK
        page.waiting[at] -= 1
        unlink(page, at * self.levels + level, chunk, row, table)
        if not page.waiting[at]:
            self._update(number)

    def remove(self, number: int, sequence_number: int) -> None:
        """A message that does not wait is gone."""
        self._pages[number >> _SHIFT].messages[number & _MASK] -= 1
        self.let_go(number, sequence_number)
        self._update(number)

    def recount(self, number: int, *, is_waiting: bool) -> None:
        """A message of a snapshot. The session with the oldest one is available first."""
        page, row = self._pages[number >> _SHIFT], number & _MASK
        page.messages[row] += 1
        if is_waiting:
            page.waiting[row] += 1
            self._offer(page, row, number)

    def drop_empty(self) -> None:
        """After `recount`: sessions of a snapshot that had a holder and nothing else are over."""
        for key, page in list(self._pages.items()):
            for row, count in enumerate(page.messages):
                if not count and page.ids[row] is not None:
                    self._update(key << _SHIFT | row)

    def hold(self, number: int, sequence_number: int) -> None:
        """The holder has locked a message."""
        self._keep(number).held.add(sequence_number)

    def let_go(self, number: int, sequence_number: int) -> None:
        kept = self._kept.get(number)
        if kept is not None:
            kept.held.discard(sequence_number)

    def reorder(self, levels: int) -> None:
        """All are out of order, and each has this many levels; `place` puts them in again."""
        size = LANE_BYTES * (levels - self.levels)
        self._charge((kept_bytes(levels) - kept_bytes(self.levels)) * len(self._kept))
        self.levels = levels
        for page in self._pages.values():
            self._charge(size * len(page.ids))
            page.firsts = array("Q", bytes(8 * levels * len(page.ids)))
            page.lasts = array("Q", bytes(8 * levels * len(page.ids)))
        for session in self.kept:
            session.reorder()
            self._update(session.number)

    # --- holders, states --------------------------------------------------------------------------

    def tidy(self) -> None:
        """After recovery: a session kept for a receiver from before it may be a row again."""
        for session in self.kept:
            session.fold(self._table_of(session.id))
            self._update(session.number)

    def _update(self, number: int) -> None:
        """Messages, holder or state of a session have changed."""
        page, row = self._pages[number >> _SHIFT], number & _MASK
        kept = self._kept.get(number)
        is_held = kept is not None and kept.link is not None
        if page.waiting[row] and not is_held:
            self._offer(page, row, number)
        else:
            self._withdraw(page, row, number)
        if is_held:
            return
        is_over = not page.messages[row] and number not in self.states
        if kept is not None and (is_over or not kept.is_more_than_a_row):
            del self._kept[number]
            self._charge(-kept_bytes(self.levels))
        if is_over:
            self._close(page, row, number)

    def _offer(self, page: Page, row: int, number: int) -> None:
        """It is the last of the available ones, unless it is available already."""
        if page.earlier[row] or self._available_first == number:
            return
        last = self._available_last
        if last:
            self._pages[last >> _SHIFT].later[last & _MASK] = number
            page.earlier[row] = last
        else:
            self._available_first = number
        self._available_last = number
        self.available += 1

    def _withdraw(self, page: Page, row: int, number: int) -> None:
        earlier, later = page.earlier[row], page.later[row]
        if not earlier and self._available_first != number:
            return
        if earlier:
            self._pages[earlier >> _SHIFT].later[earlier & _MASK] = later
        else:
            self._available_first = later
        if later:
            self._pages[later >> _SHIFT].earlier[later & _MASK] = earlier
        else:
            self._available_last = earlier
        page.earlier[row] = page.later[row] = 0
        self.available -= 1

    def _keep(self, number: int, session: Session | None = None) -> Session:
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = session or self.at(number)
            self._charge(kept_bytes(self.levels))
        return kept

    def state_cost(self, session: Session, state: bytes) -> int:
        """What this state of a session adds to `bytes`."""
        former = self.states.get(session.number)
        gone = 0 if former is None else len(former.data) + STATE_BYTES
        return len(state) + STATE_BYTES - gone

    def set_state(self, session_id: str, state: bytes | None, time: Millis) -> None:
        number = self.open(session_id).number
        former = self.states.pop(number, None)
        if former is not None:
            self._charge(-len(former.data) - STATE_BYTES)
        if state is not None:
            self._put_state(number, state, time)
        self._update(number)

    def _put_state(self, number: int, state: bytes, time: Millis) -> None:
        self.states[number] = SessionState(state, time)
        self._charge(len(state) + STATE_BYTES)

    def next_available(self) -> Session | None:
        first = self._available_first
        return self.at(first) if first else None

    def lock(self, session: Session, link: int, until: Millis) -> None:
        number = session.number
        kept = self._keep(number, session)
        assert kept is session
        self.locked += session.link is None
        session.link = link
        session.locked_until_ms = until
        heappush(self._deadlines, (until, number))
        if len(self._deadlines) > 2 * self.locked + 64:
            self._deadlines = [
                (each.locked_until_ms, each.number)
                for each in self._kept.values()
                if each.link is not None
            ]
            heapify(self._deadlines)
        self._update(number)

    def unlock(self, session: Session) -> None:
        self.locked -= session.link is not None
        session.link = None
        session.locked_until_ms = 0
        session.fold(self._table_of(session.id))
        self._update(session.number)

    def next_deadline(self) -> Millis:
        """When the next lock ends."""
        deadlines = self._deadlines
        while deadlines:
            until, number = deadlines[0]
            session = self._kept.get(number)
            if (
                session is not None
                and session.link is not None
                and session.locked_until_ms == until
            ):
                return until
            heappop(deadlines)
        return NEVER

    def ended(self, now: Millis) -> Iterator[Session]:
        """The sessions whose lock ends at `now` or before; each must be unlocked before the
        next."""
        while self.next_deadline() <= now:
            yield self._kept[self._deadlines[0][1]]

    # --- for the index ----------------------------------------------------------------------------

    def dump(self, out: Writer) -> None:
        """What the rows of messages do not say. Holders are not kept: a restart ends every lock.
        The ids of a page are one text: a million of them take 50 ms."""
        out.number(len(self._pages))
        for key, page in self._pages.items():
            names = [name for name in page.ids if name is not None]
            rows: Iterable[int] = range(len(names))
            if len(names) < len(page.ids):
                rows = (row for row, name in enumerate(page.ids) if name is not None)
            out.number(key << _SHIFT)
            out.column(array("I", rows))
            out.column(array("I", map(len, names)))
            out.text("".join(names))
        out.number(len(self.states))
        for number, state in self.states.items():
            out.number(number)
            out.bytes(state.data)
            out.number(state.changed_ms)

    def load(self, source: Reader, version: int) -> dict[int, int]:
        """Returns the numbers that messages have, but no session any more, each with what it is
        now: an old index can have `A` and `a`. They become the first of them, with the state that
        was set last, as when the log is replayed; but see `add`."""
        if version < 3:
            return self._load_each(source)
        others: dict[int, int] = {}
        for _ in range(source.number()):
            first = source.number()
            rows, lengths, text = source.column("I"), source.column("I"), source.text()
            assert rows is not None
            assert lengths is not None
            assert text is not None
            at = 0
            for row, length in zip(rows, lengths, strict=True):
                self._load_row(first + row, text[at : at + length], others)
                at += length
        self._find_free()
        for _ in range(source.number()):
            number, data = source.number(), source.bytes()
            assert data is not None
            self._load_state(others.get(number, number), data, source.number())
        return others

    def _load_each(self, source: Reader) -> dict[int, int]:
        """As indexes of the versions 1 and 2 have them: one by one."""
        others: dict[int, int] = {}
        source.number()  # the next number: `_find_free` finds the rows that are free
        for _ in range(source.number()):
            session_id = source.text()
            assert session_id is not None
            number, data, changed_ms = source.number(), source.bytes(), source.number()
            self._load_row(number, session_id, others)
            if data is not None:
                self._load_state(others.get(number, number), data, changed_ms)
        self._find_free()
        return others

    def _load_state(self, number: int, state: bytes, changed_ms: Millis) -> None:
        former = self.states.get(number)
        if former is not None:
            if changed_ms < former.changed_ms:
                return
            self._charge(-len(former.data) - STATE_BYTES)
        self._put_state(number, state, changed_ms)

    def _load_row(self, number: int, session_id: str, others: dict[int, int]) -> None:
        known = self._find_in(session_id, self._table_of(session_id))
        if known is not None:
            others[number] = known
            return
        key, row = number >> _SHIFT, number & _MASK
        if key not in self._pages:
            self._add_page(key)
        page = self._pages[key]
        while len(page.ids) <= row:
            self._append(page)
        self._name(page, row, number, session_id)

    def _find_free(self) -> None:
        for key, page in self._pages.items():
            is_first = key == 0  # 0 is no number
            gaps = [row for row, name in enumerate(page.ids) if name is None]
            page.free = array("H", reversed(gaps[is_first:]))
            if not page.free and len(page.ids) == _PAGE:
                del self._roomy[key]
        by_length = sorted(self._roomy, key=lambda key: len(self._pages[key].ids))
        self._roomy = dict.fromkeys(by_length)
