"""The links of a connection on which its peer sends: messages in.

Each kind of link is a small class that turns events of the protocol into commands, and effects and
answers of the broker into frames. Messages out are `outlet`, requests and answers of `$cbs` and
`$management` are `nodes`, transactions `transactions`. No link waits: an answer comes back by a
call, and the gateway writes what has piled up once a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Delivery as Unsettled
from tandembus.amqp.events import LinkFlow, MessagePart, MessageReceived
from tandembus.amqp.link import Link
from tandembus.amqp.message import ParsedMessage
from tandembus.core import commands as c
from tandembus.core.effects import Effect, LinkClosed
from tandembus.errors import EntityNotFoundError, TandemError
from tandembus.model import Message, Symbol
from tandembus.names import split
from tandembus.server.arrival import Arrival
from tandembus.server.incoming import SINGLE, Intake, messages_of
from tandembus.server.logs import trace_of

if TYPE_CHECKING:
    from tandembus.server.gateway import Gateway

BATCH_SIZE: Final = Symbol("com.microsoft:max-message-batch-size")
DESTINATION: Final = Symbol("com.microsoft:transfer-destination-address")
_SEND_CREDIT: Final = 1_000


class Handler(Protocol):
    """What the gateway calls on the context of a link."""

    def on_messages(self, events: list[MessageReceived]) -> None: ...
    def on_flow(self, event: LinkFlow) -> None: ...
    def on_dispositions(
        self, deliveries: list[Unsettled], state: p.DeliveryState | None, is_settled: bool
    ) -> None: ...
    def on_gone(self) -> None: ...


class Inlet:
    """The peer sends to a queue or a topic."""

    def __init__(self, gateway: Gateway, link: Link, path: str, via: str | None = None) -> None:
        self.gateway = gateway
        self.link = link
        self.path = path
        self.via = via
        """The entity by way of which the messages are sent, if it is another one."""
        self.entity = split(path).entity
        """The queue or topic that all of it happens in."""
        self.number = gateway.broker.register(self)
        self.sender = gateway.sender_of(path, gateway.claims)
        self._intake = Intake(gateway.broker.clock.random_bits)
        self._arrival: Arrival | None = None
        """The large message whose last part has not come."""

    def hang_up(self) -> None:
        self.gateway.hang_up()

    def grant(self) -> None:
        """Let the peer send more, unless the disk cannot keep up."""
        if self.link.credit < _SEND_CREDIT // 2 and not self.gateway.broker.engine.is_congested:
            self.link.grant(_SEND_CREDIT)

    def on_part(self, event: MessagePart) -> None:
        """A message that is not whole goes to disk as it comes."""
        if self._arrival is None:
            self._arrival = Arrival(self.gateway.unfinished)
        self._arrival.take(event.payload)

    def on_aborted(self) -> None:
        """It does not become whole."""
        if self._arrival is not None:
            self._arrival.drop()
            self._arrival = None

    def _on_last_part(self, arrival: Arrival, event: MessageReceived) -> None:
        self._arrival = None
        _, delivery_id, _, payload, _, is_settled, state = event
        try:
            message = arrival.whole(payload)
            command = self._send_of([message], state)
        except TandemError as error:
            arrival.drop()
            self.gateway.spoil(state, error)
            self._done(delivery_id, is_settled, state, error)
            return
        done = partial(self._arrived, message, arrival, event)
        self.gateway.broker.submit(command, self.gateway.claims, done)

    def _send_of(self, messages: Sequence[Message], state: p.DeliveryState | None) -> c.Send:
        """The command that sends them, as a part of the transaction that the state names."""
        transaction = self.gateway.transaction_of(state)
        return c.Send(
            self.path,
            messages,
            self.number,
            transaction,
            sender=self.sender,
            via=self.via,
            is_batch=len(messages) > 1,
        )

    def _arrived(
        self, message: Message, arrival: Arrival, event: MessageReceived, reply: Any
    ) -> None:
        if isinstance(event.state, p.TransactionalState):
            if isinstance(reply, TandemError):
                arrival.drop()
            else:
                self.gateway.transactions.keep(event.state.txn_id, arrival)
            self._done(event.delivery_id, event.settled, event.state, reply)
        else:
            arrival.release()
            answer = reply if isinstance(reply, TandemError) else reply[0]
            self._row_done([message], [None if event.settled else event.delivery_id], [answer])

    def on_messages(self, events: list[MessageReceived]) -> None:
        """Messages that came together are one command, each for itself; a batch or a part of a
        transaction is a command of its own."""
        if self._arrival is not None:
            self._on_last_part(self._arrival, events[0])
            events = events[1:]
        take = self._intake.take
        row: list[ParsedMessage] = []
        ids: list[int | None] = []
        for event in events:
            _, delivery_id, _, payload, message_format, is_settled, state = event
            try:
                if message_format == SINGLE and state is None:
                    row.append(take(payload))
                    ids.append(None if is_settled else delivery_id)
                    continue
                self._send(row, ids)
                row, ids = [], []
                random_bits = self.gateway.random_bits
                self._send_batch(event, messages_of(payload, message_format, random_bits))
            except TandemError as error:
                self.gateway.spoil(state, error)
                self._done(delivery_id, is_settled, state, error)
        self._send(row, ids)

    def _send(self, row: list[ParsedMessage], ids: list[int | None]) -> None:
        if row:
            command = c.Send(
                self.path, row, self.number, each=True, sender=self.sender, via=self.via
            )
            done = partial(self._row_done, row, ids)
            self.gateway.broker.submit(command, self.gateway.claims, done)

    def _send_batch(self, event: MessageReceived, messages: list[ParsedMessage]) -> None:
        done = partial(self._done, event.delivery_id, event.settled, event.state)
        command = self._send_of(messages, event.state)
        self.gateway.broker.submit(command, self.gateway.claims, done)

    def _row_done(self, row: Sequence[Message], ids: list[int | None], reply: Any) -> None:
        if isinstance(reply, TandemError):
            reply = [reply] * len(ids)
        accepted: list[int] = []
        is_gone = False
        for message, delivery_id, answer in zip(row, ids, reply, strict=True):
            if type(answer) is not int:
                is_gone = is_gone or isinstance(answer, EntityNotFoundError)
                if delivery_id is not None:
                    error = self.gateway.error_of(answer, trace_of(message.properties))
                    self.link.settle([delivery_id], p.Rejected(error))
            elif delivery_id is not None:
                accepted.append(delivery_id)
        if accepted:
            self.link.settle(accepted, p.ACCEPTED)
        self._go_on(is_gone=is_gone)

    def _done(
        self, delivery_id: int, is_settled: bool, state: p.DeliveryState | None, reply: Any
    ) -> None:
        if not is_settled:
            outcome: p.DeliveryState = p.ACCEPTED
            if isinstance(reply, TandemError):
                outcome = p.Rejected(self.gateway.error_of(reply))
            elif isinstance(state, p.TransactionalState):
                outcome = p.TransactionalState(state.txn_id, p.ACCEPTED)
            self.link.settle([delivery_id], outcome)
        self._go_on(is_gone=isinstance(reply, EntityNotFoundError))

    def _go_on(self, *, is_gone: bool) -> None:
        """Messages have been answered. If the entity is gone, so is the link: after its answer,
        which is what azure-servicebus shows."""
        if is_gone:
            self.end(EntityNotFoundError(self.via or self.path))
        self.grant()
        self.gateway.write_soon()

    def on_flow(self, event: LinkFlow) -> None:
        """A sender tells its own credit; ours counts."""

    def on_dispositions(
        self, deliveries: list[Unsettled], state: p.DeliveryState | None, is_settled: bool
    ) -> None:
        """Nothing is sent on this link."""

    def on_effect(self, effect: Effect) -> None:
        if isinstance(effect, LinkClosed):
            self.end(effect.error)

    def end(self, error: TandemError) -> None:
        """Detach it, and keep nothing for it until the peer has answered."""
        self.on_aborted()
        self.link.detach(self.gateway.error_of(error))
        self.gateway.write_soon()

    def on_gone(self) -> None:
        self.on_aborted()
        self.gateway.broker.unregister(self.number)
