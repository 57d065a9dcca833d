"""`tandem syphon`, `tandem pairing …`, the example, and a short slice of the outages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tandem.cli import main
from tandem.client import Client
from tandem.pairing import PairingOptions, pair_namespace
from tandem.pairing.cli import measured
from tandem.testing import LocalBroker

ROOT = Path(__file__).resolve().parents[2]


def fill(primary: LocalBroker, secondary: LocalBroker, count: int) -> None:
    options = PairingOptions(backlog_queue_count=2, failover_interval=timedelta())
    with pair_namespace(primary.connection_string, secondary.connection_string, options) as bus:
        bus.engage("orders", hold=True)
        with bus.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}") for n in range(count)])


@pytest.mark.req("N9")
@pytest.mark.req("N11")
def test_the_service(
    primary: LocalBroker,
    secondary: LocalBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status shows the depth; the syphon runs until nothing is left and keeps its ledger; cost
    shows it beside the formula."""
    primary.create_queue("orders")
    fill(primary, secondary, 30)
    both = [
        "--primary", primary.connection_string, "--secondary", secondary.connection_string,
        "--queues", "2",
    ]  # fmt: skip
    assert main(["pairing", "status", *both, "--during", "0.1", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["primary"], status["waiting"]) == ("answers", 30)
    assert main(["pairing", "status", *both, "--during", "0.1"]) == 0
    assert "30 wait in 2 backlog queues" in capsys.readouterr().out
    ledger = tmp_path / "ledger.json"
    command = [sys.executable, "-m", "tandem.cli", "syphon", *both, "--until-empty"]
    ran = subprocess.run(
        [*command, "--ledger", str(ledger)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "30 received, 30 sent home, 30 completed" in ran.stdout
    counts = Client(primary.connection_string).entities.get_queue("orders").counts
    assert counts["ActiveMessageCount"] == 30
    assert main(["pairing", "cost", "--queues", "10", "--ledger", str(ledger)]) == 0
    told = capsys.readouterr().out
    assert "idle, an hour: 40 receives" in told
    assert "idle, 30 days: 28,800 receives" in told
    assert "received from backlogs: 30" in told
    assert "sent home: 30" in told


def test_wrong_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Are said in a line, with exit code 1."""
    assert main(["pairing", "status"]) == 1
    assert "--primary and --secondary are needed" in capsys.readouterr().err
    here = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b"
    here += ";UseDevelopmentEmulator=true"
    assert main(["pairing", "status", "--primary", here, "--secondary", here]) == 1
    assert "does not answer" in capsys.readouterr().err
    assert main(["syphon", "--primary", here, "--secondary", here, "--queues", "0"]) == 1
    assert "backlog_queue_count" in capsys.readouterr().err
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[]")
    assert main(["pairing", "cost", "--ledger", str(wrong)]) == 1


def test_the_rate() -> None:
    """What has left between two looks, and what is there now."""
    depths = iter([[("q", 100, 0)], [("q", 40, 1)]])
    now, rate = measured(lambda: next(depths), 0.05)
    assert now == [("q", 40, 1)]
    assert 0 < rate <= 60 / 0.05


def test_the_example() -> None:
    """Runs, and checks itself."""
    ran = subprocess.run(
        [sys.executable, "examples/paired_namespaces/story.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all 20 orders, each once, in the order of their sale" in ran.stdout


@pytest.mark.req("N4")
@pytest.mark.req("N5")
@pytest.mark.req("N9")
def test_outages_of_real_servers() -> None:
    """A short slice of `make outage`: 20 entities, the primary killed, frozen, cut off, silent or
    refusing, the syphon killed; nothing lost, doubled, changed or out of order."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.pairing.outage", *"--count 4 --kills 2 --pace 0.5".split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the syphon killed 2 times: 0 violations" in ran.stdout
