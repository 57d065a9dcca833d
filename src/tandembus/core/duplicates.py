"""The ids that an entity has seen within its window (T12). Bounded in time and in number."""

from __future__ import annotations

from collections import OrderedDict

from tandembus import limits
from tandembus.core.packing import Reader, Writer
from tandembus.model import MessageId, Millis


def duplicate_key(message_id: MessageId, partition_key: str | None) -> str:
    """Ids are the same only with the same type (WIRE.md §5.2), and in a partitioned entity only
    with the same partition key."""
    text = message_id.hex() if isinstance(message_id, bytes) else str(message_id)
    key = f"{type(message_id).__name__}:{text}"
    return key if partition_key is None else f"{key}\0{partition_key}"


class Duplicates:
    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: OrderedDict[str, Millis] = OrderedDict()
        """Id → when it was first seen; oldest first, because time does not run backwards here."""

    def has_seen(self, key: str, now: Millis, window_ms: Millis) -> bool:
        seen = self._seen.get(key)
        return seen is not None and now - seen < window_ms

    def remember(self, key: str, now: Millis, window_ms: Millis) -> None:
        seen = self._seen
        seen[key] = now
        seen.move_to_end(key)
        while seen:
            oldest = next(iter(seen))
            if now - seen[oldest] < window_ms and len(seen) <= limits.MAX_DUPLICATE_HISTORY:
                return
            del seen[oldest]

    def __len__(self) -> int:
        return len(self._seen)

    def dump(self, out: Writer) -> None:
        out.number(len(self._seen))
        for key, when in self._seen.items():
            out.text(key)
            out.number(when)

    @classmethod
    def load(cls, source: Reader) -> Duplicates:
        result = cls()
        for _ in range(source.number()):
            key = source.text()
            assert key is not None
            result._seen[key] = source.number()
        return result
