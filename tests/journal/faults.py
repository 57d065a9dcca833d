"""`make audit-faults`: honest runs with kills must pass the audit, and planted faults must not.

    python -m tests.journal.faults --runs 10 --kills 3 --faults 1000

An honest run is a real broker under load with a real journal beside it, both killed with SIGKILL
again and again; and the lives of an engine with every kind of command, killed in the middle of its
writes; and a pair through an outage. Each is audited beside the broker's own index: 0 offenders.
Then faults are planted into their journals, and each must be found, and nothing else.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tandembus.changes import TRANSFER_BIT
from tandembus.journal.schema import plain_schema, spark_schema
from tandembus.journal.standing import standing
from tests.journal.crashed import crashed_log
from tests.journal.loaded import Loaded
from tests.journal.pairs import write_pair
from tests.journal.planting import Field, Key, Planted
from tests.journal.reading import write_journal
from tests.repeat import repeat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEAD = "/$DeadLetterQueue"
PAIR = ("home", "away")


class Journals:
    """Some honest journals in one folder, and the data folders that they were made from."""

    def __init__(self, root: Path) -> None:
        self.out = root / "journal"
        self.data = root / "data"
        self.namespaces: list[str] = []

    def add_loaded(self, name: str, seed: int, *, kills: int, rounds: int) -> None:
        """A loaded broker, and both processes killed so many times."""
        with Loaded(self.data / name, self.out, seed=seed, namespace=name) as run:
            for _ in range(kills):
                run.kill_journal(after_rounds=rounds)
                run.kill_broker()
            run.wait(rounds)
        run.finish()
        self.namespaces.append(name)

    def add_crashed(self, name: str, seed: int, *, steps: int = 360) -> None:
        crashed_log(seed, self.data / name, steps=steps, ends=6)
        write_journal(self.data / name, self.out, namespace=name)
        self.namespaces.append(name)

    def add_pair(self, count: int) -> None:
        write_pair(self.data, count)
        for name in PAIR:
            write_journal(self.data / name, self.out, namespace=name)
            self.namespaces.append(name)

    def events(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(spark_schema()).parquet(str(self.out))

    def standing(self) -> pa.Table:
        names = self.namespaces
        return pa.concat_tables(standing(self.data / name, name, [self.out]) for name in names)

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.out.glob("namespace=*/hour=*/*.parquet")):
            namespace = path.parts[-3].removeprefix("namespace=")
            table = pq.ParquetFile(path).read().cast(plain_schema())
            found += [{**row, "namespace": namespace, "hour": ""} for row in table.to_pylist()]
        return found


def plant_in_pair(field: Field, count: int) -> None:
    """Messages of the backlog that never came home, and some that came twice."""
    homes = {
        row["message_id"]: at
        for at, row in enumerate(field.rows)
        if row["namespace"] == "home" and row["kind"] == "accepted"
    }
    last = max(field.rows[at]["sequence_number"] for at in homes.values())
    ended = {
        row["sequence_number"]
        for row in field.rows
        if row["namespace"] == "away" and row["kind"] == "completed"
    }
    through = [row for row in field.rows if row["destination"] is not None]
    through = [row for row in through if row["sequence_number"] in ended]
    chosen = field.random.sample(through, min(count, len(through)))
    for rank, row in enumerate(chosen):
        field.take(row)
        at = homes[row["message_id"]]
        here = (field.rows[at]["entity_id"], field.rows[at]["sequence_number"])
        family: set[Key] = {("home", *here), ("away", row["entity_id"], row["sequence_number"])}
        if rank % 2:
            # Something else has its number, so that there is no gap.
            field.removed.add(at)
            field.again(at, message_id=f"other-{rank}")
            field.planted.append(Planted("not brought home", frozenset(family)))
        else:
            last += 1
            field.again(at, sequence_number=last, body=1_000_000 + rank)
            family.add(("home", here[0], last))
            field.planted.append(Planted("brought home twice", frozenset(family)))


HONEST = "honest-"


def judge(
    spark: SparkSession,
    field: Field,
    beside: pa.Table,
    folder: Path,
    *,
    honest: Sequence[dict[str, Any]] = (),
) -> list[str]:
    """What is wrong with the audit of a field: faults that it missed, and what it made up. `honest`
    rows are audited with it, as namespaces of their own, and must have none."""
    from tandembus.spark.pipelines.audit import audit

    schema = plain_schema()
    for name in ("namespace", "hour"):
        schema = schema.append(pa.field(name, pa.string()))
    rows = field.table() + [_apart(row) for row in honest]
    if honest:
        apart = [_apart(row) for row in beside.to_pylist()]
        beside = pa.concat_tables([beside, pa.Table.from_pylist(apart, beside.schema)])
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "planted.parquet")
    events = spark.read.schema(spark_schema()).parquet(str(folder / "planted.parquet"))
    offenders = [row.asDict() for row in audit(events, spark.createDataFrame(beside)).collect()]
    found = {_key(row): row for row in offenders}
    wrong = [
        f"missed: {each.fault} of {sorted(each.family)}"
        for each in field.planted
        if not each.family & found.keys()
    ]
    family = {key for each in field.planted for key in each.family}
    wrong += [f"made up: {row}" for key, row in found.items() if key not in family]
    return wrong


def _apart(row: dict[str, Any]) -> dict[str, Any]:
    """The same in another namespace, also where its name is part of a path."""
    moved = {**row, "namespace": HONEST + row["namespace"]}
    if row["entity"] and row["entity"].startswith(PAIR[0] + "/"):
        moved["entity"] = HONEST + row["entity"]
    return moved


def _key(row: dict[str, Any]) -> Key:
    entity = row["entity_id"]
    if (row["entity"] or "").endswith(DEAD):
        entity = entity - TRANSFER_BIT if entity >= TRANSFER_BIT else entity - 1
    return row["namespace"], entity, row["sequence_number"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2, help="honest runs of a loaded broker (2)")
    parser.add_argument("--kills", type=int, default=2, help="of each process in each run (2)")
    parser.add_argument("--rounds", type=int, default=10, help="of load between two kills (10)")
    parser.add_argument("--faults", type=int, default=200, help="to plant (200)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1 << 30), help="the first seed (any)"
    )
    options = parser.parse_args(arguments)
    from pyspark.sql import SparkSession  # noqa: F401 - fails early

    from tandembus.spark.pipelines.audit import audit
    from tests.spark.conftest import session

    with tempfile.TemporaryDirectory(prefix="tandem-audit-") as folder:
        journals = Journals(Path(folder))
        begin = time.monotonic()
        for run in range(options.runs):
            name, seed = f"loaded-{run}", options.seed + run
            journals.add_loaded(name, seed, kills=options.kills, rounds=options.rounds)
            print(f"run {run + 1}: {options.kills} kills of each process", flush=True)
        for run in range(max(1, options.runs // 2)):
            journals.add_crashed(f"crashed-{run}", options.seed + run)
        journals.add_pair(200)
        print(f"{len(journals.namespaces)} journals in {time.monotonic() - begin:.0f} s")
        spark = session()
        beside = journals.standing()
        begin = time.monotonic()
        events = journals.events(spark)
        honest = audit(events, spark.createDataFrame(beside)).collect()
        print(
            f"honest: {len(honest)} offenders in {events.count():,} events of "
            f"{len(journals.namespaces)} journals ({time.monotonic() - begin:.0f} s)"
        )
        for row in honest[:20]:
            print(row)
        field = Field(journals.rows(), beside.to_pylist(), options.seed)
        plant_in_pair(field, options.faults // 10)
        field.plant(options.faults)
        wrong = judge(spark, field, beside, Path(folder))
        for fault, count in sorted(Counter(each.fault for each in field.planted).items()):
            print(f"  {count:5} {fault}")
        print(f"planted: {len(field.planted)}, wrong: {len(wrong)} (seed {options.seed})")
        for line in wrong[:20]:
            print(line)
        spark.stop()
    again = ("--kills", options.kills, "--rounds", options.rounds)
    if honest:
        # The journals of one run alone; a pair is in every run.
        _, _, run = honest[0]["namespace"].partition("-")
        seed = options.seed + int(run or 0)
        return repeat("audit-faults", "--seed", seed, *again, HONEST=1, FAULTS=0)
    if wrong or len(field.planted) < options.faults:
        counts = {"HONEST": options.runs, "FAULTS": options.faults}
        return repeat("audit-faults", "--seed", options.seed, *again, **counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
