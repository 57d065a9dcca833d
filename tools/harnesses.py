"""The long harnesses: which there are, and how one is run.

`make search` takes slices of those that have one, `make long` runs each with its full count; the
full counts are the Makefile's. A harness that takes a seed gets one that `seed_of` derives from the
commit: the same commit searches the same places on every machine, the next one searches others.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/long-run.md"
"""The table of the last `make long`. It is written after the run, so a commit that changes only
this page counts as the same tree."""
REPEAT = "repeat: "
"""Begins the line with which a harness names the command that repeats its failure."""
TIMED_OUT = 124
"""The exit code of a command that took too long, as that of timeout(1)."""


@dataclass(frozen=True, slots=True)
class Harness:
    """A make target that tries the product for long."""

    target: str
    slice: tuple[str, ...] = ()
    """Make variables for a slice of some seconds."""
    options: str = ""
    """Further options for a slice."""
    slice_s: float = 0.0
    """How long a slice takes, about."""
    seed_option: str | None = None
    """How it is given its first seed; None: it takes none."""
    is_alone: bool = False
    """It measures time or memory: nothing else may run beside it."""
    figures: str = ""
    """A regular expression for the output lines that go into the table; by default the last."""

    @property
    def is_searched(self) -> bool:
        """Whether `make search` runs slices of it."""
        return bool(self.slice)

    def command(self, seed: int | None, *, is_slice: bool = False) -> list[str]:
        """As a person would type it, but for the quotes."""
        options = self.options if is_slice else ""
        if seed is not None and self.seed_option is not None:
            options = f"{options} {self.seed_option}{seed}".strip()
        return ["make", self.target, *(self.slice if is_slice else ()), f"ARGS={options}"]


EXPECTED_SKIPS: Final = re.compile(
    r"there is no (zsh|fish)$|the samples are not there yet|no address but loopback$"
    r"|the SDK's asyncio client overlaps little"
)
"""Reasons for which a test may be skipped where all else is installed. CI and `make long` take any
other for a failure: a tool that is missing would make them green."""
SEED: Final = "--seed "

# In the order of `make long`: what is most likely to find something first.
HARNESSES = (
    Harness("model", ("RUNS=60", "STEPS=100"), "", 4.0, SEED),
    Harness(
        "powercut", ("IMAGES=600", "FLIPS=60"), "--no-canary", 2.4, SEED, figures=r"\d+ bad|silent"
    ),
    Harness("simulate", ("SEEDS=12", "HOURS=1"), "", 1.9, SEED),
    Harness("kill", ("CYCLES=6",), "--no-canary", 4.5, SEED, figures=r"\d+ kills:"),
    Harness("priority-order", ("ORDERS=500",), "", 3.0, SEED),
    Harness("sql", ("CASES=10000",), "", 5.4, SEED, figures="disagreements"),
    Harness("frames", ("READS=300",), "", 15.0, SEED),
    Harness("fuzz", ("FRAMES=50000",), "--target decoder --no-canary", 4.4, SEED),
    Harness("outage-hours", ("OUTAGE_HOURS=6", "OUTAGE_SEEDS=1"), "", 2.5, SEED),
    Harness("audit-faults", ("HONEST=1", "FAULTS=100"), "", 25.0, SEED, figures="honest:|planted:"),
    Harness("properties", seed_option="--hypothesis-seed="),
    Harness("test-long"),
    Harness("outage", seed_option=SEED),
    Harness("starvation"),
    Harness("preemption", is_alone=True),
    Harness("simulate-agrees", seed_option=SEED, is_alone=True),
    Harness("autoscale", is_alone=True),
    Harness("hostile", is_alone=True),
    Harness("connections", is_alone=True),
    Harness("timing", is_alone=True),
    Harness("ladder", seed_option=SEED, is_alone=True, figures="^memory:|^ladder "),
    Harness("spark-exactness", seed_option=SEED),
    Harness("test-spark"),
    Harness("test-postgres", seed_option=SEED),
    Harness("test-browser"),
    Harness("test-docs"),
    Harness("test-pythons"),
    Harness("test-js"),
    Harness("test-interop"),
    Harness("sdk-samples"),
    Harness("sdk-suite", is_alone=True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did."""

    command: str
    code: int
    seconds: float
    lines: tuple[str, ...]

    @property
    def repeat(self) -> str:
        """The command that repeats its failure: the harness's own, else the whole of it."""
        own = [line for line in self.lines if line.startswith(REPEAT)]
        return own[-1].removeprefix(REPEAT) if own else self.command


def as_typed(command: Sequence[str]) -> str:
    """As it is typed into a shell."""
    words = [word for word in command if word != "ARGS="]
    return " ".join(
        f'{word.split("=")[0]}="{word.partition("=")[2]}"' if " " in word else word
        for word in words
    )


_running: set[subprocess.Popen[bytes]] = set()
_is_ending = threading.Event()


def run(command: Sequence[str], log: Path | None = None, *, at_most_s: float) -> Outcome:
    """Run it to its end; one that stands still is ended with all its processes."""
    began = time.monotonic()
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as file:
        process = subprocess.Popen(
            [*command],
            cwd=ROOT,
            # What it prints is seen at once: the log of a long run can be followed.
            env={**_environment(), "PYTHONUNBUFFERED": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process)
        code = _wait(process, at_most_s)
        file.seek(0)
        text = file.read().decode(errors="replace")
    if _is_ending.is_set():
        raise KeyboardInterrupt
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if code == TIMED_OUT:
        lines.append(f"ended after {at_most_s:.0f} s, far more than it takes")
    return Outcome(as_typed(command), code, time.monotonic() - began, tuple(lines))


def _environment() -> dict[str, str]:
    """Without what could keep a harness from running, or from failing: flags of a make around this
    one, such as -i and -n. The variables that were given to that one stay."""
    left_out = ("MAKEFLAGS", "MFLAGS", "PYTEST_ADDOPTS")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    _, given, variables = os.environ.get("MAKEFLAGS", "").partition("-- ")
    return {**kept, "MAKEFLAGS": given + variables} if given else kept


def _wait(process: subprocess.Popen[bytes], at_most_s: float) -> int:
    try:
        return process.wait(at_most_s)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        _end(process)
        _running.discard(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It and whatever it has started: a session of its own is a group of processes, too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_all() -> None:
    """No command is left behind."""
    _is_ending.set()
    for process in tuple(_running):
        _end(process)


def run_main(main: Callable[[], int]) -> NoReturn:
    """The main program of a tool; Ctrl-C and SIGTERM end it with all that it runs."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        end_all()
        sys.exit(130)


def seed_of(commit: str, target: str, number: int = 0) -> int:
    """The seed of a target's slice of that number on that commit."""
    digest = hashlib.sha256(f"{commit} {target} {number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1_000_000_000


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def commit_of_tree() -> tuple[str, bool]:
    """The last commit that changed more than the page, and whether the working tree differs from
    it. Without git: the version, and True."""
    but_the_page = ("--", ".", f":!{PAGE}")
    commit = ""
    if (ROOT / ".git").exists():
        commit = _git("log", "-1", "--format=%h", "--abbrev=12", *but_the_page)
    if not commit:
        from tandembus import __version__

        return f"version-{__version__}", True
    return commit, bool(_git("status", "--porcelain", *but_the_page))


def chosen(targets: Sequence[str], among: Sequence[Harness]) -> list[Harness]:
    """Those of these names; all where none is named."""
    unknown = [target for target in targets if target not in {each.target for each in among}]
    if unknown:
        names = ", ".join(each.target for each in among)
        sys.exit(f"there is no harness {', '.join(unknown)} here; there are {names}")
    return [each for each in among if not targets or each.target in targets]
