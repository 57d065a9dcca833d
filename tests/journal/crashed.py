"""A log with a history: every kind of command, kills in the middle of a write, clean stops, and
nothing dropped, so that a journal can be made of all of it.

The traffic, the lives and the ledger are those of the crash tests; the ledger knows by itself what
must be there at the end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tandembus.store.segment import Hold, pack_hold
from tests.crash.engine_images import _stop
from tests.crash.engine_life import FOLDER, Life, OverlappingDisk, Shape
from tests.crash.ledger import Ledger
from tests.crash.promises import Promises
from tests.crash.recording_disk import Killed, Note, RecordingDisk
from tests.crash.traffic import Traffic


class History:
    """Several lives on one disk; `step` goes on, and after each the disk is as a power cut or a
    kill would find it, but for what is on its way."""

    def __init__(self, seed: int, *, steps: int, ends: int, is_held: bool = True) -> None:
        self.random = random.Random(f"history {seed}")
        self.disk = OverlappingDisk(seed)
        if is_held:
            file = self.disk.create(f"{FOLDER}/test.hold")
            file.pwrite([pack_hold(Hold(0, 1 << 40, 1 << 40))], 0)
        self.shape = Shape.draw(self.random)
        self._known: dict[int, bytes] = {}
        self._life = Life(self.disk, self.shape, self._known, None, Promises())
        self._steps = steps
        self._ends = {self.random.randrange(steps): rank % 2 for rank in range(ends)}

    @property
    def ledger(self) -> Ledger:
        return self._life.record.live

    def run(self) -> Iterator[int]:
        """Yields after each step; at the end all is durable and stopped."""
        traffic = Traffic(self._life, self.random, self._known)
        self.disk.during = traffic.overlap
        traffic.prepare()
        for step in range(self._steps):
            end = self._ends.get(step)
            if end == 0:
                self.disk.killed_in = self.random.randrange(60)
            try:
                traffic.step()
                if end == 1:
                    _stop(self._life)
            except Killed:
                end = 2
            if end in (1, 2):
                self._restart(traffic)
            yield step
        self.disk.during = None
        self.disk.killed_in = None
        _stop(self._life)

    def _restart(self, traffic: Traffic) -> None:
        disk = self.disk
        disk.during = None
        disk.restart()
        promises = Promises()
        promises.add(note.value for note in disk.journal if isinstance(note, Note))
        self._life = Life(disk, self.shape, self._known, self._life.record, promises)
        traffic.reborn(self._life)
        disk.during = traffic.overlap
        traffic.prepare()


def copy_out(disk: RecordingDisk, folder: Path) -> Path:
    """The files of the log as they are now, in a real folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {Path(path).name: file for path, file in disk.names.items()}
    for path in folder.iterdir():
        if path.name not in names and not path.name.startswith("journal-"):
            path.unlink()
    for name, file in names.items():
        (folder / name).write_bytes(disk.contents[file])
    return folder


def crashed_log(seed: int, folder: Path, *, steps: int = 360, ends: int = 4) -> Ledger:
    """A whole history in `folder`, and what is there at its end."""
    history = History(seed, steps=steps, ends=ends)
    for _ in history.run():
        pass
    copy_out(history.disk, folder)
    return history.ledger
