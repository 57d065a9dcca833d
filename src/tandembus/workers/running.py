"""Several pools together: they are looked at, scaled, and watched over their targets.

    async with Overseer([pool], looker, on_alert=print) as overseer:
        ...

A look asks for the depth of every level, lets the pools with `scale` follow it, and judges the
targets. How often is `every_s`, or the smallest of the pools' own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, Self

from tandembus.clock import Clock, SystemClock
from tandembus.model import Millis
from tandembus.workers.autoscale import Scaler, Seen
from tandembus.workers.depth import Depth, Looker
from tandembus.workers.options import PoolOptions
from tandembus.workers.status import LevelStatus, PoolStatus, prometheus
from tandembus.workers.targets import Alert, Attainment, Meter, TargetWatch
from tandembus.workers.tasks import ended

_log: Final = logging.getLogger("tandembus.workers")

EVERY_S: Final = 5.0
LOOK_S: Final = 10.0
"""For a look that is under way at the end."""
MAX_REQUEST: Final = 8_192
REQUEST_S: Final = 5.0


class AnyPool(Protocol):
    """A pool in this process, or one of processes."""

    @property
    def options(self) -> PoolOptions: ...
    @property
    def size(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def meters(self) -> Sequence[Meter]: ...
    @property
    def outcomes(self) -> Sequence[Counter[str]]: ...

    async def start(self) -> None: ...
    async def stop(self, within_s: float | None = None) -> None: ...
    def resize(self, size: int) -> None: ...
    def suspend(self, level: str | None = None) -> None: ...
    def resume(self, level: str | None = None) -> None: ...
    def is_active(self, index: int) -> bool: ...
    def working_on(self, index: int) -> set[int]:
        """Sequence numbers of the messages of a level that are begun."""
        ...

    def busy_seconds(self) -> float: ...
    def operations(self) -> Counter[str]: ...


class _Watched:
    """What is remembered of one pool."""

    def __init__(self, pool: AnyPool, now_ms: Millis) -> None:
        self.pool = pool
        options = pool.options
        self.depths = [Depth() for _ in options.levels]
        self.attainments: list[Attainment | None] = [None for _ in options.levels]
        self.watches = [
            None if level.target is None else TargetWatch(level.target, meter)
            for level, meter in zip(options.levels, pool.meters, strict=True)
        ]
        self.scaler = None if options.scale is None else Scaler(options.scale, pool.size, now_ms)
        self.looked_ms = now_ms
        self.busy_s = 0.0


class Overseer:
    """`on_alert` is called with each `Alert`, when it begins and when it is over."""

    def __init__(
        self,
        pools: Sequence[AnyPool],
        looker: Looker,
        *,
        on_alert: Callable[[Alert], None] | None = None,
        every_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        now = self._clock.now_ms()
        self._watched = [_Watched(pool, now) for pool in pools]
        self._looker = looker
        self._on_alert = on_alert
        scales = [pool.options.scale for pool in pools]
        own = [scale.every_s for scale in scales if scale is not None]
        self.every_s = every_s or min(own, default=EVERY_S)
        self._task: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()
        self.alerts = 0
        """How many there were."""

    @property
    def pools(self) -> list[AnyPool]:
        return [each.pool for each in self._watched]

    @property
    def is_alert(self) -> bool:
        """Whether a target is missed now."""
        return any(
            found is not None and found.is_alert
            for each in self._watched
            for found in each.attainments
        )

    async def start(self) -> None:
        for each in self._watched:
            await each.pool.start()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            # A look that is under way ends: the SDK leaves sockets behind when it is interrupted.
            self._is_over.set()
            await asyncio.wait({self._task}, timeout=LOOK_S)
            await ended([self._task])
        await asyncio.gather(*(each.pool.stop() for each in self._watched))
        await self._looker.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the next look may go well
                _log.exception("a look at the pools failed")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), self.every_s)

    async def look(self) -> None:
        """Once; it is done every `every_s` anyway."""
        for each in self._watched:
            pool = each.pool
            found = await asyncio.gather(
                *(
                    self._looker.look(level, pool.working_on(index))
                    for index, level in enumerate(pool.options.levels)
                )
            )
            self.judge(each, found)

    def judge(self, each: _Watched, depths: Sequence[Depth]) -> None:
        """Targets and size of one pool, by what was found in its queues."""
        now, pool = self._clock.now_ms(), each.pool
        each.depths = list(depths)
        for index, watch in enumerate(each.watches):
            if watch is None:
                continue
            was = watch.is_alert
            found = each.attainments[index] = watch.look(depths[index].oldest_s, now)
            if found.is_alert != was:
                self._tell(Alert(pool.options.name, pool.options.levels[index].name, found, was))
        busy_s = pool.busy_seconds()
        elapsed_s = (now - each.looked_ms) / 1000
        if each.scaler is not None and elapsed_s > 0:
            active = [depth for index, depth in enumerate(depths) if pool.is_active(index)]
            seen = Seen(
                busy=(busy_s - each.busy_s) / elapsed_s,
                waiting=sum(depth.waiting or 0 for depth in active),
                oldest_s=max((depth.oldest_s or 0.0 for depth in active), default=0.0),
                is_target_missed=any(
                    found is not None and not found.is_attained for found in each.attainments
                ),
            )
            each.scaler.size = pool.size
            size = each.scaler.decide(seen, now)
            if size != pool.size:
                _log.info("%s: %d → %d workers (%s)", pool.options.name, pool.size, size, seen)
                pool.resize(size)
        each.looked_ms, each.busy_s = now, busy_s

    def _tell(self, alert: Alert) -> None:
        self.alerts += not alert.is_over
        _log.warning("%s", alert)
        if self._on_alert is not None:
            self._on_alert(alert)

    # --- what it shows ----------------------------------------------------------------------------

    def status(self) -> list[PoolStatus]:
        return [self._status(each) for each in self._watched]

    def _status(self, each: _Watched) -> PoolStatus:
        pool, now = each.pool, self._clock.now_ms()
        levels = []
        for index, level in enumerate(pool.options.levels):
            meter, depth = pool.meters[index], each.depths[index]
            levels.append(
                LevelStatus(
                    level.name,
                    level.path,
                    pool.is_active(index),
                    depth.waiting,
                    depth.oldest_s,
                    meter.rate(now),
                    meter.quantile_s(0.5, now),
                    meter.quantile_s(0.99, now),
                    each.attainments[index],
                    meter.waits,
                    meter.works,
                    dict(pool.outcomes[index]),
                )
            )
        operations = pool.operations()
        name = pool.options.name
        return PoolStatus(name, pool.size, pool.busy, pool.preemptions, levels, operations)

    async def serve_metrics(self, port: int, host: str = "localhost") -> asyncio.Server:
        """`GET /metrics` for Prometheus."""
        return await asyncio.start_server(self._answer, host, port, limit=MAX_REQUEST)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(REQUEST_S):
                request = await reader.readuntil(b"\r\n\r\n")
                is_known = request.startswith(b"GET /metrics ")
                body = prometheus(self.status()).encode() if is_known else b"only /metrics\n"
                status = b"200 OK" if is_known else b"404 Not Found"
                writer.write(
                    b"HTTP/1.1 " + status + b"\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
