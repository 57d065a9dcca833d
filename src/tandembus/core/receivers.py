"""Who receives from a queue: links, their credit, the sessions they hold or wait for.

Nothing is handed out without credit, and credit is used as soon as there is a message. Which
message is next is `ready`; what a lock means is `queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandembus.changes import (
    DELIVERED_ROW,
    Delivered,
    Mode,
    Note,
    Noted,
    Return,
    SessionLocked,
    SessionUnlocked,
)
from tandembus.core import admission, lifecycle
from tandembus.core.commands import NEXT_SESSION, NextSession
from tandembus.core.effects import Attached, Deliver, Delivery, LinkClosed, SessionGranted
from tandembus.core.ready import Next, Ready
from tandembus.core.sessions import Session
from tandembus.core.state import State, Trigger, after
from tandembus.core.tokens import NUMBER_MASK, TOKEN
from tandembus.errors import (
    NotAllowedError,
    OperationTimeoutError,
    Refused,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from tandembus.model import NEVER, Millis, new_tuple

if TYPE_CHECKING:
    from tandembus.core.queue import Part, Queue

_row: Final = DELIVERED_ROW.pack
_token: Final = TOKEN.pack


class Receiver:
    """A receiving link."""

    __slots__ = (
        "credit", "deliveries", "handed_out", "is_asking", "link", "mode", "nonce", "queue", "rows",
        "session",
    )  # fmt: skip

    def __init__(self, link: int, queue: Queue, mode: Mode, session: Session | None) -> None:
        self.link = link
        self.queue = queue
        self.mode = mode
        self.session = session
        self.credit = 0
        self.is_asking = False
        """Whether it has given credit, and nothing has come since."""
        self.nonce = 0
        self.deliveries: list[Delivery] = []
        """What this pump has handed out so far."""
        self.rows = bytearray()
        self.handed_out = 0
        """How many messages in all, before this pump."""


class Receivers:
    __slots__ = ("_hungry", "_queue", "_waiters", "links")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.links: dict[int, Receiver] = {}
        self._hungry: dict[int, Receiver] = {}
        """Links with credit; the first is served next."""
        self._waiters: dict[int, tuple[Mode, Millis]] = {}
        """Links that wait for any session, and until when; first come, first served."""

    @property
    def is_hungry(self) -> bool:
        return bool(self._hungry or self._waiters)

    # --- links ------------------------------------------------------------------------------------

    def attach(
        self,
        link: int,
        mode: Mode,
        session: str | NextSession | None,
        timeout_ms: Millis,
        now: Millis,
    ) -> Attached | None:
        sessions = self._queue.sessions
        if self._queue.relays_to is not None and not self._queue.forwards_dead_letters:
            raise NotAllowedError(
                "Cannot create a message receiver on an entity with auto-forwarding enabled: "
                f"'{self._queue.path}' forwards to '{self._queue.relays_to}'."
            )
        if session is None:
            if sessions is not None:
                raise NotAllowedError(
                    "It is not possible for an entity that requires sessions to create a "
                    "non-sessionful message receiver."
                )
            self.links[link] = Receiver(link, self._queue, mode, None)
            return Attached(None, 0)
        if sessions is None:
            raise NotAllowedError(
                "A sessionful message receiver cannot be created on an entity that does not "
                "require sessions."
            )
        if session is NEXT_SESSION:
            found = self._next_session(now)
            if found is None:
                self._waiters[link] = (mode, now + timeout_ms)
                self._queue.book.wake(self._queue, now + timeout_ms)
                return None
        else:
            found = sessions.get(session)
            if found is not None and found.is_locked(now):
                raise SessionCannotBeLockedError(session)
            if found is None:
                admission.check_attach(self._queue, session)
            elif found.link is not None:
                self._end_session(found, now)  # its lock is over; the tick has not come yet
            found = sessions.open(session)
        return Attached(found.id, self._grant(found, link, mode, now))

    def _next_session(self, now: Millis) -> Session | None:
        """A session without a holder that has a message to give. One whose messages have all
        expired is none; they are removed on the way."""
        queue = self._queue
        assert queue.sessions is not None
        while (session := queue.sessions.next_available()) is not None:
            part = queue.part_of(session.id)
            if lifecycle.next_living(queue, session.ready, part, now) is not None:
                return session
            assert session.waiting == 0
        return None

    def _grant(self, session: Session, link: int, mode: Mode, now: Millis) -> Millis:
        until = now + self._queue.lock_ms
        self._queue.book.emit(SessionLocked(now, self._queue.id, link, until, session.id))
        self.lock_session(session, link, until)
        self.links[link] = Receiver(link, self._queue, mode, session)
        return until

    def lock_session(self, session: Session, link: int, until: Millis) -> None:
        assert self._queue.sessions is not None
        self._queue.sessions.lock(session, link, until)
        self._queue.book.wake(self._queue, until)

    def renew_session(self, session: Session, now: Millis) -> Millis:
        until = now + self._queue.lock_ms
        assert session.link is not None
        self._queue.book.emit(SessionLocked(now, self._queue.id, session.link, until, session.id))
        self.lock_session(session, session.link, until)
        return until

    def detach(self, link: int, now: Millis) -> None:
        self._waiters.pop(link, None)
        self._hungry.pop(link, None)
        receiver = self.links.pop(link, None)
        if receiver is not None:
            self._end_poll(receiver, now)
        if receiver is not None and receiver.session is not None:
            session = receiver.session
            if session.link == link:
                self._unlock(session, Return.SESSION_CLOSED, now)

    def detach_lost(self, session: Session, now: Millis) -> None:
        """The broker was restarted: the session's holder is gone with its connection."""
        self._unlock(session, Return.RESTARTED, now)

    def _unlock(self, session: Session, reason: Return, now: Millis) -> None:
        """End a session's lock: what its holder had locked goes back first."""
        queue = self._queue
        assert queue.sessions is not None
        held = sorted(session.held)
        if held:
            lifecycle.come_back(queue, held, reason, now)
        queue.book.emit(SessionUnlocked(now, queue.id, reason, session.id))
        queue.sessions.unlock(session)
        queue.has_arrived(now)

    def _end_session(self, session: Session, now: Millis) -> None:
        """A session's lock ran out: its link is told, and closed."""
        link = session.link
        self._unlock(session, Return.SESSION_EXPIRED, now)
        receiver = None if link is None else self.links.pop(link, None)
        if link is not None and receiver is not None:
            self._end_poll(receiver, now)
            self._hungry.pop(link, None)
            error = SessionLockLostError(session.id)
            self._queue.book.effects.append(LinkClosed(link, error))

    def close_all(self, error: Refused, now: Millis) -> None:
        """Every link of this queue ends: it was deleted or disabled."""
        for link in (*self.links, *self._waiters):
            self.detach(link, now)
            self._queue.book.effects.append(LinkClosed(link, error))

    # --- credit -----------------------------------------------------------------------------------

    def flow(
        self, receiver: Receiver, credit: int, nonce: int, now: Millis, *, is_drain: bool = False
    ) -> None:
        """A drain asks for nothing new: it is the end of what was asked before, if anything was."""
        if not is_drain:
            self._end_poll(receiver, now)
        receiver.credit = credit
        receiver.nonce = nonce
        if credit > 0:
            receiver.is_asking = True
            self._hungry.setdefault(receiver.link, receiver)
        else:
            self._hungry.pop(receiver.link, None)

    def _end_poll(self, receiver: Receiver, now: Millis) -> None:
        """It asks anew, or no more: a receive that brought nothing is noted, since it costs what
        one that brings something costs (P11)."""
        if receiver.is_asking:
            receiver.is_asking = False
            self._note_poll(receiver.link, now)

    def _note_poll(self, link: int, now: Millis) -> None:
        self._queue.accessed_ms = now
        self._queue.book.emit(Noted(now, self._queue.id, Note.POLLED, 0, link, None))

    def pump(self, now: Millis) -> None:
        """Hand out what there is to those who have credit, in turn."""
        queue = self._queue
        if not queue.gives_messages or (queue.is_relay and self._are_going(now)):
            return
        if queue.sessions is not None:
            self._pump_sessions(now)
            return
        served: dict[int, Receiver] = {}
        hungry, counts = self._hungry, queue.counts
        while hungry and counts[State.WAITING]:
            receiver = next(iter(hungry.values()))
            if len(hungry) > 1 or not self._hand_out_many(receiver, now):
                following = lifecycle.next_message(queue, now)
                if following is None:
                    break
                part, chosen = following
                self._hand_out(receiver, part.ready, part, chosen, now)
            link = receiver.link
            served[link] = receiver
            if receiver.credit == 0:
                del hungry[link]
            elif len(hungry) > 1:
                del hungry[link]  # to the end: it is the others' turn
                hungry[link] = receiver
        for receiver in served.values():
            self._deliver(receiver, now)

    def _are_going(self, now: Millis) -> bool:
        """Whether what waits here is for nobody, because it goes on. Only dead letters that could
        not go on can be received, until they are tried again."""
        queue = self._queue
        return not queue.forwards_dead_letters or queue.is_passing or queue.passes_at <= now

    def _pump_sessions(self, now: Millis) -> None:
        queue = self._queue
        assert queue.sessions is not None
        while self._waiters:
            session = self._next_session(now)
            if session is None:
                break
            link = next(iter(self._waiters))
            mode, _ = self._waiters.pop(link)
            until = self._grant(session, link, mode, now)
            queue.book.effects.append(SessionGranted(link, session.id, until))
        for receiver in list(self._hungry.values()):
            session = receiver.session
            assert session is not None
            if not session.is_locked(now):
                continue
            part = queue.part_of(session.id)
            while receiver.credit:
                chosen = lifecycle.next_living(queue, session.ready, part, now)
                if chosen is None:
                    break
                self._hand_out(receiver, session.ready, part, chosen, now)
            if receiver.credit == 0:
                del self._hungry[receiver.link]
            if receiver.deliveries:
                self._deliver(receiver, now)

    def _hand_out(
        self, receiver: Receiver, ready: Ready, part: Part, chosen: Next, now: Millis
    ) -> None:
        queue, session = self._queue, receiver.session
        ready.take(chosen, now)
        _, index, chunk, row, _ = chosen
        number = part.number(index)
        nonce = receiver.nonce = (receiver.nonce + 1) & NUMBER_MASK
        is_locked = receiver.mode == Mode.PEEK_LOCK
        until = 0
        if is_locked:
            until = now + queue.lock_ms if session is None else session.locked_until_ms
        receiver.credit -= 1
        size = chunk.sizes[row]
        if is_locked:
            queue.lock(number, chunk, row, nonce, until, receiver.link, session)
            delivery = queue.delivery(number, chunk, row, nonce, until)
        else:
            delivery = queue.delivery(number, chunk, row)
            queue.remove(number)
        receiver.deliveries.append(delivery)
        receiver.rows += _row(number, nonce, size, delivery.delivery_count, delivery.level)

    def _hand_out_many(self, receiver: Receiver, now: Millis) -> bool:
        """All that one receiver wants, where there is nothing to it but their order. False: not so,
        or the next one is not there, or has expired."""
        queue = self._queue
        if len(queue.parts) > 1 or receiver.mode != Mode.PEEK_LOCK:
            return False
        part, edits = queue.parts[0], queue.edits
        until, link, nonce = now + queue.lock_ms, receiver.link, receiver.nonce
        locks, rows, append = queue.locks, receiver.rows, receiver.deliveries.append
        locked = after(State.WAITING, Trigger.LOCK)
        high, origin, mask = part.high, part.origin, part.mask
        count, level, own_edits = 0, 0, None
        credit = receiver.credit
        for chunk, picked in part.ready.pick(now, credit):
            states, sizes, bodies, enqueued = (
                chunk.states,
                chunk.sizes,
                chunk.bodies,
                chunk.enqueued,
            )
            counts, levels = chunk.counts, chunk.levels
            for index, row in picked:
                number = high | ((index + origin) & mask)
                nonce = (nonce + 1) & NUMBER_MASK
                if counts is not None:
                    count = counts[row]
                if levels is not None:
                    level = levels[row]
                if edits:
                    own_edits = edits.get(number)
                states[row] = locked
                locks[number] = (until, nonce, link)
                rows += _row(number, nonce, sizes[row], count, level)
                append(
                    new_tuple(
                        Delivery,
                        (
                            number, bodies[row], _token(number, nonce), until, count,
                            enqueued[row], locked, level, None, own_edits,
                        ),
                    )
                )  # fmt: skip
            count = level = 0
            credit -= len(picked)
            if not credit:
                break
        given = receiver.credit - credit
        if given:
            self._handed_out(receiver, given, nonce, until)
        return given > 0

    def _handed_out(self, receiver: Receiver, given: int, nonce: int, until: Millis) -> None:
        """So many were locked at once."""
        queue = self._queue
        queue.counts[State.WAITING] -= given
        queue.counts[after(State.WAITING, Trigger.LOCK)] += given
        receiver.credit -= given
        receiver.nonce = nonce
        if until < queue.wakes_at:
            queue.book.wake(queue, until)

    def _deliver(self, receiver: Receiver, now: Millis) -> None:
        queue = self._queue
        until = receiver.deliveries[-1].locked_until_ms
        rows, deliveries = bytes(receiver.rows), receiver.deliveries
        receiver.rows, receiver.deliveries = bytearray(), []
        receiver.handed_out += len(deliveries)
        queue.tally.outgoing += len(deliveries)
        receiver.is_asking = False
        queue.accessed_ms = now
        queue.book.emit(Delivered(now, queue.id, receiver.link, receiver.mode, until, rows))
        queue.book.effects.append(Deliver(receiver.link, deliveries))

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now: Millis) -> None:
        if self._queue.sessions is not None:
            for session in self._queue.sessions.ended(now):
                self._end_session(session, now)
        for link in [link for link, (_, until) in self._waiters.items() if until <= now]:
            del self._waiters[link]
            self._note_poll(link, now)
            error = OperationTimeoutError("No session became available in time.")
            self._queue.book.effects.append(LinkClosed(link, error))

    def next_deadline(self) -> Millis:
        deadline = NEVER
        if self._queue.sessions is not None:
            deadline = self._queue.sessions.next_deadline()
        for _, until in self._waiters.values():
            deadline = min(deadline, until)
        return deadline
