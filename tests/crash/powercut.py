"""The power-cut harness: `python -m tests.crash.powercut --images 20000 --flips 2000`.

Runs the production `FileStore` on a recording disk, cuts the power anywhere, opens what is left
with the production store, and compares with what was promised before the cut:

- it opens; every group whose append returned, and that was not dropped, is there byte for byte and
  in order, and at most the one group more that was being written;
- the index is the last one whose save returned, or the one that was being saved;
- what is left can be written to, and cut again, also in the middle of the recovery.

A process that is killed leaves a disk whose cache is ahead of it: what the next one makes of that
and serves must survive a power cut, too.

Then it flips single bits in folders at rest: each must be detected and named, or change nothing.
And since a harness without teeth finds nothing, it runs with the syncs left out, and with faults in
the engine's compaction, and must find losses (the canaries).

Level 1 is the store alone, here. Level 2 is the whole engine on it (`engine_images.py`), and gets
half of the images.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tandembus.errors import CorruptLogError, StoreError
from tandembus.store.api import GROUP_HEADER, Group, Index
from tandembus.store.files import FileStore
from tandembus.store.segment import GROUP, HEADER, MARK, pack_group
from tests.crash.engine_images import engine_images
from tests.crash.ledger import Bad
from tests.crash.recording_disk import EVERY_SYNC, Killed, Note, RecordingDisk, after_power_cut
from tests.repeat import repeat

FOLDER = "data"
STEPS = 70
IMAGES_PER_RUN = 60
ENGINE_IMAGES_PER_RUN = 40
LEVELS = ("store", "engine", "flips")
SHOWN = 5
"""Failures of a level that are printed."""


# --- what was promised ----------------------------------------------------------------------------


class Appending(NamedTuple):
    group: Group


class Appended(NamedTuple):
    group: Group


class Saving(NamedTuple):
    saved: Index


class Saved(NamedTuple):
    saved: Index


class Dropping(NamedTuple):
    place: int


class Restarted(NamedTuple):
    """A process opened what a killed one left, and serves it: what it found is promised."""

    groups: list[Group]
    saved: Index | None


@dataclass
class Promises:
    """The notes before a cut, added up."""

    groups: list[Group] = field(default_factory=list)
    pending: Group | None = None
    index: Index | None = None
    pending_index: Index | None = None
    dropped: int = 0

    def add(self, notes: Iterable[object]) -> None:
        for note in notes:
            match note:
                case Appending(group):
                    self.pending = group
                case Appended(group):
                    self.groups.append(group)
                    self.pending = None
                case Saving(index):
                    self.pending_index = index
                case Saved(index):
                    self.index = index
                    self.pending_index = None
                case Dropping(place):
                    self.dropped = max(self.dropped, place)
                case Restarted(groups, index):
                    if self.pending is not None and groups[-1:] == [self.pending]:
                        self.groups.append(self.pending)
                    self.index = index
                    self.pending = self.pending_index = None

    def check(self, store: FileStore) -> None:
        """Compare, and settle what was pending: from now on it is there for good, or it is gone."""
        start = store.start
        if start > self.dropped:
            raise Bad(f"the log begins at {start}, but only {self.dropped} was dropped")
        found = list(store.replay(start))
        expected = [group for group in self.groups if group.place >= start]
        if self.pending is not None and found == [*expected, self.pending]:
            self.groups.append(self.pending)
        elif found != expected:
            raise Bad(_difference(expected, found))
        self.pending = None
        end = found[-1].place + GROUP_HEADER + len(found[-1].body) if found else None
        if end is not None and store.end != end:
            raise Bad(f"the end is {store.end}, but the last group ends at {end}")
        for group in found[-2:]:
            if store.read(group.place + GROUP_HEADER, len(group.body)) != group.body:
                raise Bad(f"the group at {group.place} reads differently")
        index = store.load_index()
        if index not in (self.index, self.pending_index):
            raise Bad(f"the index {index!r:.80} was not saved last, but {self.index!r:.80}")
        self.index, self.pending_index = index, None
        if store.warnings:
            raise Bad(f"warnings: {store.warnings}")


def _difference(expected: list[Group], found: list[Group]) -> str:
    for wanted, got in zip(expected, found, strict=False):
        if wanted != got:
            return f"the group at {wanted.place} is not what was acknowledged"
    return f"{len(found)} groups are there, {len(expected)} were acknowledged"


# --- what is done ---------------------------------------------------------------------------------


class Workload:
    """Random steps on a store: append, mark, save an index, drop, close and open again."""

    def __init__(self, disk: RecordingDisk, rng: random.Random, segment_bytes: int) -> None:
        self._disk = disk
        self._random = rng
        self._segment_bytes = segment_bytes
        self._retention_bytes = rng.choice((None, None, 2 * segment_bytes))
        self.store = self.open()

    def open(self) -> FileStore:
        return FileStore(
            FOLDER,
            disk=self._disk,
            segment_bytes=self._segment_bytes,
            retention_bytes=self._retention_bytes,
        )

    def step(self) -> None:
        """One step, or the kill of the process in the middle of it and the next one's start."""
        if self._random.random() > 0.06:
            self._step()
            return
        self._disk.killed_in = self._random.randrange(8)
        with contextlib.suppress(Killed):
            self._step()
        self._disk.restart()
        self.store = self.open()
        groups = list(self.store.replay(self.store.start))
        self._disk.note(Restarted(groups, self.store.load_index()))

    def _step(self) -> None:
        draw = self._random.random()
        if draw < 0.70:
            self._append()
        elif draw < 0.80:
            self.store.mark_idle()
        elif draw < 0.88:
            self._save_index()
        elif draw < 0.96:
            self._drop()
        else:
            self.store.close()
            self.store = self.open()

    def _append(self) -> None:
        rng = self._random
        length = rng.choice((0, 7, 40, 100, 400, 700, 1500))
        if rng.random() < 0.02:
            length = self._segment_bytes  # needs a segment of its own size
        body = rng.randbytes(length)
        if rng.random() < 0.2:
            # A hostile body: real headers of this very log, in the hope to pass for a group.
            name = rng.choice([n for n in self._disk.names if n.endswith(".log")])
            body = bytes(self._disk.contents[self._disk.names[name]][HEADER:][:length]) + body
        elif rng.random() < 0.2:
            # And one who knows the place, too, but not the life of the segment.
            at = self.store.end + GROUP_HEADER + len(body)
            body += pack_group(rng.choice((GROUP, MARK)), 7, 1 << 40, at, 0)
        group = Group(self.store.end, body)
        self._disk.note(Appending(group))
        middle = rng.randrange(len(body) + 1)
        self.store.append([body[:middle], body[middle:]])
        self._disk.note(Appended(group))

    def _save_index(self) -> None:
        index = Index(self.store.end, self._random.randbytes(self._random.choice((0, 50, 2000))))
        self._disk.note(Saving(index))
        self.store.save_index(index.place, [index.data])
        self._disk.note(Saved(index))

    def _drop(self) -> None:
        index = self.store.load_index()
        if index is not None:
            place = self._random.randint(self.store.start, index.place)
            self._disk.note(Dropping(place))
            self.store.drop_before(place)


def images(
    seed: int, numbers: Iterable[int], forgets: Collection[str] = ()
) -> Iterator[str | None]:
    """One workload, and power cuts of it by their numbers; for each what is bad, or None."""
    rng = random.Random(seed)
    segment_bytes = HEADER + rng.choice((900, 2000, 6000))
    disk = RecordingDisk(seed, forgets=forgets)
    workload = Workload(disk, rng, segment_bytes)
    for _ in range(STEPS):
        workload.step()
    for number in numbers:
        image_rng = random.Random(f"{seed} {number}")
        try:
            _one_image(disk, image_rng, segment_bytes)
        except (Bad, StoreError) as error:
            yield f"{type(error).__name__}: {error}"
        else:
            yield None


def _one_image(disk: RecordingDisk, rng: random.Random, segment_bytes: int) -> None:
    image = after_power_cut(disk, rng)
    promises = Promises()
    promises.add(image.promised)
    while True:
        # The next life on the same disk. Its first operations are the recovery itself, and the
        # next cut may fall among them.
        workload = Workload(image, rng, segment_bytes)
        promises.check(workload.store)
        for _ in range(rng.choice((0, 1, 1, 5))):
            workload.step()
        if rng.random() < 0.6:
            break
        image = after_power_cut(image, rng)
        promises.add(image.promised)
    # And the end of this life, without a cut.
    promises.add(note.value for note in image.journal if isinstance(note, Note))
    image.restart()
    promises.check(Workload(image, rng, segment_bytes).store)


# --- flipped bits ---------------------------------------------------------------------------------


def flips(seed: int, numbers: Iterable[int]) -> Iterator[str]:
    """One folder at rest, and single bits flipped in it by their numbers: "detected", "harmless",
    or what is wrong."""
    rng = random.Random(seed)
    segment_bytes = HEADER + rng.choice((900, 2000, 6000))
    disk = RecordingDisk(seed)
    workload = Workload(disk, rng, segment_bytes)
    for _ in range(STEPS):
        workload.step()
    if rng.random() < 0.5:
        workload.store.close()
    else:
        workload.store.mark_idle()  # a kill while nothing was being written
    expected = _everything(disk.clone(), segment_bytes)
    for number in numbers:
        yield _one_flip(disk.clone(), random.Random(f"{seed} {number}"), segment_bytes, expected)


Everything: TypeAlias = tuple[int, int, list[Group], Index | None]


def _everything(disk: RecordingDisk, segment_bytes: int) -> Everything:
    store = FileStore(FOLDER, disk=disk, segment_bytes=segment_bytes)
    index = store.load_index()
    groups = list(store.replay(store.start))
    if store.warnings:
        raise Warned(" ".join(store.warnings))
    return store.start, store.end, groups, index


class Warned(Exception):
    """The store went round a damage, and said so."""


def _one_flip(
    disk: RecordingDisk, rng: random.Random, segment_bytes: int, expected: Everything
) -> str:
    path = rng.choice([path for path, file in disk.names.items() if disk.contents[file]])
    content = disk.contents[disk.names[path]]
    used = [at for at, byte in enumerate(content) if byte]
    # Three in four where something is written: most of a segment is empty or left from before.
    at = rng.choice(used) if rng.random() < 0.75 else rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)
    name = path.removeprefix(FOLDER + "/")
    try:
        found = _everything(disk, segment_bytes)
    except CorruptLogError as error:
        if error.segment != name:
            return f"byte {at} of {name}: but the error says {error}"
        return "detected"
    except Warned as warning:
        return "detected" if name in str(warning) else f"byte {at} of {name}: {warning}"
    except StoreError as error:
        return f"byte {at} of {name}: {error}"
    return "harmless" if found == expected else f"byte {at} of {name}: silent"


# --- all of it ------------------------------------------------------------------------------------


class Job(NamedTuple):
    kind: str
    seed: int
    images: int
    first: int = 0
    """The number of the first image."""


class Result(NamedTuple):
    """Of one image or flip."""

    seed: int
    number: int
    """Of the image; -1: it failed before any cut."""
    what: str
    """Of a good image: "". Of a flip: "detected" or "harmless". Else what is wrong."""

    def __str__(self) -> str:
        where = "before any cut" if self.number < 0 else f"number {self.number}"
        return f"seed {self.seed}, {where}: {self.what}"


def run(job: Job) -> list[Result]:
    try:
        return _run(job)
    except (Bad, StoreError) as error:  # it cannot be sent to another process
        return [Result(job.seed, -1, f"{type(error).__name__}: {error}")]


def _run(job: Job) -> list[Result]:
    numbers = range(job.first, job.first + job.images)
    level, _, fault = job.kind.partition(": ")
    found: Iterator[str | None]
    if level == "flip":
        found = flips(job.seed, numbers)
    elif level == "engine":
        found = engine_images(job.seed, numbers, fault)
    else:
        forgets = {"image": frozenset[str](), "canary": EVERY_SYNC}.get(job.kind, {job.kind})
        found = images(job.seed, numbers, forgets)
    return [
        Result(job.seed, number, what or "") for number, what in zip(numbers, found, strict=True)
    ]


def jobs(kind: str, seed: int, count: int, first: int = 0) -> list[Job]:
    most = ENGINE_IMAGES_PER_RUN if kind.startswith("engine") else IMAGES_PER_RUN
    return [
        Job(kind, seed + done, min(most, count - done), first) for done in range(0, count, most)
    ]


CANARIES = (
    ("canary", 300, "without any sync"),
    ("write", 100, "without the sync of a group"),
    ("folder", 100, "without the sync of a folder"),
    ("file", 100, "without the sync of a file"),
    ("engine: unsynced", 80, "of the engine without the sync of a group"),
    ("engine: told early", 80, "of an engine that answers before the sync"),
    ("engine: dropped early", 240, "of an engine that drops a body before it has moved"),
    ("engine: index between", 240, "of an engine with an index amid a move"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="powercut", description=__doc__.split("\n\n")[0])
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-canary", action="store_true")
    parser.add_argument("--no-sync", action="store_true", help="the images without any sync")
    parser.add_argument(
        "--only", choices=LEVELS, help="all images, or the flips, of this level, and no canary"
    )
    parser.add_argument(
        "--number", type=int, default=0, help="of the first image or flip of each run (0)"
    )
    options = parser.parse_args(arguments)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:

        def results(kind: str, count: int, first: int = 0) -> list[Result]:
            found: list[Result] = []
            for part in pool.imap_unordered(run, jobs(kind, options.seed, count, first)):
                found += part
                if len(found) % 6_000 < len(part) and len(found) < count:
                    print(f"  {len(found)} of {count} …", flush=True)
            return found

        failures: list[tuple[str, Result]] = []
        shares = {"store": options.images - options.images // 2, "engine": options.images // 2}
        if options.only is not None:
            shares = {level: options.images * (level == options.only) for level in shares}
        kinds = {"store": "image", "engine": "engine"}
        if options.no_sync:
            kinds = {"store": "canary", "engine": "engine: unsynced"}
        made = 0
        for level, count in shares.items():
            began = time.monotonic()
            cut = results(kinds[level], count, options.number)
            bad = [result for result in cut if result.what]
            for result in bad[:SHOWN]:
                print(f"  {result}")
            rate = len(cut) / (time.monotonic() - began)
            print(f"{level}: {len(cut)} images, {len(bad)} bad ({rate:.0f} images/s)", flush=True)
            made += len(cut)
            failures += [(level, result) for result in bad]
        print(f"{made} images: {len(failures)} bad", flush=True)

        flipped = []
        if options.only in (None, "flips"):
            flipped = results("flip", options.flips, options.number)
        silent = [result for result in flipped if result.what not in ("detected", "harmless")]
        detected = sum(result.what == "detected" for result in flipped)
        for result in silent[:SHOWN]:
            print(f"  {result}")
        print(
            f"{len(flipped)} flips: {detected} detected, "
            f"{len(flipped) - detected - len(silent)} harmless, {len(silent)} silent",
            flush=True,
        )
        failures += [("flips", result) for result in silent]

        is_blind = False
        for kind, count, missing in () if options.no_canary or options.only else CANARIES:
            losses = sum(bool(result.what) for result in results(kind, count))
            verdict = "as it must be" if losses else "THE HARNESS IS BLIND"
            print(f"canary: {losses} of {count} images bad {missing}, {verdict}", flush=True)
            is_blind |= not losses
    no_sync = ["--no-sync"] * options.no_sync
    if failures:
        level, result = failures[0]
        again = ["--seed", result.seed, "--only", level, "--number", max(0, result.number)]
        counts = {"IMAGES": int(level != "flips"), "FLIPS": int(level == "flips")}
        return repeat("powercut", *again, *no_sync, **counts)
    return repeat("powercut", "--seed", options.seed, IMAGES=0, FLIPS=0) if is_blind else 0


if __name__ == "__main__":
    sys.exit(main())
