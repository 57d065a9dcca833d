"""The example of the pattern runs, both ways."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandembus.testing import LocalBroker

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "priority_pattern"


def run(name: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE / name), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.req("P9")
def test_a_topic_and_two_subscriptions() -> None:
    """Two pools by a file of settings, batches with one call, and each message with its worker."""
    output = run("story.py")
    assert output.count("HighWorker: high ") == output.count("LowWorker: low ") == 10
    assert output.endswith("done: 10 high, 10 low\n")


@pytest.mark.req("P9")
@pytest.mark.req("P2")
def test_one_native_priority_queue() -> None:
    """The same sender; the queue gives the levels, and is made over the wire."""
    with LocalBroker.start() as broker:
        output = run("native.py", broker.connection_string)
    assert output.count("OrderWorker: ") == 20
    assert output.endswith("all high messages first\n")
