"""How large a pool should be (P8). Pure: what was seen comes in, a size goes out.

What is needed is the most of:

- what the work that comes keeps busy, divided by `utilization`. Without it a pool that keeps up
  would look idle, shrink, fall behind, and grow again;
- waiting messages ÷ `waiting_per_worker`;
- its size times (age of the oldest message ÷ `oldest_s`), while that is above 1;
- half as many more than now, while a target is missed and something waits.

It grows at once, to at most `most_growth` times its size, and then not again for `up_cooldown_s`.
It shrinks only to the most that was needed at any time of the last `down_after_s`, and never by
less than `tolerance` of its size. So a pool that follows a level load comes to rest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

from tandembus.model import Millis
from tandembus.workers.options import Scale


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a pool's work."""

    busy: float
    """Workers that were busy, on the average since the last look."""
    waiting: int = 0
    """Messages in its queues that nobody has."""
    oldest_s: float = 0.0
    is_target_missed: bool = False


class Scaler:
    """One pool's size over time."""

    def __init__(self, scale: Scale, size: int, now_ms: Millis) -> None:
        self._scale = scale
        self.size = max(scale.min, min(scale.max, size))
        self._grew_ms: Millis | None = None
        self._began_ms = now_ms
        self._needs: deque[tuple[Millis, int]] = deque()

    def needed(self, seen: Seen) -> int:
        """The size that would do, within the bounds."""
        scale, size = self._scale, self.size
        needs = [seen.busy / scale.utilization]
        if scale.waiting_per_worker is not None:
            needs.append(seen.waiting / scale.waiting_per_worker)
        if scale.oldest_s is not None and seen.oldest_s > scale.oldest_s:
            # A pool of none grows by something, too.
            needs.append(max(1, size) * seen.oldest_s / scale.oldest_s)
        if scale.follow_target and seen.is_target_missed and seen.waiting > 0:
            needs.append(max(1, size) * 1.5)
        if seen.waiting > 0:
            needs.append(1)  # a pool that may shrink to none comes back for one message
        return max(scale.min, min(scale.max, ceil(max(needs) - 1e-9)))

    def decide(self, seen: Seen, now_ms: Millis) -> int:
        """The size from now on."""
        scale, size = self._scale, self.size
        need = self.needed(seen)
        self._needs.append((now_ms, need))
        while self._needs[0][0] < now_ms - scale.down_after_s * 1000:
            self._needs.popleft()
        if need > size:
            return self._grow(need, now_ms)
        most = max(each for _, each in self._needs)
        has_watched = now_ms - self._began_ms >= scale.down_after_s * 1000
        if has_watched and most < size and size - most >= scale.tolerance * size:
            self.size = most
        return self.size

    def _grow(self, need: int, now_ms: Millis) -> int:
        scale, size = self._scale, self.size
        is_small = size > 0 and need - size < scale.tolerance * size
        is_early = self._grew_ms is not None and now_ms - self._grew_ms < scale.up_cooldown_s * 1000
        if not is_small and not is_early:
            self.size = min(need, max(size + 1, ceil(size * scale.most_growth)))
            self._grew_ms = now_ms
        return self.size
