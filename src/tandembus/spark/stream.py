"""Stream read: micro-batches of ranges, which can be read again.

Spark makes the reader once in a driver process of its own for each run of a query, and asks it for
offsets and spans; tasks get a pickled copy.

The rule that makes `consume` exact: Spark asks for `latestOffset(start)` only when every batch
before `start` is in its commit log (a batch that was planned and not committed is run again without
asking). So there, and in `commit`, what lies before is removed. That covers the last batch of a
`Trigger.AvailableNow`, an idle query, and a driver that died in between: its next start asks again.
Only a query that is stopped for good leaves its last batch; `listener` removes that, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tandembus.errors import NotAllowedError, TandemError
from tandembus.spark.brokers import Broker, TandemBroker, connect
from tandembus.spark.offsets import Offset, admit, decode, encode, lost
from tandembus.spark.options import ReadOptions
from tandembus.spark.planning import starting
from tandembus.spark.reader import read_span, tasks

log = logging.getLogger("tandembus.spark")


class DataLossError(TandemError):
    """What a query was to read is not there any more, and `failOnDataLoss` is true."""


class ServiceBusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._kept: Broker | None = None
        self._target: Offset | None = None
        self._committed: Offset | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """For a task: without the driver's connection."""
        return type(self), (self._options, self._names)

    @property
    def _broker(self) -> Broker:
        if self._kept is None:
            self._kept = connect(self._options.target, self._options.entities[0])
        return self._kept

    def _encoded(self, offset: Offset) -> dict[str, str]:
        consumer = self._options.consumer if self._options.has_cursor else None
        return encode(offset, consumer)

    # --- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, str]:
        options = self._options
        if not isinstance(self._broker, TandemBroker):
            _check_order(options.entities)
        start = starting(options, self._broker)
        if options.has_cursor:
            self._broker.begin(options.consumer, start, options.tap_ms)
        return self._encoded(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._tail()

    def reportLatestOffset(self) -> dict[str, str]:
        """For the progress: what there is, so that the lag can be told."""
        return self._encoded(self._tail())

    def _tail(self) -> Offset:
        extents = self._broker.survey(self._options.entities)
        return {key: extent.tail for key, extent in extents.items()}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        extents = self._broker.survey(self._options.entities)
        tail = {key: extent.tail for key, extent in extents.items()}
        floor = {key: extent.floor for key, extent in extents.items()}
        begin = self._checked(decode(start), tail, floor)
        self._commit(begin)
        if self._target is not None:
            tail = {key: max(begin[key], min(it, tail[key])) for key, it in self._target.items()}
        is_bounded = not isinstance(limit, ReadAllAvailable)
        end = admit(
            begin,
            tail,
            self._options.max_messages if is_bounded else None,
            self._options.max_bytes if is_bounded else None,
            self._broker.advance,
        )
        return self._encoded(end)

    def _checked(self, start: Offset, tail: Offset, floor: Offset) -> Offset:
        """The start, if it is still there; else an error, or what is left."""
        problems = lost(start, tail, floor)
        if not problems:
            return {key: start.get(key, 0) for key in tail}
        if self._options.fails_on_data_loss:
            raise DataLossError(
                f"{' '.join(problems)} Set failOnDataLoss to false to go on with what is there."
            )
        log.warning("going on with what is there: %s", " ".join(problems))
        return {key: _begin(start.get(key, 0), tail[key]) for key in tail}

    # --- batches ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        stop = decode(end)
        begin = {key: _begin(position, stop.get(key, 0)) for key, position in decode(start).items()}
        return tasks(self._options, self._broker, begin, stop)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_span(self._options, self._names, partition)

    def commit(self, end: dict[str, str]) -> None:
        tail = self._tail() if self._options.has_cursor else {}
        offset = decode(end)
        self._commit({key: it for key, it in offset.items() if it <= tail.get(key, 0)})

    def _commit(self, offset: Offset) -> None:
        """All before it is in Spark's commit log. Done again, it does nothing."""
        options = self._options
        if options.has_cursor and offset != self._committed:
            if self._committed is None:
                # A checkpoint without its cursor, which somebody has dropped: it begins here.
                self._broker.begin(options.consumer, offset, options.tap_ms)
            self._broker.commit(options.consumer, offset, removes=options.consumes)
            self._committed = offset

    def stop(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def _begin(start: int, end: int) -> int:
    """Where a range begins. One that ends before it began is of an entity that was made anew: all
    that is there has come since."""
    return start if start <= end else 0


def _check_order(entities: tuple[str, ...]) -> None:
    """Dead letters keep their numbers and die in any order: one that dies later may have a number
    that was passed already."""
    for entity in entities:
        if entity.lower().endswith("/$deadletterqueue"):
            raise NotAllowedError(
                f"'{entity}' cannot be read as a stream without Tandem's extensions: its sequence "
                "numbers do not come in order. Read it as a batch."
            )
