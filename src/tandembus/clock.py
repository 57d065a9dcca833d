"""The only reader of time and randomness. Everything else is given a `Clock`, or `now` itself.

The rule: time never runs backwards, and a step of the wall clock (a day forward, by a bad time
server) neither ends a lock early nor lets one live on. So elapsed time is taken from a steady
clock, and the difference to the wall clock is worn off slowly.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Final, Protocol

NS_PER_MS: Final = 1_000_000
SLEW: Final = 10
"""The wall clock is approached by at most one part in this many of the elapsed time."""
LOOK_NS: Final = 20 * NS_PER_MS
"""How often the wall clock is looked at: a hot path asks for the time, not for the difference."""

_RANDOM_BYTES: Final = 4_096

STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux the steady clock that also counts while the machine sleeps: a lock must not outlive
that."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC; never less than an earlier answer."""
        ...

    def not_before(self, now_ms: int) -> None:
        """It is at least `now_ms`: so says the log of a former life, whose wall clock was ahead."""
        ...

    def random_bits(self, count: int) -> int: ...

    def stopwatch_ns(self) -> int:
        """For the length of something, in any thread: two readings are subtracted."""
        ...


class SystemClock:
    """Production's clock. One thread reads it."""

    def __init__(self) -> None:
        self._looked_ns = time.clock_gettime_ns(STEADY)
        """When the wall clock was looked at, by the steady one."""
        self._offset_ns = time.time_ns() - self._looked_ns
        self._random = b""
        self._random_at = 0

    def now_ms(self) -> int:
        steady_ns = time.clock_gettime_ns(STEADY)
        elapsed_ns = steady_ns - self._looked_ns
        if elapsed_ns >= LOOK_NS:
            self._looked_ns = steady_ns
            bound = elapsed_ns // SLEW
            gap = time.time_ns() - steady_ns - self._offset_ns
            self._offset_ns += max(-bound, min(bound, gap))
        return (steady_ns + self._offset_ns) // NS_PER_MS

    def not_before(self, now_ms: int) -> None:
        self._offset_ns = max(self._offset_ns, now_ms * NS_PER_MS - self._looked_ns)

    def random_bits(self, count: int) -> int:
        """From the system's source, fetched in bulk: each message needs some."""
        at, size = self._random_at, (count + 7) >> 3
        if at + size > len(self._random):
            self._random, at = secrets.token_bytes(max(_RANDOM_BYTES, size)), 0
        self._random_at = at + size
        return int.from_bytes(self._random[at : at + size]) >> (-count & 7)

    def stopwatch_ns(self) -> int:
        return time.perf_counter_ns()


class MovableClock:
    """Real time, and what a test has added to it: time-outs of real clients still work, and an hour
    passes when the test says so. For test mode only."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.moved_ms = 0
        """How far ahead of the real time it is."""

    def now_ms(self) -> int:
        return self._real.now_ms() + self.moved_ms

    def not_before(self, now_ms: int) -> None:
        self.moved_ms += max(0, now_ms - self.now_ms())

    def advance(self, ms: int) -> None:
        assert ms >= 0, "time does not run backwards"
        self.moved_ms += ms

    def random_bits(self, count: int) -> int:
        return self._real.random_bits(count)

    def stopwatch_ns(self) -> int:
        return self._real.stopwatch_ns()


class ManualClock:
    """A clock that a test or the simulator moves; its randomness comes from a seed."""

    def __init__(self, now_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self._now_ms = now_ms
        self._looks = 0
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        return self._now_ms

    def not_before(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)

    def advance(self, ms: int) -> None:
        assert ms >= 0, "time does not run backwards"
        self._now_ms += ms

    def random_bits(self, count: int) -> int:
        return self._random.getrandbits(count)

    def stopwatch_ns(self) -> int:
        self._looks += 1  # no two looks at it show the same
        return self._now_ms * NS_PER_MS + self._looks
