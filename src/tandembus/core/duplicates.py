"""The ids that an entity has seen within its window (T12). Bounded in time and in number.

An id is kept as 16 bytes of its hash, and the order in which ids came is a column of bytes, which
is copied into an index at once. A million ids take 130 to 180 MB while the history fills (the more
ids come in one millisecond, the less), and 235 to 280 MB when newer ones have replaced them,
because the dict has room for twice as many then (docs/performance.md).
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final

from tandembus import limits
from tandembus.core.packing import Reader, Writer
from tandembus.model import MessageId, Millis

_ROW: Final = Struct("<16sQ")
_DROPPED_AT_ONCE: Final = 65_536 * _ROW.size
"""Bytes of rows that are over before the column is made shorter."""


def duplicate_key(message_id: MessageId, partition_key: str | None) -> str:
    """Ids are the same only with the same type (WIRE.md §5.2), and in a partitioned entity only
    with the same partition key."""
    text = message_id.hex() if isinstance(message_id, bytes) else str(message_id)
    key = f"{type(message_id).__name__}:{text}"
    return key if partition_key is None else f"{key}\0{partition_key}"


def _hash(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Duplicates:
    __slots__ = ("_at", "_now", "_order", "_seen")

    def __init__(self) -> None:
        self._seen: dict[bytes, Millis] = {}
        """Hash of the id → when it was first seen."""
        self._order = bytearray()
        """`_ROW` per id, oldest first, because time does not run backwards here. A row whose time
        is not that of `_seen` is over: the id came again."""
        self._at = 0
        """Where the oldest row is; those before it are over."""
        self._now: Millis = 0
        """One object for all ids of a millisecond."""

    def has_seen(self, key: str, now: Millis, window_ms: Millis) -> bool:
        seen = self._seen.get(_hash(key))
        return seen is not None and now - seen < window_ms

    def remember(self, key: str, now: Millis, window_ms: Millis) -> None:
        if now != self._now:
            self._now = now
        self._add(_hash(key), self._now)
        self._forget(now, window_ms)

    def _add(self, hashed: bytes, when: Millis) -> None:
        self._seen[hashed] = when
        self._order += _ROW.pack(hashed, when)

    def _forget(self, now: Millis, window_ms: Millis) -> None:
        """What is out of the window, and the oldest where there are too many."""
        seen, order = self._seen, self._order
        while self._at < len(order):
            hashed, when = _ROW.unpack_from(order, self._at)
            if seen.get(hashed) == when:
                if now - when < window_ms and len(seen) <= limits.MAX_DUPLICATE_HISTORY:
                    break
                del seen[hashed]
            self._at += _ROW.size
        if self._at >= _DROPPED_AT_ONCE:
            del order[: self._at]
            self._at = 0

    def __len__(self) -> int:
        return len(self._seen)

    def dump(self, out: Writer) -> None:
        out.bytes(self._order[self._at :])

    @classmethod
    def load(cls, source: Reader, version: int) -> Duplicates:
        result = cls()
        if version > 5:
            rows = source.bytes()
            assert rows is not None
            result._seen = dict(_ROW.iter_unpack(rows))
            result._order = bytearray(rows)
            return result
        for _ in range(source.number()):
            key = source.text()
            assert key is not None
            result._add(_hash(key), source.number())
        return result
