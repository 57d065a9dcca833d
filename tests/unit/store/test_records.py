"""The byte form of changes."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import changes
from tandem.changes import BodyMoved, Change, Enqueued, Removed, Started
from tandem.errors import CorruptLogError, StoreError
from tandem.store import records
from tandem.store.api import GROUP_HEADER, Buffer
from tandem.store.memory import MemoryStore

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


# --- reading one payload --------------------------------------------------------------------------


def _stored(*group: Change) -> tuple[MemoryStore, list[int]]:
    store = MemoryStore()
    places = []
    place = store.end + GROUP_HEADER
    for change in group:
        places.append(place)
        place += len(records.encode(change))
    store.append([records.encode(change) for change in group])
    return store, places


@pytest.mark.parametrize("expected", [0, 50, 4096, 10**6])
def test_a_payload_is_read_by_its_place_alone(expected: int) -> None:
    long = SENT._replace(body=9, payload=bytes(range(256)) * 40)
    moved = BodyMoved(2**64 - 1, b"moved")
    store, places = _stored(SENT, long, moved, SENT._replace(payload=b""))
    found = [records.read_payload(store, place, expected=expected) for place in places]
    assert found == [(4, b"payload"), (9, long.payload), (2**64 - 1, b"moved"), (4, b"")]


def test_payloads_in_a_row_are_read_by_the_page() -> None:
    """The same payloads, with far fewer reads; one that is longer than a page, and the last."""
    large = SENT._replace(body=9, payload=bytes(range(256)) * 400)
    row = [SENT._replace(body=n, payload=b"%d" % n * 200) for n in range(1, 60)]
    group = [*row, large, *(it._replace(body=it.body + 100) for it in row)]
    store, places = _stored(*group)
    pages = records.ReadAhead(store)
    reads: list[int] = []
    read = store.read

    def counted(place: int, length: int) -> bytes:
        reads.append(place)
        return read(place, length)

    store.read = counted  # type: ignore[method-assign]
    for change, place in zip(group, places, strict=True):
        expected = len(records.encode(change)) + 7
        assert pages.read_payload(place, expected) == (change.body, change.payload)
    assert len(reads) < 10
    assert pages.read_payload(places[3], 4_096) == (4, row[3].payload)


def test_every_flipped_bit_of_a_payload_record_is_noticed_where_it_matters() -> None:
    """Damage to the payload, to its length or to its body's number is never served."""
    store, (place,) = _stored(SENT)
    good = bytes(store._log)
    for at in range(GROUP_HEADER, len(good)):
        for bit in range(8):
            store._log[:] = good
            store._log[at] ^= 1 << bit
            with contextlib.suppress(CorruptLogError):
                assert records.read_payload(store, place) == (4, b"payload")


@pytest.mark.parametrize("change", [Started(1, ""), SENT._replace(payload=None)])
def test_a_record_without_a_payload_is_refused(change: Change) -> None:
    store, (place,) = _stored(change)
    with pytest.raises(CorruptLogError) as caught:
        records.read_payload(store, place)
    assert (caught.value.segment, caught.value.offset) == ("memory", place)


def test_the_end_of_the_log_is_no_record() -> None:
    store, _ = _stored(SENT)
    with pytest.raises(CorruptLogError):
        records.read_payload(store, store.end)
