"""Capture, consume and write through kills: every message in the table, none twice, each removed.

  python -m tests.spark.exactness [--count N] [--drivers N] [--workers N] [--brokers N] [--seed N]

A queue of N messages is consumed into Parquet by a streaming query, and the table is then written
to a queue with duplicate detection by another one. Meanwhile, at random moments of its progress,
each of the two is killed (-9): the driver with its JVM and all its processes, single Python workers
in the middle of a task, and the broker. Whatever is killed is started again. At the end
- every message is in the table once, by sequence number and by message id;
- the queue is empty, and its log has removed each number once;
- the other queue has every row once, by its body.

It prints what was killed and found, and ends with 1 if anything is not so.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.changes import Removed
from tandem.client import Client, OutgoingMessage
from tandem.errors import TandemError
from tandem.store.files import FileStore
from tandem.store.records import decode_group
from tandem.testing import BrokerProcess
from tests.spark.conftest import session
from tests.unit.spark.test_brokers import free_port

SOURCE, TARGET = "source", "target"
BATCHES = 20
"""Micro-batches that each of the two takes, if nothing happens."""
PATIENCE_S = 3_600


# --- the jobs, each in a process of its own -------------------------------------------------------


def consume(place: str, folder: Path, per_batch: int) -> None:
    spark = session("local[2,8]")
    query = (
        spark.readStream.format("servicebus")
        .options(connectionString=place, entity=SOURCE, mode="consume", partitions="2")
        .option("maxMessagesPerTrigger", per_batch)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "consuming"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def write(place: str, folder: Path, per_batch: int) -> None:
    spark = session("local[2,8]")
    table = spark.read.parquet(str(folder / "table"))
    query = (
        spark.readStream.schema(table.schema)
        .option("maxFilesPerTrigger", 2)
        .parquet(str(folder / "table"))
        .select("body", "subject", "properties", "property_types")
        .writeStream.format("servicebus")
        .options(connectionString=place, entity=TARGET)
        .option("checkpointLocation", str(folder / "writing"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


JOBS: dict[str, Callable[[str, Path, int], None]] = {"consume": consume, "write": write}


# --- the killer -----------------------------------------------------------------------------------


@dataclass
class Tally:
    drivers: int = 0
    workers: int = 0
    brokers: int = 0
    own_failures: int = 0
    """Drivers that ended by themselves, and not well: started again as well."""
    found: list[str] = field(default_factory=list)


class Run:
    def __init__(self, arguments: argparse.Namespace, broker: BrokerProcess, folder: Path) -> None:
        self._arguments = arguments
        self._broker = broker
        self._folder = folder
        self._random = random.Random(arguments.seed)
        self.tally = Tally()
        kinds = ["driver"] * arguments.drivers + ["worker"] * arguments.workers
        self._kinds = kinds + ["broker"] * arguments.brokers
        self._random.shuffle(self._kinds)
        self._jobs_left = len(JOBS)

    def job(self, name: str, progress: Callable[[], int]) -> None:
        """Run it to its end, through its share of the kills."""
        count = self._arguments.count
        plan = self._plan(count)
        driver = self._start(name)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if driver.poll() is not None:
                if driver.returncode == 0:
                    break
                self.tally.own_failures += 1
                driver = self._start(name)
            try:
                done = progress()
            except TandemError:
                done = -1
            while plan and plan[0][0] <= done:
                _, what = plan.pop(0)
                time.sleep(self._random.random())
                if what == "broker":
                    self._broker.kill()
                    self._broker.restart()
                    self.tally.brokers += 1
                elif what == "driver":
                    os.killpg(driver.pid, signal.SIGKILL)
                    driver.wait()
                    self.tally.drivers += 1
                    driver = self._start(name)
                elif not self._kill_worker(driver.pid):
                    plan.insert(0, (done, what))
                    break
                else:
                    self.tally.workers += 1
            time.sleep(0.05)
        else:
            os.killpg(driver.pid, signal.SIGKILL)
            self.tally.found.append(f"{name} is not done after {PATIENCE_S} s")
        if plan:
            print(f"  {name} was done before {len(plan)} of its kills", flush=True)

    def _plan(self, count: int) -> list[tuple[int, str]]:
        """(progress, what is killed then): the kills are shared between the jobs."""
        share = -(-len(self._kinds) // self._jobs_left)
        self._jobs_left -= 1
        kinds, self._kinds = self._kinds[:share], self._kinds[share:]
        return sorted((self._random.randrange(int(count * 0.95)), kind) for kind in kinds)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        place, per_batch = self._broker.connection_string, max(1, self._arguments.count // BATCHES)
        command = [sys.executable, "-m", "tests.spark.exactness", "--job", name, "--place", place]
        command += ["--folder", str(self._folder), "--batch", str(per_batch)]
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _kill_worker(self, driver: int) -> bool:
        """A Python process that works for a task: a child of the daemon that forks them."""
        processes = {
            pid: parent for pid, parent, words in _processes() if "pyspark.daemon" in words
        }
        ours = _descendants(driver)
        found = [pid for pid, parent in processes.items() if parent in processes and pid in ours]
        if not found:
            return False
        try:
            os.kill(self._random.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def _processes() -> Iterator[tuple[int, int, str]]:
    """(pid, parent, command line) of all."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, UnicodeDecodeError):
                continue
            yield int(entry.name), parent, words


def _descendants(root: int) -> set[int]:
    parents = {pid: parent for pid, parent, _ in _processes()}
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


# --- the judge ------------------------------------------------------------------------------------


def judge(run: Run, count: int, place: str, folder: Path, removals: Counter[int]) -> None:
    spark = session("local[2,4]")
    table = spark.read.parquet(str(folder / "table"))
    numbers = Counter(row.sequence_number for row in table.select("sequence_number").collect())
    ids = Counter(row.message_id for row in table.select("message_id").collect())
    spark.stop()
    found = run.tally.found
    _check(found, "the table", numbers, set(range(1, count + 1)))
    _check(found, "the table, by message id", ids, {f"m{at}" for at in range(count)})
    with Client(place) as client:
        lie = client.survey(SOURCE)
        if lie.partitions[0].first != lie.partitions[0].tail:
            found.append(f"the source is not empty: {lie}")
        rows = Counter(
            payload[-12:]
            for page in client.scan(TARGET, 0, 0, 1 << 60)
            for payload in page.payloads()
        )
    _check(found, "the target", rows, {b"%012d" % at for at in range(count)})
    if any(times > 1 for times in removals.values()):
        found.append("a message was removed twice")
    print(f"  the log still shows {len(removals):,} removals, each once", flush=True)


def _check(found: list[str], where: str, seen: Counter[Any], wanted: set[Any]) -> None:
    lost, twice = wanted - seen.keys(), [it for it, times in seen.items() if times > 1]
    strange = seen.keys() - wanted
    print(f"  {where}: {len(seen):,} of {len(wanted):,}, {len(twice)} twice", flush=True)
    if lost or twice or strange:
        found.append(f"{where}: {len(lost)} lost, {len(twice)} twice, {len(strange)} strange")


def removed(folder: Path) -> Counter[int]:
    """What the log says was removed of the source, which is the first entity; what compaction has
    dropped is not there any more."""
    found: Counter[int] = Counter()
    store = FileStore(folder)
    try:
        for place, body in store.replay(store.start):
            for change, _ in decode_group(body, place=place):
                if isinstance(change, Removed) and change.entity == 1:
                    data = change.sequence_numbers
                    found.update(
                        int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)
                    )
    finally:
        store.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--drivers", type=int, default=2, help="kills of a driver")
    parser.add_argument("--workers", type=int, default=4, help="kills of a Python worker")
    parser.add_argument("--brokers", type=int, default=2, help="kills of the broker")
    parser.add_argument("--seed", type=int, default=1)
    for name in ("--job", "--place", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        JOBS[arguments.job](arguments.place, Path(arguments.folder), arguments.batch)
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="exactness-") as name:
        folder, store = Path(name), Path(name) / "broker"
        with BrokerProcess.start(store, ["--port", str(free_port())]) as broker:
            broker.create_queue(SOURCE, MaxSizeInMegabytes=5120)
            broker.create_queue(
                TARGET,
                MaxSizeInMegabytes=5120,
                RequiresDuplicateDetection=True,
                DuplicateDetectionHistoryTimeWindow="P1D",
            )
            place = broker.connection_string
            with Client(place) as client, client.sender(SOURCE) as sender:
                sender.send_all(
                    OutgoingMessage(
                        b"x" * 100 + b"%012d" % at, message_id=f"m{at}", properties={"n": at}
                    )
                    for at in range(arguments.count)
                ).check()
            run = Run(arguments, broker, folder)
            with Client(place, timeout_s=10) as client:
                run.job("consume", lambda: client.survey(SOURCE).cursors.get("spark", {}).get(0, 0))
                run.job("write", lambda: client.survey(TARGET).partitions[0].tail)
            tally = run.tally
            print(
                f"{arguments.count:,} messages; killed: {tally.drivers} drivers, {tally.workers} "
                f"workers, {tally.brokers} brokers; drivers that failed by themselves: "
                f"{tally.own_failures}",
                flush=True,
            )
            broker.stop()
            removals = removed(store / "log")
            broker.restart()
            judge(run, arguments.count, place, folder, removals)
        for problem in tally.found:
            print(f"NOT SO: {problem}")
    print(f"{'exact' if not tally.found else 'NOT exact'}, {time.monotonic() - began:.0f} s")
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
