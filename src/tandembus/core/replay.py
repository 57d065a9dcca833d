"""Recovery: the log is played again, change by change, and nothing is decided anew.

Each change has one line here and one method that does it, the same that did it the first time.
"""

from __future__ import annotations

import json
from array import array

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
    EntityUpdated,
    LevelChanged,
    Noted,
    Reactivated,
    Removed,
    Renewed,
    Return,
    Returned,
    RuleAdded,
    RuleRemoved,
    SessionLocked,
    SessionStateSet,
    SessionUnlocked,
    Started,
    TapTrimmed,
    delivered_rows,
)
from tandembus.core.cursors import Cursors
from tandembus.core.registry import Registry
from tandembus.core.rules import Rule


def replay(registry: Registry, change: Change) -> None:
    """Do what a change says."""
    match change:
        case Enqueued():
            queue = registry.by_id[change.entity]
            queue.add(change)
            queue.accessed_ms = max(queue.accessed_ms, change.time)
        case Delivered():
            queue = registry.by_id[change.entity]
            queue.replay_delivered(change, delivered_rows(change.rows))
        case Removed():
            queue = registry.by_id[change.entity]
            for number in _numbers(change.sequence_numbers):
                queue.remove(number)
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
            for number in _numbers(change.sequence_numbers):
                registry.by_id[change.entity].reactivate(number)
        case Activated():
            registry.by_id[change.entity].activate(change)
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
        case EntityUpdated():
            registry.do_update(change)
        case EntityDeleted():
            registry.do_delete(registry.by_id[change.entity])
        case RuleAdded():
            rule = Rule.from_json(json.loads(change.rule))
            registry.rules[change.entity] = registry.rules[change.entity].adding(rule)
        case RuleRemoved():
            registry.rules[change.entity] = registry.rules[change.entity].removing(change.name)
        case CursorMoved(_, entity, partition, position, retention_ms, name):
            queue = registry.by_id[entity]
            queue.cursors = queue.cursors or Cursors(queue.book)
            queue.cursors.move(name, partition, position, retention_ms)
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
        case BodyMoved():
            return  # it has no time, and the engine does it
        case Noted() | Started():
            pass  # no queue changes, but time went on
    registry.now = max(registry.now, change.time)


def _numbers(data: bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(data)
    return numbers
