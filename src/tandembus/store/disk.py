"""The one file module: every file operation of the store goes through a `Disk`.

What lives here: the seam (`Disk`, `File`) and the real thing over `os`. What does not: any idea of
what the files contain. The rule: the tests replace the disk by one that records, fails or reorders,
so nothing in `store` may touch a file in another way; and nothing here retries or hides an OSError.

The store relies on this and on nothing more:

- what was synced survives a power cut, and a name survives it once its folder was synced;
- a rename is atomic: the new name is the whole old file, or it is not there;
- of unsynced writes any sector may be there, missing or garbled, in any order; bytes that were not
  written keep their value (SQLite calls this powersafe overwrite).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Sequence
from mmap import ALLOCATIONGRANULARITY, MAP_SHARED, PAGESIZE, PROT_READ, mmap
from typing import Final, Protocol

from tandembus.store.api import Buffer, View


class File(Protocol):
    """An open file. It closes when it is told to, or when the last user lets go of it."""

    def pread(self, length: int, offset: int) -> bytes:
        """`length` bytes, fewer only at the end of the file."""
        ...

    def view(self, length: int, offset: int) -> View | None:
        """The bytes themselves, without a copy, if the system says that it has all of them in
        memory: so that to look at them neither waits for the disk nor dies by its errors (SIGBUS).
        `offset` is a multiple of `VIEW_STEP`. A view keeps a file that was removed meanwhile."""
        ...

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        """All the buffers, one behind the other; not synced."""
        ...

    def pwrite_synced(self, buffers: Sequence[Buffer], offset: int) -> None:
        """The same, and these bytes are on stable storage on return."""
        ...

    def sync(self) -> None:
        """All data of the file, and its size, are on stable storage on return."""
        ...

    def settle(self) -> None:
        """`sync`, and what is read from now on comes from the disk. After a failed sync the cache
        may show bytes that never arrived, and a second sync would not say so."""
        ...

    def allocate(self, size: int) -> None:
        """Reserve the space; the new part reads as zeros."""
        ...

    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def modified_ms(self) -> int: ...
    def close(self) -> None: ...


class Disk(Protocol):
    def create(self, path: str) -> File:
        """A new, empty file, open for reading and writing; one of that name is emptied."""
        ...

    def open(self, path: str, *, writable: bool = False) -> File: ...
    def rename(self, path: str, new_path: str) -> None: ...
    def unlink(self, path: str) -> None: ...

    def list_folder(self, folder: str) -> list[str]:
        """The names in it, sorted; raises FileNotFoundError."""
        ...

    def make_folder(self, folder: str) -> None:
        """Durable on return; no error if it is there."""
        ...

    def sync_folder(self, folder: str) -> None: ...

    def lock(self, path: str) -> File | None:
        """The lock, held until the file closes or the process ends; None if another one has it."""
        ...

    def free_bytes(self, folder: str) -> int: ...

    def entropy(self, length: int) -> bytes:
        """Random bytes that no client can know."""
        ...


_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
_MAX_BUFFERS: Final = 512
"""Below IOV_MAX (1024 on Linux)."""
VIEW_STEP: Final = ALLOCATIONGRANULARITY

_CACHESTAT: Final = 451
"""A system call of Linux 6.5 and later, without a name in the C library yet."""
_syscall = ctypes.CDLL(None).syscall if sys.platform == "linux" else None
if _syscall is not None:
    _syscall.restype = ctypes.c_long
    _syscall.argtypes = (
        ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint,
    )  # fmt: skip


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def _is_in_memory(fd: int, length: int, offset: int) -> bool:
    """Whether every page of that part of the file is; False also where nobody can tell."""
    if _syscall is None:
        return False
    part, counts = _Range(offset, length), _Counts()
    if _syscall(_CACHESTAT, fd, ctypes.byref(part), ctypes.byref(counts), 0) != 0:
        return False  # the kernel is older
    return bool(counts.cached == -(-length // PAGESIZE))


def _sync(fd: int) -> None:
    """Data, and what is needed to find it, to stable storage."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # macOS: fsync alone leaves it in the drive's cache
    else:
        os.fdatasync(fd)


class RealFile:
    __slots__ = ("_dsync", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._dsync = _DSYNC

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def view(self, length: int, offset: int) -> View | None:
        if not _is_in_memory(self._fd, length, offset):
            return None
        try:
            return mmap(self._fd, length, MAP_SHARED, PROT_READ, offset=offset)
        except (OSError, ValueError):
            return None  # not here, or cut off meanwhile; `pread` tells what is wrong, if it is

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._write(buffers, offset, 0)

    def pwrite_synced(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self._dsync:
            try:
                self._write(buffers, offset, self._dsync)
                return
            except OSError as error:
                # Not a failed write: this file system or kernel does not know the flag.
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    raise
                self._dsync = 0
        self._write(buffers, offset, 0)
        self.sync()

    def _write(self, buffers: Sequence[Buffer], offset: int, flags: int) -> None:
        for first in range(0, len(buffers), _MAX_BUFFERS):
            part = buffers[first : first + _MAX_BUFFERS]
            length = sum(map(len, part))
            written = os.pwritev(self._fd, part, offset, flags)
            if written < length:
                # A short write is no error: the rest either goes in, or says what is wrong.
                rest = memoryview(b"".join(part))
                while written < length:
                    written += os.pwritev(self._fd, [rest[written:]], offset + written, flags)
            offset += length

    def sync(self) -> None:
        _sync(self._fd)

    def settle(self) -> None:
        os.fsync(self._fd)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def allocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, size)
        else:
            os.ftruncate(self._fd, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def modified_ms(self) -> int:
        return os.fstat(self._fd).st_mtime_ns // 1_000_000

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A reader may still hold the file of a segment that was dropped meanwhile: the last one
        # closes it, so that no read ever meets a descriptor that was given out again.
        self.close()


class RealDisk:
    """The file system of this machine."""

    __slots__ = ()

    def create(self, path: str) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return RealFile(os.open(path, flags, 0o600))

    def open(self, path: str, *, writable: bool = False) -> File:
        flags = os.O_RDWR if writable else os.O_RDONLY
        return RealFile(os.open(path, flags | os.O_CLOEXEC))

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def list_folder(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    def make_folder(self, folder: str) -> None:
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(os.path.abspath(folder))
        self.make_folder(parent)
        os.mkdir(folder, 0o700)
        self.sync_folder(parent)

    def sync_folder(self, folder: str) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> File | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return RealFile(fd)

    def free_bytes(self, folder: str) -> int:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def entropy(self, length: int) -> bytes:
        return os.urandom(length)
