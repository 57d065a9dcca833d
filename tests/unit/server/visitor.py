"""A peer of a real listener, in the same process: it shows what it has, and tries what it likes.

One connection, one session, our own client end of AMQP on a socket; requests as the SDKs write
them. What is refused is an exception with the condition that the broker gave.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import (
    Closed,
    Dispositions,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
)
from tandembus.amqp.link import Link
from tandembus.amqp.message import VALUE
from tandembus.amqp.session import Session
from tests.unit.server.desk import Reply, encode_request

UNAUTHORIZED = "amqp:unauthorized-access"


class Refusal(Exception):
    """What the broker answered instead."""

    def __init__(self, condition: str | None, description: str | None = None) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition


class Visitor:
    """Has the name and key of a policy, or nothing yet."""

    def __init__(self, port: int, username: str | None = None, password: str = "") -> None:
        self._port = port
        self._count = 0
        self.events: list[Event] = []
        self.session: Session
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.client = Connection(
            Role.CLIENT, container_id="visitor", username=username, password=password
        )

    async def come(self) -> Visitor:
        """Connect, and log in by SASL PLAIN if it has a name. Raises Refusal."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.client.open()
        self.session = self.client.begin()
        await self.until(lambda: self.client.state.name == "OPENED")
        return self

    async def leave(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def until(self, is_so: Callable[[], Any]) -> Any:
        """Read and write until it is so; Refusal when the connection ends instead."""
        while not (found := is_so()):
            self._writer.writelines(self.client.data_to_send())
            data = await self._reader.read(65_536)
            if not data:
                raise Refusal("hung up")
            events = self.client.receive_data(data)
            self.events += events
            for event in events:
                if isinstance(event, Closed):
                    raise Refusal(event.error.condition if event.error else None)
        self._writer.writelines(self.client.data_to_send())
        return found

    # --- links ------------------------------------------------------------------------------------

    async def attach(self, address: str | p.Coordinator, *, sends: bool, **more: Any) -> Link:
        self._count += 1
        here = f"visitor-{self._count}"
        target: p.Target | p.Coordinator = p.Target(here)
        source = p.Source(here)
        if isinstance(address, p.Coordinator):
            target = address
        elif sends:
            target = p.Target(address)
        else:
            source = p.Source(address, **more)
        link = self.session.attach(here, is_sender=sends, source=source, target=target)
        await self.until(lambda: self._is_decided(link))
        return link

    def _is_decided(self, link: Link) -> bool:
        for event in self.events:
            if isinstance(event, LinkDetached) and event.link is link:
                raise Refusal(*_error(event.error))
        # A refused link is attached first, without a terminus (AMQP 1.0 §2.6.3).
        attached = any(isinstance(e, LinkAttached) and e.link is link for e in self.events)
        if attached and link.is_sender and link.local is not None:
            return link.credit > 0
        return attached and link.remote is not None and link.remote.source is not None

    async def detached(self, link: Link) -> str | None:
        """Wait until the broker ends the link; the condition that it gives."""
        found: list[LinkDetached] = []

        def is_over() -> bool:
            found.extend(e for e in self.events if isinstance(e, LinkDetached) and e.link is link)
            return bool(found)

        await self.until(is_over)
        return found[0].error.condition if found[0].error else None

    async def deliver(
        self, link: Link, payload: bytes, state: p.DeliveryState | None = None
    ) -> p.DeliveryState | None:
        """Send one message; its outcome, unless that is a rejection: then Refusal."""
        self._count += 1
        number = link.deliver(self._count.to_bytes(4, "big"), [payload], state=state)
        return await self._outcome(number, link)

    async def receive(self, link: Link) -> MessageReceived:
        link.grant(1)
        return await self.until(lambda: self._message_on(link))  # type: ignore[no-any-return]

    async def settle(self, link: Link, delivery_id: int, state: p.DeliveryState) -> None:
        link.settle([delivery_id], state, settled=False)
        await self._outcome(delivery_id, link)

    def _message_on(self, link: Link) -> MessageReceived | None:
        for event in self.events:
            if isinstance(event, MessageReceived) and event.link is link:
                self.events.remove(event)
                return event
            if isinstance(event, LinkDetached) and event.link is link:
                raise Refusal(*_error(event.error))
        return None

    async def _outcome(self, number: int | None, link: Link) -> p.DeliveryState | None:
        def decided() -> Dispositions | None:
            for event in self.events:
                if isinstance(event, Dispositions) and event.first == number:
                    self.events.remove(event)
                    return event
                if isinstance(event, LinkDetached) and event.link is link:
                    raise Refusal(*_error(event.error))
            return None

        found: Dispositions = await self.until(decided)
        state = found.state
        if isinstance(state, p.Rejected) and state.error is not None:
            raise Refusal(*_error(state.error))
        return state

    # --- nodes ------------------------------------------------------------------------------------

    async def node(self, address: str) -> tuple[Link, Link]:
        """The links of `$cbs` or of a `$management`: to ask on, and to be answered on."""
        answers = await self.attach(address, sends=False)
        answers.grant(100)
        return await self.attach(address, sends=True), answers

    async def ask(self, node: tuple[Link, Link], payload: bytes) -> Reply:
        """Refusal, if the reply is one."""
        asks, answers = node
        self._count += 1
        asks.deliver(self._count.to_bytes(4, "big"), [payload])
        message = await self.until(lambda: self._message_on(answers))
        reply = Reply(message.payload)
        if reply.status >= 300:
            raise Refusal(reply.condition or str(reply.status), reply.description)
        return reply

    async def put_token(self, token: str, audience: str) -> None:
        node = await self.node("$cbs")
        body = encode_request("put-token", token, type="jwt", name=audience)
        await self.ask(node, body)

    # --- transactions -----------------------------------------------------------------------------

    async def declare(self) -> tuple[Link, bytes]:
        link = await self.attach(p.Coordinator(), sends=True)
        declared = await self.deliver(link, _body(p.Declare()))
        assert isinstance(declared, p.Declared)
        return link, declared.txn_id

    async def discharge(self, link: Link, txn_id: bytes) -> None:
        await self.deliver(link, _body(p.Discharge(txn_id)))


def _body(request: p.Declare | p.Discharge) -> bytes:
    return bytes((0x00, 0x53, VALUE)) + p.encode_performative(request)


def _error(error: p.Error | None) -> tuple[str | None, str | None]:
    return (error.condition, error.description) if error is not None else (None, None)
