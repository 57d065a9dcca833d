"""The data source in a real Spark, on a real broker: one test for each promise.

What needs no Spark is in tests/unit/spark.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.query import StreamingQuery

from tandembus.client import Client, OutgoingMessage
from tandembus.spark.columns import NAMES
from tandembus.spark.listener import ConsumedListener
from tandembus.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


class Bus:
    """Queues of one test, and Spark's way to them."""

    def __init__(self, spark: SparkSession, broker: LocalBroker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.folder = folder
        self.name = f"{folder.name}".replace("[", "-").replace("]", "").lower()[:60]
        self.client = Client(broker.connection_string)

    def queue(self, name: str = "", **settings: str | int | bool) -> str:
        path = f"{self.name}{name}"
        self.broker.create_queue(path, **settings)
        return path

    def fill(self, path: str, count: int, start: int = 0) -> None:
        with self.client.sender(path) as sender:
            sender.send_all(
                OutgoingMessage(
                    f"body {at}", message_id=f"m{at}", properties={"n": at, "kind": "test"}
                )
                for at in range(start, start + count)
            ).check()

    def options(self, path: str, **more: str) -> dict[str, str]:
        return {"connectionString": self.broker.connection_string, "entity": path, **more}

    def read(self, path: str, **more: str) -> DataFrame:
        return self.spark.read.format("servicebus").options(**self.options(path, **more)).load()

    def stream(self, path: str, **more: str) -> DataFrame:
        reader = self.spark.readStream.format("servicebus")
        return reader.options(**self.options(path, **more)).load()

    def capture(self, path: str, **more: str) -> StreamingQuery:
        """All that is there, to Parquet; finished."""
        query = (
            self.stream(path, **more)
            .writeStream.format("parquet")
            .option("path", str(self.folder / "table"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def captured(self) -> list[int]:
        table = self.spark.read.parquet(str(self.folder / "table"))
        return sorted(row.sequence_number for row in table.select("sequence_number").collect())

    def left(self, path: str) -> list[int]:
        return [message.sequence_number for message in self.client.browse_all(path)]

    def bodies(self, path: str) -> list[str]:
        return sorted(message.body.decode() for message in self.client.browse_all(path))


@pytest.fixture
def bus(spark: SparkSession, tandem_broker: LocalBroker, tmp_path: Path) -> Any:
    made = Bus(spark, tandem_broker, tmp_path)
    yield made
    made.client.close()


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.req("D1")
def test_a_queue_is_a_table(bus: Bus) -> None:
    """All columns, over several tasks, found by its name alone; nothing is removed."""
    path = bus.queue()
    bus.fill(path, 1_000)
    table = bus.read(path, partitions="3")
    assert tuple(table.columns) == NAMES
    found = table.withColumn("task", spark_partition_id()).collect()
    assert {row.task for row in found} == {0, 1, 2}
    rows = {row.message_id: row for row in found}
    assert len(rows) == len(found) == 1_000
    assert bytes(rows["m7"].body) == b"body 7"
    assert rows["m7"].properties == {"n": "7", "kind": "test"}
    assert rows["m7"].property_types == {"n": "int"}
    assert len(bus.left(path)) == 1_000


@pytest.mark.req("D1")
def test_what_is_chosen_is_what_comes(bus: Bus) -> None:
    """Columns, a schema, a filter of the broker, a range, and the filters of the query."""
    path = bus.queue()
    bus.fill(path, 100)
    assert bus.read(path, columns="size,to").columns == ["size", "to"]
    chosen = bus.spark.read.format("servicebus").schema("body BINARY, sequence_number BIGINT")
    assert chosen.options(**bus.options(path)).load().count() == 100
    assert bus.read(path, filter="n < 10").count() == 10
    assert bus.read(path, startingPosition="91").count() == 10
    pushed = bus.read(path, pushFilters="true").where("sequence_number BETWEEN 11 AND 15")
    assert sorted(row.message_id for row in pushed.collect()) == [f"m{at}" for at in range(10, 15)]


@pytest.mark.req("D1")
def test_an_empty_queue_is_an_empty_table(bus: Bus) -> None:
    """Spark asks for a partition though there is none."""
    assert bus.read(bus.queue()).count() == 0


@pytest.mark.req("D1")
def test_what_is_wrong_is_told_by_name(bus: Bus) -> None:
    """An option, an entity, a schema: the sentence is in Spark's error."""
    path = bus.queue()
    with pytest.raises(AnalysisException, match="'maxmesages' is not an option"):
        bus.read(path, maxMesages="1")
    with pytest.raises(AnalysisException, match="could not be found"):
        bus.read(f"{path}-nothing").count()
    table = bus.spark.createDataFrame([("x",)], "boddy STRING")
    with pytest.raises(AnalysisException, match="'boddy' is no column of a message"):
        table.write.format("servicebus").options(**bus.options(path)).mode("append").save()
    bodies = bus.spark.createDataFrame([("x",)], "body STRING")
    with pytest.raises(AnalysisException, match=r"use mode\('append'\)"):
        bodies.write.format("servicebus").options(**bus.options(path)).mode("overwrite").save()


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.req("D1", "D2")
def test_a_stream_captures_each_message_once_and_resumes(bus: Bus) -> None:
    """In bounded batches, with its lag in the progress; a second run goes on where the first
    ended, and nothing is removed."""
    path = bus.queue()
    bus.fill(path, 250)
    first = bus.capture(path, maxMessagesPerTrigger="100")
    sizes = [progress.numInputRows for progress in first.recentProgress]
    assert [size for size in sizes if size] == [100, 100, 50]
    source = first.recentProgress[0].sources[0]
    assert json.loads(source.endOffset) == {path: "101"}
    assert json.loads(source.latestOffset) == {path: "251"}
    bus.fill(path, 50, 250)
    bus.capture(path, maxMessagesPerTrigger="100")
    assert bus.captured() == list(range(1, 301))
    assert len(bus.left(path)) == 300


@pytest.mark.req("D2")
def test_what_is_consumed_is_removed_also_the_last_batch(bus: Bus) -> None:
    """When its batch is committed, and nothing else: what came meanwhile stays for the next run."""
    path = bus.queue()
    bus.fill(path, 150)
    bus.capture(path, mode="consume", consumer="etl", maxMessagesPerTrigger="100")
    assert bus.captured() == list(range(1, 151))
    assert bus.left(path) == []
    bus.fill(path, 10, 150)
    assert bus.left(path) == list(range(151, 161))
    bus.capture(path, mode="consume", consumer="etl")
    assert bus.captured() == list(range(1, 161))
    assert bus.left(path) == []


@pytest.mark.req("D2")
def test_a_batch_that_failed_removes_nothing_and_is_read_again(bus: Bus) -> None:
    """The same messages, though more have come; then they are gone."""
    path = bus.queue()
    bus.fill(path, 20)
    mark = bus.folder / "fail"
    mark.touch()

    def handle(batch: DataFrame, number: int) -> None:
        rows = [row.sequence_number for row in batch.collect()]
        seen.append((number, sorted(rows)))
        if mark.exists():
            raise RuntimeError("planned")

    def run() -> StreamingQuery:
        query = (
            bus.stream(path, mode="consume")
            .writeStream.foreachBatch(handle)
            .option("checkpointLocation", str(bus.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    seen: list[tuple[int, list[int]]] = []
    with pytest.raises(StreamingQueryException, match="planned"):
        run()
    assert bus.left(path) == list(range(1, 21))
    bus.fill(path, 5, 20)
    mark.unlink()
    run()
    assert seen[:2] == [(0, list(range(1, 21))), (0, list(range(1, 21)))]
    assert seen[2] == (1, list(range(21, 26)))
    assert bus.left(path) == []


@pytest.mark.req("D2")
def test_the_listener_removes_what_a_stopped_query_has_read(bus: Bus) -> None:
    """At once, without another batch; offsets of others are passed over."""
    path = bus.queue()
    bus.fill(path, 10)
    bus.capture(path)  # reads without removing
    bus.client.move_cursor(path, "spark", 0, 1)
    listener = ConsumedListener(**bus.options(path))
    listener.committed(json.dumps({"$consumer": "another", path: "11"}))
    listener.committed(json.dumps({path: "11"}))
    listener.committed(json.dumps({"$consumer": "spark", "another": "11"}))
    listener.committed("null")
    listener.committed(None)
    assert len(bus.left(path)) == 10
    bus.spark.streams.addListener(listener)
    try:
        listener.committed(json.dumps({"$consumer": "spark", path: "8"}))
        assert bus.left(path) == [8, 9, 10]
    finally:
        bus.spark.streams.removeListener(listener)


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.req("D1", "D2")
def test_rows_are_sent_once_however_often_they_are_tried(bus: Bus) -> None:
    """The ids are the rows' own, or made from the job: the queue drops what it has already."""
    path = bus.queue(RequiresDuplicateDetection=True)
    table = bus.spark.range(500).selectExpr(
        "CAST(id AS STRING) AS message_id", "CONCAT('row ', id) AS body", "'s' AS subject"
    )
    for _ in range(2):
        table.write.format("servicebus").options(**bus.options(path)).mode("append").save()
    assert len(bus.left(path)) == 500
    nameless = bus.spark.range(100).selectExpr("CAST(id AS STRING) AS body")
    for _ in range(2):
        nameless.write.format("servicebus").options(
            **bus.options(path, messageIdPrefix="nightly")
        ).mode("append").save()
    assert len(bus.left(path)) == 600


@pytest.mark.req("D2")
def test_a_task_that_dies_is_run_again_and_sends_nothing_twice(bus: Bus) -> None:
    """The Python process of a task is killed after it has sent a part of its rows."""
    path = bus.queue(RequiresDuplicateDetection=True)
    mark = str(bus.folder / "died")

    def die_once(rows: Any) -> Any:
        for at, row in enumerate(rows):
            if at == 150 and not os.path.exists(mark):
                with open(mark, "w", encoding="ascii"):
                    os._exit(9)
            yield row

    table = bus.spark.range(0, 400, 1, 2).selectExpr("CONCAT('row ', id) AS body")
    dying = bus.spark.createDataFrame(table.rdd.mapPartitions(die_once), table.schema)
    dying.write.format("servicebus").options(**bus.options(path)).mode("append").save()
    assert os.path.exists(mark)
    assert bus.bodies(path) == sorted(f"row {at}" for at in range(400))


@pytest.mark.req("D1", "D2")
def test_a_stream_is_sent_once_through_a_replay(bus: Bus) -> None:
    """The commit log of Spark loses its last entry: the batch is sent again, and dropped."""
    source, target = bus.queue("a"), bus.queue("b", RequiresDuplicateDetection=True)
    bus.fill(source, 50)

    def run() -> None:
        query = (
            bus.stream(source)
            .select("body", "session_id")
            .writeStream.format("servicebus")
            .options(**bus.options(target))
            .option("checkpointLocation", str(bus.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    for entry in (bus.folder / "checkpoint" / "commits").iterdir():
        entry.unlink()
    run()
    assert bus.bodies(target) == sorted(f"body {at}" for at in range(50))


@pytest.mark.req("D8")
def test_rows_that_cannot_be_sent_go_to_quarantine(bus: Bus) -> None:
    """With the reason and all their columns; the others are sent, and a second run adds nothing."""
    path = bus.queue(RequiresSession=True, RequiresDuplicateDetection=True)
    table = bus.spark.createDataFrame(
        [
            ("fine", "s", "1", 3),
            ("no session", None, "2", 3),
            ("priority", "s", "3", 77),
            ("x" * 300_000, "s", "4", None),
            ("also fine", "s", "5", None),
        ],
        "body STRING, session_id STRING, message_id STRING, priority INT",
    ).coalesce(1)
    folder = bus.folder / "bad"
    for _ in range(2):
        table.write.format("servicebus").options(
            **bus.options(path, quarantine=str(folder), messageIdPrefix="job")
        ).mode("append").save()
    assert bus.bodies(path) == ["also fine", "fine"]
    found = {row.message_id: row for row in bus.spark.read.parquet(str(folder)).collect()}
    assert sorted(found) == ["2", "3", "4"]
    assert "session identifier is null" in found["2"]._reason
    assert "priority is 77" in found["3"]._reason
    assert found["4"]._condition == "amqp:link:message-size-exceeded"
    assert found["4"].body == "x" * 300_000
    assert found["3"]._row == 2


@pytest.mark.req("D4")
def test_what_was_read_can_be_sent_again(bus: Bus) -> None:
    """From one queue to another through a table, with every property."""
    source, target = bus.queue("a"), bus.queue("b")
    bus.fill(source, 20)
    bus.read(source).write.format("servicebus").options(**bus.options(target)).mode("append").save()
    before = {each.message_id: each for each in bus.client.browse_all(source)}
    after = {each.message_id: each for each in bus.client.browse_all(target)}
    assert before.keys() == after.keys()
    for name, message in before.items():
        assert after[name].body == message.body
        assert after[name].properties == message.properties


def test_the_programs_of_the_page(bus: Bus) -> None:
    """docs/spark.md, as it stands there, but for the folder: the JVM's is not the test's."""
    bus.broker.create_queue("orders")
    bus.fill("orders", 5)
    page = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
    programs = re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(programs) == 2
    names: dict[str, Any] = {"connection_string": bus.broker.connection_string}
    for program in programs:
        program = program.replace('"orders.', f'"{bus.folder}/orders.')
        exec(compile(program, str(page), "exec"), names)  # noqa: S102
    try:
        assert bus.spark.read.parquet(f"{bus.folder}/orders.parquet").count() == 5
        assert len(bus.left("orders")) == 15
    finally:
        bus.client.entities.delete_queue("orders")
