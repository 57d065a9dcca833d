"""What a seed means: which entities and clients there are, what they do, and which faults come.

What lives here: `Mix`, drawn from a seed before anything happens, and `Place` and `Target`, what
the checkers know of the entities. What does not: anything that happens (`world`, `clients`) or is
checked (`checkers`).

The rule: entities that forward to each other are one *family*, and a message is at most once in a
family. So the checkers know a message in a family by the number that is in its body.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandembus.core.commands import Command, CreateQueue, CreateSubscription, CreateTopic
from tandembus.core.rules import CorrelationFilter, Rule, SqlAction, SqlFilter
from tandembus.engine.engine import Tuning
from tandembus.limits import KIB, MIB
from tandembus.model import NEVER, Millis
from tandembus.settings import (
    EntityStatus,
    PrioritySettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)

COLOURS: Final = ("red", "green", "blue")
DEAD: Final = "/$DeadLetterQueue"
TRANSFER: Final = "/$Transfer"


@dataclass(frozen=True, slots=True)
class Place:
    """An entity that holds messages, as far as a checker must know it."""

    path: str
    family: str
    lock_ms: Millis
    max_delivery_count: int
    has_sessions: bool = False
    levels: int = 1
    is_dead_letter: bool = False
    is_relay: bool = False
    """Messages do not stay here: nobody receives from it."""


@dataclass(frozen=True, slots=True)
class Route:
    """One way that a message sent to a target can go: it is in one family at the end."""

    family: str
    paths: tuple[str, ...]
    """Where it gets a number of its own, in order."""
    colour: str | None = None
    """Only for messages of this colour; None: for all."""
    ttl_ms: Millis = NEVER
    """The shortest time to live on the way."""
    expired_are_kept: bool = False
    """Expired messages are moved to a dead-letter queue."""


@dataclass(frozen=True, slots=True)
class Target:
    """A queue or topic that messages are sent to."""

    path: str
    routes: tuple[Route, ...]
    has_sessions: bool = False
    levels: int = 1
    window_ms: Millis = 0
    ttl_ms: Millis = NEVER
    """The largest that messages get here."""


@dataclass(slots=True)
class Mix:
    """The draw. Rates are chances for each event, or counts for an hour."""

    seed: int
    creates: list[Command] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    # the store
    is_on_files: bool = False
    segment_bytes: int = 32 * KIB
    tuning: Tuning = field(default_factory=Tuning)
    # clients
    senders: int = 3
    receivers_per_place: float = 1.5
    think_ms: int = 8_000
    burst: float = 0.2
    eager: float = 0.3
    """Chance that a client reacts in the very callback."""
    schedules: float = 0.0
    lives: float = 0.0
    """Share of messages with a time to live of their own."""
    transactions: float = 0.0
    takes: float = 0.0
    """Share of receivers in receive-and-delete."""
    rude: float = 0.0
    """Share of settlements that come late, twice or with a foreign token."""
    vanishes: float = 0.0
    purges: bool = False
    # faults
    commit_ms: tuple[int, int] = (1, 20)
    slow_commits: float = 0.0
    crashes: float = 0.0
    """For an hour."""
    ambushes: float = 0.75
    """Share of the crashes that wait for something to be in flight."""
    recovery_crashes: float = 0.0
    clean_stops: float = 0.0
    """Share of the ends that are none."""
    disk_errors: float = 0.0
    """Share of the crashes that begin with an error of the disk."""
    disk_full: float = 0.0
    """Spells for an hour."""
    leaps: float = 0.0
    """Chance that the clock leaps, forward in a life, either way between two."""
    late_ticks_ms: int = 0

    def __str__(self) -> str:
        return (
            f"{'files' if self.is_on_files else 'memory'}, {'+'.join(self.features) or 'plain'}, "
            f"{self.crashes:.0f} crashes/h, commits {self.commit_ms[0]}-{self.commit_ms[1]} ms, "
            f"think {self.think_ms} ms, leaps {self.leaps}, rude {self.rude}, "
            f"segments {self.segment_bytes}, {len(self.places)} places, {self.senders} senders"
        )

    @property
    def receivable(self) -> Sequence[Place]:
        return [place for place in self.places.values() if not place.is_relay]


FEATURES: Final = (
    "sessions",
    "duplicates",
    "ttl",
    "schedules",
    "levels",
    "topics",
    "forwards",
    "dead-forwards",
    "refusals",
    "transactions",
    "partitions",
    "takes",
    "purges",
)


def draw(seed: int) -> Mix:
    rng = random.Random(f"mix {seed}")
    mix = Mix(seed)
    chance = rng.choice((0.15, 0.35, 0.6))
    mix.features = [name for name in FEATURES if rng.random() < chance]
    _draw_store(mix, rng)
    _draw_clients(mix, rng)
    _draw_faults(mix, rng)
    _Entities(mix, rng).draw()
    mix.senders = rng.randint(2, 2 + len(mix.receivable) // 4)
    return mix


def _draw_store(mix: Mix, rng: random.Random) -> None:
    mix.is_on_files = rng.random() < 0.45
    mix.segment_bytes = rng.choice((8, 24, 64)) * KIB
    mix.tuning = Tuning(
        group_bytes=rng.choice((1 * KIB, 8 * KIB, 1 * MIB)),
        staged_bytes=rng.choice((24 * KIB, 1 * MIB, 64 * MIB)),
        cache_bytes=rng.choice((0, 4 * KIB, 256 * KIB)),
        free_bytes=1 * MIB,
        segment_bytes=rng.choice((8 * KIB, 32 * KIB, 128 * KIB)),
        move_bytes=rng.choice((1 * KIB, 8 * KIB)),
    )


def _draw_clients(mix: Mix, rng: random.Random) -> None:
    mix.receivers_per_place = rng.choice((1.0, 1.4, 2.0))
    mix.think_ms = rng.choice((30_000, 50_000, 80_000))
    mix.burst = rng.choice((0.05, 0.2, 0.5))
    mix.eager = rng.choice((0.0, 0.3, 0.9))
    mix.schedules = rng.choice((0.1, 0.3)) if "schedules" in mix.features else 0.0
    mix.lives = rng.choice((0.05, 0.3)) if "ttl" in mix.features else 0.0
    mix.transactions = rng.choice((0.1, 0.25)) if "transactions" in mix.features else 0.0
    mix.takes = rng.choice((0.15, 0.4)) if "takes" in mix.features else 0.0
    mix.purges = "purges" in mix.features
    mix.rude = rng.choice((0.0, 0.05, 0.2))
    mix.vanishes = rng.choice((0.0, 0.02, 0.1))


def _draw_faults(mix: Mix, rng: random.Random) -> None:
    slow = rng.random()
    mix.commit_ms = (1, 20) if slow < 0.5 else (5, 400) if slow < 0.8 else (100, 3_000)
    mix.slow_commits = rng.choice((0.0, 0.02))
    mix.crashes = rng.choice((0.0, 2.0, 6.0, 12.0))
    mix.recovery_crashes = rng.choice((0.0, 0.3))
    mix.clean_stops = rng.choice((0.0, 0.2))
    mix.disk_errors = rng.choice((0.0, 0.2))
    mix.disk_full = rng.choice((0.0, 0.0, 3.0))
    mix.leaps = rng.choice((0.0, 0.0, 0.3))
    mix.late_ticks_ms = rng.choice((0, 0, 0, 200, 3_000))


class _Entities:
    """Draws the entities of a mix."""

    def __init__(self, mix: Mix, rng: random.Random) -> None:
        self._mix = mix
        self._random = rng
        self._features = set(mix.features)

    def draw(self) -> None:
        features = self._features
        plain = self._queue("q")
        if "sessions" in features:
            self._queue("sessions", requires_session=True)
        if "levels" in features:
            self._queue("levels", priority=self._priority())
        if "duplicates" in features:
            window = self._random.choice((20_000, 120_000, 600_000))
            self._queue("once", requires_duplicate_detection=True, duplicate_window_ms=window)
        if "ttl" in features:
            self._queue("short", default_ttl_ms=self._random.choice((5_000, 60_000, 600_000)))
        if "partitions" in features:
            self._queue("parted", enable_partitioning=True)
        if "topics" in features:
            self._topic()
        if "forwards" in features:
            self._forwarder("first", plain)
        if "dead-forwards" in features:
            self._buried()
        if "refusals" in features:
            self._refused()

    def _holding(self) -> dict[str, Any]:
        rng = self._random
        values: dict[str, Any] = {
            "lock_duration_ms": rng.choice((5_000, 15_000, 60_000)),
            "max_delivery_count": rng.choice((1, 2, 3, 10)),
        }
        if "ttl" in self._features:
            values["dead_letter_on_expiration"] = rng.random() < 0.5
        return values

    def _priority(self) -> PrioritySettings:
        levels = self._random.choice((2, 3, 10))
        draw = self._random.random()
        if draw < 0.4:
            return PrioritySettings(levels, aging_ms_per_level=self._random.choice((500, 20_000)))
        weights = tuple(self._random.randint(1, 9) for _ in range(levels))
        return PrioritySettings(levels, weights=weights if draw < 0.6 else None)

    def _queue(self, path: str, **more: Any) -> Target:
        settings = QueueSettings(**{**self._holding(), **more})
        self._mix.creates.append(CreateQueue(path, settings))
        self._place(path, path, settings)
        route = Route(
            path,
            (path,),
            None,
            settings.default_ttl_ms,
            settings.dead_letter_on_expiration,
        )
        target = Target(
            path,
            (route,),
            settings.requires_session,
            1 if settings.priority is None else settings.priority.levels,
            settings.duplicate_window_ms if settings.requires_duplicate_detection else 0,
            settings.default_ttl_ms,
        )
        self._mix.targets.append(target)
        return target

    def _place(
        self,
        path: str,
        family: str,
        settings: QueueSettings | SubscriptionSettings,
        *,
        is_relay: bool = False,
    ) -> None:
        levels = 1 if settings.priority is None else settings.priority.levels
        lock, count = settings.lock_duration_ms, settings.max_delivery_count
        sessions = settings.requires_session
        buries = settings.forward_dead_letters_to is not None
        places = self._mix.places
        places[path] = Place(path, family, lock, count, sessions, levels, is_relay=is_relay)
        places[path + DEAD] = Place(
            path + DEAD, family, lock, count, is_dead_letter=True, is_relay=buries
        )

    def _forwarder(self, path: str, target: Target) -> None:
        """A queue, or two in a row, that forward to a plain one."""
        (route,) = target.routes
        for name in (path, path + "-before")[: self._random.choice((1, 2))]:
            settings = QueueSettings(**{**self._holding(), "forward_to": route.paths[0]})
            self._mix.creates.append(CreateQueue(name, settings))
            self._place(name, route.family, settings, is_relay=True)
            ttl = min(route.ttl_ms, settings.default_ttl_ms)
            kept = route.expired_are_kept and settings.dead_letter_on_expiration
            route = Route(route.family, (name, *route.paths), None, ttl, kept)
            self._mix.targets.append(Target(name, (route,)))

    def _refused(self) -> None:
        """A queue whose target takes nothing: all goes to its transfer dead-letter queue."""
        shut = QueueSettings(status=EntityStatus.SEND_DISABLED)
        self._mix.creates.append(CreateQueue("shut", shut))
        settings = QueueSettings(**{**self._holding(), "forward_to": "shut"})
        self._mix.creates.append(CreateQueue("refused", settings))
        self._place("refused", "refused", settings, is_relay=True)
        path, lock = f"refused{TRANSFER}{DEAD}", settings.lock_duration_ms
        self._mix.places[path] = Place(
            path, "refused", lock, settings.max_delivery_count, is_dead_letter=True
        )
        route = Route("refused", ("refused",), None, NEVER, settings.dead_letter_on_expiration)
        self._mix.targets.append(Target("refused", (route,)))

    def _buried(self) -> None:
        """A queue whose dead letters are forwarded to another one."""
        graves = QueueSettings(**self._holding())
        self._mix.creates.append(CreateQueue("graves", graves))
        self._place("graves", "mortal", graves)
        settings = QueueSettings(**{**self._holding(), "forward_dead_letters_to": "graves"})
        self._mix.creates.append(CreateQueue("mortal", settings))
        self._place("mortal", "mortal", settings)
        kept = settings.dead_letter_on_expiration and graves.dead_letter_on_expiration
        route = Route("mortal", ("mortal", "graves"), None, NEVER, kept)
        self._mix.targets.append(Target("mortal", (route,)))

    def _topic(self) -> None:
        rng = self._random
        window = rng.choice((0, 60_000)) if "duplicates" in self._features else 0
        settings = TopicSettings(
            requires_duplicate_detection=bool(window), duplicate_window_ms=window or 20_000
        )
        self._mix.creates.append(CreateTopic("topic", settings))
        routes = []
        rules: list[tuple[str | None, Rule | None]] = [
            (None, None),
            ("red", Rule("red", SqlFilter("colour = 'red'"), None, 0)),
            ("blue", Rule("blue", CorrelationFilter(label="blue"), None, 0)),
            (
                "green",
                Rule("green", SqlFilter("colour LIKE 'g%'"), SqlAction("SET seen = 'yes'"), 0),
            ),
        ]
        for at, (colour, rule) in enumerate(rules[: rng.randint(1, 4)]):
            name = colour or "every"
            holding = self._holding()
            path = f"topic/Subscriptions/{name}"
            paths: tuple[str, ...] = ("topic", path)
            kept = bool(holding.get("dead_letter_on_expiration"))
            if at == 0 and "forwards" in self._features:
                sink = QueueSettings(**self._holding())
                self._mix.creates.append(CreateQueue("sink", sink))
                self._place("sink", path, sink)
                paths += ("sink",)
                kept = kept and sink.dead_letter_on_expiration
                holding["forward_to"] = "sink"
            given = SubscriptionSettings(**holding)
            self._mix.creates.append(CreateSubscription("topic", name, given, rule))
            self._place(path, path, given, is_relay=given.forward_to is not None)
            routes.append(Route(path, paths, colour, NEVER, kept))
        self._mix.targets.append(Target("topic", tuple(routes), window_ms=window))
