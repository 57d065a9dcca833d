"""The plugin for pytest: fixtures that are there, and an import that costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEST = """
from tandembus.client import Client


def test_it(tandem_broker, tandem_connection_string, tandem_clock):
    tandem_broker.create_queue("orders", LockDuration="PT1M")
    with Client(tandem_connection_string) as client, client.sender("orders") as sender:
        sender.send(b"x")
        receiver = client.receiver("orders")
        assert receiver.receive()
        tandem_clock.advance(minutes=1)
        assert receiver.receive()


def test_it_is_the_same_broker(tandem_broker):
    with Client(tandem_broker.connection_string) as client:
        assert client.entities.get_queue("orders")


def test_a_namespace_of_its_own(tandem_namespace):
    tandem_namespace.create_queue("orders")
    tandem_namespace.clock.advance(days=1)
    with Client(tandem_namespace.connection_string) as client:
        assert client.browse("orders") == []


def test_a_process(tandem_process):
    tandem_process.create_queue("orders")
    tandem_process.clock.advance(days=1)
    with Client(tandem_process.connection_string) as client, client.sender("orders") as sender:
        sender.send(b"x")
    tandem_process.kill()
    tandem_process.restart()
    with Client(tandem_process.connection_string) as client:
        assert len(client.browse("orders")) == 1
    tandem_process.reset()
"""


def _python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_fixtures(tmp_path: Path) -> None:
    """A user's test file, with warnings as errors: nothing is left open."""
    (tmp_path / "test_orders.py").write_text(TEST)
    result = _python(
        "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *_plugin(tmp_path),
        cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout


def _plugin(folder: Path) -> list[str]:
    """Named, if it is not installed as an entry point here."""
    code = (
        "from importlib.metadata import entry_points; "
        "found = entry_points(group='pytest11'); "
        "print(any(it.value == 'tandembus.testing.plugin' for it in found))"
    )
    is_installed = _python("-c", code, cwd=folder).stdout.strip() == "True"
    return [] if is_installed else ["-p", "tandembus.testing.plugin"]


def test_the_import_is_light(tmp_path: Path) -> None:
    """pytest loads it in every run; the server comes with the first test that asks for it."""
    code = (
        "import sys; before = set(sys.modules); import pytest; ours = set(sys.modules); "
        "import tandembus.testing.plugin; print(*sorted(set(sys.modules) - ours))"
    )
    result = _python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    loaded = result.stdout.split()
    assert set(loaded) == {"tandembus", "tandembus.testing", "tandembus.testing.plugin"}


def test_names_of_the_kit(tmp_path: Path) -> None:
    """All that it promises is there, and nothing else."""
    code = (
        "import tandembus.testing as kit\n"
        "for name in kit.__all__: assert getattr(kit, name).__name__ == name\n"
        "try: kit.Nothing\n"
        "except AttributeError as error: print(error)"
    )
    result = _python("-c", code, cwd=tmp_path)
    assert "no attribute 'Nothing'" in result.stdout, result.stderr
