"""A namespace: the door of core. Commands and `now` go in, outcomes come out; nothing else goes in.

Here every command is checked and carried out, time passes, and the log is played again. What may
come into a queue is `admission`, how it comes in `sending`; what becomes of a message there is
`lifecycle`; which entities there are is `registry`; how messages go on from one to another is
`relays`.

The rule: a command that is refused has changed nothing. So each handler first checks everything
that can be refused, and only then puts its first change into the book.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tandembus import limits
from tandembus.changes import (
    Change,
    EntityKind,
    EntityUpdated,
    Note,
    Noted,
    Return,
    RuleAdded,
    RuleRemoved,
    SessionStateSet,
    Started,
)
from tandembus.core import admission, lifecycle
from tandembus.core.commands import (
    AddRule,
    Attach,
    Browse,
    CancelScheduled,
    ChangePriority,
    Command,
    CountSessions,
    CreateQueue,
    CreateSubscription,
    CreateTopic,
    DeadLetterSession,
    Declare,
    DeleteEntity,
    DeleteMessages,
    Detach,
    Discard,
    Discharge,
    Flow,
    GetSessionState,
    ListSessions,
    Loaded,
    Reactivate,
    ReceiveDeferred,
    Remark,
    RemoveRule,
    Renew,
    RenewSession,
    Send,
    SetSessionState,
    Settle,
    UpdateEntity,
    UpdateRule,
)
from tandembus.core.detours import Detours, check_delay
from tandembus.core.effects import Attached, Delivery, Effect, LinkClosed, Outcome
from tandembus.core.positions import Reading
from tandembus.core.queue import Queue
from tandembus.core.receivers import Receiver
from tandembus.core.registry import SETTINGS, Registry
from tandembus.core.relays import Relays
from tandembus.core.replay import replay
from tandembus.core.rules import Rule, RuleSet, default_rule
from tandembus.core.sending import Sending
from tandembus.core.state import State
from tandembus.core.transactions import Held, Transactions, cancel_held, check_commit
from tandembus.errors import (
    ArgumentError,
    EntityDisabledError,
    EntityExistsError,
    NotAllowedError,
    QuotaExceededError,
    Refused,
    TandemError,
)
from tandembus.model import NEVER, Millis
from tandembus.settings import canonical_subscription, check_update


class Namespace:
    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry or Registry()
        self._book = self._registry.book
        self._relays = Relays(self._registry)
        self._transactions = Transactions()
        self._sending = Sending(self._registry, self._relays, self._transactions)
        detours = Detours(self._registry)
        self._handlers: dict[type, Callable[[Any, Millis], object]] = {
            CreateQueue: self._create_queue,
            CreateTopic: self._create_topic,
            CreateSubscription: self._create_subscription,
            UpdateEntity: self._update,
            DeleteEntity: self._delete_entity,
            AddRule: self._add_rule,
            UpdateRule: self._update_rule,
            RemoveRule: self._remove_rule,
            Send: self._sending.send,
            CancelScheduled: self._sending.cancel,
            Attach: self._attach,
            Flow: self._flow,
            Detach: self._detach,
            ReceiveDeferred: self._receive_deferred,
            Browse: self._browse,
            Settle: self._settle,
            Renew: self._renew,
            DeleteMessages: detours.delete_messages,
            ChangePriority: detours.change_priority,
            RenewSession: self._renew_session,
            SetSessionState: self._set_session_state,
            GetSessionState: self._noted(self._get_session_state),
            ListSessions: self._noted(detours.list_sessions),
            CountSessions: self._noted(detours.count_sessions),
            DeadLetterSession: detours.dead_letter_session,
            Discard: detours.discard,
            Reactivate: detours.reactivate,
            Declare: self._declare,
            Discharge: self._discharge,
            Loaded: self._relays.loaded,
            Remark: self._remark,
            **Reading(self._registry).handlers,
        }

    # --- the door ---------------------------------------------------------------------------------

    def apply(self, command: Command, now: Millis) -> Outcome:
        """Do it, or raise `Refused`; then nothing has changed."""
        registry = self._registry
        if now > registry.now:
            registry.now = now
        else:
            now = registry.now
        try:
            reply = self._handlers[type(command)](command, now)
        except Refused:
            assert not self._book.changes, "a refusal changes nothing"
            raise
        return self._outcome(reply, now)

    def tick(self, now: Millis) -> Outcome:
        """Do what time has brought: locks and lives that end, schedules that come due."""
        now = self._advance(now)
        cancel_held(self._registry, self._transactions.drop_overdue(now), now)
        while (queue := self._book.pop_due(self._registry.by_id, now)) is not None:
            self._tick_queue(queue, now)
        return self._outcome(None, now)

    def next_deadline(self) -> Millis:
        """When `tick` is wanted next; NEVER if nothing is under way."""
        deadline = self._book.next_deadline(self._registry.by_id)
        return min(deadline, self._transactions.next_deadline())

    @property
    def now(self) -> Millis:
        """The latest time that was heard of, of a command or of a record of the log."""
        return self._registry.now

    @property
    def freed(self) -> list[int]:
        """Bodies that nobody needs any more. The engine takes them and clears the list."""
        return self._book.freed

    @property
    def next_body(self) -> int:
        return self._book.next_body

    def _advance(self, now: Millis) -> Millis:
        """Time does not run backwards here, whatever the clock does (S4)."""
        now = self._registry.now = max(now, self._registry.now)
        return now

    def _outcome(self, reply: object, now: Millis) -> Outcome:
        book = self._book
        while book.to_pump:
            _, queue = book.to_pump.popitem()
            queue.receivers.pump(now)
        changes, book.changes = book.changes, []
        book.emit = book.changes.append
        effects: Sequence[Effect] = ()
        if book.effects:
            effects, book.effects = book.effects, []
            for effect in effects:
                if type(effect) is LinkClosed:
                    self._registry.links.pop(effect.link, None)
        return Outcome(reply, changes, effects)

    def dump(self) -> list[bytearray]:
        """The whole state, for an index. Links and transactions are not part of it."""
        return self._registry.dump()

    @classmethod
    def load(cls, data: bytes | memoryview) -> Namespace:
        return cls(Registry.load(data))

    # --- entities ---------------------------------------------------------------------------------

    def find(self, path: str) -> Queue:
        """The queue, subscription, dead-letter queue or topic at a path, in any spelling."""
        return self._registry.find(path)

    def __contains__(self, path: str) -> bool:
        return path in self._registry

    @property
    def generation(self) -> int:
        """Grows whenever an entity comes, goes or gets other settings."""
        return self._registry.generation

    @property
    def entities(self) -> Sequence[Queue]:
        """Every entity, in the order of creation."""
        return tuple(self._registry.by_id.values())

    def limit_entities(self, most: int) -> None:
        self._registry.max_entities = most

    def limit_sessions(self, most_bytes: int) -> None:
        """How much memory the sessions of all entities may take."""
        self._book.max_session_bytes = most_bytes

    def subscriptions(self, topic: str) -> dict[str, Queue]:
        return dict(self._registry.topic(topic).subscriptions)

    def rules(self, subscription: str) -> tuple[Rule, ...]:
        return self._registry.rules[self._registry.subscription(subscription).id].rules

    def filter_counts(self, topic: str) -> tuple[int, int]:
        return self._registry.filter_counts(self._registry.topic(topic))

    def _create_queue(self, command: CreateQueue, now: Millis) -> None:
        settings = command.settings.validate()
        self._registry.check_new(command.path, settings)
        self._registry.create(
            EntityKind.QUEUE, command.path, settings, 0, now, origin=command.origin
        )

    def _create_topic(self, command: CreateTopic, now: Millis) -> None:
        settings = command.settings.validate()
        self._registry.check_new(command.path, settings)
        self._registry.create(EntityKind.TOPIC, command.path, settings, 0, now)

    def _create_subscription(self, command: CreateSubscription, now: Millis) -> None:
        topic = self._registry.topic(command.topic)
        settings = command.settings.validate()
        name = canonical_subscription(command.name)
        path = f"{topic.path}/Subscriptions/{command.name}"
        if name in topic.subscriptions:
            raise EntityExistsError(path)
        if len(topic.subscriptions) >= limits.MAX_SUBSCRIPTIONS_PER_TOPIC:
            raise QuotaExceededError(
                f"The topic '{topic.path}' has {limits.MAX_SUBSCRIPTIONS_PER_TOPIC} subscriptions, "
                "the most it can."
            )
        self._registry.check_targets(path, settings)
        rule = command.rule or default_rule(now)
        rules = RuleSet([rule])
        self._registry.check_rules(topic, rule)
        entity = self._registry.create(EntityKind.SUBSCRIPTION, path, settings, topic.id, now)
        topic.accessed_ms = now
        self._book.emit(RuleAdded(now, entity, json.dumps(rule.to_json())))
        self._registry.rules[entity] = rules

    def _update(self, command: UpdateEntity, now: Millis) -> None:
        queue = self._registry.find(command.path)
        if queue.kind is EntityKind.DEAD_LETTER or not isinstance(
            command.settings, SETTINGS[queue.kind]
        ):
            raise ArgumentError(f"'{command.path}' is not described by such settings.")
        settings = command.settings.validate()
        check_update(queue.settings, settings)  # type: ignore[type-var]
        self._registry.check_targets(command.path, settings)
        change = EntityUpdated(now, queue.id, json.dumps(settings.to_json()))
        self._book.emit(change)
        self._registry.do_update(change)
        queue.accessed_ms = now
        for each in (queue, *queue.its_dead_letters):
            if not each.gives_messages:
                each.receivers.close_all(EntityDisabledError(each.path), now)
            self._book.wake(each, now)
            each.all_go_on(now)

    def _delete_entity(self, command: DeleteEntity, now: Millis) -> None:
        queue = self._registry.find(command.path)
        if queue.kind is EntityKind.DEAD_LETTER:
            raise NotAllowedError("A dead-letter queue is deleted with its entity only.")
        self._registry.delete(queue, now)

    def _add_rule(self, command: AddRule, now: Millis) -> None:
        subscription = self._registry.subscription(command.path)
        rules = self._registry.rules[subscription.id].adding(command.rule)
        assert subscription.owner is not None
        self._registry.check_rules(subscription.owner, command.rule)
        subscription.accessed_ms = now
        self._book.emit(RuleAdded(now, subscription.id, json.dumps(command.rule.to_json())))
        self._registry.rules[subscription.id] = rules

    def _update_rule(self, command: UpdateRule, now: Millis) -> None:
        subscription = self._registry.subscription(command.path)
        rules, rule = self._registry.rules[subscription.id], command.rule
        assert subscription.owner is not None
        self._registry.check_rules(subscription.owner, rule, rules[rule.name])
        # It goes to the end of the row, now as when the log is played again.
        rules = rules.removing(rule.name).adding(rule)
        subscription.accessed_ms = now
        self._book.emit(RuleRemoved(now, subscription.id, rule.name))
        self._book.emit(RuleAdded(now, subscription.id, json.dumps(rule.to_json())))
        self._registry.rules[subscription.id] = rules

    def _remove_rule(self, command: RemoveRule, now: Millis) -> None:
        subscription = self._registry.subscription(command.path)
        rules = self._registry.rules[subscription.id].removing(command.name)
        self._book.emit(RuleRemoved(now, subscription.id, command.name))
        self._registry.rules[subscription.id] = rules

    def _alone(self, row: Sequence[Command], now: Millis) -> list[Any]:
        """Each for itself: its reply, or its refusal."""
        replies: list[Any] = []
        for command in row:
            try:
                replies.append(self._handlers[type(command)](command, now))
            except Refused as refusal:
                replies.append(refusal)
        return replies

    # --- receiving --------------------------------------------------------------------------------

    def _attach(self, command: Attach, now: Millis) -> Attached | None:
        queue = self._registry.holder(command.path)
        if command.link in self._registry.links:
            raise ArgumentError(f"The link {command.link} is attached already.")
        if not queue.gives_messages:
            raise EntityDisabledError(queue.path)
        attached = queue.receivers.attach(
            command.link, command.mode, command.session, command.timeout_ms, now
        )
        queue.accessed_ms = now
        self._registry.links[command.link] = queue
        return attached

    def _receiver(self, link: int) -> Receiver:
        queue = self._registry.links.get(link)
        receiver = None if queue is None else queue.receivers.links.get(link)
        if receiver is None:
            raise NotAllowedError(f"The link {link} is not attached.")
        return receiver

    def _flow(self, command: Flow, now: Millis) -> int:
        receiver = self._receiver(command.link)
        queue = receiver.queue
        receivers = queue.receivers
        credit = command.credit
        if command.received is not None:
            credit = max(0, credit - (receiver.handed_out - command.received))
        receivers.flow(receiver, credit, command.nonce, now, is_drain=command.drain)
        queue.accessed_ms = now
        receivers.pump(now)
        left = receiver.credit
        if command.drain:
            receivers.flow(receiver, 0, command.nonce, now)
        return left

    def _detach(self, command: Detach, now: Millis) -> None:
        if (queue := self._registry.links.pop(command.link, None)) is not None:
            queue.receivers.detach(command.link, now)

    def _receive_deferred(self, command: ReceiveDeferred, now: Millis) -> tuple[Delivery, ...]:
        queue = self._registry.holder(command.path)
        if not queue.gives_messages:
            raise EntityDisabledError(queue.path)
        queue.accessed_ms = now
        return lifecycle.receive_deferred(
            queue,
            command.sequence_numbers,
            command.nonce,
            command.mode,
            command.session,
            command.link,
            now,
        )

    def _browse(self, command: Browse, now: Millis) -> tuple[Delivery, ...]:
        queue = self._registry.find(command.path)
        if command.count < 1:
            raise ArgumentError("The number of messages to browse must be at least 1.")
        count = min(command.count, limits.MAX_BROWSE)
        shown = queue.browse(command.from_sequence_number, count, command.session, command.states)
        queue.accessed_ms = now
        self._book.emit(Noted(now, queue.id, Note.BROWSED, len(shown), 0, None))
        return shown

    # --- settling ---------------------------------------------------------------------------------

    def _settle(self, command: Settle, now: Millis) -> list[Refused | None] | None:
        queue = self._registry.holder(command.path)
        if command.delay_ms:
            check_delay(command)
        try:
            numbers = lifecycle.check_settle(queue, command, now)
        except Refused:
            if not command.each or len(command.tokens) == 1:
                raise
            return self._alone([replace(command, tokens=(it,)) for it in command.tokens], now)
        if command.transaction is not None:
            self._transactions.add(command.transaction, queue, command, now)
        else:
            lifecycle.settle(queue, numbers, command, now)
        return None

    def _renew(self, command: Renew, now: Millis) -> list[Millis]:
        return lifecycle.renew(self._registry.holder(command.path), command.tokens, now)

    # --- sessions ---------------------------------------------------------------------------------

    def _renew_session(self, command: RenewSession, now: Millis) -> Millis:
        queue = self._registry.holder(command.path)
        session = lifecycle.check_session(queue, command.session, command.link, now)
        return queue.receivers.renew_session(session, now)

    def _set_session_state(self, command: SetSessionState, now: Millis) -> None:
        queue = self._registry.holder(command.path)
        session = lifecycle.check_session(queue, command.session, command.link, now)
        if command.state is not None:
            admission.check_state(queue, session, command.state)
        if command.transaction is not None:
            self._transactions.add(command.transaction, queue, command, now)
        else:
            self._put_session_state(queue, command, now)

    def _put_session_state(self, queue: Queue, command: SetSessionState, now: Millis) -> None:
        """What was checked."""
        assert queue.sessions is not None
        change = SessionStateSet(now, queue.id, command.session, command.state)
        self._book.emit(change)
        queue.sessions.set_state(command.session, command.state, now)

    def _get_session_state(self, command: GetSessionState, now: Millis) -> bytes | None:
        queue = self._registry.holder(command.path)
        return lifecycle.check_session(queue, command.session, command.link, now).state

    # --- transactions -----------------------------------------------------------------------------

    def _declare(self, command: Declare, now: Millis) -> int:
        return self._transactions.declare(now, command.owner)

    def _discharge(self, command: Discharge, now: Millis) -> None:
        """All of it is checked again, as a whole; then none of it can fail. What cannot be
        committed is rolled back by the tick that follows."""
        parts, refusal = self._transactions.take(command.transaction, now)
        held = [part for part in parts if isinstance(part, Held)]
        if command.fail:
            cancel_held(self._registry, held, now)
            return
        try:
            if refusal is not None:
                raise NotAllowedError(f"An operation in the transaction was refused: {refusal}")
            check_commit(self._registry, parts, now)
        except Refused:
            self._transactions.left += held
            raise
        for part in parts:
            match part:
                case Send():
                    self._sending.accept(part, now)
                case Settle():
                    queue = self._registry.holder(part.path)
                    numbers = lifecycle.check_settle(queue, part, now)
                    lifecycle.settle(queue, numbers, part, now)
                case CancelScheduled():
                    queue = self._registry.find(part.path)
                    # One that this transaction held can have been dropped as a duplicate just now.
                    there = [n for n in part.sequence_numbers if queue.find(n) is not None]
                    lifecycle.cancel(queue, there, now)
                case SetSessionState():
                    self._put_session_state(self._registry.holder(part.path), part, now)
                case Held(entity, numbers):
                    lifecycle.commit_held(self._registry.by_id[entity], numbers, now)

    def spoil(self, transaction: int, refusal: TandemError) -> None:
        """Something that was to be a part of a transaction was refused, so it is not committed."""
        self._transactions.spoil(transaction, refusal)

    # --- time -------------------------------------------------------------------------------------

    def _tick_queue(self, queue: Queue, now: Millis) -> None:
        lifecycle.tick(queue, now)
        if self._is_idle(queue, now):
            self._registry.delete(queue, now)
            return
        if queue.is_relay and queue.relays_at <= now:
            self._relays.next_batch(queue, now)
        if queue.receivers.is_hungry:
            self._book.to_pump[queue.id] = queue
        self._book.wake(queue, queue.next_deadline())
        self._registry.expect_idleness(queue)

    def _is_idle(self, queue: Queue, now: Millis) -> bool:
        idle = queue.idle_ms
        if idle == NEVER:
            return False
        if queue.receivers.links or queue.counts[State.SCHEDULED] or queue.counts[State.DELAYED]:
            queue.accessed_ms = now
        return now - max(queue.accessed_ms, self._registry.started_ms) >= idle

    def _noted(self, look: Callable[[Any, Millis], object]) -> Callable[[Any, Millis], object]:
        """Who only looks leaves a record, too: it costs what anything else costs (P11)."""

        def noted(command: Any, now: Millis) -> object:
            reply = look(command, now)
            self._remark(Remark(command.path, Note.MANAGED), now)
            return reply

        return noted

    def _remark(self, command: Remark, now: Millis) -> None:
        queue = self._registry.find(command.path)
        self._book.emit(Noted(now, queue.id, command.note, command.number, 0, None))

    # --- recovery ---------------------------------------------------------------------------------

    def replay(self, change: Change) -> None:
        """Do again what was decided before."""
        replay(self._registry, change)

    def restart(self, now: Millis, version: str = "") -> Outcome:
        """After recovery: what was locked in the former life comes back."""
        now = self._advance(now)
        self._registry.start(Started(now, version))
        self._book.effects.clear()
        for queue in list(self._registry.by_id.values()):
            if queue.sessions is not None:
                for session in queue.sessions.kept:
                    if session.link is not None:
                        queue.receivers.detach_lost(session, now)
            if queue.locks:
                lifecycle.come_back(queue, list(queue.locks), Return.RESTARTED, now)
            lifecycle.cancel_held(queue, sorted(queue.held), now)
            if queue.sessions is not None:
                queue.sessions.tidy()
            queue.loading.clear()
            queue.all_go_on(now)
            self._book.wake(queue, queue.next_deadline())
            self._registry.expect_idleness(queue)
        return self._outcome(None, now)
