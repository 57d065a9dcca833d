"""Rows that are put aside: whole files with a reason, the same file when a task runs again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandembus.errors import ArgumentError, MessageSizeExceededError
from tandembus.spark.quarantine import Quarantine
from tandembus.spark.rows import BadRow

ROWS = pa.RecordBatch.from_pydict({"body": ["a", "b", "c"], "priority": [1, 77, 88]})
BAD = [BadRow(1, ArgumentError("priority is 77")), BadRow(2, MessageSizeExceededError("too large"))]


@pytest.mark.req("D8")
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_rows_are_kept_with_the_reason(tmp_path: Path, form: str) -> None:
    """All their columns, and where they came from; twice the same is once."""
    folder = tmp_path / "bad rows"
    for _ in range(2):
        quarantine = Quarantine(form.format(folder), "orders", "job/0")
        quarantine.add(ROWS, BAD, 100)
        quarantine.add(ROWS, [], 103)
        quarantine.close()
        assert quarantine.count == 2
    (file,) = folder.iterdir()
    assert file.suffix == ".parquet"
    first, second = pq.read_table(file).to_pylist()
    assert (first["body"], first["priority"], first["_row"]) == ("b", 77, 101)
    assert first["_reason"] == "priority is 77"
    assert second["_condition"] == "amqp:link:message-size-exceeded"
    assert (second["_entity"], second["_task"]) == ("orders", "job/0")


def test_nothing_bad_is_no_file(tmp_path: Path) -> None:
    quarantine = Quarantine(str(tmp_path / "bad"), "orders", "job/0")
    quarantine.add(ROWS, [], 0)
    quarantine.close()
    assert not (tmp_path / "bad").exists()


@pytest.mark.req("D8")
def test_without_a_folder_the_first_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ArgumentError, match="Row 101 cannot be sent to 'orders': priority is 77"):
        Quarantine(None, "orders", "job/0").add(ROWS, BAD, 100)
