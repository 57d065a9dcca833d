"""`tests/crash/faults.py`: an error of the disk at the n-th operation ends the engine, and costs
nothing that was promised."""

from __future__ import annotations

import pytest

from tandembus.engine.engine import Engine
from tandembus.errors import StoreError
from tests.crash.faults import Broken, Fault, How, Kind, trial

POINTS: list[tuple[Kind, How]] = [
    ("write", "EIO"),
    ("write", "ENOSPC"),
    ("write", "short"),
    ("sync", "EIO"),
    ("sync", "ENOSPC"),
    ("read", "EIO"),
    ("other", "ENOSPC"),
]


@pytest.mark.parametrize(("kind", "how"), POINTS)
def test_a_fault_ends_the_engine_and_loses_nothing(kind: Kind, how: How) -> None:
    """Early points one by one, later ones in strides: opening, sealing, index, drop."""
    for at in (*range(1, 12), *range(12, 200, 17)):
        trial(at, Fault(kind, at, how))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "how"), POINTS)
def test_every_point_up_to_200(kind: Kind, how: How) -> None:
    """K3 as RELIABILITY.md has it: n = 1 … 200."""
    for at in range(1, 201):
        trial(at, Fault(kind, at, how))


def test_the_load_reaches_all_kinds_of_operation() -> None:
    """Without a fault: more than 200 writes and syncs, and files are made, dropped and read."""
    counts = trial(1, None)
    assert counts["write"] > 200
    assert counts["sync"] > 200
    assert counts["read"] > 20
    assert counts["other"] > 40


def test_canary_a_failure_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that shrugs at a failed append is found."""

    def shrug(engine: Engine, why: Exception) -> None:
        engine.failure = why if isinstance(why, StoreError) else StoreError(str(why))

    monkeypatch.setattr(Engine, "fail", shrug)
    with pytest.raises(Broken):
        _try_writes(20)


def _try_writes(count: int) -> None:
    for at in range(1, count):
        trial(at, Fault("write", at))
