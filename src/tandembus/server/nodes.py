"""`$cbs` and `$management` as links: a request comes in on one, its answer goes out on the other.

What is asked and answered is `cbs` and `management`; here requests find their handler, and answers
the link of the same session that the peer waits on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Delivery as Unsettled
from tandembus.amqp.events import LinkFlow, MessageCut, MessageReceived
from tandembus.amqp.link import Link
from tandembus.limits import KIB, MAX_MANAGEMENT_REQUEST
from tandembus.server.stored import Stream

if TYPE_CHECKING:
    from tandembus.server.gateway import Gateway

CBS: Final = "$cbs"
_CREDIT: Final = 100
_HEAD: Final = 64 * KIB
"""What is kept of a request that is too large: enough for its properties."""
_AT_ONCE: Final = 8
_MOST_WAITING: Final = 1_000
"""Answers for a peer that gives no credit for them; the rest are dropped, and time out there."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    path: str | None
    """The entity that `$management` belongs to."""


class NodePair:
    """The links of one session to one node."""

    def __init__(self, gateway: Gateway, node: Node, forget: Callable[[], object]) -> None:
        self.gateway = gateway
        self.node = node
        self._forget = forget
        self._answers_on: list[Link] = []
        self._requests_on: list[Link] = []
        self._waiting: deque[tuple[Link, bytes | Stream]] = deque()
        self._rows: list[tuple[Link, Stream]] = []
        """Answers with large messages, waiting or on their way."""
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, link: Link) -> None:
        link.context = NodeEnd(self, link)
        if link.is_sender:
            self._answers_on.append(link)
            link.accept()
        else:
            self._requests_on.append(link)
            link.keeps_head = _HEAD
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
        task = asyncio.get_running_loop().create_task(self._serve(event.payload, event.state))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cut(self, event: MessageCut) -> None:
        """A request that is too large: it is answered, and its link goes on."""
        link = event.link
        if not event.settled:
            link.settle([event.delivery_id], p.ACCEPTED)
        link.grant(_CREDIT)
        reply, reply_to = self.gateway.answer_cut(self.node, event.head)
        if reply is not None:
            self._send(reply, reply_to)

    async def _serve(self, payload: bytes, state: p.DeliveryState | None) -> None:
        if len(self._tasks) > _AT_ONCE and state is None:
            # Many at once are served in turn: a hundred pages of 250 messages are a second's work.
            await self.gateway.turns.turn()
        reply, reply_to = await self.gateway.answer(self.node, payload, state)
        if reply is not None:
            self._send(reply, reply_to)
            self.gateway.write_soon()

    def _send(self, reply: bytes | Stream, reply_to: str | None) -> None:
        link = self._answering(reply_to)
        has_room = link is not None and (link.credit > 0 or len(self._waiting) < _MOST_WAITING)
        if isinstance(reply, Stream):
            self._rows = [(on, row) for on, row in self._rows if row.is_open]
            if link is None or not has_room:
                reply.close()
            else:
                self._rows.append((link, reply))
        if link is None or not has_room:
            return
        if link.credit > 0:
            _deliver(link, reply)
        else:
            self._waiting.append((link, reply))

    def _answering(self, reply_to: str | None) -> Link | None:
        """The link that the answer goes to: the one that reply-to names, else the newest."""
        for link in self._answers_on:
            target = link.remote.target if link.remote is not None else None
            address = target.address if isinstance(target, p.Target) else None
            if reply_to is not None and reply_to in (address, link.name):
                return link
        return self._answers_on[-1] if self._answers_on else None

    def flow(self, link: Link, is_drain: bool) -> None:
        kept: deque[tuple[Link, bytes | Stream]] = deque()
        for waiting, reply in self._waiting:
            if waiting is link and link.credit > 0:
                _deliver(link, reply)
            else:
                kept.append((waiting, reply))
        self._waiting = kept
        if is_drain:
            link.drained()
        self.gateway.write_soon()

    def gone(self, link: Link) -> None:
        for on, row in self._rows:
            if on is link:
                row.close()
        for links in (self._answers_on, self._requests_on):
            if link in links:
                links.remove(link)
        if not self._answers_on and not self._requests_on:
            for task in self._tasks:
                task.cancel()
            self._forget()


def _deliver(link: Link, reply: bytes | Stream) -> None:
    if isinstance(reply, Stream):
        link.deliver_streamed(b"", reply, settled=True)
    else:
        link.deliver(b"", [reply], settled=True)


class NodeEnd:
    """What the gateway calls for one of the links."""

    __slots__ = ("_link", "_pair")

    def __init__(self, pair: NodePair, link: Link) -> None:
        self._pair = pair
        self._link = link

    def on_messages(self, events: list[MessageReceived]) -> None:
        for event in events:
            self._on_message(event)

    def _on_message(self, event: MessageReceived) -> None:
        self._pair.request(event)

    def on_cut(self, event: MessageCut) -> None:
        self._pair.cut(event)

    def on_flow(self, event: LinkFlow) -> None:
        if self._link.is_sender:
            self._pair.flow(self._link, event.drain)

    def on_dispositions(
        self, deliveries: list[Unsettled], state: p.DeliveryState | None, is_settled: bool
    ) -> None:
        """Answers are settled as they are sent."""

    def on_gone(self) -> None:
        self._pair.gone(self._link)
