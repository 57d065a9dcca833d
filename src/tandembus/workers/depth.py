"""How much waits in a queue, and how old the oldest message is: what autoscale and the view need.

The length comes from the administration API, over HTTP, where the connection string has a key with
Manage; else messages are browsed and counted, to a bound. The age comes from browsing: the oldest
message that this process has not begun. Each look costs one request for each of the two (P11).

For an entity with sessions the age is not known: it cannot be browsed without a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tandembus.client import Client
from tandembus.clock import Clock
from tandembus.errors import TandemError
from tandembus.workers.options import Level

_log: Final = logging.getLogger("tandembus.workers")

PAGE: Final = 250
MOST_COUNTED: Final = 1_000
"""Without Manage, a queue that is longer looks as long as this."""
ADMINISTRATION_S: Final = 10.0
_ACTIVE: Final = 0
"""ServiceBusMessageState.ACTIVE: neither deferred nor scheduled."""


@dataclass(frozen=True, slots=True)
class Depth:
    """None: not known."""

    waiting: int | None = None
    """Messages that this process has not begun."""
    oldest_s: float | None = None


class Looker(Protocol):
    """Where a pool's depths come from."""

    operations: Counter[str]

    async def look(self, level: Level, begun: Collection[int]) -> Depth:
        """`begun` are the sequence numbers of the messages that are being worked on."""
        ...

    async def close(self) -> None: ...


class QueueLooker:
    """Through the SDK and the administration API."""

    def __init__(self, client: Any, connection_string: str | None, clock: Clock) -> None:
        self._client = client
        self._administration: Client | None = None
        if connection_string is not None:
            self._administration = Client(connection_string, timeout_s=ADMINISTRATION_S)
        self._clock = clock
        self._receivers: dict[str, Any] = {}
        self.operations: Counter[str] = Counter()

    async def look(self, level: Level, begun: Collection[int]) -> Depth:
        waiting = await self._count(level, len(begun))
        if level.sessions:
            return Depth(waiting)
        try:
            browsed, oldest_s = await self._browse(level, begun, only_oldest=waiting is not None)
        except Exception as error:  # noqa: BLE001 - the SDK trips in many ways
            _log.info("%s cannot be browsed: %s", level.path, error)
            await self._drop(level.path)
            return Depth(waiting)
        return Depth(browsed if waiting is None else waiting, oldest_s)

    async def _count(self, level: Level, begun: int) -> int | None:
        if self._administration is None:
            return None
        entities = self._administration.entities
        self.operations["count"] += 1
        try:
            if level.queue is not None:
                found = await asyncio.to_thread(entities.get_queue, level.queue)
            else:
                assert level.topic is not None
                assert level.subscription is not None
                found = await asyncio.to_thread(
                    entities.get_subscription, level.topic, level.subscription
                )
        except (TandemError, OSError) as error:
            _log.info("%s cannot be counted: %s", level.path, error)
            return None
        # What is locked is active, too.
        return max(0, found.counts.get("ActiveMessageCount", 0) - begun)

    async def _browse(
        self, level: Level, begun: Collection[int], *, only_oldest: bool
    ) -> tuple[int, float | None]:
        receiver = await self._receiver(level)
        oldest_s: float | None = None
        waiting, start = 0, 1
        while waiting < MOST_COUNTED:
            self.operations["peek"] += 1
            size = min(PAGE, len(begun) + 1) if only_oldest and start == 1 else PAGE
            page = await receiver.peek_messages(size, sequence_number=start)
            for message in page:
                start = max(start, message.sequence_number + 1)
                if message.sequence_number in begun or int(message.state) != _ACTIVE:
                    continue
                waiting += 1
                if oldest_s is None and message.enqueued_time_utc is not None:
                    enqueued_ms = message.enqueued_time_utc.timestamp() * 1000
                    oldest_s = max(0.0, (self._clock.now_ms() - enqueued_ms) / 1000)
            if not page or (only_oldest and waiting):
                break
        return waiting, oldest_s

    async def _receiver(self, level: Level) -> Any:
        """One of its own, that takes nothing: the pool's are busy with listening."""
        found = self._receivers.get(level.path)
        if found is None:
            if level.queue is not None:
                found = self._client.get_queue_receiver(level.queue)
            else:
                found = self._client.get_subscription_receiver(level.topic, level.subscription)
            self._receivers[level.path] = found
        return found

    async def _drop(self, path: str) -> None:
        receiver = self._receivers.pop(path, None)
        if receiver is not None:
            with suppress(Exception):
                await receiver.close()

    async def close(self) -> None:
        for path in list(self._receivers):
            await self._drop(path)
