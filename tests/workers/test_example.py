"""The example of the pattern runs, both ways."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.core.commands import CreateQueue
from tandem.testing import LocalBroker

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
def test_one_native_priority_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sender; the queue gives the levels. It is made in the broker's process, because
    levels cannot be set over the network yet."""
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in ("story", "priority_workers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    settings = runpy.run_path(str(EXAMPLE / "native.py"))["SETTINGS"]
    for name in ("story", "priority_workers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with LocalBroker.start() as broker:
        assert broker.server is not None
        broker._run(broker.server.broker.engine.execute(CreateQueue("orders", settings)))
        assert run("native.py", broker.connection_string, "orders").endswith(
            "all high messages first\n"
        )
