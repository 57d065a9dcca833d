"""Open transactions: what was asked in each, until it is discharged (T17).

Nothing happens before the discharge: no sequence number is given, no lock ends. So a transaction
that is rolled back, or forgotten, leaves no trace. The one exception are messages that were
scheduled over `$management`, whose numbers the client is told at once: they are held, and cancelled
if the transaction is not committed. Their numbers are used up then, but not their ids: duplicate
detection remembers the id of a held message when the transaction is committed.

As in Azure, what a transaction does in a partitioned entity is in one partition, and all that it
sends there with a key has the same key; those of several entities may differ. A message without a
key can be sent, too: which partition it comes into is chosen when the transaction is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tandembus import limits
from tandembus.changes import encode_edits
from tandembus.core import admission, lifecycle
from tandembus.core.commands import CancelScheduled, Send, SetSessionState, Settle
from tandembus.core.queue import Queue
from tandembus.core.registry import Registry
from tandembus.core.tokens import PARTITION_SHIFT, TOKEN
from tandembus.errors import (
    NotAllowedError,
    QuotaExceededError,
    ServerBusyError,
    TandemError,
    TransactionUnknownError,
)
from tandembus.model import NEVER, LargePayload, Millis


@dataclass(frozen=True, slots=True)
class Held:
    """Messages that were scheduled, and are held until the discharge."""

    entity: int
    sequence_numbers: list[int]


Part: TypeAlias = Send | Settle | CancelScheduled | SetSessionState | Held


@dataclass(slots=True)
class _Transaction:
    declared_ms: Millis
    owner: int = 0
    parts: list[Part] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0
    """In memory until the discharge."""
    partitions: dict[int, int] = field(default_factory=dict)
    """The one partition that is used, of each partitioned entity."""
    keys: dict[int, str] = field(default_factory=dict)
    """What decided it, if something was sent there."""
    refusal: TandemError | None = None
    """The first operation that was refused: then it can only be rolled back."""


class Transactions:
    __slots__ = ("_bytes", "_bytes_in_all", "_next", "_open", "left")

    def __init__(self) -> None:
        self._open: dict[int, _Transaction] = {}
        """Oldest first, so the first is overdue first."""
        self._next = 1
        self._bytes: Counter[int] = Counter()
        """What the open ones of each owner hold."""
        self._bytes_in_all = 0
        self.left: list[Held] = []
        """What those that could not be committed have left."""

    def declare(self, now: Millis, owner: int = 0) -> int:
        if len(self._open) >= limits.MAX_OPEN_TRANSACTIONS:
            raise QuotaExceededError(
                f"{len(self._open)} transactions are open, the most there can be."
            )
        number = self._next
        self._next += 1
        self._open[number] = _Transaction(now, owner)
        return number

    def admit(self, number: int, queue: Queue, part: Part, now: Millis) -> _Transaction:
        """Check what is asked of a queue or topic, and bind the transaction to its partition there:
        the caller then has to add it. Raises if it cannot be part of the transaction."""
        transaction, messages = self._get(number, now), _count(part)
        if transaction.messages + messages > limits.MAX_TRANSACTION_MESSAGES:
            raise NotAllowedError(
                f"Can't send more than {limits.MAX_TRANSACTION_MESSAGES} messages in a single "
                "transaction."
            )
        size = _size(part)
        if (
            self._bytes[transaction.owner] + size > limits.MAX_TRANSACTION_BYTES
            or self._bytes_in_all + size > limits.MAX_ALL_TRANSACTION_BYTES
        ):
            raise ServerBusyError("The open transactions hold too much. Commit them first.")
        if len(queue.parts) > 1:
            _bind(transaction, queue, part)
        return transaction

    def add(self, number: int, queue: Queue, part: Part, now: Millis) -> None:
        """Do it when the transaction is committed."""
        transaction = self.admit(number, queue, part, now)
        size = _size(part)
        transaction.messages += _count(part)
        transaction.bytes += size
        self._bytes[transaction.owner] += size
        self._bytes_in_all += size
        transaction.parts.append(part)

    def spoil(self, number: int, refusal: TandemError) -> None:
        """An operation in it was refused. Some clients (azure-messaging-servicebus for Java) do not
        show that, so a commit that succeeded would lose a part of it in silence."""
        transaction = self._open.get(number)
        if transaction is not None and transaction.refusal is None:
            transaction.refusal = refusal

    def held_keys(self, number: int, queue: Queue, now: Millis) -> set[str]:
        """The keys, as `duplicates` has them, of what the transaction holds in that queue."""
        keys = {
            queue.held.get(each)
            for part in self._get(number, now).parts
            if isinstance(part, Held) and part.entity == queue.id
            for each in part.sequence_numbers
        }
        return {key for key in keys if key is not None}

    def take(self, number: int, now: Millis) -> tuple[list[Part], TandemError | None]:
        """Its parts, and what in it was refused; the transaction is over."""
        transaction = self._get(number, now)
        self._drop(number)
        return transaction.parts, transaction.refusal

    def _get(self, number: int, now: Millis) -> _Transaction:
        transaction = self._open.get(number)
        if transaction is None or now - transaction.declared_ms >= limits.TRANSACTION_TIMEOUT_MS:
            raise TransactionUnknownError("The transaction does not exist, or is over.")
        return transaction

    def _drop(self, number: int) -> _Transaction:
        transaction = self._open.pop(number)
        self._bytes[transaction.owner] -= transaction.bytes
        self._bytes_in_all -= transaction.bytes
        if not self._bytes[transaction.owner]:
            del self._bytes[transaction.owner]
        return transaction

    def next_deadline(self) -> Millis:
        if self.left:
            return 0
        for transaction in self._open.values():
            return transaction.declared_ms + limits.TRANSACTION_TIMEOUT_MS
        return NEVER

    def drop_overdue(self, now: Millis) -> list[Held]:
        """Those whose time is over are no more. What is to be cancelled of these, and of those that
        could not be committed."""
        held, self.left = self.left, []
        while self.next_deadline() <= now:
            transaction = self._drop(next(iter(self._open)))
            held += [part for part in transaction.parts if isinstance(part, Held)]
        return held


def _count(part: Part) -> int:
    match part:
        case Send():
            return len(part.messages)
        case Settle():
            return len(part.tokens)
        case SetSessionState():
            return 1
        case _:
            return len(part.sequence_numbers)


def _size(part: Part) -> int:
    """What it keeps in memory; not what a message keeps on disk already."""
    match part:
        case Send():
            payloads = [message.payload for message in part.messages]
            return sum(len(it.head if isinstance(it, LargePayload) else it) for it in payloads)
        case Settle():
            texts = len(part.reason or "") + len(part.description or "")
            return texts + len(encode_edits(part.edits) or b"")
        case SetSessionState():
            return len(part.state or b"")
        case _:
            return 0


def _places(queue: Queue, part: Part) -> list[tuple[int, str | None]]:
    """The partitions of a queue that something is in, with the key that decided it. A message
    without a key goes wherever there is room for it."""
    match part:
        case Send():
            keys = [admission.key_within(queue, message) for message in part.messages]
            return [
                (queue.choose_part(message).high >> PARTITION_SHIFT, key)
                for message, key in zip(part.messages, keys, strict=True)
                if key
            ]
        case Settle():
            numbers: Sequence[int] = [TOKEN.unpack(token)[0] for token in part.tokens]
        case CancelScheduled():
            numbers = part.sequence_numbers
        case SetSessionState() | Held():
            return []  # a state is in no partition; what is held was admitted as a `Send`
    return [(number >> PARTITION_SHIFT, None) for number in numbers]


def _bind(transaction: _Transaction, queue: Queue, part: Part) -> None:
    """From now on the transaction is in that partition. Raises if it is in another one."""
    wanted, wanted_key = transaction.partitions.get(queue.id), transaction.keys.get(queue.id)
    for partition, key in _places(queue, part):
        if key is not None and key == wanted_key:
            continue  # also another spelling of a session that does not exist yet
        wanted = partition if wanted is None else wanted
        wanted_key = key if wanted_key is None else wanted_key
        if partition != wanted or (key is not None and key != wanted_key):
            raise NotAllowedError(
                f"A transaction is in one partition of '{queue.path}': all that it sends there has "
                "the same partition key, and what it settles there is in that partition."
            )
    if wanted is not None:
        transaction.partitions[queue.id] = wanted
    if wanted_key is not None:
        transaction.keys[queue.id] = wanted_key


def check_commit(registry: Registry, parts: Sequence[Part], now: Millis) -> None:
    """Raises if not all of it can be done; if this does not, nothing of it can fail."""
    sizes: dict[int, int] = {}
    tokens: set[bytes] = set()
    cancelled: set[tuple[int, int]] = set()
    sessions: dict[tuple[int, str], int] = {}
    states = 0
    for part in parts:
        match part:
            case Send():
                # What was sent by way of another entity cannot fail at its destination.
                queue = registry.find(part.path if part.via is None else part.via)
                size = admission.check_send(queue, part.messages, is_batch=part.is_batch)
                sizes[queue.id] = sizes.get(queue.id, 0) + size
                admission.check_room(queue, sizes[queue.id])
                sessions |= admission.new_sessions(queue, part.messages)
            case Settle():
                queue = registry.holder(part.path)
                # First, since it is wrong whatever has become of the locks meanwhile.
                if not tokens.isdisjoint(part.tokens):
                    raise NotAllowedError("A message was settled twice in one transaction.")
                tokens.update(part.tokens)
                lifecycle.check_settle(queue, part, now)
            case CancelScheduled():
                queue = registry.find(part.path)
                lifecycle.check_cancel(queue, part.sequence_numbers)
                named = {(queue.id, number) for number in part.sequence_numbers}
                if not cancelled.isdisjoint(named):
                    raise NotAllowedError("A message was cancelled twice in one transaction.")
                cancelled |= named
            case SetSessionState():
                queue = registry.holder(part.path)
                session = lifecycle.check_session(queue, part.session, part.link, now)
                assert queue.sessions is not None
                if part.state is not None:
                    admission.check_state(queue, session, part.state)
                    states += queue.sessions.state_cost(session, part.state)
            case Held(entity, _):
                if entity not in registry.by_id:
                    raise NotAllowedError("The entity of a scheduled message was deleted.")
    admission.check_session_room(registry.book, sum(sessions.values()) + states)


def cancel_held(registry: Registry, held: Sequence[Held], now: Millis) -> None:
    """What transactions that are not committed have left."""
    for each in held:
        queue = registry.by_id.get(each.entity)
        if queue is not None:
            lifecycle.cancel_held(queue, each.sequence_numbers, now)
