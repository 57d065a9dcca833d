"""The judge: applies a command to core and to the model, and compares all that can be seen.

After every step: the reply or the class of the refusal, what was delivered to which link with which
counts, edits and bodies, sessions granted, links closed, and what browsing shows of every entity.
At a restart core is made again from its own changes, so that replay is judged too. What is right is
said in `model.py`; which commands are tried, in `machine.py`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from tandembus.changes import Change, Enqueued, decode_edits
from tandembus.core import commands as c
from tandembus.core import effects as e
from tandembus.core.namespace import Namespace
from tandembus.core.rules import Rule, SqlAction, SqlFilter, default_rule
from tandembus.core.state import State
from tandembus.errors import Refused
from tandembus.limits import MAX_BROWSE
from tandembus.model import NO_EDITS, PING_CONTENT_TYPE, Edits, Message, Payload, Value
from tests.property.model import Answer, Item, Model, Selects

Shown: TypeAlias = tuple[object, ...]
Factory: TypeAlias = Callable[[], Namespace]
START: Final = 1_000_000


@dataclass(frozen=True)
class Letter:
    """A message. Its payload is a name of its own, so that a mixed-up body shows."""

    payload: bytes
    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    content_type: str | None = None
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    priority: int | None = None
    correlation_id: str | None = None
    label: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    via_partition_key: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)

    @property
    def is_ping(self) -> bool:
        return self.content_type == PING_CONTENT_TYPE


MEANINGS: Final[Mapping[str, tuple[Selects, Edits | None]]] = {
    "$Default": (lambda properties: True, None),
    "red": (lambda properties: properties.get("colour") == "red", None),
    "not-red": (lambda properties: properties.get("colour", "red") != "red", None),
    "stamp": (lambda properties: properties.get("colour") == "red", Edits({"stamped": 1})),
}
"""What each rule of the tests selects and does, said in Python; `RULES` says it in SQL."""


RED: Final = SqlFilter("colour = 'red'")
RULES: Final[Mapping[str, Rule]] = {
    "$Default": default_rule(START),
    "red": Rule("red", RED, None, START),
    "not-red": Rule("not-red", SqlFilter("colour <> 'red'"), None, START),
    "stamp": Rule("stamp", RED, SqlAction("SET stamped = 1"), START),
}


def brief(value: object) -> str:
    """A value as a person would write it: what has its default is left out."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"[{', '.join(brief(each) for each in value)}]"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return (
            value.hex().lstrip("0")
            if isinstance(value, bytes) and len(value) == 16
            else repr(value)
        )
    shown = []
    for each in dataclasses.fields(value):
        given = getattr(value, each.name)
        if given != each.default and given != NO_EDITS and given != {}:
            shown.append(f"{each.name}={brief(given)}")
    return f"{type(value).__name__}({', '.join(shown)})"


class Divergence(AssertionError):
    """Core and model differ."""


@dataclass(frozen=True)
class Step:
    """What was done to both, so that it can be done again without some of the steps before it."""

    what: str
    now: int
    command: c.Command | None = None
    locks: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """Path and number of what the command's tokens lock: tokens differ from run to run."""


SYSTEM_REASONS: Final = (
    "MaxDeliveryCountExceeded",
    "TTLExpiredException",
    "MaxTransferHopCountExceeded",
    "Session ID is null.",
    "MessagingEntityDisabled",
    "MessagingEntityNotFound",
)


def shown_edits(edits: Edits) -> Shown:
    """The broker's own descriptions are for people, and not judged."""
    properties = dict(edits.properties)
    if properties.get("DeadLetterReason") in SYSTEM_REASONS:
        properties.pop("DeadLetterErrorDescription", None)
    return (sorted(properties.items()), sorted(edits.removed), sorted(edits.system.items()))


class Judge:
    """One namespace twice: as core has it, and as the model has it."""

    def __init__(self, factory: Factory = Namespace) -> None:
        self.factory = factory
        self.real = factory()
        self.model = Model(MEANINGS)
        self.now = START
        self.changes: list[Change] = []
        self.snapshot: tuple[bytes, int, set[int]] | None = None
        self.freed: set[int] = set()
        self.bodies: dict[int, Message] = {}
        self.letters: dict[Payload, Message] = {}
        self.tokens: dict[bytes, bytes] = {}  # the model's → core's
        self.steps: list[Step] = []
        self.seen: Counter[str] = Counter()

    # --- both sides -------------------------------------------------------------------------------

    def do(self, command: c.Command) -> Answer | None:
        """The same command to both, and a tick; None if both refuse it for the same reason."""
        self.steps.append(Step("do", self.now, command, self.locks_of(command)))
        outcome: e.Outcome | None = None
        real_refusal = model_refusal = None
        answer = Answer()
        try:
            outcome = self.take(self.real.apply(self.translated(command), self.now))
        except Refused as refusal:
            real_refusal = type(refusal)
        if isinstance(command, c.Attach) and outcome is not None:
            attached = outcome.reply
            if isinstance(attached, e.Attached) and attached.session_id is not None:
                self.model.prefer[command.link] = attached.session_id
        try:
            answer = self.model.apply(command, self.now)
        except Refused as refusal:
            model_refusal = type(refusal)
        self.check("refusal", real_refusal, model_refusal)
        done = "done" if real_refusal is None else real_refusal.__name__
        self.seen[f"{type(command).__name__}: {done}"] += 1
        if outcome is not None:
            self.check_reply(outcome.reply, answer.reply)
        self.pass_time(outcome, answer)
        return None if outcome is None else answer

    def tick(self) -> None:
        self.steps.append(Step("tick", self.now))
        self.pass_time(None, Answer())

    def pass_time(self, outcome: e.Outcome | None, answer: Answer) -> None:
        """A tick for both. Whether something happened in the command or in the tick is the same:
        the engine lets one follow the other before anything else."""
        ticked = self.take(self.real.tick(self.now))
        self.check_effects(
            [*(outcome.effects if outcome is not None else ()), *ticked.effects],
            answer.then(self.model.tick(self.now)),
        )
        wanted = self.real.next_deadline()
        self.check("overdue", wanted > self.now, True)
        self.check("would wake late", wanted <= self.model.next_deadline(), True)
        self.check_state()

    def dump(self) -> None:
        self.steps.append(Step("dump", self.now))
        self.snapshot = (b"".join(self.real.dump()), len(self.changes), set(self.freed))

    def restart(self) -> None:
        """Core dies, and is made again from its changes, or the last dump and the changes since."""
        self.steps.append(Step("restart", self.now))
        self.seen["restart"] += 1
        if self.snapshot is None:
            self.real, since, self.freed = self.factory(), 0, set()
        else:
            self.seen["restart with a dump"] += 1
            dumped, since, self.freed = self.snapshot
            self.real = type(self.real).load(dumped)
        for change in self.changes[since:]:
            self.real.replay(change)
        self.snapshot = None
        self.check_state()
        self.pass_time(self.take(self.real.restart(self.now)), self.model.restart(self.now))

    def take(self, outcome: e.Outcome) -> e.Outcome:
        """Notes the changes, and answers what core asks the engine for."""
        self.note(outcome.changes)
        effects = list(outcome.effects)
        self.loads = 0
        while loads := [effect for effect in effects if isinstance(effect, e.Load)]:
            effects = [effect for effect in effects if not isinstance(effect, e.Load)]
            self.check("loads without end", self.loads > 20, False)
            self.loads += 1
            for load in loads:
                found = {number: self.bodies[body] for number, body in load.bodies.items()}
                for more in (
                    self.real.apply(c.Loaded(load.entity, found), self.now),
                    self.real.tick(self.now),
                ):
                    self.note(more.changes)
                    effects += more.effects
        for effect in effects:
            if isinstance(effect, e.SessionGranted):
                self.model.prefer[effect.link] = effect.session_id
        return e.Outcome(outcome.reply, outcome.changes, effects)

    def note(self, changes: Sequence[Change]) -> None:
        self.changes += changes
        for change in changes:
            if isinstance(change, Enqueued):
                if change.payload is not None:
                    self.bodies[change.body] = self.letters[change.payload]
                reason = decode_edits(change.edits).properties.get("DeadLetterReason")
                if reason is not None:
                    self.seen[f"dead: {reason!s}"] += 1

    def locks_of(self, command: c.Command) -> dict[int, tuple[str, int]]:
        held = {
            item.token: (path, item.number)
            for path, entity in self.model.entities.items()
            for item in entity.items
        }
        tokens = command.tokens if isinstance(command, c.Settle | c.Renew) else ()
        return {place: held[token] for place, token in enumerate(tokens) if token in held}

    def again(self, step: Step) -> None:
        """Does a step of another run."""
        self.now = step.now
        match step.what:
            case "tick":
                self.tick()
            case "dump":
                self.dump()
            case "restart":
                self.restart()
            case _ if isinstance(command := step.command, c.Settle | c.Renew):
                tokens = list(command.tokens)
                for place, (path, number) in step.locks.items():
                    entity = self.model.entities.get(path)
                    for item in () if entity is None else entity.items:
                        if item.number == number and item.token is not None:
                            tokens[place] = item.token
                self.do(replace(command, tokens=tokens))
            case _ if step.command is not None:
                self.do(step.command)

    def translated(self, command: c.Command) -> c.Command:
        """The command with core's lock tokens in place of the model's."""
        if isinstance(command, c.Settle | c.Renew):
            return replace(command, tokens=[self.tokens.get(t, t) for t in command.tokens])
        if isinstance(command, c.Send):
            self.letters.update((message.payload, message) for message in command.messages)
            return replace(command)
        return command

    # --- comparing --------------------------------------------------------------------------------

    def check(self, what: str, real: object, model: object) -> None:
        if real != model:
            done = [f"{x.now}: {brief(x.command) if x.command else x.what}" for x in self.steps]
            raise Divergence("\n  ".join([what, f" core: {real}", f"model: {model}", *done]))

    def check_reply(self, real: object, model: object) -> None:
        if isinstance(model, list) and model and isinstance(model[0], Item):
            assert isinstance(real, tuple | list)
            self.check_deliveries("reply", real, model)
        elif isinstance(model, list):
            assert isinstance(real, tuple | list)
            self.check("reply", list(real), model)
        elif isinstance(model, tuple):
            self.check("reply", tuple(real) if isinstance(real, tuple) else real, model)
        else:
            self.check("reply", real, model)

    def check_effects(self, effects: Sequence[e.Effect], answer: Answer) -> None:
        delivered: dict[int, list[e.Delivery]] = {}
        closed = {}
        for effect in effects:
            match effect:
                case e.Deliver(link, deliveries):
                    delivered.setdefault(link, []).extend(deliveries)
                case e.LinkClosed(link, error):
                    closed[link] = type(error)
        numbers = {n: [d.sequence_number for d in ds] for n, ds in delivered.items()}
        expected = {n: [item.number for item in items] for n, items in answer.delivered.items()}
        self.check("delivered", numbers, expected)
        for link, deliveries in delivered.items():
            self.check_deliveries(f"link {link}", deliveries, answer.delivered[link])
        granted = {
            g.link: (g.session_id, g.locked_until_ms)
            for g in effects
            if isinstance(g, e.SessionGranted)
        }
        self.check("granted", granted, answer.granted)
        self.check("closed", closed, answer.closed)
        self.seen.update({"delivered": len(delivered), "granted": len(granted)})
        self.seen.update(f"closed: {error.__name__}" for error in closed.values())

    def check_deliveries(
        self, what: str, real: Sequence[e.Delivery], model: Sequence[Item]
    ) -> None:
        self.check(what, [self.shown(d) for d in real], [shown_item(item) for item in model])
        for delivery, item in zip(real, model, strict=True):
            self.check(f"{what}: has a token", delivery.token is None, item.token is None)
            if delivery.token is not None and item.token is not None:
                assert len(delivery.token) == 16
                self.check("a token twice", delivery.token in self.tokens.values(), False)
                self.tokens[item.token] = delivery.token
                self.check("locked until", delivery.locked_until_ms, item.until)

    def shown(self, delivery: e.Delivery) -> Shown:
        return (
            delivery.sequence_number,
            self.bodies[delivery.body].payload,
            delivery.state in (State.DEFERRED, State.DEFERRED_LOCKED),
            delivery.delivery_count,
            delivery.enqueued_ms,
            delivery.level,
            delivery.session_id,
            shown_edits(decode_edits(delivery.edits)),
        )

    def check_state(self) -> None:
        """All that browsing shows, of every entity; the counters; and which bodies are needed."""
        needed: set[int] = set()
        for path, entity in self.model.entities.items():
            outcome = self.real.apply(c.Browse(path, 0, MAX_BROWSE), self.now)
            assert isinstance(outcome.reply, tuple | list)
            items = sorted(entity.items, key=lambda item: item.number)
            real = [self.shown(delivery) for delivery in outcome.reply]
            self.check(f"browse {path}", real, [shown_item(item) for item in items])
            states = [d.state for d in outcome.reply]
            self.check(f"states in {path}", states, [item.state for item in items])
            needed.update(delivery.body for delivery in outcome.reply)
            counted = Counter(item.state for item in items)
            queue = self.real.find(path)
            self.check(f"counts of {path}", queue.counts, [counted[state] for state in State])
            size = sum(len(item.message.payload) for item in items)
            self.check(f"size of {path}", queue.size_bytes, size)
            if entity.has_sessions and queue.sessions is not None:
                kept = {each.id: each.state for each in queue.sessions if each.state is not None}
                wanted = {n: s.state for n, s in entity.sessions.items() if s.state is not None}
                self.check(f"session states of {path}", kept, wanted)
        self.check("freed again", sorted(self.freed.intersection(self.real.freed)), [])
        self.check("freed twice", len(set(self.real.freed)), len(self.real.freed))
        self.freed.update(self.real.freed)
        self.real.freed.clear()
        self.check("freed", sorted(self.freed), sorted(self.bodies.keys() - needed))


def shown_item(item: Item) -> Shown:
    return (
        item.number,
        item.message.payload,
        item.state in (State.DEFERRED, State.DEFERRED_LOCKED),
        item.count,
        item.enqueued,
        item.level,
        item.session,
        shown_edits(item.edits),
    )


# --- what remains of a long story -----------------------------------------------------------------


def failure_of(steps: Sequence[Step], factory: Factory) -> Exception | None:
    judge = Judge(factory)
    try:
        for step in steps:
            judge.again(step)
    except Exception as error:  # noqa: BLE001 - whatever core raises is what is looked for
        return error
    return None


def reduced(steps: Sequence[Step], factory: Factory) -> Exception | None:
    """The failure of these steps with all taken away that it does not need (and quicker than
    Hypothesis would). None if it does not come again."""
    failure = failure_of(steps, factory)
    left, size = list(steps), len(steps)
    while failure is not None and size:
        at = 0
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            again = failure_of(fewer, factory)
            if again is not None and str(again).split("\n")[0] == str(failure).split("\n")[0]:
                left, failure = fewer, again
            else:
                at += size
        size //= 2
    return failure
