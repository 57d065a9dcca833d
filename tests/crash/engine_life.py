"""One life of a real engine on a real store on a recording disk, and the record of its decisions.

What lives here: `Life`, `Record`, the two lanes that overlap as threads would, and the three
faults that the canaries put in. What does not: what is asked of the engine (`traffic.py`), and
cutting the power (`engine_images.py`).
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from tandembus.changes import Change, Mode
from tandembus.clock import ManualClock
from tandembus.core.commands import Command
from tandembus.core.effects import Deliver, Delivery, Effect, LinkClosed, Outcome
from tandembus.core.state import State
from tandembus.engine.engine import Done, Engine, Reply, Tuning
from tandembus.engine.recovery import Recovered, recover
from tandembus.errors import StoreError
from tandembus.limits import KIB
from tandembus.model import Millis
from tandembus.store.api import GROUP_HEADER
from tandembus.store.files import FileStore
from tests.crash.ledger import Bad, Key, Ledger, attributes_of, difference, intent, rides
from tests.crash.promises import Begun, Decided, Promises, Told
from tests.crash.recording_disk import Killed, Operation, RecordingDisk
from tests.crash.recording_disk import Link as Linked
from tests.unit.engine.world import Plain

FOLDER: Final = "data"
SNAPSHOT_EVERY: Final = 40


@dataclass(frozen=True)
class Shape:
    """The bounds of a run, the same through all its lives."""

    segment_bytes: int
    tuning: Tuning
    paths: frozenset[str]
    """The entities of this run, beside the common ones."""

    @classmethod
    def draw(cls, rng: random.Random) -> Shape:
        segment_bytes = rng.choice((64, 64, 96, 128)) * KIB
        tuning = Tuning(
            group_bytes=rng.choice((8, 32, 128)) * KIB,
            staged_bytes=512 * KIB,
            cache_bytes=rng.choice((0, 16, 64)) * KIB,
            free_bytes=0,
            segment_bytes=rng.choice((16, 16, 32, 64)) * KIB,
            move_bytes=rng.choice((1, 4, 16)) * KIB,
        )
        chances = {"d": 0.5, "s": 0.4, "p": 0.2, "v": 0.3}  # 16 partitions take their time
        paths = frozenset(path for path, chance in chances.items() if rng.random() < chance)
        return cls(segment_bytes, tuning, paths)


def decode(payload: bytes) -> Plain:
    attributes: dict[str, Any] = attributes_of(payload)
    del attributes["id"]
    return Plain(payload, **attributes)


# --- what was decided -----------------------------------------------------------------------------


class Record:
    """The decisions of one life, and the ledger after any of them."""

    def __init__(self, disk: RecordingDisk, ledger: Ledger) -> None:
        self._disk = disk
        self.live = ledger
        """After everything that was decided."""
        self.places: list[int] = []
        """Of the group of each decision."""
        self.count = 0
        self.intent: dict[Key, object] = {}
        """Of the newest decision."""
        self._decisions: list[list[Change]] = []
        self._snapshots = [ledger.clone()]
        self._needed = -1
        self._told: Told | None = None

    def decided(self, place: int, changes: list[Change], now_ms: Millis) -> Callable[[], None]:
        """A decision whose changes will be in the group at `place`. What is returned is to be
        called when it was told."""
        self.count += 1
        self.intent = intent(self.live, changes)
        if changes:
            self.places.append(place)
            self._decisions.append(changes)
            if len(self.places) % SNAPSHOT_EVERY == 0:
                self._snapshots.append(self.live.clone())
            if not rides(changes):
                self._needed = place
        if self.intent:
            self._disk.note(Decided(self.intent))
        return partial(self._tell, Told(bool(self.intent), self._needed, now_ms))

    def _tell(self, told: Told) -> None:
        if told.means or told != self._told:
            self._disk.note(told)
        self._told = told

    def until(self, end: int) -> Ledger:
        """What a log that ends at `end` must add up to."""
        count = bisect_left(self.places, end)
        at = count // SNAPSHOT_EVERY
        ledger = self._snapshots[at].clone()
        for changes in self._decisions[at * SNAPSHOT_EVERY : count]:
            ledger.add(changes)
        return ledger


class WatchedEngine(Engine):
    """The engine, telling the record of each decision before it is staged."""

    is_hasty = False
    """Answers at once. For a canary."""

    def __init__(self, record: Record, recovered: Recovered, store: FileStore, **rest: Any) -> None:
        self._record = record
        super().__init__(recovered, store, **rest)

    def _take(
        self, outcome: Outcome, done: Done | None, now_ms: Millis, *, rides: bool = False
    ) -> None:
        place = self._committer.first_place - GROUP_HEADER
        tell = self._record.decided(place, outcome.changes, now_ms)

        def leave(reply: Reply) -> None:
            if not isinstance(reply, StoreError):
                tell()
            if done is not None:
                done(reply)

        super()._take(outcome, leave, now_ms, rides=rides)
        if self.is_hasty:
            durable, self._committer.durable = self._committer.durable, self._needed
            self._release()
            self._committer.durable = durable


# --- two threads, in one --------------------------------------------------------------------------


class OverlappingDisk(RecordingDisk):
    """Calls `during` after an operation was begun: what another thread does meanwhile."""

    during: Callable[[], None] | None = None

    def record(self, operation: Operation) -> None:
        super().record(operation)
        during = self.during
        if during is not None and not isinstance(operation, Linked):  # a file has no number yet
            self.during = None
            try:
                during()
            except Killed:
                pass  # but this operation was begun, and happens; `is_dead` says the rest
            finally:
                self.during = during

    @property
    def is_dead(self) -> bool:
        return self.killed_in is not None and self.killed_in < 0


class OpenLane:
    """A lane whose jobs begin and are reported when a test says so."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Done]] = deque()
        self._results: deque[tuple[Done, Any]] = deque()
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._jobs) + len(self._results)

    def run(self, job: Callable[[], Any], done: Done) -> None:
        self._jobs.append((job, done))

    run_here = run

    def begin(self) -> None:
        """Do the next job, unless this lane is in one."""
        if self._is_busy or not self._jobs:
            return
        job, done = self._jobs.popleft()
        self._is_busy = True
        result: Any
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - as in a thread
            result = error
        self._is_busy = False
        self._results.append((done, result))

    def step(self) -> bool:
        if not self._results:
            self.begin()
        if not self._results:
            return False
        done, result = self._results.popleft()
        done(result)
        return True

    def close(self) -> None:
        """Nothing to be ended."""


# --- one life -------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A locked message."""

    token: bytes
    number: int
    identity: int


@dataclass
class Link:
    path: str
    mode: Mode
    session: str | None


class Life:
    """From opening a disk to its end. Opening compares what is found with the record of the former
    life and with the promises."""

    def __init__(
        self,
        disk: RecordingDisk,
        shape: Shape,
        known: dict[int, bytes],
        former: Record | None,
        promises: Promises,
    ) -> None:
        self.disk = disk
        self.shape = shape
        self.known = known
        self.store = FileStore(FOLDER, disk=disk, segment_bytes=shape.segment_bytes)
        if self.store.warnings:
            raise Bad(f"warnings: {self.store.warnings}")
        recovered = self.recovered = recover(self.store)
        ledger = Ledger() if former is None else former.until(self.store.end)
        self._check(ledger, recovered, promises)
        self.clock = ManualClock(max(promises.now_ms, recovered.time, 1_700_000_000_000))
        disk.note(Begun(promises.kept))
        self.record = Record(disk, ledger)
        self.commits, self.side = OpenLane(), OpenLane()
        self.links: dict[int, Link] = {}
        self.held: dict[str, list[Held]] = {}
        found = ledger.clone()
        self.engine = WatchedEngine(
            self.record,
            recovered,
            self.store,
            clock=self.clock,
            decode=decode,
            on_effect=self._effect,
            on_failure=self._fail,
            commit_lane=self.commits,
            side_lane=self.side,
            tuning=shape.tuning,
        )
        self._read(found)
        for entity in ledger.entities.values():
            for number, row in entity.rows.items():
                if row.state in (State.LOCKED, State.DEFERRED_LOCKED):
                    raise Bad(f"{entity.path}: {number} is still locked after a restart")

    @staticmethod
    def _fail(error: StoreError) -> None:
        raise error

    def _check(self, ledger: Ledger, recovered: Recovered, promises: Promises) -> None:
        wrong = difference(ledger, recovered.namespace, max(promises.now_ms, recovered.time))
        if wrong is not None:
            raise Bad(wrong)
        promises.check(ledger, self.store.end)
        used = {row.body for entity in ledger.entities.values() for row in entity.rows.values()}
        if recovered.bodies.count != len(used):
            raise Bad(f"{recovered.bodies.count} bodies are kept, {len(used)} are used")

    def _read(self, ledger: Ledger) -> None:
        """Every body of every message, from the disk, is what was sent."""
        for entity in ledger.entities.values():
            for number, row in entity.rows.items():
                if self.engine.body(row.body) != self.known[ledger.ids[row.body]]:
                    raise Bad(f"{entity.path}: message {number} has another body")

    # --- commands ---

    def submit(self, command: Command, done: Done | None = None) -> bool:
        """Whether it was not refused. Then `record.intent` is what it led to."""
        count = self.record.count
        self.engine.submit(command, done or _ignore)
        return self.record.count > count

    def execute(self, command: Command) -> Any:
        """The reply, when it was told."""
        replies: list[Reply] = []
        self.submit(command, replies.append)
        self.settle()
        if not replies:
            raise Bad(f"no answer to {command}")
        if isinstance(replies[0], Exception):
            raise replies[0]
        return replies[0]

    def settle(self) -> None:
        self.engine.flush()
        while self.commits.step() or self.side.step():
            pass

    def _effect(self, effect: Effect) -> None:
        if isinstance(effect, LinkClosed):
            self.links.pop(effect.link, None)
        elif isinstance(effect, Deliver) and effect.link in self.links:
            self.take(self.links[effect.link].path, effect.deliveries)

    def take(self, path: str, deliveries: Collection[Delivery]) -> None:
        for delivery in deliveries:
            payload = self.engine.body(delivery.body)
            identity = attributes_of(payload)["id"]
            assert isinstance(identity, int)
            if payload != self.known[identity]:
                raise Bad(f"{path}: {delivery.sequence_number} was delivered with another body")
            if delivery.token is not None:
                held = Held(delivery.token, delivery.sequence_number, identity)
                self.held.setdefault(path, []).append(held)


def _ignore(reply: Reply) -> None:
    """Whatever it is."""
