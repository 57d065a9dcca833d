"""Who decides that an input has done harm: wrong exceptions, time, memory.

Here live `Violation`, the judge that runs inputs within their limits, and the scenarios: inputs
that did harm once, kept as files and replayed in every test run.

The rule: 50 ms of CPU and 16 MB an input. CPU time of the thread is what counts, so a busy machine
breaks nothing; what seems too slow or too large is measured again, alone, before it is called so.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import resource
import time
import traceback
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_CPU_S: Final = 0.050
MAX_BYTES: Final = 16 * 1024 * 1024
SCENARIOS: Final = Path(__file__).parent / "scenarios"

Feed = Callable[[bytes], None]
"""Gives one input to a target. Raises `Violation`, or whatever the target should not have raised;
returns if the target has given a value or refused."""


class Violation(Exception):
    """A promise that an input has broken."""


@dataclass(frozen=True, slots=True)
class Finding:
    target: str
    inputs: tuple[bytes, ...]
    """Fed in this order; for most targets it is one."""
    why: str

    def save(self, folder: Path = SCENARIOS) -> Path:
        """As the next `NNN.json`, or the one that has the same inputs already."""
        folder.mkdir(exist_ok=True)
        packed = [base64.b64encode(zlib.compress(each, 9)).decode() for each in self.inputs]
        for path in sorted(folder.glob("*.json")):
            if json.loads(path.read_text())["inputs"] == packed:
                return path
        number = 1 + max((int(path.stem) for path in folder.glob("*.json")), default=0)
        path = folder / f"{number:03d}.json"
        tree = {"target": self.target, "why": self.why, "inputs": packed}
        path.write_text(json.dumps(tree, indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Finding:
        tree = json.loads(path.read_text())
        inputs = tuple(zlib.decompress(base64.b64decode(each)) for each in tree["inputs"])
        return cls(tree["target"], inputs, tree["why"])


class Distinct:
    """Counts different byte strings, never too many: two of one checksum count as one."""

    BITS: Final = 28

    def __init__(self) -> None:
        self._seen = bytearray(b"\0") * (1 << self.BITS - 3)
        self.count = 0

    def add(self, data: bytes) -> None:
        place = zlib.crc32(data) >> 32 - self.BITS
        octet, bit = place >> 3, 1 << (place & 7)
        if not self._seen[octet] & bit:
            self._seen[octet] |= bit
            self.count += 1

    def merge_dump(self, dump: bytes) -> None:
        """Those of another, as its `dump` gave them."""
        other = int.from_bytes(zlib.decompress(dump), "big")
        both = int.from_bytes(self._seen, "big") | other
        self._seen = bytearray(both.to_bytes(len(self._seen), "big"))
        self.count = both.bit_count()

    def dump(self) -> bytes:
        return zlib.compress(self._seen, 1)


class Judge:
    """Feeds inputs to one target and keeps what broke a promise."""

    SAMPLE: Final = 2_000
    """One input of so many has its memory counted byte by byte."""
    WATCH: Final = 500
    """After so many the resident memory is looked at: it bounds what any one of them took."""

    def __init__(
        self, target: str, feed: Feed, reads: Sequence[Callable[[bytes], object]] = ()
    ) -> None:
        """`reads` are the steps of `feed` that have the limits, where it takes many."""
        self.target = target
        self.feed = feed
        self._reads = reads or (feed,)
        self.fed = 0
        self.findings: list[Finding] = []
        self.slowest_s = 0.0
        self._slowest_feed_s = 0.0
        self.largest = 0
        """Bytes, of the inputs that were counted one by one."""
        self._recent: list[bytes] = []
        self._resident = forget_peak()

    def run(self, data: bytes) -> None:
        self.fed += 1
        if self.fed % self.SAMPLE == 0:
            self.weigh(data)
        begin = time.thread_time()
        try:
            self.feed(data)
        except Exception as error:  # noqa: BLE001 - every kind is what we look for
            self._found(data, error)
        took = time.thread_time() - begin
        if took > self._slowest_feed_s:
            self._slowest_feed_s = took
            took = self._again(data)
            self.slowest_s = max(self.slowest_s, took)
            if took > MAX_CPU_S:
                self.findings.append(Finding(self.target, (data,), f"took {took * 1e3:.0f} ms"))
        self._recent.append(data)
        if len(self._recent) >= self.WATCH:
            self._watch()

    def weigh(self, data: bytes) -> int:
        """Bytes that the input makes the target take at once."""
        tracemalloc.start()
        try:
            self.feed(data)
        except Exception as error:  # noqa: BLE001 - as above
            self._found(data, error)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.largest = max(self.largest, peak)
        if peak > MAX_BYTES:
            self.findings.append(Finding(self.target, (data,), f"took {peak} bytes"))
        return peak

    def _again(self, data: bytes) -> float:
        """The slowest read, alone, the best of three: a collection of garbage, or a cold cache, is
        not the input's doing."""
        slowest = 0.0
        gc.collect()
        for read in self._reads:
            best = float("inf")
            for _ in range(3):
                begin = time.thread_time()
                with contextlib.suppress(Exception):  # it has been found already
                    read(data)
                best = min(best, time.thread_time() - begin)
            slowest = max(slowest, best)
        return slowest

    def _watch(self) -> None:
        if peak_resident() > self._resident + MAX_BYTES:
            for data in self._recent:
                self.weigh(data)
        self._recent.clear()
        self._resident = forget_peak()

    def _found(self, data: bytes, error: Exception) -> None:
        self.findings.append(Finding(self.target, (data,), told(error)))


def told(error: BaseException) -> str:
    """An error in a line, with where it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "nowhere"
    return f"{type(error).__name__}: {str(error)[:300]} ({where})"


def peak_resident() -> int:
    """Bytes, the most that this process had since `forget_peak`; without Linux, ever."""
    return _status("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_peak() -> int:
    """From now on only a new peak counts. The bytes that there are now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmRSS:")


def _status(name: str) -> int:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(text.partition(name)[2].split()[0]) * 1024


def unique(findings: Sequence[Finding]) -> list[Finding]:
    """One of each kind: a bug is found by many inputs, and the shortest says most."""
    best: dict[tuple[str, str], Finding] = {}
    for each in findings:
        kind = (each.target, "".join(c for c in each.why if not c.isdigit())[:120])
        if kind not in best or sum(map(len, each.inputs)) < sum(map(len, best[kind].inputs)):
            best[kind] = each
    return list(best.values())
