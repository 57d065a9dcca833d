"""What a session has not written yet: messages that wait for the window, and dispositions that wait
for their neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tandembus.amqp.fast import encode_transfer
from tandembus.amqp.performatives import Accepted, Declared, DeliveryState, TransactionalState
from tandembus.amqp.types import Buffer
from tandembus.limits import STREAM_BYTES

if TYPE_CHECKING:
    from tandembus.amqp.link import Link
    from tandembus.amqp.session import Session


class Streamed(Protocol):
    """A message that is not in memory: it is read as the peer takes it."""

    def __len__(self) -> int: ...

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from `at` on; asked for one behind the other."""
        ...


class Waiting:
    """A message, or the rest of one, for which the window was closed."""

    __slots__ = (
        "at", "delivery_id", "format", "link", "payload", "settled", "size", "source", "state",
        "tag",
    )  # fmt: skip

    def __init__(
        self,
        link: Link,
        tag: bytes,
        message: Buffer | Streamed,
        settled: bool,
        message_format: int,
        state: DeliveryState | None,
    ) -> None:
        self.link = link
        self.tag = tag
        is_there = isinstance(message, bytes | bytearray | memoryview)
        self.payload: Buffer = message if is_there else b""  # type: ignore[assignment]
        self.source: Streamed | None = None if is_there else message  # type: ignore[assignment]
        self.size = len(message)
        self.settled = settled
        self.format = message_format
        self.state = state
        self.at = 0
        self.delivery_id: int | None = None

    def opening(self, *, more: bool) -> bytes:
        """The performative of its next frame."""
        is_first = not self.at
        return encode_transfer(
            self.link.handle,
            self.delivery_id if is_first else None,
            self.tag if is_first else None,
            message_format=self.format if is_first else None,
            settled=self.settled,
            more=more,
            state=self.state,
        )


class Streaming:
    """Of a connection: how much waits to be written of messages that are not in memory, and the
    sessions that have more of them."""

    __slots__ = ("sessions", "written")

    def __init__(self) -> None:
        self.written = 0
        self.sessions: dict[Session, None] = {}
        """In the order in which they began to wait; there can be thousands."""

    def go_on(self) -> list[Session]:
        """To be called when the peer has taken what was written. The sessions that went on: who
        has still more stands behind the others then."""
        went_on: list[Session] = []
        while self.sessions and self.written < STREAM_BYTES:
            session = next(iter(self.sessions))
            del self.sessions[session]
            session.pump()
            went_on.append(session)
        return went_on


class Pending:
    """Deliveries whose disposition is not written yet, because their neighbours may follow."""

    __slots__ = ("ids", "outcome", "role", "settled")

    def __init__(self, role: bool, settled: bool, outcome: DeliveryState | None) -> None:
        self.role = role
        self.settled = settled
        self.outcome = outcome
        self.ids: list[int] = []


def rank(outcome: DeliveryState | None) -> int:
    """Which outcome is said of deliveries that share an id: the highest. Who has declared a
    transaction learns its id, and a refusal is never hidden."""
    match outcome:
        case Accepted():
            return 0
        case Declared() | TransactionalState(_, Accepted()):
            return 1
        case _:
            return 2
