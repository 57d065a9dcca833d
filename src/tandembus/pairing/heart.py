"""The heart of a pair: the state of each entity, the rotation of backlog queues, what is due when.

No I/O and no clock: the shells (`aio`, `blocking`) say what happened and what time it is, and ask
what to do. All senders of a pair share one heart; what one of them learns, all know (N5, N8).

    state          trigger                                     next state
    ─────────────  ──────────────────────────────────────────  ─────────────────────────────────────
    HEALTHY        a failure that starts the timer             TIMING; FAILED_OVER if interval is 0
    TIMING         a send that succeeds                        HEALTHY
    TIMING         failover_interval is over                   FAILED_OVER
    FAILED_OVER    a probe that succeeds                       HEALTHY; RETURNING if it is ordered
    RETURNING      its backlog is home                         HEALTHY
    any            engage / mark_healthy                       FAILED_OVER / HEALTHY

In HEALTHY and TIMING a send goes to the primary, in FAILED_OVER and RETURNING to the backlog. Only
FAILED_OVER is probed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from tandembus.clock import Clock
from tandembus.model import NEVER, Millis
from tandembus.pairing.failures import BacklogUnavailableError, brief, starts_timer
from tandembus.pairing.options import PairingOptions, millis

_log: Final = logging.getLogger("tandembus.pairing")

GATE_MS: Final = 2_000
"""Longer than this no sender waits behind the gate, whatever becomes of the look."""
PROBE_LOST_MS: Final = 120_000
"""A probe without an answer for so long is given up; its own time-out is shorter by far."""


class Health(StrEnum):
    HEALTHY = "healthy"
    TIMING = "timing"
    FAILED_OVER = "failed over"
    RETURNING = "returning"


class BacklogQueue(NamedTuple):
    """Queue number `place` of a secondary; `secondary` counts from 0, in the order of their use."""

    secondary: int
    place: int

    def __str__(self) -> str:
        return f"{self.secondary}.{self.place}"


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntityChanged:
    """An entity went from one state to another."""

    path: str
    was: Health
    now: Health
    at_ms: Millis
    why: str


@dataclass(frozen=True, slots=True)
class BacklogChanged:
    """A backlog queue left the rotation, or may be chosen again."""

    queue: BacklogQueue
    is_in_rotation: bool
    at_ms: Millis
    why: str


@dataclass(frozen=True, slots=True)
class SideFaulted:
    """One side of the pair ended without the other, which was faulted then (N10)."""

    side: str
    at_ms: Millis
    why: str


Event: TypeAlias = EntityChanged | BacklogChanged | SideFaulted
Listener: TypeAlias = Callable[[Event], None]


# --- entities -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Entity:
    """One queue or topic of the primary, as this pair sees it."""

    path: str
    health: Health = Health.HEALTHY
    since_ms: Millis = 0
    failing_since_ms: Millis = 0
    last_error: str = ""
    probe_due_ms: Millis = NEVER
    probing_since_ms: Millis | None = None
    is_held: bool = False
    """Engaged by hand, to stay so until it is marked healthy."""
    sent_to_backlog: int = 0
    """Messages since it failed over."""
    used: set[BacklogQueue] = field(default_factory=set)
    """Backlog queues that may have messages for it, from this pair."""
    under_way: int = 0
    """Sends to backlogs that are not answered yet."""
    gated_until_ms: Millis = 0
    """Above 0: its backlog is looked through, and nothing may be added meanwhile: sends wait, but
    not beyond this."""

    @property
    def uses_primary(self) -> bool:
        return self.health is Health.HEALTHY or self.health is Health.TIMING


class Heart:
    """All that the senders, the probes and the shells of one pair share."""

    def __init__(
        self,
        options: PairingOptions,
        clock: Clock,
        *,
        secondaries: int = 1,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.options = options
        self.clock = clock
        self.changes: Counter[tuple[Health, Health]] = Counter()
        """How often each change of state has happened."""
        self._entities: dict[str, Entity] = {}
        self._left: dict[BacklogQueue, Millis] = {}
        """Queues out of the rotation, and when each may come back."""
        self._secondaries = secondaries
        self._listeners: list[Listener] = []
        self._lock = nullcontext() if lock is None else lock
        self._interval_ms = millis(options.failover_interval)
        self._probe_ms = millis(options.ping_primary_interval)
        self._retry_ms = millis(options.backlog_retry_interval)

    # --- entities ---------------------------------------------------------------------------------

    def entity(self, path: str) -> Entity:
        """Entities are told apart as the broker does: without regard to case."""
        key = path.strip("/").lower()
        with self._lock:
            found = self._entities.get(key)
            if found is None:
                found = self._entities[key] = Entity(path.strip("/"), since_ms=self.clock.now_ms())
            return found

    def entities(self) -> list[Entity]:
        with self._lock:
            return list(self._entities.values())

    def succeeded(self, entity: Entity) -> None:
        """A send to the primary was taken."""
        if entity.health is Health.TIMING:
            with self._lock:
                if entity.health is Health.TIMING:
                    self._change(entity, Health.HEALTHY, "a send succeeded")

    def failed(self, entity: Entity, error: BaseException) -> bool:
        """A send to the primary failed. True: failover is engaged, so it goes to the backlog."""
        if not starts_timer(error):
            return False
        with self._lock:
            now_ms = self.clock.now_ms()
            entity.last_error = brief(error)
            if entity.health is Health.HEALTHY:
                entity.failing_since_ms = now_ms
                if self._interval_ms:
                    self._change(entity, Health.TIMING, entity.last_error)
                    return False
                self._engage(entity, now_ms, entity.last_error)
            elif entity.health is Health.TIMING:
                if now_ms - entity.failing_since_ms < self._interval_ms:
                    return False
                self._engage(entity, now_ms, entity.last_error)
            return True

    def engage(self, path: str, *, hold: bool = False) -> None:
        """Send to the backlog from now on; with `hold` until `mark_healthy`, answer or not."""
        entity = self.entity(path)
        with self._lock:
            entity.is_held = hold
            if entity.health is not Health.FAILED_OVER:
                self._engage(entity, self.clock.now_ms(), "engaged by hand")
            else:
                entity.probe_due_ms = NEVER if hold else self.clock.now_ms() + self._probe_ms

    def mark_healthy(self, path: str) -> None:
        """Send to the primary from now on."""
        entity = self.entity(path)
        with self._lock:
            if entity.health is not Health.HEALTHY:
                self._change(entity, Health.HEALTHY, "marked healthy by hand")

    def _engage(self, entity: Entity, now_ms: Millis, why: str) -> None:
        entity.probe_due_ms = NEVER if entity.is_held else now_ms + self._probe_ms
        self._change(entity, Health.FAILED_OVER, why)

    def _change(self, entity: Entity, health: Health, why: str) -> None:
        was, now_ms = entity.health, self.clock.now_ms()
        entity.health, entity.since_ms = health, now_ms
        if health is not Health.FAILED_OVER:
            entity.probe_due_ms = NEVER
            entity.is_held = False
        if health is Health.HEALTHY:
            entity.used.clear()
            entity.sent_to_backlog = 0
        self.changes[was, health] += 1
        level = logging.WARNING if health is Health.FAILED_OVER else logging.INFO
        _log.log(level, "%s is %s (was %s): %s", entity.path, health, was, why)
        self._emit(EntityChanged(entity.path, was, health, now_ms, why))

    # --- time -------------------------------------------------------------------------------------

    def tick(self) -> list[Entity]:
        """Let what is due happen. Returns the entities to probe now; each is asked once at a time,
        and `probed` has to be told the answer."""
        due = []
        with self._lock:
            now_ms = self.clock.now_ms()
            for entity in self._entities.values():
                if entity.health is Health.TIMING:
                    if now_ms - entity.failing_since_ms >= self._interval_ms:
                        self._engage(entity, now_ms, entity.last_error)
                elif entity.probe_due_ms <= now_ms:
                    entity.probe_due_ms = now_ms + self._probe_ms
                    since_ms = entity.probing_since_ms
                    # One that the SDK never answers must not be the last.
                    if since_ms is None or now_ms - since_ms >= PROBE_LOST_MS:
                        entity.probing_since_ms = now_ms
                        due.append(entity)
            for queue in [each for each, back in self._left.items() if back <= now_ms]:
                del self._left[queue]
                self._emit(BacklogChanged(queue, True, now_ms, "its time is over"))
        return due

    def next_due_ms(self) -> Millis:
        """When `tick` has something to do; NEVER if nothing is known to come."""
        due = NEVER
        with self._lock:
            for entity in self._entities.values():
                if entity.health is Health.TIMING:
                    due = min(due, entity.failing_since_ms + self._interval_ms)
                else:
                    due = min(due, entity.probe_due_ms)
            return min([due, *self._left.values()])

    def probed(self, entity: Entity, error: BaseException | None) -> None:
        """The answer to a probe; the first that succeeds sends everyone back (N8)."""
        with self._lock:
            entity.probing_since_ms = None
            if error is not None:
                entity.last_error = brief(error)
                _log.info("%s does not answer yet: %s", entity.path, entity.last_error)
            elif entity.health is Health.FAILED_OVER and not entity.is_held:
                if self.options.ordered_return and (entity.used or entity.under_way):
                    self._change(entity, Health.RETURNING, "it answers; its backlog goes home")
                else:
                    self._change(entity, Health.HEALTHY, "it answers")

    def gate(self, entity: Entity, *, is_shut: bool) -> None:
        """Let sends of the entity wait, while somebody makes sure that its backlog is empty."""
        with self._lock:
            entity.gated_until_ms = self.clock.now_ms() + GATE_MS if is_shut else 0

    def came_home(self, entity: Entity) -> bool:
        """No backlog queue has a message of this pair for the entity, behind a shut gate. False if
        one is still on its way there, or came through meanwhile, so that it has to be looked at
        again."""
        with self._lock:
            is_gated = entity.gated_until_ms > 0
            if not is_gated or entity.under_way or entity.health is not Health.RETURNING:
                return False
            self._change(entity, Health.HEALTHY, "its backlog is home")
            return True

    # --- backlog queues ---------------------------------------------------------------------------

    def choose(self, chosen: BacklogQueue | None) -> BacklogQueue:
        """The backlog queue for a sender that has `chosen` one before: the same while it is in the
        rotation, else one at random, of the first secondary that has one (N5)."""
        with self._lock:
            now_ms = self.clock.now_ms()
            if chosen is not None and self._is_in(chosen, now_ms):
                return chosen
            for secondary in range(self._secondaries):
                queues = [
                    queue
                    for place in range(self.options.backlog_queue_count)
                    if self._is_in(queue := BacklogQueue(secondary, place), now_ms)
                ]
                if queues:
                    return queues[self.clock.random_bits(32) % len(queues)]
        raise BacklogUnavailableError(
            "The primary is unavailable, and none of the "
            f"{self._secondaries * self.options.backlog_queue_count} backlog queues takes messages."
        )

    def left(self, queue: BacklogQueue, error: BaseException) -> None:
        """A send to it failed: no sender of the pair chooses it for a while."""
        with self._lock:
            now_ms = self.clock.now_ms()
            is_news = self._is_in(queue, now_ms)
            self._left[queue] = now_ms + self._retry_ms
            if is_news:
                why = brief(error)
                _log.warning("backlog queue %s leaves the rotation: %s", queue, why)
                self._emit(BacklogChanged(queue, False, now_ms, why))

    def _is_in(self, queue: BacklogQueue, now_ms: Millis) -> bool:
        return self._left.get(queue, now_ms) <= now_ms

    def out_of_rotation(self) -> Sequence[BacklogQueue]:
        with self._lock:
            now_ms = self.clock.now_ms()
            return sorted(queue for queue in self._left if not self._is_in(queue, now_ms))

    def goes_to(self, entity: Entity, queue: BacklogQueue) -> bool:
        """A send of messages for `entity` to `queue` begins. False: not now, the gate is shut or
        the primary is used again."""
        with self._lock:
            if entity.uses_primary or entity.gated_until_ms > self.clock.now_ms():
                return False
            entity.gated_until_ms = 0
            entity.used.add(queue)
            entity.under_way += 1
            return True

    def went(self, entity: Entity, count: int) -> None:
        """It has ended, with `count` messages taken."""
        with self._lock:
            entity.under_way -= 1
            entity.sent_to_backlog += count

    def now_ms(self) -> Millis:
        """A clock is read by one thread at a time."""
        with self._lock:
            return self.clock.now_ms()

    def fresh_id(self) -> str:
        with self._lock:
            return str(UUID(int=self.clock.random_bits(128), version=4))

    # --- events -----------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """`listener` is called with each event, in the thread where it happens; it must be quick.
        Returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def emit(self, event: Event) -> None:
        with self._lock:
            self._emit(event)

    def _emit(self, event: Event) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - not ours
                # A caller's mistake must neither stop the failover nor hide: it is logged whole.
                _log.exception("a listener failed")
