"""Seeded commands of every kind to an engine whose power will be cut.

What lives here: `Traffic`, which knows by itself what each command must lead to, and says so if
it does not. Deferred messages, messages scheduled far ahead and dead letters stay, while the others
come and go: so the log's old end always has something alive that compaction must carry along.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tandembus.changes import Mode, decode_edits
from tandembus.core.commands import (
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
    Disposition,
    Flow,
    Reactivate,
    ReceiveDeferred,
    RemoveRule,
    Renew,
    Send,
    SetSessionState,
    Settle,
    UpdateEntity,
)
from tandembus.core.rules import Rule, SqlAction, SqlFilter
from tandembus.engine.engine import Reply
from tandembus.model import NO_EDITS, Edits, Millis
from tandembus.settings import (
    EntityStatus,
    PrioritySettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.crash.engine_life import Held, Life, Link, OverlappingDisk, decode
from tests.crash.ledger import Bad, Key, Where, attributes_of, make_payload
from tests.crash.recording_disk import Killed
from tests.unit.engine.world import Plain

DEAD: Final = "/$DeadLetterQueue"
TRANSFER: Final = "/$Transfer"
COLOURS: Final = ("red", "green", "blue")
WINDOW_MS: Final = 40_000
SESSIONS: Final = ("s0", "s1", "s2")


def _is_expired(found: object) -> bool:
    """Whether it was dead-lettered because its time to live is over."""
    if not isinstance(found, Where) or found.kind != "dead":
        return False
    return decode_edits(found.edits).properties.get("DeadLetterReason") == "TTLExpiredException"


def _sql(name: str, expression: str, action: str | None = None) -> Rule:
    return Rule(name, SqlFilter(expression), None if action is None else SqlAction(action), 0)


SETUP: Final[tuple[tuple[str, Command], ...]] = (
    (
        "q",
        CreateQueue(
            "q",
            QueueSettings(
                lock_duration_ms=5_000, max_delivery_count=3, dead_letter_on_expiration=True
            ),
        ),
    ),
    (
        "d",
        CreateQueue(
            "d", QueueSettings(requires_duplicate_detection=True, duplicate_window_ms=WINDOW_MS)
        ),
    ),
    ("s", CreateQueue("s", QueueSettings(lock_duration_ms=10_000, requires_session=True))),
    ("p", CreateQueue("p", QueueSettings(enable_partitioning=True))),
    ("v", CreateQueue("v", QueueSettings(priority=PrioritySettings(levels=3)))),
    ("in", CreateQueue("in", QueueSettings(forward_to="q"))),
    ("shut", CreateQueue("shut", QueueSettings(status=EntityStatus.SEND_DISABLED))),
    ("out", CreateQueue("out", QueueSettings(forward_to="shut"))),
    ("t", CreateTopic("t", TopicSettings())),
    ("t/Subscriptions/a", CreateSubscription("t", "a")),
    (
        "t/Subscriptions/b",
        CreateSubscription(
            "t", "b", SubscriptionSettings(max_delivery_count=2), _sql("only", "color = 'red'")
        ),
    ),
    (
        "t/Subscriptions/c",
        CreateSubscription(
            "t", "c", SubscriptionSettings(), _sql("act", "color <> 'blue'", "SET seen = 1")
        ),
    ),
)
OPTIONAL: Final = frozenset("dspv")
UNSENT: Final = f"out{TRANSFER}{DEAD}"
HOLDERS: Final = ("q", "q", "d", "p", "v", UNSENT, *(f"t/Subscriptions/{name}" for name in "abc"))


@dataclass
class Traffic:
    """Seeded commands. Knows by itself what each must lead to, and says so if it does not."""

    life: Life
    random: random.Random
    known: dict[int, bytes]
    next_link: int = 1
    names: int = 0
    transactions: deque[int] = field(default_factory=deque)
    scheduled: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    deferred: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    resent: deque[tuple[str, Millis]] = field(default_factory=lambda: deque(maxlen=200))
    """Message ids that "d" has taken, and when."""

    def prepare(self) -> None:
        """The entities that are not there yet."""
        for path, command in SETUP:
            if path in OPTIONAL and path not in self.life.shape.paths:
                continue
            if path not in self.life.engine.namespace:
                self.life.submit(command)
                self.pump()
        self.life.settle()

    def reborn(self, life: Life) -> None:
        """The next process: links and locks are gone."""
        self.life = life
        self.transactions.clear()
        for kept in (self.scheduled, self.deferred):
            for path, rows in kept.items():
                entity = life.record.live.at(path)
                there = entity.rows if entity is not None else {}
                rows[:] = [row for row in rows if row[0] in there]
        entity = life.record.live.at("d")
        seen = {} if entity is None else entity.seen
        self.resent.clear()
        self.resent.extend((key.removeprefix("str:"), when) for key, when in seen.items())

    def step(self) -> None:
        life, rng = self.life, self.random
        life.clock.advance(rng.choice((0, 0, 1, 5, 50, 300, 800)))
        if rng.random() < 0.03:
            life.clock.advance(6_000)
        if life.engine.next_deadline() <= life.clock.now_ms():
            life.engine.tick()
        self._act()
        self.pump()

    def _act(self) -> None:
        draw = self.random.random()
        for share, action in ACTIONS:
            draw -= share
            if draw < 0:
                action(self)
                return

    def pump(self) -> None:
        life, rng = self.life, self.random
        if rng.random() < 0.8:
            life.engine.flush()
        if rng.random() < 0.55 and not life.commits.step() and rng.random() < 0.5:
            life.store.mark_idle()
        if rng.random() < 0.3:
            life.side.step()
        if isinstance(life.disk, OverlappingDisk) and life.disk.is_dead:
            raise Killed

    def overlap(self) -> None:
        """What the other thread does while one is in the middle of something."""
        if self.random.random() < 0.3:
            self.life.commits.begin()
        if self.random.random() < 0.3:
            self.life.side.begin()

    def expect(self, wanted: dict[Key, str | None], what: object) -> None:
        """The newest decision must have done this to messages."""
        for key, kind in wanted.items():
            found = self.life.record.intent.get(key, "untouched")
            if kind == "here" and found is None and self._has_taker(key[1]):
                continue
            if kind == "dead" and found is None and self._has_taker(UNSENT):
                continue
            if (found.kind if isinstance(found, Where) else found) != kind:
                raise Bad(f"{what}: {key} is {found}, not {kind}")

    def any_of(self, *paths: str) -> str:
        """One that is there."""
        namespace = self.life.engine.namespace
        return self.random.choice([path for path in paths if path in namespace])

    def _has_taker(self, path: str) -> bool:
        """Whether somebody may have received and deleted it in the same decision."""
        return any(
            link.path == path and link.mode is Mode.RECEIVE_AND_DELETE
            for link in self.life.links.values()
        )

    # --- sending ---

    def message(self, path: str, *, can_wait: bool = True) -> Plain:
        rng = self.random
        identity = len(self.known) + 1
        attributes: dict[str, Any] = {"id": identity}
        if path == "t" or rng.random() < 0.1:
            attributes["properties"] = {"color": rng.choice(COLOURS)}
        if path == "s":
            attributes["session_id"] = rng.choice(SESSIONS)
        if path == "d":
            attributes["message_id"] = f"m{identity}"
        if path == "v":
            attributes["priority"] = rng.randrange(9)
        if path != "t" and rng.random() < 0.1:
            attributes["ttl_ms"] = rng.choice((1_000, 5_000, 20_000))
        if can_wait and path in ("q", "t", "d", "s", "p") and rng.random() < 0.12:
            wait = rng.choice((500, 3_000, 10_000, 500_000, 500_000))
            attributes["scheduled_ms"] = self.life.clock.now_ms() + wait
        size = rng.choice((0, 40, 300, 900, 1_500, 2_500, 4_500, 7_000))
        payload = make_payload(attributes, rng.randbytes(size))
        self.known[identity] = payload
        return decode(payload)

    def arrivals(self, path: str, message: Plain, identity: int) -> dict[Key, str | None]:
        """Where a message must be after it was sent."""
        if message.scheduled_ms is not None:
            return {("message", path, identity): "scheduled"}
        if path == "in":
            return {("message", "in", identity): None, ("message", "q", identity): "here"}
        if path == "out":  # what it forwards to takes nothing
            return {("message", path, identity): "dead"}
        if path != "t":
            return {("message", path, identity): "here"}
        wanted: dict[Key, str | None] = {("message", "t", identity): None}
        colour = message.properties["color"]
        for entity in self.life.record.live.entities.values():
            if entity.path.startswith("t/Subscriptions/") and entity.rules:
                rules = " ".join(entity.rules.values())
                takes = (
                    '"kind": "true"' in rules
                    or f"color = '{colour!s}'" in rules
                    or ("color <> 'blue'" in rules and colour != "blue")
                )
                key: Key = ("message", entity.family, identity)
                if not entity.path.endswith(DEAD):
                    wanted[key] = "here" if takes else "untouched"
        return wanted

    def send(self) -> None:
        path = self.any_of("q", "q", "q", "d", "s", "t", "t", "p", "v", "in", "out", "x")
        messages = [self.message(path) for _ in range(self.random.choice((1, 1, 2, 4)))]
        self.submit_send(path, messages)

    def submit_send(self, path: str, messages: list[Plain], transaction: int | None = None) -> None:
        identities = [int(str(attributes_of(message.payload)["id"])) for message in messages]
        told: list[Reply] = []
        now_ms = self.life.clock.now_ms()

        def done(reply: Reply) -> None:
            told.append(reply)
            if isinstance(reply, Exception) or path in ("t", "in"):
                return
            for number, identity, message in zip(reply, identities, messages, strict=True):
                intent = decided or self.life.record.intent
                where = intent.get(("message", path, identity), "untouched")
                if where is not None:  # else it was received and deleted in the same decision
                    if not isinstance(where, Where) or where.number != number:
                        raise Bad(f"{path}: the answer was {number}, but it is {where}")
                if message.scheduled_ms is not None:
                    self.scheduled.setdefault(path, []).append((number, identity))
                if isinstance(message.message_id, str):
                    self.resent.append((message.message_id, now_ms))

        decided: dict[Key, object] = {}
        if self.life.submit(Send(path, messages), done):
            decided |= self.life.record.intent
            for message, identity in zip(messages, identities, strict=True):
                self.expect(self.arrivals(path, message, identity), f"a send to {path}")

    def send_again(self) -> None:
        """An id that "d" has taken within its window: it is dropped."""
        now_ms = self.life.clock.now_ms()
        young = [name for name, when in self.resent if now_ms - when < WINDOW_MS]
        if not young:
            return
        fresh = self.message("d", can_wait=False)
        again = replace(fresh, message_id=self.random.choice(young))

        def done(reply: Reply) -> None:
            if not isinstance(reply, Exception) and reply != [0]:
                raise Bad(f"the id {again.message_id!r} was taken again, as {reply}")

        if self.life.submit(Send("d", [again]), done) and self.life.record.intent:
            raise Bad(f"the id {again.message_id!r} was taken again")

    def cancel(self) -> None:
        path = self.random.choice(("q", "d", "s", "p", "t"))
        rows = self.scheduled.get(path, [])
        if rows:
            number, identity = rows.pop(self.random.randrange(len(rows)))
            if self.life.submit(CancelScheduled(path, [number])):
                self.expect({("message", path, identity): None}, "a cancellation")

    # --- receiving and settling ---

    def link(self, path: str, mode: Mode) -> int | None:
        for number, link in self.life.links.items():
            if (link.path, link.mode) == (path, mode) and self.random.random() < 0.95:
                return number
        number = self.next_link
        self.next_link += 1
        session = self.random.choice(SESSIONS) if path == "s" else None
        if not self.life.submit(Attach(number, path, mode, session)):
            return None
        self.life.links[number] = Link(path, mode, session)
        return number

    def receive(self) -> None:
        path = self.any_of("s", "s", "q" + DEAD, UNSENT, "x", *HOLDERS)
        link = self.link(path, Mode.PEEK_LOCK)
        if link is not None:
            credit = self.random.choice((1, 1, 2, 5))
            self.life.submit(Flow(link, credit, self.life.clock.random_bits(64)))

    def drain(self) -> None:
        """Receive and delete: what makes the log's old end dead."""
        path = self.any_of("s", *HOLDERS)
        link = self.link(path, Mode.RECEIVE_AND_DELETE)
        if link is not None:
            credit = self.random.choice((1, 5, 20))
            self.life.submit(Flow(link, credit, self.life.clock.random_bits(64)))

    def detach(self) -> None:
        if self.life.links:
            link = self.random.choice(list(self.life.links))
            del self.life.links[link]
            self.life.submit(Detach(link))

    def pick(self, most: int) -> tuple[str, list[Held]]:
        """Some of what is locked in one place; it is not held any more."""
        paths = [path for path, held in self.life.held.items() if held]
        if not paths:
            return "", []
        path = self.random.choice(paths)
        held = self.life.held[path]
        self.random.shuffle(held)
        chosen, held[:] = held[:most], held[most:]
        return path, chosen

    def settle(self) -> None:
        rng = self.random
        path, chosen = self.pick(rng.choice((1, 2, 4)))
        if not chosen:
            return
        how, kind = rng.choice(SETTLEMENTS)
        if path.endswith(DEAD) and how in (Disposition.DEFER, Disposition.DEAD_LETTER):
            how, kind = Disposition.COMPLETE, None
        edits = NO_EDITS
        if how is not Disposition.COMPLETE and rng.random() < 0.4:
            edits = Edits({"try": rng.randrange(100), rng.choice("abc"): "x"})
        tokens = [held.token for held in chosen]
        command = Settle(path, tokens, how, edits, "so", "it is")
        if kind == "back" and rng.random() < 0.4:
            command.delay_ms = rng.choice((40, 700, 9_000))
        if not self.life.submit(command):
            return
        family = path.removesuffix(DEAD).removesuffix(TRANSFER)
        if kind != "back":
            self.expect({("message", family, held.identity): kind for held in chosen}, how.value)
        if how is Disposition.DEFER:
            rows = self.deferred.setdefault(path, [])
            rows += [(held.number, held.identity) for held in chosen]

    def renew(self) -> None:
        for path, held in self.life.held.items():
            if held:
                self.life.submit(Renew(path, [held[0].token]))
                return

    def receive_deferred(self) -> None:
        paths = [path for path, rows in self.deferred.items() if rows and path != "s"]
        # Most stay, and become what compaction has to carry along.
        if paths and self.random.random() < 0.5:
            path = self.random.choice(paths)
            rows = self.deferred[path]
            number, identity = rows.pop(self.random.randrange(len(rows)))
            if self.random.random() < 0.3:
                self.reactivate(path, number, identity)
                return
            mode = self.random.choice(tuple(Mode))
            nonce = self.life.clock.random_bits(64)

            def done(reply: Reply) -> None:
                if not isinstance(reply, Exception):
                    self.life.take(path, reply)

            if self.life.submit(ReceiveDeferred(path, [number], nonce, mode), done):
                if mode is Mode.RECEIVE_AND_DELETE:
                    self.expect({("message", path, identity): None}, "a deferred one taken")

    def reactivate(self, path: str, number: int, identity: int) -> None:
        """A deferred message waits again. It did not expire while it was deferred; if its time is
        over, it does so now: at the latest with the next tick, at once if somebody asks for it."""
        entity = self.life.record.live.at(path)
        row = None if entity is None else entity.rows.get(number)
        if not self.life.submit(Reactivate(path, [number])):
            return
        assert entity is not None
        assert row is not None
        key: Key = ("message", path, identity)
        found = self.life.record.intent.get(key, "untouched")
        if row.expires > self.life.clock.now_ms():
            self.expect({key: "here"}, "a deferred one back")
            return
        is_kept = json.loads(entity.settings)["dead_letter_on_expiration"]
        is_here = isinstance(found, Where) and found.kind == "here"
        if not is_here and not (_is_expired(found) if is_kept else found is None):
            raise Bad(f"an expired one back: {key} is {found}")

    def browse(self) -> None:
        path = self.any_of(*HOLDERS)

        def done(reply: Reply) -> None:
            for delivery in () if isinstance(reply, Exception) else reply:
                with contextlib.suppress(KeyError):  # gone since
                    self.life.engine.body(delivery.body)

        self.life.submit(Browse(path, 0, 10), done)

    def purge(self) -> None:
        path = self.any_of("q", "d", "p", "x")
        count = self.random.choice((1, 3, 6))
        gone: list[object] = []

        def done(reply: Reply) -> None:
            if not isinstance(reply, Exception) and reply != len(gone):
                raise Bad(f"{reply} were deleted, and {len(gone)} are gone")

        if self.life.submit(DeleteMessages(path, count, self.life.clock.now_ms()), done):
            gone += [key for key, value in self.life.record.intent.items() if value is None]

    def rank(self) -> None:
        entity = self.life.record.live.at("v")
        if entity is not None and entity.rows:
            number = self.random.choice(list(entity.rows))
            self.life.submit(ChangePriority("v", number, self.random.randrange(3)))

    # --- sessions, transactions, entities ---

    def set_state(self) -> None:
        for number, link in self.life.links.items():
            if link.session is not None and self.random.random() < 0.5:
                state = self.random.choice((None, self.random.randbytes(60)))
                if self.life.submit(SetSessionState("s", link.session, state, number)):
                    key: Key = ("state", "s", link.session)
                    if self.life.record.intent != {key: state}:
                        raise Bad(f"a state set: {self.life.record.intent}")
                return

    def transact(self) -> None:
        if not self.transactions:

            def done(reply: Reply) -> None:
                if isinstance(reply, int):
                    self.transactions.append(reply)

            self.life.submit(Declare(), done)
            return
        number = self.transactions.popleft()
        wanted: dict[Key, str | None] = {}
        for path in (self.any_of("q", "p", "v", "s"), self.any_of("in", "out")):
            message = self.message(path, can_wait=False)
            if self.life.submit(Send(path, [message], transaction=number)):
                wanted |= self.arrivals(path, message, len(self.known))
        held = self.schedule_in(number)
        wanted |= dict.fromkeys(held, "scheduled")
        path, chosen = self.pick(2)
        if chosen:
            tokens = [held.token for held in chosen]
            command = Settle(path, tokens, Disposition.COMPLETE, transaction=number)
            if self.life.submit(command):
                family = path.removesuffix(DEAD).removesuffix(TRANSFER)
                wanted |= {("message", family, held.identity): None for held in chosen}
        if self.random.random() < 0.2:
            return  # left open: a kill, or its time, rolls it back
        fail = self.random.random() < 0.2
        if self.life.submit(Discharge(number, fail)):
            if fail and self.life.record.intent != dict.fromkeys(held):
                raise Bad("a transaction that was rolled back did something")
            if not fail:
                self.expect(wanted, "a transaction")

    def schedule_in(self, number: int) -> list[Key]:
        """Schedule in a transaction: numbers at once, and a promise only by the commit."""
        path = self.random.choice(("q", "d", "s"))
        due_ms = self.life.clock.now_ms() + 500_000
        messages = [
            replace(self.message(path, can_wait=False), scheduled_ms=due_ms)
            for _ in range(self.random.choice((0, 1, 2)))
        ]
        command = Send(path, messages, transaction=number, is_numbered=True)
        if not messages or not self.life.submit(command):
            return []
        if self.life.record.intent:
            raise Bad("a schedule in an open transaction promised something")
        return [("message", path, int(str(attributes_of(each.payload)["id"]))) for each in messages]

    def entity(self) -> None:
        rng = self.random
        self.names += 1
        settings = QueueSettings(user_metadata=f"version {self.names}", max_delivery_count=4)
        if "x" not in self.life.engine.namespace:
            self.life.submit(CreateQueue("x", settings))
        elif rng.random() < 0.4:
            self.life.submit(DeleteEntity("x"))
            for kept in (self.life.held, self.scheduled, self.deferred):
                kept.pop("x", None)
            for link in [n for n, link in self.life.links.items() if link.path == "x"]:
                del self.life.links[link]
        else:
            self.life.submit(UpdateEntity("x", settings))

    def subscription(self) -> None:
        rng = self.random
        self.names += 1
        draw = rng.random()
        if draw < 0.4:
            rule = _sql(f"r{self.names}", f"color = '{rng.choice(COLOURS)}'")
            self.life.submit(AddRule("t/Subscriptions/b", rule))
        elif draw < 0.7:
            names = [rule.name for rule in self.life.engine.namespace.rules("t/Subscriptions/b")]
            if len(names) > 1:
                self.life.submit(RemoveRule("t/Subscriptions/b", rng.choice(names)))
        elif "t/Subscriptions/y" in self.life.engine.namespace:
            self.life.submit(DeleteEntity("t/Subscriptions/y"))
        else:
            rule = _sql("only", "color = 'green'")
            self.life.submit(CreateSubscription("t", "y", SubscriptionSettings(), rule))


SETTLEMENTS: Final = (
    *((Disposition.COMPLETE, None),) * 5,
    *((Disposition.ABANDON, "back"),) * 2,
    (Disposition.DEFER, "deferred"),
    (Disposition.DEAD_LETTER, "dead"),
    (Disposition.RELEASE, "back"),
)
ACTIONS: Final[tuple[tuple[float, Callable[[Traffic], None]], ...]] = (
    (0.30, Traffic.send),
    (0.16, Traffic.receive),
    (0.17, Traffic.settle),
    (0.09, Traffic.drain),
    (0.05, Traffic.transact),
    (0.04, Traffic.send_again),
    (0.03, Traffic.set_state),
    (0.03, Traffic.receive_deferred),
    (0.025, Traffic.entity),
    (0.025, Traffic.subscription),
    (0.02, Traffic.cancel),
    (0.02, Traffic.purge),
    (0.01, Traffic.rank),
    (0.01, Traffic.renew),
    (0.01, Traffic.browse),
    (0.01, Traffic.detach),
)
