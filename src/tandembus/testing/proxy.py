"""A long line in a short cable: a TCP proxy that lets every byte wait, in both directions.

Nothing else of the line changes: bytes keep their order, any number are under way at a time, and a
side that hangs up is heard as late as its bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from types import TracebackType
from typing import Final, Self

_PATIENCE_S: Final = 30


class DelayingProxy:
    """Listens on a free port of localhost and passes everything on to `port`, half of
    `round_trip_ms` later. As a context it ends with its connections."""

    def __init__(self, port: int, round_trip_ms: float, host: str = "localhost") -> None:
        self._target = (host, port)
        self._delay_s = round_trip_ms / 2000
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tandem-proxy", daemon=True
        )
        self._ends: set[asyncio.Transport] = set()
        self._thread.start()
        try:
            started = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
            self._server = started.result(_PATIENCE_S)
        except BaseException:
            self._end_loop()
            raise
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Outer(self), "127.0.0.1", 0)

    def connection_string(self, direct: str) -> str:
        """A connection string of the broker, by way of this."""
        host, port = self._target
        return direct.replace(f"{host}:{port}", f"127.0.0.1:{self.port}", 1)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_PATIENCE_S)
        self._end_loop()

    async def _close(self) -> None:
        self._server.close()
        for end in list(self._ends):
            end.abort()
        await asyncio.sleep(0)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _End(asyncio.Protocol):
    """One end of a connection; what comes in here goes out at `other`, later."""

    def __init__(self, proxy: DelayingProxy) -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[bytes] = deque()
        self._due = 0
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._proxy._ends.add(transport)

    def data_received(self, data: bytes) -> None:
        self._later(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is not None:
            self._proxy._ends.discard(self.transport)
        self._later(b"")

    def _later(self, data: bytes) -> None:
        """Timers of equal length go off in their order, so each stands for the oldest."""
        self._waiting.append(data)
        self._loop.call_later(self._proxy._delay_s, self._pass_on)

    def _pass_on(self) -> None:
        self._due += 1
        self.flush()

    def flush(self) -> None:
        """Pass on what has waited long enough, if the other end is there already."""
        if self.other is None or self.other.transport is None:
            return
        while self._due:
            self._due -= 1
            data = self._waiting.popleft()
            if data:
                self.other.transport.write(data)
            else:
                self.other.transport.close()


class _Outer(_End):
    """The end that a client has connected to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._task = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        inner = _End(self._proxy)
        inner.other = self
        with contextlib.suppress(OSError):
            await self._loop.create_connection(lambda: inner, *self._proxy._target)
            self.other = inner
            self.flush()
            return
        if self.transport is not None:
            self.transport.abort()
