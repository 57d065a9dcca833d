"""The composition root: a configuration becomes a running server.

Here the parts are put together and taken apart again in the right order, and the files are read
that say who may come in. What a part does is not here. The rule: a setting that cannot work is
refused at the start, by its name.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import resource
import secrets
import signal
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from tandembus.admin.api import AdminApi
from tandembus.admin.console import Console
from tandembus.admin.declared import carry_out, entities_of
from tandembus.clock import Clock, MovableClock
from tandembus.config import Change, Declared, NamespaceConfig, ServerConfig, changes
from tandembus.config.server import BACKUP, LOG, POLICIES, RUNNING, kept_in
from tandembus.config.server import ROOT_POLICY as ROOT_POLICY
from tandembus.core.access import Policy, Right, Secret, everything
from tandembus.core.commands import DeleteEntity
from tandembus.core.jwt import JwtTrust
from tandembus.engine.engine import Tuning
from tandembus.errors import ArgumentError, StoreError
from tandembus.limits import MIB
from tandembus.server.broker import Broker
from tandembus.server.certificate import Certificate
from tandembus.server.health import Oversight, tell_systemd
from tandembus.server.listener import Listener
from tandembus.server.moving import ClockControl
from tandembus.server.namespaces import Directory, Hosted
from tandembus.server.stored import shown
from tandembus.store import standby
from tandembus.store.api import Store
from tandembus.store.files import FileStore

log = logging.getLogger("tandembus")

EMULATOR_KEY: Final = "SAS_KEY_VALUE"
"""The key that Microsoft's emulator takes; ours only on loopback, and only when asked."""
JWT_FILE: Final = "jwt.json"
_MIN_KEY: Final = 16
"""Characters of a key in the file; a shorter one can be guessed."""


class Applying(Enum):
    """What becomes of a file that declares other entities than there are."""

    NEW = "new"
    """What is not there yet is made; the rest is told."""
    ALL = "all"
    """Settings are changed, too."""
    ALL_AND_DELETE = "all and delete"
    """And what is not declared is deleted, with its messages."""


@dataclass(slots=True, eq=False)
class Served:
    """A namespace that is open."""

    config: NamespaceConfig
    hosted: Hosted
    policies: tuple[Policy, ...]
    store: Store
    ports: list[int] = field(default_factory=list)
    """Of its own."""
    made: list[Change] = field(default_factory=list)
    """What was changed at the start because a file declares it."""
    pending: list[Change] = field(default_factory=list)
    """What it declares otherwise, and nobody has asked to change."""

    @property
    def broker(self) -> Broker:
        return self.hosted.broker


class Server:
    """Namespaces that are being served. Use `start`."""

    def __init__(
        self, config: ServerConfig, clock: Clock | None, failed: asyncio.Future[StoreError]
    ) -> None:
        self.config = config
        self.namespaces: list[Served] = []
        """In the order of the configuration."""
        self.ports: list[int] = []
        """Of all of them, but for those that have their own."""
        self.unbound: dict[int, str] = {}
        """Standard ports that could not be had, and why."""
        self.failed = failed
        """Has a result when the disk has failed."""
        self._clock = clock
        self._directory = Directory()
        self._console = Console(
            lambda: [each.broker for each in self._directory],
            lambda broker, _, delivery, is_whole: shown(
                broker.engine.engine, delivery, is_whole=is_whole
            ),
        )
        self._listener: Listener

    @classmethod
    async def start(
        cls,
        config: ServerConfig,
        *,
        clock: Clock | None = None,
        store: Store | None = None,
        stores: standby.Stores | None = None,
        applying: Applying = Applying.NEW,
    ) -> Server:
        """`store`: of the first namespace, instead of the log in its folder. `stores`: of all, in
        the database that the configuration names; None: they are opened, or in use."""
        config.validate()
        if config.has_test_clock and clock is None:
            clock = MovableClock()
        failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        server = cls(config, clock, failed)
        if config.store is not None and stores is None:
            await asyncio.to_thread(standby.check, config)
            stores = await asyncio.to_thread(standby.open_all, config)
        stores = stores or {}
        try:
            for found in stores.values():
                found.when_lost(server._fail_from_thread)
            for each in config.served:
                await server.open(each, stores.get(each.name, store), applying)
                store = None
            # The key of --emulator is everybody's: then only this machine is let in at all.
            certificate = _certificate(config)
            server._listener = Listener(
                server._directory,
                is_loopback_only=config.is_emulator or config.has_test_clock,
                max_connections=config.max_connections,
                oversight=Oversight(
                    server._directory,
                    is_open=config.is_metrics_open or config.is_emulator,
                    certificate=certificate,
                    console=server._console.answer,
                ),
            )
            if certificate is not None:
                server._listener.keep(certificate)
            await server._bind()
        except BaseException:
            await server._close_all()
            for found in stores.values():
                found.close()
            raise
        return server

    async def open(
        self,
        config: NamespaceConfig,
        store: Store | None = None,
        applying: Applying = Applying.NEW,
        *,
        policies: tuple[Policy, ...] | None = None,
        clock: Clock | None = None,
    ) -> Served:
        """Serve a namespace, also beside those that are served already; on the common ports.
        `policies`: instead of those in its folder. `clock`: one of its own."""
        policies = _policies(self.config, config) if policies is None else policies
        trust = _trust(config)
        if store is None:
            if (database := kept_in(config.folder)) is not None:
                raise ArgumentError(
                    f"--store: the log of {config.folder} is in {database}. Give --store, or set "
                    "TANDEM_STORE; another folder begins anew."
                )
            store = FileStore(config.folder / LOG)
        broker = await Broker.open(
            config.name,
            store,
            policies=policies,
            trust=trust,
            on_failure=self._fail,
            clock=clock or self._clock,
            turns=self._directory.turns,
            tuning=Tuning(
                staged_bytes=self.config.staged_mb * MIB,
                cache_bytes=self.config.cache_mb * MIB,
                free_bytes=self.config.disk_free_mb * MIB,
            ),
        )
        broker.namespace.limit_entities(self.config.max_entities)
        broker.namespace.limit_sessions(self.config.session_mb * MIB)
        try:
            made, pending = await _declare(broker, config, applying)
            handle = AdminApi(broker, is_premium=self.config.is_premium).handle
            if self.config.has_test_clock and isinstance(self._clock, MovableClock):
                handle = ClockControl(broker, self._clock, handle, partial(reset, broker)).handle
            hosted = Hosted(broker, handle, config.hosts)
            served = Served(config, hosted, policies, store, made=made, pending=pending)
            self._directory.add(served.hosted)
        except BaseException:
            await broker.close()
            raise
        self.namespaces.append(served)
        self._console.start(broker)
        return served

    async def close(self, served: Served) -> None:
        """Serve this one no longer; the others go on."""
        self.namespaces.remove(served)
        self._console.stop(served.broker.name)
        self._directory.remove(served.hosted)
        self._listener.let_go(served.hosted)
        await served.broker.close()

    def _fail(self, error: StoreError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def _fail_from_thread(self, error: StoreError) -> None:
        loop = self.failed.get_loop()
        with suppress(RuntimeError):  # the loop has ended, and so has the server
            loop.call_soon_threadsafe(self._fail, error)

    async def _bind(self) -> None:
        host, bind = self.config.host, self._listener.bind
        try:
            for served in self.namespaces:
                served.ports = [await self._bind_one(port) for port in served.config.ports]
                served.hosted.ports.update(served.ports)
            for port in self.config.ports:
                self.ports.append(await self._bind_one(port))
            for port, why_not in self.config.wanted_ports.items():
                try:
                    if why_not is None:
                        self.ports.append(await bind(host, port))
                    else:
                        self.unbound[port] = why_not
                except OSError as error:
                    self.unbound[port] = _why(error)
            if not self.ports and self.unbound:
                every = "; ".join(f"{port}: {why}" for port, why in self.unbound.items())
                raise ArgumentError(f"--standard-ports: none can be had on {host}. {every}.")
        except BaseException:
            await self._listener.close()
            raise

    async def _bind_one(self, port: int) -> int:
        host = self.config.host
        try:
            return await self._listener.bind(host, port)
        except OSError as error:
            hint = ""
            if error.errno == errno.EADDRINUSE:
                hint = " Give another --port, or 0 for a free one."
            raise ArgumentError(f"--host {host} --port {port}: {_why(error)}.{hint}") from None

    @property
    def broker(self) -> Broker:
        """Of the first namespace, which is the only one in most servers."""
        return self.namespaces[0].broker

    @property
    def connection_string(self) -> str:
        return self.connection_string_of(self.namespaces[0])

    def connection_string_of(self, served: Served) -> str:
        """For an SDK on this machine, over plain TCP; with the root policy, or what is nearest."""
        root = max(
            served.policies,
            key=lambda policy: (policy.name == ROOT_POLICY, policy.effective.value),
        )
        port = (served.ports or self.ports)[0]
        return (
            f"Endpoint=sb://{self.config.host}:{port};SharedAccessKeyName={root.name};"
            f"SharedAccessKey={str.__str__(root.primary_key)};UseDevelopmentEmulator=true;"
        )

    def reload(self) -> None:
        """Read the policies and the keys of JWTs again. What rested on a key that is gone ends; all
        else goes on. If they cannot be read, nothing changes."""
        try:
            found = [
                (each, _policies(self.config, each.config), _trust(each.config))
                for each in self.namespaces
            ]
        except (ArgumentError, OSError) as error:
            log.error("the policies stay as they are: %s", error)
            return
        for served, policies, trust in found:
            served.policies = policies
            served.broker.replace_policies(policies, trust)
            log.warning("the policies were read again: %d of the namespace", len(policies))

    async def back_up(self) -> None:
        """What `tandem backup` has asked for, in a file of a namespace's folder."""
        for served in self.namespaces:
            file = served.config.folder / BACKUP
            try:
                target = json.loads(file.read_text(encoding="utf-8"))["target"]
                if not isinstance(served.store, FileStore):
                    raise StoreError("the log is in a database, which has its own way to back up")
                size = await asyncio.to_thread(served.store.backup, target)
                answer = f'{{"bytes": {size}}}'
            except FileNotFoundError:
                continue
            except (OSError, StoreError, KeyError, TypeError, ValueError) as error:
                answer = json.dumps({"error": str(error)})
            log.warning("a backup of '%s': %s", served.config.name, answer)
            replace_file(file, answer)

    async def drain(self, in_a_hurry: asyncio.Event) -> None:
        """Let what is under way come to its end, for so long as the configuration says, or until
        somebody is in a hurry."""
        draining = asyncio.ensure_future(self._listener.drain(self.config.drain_seconds))
        hurry = asyncio.ensure_future(in_a_hurry.wait())
        await asyncio.wait((draining, hurry, self.failed), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurry):
            task.cancel()

    async def stop(self) -> None:
        """Clean stop: peers are told, everything is on disk, an index is written."""
        await self._listener.close()
        await self._close_all()

    async def _close_all(self) -> None:
        while self.namespaces:
            broker = self.namespaces.pop().broker
            self._console.stop(broker.name)
            await broker.close()


async def _declare(
    broker: Broker, config: NamespaceConfig, applying: Applying
) -> tuple[list[Change], list[Change]]:
    """Carry out what the file declares, as far as it was asked for: what was, and what was not."""
    if not config.entities:
        return [], []
    found = changes(
        entities_of(broker.namespace), config.entities, deletes=applying is Applying.ALL_AND_DELETE
    )
    wanted = [each for each in found if each.is_safe or applying is not Applying.NEW]
    await carry_out(broker, wanted)
    return wanted, [each for each in found if each not in wanted]


async def reset(broker: Broker, keeps_entities: bool) -> None:
    """For tests: as if the namespace were new; `keeps_entities`: with the same entities, all of
    them empty."""
    kept = entities_of(broker.namespace) if keeps_entities else []
    paths = [each.path for each in broker.namespace.entities if each.owner is None]
    await asyncio.gather(*(broker.execute(DeleteEntity(path), everything()) for path in paths))
    await carry_out(broker, changes([], kept))


async def differences(config: NamespaceConfig, *, deletes: bool) -> list[Change]:
    """What would be changed in a namespace that nobody serves now. Its log is only read."""
    there: list[Declared] = []
    if (config.folder / LOG).is_dir():
        broker = await Broker.open(
            config.name, FileStore(config.folder / LOG), policies=(), on_failure=_raise
        )
        try:
            there = entities_of(broker.namespace)
        finally:
            await broker.close()
    return changes(there, config.entities, deletes=deletes)


def _raise(error: StoreError) -> None:
    raise error


async def serve(
    config: ServerConfig, announce: Callable[[Server], None], applying: Applying = Applying.NEW
) -> int:
    """Run until SIGTERM, which lets what is under way end first, or SIGINT (exit code 0), or until
    the disk fails (1). A second signal hurries, a third kills. SIGHUP reads the policies again,
    SIGUSR1 makes the backup that is asked for."""
    prepare_process()
    stores = None
    if config.store is not None:
        stores = await _wait_for_stores(config)
        if stores is None:
            return 0
    server = await Server.start(config, stores=stores, applying=applying)
    gc.collect()
    gc.freeze()
    notes = [note_running(server, each) for each in server.namespaces]
    announce(server)
    loop = asyncio.get_running_loop()
    stopped, in_a_hurry = asyncio.Event(), asyncio.Event()

    def stop(number: signal.Signals) -> None:
        if stopped.is_set() or number == signal.SIGINT:
            in_a_hurry.set()
        if stopped.is_set():
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    backups: set[asyncio.Task[None]] = set()

    def back_up() -> None:
        task = loop.create_task(server.back_up())
        backups.add(task)
        task.add_done_callback(backups.discard)

    loop.add_signal_handler(signal.SIGUSR1, back_up)
    server.failed.add_done_callback(lambda _: stopped.set())
    tell_systemd("READY=1\nSTATUS=serving")
    await stopped.wait()
    tell_systemd("STOPPING=1")
    if not server.failed.done() and not in_a_hurry.is_set():
        await server.drain(in_a_hurry)
    if server.failed.done():
        log.critical("the log cannot be written any more: %s", server.failed.result())
        return 1
    await server.stop()
    for note in notes:
        forget_running(note)
    return 0


async def _wait_for_stores(config: ServerConfig) -> standby.Stores | None:
    """The namespaces in a database, as soon as no other broker serves them; None: a signal came
    first. What cannot work is refused before."""
    await asyncio.to_thread(standby.check, config)
    for each in config.served:
        _policies(config, each)
        _trust(each)
    _certificate(config)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the policies are read at the take-over

    def tell(why: str) -> None:
        log.warning("standing by: %s", why)
        tell_systemd(f"READY=1\nSTATUS=standing by: {why}")

    try:
        return await standby.stand_by(config, stopped, tell)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def note_running(server: Server, served: Served) -> Path:
    """Where the namespace can be reached, in its folder, for the commands on this machine. No keys
    are in it."""
    note = served.config.folder / RUNNING
    ports = served.ports or server.ports
    told = {"pid": os.getpid(), "host": server.config.host, "port": ports[0], "ports": ports}
    replace_file(note, json.dumps(told))
    return note


def forget_running(note: Path) -> None:
    """Unless it is of another broker by now, which was standing by."""
    with suppress(OSError, ValueError):
        if json.loads(note.read_text(encoding="utf-8"))["pid"] == os.getpid():
            note.unlink()


def replace_file(file: Path, text: str) -> None:
    """Whoever reads it meanwhile gets the old text or the new one."""
    aside = file.with_name(file.name + ".new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


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
    try:
        return _read_policies(folder)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        why = "this user may not" if isinstance(error, PermissionError) else "it is a file"
        raise ArgumentError(f"Cannot keep data in '{folder}': {why}.") from None


def _read_policies(folder: Path) -> tuple[Policy, ...]:
    file = folder / POLICIES
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


def _policies(server: ServerConfig, config: NamespaceConfig) -> tuple[Policy, ...]:
    policies = read_policies(config.folder)
    if not server.is_emulator:
        return policies
    kept = {policy.name: policy for policy in policies}
    own = kept.pop(ROOT_POLICY, None)
    known = Secret(EMULATOR_KEY)
    both = Policy(ROOT_POLICY, Right.ALL, known, known if own is None else own.primary_key)
    return (*kept.values(), both)


def _trust(config: NamespaceConfig) -> JwtTrust | None:
    file = config.jwt_keys or config.folder / JWT_FILE
    if config.jwt_keys is None and not file.exists():
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
    (`tandembus[fast]`), otherwise that of asyncio."""
    try:
        import uvloop
    except ImportError:
        return "asyncio", asyncio.new_event_loop
    return f"uvloop {uvloop.__version__}", uvloop.new_event_loop


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _certificate(config: ServerConfig) -> Certificate | None:
    if config.certificate is None or config.private_key is None:
        return None
    return Certificate(config.certificate, config.private_key)
