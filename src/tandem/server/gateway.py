"""One AMQP connection of one peer: events in, commands out, answers back as frames.

Here is decided what each link is for; what it then does is `links` and `nodes`. Bytes come in by
`receive`, and go out by the `write` that the listener gave; everything that piles up in one turn of
the loop is written at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from tandem.amqp import performatives as p
from tandem.amqp.connection import Connection, Role
from tandem.amqp.events import (
    Authenticated,
    Closed,
    Dispositions,
    Event,
    Heartbeat,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    MessageReceived,
    Opened,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from tandem.amqp.link import Link
from tandem.changes import EntityKind
from tandem.core.access import Claims, Right, path_of, require_right
from tandem.core.commands import Command
from tandem.core.effects import Delivery
from tandem.core.namespace import Namespace
from tandem.errors import (
    EntityNotFoundError,
    NotAllowedError,
    ProtocolError,
    TandemError,
    UnauthorizedError,
)
from tandem.limits import KIB, MAX_BATCH_BYTES
from tandem.model import Message, Millis, Symbol
from tandem.names import split
from tandem.server import cbs, management
from tandem.server.broker import Broker
from tandem.server.cbs import TokenGate
from tandem.server.incoming import messages_of
from tandem.server.links import BATCH_SIZE, Handler, Inlet, Outlet, Transactor
from tandem.server.nodes import CBS, Node, NodePair
from tandem.server.outgoing import encoded
from tandem.server.requests import parse_request
from tandem.store.api import Buffer

log = logging.getLogger("tandem.server")

CONTAINER: Final = "tandem"
MANAGEMENT: Final = "$management"
USER_AGENT: Final = Symbol("user-agent")


class Gateway:
    def __init__(
        self,
        broker: Broker,
        write: Callable[[Sequence[Buffer]], None],
        hang_up: Callable[[], None],
        *,
        peer: str,
    ) -> None:
        self.broker = broker
        self.claims = broker.new_claims()
        self.peer = peer
        self.reads_all_types = False
        """Whether the peer reads every AMQP type; Microsoft's own codecs do not (WIRE.md §1.6)."""
        self._write = write
        self._hang_up = hang_up
        self._loop = asyncio.get_running_loop()
        self._will_write = False
        self._timer: asyncio.TimerHandle | None = None
        self._nodes: dict[tuple[int, str], NodePair] = {}
        """The pairs of request and answer links, by session and node."""
        self.connection = Connection(
            Role.SERVER,
            container_id=CONTAINER,
            max_message_size=MAX_BATCH_BYTES,
            use_sasl=not broker.is_open,
        )
        self._gate = TokenGate(
            broker.authority, self._has_entity, self.random_bits, broker.jwt, broker.is_open
        )
        self._set_timer()

    def _has_entity(self, path: str) -> bool:
        return path in self.broker.namespace

    def shut_down(self) -> None:
        """The broker stops: the peer is told, and may try again elsewhere or later."""
        error = p.Error("amqp:connection:forced", "The broker is stopping.")
        self.connection.close(error)
        self._write_now()
        self._hang_up()

    # --- bytes ------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self._on_event(event)
        self.write_soon()

    @property
    def can_read(self) -> bool:
        return self.connection.can_read and not self.broker.engine.is_congested

    def write_soon(self) -> None:
        if not self._will_write:
            self._will_write = True
            self._loop.call_soon(self._write_now)

    def _write_now(self) -> None:
        self._will_write = False
        data = self.connection.data_to_send()
        if data:
            self._write(data)
        if self.connection.is_finished:
            self._hang_up()

    def lost(self) -> None:
        """The transport is gone. Locks stay until they run out; sessions are released."""
        if self._timer is not None:
            self._timer.cancel()
        for session in self.connection.sessions:
            for link in list(session.links.values()):
                self._forget(link)

    def _set_timer(self) -> None:
        now = self.broker.now_ms()
        deadline = self.connection.next_deadline(now)
        expiry = self.claims.next_expiry()
        delay = min(60_000, (deadline or now + 60_000) - now, max(0, expiry - now))
        self._timer = self._loop.call_later(max(delay, 5) / 1000, self._tick)

    def _tick(self) -> None:
        now = self.broker.now_ms()
        for event in self.connection.tick(now):
            self._on_event(event)
        if self.claims.next_expiry() <= now:
            self._end_expired(now)
        self._write_now()
        if not self.connection.is_finished:
            self._set_timer()

    def _end_expired(self, now: int) -> None:
        """A token ran out and was not renewed: the links that it allowed end (RELIABILITY S10)."""
        for session in self.connection.sessions:
            for link in list(session.links.values()):
                handler = link.context
                if isinstance(handler, Inlet | Outlet):
                    right = Right.SEND if isinstance(handler, Inlet) else Right.LISTEN
                    if not self.claims.allows(path_of(handler.path), right, now):
                        error = UnauthorizedError("ExpiredToken: The token is expired.")
                        link.detach(self.error_of(error))
                        self._forget(link)
        for path, grant in list(self.claims.grants.items()):
            if grant.expires_ms <= now:
                del self.claims.grants[path]

    # --- events -----------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case MessageReceived():
                event.link.context.on_message(event)
            case Dispositions():
                self._on_dispositions(event)
            case LinkFlow():
                if event.link.context is not None:
                    event.link.context.on_flow(event)
            case LinkAttached(link):
                self._attach(link)
            case LinkDetached(link, error, _, by_peer):
                if not by_peer:
                    log.warning("%s: the link %.80r was ended: %s", self.peer, link.name, error)
                self._forget(link)
            case SessionEnded(_, links):
                for link in links:
                    self._forget(link)
            case Closed(error):
                if error is not None:
                    log.info("%s: connection closed: %s", self.peer, error)
            case Opened(opened):
                agent = str((opened.properties or {}).get(USER_AGENT, ""))
                self.reads_all_types = not agent.startswith(("azsdk-python", "azsdk-net"))
            case Authenticated() | SessionBegun() | WindowOpened() | Heartbeat():
                pass

    def _on_dispositions(self, event: Dispositions) -> None:
        if not event.as_receiver:
            return  # the peer settles what it sent: nothing to do
        if not event.deliveries and not event.settled:
            # Settled before, or never ours: say so, or the peer waits a minute (WIRE.md §0).
            text = "The delivery is not unsettled any more."
            error = p.Error("com.microsoft:message-lock-lost", text)
            rejected = p.Rejected(error)
            event.session.answer(event.first, event.last, rejected, as_receiver=False)
            return
        by_link: dict[int, tuple[Handler, list[Any]]] = {}
        for delivery in event.deliveries:
            handler = delivery.link.context
            if handler is not None:
                by_link.setdefault(id(handler), (handler, []))[1].append(delivery)
        for handler, deliveries in by_link.values():
            handler.on_dispositions(deliveries, event.state, event.settled)

    def _forget(self, link: Link) -> None:
        handler, link.context = link.context, None
        if handler is not None:
            handler.on_gone()

    # --- attach -----------------------------------------------------------------------------------

    def _attach(self, link: Link) -> None:
        try:
            self._decide(link)
        except TandemError as error:
            link.refuse(self.error_of(error))

    def _decide(self, link: Link) -> None:
        attach = link.remote
        assert attach is not None
        if isinstance(attach.target, p.Coordinator):
            link.context = Transactor(self, link)
            link.accept()
            link.grant(100)
            return
        node = attach.source if link.is_sender else attach.target
        address = node.address if isinstance(node, p.Source | p.Target) else None
        if not address:
            raise NotAllowedError("The link names no address.")
        if address.rpartition("/")[2].lower() == CBS:
            self._attach_node(link, Node(CBS, None))
            return
        where = split(address)
        if where.is_management:
            self._check_exists(where.path, address)
            self._attach_node(link, Node(MANAGEMENT, where.path))
        elif link.is_sender:
            outlet = link.context = Outlet(self, link, where.path)
            outlet.open()
        else:
            self._attach_inlet(link, where.path)

    def _attach_node(self, link: Link, node: Node) -> None:
        key = (id(link.session), f"{node.name}:{node.path}")
        pair = self._nodes.get(key)
        if pair is None:
            pair = self._nodes[key] = NodePair(self, node, lambda: self._nodes.pop(key, None))
        pair.add(link)

    def _attach_inlet(self, link: Link, path: str) -> None:
        queue = self._check_exists(path, path)
        if queue.kind not in (EntityKind.QUEUE, EntityKind.TOPIC):
            raise NotAllowedError(f"Nothing can be sent to '{queue.path}'.")
        require_right(self.claims, path, Right.SEND, self.broker.now_ms())
        inlet = link.context = Inlet(self, link, path)
        size = max(queue.max_message_bytes, 256 * KIB)
        if link.accept(max_message_size=size, properties={BATCH_SIZE: size}):
            inlet.grant()

    def _check_exists(self, path: str, shown: str) -> Any:
        if path not in self.broker.namespace:
            raise EntityNotFoundError(shown)
        return self.broker.namespace.find(path)

    # --- requests: what `management` needs of the connection that asks ----------------------------

    async def answer(self, node: Node, payload: bytes) -> tuple[bytes | None, str | None]:
        """The reply to a request, and where it goes. None: it cannot even be answered."""
        try:
            request = parse_request(payload)
        except TandemError as error:
            self.error_of(error)
            return None, None
        if node.path is None:
            reply = cbs.answer(request, self._gate, self.claims, self.now_ms()).reply
        else:
            reply = await management.answer(request, node.path, self.claims, self)
        return reply, request.reply_to

    @property
    def namespace(self) -> Namespace:
        return self.broker.namespace

    async def execute(self, command: Command, claims: Claims) -> Any:
        return await self.broker.execute(command, claims)

    def render(self, path: str, delivery: Delivery, *, shows_state: bool) -> bytes:
        queue = self.namespace.find(path)
        return encoded(
            self.broker.engine.body(delivery.body),
            delivery,
            shows_state=shows_state,
            entity_ttl_ms=queue.ttl_ms,
            partition_id=delivery.sequence_number >> 48 if len(queue.parts) > 1 else None,
            reads_all_types=self.reads_all_types,
        )

    def incoming(self, payload: bytes, message_format: int) -> list[Message]:
        return [*messages_of(payload, message_format, self.random_bits)]

    def link_named(self, name: str) -> int | None:
        for session in self.connection.sessions:
            for link in session.links.values():
                if link.name == name and isinstance(link.context, Outlet):
                    return link.context.number
        return None

    def call_later(self, delay_ms: Millis, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, call)

    def random_bits(self, count: int) -> int:
        return self.broker.clock.random_bits(count)

    def now_ms(self) -> Millis:
        return self.broker.now_ms()

    # --- errors -----------------------------------------------------------------------------------

    def error_of(self, error: TandemError) -> p.Error:
        """An error for the wire, with a tracking id that the log has beside the reason (T1)."""
        tracking = self.broker.new_tracking_id()
        level = logging.WARNING if isinstance(error, ProtocolError) else logging.INFO
        log.log(
            level,
            "%s: refused: %s (%s) TrackingId:%s",
            self.peer,
            error,
            error.condition,
            tracking,
        )
        return p.Error(error.condition, f"{error} TrackingId:{tracking}")
