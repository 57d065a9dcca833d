"""Capture, consume and write through kills: every message in the table, none twice, each removed.

  python -m tests.spark.exactness [--count N] [--drivers N] [--executors N] [--brokers N] [--seed N]
                                  [--local] [--keep FOLDER]

A queue of N messages is consumed into Parquet by a streaming query, and the table is then written
to a queue with duplicate detection by another one, both on a standalone cluster of Spark: a master
and two workers. Meanwhile, at random moments of its progress, each of the two is killed (-9): the
driver with its JVM and all its processes, executors with their Python workers, and the broker.
Whatever is killed is started again; the executors by Spark itself. With --local there is no
cluster, and single Python workers are killed instead of executors. At the end
- every message is in the table once, by sequence number and by message id;
- the queue is empty, and its log has removed each number once;
- the other queue has every row once, by its body.

It prints what was killed and found, and why a driver ended that nobody has killed; and it ends with
1 if anything is not so. The logs of all processes stay in the FOLDER of --keep.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandembus.changes import Removed
from tandembus.client import Client, OutgoingMessage
from tandembus.errors import TandemError
from tandembus.spark.session import spark_session
from tandembus.store.files import FileStore
from tandembus.store.records import decode_group
from tandembus.testing import BrokerProcess
from tests.spark import standalone
from tests.spark.conftest import CONF, session
from tests.unit.spark.test_brokers import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE, TARGET = "source", "target"
BATCHES = 20
"""Micro-batches that each of the two takes, if nothing happens."""
PATIENCE_S = 3_600
LOCAL = "local[2,8]"
WORKERS = 2
ON_CLUSTER = {
    **CONF,
    **standalone.CONF,
    # The task that an executor has died of is not to blame, but Spark counts it as its failure.
    "spark.task.maxFailures": "1000",
    # The executors of a driver that was killed may hold theirs for a moment: the next one waits.
    "spark.cores.max": str(WORKERS),
}


# --- the jobs, each in a process of its own -------------------------------------------------------


def connected(master: str) -> SparkSession:
    if master == LOCAL:
        return session(master)
    return spark_session("exactness", master, ON_CLUSTER)


def consume(spark: SparkSession, place: str, folder: Path, per_batch: int) -> None:
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


def write(spark: SparkSession, place: str, folder: Path, per_batch: int) -> None:
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


JOBS: dict[str, Callable[[SparkSession, str, Path, int], None]] = {
    "consume": consume,
    "write": write,
}


# --- the killer -----------------------------------------------------------------------------------


@dataclass
class Tally:
    drivers: int = 0
    executors: int = 0
    brokers: int = 0
    own_failures: list[str] = field(default_factory=list)
    """Of drivers that ended by themselves, and not well: why. They are started again as well."""
    found: list[str] = field(default_factory=list)


class Run:
    """`cluster`: None is a local Spark."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        broker: BrokerProcess,
        cluster: standalone.StandaloneCluster | None,
        folder: Path,
        logs: Path,
    ) -> None:
        self._arguments = arguments
        self._broker = broker
        self._cluster = cluster
        self._folder = folder
        self._logs = logs
        self._log = logs
        """Of the driver that runs; each has its own."""
        self._started = 0
        self._random = random.Random(arguments.seed)
        self.tally = Tally()
        kinds = ["driver"] * arguments.drivers + ["executor"] * arguments.executors
        self._kinds = kinds + ["broker"] * arguments.brokers
        self._random.shuffle(self._kinds)
        self._jobs_left = len(JOBS)

    def job(self, name: str, progress: Callable[[], int]) -> None:
        """Run it to its end, through its share of the kills."""
        count = self._arguments.count
        plan = self._plan(count)
        driver = self._start(name)
        until = time.monotonic() + PATIENCE_S
        shown = 0
        while time.monotonic() < until:
            if driver.poll() is not None:
                if driver.returncode == 0:
                    break
                self.tally.own_failures.append(f"{self._log.stem}: {cause(self._log)}")
                driver = self._start(name)
            try:
                done = progress()
            except TandemError:
                done = -1
            if done - shown >= count // 10:
                shown = done
                print(f"  {name}: {done:,} of {count:,}, {len(plan)} kills to come", flush=True)
            while plan and plan[0][0] <= done:
                _, what = plan.pop(0)
                time.sleep(self._random.random())
                if what == "broker":
                    self._broker.kill()
                    self._broker.restart()
                    self.tally.brokers += 1
                elif not self._is_working(driver.pid):
                    # One that has just been started has nothing yet to lose: later.
                    plan.insert(0, (done, what))
                    break
                elif what == "driver":
                    self._kill_driver(driver)
                    self.tally.drivers += 1
                    driver = self._start(name)
                elif self._kill_executor(driver.pid):
                    self.tally.executors += 1
                else:
                    plan.insert(0, (done, what))
                    break
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
        command += ["--master", LOCAL if self._cluster is None else self._cluster.url]
        # A driver that is killed leaves its files behind: here they go with the run.
        scratch = str(self._folder / "scratch")
        env = {**os.environ, "TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch}
        self._started += 1
        self._log = self._logs / f"{name}-{self._started}.log"
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def _is_working(self, driver: int) -> bool:
        """Its tasks have begun."""
        if self._cluster is None:
            return bool(standalone.python_workers_of(driver))
        return bool(self._cluster.working())

    def _kill_driver(self, driver: subprocess.Popen[bytes]) -> None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        if self._cluster is not None:
            self._cluster.wait_until_idle()  # what works after this is the next one's

    def _kill_executor(self, driver: int) -> bool:
        if self._cluster is None:
            return standalone.kill_python_worker(driver, self._random)
        return self._cluster.kill_executor(self._random)


def cause(log: Path) -> str:
    """The last line of the exception that a driver has ended with. Spark prints its plan behind it,
    and where there is a Python exception inside, that is the one."""
    _, _, end = log.read_text(errors="replace").rpartition("Traceback (most recent call last):")
    named = [line for line in end.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
    said = (named or end.splitlines() or ["it said nothing"])[-1]
    return re.sub(r"Query \[id = .*?\] terminated with exception: ", "", said)[:300]


# --- the judge ------------------------------------------------------------------------------------


def judge(found: list[str], count: int, place: str, folder: Path, removals: Counter[int]) -> None:
    """What is not so goes into `found`."""
    spark = session("local[2,4]")
    table = spark.read.parquet(str(folder / "table"))
    numbers = Counter(row.sequence_number for row in table.select("sequence_number").collect())
    ids = Counter(row.message_id for row in table.select("message_id").collect())
    spark.stop()
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
    parser.add_argument("--executors", type=int, default=4, help="kills of an executor")
    parser.add_argument("--brokers", type=int, default=2, help="kills of the broker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--local", action="store_true", help="no cluster; kill Python workers instead of executors"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the logs stay")
    for name in ("--job", "--place", "--folder", "--master"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        spark = connected(arguments.master)
        JOBS[arguments.job](spark, arguments.place, Path(arguments.folder), arguments.batch)
        spark.stop()
        return 0
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exactness-")))
        found = run(arguments, folder, stack)
    for problem in found:
        print(f"NOT SO: {problem}")
    print(f"{'exact' if not found else 'NOT exact'}, {time.monotonic() - began:.0f} s")
    return 1 if found else 0


def run(arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> list[str]:
    """What is not so."""
    count, logs = arguments.count, (arguments.keep or folder / "logs").resolve()
    for each in (logs, folder / "scratch"):
        each.mkdir(parents=True, exist_ok=True)
    broker = stack.enter_context(
        BrokerProcess.start(folder / "broker", ["--port", str(free_port())])
    )
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
            OutgoingMessage(b"x" * 100 + b"%012d" % at, message_id=f"m{at}", properties={"n": at})
            for at in range(count)
        ).check()
    with ExitStack() as spark:
        cluster = None
        if not arguments.local:
            cluster = standalone.StandaloneCluster(WORKERS, cores=1, folder=logs)
            spark.enter_context(cluster)
        jobs = Run(arguments, broker, cluster, folder, logs)
        with Client(place, timeout_s=10) as client:
            jobs.job("consume", lambda: client.survey(SOURCE).cursors.get("spark", {}).get(0, 0))
            jobs.job("write", lambda: client.survey(TARGET).partitions[0].tail)
    tally, whom = jobs.tally, "Python workers" if arguments.local else "executors"
    print(
        f"{count:,} messages; killed: {tally.drivers} drivers, {tally.executors} {whom}, "
        f"{tally.brokers} brokers; drivers that failed by themselves: {len(tally.own_failures)}",
        flush=True,
    )
    for why in tally.own_failures:
        print(f"  {why}", flush=True)
    broker.stop()
    removals = removed(folder / "broker" / "log")
    broker.restart()
    judge(tally.found, count, place, folder, removals)
    return tally.found


if __name__ == "__main__":
    sys.exit(main())
