"""Which session an id names: ids are compared without regard to case (T14)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tandembus.core.session_rows import key_of

_SHARDS: Final = 256
_SPLIT_AT: Final = 8_192
"""Ids in one dict before they are spread over many: Python moves all entries of a dict when it
grows, and with a million of them everybody would wait for 60 ms."""


class SessionNames:
    """Id in lower case → numbers of sessions. Nearly always it is one. Of a queue with partitions,
    a log that was written when ids were compared with their case can have several, in different
    partitions (`Sessions.add`)."""

    __slots__ = ("_apart", "_count", "_shards")

    def __init__(self) -> None:
        self._shards: list[dict[str, int]] = [{}]
        self._apart: dict[str, list[int]] = {}
        """The numbers beside the first one."""
        self._count = 0

    def __len__(self) -> int:
        """How many sessions have a name."""
        return self._count

    def __contains__(self, session_id: str) -> bool:
        key = key_of(session_id)
        return key in self._shards[hash(key) % len(self._shards)]

    def first(self, session_id: str) -> int | None:
        """The session that the id names, whatever its spelling."""
        key = key_of(session_id)
        return self._shards[hash(key) % len(self._shards)].get(key)

    def others(self, session_id: str) -> Iterator[int]:
        """Those beside the first."""
        if self._apart:
            yield from self._apart.get(key_of(session_id), ())

    def add(self, session_id: str, number: int) -> None:
        self._count += 1
        shards = self._shards
        key = key_of(session_id)
        if shards[hash(key) % len(shards)].setdefault(key, number) != number:
            self._apart.setdefault(key, []).append(number)
        if len(shards) == 1 and self._count >= _SPLIT_AT:
            self._shards = [{} for _ in range(_SHARDS)]
            for name, each in shards[0].items():
                self._shards[hash(name) % _SHARDS][name] = each

    def remove(self, session_id: str, number: int) -> None:
        key = key_of(session_id)
        at = hash(key) % len(self._shards)
        apart = self._apart.pop(key, None)
        if apart is None:
            del self._shards[at][key]
        else:
            left = [each for each in (self._shards[at][key], *apart) if each != number]
            self._shards[at][key] = left[0]
            if left[1:]:
                self._apart[key] = left[1:]
        if not self._shards[at]:
            self._shards[at] = {}  # a dict that has been large stays so
        self._count -= 1
        if not self._count:
            self._shards = [{}]
