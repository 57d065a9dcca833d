"""`make ladder`: messages of every size, with every client, over every transport, in every way.

    python -m tests.interop.ladder [--largest 100] [--only python/tls/4MB] [--seed 1] [--no-memory]

The sizes are 256 KB, 1 MB, 1.1 MB, 4 MB, 5 MB, 10 MB, 50 MB and 100 MB, as far as `--largest` goes:
that is the limit of the entities, and the last body is just below it. One more, `exact`, is the
largest body that the limit allows; a body of one byte more must be refused because of its size.
How many bytes a client puts around a body is found by trying.

The ways are: peek-lock and complete (`complete`), receive-and-delete (`delete`), defer and receive
by sequence number (`defer`), and `peek`. Each combination has a queue of its own; the body comes
from the seed, and what arrives is compared by its hash. Then the counts of the queue must be right.

`--only` names combinations as client/transport/size/way; parts at the end may be left out, and `*`
is any. At the end there are a table, the failures, and the broker's memory: one of the largest
messages at a time, and ten senders and ten receivers of them at once.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from tandembus.client import Client as LeanClient
from tandembus.errors import TandemError
from tandembus.limits import KIB, MIB
from tandembus.testing import BrokerProcess
from tests.interop import certificates
from tests.interop.certificates import Certificates
from tests.interop.ladder import memory
from tests.interop.ladder.clients import CLIENTS, ROADS, CannotRun, Program
from tests.repeat import repeat

SIZES: Final = {
    "256KB": 256 * KIB,
    "1MB": MIB,
    "1.1MB": MIB * 11 // 10,
    "4MB": 4 * MIB,
    "5MB": 5 * MIB,
    "10MB": 10 * MIB,
    "50MB": 50 * MIB,
    "100MB": 100 * MIB,
}
EXACT: Final = "exact"
WAYS: Final = ("complete", "delete", "defer", "peek")
BELOW: Final = 4 * KIB
"""The body that is just below the limit leaves this much for what is around it."""
_MOST_AROUND: Final = 256
"""Bytes that a client may put around a body."""
SENDERS: Final = 10
_SHIFTS: Final = 64 * KIB
"""Bodies of one size begin at any of so many places of the same random bytes, so that no two
combinations have the same body."""


def time_limit_s(size: int) -> float:
    """Of one combination: slow clients and busy machines included."""
    return 30 + 4 * size / MIB


@dataclass(frozen=True, slots=True)
class Combination:
    client: str
    road: str
    size: str
    way: str

    @property
    def name(self) -> str:
        return f"{self.client}/{self.road}/{self.size}/{self.way}"

    def is_in(self, patterns: Sequence[str]) -> bool:
        given = [f"{each}{'/*' * (3 - each.count('/'))}" for each in patterns]
        return not given or any(fnmatchcase(self.name, each) for each in given)


@dataclass(frozen=True, slots=True)
class Result:
    combination: Combination
    error: str | None
    """None: passed."""
    seconds: float
    peak_mb: float
    """Of the broker, over idle."""


@dataclass
class Report:
    results: list[Result]
    not_run: Counter[str]
    """Combinations, by the reason."""
    lines: list[str]
    """Figures of the memory."""
    wrong: list[str]
    """What went wrong while the memory was measured, and whether the broker ended."""

    @property
    def failures(self) -> list[Result]:
        return [each for each in self.results if each.error is not None]


def sizes(largest_mb: int) -> dict[str, int]:
    """Bytes of the bodies for a limit; `exact` depends on the client."""
    limit = largest_mb * MIB
    found = {name: size for name, size in SIZES.items() if size < limit}
    return {**found, f"{largest_mb}MB": limit - BELOW, EXACT: limit}


class Ladder:
    """One broker, and all clients on it."""

    def __init__(self, largest_mb: int, seed: int, folder: Path) -> None:
        self.largest_mb = largest_mb
        self.sizes = sizes(largest_mb)
        self._ends = ExitStack()
        self._file = folder / "bodies"
        self._bytes = random.Random(seed).randbytes(largest_mb * MIB + _SHIFTS)
        self._file.write_bytes(self._bytes)
        self._shift = random.Random(f"shift {seed}")
        self._certificates: Certificates | None = None
        with suppress(certificates.NoOpenSsl):
            self._certificates = certificates.make(folder, "localhost")
        tls = () if self._certificates is None else self._certificates.arguments
        self.broker = self._ends.enter_context(
            BrokerProcess.start(arguments=(*memory.PREMIUM, *tls))
        )
        self._memory = memory.Memory(self.broker.process.pid)
        self._lean = self._ends.enter_context(LeanClient(self.broker.connection_string))
        self._programs: dict[tuple[str, str], Program] = {}
        self._around: dict[str, int] = {}
        self._count = 0

    def __enter__(self) -> Ladder:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @property
    def largest_body(self) -> bytes:
        """Just below the limit."""
        return self._bytes[: self.largest_mb * MIB - BELOW]

    def run(self, one: Combination) -> Result:
        """Raises CannotRun."""
        program = self._program(one.client, one.road)
        begin = time.monotonic()
        try:
            error = self._tried(program, one)
        except (TandemError, OSError, RuntimeError, ValueError) as reason:
            error = f"{type(reason).__name__}: {reason}"
        return Result(one, self.broker_end or error, time.monotonic() - begin, self._memory.peak())

    @property
    def broker_end(self) -> str | None:
        """How the broker ended, if it did."""
        code = self.broker.process.poll()
        return None if code is None else f"the broker ended with the exit code {code}"

    def _tried(self, program: Program, one: Combination) -> str | None:
        """What is wrong, if anything."""
        size = self.sizes[one.size]
        if one.size == EXACT:
            size -= self._bytes_around(CLIENTS[one.client].encodes_as)
        self._memory.forget_peak()
        error = self._refused(program, size + 1) if one.size == EXACT else None
        return error or self._arrives(program, one.way, size)

    def _program(self, client: str, road: str) -> Program:
        found = self._programs.get((client, road))
        if found is None:
            found = Program(CLIENTS[client], road, self.broker, self._certificates)
            self._programs[client, road] = found
            self._ends.callback(found.end)
        return found

    def _arrives(self, program: Program, way: str, size: int) -> str | None:
        """What is wrong, if anything."""
        queue = self._queue(self.largest_mb)
        try:
            offset = self._shift.randrange(_SHIFTS)
            reply = self._ask(program, way, queue, size, offset)
            if reply.get("error"):
                return str(reply["error"])
            body = memoryview(self._bytes)[offset : offset + size]
            if reply["sha256"] != hashlib.sha256(body).hexdigest():
                return "receive: another body than was sent"
            counts = self._lean.entities.get_queue(queue).counts
            left = counts["ActiveMessageCount"] + counts["DeadLetterMessageCount"]
            if left != (way == "peek"):
                return f"afterwards there are {left} messages"
        finally:
            self._lean.entities.delete_queue(queue)
        return None

    def _refused(self, program: Program, size: int) -> str | None:
        """What is wrong with how a body of one byte too many is refused."""
        queue = self._queue(self.largest_mb)
        try:
            reply = self._ask(program, "send", queue, size)
        finally:
            self._lean.entities.delete_queue(queue)
        if not reply.get("error"):
            return f"send: a body of {size} bytes is above the limit, and was taken"
        if not reply["is_too_large"]:
            return f"a body of {size} bytes is not refused because of its size: {reply['error']}"
        return None

    def _bytes_around(self, client: str) -> int:
        """How many bytes a client puts around a body, found with a limit of 1 MB. Raises
        ValueError."""
        if client not in self._around:
            program = self._program(client, "plain")
            queue = self._queue(1)
            taken, refused = MIB - _MOST_AROUND, MIB
            while refused - taken > 1:
                size = (taken + refused) // 2
                reply = self._ask(program, "send", queue, size)
                if reply.get("error") and not reply["is_too_large"]:
                    raise ValueError(f"{size} bytes below a limit of 1 MB: {reply['error']}")
                taken, refused = (taken, size) if reply.get("error") else (size, refused)
            self._lean.entities.delete_queue(queue)
            self._around[client] = MIB - taken
        return self._around[client]

    def _ask(
        self, program: Program, way: str, queue: str, size: int, offset: int = 0
    ) -> dict[str, Any]:
        request = {
            "way": way, "queue": queue, "file": str(self._file), "offset": offset, "size": size,
        }  # fmt: skip
        return program.ask(request, time_limit_s(size))

    def _queue(self, limit_mb: int) -> str:
        self._count += 1
        name = f"queue-{self._count}"
        self.broker.create_queue(name, **memory.settings(limit_mb))
        return name


def combinations(largest_mb: int, only: Sequence[str]) -> Iterator[Combination]:
    for client in CLIENTS:
        for road in ROADS:
            for size in sizes(largest_mb):
                for way in WAYS:
                    one = Combination(client, road, size, way)
                    if one.is_in(only):
                        yield one


def climb(
    largest_mb: int, only: Sequence[str] = (), *, seed: int = 1, has_memory: bool = True
) -> Report:
    """Run what is wanted, a line for each; then measure the memory."""
    report = Report([], Counter(), [], [])
    with tempfile.TemporaryDirectory(prefix="tandem-ladder-") as folder:
        with Ladder(largest_mb, seed, Path(folder)) as ladder:
            body = ladder.largest_body
            for one in combinations(largest_mb, only):
                try:
                    result = ladder.run(one)
                except CannotRun as reason:
                    report.not_run[f"{one.client} over {one.road}: {reason}"] += 1
                    continue
                report.results.append(result)
                print(_line(result), flush=True)
                if ladder.broker_end is not None:
                    report.wrong.append(f"{ladder.broker_end}: nothing more was tried")
                    break
        if has_memory:
            report.lines, wrong = memory.measure(body, largest_mb, SENDERS)
            report.wrong += wrong
    return report


def _line(result: Result) -> str:
    one = result.combination
    verdict = "passed" if result.error is None else "FAILED"
    told = "" if result.error is None else f"  {_short(result.error)}"
    return (
        f"{one.client:<11} {one.road:<10} {one.size:<6} {one.way:<9} {verdict}  "
        f"{result.seconds:6.1f} s  broker {result.peak_mb:+6.0f} MB{told}"
    )


def _short(text: str) -> str:
    """An error in a line."""
    return " ".join(text.split())[:300]


def show(report: Report, largest_mb: int) -> None:
    """The table: of each client and transport how many ways passed, by size; then what failed, what
    was not run, and the memory."""
    names = list(sizes(largest_mb))
    print("\n" + f"{'passed':<22}" + "".join(f"{name:>8}" for name in names))
    for client in CLIENTS:
        for road in ROADS:
            cells = []
            for name in names:
                some = [
                    each.error is None
                    for each in report.results
                    if (each.combination.client, each.combination.road, each.combination.size)
                    == (client, road, name)
                ]
                cells.append(f"{sum(some)}/{len(some)}" if some else "-")
            print(f"{client + ' ' + road:<22}" + "".join(f"{cell:>8}" for cell in cells))
    for each in report.failures:
        print(f"FAILED {each.combination.name}: {_short(each.error or '')}")
    for reason, count in report.not_run.items():
        print(f"not run: {count} × {reason}")
    for line in (*report.lines, *report.wrong):
        print(line)
    passed = len(report.results) - len(report.failures)
    print(
        f"ladder up to {largest_mb} MB: {passed} of {len(report.results)} passed, "
        f"{sum(report.not_run.values())} not run, {len(report.wrong)} other failures"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="ladder", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--largest", type=int, default=100, metavar="MB", help="the limit of the entities (100)"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="CLIENT/TRANSPORT/SIZE/WAY")
    parser.add_argument("--seed", type=int, default=1, help="the first seed: of the bodies (1)")
    parser.add_argument("--no-memory", action="store_true", help="do not measure ten at once")
    options = parser.parse_args(arguments)
    if not 1 <= options.largest <= 100:
        parser.error("--largest is a number from 1 to 100")
    if options.only and not any(combinations(options.largest, options.only)):
        parser.error(f"--only {' '.join(options.only)} names nothing")
    report = climb(
        options.largest, options.only, seed=options.seed, has_memory=not options.no_memory
    )
    show(report, options.largest)
    only = "lean/plain/256KB/complete"
    if report.failures:
        only = report.failures[0].combination.name
    if report.failures or report.wrong:
        again = ["--seed", options.seed, "--only", only]
        if not report.wrong:
            again.append("--no-memory")
        return repeat("ladder", *again, LARGEST=options.largest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
