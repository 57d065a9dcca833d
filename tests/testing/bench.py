"""What a namespace for each test costs: `make bench-testing`.

A file of tests as a user has it, run by pytest as a user runs it: each test gets a fresh namespace,
makes a queue, sends and receives a message. Beside it the same number of empty tests, which is what
pytest takes itself. Counted from the beginning of each test to its end, fixtures included; the
first one, which starts the broker, is told apart.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
EMPTY: Final = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_nothing(number):
    pass
"""
FRESH: Final = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_a_fresh_namespace(number, tandem_namespace):
    tandem_namespace.create_queue("orders")
"""
USED: Final = """
import pytest
from tandembus.client import Client

@pytest.mark.parametrize("number", range({count}))
def test_a_message(number, tandem_namespace):
    tandem_namespace.create_queue("orders")
    with Client(tandem_namespace.connection_string) as client:
        with client.sender("orders") as sender:
            sender.send(b"x")
        with client.receiver("orders") as receiver:
            (message,) = receiver.receive()
            assert message.sequence_number == 1
            receiver.complete(message)
"""
STOPWATCH: Final = """
import time

began, took = {}, []

def pytest_runtest_logstart(nodeid):
    began[nodeid] = time.perf_counter()

def pytest_runtest_logfinish(nodeid):
    took.append(time.perf_counter() - began[nodeid])

def pytest_terminal_summary(terminalreporter):
    first, *others = took
    terminalreporter.write_line(f"took {first:.6f} {sum(others):.6f} {len(took)}")
"""
_TOOK: Final = re.compile(r"^took ([0-9.]+) ([0-9.]+) (\d+)$", re.MULTILINE)


def seconds(tests: str, count: int) -> tuple[float, float]:
    """Of the first test, and of all others together."""
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        (Path(folder) / "test_it.py").write_text(tests.format(count=count), encoding="utf-8")
        (Path(folder) / "conftest.py").write_text(STOPWATCH, encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_named()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=3_600,
            check=False,
        )
    found = _TOOK.search(result.stdout)
    if result.returncode or found is None or int(found[3]) != count:
        raise RuntimeError(result.stdout + result.stderr)
    return float(found[1]), float(found[2])


def _named() -> list[str]:
    """The plugin, if it is not installed as an entry point here."""
    from importlib.metadata import entry_points

    known = any(it.value == "tandembus.testing.plugin" for it in entry_points(group="pytest11"))
    return [] if known else ["-p", "tandembus.testing.plugin"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000, help="how many tests (1,000)")
    count = parser.parse_args().count
    rows = (
        ("empty tests", EMPTY),
        ("a fresh namespace and a queue", FRESH),
        ("and a message sent and received", USED),
    )
    for name, tests in rows:
        first, others = seconds(tests, count)
        each_ms = others / (count - 1) * 1000
        print(f"{count:,} tests, {name}: {each_ms:.2f} ms a test, the first {first * 1000:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
