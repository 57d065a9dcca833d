"""The kill harness: `python -m tests.crash.kill --cycles 100`.

Starts a real process with a real engine on a real folder (`worker`), kills it with SIGKILL at a
random moment, starts it again on the same folder, and compares what it finds with what it had
confirmed: no acknowledged message lost, no completed or taken one back, no sequence number left out
or used twice. Some kills come in the middle of the recovery.

A harness without teeth finds nothing: with `--forgetful` the worker keeps its writes in its own
memory for a while, and losses must be reported.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.crash.worker import LATER, PLAIN
from tests.repeat import repeat

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
"""No life takes so long to recover and audit."""


@dataclass
class Transaction:
    """What is done as a whole, or not at all."""

    ends: list[int]
    sends: list[int]
    later: list[int]
    path: str
    has_begun_to_commit: bool = False
    is_committed: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Transaction:
        lists = [[] if word == "-" else list(map(int, word.split(","))) for word in words[:3]]
        return cls(lists[0], lists[1], lists[2], words[3])


@dataclass
class Books:
    """What the lives so far have told, and what is wrong with it."""

    stored: dict[int, str] = field(default_factory=dict)
    """Acknowledged messages → their queue."""
    perhaps: set[int] = field(default_factory=set)
    """Sent without an answer."""
    ended: set[int] = field(default_factory=set)
    ending: set[int] = field(default_factory=set)
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    """Queue and sequence number → message."""
    last: dict[str, int] = field(default_factory=dict)
    taking: tuple[str, int] | None = None
    may_miss: dict[str, int] = field(default_factory=dict)
    """Messages of a queue that were perhaps taken, without knowing which."""
    recoveries_ms: list[float] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    resurrected: set[int] = field(default_factory=set)
    gaps: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    audits: int = 0
    lives: int = 0
    transactions: dict[str, Transaction] = field(default_factory=dict)
    """Of the last life."""
    halves: list[str] = field(default_factory=list)
    committed: int = 0

    def read(self, lines: Sequence[str]) -> None:
        """The output of one life, which was killed after it."""
        self.lives += 1
        here: dict[int, list[tuple[str, int]]] = {}
        scheduled: set[tuple[str, int]] = set()
        for line in lines:
            word, *rest = line.split()
            match word:
                case "ready":
                    self.recoveries_ms.append(float(rest[0]))
                    self.replayed.append(int(rest[1]))
                case "here":
                    path, number, uid = rest[0], int(rest[1]), int(rest[2])
                    self._name(path, number, uid)
                    found = here.setdefault(uid, [])
                    if rest[3] != "SCHEDULED":
                        # Its time came between two pages: it was seen under its former number.
                        found[:] = [row for row in found if row not in scheduled]
                    else:
                        scheduled.add((path, number))
                    found.append((path, number))
                case "audited":
                    self._compare(here)
                case "send" | "later":
                    self.perhaps.update(map(int, rest[1:]))
                case "sent" | "put":
                    self._acknowledge(rest[0], int(rest[1]), list(map(int, rest[2:])))
                case "end":
                    self.ending.update(map(int, rest))
                case "ended":
                    self.ended.update(map(int, rest))
                case "take":
                    self.taking = (rest[0], int(rest[1]))
                case "took":
                    self._took(rest[0], list(map(int, rest[1:])))
                case "begin":
                    self.transactions[rest[0]] = Transaction.of(rest[1:])
                case "commit":
                    one = self.transactions[rest[0]]
                    one.has_begun_to_commit = True
                    self.ending.update(one.ends)
                    self.perhaps.update(one.sends + one.later)
                case "committed":
                    self._committed(self.transactions[rest[0]])
                case "rolled":
                    pass  # as one that was left open: nothing of it may be there
                case _:
                    self.strange.append(line)
        if self.taking is not None:  # the kill came in between
            path, count = self.taking
            self.may_miss[path] = self.may_miss.get(path, 0) + count
            self.taking = None

    def _name(self, path: str, number: int, uid: int) -> None:
        queue = path.split("/")[0]
        known = self.numbers.setdefault((queue, number), uid)
        if known != uid:
            self.gaps.append(f"{queue} used {number} for {known} and {uid}")

    def _acknowledge(self, path: str, first: int, uids: Sequence[int]) -> None:
        if path == PLAIN and first != self.last.get(path, 0) + 1:
            self.gaps.append(f"{path} went from {self.last.get(path, 0)} to {first}")
        for at, uid in enumerate(uids):
            self._name(path, first + at, uid)
            self.stored[uid] = path
            self.perhaps.discard(uid)
        self.last[path] = first + len(uids) - 1

    def _took(self, path: str, uids: Sequence[int]) -> None:
        self.taking = None
        for uid in uids:
            if uid in self.ended:
                self.resurrected.add(uid)
            self.ended.add(uid)

    def _committed(self, one: Transaction) -> None:
        one.is_committed = True
        self.committed += 1
        self.ended.update(one.ends)
        self.perhaps.difference_update(one.sends + one.later)
        self.stored.update(dict.fromkeys(one.later, LATER))
        if one.path == PLAIN:  # a commit tells no numbers, but there are no gaps
            self._acknowledge(PLAIN, self.last.get(PLAIN, 0) + 1, one.sends)
        else:
            self.stored.update(dict.fromkeys(one.sends, one.path))

    def _check_whole(self, here: dict[int, list[tuple[str, int]]]) -> None:
        """Nothing is there of a transaction that was not committed, and of one that may have been,
        all or nothing. (What was committed for sure is judged as what was sent and ended.)"""
        for number, one in self.transactions.items():
            came = [uid in here for uid in one.sends + one.later]
            if not one.has_begun_to_commit and any(came):
                self.halves.append(f"{number} was not committed, and {sum(came)} are there")
            elif one.has_begun_to_commit and not one.is_committed:
                done = came + [uid not in here for uid in one.ends]
                if len(set(done)) > 1:
                    self.halves.append(f"{number} was committed in part: {done}")
        self.transactions.clear()

    def _compare(self, here: dict[int, list[tuple[str, int]]]) -> None:
        self.audits += 1
        self._check_whole(here)
        for uid, rows in here.items():
            if len(rows) > 1:
                self.strange.append(f"{uid} is in {rows}")
            if uid in self.ended:
                self.resurrected.add(uid)
            elif uid in self.perhaps:
                self.perhaps.discard(uid)
                self.stored[uid] = rows[0][0].split("/")[0]
            elif uid not in self.stored:
                self.strange.append(f"{uid} was never sent")
            self.ending.discard(uid)  # it did not happen
        self.perhaps.clear()  # they are not there, and must not come later
        missing: dict[str, list[int]] = {}
        for uid, path in self.stored.items():
            if uid not in here and uid not in self.ended:
                if uid in self.ending:
                    self.ended.add(uid)
                else:
                    missing.setdefault(path, []).append(uid)
        for path, uids in missing.items():
            if len(uids) > self.may_miss.get(path, 0):
                self.lost.update(uids)
            else:
                self.ended.update(uids)  # taken by somebody who was killed
        self.may_miss.clear()
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Between two lives the numbers go on: what was not answered has one, or never had one."""
        known = sorted(number for queue, number in self.numbers if queue == PLAIN)
        if known and known != list(range(1, known[-1] + 1)):
            holes = known[-1] - len(known)
            self.gaps.append(f"{holes} numbers of {PLAIN} up to {known[-1]} belong to nobody")
        if known:
            self.last[PLAIN] = known[-1]

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.resurrected or self.gaps or self.strange or self.halves)


class Life:
    """One worker, from start to kill."""

    def __init__(self, folder: Path, seed: int, number: int, *, forgetful: bool) -> None:
        arguments = [str(folder), str(seed), str(number), *["--forgetful"] * forgetful]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.worker", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
        )
        self._lines: list[str] = []
        self._is_audited = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # else it was cut by the kill
                text = line.decode()
                self._lines.append(text)
                if text.startswith("audited"):
                    self._is_audited.set()
        self._is_audited.set()

    def wait_for_audit(self) -> None:
        if not self._is_audited.wait(PATIENCE_S):
            self._lines.append(f"not ready after {PATIENCE_S} s\n")

    def kill(self) -> list[str]:
        """The lines that it wrote."""
        ended_before = self._process.poll() is not None
        self._process.kill()
        self._thread.join()
        assert self._process.stderr is not None
        errors = self._process.stderr.read().decode()
        self._process.stderr.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()
        if ended_before:
            last = errors.strip().splitlines()[-1:] or ["without a word"]
            self._lines.append(f"the worker ended by itself: {last[0]}\n")
        return self._lines


def run(
    cycles: int,
    seconds: tuple[float, float],
    *,
    seed: int = 1,
    forgetful: bool = False,
    is_told: bool = False,
    folder: Path | None = None,
) -> Books:
    """Kill so many times; one more life looks at the end."""
    rng = random.Random(seed)
    books = Books()
    with tempfile.TemporaryDirectory(prefix="tandem-kill-", dir=folder) as name:
        for cycle in range(cycles + 1):
            life = Life(Path(name) / "log", seed, cycle + 1, forgetful=forgetful)
            if cycle < cycles and rng.random() < 0.1:
                time.sleep(rng.uniform(0.05, 0.5))  # in the middle of its start
            else:
                life.wait_for_audit()
                if cycle < cycles:
                    time.sleep(rng.uniform(*seconds))
            books.read(life.kill())
            if not books.is_clean:
                break
            if (
                is_told
                and books.audits
                and (cycle + 1) % max(1, cycles // 10) == 0
                and cycle < cycles
            ):
                size = sum(file.stat().st_size for file in Path(name, "log").iterdir())
                print(
                    f"  {cycle + 1} of {cycles} kills: {len(books.stored):,} acknowledged, "
                    f"{len(books.ended):,} ended, log {size / 1e6:.1f} MB, "
                    f"last recovery {books.recoveries_ms[-1]:.0f} ms "
                    f"({books.replayed[-1]:,} records)",
                    flush=True,
                )
    return books


FEWEST: Final = 5
"""Lives from which on there must have been a message acknowledged, and one ended, for each."""


def run_canary(seed: int, folder: Path | None = None) -> Books:
    """A few kills of a worker that keeps its writes. Now and then the loss is one that the store
    itself refuses to open: then once more."""
    books = Books()
    for attempt in range(4):
        books = run(10, (0.1, 0.3), seed=seed + attempt, forgetful=True, folder=folder)
        if books.lost or books.resurrected:
            break
    return books


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kill", description=__doc__.split("\n\n")[0])
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seconds-per-cycle", default="0.3..0.8", help="a time, or a range")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--folder", type=Path, help="where to make the temporary folder")
    parser.add_argument("--no-canary", action="store_true")
    parser.add_argument("--forgetful", action="store_true", help="the canary, for all cycles")
    options = parser.parse_args(arguments)
    low, _, high = options.seconds_per_cycle.partition("..")
    books = run(
        options.cycles,
        (float(low), float(high or low)),
        seed=options.seed,
        forgetful=options.forgetful,
        is_told=True,
        folder=options.folder,
    )
    for what in (*books.gaps[:5], *books.strange[:5], *books.halves[:5]):
        print(f"  {what.strip()}")
    if books.lost:
        print(f"  lost: {sorted(books.lost)[:10]}")
    if books.resurrected:
        print(f"  back: {sorted(books.resurrected)[:10]}")
    times = books.recoveries_ms or [0.0]
    print(
        f"{options.cycles} kills: {len(books.lost)} lost, {len(books.resurrected)} resurrected, "
        f"{len(books.gaps)} gaps, {len(books.halves)} transactions in part; recovery median "
        f"{statistics.median(times):.0f} ms, worst {max(times):.0f} ms ({len(books.stored):,} "
        f"acknowledged, {books.committed:,} transactions committed, {books.audits} audits)",
        flush=True,
    )
    again: list[object] = ["--seed", options.seed]
    if options.seconds_per_cycle != parser.get_default("seconds_per_cycle"):
        again += ["--seconds-per-cycle", options.seconds_per_cycle]
    again += ["--forgetful"] * options.forgetful
    is_caught = True
    if not options.forgetful and not options.no_canary:
        canary = run_canary(options.seed, options.folder)
        is_caught = bool(canary.lost or canary.resurrected)
        verdict = "as it must be" if is_caught else "THE HARNESS IS BLIND"
        print(
            f"canary: {len(canary.lost)} lost, {len(canary.resurrected)} resurrected, "
            f"{len(canary.gaps)} gaps with writes kept in the process, {verdict}",
            *canary.strange,
            flush=True,
        )
    if not books.is_clean:
        return repeat("kill", *again, CYCLES=min(books.lives, options.cycles))
    if options.cycles >= FEWEST and min(len(books.stored), len(books.ended)) < options.cycles:
        print(f"too little happened: {len(books.ended):,} ended in {options.cycles} lives")
        return repeat("kill", *again, CYCLES=options.cycles)
    return 0 if is_caught else repeat("kill", *again, CYCLES=0)


if __name__ == "__main__":
    sys.exit(main())
