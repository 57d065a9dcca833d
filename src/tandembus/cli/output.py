"""What commands print: a table on a terminal, plain lines in a pipe, JSON with --json.

Lines of a pipe have tabs between their fields and no heading, so that `cut` and `while read` take
them. Progress goes to the error stream. rich is imported when a terminal is there; without it, a
terminal gets plain lines, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tandembus.errors import ArgumentError

_EVERY_S: Final = 5.0


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def is_terminal(stream: Any = None) -> bool:
    return bool((stream or sys.stdout).isatty()) and os.environ.get("TERM") != "dumb"


def print_json(tree: object) -> None:
    print(json.dumps(tree, indent=2, ensure_ascii=False))


def print_json_line(tree: object) -> None:
    print(json.dumps(tree, ensure_ascii=False), flush=True)


def print_rows(
    options: argparse.Namespace,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
) -> None:
    """Columns have the names that JSON gives them."""
    if options.json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    if is_terminal() and (console := _console()) is not None:
        from rich import box
        from rich.table import Table

        table = Table(*map(_heading, columns), title=title, box=box.SIMPLE_HEAD)
        for column, name in zip(table.columns, columns, strict=True):
            column.overflow = "fold" if name in ("body", "value", "path") else "ellipsis"
        for row in rows:
            table.add_row(*map(_cell, row))
        console.print(table)
        return
    for row in rows:
        print("\t".join(_cell(each).replace("\t", " ").replace("\n", " ") for each in row))


def print_pairs(options: argparse.Namespace, pairs: Mapping[str, object]) -> None:
    """One thing, field by field."""
    if options.json:
        print_json(dict(pairs))
    elif is_terminal():
        print_rows(options, ("name", "value"), list(pairs.items()))
    else:
        for name, value in pairs.items():
            print(f"{name}\t{_cell(value)}")


def _console() -> Any:
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False, markup=False)


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:,}" if is_terminal() else str(value)
    return str(value)


def say(text: str) -> None:
    """What is not the result: to the error stream, so that a pipe gets the result alone."""
    print(text, file=sys.stderr, flush=True)


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 message`, `2 messages`; `many` where it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Call what it gives with the number that was done. A bar on a terminal, else a line now and
    then; short work prints nothing."""
    if is_terminal(sys.stderr):
        try:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )
        except ImportError:
            pass
        else:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task(label, total=total)
                yield lambda count: bar.advance(task, count)
            return
    done = 0
    told = time.monotonic()

    def step(count: int) -> None:
        nonlocal done, told
        done += count
        if time.monotonic() - told >= _EVERY_S:
            told = time.monotonic()
            say(f"{label}: {done:,}" + ("" if total is None else f" of {total:,}"))

    yield step


def confirm(options: argparse.Namespace, question: str) -> None:
    """For what cannot be undone. Raises ArgumentError if nobody has agreed."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise ArgumentError(f"{question} Say --yes.")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise ArgumentError("Nothing was done.")


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
