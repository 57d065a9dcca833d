"""TLS on bytes in memory: a connection costs what OpenSSL needs, and nothing more.

asyncio's own TLS keeps a read buffer of 256 KiB for each connection (RELIABILITY.md S17). Here are
the two ends of memory that OpenSSL reads from and writes to, and the one thread in which handshakes
are worked out, so that the loop goes on meanwhile. Sockets are not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import sleep, thread_time
from typing import Final

from tandembus.limits import MAX_TLS_HANDSHAKES, READ_BYTES
from tandembus.store.api import Buffer

RECORD: Final = b"\x16\x03"
"""The first bytes of a client's hello."""


def harden(context: ssl.SSLContext) -> ssl.SSLContext:
    """No version below 1.2, no renegotiation (a handshake for a few bytes, as often as a peer
    likes), and no tickets: clients that make a new connection make a new handshake, and nothing is
    kept for those that went."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.sni_callback = _note_name
    return context


def _note_name(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: object) -> None:
    """The host name that the peer asks for; OpenSSL does not tell it later."""
    connection.asked_for = name  # type: ignore[union-attr]


class Tls:
    """The server's end on one connection. Every method may raise `ssl.SSLError`."""

    __slots__ = ("_in", "_object", "_out", "is_closed", "is_established")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_established = False
        self.is_closed = False
        """Whether the peer has said that nothing more comes."""

    def feed(self, data: bytes) -> None:
        self._in.write(data)

    def shake(self) -> None:
        """Go on with the handshake. The only slow call, and it can run in any thread."""
        try:
            self._object.do_handshake()
            self.is_established = True
        except ssl.SSLWantReadError:
            pass

    def read(self) -> bytes:
        """All that can be read now."""
        pieces: list[bytes] = []
        try:
            while not self.is_closed:
                piece = self._object.read(READ_BYTES)
                if not piece:
                    self.is_closed = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_closed = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, data: Sequence[Buffer]) -> bytes:
        """The records of `data`, and of what else TLS has to say."""
        rest = memoryview(data[0] if len(data) == 1 else b"".join(data))
        while len(rest):
            rest = rest[self._object.write(rest) :]
        return self._out.read()

    @property
    def server_name(self) -> str | None:
        """The host that the peer wanted to reach, if it said so."""
        return getattr(self._object, "asked_for", None)

    def to_send(self) -> bytes:
        """What TLS has to say by itself."""
        return self._out.read()

    def close(self) -> bytes:
        """Our last record."""
        with contextlib.suppress(ssl.SSLError):  # the peer has not answered, or never will
            self._object.unwrap()
        return self._out.read()


Shaken = Callable[[ssl.SSLError | None], None]


class Handshakes:
    """Handshakes of one listener: a number at a time, worked out in one thread."""

    def __init__(
        self, is_crowded: Callable[[], bool] = lambda: False, most: int = MAX_TLS_HANDSHAKES
    ) -> None:
        """`is_crowded`: whether somebody is served who asks for little. Then the thread rests for
        as long as it works: handshakes are the most costly thing that strangers can ask for."""
        self._is_crowded = is_crowded
        self._most = most
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tandem-tls")
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self.under_way = 0
        self.waiting: deque[Callable[[], None]] = deque()

    def enter(self, begin: Callable[[], None]) -> None:
        """`begin` is called when there is room: now, or later. Then `leave` must follow."""
        if self.under_way < self._most:
            self.under_way += 1
            begin()
        else:
            self.waiting.append(begin)

    def leave(self) -> None:
        self.under_way -= 1
        if self.waiting:
            self.under_way += 1
            self._loop.call_soon(self.waiting.popleft())

    def go_on(self, tls: Tls, done: Shaken) -> None:
        """One step of a handshake; `done` gets what went wrong."""
        if self._is_closed:
            return  # its connection is being closed, too
        step = self._loop.run_in_executor(self._thread, self._shake, tls)
        step.add_done_callback(partial(_report, done))

    def _shake(self, tls: Tls) -> None:
        began = thread_time()
        try:
            tls.shake()
        finally:
            if self._is_crowded():
                sleep(thread_time() - began)

    def close(self) -> None:
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


def _report(done: Shaken, step: asyncio.Future[None]) -> None:
    if step.cancelled():
        return
    error = step.exception()
    if error is not None and not isinstance(error, ssl.SSLError):
        raise error
    done(error)
