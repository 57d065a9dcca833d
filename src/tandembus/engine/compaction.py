"""Keeping the log short: an index now and then, bodies moved out of its old end, dropping what is
left.

The rules:
- The index is taken at a border of groups, and saved only when the group before it is durable.
- A body that was written again is looked for in its new place only when that is durable. No index
  is taken in between, because it would know the old place and start behind the new record.
- Dropped is what lies before the indexes, before the oldest living body, and before what readers
  hold. A body counts as living until the change that freed it is durable.
- Small steps, one for each commit: clients do not wait for compaction.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from tandembus.changes import BodyMoved
from tandembus.clock import Clock
from tandembus.core.namespace import Namespace
from tandembus.engine import index
from tandembus.engine.bodies import Bodies
from tandembus.engine.committer import Committer, Lane
from tandembus.engine.metrics import Metrics
from tandembus.errors import StoreError
from tandembus.store.api import Buffer, Store
from tandembus.store.records import encode_into


class _Snapshot(NamedTuple):
    """An index that waits for its group."""

    group: int
    place: int
    data: list[Buffer]


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc has it; elsewhere freed memory is kept, or given back without being asked."""


class Compactor:
    """Belongs to the owner's thread; saving and dropping go through the side lane, one at a
    time."""

    def __init__(
        self,
        store: Store,
        lane: Lane,
        committer: Committer,
        metrics: Metrics,
        *,
        namespace: Namespace,
        bodies: Bodies,
        payloads: Callable[[Sequence[int]], list[bytes]],
        freed: Callable[[], list[int]],
        clock: Clock,
        failed: Callable[[Exception], None],
        index_place: int,
        index_bytes: int,
        segment_bytes: int,
        move_bytes: int,
    ) -> None:
        self._store = store
        self._lane = lane
        self._committer = committer
        self._metrics = metrics
        self._namespace = namespace
        self._bodies = bodies
        self._payloads = payloads
        self._freed = freed
        self._clock = clock
        self._failed = failed
        self._segment_bytes = segment_bytes
        self._move_bytes = move_bytes
        self._index_place = index_place
        self._former_place = store.start
        """Of the index before; it is not known any more after a restart."""
        self._floor = store.start
        self._index_bytes = index_bytes
        self._snapshot: _Snapshot | None = None
        self._is_lane_busy = False
        self._moving: Iterator[int] | None = None
        """Bodies of the log's old end that are still to be moved."""
        self._moved: list[tuple[int, int]] = []
        """(body, new place), not durable yet."""
        self._moved_group = 0
        self._holds: dict[str, int] = {}
        self._last: Callable[[], None] | None = None

    def hold(self, name: str, place: int | None) -> None:
        if place is None:
            self._holds.pop(name, None)
        else:
            self._holds[name] = place

    def save_last(self, done: Callable[[], None]) -> None:
        """Clean stop: an index behind everything, so that the next start replays nothing."""
        self._last = done
        self.advance()

    def advance(self) -> None:
        """Go on as far as is possible now. Called after each commit."""
        if self._committer.is_stopped:
            return
        if self._moved and self._committer.durable >= self._moved_group:
            for number, place in self._moved:
                self._bodies.move(number, place)
            self._moved.clear()
        if self._is_lane_busy or self._moved:
            return
        if self._snapshot is not None:
            self._save_if_durable(self._snapshot)
        elif self._last is not None:
            self._finish(self._last)
        elif self._is_index_due():
            self._take_snapshot()
        elif self._is_too_long() and self._floor + self._segment_bytes <= self._limit():
            with suppress(StoreError):  # a body that cannot be read; the engine has ended by now
                self._shorten()

    def _is_index_due(self) -> bool:
        written = self._committer.end - self._index_place
        if written >= max(self._segment_bytes, 2 * self._index_bytes):
            return True
        # All was consumed, so the next index is small, and only the age of the last one keeps
        # what is dead.
        is_kept_by_age = self._floor + self._segment_bytes > self._former_place
        return is_kept_by_age and written >= self._segment_bytes // 16 and self._is_too_long()

    # --- the index --------------------------------------------------------------------------------

    def _take_snapshot(self) -> None:
        group, place = self._committer.cut()
        data = index.pack(self._namespace, self._bodies, self._freed(), self._clock.now_ms())
        snapshot = self._snapshot = _Snapshot(group, place, data)
        self._committer.flush()
        if self._snapshot is snapshot:  # else the group was reported at once, and this is done
            self._save_if_durable(snapshot)

    def _save_if_durable(self, snapshot: _Snapshot) -> None:
        if self._committer.durable < snapshot.group:
            return
        self._snapshot = None
        self._run(
            partial(_save, self._store, snapshot.place, snapshot.data),
            partial(self._saved, snapshot.place, sum(map(len, snapshot.data))),
        )

    def _saved(self, place: int, size: int) -> None:
        self._former_place, self._index_place = self._index_place, place
        self._index_bytes = size
        self._metrics.indexes_saved += 1
        self._metrics.index_bytes = size
        self._drop()

    def _finish(self, done: Callable[[], None]) -> None:
        if self._committer.staged_bytes:
            return  # one more commit, and we are called again
        if self._index_place != self._committer.end:
            self._take_snapshot()
        else:
            self._last = None
            done()

    # --- the old end ------------------------------------------------------------------------------

    def _limit(self) -> int:
        """What may be dropped at most. The index before the newest stays usable: it is the way out
        when the newest one rots."""
        return min((self._former_place, *self._holds.values()))

    def _is_too_long(self) -> bool:
        length = self._committer.end - self._floor
        return length > 2 * self._bodies.live_bytes + 2 * self._segment_bytes

    def _shorten(self) -> None:
        """One step: write some bodies again or, when the old end has none left, drop it."""
        if self._moving is None:
            self._moving = self._bodies.living_before(self._floor + self._segment_bytes)
        committer = self._committer
        numbers: list[int] = []
        size = 0
        for number in self._moving:
            numbers.append(number)
            size += self._bodies.longest(number)
            if size >= self._move_bytes:
                break
        for moved in map(BodyMoved, numbers, self._payloads(numbers)):
            self._moved.append((moved.body, committer.first_place + committer.size))
            committer.size += encode_into(committer.filling, moved)
        if self._moved:
            self._metrics.bodies_moved += len(self._moved)
            self._moved_group = committer.number
            committer.wants_sync = True
            committer.flush()
        else:
            self._moving = None
            self._drop()

    def _drop(self) -> None:
        floor = min(self._limit(), self._bodies.lowest_place())
        if floor <= self._floor:
            return
        self._floor = floor
        self._run(partial(self._store.drop_before, floor), lambda: None)

    # --- the lane ---------------------------------------------------------------------------------

    def _run(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._is_lane_busy = True
        self._lane.run(job, partial(self._ran, done))

    def _ran(self, done: Callable[[], None], result: Exception | None) -> None:
        self._is_lane_busy = False
        if result is not None:
            self._failed(result)
            return
        done()
        self.advance()


def _save(store: Store, place: int, data: list[Buffer]) -> None:
    """In the side lane. The copy that was made for the index is a third of the broker's memory, and
    the C library would keep it for next time: it is given back."""
    store.save_index(place, data)
    data.clear()
    if _malloc_trim is not None:
        _malloc_trim(0)
