"""How fast `tandem report` is, and what it needs: events a second, seconds, memory.

  python -m bench.report [--events N ...]

A journal of a shop is made up (tests.spark.journals), and the command is run on it as a user would.
The memory is the most that the command, its JVM and its Python workers had together, in resident
pages. From one size to the next the growth of the time is printed beside the growth of the events.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.spark.journals import long_journal
from tests.spark.standalone import _descendants

MIB = 1024 * 1024


def resident_bytes(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGESIZE")


class Peak:
    """The most memory of a process and all below it, looked at five times a second."""

    def __init__(self, root: int) -> None:
        self.bytes = 0
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            family = [self._root, *_descendants([self._root])]
            self.bytes = max(self.bytes, sum(map(resident_bytes, family)))

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self.bytes


def measured(
    journal: Path, out: Path, arguments: list[str]
) -> tuple[dict[str, object], float, int]:
    """The summary, seconds, bytes."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "tandembus.cli", "report", str(journal), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--json", "--quiet", *arguments], stdout=subprocess.PIPE, text=True
    )
    peak = Peak(process.pid)
    output, _ = process.communicate()
    seconds = time.monotonic() - begin
    if process.returncode:
        raise SystemExit(f"the report failed with {process.returncode}")
    return json.loads(output), seconds, peak.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[200_000])
    parser.add_argument("--no-audit", action="store_true")
    options = parser.parse_args()
    extra = ["--no-audit"] if options.no_audit else []
    before: tuple[int, float] | None = None
    for events in options.events:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            journal = Path(folder) / "journal"
            made = long_journal(journal, events, min(events, 1_000_000))
            size = sum(path.stat().st_size for path in journal.rglob("*.parquet"))
            print(
                f"{made:,} events, {size / MIB:,.0f} MiB, made in {time.monotonic() - begin:.0f} s"
            )
            summary, seconds, peak = measured(journal, Path(folder) / "report", extra)
            assert summary["events"] == made
            print(
                f"  report: {seconds:.1f} s with its start, {made / seconds:,.0f} events/s, "
                f"{peak / MIB:,.0f} MiB at most"
            )
            if before is not None:
                print(
                    f"  {made / before[0]:.1f} times the events took "
                    f"{seconds / before[1]:.1f} times as long"
                )
            before = (made, seconds)


if __name__ == "__main__":
    main()
