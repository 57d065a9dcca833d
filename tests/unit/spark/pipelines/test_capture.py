"""The files of a capture as a Delta table; no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandembus.spark.pipelines.capture import DeltaLog

deltalake = pytest.importorskip("deltalake")


def put(out: Path, entity: str, batch: str, numbers: list[int]) -> None:
    """As Spark writes: what a name of a folder cannot have is escaped."""
    folder = out / f"entity={entity}" / "hour=2026-10-03T14" / f"batch={batch}"
    folder.mkdir(parents=True)
    table = pa.table({"sequence_number": pa.array(numbers, pa.int64())})
    pq.write_table(table, folder / "part-00000.parquet")


@pytest.mark.req("D4")
def test_a_batch_is_one_transaction(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path), "query-1")
    assert not log.has(0)
    put(tmp_path, "orders", "q-0", [1, 2])
    put(tmp_path, "t%2FSubscriptions%2Fs", "q-0", [3])
    log.add(0, "q-0")
    put(tmp_path, "orders", "q-1", [4])
    assert not log.has(1)
    log.add(1, "q-1")
    assert log.has(0)
    assert log.has(1)
    assert not DeltaLog(str(tmp_path), "query-2").has(0)
    found = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    rows = sorted((row["entity"], row["sequence_number"]) for row in found.to_pylist())
    assert rows == [("orders", 1), ("orders", 2), ("orders", 4), ("t/Subscriptions/s", 3)]
    assert set(found["hour"].to_pylist()) == {"2026-10-03T14"}


def test_a_batch_without_messages_is_none(tmp_path: Path) -> None:
    DeltaLog(str(tmp_path), "query").add(0, "q-0")
    assert not deltalake.DeltaTable.is_deltatable(str(tmp_path))
