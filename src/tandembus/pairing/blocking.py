"""Paired namespaces without asyncio.

    bus = pair_namespace(primary, secondary, PairingOptions())
    with bus.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("…"))

This is the blocking shell; see `aio`. As with the SDK, a sender is for one thread at a time, and
the pair itself for any number. What runs beside (probes, the look whether a backlog is home, the
syphon) has threads of its own, all daemons.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Self

from azure.servicebus import ServiceBusMessageBatch

from tandembus.clock import Clock, SystemClock
from tandembus.model import NEVER
from tandembus.pairing import wire
from tandembus.pairing.heart import BacklogQueue, Entity, Event, Health, Listener
from tandembus.pairing.ledger import Ledger
from tandembus.pairing.namespaces import ONE_TRY, ensure_backlog
from tandembus.pairing.options import PairingOptions
from tandembus.pairing.pair import PRIMARY, SECONDARY, Given, Pair, PairStatus
from tandembus.pairing.probing import look_home, probe
from tandembus.pairing.sending import Course, run_blocking
from tandembus.pairing.syphon import Syphon

_log: Final = logging.getLogger("tandembus.pairing")

_JOIN_S: Final = 15.0

__all__ = ["PairedNamespace", "PairedSender", "pair_namespace"]


def pair_namespace(
    primary: Given,
    secondary: Given | Sequence[Given],
    options: PairingOptions = PairingOptions(),  # noqa: B008 - a frozen value
    *,
    clock: Clock | None = None,
) -> PairedNamespace:
    """Pair two namespaces, or one with several secondaries in the order of their use. Makes the
    backlog queues that are not there (N2), so every secondary must be reachable now; the primary
    need not."""
    pair = Pair(primary, secondary, options, clock, threading.RLock())
    for namespace in pair.secondaries:
        ensure_backlog(namespace, pair.name, options.backlog_queue_count)
    return PairedNamespace(pair)


class PairedNamespace:
    """Use `pair_namespace`. As a context it closes at the end."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.primary_client = pair.primary.client()
        self.secondary_clients = [each.client() for each in pair.secondaries]
        self._probe_client = pair.primary.client(**ONE_TRY)
        self._senders: set[PairedSender] = set()
        self._looking: set[str] = set()
        self._wake = threading.Event()
        self._is_closed = False
        self._forget = pair.subscribe(self._woken)
        self.syphon: Syphon | None = None
        self._syphon_loop: asyncio.AbstractEventLoop | None = None
        self._syphon_thread: threading.Thread | None = None
        if pair.options.enable_syphon:
            self.syphon = Syphon(pair, SystemClock())
            self._syphon_thread = self._start(self._run_syphon, self.syphon)
        self._watcher = self._start(self._watch)

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
        """`listener` is called with each event, in the thread where it happens."""
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

    def _watch(self) -> None:
        pair, heart = self._pair, self._pair.heart
        while not self._is_closed:
            self._wake.clear()
            for entity in heart.tick():
                steps = probe(self._probe_client, entity, heart, pair.ledger)
                self._start(run_blocking, steps)
            for entity in heart.entities():
                if entity.health is Health.RETURNING and entity.path not in self._looking:
                    self._looking.add(entity.path)
                    self._start(self._look_home, entity)
            if self.syphon is not None and (side := pair.sides.tick()) is not None:
                pair.faulted(side)
                self._end_side(side)
            due_ms = pair.next_due_ms()
            self._wake.wait(None if due_ms == NEVER else max(0, due_ms - heart.now_ms()) / 1000)

    def _look_home(self, entity: Entity) -> None:
        interval_s = self._pair.options.return_check_interval.total_seconds()
        look = _Look(self)
        try:
            while entity.health is Health.RETURNING and not self._is_closed:
                steps = look_home(look, entity, self._pair.heart, self._pair.ledger, interval_s)
                if (again_s := run_blocking(steps)) is not None:
                    interval_s = again_s
                    time.sleep(interval_s)
        finally:
            self._looking.discard(entity.path)
            look.close()

    def _run_syphon(self, syphon: Syphon) -> None:
        async def run() -> None:
            self._syphon_loop = asyncio.get_running_loop()
            await syphon.run()

        asyncio.run(run())

    def _start(self, work: Callable[..., Any], *args: Any) -> threading.Thread:
        thread = threading.Thread(
            target=_logged, args=(work, *args), name="tandem-pairing", daemon=True
        )
        thread.start()
        return thread

    # --- the end ----------------------------------------------------------------------------------

    def close_primary(self) -> None:
        """Close one side. With a syphon, the other has 5 s to be closed too, else it is faulted."""
        self._pair.sides.end(PRIMARY)
        self._wake.set()
        self._end_side(PRIMARY)

    def close_secondary(self) -> None:
        self._pair.sides.end(SECONDARY)
        self._wake.set()
        self._end_side(SECONDARY)

    def fault(self, side: str, error: BaseException) -> None:
        """End a side because of `error`: its senders raise `PairFaultedError`."""
        self._pair.sides.end(side, error)
        self._wake.set()
        self._end_side(side)

    def _end_side(self, side: str) -> None:
        clients = self.secondary_clients
        if side == PRIMARY:
            clients = [self.primary_client, self._probe_client]
        for client in clients:
            _end(client)

    def close(self) -> None:
        """Both sides, the syphon, and all senders."""
        self._forget()
        self._is_closed = True
        self._wake.set()
        if self.syphon is not None and self._syphon_loop is not None:
            stopping = asyncio.run_coroutine_threadsafe(self.syphon.stop(), self._syphon_loop)
            with suppress(TimeoutError):  # its threads are daemons
                stopping.result(_JOIN_S)
        if self._syphon_thread is not None:
            self._syphon_thread.join(_JOIN_S)
        self._pair.sides.end(PRIMARY)
        self._pair.sides.end(SECONDARY)
        self._watcher.join(_JOIN_S)
        # At once: the SDK takes up to a second for each, until a thread of its own looks up.
        ends = [self._start(sender.close) for sender in list(self._senders)]
        for end in ends:
            end.join(_JOIN_S)
        self._end_side(PRIMARY)
        self._end_side(SECONDARY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _logged(work: Callable[..., Any], *args: Any) -> None:
    try:
        work(*args)
    except Exception:  # noqa: BLE001 - the SDK trips in many ways
        _log.exception("a thread of the pair failed")


def _end(closeable: Any) -> None:
    try:
        closeable.close()
    except Exception:  # noqa: BLE001 - the SDK trips in many ways
        # The other side may be gone; what it held ends with the connection.
        _log.debug("did not close", exc_info=True)


class _Look:
    """Receivers to peek with, of one thread."""

    def __init__(self, bus: PairedNamespace) -> None:
        self._bus = bus
        self._receivers: dict[BacklogQueue, Any] = {}

    def receiver(self, queue: BacklogQueue) -> Any:
        found = self._receivers.get(queue)
        if found is None:
            client = self._bus.secondary_clients[queue.secondary]
            found = client.get_queue_receiver(self._bus._pair.path_of(queue))
            self._receivers[queue] = found
        return found

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        for receiver in self._receivers.values():
            _end(receiver)


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

    def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """As the SDK's. When the entity has failed over, to a backlog queue: list and batch too, in
        several transfers if need be."""
        self._check(timeout)
        run_blocking(self._course.send(message, timeout))

    def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """As the SDK's. Through a backlog a message keeps its time, and its number is 0."""
        self._check(timeout)
        return run_blocking(self._course.schedule(messages, schedule_time_utc, timeout))

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        self._check(timeout)
        run_blocking(self._course.cancel(sequence_numbers, timeout))

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        self._check(None)
        return run_blocking(self._course.batch(max_size_in_bytes))

    def _check(self, timeout: float | None) -> None:
        if self._is_closed:
            raise ValueError("The sender has been closed. Use the pair to get a new one.")
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")

    def close(self) -> None:
        self._is_closed = True
        self._bus._senders.discard(self)
        for sender in (self._primary, *self._backlog.values()):
            if sender is not None:
                _end(sender)
        self._backlog.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            self._bus._start(_end, sender)  # which may take its time

    @staticmethod
    def sleep(seconds: float) -> Any:
        time.sleep(seconds)
