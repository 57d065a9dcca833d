"""`python -m tests.simulation.run --seeds 1000 --hours 1`: many worlds, and what became of them.

Each seed is one simulated run of so many hours with the faults that the seed drew. One in a
hundred is run twice and must give the same trace. The first failures are printed with seed, mix,
promise and the end of the trace; the exit code is then 1. With `--no-sync`, a canary, power cuts
lose what was written, and violations must be reported.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from tests.repeat import repeat
from tests.simulation.checkers import Violation
from tests.simulation.world import World

TWICE_EVERY = 100
SHOWN_FAILURES = 5
SHOWN_LINES = 30


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one seed."""

    seed: int
    mix: str
    violation: str
    """Empty: none."""
    lines: tuple[str, ...]
    """The end of the trace, if there is a violation."""
    trace: str
    counts: Counter[str] = field(default_factory=Counter)
    runs: int = 1

    def __str__(self) -> str:
        lines = "\n    ".join(line[:300] for line in self.lines[-SHOWN_LINES:])
        return f"seed {self.seed} ({self.mix})\n  {self.violation}\n    {lines}"


def judge(seed: int, hours: float, *, forgets: Collection[str] = (), runs: int = 1) -> Verdict:
    """Run a seed. Whatever ends it early is a violation: core's own assertions are promises too."""
    world = World(seed, hours=hours, forgets=forgets)
    violation = trace = ""
    try:
        trace = world.run()
        for _ in range(runs - 1):
            again = World(seed, hours=hours, forgets=forgets).run()
            if again != trace:
                raise Violation("S", f"the same seed gave two traces, {trace} and {again}")
    except Violation as found:
        violation = str(found)
    except Exception as bug:  # noqa: BLE001 - a bug of the product, or of the simulator
        where = traceback.extract_tb(bug.__traceback__)[-1]
        violation = f"exception: {bug!r} in {where.filename}:{where.lineno} ({where.name})"
    return Verdict(
        seed,
        str(world.mix),
        violation,
        tuple(world.lines) if violation else (),
        trace,
        world.counts + world.ledger.counts,
        runs,
    )


def _job(hours: float, forgets: Collection[str], seed: int) -> Verdict:
    return judge(seed, hours, forgets=forgets, runs=2 if seed % TWICE_EVERY == 0 else 1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--details", action="store_true", help="count everything that happened")
    parser.add_argument("--no-sync", action="store_true", help="no write is synced")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.seeds)
    job = partial(_job, options.hours, ("write",) * options.no_sync)
    first: Verdict | None = None
    began = time.monotonic()
    totals: Counter[str] = Counter()
    done = violations = twice = 0
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for verdict in pool.imap_unordered(job, seeds, chunksize=4):
            done += 1
            totals.update(verdict.counts)
            twice += verdict.runs > 1 and not verdict.violation
            if verdict.violation:
                violations += 1
                first = first or verdict
                if violations <= SHOWN_FAILURES:
                    print(verdict, flush=True)
            if done % max(1, options.seeds // 20) == 0 and done < options.seeds:
                print(
                    f"  {done} of {options.seeds} seeds, {totals['commands']:,} commands, "
                    f"{totals['crashes']:,} crashes, {violations} violations, "
                    f"{time.monotonic() - began:.0f} s",
                    flush=True,
                )
    if options.details:
        for name, count in sorted(totals.items()):
            print(f"  {name}: {count:,}")
    print(
        f"{done} seeds × {options.hours:g} h: {totals['commands']:,} commands, "
        f"{totals['crashes']:,} crashes, {violations} violations; "
        f"{twice} seeds run twice, same trace ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    if first is not None:
        canary = ["--no-sync"] * options.no_sync
        return repeat(
            "simulate", "--seed", first.seed, *canary, SEEDS=1, HOURS=f"{options.hours:.15g}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
