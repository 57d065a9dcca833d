"""`tandem store` and `tandem backup`: what an operator needs when a log looks wrong, and before.

A broker that runs makes its own backup: it is asked by a file in its folder and a signal, so that
whoever may not send it signals may not write where it can either.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tandembus.cli import codes
from tandembus.cli.connection import find_namespace, read_running
from tandembus.cli.output import add_json, counted, print_json, progress
from tandembus.config.server import BACKUP, LOG, POLICIES, check_kept_here
from tandembus.errors import StoreError

_LOOK_S: Final = 0.05


def add_commands(commands: Any) -> None:
    """To the subparsers of `tandem`."""
    backup = commands.add_parser(
        "backup",
        help="copy a namespace, also one that is being served",
        description="Copies the log and the keys of a namespace as they are now into a new folder, "
        "which `tandem serve` can serve. A broker that runs goes on meanwhile.",
        epilog="examples:\n"
        "  tandem backup data copy-of-data\n"
        "  tandem backup data copy-of-shop --namespace shop",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    backup.add_argument("folder", type=Path, metavar="FOLDER", help="the data folder")
    backup.add_argument("target", type=Path, metavar="TARGET", help="a folder that is not there")
    backup.add_argument("--namespace", metavar="NAME", help="which one, if there are several")
    add_json(backup)
    backup.set_defaults(run=_backup)

    store = commands.add_parser("store", help="check, repair or copy a namespace's log")
    tools = store.add_subparsers(required=True, metavar="COMMAND")

    check = tools.add_parser(
        "check",
        help="read the whole log and say what is wrong",
        description="Reads every file of a data folder and writes nothing. The broker must not be "
        "running on it: check a backup of a running one.",
        epilog="examples:\n  tandem store check data\n  tandem store check data --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.set_defaults(run=_check)

    repair = tools.add_parser(
        "repair",
        help="mend what can be mended without loss",
        description="Cuts a write that was never acknowledged and puts damaged indexes aside. What "
        "was acknowledged and is damaged is given up only with --accept-loss; its places are "
        "printed and its bytes are kept beside the log.",
        epilog="examples:\n  tandem store repair data\n  tandem store repair data --accept-loss",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    repair.add_argument(
        "--accept-loss", action="store_true", help="give up what is damaged, and say what it was"
    )
    repair.set_defaults(run=_repair)

    copy = tools.add_parser(
        "backup",
        help="copy a stopped broker's log",
        description="Copies a log as it is now into a new folder that opens as a store; `tandem "
        "backup` copies what else a namespace has, too.",
    )
    copy.add_argument("target", type=Path, help="a folder that does not exist yet")
    copy.set_defaults(run=_copy)

    for tool in (check, repair, copy):
        tool.add_argument("folder", type=Path, help="the data folder")
    for tool in (check, repair):
        add_json(tool)


# --- backup ---------------------------------------------------------------------------------------


def _backup(options: argparse.Namespace) -> int:
    source = find_namespace(options.folder, options.namespace)
    check_kept_here(source)
    target: Path = options.target
    if target.exists() and any(target.iterdir()):
        raise StoreError(f"{target} is not empty")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    running = read_running(source)
    if running is None:
        size = _copied(source / LOG, target / LOG)
    else:
        size = _ask(source, target / LOG, int(running["pid"]))
    if (source / POLICIES).exists():
        shutil.copy2(source / POLICIES, target / POLICIES)
        (target / POLICIES).chmod(0o600)
    if options.json:
        print_json({"folder": str(source), "target": str(target), "bytes": size})
    else:
        print(f"{size:,} bytes of log copied to {target}")
    return codes.WELL


def _ask(source: Path, target: Path, pid: int) -> int:
    """The broker that serves the folder."""
    request = source / BACKUP
    request.write_text(json.dumps({"target": str(target.absolute())}), encoding="utf-8")
    try:
        os.kill(pid, signal.SIGUSR1)
        with progress("the broker copies its log", None):
            while True:
                answer = json.loads(request.read_text(encoding="utf-8"))
                if "bytes" in answer:
                    return int(answer["bytes"])
                if "error" in answer:
                    raise StoreError(answer["error"])
                if read_running(source) is None:
                    raise StoreError("the broker has stopped meanwhile")
                time.sleep(_LOOK_S)
    finally:
        request.unlink(missing_ok=True)


def _copied(source: Path, target: Path) -> int:
    from tandembus.store.files import FileStore

    store = FileStore(_existing(source))
    try:
        return store.backup(target)
    finally:
        store.close()


def _copy(options: argparse.Namespace) -> int:
    size = _copied(_log_of(options.folder), options.target)
    print(f"{size:,} bytes of log copied to {options.target}")
    return codes.WELL


# --- check and repair -----------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> int:
    from tandembus.store.check import check

    return _report(check(_log_of(options.folder)), as_json=options.json)


def _repair(options: argparse.Namespace) -> int:
    from tandembus.store.check import repair

    report = repair(_log_of(options.folder), accept_loss=options.accept_loss)
    return _report(report, as_json=options.json)


def _log_of(folder: Path) -> Path:
    """The log of a data folder, or the folder itself if it is one."""
    check_kept_here(folder)
    inside = folder / LOG
    return inside if inside.is_dir() else _existing(folder)


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise StoreError(f"there is no folder {folder}")
    return folder


def _report(report: object, *, as_json: bool) -> int:
    from tandembus.store.check import Report

    assert isinstance(report, Report)
    if as_json:
        print_json(asdict(report))
        return codes.WELL if report.is_clean else codes.PROBLEM
    print(
        f"{report.folder}: {counted(report.segments, 'segment')}, "
        f"{counted(report.groups, 'group')}, "
        f"{report.bytes:,} bytes"
    )
    for note in report.notes:
        print(f"note: {note}")
    for action in report.actions:
        print(f"done: {action}")
    for problem in report.problems:
        print(f"PROBLEM: {problem}")
    if report.is_clean:
        print("no problem found")
    return codes.WELL if report.is_clean else codes.PROBLEM
