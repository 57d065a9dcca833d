"""What the journal costs: `python -m bench.journal` (`make bench-journal`).

1. A log of so many events (`--events 1000000 --events 10000000`) into Parquet, by one process on
   one core: events a second, of CPU and of time, peak memory, and how it grows from the first size
   to the last.
2. The broker's throughput with the journal beside it against without (`--pairs`), in turns:
   messages a second sent, received and completed by one lean client a run, and how far the journal
   is behind at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

from bench.journal_log import write_log

EVENTS_A_MESSAGE = 3
PATIENCE_S = 600.0


# --- a log into Parquet ---------------------------------------------------------------------------


def convert(folder: Path, out: Path) -> dict[str, Any]:
    """In this process: the imports are not counted, everything else is."""
    from tandembus.journal.run import Journal, JournalOptions

    begin, cpu = time.perf_counter(), time.process_time()
    journal = Journal(JournalOptions(folder, out))
    journal.run(Event(), until_end=True)
    journal.close()
    return {
        "events": journal.files.written_rows,
        "seconds": time.perf_counter() - begin,
        "cpu_s": time.process_time() - cpu,
        "bytes": journal.files.written_bytes,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def conversions(root: Path, sizes: list[int], body_bytes: int, left: int) -> None:
    print("a log into Parquet, one process:")
    print("      events       log  seconds  k/s CPU     k/s  B/row    MiB")
    seconds = []
    for events in sizes:
        folder = root / f"log-{events}"
        size = write_log(folder, events // EVENTS_A_MESSAGE, size=body_bytes, left=left)
        command = [sys.executable, "-m", "bench.journal", "--convert", str(folder)]
        core = {min(os.sched_getaffinity(0))}
        run = subprocess.run(
            [*command, "--out", str(root / f"out-{events}")],
            stdout=subprocess.PIPE,
            check=True,
            preexec_fn=lambda core=core: os.sched_setaffinity(0, core),  # type: ignore[misc]
        )
        found = json.loads(run.stdout)
        rate, wall = found["events"] / found["cpu_s"], found["events"] / found["seconds"]
        seconds.append(found["cpu_s"])
        print(
            f"{found['events']:12,} {size >> 20:6,} MiB {found['seconds']:8.1f} {rate / 1e3:8.0f} "
            f"{wall / 1e3:7.0f} {found['bytes'] / found['events']:6.2f} {found['peak_mib']:6.0f}",
            flush=True,
        )
    if len(sizes) > 1:
        more = sizes[-1] / sizes[0]
        print(f"{more:g} times the events cost {seconds[-1] / seconds[0]:.2f} times the CPU")


# --- a broker with and without --------------------------------------------------------------------


def throughput(folder: Path, out: Path | None, messages: int, body_bytes: int) -> tuple[float, int]:
    """Messages a second through a broker that has been started for it; with `out`, beside a
    journal. And how many bytes of log the journal was behind when the last message was done."""
    from tandembus.client import Client
    from tandembus.testing import BrokerProcess

    with BrokerProcess.start(folder) as broker:
        broker.create_queue("q")
        journal = None
        if out is not None:
            command = [sys.executable, "-m", "tandembus.cli", "journal", "run", str(folder)]
            journal = subprocess.Popen([*command, "--out", str(out), "--every", "5"],
                                       stderr=subprocess.PIPE)  # fmt: skip
            assert journal.stderr is not None
            journal.stderr.readline()
        body = b"x" * body_bytes
        with Client(broker.connection_string) as receiving, Client(broker.connection_string) as one:
            _through(receiving, one, body, messages // 10)  # warm
            begin = time.perf_counter()
            _through(receiving, one, body, messages)
            elapsed = time.perf_counter() - begin
        behind = 0
        if journal is not None and out is not None:
            from tandembus.journal.status import status

            found = status(folder, out, "default")
            behind = found.end - found.position
            journal.send_signal(signal.SIGTERM)
            journal.wait(PATIENCE_S)
            assert journal.stderr is not None
            journal.stderr.close()
    return messages / elapsed, behind


def _through(receiving: Any, sending: Any, body: bytes, messages: int) -> None:
    """All sent by one thread, received and completed by another."""

    def send() -> None:
        with sending.sender("q") as sender:
            sender.send_all(body for _ in range(messages))

    thread = Thread(target=send)
    thread.start()
    left = messages
    with receiving.receiver("q", prefetch=1_000) as receiver:
        while left:
            got = receiver.receive(500)
            receiver.complete(got)
            left -= len(got)
    thread.join()


def pairs(root: Path, count: int, messages: int, body_bytes: int) -> None:
    print(f"a broker, {messages:,} messages of {body_bytes} bytes sent, received and completed:")
    ratios = []
    for number in range(count):
        rates: dict[bool, float] = {}
        behind = 0
        for has_journal in (False, True) if number % 2 == 0 else (True, False):
            name = f"{number}-{has_journal}"
            out = root / f"journal-{name}" if has_journal else None
            rates[has_journal], late = throughput(root / f"data-{name}", out, messages, body_bytes)
            behind = max(behind, late)
        ratios.append(rates[True] / rates[False])
        print(
            f"  {rates[False]:8,.0f}/s without, {rates[True]:8,.0f}/s with a journal: "
            f"{ratios[-1]:.3f}; {behind / (1 << 20):.1f} MiB behind",
            flush=True,
        )
    print(f"  median {statistics.median(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, action="append", help="sizes of a log (200000)")
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body (1024)")
    parser.add_argument("--left", type=int, default=0, help="messages of 100 that stay (0)")
    parser.add_argument("--pairs", type=int, default=2, help="runs with and without (2)")
    parser.add_argument("--messages", type=int, default=20_000, help="of each run (20000)")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary one")
    parser.add_argument("--convert", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.convert is not None:
        print(json.dumps(convert(options.convert, options.out)))
        return
    with tempfile.TemporaryDirectory(prefix="tandem-journal-", dir=options.folder) as folder:
        conversions(Path(folder), options.events or [200_000], options.size, options.left)
        if options.pairs:
            pairs(Path(folder), options.pairs, options.messages, options.size)


if __name__ == "__main__":
    main()
