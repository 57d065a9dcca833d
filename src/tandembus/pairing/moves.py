"""What the syphon has in its hands, and what of it may go now: the order of N9, without I/O.

The rule: a message goes home only when no earlier one of its group is left in its backlog queue. A
group is what one session of one entity gets, or one entity without sessions; where there is one
backlog queue only, all that one entity gets, so that the order of each sender is kept. Whoever
holds the earlier one, this syphon, another one or one that was killed, its lock has to end first.
So any number of syphons may run, and be killed, and the order is kept.

Sequence numbers have no gaps, so in the usual case the numbers in hand follow on what is known to
be gone, and nothing has to be asked. Otherwise the queue is looked at (a peek shows locked messages
too), and `Hand.look` is told what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from tandembus.model import Millis
from tandembus.pairing.aliases import Restored, Stamp

STALE_MS: Final = 40_000
"""After this long in hand a message is given back: its lock lasts 60 s (N2)."""
HOLD_FIRST_MS: Final = 500
HOLD_MOST_MS: Final = 15_000
"""Between two questions whether a destination answers, which cost nothing."""
REFUSED_MOST_MS: Final = 120_000
"""Between two tries of one that answers and then refuses; each costs the receives of a batch."""

_MOST_GAPS: Final = 10_000
"""Numbers of a partitioned queue may lie far apart: then gaps are not written down."""

Group: TypeAlias = tuple[str, str | None]


class Item(NamedTuple):
    """One locked message."""

    message: Any
    """The SDK's, to settle it with."""
    restored: Restored
    since_ms: Millis

    @property
    def number(self) -> int:
        return self.restored.sequence_number


class Seen(NamedTuple):
    """A message that a look has shown in a backlog queue."""

    number: int
    group: Group
    stamp: Stamp | None = None


@dataclass(slots=True)
class Flow:
    """What became of the messages of a backlog queue, exactly:
    received = completed + dead_lettered + returned + lost + in hand."""

    received: int = 0
    sent: int = 0
    """To the primary, and taken."""
    completed: int = 0
    dead_lettered: int = 0
    returned: int = 0
    """Given back, to be received again: their destination fails, or the syphon stops."""
    lost: int = 0
    """Their lock ended before they were settled: they come again. If they were sent, they are sent
    again, and the primary's duplicate detection has to drop them."""

    def plus(self, other: Flow) -> Flow:
        return Flow(
            self.received + other.received,
            self.sent + other.sent,
            self.completed + other.completed,
            self.dead_lettered + other.dead_lettered,
            self.returned + other.returned,
            self.lost + other.lost,
        )

    @property
    def in_hand(self) -> int:
        return self.received - self.completed - self.dead_lettered - self.returned - self.lost


class Holds:
    """Destinations that fail, and when each is tried again. All backlog queues share them."""

    def __init__(self) -> None:
        self._until: dict[str, Millis] = {}
        self._delay: dict[str, Millis] = {}
        self.why: dict[str, str] = {}

    def failed(self, path: str, now_ms: Millis, why: str, most_ms: Millis = HOLD_MOST_MS) -> None:
        """Each time for twice as long."""
        delay = self._delay.get(path, HOLD_FIRST_MS // 2)
        delay = self._delay[path] = max(delay, min(most_ms, 2 * delay))
        self._until[path] = now_ms + min(delay, most_ms)
        self.why[path] = why

    def answers(self, path: str, now_ms: Millis) -> None:
        """It may be tried; whether it takes messages is not known yet."""
        if path in self._until:
            self._until[path] = now_ms

    def succeeded(self, path: str) -> None:
        if path in self._delay:
            del self._delay[path], self._until[path], self.why[path]

    def is_held(self, path: str, now_ms: Millis) -> bool:
        return self._until.get(path, now_ms) > now_ms

    def wait_ms(self, paths: Iterable[str], now_ms: Millis) -> Millis:
        """Until the first of these may be tried."""
        return min((max(0, self._until.get(path, 0) - now_ms) for path in paths), default=0)


@dataclass(slots=True)
class Hand:
    """Locked messages of one backlog queue."""

    items: dict[int, Item] = field(default_factory=dict)
    """By number."""
    is_whole: bool = False
    """Whether all that one entity gets is one group, whatever its sessions."""
    gone_below: int = 0
    """No message with a lower number is left in the queue."""
    _done: set[int] = field(default_factory=set)
    """Gone, but not below `gone_below`."""
    _others: dict[Group, int] = field(default_factory=dict)
    """The lowest number of each group that somebody else had at the last look."""

    def take(self, items: Iterable[Item]) -> None:
        for item in items:
            self.items[item.number] = item

    def ready(self, held: Callable[[Item], bool]) -> dict[str, list[Item]]:
        """What may go now, by destination, in its order; what is `held`, and what comes after it in
        its group, may not."""
        found: dict[str, list[Item]] = {}
        stopped: set[Group] = set()
        # A look that need not be taken again is out of date: what others had has gone, or is here.
        others = self._others if self.must_look else {}
        for number in sorted(self.items):
            item = self.items[number]
            group = self._group(item.restored.group)
            if group in stopped:
                continue
            if number > others.get(group, number) or held(item):
                stopped.add(group)
                continue
            found.setdefault(group[0], []).append(item)
        return found

    def _group(self, group: Group) -> Group:
        return (group[0], None) if self.is_whole else group

    # --- what others have -------------------------------------------------------------------------

    @property
    def must_look(self) -> bool:
        """Whether a number below the highest in hand is neither here nor known to be gone."""
        if not self.items:
            return False
        highest = max(self.items)
        known = sum(number < highest for number in self._done.difference(self.items))
        return highest + 1 - self.gone_below > len(self.items) + known

    def look(self, seen: Iterable[Seen]) -> None:
        """All that the queue has, from `gone_below` to the highest number in hand, in order."""
        self._others = {}
        present: set[int] = set()
        for number, group, _ in seen:
            present.add(number)
            if number not in self.items:
                self._others.setdefault(self._group(group), number)
        if not self.items:
            return
        lowest, highest = min(self.items), max(self.items)
        self.gone_below = max(self.gone_below, min(present | {lowest}))
        self._done = {number for number in self._done if number >= self.gone_below}
        if highest - self.gone_below <= _MOST_GAPS:
            gone = set(range(self.gone_below, highest)) - present
            self._done |= gone.difference(self.items)

    # --- what becomes of them ---------------------------------------------------------------------

    def settled(self, items: Iterable[Item]) -> None:
        """They are gone from the queue."""
        for item in items:
            self.items.pop(item.number, None)
            self._done.add(item.number)
        while self.gone_below in self._done:
            self._done.discard(self.gone_below)
            self.gone_below += 1

    def dropped(self, items: Iterable[Item]) -> None:
        """They are in the queue again, or will be when their locks end."""
        for item in items:
            self.items.pop(item.number, None)

    def stale(self, now_ms: Millis) -> list[Item]:
        """In hand for so long that they have to be given back, and all later ones of their groups
        too: those could not go before them."""
        limit_ms = now_ms - STALE_MS
        old = [item for item in self.items.values() if item.since_ms <= limit_ms]
        oldest: dict[Group, int] = {}
        for item in sorted(old, key=_by_number):
            oldest.setdefault(self._group(item.restored.group), item.number)
        return [
            item
            for item in self.items.values()
            if item.number >= oldest.get(self._group(item.restored.group), item.number + 1)
        ]


def _by_number(item: Item) -> int:
    return item.number


class Elsewhere:
    """What is known of earlier messages of a sender in the other queues that it has used, for
    `ordered_return`. The number of a message says what was sent before it; by the time that it is
    in hand, all that was is in its queue, or never will be."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, str], int] = {}
        """(queue, sender) → sequence number below which the queue has nothing of it."""
        self._clear: dict[tuple[str, str], int] = {}
        """… → the queue has nothing of the sender that comes before this number."""

    def unclear(self, items: Iterable[Item]) -> dict[tuple[str, str], int]:
        """(queue, sender) → the highest number for which it has to be looked through."""
        found: dict[tuple[str, str], int] = {}
        for item in items:
            stamp = item.restored.stamp
            for queue in () if stamp is None else stamp.after:
                assert stamp is not None
                key = (queue, stamp.sender)
                if stamp.number > self._clear.get(key, -1):
                    found[key] = max(stamp.number, found.get(key, -1))
        return found

    def start(self, key: tuple[str, str]) -> int:
        return self._at.get(key, 0)

    def looked(self, key: tuple[str, str], number: int, seen: Iterable[Seen]) -> bool:
        """One page, from `start` or before it; an empty one is the end. True: no need to look
        further now."""
        at = None
        for each in seen:
            at = each.number
            if each.stamp is not None and each.stamp.sender == key[1]:
                # In one queue the numbers of a sender rise: this one is its lowest.
                self._at[key] = at
                self._is_clear(key, each.stamp.number)
                return True
        if at is None:
            self._is_clear(key, number)
            return True
        self._at[key] = max(at + 1, self.start(key))
        return False

    def _is_clear(self, key: tuple[str, str], number: int) -> None:
        self._clear[key] = max(number, self._clear.get(key, -1))

    def is_before(self, item: Item) -> bool:
        """Whether an earlier message of its sender may be left in another queue."""
        stamp = item.restored.stamp
        if stamp is None:
            return False
        clear = (self._clear.get((queue, stamp.sender), -1) for queue in stamp.after)
        return any(stamp.number > number for number in clear)
