"""The programs and the file of docs/priority.md are run, or read, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tandem.testing import LocalBroker
from tandem.workers.pools_file import read_pools

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "priority.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_programs(tmp_path: Path) -> None:
    """The first has a high and a low message, and does the high one first."""
    program, preemption = blocks("python")
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


def test_the_file() -> None:
    """It is one that `tandem workers` takes."""
    (text,) = blocks("toml")
    assert [entry.options.name for entry in read_pools(text).pools] == ["mail", "reports"]
