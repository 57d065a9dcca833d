"""Unsettled deliveries of one direction of a session, found by id and by range of ids.

Here live the serial numbers of AMQP 1.0 §2.8.10 (RFC 1982: 32 bits that wrap) and the one structure
that resolves a range such as `first=0, last=2**31` in time proportional to what it finds, not to
what it names: an attack, and also what a client does that settles all it ever received.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

MASK: Final = 0xFFFF_FFFF
HALF: Final = 0x8000_0000

T = TypeVar("T")
S = TypeVar("S")


def is_after(one: int, other: int) -> bool:
    """Whether serial number `one` comes after `other`."""
    return 0 < (one - other) & MASK < HALF


def rows(ids: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each row of neighbours among `ids`, which are sorted on the way. Ids that
    wrap are two rows."""
    if not ids:
        return
    ids.sort()
    first = last = ids[0]
    for it in ids:
        if it > last + 1:
            yield first, last
            first = it
        last = it
    yield first, last


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
        if not order or 0 < (delivery_id - order[-1]) & MASK < HALF:  # `is_after`, without a call
            order.append(delivery_id)
        else:
            base = order[-1] - HALF
            insort(order, delivery_id, key=lambda it: it - base & MASK)
        if len(self.order) > self.limit:
            self.clean()

    def add_row(self, first: int, row: Sequence[T]) -> None:
        """`add` them with consecutive ids from `first` on."""
        order = self.order
        if first + len(row) > MASK or (order and not is_after(first, order[-1])):
            for at, what in enumerate(row):
                self.add(first + at & MASK, what)
            return
        ids = range(first, first + len(row))
        self.entries.update(zip(ids, row, strict=True))
        order += ids
        if len(order) > self.limit:
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
        start, stop = self._span(first, last)
        taken = [(it, entries.pop(it)) for it in self.order[start:stop] if it in entries]
        del self.order[start:stop]
        return taken

    def within(self, first: int, last: int) -> list[tuple[int, T]]:
        """All of first … last, in order. They stay."""
        start, stop = self._span(first, last)
        found = dict.fromkeys(self.order[start:stop])
        return [(it, self.entries[it]) for it in found if it in self.entries]

    def _span(self, first: int, last: int) -> tuple[int, int]:
        """Where first … last are in `order`."""
        order = self.order
        if not order:
            return 0, 0
        base = order[0]
        start = 0
        if is_after(first, base):
            start = bisect_left(order, (first - base) & MASK, key=lambda it: (it - base) & MASK)
        stop = 0
        if last == base or is_after(last, base):
            stop = bisect_left(order, (last - base & MASK) + 1, key=lambda it: (it - base) & MASK)
        return start, stop


class Twins(Generic[T, S]):
    """Deliveries that came with the id of one that is still unsettled.

    AMQP has no such thing, azure-servicebus does: coroutines or threads that send at once on one
    session can take the same number, and settle all that have it by one disposition. So there is
    one, when the last of them has its outcome, and it says what went wrong with any of them: no
    message is taken for stored that is not.
    """

    __slots__ = ("others", "outcomes", "rank")

    def __init__(self, rank: Callable[[S | None], int]) -> None:
        self.rank = rank
        """How bad an outcome is: the worst is the one that is said."""
        self.others: dict[int, list[T]] = {}
        """Those besides the one that `Unsettled` has."""
        self.outcomes: dict[int, S | None] = {}

    def add(self, delivery_id: int, what: T) -> None:
        self.others.setdefault(delivery_id, []).append(what)

    def settle(self, delivery_id: int, outcome: S | None, unsettled: Unsettled[T]) -> bool:
        """One of them has its outcome. Whether it was the last: `pop` has what to say then."""
        said = self.outcomes.setdefault(delivery_id, outcome)
        if self.rank(outcome) > self.rank(said):
            self.outcomes[delivery_id] = outcome
        if self.others[delivery_id]:
            unsettled.entries[delivery_id] = self.others[delivery_id].pop()
            return False
        return True

    def pop(self, delivery_id: int) -> S | None:
        """Forget an id, and say its outcome."""
        self.others.pop(delivery_id, None)
        return self.outcomes.pop(delivery_id, None)

    def forget(self, what: T, unsettled: Unsettled[T]) -> None:
        """A link has ended, and its own are not in `unsettled` any more."""
        for delivery_id, others in list(self.others.items()):
            others[:] = [other for other in others if other is not what]
            if delivery_id not in unsettled.entries:
                if others:
                    unsettled.add(delivery_id, others.pop())
                else:
                    self.pop(delivery_id)
