"""A broker in a thread of the test's own process: the same server, started in a few hundredths of a
second, with nothing on disk unless a folder is given.

The thread has an event loop of its own, so a test may block, or run another loop.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from tandem.app import ServeOptions, Server
from tandem.clock import MovableClock
from tandem.store.api import Store
from tandem.store.memory import MemoryStore
from tandem.testing.broker import PATIENCE_S, BrokerClock, TestBroker

T = TypeVar("T")


class LocalBroker(TestBroker):
    """Use `start`; as a context it stops at the end."""

    def __init__(
        self,
        options: ServeOptions,
        store: Store | None,
        owned: tempfile.TemporaryDirectory[str] | None,
    ) -> None:
        self.options = options
        self._store = store
        self._owned = owned
        self._clock = MovableClock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tandem-broker", daemon=True
        )
        self._thread.start()
        self.server: Server | None = None
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @classmethod
    def start(
        cls,
        folder: Path | None = None,
        *,
        store: Store | None = None,
        certificate: Path | None = None,
        private_key: Path | None = None,
    ) -> Self:
        """Without a folder, nothing is kept beyond the end (`store` is what it keeps until then).
        The key is the emulator's. With a certificate, TLS is on the same port."""
        owned = None
        if folder is None:
            owned = tempfile.TemporaryDirectory(prefix="tandem-")
            folder = Path(owned.name)
            store = MemoryStore() if store is None else store
        options = ServeOptions(
            folder,
            ports=(0,),
            is_emulator=True,
            certificate=certificate,
            private_key=private_key,
        )
        return cls(options, store, owned)

    def _begin(self) -> None:
        self.server = self._run(Server.start(self.options, clock=self._clock, store=self._store))
        self.connection_string = self.server.connection_string

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the broker's thread; the test waits."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    @property
    def clock(self) -> BrokerClock:
        return BrokerClock(lambda ms: self._run(self._move(ms)))

    async def _move(self, ms: int) -> int:
        self._clock.advance(ms)
        if self.server is not None:
            await self.server.broker.engine.catch_up()
        return self._clock.now_ms()

    def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            self._run(server.stop())

    def restart(self) -> None:
        """Again with what it has kept, after `stop`. On another port."""
        if isinstance(self._store, MemoryStore):
            self._store = self._store.reopened()
        self._begin()

    def close(self) -> None:
        try:
            self.stop()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()
            if self._owned is not None:
                self._owned.cleanup()
