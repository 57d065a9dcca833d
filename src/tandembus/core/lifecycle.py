"""What becomes of a message in its queue: every decision, from arrival to end.

Each function here decides, puts the change into the book, and has `queue` do it. What may come in
at all is `admission`. Which state follows which is `state.TRANSITIONS`; who is next is
`ready`; who receives is `receivers`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop
from struct import Struct
from typing import TYPE_CHECKING, Final

from tandembus import limits
from tandembus.changes import (
    DELIVERED_ROW,
    Activated,
    Deferred,
    Delayed,
    Delivered,
    Enqueued,
    EntityKind,
    Mode,
    Note,
    Noted,
    Reactivated,
    Removal,
    Removed,
    Renewed,
    Return,
    Returned,
    ScheduleHeld,
    decode_edits,
    encode_edits,
)
from tandembus.core.commands import Disposition, Settle
from tandembus.core.cursors import let_go
from tandembus.core.duplicates import duplicate_key
from tandembus.core.effects import Delivery
from tandembus.core.ready import Next, Ready
from tandembus.core.reasons import DeadLetterReason
from tandembus.core.session_rows import key_of
from tandembus.core.sessions import Session
from tandembus.core.state import State
from tandembus.core.tokens import NUMBER_MASK, TOKEN
from tandembus.errors import (
    ArgumentError,
    MessageLockLostError,
    MessageNotFoundError,
    NotAllowedError,
    SessionLockLostError,
)
from tandembus.model import NEVER, NO_EDITS, Edits, Message, Millis, new_tuple
from tandembus.settings import QueueSettings, SubscriptionSettings

if TYPE_CHECKING:
    from tandembus.core.queue import Part, Queue

_ONE: Final = Struct("<Q")
_TOO_OFTEN: Final = DeadLetterReason.MAX_DELIVERY_COUNT_EXCEEDED
HEADER_SIZE_TEXT: Final = (
    f"With the properties to modify, the changed properties of the message would have more than "
    f"{limits.MAX_PROPERTIES} bytes."
)
_WAITING: Final = int(State.WAITING)
_SCHEDULED: Final = int(State.SCHEDULED)
_DEFERRED: Final = int(State.DEFERRED)
_DELAYED: Final = int(State.DELAYED)


def packed(numbers: Sequence[int]) -> bytes:
    return _ONE.pack(numbers[0]) if len(numbers) == 1 else array("Q", numbers).tobytes()


def check_session(queue: Queue, session_id: str, link: int, now: Millis) -> Session:
    """The session, if `link` holds it."""
    if queue.sessions is None:
        raise NotAllowedError(f"'{queue.path}' does not require sessions.")
    session = queue.sessions.get(session_id)
    if session is None or session.link != link or not session.is_locked(now):
        raise SessionLockLostError(session_id)
    return session


def accept(
    queue: Queue,
    message: Message,
    now: Millis,
    *,
    body: int | None = None,
    due: Millis = 0,
    hops: int = 0,
    edits: bytes | None = None,
    link: int = 0,
    is_new: bool = True,
    held: set[str] | None = None,
) -> int | None:
    """Take a message that was checked. `body` names one that is stored already; with `is_new` false
    it is not looked for duplicates. `held`: it is held until its transaction is committed, which
    holds messages with these keys already. Returns its sequence number; None if it was a
    duplicate."""
    book = queue.book
    key = None
    if queue.window_ms and is_new:
        message_id = message.message_id
        if message_id is not None:
            is_keyed = len(queue.parts) > 1
            key = duplicate_key(message_id, message.partition_key if is_keyed else None)
            is_duplicate = queue.duplicates.has_seen(key, now, queue.window_ms)
            if is_duplicate or (held is not None and key in held):
                book.emit(Noted(now, queue.id, Note.DUPLICATE_DROPPED, 0, link, key))
                return None
    time = now if now > queue.last_enqueued_ms else queue.last_enqueued_ms
    ttl = message.ttl_ms
    if ttl is None or ttl > queue.ttl_ms:
        ttl = queue.ttl_ms
    payload = None
    size = len(message.payload)
    if body is None:
        body = book.next_body
        payload = message.payload
    parts = queue.parts
    part = parts[0] if len(parts) == 1 else queue.choose_part(message)
    change = Enqueued(
        time,
        queue.id,
        part.high | ((part.last + 1 + part.origin) & part.mask),
        body,
        _SCHEDULED if due else _WAITING,
        # A scheduled message lives from its due time on.
        NEVER if ttl == NEVER else min((due or time) + ttl, NEVER),
        due,
        size,
        0 if queue.level_of is None else queue.level_of(message),
        hops,
        0,
        link,
        None if queue.sessions is None else message.session_id,
        key,
        edits,
        payload,
    )
    if held is not None:
        if key is not None:
            held.add(key)
        _hold(queue, (change.sequence_number,), now, is_held=True)
    book.emit(change)
    queue.add(change)
    queue.tally.incoming += 1
    return change.sequence_number


def accept_run(
    queue: Queue, messages: Sequence[Message], now: Millis, link: int
) -> list[int] | None:
    """`accept` several at once where that is all there is to it: no session, partition,
    duplicate, schedule, time to live or ping. None: not so, take the long way."""
    if not queue.is_simple or queue.is_relay or queue.ttl_ms != NEVER:
        return None
    for message in messages:
        if message.ttl_ms is not None or message.scheduled_ms or message.is_ping:
            return None
    part, book, entity = queue.parts[0], queue.book, queue.id
    time = max(now, queue.last_enqueued_ms)
    index, body = part.last + 1, book.next_body
    high, base, mask, emit = part.high, index + part.origin, part.mask, book.emit
    numbers: list[int] = []
    sizes: list[int] = []
    level_of, level, levels = queue.level_of, 0, bytearray()
    for at, message in enumerate(messages):
        payload = message.payload
        size = len(payload)
        if level_of is not None:
            level = level_of(message)
            levels.append(level)
        number = high | ((base + at) & mask)
        emit(
            new_tuple(
                Enqueued,
                (
                    time, entity, number, body + at, _WAITING, NEVER, 0, size,
                    level, 0, 0, link, None, None, None, payload,
                ),
            )
        )  # fmt: skip
        numbers.append(number)
        sizes.append(size)
    queue.add_run(index, body, time, sizes, levels)
    queue.tally.incoming += len(numbers)
    return numbers


def leave(queue: Queue, numbers: Sequence[int], reason: Removal, now: Millis) -> None:
    if numbers:
        queue.book.emit(Removed(now, queue.id, reason, packed(numbers)))
        queue.tally.removed[reason] += len(numbers)
        queue.remove_all(numbers)


def bury(
    queue: Queue,
    sequence_number: int,
    reason: str | None,
    description: str | None,
    now: Millis,
    *,
    count: int | None = None,
    edits: Edits = NO_EDITS,
    is_overdue: bool = False,
    into: Queue | None = None,
) -> None:
    """Move a message to the dead-letter queue, or `into` a transfer dead-letter queue. It keeps its
    number. Properties to modify that would exceed the limit are left out, and are the reason then.
    `is_overdue`: only time has passed, and the tick is yet to come. It serves the
    dead-letter queue then, after the locks there that are over, too."""
    grave, found = into or queue.dead_letter, queue.find(sequence_number)
    assert grave is not None
    assert found is not None
    _, chunk, row, _ = found
    merged = decode_edits(queue.edits.get(sequence_number))
    if edits and is_too_large(queue, sequence_number, edits):
        reason, description = DeadLetterReason.HEADER_SIZE_EXCEEDED, HEADER_SIZE_TEXT
    else:
        merged = merged.then(edits)
    texts = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    most = limits.MAX_DEAD_LETTER_TEXT
    merged = merged.then(Edits({n: str(t)[:most] for n, t in texts.items() if t is not None}))
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
    queue.book.emit(change)
    grave.add(change)
    leave(queue, (sequence_number,), Removal.DEAD_LETTERED, now)
    if is_overdue and not grave.is_relay:
        queue.book.wake(grave, now)
    else:
        grave.has_arrived(now)


def expire(queue: Queue, numbers: Sequence[int], now: Millis) -> None:
    """The time to live of these waiting messages is over."""
    assert queue.kind is not EntityKind.DEAD_LETTER
    if queue.dead_letter is not None and getattr(
        queue.settings, "dead_letter_on_expiration", False
    ):
        for number in numbers:
            bury(
                queue,
                number,
                DeadLetterReason.TTL_EXPIRED,
                "The message expired and was dead lettered.",
                now,
                is_overdue=True,
            )
    else:
        leave(queue, numbers, Removal.EXPIRED, now)


def next_message(queue: Queue, now: Millis) -> tuple[Part, Next] | None:
    """Who is next for a receiver without a session. What has expired is removed on the way."""
    if len(queue.parts) == 1:
        part = queue.parts[0]
        chosen = next_living(queue, part.ready, part, now)
        return None if chosen is None else (part, chosen)
    best: tuple[Part, Next] | None = None
    for part in queue.parts:
        chosen = next_living(queue, part.ready, part, now)
        if chosen is not None and (best is None or _goes_before(chosen, best[1])):
            best = part, chosen
    return best


def next_living(queue: Queue, ready: Ready, part: Part, now: Millis) -> Next | None:
    while True:
        chosen = ready.first(now)
        if chosen is None:
            return None
        expires = chosen.chunk.expires
        if expires is None or expires[chosen.row] > now:
            return chosen
        expire(queue, (part.number(chosen.at),), now)


def receive_deferred(
    queue: Queue,
    numbers: Sequence[int],
    nonce: int,
    mode: Mode,
    session_id: str | None,
    link: int,
    now: Millis,
) -> tuple[Delivery, ...]:
    if len(numbers) > limits.MAX_RECEIVE_BY_NUMBER:
        most = limits.MAX_RECEIVE_BY_NUMBER
        raise ArgumentError(f"At most {most} messages can be received by number at once.")
    until = now + queue.lock_ms
    for number in numbers:
        found = queue.find(number)
        if found is None or found.chunk.states[found.row] != _DEFERRED:
            raise MessageNotFoundError(number)
        session = queue.session_of(found.chunk, found.row)
        if session is not None:
            if session_id is None or key_of(session.id) != key_of(session_id):
                raise MessageNotFoundError(number)
            check_session(queue, session_id, link, now)
            until = session.locked_until_ms
    if len(set(numbers)) != len(numbers):
        raise ArgumentError("A sequence number was given twice.")
    rows, result = bytearray(), []
    for step, number in enumerate(numbers):
        found = queue.find(number)
        assert found is not None
        chunk, row = found.chunk, found.row
        is_locked = mode is Mode.PEEK_LOCK
        mark = (nonce + step) & NUMBER_MASK
        rows += DELIVERED_ROW.pack(
            number, mark, chunk.sizes[row], chunk.count(row), chunk.level(row)
        )
        if is_locked:
            result.append(queue.delivery(number, chunk, row, mark, until))
            session = queue.session_of(chunk, row)
            queue.lock(number, chunk, row, mark, until, link, session)
        else:
            result.append(queue.delivery(number, chunk, row))
            queue.remove(number)
    queue.book.emit(Delivered(now, queue.id, link, mode, until, bytes(rows)))
    queue.tally.outgoing += len(result)
    return tuple(result)


def holder(queue: Queue, token: bytes, now: Millis) -> int:
    """The sequence number that this token locks. Raises if it does not, or not any more."""
    if len(token) != TOKEN.size:
        raise MessageLockLostError
    number, nonce = TOKEN.unpack(token)
    lock = queue.locks.get(number)
    if lock is None or lock[1] != nonce or lock[0] <= now:
        raise MessageLockLostError
    if lock[0] == NEVER:
        found = queue.find(number)
        assert found is not None
        session = queue.session_of(found.chunk, found.row)
        assert session is not None
        if not session.is_locked(now) or session.link != lock[2]:
            raise SessionLockLostError(session.id)
    return int(number)


def is_locked(queue: Queue, token: bytes, now: Millis) -> bool:
    """Whether the lock of this token still lives."""
    number, nonce = TOKEN.unpack(token)
    lock = queue.locks.get(number)
    return lock is not None and lock[1] == nonce and lock[0] > now


def check_settle(queue: Queue, command: Settle, now: Millis) -> list[int]:
    """The sequence numbers that are to be settled. Raises if one of them cannot be."""
    numbers = [holder(queue, token, now) for token in command.tokens]
    if len(numbers) > 1 and len(set(numbers)) != len(numbers):
        raise MessageLockLostError
    if queue.kind is EntityKind.DEAD_LETTER:
        if command.disposition is Disposition.DEAD_LETTER:
            raise NotAllowedError("A message in a dead-letter queue can't be dead-lettered again.")
        if command.edits and any(is_too_large(queue, each, command.edits) for each in numbers):
            raise ArgumentError(HEADER_SIZE_TEXT)  # elsewhere it would be dead-lettered
    return numbers


def settle(queue: Queue, numbers: Sequence[int], command: Settle, now: Millis) -> None:
    """Carry out what `check_settle` allowed."""
    edits = command.edits
    due = now + command.delay_ms if command.delay_ms else 0
    match command.disposition:
        case Disposition.COMPLETE:
            leave(queue, numbers, Removal.COMPLETED, now)
        case Disposition.DEAD_LETTER:
            reason, description = command.reason, command.description
            for number in numbers:
                bury(queue, number, reason, description, now, edits=edits)
        case Disposition.DEFER:
            for number in numbers:
                merged = _merged(queue, number, edits)
                if is_too_large(queue, number, edits):
                    bury(queue, number, None, None, now, edits=edits)
                    continue
                queue.book.emit(Deferred(now, queue.id, merged, packed((number,))))
                queue.set_aside(number, merged)
        case Disposition.ABANDON:
            come_back(queue, numbers, Return.ABANDONED, now, edits, due)
        case Disposition.RELEASE:
            come_back(queue, numbers, Return.RELEASED, now, edits, due)


def is_too_large(queue: Queue, number: int, edits: Edits) -> bool:
    """Whether the changed properties of a message would exceed the limit with these: each abandon
    could add some."""
    merged = _merged(queue, number, edits)
    return merged is not None and len(merged) > limits.MAX_PROPERTIES


def _merged(queue: Queue, number: int, edits: Edits) -> bytes | None:
    """All edits of a message, these on top; None if there are no new ones."""
    if not edits:
        return None
    return encode_edits(decode_edits(queue.edits.get(number)).then(edits))


def come_back(
    queue: Queue,
    numbers: Sequence[int],
    reason: Return,
    now: Millis,
    edits: Edits = NO_EDITS,
    due: Millis = 0,
) -> None:
    """The locks of these messages end. Each goes back to its place, at once or at `due`, or, if it
    was delivered too often or has expired, to where such messages go."""
    queue.tally.returned[reason] += len(numbers)
    back: list[int] = []
    limit = NEVER
    if isinstance(queue.settings, QueueSettings | SubscriptionSettings):
        if queue.kind is not EntityKind.DEAD_LETTER:
            limit = queue.settings.max_delivery_count
    for number in numbers:
        found = queue.find(number)
        assert found is not None
        chunk, row = found.chunk, found.row
        count = chunk.count(row) + reason.is_counted
        if reason.is_counted and count >= limit:
            why = f"Message could not be consumed after {count} delivery attempts."
            bury(queue, number, _TOO_OFTEN, why, now, count=count, edits=edits)
        elif edits and is_too_large(queue, number, edits):
            bury(queue, number, None, None, now, count=count, edits=edits)
        elif edits:
            _put_back(queue, [number], reason, now, _merged(queue, number, edits), due)
        else:
            back.append(number)
    if back:
        _put_back(queue, back, reason, now, None, due)
    queue.has_arrived(now)


def _put_back(
    queue: Queue,
    numbers: Sequence[int],
    reason: Return,
    now: Millis,
    edits: bytes | None,
    due: Millis,
) -> None:
    if due:
        queue.book.emit(Delayed(now, queue.id, reason, due, edits, packed(numbers)))
        for number in numbers:
            queue.delay(number, reason, due, edits)
    else:
        queue.book.emit(Returned(now, queue.id, reason, edits, packed(numbers)))
        for number in numbers:
            queue.give_back(number, reason, edits)


def renew(queue: Queue, tokens: Sequence[bytes], now: Millis) -> list[Millis]:
    if queue.sessions is not None:
        raise NotAllowedError("The lock of a session's message is renewed with its session.")
    numbers = [holder(queue, token, now) for token in tokens]
    until = now + queue.lock_ms
    queue.book.emit(Renewed(now, queue.id, until, packed(numbers)))
    for number in numbers:
        queue.extend(number, until)
    return [until] * len(numbers)


def check_cancel(queue: Queue, numbers: Sequence[int]) -> None:
    """Raises unless all of them are scheduled."""
    for number in numbers:
        found = queue.find(number)
        if found is None or found.chunk.states[found.row] != _SCHEDULED:
            raise MessageNotFoundError(number)


def _hold(queue: Queue, numbers: Sequence[int], now: Millis, *, is_held: bool) -> None:
    """Scheduled messages of a transaction: they wait for its discharge, or do not any more."""
    queue.book.emit(ScheduleHeld(now, queue.id, is_held, packed(numbers)))
    queue.hold(numbers, now, is_held=is_held)


def commit_held(queue: Queue, numbers: Sequence[int], now: Millis) -> None:
    """Their transaction is committed: now they count as accepted. One whose id was accepted from
    elsewhere meanwhile is the duplicate, and is dropped. (No two of `numbers` have the same id.)"""
    dropped: list[int] = []
    for number in numbers:
        key = queue.held.get(number)
        if key is not None and queue.duplicates.has_seen(key, now, queue.window_ms):
            queue.book.emit(Noted(now, queue.id, Note.DUPLICATE_DROPPED, 0, 0, key))
            dropped.append(number)
    cancel_held(queue, dropped, now)
    kept = [number for number in numbers if number in queue.held]
    if kept:
        _hold(queue, kept, now, is_held=False)


def cancel_held(queue: Queue, numbers: Sequence[int], now: Millis) -> None:
    """Their transaction was not committed, or they are duplicates. Their ids are as if they had
    never come."""
    there = [number for number in numbers if number in queue.held]
    if there:
        leave(queue, there, Removal.CANCELLED, now)
        queue.accessed_ms = now


def cancel(queue: Queue, numbers: Sequence[int], now: Millis) -> None:
    check_cancel(queue, numbers)
    leave(queue, list(dict.fromkeys(numbers)), Removal.CANCELLED, now)


def activate_due(queue: Queue, now: Millis) -> None:
    """Scheduled messages whose time has come are appended as if sent now (S8); delayed ones are in
    their place again."""
    scheduled = queue.scheduled
    while scheduled and scheduled[0][0] <= now:
        due, number = heappop(scheduled)
        if number in queue.held:
            continue  # `queue.hold` puts it back when its transaction is committed
        found = queue.find(number)
        state = None if found is None else found.chunk.states[found.row]
        if found is None or state not in (_SCHEDULED, _DELAYED):
            continue
        if state == _DELAYED:
            if found.chunk.due(found.row) == due:  # else delayed again, after an earlier return
                reactivate(queue, [number], now)
            continue
        time = max(due, queue.last_enqueued_ms)
        expires = found.chunk.expiry(found.row)
        if expires != NEVER:
            expires += time - due
        new_number = found.part.number(found.part.last + 1)
        change = Activated(time, queue.id, number, new_number, expires)
        queue.book.emit(change)
        queue.activate(change)
        queue.accessed_ms = now
        queue.has_arrived(now)


def reactivate(queue: Queue, numbers: Sequence[int], now: Millis) -> None:
    """These deferred or delayed messages wait again, each in its place."""
    queue.book.emit(Reactivated(now, queue.id, packed(numbers)))
    queue.accessed_ms = now
    for number in numbers:
        queue.reactivate(number)
    queue.has_arrived(now)


def tick(queue: Queue, now: Millis) -> None:
    activate_due(queue, now)
    ended = _ended_locks(queue, now)
    if ended:
        come_back(queue, ended, Return.LOCK_EXPIRED, now)
    queue.receivers.tick(now)
    let_go(queue, now)
    for part in queue.parts:
        if part.table.next_expiry <= now:
            expire(queue, [part.number(index) for index in part.table.expired(now)], now)


def _ended_locks(queue: Queue, now: Millis) -> list[int]:
    if queue.has_mixed_locks:
        # The lock duration was changed: until these locks are gone their order says nothing.
        queue.has_mixed_locks = bool(queue.locks)
        return [number for number, (until, *_) in queue.locks.items() if until <= now]
    ended = []
    for number, (until, *_) in queue.locks.items():
        if until > now:
            break
        ended.append(number)
    return ended


def _goes_before(one: Next, other: Next) -> bool:
    """Across partitions: by effective level, then by time of arrival."""
    if one.rank != other.rank:
        return one.rank > other.rank
    return one.chunk.enqueued[one.row] < other.chunk.enqueued[other.row]
