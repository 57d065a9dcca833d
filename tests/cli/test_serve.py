"""`tandem serve` with files: the emulator's, and one that changes. And what stands around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandembus.cli.codes import PROBLEM, UNREACHABLE, USAGE
from tandembus.client import Client, OutgoingMessage, subscription_path
from tandembus.testing import BrokerProcess
from tests.cli.conftest import Shell

EMULATORS_FILE = Path(__file__).with_name("Config.json")
EMULATORS_STRING = (
    "Endpoint=sb://127.0.0.1;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)


@pytest.mark.req("C2")
def test_instead_of_the_emulator(tmp_path: Path) -> None:
    """Its file, its key, and what its sample for Python does: send to `queue.1`, receive, complete.
    Only the port is another one: somebody may have 5672."""
    arguments = ("--config", str(EMULATORS_FILE), "--emulator")
    with BrokerProcess.start(tmp_path, arguments) as broker:
        connection_string = EMULATORS_STRING.replace("127.0.0.1", f"127.0.0.1:{broker.port}")
        with ServiceBusClient.from_connection_string(connection_string) as client:
            with client.get_queue_sender("queue.1") as sender:
                sender.send_messages(ServiceBusMessage("Hello"))
            with client.get_queue_receiver("queue.1") as receiver:
                (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
                assert str(message) == "Hello"
                receiver.complete_message(message)
        _check_topic(connection_string)


def _check_topic(connection_string: str) -> None:
    """Which subscription takes which message."""
    messages = [
        OutgoingMessage(
            "one",
            content_type="application/text",
            correlation_id="id1",
            subject="subject1",
            message_id="msgid1",
            reply_to="someQueue",
            reply_to_session_id="sessionId",
            session_id="session1",
            to="xyz",
        ),
        OutgoingMessage("two", properties={"prop1": "value1"}),
        OutgoingMessage("four", message_id="123456", properties={"userProp1": "value1"}),
    ]
    wanted = {1: [b"one"], 2: [b"two"], 3: [b"one", b"two", b"four"], 4: [b"four"]}
    with Client(connection_string) as client:
        with client.sender("topic.1") as sender:
            sender.send_all(messages).check()
        for number, bodies in wanted.items():
            found = client.browse(subscription_path("topic.1", f"subscription.{number}"))
            assert [message.body for message in found] == bodies
        assert found[0].to == "Entity"


@contextmanager
def served(folder: Path, file: Path, *arguments: str) -> Iterator[str]:
    """What it prints at its start."""
    command = [
        sys.executable, "-m", "tandembus.cli", "serve", str(folder), "--config", str(file),
        "--port", "0", *arguments,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        yield "".join(lines)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


@pytest.mark.req("C2")
def test_a_file_that_changes(tmp_path: Path, shell: Shell) -> None:
    """What is new is made; what differs is shown, and changed when that is asked for; nothing is
    deleted without being told."""
    file = tmp_path / "tandem.toml"
    data = tmp_path / "data"
    head = "[namespaces.shop.queues."
    where = (str(data), "--config", str(file))
    there = ("--folder", str(data))
    file.write_text(f"{head}orders]\nlock_duration = '30s'\n{head}old]\n")
    diff = shell("config", "diff", *where, code=PROBLEM)
    assert "create queue orders\n    LockDuration: 30s" in diff.out
    assert not data.exists(), "looking changes nothing"
    with served(data, file) as said:
        assert "serves 'shop'" in said
        assert "create queue orders" in said
        shell("config", "diff", *where)
        file.write_text(f"{head}orders]\nlock_duration = '45s'\n{head}new]\n")
        live = shell("config", "diff", *where, "--json", code=PROBLEM).json["shop"]
        assert [(each["verb"], each["path"]) for each in live] == [
            ("update", "orders"), ("create", "new"),
        ]  # fmt: skip
    diff = shell("config", "diff", *where, "--delete", code=PROBLEM)
    assert "LockDuration: 30s → 45s" in diff.out
    assert "delete queue old" in diff.out
    dry = shell("serve", *where, "--dry-run", "--apply", code=PROBLEM)
    assert "LockDuration: 30s → 45s" in dry.out
    with served(data, file) as said:
        assert "create queue new" in said
        assert "--apply would change it:\nupdate queue orders" in said
        assert shell("queue", "show", "orders", *there, "--json").json["LockDuration"] == "PT30S"
    with served(data, file, "--apply") as said:
        assert "update queue orders" in said
        assert shell("queue", "show", "orders", *there, "--json").json["LockDuration"] == "PT45S"
        assert [row[0] for row in shell("queue", "list", *there).lines] == ["new", "old", "orders"]
    with served(data, file, "--apply", "--delete") as said:
        assert "delete queue old" in said
        assert [row[0] for row in shell("queue", "list", *there).lines] == ["new", "orders"]
    file.write_text(f"{head}orders]\nrequires_session = true\n")
    cannot = shell("serve", *where, "--apply", "--port", "0", code=USAGE)
    assert "RequiresSession cannot be changed" in cannot.err
    assert "--delete is given with --apply" in shell("serve", *where, "--delete", code=USAGE).err


def test_commands_by_the_folder(tmp_path: Path, shell: Shell) -> None:
    """Whoever may read a folder needs no connection string; keys are printed when asked for."""
    data = tmp_path / "data"
    there = ("--folder", str(data))
    assert "no folder" in shell("queue", "list", *there, code=USAGE).err
    with BrokerProcess.start(data) as broker:
        shell("queue", "create", "q", *there)
        shell("send", "q", "x", *there)
        (row,) = shell("namespace", "list", str(data), "--json").json
        assert (row["name"], row["state"], row["address"]) == ("default", "served", broker.address)
        policies = shell("namespace", "policies", str(data))
        assert policies.lines == [["RootManageSharedAccessKey", "Manage, Send, Listen"]]
        assert broker.key not in shell("config", "show", str(data), "--json").out
        asked = shell("namespace", "connection-string", str(data)).out.strip()
        assert asked == broker.connection_string
        words = ("--tls", "--entity", "q")
        other = shell("namespace", "connection-string", str(data), *words).out.strip()
        assert other.endswith(f"SharedAccessKey={broker.key};EntityPath=q;")
        shell("namespace", "connection-string", str(data), "--policy", "none", code=USAGE)
        broker.kill()
        assert "No broker serves" in shell("queue", "list", *there, code=UNREACHABLE).err
        assert shell("namespace", "list", str(data)).lines[0][1] == "stopped"
        broker.restart()
        assert shell("peek", "q", *there, "--body").out == "x\n"


def test_no_key_in_the_journal(tmp_path: Path, shell: Shell) -> None:
    """Where systemd keeps what is printed, the connection string is not printed."""
    data, journal = tmp_path / "data", tmp_path / "journal"
    with journal.open("w") as out:
        found = os.fstat(out.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "tandembus.cli", "serve", str(data), "--port", "0"],
            stdout=out,
            env={**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"},
        )
    try:
        while "Ctrl-C" not in journal.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        key = json.loads((data / "policies.json").read_text())["policies"][0]["primary_key"]
        assert key not in journal.read_text()
        assert key in shell("namespace", "connection-string", str(data)).out
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_backup_of_a_broker_that_runs(tmp_path: Path, shell: Shell) -> None:
    """It goes on, and the copy can be served: with its messages and its keys."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with BrokerProcess.start(data) as broker:
        there = ("--connection-string", broker.connection_string)
        shell("queue", "create", "q", *there)
        shell("send", "q", "before", *there)
        assert shell("backup", str(data), str(copy), "--json").json["bytes"] > 0
        shell("send", "q", "after", *there)
        assert "not empty" in shell("backup", str(data), str(copy), code=PROBLEM).err
        key = broker.key
    assert (copy / "policies.json").stat().st_mode & 0o777 == 0o600
    with BrokerProcess.start(copy) as broker:
        assert broker.key == key
        assert shell("peek", "q", "--folder", str(copy), "--body").out == "before\n"
    shell("backup", str(data), str(tmp_path / "stopped"))
    assert "no problem found" in shell("store", "check", str(tmp_path / "stopped")).out


# --- doctor ---------------------------------------------------------------------------------------


def findings(shell: Shell, *words: str, code: int = 0) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for each in shell("doctor", *words, "--json", code=code).json:
        found.setdefault(each["check"], []).append(each)
    return found


@pytest.mark.req("C1")
def test_a_doctor_with_nothing_to_do(tmp_path: Path, shell: Shell) -> None:
    """Before the first start, while it is served, and after it."""
    data = tmp_path / "data"
    words = (str(data), "--port", "0")
    findings(shell, *words)
    assert not data.exists(), "it changes nothing"
    with BrokerProcess.start(data):
        assert "is served by process" in findings(shell, *words)["log"][0]["what"]
    found = findings(shell, *words)
    assert set(found) == {
        "versions", "configuration", "limits", "certificate", "clock", "keys", "disk", "log",
    }  # fmt: skip
    assert all(each["state"] == "well" for some in found.values() for each in some)
    assert "well\tlog: " in shell("doctor", *words).out


@pytest.mark.req("C1")
def test_what_a_doctor_finds(tmp_path: Path, shell: Shell) -> None:
    """Keys that others can read, a port that is taken, a log that is damaged and comes from the
    future: each with what to do."""
    data = tmp_path / "data"
    with BrokerProcess.start(data) as broker:
        broker.create_queue("q")
        shell("send", "q", "a needle", "--folder", str(data))
        port = str(broker.port)
        other = findings(shell, str(tmp_path / "other"), "--port", port, code=PROBLEM)
        assert "stop what has it" in other["ports"][0]["do"]
        mine = findings(shell, str(data), "--port", port)
        assert mine["ports"][0]["what"] == f"{port} is served by this broker"
    (data / "policies.json").chmod(0o644)
    (segment,) = (data / "log").glob("*.log")
    raw = bytearray(segment.read_bytes())
    raw[raw.find(b"a needle")] ^= 1
    segment.write_bytes(raw)
    os.utime(segment, (4_000_000_000, 4_000_000_000))
    found = findings(shell, str(data), "--port", "0", code=PROBLEM)
    assert found["keys"][0]["do"] == f"chmod 600 {data / 'policies.json'}"
    assert "tandem store repair" in found["log"][0]["do"]
    assert "in the future" in found["clock"][0]["what"]
    wrong = findings(shell, str(data), "--port", "99999", code=PROBLEM)
    assert "--port is between" in wrong["configuration"][0]["what"]


def test_a_short_measurement(shell: Shell) -> None:
    """With a broker of its own, which it leaves nothing of."""
    found = shell("bench", "--messages", "200", "--clients", "2", "--size", "10", "--json").json
    assert found["messages"] == 200
    assert found["sent_per_second"] > 0
    assert found["latency_ms_p99"] >= found["latency_ms_median"] > 0


# --- configuration shown --------------------------------------------------------------------------


def test_config_show_and_check(tmp_path: Path, shell: Shell) -> None:
    shown = shell("config", "show", "--config", str(EMULATORS_FILE), "--host", "::1").lines
    rows = {row[0]: row[1:] for row in shown if len(row) == 3}
    assert rows["host"] == ["::1", "--host"]
    assert rows["ports"] == ["5672", "default"]
    tree = shell("config", "show", "--config", str(EMULATORS_FILE), "--json").json
    assert tree["namespaces"][0]["name"] == "sbemulatorns"
    assert len(tree["namespaces"][0]["entities"]) == 6
    checked = shell("config", "check", "--config", str(EMULATORS_FILE)).out
    assert "'sbemulatorns' with 6 entities" in checked
    wrong = tmp_path / "Config.json"
    wrong.write_text(EMULATORS_FILE.read_text().replace('"LockDuration"', '"LockDurration"', 1))
    said = shell("config", "check", "--config", str(wrong), code=USAGE).err
    assert "did you mean 'LockDuration'?" in said
    assert json.loads(shell("config", "check", "--json").out)["file"] is None
