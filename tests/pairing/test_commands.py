"""`tandem syphon`, `tandem pairing status` and `tandem pairing cost`, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tandembus.cli import main
from tandembus.cli.codes import UNAUTHORIZED, UNREACHABLE, USAGE
from tandembus.client import Client
from tandembus.pairing import PairingOptions, pair_namespace
from tandembus.pairing.cli import _show
from tandembus.pairing.pair import Pair
from tandembus.pairing.survey import survey
from tandembus.testing import LocalBroker

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
)


def fill(primary: LocalBroker, secondary: LocalBroker, count: int) -> None:
    options = PairingOptions(backlog_queue_count=2, failover_interval=timedelta())
    with pair_namespace(primary.connection_string, secondary.connection_string, options) as bus:
        bus.engage("orders", hold=True)
        with bus.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}") for n in range(count)])


def both(primary: LocalBroker, secondary: LocalBroker, queues: int = 2) -> list[str]:
    return [
        "--primary", primary.connection_string, "--secondary", secondary.connection_string,
        "--queues", str(queues),
    ]  # fmt: skip


def syphon(*arguments: str, **how: Any) -> subprocess.Popen[str]:
    """The service, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tandembus.cli", "syphon", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def waiting(broker: LocalBroker, queue: str) -> int:
    return Client(broker.connection_string).entities.get_queue(queue).counts["ActiveMessageCount"]


@pytest.mark.req("N9")
@pytest.mark.req("N11")
def test_the_service(
    primary: LocalBroker,
    secondary: LocalBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status shows the depth and for whom; the syphon runs until nothing is left and keeps its
    ledger, also over a second run; cost shows it beside the formula."""
    primary.create_queue("orders")
    fill(primary, secondary, 30)
    pair = both(primary, secondary)
    assert main(["pairing", "status", *pair, "--during", "0.1", "--entities", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["primary"], status["waiting"]) == ("answers", 30)
    assert status["secondaries"] == [{"name": "localhost", "state": "answers"}]
    assert status["entities"] == {"orders": 30}
    assert main(["pairing", "status", *pair, "--during", "0.1", "--entities"]) == 0
    told = capsys.readouterr().out
    assert "30 wait in 2 backlog queues" in told
    assert "for 'orders': 30 seen" in told
    ledger = tmp_path / "ledger.json"
    running = syphon(*pair, "--until-empty", "--ledger", str(ledger))
    told, problems = running.communicate(timeout=100)
    assert running.returncode == 0, problems
    assert "30 received, 30 sent home, 30 completed" in told
    assert waiting(primary, "orders") == 30
    running = syphon(*pair, "--until-empty", "--ledger", str(ledger))
    running.communicate(timeout=100)
    assert (
        main(["pairing", "cost", "--ledger", str(ledger), "--outage", "5", "--entities", "2"]) == 0
    )
    told = " ".join(capsys.readouterr().out.split())
    assert "idle, an hour: 40 receives" in told
    assert "idle, 30 days: 28,800 receives" in told
    assert "30 messages through the backlog: 120 operations" in told
    assert "2 entities unavailable for 5 min: 10 pings" in told
    assert "received from backlogs 30 30" in told, "counted, and by the formula"
    assert "sent home 30 30" in told


@pytest.mark.req("N9")
def test_stopping_it(primary: LocalBroker, secondary: LocalBroker, tmp_path: Path) -> None:
    """Ctrl-C: what it has in hand, for a destination that refuses, is given back at once, and the
    exit code is 0."""
    primary.create_queue("orders")
    Client(primary.connection_string).entities.update_queue("orders", Status="Disabled")
    fill(primary, secondary, 30)
    ledger = tmp_path / "ledger.json"
    running = syphon(*both(primary, secondary), "--every", "0.2", "--ledger", str(ledger))
    assert running.stdout is not None
    for line in running.stdout:
        if "orders is held back" in line:
            break
    running.send_signal(signal.SIGINT)  # the outages do it with SIGTERM
    told, problems = running.communicate(timeout=100)
    assert running.returncode == 0, problems
    assert "Traceback" not in told + problems
    assert json.loads(ledger.read_text())["backlog_receives"] >= 30
    found = 0
    with Client(secondary.connection_string) as client:
        for index in range(2):
            path = f"localhost/x-servicebus-transfer/{index}"
            if waiting(secondary, path):
                with client.receiver(path) as receiver:
                    found += len(receiver.receive(30, wait_s=20))
    assert found == 30, "none is locked any more"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["pairing", "status"], "Both --primary and --secondary are needed"),
        (["syphon", "--primary", NOWHERE], "Both --primary and --secondary are needed"),
        (["syphon", "--primary", NOWHERE, "--secondary", "rubbish"], "made of Name=value parts"),
        (["syphon", "--primary", "Endpoint=sb://x", "--secondary", NOWHERE], "SharedAccessKey"),
        (
            ["pairing", "status", "--primary", f"{NOWHERE};EntityPath=q", "--secondary", NOWHERE],
            "whole namespaces",
        ),
        (
            ["syphon", "--primary", NOWHERE, "--secondary", NOWHERE, "--queues", "0"],
            "backlog_queue_count is 1 to",
        ),
        (["syphon", "--primary", NOWHERE, "--secondary", NOWHERE], "The secondary does not answer"),
        (["pairing", "cost", "--ledger", "missing.json"], "no ledger missing.json"),
    ],
)
def test_wrong_arguments(
    arguments: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Are said in a line, with an exit code that tells what kind of problem it is."""
    for name in ("TANDEM_PRIMARY", "TANDEM_SECONDARY"):
        monkeypatch.delenv(name, raising=False)
    assert main(arguments) == (UNREACHABLE if "does not answer" in why else USAGE)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tandem: ")
    assert why in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["pairing", "cost", "--ping-interval", "0"],
        ["pairing", "cost", "--messages", "-1"],
        ["pairing", "status", "--during", "-1"],
        ["syphon", "--every", "never"],
    ],
)
def test_wrong_numbers(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "invalid" in capsys.readouterr().err


def test_a_file_that_is_no_ledger(
    primary: LocalBroker,
    secondary: LocalBroker,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Is not read, and not written over."""
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[]")
    assert main(["pairing", "cost", "--ledger", str(wrong)]) == USAGE
    assert "is not a ledger" in capsys.readouterr().err
    assert main(["syphon", *both(primary, secondary), "--ledger", str(wrong)]) == USAGE
    assert "is not a ledger" in capsys.readouterr().err
    assert wrong.read_text() == "[]"


def test_a_key_that_is_not_let_in(
    primary: LocalBroker, secondary: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = secondary.connection_string.replace(secondary.key, "c29tZWJvZHkgZWxzZQ==")
    wrong = ["--primary", primary.connection_string, "--secondary", stranger]
    assert main(["syphon", *wrong]) == UNAUTHORIZED
    assert "does not let this key in" in capsys.readouterr().err
    assert main(["pairing", "status", *wrong]) == 1
    assert "secondary 'localhost': does not let this key in" in capsys.readouterr().out


def test_one_side_is_down(
    primary: LocalBroker, secondary: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status tells which; of the others it says all that there is to say. With a secondary away
    the exit code is 1."""
    primary.create_queue("orders")
    fill(primary, secondary, 5)
    pair = both(primary, secondary)
    quick = ["--during", "0.01"]
    assert main(["pairing", "status", *pair, "--secondary", NOWHERE, *quick]) == 1
    told = capsys.readouterr().out
    assert "primary 'localhost': answers" in told
    assert "secondary 'localhost': answers" in told
    assert "secondary 'localhost': does not answer" in told
    assert "5 wait in 2 backlog queues" in told
    assert "does not shrink" in told
    primary.stop()
    assert main(["pairing", "status", *pair, *quick]) == 0
    told = capsys.readouterr().out
    assert "primary 'localhost': does not answer" in told
    assert "5 wait in 2 backlog queues" in told
    secondary.stop()
    assert main(["pairing", "status", *pair, *quick, "--json"]) == 1
    status = json.loads(capsys.readouterr().out)
    assert "does not answer" in status["primary"]
    assert "does not answer" in status["secondaries"][0]["state"]
    assert status["waiting"] == 0


def test_queues_that_are_not_there(
    primary: LocalBroker, secondary: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair that was never made, or has another name."""
    assert main(["pairing", "status", *both(primary, secondary), "--name", "other"]) == 0
    told = capsys.readouterr().out
    assert "2 backlog queues are not there, as other/x-servicebus-transfer/0" in told
    assert "0 wait in 0 backlog queues" in told


def test_the_rate(
    primary: LocalBroker, secondary: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """What leaves between two looks, and the time to drain that follows from it."""
    primary.create_queue("orders")
    fill(primary, secondary, 30)

    def meanwhile(_: float) -> None:
        with Client(secondary.connection_string) as client:
            for index in range(2):
                path = f"localhost/x-servicebus-transfer/{index}"
                if waiting(secondary, path):
                    with client.receiver(path) as receiver:
                        some = receiver.receive(10, wait_s=20)
                        receiver.complete(some)
                        assert len(some) == 10

    options = PairingOptions(backlog_queue_count=2)
    pair = Pair(primary.connection_string, secondary.connection_string, options, None, None)
    found = survey(pair, 1.0, sleep=meanwhile)
    assert (found.waiting, found.rate > 0) == (20, True)
    assert found.seconds_to_drain == pytest.approx(20 / found.rate)
    _show(found)
    assert "leave a second, empty in 0:" in capsys.readouterr().out


def test_the_environment(
    primary: LocalBroker,
    secondary: LocalBroker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys need not be in the list of processes."""
    monkeypatch.setenv("TANDEM_PRIMARY", primary.connection_string)
    monkeypatch.setenv("TANDEM_SECONDARY", secondary.connection_string)
    assert main(["pairing", "status", "--during", "0.01"]) == 0
    assert "secondary 'localhost': answers" in capsys.readouterr().out


# --- the example, the outages ---------------------------------------------------------------------


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
    assert "the syphon killed 2 times" in ran.stdout
    assert "0 violations" in ran.stdout
