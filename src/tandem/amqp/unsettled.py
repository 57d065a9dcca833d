"""Unsettled deliveries of one direction of a session, found by id and by range of ids.

Here live the serial numbers of AMQP 1.0 §2.8.10 (RFC 1982: 32 bits that wrap) and the one structure
that resolves a range such as `first=0, last=2**31` in time proportional to what it finds, not to
what it names: an attack, and also what a client does that settles all it ever received.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, Generic, TypeVar

MASK: Final = 0xFFFF_FFFF
HALF: Final = 0x8000_0000

T = TypeVar("T")


def is_after(one: int, other: int) -> bool:
    """Whether serial number `one` comes after `other`."""
    return 0 < (one - other) & MASK < HALF


class Unsettled(Generic[T]):
    """Delivery id → what is known of it. Ids come in serial order, as a rule, and leave in any.

    `entries` may be read, and single ids popped, directly; `order` keeps ids that have left until
    it is worth cleaning, so every range scan also removes what it scanned.
    """

    __slots__ = ("entries", "limit", "order")

    _SLACK: Final = 1024

    def __init__(self) -> None:
        self.entries: dict[int, T] = {}
        self.order: list[int] = []
        self.limit = self._SLACK

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, delivery_id: int, what: T) -> None:
        self.entries[delivery_id] = what
        order = self.order
        if not order or is_after(delivery_id, order[-1]):
            order.append(delivery_id)
        else:
            base = order[-1] - HALF
            insort(order, delivery_id, key=lambda it: it - base & MASK)
        if len(self.order) > self.limit:
            self.clean()

    def clean(self) -> None:
        """Forget the order of ids that have left; at a cost that their adding has paid for."""
        self.order = [it for it in dict.fromkeys(self.order) if it in self.entries]
        self.limit = 2 * len(self.order) + self._SLACK

    def take(self, first: int, last: int) -> list[tuple[int, T]]:
        """Remove and return all of first … last, in order. `last` must not be before `first`."""
        entries = self.entries
        if first == last:
            if first not in entries:
                return []
            return [(first, entries.pop(first))]
        order = self.order
        if not order:
            return []
        base = order[0]
        start = 0
        if is_after(first, base):
            start = bisect_left(order, (first - base) & MASK, key=lambda it: (it - base) & MASK)
        stop = 0
        if last == base or is_after(last, base):
            stop = bisect_left(order, (last - base & MASK) + 1, key=lambda it: (it - base) & MASK)
        taken = [(it, entries.pop(it)) for it in order[start:stop] if it in entries]
        del order[start:stop]
        return taken
