"""Figures of a namespace as they change: a sample every few seconds for an hour, and a stream.

One reading serves all who watch. It is taken in pieces, with a turn for everybody else after each:
every second while somebody watches, else for the history only. The stream has the newest sample,
and those entities that have changed, up to a bound.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from tandembus.admin.console.entities import KINDS, counts
from tandembus.admin.console.site import Broker, Visit
from tandembus.changes import EntityKind
from tandembus.engine.metrics import NS_PER_MS
from tandembus.limits import MAX_CONSOLE_PAGE

EVERY_S: Final = 5
KEPT: Final = 720
"""An hour of samples."""
_AT_ONCE: Final = 100
_SUMS: Final = (
    "in",
    "out",
    "active",
    "scheduled",
    "deferred",
    "dead",
    "transfer",
    "transfer_dead",
    "bytes",
)
_WATCH_S: Final = 1.0


class Live:
    """Of one namespace. `keep` is a task for as long as it is served."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.history: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._seen: dict[str, dict[str, int]] = {}
        self._changed: dict[str, dict[str, int]] = {}
        self._sample: dict[str, Any] = {}
        self._watchers = 0
        self._news = asyncio.Event()
        self._looks = 0

    async def keep(self) -> None:
        while True:
            await self._look()
            if not self._watchers or self._looks % EVERY_S == 0:
                self.history.append(self._sample)
            self._looks += 1
            self._news.set()
            self._news = asyncio.Event()
            await self._rest()

    async def _rest(self) -> None:
        """Until the next look; shorter when somebody comes to watch."""
        for _ in range(EVERY_S):
            await asyncio.sleep(_WATCH_S)
            if self._watchers:
                return

    async def _look(self) -> None:
        sums = dict.fromkeys(_SUMS, 0)
        seen: dict[str, dict[str, int]] = {}
        for place, queue in enumerate(self._broker.namespace.entities):
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if queue.kind not in KINDS:
                continue
            found = seen[queue.path] = counts(queue)
            for name in _SUMS:
                # What goes through a topic is counted where it arrives.
                if queue.kind is not EntityKind.TOPIC or name not in ("in", "out"):
                    sums[name] += found[name]
        before, self._seen = self._seen, seen
        self._changed = {path: now for path, now in seen.items() if before.get(path) != now}
        metrics = self._broker.engine.metrics
        self._sample = {
            "at": self._broker.now_ms(),
            **sums,
            "entities": len(seen),
            "commits": metrics.commits,
            "commit_ms": metrics.commit_ns / NS_PER_MS,
            "written": metrics.committed_bytes,
        }

    async def watch(self, visit: Visit) -> AsyncIterator[bytes]:
        """Server-sent events, until the browser goes."""
        self._watchers += 1
        try:
            while True:
                await self._news.wait()
                mine: dict[str, dict[str, int]] = {}
                for path, now in self._changed.items():
                    if len(mine) < MAX_CONSOLE_PAGE and visit.sees(path):
                        mine[path] = now
                event = {"sample": self._sample, "changed": mine}
                yield f"data: {json.dumps(event)}\n\n".encode()
        finally:
            self._watchers -= 1
