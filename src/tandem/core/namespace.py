"""A namespace: the door of core. Commands and `now` go in, outcomes come out; nothing else goes in.

Here live the entities by path, and what concerns more than one of them: topics and their
subscriptions, forwarding, transactions, the index. What happens within one queue is `queue`.

The rule: a command that is refused has changed nothing. So each handler first checks everything
that can be refused, and only then puts its first change into the book.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from tandem import limits
from tandem.changes import (
    Activated,
    Change,
    Deferred,
    Delivered,
    Enqueued,
    EntityCreated,
    EntityDeleted,
    EntityKind,
    EntityUpdated,
    LevelChanged,
    Note,
    Noted,
    Removal,
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
    decode_edits,
    delivered_rows,
    encode_edits,
)
from tandem.core.book import Book
from tandem.core.commands import (
    AddRule,
    Attach,
    Browse,
    CancelScheduled,
    ChangePriority,
    Command,
    CreateQueue,
    CreateSubscription,
    CreateTopic,
    Declare,
    DeleteEntity,
    DeleteMessages,
    Detach,
    Discharge,
    Flow,
    GetSessionState,
    ListSessions,
    Loaded,
    ReceiveDeferred,
    Remark,
    RemoveRule,
    Renew,
    RenewSession,
    Send,
    SetSessionState,
    Settle,
    UpdateEntity,
)
from tandem.core.effects import Attached, Delivery, Load, Outcome
from tandem.core.overlay import laid_over
from tandem.core.packing import Reader, Writer
from tandem.core.priority import level_of
from tandem.core.queue import Queue
from tandem.core.receivers import Receiver
from tandem.core.rules import Rule, RuleSet, default_rule
from tandem.core.sql_context import Context
from tandem.core.state import State
from tandem.core.transactions import Transactions
from tandem.errors import (
    ArgumentError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    MessageSizeExceededError,
    NotAllowedError,
    QuotaExceededError,
    Refused,
)
from tandem.model import (
    NEVER,
    NO_EDITS,
    PING_CONTENT_TYPE,
    Edits,
    Message,
    Millis,
    Timestamp,
    Value,
)
from tandem.settings import (
    QueueSettings,
    Settings,
    SubscriptionSettings,
    TopicSettings,
    canonical,
    canonical_subscription,
    check_update,
    split,
)

INDEX_VERSION: Final = 1
RELAY_BATCH: Final = 100
"""Messages of one entity that are read from the store at a time to be forwarded or published."""
RELAY_RETRY_MS: Final = 5_000
"""When forwarding out of a dead-letter queue fails there is nowhere else to go: it is tried
again."""
_PING_MAX_BYTES: Final = 512
"""A ping is empty; a longer message need not be asked for its content type."""
_MOST_ALIASES: Final = 10_000

_SETTINGS: Final[dict[EntityKind, type[Settings]]] = {
    EntityKind.QUEUE: QueueSettings,
    EntityKind.TOPIC: TopicSettings,
    EntityKind.SUBSCRIPTION: SubscriptionSettings,
}


class Namespace:
    def __init__(self) -> None:
        self._book = Book()
        self._entities: dict[int, Queue] = {}
        """Queues, subscriptions, dead-letter queues, and the inboxes of topics."""
        self._by_path: dict[str, Queue] = {}
        self._aliases: dict[str, Queue] = {}
        """Paths as people spell them; only a shortcut."""
        self._subscriptions: dict[int, dict[str, Queue]] = {}
        """Topic → its subscriptions by name."""
        self._rules: dict[int, RuleSet] = {}
        """By subscription."""
        self._links: dict[int, Queue] = {}
        self._transactions = Transactions()
        self._next_entity = 1
        self._now: Millis = 0
        self._handlers: dict[type, Callable[[Any, Millis], object]] = {
            CreateQueue: self._create_queue,
            CreateTopic: self._create_topic,
            CreateSubscription: self._create_subscription,
            UpdateEntity: self._update,
            DeleteEntity: self._delete_entity,
            AddRule: self._add_rule,
            RemoveRule: self._remove_rule,
            Send: self._send,
            CancelScheduled: self._cancel,
            Attach: self._attach,
            Flow: self._flow,
            Detach: self._detach,
            ReceiveDeferred: self._receive_deferred,
            Browse: self._browse,
            Settle: self._settle,
            Renew: self._renew,
            DeleteMessages: self._delete_messages,
            ChangePriority: self._change_priority,
            RenewSession: self._renew_session,
            SetSessionState: self._set_session_state,
            GetSessionState: self._get_session_state,
            ListSessions: self._list_sessions,
            Declare: self._declare,
            Discharge: self._discharge,
            Loaded: self._loaded,
            Remark: self._remark,
        }

    # --- the door
    # -----------------------------------------------------------------------------------

    def apply(self, command: Command, now: Millis) -> Outcome:
        """Do it, or raise `Refused`; then nothing has changed."""
        now = self._advance(now)
        try:
            reply = self._handlers[type(command)](command, now)
        except Refused:
            assert not self._book.changes and not self._book.effects, "a refusal changes nothing"
            raise
        return self._outcome(reply, now)

    def tick(self, now: Millis) -> Outcome:
        """Do what time has brought: locks and lives that end, schedules that come due."""
        now = self._advance(now)
        self._transactions.drop_overdue(now)
        while (queue := self._book.pop_due(self._entities, now)) is not None:
            self._tick_queue(queue, now)
        return self._outcome(None, now)

    def next_deadline(self) -> Millis:
        """When `tick` is wanted next; NEVER if nothing is under way."""
        deadline = self._book.next_deadline(self._entities)
        return min(deadline, self._transactions.next_deadline())

    @property
    def freed(self) -> list[int]:
        """Bodies that nobody needs any more. The engine takes them and clears the list."""
        return self._book.freed

    @property
    def next_body(self) -> int:
        return self._book.next_body

    def _advance(self, now: Millis) -> Millis:
        """Time does not run backwards here, whatever the clock does (S4)."""
        if now > self._now:
            self._now = now
        return self._now

    def _outcome(self, reply: object, now: Millis) -> Outcome:
        book = self._book
        while book.to_pump:
            _, queue = book.to_pump.popitem()
            queue.receivers.pump(now)
        outcome = Outcome(reply, book.take_changes(), book.effects)
        book.effects = []
        return outcome

    # --- entities
    # -----------------------------------------------------------------------------------

    def find(self, path: str) -> Queue:
        """The queue, subscription, dead-letter queue or topic at a path, in any spelling."""
        queue = self._aliases.get(path)
        if queue is not None:
            return queue
        try:
            queue = self._by_path.get(split(path).path)
        except ArgumentError:
            queue = None
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

    @property
    def entities(self) -> Sequence[Queue]:
        """Every entity, in the order of creation."""
        return tuple(self._entities.values())

    def subscriptions(self, topic: str) -> dict[str, Queue]:
        return dict(self._subscriptions[self._topic(topic).id])

    def rules(self, subscription: str) -> tuple[Rule, ...]:
        return self._rules[self._subscription(subscription).id].rules

    def _topic(self, path: str) -> Queue:
        queue = self.find(path)
        if queue.kind is not EntityKind.TOPIC:
            raise NotAllowedError(f"'{path}' is not a topic.")
        return queue

    def _subscription(self, path: str) -> Queue:
        queue = self.find(path)
        if queue.kind is not EntityKind.SUBSCRIPTION:
            raise NotAllowedError(f"'{path}' is not a subscription.")
        return queue

    def _holder(self, path: str) -> Queue:
        """What messages can be received from."""
        queue = self.find(path)
        if queue.kind is EntityKind.TOPIC:
            raise NotAllowedError(f"'{path}' is a topic: receive from one of its subscriptions.")
        return queue

    def _create_queue(self, command: CreateQueue, now: Millis) -> None:
        settings = command.settings.validate()
        self._check_new(command.path, settings)
        self._create(EntityKind.QUEUE, command.path, settings, 0, now, origin=command.origin)

    def _create_topic(self, command: CreateTopic, now: Millis) -> None:
        settings = command.settings.validate()
        self._check_new(command.path, settings)
        self._create(EntityKind.TOPIC, command.path, settings, 0, now)

    def _check_new(self, path: str, settings: QueueSettings | TopicSettings) -> None:
        if canonical(path) in self._by_path:
            raise EntityExistsError(path)
        count = sum(1 for queue in self._entities.values() if queue.owner is None)
        if count >= limits.MAX_ENTITIES:
            raise QuotaExceededError(
                f"The namespace has {count} queues and topics, the most it can."
            )
        self._check_targets(path, settings)

    def _check_targets(self, path: str, settings: Settings) -> None:
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

    def _create_subscription(self, command: CreateSubscription, now: Millis) -> None:
        topic = self._topic(command.topic)
        settings = command.settings.validate()
        name = canonical_subscription(command.name)
        path = f"{topic.path}/Subscriptions/{command.name}"
        if name in self._subscriptions[topic.id]:
            raise EntityExistsError(path)
        if len(self._subscriptions[topic.id]) >= limits.MAX_SUBSCRIPTIONS_PER_TOPIC:
            raise QuotaExceededError(
                f"The topic '{topic.path}' has {limits.MAX_SUBSCRIPTIONS_PER_TOPIC} subscriptions, "
                "the most it can."
            )
        self._check_targets(path, settings)
        rules = RuleSet([command.rule or default_rule(now)])
        entity = self._create(EntityKind.SUBSCRIPTION, path, settings, topic.id, now)
        for rule in rules.rules:
            self._book.emit(RuleAdded(now, entity, json.dumps(rule.to_json())))
        self._rules[entity] = rules

    def _create(
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
        self._book.emit(change)
        self._do_create(change)
        return change.entity

    def _do_create(self, change: EntityCreated) -> Queue:
        kind = EntityKind(change.kind)
        settings = _SETTINGS[kind].from_json(json.loads(change.settings))
        owner = self._entities[change.parent] if change.parent else None
        whose = settings if owner is None else owner.settings
        is_partitioned = bool(getattr(whose, "enable_partitioning", False))
        queue = Queue(
            self._book,
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
            self._subscriptions[queue.id] = {}
            return queue
        if owner is not None:
            self._subscriptions[owner.id][split(change.path).subscription or ""] = queue
            self._rules[queue.id] = RuleSet()
        queue.dead_letter = Queue(
            self._book,
            change.entity + 1,
            EntityKind.DEAD_LETTER,
            f"{change.path}/$DeadLetterQueue",
            settings,
            change.time,
            origin=change.origin,
            owner=queue,
            is_partitioned=is_partitioned,
        )
        self._register(queue.dead_letter)
        self._expect_idleness(queue)
        return queue

    def _register(self, queue: Queue) -> None:
        self._entities[queue.id] = queue
        self._by_path[split(queue.path).path] = queue

    def _update(self, command: UpdateEntity, now: Millis) -> None:
        queue = self.find(command.path)
        if queue.kind is EntityKind.DEAD_LETTER or not isinstance(
            command.settings, _SETTINGS[queue.kind]
        ):
            raise ArgumentError(f"'{command.path}' is not described by such settings.")
        settings = command.settings.validate()
        check_update(queue.settings, settings)  # type: ignore[type-var]
        self._check_targets(command.path, settings)
        change = EntityUpdated(now, queue.id, json.dumps(settings.to_json()))
        self._book.emit(change)
        self._do_update(change)
        queue.accessed_ms = now
        for each in (queue, queue.dead_letter):
            if each is None:
                continue
            if not each.status.allows_receive:
                for link in each.receivers.links:
                    self._links.pop(link, None)
                each.receivers.close_all(EntityDisabledError(each.path))
            self._book.wake(each, now)
            each.has_arrived(now)

    def _do_update(self, change: EntityUpdated) -> None:
        queue = self._entities[change.entity]
        settings = _SETTINGS[queue.kind].from_json(json.loads(change.settings))
        queue.updated_ms = change.time
        queue.configure(settings)
        if queue.dead_letter is not None:
            queue.dead_letter.configure(settings)
        for subscription in self._subscriptions.get(queue.id, {}).values():
            subscription.configure(subscription.settings)

    def _delete_entity(self, command: DeleteEntity, now: Millis) -> None:
        queue = self.find(command.path)
        if queue.kind is EntityKind.DEAD_LETTER:
            raise NotAllowedError("A dead-letter queue is deleted with its entity only.")
        self._delete(queue, now)

    def _delete(self, queue: Queue, now: Millis) -> None:
        self._book.emit(EntityDeleted(now, queue.id))
        self._do_delete(queue)

    def _do_delete(self, queue: Queue) -> None:
        for subscription in list(self._subscriptions.pop(queue.id, {}).values()):
            self._do_delete(subscription)
        if queue.kind is EntityKind.SUBSCRIPTION and queue.owner is not None:
            siblings = self._subscriptions.get(queue.owner.id, {})
            siblings.pop(split(queue.path).subscription or "", None)
        self._rules.pop(queue.id, None)
        self._aliases.clear()
        for each in (queue, queue.dead_letter):
            if each is None:
                continue
            for link in each.receivers.links:
                self._links.pop(link, None)
            each.receivers.close_all(EntityNotFoundError(each.path))
            for body in each.every_body():
                self._book.release(body)
            del self._entities[each.id]
            del self._by_path[split(each.path).path]
            self._book.to_pump.pop(each.id, None)

    def _add_rule(self, command: AddRule, now: Millis) -> None:
        subscription = self._subscription(command.path)
        rules = self._rules[subscription.id].adding(command.rule)
        self._check_rule_count(subscription, rules)
        subscription.accessed_ms = now
        self._book.emit(RuleAdded(now, subscription.id, json.dumps(command.rule.to_json())))
        self._rules[subscription.id] = rules

    def _check_rule_count(self, subscription: Queue, rules: RuleSet) -> None:
        assert subscription.owner is not None
        siblings = self._subscriptions[subscription.owner.id].values()
        count = len(rules) + sum(len(self._rules[q.id]) for q in siblings if q is not subscription)
        most = limits.MAX_SQL_RULES_PER_TOPIC + limits.MAX_CORRELATION_RULES_PER_TOPIC
        if count > most:
            raise QuotaExceededError(f"A topic can have {most} rules.")

    def _remove_rule(self, command: RemoveRule, now: Millis) -> None:
        subscription = self._subscription(command.path)
        rules = self._rules[subscription.id].removing(command.name)
        self._book.emit(RuleRemoved(now, subscription.id, command.name))
        self._rules[subscription.id] = rules

    # --- sending
    # ------------------------------------------------------------------------------------

    def _send(self, command: Send, now: Millis) -> list[int]:
        queue = self.find(command.path)
        size = self._check_send(queue, command.messages)
        if command.transaction is not None:
            self._transactions.add(command.transaction, command, now)
            return []
        queue.check_room(size)
        return self._accept(queue, command.messages, command.link, now)

    def _check_send(self, queue: Queue, messages: Sequence[Message]) -> int:
        """Raises if one of them cannot be taken. Returns their size."""
        if queue.kind not in (EntityKind.QUEUE, EntityKind.TOPIC):
            raise NotAllowedError(
                f"Nothing can be sent to '{queue.path}': send to its queue or topic."
            )
        if not queue.status.allows_send:
            raise EntityDisabledError(queue.path)
        if len(messages) > limits.MAX_BATCH_MESSAGES:
            raise MessageSizeExceededError(
                f"A batch has at most {limits.MAX_BATCH_MESSAGES} messages, not {len(messages)}."
            )
        size = 0
        for message in messages:
            queue.check(message)
            size += len(message.payload)
        return size

    def _accept(
        self, queue: Queue, messages: Sequence[Message], link: int, now: Millis
    ) -> list[int]:
        numbers: list[int] = []
        for message in messages:
            if _is_ping(message):
                self._book.emit(Noted(now, queue.id, Note.PINGED, 0, link, None))
                numbers.append(0)
                continue
            due = message.scheduled_ms or 0
            if due <= now:
                due = 0
            number = queue.accept(message, now, due=due, link=link)
            numbers.append(number)
            if number and not due and queue.is_relay:
                self._relay(queue, number, message, now)
        queue.accessed_ms = now
        if queue.receivers.is_hungry:
            self._book.to_pump[queue.id] = queue
        return numbers

    def _cancel(self, command: CancelScheduled, now: Millis) -> None:
        queue = self.find(command.path)
        queue.cancel(command.sequence_numbers, now)
        queue.accessed_ms = now

    # --- topics and forwarding
    # ----------------------------------------------------------------------

    def _relay(self, source: Queue, number: int, message: Message, now: Millis) -> None:
        """Pass a message on: to the subscriptions of a topic, or to where its queue forwards.
        `message` already has the edits that the source's copy has."""
        if source.kind is EntityKind.TOPIC:
            self._publish(source, number, message, now)
            source.leave((number,), Removal.PUBLISHED, now)
            return
        refusal = self._why_not_forward(source, number, message)
        if refusal is None:
            self._forward(source, number, message, now)
        elif source.dead_letter is not None:
            source.bury(number, *refusal, now)
        else:
            source.back_from_relay(number)
            self._book.wake(source, now + RELAY_RETRY_MS)

    def _why_not_forward(
        self, source: Queue, number: int, message: Message
    ) -> tuple[str, str] | None:
        assert source.relays_to is not None
        found = source.find(number)
        assert found is not None
        if found.chunk.hop(found.row) >= limits.MAX_FORWARD_HOPS:
            text = f"The message was forwarded {limits.MAX_FORWARD_HOPS} times."
            return "MaxTransferHopCountExceeded", text
        try:
            target = self.find(source.relays_to)
            if not target.status.allows_send:
                raise EntityDisabledError(target.path)
            target.check(message)
            target.check_room(len(message.payload))
        except NotAllowedError as error:
            return "Session ID is null.", str(error)
        except Refused as error:
            return type(error).__name__.removesuffix("Error"), str(error)
        return None

    def _forward(self, source: Queue, number: int, message: Message, now: Millis) -> None:
        found = source.find(number)
        assert found is not None and source.relays_to is not None
        target = self.find(source.relays_to)
        edits = decode_edits(source.edits.get(number))
        marks: dict[str, Value] = {"EnqueuedSequenceNumber": number, **edits.system}
        if source.kind is EntityKind.DEAD_LETTER and source.owner is not None:
            marks["DeadLetterSource"] = source.owner.path
        edits = Edits(edits.properties, edits.removed, marks)
        new_number = target.accept(
            message,
            now,
            body=found.chunk.bodies[found.row],
            hops=found.chunk.hop(found.row) + 1,
            edits=encode_edits(edits),
        )
        source.leave((number,), Removal.FORWARDED, now)
        self._arrived(target, new_number, message, now)

    def _arrived(self, queue: Queue, number: int, message: Message, now: Millis) -> None:
        if number and queue.is_relay:
            self._relay(queue, number, message, now)
        elif number:
            queue.has_arrived(now)

    def _publish(self, topic: Queue, number: int, message: Message, now: Millis) -> None:
        found = topic.find(number)
        assert found is not None
        body, hops = found.chunk.bodies[found.row], found.chunk.hop(found.row)
        carried = decode_edits(topic.edits.get(number))
        facts: dict[str, Value] = {
            "SequenceNumber": number,
            "EnqueuedTimeUtc": Timestamp(now),
            "Size": len(message.payload),
            "DeliveryCount": 0,
        }
        context = Context(message, facts, NO_EDITS, _ids_for(topic.id, number))
        copies = 0
        for subscription in list(self._subscriptions[topic.id].values()):
            selection = self._rules[subscription.id].evaluate(context)
            wanted = [NO_EDITS] if selection.plain else []
            wanted.extend(edits for _, edits in selection.copies)
            copies += len(wanted)
            for edits in wanted:
                self._copy(subscription, message, body, hops, carried, edits, None, now)
            assert isinstance(subscription.settings, SubscriptionSettings)
            if selection.failed and subscription.settings.dead_letter_on_filter_error:
                copies += 1
                failed = selection.failed
                self._copy(subscription, message, body, hops, carried, NO_EDITS, failed, now)
        if not copies:
            self._book.emit(Noted(now, topic.id, Note.NO_SUBSCRIPTION, number, 0, None))

    def _copy(
        self,
        subscription: Queue,
        message: Message,
        body: int,
        hops: int,
        carried: Edits,
        edits: Edits,
        failed: str | None,
        now: Millis,
    ) -> None:
        """One copy for a subscription; straight to its dead-letter queue where it must."""
        seen = laid_over(message, edits)
        number = subscription.accept(
            seen, now, body=body, hops=hops, edits=encode_edits(carried.then(edits))
        )
        if failed is not None:
            subscription.bury(number, "FilterEvaluationException", failed, now)
        elif subscription.sessions is not None and seen.session_id is None:
            text = (
                "Session enabled entity doesn't allow a message whose session identifier is null."
            )
            subscription.bury(number, "Session ID is null.", text, now)
        else:
            self._arrived(subscription, number, seen, now)

    def _loaded(self, command: Loaded, now: Millis) -> None:
        queue = self._entities.get(command.entity)
        if queue is None:
            return
        for number, message in command.messages.items():
            if number not in queue.loading:
                continue
            if queue.is_relay:
                edits = decode_edits(queue.edits.get(number))
                self._relay(queue, number, laid_over(message, edits), now)
            else:
                queue.back_from_relay(number)
        if not queue.loading and queue.counts[State.WAITING]:
            queue.has_arrived(now)

    # --- receiving
    # ----------------------------------------------------------------------------------

    def _attach(self, command: Attach, now: Millis) -> Attached | None:
        queue = self._holder(command.path)
        if command.link in self._links:
            raise ArgumentError(f"The link {command.link} is attached already.")
        if not queue.status.allows_receive:
            raise EntityDisabledError(queue.path)
        attached = queue.receivers.attach(
            command.link, command.mode, command.session, command.timeout_ms, now
        )
        queue.accessed_ms = now
        self._links[command.link] = queue
        return attached

    def _receiver(self, link: int) -> Receiver:
        queue = self._links.get(link)
        receiver = None if queue is None else queue.receivers.links.get(link)
        if receiver is None:
            raise NotAllowedError(f"The link {link} is not attached.")
        return receiver

    def _flow(self, command: Flow, now: Millis) -> int:
        receiver = self._receiver(command.link)
        queue = receiver.queue
        receivers = queue.receivers
        receivers.flow(receiver, command.credit, command.nonce)
        queue.accessed_ms = now
        receivers.pump(now)
        left = receiver.credit
        if command.drain:
            receivers.flow(receiver, 0, command.nonce)
        return left

    def _detach(self, command: Detach, now: Millis) -> None:
        queue = self._links.pop(command.link, None)
        if queue is not None:
            queue.receivers.detach(command.link, now)

    def _receive_deferred(self, command: ReceiveDeferred, now: Millis) -> tuple[Delivery, ...]:
        queue = self._holder(command.path)
        queue.accessed_ms = now
        return queue.receive_deferred(
            command.sequence_numbers,
            command.nonce,
            command.mode,
            command.session,
            command.link,
            now,
        )

    def _browse(self, command: Browse, now: Millis) -> tuple[Delivery, ...]:
        queue = self.find(command.path)
        if command.count < 1:
            raise ArgumentError("The number of messages to browse must be at least 1.")
        count = min(command.count, limits.MAX_BROWSE)
        shown = queue.browse(command.from_sequence_number, count, command.session)
        queue.accessed_ms = now
        self._book.emit(Noted(now, queue.id, Note.BROWSED, len(shown), 0, None))
        return shown

    # --- settling
    # -----------------------------------------------------------------------------------

    def _settle(self, command: Settle, now: Millis) -> None:
        queue = self._holder(command.path)
        numbers = queue.check_settle(command.tokens, command.disposition, now)
        if command.transaction is not None:
            self._transactions.add(command.transaction, command, now)
            return
        queue.settle(
            numbers,
            command.disposition,
            command.edits,
            command.reason,
            command.description,
            now,
        )

    def _renew(self, command: Renew, now: Millis) -> list[Millis]:
        return self._holder(command.path).renew(command.tokens, now)

    def _delete_messages(self, command: DeleteMessages, now: Millis) -> int:
        if command.count < 1:
            raise ArgumentError("The number of messages to delete must be at least 1.")
        queue = self._holder(command.path)
        count = min(command.count, limits.MAX_BATCH_DELETE)
        queue.accessed_ms = now
        return queue.purge(count, command.before_ms, command.session, now)

    def _change_priority(self, command: ChangePriority, now: Millis) -> None:
        self._holder(command.path).change_level(command.sequence_number, command.level, now)

    # --- sessions
    # -----------------------------------------------------------------------------------

    def _renew_session(self, command: RenewSession, now: Millis) -> Millis:
        queue = self._holder(command.path)
        session = queue.check_session(command.session, command.link, now)
        return queue.receivers.renew_session(session, now)

    def _set_session_state(self, command: SetSessionState, now: Millis) -> None:
        queue = self._holder(command.path)
        queue.check_session(command.session, command.link, now)
        if command.state is not None and len(command.state) > limits.MAX_SESSION_STATE:
            raise MessageSizeExceededError(
                f"A session's state has at most {limits.MAX_SESSION_STATE} bytes."
            )
        change = SessionStateSet(now, queue.id, command.session, command.state)
        self._book.emit(change)
        self._do_set_state(change)

    def _do_set_state(self, change: SessionStateSet) -> None:
        sessions = self._entities[change.entity].sessions
        assert sessions is not None
        session = sessions.open(change.session_id)
        session.state = change.state
        session.state_changed_ms = change.time
        sessions.update(session)

    def _get_session_state(self, command: GetSessionState, now: Millis) -> bytes | None:
        queue = self._holder(command.path)
        return queue.check_session(command.session, command.link, now).state

    def _list_sessions(self, command: ListSessions, now: Millis) -> tuple[str, ...]:
        queue = self._holder(command.path)
        if queue.sessions is None:
            raise NotAllowedError(f"'{queue.path}' does not require sessions.")
        after = command.updated_after_ms
        names = sorted(
            session.id
            for session in queue.sessions.by_id.values()
            if (
                session.waiting or session.held or session.state is not None
                if after is None
                else session.state is not None and session.state_changed_ms > after
            )
        )
        return tuple(names[command.skip : command.skip + command.top])

    # --- transactions
    # -------------------------------------------------------------------------------

    def _declare(self, command: Declare, now: Millis) -> int:
        return self._transactions.declare(now)

    def _discharge(self, command: Discharge, now: Millis) -> None:
        """All of it is checked again, as a whole; then none of it can fail."""
        commands = self._transactions.take(command.transaction, now)
        if command.fail:
            return
        sizes: dict[int, int] = {}
        tokens: set[bytes] = set()
        for each in commands:
            if isinstance(each, Send):
                queue = self.find(each.path)
                sizes[queue.id] = sizes.get(queue.id, 0) + self._check_send(queue, each.messages)
                queue.check_room(sizes[queue.id])
            else:
                queue = self._holder(each.path)
                queue.check_settle(each.tokens, each.disposition, now)
                if not tokens.isdisjoint(each.tokens):
                    raise NotAllowedError("A message was settled twice in one transaction.")
                tokens.update(each.tokens)
        for each in commands:
            each.transaction = None
            self._handlers[type(each)](each, now)

    # --- time
    # ---------------------------------------------------------------------------------------

    def _tick_queue(self, queue: Queue, now: Millis) -> None:
        queue.tick(now)
        if self._is_idle(queue, now):
            self._delete(queue, now)
            return
        if queue.is_relay and not queue.loading and queue.counts[State.WAITING]:
            bodies = queue.take_for_relay(RELAY_BATCH, now)
            if bodies:
                self._book.effects.append(Load(queue.id, bodies))
        if queue.receivers.is_hungry:
            self._book.to_pump[queue.id] = queue
        self._book.wake(queue, queue.next_deadline())
        self._expect_idleness(queue)

    def _expect_idleness(self, queue: Queue) -> None:
        idle = queue.settings.auto_delete_on_idle_ms
        if idle != NEVER and queue.kind is not EntityKind.DEAD_LETTER:
            self._book.wake(queue, max(queue.accessed_ms, self._now - idle + 1) + idle)

    def _is_idle(self, queue: Queue, now: Millis) -> bool:
        idle = queue.settings.auto_delete_on_idle_ms
        if idle == NEVER or queue.kind is EntityKind.DEAD_LETTER:
            return False
        if queue.receivers.links or queue.counts[State.SCHEDULED]:
            queue.accessed_ms = now
        return now - queue.accessed_ms >= idle

    def _remark(self, command: Remark, now: Millis) -> None:
        queue = self.find(command.path)
        self._book.emit(Noted(now, queue.id, command.note, command.number, 0, None))

    # --- recovery
    # -----------------------------------------------------------------------------------

    def replay(self, change: Change) -> None:
        """Do again what was decided before."""
        match change:
            case Enqueued():
                queue = self._entities[change.entity]
                queue.add(change)
                queue.accessed_ms = max(queue.accessed_ms, change.time)
            case Delivered():
                queue = self._entities[change.entity]
                queue.replay_delivered(change, delivered_rows(change.rows))
            case Removed():
                queue = self._entities[change.entity]
                for number in _numbers(change.sequence_numbers):
                    queue.remove(number)
            case Returned():
                queue, reason = self._entities[change.entity], Return(change.reason)
                for number in _numbers(change.sequence_numbers):
                    queue.give_back(number, reason, change.edits)
            case Renewed():
                for number in _numbers(change.sequence_numbers):
                    self._entities[change.entity].extend(number, change.locked_until_ms)
            case Deferred():
                for number in _numbers(change.sequence_numbers):
                    self._entities[change.entity].set_aside(number, change.edits)
            case Activated():
                self._entities[change.entity].activate(change)
            case SessionLocked():
                queue = self._entities[change.entity]
                assert queue.sessions is not None
                session = queue.sessions.open(change.session_id)
                queue.receivers.lock_session(session, change.link, change.locked_until_ms)
            case SessionUnlocked():
                sessions = self._entities[change.entity].sessions
                assert sessions is not None
                if change.session_id in sessions.by_id:
                    sessions.unlock(sessions.by_id[change.session_id])
            case SessionStateSet():
                self._do_set_state(change)
            case EntityCreated():
                self._do_create(change)
            case EntityUpdated():
                self._do_update(change)
            case EntityDeleted():
                self._do_delete(self._entities[change.entity])
            case RuleAdded():
                rule = Rule.from_json(json.loads(change.rule))
                self._rules[change.entity] = self._rules[change.entity].adding(rule)
            case RuleRemoved():
                self._rules[change.entity] = self._rules[change.entity].removing(change.name)
            case LevelChanged():
                self._entities[change.entity].set_level(change.sequence_number, change.level)
            case _:
                return  # a note, a start, a moved body: no queue changes
        self._advance(change.time)

    def restart(self, now: Millis, version: str = "") -> Outcome:
        """After recovery: what was locked in the former life comes back."""
        now = self._advance(now)
        self._book.emit(Started(now, version))
        self._book.effects.clear()
        for queue in list(self._entities.values()):
            if queue.sessions is not None:
                for session in list(queue.sessions.by_id.values()):
                    if session.link is not None:
                        queue.receivers.detach_lost(session, now)
            if queue.locks:
                queue.come_back(list(queue.locks), Return.RESTARTED, now)
            queue.loading.clear()
            queue.accessed_ms = now
            self._book.wake(queue, min(queue.next_deadline(), now if queue.is_relay else NEVER))
            self._expect_idleness(queue)
        return self._outcome(None, now)

    def dump(self) -> list[bytes]:
        """The whole state, for an index. Links and transactions are not part of it."""
        out, book = Writer(), self._book
        out.number(INDEX_VERSION)
        out.number(self._now)
        out.number(self._next_entity)
        out.number(book.next_body)
        out.number(len(book.shared))
        out.column(array("Q", book.shared.keys()))
        out.column(array("Q", book.shared.values()))
        owners = [q for q in self._entities.values() if q.kind is not EntityKind.DEAD_LETTER]
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
                    "rules": [
                        rule.to_json() for rule in self._rules.get(queue.id, RuleSet()).rules
                    ],
                }
            )
            queue.dump(out)
            if queue.dead_letter is not None:
                queue.dead_letter.dump(out)
        return out.parts

    @classmethod
    def load(cls, data: bytes | memoryview) -> Namespace:
        source, namespace = Reader(data), cls()
        version = source.number()
        assert version == INDEX_VERSION, f"an index of version {version}"
        now = source.number()
        next_entity = source.number()
        namespace._book.next_body = source.number()
        source.number()
        keys, values = source.column("Q"), source.column("Q")
        assert keys is not None and values is not None
        namespace._book.shared.update(zip(keys, values, strict=True))
        for _ in range(source.number()):
            about = source.json()
            queue = namespace._do_create(
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
                namespace._rules[queue.id] = RuleSet(rules)
            queue.load(source)
            if queue.dead_letter is not None:
                queue.dead_letter.load(source)
        namespace._next_entity = next_entity
        namespace._now = now
        return namespace


def _numbers(data: bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(data)
    return numbers


def _is_ping(message: Message) -> bool:
    return len(message.payload) < _PING_MAX_BYTES and message.content_type == PING_CONTENT_TYPE


def _ids_for(topic: int, number: int) -> Callable[[], UUID]:
    """newid() without randomness: each call gives another id, and each message others."""
    calls = iter(range(1 << 32))
    return lambda: UUID(int=(topic & 0xFFFF_FFFF) << 96 | number << 32 | next(calls))
