"""The data source `servicebus`: queues and topics as tables and streams.

Reading a queue, a subscription or a dead-letter queue:

    messages = (spark.read.format("servicebus")
                .option("connectionString", "Endpoint=sb://…").option("entity", "orders").load())

As a stream, to Parquet, exactly once:

    (spark.readStream.format("servicebus").option("connectionString", …).option("entity", "orders")
     .load().writeStream.format("parquet").option("path", …).option("checkpointLocation", …)
     .trigger(availableNow=True).start())

Writing to a queue or a topic; each column that a message has is taken, see the table of columns:

    (orders.selectExpr("id AS message_id", "to_json(struct(*)) AS body")
     .write.format("servicebus").option("connectionString", …).option("entity", "orders")
     .mode("append").save())

Nothing has to be registered: Spark finds `pyspark_servicebus` by its name. The options and columns
are in `ServiceBusSource`; what runs where, and what holds through a crash, is in docs/spark.md.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from tandembus.errors import ArgumentError
from tandembus.spark.columns import BY_NAME
from tandembus.spark.options import parse_read, parse_write
from tandembus.spark.reader import PushingReader, ServiceBusReader
from tandembus.spark.rows import check_columns
from tandembus.spark.stream import ServiceBusStreamReader
from tandembus.spark.writer import ServiceBusStreamWriter, ServiceBusWriter


class ServiceBusSource(DataSource):
    """`spark.read.format("servicebus")`, `readStream`, `write` and `writeStream`.

    | option | for | default | what |
    |---|---|---|---|
    | `connectionString` | read, stream, write | `$SERVICEBUS_CONNECTION_STRING` | Where the namespace is. |
    | `entity` | read, stream, write | `EntityPath` | A queue, a subscription (`topic/Subscriptions/name`) or a dead-letter queue (`queue/$DeadLetterQueue`); to read, several with commas between; to write, a queue or a topic. |
    | `caFile` | read, stream, write | `the system's` | A PEM file to trust instead. |
    | `extensions` | read, stream | `auto` | `false`: only what Azure has, too; `auto`: ask. |
    | `retryTimeout` | read, stream, write | `2m` | How long a broker that is away, or busy, is waited for before a task fails. |
    | `columns` | read, stream | `all` | Columns to read, with commas between: Spark prunes none. |
    | `body` | read, stream | `true` | `false`: leave the bodies out; they do not travel. |
    | `filter` | read, stream |  | A SQL filter as of a subscription's rule; the broker leaves out what it does not select. |
    | `startingPosition` | read, stream | `earliest` | `earliest`, `latest`, a sequence number, or JSON `{"entity": number}`; the first to be read. |
    | `startingTime` | read, stream |  | From the first message enqueued then or later: `2026-01-31T12:00:00Z`, or milliseconds since 1970. Goes before startingPosition. |
    | `endingPosition` | read | `latest` | As startingPosition; the first not to be read. |
    | `endingTime` | read |  | As startingTime; what was enqueued before it is read. |
    | `partitions` | read, stream | `auto` | Tasks to read with; `auto`: one for each bytesPerPartition. |
    | `bytesPerPartition` | read, stream | `16m` | How much one task reads when partitions is `auto`. |
    | `pushFilters` | read | `false` | Whether filters of the query on sequence_number, enqueued_time and entity decide what is read at all; needs `spark.sql.python.filterPushdown.enabled`. |
    | `mode` | stream | `browse` | `browse` removes nothing; `consume` removes what a committed batch has read. |
    | `consumer` | stream | `spark` | The name of the cursor in the broker: one for each query. |
    | `tap` | stream |  | How long (`1h`) what others complete is held back for this consumer; needs Manage. With mode `browse` only. |
    | `maxMessagesPerTrigger` | stream |  | At most so many messages in a batch. |
    | `maxBytesPerTrigger` | stream |  | At most so many bytes in a batch, but one message. |
    | `failOnDataLoss` | stream | `true` | Whether the query fails when what it was to read is not there any more: the entity was made anew, or a tap let go. |
    | `messageIdPrefix` | write | `of the job` | What the message ids of rows without one begin with; the same in two jobs makes them one. |
    | `quarantine` | write |  | A folder for rows that cannot be sent, as Parquet with the reason. Without it such a row fails the job. |
    | `maxInFlight` | write | `2000` | Messages of one task that wait for their outcome. |

    Names of options are taken in any case; an option that is not in the table is refused.

    | column | type | can be written | what |
    |---|---|---|---|
    | `entity` | string |  | The entity that it was read from. |
    | `sequence_number` | bigint |  | The broker's number. |
    | `enqueued_time` | timestamp |  | When it arrived. |
    | `message_id` | string | yes | The sender's id; what duplicates are known by. |
    | `body` | binary | yes | The bytes of the body; to write, text is taken as well. |
    | `body_type` | string | yes | null: bytes; `string`: an AMQP string; `amqp`: other AMQP sections, as they are encoded. |
    | `subject` | string | yes | The label. |
    | `content_type` | string | yes | The MIME type of the body. |
    | `correlation_id` | string | yes | The id of the message that this one answers. |
    | `session_id` | string | yes | The session, which has an order. |
    | `partition_key` | string | yes | What decides the partition. |
    | `to` | string | yes | The address, for applications. |
    | `reply_to` | string | yes | Where an answer is to go. |
    | `reply_to_session_id` | string | yes | And in which session. |
    | `time_to_live_ms` | bigint | yes | After this it expires. |
    | `scheduled_enqueue_time` | timestamp | yes | To write: when it is to be enqueued. |
    | `priority` | int | yes | Of the AMQP header, 0 to 9. |
    | `delivery_count` | int |  | Deliveries that failed. |
    | `state` | string |  | `active` or `deferred`. |
    | `size` | int |  | Bytes of the whole message as it is stored. |
    | `dead_letter_reason` | string |  | Why it is dead. |
    | `dead_letter_description` | string |  | And what was said to it. |
    | `dead_letter_source` | string |  | The entity in which it died. |
    | `properties` | map<string,string> | yes | Application properties, as text. |
    | `property_types` | map<string,string> | yes | The types of those that are not text. |

    To write, `body` must be there; other columns may be left out. Columns that only a broker can
    fill may be there and are left out, so that what was read can be written as it is. `properties`
    may also be a map or a struct of numbers, booleans, times or binary.
    """  # noqa: E501

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> str:
        return ddl(parse_read(self.options, streams=None).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_read(self.options, streams=False)
        kind = PushingReader if options.pushes_filters else ServiceBusReader
        return kind(options, _names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ServiceBusStreamReader(parse_read(self.options, streams=True), _names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = parse_write(self.options)
        if overwrite:
            raise ArgumentError("A queue or topic is not overwritten: use mode('append').")
        check_columns(schema.names)
        return ServiceBusWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        # Spark names the parameters when it commits: they have to be called so.
        options = parse_write(self.options)
        if overwrite:
            raise ArgumentError("A stream is appended: output mode 'complete' cannot be sent.")
        check_columns(schema.names)
        return ServiceBusStreamWriter(options)


def ddl(names: tuple[str, ...]) -> str:
    """The columns as Spark describes them; one of them is called `to`."""
    return ", ".join(f"`{name}` {BY_NAME[name].type}" for name in names)


def _names(schema: StructType) -> tuple[str, ...]:
    """The columns that are read; a schema that the user gave chooses among them."""
    wanted = tuple(schema.names)
    for field in schema.fields:
        column = BY_NAME.get(field.name)
        if column is None:
            raise ArgumentError(f"There is no column '{field.name}' to read.")
        if field.dataType.simpleString() != column.type:
            raise ArgumentError(
                f"The column '{field.name}' is {column.type}, not {field.dataType.simpleString()}."
            )
    return wanted
