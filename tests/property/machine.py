"""Random clients of one namespace: the Hypothesis machine that thinks up commands for the judge.

Choices are numbers that stand for "one of those that there are now" (`picks`), so that most
commands mean something, some are wrong on purpose, and a failing run shrinks well.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tandem.changes import Mode, Note
from tandem.core import commands as c
from tandem.core.namespace import Namespace
from tandem.core.state import State
from tandem.model import NEVER, NO_EDITS, PING_CONTENT_TYPE, Edits
from tandem.settings import (
    DEAD_LETTER,
    EntityStatus,
    PrioritySettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.property.judge import RULES, Factory, Judge, Letter
from tests.property.model import Item

LEVELS: Final = PrioritySettings(levels=3)
AGING: Final = PrioritySettings(levels=3, aging_ms_per_level=4_000)
SECONDS: Final = (1, 400, 1_000, 3_000, 5_000, 9_000, 20_000)
COVERAGE: Final[Counter[str]] = Counter()
"""What happened in all runs of this process: command and outcome → times."""

picks = st.integers(0, 63)
"""Stands for "one of those that there are now"."""
rarely = st.integers(0, 19).map(lambda n: n == 19)
sometimes = st.integers(0, 4).map(lambda n: n == 4)

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
        return Letter(
            payload=b"%d" % number + (b"." * 300_000 if self.oddity == 29 else b""),
            ttl_ms=self.ttl_ms,
            scheduled_ms=None if self.delay_ms is None else now + self.delay_ms,
            content_type=PING_CONTENT_TYPE if self.oddity == 28 else None,
            message_id=self.message_id,
            session_id=None if self.oddity == 27 else self.session_id,
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
        self.old_tokens: list[bytes] = [bytes(16)]

    def teardown(self) -> None:
        COVERAGE.update(self.judge.seen)
        COVERAGE["steps"] += len(self.judge.trace)

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
        if parts & 8:
            dead_to = "q" if dead else None
            forwards = "q" if forwards == "s" and not parts & 2 else forwards
            settings_of = replace(queue, forward_to=forwards, forward_dead_letters_to=dead_to)
            create.append(c.CreateQueue("f", settings_of))
            self.has("f")
        for command in create:
            self.judge.do(command)

    def has(self, *paths: str) -> None:
        for path in paths:
            if "/" not in path:
                self.senders.append(path)
            self.receivers += [path, f"{path}/{DEAD_LETTER}"]

    # --- choosing among what there is -------------------------------------------------------------

    def where(self, pick: int, paths: Sequence[str]) -> str:
        return "nowhere" if pick == 63 else paths[pick % len(paths)]

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
        return links[pick % len(links)] if links and pick < 62 else 999

    def transaction_of(self, pick: int) -> int | None:
        transactions = list(self.judge.model.transactions)
        if pick == 63:
            return 999
        return transactions[pick % len(transactions)] if transactions and pick % 2 else None

    # --- sending ----------------------------------------------------------------------------------

    @rule(pick=picks, drafts=drafts)
    def send(self, pick: int, drafts: list[Draft]) -> None:
        self.post(pick, drafts, None)

    @rule(pick=picks, drafts=drafts, transaction=picks)
    def send_within(self, pick: int, drafts: list[Draft], transaction: int) -> None:
        self.post(pick, drafts, self.transaction_of(transaction))

    def post(self, pick: int, drafts: list[Draft], within: int | None) -> None:
        letters = []
        for draft in drafts:
            self.last_letter += 1
            letters.append(draft.letter(self.last_letter, self.judge.now))
        path = self.where(pick, self.senders + self.receivers[-1:])
        if path == "t" and "f" in self.senders:
            # What a topic has activated and what was forwarded to it in one tick has no set order.
            letters = [replace(letter, scheduled_ms=None) for letter in letters]
        self.judge.do(c.Send(path, letters, transaction=within))

    @precondition(lambda self: self.numbers(State.SCHEDULED))
    @rule(pick=picks, is_wrong=sometimes)
    def cancel(self, pick: int, is_wrong: bool) -> None:
        scheduled = self.numbers(State.SCHEDULED)
        path, number = scheduled[pick % len(scheduled)]
        self.judge.do(c.CancelScheduled(path, [number, 99_999] if is_wrong else [number]))

    # --- receiving --------------------------------------------------------------------------------

    @rule(
        pick=picks,
        credit=st.integers(0, 4),
        is_deleting=sometimes,
        session=st.sampled_from((c.NEXT_SESSION, "x", "y", "")),
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
        """A receiver, which usually asks for messages at once."""
        path = self.where(pick, self.receivers)
        entity = self.judge.model.entities.get(path)
        with_session = (entity is not None and entity.has_sessions) != is_wrong
        self.last_link += 1
        command = c.Attach(
            self.last_link,
            path,
            Mode.RECEIVE_AND_DELETE if is_deleting else Mode.PEEK_LOCK,
            session if with_session else None,
            7_000,
        )
        if self.judge.do(command) is not None and credit:
            self.ask(self.last_link, credit)

    @rule(pick=picks)
    def attach_and_receive(self, pick: int) -> None:
        self.last_link += 1
        path = self.where(pick, self.receivers)
        entity = self.judge.model.entities.get(path)
        session = c.NEXT_SESSION if entity is not None and entity.has_sessions else None
        if self.judge.do(c.Attach(self.last_link, path, session=session)) is not None:
            self.ask(self.last_link, 2)

    @precondition(lambda self: self.judge.model.links)
    @rule(pick=picks, credit=st.integers(0, 4), drain=sometimes)
    def flow(self, pick: int, credit: int, drain: bool) -> None:
        self.ask(self.link_of(pick), credit, drain)

    def ask(self, link: int, credit: int, drain: bool = False) -> None:
        before = set(self.judge.tokens)
        self.judge.do(c.Flow(link, credit, random.getrandbits(64), drain))
        self.old_tokens += set(self.judge.tokens) - before

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
        session = link = None
        if entity.has_sessions:
            item = next(i for i in entity.items if i.number == number)
            session = item.session
            link = entity.sessions[str(session)].link
        self.judge.do(
            c.ReceiveDeferred(
                path,
                [number, 99_999] if is_wrong else [number],
                random.getrandbits(64),
                Mode.RECEIVE_AND_DELETE if is_deleting else Mode.PEEK_LOCK,
                session,
                link or 0,
            )
        )

    @rule(pick=picks, start=st.integers(0, 6), count=st.integers(1, 3), session=picks)
    def browse(self, pick: int, start: int, count: int, session: int) -> None:
        path = self.where(pick, self.receivers)
        self.judge.do(c.Browse(path, start, count, "x" if session % 2 else None))

    # --- settling ---------------------------------------------------------------------------------

    @precondition(lambda self: self.holding())
    @rule(
        pick=picks,
        disposition=st.sampled_from(list(c.Disposition)),
        edits=edits,
        why=st.sampled_from((None, "because")),
        others=st.integers(0, 9),
        transaction=picks,
    )
    def settle(
        self,
        pick: int,
        disposition: c.Disposition,
        edits: Edits,
        why: str | None,
        others: int,
        transaction: int,
    ) -> None:
        held = self.holding()
        path, item = held[pick % len(held)]
        tokens = [item.token] if item.token is not None else []
        if others == 9:  # a stale one, or one of another queue
            tokens.append(self.old_tokens[pick % len(self.old_tokens)])
        elif others > 6:
            tokens += [i.token for p, i in held if p == path and i.token and i is not item][:2]
        if disposition in (c.Disposition.COMPLETE, c.Disposition.RELEASE):
            edits = NO_EDITS
        within = self.transaction_of(transaction)
        self.judge.do(c.Settle(path, tokens, disposition, edits, why, why, transaction=within))

    @precondition(lambda self: self.holding())
    @rule(pick=picks, disposition=st.sampled_from((c.Disposition.ABANDON, c.Disposition.DEFER)))
    def settle_one(self, pick: int, disposition: c.Disposition) -> None:
        held = self.holding()
        path, item = held[pick % len(held)]
        assert item.token is not None
        self.judge.do(c.Settle(path, [item.token], disposition))

    @rule(pick=picks, token=picks, is_renewal=st.booleans())
    def settle_stale(self, pick: int, token: int, is_renewal: bool) -> None:
        path = self.where(pick, self.receivers)
        tokens = [self.old_tokens[-1 - token % len(self.old_tokens)]]
        if is_renewal:
            self.judge.do(c.Renew(path, tokens))
        else:
            self.judge.do(c.Settle(path, tokens, c.Disposition.COMPLETE))

    @precondition(lambda self: self.holding())
    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        held = self.holding()
        path, item = held[pick % len(held)]
        assert item.token is not None
        if not self.judge.model.entities[path].has_sessions:
            self.judge.do(c.Renew(path, [item.token]))

    @rule(pick=picks, count=st.integers(1, 3), ago=st.sampled_from((-1, 0, 1_000)), session=picks)
    def delete_messages(self, pick: int, count: int, ago: int, session: int) -> None:
        path = self.where(pick, self.receivers)
        session_id = "x" if session % 2 else None
        self.judge.do(c.DeleteMessages(path, count, self.judge.now - ago, session_id))

    @rule(pick=picks, number=st.integers(1, 8), level=st.integers(0, 3))
    def change_priority(self, pick: int, number: int, level: int) -> None:
        self.judge.do(c.ChangePriority(self.where(pick, self.receivers), number, level))

    # --- sessions ---------------------------------------------------------------------------------

    def session_of(self, pick: int) -> tuple[str, str, int]:
        """A session with its holder; now and then, one that is not held so."""
        held = [
            (path, name, session.link)
            for path, entity in self.judge.model.entities.items()
            for name, session in entity.sessions.items()
            if session.link
        ]
        with_sessions = [
            p for p, entity in self.judge.model.entities.items() if entity.has_sessions
        ]
        if not held or pick > 50:
            return (self.where(pick, with_sessions or self.receivers), "x", self.link_of(pick))
        return held[pick % len(held)]

    @rule(pick=picks)
    def renew_session(self, pick: int) -> None:
        self.judge.do(c.RenewSession(*self.session_of(pick)))

    @rule(pick=picks, state=st.sampled_from((b"state", b"", None)))
    def set_session_state(self, pick: int, state: bytes | None) -> None:
        path, session, link = self.session_of(pick)
        self.judge.do(c.SetSessionState(path, session, state, link))

    @rule(pick=picks)
    def get_session_state(self, pick: int) -> None:
        self.judge.do(c.GetSessionState(*self.session_of(pick)))

    @rule(pick=picks, ago=st.sampled_from((None, 0, 5_000)), skip=st.integers(0, 1))
    def list_sessions(self, pick: int, ago: int | None, skip: int) -> None:
        after = None if ago is None else self.judge.now - ago
        path = self.session_of(pick)[0]
        self.judge.do(c.ListSessions(path, after, skip, 2))

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
        self.judge.trace.append(f"{self.judge.now}: (no tick)")

    @rule(offset=st.integers(-1, 1))
    def wait_for_deadline(self, offset: int) -> None:
        """To the very millisecond at which something happens, or one beside it."""
        self.wait_for(offset)

    def wait_for(self, offset: int) -> None:
        deadline = self.judge.model.next_deadline()
        if deadline < NEVER:
            self.judge.now = max(self.judge.now, deadline + offset)
            self.judge.tick()

    @rule()
    def wait_for_next(self) -> None:
        self.wait_for(0)

    @rule(is_wanted=sometimes)
    def restart(self, is_wanted: bool) -> None:
        if is_wanted:
            self.judge.restart()
            self.last_link += 1

    @rule()
    def dump(self) -> None:
        self.judge.take_snapshot()

    # --- managing ---------------------------------------------------------------------------------

    @rule(pick=picks, status=st.sampled_from(EntityStatus), count=st.integers(1, 3))
    def update(self, pick: int, status: EntityStatus, count: int) -> None:
        path = self.where(pick, [p for p in self.receivers if not p.endswith(DEAD_LETTER)])
        entity = self.judge.model.entities.get(path)
        if entity is None:
            self.judge.do(c.UpdateEntity(path, QueueSettings()))
            return
        if pick % 2:
            status = EntityStatus.ACTIVE
        if (
            isinstance(entity.settings, SubscriptionSettings)
            and status is EntityStatus.SEND_DISABLED
        ):
            status = EntityStatus.RECEIVE_DISABLED
        changed = replace(entity.settings, status=status, max_delivery_count=count)
        self.judge.do(c.UpdateEntity(path, changed))

    @rule(pick=picks, name=st.sampled_from(sorted(RULES)), is_removal=st.booleans())
    def change_rules(self, pick: int, name: str, is_removal: bool) -> None:
        path = self.where(pick, [p for p in self.receivers if p.startswith("t/")] or ["nowhere"])
        if is_removal:
            self.judge.do(c.RemoveRule(path, name))
        else:
            self.judge.do(c.AddRule(path, RULES[name]))

    @rule(pick=picks, is_wanted=rarely)
    def delete_and_create(self, pick: int, is_wanted: bool) -> None:
        path = self.where(pick, [p for p in self.senders if p in "qs"] or ["nowhere"])
        entity = self.judge.model.entities.get(path)
        if is_wanted:
            self.judge.do(c.DeleteEntity(path))
        if entity is not None:
            self.judge.do(c.CreateQueue(path, entity.settings))

    @rule(pick=picks)
    def remark(self, pick: int) -> None:
        self.judge.do(c.Remark(self.where(pick, self.receivers), int(Note.POLLED)))
