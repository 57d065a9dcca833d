"""What both shells of a pair have in common: its parts, how they are put together, what they show.

Here is also N10, which side may go on when the other has ended, as a small state of its own
(`Sides`). What waits and what runs beside is the shells'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tandembus.clock import Clock, SystemClock
from tandembus.model import NEVER, Millis
from tandembus.pairing.failures import PairFaultedError
from tandembus.pairing.heart import BacklogQueue, Health, Heart, Listener, SideFaulted
from tandembus.pairing.ledger import Ledger, Operations
from tandembus.pairing.namespaces import Depth, Namespace
from tandembus.pairing.options import PairingOptions, backlog_path, millis

Given: TypeAlias = str | Namespace
"""A connection string, or how to reach a namespace otherwise."""


class SideState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


PRIMARY = "primary"
SECONDARY = "secondary"


class Sides:
    """Close and fault (N10): when one side has ended and the other has not within the grace, the
    other is faulted. With a syphon only: without one, nobody stands between the sides."""

    def __init__(self, clock: Clock, grace_ms: Millis) -> None:
        self.state = {PRIMARY: SideState.OPEN, SECONDARY: SideState.OPEN}
        self.error: dict[str, PairFaultedError] = {}
        self._clock = clock
        self._grace_ms = grace_ms
        self._due_ms: Millis = NEVER

    def end(self, side: str, error: BaseException | None = None) -> None:
        """A side was closed, or faulted with `error`."""
        if self.state[side] is not SideState.OPEN:
            return
        self.state[side] = SideState.CLOSED if error is None else SideState.FAULTED
        if error is not None:
            self.error[side] = PairFaultedError(f"The {side} namespace faulted: {error}")
        is_alone = self.state[other(side)] is SideState.OPEN
        self._due_ms = self._clock.now_ms() + self._grace_ms if is_alone else NEVER

    @property
    def due_ms(self) -> Millis:
        return self._due_ms

    def tick(self) -> str | None:
        """The side that has to be faulted now."""
        if self._due_ms > self._clock.now_ms():
            return None
        self._due_ms = NEVER
        return next(side for side, state in self.state.items() if state is SideState.OPEN)

    def check(self, side: str) -> None:
        """Raises if the side was faulted."""
        if side in self.error:
            raise self.error[side]


def other(side: str) -> str:
    return SECONDARY if side == PRIMARY else PRIMARY


@dataclass(frozen=True, slots=True)
class EntityStatus:
    path: str
    health: Health
    since_ms: Millis
    last_error: str
    sent_to_backlog: int
    """Messages since it failed over."""


@dataclass(frozen=True, slots=True)
class PairStatus:
    entities: Sequence[EntityStatus]
    out_of_rotation: Sequence[str]
    """Paths of backlog queues."""
    primary: SideState
    secondary: SideState
    operations: Operations
    changes: Mapping[tuple[Health, Health], int]
    """How often an entity went from one state to another."""


class Pair:
    """The parts of one pair."""

    def __init__(
        self,
        primary: Given,
        secondary: Given | Sequence[Given],
        options: PairingOptions,
        clock: Clock | None,
        lock: AbstractContextManager[object] | None,
    ) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.primary = Namespace.of(primary, options.client_options)
        given = [secondary] if isinstance(secondary, str | Namespace) else list(secondary)
        if not given:
            raise ValueError("A pair has at least one secondary.")
        self.secondaries = [Namespace.of(each, options.client_options) for each in given]
        self.name = options.primary_name or self.primary.name
        self.ledger = Ledger()
        self.heart = Heart(options, self.clock, secondaries=len(self.secondaries), lock=lock)
        self.sides = Sides(self.clock, millis(options.close_grace))

    def path_of(self, queue: BacklogQueue) -> str:
        return backlog_path(self.name, queue.place)

    def backlog_queues(self) -> list[BacklogQueue]:
        """Of all secondaries."""
        return [
            BacklogQueue(secondary, place)
            for secondary in range(len(self.secondaries))
            for place in range(self.options.backlog_queue_count)
        ]

    def depth(self, queue: BacklogQueue) -> Depth:
        """Asks its namespace, and blocks meanwhile."""
        administration = self.secondaries[queue.secondary].administration
        assert administration is not None
        return administration.depth(self.path_of(queue))

    def status(self) -> PairStatus:
        entities = [
            EntityStatus(
                each.path, each.health, each.since_ms, each.last_error, each.sent_to_backlog
            )
            for each in self.heart.entities()
        ]
        out = [
            f"{self.secondaries[queue.secondary].name}: {self.path_of(queue)}"
            for queue in self.heart.out_of_rotation()
        ]
        state = self.sides.state
        return PairStatus(
            entities,
            out,
            state[PRIMARY],
            state[SECONDARY],
            self.ledger.total(),
            dict(self.heart.changes),
        )

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return self.heart.subscribe(listener)

    def faulted(self, side: str) -> None:
        """N10 has happened to `side`."""
        why = f"the {other(side)} namespace ended, and this one did not follow"
        self.sides.end(side, PairFaultedError(why))
        self.heart.emit(SideFaulted(side, self.clock.now_ms(), why))

    def next_due_ms(self) -> Millis:
        return min(self.heart.next_due_ms(), self.sides.due_ms)
