"""Records to columns: some groups of the log become arrays, one entry an event, in the log's order.

Only finding where each record begins is done one by one; everything else is done for all records of
a code at once, on views of the same bytes. The rule: no object for an event. Texts are the
exception, and only where a record has one: a session, a reason, settings.

What the log says elsewhere (the size of what was completed) is not known here: see `join`.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, Final

import numpy as np

from tandembus.changes import DELIVERED_ROW, EntityKind, Mode, Note, Removal, Return
from tandembus.errors import CorruptLogError
from tandembus.journal.events import TEXTS, Array, Entities, Events, Part
from tandembus.journal.message_ids import Texts, find_message_ids
from tandembus.journal.schema import CODES
from tandembus.store.records import TABLE

_PREFIX: Final = Struct("<BI")
_NONE: Final = 0xFFFF_FFFF
_WIDTHS: Final = {"B": "u1", "I": "<u4", "Q": "<u8"}
_SCHEDULED: Final = 3
"""`core.state.State.SCHEDULED`, as it stands in the log."""
_PATH: Final = b"\x09x-ms-path"
MARGIN: Final = 16
"""Bytes behind the last record that may be looked at."""


def _dtype(cls: type, widths: str, kinds: str) -> np.dtype[Any]:
    """The fixed part of a record, as `store.records` lays it out."""
    names = list(cls.__annotations__)
    fields = [("code", "u1"), ("length", "<u4")]
    fields += [(name, _WIDTHS[width]) for name, width in zip(names, widths, strict=False)]
    fields += [(f"{name}_length", "<u4") for name in names[len(widths) :]]
    if kinds.endswith(("p", "p?")):
        fields.append(("checksum", "<u4"))
    return np.dtype(fields)


_DTYPES: Final = {code: _dtype(cls, widths, kinds) for code, cls, widths, kinds in TABLE}
_NAMES: Final = {code: cls.__name__ for code, cls, *_ in TABLE}
RECORDS: Final = {name: code for code, name in _NAMES.items()}
_ROW: Final = np.dtype(
    [("number", "<u8"), ("nonce", "<u8"), ("size", "<u4"), ("count", "<u4"), ("level", "u1")]
)
assert _ROW.itemsize == DELIVERED_ROW.size
_NUMBER: Final = np.dtype([("number", "<u8")])


def _kinds_of(names: dict[int, str]) -> Array:
    table = np.full(256, CODES["other"], "i8")
    for value, name in names.items():
        table[value] = CODES[name]
    return table


_REMOVED: Final = _kinds_of({r: r.name.lower() for r in Removal})
_RETURNED: Final = _kinds_of({r: r.name.lower() for r in Return})
_NOTED: Final = _kinds_of({n: n.name.lower() for n in Note})
_DELIVERED: Final = _kinds_of({Mode.PEEK_LOCK: "delivered", Mode.RECEIVE_AND_DELETE: "taken"})
_PLAIN: Final = {
    "EntityCreated": "entity_created", "EntityUpdated": "entity_updated",
    "RuleAdded": "rule_added", "RuleRemoved": "rule_removed", "SessionLocked": "session_locked",
    "SessionUnlocked": "session_unlocked", "SessionStateSet": "session_state_set",
    "CursorMoved": "cursor_moved", "CursorDropped": "cursor_dropped", "TapTrimmed": "tap_trimmed",
    "Started": "started",
}  # fmt: skip
"""Records that are one event, and may have a text."""
_DETAILS: Final = {
    "EntityCreated": "settings", "EntityUpdated": "settings", "RuleAdded": "rule",
    "RuleRemoved": "name", "Started": "version", "CursorMoved": "name", "CursorDropped": "name",
    "SessionLocked": "session_id", "SessionUnlocked": "session_id", "SessionStateSet": "session_id",
}  # fmt: skip


class Offsets:
    """Where the records of a piece begin, by code."""

    def __init__(self, data: bytes, bodies: list[tuple[int, int]], place: int) -> None:
        """`place`: of `data`, for the words of an error."""
        lists: dict[int, list[int]] = {code: [] for code in _DTYPES}
        append = {code: found.append for code, found in lists.items()}
        unpack = _PREFIX.unpack_from
        at = 0
        try:
            for at, end in bodies:
                while at < end:
                    code, length = unpack(data, at)
                    append[code](at)
                    at += length + 5
                if at != end:
                    raise ValueError("a record ends behind its group")
        except (KeyError, ValueError) as error:
            raise CorruptLogError(
                f"a malformed record ({error})", segment=f"the group before {place + at:#x}",
                offset=at,
            ) from error  # fmt: skip
        self.by_code = {code: np.array(found, "i8") for code, found in lists.items() if found}

    def before(self, offset: int) -> Offsets:
        """Those before `offset`, which are taken out of this one."""
        part = object.__new__(Offsets)
        part.by_code = {}
        for code, found in list(self.by_code.items()):
            cut = int(np.searchsorted(found, offset))
            if cut:
                part.by_code[code] = found[:cut]
                self.by_code[code] = found[cut:]
        return part


def records(data: bytes, code: int, offsets: Array) -> Array:
    """The fixed parts of the records of one code that begin at these offsets."""
    dtype = _DTYPES[code]
    return _view(data, dtype)[offsets]


def _view(data: bytes, dtype: np.dtype[Any]) -> Array:
    """`data` as if an item began at each byte."""
    return np.ndarray((max(len(data) - dtype.itemsize + 1, 0),), dtype, data, strides=(1,))


def decode(data: bytes, place: int, offsets: Offsets, entities: Entities) -> Events:
    """`data` has `MARGIN` bytes behind its last record; `place` is where it begins."""
    decoder = _Decoder(data, place, entities)
    # What has message ids comes first: their bytes stay in order.
    for code in sorted(offsets.by_code, key=lambda code: code != RECORDS["Enqueued"]):
        if len(offsets.by_code[code]):
            decoder.add(code, offsets.by_code[code])
    return decoder.events()


class _Decoder:
    def __init__(self, data: bytes, place: int, entities: Entities) -> None:
        self._data = data
        self._place = place
        self._entities = entities
        self._parts: list[Part] = []
        self._count = 0
        self._texts: dict[str, dict[int, str]] = {name: {} for name in TEXTS}
        self._ids = Texts(0)
        self._odd_ids: dict[int, str] = {}

    def events(self) -> Events:
        events = Events(self._parts, self._texts)
        events.data = self._data
        events.odd_ids = self._odd_ids
        events.sort(self._ids)
        # A dead letter has the enqueue time of its message; the record behind it says when it died.
        buried = np.flatnonzero(events["kind"] == CODES["buried"])
        events["time"][buried] = events["time"][buried + 1]
        for texts in (self._texts["reason"], self._texts["detail"]):
            texts.update({row + 1: texts[row] for row in buried.tolist() if row in texts})
        return events

    def add(self, code: int, offsets: Array) -> None:
        fixed = records(self._data, code, offsets)
        after = offsets + fixed.dtype.itemsize
        name = _NAMES[code]
        match name:
            case "Enqueued":
                self._enqueued(offsets, after, fixed)
            case "Activated":
                self._activated(offsets, fixed)
            case "Delivered":
                self._delivered(offsets, after, fixed)
            case "Removed":
                self._settled(offsets, after, fixed, _REMOVED[fixed["reason"]])
            case "Returned" | "Delayed":
                self._settled(offsets, after, fixed, _RETURNED[fixed["reason"]])
            case "Deferred" | "Renewed" | "Reactivated":
                kind = np.full(len(fixed), CODES[name.lower()], "i8")
                self._settled(offsets, after, fixed, kind)
            case "LevelChanged":
                part = self._part(offsets, fixed, CODES["level_changed"])
                part["number"], part["level"] = _signed(fixed["sequence_number"]), fixed["level"]
                self._put(part)
            case "Noted":
                self._noted(offsets, after, fixed)
            case "EntityDeleted" | "BodyMoved" | "PieceStored" | "PiecesJoined" | "ScheduleHeld":
                return  # the first is done by `join`, the others are no events
            case _:
                self._plain(name, offsets, after, fixed)

    # --- each kind of record ----------------------------------------------------------------------

    def _enqueued(self, offsets: Array, after: Array, fixed: Array) -> None:
        part = self._part(offsets, fixed, 0)
        entity, hops = fixed["entity"], fixed["hops"]
        kinds = self._entities.kinds(entity)
        if (kinds < 0).any():
            unknown = int(entity[kinds < 0][0])
            raise CorruptLogError(
                f"a message of entity {unknown}, which was never created",
                segment=f"place {self._place:#x}", offset=int(offsets[0]),
            )  # fmt: skip
        is_dead, is_copy = kinds == EntityKind.DEAD_LETTER, kinds == EntityKind.SUBSCRIPTION
        part["kind"] = np.select(
            [is_dead, is_copy, hops > 0, fixed["state"] == _SCHEDULED],
            [CODES[name] for name in ("buried", "copied", "transferred", "scheduled")],
            CODES["accepted"],
        )
        part["number"] = _signed(fixed["sequence_number"])
        part["body"] = _signed(fixed["body"])
        part["enqueued"] = part["time"].copy()
        for name, source in (
            ("size", "size"), ("level", "level"), ("hops", "hops"), ("count", "delivery_count"),
        ):  # fmt: skip
            part[name] = fixed[source].astype("i8")
        part["link"] = _or_null(fixed["link"], 0)
        part["due"] = _or_null(fixed["due_ms"], 0)
        first = self._count
        self._put(part)
        lengths = {
            name: np.where(fixed[name] == _NONE, 0, fixed[name]).astype("i8")
            for name in (
                "session_id_length", "duplicate_key_length", "edits_length", "payload_length",
            )
        }  # fmt: skip
        edits_at = after + lengths["session_id_length"] + lengths["duplicate_key_length"]
        payload_at = edits_at + lengths["edits_length"]
        payload_end = payload_at + lengths["payload_length"]
        rows = np.flatnonzero(fixed["session_id_length"] != _NONE)
        self._say("session_id", first + rows, after[rows], lengths["session_id_length"][rows])
        rows = np.flatnonzero(is_dead & (fixed["edits_length"] != _NONE))
        for row in rows.tolist():
            self._reason(first + row, int(edits_at[row]), int(payload_at[row]))
        self._ids, odd = find_message_ids(self._data, payload_at, payload_end)
        self._odd_ids = {first + row: text for row, text in odd.items()}
        for row in np.flatnonzero(self._entities.is_backlog(entity)).tolist():
            self._destination(first + row, int(payload_at[row]), int(payload_end[row]))

    def _activated(self, offsets: Array, fixed: Array) -> None:
        part = self._part(offsets, fixed, CODES["activated"])
        part["number"] = _signed(fixed["new_sequence_number"])
        part["former"] = _signed(fixed["sequence_number"])
        part["enqueued"] = part["time"].copy()
        self._put(part)

    def _delivered(self, offsets: Array, after: Array, fixed: Array) -> None:
        of, row, at = _spread(fixed["rows_length"], after, _ROW.itemsize)
        rows = _view(self._data, _ROW)[at]
        part = self._part(offsets[of], fixed[of], _DELIVERED[fixed["mode"][of]])
        part["row"] = row
        part["number"] = _signed(rows["number"])
        part["size"], part["level"] = rows["size"].astype("i8"), rows["level"].astype("i8")
        part["count"] = rows["count"].astype("i8") + 1
        part["link"] = _or_null(fixed["link"][of], 0)
        until = _signed(fixed["locked_until_ms"])  # NEVER is -1
        part["until"] = np.where(fixed["mode"] == Mode.PEEK_LOCK, until, -1)[of]
        self._put(part)

    def _settled(self, offsets: Array, after: Array, fixed: Array, kind: Array) -> None:
        """Records that are about some numbers, and perhaps have edits before them."""
        names = fixed.dtype.names or ()
        if "edits_length" in names:
            length = fixed["edits_length"].astype("i8")
            after = after + np.where(length == _NONE, 0, length)
        of, row, at = _spread(fixed["sequence_numbers_length"], after, _NUMBER.itemsize)
        part = self._part(offsets[of], fixed[of], kind[of])
        part["row"] = row
        part["number"] = _signed(_view(self._data, _NUMBER)[at]["number"])
        if "locked_until_ms" in names:
            part["until"] = _signed(fixed["locked_until_ms"])[of]
        if "due_ms" in names:
            part["due"] = _signed(fixed["due_ms"])[of]
        self._put(part)

    def _noted(self, offsets: Array, after: Array, fixed: Array) -> None:
        kind = _NOTED[fixed["note"]]
        part = self._part(offsets, fixed, kind)
        number = _signed(fixed["number"])
        part["number"] = np.where(kind == CODES["no_subscription"], number, -1)
        part["messages"] = np.where(kind == CODES["browsed"], number, -1)
        is_sum = (kind == CODES["polled"]) | (kind == CODES["managed"])
        part["operations"] = np.where(is_sum, np.maximum(number, 1), 1)
        part["link"] = _or_null(fixed["link"], 0)
        first = self._count
        self._put(part)
        rows = np.flatnonzero(fixed["text_length"] != _NONE)
        is_id = kind[rows] == CODES["duplicate_dropped"]
        lengths = fixed["text_length"].astype("i8")
        self._say("detail", first + rows[~is_id], after[rows[~is_id]], lengths[rows[~is_id]])
        for row in rows[is_id].tolist():
            self._odd_ids[first + row] = self._text(int(after[row]), int(lengths[row]))

    def _plain(self, name: str, offsets: Array, after: Array, fixed: Array) -> None:
        kind = CODES[_PLAIN.get(name, "other")]
        part = self._part(offsets, fixed, kind)
        names = fixed.dtype.names or ()
        if "link" in names:
            part["link"] = _or_null(fixed["link"], 0)
        if "locked_until_ms" in names:
            part["until"] = _signed(fixed["locked_until_ms"])
        if name == "EntityCreated":
            part["number"] = _signed(fixed["origin"])
        first = self._count
        self._put(part)
        rows = np.arange(len(offsets))
        wanted = _DETAILS.get(name)
        if wanted is not None:
            texts = [n[:-7] for n in names if n.endswith("_length")]
            for text in texts[: texts.index(wanted)]:
                after = after + fixed[f"{text}_length"]
            column = "session_id" if wanted == "session_id" else "detail"
            self._say(column, first + rows, after, fixed[f"{wanted}_length"].astype("i8"))
        elif kind == CODES["other"]:
            self._texts["detail"].update(dict.fromkeys((first + rows).tolist(), name))
        if name == "SessionUnlocked":
            reasons = [Return(reason).name.lower() for reason in fixed["reason"].tolist()]
            self._texts["reason"].update(zip((first + rows).tolist(), reasons, strict=True))

    # --- pieces -----------------------------------------------------------------------------------

    def _part(self, offsets: Array, fixed: Array, kind: Array | int) -> Part:
        count = len(offsets)
        names = fixed.dtype.names or ()
        entity = fixed["entity"].astype("i8") if "entity" in names else np.full(count, -1, "i8")
        return {
            "place": self._place + offsets,
            "row": np.zeros(count, "i8"),
            "time": fixed["time"].astype("i8"),
            "kind": np.full(count, kind, "i8") if isinstance(kind, int) else kind,
            "entity": entity,
            "operations": np.ones(count, "i8"),
        }

    def _put(self, part: Part) -> None:
        self._parts.append(part)
        self._count += len(part["place"])

    def _text(self, at: int, length: int) -> str:
        return self._data[at : at + length].decode("utf-8", "replace")

    def _say(self, column: str, rows: Array, at: Array, lengths: Array) -> None:
        found = self._texts[column]
        for row, begin, length in zip(rows.tolist(), at.tolist(), lengths.tolist(), strict=True):
            found[row] = self._text(begin, length)

    def _reason(self, row: int, begin: int, end: int) -> None:
        reason, description = _dead_letter_texts(self._data[begin:end])
        if reason is not None:
            self._texts["reason"][row] = reason
        if description is not None:
            self._texts["detail"][row] = description

    def _destination(self, row: int, begin: int, end: int) -> None:
        """The application property `x-ms-path`, found by its bytes (up to 255 long)."""
        at = self._data.find(_PATH, begin, end)
        if at >= 0 and self._data[at + len(_PATH)] == 0xA1:
            at += len(_PATH) + 1
            self._texts["destination"][row] = self._text(at + 1, self._data[at])


def _spread(lengths: Array, after: Array, width: int) -> tuple[Array, Array, Array]:
    """For records that are rows of `width` bytes: of each row the record that it belongs to, its
    number in it, and where it begins."""
    counts = lengths.astype("i8") // width
    of = np.repeat(np.arange(len(counts)), counts)
    row = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return of, row, after[of] + row * width


def _signed(numbers: Array) -> Array:
    """64 bits as Spark has them. What is all ones (`NEVER`) is -1, which is null."""
    return np.ascontiguousarray(numbers).view("i8")


def _or_null(numbers: Array, null: int) -> Array:
    found = numbers.astype("i8")
    found[found == null] = -1
    return found


_known_texts: dict[bytes, tuple[str | None, str | None]] = {}


def _dead_letter_texts(edits: bytes) -> tuple[str | None, str | None]:
    """Reason and description; most dead letters of a queue have the same."""
    found = _known_texts.get(edits)
    if found is None:
        said = json.loads(edits)["set"]
        texts = [said.get(name) for name in ("DeadLetterReason", "DeadLetterErrorDescription")]
        reason, description = (text if isinstance(text, str) else None for text in texts)
        if len(_known_texts) >= 4_096:
            _known_texts.clear()
        found = _known_texts[edits] = (reason, description)
    return found
