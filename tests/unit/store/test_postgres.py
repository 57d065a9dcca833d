"""`PostgresStore` beyond the contract (`test_contract.py`): who may write, and what is damaged."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tandembus.app import Server, read_policies
from tandembus.cli import main
from tandembus.cli.codes import PROBLEM, USAGE, WELL
from tandembus.config import NamespaceConfig, ServerConfig
from tandembus.config.server import LOG, POLICIES, STORE
from tandembus.errors import ArgumentError, CorruptLogError, StoreError, StoreInUseError
from tandembus.store import standby
from tandembus.store.api import GROUP_HEADER, Leased
from tandembus.store.lease import connect
from tandembus.store.memory import MemoryStore
from tandembus.store.postgres import PostgresStore
from tests.postgresql import database, needs_postgresql, new_database, new_namespace

pytestmark = [needs_postgresql, pytest.mark.req("C6"), pytest.mark.xdist_group("postgresql")]

LEASE_S = 1.0


@pytest.fixture
def name() -> str:
    return new_namespace()


@pytest.fixture
def opened(name: str) -> Iterator[Callable[..., PostgresStore]]:
    stores: list[PostgresStore] = []

    def open_one(holder: str = "first", lease_s: float = 60.0) -> PostgresStore:
        store = PostgresStore(database(), name, lease_s=lease_s, holder=holder)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


def sql(query: str, url: str | None = None) -> list[tuple[object, ...]]:
    with psycopg.connect(url or database(), autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def expire(name: str) -> None:
    """As if the holder had been stopped for so long."""
    sql(f"UPDATE tandem_lease SET until = '-infinity' WHERE namespace = '{name}'")


# --- fencing --------------------------------------------------------------------------------------


def test_one_broker_has_it_at_a_time(opened: Callable[..., PostgresStore]) -> None:
    first = opened()
    with pytest.raises(StoreInUseError, match="is served by first"):
        opened("second")
    first.close()
    opened("second").append([b"x"])


def test_who_was_taken_over_from_can_write_nothing_any_more(
    opened: Callable[..., PostgresStore], name: str
) -> None:
    """The holder was stopped until its lease had run out; it comes back, knows nothing, and is
    refused by the database whatever it tries. What the second one wrote is untouched."""
    tries: tuple[Callable[[PostgresStore], object], ...] = (
        lambda store: store.append([b"ghost"]),
        lambda store: store.append([bytes(3 << 20)]),
        lambda store: store.save_index(store.end, [b"ghost"]),
        lambda store: store.drop_before(store.end),
    )
    for write in tries:
        first = opened("first")
        first.append([b"one"])
        first.save_index(first.end, [b"index"])
        expire(name)
        second = opened("second")
        second.append([b"two"])
        with pytest.raises(StoreError, match="was taken over by second"):
            write(first)
        with pytest.raises(StoreError, match="was taken over by second"):
            first.append([b"again"])
        groups = [group.body for group in second.replay(second.start)]
        assert groups[-2:] == [b"one", b"two"]
        index = second.load_index()
        assert index is not None
        assert index.data == b"index"
        second.close()


def _append_until_refused(store: PostgresStore, life: int, acknowledged: list[bytes]) -> None:
    for number in range(10_000):
        body = b"%d %d" % (life, number)
        try:
            store.append([body])
        except StoreError:
            return
        acknowledged.append(body)


def test_an_append_that_is_under_way_counts_or_is_refused(
    opened: Callable[..., PostgresStore], name: str
) -> None:
    """While one appends, another takes over, again and again: it finds all that was acknowledged,
    and nothing is appended behind its back."""
    log: list[bytes] = []
    store = opened("life 0")
    for life in range(5):
        acknowledged = log[:]
        work = (store, life, acknowledged)
        thread = threading.Thread(target=_append_until_refused, args=work)
        thread.start()
        threading.Event().wait(0.05)
        expire(name)
        store = opened(f"life {life + 1}")
        log = [group.body for group in store.replay(store.start)]
        thread.join()
        # One more may be there: it was written, and its answer came too late.
        assert acknowledged in (log, log[:-1])
        assert [group.body for group in store.replay(store.start)] == log
        assert len(acknowledged) > life


def test_a_holder_whose_session_has_gone_need_not_be_waited_for(
    opened: Callable[..., PostgresStore], name: str
) -> None:
    """Its process was killed: the database frees its lock, and the lease of a minute means
    nothing."""
    opened("first")
    sql(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks"
        f" WHERE locktype = 'advisory' AND objid = (SELECT epoch FROM tandem_lease"
        f" WHERE namespace = '{name}')"
    )
    opened("second").append([b"x"])


def test_the_lease_is_renewed_and_its_loss_is_told(
    opened: Callable[..., PostgresStore], name: str
) -> None:
    """A broker that has nothing to write learns it, too."""
    first = opened("first", LEASE_S)
    told: list[StoreError] = []
    heard = threading.Event()

    def hear(error: StoreError) -> None:
        told.append(error)
        heard.set()

    first.when_lost(hear)
    assert isinstance(first, Leased)
    assert first.is_sure
    assert not isinstance(MemoryStore(), Leased), "which nobody can take over"
    threading.Event().wait(1.5 * LEASE_S)
    with pytest.raises(StoreInUseError):
        opened("second")
    assert first.is_sure
    expire(name)
    try:
        second = opened("second")
    except StoreInUseError:  # it was just renewed
        expire(name)
        second = opened("second")
    assert heard.wait(10)
    assert "was taken over by second" in str(told[0])
    assert (first.is_sure, second.is_sure) == (False, True)
    second.append([b"x"])


def test_a_stopped_transaction_does_not_keep_the_lease(name: str) -> None:
    """A holder that is stopped in the middle of saving an index holds a lock on the lease; the
    database ends it when the lease would."""
    first = PostgresStore(database(), name)
    stopped = connect(database(), 0.2)
    stopped.execute("BEGIN")
    stopped.execute("SELECT 1 FROM tandem_lease FOR SHARE")
    first.close()
    PostgresStore(database(), name).close()
    with pytest.raises(psycopg.Error, match="idle-in-transaction timeout"):
        stopped.execute("SELECT 1")
    stopped.close()


# --- damage ---------------------------------------------------------------------------------------


def test_damage_is_found_and_never_served(opened: Callable[..., PostgresStore], name: str) -> None:
    """A changed byte, a row that is missing, a last group that is cut: each is told with its
    place."""
    store = opened()
    places = [store.end]
    for number in range(4):
        places.append(store.append([b"%d" % number * 100]))
    at = f"WHERE namespace = '{name}' AND place = {places[1]}"
    sql(f"UPDATE tandem_log SET body = set_byte(body, {GROUP_HEADER + 3}, 9) {at}")
    with pytest.raises(CorruptLogError, match="fails its checksum") as caught:
        list(store.replay(0))
    assert caught.value.offset == places[1]
    sql(f"DELETE FROM tandem_log {at}")
    with pytest.raises(CorruptLogError, match="a row is missing"):
        list(store.replay(0))
    assert len(list(store.replay(places[2]))) == 2
    store.close()
    last = f"WHERE namespace = '{name}' AND place = {places[3]}"
    sql(f"UPDATE tandem_log SET body = substring(body FROM 1 FOR 60) {last}")
    with pytest.raises(CorruptLogError, match="the last group is damaged"):
        opened()


def test_a_damaged_index_is_gone_round_by_the_one_before(
    opened: Callable[..., PostgresStore], name: str
) -> None:
    store = opened()
    store.append([b"x" * 100])
    store.save_index(0, [b"old"])
    store.save_index(store.end, [b"new"])
    at = f"WHERE namespace = '{name}' AND part = 1"
    sql(f"UPDATE tandem_index SET data = 'nee' {at} AND data = 'new'")
    assert store.load_index() == (0, b"old")
    assert store.warnings
    sql(f"UPDATE tandem_index SET data = 'odd' {at}")
    assert store.load_index() is None, "the whole log is there"


def test_namespaces_do_not_see_each_other() -> None:
    one, other = new_namespace(), new_namespace()
    with_one = PostgresStore(database(), one)
    with_other = PostgresStore(database(), other.upper())
    with_one.append([b"one"])
    with_other.append([b"other"])
    assert [group.body for group in with_other.replay(0)] == [b"other"]
    assert with_other.namespace == other, "names are compared without regard to case"
    with_one.close()
    with_other.close()


# --- the settings ---------------------------------------------------------------------------------


def _config(folder: Path, url: str | None, *names: str) -> ServerConfig:
    served = tuple(NamespaceConfig(each, folder / each) for each in names)
    return ServerConfig(folder, ports=(0,), store=url, store_lease_seconds=2, namespaces=served)


def _refusal(config: ServerConfig) -> str:
    async def start() -> None:
        await (await Server.start(config)).stop()

    with pytest.raises(ArgumentError) as caught:
        asyncio.run(start())
    return str(caught.value)


def test_what_cannot_work_is_refused_at_the_start_by_its_name(tmp_path: Path) -> None:
    away = "postgresql://tandem:canary@/nothing?host=/nowhere"
    words = _refusal(_config(tmp_path, away, "a"))
    assert words.startswith("--store postgresql://tandem@/nothing?host=/nowhere: ")
    assert "No such file" in words
    assert "canary" not in words

    odd = "postgresql://tandem:can/ary@host:x/y"
    words = _refusal(_config(tmp_path, odd, "a"))
    assert "this is not a URL" in words
    assert "ary" not in words

    assert "--store is the URL" in _refusal(_config(tmp_path, "mysql://x", "a"))

    url = new_database()
    missing = url.replace("/test", "/missing")
    assert "does not exist" in _refusal(_config(tmp_path, missing, "a"))
    standby.open_all(_config(tmp_path, url, "a"))["a"].close()
    sql("UPDATE tandem_schema SET version = 99", url)
    assert "have version 99, this Tandem knows 1" in _refusal(_config(tmp_path, url, "a"))


def test_a_folder_has_its_log_in_one_place_only(tmp_path: Path) -> None:
    url = new_database()
    config = _config(tmp_path, url, "a")

    async def serve(config: ServerConfig) -> None:
        await (await Server.start(config)).stop()

    asyncio.run(serve(config))
    assert "tandem@" in (tmp_path / "a" / STORE).read_text()
    assert not (tmp_path / "a" / LOG).exists()
    assert "is in postgresql://" in _refusal(replace(config, store=None))

    asyncio.run(serve(_config(tmp_path, None, "b")))
    assert "has a log of its own" in _refusal(_config(tmp_path, url, "b"))

    (tmp_path / "a" / POLICIES).unlink()
    assert "has no policies.json" in _refusal(config)


def test_all_namespaces_are_had_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers that serve the same ones never wait for each other; whoever does not get all of
    them lets go of those that it has."""
    monkeypatch.setattr(standby, "LOOK_S", 0.1)
    url = new_database()
    held = PostgresStore(url, "b")
    config = _config(tmp_path, url, "b", "a")
    with pytest.raises(StoreInUseError, match="'b' is served by"):
        standby.open_all(config)
    PostgresStore(url, "a").close()
    told: list[str] = []

    async def wait() -> standby.Stores | None:
        asyncio.get_running_loop().call_later(0.3, held.close)
        return await standby.stand_by(config, asyncio.Event(), told.append)

    stores = asyncio.run(wait())
    assert stores is not None
    assert sorted(stores) == ["a", "b"]
    assert len(told) == 1
    for store in stores.values():
        store.close()


def test_who_stands_by_can_be_stopped(tmp_path: Path) -> None:
    url = new_database()
    held = PostgresStore(url, "a")

    async def wait() -> standby.Stores | None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, stopped.set)
        return await standby.stand_by(_config(tmp_path, url, "a"), stopped, lambda _: None)

    assert asyncio.run(wait()) is None
    held.close()


def test_what_works_on_files_only_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that read a folder's log do not take an empty folder for an empty broker; the
    doctor looks at the database instead; and no password is shown."""
    url = new_database().replace("tandem@", "tandem:canary@")
    store = standby.open_all(ServerConfig(tmp_path, store=url))["default"]
    read_policies(tmp_path)
    for words in (
        ("backup", str(tmp_path), str(tmp_path / "copy")),
        ("store", "check", str(tmp_path)),
        ("journal", "run", str(tmp_path), "--out", str(tmp_path / "out"), "--once"),
        ("config", "diff", str(tmp_path)),
    ):
        assert main(words) == USAGE, words
        assert f"The log of {tmp_path} is in postgresql://tandem@/" in capsys.readouterr().err
    assert main(("config", "diff", str(tmp_path), "--store", url)) == USAGE
    assert "through the broker that serves it" in capsys.readouterr().err
    assert main(("doctor", str(tmp_path), "--store", url)) in (WELL, PROBLEM)
    assert "is in postgresql://tandem@/" in capsys.readouterr().out
    assert main(("config", "show", str(tmp_path), "--store", url)) == WELL
    shown = capsys.readouterr()
    assert "postgresql://tandem@/" in shown.out
    assert "canary" not in shown.out + repr(ServerConfig(tmp_path, store=url))
    store.close()


def test_the_driver_is_needed_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tandembus.store.postgres", None)
    words = _refusal(_config(tmp_path, database(), "a"))
    assert "pip install 'tandembus[postgres]'" in words
    code = "import sys, tandembus.app; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
