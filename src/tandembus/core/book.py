"""What the queues of a namespace share: where changes and effects are put, who needs which body,
and when somebody has to be woken.

`Book` decides nothing. `Namespace` owns it and empties it into an `Outcome` after each command.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from tandembus import limits
from tandembus.changes import Change
from tandembus.core.effects import Effect
from tandembus.model import NEVER, Millis

if TYPE_CHECKING:
    from tandembus.core.queue import Queue

_MOST_SAME: Final = 4_096


class Book:
    __slots__ = (
        "_same",
        "_shared",
        "_timers",
        "changes",
        "effects",
        "emit",
        "freed",
        "max_session_bytes",
        "next_body",
        "session_bytes",
        "to_pump",
    )

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.emit: Callable[[Change], None] = self.changes.append
        self.effects: list[Effect] = []
        self.freed: list[int] = []
        """Bodies that nobody needs any more; the engine empties this list."""
        self.next_body = 1
        self.to_pump: dict[int, Queue] = {}
        """Queues where something may have become deliverable, by entity."""
        self.session_bytes = 0
        """The memory that the sessions of all queues take, and their states."""
        self.max_session_bytes = limits.MAX_SESSION_BYTES
        """A setting of the server, and no part of the state."""
        self._shared: dict[int, int] = {}
        """Body → holders beyond the first. Most bodies have one holder and are not here."""
        self._timers: list[tuple[Millis, int]] = []
        self._same: dict[bytes, bytes] = {}

    # --- bodies -----------------------------------------------------------------------------------

    def hold_too(self, body: int) -> None:
        """One holder more for a body that is stored already."""
        self._shared[body] = self._shared.get(body, 0) + 1

    def release(self, body: int) -> None:
        more = self._shared.get(body)
        if more is None:
            self.freed.append(body)
        elif more == 1:
            del self._shared[body]
        else:
            self._shared[body] = more - 1

    @property
    def shared(self) -> dict[int, int]:
        return self._shared

    def same(self, data: bytes) -> bytes:
        """One object for equal edits: ten thousand dead letters with one reason keep it once."""
        if len(self._same) >= _MOST_SAME:
            self._same.clear()
        return self._same.setdefault(data, data)

    # --- timers -----------------------------------------------------------------------------------

    def wake(self, queue: Queue, when: Millis) -> None:
        """`queue.tick` is to be called at `when`, unless it already is earlier."""
        if when < queue.wakes_at:
            queue.wakes_at = when
            heappush(self._timers, (when, queue.id))

    def next_deadline(self, entities: dict[int, Queue]) -> Millis:
        timers = self._timers
        while timers:
            when, entity = timers[0]
            queue = entities.get(entity)
            if queue is not None and queue.wakes_at == when:
                return when
            heappop(timers)
        return NEVER

    def pop_due(self, entities: dict[int, Queue], now: Millis) -> Queue | None:
        """A queue whose time has come."""
        if self.next_deadline(entities) > now:
            return None
        _, entity = heappop(self._timers)
        queue = entities[entity]
        queue.wakes_at = NEVER
        return queue
