"""`tandem journal run` and `tandem journal status`.

numpy and pyarrow are imported when a command runs, not for its help.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from tandembus.errors import ArgumentError

if TYPE_CHECKING:
    from tandembus.journal.run import Journal

_NAMESPACE = "default"


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    journal = commands.add_parser("journal", help="the broker's log as a table of events (Parquet)")
    tools = journal.add_subparsers(required=True, metavar="COMMAND")
    run = tools.add_parser(
        "run",
        help="follow the log of a broker and write the journal",
        description="Runs beside a broker, on the same machine, and reads its log without "
        "disturbing it. Can be stopped and killed at any time: it goes on where it was.",
    )
    for flag, default, unit, text in (
        ("--every", 60.0, "SECONDS", "finish a file at least so often (60)"),
        ("--hold-hours", 24.0, "HOURS", "the broker keeps the log so long for a journal that "
         "stopped (24)"),
        ("--hold-gib", 16.0, "GIB", "and so much of it (16)"),
    ):  # fmt: skip
        run.add_argument(flag, type=float, default=default, metavar=unit, help=text)
    run.add_argument("--keep-hours", type=int, metavar="HOURS", help="remove what is older")
    run.add_argument("--once", action="store_true", help="end when the end of the log is reached")
    run.add_argument(
        "--no-hold", action="store_true", help="the broker may drop what is not in the journal yet"
    )
    run.add_argument("--quiet", action="store_true")
    run.set_defaults(run=_run)
    status = tools.add_parser("status", help="how far the journal is, and what it holds")
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)
    for tool in (run, status):
        tool.add_argument("folder", type=Path, help="the broker's data folder")
        tool.add_argument("--out", type=Path, required=True, metavar="DIR", help="of the journal")
        tool.add_argument("--namespace", default=_NAMESPACE, help="its name in the table")


def _run(options: argparse.Namespace) -> int:
    try:
        from tandembus.journal.run import Journal, JournalOptions
    except ImportError as error:
        raise ArgumentError("This needs pyarrow: pip install 'tandembus[journal]'") from error
    stop = Event()
    if not options.once:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        with suppress(OSError):
            os.nice(15)  # the broker goes first; what is late is read later
    journal = Journal(
        JournalOptions(
            options.folder,
            options.out,
            namespace=options.namespace,
            every_s=options.every,
            keep_hours=options.keep_hours,
            hold_hours=options.hold_hours,
            hold_bytes=int(options.hold_gib * (1 << 30)),
            has_hold=not options.no_hold,
        )
    )
    try:
        _say(options, f"from place {journal.place:#x} of {journal.log}", journal)
        journal.run(stop, until_end=options.once)
        _say(options, f"{journal.files.written_rows:,} events, up to {journal.place:#x}", journal)
    finally:
        journal.close()
    return 0


def _say(options: argparse.Namespace, text: str, journal: Journal) -> None:
    if not options.quiet:
        print(f"{journal.files.folder}: {text}", file=sys.stderr, flush=True)


def _status(options: argparse.Namespace) -> int:
    try:
        from tandembus.journal.status import status
    except ImportError as error:
        raise ArgumentError("This needs pyarrow: pip install 'tandembus[journal]'") from error
    found = status(options.folder, options.out, options.namespace)
    if options.json:
        print(json.dumps(found._asdict()))
        return 0
    print(
        f"{found.rows:,} events in {found.files:,} files of {found.hours:,} hours, "
        f"{found.bytes:,} bytes"
    )
    print(f"up to place {found.position:#x}; the log ends at {found.end:#x}", end="")
    print(f": {found.end - found.position:,} bytes behind")
    if found.held is not None:
        print(f"the log is held back from {found.held:#x} on")
    if found.stretches > 1:
        print(f"{found.stretches - 1} times the log was dropped before the journal had it")
    return 0
