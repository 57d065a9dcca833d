"""The programs in the README, docs/client.md and docs/testing.md are run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.testing import LocalBroker

ROOT = Path(__file__).resolve().parents[2]


def programs(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _run(*arguments: str, cwd: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("number", range(2))
def test_the_clients_page(number: int, tmp_path: Path) -> None:
    with LocalBroker.start() as broker:
        broker.create_queue("orders")
        preamble = f"connection_string = {broker.connection_string!r}\n"
        (tmp_path / "program.py").write_text(preamble + programs("docs/client.md")[number])
        _run("program.py", cwd=tmp_path)


def test_the_first_page(tmp_path: Path) -> None:
    """The program of the README, with the official SDK."""
    pytest.importorskip("azure.servicebus")
    (program,) = programs("README.md")
    with LocalBroker.start() as broker:
        preamble = f"connection_string = {broker.connection_string!r}\n"
        (tmp_path / "program.py").write_text(preamble + program)
        _run("program.py", cwd=tmp_path)


def test_the_testing_page(tmp_path: Path) -> None:
    """Its first program is a file of tests, the second one a plain program."""
    pytest.importorskip("azure.servicebus")
    tests, program = programs("docs/testing.md")
    (tmp_path / "test_orders.py").write_text(tests)
    (tmp_path / "program.py").write_text(program)
    code = (
        "from importlib.metadata import entry_points; import sys; "
        "sys.exit(not any(it.value == 'tandem.testing.plugin' "
        "for it in entry_points(group='pytest11')))"
    )
    is_installed = not subprocess.run([sys.executable, "-c", code], check=False).returncode
    named = [] if is_installed else ["-p", "tandem.testing.plugin"]
    _run("-m", "pytest", "-q", "-p", "no:cacheprovider", *named, cwd=tmp_path)
    _run("program.py", cwd=tmp_path)
