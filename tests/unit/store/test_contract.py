"""What every store promises (`tandembus.store.api`); another one joins `OPENERS`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tandembus.errors import StoreError
from tandembus.store.api import GROUP_HEADER, Group, Store
from tandembus.store.files import FileStore
from tandembus.store.memory import MemoryStore
from tandembus.store.segment import HEADER
from tests.postgresql import database, needs_postgresql, new_namespace

Opener: TypeAlias = Callable[[Path], tuple[Store, Callable[[], Store]]]


def _files(folder: Path) -> tuple[Store, Callable[[], Store]]:
    def open_again() -> Store:
        return FileStore(folder / "log", segment_bytes=HEADER + 1000)

    return open_again(), open_again


def _memory(_: Path) -> tuple[Store, Callable[[], Store]]:
    store = MemoryStore()
    return store, lambda: store.reopened()


def _postgres(_: Path) -> tuple[Store, Callable[[], Store]]:
    from tandembus.store.postgres import PostgresStore

    url, name = database(), new_namespace()

    def open_again() -> Store:
        return PostgresStore(url, name, piece_bytes=1000, part_bytes=7)

    return open_again(), open_again


OPENERS: dict[str, Opener] = {"files": _files, "memory": _memory, "postgres": _postgres}
PARAMETERS = [
    "files",
    "memory",
    pytest.param(
        "postgres",
        marks=[needs_postgresql, pytest.mark.req("C6"), pytest.mark.xdist_group("postgresql")],
    ),
]


@pytest.fixture(params=PARAMETERS)
def opened(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Store, Callable[[], Store]]]:
    store, again = OPENERS[request.param](tmp_path)
    yield store, again
    store.close()


@pytest.fixture
def store(opened: tuple[Store, Callable[[], Store]]) -> Store:
    return opened[0]


def _fill(store: Store, count: int = 20, length: int = 150) -> list[Group]:
    groups = []
    for number in range(count):
        group = Group(store.end, bytes([number]) * length)
        assert store.append([group.body]) == store.end
        groups.append(group)
    return groups


def test_a_new_store_is_empty(store: Store) -> None:
    assert (store.start, store.end) == (0, 0)
    assert list(store.replay(0)) == []
    assert store.load_index() is None
    assert store.read(0, 10) == b""


def test_a_group_takes_its_header_and_its_body_and_joins_its_buffers(store: Store) -> None:
    """The writer knows every place before the group is written."""
    assert store.append([b"ab", bytearray(b"cd"), memoryview(b"ef")]) == GROUP_HEADER + 6
    assert store.append([]) == 2 * GROUP_HEADER + 6
    assert list(store.replay(0)) == [Group(0, b"abcdef"), Group(GROUP_HEADER + 6, b"")]
    assert store.read(GROUP_HEADER + 2, 3) == b"cde"


def test_replay_goes_on_from_the_begin_of_any_group(store: Store) -> None:
    groups = _fill(store)
    for number, group in enumerate(groups):
        assert list(store.replay(group.place)) == groups[number:]
    assert list(store.replay(store.end)) == []


def test_replay_ends_where_the_log_ended_when_it_was_asked_for(store: Store) -> None:
    groups = _fill(store, 3)
    replay = store.replay(0)
    store.append([b"later"])
    assert list(replay) == groups


def test_a_read_gives_all_of_a_body_and_never_more_than_was_appended(store: Store) -> None:
    for group in _fill(store):
        assert store.read(group.place + GROUP_HEADER, len(group.body)) == group.body
    assert store.read(store.end - 5, 100) == bytes([19]) * 5
    assert store.read(store.end, 1) == b""


def test_a_view_shows_what_a_read_gives(store: Store) -> None:
    """From the place on, at the least, never past what was appended; some stores have none."""
    for group in _fill(store):
        place = group.place + GROUP_HEADER
        found = store.view(place)
        if found is None:
            return
        begin, view = found
        assert begin <= place < begin + len(view) <= store.end
        assert view[place - begin : place - begin + len(group.body)] == group.body
        assert view[:] == store.read(begin, len(view))


def test_a_group_may_be_larger_than_any_part_of_the_log(store: Store) -> None:
    big = bytes(range(256)) * 100
    groups = [*_fill(store, 2), Group(store.end, big)]
    store.append([big])
    groups += _fill(store, 2)
    assert list(store.replay(0)) == groups


def test_a_large_group_may_be_the_first(store: Store) -> None:
    store.append([bytes(5000)])
    assert list(store.replay(0)) == [Group(0, bytes(5000))]


@pytest.mark.parametrize("place", [-1, 10**9])
def test_a_place_outside_of_the_log_is_refused(store: Store, place: int) -> None:
    _fill(store, 2)
    with pytest.raises(StoreError):
        store.read(place, 1)
    with pytest.raises(StoreError):
        store.replay(place)


def test_everything_is_there_after_an_open(opened: tuple[Store, Callable[[], Store]]) -> None:
    store, again = opened
    groups = _fill(store)
    store.save_index(groups[7].place, [b"ind", memoryview(b"ex")])
    store.drop_before(groups[6].place)
    start = store.start
    store.close()
    store = again()
    assert store.start == start <= groups[6].place
    assert list(store.replay(groups[6].place)) == groups[6:]
    assert store.load_index() == (groups[7].place, b"index")
    more = Group(store.end, b"more")
    store.append([b"more"])
    assert list(store.replay(groups[6].place)) == [*groups[6:], more]
    store.close()


def test_the_newest_index_counts(store: Store) -> None:
    groups = _fill(store)
    for group in groups:
        store.save_index(group.place, [group.body])
    store.save_index(store.end, [b"last"])
    assert store.load_index() == (store.end, b"last")
    store.save_index(store.end, [b"very last"])
    assert store.load_index() == (store.end, b"very last")


def test_an_index_may_be_any_buffer(store: Store) -> None:
    """Core hands over its arrays as they are: an item need not be a byte."""
    numbers = memoryview(bytes(range(16))).cast("Q")
    store.save_index(0, [numbers])
    assert store.load_index() == (0, bytes(range(16)))


def test_an_index_stands_between_groups_of_the_log_and_never_goes_back(store: Store) -> None:
    groups = _fill(store)
    store.save_index(groups[4].place, [b""])
    for place in (groups[3].place, groups[4].place + 1, store.end + 1):
        with pytest.raises(StoreError):
            store.save_index(place, [b""])
    assert store.load_index() == (groups[4].place, b"")


def test_nothing_behind_the_place_is_dropped(store: Store) -> None:
    groups = _fill(store)
    store.save_index(store.end, [b""])
    for number, group in enumerate(groups):
        store.drop_before(group.place)
        assert store.start <= group.place
        assert list(store.replay(group.place)) == groups[number:]
    assert store.start > 0
    with pytest.raises(StoreError):
        store.read(0, 1)


def test_only_what_an_index_sums_up_may_be_dropped(store: Store) -> None:
    groups = _fill(store)
    with pytest.raises(StoreError):
        store.drop_before(groups[1].place)
    store.save_index(groups[5].place, [b""])
    with pytest.raises(StoreError):
        store.drop_before(groups[6].place)
    assert list(store.replay(0)) == groups


def test_dropping_frees_space(store: Store) -> None:
    _fill(store, 100)
    full = store.bytes_on_disk()
    store.save_index(store.end, [b""])
    store.drop_before(store.end)
    assert store.bytes_on_disk() < full / 4


def test_a_closed_store_refuses_and_closes_again(store: Store) -> None:
    store.append([b"x"])
    store.close()
    store.close()
    for call in (
        lambda: store.append([b"y"]),
        lambda: store.read(0, 1),
        lambda: store.replay(0),
        lambda: store.load_index(),
        lambda: store.save_index(0, [b""]),
        lambda: store.drop_before(0),
    ):
        with pytest.raises(StoreError):
            call()


def test_readers_see_whole_groups_while_the_writer_appends(store: Store) -> None:
    """`read` by any thread, also while `append` runs and segments are dropped."""
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            end = store.end
            try:
                for group in store.replay(store.start):
                    if group.place >= end:
                        break
                    if len(set(group.body)) != 1:
                        wrong.append(group)
            except StoreError as error:
                if "dropped" not in str(error) and "not in the log" not in str(error):
                    wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(150):
        store.append([bytes([number]) * 100])
        if number % 20 == 19:
            store.save_index(store.end, [b""])
            store.drop_before(store.end)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
