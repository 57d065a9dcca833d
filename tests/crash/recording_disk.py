"""A disk in memory that remembers every operation, and the disks that a power cut could leave.

What lives here: `RecordingDisk`, a `tandembus.store.disk.Disk` with a journal, and
`after_power_cut`, which builds another one from it. What does not: what is written and what
must survive (`powercut`).

The rule, from RELIABILITY.md §1.1: what was synced before the cut is there. Of the rest each write
may be there, missing, torn at sectors of 512 or 4096 bytes, or noise; each file on its own. Each
create, rename and unlink whose folder was not synced may have happened or not, in any combination;
a rename is atomic. Bytes that were not written keep their value.

    disk = RecordingDisk(seed)
    store = FileStore("data", disk=disk)         # or a whole engine on it
    disk.note("something that was promised")     # lands in the journal, too
    image = after_power_cut(disk, random.Random(7), cut=disk.cuts() // 2)
    image.promised                               # the notes before the cut
"""

from __future__ import annotations

import errno
import os.path
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tandembus.store.api import Buffer
from tandembus.store.disk import File


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """The whole file, or only the write at one position of the journal."""

    file: int
    write: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    path: str
    file: int


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    new_path: str
    file: int


@dataclass(frozen=True, slots=True)
class Unlink:
    path: str
    file: int


@dataclass(frozen=True, slots=True)
class SyncFolder:
    folder: str


@dataclass(frozen=True, slots=True)
class Note:
    value: object


Operation: TypeAlias = Write | Resize | Sync | Link | Rename | Unlink | SyncFolder | Note

EVERY_SYNC = frozenset({"file", "write", "folder"})


class Killed(BaseException):
    """The process was killed: nothing more of it happens. The disk, and its cache, live on."""


class RecordingDisk:
    """A Disk in memory. `forgets` names the kinds of sync that do nothing: for the canary."""

    def __init__(self, seed: int = 0, *, forgets: Collection[str] = ()) -> None:
        self.journal: list[Operation] = []
        self.contents: dict[int, bytearray] = {}
        self.names: dict[str, int] = {}
        self.promised: list[object] = []
        """The notes that were made before the power cut from which this disk comes."""
        self.free = 1 << 40
        self.now_ms = 0
        """The time of change that a file gets; a test moves it."""
        self.killed_in: int | None = None
        """The process is killed at the so-manieth operation from now."""
        self._forgets = frozenset(forgets)
        self._modified: dict[int, int] = {}
        self._locked: set[str] = set()
        self._random = random.Random(seed)
        self._first_contents: dict[int, bytes] = {}
        self._first_names: dict[str, int] = {}

    def note(self, value: object) -> None:
        self.journal.append(Note(value))

    def restart(self) -> None:
        """The next process: no lock is held, and no kill is planned."""
        self.killed_in = None
        self._locked.clear()

    def record(self, operation: Operation) -> None:
        """To be called before the operation has any effect."""
        if self.killed_in is not None:
            self.killed_in -= 1
            if self.killed_in < 0:
                if isinstance(operation, Write):
                    data = operation.data[: self._random.randint(0, len(operation.data))]
                    _write(self.contents[operation.file], operation.offset, data)
                    self.journal.append(Write(operation.file, operation.offset, data))
                raise Killed
        self.journal.append(operation)

    def cuts(self) -> int:
        """A power cut can come before any operation, and after the last."""
        return len(self.journal) + 1

    def clone(self) -> RecordingDisk:
        """A disk with the same files, all durable, as after a kill and a sync."""
        disk = RecordingDisk(self._random.getrandbits(32), forgets=self._forgets)
        disk._begin_with({f: bytes(c) for f, c in self.contents.items()}, dict(self.names))
        return disk

    def _begin_with(self, contents: dict[int, bytes], names: dict[str, int]) -> None:
        kept = set(names.values())
        self._first_contents = {f: c for f, c in contents.items() if f in kept}
        self._first_names = names
        self.contents = {f: bytearray(c) for f, c in self._first_contents.items()}
        self.names = dict(names)

    # --- Disk -------------------------------------------------------------------------------------

    def create(self, path: str) -> File:
        file = self.names.get(path)
        if file is None:
            file = max(self.contents, default=0) + 1
            self.record(Link(path, file))
            self.contents[file] = bytearray()
            self.names[path] = file
        handle = RecordedFile(self, file)
        handle.truncate(0)
        return handle

    def open(self, path: str, *, writable: bool = False) -> File:
        return RecordedFile(self, self._find(path))

    def rename(self, path: str, new_path: str) -> None:
        file = self._find(path)
        self.record(Rename(path, new_path, file))
        del self.names[path]
        self.names[new_path] = file

    def unlink(self, path: str) -> None:
        self.record(Unlink(path, self._find(path)))
        del self.names[path]

    def list_folder(self, folder: str) -> list[str]:
        return sorted(
            os.path.basename(path) for path in self.names if os.path.dirname(path) == folder
        )

    def make_folder(self, folder: str) -> None:
        """Folders are there."""

    def sync_folder(self, folder: str) -> None:
        if "folder" not in self._forgets:
            self.record(SyncFolder(folder))

    def lock(self, path: str) -> File | None:
        if path in self._locked:
            return None
        self._locked.add(path)
        return _Lock(self, path)

    def free_bytes(self, folder: str) -> int:
        return self.free

    def entropy(self, length: int) -> bytes:
        return self._random.randbytes(length)

    def _find(self, path: str) -> int:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return self.names[path]


class RecordedFile:
    def __init__(self, disk: RecordingDisk, file: int) -> None:
        self._disk = disk
        self._file = file

    def pread(self, length: int, offset: int) -> bytes:
        return bytes(self._disk.contents[self._file][offset : offset + length])

    def view(self, length: int, offset: int) -> bytes:
        return self.pread(length, offset)

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        self._disk.record(Write(self._file, offset, data))
        _write(self._disk.contents[self._file], offset, data)
        self._disk._modified[self._file] = self._disk.now_ms

    def pwrite_synced(self, buffers: Sequence[Buffer], offset: int) -> None:
        position = len(self._disk.journal)
        self.pwrite(buffers, offset)
        if "write" not in self._disk._forgets:
            self._disk.record(Sync(self._file, position))

    def sync(self) -> None:
        if "file" not in self._disk._forgets:
            self._disk.record(Sync(self._file))

    def settle(self) -> None:
        self.sync()

    def allocate(self, size: int) -> None:
        if size > self.size():
            self.truncate(size)

    def truncate(self, size: int) -> None:
        self._disk.record(Resize(self._file, size))
        _resize(self._disk.contents[self._file], size)

    def size(self) -> int:
        return len(self._disk.contents[self._file])

    def modified_ms(self) -> int:
        return self._disk._modified.get(self._file, 0)

    def close(self) -> None:
        pass


class _Lock(RecordedFile):
    def __init__(self, disk: RecordingDisk, path: str) -> None:
        super().__init__(disk, 0)
        self._path = path

    def close(self) -> None:
        self._disk._locked.discard(self._path)


# --- power cuts -----------------------------------------------------------------------------------


def after_power_cut(
    disk: RecordingDisk, rng: random.Random, cut: int | None = None
) -> RecordingDisk:
    """A disk as the cut before operation `cut` (any, if None) could have left it."""
    if cut is None:
        cut = rng.randrange(disk.cuts())
    journal = disk.journal[:cut]
    synced_files: dict[int, int] = {}
    synced_writes: set[int] = set()
    synced_folders: dict[str, int] = {}
    for position, operation in enumerate(journal):
        match operation:
            case Sync(file, None):
                synced_files[file] = position
            case Sync(file, int() as write):
                synced_writes.add(write)
            case SyncFolder(folder):
                synced_folders[folder] = position

    luck = _Luck(rng)
    contents = {file: bytearray(data) for file, data in disk._first_contents.items()}
    names = dict(disk._first_names)
    image = RecordingDisk(rng.getrandbits(32), forgets=disk._forgets)
    for position, operation in enumerate(journal):
        match operation:
            case Write(file, offset, data):
                content = contents.setdefault(file, bytearray())
                if position < synced_files.get(file, -1) or position in synced_writes:
                    _write(content, offset, data)
                else:
                    luck.write(content, offset, data)
            case Resize(file, size):
                if position < synced_files.get(file, -1) or luck.happens():
                    _resize(contents.setdefault(file, bytearray()), size)
            case Link(path, file):
                if position < synced_folders.get(os.path.dirname(path), -1) or luck.happens():
                    contents.setdefault(file, bytearray())
                    names[path] = file
            case Rename(path, new_path, file):
                if position < synced_folders.get(os.path.dirname(path), -1) or luck.happens():
                    names[new_path] = file
                    if names.get(path) == file:
                        del names[path]
            case Unlink(path, file):
                is_synced = position < synced_folders.get(os.path.dirname(path), -1)
                if names.get(path) == file and (is_synced or luck.happens()):
                    del names[path]
            case Note(value):
                image.promised.append(value)
    image._begin_with({file: bytes(content) for file, content in contents.items()}, names)
    return image


class _Luck:
    """What becomes of one unsynced operation. One image in four is a plain kill (all happened, the
    last write perhaps in part), one in eight loses everything; the others are any mixture."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        style = rng.randrange(8)
        self._chance = 1.0 if style < 2 else 0.0 if style == 2 else rng.choice((0.2, 0.5, 0.8))
        self._is_whole = style < 3 and rng.random() < 0.5
        self._sector = rng.choice((512, 512, 4096))

    def happens(self) -> bool:
        return self._random.random() < self._chance

    def write(self, content: bytearray, offset: int, data: bytes) -> None:
        if self._is_whole:
            if self.happens():
                _write(content, offset, data)
            return
        noise = self._random.random() < 0.2
        end = offset + len(data)
        at = offset
        while at < end:
            following = min(end, (at // self._sector + 1) * self._sector)
            part = data[at - offset : following - offset]
            if noise and self._random.random() < 0.3:
                part = self._random.randbytes(len(part))
            if self.happens():
                _write(content, at, part)
            at = following


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))
