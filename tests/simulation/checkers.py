"""What clients were told, and whether it fits the promises of docs/promises.md.

What lives here: the `Ledger`, which sees every command when it is asked, every answer and every
effect when it comes out, and nothing of the inside; `Violation`, what it raises. What does not:
who asks and why (`clients`), when things happen (`world`).

How it knows what it cannot see: a *deed* is what one command would do, all or nothing (messages
that come to be, messages that end). Its outcome is known by its answer or, after a crash, by what
is seen later: one message of it that turns up proves the whole of it, one message that comes back
disproves it. Deeds never proven may have happened or not, but not both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tandembus.changes import Mode
from tandembus.core.commands import Disposition
from tandembus.core.effects import Delivery
from tandembus.core.state import State
from tandembus.model import NEVER, Millis
from tests.simulation.mix import Mix, Place, Route, Target

PARTITION_SHIFT: Final = 48
PROMPT_MS: Final = 100


class Violation(Exception):
    """A promise was not kept."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


@dataclass(slots=True, eq=False)
class Letter:
    """A message as its sender knows it. The number is the end of its body."""

    number: int
    target: Target
    payload: bytes
    asked_ms: Millis
    due_ms: Millis = 0
    ttl_ms: Millis = NEVER
    message_id: str | None = None
    session_id: str | None = None
    colour: str = ""
    copies: list[Copy] = field(default_factory=list)
    sequence_number: int = 0
    """The answer to its send."""
    cancels: list[Deed] = field(default_factory=list)
    """Each time that its cancelling was asked for."""


@dataclass(slots=True, eq=False)
class Deed:
    """What one command does, as a whole or not at all."""

    what: str
    births: list[Copy] = field(default_factory=list)
    ends: list[tuple[Copy, str]] = field(default_factory=list)
    outcome: bool | None = None
    promise: str = "P9"
    order: int = 0
    """Which command it was, counted from the start."""

    def prove(self) -> None:
        if self.outcome is False:
            raise Violation(self.promise, f"{self.what} happened, and did not")
        if self.outcome is None:
            self.outcome = True
            for copy, how in self.ends:
                if copy.end is None:
                    copy.end = how

    def disprove(self) -> None:
        if self.outcome is True:
            raise Violation(self.promise, f"{self.what} did not happen, and did")
        self.outcome = False


@dataclass(slots=True, eq=False)
class Copy:
    """A letter in one family."""

    letter: Letter
    route: Route
    born: Deed
    end: str | None = None
    """How it ended for sure: nobody may see it any more."""
    doubts: list[Deed] = field(default_factory=list)
    """What may have ended it."""
    deferred_in: str | None = None
    """Where it is deferred, for sure."""
    deferrals: int = 0
    """How often that was asked for."""
    seen: set[tuple[str, int]] = field(default_factory=set)
    """Places and numbers in which it was seen."""
    first_seen_in: set[str] = field(default_factory=set)
    returns: Counter[str] = field(default_factory=Counter)
    """Confirmed abandons, by place."""
    has_moved_level: bool = False
    away_until: dict[str, Millis] = field(default_factory=dict)
    """When a delay that was confirmed is over, by place."""

    def __str__(self) -> str:
        return f"message {self.letter.number} in {self.route.family}"

    def expires_ms(self) -> Millis:
        """It cannot have expired before."""
        life = min(self.letter.ttl_ms, self.route.ttl_ms)
        return NEVER if life == NEVER else max(self.letter.asked_ms, self.letter.due_ms) + life

    def may_be_gone(self, now: Millis) -> bool:
        if any(deed.outcome is not False for deed in self.doubts):
            return True
        letter = self.letter
        is_kept = self.route.expired_are_kept and not (
            letter.due_ms and self.route.paths[0] == "topic"
        )
        return not is_kept and now >= self.expires_ms()


class Hold(NamedTuple):
    """A lock that a receiver was told of."""

    copy: Copy
    place: Place
    number: int
    token: bytes
    until_ms: Millis
    """NEVER: the session's lock counts."""
    link: int
    session_id: str | None


@dataclass(slots=True)
class Link:
    place: Place
    mode: Mode
    granted: int = 0
    got: int = 0
    session_id: str | None = None
    is_detaching: bool = False
    last: dict[tuple[int, int, str | None], int] = field(default_factory=dict)
    """The highest number delivered for the first time, by partition, level and session."""


class Settling(NamedTuple):
    """A settlement that was asked and not answered yet."""

    deed: Deed
    holds: list[Hold]
    disposition: Disposition
    is_good: bool
    """Whether every lock was held when it was asked."""
    place: Place


Lane = tuple[str, int, int, str | None]
"""Path, partition, level, session: deliveries begin in order within it."""


class Ledger:
    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self.letters: dict[int, Letter] = {}
        self.copies: dict[tuple[int, str], Copy] = {}
        self.links: dict[int, Link] = {}
        self.holds: dict[tuple[str, int], Hold] = {}
        self.tokens: dict[bytes, Hold] = {}
        self.sessions: dict[tuple[str, str], tuple[int, Millis]] = {}
        """Who holds a session, and until when."""
        self.states: dict[tuple[str, str], list[bytes | None]] = {}
        """What a session's state can be: the last confirmed one first."""
        self.numbers: dict[tuple[str, int], int] = {}
        """Path and sequence number → letter."""
        self._enqueued: dict[tuple[str, int], Millis] = {}
        self._last_acked: dict[tuple[str, int], int] = {}
        self._last_first: dict[Lane, int] = {}
        self._firsts: list[tuple[Lane, int]] = []
        self._ids: dict[tuple[str, str], list[tuple[Millis, Letter, Deed]]] = {}
        self.missing: Counter[str] = Counter()
        """Messages of a family that may be gone, without knowing which."""
        self.open_transactions: list[Deed] = []
        """Discharged, without an answer."""
        self.order = 0
        """Commands asked so far."""
        self.crashes = 0
        self.calm_since_ms: Millis = NEVER
        """No faults any more: what is due from now on must also come in time."""
        self.counts: Counter[str] = Counter()

    def deed(self, what: str, promise: str) -> Deed:
        return Deed(what, promise=promise, order=self.order)

    # --- sending ----------------------------------------------------------------------------------

    def sending(
        self, letters: Sequence[Letter], now: Millis, promise: str = "P1", what: str = "a send"
    ) -> Deed:
        deed = self.deed(f"{what} of {[letter.number for letter in letters]}", promise)
        for letter in letters:
            letter.asked_ms = now
            self.letters[letter.number] = letter
            for route in letter.target.routes:
                if route.colour in (None, letter.colour):
                    copy = Copy(letter, route, deed)
                    letter.copies.append(copy)
                    deed.births.append(copy)
                    self.copies[letter.number, route.family] = copy
        return deed

    def sent(self, deed: Deed, letters: Sequence[Letter], numbers: Sequence[int]) -> None:
        """The send was answered: each message has its number, or was dropped as a duplicate."""
        if len(numbers) != len(letters):
            raise Violation("P1", f"{len(letters)} sent, {len(numbers)} answers")
        for letter, number in zip(letters, numbers, strict=True):
            if number:
                self._accepted(letter, number, deed)
            else:
                self._dropped(letter, deed)
        deed.prove()

    def _accepted(self, letter: Letter, number: int, deed: Deed) -> None:
        target = letter.target
        part = (target.path, number >> PARTITION_SHIFT)
        if number <= self._last_acked.get(part, 0):
            raise Violation("P5", f"{target.path} gave {number} after {self._last_acked[part]}")
        self._last_acked[part] = number
        letter.sequence_number = number
        self._name(target.path, number, letter)
        if target.window_ms and letter.message_id is not None:
            known = self._ids.setdefault((target.path, letter.message_id), [])
            for when, other, born in known:
                if letter.asked_ms - when < target.window_ms:
                    if born.outcome:
                        raise Violation(
                            "P8",
                            f"{letter.message_id} stored as {other.number} and, "
                            f"{letter.asked_ms - when} ms later, as {letter.number}",
                        )
                    born.disprove()
            known.append((letter.asked_ms, letter, deed))

    def _dropped(self, letter: Letter, deed: Deed) -> None:
        target = letter.target
        known = self._ids.get((target.path, letter.message_id or ""), [])
        near = [
            (other, born)
            for when, other, born in known
            if letter.asked_ms - when < target.window_ms and born.outcome is not False
        ]
        if not target.window_ms or not near:
            raise Violation("P1", f"message {letter.number} was dropped as a duplicate of nothing")
        if len(near) == 1:
            near[0][1].prove()
        self.counts["duplicates"] += 1
        for copy in letter.copies:
            deed.births.remove(copy)
            copy.born = Deed(f"the drop of {letter.number}", outcome=False, promise="P8")

    def lost_sight_of_send(self, deed: Deed, letters: Iterable[Letter]) -> None:
        """The engine ended before it answered: they may be there."""
        for letter in letters:
            if letter.target.window_ms and letter.message_id is not None:
                known = self._ids.setdefault((letter.target.path, letter.message_id), [])
                # If an earlier one is there, this one was dropped: it cannot prove anything.
                near = any(
                    letter.asked_ms - when < letter.target.window_ms and born.outcome is not False
                    for when, _, born in known
                )
                if near:
                    for copy in letter.copies:
                        deed.births.remove(copy)
                        copy.born = Deed(f"a perhaps dropped {letter.number}", promise="P8")
                        known.append((letter.asked_ms, letter, copy.born))
                else:
                    known.append((letter.asked_ms, letter, deed))
        self.counts["unknown"] += 1

    # --- what is seen -----------------------------------------------------------------------------

    def _name(self, path: str, number: int, letter: Letter) -> None:
        """A sequence number was told: it belongs to one message for ever."""
        other = self.numbers.setdefault((path, number), letter.number)
        if other != letter.number:
            raise Violation("P5", f"{path} used {number} for {other} and for {letter.number}")

    def see(
        self, place: Place, delivery: Delivery, payload: bytes, asked: int | None = None
    ) -> Copy:
        """A message was handed out or shown: it must be one that can be there. `asked`: by which
        command, so that nothing is said about what was asked later."""
        number = int.from_bytes(payload[-8:], "big")
        letter = self.letters.get(number)
        if letter is None or letter.payload != payload:
            raise Violation("P13", f"{place.path} holds bytes that nobody sent: {payload[-40:]!r}")
        copy = self.copies.get((number, place.family))
        if copy is None:
            raise Violation("P1", f"message {number} is in {place.path}, where it does not belong")
        copy.born.prove()
        if copy.end is not None:
            promise = "P3" if copy.end == "taken" else "P2"
            raise Violation(promise, f"{copy} was {copy.end}, and is back in {place.path}")
        if copy.doubts:
            for deed in copy.doubts:
                if deed.outcome is None and (asked is None or deed.order < asked):
                    deed.disprove()
            copy.doubts = [deed for deed in copy.doubts if deed.outcome is None]
        self._name(place.path, delivery.sequence_number, letter)
        copy.seen.add((place.path, delivery.sequence_number))
        if not place.is_dead_letter and delivery.state is not State.SCHEDULED:
            key = (place.path, delivery.sequence_number)
            if self._enqueued.setdefault(key, delivery.enqueued_ms) != delivery.enqueued_ms:
                raise Violation("P5", f"{copy} changed its time of arrival in {place.path}")
        if delivery.session_id != (letter.session_id if place.has_sessions else None):
            raise Violation("P5", f"{copy} is in session {delivery.session_id!r}")
        return copy

    def delivered(
        self, link_number: int, deliveries: Sequence[tuple[Delivery, bytes]], now: Millis
    ) -> None:
        """A link was handed messages."""
        link = self.links.get(link_number)
        if link is None:
            raise Violation("P4", f"deliveries on link {link_number}, which is closed")
        link.got += len(deliveries)
        if link.got > link.granted:
            raise Violation("P11", f"link {link_number} got more than it asked for")
        place = link.place
        self.counts["deliveries"] += len(deliveries)
        for delivery, payload in deliveries:
            copy = self.see(place, delivery, payload)
            self._check_due(copy, delivery, place, now)
            self._check_delay(copy, delivery, place, now)
            if copy.deferred_in == place.path:
                raise Violation("P3", f"{copy} was deferred, and handed out on link {link_number}")
            self._check_count(copy, place, delivery)
            self._note_order(copy, link, delivery)
            if link.mode is Mode.RECEIVE_AND_DELETE:
                if delivery.token is not None:
                    raise Violation("P3", f"{copy} was taken, but has a token")
                self._check_free(copy, place, delivery, now)
                copy.end = "taken"
            else:
                self._hold(copy, place, delivery, link_number, link.session_id)

    def _check_due(self, copy: Copy, delivery: Delivery, place: Place, now: Millis) -> None:
        due = copy.letter.due_ms
        if not due:
            return
        decided = now
        if delivery.token is not None and not place.has_sessions:
            decided = delivery.locked_until_ms - place.lock_ms
        if decided < due:
            raise Violation("P7", f"{copy}, due at {due}, was handed out at {decided}")
        if due > self.calm_since_ms and place.path not in copy.first_seen_in:
            if now > due + PROMPT_MS:
                raise Violation("P7", f"{copy}, due at {due}, was handed out only at {now}")

    def _check_delay(self, copy: Copy, delivery: Delivery, place: Place, now: Millis) -> None:
        decided = now
        if delivery.token is not None and not place.has_sessions:
            decided = delivery.locked_until_ms - place.lock_ms
        until = copy.away_until.pop(place.path, 0)
        if decided < until:
            raise Violation("P7", f"{copy}, put off until {until}, was handed out at {decided}")

    def _check_count(self, copy: Copy, place: Place, delivery: Delivery) -> None:
        count = delivery.delivery_count
        if place.is_dead_letter:
            return
        # A deferral counts, and does not bring it among the dead letters.
        if count >= place.max_delivery_count + copy.deferrals:
            raise Violation("P6", f"{copy} was delivered {count} times before, in {place.path}")
        if count < copy.returns[place.path]:
            raise Violation(
                "P6", f"{copy} was abandoned {copy.returns[place.path]} times, counted {count}"
            )

    def _note_order(self, copy: Copy, link: Link, delivery: Delivery) -> None:
        place = link.place
        if place.path in copy.first_seen_in:
            return
        copy.first_seen_in.add(place.path)
        if place.is_dead_letter or copy.has_moved_level:
            return  # dead letters keep their numbers, and come in any order
        number = delivery.sequence_number
        part = number >> PARTITION_SHIFT
        key = (part, delivery.level, delivery.session_id)
        if number <= link.last.get(key, 0):
            raise Violation("P5", f"{place.path} handed out {number} after {link.last[key]}")
        link.last[key] = number
        self._firsts.append(((place.path, *key), number))

    def settle_order(self) -> None:
        """To be called when all that was let out at once has been told: several links may have got
        the messages of one row by turns."""
        if not self._firsts:
            return
        firsts, self._firsts = self._firsts, []
        last = self._last_first
        for lane, number in firsts:
            if number <= last.get(lane, 0):
                raise Violation("P5", f"{lane} began {number} after {last[lane]}")
        for lane, number in firsts:
            last[lane] = max(number, last.get(lane, 0))

    # --- locks ------------------------------------------------------------------------------------

    def is_held(self, hold: Hold, now: Millis) -> bool:
        if self.holds.get((hold.place.path, hold.number)) is not hold:
            return False
        if hold.session_id is None:
            return now < hold.until_ms
        holder = self.sessions.get((hold.place.path, hold.session_id))
        return holder is not None and holder[0] == hold.link and now < holder[1]

    def _check_free(self, copy: Copy, place: Place, delivery: Delivery, now: Millis) -> None:
        old = self.holds.get((place.path, delivery.sequence_number))
        decided = now
        if delivery.token is not None and not place.has_sessions:
            decided = delivery.locked_until_ms - place.lock_ms
        if old is not None and self.is_held(old, decided):
            raise Violation("P4", f"{copy} was handed out while link {old.link} held it")

    def _hold(
        self, copy: Copy, place: Place, delivery: Delivery, link: int, session_id: str | None
    ) -> Hold:
        token = delivery.token
        if token is None:
            raise Violation("P3", f"{copy} was locked without a token")
        if token in self.tokens:
            raise Violation("P4", f"the token of {copy} was used before")
        if session_id is None:
            self._check_free(copy, place, delivery, delivery.locked_until_ms)
        else:
            old = self.holds.get((place.path, delivery.sequence_number))
            if old is not None and old.link == link:
                raise Violation("P4", f"{copy} was handed out twice to the holder of its session")
        hold = Hold(
            copy,
            place,
            delivery.sequence_number,
            token,
            delivery.locked_until_ms,
            link,
            session_id,
        )
        self.holds[place.path, hold.number] = hold
        self.tokens[token] = hold
        return hold

    def received_deferred(
        self,
        place: Place,
        link: int,
        rows: Sequence[tuple[Delivery, bytes]],
        mode: Mode,
        asked: int,
        now: Millis,
    ) -> None:
        for delivery, payload in rows:
            copy = self.see(place, delivery, payload, asked)
            if copy.deferred_in not in (place.path, None):
                raise Violation("P3", f"{copy} was deferred elsewhere")
            if mode is Mode.RECEIVE_AND_DELETE:
                copy.end = "taken"
            else:
                session = delivery.session_id
                self._check_free(copy, place, delivery, now)
                self._hold(copy, place, delivery, link, session)

    # --- settling ---------------------------------------------------------------------------------

    def settling(
        self, place: Place, tokens: Sequence[bytes], disposition: Disposition, now: Millis
    ) -> Settling:
        """Asked now, so decided now. What is held is let go of at once; a refusal gives it back."""
        holds: list[Hold] = []
        is_good = len(set(tokens)) == len(tokens)
        if disposition is Disposition.DEAD_LETTER and place.is_dead_letter:
            is_good = False
        for token in tokens:
            hold = self.tokens.get(token)
            if hold is None or hold.place is not place or not self.is_held(hold, now):
                is_good = False
            else:
                holds.append(hold)
        what = f"{disposition.value} of {[hold.copy.letter.number for hold in holds]}"
        settling = Settling(self.deed(what, "P2"), holds, disposition, is_good, place)
        if is_good:
            self.let_go(settling, settling.deed)
        return settling

    def let_go(self, settling: Settling, deed: Deed) -> None:
        """The locks end if `deed` happens."""
        for hold in settling.holds:
            self.holds.pop((settling.place.path, hold.number), None)
            hold.copy.deferrals += settling.disposition is Disposition.DEFER
            if settling.disposition is Disposition.COMPLETE:
                deed.ends.append((hold.copy, "completed"))
                hold.copy.doubts.append(deed)

    def settled(self, settling: Settling, now: Millis, away_until: Millis = 0) -> None:
        if not settling.is_good:
            raise Violation("P4", f"{settling.deed.what} was done without the lock")
        settling.deed.prove()
        self.counts[settling.disposition.value] += len(settling.holds)
        for hold in settling.holds:
            copy, path = hold.copy, settling.place.path
            if away_until and copy.deferred_in != path:
                copy.away_until[path] = away_until
            match settling.disposition:
                case Disposition.DEFER:
                    copy.deferred_in = path
                case Disposition.DEAD_LETTER:
                    copy.deferred_in = None
                case Disposition.ABANDON:
                    copy.returns[path] += 1
                case _:
                    pass

    def reactivating(self, place: Place, number: int) -> None:
        """Asked now: from now on it may be handed out again."""
        letter = self.numbers.get((place.path, number))
        copy = None if letter is None else self.copies.get((letter, place.family))
        if copy is not None:
            copy.deferred_in = None
            copy.away_until.pop(place.path, None)

    def burying_session(self, place: Place, session_id: str) -> None:
        """Asked now: what was deferred of it may be among the dead letters."""
        for (_, family), copy in self.copies.items():
            if family == place.family and copy.letter.session_id == session_id:
                copy.deferred_in = None

    def settling_refused(self, settling: Settling, *, is_expected: bool) -> None:
        if settling.is_good and not is_expected:
            raise Violation("P4", f"{settling.deed.what} was refused, and the locks were held")
        settling.deed.disprove()
        self._give_back(settling)

    def _give_back(self, settling: Settling) -> None:
        for hold in settling.holds if settling.is_good else ():
            self.holds.setdefault((settling.place.path, hold.number), hold)

    def renewing(self, place: Place, tokens: Sequence[bytes], now: Millis) -> Millis | None:
        """The new end of the locks, if all are held when it is asked: so it is decided then."""
        holds = [self.tokens.get(token) for token in tokens]
        if any(h is None or h.place is not place or not self.is_held(h, now) for h in holds):
            return None
        until = now + place.lock_ms
        for hold in holds:
            assert hold is not None
            new = hold._replace(until_ms=until)
            self.tokens[hold.token] = new
            self.holds[place.path, hold.number] = new
        return until

    def renewing_session(self, link_number: int, now: Millis) -> Millis | None:
        if not self.has_session(link_number, now):
            return None
        link = self.links[link_number]
        assert link.session_id is not None
        until = now + link.place.lock_ms
        self.sessions[link.place.path, link.session_id] = (link_number, until)
        return until

    def has_session(self, link_number: int, now: Millis) -> bool:
        link = self.links.get(link_number)
        if link is None or link.session_id is None:
            return False
        holder = self.sessions.get((link.place.path, link.session_id))
        return holder is not None and holder[0] == link_number and now < holder[1]

    # --- links and sessions -----------------------------------------------------------------------

    def granted(self, number: int, session_id: str, until: Millis) -> None:
        link = self.links[number]
        place = link.place
        key = (place.path, session_id)
        holder = self.sessions.get(key)
        decided = until - place.lock_ms
        if holder is not None and holder[0] != number and decided < holder[1]:
            raise Violation("P4", f"session {key} was given to {number} while {holder[0]} held it")
        link.session_id = session_id
        self.sessions[key] = (number, until)
        self.counts["sessions"] += 1

    def detaching(self, number: int) -> None:
        """Asked now: a session ends with its link, other locks stay."""
        link = self.links[number]
        link.is_detaching = True
        if link.session_id is not None:
            self._end_session(link.place.path, link.session_id, number)

    def _end_session(self, path: str, session_id: str, link: int) -> None:
        holder = self.sessions.get((path, session_id))
        if holder is not None and holder[0] == link:
            del self.sessions[path, session_id]

    def closed(self, number: int, now: Millis) -> None:
        """The broker ended a link."""
        link = self.links.pop(number, None)
        if link is not None and link.session_id is not None and not link.is_detaching:
            holder = self.sessions.get((link.place.path, link.session_id))
            if holder is not None and holder[0] == number and now < holder[1]:
                raise Violation("P4", f"link {number} lost its session before the end of its lock")
            self._end_session(link.place.path, link.session_id, number)

    def state_asked(self, path: str, session_id: str, state: bytes | None) -> None:
        self.states.setdefault((path, session_id), [None]).append(state)

    def state_set(self, path: str, session_id: str, state: bytes | None, *, done: bool) -> None:
        known = self.states[path, session_id]
        if done:
            del known[: known.index(state)]
        else:
            known.remove(state)

    def state_got(self, path: str, session_id: str, state: bytes | None) -> None:
        known = self.states.setdefault((path, session_id), [None])
        if state not in known:
            raise Violation("P1", f"the state of {session_id} is {state!r}, not one of {known}")
        del known[: known.index(state)]

    # --- crashes ----------------------------------------------------------------------------------

    def crashed(self) -> None:
        """Locks, sessions and links end. What was handed out for good and not told is gone: as
        many as there was credit for."""
        self.crashes += 1
        for link in self.links.values():
            if link.mode is Mode.RECEIVE_AND_DELETE and link.granted > link.got:
                self.missing[link.place.family] += link.granted - link.got
        self.links.clear()
        self.holds.clear()
        self.tokens.clear()
        self.sessions.clear()

    # --- the end ----------------------------------------------------------------------------------

    def check_all(self, shown: Sequence[tuple[Place | str, Delivery, bytes]], now: Millis) -> None:
        """Everything that there is was browsed. Each message is where it can be, once."""
        found: dict[int, list[str]] = {}
        where: Counter[tuple[int, str]] = Counter()
        for place, delivery, payload in shown:
            number = int.from_bytes(payload[-8:], "big")
            if isinstance(place, str):  # waits in a topic until its time comes
                letter = self.letters.get(number)
                if letter is None or letter.payload != payload or letter.target.path != place:
                    raise Violation("P13", f"{place} holds what nobody sent there: {number}")
                self._name(place, delivery.sequence_number, letter)
                for copy in letter.copies:
                    copy.born.prove()
                for cancel in letter.cancels:
                    cancel.disprove()
                found.setdefault(number, []).append(place)
                continue
            copy = self.see(place, delivery, payload)
            where[number, place.family] += 1
            if where[number, place.family] > 1:
                raise Violation("P6", f"{copy} is there twice: {sorted(copy.seen)}")
            if copy.deferred_in == place.path and delivery.state not in (
                State.DEFERRED,
                State.DEFERRED_LOCKED,
            ):
                raise Violation("P3", f"{copy} was deferred, and is {delivery.state.name}")
        self._close_transactions(where, now)
        missing: dict[str, list[Copy]] = {}
        for key, copy in self.copies.items():
            if key in where or copy.end is not None or copy.letter.number in found:
                continue
            if copy.born.outcome is not True or copy.may_be_gone(now):
                continue
            missing.setdefault(key[1], []).append(copy)
        for family, copies in missing.items():
            if len(copies) > self.missing[family]:
                text = ", ".join(map(str, copies[:5]))
                raise Violation("P1", f"{len(copies)} lost ({self.missing[family]} may be): {text}")
        self._check_duplicates()

    def _close_transactions(self, there: Counter[tuple[int, str]], now: Millis) -> None:
        """A transaction without an answer whose message is gone, and nothing else can have ended
        it, has happened: then all of it has."""
        for deed in self.open_transactions:
            for copy, _ in deed.ends if deed.outcome is None else ():
                family = copy.route.family
                if (
                    (copy.letter.number, family) not in there
                    and copy.end is None
                    and copy.born.outcome
                    and not self.missing[family]
                    and now < copy.expires_ms()
                    and all(other is deed or other.outcome is False for other in copy.doubts)
                ):
                    deed.prove()
                    break

    def _check_duplicates(self) -> None:
        for (path, message_id), known in self._ids.items():
            stored = [
                (when, letter)
                for when, letter, _ in known
                if letter.sequence_number or any(copy.seen for copy in letter.copies)
            ]
            for (when, one), (later, other) in pairwise(stored):
                if later - when < one.target.window_ms:
                    text = f"{message_id} is in {path} as {one.number} and as {other.number}"
                    raise Violation("P8", text)

    def check_numbers(self) -> None:
        """Without gaps: a number that was never told belongs to a message that was never seen."""
        given: dict[tuple[str, int], set[int]] = {}
        named: Counter[tuple[str, int]] = Counter()
        for (path, number), owner in self.numbers.items():
            if not path.endswith("$DeadLetterQueue"):
                given.setdefault((path, number >> PARTITION_SHIFT), set()).add(
                    number & ((1 << PARTITION_SHIFT) - 1)
                )
                named[path, owner] += 1
        unseen: Counter[str] = Counter()
        for letter in self.letters.values():
            stops: set[str] = set()
            for copy in letter.copies:
                if copy.born.outcome is not False:
                    stops.update(copy.route.paths)
            for path in stops:
                most = 2 if letter.due_ms and path == letter.target.path else 1
                unseen[path] += max(0, most - named[path, letter.number])
        holes: Counter[str] = Counter()
        for (path, _), numbers in given.items():
            holes[path] += max(numbers) - len(numbers)
        for path, count in holes.items():
            if count > unseen[path]:
                raise Violation("P5", f"{path} has {count} gaps, {unseen[path]} can be explained")
        self._check_times()

    def _check_times(self) -> None:
        """Time does not run backwards in an entity, whatever the clock did."""
        last: dict[tuple[str, int], tuple[int, Millis]] = {}
        for path, number in sorted(self._enqueued):
            key = (path, number >> PARTITION_SHIFT)
            time = self._enqueued[path, number]
            if key in last and time < last[key][1]:
                raise Violation("P5", f"{path}: {number} came {time}, {last[key][0]} later")
            last[key] = (number, time)
