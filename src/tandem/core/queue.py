"""A queue: what becomes of a message from its arrival to its end.

Queues, subscriptions, dead-letter queues and the inbox of a topic are all this one thing. Which
state follows which is `state.TRANSITIONS`; who is next is `ready`; who receives is `receivers`;
where the facts are kept is `table`.

Two kinds of methods. Those that *decide* (`accept`, `settle`, `come_back`, `activate_due`, …) put a
change into the book and then do it; those that *do* (`add`, `lock`, `give_back`, `set_aside`,
`remove`, …) only change memory, and recovery calls the same ones while it plays the log again. So
what was decided once never gets decided otherwise.

Messages are named by their sequence number. Within a partition the table counts them by *index*,
which only grows; the number is the index, shifted by the origin and rolled over (S2, S3).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from tandem import limits
from tandem.changes import (
    DELIVERED_ROW,
    Activated,
    Deferred,
    Delivered,
    Enqueued,
    EntityKind,
    LevelChanged,
    Mode,
    Note,
    Noted,
    Removal,
    Removed,
    Renewed,
    Return,
    Returned,
    decode_edits,
    encode_edits,
)
from tandem.core.book import Book
from tandem.core.commands import Disposition
from tandem.core.duplicates import Duplicates, duplicate_key
from tandem.core.effects import Delivery
from tandem.core.packing import Reader, Writer
from tandem.core.priority import LevelOf, level_of
from tandem.core.ready import Next, Ready
from tandem.core.receivers import Receivers
from tandem.core.sessions import Session, Sessions
from tandem.core.state import State, Trigger, after
from tandem.core.table import Chunk, Table
from tandem.errors import (
    ArgumentError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    NotAllowedError,
    QuotaExceededError,
    SessionLockLostError,
)
from tandem.model import NEVER, NO_EDITS, Edits, Message, Millis
from tandem.settings import EntityStatus, QueueSettings, Settings, SubscriptionSettings

TOKEN: Final = Struct("<QQ")
"""A lock token: sequence number, nonce."""
NO_SESSION_ID: Final = (
    "Session enabled entity doesn't allow a message whose session identifier is null."
)
COUNT_MASK: Final = (1 << 48) - 1
NUMBER_MASK: Final = (1 << 64) - 1

_WAITING: Final = int(State.WAITING)
_LOCKED: Final = int(State.LOCKED)
_SCHEDULED: Final = int(State.SCHEDULED)
_DEFERRED: Final = int(State.DEFERRED)
_LOCKED_STATES: Final = (int(State.LOCKED), int(State.DEFERRED_LOCKED))


class Lock(NamedTuple):
    until_ms: Millis
    """NEVER for a message of a session: the session's lock counts."""
    nonce: int
    link: int


class Part:
    """A partition: a count of its own, and the order of its messages."""

    __slots__ = ("high", "last", "mask", "origin", "ready", "table")

    def __init__(self, number: int, *, is_partitioned: bool, origin: int) -> None:
        self.high = number << 48
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


def packed(numbers: Iterable[int]) -> bytes:
    return array("Q", numbers).tobytes()


class Queue:
    __slots__ = (
        "_has_mixed_locks",
        "_parts",
        "_round",
        "_scheduled",
        "accessed_ms",
        "book",
        "counts",
        "created_ms",
        "dead_letter",
        "duplicates",
        "edits",
        "id",
        "kind",
        "last_enqueued_ms",
        "level_of",
        "levels",
        "loading",
        "locks",
        "max_bytes",
        "max_message_bytes",
        "origin",
        "owner",
        "path",
        "receivers",
        "relays_to",
        "sessions",
        "settings",
        "size_bytes",
        "ttl_ms",
        "updated_ms",
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
        self.created_ms = self.updated_ms = now
        self.accessed_ms: Millis = now
        self.last_enqueued_ms: Millis = 0
        self.size_bytes = 0
        self.counts = [0] * len(State)
        """Messages by state."""
        self.locks: OrderedDict[int, Lock] = OrderedDict()
        """By sequence number; the first ends first, unless `_has_mixed_locks`."""
        self._has_mixed_locks = False
        self.edits: dict[int, bytes] = {}
        self._scheduled: list[tuple[Millis, int]] = []
        self.duplicates = Duplicates()
        self.loading: dict[int, None] = {}
        """Messages on their way to another entity that wait to be read from the store."""
        self.wakes_at: Millis = NEVER
        self._round = 0
        parts = limits.MAX_PARTITIONS if is_partitioned else 1
        self._parts = [
            Part(number, is_partitioned=is_partitioned, origin=origin) for number in range(parts)
        ]
        self.sessions: Sessions | None = None
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
        self.relays_to: str | None = None
        if isinstance(settings, QueueSettings | SubscriptionSettings):
            self.relays_to = (
                settings.forward_dead_letters_to if is_dead_letter else settings.forward_to
            )
        priority = getattr(settings, "priority", None) if is_holder and not is_dead_letter else None
        levels = 1 if priority is None else priority.levels
        self.level_of: LevelOf | None = None if priority is None else level_of(priority)
        self._reorder(
            levels, priority and priority.aging_ms_per_level, priority and priority.weights
        )
        if not is_dead_letter and getattr(settings, "requires_session", False):
            if self.sessions is None:
                self.sessions = Sessions(self._session_ready)
        self._has_mixed_locks = bool(self.locks)

    def _reorder(self, levels: int, aging_ms: Millis | None, weights: Sequence[int] | None) -> None:
        self.levels = (levels, aging_ms, weights)
        for part in self._parts:
            part.ready = Ready(part.table, levels, aging_ms, weights)
        if self.sessions is not None:
            for session in self.sessions.by_id.values():
                session.ready = self._session_ready(session.id)
        self._refill()

    def _session_ready(self, session_id: str) -> Ready:
        return Ready(self.part_of(session_id).table, *self.levels)

    def _refill(self) -> None:
        """Set up the order of the waiting messages from the table."""
        top = self.levels[0] - 1
        for part in self._parts:
            if top == 0 and self.sessions is None:
                for start, end in part.table.waiting_runs():
                    part.ready.push_run(start, end)
                continue
            for chunk, row in part.table.rows_from(0):
                if chunk.states[row] != _WAITING:
                    continue
                if chunk.level(row) > top:
                    chunk.set_level(row, top)
                session = self._session_of(chunk, row)
                ready = part.ready if session is None else session.ready
                ready.push(chunk.indexes[row], chunk.level(row))

    # --- what it is -------------------------------------------------------------------------------

    @property
    def status(self) -> EntityStatus:
        return self.settings.status

    @property
    def is_relay(self) -> bool:
        """Whether messages do not stay here: a topic's inbox, or a queue that forwards."""
        return self.kind is EntityKind.TOPIC or self.relays_to is not None

    @property
    def lock_ms(self) -> Millis:
        assert isinstance(self.settings, QueueSettings | SubscriptionSettings)
        return self.settings.lock_duration_ms

    @property
    def active_count(self) -> int:
        return self.counts[State.WAITING] + self.counts[State.LOCKED]

    @property
    def total_bytes(self) -> int:
        """What counts against the quota: dead letters are part of their queue."""
        return self.size_bytes + (0 if self.dead_letter is None else self.dead_letter.size_bytes)

    def find(self, sequence_number: int) -> Found | None:
        parts = self._parts
        part = parts[0]
        if len(parts) > 1:
            at = sequence_number >> 48
            if at >= len(parts):
                return None
            part = parts[at]
        index = (sequence_number - part.origin) & part.mask
        place = part.table.find(index)
        return None if place is None else Found(part, place[0], place[1], index)

    def _session_of(self, chunk: Chunk, row: int) -> Session | None:
        if self.sessions is None or chunk.sessions is None:
            return None
        number = chunk.sessions[row]
        return self.sessions.by_number[number] if number else None

    def part_of(self, key: str) -> Part:
        return self._parts[crc32(key.encode()) % len(self._parts)]

    def _choose_part(self, message: Message) -> Part:
        if len(self._parts) == 1:
            return self._parts[0]
        key = message.session_id if self.sessions is not None else None
        key = message.partition_key or message.session_id if key is None else key
        if key is not None:
            return self.part_of(key)
        self._round += 1
        return self._parts[self._round % len(self._parts)]

    # --- arrival ----------------------------------------------------------------------------------

    def check(self, message: Message) -> None:
        """Raises if this queue cannot take the message. Changes nothing."""
        size = len(message.payload)
        if size > self.max_message_bytes:
            raise MessageSizeExceededError(
                f"The message of {size} bytes exceeds the limit of {self.max_message_bytes} bytes "
                f"of '{self.path}'."
            )
        if self.sessions is not None or len(self._parts) > 1:
            session_id = message.session_id
            if session_id is None and self.sessions is not None:
                raise NotAllowedError(NO_SESSION_ID)
            partition_key = message.partition_key
            _check_length("SessionId", session_id, limits.MAX_SESSION_ID)
            _check_length("PartitionKey", partition_key, limits.MAX_PARTITION_KEY)
            if None not in (session_id, partition_key) and session_id != partition_key:
                text = "PartitionKey and SessionId must be the same when both are set."
                raise NotAllowedError(text)
        if self.window_ms:
            message_id = message.message_id
            if isinstance(message_id, str):
                _check_length("MessageId", message_id, limits.MAX_MESSAGE_ID)

    def check_room(self, size: int) -> None:
        """Raises if `size` bytes more do not fit the quota."""
        if self.total_bytes + size > self.max_bytes:
            raise QuotaExceededError(
                "The maximum entity size has been reached or exceeded for "
                f"{self.kind.name.title()}: '{self.path}'. Size of entity in bytes:"
                f"{self.total_bytes}, Max entity size in bytes:{self.max_bytes}."
            )

    def accept(
        self,
        message: Message,
        now: Millis,
        *,
        body: int | None = None,
        due: Millis = 0,
        hops: int = 0,
        edits: bytes | None = None,
        link: int = 0,
    ) -> int:
        """Take a message that was checked. `body` names one that is stored already. Returns its
        sequence number; 0 if it was a duplicate."""
        book = self.book
        key = None
        if self.window_ms:
            message_id = message.message_id
            if message_id is not None:
                is_keyed = len(self._parts) > 1
                key = duplicate_key(message_id, message.partition_key if is_keyed else None)
                if self.duplicates.has_seen(key, now, self.window_ms):
                    book.emit(Noted(now, self.id, Note.DUPLICATE_DROPPED, 0, link, key))
                    return 0
        time = now if now > self.last_enqueued_ms else self.last_enqueued_ms
        ttl = message.ttl_ms
        if ttl is None or ttl > self.ttl_ms:
            ttl = self.ttl_ms
        payload = None
        size = len(message.payload)
        if body is None:
            body = book.next_body
            payload = message.payload
        part = self._choose_part(message)
        change = Enqueued(
            time,
            self.id,
            part.number(part.last + 1),
            body,
            _SCHEDULED if due else _WAITING,
            # A scheduled message lives from its due time on.
            NEVER if ttl == NEVER else (due or time) + ttl,
            due,
            size,
            0 if self.level_of is None else self.level_of(message),
            hops,
            0,
            link,
            None if self.sessions is None else message.session_id,
            key,
            edits,
            payload,
        )
        book.emit(change)
        self.add(change)
        return change.sequence_number

    def add(self, change: Enqueued) -> None:
        """Do what an `Enqueued` says."""
        number = change.sequence_number
        parts = self._parts
        part = parts[0] if len(parts) == 1 else parts[number >> 48]
        index = (number - part.origin) & part.mask
        session = None
        if change.session_id is not None and self.sessions is not None:
            session = self.sessions.open(change.session_id)
            session.messages += 1
        part.table.add(
            index,
            change.body,
            change.time,
            change.size,
            change.state,
            change.expires_ms,
            change.level,
            change.due_ms,
            0 if session is None else session.number,
            change.hops,
            change.delivery_count,
        )
        if index > part.last:
            part.last = index
        self.book.hold(change.body, is_first=change.payload is not None)
        self.size_bytes += change.size
        self.counts[change.state] += 1
        if change.edits is not None:
            self.edits[number] = self.book.same(change.edits)
        if change.duplicate_key is not None:
            self.duplicates.remember(change.duplicate_key, change.time, self.window_ms)
        if change.state == _SCHEDULED:
            heappush(self._scheduled, (change.due_ms, number))
            self.book.wake(self, change.due_ms)
            return
        if change.time > self.last_enqueued_ms:
            self.last_enqueued_ms = change.time
        if change.expires_ms < self.wakes_at:
            self.book.wake(self, change.expires_ms)
        if session is None:
            part.ready.push(index, change.level)
        else:
            session.waiting += 1
            session.ready.push(index, change.level)
            assert self.sessions is not None
            self.sessions.update(session)

    # --- departure --------------------------------------------------------------------------------

    def remove(self, sequence_number: int, found: Found | None = None) -> None:
        """The message is gone from here; its body too, unless another queue holds it."""
        if found is None:
            found = self.find(sequence_number)
            assert found is not None
        part, chunk, row, _ = found
        state = chunk.states[row]
        after(state, Trigger.REMOVE)
        self.counts[state] -= 1
        self.size_bytes -= chunk.sizes[row]
        if state in _LOCKED_STATES:
            self.locks.pop(sequence_number, None)
        if self.edits:
            self.edits.pop(sequence_number, None)
        if self.loading:
            self.loading.pop(sequence_number, None)
        session = self._session_of(chunk, row)
        body = chunk.bodies[row]
        part.table.remove(chunk, row)
        self.book.release(body)
        if session is not None:
            session.messages -= 1
            session.held.discard(sequence_number)
            if state == _WAITING:
                session.waiting -= 1
            assert self.sessions is not None
            self.sessions.update(session)

    def leave(self, numbers: Sequence[int], reason: Removal, now: Millis) -> None:
        if numbers:
            self.book.emit(Removed(now, self.id, reason, packed(numbers)))
            for number in numbers:
                self.remove(number)

    def bury(
        self,
        sequence_number: int,
        reason: str | None,
        description: str | None,
        now: Millis,
        *,
        count: int | None = None,
        edits: Edits = NO_EDITS,
    ) -> None:
        """Move a message to the dead-letter queue, keeping its number."""
        grave, found = self.dead_letter, self.find(sequence_number)
        assert grave is not None and found is not None
        _, chunk, row, _ = found
        texts = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        death = Edits({name: text for name, text in texts.items() if text is not None})
        merged = decode_edits(self.edits.get(sequence_number)).then(edits).then(death)
        change = Enqueued(
            chunk.enqueued[row],
            grave.id,
            sequence_number,
            chunk.bodies[row],
            _WAITING,
            NEVER,
            0,
            chunk.sizes[row],
            0,
            chunk.hop(row),
            chunk.count(row) if count is None else count,
            0,
            None,
            None,
            encode_edits(merged),
            None,
        )
        self.book.emit(change)
        grave.add(change)
        self.leave((sequence_number,), Removal.DEAD_LETTERED, now)
        grave.has_arrived(now)

    def has_arrived(self, now: Millis) -> None:
        """Messages may have become deliverable."""
        if self.is_relay:
            self.book.wake(self, now)
        elif self.receivers.is_hungry:
            self.book.to_pump[self.id] = self

    def expire(self, numbers: Sequence[int], now: Millis) -> None:
        """The time to live of these waiting messages is over."""
        assert self.kind is not EntityKind.DEAD_LETTER
        if self.dead_letter is not None and getattr(
            self.settings, "dead_letter_on_expiration", False
        ):
            for number in numbers:
                self.bury(
                    number,
                    "TTLExpiredException",
                    "The message expired and was dead lettered.",
                    now,
                )
        else:
            self.leave(numbers, Removal.EXPIRED, now)

    # --- handing out ------------------------------------------------------------------------------

    def next_message(self, now: Millis) -> tuple[Part, Next] | None:
        """Who is next for a receiver without a session. What has expired is removed on the way."""
        if len(self._parts) == 1:
            part = self._parts[0]
            chosen = self.next_living(part.ready, part, now)
            return None if chosen is None else (part, chosen)
        best: tuple[Part, Next] | None = None
        for part in self._parts:
            chosen = self.next_living(part.ready, part, now)
            if chosen is not None and (best is None or _goes_before(chosen, best[1])):
                best = part, chosen
        return best

    def next_living(self, ready: Ready, part: Part, now: Millis) -> Next | None:
        while True:
            chosen = ready.first(now)
            if chosen is None:
                return None
            expires = chosen.chunk.expires
            if expires is None or expires[chosen.row] > now:
                return chosen
            self.expire((part.number(chosen.at),), now)

    def delivery(
        self, number: int, chunk: Chunk, row: int, nonce: int | None = None, until: Millis = 0
    ) -> Delivery:
        """A message as a receiver or a browser gets to see it."""
        session = self._session_of(chunk, row) if self.sessions is not None else None
        return Delivery(
            number,
            chunk.bodies[row],
            None if nonce is None else TOKEN.pack(number, nonce),
            until,
            0 if chunk.counts is None else chunk.counts[row],
            chunk.enqueued[row] if chunk.states[row] != _SCHEDULED else chunk.due(row),
            State(chunk.states[row]),
            0 if chunk.levels is None else chunk.levels[row],
            None if session is None else session.id,
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
        state = chunk.states[row]
        following = after(state, Trigger.LOCK)
        self.counts[state] -= 1
        self.counts[following] += 1
        chunk.states[row] = following
        if session is None:
            self.locks[number] = Lock(until, nonce, link)
            if until < self.wakes_at:
                self.book.wake(self, until)
            return
        self.locks[number] = Lock(NEVER, nonce, link)
        session.held.add(number)
        if state == _WAITING:
            session.waiting -= 1
            assert self.sessions is not None
            self.sessions.update(session)

    def replay_delivered(
        self, change: Delivered, rows: Iterable[tuple[int, int, int, int, int]]
    ) -> None:
        for number, nonce, *_ in rows:
            found = self.find(number)
            assert found is not None
            if change.mode == Mode.RECEIVE_AND_DELETE:
                self.remove(number, found)
            else:
                session = self._session_of(found.chunk, found.row)
                until, link = change.locked_until_ms, change.link
                self.lock(number, found.chunk, found.row, nonce, until, link, session)

    def receive_deferred(
        self,
        numbers: Sequence[int],
        nonce: int,
        mode: Mode,
        session_id: str | None,
        link: int,
        now: Millis,
    ) -> tuple[Delivery, ...]:
        until = now + self.lock_ms
        for number in numbers:
            found = self.find(number)
            if found is None or found.chunk.states[found.row] != _DEFERRED:
                raise MessageNotFoundError(number)
            session = self._session_of(found.chunk, found.row)
            if session is not None:
                if session.id != session_id:
                    raise MessageNotFoundError(number)
                self.check_session(session_id, link, now)
                until = session.locked_until_ms
        if len(set(numbers)) != len(numbers):
            raise ArgumentError("A sequence number was given twice.")
        rows, result = bytearray(), []
        for step, number in enumerate(numbers):
            found = self.find(number)
            assert found is not None
            chunk, row = found.chunk, found.row
            is_locked = mode is Mode.PEEK_LOCK
            mark = (nonce + step) & NUMBER_MASK
            rows += DELIVERED_ROW.pack(
                number, mark, chunk.sizes[row], chunk.count(row), chunk.level(row)
            )
            if is_locked:
                result.append(self.delivery(number, chunk, row, mark, until))
                session = self._session_of(chunk, row)
                self.lock(number, chunk, row, mark, until, link, session)
            else:
                result.append(self.delivery(number, chunk, row))
                self.remove(number, found)
        self.book.emit(Delivered(now, self.id, link, mode, until, bytes(rows)))
        return tuple(result)

    def browse(self, from_number: int, count: int, session_id: str | None) -> tuple[Delivery, ...]:
        shown: list[Delivery] = []
        session = None
        if session_id is not None:
            session = None if self.sessions is None else self.sessions.by_id.get(session_id)
            if session is None:
                return ()
        for at, part in enumerate(self._parts):
            start = 0
            if len(self._parts) > 1 and from_number >> 48 > at:
                continue
            if len(self._parts) == 1 or from_number >> 48 == at:
                start = part.index(from_number) if from_number > part.high else 0
            for chunk, row in part.table.rows_from(start):
                if session is not None and chunk.session(row) != session.number:
                    continue
                shown.append(self.delivery(part.number(chunk.indexes[row]), chunk, row))
                if len(shown) >= count:
                    return tuple(shown)
        return tuple(shown)

    # --- settling ---------------------------------------------------------------------------------

    def holder(self, token: bytes, now: Millis) -> int:
        """The sequence number that this token locks. Raises if it does not, or not any more."""
        if len(token) != TOKEN.size:
            raise MessageLockLostError
        number, nonce = TOKEN.unpack(token)
        lock = self.locks.get(number)
        if lock is None or lock.nonce != nonce or lock.until_ms <= now:
            raise MessageLockLostError
        if lock.until_ms == NEVER:
            found = self.find(number)
            assert found is not None
            session = self._session_of(found.chunk, found.row)
            assert session is not None
            if not session.is_locked(now) or session.link != lock.link:
                raise SessionLockLostError(session.id)
        number_held: int = number
        return number_held

    def check_settle(
        self, tokens: Sequence[bytes], disposition: Disposition, now: Millis
    ) -> list[int]:
        numbers = [self.holder(token, now) for token in tokens]
        if len(numbers) > 1 and len(set(numbers)) != len(numbers):
            raise MessageLockLostError
        if disposition is Disposition.DEAD_LETTER and self.kind is EntityKind.DEAD_LETTER:
            raise NotAllowedError("A message in a dead-letter queue can't be dead-lettered again.")
        return numbers

    def settle(
        self,
        numbers: Sequence[int],
        disposition: Disposition,
        edits: Edits,
        reason: str | None,
        description: str | None,
        now: Millis,
    ) -> None:
        """Carry out what `check_settle` allowed."""
        match disposition:
            case Disposition.COMPLETE:
                self.leave(numbers, Removal.COMPLETED, now)
            case Disposition.DEAD_LETTER:
                for number in numbers:
                    self.bury(number, reason, description, now, edits=edits)
            case Disposition.DEFER:
                for number in numbers:
                    merged = self._merged(number, edits)
                    self.book.emit(Deferred(now, self.id, merged, packed((number,))))
                    self.set_aside(number, merged)
            case Disposition.ABANDON:
                self.come_back(numbers, Return.ABANDONED, now, edits)
            case Disposition.RELEASE:
                self.come_back(numbers, Return.RELEASED, now)

    def _merged(self, number: int, edits: Edits) -> bytes | None:
        """All edits of a message, these on top; None if there are no new ones."""
        if not edits:
            return None
        return encode_edits(decode_edits(self.edits.get(number)).then(edits))

    def come_back(
        self, numbers: Sequence[int], reason: Return, now: Millis, edits: Edits = NO_EDITS
    ) -> None:
        """The locks of these messages end. Each goes back to its place, or, if it was delivered too
        often or has expired, to where such messages go."""
        back: list[int] = []
        limit = NEVER
        if isinstance(self.settings, QueueSettings | SubscriptionSettings):
            if self.kind is not EntityKind.DEAD_LETTER:
                limit = self.settings.max_delivery_count
        for number in numbers:
            found = self.find(number)
            assert found is not None
            chunk, row = found.chunk, found.row
            count = chunk.count(row) + reason.is_counted
            if reason.is_counted and count >= limit:
                why = f"Message could not be consumed after {count} delivery attempts."
                self.bury(number, "MaxDeliveryCountExceeded", why, now, count=count, edits=edits)
            elif edits:
                merged = self._merged(number, edits)
                self.book.emit(Returned(now, self.id, reason, merged, packed((number,))))
                self.give_back(number, reason, merged)
            else:
                back.append(number)
        if back:
            self.book.emit(Returned(now, self.id, reason, None, packed(back)))
            for number in back:
                self.give_back(number, reason, None)
        self.has_arrived(now)

    def give_back(self, number: int, reason: Return, edits: bytes | None) -> None:
        found = self.find(number)
        assert found is not None
        part, chunk, row, index = found
        state = chunk.states[row]
        following = after(state, Trigger.RETURN)
        self.counts[state] -= 1
        self.counts[following] += 1
        chunk.states[row] = following
        self.locks.pop(number, None)
        if reason.is_counted:
            chunk.set_count(row, chunk.count(row) + 1)
        if edits is not None:
            self.edits[number] = self.book.same(edits)
        session = self._session_of(chunk, row)
        if session is not None:
            session.held.discard(number)
        if following != _WAITING:
            return
        expires = chunk.expiry(row)
        if expires != NEVER:
            part.table.expect_expiry(chunk, expires)
            self.book.wake(self, expires)
        if session is None:
            part.ready.put_back(index, chunk.level(row))
        else:
            session.ready.put_back(index, chunk.level(row))
            session.waiting += 1
            assert self.sessions is not None
            self.sessions.update(session)

    def set_aside(self, number: int, edits: bytes | None) -> None:
        """Deferred: only its number leads to it from now on."""
        found = self.find(number)
        assert found is not None
        _, chunk, row, _ = found
        state = chunk.states[row]
        following = after(state, Trigger.DEFER)
        self.counts[state] -= 1
        self.counts[following] += 1
        chunk.states[row] = following
        self.locks.pop(number, None)
        if edits is not None:
            self.edits[number] = self.book.same(edits)
        session = self._session_of(chunk, row)
        if session is not None:
            session.held.discard(number)

    def renew(self, tokens: Sequence[bytes], now: Millis) -> list[Millis]:
        numbers = [self.holder(token, now) for token in tokens]
        until = now + self.lock_ms
        self.book.emit(Renewed(now, self.id, until, packed(numbers)))
        for number in numbers:
            self.extend(number, until)
        return [until] * len(numbers)

    def extend(self, number: int, until: Millis) -> None:
        lock = self.locks.get(number)
        # A session's messages have no lock of their own to extend.
        if lock is not None and lock.until_ms != NEVER:
            self.locks[number] = lock._replace(until_ms=until)
            self.locks.move_to_end(number)

    # --- scheduled, purged, re-ranked
    # ---------------------------------------------------------------

    def cancel(self, numbers: Sequence[int], now: Millis) -> None:
        for number in numbers:
            found = self.find(number)
            if found is None or found.chunk.states[found.row] != _SCHEDULED:
                raise MessageNotFoundError(number)
        self.leave(list(dict.fromkeys(numbers)), Removal.CANCELLED, now)

    def activate_due(self, now: Millis) -> None:
        """Scheduled messages whose time has come are appended as if sent now (S8)."""
        scheduled = self._scheduled
        while scheduled and scheduled[0][0] <= now:
            due, number = heappop(scheduled)
            found = self.find(number)
            if found is None or found.chunk.states[found.row] != _SCHEDULED:
                continue
            time = max(due, self.last_enqueued_ms)
            expires = found.chunk.expiry(found.row)
            if expires != NEVER:
                expires += time - due
            new_number = found.part.number(found.part.last + 1)
            change = Activated(time, self.id, number, new_number, expires)
            self.book.emit(change)
            self.activate(change)
            self.has_arrived(now)

    def activate(self, change: Activated) -> None:
        found = self.find(change.sequence_number)
        assert found is not None
        _, chunk, row, _ = found
        session = self._session_of(chunk, row)
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

    def purge(self, count: int, before: Millis, session_id: str | None, now: Millis) -> int:
        numbers: list[int] = []
        session = None
        if session_id is not None:
            session = None if self.sessions is None else self.sessions.by_id.get(session_id)
            if session is None:
                return 0
        for part in self._parts:
            for chunk, row in part.table.rows_from(0):
                if len(numbers) >= count or chunk.enqueued[row] >= before:
                    break
                if chunk.states[row] != _WAITING:
                    continue
                if session is None or chunk.session(row) == session.number:
                    numbers.append(part.number(chunk.indexes[row]))
        self.leave(numbers, Removal.PURGED, now)
        return len(numbers)

    def change_level(self, number: int, level: int, now: Millis) -> None:
        if not 0 <= level < self.levels[0]:
            raise ArgumentError(
                f"'{self.path}' has the levels 0 to {self.levels[0] - 1}, not {level}."
            )
        found = self.find(number)
        if found is None or found.chunk.states[found.row] != _WAITING:
            raise MessageNotFoundError(number)
        self.book.emit(LevelChanged(now, self.id, number, level))
        self.set_level(number, level)
        self.has_arrived(now)

    def set_level(self, number: int, level: int) -> None:
        found = self.find(number)
        assert found is not None
        found.chunk.set_level(found.row, level)
        session = self._session_of(found.chunk, found.row)
        ready = found.part.ready if session is None else session.ready
        ready.put_back(found.at, level)

    # --- sessions ---------------------------------------------------------------------------------

    def check_session(self, session_id: str, link: int, now: Millis) -> Session:
        """The session, if `link` holds it."""
        if self.sessions is None:
            raise NotAllowedError(f"'{self.path}' does not require sessions.")
        session = self.sessions.by_id.get(session_id)
        if session is None or session.link != link or not session.is_locked(now):
            raise SessionLockLostError(session_id)
        return session

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now: Millis) -> None:
        self.activate_due(now)
        ended = self._ended_locks(now)
        if ended:
            self.come_back(ended, Return.LOCK_EXPIRED, now)
        self.receivers.tick(now)
        for part in self._parts:
            if part.table.next_expiry <= now:
                self.expire([part.number(index) for index in part.table.expired(now)], now)

    def _ended_locks(self, now: Millis) -> list[int]:
        if self._has_mixed_locks:
            # The lock duration was changed: until these locks are gone their order says nothing.
            self._has_mixed_locks = bool(self.locks)
            return [number for number, lock in self.locks.items() if lock.until_ms <= now]
        ended = []
        for number, lock in self.locks.items():
            if lock.until_ms > now:
                break
            ended.append(number)
        return ended

    def next_deadline(self) -> Millis:
        """When `tick` has something to do. Relays are woken by `has_arrived`."""
        deadline = self.receivers.next_deadline()
        if self._scheduled:
            deadline = min(deadline, self._scheduled[0][0])
        if self.locks:
            if self._has_mixed_locks:
                deadline = min(deadline, *(lock.until_ms for lock in self.locks.values()))
            else:
                deadline = min(deadline, self.locks[next(iter(self.locks))].until_ms)
        for part in self._parts:
            deadline = min(deadline, part.table.next_expiry)
        return deadline

    # --- relays -----------------------------------------------------------------------------------

    def take_for_relay(self, most: int, now: Millis) -> dict[int, int]:
        """Waiting messages that are to go on to another entity, with their bodies."""
        taken: dict[int, int] = {}
        while len(taken) < most:
            following = self.next_message(now)
            if following is None:
                break
            part, chosen = following
            part.ready.take(chosen, now)
            number = part.number(chosen.at)
            if number not in self.loading:
                taken[number] = chosen.chunk.bodies[chosen.row]
                self.loading[number] = None
        return taken

    def back_from_relay(self, number: int) -> None:
        """It is not to go on after all: the forwarding was switched off meanwhile."""
        found = self.find(number)
        if self.loading.pop(number, number) is None and found is not None:
            found.part.ready.put_back(found.at, found.chunk.level(found.row))

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
        out.number(len(self._parts))
        for part in self._parts:
            out.number(part.last)
            part.table.dump(out)

    def load(self, source: Reader) -> None:
        self.created_ms = source.number()
        self.updated_ms = source.number()
        self.accessed_ms = source.number()
        self.last_enqueued_ms = source.number()
        if self.sessions is not None:
            self.sessions.load(source)
        self.duplicates = Duplicates.load(source)
        for _ in range(source.number()):
            number = source.number()
            edits = source.bytes()
            assert edits is not None
            self.edits[number] = self.book.same(edits)
        for part in self._parts[: source.number()]:
            part.last = source.number()
            part.table = Table.load(source)
        self._restore()

    def _restore(self) -> None:
        """What follows from the rows: the order, the counts, the heaps, the locks."""
        for part in self._parts:
            for state, count, size in part.table.totals():
                self.counts[state] += count
                self.size_bytes += size
            for chunk, row in part.table.rows_in(State.SCHEDULED):
                number = part.number(chunk.indexes[row])
                heappush(self._scheduled, (chunk.due(row), number))
            for state in (State.LOCKED, State.DEFERRED_LOCKED):
                for chunk, row in part.table.rows_in(state):
                    # Of a lock only this is left: it is there. `restart` ends it.
                    self.locks[part.number(chunk.indexes[row])] = Lock(NEVER, 0, 0)
        if self.sessions is not None:
            for part in self._parts:
                for chunk, row in part.table.rows_from(0):
                    session = self._session_of(chunk, row)
                    if session is not None:
                        session.messages += 1
                        session.waiting += chunk.states[row] == _WAITING
        self._reorder(*self.levels)
        if self.sessions is not None:
            for session in list(self.sessions.by_id.values()):
                self.sessions.update(session)

    def every_body(self) -> Iterable[int]:
        for part in self._parts:
            for chunk, row in part.table.rows_from(0):
                yield chunk.bodies[row]


def _goes_before(one: Next, other: Next) -> bool:
    """Across partitions: by effective level, then by time of arrival."""
    if one.rank != other.rank:
        return one.rank > other.rank
    return one.chunk.enqueued[one.row] < other.chunk.enqueued[other.row]


def _check_length(name: str, value: str | None, most: int) -> None:
    if value is not None and len(value) > most:
        raise ArgumentError(f"{name} has {len(value)} characters; at most {most} are allowed.")
