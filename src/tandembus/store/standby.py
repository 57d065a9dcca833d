"""Several brokers on one database: all wait but one, which serves.

What lives here: opening the stores of all namespaces, together and when nobody else has them. What
does not: who has them (`lease.py`), and what is served (`app`). PostgreSQL's driver is imported
when a database is asked for, and not before: it need not be installed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from tandembus.config.server import LOG, POLICIES, STORE, ServerConfig
from tandembus.config.values import show_url
from tandembus.errors import ArgumentError, CorruptLogError, StoreError, StoreInUseError

if TYPE_CHECKING:
    from tandembus.store.postgres import PostgresStore

Stores: TypeAlias = "dict[str, PostgresStore]"

LOOK_S: Final = 1.0
"""A broker that stands by looks so often whether it is needed."""


def check(config: ServerConfig) -> dict[str, str | None]:
    """That the settings can work, before anything is waited for: the driver, the database, its
    tables, the folders. Who serves each namespace that is in the database now. Raises
    ArgumentError."""
    assert config.store is not None
    try:
        from tandembus.store.postgres import served_by
    except ImportError as error:
        raise ArgumentError(
            f"--store needs PostgreSQL's driver: pip install 'tandembus[postgres]' ({error})."
        ) from None
    for each in config.served:
        if (each.folder / LOG).is_dir():
            raise ArgumentError(
                f"--store: {each.folder} has a log of its own, which would not be served. Give "
                "another folder; `tandem export` and `tandem import` bring the messages over."
            )
    try:
        there = served_by(config.store, [each.name for each in config.served])
    except StoreError as error:
        raise refused(config, error) from error
    for each in config.served:
        if each.name.lower() in there and not (each.folder / POLICIES).exists():
            raise ArgumentError(
                f"--store: '{each.name}' is in the database, and {each.folder} has no {POLICIES}: "
                "copy the one of a broker that served it, or its clients' keys mean nothing here."
            )
    return there


def refused(config: ServerConfig, error: StoreError) -> ArgumentError:
    assert config.store is not None
    url = show_url(config.store)
    return ArgumentError(
        f"--store {url}: {error}. Can `psql '{url}'` connect from here, and may that user make "
        "tables?"
    )


def open_all(config: ServerConfig) -> Stores:
    """The stores of all namespaces, by name; all or none. Raises StoreInUseError while another
    broker serves one of them."""
    from tandembus.store.postgres import PostgresStore

    assert config.store is not None
    opened: Stores = {}
    try:
        # Everybody in the same order: two brokers never wait for each other.
        for each in sorted(config.served, key=lambda each: each.name.lower()):
            opened[each.name] = PostgresStore(
                config.store, each.name, lease_s=config.store_lease_seconds
            )
            each.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            note = json.dumps({"store": show_url(config.store)})
            (each.folder / STORE).write_text(note, encoding="utf-8")
    except BaseException:
        for store in opened.values():
            store.close()
        raise
    return opened


async def stand_by(
    config: ServerConfig, stopped: asyncio.Event, tell: Callable[[str], None]
) -> Stores | None:
    """`open_all`, as soon as it can be had; None if it was stopped before. `tell` is given the
    reason to wait, whenever it is another one."""
    told = ""
    while not stopped.is_set():
        try:
            stores = await asyncio.to_thread(open_all, config)
        except CorruptLogError:
            raise
        except StoreError as error:
            if not told and not isinstance(error, StoreInUseError):
                raise refused(config, error) from error
            # Whoever waits outlasts a database that is started again.
            if str(error) != told:
                told = str(error)
                tell(told)
        else:
            if not stopped.is_set():
                return stores
            for store in stores.values():
                store.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), LOOK_S)
    return None
