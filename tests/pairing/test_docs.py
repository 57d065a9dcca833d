"""docs/pairing.md is run: its programs as they stand there, its commands as one types them.

(`make outage`, `make outage-hours` and the example have tests of their own, in short.)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandembus.client import Client
from tandembus.pairing import PairingOptions
from tandembus.testing import LocalBroker
from tests.house.test_docs import commands_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/pairing.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.req("N1")
@pytest.mark.parametrize("number", range(2))
def test_the_programs(
    primary: LocalBroker, secondary: LocalBroker, number: int, tmp_path: Path
) -> None:
    """A sender, blocking and with asyncio."""
    assert len(PROGRAMS) == 2
    primary.create_queue("orders")
    preamble = (
        f"primary = {primary.connection_string!r}\nsecondary = {secondary.connection_string!r}\n"
    )
    (tmp_path / "program.py").write_text(preamble + PROGRAMS[number])
    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    entities = Client(primary.connection_string).entities
    straight = entities.get_queue("orders").counts["ActiveMessageCount"]
    assert straight == (number == 0)
    assert ("backlog_sends=1" in ran.stdout) == (number == 1)


@pytest.mark.req("N11")
def test_the_commands(primary: LocalBroker, secondary: LocalBroker, tmp_path: Path) -> None:
    """Each `tandem …`; a service is stopped with Ctrl-C."""
    commands = [words for words in commands_of(PAGE) if words[0] == "tandem"]
    assert [words[1] for words in commands] == ["syphon", "pairing", "pairing"]
    places = {"$PRIMARY": primary.connection_string, "$SECONDARY": secondary.connection_string}
    for words in commands:
        running = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tandembus.cli",
                *(places.get(word, word) for word in words[1:]),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdout is not None
        if words[1] == "syphon":
            assert "Ctrl-C stops it" in running.stdout.readline()
            running.send_signal(signal.SIGINT)
        told, problems = running.communicate(timeout=120)
        assert running.returncode == 0, told + problems
        assert problems == ""


def test_the_options() -> None:
    """The table has every option."""
    table = PAGE[PAGE.index("## Options") :]
    for name in PairingOptions.__slots__:
        assert f"`{name}`" in table, name
