"""One connection, plain or inside TLS: AMQP, HTTP, or AMQP inside a WebSocket.

Bytes find their way here through TLS and WebSocket frames to the gateway or to `web`, and back.
What they mean is not here, nor who may come in. The rules: the peer is not read from while it does
not read, while there is a rest of what it sent, while it has too much unsettled, or while the disk
cannot keep up; nothing is buffered instead. A peer that does not take what is for it goes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Final, cast

from tandembus import http
from tandembus.errors import ProtocolError
from tandembus.limits import (
    MAX_OUTPUT_BUFFER,
    READ_BYTES,
    SASL_TIMEOUT_MS,
    SECOND_MS,
    WRITE_STALL_BYTES,
    WRITE_STALL_MS,
)
from tandembus.server import websocket
from tandembus.server.gateway import Gateway
from tandembus.server.namespaces import Choice, Hosted, http_handler, named
from tandembus.server.tls import RECORD, Tls
from tandembus.server.turns import Share
from tandembus.server.web import HttpHandler, Web
from tandembus.store.api import Buffer

if TYPE_CHECKING:
    from tandembus.server.listener import Listener

log = logging.getLogger("tandembus.server")

_PATIENCE_S: Final = SASL_TIMEOUT_MS / SECOND_MS
_STALL_S: Final = WRITE_STALL_MS / SECOND_MS
_FAREWELL_S: Final = 2.0
"""For what is still to be written and read over when we hang up."""
_AMQP: Final = b"AMQP"


class Peer(asyncio.Protocol):
    __slots__ = (
        "_first", "_gateway", "_has_more", "_hosted", "_is_clogged", "_is_held_back",
        "_is_in_handshake", "_is_leaving", "_listener", "_patience", "_pending", "_share",
        "_socket", "_stall", "_taken_from", "_tls", "_transport", "_web", "address", "heard_at",
        "is_busy", "is_stranger", "serve_http", "turns",
    )  # fmt: skip

    def __init__(self, listener: Listener, address: str, hosted: tuple[Hosted, ...]) -> None:
        self._hosted = hosted
        """The namespaces that it can mean."""
        self.address = address
        """As the door counts it."""
        self.is_stranger = True
        self.turns = listener.directory.turns
        self.serve_http: HttpHandler
        self.heard_at = listener.loop.time()
        """When something came last; kept up to date for strangers only."""
        self._listener = listener
        self._transport: asyncio.Transport
        self._first = b""
        self._pending = b""
        """Read, and not looked at yet."""
        self._share: Share
        self._tls: Tls | None = None
        self._gateway: Gateway | None = None
        self._web: Web | None = None
        self._socket: websocket.WebSocket | None = None
        self._is_held_back = False
        self._is_clogged = False
        self.is_busy = False
        """Whether we work on what it sent, and leave it unread."""
        self._is_in_handshake = False
        self._is_leaving = False
        self._has_more = False
        self._taken_from = 0
        """What was waiting to be written when it was last looked whether the peer takes it."""
        self._patience: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    # --- the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have its methods, and are none by their type.
        transport = self._transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=MAX_OUTPUT_BUFFER)
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES  # asyncio's own: 256 KiB, fresh for each read
        self._listener.peers.add(self)
        self._patience = self._listener.loop.call_later(_PATIENCE_S, self._lose_patience)

    def connection_lost(self, error: Exception | None) -> None:
        for timer in (self._patience, self._stall):
            if timer is not None:
                timer.cancel()
        if self._web is not None:
            self._web.lost()
        if self._gateway is not None:
            if self._pending:  # it came before the end
                self._gateway.receive(self._pending)
            self._gateway.lost()
            self._gateway = None
            self._listener.oversight.connections.closed += 1
        if self._is_in_handshake:
            self._is_in_handshake = False
            self._listener.handshakes.leave()
        self._listener.lost(self)

    def data_received(self, data: bytes) -> None:
        if self._is_leaving:
            return
        if self._tls is not None:
            self._receive_records(data)
        else:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        if self._socket is not None:
            self._receive_framed(data)
        elif self._gateway is not None:
            self._feed(data)
        else:
            self.heard_at = self._listener.loop.time()
            if self._web is not None:
                self._web.receive(data)
            else:
                self._first += data
                if len(self._first) >= len(_AMQP):
                    data, self._first = self._first, b""
                    self._decide(data)

    def _feed(self, data: bytes) -> None:
        """AMQP: at once, or behind the others if this peer has had its share."""
        now = perf_counter()
        if self.is_stranger:
            self.heard_at = self._listener.loop.time()
        if self._share.at(now) > 0:
            self.turns.note_light(now)
        elif self.turns.has_waiting:
            self._pending += data
            self._has_more = True
            self.turns.add(self)
            self.hold_back()
            return
        self._work(data)

    def _work(self, data: bytes) -> None:
        if self._gateway is None:
            return
        began = thread_time()
        self._has_more = self._gateway.receive(data)
        self._share.left -= thread_time() - began
        if self._has_more:
            self.turns.add(self)
        elif self._socket is not None and self._socket.has_more:
            self._has_more = True
            self.turns.add(self)
        self.hold_back()

    def go_on(self) -> None:
        """With the rest of what was read in an earlier turn."""
        if self._is_leaving or self._transport.is_closing() or self._gateway is None:
            return
        data, self._pending = self._pending, b""
        if data or self._gateway.connection.has_more or self._socket is None:
            self._work(data)
        else:
            self._receive_framed(b"")

    def pause_writing(self) -> None:
        self._is_clogged = True
        if self._gateway is not None:
            self._gateway.is_stalled = True
        self._taken_from = self.waiting_bytes
        if self._stall is None:
            self._stall = self._listener.loop.call_later(_STALL_S, self._look_at_stall)
        self.hold_back()
        self._listener.clogged(self)

    def resume_writing(self) -> None:
        self._is_clogged = False
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._listener.unclogged(self)
        if self._gateway is not None:
            self._gateway.unclogged()
        self.hold_back()

    @property
    def is_secure(self) -> bool:
        return self._tls is not None

    @property
    def waiting_bytes(self) -> int:
        """Written, and not taken by the peer."""
        return self._transport.get_write_buffer_size()

    def _look_at_stall(self) -> None:
        left = self.waiting_bytes
        if left > self._taken_from - WRITE_STALL_BYTES:
            log.info("%s: hung up: it does not take what is sent", self._name)
            self._transport.abort()
        else:
            self._taken_from = left
            self._stall = self._listener.loop.call_later(_STALL_S, self._look_at_stall)

    def hold_back(self) -> bool:
        """Read from the peer, or do not. True if it has to be looked at again soon."""
        if self._is_leaving or self._transport.is_closing():
            return False
        waits = self._gateway is not None and not self._gateway.can_read
        may_read = not (waits or self._is_clogged or self._has_more or self.is_busy)
        if may_read and self._is_held_back:
            self._transport.resume_reading()
        elif not may_read and not self._is_held_back:
            self._transport.pause_reading()
        self._is_held_back = not may_read
        if waits:
            self._listener.look_again_at(self)
        return waits

    def be_busy(self, is_busy: bool) -> None:
        self.is_busy = is_busy
        self.hold_back()

    # --- the end ----------------------------------------------------------------------------------

    def means(self, hosted: Hosted) -> bool:
        """Whether it speaks to this namespace, or to none yet but this."""
        if self._gateway is not None:
            return self._gateway.broker is hosted.broker
        return self._hosted == (hosted,)

    def drain(self) -> None:
        """The broker will stop: what is under way may come to its end."""
        if self._gateway is not None:
            self._gateway.drain()

    @property
    def is_at_rest(self) -> bool:
        """Whether it can go without losing anything."""
        return not self.is_busy and (self._gateway is None or self._gateway.is_at_rest)

    @property
    def is_leaving(self) -> bool:
        return self._is_leaving or self._transport.is_closing()

    def close(self) -> None:
        """The broker stops."""
        if self._gateway is not None:
            self._gateway.shut_down()
        else:
            self.hang_up()

    def hang_up(self) -> None:
        """After what is to be written, and what the peer still says is read over: a socket that is
        closed with something unread in it takes back what it has sent, and the peer would not learn
        why. But nobody can keep us for ever."""
        if self._transport.is_closing() or self._is_leaving:
            return
        self._is_leaving = True
        if self._tls is not None and self._tls.is_established:
            self._transport.write(self._tls.close())
        with suppress(OSError):  # it has gone, and the loop does not know yet
            self._transport.write_eof()
        self._transport.resume_reading()
        if self._stall is not None:
            self._stall.cancel()
        self._stall = self._listener.loop.call_later(_FAREWELL_S, self._transport.abort)

    def abort(self) -> None:
        self._transport.abort()

    def _lose_patience(self) -> None:
        self._patience = None
        if self._gateway is None and self._web is None:
            self._transport.abort()

    def become_known(self) -> None:
        """SASL and open are done, or a first request was allowed."""
        if self.is_stranger:
            self.is_stranger = False
            self._listener.became_known(self)
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

    @property
    def _name(self) -> str:
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "a peer"

    # --- TLS --------------------------------------------------------------------------------------

    def _begin_tls(self, data: bytes) -> None:
        context = self._listener.tls
        if context is None:
            self._transport.abort()
            return
        self._tls = Tls(context)
        self._tls.feed(data)
        self.be_busy(True)
        self._listener.handshakes.enter(self._shake)
        if self._listener.handshakes.waiting:
            self._listener.make_room_soon()

    def _shake(self) -> None:
        """There is room for this handshake."""
        assert self._tls is not None
        self._is_in_handshake = True
        if self._transport.is_closing():
            self._is_in_handshake = False
            self._listener.handshakes.leave()
        else:
            self._listener.handshakes.go_on(self._tls, self._shaken)

    def _shaken(self, error: ssl.SSLError | None) -> None:
        """A step of the handshake is done, in its thread."""
        tls = self._tls
        assert tls is not None
        if self._is_leaving or self._transport.is_closing():
            return
        self.heard_at = self._listener.loop.time()
        self._transport.write(tls.to_send())
        if error is not None:
            log.debug("%s: no TLS: %s", self._name, error)
            self.hang_up()
            return
        if tls.is_established:
            self._is_in_handshake = False
            self._listener.handshakes.leave()
            self._read_records()
        self.be_busy(False)

    def _receive_records(self, data: bytes) -> None:
        tls = self._tls
        assert tls is not None
        tls.feed(data)
        if tls.is_established:
            self._read_records()
        else:
            self.heard_at = self._listener.loop.time()
            self.be_busy(True)
            self._listener.handshakes.go_on(tls, self._shaken)

    def _read_records(self) -> None:
        tls = self._tls
        assert tls is not None
        try:
            data = tls.read()
        except ssl.SSLError as error:
            log.debug("%s: TLS broke: %s", self._name, error)
            self._transport.abort()
            return
        said = tls.to_send()
        if said:
            self._transport.write(said)
        if data:
            self._receive(data)
        if tls.is_closed:
            self.hang_up()

    def send(self, data: bytes) -> None:
        self._write((data,))

    def _write(self, data: Sequence[Buffer]) -> None:
        if self._is_leaving or self._transport.is_closing():
            return
        if self._tls is None:
            # Not writelines: in releases of Python 3.12 and 3.13 it does not notice a connection
            # that is lost (cpython#136234), and never pauses the writer (CVE-2024-12254).
            self._transport.write(b"".join(data))
        else:
            try:
                self._transport.write(self._tls.write(data))
            except ssl.SSLError as error:
                log.debug("%s: TLS broke: %s", self._name, error)
                self._transport.abort()

    # --- which protocol ---------------------------------------------------------------------------

    def _decide(self, data: bytes) -> None:
        if not self._hosted:  # the namespace of this port has gone
            self._transport.abort()
        elif data.startswith(_AMQP):
            self._begin_amqp(self._write)
            self._feed(data)
        elif data.startswith(RECORD) and self._tls is None:
            self._begin_tls(data)
        else:
            chosen = http_handler(self._hosted, self._server_name)
            self.serve_http = self._listener.oversight.over(chosen)
            self._web = Web(self)
            self._web.receive(data)

    def _begin_amqp(
        self, write: Callable[[Sequence[Buffer]], None], host: str | None = None
    ) -> None:
        hosted = named(named(self._hosted, self._server_name), host)
        self._listener.oversight.connections.opened += 1
        self._gateway = Gateway(
            hosted[0].broker,
            write,
            self.hang_up,
            peer=self._name,
            on_open=self.become_known,
            choice=Choice(hosted) if len(hosted) > 1 else None,
        )
        self._share = self._gateway.share

    @property
    def _server_name(self) -> str | None:
        return None if self._tls is None else self._tls.server_name

    # --- WebSocket --------------------------------------------------------------------------------

    def upgrade(self, request: http.Request, rest: Callable[[], bytes]) -> None:
        response = websocket.answer(request)
        self.send(http.encode(response, keep_alive=response.status == 101))
        if response.status != 101:
            self.hang_up()
            return
        self._web = None
        self._socket = websocket.WebSocket()
        self._begin_amqp(self._write_framed, request.headers.get("host"))
        data = rest()
        if data:
            self._receive_framed(data)

    def _receive_framed(self, data: bytes) -> None:
        unframer = self._socket
        assert unframer is not None
        began = thread_time()
        try:
            stream = unframer.receive(data)
        except ProtocolError as error:
            log.info("%s: %s", self._name, error)
            self.hang_up()
            return
        self._share.left -= thread_time() - began
        if unframer.out:
            self._write(unframer.out)
            unframer.out.clear()
        if unframer.is_closed:
            self.hang_up()
        elif stream or unframer.has_more:
            self._feed(stream)
        else:
            self._has_more = False
            self.hold_back()

    def _write_framed(self, data: Sequence[Buffer]) -> None:
        size = sum(map(len, data))
        self._write([websocket.framed(size), *data])
