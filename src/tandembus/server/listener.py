"""One port that serves all: it looks at the first bytes and takes AMQP, TLS, HTTP or a WebSocket.

Here are the sockets that listen, who is let in, and what all connections share; one connection is
`peer`. The rules: every count has its limit; a few are accepted in each turn of the loop, so that a
flood of them does not keep those waiting who are inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final

from tandembus.limits import DOOR_SILENCE_MS, MAX_CONNECTIONS, MAX_OUTPUT_TOTAL, SECOND_MS
from tandembus.server.certificate import Certificate
from tandembus.server.door import Answer, Door
from tandembus.server.health import Oversight
from tandembus.server.namespaces import Directory, Hosted
from tandembus.server.peer import Peer
from tandembus.server.tls import Handshakes, harden

log = logging.getLogger("tandembus.server")

_BACKLOG: Final = 1_024
_ACCEPTED_AT_ONCE: Final = 2
_LOOK_AGAIN_S: Final = 0.005
"""How soon a peer that was held back is looked at again: about one commit."""
_SILENCE_S: Final = DOOR_SILENCE_MS / SECOND_MS
_MAKE_ROOM_S: Final = 0.01
_TIDY_AFTER: Final = 1_000
_TIDY_S: Final = 60.0
_COMPLAIN_EVERY_S: Final = 10.0
_LOOK_AROUND_S: Final = 0.02
_LOOK_AT_FILES_S: Final = 2.0
_NO_SUCH_FAMILY: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""How a machine without IPv6 says so."""


class Listener:
    """Bound ports. `tls` None: TLS is refused. `is_loopback_only`: so is every peer that is not on
    this machine, by its own address and not by the one it came to (RELIABILITY.md S12)."""

    def __init__(
        self,
        directory: Directory,
        tls: ssl.SSLContext | None = None,
        *,
        is_loopback_only: bool = False,
        max_connections: int = MAX_CONNECTIONS,
        door: Door[socket.socket] | None = None,
        oversight: Oversight | None = None,
    ) -> None:
        self.directory = directory
        self.oversight = oversight or Oversight(directory)
        self.tls = None if tls is None else harden(tls)
        self.loop = asyncio.get_running_loop()
        self.handshakes = Handshakes(lambda: self.directory.turns.is_crowded)
        self.peers: set[Peer] = set()
        self.door: Door[socket.socket] = door or Door()
        self._is_loopback_only = is_loopback_only
        self._max_connections = max_connections
        self._strangers: dict[Peer, None] = {}
        """Inside, and not known yet; the oldest first."""
        self._held_back: set[Peer] = set()
        self._clogged: set[Peer] = set()
        self._sockets: list[socket.socket] = []
        self._arriving: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_admitting = False
        self._gone = 0
        self._complained_at = -_COMPLAIN_EVERY_S

    async def bind(self, host: str, port: int) -> int:
        """Listen on every address of `host`, or on none; 0 takes a free port. Returns the port."""
        found = await self.loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound: list[socket.socket] = []
        for family, kind, protocol, _, address in sorted(dict.fromkeys(found)):
            try:
                listening = _listening(family, kind, protocol, (address[0], port, *address[2:]))
            except OSError as error:
                if bound and error.errno in _NO_SUCH_FAMILY:
                    continue
                for each in bound:
                    each.close()
                why = f"cannot listen on {address[0]}:{port}: {error.strerror}"
                raise OSError(error.errno, why) from error
            bound.append(listening)
            port = listening.getsockname()[1]
        for listening in bound:
            self._sockets.append(listening)
            self.listen_to(listening)
        return port

    async def drain(self, seconds: float) -> None:
        """Take no more peers, hand out no more messages, and let go of each peer as soon as nothing
        of it is unsettled; of all others after that time. Their clients come back elsewhere."""
        self.oversight.is_draining = True
        self._stop_listening()
        for peer in list(self.peers):
            peer.drain()
        until = self.loop.time() + seconds
        while self.loop.time() < until:
            staying = [peer for peer in self.peers if not peer.is_leaving]
            if not staying:
                return
            for peer in staying:
                if peer.is_at_rest:
                    peer.close()
            await asyncio.sleep(_LOOK_AROUND_S)
        log.warning("%d connections had not come to their end", len(self.peers))

    def _stop_listening(self) -> None:
        for listening in self._sockets:
            self.loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets.clear()

    async def close(self) -> None:
        """Take no more peers, and let go of those that are there."""
        self._stop_listening()
        for waiting in self.door.clear():
            waiting.close()
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._arriving):
            task.cancel()
        for peer in list(self.peers):
            peer.close()
        self.handshakes.close()
        await asyncio.sleep(0)
        for peer in list(self.peers):
            peer.abort()
        await asyncio.sleep(0)

    def keep(self, certificate: Certificate) -> None:
        """Serve this certificate, and what its files hold later."""
        self.tls = harden(certificate.load())
        self._watch(certificate)

    def _watch(self, certificate: Certificate) -> None:
        fresh = certificate.refresh()
        if fresh is not None:
            self.tls = harden(fresh)
        self._later("certificate", _LOOK_AT_FILES_S, partial(self._watch, certificate))

    def let_go(self, hosted: Hosted) -> None:
        """Of the peers of a namespace that is served no longer."""
        for peer in list(self.peers):
            if peer.means(hosted):
                peer.close()

    # --- who comes in -----------------------------------------------------------------------------

    def _on_arrival(self, listening: socket.socket) -> None:
        """Somebody knocks. Those who are inside and ask for little come first."""
        if self.directory.turns.is_crowded:
            self.loop.remove_reader(listening.fileno())
            self.directory.turns.add(_Arrival(self, listening))
        else:
            self.accept(listening)

    def accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, name = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptors left: those who come wait in the queue
                self._complain(f"cannot accept: {error}")
                self.loop.remove_reader(listening.fileno())
                self._later("accept", 0.1, self._listen_again)
                return
            if self._is_loopback_only and not is_loopback(name[0]):
                self._complain(f"{name[0]}: refused: only peers on this machine are served")
                accepted.close()
                continue
            if len(self.peers) + len(self._arriving) >= self._max_connections:
                self._complain(f"ConnectionsQuotaExceeded: {len(self.peers)} are open")
                accepted.close()
                continue
            address = _network(name[0])
            match self.door.knock(address, accepted):
                case Answer.COME_IN:
                    self._let_in(accepted, address)
                case Answer.WAIT:
                    self.make_room_soon()
                case Answer.GO_AWAY:
                    self._complain(f"too many unauthenticated connections: {address} has to wait")
                    accepted.close()

    def _listen_again(self) -> None:
        for listening in self._sockets:
            self.listen_to(listening)

    def listen_to(self, listening: socket.socket) -> None:
        self.loop.add_reader(listening.fileno(), self._on_arrival, listening)

    def _let_in(self, accepted: socket.socket, address: str) -> None:
        task = self.loop.create_task(self._take(accepted, address))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _take(self, accepted: socket.socket, address: str) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(self, address, self.directory.at(accepted.getsockname()[1]))
            self._strangers[peer] = None
            await self.loop.connect_accepted_socket(lambda: peer, accepted)
        except OSError as error:
            log.debug("a peer went before it had begun: %s", error)
            with contextlib.suppress(OSError):
                accepted.close()
            self.became_known(peer)

    def _make_room(self) -> None:
        """Somebody waits: strangers that say nothing go, a few at a time."""
        if self.door.waiting or self.handshakes.waiting:
            since = self.loop.time() - _SILENCE_S
            silent = (
                peer
                for peer in self._strangers
                if peer.heard_at < since and not peer.is_busy and peer in self.peers
            )
            for peer in list(islice(silent, _ACCEPTED_AT_ONCE)):
                peer.abort()
            self.make_room_soon()

    def make_room_soon(self) -> None:
        self._later("door", _MAKE_ROOM_S, self._make_room)

    def became_known(self, peer: Peer) -> None:
        """A stranger has gone, or is none any more: the next may come in."""
        if peer in self._strangers:
            del self._strangers[peer]
            self.door.leave(peer.address)
            if self.door.waiting and not self._is_admitting:
                self._is_admitting = True
                self.directory.turns.add(_Admission(self))

    def admit(self) -> bool:
        """Some of those who wait at the door. Whether that was all for now."""
        for _ in range(_ACCEPTED_AT_ONCE):
            following = self.door.next()
            if following is None:
                self._is_admitting = False
                return True
            address, accepted = following
            self._let_in(accepted, address)
        return False

    def lost(self, peer: Peer) -> None:
        self.peers.discard(peer)
        self._held_back.discard(peer)
        self._clogged.discard(peer)
        self.became_known(peer)
        self._gone += 1
        if self._gone >= _TIDY_AFTER:
            self._later("tidy", _TIDY_S, self._tidy)

    def _tidy(self) -> None:
        """Connections leave cycles behind; those that lived long are in nobody's way but memory's
        (`app.prepare_process`)."""
        self._gone = 0
        gc.collect()

    def _complain(self, why: str) -> None:
        """A line in the log, but not one for each connection of a flood."""
        now = self.loop.time()
        if now - self._complained_at >= _COMPLAIN_EVERY_S:
            self._complained_at = now
            log.warning("%s", why)

    def _later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        """Once, however often it is asked for meanwhile."""
        if name not in self._timers:

            def due() -> None:
                del self._timers[name]
                call()

            self._timers[name] = self.loop.call_later(seconds, due)

    # --- who is held back -------------------------------------------------------------------------

    def look_again_at(self, peer: Peer) -> None:
        self._held_back.add(peer)
        self._later("held back", _LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        held_back, self._held_back = self._held_back, set()
        for peer in held_back:
            peer.hold_back()

    def clogged(self, peer: Peer) -> None:
        """A peer does not take what is for it. All of them together may hold so much."""
        self._clogged.add(peer)
        sizes = {each: each.waiting_bytes for each in self._clogged}
        if sum(sizes.values()) > MAX_OUTPUT_TOTAL:
            largest = max(sizes, key=sizes.__getitem__)
            self._complain(f"too much waits to be read: {sizes[largest]} bytes of one are dropped")
            largest.abort()

    def unclogged(self, peer: Peer) -> None:
        self._clogged.discard(peer)


def is_loopback(host: str) -> bool:
    """Whether the address of a peer is one of this machine's own loopback."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _listening(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


class _Arrival:
    """Connections that wait for their turn to be accepted."""

    __slots__ = ("_listener", "_listening")

    def __init__(self, listener: Listener, listening: socket.socket) -> None:
        self._listener = listener
        self._listening = listening

    def go_on(self) -> None:
        if self._listening.fileno() >= 0:  # else we stop
            self._listener.listen_to(self._listening)
            self._listener.accept(self._listening)


class _Admission:
    """Those at the door, who come in behind those who are inside."""

    __slots__ = ("_listener",)

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def go_on(self) -> None:
        if not self._listener.admit():
            self._listener.directory.turns.add(self)


def _network(address: str) -> str:
    """What counts as one address: of IPv6 the network, since everybody has 2^64 of the others."""
    if ":" not in address:
        return address
    plain = address.partition("%")[0]
    return str(ipaddress.IPv6Network((plain, 64), strict=False).network_address)
