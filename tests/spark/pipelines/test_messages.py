"""Capture, replay and syphon in a real Spark, on real brokers (D3, D4, D8)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tandembus.client import Client, OutgoingMessage
from tandembus.errors import ArgumentError
from tandembus.pairing.options import BACKLOG_SETTINGS, backlog_path
from tandembus.spark.pipelines import capture as capturing
from tandembus.spark.pipelines import replay as replaying
from tandembus.spark.pipelines import syphon as syphoning
from tandembus.spark.pipelines.capture import Capture, read_capture, stream_of
from tandembus.spark.pipelines.checkpoints import Checkpoint, opened
from tandembus.spark.pipelines.events import Span
from tandembus.spark.pipelines.running import Outcome
from tandembus.testing import LocalBroker
from tests.spark.standalone import python_workers_of

pytestmark = [
    pytest.mark.long,  # `make test-spark`
    pytest.mark.xdist_group("spark"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as found:
        yield found


def fill(broker: LocalBroker, path: str, first: int, count: int, **properties: Any) -> None:
    with Client(broker.connection_string) as client, client.sender(path) as sender:
        sender.send_all(
            OutgoingMessage(
                f'{{"id": {number}}}' if number % 10 else "not JSON",
                message_id=f"m{number}",
                session_id=properties.get("session"),
                properties={"number": number, **properties},
            )
            for number in range(first, first + count)
        ).check()


def browse(broker: LocalBroker, path: str) -> list[Any]:
    with Client(broker.connection_string) as client:
        return list(client.browse_all(path))


def numbers(table: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in table.selectExpr("properties['number']").collect())


class Capturing:
    """One capture of the queues `a` and `t/Subscriptions/s`, run again and again."""

    def __init__(self, spark: SparkSession, broker: LocalBroker, folder: Path, **how: Any) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.capture = Capture(str(folder / "table"), **how)
        self.entities = [f"{folder.name}-a", f"{folder.name}-t/Subscriptions/s"]
        broker.create_queue(self.entities[0])
        broker.create_topic(f"{folder.name}-t")
        broker.create_subscription(f"{folder.name}-t", "s")

    def send(self, first: int, count: int) -> None:
        fill(self.broker, self.entities[0], first, count)
        fill(self.broker, f"{self.folder.name}-t", first, count)

    def checkpoint(self) -> Checkpoint:
        return opened(self.spark, str(self.folder / "checkpoint"), "capture", {})

    def run(self, **options: str) -> Outcome:
        messages = stream_of(
            self.spark,
            self.broker.connection_string,
            self.entities,
            {"consumer": self.folder.name, **options},
        )
        query, outcome = capturing.start(
            messages, self.capture, self.checkpoint(), {"availableNow": True}, lambda _: None
        )
        query.awaitTermination()
        return outcome

    def table(self) -> DataFrame:
        return read_capture(self.spark, self.capture.out)


@pytest.mark.req("D4")
@pytest.mark.req("D8")
def test_capture_goes_on_where_it_was(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    """By entity and hour; a second run adds only what is new; a batch that Spark gives again, as it
    does after a crash between the table and its own log, replaces itself."""
    job = Capturing(spark, broker, tmp_path)
    job.send(0, 30)
    assert not job.checkpoint().is_resumed
    assert job.run(maxMessagesPerTrigger="25").events == 60
    job.send(30, 12)
    assert job.checkpoint().is_resumed
    assert job.run().events == 24
    assert numbers(job.table()) == sorted([*range(42), *range(42)])
    table = job.table()
    assert {row[0] for row in table.select("entity").distinct().collect()} == set(job.entities)
    (hour,) = {row[0] for row in table.select("hour").distinct().collect()}
    assert (Path(job.capture.out) / f"entity={job.entities[0]}" / f"hour={hour}").is_dir()
    last = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))[-1]
    for each in (last, last.with_name(f".{last.name}.crc")):
        each.unlink(missing_ok=True)
    job.run()
    assert numbers(job.table()) == sorted([*range(42), *range(42)])


@pytest.mark.req("D8")
def test_bodies_that_do_not_fit_are_in_quarantine(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    job = Capturing(spark, broker, tmp_path, body_schema="id BIGINT")
    fill(broker, job.entities[0], 0, 20)
    outcome = job.run()
    assert (outcome.events, outcome.quarantined) == (20, 2)
    ids = sorted(row[0] for row in job.table().select("data.id").collect())
    assert ids == [number for number in range(20) if number % 10]
    bad = spark.read.parquet(job.capture.quarantine).collect()
    assert [(row["reason"], bytes(row["body"])) for row in bad] == [
        ("the body does not fit the schema", b"not JSON")
    ] * 2


@pytest.mark.long
@pytest.mark.req("D4")
def test_a_capture_as_a_delta_table(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    """A batch is one transaction: given again, it is not there twice, and no file is lost."""
    deltalake = pytest.importorskip("deltalake")
    job = Capturing(spark, broker, tmp_path, format="delta")
    job.send(0, 15)
    job.run()
    job.send(15, 5)
    job.run()
    table = deltalake.DeltaTable(job.capture.out)
    found = table.to_pyarrow_table()
    assert sorted(found["sequence_number"].to_pylist()) == sorted([*range(1, 21)] * 2)
    assert set(found["entity"].to_pylist()) == set(job.entities)
    version = table.version()
    log = capturing.DeltaLog(job.capture.out, job.checkpoint().id)
    assert log.has(1)
    assert not log.has(2)
    last = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))[-1]
    for each in (last, last.with_name(f".{last.name}.crc")):
        each.unlink(missing_ok=True)
    job.run()
    table = deltalake.DeltaTable(job.capture.out)
    assert table.version() == version
    assert table.to_pyarrow_table().num_rows == 40


@pytest.mark.req("D4")
@pytest.mark.req("D8")
def test_replay(spark: SparkSession, broker: LocalBroker, tmp_path: Path) -> None:
    """A range and a filter, at a rate, into another queue; done again after an interruption it
    doubles nothing, and a replay of its own sends all of it once more."""
    job = Capturing(spark, broker, tmp_path)
    job.send(0, 40)
    job.run()
    into = f"{tmp_path.name}-into"
    broker.create_queue(
        into, RequiresDuplicateDetection=True, DuplicateDetectionHistoryTimeWindow="PT1H"
    )
    times = sorted(
        row[0]
        for row in job.table().where("entity NOT LIKE '%Sub%'").select("enqueued_time").collect()
    )
    where = "properties['number'] >= 10 AND entity NOT LIKE '%Subscriptions%'"
    replay = replaying.Replay(
        into, Span(times[0].astimezone(), None), where=where, rate=200, tasks=1
    )
    told: list[tuple[int, int]] = []

    def run(checkpoint: Checkpoint) -> Outcome:
        return replaying.run(
            spark, job.table(), replay, broker.connection_string, checkpoint,
            str(tmp_path / "quarantine"), lambda _, done, hours: told.append((done, hours)),
        )  # fmt: skip

    first = opened(spark, str(tmp_path / "one"), "replay", {"into": into})
    begin = time.monotonic()
    assert run(first).events == 30
    assert time.monotonic() - begin >= 29 / 200 - 0.01
    arrived = browse(broker, into)
    assert [message.properties["number"] for message in arrived] == list(range(10, 40))
    assert arrived[0].message_id.startswith(f"replay-{first.id}/")
    assert told[-1][0] == told[-1][1]
    # The hour was sent, and the note of it is lost: as if killed just before.
    (tmp_path / "one" / "done.txt").unlink()
    assert run(first).events == 30
    assert len(browse(broker, into)) == 30
    # It knows that it is done.
    assert run(opened(spark, str(tmp_path / "one"), "replay", {"into": into})).events == 0
    assert run(opened(spark, str(tmp_path / "two"), "replay", {"into": into})).events == 30
    assert len(browse(broker, into)) == 60
    with pytest.raises(ArgumentError, match="another run: its into is"):
        opened(spark, str(tmp_path / "one"), "replay", {"into": "elsewhere"})


# --- the syphon -----------------------------------------------------------------------------------


@pytest.mark.req("D3")
@pytest.mark.req("N9")
def test_syphon_with_a_killed_worker(spark: SparkSession) -> None:
    """Two tasks empty four backlog queues. The workers are killed in the middle, and Spark starts
    the tasks again: all of it comes home, each message once, and each session in its order."""
    sessions, count = ("red", "green"), 400
    with LocalBroker.start() as primary, LocalBroker.start() as secondary:
        primary.create_queue(
            "orders", RequiresDuplicateDetection=True, DuplicateDetectionHistoryTimeWindow="P1D"
        )
        primary.create_queue("chats", RequiresSession=True, RequiresDuplicateDetection=True)
        for place in range(4):
            secondary.create_queue(backlog_path("shop", place), **BACKLOG_SETTINGS)
            fill(
                secondary, backlog_path("shop", place), place * count, count,
                **{"x-ms-path": "orders"},
            )  # fmt: skip
        for place, session in enumerate(sessions):
            with (
                Client(secondary.connection_string) as client,
                client.sender(backlog_path("shop", place)) as sender,
            ):
                sender.send_all(
                    OutgoingMessage(
                        str(at),
                        message_id=f"{session}-{at}",
                        properties={"x-ms-path": "chats", "x-ms-sessionid": session},
                    )
                    for at in range(50)
                ).check()
        settings = syphoning.PairSettings(
            primary.connection_string,
            (secondary.connection_string,),
            queues=4,
            name="shop",
            batch=20,
        )
        rows: list[Row] = []

        def drain() -> None:
            rows.extend(syphoning.drained(syphoning.shards(spark, settings, 2), settings).collect())

        thread = threading.Thread(target=drain)
        thread.start()
        while not browse(primary, "orders"):
            time.sleep(0.01)
        for process in python_workers_of(os.getpid()):
            os.kill(process, signal.SIGKILL)
        secondary.clock.advance(minutes=2)  # the locks of the dead end
        thread.join()
        assert [row["queues"] for row in rows] == [2, 2]
        assert all(row["attempt"] > 0 for row in rows)
        ids = Counter(message.message_id for message in browse(primary, "orders"))
        assert len(ids) == 4 * count
        assert set(ids.values()) == {1}
        chats = browse(primary, "chats")
        for session in sessions:
            own = [int(it.body) for it in chats if it.session_id == session]
            assert own == list(range(50))


@pytest.mark.req("D3")
def test_shares_cover_every_queue_once(spark: SparkSession) -> None:
    """However many tasks; more than queues are not used."""
    there = "Endpoint=sb://there/;SharedAccessKeyName=all;SharedAccessKey=eA=="
    settings = syphoning.PairSettings(there, (there, there), queues=5)
    queues = settings.pair().backlog_queues()
    for tasks, wanted in ((1, 1), (4, 4), (50, 10)):
        shards = syphoning.shards(spark, settings, tasks)
        assert shards.rdd.getNumPartitions() == wanted
        rows = shards.collect()
        dealt = [queue for row in rows for queue in queues[row["share"] :: row["shares"]]]
        assert sorted(dealt) == sorted(queues)
