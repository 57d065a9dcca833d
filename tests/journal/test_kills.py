"""A broker and its journal are killed while they work: no event is missing, none is there twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.journal.loaded import Loaded
from tests.journal.reading import rows
from tests.journal.reference import Reference


@pytest.mark.req("D7")
def test_the_journal_is_the_log_through_kills_of_both(tmp_path: Path) -> None:
    """Killed as they run, twice each; then compared with the log, read in one go by a second
    implementation."""
    with Loaded(tmp_path / "data", tmp_path / "out") as run:
        for _ in range(2):
            run.kill_journal(after_rounds=6)
            run.kill_broker()
        run.wait(rounds=6)
    run.finish()
    found = [row for row in rows(tmp_path / "out") if row["kind"] != "began"]
    expected = Reference().read(tmp_path / "data" / "log")
    assert [_identity(row) for row in found] == [_identity(row) for row in expected]
    assert {row["stretch"] for row in found} == {1}


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    names = "place row time kind entity sequence_number size level body wait_ms lock_ms".split()
    return tuple(row.get(name) for name in names)
