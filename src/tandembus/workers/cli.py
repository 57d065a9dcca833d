"""`tandem workers run` and `tandem workers check`.

The SDK is imported when a command runs, not for its help. Exit code 3: a target is missed (at the
end, or with --fail-on-alert as soon as one is).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from tandembus.client.board import Reporter
    from tandembus.workers.options import PoolOptions
    from tandembus.workers.pools_file import PoolEntry, PoolsFile
    from tandembus.workers.running import Overseer
    from tandembus.workers.status import PoolStatus
    from tandembus.workers.worker import Worker

MISSED: Final = 3


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    workers = commands.add_parser("workers", help="run pools of workers over queues of priorities")
    tools = workers.add_subparsers(required=True, metavar="COMMAND")
    run = tools.add_parser(
        "run",
        help="run the pools of a file",
        description="Runs pools of workers until Ctrl-C or SIGTERM; then it takes no more, ends "
        "what it has begun, and gives the rest back. SIGHUP reads the file again: sizes, and what "
        "is suspended. In a terminal it shows a table, else a line for each level.",
    )
    run.add_argument("file", type=Path, help="a TOML file (docs/priority.md)")
    run.add_argument(
        "--connection-string",
        help="of the namespace; without it, from the environment (TANDEM_CONNECTION_STRING)",
    )
    run.add_argument(
        "--every", type=float, default=1.0, metavar="SECONDS", help="how often to show (1)"
    )
    run.add_argument("--for", dest="during", type=float, metavar="SECONDS", help="stop after this")
    run.add_argument(
        "--fail-on-alert", action="store_true", help="end with code 3 when a target is missed"
    )
    run.add_argument(
        "--console", action="store_true", help="also show them on the console of the namespace"
    )
    run.add_argument("--child", metavar="POOL", help=argparse.SUPPRESS)
    run.set_defaults(run=_run)
    check = tools.add_parser("check", help="read such a file, and say what is wrong with it")
    check.add_argument("file", type=Path)
    check.set_defaults(run=_check)


def _read(path: Path) -> PoolsFile:
    from tandembus.workers.pools_file import read_pools

    return read_pools(path.read_text(encoding="utf-8"), path.name)


def _load(path: Path, entry: PoolEntry) -> Worker:
    from tandembus.workers.pools_file import load_worker

    return load_worker(entry.worker, path.resolve().parent)


def _check(options: argparse.Namespace) -> int:
    found = _read(options.file)
    for entry in found.pools:
        _load(options.file, entry)
    for entry in found.pools:
        pool = entry.options
        levels = " > ".join(f"{level.name} ({level.path})" for level in pool.levels)
        bounds = f", {pool.scale.min} to {pool.scale.max}" if pool.scale is not None else ""
        print(f"{pool.name}: {pool.first_size} workers{bounds}; {levels}")
    return 0


def _run(options: argparse.Namespace) -> int:
    import logging

    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # What the SDK says about links that come and go is said by the pools, in their words.
    logging.getLogger("azure").setLevel(logging.ERROR)
    found = _read(options.file)
    workers = {entry.options.name: _load(options.file, entry) for entry in found.pools}
    connection = options.connection_string or os.environ.get(found.connection_string_env)
    if not connection:
        raise ArgumentError(
            f"no connection string: give --connection-string, or set {found.connection_string_env}"
        )
    if options.child is not None:
        entry = found.only(options.child)
        asyncio.run(_child(entry.options, workers[options.child], connection))
        return 0
    return asyncio.run(_Run(options, found, workers, connection).run())


async def _child(options: PoolOptions, worker: Worker, connection: str) -> None:
    from tandembus.workers.pools import Pool
    from tandembus.workers.processes import child_options, serve_child
    from tandembus.workers.wire import connect

    # Ctrl-C goes to the whole group; the parent closes our input when it is time.
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with connect(connection) as client:
        pool = Pool(worker, child_options(options), client)
        # What a handler prints goes to the terminal; the parent reads reports only.
        reports, sys.stdout = sys.stdout, sys.stderr
        await serve_child(pool, commands, reports)


class _Run:
    def __init__(
        self,
        options: argparse.Namespace,
        found: PoolsFile,
        workers: Mapping[str, Worker],
        connection: str,
    ) -> None:
        self._options = options
        self._found = found
        self._workers = workers
        self._connection = connection
        self._stop = asyncio.Event()
        self._shown = 0
        self._status: list[PoolStatus] = []
        """The last that was shown."""

    async def run(self) -> int:
        from tandembus.clock import SystemClock
        from tandembus.workers.depth import QueueLooker
        from tandembus.workers.running import Overseer
        from tandembus.workers.wire import connect

        async with connect(self._connection) as client:
            pools = [self._pool(entry, client) for entry in self._found.pools]
            looker = QueueLooker(client, self._connection, SystemClock())
            overseer = Overseer(
                pools, looker, on_alert=self._alert, every_s=self._found.look_every_s
            )
            server = None
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop.set)
            loop.add_signal_handler(signal.SIGHUP, lambda: self._reread(overseer))
            reporters = [] if not self._options.console else self._report()
            async with overseer:
                if self._found.metrics_port is not None:
                    server = await overseer.serve_metrics(self._found.metrics_port)
                await self._show_until_stopped(overseer)
                self._show(overseer)
                is_missed = overseer.is_alert
                if server is not None:
                    server.close()
            for reporter in reporters:
                await asyncio.to_thread(reporter.stop)
        return MISSED if is_missed else 0

    def _report(self) -> list[Reporter]:
        from tandembus.client.board import Reporter
        from tandembus.workers.status import on_board

        def say(name: str) -> dict[str, Any]:
            return next((on_board(each) for each in self._status if each.name == name), {})

        return [
            Reporter(self._connection, "pool", name, partial(say, name)).start()
            for name in (entry.options.name for entry in self._found.pools)
        ]

    def _pool(self, entry: PoolEntry, client: Any) -> Any:
        from tandembus.workers.pools import Pool
        from tandembus.workers.processes import ProcessPool

        if not entry.options.processes:
            return Pool(self._workers[entry.options.name], entry.options, client)
        os.environ[self._found.connection_string_env] = self._connection  # not on a command line
        command = [sys.executable, "-m", "tandembus.cli", "workers", "run", str(self._options.file)]
        return ProcessPool(entry.options, [*command, "--child", entry.options.name])

    def _alert(self, alert: object) -> None:
        if self._options.fail_on_alert and not getattr(alert, "is_over", False):
            self._stop.set()

    def _reread(self, overseer: Overseer) -> None:
        """Sizes, and what is suspended; the rest needs a new start."""
        try:
            found = {each.options.name: each.options for each in _read(self._options.file).pools}
        except (ArgumentError, OSError) as error:
            print(f"tandem: {error}; nothing is changed", file=sys.stderr)
            return
        for pool in overseer.pools:
            wanted = found.get(pool.options.name)
            if wanted is None:
                continue
            (pool.suspend if wanted.is_suspended else pool.resume)()
            if wanted.scale is None:
                pool.resize(wanted.size)

    async def _show_until_stopped(self, overseer: Overseer) -> None:
        during = self._options.during
        loop = asyncio.get_running_loop()
        end = None if during is None else loop.time() + during
        while not self._stop.is_set():
            self._show(overseer)
            wait_s = self._options.every
            if end is not None:
                wait_s = min(wait_s, end - loop.time())
                if wait_s <= 0:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_s)

    def _show(self, overseer: Overseer) -> None:
        from tandembus.workers.status import lines, table

        status = self._status = list(overseer.status())
        if sys.stdout.isatty():
            # Over the last one: up, and each line cleared to its end.
            up = f"\x1b[{self._shown}A" if self._shown else ""
            # One that is too long for the terminal would be two, and the next one in its place.
            columns = shutil.get_terminal_size().columns
            shown = [line[:columns] for line in table(status)]
            print(up + "".join(f"{line}\x1b[K\n" for line in shown), end="", flush=True)
            self._shown = len(shown)
        else:
            clock = datetime.now().astimezone().strftime("%H:%M:%S")
            print("\n".join(lines(status, clock)), flush=True)
