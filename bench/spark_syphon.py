"""The syphon on Spark beside the plain one: how fast, and what is lost or doubled when killed.

  python -m bench.spark_syphon [--messages N] [--queues N] [--kills N] [--no-local] [--no-cluster]

Two brokers of this machine. Each row fills the backlog queues with N messages of 1 KB, brings them
home, and reads the destination: every id must be there once. The start of Spark is not counted,
all else is. The last row kills Python workers (local) or executors (cluster) meanwhile; the clock
of the secondary is moved on after each, so that the locks of the dead end at once, and those of the
living with them, which is worse than it would be.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from tandembus.client import Client, OutgoingMessage
from tandembus.pairing.options import BACKLOG_SETTINGS, backlog_path
from tandembus.spark.pipelines.syphon import PairSettings, drain, drained, shards
from tandembus.spark.session import spark_session
from tandembus.testing import BrokerProcess
from tests.spark.standalone import CONF, StandaloneCluster, kill_python_worker

NAME = "bench"
BODY = os.urandom(1_000)
TASKS = (1, 2, 4)


class Bench:
    def __init__(self, messages: int, queues: int) -> None:
        self.messages = messages
        self.queues = queues
        self.primary = BrokerProcess.start(None, ["--emulator"])
        self.secondary = BrokerProcess.start(None, ["--emulator", "--test-clock"])
        self.settings = PairSettings(
            self.primary.connection_string, (self.secondary.connection_string,), queues, NAME
        )
        for place in range(queues):
            self.secondary.create_queue(backlog_path(NAME, place), **BACKLOG_SETTINGS)
        self.round = 0

    def close(self) -> None:
        self.primary.close()
        self.secondary.close()

    def fill(self) -> str:
        """A destination of its own, and its backlog."""
        self.round += 1
        path = f"home-{self.round}"
        self.primary.create_queue(
            path,
            RequiresDuplicateDetection=True,
            DuplicateDetectionHistoryTimeWindow="P1D",
            MaxSizeInMegabytes=5_120,
        )
        share = self.messages // self.queues
        for place in range(self.queues):
            count = share + (self.messages % self.queues if place == 0 else 0)
            with (
                Client(self.secondary.connection_string) as client,
                client.sender(backlog_path(NAME, place)) as sender,
            ):
                sender.send_all(
                    OutgoingMessage(
                        BODY, message_id=f"{place}-{at}", properties={"x-ms-path": path}
                    )
                    for at in range(count)
                ).check()
        return path

    def judge(self, path: str) -> tuple[int, int]:
        """Lost, doubled."""
        seen: set[str | None] = set()
        count = 0
        with Client(self.primary.connection_string) as client:
            for message in client.browse_all(path):
                seen.add(str(message.message_id))
                count += 1
            client.entities.delete_queue(path)
        return self.messages - len(seen), count - len(seen)

    def row(self, label: str, run: Callable[[], str], base: float | None = None) -> float:
        path = self.fill()
        begin = time.monotonic()
        note = run()
        seconds = time.monotonic() - begin
        lost, doubled = self.judge(path)
        rate = self.messages / seconds
        ratio = f"  {rate / base:5.2f} × plain" if base else ""
        print(
            f"{label:28} {seconds:7.1f} s {rate:9,.0f}/s{ratio}  lost {lost}, doubled {doubled}"
            f"{note}",
            flush=True,
        )
        if lost or doubled:
            sys.exit(1)
        return rate

    # --- ways home --------------------------------------------------------------------------------

    def plain(self) -> str:
        pair = self.settings.pair()
        asyncio.run(drain(pair, pair.backlog_queues()))
        return ""

    def on_spark(self, spark: SparkSession, tasks: int) -> str:
        rows = drained(shards(spark, self.settings, tasks), self.settings).collect()
        again = sum(row["attempt"] > 0 for row in rows)
        return f", {again} tasks started again" if again else ""

    def killed(
        self, spark: SparkSession, tasks: int, kills: int, kill_one: Callable[[random.Random], bool]
    ) -> str:
        """Evenly over what is to be done, by what has come home. Whom there is none of just now,
        because the last was killed a moment ago, is waited for."""
        over = threading.Event()
        count = 0
        entities = Client(self.primary.connection_string).entities
        path = f"home-{self.round}"
        seeded = random.Random(1)

        def kill() -> None:
            nonlocal count
            for number in range(kills):
                due = self.messages * (number + 1) // (kills + 1)
                while entities.get_queue(path).counts["ActiveMessageCount"] < due:
                    if over.wait(0.05):
                        return
                while not kill_one(seeded):
                    if over.wait(0.05):
                        return
                count += 1
                if over.wait(0.5):
                    return
                self.secondary.clock.advance(seconds=61)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            note = self.on_spark(spark, tasks)
        finally:
            over.set()
            thread.join()
        return f", {count} killed{note}"


def warm_up(spark: SparkSession, cores: int) -> None:
    """Python workers are there, and the code is compiled."""
    spark.range(0, 1000, 1, cores).mapInArrow(lambda batches: batches, "id long").count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--killed", type=int, help="messages of the rows with kills")
    parser.add_argument("--no-local", action="store_true")
    parser.add_argument("--no-cluster", action="store_true")
    options = parser.parse_args()
    bench = Bench(options.messages, options.queues)
    failures = {"spark.task.maxFailures": "1000"}
    try:
        plain = bench.row("plain, one process", bench.plain)

        def rows(name: str, spark: SparkSession, kill: Callable[[random.Random], bool]) -> None:
            warm_up(spark, 4)
            bench.messages = options.messages
            for tasks in TASKS:
                bench.row(f"{name}, {tasks} tasks", partial(bench.on_spark, spark, tasks), plain)
            bench.messages = options.killed or options.messages
            bench.row(
                f"{name}, 4 tasks, {options.kills} kills",
                lambda: bench.killed(spark, 4, options.kills, kill),
            )
            spark.stop()

        if not options.no_local:
            spark = spark_session("bench", "local[4,1000]", failures, is_quiet=True)
            rows("local", spark, partial(kill_python_worker, os.getpid()))
        if not options.no_cluster:
            with StandaloneCluster() as cluster:
                spark = spark_session("bench", cluster.url, {**CONF, **failures}, is_quiet=True)
                rows("standalone", spark, cluster.kill_executor)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
