"""What a session has not written yet: messages that wait for the window, and dispositions that wait
for their neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandembus.amqp.performatives import DeliveryState
from tandembus.amqp.types import Buffer

if TYPE_CHECKING:
    from tandembus.amqp.link import Link


class Waiting:
    """A message, or the rest of one, for which the window was closed."""

    __slots__ = ("at", "delivery_id", "format", "link", "payload", "settled", "state", "tag")

    def __init__(
        self,
        link: Link,
        tag: bytes,
        payload: Buffer,
        settled: bool,
        message_format: int,
        state: DeliveryState | None,
    ) -> None:
        self.link = link
        self.tag = tag
        self.payload = payload
        self.settled = settled
        self.format = message_format
        self.state = state
        self.at = 0
        self.delivery_id: int | None = None


class Pending:
    """Deliveries whose disposition is not written yet, because their neighbours may follow."""

    __slots__ = ("ids", "outcome", "role", "settled")

    def __init__(self, role: bool, settled: bool, outcome: DeliveryState | None) -> None:
        self.role = role
        self.settled = settled
        self.outcome = outcome
        self.ids: list[int] = []
