"""The size of a pool over windows, and the file that is written of it; no Spark."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tandembus.spark.pipelines.autoscale import _sizes, advised, plans_of
from tandembus.workers.options import Scale

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def window(minute: int, arrived: int, **more: Any) -> dict[str, Any]:
    row = {"namespace": "n", "pool": "p", "window": BEGIN + timedelta(minutes=minute),
           "arrived": arrived, "completed": arrived, "lock_ms": 2_000 * arrived, "net": 0,
           "longest_wait_ms": 5}  # fmt: skip
    return {**row, **more}


@pytest.mark.req("P8")
def test_a_pool_follows_its_work() -> None:
    """2 s a message: 60 a minute keep 2 busy, which is 3 workers at 80 %; ten times as many come
    and go, and where nothing happens at all time goes on."""
    rows = [window(minute, 60) for minute in range(5)]
    rows += [window(minute, 600) for minute in range(5, 10)]
    rows += [window(30, 0)]
    found = list(_sizes(rows, {"p": Scale(min=1, max=50)}, 60))
    assert len(found) == 31
    assert found[4]["needed"] == found[4]["size"] == 3
    assert (found[9]["needed"], found[9]["size"]) == (25, 24)  # one more is within the tolerance
    assert found[-1]["size"] == 1
    growth = [row["size"] for row in found[4:10]]
    assert all(after <= 2 * before for before, after in pairwise(growth))


def test_what_waits_counts() -> None:
    rows = [window(0, 10, net=10, completed=0, lock_ms=0), window(1, 0, net=-10)]
    first, second = _sizes(rows, {"p": Scale(min=0, max=9, waiting_per_worker=2)}, 60)
    assert (first["waiting"], first["needed"]) == (10, 5)
    assert (second["waiting"], second["needed"]) == (0, 0)


def test_a_file_of_pools_is_kept_but_for_its_sizes() -> None:
    pools = tomllib.loads(
        'metrics_port = 9464\n[[pool]]\nname = "a \\"b\\""\nworker = "m:W"\nprocesses = true\n'
        'windows = ["22:00-06:00"]\n[[pool.level]]\nname = "x"\nqueue = "q"\n'
        'target = { within_s = 1.5, percent = 99 }\n[[pool]]\nname = "c"\nworker = "m:W"\n'
        '[[pool.level]]\nname = "y"\ntopic = "t"\nsubscription = "s"\n'
    )
    rows = [{"pool": 'a "b"', "min": 2, "max": 7, "size": 4}]
    again = tomllib.loads(advised(pools, rows))
    assert again["pool"][0].pop("size") == 4
    assert again["pool"][0].pop("scale") == {"min": 2, "max": 7}
    assert again == pools
    assert [plan.entities for plan in plans_of(pools)] == [("q",), ("t/Subscriptions/s",)]
