"""The log in PostgreSQL, for several brokers of which one serves: the contract of `api.py`.

What lives here: the log as rows, and the index. What does not: who may write (`lease.py`), and the
bytes of a group's header, which are those of the files (`segment.py`).

The rule: the rows of a namespace, one behind the other, are the same bytes that the files would
have: a row is a group with its header or, of a large group, a piece. An append is one statement: it
is whole and durable when it returns, and a process that is stopped in the middle of it holds no
lock. Whatever writes proves in its transaction that the lease still is ours.

Threads: as `FileStore`. Appends, reads and upkeep have a connection each, so that none waits for
another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, LiteralString
from zlib import crc32

import psycopg

from tandembus.errors import CorruptLogError, StoreError
from tandembus.store.api import GROUP_HEADER, Buffer, Group, Index
from tandembus.store.lease import LEASE_S, Connection, Lease, connect, has_tables, said
from tandembus.store.segment import (
    GROUP,
    HEAD,
    HEADER,
    Damage,
    IndexHeader,
    SegmentHeader,
    Walk,
    pack_group,
    pack_index,
    unpack_group,
    unpack_index,
)

log = logging.getLogger("tandembus.store")

PIECE_BYTES: Final = 1 << 20
"""Most bytes of a row of the log."""
PART_BYTES: Final = 8 << 20
"""Bytes of a row of an index: a value of PostgreSQL has a gigabyte at most, an index may have
more."""
MAX_GROUP: Final = 512 << 20
"""A statement has a gigabyte at most."""
MAX_READ: Final = 256 << 20
"""What one read gives at most: more than any message has, and the length may be rot."""
_NO_LIMIT: Final = 1 << 62
_KEPT: Final = 2
"""Indexes: the one before the newest is the way out when that one rots."""

_APPEND: Final[LiteralString] = (
    "INSERT INTO tandem_log (namespace, place, group_place, body)"
    " SELECT l.namespace, p.place, %(group)s, p.body"
    " FROM tandem_lease l, unnest(%(places)s::bigint[], %(bodies)b::bytea[]) AS p (place, body)"
    " WHERE l.namespace = %(namespace)s AND l.epoch = %(epoch)s FOR SHARE OF l"
)
_READ: Final[LiteralString] = (
    "SELECT place, substring(body FROM greatest(%(begin)s - place, 0)::integer + 1"
    " FOR (%(end)s - greatest(%(begin)s, place))::integer)"
    " FROM tandem_log WHERE namespace = %(namespace)s AND place < %(end)s AND place >="
    " (SELECT max(place) FROM tandem_log WHERE namespace = %(namespace)s AND place <= %(begin)s)"
    " ORDER BY place"
)


class PostgresStore:
    """See `tandembus.store.api.Store` for the contract."""

    def __init__(
        self,
        url: str,
        namespace: str,
        *,
        lease_s: float = LEASE_S,
        holder: str | None = None,
        piece_bytes: int = PIECE_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Takes the namespace over, or raises StoreInUseError while another broker serves it. Makes
        the tables if they are not there."""
        if piece_bytes < GROUP_HEADER:
            raise ValueError(f"piece_bytes must be at least {GROUP_HEADER}")
        self.namespace = namespace.lower()
        self.warnings: list[str] = []
        """Damage that was found and could be gone round."""
        self._piece_bytes = piece_bytes
        self._part_bytes = part_bytes
        self._broken: str | None = None
        self._upkeep = Lock()
        """One of save_index and drop_before at a time."""
        self._indexes: dict[int, IndexHeader] = {}
        self._start = 0
        self._tail = (0, 1)
        """Where the next group begins, and its number: changed together."""
        self._connections: list[Connection] = []
        self._lease: Lease | None = None
        try:
            with self._failing("cannot open"):
                self._lease = Lease(url, self.namespace, lasts_s=lease_s, holder=holder)
                self._connections += (connect(url, lease_s) for _ in range(3))
                self._appends, self._reads, self._saves = self._connections
                self._recover()
        except BaseException:
            self.close()
            raise

    # --- the contract -----------------------------------------------------------------------------

    @property
    def start(self) -> int:
        return self._start

    @property
    def end(self) -> int:
        return self._tail[0]

    def append(self, body: Sequence[Buffer]) -> int:
        lease = self._check()
        data = b"".join(body)
        place, number = self._tail
        end = place + GROUP_HEADER + len(data)
        if end - place > MAX_GROUP:
            raise StoreError(f"a group of {end - place} bytes is too long")
        whole = pack_group(GROUP, lease.life, number, place, len(data), crc32(data)) + data
        size = self._piece_bytes
        places = list(range(place, end, size))
        values = {
            "namespace": self.namespace,
            "epoch": lease.epoch,
            "group": place,
            "places": places,
            "bodies": [whole[at - place : at - place + size] for at in places],
        }
        with self._failing("cannot append"):
            written = self._appends.execute(_APPEND, values).rowcount
        if written != len(places):
            raise self._refused(lease)
        self._tail = (end, number + 1)
        return end

    def mark_idle(self) -> None:
        """A transaction is whole, or it is not there: there is nothing to tell apart."""
        self._check()

    def read(self, place: int, length: int) -> bytes:
        self._check()
        end = self._inside(place)
        length = min(length, end - place, MAX_READ)
        if length <= 0:
            return b""
        values = {"namespace": self.namespace, "begin": place, "end": place + length}
        with self._failing("cannot read"):
            cursor = self._reads.cursor(binary=True)
            rows = cursor.execute(_READ, values).fetchall()
        self._inside(place)  # looked at after the read: it may have been dropped meanwhile
        at = place
        for begin, part in rows:
            if max(begin, place) != at:
                break
            at += len(part)
        if at != place + length:
            raise CorruptLogError("a row is missing", segment=self._name, offset=at)
        return b"".join([part for _, part in rows]) if len(rows) > 1 else bytes(rows[0][1])

    def view(self, place: int) -> None:
        """There is none."""

    def replay(self, place: int) -> Iterator[Group]:
        lease = self._check()
        end = self._inside(place)
        return self._replay(lease.life, place, end)

    def _replay(self, life: int, place: int, end: int) -> Iterator[Group]:
        walk = Walk(_Pages(self), SegmentHeader(0, 1, 1, life), place, limit=end)
        try:
            yield from walk
        except Damage as damage:
            self._inside(walk.place)
            at = damage.offset - HEADER
            raise CorruptLogError(damage.what, segment=self._name, offset=at) from None

    def drop_before(self, place: int) -> None:
        self._check()
        with self._upkeep:
            if place > max(self._indexes, default=0):
                raise StoreError(f"place {place} is behind the last index")
            with self._saving("cannot drop") as execute:
                found = execute(
                    "SELECT group_place FROM tandem_log WHERE namespace = %(namespace)s"
                    " AND place <= %(place)s ORDER BY place DESC LIMIT 1",
                    place=place,
                )
                floor = found[0][0] if found else 0
                if floor <= self._start:
                    return
                # First of all, so that a reader knows that a missing row is dropped, not lost.
                self._start = floor
                execute(
                    "DELETE FROM tandem_log WHERE namespace = %(namespace)s AND place < %(place)s",
                    place=floor,
                )

    def save_index(self, place: int, data: Sequence[Buffer]) -> None:
        lease = self._check()
        with self._upkeep:
            oldest = max(self._start, max(self._indexes, default=0))
            if not oldest <= place <= self.end:
                raise StoreError(f"an index at {place} is not between {oldest} and {self.end}")
            number = self._number_at(place, lease.life)
            with self._saving("cannot save the index") as execute:
                execute(
                    "DELETE FROM tandem_index WHERE namespace = %(namespace)s AND NOT place = "
                    "ANY(%(kept)s)",
                    kept=[at for at in sorted(self._indexes) if at != place][1 - _KEPT :],
                )
                length = checksum = 0
                for part, chunk in enumerate(_parts(data, self._part_bytes), 1):
                    length += len(chunk)
                    checksum = crc32(chunk, checksum)
                    execute(_INSERT_INDEX, place=place, part=part, data=chunk)
                header = IndexHeader(place, number, length, checksum)
                execute(_INSERT_INDEX, place=place, part=0, data=pack_index(header))
            kept = {at: found for at, found in self._indexes.items() if at != place}
            self._indexes = {at: kept[at] for at in sorted(kept)[1 - _KEPT :]}
            self._indexes[place] = header

    def load_index(self) -> Index | None:
        self._check()
        with self._upkeep:
            for place in sorted(self._indexes, reverse=True):
                data = b"".join(self._parts_of(place))
                header = self._indexes[place]
                if len(data) == header.length and crc32(data) == header.checksum:
                    return Index(place, data)
                self.warnings.append(f"tandem_index: the one at {place} fails its checksum")
                log.warning("%s", self.warnings[-1])
                del self._indexes[place]
            if self._start > 0:
                what = "no usable index, and the log before it was dropped"
                raise CorruptLogError(what, segment=self._name, offset=self._start)
            return None

    def locate(self, place: int) -> tuple[str, int]:
        return self._name, place

    def free_bytes(self) -> int:
        """The database does not tell. When its disk is full, an append fails."""
        self._check()
        return _NO_LIMIT

    def bytes_on_disk(self) -> int:
        """Of the log and its indexes; what the database needs beside is its own affair."""
        indexes = list(self._indexes.values())
        return self.end - self._start + sum(HEAD + header.length for header in indexes)

    def close(self) -> None:
        """Also lets the next broker have the namespace at once."""
        self._broken = self._broken or f"the store of '{self.namespace}' is closed"
        for connection in self._connections:
            connection.close()
        if self._lease is not None:
            self._lease.release()

    # --- more than the contract -------------------------------------------------------------------

    @property
    def is_sure(self) -> bool:
        """See `tandembus.store.api.Leased`."""
        return self._lease is not None and self._lease.is_sure

    def when_lost(self, tell: Callable[[StoreError], None]) -> None:
        """`tell` is called in another thread when this broker may not write any more, also if it
        has nothing to write."""
        assert self._lease is not None
        self._lease.when_lost(tell)

    # --- opening ----------------------------------------------------------------------------------

    def _recover(self) -> None:
        assert self._lease is not None
        if self._fetch("SHOW fsync") != [("on",)]:
            log.warning("the database runs with fsync off: its power cut loses messages")
        for place, data in self._fetch(
            "SELECT place, data FROM tandem_index WHERE namespace = %(namespace)s AND part = 0"
        ):
            try:
                self._indexes[place] = unpack_index(data, self._name)
            except Damage as damage:
                self.warnings.append(f"tandem_index: at {place}: {damage.what}")
                log.warning("%s", self.warnings[-1])
        last = self._fetch(
            "SELECT group_place, place + octet_length(body) FROM tandem_log"
            " WHERE namespace = %(namespace)s ORDER BY place DESC LIMIT 1"
        )
        if not last:
            return
        place, end = last[0]
        self._start = self._fetch(
            "SELECT min(place) FROM tandem_log WHERE namespace = %(namespace)s"
        )[0][0]
        self._tail = (end, 0)
        header = unpack_group(self.read(place, GROUP_HEADER), 0, self._lease.life)
        if header is None or (header.place, place + GROUP_HEADER + header.length) != (place, end):
            raise CorruptLogError("the last group is damaged", segment=self._name, offset=place)
        self._tail = (end, header.number + 1)

    # --- small things -----------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"tandem_log of '{self.namespace}'"

    def _inside(self, place: int) -> int:
        """The end of the log, if the place is in it."""
        start, end = self._start, self._tail[0]
        if not start <= place <= end:
            raise StoreError(f"place {place} is not in the log ({start} to {end})")
        return end

    def _number_at(self, place: int, life: int) -> int:
        """The number of the group that begins at `place`."""
        end, number = self._tail
        if place == end:
            return number
        header = unpack_group(self.read(place, GROUP_HEADER), 0, life)
        if header is None or header.place != place:
            raise StoreError(f"no group begins at place {place}")
        return header.number

    def _parts_of(self, place: int) -> Iterator[bytes]:
        """Of an index, one at a time: all together may be large."""
        for part in range(1, 1 << 31):
            found = self._fetch(
                "SELECT data FROM tandem_index WHERE namespace = %(namespace)s"
                " AND place = %(place)s AND part = %(part)s",
                place=place,
                part=part,
            )
            if not found:
                return
            yield bytes(found[0][0])

    def _fetch(self, query: LiteralString, **values: object) -> list[tuple[Any, ...]]:
        with self._failing("cannot read"):
            cursor = self._reads.cursor(binary=True)
            return cursor.execute(query, {"namespace": self.namespace, **values}).fetchall()

    @contextmanager
    def _saving(self, what: str) -> Iterator[_Execute]:
        """A transaction that only counts if the lease is ours at its end. It is locked last of all:
        a renewal must not wait for a large index."""
        lease = self._check()
        mine = {"namespace": self.namespace, "epoch": lease.epoch}

        def execute(query: LiteralString, **values: object) -> list[tuple[Any, ...]]:
            cursor = self._saves.execute(query, {**mine, **values})
            return cursor.fetchall() if cursor.description else []

        with self._failing(what), self._saves.transaction():
            yield execute
            if not execute(
                "SELECT 1 FROM tandem_lease"
                " WHERE namespace = %(namespace)s AND epoch = %(epoch)s FOR SHARE"
            ):
                raise self._refused(lease)

    def _check(self) -> Lease:
        lease = self._lease
        assert lease is not None
        if self._broken is None and lease.lost is not None:
            self._broken = lease.lost
        if self._broken is not None:
            raise StoreError(self._broken)
        return lease

    def _refused(self, lease: Lease) -> StoreError:
        error = lease.refused()
        self._broken = str(error)
        return error

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            # From here on nothing is sure: what was under way may be in the database, or not.
            if self._broken is None:
                self._broken = f"{what} in the database: {said(error)}"
            raise StoreError(self._broken) from error


_Execute = Callable[..., list[tuple[Any, ...]]]
_INSERT_INDEX: Final[LiteralString] = (
    "INSERT INTO tandem_index VALUES (%(namespace)s, %(place)s, %(part)s, %(data)b)"
)


class _Pages:
    """The log as a file of one endless segment, for a walk."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def pread(self, length: int, offset: int) -> bytes:
        return self._store.read(offset - HEADER, length)


def _parts(data: Iterable[Buffer], size: int) -> Iterator[bytes]:
    """All the buffers, one behind the other, in parts of that size."""
    part = bytearray()
    for buffer in data:
        view = memoryview(buffer).cast("B")
        while view:
            room = size - len(part)
            part += view[:room]
            view = view[room:]
            if len(part) == size:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)


def served_by(url: str, namespaces: Iterable[str]) -> dict[str, str | None]:
    """Who serves each namespace of a database now, None: nobody; those that are not in it are left
    out. Changes nothing. Raises StoreError."""
    try:
        with connect(url) as connection:
            if not has_tables(connection):
                return {}
            rows = connection.execute(
                "SELECT namespace, CASE WHEN until > clock_timestamp() THEN holder END"
                " FROM tandem_lease WHERE namespace = ANY(%s)",
                ([name.lower() for name in namespaces],),
            ).fetchall()
    except psycopg.Error as error:
        raise StoreError(said(error)) from error
    return dict(rows)
