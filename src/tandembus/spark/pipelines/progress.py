"""What a user sees while a pipeline runs: a bar on a terminal, a line now and then in a pipe (D8).

All of it goes to stderr, so that stdout has the summary and nothing else.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol, TextIO

LOOK_S: Final = 0.5
LINE_S: Final = 5.0
"""Between two lines in a pipe."""


class Standing(NamedTuple):
    """How far it is: parts done, of how many if that is known, and in words."""

    done: float
    total: float | None
    text: str


class Progress(Protocol):
    def show(self, standing: Standing) -> None: ...


class Steps:
    """A run of known steps, one after the other."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = -1
        self._text = ""

    def begin(self, text: str) -> None:
        """The next step; the one before is done."""
        self._done += 1
        self._text = text

    def standing(self, part: float) -> Standing:
        """With so much of the current step done, from 0 to 1."""
        done = max(0.0, self._done + part)
        return Standing(done, max(self._total, done), self._text)


class Lines:
    """For a log: a line when something is new, not more often than every few seconds."""

    def __init__(self, label: str, out: TextIO, every_s: float = LINE_S) -> None:
        self._label = label
        self._out = out
        self._every_s = every_s
        self._next = 0.0
        self._told = ""

    def show(self, standing: Standing) -> None:
        now = time.monotonic()
        part = f"{100 * standing.done / standing.total:.0f} %, " if standing.total else ""
        text = f"{self._label}: {part}{standing.text}"
        if text != self._told and now >= self._next:
            print(text, file=self._out, flush=True)
            self._told, self._next = text, now + self._every_s


class Nothing:
    """For --quiet."""

    def show(self, standing: Standing) -> None:
        """Not shown."""


class Bar:
    """For a terminal."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self.rich.add_task(label, total=None, text="")

    def show(self, standing: Standing) -> None:
        self.rich.update(
            self._task, completed=standing.done, total=standing.total, text=standing.text
        )


@contextmanager
def progress(label: str, *, is_quiet: bool = False) -> Iterator[Progress]:
    """The right one for where stderr goes."""
    if is_quiet:
        yield Nothing()
        return
    if not sys.stderr.isatty():
        yield Lines(label, sys.stderr)
        return
    bar = Bar(label)
    with bar.rich:
        yield bar


@contextmanager
def watched(shown: Progress, look: Callable[[], Standing | None]) -> Iterator[None]:
    """While the block runs, `look` again and again, in a thread; it may fail, and nothing does."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(LOOK_S):
            try:
                standing = look()
            except Exception:  # noqa: BLE001 - what is shown must not end what is done
                continue
            if standing is not None:
                shown.show(standing)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
