"""`make long`: every long harness with its full count, and one table of what became of them.

    python -m tools.long [--lanes 2] [--only model kill]

Harnesses that measure nothing run LANES at a time; the others run alone after them. The table is
docs/long-run.md, the output of each is in build/long. What has passed on this commit by that page
is not run again, so a run that was ended goes on where it was, also on another machine when the
page was committed. On a tree with uncommitted changes nothing is remembered, and the table goes to
build/long instead. Other counts than the full ones are refused. The exit code is 1 unless all that
was asked for has passed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from tools.harnesses import (
    EXPECTED_SKIPS,
    HARNESSES,
    PAGE,
    ROOT,
    Harness,
    as_typed,
    chosen,
    commit_of_tree,
    end_all,
    run,
    run_main,
    seed_of,
)

AT_MOST_S = 3 * 3600.0
"""Time limit of one harness."""
_FROM_MAKE = re.compile(r"^make(\[\d+\])?: ")
_ROW = re.compile(r"^\| `(make ([a-z-]+)[^`]*)` \| (\S+) \| ([\d,]+) \| (.*?) \| (.*) \|$", re.M)
_SKIPPED = re.compile(r"^SKIPPED \[\d+\] (.*)")
_VARIABLE = re.compile(r"^([A-Z_]+)\s*\?=", re.MULTILINE)
NO_COUNTS = {"PYTHON", "BENCH_PY", "WORKERS", "MINUTES", "BEFORE", "LANES", "ARGS"}
"""Variables of the Makefile that do not say how much a harness does."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    target: str
    command: str
    date: str
    seconds: int
    verdict: str
    figures: str


class Results:
    """What has become of the harnesses on a commit, and the page where it is kept."""

    def __init__(self, commit: str, page: Path) -> None:
        self.commit = commit
        self.page = page
        self.rows: dict[str, Row] = {}
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if f" passed on commit {commit}, " in text:
            for command, target, date, seconds, verdict, figures in _ROW.findall(text):
                self.rows[target] = Row(
                    target,
                    command,
                    date,
                    int(seconds.replace(",", "")),
                    verdict,
                    figures.replace("\\|", "|"),
                )

    def add(self, row: Row) -> None:
        self.rows[row.target] = row
        self.page.write_text(
            "# The last long run\n\n"
            "`make long` writes this page: every long harness with its full count. Seeds come\n"
            "from the commit. [promises.md](promises.md) says what the harnesses are for.\n\n"
            f"{table(self.commit, HARNESSES, self.rows)}\n",
            encoding="utf-8",
        )

    def has_passed(self, target: str) -> bool:
        return target in self.rows and self.rows[target].verdict == "passed"


def figures_of(harness: Harness, lines: Sequence[str]) -> str:
    """The lines of its output that tell its result, in one."""
    told = [line.strip(" =") for line in lines if not _FROM_MAKE.match(line)]
    found = [line for line in told if harness.figures and re.search(harness.figures, line)]
    return "; ".join(found[-4:] or told[-1:])


def other_counts(environment: Mapping[str, str]) -> list[str]:
    """Counts that were given, on the command line of make or in the environment."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    counts = [name for name in _VARIABLE.findall(makefile) if name not in NO_COUNTS]
    return [f"{name}={environment[name]}" for name in counts if name in environment]


def verdict_of(code: int, lines: Sequence[str], *, has_tree_changed: bool) -> str:
    """`passed`, or why it is not."""
    if code:
        return "FAILED"
    if has_tree_changed:
        return "the tree was changed meanwhile"
    if not lines or (
        any(re.search(r"\d+ skipped", line) for line in lines)
        and not any(re.search(r"\d+ passed", line) for line in lines)
    ):
        return "nothing was run"
    for line in lines:
        skipped = _SKIPPED.match(line)
        if skipped is not None and not EXPECTED_SKIPS.search(line):
            return f"tests were skipped: {skipped[1]}"
    return "passed"


def run_one(harness: Harness, tree: tuple[str, bool], folder: Path) -> Row:
    """`tree` is what the run began on; a harness that finds or leaves another has not passed."""
    commit = tree[0]
    was_changed = commit_of_tree() != tree
    seed = seed_of(commit, harness.target)
    command = harness.command(seed)
    print(f"  {time.strftime('%H:%M:%S')} {as_typed(command)}", flush=True)
    outcome = run(command, folder / f"{harness.target}.log", at_most_s=AT_MOST_S)
    figures = figures_of(harness, outcome.lines)
    if outcome.code and outcome.repeat not in figures:
        figures = f"{figures}; repeat: {outcome.repeat}"
    row = Row(
        harness.target,
        outcome.command,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        round(outcome.seconds),
        verdict_of(
            outcome.code,
            outcome.lines,
            has_tree_changed=was_changed or commit_of_tree() != tree,
        ),
        figures,
    )
    print(f"  {row.target}: {row.verdict}, {row.seconds} s: {row.figures}", flush=True)
    return row


def table(commit: str, harnesses: Sequence[Harness], rows: dict[str, Row]) -> str:
    """Markdown; what was not run is a line of it, too."""
    lines = ["| command | date | seconds | verdict | figures |", "|---|---|---|---|---|"]
    for harness in harnesses:
        row = rows.get(harness.target)
        if row is None:
            lines.append(f"| `make {harness.target}` | | | not run | |")
            continue
        figures = row.figures.replace("|", "\\|")
        lines.append(
            f"| `{row.command}` | {row.date} | {row.seconds:,} | {row.verdict} | {figures} |"
        )
    passed = sum(row.verdict == "passed" for row in rows.values())
    seconds = sum(row.seconds for row in rows.values())
    lines += [
        "",
        f"{passed} of {len(harnesses)} passed on commit {commit}, "
        f"{seconds / 60:,.0f} minutes of harnesses in all.",
    ]
    return "\n".join(lines)


def run_all(harnesses: Sequence[Harness], lanes: int, one: Callable[[Harness], None]) -> None:
    """Those that may run side by side first, then the others."""
    pool = ThreadPoolExecutor(lanes)
    try:
        for done in [pool.submit(one, each) for each in harnesses if not each.is_alone]:
            done.result()
    except BaseException:
        end_all()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    for harness in harnesses:
        if harness.is_alone:
            one(harness)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="long", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lanes", type=int, choices=range(1, 17), default=2, metavar="N", help="side by side (2)"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="TARGET")
    options = parser.parse_args(arguments)
    harnesses = chosen(options.only, HARNESSES)
    if given := other_counts(os.environ):
        parser.error(f"a long run has the full counts, and {' '.join(given)} is given")
    commit, is_changed = commit_of_tree()
    name = f"{commit}-changed" if is_changed else commit
    folder = ROOT / "build" / "long" / name
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "table.md" if is_changed else ROOT / PAGE
    if is_changed:
        page.unlink(missing_ok=True)
    results = Results(name, page)
    open_ones = [each for each in harnesses if not results.has_passed(each.target)]
    print(
        f"long: commit {name}, {len(open_ones)} harnesses to run, "
        f"{len(harnesses) - len(open_ones)} have passed; output in {folder.relative_to(ROOT)}",
        flush=True,
    )
    write = Lock()

    def one(harness: Harness) -> None:
        row = run_one(harness, (commit, is_changed), folder)
        with write:
            results.add(row)

    run_all(open_ones, options.lanes, one)
    print(table(name, HARNESSES, results.rows))
    return 0 if all(results.has_passed(each.target) for each in harnesses) else 1


if __name__ == "__main__":
    run_main(main)
