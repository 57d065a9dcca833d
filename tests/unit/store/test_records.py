"""The byte form of changes."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus import changes
from tandembus.changes import BodyMoved, Change, Enqueued, Removed, Started
from tandembus.errors import CorruptLogError, StoreError
from tandembus.store import records
from tandembus.store.api import GROUP_HEADER, Buffer, Store, View
from tandembus.store.files import FileStore
from tandembus.store.memory import MemoryStore

KINDS: tuple[type[Change], ...] = typing.get_args(changes.Change)
_WIDTHS = {"Q": 2**64 - 1, "I": 2**32 - 1, "B": 255}
_FIELDS: dict[str, st.SearchStrategy[object]] = {
    "s": st.text(max_size=30),
    "s?": st.none() | st.text(max_size=30),
    "b": st.binary(max_size=50),
    "b?": st.none() | st.binary(max_size=50),
    "p": st.binary(max_size=50),
    "p?": st.none() | st.binary(max_size=50),
}


def _changes(row: tuple[int, type[Change], str, str]) -> st.SearchStrategy[Change]:
    _, cls, widths, kinds = row
    fields = [st.integers(0, _WIDTHS[width]) for width in widths]
    others = [_FIELDS[kind] for kind in kinds.split()]
    make: typing.Any = cls
    return st.tuples(*fields, *others).map(lambda values: make(*values))


any_change = st.one_of([_changes(row) for row in records.TABLE])

SENT = Enqueued(1, 2, 3, 4, 0, 2**64 - 1, 0, 7, 1, 0, 0, 5, "s", "", b"{}", b"payload")


def decoded(body: bytes) -> list[Change]:
    return [change for change, _ in records.decode_group(body)]


def test_every_change_has_a_record_and_every_code_is_fixed() -> None:
    """A code that moves makes old logs unreadable: the list only ever grows at its end."""
    assert {row[1] for row in records.TABLE} == set(KINDS)
    assert [(row[0], row[1].__name__) for row in records.TABLE] == [
        (1, "EntityCreated"),
        (2, "EntityUpdated"),
        (3, "EntityDeleted"),
        (4, "RuleAdded"),
        (5, "RuleRemoved"),
        (6, "Enqueued"),
        (7, "Activated"),
        (8, "Delivered"),
        (9, "Renewed"),
        (10, "Returned"),
        (11, "Deferred"),
        (12, "Removed"),
        (13, "SessionLocked"),
        (14, "SessionUnlocked"),
        (15, "SessionStateSet"),
        (16, "LevelChanged"),
        (17, "Noted"),
        (18, "BodyMoved"),
        (19, "Started"),
        (20, "Delayed"),
        (21, "Reactivated"),
        (22, "CursorMoved"),
        (23, "CursorDropped"),
        (24, "TapTrimmed"),
        (25, "ScheduleHeld"),
        (26, "PieceStored"),
        (27, "PiecesJoined"),
    ]


def test_the_bytes_are_those_of_the_document() -> None:
    """docs/log-format.md, in bytes."""
    assert records.encode(Removed(1, 2, 3, b"abcdefgh")) == (
        b"\x0c"
        + b"\x19\0\0\0"
        + b"\1\0\0\0\0\0\0\0"
        + b"\2\0\0\0"
        + b"\3"
        + b"\x08\0\0\0"
        + b"abcdefgh"
    )


@given(st.lists(any_change, max_size=8))
def test_changes_come_back_as_they_were(group: list[Change]) -> None:
    body = b"".join(map(records.encode, group))
    found = list(records.decode_group(memoryview(body)))
    assert [change for change, _ in found] == group
    assert [type(change) for change, _ in found] == list(map(type, group))
    for change, offset in found:
        record = records.encode(change)
        assert body[offset : offset + len(record)] == record


def test_none_and_empty_differ() -> None:
    for value in (None, b""):
        change = SENT._replace(edits=value, payload=value)
        assert decoded(records.encode(change)) == [change]


def test_a_text_with_a_lone_surrogate_is_no_reason_to_stop() -> None:
    """JSON can carry one into a session id; the log must take what core took."""
    change = Started(1, "\ud800")
    assert decoded(records.encode(change)) == [change]


def test_the_payload_is_not_copied() -> None:
    out: list[Buffer] = []
    length = records.encode_into(out, SENT)
    assert out[-1] is SENT.payload
    assert length == sum(map(len, out)) == len(records.encode(SENT))


@pytest.mark.parametrize(
    "change",
    [SENT._replace(size=2**32), SENT._replace(level=-1), Removed(1, 2, 256, b""), Started(-1, "")],
)
def test_what_does_not_fit_is_refused_before_it_is_written(change: Change) -> None:
    out: list[Buffer] = []
    with pytest.raises(StoreError):
        records.encode_into(out, change)
    assert out == []


def _damaged(body: bytes) -> Iterator[bytes]:
    for length in range(1, len(body)):
        yield body[:length]
    for at in range(len(body)):
        for bit in range(8):
            yield body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]


@settings(max_examples=30, deadline=None)
@given(any_change)
def test_malformed_bytes_raise_corrupt_log_error_and_nothing_else(change: Change) -> None:
    for body in _damaged(records.encode(change)):
        with contextlib.suppress(CorruptLogError):
            decoded(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_changes_or_a_corrupt_log_error(body: bytes) -> None:
    try:
        found = decoded(body)
    except CorruptLogError:
        return
    assert b"".join(map(records.encode, found)) == body or any(
        isinstance(change, Enqueued | BodyMoved) for change in found
    )


def test_an_unknown_code_is_named() -> None:
    with pytest.raises(CorruptLogError, match="code 200 is unknown"):
        decoded(b"\xc8\0\0\0\0")


# --- reading payloads -----------------------------------------------------------------------------


def _stored(*group: Change, store: MemoryStore | None = None) -> tuple[MemoryStore, list[int]]:
    store = store or MemoryStore()
    places = []
    place = store.end + GROUP_HEADER
    for change in group:
        places.append(place)
        place += len(records.encode(change))
    store.append([records.encode(change) for change in group])
    return store, places


def _lying(group: Sequence[Enqueued | BodyMoved], places: Sequence[int]) -> list[records.Lying]:
    """As the table of bodies tells it: the lengths are a little too large."""
    return [
        (change.body, place, len(records.encode(change)) * 9 // 8)
        for change, place in zip(group, places, strict=True)
    ]


def _read(store: Store, place: int, body: int = SENT.body) -> bytes:
    return records.Payloads(store).read([(body, place, 4_096)])[0]


def test_a_payload_is_read_by_its_place_alone() -> None:
    long = SENT._replace(body=9, payload=bytes(range(256)) * 40)
    moved = BodyMoved(2**64 - 1, b"moved")
    group: list[Enqueued | BodyMoved] = [SENT, long, moved, SENT._replace(payload=b"")]
    store, places = _stored(*group)
    for lying, change in zip(_lying(group, places), group, strict=True):
        assert records.Payloads(store).read([lying]) == [change.payload]
    assert records.Payloads(store).read(_lying(group, places)) == [c.payload for c in group]


class _Counting(MemoryStore):
    def __init__(self, *, has_views: bool = True) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.has_views = has_views

    def read(self, place: int, length: int) -> bytes:
        self.calls.append("read")
        return super().read(place, length)

    def view(self, place: int) -> tuple[int, View] | None:  # type: ignore[override]
        self.calls.append("view")
        return (place, super().read(place, 1 << 20)) if self.has_views else None


def test_payloads_in_a_row_are_read_by_the_page() -> None:
    """The same payloads, with far fewer reads, whether they are asked for one by one or together;
    one that is longer than a page, and the last."""
    large = SENT._replace(body=900, payload=bytes(range(256)) * 400)
    row = [SENT._replace(body=n, payload=b"%d" % n * 200) for n in range(1, 60)]
    group = [*row, large, *(it._replace(body=it.body + 100) for it in row)]
    store = _Counting()
    _, places = _stored(*group, store=store)
    lying = _lying(group, places)
    for handful in (1, 7, len(group)):
        payloads = records.Payloads(store)
        found = [
            payload
            for first in range(0, len(group), handful)
            for payload in payloads.read(lying[first : first + handful])
        ]
        assert found == [change.payload for change in group]
        assert len(store.calls) < 10
        store.calls.clear()


def test_many_that_lie_apart_are_looked_at_where_they_are() -> None:
    """A level of a queue with ten: one view for all, and not a read for each; a few are read
    together; those that lie too far apart for either are read one by one."""
    group = [SENT._replace(body=n, payload=b"%04d" % n * 256) for n in range(1, 1_401)]
    store = _Counting()
    _, places = _stored(*group, store=store)
    lying = _lying(group, places)
    for chosen, calls in (
        (lying[5:900:10], ["view"]),
        (lying[5:55:10], ["read"]),
        (lying[::80], ["read"] * 18),
    ):
        found = records.Payloads(store).read(chosen)
        assert found == [group[number - 1].payload for number, _, _ in chosen]
        assert store.calls == calls
        store.calls.clear()


def test_where_there_is_no_view_pages_are_read_and_it_is_not_asked_for_each_time() -> None:
    group = [SENT._replace(body=n, payload=b"%04d" % n * 256) for n in range(1, 1_401)]
    store = _Counting(has_views=False)
    _, places = _stored(*group, store=store)
    wanted = _lying(group, places)[5::10]
    found = records.Payloads(store).read(wanted)
    assert found == [group[number - 1].payload for number, _, _ in wanted]
    assert store.calls.count("view") == 1
    assert store.calls.count("read") < len(wanted) / 4


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 3_000), min_size=1, max_size=80),
    st.lists(st.lists(st.integers(0, 79), max_size=60), min_size=1, max_size=6),
)
def test_whatever_is_wanted_in_whatever_order_is_found(
    sizes: list[int], calls: list[list[int]]
) -> None:
    """On files whose segments end in between, with views and without."""
    with TemporaryDirectory() as folder:
        store = FileStore(folder, segment_bytes=16 * 1024)
        group = [
            SENT._replace(body=n, payload=bytes([n % 256]) * size)
            for n, size in enumerate(sizes, 1)
        ]
        places = []
        for change in group:
            places.append(store.end + GROUP_HEADER)
            store.append([records.encode(change)])
        lying = _lying(group, places)
        payloads = records.Payloads(store)
        for call in calls:
            rows = [row % len(group) for row in call]
            found = payloads.read([lying[row] for row in rows])
            assert found == [group[row].payload for row in rows]
        store.close()


def test_every_flipped_bit_of_a_payload_record_is_noticed_where_it_matters() -> None:
    """Damage to the payload, to its length or to its body's number is never served."""
    store, (place,) = _stored(SENT)
    good = bytes(store._log)
    for at in range(GROUP_HEADER, len(good)):
        for bit in range(8):
            store._log[:] = good
            store._log[at] ^= 1 << bit
            with contextlib.suppress(CorruptLogError):
                assert _read(store, place) == b"payload"


@pytest.mark.parametrize("change", [Started(1, ""), SENT._replace(payload=None)])
def test_a_record_without_a_payload_is_refused(change: Change) -> None:
    store, (place,) = _stored(change)
    with pytest.raises(CorruptLogError) as caught:
        _read(store, place)
    assert (caught.value.segment, caught.value.offset) == ("memory", place)


def test_the_end_of_the_log_is_no_record() -> None:
    store, _ = _stored(SENT)
    with pytest.raises(CorruptLogError):
        _read(store, store.end)
