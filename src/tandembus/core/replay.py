"""Recovery: the log is played again, change by change, and nothing is decided anew.

Each change has one line here and one method that does it, the same that did it the first time. What
was a use of the entity also moves the time of its last use, `accessed_ms`; an attach or a credit
that brought nothing leaves no record, so after a restart that time can be an earlier one.
"""

from __future__ import annotations

import json
from array import array
from typing import Final

from tandembus.changes import (
    Activated,
    BodyMoved,
    Change,
    CursorDropped,
    CursorMoved,
    Deferred,
    Delayed,
    Delivered,
    Enqueued,
    EntityCreated,
    EntityDeleted,
    EntityKind,
    EntityUpdated,
    LevelChanged,
    Note,
    Noted,
    PiecesJoined,
    PieceStored,
    Reactivated,
    Removal,
    Removed,
    Renewed,
    Return,
    Returned,
    RuleAdded,
    RuleRemoved,
    ScheduleHeld,
    SessionLocked,
    SessionStateSet,
    SessionUnlocked,
    Started,
    TapTrimmed,
    delivered_rows,
)
from tandembus.core.cursors import Cursors
from tandembus.core.queue import Queue
from tandembus.core.registry import Registry
from tandembus.core.rules import Rule
from tandembus.model import Millis

_SENT_TO: Final = (EntityKind.QUEUE, EntityKind.TOPIC)
"""What comes into a subscription or a dead-letter queue, or is forwarded, is not sent there: no use
of it."""
_ASKED: Final = (Removal.CANCELLED, Removal.PURGED)


def replay(registry: Registry, change: Change) -> None:
    """Do what a change says."""
    match change:
        case Enqueued():
            queue = registry.by_id.get(change.entity) or registry.by_number(change.entity)
            queue.add(change)
            if not change.hops and queue.kind in _SENT_TO:
                _use(queue, change.time)
        case Delivered():
            queue = registry.by_id[change.entity]
            queue.replay_delivered(change, delivered_rows(change.rows))
            _use(queue, change.time)
        case Removed():
            queue = registry.by_id[change.entity]
            for number in _numbers(change.sequence_numbers):
                queue.remove(number)
            if change.reason in _ASKED:
                _use(queue, change.time)
        case Returned():
            queue, reason = registry.by_id[change.entity], Return(change.reason)
            for number in _numbers(change.sequence_numbers):
                queue.give_back(number, reason, change.edits)
        case Renewed():
            for number in _numbers(change.sequence_numbers):
                registry.by_id[change.entity].extend(number, change.locked_until_ms)
        case Deferred():
            for number in _numbers(change.sequence_numbers):
                registry.by_id[change.entity].set_aside(number, change.edits)
        case Delayed():
            queue, reason = registry.by_id[change.entity], Return(change.reason)
            for number in _numbers(change.sequence_numbers):
                queue.delay(number, reason, change.due_ms, change.edits)
        case Reactivated():
            queue = registry.by_id[change.entity]
            for number in _numbers(change.sequence_numbers):
                queue.reactivate(number)
            _use(queue, change.time)
        case ScheduleHeld():
            queue, numbers = registry.by_id[change.entity], _numbers(change.sequence_numbers)
            queue.hold(numbers, change.time, is_held=bool(change.is_held))
        case Activated():
            queue = registry.by_id[change.entity]
            queue.activate(change)
            _use(queue, change.time)
        case SessionLocked():
            queue = registry.by_id[change.entity]
            assert queue.sessions is not None
            session = queue.sessions.open(change.session_id)
            queue.receivers.lock_session(session, change.link, change.locked_until_ms)
        case SessionUnlocked():
            sessions = registry.by_id[change.entity].sessions
            assert sessions is not None
            ended = sessions.get(change.session_id)
            if ended is not None:
                sessions.unlock(ended)
        case SessionStateSet():
            sessions = registry.by_id[change.entity].sessions
            assert sessions is not None
            sessions.set_state(change.session_id, change.state, change.time)
        case EntityCreated():
            registry.do_create(change)
            if change.kind == EntityKind.SUBSCRIPTION:
                _use(registry.by_id[change.parent], change.time)
        case EntityUpdated():
            registry.do_update(change)
            _use(registry.by_id[change.entity], change.time)
        case EntityDeleted():
            registry.do_delete(registry.by_id[change.entity])
        case RuleAdded():
            rule = Rule.from_json(json.loads(change.rule))
            registry.rules[change.entity] = registry.rules[change.entity].adding(rule)
            _use(registry.by_id[change.entity], change.time)
        case RuleRemoved():
            registry.rules[change.entity] = registry.rules[change.entity].removing(change.name)
        case CursorMoved(_, entity, partition, position, retention_ms, name):
            queue = registry.by_number(entity)
            queue.cursors = queue.cursors or Cursors(queue.book)
            queue.cursors.move(name, partition, position, retention_ms)
            _use(queue, change.time)
        case CursorDropped():
            cursors = registry.by_id[change.entity].cursors
            assert cursors is not None
            cursors.drop(change.name)
        case TapTrimmed():
            cursors = registry.by_id[change.entity].cursors
            assert cursors is not None
            cursors.trim(change.partition, change.position)
        case LevelChanged():
            registry.by_id[change.entity].set_level(change.sequence_number, change.level)
        case BodyMoved() | PieceStored() | PiecesJoined():
            return  # they have no time, and the engine does them
        case Noted():
            if change.note != Note.MANAGED:
                _use(registry.by_number(change.entity), change.time)
        case Started():
            registry.started_ms = change.time
    registry.now = max(registry.now, change.time)


def _use(queue: Queue, time: Millis) -> None:
    if time > queue.accessed_ms:
        queue.accessed_ms = time


def _numbers(data: bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(data)
    return numbers
