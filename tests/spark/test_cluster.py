"""Pipelines on a real standalone cluster: a master and two workers, each its own JVM; the command
line as a user has it (D1, D3, D4, D5). `make test-cluster`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tandembus.client import Client, OutgoingMessage
from tandembus.pairing.options import BACKLOG_SETTINGS, backlog_path
from tandembus.testing import LocalBroker
from tests.spark.journals import Shop
from tests.spark.standalone import CONF, StandaloneCluster

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark")]

ROOT = Path(__file__).resolve().parents[2]
COUNT = 5_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    with StandaloneCluster() as found:
        yield found


def command(cluster: StandaloneCluster, *arguments: str) -> list[str]:
    conf = [word for key, value in CONF.items() for word in ("--conf", f"{key}={value}")]
    whole = [sys.executable, "-m", "tandembus.cli", *arguments]
    return [*whole, "--master", cluster.url, "--json", "--quiet", *conf]


def run(cluster: StandaloneCluster, *arguments: str) -> dict[str, Any]:
    """The summary of a command that succeeds."""
    result = subprocess.run(
        command(cluster, *arguments),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


def fill(broker: LocalBroker, path: str, first: int, count: int, **properties: str) -> None:
    with Client(broker.connection_string) as client, client.sender(path) as sender:
        sender.send_all(
            OutgoingMessage(b"x" * 500, message_id=f"m{at}", properties=properties)
            for at in range(first, first + count)
        ).check()


@pytest.mark.req("D1")
@pytest.mark.req("D4")
def test_capture(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Every message once, read by executors; a second run goes on from the checkpoint."""
    with LocalBroker.start() as broker:
        broker.create_queue("orders")
        out = str(tmp_path / "capture")
        capture = ("pipeline", "run", "capture", "orders", "--out", out, "--connection-string")
        wanted = 0
        for count in (COUNT, 100):
            fill(broker, "orders", wanted, count)
            summary = run(cluster, *capture, broker.connection_string, "--option", "partitions=4")
            assert summary["rows"] == count
            assert summary["is_resumed"] == (wanted > 0)
            wanted += count
    rows = pq.read_table(out, columns=["message_id"])["message_id"].to_pylist()
    assert sorted(rows) == sorted(f"m{at}" for at in range(wanted))


@pytest.mark.req("D3")
def test_syphon_with_a_dead_executor(cluster: StandaloneCluster) -> None:
    """An executor is killed while it drains; its task goes to another, and nothing is lost or
    doubled."""
    with LocalBroker.start() as primary, LocalBroker.start() as secondary:
        primary.create_queue(
            "orders", RequiresDuplicateDetection=True, DuplicateDetectionHistoryTimeWindow="P1D"
        )
        for place in range(4):
            secondary.create_queue(backlog_path("shop", place), **BACKLOG_SETTINGS)
            path = backlog_path("shop", place)
            fill(secondary, path, place * COUNT, COUNT, **{"x-ms-path": "orders"})
        entities = Client(primary.connection_string).entities
        process = subprocess.Popen(
            command(
                cluster, "pipeline", "run", "syphon", "--primary", primary.connection_string,
                "--secondary", secondary.connection_string, "--queues", "4", "--name", "shop",
                "--tasks", "4",
            ),
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        while entities.get_queue("orders").counts["ActiveMessageCount"] < 1_000:
            assert process.poll() is None
            time.sleep(0.05)
        assert cluster.kill_executor(random.Random(1))
        secondary.clock.advance(minutes=2)  # the locks of the dead end
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0
        summary = json.loads(output)
        assert len(summary["tasks"]) == 4
        assert any(task["attempt"] for task in summary["tasks"])
        with Client(primary.connection_string) as client:
            ids = [str(message.message_id) for message in client.browse_all("orders")]
        assert sorted(ids) == sorted(f"m{at}" for at in range(4 * COUNT))


@pytest.mark.req("D5")
def test_report(cluster: StandaloneCluster, tmp_path: Path) -> None:
    shop = Shop(messages=20_000).make()
    journal = shop.write(tmp_path / "journal", rows_a_file=10_000)
    summary = run(cluster, "report", str(journal), "--out", str(tmp_path / "report"))
    assert summary["events"] == shop.events
    assert summary["findings"]["audit"].startswith("All ")
    assert (tmp_path / "report" / "report.html").stat().st_size > 1_000_000
