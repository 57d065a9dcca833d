"""`syphon`: the backlog queues of a long outage, brought home by many tasks (D3).

Spark only schedules. A task runs the same `tandembus.pairing.Syphon` as `tandem syphon`, on its
share of the backlog queues, until they are empty: locks, order, holds and duplicates are its, and
so are its promises (N9). A task that dies is started again elsewhere; what it had locked comes back
when the locks end, which is a minute, and no other queue waits for it.

More tasks than backlog queues bring nothing: within one queue the order is kept by one drain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tandembus.errors import TandemError

if TYPE_CHECKING:
    from tandembus.pairing.heart import BacklogQueue
    from tandembus.pairing.moves import Flow
    from tandembus.pairing.pair import Pair

SCHEMA: Final = (
    "task int, attempt int, host string, process int, queues int, received bigint, sent bigint, "
    "completed bigint, dead_lettered bigint, returned bigint, lost bigint, seconds double"
)
LOOK_S: Final = 0.5
"""How often a task asks whether its queues are empty."""


@dataclass(frozen=True, slots=True)
class PairSettings:
    """A pair, as a task makes it. It holds keys: it goes to tasks, and into no plan or log."""

    primary: str
    secondaries: tuple[str, ...]
    queues: int = 10
    name: str | None = None
    batch: int = 100

    def pair(self) -> Pair:
        from tandembus.pairing.options import PairingOptions
        from tandembus.pairing.pair import Pair

        options = PairingOptions(
            backlog_queue_count=self.queues,
            primary_name=self.name,
            syphon_batch=self.batch,
            syphon_in_hand=max(1_000, self.batch),
        )
        return Pair(self.primary, list(self.secondaries), options, None, None)


def shards(spark: SparkSession, settings: PairSettings, tasks: int) -> DataFrame:
    """One partition, and one row, for each task: which share of the backlog queues it has."""
    count = max(1, min(tasks, len(settings.pair().backlog_queues())))
    return spark.range(0, count, 1, count).select(
        F.col("id").alias("share"), F.lit(count).alias("shares")
    )


def drained(shards: DataFrame, settings: PairSettings) -> DataFrame:
    """One row for each share, when its queues are empty. To read it is to drain: once is enough,
    and twice does no harm."""

    def drain_shares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in batch.to_pylist()):
            yield _drain_share(settings, row["share"], row["shares"])

    return shards.mapInArrow(drain_shares, SCHEMA)


def _drain_share(settings: PairSettings, share: int, shares: int) -> pa.RecordBatch:
    logging.getLogger("azure").setLevel(logging.ERROR)
    begin = time.monotonic()
    pair = settings.pair()
    queues = pair.backlog_queues()[share::shares]
    flow = asyncio.run(drain(pair, queues))
    task = TaskContext.get()
    row = {
        "task": task.partitionId() if task else 0,
        "attempt": task.attemptNumber() if task else 0,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "queues": len(queues),
        "received": flow.received,
        "sent": flow.sent,
        "completed": flow.completed,
        "dead_lettered": flow.dead_lettered,
        "returned": flow.returned,
        "lost": flow.lost,
        "seconds": time.monotonic() - begin,
    }
    types = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "double": pa.float64()}
    fields = [(name, types[kind]) for name, kind in map(str.split, SCHEMA.split(", "))]
    return pa.RecordBatch.from_pylist([row], pa.schema(fields))


async def drain(pair: Pair, queues: Sequence[BacklogQueue]) -> Flow:
    """Until these queues are empty, however long a destination does not answer."""
    from tandembus.pairing.syphon import Syphon

    syphon = Syphon(pair, queues=queues)
    running = asyncio.create_task(syphon.run())
    try:
        while not running.done():
            await asyncio.wait([running], timeout=LOOK_S)
            if await asyncio.to_thread(_is_empty, syphon.is_empty):
                break
    finally:
        await syphon.stop()
        await asyncio.gather(running, return_exceptions=True)
    return syphon.flow


def _is_empty(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except (TandemError, OSError):  # the secondary does not answer for a moment
        return False
