"""A namespace that a test drives by hand: a clock that stands still until it is moved, links that
are numbered by themselves, and every change kept, so that the namespace can be made again from
them.

Messages are real payloads. After each command the world checks what must always hold: the counts
of an entity are the counts of its messages, and a body is freed when, and only when, its last
holder is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from tandembus.amqp.message import DATA, AmqpMessage, edited, encode_message, sections
from tandembus.changes import Change, Enqueued, Mode, decode_edits
from tandembus.core.commands import (
    NEXT_SESSION,
    AddRule,
    Attach,
    Browse,
    CancelScheduled,
    Command,
    CreateQueue,
    CreateSubscription,
    CreateTopic,
    DeleteEntity,
    Detach,
    Disposition,
    Flow,
    Loaded,
    NextSession,
    ReceiveDeferred,
    Renew,
    Send,
    Settle,
    UpdateEntity,
)
from tandembus.core.cursors import Cursors
from tandembus.core.effects import (
    Attached,
    Deliver,
    Delivery,
    LinkClosed,
    Load,
    Outcome,
    SessionGranted,
)
from tandembus.core.namespace import Namespace
from tandembus.core.queue import Queue
from tandembus.core.rules import Rule, RuleFilter, SqlAction, SqlFilter
from tandembus.core.state import State
from tandembus.errors import Refused
from tandembus.model import Edits, LargePayload, Message, Millis, Value
from tandembus.settings import QueueSettings, SubscriptionSettings, TopicSettings

START: Final = 1_700_000_000_000
SECOND: Final = 1_000
MINUTE: Final = 60_000
HOUR: Final = 3_600_000

_ALL: Final = 1 << 30
_INDEX_EVERY: Final = 4
"""An index is taken after so many commands; what came later is the tail of a recovery."""
_MOST_CHECKED: Final = 300
"""Larger worlds are not checked after each command: it would take longer than the test."""
_MARKS: Final = frozenset({"EnqueuedSequenceNumber", "DeadLetterSource"})
"""Edits that are annotations of a delivery, and not in the payload."""


def message(body: str | bytes | None = b"", **fields: Any) -> AmqpMessage:
    """A message as a client sends it; `fields` are those of `encode_message`."""
    return AmqpMessage(encode_message(body=body, **fields))


class _Long(bytes):
    """Bytes that say they are many."""

    length = 0

    def __len__(self) -> int:
        return self.length


def heavy(size: int, **fields: Any) -> AmqpMessage:
    """A message that counts as `size` bytes without having them."""
    made = message(**fields)
    payload = _Long(made.payload)
    payload.length = size
    made.payload = payload
    return made


def rule(name: str, description: RuleFilter | str, action: str | None = None) -> Rule:
    """A rule; a text is a SQL filter."""
    if isinstance(description, str):
        description = SqlFilter(description)
    return Rule(name, description, None if action is None else SqlAction(action), START)


class Seen(NamedTuple):
    """A delivered message as its receiver reads it."""

    body: str
    properties: Mapping[str, Value]
    message: AmqpMessage
    marks: Mapping[str, Value]
    """Broker's annotations of a forwarded message."""


class World:
    def __init__(self, *, restarts: bool = False) -> None:
        self.namespace = Namespace()
        self.now: Millis = START
        self.changes: list[Change] = []
        """Everything since the beginning, over all restarts."""
        self.delivered: dict[int, list[Delivery]] = {}
        """By link, what was not asked for yet."""
        self.granted: list[SessionGranted] = []
        self.closed: list[LinkClosed] = []
        self.loads: list[Load] = []
        """Unanswered ones."""
        self.answers_loads = True
        self.payloads: dict[int, bytes] = {}
        self.freed: set[int] = set()
        self._restarts = restarts
        self._lives = 0
        self._commands = 0
        self._links = 0
        self._receivers: dict[tuple[str, Mode], int] = {}
        self._random = Random(1)  # the nonces need not be secret here
        self._index = (b"".join(self.namespace.dump()), 0)

    # --- commands and time ------------------------------------------------------------------------

    def do(self, command: Command) -> Any:
        """The reply."""
        return self._collect(self.namespace.apply(command, self.now))

    def refused(self, kind: type[Refused], command: Command, match: str | None = None) -> Refused:
        """The command is refused so, and nothing that can be seen has changed."""
        before = facts(self.namespace)
        with pytest.raises(kind, match=match) as caught:
            self.do(command)
        assert facts(self.namespace) == before
        return caught.value

    def tick(self, advance_ms: Millis = 0) -> None:
        """The clock jumps, then the broker looks at it, once."""
        self.now += advance_ms
        self._collect(self.namespace.tick(self.now))

    def wait(self, ms: Millis) -> None:
        """Time passes on an idle broker: it ticks at each of its deadlines."""
        until = self.now + ms
        steps = 0
        while (deadline := self.namespace.next_deadline()) <= until:
            self.now = max(self.now, deadline)
            self.tick()
            steps += 1
            assert steps < 500, "the broker is never done"
        self.now = until

    def settle_down(self) -> None:
        """What is due now is done."""
        self.wait(0)

    def _collect(self, outcome: Outcome) -> Any:
        self.changes += outcome.changes
        for change in outcome.changes:
            if isinstance(change, Enqueued) and change.payload is not None:
                assert change.body not in self.payloads, "a body's number is used once"
                assert not isinstance(change.payload, LargePayload)
                self.payloads[change.body] = bytes(change.payload)  # of `heavy` ones, what is there
        for body in self.namespace.freed:
            assert body not in self.freed, "a body is freed once"
            self.freed.add(body)
        self.namespace.freed.clear()
        self._commands += 1
        entities = self.namespace.entities
        if len(entities) <= _MOST_CHECKED >= sum(sum(queue.counts) for queue in entities):
            self._check()
            if self._commands % _INDEX_EVERY == 0:
                self._index = (b"".join(self.namespace.dump()), len(self.changes))
        for effect in outcome.effects:
            match effect:
                case Deliver():
                    self.delivered.setdefault(effect.link, []).extend(effect.deliveries)
                case SessionGranted():
                    self.granted.append(effect)
                case LinkClosed():
                    self.closed.append(effect)
                    self._forget(effect.link)
                case Load():
                    self.loads.append(effect)
        while self.answers_loads and self.loads:
            self.answer_load()
        return outcome.reply

    def _forget(self, link: int) -> None:
        self._receivers = {key: own for key, own in self._receivers.items() if own != link}

    def _check(self) -> None:
        alive: set[int] = set()
        for queue in self.namespace.entities:
            shown = queue.browse(0, _ALL, None)
            alive.update(queue.every_body())
            tally = Counter(int(delivery.state) for delivery in shown)
            assert queue.counts == [tally[state] for state in range(len(State))], queue.path
        assert alive == self.payloads.keys() - self.freed

    def answer_load(self) -> None:
        """Read the stored messages that the oldest `Load` asks for."""
        load = self.loads.pop(0)
        stored = {number: AmqpMessage(self.payloads[body]) for number, body in load.bodies.items()}
        self.do(Loaded(load.entity, stored))

    # --- entities ---------------------------------------------------------------------------------

    def queue(self, path: str = "q", *, origin: int = 0, **settings: Any) -> str:
        self.do(CreateQueue(path, QueueSettings(**settings), origin))
        return path

    def topic(self, path: str = "t", **settings: Any) -> str:
        self.do(CreateTopic(path, TopicSettings(**settings)))
        return path

    def subscription(
        self, topic: str, name: str, first_rule: Rule | None = None, **settings: Any
    ) -> str:
        self.do(CreateSubscription(topic, name, SubscriptionSettings(**settings), first_rule))
        return f"{topic}/Subscriptions/{name}"

    def add_rule(self, path: str, added: Rule) -> None:
        self.do(AddRule(path, added))

    def update(self, path: str, **settings: Any) -> None:
        self.do(UpdateEntity(path, replace(self.namespace.find(path).settings, **settings)))

    def delete(self, path: str) -> None:
        self.do(DeleteEntity(path))

    def __getitem__(self, path: str) -> Queue:
        return self.namespace.find(path)

    # --- messages ---------------------------------------------------------------------------------

    def send(self, path: str, *what: str | Message, **fields: Any) -> list[int]:
        """Sent as one batch. Texts become messages with these fields. Their sequence numbers."""
        return list(self.do(self.sending(path, *what, **fields)))

    def sending(
        self, path: str, *what: str | Message, transaction: int | None = None, **fields: Any
    ) -> Send:
        messages = [message(each, **fields) if isinstance(each, str) else each for each in what]
        return Send(path, messages, transaction=transaction)

    def schedule(self, path: str, *bodies: str, after_ms: Millis, **fields: Any) -> list[int]:
        return self.send(path, *bodies, scheduled_ms=self.now + after_ms, **fields)

    def cancel(self, path: str, *numbers: int) -> None:
        self.do(CancelScheduled(path, numbers))

    def attach(
        self,
        path: str,
        mode: Mode = Mode.PEEK_LOCK,
        session: str | NextSession | None = None,
        timeout_ms: Millis = 65_000,
    ) -> int:
        """A new receiving link; its number."""
        self._links += 1
        self.do(Attach(self._links, path, mode, session, timeout_ms))
        return self._links

    def accept_session(self, path: str, session: str | NextSession = NEXT_SESSION) -> Accepted:
        """A new link that holds a session at once."""
        self._links += 1
        attached = self.do(Attach(self._links, path, session=session))
        assert isinstance(attached, Attached)
        assert attached.session_id is not None
        return Accepted(self._links, attached.session_id, attached.locked_until_ms)

    def detach(self, link: int) -> None:
        self.do(Detach(link))

    def offer(self, link: int, credit: int) -> None:
        """Credit that stays until it is used."""
        self.do(Flow(link, credit, self._random.getrandbits(64)))

    def take(self, link: int, count: int = 1) -> list[Delivery]:
        """Up to `count` messages that can be had at once."""
        self.do(Flow(link, count, self._random.getrandbits(64), drain=True))
        return self.arrived(link)

    def arrived(self, link: int) -> list[Delivery]:
        return self.delivered.pop(link, [])

    def receive(self, path: str, count: int = 1, mode: Mode = Mode.PEEK_LOCK) -> list[Delivery]:
        """On the world's own link to that entity."""
        if (path, mode) not in self._receivers:
            self._receivers[path, mode] = self.attach(path, mode)
        return self.take(self._receivers[path, mode], count)

    def receive_one(self, path: str) -> Delivery:
        (delivery,) = self.receive(path)
        return delivery

    def receive_deferred(
        self,
        path: str,
        *numbers: int,
        mode: Mode = Mode.PEEK_LOCK,
        session: str | None = None,
        link: int = 0,
    ) -> list[Delivery]:
        return list(
            self.do(self.receiving_deferred(path, *numbers, session=session, link=link, mode=mode))
        )

    def receiving_deferred(
        self,
        path: str,
        *numbers: int,
        mode: Mode = Mode.PEEK_LOCK,
        session: str | None = None,
        link: int = 0,
    ) -> ReceiveDeferred:
        return ReceiveDeferred(path, numbers, self._random.getrandbits(64), mode, session, link)

    def browse(
        self, path: str, start: int = 0, count: int = 250, session: str | None = None
    ) -> list[Delivery]:
        return list(self.do(Browse(path, start, count, session)))

    # --- settling ---------------------------------------------------------------------------------

    def complete(self, path: str, *deliveries: Delivery) -> None:
        self.do(settling(path, Disposition.COMPLETE, *deliveries))

    def abandon(self, path: str, *deliveries: Delivery, edits: Edits | None = None) -> None:
        self.do(settling(path, Disposition.ABANDON, *deliveries, edits=edits))

    def defer(self, path: str, *deliveries: Delivery, edits: Edits | None = None) -> None:
        self.do(settling(path, Disposition.DEFER, *deliveries, edits=edits))

    def release(self, path: str, *deliveries: Delivery) -> None:
        self.do(settling(path, Disposition.RELEASE, *deliveries))

    def dead_letter(
        self,
        path: str,
        *deliveries: Delivery,
        reason: str | None = None,
        description: str | None = None,
        edits: Edits | None = None,
    ) -> None:
        command = settling(path, Disposition.DEAD_LETTER, *deliveries, edits=edits)
        command.reason, command.description = reason, description
        self.do(command)

    def renew(self, path: str, *deliveries: Delivery) -> list[Millis]:
        return list(self.do(Renew(path, tokens(deliveries))))

    def consume(self, path: str, count: int = 1_000) -> list[str]:
        """Receive all there is, in order, and complete it."""
        found = self.receive(path, count)
        if found:
            self.complete(path, *found)
        return self.texts(found)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, delivery: Delivery) -> Seen:
        """The stored bytes with the broker's edits laid over them."""
        edits = decode_edits(delivery.edits)
        marks = {name: edits.system[name] for name in edits.system if name in _MARKS}
        system = {name: edits.system[name] for name in edits.system if name not in _MARKS}
        payload = edited(
            self.payloads[delivery.body], Edits(edits.properties, edits.removed, system)
        )
        seen = AmqpMessage(payload)
        return Seen(_body(payload).decode(), seen.properties, seen, marks)

    def texts(self, deliveries: Iterable[Delivery]) -> list[str]:
        return [self.read(delivery).body for delivery in deliveries]

    def waiting(self, path: str) -> list[str]:
        """The bodies of all messages of an entity, in any state, by number."""
        return self.texts(self[path].browse(0, _ALL, None))

    def not_transferred(self, path: str) -> list[tuple[str, Value, Value]]:
        """(body, reason, description) of each message in the transfer dead-letter queue."""
        return self.dead(f"{path}/$Transfer")

    def dead(self, path: str) -> list[tuple[str, Value, Value]]:
        """(body, reason, description) of each message in the dead-letter queue of an entity."""
        found = self[f"{path}/$DeadLetterQueue"].browse(0, _ALL, None)
        seen = [self.read(delivery) for delivery in found]
        return [
            (
                each.body,
                each.properties.get("DeadLetterReason"),
                each.properties.get("DeadLetterErrorDescription"),
            )
            for each in seen
        ]

    def dead_reasons(self, path: str) -> list[tuple[str, Value]]:
        return [(body, reason) for body, reason, _ in self.dead(path)]

    # --- restarts ---------------------------------------------------------------------------------

    def lull(self) -> None:
        """A moment at which a restart must make no difference (nothing is locked)."""
        if self._restarts:
            self.restart()

    def restart(self, down_ms: Millis = 0) -> None:
        """The broker ends and comes back. It is made again in two ways, from all changes and from
        an index with the changes after it; both must be the same, and in turn one of them goes
        on."""
        self.now += down_ms
        replayed = Namespace()
        for change in self.changes:
            replayed.replay(change)
        assert set(replayed.freed) == self.freed
        data, at = self._index
        loaded = Namespace.load(data)
        for change in self.changes[at:]:
            loaded.replay(change)
        outcomes = []
        for each in (replayed, loaded):
            each.freed.clear()
            outcomes.append(each.restart(self.now))
        assert facts(replayed) == facts(loaded)
        self._lives += 1
        chosen = self._lives % 2
        self.namespace = (loaded, replayed)[chosen]
        self.delivered.clear()
        self.loads.clear()
        self._receivers.clear()
        self._collect(outcomes[1 - chosen])
        self.settle_down()


class Accepted(NamedTuple):
    """A session in the hands of a link."""

    link: int
    session_id: str
    locked_until_ms: Millis


def tokens(deliveries: Iterable[Delivery]) -> list[bytes]:
    return [delivery.token for delivery in deliveries if delivery.token is not None]


def settling(
    path: str,
    disposition: Disposition,
    *deliveries: Delivery,
    edits: Edits | None = None,
    transaction: int | None = None,
) -> Settle:
    return Settle(path, tokens(deliveries), disposition, edits or Edits(), transaction=transaction)


def numbers(deliveries: Iterable[Delivery]) -> list[int]:
    return [delivery.sequence_number for delivery in deliveries]


def states(deliveries: Iterable[Delivery]) -> list[State]:
    return [delivery.state for delivery in deliveries]


def facts(namespace: Namespace) -> dict[str, Sequence[object]]:
    """All that can be seen of a namespace, and what decides about its future."""
    found: dict[str, Sequence[object]] = {}
    for queue in namespace.entities:
        sessions = () if queue.sessions is None else queue.sessions
        states = {} if queue.sessions is None else queue.sessions.states
        found[queue.path] = (
            queue.kind,
            queue.settings,
            list(queue.counts),
            (queue.size_bytes, queue.used_bytes),
            queue.browse(0, _ALL, None),
            queue.last_enqueued_ms,
            [part.last for part in queue.parts],
            {s.id: (states.get(s.number), s.messages, s.waiting) for s in sessions},
            len(queue.duplicates),
            queue.created_ms,
            queue.updated_ms,
            namespace.rules(queue.path) if queue.kind.name == "SUBSCRIPTION" else (),
            () if queue.arrivals is None else _living(queue),
            () if queue.cursors is None else _readers(queue.cursors),
        )
    return found


def _living(queue: Queue) -> tuple[object, ...]:
    """The order of arrival of what is there."""
    assert queue.arrivals is not None
    pairs = zip(queue.arrivals.positions, queue.arrivals.numbers, strict=True)
    return queue.arrivals.last, [each for each in pairs if queue.find(each[1]) is not None]


def _readers(cursors: Cursors) -> tuple[object, ...]:
    return (
        {name: (each.retention_ms, each.positions) for name, each in cursors.by_name.items()},
        cursors.floors,
        cursors.held_bytes,
        sorted(cursors.every_body()),
        cursors.edits,
    )


def _body(payload: bytes) -> bytes:
    """The contents of the data section."""
    for code, start, end in sections(payload):
        if code == DATA:
            return payload[start + (5 if payload[start + 3] == 0xA0 else 8) : end]
    return b""
