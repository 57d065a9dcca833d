"""The audit (D7): honest journals pass it, and every planted fault is found, and nothing else.

`make audit-faults` does the same with a loaded broker, kills, and a thousand faults.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.journal_log import write_log
from tandembus.journal.standing import standing
from tandembus.spark.pipelines.audit import FAULTS, audit, summary
from tandembus.spark.pipelines.events import read_journal
from tests.house.test_docs import ROOT
from tests.journal.faults import Journals, judge, plant_in_pair
from tests.journal.planting import KINDS, Field
from tests.journal.reading import write_journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Journals:
    """Engines killed in the middle of their writes, with every kind of command; and a pair."""
    found = Journals(tmp_path_factory.mktemp("audit"))
    for seed in (1, 3):
        found.add_crashed(f"crashed-{seed}", seed, steps=250)
    found.add_pair(60)
    return found


@pytest.mark.req("D7")
def test_every_planted_fault_is_found_and_honest_journals_have_none(
    spark: SparkSession, journals: Journals, tmp_path: Path
) -> None:
    """One audit of both: the journals as they are, through kills and restarts and beside the index
    of the broker itself, and the same with faults. All offenders are faults, and all faults are
    offenders."""
    beside = journals.standing()
    field = Field(journals.rows(), beside.to_pylist(), seed=7)
    plant_in_pair(field, 6)
    field.plant(80)
    assert {each.fault for each in field.planted} >= {*KINDS}
    assert judge(spark, field, beside, tmp_path, honest=journals.rows()) == []


@pytest.mark.req("D7")
def test_the_summary_counts_what_is_there(spark: SparkSession, journals: Journals) -> None:
    """For each entity as many messages as the broker's index has."""
    rows = summary(journals.events(spark)).collect()
    there = {(row.namespace, row.entity): row.there for row in rows if row.there}
    counted: dict[tuple[str, str], int] = {}
    for row in journals.standing().to_pylist():
        if row["kind"] == "carried_over":
            key = row["namespace"], row["entity"]
            counted[key] = counted.get(key, 0) + 1
    assert there == counted
    assert there["away", "home/x-servicebus-transfer/0"] == 6


def test_every_fault_says_what_it_means() -> None:
    """They are printed to whoever has to do something about them."""
    assert all(len(meaning) > 10 for meaning in FAULTS.values())


def test_the_snippet_of_the_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    """docs/journal.md, as it stands there, but for the folders."""
    write_log(tmp_path / "shop-data" / "log", 300, size=20)
    write_journal(tmp_path / "shop-data", tmp_path / "journal", namespace="shop")
    page = (ROOT / "docs" / "journal.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for folder in ("journal", "shop-data"):
        snippet = snippet.replace(f'"{folder}"', repr(str(tmp_path / folder)))
    names: dict[str, Any] = {"read_journal": read_journal, "spark": spark, "Path": Path}
    exec(snippet, names | {"standing": standing, "audit": audit})  # noqa: S102
