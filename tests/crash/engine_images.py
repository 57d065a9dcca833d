"""Level 2 of the power-cut harness: the whole engine on a recording disk.

One run is recorded: segments are filled, sealed, dropped and used again, indexes are saved, bodies
are moved out of the old end, and now and then the process is killed or stopped and started again.
Then the power is cut anywhere in it, and the production code recovers from what is left:

- the state is what all decisions up to the end of the log add up to, exactly (`ledger.py`);
- the log goes at least as far as what anybody was told (`promises.py`): no message that was
  accepted is missing, none that was settled is back, numbers follow each other, and what was in
  flight is there as a whole or not at all;
- every body reads as it was sent, and none is kept that nobody needs;
- the engine works: it takes, gives and settles a message, refuses ids that it has seen, goes on
  with any traffic, and can be cut again, in its recovery too; or is opened again, and is the same.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tandembus.changes import EntityKind, Mode
from tandembus.core.commands import Attach, Disposition, Flow, Send, Settle
from tandembus.core.state import State
from tandembus.engine.compaction import Compactor
from tandembus.errors import StoreError
from tests.crash.engine_life import Life, Link, OverlappingDisk, Record, Shape, WatchedEngine
from tests.crash.ledger import Bad
from tests.crash.promises import Begun, Promises
from tests.crash.recording_disk import (
    Killed,
    Note,
    RecordingDisk,
    Rename,
    SyncFolder,
    Unlink,
    after_power_cut,
)
from tests.crash.traffic import Traffic

STEPS: Final = 360


@dataclass
class Run:
    """What was recorded."""

    disk: RecordingDisk
    shape: Shape
    known: dict[int, bytes]
    """Every payload, by the test's number of the message."""
    lives: list[Record]
    hot: list[int]
    """Positions of the journal where files come, go or change their names."""
    moved: int = 0
    """Bodies that compaction wrote again."""
    indexes: int = 0


def record_run(seed: int, fault: str = "") -> Run:
    """A run with, for a canary, a fault in it; it may be shorter then."""
    rng = random.Random(f"run {seed}")
    disk = OverlappingDisk(seed, forgets={"write"} if fault == "unsynced" else ())
    run = Run(disk, Shape.draw(rng), {}, [], [])
    try:
        _record(run, disk, rng)
    except (Bad, StoreError):
        if not fault:
            raise
    run.hot = [
        position
        for position, operation in enumerate(disk.journal)
        if isinstance(operation, Rename | Unlink | SyncFolder)
    ]
    return run


def _record(run: Run, disk: OverlappingDisk, rng: random.Random) -> None:
    life = Life(disk, run.shape, run.known, None, Promises())
    run.lives.append(life.record)
    traffic = Traffic(life, rng, run.known)
    disk.during = traffic.overlap
    traffic.prepare()
    ends = {
        rng.randrange(STEPS): rng.choice(("kill", "stop")) for _ in range(rng.choice((0, 1, 2)))
    }
    for step in range(STEPS):
        end = ends.get(step)
        if end == "kill":
            disk.killed_in = rng.randrange(60)
        try:
            traffic.step()
            if end == "stop":
                _stop(life)
        except Killed:
            end = "killed"
        if end in ("stop", "killed"):
            disk.during = None
            disk.restart()
            run.moved += life.engine.metrics.bodies_moved
            run.indexes += life.engine.metrics.indexes_saved
            promises = Promises()
            promises.add(note.value for note in disk.journal if isinstance(note, Note))
            life = Life(disk, run.shape, run.known, life.record, promises)
            run.lives.append(life.record)
            traffic.reborn(life)
            disk.during = traffic.overlap
            traffic.prepare()
    disk.during = None
    run.moved += life.engine.metrics.bodies_moved
    run.indexes += life.engine.metrics.indexes_saved


def _stop(life: Life) -> None:
    ended: list[None] = []
    life.engine.close(lambda: ended.append(None))
    life.settle()
    if not ended:
        raise Bad("a clean stop does not end")
    life.store.close()


# --- images ---------------------------------------------------------------------------------------


def engine_images(seed: int, numbers: Iterable[int], fault: str = "") -> Iterator[str | None]:
    """One run, and power cuts of it by their numbers; for each what is bad, or None."""
    with FAULTS[fault]():
        run = record_run(seed, fault)
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        try:
            _one_image(run, rng, heat=0.7 if fault else 0.3)
        except (Bad, StoreError) as error:
            yield f"{type(error).__name__}: {error}"
        except (AssertionError, LookupError) as error:  # core, on a log that does not fit together
            yield repr(error)
        else:
            yield None


def _one_image(run: Run, rng: random.Random, heat: float = 0.3) -> None:
    """`heat`: the share of the cuts where files come, go or change their names."""
    cut = None
    if run.hot and rng.random() < heat:
        cut = max(0, min(rng.choice(run.hot) + rng.randrange(-2, 4), run.disk.cuts() - 1))
    image = after_power_cut(run.disk, rng, cut)
    promises = Promises()
    promises.add(image.promised)
    lives = sum(type(note) is Begun for note in image.promised)
    record = run.lives[lives - 1] if lives else None
    known = dict(run.known)
    while True:
        # The next life on the same disk. The next cut may fall in its recovery, too.
        before, former = promises.copy(), record
        life = Life(image, run.shape, known, former, promises)
        record = life.record
        _work(life, rng, known)
        if rng.random() < 0.7:
            break
        image = after_power_cut(image, rng)
        before.add(image.promised)
        promises = before
        if not any(type(note) is Begun for note in image.promised):
            record = former
    # And the end of this life without a cut: the same is there again.
    promises = before
    promises.add(note.value for note in image.journal if isinstance(note, Note))
    image.restart()
    life = Life(image, run.shape, known, record, promises)
    if rng.random() < 0.2:
        _empty(life)


def _empty(life: Life) -> None:
    """Whatever waits can be received."""
    link = 2_000
    for entity in list(life.record.live.entities.values()):
        sessions = {row.session for row in entity.rows.values()} if entity.path == "s" else {None}
        if entity.kind is EntityKind.TOPIC or entity.path in ("in", "out"):
            continue
        for session in sorted(sessions, key=str):
            link += 1
            life.execute(Attach(link, entity.path, Mode.RECEIVE_AND_DELETE, session))
            life.execute(Flow(link, 10_000, 0))
        waiting = [n for n, row in entity.rows.items() if row.state == State.WAITING]
        if waiting:
            raise Bad(f"{entity.path}: {waiting} wait, and nobody gets them")


def _work(life: Life, rng: random.Random, known: dict[int, bytes]) -> None:
    """The engine takes a message, gives the oldest, and settles it."""
    traffic = Traffic(life, rng, known, next_link=1_000)
    traffic.prepare()
    traffic.reborn(life)
    traffic.send_again()
    queue = life.record.live.at("q")
    assert queue is not None
    expected = queue.last.get(0, 0) + 1
    found = life.execute(Send("q", [traffic.message("q", can_wait=False)]))
    if found != [expected]:
        raise Bad(f"the next number is {found}, not {expected}")
    life.execute(Attach(999, "q"))
    life.links[999] = Link("q", Mode.PEEK_LOCK, None)
    life.execute(Flow(999, 1, life.clock.random_bits(64)))
    held = life.held.get("q", [])
    if len(held) != 1:
        raise Bad(f"{len(held)} messages are delivered on a credit of 1")
    life.execute(Settle("q", [held.pop().token], Disposition.COMPLETE))
    for _ in range(rng.choice((0, 0, 2, 6))):
        traffic.step()


# --- faults that must be found --------------------------------------------------------------------


@contextlib.contextmanager
def _none() -> Iterator[None]:
    yield


@contextlib.contextmanager
def _told_early() -> Iterator[None]:
    """Answers leave before what they rest on is durable."""
    WatchedEngine.is_hasty = True
    try:
        yield
    finally:
        WatchedEngine.is_hasty = False


@contextlib.contextmanager
def _dropped_early() -> Iterator[None]:
    """A body that was written again is looked for in the new place, and the old one is dropped,
    before the new one is durable."""
    shorten = Compactor._shorten

    def hasty(self: Compactor) -> None:
        shorten(self)
        for number, place in self._moved:
            self._bodies.move(number, place)
        self._moved.clear()
        floor = min(self._limit(), self._bodies.lowest_place())
        if floor > self._floor:
            self._floor = floor
            self._store.drop_before(floor)

    Compactor._shorten = hasty  # type: ignore[method-assign]
    try:
        yield
    finally:
        Compactor._shorten = shorten  # type: ignore[method-assign]


@contextlib.contextmanager
def _index_between() -> Iterator[None]:
    """An index is taken while bodies are being moved: it knows their old places, and replay starts
    behind the new ones."""
    shorten = Compactor._shorten

    def hasty(self: Compactor) -> None:
        shorten(self)
        if self._moved and self._snapshot is None:
            self._take_snapshot()

    Compactor._shorten = hasty  # type: ignore[method-assign]
    try:
        yield
    finally:
        Compactor._shorten = shorten  # type: ignore[method-assign]


FAULTS: Final = {
    "": _none,
    "unsynced": _none,
    "told early": _told_early,
    "dropped early": _dropped_early,
    "index between": _index_between,
}
