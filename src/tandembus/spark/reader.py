"""Batch read: the messages that are there, once.

The planner makes the reader in the driver and asks it for spans; each task gets a pickled copy and
reads one. Nothing is kept between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from tandembus.model import NEVER, Millis
from tandembus.spark.brokers import Broker, TandemBroker, connect
from tandembus.spark.offsets import Offset, entity_of
from tandembus.spark.options import ReadOptions
from tandembus.spark.planning import Range, ending, read_range, spans, starting

_COUNT_BITS = 48


@dataclass
class Span(InputPartition):
    """What one task reads."""

    what: Range
    extensions: bool
    """What kind of broker it is: asked once, in the driver."""


def tasks(options: ReadOptions, broker: Broker, start: Offset, end: Offset) -> list[InputPartition]:
    extensions = isinstance(broker, TandemBroker)
    return [Span(each, extensions) for each in spans(options, broker, start, end)]


def read_span(
    options: ReadOptions, names: tuple[str, ...], partition: InputPartition
) -> Iterator[Any]:
    if not isinstance(partition, Span):
        return iter(())  # Spark asks for one though there is none
    target = replace(options.target, extensions=partition.extensions)
    return read_range(replace(options, target=target), names, partition.what)


class ServiceBusReader(DataSourceReader):
    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        broker = connect(self._options.target, self._options.entities[0])
        try:
            options, bounds = self._options, self._bounds
            dead = any(_is_dead(entity) for entity in options.entities)
            if bounds.since_ms is not None and options.starting_ms is None and not dead:
                options = replace(options, starting_ms=bounds.since_ms)
            begin, end = starting(options, broker), ending(options, broker)
            begin, end = bounds.narrowed(begin, end)
            return tasks(options, broker, begin, end)
        finally:
            broker.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_span(self._options, self._names, partition)


class PushingReader(ServiceBusReader):
    """With filters of the query taken into account. Of its own, because Spark refuses a reader that
    could do that while `spark.sql.python.filterPushdown.enabled` is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters)
        return filters  # Spark looks again: what is narrowed here is only what need not travel


@dataclass(slots=True)
class Bounds:
    """What filters leave of the messages."""

    first: int = 0
    last: int = NEVER
    """Sequence numbers, both inclusive."""
    since_ms: Millis | None = None
    entities: frozenset[str] | None = None

    def narrowed(self, start: Offset, end: Offset) -> tuple[Offset, Offset]:
        begin, stop = dict(start), dict(end)
        for key in end:
            entity, partition = entity_of(key)
            if self.entities is not None and entity not in self.entities:
                stop[key] = begin[key]
                continue
            # A dead-letter queue counts its arrivals: its positions are no sequence numbers.
            if _is_dead(entity):
                continue
            high = partition << _COUNT_BITS
            begin[key] = min(max(begin[key], self.first - high), stop[key])
            stop[key] = min(stop[key], max(self.last - high + 1, begin[key]))
        return begin, stop


def _is_dead(entity: str) -> bool:
    return entity.lower().endswith("/$deadletterqueue")


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    bounds = Bounds()
    for each in filters:
        match each:
            case EqualTo(("entity",), str(value)):
                bounds.entities = _both(bounds.entities, [value])
            case In(("entity",), values):
                bounds.entities = _both(bounds.entities, [str(value) for value in values])
            case EqualTo(("sequence_number",), int(value)):
                bounds.first, bounds.last = max(bounds.first, value), min(bounds.last, value)
            case GreaterThan(("sequence_number",), int(value)):
                bounds.first = max(bounds.first, value + 1)
            case GreaterThanOrEqual(("sequence_number",), int(value)):
                bounds.first = max(bounds.first, value)
            case LessThan(("sequence_number",), int(value)):
                bounds.last = min(bounds.last, value - 1)
            case LessThanOrEqual(("sequence_number",), int(value)):
                bounds.last = min(bounds.last, value)
            case GreaterThan(("enqueued_time",), datetime() as value) | GreaterThanOrEqual(
                ("enqueued_time",), datetime() as value
            ):
                bounds.since_ms = max(bounds.since_ms or 0, _millis(value))
            case _:
                pass
    bounds.first, bounds.last = max(0, bounds.first), max(-1, bounds.last)
    return bounds


def _both(one: frozenset[str] | None, other: list[str]) -> frozenset[str]:
    return frozenset(other) if one is None else one.intersection(other)


def _millis(time: datetime) -> Millis:
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
