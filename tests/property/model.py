"""A namespace said in the plainest way: the judge of `tandembus.core`.

Plain dicts and lists, every question answered by looking at everything, no timers, no packing, no
log. Where core and this page differ, one of them is wrong, and this one is short enough to be read.
It takes core's own commands, so that both get the same; a method has the name of its command. Lock
tokens are its own, because core makes its tokens from nonces. The rule: no import from core but its
words.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from tandembus import errors
from tandembus.changes import EntityKind, Mode
from tandembus.core import commands as c
from tandembus.core.state import State
from tandembus.limits import DEFAULT_LOCK_MS, MAX_FORWARD_HOPS, TRANSACTION_TIMEOUT_MS
from tandembus.model import NEVER, NO_EDITS, PING_CONTENT_TYPE, Edits, Message, Value
from tandembus.names import TRANSFER
from tandembus.settings import DEAD_LETTER, SUBSCRIPTIONS

Selects: TypeAlias = Callable[[Mapping[str, Value]], bool]
RETRY_MS: Final = 5_000
"""When forwarding out of a dead-letter queue failed, it is tried again."""


@dataclass(eq=False)
class Item:
    """A message in a queue."""

    number: int
    message: Message
    session: str | None
    enqueued: int
    expires: int
    level: int
    hops: int
    edits: Edits
    state: State = State.WAITING
    due: int = NEVER
    count: int = 0
    token: bytes | None = None
    until: int = NEVER
    held: int | None = None
    """The transaction in which it was scheduled, while that is open."""

    @property
    def is_locked(self) -> bool:
        return self.state in (State.LOCKED, State.DEFERRED_LOCKED)


@dataclass(frozen=True)
class Held:
    """Messages that a transaction holds: scheduled with their numbers told at once."""

    path: str
    entity: object
    """Stands for the one that was there: another one may have its path at the end."""
    numbers: Sequence[int]


@dataclass
class Link:
    path: str
    mode: Mode
    session: str | c.NextSession | None
    credit: int = 0
    deadline: int = NEVER


@dataclass
class Session:
    link: int = 0
    until: int = NEVER
    state: bytes | None = None
    changed: int = 0


@dataclass
class Entity:
    """A queue, a topic, a subscription or a dead-letter queue."""

    kind: EntityKind
    settings: Any
    owner: str = ""
    items: list[Item] = field(default_factory=list)
    last_number: int = 0
    last_enqueued: int = 0
    seen: dict[object, int] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    rules: dict[str, tuple[Selects, Edits | None]] = field(default_factory=dict)
    hungry: list[int] = field(default_factory=list)
    """Links with credit; the first is served next."""
    passes_on_at: int = NEVER
    """When messages that are to go on from here do so."""
    fresh: list[Item] = field(default_factory=list)
    """Dead letters that are yet to be forwarded for the first time."""
    is_transfer: bool = False
    """A transfer dead-letter queue."""
    is_target_closed: bool = False
    """Whether the target took no dead letter when it was asked last."""
    identity: object = field(default_factory=object)
    """Of this entity and all copies of it."""

    def asks(self, setting: str) -> Any:
        """A setting of messages' normal life, which a dead-letter queue has not."""
        return None if self.is_dead else getattr(self.settings, setting, None)

    @property
    def is_dead(self) -> bool:
        return self.kind == EntityKind.DEAD_LETTER

    @property
    def lock_ms(self) -> int:
        """A topic's transfer dead-letter queue has the default."""
        return int(getattr(self.settings, "lock_duration_ms", DEFAULT_LOCK_MS))

    @property
    def has_sessions(self) -> bool:
        return bool(self.asks("requires_session"))

    @property
    def target(self) -> str | None:
        """Where messages are forwarded to."""
        if self.is_transfer:
            return None
        name = "forward_dead_letters_to" if self.is_dead else "forward_to"
        target: str | None = getattr(self.settings, name, None)
        return target

    @property
    def passes_on(self) -> bool:
        return self.target is not None or self.kind == EntityKind.TOPIC

    @property
    def serves(self) -> bool:
        """A dead letter that cannot go on is received where it is."""
        return self.is_dead or not self.passes_on


@dataclass
class Answer:
    reply: object = None
    delivered: dict[int, list[Item]] = field(default_factory=dict)
    granted: dict[int, tuple[str, int]] = field(default_factory=dict)
    closed: dict[int, type[errors.Refused]] = field(default_factory=dict)

    def then(self, later: Answer) -> Answer:
        delivered = {n: list(items) for n, items in self.delivered.items()}
        for link, items in later.delivered.items():
            delivered.setdefault(link, []).extend(items)
        granted, closed = {**self.granted, **later.granted}, {**self.closed, **later.closed}
        return Answer(self.reply, delivered, granted, closed)


class Model:
    def __init__(self, meanings: Mapping[str, tuple[Selects, Edits | None]]) -> None:
        self.meanings = meanings  # what a rule selects, and its action, by the rule's name
        self.entities: dict[str, Entity] = {}
        self.links: dict[int, Link] = {}  # in the order of attaching
        self.transactions: dict[int, tuple[int, list[Any]]] = {}
        self.last_transaction = self.last_token = 0
        self.prefer: dict[int, str] = {}  # which of several free sessions a link is to get
        self.answer = Answer()

    def apply(self, command: c.Command, now: int) -> Answer:
        """The answer; or a `Refused`, and nothing has changed."""
        before = self.saved()
        self.answer = Answer()
        try:
            self.answer.reply = getattr(self, type(command).__name__)(command, now)
        except errors.Refused:
            self.__dict__.update(before)
            if isinstance(command, c.Discharge):  # one that cannot be carried out is over too
                self.transactions.pop(command.transaction, None)
                self.drop_held(command.transaction)
            raise
        self.serve(now)
        return self.answer

    def saved(self) -> dict[str, Any]:
        """A copy of all that can change."""
        entities = {path: copy.copy(entity) for path, entity in self.entities.items()}
        for entity in entities.values():
            entity.items = [copy.copy(item) for item in entity.items]
            entity.sessions = {name: copy.copy(s) for name, s in entity.sessions.items()}
            entity.seen, entity.rules = dict(entity.seen), dict(entity.rules)
            entity.hungry = list(entity.hungry)
        links = {number: copy.copy(link) for number, link in self.links.items()}
        open_ones = {n: (end, list(parts)) for n, (end, parts) in self.transactions.items()}
        changing = {"entities": entities, "links": links, "transactions": open_ones}
        return {**self.__dict__, **changing}

    # --- entities ---------------------------------------------------------------------------------

    def at(self, path: str, *kinds: EntityKind) -> Entity:
        """The entity, which must be one of these kinds (if any are named)."""
        if path not in self.entities:
            raise errors.EntityNotFoundError(path)
        if kinds and self.entities[path].kind not in kinds:
            raise errors.NotAllowedError
        return self.entities[path]

    def holder(self, path: str) -> Entity:
        """What can be received from."""
        return self.at(path, EntityKind.QUEUE, EntityKind.SUBSCRIPTION, EntityKind.DEAD_LETTER)

    def create(self, path: str, entity: Entity) -> None:
        if path in self.entities:
            raise errors.EntityExistsError(path)
        self.entities[path] = entity
        if entity.kind != EntityKind.TOPIC:
            dead = Entity(EntityKind.DEAD_LETTER, entity.settings, path)
            self.entities[f"{path}/{DEAD_LETTER}"] = dead
        dead = Entity(EntityKind.DEAD_LETTER, entity.settings, path, is_transfer=True)
        self.entities[f"{path}/{TRANSFER}/{DEAD_LETTER}"] = dead

    def its_own(self, path: str) -> list[tuple[str, Entity]]:
        """An entity and its dead-letter queues."""
        paths = (path, f"{path}/{DEAD_LETTER}", f"{path}/{TRANSFER}/{DEAD_LETTER}")
        return [(each, self.entities[each]) for each in paths if each in self.entities]

    def CreateQueue(self, command: c.CreateQueue, now: int) -> None:
        self.create(command.path, Entity(EntityKind.QUEUE, command.settings))

    def CreateTopic(self, command: c.CreateTopic, now: int) -> None:
        self.create(command.path, Entity(EntityKind.TOPIC, command.settings))

    def CreateSubscription(self, command: c.CreateSubscription, now: int) -> None:
        self.at(command.topic, EntityKind.TOPIC)
        path = f"{command.topic}/{SUBSCRIPTIONS}/{command.name}"
        self.create(path, Entity(EntityKind.SUBSCRIPTION, command.settings, command.topic))
        name = "$Default" if command.rule is None else command.rule.name
        self.entities[path].rules[name] = self.meanings[name]

    def UpdateEntity(self, command: c.UpdateEntity, now: int) -> None:
        self.at(command.path)
        for path, entity in self.its_own(command.path):
            entity.settings, entity.passes_on_at = command.settings, now
            entity.fresh.clear()
            priority = entity.asks("priority")
            for item in entity.items:
                item.level = min(item.level, priority.levels - 1 if priority else 0)
            for number, link in list(self.links.items()):
                if link.path == path and not command.settings.status.allows_receive:
                    self.close(number, errors.EntityDisabledError, now)

    def DeleteEntity(self, command: c.DeleteEntity, now: int) -> None:
        self.at(command.path, EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION)
        doomed = [p for p in self.entities if f"{p}/".startswith(f"{command.path}/")]
        for number, link in list(self.links.items()):
            if link.path in doomed:
                self.close(number, errors.EntityNotFoundError, now)
        for path in doomed:
            del self.entities[path]

    def AddRule(self, command: c.AddRule, now: int) -> None:
        rules = self.at(command.path, EntityKind.SUBSCRIPTION).rules
        if command.rule.name in rules:
            raise errors.EntityExistsError(command.rule.name)
        rules[command.rule.name] = self.meanings[command.rule.name]

    def RemoveRule(self, command: c.RemoveRule, now: int) -> None:
        rules = self.at(command.path, EntityKind.SUBSCRIPTION).rules
        if rules.pop(command.name, None) is None:
            raise errors.EntityNotFoundError(command.name)

    def Remark(self, command: c.Remark, now: int) -> None:
        self.at(command.path)

    # --- sending ----------------------------------------------------------------------------------

    def Send(self, command: c.Send, now: int) -> list[int]:
        path = command.via or command.path
        self.check_takes(path, command.messages)
        entity = self.entities[path]
        if command.transaction is not None and command.is_numbered:
            parts = self.opened(command.transaction, now)
            numbers = [self.hold(entity, m, command.transaction, now) for m in command.messages]
            parts.append(Held(path, entity.identity, numbers))
            return numbers
        if command.transaction is not None:
            self.opened(command.transaction, now).append(replace(command, transaction=None))
            return []
        if command.via is not None:
            return [self.send_via(command, message, now) for message in command.messages]
        return [self.arrive(command.path, m, now) for m in command.messages]

    def check_takes(self, path: str, messages: Sequence[Message]) -> None:
        """Raises if messages cannot be sent there."""
        entity = self.at(path, EntityKind.QUEUE, EntityKind.TOPIC)
        if not entity.settings.status.allows_send:
            raise errors.EntityDisabledError(path)
        for message in messages:
            if len(message.payload) > entity.settings.max_message_size_kb * 1024:
                raise errors.MessageSizeExceededError
            if entity.has_sessions and message.session_id is None:
                raise errors.SessionIdMissingError

    def send_via(self, command: c.Send, message: Message, now: int) -> int:
        """A message that was taken by one entity for another."""
        try:
            self.check_takes(command.path, [message])
        except errors.Refused as refusal:
            if message.content_type == PING_CONTENT_TYPE:
                return 0
            assert command.via is not None
            item = self.append(self.entities[command.via], message, now, NO_EDITS, 0)
            reason = {
                errors.EntityNotFoundError: "MessagingEntityNotFound",
                errors.EntityDisabledError: "MessagingEntityDisabled",
                errors.SessionIdMissingError: "Session ID is null.",
            }[type(refusal)]
            self.dead_letter(command.via, item, now, reason, is_transfer=True)
            return item.number
        return self.arrive(command.path, message, now)

    def hold(self, entity: Entity, message: Message, transaction: int, now: int) -> int:
        """Scheduled in a transaction: until that is committed, its id counts only there."""
        ids = [i.message.message_id for i in entity.items if i.held == transaction]
        detects = entity.asks("requires_duplicate_detection")
        is_second = detects and message.message_id is not None and message.message_id in ids
        if message.content_type == PING_CONTENT_TYPE or is_second:
            return 0
        if self.was_seen(entity, message, now):
            return 0
        item = self.schedule(entity, message)
        item.held = transaction
        return item.number

    def arrive(
        self, path: str, message: Message, now: int, edits: Edits = NO_EDITS, hops: int = 0
    ) -> int:
        """A message comes in; 0 if it is dropped, else its number."""
        entity = self.entities[path]
        if message.content_type == PING_CONTENT_TYPE or self.is_duplicate(entity, message, now):
            return 0
        if message.scheduled_ms is None or message.scheduled_ms <= now:
            item = self.append(entity, message, now, edits, hops)
            self.pass_on(path, item, now)
            return item.number
        return self.schedule(entity, message, edits, hops).number

    def schedule(
        self, entity: Entity, message: Message, edits: Edits = NO_EDITS, hops: int = 0
    ) -> Item:
        entity.last_number += 1
        session = message.session_id if entity.has_sessions else None
        due, level = message.scheduled_ms, self.level(entity, message)
        assert due is not None
        item = Item(entity.last_number, message, session, due, NEVER, level, hops, edits)
        item.state, item.due = State.SCHEDULED, due
        entity.items.append(item)
        return item

    def append(self, entity: Entity, message: Message, time: int, edits: Edits, hops: int) -> Item:
        """A message becomes active: the next number, and a time that never runs backwards."""
        entity.last_number += 1
        entity.last_enqueued = max(time, entity.last_enqueued)
        lives = [message.ttl_ms, entity.asks("default_ttl_ms")]
        if entity.kind == EntityKind.SUBSCRIPTION:
            lives.append(self.entities[entity.owner].settings.default_ttl_ms)
        ttl = min(life for life in lives if life is not None)
        expires = NEVER if ttl == NEVER else entity.last_enqueued + ttl
        session = message.session_id if entity.has_sessions else None
        level = self.level(entity, message)
        at = entity.last_enqueued
        item = Item(entity.last_number, message, session, at, expires, level, hops, edits)
        entity.items.append(item)
        return item

    def is_duplicate(self, entity: Entity, message: Message, now: int) -> bool:
        if self.was_seen(entity, message, now):
            return True
        if message.message_id is not None:
            entity.seen[message.message_id] = now
        return False

    def was_seen(self, entity: Entity, message: Message, now: int) -> bool:
        if not entity.asks("requires_duplicate_detection") or message.message_id is None:
            return False
        seen = entity.seen.get(message.message_id)
        return seen is not None and now < seen + entity.settings.duplicate_window_ms

    def level(self, entity: Entity, message: Message) -> int:
        """The ten priorities of the header, shared by the levels that there are."""
        priority = entity.asks("priority")
        return int(message.priority or 0) * priority.levels // 10 if priority else 0

    def pass_on(self, path: str, item: Item, now: int) -> None:
        """From a topic to its subscriptions, from a queue to where it forwards; else it stays."""
        entity = self.entities[path]
        if entity.kind == EntityKind.TOPIC:
            entity.items.remove(item)
            self.publish(path, item, now)
        elif entity.has_sessions and item.session is None:
            self.dead_letter(path, item, now, "Session ID is null.")
        elif entity.target is not None:
            reason = self.obstacle(entity.target, item)
            if reason is None:
                entity.items.remove(item)
                marks: dict[str, Value] = {"EnqueuedSequenceNumber": item.number}
                if entity.is_dead:
                    shown = entity.owner.replace("/subscriptions/", "/Subscriptions/")
                    marks["DeadLetterSource"] = shown
                edits = replace(item.edits, system={**marks, **item.edits.system})
                self.arrive(entity.target, item.message, now, edits, item.hops + 1)
            elif entity.is_dead:
                if item.hops < MAX_FORWARD_HOPS:
                    entity.passes_on_at = min(entity.passes_on_at, now + RETRY_MS)
            else:
                self.dead_letter(path, item, now, reason, is_transfer=True)

    def obstacle(self, target: str, item: Item) -> str | None:
        """Why the message cannot be forwarded there."""
        if item.hops == MAX_FORWARD_HOPS:
            return "MaxTransferHopCountExceeded"
        if target not in self.entities:
            return "MessagingEntityNotFound"
        if not self.entities[target].settings.status.allows_send:
            return "MessagingEntityDisabled"
        if self.entities[target].has_sessions and item.message.session_id is None:
            return "Session ID is null."
        return None

    def publish(self, topic: str, item: Item, now: int) -> None:
        """Rules without an action make one copy together, each with an action one of its own."""
        for path, entity in list(self.entities.items()):
            if entity.kind != EntityKind.SUBSCRIPTION or entity.owner != topic:
                continue
            properties = {**item.message.properties, **item.edits.properties}
            for name in item.edits.removed:
                properties.pop(name, None)
            matching = [(n, r[1]) for n, r in entity.rules.items() if r[0](properties)]
            copies = [NO_EDITS] if any(action is None for _, action in matching) else []
            for name, action in matching:
                if action is not None:
                    copies.append(action.then(Edits({"RuleName": name})))
            for edits in copies:
                self.arrive(path, item.message, now, item.edits.then(edits), item.hops)

    def pass_all_on(self, path: str, now: int) -> None:
        """All that waits, in the order of receiving. Dead letters that are new alone, unless it is
        time for all, or the target takes some again."""
        entity = self.entities[path]
        new_ones = [item for item in entity.fresh if item in entity.items]
        entity.fresh.clear()
        is_time = entity.passes_on_at <= now
        if entity.is_dead:
            target = self.entities.get(str(entity.target))
            is_closed = target is None or not target.settings.status.allows_send
            is_time = is_time or (entity.is_target_closed and not is_closed)
            entity.is_target_closed = is_closed
        if is_time:
            entity.passes_on_at = NEVER
        tried = [] if is_time else sorted(new_ones, key=lambda item: item.number)
        for new in tried:
            self.pass_on(path, new, now)
        while is_time and (item := self.best(entity, None, now, tried)) is not None:
            tried.append(item)
            self.pass_on(path, item, now)

    def dead_letter(
        self,
        path: str,
        item: Item,
        now: int,
        reason: str | None,
        description: str | None = None,
        edits: Edits = NO_EDITS,
        *,
        is_transfer: bool = False,
    ) -> None:
        self.entities[path].items.remove(item)
        texts = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        death = Edits({name: text for name, text in texts.items() if text is not None})
        item.edits = item.edits.then(edits).then(death)
        item.state, item.token, item.until, item.expires = State.WAITING, None, NEVER, NEVER
        item.level, item.session = 0, None
        where = f"{path}/{TRANSFER}/{DEAD_LETTER}" if is_transfer else f"{path}/{DEAD_LETTER}"
        dead = self.entities[where]
        dead.items.append(item)
        self.goes_on(dead, item, now)

    def goes_on(self, entity: Entity, item: Item, now: int) -> None:
        """It waits, and is to be forwarded if this entity forwards."""
        if not entity.is_dead:
            entity.passes_on_at = now
        elif entity.passes_on and item.state == State.WAITING:
            entity.fresh.append(item)

    def CancelScheduled(self, command: c.CancelScheduled, now: int) -> None:
        entity = self.at(command.path)
        items = [self.find(entity, number, State.SCHEDULED) for number in command.sequence_numbers]
        if command.transaction is not None:
            self.opened(command.transaction, now).append(replace(command, transaction=None))
            return
        for item in items:
            entity.items.remove(item)

    def find(self, entity: Entity, number: int, state: State) -> Item:
        for item in entity.items:
            if item.number == number and item.state == state:
                return item
        raise errors.MessageNotFoundError(number)

    # --- receiving --------------------------------------------------------------------------------

    def Attach(self, command: c.Attach, now: int) -> object:
        entity = self.holder(command.path)
        if not entity.settings.status.allows_receive:
            raise errors.EntityDisabledError(command.path)
        if entity.passes_on and not entity.is_dead:
            raise errors.NotAllowedError
        if entity.has_sessions == (command.session is None):
            raise errors.NotAllowedError
        deadline = now + command.timeout_ms
        self.links[command.link] = Link(command.path, command.mode, command.session, 0, deadline)
        if command.session is None:
            return (None, 0)
        if command.session is not c.NEXT_SESSION:
            return self.lock_session(command.link, str(command.session), now)
        self.grant(now)
        return self.answer.granted.pop(command.link, None)

    def lock_session(self, number: int, name: str, now: int) -> tuple[str, int]:
        link = self.links[number]
        entity = self.entities[link.path]
        session = entity.sessions.setdefault(name, Session())
        if session.link:
            if session.until > now:
                raise errors.SessionCannotBeLockedError(name)
            self.lose_session(link.path, name, now)
        session.link, session.until = number, now + entity.settings.lock_duration_ms
        link.session = name
        return (name, session.until)

    def grant(self, now: int) -> None:
        """Links that wait get free sessions with something to deliver: first come, first served."""
        for number, link in self.links.items():
            if link.session is not c.NEXT_SESSION:
                continue
            entity = self.entities[link.path]
            free = [
                str(item.session)
                for item in sorted(entity.items, key=lambda i: i.number)
                if item.state == State.WAITING and item.expires > now
                if not entity.sessions.get(str(item.session), Session()).link
            ]
            if free:
                wanted = self.prefer.get(number)
                chosen = wanted if wanted in free else free[0]
                self.answer.granted[number] = self.lock_session(number, chosen, now)

    def serve(self, now: int) -> None:
        """Links with credit get what is waiting, one each in turn."""
        self.grant(now)
        for path, entity in self.entities.items():
            in_vain = 0
            while in_vain < len(entity.hungry):
                number = entity.hungry.pop(0)
                link = self.links[number]
                is_passing = entity.passes_on and entity.passes_on_at <= now  # that goes first
                can_get = entity.serves and not is_passing
                item = self.best(entity, link, now, entity.fresh) if can_get else None
                in_vain += 1
                if item is not None:
                    in_vain = 0
                    link.credit -= 1
                    self.hand_out(path, item, link.mode, now)
                    self.answer.delivered.setdefault(number, []).append(copy.copy(item))
                if link.credit:
                    entity.hungry.append(number)

    def best(
        self, entity: Entity, link: Link | None, now: int, but: Sequence[Item] = ()
    ) -> Item | None:
        """The next to be received: the highest level, raised by waiting; then the lowest number."""
        waiting = [
            item
            for item in entity.items
            if item.state == State.WAITING and item.expires > now and item not in but
            if not entity.has_sessions or link is None or item.session == link.session
        ]
        if link is not None and entity.has_sessions:
            session = entity.sessions[str(link.session)]
            waiting = waiting if session.until > now else []
        return min(waiting, key=lambda i: (-self.urgency(entity, i, now), i.number), default=None)

    def urgency(self, entity: Entity, item: Item, now: int) -> int:
        priority = entity.asks("priority")
        if priority is None:
            return 0
        aged = max(0, now - item.enqueued) // (priority.aging_ms_per_level or NEVER)
        return int(min(priority.levels - 1, item.level + aged))

    def hand_out(self, path: str, item: Item, mode: Mode, now: int) -> None:
        entity = self.entities[path]
        if mode == Mode.RECEIVE_AND_DELETE:
            entity.items.remove(item)
            return
        is_deferred = item.state == State.DEFERRED
        item.state = State.DEFERRED_LOCKED if is_deferred else State.LOCKED
        self.last_token += 1
        item.token = self.last_token.to_bytes(16, "big")
        item.until = now + entity.lock_ms
        if entity.has_sessions:
            item.until = entity.sessions[str(item.session)].until

    def Flow(self, command: c.Flow, now: int) -> int:
        link = self.links.get(command.link)
        if link is None or link.session is c.NEXT_SESSION:
            raise errors.NotAllowedError
        self.set_credit(command.link, command.credit)
        self.serve(now)
        left = link.credit
        if command.drain:
            self.set_credit(command.link, 0)
        return left

    def set_credit(self, number: int, credit: int) -> None:
        link = self.links[number]
        hungry = self.entities[link.path].hungry
        link.credit = credit
        if credit and number not in hungry:
            hungry.append(number)
        elif not credit and number in hungry:
            hungry.remove(number)

    def Detach(self, command: c.Detach, now: int) -> None:
        if command.link in self.links:
            self.drop(command.link, now)

    def drop(self, number: int, now: int) -> None:
        """A link ends, and with it the lock on its session, without penalty."""
        self.set_credit(number, 0)
        link = self.links.pop(number)
        session = self.entities[link.path].sessions.get(str(link.session))
        if session is not None and session.link == number:
            self.end_session(link.path, str(link.session), now, is_counted=False)

    def close(self, number: int, error: type[errors.Refused], now: int) -> None:
        self.drop(number, now)
        self.answer.closed[number] = error

    def ReceiveDeferred(self, command: c.ReceiveDeferred, now: int) -> list[Item]:
        entity = self.holder(command.path)
        if not entity.settings.status.allows_receive:
            raise errors.EntityDisabledError(command.path)
        items = []
        for number in command.sequence_numbers:
            items.append(self.find(entity, number, State.DEFERRED))
            if entity.has_sessions and items[-1].session != command.session:
                raise errors.MessageNotFoundError(number)
            if entity.has_sessions:
                self.held(command.path, command.session, command.link, now)
        for item in items:
            self.hand_out(command.path, item, command.mode, now)
        return [copy.copy(item) for item in items]

    def Browse(self, command: c.Browse, now: int) -> list[Item]:
        shown = [
            item
            for item in sorted(self.at(command.path).items, key=lambda i: i.number)
            if item.number >= command.from_sequence_number
            if command.session is None or item.session == command.session
            if not command.states or item.state in command.states
        ]
        return [replace(item, token=None) for item in shown[: command.count]]

    # --- settling ---------------------------------------------------------------------------------

    def locked(self, path: str, token: bytes, now: int) -> Item:
        entity = self.holder(path)
        for item in entity.items:
            if item.token == token and item.until > now:
                return item
            if item.token == token and entity.has_sessions:
                raise errors.SessionLockLostError(str(item.session))
        raise errors.MessageLockLostError

    def Settle(self, command: c.Settle, now: int) -> None:
        entity = self.holder(command.path)
        comes_back = (c.Disposition.ABANDON, c.Disposition.RELEASE)
        if command.delay_ms and command.disposition not in comes_back:
            raise errors.ArgumentError
        items = [self.locked(command.path, token, now) for token in command.tokens]
        if len(set(command.tokens)) < len(items):
            raise errors.MessageLockLostError
        if command.disposition is c.Disposition.DEAD_LETTER and entity.is_dead:
            raise errors.NotAllowedError
        if command.transaction is not None:
            self.opened(command.transaction, now).append(replace(command, transaction=None))
            return
        due = now + command.delay_ms if command.delay_ms else 0
        for item in items:
            match command.disposition:
                case c.Disposition.COMPLETE:
                    entity.items.remove(item)
                case c.Disposition.DEAD_LETTER:
                    why = (command.reason, command.description, command.edits)
                    self.dead_letter(command.path, item, now, *why)
                case c.Disposition.DEFER:
                    item.edits = item.edits.then(command.edits)
                    item.state, item.token, item.until = State.DEFERRED, None, NEVER
                    item.count += 1
                case c.Disposition.ABANDON:
                    item.edits = item.edits.then(command.edits)
                    self.give_back(command.path, item, now, is_counted=True, due=due)
                case c.Disposition.RELEASE:
                    self.give_back(command.path, item, now, is_counted=False, due=due)

    def give_back(self, path: str, item: Item, now: int, *, is_counted: bool, due: int = 0) -> None:
        """A lock ends: back to its place, now or later, or dead after the last delivery."""
        entity = self.entities[path]
        was_deferred = item.state == State.DEFERRED_LOCKED
        item.state = State.DEFERRED if was_deferred else State.WAITING
        item.token, item.until = None, NEVER
        item.count += is_counted
        if due and not was_deferred:
            item.state, item.due = State.DELAYED, due
        self.goes_on(entity, item, now)
        limit = entity.asks("max_delivery_count")
        if is_counted and limit is not None and item.count >= limit:
            self.dead_letter(path, item, now, "MaxDeliveryCountExceeded")

    def expire(self, path: str, item: Item, now: int) -> None:
        if self.entities[path].asks("dead_letter_on_expiration"):
            self.dead_letter(path, item, now, "TTLExpiredException")
        else:
            self.entities[path].items.remove(item)

    def Renew(self, command: c.Renew, now: int) -> list[int]:
        if self.holder(command.path).has_sessions:
            raise errors.NotAllowedError
        items = [self.locked(command.path, token, now) for token in command.tokens]
        for item in items:
            item.until = now + self.entities[command.path].lock_ms
        return [item.until for item in items]

    def DeleteMessages(self, command: c.DeleteMessages, now: int) -> int:
        entity = self.holder(command.path)
        doomed = [
            item
            for item in sorted(entity.items, key=lambda i: i.number)
            if item.state == State.WAITING and item.enqueued < command.before_ms
            if command.session is None or item.session == command.session
        ][: command.count]
        entity.items = [item for item in entity.items if item not in doomed]
        return len(doomed)

    def Discard(self, command: c.Discard, now: int) -> None:
        entity = self.holder(command.path)
        free = (State.WAITING, State.DEFERRED, State.DELAYED, State.SCHEDULED)
        there = {item.number for item in entity.items if item.state in free}
        for number in command.sequence_numbers:
            if number not in there:
                raise errors.MessageNotFoundError(number)
        entity.items = [i for i in entity.items if i.number not in command.sequence_numbers]

    def Reactivate(self, command: c.Reactivate, now: int) -> None:
        entity = self.holder(command.path)
        if not command.sequence_numbers:
            raise errors.ArgumentError
        for number in command.sequence_numbers:
            for item in entity.items:
                if item.number == number and item.state in (State.DEFERRED, State.DELAYED):
                    break
            else:
                raise errors.MessageNotFoundError(number)
        for item in entity.items:
            if item.number in command.sequence_numbers:
                self.wait_again(command.path, item, now)

    def wait_again(self, path: str, item: Item, now: int) -> None:
        item.state, item.due = State.WAITING, NEVER
        self.goes_on(self.entities[path], item, now)

    def ChangePriority(self, command: c.ChangePriority, now: int) -> None:
        entity = self.holder(command.path)
        priority = entity.asks("priority")
        if not 0 <= command.level < (priority.levels if priority else 1):
            raise errors.ArgumentError
        self.find(entity, command.sequence_number, State.WAITING).level = command.level

    # --- sessions ---------------------------------------------------------------------------------

    def held(self, path: str, name: str | None, link: int, now: int) -> Session:
        if not self.holder(path).has_sessions:
            raise errors.NotAllowedError
        session = self.entities[path].sessions.get(str(name))
        if session is None or not link or session.link != link or session.until <= now:
            raise errors.SessionLockLostError(str(name))
        return session

    def end_session(self, path: str, name: str, now: int, *, is_counted: bool) -> None:
        entity = self.entities[path]
        entity.sessions[name].link, entity.sessions[name].until = 0, NEVER
        for item in list(entity.items):
            if item.session == name and item.is_locked:
                self.give_back(path, item, now, is_counted=is_counted)

    def lose_session(self, path: str, name: str, now: int) -> None:
        """A session's lock ran out: that counts for its messages, and its link is closed."""
        link = self.entities[path].sessions[name].link
        self.end_session(path, name, now, is_counted=True)
        self.close(link, errors.SessionLockLostError, now)

    def RenewSession(self, command: c.RenewSession, now: int) -> int:
        session = self.held(command.path, command.session, command.link, now)
        entity = self.entities[command.path]
        session.until = now + entity.settings.lock_duration_ms
        for item in entity.items:
            if item.session == command.session and item.is_locked:
                item.until = session.until
        return session.until

    def SetSessionState(self, command: c.SetSessionState, now: int) -> None:
        session = self.held(command.path, command.session, command.link, now)
        session.state, session.changed = command.state, now

    def GetSessionState(self, command: c.GetSessionState, now: int) -> bytes | None:
        return self.held(command.path, command.session, command.link, now).state

    def ListSessions(self, command: c.ListSessions, now: int) -> list[str]:
        entity = self.holder(command.path)
        if not entity.has_sessions:
            raise errors.NotAllowedError
        with_state = {n: s for n, s in entity.sessions.items() if s.state is not None}
        if command.updated_after_ms is None:
            idle = (State.DEFERRED, State.SCHEDULED, State.DELAYED)
            active = {str(i.session) for i in entity.items if i.state not in idle}
            names = active | set(with_state)
        else:
            names = {n for n, s in with_state.items() if s.changed > command.updated_after_ms}
        return sorted(names)[command.skip : command.skip + command.top]

    def CountSessions(self, command: c.CountSessions, now: int) -> tuple[int, int, int, int]:
        entity = self.holder(command.path)
        if not entity.has_sessions:
            raise errors.NotAllowedError
        locked = {name for name, session in entity.sessions.items() if session.link}
        with_state = {n for n, s in entity.sessions.items() if s.state is not None}
        names = {str(item.session) for item in entity.items}
        waiting = {str(i.session) for i in entity.items if i.state == State.WAITING}
        every = names | locked | with_state
        return len(every), len(waiting - locked), len(locked), len(with_state)

    def DeadLetterSession(self, command: c.DeadLetterSession, now: int) -> int:
        entity = self.holder(command.path)
        if not entity.has_sessions:
            raise errors.NotAllowedError
        session = entity.sessions.get(command.session, Session())
        if session.link and session.link != command.link and session.until > now:
            raise errors.SessionCannotBeLockedError(command.session)
        items = [i for i in entity.items if i.session == command.session]
        items = [i for i in items if i.state != State.SCHEDULED]
        items = sorted(items, key=lambda i: i.number)[: command.count]
        for item in items:
            self.dead_letter(command.path, item, now, command.reason, command.description)
        return len(items)

    # --- transactions -----------------------------------------------------------------------------

    def Declare(self, command: c.Declare, now: int) -> int:
        self.last_transaction += 1
        self.transactions[self.last_transaction] = (now + TRANSACTION_TIMEOUT_MS, [])
        return self.last_transaction

    def opened(self, number: int, now: int) -> list[Any]:
        """What was asked in an open transaction so far."""
        if number not in self.transactions or self.transactions[number][0] <= now:
            raise errors.TransactionUnknownError
        return self.transactions[number][1]

    def Discharge(self, command: c.Discharge, now: int) -> None:
        parts = self.opened(command.transaction, now)
        del self.transactions[command.transaction]
        if command.fail:
            self.drop_held(command.transaction)
            return
        tokens: list[bytes] = []
        cancelled: list[tuple[str, int]] = []
        dropped: list[tuple[str, int]] = []
        for part in parts:
            if isinstance(part, Held):
                dropped += self.commit_held(part, command.transaction, now)
                continue
            if isinstance(part, c.CancelScheduled):
                named = [(part.path, number) for number in part.sequence_numbers]
                cancelled += named
                if len(set(cancelled)) < len(cancelled):
                    raise errors.NotAllowedError
                left = [number for path, number in named if (path, number) not in dropped]
                part = replace(part, sequence_numbers=left)
            tokens += getattr(part, "tokens", ())
            if len(set(tokens)) < len(tokens):
                raise errors.NotAllowedError
            getattr(self, type(part).__name__)(part, now)

    def commit_held(self, part: Held, transaction: int, now: int) -> list[tuple[str, int]]:
        """What was held is accepted now, unless its id came from elsewhere meanwhile: such are
        dropped, and named."""
        entity, dropped = self.at(part.path), []
        if entity.identity is not part.entity:
            raise errors.EntityNotFoundError(part.path)
        for item in list(entity.items):
            if item.number not in part.numbers or item.held != transaction:
                continue
            item.held = None
            if self.is_duplicate(entity, item.message, now):
                entity.items.remove(item)
                dropped.append((part.path, item.number))
        return dropped

    def forget(self, number: int) -> None:
        del self.transactions[number]
        self.drop_held(number)

    def drop_held(self, transaction: int | None) -> None:
        """What was scheduled in a transaction that was not committed is cancelled; None: in any."""
        for entity in self.entities.values():
            entity.items = [
                item
                for item in entity.items
                if item.held is None or transaction not in (None, item.held)
            ]

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now: int) -> Answer:
        """All that is due by now, in the order of its time. What goes on from here to another
        entity must be read from the disk first, so receivers are served before it arrives."""
        self.answer = Answer()
        while True:
            while events := [event for event in self.events(now) if event[0] <= now]:
                min(events, key=lambda event: event[0])[1]()
            self.serve(now)
            waiting = [
                path
                for path, each in self.entities.items()
                if each.fresh or (each.passes_on and each.passes_on_at <= now)
            ]
            if not waiting:
                return self.answer
            self.pass_all_on(waiting[0], now)

    def next_deadline(self) -> int:
        ends = [event[0] for event in self.events(0)]
        for entity in self.entities.values():
            if entity.passes_on and any(item.state == State.WAITING for item in entity.items):
                ends.append(0 if entity.fresh else entity.passes_on_at)
        return min(ends, default=NEVER)

    def events(self, now: int) -> Iterator[tuple[int, Callable[[], None]]]:
        """Whatever a clock will do, and when."""
        for path, entity in self.entities.items():
            for name, session in entity.sessions.items():
                if session.link:
                    yield session.until, partial(self.lose_session, path, name, now)
            for item in entity.items:
                if item.state == State.SCHEDULED and item.held is None:
                    yield item.due, partial(self.activate, path, item, now)
                elif item.state == State.DELAYED:
                    yield item.due, partial(self.wait_again, path, item, now)
                elif item.state == State.WAITING:
                    yield item.expires, partial(self.expire, path, item, now)
                elif item.is_locked and not entity.has_sessions:
                    give_back = partial(self.give_back, path, item, now, is_counted=True)
                    yield item.until, give_back
        for number, link in self.links.items():
            if link.session is c.NEXT_SESSION:
                timeout = errors.OperationTimeoutError
                yield link.deadline, partial(self.close, number, timeout, now)
        for transaction, (deadline, _) in self.transactions.items():
            yield deadline, partial(self.forget, transaction)

    def activate(self, path: str, item: Item, now: int) -> None:
        """A scheduled message is appended as if sent at its time, at the level it had."""
        entity = self.entities[path]
        entity.items.remove(item)
        active = self.append(entity, item.message, item.due, item.edits, item.hops)
        active.level = item.level
        entity.passes_on_at = now

    def restart(self, now: int) -> Answer:
        """A crash and the recovery from it: every lock ends, and counts as a delivery."""
        self.answer = Answer()
        self.links.clear()
        self.transactions.clear()
        self.drop_held(None)
        self.last_transaction = 0
        for path, entity in list(self.entities.items()):
            entity.hungry.clear()
            entity.passes_on_at = now
            for session in entity.sessions.values():
                session.link, session.until = 0, NEVER
            for item in list(entity.items):
                if item.is_locked:
                    self.give_back(path, item, now, is_counted=True)
        for entity in self.entities.values():
            entity.fresh.clear()  # all go on
        return self.answer
