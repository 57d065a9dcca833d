"""The heart of the client: one AMQP connection to a broker, without a socket and without a thread.

Here live the opening, tokens and their renewal, nodes, time-outs, and the end of it all. Links are
`sending` and `receiving`, what can be asked of `$management` is `operations`. The shells
(`blocking`, `aio`) carry bytes between this and a socket, and wait for what `run` gives them:

    sock → receive_data(bytes)          run(heart.open()) → Pending → …
    sock ← data_to_send()               next_deadline() → tick()

The rule: whatever ends, everybody who waits on it hears why. What was sent and not answered is an
unknown outcome, and is called so.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from tandembus import __version__
from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import (
    Closed,
    Delivery,
    Dispositions,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    MessageReceived,
    Opened,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from tandembus.amqp.link import Link
from tandembus.amqp.session import Session
from tandembus.amqp.types import Buffer, UInt
from tandembus.client.addresses import TOKEN_LIFE_MS, ConnectionString
from tandembus.client.failures import failure, status_refusal
from tandembus.client.nodes import CBS, Node, Reply
from tandembus.client.pending import Pending, Task, Timers, timed_out
from tandembus.clock import Clock
from tandembus.errors import ConnectionLostError, ProtocolError, TandemError
from tandembus.limits import KIB, MAX_MESSAGE_KB
from tandembus.model import Millis, Symbol, Timestamp

T = TypeVar("T")

DEFAULT_TIMEOUT_MS: Final = 60_000
IDLE_TIMEOUT_MS: Final = 60_000
"""A broker that says nothing for this long, not even that it is alive, is gone."""
RENEW_MS: Final = TOKEN_LIFE_MS * 3 // 4
"""When a token is renewed; the rest of its life is for trying again."""
RETRY_RENEWAL_MS: Final = 30_000
MAX_RECEIVED_BYTES: Final = 2 * MAX_MESSAGE_KB * KIB
"""The largest message that is received: one of the largest that an entity takes, with what the
broker adds to it, or a reply of `$management` that contains such a message."""
WRITE_BYTES: Final = 64 * KIB
"""Bulk sends hand over this much at a time, so that the broker works while the rest is encoded."""


class Handler(Protocol):
    """What a link belongs to."""

    def on_attached(self) -> None: ...
    def on_flow(self) -> None: ...
    def on_message(self, event: MessageReceived) -> None: ...
    def on_dispositions(
        self, deliveries: list[Delivery], state: p.DeliveryState | None, is_settled: bool
    ) -> None: ...
    def on_gone(self, error: p.Error | None) -> None: ...
    def fail(self, cause: TandemError) -> None: ...


class Conversation:
    """One connection. `identifier` is how it is called in the broker's log."""

    def __init__(
        self,
        target: ConnectionString,
        clock: Clock,
        *,
        timeout_ms: Millis = DEFAULT_TIMEOUT_MS,
        identifier: str | None = None,
    ) -> None:
        self.target = target
        self.clock = clock
        self.timeout_ms = timeout_ms
        self.identifier = identifier or f"tandem-{clock.random_bits(64):016x}"
        self.lost: TandemError | None = None
        """Why it is over, once it is."""
        self.connection = Connection(
            Role.CLIENT,
            container_id=self.identifier,
            hostname=target.host,
            properties={
                Symbol("product"): "tandem",
                Symbol("version"): __version__,
                Symbol("platform"): platform.system(),
                Symbol("user-agent"): f"tandem/{__version__} Python/{platform.python_version()}",
            },
            idle_timeout_ms=IDLE_TIMEOUT_MS,
            max_message_size=MAX_RECEIVED_BYTES,
        )
        self.session: Session
        self._timers = Timers()
        self._opened: Pending[None] = Pending()
        self._closed: Pending[None] = Pending()
        self._handlers: set[Handler] = set()
        self._nodes: dict[str, Node] = {}
        self._tokens: dict[str, Pending[None]] = {}
        self._written: list[Pending[None]] = []
        self._soon: list[Pending[bool]] = []
        self._next = 0

    # --- what a shell calls -----------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.lost is not None

    def run(self, operation: Coroutine[Pending[Any], None, T]) -> Task[T]:
        """Start an operation. It goes on by itself, as bytes come in."""
        return Task(operation)

    def receive_data(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self._on_event(event)
        if self._soon:
            soon, self._soon = self._soon, []
            for pending in soon:
                pending.resolve(True)

    def data_to_send(self) -> list[Buffer]:
        data = self.connection.data_to_send()
        if self._written:
            written, self._written = self._written, []
            for pending in written:
                pending.resolve(None)
        return data

    def next_deadline(self) -> Millis | None:
        """When `tick` has to be called, if nothing comes before; None if never."""
        if self.is_over:
            return self._timers.next_due()
        due = (self.connection.next_deadline(self.clock.now_ms()), self._timers.next_due())
        return min((each for each in due if each is not None), default=None)

    def tick(self) -> None:
        now_ms = self.clock.now_ms()
        for event in self.connection.tick(now_ms):
            self._on_event(event)
        self._timers.run(now_ms)

    def lose(self, error: TandemError) -> None:
        """The socket is gone, or the connection is: everybody hears it."""
        if self.lost is not None:
            return
        self.lost = error
        self._opened.fail(error)
        for handler in list(self._handlers):
            handler.fail(error)
        self._handlers.clear()
        for pending in self._written:
            pending.fail(error)
        self._written.clear()
        self._closed.resolve(None)

    # --- time -------------------------------------------------------------------------------------

    async def within(self, pending: Pending[T], timeout_ms: Millis, what: str) -> T:
        """What `pending` gives, or OperationTimeoutError."""
        if pending.is_done:
            return pending.result()
        # A gate of its own: others may wait for the same, and longer.
        gate: Pending[None] = Pending()
        pending.on_done(partial(gate.resolve, None))
        due_ms = self.clock.now_ms() + timeout_ms
        timer = self._timers.at(due_ms, lambda: gate.fail(timed_out(what, timeout_ms)))
        try:
            await gate
        finally:
            self._timers.cancel(timer)
        return pending.result()

    async def until(self, pending: Pending[bool], wait_ms: Millis) -> bool:
        """Whether it happened before the time was over."""
        if pending.is_done:
            return pending.result()
        timer = self._timers.at(self.clock.now_ms() + wait_ms, partial(pending.resolve, False))
        try:
            return await pending
        finally:
            self._timers.cancel(timer)

    def later(self, delay_ms: Millis, call: Callable[[], object]) -> None:
        self._timers.at(self.clock.now_ms() + delay_ms, call)

    def written(self) -> Pending[None]:
        """All that is queued now has been handed to the socket's side."""
        pending: Pending[None] = Pending()
        if self.lost is not None:
            pending.fail(self.lost)
        else:
            self._written.append(pending)
        return pending

    def soon(self, pending: Pending[bool]) -> None:
        """Resolve it when all that came in with the same bytes has been taken."""
        if not self._soon or self._soon[-1] is not pending:
            self._soon.append(pending)

    # --- names ------------------------------------------------------------------------------------

    def new_number(self) -> str:
        self._next += 1
        return f"{self.identifier}:{self._next}"

    def new_name(self, address: str) -> str:
        return f"{address[:80]}-{self.new_number()}"

    def new_tag(self) -> bytes:
        self._next += 1
        return self._next.to_bytes(8, "big")

    # --- opening and closing ----------------------------------------------------------------------

    async def open(self) -> None:
        """SASL, open and begin. Raises ConnectionLostError or UnauthorizedError."""
        self.connection.open()
        what = f"Opening a connection to {self.target.host}"
        await self.within(self._opened, self.timeout_ms, what)

    async def close(self) -> None:
        """Close frames are exchanged; the broker's answer is waited for a short time only."""
        if self.lost is None:
            self.connection.close()
            if self.connection.is_finished:
                self.lose(_closed())
            self.later(min(self.timeout_ms, 2_000), lambda: self.lose(_closed()))
            await self._closed

    def require_open(self) -> None:
        if self.lost is not None:
            raise self.lost

    # --- tokens and nodes -------------------------------------------------------------------------

    async def authorize(self, path: str) -> None:
        """A token for the entity is there, and is renewed for as long as the connection lives."""
        self.require_open()
        pending = self._tokens.get(path)
        if pending is None or pending.error is not None:
            pending = self._tokens[path] = self.run(self._put_token(path))
        await pending

    async def _put_token(self, path: str) -> None:
        audience = self.target.audience(path)
        now_ms = self.clock.now_ms()
        token, expires_ms = self.target.token(audience, now_ms)
        properties = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": audience,
            "expiration": Timestamp(expires_ms),
        }
        what = f"The token for {path}"
        reply = await self._node(CBS).ask(properties, token, self.timeout_ms, what)
        if reply.status not in (200, 202):
            raise status_refusal(reply.status, None, reply.description)
        if self.target.signature is None:
            self.later(RENEW_MS, lambda: self.run(self._renew(path, expires_ms)))

    async def _renew(self, path: str, expires_ms: Millis) -> None:
        """Tried again until the old token has expired: then the broker ends the links by itself."""
        if self.lost is None:
            try:
                await self._put_token(path)
            except TandemError:
                if self.clock.now_ms() + RETRY_RENEWAL_MS < expires_ms:
                    self.later(RETRY_RENEWAL_MS, lambda: self.run(self._renew(path, expires_ms)))

    def _node(self, address: str) -> Node:
        node = self._nodes.get(address)
        if node is None or node.is_gone:
            self.require_open()
            node = self._nodes[address] = Node(self, address)
            self._handlers.add(node)
        return node

    async def manage(
        self,
        path: str,
        operation: str,
        body: object,
        *,
        link_name: str | None = None,
        timeout_ms: Millis | None = None,
    ) -> Reply:
        """One operation of the entity's `$management`. Raises what the reply tells."""
        timeout_ms = timeout_ms or self.timeout_ms
        await self.authorize(path)
        properties: dict[str, object] = {
            "operation": operation,
            "com.microsoft:server-timeout": UInt(timeout_ms),
        }
        if link_name is not None:
            properties["associated-link-name"] = link_name
        node = self._node(f"{path}/$management")
        reply = await node.ask(properties, body, timeout_ms, f"{operation} on {path}")
        return reply.check()

    def adopt(self, link: Link, handler: Handler) -> None:
        link.context = handler
        self._handlers.add(handler)

    def forget(self, handler: Handler) -> None:
        self._handlers.discard(handler)

    # --- events -----------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        try:
            if type(event) is MessageReceived:
                handler = event.link.context
                if handler is not None:
                    handler.on_message(event)
            elif type(event) is Dispositions:
                self._on_dispositions(event)
            else:
                self._on_rare(event)
        except ProtocolError as error:
            self.connection.close(p.Error(error.condition, str(error)))
            self.lose(ConnectionLostError(f"The broker broke the protocol: {error}"))

    def _on_dispositions(self, event: Dispositions) -> None:
        groups: dict[Link, list[Delivery]] = {}
        for delivery in event.deliveries:
            link = delivery.link
            if link in groups:
                groups[link].append(delivery)
            else:
                groups[link] = [delivery]
        for link, deliveries in groups.items():
            if link.context is not None:
                link.context.on_dispositions(deliveries, event.state, event.settled)

    def _on_rare(self, event: Event) -> None:
        match event:
            case Opened():
                self.session = self.connection.begin()
            case SessionBegun():
                self._opened.resolve(None)
            case LinkAttached(link):
                if link.context is None:
                    link.refuse(p.Error("amqp:not-allowed", "This peer is a client."))
                else:
                    link.context.on_attached()
            case LinkFlow(link):
                if link.context is not None:
                    link.context.on_flow()
            case WindowOpened(session):
                for link in list(session.links.values()):
                    if link.is_sender and link.context is not None:
                        link.context.on_flow()
            case LinkDetached(link, error):
                handler, link.context = link.context, None
                if handler is not None:
                    self._handlers.discard(handler)
                    handler.on_gone(error)
            case SessionEnded(_, _, error):
                self.connection.close()
                self.lose(failure(error, "The session"))
            case Closed(error):
                if error is None:
                    self.lose(_closed())
                else:
                    self.lose(_as_lost(failure(error, "The connection")))
            case _:
                pass


def _closed() -> ConnectionLostError:
    return ConnectionLostError("The connection is closed.")


def _as_lost(error: TandemError) -> TandemError:
    """A refused SASL exchange is final; all else that ends a connection can be tried again."""
    if isinstance(error, ConnectionLostError) or error.condition == "amqp:unauthorized-access":
        return error
    return ConnectionLostError(str(error))
