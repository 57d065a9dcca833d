"""Who is served next (P4), and who has to make room for it (P6). Pure: `now_ms` comes in, decisions
go out.

A pool has so many free workers, and of each level some messages in hand, which were received but
not begun. The rule: no message is begun while a higher one has been waiting for more than
`look_ms`. So what is in hand is begun from the highest level down, and a level that has nothing in
hand is passed over only when its queue is known to be empty. Two things say so, without a question
of their own:

- It was asked, and has not answered for `look_ms`: a broker that has a message answers at once.
- The last message that came from it had only just arrived there: nothing older was left. When it
  arrived is said by the broker's clock; how far that is from ours is known from messages that came
  into a queue that was known to be empty. Before there was one, every message counts as old.

    hand      what the levels have, and what is known of their queues
    next      what a free worker does: serve, or wait until something can be known
    victims   whose work is asked to stop
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

from tandembus.model import Millis

T = TypeVar("T")

OPENING_MS: Final[Millis] = 5_000
"""So long a level may take until it has been asked; a lower one does not wait longer for it."""


class Asked(Enum):
    """What a level's queue was asked."""

    NOT_YET = "not yet"
    """It will be, as soon as its link is open or its last message is taken."""
    YES = "yes"
    ABSENT = "absent"
    """It is suspended, or cannot be reached: nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Serve(Generic[T]):
    """Begin this message."""

    level: int
    item: T


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be begun before then, unless something arrives."""

    until_ms: Millis


@dataclass(slots=True)
class _Hand(Generic[T]):
    items: deque[tuple[T, Millis | None]] = field(default_factory=deque)
    """With the time of its arrival in the queue, by our clock; None: not known."""
    asked: Asked = Asked.NOT_YET
    since_ms: Millis = 0
    """It is known to be empty when nothing comes from then on for a while."""
    receive_ms: Millis | None = None
    """Since when a receive is under way; None: none is."""


class Order(Generic[T]):
    """The messages in hand of one pool. Level 0 is the highest."""

    def __init__(self, size: int, prefetch: Sequence[int], look_ms: Millis, now_ms: Millis) -> None:
        """`prefetch`: how many messages of each level may be in hand."""
        self._hands: list[_Hand[T]] = [_Hand(since_ms=now_ms) for _ in prefetch]
        self.size = size
        self._prefetch = tuple(prefetch)
        self._look_ms = look_ms
        self._ahead_ms: Millis | None = None
        """Our clock before the broker's; None: not known yet."""
        self.busy = 0

    @property
    def free(self) -> int:
        return max(0, self.size - self.busy)

    def room(self, level: int) -> int:
        """How many messages of a level may still be received."""
        return self._prefetch[level] - len(self._hands[level].items)

    def held(self, level: int) -> int:
        return len(self._hands[level].items)

    # --- what happens -----------------------------------------------------------------------------

    def asked(self, level: int, now_ms: Millis) -> None:
        """A receive is under way. Asking again after no answer is the same question."""
        hand = self._hands[level]
        hand.receive_ms = now_ms
        if hand.asked is not Asked.YES:
            hand.asked, hand.since_ms = Asked.YES, now_ms

    def answered(self, level: int) -> None:
        """It has ended, with messages or without."""
        self._hands[level].receive_ms = None

    def absent(self, level: int) -> None:
        """Its queue is not asked for now."""
        hand = self._hands[level]
        hand.asked, hand.receive_ms = Asked.ABSENT, None

    def present(self, level: int, now_ms: Millis) -> None:
        """Its queue is about to be asked."""
        hand = self._hands[level]
        hand.asked, hand.since_ms = Asked.NOT_YET, now_ms

    def arrived(self, level: int, item: T, enqueued_ms: Millis, now_ms: Millis) -> None:
        """It has come into hand; by the broker's clock it is in its queue since `enqueued_ms`."""
        hand = self._hands[level]
        if hand.receive_ms is not None and now_ms - hand.receive_ms >= self._look_ms:
            self._ahead_ms = now_ms - enqueued_ms
        since_ms = None if self._ahead_ms is None else enqueued_ms + self._ahead_ms
        hand.items.append((item, since_ms))

    def removed(self, level: int, item: T) -> bool:
        """It is in hand no more, for another reason than being begun."""
        items = self._hands[level].items
        for found in items:
            if found[0] is item:
                items.remove(found)
                return True
        return False

    def emptied(self, level: int) -> list[T]:
        """All that a level has in hand, which has it no more."""
        items = [item for item, _ in self._hands[level].items]
        self._hands[level].items.clear()
        return items

    def finished(self) -> None:
        """A worker has become free."""
        assert self.busy > 0
        self.busy -= 1

    # --- what is decided --------------------------------------------------------------------------

    def next(self, now_ms: Millis) -> Serve[T] | Wait | None:
        """What a free worker does now; None: nothing, until something happens. A served message is
        begun, and `finished` is called for it later."""
        if self.free == 0:
            return None
        wait_ms: Millis | None = None
        for level, hand in enumerate(self._hands):
            if hand.items:
                if wait_ms is not None:
                    return Wait(wait_ms)
                self.busy += 1
                item, since_ms = hand.items.popleft()
                if since_ms is None or now_ms - since_ms > self._look_ms:
                    self._doubt(hand, now_ms)
                return Serve(level, item)
            known_ms = self._known_ms(hand)
            if known_ms > now_ms:
                # Of several unknown levels the latest counts: a lower message waits for all.
                wait_ms = known_ms if wait_ms is None else max(wait_ms, known_ms)
        return None

    def _doubt(self, hand: _Hand[T], now_ms: Millis) -> None:
        """Where one message was waiting, others may be: only what is asked now says something."""
        if hand.asked is Asked.ABSENT:
            return
        if hand.receive_ms is None:
            hand.asked, hand.since_ms = Asked.NOT_YET, now_ms
        else:
            hand.asked, hand.since_ms = Asked.YES, hand.receive_ms

    def _known_ms(self, hand: _Hand[T]) -> Millis:
        """From when on silence of this level means that its queue is empty."""
        match hand.asked:
            case Asked.ABSENT:
                return 0
            case Asked.YES:
                return hand.since_ms + self._look_ms
            case Asked.NOT_YET:
                return hand.since_ms + OPENING_MS

    def victims(self, running: Iterable[Running]) -> list[int]:
        """Whose work is asked to stop, so that higher messages in hand can be begun: the lowest
        level first, and of one level the latest begun, which loses least. Never more than there are
        messages to take their places."""
        if self.free > 0:
            return []
        everyone = list(running)
        stopping = sum(each.is_asked for each in everyone)
        willing = sorted(
            (each for each in everyone if each.is_willing and not each.is_asked),
            key=lambda each: (-each.level, -each.begun_ms),
        )
        found: list[int] = []
        for level in _levels_in_hand([len(hand.items) for hand in self._hands]):
            if stopping > 0:
                # Somebody makes room already; the highest message gets it.
                stopping -= 1
                continue
            if not willing or willing[0].level <= level:
                break
            found.append(willing.pop(0).key)
        return found


@dataclass(frozen=True, slots=True)
class Running:
    """A message that is being worked on."""

    key: int
    level: int
    begun_ms: Millis
    is_willing: bool
    """Its handler has opted in to preemption."""
    is_asked: bool
    """It was asked to stop already."""


def _levels_in_hand(counts: Sequence[int]) -> Iterable[int]:
    for level, count in enumerate(counts):
        yield from [level] * count
