"""The state table of a message: THE place that says what can become of one.

    (nothing) ──send──▶ WAITING ──lock──▶ LOCKED ──complete──▶ GONE
        │                  ▲  ▲             │ │ └──dead-letter─▶ GONE (and WAITING in the DLQ)
     schedule              │  └──return─────┘ └──defer──▶ DEFERRED ◀─┐
        ▼                activate                          │ lock    │ return, defer
    SCHEDULED ─────────────┘                               ▼         │
        └──cancel──▶ GONE                            DEFERRED_LOCKED ┘──complete…──▶ GONE

    LOCKED ──delay──▶ DELAYED ──activate──▶ WAITING ◀──activate── DEFERRED

A pair that is not in `TRANSITIONS` cannot happen: `queue` asks the table before it changes
anything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class State(IntEnum):
    WAITING = 0
    LOCKED = 1
    DEFERRED = 2
    SCHEDULED = 3
    GONE = 4
    DEFERRED_LOCKED = 5
    DELAYED = 6
    """Abandoned with a delay: it waits for its time, and then again in its old place."""


class Trigger(IntEnum):
    LOCK = 0
    RETURN = 1
    """Abandoned, released, or the lock ran out."""
    DEFER = 2
    REMOVE = 3
    """Completed, dead-lettered, cancelled, purged, forwarded; expired; taken."""
    EXPIRE = 4
    """The time to live is over."""
    DELAY = 5
    """Abandoned, to come back later."""
    ACTIVATE = 6
    """The delay is over, or somebody asked for it."""


S, T = State, Trigger

TRANSITIONS: Final[dict[tuple[State, Trigger], State]] = {
    (S.WAITING, T.LOCK): S.LOCKED,
    (S.WAITING, T.REMOVE): S.GONE,
    (S.WAITING, T.EXPIRE): S.GONE,
    (S.LOCKED, T.RETURN): S.WAITING,
    (S.LOCKED, T.DEFER): S.DEFERRED,
    (S.LOCKED, T.REMOVE): S.GONE,
    (S.LOCKED, T.DELAY): S.DELAYED,
    (S.DELAYED, T.ACTIVATE): S.WAITING,
    (S.DELAYED, T.REMOVE): S.GONE,
    (S.DEFERRED, T.LOCK): S.DEFERRED_LOCKED,
    (S.DEFERRED, T.REMOVE): S.GONE,
    (S.DEFERRED, T.ACTIVATE): S.WAITING,
    (S.DEFERRED_LOCKED, T.RETURN): S.DEFERRED,
    (S.DEFERRED_LOCKED, T.DEFER): S.DEFERRED,
    (S.DEFERRED_LOCKED, T.DELAY): S.DEFERRED,
    (S.DEFERRED_LOCKED, T.REMOVE): S.GONE,
    (S.SCHEDULED, T.REMOVE): S.GONE,
}
"""(state, trigger) → state."""

STATES: Final = tuple(State)
_TABLE: Final = [[TRANSITIONS.get((state, trigger)) for trigger in Trigger] for state in State]


def after(state: int, trigger: Trigger) -> int:
    """The state that follows. A pair that the table does not have is a fault of ours."""
    following = _TABLE[state][trigger]
    assert following is not None, f"{State(state).name} does not take {trigger.name}"
    return following
