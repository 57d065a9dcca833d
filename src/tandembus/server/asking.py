"""What an operation of `$management` needs of the connection that asks (`calls.Broker`).

The operations themselves are `management`, `beyond` and `positions`. Here they find the namespace,
stored messages as this peer may see them, and the links and transactions of the same connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tandembus.amqp.message import without_body
from tandembus.amqp.performatives import DeliveryState
from tandembus.core.access import Claims
from tandembus.core.commands import Command
from tandembus.core.effects import Delivery
from tandembus.core.namespace import Namespace
from tandembus.errors import TandemError
from tandembus.model import LargePayload, Message, Millis, Payload
from tandembus.server.incoming import messages_of
from tandembus.server.outgoing import render
from tandembus.server.outlet import Outlet
from tandembus.server.stored import PieceReader, Stream

if TYPE_CHECKING:
    from tandembus.server.gateway import Gateway


class Asking:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def namespace(self) -> Namespace:
        return self._gateway.namespace

    async def execute(self, command: Command, claims: Claims) -> Any:
        return await self._gateway.broker.execute(command, claims)

    def render(self, path: str, delivery: Delivery, *, is_whole: bool = True) -> bytes | Stream:
        queue = self.namespace.find(path)
        (body,) = self._gateway.broker.engine.engine.bodies((delivery.body,))
        large = body if isinstance(body, LargePayload) else None
        parts = render(
            body.head if isinstance(body, LargePayload) else body,
            delivery,
            shows_state=True,
            entity_ttl_ms=queue.ttl_ms,
            partition_id=delivery.sequence_number >> 48 if len(queue.parts) > 1 else None,
            reads_all_types=self._gateway.reads_all_types,
        )
        if large is not None and is_whole:
            return self.stream_of(delivery.body, large, parts)
        message = b"".join(parts)
        return message if is_whole or large is not None else without_body(message)

    def stored(self, numbers: Sequence[int]) -> dict[int, Payload]:
        return self._gateway.broker.engine.engine.stored(numbers)

    def stream_of(self, body: int, payload: LargePayload, head: Sequence[bytes]) -> Stream:
        return Stream([*head, PieceReader(self._gateway.broker.engine.engine, body, payload)])

    def incoming(self, payload: bytes, message_format: int) -> list[Message]:
        return [*messages_of(payload, message_format, self.random_bits)]

    def link_named(self, name: str) -> int | None:
        for session in self._gateway.connection.sessions:
            for link in session.links.values():
                if link.name == name and isinstance(link.context, Outlet):
                    return link.context.number
        return None

    def transaction_of(self, state: DeliveryState | None) -> int | None:
        return self._gateway.transaction_of(state)

    def spoil(self, state: DeliveryState | None, refusal: TandemError) -> None:
        self._gateway.spoil(state, refusal)

    def sender_of(self, path: str, claims: Claims) -> str:
        return self._gateway.sender_of(path, claims)

    def refused(self, condition: str) -> None:
        self._gateway.refused(condition)

    def random_bits(self, count: int) -> int:
        return self._gateway.random_bits(count)

    def now_ms(self) -> Millis:
        return self._gateway.now_ms()
