"""The port itself, with our own client end of AMQP on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tandembus import http
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Dispositions, Event, LinkFlow
from tandembus.amqp.link import Link
from tandembus.amqp.message import encode_message
from tandembus.amqp.performatives import Accepted, Source, Target
from tandembus.core.access import everything
from tandembus.core.commands import Browse, CreateQueue
from tandembus.core.state import State
from tandembus.engine.engine import Tuning
from tandembus.limits import MAX_OUTPUT_TOTAL
from tandembus.server.broker import Broker
from tandembus.server.listener import Listener
from tandembus.server.namespaces import Directory
from tandembus.server.peer import Peer
from tandembus.store.memory import MemoryStore

COUNT = 3_000
PAYLOAD = encode_message(body=b"x" * 1_024, message_id="m")


async def _no_http(request: http.Request) -> http.Response:
    return http.text(200, f"{request.method} {'/'.join(request.path)}")


def _serving(work: Callable[[Broker, int], Awaitable[None]], tuning: Tuning | None = None) -> None:
    async def run() -> None:
        failures: list[Exception] = []
        broker = await Broker.open(
            "default", MemoryStore(), on_failure=failures.append, tuning=tuning
        )
        await broker.execute(CreateQueue("q"), everything())
        listener = Listener(Directory.of(broker, _no_http))
        port = await listener.bind("127.0.0.1", 0)
        try:
            async with asyncio.timeout(60):
                await work(broker, port)
        finally:
            await listener.close()
            await broker.close()
        assert not failures

    asyncio.run(run())


async def _send_all(port: int, *, is_settled: bool) -> int:
    """Send COUNT messages as fast as credit allows; how many were accepted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = Connection(Role.CLIENT, container_id="test", use_sasl=False)
    client.open()
    link = client.begin().attach(
        "sender", is_sender=True, source=Source("here"), target=Target("q")
    )
    sent = accepted = 0

    def on_event(event: Event) -> None:
        nonlocal accepted
        if isinstance(event, Dispositions) and isinstance(event.state, Accepted):
            accepted += len(event.deliveries)

    def send(link: Link) -> None:
        nonlocal sent
        while sent < COUNT and link.capacity:
            link.deliver(sent.to_bytes(4, "big"), [PAYLOAD], settled=is_settled)
            sent += 1

    while sent < COUNT or (accepted < COUNT and not is_settled):
        writer.writelines(client.data_to_send())
        await writer.drain()
        data = await reader.read(65_536)
        assert data, "the broker hung up"
        for event in client.receive_data(data):
            on_event(event)
            if isinstance(event, LinkFlow):
                send(link)
        send(link)
    writer.writelines(client.data_to_send())
    await writer.drain()
    client.close()
    writer.writelines(client.data_to_send())
    await writer.drain()
    await reader.read(65_536)
    writer.close()
    await writer.wait_closed()
    return accepted


def test_sends_are_pipelined() -> None:
    """Many are in flight on one link, and each is answered on its own."""

    async def work(broker: Broker, port: int) -> None:
        assert await _send_all(port, is_settled=False) == COUNT
        assert broker.namespace.find("q").active_count == COUNT

    _serving(work)


def test_a_disk_that_cannot_keep_up_holds_the_peer_back() -> None:
    """With room for little that is not durable, all is accepted all the same: the peer is not read
    from meanwhile, and nothing is refused."""

    async def work(broker: Broker, port: int) -> None:
        assert await _send_all(port, is_settled=False) == COUNT

    _serving(work, Tuning(group_bytes=8_192, staged_bytes=4_000_000))


@pytest.mark.req("T4")
def test_transfers_that_are_settled_already_are_stored() -> None:
    """Fire and forget: no answer, and the messages are there."""

    async def work(broker: Broker, port: int) -> None:
        assert await _send_all(port, is_settled=True) == 0
        while broker.namespace.find("q").active_count < COUNT:
            await asyncio.sleep(0.01)

    _serving(work)


def test_http_on_the_same_port() -> None:
    """The first bytes decide."""

    async def work(broker: Broker, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /a/b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"GET a/b\n")
        writer.close()
        await writer.wait_closed()

    _serving(work)


def test_credit_that_is_taken_back_locks_nothing() -> None:
    """A message that was on its way to a link whose credit went meanwhile is there for others at
    once, without a penalty."""

    async def work(broker: Broker, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = Connection(Role.CLIENT, container_id="test", use_sasl=False)
        client.open()
        session = client.begin()
        sender = session.attach("s", is_sender=True, source=Source("here"), target=Target("q"))
        receiver = session.attach("r", is_sender=False, source=Source("q"), target=Target("here"))
        while not sender.capacity or receiver.local is None or receiver.remote is None:
            writer.writelines(client.data_to_send())
            client.receive_data(await reader.read(65_536))
        # One write: the send has to wait for its commit, and the credit is gone before that.
        sender.deliver(b"1", [PAYLOAD])
        receiver.grant(1)
        receiver.grant(0)
        writer.writelines(client.data_to_send())
        accepted = False
        while not accepted:
            events = client.receive_data(await reader.read(65_536))
            accepted = any(isinstance(event, Dispositions) for event in events)
        await broker.execute(Browse("q"), everything())  # behind the release
        (shown,) = await broker.execute(Browse("q"), everything())
        assert (shown.state, shown.delivery_count) == (State.WAITING, 0)
        writer.close()
        await writer.wait_closed()

    _serving(work)


class _Clogged:
    """A peer that does not take what is for it."""

    def __init__(self, waiting_bytes: int) -> None:
        self.waiting_bytes = waiting_bytes
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_what_waits_for_all_peers_is_bounded() -> None:
    """Above the bound the one that holds most is hung up on; below it, and for one that takes its
    output again, nothing happens."""

    async def run() -> None:
        broker = await Broker.open("default", MemoryStore(), on_failure=lambda error: None)
        listener = Listener(Directory.of(broker, _no_http))
        large, small, third = (_Clogged(MAX_OUTPUT_TOTAL // share) for share in (2, 3, 4))
        for peer in (large, small):
            listener.clogged(cast(Peer, peer))
        listener.unclogged(cast(Peer, small))
        listener.clogged(cast(Peer, third))
        assert not any(peer.is_aborted for peer in (large, small, third))
        listener.clogged(cast(Peer, small))
        assert [peer.is_aborted for peer in (large, small, third)] == [True, False, False]
        await listener.close()
        await broker.close()

    asyncio.run(run())


def test_a_request_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first byte a request has its time, however often another byte of it comes."""
    monkeypatch.setattr("tandembus.server.web._REQUEST_S", 0.2)

    async def work(broker: Broker, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        for _ in range(3):
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert (await reader.read()).startswith(b"HTTP/1.1 408")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    _serving(work)


def test_pipelined_requests_are_answered_in_order() -> None:
    """A thousand in one write: all of them, one after the other."""

    async def work(broker: Broker, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(1_000):
            writer.write(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
        writer.write(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = (await reader.read()).decode()
        bodies = re.findall(r"\nGET (\w+)\n", answer)
        assert bodies == [*map(str, range(1_000)), "last"]
        writer.close()
        await writer.wait_closed()

    _serving(work)


def test_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that never says a word is let go."""
    monkeypatch.setattr("tandembus.server.peer._PATIENCE_S", 0.1)

    async def work(broker: Broker, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    _serving(work)
