"""A queue: the facts about its messages, and how each change changes them.

Queues, subscriptions, dead-letter queues and the inbox of a topic are all this one thing. Here
nothing is decided: `lifecycle` decides, puts a change into the book and calls a method here that
does it; recovery plays the log again and calls the same methods. So what was decided once never
gets decided otherwise.

Messages are named by their sequence number. Within a partition the table counts them by *index*,
which only grows; the number is the index, shifted by the origin and rolled over (S2, S3).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from heapq import heappush
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from tandembus import limits
from tandembus.changes import (
    TRANSFER_BIT,
    Activated,
    Delivered,
    Enqueued,
    EntityKind,
    Mode,
    Return,
)
from tandembus.core.arrivals import Arrivals
from tandembus.core.book import Book
from tandembus.core.cursors import Cursors
from tandembus.core.duplicates import Duplicates
from tandembus.core.effects import Delivery
from tandembus.core.packing import Reader, Writer
from tandembus.core.priority import LevelOf, level_of
from tandembus.core.ready import Lane, Ready
from tandembus.core.receivers import Receivers
from tandembus.core.sessions import Session, Sessions
from tandembus.core.state import STATES, State, Trigger, after
from tandembus.core.table import Chunk, Table
from tandembus.core.tally import Tally
from tandembus.core.throttle import Throttle
from tandembus.core.tokens import COUNT_MASK, NUMBER_MASK, PARTITION_SHIFT, TOKEN
from tandembus.model import NEVER, Message, Millis
from tandembus.settings import QueueSettings, Settings, SubscriptionSettings

_WAITING: Final = int(State.WAITING)
_LOCKED: Final = int(State.LOCKED)
_SCHEDULED: Final = int(State.SCHEDULED)
_DELAYED: Final = int(State.DELAYED)


Lock: TypeAlias = tuple[Millis, int, int]
"""Until when (NEVER for a message of a session: the session's lock counts), nonce, link."""


class Part:
    """A partition: a count of its own, and the order of its messages."""

    __slots__ = ("high", "last", "mask", "origin", "ready", "table")

    def __init__(self, number: int, *, is_partitioned: bool, origin: int) -> None:
        self.high = number << PARTITION_SHIFT
        self.mask = COUNT_MASK if is_partitioned else NUMBER_MASK
        self.origin = origin
        self.last = 0
        """The index given out last."""
        self.table = Table()
        self.ready = Ready(self.table)

    def number(self, index: int) -> int:
        return self.high | ((index + self.origin) & self.mask)

    def index(self, sequence_number: int) -> int:
        return (sequence_number - self.origin) & self.mask


class Found(NamedTuple):
    """Where a message's facts are; good until the next change of the table."""

    part: Part
    chunk: Chunk
    row: int
    at: int


class Queue:
    __slots__ = (
        "_round",
        "accessed_ms",
        "arrivals",
        "book",
        "counts",
        "created_ms",
        "cursors",
        "dead_letter",
        "duplicates",
        "edits",
        "forwards_dead_letters",
        "fresh",
        "gives_messages",
        "has_mixed_locks",
        "held",
        "id",
        "idle_ms",
        "is_passing",
        "is_relay",
        "is_simple",
        "is_target_closed",
        "kind",
        "last_enqueued_ms",
        "level_of",
        "levels",
        "loading",
        "lock_ms",
        "locks",
        "max_bytes",
        "max_message_bytes",
        "origin",
        "owner",
        "parts",
        "passes_at",
        "path",
        "receivers",
        "relays_at",
        "relays_to",
        "scheduled",
        "sessions",
        "settings",
        "size_bytes",
        "stuck",
        "subscriptions",
        "takes_sends",
        "tally",
        "throttle",
        "transfer_dead_letter",
        "ttl_ms",
        "updated_ms",
        "used_bytes",
        "wakes_at",
        "window_ms",
    )

    def __init__(
        self,
        book: Book,
        entity: int,
        kind: EntityKind,
        path: str,
        settings: Settings,
        now: Millis,
        *,
        origin: int = 0,
        owner: Queue | None = None,
        is_partitioned: bool = False,
    ) -> None:
        self.book = book
        self.id = entity
        self.kind = kind
        self.path = path
        """As it was created, for people; compared in its canonical form by `Namespace`."""
        self.owner = owner
        """The topic's inbox for a subscription, the queue for its dead-letter queue."""
        self.origin = origin
        self.dead_letter: Queue | None = None
        self.transfer_dead_letter: Queue | None = None
        """Where messages go that cannot be forwarded. Made when it is first needed
        (`Registry.transfer_dead_letter`), as most entities never need one."""
        self.arrivals = Arrivals() if kind is EntityKind.DEAD_LETTER else None
        self.cursors: Cursors | None = None
        self.subscriptions: dict[str, Queue] = {}
        """Of a topic, by name."""
        self.created_ms = self.updated_ms = now
        self.accessed_ms: Millis = now
        self.last_enqueued_ms: Millis = 0
        self.size_bytes = 0
        self.used_bytes = 0
        """What counts against the quota: dead letters are part of their queue, and what waits in
        its subscriptions is part of a topic."""
        self.counts = [0] * len(State)
        """Messages by state."""
        self.locks: OrderedDict[int, Lock] = OrderedDict()
        """By sequence number; the first ends first, unless `has_mixed_locks`."""
        self.has_mixed_locks = False
        self.edits: dict[int, bytes] = {}
        self.scheduled: list[tuple[Millis, int]] = []
        self.duplicates = Duplicates()
        self.tally = Tally()
        self.loading: dict[int, None] = {}
        """Messages on their way to another entity that wait to be read from the store."""
        self.held: dict[int, str | None] = {}
        """Scheduled messages whose transaction is open, each with the key that `duplicates` is to
        remember when it is committed."""
        self.relays_at: Millis = NEVER
        """When the waiting messages of a relay are to go on."""
        self.fresh: dict[int, None] = {}
        """Dead letters that are yet to be forwarded for the first time: they are not in the order,
        so nobody gets them."""
        self.passes_at: Millis = NEVER
        """When the dead letters that could not go on are tried again, all of them. From then until
        that is done nobody gets one."""
        self.is_passing = False
        self.is_target_closed = False
        """Whether the target took no dead letter when it was asked last."""
        self.stuck: dict[int, None] = {}
        """Those that could not go on this time, while the others are tried."""
        self.wakes_at: Millis = NEVER
        self._round = 0
        parts = limits.MAX_PARTITIONS if is_partitioned else 1
        self.parts = [
            Part(number, is_partitioned=is_partitioned, origin=origin) for number in range(parts)
        ]
        self.sessions: Sessions | None = None
        self.throttle: Throttle | None = None
        self.levels: tuple[int, Millis | None, Sequence[int] | None] = (1, None, None)
        """How many, and what `Ready` makes of them."""
        self.receivers = Receivers(self)
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take over settings that were checked before."""
        self.settings = settings
        is_holder = isinstance(settings, QueueSettings | SubscriptionSettings)
        is_dead_letter = self.kind is EntityKind.DEAD_LETTER
        self.ttl_ms = NEVER if is_dead_letter else settings.default_ttl_ms
        if self.kind is EntityKind.SUBSCRIPTION and self.owner is not None:
            self.ttl_ms = min(self.ttl_ms, self.owner.settings.default_ttl_ms)
        self.window_ms = 0
        self.max_bytes = NEVER
        self.max_message_bytes = NEVER
        if not isinstance(settings, SubscriptionSettings) and not is_dead_letter:
            if settings.requires_duplicate_detection:
                self.window_ms = settings.duplicate_window_ms
            self.max_bytes = settings.max_size_mb * limits.MIB
            self.max_message_bytes = settings.max_message_size_kb * limits.KIB
        # A topic has none, but its transfer dead-letter queue is received from.
        self.lock_ms: Millis = getattr(settings, "lock_duration_ms", limits.DEFAULT_LOCK_MS)
        self.takes_sends = settings.status.allows_send
        self.gives_messages = settings.status.allows_receive
        rates = None if is_dead_letter else getattr(settings, "rates", None)
        if rates is None:
            self.throttle = None
        elif self.throttle is None or self.throttle.rates != rates:
            self.throttle = Throttle(rates)
        self.relays_to: str | None = None
        if is_holder and not self.is_transfer:
            assert isinstance(settings, QueueSettings | SubscriptionSettings)
            self.relays_to = (
                settings.forward_dead_letters_to if is_dead_letter else settings.forward_to
            )
            if settings.requires_session and not is_dead_letter:
                self.relays_to = None  # Azure keeps the setting and does not forward sessions
        self.idle_ms = settings.auto_delete_on_idle_ms
        """How long nobody may use it before it is deleted; NEVER: it stays."""
        if is_dead_letter or self.relays_to is not None:
            # Nobody receives from a source of forwarding, so it would always look idle.
            self.idle_ms = NEVER
        self.forwards_dead_letters = is_dead_letter and self.relays_to is not None
        self.is_relay = self.kind is EntityKind.TOPIC or self.relays_to is not None
        """Whether messages do not stay here: a topic's inbox, or a queue that forwards."""
        priority = getattr(settings, "priority", None) if is_holder and not is_dead_letter else None
        levels = 1 if priority is None else priority.levels
        self.level_of: LevelOf | None = None if priority is None else level_of(priority)
        order = (levels, priority and priority.aging_ms_per_level, priority and priority.weights)
        if order != self.levels or self.fresh or self.loading or self.stuck:  # not in the order now
            self._reorder(*order)
        if not is_dead_letter and getattr(settings, "requires_session", False):
            if self.sessions is None:
                self.sessions = Sessions(
                    self.book, levels, self._session_ready, lambda key: self.part_of(key).table
                )
        self.has_mixed_locks = bool(self.locks)
        self.is_simple = self.sessions is None and len(self.parts) == 1 and not self.window_ms
        """Whether a message has nothing to be asked for but its size."""

    def _reorder(self, levels: int, aging_ms: Millis | None, weights: Sequence[int] | None) -> None:
        self.levels = (levels, aging_ms, weights)
        self.fresh.clear()
        self.stuck.clear()
        self.is_passing = False
        for part in self.parts:
            part.table.clamp_levels(levels - 1)
            part.ready = Ready(part.table, levels, aging_ms, weights)
        if self.sessions is not None:
            for part in self.parts:
                part.table.forget_links()
            self.sessions.reorder(levels)
        self._refill()

    def _session_ready(self, session_id: str, lanes: Sequence[Lane]) -> Ready:
        return Ready(self.part_of(session_id).table, *self.levels, lanes)

    def _refill(self) -> None:
        """Set up the order of the waiting messages from the table."""
        for part in self.parts:
            if self.levels[0] == 1 and self.sessions is None:
                for start, end in part.table.waiting_runs():
                    part.ready.push_run(start, end)
                continue
            if self.sessions is None:
                for columns in part.table.level_columns():
                    part.ready.push_rows(*columns)
                continue
            for chunk, row in part.table.rows_from(0):
                if chunk.states[row] != _WAITING:
                    continue
                session, index, level = chunk.session(row), chunk.indexes[row], chunk.level(row)
                if session:
                    self.sessions.place(session, index, level, part.table)
                else:
                    part.ready.push(index, level)

    # --- what it is -------------------------------------------------------------------------------

    @property
    def is_transfer(self) -> bool:
        """Whether it is a transfer dead-letter queue."""
        return bool(self.id & TRANSFER_BIT)

    @property
    def active_count(self) -> int:
        """Messages that are ready for a receiver, or locked."""
        return self.counts[State.WAITING] + self.counts[State.LOCKED] - self.transfer_count

    @property
    def transfer_count(self) -> int:
        """Messages that wait to be forwarded to another entity."""
        forwards = self.relays_to is not None and not self.forwards_dead_letters
        return self.counts[State.WAITING] if forwards else 0

    @property
    def its_dead_letters(self) -> tuple[Queue, ...]:
        """The dead-letter queue and the transfer dead-letter queue, as far as they are there."""
        both = (self.dead_letter, self.transfer_dead_letter)
        return tuple(each for each in both if each is not None)

    @property
    def dead_letter_counts(self) -> tuple[int, int]:
        """The messages in its dead-letter queue, and in its transfer dead-letter queue."""
        dead, transfer = self.dead_letter, self.transfer_dead_letter
        return (
            0 if dead is None else sum(dead.counts),
            0 if transfer is None else sum(transfer.counts),
        )

    @property
    def stands_alone(self) -> bool:
        """Whether nothing that happens in this queue or topic reaches another entity at once."""
        return not any(
            each.relays_to is not None or (dead is not None and dead.relays_to is not None)
            for each in (self, *self.subscriptions.values())
            for dead in (each.dead_letter,)
        )

    def find(self, sequence_number: int) -> Found | None:
        parts = self.parts
        part = parts[0]
        if len(parts) > 1:
            at = sequence_number >> PARTITION_SHIFT
            if at >= len(parts):
                return None
            part = parts[at]
        index = (sequence_number - part.origin) & part.mask
        place = part.table.find(index)
        return None if place is None else Found(part, place[0], place[1], index)

    def session_of(self, chunk: Chunk, row: int) -> Session | None:
        if self.sessions is None or chunk.sessions is None:
            return None
        number = chunk.sessions[row]
        return self.sessions.at(number) if number else None

    def part_of(self, key: str) -> Part:
        return self.parts[crc32(key.encode()) % len(self.parts)]

    def choose_part(self, message: Message) -> Part:
        if len(self.parts) == 1:
            return self.parts[0]
        key = None
        if self.sessions is not None and message.session_id is not None:
            # All of a session is in one part, however its id is spelled.
            session = self.sessions.get(message.session_id)
            key = message.session_id if session is None else session.id
        key = message.partition_key or message.session_id if key is None else key
        if key is not None:
            return self.part_of(key)
        self._round += 1
        return self.parts[self._round % len(self.parts)]

    # --- arrival ----------------------------------------------------------------------------------

    def add(self, change: Enqueued) -> None:
        """Do what an `Enqueued` says."""
        (
            time, _, number, body, state, expires, due, size, level, hops, count, _,
            session_id, duplicate_key, edits, payload,
        ) = change  # fmt: skip
        parts, book = self.parts, self.book
        part = parts[0] if len(parts) == 1 else parts[number >> PARTITION_SHIFT]
        index = (number - part.origin) & part.mask
        sessions, session = self.sessions, 0
        if session_id is not None and sessions is not None:
            session = sessions.add(session_id, part.table if len(parts) > 1 else None)
        part.table.add(index, body, time, size, state, expires, level, due, session, hops, count)
        if index > part.last:
            part.last = index
        if payload is None:
            book.hold_too(body)
        elif body >= book.next_body:
            book.next_body = body + 1
        self.account(size)
        self.counts[state] += 1
        if self.arrivals is not None:
            self.arrivals.add(number)
        if edits is not None:
            self.edits[number] = book.same(edits)
        if duplicate_key is not None:
            if number in self.held:
                self.held[number] = duplicate_key
            else:
                self.duplicates.remember(duplicate_key, time, self.window_ms)
        if state == _SCHEDULED:
            heappush(self.scheduled, (due, number))
            book.wake(self, due)
            return
        if time > self.last_enqueued_ms:
            self.last_enqueued_ms = time
        if expires < self.wakes_at:
            book.wake(self, expires)
        if session and sessions is not None:
            sessions.arrive(session, index, level, part.table)
        elif self.forwards_dead_letters:
            self.fresh[number] = None
        else:
            part.ready.push(index, level)

    def account(self, size: int) -> None:
        self.size_bytes += size
        queue: Queue | None = self
        while queue is not None:
            queue.used_bytes += size
            queue = queue.owner

    def add_run(
        self, index: int, body: int, time: Millis, sizes: Sequence[int], levels: bytes | bytearray
    ) -> None:
        """`add` of messages that wait, in a row, and of which nothing else is to be said but their
        level; not even that in a queue without levels."""
        part, book = self.parts[0], self.book
        part.table.append_run(index, body, time, sizes, _WAITING, levels)
        part.last = index + len(sizes) - 1
        if levels:
            for at, level in enumerate(levels, index):
                part.ready.push(at, level)
        else:
            part.ready.push_run(index, index + len(sizes))
        book.next_body = body + len(sizes)
        self.account(sum(sizes))
        self.counts[_WAITING] += len(sizes)
        self.last_enqueued_ms = time

    # --- departure --------------------------------------------------------------------------------

    def remove(self, number: int) -> None:
        """The message is gone from here; its body too, unless another queue holds it."""
        self.remove_all((number,))

    def remove_all(self, numbers: Sequence[int]) -> None:
        """`remove` each."""
        parts, counts, unlock, release = self.parts, self.counts, self.locks.pop, self.book.release
        part, size = parts[0], 0
        is_plain = not (
            self.edits
            or self.loading
            or self.held
            or self.sessions is not None
            or self.cursors is not None
            or self.arrivals is not None
        )
        for number in numbers:
            if len(parts) > 1:
                part = parts[number >> PARTITION_SHIFT]
            found = part.table.find((number - part.origin) & part.mask)
            assert found is not None
            chunk, row = found
            state = chunk.states[row]
            after(state, Trigger.REMOVE)
            counts[state] -= 1
            size += chunk.sizes[row]
            unlock(number, None)
            if is_plain:
                release(chunk.bodies[row])
                part.table.remove(chunk, row)
            else:
                self._remove_from_all(number, part, chunk, row, state)
        self.account(-size)

    def _remove_from_all(self, number: int, part: Part, chunk: Chunk, row: int, state: int) -> None:
        """From everything that only some queues have."""
        edits = self.edits.pop(number, None)
        self.loading.pop(number, None)
        self.fresh.pop(number, None)
        self.stuck.pop(number, None)
        self.held.pop(number, None)
        sessions, session = self.sessions, chunk.session(row)
        body = chunk.bodies[row]
        if self.cursors is None or not self._held_back(part, chunk, row, edits):
            self.book.release(body)
        if sessions is not None and session:
            if state == _WAITING:
                sessions.depart(session, chunk.level(row), chunk, row, part.table)
            sessions.remove(session, number)
        part.table.remove(chunk, row)
        if self.arrivals is not None:
            self.arrivals.sweep(self.find, sum(self.counts))

    def _held_back(self, part: Part, chunk: Chunk, row: int, edits: bytes | None) -> bool:
        """Whether a tap keeps what leaves, and its body."""
        cursors = self.cursors
        assert cursors is not None
        partition = part.high >> PARTITION_SHIFT
        if not cursors.keep(partition, chunk.indexes[row], chunk, row, edits):
            return False
        self.book.wake(self, cursors.deadline_of(chunk.enqueued[row]))
        return True

    def has_arrived(self, now: Millis) -> None:
        """Messages may have become deliverable."""
        if self.is_relay:
            self.relay_at(now)
        if self.receivers.is_hungry:
            self.book.to_pump[self.id] = self

    def all_go_on(self, now: Millis) -> None:
        """Whatever waits here is to be forwarded, or tried again: something has changed."""
        self.stay(self.fresh)
        self.fresh.clear()
        if self.forwards_dead_letters:
            self.passes_at = now
        self.has_arrived(now)

    # --- handing out ------------------------------------------------------------------------------

    def delivery(
        self, number: int, chunk: Chunk, row: int, nonce: int | None = None, until: Millis = 0
    ) -> Delivery:
        """A message as a receiver or a browser gets to see it."""
        state = chunk.states[row]
        session = 0 if self.sessions is None else chunk.session(row)
        return Delivery(
            number,
            chunk.bodies[row],
            None if nonce is None else TOKEN.pack(number, nonce),
            until,
            0 if chunk.counts is None else chunk.counts[row],
            chunk.enqueued[row] if state != _SCHEDULED else chunk.due(row),
            STATES[state],
            0 if chunk.levels is None else chunk.levels[row],
            self.sessions.id_of(session) if self.sessions is not None and session else None,
            self.edits.get(number) if self.edits else None,
        )

    def lock(
        self,
        number: int,
        chunk: Chunk,
        row: int,
        nonce: int,
        until: Millis,
        link: int,
        session: Session | None,
    ) -> None:
        """`session`: that of the message, if it has one."""
        state = chunk.states[row]
        following = after(state, Trigger.LOCK)
        self.counts[state] -= 1
        self.counts[following] += 1
        chunk.states[row] = following
        if session is None:
            self.locks[number] = (until, nonce, link)
            if until < self.wakes_at:
                self.book.wake(self, until)
            return
        self.locks[number] = (NEVER, nonce, link)
        assert self.sessions is not None
        self.sessions.hold(session.number, number)
        if state == _WAITING:
            parts = self.parts
            table = parts[0 if len(parts) == 1 else number >> PARTITION_SHIFT].table
            self.sessions.depart(session.number, chunk.level(row), chunk, row, table)

    def replay_delivered(
        self, change: Delivered, rows: Iterable[tuple[int, int, int, int, int]]
    ) -> None:
        for number, nonce, *_ in rows:
            found = self.find(number)
            assert found is not None
            if change.mode == Mode.RECEIVE_AND_DELETE:
                self.remove(number)
            else:
                session = self.session_of(found.chunk, found.row)
                until, link = change.locked_until_ms, change.link
                self.lock(number, found.chunk, found.row, nonce, until, link, session)

    def browse(
        self,
        from_number: int,
        count: int,
        session_id: str | None,
        states: Collection[State] = (),
    ) -> tuple[Delivery, ...]:
        shown: list[Delivery] = []
        session = None
        if session_id is not None:
            session = None if self.sessions is None else self.sessions.get(session_id)
            if session is None:
                return ()
        for at, part in enumerate(self.parts):
            start = 0
            if len(self.parts) > 1 and from_number >> PARTITION_SHIFT > at:
                continue
            if len(self.parts) == 1 or from_number >> PARTITION_SHIFT == at:
                start = part.index(from_number) if from_number > part.high else 0
            for chunk, row in part.table.rows_from(start, states):
                if session is not None and chunk.session(row) != session.number:
                    continue
                shown.append(self.delivery(part.number(chunk.indexes[row]), chunk, row))
                if len(shown) >= count:
                    return tuple(shown)
        return tuple(shown)

    # --- settling ---------------------------------------------------------------------------------

    def give_back(self, number: int, reason: Return, edits: bytes | None) -> None:
        """Its lock ends, and it is there again for others."""
        found = self._end_lock(number, Trigger.RETURN, edits)
        _, chunk, row, _ = found
        if reason.is_counted:
            chunk.set_count(row, chunk.count(row) + 1)
        if chunk.states[row] == _WAITING:
            self._wait_again(found)

    def _wait_again(self, found: Found) -> None:
        """It is in its old place, for whoever comes."""
        part, chunk, row, index = found
        expires = chunk.expiry(row)
        if expires != NEVER:
            part.table.expect_expiry(chunk, expires)
            self.book.wake(self, expires)
        session = chunk.session(row)
        if self.sessions is not None and session:
            self.sessions.arrive(session, index, chunk.level(row), part.table)
        elif self.forwards_dead_letters:
            self.fresh[part.number(index)] = None
        else:
            part.ready.put_back(index, chunk.level(row))

    def delay(self, number: int, reason: Return, due: Millis, edits: bytes | None) -> None:
        """Its lock ends, and it comes back at a time. A deferred one stays deferred."""
        _, chunk, row, _ = self._end_lock(number, Trigger.DELAY, edits)
        if reason.is_counted:
            chunk.set_count(row, chunk.count(row) + 1)
        if chunk.states[row] == _DELAYED:
            chunk.set_due(row, due)
            heappush(self.scheduled, (due, number))
            self.book.wake(self, due)

    def reactivate(self, number: int) -> None:
        """Deferred or delayed, it waits again."""
        found = self.find(number)
        assert found is not None
        _, chunk, row, _ = found
        state = chunk.states[row]
        following = after(state, Trigger.ACTIVATE)
        self.counts[state] -= 1
        self.counts[following] += 1
        chunk.states[row] = following
        if state == _DELAYED:
            chunk.set_due(row, 0)
        self._wait_again(found)

    def set_aside(self, number: int, edits: bytes | None) -> None:
        """Deferred: only its number leads to it from now on. It was delivered, and that counts."""
        _, chunk, row, _ = self._end_lock(number, Trigger.DEFER, edits)
        chunk.set_count(row, chunk.count(row) + 1)

    def _end_lock(self, number: int, trigger: Trigger, edits: bytes | None) -> Found:
        found = self.find(number)
        assert found is not None
        chunk, row = found.chunk, found.row
        state = chunk.states[row]
        following = after(state, trigger)
        self.counts[state] -= 1
        self.counts[following] += 1
        chunk.states[row] = following
        self.locks.pop(number, None)
        if edits is not None:
            self.edits[number] = self.book.same(edits)
        session = chunk.session(row)
        if self.sessions is not None and session:
            self.sessions.let_go(session, number)
        return found

    def extend(self, number: int, until: Millis) -> None:
        lock = self.locks.get(number)
        if lock is not None:
            self.locks[number] = (until, *lock[1:])
            self.locks.move_to_end(number)
            if until < self.wakes_at:  # the lock duration may have been shortened meanwhile
                self.book.wake(self, until)

    # --- scheduled, purged, re-ranked
    # ---------------------------------------------------------------

    def activate(self, change: Activated) -> None:
        found = self.find(change.sequence_number)
        assert found is not None
        _, chunk, row, _ = found
        session = self.session_of(chunk, row)
        self.add(
            Enqueued(
                change.time,
                self.id,
                change.new_sequence_number,
                chunk.bodies[row],
                _WAITING,
                change.expires_ms,
                0,
                chunk.sizes[row],
                chunk.level(row),
                chunk.hop(row),
                0,
                0,
                None if session is None else session.id,
                None,
                self.edits.get(change.sequence_number),
                None,
            )
        )
        self.remove(change.sequence_number)

    def hold(self, numbers: Iterable[int], now: Millis, *, is_held: bool) -> None:
        """Scheduled messages become active, and their ids are remembered, only when their
        transaction is committed. They are held before they are added."""
        if is_held:
            self.held.update(dict.fromkeys(numbers))
            return
        for number in numbers:
            key = self.held.pop(number, None)
            if key is not None:
                self.duplicates.remember(key, now, self.window_ms)
            found = self.find(number)
            if found is not None and found.chunk.states[found.row] == _SCHEDULED:
                due = found.chunk.due(found.row)
                heappush(self.scheduled, (due, number))
                self.book.wake(self, due)

    def set_level(self, number: int, level: int) -> None:
        found = self.find(number)
        assert found is not None
        part, chunk, row, index = found
        session, former = chunk.session(row), chunk.level(row)
        if self.sessions is not None and session:
            self.sessions.displace(session, former, chunk, row, part.table)
            chunk.set_level(row, level)
            self.sessions.place(session, index, level, part.table)
        else:
            chunk.set_level(row, level)
            if not self.forwards_dead_letters:  # which has one level
                part.ready.put_back(index, level)

    # --- time -------------------------------------------------------------------------------------

    def next_deadline(self) -> Millis:
        """When `tick` has something to do."""
        deadline = self.receivers.next_deadline()
        if self.is_relay:
            deadline = min(deadline, self.relays_at)
        if self.scheduled:
            deadline = min(deadline, self.scheduled[0][0])
        if self.locks:
            if self.has_mixed_locks:
                deadline = min(deadline, *(until for until, *_ in self.locks.values()))
            else:
                deadline = min(deadline, self.locks[next(iter(self.locks))][0])
        for part in self.parts:
            deadline = min(deadline, part.table.next_expiry)
        if self.cursors is not None:
            deadline = min(deadline, self.cursors.next_deadline())
        return deadline

    # --- relays -----------------------------------------------------------------------------------

    def relay_at(self, when: Millis) -> None:
        self.relays_at = min(self.relays_at, when)
        self.book.wake(self, when)

    def stay(self, numbers: Iterable[int]) -> None:
        """These are in their places again, for whoever comes."""
        for number in numbers:
            found = self.find(number)
            if found is not None and found.chunk.states[found.row] == _WAITING:
                found.part.ready.put_back(found.at, found.chunk.level(found.row))

    def has_more_hops(self) -> bool:
        """Whether a waiting message can still be forwarded. Looks until it has found one."""
        return any(
            chunk.hop(row) < limits.MAX_FORWARD_HOPS
            for part in self.parts
            for chunk, row in part.table.rows_in(State.WAITING)
        )

    def try_again_later(self, now: Millis) -> None:
        """Dead letters were refused one by one: each is read again for the next try, so the more
        wait, the later that is."""
        self._pass_at(
            now + limits.RELAY_RETRY_MS * (1 + self.counts[_WAITING] // limits.RELAY_RETRIES)
        )

    def ask_target_later(self, now: Millis) -> None:
        """The target takes no dead letter now. To ask it costs nothing."""
        self.is_target_closed = True
        if self.has_more_hops():
            self._pass_at(now + limits.RELAY_RETRY_MS)

    def _pass_at(self, when: Millis) -> None:
        self.passes_at = min(self.passes_at, when)
        self.relay_at(self.passes_at)

    def back_from_relay(self, number: int) -> None:
        """It is not to go on now."""
        if self.loading.pop(number, number) is None:
            if self.is_passing:
                self.stuck[number] = None
            else:
                self.stay((number,))

    # --- for the index ----------------------------------------------------------------------------

    def dump(self, out: Writer) -> None:
        out.number(self.created_ms)
        out.number(self.updated_ms)
        out.number(self.accessed_ms)
        out.number(self.last_enqueued_ms)
        if self.sessions is not None:
            self.sessions.dump(out)
        self.duplicates.dump(out)
        out.number(len(self.edits))
        for number, edits in self.edits.items():
            out.number(number)
            out.bytes(edits)
        out.number(len(self.parts))
        for part in self.parts:
            out.number(part.last)
            part.table.dump(out)
        if self.arrivals is not None:
            self.arrivals.dump(out)
        (self.cursors or Cursors(self.book)).dump(out)
        out.number(len(self.held))
        for number, key in sorted(self.held.items()):
            out.number(number)
            out.bytes(None if key is None else key.encode("utf-8", "surrogatepass"))

    def load(self, source: Reader, version: int) -> None:
        self.created_ms = source.number()
        self.updated_ms = source.number()
        self.accessed_ms = source.number()
        self.last_enqueued_ms = source.number()
        sessions = {} if self.sessions is None else self.sessions.load(source, version)
        self.duplicates = Duplicates.load(source, version)
        for _ in range(source.number()):
            number = source.number()
            edits = source.bytes()
            assert edits is not None
            self.edits[number] = self.book.same(edits)
        for part in self.parts[: source.number()]:
            part.last = source.number()
            part.table = Table.load(source)
            part.table.rename_sessions(sessions)
        if version > 1:
            self._load_readers(source)
            if version > 3:
                self._load_held(source, version)
        elif self.arrivals is not None:
            for part in self.parts:  # nobody has counted them: by number, then
                for chunk, row in part.table.rows_from(0):
                    self.arrivals.add(part.number(chunk.indexes[row]))
        self._restore()

    def _load_held(self, source: Reader, version: int) -> None:
        for _ in range(source.number()):
            number = source.number()
            key = source.bytes() if version > 6 else None  # before, `duplicates` had it at once
            self.held[number] = None if key is None else key.decode("utf-8", "surrogatepass")

    def _load_readers(self, source: Reader) -> None:
        if self.arrivals is not None:
            self.arrivals.load(source)
        cursors = Cursors(self.book)
        cursors.load(source)
        self.cursors = cursors if cursors.by_name or cursors.floors else None

    def _restore(self) -> None:
        """What follows from the rows: the order, the counts, the heaps, the locks."""
        for part in self.parts:
            for state, count, size in part.table.totals():
                self.counts[state] += count
                self.account(size)
            for state in (State.SCHEDULED, State.DELAYED):
                for chunk, row in part.table.rows_in(state):
                    number = part.number(chunk.indexes[row])
                    heappush(self.scheduled, (chunk.due(row), number))
            for state in (State.LOCKED, State.DEFERRED_LOCKED):
                for chunk, row in part.table.rows_in(state):
                    # Of a lock only this is left: it is there. `restart` ends it.
                    self.locks[part.number(chunk.indexes[row])] = (NEVER, 0, 0)
        if self.sessions is not None:
            for part in self.parts:
                for chunk, row in part.table.rows_from(0):
                    if (session := chunk.session(row)) != 0:
                        is_waiting = chunk.states[row] == _WAITING
                        self.sessions.recount(session, is_waiting=is_waiting)
        self._reorder(*self.levels)
        if self.sessions is not None:
            self.sessions.drop_empty()

    @property
    def was_used(self) -> bool:
        """Whether a message ever came, or a cursor is kept: then the index must have this queue."""
        return self.cursors is not None or any(part.last for part in self.parts)

    def every_body(self) -> Iterable[int]:
        for part in self.parts:
            for chunk, row in part.table.rows_from(0):
                yield chunk.bodies[row]
        if self.cursors is not None:
            yield from self.cursors.every_body()
