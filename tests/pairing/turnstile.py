"""A TCP proxy that can be shut: to cut a broker off, or to let it fall silent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self

_PATIENCE_S = 30.0


class Way(Enum):
    OPEN = auto()
    CUT = auto()
    """Connections are reset, and new ones too."""
    SILENT = auto()
    """Connections stay, and nothing goes through them."""


class Turnstile:
    """Listens on a free port of localhost and passes everything on to `port`, or not."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._way = Way.OPEN
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def turn(self, way: Way) -> None:
        self._do(self._turn(way))

    async def _turn(self, way: Way) -> None:
        self._way = way
        if way is Way.OPEN:
            self._open.set()
        else:
            self._open.clear()
        if way is Way.CUT:
            for writer in list(self._writers):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            if self._way is Way.CUT:
                return
            await self._open.wait()
            inside, other = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(other)
            there = asyncio.create_task(self._pass_on(reader, other))
            back = asyncio.create_task(self._pass_on(inside, writer))
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            for each in (there, back):
                each.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, other):
                if end is not None:
                    end.transport.abort()
                    self._writers.discard(end)
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._open.wait()
            writer.write(data)
            await writer.drain()

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
