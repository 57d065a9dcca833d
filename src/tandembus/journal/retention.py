"""Old hours go, and the journal can still be audited: what was there at the new beginning is told
once more.

The messages that came in the removed hours and did not end in them become `carried_over` rows, and
the last number of each entity a `began` row, all in one file of no length at the border. That file
is there before the first old one goes, and a reader takes nothing before the last `began` of a
stretch, so a kill in between does no harm: the next time finds the same work to do.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandembus.journal.arrow import SCHEMA
from tandembus.journal.files import Files, Span, hour_of
from tandembus.journal.schema import ARRIVALS, ENDS, plain_schema
from tandembus.journal.state import sync

_KEYS: Final = ["entity_id", "sequence_number"]
_PARTITION_SHIFT: Final = 48
_PLAIN: Final = plain_schema()


def retain(files: Files, hours: int, time_ms: int) -> int:
    """Keep the hours that are not older than this before `time_ms`. Returns how many files went."""
    border = hour_of(time_ms - hours * 3_600_000)
    old = [span for span in files.spans[:-1] if span.hour < border]
    if not old:
        return 0
    first = files.spans[len(old)]
    same = [span for span in old if span.stretch == first.stretch]
    if same:
        files.spans.insert(len(old), _carry_over(same, first))
    for span in old:
        files.spans.remove(span)
        span.path.unlink()
        if not any(span.path.parent.iterdir()):
            span.path.parent.rmdir()
    return len(old)


def _carry_over(old: list[Span], first: Span) -> Span:
    """A file that says what was there before `first`."""
    there, anchors = _fold(old)
    with pq.ParquetFile(first.path) as file:
        time = file.read_row_group(0, columns=["time"])["time"][0]
    beginnings = [(None, None), *anchors]
    table = pa.concat_tables([_beginnings(beginnings), there])
    count = table.num_rows
    kinds = ["began"] * len(beginnings) + ["carried_over"] * there.num_rows
    for name, values in (
        ("kind", pa.array(kinds)),
        ("delta", pa.array([int(kind == "carried_over") for kind in kinds], pa.int8())),
        ("place", pa.array(np.full(count, first.begin - 1))),
        ("row", pa.array(np.arange(count, dtype="i4"))),
        ("stretch", pa.array(np.full(count, first.stretch, "i4"))),
        ("time", pa.repeat(time, count)),
        ("operations", pa.array(np.ones(count, "i8"))),
    ):
        table = table.set_column(_PLAIN.get_field_index(name), name, values)
    path = first.path.with_name(f"{first.stretch}-{first.begin:016x}-{first.begin:016x}.parquet")
    unfinished = path.with_name(f".{path.name}.new")
    pq.write_table(table.cast(SCHEMA), unfinished, compression="zstd", compression_level=1)
    sync(unfinished)
    unfinished.rename(path)
    sync(path.parent)
    return Span(first.stretch, first.begin, first.begin, path)


def _beginnings(anchors: list[tuple[int | None, int | None]]) -> Any:
    columns = {
        "entity_id": pa.array([entity for entity, _ in anchors], pa.int64()),
        "sequence_number": pa.array([number for _, number in anchors], pa.int64()),
    }
    nulls = [columns.get(f.name, pa.nulls(len(anchors), f.type)) for f in _PLAIN]
    return pa.table(nulls, schema=_PLAIN)


def _fold(old: list[Span]) -> tuple[Any, list[tuple[int | None, int | None]]]:
    """The messages that came and did not end, and the last number of each partition of each
    entity."""
    there = _PLAIN.empty_table()
    anchors: dict[tuple[int, int], int] = {}
    for span in old:
        with pq.ParquetFile(span.path) as file:
            table = file.read().cast(_PLAIN)
        kind = table["kind"]
        is_began = pc.equal(kind, "began")
        if pc.any(pc.and_(is_began, pc.is_null(table["entity_id"]))).as_py():
            there, anchors = _PLAIN.empty_table(), {}
        comes = pc.is_in(kind, pa.array([*ARRIVALS, "activated"]))
        told = table.filter(pc.or_(comes, is_began)).select(_KEYS).drop_null()
        _raise(anchors, told["entity_id"].to_numpy(), told["sequence_number"].to_numpy())
        arrivals = table.filter(comes)
        ends = table.filter(pc.is_in(kind, pa.array(ENDS))).select(_KEYS)
        moved = table.filter(pc.equal(kind, "activated"))
        moved = moved.select(["entity_id", "former_sequence_number"]).rename_columns(_KEYS)
        there = _without(pa.concat_tables([there, arrivals]), pa.concat_tables([ends, moved]))
        gone = set(table.filter(pc.equal(kind, "entity_deleted"))["entity_id"].to_pylist())
        anchors = {key: number for key, number in anchors.items() if key[0] not in gone}
    return there, [(entity, number) for (entity, _), number in sorted(anchors.items())]


def _raise(anchors: dict[tuple[int, int], int], entity: Any, number: Any) -> None:
    keys = np.stack([entity, number >> _PARTITION_SHIFT], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    highest = np.full(len(unique), np.iinfo("i8").min)
    np.maximum.at(highest, inverse.reshape(-1), number)
    for (one, partition), last in zip(unique.tolist(), highest.tolist(), strict=True):
        anchors[one, partition] = max(last, anchors.get((one, partition), last))


def _without(table: Any, ends: Any) -> Any:
    """The rows whose message is not among `ends`."""
    keys = table.select(_KEYS).append_column("at", pa.array(np.arange(table.num_rows)))
    kept = keys.join(ends, _KEYS, join_type="left anti")["at"].to_numpy()
    return table.take(pa.array(np.sort(kept)))
