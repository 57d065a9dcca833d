"""The options of the data source, read from text; unknown ones are refused by name.

Here lives what can be set and what it means, once: `TABLE` is what `parse_read` and `parse_write`
go by, and what the tables in the documentation are compared with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from tandembus.client.addresses import ConnectionString
from tandembus.errors import ArgumentError, FilterError
from tandembus.limits import KIB, MIB
from tandembus.model import Millis
from tandembus.spark.columns import BODIES, NAMES

ENVIRONMENT: Final = "SERVICEBUS_CONNECTION_STRING"
"""Where the connection string is looked for when no option has it: it is a secret."""


class Option(NamedTuple):
    name: str
    use: str
    """`read`, `stream`, `write`, or several of them."""
    default: str
    what: str


TABLE: Final = (
    Option(
        "connectionString", "read stream write", f"${ENVIRONMENT}",
        "Where the namespace is.",
    ),
    Option(
        "entity", "read stream write", "EntityPath",
        "A queue, a subscription (`topic/Subscriptions/name`) or a dead-letter queue "
        "(`queue/$DeadLetterQueue`); to read, several with commas between; to write, a queue "
        "or a topic.",
    ),
    Option(
        "caFile", "read stream write", "the system's",
        "A PEM file to trust instead.",
    ),
    Option(
        "extensions", "read stream", "auto",
        "`false`: only what Azure has, too; `auto`: ask.",
    ),
    Option(
        "retryTimeout", "read stream write", "2m",
        "How long a broker that is away, or busy, is waited for before a task fails.",
    ),
    Option(
        "columns", "read stream", "all",
        "Columns to read, with commas between: Spark prunes none.",
    ),
    Option(
        "body", "read stream", "true",
        "`false`: leave the bodies out; they do not travel.",
    ),
    Option(
        "filter", "read stream", "",
        "A SQL filter as of a subscription's rule; the broker leaves out what it does not "
        "select.",
    ),
    Option(
        "startingPosition", "read stream", "earliest",
        '`earliest`, `latest`, a sequence number, or JSON `{"entity": number}`; the first to '
        "be read.",
    ),
    Option(
        "startingTime", "read stream", "",
        "From the first message enqueued then or later: `2026-01-31T12:00:00Z`, or "
        "milliseconds since 1970. Goes before startingPosition.",
    ),
    Option(
        "endingPosition", "read", "latest",
        "As startingPosition; the first not to be read.",
    ),
    Option(
        "endingTime", "read", "",
        "As startingTime; what was enqueued before it is read.",
    ),
    Option(
        "partitions", "read stream", "auto",
        "Tasks to read with; `auto`: one for each bytesPerPartition.",
    ),
    Option(
        "bytesPerPartition", "read stream", "16m",
        "How much one task reads when partitions is `auto`.",
    ),
    Option(
        "pushFilters", "read", "false",
        "Whether filters of the query on sequence_number, enqueued_time and entity decide "
        "what is read at all; needs `spark.sql.python.filterPushdown.enabled`.",
    ),
    Option(
        "mode", "stream", "browse",
        "`browse` removes nothing; `consume` removes what a committed batch has read.",
    ),
    Option(
        "consumer", "stream", "spark",
        "The name of the cursor in the broker: one for each query.",
    ),
    Option(
        "tap", "stream", "",
        "How long (`1h`) what others complete is held back for this consumer; needs Manage. "
        "With mode `browse` only.",
    ),
    Option(
        "maxMessagesPerTrigger", "stream", "",
        "At most so many messages in a batch.",
    ),
    Option(
        "maxBytesPerTrigger", "stream", "",
        "At most so many bytes in a batch, but one message.",
    ),
    Option(
        "failOnDataLoss", "stream", "true",
        "Whether the query fails when what it was to read is not there any more: the entity "
        "was made anew, or a tap let go.",
    ),
    Option(
        "messageIdPrefix", "write", "of the job",
        "What the message ids of rows without one begin with; the same in two jobs makes them "
        "one.",
    ),
    Option(
        "quarantine", "write", "",
        "A folder for rows that cannot be sent, as Parquet with the reason. Without it such a "
        "row fails the job.",
    ),
    Option(
        "maxInFlight", "write", "2000",
        "Messages of one task that wait for their outcome.",
    ),
)  # fmt: skip

_BY_KEY: Final = {option.name.lower(): option for option in TABLE}
_IGNORED: Final = {"path", "checkpointlocation", "queryname"}
"""Spark's own: it hands them to everybody."""

Positions: TypeAlias = str | int | Mapping[str, int]
"""`earliest`, `latest`, one number for all, or one for each key of an offset."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to, for driver and executors alike."""

    connection_string: str
    ca_file: str | None
    extensions: bool | None
    """None: ask the broker."""
    retry_ms: Millis

    def __repr__(self) -> str:  # it holds a key
        return f"Target({ConnectionString.parse(self.connection_string).host!r})"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    target: Target
    entities: tuple[str, ...]
    columns: tuple[str, ...]
    sql_filter: str | None
    starting: Positions
    starting_ms: Millis | None
    ending: Positions
    ending_ms: Millis | None
    partitions: int | None
    bytes_per_partition: int
    consumes: bool
    consumer: str
    tap_ms: Millis | None
    max_messages: int | None
    max_bytes: int | None
    fails_on_data_loss: bool
    pushes_filters: bool

    @property
    def has_cursor(self) -> bool:
        """Whether the broker has to know how far the query has come."""
        return self.consumes or self.tap_ms is not None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    target: Target
    entity: str
    prefix: str | None
    quarantine: str | None
    max_in_flight: int


def parse_read(options: Mapping[str, str], *, streams: bool | None) -> ReadOptions:
    """For a stream, a batch, or (None) whichever it will be. Raises ArgumentError, which names the
    option."""
    uses = {True: ("stream",), False: ("read",), None: ("read", "stream")}
    said = _Said(options, uses[streams])
    mode = said.choice("mode", ("browse", "consume"))
    columns = said.names("columns") or NAMES
    unknown = [name for name in columns if name not in NAMES]
    if unknown:
        raise ArgumentError(f"There is no column '{unknown[0]}'; there are: {', '.join(NAMES)}.")
    if not said.flag("body"):
        columns = tuple(name for name in columns if name not in BODIES)
    tap_ms = said.duration_ms("tap")
    if tap_ms is not None and mode == "consume":
        raise ArgumentError("'tap' is for mode 'browse': what is consumed needs no holding back.")
    partitions = said.text("partitions")
    sql_filter = said.text("filter") or None
    if sql_filter is not None:
        _check_filter(sql_filter)
    return ReadOptions(
        target=said.target(),
        entities=said.entities(),
        columns=columns,
        sql_filter=sql_filter,
        starting=said.positions("startingPosition"),
        starting_ms=said.time_ms("startingTime"),
        ending=said.positions("endingPosition"),
        ending_ms=said.time_ms("endingTime"),
        partitions=None if partitions in ("", "auto") else said.number("partitions"),
        bytes_per_partition=said.size("bytesPerPartition") or MIB,
        consumes=mode == "consume",
        consumer=said.text("consumer"),
        tap_ms=tap_ms,
        max_messages=said.optional_number("maxMessagesPerTrigger"),
        max_bytes=said.size("maxBytesPerTrigger"),
        fails_on_data_loss=said.flag("failOnDataLoss"),
        pushes_filters=said.flag("pushFilters"),
    )


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    said = _Said(options, ("write",))
    entities = said.entities()
    if len(entities) != 1:
        raise ArgumentError("'entity' names one queue or topic to write to.")
    prefix = said.text("messageIdPrefix")
    return WriteOptions(
        target=said.target(),
        entity=entities[0],
        prefix=None if prefix == _BY_KEY["messageidprefix"].default else prefix,
        quarantine=said.text("quarantine") or None,
        max_in_flight=said.number("maxInFlight"),
    )


def _check_filter(text: str) -> None:
    from tandembus.core.sql import compile_filter

    try:
        compile_filter(text)
    except FilterError as error:
        raise ArgumentError(f"'filter' is not a SQL filter: {error}") from None


class _Said:
    """Options as they were given, any case; each has its default."""

    def __init__(self, options: Mapping[str, str], uses: Sequence[str]) -> None:
        self._given = {name.lower(): str(value) for name, value in options.items()}
        for key in self._given:
            option = _BY_KEY.get(key)
            if option is None and key not in _IGNORED:
                known = ", ".join(
                    each.name for each in TABLE if not set(uses).isdisjoint(each.use.split())
                )
                raise ArgumentError(
                    f"'{key}' is not an option of the servicebus source. There are: {known}."
                )
            if option is not None and set(uses).isdisjoint(option.use.split()):
                where = " and ".join(option.use.split())
                raise ArgumentError(f"'{option.name}' is an option for: {where}.")

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), _BY_KEY[name.lower()].default).strip()

    def target(self) -> Target:
        text = self._given.get("connectionstring") or os.environ.get(ENVIRONMENT)
        if not text:
            raise ArgumentError(
                f"'connectionString' is missing, and {ENVIRONMENT} is not set in the driver."
            )
        ConnectionString.parse(text)
        extensions = self.choice("extensions", ("auto", "true", "false"))
        return Target(
            text,
            self._given.get("cafile"),
            None if extensions == "auto" else extensions == "true",
            self.duration_ms("retryTimeout") or 0,
        )

    def entities(self) -> tuple[str, ...]:
        given = self._given.get("entity")
        if given is None:
            text = self._given.get("connectionstring") or os.environ.get(ENVIRONMENT) or ""
            given = (ConnectionString.parse(text).entity_path if text else None) or ""
        found = tuple(dict.fromkeys(each.strip().strip("/") for each in given.split(",")))
        if not all(found):
            raise ArgumentError("'entity' is missing: the queue or subscription that is meant.")
        return found

    def names(self, name: str) -> tuple[str, ...]:
        given = self._given.get(name.lower(), "")
        return tuple(each.strip() for each in given.split(",") if each.strip())

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self.text(name).lower()
        if value not in allowed:
            raise ArgumentError(f"'{name}' is one of {', '.join(allowed)}; not '{value}'.")
        return value

    def flag(self, name: str) -> bool:
        return self.choice(name, ("true", "false")) == "true"

    def number(self, name: str) -> int:
        value = self.text(name)
        if not value.isdecimal() or int(value) < 1:
            raise ArgumentError(f"'{name}' is a number above 0; not '{value}'.")
        return int(value)

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if self.text(name) else None

    def size(self, name: str) -> int | None:
        value = self.text(name).lower()
        if not value:
            return None
        found = re.fullmatch(r"(\d+)\s*([kmg]?)b?", value)
        if found is None or int(found[1]) < 1:
            raise ArgumentError(f"'{name}' is a number of bytes (500k, 16m, 1g); not '{value}'.")
        return int(found[1]) * {"": 1, "k": KIB, "m": MIB, "g": KIB * MIB}[found[2]]

    def duration_ms(self, name: str) -> Millis | None:
        value = self.text(name).lower()
        if not value:
            return None
        found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", value)
        if found is None:
            raise ArgumentError(f"'{name}' is a length of time (90s, 10m, 2h, 1d); not '{value}'.")
        units = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
        return int(found[1]) * units[found[2]]

    def time_ms(self, name: str) -> Millis | None:
        value = self.text(name)
        if not value:
            return None
        if value.isdecimal():
            return int(value)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise ArgumentError(
                f"'{name}' is a time (2026-01-31T12:00:00Z) or milliseconds; not '{value}'."
            ) from None
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)

    def positions(self, name: str) -> Positions:
        value = self.text(name)
        if value.lower() in ("earliest", "latest"):
            return value.lower()
        if value.isdecimal():
            return int(value)
        try:
            found = json.loads(value)
            return {str(key): int(number) for key, number in found.items()}
        except (ValueError, AttributeError, TypeError):
            raise ArgumentError(
                f"'{name}' is earliest, latest, a number, or JSON of entities and numbers; "
                f"not '{value}'."
            ) from None
