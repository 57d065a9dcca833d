"""The byte form of changes: a change to bytes, a group's body to changes, a place to a payload.

What lives here: the table of records and its codec. What does not: groups, files and checksums of
groups (`files.py`), and what a change means (`core`).

The rule: a record is its code, the length of the rest, the integers of the NamedTuple in order, the
lengths of its `str` and `bytes` fields, and then these fields one behind the other, the payload
last. So one `Struct` reads everything but the text. A code is never used again for something else:
a record that changes its fields gets a new code, and the old one stays readable.

A payload carries a checksum of its own, begun with the body's number: `Payloads` fetches records
without their groups, and must notice both rot and a place that belongs to another body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, TypeAlias, cast
from zlib import crc32

from tandembus import changes
from tandembus.changes import BodyMoved, Change, Enqueued, PieceStored
from tandembus.errors import CorruptLogError, StoreError
from tandembus.model import new_tuple
from tandembus.store.api import Buffer, Store, View

# code, class, widths of the integers (B 1, I 4, Q 8 bytes), kinds of the rest:
# s text, s? text or None, b bytes, b? bytes or None, p payload, p? payload or None
TABLE: Final[tuple[tuple[int, type[Change], str, str], ...]] = (
    (1, changes.EntityCreated, "QIBIQ", "s s"),
    (2, changes.EntityUpdated, "QI", "s"),
    (3, changes.EntityDeleted, "QI", ""),
    (4, changes.RuleAdded, "QI", "s"),
    (5, changes.RuleRemoved, "QI", "s"),
    (6, changes.Enqueued, "QIQQBQQIBBII", "s? s? b? p?"),
    (7, changes.Activated, "QIQQQ", ""),
    (8, changes.Delivered, "QIIBQ", "b"),
    (9, changes.Renewed, "QIQ", "b"),
    (10, changes.Returned, "QIB", "b? b"),
    (11, changes.Deferred, "QI", "b? b"),
    (12, changes.Removed, "QIB", "b"),
    (13, changes.SessionLocked, "QIIQ", "s"),
    (14, changes.SessionUnlocked, "QIB", "s"),
    (15, changes.SessionStateSet, "QI", "s b?"),
    (16, changes.LevelChanged, "QIQB", ""),
    (17, changes.Noted, "QIBQI", "s?"),
    (18, changes.BodyMoved, "Q", "p"),
    (19, changes.Started, "Q", "s"),
    (20, changes.Delayed, "QIBQ", "b? b"),
    (21, changes.Reactivated, "QI", "b"),
    (22, changes.CursorMoved, "QIIQQ", "s"),
    (23, changes.CursorDropped, "QI", "s"),
    (24, changes.TapTrimmed, "QIIQ", ""),
    (25, changes.ScheduleHeld, "QIB", "b"),
    (26, changes.PieceStored, "Q", "p"),
    (27, changes.PiecesJoined, "QQQ", "b"),
)

_PREFIX: Final = Struct("<BI")
_NONE: Final = 0xFFFF_FFFF
_TYPES: Final = {
    "s": "str",
    "s?": "str | None",
    "b": "bytes",
    "b?": "bytes | None",
    "p": "bytes",
    "p?": "Payload | None",
}
PAGE_BYTES: Final = 64 * 1024
"""What is read at once where the records lie close together."""
MANY: Final = 16
"""So many that lie further apart are worth a view of the log."""
UNSEEN_BYTES: Final = 4 << 20
"""Where there was no view, none is asked for again so soon."""

Lying: TypeAlias = tuple[int, int, int]
"""The number of a body, its place, and no less than the length of its record."""


class _Layout:
    """One line of the table, ready for use."""

    __slots__ = ("cls", "code", "fixed", "head", "integers", "kinds", "size")

    def __init__(self, code: int, cls: type[Change], widths: str, kinds: str) -> None:
        self.code = code
        self.cls: Any = cls
        self.integers = len(widths)
        self.kinds = tuple(kinds.split())
        has_payload = self.kinds[-1:] in (("p",), ("p?",))
        checksum = "I" if has_payload else ""
        self.fixed = Struct("<BI" + widths + "I" * len(self.kinds) + checksum)
        self.size = self.fixed.size
        if has_payload:
            body = cls._fields.index("body")
            before = struct.calcsize("<" + widths[:body])
            behind = struct.calcsize("<" + widths[body + 1 :] + "I" * (len(self.kinds) - 1))
            self.head = Struct(f"<BI{before}xQ{behind}xII")
            """What finds the payload: code, rest, body, the payload's length and checksum."""
        names = [annotation.__forward_arg__ for annotation in cls.__annotations__.values()]
        said = ["int" if name == "Millis" else name for name in names]
        expected = ["int"] * self.integers + [_TYPES[k] for k in self.kinds]
        if said != expected:
            raise TypeError(f"{cls.__name__} has fields {said}, its record has {expected}")


_BY_CODE: Final = {row[0]: _Layout(*row) for row in TABLE}
_BY_CLASS: Final = {layout.cls: layout for layout in _BY_CODE.values()}
if not len(_BY_CODE) == len(_BY_CLASS) == len(TABLE):
    raise TypeError("a code or a class stands twice in the table of records")

_ENQUEUED: Final = _BY_CLASS[Enqueued]
_BODIES: Final = (_BY_CLASS[BodyMoved], _BY_CLASS[PieceStored])
"""Records that are a body and its number, and nothing else."""
_ENQUEUED_SIZE: Final = _ENQUEUED.size
_pack_enqueued: Final = _ENQUEUED.fixed.pack
_unpack_enqueued: Final = _ENQUEUED.fixed.unpack_from

_HEADS: Final = {layout.code: layout.head.unpack_from for layout in (_ENQUEUED, *_BODIES)}


# --- writing --------------------------------------------------------------------------------------


def encode(change: Change) -> bytes:
    """The record of one change."""
    parts: list[Buffer] = []
    encode_into(parts, change)
    return b"".join(parts)


def encode_into(out: list[Buffer], change: Change) -> int:
    """Append the record's buffers to `out`; the payload itself is not copied. Returns the length.

    Raises StoreError for a number that does not fit its width: a bug in core, found before a byte
    is written.
    """
    if type(change) is Enqueued:
        return encode_enqueued_into(out, change)
    try:
        return _encode_other(out, change)
    except (struct.error, OverflowError) as error:
        raise _unwritable(change) from error


def _unwritable(change: Change) -> StoreError:
    return StoreError(f"cannot be written: {change!r:.500}")


def encode_enqueued_into(out: list[Buffer], change: Enqueued) -> int:
    """As `encode_into`. By hand what `_encode_other` does in general: a send is the hot path."""
    (
        time, entity, number, body, state, expires, due, body_size, level, hops, count, link,
        session_id, duplicate_key, edits, payload,
    ) = change  # fmt: skip
    text = b""
    session_length = key_length = edits_length = payload_length = _NONE
    checksum = 0
    if session_id is not None:
        text = session_id.encode("utf-8", "surrogatepass")
        session_length = len(text)
    if duplicate_key is not None:
        key = duplicate_key.encode("utf-8", "surrogatepass")
        key_length = len(key)
        text += key
    if edits is not None:
        edits_length = len(edits)
        text += edits
    size = _ENQUEUED_SIZE + len(text)
    if payload is not None:
        stored = payload if type(payload) is bytes else payload.head  # type: ignore[union-attr]
        payload_length = len(stored)
        size += payload_length
        checksum = crc32(stored, (body ^ body >> 32) & 0xFFFF_FFFF)
    try:
        header = _pack_enqueued(
            6, size - 5, time, entity, number, body, state, expires, due, body_size, level, hops,
            count, link, session_length, key_length, edits_length, payload_length, checksum,
        )  # fmt: skip
    except (struct.error, OverflowError) as error:
        raise _unwritable(change) from error
    out.append(header + text if text else header)
    if payload:
        out.append(stored)
    return size


def _encode_other(out: list[Buffer], change: Change) -> int:
    layout = _BY_CLASS[type(change)]
    if layout.kinds == ("b",):  # a delivery, a renewal, a removal: hot, too
        rows: Any = change[-1]
        size = layout.size + len(rows)
        out.append(layout.fixed.pack(layout.code, size - 5, *change[:-1], len(rows)) + rows)
        return size
    if layout in _BODIES:
        body, payload = cast("BodyMoved | PieceStored", change)
        size = layout.size + len(payload)
        checksum = crc32(payload, (body ^ body >> 32) & 0xFFFF_FFFF)
        out.append(layout.fixed.pack(layout.code, size - 5, body, len(payload), checksum))
        out.append(payload)
        return size
    lengths: list[int] = []
    blobs: list[bytes] = []
    values: tuple[Any, ...] = change[layout.integers :]
    for kind, value in zip(layout.kinds, values, strict=True):
        if value is None:
            if "?" not in kind:
                raise _unwritable(change)
            lengths.append(_NONE)
            continue
        blob = value.encode("utf-8", "surrogatepass") if kind[0] == "s" else value
        lengths.append(len(blob))
        blobs.append(blob)
    data = b"".join(blobs)
    size = layout.size + len(data)
    out.append(
        layout.fixed.pack(layout.code, size - 5, *change[: layout.integers], *lengths) + data
    )
    return size


# --- reading --------------------------------------------------------------------------------------


def decode_group(body: bytes | memoryview, *, place: int = 0) -> Iterator[tuple[Change, int]]:
    """Every change of a group's body, with the offset of its record in the body.

    `place` is only for the words of the CorruptLogError that anything malformed raises.
    """
    if type(body) is not bytes:
        body = bytes(body)
    position, end = 0, len(body)
    try:
        while position < end:
            layout = _BY_CODE[body[position]]
            change: Change
            if layout is _ENQUEUED:
                change, following = _decode_enqueued(body, position)
            else:
                change, following = _decode_other(layout, body, position)
            if following > end:
                raise ValueError("the record ends behind its group")
            yield change, position
            position = following
    except (struct.error, ValueError) as error:
        raise _malformed(place, position, str(error)) from error
    except KeyError as error:
        what = f"code {error} is unknown, perhaps of a newer Tandem"
        raise _malformed(place, position, what) from error


def _decode_enqueued(body: bytes, position: int) -> tuple[Enqueued, int]:
    fields = _unpack_enqueued(body, position)
    session_length, key_length, edits_length, payload_length, _ = fields[14:]
    session_id = duplicate_key = edits = payload = None
    at = position + _ENQUEUED_SIZE
    if session_length != _NONE:
        session_id = body[at : at + session_length].decode("utf-8", "surrogatepass")
        at += session_length
    if key_length != _NONE:
        duplicate_key = body[at : at + key_length].decode("utf-8", "surrogatepass")
        at += key_length
    if edits_length != _NONE:
        edits = body[at : at + edits_length]
        at += edits_length
    if payload_length != _NONE:
        payload = body[at : at + payload_length]
        at += payload_length
    if fields[1] + 5 != at - position:
        raise ValueError("the lengths of the record disagree")
    return new_tuple(Enqueued, (*fields[2:14], session_id, duplicate_key, edits, payload)), at


def _decode_other(layout: _Layout, body: bytes, position: int) -> tuple[Change, int]:
    fields = layout.fixed.unpack_from(body, position)
    integers = layout.integers + 2
    at = position + layout.size
    if layout.kinds == ("b",) and fields[1] + 5 == layout.size + fields[-1]:
        end = at + fields[-1]
        return new_tuple(layout.cls, (*fields[2:-1], body[at:end])), end
    values: list[str | bytes | None] = []
    for kind, length in zip(layout.kinds, fields[integers:], strict=False):
        if length == _NONE:
            if "?" not in kind:
                raise ValueError("a field that must be there is missing")
            values.append(None)
            continue
        blob = body[at : at + length]
        at += length
        values.append(blob.decode("utf-8", "surrogatepass") if kind[0] == "s" else blob)
    if fields[1] + 5 != at - position:
        raise ValueError("the lengths of the record disagree")
    change: Change = new_tuple(layout.cls, (*fields[2:integers], *values))
    return change, at


class Payloads:
    """Payloads by place. Who reads them in a row, as a backlog is drained, reads the disk once for
    many: a page of the log is kept, and what lies at a living place never changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._page: View = b""
        self._begin = 0
        self._unseen = -UNSEEN_BYTES
        """A place that no view could be had of."""

    def read(self, wanted: Sequence[Lying]) -> list[bytes]:
        """The payloads of these bodies. Raises CorruptLogError if one is not there, or damaged."""
        begin, page = self._begin, self._page
        end = begin + len(page)
        payloads: list[bytes] = []
        for number, place, length in wanted:
            if not begin <= place <= end - length:
                begin, page = self._turn(wanted[len(payloads) : len(payloads) + MANY])
                end = begin + len(page)
            at = place - begin
            try:
                _, rest, body, size, checksum = _HEADS[page[at]](page, at)
            except (KeyError, IndexError, struct.error):
                raise self._damaged(place, f"no payload of body {number}") from None
            # The payload is last, so its place follows from the end.
            following = at + _PREFIX.size + rest
            payload = page[following - size : following]
            if (
                body != number
                or size > rest
                or crc32(payload, (body ^ body >> 32) & 0xFFFF_FFFF) != checksum
            ):
                raise self._damaged(place, f"the payload of body {number} fails its checksum")
            payloads.append(payload)
        return payloads

    def _turn(self, wanted: Sequence[Lying]) -> tuple[int, View]:
        """To the page with the first of these, and with those of the others that lie near."""
        _, place, length = wanted[0]
        _, last, last_length = wanted[-1]
        span = last + last_length - place
        view = None
        if (
            len(wanted) == MANY
            and PAGE_BYTES < span <= MANY * PAGE_BYTES
            and not 0 <= place - self._unseen < UNSEEN_BYTES
        ):
            view = self._store.view(place)
            if view is None:
                self._unseen = place
        if view is None:
            if 0 <= place - self._begin <= len(self._page) + PAGE_BYTES:
                span = PAGE_BYTES  # it goes on behind the last page, and so will the next
            size = max(length, span) if span <= PAGE_BYTES else length
            view = place, self._store.read(place, size)
        self._begin, self._page = view
        return view

    def _damaged(self, place: int, what: str) -> CorruptLogError:
        segment, offset = self._store.locate(place)
        return CorruptLogError(what, segment=segment, offset=offset)


def _malformed(place: int, position: int, what: str) -> CorruptLogError:
    return CorruptLogError(
        f"a malformed record ({what})", segment=f"the group at place {place:#x}", offset=position
    )
