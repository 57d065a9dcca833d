"""A request to `$management` on its way: what it asks, who asks, and what it needs of the broker.

Here live the values that every operation is given; what the operations do is `management` and
`beyond`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from tandembus import limits
from tandembus.amqp.performatives import DeliveryState
from tandembus.core.access import Claims
from tandembus.core.commands import Command
from tandembus.core.effects import Delivery
from tandembus.core.namespace import Namespace
from tandembus.core.queue import Queue
from tandembus.errors import MessageNotFoundError, TandemError
from tandembus.model import NEVER, LargePayload, Message, Millis, Payload
from tandembus.server.requests import Arguments, Request, reply
from tandembus.server.stored import Stream

_NO_LINK: Final = 0
"""Links are numbered from 1: this one holds no session."""


class Broker(Protocol):
    """What the operations need of the broker and of the connection that asks."""

    @property
    def namespace(self) -> Namespace:
        """To be looked at only."""
        ...

    async def execute(self, command: Command, claims: Claims) -> Any:
        """The command's answer, once it is durable; Refused if it, or the claims, are wrong."""
        ...

    def render(self, path: str, delivery: Delivery, *, is_whole: bool = True) -> bytes | Stream:
        """The delivery as an encoded message, with its state; locked or not is said by the delivery
        itself (`token`). A large one is read when it is sent. KeyError if its body is gone."""
        ...

    def stored(self, numbers: Sequence[int]) -> dict[int, Payload]:
        """Messages as they are stored, by the numbers of their bodies; without those that are
        gone."""
        ...

    def stream_of(self, body: int, payload: LargePayload, head: Sequence[bytes]) -> Stream:
        """A stored large message, with another head."""
        ...

    def incoming(self, payload: bytes, message_format: int) -> list[Message]:
        """The messages that an encoded one, or a batch, holds. Refused or ProtocolError."""
        ...

    def link_named(self, name: str) -> int | None:
        """The receiving link of that name of the connection that asks."""
        ...

    def transaction_of(self, state: DeliveryState | None) -> int | None:
        """The open transaction that the state of a transfer names. Refused if there is none."""
        ...

    def spoil(self, state: DeliveryState | None, refusal: TandemError) -> None:
        """What the state names, if it names a transaction, can only be rolled back."""
        ...

    def sender_of(self, path: str, claims: Claims) -> str:
        """Who sends, for the rates."""
        ...

    def refused(self, condition: str) -> None:
        """For whoever counts what is refused."""
        ...

    def random_bits(self, count: int) -> int: ...

    def now_ms(self) -> Millis: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way."""

    request: Request
    path: str
    """The entity whose node was asked."""
    claims: Claims
    broker: Broker
    transaction: int | None
    arguments: Arguments

    async def execute(self, command: Command) -> Any:
        return await self.broker.execute(command, self.claims)

    def ok(self, body: Mapping[str, object] | None = None) -> bytes | Stream:
        return reply(self.request, 200, "OK", body or {})

    def nothing(self, condition: str | None = None) -> bytes | Stream:
        """An empty result is a success without a body."""
        return reply(self.request, 204, "NoContent", condition=condition)

    @property
    def link(self) -> int:
        """The receiving link that the request is about."""
        name = self.request.associated_link_name
        link = None if name is None else self.broker.link_named(name)
        return _NO_LINK if link is None else link

    def tokens(self) -> list[bytes]:
        uuids = self.arguments.uuids("lock-tokens", limits.MAX_UNSETTLED)
        # A delivery tag is the .NET form of the GUID that clients see (WIRE.md §5.4).
        return [uuid.bytes_le for uuid in uuids]

    def numbers(self) -> list[int]:
        numbers = self.arguments.integers("sequence-numbers", limits.MAX_REQUEST_MESSAGES)
        for number in numbers:
            if number < 0:
                raise MessageNotFoundError(number)
        return numbers


Operation: TypeAlias = Callable[[Call], Awaitable[bytes | Stream]]


# --- pages ----------------------------------------------------------------------------------------


def page_bytes(queue: Queue) -> int:
    """A page is as large as the largest message, but not beyond a batch; clients ask for the next
    one."""
    return min(largest_message(queue), limits.MAX_BATCH_BYTES)


def largest_message(queue: Queue) -> int:
    """What came into a subscription or a dead-letter queue fitted the entity that it belongs to."""
    while queue.max_message_bytes == NEVER and queue.owner is not None:
        queue = queue.owner
    return queue.max_message_bytes
