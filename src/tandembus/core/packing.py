"""Numbers, texts and columns one behind the other in bytes: how core's state goes into an index.

Columns are copied as they lie in memory, so that a million messages are packed in milliseconds.
The store checks the whole index with a checksum; a reader here only meets what a writer wrote.
"""

from __future__ import annotations

import json
from array import array
from struct import Struct
from typing import Any, Final

_NUMBER: Final = Struct("<Q")
_ABSENT: Final = 0xFFFF_FFFF_FFFF_FFFF


class Writer:
    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()
        """One block: thousands of small ones would leave the memory in pieces."""

    def number(self, value: int) -> None:
        """An integer of 0 to 64 bits."""
        self.data += _NUMBER.pack(value)

    def bytes(self, value: bytes | bytearray | None) -> None:
        if value is None:
            self.data += _NUMBER.pack(_ABSENT)
        else:
            self.data += _NUMBER.pack(len(value))
            self.data += value

    def text(self, value: str | None) -> None:
        self.bytes(None if value is None else value.encode())

    def json(self, value: object) -> None:
        self.text(json.dumps(value, separators=(",", ":")))

    def column(self, value: array[int] | None) -> None:
        if value is None:
            self.data += _NUMBER.pack(_ABSENT)
        else:
            self.data += _NUMBER.pack(len(value) * value.itemsize)
            self.data += memoryview(value).cast("B")


class Reader:
    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def number(self) -> int:
        value: int = _NUMBER.unpack_from(self._data, self._at)[0]
        self._at += 8
        return value

    def _view(self) -> memoryview | None:
        length = _NUMBER.unpack_from(self._data, self._at)[0]
        self._at += 8
        if length == _ABSENT:
            return None
        self._at += length
        return self._data[self._at - length : self._at]

    def bytes(self) -> bytes | None:
        view = self._view()
        return None if view is None else bytes(view)

    def text(self) -> str | None:
        view = self._view()
        return None if view is None else str(view, "utf-8")

    def json(self) -> Any:
        text = self.text()
        assert text is not None
        return json.loads(text)

    def column(self, typecode: str) -> array[int] | None:
        view = self._view()
        if view is None:
            return None
        result = array(typecode)
        result.frombytes(view)
        return result
