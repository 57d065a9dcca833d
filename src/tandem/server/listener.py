"""One port that serves all: it looks at the first bytes and takes AMQP, TLS, HTTP or a WebSocket.

Here are sockets, and nothing else: what the bytes mean is `gateway`, `websocket`, and the HTTP
handler that `app` gives. The rules: a peer that says nothing is let go after a while; one that does
not read is not written to, and then not read from; every count has its limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from tandem import http
from tandem.errors import ProtocolError
from tandem.limits import MAX_CONNECTIONS, MAX_OUTPUT_BUFFER, MAX_TLS_HANDSHAKES, SASL_TIMEOUT_MS
from tandem.server import websocket
from tandem.server.broker import Broker
from tandem.server.gateway import Gateway
from tandem.store.api import Buffer

log = logging.getLogger("tandem.server")

HttpHandler: TypeAlias = Callable[[http.Request], Awaitable[http.Response]]
_PATIENCE_S: Final = SASL_TIMEOUT_MS / 1000
_TLS_RECORD: Final = b"\x16\x03"
_AMQP: Final = b"AMQP"
_BACKLOG: Final = 1_024
_LOOK_AGAIN_S: Final = 0.005
"""How soon a peer that was held back is looked at again: about one commit."""


class Listener:
    """A bound port. `tls` None: TLS is refused."""

    def __init__(
        self, broker: Broker, serve_http: HttpHandler, tls: ssl.SSLContext | None = None
    ) -> None:
        self.broker = broker
        self.serve_http = serve_http
        self.tls = tls
        self.peers: set[Peer] = set()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = asyncio.Semaphore(MAX_TLS_HANDSHAKES)
        self._loop = asyncio.get_running_loop()

    async def bind(self, host: str, port: int) -> int:
        """Listen on every address of `host`; 0 takes a free port. Returns the port."""
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listening.bind((address[0], port, *address[2:]))
            except OSError as error:
                listening.close()
                if self._sockets and family == socket.AF_INET6:
                    continue  # a machine without IPv6
                raise OSError(f"cannot listen on {address[0]}:{port}: {error.strerror}") from error
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            port = listening.getsockname()[1]
            self._sockets.append(listening)
            self._start(self._accept(listening))
        return port

    async def close(self) -> None:
        """Take no more peers, and let go of those that are there."""
        for task in list(self._tasks):
            task.cancel()
        for listening in self._sockets:
            listening.close()
        for peer in list(self.peers):
            peer.close()
        await asyncio.sleep(0)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except OSError as error:
                log.warning("cannot accept: %s", error)
                await asyncio.sleep(0.1)
                continue
            if len(self.peers) >= MAX_CONNECTIONS:
                log.warning("ConnectionsQuotaExceeded: %d connections are open", len(self.peers))
                accepted.close()
                continue
            self._start(self._take(accepted))

    async def _take(self, accepted: socket.socket) -> None:
        """Look at the first bytes without taking them, then hand the socket over."""
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(_PATIENCE_S):
                first = await self._peek(accepted)
            if not first.startswith(_TLS_RECORD):
                await self._loop.connect_accepted_socket(lambda: Peer(self), accepted)
            elif self.tls is None:
                accepted.close()
            else:
                async with self._handshakes:
                    await self._loop.connect_accepted_socket(
                        lambda: Peer(self),
                        accepted,
                        ssl=self.tls,
                        ssl_handshake_timeout=_PATIENCE_S,
                    )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            log.debug("a peer went before it had begun: %s", error)
            with contextlib.suppress(OSError):
                accepted.close()

    async def _peek(self, accepted: socket.socket) -> bytes:
        while True:
            readable: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_reader(accepted.fileno(), _resolve, readable)
            try:
                await readable
            finally:
                self._loop.remove_reader(accepted.fileno())
            with contextlib.suppress(BlockingIOError):
                first = accepted.recv(len(_TLS_RECORD), socket.MSG_PEEK)
                if not first:
                    raise ConnectionResetError("nothing came")
                if len(first) == len(_TLS_RECORD):
                    return first
                await asyncio.sleep(0.01)


class Peer(asyncio.Protocol):
    """One connection, plain or inside TLS: AMQP, HTTP, or AMQP inside a WebSocket."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._first = bytearray()
        self._gateway: Gateway | None = None
        self._parser: http.Parser | None = None
        self._socket: websocket.WebSocket | None = None
        self._requests: asyncio.Queue[http.Request] = asyncio.Queue()
        self._serving: asyncio.Task[None] | None = None
        self._is_held_back = False
        self._is_clogged = False
        self._patience: asyncio.TimerHandle | None = None

    # --- the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=MAX_OUTPUT_BUFFER)
        self._listener.peers.add(self)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(_PATIENCE_S, self._lose_patience)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.peers.discard(self)
        if self._patience is not None:
            self._patience.cancel()
        if self._serving is not None:
            self._serving.cancel()
        if self._gateway is not None:
            self._gateway.lost()
            self._gateway = None

    def data_received(self, data: bytes) -> None:
        if self._socket is not None:
            self._receive_framed(data)
        elif self._gateway is not None:
            self._gateway.receive(data)
            self._hold_back()
        elif self._parser is not None:
            self._on_http(self._parser.feed(data))
        else:
            self._first += data
            if len(self._first) >= len(_AMQP):
                self._decide(bytes(self._first))

    def pause_writing(self) -> None:
        """The peer does not read: then it is not read from either."""
        self._is_clogged = True
        self._hold_back()

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._hold_back()

    def _hold_back(self) -> None:
        """Read from the peer, or do not: not while it does not read, has too much unsettled, or the
        disk cannot keep up with everybody. Nothing is buffered instead."""
        may_read = not self._is_clogged and (self._gateway is None or self._gateway.can_read)
        if self._transport.is_closing():
            return
        if may_read and self._is_held_back:
            self._transport.resume_reading()
        elif not may_read and not self._is_held_back:
            self._transport.pause_reading()
        self._is_held_back = not may_read
        if self._is_held_back and not self._is_clogged:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._hold_back)

    def close(self) -> None:
        if self._gateway is not None:
            self._gateway.shut_down()
        else:
            self._transport.close()

    def _lose_patience(self) -> None:
        if self._gateway is None and self._parser is None:
            self._transport.abort()

    @property
    def _name(self) -> str:
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "a peer"

    # --- which protocol ---------------------------------------------------------------------------

    def _decide(self, data: bytes) -> None:
        self._first.clear()
        if data.startswith(_AMQP):
            self._begin_amqp(self._write)
            assert self._gateway is not None
            self._gateway.receive(data)
        else:
            self._parser = http.Parser()
            self._serving = asyncio.ensure_future(self._serve())
            self._on_http(self._parser.feed(data))

    def _begin_amqp(self, write: Callable[[Sequence[Buffer]], None]) -> None:
        self._gateway = Gateway(
            self._listener.broker, write, self._transport.close, peer=self._name
        )

    def _write(self, data: Sequence[Buffer]) -> None:
        self._transport.writelines(data)

    # --- HTTP -------------------------------------------------------------------------------------

    def _on_http(self, events: list[http.Event]) -> None:
        for event in events:
            match event:
                case http.Request():
                    if event.is_upgrade:
                        self._upgrade(event)
                        return
                    self._requests.put_nowait(event)
                case http.Expected():
                    self._transport.write(http.CONTINUE)
                case http.Broken(response):
                    self._transport.write(http.encode(response, keep_alive=False))
                    self._transport.close()

    async def _serve(self) -> None:
        """Requests of one connection are answered in their order."""
        while True:
            request = await self._requests.get()
            response = await self._listener.serve_http(request)
            is_head = request.method == "HEAD"
            self._transport.write(
                http.encode(response, keep_alive=request.keep_alive, is_head=is_head)
            )
            if not request.keep_alive:
                self._transport.close()
                return

    # --- WebSocket --------------------------------------------------------------------------------

    def _upgrade(self, request: http.Request) -> None:
        assert self._parser is not None
        response = websocket.answer(request)
        self._transport.write(http.encode(response, keep_alive=response.status == 101))
        if response.status != 101:
            self._transport.close()
            return
        rest = self._parser.rest()
        self._parser = None
        self._socket = websocket.WebSocket()
        self._begin_amqp(self._write_framed)
        if rest:
            self._receive_framed(rest)

    def _receive_framed(self, data: bytes) -> None:
        assert self._socket is not None
        try:
            stream = self._socket.receive(data)
        except ProtocolError as error:
            log.info("%s: %s", self._name, error)
            self._transport.close()
            return
        if stream and self._gateway is not None:
            self._gateway.receive(stream)
            self._hold_back()
        if self._socket.out:
            self._transport.writelines(self._socket.out)
            self._socket.out.clear()
        if self._socket.is_closed:
            self._transport.close()

    def _write_framed(self, data: Sequence[Buffer]) -> None:
        size = sum(map(len, data))
        self._transport.writelines([websocket.framed(size), *data])


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
