"""What the source asks of a broker, in two ways: by position (Tandem), or by peeking (Azure).

Each connects when it is first asked, and waits for a broker that is away, as long as it may: so a
broker that is restarted fails no task. Nothing here is pickled; driver and tasks each make their
own.

What peeking cannot do (docs/spark.md): count bytes, tell what is decided, hold back, remember a
consumer. A batch is then so many sequence numbers, and what was read is removed by receiving it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, ParamSpec, Protocol, TypeVar
from uuid import UUID

from tandembus.amqp.message import AmqpMessage
from tandembus.client import Client, ReceivedMessage
from tandembus.client.positions import Extent, Page
from tandembus.core.sql import Context, compile_filter
from tandembus.errors import (
    ConnectionLostError,
    EntityDisabledError,
    EntityNotFoundError,
    FilterError,
    NotAllowedError,
    OperationTimeoutError,
    Refused,
    ServerBusyError,
    TandemError,
    UnauthorizedError,
)
from tandembus.model import NEVER, NO_EDITS, Edits, Millis, Timestamp
from tandembus.spark.offsets import Offset, Reach, entity_of, key_of
from tandembus.spark.options import Target

P = ParamSpec("P")
T = TypeVar("T")

_AWAY: Final = (ConnectionLostError, ServerBusyError, OperationTimeoutError)
_OF_THE_ENTITY: Final = (
    EntityNotFoundError, EntityDisabledError, UnauthorizedError, ServerBusyError,
    OperationTimeoutError,
)  # fmt: skip
_PAGE: Final = 250
"""The most that a peek gives."""
_SCHEDULED: Final = 2
_PARTITION_SHIFT: Final = 48
_LONGEST_PAUSE_S: Final = 2.0


class Broker(Protocol):
    """Keys and positions as in `offsets`."""

    def survey(self, entities: Iterable[str], since_ms: Millis | None = None) -> dict[str, Extent]:
        """Where the messages lie."""
        ...

    def advance(
        self, key: str, start: int, end: int, max_messages: int | None, max_bytes: int | None
    ) -> Reach:
        """How far one gets with so much."""
        ...

    def split(self, key: str, start: int, end: int, parts: int) -> list[int]:
        """The ends of about so many stretches of about the same size; the last is the end."""
        ...

    def pages(
        self, key: str, start: int, end: int, fields: str, sql_filter: str | None
    ) -> Iterator[Page]: ...

    def begin(self, consumer: str, offset: Offset, tap_ms: Millis | None) -> None:
        """Remember a consumer that begins here, unless it is known already."""
        ...

    def commit(self, consumer: str, offset: Offset, *, removes: bool) -> None:
        """It has come so far: remove what it has passed since it began."""
        ...

    def close(self) -> None: ...


def connect(target: Target, entity: str) -> Broker:
    """To the broker; which kind it is, it is asked, unless the user knows."""
    if target.extensions is False:
        return PeekBroker(target)
    broker = TandemBroker(target)
    if target.extensions is None:
        try:
            broker.survey([entity])
        except TandemError as error:
            broker.close()
            # An operation that it does not know is refused in some way; these are about the entity.
            is_known = isinstance(error, _OF_THE_ENTITY) or "is a topic" in str(error)
            if is_known or not isinstance(error, Refused):
                raise
            return PeekBroker(target)
    return broker


def given_up(target: Target) -> str:
    """What an error says further, when a broker was away longer than it may be."""
    return f"It was asked again for {target.retry_ms / 1000:g} s (retryTimeout)."


class _Line:
    """A client that comes back."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.client = Client(target.connection_string, ca_file=target.ca_file)

    def patiently(self, ask: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """The answer; a broker that is away is asked again, as long as it may take."""
        until = time.monotonic() + self._target.retry_ms / 1000
        pause_s = 0.05
        while True:
            try:
                return ask(*args, **more)
            except _AWAY as error:
                if time.monotonic() >= until:
                    error.add_note(given_up(self._target))
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def close(self) -> None:
        with suppress(TandemError):  # it is gone, which is what was asked for
            self.client.close()


class TandemBroker:
    """By position (docs/wire-extensions.md)."""

    def __init__(self, target: Target) -> None:
        self._line = _Line(target)
        self._client = self._line.client
        self._ask = self._line.patiently

    def survey(self, entities: Iterable[str], since_ms: Millis | None = None) -> dict[str, Extent]:
        found: dict[str, Extent] = {}
        for entity in entities:
            lie = self._ask(self._client.survey, entity, since_ms=since_ms)
            for at, extent in enumerate(lie.partitions):
                found[key_of(entity, at, len(lie.partitions))] = extent
        return found

    def advance(
        self, key: str, start: int, end: int, max_messages: int | None, max_bytes: int | None
    ) -> Reach:
        entity, partition = entity_of(key)
        count = size = 0
        while True:
            stretch = self._ask(
                self._client.advance,
                entity,
                partition,
                start,
                end,
                max_count=NEVER if max_messages is None else max_messages - count,
                max_bytes=NEVER if max_bytes is None else max_bytes,
            )
            count, size = count + stretch.count, size + stretch.size
            is_full = max_bytes is not None or (max_messages is not None and count >= max_messages)
            if is_full or not start < stretch.end < end:
                return Reach(stretch.end, count, size)
            start = stretch.end

    def split(self, key: str, start: int, end: int, parts: int) -> list[int]:
        entity, partition = entity_of(key)
        stretches = self._ask(self._client.split, entity, partition, start, end, parts)
        ends = [stretch.end for stretch in stretches if stretch.count]
        return [*ends[:-1], end]

    def pages(
        self, key: str, start: int, end: int, fields: str, sql_filter: str | None
    ) -> Iterator[Page]:
        entity, partition = entity_of(key)
        pages: Iterator[Page] = iter(())

        def following(begin: int, is_new: bool) -> Page | None:
            nonlocal pages
            if is_new:
                pages = self._client.scan(
                    entity, partition, begin, end, fields=fields, sql_filter=sql_filter
                )
            return next(pages, None)

        page = self._ask(following, start, True) if start < end else None
        while page is not None:
            start = page.following
            yield page
            try:
                page = following(start, False)
            except _AWAY:  # it goes on from where it was, on another connection
                page = self._ask(following, start, True)

    def begin(self, consumer: str, offset: Offset, tap_ms: Millis | None) -> None:
        known: dict[str, dict[int, int]] = {}
        for entity in sorted({entity_of(key)[0] for key in offset}):
            if tap_ms is not None:
                self._ask(self._client.open_tap, entity, consumer, tap_ms)
            lie = self._ask(self._client.survey, entity)
            known[entity] = lie.cursors.get(consumer, {})
        for key, position in offset.items():
            entity, partition = entity_of(key)
            if partition not in known[entity]:
                self._move(consumer, key, position, removes=False)

    def commit(self, consumer: str, offset: Offset, *, removes: bool) -> None:
        for key, position in offset.items():
            self._move(consumer, key, position, removes=removes)

    def _move(self, consumer: str, key: str, position: int, *, removes: bool) -> None:
        entity, partition = entity_of(key)
        self._ask(self._client.move_cursor, entity, consumer, partition, position, removes=removes)

    def close(self) -> None:
        self._line.close()


class PeekBroker:
    """By the peek operation, which every Service Bus has."""

    def __init__(self, target: Target) -> None:
        self._line = _Line(target)
        self._client = self._line.client
        self._ask = self._line.patiently

    def survey(self, entities: Iterable[str], since_ms: Millis | None = None) -> dict[str, Extent]:
        found: dict[str, Extent] = {}
        for entity in entities:
            first = self._peek_one(entity, 0)
            if first is None:
                # An empty entity says nothing of its numbers: whatever comes is after nothing.
                found[entity] = Extent(0, 0, 0, 0)
                continue
            tail = self._last(entity, first.sequence_number) + 1
            since = first.sequence_number
            if since_ms is not None:
                since = self._since(entity, since, tail, since_ms)
            found[entity] = Extent(first.sequence_number, tail, 0, since)
        return found

    def _peek_one(self, entity: str, number: int) -> ReceivedMessage | None:
        found = self._ask(self._client.browse, entity, from_sequence_number=number, count=1)
        if found and found[0].sequence_number >> _PARTITION_SHIFT:
            raise NotAllowedError(
                f"'{entity}' is partitioned: without Tandem's extensions that cannot be read."
            )
        return found[0] if found else None

    def _last(self, entity: str, number: int) -> int:
        """The highest number there is, from one that is: twice as far, until nothing is there, and
        then by halves."""
        step = 1
        while (found := self._peek_one(entity, number + step)) is not None:
            number = found.sequence_number
            step *= 2
        while step > 1:
            step //= 2
            found = self._peek_one(entity, number + step)
            if found is not None:
                number = found.sequence_number
        return number

    def _since(self, entity: str, low: int, tail: int, since_ms: Millis) -> int:
        while low < tail:
            middle = (low + tail) // 2
            found = self._peek_one(entity, middle)
            if found is None or found.enqueued_ms >= since_ms:
                tail = middle
            else:
                low = found.sequence_number + 1
        return low

    def advance(
        self, key: str, start: int, end: int, max_messages: int | None, max_bytes: int | None
    ) -> Reach:
        if max_messages is None:
            return Reach(end, end - start, 0)
        found = self._peek_one(key, start)
        begin = start if found is None else max(start, found.sequence_number)
        reached = min(end, begin + max_messages)
        return Reach(reached, max(0, reached - begin), 0)

    def split(self, key: str, start: int, end: int, parts: int) -> list[int]:
        count = min(parts, end - start)
        return [start + (end - start) * (part + 1) // count for part in range(count)]

    def pages(
        self, key: str, start: int, end: int, fields: str, sql_filter: str | None
    ) -> Iterator[Page]:
        chosen = None if sql_filter is None else _chooser(sql_filter)
        while start < end:
            count = min(_PAGE, end - start)
            found = self._ask(self._client.browse, key, from_sequence_number=start, count=count)
            if not found:
                return
            start = found[-1].sequence_number + 1
            wanted = [
                message
                for message in found
                if message.sequence_number < end
                and message.state != _SCHEDULED
                and (chosen is None or chosen(message))
            ]
            yield _page(start, wanted)

    def begin(self, consumer: str, offset: Offset, tap_ms: Millis | None) -> None:
        if tap_ms is not None:
            raise NotAllowedError("'tap' needs a broker with Tandem's extensions.")
        for extent_key, extent in self.survey(offset).items():
            if offset[extent_key] > extent.first:
                raise NotAllowedError(
                    "Without Tandem's extensions mode 'consume' begins at 'earliest': what lies "
                    "before would be removed, too."
                )

    def commit(self, consumer: str, offset: Offset, *, removes: bool) -> None:
        for key, position in offset.items() if removes else ():
            self._ask(self._remove_before, key, position)

    def _remove_before(self, entity: str, position: int) -> None:
        """Receive what lies before and complete it: no more than there is, so that nothing behind
        it is delivered for nothing."""
        while True:
            page = self._client.browse(entity, from_sequence_number=0, count=_PAGE)
            there = [
                message
                for message in page
                if message.sequence_number < position and message.state == 0
            ]
            if not there:
                return
            with self._client.receiver(entity) as receiver:
                found = receiver.receive(len(there), wait_s=2)
                done = [each for each in found if each.sequence_number < position]
                receiver.complete(done)
                receiver.release([each for each in found if each not in done])
            if not done:
                return  # the rest is locked by somebody: it is tried again with the next batch

    def close(self) -> None:
        self._line.close()


def _chooser(text: str) -> Callable[[ReceivedMessage], bool]:
    """The filter of a broker, where the broker has none."""
    compiled = compile_filter(text)

    def is_wanted(message: ReceivedMessage) -> bool:
        facts = {
            "SequenceNumber": message.sequence_number,
            "EnqueuedTimeUtc": Timestamp(message.enqueued_ms),
            "DeliveryCount": message.delivery_count,
        }
        seen = AmqpMessage(message.payload)
        try:
            return compiled.matches(Context(seen, facts, NO_EDITS, lambda: UUID(int=0)))
        except FilterError:
            return False

    return is_wanted


def _page(following: int, messages: list[ReceivedMessage]) -> Page:
    """Peeked messages in the form that a scan has."""
    ends = array("I")
    for message in messages:
        ends.append(len(message.payload) + (ends[-1] if ends else 0))
    sources = {row: message.dead_letter_source for row, message in enumerate(messages)}
    return Page(
        following,
        array("Q", (message.sequence_number for message in messages)),
        array("Q", (message.enqueued_ms for message in messages)),
        array("I", (len(message.payload) for message in messages)),
        array("I", (message.delivery_count for message in messages)),
        bytes(len(messages)),
        bytes(message.state for message in messages),
        ends,
        b"".join(message.payload for message in messages),
        {
            row: Edits(system={"DeadLetterSource": source})
            for row, source in sources.items()
            if source is not None
        },
    )
