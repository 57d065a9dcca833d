"""`tandem doctor`: what is wrong on this machine, and what to do about it.

Each check looks, changes nothing that stays, and gives findings: well, a warning, or a problem with
what to do. One that fails in an unforeseen way is a finding, too.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from tandembus import __version__
from tandembus.cli import codes
from tandembus.cli.connection import read_policies, read_running
from tandembus.cli.output import add_json, counted, is_terminal, print_json, print_rows, progress
from tandembus.cli.serve import add_options, loaded
from tandembus.config import NamespaceConfig, ServerConfig
from tandembus.config.server import LOG, POLICIES
from tandembus.config.values import show_url
from tandembus.errors import ArgumentError, StoreError, TandemError
from tandembus.limits import MIB

WELL: Final = "well"
WARNING: Final = "WARNING"
PROBLEM: Final = "PROBLEM"

_OPTIONAL: Final = ("rich", "uvloop", "azure-servicebus", "cryptography", "pyspark", "psycopg")
_SYNCS: Final = 40
_SLOW_SYNC_MS: Final = 20.0
_GIB: Final = 1024 * MIB
_LATE: Final = timedelta(minutes=5)
_SOON: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: str
    what: str
    do: str = ""


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    parser = commands.add_parser(
        "doctor",
        help="what is wrong, and what to do about it",
        description="Looks at versions, the configuration, the folder and its keys, the disk (room "
        "and the speed of a sync), the clock, ports, the certificate, limits, and the log. Changes "
        "nothing. The exit code is 1 if a problem was found.",
        epilog="examples:\n"
        "  tandem doctor data\n"
        "  tandem doctor --config tandem.toml --json\n"
        "  tandem doctor data --skip-log          without reading the whole log",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("--skip-log", action="store_true", help="do not read the whole log")
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    found = list(examine(options))
    if options.json:
        print_json(
            [{"check": f.check, "state": f.state, "what": f.what, "do": f.do} for f in found]
        )
    elif is_terminal():
        print_rows(
            options,
            ("check", "state", "what", "what to do"),
            [(f.check, f.state, f.what, f.do) for f in found],
        )
    else:
        for f in found:
            print(f"{f.state}\t{f.check}: {f.what}" + (f" — {f.do}" if f.do else ""))
    return codes.PROBLEM if any(f.state == PROBLEM for f in found) else codes.WELL


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    yield from versions()
    try:
        config = loaded(options).config
    except TandemError as error:
        yield Finding("configuration", PROBLEM, str(error), "correct it; `tandem config check`")
        return
    yield Finding("configuration", WELL, counted(len(config.served), "namespace"))
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("limits", lambda: limits(config)),
        ("ports", lambda: ports(config)),
        ("certificate", lambda: certificate(config)),
        ("clock", lambda: clock(config)),
    ]
    for each in config.served:
        checks.append(("keys", lambda each=each: keys(each)))  # type: ignore[misc]
        if config.store is None:
            checks += [
                ("disk", lambda each=each: disk(each)),  # type: ignore[misc]
                ("log", lambda each=each: log(each, reads_all=not options.skip_log)),  # type: ignore[misc]
            ]
    if config.store is not None:
        checks.append(("store", lambda: database(config)))
    for name, check in checks:
        try:
            yield from check()
        except (OSError, TandemError, ValueError) as error:
            yield Finding(name, PROBLEM, f"it could not be looked at: {error}")


# --- the checks -----------------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    found = []
    for package in _OPTIONAL:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    beside = ", ".join(found) or "nothing"
    text = f"Tandem {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield Finding("versions", WELL, f"{text}; beside it: {beside}")


def limits(config: ServerConfig) -> Iterator[Finding]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < config.max_connections + 100:
        yield Finding(
            "limits",
            WARNING,
            f"{most:,} open files are allowed, for {config.max_connections:,} connections",
            f"raise it (`ulimit -Hn`, LimitNOFILE=), or set max_connections to {most - 100:,}",
        )
    else:
        yield Finding("limits", WELL, f"{most:,} open files, {config.max_connections:,} peers")


def ports(config: ServerConfig) -> Iterator[Finding]:
    served = [read_running(each.folder) for each in config.served]
    own = {int(port) for running in served if running for port in running.get("ports", [])}
    wanted = [*config.ports, *(port for each in config.served for port in each.ports)]
    wanted += [port for port, why in config.wanted_ports.items() if why is None]
    for port in dict.fromkeys(wanted):
        if port == 0:
            continue
        if port in own:
            yield Finding("ports", WELL, f"{port} is served by this broker")
            continue
        why = _cannot_bind(config.host, port)
        if why is None:
            yield Finding("ports", WELL, f"{port} is free on {config.host}")
        else:
            yield Finding(
                "ports",
                PROBLEM,
                f"{port} cannot be had on {config.host}: {why}",
                f"stop what has it (`ss -ltnp 'sport = :{port}'`), or take another with --port",
            )


def _cannot_bind(host: str, port: int) -> str | None:
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def certificate(config: ServerConfig) -> Iterator[Finding]:
    if config.certificate is None:
        yield Finding("certificate", WELL, "none: TLS is not served")
        return
    from tandembus.server.certificate import expiry

    ends = expiry(config.certificate)
    left = ends - datetime.now(UTC)
    text = f"{config.certificate} is good until {ends:%Y-%m-%d %H:%M} UTC"
    if left < timedelta():
        yield Finding("certificate", PROBLEM, text, "make a new one (`tandem cert`)")
    elif left < _SOON:
        yield Finding("certificate", WARNING, text, "make a new one soon (`tandem cert`)")
    else:
        yield Finding("certificate", WELL, text)
    if config.private_key is not None:
        yield from _private(config.private_key, "certificate")


def clock(config: ServerConfig) -> Iterator[Finding]:
    """A clock that was ahead when the log was written makes the broker's time stand still until it
    is reached again."""
    now = datetime.now(UTC)
    newest = 0.0
    for each in config.served:
        for file in (each.folder / LOG).glob("*"):
            newest = max(newest, file.stat().st_mtime)
    ahead = datetime.fromtimestamp(newest, UTC) - now
    if ahead > _LATE:
        yield Finding(
            "clock",
            PROBLEM,
            f"the log was written {ahead} in the future of this machine's clock",
            "set the clock (timedatectl set-ntp true)",
        )
    elif now.year < 2025:
        yield Finding("clock", PROBLEM, f"it is {now:%Y-%m-%d} here", "set the clock")
    else:
        yield Finding("clock", WELL, f"{now:%Y-%m-%d %H:%M:%S} UTC, not behind the log")


def keys(namespace: NamespaceConfig) -> Iterator[Finding]:
    file = namespace.folder / POLICIES
    if not file.exists():
        yield Finding("keys", WELL, f"{namespace.name}: the first start will make them")
        return
    read_policies(namespace.folder)
    yield from _private(file, "keys")


def _private(file: Path, check: str) -> Iterator[Finding]:
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        yield Finding(
            check, PROBLEM, f"others can read {file} (mode {mode:o})", f"chmod 600 {file}"
        )
    else:
        yield Finding(check, WELL, f"{file} is for its owner alone")


def disk(namespace: NamespaceConfig) -> Iterator[Finding]:
    folder = namespace.folder
    while not folder.is_dir():  # as it will be made
        folder = folder.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("disk", PROBLEM, f"{folder} cannot be written", f"chown it: {folder}")
        return
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    text = f"{free / _GIB:,.1f} GiB are free for '{namespace.name}'"
    if free < _GIB:
        yield Finding("disk", PROBLEM, text, "make room: sends are refused when it is full")
    else:
        yield Finding("disk", WELL, text)
    times = sorted(sync_times(folder))
    median, slowest = times[len(times) // 2], times[-1]
    text = f"a sync takes {median:.2f} ms, {slowest:.1f} ms at most of {len(times)}"
    if median > _SLOW_SYNC_MS:
        yield Finding(
            "disk", WARNING, text, "each acknowledgement waits for one: take a faster disk"
        )
    else:
        yield Finding("disk", WELL, text)


def database(config: ServerConfig) -> Iterator[Finding]:
    """Whether it can be had, and who serves what is in it."""
    from tandembus.store import standby

    url = show_url(config.store or "")
    try:
        served = standby.check(config)
    except ArgumentError as error:
        yield Finding("store", PROBLEM, str(error), "correct it, or the database")
        return
    for each in config.served:
        holder = served.get(each.name.lower())
        told = "by nobody now" if holder is None else f"by {holder}"
        yield Finding("store", WELL, f"'{each.name}' is in {url}, served {told}")


def sync_times(folder: Path) -> Iterator[float]:
    """Milliseconds of writes that are on disk when they return."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        for _ in range(_SYNCS):
            file.write(b"\0" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            yield (time.perf_counter() - began) * 1000


def log(namespace: NamespaceConfig, *, reads_all: bool) -> Iterator[Finding]:
    running = read_running(namespace.folder)
    if running is not None:
        yield from _answers(namespace, running)
        return
    folder = namespace.folder / LOG
    if not folder.is_dir():
        yield Finding("log", WELL, f"'{namespace.name}' has none yet")
        return
    if not reads_all:
        return
    from tandembus.store.check import check

    with progress(f"reading the log of '{namespace.name}'", None):
        try:
            report = check(folder)
        except StoreError as error:
            yield Finding("log", PROBLEM, str(error), "is a broker running on it?")
            return
    text = f"{counted(report.groups, 'group')}, {report.bytes / MIB:,.1f} MiB of '{namespace.name}'"
    for problem in report.problems:
        yield Finding("log", PROBLEM, str(problem), f"tandem store repair {namespace.folder}")
    for note in report.notes:
        yield Finding("log", WARNING, str(note), "`tandem serve` mends this by itself")
    if report.is_clean:
        yield Finding("log", WELL, text)


def _answers(namespace: NamespaceConfig, running: dict[str, Any]) -> Iterator[Finding]:
    """A broker that runs has its log to itself; whether it answers can be asked."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(running["host"], running["port"], timeout=5)
    try:
        began = time.perf_counter()
        connection.request("GET", "/health")
        status = connection.getresponse().status
        ms = (time.perf_counter() - began) * 1000
    except (OSError, HTTPException) as error:
        yield Finding(
            "log",
            PROBLEM,
            f"process {running['pid']} serves '{namespace.name}', and does not answer: {error}",
            "look at its log; restart it",
        )
        return
    finally:
        connection.close()
    state = WELL if status == 200 else PROBLEM
    text = f"'{namespace.name}' is served by process {running['pid']}, which answers in {ms:.0f} ms"
    yield Finding("log", state, text, "" if state == WELL else "look at its log; restart it")
