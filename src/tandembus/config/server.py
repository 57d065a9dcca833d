"""The settings of a server, and what of them cannot work.

`OPTIONS` is the one list of what can be set: a line there makes the key of the file, the variable
of the environment, the flag of `tandem serve`, and its help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandembus.config import values
from tandembus.config.entities import Declared
from tandembus.config.values import Reader
from tandembus.errors import ArgumentError
from tandembus.limits import (
    BODY_CACHE_BYTES,
    DISK_FREE_MIN_BYTES,
    MAX_CONNECTIONS,
    MAX_ENTITIES,
    MAX_NAMESPACE_NAME,
    MAX_SESSION_BYTES,
    MAX_STAGED_BYTES,
    MIB,
)

PORT: Final = 5672
LOG_FORMATS: Final = ("human", "json")
EMULATOR_PORT: Final = 5300
"""Where Microsoft's emulator has its administration and its health."""
STANDARD_PORTS: Final = (PORT, 5671, 443, 80)
"""Where clients look that were given no port: AMQP, AMQP with TLS, and the two of the web."""
TLS_PORTS: Final = (5671, 443)
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
DEFAULT_NAMESPACE: Final = "default"
ROOT_POLICY: Final = "RootManageSharedAccessKey"
POLICIES: Final = "policies.json"
"""In a namespace's folder: its keys."""
LOG: Final = "log"
"""In a namespace's folder: its log."""
BACKUP: Final = "backup.json"
"""In a namespace's folder: `tandem backup` asks for one here, and gets its answer."""
RUNNING: Final = "running.json"
"""In a namespace's folder while it is served: where."""
STORE: Final = "store.json"
"""In a namespace's folder whose log is not there but in a database: in which."""
DATABASES: Final = ("postgresql://", "postgres://")
_NAMESPACE: Final = re.compile(f"[A-Za-z0-9.-]{{1,{MAX_NAMESPACE_NAME}}}")
_HOST: Final = re.compile(r"[a-z0-9_.-]{1,253}")


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """One of the namespaces that are served."""

    name: str
    folder: Path
    """Its log, its keys."""
    hosts: tuple[str, ...] = ()
    """Host names that mean it, beside its own name."""
    ports: tuple[int, ...] = ()
    """Its own; then it is not served on the common ones."""
    jwt_keys: Path | None = None
    """Whose JWTs count; None: what `jwt.json` in the folder says, if it is there."""
    entities: tuple[Declared, ...] = ()
    """What a file says shall be there."""

    def validate(self) -> None:
        if not _NAMESPACE.fullmatch(self.name):
            raise ArgumentError(
                f"--namespace has 1 to {MAX_NAMESPACE_NAME} letters, digits, '.' and '-', "
                f"not {self.name[:64]!a}."
            )
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ArgumentError(f"namespace '{self.name}': {host[:64]!a} is not a host name.")
        _check_ports(self.ports, f"namespace '{self.name}': a port")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How namespaces are served."""

    folder: Path
    namespace: str = DEFAULT_NAMESPACE
    """The name of the only one; where `namespaces` are named, it means nothing."""
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
    is_premium: bool = False
    has_test_clock: bool = False
    """Whoever may manage a namespace can move its clock. For tests."""
    is_metrics_open: bool = False
    """Everybody may read the figures, without a key."""
    log_format: str = "human"
    drain_seconds: int = 10
    """How long SIGTERM waits for what is unsettled."""
    max_entities: int = MAX_ENTITIES
    """Queues and topics of each namespace."""
    session_mb: int = MAX_SESSION_BYTES // MIB
    """Memory of the sessions of each namespace and of their states; beyond it, messages that begin
    a session are refused."""
    disk_free_mb: int = DISK_FREE_MIN_BYTES // MIB
    """With less free space, sends are refused."""
    cache_mb: int = BODY_CACHE_BYTES // MIB
    """Bodies kept in memory, of each namespace."""
    staged_mb: int = MAX_STAGED_BYTES // MIB
    """What may wait for the disk, of each namespace; beyond it, sends are refused."""
    store: str | None = field(default=None, repr=False)
    """The URL of a PostgreSQL database that has the logs of all namespaces; None: each is in its
    folder. A password may be in it."""
    store_lease_seconds: int = 10
    """How long a broker that does not answer keeps others from serving what is in the database."""
    namespaces: tuple[NamespaceConfig, ...] = ()
    """Those that a file names; none: one, in the folder itself."""

    @property
    def served(self) -> tuple[NamespaceConfig, ...]:
        """Every namespace, at least one."""
        only = NamespaceConfig(self.namespace, self.folder, jwt_keys=self.jwt_keys)
        return self.namespaces or (only,)

    def validate(self) -> ServerConfig:
        """This, or ArgumentError naming the setting that cannot work."""
        for is_set, flag, why in (
            (self.is_emulator, "--emulator", "takes a key that everybody knows"),
            (self.has_test_clock, "--test-clock", "is for tests"),
        ):
            if is_set and self.host not in LOOPBACK:
                raise ArgumentError(
                    f"{flag} {why}, so --host must be one of {', '.join(LOOPBACK)}, "
                    f"not {self.host}."
                )
        if (self.certificate is None) != (self.private_key is None):
            raise ArgumentError("--certificate and --private-key are given together.")
        _check_ports(self.ports, "--port")
        if self.max_connections < 1:
            raise ArgumentError(f"--max-connections is 1 or more, not {self.max_connections}.")
        if self.log_format not in LOG_FORMATS:
            raise ArgumentError(f"--log-format is {' or '.join(LOG_FORMATS)}.")
        for flag, value, least, most in (
            ("--drain-seconds", self.drain_seconds, 0, 3_600),
            ("--max-entities", self.max_entities, 1, MAX_ENTITIES),
            ("--session-mb", self.session_mb, 1, 1_000_000),
            ("--disk-free-mb", self.disk_free_mb, 0, 1_000_000_000),
            ("--cache-mb", self.cache_mb, 1, 1_000_000),
            ("--staged-mb", self.staged_mb, 1, 1_000_000),
            ("--store-lease-seconds", self.store_lease_seconds, 2, 3_600),
        ):
            if not least <= value <= most:
                raise ArgumentError(f"{flag} is {least} to {most:,}, not {value}.")
        if self.store is not None and not self.store.startswith(DATABASES):
            raise ArgumentError(
                "--store is the URL of a PostgreSQL database, such as "
                "postgresql://tandem@db.example.net/tandem; without it the data is in the folder."
            )
        for each in self.served:
            each.validate()
        self._check_together()
        return self

    def _check_together(self) -> None:
        """That the namespaces do not stand in each other's way."""
        served = self.served
        _check_once("the name", (each.name.lower() for each in served))
        _check_once("the folder", (str(each.folder.absolute()) for each in served))
        _check_once("the host name", (host for each in served for host in each.hosts))
        common = self.ports or self.use_standard_ports
        for each in served:
            if not each.ports and not common:
                raise ArgumentError(
                    f"--port or --standard-ports: there is none to listen on for '{each.name}'."
                )
            clash = set(each.ports) & set(self.ports) - {0}
            if clash:
                raise ArgumentError(
                    f"port {min(clash)} is one of all namespaces and of '{each.name}' alone."
                )
        if len(served) > 1 and (self.folder / LOG).is_dir():
            inside = [each.name for each in served if each.folder == self.folder]
            if not inside:
                raise ArgumentError(
                    f"{self.folder} has the log of a namespace that no file names: give the "
                    f'one that it is of `folder = "."`, or serve it alone.'
                )

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


def kept_in(folder: Path) -> str | None:
    """The database that has the log of the namespace in this folder; None: the folder itself."""
    try:
        return str(json.loads((folder / STORE).read_text(encoding="utf-8"))["store"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "a database"


def check_kept_here(folder: Path) -> None:
    """Raises ArgumentError if the log of this namespace is in a database: what reads the files of
    the folder would find none, or old ones."""
    if (database := kept_in(folder)) is not None:
        raise ArgumentError(
            f"The log of {folder} is in {database}, and this works on a log in the folder only: "
            "see docs/postgres.md for what to use instead."
        )


def _check_ports(ports: Iterable[int], what: str) -> None:
    for port in ports:
        if not 0 <= port <= 65_535:
            raise ArgumentError(f"{what} is between 0 and 65535, not {port}.")


def _check_once(what: str, found: Iterable[str]) -> None:
    seen: set[str] = set()
    for each in found:
        if each in seen:
            raise ArgumentError(f"two namespaces have {what} '{each}'.")
        seen.add(each)


# --- what can be set ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    field: str
    """Of ServerConfig."""
    key: str
    """In the file; TANDEM_KEY in the environment; --key as a flag."""
    read: Reader
    help: str
    metavar: str | None = None
    """None: a switch."""
    flag: str | None = None
    """If it is not `--key`: one that is given several times, once for each of a list."""

    @property
    def variable(self) -> str:
        return f"TANDEM_{self.key.upper()}"

    @property
    def flag_name(self) -> str:
        return self.flag or f"--{self.key.replace('_', '-')}"


OPTIONS: Final = (
    Option("folder", "folder", values.path, "the data folder; made if it is not there", "FOLDER"),
    Option(
        "namespace",
        "namespace",
        values.text,
        "the name of the only namespace (default); for several, see --config",
        "NAME",
    ),
    Option("host", "host", values.text, "where to listen (localhost)", "HOST"),
    Option(
        "ports",
        "ports",
        values.integers,
        f"which port, several times for several ({PORT}; with --emulator {EMULATOR_PORT} too); "
        "0 takes a free one",
        "PORT",
        "--port",
    ),
    Option(
        "use_standard_ports",
        "standard_ports",
        values.boolean,
        "the ports where clients look: 5672 and 80, and with a certificate 5671 and 443; it says "
        "which could not be had",
    ),
    Option(
        "is_emulator",
        "emulator",
        values.boolean,
        "also take the key that Microsoft's emulator takes; on loopback only",
    ),
    Option("certificate", "certificate", values.path, "a PEM file: TLS on the same ports", "FILE"),
    Option("private_key", "private_key", values.path, "its key, a PEM file", "FILE"),
    Option(
        "max_connections",
        "max_connections",
        values.integer,
        f"how many can be open at once ({MAX_CONNECTIONS:,})",
        "N",
    ),
    Option(
        "jwt_keys",
        "jwt_keys",
        values.path,
        'whose JWTs are believed: a JWK set with "issuers" beside its "keys", and if wanted '
        '"audiences" and "roles" (FOLDER/jwt.json, if it is there)',
        "FILE",
    ),
    Option(
        "is_premium",
        "premium",
        values.boolean,
        "be a namespace of the premium tier: an entity can take messages of up to 100 MB",
    ),
    Option(
        "drain_seconds",
        "drain_seconds",
        values.integer,
        "how long SIGTERM waits for messages that clients have not settled (10)",
        "SECONDS",
    ),
    Option("log_format", "log_format", values.text, "human or json (human)", "FORMAT"),
    Option(
        "is_metrics_open",
        "metrics_open",
        values.boolean,
        "let everybody read /metrics, without a key",
    ),
    Option(
        "max_entities",
        "max_entities",
        values.integer,
        f"queues and topics of each namespace ({MAX_ENTITIES:,})",
        "N",
    ),
    Option(
        "session_mb",
        "session_mb",
        values.integer,
        "memory of the sessions of each namespace and of their states; beyond it messages that "
        f"begin a session are refused ({MAX_SESSION_BYTES // MIB})",
        "MB",
    ),
    Option(
        "disk_free_mb",
        "disk_free_mb",
        values.integer,
        f"refuse messages while less space than this is free ({DISK_FREE_MIN_BYTES // MIB})",
        "MB",
    ),
    Option(
        "cache_mb",
        "cache_mb",
        values.integer,
        f"bodies kept in memory, of each namespace ({BODY_CACHE_BYTES // MIB})",
        "MB",
    ),
    Option(
        "staged_mb",
        "staged_mb",
        values.integer,
        "what may wait for the disk, of each namespace; beyond it messages are refused "
        f"({MAX_STAGED_BYTES // MIB})",
        "MB",
    ),
    Option(
        "store",
        "store",
        values.text,
        "keep the messages in this PostgreSQL database instead of the folder: several brokers, "
        "one serves, the others stand by (docs/postgres.md); postgresql://USER@HOST/DATABASE",
        "URL",
    ),
    Option(
        "store_lease_seconds",
        "store_lease_seconds",
        values.integer,
        "with --store: how long a broker that has stopped to answer keeps its place (10)",
        "SECONDS",
    ),
    Option(
        "has_test_clock",
        "test_clock",
        values.boolean,
        "for tests, on loopback only: whoever may manage a namespace can move its clock",
    ),
)
"""In the order of the help."""

BY_KEY: Final[Mapping[str, Option]] = {option.key: option for option in OPTIONS}
