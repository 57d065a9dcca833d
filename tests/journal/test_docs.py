"""docs/journal.md tells the truth: its tables are the schema, and its commands and snippet run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.journal_log import write_log
from tandembus.cli import main
from tandembus.journal.schema import COLUMNS, KINDS, PARTITIONS
from tests.house.test_docs import ROOT, commands_of

PAGE = (ROOT / "docs" / "journal.md").read_text(encoding="utf-8")


def test_the_tables_are_the_schema() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\w-]+) \| (.*?) \|$", PAGE, re.MULTILINE)
    columns = [(name, kind, meaning) for name, kind, meaning in (*PARTITIONS, *COLUMNS)]
    kinds = [(name, str(delta), meaning) for name, delta, meaning in KINDS]
    assert rows == columns + kinds


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "shop-data" / "log", 30, size=20)
    monkeypatch.chdir(tmp_path)
    for words in commands_of(PAGE):
        assert main(words[1:]) == 0, words
    assert list((tmp_path / "journal" / "namespace=shop").glob("hour=*/*.parquet"))
