"""The process that `kill` kills: a real engine on a real folder, under load, telling what it knows.

    python -m tests.crash.worker FOLDER SEED LIFE [--forgetful]

Every line of its output is written with one system call, so a SIGKILL loses none that was written.
What it intends to do is told before, what was confirmed after:

    ready MS RECORDS    the engine has recovered, in so many milliseconds, replaying so many records
    here Q N U STATE    the message U is in queue Q with the sequence number N (at the start)
    audited             and these were all
    send Q U…           sent, not answered yet          sent Q N U…    with numbers from N on
    later Q U           scheduled, not answered         put Q N U      scheduled under number N
    end U…              to be completed                 ended U…       completed for sure
    take Q COUNT        up to so many are taken         took U…        received and deleted
    begin T E S L Q     the transaction T completes E, sends S to Q, schedules L (lists with commas)
    commit T            to be committed                 committed T    for sure
    rolled T            rolled back; one of which nothing more is told was left open
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.changes import Mode
from tandembus.core.commands import (
    Browse,
    Command,
    CreateQueue,
    Declare,
    Discharge,
    Disposition,
    ReceiveDeferred,
    Send,
    Settle,
)
from tandembus.core.effects import Delivery
from tandembus.engine.blocking import BlockingEngine
from tandembus.engine.engine import Tuning
from tandembus.errors import EntityExistsError, TandemError
from tandembus.limits import KIB, MAX_BROWSE, MIB
from tandembus.settings import QueueSettings
from tandembus.store.api import GROUP_HEADER, Buffer
from tandembus.store.disk import File, RealDisk, RealFile
from tandembus.store.files import FileStore

PLAIN: Final = "plain"
"""Nothing is scheduled here, so its numbers have no gaps at all."""
LATER: Final = "later"
QUEUES: Final = (PLAIN, LATER)
DEAD: Final = "/$DeadLetterQueue"
SEGMENT: Final = 1 * MIB
TUNING: Final = Tuning(
    group_bytes=256 * KIB,
    cache_bytes=512 * KIB,
    free_bytes=0,
    segment_bytes=SEGMENT,
    move_bytes=64 * KIB,
)
MOST_WAITING: Final = 2_500
"""More than this and it receives more than it sends: so the log has an old end to compact."""


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class ForgetfulDisk(RealDisk):
    """Keeps the last few groups in this process for a while, as no store may: the canary."""

    __slots__ = ("_files", "kept")
    EVERY: Final = 16

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}
        self.kept: list[tuple[RealFile, int, bytes]] = []

    def create(self, path: str) -> File:
        return self._wrap(path, super().create(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        if path in self._files and not writable:
            file: File = self._files[path]
            return file
        return self._wrap(path, super().open(path, writable=writable))

    def rename(self, path: str, new_path: str) -> None:
        super().rename(path, new_path)
        if path in self._files:
            self._files[new_path] = self._files.pop(path)

    def _wrap(self, path: str, file: File) -> File:
        assert isinstance(file, RealFile)
        wrapped: Any = ForgetfulFile(self, file)
        self._files[path] = wrapped
        shown: File = wrapped
        return shown

    def keep(self, file: RealFile, offset: int, data: bytes) -> None:
        self.kept.append((file, offset, data))
        if len(self.kept) >= self.EVERY:
            for file, at, part in self.kept:
                file.pwrite([part], at)
            self.kept = []  # only now: another thread may be reading


class ForgetfulFile:
    def __init__(self, disk: ForgetfulDisk, inner: RealFile) -> None:
        self._disk = disk
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        if sum(map(len, buffers)) == GROUP_HEADER:  # the mark of an idle log goes with its groups
            self.pwrite_synced(buffers, offset)
        else:
            self._inner.pwrite(buffers, offset)

    def pwrite_synced(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._disk.keep(self._inner, offset, b"".join(buffers))

    def pread(self, length: int, offset: int) -> bytes:
        data = bytearray(self._inner.pread(length, offset))
        for file, at, kept in self._disk.kept:
            first, last = max(at, offset), min(at + len(kept), offset + len(data))
            if file is self._inner and first < last:
                data[first - offset : last - offset] = kept[first - at : last - at]
        return bytes(data)

    def view(self, length: int, offset: int) -> None:
        """There is none: it would not show what is kept."""


class Load:
    """One life: audit, then send, receive, settle, schedule, take, until the kill."""

    def __init__(self, engine: BlockingEngine, seed: int, life: int) -> None:
        self._engine = engine
        self._random = random.Random(f"{seed} {life}")
        self._next = life << 32
        self._waiting = 0
        self._deferred: list[tuple[str, int, int]] = []

    def audit(self) -> None:
        """Tell of everything that is there."""
        for name in QUEUES:
            for path in (name, name + DEAD):
                start = 0
                while True:
                    page = self._engine.execute(Browse(path, start, MAX_BROWSE))
                    rows = [(path, d.sequence_number, self._uid(d), d.state.name) for d in page]
                    if rows:
                        lines = (f"here {p} {n} {u} {s}\n" for p, n, u, s in rows)
                        os.write(1, "".join(lines).encode())
                    self._waiting += len(page)
                    self._deferred += [(p, n, u) for p, n, u, s in rows if s == "DEFERRED"]
                    if len(page) < MAX_BROWSE:
                        break
                    start = page[-1].sequence_number + 1
        tell("audited")

    def step(self) -> None:
        rng = self._random
        draw = rng.random()
        is_full = self._waiting > MOST_WAITING
        if draw < (0.15 if is_full else 0.5):
            self._send()
        elif draw < 0.56:
            self._schedule()
        elif draw < 0.68 and self._deferred:
            for _ in range(min(len(self._deferred), rng.randint(1, 10))):
                self._fetch()
        elif draw < 0.74:
            self._take()
        elif draw < 0.8:
            self._transact()
        else:
            self._receive()

    def _uid(self, delivery: Delivery) -> int:
        return int.from_bytes(self._engine.body(delivery.body)[-8:], "big")

    def _messages(self, count: int, due_ms: int | None = None) -> tuple[list[int], list[Any]]:
        uids = list(range(self._next, self._next + count))
        self._next += count
        make = partial(encode_message, scheduled_ms=due_ms)
        size = self._random.choice((50, 300, 2_000))
        bodies = [self._random.randbytes(size) + uid.to_bytes(8, "big") for uid in uids]
        return uids, [AmqpMessage(make(body=body)) for body in bodies]

    def _send(self) -> None:
        """Several sends of some messages each; they share groups."""
        rng = self._random
        commands: list[Command] = []
        batches: list[list[int]] = []
        path = PLAIN if rng.random() < 0.8 else LATER
        for _ in range(rng.randint(1, 8)):
            uids, messages = self._messages(rng.randint(1, 20))
            batches.append(uids)
            commands.append(Send(path, messages))
        tell("send", path, *(uid for uids in batches for uid in uids))
        replies = self._engine.execute_all(commands)
        for uids, numbers in zip(batches, replies, strict=True):
            _good(numbers)
            assert numbers == list(range(numbers[0], numbers[0] + len(uids))), numbers
            self._waiting += len(uids)
        os.write(
            1,
            "".join(
                f"sent {path} {numbers[0]} {' '.join(map(str, uids))}\n"
                for uids, numbers in zip(batches, replies, strict=True)
            ).encode(),
        )

    def _schedule(self) -> None:
        due = time.time_ns() // 1_000_000 + self._random.choice((20, 200, 3_000))
        (uid,), messages = self._messages(1, due)
        tell("later", LATER, uid)
        (number,) = self._engine.execute(Send(LATER, messages))
        tell("put", LATER, number, uid)
        self._waiting += 1

    def _receive(self) -> None:
        rng = self._random
        name = rng.choice(QUEUES)
        path = name + DEAD if rng.random() < 0.25 else name
        deliveries = self._engine.receive(path, rng.choice((1, 10, 100, 300)))
        if not deliveries:
            return
        rows = [(self._uid(delivery), delivery) for delivery in deliveries]
        rng.shuffle(rows)
        cut = int(len(rows) * 0.85) if rng.random() < 0.8 else 0
        done, rest = rows[:cut], rows[cut:]
        if done:
            tell("end", *(uid for uid, _ in done))
            self._settle(path, [d for _, d in done], Disposition.COMPLETE)
            tell("ended", *(uid for uid, _ in done))
            self._waiting -= len(done)
        kinds = [Disposition.ABANDON, Disposition.RELEASE, Disposition.DEFER]
        if path == name:
            kinds.append(Disposition.DEAD_LETTER)
        for uid, delivery in rest:
            kind = rng.choice(kinds)
            self._settle(path, [delivery], kind)
            if kind is Disposition.DEFER:
                self._deferred.append((path, delivery.sequence_number, uid))

    def _settle(self, path: str, deliveries: Sequence[Delivery], kind: Disposition) -> None:
        tokens = [delivery.token for delivery in deliveries if delivery.token is not None]
        size = self._random.choice((1, 10, 100))
        parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
        for reply in self._engine.execute_all(Settle(path, part, kind) for part in parts):
            _good(reply)

    def _fetch(self) -> None:
        path, number, uid = self._deferred.pop(self._random.randrange(len(self._deferred)))
        nonce = self._random.getrandbits(64)
        (delivery,) = self._engine.execute(ReceiveDeferred(path, [number], nonce))
        assert self._uid(delivery) == uid
        tell("end", uid)
        self._settle(path, [delivery], Disposition.COMPLETE)
        tell("ended", uid)
        self._waiting -= 1

    def _take(self) -> None:
        path, count = self._random.choice(QUEUES), self._random.choice((1, 5, 20))
        tell("take", path, count)
        uids = [
            self._uid(delivery)
            for delivery in self._engine.receive(path, count, Mode.RECEIVE_AND_DELETE)
        ]
        tell("took", path, *uids)
        self._waiting -= len(uids)

    def _transact(self) -> None:
        """Complete, send and schedule as one; commit it, roll it back, or leave it open."""
        rng = self._random
        path, target = rng.choice(QUEUES), rng.choice(QUEUES)
        deliveries = self._engine.receive(path, rng.choice((1, 3, 10)))
        ends = [self._uid(delivery) for delivery in deliveries]
        sends, messages = self._messages(rng.randint(1, 6))
        due = time.time_ns() // 1_000_000 + rng.choice((200, 3_000))
        later, held = self._messages(rng.randint(0, 2), due)
        number = self._engine.execute(Declare())
        tell(
            "begin", number, *(",".join(map(str, it)) or "-" for it in (ends, sends, later)), target
        )
        self._engine.execute(Send(target, messages, transaction=number))
        if deliveries:
            tokens = [it.token for it in deliveries if it.token is not None]
            settle = Settle(path, tokens, Disposition.COMPLETE, transaction=number)
            self._engine.execute(settle)
        if held:
            self._engine.execute(Send(LATER, held, transaction=number, is_numbered=True))
        draw = rng.random()
        if draw < 0.2:
            self._engine.execute(Discharge(number, fail=True))
            tell("rolled", number)
        elif draw < 0.85:
            tell("commit", number)
            self._engine.execute(Discharge(number))
            tell("committed", number)
            self._waiting += len(sends) + len(later) - len(ends)


def _good(reply: Any) -> None:
    if isinstance(reply, TandemError):
        raise reply


def main(arguments: Iterable[str]) -> None:
    folder, seed, life, *flags = arguments
    began = time.perf_counter()
    disk = ForgetfulDisk() if "--forgetful" in flags else RealDisk()
    engine = BlockingEngine(
        FileStore(folder, disk=disk, segment_bytes=SEGMENT), decode=AmqpMessage, tuning=TUNING
    )
    tell("ready", round((time.perf_counter() - began) * 1000, 1), engine.recovered.records)
    for name in QUEUES:
        try:
            engine.execute(CreateQueue(name, QueueSettings(max_delivery_count=1_000)))
        except EntityExistsError:
            continue
    load = Load(engine, int(seed), int(life))
    load.audit()
    while True:
        load.step()


if __name__ == "__main__":
    main(sys.argv[1:])
