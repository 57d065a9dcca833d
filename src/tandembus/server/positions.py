"""`$management` beyond Azure: reading an entity by position (docs/wire-extensions.md).

A request is turned into commands, their answers into a reply; what a position is, and what a
command does, is `core.positions`. Here the bodies of a page are put together, in columns and as
they are stored: whoever asks takes them apart.

The rule: much work is done in small pieces, with a turn for everybody else after each.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Final
from uuid import UUID

from tandembus import limits
from tandembus.amqp.message import AmqpMessage, without_body
from tandembus.amqp.types import UInt, ULong
from tandembus.changes import decode_edits
from tandembus.core import commands as c
from tandembus.core.positions import Lie, Rows, Stretch
from tandembus.core.sql import Context, Filter, compile_filter
from tandembus.core.state import State
from tandembus.errors import ArgumentError, FilterError
from tandembus.model import NEVER, LargePayload, Timestamp
from tandembus.server.calls import Call, Operation
from tandembus.server.requests import Arguments
from tandembus.server.stored import Stream, joined

_STEPS: Final = 10_000
"""Steps of a filter in a row: about a millisecond."""
_BODY_STEPS: Final = 80
"""What reading a body costs, in such steps."""
_FIELDS: Final = ("all", "properties", "none")
_STATES: Final = bytes.maketrans(
    bytes(State), bytes(1 if "DEFERRED" in state.name else 0 for state in State)
)
"""As in a peek: 0 active, 1 deferred."""


async def _survey(call: Call) -> bytes | Stream:
    since_ms = call.arguments.optional_integer("enqueued-time-utc")
    lie: Lie = await call.execute(c.Survey(call.path, since_ms))
    partitions = [
        {
            "first": ULong(extent.first),
            "tail": ULong(extent.tail),
            "floor": ULong(extent.floor),
            "since": ULong(extent.since),
        }
        for extent in lie.extents
    ]
    cursors = {
        name: {str(partition): ULong(position) for partition, position in positions.items()}
        for name, positions in lie.cursors.items()
    }
    return call.ok({"partitions": partitions, "cursors": cursors})


async def _advance(call: Call) -> bytes | Stream:
    said = call.arguments
    partition, start, end = _range(said)
    stretch = await call.execute(
        c.Advance(
            call.path,
            partition,
            start,
            end,
            said.integer("message-count", NEVER),
            said.integer("bytes", NEVER),
        )
    )
    return call.ok(_stretch(stretch))


async def _split(call: Call) -> bytes | Stream:
    said = call.arguments
    partition, start, end = _range(said)
    parts = said.integer("parts")
    if not 1 <= parts <= limits.MAX_SPLIT:
        raise ArgumentError(f"'parts' is 1 to {limits.MAX_SPLIT}.")
    whole = await _measure(call, partition, start, end, NEVER)
    found: list[Stretch] = []
    done = 0
    for part in range(parts):
        # What one part leaves of its share goes to the next, and the last takes all.
        share = NEVER if part == parts - 1 else max(1, whole.size * (part + 1) // parts - done)
        stretch = await _measure(call, partition, start, whole.end, share)
        if stretch.end > start:
            found.append(stretch)
            start, done = stretch.end, done + stretch.size
    return call.ok({"stretches": [_stretch(each) for each in found]})


async def _measure(call: Call, partition: int, start: int, end: int, max_bytes: int) -> Stretch:
    """How far so many bytes lead; asked again and again, because one answer is bounded."""
    count = size = 0
    while start < end and size < max_bytes:
        left = max_bytes - size
        stretch: Stretch = await call.execute(
            c.Advance(call.path, partition, start, end, max_bytes=left)
        )
        if stretch.end == start:
            break  # the tail
        start, count, size = stretch.end, count + stretch.count, size + stretch.size
        await asyncio.sleep(0)
    return Stretch(start, count, size)


def _stretch(stretch: Stretch) -> dict[str, object]:
    return {
        "end": ULong(stretch.end),
        "message-count": ULong(stretch.count),
        "bytes": ULong(stretch.size),
    }


def _range(said: Arguments) -> tuple[int, int, int]:
    return said.count("partition", 0), said.count("start", 0), said.count("end", NEVER)


# --- pages ----------------------------------------------------------------------------------------


async def _scan(call: Call) -> bytes | Stream:
    said = call.arguments
    partition, start, end = _range(said)
    fields = said.text("fields", "all")
    if fields not in _FIELDS:
        raise ArgumentError(f"'fields' is one of {', '.join(_FIELDS)}.")
    text = said.optional_text("sql-filter")
    chosen = None if text is None else compile_filter(text)
    most = min(said.integer("bytes", limits.MAX_SCAN_BYTES), limits.MAX_SCAN_BYTES)
    is_bare = fields == "none" and chosen is None
    rows: Rows = await call.execute(
        c.Scan(
            call.path,
            partition,
            start,
            end,
            said.integer("message-count", limits.MAX_SCAN),
            NEVER if is_bare and most > 0 else most,  # no body is read then
        )
    )
    payloads: list[bytes | Stream] = []
    marks = bytearray(len(rows.numbers))
    if is_bare:
        marks = bytearray(b"\x01" * len(marks))
        payloads = [b""] * len(marks)
    else:
        handful = _STEPS // (_BODY_STEPS if chosen is None else _BODY_STEPS + chosen.steps) + 1
        for first in range(0, len(marks), handful):
            bodies = rows.bodies[first : first + handful]
            stored = call.broker.stored(bodies)
            for row, body in enumerate(bodies, first):
                payload = stored.get(body)
                if payload is None:
                    continue
                head = payload.head if isinstance(payload, LargePayload) else payload
                if not _is_chosen(head, rows, row, chosen):
                    continue
                marks[row] = 1
                if fields == "none":
                    payloads.append(b"")
                elif fields == "properties":
                    payloads.append(without_body(head))
                elif isinstance(payload, LargePayload):
                    payloads.append(call.broker.stream_of(body, payload, [head]))
                else:
                    payloads.append(payload)
            await asyncio.sleep(0)
    return call.ok(_page(rows, marks, payloads))


def _is_chosen(payload: bytes, rows: Rows, row: int, chosen: Filter | None) -> bool:
    if chosen is None:
        return True
    facts = {
        "SequenceNumber": rows.numbers[row],
        "EnqueuedTimeUtc": Timestamp(rows.enqueued[row]),
        "DeliveryCount": rows.counts[row],
    }
    edits = decode_edits(rows.edits.get(row))
    context = Context(AmqpMessage(payload), facts, edits, lambda: UUID(int=0))
    try:
        return chosen.matches(context)
    except FilterError:
        return False  # as for a subscription: what cannot be judged is not selected


def _page(rows: Rows, marks: bytearray, payloads: Sequence[bytes | Stream]) -> dict[str, object]:
    """Columns of little-endian numbers, and the messages one behind the other."""
    ends = array("I")
    at = 0
    for payload in payloads:
        at += len(payload)
        ends.append(at)

    def column(values: array[int]) -> bytes:
        if len(payloads) == len(values):
            return values.tobytes()
        return array(values.typecode, compress(values, marks)).tobytes()

    edits: list[object] = []
    if rows.edits:
        places = {row: place for place, row in enumerate(compress(range(len(marks)), marks))}
        for row, data in rows.edits.items():
            if row in places:
                edits += (UInt(places[row]), data)
    return {
        "following": ULong(rows.following),
        "message-count": UInt(len(payloads)),
        "sequence-numbers": column(rows.numbers),
        "enqueued-times": column(rows.enqueued),
        "sizes": column(rows.sizes),
        "delivery-counts": column(rows.counts),
        "levels": column(rows.levels),
        "states": column(rows.states).translate(_STATES),
        "ends": ends.tobytes(),
        "edits": edits,
        "messages": joined(payloads),
    }


# --- cursors --------------------------------------------------------------------------------------


async def _move_cursor(call: Call) -> bytes | Stream:
    said = call.arguments
    name, partition = said.text("name"), said.count("partition", 0)
    wanted, removes = said.count("position"), said.flag("remove")
    while True:
        reached = await call.execute(c.MoveCursor(call.path, name, partition, wanted, removes))
        if reached >= wanted:
            return call.ok({"position": ULong(reached)})
        await asyncio.sleep(0)


async def _open_tap(call: Call) -> bytes | Stream:
    said = call.arguments
    await call.execute(c.OpenTap(call.path, said.text("name"), said.integer("retention")))
    return call.ok()


async def _drop_cursor(call: Call) -> bytes | Stream:
    await call.execute(c.DropCursor(call.path, call.arguments.text("name")))
    return call.ok()


OPERATIONS: Final[Mapping[str, Operation]] = {
    "tandem:survey": _survey,
    "tandem:advance": _advance,
    "tandem:split": _split,
    "tandem:scan": _scan,
    "tandem:move-cursor": _move_cursor,
    "tandem:open-tap": _open_tap,
    "tandem:drop-cursor": _drop_cursor,
}
