"""`make fuzz`: every target for its count, the growth of attacks, and a canary for each target.

    python -m tests.fuzz.run --frames 5000000 --live 200000 --seed 1 [--target decoder]

An input that does harm is saved in `tests/fuzz/scenarios/`, which every test run replays.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Final

from tandembus.limits import MIB
from tests.fuzz import canary, growth, live, wire
from tests.fuzz.jobs import DECODER, SIMPLE, TARGETS, Report, run, run_canary
from tests.fuzz.judge import MAX_BYTES, MAX_CPU_S, Distinct, Finding, unique
from tests.repeat import repeat

SHARES: Final = {
    live.CLIENT: 0.25, "nodes": 0.25, "http": 0.1, "xml": 0.1, "admin": 0.1, "websocket": 0.25,
    "names": 0.25,
}  # fmt: skip
"""Inputs of the other targets, for each of --live."""
_MARGIN: Final = 1.08
"""More than its share for each job: what two jobs both had counts once."""


def plan(frames: int, live_count: int, wire_count: int, seed: int, workers: int) -> list[
    tuple[str, int, int]
]:  # fmt: skip
    """(target, count, seed) of every job; the long ones first."""
    jobs = []
    for target, count in ((DECODER, frames), (live.SERVER, live_count)):
        share = int(count * (_MARGIN if workers > 1 else 1) / workers) + 1
        jobs += [(target, share, seed + number) for number in range(workers) if count]
    jobs += [(wire.TARGET, wire_count, seed)] if wire_count else []
    jobs += [(target, int(live_count * SHARES[target]), seed) for target in SIMPLE if live_count]
    return jobs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--frames", type=int, default=5_000_000, help="for the decoder")
    parser.add_argument("--live", type=int, default=200_000, help="for live connections")
    parser.add_argument("--wire", type=int, default=10_000, help="for a real broker over TCP")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--target", choices=TARGETS, help="only this one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-canary", action="store_true")
    chosen = parser.parse_args(arguments)
    begin = time.monotonic()
    jobs = plan(chosen.frames, chosen.live, chosen.wire, chosen.seed, chosen.workers)
    if chosen.target is not None:
        jobs = [job for job in jobs if job[0] == chosen.target]
    birds = [] if chosen.no_canary else list(range(len(canary.CANARIES)))
    if chosen.target is not None:
        mine = ("frame", "message", "value") if chosen.target == DECODER else (chosen.target,)
        birds = [number for number in birds if canary.CANARIES[number].target in mine]
    print(f"fuzzing: seed {chosen.seed}, {len(jobs)} jobs on {chosen.workers} workers", flush=True)

    reports: list[Report] = []
    missed: list[str] = []
    harmed: list[tuple[str, int, int]] = []
    # A new process for each job: its memory is watched, and a canary's bug must not live on.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(chosen.workers, context, max_tasks_per_child=1) as pool:
        work: dict[Future[Report], tuple[str, int, int] | None]
        work = {pool.submit(run, *job): job for job in jobs}
        work |= {pool.submit(run_canary, number, chosen.seed): None for number in birds}
        for done in as_completed(work):
            report = done.result()
            if (job := work[done]) is None:
                found = bool(report.findings)
                words = f"found after {report.fed:,} inputs" if found else "NOT FOUND"
                print(f"canary in {report.target}: {report.notes}: {words}", flush=True)
                missed += [] if found else [report.notes]
            else:
                print(told(report), flush=True)
                reports.append(report)
                harmed += [job] * bool(report.findings)
    findings = [each for report in reports for each in report.findings]
    if chosen.target in (None, DECODER):
        findings += grown()
    summary(reports, findings, len(birds), missed, time.monotonic() - begin)
    if harmed:
        return _repeat(*harmed[0], live_count=chosen.live)
    if findings:  # of the growth
        again = ("--seed", chosen.seed, "--target", DECODER, "--no-canary")
        return repeat("fuzz", *again, FRAMES=0, LIVE=0)
    if missed:
        return repeat("fuzz", "--seed", chosen.seed, "--wire", 0, FRAMES=0, LIVE=0)
    return 0


def _repeat(target: str, count: int, seed: int, *, live_count: int) -> int:
    """One job alone, as `plan` makes it for one worker."""
    frames = count - 1 if target == DECODER else 0
    if target == live.SERVER:
        live_count = count - 1
    elif target in (DECODER, wire.TARGET):
        live_count = 0
    again: list[object] = ["--seed", seed, "--target", target, "--no-canary"]
    again += ["--wire", count] if target == wire.TARGET else []
    return repeat("fuzz", *again, FRAMES=frames, LIVE=live_count, WORKERS=1)


def told(report: Report) -> str:
    rate = report.fed / report.seconds if report.seconds else 0
    text = f"{report.target}: {report.fed:,} inputs in {report.seconds:.0f} s ({rate:,.0f}/s)"
    if report.distinct:
        text += (
            f", {report.distinct:,} different; slowest {report.slowest_s * 1e3:.1f} ms, "
            f"largest {report.largest / MIB:.2f} MB"
        )
    return f"{text}. {report.notes}{'.' if report.notes else ''}"


def grown() -> list[Finding]:
    """The families of attacks; those that grow too fast."""
    found = []
    worst = growth.Growth("", 0.0, 0.0)
    for family in growth.FAMILIES:
        measured = growth.measure(family)
        worst = max(worst, measured, key=lambda it: it.ratio)
        if measured.ratio >= growth.MAX_RATIO:
            why = f"{family.name}: twice the size takes {measured.ratio:.1f} times as long"
            found.append(Finding("growth", (family.make(family.size),), why))
    print(
        f"growth: {len(growth.FAMILIES)} families of attacks, twice the size takes at most "
        f"{worst.ratio:.2f} times as long ({worst.name})",
        flush=True,
    )
    return found


def summary(
    reports: list[Report], findings: list[Finding], birds: int, missed: list[str], seconds: float
) -> None:
    counts: dict[str, int] = {}
    for target in (DECODER, live.SERVER):
        seen = [report.seen for report in reports if report.target == target]
        if seen:
            together = Distinct()
            for each in seen:
                together.merge_dump(each)
            counts[target] = together.count
    slowest = max((report.slowest_s for report in reports), default=0.0)
    largest = max((report.largest for report in reports), default=0)
    for finding in unique(findings):
        where = "" if finding.target in ("growth", wire.TARGET) else f" ({finding.save().name})"
        print(f"VIOLATION in {finding.target}: {finding.why}{where}")
    others = sum(report.fed for report in reports if report.target not in counts)
    print(
        f"{counts.get(DECODER, 0):,} different mutated inputs on the decoder and "
        f"{counts.get(live.SERVER, 0):,} on live connections, {others:,} on the other targets, in "
        f"{seconds:.0f} s: {len(findings)} violations; slowest {slowest * 1e3:.1f} ms of "
        f"{MAX_CPU_S * 1e3:.0f}, largest {largest / MIB:.2f} MB of {MAX_BYTES // MIB}; "
        f"{birds - len(missed)} of {birds} canaries found."
    )


if __name__ == "__main__":
    sys.exit(main())
