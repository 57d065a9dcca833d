"""One level's queue through the SDK: messages come in, their locks are renewed, they are settled.

A `Source` decides nothing. What it takes it hands to its pool, which says how many it may have and
when to go on. It never ends because of the other side: whatever the SDK raises, it says that its
level is absent, and tries again.

Levels with sessions have several tasks, each with one session at a time: the next message of a
session is taken when the one before is settled, so its order holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    SessionLockLostError,
)

from tandembus.clock import Clock
from tandembus.model import Millis
from tandembus.workers import wire
from tandembus.workers.options import Level
from tandembus.workers.outcomes import Abandon, Complete, DeadLetter, Defer, GiveBack, Outcome
from tandembus.workers.tasks import ended
from tandembus.workers.worker import MAX_TEXT, Work

_log: Final = logging.getLogger("tandembus.workers")

POLL_S: Final = 60.0
"""How long one receive waits. While nothing comes, this is what polling costs (P11)."""
SESSION_IDLE_S: Final = 1.0
"""A session that has nothing for so long makes room for another one."""
OPEN_S: Final = 10.0
"""At the end, for a link that is being opened."""
RETRY_S: Final = 0.5
MAX_RETRY_S: Final = 30.0
LEAST_RENEWAL_S: Final = 0.5
MOST_RENEWAL_S: Final = 15.0
"""A broker's clock that is ahead of ours makes its locks look longer than they are."""
MAX_STATE: Final = 32_768
"""Of a message that is given back: it becomes a property of the message."""
_STATE_HEAD: Final = b"TW1"


class Taken:
    """A message that this process holds the lock of."""

    def __init__(
        self,
        level: int,
        message: ServiceBusReceivedMessage,
        receiver: Any,
        session_state: bytes | None = None,
    ) -> None:
        self.level = level
        self.message = message
        self.receiver = receiver
        self.session_state = session_state
        self.work: Work | None = None
        self.renewal: asyncio.Task[None] | None = None
        self.is_over = asyncio.Event()

    @property
    def sequence_number(self) -> int:
        return int(self.message.sequence_number or 0)

    @property
    def enqueued_ms(self) -> Millis:
        at = self.message.enqueued_time_utc
        return 0 if at is None else round(at.timestamp() * 1000)

    @property
    def locked_until_ms(self) -> Millis:
        at = self.message.locked_until_utc
        return 0 if at is None else round(at.timestamp() * 1000)

    def state(self) -> bytes | None:
        """What an earlier handler left for this message."""
        if self.session_state is not None:
            head = _head(self.sequence_number)
            kept = self.session_state
            return kept[len(head) :] if kept.startswith(head) else None
        return wire.state_of(self.message)


def _head(sequence_number: int) -> bytes:
    """A session's state is that of one message."""
    return _STATE_HEAD + sequence_number.to_bytes(8)


class Taker(Protocol):
    """What a source needs of its pool."""

    async def room(self, level: int) -> int:
        """Waits until messages may be taken; how many."""
        ...

    def asked(self, level: int) -> None: ...

    def answered(self, level: int) -> None: ...

    def absent(self, level: int) -> None: ...

    def took(self, taken: Taken) -> None: ...

    def lost(self, taken: Taken) -> None:
        """Its lock is gone."""
        ...


class Source:
    """One level. `open` and `close` as often as one likes; what was taken can be settled as long as
    it is not closed."""

    def __init__(self, index: int, level: Level, client: Any, taker: Taker, clock: Clock) -> None:
        self._index = index
        self._level = level
        self._client = client
        self._taker = taker
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._receiver: Any = None
        self._opening: asyncio.Task[Any] | None = None
        self._asking = 0
        self._held: set[Taken] = set()
        self._endings: set[asyncio.Task[None]] = set()
        """Of sessions, when their last message is settled."""
        self.operations: Counter[str] = Counter()
        """What was asked of the broker (P11)."""

    @property
    def is_feeding(self) -> bool:
        return bool(self._tasks)

    @property
    def is_open(self) -> bool:
        """Whether it has a link."""
        return self._receiver is not None

    @property
    def taken(self) -> int:
        """Messages that are not settled."""
        return len(self._held)

    # --- its life ---------------------------------------------------------------------------------

    def feed(self) -> None:
        """Begin to receive."""
        if self._tasks:
            return
        rounds = [self._session_round] * self._level.sessions or [self._round]
        self._tasks = [asyncio.create_task(self._always(each)) for each in rounds]

    async def rest(self) -> None:
        """Receive no more. What was taken stays so."""
        tasks, self._tasks = self._tasks, []
        await ended(tasks)
        self._asking = 0
        if self._receiver is not None and self._opening is None:
            with suppress(Exception):
                await wire.drain(self._receiver)

    async def close(self) -> None:
        """And the link: what nobody has asked for goes back. Nothing is taken any more."""
        await self.rest()
        receiver, self._receiver = self._receiver, None
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.wait({opening}, timeout=OPEN_S)
            opening.cancel()
        await asyncio.gather(*self._endings)
        await _closed(receiver)

    async def _always(self, take_round: Callable[[], Awaitable[None]]) -> None:
        """A round that fails is tried again, ever more rarely."""
        retry_s = RETRY_S
        while True:
            try:
                await take_round()
                retry_s = RETRY_S
            except Exception as error:  # noqa: BLE001 - the SDK trips in many ways
                _log.warning("%s cannot be received from: %s", self._level.path, error)
                self._taker.absent(self._index)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, MAX_RETRY_S)

    def _new_receiver(self, **how: Any) -> Any:
        level = self._level
        if level.queue is not None:
            return self._client.get_queue_receiver(level.queue, **how)
        return self._client.get_subscription_receiver(level.topic, level.subscription, **how)

    async def receiver(self) -> Any:
        """The level's link, open. A level with sessions has none of its own."""
        if self._receiver is None:
            self._receiver = self._new_receiver()
            self._opening = asyncio.create_task(self._receiver.__aenter__())
        if self._opening is not None:
            try:
                # The SDK leaves a socket behind when it is interrupted in this.
                await asyncio.shield(self._opening)
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._receiver = self._opening = None
                raise
            self._opening = None
        return self._receiver

    # --- receiving --------------------------------------------------------------------------------

    async def _round(self) -> None:
        """As many messages as there is room for."""
        receiver = await self.receiver()
        count = await self._taker.room(self._index)
        wire.quicken(receiver)
        self._taker.asked(self._index)
        self.operations["receive"] += 1
        messages = await receiver.receive_messages(count, max_wait_time=POLL_S)
        self.operations["received"] += len(messages)
        for message in messages:
            self._take(Taken(self._index, message, receiver))
        self._taker.answered(self._index)

    def _take(self, taken: Taken) -> None:
        self._held.add(taken)
        if not self._level.sessions:
            taken.renewal = asyncio.create_task(self._renew(taken))
        self._taker.took(taken)

    async def _session_round(self) -> None:
        """One session, from its lock to its end."""
        async with self._session() as receiver:
            if receiver is None:
                return
            session_state: bytes | None = None
            if self._level.state_in == "session":
                self.operations["state"] += 1
                session_state = await receiver.session.get_state() or b""
            while True:
                self._ask(+1)
                try:
                    wire.quicken(receiver)
                    self.operations["receive"] += 1
                    messages = await receiver.receive_messages(1, max_wait_time=SESSION_IDLE_S)
                    self.operations["received"] += len(messages)
                    taken = [Taken(self._index, each, receiver, session_state) for each in messages]
                    for each in taken:
                        self._take(each)
                finally:
                    self._ask(-1)
                for each in taken:
                    await each.is_over.wait()
                    session_state = each.session_state
                if not taken:
                    return

    def _ask(self, change: int) -> None:
        """Another session asks for a message, or does no more. When all have one nobody asks, and
        nobody waits for an answer."""
        self._asking += change
        if self._asking > 0:
            self._taker.asked(self._index)
        else:
            self._taker.absent(self._index)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        """The next session that has messages and no holder; None: there was none for a while."""
        receiver = self._new_receiver(session_id=NEXT_AVAILABLE_SESSION, max_wait_time=POLL_S)
        self._ask(+1)
        self.operations["accept"] += 1
        try:
            await receiver.__aenter__()
        except OperationTimeoutError:
            await _closed(receiver)
            receiver = None
        finally:
            self._ask(-1)
        renewal = None
        if receiver is not None:
            renewal = asyncio.create_task(self._renew_session(receiver))
        try:
            yield receiver
        finally:
            # The pool may end while a message of the session is being worked on.
            mine = [each for each in self._held if each.receiver is receiver]
            ending = asyncio.create_task(_end_session(receiver, renewal, mine))
            if mine:
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)
            else:
                await ending

    # --- locks ------------------------------------------------------------------------------------

    async def _renew(self, taken: Taken) -> None:
        """At half of its time, again and again."""
        while not taken.is_over.is_set():
            await self._sleep_half(taken.locked_until_ms)
            try:
                self.operations["renew"] += 1
                await taken.receiver.renew_message_lock(taken.message)
            except Exception as error:  # noqa: BLE001 - the SDK trips in many ways
                is_gone = isinstance(error, MessageLockLostError)
                if not taken.is_over.is_set() and (is_gone or self._is_past(taken.locked_until_ms)):
                    _log.warning("%s: the lock of a message is lost: %s", self._level.path, error)
                    self._lose(taken)
                    return

    async def _renew_session(self, receiver: Any) -> None:
        session = receiver.session
        while True:
            until = session.locked_until_utc
            until_ms = 0 if until is None else round(until.timestamp() * 1000)
            await self._sleep_half(until_ms)
            try:
                self.operations["renew"] += 1
                await session.renew_lock()
            except Exception as error:  # noqa: BLE001 - the SDK trips in many ways
                if isinstance(error, SessionLockLostError) or self._is_past(until_ms):
                    _log.warning("%s: the lock of a session is lost: %s", self._level.path, error)
                    for taken in [each for each in self._held if each.receiver is receiver]:
                        self._lose(taken)
                    return

    async def _sleep_half(self, until_ms: Millis) -> None:
        left_s = (until_ms - self._clock.now_ms()) / 1000
        await asyncio.sleep(min(MOST_RENEWAL_S, max(LEAST_RENEWAL_S, left_s / 2)))

    def _is_past(self, until_ms: Millis) -> bool:
        return self._clock.now_ms() >= until_ms

    def _lose(self, taken: Taken) -> None:
        if taken.work is not None:
            taken.work.is_lock_lost = True
            taken.work.request_stop()
        self._taker.lost(taken)

    # --- settling ---------------------------------------------------------------------------------

    async def settle(self, taken: Taken, outcome: Outcome) -> bool:
        """Whether the broker has taken it so. If not, the message comes again when its lock has run
        out."""
        try:
            await self._settle(taken, outcome)
        except Exception as error:  # noqa: BLE001 - the SDK trips in many ways
            _log.warning(
                "%s: a message could not be settled (%s): %s",
                self._level.path,
                type(outcome).__name__,
                error,
            )
            return False
        finally:
            self.let_go(taken)
        return True

    def let_go(self, taken: Taken) -> None:
        """It is not ours any more."""
        if taken.renewal is not None:
            taken.renewal.cancel()
        self._held.discard(taken)
        taken.is_over.set()

    async def _settle(self, taken: Taken, outcome: Outcome) -> None:
        receiver, message = taken.receiver, taken.message
        self.operations["settle"] += 1
        if isinstance(outcome, Complete | DeadLetter) and taken.session_state:
            await self._set_session_state(taken, b"")
        match outcome:
            case Complete():
                await receiver.complete_message(message)
            case Abandon():
                await receiver.abandon_message(message)
            case DeadLetter(reason, description):
                await receiver.dead_letter_message(
                    message, reason=reason[:MAX_TEXT], error_description=description[:MAX_TEXT]
                )
            case Defer():
                await receiver.defer_message(message)
            case GiveBack(state):
                await self._give_back(taken, state)

    async def _give_back(self, taken: Taken, state: bytes | None) -> None:
        if state is not None and len(state) > MAX_STATE and taken.session_state is None:
            _log.error("%s: a state of %d bytes is not kept", self._level.path, len(state))
            state = None
        try:
            if state is None:
                await wire.give_back(taken.receiver, taken.message)
            elif taken.session_state is not None:
                await self._set_session_state(taken, _head(taken.sequence_number) + state)
                await wire.give_back(taken.receiver, taken.message)
            else:
                await wire.give_back_with(taken.receiver, taken.message, state)
        except Exception as error:  # noqa: BLE001 - the SDK trips in many ways
            # The link that it came through may be gone; this goes another way, and counts.
            _log.info("%s: given back with a penalty: %s", self._level.path, error)
            await taken.receiver.abandon_message(taken.message)

    async def _set_session_state(self, taken: Taken, state: bytes) -> None:
        self.operations["state"] += 1
        await taken.receiver.session.set_state(state)
        taken.session_state = state


async def _end_session(
    receiver: Any, renewal: asyncio.Task[None] | None, unsettled: Sequence[Taken]
) -> None:
    for taken in unsettled:
        await taken.is_over.wait()
    if renewal is not None:
        await ended([renewal])
    await _closed(receiver)


async def _closed(receiver: Any) -> None:
    if receiver is not None:
        with suppress(Exception):
            await receiver.close()
