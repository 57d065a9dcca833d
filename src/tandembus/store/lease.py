"""Who may write a namespace that is kept in PostgreSQL: one broker at a time.

What lives here: connections, the tables, and the lease. What does not: the log (`postgres.py`).

The rule: only the epoch keeps a former holder out. Each take-over adds one to it, and whatever is
written proves in its own transaction, by a lock on the row of the lease, that the epoch still is
the writer's. When to take over is a matter of comfort only, and is told by two signs: the session
of the holder has gone (it holds an advisory lock, which the database frees when a process dies), or
the lease has run out by the database's clock (a holder that was stopped, or is cut off).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final, LiteralString, TypeAlias
from zlib import crc32

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from tandembus.errors import StoreError, StoreInUseError

Connection: TypeAlias = psycopg.Connection[TupleRow]

VERSION: Final = 1
"""Of the tables. Another one is refused by its number."""
LEASE_S: Final = 10.0
RENEWALS: Final = 5
"""So often a lease is renewed before it would run out."""

_DEFAULTS: Final[Mapping[str, str]] = {
    "connect_timeout": "10",
    # A server that is cut off is noticed while an answer is waited for, too.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""What a URL may say otherwise."""

_TABLES: Final[tuple[LiteralString, ...]] = (
    "CREATE TABLE tandem_schema (version integer NOT NULL)",
    'CREATE TABLE tandem_lease (namespace text COLLATE "C" PRIMARY KEY, epoch bigint NOT NULL,'
    " holder text NOT NULL, until timestamptz NOT NULL, life bigint NOT NULL)",
    # A row is a group of the log, or a piece of one; the bytes of all rows are the log.
    'CREATE TABLE tandem_log (namespace text COLLATE "C", place bigint,'
    " group_place bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (namespace, place))",
    'CREATE TABLE tandem_index (namespace text COLLATE "C", place bigint, part integer,'
    " data bytea NOT NULL, PRIMARY KEY (namespace, place, part))",
    # Not compressed, so that a part of a row can be read without the rest.
    "ALTER TABLE tandem_log ALTER body SET STORAGE EXTERNAL",
    "ALTER TABLE tandem_index ALTER data SET STORAGE EXTERNAL",
)
_MAKING: Final = 0x7A6D_0001
"""The advisory lock of whoever makes the tables."""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while this process, or the machine, is asleep."""


def connect(url: str, lasts_s: float = LEASE_S) -> Connection:
    """A connection on which a commit is durable when it returns. Raises psycopg.Error, and
    StoreError for what is no URL."""
    asked: dict[str, Any] = {"port": "?"}
    with suppress(psycopg.ProgrammingError):
        asked = conninfo_to_dict(url)
    if not str(asked.get("port", "0")).replace(",", "0").isdigit():
        # In libpq's words there would be parts of the password.
        raise StoreError("this is not a URL; in a password, @ is written %40, / %2F and : %3A")
    given = {"application_name": f"tandem {me()}", **_DEFAULTS, **asked}
    connection = psycopg.connect(make_conninfo("", **given), autocommit=True)
    try:
        # A holder that was stopped inside of a transaction must not keep the lease locked.
        _set(connection, "idle_in_transaction_session_timeout", str(round(lasts_s * 1000)))
        if connection.execute("SHOW synchronous_commit").fetchone() != ("remote_apply",):
            _set(connection, "synchronous_commit", "on")
    except BaseException:
        connection.close()
        raise
    return connection


def _set(connection: Connection, name: str, value: str) -> None:
    connection.execute("SELECT set_config(%s, %s, false)", (name, value))


def me() -> str:
    """This process, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


def make_tables(connection: Connection) -> None:
    """Make them if they are not there. Raises StoreError if they are of another version."""
    if has_tables(connection):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
        if not has_tables(connection):
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO tandem_schema VALUES (%s)", (VERSION,))


def has_tables(connection: Connection) -> bool:
    """Raises StoreError if they are of another version."""
    if connection.execute("SELECT to_regclass('tandem_schema')").fetchone() == (None,):
        return False
    row = connection.execute("SELECT version FROM tandem_schema").fetchone()
    if row != (VERSION,):
        found = "none" if row is None else row[0]
        raise StoreError(
            f"the tables in the database have version {found}, this Tandem knows {VERSION}: use "
            "the Tandem that made them, or another database"
        )
    return True


class Lease:
    """Held from the constructor on, until it is released or lost. A thread renews it."""

    def __init__(
        self, url: str, namespace: str, *, lasts_s: float = LEASE_S, holder: str | None = None
    ) -> None:
        """Raises StoreInUseError while somebody else holds it, and psycopg.Error."""
        self.namespace = namespace
        self.holder = me() if holder is None else holder
        self.lost: str | None = None
        """Why it is not ours any more."""
        self._lasts_s = lasts_s
        self._sure_until = 0.0
        self._on_lost: Callable[[StoreError], None] | None = None
        self._closing = Event()
        self._connection = connect(url, lasts_s)
        try:
            make_tables(self._connection)
            self.epoch, self.life = self._take()
        except BaseException:
            self._connection.close()
            raise
        self._thread = Thread(target=self._keep, name="tandem-lease", daemon=True)
        self._thread.start()

    # --- taking it --------------------------------------------------------------------------------

    def _take(self) -> tuple[int, int]:
        """(epoch, life of the log)."""
        began = time.clock_gettime(_CLOCK)
        life = int.from_bytes(os.urandom(8)) >> 1
        self._execute(
            "INSERT INTO tandem_lease VALUES (%(namespace)s, 0, '', '-infinity', %(life)s)"
            " ON CONFLICT DO NOTHING",
            life=life,
        )
        epoch, holder, is_running, life, table = self._one(
            "SELECT epoch, holder, until > clock_timestamp(), life, 'tandem_lease'::regclass::oid"
            " FROM tandem_lease WHERE namespace = %(namespace)s"
        )
        key = int.from_bytes(crc32(f"{table} {self.namespace}".encode()).to_bytes(4), signed=True)
        if is_running and not self._is_gone(key, epoch):
            raise StoreInUseError(f"'{self.namespace}' is served by {holder}")
        taken = self._execute(
            "UPDATE tandem_lease SET epoch = epoch + 1, holder = %(holder)s,"
            " until = clock_timestamp() + %(lasts_s)s * interval '1 second'"
            " WHERE namespace = %(namespace)s AND epoch = %(epoch)s"
            " AND pg_try_advisory_lock(%(key)s, %(next)s)",
            epoch=epoch,
            key=key,
            next=_int4(epoch + 1),
        )
        if taken != 1:
            raise StoreInUseError(f"'{self.namespace}' is being taken over by another broker")
        self._sure_until = began + self._lasts_s
        return epoch + 1, life

    def _is_gone(self, key: int, epoch: int) -> bool:
        """Whether the session of the holder has ended, which its process does not survive."""
        locked = self._one(
            "SELECT pg_try_advisory_lock(%(key)s, %(epoch)s)", key=key, epoch=_int4(epoch)
        )[0]
        if locked:
            self._one("SELECT pg_advisory_unlock(%(key)s, %(epoch)s)", key=key, epoch=_int4(epoch))
        return bool(locked)

    # --- holding it -------------------------------------------------------------------------------

    @property
    def is_sure(self) -> bool:
        """Whether it cannot have run out yet."""
        return time.clock_gettime(_CLOCK) < self._sure_until and self.lost is None

    def when_lost(self, tell: Callable[[StoreError], None]) -> None:
        """`tell` is called once, in another thread; at once, if it is lost already."""
        self._on_lost = tell
        if self.lost is not None:
            tell(StoreError(self.lost))

    def refused(self) -> StoreError:
        """What was to be written was not: the epoch is another one."""
        with suppress(psycopg.Error):
            found = self._one("SELECT holder FROM tandem_lease WHERE namespace = %(namespace)s")
            self._lose(f"'{self.namespace}' was taken over by {found[0]}")
        self._lose(f"'{self.namespace}' was taken over by another broker")
        return StoreError(self.lost)

    def _keep(self) -> None:
        while not self._closing.wait(self._lasts_s / RENEWALS):
            began = time.clock_gettime(_CLOCK)
            try:
                kept = self._execute(
                    "UPDATE tandem_lease"
                    " SET until = clock_timestamp() + %(lasts_s)s * interval '1 second'"
                    " WHERE namespace = %(namespace)s AND epoch = %(epoch)s",
                    epoch=self.epoch,
                )
            except psycopg.Error as error:
                if not self._closing.is_set():
                    self._lose(f"the lease of '{self.namespace}' cannot be renewed: {said(error)}")
                return
            if kept != 1:
                self.refused()
                return
            self._sure_until = began + self._lasts_s

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            if self._on_lost is not None:
                self._on_lost(StoreError(why))

    def release(self) -> None:
        """Give it back, so that another one need not wait. Twice does no harm."""
        self._closing.set()
        if self._connection.closed:
            return
        self._thread.join(self._lasts_s)
        with suppress(psycopg.Error):
            self._execute(
                "UPDATE tandem_lease SET until = '-infinity'"
                " WHERE namespace = %(namespace)s AND epoch = %(epoch)s",
                epoch=self.epoch,
            )
        self._connection.close()

    # --- small things -----------------------------------------------------------------------------

    def _execute(self, query: LiteralString, **values: object) -> int:
        mine = {"namespace": self.namespace, "holder": self.holder, "lasts_s": self._lasts_s}
        return self._connection.execute(query, {**mine, **values}).rowcount

    def _one(self, query: LiteralString, **values: object) -> tuple[Any, ...]:
        found = self._connection.execute(query, {"namespace": self.namespace, **values}).fetchone()
        assert found is not None
        return found


def _int4(number: int) -> int:
    """As an advisory lock can have it."""
    return number & 0x7FFF_FFFF


def said(error: psycopg.Error) -> str:
    """What the database said, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
