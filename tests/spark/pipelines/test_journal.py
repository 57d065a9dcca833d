"""The pipelines over the journal, against counts that were made without Spark (D5, D6, D8)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from tandembus.journal.schema import ARRIVALS
from tandembus.spark.pipelines.autoscale import advised, plans_of
from tandembus.spark.pipelines.checkpoints import opened
from tandembus.spark.pipelines.events import Span
from tandembus.spark.pipelines.latency import latency
from tandembus.spark.pipelines.prices import read_prices
from tandembus.spark.pipelines.running import Outcome, run_live, run_once
from tandembus.spark.pipelines.shelf import Shelf
from tandembus.spark.pipelines.targets import LevelTarget
from tandembus.spark.pipelines.view import PIPELINES, REDUCERS, View
from tandembus.workers.options import Target
from tandembus.workers.pools_file import read_pools
from tests.spark.journals import BEGIN, Shop

pytestmark = [
    pytest.mark.long,  # `make test-spark`
    pytest.mark.xdist_group("spark"),
]

Rows: TypeAlias = list[dict[str, Any]]
TARGETS = (
    LevelTarget("orders", 0, Target(5, 90)),
    LevelTarget("orders", None, Target(2, 95)),
)
VIEW = View(window_s=60, targets=TARGETS)


def rows_of(table: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in table.collect()]


class Tables:
    """All tables of one run, collected when they are asked for."""

    def __init__(self, outcome: Outcome, frames: dict[str, DataFrame]) -> None:
        self.outcome = outcome
        self.frames = frames
        self._rows: dict[str, Rows] = {}

    def __getitem__(self, name: str) -> Rows:
        if name not in self._rows:
            self._rows[name] = rows_of(self.frames[name])
        return self._rows[name]


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop(messages=2_000).make()


@pytest.fixture(scope="module")
def tables(spark: SparkSession, shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    folder = tmp_path_factory.mktemp("journal")
    shop.write(folder / "journal")
    out = str(folder / "out")
    told: list[str] = []
    outcome, frames = run_once(
        spark, list(PIPELINES.values()), [str(folder / "journal")], VIEW, out, Span(), told.append
    )
    assert told == ["events to dead letters", "events to cube", "events to arrivals"]
    return Tables(outcome, frames)


def of(shop: Shop, kind: str, column: str, where: Callable[[dict[str, Any]], bool]) -> Any:
    """One column of all events of a kind, as one array."""
    found = [
        np.broadcast_to(part.get(column, 0), part["count"])
        for part in shop.parts
        if part["kind"] == kind and where(part)
    ]
    return np.concatenate(found) if found else np.zeros(0, "i8")


@pytest.mark.req("D5")
def test_rates(tables: Tables, shop: Shop) -> None:
    """Every event is in one window of its entity and level; what waits at the end is what came and
    did not end."""
    assert tables.outcome.events == shop.events
    assert tables.outcome.quarantined == 0
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    last: dict[tuple[str, Any], dict[str, Any]] = {}
    for row in tables["rates"]:
        for name in ("arrived", "completed", "returned", "dead_lettered", "expired"):
            sums[name][row["entity"]] += row[name]
        key = (row["entity"], row["level"])
        if key not in last or last[key]["window"] < row["window"]:
            last[key] = row
    expected = {
        "arrived": ARRIVALS,
        "completed": ("completed",),
        "returned": ("abandoned",),
        "dead_lettered": ("dead_lettered",),
        "expired": ("expired",),
    }
    for name, kinds in expected.items():
        wanted: Counter[str] = Counter()
        for kind in kinds:
            wanted.update(shop.counts(kind))
        assert +sums[name] == wanted, name
    waiting: Counter[str] = Counter()
    for (entity, _), row in last.items():
        waiting[entity] += row["waiting"]
    dead = {f"{entity}/$DeadLetterQueue": n for entity, n in shop.counts("dead_lettered").items()}
    assert {entity: count for entity, count in waiting.items() if count} == dead


@pytest.mark.req("D5")
def test_latency(tables: Tables, shop: Shop) -> None:
    """Percentiles by sketch are within 2 % of rank of the exact ones, for each level."""
    found = {(row["entity"], row["level"]): row for row in tables["latency_by_level"]}
    for level in range(3):
        waits = np.concatenate(
            [
                part["wait_ms"][part["level"] == level]
                for part in shop.parts
                if part["kind"] == "delivered"
                and part["entity"] == "orders"
                and isinstance(part["delivery_count"], int)
                and part["delivery_count"] == 1
            ]
            + [
                part["wait_ms"][(part["level"] == level) & (part["delivery_count"] == 1)]
                for part in shop.parts
                if part["kind"] == "delivered"
                and part["entity"] == "orders"
                and isinstance(part["delivery_count"], np.ndarray)
            ]
        )
        row = found["orders", level]
        assert row["wait_count"] == len(waits)
        assert row["longest_wait_ms"] == waits.max()
        for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            low, high = np.quantile(waits, [max(0, part - 0.02), min(1, part + 0.02)])
            assert low - 1 <= row[f"wait_{name}_ms"] <= high + 1, (level, name)


@pytest.mark.req("D5")
def test_sketches_can_be_added_up(tables: Tables) -> None:
    """Minutes of the table put together give the same counts as the cube they came from."""
    by_minute = tables.frames["latency"]
    whole = rows_of(
        by_minute.groupBy("entity", "level").agg(
            *_merged("waits"), *_merged("works"), *_merged("totals")
        )
    )
    found = {(row["entity"], row["level"]): row for row in tables["latency_by_level"]}
    assert len(whole) == len(found)
    for row in whole:
        wanted = found[row["entity"], row["level"]]
        assert [row["waits"], row["works"], row["totals"]] == [
            wanted["wait_count"],
            wanted["work_count"],
            wanted["total_count"],
        ]


def _merged(name: str) -> list[Any]:
    from pyspark.sql import functions as F

    merged = F.kll_merge_agg_bigint(name)
    return [F.coalesce(F.kll_sketch_get_n_bigint(merged), F.lit(0)).alias(name)]


@pytest.mark.req("D5")
@pytest.mark.req("P7")
def test_targets_are_counted(tables: Tables, shop: Shop) -> None:
    """Done in time, by what was sent: exact; expired and dead-lettered messages have missed it."""
    found = {(row["entity"], row["level"]): row for row in tables["targets"]}
    within_s = {0: 5, 1: 2, 2: 2}
    for level in range(3):
        here = [
            part
            for part in shop.parts
            if part["entity"] == "orders" and part["kind"] == "completed"
        ]
        total = np.concatenate([p["time"] - p["enqueued_time"] for p in here])
        levels = np.concatenate([p["level"] for p in here])
        attained = int(((total <= 1000 * within_s[level]) & (levels == level)).sum())
        lost = sum(
            int((part["level"] == level).sum())
            for part in shop.parts
            if part["entity"] == "orders" and part["kind"] in ("expired", "dead_lettered")
        )
        row = found["orders", level]
        assert row["attained"] == attained
        assert row["judged"] == int((levels == level).sum()) + lost
        assert row["given_up"] == lost
        assert row["percent"] == pytest.approx(100 * attained / row["judged"])
        assert row["is_attained"] == (row["percent"] >= row["promised_percent"])
        assert row["overdue"] == row["waiting"] == 0
    assert found["mail", 0]["percent"] is None or found["mail", 0]["within_s"] is None


@pytest.mark.req("D5")
def test_time_in_each_state(tables: Tables, shop: Shop) -> None:
    found: Counter[tuple[str, str]] = Counter()
    for row in tables["states"]:
        found[row["entity"], row["state"]] += row["ms"]
    for entity in ("orders", "mail"):
        mine = lambda part, entity=entity: part["entity"] == entity  # noqa: E731
        in_vain = int(of(shop, "abandoned", "lock_ms", mine).sum())
        wait = int(of(shop, "completed", "wait_ms", mine).sum())
        assert found[entity, "worked_on"] == of(shop, "completed", "lock_ms", mine).sum()
        assert found[entity, "in_vain"] == in_vain
        assert found[entity, "waiting"] == wait - in_vain
        undone = sum(int(of(shop, k, "wait_ms", mine).sum()) for k in ("expired", "dead_lettered"))
        assert found[entity, "given_up"] == undone


@pytest.mark.req("D6")
def test_ledger(tables: Tables, shop: Shop) -> None:
    """Every operation by namespace, entity and kind; large messages count several times."""
    found = {
        (row["namespace"], row["entity"], row["operation"], row["is_pairing"]): row
        for row in tables["ledger"]
    }
    sizes = of(shop, "accepted", "size", lambda part: part["entity"] == "orders")
    row = found["shop", "orders", "send", False]
    assert row["events"] == len(sizes)
    assert row["operations"] == np.ceil(sizes / 65536).sum() > len(sizes)
    polls = shop.counts("polled")["mail"]
    assert found["shop", "mail", "empty receive", False]["operations"] == polls
    free = {row["operation"] for row in tables["ledger"]}
    assert free == {"send", "receive", "empty receive", "ping", "base price"}


@pytest.mark.req("D6")
@pytest.mark.req("N11")
def test_pairing_is_apart(tables: Tables, shop: Shop) -> None:
    """A syphoned message costs four operations, a ping one."""
    backlogs = [entity for entity in shop.counts("accepted") if "x-servicebus-transfer" in entity]
    syphoned = sum(shop.counts("completed")[entity] for entity in backlogs)
    assert syphoned == 200
    found = {row["operation"]: row["operations"] for row in tables["pairing"]}
    assert found == {
        "backlog send": syphoned,
        "backlog receive": syphoned,
        "home send": syphoned,
        "home receive": syphoned,
        "ping": sum(shop.counts("pinged").values()),
    }
    extra = sum(row["operations"] for row in tables["ledger"] if row["is_pairing"])
    assert extra == 2 * syphoned + found["ping"]


@pytest.mark.req("D6")
def test_prices_are_the_users(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    """Another table of prices: settling is billed, and each operation costs a cent."""
    (tmp_path / "prices.toml").write_text(
        'currency = "EUR"\nbase_per_hour = 0.5\n[[tier]]\nup_to = 100\nper_million = 0\n'
        '[[tier]]\nper_million = 10000\n[operations]\naccepted = "send"\ncompleted = "settle"\n'
    )
    prices = read_prices(tmp_path / "prices.toml")
    cube = tables.frames["rates"]
    reduced = {"cube": _cube_of(tables)}
    rows = rows_of(PIPELINES["ledger"].tables(reduced, View(prices=prices))["ledger"])
    assert cube.columns
    by_space: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_space[row["namespace"]].append(row)
    assert {row["operation"] for row in rows} == {"send", "settle", "base price"}
    for own in by_space.values():
        count = sum(row["operations"] for row in own)
        cost = sum(row["cost"] for row in own if row["operation"] != "base price")
        assert cost == pytest.approx(prices.of(count)) == pytest.approx((count - 100) * 0.01)


def _cube_of(tables: Tables) -> DataFrame:
    """The cube that a run was reduced to."""
    frame = tables.frames["rates"]
    (path,) = {Path(uri.removeprefix("file://")).parent for uri in frame.inputFiles()}
    return frame.sparkSession.read.parquet(str(path))


@pytest.mark.req("D5")
def test_the_story_of_an_outage(tables: Tables) -> None:
    rows = tables["outage"]
    assert (
        sum(row["sent_around"] for row in rows) == sum(row["brought_home"] for row in rows) == 200
    )
    assert max(row["in_backlog"] for row in rows) > 100
    assert rows[-1]["in_backlog"] == 0
    assert sum(row["pings"] for row in rows) == 5
    around = [row["window"] for row in rows if row["sent_around"]]
    assert (around[0].replace(tzinfo=None) - BEGIN.replace(tzinfo=None)).seconds == 900


@pytest.mark.req("D5")
def test_dead_letters(tables: Tables, shop: Shop) -> None:
    found = {row["entity"]: row for row in tables["dead_letters"]}
    assert {entity: row["messages"] for entity, row in found.items()} == shop.counts(
        "dead_lettered"
    )
    row = found["orders"]
    assert row["reason"] == "MaxDeliveryCountExceeded"
    assert row["first"]["time"] == row["first_time"] <= row["last_time"] == row["last"]["time"]
    assert row["stubborn"]["detail"] == "no such customer"


POOLS = """
[[pool]]
name = "shop"
worker = "tandembus.workers:Worker"
size = 3
scale = { min = 1, max = 40, utilization = 0.5 }
windows = ["08:00-20:00"]
[[pool.level]]
name = "high"
queue = "orders"
target = { within_s = 10, percent = 99 }
[[pool.level]]
name = "low"
queue = "mail"
"""


@pytest.mark.req("D5")
@pytest.mark.req("P8")
def test_advice_is_a_file_of_pools(tables: Tables) -> None:
    """What `autoscale` advises is read by `tandem workers`, with all else as it was."""
    import tomllib

    pools = tomllib.loads(POOLS)
    view = View(window_s=60, plans=plans_of(pools))
    made = PIPELINES["autoscale"].tables({"cube": _cube_of(tables)}, view)
    (advice,) = rows_of(made["advice"])
    assert advice["pool"] == "shop"
    assert 1 <= advice["min"] <= advice["size"] <= advice["max"] <= 40
    (entry,) = read_pools(advised(pools, [advice])).pools
    (before,) = read_pools(POOLS).pools
    assert entry.options.size == advice["size"]
    assert entry.options.scale is not None
    assert (entry.options.scale.min, entry.options.scale.max) == (advice["min"], advice["max"])
    assert entry.options.scale.utilization == 0.5
    assert (entry.options.levels, entry.worker) == (before.options.levels, before.worker)
    assert entry.options.windows == before.options.windows


@pytest.fixture
def passing(spark: SparkSession) -> Iterator[SparkSession]:
    """As the sessions of pipelines are: a file that cannot be read does not end the job."""
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    yield spark
    spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


# --- live -----------------------------------------------------------------------------------------


def _halves(shop: Shop, folder: Path) -> list[Path]:
    """The files of a journal in small pieces, in the order of their writing."""
    shop.write(folder, rows_a_file=1_000)
    return sorted(folder.rglob("*.parquet"))


@pytest.mark.req("D5")
@pytest.mark.req("D8")
def test_a_live_table_is_as_exact_as_a_batch(
    passing: SparkSession, tables: Tables, shop: Shop, tmp_path: Path
) -> None:
    """Micro-batches, an interruption, a resumed run: the table is the one of a batch. A torn file
    is passed over, and said, once."""
    spark = passing
    made, journal, out = tmp_path / "made", tmp_path / "journal", str(tmp_path / "out")
    files = _halves(shop, made)
    assert len(files) >= 6

    def appear(some: list[Path]) -> None:
        for path in some:
            target = journal / path.relative_to(made)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)

    torn = journal / "namespace=shop" / "hour=2026-10-03T14" / "torn.parquet"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(files[0].read_bytes()[:2_000])
    facts = {"out": out}
    batches = 0
    for part in (files[:3], files[3:]):
        appear(part)
        checkpoint = opened(spark, str(tmp_path / "checkpoint"), "rates", facts)
        assert checkpoint.is_resumed == (part is not files[:3] and batches > 0)
        query, outcome = run_live(
            spark, PIPELINES["rates"], [str(journal)], VIEW, out, checkpoint,
            {"availableNow": True}, lambda _: None, max_files=2,
        )  # fmt: skip
        query.awaitTermination()
        assert query.exception() is None
        assert outcome.quarantined == 1
        batches += outcome.batches
    assert batches >= 4
    (said,) = rows_of(spark.read.parquet(f"{out}/quarantine"))
    assert said["source"].endswith("torn.parquet")
    assert "cannot be read" in said["reason"]
    live = rows_of(spark.read.parquet(f"{out}/rates"))
    key = lambda row: json.dumps([row["entity"], row["level"], str(row["window"])])  # noqa: E731
    assert sorted(live, key=key) == sorted(tables["rates"], key=key)


@pytest.mark.req("D8")
def test_a_batch_that_is_done_again_counts_once(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    """After a crash Spark gives the same batch again; also one that was summed up already."""
    cube = _cube_of(tables)
    shelf = Shelf(spark, str(tmp_path / "shelf"), REDUCERS["cube"], most=2)
    for batch in ("a-1", "a-2", "a-2", "a-3", "a-2", "a-4"):
        shelf.put(batch, cube)
    whole = rows_of(shelf.whole().selectExpr("sum(events) AS events", "count(*) AS rows"))[0]
    (once,) = rows_of(cube.selectExpr("sum(events) AS events", "count(*) AS rows"))
    assert whole == {"events": 4 * once["events"], "rows": once["rows"]}
    assert len(list((tmp_path / "shelf").iterdir())) <= 3
    merged = rows_of(latency(shelf.whole(), ()))[0]
    assert merged["wait_count"] == 4 * rows_of(latency(cube, ()))[0]["wait_count"]


@pytest.mark.req("D8")
def test_bad_records_go_to_quarantine(passing: SparkSession, tmp_path: Path) -> None:
    """A row that makes no sense, and a file that is none: said, with the reason, and passed."""
    shop = Shop(messages=100, outage=None).make()
    shop.add(2, "exploded", np.full(2, shop.begin_ms), "orders", entity_id=2, entity_kind="queue")
    shop.add(1, "completed", np.full(1, shop.begin_ms), "orders", wait_ms=-5, entity_id=2)
    journal = shop.write(tmp_path / "journal")
    (whole,) = journal.rglob("*.parquet")
    (whole.parent / "torn.parquet").write_bytes(whole.read_bytes()[:2_000])
    outcome, tables = run_once(
        passing, [PIPELINES["rates"]], [str(journal)], VIEW, str(tmp_path / "out"), Span(),
        lambda _: None,
    )  # fmt: skip
    assert outcome.quarantined == 4
    assert sum(row["completed"] for row in rows_of(tables["rates"])) == sum(
        shop.counts("completed").values()
    ) - 1  # fmt: skip
    rows = rows_of(passing.read.parquet(str(tmp_path / "out" / "quarantine")))
    reasons = Counter(row["reason"].partition(" (")[0] for row in rows)
    assert reasons["unknown kind: exploded"] == 2
    assert reasons["wait_ms is negative"] == 1
    (torn,) = [row for row in rows if "cannot be read" in row["reason"]]
    assert torn["source"].endswith("torn.parquet")
    assert json.loads(next(row for row in rows if row["record"])["record"])["entity"] == "orders"
