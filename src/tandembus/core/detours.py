"""Commands that lead messages off their usual way, most of them for operators.

Messages are purged, get another level, become active again though they were deferred; a whole
session is dead-lettered; sessions are counted and listed. Which state follows which is
`state.TRANSITIONS`; what a move does is `lifecycle`. The rule of `namespace` holds here too: what
is refused has changed nothing.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from tandembus import limits
from tandembus.changes import LevelChanged, Removal
from tandembus.core import lifecycle
from tandembus.core.commands import (
    ChangePriority,
    CountSessions,
    DeadLetterSession,
    DeleteMessages,
    Discard,
    Disposition,
    ListSessions,
    Reactivate,
    Settle,
)
from tandembus.core.effects import SessionCounts
from tandembus.core.queue import Queue
from tandembus.core.registry import Registry
from tandembus.core.sessions import Sessions
from tandembus.core.state import State
from tandembus.errors import (
    ArgumentError,
    MessageNotFoundError,
    NotAllowedError,
    SessionCannotBeLockedError,
)
from tandembus.model import Millis

_SET_ASIDE: Final = (int(State.DEFERRED), int(State.DELAYED))
_NOBODYS: Final = (*_SET_ASIDE, int(State.WAITING), int(State.SCHEDULED))


class Detours:
    """The handlers; `Namespace` has them in its table."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def reactivate(self, command: Reactivate, now: Millis) -> None:
        queue, numbers = self._found(command, _SET_ASIDE)
        queue.accessed_ms = now
        lifecycle.reactivate(queue, numbers, now)

    def discard(self, command: Discard, now: Millis) -> None:
        queue, numbers = self._found(command, _NOBODYS)
        queue.accessed_ms = now
        lifecycle.leave(queue, numbers, Removal.PURGED, now)

    def _found(
        self, command: Reactivate | Discard, states: tuple[int, ...]
    ) -> tuple[Queue, list[int]]:
        """The messages that a command names, if all of them are there in such a state."""
        queue = self._registry.holder(command.path)
        numbers = list(dict.fromkeys(command.sequence_numbers))
        if not 1 <= len(numbers) <= limits.MAX_RECEIVE_BY_NUMBER:
            raise ArgumentError(
                f"1 to {limits.MAX_RECEIVE_BY_NUMBER} messages can be named at once."
            )
        for number in numbers:
            found = queue.find(number)
            if found is None or found.chunk.states[found.row] not in states:
                raise MessageNotFoundError(number)
        return queue, numbers

    def delete_messages(self, command: DeleteMessages, now: Millis) -> int:
        if command.count < 1:
            raise ArgumentError("The number of messages to delete must be at least 1.")
        queue = self._registry.holder(command.path)
        most = min(command.count, limits.MAX_BATCH_DELETE)
        queue.accessed_ms = now
        session = None
        if command.session is not None:
            session = None if queue.sessions is None else queue.sessions.get(command.session)
            if session is None:
                return 0
        numbers: list[int] = []
        for part in queue.parts:
            for chunk, row in part.table.rows_from(0):
                if len(numbers) >= most or chunk.enqueued[row] >= command.before_ms:
                    break
                if chunk.states[row] != State.WAITING:
                    continue
                if session is None or chunk.session(row) == session.number:
                    numbers.append(part.number(chunk.indexes[row]))
        lifecycle.leave(queue, numbers, Removal.PURGED, now)
        return len(numbers)

    def change_priority(self, command: ChangePriority, now: Millis) -> None:
        queue = self._registry.holder(command.path)
        number, level = command.sequence_number, command.level
        if not 0 <= level < queue.levels[0]:
            raise ArgumentError(
                f"'{queue.path}' has the levels 0 to {queue.levels[0] - 1}, not {level}."
            )
        found = queue.find(number)
        if found is None or found.chunk.states[found.row] != State.WAITING:
            raise MessageNotFoundError(number)
        queue.book.emit(LevelChanged(now, queue.id, number, level))
        queue.set_level(number, level)
        queue.has_arrived(now)

    def dead_letter_session(self, command: DeadLetterSession, now: Millis) -> int:
        queue = self._registry.holder(command.path)
        sessions = _sessions(queue)
        if command.count < 1:
            raise ArgumentError("The number of messages to dead-letter must be at least 1.")
        session = sessions.get(command.session)
        if session is None:
            return 0
        if session.is_locked(now) and session.link != command.link:
            raise SessionCannotBeLockedError(command.session)
        part, most = queue.part_of(session.id), min(command.count, limits.MAX_BATCH_DELETE)
        numbers: list[int] = []
        for chunk, row in part.table.rows_of_session(session.number):
            if chunk.states[row] != State.SCHEDULED:
                numbers.append(part.number(chunk.indexes[row]))
                if len(numbers) >= most:
                    break
        for number in numbers:
            lifecycle.bury(queue, number, command.reason, command.description, now)
        queue.accessed_ms = now
        return len(numbers)

    def count_sessions(self, command: CountSessions, now: Millis) -> SessionCounts:
        return counted(_sessions(self._registry.holder(command.path)))

    def list_sessions(self, command: ListSessions, now: Millis) -> tuple[str, ...]:
        sessions = _sessions(self._registry.holder(command.path))
        after = command.updated_after_ms
        if after is None:
            names = sessions.active_names()
        else:
            states = sessions.states.items()
            names = [sessions.id_of(at) for at, state in states if state.changed_ms > after]
        end = command.skip + min(command.top, limits.MAX_SESSIONS_LISTED)
        return tuple(nsmallest(end, names)[command.skip :])


def check_delay(command: Settle) -> None:
    most = limits.MAX_ABANDON_DELAY_MS
    if command.disposition not in (Disposition.ABANDON, Disposition.RELEASE):
        raise ArgumentError("Only a message that is abandoned can come back later.")
    if not 0 <= command.delay_ms <= most:
        raise ArgumentError(f"A delay is 0 to {most} milliseconds, not {command.delay_ms}.")


def counted(sessions: Sessions) -> SessionCounts:
    return SessionCounts(len(sessions), sessions.available, sessions.locked, len(sessions.states))


def _sessions(queue: Queue) -> Sessions:
    if queue.sessions is None:
        raise NotAllowedError(f"'{queue.path}' does not require sessions.")
    return queue.sessions
