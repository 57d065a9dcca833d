"""`tandem report` and `tandem pipeline run` from the command line, on the journal of a real broker
(D5, D6, D7, D8), and the page in a browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tandembus.cli import main
from tandembus.client import Client, OutgoingMessage
from tandembus.testing import BrokerProcess, LocalBroker
from tests.unit.admin.console.visits import Visit

pytestmark = [
    pytest.mark.long,  # `make test-spark`: a minute and a half
    pytest.mark.xdist_group("spark"),
    pytest.mark.usefixtures("spark"),  # a command takes the session that is there
]

WRONG = 2
NASTY = "</script><img src=x onerror=alert(1)>"
TARGETS = """
[[target]]
entity = "work"
within_s = 60
percent = 50
"""


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty messages on three levels, of which one is dead and two are left; and a backlog."""
    folder = tmp_path_factory.mktemp("broker")
    with LocalBroker.start(folder / "data") as broker:
        broker.create_queue("work", PriorityLevels=3, MaxDeliveryCount=2)
        broker.create_queue("shop/x-servicebus-transfer/0")
        with Client(broker.connection_string) as client:
            with client.sender("work") as sender:
                sender.send_all(
                    OutgoingMessage(f"{at}", message_id=f"m{at}", priority=3 * (at % 3) + 1)
                    for at in range(60)
                ).check()
            with client.receiver("work") as receiver:
                first, *rest = receiver.receive(58)
                receiver.complete(rest[:57])
                receiver.dead_letter(first, reason=NASTY, description="it is <b>bad</b>")
            with client.sender("shop/x-servicebus-transfer/0") as sender:
                for _ in range(5):
                    sender.send(OutgoingMessage("x", properties={"x-ms-path": "work"}))
            with client.receiver("shop/x-servicebus-transfer/0") as receiver:
                receiver.complete(receiver.receive(5))
    out = folder / "journal"
    assert main(["journal", "run", str(folder / "data"), "--out", str(out), "--once"]) == 0
    return out


@pytest.fixture(scope="module")
def report(journal: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder, and the summary."""
    import contextlib
    import io

    out = tmp_path_factory.mktemp("report")
    (out / "targets.toml").write_text(TARGETS)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        arguments = ["report", str(journal), "--out", str(out), "--json"]
        assert main([*arguments, "--targets", str(out / "targets.toml")]) == 0
    return out, json.loads(said.getvalue())


@pytest.mark.req("D5")
@pytest.mark.req("D6")
@pytest.mark.req("D7")
def test_a_report_says_what_happened(report: tuple[Path, dict[str, Any]]) -> None:
    """Headings say the finding; behind each is a table, as Parquet and as CSV."""
    out, summary = report
    found = summary["findings"]
    assert found["throughput"].startswith("60 messages arrived, 57 were completed; 2 still wait")
    assert found["waits"].startswith("Every promise was kept")
    assert "1 message dead-lettered" in found["dead-letters"]
    assert found["outage"].startswith("For ")
    assert "5 messages took the way around; all are home" in found["outage"]
    assert found["audit"].startswith("All 66 arrivals are accounted for")
    assert "billed operations" in found["cost"]
    for name, rows in summary["tables"].items():
        table = pq.read_table(out / "tables" / f"{name}.parquet")
        with (out / "tables" / f"{name}.csv").open(newline="") as file:
            lines = list(csv.reader(file))
        assert table.num_rows == rows == len(lines) - 1, name
    sends = [
        row["operations"]
        for row in pq.read_table(out / "tables" / "ledger.parquet").to_pylist()
        if (row["entity"], row["operation"]) == ("work", "send")
    ]
    assert sends == [60]


def test_the_page_stands_alone(report: tuple[Path, dict[str, Any]]) -> None:
    """One file: nothing is fetched, and what a client has put into a message stays text."""
    out, _ = report
    page = (out / "report.html").read_text(encoding="utf-8")
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""<[^>]+\s(?:src|href)\s*=\s*["']?(?!#)\w""", ours)
    assert "default-src 'none'" in page
    assert NASTY not in page
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    assert "it is &lt;b&gt;bad&lt;/b&gt;" in page


def test_the_page_draws_in_a_browser(report: tuple[Path, dict[str, Any]]) -> None:
    """Every chart is there, in a browser that reaches nobody."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    out, _ = report
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking "
        "--proxy-server=127.0.0.1:1 --virtual-time-budget=10000 --dump-dom"
    )
    page = (out / "report.html").as_uri()
    dom = subprocess.run(
        [chromium, *flags.split(), page], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    body = dom.partition("<body>")[2]
    places = re.findall(r'<div class="figure[^"]*" id="figure-\d+"', body)
    assert len(places) >= 6
    assert body.count('class="plot-container') == len(places)
    assert 'data-theme="light"' in dom


@pytest.mark.req("D7")
def test_the_audit_is_a_command(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and who it is, for a journal with a hole; the report has audited it whole."""
    out = str(tmp_path / "out")
    wrong = tmp_path / "wrong"
    shutil.copytree(journal, wrong)
    (file,) = wrong.glob("namespace=*/hour=*/*.parquet")
    table = pq.read_table(file, partitioning=None)
    kinds, numbers = table["kind"].to_pylist(), table["sequence_number"].to_pylist()
    keep = [
        at for at, (kind, number) in enumerate(zip(kinds, numbers, strict=True))
        if (kind, number) != ("accepted", 7)
    ]  # fmt: skip
    assert len(keep) == table.num_rows - 1
    pq.write_table(table.take(keep), file)
    assert main(["pipeline", "run", "audit", str(wrong), "--out", out, "--quiet"]) == 1
    assert re.search(r"(orphan|gap): default work #7 ", capsys.readouterr().out)


@pytest.mark.req("D8")
def test_a_pipeline_from_the_command_line(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Live with a checkpoint: the first run takes what is there, the second nothing; progress is on
    stderr, the summary on stdout; another pipeline is refused the checkpoint."""
    common = [str(journal), "--out", str(tmp_path / "out"), "--trigger", "available-now", "--json"]
    checkpoint = ["--checkpoint", str(tmp_path / "checkpoint")]
    command = ["pipeline", "run", "rates", *common, *checkpoint]
    assert main(command) == 0
    said = capsys.readouterr()
    first = json.loads(said.out)
    assert first["pipeline"] == "rates"
    assert first["rows"] > 180
    assert not first["is_resumed"]
    assert "rates: " in said.err
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["is_resumed"]
    assert again["rows"] == 0
    assert main(["pipeline", "run", "latency", *common, *checkpoint]) == WRONG
    assert "is of another run: its pipeline is 'rates'" in capsys.readouterr().err


@pytest.mark.long
def test_advice_from_the_command_line(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tandem workers check` takes the file that `autoscale` writes."""
    pools = tmp_path / "pools.toml"
    pools.write_text(
        '[[pool]]\nname = "w"\nworker = "tandembus.workers:Worker"\n'
        '[[pool.level]]\nname = "all"\nqueue = "work"\n'
    )
    out = tmp_path / "out"
    command = ["pipeline", "run", "autoscale", str(journal), "--out", str(out)]
    assert main([*command, "--pools", str(pools)]) == 0
    (pool,) = tomllib.loads((out / "pools.toml").read_text())["pool"]
    assert pool["scale"]["min"] <= pool["size"] <= pool["scale"]["max"]
    capsys.readouterr()
    assert main(["workers", "check", str(out / "pools.toml")]) == 0


@pytest.mark.req("C4")
def test_a_run_is_on_the_console(journal: Path, tmp_path: Path) -> None:
    """While it runs, and what came of it; a run that failed says why."""
    with BrokerProcess.start(arguments=["--emulator"]) as broker:
        visit = Visit(broker)
        assert visit.sign_in(broker.key).status == 200
        console = ["--console", broker.connection_string, "--quiet"]
        out = ["--out", str(tmp_path / "out")]
        assert main(["report", str(journal), *out, *console, "--no-audit"]) == 0
        (tmp_path / "empty").mkdir()
        assert main(["pipeline", "run", "rates", str(tmp_path / "empty"), *out, *console]) == WRONG
        # A folder with all sorts in it, none of them a journal: said in a line, too.
        assert main(["pipeline", "run", "rates", str(tmp_path), *out, "--quiet"]) == WRONG
        _, said = visit.ask("GET", "api/board")
    failed, done = sorted(
        (each["said"] for each in said["notes"]), key=lambda it: it.get("rows") or 0
    )
    assert (done["state"], done["share"]) == ("done", 1)
    assert done["report"].endswith("report.html")
    assert done["findings"]
    assert failed["state"] == "failed"
    assert "there is no journal in" in failed["text"]


def test_mistakes_are_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "out")]
    (tmp_path / "prices.toml").write_text('[operations]\nflown = "send"\n')
    (tmp_path / "empty").mkdir()
    journal = str(tmp_path / "empty")
    for arguments, words in (
        (["report", "nowhere", *out], "nowhere"),
        (["report", journal, *out], "there are no events in"),
        (["pipeline", "run", "rates", journal, *out], "there is no journal in"),
        (
            ["report", journal, *out, "--prices", str(tmp_path / "prices.toml")],
            "the journal has no kind 'flown'",
        ),
        (["pipeline", "run", "capture", "q", *out], "no connection string"),
        (["pipeline", "run", "syphon"], "Both --primary and --secondary"),
        (
            ["report", journal, *out, "--from", "2026-01-02", "--to", "2026-01-01"],
            "--from is before --to",
        ),
    ):
        assert main(arguments) == WRONG
        said = capsys.readouterr().err
        assert words in said
        assert "Traceback" not in said


def test_the_session_is_the_tests(spark: SparkSession) -> None:
    """None of the commands above has stopped it."""
    assert spark.range(3).count() == 3
