"""The composition root: a data folder becomes a running server.

Here the parts are put together and taken apart again in the right order, and the files are read
that say who may come in. What a part does is not here. The rule: a setting that cannot work is
refused at the start, by its name.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import resource
import secrets
import signal
import ssl
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.admin.api import AdminApi
from tandem.clock import Clock, MovableClock
from tandem.core.access import Policy, Right, Secret
from tandem.core.jwt import JwtTrust
from tandem.errors import ArgumentError, StoreError
from tandem.limits import MAX_CONNECTIONS, MAX_NAMESPACE_NAME
from tandem.server.broker import Broker
from tandem.server.listener import Listener
from tandem.server.moving import ClockControl
from tandem.store.api import Store
from tandem.store.files import FileStore

log = logging.getLogger("tandem")

ROOT_POLICY: Final = "RootManageSharedAccessKey"
EMULATOR_KEY: Final = "SAS_KEY_VALUE"
"""The key that Microsoft's emulator takes; ours only on loopback, and only when asked."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
PORT: Final = 5672
STANDARD_PORTS: Final = (PORT, 5671, 443, 80)
"""Where clients look that were given no port: AMQP, AMQP with TLS, and the two of the web."""
TLS_PORTS: Final = (5671, 443)
JWT_FILE: Final = "jwt.json"
_NAMESPACE: Final = re.compile(f"[A-Za-z0-9.-]{{1,{MAX_NAMESPACE_NAME}}}")
_MIN_KEY: Final = 16
"""Characters of a key in the file; a shorter one can be guessed."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How one namespace is served."""

    folder: Path
    namespace: str = "default"
    host: str = "localhost"
    ports: tuple[int, ...] = (PORT,)
    """Each must be free; 0 takes any."""
    use_standard_ports: bool = False
    """Besides, `STANDARD_PORTS` as far as they can be had."""
    is_emulator: bool = False
    certificate: Path | None = None
    private_key: Path | None = None
    max_connections: int = MAX_CONNECTIONS
    jwt_keys: Path | None = None
    """Whose JWTs count; None: what `jwt.json` in the folder says, if it is there."""
    has_test_clock: bool = False
    """Whoever may manage the namespace can move its clock. For tests."""

    def validate(self) -> ServeOptions:
        """These options, or ArgumentError naming the one that cannot work."""
        if self.is_emulator and self.host not in LOOPBACK:
            raise ArgumentError(
                f"--emulator takes a key that everybody knows, so --host must be one of "
                f"{', '.join(LOOPBACK)}, not {self.host}."
            )
        if self.has_test_clock and self.host not in LOOPBACK:
            raise ArgumentError(
                f"--test-clock is for tests, so --host must be one of {', '.join(LOOPBACK)}, "
                f"not {self.host}."
            )
        if (self.certificate is None) != (self.private_key is None):
            raise ArgumentError("--certificate and --private-key are given together.")
        for port in self.ports:
            if not 0 <= port <= 65_535:
                raise ArgumentError(f"--port is between 0 and 65535, not {port}.")
        if self.max_connections < 1:
            raise ArgumentError(f"--max-connections is 1 or more, not {self.max_connections}.")
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ArgumentError(
                f"--namespace has 1 to {MAX_NAMESPACE_NAME} letters, digits, '.' and '-', "
                f"not {self.namespace[:64]!a}."
            )
        if not self.ports and not self.use_standard_ports:
            raise ArgumentError("--port or --standard-ports: there is none to listen on.")
        return self

    @property
    def wanted_ports(self) -> dict[int, str | None]:
        """The standard ports, and why not, where that is known before it is tried."""
        if not self.use_standard_ports:
            return {}
        without_tls = "it needs --certificate" if self.certificate is None else None
        return {
            port: without_tls if port in TLS_PORTS else None
            for port in STANDARD_PORTS
            if port not in self.ports
        }


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
        self.unbound: dict[int, str] = {}
        """Standard ports that could not be had, and why."""
        self.failed = failed
        """Has a result when the disk has failed."""
        self._listener: Listener

    @classmethod
    async def start(
        cls, options: ServeOptions, *, clock: Clock | None = None, store: Store | None = None
    ) -> Server:
        """`store`: instead of the log in the folder."""
        options.validate()
        if options.has_test_clock and clock is None:
            clock = MovableClock()
        tls = _tls(options)
        policies, trust = _policies(options), _trust(options)
        failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        broker = await Broker.open(
            options.namespace,
            FileStore(options.folder / "log") if store is None else store,
            policies=policies,
            trust=trust,
            on_failure=failed.set_result,
            clock=clock,
        )
        try:
            server = cls(options, broker, policies, failed)
            # The key of --emulator is everybody's: then only this machine is let in at all.
            handle = AdminApi(broker).handle
            if options.has_test_clock and isinstance(clock, MovableClock):
                handle = ClockControl(broker, clock, handle).handle
            server._listener = Listener(
                broker,
                handle,
                tls,
                is_loopback_only=options.is_emulator or options.has_test_clock,
                max_connections=options.max_connections,
            )
            await server._bind()
        except BaseException:
            await broker.close()
            raise
        return server

    async def _bind(self) -> None:
        host, bind = self.options.host, self._listener.bind
        try:
            for port in self.options.ports:
                try:
                    self.ports.append(await bind(host, port))
                except OSError as error:
                    raise ArgumentError(f"--host {host} --port {port}: {_why(error)}.") from None
            for port, why_not in self.options.wanted_ports.items():
                try:
                    if why_not is None:
                        self.ports.append(await bind(host, port))
                    else:
                        self.unbound[port] = why_not
                except OSError as error:
                    self.unbound[port] = _why(error)
            if not self.ports:
                every = "; ".join(f"{port}: {why}" for port, why in self.unbound.items())
                raise ArgumentError(f"--standard-ports: none can be had on {host}. {every}.")
        except BaseException:
            await self._listener.close()
            raise

    @property
    def connection_string(self) -> str:
        """For an SDK on this machine, over plain TCP; with the root policy, or what is nearest."""
        root = max(
            self.policies, key=lambda policy: (policy.name == ROOT_POLICY, policy.effective.value)
        )
        return (
            f"Endpoint=sb://{self.options.host}:{self.ports[0]};SharedAccessKeyName={root.name};"
            f"SharedAccessKey={str.__str__(root.primary_key)};UseDevelopmentEmulator=true;"
        )

    def reload(self) -> None:
        """Read the policies and the keys of JWTs again. What rested on a key that is gone ends; all
        else goes on. If they cannot be read, nothing changes."""
        try:
            policies, trust = _policies(self.options), _trust(self.options)
        except (ArgumentError, OSError) as error:
            log.error("the policies stay as they are: %s", error)
            return
        self.policies = policies
        self.broker.replace_policies(policies, trust)
        log.warning("the policies were read again: %d of the namespace", len(policies))

    async def stop(self) -> None:
        """Clean stop: peers are told, everything is on disk, an index is written."""
        await self._listener.close()
        await self.broker.close()


async def serve(options: ServeOptions, announce: Callable[[Server], None]) -> int:
    """Run until SIGINT or SIGTERM (exit code 0), or until the disk fails (1). SIGHUP reads the
    policies again."""
    prepare_process()
    server = await Server.start(options)
    gc.collect()
    gc.freeze()
    announce(server)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    server.failed.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    if server.failed.done():
        log.critical("the log cannot be written any more: %s", server.failed.result())
        return 1
    await server.stop()
    return 0


def prepare_process() -> None:
    """As many descriptors as this process may have: each connection takes one. And the thread that
    waits for the disk gets its turn after 0.5 ms of the loop's work, not after Python's 5: each
    commit needs several, so that a busy loop would make everybody wait for 20 ms."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.setswitchinterval(0.0005)
    # Python would look through all objects whenever a quarter of them is new: 50 ms for 30,000
    # sessions, and nearly all of them are alive. Young ones are looked at as ever; the listener has
    # the old ones looked at when enough connections have gone, which are what leaves cycles behind.
    gc.set_threshold(2_000, 10, 1_000_000_000)


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
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        log.warning("%s can be read by others than its owner; chmod 600 it", file)
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        policies = tuple(_policy(rule) for rule in tree["policies"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Its kind and not its text, which may have a key in it.
        raise ArgumentError(f"{file} does not describe policies: {type(error).__name__}") from None
    names = [policy.name for policy in policies]
    if not names or len(set(names)) != len(names):
        raise ArgumentError(f"{file} must have a policy at least, and each name once.")
    return policies


def _policy(rule: Mapping[str, object]) -> Policy:
    """Raises KeyError, TypeError or ValueError."""
    name, rights = rule["name"], rule["rights"]
    keys = (rule["primary_key"], rule["secondary_key"])
    if not isinstance(name, str) or not name or not isinstance(rights, list) or not rights:
        raise ValueError("name or rights")
    if not all(isinstance(key, str) and len(key) >= _MIN_KEY for key in keys):
        raise ValueError("keys")
    return Policy(name, Right.of(rights), Secret(keys[0]), Secret(keys[1]))


def _policies(options: ServeOptions) -> tuple[Policy, ...]:
    policies = read_policies(options.folder)
    if not options.is_emulator:
        return policies
    kept = {policy.name: policy for policy in policies}
    own = kept.pop(ROOT_POLICY, None)
    known = Secret(EMULATOR_KEY)
    both = Policy(ROOT_POLICY, Right.ALL, known, known if own is None else own.primary_key)
    return (*kept.values(), both)


def _trust(options: ServeOptions) -> JwtTrust | None:
    file = options.jwt_keys or options.folder / JWT_FILE
    if options.jwt_keys is None and not file.exists():
        return None
    name = f"--jwt-keys {file}"
    try:
        return JwtTrust.from_json(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ArgumentError(f"{name}: {_why(error)}.") from None
    except (ValueError, RecursionError):
        raise ArgumentError(f"{name}: it is not JSON.") from None
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}.") from None


def event_loop() -> tuple[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Which event loop there is, and how one is made: uvloop's where it is installed
    (`tandem[fast]`), otherwise that of asyncio."""
    try:
        import uvloop
    except ImportError:
        return "asyncio", asyncio.new_event_loop
    return f"uvloop {uvloop.__version__}", uvloop.new_event_loop


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _tls(options: ServeOptions) -> ssl.SSLContext | None:
    if options.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.certificate, options.private_key)
    except OSError as error:
        raise ArgumentError(
            f"--certificate {options.certificate} --private-key {options.private_key}: "
            f"{_why(error)}."
        ) from None
    return context
