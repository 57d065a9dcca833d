"""The composition root: a data folder becomes a running server.

Here the parts are put together and taken apart again in the right order. What a part does is not
here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.admin.api import AdminApi
from tandem.clock import Clock
from tandem.core.access import Policy, Right, Secret
from tandem.errors import ArgumentError, StoreError
from tandem.server.broker import Broker
from tandem.server.listener import Listener
from tandem.store.files import FileStore

log = logging.getLogger("tandem")

ROOT_POLICY: Final = "RootManageSharedAccessKey"
EMULATOR_KEY: Final = "SAS_KEY_VALUE"
"""The key that Microsoft's emulator takes; ours only on loopback, and only when asked."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
PORT: Final = 5672


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How one namespace is served."""

    folder: Path
    namespace: str = "default"
    host: str = "localhost"
    ports: tuple[int, ...] = (PORT,)
    is_emulator: bool = False
    certificate: Path | None = None
    private_key: Path | None = None

    def validate(self) -> ServeOptions:
        """These options, or ArgumentError naming the one that cannot work."""
        if self.is_emulator and self.host not in LOOPBACK:
            raise ArgumentError(
                f"--emulator takes a key that everybody knows, so --host must be one of "
                f"{', '.join(LOOPBACK)}, not {self.host}."
            )
        if (self.certificate is None) != (self.private_key is None):
            raise ArgumentError("--certificate and --private-key are given together.")
        for port in self.ports:
            if not 0 <= port <= 65_535:
                raise ArgumentError(f"--port is between 0 and 65535, not {port}.")
        return self


class Server:
    """A namespace that is being served. Use `start`."""

    def __init__(
        self,
        options: ServeOptions,
        broker: Broker,
        policies: tuple[Policy, ...],
        failed: asyncio.Future[StoreError],
    ) -> None:
        self.options = options
        self.broker = broker
        self.policies = policies
        self.ports: list[int] = []
        self.failed = failed
        """Has a result when the disk has failed."""
        self._listener = Listener(broker, AdminApi(broker).handle, _tls(options))

    @classmethod
    async def start(cls, options: ServeOptions, *, clock: Clock | None = None) -> Server:
        options.validate()
        policies = read_policies(options.folder)
        if options.is_emulator:
            key = Secret(EMULATOR_KEY)
            kept = tuple(policy for policy in policies if policy.name != ROOT_POLICY)
            policies = (*kept, Policy(ROOT_POLICY, Right.ALL, key, key))
        failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        broker = await Broker.open(
            options.namespace,
            FileStore(options.folder / "log"),
            policies=policies,
            on_failure=failed.set_result,
            clock=clock,
        )
        try:
            server = cls(options, broker, policies, failed)
            for port in options.ports:
                server.ports.append(await server._listener.bind(options.host, port))
        except BaseException:
            await broker.close()
            raise
        return server

    @property
    def connection_string(self) -> str:
        """For an SDK on this machine, over plain TCP."""
        root = next(policy for policy in self.policies if policy.name == ROOT_POLICY)
        return (
            f"Endpoint=sb://{self.options.host}:{self.ports[0]};SharedAccessKeyName={root.name};"
            f"SharedAccessKey={str.__str__(root.primary_key)};UseDevelopmentEmulator=true;"
        )

    async def stop(self) -> None:
        """Clean stop: peers are told, everything is on disk, an index is written."""
        await self._listener.close()
        await self.broker.close()


async def serve(options: ServeOptions, announce: Callable[[Server], None]) -> int:
    """Run until SIGINT or SIGTERM (exit code 0), or until the disk fails (1)."""
    server = await Server.start(options)
    announce(server)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server.failed.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    if server.failed.done():
        log.critical("the log cannot be written any more: %s", server.failed.result())
        return 1
    await server.stop()
    return 0


def read_policies(folder: Path) -> tuple[Policy, ...]:
    """The namespace's policies. The first start makes one with keys of its own, for nobody else to
    read; there is no default key."""
    file = folder / "policies.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = {
            "policies": [
                {
                    "name": ROOT_POLICY,
                    "rights": ["Manage", "Send", "Listen"],
                    "primary_key": secrets.token_urlsafe(32),
                    "secondary_key": secrets.token_urlsafe(32),
                }
            ]
        }
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump(made, out, indent=2)
            out.flush()
            os.fsync(out.fileno())
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        return tuple(
            Policy(
                rule["name"],
                Right.of(rule["rights"]),
                Secret(rule["primary_key"]),
                Secret(rule["secondary_key"]),
            )
            for rule in tree["policies"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{file} does not describe policies: {error!r}") from None


def _tls(options: ServeOptions) -> ssl.SSLContext | None:
    if options.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(options.certificate, options.private_key)
    return context
