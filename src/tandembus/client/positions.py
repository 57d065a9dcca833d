"""Reading an entity by position (docs/wire-extensions.md), which Tandem can and Azure cannot.

Arguments in, values out, without I/O; how a request travels is `nodes` and `conversation`. A page
comes in columns: its numbers are arrays, its messages are cut out of one block when asked for.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tandembus.amqp.message import edited
from tandembus.amqp.types import UInt, ULong
from tandembus.changes import decode_edits
from tandembus.errors import ProtocolError
from tandembus.model import NEVER, Edits, Millis

if TYPE_CHECKING:
    from tandembus.client.conversation import Conversation

_MARKS: Final = ("EnqueuedSequenceNumber", "DeadLetterSource")
"""What a broker has to say of a message, though no section of it has room for that."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the messages of one partition lie."""

    first: int
    """The lowest position that there is; the tail, if there is none."""
    tail: int
    """The position of what comes next: everything before it is decided."""
    floor: int
    """Below this a tap has lost what had left."""
    since: int
    """From here on everything was enqueued at the time that was asked for, or later."""


@dataclass(frozen=True, slots=True)
class Survey:
    partitions: list[Extent]
    cursors: dict[str, dict[int, int]]
    """Name → partition → position."""


@dataclass(frozen=True, slots=True)
class Stretch:
    end: int
    count: int
    size: int
    """Bytes of the messages as they are stored."""


@dataclass(slots=True)
class Page:
    """Messages in a row, column by column."""

    following: int
    """The position to go on from."""
    sequence_numbers: array[int]
    enqueued_ms: array[int]
    sizes: array[int]
    delivery_counts: array[int]
    levels: bytes
    states: bytes
    """0 active, 1 deferred."""
    ends: array[int]
    messages: bytes
    edits: dict[int, Edits] = field(default_factory=dict)
    """By row: what the broker has changed. Already laid over what `payloads` gives, but for
    `EnqueuedSequenceNumber` and `DeadLetterSource`."""

    def __len__(self) -> int:
        return len(self.sequence_numbers)

    def payloads(self) -> list[bytes]:
        """The messages, each as AMQP encodes it."""
        found = []
        start = 0
        for end in self.ends:
            found.append(self.messages[start:end])
            start = end
        for row, edits in self.edits.items():
            system = {name: it for name, it in edits.system.items() if name not in _MARKS}
            found[row] = edited(found[row], Edits(edits.properties, edits.removed, system))
        return found


async def survey(conversation: Conversation, path: str, since_ms: Millis | None = None) -> Survey:
    body = {} if since_ms is None else {"enqueued-time-utc": ULong(since_ms)}
    reply = await conversation.manage(path, "tandem:survey", body)
    partitions = [
        Extent(*(_number(each, name) for name in ("first", "tail", "floor", "since")))
        for each in _list(reply.body, "partitions")
    ]
    cursors = _map(reply.body, "cursors")
    return Survey(
        partitions,
        {name: {int(at): int(it) for at, it in cursors[name].items()} for name in cursors},
    )


async def advance(
    conversation: Conversation,
    path: str,
    partition: int,
    start: int,
    end: int,
    max_count: int = NEVER,
    max_bytes: int = NEVER,
) -> Stretch:
    """How far one gets with so much, but one message at least. It may be less than asked, because
    an answer is bounded: ask again from there, unless it is the end, or the start."""
    body = {
        **_range(partition, start, end),
        "message-count": ULong(max_count),
        "bytes": ULong(max_bytes),
    }
    reply = await conversation.manage(path, "tandem:advance", body)
    return _stretch(reply.body)


async def split(
    conversation: Conversation, path: str, partition: int, start: int, end: int, parts: int
) -> list[Stretch]:
    """The range in about so many stretches of about the same size."""
    body = {**_range(partition, start, end), "parts": UInt(parts)}
    reply = await conversation.manage(path, "tandem:split", body)
    return [_stretch(each) for each in _list(reply.body, "stretches")]


async def scan(
    conversation: Conversation,
    path: str,
    partition: int,
    start: int,
    end: int,
    *,
    fields: str = "all",
    sql_filter: str | None = None,
) -> Page:
    """One page. It may be empty though there is more: go on from `following`, up to the end."""
    body: dict[str, object] = {**_range(partition, start, end), "fields": fields}
    if sql_filter is not None:
        body["sql-filter"] = sql_filter
    reply = (await conversation.manage(path, "tandem:scan", body)).body
    pairs = _list(reply, "edits")
    page = Page(
        _number(reply, "following"),
        _column(reply, "sequence-numbers", "Q"),
        _column(reply, "enqueued-times", "Q"),
        _column(reply, "sizes", "I"),
        _column(reply, "delivery-counts", "I"),
        _binary(reply, "levels"),
        _binary(reply, "states"),
        _column(reply, "ends", "I"),
        _binary(reply, "messages"),
        {int(row): decode_edits(data) for row, data in zip(pairs[::2], pairs[1::2], strict=True)},
    )
    columns = (page.enqueued_ms, page.sizes, page.delivery_counts, page.levels, page.states)
    if any(len(each) != len(page) for each in (*columns, page.ends)):
        raise ProtocolError("The columns of a page differ in length.")
    return page


async def move_cursor(
    conversation: Conversation,
    path: str,
    name: str,
    partition: int,
    position: int,
    *,
    removes: bool = False,
) -> int:
    """How far the cursor has come then: at least as far as asked."""
    body = {
        "name": name,
        "partition": UInt(partition),
        "position": ULong(position),
        "remove": removes,
    }
    reply = await conversation.manage(path, "tandem:move-cursor", body)
    return _number(reply.body, "position")


async def open_tap(conversation: Conversation, path: str, name: str, retention_ms: Millis) -> None:
    body = {"name": name, "retention": ULong(retention_ms)}
    await conversation.manage(path, "tandem:open-tap", body)


async def drop_cursor(conversation: Conversation, path: str, name: str) -> None:
    await conversation.manage(path, "tandem:drop-cursor", {"name": name})


# --- replies --------------------------------------------------------------------------------------


def _range(partition: int, start: int, end: int) -> dict[str, object]:
    return {"partition": UInt(partition), "start": ULong(start), "end": ULong(end)}


def _stretch(said: Mapping[str, object]) -> Stretch:
    return Stretch(*(_number(said, name) for name in ("end", "message-count", "bytes")))


def _number(said: Mapping[str, object], name: str) -> int:
    value = said.get(name)
    if not isinstance(value, int):
        raise ProtocolError(f"'{name}' of a reply is not a number.")
    return value


def _binary(said: Mapping[str, object], name: str) -> bytes:
    value = said.get(name)
    if not isinstance(value, bytes):
        raise ProtocolError(f"'{name}' of a reply is not binary.")
    return value


def _column(said: Mapping[str, object], name: str, typecode: str) -> array[int]:
    column = array(typecode)
    try:
        column.frombytes(_binary(said, name))
    except ValueError:
        raise ProtocolError(f"'{name}' of a reply is no column.") from None
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _list(said: Mapping[str, object], name: str) -> list[Any]:
    value = said.get(name)
    if not isinstance(value, list):
        raise ProtocolError(f"'{name}' of a reply is not a list.")
    return value


def _map(said: Mapping[str, object], name: str) -> dict[str, Any]:
    value = said.get(name)
    if not isinstance(value, dict):
        raise ProtocolError(f"'{name}' of a reply is not a map.")
    return value
