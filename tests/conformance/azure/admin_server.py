"""The administration API on a real engine behind TLS, as small as the official SDK lets it be.

It insists on https, so there is a certificate of our own; the listener knows HTTP and nothing else.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

import pytest

from tandembus import http
from tandembus.admin.api import AdminApi
from tandembus.clock import SystemClock
from tandembus.core.access import Authority, Claims, Policy, Right, Secret, everything, require
from tandembus.core.commands import Command
from tandembus.core.namespace import Namespace
from tandembus.engine.aio import AsyncEngine
from tandembus.errors import EntityNotFoundError, UnauthorizedError
from tandembus.model import Millis
from tandembus.settings import QueueSettings, TopicSettings
from tandembus.store.files import FileStore
from tests.unit.engine.world import Plain

KEY_NAME: Final = "RootManageSharedAccessKey"
KEY: Final = "c2VjcmV0IG9mIHRoZSB0ZXN0cyBvbmx5IQ=="
BEARER: Final = "a-token-of-the-tests"


class Broker:
    """`tandembus.admin.api.Broker` on an engine."""

    name = "tests"

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._clock = SystemClock()
        root = Policy(KEY_NAME, Right.ALL, Secret(KEY), Secret("another"))
        reader = Policy("reader", Right.LISTEN, Secret(KEY), Secret(KEY))
        self._authority = Authority([root, reader], self._policies_of)

    @property
    def namespace(self) -> Namespace:
        return self._engine.engine.namespace

    async def execute(self, command: Command, claims: Claims) -> Any:
        require(claims, command, self.now_ms())
        return await self._engine.execute(command)

    def authorize(self, authorization_header: str | None, resource: str) -> Claims:
        if authorization_header is None:
            raise UnauthorizedError("MissingToken: The authorization header was not found.")
        if authorization_header == f"Bearer {BEARER}":
            return everything()
        claims = Claims()
        claims.add(self._authority.grant(authorization_header, resource, self.now_ms()))
        return claims

    def _policies_of(self, path: str) -> list[Policy]:
        try:
            settings = self.namespace.find(path).settings
        except EntityNotFoundError:
            return []
        if not isinstance(settings, QueueSettings | TopicSettings):
            return []
        return [Policy.of(rule) for rule in settings.authorization_rules]

    def now_ms(self) -> Millis:
        return self._clock.now_ms()

    def new_tracking_id(self) -> str:
        return str(uuid4())


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate, key) for localhost, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate, and is not there")
    certificate, key = folder / "localhost.pem", folder / "localhost.key"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-nodes", "-days", "2"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


class AdminServer:
    """In a thread with its own loop, since half of the clients are blocking ones."""

    def __init__(self, folder: Path, *, is_premium: bool = False, use_tls: bool = True) -> None:
        self._folder = folder
        self._is_premium = is_premium
        self._tls: ssl.SSLContext | None = None
        self.certificate = folder
        if use_tls:
            self.certificate, key = make_certificate(folder)
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(self.certificate, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="admin-server")
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> AdminServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
            self._loop.close()

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    @property
    def connection_string(self) -> str:
        return f"Endpoint=sb://{self.host}/;SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"

    def execute(self, command: Command) -> Any:
        """What another road would do."""
        done = self._engine.execute(command)
        return asyncio.run_coroutine_threadsafe(done, self._loop).result(30)

    async def _open(self) -> None:
        self._engine = await AsyncEngine.open(
            FileStore(self._folder / "log"),
            decode=Plain,
            on_effect=lambda effect: None,
            on_failure=lambda error: None,
        )
        self._api = AdminApi(Broker(self._engine), is_premium=self._is_premium)
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self._tls, limit=1 << 16
        )
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0.001)
        await self._server.wait_closed()
        await self._engine.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        parser = http.Parser()
        try:
            is_open = True
            while is_open and (data := await reader.read(1 << 16)):
                for event in parser.feed(data):
                    match event:
                        case http.Expected():
                            writer.write(http.CONTINUE)
                        case http.Broken(response):
                            writer.write(http.encode(response, keep_alive=False))
                            is_open = False
                        case http.Request():
                            response = await self._api.handle(event)
                            is_open = event.keep_alive
                            writer.write(http.encode(response, keep_alive=is_open))
                await writer.drain()
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            writer.transport.abort()
        finally:
            await asyncio.sleep(0)  # the transport lets go of its socket in the next turn
            self._writers.discard(writer)
