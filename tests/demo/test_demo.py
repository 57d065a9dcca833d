"""`make demo`, as the README has it, without its report (which the tests of Spark make)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.py"


@pytest.mark.req("N9")
@pytest.mark.req("P1")
def test_the_demo_checks_what_it_shows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DEMO, "--folder", tmp_path, "--no-report"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every order exactly once" in done.stdout
    assert "is failed over" in done.stdout
    assert done.stderr == ""
