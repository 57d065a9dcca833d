"""A namespace said in the plainest way: the judge of `tandem.core`.

Plain dicts and lists, every question answered by looking at everything, no timers, no packing, no
log. Where core and this page differ, one of them is wrong, and this one is short enough to be read.
It takes core's own commands, so that both get the same; lock tokens are its own, because core makes
its tokens from nonces. The rule: no import from core but its words.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from tandem import errors
from tandem.changes import EntityKind, Mode
from tandem.core import commands as c
from tandem.core.state import State
from tandem.limits import MAX_FORWARD_HOPS, TRANSACTION_TIMEOUT_MS
from tandem.model import NEVER, NO_EDITS, PING_CONTENT_TYPE, Edits, Message, Value
from tandem.settings import DEAD_LETTER, SUBSCRIPTIONS

LockToken: TypeAlias = bytes
Selects: TypeAlias = Callable[[Mapping[str, Value]], bool]
FREE = (State.WAITING, State.DEFERRED, State.SCHEDULED)


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
    edits: Edits = NO_EDITS
    state: State = State.WAITING
    due: int = NEVER
    count: int = 0
    token: LockToken | None = None
    until: int = NEVER


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
    hungry: list[int] = field(
        default_factory=list
    )  # links with credit, the next to be served first

    @property
    def has_sessions(self) -> bool:
        return self.kind != EntityKind.DEAD_LETTER and bool(
            getattr(self.settings, "requires_session", False)
        )


@dataclass
class Answer:
    reply: object = None
    delivered: dict[int, list[Item]] = field(default_factory=dict)
    granted: dict[int, tuple[str, int]] = field(default_factory=dict)
    closed: dict[int, type[errors.Refused]] = field(default_factory=dict)


class Model:
    def __init__(self, meanings: Mapping[str, tuple[Selects, Edits | None]] | None = None) -> None:
        self.meanings = meanings or {}  # what a rule selects, and its action, by the rule's name
        self.entities: dict[str, Entity] = {}
        self.links: dict[int, Link] = {}  # in the order of attaching
        self.transactions: dict[int, tuple[int, list[Any]]] = {}
        self.prefer: dict[int, str] = {}  # which of several free sessions a link is to get
        self.last_transaction = self.last_token = 0
        self.answer = Answer()

    def apply(self, command: c.Command, now: int) -> Answer:
        """The answer; or a `Refused`, and nothing has changed."""
        before = self.saved()
        self.answer = Answer()
        try:
            self.answer.reply = getattr(self, type(command).__name__)(command, now)
        except errors.Refused:
            self.__dict__.update(before)
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
        transactions = {n: (end, list(parts)) for n, (end, parts) in self.transactions.items()}
        return {
            **self.__dict__,
            "entities": entities,
            "links": links,
            "transactions": transactions,
        }

    # --- entities ---------------------------------------------------------------------------------

    def at(self, path: str) -> Entity:
        if path not in self.entities:
            raise errors.EntityNotFoundError(path)
        return self.entities[path]

    def create(self, path: str, entity: Entity) -> None:
        if path in self.entities:
            raise errors.EntityExistsError(path)
        self.entities[path] = entity
        if entity.kind != EntityKind.TOPIC:
            dead = Entity(EntityKind.DEAD_LETTER, entity.settings, path)
            self.entities[f"{path}/{DEAD_LETTER}"] = dead

    def CreateQueue(self, command: c.CreateQueue, now: int) -> None:
        self.create(command.path, Entity(EntityKind.QUEUE, command.settings))

    def CreateTopic(self, command: c.CreateTopic, now: int) -> None:
        self.create(command.path, Entity(EntityKind.TOPIC, command.settings))

    def CreateSubscription(self, command: c.CreateSubscription, now: int) -> None:
        self.at(command.topic)
        path = f"{command.topic}/{SUBSCRIPTIONS}/{command.name}"
        self.create(path, Entity(EntityKind.SUBSCRIPTION, command.settings, command.topic))
        name = "$Default" if command.rule is None else command.rule.name
        self.entities[path].rules[name] = self.meanings[name]

    def UpdateEntity(self, command: c.UpdateEntity, now: int) -> None:
        entity = self.at(command.path)
        entity.settings = command.settings
        dead = self.entities.get(f"{command.path}/{DEAD_LETTER}")
        if dead is not None:
            dead.settings = command.settings
        for item in list(entity.items):
            if item.state == State.WAITING:
                self.forward(command.path, item, now)

    def DeleteEntity(self, command: c.DeleteEntity, now: int) -> None:
        self.at(command.path)
        for path in list(self.entities):
            if path == command.path or path.startswith(command.path + "/"):
                del self.entities[path]
        for number, link in list(self.links.items()):
            if link.path not in self.entities:
                self.close(number, errors.EntityNotFoundError)

    def AddRule(self, command: c.AddRule, now: int) -> None:
        rules = self.at(command.path).rules
        if command.rule.name in rules:
            raise errors.EntityExistsError(command.rule.name)
        rules[command.rule.name] = self.meanings[command.rule.name]

    def RemoveRule(self, command: c.RemoveRule, now: int) -> None:
        if self.at(command.path).rules.pop(command.name, None) is None:
            raise errors.EntityNotFoundError(command.name)

    # --- sending ----------------------------------------------------------------------------------

    def Send(self, command: c.Send, now: int) -> object:
        entity = self.at(command.path)
        if entity.kind not in (EntityKind.QUEUE, EntityKind.TOPIC):
            raise errors.NotAllowedError
        if not entity.settings.status.allows_send:
            raise errors.EntityDisabledError(command.path)
        for message in command.messages:
            if len(message.payload) > entity.settings.max_message_size_kb * 1024:
                raise errors.MessageSizeExceededError
            if entity.has_sessions and message.session_id is None:
                raise errors.NotAllowedError
        if command.transaction is not None:
            return self.remember(command, now)
        return [self.arrive(command.path, m, now, now) for m in command.messages]

    def arrive(
        self,
        path: str,
        message: Message,
        now: int,
        time: int,
        edits: Edits = NO_EDITS,
        hops: int = 0,
        due: int | None = None,
    ) -> int:
        """A message comes in. `due`: when it was to become active, if it was scheduled here."""
        entity = self.entities[path]
        if message.content_type == PING_CONTENT_TYPE:
            return 0
        if due is None and self.is_duplicate(entity, message, now):
            return 0
        entity.last_number += 1
        enqueued = max(time, entity.last_enqueued)
        item = Item(
            entity.last_number,
            message,
            message.session_id if entity.has_sessions else None,
            enqueued,
            self.expires(entity, message, enqueued),
            self.level(entity, message),
            hops,
            edits,
        )
        if message.scheduled_ms is not None and message.scheduled_ms > now:
            item.state, item.due, item.expires = State.SCHEDULED, message.scheduled_ms, NEVER
            item.enqueued = item.due
            entity.items.append(item)
            return item.number
        entity.last_enqueued = enqueued
        if entity.kind == EntityKind.TOPIC:
            self.publish(path, item, now)
        else:
            entity.items.append(item)
            self.forward(path, item, now)
        return item.number

    def is_duplicate(self, entity: Entity, message: Message, now: int) -> bool:
        if not getattr(entity.settings, "requires_duplicate_detection", False):
            return False
        if entity.kind == EntityKind.DEAD_LETTER or message.message_id is None:
            return False
        seen = entity.seen.get(message.message_id)
        if seen is not None and now < seen + entity.settings.duplicate_window_ms:
            return True
        entity.seen[message.message_id] = now
        return False

    def expires(self, entity: Entity, message: Message, enqueued: int) -> int:
        ttl = NEVER if message.ttl_ms is None else message.ttl_ms
        ttl = min(ttl, entity.settings.default_ttl_ms)
        if entity.kind == EntityKind.SUBSCRIPTION:
            ttl = min(ttl, self.entities[entity.owner].settings.default_ttl_ms)
        return NEVER if ttl == NEVER else enqueued + ttl

    def level(self, entity: Entity, message: Message) -> int:
        priority = getattr(entity.settings, "priority", None)
        if priority is None or entity.kind == EntityKind.DEAD_LETTER:
            return 0
        assert priority.source == "header"
        assert message.priority is not None
        return int(message.priority * priority.levels // 10)

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
                self.arrive(path, item.message, now, item.enqueued, edits, item.hops)

    def forward(self, path: str, item: Item, now: int) -> None:
        """Sends a waiting message on, if its queue does that."""
        source = self.entities[path]
        target = getattr(source.settings, "forward_to", None)
        if source.has_sessions and item.session is None:
            self.dead_letter(path, item, now, "Session ID is null")
        elif target is None or source.kind == EntityKind.DEAD_LETTER or item.state != State.WAITING:
            return
        elif item.hops == MAX_FORWARD_HOPS:
            self.dead_letter(path, item, now, "MaxTransferHopCountExceeded")
        elif target not in self.entities or not self.entities[target].settings.status.allows_send:
            self.dead_letter(path, item, now, "?")
        else:
            source.items.remove(item)
            self.arrive(target, item.message, now, now, item.edits, item.hops + 1)

    def dead_letter(
        self,
        path: str,
        item: Item,
        now: int,
        reason: str | None,
        description: str | None = None,
        edits: Edits = NO_EDITS,
    ) -> None:
        entity = self.entities[path]
        entity.items.remove(item)
        texts = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        item.edits = item.edits.then(edits).then(
            Edits({name: text for name, text in texts.items() if text is not None})
        )
        target = entity.settings.forward_dead_letters_to
        if target in self.entities and self.entities[target].settings.status.allows_send:
            self.arrive(target, item.message, now, now, item.edits, item.hops + 1)
            return
        item.state, item.token, item.until, item.expires = State.WAITING, None, NEVER, NEVER
        item.level, item.session = 0, None
        self.entities[f"{path}/{DEAD_LETTER}"].items.append(item)

    def CancelScheduled(self, command: c.CancelScheduled, now: int) -> None:
        entity = self.at(command.path)
        for number in command.sequence_numbers:
            entity.items.remove(self.find(entity, number, State.SCHEDULED))

    def find(self, entity: Entity, number: int, state: State) -> Item:
        for item in entity.items:
            if item.number == number and item.state == state:
                return item
        raise errors.MessageNotFoundError(number)

    # --- receiving --------------------------------------------------------------------------------

    def Attach(self, command: c.Attach, now: int) -> object:
        entity = self.at(command.path)
        if entity.kind == EntityKind.TOPIC or entity.has_sessions == (command.session is None):
            raise errors.NotAllowedError
        if not entity.settings.status.allows_receive:
            raise errors.EntityDisabledError(command.path)
        link = Link(command.path, command.mode, command.session)
        self.links[command.link] = link
        if command.session is None:
            return (None, 0)
        if command.session is c.NEXT_SESSION:
            link.deadline = now + command.timeout_ms
            self.grant(now)
            return self.answer.granted.pop(command.link, None)
        return self.lock_session(command.link, str(command.session), now)

    def lock_session(self, number: int, session_id: str, now: int) -> tuple[str, int]:
        link = self.links[number]
        entity = self.entities[link.path]
        session = entity.sessions.setdefault(session_id, Session())
        if session.link:
            raise errors.SessionCannotBeLockedError(session_id)
        session.link, session.until = number, now + entity.settings.lock_duration_ms
        link.session, link.deadline = session_id, NEVER
        return (session_id, session.until)

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
                item = self.best(link, now)
                in_vain = 0 if item is not None else in_vain + 1
                if item is not None:
                    link.credit -= 1
                    self.hand_out(path, item, link.mode, now)
                    self.answer.delivered.setdefault(number, []).append(copy.copy(item))
                if link.credit:
                    entity.hungry.append(number)

    def best(self, link: Link, now: int) -> Item | None:
        entity = self.entities[link.path]
        waiting = [
            item
            for item in entity.items
            if item.state == State.WAITING and item.expires > now
            if not entity.has_sessions or item.session == link.session
        ]
        return min(waiting, key=lambda i: (-self.urgency(entity, i, now), i.number), default=None)

    def urgency(self, entity: Entity, item: Item, now: int) -> int:
        """The level, raised by waiting."""
        priority = getattr(entity.settings, "priority", None)
        if priority is None or entity.kind == EntityKind.DEAD_LETTER:
            return 0
        aged = (now - item.enqueued) // (priority.aging_ms_per_level or NEVER)
        return int(min(priority.levels - 1, item.level + max(0, aged)))

    def hand_out(self, path: str, item: Item, mode: Mode, now: int) -> None:
        entity = self.entities[path]
        if mode == Mode.RECEIVE_AND_DELETE:
            entity.items.remove(item)
            return
        is_deferred = item.state == State.DEFERRED
        item.state = State.DEFERRED_LOCKED if is_deferred else State.LOCKED
        self.last_token += 1
        item.token = self.last_token.to_bytes(16, "big")
        item.until = now + entity.settings.lock_duration_ms
        if entity.has_sessions:
            item.until = entity.sessions[str(item.session)].until

    def Flow(self, command: c.Flow, now: int) -> object:
        if command.link not in self.links:
            raise errors.EntityNotFoundError(str(command.link))
        link = self.links[command.link]
        hungry = self.entities[link.path].hungry
        link.credit = command.credit
        if link.credit and command.link not in hungry:
            hungry.append(command.link)
        elif not link.credit and command.link in hungry:
            hungry.remove(command.link)
        self.serve(now)
        if not command.drain:
            return None
        link.credit, unused = 0, link.credit
        if unused:
            hungry.remove(command.link)
        return unused

    def Detach(self, command: c.Detach, now: int) -> None:
        if command.link in self.links:
            link = self.drop(command.link)
            if isinstance(link.session, str):
                self.end_session(link.path, link.session, now, is_counted=False)

    def drop(self, number: int) -> Link:
        link = self.links.pop(number)
        for entity in self.entities.values():
            entity.hungry = [other for other in entity.hungry if other != number]
        return link

    def ReceiveDeferred(self, command: c.ReceiveDeferred, now: int) -> object:
        entity = self.at(command.path)
        if entity.has_sessions:
            self.held(command.path, command.session, command.link, now)
        items = [self.find(entity, n, State.DEFERRED) for n in command.sequence_numbers]
        for item in items:
            self.hand_out(command.path, item, command.mode, now)
        return [copy.copy(item) for item in items]

    def Browse(self, command: c.Browse, now: int) -> object:
        shown = [
            item
            for item in sorted(self.at(command.path).items, key=lambda i: i.number)
            if item.number >= command.from_sequence_number
            if command.session is None or item.session == command.session
        ]
        return shown[: command.count]

    # --- settling ---------------------------------------------------------------------------------

    def locked(self, path: str, token: LockToken, now: int) -> Item:
        entity = self.at(path)
        for item in entity.items:
            if item.token == token and item.until > now:
                return item
            if item.token == token and entity.has_sessions:
                raise errors.SessionLockLostError(str(item.session))
        raise errors.MessageLockLostError

    def Settle(self, command: c.Settle, now: int) -> None:
        entity = self.at(command.path)
        items = [self.locked(command.path, token, now) for token in command.tokens]
        if command.transaction is not None:
            self.remember(command, now)
            return
        is_dead = entity.kind == EntityKind.DEAD_LETTER
        if command.disposition is c.Disposition.DEAD_LETTER and is_dead:
            raise errors.NotAllowedError
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
                case c.Disposition.ABANDON:
                    item.edits = item.edits.then(command.edits)
                    self.give_back(command.path, item, now, is_counted=True)
                case c.Disposition.RELEASE:
                    self.give_back(command.path, item, now, is_counted=False)

    def give_back(self, path: str, item: Item, now: int, *, is_counted: bool) -> None:
        """A lock ends: back to its place, or dead-lettered after the last delivery, or expired."""
        entity = self.entities[path]
        was_deferred = item.state == State.DEFERRED_LOCKED
        item.state = State.DEFERRED if was_deferred else State.WAITING
        item.token, item.until = None, NEVER
        item.count += is_counted
        is_dead = entity.kind == EntityKind.DEAD_LETTER
        if is_counted and not is_dead and item.count >= entity.settings.max_delivery_count:
            self.dead_letter(path, item, now, "MaxDeliveryCountExceeded")
        elif item.expires <= now and not was_deferred:
            self.expire(path, item, now)
        else:
            self.forward(path, item, now)

    def expire(self, path: str, item: Item, now: int) -> None:
        if self.entities[path].settings.dead_letter_on_expiration:
            self.dead_letter(path, item, now, "TTLExpiredException")
        else:
            self.entities[path].items.remove(item)

    def Renew(self, command: c.Renew, now: int) -> object:
        items = [self.locked(command.path, token, now) for token in command.tokens]
        for item in items:
            item.until = now + self.entities[command.path].settings.lock_duration_ms
        return [item.until for item in items]

    def DeleteMessages(self, command: c.DeleteMessages, now: int) -> int:
        entity = self.at(command.path)
        doomed = [
            item
            for item in sorted(entity.items, key=lambda i: i.number)
            if item.state == State.WAITING and item.enqueued < command.before_ms
            if command.session is None or item.session == command.session
        ][: command.count]
        entity.items = [item for item in entity.items if item not in doomed]
        return len(doomed)

    def ChangePriority(self, command: c.ChangePriority, now: int) -> None:
        entity = self.at(command.path)
        priority = getattr(entity.settings, "priority", None)
        is_plain = priority is None or entity.kind == EntityKind.DEAD_LETTER
        if not 0 <= command.level < (1 if is_plain else priority.levels):
            raise errors.ArgumentError
        self.find(entity, command.sequence_number, State.WAITING).level = command.level

    # --- sessions ---------------------------------------------------------------------------------

    def held(self, path: str, session_id: str | None, link: int, now: int) -> Session:
        session = self.at(path).sessions.get(str(session_id))
        if session is None or session.link != link or session.until <= now:
            raise errors.SessionLockLostError(str(session_id))
        return session

    def end_session(self, path: str, session_id: str, now: int, *, is_counted: bool) -> None:
        entity = self.entities[path]
        session = entity.sessions[session_id]
        session.link, session.until = 0, NEVER
        for item in list(entity.items):
            if item.session == session_id and item.state not in FREE:
                self.give_back(path, item, now, is_counted=is_counted)

    def RenewSession(self, command: c.RenewSession, now: int) -> int:
        session = self.held(command.path, command.session, command.link, now)
        entity = self.entities[command.path]
        session.until = now + entity.settings.lock_duration_ms
        for item in entity.items:
            if item.session == command.session and item.state not in FREE:
                item.until = session.until
        return session.until

    def SetSessionState(self, command: c.SetSessionState, now: int) -> None:
        session = self.held(command.path, command.session, command.link, now)
        session.state, session.changed = command.state, now

    def GetSessionState(self, command: c.GetSessionState, now: int) -> object:
        return self.held(command.path, command.session, command.link, now).state

    def ListSessions(self, command: c.ListSessions, now: int) -> object:
        entity = self.at(command.path)
        with_state = {n: s for n, s in entity.sessions.items() if s.state is not None}
        if command.updated_after_ms is None:
            active = {i.session for i in entity.items if i.state in (State.WAITING, State.LOCKED)}
            names = {str(name) for name in active} | set(with_state)
        else:
            names = {n for n, s in with_state.items() if s.changed > command.updated_after_ms}
        return sorted(names)[command.skip : command.skip + command.top]

    # --- transactions -----------------------------------------------------------------------------

    def Declare(self, command: c.Declare, now: int) -> int:
        self.last_transaction += 1
        self.transactions[self.last_transaction] = (now + TRANSACTION_TIMEOUT_MS, [])
        return self.last_transaction

    def remember(self, command: c.Send | c.Settle, now: int) -> object:
        if command.transaction not in self.transactions:
            raise errors.ArgumentError
        later = copy.copy(command)
        later.transaction = None
        self.transactions[command.transaction][1].append(later)
        return None

    def Discharge(self, command: c.Discharge, now: int) -> None:
        if command.transaction not in self.transactions:
            raise errors.ArgumentError
        _, remembered = self.transactions.pop(command.transaction)
        for part in () if command.fail else remembered:
            getattr(self, type(part).__name__)(part, now)

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now: int) -> Answer:
        """All that is due by now, in the order of its time."""
        self.answer = Answer()
        self.pass_time(now)
        self.serve(now)
        return self.answer

    def pass_time(self, now: int) -> None:
        while events := [event for event in self.events(now) if event[0] <= now]:
            min(events, key=lambda event: event[0])[1]()

    def next_deadline(self) -> int:
        return min((event[0] for event in self.events(0)), default=NEVER)

    def events(self, now: int) -> Iterator[tuple[int, Callable[[], None]]]:
        """Whatever a clock will do, and when."""
        for path, entity in self.entities.items():
            for name, session in entity.sessions.items():
                if session.link:
                    yield session.until, partial(self.lose_session, path, name, now)
            for item in entity.items:
                if item.state == State.SCHEDULED:
                    yield item.due, partial(self.activate, path, item, now)
                elif item.state == State.WAITING:
                    yield item.expires, partial(self.expire, path, item, now)
                elif item.state != State.DEFERRED and not entity.has_sessions:
                    yield item.until, partial(self.give_back, path, item, now, is_counted=True)
        for number, link in self.links.items():
            if link.session is c.NEXT_SESSION:
                yield link.deadline, partial(self.close, number, errors.OperationTimeoutError)
        for transaction, (deadline, _) in self.transactions.items():
            yield deadline, partial(self.forget, transaction)

    def lose_session(self, path: str, name: str, now: int) -> None:
        self.close(self.entities[path].sessions[name].link, errors.SessionLockLostError)
        self.end_session(path, name, now, is_counted=True)

    def close(self, number: int, error: type[errors.Refused]) -> None:
        self.drop(number)
        self.answer.closed[number] = error

    def activate(self, path: str, item: Item, now: int) -> None:
        self.entities[path].items.remove(item)
        self.arrive(path, item.message, now, item.due, item.edits, item.hops, due=item.due)

    def forget(self, transaction: int) -> None:
        del self.transactions[transaction]

    def restart(self, now: int) -> Answer:
        """A crash and the recovery from it: every lock ends, and counts as a delivery."""
        for number in list(self.links):
            self.drop(number)
        self.transactions.clear()
        for path, entity in list(self.entities.items()):
            for session in entity.sessions.values():
                session.link, session.until = 0, NEVER
            for item in list(entity.items):
                if item.state not in FREE:
                    self.give_back(path, item, now, is_counted=True)
        return self.tick(now)
