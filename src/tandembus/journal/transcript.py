"""Pieces of the log in, record batches of the journal out: `decode` and `join` put together.

What cannot be done for many events at once is done here: an entity that is created or deleted, a
part of the log that was given up, the beginning of a stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from tandembus.journal.arrow import to_arrow
from tandembus.journal.decode import MARGIN, RECORDS, Offsets, decode, records
from tandembus.journal.events import TEXTS, Array, Entities, Events
from tandembus.journal.follow import Piece
from tandembus.journal.join import Messages
from tandembus.journal.schema import CODES

_CREATED: Final = RECORDS["EntityCreated"]
_DELETED: Final = RECORDS["EntityDeleted"]
_KNOWN: Final = ("enqueued", "body", "size", "level", "count", "session")


class Transcript:
    """The events of a log, from a place on. All that it has to know of what came before is here,
    and can be saved (`state.py`)."""

    def __init__(
        self, messages: Messages, entities: Entities, *, time: int = 0, stretch: int = 1
    ) -> None:
        self.messages = messages
        self.entities = entities
        self.time = time
        """Of the last event: the next one is not earlier."""
        self.stretch = stretch

    def take(self, piece: Piece) -> Iterator[Any]:
        """The events of a piece, in some batches; their places are in order."""
        data = piece.data
        if piece.bodies and piece.bodies[-1][1] + MARGIN > len(data):
            data += bytes(MARGIN)
        offsets = Offsets(data, piece.bodies, piece.place)
        self._create(data, offsets.by_code.get(_CREATED))
        stops = [(place - piece.place, place, end) for place, end in piece.lost]
        stops += [(at, 0, 0) for at in offsets.by_code.get(_DELETED, np.zeros(0, "i8")).tolist()]
        for at, place, end in sorted(stops):
            yield from self._decode(data, piece.place, offsets.before(at))
            if end:
                yield self.tell("lost", place, detail=f"{place:#x} to {end:#x}")
            else:
                (record,) = records(data, _DELETED, np.array([at]))
                yield from self._delete(
                    int(record["entity"]), int(record["time"]), piece.place + at
                )
        yield from self._decode(data, piece.place, offsets)

    def begin(
        self, place: int, anchors: Iterable[tuple[int, int]], missed: str | None = None
    ) -> Iterator[Any]:
        """A stretch begins: the entities that are there, with the last number of each (of each
        partition), and their messages. `place` is one before the first that will be told of;
        `missed` says what was lost before it."""
        yield self.tell("began", place)
        row = 1
        if missed is not None:
            yield self.tell("missed", place, row=row, detail=missed)
            row += 1
        rows = np.array(list(anchors), "i8").reshape(-1, 2)
        if len(rows):
            yield self._batch(
                {
                    "place": place, "row": np.arange(row, row + len(rows)), "time": self.time,
                    "kind": CODES["began"], "entity": rows[:, 0], "number": rows[:, 1],
                }
            )  # fmt: skip
            row += len(rows)
        for entity in self.messages.entities():
            for numbers, known in self.messages.of(entity):
                yield self._messages("carried_over", place, row, entity, numbers, known)
                row += len(numbers)

    def tell(self, kind: str, place: int, *, row: int = 0, detail: str | None = None) -> Any:
        """A batch of one event of the whole namespace."""
        columns = {"place": np.array([place]), "row": row, "time": self.time, "kind": CODES[kind]}
        return self._batch(columns, detail=detail)

    # --- inside -----------------------------------------------------------------------------------

    def _create(self, data: bytes, offsets: Array | None) -> None:
        if offsets is None:
            return
        fixed = records(data, _CREATED, offsets)
        for at, each in zip(offsets.tolist(), fixed, strict=True):
            begin = at + fixed.dtype.itemsize
            path = data[begin : begin + int(each["path_length"])].decode()
            self.entities.add(int(each["entity"]), int(each["kind"]), int(each["parent"]), path)

    def _delete(self, entity: int, time: int, place: int) -> Iterator[Any]:
        self.time = max(self.time, time)
        gone = self.entities.with_its_own(entity)
        row = 0
        for each in gone:
            for numbers, known in self.messages.of(each):
                yield self._messages("deleted", place, row, each, numbers, known)
                row += len(numbers)
            self.messages.forget(each)
        yield self._batch(
            {
                "place": place, "row": np.arange(row, row + len(gone)), "time": self.time,
                "kind": CODES["entity_deleted"], "entity": np.array(gone),
            }
        )  # fmt: skip
        self.entities.forget(gone)

    def _decode(self, data: bytes, place: int, offsets: Offsets) -> Iterator[Any]:
        events = decode(data, place, offsets, self.entities)
        if not events.count:
            return
        time = events["time"]
        np.maximum.accumulate(np.maximum(time, self.time), out=time)
        self.time = int(time[-1])
        self.messages.join(events)
        yield self._arrow(events)

    def _messages(
        self, kind: str, place: int, row: int, entity: int, numbers: Array, known: Array
    ) -> Any:
        count = len(numbers)
        columns: dict[str, Any] = {name: known[name].astype("i8") for name in _KNOWN}
        columns |= {
            "place": place, "row": np.arange(row, row + count), "time": self.time,
            "kind": CODES[kind], "entity": entity, "number": numbers,
        }  # fmt: skip
        return self._batch(columns)

    def _batch(self, columns: dict[str, Any], *, detail: str | None = None) -> Any:
        count = max(np.size(column) for column in columns.values())
        whole = {name: np.full(count, column, "i8") for name, column in columns.items()}
        whole.setdefault("operations", np.ones(count, "i8"))
        texts: dict[str, dict[int, str]] = {name: {} for name in TEXTS}
        if detail is not None:
            texts["detail"][0] = detail
        return self._arrow(Events([whole], texts))

    def _arrow(self, events: Events) -> Any:
        return to_arrow(events, self.entities, self.messages.sessions, self.stretch)
