"""Who has sent more than a turn of the loop allows goes on later, behind those who ask for little.

A peer works off what it has read for `TURN_MS`. What is then left waits here, and the peer is not
read from meanwhile: all who have such a rest are served in their order, for one such time in a
turn, and while others are there who ask for little only in every third turn. Who has used up its
share of the CPU begins here, too, if there is anybody else to be served.

So a turn stays short however many peers storm, and one that asks for little waits for no queue. A
peer that is alone notices nothing of all this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, Protocol

from tandembus.limits import (
    BURST_MS,
    CHURN_PER_S,
    CPU_SHARE,
    CROWDED_FRAMES_AT_ONCE,
    CROWDED_TURN_MS,
    FRAMES_AT_ONCE,
    MAX_CHURN,
    SECOND_MS,
    TURN_MS,
)

_ALONE: Final = (FRAMES_AT_ONCE, TURN_MS / SECOND_MS)
_CROWDED: Final = (CROWDED_FRAMES_AT_ONCE, CROWDED_TURN_MS / SECOND_MS)
_BURST_S: Final = BURST_MS / SECOND_MS
_LIGHT_S: Final = 0.1
"""So long after the last of them we believe that others are there who ask for little."""
_DISK_S: Final = 0.001
"""So long those who wait here leave the thread that waits for the disk alone, while it is at work
and somebody is there who asks for little: it needs Python's lock for each answer, and comes too
late for it in a storm."""
_MOST_POSTPONED: Final = 3
_SKIPPED: Final = 2
"""Turns without work from here, while such others are there: a message that is sent needs four
turns until its sender knows that it is on disk."""


class Share:
    """What one peer may use before it stands behind the others: CPU time, filled up steadily."""

    __slots__ = ("_at", "left")

    def __init__(self, now: float) -> None:
        self._at = now
        self.left = _BURST_S

    def at(self, now: float) -> float:
        self.left = min(_BURST_S, self.left + (now - self._at) * CPU_SHARE)
        self._at = now
        return self.left


class Worker(Protocol):
    def go_on(self) -> None:
        """Work for at most about one turn; `add` it again if that was not all."""


class Turns:
    """Of one event loop."""

    __slots__ = ("_is_disk_at_work", "_is_running", "_light_at", "_postponed", "_waiting")

    def __init__(self, is_disk_at_work: Callable[[], bool] = lambda: False) -> None:
        self._is_disk_at_work = is_disk_at_work
        self._waiting: deque[Worker | asyncio.Future[None]] = deque()
        self._is_running = False
        self._light_at = 0.0
        self._postponed = 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def note_light(self, now: float) -> None:
        """Somebody asks for little."""
        self._light_at = now

    @property
    def is_crowded(self) -> bool:
        """Whether somebody is there who asks for little."""
        return perf_counter() - self._light_at < _LIGHT_S

    def pace(self, now: float) -> tuple[int, float]:
        """How many frames one may work on at once, and how long."""
        return _CROWDED if now - self._light_at < _LIGHT_S else _ALONE

    def add(self, worker: Worker) -> None:
        """`go_on` is called in a later turn; once for each `add`."""
        self._waiting.append(worker)
        if not self._is_running:
            self._wake(0)

    async def turn(self) -> None:
        """Wait for a turn. What is done then, until the next wait, is that turn's whole work."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if not self._is_running:
            self._wake(0)
        await future

    def _wake(self, skipped: int) -> None:
        self._is_running = True
        asyncio.get_running_loop().call_soon(self._run, skipped)

    def _run(self, skipped: int) -> None:
        if self._postponed < _MOST_POSTPONED and self.is_crowded and self._is_disk_at_work():
            self._postponed += 1
            asyncio.get_running_loop().call_later(_DISK_S, self._run, skipped)
            return
        self._postponed = 0
        if skipped:
            self._wake(skipped - 1)
            return
        began = perf_counter()
        pace = self.pace(began)
        until = began + pace[1]
        waiting = self._waiting
        try:
            for _ in range(len(waiting)):
                first = waiting.popleft()
                if isinstance(first, asyncio.Future):
                    if first.done():
                        continue  # its task was cancelled
                    first.set_result(None)
                    break  # the work comes after this call: nothing else has room in this turn
                first.go_on()
                if perf_counter() > until:
                    break
        finally:  # whatever went wrong with one, the others go on
            if waiting:
                self._wake(_SKIPPED if pace is _CROWDED else 0)
            else:
                self._is_running = False


class Churn:
    """Sessions and links that a peer begins without end, and faster than any honest one."""

    __slots__ = ("_at_ms", "_count")

    def __init__(self) -> None:
        self._count = 0.0
        self._at_ms = 0

    def is_too_much(self, now_ms: int) -> bool:
        """To be asked when one was begun."""
        self._count = max(0.0, self._count - (now_ms - self._at_ms) * CHURN_PER_S / SECOND_MS) + 1
        self._at_ms = now_ms
        return self._count > MAX_CHURN
