"""Paired namespaces for asyncio.

    bus = await pair_namespace(primary, secondary, PairingOptions())
    sender = bus.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("…"))

`PairedSender` has the calls of the SDK's `ServiceBusSender`, and takes and raises the same types.
This is the shell for asyncio: what it does is decided in `heart`, and done in `sending` and
`probing`, which it shares with `blocking`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Self

from azure.servicebus import ServiceBusMessageBatch

from tandembus.clock import Clock
from tandembus.model import NEVER
from tandembus.pairing import wire
from tandembus.pairing.heart import BacklogQueue, Entity, Event, Health, Listener
from tandembus.pairing.ledger import Ledger
from tandembus.pairing.namespaces import ONE_TRY, ensure_backlog
from tandembus.pairing.options import PairingOptions
from tandembus.pairing.pair import PRIMARY, SECONDARY, Given, Pair, PairStatus
from tandembus.pairing.probing import look_home, probe
from tandembus.pairing.sending import Course, run_async
from tandembus.pairing.syphon import Syphon

_log: Final = logging.getLogger("tandembus.pairing")

_CLOSE_S: Final = 5.0
"""For the end of a sender whose other side does not answer."""

__all__ = ["PairedNamespace", "PairedSender", "pair_namespace"]


async def pair_namespace(
    primary: Given,
    secondary: Given | Sequence[Given],
    options: PairingOptions = PairingOptions(),  # noqa: B008 - a frozen value
    *,
    clock: Clock | None = None,
) -> PairedNamespace:
    """Pair two namespaces, or one with several secondaries in the order of their use. Makes the
    backlog queues that are not there (N2), so every secondary must be reachable now; the primary
    need not."""
    pair = Pair(primary, secondary, options, clock, None)
    for namespace in pair.secondaries:
        await asyncio.to_thread(ensure_backlog, namespace, pair.name, options.backlog_queue_count)
    return PairedNamespace(pair)


class PairedNamespace:
    """Use `pair_namespace`, in the event loop that will use the result. As a context it closes at
    the end."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.primary_client = pair.primary.async_client()
        self.secondary_clients = [each.async_client() for each in pair.secondaries]
        self._probe_client = pair.primary.async_client(**ONE_TRY)
        self._senders: set[PairedSender] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: set[str] = set()
        self._wake = asyncio.Event()
        self._forget = pair.subscribe(self._woken)
        self.syphon: Syphon | None = None
        if pair.options.enable_syphon:
            self.syphon = Syphon(pair)
            self._start(self.syphon.run())
        self._watcher = asyncio.create_task(self._watch(), name="tandem-pairing-watch")

    # --- senders and receivers --------------------------------------------------------------------

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        return self._sender(queue_name, self.primary_client.get_queue_sender, kwargs)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        return self._sender(topic_name, self.primary_client.get_topic_sender, kwargs)

    def _sender(self, path: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> PairedSender:
        sender = PairedSender(self, path, lambda: make(path, **kwargs))
        self._senders.add(sender)
        return sender

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> Any:
        """The SDK's: receiving is from the primary only."""
        return self.primary_client.get_queue_receiver(queue_name, **kwargs)

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **kwargs: Any
    ) -> Any:
        return self.primary_client.get_subscription_receiver(
            topic_name, subscription_name, **kwargs
        )

    # --- state ------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What pairing has cost (N11)."""
        return self._pair.ledger

    def status(self) -> PairStatus:
        return self._pair.status()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """`listener` is called with each event (`EntityChanged`, `BacklogChanged`, `SideFaulted`);
        what is returned ends that."""
        return self._pair.subscribe(listener)

    def mark_healthy(self, path: str) -> None:
        """Send to the primary from now on."""
        self._pair.heart.mark_healthy(path)

    def engage(self, path: str, *, hold: bool = False) -> None:
        """Send to the backlog from now on; with `hold` until `mark_healthy`."""
        self._pair.heart.engage(path, hold=hold)
        self._wake.set()

    # --- what runs beside -------------------------------------------------------------------------

    def _woken(self, _: Event) -> None:
        self._wake.set()

    def wake(self) -> None:
        """Look at the clock again; for tests that move it."""
        self._wake.set()

    async def _watch(self) -> None:
        pair, heart = self._pair, self._pair.heart
        while True:
            self._wake.clear()
            for entity in heart.tick():
                self._start(run_async(probe(self._probe_client, entity, heart, pair.ledger)))
            for entity in heart.entities():
                if entity.health is Health.RETURNING and entity.path not in self._looking:
                    self._looking.add(entity.path)
                    self._start(self._look_home(entity))
            if self.syphon is not None and (side := pair.sides.tick()) is not None:
                await self._fault(side)
            due_ms = pair.next_due_ms()
            wait_s = None if due_ms == NEVER else max(0, due_ms - pair.clock.now_ms()) / 1000
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)

    async def _look_home(self, entity: Entity) -> None:
        interval_s = self._pair.options.return_check_interval.total_seconds()
        look = _Look(self)
        try:
            while entity.health is Health.RETURNING:
                steps = look_home(look, entity, self._pair.heart, self._pair.ledger, interval_s)
                if (again_s := await run_async(steps)) is not None:
                    interval_s = again_s
                    await asyncio.sleep(interval_s)
        finally:
            self._looking.discard(entity.path)
            await self._close_clients(list(look.receivers.values()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the pair failed", exc_info=error)

    # --- the end ----------------------------------------------------------------------------------

    async def close_primary(self) -> None:
        """Close one side. With a syphon, the other has 5 s to be closed too, else it is faulted."""
        self._pair.sides.end(PRIMARY)
        self._wake.set()
        await self._close_clients([self.primary_client, self._probe_client])

    async def close_secondary(self) -> None:
        self._pair.sides.end(SECONDARY)
        self._wake.set()
        await self._close_clients(self.secondary_clients)

    async def fault(self, side: str, error: BaseException) -> None:
        """End a side because of `error`: its senders raise `PairFaultedError`."""
        self._pair.sides.end(side, error)
        self._wake.set()
        await self._end_side(side)

    async def _fault(self, side: str) -> None:
        self._pair.faulted(side)
        await self._end_side(side)

    async def _end_side(self, side: str) -> None:
        if side == PRIMARY:
            await self._close_clients([self.primary_client, self._probe_client])
        else:
            await self._close_clients(self.secondary_clients)

    @staticmethod
    async def _close_clients(clients: Sequence[Any]) -> None:
        # At once: the SDK takes up to a second for each, until a task of its own looks up.
        await asyncio.gather(*map(_close_client, clients))

    async def close(self) -> None:
        """Both sides, the syphon, and all senders."""
        self._forget()
        if self.syphon is not None:
            await self.syphon.stop()
        self._pair.sides.end(PRIMARY)
        self._pair.sides.end(SECONDARY)
        for task in (self._watcher, *self._tasks):
            task.cancel()
        await asyncio.gather(self._watcher, *self._tasks, return_exceptions=True)
        await asyncio.gather(*(sender.close() for sender in list(self._senders)))
        everything = [self.primary_client, self._probe_client, *self.secondary_clients]
        await self._close_clients(everything)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _close_client(client: Any) -> None:
    try:
        await client.close()
    except Exception:  # noqa: BLE001 - the SDK trips in many ways
        # The other side may be gone; what it held ends with the connection.
        _log.debug("a client did not close", exc_info=True)


class _Look:
    """Receivers to peek with, of one task: the SDK's are not for several at a time."""

    def __init__(self, bus: PairedNamespace) -> None:
        self._bus = bus
        self.receivers: dict[BacklogQueue, Any] = {}

    def receiver(self, queue: BacklogQueue) -> Any:
        found = self.receivers.get(queue)
        if found is None:
            client = self._bus.secondary_clients[queue.secondary]
            found = client.get_queue_receiver(self._bus._pair.path_of(queue))
            self.receivers[queue] = found
        return found

    @staticmethod
    def sleep(seconds: float) -> Any:
        return asyncio.sleep(seconds)


class PairedSender:
    """The SDK's `ServiceBusSender`, and the backlog behind it. Use `get_queue_sender` or
    `get_topic_sender`."""

    def __init__(self, bus: PairedNamespace, path: str, make: Callable[[], Any]) -> None:
        self._bus = bus
        self._make = make
        self._primary: Any = None
        self._backlog: dict[BacklogQueue, Any] = {}
        self._is_closed = False
        self.entity_name = path
        pair = bus._pair
        self._course = Course(path, pair.heart, pair.ledger, self)

    @property
    def fully_qualified_namespace(self) -> str:
        return self._bus.primary_client.fully_qualified_namespace

    @property
    def client_identifier(self) -> str:
        return str(self.primary_sender().client_identifier)

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """As the SDK's. When the entity has failed over, to a backlog queue: list and batch too, in
        several transfers if need be."""
        self._check(timeout)
        await run_async(self._course.send(message, timeout))

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """As the SDK's. Through a backlog a message keeps its time, and its number is 0."""
        self._check(timeout)
        return await run_async(self._course.schedule(messages, schedule_time_utc, timeout))

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        self._check(timeout)
        await run_async(self._course.cancel(sequence_numbers, timeout))

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        self._check(None)
        return await run_async(self._course.batch(max_size_in_bytes))

    def _check(self, timeout: float | None) -> None:
        if self._is_closed:
            raise ValueError("The sender has been closed. Use the pair to get a new one.")
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")

    async def close(self) -> None:
        self._is_closed = True
        self._bus._senders.discard(self)
        senders = [self._primary, *self._backlog.values()]
        await asyncio.gather(*(self._end(each) for each in senders if each is not None))
        self._backlog.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- Reach ------------------------------------------------------------------------------------

    def primary_sender(self) -> Any:
        self._bus._pair.sides.check(PRIMARY)
        if self._primary is None:
            self._primary = wire.speak_bytes(self._make())
        return self._primary

    def backlog_sender(self, queue: BacklogQueue) -> Any:
        self._bus._pair.sides.check(SECONDARY)
        found = self._backlog.get(queue)
        if found is None:
            client = self._bus.secondary_clients[queue.secondary]
            made = client.get_queue_sender(self._bus._pair.path_of(queue))
            found = self._backlog[queue] = wire.speak_bytes(made)
        return found

    def drop_backlog_sender(self, queue: BacklogQueue) -> Any:
        sender = self._backlog.pop(queue, None)
        if sender is not None:
            self._bus._start(self._end(sender))  # which may take its time

    @staticmethod
    async def _end(sender: Any) -> None:
        try:
            await asyncio.wait_for(sender.close(), _CLOSE_S)
        except Exception:  # noqa: BLE001 - the SDK trips in many ways
            _log.debug("a sender did not close", exc_info=True)

    @staticmethod
    def sleep(seconds: float) -> Any:
        return asyncio.sleep(seconds)
