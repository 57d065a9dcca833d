"""Following a log gives what is durable, all of it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandembus.errors import CorruptLogError, StoreError
from tandembus.journal.follow import Dropped, Follower, durable_end
from tandembus.store.files import FileStore
from tandembus.store.segment import HEADER

SMALL = 64 * 1024


def taken(follower: Follower, most: int = 1 << 20) -> list[bytes]:
    found = []
    while (piece := follower.read(most)) is not None:
        found += [piece.data[begin:end] for begin, end in piece.bodies]
    return found


def test_a_group_counts_when_something_stands_behind_it(tmp_path: Path) -> None:
    """The last one may still be on its way to the disk."""
    store, follower = FileStore(tmp_path), Follower(tmp_path, 0)
    assert taken(follower) == []
    store.append([b"one"])
    assert taken(follower) == []
    store.append([b"two"])
    assert taken(follower) == [b"one"]
    store.mark_idle()
    assert taken(follower) == [b"two"]
    store.append([b"three"])
    store.close()
    assert taken(follower) == [b"three"]
    assert follower.place == durable_end(tmp_path)


@pytest.mark.parametrize("most", [64, 1_000, 100_000])
def test_segments_follow_each_other(tmp_path: Path, most: int) -> None:
    """Also where a group is larger than what is read at once, or than a segment."""
    store = FileStore(tmp_path, segment_bytes=SMALL)
    bodies = [bytes([n % 256]) * (n * 97 % 5_000) for n in range(200)]
    bodies[50] = b"x" * 3 * SMALL
    follower = Follower(tmp_path, 0)
    found = []
    for number, body in enumerate(bodies):
        store.append([body])
        if number % 7 == 0:
            found += taken(follower, most)
    store.close()
    assert found + taken(follower, most) == bodies
    again = Follower(tmp_path, follower.place, follower.number)
    assert taken(again) == []


def test_a_torn_write_is_not_taken_and_what_replaces_it_is(tmp_path: Path) -> None:
    """The process died in the middle of a group; the next life cuts it and goes on there."""
    store, follower = FileStore(tmp_path), Follower(tmp_path, 0)
    store.append([b"before"])
    end = store.append([b"torn" * 100])
    log = next(tmp_path.glob("*.log"))
    with log.open("r+b") as file:
        file.seek(HEADER + end - 10)
        file.write(b"garbage")
    assert taken(follower) == [b"before"]
    store._release()
    store = FileStore(tmp_path)
    assert taken(follower) == []
    store.append([b"instead"])
    store.close()
    assert taken(follower) == [b"instead"]


def test_damage_behind_which_the_log_goes_on_is_told(tmp_path: Path) -> None:
    store = FileStore(tmp_path, segment_bytes=SMALL)
    for _ in range(40):
        store.append([b"x" * 5_000])
    store.close()
    first = min(tmp_path.glob("*.log"))
    with first.open("r+b") as file:
        file.seek(HEADER + 20_000)
        file.write(b"rot")
    with pytest.raises(CorruptLogError, match="damaged"):
        taken(Follower(tmp_path, 0))


def test_what_was_dropped_is_told(tmp_path: Path) -> None:
    """With the oldest place that is left; also if it happens while the file is open."""
    store, follower = FileStore(tmp_path, segment_bytes=SMALL), Follower(tmp_path, 0)
    store.append([b"y"])
    store.mark_idle()
    assert taken(follower) == [b"y"]
    for _ in range(60):
        store.append([b"x" * 5_000])
    store.save_index(store.end, [b"index"])
    store.drop_before(store.end)
    for _ in range(60):  # the file that is open is written again
        store.append([b"z" * 5_000])
    with pytest.raises(Dropped) as caught:
        taken(follower)
    assert caught.value.first == store.start
    store.close()


def test_another_log_is_refused(tmp_path: Path) -> None:
    """The folder was emptied and a new broker began there."""
    one, other = FileStore(tmp_path / "one"), FileStore(tmp_path / "other")
    for store, count in ((one, 3), (other, 1)):
        for _ in range(count):
            store.append([b"x" * (30 if count == 3 else 170)])
        store.append([b"y"])
        store.close()
    follower = Follower(tmp_path / "one", 0)
    taken(follower, 256)
    with pytest.raises(StoreError, match="another log"):
        taken(Follower(tmp_path / "other", 210, number=4))
