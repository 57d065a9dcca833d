"""The entities of a namespace by path and by number, and how they come and go.

Here live creation, change and removal of queues, topics, subscriptions and rules, the paths in any
spelling, and the index of it all. Nothing here decides about a message.
"""

from __future__ import annotations

import json
from array import array
from typing import Final

from tandembus import limits
from tandembus.changes import (
    TRANSFER_BIT,
    EntityCreated,
    EntityDeleted,
    EntityKind,
    EntityUpdated,
    Started,
)
from tandembus.core.book import Book
from tandembus.core.packing import Reader, Writer
from tandembus.core.priority import level_of
from tandembus.core.queue import Queue
from tandembus.core.rules import CorrelationFilter, Rule, RuleSet, SqlFilter
from tandembus.errors import (
    ArgumentError,
    EntityExistsError,
    EntityNotFoundError,
    NotAllowedError,
    QuotaExceededError,
)
from tandembus.model import NEVER, Millis
from tandembus.names import dead_letter_path, transfer_dead_letter_path
from tandembus.settings import (
    QueueSettings,
    Settings,
    SubscriptionSettings,
    TopicSettings,
    canonical,
    split,
)

INDEX_VERSION: Final = 7
_MOST_ALIASES: Final = 10_000

SETTINGS: Final[dict[EntityKind, type[Settings]]] = {
    EntityKind.QUEUE: QueueSettings,
    EntityKind.TOPIC: TopicSettings,
    EntityKind.SUBSCRIPTION: SubscriptionSettings,
}


class Registry:
    __slots__ = (
        "_aliases",
        "_by_path",
        "_next_entity",
        "book",
        "by_id",
        "generation",
        "links",
        "max_entities",
        "now",
        "rules",
        "started_ms",
    )

    def __init__(self) -> None:
        self.book = Book()
        self.generation = 0
        """Grows whenever an entity comes, goes or gets other settings."""
        self.by_id: dict[int, Queue] = {}
        """Queues, subscriptions, dead-letter queues, and the inboxes of topics."""
        self._by_path: dict[str, Queue] = {}
        self._aliases: dict[str, Queue] = {}
        """Paths as people spell them; only a shortcut."""
        self.rules: dict[int, RuleSet] = {}
        """By subscription."""
        self.links: dict[int, Queue] = {}
        self.now: Millis = 0
        """The latest time that was heard of."""
        self.started_ms: Millis = 0
        """When the broker was started: no entity was idle while there was no broker."""
        self._next_entity = 1
        self.max_entities = limits.MAX_ENTITIES
        """Queues and topics; a setting of the server, and no part of the state."""

    def start(self, change: Started) -> None:
        self.book.emit(change)
        self.started_ms = change.time

    def find(self, path: str) -> Queue:
        """The queue, subscription, dead-letter queue or topic at a path, in any spelling."""
        queue = self._aliases.get(path)
        if queue is not None:
            return queue
        try:
            address = split(path)
        except ArgumentError:
            raise EntityNotFoundError(path) from None
        queue = self._by_path.get(address.path)
        if queue is None and address.is_transfer_dead_letter:
            owner = self._by_path.get(address.owner)
            queue = None if owner is None else self.transfer_dead_letter(owner)
        if queue is None:
            raise EntityNotFoundError(path)
        if len(self._aliases) >= _MOST_ALIASES:
            self._aliases.clear()
        self._aliases[path] = queue
        return queue

    def __contains__(self, path: str) -> bool:
        try:
            self.find(path)
        except EntityNotFoundError:
            return False
        return True

    def topic(self, path: str) -> Queue:
        queue = self.find(path)
        if queue.kind is not EntityKind.TOPIC:
            raise NotAllowedError(f"'{path}' is not a topic.")
        return queue

    def subscription(self, path: str) -> Queue:
        queue = self.find(path)
        if queue.kind is not EntityKind.SUBSCRIPTION:
            raise NotAllowedError(f"'{path}' is not a subscription.")
        return queue

    def holder(self, path: str) -> Queue:
        """What messages can be received from."""
        queue = self.find(path)
        if queue.kind is EntityKind.TOPIC:
            raise NotAllowedError(f"'{path}' is a topic: receive from one of its subscriptions.")
        return queue

    def check_new(self, path: str, settings: QueueSettings | TopicSettings) -> None:
        if canonical(path) in self._by_path:
            raise EntityExistsError(path)
        count = sum(1 for queue in self.by_id.values() if queue.owner is None)
        if count >= self.max_entities:
            raise QuotaExceededError(
                f"The namespace has {count} queues and topics, the most it can."
            )
        self.check_targets(path, settings)

    def check_targets(self, path: str, settings: Settings) -> None:
        """Forwarding goes to what exists, and is itself refused nowhere: a loop ends after 4
        hops."""
        if isinstance(settings, TopicSettings):
            return
        for target in (settings.forward_to, settings.forward_dead_letters_to):
            if target is None or split(target).path == split(path).path:
                continue
            if self.find(target).kind not in (EntityKind.QUEUE, EntityKind.TOPIC):
                raise NotAllowedError(
                    f"'{target}' is not a queue or topic: nothing is forwarded to it."
                )
        priority = settings.priority
        if priority is not None:
            level_of(priority)  # parses the rules

    def create(
        self,
        kind: EntityKind,
        path: str,
        settings: Settings,
        parent: int,
        now: Millis,
        origin: int = 0,
    ) -> int:
        text = json.dumps(settings.to_json())
        change = EntityCreated(now, self._next_entity, kind, parent, origin, path, text)
        self.book.emit(change)
        self.do_create(change)
        return change.entity

    def do_create(self, change: EntityCreated) -> Queue:
        kind = EntityKind(change.kind)
        settings = SETTINGS[kind].from_json(json.loads(change.settings))
        owner = self.by_id[change.parent] if change.parent else None
        whose = settings if owner is None else owner.settings
        is_partitioned = bool(getattr(whose, "enable_partitioning", False))
        queue = Queue(
            self.book,
            change.entity,
            kind,
            change.path,
            settings,
            change.time,
            origin=change.origin,
            owner=owner,
            is_partitioned=is_partitioned,
        )
        self._next_entity = max(self._next_entity, change.entity + 2)
        self._register(queue)
        if kind is EntityKind.TOPIC:
            self.expect_idleness(queue)
            return queue
        if owner is not None:
            owner.subscriptions[split(change.path).subscription or ""] = queue
            self.rules[queue.id] = RuleSet()
        queue.dead_letter = Queue(
            self.book,
            change.entity + 1,
            EntityKind.DEAD_LETTER,
            dead_letter_path(change.path),
            settings,
            change.time,
            origin=change.origin,
            owner=queue,
            is_partitioned=is_partitioned,
        )
        self._register(queue.dead_letter)
        self.expect_idleness(queue)
        return queue

    def _register(self, queue: Queue) -> None:
        self.generation += 1
        self.by_id[queue.id] = queue
        self._by_path[split(queue.path).path] = queue

    def transfer_dead_letter(self, owner: Queue) -> Queue:
        """The transfer dead-letter queue of a queue, subscription or topic; made when it is first
        needed. Nothing of that is in the log, so an entity of any age has one."""
        if owner.transfer_dead_letter is None:
            owner.transfer_dead_letter = Queue(
                self.book,
                owner.id | TRANSFER_BIT,
                EntityKind.DEAD_LETTER,
                transfer_dead_letter_path(owner.path),
                owner.settings,
                owner.created_ms,
                origin=owner.origin,
                owner=owner,
                is_partitioned=len(owner.parts) > 1,
            )
            self._register(owner.transfer_dead_letter)
        return owner.transfer_dead_letter

    def by_number(self, entity: int) -> Queue:
        """The entity that a record of the log names."""
        queue = self.by_id.get(entity)
        if queue is None and entity & TRANSFER_BIT:
            queue = self.transfer_dead_letter(self.by_id[entity ^ TRANSFER_BIT])
        if queue is None:
            raise KeyError(entity)
        return queue

    def do_update(self, change: EntityUpdated) -> None:
        queue = self.by_id[change.entity]
        settings = SETTINGS[queue.kind].from_json(json.loads(change.settings))
        queue.updated_ms = change.time
        self.generation += 1
        for each in (queue, *queue.its_dead_letters):
            each.configure(settings)
        for subscription in queue.subscriptions.values():
            subscription.configure(subscription.settings)

    def delete(self, queue: Queue, now: Millis) -> None:
        for each in _with_its_own(queue):
            each.receivers.close_all(EntityNotFoundError(each.path), now)
        self.book.emit(EntityDeleted(now, queue.id))
        self.do_delete(queue)

    def do_delete(self, queue: Queue) -> None:
        if queue.kind is EntityKind.SUBSCRIPTION and queue.owner is not None:
            queue.owner.subscriptions.pop(split(queue.path).subscription or "")
            queue.owner.used_bytes -= queue.used_bytes
        self._aliases.clear()
        self.generation += 1
        for each in _with_its_own(queue):
            if each.sessions is not None:
                each.sessions.release_memory()
            for body in each.every_body():
                self.book.release(body)
            self.rules.pop(each.id, None)
            self.book.to_pump.pop(each.id, None)
            del self.by_id[each.id]
            del self._by_path[split(each.path).path]

    def check_rules(self, topic: Queue, adding: Rule, instead_of: Rule | None = None) -> None:
        """Raises if the topic, over all its subscriptions, has as many rules as it can have."""
        if instead_of is not None and type(instead_of.filter) is type(adding.filter):
            return
        if isinstance(adding.filter, SqlFilter):
            kind, most = "SQL", limits.MAX_SQL_RULES_PER_TOPIC
        elif isinstance(adding.filter, CorrelationFilter):
            kind, most = "correlation", limits.MAX_CORRELATION_RULES_PER_TOPIC
        else:
            return
        of_kind = type(adding.filter)
        rules = self.rules
        count = sum(rules[each.id].count(of_kind) for each in topic.subscriptions.values())
        if count >= most:
            raise QuotaExceededError(
                f"The topic '{topic.path}' has {count} {kind} rules, the most it can have."
            )

    def filter_counts(self, topic: Queue) -> tuple[int, int]:
        """SQL filters (true and false are such) and correlation filters of all subscriptions."""
        sets = [self.rules[each.id] for each in topic.subscriptions.values()]
        correlation = sum(rules.count(CorrelationFilter) for rules in sets)
        return sum(len(rules) for rules in sets) - correlation, correlation

    def expect_idleness(self, queue: Queue) -> None:
        idle = queue.idle_ms
        if idle != NEVER:
            used = max(queue.accessed_ms, self.started_ms, self.now - idle + 1)
            self.book.wake(queue, used + idle)

    def dump(self) -> list[bytearray]:
        """The whole state, for an index. Links and transactions are not part of it."""
        out, book = Writer(), self.book
        out.number(INDEX_VERSION)
        out.number(self.now)
        out.number(self._next_entity)
        out.number(book.next_body)
        out.number(len(book.shared))
        out.column(array("Q", book.shared.keys()))
        out.column(array("Q", book.shared.values()))
        owners = [q for q in self.by_id.values() if q.kind is not EntityKind.DEAD_LETTER]
        out.number(len(owners))
        for queue in owners:
            out.json(
                {
                    "id": queue.id,
                    "kind": queue.kind,
                    "path": queue.path,
                    "parent": 0 if queue.owner is None else queue.owner.id,
                    "origin": queue.origin,
                    "settings": queue.settings.to_json(),
                    "rules": [rule.to_json() for rule in self.rules.get(queue.id, RuleSet()).rules],
                }
            )
            queue.dump(out)
            if queue.dead_letter is not None:
                queue.dead_letter.dump(out)
            transfer = queue.transfer_dead_letter
            has_transfer = transfer is not None and transfer.was_used
            out.number(has_transfer)
            if transfer is not None and has_transfer:
                transfer.dump(out)
        return [out.data]

    @classmethod
    def load(cls, data: bytes | memoryview) -> Registry:
        source, registry = Reader(data), cls()
        version = source.number()
        assert 1 <= version <= INDEX_VERSION, f"an index of version {version}"
        now = source.number()
        next_entity = source.number()
        registry.book.next_body = source.number()
        source.number()
        keys, values = source.column("Q"), source.column("Q")
        assert keys is not None
        assert values is not None
        registry.book.shared.update(zip(keys, values, strict=True))
        for _ in range(source.number()):
            about = source.json()
            queue = registry.do_create(
                EntityCreated(
                    now,
                    about["id"],
                    about["kind"],
                    about["parent"],
                    about["origin"],
                    about["path"],
                    json.dumps(about["settings"]),
                )
            )
            if about["rules"]:
                rules = [Rule.from_json(rule) for rule in about["rules"]]
                registry.rules[queue.id] = RuleSet(rules)
            queue.load(source, version)
            if queue.dead_letter is not None:
                queue.dead_letter.load(source, version)
            if version > 4 and source.number():
                registry.transfer_dead_letter(queue).load(source, version)
        registry._next_entity = next_entity
        registry.now = now
        return registry


def _with_its_own(queue: Queue) -> list[Queue]:
    """An entity with all that is deleted with it."""
    found = [queue]
    for subscription in queue.subscriptions.values():
        found += _with_its_own(subscription)
    found += queue.its_dead_letters
    return found
