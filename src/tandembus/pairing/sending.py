"""A send through a pair, step by step: one way of doing it for both shells.

A `Course` is what a paired sender has of its own: which entity it sends to, which backlog queue it
has chosen. Its steps are generators that yield what the SDK's calls return, and get back the
result: nothing to wait for from the blocking SDK, an awaitable from the asyncio one. `run_blocking`
and `run_async` are all that differs.

While the entity is healthy a send is one call of the SDK and nothing else (N3).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageNotFoundError, MessageSizeExceededError

from tandembus.amqp.message import SCHEDULED
from tandembus.pairing import wire
from tandembus.pairing.aliases import Stamp, aliased
from tandembus.pairing.failures import (
    FAILURES,
    BacklogMessageSizeError,
    PairFaultedError,
    is_message_refused,
)
from tandembus.pairing.heart import BacklogQueue, Heart
from tandembus.pairing.ledger import Ledger

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]

VIA_BACKLOG: Final = 0
"""The "sequence number" of a message that was scheduled through a backlog: its primary has not seen
it yet, so it has none, and it cannot be cancelled."""

GATE_POLL_S: Final = 0.02

_ONE: Final = (ServiceBusMessage, AmqpAnnotatedMessage)
_LASTING: Final = (*_ONE, list, Mapping)


def run_blocking(steps: Steps[T]) -> T:
    """With the blocking SDK each step has happened when it is yielded."""
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def run_async(steps: Steps[T]) -> T:
    try:
        value = next(steps)
        while True:
            try:
                if isawaitable(value):
                    value = await value
            except BaseException as error:  # noqa: BLE001 - it goes on in `steps`, as if raised there
                value = steps.throw(error)
            else:
                value = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


class Reach(Protocol):
    """What the shell gives to a course; senders are the SDK's, of the shell's kind."""

    def primary_sender(self) -> Any:
        """For the entity of the course; made at the first use. Raises when that side is faulted."""
        ...

    def backlog_sender(self, queue: BacklogQueue) -> Any: ...

    def drop_backlog_sender(self, queue: BacklogQueue) -> Any:
        """It failed; the next one is new. A step."""
        ...

    def sleep(self, seconds: float) -> Any:
        """A step."""
        ...


class Course:
    """The way of one paired sender's messages."""

    def __init__(self, path: str, heart: Heart, ledger: Ledger, reach: Reach) -> None:
        self.entity = heart.entity(path)
        self.queue: BacklogQueue | None = None
        """The backlog queue that this sender uses."""
        self._heart = heart
        self._ledger = ledger
        self._reach = reach
        self._is_ordered = heart.options.ordered_return
        self._timeout_s = heart.options.send_timeout_s
        self._name = heart.fresh_id()
        self._number = 0
        self._used: list[BacklogQueue] = []
        """In this outage, in their order."""

    # --- what a caller can ask --------------------------------------------------------------------

    def send(self, messages: Any, timeout: float | None) -> Steps[None]:
        messages = _kept(messages)
        count = _count(messages)
        if not count:
            return
        rest: list[bytes] | None = None
        while True:
            if self.entity.uses_primary:
                sender = self._reach.primary_sender()
                outgoing = messages if rest is None else wire.parcel(sender, rest)
                try:
                    yield sender.send_messages(outgoing, timeout=timeout or self._timeout_s)
                except FAILURES as error:
                    if not self._heart.failed(self.entity, error):
                        raise
                else:
                    self._went_straight(count if rest is None else len(rest))
                    return
            if rest is None:
                rest = _payloads(messages)
            if not (rest := (yield from self._to_backlog(rest, timeout))):
                return

    def schedule(self, messages: Any, time: datetime, timeout: float | None) -> Steps[list[int]]:
        messages = _kept(messages)
        each = [messages] if _is_one(messages) else list(messages)
        numbers: list[int] = []
        while len(numbers) < len(each):
            rest = each[len(numbers) :]
            if self.entity.uses_primary:
                sender = self._reach.primary_sender()
                try:
                    numbers += yield sender.schedule_messages(
                        rest, time, timeout=timeout or self._timeout_s
                    )
                except FAILURES as error:
                    if not self._heart.failed(self.entity, error):
                        raise
                else:
                    self._went_straight(len(rest))
                    continue
            for message in rest:
                _set_time(message, time)
            left = yield from self._to_backlog(wire.encoded(rest), timeout)
            numbers += [VIA_BACKLOG] * (len(rest) - len(left))
        return numbers

    def cancel(self, numbers: int | list[int], timeout: float | None) -> Steps[None]:
        """Only the primary knows numbers, so it is asked in any state."""
        if VIA_BACKLOG in ([numbers] if isinstance(numbers, int) else numbers):
            raise MessageNotFoundError(
                message="A message that was scheduled through a backlog cannot be cancelled."
            )
        sender = self._reach.primary_sender()
        yield sender.cancel_scheduled_messages(numbers, timeout=timeout or self._timeout_s)

    def batch(self, max_size: int | None) -> Steps[ServiceBusMessageBatch]:
        """As large as the side takes that is used now. What is too large for a backlog later, with
        what each message gets on its way, goes in several."""
        if self.entity.uses_primary:
            sender = self._reach.primary_sender()
            try:
                yield from self._opened(sender, None)
                made: ServiceBusMessageBatch = yield sender.create_message_batch(max_size)
            except FAILURES as error:
                if not self._heart.failed(self.entity, error):
                    raise
            else:
                return made
        while True:
            queue = self._choose()
            sender = self._reach.backlog_sender(queue)
            try:
                yield from self._opened(sender, None)
                made = yield sender.create_message_batch(max_size)
            except FAILURES as error:
                yield from self._give_up(queue, error)
            else:
                return made

    # --- the backlog ------------------------------------------------------------------------------

    def _to_backlog(self, originals: list[bytes], timeout: float | None) -> Steps[list[bytes]]:
        """All of them, or an error before anything is sent, or an error that says that no backlog
        queue is left: what was sent by then comes again with the same id if the caller tries again.
        Returns what is left because the primary is back meanwhile; that is for it."""
        first = self._number
        self._number += len(originals)
        done = 0
        while done < len(originals):
            queue = self._choose()
            if not self._heart.goes_to(self.entity, queue):
                if self.entity.uses_primary:
                    return originals[done:]
                yield self._reach.sleep(GATE_POLL_S)
                continue
            before = done
            try:
                sender = self._reach.backlog_sender(queue)
                yield from self._opened(sender, timeout)
                payloads = self._aliased(originals[done:], first + done, queue)
                limits = wire.limits_of(sender)
                _check_sizes(originals[done:], payloads, limits[0])
                for parcel in wire.parcels(payloads, *limits):
                    yield sender.send_messages(
                        wire.parcel(sender, parcel), timeout=timeout or self._timeout_s
                    )
                    done += len(parcel)
                    self._ledger.add("backlog_sends", len(parcel))
            except FAILURES as error:
                if is_message_refused(error) or isinstance(error, PairFaultedError):
                    raise
                yield from self._give_up(queue, error)
            finally:
                self._heart.went(self.entity, done - before)
        return []

    def _opened(self, sender: Any, timeout: float | None) -> Steps[None]:
        if not wire.is_open(sender):
            yield wire.open_link(sender, timeout or self._timeout_s)

    def _choose(self) -> BacklogQueue:
        if self.entity.sent_to_backlog == 0 and not self.entity.under_way:
            self._used.clear()
        queue = self._heart.choose(self.queue)
        self.queue = queue
        if queue not in self._used:
            self._used.append(queue)
        return queue

    def _give_up(self, queue: BacklogQueue, error: BaseException) -> Steps[None]:
        self._heart.left(queue, error)
        yield self._reach.drop_backlog_sender(queue)

    def _aliased(self, originals: Sequence[bytes], first: int, queue: BacklogQueue) -> list[bytes]:
        path, new_id = self.entity.path, self._heart.fresh_id
        if not self._is_ordered:
            return [aliased(payload, path, new_id) for payload in originals]
        after = tuple(str(each) for each in self._used if each != queue)
        return [
            aliased(payload, path, new_id, Stamp(self._name, number, after))
            for number, payload in enumerate(originals, first)
        ]

    def _went_straight(self, count: int) -> None:
        self._heart.succeeded(self.entity)
        self._ledger.add("primary_sends", count)


def _check_sizes(originals: Sequence[bytes], payloads: Sequence[bytes], max_message: int) -> None:
    for original, payload in zip(originals, payloads, strict=True):
        if len(original) > max_message:
            raise MessageSizeExceededError(
                message=f"The message of {len(original)} bytes exceeds the limit of {max_message}."
            )
        if len(payload) > max_message:
            raise BacklogMessageSizeError(
                message=f"The message of {len(original)} bytes fits the limit of {max_message}, "
                f"but not with the {len(payload) - len(original)} bytes that it needs on its way "
                "through a backlog queue, which is where it would have to go now."
            )


def _kept(messages: Any) -> Any:
    """What can be gone through twice: first by the primary's sender, then for the backlog."""
    if isinstance(messages, _LASTING) or not isinstance(messages, Iterable):
        return messages
    return list(messages)


def _set_time(message: Any, time: datetime) -> None:
    """As the SDK does it when it schedules: on the caller's message."""
    if isinstance(message, AmqpAnnotatedMessage):
        message.annotations = {**(message.annotations or {}), SCHEDULED.encode(): time}
    else:
        message.scheduled_enqueue_time_utc = time


def _is_one(messages: Any) -> bool:
    return isinstance(messages, _ONE) or not isinstance(messages, ServiceBusMessageBatch | list)


def _count(messages: Any) -> int:
    return 1 if _is_one(messages) else len(messages)


def _payloads(messages: Any) -> list[bytes]:
    if isinstance(messages, ServiceBusMessageBatch):
        return wire.payloads_of(messages)
    return wire.encoded([messages] if _is_one(messages) else messages)
