"""What a `Transcript` knows, as a file: from here the journal goes on after it was stopped.

The messages that are there are the rows of a Parquet file, all else is in its metadata. Beside a
saved state, the broker's own index can be the beginning: it sums up a log whose start was dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandembus.changes import EntityKind
from tandembus.core.queue import Queue
from tandembus.core.registry import Registry
from tandembus.core.state import State
from tandembus.engine.index import unpack_registry
from tandembus.errors import StoreError
from tandembus.journal.events import Array, Entities
from tandembus.journal.join import ROW, Messages
from tandembus.journal.transcript import Transcript
from tandembus.store.folder import index_name
from tandembus.store.segment import HEAD, Damage, unpack_index

FORMAT: Final = 1
_KEY: Final = b"tandem"
_COLUMNS: Final = tuple(name for name in (ROW.names or ()) if name != "is_there")
_GROUP_ROWS: Final = 1 << 17


class Opening(NamedTuple):
    """How a stretch begins."""

    anchors: list[tuple[int, int]]
    """(entity, last number) of each partition that was there."""
    missed: str | None = None
    """What was lost before it."""


class Saved(NamedTuple):
    transcript: Transcript
    place: int
    """All before it is in the transcript."""
    number: int | None
    """Of the group at `place`."""
    position: int
    """How far the files went at that time: they go no less far now."""
    opening: Opening = Opening([])
    """Of the stretch, if it begins at `place`."""


def save(path: Path, saved: Saved) -> int:
    """Durable and whole on return, or not there. Returns its size."""
    transcript = saved.transcript
    messages = transcript.messages
    messages.trim_sessions()
    about = {
        "format": FORMAT,
        "place": saved.place,
        "number": saved.number,
        "position": saved.position,
        "opening": saved.opening,
        "time": transcript.time,
        "stretch": transcript.stretch,
        "entities": transcript.entities.all(),
        "sessions": messages.sessions,
    }
    fields = [("entity", pa.int64()), ("number", pa.int64())]
    fields += [(name, pa.from_numpy_dtype(ROW[name])) for name in _COLUMNS]
    schema = pa.schema(fields, metadata={_KEY: json.dumps(about)})
    unfinished = path.with_name(path.name + ".new")
    with pq.ParquetWriter(unfinished, schema, compression="zstd", use_dictionary=False) as writer:
        for table in _tables(messages, schema):
            writer.write_table(table)
    size = sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)
    return size


def _tables(messages: Messages, schema: Any) -> Iterator[Any]:
    pending: list[tuple[int, Array, Array]] = []
    count = 0
    for entity in messages.entities():
        for numbers, rows in messages.of(entity):
            pending.append((entity, numbers, rows))
            count += len(numbers)
            if count >= _GROUP_ROWS:
                yield _table(pending, schema)
                pending, count = [], 0
    if pending:
        yield _table(pending, schema)


def _table(pending: list[tuple[int, Array, Array]], schema: Any) -> Any:
    rows = np.concatenate([rows for _, _, rows in pending])
    columns = [np.repeat([e for e, _, _ in pending], [len(n) for _, n, _ in pending])]
    columns.append(np.concatenate([numbers for _, numbers, _ in pending]))
    columns += [np.ascontiguousarray(rows[name]) for name in _COLUMNS]
    return pa.table([pa.array(column) for column in columns], schema=schema)


def load(path: Path, folder: str | None = None) -> Saved:
    """Raises StoreError if it is damaged or of another version."""
    try:
        with pq.ParquetFile(path) as file:
            about = json.loads(file.schema_arrow.metadata[_KEY])
            if about["format"] != FORMAT:
                raise StoreError(f"{path} has format {about['format']}, this Tandem reads {FORMAT}")
            messages, entities = Messages(folder), Entities()
            for entity in about["entities"]:
                entities.add(*entity)
            for text in about["sessions"][1:]:
                messages.session(text)
            for group in range(file.num_row_groups):
                _put(messages, file.read_row_group(group))
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    transcript = Transcript(messages, entities, time=about["time"], stretch=about["stretch"])
    anchors, missed = about["opening"]
    opening = Opening([(entity, number) for entity, number in anchors], missed)
    return Saved(transcript, about["place"], about["number"], about["position"], opening)


def _put(messages: Messages, table: Any) -> None:
    rows = np.zeros(table.num_rows, ROW)
    for name in _COLUMNS:
        rows[name] = table[name].to_numpy()
    rows["is_there"] = 1
    entity, number = table["entity"].to_numpy(), table["number"].to_numpy()
    borders = np.flatnonzero(np.diff(entity)) + 1
    for begin, end in zip([0, *borders], [*borders, len(entity)], strict=True):
        messages.put(int(entity[begin]), number[begin:end], rows[begin:end])


# --- the broker's index ---------------------------------------------------------------------------


def from_index(
    folder: Path, stretch: int, spill: str | None = None, *, until: int | None = None
) -> Saved | None:
    """What the newest index of a log says, or the newest that is not behind the place `until`; None
    if it has none. The broker may replace it meanwhile: then the next one is taken."""
    for _ in range(10):
        names = sorted((n for n in os.listdir(folder) if n.endswith(".index")), reverse=True)
        if until is not None:
            names = [name for name in names if name <= index_name(until)]
        if not names:
            return None
        for name in names:
            try:
                data = (folder / name).read_bytes()
                header = unpack_index(data[:HEAD], name)
                if name != index_name(header.place) or len(data) < HEAD + header.length:
                    continue
            except (FileNotFoundError, Damage):
                continue
            registry, time = unpack_registry(data[HEAD : HEAD + header.length])
            transcript, anchors = _recalled(registry, time, stretch, spill)
            place, number = header.place, header.next_group
            return Saved(transcript, place, number, place, Opening(anchors))
    raise StoreError(f"no index in {folder} can be read")


def _recalled(
    registry: Registry, time: int, stretch: int, spill: str | None
) -> tuple[Transcript, list[tuple[int, int]]]:
    messages, entities = Messages(spill), Entities()
    anchors: list[tuple[int, int]] = []
    for queue in registry.by_id.values():
        if queue.kind is not EntityKind.DEAD_LETTER:
            parent = 0 if queue.owner is None else queue.owner.id
            entities.add(queue.id, queue.kind, parent, queue.path)
        anchors += _load_queue(messages, queue)
    return Transcript(messages, entities, time=time, stretch=stretch), anchors


def _load_queue(messages: Messages, queue: Queue) -> list[tuple[int, int]]:
    anchors = []
    for part in queue.parts:
        anchors.append((queue.id, _signed(part.number(part.last))))
        numbers: list[int] = []
        rows: list[tuple[int, ...]] = []
        for chunk, row in part.table.rows_from(0):
            numbers.append(_signed(part.number(chunk.indexes[row])))
            session = queue.session_of(chunk, row)
            is_locked = chunk.states[row] in (State.LOCKED, State.DEFERRED_LOCKED)
            rows.append(
                (
                    chunk.enqueued[row], chunk.bodies[row],
                    0,  # since when it is locked, the index does not say
                    chunk.sizes[row], 0, chunk.count(row) + is_locked,
                    0 if session is None else messages.session(session.id), chunk.level(row), 1,
                )
            )  # fmt: skip
        if rows:
            messages.put(queue.id, np.array(numbers, "i8"), np.array(rows, ROW))
    return anchors


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def sync(path: Path) -> int:
    """A file or a folder to stable storage; returns its size."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
