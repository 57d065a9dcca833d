"""The configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandembus.errors import ArgumentError
from tandembus.workers.options import DailyWindow, Level, PoolOptions, Scale, Target
from tandembus.workers.pools_file import PoolEntry, PoolsFile, load_worker, read_pools

pytestmark = pytest.mark.req("P5")

WHOLE = """
connection_string_env = "BUS"
metrics_port = 9464
look_every_s = 2

[[pool]]
name = "orders"
worker = "orders:OrderWorker"
size = 4
prefetch = 2
look_ms = 50
windows = ["22:00-06:00"]
time_zone = "Europe/Berlin"
suspended = true
processes = true
stop_s = 5
scale = { min = 1, max = 8, waiting_per_worker = 10, oldest_s = 5.5, follow_target = false }

[[pool.level]]
name = "high"
queue = "orders-high"
target = { within_s = 10, percent = 99.5 }

[[pool.level]]
name = "low"
topic = "orders"
subscription = "low"
sessions = 3
state_in = "session"
"""

SMALL = '[[pool]]\nname = "p"\nworker = "m:W"\n[[pool.level]]\nname = "l"\nqueue = "q"\n'


def test_every_key() -> None:
    """What the file says is what the options are."""
    high = Level("high", queue="orders-high", target=Target(within_s=10, percent=99.5))
    low = Level("low", topic="orders", subscription="low", sessions=3, state_in="session")
    options = PoolOptions(
        "orders",
        (high, low),
        size=4,
        prefetch=2,
        look_ms=50,
        windows=(DailyWindow.parse("22:00-06:00"),),
        time_zone="Europe/Berlin",
        is_suspended=True,
        scale=Scale(min=1, max=8, waiting_per_worker=10, oldest_s=5.5, follow_target=False),
        processes=True,
        stop_s=5,
    )
    assert read_pools(WHOLE) == PoolsFile(
        (PoolEntry(options, "orders:OrderWorker"),), "BUS", 9464, 2
    )
    assert low.path == "orders/Subscriptions/low"
    assert (options.most, options.first_size) == (8, 4)


def test_a_small_file_has_defaults() -> None:
    found = read_pools(SMALL)
    assert found.only("p").options == PoolOptions("p", (Level("l", queue="q"),))
    with pytest.raises(ArgumentError, match="no pool 'x'"):
        found.only("x")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("size = 4", "siez = 4", r"f: pool 'orders': unknown key 'siez' \(did you mean 'size'\?\)"),
        ("metrics_port", "zzz", "f: unknown key 'zzz'"),
        ("within_s", "in_s", "level 'high': target: unknown key 'in_s'"),
        ("within_s = 10, ", "", "^f: pool 'orders': level 'high': target: within_s is missing$"),
        ("within_s = 10", "within_s = 0", "^f: pool 'orders': level 'high': target: within_s is"),
        ("size = 4", "size = true", "size is a whole number, not True"),
        ("size = 4", 'size = "4"', "size is a whole number, not '4'"),
        ("size = 4", "size = -1", "^f: pool 'orders': size is 0 to"),
        ("look_every_s = 2", "look_every_s = []", "look_every_s is a number"),
        ('queue = "orders-high"', "", "either queue, or topic and subscription"),
        ('topic = "orders"', 'topic = "orders"\nqueue = "q"', "either queue"),
        ("sessions = 3", "", "state_in is property"),
        ("22:00-06:00", "22:00", "^f: pool 'orders': windows 1: a window is written"),
        ("Europe/Berlin", "Mars", "no time zone 'Mars'"),
        ("max = 8", "max = 0", "min <= max"),
        ('worker = "orders:OrderWorker"', "", "worker is 'module:Class'"),
        ('name = "orders"', "", "name is missing"),
        ('name = "low"', 'name = "high"', "two levels of one name"),
        ("[[pool]]", "[pool]", "."),
        ("[[pool]]", "[[", "f: "),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, words: str) -> None:
    """A mistake in the file is an error that says where, never a pool that does something else."""
    assert old in WHOLE
    with pytest.raises(ArgumentError, match=words):
        read_pools(WHOLE.replace(old, new, 1), "f")


def test_no_pool_and_two_of_one_name() -> None:
    with pytest.raises(ArgumentError, match="there is no"):
        read_pools("", "f")
    with pytest.raises(ArgumentError, match="two pools"):
        read_pools(SMALL + SMALL, "f")


def test_a_worker_is_found_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is no worker is refused."""
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    text = "from tandembus.workers import Worker\nclass W(Worker):\n    pass\nX = 1\n"
    (tmp_path / "workers_beside_the_file.py").write_text(text)
    assert type(load_worker("workers_beside_the_file:W", tmp_path)).__name__ == "W"
    for wrong in ("workers_beside_the_file:X", "workers_beside_the_file:Y", "no_such_module:W"):
        with pytest.raises(ArgumentError):
            load_worker(wrong, tmp_path)
