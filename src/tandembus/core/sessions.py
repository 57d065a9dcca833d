"""The sessions of one queue: their messages' order, holder, lock and state (T14).

A session exists while it has a message (in any state), a holder or a state. The rules of what may
be done under a session's lock are in `queue`; here is the book-keeping.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from tandembus.core.packing import Reader, Writer
from tandembus.core.ready import Ready
from tandembus.model import NEVER, Millis


class Session:
    __slots__ = (
        "held",
        "id",
        "link",
        "locked_until_ms",
        "messages",
        "number",
        "ready",
        "state",
        "state_changed_ms",
        "waiting",
    )

    def __init__(self, session_id: str, number: int, ready: Ready) -> None:
        self.id = session_id
        self.number = number
        """Stands for the id in the table's column."""
        self.ready = ready
        self.link: int | None = None
        self.locked_until_ms: Millis = 0
        self.held: set[int] = set()
        """Sequence numbers that its holder has locked."""
        self.messages = 0
        """In any state."""
        self.waiting = 0
        self.state: bytes | None = None
        self.state_changed_ms: Millis = 0

    def is_locked(self, now: Millis) -> bool:
        return self.link is not None and now < self.locked_until_ms


class Sessions:
    __slots__ = (
        "_available",
        "_deadlines",
        "_make_ready",
        "_next_number",
        "by_id",
        "by_number",
        "locked",
        "states",
    )

    def __init__(self, make_ready: Callable[[str], Ready]) -> None:
        self._make_ready = make_ready
        self.by_id: dict[str, Session] = {}
        self.by_number: dict[int, Session] = {}
        self._available: OrderedDict[str, None] = OrderedDict()
        """Sessions without a holder that have a waiting message, by when they became so."""
        self._deadlines: list[tuple[Millis, str]] = []
        """Heap of (end of the lock, id); entries of locks renewed or ended are stale."""
        self._next_number = 1
        self.states = 0
        """Sessions that have a state."""
        self.locked = 0
        """Sessions that have a holder."""

    def open(self, session_id: str) -> Session:
        """The session, made if it does not exist."""
        session = self.by_id.get(session_id)
        if session is None:
            session = Session(session_id, self._next_number, self._make_ready(session_id))
            self._next_number += 1
            self.by_id[session_id] = session
            self.by_number[session.number] = session
        return session

    def update(self, session: Session) -> None:
        """To be called when a session's messages, holder or state have changed."""
        if session.link is None and session.waiting:
            self._available.setdefault(session.id)
        else:
            self._available.pop(session.id, None)
        if not session.messages and session.link is None and session.state is None:
            self.by_id.pop(session.id, None)
            self.by_number.pop(session.number, None)

    def set_state(self, session_id: str, state: bytes | None, time: Millis) -> None:
        session = self.open(session_id)
        self.states += (state is not None) - (session.state is not None)
        session.state = state
        session.state_changed_ms = time
        self.update(session)

    def next_available(self) -> Session | None:
        for session_id in self._available:
            return self.by_id[session_id]
        return None

    @property
    def available(self) -> int:
        """Sessions without a holder that have a waiting message."""
        return len(self._available)

    def lock(self, session: Session, link: int, until: Millis) -> None:
        self.locked += session.link is None
        session.link = link
        session.locked_until_ms = until
        heappush(self._deadlines, (until, session.id))
        self.update(session)

    def unlock(self, session: Session) -> None:
        self.locked -= session.link is not None
        session.link = None
        session.locked_until_ms = 0
        self.update(session)

    def next_deadline(self) -> Millis:
        """When the next lock ends."""
        deadlines = self._deadlines
        while deadlines:
            until, session_id = deadlines[0]
            session = self.by_id.get(session_id)
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
            yield self.by_id[self._deadlines[0][1]]

    def dump(self, out: Writer) -> None:
        """What the rows do not say. Holders are not kept: a restart ends every lock."""
        out.number(self._next_number)
        out.number(len(self.by_id))
        for session in self.by_id.values():
            out.text(session.id)
            out.number(session.number)
            out.bytes(session.state)
            out.number(session.state_changed_ms)

    def load(self, source: Reader) -> None:
        self._next_number = source.number()
        for _ in range(source.number()):
            session_id = source.text()
            assert session_id is not None
            number = source.number()
            session = Session(session_id, number, self._make_ready(session_id))
            session.state = source.bytes()
            session.state_changed_ms = source.number()
            self.states += session.state is not None
            self.by_id[session_id] = session
            self.by_number[number] = session
