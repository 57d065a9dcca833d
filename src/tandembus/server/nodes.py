"""`$cbs` and `$management` as links: a request comes in on one, its answer goes out on the other.

What is asked and answered is `cbs` and `management`; here requests find their handler, and answers
the link that the peer waits on: the one that reply-to names, also on another session of the
connection (the old SDK for Java has its two links on two sessions), else the newest of the session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Delivery as Unsettled
from tandembus.amqp.events import LinkFlow, MessageCut, MessageReceived
from tandembus.amqp.link import Link
from tandembus.amqp.session import Session
from tandembus.errors import MessageSizeExceededError, ServerBusyError, TandemError
from tandembus.limits import (
    KIB,
    MAX_MANAGEMENT_REQUEST,
    MAX_WAITING_ANSWERS,
    MAX_WAITING_ANSWERS_BYTES,
)
from tandembus.server import requests
from tandembus.server.requests import parse_head, token_reply
from tandembus.server.stored import Stream

if TYPE_CHECKING:
    from tandembus.server.gateway import Gateway

CBS: Final = "$cbs"
MANAGEMENT: Final = "$management"
_CREDIT: Final = 100
_HEAD: Final = 64 * KIB
"""What is kept of a request that is too large: enough for its properties."""
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    path: str | None
    """The entity that `$management` belongs to."""


class NodePairs:
    """All links of one connection to $cbs and $management."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._pairs: dict[tuple[Session, Node], NodePair] = {}
        self._named: dict[tuple[Session | None, Node, str], dict[Link, None]] = {}
        """Links for answers by what reply-to can call them, in one session and in any (None); in
        the order in which they came. There can be thousands."""
        self.waiting = 0
        """Answers that wait for credit or for a window, and their bytes."""
        self.waiting_bytes = 0

    def check_room(self, node: Node) -> None:
        """Raises if so many answers wait that no further request is served. Those of `$cbs` are
        small, and a link must not end because its token could not be renewed."""
        is_full = node.path is not None and self.waiting_bytes >= MAX_WAITING_ANSWERS_BYTES
        if self.waiting >= MAX_WAITING_ANSWERS or is_full:
            raise ServerBusyError(
                f"{self.waiting} answers of {self.waiting_bytes} bytes in all wait to be taken."
            )

    def add(self, link: Link, node: Node) -> None:
        key = link.session, node
        pair = self._pairs.get(key)
        if pair is None:
            pair = self._pairs[key] = NodePair(self._gateway, node, link.session, self)
        pair.add(link)

    def name(self, link: Link, node: Node) -> None:
        """Answers can go to this link."""
        for key in _keys(link, node):
            self._named.setdefault(key, {})[link] = None

    def unname(self, link: Link, node: Node) -> None:
        for key in _keys(link, node):
            links = self._named.get(key)
            if links is not None:
                links.pop(link, None)
                if not links:
                    del self._named[key]

    def named(self, session: Session, node: Node, reply_to: str) -> Link | None:
        """The oldest link of that name: of the session, else of another."""
        for where in (session, None):
            for link in self._named.get((where, node, reply_to), ()):
                return link
        return None

    def forget(self, session: Session, node: Node) -> None:
        self._pairs.pop((session, node), None)


def _keys(link: Link, node: Node) -> list[tuple[Session | None, Node, str]]:
    target = link.remote.target if link.remote is not None else None
    address = target.address if isinstance(target, p.Target) else None
    names = {link.name} if address is None else {link.name, address}
    return [(session, node, name) for session in (link.session, None) for name in names]


class NodePair:
    """The links of one session to one node."""

    def __init__(self, gateway: Gateway, node: Node, session: Session, pairs: NodePairs) -> None:
        self.gateway = gateway
        self.node = node
        self._session = session
        self._pairs = pairs
        self._answers_on: dict[Link, None] = {}
        self._requests_on: dict[Link, None] = {}
        self._waiting: deque[tuple[Link, bytes | Stream]] = deque()
        self._streams: list[tuple[Link, Stream]] = []
        """Answers with large messages, waiting or on their way."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(_AT_ONCE)
        """Of requests in transactions, which are served in their order."""

    def add(self, link: Link) -> None:
        link.context = NodeEnd(self, link)
        if link.is_sender:
            self._answers_on[link] = None
            self._pairs.name(link, self.node)
            link.accept()
        else:
            self._requests_on[link] = None
            link.keeps_head = _HEAD
            link.pauses = True
            if link.accept(max_message_size=MAX_MANAGEMENT_REQUEST):
                link.grant(_CREDIT)

    def request(self, event: MessageReceived) -> None:
        link = event.link
        if not event.settled:
            # At once, before it is worked on: Python's sender looks at every disposition of the
            # session, and could take a later one for its own (WIRE.md §6.1).
            link.settle([event.delivery_id], p.ACCEPTED)
        # For each, though there is credit enough: threads of azure-servicebus that share the link
        # read a frame at a time, and one that finds none holds up all others for 0.2 s. With one
        # more to read, its renewer of 300 locks takes 2 s instead of 12, and it has 10.
        link.grant(_CREDIT)
        self.gateway.hold()
        task = asyncio.get_running_loop().create_task(self._serve(event.payload, event.state))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cut(self, event: MessageCut) -> None:
        """A request that is too large: it is answered, and its link goes on."""
        link = event.link
        if not event.settled:
            link.settle([event.delivery_id], p.ACCEPTED)
        link.grant(_CREDIT)
        error = MessageSizeExceededError(
            f"A request has at most {MAX_MANAGEMENT_REQUEST} bytes; this one has more."
        )
        text = self.gateway.error_of(error).description or ""
        self.gateway.spoil(event.state, error)
        try:
            self._pairs.check_room(self.node)
            request = parse_head(event.head)
        except TandemError as unreadable:  # not even who asks can be read
            self.gateway.error_of(unreadable)
            return
        if self.node.path is None:
            answer: bytes | Stream = token_reply(request, error.status, text)
        else:
            answer = requests.reply(request, error.status, text, condition=error.condition)
        self._answer(answer, request.reply_to)

    async def _serve(self, payload: bytes, state: p.DeliveryState | None) -> None:
        if state is not None:
            # What comes behind it waits, also for one of a few places: it can be the discharge.
            async with self._places:
                self.gateway.release()
                await self._answer_to(payload, state)
            return
        self.gateway.release()
        if len(self._tasks) > _AT_ONCE:
            # Many at once are served in turn: a hundred pages of 250 messages are a second's work.
            await self.gateway.turns.turn()
        await self._answer_to(payload, state)

    async def _answer_to(self, payload: bytes, state: p.DeliveryState | None) -> None:
        try:
            self._pairs.check_room(self.node)
        except TandemError as busy:
            self.gateway.error_of(busy)  # for the log
            self.gateway.spoil(state, busy)
            return
        reply, reply_to = await self.gateway.answer(self.node, payload, state)
        if reply is not None:
            self._answer(reply, reply_to)
            self.gateway.write_soon()

    def _answer(self, reply: bytes | Stream, reply_to: str | None) -> None:
        """To the link that reply-to names, else to the newest of this session."""
        link = None
        if reply_to is not None:
            link = self._pairs.named(self._session, self.node, reply_to)
        if link is None:
            link = next(reversed(self._answers_on), None)
        if link is not None:
            end: NodeEnd = link.context
            end.pair.send(link, reply)
        elif isinstance(reply, Stream):
            reply.close()

    def send(self, link: Link, reply: bytes | Stream) -> None:
        """An answer on a link of this pair, as soon as the peer takes it."""
        if isinstance(reply, Stream):
            self._streams = [(on, stream) for on, stream in self._streams if stream.is_open]
            self._streams.append((link, reply))
        if _is_taken(link):
            _deliver(link, reply)
        else:
            self._waiting.append((link, reply))
            self._count(reply, 1)

    def go_on(self) -> None:
        """Send what waits, as far as the peer takes it."""
        if not self._waiting:
            return
        kept: deque[tuple[Link, bytes | Stream]] = deque()
        for waiting, reply in self._waiting:
            if _is_taken(waiting):
                self._count(reply, -1)
                _deliver(waiting, reply)
            else:
                kept.append((waiting, reply))
        self._waiting = kept
        self.gateway.write_soon()

    def flow(self, link: Link, is_drain: bool) -> None:
        self.go_on()
        if is_drain:
            link.drained()
        self.gateway.write_soon()

    def _count(self, reply: bytes | Stream, more: int) -> None:
        self._pairs.waiting += more
        if not isinstance(reply, Stream):
            self._pairs.waiting_bytes += more * len(reply)

    def gone(self, link: Link) -> None:
        for on, stream in self._streams:
            if on is link:
                stream.close()
        self._streams = [(on, stream) for on, stream in self._streams if on is not link]
        for on, reply in self._waiting:
            if on is link:
                self._count(reply, -1)
        self._waiting = deque(it for it in self._waiting if it[0] is not link)
        self._requests_on.pop(link, None)
        if link in self._answers_on:
            del self._answers_on[link]
            self._pairs.unname(link, self.node)
        if not self._answers_on and not self._requests_on:
            for task in self._tasks:
                task.cancel()
            self._pairs.forget(self._session, self.node)


def _is_taken(link: Link) -> bool:
    return link.credit > 0 and not link.session.is_blocked


def _deliver(link: Link, reply: bytes | Stream) -> None:
    if isinstance(reply, Stream):
        link.deliver_streamed(b"", reply, settled=True)
    else:
        link.deliver(b"", [reply], settled=True)


class NodeEnd:
    """What the gateway calls for one of the links."""

    __slots__ = ("_link", "pair")

    def __init__(self, pair: NodePair, link: Link) -> None:
        self.pair = pair
        self._link = link

    def on_messages(self, events: list[MessageReceived]) -> None:
        for event in events:
            self.pair.request(event)

    def on_cut(self, event: MessageCut) -> None:
        self.pair.cut(event)

    def on_flow(self, event: LinkFlow) -> None:
        if self._link.is_sender:
            self.pair.flow(self._link, event.drain)

    def on_dispositions(
        self, deliveries: list[Unsettled], state: p.DeliveryState | None, is_settled: bool
    ) -> None:
        """Answers are settled as they are sent."""

    def on_gone(self) -> None:
        self.pair.gone(self._link)
