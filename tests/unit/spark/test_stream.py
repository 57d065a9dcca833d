"""Readers and writers as Spark calls them, without Spark: what each call promises, and the traps of
the Data Source API that they must not fall into."""

from __future__ import annotations

import inspect
import json
import pickle  # noqa: TID251 (as Spark does)
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import pyspark_servicebus
from tandembus.client import Client, OutgoingMessage
from tandembus.errors import EntityNotFoundError, NotAllowedError
from tandembus.spark.options import parse_read, parse_write
from tandembus.spark.reader import Bounds, PushingReader, ServiceBusReader, Span, bounds_of
from tandembus.spark.source import ServiceBusSource
from tandembus.spark.stream import DataLossError, ServiceBusStreamReader
from tandembus.spark.writer import Sending, ServiceBusWriter, Written
from tandembus.testing import BrokerProcess, LocalBroker
from tests.unit.spark.test_brokers import fill, free_port

NAMES = ("sequence_number", "body")


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as made:
        yield made


class Stage:
    """A queue of its own, and readers of it."""

    def __init__(self, broker: LocalBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self.client = Client(broker.connection_string)
        self._readers: list[ServiceBusStreamReader] = []

    def options(self, **said: str) -> dict[str, str]:
        given = {"connectionString": self.broker.connection_string, "entity": self.name}
        return {**given, "retryTimeout": "5s", **said}

    def reader(self, **said: str) -> ServiceBusStreamReader:
        made = ServiceBusStreamReader(parse_read(self.options(**said), streams=True), NAMES)
        self._readers.append(made)
        return made

    def rows(self, reader: ServiceBusStreamReader, start: Any, end: Any) -> list[int]:
        found: list[int] = []
        for partition in reader.partitions(start, end):
            # A task gets a copy, made from bytes.
            copy = pickle.loads(pickle.dumps(reader))  # noqa: S301
            for batch in copy.read(partition):
                found += batch.column(0).to_pylist()
        return found

    def left(self) -> list[int]:
        return [message.sequence_number for message in self.client.browse_all(self.name)]

    def close(self) -> None:
        for reader in self._readers:
            reader.stop()
            reader.stop()  # Spark does it once, twice, or never
        self.client.close()


@pytest.fixture
def stage(broker: LocalBroker, request: pytest.FixtureRequest) -> Iterator[Stage]:
    name = request.node.name.replace("[", "-").rstrip("]")[:80]
    broker.create_queue(name)
    made = Stage(broker, name)
    fill(made.client, name, 10)
    yield made
    made.close()


ALL = ReadAllAvailable()


@pytest.mark.req("D2")
def test_the_same_range_is_the_same_messages(stage: Stage) -> None:
    """Also for another reader, after more has come: Spark asks for it after a crash, at once."""
    reader = stage.reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert (start, end) == ({stage.name: "1"}, {stage.name: "11"})
    assert stage.rows(reader, start, end) == list(range(1, 11))
    fill(stage.client, stage.name, 5)
    assert stage.rows(stage.reader(), start, end) == list(range(1, 11))


@pytest.mark.req("D1")
def test_no_data_is_no_batch(stage: Stage) -> None:
    """The offset is the same text: with any other one, Spark would run empty batches for ever."""
    reader = stage.reader(mode="consume", consumer="c")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert json.dumps(reader.latestOffset(json.loads(json.dumps(end)), ALL)) == json.dumps(end)
    assert reader.partitions(end, end) == []
    assert json.dumps(reader.reportLatestOffset()) == json.dumps(end)


@pytest.mark.req("D1")
def test_batches_are_bounded_unless_spark_wants_all(stage: Stage) -> None:
    size = next(stage.client.scan(stage.name, 0, 0, 11)).sizes[0]
    by_count = stage.reader(maxMessagesPerTrigger="3")
    limit = by_count.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    start = by_count.initialOffset()
    assert by_count.latestOffset(start, limit) == {stage.name: "4"}
    assert by_count.latestOffset(start, ALL) == {stage.name: "11"}
    by_size = stage.reader(maxBytesPerTrigger=str(2 * size))
    assert by_size.getDefaultReadLimit() == ReadMaxBytes(2 * size)
    assert by_size.latestOffset(start, by_size.getDefaultReadLimit()) == {stage.name: "3"}
    both = stage.reader(maxMessagesPerTrigger="3", maxBytesPerTrigger=str(2 * size))
    assert both.latestOffset(start, both.getDefaultReadLimit()) == {stage.name: "3"}
    assert stage.reader().getDefaultReadLimit() == ALL


@pytest.mark.req("D1")
def test_available_now_ends_where_it_was_when_it_began(stage: Stage) -> None:
    reader = stage.reader()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(stage.client, stage.name, 5)
    assert reader.latestOffset(start, ALL) == {stage.name: "11"}
    assert reader.reportLatestOffset() == {stage.name: "16"}


@pytest.mark.req("D2")
def test_what_is_before_the_start_of_a_batch_is_removed(stage: Stage) -> None:
    """It is in Spark's commit log by then; nothing else is touched, and nothing before the
    beginning."""
    reader = stage.reader(mode="consume", startingPosition="3", maxMessagesPerTrigger="4")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert stage.rows(reader, start, end) == [3, 4, 5, 6]
    assert stage.left() == list(range(1, 11))
    reader.latestOffset(end, ALL)
    assert stage.left() == [1, 2, 7, 8, 9, 10]
    again = stage.reader(mode="consume")
    again.commit(end)
    again.latestOffset({**end, stage.name: "9"}, ALL)
    assert stage.left() == [1, 2, 9, 10]


@pytest.mark.req("D2")
def test_a_checkpoint_without_its_cursor_removes_nothing_that_it_did_not_read(
    stage: Stage,
) -> None:
    """Somebody has dropped the cursor: it begins where the checkpoint is."""
    reader = stage.reader(mode="consume")
    reader.latestOffset({stage.name: "6"}, ALL)
    assert stage.left() == list(range(1, 11))
    reader.latestOffset({stage.name: "8"}, ALL)
    assert stage.left() == [1, 2, 3, 4, 5, 8, 9, 10]


@pytest.mark.req("D2")
def test_a_tap_reads_all_that_passed_and_tells_what_it_lost(stage: Stage) -> None:
    reader = stage.reader(tap="1m", consumer="tap")
    start = reader.initialOffset()
    with stage.client.receiver(stage.name) as receiver:
        receiver.complete(receiver.receive(10))
    end = reader.latestOffset(start, ALL)
    assert stage.rows(reader, start, end) == list(range(1, 11))
    stage.broker.clock.advance(minutes=2)
    with pytest.raises(DataLossError, match="has let go"):
        reader.latestOffset(start, ALL)
    lenient = stage.reader(tap="1m", consumer="tap", failOnDataLoss="false")
    assert lenient.latestOffset(start, ALL) == end


@pytest.mark.req("D2")
def test_data_that_is_lost_is_told(stage: Stage) -> None:
    """The queue was made anew: the query fails and says so, or goes on if that is wanted."""
    gone = {stage.name: "99"}
    with pytest.raises(DataLossError, match=r"ends at 11, before 99: .* Set failOnDataLoss"):
        stage.reader().latestOffset(gone, ALL)
    lenient = stage.reader(failOnDataLoss="false", mode="consume", consumer="c")
    lenient.commit(gone)
    end = lenient.latestOffset(gone, ALL)
    assert end == {"$consumer": "c", stage.name: "11"}
    assert stage.rows(lenient, gone, end) == list(range(1, 11))
    lenient.latestOffset(end, ALL)
    assert stage.left() == []


@pytest.mark.req("D1")
def test_without_extensions(stage: Stage) -> None:
    """By peeking, as on Azure: the same messages, and what is not there is said."""
    reader = stage.reader(extensions="false", mode="consume", maxMessagesPerTrigger="4")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert stage.rows(reader, start, end) == [1, 2, 3, 4]
    reader.latestOffset(end, ALL)
    assert stage.left() == [5, 6, 7, 8, 9, 10]
    dead = stage.reader(extensions="false", entity=f"{stage.name}/$DeadLetterQueue")
    with pytest.raises(NotAllowedError, match="Read it as a batch"):
        dead.initialOffset()


# --- batch ----------------------------------------------------------------------------------------


def test_a_batch_of_nothing_is_a_list(stage: Stage) -> None:
    """Spark wants a list, and asks for one partition though the list is empty."""
    options = parse_read(stage.options(startingPosition="latest"), streams=False)
    reader = ServiceBusReader(options, NAMES)
    found = reader.partitions()
    assert type(found) is list
    assert found == []
    from pyspark.sql.datasource import InputPartition

    assert list(reader.read(InputPartition(None))) == []


def test_filters_of_the_query_narrow_what_is_read(stage: Stage) -> None:
    """All are handed back: Spark looks again at what comes."""
    reader = PushingReader(parse_read(stage.options(), streams=False), NAMES)
    filters = [GreaterThan(("sequence_number",), 3), LessThanOrEqual(("sequence_number",), 5)]
    assert list(reader.pushFilters([*filters])) == filters
    (span,) = reader.partitions()
    assert isinstance(span, Span)
    assert (span.what.start, span.what.end) == (4, 6)


def test_bounds() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert bounds_of([EqualTo(("sequence_number",), 7)]) == Bounds(7, 7)
    assert bounds_of(
        [GreaterThanOrEqual(("sequence_number",), 3), LessThan(("sequence_number",), 9)]
    ) == Bounds(3, 8)
    assert bounds_of([GreaterThan(("enqueued_time",), noon)]).since_ms == 1_769_860_800_000
    found = bounds_of([In(("entity",), ("a", "b")), EqualTo(("entity",), "b")])
    assert found.entities == frozenset({"b"})
    assert bounds_of([StringContains(("subject",), "x"), EqualTo(("a", "b"), 1)]) == Bounds()
    assert found.narrowed({"a": 0, "b": 0}, {"a": 5, "b": 5}) == (
        {"a": 0, "b": 0},
        {"a": 0, "b": 5},
    )
    third = (3 << 48) + 10
    one = Bounds(first=third, last=third)
    assert one.narrowed({"q#2": 0, "q#3": 0}, {"q#2": 20, "q#3": 20}) == (
        {"q#2": 20, "q#3": 10},
        {"q#2": 20, "q#3": 11},
    )
    dead = "q/$DeadLetterQueue"
    assert Bounds(7, 7).narrowed({dead: 0}, {dead: 9}) == ({dead: 0}, {dead: 9})


def test_the_plain_reader_has_no_filters() -> None:
    """Spark refuses a reader that could push them while its configuration says no."""
    assert ServiceBusReader.pushFilters is DataSourceReader.pushFilters
    assert PushingReader.pushFilters is not DataSourceReader.pushFilters


def test_spark_finds_the_source_and_calls_it_by_name() -> None:
    """By the module's name; and it names the parameters of the writers when it commits."""
    assert pyspark_servicebus.DefaultSource is ServiceBusSource
    assert ServiceBusSource.name() == "servicebus"
    for method in ("writer", "streamWriter"):
        ours = inspect.signature(getattr(ServiceBusSource, method)).parameters
        assert list(ours) == list(inspect.signature(getattr(DataSource, method)).parameters)


# --- writing --------------------------------------------------------------------------------------


def batch(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": [f"row {at}" for at in range(count)]})


@pytest.mark.req("D2")
def test_abort_undoes_nothing(stage: Stage) -> None:
    """Spark calls it with the same messages after a commit that may have been heard of."""
    writer = ServiceBusWriter(parse_write(stage.options()))
    done = writer.write(iter([batch(3), batch(2)]))
    assert done == Written(5, 0)
    assert isinstance(done, WriterCommitMessage)
    assert pickle.loads(pickle.dumps(done)) == done  # noqa: S301
    writer.abort([done, None])
    assert len(stage.left()) == 15


@pytest.mark.req("D2")
def test_every_try_of_a_task_has_the_same_ids(broker: LocalBroker, stage: Stage) -> None:
    """And another job has others."""
    broker.create_queue(f"{stage.name}d", RequiresDuplicateDetection=True)
    options = parse_write(stage.options(entity=f"{stage.name}d"))
    for _ in range(2):
        writer = ServiceBusWriter(options)
        for _ in range(2):
            copy = pickle.loads(pickle.dumps(writer))  # noqa: S301
            copy.write(iter([batch(3)]))
    assert len(list(stage.client.browse_all(f"{stage.name}d"))) == 6


@pytest.mark.req("D8")
def test_one_bad_row_of_a_batch_does_not_take_the_others_along(stage: Stage) -> None:
    """The broker refuses the transfer; each row is then tried by itself."""
    stage.broker.create_queue(f"{stage.name}s", RequiresSession=True)
    with_session = OutgoingMessage(b"x", session_id="s")
    options = parse_write(stage.options(entity=f"{stage.name}s"))
    from tandembus.client.messages import EncodedMessage

    good = EncodedMessage(with_session.encoded())
    bad = EncodedMessage(OutgoingMessage(b"y").encoded())
    with Sending(options) as sending:
        found = sending.send([(0, good), (1, bad), (2, good), (3, bad)])
    assert sorted(each.row for each in found) == [1, 3]
    assert len(list(stage.client.browse_all(f"{stage.name}s"))) == 2


def test_what_is_no_rows_fault_fails_the_task(stage: Stage) -> None:
    """A queue that is not there: no row is put aside for that."""
    writer = ServiceBusWriter(parse_write(stage.options(entity="nothing", quarantine="/nowhere")))
    with pytest.raises(EntityNotFoundError):
        writer.write(iter([batch(3)]))


@pytest.mark.req("D2")
def test_rows_are_sent_once_through_a_broker_that_is_killed() -> None:
    """Between two batches of a task, and whatever was under way."""
    with BrokerProcess.start(arguments=["--port", str(free_port())]) as process:
        process.create_queue("q", RequiresDuplicateDetection=True)
        given = {"connectionString": process.connection_string, "entity": "q"}
        writer = ServiceBusWriter(parse_write({**given, "retryTimeout": "60s"}))

        def batches() -> Iterator[pa.RecordBatch]:
            yield batch(500)
            process.kill()
            process.restart()
            yield batch(500)

        assert writer.write(batches()) == Written(1_000, 0)
        with Client(process.connection_string) as client:
            assert len(list(client.browse_all("q"))) == 1_000
