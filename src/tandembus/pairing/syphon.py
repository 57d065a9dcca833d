"""The syphon (N9): brings what is in the backlog queues to its destinations in the primary.

One task for each backlog queue: receive under a lock with a long poll, send to the primary,
complete. Nothing is completed before the primary has it, so nothing is lost; a message that was
sent and not completed (a kill, a lock that ran out) is sent again with the same id, and duplicate
detection on the destination drops it. What may go when is decided in `moves`.

What it cannot understand, or the primary refuses for what it is, goes to the dead-letter queue of
its backlog queue, with the reason. Messages to a destination that fails are held back, and those
to others pass them, as long as not more than `syphon_in_hand` of a queue are held. When all that
can be had is held, it is given back and nothing more is received, so that an outage costs nothing;
whether a destination answers is asked with an empty link, after 0.5 s and then ever more rarely, up
to 15 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageLockLostError

from tandembus.clock import Clock
from tandembus.pairing import aliases, wire
from tandembus.pairing.aliases import Stamp, Unreadable, restored
from tandembus.pairing.failures import (
    FAILURES,
    UNREACHABLE,
    brief,
    condition_of,
    is_message_refused,
)
from tandembus.pairing.heart import BacklogQueue
from tandembus.pairing.moves import (
    HOLD_MOST_MS,
    REFUSED_MOST_MS,
    STALE_MS,
    Elsewhere,
    Flow,
    Hand,
    Holds,
    Item,
    Seen,
)
from tandembus.pairing.namespaces import ONE_TRY
from tandembus.pairing.options import LONG_POLL
from tandembus.pairing.pair import Pair
from tandembus.pairing.probing import FIRST, PEEK
from tandembus.pairing.wire import Settlement

_log: Final = logging.getLogger("tandembus.pairing.syphon")

SEND_S: Final = 15.0
"""For one send to the primary. With what a message may be in hand (`STALE_MS`) it stays within the
lock, so that a destination that hangs does not make doubles."""
GRACE_S: Final = 5.0
"""Beyond its own time-out: a call of the SDK that still has not ended never will."""
BLOCKED_S: Final = 0.5
MAX_BLOCKED_S: Final = 5.0
"""Until the queue is looked at again, when somebody else has what must go first; twice as long each
time."""
MAX_REST_S: Final = 60.0
PAUSED_LOOK_MS: Final = 60_000
"""How often a queue is looked through, while all that was in it is held, for other destinations."""
PAUSED_PAGES: Final = 4
RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
CLOSE_S: Final = 5.0
LEAST_WAIT_S: Final = 0.1

UNREADABLE: Final = "TandemPairingUnreadable"
REFUSED: Final = "TandemPairingRefused"


class Syphon:
    """All backlog queues of a pair. `run` until `stop`; as many as one likes, anywhere."""

    def __init__(
        self,
        pair: Pair,
        clock: Clock | None = None,
        queues: Sequence[BacklogQueue] | None = None,
    ) -> None:
        """`clock` if it runs in another thread than the rest of the pair; `queues` if others see to
        the rest of the backlog queues."""
        self._pair = pair
        self._clock = clock or pair.clock
        self._queues = pair.backlog_queues() if queues is None else list(queues)
        self._client: Any = None
        self._senders: dict[str, Any] = {}
        self._sending: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.holds = Holds()
        self._drains: list[_Drain] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._ended: asyncio.Event | None = None

    async def run(self) -> None:
        """Until `stop`, or until it is cancelled."""
        pair = self._pair
        self._ended = asyncio.Event()
        self._client = pair.primary.async_client(**ONE_TRY)
        self._drains = [_Drain(self, queue) for queue in self._queues]
        self._tasks = [asyncio.create_task(drain.run()) for drain in self._drains]
        try:
            await asyncio.gather(*self._tasks)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
        finally:
            await self._end()
            self._ended.set()

    async def stop(self) -> None:
        """Give back what is in hand, and end."""
        self._is_stopping = True
        await self._end_tasks()
        if self._ended is not None:
            await self._ended.wait()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            if not task.cancelling():  # a second time would end its farewell
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end(self) -> None:
        await self._end_tasks()
        await asyncio.gather(*map(_closed, self._senders.values()))
        await _closed(self._client)

    # --- what it shows ----------------------------------------------------------------------------

    @property
    def flow(self) -> Flow:
        total = Flow()
        for drain in self._drains:
            total = total.plus(drain.flow)
        return total

    def is_empty(self) -> bool:
        """Whether nothing is in hand, and nothing left in its queues. Asks their namespaces, and
        blocks meanwhile."""
        if self.flow.in_hand:
            return False
        return not any(self._pair.depth(queue).waiting for queue in self._queues)

    def something_moved(self) -> None:
        """What others have waited for may have gone: they need not be patient."""
        for drain in self._drains:
            drain.hurry()

    # --- sending home -----------------------------------------------------------------------------

    async def send_home(self, path: str, payloads: Sequence[bytes]) -> None:
        """To the primary, in one transfer."""
        async with self._sending[path]:
            sender = self._sender(path)
            async with asyncio.timeout(SEND_S + GRACE_S):
                await sender.send_messages(wire.parcel(sender, payloads), timeout=SEND_S)
        self._pair.ledger.add("syphon_sends", len(payloads))
        self.holds.succeeded(path)

    async def limits(self, path: str) -> tuple[int, int]:
        async with self._sending[path]:
            sender = self._sender(path)
            if not wire.is_open(sender):
                async with asyncio.timeout(SEND_S):
                    await sender.create_message_batch()
        return wire.limits_of(sender)

    def _sender(self, path: str) -> Any:
        if path not in self._senders:
            # A topic's sender is the same.
            self._senders[path] = wire.speak_bytes(self._client.get_queue_sender(path))
        return self._senders[path]

    async def drop_sender(self, path: str) -> None:
        """It failed; the next try is with a new one."""
        async with self._sending[path]:
            await _closed(self._senders.pop(path, None))

    async def answers(self, path: str) -> bool:
        """Whether a destination lets a new link come up. Nothing is sent."""
        await self.drop_sender(path)
        if self.holds.is_held(path, self._clock.now_ms()):
            return False  # another queue has asked meanwhile
        try:
            await self.limits(path)
        except FAILURES as error:
            self.holds.failed(path, self._clock.now_ms(), brief(error))
            return False
        self.holds.answers(path, self._clock.now_ms())
        return True


class _Drain:
    """One backlog queue."""

    def __init__(self, syphon: Syphon, queue: BacklogQueue) -> None:
        pair = syphon._pair
        self.flow = Flow()
        self._syphon = syphon
        self._pair = pair
        self._queue = queue
        self._path = pair.path_of(queue)
        self._hand = Hand(is_whole=len(pair.backlog_queues()) == 1)
        self._elsewhere = Elsewhere()
        namespace = pair.secondaries[queue.secondary]
        self._client = namespace.async_client(**{**ONE_TRY, "user_agent": wire.USER_AGENT})
        self._browser = namespace.async_client(**ONE_TRY)
        self._receiver: Any = None
        self._browsers: dict[str, Any] = {}
        self._retry_s = RETRY_S
        self._blocked_s = BLOCKED_S
        self._rest_s = BLOCKED_S
        self._held_paths: set[str] = set()
        """Not empty: nothing is received until one of these answers."""
        self._looked_ms = 0
        self._received_ms = 0
        """When the last receive ended. What is late has been locked since about then."""

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._round()
                    self._retry_s = RETRY_S
                except FAILURES as error:
                    await self._again(error)
                except Exception as error:  # noqa: BLE001 - the SDK trips in many ways
                    # The SDK trips in many ways over a connection that breaks; none may end this.
                    _log.exception("a round over %s failed", self._path)
                    await self._again(error)
        finally:
            await asyncio.shield(self._leave())

    async def _again(self, error: BaseException) -> None:
        _log.info("%s: %s", self._path, brief(error))
        receiver, self._receiver = self._receiver, None
        await _closed(receiver)
        self._count(receiver)
        await asyncio.sleep(self._retry_s)
        self._retry_s = min(MAX_RETRY_S, 2 * self._retry_s)

    async def _leave(self) -> None:
        with suppress(*FAILURES, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._give_back(list(self._hand.items.values()))
        await asyncio.gather(*map(_closed, (self._receiver, *self._browsers.values())))
        await asyncio.gather(_closed(self._client), _closed(self._browser))
        self._count(self._receiver)

    def hurry(self) -> None:
        self._blocked_s = BLOCKED_S

    # --- one round --------------------------------------------------------------------------------

    async def _round(self) -> None:
        """Receive if there is room, send what may go, give back what has become old."""
        if self._held_paths:
            await self._wait_held()
            return
        hand, options = self._hand, self._pair.options
        if stale := hand.stale(self._now_ms()):
            await self._give_back(stale)
            # What must go first is still in other hands: they would only come round again.
            await asyncio.sleep(self._rest_s)
            self._rest_s = min(2 * self._rest_s, MAX_REST_S)
        wait_s = self._blocked_s if hand.items else LONG_POLL.total_seconds()
        count = 0
        if len(hand.items) + options.syphon_batch <= options.syphon_in_hand:
            count = await self._receive(wait_s)
        else:
            await asyncio.sleep(wait_s)
        holds, now_ms = self._syphon.holds, self._now_ms()
        paths = {item.restored.path for item in hand.items.values()}
        held = {path for path in paths if holds.is_held(path, now_ms)}
        ready = {}
        if held != paths:
            await self._look()
            ready = hand.ready(
                lambda item: item.restored.path in held or self._elsewhere.is_before(item)
            )
        if ready:
            self._blocked_s, self._rest_s = BLOCKED_S, BLOCKED_S
            moves = (self._move(path, items) for path, items in ready.items())
            # All to their end, whatever happens to one: none may be left running.
            for result in await asyncio.gather(*moves, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        elif held != paths:
            self._blocked_s = min(2 * self._blocked_s, MAX_BLOCKED_S)
        elif hand.items and not count:
            self._held_paths = held
            self._looked_ms = now_ms
            await self._give_back(list(hand.items.values()))
            await _closed(self._receiver)  # which gives back what is late
            self._count(self._receiver)
            self._receiver = None

    async def _wait_held(self) -> None:
        """All that could be had is for destinations that fail: wait for one of them, and look from
        time to time for messages to others."""
        holds = self._syphon.holds
        wait_s = holds.wait_ms(self._held_paths, self._now_ms()) / 1000
        await asyncio.sleep(max(wait_s, LEAST_WAIT_S))
        for path in sorted(self._held_paths):
            if not holds.is_held(path, self._now_ms()) and await self._syphon.answers(path):
                self._held_paths = set()
                return
        if self._now_ms() - self._looked_ms < PAUSED_LOOK_MS:
            return
        self._looked_ms = self._now_ms()
        number = 0
        async for page in self._pages(str(self._queue), 0):
            number += 1
            paths = {each.group[0] for each in page}
            self._held_paths = set() if paths - holds.why.keys() else self._held_paths | paths
            if not page or not self._held_paths or number == PAUSED_PAGES:
                return

    def _now_ms(self) -> int:
        return self._syphon._clock.now_ms()

    async def _receive(self, wait_s: float) -> int:
        since_ms = self._received_ms
        receiver = self._current()
        late = wire.late(receiver)
        async with asyncio.timeout(wait_s + SEND_S + GRACE_S):
            messages: list[ServiceBusReceivedMessage] = await receiver.receive_messages(
                max_message_count=late or self._pair.options.syphon_batch, max_wait_time=wait_s
            )
        self._received_ms = self._now_ms()
        if not late:
            since_ms = self._received_ms
        wire.came_through(receiver, messages)
        await wire.no_more(receiver)
        if not messages:
            self._pair.ledger.add("empty_receives")
        self._count(receiver)
        self.flow.received += len(messages)
        if self._received_ms - since_ms >= STALE_MS:
            # Nobody had time for them, and their locks end soon, or have ended.
            self.flow.returned += len(messages)
            with suppress(*FAILURES):
                await self._settle(messages, Settlement.ABANDON)
            return len(messages)
        for message in messages:
            try:
                item = Item(message, restored(wire.bytes_of(message)), since_ms)
            except Unreadable as error:
                await self._dead_letter([message], UNREADABLE, str(error))
                continue
            if item.number in self._hand.items:
                # Its lock ran out before it was settled, and it came again.
                self.flow.lost += 1
            self._hand.take([item])
        return len(messages)

    # --- the order --------------------------------------------------------------------------------

    async def _look(self) -> None:
        hand = self._hand
        if hand.must_look:
            highest = max(hand.items)
            seen: list[Seen] = []
            async for page in self._pages(str(self._queue), hand.gone_below):
                seen += [each for each in page if each.number <= highest]
                if not page or page[-1].number >= highest:
                    break
            hand.look(seen)
        # A queue is gone through once, for all senders that have used it.
        queues: dict[str, dict[tuple[str, str], int]] = {}
        for key, number in self._elsewhere.unclear(hand.items.values()).items():
            queues.setdefault(key[0], {})[key] = number
        for queue, unclear in queues.items():
            async for page in self._pages(queue, min(map(self._elsewhere.start, unclear))):
                for key in list(unclear):
                    if self._elsewhere.looked(key, unclear[key], page):
                        del unclear[key]
                if not unclear:
                    break

    async def _pages(self, queue: str, number: int) -> AsyncIterator[list[Seen]]:
        """What a queue has from `number` on, locked or not; the last page is empty."""
        browser = self._browsers.get(queue)
        if browser is None:
            secondary, index = map(int, queue.split("."))
            pair = self._pair
            client = self._browser
            if secondary != self._queue.secondary:
                client = pair.secondaries[secondary].async_client(**ONE_TRY)
            path = pair.path_of(BacklogQueue(secondary, index))
            browser = self._browsers[queue] = client.get_queue_receiver(path)
        number = max(number, FIRST)
        while True:
            self._pair.ledger.add("peeks")
            async with asyncio.timeout(SEND_S + GRACE_S):
                messages = await browser.peek_messages(
                    max_message_count=PEEK, sequence_number=number, timeout=SEND_S
                )
            yield [_seen(message) for message in messages]
            if messages:
                number = (messages[-1].sequence_number or 0) + 1

    # --- moving -----------------------------------------------------------------------------------

    async def _move(self, path: str, items: Sequence[Item]) -> None:
        """Send to one destination, in order, until it fails; complete what was taken. Raises only
        what the backlog's own namespace does wrong."""
        try:
            max_message, max_batch = await self._syphon.limits(path)
        except FAILURES as error:
            await self._hold(path, error)
            return
        large = [item for item in items if len(item.restored.payload) > max_message]
        if large:
            why = f"it is larger than the {max_message} bytes that {path} takes"
            await self._refuse(large, REFUSED, why)
            items = [item for item in items if item not in large]
        at = 0
        for parcel in wire.parcels(
            [item.restored.payload for item in items], max_message, max_batch
        ):
            part = items[at : at + len(parcel)]
            at += len(parcel)
            if not await self._move_together(path, part):
                return

    async def _move_together(self, path: str, items: Sequence[Item]) -> bool:
        """False: the destination fails."""
        try:
            await self._syphon.send_home(path, [item.restored.payload for item in items])
        except FAILURES as error:
            if not is_message_refused(error):
                await self._hold(path, error)
                return False
            if len(items) == 1:
                await self._refuse(items, REFUSED, f"{condition_of(error) or ''} {error}")
                return True
            # One of them is refused for what it is, or they may not go together: one by one.
            for item in items:
                if not await self._move_together(path, [item]):
                    return False
            return True
        self.flow.sent += len(items)
        await self._complete(items)
        return True

    async def _hold(self, path: str, error: BaseException) -> None:
        _log.info("%s is held back: %s", path, brief(error))
        most_ms = HOLD_MOST_MS if isinstance(error, UNREACHABLE) else REFUSED_MOST_MS
        self._syphon.holds.failed(path, self._now_ms(), brief(error), most_ms)
        await self._syphon.drop_sender(path)

    async def _complete(self, items: Sequence[Item]) -> None:
        try:
            await self._settle([item.message for item in items], Settlement.COMPLETE)
        except MessageLockLostError:
            if len(items) > 1:  # one of them; the others may still be settled
                for item in items:
                    await self._complete([item])
                return
            self.flow.lost += 1
            self._hand.dropped(items)
        else:
            self.flow.completed += len(items)
            self._hand.settled(items)
            self._syphon.something_moved()

    async def _refuse(self, items: Sequence[Item], reason: str, why: str) -> None:
        _log.warning("%s: %d messages are dead-lettered: %s", self._path, len(items), why)
        await self._dead_letter([item.message for item in items], reason, why)
        self._hand.settled(items)

    async def _dead_letter(
        self, messages: Sequence[ServiceBusReceivedMessage], reason: str, why: str
    ) -> None:
        await self._settle(messages, Settlement.DEAD_LETTER, reason, why[:1024])
        self.flow.dead_lettered += len(messages)
        self._pair.ledger.add("dead_letters", len(messages))

    async def _give_back(self, items: Sequence[Item]) -> None:
        if not items:
            return
        self._hand.dropped(items)
        self.flow.returned += len(items)
        with suppress(*FAILURES):  # then their locks run out
            await self._settle([item.message for item in items], Settlement.ABANDON)

    async def _settle(
        self,
        messages: Sequence[ServiceBusReceivedMessage],
        how: Settlement,
        reason: str = "",
        why: str = "",
    ) -> None:
        async with asyncio.timeout(SEND_S + GRACE_S):
            await wire.settle_all(self._current(), messages, how, reason=reason, description=why)

    def _count(self, receiver: Any) -> None:
        """What the broker has delivered, whether it came up to here or not."""
        if receiver is not None:
            self._pair.ledger.add("backlog_receives", wire.newly_counted(receiver))

    def _current(self) -> Any:
        if self._receiver is None:
            self._receiver = wire.speak_bytes(self._client.get_queue_receiver(self._path))
        return self._receiver


def _seen(message: ServiceBusReceivedMessage) -> Seen:
    """What a look needs of a message; one that is not ours is in a group of its own."""
    properties = message.application_properties or {}

    def text(name: str) -> str | None:
        value = properties.get(name.encode())
        return value.decode(errors="replace") if isinstance(value, bytes) else None

    sender, number = text(aliases.SENDER), properties.get(aliases.NUMBER.encode())
    stamp = Stamp(sender, number) if sender is not None and isinstance(number, int) else None
    group = (text(aliases.PATH) or "", text(aliases.SESSION_ID))
    return Seen(message.sequence_number or 0, group, stamp)


async def _closed(closeable: Any) -> None:
    if closeable is not None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await closeable.close()
        except Exception:  # noqa: BLE001 - the SDK trips in many ways
            # The other side is gone, or does not answer; what it held ends by itself.
            _log.debug("did not close", exc_info=True)
