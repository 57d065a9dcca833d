"""The programs and the file of docs/priority.md are run, or read, as they stand there."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tandembus.cli import main
from tandembus.testing import LocalBroker
from tandembus.workers.pools_file import read_pools

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "priority.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_programs(tmp_path: Path) -> None:
    """The first has a high and a low message, and does the high one first."""
    program, preemption = [each for each in blocks("python") if "tandembus.workers" in each]
    with LocalBroker.start() as broker:
        broker.create_queue("mail-high")
        broker.create_queue("mail-low")
        path = tmp_path / "program.py"
        path.write_text(
            f"connection_string = {broker.connection_string!r}\n{program}\n{preemption}"
        )
        result = subprocess.run(
            [sys.executable, str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == "high urgent\nlow the last one\n"


def tables(head: str) -> str:
    """The one block of TOML that has this."""
    (text,) = [block for block in blocks("toml") if head in block]
    return text


def test_the_file() -> None:
    """It is one that `tandem workers` takes."""
    found = read_pools(tables("[[pool]]"))
    assert [entry.options.name for entry in found.pools] == ["mail", "reports"]


def test_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the page says that the simulator prints is what it prints."""
    (block,) = [each for each in blocks("console") if "priority simulate" in each]
    command, _, shown = block.partition("\n")
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(tables("[[level]]"))
    arguments = shlex.split(command)[2:]
    if importlib.util.find_spec("matplotlib") is None:
        arguments = arguments[: arguments.index("--plot")]
    assert main(arguments) == 0
    output, warned = capsys.readouterr()
    assert shown == output + warned.replace("the picture is in waits.png\n", "")
