"""A disk that fails once, at its n-th operation: EIO, ENOSPC or a short write under an engine.

What lives here: `FailingDisk`, which passes every operation to another disk and refuses one of
them, and `trial`, one engine on it with a plain load. What does not: which numbers are tried
(`test_faults`), and what a power cut does (`recording_disk`).

The rule, from RELIABILITY.md K3: the engine ends with a `StoreError`, everybody who waits is told,
nothing more is accepted; the next open is clean, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tandembus.changes import Mode
from tandembus.clock import ManualClock
from tandembus.core.commands import Attach, Browse, CreateQueue, Disposition, Flow, Send, Settle
from tandembus.core.effects import Deliver, Delivery, Effect
from tandembus.engine.committer import SteppedLane
from tandembus.engine.engine import Engine, Reply, Tuning
from tandembus.engine.recovery import recover
from tandembus.errors import StoreError
from tandembus.limits import KIB
from tandembus.model import Message
from tandembus.settings import QueueSettings
from tandembus.store.api import Buffer
from tandembus.store.disk import Disk, File
from tandembus.store.files import FileStore
from tests.crash.recording_disk import RecordingDisk, after_power_cut
from tests.unit.engine.world import Plain

Kind: TypeAlias = Literal["write", "sync", "read", "other"]
How: TypeAlias = Literal["EIO", "ENOSPC", "short"]
FOLDER: Final = "data"


class Fault(NamedTuple):
    """The `at`-th operation of this kind fails, counted from 1; those after it work again, which is
    the harder case: a retry would seem to succeed."""

    kind: Kind
    at: int
    how: How = "EIO"


class FailingDisk:
    """Another disk, of which one operation fails. `fault` can be set at any time."""

    def __init__(self, inner: Disk, fault: Fault | None = None) -> None:
        self.inner = inner
        self.fault = fault
        self.counts: dict[Kind, int] = {"write": 0, "sync": 0, "read": 0, "other": 0}
        self.failed: Fault | None = None
        """The fault, once it has come."""

    def is_due(self, kind: Kind) -> bool:
        """Count an operation; whether it is the one that fails."""
        self.counts[kind] += 1
        fault = self.fault
        if fault is None or fault.kind != kind or self.counts[kind] != fault.at:
            return False
        self.failed, self.fault = fault, None
        return True

    def fail_next(self, kind: Kind, how: How) -> None:
        self.fault = Fault(kind, self.counts[kind] + 1, how)

    def check(self, kind: Kind) -> None:
        if self.is_due(kind):
            raise self.error()

    def error(self) -> OSError:
        assert self.failed is not None
        code = errno.EIO if self.failed.how == "EIO" else errno.ENOSPC
        return OSError(code, f"{self.failed.how} on purpose")

    # --- Disk -------------------------------------------------------------------------------------

    def create(self, path: str) -> File:
        self.check("other")
        return FailingFile(self, self.inner.create(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        self.check("other")
        return FailingFile(self, self.inner.open(path, writable=writable))

    def rename(self, path: str, new_path: str) -> None:
        self.check("other")
        self.inner.rename(path, new_path)

    def unlink(self, path: str) -> None:
        self.check("other")
        self.inner.unlink(path)

    def list_folder(self, folder: str) -> list[str]:
        return self.inner.list_folder(folder)

    def make_folder(self, folder: str) -> None:
        self.inner.make_folder(folder)

    def sync_folder(self, folder: str) -> None:
        self.check("sync")
        self.inner.sync_folder(folder)

    def lock(self, path: str) -> File | None:
        return self.inner.lock(path)

    def free_bytes(self, folder: str) -> int:
        return self.inner.free_bytes(folder)

    def entropy(self, length: int) -> bytes:
        return self.inner.entropy(length)


class FailingFile:
    def __init__(self, disk: FailingDisk, inner: File) -> None:
        self._disk = disk
        self._inner = inner

    def pread(self, length: int, offset: int) -> bytes:
        self._disk.check("read")
        return self._inner.pread(length, offset)

    def view(self, length: int, offset: int) -> None:
        """There is none: every read can fail."""

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self._disk.is_due("write"):
            self._fail(buffers, offset)
        self._inner.pwrite(buffers, offset)

    def pwrite_synced(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self._disk.is_due("write"):
            self._fail(buffers, offset)
        if self._disk.is_due("sync"):
            # Written, and the sync fails: the kernel drops the pages and says so once.
            self._inner.pwrite(buffers, offset)
            raise self._disk.error()
        self._inner.pwrite_synced(buffers, offset)

    def _fail(self, buffers: Sequence[Buffer], offset: int) -> None:
        """A short write is one that leaves a part behind before it says that the disk is full."""
        assert self._disk.failed is not None
        if self._disk.failed.how == "short":
            data = b"".join(buffers)
            self._inner.pwrite([data[: len(data) // 2]], offset)
        raise self._disk.error()

    def sync(self) -> None:
        self._disk.check("sync")
        self._inner.sync()

    def settle(self) -> None:
        self._disk.check("sync")
        self._inner.settle()

    def allocate(self, size: int) -> None:
        self._disk.check("other")
        self._inner.allocate(size)

    def truncate(self, size: int) -> None:
        self._disk.check("other")
        self._inner.truncate(size)

    def size(self) -> int:
        return self._inner.size()

    def modified_ms(self) -> int:
        return self._inner.modified_ms()

    def close(self) -> None:
        self._inner.close()


# --- one engine on it -----------------------------------------------------------------------------

TUNING: Final = Tuning(
    group_bytes=8 * KIB,
    cache_bytes=4 * KIB,
    segment_bytes=16 * KIB,
    move_bytes=4 * KIB,
    free_bytes=0,
)
SEGMENT: Final = 16 * KIB
STEPS: Final = 380
LOCK_MS: Final = 60_000


class Broken(Exception):
    """The rule of this file was not kept."""


class Trial:
    """What clients of one queue were told, and what they asked without an answer."""

    def __init__(self, seed: int, disk: FailingDisk) -> None:
        self._random = random.Random(seed)
        self._disk = disk
        self._clock = ManualClock(seed=seed)
        self._commits, self._side = SteppedLane(), SteppedLane()
        self._engine: Engine | None = None
        self._failures: list[StoreError] = []
        self._open: list[tuple[bytes, bytes]] = []
        """(payload, token) that we hold."""
        self._last = 0
        self.waiting = 0
        """Commands without an answer."""
        self.stored: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.completed: set[bytes] = set()
        self.completing: set[bytes] = set()

    # --- the load ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the fault comes, and the engine has ended as it must; or to the end."""
        try:
            store = FileStore(FOLDER, disk=self._disk, segment_bytes=SEGMENT)
            recovered = recover(store)
        except StoreError:
            return  # it failed while it was opened: nobody was told anything
        self._engine = engine = Engine(
            recovered,
            store,
            clock=self._clock,
            decode=_no_decode,
            on_effect=self._effect,
            on_failure=self._failures.append,
            commit_lane=self._commits,
            side_lane=self._side,
            tuning=TUNING,
        )
        try:
            self._ask(CreateQueue("q", QueueSettings(lock_duration_ms=LOCK_MS)))
            self._ask(Attach(1, "q", Mode.PEEK_LOCK))
            for _ in range(STEPS):
                self._step()
                if engine.failure is not None:
                    break
        except StoreError:
            if engine.failure is None:
                raise Broken("a StoreError was raised, but the engine goes on") from None
        if engine.failure is not None:
            self._check_end(engine)

    def _step(self) -> None:
        rng = self._random
        assert self._engine is not None
        self._clock.advance(rng.choice((0, 1, 300, 2_000)))
        if self._engine.next_deadline() <= self._clock.now_ms():
            self._engine.tick()
        draw = rng.random()
        if draw < 0.45:
            payloads = [self._payload() for _ in range(rng.randrange(1, 4))]
            self.perhaps.update(payloads)
            done = lambda reply: self._sent(payloads, reply)  # noqa: E731
            self._ask(Send("q", [Plain(payload) for payload in payloads]), done)
        elif draw < 0.60:
            self._ask(Flow(1, rng.randrange(1, 8), self._clock.random_bits(64)))
        elif draw < 0.85 and self._open:
            payload, token = self._open.pop(rng.randrange(len(self._open)))
            self.completing.add(payload)
            done = lambda reply: self._settled(payload, reply)  # noqa: E731
            self._ask(Settle("q", [token], Disposition.COMPLETE), done)
        elif draw < 0.90 and self._open:
            _, token = self._open.pop(rng.randrange(len(self._open)))
            self._ask(Settle("q", [token], Disposition.ABANDON))
        if rng.random() < 0.7:
            self._engine.flush()
            while self._commits.step() or self._side.step():
                pass

    def _payload(self) -> bytes:
        self._last += 1
        return b"%06d" % self._last + self._random.randbytes(self._random.choice((20, 200, 900)))

    def _ask(self, command: Any, done: Any = None) -> None:
        assert self._engine is not None
        self.waiting += 1

        def answered(reply: Reply) -> None:
            self.waiting -= 1
            if done is not None:
                done(reply)

        try:
            self._engine.submit(command, answered)
        except StoreError:
            self.waiting -= 1
            raise

    def _sent(self, payloads: list[bytes], reply: Reply) -> None:
        if not isinstance(reply, Exception):
            self.stored.update(payloads)

    def _settled(self, payload: bytes, reply: Reply) -> None:
        if not isinstance(reply, Exception):
            self.completed.add(payload)

    def _effect(self, effect: Effect) -> None:
        assert self._engine is not None
        if isinstance(effect, Deliver):
            for delivery in effect.deliveries:
                try:
                    payload = self._engine.body(delivery.body)
                except StoreError:
                    return  # the read that fails: the engine has ended
                assert delivery.token is not None
                self._open.append((payload, delivery.token))

    def _check_end(self, engine: Engine) -> None:
        if self.waiting:
            raise Broken(f"{self.waiting} who wait were not told of the end")
        if len(self._failures) != 1:
            raise Broken(f"the end was told {len(self._failures)} times")
        try:
            engine.submit(Browse("q"), lambda _: None)
        except StoreError:
            return
        raise Broken("an engine that has failed takes commands")

    # --- afterwards -------------------------------------------------------------------------------

    def check(self, disk: RecordingDisk) -> None:
        """Open what is left, and compare with what was said."""
        store = FileStore(FOLDER, disk=disk, segment_bytes=SEGMENT)
        if store.warnings:
            raise Broken(f"the next open warns: {store.warnings}")
        lanes = SteppedLane(), SteppedLane()
        failures: list[StoreError] = []
        engine = Engine(
            recover(store),
            store,
            clock=ManualClock(self._clock.now_ms() + 1),
            decode=_no_decode,
            on_effect=lambda _: None,
            on_failure=failures.append,
            commit_lane=lanes[0],
            side_lane=lanes[1],
            tuning=TUNING,
        )
        found: list[Delivery] = []
        start = 0
        while page := self._browse(engine, lanes, start):
            found += page
            start = page[-1].sequence_number + 1
        there = [engine.body(delivery.body) for delivery in found]
        if failures:
            raise Broken(f"the next life failed too: {failures[0]}")
        if len(set(there)) != len(there):
            raise Broken("a message is there twice")
        present = set(there)
        if lost := self.stored - self.completing - present:
            raise Broken(f"lost: {sorted(p[:6] for p in lost)}")
        if back := self.completed & present:
            raise Broken(f"completed, and back: {sorted(p[:6] for p in back)}")
        if strange := present - self.perhaps:
            raise Broken(f"never sent: {sorted(p[:6] for p in strange)}")
        numbers = [delivery.sequence_number for delivery in found]
        if numbers != sorted(set(numbers)):
            raise Broken(f"sequence numbers: {numbers}")

    @staticmethod
    def _browse(
        engine: Engine, lanes: tuple[SteppedLane, SteppedLane], start: int
    ) -> Sequence[Delivery]:
        replies: list[Any] = []
        engine.submit(Browse("q", start, 250), replies.append)
        engine.flush()
        while lanes[0].step() or lanes[1].step():
            pass
        (reply,) = replies
        if isinstance(reply, Exception):
            return ()  # the queue itself was never acknowledged
        shown: Sequence[Delivery] = reply
        return shown


def _no_decode(payload: bytes) -> Message:
    raise AssertionError("nothing is forwarded here")


def trial(seed: int, fault: Fault | None) -> dict[Kind, int]:
    """One engine, one fault, three ways to go on: the process starts again on what the cache holds,
    or the power fails as well, twice differently. Returns the operations that were counted."""
    recorder = RecordingDisk(seed)
    disk = FailingDisk(recorder, fault)
    load = Trial(seed, disk)
    load.run()
    if fault is not None and disk.failed is None and fault.at <= min(disk.counts.values()):
        raise Broken(f"{fault} did not come")
    for number in range(2):
        rng = random.Random(f"{seed} {fault} {number}")
        load.check(after_power_cut(recorder, rng, recorder.cuts() - 1))
    load.check(recorder.clone())
    return disk.counts
