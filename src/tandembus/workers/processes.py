"""A pool whose workers are processes: for handlers that compute, and would wait for each other in
one Python.

Each process runs a pool of one worker over the same levels (`tandem workers run … --child POOL`).
It writes a line of JSON with what it did, twice a second; the pool reads it. The other way go
lines `suspend LEVEL` and `resume LEVEL`. When that way is closed the process stops as it should:
gives back what it has in hand, and ends its message.

`ProcessPool` has the face of `Pool` (`running.AnyPool`). A process that dies is replaced.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TextIO

from tandembus.clock import Clock, SystemClock
from tandembus.errors import ArgumentError
from tandembus.model import Millis
from tandembus.workers.options import MAX_SIZE, PoolOptions
from tandembus.workers.pools import Pool
from tandembus.workers.targets import Meter
from tandembus.workers.windows import is_open, zone

_log: Final = logging.getLogger("tandembus.workers")

REPORT_S: Final = 0.5
MAX_REPORT: Final = 16 * 1024 * 1024
"""A line with what one process did in half a second."""
REPLACE_S: Final = 1.0
EXTRA_S: Final = 5.0
"""Beyond `stop_s`, until a process that should have ended is ended."""


def child_options(options: PoolOptions) -> PoolOptions:
    """Of one process of such a pool."""
    return replace(options, size=1, scale=None, processes=False)


# --- in the process -------------------------------------------------------------------------------


class RecordingMeter(Meter):
    """Remembers what it was told, for the next report."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_ms: list[Millis] = []
        self.dones_ms: list[tuple[Millis, Millis]] = []

    def begun(self, waited_ms: Millis, now_ms: Millis) -> None:
        self.waits_ms.append(waited_ms)

    def done(self, in_all_ms: Millis, work_ms: Millis, now_ms: Millis) -> None:
        self.dones_ms.append((in_all_ms, work_ms))

    def told(self) -> tuple[list[Millis], list[tuple[Millis, Millis]]]:
        found = self.waits_ms, self.dones_ms
        self.waits_ms, self.dones_ms = [], []
        return found


def report(pool: Pool, meters: Sequence[RecordingMeter]) -> str:
    """One line."""
    told = [meter.told() for meter in meters]
    return json.dumps(
        {
            "busy": pool.busy,
            "busy_s": round(pool.busy_seconds(), 3),
            "numbers": [sorted(pool.working_on(index)) for index in range(len(meters))],
            "begun": [waits for waits, _ in told],
            "done": [dones for _, dones in told],
            "outcomes": [dict(each) for each in pool.outcomes],
            "operations": dict(pool.operations()),
            "preemptions": pool.preemptions,
        }
    )


async def serve_child(pool: Pool, commands: asyncio.StreamReader, output: TextIO) -> None:
    """Run a pool of one worker until `commands` ends."""
    meters = [RecordingMeter() for _ in pool.options.levels]
    pool.meters = list(meters)

    async def tell() -> None:
        while True:
            print(report(pool, meters), file=output, flush=True)
            await asyncio.sleep(REPORT_S)

    await pool.start()
    telling = asyncio.create_task(tell())
    while line := (await commands.readline()).decode().strip():
        verb, _, level = line.partition(" ")
        (pool.suspend if verb == "suspend" else pool.resume)(level or None)
    await pool.stop()
    telling.cancel()
    print(report(pool, meters), file=output, flush=True)


# --- in the pool ----------------------------------------------------------------------------------


class _Child:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.is_leaving = False
        self.last: dict[str, Any] = {}

    def say(self, line: str) -> None:
        if self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(f"{line}\n".encode())

    def leave(self) -> None:
        self.is_leaving = True
        if self.process.stdin is not None:
            self.process.stdin.close()


class ProcessPool:
    """`command` starts one process of it."""

    def __init__(
        self, options: PoolOptions, command: Sequence[str], *, clock: Clock | None = None
    ) -> None:
        self.options = options
        self.meters = [Meter(level.target) for level in options.levels]
        self._command = command
        self._clock = clock or SystemClock()
        self._zone = zone(options.time_zone)
        self._size = options.first_size
        self._suspended = {level.name for level in options.levels if options.is_suspended}
        self._children: list[_Child] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._ended: Counter[str] = Counter()
        self._ended_outcomes: list[Counter[str]] = [Counter() for _ in options.levels]
        self._ended_operations: Counter[str] = Counter()

    @property
    def size(self) -> int:
        return self._size

    @property
    def busy(self) -> int:
        return sum(child.last.get("busy", 0) for child in self._children)

    @property
    def preemptions(self) -> int:
        return self._sum("preemptions")

    @property
    def outcomes(self) -> list[Counter[str]]:
        return [
            sum(
                (Counter(child.last["outcomes"][index]) for child in self._children if child.last),
                Counter(ended),
            )
            for index, ended in enumerate(self._ended_outcomes)
        ]

    def busy_seconds(self) -> float:
        return self._ended["busy_ms"] / 1000 + sum(
            float(child.last.get("busy_s", 0.0)) for child in self._children
        )

    def operations(self) -> Counter[str]:
        return sum(
            (Counter(child.last.get("operations", {})) for child in self._children),
            Counter(self._ended_operations),
        )

    def _sum(self, name: str) -> int:
        return self._ended[name] + sum(int(child.last.get(name, 0)) for child in self._children)

    def working_on(self, index: int) -> set[int]:
        found: set[int] = set()
        for child in self._children:
            found.update(child.last.get("numbers", {index: ()})[index])
        return found

    def is_active(self, index: int) -> bool:
        name = self.options.levels[index].name
        is_time = is_open(self.options.windows, self._zone, self._clock.now_ms())
        return not self._is_stopping and name not in self._suspended and is_time

    # --- its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        self.resize(self._size)

    def resize(self, size: int) -> None:
        if not 0 <= size <= MAX_SIZE:
            raise ArgumentError(f"a pool has 0 to {MAX_SIZE} workers")
        self._size = size
        here = [child for child in self._children if not child.is_leaving]
        for child in here[size:]:
            child.leave()
        for _ in range(size - len(here)):
            self._background(self._live())

    def suspend(self, level: str | None = None) -> None:
        self._suspended |= self._named(level)
        self._say(f"suspend {level or ''}")

    def resume(self, level: str | None = None) -> None:
        self._suspended -= self._named(level)
        self._say(f"resume {level or ''}")

    def _named(self, level: str | None) -> set[str]:
        names = {each.name for each in self.options.levels}
        if level is not None and level not in names:
            raise ArgumentError(f"pool '{self.options.name}' has no level '{level}'")
        return names if level is None else {level}

    def _say(self, line: str) -> None:
        for child in self._children:
            child.say(line)

    async def stop(self, within_s: float | None = None) -> None:
        self._is_stopping = True
        for child in self._children:
            child.leave()
        limit_s = (self.options.stop_s if within_s is None else within_s) + EXTRA_S
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit_s)
        for child in list(self._children):
            _log.warning("%s: a process did not end in time", self.options.name)
            child.process.kill()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _live(self) -> None:
        """One process, from its begin to its end."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, limit=MAX_REPORT
        )
        child = _Child(process)
        self._children.append(child)
        for name in sorted(self._suspended):
            child.say(f"suspend {name}")
        if self._is_stopping:
            child.leave()
        assert process.stdout is not None
        async for line in process.stdout:
            self._hear(child, line)
        code = await process.wait()
        self._children.remove(child)
        self._remember(child)
        if not child.is_leaving and not self._is_stopping:
            ended = signal.Signals(-code).name if code < 0 else code
            _log.error("%s: a process ended by itself (%s)", self.options.name, ended)
            await asyncio.sleep(REPLACE_S)
            self.resize(self._size)

    def _hear(self, child: _Child, line: bytes) -> None:
        try:
            told = json.loads(line)
            now = self._clock.now_ms()
            for index, meter in enumerate(self.meters):
                for waited_ms in told["begun"][index]:
                    meter.begun(waited_ms, now)
                for in_all_ms, work_ms in told["done"][index]:
                    meter.done(in_all_ms, work_ms, now)
        except (ValueError, KeyError, TypeError, IndexError):
            # A handler that prints; its line is the operator's.
            print(line.decode(errors="replace").rstrip(), file=sys.stderr)
            return
        child.last = told

    def _remember(self, child: _Child) -> None:
        if not child.last:
            return
        self._ended["preemptions"] += child.last["preemptions"]
        self._ended["busy_ms"] += round(child.last["busy_s"] * 1000)
        self._ended_operations += Counter(child.last["operations"])
        for total, outcomes in zip(self._ended_outcomes, child.last["outcomes"], strict=True):
            total.update(outcomes)

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
