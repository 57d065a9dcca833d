"""docs/operating.md, tls.md, celery.md and wire-extensions.md: what they say is so."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandembus.cli import main, parser
from tandembus.client import Client, OutgoingMessage
from tandembus.config.server import OPTIONS
from tandembus.server import metrics
from tandembus.testing import LocalBroker
from tests.unit.server.exposition import parse

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as running:
        running.create_queue("orders")
        yield running


# --- operating ------------------------------------------------------------------------------------


def test_the_three_paths(broker: LocalBroker) -> None:
    """The commands as they stand there, at this broker's port."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    script = blocks("operating.md", "bash")[0].replace("localhost:5672", broker.address)
    result = subprocess.run(
        ["bash", "-ec", script],
        env={**os.environ, "KEY": broker.key},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert '"healthy"' in result.stdout
    assert "tandem_build_info" in result.stdout


def test_every_metric_is_explained(broker: LocalBroker) -> None:
    """The page names those that there are, and no others."""
    named = set(re.findall(r"tandem_[a-z_]*[a-z]", page("operating.md")))
    broker.create_queue("levels", PriorityLevels=3)
    shown = set(parse(broker.run(_scraped(broker)).decode()))
    assert named - {"tandem_certificate_expiry_timestamp_seconds"} == shown
    for name, _, help_text in metrics.ENTITY:
        row = next(r for r in page("operating.md").splitlines() if f"| `tandem_{name}` |" in r)
        azure = row.split("|")[2].strip()
        assert not azure or help_text.startswith(azure), row


async def _scraped(broker: LocalBroker) -> bytes:
    assert broker.server is not None
    connections = broker.server._listener.oversight.connections
    connections.http[200] += 0
    return await metrics.render([broker.server.broker], connections)


def test_the_flags_have_the_defaults_of_the_page() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \| ([0-9,]+) \|", page("operating.md"), re.MULTILINE)
    assert len(rows) >= 6
    by_flag = {option.flag_name: option for option in OPTIONS}
    for flag, default in rows:
        assert f"({default})" in by_flag[flag].help, flag


def test_the_line_of_the_log_is_json() -> None:
    (example,) = blocks("operating.md", "json")
    assert {"time", "level", "logger", "message", "tracking_id", "trace"} <= json.loads(
        example
    ).keys()


# --- packaging ------------------------------------------------------------------------------------


def test_the_unit_for_systemd() -> None:
    """Its command is one that we know, and it waits longer for the end than a drain takes."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "packaging" / "tandem.service")
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    options = parser().parse_args(words[1:])
    assert words[0] == "/opt/tandem/bin/tandem"
    assert str(options.folder) == "/var/lib/tandem"
    assert service["Type"] == "notify"
    assert int(service["TimeoutStopSec"]) > 10
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "true"


def test_the_image() -> None:
    """What it runs is one of our commands, not as root, and its health is what /ready says."""
    lines = (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    steps = dict(re.findall(r"^([A-Z]+) (.*)$", lines, re.MULTILINE))
    assert steps["USER"] == "tandem"
    assert json.loads(steps["ENTRYPOINT"]) == ["tandem"]
    options = parser().parse_args(json.loads(steps["CMD"]))
    assert str(options.folder) == steps["VOLUME"]
    (probe,) = re.findall(r"CMD (\[.*ready.*\])", lines)
    compile(json.loads(probe)[2], "probe", "exec")
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", lines, re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name


# --- TLS and Celery -------------------------------------------------------------------------------


def test_the_commands_of_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate is made, and the line to serve with is one that can work."""
    pytest.importorskip("cryptography")
    monkeypatch.chdir(tmp_path)
    cert, serve = (shlex.split(block) for block in blocks("tls.md", "bash"))
    assert main(cert[1:]) == 0
    options = parser().parse_args(serve[1:])
    assert Path(options.certificate).exists()
    assert Path(options.private_key).exists()


def test_the_commands_of_celery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round trip itself is tests/interop/test_celery.py."""
    pytest.importorskip("cryptography")
    pytest.importorskip("celery")
    monkeypatch.chdir(tmp_path)
    setup, trust, worker = blocks("celery.md", "bash")
    cert, serve = (shlex.split(line) for line in setup.splitlines())
    assert main(cert[1:]) == 0
    assert parser().parse_args(serve[1:]).standard_ports
    (tmp_path / "bundle.pem").write_text("")
    (tmp_path / "python").write_text("#!/bin/sh\necho bundle.pem\n")
    (tmp_path / "python").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", trust], env={**os.environ, "PATH": path}, check=True, timeout=60)
    assert (tmp_path / "bundle.pem").read_text() == (tmp_path / "certs" / "ca.pem").read_text()
    (program,) = blocks("celery.md", "python")
    (tmp_path / "tasks.py").write_text(program)
    code = "import tasks; assert tasks.add(1, 2) == 3; print(tasks.app.conf.broker_url)"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.startswith("azureservicebus://")
    assert worker.startswith("celery -A tasks worker")


# --- the wire -------------------------------------------------------------------------------------


def test_the_programs_of_the_wire(broker: LocalBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other: the first leaves a delayed message, the second finds the other."""
    with Client(broker.connection_string) as client, client.sender("orders") as sender:
        sender.send(b"one")
        sender.send(OutgoingMessage(b"two", properties={"region": "eu", "amount": 200}))
    programs = [
        each
        for each in blocks("wire-extensions.md", "python")
        if "abandon" in each or "search(" in each
    ]
    assert len(programs) == 2
    for program in programs:
        preamble = f"connection_string = {broker.connection_string!r}\n"
        told = subprocess.run(
            [sys.executable, "-W", "error", "-c", preamble + program],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    assert told.stdout.startswith("2 ")
    with Client(broker.connection_string) as client:
        assert [each.body for each in client.search("orders", states=["delayed"])] == [b"one"]
