"""The log read by Spark itself is the table that the journal would have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tandembus.journal.schema import spark_schema
from tandembus.spark.segments import read_log
from tests.journal.crashed import crashed_log
from tests.journal.reading import write_journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_the_log_is_the_journal(spark: SparkSession, tmp_path: Path) -> None:
    """Every row and every column."""
    names = [column.split()[0] for column in spark_schema().split(", ")]
    folder = tmp_path / "shop"
    crashed_log(8, folder / "log", steps=170)
    write_journal(folder, tmp_path / "out", namespace="shop")
    journal = spark.read.schema(spark_schema()).parquet(str(tmp_path / "out"))
    direct = read_log(spark, {"shop": folder})
    assert direct.schema == journal.schema
    found = sorted(map(repr, direct.select(names).collect()))
    assert found == sorted(map(repr, journal.select(names).collect()))
    assert len(found) > 300
