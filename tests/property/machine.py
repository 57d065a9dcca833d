"""Random clients of one namespace: the Hypothesis machine that thinks up commands for the judge.

Choices are numbers that stand for "one of those that there are now" (`picks`), so that most
commands mean something, some are wrong on purpose, and a failing run shrinks well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tandembus.changes import Mode, Note
from tandembus.core import commands as c
from tandembus.core.namespace import Namespace
from tandembus.core.state import State
from tandembus.model import NEVER, NO_EDITS, PING_CONTENT_TYPE, Edits
from tandembus.names import TRANSFER
from tandembus.settings import (
    DEAD_LETTER,
    EntityStatus,
    PrioritySettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.property.judge import RULES, Factory, Judge, Letter, Step
from tests.property.model import Item

LEVELS: Final = PrioritySettings(levels=3)
AGING: Final = PrioritySettings(levels=3, aging_ms_per_level=4_000)
SECONDS: Final = (1, 400, 1_000, 3_000, 5_000, 9_000, 20_000)
COVERAGE: Final[Counter[str]] = Counter()
"""What happened in all runs of this process: command and outcome → times."""

SESSION_COMMANDS: Final = (
    c.RenewSession,
    c.SetSessionState,
    c.GetSessionState,
    c.ListSessions,
    c.CountSessions,
    c.DeadLetterSession,
)

LAST: Final[list[Step]] = []
"""The steps of the run that ended last: of the one that failed, if one failed."""

picks = st.integers(0, 63)
"""Stands for "one of those that there are now"."""
# Hypothesis likes the ends of a range, so what is to be rare lies in the middle.
rarely = st.integers(0, 19).map(lambda n: n == 11)
sometimes = st.integers(0, 4).map(lambda n: n == 2)

queue_settings = st.builds(
    QueueSettings,
    lock_duration_ms=st.sampled_from((5_000, 8_000)),
    max_delivery_count=st.sampled_from((2, 3, 1)),
    default_ttl_ms=st.sampled_from((NEVER, 12_000)),
    dead_letter_on_expiration=st.booleans(),
    requires_duplicate_detection=st.booleans(),
    duplicate_window_ms=st.just(20_000),
    priority=st.sampled_from((None, LEVELS, AGING)),
)
subscription_settings = st.builds(
    SubscriptionSettings,
    lock_duration_ms=st.sampled_from((5_000, 8_000)),
    max_delivery_count=st.sampled_from((2, 3, 1)),
    default_ttl_ms=st.sampled_from((NEVER, 9_000)),
    dead_letter_on_expiration=st.booleans(),
    priority=st.sampled_from((None, AGING)),
)
topic_settings = st.builds(
    TopicSettings,
    default_ttl_ms=st.sampled_from((NEVER, 12_000)),
    requires_duplicate_detection=st.booleans(),
    duplicate_window_ms=st.just(20_000),
)


@dataclass(frozen=True)
class Draft:
    """A message before it is known when and where it is sent."""

    ttl_ms: int | None
    delay_ms: int | None
    message_id: str | None
    session_id: str
    priority: int
    colour: str | None
    oddity: int

    def letter(self, number: int, now: int) -> Letter:
        is_ping = self.oddity == 17
        tail = b"." * 300_000 if self.oddity == 19 else b""
        return Letter(
            payload=b"%d" % number + tail,
            ttl_ms=self.ttl_ms,
            scheduled_ms=None if self.delay_ms is None else now + self.delay_ms,
            content_type=PING_CONTENT_TYPE if is_ping else None,
            message_id=self.message_id,
            session_id=None if self.oddity == 13 else self.session_id,
            priority=self.priority,
            properties={} if self.colour is None else {"colour": self.colour},
        )


drafts = st.lists(
    st.builds(
        Draft,
        ttl_ms=st.sampled_from((None, None, None, 4_000, 15_000)),
        delay_ms=st.sampled_from((None, None, None, None, -500, 3_000, 7_000)),
        message_id=st.sampled_from((None, "m", "n", "o")),
        session_id=st.sampled_from(("x", "y", "")),
        priority=st.sampled_from((0, 4, 9)),
        colour=st.sampled_from(("red", "blue", None)),
        oddity=st.integers(0, 29),
    ),
    min_size=1,
    max_size=3,
)
edits = st.sampled_from((NO_EDITS, NO_EDITS, Edits({"seen": 1}), Edits({}, frozenset({"colour"}))))


class Machine(RuleBasedStateMachine):
    """Random clients of one namespace."""

    factory: Factory = Namespace

    def __init__(self) -> None:
        super().__init__()
        self.judge = Judge(type(self).factory)
        self.last_letter = self.last_link = 0
        self.senders: list[str] = []
        self.receivers: list[str] = []
        self.targets: dict[str, tuple[str | None, str | None]] = {}
        """Where an entity forwards to when it does: messages and dead letters."""
        self.last_nonce = 0

    @invariant()
    def count(self) -> None:
        COVERAGE["steps"] += 1

    def teardown(self) -> None:
        COVERAGE.update(self.judge.seen)
        COVERAGE["steps"] -= 1  # the world's
        COVERAGE["runs"] += 1
        LAST[:] = self.judge.steps

    # --- the world --------------------------------------------------------------------------------

    @initialize(
        parts=st.integers(1, 15),
        queue=queue_settings,
        sessions=queue_settings,
        topic=topic_settings,
        first=subscription_settings,
        second=subscription_settings,
        has_sessions=st.booleans(),
        forwards=st.sampled_from(("q", "t", "f", "s")),
        relays=sometimes,
        dead=st.booleans(),
        first_letters=drafts,
    )
    def build(
        self,
        parts: int,
        queue: QueueSettings,
        sessions: QueueSettings,
        topic: TopicSettings,
        first: SubscriptionSettings,
        second: SubscriptionSettings,
        has_sessions: bool,
        forwards: str,
        relays: bool,
        dead: bool,
        first_letters: list[Draft],
    ) -> None:
        """A queue, one with sessions, a topic with two subscriptions, a forwarding queue: some."""
        create: list[c.Command] = []
        if parts & 9:
            create.append(c.CreateQueue("q", queue))
            self.has("q")
        if parts & 2:
            create.append(c.CreateQueue("s", replace(sessions, requires_session=True)))
            self.has("s")
        if parts & 12:
            create.append(c.CreateTopic("t", topic))
            self.senders.append("t")
            first = replace(first, forward_to="q" if relays and parts & 9 else None)
            create.append(c.CreateSubscription("t", "a", first))
            second = replace(second, requires_session=has_sessions)
            create.append(c.CreateSubscription("t", "b", second, RULES["red"]))
            self.has("t/subscriptions/a", "t/subscriptions/b")
            self.receivers.append(f"t/{TRANSFER}/{DEAD_LETTER}")
        if parts & 8:
            dead_to = "q" if dead else None
            forwards = "q" if forwards == "s" and not parts & 2 else forwards
            settings_of = replace(queue, forward_to=forwards, forward_dead_letters_to=dead_to)
            create.append(c.CreateQueue("f", settings_of))
            self.has("f")
        for command in create:
            self.judge.do(command)
        for pick in range(len(self.senders)):
            self.post(pick, first_letters, None)

    def has(self, *paths: str) -> None:
        for path in paths:
            if "/" not in path:
                self.senders.append(path)
            self.receivers += [path, f"{path}/{DEAD_LETTER}", f"{path}/{TRANSFER}/{DEAD_LETTER}"]

    # --- choosing among what there is -------------------------------------------------------------

    def where(self, pick: int, paths: Sequence[str]) -> str:
        return "nowhere" if pick == 43 else paths[pick % len(paths)]

    def holding(self) -> list[tuple[str, Item]]:
        """All locked messages and where they are."""
        return [
            (path, item)
            for path, entity in self.judge.model.entities.items()
            for item in entity.items
            if item.token is not None
        ]

    def numbers(self, state: State) -> list[tuple[str, int]]:
        entities = self.judge.model.entities.items()
        return [(p, i.number) for p, entity in entities for i in entity.items if i.state == state]

    def link_of(self, pick: int) -> int:
        links = list(self.judge.model.links)
        return links[pick % len(links)] if links and pick != 42 else 999

    def transaction_of(self, pick: int) -> int | None:
        transactions = list(self.judge.model.transactions)
        if pick == 41:
            return 999
        return transactions[pick % len(transactions)] if transactions and pick % 2 else None

    # --- sending ----------------------------------------------------------------------------------

    @rule(pick=picks, drafts=drafts)
    def send(self, pick: int, drafts: list[Draft]) -> None:
        self.post(pick, drafts, None)

    @rule(pick=picks, drafts=drafts)
    def send_more(self, pick: int, drafts: list[Draft]) -> None:
        self.post(pick, drafts, None)

    @rule(pick=picks, drafts=drafts, transaction=picks)
    def send_within(self, pick: int, drafts: list[Draft], transaction: int) -> None:
        self.post(pick, drafts, self.transaction_of(transaction))

    @rule(pick=picks, to=picks, drafts=drafts, transaction=picks)
    def send_via(self, pick: int, to: int, drafts: list[Draft], transaction: int) -> None:
        """By way of one entity to another, which may not take it."""
        self.post(pick, drafts, self.transaction_of(transaction), via=self.where(to, self.senders))

    @precondition(lambda self: self.judge.model.transactions)
    @rule(pick=picks, drafts=drafts, transaction=picks, delay_ms=st.sampled_from((3_000, 7_000)))
    def schedule_within(
        self, pick: int, drafts: list[Draft], transaction: int, delay_ms: int
    ) -> None:
        """As a request to `$management` does: the numbers are told at once."""
        drafts = [replace(draft, delay_ms=delay_ms) for draft in drafts]
        within = self.transaction_of(transaction)
        senders = [path for path in self.senders if path != "t"]
        if senders and within is not None:
            self.post(pick, drafts, within, senders)

    def ids_held(self) -> list[tuple[str, Item]]:
        """What an open transaction has scheduled, and duplicates could be of."""
        entities = self.judge.model.entities.items()
        return [
            (path, item)
            for path, entity in entities
            for item in entity.items
            if item.held is not None and item.message.message_id is not None
        ]

    @precondition(lambda self: self.ids_held())
    @rule(pick=picks, drafts=drafts, transaction=picks)
    def send_twin(self, pick: int, drafts: list[Draft], transaction: int) -> None:
        """A message with the id of one that an open transaction holds."""
        held = self.ids_held()
        path, item = held[pick % len(held)]
        self.last_letter += 1
        letter = replace(
            drafts[0].letter(self.last_letter, self.judge.now),
            message_id=str(item.message.message_id),
        )
        within = self.transaction_of(transaction) if pick % 4 == 0 else None
        self.judge.do(c.Send(path, [letter], transaction=within))

    def post(
        self,
        pick: int,
        drafts: list[Draft],
        within: int | None,
        numbered_to: Sequence[str] = (),
        via: str | None = None,
    ) -> None:
        letters = []
        for draft in drafts:
            self.last_letter += 1
            letters.append(draft.letter(self.last_letter, self.judge.now))
        wrong = self.receivers[-1] if via is None else "nowhere"
        path = wrong if pick == 44 else self.where(pick, numbered_to or self.senders)
        if path == "t" and "f" in self.senders:
            # What a topic has activated and what was forwarded to it in one tick has no set order.
            letters = [replace(letter, scheduled_ms=None) for letter in letters]
        is_numbered = bool(numbered_to)
        self.judge.do(c.Send(path, letters, transaction=within, is_numbered=is_numbered, via=via))

    @precondition(lambda self: self.numbers(State.SCHEDULED))
    @rule(pick=picks, is_wrong=sometimes, transaction=picks)
    def cancel(self, pick: int, is_wrong: bool, transaction: int) -> None:
        scheduled = self.numbers(State.SCHEDULED)
        path, number = scheduled[pick % len(scheduled)]
        numbers = [number, 99_999] if is_wrong else [number]
        within = self.transaction_of(transaction) if pick % 3 == 0 else None
        self.judge.do(c.CancelScheduled(path, numbers, within))

    # --- receiving --------------------------------------------------------------------------------

    def deliverable(self) -> list[str]:
        """Where something waits."""
        entities = self.judge.model.entities.items()
        return [
            p for p, x in entities if x.serves and self.judge.model.best(x, None, self.judge.now)
        ]

    @precondition(lambda self: self.deliverable())
    @rule(pick=picks, credit=st.integers(1, 3))
    def receive(self, pick: int, credit: int) -> None:
        """Where something waits, through a link that is there or a new one."""
        paths = self.deliverable()
        path = paths[pick % len(paths)]
        links = [n for n, link in self.judge.model.links.items() if link.path == path]
        if links and pick % 2:
            self.ask(links[pick // 2 % len(links)], credit)
        else:
            has_sessions = self.judge.model.entities[path].has_sessions
            self.join(path, Mode.PEEK_LOCK, c.NEXT_SESSION if has_sessions else None, credit)

    @precondition(lambda self: self.deliverable())
    @rule(pick=picks)
    def receive_more(self, pick: int) -> None:
        self.receive(pick, 1 + pick % 3)

    @rule(
        pick=picks,
        credit=st.integers(0, 4),
        is_deleting=sometimes,
        session=st.sampled_from((c.NEXT_SESSION, c.NEXT_SESSION, "x", "y", "")),
        is_wrong=rarely,
    )
    def attach(
        self,
        pick: int,
        credit: int,
        is_deleting: bool,
        session: str | c.NextSession,
        is_wrong: bool,
    ) -> None:
        path = self.where(pick, self.receivers)
        entity = self.judge.model.entities.get(path)
        has_sessions = (entity is not None and entity.has_sessions) != is_wrong
        mode = Mode.RECEIVE_AND_DELETE if is_deleting else Mode.PEEK_LOCK
        self.join(path, mode, session if has_sessions else None, credit)

    def join(self, path: str, mode: Mode, session: str | c.NextSession | None, credit: int) -> None:
        """A new link, which usually asks for messages at once."""
        self.last_link += 1
        command = c.Attach(self.last_link, path, mode, session, timeout_ms=7_000)
        if self.judge.do(command) is not None and credit:
            self.ask(self.last_link, credit)

    def ask(self, link: int, credit: int, drain: bool = False) -> None:
        self.judge.do(c.Flow(link, credit, self.nonce(), drain))

    def nonce(self) -> int:
        self.last_nonce += 1_000
        return self.last_nonce

    @precondition(lambda self: self.judge.model.links)
    @rule(pick=picks, credit=st.integers(0, 4), drain=sometimes)
    def flow(self, pick: int, credit: int, drain: bool) -> None:
        self.ask(self.link_of(pick), credit, drain)

    @precondition(lambda self: self.judge.model.links)
    @rule(pick=picks)
    def detach(self, pick: int) -> None:
        self.judge.do(c.Detach(self.link_of(pick)))

    @precondition(lambda self: self.numbers(State.DEFERRED))
    @rule(pick=picks, is_deleting=sometimes, is_wrong=sometimes)
    def receive_deferred(self, pick: int, is_deleting: bool, is_wrong: bool) -> None:
        deferred = self.numbers(State.DEFERRED)
        path, number = deferred[pick % len(deferred)]
        entity = self.judge.model.entities[path]
        item = next(item for item in entity.items if item.number == number)
        session = entity.sessions.get(str(item.session))
        self.judge.do(
            c.ReceiveDeferred(
                path,
                [number, 99_999] if is_wrong else [number],
                self.nonce(),
                Mode.RECEIVE_AND_DELETE if is_deleting else Mode.PEEK_LOCK,
                item.session,
                session.link if session is not None else 0,
            )
        )

    @precondition(lambda self: self.numbers(State.SCHEDULED) or self.numbers(State.WAITING))
    @rule(
        pick=picks,
        state=st.sampled_from((State.WAITING, State.SCHEDULED, State.DEFERRED, State.LOCKED)),
        is_wrong=sometimes,
    )
    def discard(self, pick: int, state: State, is_wrong: bool) -> None:
        there = self.numbers(state) or self.numbers(State.WAITING) or self.numbers(State.SCHEDULED)
        path, number = there[pick % len(there)]
        self.judge.do(c.Discard(path, [number, 99_999] if is_wrong else [number]))

    @precondition(lambda self: self.numbers(State.DEFERRED) or self.numbers(State.DELAYED))
    @rule(pick=picks, is_wrong=sometimes)
    def reactivate(self, pick: int, is_wrong: bool) -> None:
        aside = self.numbers(State.DEFERRED) + self.numbers(State.DELAYED)
        path, number = aside[pick % len(aside)]
        self.judge.do(c.Reactivate(path, [number, 99_999] if is_wrong else [number]))

    @rule(
        what=st.sampled_from((c.Browse, c.DeleteMessages, c.ChangePriority)),
        pick=picks,
        start=st.integers(1, 6),
        count=st.integers(0, 3),
        session=st.sampled_from((None, None, "x")),
        ago=st.sampled_from((-1, 0, 1_000)),
    )
    def look(
        self,
        what: type[c.Command],
        pick: int,
        start: int,
        count: int,
        session: str | None,
        ago: int,
    ) -> None:
        """Around the receivers."""
        path = self.where(pick, self.receivers + self.senders)
        if what is c.Browse:
            states = (State.DEFERRED, State.DELAYED) if pick % 4 == 3 else ()
            self.judge.do(c.Browse(path, start - 1, count + 1, session, states))
        elif what is c.DeleteMessages:
            before = self.judge.now - ago
            self.judge.do(c.DeleteMessages(path, count + 1, before, session))
        else:
            waiting = self.numbers(State.WAITING) or [(path, start)]
            path, number = (path, start) if pick % 4 == 0 else waiting[pick % len(waiting)]
            self.judge.do(c.ChangePriority(path, number, count))

    # --- settling ---------------------------------------------------------------------------------

    @precondition(lambda self: self.holding())
    @rule(
        pick=picks,
        disposition=st.sampled_from(list(c.Disposition)),
        edits=edits,
        why=st.sampled_from((None, "because")),
        others=st.integers(0, 12),
        transaction=picks,
        delay_ms=st.sampled_from((0, 0, 0, 2_000, 6_000)),
    )
    def settle(
        self,
        pick: int,
        disposition: c.Disposition,
        edits: Edits,
        why: str | None,
        others: int,
        transaction: int,
        delay_ms: int,
    ) -> None:
        held = self.holding()
        path, item = held[pick % len(held)]
        along = [i for p, i in held if i is item or (p == path and others > 7)]
        tokens = [i.token for i in along if i.token is not None]
        if others == 7:  # one that is lost, or of another queue
            tokens.append(self.token_of(pick))
        if disposition in (c.Disposition.COMPLETE, c.Disposition.RELEASE):
            edits = NO_EDITS
        within = self.transaction_of(transaction)
        command = c.Settle(path, tokens, disposition, edits, why, why, transaction=within)
        if disposition in (c.Disposition.ABANDON, c.Disposition.RELEASE) or others == 5:
            command = replace(command, delay_ms=delay_ms)
        self.judge.do(command)

    @precondition(lambda self: self.holding())
    @rule(pick=picks, disposition=st.sampled_from((c.Disposition.ABANDON, c.Disposition.DEFER)))
    def settle_one(self, pick: int, disposition: c.Disposition) -> None:
        held = self.holding()
        path, item = held[pick % len(held)]
        assert item.token is not None
        self.judge.do(c.Settle(path, [item.token], disposition))

    def token_of(self, pick: int) -> bytes:
        """Any that there ever was."""
        tokens = list(self.judge.tokens) or [bytes(16)]
        return tokens[-1 - pick % len(tokens)]

    @rule(pick=picks, is_stale=sometimes, is_renewal=st.booleans())
    def renew(self, pick: int, is_stale: bool, is_renewal: bool) -> None:
        """The lock of a message, or something with a lock that is probably lost."""
        held = self.holding()
        if held and not is_stale:
            path, item = held[pick % len(held)]
            assert item.token is not None
            self.judge.do(c.Renew(path, [item.token]))
            return
        path, tokens = self.where(pick, self.receivers), [self.token_of(pick // 2)]
        if is_renewal:
            self.judge.do(c.Renew(path, tokens))
        else:
            self.judge.do(c.Settle(path, tokens, c.Disposition.COMPLETE))

    # --- sessions ---------------------------------------------------------------------------------

    def with_sessions(self) -> list[str]:
        return [p for p, entity in self.judge.model.entities.items() if entity.has_sessions]

    @precondition(lambda self: self.with_sessions())
    @rule(
        what=st.sampled_from(SESSION_COMMANDS),
        pick=picks,
        state=st.sampled_from((b"state", b"", None)),
        ago=st.sampled_from((None, 0, 5_000)),
    )
    def session(
        self, what: type[c.Command], pick: int, state: bytes | None, ago: int | None
    ) -> None:
        """Something with a session: by its holder, or now and then by another."""
        held = [
            (path, name, session.link)
            for path, entity in self.judge.model.entities.items()
            for name, session in entity.sessions.items()
            if session.link
        ]
        path, name, link = self.where(pick, self.receivers), "x", self.link_of(pick)
        if pick < 50:
            path = self.with_sessions()[pick % len(self.with_sessions())]
            if held:
                path, name, link = held[pick % len(held)]
        if what is c.RenewSession:
            self.judge.do(c.RenewSession(path, name, link))
        elif what is c.SetSessionState:
            self.judge.do(c.SetSessionState(path, name, state, link))
        elif what is c.GetSessionState:
            self.judge.do(c.GetSessionState(path, name, link))
        elif what is c.CountSessions:
            self.judge.do(c.CountSessions(path))
        elif what is c.DeadLetterSession:
            link = 0 if pick % 3 == 0 else link
            self.judge.do(c.DeadLetterSession(path, name, link, "because", count=1 + pick % 4))
        else:
            after = None if ago is None else self.judge.now - ago
            self.judge.do(c.ListSessions(path, after, pick % 2, 2))

    # --- transactions -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.judge.model.transactions) < 2)
    @rule()
    def declare(self) -> None:
        self.judge.do(c.Declare())

    @precondition(lambda self: self.judge.model.transactions)
    @rule(pick=picks, fail=sometimes)
    def discharge(self, pick: int, fail: bool) -> None:
        self.judge.do(c.Discharge(self.transaction_of(pick | 1) or 999, fail))

    # --- time -------------------------------------------------------------------------------------

    @rule(millis=st.sampled_from(SECONDS))
    def wait(self, millis: int) -> None:
        self.judge.now += millis
        self.judge.tick()

    @rule(millis=st.sampled_from(SECONDS))
    def wait_without_a_tick(self, millis: int) -> None:
        """Ticks may come late: the next command finds a clock that nobody has looked at."""
        self.judge.now += millis

    @rule(offset=st.sampled_from((0, 0, -1, 1)), is_late=st.booleans())
    def wait_for_deadline(self, offset: int, is_late: bool) -> None:
        """To the very millisecond at which something happens, or one beside it."""
        deadline = self.judge.model.next_deadline()
        if deadline < NEVER:
            self.wait_without_a_tick(max(0, deadline + offset - self.judge.now))
            if not is_late:
                self.judge.tick()

    @rule(pick=picks)
    def restart(self, pick: int) -> None:
        """A crash now and then; a dump that a later one can start from, more often."""
        if pick % 4 == 0:
            self.judge.restart()
        elif pick % 4 == 1:
            self.judge.dump()

    # --- managing ---------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from((c.UpdateEntity, c.AddRule, c.RemoveRule, c.DeleteEntity, c.Remark)),
        pick=picks,
        status=st.sampled_from(EntityStatus),
        name=st.sampled_from(sorted(RULES)),
    )
    def manage(self, what: type[c.Command], pick: int, status: EntityStatus, name: str) -> None:
        paths = self.receivers
        if what in (c.AddRule, c.RemoveRule):
            paths = [path for path in self.receivers if path.startswith("t/")] or self.receivers
        elif what is not c.Remark:
            paths = [path for path in self.receivers if not path.endswith(DEAD_LETTER)]
        path = self.where(pick, paths)
        entity = self.judge.model.entities.get(path)
        if what is c.AddRule:
            self.judge.do(c.AddRule(path, RULES[name]))
        elif what is c.RemoveRule:
            self.judge.do(c.RemoveRule(path, name))
        elif what is c.Remark:
            self.judge.do(c.Remark(path, int(Note.POLLED)))
        elif entity is None:
            self.judge.do(c.DeleteEntity(path))
            self.judge.do(c.UpdateEntity(path, QueueSettings()))
        elif what is c.UpdateEntity:
            self.change(path, entity.settings, EntityStatus.ACTIVE if pick % 4 else status, pick)
        elif "/" not in path:
            if pick % 4 == 0:
                self.judge.do(c.DeleteEntity(path))
            self.judge.do(c.CreateQueue(path, entity.settings))

    def change(
        self,
        path: str,
        old: QueueSettings | SubscriptionSettings,
        status: EntityStatus,
        pick: int,
    ) -> None:
        if isinstance(old, SubscriptionSettings) and status is EntityStatus.SEND_DISABLED:
            status = EntityStatus.RECEIVE_DISABLED
        # Forwarding is switched off, and on again: never to another target, because what comes to
        # one from two sources in one tick has no set order.
        forwards, dead_to = self.targets.setdefault(
            path, (old.forward_to, old.forward_dead_letters_to)
        )
        there = self.judge.model.entities
        if pick % 3 == 0:
            is_on = bool(pick & 1)
            old = replace(
                old,
                forward_to=forwards if is_on and forwards in there else None,
                forward_dead_letters_to=dead_to if pick & 2 and dead_to in there else None,
            )
        self.judge.do(
            c.UpdateEntity(
                path,
                replace(
                    old,
                    status=status,
                    max_delivery_count=1 + pick % 3,
                    lock_duration_ms=(5_000, 8_000)[pick % 2],
                    priority=(old.priority, None, LEVELS, AGING)[pick // 8 % 4],
                ),
            )
        )
