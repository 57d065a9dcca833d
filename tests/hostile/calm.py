"""The client that behaves: a steady few messages a second, and how long each took.

Open loop: a message goes out when it is due, not when the one before is done, so that a stall of
the broker shows in every message that falls into it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Closed, Dispositions, Event, LinkDetached, MessageReceived
from tandembus.amqp.link import Link
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.amqp.performatives import ACCEPTED, Accepted, Source, Target
from tandembus.testing.process import ROOT

from . import wire

QUEUE = "calm"
CREDIT = 200
_LATE_S = 0.5


@dataclass(slots=True)
class Latencies:
    """Seconds, of one span of time."""

    accepted: list[float] = field(default_factory=list)
    received: list[float] = field(default_factory=list)

    def p99_ms(self) -> float:
        """The worse of the two ways; infinite if nothing came through."""
        return max(percentile(self.accepted, 0.99), percentile(self.received, 0.99)) * 1_000

    def p50_ms(self) -> float:
        return max(percentile(self.accepted, 0.5), percentile(self.received, 0.5)) * 1_000


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("inf")


class Calm:
    """Use `connect`; then `run` in a task."""

    def __init__(self, target: wire.Target, per_second: float) -> None:
        self._target = target
        self._interval = 1 / per_second
        self._connection = Connection(
            Role.CLIENT, container_id="calm", username=ROOT, password=target.key
        )
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._sender: Link
        self._receiver: Link
        self._sent: dict[int, float] = {}
        """By delivery id: not accepted yet."""
        self._due: dict[str, float] = {}
        """By message id: not received yet."""
        self.count = 0
        self.duplicates = 0
        self.trouble: str | None = None
        self.stood_still_s = 0.0
        """How late this client itself was at most: then it is the machine that was measured."""
        self._into = Latencies()
        self._is_stopping = False

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            self._target.host, self._target.port
        )
        self._connection.open()
        session = self._connection.begin()
        self._sender = session.attach(
            "calm-out", is_sender=True, source=Source("here"), target=Target(QUEUE)
        )
        self._receiver = session.attach(
            "calm-in", is_sender=False, source=Source(QUEUE), target=Target("here")
        )
        while not self._sender.capacity or self._receiver.remote is None:
            await self._exchange()
        self._receiver.grant(CREDIT)
        self._write()

    async def run(self) -> None:
        """Until `stop`; then what is under way comes home."""
        reading = asyncio.ensure_future(self._read())
        reading.add_done_callback(self._on_end_of_reading)
        due = time.perf_counter()
        while not self._is_stopping and self.trouble is None:
            self._send(due)
            due += self._interval
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            late = time.perf_counter() - due
            self.stood_still_s = max(self.stood_still_s, late)
            due += max(0.0, late - _LATE_S)  # not all at once what could not be sent meanwhile
        end = time.perf_counter() + 30
        while (self._sent or self._due) and self.trouble is None and time.perf_counter() < end:
            await asyncio.sleep(0.01)
        reading.cancel()
        self._writer.close()

    def stop(self) -> None:
        self._is_stopping = True

    @property
    def missing(self) -> int:
        """Sent, and not accepted or not received."""
        return len(self._sent) + len(self._due)

    @contextmanager
    def measuring(self) -> Iterator[Latencies]:
        """What falls into the `with` is counted there."""
        self._into = Latencies()
        yield self._into
        # What has not come back by now has waited at least so long.
        now = time.perf_counter()
        self._into.accepted += [now - due for due in self._sent.values()]
        self._into.received += [now - due for due in self._due.values()]
        self._into = Latencies()

    def _send(self, due: float) -> None:
        self.count += 1
        name = f"calm-{self.count}"
        if not self._sender.capacity:
            self.trouble = "the broker gave no more credit"
            return
        payload = encode_message(body=b"x" * 100, message_id=name)
        delivery = self._sender.deliver(self.count.to_bytes(4, "big"), [payload])
        assert delivery is not None
        self._sent[delivery] = self._due[name] = due
        self._write()

    async def _read(self) -> None:
        while self.trouble is None:
            try:
                await self._exchange()
            except OSError as error:
                self.trouble = f"the broker hung up: {error}"

    def _on_end_of_reading(self, reading: asyncio.Future[None]) -> None:
        if not reading.cancelled() and (error := reading.exception()) is not None:
            self.trouble = f"the calm client itself failed: {error!r}"

    async def _exchange(self) -> None:
        self._write()
        data = await self._reader.read(65_536)
        if not data:
            raise ConnectionError("end of stream")
        now = time.perf_counter()
        for event in self._connection.receive_data(data):
            self._on_event(event, now)
        self._write()

    def _on_event(self, event: Event, now: float) -> None:
        match event:
            case Dispositions(state=state) if not isinstance(state, Accepted):
                self.trouble = f"a message of the calm client was not accepted: {state}"
            case Dispositions(deliveries=deliveries, as_receiver=True):
                for delivery in deliveries:
                    due = self._sent.pop(delivery.id, None)
                    if due is not None:
                        self._into.accepted.append(now - due)
            case MessageReceived():
                name = str(AmqpMessage(event.payload).message_id)
                due = self._due.pop(name, None)
                if due is None:
                    self.duplicates += 1
                else:
                    self._into.received.append(now - due)
                self._receiver.settle([event.delivery_id], ACCEPTED)
                if self._receiver.credit < CREDIT // 2:
                    self._receiver.grant(CREDIT)
            case LinkDetached(error=error) | Closed(error=error):
                self.trouble = f"the broker ended the calm client: {error}"

    def _write(self) -> None:
        self._writer.writelines(self._connection.data_to_send())
