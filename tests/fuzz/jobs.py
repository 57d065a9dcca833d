"""What there is to run: each target by name for so many inputs, its canaries, and scenarios."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.fuzz import canary, decoder, edges, live, nodes, wire
from tests.fuzz.judge import Distinct, Feed, Finding, Judge
from tests.fuzz.mutate import Mutator

DECODER: Final = "decoder"
_ENOUGH: Final = 10
"""Findings that end a job: most are the same bug again."""
_PROGRESS_S: Final = 30.0


@dataclass(slots=True)
class Report:
    """What one job has done."""

    target: str
    fed: int = 0
    distinct: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    largest: int = 0
    notes: str = ""
    findings: list[Finding] = field(default_factory=list)
    seen: bytes = b""
    """The checksums of its inputs, to count those of several jobs together."""


class _Progress:
    def __init__(self, what: str, count: int) -> None:
        self._what = what
        self._count = count
        self._last = time.monotonic()

    def tell(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last > _PROGRESS_S:
            self._last = now
            print(f"  {self._what}: {done:,} of {self._count:,}", flush=True)


def run_decoder(count: int, seed: int, only: str | None = None, enough: int = _ENOUGH) -> Report:
    """Frames, messages and values: so many different ones. `only` one kind, for its canary."""
    stream = decoder.Stream(seed)
    judges = {name: Judge(name, feed, decoder.READS[name]) for name, feed in decoder.CHECKS.items()}
    distinct = Distinct()
    progress = _Progress(f"decoder (seed {seed})", count)
    begin = time.monotonic()
    if only is None:
        for name, whole in stream.seeds().items():
            for data in whole:
                judges[name].weigh(data)
    while distinct.count < count:
        for _ in range(256 if only is None else 1):
            name, data = stream.next()
            if only is None or name == only:
                distinct.add(data)
                judges[name].run(data)
        if sum(len(judge.findings) for judge in judges.values()) >= enough:
            break
        progress.tell(distinct.count)
    report = Report(DECODER, sum(judge.fed for judge in judges.values()), distinct.count)
    report.seconds = time.monotonic() - begin
    report.slowest_s = max(judge.slowest_s for judge in judges.values())
    report.largest = max(judge.largest for judge in judges.values())
    report.notes = ", ".join(f"{judge.fed:,} {name}s" for name, judge in judges.items())
    report.findings = [each for judge in judges.values() for each in judge.findings]
    report.seen = distinct.dump()
    return report


def run_live(count: int, seed: int, enough: int = _ENOUGH) -> Report:
    begin = time.monotonic()
    one = live.Live(seed)
    one.run(count, enough)
    return Report(
        live.SERVER,
        one.fed,
        one.distinct.count,
        time.monotonic() - begin,
        one.slowest_s,
        one.largest,
        f"{one.connections:,} connections; {one.exchanged:,} messages of the well-behaved peer, "
        "all came",
        one.findings,
        one.distinct.dump(),
    )


def run_wire(count: int, seed: int) -> Report:
    begin = time.monotonic()
    one = wire.Wire(seed)
    one.run(count)
    return Report(
        wire.TARGET,
        one.sent,
        seconds=time.monotonic() - begin,
        notes=f"{one.connections:,} connections; {one.came:,} messages of the SDK's client, all "
        f"came; the broker took {one.cpu_s:.1f} s and grew by {one.growth / 1e6:.1f} MB",
        findings=one.findings,
    )


def _simple(target: str, seed: int) -> tuple[Feed, Callable[[], bytes], list[bytes]]:
    """Who takes an input, and who makes the next."""
    if target == live.CLIENT:
        stream = live.ClientStream(seed)
        return live.feed_client, lambda: stream.next()[1], []
    mutator: Mutator
    if target == "nodes":
        mutator = nodes.stream(seed)
        return nodes.Desk().feed, mutator.mutant, mutator.seeds
    mutator = edges.streams(seed)[target]
    if target == "admin":
        return edges.Administration().check, mutator.mutant, mutator.seeds
    feeds: dict[str, Feed] = {
        "http": edges.check_http,
        "xml": edges.check_xml,
        "websocket": edges.check_websocket,
        "names": edges.check_names,
    }
    return feeds[target], mutator.mutant, mutator.seeds


def run_simple(target: str, count: int, seed: int, enough: int = _ENOUGH) -> Report:
    feed, make, seeds = _simple(target, seed)
    judge = Judge(target, feed)
    distinct = Distinct()
    progress = _Progress(target, count)
    begin = time.monotonic()
    for data in seeds:
        judge.run(data)
    while distinct.count < count and len(judge.findings) < enough:
        data = make()
        distinct.add(data)
        judge.run(data)
        progress.tell(distinct.count)
    owner = getattr(feed, "__self__", None)
    notes = ""
    if isinstance(owner, nodes.Desk):
        notes = f"{owner.recovered:,} messages were there after a restart"
    if isinstance(owner, nodes.Desk | edges.Administration):
        owner.close()
    return Report(
        target,
        judge.fed,
        distinct.count,
        time.monotonic() - begin,
        judge.slowest_s,
        judge.largest,
        notes,
        judge.findings,
    )


SIMPLE: Final = (live.CLIENT, "nodes", "http", "xml", "admin", "websocket", "names")
TARGETS: Final = (DECODER, live.SERVER, wire.TARGET, *SIMPLE)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log: that a stranger is refused is told a million times. And the collector looks
    only through what comes from now on."""
    logger = logging.getLogger("tandembus")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        logger.setLevel(level)


def run(target: str, count: int, seed: int, enough: int = _ENOUGH) -> Report:
    with quiet():
        if target == DECODER:
            return run_decoder(count, seed, None, enough)
        if target in decoder.CHECKS:
            return run_decoder(count, seed, target, enough)
        if target == live.SERVER:
            return run_live(count, seed, enough)
        if target == wire.TARGET:
            return run_wire(count, seed)
        return run_simple(target, count, seed, enough)


def run_canary(number: int, seed: int) -> Report:
    """A run with a bug in it: the report must have findings."""
    bird = canary.CANARIES[number]
    with bird.plant():
        report = run(bird.target, bird.most, seed, 1)
    report.target = bird.target
    report.notes = bird.what
    return report


def replay(finding: Finding) -> None:
    """Raises if a scenario does harm again."""
    with quiet():
        if finding.target in (live.SERVER, wire.TARGET):
            live.replay_server(finding.inputs)
            return
        if finding.target in decoder.CHECKS:
            reads = decoder.READS[finding.target]
            judge = Judge(finding.target, decoder.CHECKS[finding.target], reads)
        else:
            judge = Judge(finding.target, _simple(finding.target, 0)[0])
        for data in finding.inputs:
            judge.run(data)
            judge.weigh(data)
        owner = getattr(judge.feed, "__self__", None)
        if isinstance(owner, nodes.Desk | edges.Administration):
            owner.close()
    if judge.findings:
        raise AssertionError(judge.findings[0].why)
