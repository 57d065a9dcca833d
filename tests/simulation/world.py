"""One simulated world: an engine and its clients, a fake clock, a disk that fails, and what a seed
makes of them.

What lives here: time (a heap of events; nothing happens between two of them), the lives of the
engine, the faults, and the trace. What does not: who asks for what (`clients`), what is promised
(`checkers`), what the seed chose (`mix`).

The rules:
- `Namespace`, `Engine`, `Committer`, `Compactor` and the stores are the real ones. The lanes are
  stepped: a group is durable when the event "commit" says so, and a crash can come before, between
  the write and its report, or in the middle of the write.
- World time only counts up. The engine's clock is world time and an offset, which leaps.
- Everything is drawn from the seed, so the same seed gives the same trace, byte for byte.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from hashlib import sha256
from heapq import heappop, heappush
from typing import Any, Final

from tandembus.amqp.message import AmqpMessage
from tandembus.clock import ManualClock
from tandembus.core.commands import (
    Browse,
    Command,
    Discharge,
    Flow,
    ReceiveDeferred,
    Send,
    Settle,
)
from tandembus.core.effects import Deliver, Delivery, Effect, LinkClosed, SessionGranted
from tandembus.engine.committer import SteppedLane
from tandembus.engine.engine import LATE_READ_MS, Engine, Reply
from tandembus.engine.recovery import Recovered, recover
from tandembus.errors import Refused, StoreError
from tandembus.limits import DAY_MS, HOUR_MS, MAX_BROWSE, MINUTE_MS
from tandembus.model import NEVER, Millis
from tandembus.store.files import FileStore
from tandembus.store.memory import MemoryStore
from tests.crash.faults import FailingDisk, How, Kind
from tests.crash.recording_disk import RecordingDisk, after_power_cut
from tests.simulation.checkers import Ledger, Violation
from tests.simulation.clients import UNKNOWN, Client, Drain, Then, crew
from tests.simulation.mix import Mix, Place, draw

BEGIN_MS: Final[Millis] = 1_700_000_000_000
FOLDER: Final = "data"
LAST_LINES: Final = 40
MOST_ROUNDS: Final = 100_000
MOST_SPINS: Final = 1_000
"""Ticks in a row without any time passing: more, and a real loop would burn a core."""


class Interrupted(Exception):
    """A crash in the middle of a recovery."""


class Unreadable(Exception):
    """The disk has failed: what was handed out reaches nobody."""


class TornLane(SteppedLane):
    def tear(self) -> bool:
        """Do the oldest job, and never report it: the crash comes first."""
        if not self._jobs:
            return False
        job, _ = self._jobs.popleft()
        job()
        return True


class World:
    """`run` returns the hash of the trace, or raises `Violation`."""

    def __init__(self, seed: int, *, hours: float = 1.0, forgets: Collection[str] = ()) -> None:
        """`forgets`: kinds of sync that do nothing, for a canary."""
        self.seed = seed
        self.mix: Mix = draw(seed)
        self.random = random.Random(f"world {seed}")
        self.ledger = Ledger(self.mix)
        self.counts: Counter[str] = Counter()
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.deferred: list[tuple[Place, int, str | None]] = []
        """Deferred messages that some client has noted."""
        self._hash = sha256()
        self._end_ms = int(hours * HOUR_MS)
        self._forgets = frozenset(forgets)
        self._time_ms: Millis = 0
        self._offset_ms: Millis = BEGIN_MS
        self._events: list[tuple[Millis, int, Callable[[], None]]] = []
        self._event_number = 0
        self._clients: list[Client] = []
        self._owners: dict[int, Client] = {}
        self._last_link = 0
        self._pending: dict[int, Then] = {}
        self._engine: Engine | None = None
        self._clock = ManualClock(BEGIN_MS)
        self._memory = MemoryStore()
        self._disk = RecordingDisk(seed, forgets=forgets)
        self._failing = FailingDisk(self._disk)
        self._store: MemoryStore | FileStore
        self._commits, self._side = TornLane(), TornLane()
        self._is_committing = False
        self._is_side_busy = False
        self._is_failing = False
        """An error of the disk was asked for."""
        self._failure: StoreError | None = None
        self._ambush: tuple[type, ...] = ()
        """Kinds of command of which the next one is not answered: the crash comes first."""
        self._is_calm = True
        self._spins = 0
        self._free_bytes = 1 << 40

    # --- for clients ------------------------------------------------------------------------------

    @property
    def now_ms(self) -> Millis:
        """The engine's time."""
        return self._clock.now_ms()

    @property
    def is_up(self) -> bool:
        return self._engine is not None

    def after(self, delay_ms: float, call: Callable[[], None]) -> None:
        self._event_number += 1
        heappush(self._events, (self._time_ms + int(delay_ms), self._event_number, call))

    def react(self, call: Callable[[], None], delay_ms: float) -> None:
        """At once, inside the callback; or after a while, as most clients."""
        if self.random.random() < self.mix.eager:
            call()
        else:
            self.after(delay_ms, call)

    def new_link(self, owner: Client) -> int:
        self._last_link += 1
        self._owners[self._last_link] = owner
        return self._last_link

    def ask(self, command: Command, then: Then) -> bool:
        """Submit a command; `then` gets its answer, or `UNKNOWN`. False: the broker is down."""
        engine = self._engine
        if engine is None or engine.is_closed or self._has_failed():
            return False
        self.ledger.order += 1
        order = self.ledger.order
        self._pending[order] = then
        self.counts["commands"] += 1
        self.tell(f"{order}? {_shown_command(command)}")
        try:
            engine.submit(command, partial(self._answered, order))
        except StoreError as error:
            # The body that it must read is behind a disk that has failed: told by `_failed`.
            if not self._has_failed():
                raise Violation("P13", f"submit raised {error}, but nothing has failed") from error
            self._pending.pop(order, None)
            return False
        if self._ambush and isinstance(command, self._ambush):
            self._ambush = ()
            self.after(self.random.uniform(0, 0.7 * self.mix.commit_ms[1]), self._crash_now)
        return True

    def _has_failed(self) -> bool:
        return self._failure is not None

    def tell(self, line: str) -> None:
        """Into the trace."""
        line = f"{self._time_ms} {line}"
        self.lines.append(line)
        self._hash.update(line.encode())

    # --- what comes out ---------------------------------------------------------------------------

    def _answered(self, order: int, reply: Reply) -> None:
        then = self._pending.pop(order)
        if isinstance(reply, StoreError):
            if self._failure is None:
                raise Violation("P13", f"{order} was answered {reply}, but nothing has failed")
            self.tell(f"{order}! unknown")
            then(UNKNOWN)
            return
        if isinstance(reply, Refused):
            self.counts["refused"] += 1
            self.counts[f"refused: {type(reply).__name__}"] += 1
        self.tell(f"{order}! {_shown_reply(reply)}")
        try:
            then(reply)
        except Unreadable:
            then(UNKNOWN)

    def _effect(self, effect: Effect) -> None:
        match effect:
            case Deliver(link, deliveries):
                self.tell(f"link {link} gets {[d.sequence_number for d in deliveries]}")
                try:
                    rows = self.read(deliveries)
                except Unreadable:
                    return
                self.ledger.delivered(link, rows, self.now_ms)
                if self.random.random() < 0.05:
                    reread = partial(self._read_again, *rows[-1], self.now_ms)
                    self.after(self.random.uniform(0, LATE_READ_MS - 1), self._guarded(reread))
                if (owner := self._owners.get(link)) is not None:
                    owner.delivered(link, deliveries)
            case SessionGranted(link, session_id, until):
                self.tell(f"link {link} holds {session_id}")
                self.ledger.granted(link, session_id, until)
                if (owner := self._owners.get(link)) is not None:
                    owner.granted(link, session_id)
            case LinkClosed(link, error):
                self.tell(f"link {link} is closed: {type(error).__name__}")
                self.ledger.closed(link, self.now_ms)
                if (owner := self._owners.get(link)) is not None:
                    owner.closed(link)
            case _:
                raise Violation("P13", f"the engine let out {effect}")

    def read(self, deliveries: Sequence[Delivery]) -> list[tuple[Delivery, bytes]]:
        assert self._engine is not None
        try:
            return [(delivery, self._engine.body(delivery.body)) for delivery in deliveries]
        except StoreError as error:
            if self._failure is None:
                raise Violation("P13", f"a body cannot be read: {error}") from error
            raise Unreadable from error

    def _read_again(self, delivery: Delivery, payload: bytes, then_ms: Millis) -> None:
        """A slow edge reads a body some time after it was told of it."""
        if self.now_ms - then_ms >= LATE_READ_MS:
            return  # time has leapt
        try:
            ((_, found),) = self.read([delivery])
        except Unreadable:
            return
        except KeyError:
            text = f"body {delivery.body} is gone {self.now_ms - then_ms} ms after its delivery"
            raise Violation("P13", text) from None
        if found != payload:
            raise Violation("P13", f"body {delivery.body} reads differently")

    def _failed(self, error: StoreError) -> None:
        self.tell(f"the engine failed: {error}")
        if not self._is_failing:
            raise Violation("P13", f"the engine failed by itself: {error}")
        self._failure = error

    # --- the lives of the engine ------------------------------------------------------------------

    def _open_store(self) -> MemoryStore | FileStore:
        mix = self.mix
        if not mix.is_on_files:
            self._memory.free = self._free_bytes
            return self._memory
        self._disk.free = self._free_bytes
        self._failing = FailingDisk(self._disk)
        try:
            store = FileStore(FOLDER, disk=self._failing, segment_bytes=mix.segment_bytes)
        except StoreError as error:
            raise Violation("P1", f"the log cannot be opened: {error}") from error
        if store.warnings:
            raise Violation("P13", f"the log was opened with warnings: {store.warnings}")
        return store

    def _recover(self) -> Recovered:
        """Open and recover; a crash may come in between, more than once."""
        rng = self.random
        while True:
            self._store = self._open_store()
            is_cut = not self._is_calm and rng.random() < self.mix.recovery_crashes
            fuse = rng.randrange(1, 30) if is_cut else 0

            def progress(done: int, size: int) -> None:
                nonlocal fuse
                fuse -= 1
                if fuse == 0:
                    raise Interrupted

            try:
                recovered = recover(self._store, progress)
            except Interrupted:
                recovered = None
            except StoreError as error:
                raise Violation("P1", f"the log cannot be replayed: {error}") from error
            if recovered is not None and not is_cut:
                return recovered
            self.counts["crashes"] += 1
            self.counts["crashes in recovery"] += 1
            self.tell("crash in recovery")
            self._cut_disk(rng.randrange(self._disk.cuts()) if self.mix.is_on_files else 0)

    def _start(self) -> None:
        if not self._is_calm and self.random.random() < self.mix.leaps:
            leap = self.random.choice((-1, 1)) * self.random.randrange(DAY_MS)
            self._offset_ms += leap
            self.counts["leaps"] += 1
            self.tell(f"the clock leaps by {leap}")
        self._clock = ManualClock(self._time_ms + self._offset_ms, self.random.getrandbits(32))
        recovered = self._recover()
        mark_idle = self._store.mark_idle
        self._commits = TornLane(when_idle=mark_idle, is_quick=self._is_quick)
        self._side = TornLane()
        self._is_committing = self._is_side_busy = self._is_failing = False
        self._failure = None
        self._engine = Engine(
            recovered,
            self._store,
            clock=self._clock,
            decode=AmqpMessage,
            on_effect=self._effect,
            on_failure=self._failed,
            commit_lane=self._commits,
            side_lane=self._side,
            tuning=self.mix.tuning,
        )
        # The log of a former life may have been ahead of the wall clock.
        self._offset_ms = self._clock.now_ms() - self._time_ms
        self.tell(f"started at {self._clock.now_ms()} with {recovered.records} records")
        for client in self._clients:
            client.start()

    def _is_quick(self) -> bool:
        """Whether a small group is on the disk before its turn is over."""
        return self.random.random() < 0.5

    def _cut_disk(self, cut: int) -> None:
        if not self.mix.is_on_files:
            self._memory = self._memory.reopened()
        elif self.random.random() < 0.3:
            self._disk = self._disk.clone() if not self._forgets else self._power_cut(cut)
        else:
            self._disk = self._power_cut(cut)

    def _power_cut(self, cut: int) -> RecordingDisk:
        return after_power_cut(self._disk, self.random, cut)

    def _crash_now(self) -> None:
        if self._engine is None:
            return
        rng, disk = self.random, self._disk
        first = disk.cuts() - 1
        if self._failure is None:
            for lane in rng.sample((self._commits, self._side), 2):
                if rng.random() < 0.6:
                    self._tear(lane)
        cut = rng.randint(first, disk.cuts() - 1)
        self.counts["crashes"] += 1
        self.tell(f"crash with {len(self._pending)} unanswered, {disk.cuts() - 1 - cut} cut")
        self._cut_disk(cut)
        self._end_life()

    def _tear(self, lane: TornLane) -> None:
        try:
            self.counts["torn"] += lane.tear()
        except StoreError as error:
            if not self._is_failing:
                raise Violation("P13", f"the store failed by itself: {error}") from error

    def _end_life(self) -> None:
        """Nobody gets an answer any more."""
        assert self._engine is not None
        metrics = self._engine.metrics
        self.counts["indexes saved"] += metrics.indexes_saved
        self.counts["bodies moved"] += metrics.bodies_moved
        self.counts["bodies read"] += metrics.bodies_read
        self._engine = None
        pending, self._pending = self._pending, {}
        self.ledger.settle_order()
        for then in pending.values():
            then(UNKNOWN)
        self.ledger.crashed()
        self._owners.clear()
        for client in self._clients:
            client.crashed()
        self.after(self.random.choice((10, 500, 20_000)), self._start)

    def _stop_cleanly(self) -> None:
        if self._engine is None or self._failure is not None:
            return
        ended: list[None] = []
        self.tell("clean stop")
        self.counts["clean stops"] += 1
        self._engine.close(lambda: ended.append(None))
        while not self._has_failed() and (self._commits.step() or self._side.step()):
            pass
        if self._has_failed():  # a disk that breaks in the last moment
            self._check_failure(self._engine)
            return
        if not ended or self._pending:
            raise Violation("P1", f"a clean stop left {len(self._pending)} without an answer")
        if self.mix.is_on_files:
            self._store.close()
            self._disk = self._disk.clone()
        else:
            self._memory = self._memory.reopened()
        self._end_life()

    # --- faults -----------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        mix, rng = self.mix, self.random
        hours = self._end_ms / HOUR_MS
        for _ in range(round(mix.crashes * hours)):
            at = rng.uniform(0, self._end_ms)
            draw = rng.random()
            if rng.random() < mix.clean_stops:
                self.after(at, self._stop_cleanly)
            elif draw < mix.disk_errors:
                self.after(at, self._break_disk)
            elif draw < mix.disk_errors + mix.ambushes:
                self.after(at, self._lay_ambush)
            else:
                self.after(at, self._crash_now)
        for _ in range(round(mix.disk_full * hours)):
            at = rng.uniform(0, self._end_ms)
            self.after(at, partial(self._fill_disk, 0))
            self.after(at + rng.choice((5_000, 120_000)), partial(self._fill_disk, 1 << 40))
        if mix.leaps:
            for _ in range(round(3 * hours)):
                self.after(rng.uniform(0, self._end_ms), self._leap)

    def _lay_ambush(self) -> None:
        kinds = [(Send,), (Settle,), (Flow, ReceiveDeferred), (Send, Settle, Flow)]
        if self.mix.transactions:
            kinds += [(Discharge,)] * 2
        self._ambush = self.random.choice(kinds)

    def _break_disk(self) -> None:
        """The next write fails; the engine must end, and tell everybody."""
        if self._engine is None or self._failure is not None:
            return
        self.tell("the disk breaks")
        self._is_failing = True
        if self.mix.is_on_files:
            kinds: list[Kind] = ["write", "sync"]
            ways: list[How] = ["EIO", "ENOSPC", "short"]
            self._failing.fail_next(self.random.choice(kinds), self.random.choice(ways))
        else:
            self._memory.fail("the disk is broken on purpose")

    def _fill_disk(self, free: int) -> None:
        self.tell(f"the disk has {free} bytes free")
        self._free_bytes = self._memory.free = self._disk.free = free

    def _leap(self) -> None:
        """A frozen process: for it, time leaps forward."""
        if self._engine is not None and self.random.random() < self.mix.leaps:
            ahead = self.random.randrange(self.random.choice((MINUTE_MS, HOUR_MS, DAY_MS)))
            self.tell(f"frozen for {ahead}")
            self.counts["leaps"] += 1
            self._clock.advance(ahead)
            self._offset_ms += ahead

    # --- time -------------------------------------------------------------------------------------

    def _commit_delay(self) -> float:
        if self.random.random() < self.mix.slow_commits:
            return self.random.uniform(1_000, 8_000)
        return self.random.uniform(*self.mix.commit_ms)

    def _commit(self) -> None:
        """The disk has done a group."""
        self._is_committing = False
        self._commits.step()

    def _upkeep(self) -> None:
        self._is_side_busy = False
        self._side.step()

    def _guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        """A call that is meant for this life only."""
        engine = self._engine

        def guarded() -> None:
            if self._engine is engine and self._failure is None:
                call()

        return guarded

    def _settle_event(self) -> None:
        """After each event: what an edge does at the end of a turn."""
        self.ledger.settle_order()
        engine = self._engine
        if engine is None:
            return
        if self._failure is None:
            engine.flush()
        if self._failure is not None:
            self._check_failure(engine)
            return
        if len(self._commits) and not self._is_committing:
            self._is_committing = True
            self.after(self._commit_delay(), self._guarded(self._commit))
        if len(self._side) and not self._is_side_busy:
            self._is_side_busy = True
            self.after(self._commit_delay() * 3, self._guarded(self._upkeep))

    def _check_failure(self, engine: Engine) -> None:
        """The disk has failed: all were told, nothing more is taken, and the process ends."""
        if self._pending:
            raise Violation("P13", f"{len(self._pending)} were not told of the failure")
        try:
            engine.submit(Browse("q"), lambda _: None)
        except StoreError:
            self.counts["disk errors"] += 1
            self._crash_now()
            return
        raise Violation("P13", "an engine that has failed takes commands")

    def _next_tick(self) -> Millis:
        if self._engine is None or self._failure is not None:
            return NEVER
        deadline = self._engine.next_deadline()
        if deadline == NEVER:
            return NEVER
        late = 0 if self._is_calm else self.mix.late_ticks_ms
        return max(self._time_ms, deadline - self._offset_ms + late)

    def _advance(self, time_ms: Millis) -> None:
        if time_ms > self._time_ms:
            self._spins = 0
            if self._engine is not None:
                self._clock.advance(time_ms - self._time_ms)
            self._time_ms = time_ms

    def _tick(self) -> None:
        assert self._engine is not None
        try:
            self._engine.tick()
        except StoreError as error:
            if self._failure is None:
                raise Violation("P13", f"tick raised {error}, but nothing has failed") from error
        self.counts["ticks"] += 1
        self._spins += 1
        if self._spins > MOST_SPINS:
            raise Violation("liveness", f"the engine wants to be ticked {MOST_SPINS} times at once")

    def _run_until(self, end_ms: Millis) -> None:
        events = self._events
        while True:
            tick_ms = self._next_tick()
            event_ms = events[0][0] if events else NEVER
            if min(tick_ms, event_ms) > end_ms:
                self._advance(end_ms)
                return
            if event_ms <= tick_ms:
                self._advance(event_ms)
                heappop(events)[2]()
            else:
                self._advance(tick_ms)
                self._tick()
            self._settle_event()

    # --- the whole --------------------------------------------------------------------------------

    def run(self) -> str:
        self._start()
        for command in self.mix.creates:
            self.execute(command)
        self._clients = crew(self)
        for client in self._clients:
            client.start()
        self._is_calm = False
        self._plan_faults()
        self._run_until(self._end_ms)
        self._finish()
        return self._hash.hexdigest()

    def execute(self, command: Command) -> Any:
        """Ask, and wait for the answer; nothing else happens meanwhile."""
        replies: list[Any] = []
        if not self.ask(command, replies.append):
            raise Violation("P13", "the broker is down without a reason")
        self.settle()
        if not replies:
            raise Violation("P11", f"{command} was not answered")
        return replies[0]

    def settle(self) -> None:
        """Until the disk has nothing left to do, and nothing is due."""
        assert self._engine is not None
        self._is_committing = self._is_side_busy = True  # no events for what is done here
        for _ in range(MOST_ROUNDS):
            asked = self._engine.metrics.commands
            self._engine.flush()
            # A quick commit is done in there, and who gets its answer may ask for more.
            if asked != self._engine.metrics.commands:
                continue
            if self._commits.step() or self._side.step():
                continue
            if self._engine.next_deadline() > self._clock.now_ms():
                break
            self._engine.tick()
        else:
            raise Violation("liveness", "there is something to be done for ever")
        self.ledger.settle_order()
        self._is_committing = self._is_side_busy = False

    def _finish(self) -> None:
        """No more faults. All that was promised must be there, and come out."""
        self._is_calm = True
        self._ambush = ()
        self._fill_disk(1 << 40)
        if self._engine is not None and self._failure is None and not self._is_failing:
            if self.random.random() < 0.3:
                self._stop_cleanly()
        elif self._is_failing:
            self._crash_now()
        if self._engine is not None and self.random.random() < 0.5:
            self._crash_now()
        self._clients.clear()
        self._events.clear()
        if self._engine is None:
            self._start()
        self.settle()
        if self._pending:
            raise Violation("P11", f"{len(self._pending)} commands were never answered")
        self.tell("the end")
        leaver = Client(self)
        for link in list(self.ledger.links):
            leaver.detach(link)
            self.settle()
        self._owners.clear()
        shown = self.browse()
        self.ledger.check_all(shown, self.now_ms)
        self._drain(shown)
        self.ledger.check_all(self.browse(), self.now_ms)
        self.ledger.check_numbers()

    def browse(self) -> list[tuple[Place | str, Delivery, bytes]]:
        """Everything that there is."""
        shown: list[tuple[Place | str, Delivery, bytes]] = []
        places: list[Place | str] = list(self.mix.places.values())
        if any(target.path == "topic" for target in self.mix.targets):
            places.append("topic")
        for place in places:
            path = place if isinstance(place, str) else place.path
            start = 0
            while True:
                page = self.execute(Browse(path, start, MAX_BROWSE))
                if isinstance(page, Exception):
                    raise Violation("P13", f"{path} cannot be browsed: {page}")
                shown += [(place, delivery, body) for delivery, body in self.read(page)]
                if len(page) < MAX_BROWSE:
                    break
                start = page[-1].sequence_number + 1
        return shown

    def _drain(self, shown: Sequence[tuple[Place | str, Delivery, bytes]]) -> None:
        """Liveness: well-behaved consumers get everything, within a minute after the last lock and
        the last schedule have ended."""
        self.ledger.calm_since_ms = self.now_ms
        dues = [letter.due_ms for letter in self.ledger.letters.values()]
        locks = [place.lock_ms for place in self.mix.places.values()]
        limit = max(self.now_ms + max(locks), *dues) + MINUTE_MS
        drains = [Drain(self, place) for place in self.mix.receivable]
        self._clients += drains
        for drain in drains:
            drain.start()
        while True:
            self.settle()
            deadline = self._engine.next_deadline() if self._engine is not None else NEVER
            if deadline > limit:
                break
            self._advance(max(self._time_ms, deadline - self._offset_ms))
        for drain in drains:
            drain.finish()
        self.settle()
        left = self.browse()
        for place, delivery, _ in left:
            if not isinstance(place, str) and delivery.state.name.startswith("DEFERRED"):
                self._owner_of(drains, place).fetch_deferred(delivery)
                self.settle()
        left = self.browse()
        if left:
            place, delivery, _ = left[0]
            path = place if isinstance(place, str) else place.path
            raise Violation(
                "liveness",
                f"{len(left)} messages do not drain: {delivery.sequence_number} in {path} is "
                f"{delivery.state.name}",
            )

    @staticmethod
    def _owner_of(drains: Sequence[Drain], place: Place) -> Drain:
        return next(drain for drain in drains if drain.place is place)


def _shown_command(command: Command) -> str:
    match command:
        case Send():
            return f"Send {command.path} {len(command.messages)} tx {command.transaction}"
        case Settle():
            tokens = [int.from_bytes(token[:8], "little") for token in command.tokens]
            return f"Settle {command.path} {tokens} {command.disposition.name} tx " + str(
                command.transaction
            )
        case _:
            return repr(command)


def _shown_reply(reply: Reply) -> str:
    if isinstance(reply, Refused):
        return type(reply).__name__
    if isinstance(reply, tuple) and reply and isinstance(reply[0], Delivery):
        return f"{[(d.sequence_number, d.state.name) for d in reply]}"
    return repr(reply)
