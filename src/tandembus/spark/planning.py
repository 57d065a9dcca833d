"""From options and a broker to ranges and tasks; what batch and stream readers share. No Spark.

A *span* is what one task reads: a range of positions of one key. The rule: the same offsets give
the same messages, though not always the same spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tandembus.client.positions import Extent
from tandembus.errors import ArgumentError
from tandembus.model import Millis
from tandembus.spark.brokers import Broker, connect
from tandembus.spark.offsets import Offset, entity_of
from tandembus.spark.options import Positions, ReadOptions
from tandembus.spark.schema import arrow_schema, fields_for, record_batch


@dataclass(frozen=True, slots=True)
class Range:
    key: str
    start: int
    end: int


def starting(options: ReadOptions, broker: Broker) -> Offset:
    """Where a read begins that has no checkpoint."""
    extents = broker.survey(options.entities, options.starting_ms)
    return resolve(extents, options.starting, options.starting_ms)


def ending(options: ReadOptions, broker: Broker) -> Offset:
    """Where a batch ends; never behind the tail."""
    extents = broker.survey(options.entities, options.ending_ms)
    found = resolve(extents, options.ending, options.ending_ms)
    return {key: min(found[key], extents[key].tail) for key in found}


def resolve(extents: Mapping[str, Extent], positions: Positions, since_ms: Millis | None) -> Offset:
    """What the user said as an offset."""
    if since_ms is not None:
        return {key: extent.since for key, extent in extents.items()}
    match positions:
        case "earliest":
            return {key: extent.first for key, extent in extents.items()}
        case "latest":
            return {key: extent.tail for key, extent in extents.items()}
        case int():
            return dict.fromkeys(extents, positions)
        case str():
            raise ArgumentError(f"'{positions}' is no position.")
    unknown = [key for key in positions if key not in extents]
    if unknown:
        known = ", ".join(extents)
        raise ArgumentError(f"There is no '{unknown[0]}' to begin or end in; there are: {known}.")
    return {key: positions.get(key, extent.first) for key, extent in extents.items()}


def spans(options: ReadOptions, broker: Broker, start: Offset, end: Offset) -> list[Range]:
    """The ranges, cut so that each task has about the same to do."""
    sizes: dict[str, int] = {}
    for key in sorted(end):
        if start.get(key, 0) < end[key]:
            reach = broker.advance(key, start.get(key, 0), end[key], None, None)
            if reach.count:
                sizes[key] = reach.size
    total = sum(sizes.values())
    found: list[Range] = []
    for key, size in sizes.items():
        if options.partitions is None:
            parts = -(-size // options.bytes_per_partition)
        elif total:
            parts = round(options.partitions * size / total)
        else:  # a broker that does not count bytes
            parts = options.partitions // len(sizes)
        begin = start.get(key, 0)
        ends = [end[key]]
        if parts > 1:
            ends = broker.split(key, begin, end[key], parts)
        for stop in ends:
            found.append(Range(key, begin, stop))
            begin = stop
    return found


def read_range(options: ReadOptions, names: tuple[str, ...], what: Range) -> Iterator[Any]:
    """In a task: the messages of a range as Arrow batches."""
    entity, _ = entity_of(what.key)
    schema = arrow_schema(names)
    broker = connect(options.target, entity)
    try:
        for page in broker.pages(
            what.key, what.start, what.end, fields_for(names), options.sql_filter
        ):
            if len(page):
                yield record_batch(page, entity, names, schema)
    finally:
        broker.close()
