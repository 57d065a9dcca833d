"""Who uses the broker in a simulated world: senders, receivers, holders of sessions, meddlers.

What lives here: `Client`, through which every command goes past the ledger, and what each kind of
client does. What does not: what is right (`checkers`) and when the broker fails (`world`).

The rule: a client knows what it was told, and nothing else. After a crash it has lost its links and
begins again. Some are rude on purpose: they settle late, twice, with tokens of others, or vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.changes import Mode
from tandembus.core.commands import (
    NEXT_SESSION,
    Attach,
    Browse,
    CancelScheduled,
    ChangePriority,
    CountSessions,
    DeadLetterSession,
    Declare,
    DeleteMessages,
    Detach,
    Discharge,
    Disposition,
    Flow,
    GetSessionState,
    ListSessions,
    NextSession,
    Reactivate,
    ReceiveDeferred,
    Renew,
    RenewSession,
    Send,
    SetSessionState,
    Settle,
)
from tandembus.core.effects import Attached, Delivery
from tandembus.core.state import State
from tandembus.errors import MessageNotFoundError, Refused, ServerBusyError
from tandembus.limits import MINUTE_MS
from tandembus.model import NEVER, NO_EDITS, Edits, Millis
from tests.simulation.checkers import Letter, Link, Settling, Violation
from tests.simulation.mix import COLOURS, Place, Target

if TYPE_CHECKING:
    from tests.simulation.world import World


class Unknown:
    """Stands for an answer: the broker ended before it gave one."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = Unknown()
Then: TypeAlias = Callable[[Any], None]
Token: TypeAlias = bytes

DISPOSITIONS: Final = (
    [Disposition.COMPLETE] * 13
    + [Disposition.ABANDON] * 3
    + [Disposition.DEFER, Disposition.DEAD_LETTER, Disposition.RELEASE]
)


def _ignore(reply: Any) -> None:
    """Whatever the answer is."""


class Client:
    """Asks, and has the ledger told of what was asked and answered."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = world.ledger
        self.random = world.random
        self._life = 0

    # --- what a kind of client overrides ----------------------------------------------------------

    def start(self) -> None:
        """The broker is there."""

    def crashed(self) -> None:
        """The broker is gone, and all links with it."""
        self._life += 1

    def delivered(self, link: int, deliveries: Sequence[Delivery]) -> None: ...

    def granted(self, link: int, session_id: str) -> None: ...

    def closed(self, link: int) -> None: ...

    # --- time -------------------------------------------------------------------------------------

    def later(self, delay_ms: float, call: Callable[[], None]) -> None:
        """Unless the broker crashes before."""
        self.world.after(delay_ms, self.in_this_life(call))

    def in_this_life(self, call: Callable[[], None]) -> Callable[[], None]:
        life = self._life

        def guarded() -> None:
            if life == self._life and self.world.is_up:
                call()

        return guarded

    def think_ms(self) -> float:
        mean = self.world.mix.think_ms
        if self.random.random() < 0.2:
            return self.random.uniform(0, 50)
        return min(self.random.expovariate(1 / mean), 8 * mean)

    # --- sending ----------------------------------------------------------------------------------

    def letter(self, target: Target, message_id: str | None = None) -> Letter:
        """A message as this world's clients write them."""
        rng, mix = self.random, self.world.mix
        number = self.world.counts["letters"] = self.world.counts["letters"] + 1
        now = self.world.now_ms
        due: Millis = 0
        ttl: Millis = NEVER
        if rng.random() < mix.schedules:
            due = now + rng.choice((-1_000, 1_000, 20_000, 300_000))
        if rng.random() < mix.lives:
            ttl = rng.choice((1_000, 30_000, 400_000))
        if target.window_ms and message_id is None:
            message_id = f"m{rng.randrange(60)}" if rng.random() < 0.7 else f"u{number}"
        session = f"s{rng.randrange(5)}" if target.has_sessions else None
        colour = rng.choice(COLOURS)
        size = rng.choice((20, 120, 120, 700))
        payload = encode_message(
            body=rng.randbytes(size) + number.to_bytes(8, "big"),
            message_id=message_id,
            session_id=session,
            label=colour,
            properties={"colour": colour},
            ttl_ms=None if ttl == NEVER else ttl,
            priority=rng.randrange(10) if target.levels > 1 else None,
            scheduled_ms=due or None,
            partition_key=f"k{number % 3}" if target.path == "parted" and number % 2 else None,
        )
        is_due_later = due > now
        return Letter(
            number,
            target,
            payload,
            now,
            due if is_due_later else 0,
            ttl,
            message_id,
            session,
            colour,
        )

    def send(self, letters: Sequence[Letter], then: Then) -> bool:
        """All to the same target."""
        ledger, target = self.ledger, letters[0].target
        deed = ledger.sending(letters, self.world.now_ms)

        def answered(reply: Any) -> None:
            if reply is UNKNOWN:
                ledger.lost_sight_of_send(deed, letters)
            elif isinstance(reply, Refused):
                if not isinstance(reply, ServerBusyError):
                    raise Violation("P1", f"a good send was refused: {reply}")
                deed.disprove()
            else:
                ledger.sent(deed, letters, reply)
            then(reply)

        messages = [AmqpMessage(letter.payload) for letter in letters]
        if self.world.ask(Send(target.path, messages), answered):
            return True
        deed.disprove()
        return False

    def cancel(self, letter: Letter) -> None:
        ledger, now = self.ledger, self.world.now_ms
        deed = ledger.deed(f"the cancelling of {letter.number}", "P2")
        deed.ends = [(copy, "cancelled") for copy in letter.copies]
        must_work = now < letter.due_ms and all(one.outcome is False for one in letter.cancels)

        def answered(reply: Any) -> None:
            if isinstance(reply, Refused):
                if must_work or not isinstance(reply, MessageNotFoundError):
                    raise Violation("P1", f"scheduled {letter.number} cannot be cancelled: {reply}")
                deed.disprove()
            elif reply is not UNKNOWN:
                deed.prove()

        letter.cancels.append(deed)
        for copy in letter.copies:
            copy.doubts.append(deed)
        if not self.world.ask(
            CancelScheduled(letter.target.path, [letter.sequence_number]), answered
        ):
            deed.disprove()

    # --- receiving --------------------------------------------------------------------------------

    def attach(
        self,
        place: Place,
        then: Callable[[int, Any], None],
        mode: Mode = Mode.PEEK_LOCK,
        session: str | NextSession | None = None,
        timeout_ms: Millis = 20_000,
    ) -> int:
        world, ledger = self.world, self.ledger
        link = world.new_link(self)
        ledger.links[link] = Link(place, mode)

        def answered(reply: Any) -> None:
            if isinstance(reply, Refused):
                ledger.links.pop(link, None)
            elif isinstance(reply, Attached) and reply.session_id is not None:
                ledger.granted(link, reply.session_id, reply.locked_until_ms)
            then(link, reply)

        if not world.ask(Attach(link, place.path, mode, session, timeout_ms), answered):
            ledger.links.pop(link, None)
        return link

    def flow(self, link: int, credit: int, then: Then = _ignore, *, drain: bool = False) -> None:
        known = self.ledger.links.get(link)
        if known is None or known.is_detaching:
            return
        known.granted += credit

        def answered(reply: Any) -> None:
            if drain and isinstance(reply, int):
                assert known is not None
                known.granted -= reply
            then(reply)

        nonce = self.random.getrandbits(64)
        if not self.world.ask(Flow(link, credit, nonce, drain), answered):
            known.granted -= credit

    def detach(self, link: int, then: Then = _ignore) -> None:
        ledger = self.ledger
        if link not in ledger.links:
            return

        def answered(reply: Any) -> None:
            if reply is not UNKNOWN:
                ledger.links.pop(link, None)
            then(reply)

        if self.world.is_up:
            ledger.detaching(link)
            self.world.ask(Detach(link), answered)

    # --- settling ---------------------------------------------------------------------------------

    def settle(
        self,
        place: Place,
        tokens: Sequence[Token],
        disposition: Disposition,
        then: Then = _ignore,
        *,
        edits: Edits = NO_EDITS,
        delay_ms: Millis = 0,
    ) -> None:
        if not self.world.is_up:
            return
        ledger = self.ledger
        away_until = self.world.now_ms + delay_ms if delay_ms else 0
        settling = ledger.settling(place, tokens, disposition, self.world.now_ms)

        def answered(reply: Any) -> None:
            if isinstance(reply, Refused):
                ledger.settling_refused(settling, is_expected=False)
            elif reply is not UNKNOWN:
                self._settled(settling, away_until)
            then(reply)

        command = Settle(place.path, tokens, disposition, edits, delay_ms=delay_ms)
        self.world.ask(command, answered)

    def _settled(self, settling: Settling, away_until: Millis = 0) -> None:
        self.ledger.settled(settling, self.world.now_ms, away_until)
        if settling.disposition is Disposition.DEFER:
            for hold in settling.holds:
                self.world.deferred.append((settling.place, hold.number, hold.session_id))

    def renew(self, place: Place, tokens: Sequence[Token]) -> None:
        if not self.world.is_up:
            return
        until = self.ledger.renewing(place, tokens, self.world.now_ms)

        def answered(reply: Any) -> None:
            if reply is UNKNOWN:
                return
            if isinstance(reply, Refused):
                if until is not None:
                    raise Violation("P4", f"a lock that was held was not renewed: {reply}")
            elif list(reply) != [until] * len(tokens):
                raise Violation("P4", f"renewed until {reply}, not {until}")

        self.world.ask(Renew(place.path, tokens), answered)

    def receive_deferred(
        self,
        place: Place,
        numbers: Sequence[int],
        then: Callable[[Sequence[Delivery]], None],
        mode: Mode = Mode.PEEK_LOCK,
        session: str | None = None,
        link: int = 0,
    ) -> None:
        world, ledger = self.world, self.ledger
        if not world.is_up:
            return
        deed = ledger.deed(f"the taking of {numbers}", "P3")
        asked = ledger.order + 1
        copies = [
            copy
            for number in numbers
            if (letter := ledger.numbers.get((place.path, number))) is not None
            and (copy := ledger.copies.get((letter, place.family))) is not None
        ]
        if mode is Mode.RECEIVE_AND_DELETE:
            deed.order = asked
            for copy in copies:
                copy.doubts.append(deed)

        def answered(reply: Any) -> None:
            if isinstance(reply, Refused):
                deed.disprove()
            elif reply is not UNKNOWN:
                rows = world.read(reply)
                for copy in copies:
                    if deed in copy.doubts:
                        copy.doubts.remove(deed)
                ledger.received_deferred(place, link, rows, mode, asked, world.now_ms)
                then(reply)

        nonce = self.random.getrandbits(64)
        command = ReceiveDeferred(place.path, numbers, nonce, mode, session, link)
        world.ask(command, answered)


class Sender(Client):
    """Sends to any target, in batches, one after the other or in bursts."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._again: list[Letter] = []
        """Sends without an answer, to where duplicates are found: they are sent again."""

    def start(self) -> None:
        self.later(self.random.uniform(0, 3_000), self._act)

    def _act(self) -> None:
        rng = self.random
        times = rng.randint(2, 6) if rng.random() < self.world.mix.burst else 1
        for _ in range(times):
            target = rng.choice(self.world.mix.targets)
            count = rng.choice((1, 1, 1, 2, 4))
            letters = [self.letter(target) for _ in range(count)]
            if self._again and rng.random() < 0.8:
                old = self._again.pop()
                letters = [self.letter(old.target, old.message_id)]
            if not self.send(letters, partial(self._answered, letters)):
                return
        self.later(self.think_ms(), self._act)

    def _answered(self, letters: Sequence[Letter], reply: Any) -> None:
        if reply is UNKNOWN:
            self._again += [letter for letter in letters if letter.target.window_ms]
        elif not isinstance(reply, Refused):
            for letter in letters:
                if letter.due_ms and letter.sequence_number and self.random.random() < 0.15:
                    delay = self.random.uniform(0, 60_000)
                    self.later(delay, partial(self.cancel, letter))


class Receiver(Client):
    """Receives from a place without sessions, and decides about each message in some way."""

    def __init__(self, world: World, place: Place, mode: Mode) -> None:
        super().__init__(world)
        self.place = place
        self.mode = mode
        self._link = 0
        self._credit = 0
        self._old_tokens: list[Token] = [bytes(16)]

    def start(self) -> None:
        self.later(self.random.uniform(0, 5_000), self._open)

    def _open(self) -> None:
        self._credit = 0
        self._link = self.attach(self.place, self._attached, self.mode)

    def _attached(self, link: int, reply: Any) -> None:
        if isinstance(reply, Attached):
            self.world.react(self.in_this_life(self._refill), self.random.uniform(0, 100))

    def _refill(self) -> None:
        """Ask for more when nothing is under way: so it is known how much can be lost."""
        if self._credit <= 0 and self._link:
            self._credit = self.random.randint(1, 12)
            drain = self.random.random() < 0.3
            then = partial(self._drained, self._link) if drain else _ignore
            self.flow(self._link, self._credit, then, drain=drain)

    def _drained(self, link: int, reply: Any) -> None:
        if isinstance(reply, int) and link == self._link:
            self._credit -= reply
            self.later(self.think_ms(), self._refill)

    def delivered(self, link: int, deliveries: Sequence[Delivery]) -> None:
        if link == self._link:
            self._credit -= len(deliveries)
        mix, rng = self.world.mix, self.random
        if link == self._link and rng.random() < mix.vanishes:
            self._vanish()
            return
        if self.mode is Mode.RECEIVE_AND_DELETE:
            self.later(self.think_ms(), self._refill)
            return
        tokens = [delivery.token for delivery in deliveries if delivery.token is not None]
        while tokens:
            count = rng.choice((1, 1, 2, 8))
            part, tokens = tokens[:count], tokens[count:]
            decide = self.in_this_life(partial(self._decide, part))
            self.world.react(decide, self._work_ms())
        self.later(self.think_ms(), self._refill)

    def _work_ms(self) -> float:
        draw, lock = self.random.random(), self.place.lock_ms
        if draw < 0.7:
            return self.random.uniform(0, 200)
        return self.random.uniform(0, lock if draw < 0.98 else 1.5 * lock)

    def _vanish(self) -> None:
        """Never settles. Its link is noticed to be dead at once, or after a while."""
        link, self._link = self._link, 0
        close = self.in_this_life(partial(self.detach, link))
        self.world.react(close, self.random.uniform(0, 2 * self.place.lock_ms))
        self.later(self.think_ms(), self._open)

    def _decide(self, tokens: list[Token]) -> None:
        rng, mix = self.random, self.world.mix
        if rng.random() < 0.08:
            self.renew(self.place, tokens)
            self.later(self._work_ms(), partial(self._decide, tokens))
            return
        if rng.random() < mix.transactions:
            Transaction(self, tokens).begin()
            return
        disposition = rng.choice(DISPOSITIONS)
        if disposition is Disposition.DEAD_LETTER and self.place.is_dead_letter:
            disposition = Disposition.COMPLETE
        edits = NO_EDITS
        if disposition is not Disposition.COMPLETE and rng.random() < 0.2:
            if disposition is not Disposition.RELEASE:
                edits = Edits({"attempt": rng.randrange(100)})
        if rng.random() < mix.rude:
            self._be_rude(tokens)
        delay_ms = 0
        if disposition in (Disposition.ABANDON, Disposition.RELEASE) and rng.random() < 0.3:
            delay_ms = rng.choice((100, 1_000, 5_000))
        self.settle(self.place, tokens, disposition, edits=edits, delay_ms=delay_ms)
        if rng.random() < mix.rude:
            again = partial(self.settle, self.place, tokens, rng.choice(DISPOSITIONS))
            self.world.react(self.in_this_life(again), rng.uniform(0, 3_000))
        self._old_tokens = [*self._old_tokens[-20:], *tokens]

    def _be_rude(self, tokens: Sequence[Token]) -> None:
        """Tokens of others, of before, of nobody; the same one twice; another queue's."""
        rng = self.random
        foreign = rng.choice(self._old_tokens)
        match rng.randrange(4):
            case 0:
                self.settle(self.place, [foreign], Disposition.COMPLETE)
            case 1:
                self.settle(self.place, [*tokens, foreign], Disposition.COMPLETE)
            case 2:
                self.settle(self.place, [*tokens, *tokens], Disposition.ABANDON)
            case _:
                elsewhere = rng.choice(list(self.world.mix.places.values()))
                if elsewhere is not self.place:
                    self.settle(elsewhere, tokens, Disposition.COMPLETE)


class Transaction:
    """Settles what was received, and sends something for it: all or nothing."""

    def __init__(self, client: Receiver, tokens: Sequence[Token]) -> None:
        self._client = client
        self._world = client.world
        self._place = client.place
        self._tokens = tokens
        self._number = 0
        self._letters: list[Letter] = []
        self._disposition = client.random.choice(
            (Disposition.COMPLETE, Disposition.COMPLETE, Disposition.ABANDON)
        )
        self._steps: list[Callable[[], None]] = []
        self._is_spoiled = False

    def begin(self) -> None:
        rng = self._client.random
        self._steps = [self._settle, *[self._send] * rng.randint(1, 2)]
        rng.shuffle(self._steps)
        self._world.ask(Declare(), self._declared)

    def _declared(self, reply: Any) -> None:
        if isinstance(reply, int):
            self._number = reply
            self._next()

    def _next(self, reply: Any = None) -> None:
        if reply is UNKNOWN:
            return
        self._is_spoiled |= isinstance(reply, Refused)
        rng = self._client.random
        if rng.random() < 0.03:
            return  # forgotten: it must end by itself
        step = self._steps.pop() if self._steps and not self._is_spoiled else self._discharge
        delay = rng.uniform(0, 400) if rng.random() < 0.9 else rng.uniform(0, 2 * MINUTE_MS)
        self._world.react(self._client.in_this_life(step), delay)

    def _settle(self) -> None:
        command = Settle(
            self._place.path, self._tokens, self._disposition, transaction=self._number
        )
        self._world.ask(command, self._next)

    def _send(self) -> None:
        client = self._client
        target = client.random.choice(self._world.mix.targets)
        number = self._world.counts["letters"]
        letters = [
            client.letter(target, f"t{number} {at}" if target.window_ms else None)
            for at in range(client.random.choice((1, 1, 2)))
        ]
        self._letters += letters
        messages = [AmqpMessage(letter.payload) for letter in letters]
        self._world.ask(Send(target.path, messages, transaction=self._number), self._next)

    def _discharge(self) -> None:
        fails = self._is_spoiled or self._client.random.random() < 0.2
        if fails:
            # Nothing of it is in the ledger: whatever turns up is one that nobody sent.
            self._world.ask(Discharge(self._number, fail=True), _ignore)
            return
        ledger, now = self._client.ledger, self._world.now_ms
        what = f"transaction {self._number}"
        deed = ledger.sending(self._letters, now, "P9", what)
        settling = ledger.settling(self._place, self._tokens, self._disposition, now)
        settling = settling._replace(deed=deed)
        if settling.is_good:
            ledger.let_go(settling, deed)

        def answered(reply: Any) -> None:
            if reply is UNKNOWN:
                ledger.open_transactions.append(deed)
                ledger.counts["unknown transactions"] += 1
            elif isinstance(reply, Refused):
                ledger.settling_refused(settling, is_expected=True)
            else:
                ledger.settled(settling, now)
                ledger.counts["transactions"] += 1

        if not self._world.ask(Discharge(self._number), answered):
            deed.disprove()


class SessionReceiver(Client):
    """Takes one session after the other, works through it, and keeps a state."""

    def __init__(self, world: World, place: Place) -> None:
        super().__init__(world)
        self.place = place
        self._link = 0
        self._session: str | None = None
        self._left = 0
        self._states = 0

    def start(self) -> None:
        self.later(self.random.uniform(0, 5_000), self._open)

    def _open(self) -> None:
        rng = self.random
        session = f"s{rng.randrange(5)}" if rng.random() < 0.3 else NEXT_SESSION
        timeout = rng.choice((100, 10_000, 60_000))
        self._session = None
        self._link = self.attach(self.place, self._attached, session=session, timeout_ms=timeout)

    def _attached(self, link: int, reply: Any) -> None:
        if isinstance(reply, Attached) and reply.session_id is not None:
            self.granted(link, reply.session_id)
        elif isinstance(reply, Refused):
            self.later(self.think_ms(), self._open)

    def granted(self, link: int, session_id: str) -> None:
        if link != self._link:
            return
        self._session = session_id
        self._left = self.random.randint(1, 12)
        self.world.react(self.in_this_life(partial(self._work, link)), self.random.uniform(0, 100))
        self.later(self.random.uniform(500, 1.5 * self.place.lock_ms), partial(self._leave, link))

    def closed(self, link: int) -> None:
        if link == self._link:
            self._link = 0
            self.later(self.think_ms(), self._open)

    def _leave(self, link: int) -> None:
        if link != self._link:
            return
        rng = self.random
        if rng.random() < self.world.mix.vanishes:
            self._link = 0  # the lock must end by itself
        elif rng.random() < 0.3:
            self._renew(link)
            self.later(rng.uniform(500, 1.2 * self.place.lock_ms), partial(self._leave, link))
            return
        else:
            self._link = 0
            self.detach(link)
        self.later(self.think_ms(), self._open)

    def _renew(self, link: int) -> None:
        if self._session is None:
            return
        until = self.ledger.renewing_session(link, self.world.now_ms)

        def answered(reply: Any) -> None:
            if reply is UNKNOWN:
                return
            if isinstance(reply, Refused) != (until is None):
                raise Violation("P4", f"renewing a session gave {reply}, not {until}")
            if until is not None and reply != until:
                raise Violation("P4", f"a session was renewed until {reply}, not {until}")

        self.world.ask(RenewSession(self.place.path, self._session, link), answered)

    def _work(self, link: int) -> None:
        if link != self._link or self._session is None:
            return
        rng = self.random
        draw = rng.random()
        if draw < 0.25:
            self._use_state(link, self._session)
        mine = [
            row for row in self.world.deferred if row[0] is self.place and row[2] == self._session
        ]
        if mine and rng.random() < 0.5:
            row = rng.choice(mine)
            self.world.deferred.remove(row)
            done = partial(self._fetched, link)
            self.receive_deferred(self.place, [row[1]], done, session=self._session, link=link)
        self.flow(link, rng.randint(1, 6))

    def _use_state(self, link: int, session: str) -> None:
        path, ledger = self.place.path, self.ledger
        holds = ledger.has_session(link, self.world.now_ms)
        self._states += 1
        state = b"%d %d" % (link, self._states)
        is_get = self.random.random() < 0.5

        def answered(reply: Any) -> None:
            if reply is UNKNOWN:
                return
            if isinstance(reply, Refused) == holds:
                raise Violation("P4", f"the state of a session: {reply}, but held is {holds}")
            if is_get and holds:
                ledger.state_got(path, session, reply)
            elif not is_get:
                ledger.state_set(path, session, state, done=holds)

        if is_get:
            self.world.ask(GetSessionState(path, session, link), answered)
        else:
            ledger.state_asked(path, session, state)
            self.world.ask(SetSessionState(path, session, state, link), answered)

    def _fetched(self, link: int, deliveries: Sequence[Delivery]) -> None:
        self.delivered(link, deliveries)

    def delivered(self, link: int, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.token is None:
                continue
            decide = partial(self._decide, link, delivery.token)
            self.world.react(self.in_this_life(decide), self.random.uniform(0, 2_000))

    def _decide(self, link: int, token: Token) -> None:
        rng = self.random
        if rng.random() < 0.05:
            return  # left to the end of the session
        disposition = rng.choice(DISPOSITIONS)
        self.settle(self.place, [token], disposition)
        if rng.random() < self.world.mix.rude:
            self.settle(self.place, [token], Disposition.COMPLETE)
        self._left -= 1
        if self._left == 0:
            self._leave(link)
        else:
            self.later(self.think_ms() / 4, partial(self._work, link))


class Meddler(Client):
    """Looks around, and does the rarer things."""

    def start(self) -> None:
        self.later(self.random.uniform(0, 10_000), self._act)

    def _act(self) -> None:
        rng = self.random
        place = rng.choice(list(self.world.mix.places.values()))
        draw = rng.random()
        if draw < 0.35:
            self._browse(place)
        elif draw < 0.75:
            self._fetch()
        elif draw < 0.78:
            self.world.ask(rng.choice((ListSessions, CountSessions))(place.path), _ignore)
        elif draw < 0.80:
            self._bury_session(place)
        elif draw < 0.85:
            self.settle(place, [rng.randbytes(16)], rng.choice(DISPOSITIONS))
        elif draw < 0.90 and self.world.mix.purges:
            self._purge(place)
        self.later(self.think_ms(), self._act)

    def _browse(self, place: Place) -> None:
        asked = self.ledger.order + 1

        def answered(reply: Any) -> None:
            if reply is UNKNOWN or isinstance(reply, Refused):
                return
            for delivery, payload in self.world.read(reply):
                self.ledger.see(place, delivery, payload, asked)
            if place.levels > 1 and reply:
                self._move(place, self.random.choice(reply))

        start = self.random.choice((0, 0, self.random.randrange(400)))
        self.world.ask(Browse(place.path, start, self.random.choice((1, 10, 250))), answered)

    def _move(self, place: Place, delivery: Delivery) -> None:
        """Give a waiting message another level."""
        number = self.ledger.numbers[place.path, delivery.sequence_number]
        if delivery.state is State.WAITING:
            self.ledger.copies[number, place.family].has_moved_level = True
            level = self.random.randrange(place.levels)
            self.world.ask(ChangePriority(place.path, delivery.sequence_number, level), _ignore)

    def _fetch(self) -> None:
        rng, world = self.random, self.world
        rows = [row for row in world.deferred if row[2] is None]
        if not rows:
            return
        row = rng.choice(rows)
        world.deferred.remove(row)
        place, number, _ = row
        if rng.random() < 0.3 and world.is_up:
            self.ledger.reactivating(place, number)
            world.ask(Reactivate(place.path, [number]), _ignore)
            return
        takes = rng.random() < world.mix.takes
        mode = Mode.RECEIVE_AND_DELETE if takes else Mode.PEEK_LOCK
        self.receive_deferred(place, [number], partial(self._fetched, place), mode)

    def _fetched(self, place: Place, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.token is not None:
                disposition = self.random.choice(DISPOSITIONS)
                if place.is_dead_letter and disposition is Disposition.DEAD_LETTER:
                    disposition = Disposition.DEFER
                decide = partial(self.settle, place, [delivery.token], disposition)
                self.later(self.random.uniform(0, 1.1 * place.lock_ms), decide)

    def _bury_session(self, place: Place) -> None:
        if place.has_sessions and not place.is_dead_letter and self.world.is_up:
            names = sorted({copy.letter.session_id or "" for copy in self.ledger.copies.values()})
            session_id = self.random.choice(names) if names else ""
            self.ledger.burying_session(place, session_id)
            self.world.ask(DeadLetterSession(place.path, session_id), _ignore)

    def _purge(self, place: Place) -> None:
        count = self.random.randint(1, 4)
        ledger = self.ledger

        def answered(reply: Any) -> None:
            if reply is UNKNOWN:
                ledger.missing[place.family] += count
            elif isinstance(reply, int):
                ledger.missing[place.family] += reply
                ledger.counts["purged"] += reply

        self.world.ask(DeleteMessages(place.path, count, self.world.now_ms), answered)


class Drain(Client):
    """Well-behaved: completes everything it gets. Must get everything."""

    CREDIT: Final = 5_000

    def __init__(self, world: World, place: Place) -> None:
        super().__init__(world)
        self.place = place
        self._is_finishing = False
        self._wanted: Delivery | None = None
        self._waiting: set[int] = set()

    def start(self) -> None:
        if self.place.has_sessions:
            for _ in range(3):
                self._next_session()
        else:
            self.attach(self.place, self._attached)

    def finish(self) -> None:
        """Those who wait for a session go; so each session is free for what was deferred."""
        self._is_finishing = True
        for link in list(self._waiting):
            self.detach(link)

    def fetch_deferred(self, delivery: Delivery) -> None:
        self._wanted = delivery
        if self.place.has_sessions:
            self.attach(self.place, self._attached, session=delivery.session_id)
        else:
            self._fetch(0)

    def _fetch(self, link: int) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self.receive_deferred(
                self.place,
                [wanted.sequence_number],
                partial(self.delivered, link),
                session=wanted.session_id,
                link=link,
            )

    def _next_session(self) -> None:
        link = self.attach(
            self.place, self._attached, session=NEXT_SESSION, timeout_ms=1_000_000_000
        )
        self._waiting.add(link)

    def _attached(self, link: int, reply: Any) -> None:
        if isinstance(reply, Refused):
            raise Violation("liveness", f"{self.place.path} cannot be received from: {reply}")
        if isinstance(reply, Attached):
            self.granted(link, reply.session_id or "")

    def granted(self, link: int, session_id: str) -> None:
        self._waiting.discard(link)
        self._fetch(link)
        if self.place.has_sessions:
            # All that there is now; then the next session.
            self.flow(link, self.CREDIT, partial(self._emptied, link), drain=True)
        else:
            self.flow(link, self.CREDIT)

    def _emptied(self, link: int, reply: Any) -> None:
        self.detach(link)
        if not self._is_finishing:
            self._next_session()

    def delivered(self, link: int, deliveries: Sequence[Delivery]) -> None:
        tokens = [delivery.token for delivery in deliveries if delivery.token is not None]
        if tokens:
            self.settle(self.place, tokens, Disposition.COMPLETE)
            if not self.place.has_sessions and link:
                self.flow(link, self.CREDIT)


def crew(world: World) -> list[Client]:
    """The clients of a world."""
    mix, rng = world.mix, world.random
    clients: list[Client] = [Sender(world) for _ in range(mix.senders)]
    for place in mix.receivable:
        count = int(mix.receivers_per_place + rng.random())
        if place.is_dead_letter:
            count = rng.random() < 0.4
        for _ in range(count):
            if place.has_sessions:
                clients.append(SessionReceiver(world, place))
            else:
                takes = rng.random() < mix.takes
                mode = Mode.RECEIVE_AND_DELETE if takes else Mode.PEEK_LOCK
                clients.append(Receiver(world, place, mode))
    clients.append(Meddler(world))
    return clients
