"""Events as Arrow: the arrays of `events` become a record batch of the journal's schema, without a
copy where that is possible."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from tandembus.changes import TRANSFER_BIT
from tandembus.journal.events import Array, Entities, Events
from tandembus.journal.message_ids import gather
from tandembus.journal.schema import ENTITY_KINDS, KIND_NAMES, KINDS, arrow_schema

SCHEMA: Final = arrow_schema()
_DELTAS: Final = np.array([kind.delta for kind in KINDS], "i1")
_KIND_NAMES: Final = pa.array(KIND_NAMES)
_ENTITY_KINDS: Final = pa.array(ENTITY_KINDS)
_SOURCES: Final = {
    "place": "place", "row": "row", "time": "time", "entity_id": "entity",
    "sequence_number": "number", "former_sequence_number": "former", "body": "body",
    "size": "size", "level": "level", "hops": "hops", "enqueued_time": "enqueued",
    "due_time": "due", "locked_until": "until", "wait_ms": "wait", "lock_ms": "lock",
    "delivery_count": "count", "link": "link", "operations": "operations", "messages": "messages",
}  # fmt: skip
"""Columns of numbers and times → where they are in `Events`."""
_ALWAYS: Final = frozenset({"place", "row", "time", "operations"})


def to_arrow(events: Events, entities: Entities, sessions: list[str], stretch: int) -> Any:
    """A RecordBatch of `SCHEMA`."""
    count = events.count
    columns: dict[str, Any] = {
        "stretch": pa.array(np.full(count, stretch, "i4")),
        "kind": _dictionary(events["kind"], _KIND_NAMES),
        "delta": pa.array(_DELTAS[events["kind"]]),
        "entity_kind": _dictionary(_entity_kinds(events["entity"], entities), _ENTITY_KINDS),
        "entity": _entities(events["entity"], entities),
        "session_id": _sessions(events["session"], sessions),
        "message_id": _message_ids(events),
        "reason": _repeated(events.texts["reason"], count),
    }
    for name in ("destination", "detail"):
        columns[name] = _plain(events.texts[name], count)
    for name, source in _SOURCES.items():
        columns[name] = _numbers(events[source], SCHEMA.field(name).type, name in _ALWAYS)
    return pa.RecordBatch.from_arrays([columns[field.name] for field in SCHEMA], schema=SCHEMA)


def _numbers(values: Array, type_: Any, is_always: bool) -> Any:
    if pa.types.is_timestamp(type_):
        return _numbers(values, pa.int64(), is_always).view(type_)
    typed = values.astype(type_.to_pandas_dtype(), copy=False)
    if is_always:
        return pa.array(typed, type_)
    is_null = values == -1
    if is_null.all():
        return pa.nulls(len(values), type_)
    return pa.array(typed, type_, mask=is_null)


def _dictionary(indices: Array, words: Any) -> Any:
    """-1 is null."""
    found = pa.array(indices.astype("i4"), mask=indices < 0)
    return pa.DictionaryArray.from_arrays(found, words)


def _entity_kinds(entity: Array, entities: Entities) -> Array:
    return np.where(entity < 0, -1, entities.kinds(entity))


def _entities(entity: Array, entities: Entities) -> Any:
    top = int(entity.max(initial=0)) + 2
    if top > TRANSFER_BIT:  # a table of all numbers would be too large
        found, indices = np.unique(entity, return_inverse=True)
        none = int((found < 0).sum())
        words = pa.array([entities.paths.get(each) for each in found[none:].tolist()], pa.string())
        return _dictionary(indices.reshape(-1) - none, words)
    used = np.zeros(top, bool)
    used[entity] = True  # -1 is the last one
    used[-1] = False
    ids = np.flatnonzero(used)
    to = np.full(top, -1, "i4")
    to[ids] = np.arange(len(ids))
    words = pa.array([entities.paths.get(each) for each in ids.tolist()], pa.string())
    return _dictionary(to[entity], words)


def _sessions(session: Array, sessions: list[str]) -> Any:
    used, indices = np.unique(session, return_inverse=True)
    words = [sessions[number] if number > 0 else None for number in used.tolist()]
    none = int((used <= 0).sum())
    return _dictionary(indices.reshape(-1) - none, pa.array(words[none:], pa.string()))


def _message_ids(events: Events) -> Any:
    lengths, starts = events.ids.lengths, events.ids.starts
    data = events.data
    if events.odd_ids:
        more = [text.encode("utf-8", "replace") for text in events.odd_ids.values()]
        rows = np.array(list(events.odd_ids), "i8")
        sizes = np.array([len(text) for text in more], "i8")
        lengths[rows] = sizes
        starts[rows] = len(data) + np.cumsum(sizes) - sizes
        data += b"".join(more)
    is_there = lengths >= 0
    if not is_there.any():
        return pa.nulls(events.count, pa.string())
    sizes = np.maximum(lengths, 0)
    offsets = np.zeros(events.count + 1, "i4")
    np.cumsum(sizes, out=offsets[1:])
    bits = np.packbits(is_there, bitorder="little")
    texts = gather(np.frombuffer(data, "u1"), starts, sizes)
    buffers = [pa.py_buffer(bits), pa.py_buffer(offsets), pa.py_buffer(texts)]
    found = pa.Array.from_buffers(pa.binary(), events.count, buffers)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:  # not all of it is UTF-8
        each = [None if b is None else b.decode("utf-8", "replace") for b in found.to_pylist()]
        return pa.array(each, pa.string())


def _repeated(texts: dict[int, str], count: int) -> Any:
    """Few words, many times."""
    if not texts:
        return pa.nulls(count, SCHEMA.field("reason").type)
    words: dict[str, int] = {}
    indices = np.full(count, -1, "i4")
    for row, text in texts.items():
        indices[row] = words.setdefault(text, len(words))
    return _dictionary(indices, pa.array(list(words), pa.string()))


def _plain(texts: dict[int, str], count: int) -> Any:
    if not texts:
        return pa.nulls(count, pa.string())
    found: list[str | None] = [None] * count
    for row, text in texts.items():
        found[row] = text
    return pa.array(found, pa.string())
