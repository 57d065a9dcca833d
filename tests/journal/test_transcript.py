"""The journal of a log with every kind of change and with crashes says what the log says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.journal.crashed import crashed_log
from tests.journal.reading import rows, write_journal
from tests.journal.reference import Reference

SEEDS = (0, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_event_is_there_with_all_that_is_known_of_it(seed: int, tmp_path: Path) -> None:
    """Against a second, slow implementation that shares no code."""
    crashed_log(seed, tmp_path / "log")
    journal = write_journal(tmp_path / "log", tmp_path / "out")
    expected = Reference().read(tmp_path / "log")
    found = [row for row in rows(tmp_path / "out") if row["kind"] != "began"]
    assert len(expected) > 300
    assert journal.transcript.messages.unknown == 0
    for want, have in zip(expected, found, strict=True):
        said = {name: value for name, value in want.items() if value is not None}
        assert said == {name: have[name] for name in said if name in have}, have
        assert _extra(want, have) == set(), have


def _extra(want: dict[str, Any], have: dict[str, Any]) -> set[str]:
    """Columns with a value that the slow way does not have, beside those that it does not tell."""
    untold = {"stretch", "delta", "entity_kind", "operations", "detail"}
    if want["kind"] == "dead_lettered":
        untold.add("reason")
    return {name for name in have if want.get(name) is None} - untold
