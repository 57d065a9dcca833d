"""What can be chosen for pools of workers: plain values, checked when they are made.

Names are those of the configuration file (`pools_file`). Levels stand in the order in which they
are served: the first is the highest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from typing import Final, Literal, TypeAlias

from tandembus.errors import ArgumentError

StateIn: TypeAlias = Literal["property", "session"]

MAX_SIZE: Final = 1_000
"""Workers of one pool in one process: each may be a thread."""
MAX_PREFETCH: Final = 250
"""What is in hand is out of every order but this pool's; more is a mistake."""


def _check(is_right: bool, words: str) -> None:
    if not is_right:
        raise ArgumentError(words)


@dataclass(frozen=True, slots=True)
class Target:
    """A level's promise (P7): so many percent are processed within so many seconds of their
    arrival."""

    within_s: float
    percent: float = 99.0
    window_s: float = 300.0
    """Over which time the percentage is taken."""
    for_s: float = 0.0
    """So long it must have been missed before there is an alert."""
    at_least: int = 1
    """With fewer messages in the window there is nothing to judge."""

    def __post_init__(self) -> None:
        _check(self.within_s > 0, "target: within_s is above 0")
        _check(0 < self.percent <= 100, "target: percent is above 0, and at most 100")
        _check(self.window_s >= 1, "target: window_s is at least 1")
        _check(self.for_s >= 0, "target: for_s is not negative")
        _check(self.at_least >= 1, "target: at_least is 1 or more")


@dataclass(frozen=True, slots=True)
class Level:
    """One queue, or one subscription, and what is promised for it."""

    name: str
    queue: str | None = None
    topic: str | None = None
    subscription: str | None = None
    sessions: int = 0
    """For an entity with sessions: how many of them are served at once. 0: it has none."""
    state_in: StateIn = "property"
    """Where the state of a message that is given back is kept (P6): on the message, or in the state
    of its session, which then is the pool's own. On Azure only the second counts no delivery."""
    target: Target | None = None

    def __post_init__(self) -> None:
        _check(bool(self.name), "level: name is missing")
        has_topic = self.topic is not None or self.subscription is not None
        is_whole = bool(self.topic) and bool(self.subscription)
        _check(
            (bool(self.queue) and not has_topic) or (self.queue is None and is_whole),
            f"level '{self.name}': either queue, or topic and subscription",
        )
        _check(self.sessions >= 0, f"level '{self.name}': sessions is not negative")
        _check(
            self.state_in in ("property",) + ("session",) * (self.sessions > 0),
            f"level '{self.name}': state_in is property, or, with sessions, session",
        )

    @property
    def path(self) -> str:
        return self.queue or f"{self.topic}/Subscriptions/{self.subscription}"


@dataclass(frozen=True, slots=True)
class DailyWindow:
    """From one time of the day to another, which may be that of the next day. From 22:00 to 22:00
    is the whole day."""

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> DailyWindow:
        """`22:00-06:00`; 24:00 is the end of a day."""
        try:
            start, end = text.split("-")
            first = time.fromisoformat(start.strip())
            last = time() if end.strip() == "24:00" else time.fromisoformat(end.strip())
        except ValueError as error:
            raise ArgumentError(f"a window is written 22:00-06:00, not '{text}'") from error
        return cls(first, last)

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


@dataclass(frozen=True, slots=True)
class Scale:
    """How a pool follows its work (P8). What is None has no say; what it needs for the work that
    comes anyway (`utilization`) always has."""

    min: int = 1
    max: int = 10
    utilization: float = 0.8
    """How busy the workers shall be when nothing waits: the rest is for what comes next."""
    waiting_per_worker: float | None = None
    """Waiting messages for each worker."""
    oldest_s: float | None = None
    """The oldest waiting message shall not be older."""
    follow_target: bool = True
    """Grow while the target of a level is missed."""
    every_s: float = 5.0
    """How often the queues are looked at: each costs two requests a level."""
    up_cooldown_s: float = 10.0
    """After growing, so long no more growing: what it brought must show first."""
    down_after_s: float = 60.0
    """It shrinks to the most that was needed during this time."""
    tolerance: float = 0.1
    """A difference of such a part of its size is none."""
    most_growth: float = 2.0
    """At most so many times its size in one step."""

    def __post_init__(self) -> None:
        _check(0 <= self.min <= self.max, "scale: 0 <= min <= max")
        _check(1 <= self.max <= MAX_SIZE, f"scale: max is 1 to {MAX_SIZE}")
        _check(0 < self.utilization <= 1, "scale: utilization is above 0, and at most 1")
        _check(0 <= self.tolerance < 1, "scale: tolerance is 0 to 1")
        _check(self.most_growth > 1, "scale: most_growth is above 1")
        _check(self.every_s > 0, "scale: every_s is above 0")
        for name in ("waiting_per_worker", "oldest_s"):
            value = getattr(self, name)
            _check(value is None or value > 0, f"scale: {name} is above 0")
        for name in ("up_cooldown_s", "down_after_s"):
            _check(getattr(self, name) >= 0, f"scale: {name} is not negative")


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """One pool of workers over one level, or over several (P4, P5)."""

    name: str
    levels: tuple[Level, ...]
    size: int = 1
    """Messages that are worked on at once."""
    prefetch: int = 1
    """Messages of each level in hand before a worker is free: it hides the way to the broker, and
    is what a later and higher message of the same queue cannot overtake any more."""
    look_ms: int = 100
    """A higher queue that was asked so long ago and has not answered is empty: only then is a lower
    one served. More than the way to the broker and back."""
    windows: tuple[DailyWindow, ...] = ()
    """Times of the day when it works; none: always."""
    time_zone: str = "UTC"
    is_suspended: bool = False
    scale: Scale | None = None
    processes: bool = False
    """Each worker is a process of its own (`tandem workers run` only)."""
    stop_s: float = 30.0
    """At the end, so long for what is being worked on; then it is given back."""

    def __post_init__(self) -> None:
        _check(bool(self.name), "pool: name is missing")
        _check(bool(self.levels), f"pool '{self.name}': no level")
        names = [level.name for level in self.levels]
        _check(len(set(names)) == len(names), f"pool '{self.name}': two levels of one name")
        _check(0 <= self.size <= MAX_SIZE, f"pool '{self.name}': size is 0 to {MAX_SIZE}")
        _check(
            1 <= self.prefetch <= MAX_PREFETCH,
            f"pool '{self.name}': prefetch is 1 to {MAX_PREFETCH}",
        )
        _check(self.look_ms >= 0, f"pool '{self.name}': look_ms is not negative")
        _check(self.stop_s >= 0, f"pool '{self.name}': stop_s is not negative")

    @property
    def most(self) -> int:
        """The most workers that it can have."""
        return max(self.size, self.scale.max if self.scale is not None else 0)

    @property
    def first_size(self) -> int:
        """How many it begins with."""
        if self.scale is None:
            return self.size
        return max(self.scale.min, min(self.scale.max, self.size))
