"""What a command leads to: an answer, changes for the disk, and effects for others.

An effect goes to a client (a link), except `Load`, which asks the engine to fetch stored messages.
The engine holds replies and effects back until the changes that they rest on are durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tandembus.changes import Change
from tandembus.core.state import State
from tandembus.errors import Refused
from tandembus.model import Millis


class Delivery(NamedTuple):
    """One message handed out or shown. The body is read by its number; edits are laid over it."""

    sequence_number: int
    body: int
    token: bytes | None
    """16 bytes that settle the message; None for receive-and-delete and browse."""
    locked_until_ms: Millis
    delivery_count: int
    """Earlier deliveries that failed."""
    enqueued_ms: Millis
    state: State
    level: int
    session_id: str | None
    edits: bytes | None
    """`decode_edits` gives them; None: none."""


class Attached(NamedTuple):
    session_id: str | None
    locked_until_ms: Millis


class SessionCounts(NamedTuple):
    """Of a queue or subscription, now."""

    sessions: int
    """With a message in any state, a holder or a state."""
    available: int
    """With a message that waits, and without a holder."""
    locked: int
    with_state: int


class Deliver(NamedTuple):
    link: int
    deliveries: list[Delivery]


class SessionGranted(NamedTuple):
    """A link that waited for a session has one."""

    link: int
    session_id: str
    locked_until_ms: Millis


class LinkClosed(NamedTuple):
    """The broker ends a link: its session's lock ran out, no session came in time, its entity was
    deleted or disabled."""

    link: int
    error: Refused


class Load(NamedTuple):
    """Core needs stored messages to go on (rules of a topic, a forward): answer with `Loaded`."""

    entity: int
    bodies: dict[int, int]
    """Sequence number → body."""


Effect: TypeAlias = Deliver | SessionGranted | LinkClosed | Load


@dataclass(slots=True)
class Outcome:
    reply: object = None
    changes: list[Change] = field(default_factory=list)
    effects: Sequence[Effect] = ()
