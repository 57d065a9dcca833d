"""`make long`: every long harness with its full count, and one table of what became of them.

    python -m tools.long [--lanes 2] [--only model kill] [--table]

Those that measure nothing run side by side in LANES, the others alone after them. What has
passed on this commit is not run again, so a run that was ended goes on where it was; on a tree
with changes of its own nothing is remembered. The output of each is in build/long, the table
on docs/long-run.md. `--table` runs nothing. The exit code is 1 unless every harness passed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.harnesses import (
    HARNESSES,
    PAGE,
    ROOT,
    Harness,
    chosen,
    commit_of_tree,
    end_all,
    run,
    seed_of,
    spell,
    started,
)

AT_MOST_S = 3 * 3600.0
_WORTHLESS = re.compile(r"^make(\[\d+\])?: ")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    target: str
    command: str
    seconds: int
    verdict: str
    figures: str
    date: str


class Book:
    """What has passed on a commit: a line of JSON each, in build/long."""

    def __init__(self, commit: str, *, is_kept: bool) -> None:
        self.folder = ROOT / "build" / "long" / commit
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = self.folder / "rows.jsonl"
        self.rows: dict[str, Row] = {}
        if is_kept and self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                row = Row(**json.loads(line))
                self.rows[row.target] = row
        elif not is_kept:
            self._file.unlink(missing_ok=True)

    def add(self, row: Row) -> None:
        self.rows[row.target] = row
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    def has_passed(self, target: str) -> bool:
        return target in self.rows and self.rows[target].verdict == "passed"


def figures_of(harness: Harness, lines: Sequence[str]) -> str:
    """The lines of its output that tell its result, in one."""
    told = [line.strip(" =") for line in lines if not _WORTHLESS.match(line)]
    found = [line for line in told if harness.figures and re.search(harness.figures, line)]
    return "; ".join(found[-4:] or told[-1:])


def run_one(harness: Harness, commit: str, folder: Path) -> Row:
    seed = seed_of(commit, harness.target) if harness.takes_seed else None
    command = harness.command(seed)
    print(f"  {time.strftime('%H:%M:%S')} {spell(command)}", flush=True)
    outcome = run(command, folder / f"{harness.target}.log", at_most_s=AT_MOST_S)
    figures = figures_of(harness, outcome.lines)
    if outcome.code:
        figures = f"{figures}; repeat: {outcome.repeat}"
    row = Row(
        harness.target,
        outcome.command,
        round(outcome.seconds),
        "FAILED" if outcome.code else "passed",
        figures,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
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


def write_page(text: str) -> None:
    (ROOT / PAGE).write_text(
        "# The last long run\n\n"
        "`make long` writes this page: every long harness with its full count, with seeds that\n"
        "come from the commit. [promises.md](promises.md) says what each of them is for.\n\n"
        f"{text}\n",
        encoding="utf-8",
    )


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
    parser.add_argument("--lanes", type=int, default=2, help="side by side (2)")
    parser.add_argument("--only", nargs="+", default=[], metavar="TARGET")
    parser.add_argument("--table", action="store_true", help="print what there is")
    options = parser.parse_args(arguments)
    harnesses = chosen(options.only, HARNESSES)
    commit, is_changed = commit_of_tree()
    name = f"{commit}-changed" if is_changed else commit
    book = Book(name, is_kept=options.table or not is_changed)
    open_ones = [each for each in harnesses if not book.has_passed(each.target)]
    if not options.table:
        print(
            f"long: commit {name}, {len(open_ones)} harnesses to run, "
            f"{len(harnesses) - len(open_ones)} have passed; output in "
            f"{book.folder.relative_to(ROOT)}",
            flush=True,
        )
        run_all(open_ones, options.lanes, lambda each: book.add(run_one(each, commit, book.folder)))
    text = table(name, HARNESSES, book.rows)
    write_page(text)
    print(text)
    return 0 if all(book.has_passed(each.target) for each in harnesses) else 1


if __name__ == "__main__":
    started(main)
