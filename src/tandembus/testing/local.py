"""A broker in a thread of the test's own process: the same server, started in a few hundredths of a
second, with nothing on disk unless a folder is given.

The thread has an event loop of its own, so a test may block, or run another loop.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from tandembus.app import ROOT_POLICY, Served, Server, reset
from tandembus.clock import MovableClock
from tandembus.config import NamespaceConfig, ServerConfig
from tandembus.core.access import Policy, Right, Secret
from tandembus.store.api import Store
from tandembus.store.memory import MemoryStore
from tandembus.testing.broker import PATIENCE_S, BrokerClock, TestBroker

T = TypeVar("T")


class LocalBroker(TestBroker):
    """Use `start`; as a context it stops at the end."""

    def __init__(
        self,
        options: ServerConfig,
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
        options = ServerConfig(
            folder,
            ports=(0,),
            is_emulator=True,
            certificate=certificate,
            private_key=private_key,
        )
        return cls(options, store, owned)

    def _begin(self) -> None:
        self.server = self.run(Server.start(self.options, clock=self._clock, store=self._store))
        self.connection_string = self.server.connection_string

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the broker's thread; the test waits."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    @property
    def clock(self) -> BrokerClock:
        return BrokerClock(lambda ms: self.run(self._move(ms)))

    async def _move(self, ms: int) -> int:
        self._clock.advance(ms)
        if self.server is not None:
            await self.server.broker.engine.catch_up()
        return self._clock.now_ms()

    def reset(self, *, keep_entities: bool = False) -> None:
        assert self.server is not None, "it runs"
        self.run(reset(self.server.broker, keep_entities))

    def namespace(self) -> LocalNamespace:
        """A new namespace in the same process: nobody else's entities, a key and a clock of its
        own. It costs a few milliseconds. Close it, or use it as a context."""
        assert self.server is not None, "it runs"
        return LocalNamespace(self)

    def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            self.run(server.stop())

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


_numbers = itertools.count(1)


class LocalNamespace(TestBroker):
    """A namespace of its own in a `LocalBroker`: use `LocalBroker.namespace`. It is told from the
    others by its key, so it shares their port."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._clock = MovableClock()
        self._store = MemoryStore()
        self._name = f"test-{next(_numbers)}"
        key = Secret(secrets.token_urlsafe(24))
        self._policies = (Policy(ROOT_POLICY, Right.ALL, key, key),)
        self._served: Served | None = None
        self.restart()

    def restart(self) -> None:
        """Again with what it has kept, after `stop`."""
        broker = self._broker
        assert broker.server is not None, "its broker runs"
        config = NamespaceConfig(self._name, broker.options.folder)
        self._served = broker.run(
            broker.server.open(config, self._store, policies=self._policies, clock=self._clock)
        )
        self.connection_string = broker.server.connection_string_of(self._served)

    @property
    def clock(self) -> BrokerClock:
        return BrokerClock(lambda ms: self._broker.run(self._move(ms)))

    async def _move(self, ms: int) -> int:
        self._clock.advance(ms)
        if self._served is not None:
            await self._served.broker.engine.catch_up()
        return self._clock.now_ms()

    def reset(self, *, keep_entities: bool = False) -> None:
        assert self._served is not None, "it runs"
        self._broker.run(reset(self._served.broker, keep_entities))

    def stop(self) -> None:
        served, self._served = self._served, None
        server = self._broker.server
        if served is not None and server is not None and served in server.namespaces:
            self._broker.run(server.close(served))
            self._store = self._store.reopened()

    def close(self) -> None:
        self.stop()
