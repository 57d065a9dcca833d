"""`make search MINUTES=10`: slices of harnesses, with seeds derived from the commit.

    python -m tools.search [--minutes 10] [--only model kill] [--commit 1a2b3c4d5e6f]

They run one after the other, and share the minutes: each makes one slice at least, then further
ones for as long as its share lasts. Run it on the commit that is handed over, before it is: another
commit has other seeds (`harnesses.seed_of`). A slice that fails is shown with the one command that
repeats it, and the exit code is then 1. `--commit` takes the seeds of another commit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import suppress

from tools.harnesses import (
    HARNESSES,
    Harness,
    Outcome,
    chosen,
    commit_of_tree,
    run,
    run_main,
    seed_of,
)

SEARCHED = tuple(
    sorted(
        (each for each in HARNESSES if each.is_searched), key=lambda it: it.slice_s, reverse=True
    )
)
"""The one with the longest slice comes first: the others share the minutes that it leaves."""
AT_MOST_S = 600.0
"""Time limit of one slice; slices take seconds."""
SHOWN_LINES = 40
MOST_MINUTES = 100_000


def search(harness: Harness, commit: str, share_s: float) -> tuple[int, Outcome | None]:
    """Slices for as long as another one fits in the share; how many, and the one that failed."""
    began = time.monotonic()
    number, last_s = 0, 0.0
    while number == 0 or time.monotonic() - began + last_s <= share_s:
        seed = seed_of(commit, harness.target, number)
        outcome = run(harness.command(seed, is_slice=True), at_most_s=AT_MOST_S)
        number += 1
        last_s = outcome.seconds
        if outcome.code:
            return number, outcome
    return number, None


def _minutes(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) <= MOST_MINUTES:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to {MOST_MINUTES:,}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=_minutes, default=10.0, help="in all (10)")
    parser.add_argument("--only", nargs="+", default=[], metavar="TARGET")
    parser.add_argument("--commit", help="take its seeds (this tree's)")
    options = parser.parse_args(arguments)
    harnesses = chosen(options.only, SEARCHED)
    commit, is_changed = commit_of_tree()
    seeds = options.commit or commit
    changed = " with changes" if is_changed else ""
    print(
        f"search: {options.minutes:g} minutes, seeds of commit {seeds}, tree of commit {commit}"
        f"{changed}",
        flush=True,
    )
    began = time.monotonic()
    slices = 0
    failed: list[Outcome] = []
    for place, harness in enumerate(harnesses):
        left_s = options.minutes * 60 - (time.monotonic() - began)
        start = time.monotonic()
        count, failure = search(harness, seeds, left_s / (len(harnesses) - place))
        slices += count
        print(
            f"  {harness.target:<15} {count:>3} × {' '.join(harness.slice)} "
            f"{harness.options}".rstrip()
            + f", {time.monotonic() - start:.0f} s: {'FAILED' if failure else 'nothing found'}",
            flush=True,
        )
        if failure is not None:
            failed.append(failure)
            print(*(f"    | {line}" for line in failure.lines[-SHOWN_LINES:]), sep="\n")
            print(f"  repeat: {failure.repeat}", flush=True)
    print(
        f"search: {len(harnesses)} harnesses, {slices} slices, "
        f"{time.monotonic() - began:.0f} s, {len(failed)} failed",
        flush=True,
    )
    for each in failed:
        print(f"repeat: {each.repeat}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    run_main(main)
