"""A broker that goes while Spark reads and writes: one that comes back fails no query, and one that
does not is given up in time, with an error that says so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tandembus.client import Client, OutgoingMessage
from tandembus.testing import BrokerProcess
from tests.unit.spark.test_brokers import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

COUNT = 600


@pytest.mark.req("D1", "D2")
def test_a_broker_that_is_killed_twice_and_restarted_fails_no_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Driver, readers and writers ask again: the query ends well, by itself, and each message of
    the one queue is in the other, once."""
    with BrokerProcess.start(arguments=["--port", str(free_port())]) as broker:
        broker.create_queue("a")
        broker.create_queue("b", RequiresDuplicateDetection=True)
        place = broker.connection_string
        with Client(place) as client, client.sender("a") as sender:
            sender.send_all(
                OutgoingMessage(f"body {at}", message_id=f"m{at}") for at in range(COUNT)
            ).check()
        query = (
            spark.readStream.format("servicebus")
            .options(connectionString=place, entity="a", mode="consume", partitions="2")
            .option("maxMessagesPerTrigger", COUNT // 10)
            .load()
            .select("body", "message_id")
            .writeStream.format("servicebus")
            .options(connectionString=place, entity="b")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        for due in (COUNT // 10, COUNT // 2):
            with Client(place) as client:
                while client.survey("b").partitions[0].tail <= due:
                    assert query.exception() is None
                    time.sleep(0.01)
            broker.kill()
            broker.restart()
        query.awaitTermination()
        with Client(place) as client:
            assert list(client.browse_all("a")) == []
            ids = [str(message.message_id) for message in client.browse_all("b")]
        assert sorted(ids) == sorted(f"m{at}" for at in range(COUNT))


@pytest.mark.req("D1", "D2")
def test_a_broker_that_stays_away_is_given_up_and_the_error_says_so(spark: SparkSession) -> None:
    """After `retryTimeout`: where it was looked for, and for how long."""
    port = free_port()
    place = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=all;SharedAccessKey=eA=="
    place += ";UseDevelopmentEmulator=true"
    options = {"connectionString": place, "entity": "a", "retryTimeout": "1s"}
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS body").coalesce(1)
    with pytest.raises(PySparkException) as reading:
        spark.read.format("servicebus").options(**options).load().collect()
    with pytest.raises(PySparkException) as writing:
        rows.write.format("servicebus").options(**options).mode("append").save()
    for failed in (reading, writing):
        assert f"127.0.0.1:{port}: Connection refused" in str(failed.value)
        assert "It was asked again for 1 s (retryTimeout)." in str(failed.value)
