"""What a log must add up to: every decision of the engine, summed up by the shortest code there is.

What lives here: `Ledger`, the facts that follow from a row of changes, and `difference`, which
compares them with a recovered namespace; `intent`, what one decision means for whoever was told of
it. What does not: promises (`promises.py`), and how decisions come about (`engine_images.py`).

The rule: nothing of core's is used but the names of its values, so that a fault in replaying, in
the index or in compaction cannot be in both.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tandembus.changes import (
    TRANSFER_BIT,
    Activated,
    Change,
    Deferred,
    Delayed,
    Delivered,
    Enqueued,
    EntityCreated,
    EntityDeleted,
    EntityKind,
    EntityUpdated,
    LevelChanged,
    Mode,
    Noted,
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
    delivered_rows,
)
from tandembus.core.namespace import Namespace
from tandembus.core.queue import Queue
from tandembus.core.state import State

PARTITION_SHIFT = 48
_HEAD = struct.Struct("<I")

Key: TypeAlias = tuple[str, str, object]
"""(what, path, which)."""


class Bad(Exception):
    """A promise that was not kept."""


# --- payloads -------------------------------------------------------------------------------------


def make_payload(attributes: dict[str, object], filling: bytes) -> bytes:
    """A payload that says itself what it is: `id` is the number of the message in the test."""
    head = json.dumps(attributes).encode()
    return _HEAD.pack(len(head)) + head + filling


def attributes_of(payload: bytes) -> dict[str, object]:
    (length,) = _HEAD.unpack_from(payload)
    found: dict[str, object] = json.loads(payload[_HEAD.size : _HEAD.size + length])
    return found


# --- facts ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A message in a queue."""

    body: int
    state: int
    deliveries: int
    enqueued: int
    level: int
    session: str | None
    edits: bytes | None
    expires: int
    due: int
    hops: int


@dataclass
class Entity:
    path: str
    kind: EntityKind
    parent: int
    settings: str
    origin: int = 0
    rules: dict[str, str] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    """The newest number of each partition."""
    seen: dict[str, int] = field(default_factory=dict)
    held: dict[int, str | None] = field(default_factory=dict)
    """Scheduled in a transaction that is open: nobody was promised that they stay. With the key
    that duplicate detection remembers at the commit."""
    states: dict[str, bytes] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """A queue and its dead-letter queue: a message is in one of them."""
        return self.path.removesuffix("/$DeadLetterQueue").removesuffix("/$Transfer")

    def clone(self) -> Entity:
        return Entity(
            self.path,
            self.kind,
            self.parent,
            self.settings,
            self.origin,
            dict(self.rules),
            dict(self.rows),
            dict(self.last),
            dict(self.seen),
            dict(self.held),
            dict(self.states),
        )


class Ledger:
    def __init__(self) -> None:
        self.entities: dict[int, Entity] = {}
        self.ids: dict[int, int] = {}
        """Body → the test's number of the message. Nothing is taken out: a body that is freed is
        not there, and its number comes again only if the power cut took it."""

    def clone(self) -> Ledger:
        copy = Ledger()
        copy.entities = {number: entity.clone() for number, entity in self.entities.items()}
        copy.ids = dict(self.ids)
        return copy

    def at(self, path: str) -> Entity | None:
        for entity in self.entities.values():
            if entity.path == path:
                return entity
        return None

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._add(change)

    def _add(self, change: Change) -> None:
        match change:
            case Enqueued():
                self._enqueue(change)
            case Activated():
                entity = self.entities[change.entity]
                row = entity.rows.pop(change.sequence_number)
                entity.rows[change.new_sequence_number] = row._replace(
                    state=State.WAITING,
                    deliveries=0,
                    enqueued=change.time,
                    expires=change.expires_ms,
                    due=0,
                )
                self._number(entity, change.new_sequence_number)
            case Delivered():
                rows = self.entities[change.entity].rows
                for number, *_ in delivered_rows(change.rows):
                    if change.mode == Mode.RECEIVE_AND_DELETE:
                        del rows[number]
                    else:
                        locked = _LOCKED[rows[number].state]
                        rows[number] = rows[number]._replace(state=locked)
            case Returned():
                rows = self.entities[change.entity].rows
                for number in numbers(change.sequence_numbers):
                    row = rows[number]
                    rows[number] = row._replace(
                        state=_FREE[row.state],
                        deliveries=row.deliveries + Return(change.reason).is_counted,
                        edits=change.edits or row.edits,
                    )
            case Deferred():
                rows = self.entities[change.entity].rows
                for number in numbers(change.sequence_numbers):
                    row = rows[number]
                    rows[number] = row._replace(
                        state=State.DEFERRED,
                        deliveries=row.deliveries + 1,
                        edits=change.edits or row.edits,
                    )
            case Delayed():
                rows = self.entities[change.entity].rows
                for number in numbers(change.sequence_numbers):
                    row = rows[number]
                    is_deferred = row.state == State.DEFERRED_LOCKED
                    rows[number] = row._replace(
                        state=State.DEFERRED if is_deferred else State.DELAYED,
                        due=row.due if is_deferred else change.due_ms,
                        deliveries=row.deliveries + Return(change.reason).is_counted,
                        edits=change.edits or row.edits,
                    )
            case Reactivated():
                rows = self.entities[change.entity].rows
                for number in numbers(change.sequence_numbers):
                    rows[number] = rows[number]._replace(state=State.WAITING, due=0)
            case ScheduleHeld():
                entity = self.entities[change.entity]
                for number in numbers(change.sequence_numbers):
                    if change.is_held:
                        entity.held[number] = None
                    elif (key := entity.held.pop(number)) is not None:
                        entity.seen[key] = change.time
            case Removed():
                for number in numbers(change.sequence_numbers):
                    del self.entities[change.entity].rows[number]
                    self.entities[change.entity].held.pop(number, None)
            case LevelChanged():
                rows = self.entities[change.entity].rows
                row = rows[change.sequence_number]
                rows[change.sequence_number] = row._replace(level=change.level)
            case SessionStateSet():
                states = self.entities[change.entity].states
                states.pop(change.session_id, None)
                if change.state is not None:
                    states[change.session_id] = change.state
            case EntityCreated():
                kind = EntityKind(change.kind)
                new = Entity(change.path, kind, change.parent, change.settings, change.origin)
                self.entities[change.entity] = new
                if kind is not EntityKind.TOPIC:
                    grave = f"{change.path}/$DeadLetterQueue"
                    self.entities[change.entity + 1] = Entity(
                        grave, EntityKind.DEAD_LETTER, change.entity, change.settings, change.origin
                    )
                transfer = f"{change.path}/$Transfer/$DeadLetterQueue"
                self.entities[change.entity | TRANSFER_BIT] = Entity(
                    transfer, EntityKind.DEAD_LETTER, change.entity, change.settings, change.origin
                )
            case EntityUpdated():
                entity = self.entities[change.entity]
                entity.settings = change.settings
                if entity.kind is not EntityKind.TOPIC:
                    self.entities[change.entity + 1].settings = change.settings
                self.entities[change.entity | TRANSFER_BIT].settings = change.settings
            case EntityDeleted():
                for number in self.with_its_own(change.entity):
                    del self.entities[number]
            case RuleAdded():
                name = json.loads(change.rule)["name"]
                self.entities[change.entity].rules[name] = change.rule
            case RuleRemoved():
                del self.entities[change.entity].rules[change.name]
            case _:
                pass  # locks of sessions, renewals, notes, moved bodies: no facts that last

    def with_its_own(self, number: int) -> list[int]:
        found = [number]
        for other, entity in self.entities.items():
            if entity.parent == number:
                found += self.with_its_own(other)
        return found

    def _enqueue(self, change: Enqueued) -> None:
        entity = self.entities[change.entity]
        if change.payload is not None:
            assert isinstance(change.payload, bytes)
            identity = attributes_of(change.payload)["id"]
            assert isinstance(identity, int)
            self.ids[change.body] = identity
        number = change.sequence_number
        if number in entity.rows:
            raise Bad(f"{entity.path}: the number {number} is given out while it is there")
        entity.rows[number] = Row(
            change.body,
            change.state,
            change.delivery_count,
            change.time,
            change.level,
            change.session_id,
            change.edits,
            change.expires_ms,
            change.due_ms,
            change.hops,
        )
        if change.duplicate_key is not None:
            if number in entity.held:
                entity.held[number] = change.duplicate_key
            else:
                entity.seen[change.duplicate_key] = change.time
        if entity.kind is not EntityKind.DEAD_LETTER:
            self._number(entity, number)

    @staticmethod
    def _number(entity: Entity, number: int) -> None:
        part = number >> PARTITION_SHIFT
        former = entity.last.get(part, (part << PARTITION_SHIFT) + entity.origin)
        if number != former + 1:
            raise Bad(f"{entity.path}: the number {number} follows {former}")
        entity.last[part] = number


_LOCKED: dict[int, int] = {State.WAITING: State.LOCKED, State.DEFERRED: State.DEFERRED_LOCKED}
_FREE: dict[int, int] = {State.LOCKED: State.WAITING, State.DEFERRED_LOCKED: State.DEFERRED}


def numbers(data: bytes) -> array[int]:
    found = array("Q")
    found.frombytes(data)
    return found


def rides(changes: Iterable[Change]) -> bool:
    """Whether an answer may leave before these are durable: what they say ends with the process,
    or is only said for the reports."""
    return all(
        isinstance(change, Renewed | Noted | SessionLocked)
        or (isinstance(change, Delivered) and change.mode == Mode.PEEK_LOCK)
        for change in changes
    )


# --- what a decision means ------------------------------------------------------------------------


class Where(NamedTuple):
    """A message that is in a family."""

    kind: str
    number: int
    edits: bytes | None


def where(entity: Entity, number: int, row: Row) -> Where:
    if entity.kind is EntityKind.DEAD_LETTER:
        kind = "dead"
    else:
        kind = _KINDS[row.state]
    return Where(kind, number, row.edits)


_KINDS: dict[int, str] = {
    State.WAITING: "here",
    State.LOCKED: "here",
    State.DEFERRED: "deferred",
    State.DEFERRED_LOCKED: "deferred",
    State.SCHEDULED: "scheduled",
    State.DELAYED: "delayed",
}


def intent(ledger: Ledger, changes: Iterable[Change]) -> dict[Key, object]:
    """Add the changes of one decision to the ledger; what is otherwise from now on, by key. None:
    it is gone."""
    found: dict[Key, object] = {}
    for change in changes:
        if isinstance(change, EntityDeleted):
            _deletion(ledger, change, found)
        gone: list[tuple[str, int]] = []
        entity = ledger.entities.get(getattr(change, "entity", 0))
        if isinstance(change, Removed) or (
            isinstance(change, Delivered) and change.mode == Mode.RECEIVE_AND_DELETE
        ):
            assert entity is not None
            leaving = (
                numbers(change.sequence_numbers)
                if isinstance(change, Removed)
                else [number for number, *_ in delivered_rows(change.rows)]
            )
            if not isinstance(change, Removed) or change.reason != Removal.DEAD_LETTERED:
                gone = [(entity.family, ledger.ids[entity.rows[n].body]) for n in leaving]
        ledger.add((change,))
        for family, identity in gone:
            found["message", family, identity] = None
        match change:
            case Enqueued():
                if change.sequence_number not in ledger.entities[change.entity].held:
                    _message(ledger, change.entity, change.sequence_number, found)
            case ScheduleHeld(is_held=0):
                for number in numbers(change.sequence_numbers):
                    _message(ledger, change.entity, number, found)
            case Activated():
                _message(ledger, change.entity, change.new_sequence_number, found)
            case Returned() | Deferred() | Delayed() | Reactivated():
                for number in numbers(change.sequence_numbers):
                    _message(ledger, change.entity, number, found)
            case SessionStateSet():
                path = ledger.entities[change.entity].path
                found["state", path, change.session_id] = change.state
            case EntityCreated() | EntityUpdated():
                path = ledger.entities[change.entity].path
                found["entity", path, None] = change.settings
            case RuleAdded():
                path = ledger.entities[change.entity].path
                found["rule", path, json.loads(change.rule)["name"]] = change.rule
            case RuleRemoved():
                found["rule", ledger.entities[change.entity].path, change.name] = None
            case _:
                pass
    return found


def _message(ledger: Ledger, entity: int, number: int, found: dict[Key, object]) -> None:
    queue = ledger.entities[entity]
    row = queue.rows[number]
    found["message", queue.family, ledger.ids[row.body]] = where(queue, number, row)


def _deletion(ledger: Ledger, change: EntityDeleted, found: dict[Key, object]) -> None:
    for number in ledger.with_its_own(change.entity):
        entity = ledger.entities[number]
        for row in entity.rows.values():
            found["message", entity.family, ledger.ids[row.body]] = None
        for session in entity.states:
            found["state", entity.path, session] = None
        for rule in entity.rules:
            found["rule", entity.path, rule] = None
        if entity.kind is not EntityKind.DEAD_LETTER:
            found["entity", entity.path, None] = None


# --- what is there --------------------------------------------------------------------------------


def difference(ledger: Ledger, namespace: Namespace, now_ms: int) -> str | None:
    """What a recovered namespace has otherwise than the ledger; None if nothing."""
    for entity in ledger.entities.values():
        if entity.path in namespace:
            namespace.find(entity.path)  # a transfer dead-letter queue is made when it is asked for
    queues = {queue.id: queue for queue in namespace.entities}
    if queues.keys() != ledger.entities.keys():
        wanted = sorted(entity.path for entity in ledger.entities.values())
        return f"there are {sorted(q.path for q in queues.values())}, not {wanted}"
    for number, entity in ledger.entities.items():
        found = _in_queue(entity, queues[number], namespace, now_ms)
        if found is not None:
            return f"{entity.path}: {found}"
    return None


def _in_queue(entity: Entity, queue: Queue, namespace: Namespace, now_ms: int) -> str | None:
    rows: dict[int, Row] = {}
    for part in queue.parts:
        for chunk, row in part.table.rows_from(0):
            number = part.number(chunk.indexes[row])
            session = queue.session_of(chunk, row)
            if number in rows:
                return f"the number {number} is there twice"
            rows[number] = Row(
                chunk.bodies[row],
                chunk.states[row],
                chunk.count(row),
                chunk.enqueued[row],
                chunk.level(row),
                None if session is None else session.id,
                queue.edits.get(number),
                chunk.expiry(row),
                chunk.due(row),
                chunk.hop(row),
            )
    if rows != entity.rows:
        for number in sorted(rows.keys() | entity.rows.keys()):
            if rows.get(number) != entity.rows.get(number):
                return f"message {number} is {rows.get(number)}, not {entity.rows.get(number)}"
    if entity.kind is not EntityKind.DEAD_LETTER:
        for part in queue.parts:
            at = part.high >> PARTITION_SHIFT
            last = entity.last.get(at, part.number(0))
            if part.number(part.last) != last:
                return f"the last number was {part.number(part.last)}, not {last}"
    if (queue.path, queue.kind) != (entity.path, entity.kind):
        return f"is {queue.path}, {queue.kind}"
    if entity.kind is EntityKind.DEAD_LETTER:
        return None
    if json.dumps(queue.settings.to_json()) != entity.settings:
        return f"the settings are {queue.settings}, not {entity.settings}"
    if entity.kind is EntityKind.SUBSCRIPTION:
        rules = [json.dumps(rule.to_json()) for rule in namespace.rules(queue.path)]
        if rules != list(entity.rules.values()):
            return f"the rules are {rules}, not {list(entity.rules.values())}"
    sessions = () if queue.sessions is None else queue.sessions
    states = {s.id: s.state for s in sessions if s.state is not None}
    if states != entity.states:
        return f"the states are {states}, not {entity.states}"
    for key, time in entity.seen.items():
        if now_ms - time < queue.window_ms:
            if not queue.duplicates.has_seen(key, now_ms, queue.window_ms):
                return f"the id {key} of {now_ms - time} ms ago is forgotten"
    return None
