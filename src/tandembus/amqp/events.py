"""What a connection reports: the events that `receive_data` and `tick` return.

Here live only values. What makes them is in `connection`, `session` and `link`; what they cause in
a broker is the gateway's matter. An event never needs an answer within the call that returned it.

The rule: few, and shaped for a broker. What has one right answer (open, begin, echo, detach, end,
close) has been answered already; only `LinkAttached`, `LinkFlow` with drain, `MessageReceived` and
`Dispositions` wait for a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tandembus.amqp.performatives import DeliveryState, Error, Open

if TYPE_CHECKING:
    from tandembus.amqp.link import Link
    from tandembus.amqp.session import Session


@dataclass(frozen=True, slots=True)
class Authenticated:
    """SASL is done. `username` is what PLAIN proved; None for the other mechanisms."""

    mechanism: str
    username: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer's open came; both ends are open now."""

    open: Open


@dataclass(frozen=True, slots=True)
class SessionBegun:
    session: Session


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """A peer asks for a link (answer with `link.accept` or `link.refuse`, now or later), or has
    granted the one that we asked for. `link.remote` is the attach as it came."""

    link: Link


@dataclass(frozen=True, slots=True)
class LinkFlow:
    """Credit of a link on which we send has changed; or, on one on which we receive, the drain that
    we asked for is over. An echo has been answered; a drain wants `link.drained()`."""

    link: Link
    credit: int
    drain: bool
    echo: bool


class MessageReceived(NamedTuple):
    """One whole message, however many frames it came in. If it is not settled, `link.settle` has to
    be called for `delivery_id`. `state` is a transactional state, or None."""

    link: Link
    delivery_id: int
    tag: bytes
    payload: bytes
    message_format: int
    settled: bool
    state: DeliveryState | None


class MessagePart(NamedTuple):
    """The next bytes of a message that goes on, where the link passes such on (`Link.part_bytes`).
    The rest comes as a `MessageReceived`, unless `MessageAborted` says that there is none."""

    link: Link
    payload: bytes


class MessageAborted(NamedTuple):
    """The message whose parts were passed on does not go on: it is too large, or was aborted."""

    link: Link


class MessageCut(NamedTuple):
    """A message that is larger than its link takes, where the link keeps the beginning of such a
    one (`Link.keeps_head`): who asked can be answered. If it is not settled, `link.settle` has to
    be called for `delivery_id`."""

    link: Link
    delivery_id: int
    head: bytes
    settled: bool
    state: DeliveryState | None


class MessageRefused(NamedTuple):
    """A message that was part of something more (`state`: a transaction) has no effect: the link
    refused it, and told its sender; or its link or session has ended."""

    state: DeliveryState
    error: Error = Error("amqp:link:detach-forced", "A message came on a link that had ended.")


class Delivery(NamedTuple):
    """An unsettled delivery of a session."""

    id: int
    link: Link
    tag: bytes


class Dispositions(NamedTuple):
    """The peer's decision on deliveries of a session.

    `as_receiver`: the peer received them from us, `deliveries` are ours. Those not `settled` wait
    for our `session.settle`; one that was decided before, or never was, is not among them, so that
    `deliveries` can be empty: `first` and `last` are the range as the peer named it.
    """

    session: Session
    deliveries: list[Delivery]
    state: DeliveryState | None
    settled: bool
    as_receiver: bool
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The peer takes transfers again, and what waited in the session has been written."""

    session: Session


@dataclass(frozen=True, slots=True)
class LinkDetached:
    """A link is over; its detach has been answered. Exactly once for each link, except where the
    session or the connection ends first. `by_peer` is False if it broke a rule and we ended it."""

    link: Link
    error: Error | None
    closed: bool
    by_peer: bool


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session is over, and with it its `links`."""

    session: Session
    links: tuple[Link, ...]
    error: Error | None
    by_peer: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is over, and all in it. Write what `data_to_send` has left, then hang up."""

    error: Error | None
    by_peer: bool


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """An empty frame: the peer is alive."""


HEARTBEAT = Heartbeat()

Event: TypeAlias = (
    Authenticated
    | Opened
    | SessionBegun
    | LinkAttached
    | LinkFlow
    | MessageReceived
    | MessagePart
    | MessageAborted
    | MessageCut
    | MessageRefused
    | Dispositions
    | WindowOpened
    | LinkDetached
    | SessionEnded
    | Closed
    | Heartbeat
)
