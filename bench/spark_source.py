"""How fast Spark reads and writes a queue, beside the lean client alone and the official SDK.

  python -m bench.spark_source [--count N] [--sdk N] [--size BYTES] [--rounds N] [--master local[2]]

One broker on this machine, messages of 1 KB, everything in one run and in turns; the best of the
rounds counts. The SDK gets fewer messages, because it takes long.
- read: a reader with the SDK, which receives 500 at a time and completes each, with the body and
  the usual fields; the SDK's peek, page by page; the lean client's pages, as bytes and as Arrow
  batches; Spark's batch read into `noop` and into Parquet;
- write: the SDK's batches; the lean client's; `df.write`, with the ids of duplicate detection.

It ends with 1 if Spark reads less than 8 times, or writes less than 5 times, as fast as the SDK.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from tandembus.client import Client, OutgoingMessage
from tandembus.spark.columns import NAMES
from tandembus.spark.options import parse_read
from tandembus.spark.planning import Range, read_range
from tandembus.testing import BrokerProcess
from tests.spark.conftest import session

BATCH_BYTES = 250 * 1024
"""Of the SDK, which counts a batch a little too small."""
READ, WRITE = 8, 5
"""Times the SDK: what is asked for."""


def rate(count: int, rounds: int, work: Callable[[], object]) -> float:
    """Messages a second, in the best round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return count / best


def show(what: str, found: float, sdk: float) -> None:
    print(f"  {what:44} {found:10,.0f} messages/s {found / sdk:7.1f} × SDK", flush=True)


def fields(message: ServiceBusReceivedMessage) -> object:
    """What a reader wants of each."""
    return (
        message.sequence_number,
        message.enqueued_time_utc,
        message.message_id,
        message.subject,
        b"".join(message.body),
        message.application_properties,
    )


def reading(broker: BrokerProcess, arguments: argparse.Namespace, folder: Path) -> float:
    count, rounds = arguments.count, arguments.rounds
    broker.create_queue("read", MaxSizeInMegabytes=5120)
    body = b"x" * arguments.size
    with Client(broker.connection_string) as client, client.sender("read") as sender:
        sender.send_all(
            OutgoingMessage(body[:-12] + b"%012d" % at, message_id=f"id-{at}", subject="bench")
            for at in range(count)
        ).check()
    place = broker.connection_string

    queues = iter(range(1_000))

    def receiving() -> float:
        """Seconds; what it receives is sent before."""
        path = f"received{next(queues)}"
        broker.create_queue(path)
        with Client(place) as client, client.sender(path) as sender:
            sender.send_all(
                OutgoingMessage(body, message_id=f"id-{at}", subject="bench")
                for at in range(arguments.sdk)
            ).check()
        began = time.perf_counter()
        found: list[object] = []
        with (
            ServiceBusClient.from_connection_string(place) as client,
            client.get_queue_receiver(path) as receiver,
        ):
            while len(found) < arguments.sdk:
                for each in receiver.receive_messages(500, max_wait_time=5):
                    found.append(fields(each))
                    receiver.complete_message(each)
        return time.perf_counter() - began

    def peeking() -> None:
        found: list[object] = []
        with (
            ServiceBusClient.from_connection_string(place) as client,
            client.get_queue_receiver("read") as receiver,
        ):
            start = 0
            while len(found) < arguments.sdk:
                page = receiver.peek_messages(250, sequence_number=start)
                found += map(fields, page)
                start = (page[-1].sequence_number or 0) + 1

    def with_client() -> None:
        with Client(place) as client:
            assert sum(len(page.payloads()) for page in client.scan("read", 0, 0, 1 << 60)) == count

    options = parse_read({"connectionString": place, "entity": "read"}, streams=False)

    def as_arrow() -> None:
        batches = read_range(options, NAMES, Range("read", 0, count + 1))
        assert sum(batch.num_rows for batch in batches) == count

    spark = session(arguments.master)
    table = spark.read.format("servicebus").options(connectionString=place, entity="read").load()

    def to_noop() -> None:
        table.write.format("noop").mode("overwrite").save()

    def to_parquet() -> None:
        table.write.mode("overwrite").parquet(str(folder / "table"))

    print(f"read, {count:,} messages of {arguments.size} bytes, {arguments.master}")
    sdk = arguments.sdk / min(receiving() for _ in range(rounds))
    show("official SDK, receive and complete", sdk, sdk)
    show("official SDK, peek", rate(arguments.sdk, rounds, peeking), sdk)
    show("lean client", rate(count, rounds, with_client), sdk)
    show("lean client, as Arrow, all columns", rate(count, rounds, as_arrow), sdk)
    to_noop()  # the first job starts the Python workers
    noop = rate(count, rounds, to_noop)
    show("Spark → noop", noop, sdk)
    show("Spark → Parquet", rate(count, rounds, to_parquet), sdk)
    assert spark.read.parquet(str(folder / "table")).count() == count
    return noop / sdk


def writing(broker: BrokerProcess, arguments: argparse.Namespace) -> float:
    count, rounds = arguments.count, arguments.rounds
    place = broker.connection_string
    made = 0

    def queue() -> str:
        nonlocal made
        made += 1
        broker.create_queue(
            f"write{made}", MaxSizeInMegabytes=5120, RequiresDuplicateDetection=True
        )
        return f"write{made}"

    body = b"x" * arguments.size

    def with_sdk() -> None:
        path = queue()
        with (
            ServiceBusClient.from_connection_string(place) as client,
            client.get_queue_sender(path) as sender,
        ):
            batch = sender.create_message_batch(BATCH_BYTES)
            for at in range(arguments.sdk):
                message = ServiceBusMessage(body, message_id=f"id-{at}")
                try:
                    batch.add_message(message)
                except ValueError:
                    sender.send_messages(batch)
                    batch = sender.create_message_batch(BATCH_BYTES)
                    batch.add_message(message)
            sender.send_messages(batch)

    def with_client() -> None:
        path = queue()
        with Client(place) as client, client.sender(path) as sender:
            sender.send_all(
                OutgoingMessage(body, message_id=f"id-{at}") for at in range(count)
            ).check()

    spark = session(arguments.master)
    rows = (
        spark.range(0, count, 1, 2)
        .selectExpr("CONCAT('id-', id) AS message_id", f"REPEAT('x', {arguments.size}) AS body")
        .cache()
    )
    assert rows.count() == count

    def with_spark() -> None:
        rows.write.format("servicebus").options(connectionString=place, entity=queue()).mode(
            "append"
        ).save()

    print(f"write, {count:,} messages of {arguments.size} bytes, {arguments.master}")
    sdk = rate(arguments.sdk, rounds, with_sdk)
    show("official SDK, batches", sdk, sdk)
    show("lean client", rate(count, rounds, with_client), sdk)
    with_spark()
    written = rate(count, rounds, with_spark)
    show("Spark", written, sdk)
    return written / sdk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--sdk", type=int, default=2_000, help="messages for the SDK")
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    with BrokerProcess.start() as broker, tempfile.TemporaryDirectory() as folder:
        read = reading(broker, arguments, Path(folder))
        written = writing(broker, arguments)
        session(arguments.master).stop()
    print(f"read {read:.1f} × SDK (asked: {READ}), write {written:.1f} × SDK (asked: {WRITE})")
    return 0 if read >= READ and written >= WRITE else 1


if __name__ == "__main__":
    sys.exit(main())
