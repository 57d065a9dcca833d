"""A link that sends, without I/O.

The rules: what is not answered yet is bounded, in messages and in bytes, whoever sends and however
fast (T3); every message gets exactly one outcome: accepted, an error, or unknown, when the link
went before the answer came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Delivery, MessageReceived
from tandembus.client.conversation import WRITE_BYTES
from tandembus.client.failures import failure, refusal, unknown
from tandembus.client.messages import SINGLE, Sendable, TooLarge, batches, encoded, too_large
from tandembus.client.pending import Pending
from tandembus.errors import ArgumentError, ConnectionLostError, RemoteError, TandemError
from tandembus.limits import MAX_BATCH_BYTES, MIB
from tandembus.model import Symbol

if TYPE_CHECKING:
    from tandembus.client.conversation import Conversation

MAX_IN_FLIGHT: Final = 2_000
"""Messages of a link that wait for their outcome, unless the user sets it."""
MAX_IN_FLIGHT_BYTES: Final = 8 * MIB
_BATCH_SIZE: Final = Symbol("com.microsoft:max-message-batch-size")

Done = Callable[[TandemError | None], None]
"""Called once with a message's outcome: accepted, or why not."""


@dataclass(slots=True)
class SendReport:
    """What has become of the messages of one `send_all`."""

    accepted: int = 0
    failures: list[tuple[int, TandemError]] = field(default_factory=list)
    """Which one (counted from 0), and why. `ConnectionLostError`: it may be there, or not."""
    is_complete: bool = True
    """False: the link went, and what came after the last failure was not taken from the source."""

    def check(self) -> SendReport:
        """This report, if all was accepted; raises the first error otherwise."""
        if self.failures:
            raise min(self.failures, key=lambda each: each[0])[1]
        return self


class SenderLink:
    """Use `open`."""

    def __init__(
        self,
        conversation: Conversation,
        path: str,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
    ) -> None:
        if max_in_flight < 1 or max_in_flight_bytes < 1:
            raise ArgumentError("At least one message, and one byte, must be allowed in flight.")
        self.path = path
        self.gone: TandemError | None = None
        """Why nothing can be sent any more."""
        self.in_flight = 0
        self.in_flight_bytes = 0
        self._conversation = conversation
        self._most = max_in_flight
        self._most_bytes = max_in_flight_bytes
        self._opened: Pending[None] = Pending()
        self._sent: dict[bytes, tuple[int, int, Done]] = {}
        self._waiting: deque[Pending[None]] = deque()
        self._idle: list[Pending[None]] = []

    async def open(self) -> SenderLink:
        conversation = self._conversation
        await conversation.authorize(self.path)
        name = conversation.new_name(self.path)
        self._link = conversation.session.attach(
            name, is_sender=True, source=p.Source(name), target=p.Target(self.path)
        )
        conversation.adopt(self._link, self)
        what = f"Opening a sender to {self.path}"
        try:
            await conversation.within(self._opened, conversation.timeout_ms, what)
        except BaseException:
            self._link.detach()
            raise
        remote = self._link.remote
        assert remote is not None
        self.max_message_bytes = self._link.max_message_size
        said = (remote.properties or {}).get(_BATCH_SIZE)
        self.max_batch_bytes = min(
            said if isinstance(said, int) and said > 0 else self.max_message_bytes, MAX_BATCH_BYTES
        )
        return self

    # --- sending ----------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether one more may be sent now."""
        return (
            self._link.credit > 0
            and self.in_flight < self._most
            and self.in_flight_bytes < self._most_bytes
        )

    async def room(self) -> None:
        """Wait until `has_room`; first come, first served. Raises why there will be none."""
        if self.gone is not None:
            raise self.gone
        if self._waiting or not self.has_room:
            turn: Pending[None] = Pending()
            self._waiting.append(turn)
            conversation = self._conversation
            try:
                await conversation.within(turn, conversation.timeout_ms, "Waiting to send")
            finally:
                if not turn.is_done:
                    self._waiting.remove(turn)

    def post(self, payload: bytes, message_format: int, count: int, done: Done) -> None:
        """Send now; there must be room. `done` hears the outcome, and never before this returns."""
        tag = self._conversation.new_tag()
        self._link.deliver(tag, [payload], message_format=message_format)
        size = len(payload)
        self._sent[tag] = (count, size, done)
        self.in_flight += count
        self.in_flight_bytes += size

    async def start(self, message: Sendable) -> Pending[None]:
        """Send one, as soon as there is room; its outcome comes later."""
        payload = self._checked(message)
        await self.room()
        return self._started(payload)

    def start_now(self, message: Sendable) -> Pending[None] | None:
        """The same, or None if it has to wait for room."""
        payload = self._checked(message)
        if self.gone is not None or self._waiting or not self.has_room:
            return None
        return self._started(payload)

    def _checked(self, message: Sendable) -> bytes:
        payload = encoded(message)
        if len(payload) > self.max_message_bytes:
            raise too_large(len(payload), self.max_message_bytes)
        return payload

    def _started(self, payload: bytes) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.post(payload, SINGLE, 1, partial(_decide, pending))
        return pending

    async def send(self, message: Sendable) -> None:
        """Send one and wait for its outcome. Raises why it was refused, or ConnectionLostError."""
        pending = await self.start(message)
        timeout_ms = self._conversation.timeout_ms
        await self._conversation.within(pending, timeout_ms, f"Sending to {self.path}")

    async def send_all(self, messages: Iterable[Sendable]) -> SendReport:
        """Send many, in batches, with as much in flight as the bounds allow."""
        report = SendReport()
        queued = 0
        for batch in batches(messages, self.max_batch_bytes, self.max_message_bytes):
            if isinstance(batch, TooLarge):
                report.failures.append((batch.first, batch.error))
                continue
            try:
                await self.room()
            except TandemError as error:
                _note(report, batch.first, batch.count, error)
                report.is_complete = False
                break
            done = partial(_note, report, batch.first, batch.count)
            self.post(batch.payload, batch.message_format, batch.count, done)
            queued += len(batch.payload)
            if queued >= WRITE_BYTES:
                queued = 0
                await self._conversation.written()
        await self.settled()
        report.is_complete = report.is_complete and self.gone is None
        report.failures.sort(key=lambda each: each[0])
        return report

    async def settled(self) -> None:
        """Wait until nothing is in flight. What became of it, each `done` has heard."""
        if self._sent:
            idle: Pending[None] = Pending()
            self._idle.append(idle)
            timeout_ms = self._conversation.timeout_ms
            await self._conversation.within(idle, timeout_ms, f"Sending to {self.path}")

    async def close(self) -> None:
        """Detach, when all that is in flight has its outcome."""
        if self.gone is None:
            await self.settled()
            self._link.detach()
            self._end(ConnectionLostError("The sender is closed."))

    # --- what the conversation calls --------------------------------------------------------------

    def on_attached(self) -> None:
        self._opened.resolve(None)

    def on_flow(self) -> None:
        while self._waiting and self.has_room:
            self._waiting.popleft().resolve(None)

    def on_message(self, event: MessageReceived) -> None:
        """Nothing comes in here."""

    def on_dispositions(
        self, deliveries: list[Delivery], state: p.DeliveryState | None, is_settled: bool
    ) -> None:
        if not is_settled:  # it wants to hear that we have heard
            ids = [delivery.id for delivery in deliveries]
            self._link.settle(ids, state)
        error = None if state is p.ACCEPTED else _send_error(state)
        sent = self._sent
        for delivery in deliveries:
            found = sent.pop(delivery.tag, None)
            if found is not None:
                count, size, done = found
                self.in_flight -= count
                self.in_flight_bytes -= size
                done(error)
        if not sent:
            idle, self._idle = self._idle, []
            for pending in idle:
                pending.resolve(None)
        self.on_flow()

    def on_gone(self, error: p.Error | None) -> None:
        self.fail(failure(error, f"The link to {self.path}"))

    def fail(self, cause: TandemError) -> None:
        if self.gone is None:
            self._end(cause)

    def _end(self, cause: TandemError) -> None:
        self.gone = cause
        self._conversation.forget(self)
        self._opened.fail(cause)
        sent, self._sent = self._sent, {}
        self.in_flight = self.in_flight_bytes = 0
        for _, _, done in sent.values():
            done(unknown(cause))
        for pending in self._waiting:
            pending.fail(cause)
        self._waiting.clear()
        idle, self._idle = self._idle, []
        for pending in idle:
            pending.resolve(None)


def _decide(pending: Pending[None], error: TandemError | None) -> None:
    if error is None:
        pending.resolve(None)
    else:
        pending.fail(error)


def _note(report: SendReport, first: int, count: int, error: TandemError | None) -> None:
    if error is None:
        report.accepted += count
    else:
        report.failures += [(number, error) for number in range(first, first + count)]


def _send_error(state: p.DeliveryState | None) -> TandemError | None:
    match state:
        case p.Accepted():
            return None
        case p.Rejected(None):
            return RemoteError("amqp:rejected", "The message was rejected without a reason.")
        case p.Rejected(error):
            assert error is not None
            text = error.description or str(error.condition)
            return refusal(str(error.condition), text, error.info)
        case _:
            return ConnectionLostError(f"The broker has not decided on the message: {state}.")
