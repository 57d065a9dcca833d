"""`tandem pipeline` and `tandem report` without Spark: what they say, and what they read."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tandembus.cli import main
from tandembus.errors import ArgumentError
from tandembus.spark import cli

ROOT = Path(__file__).resolve().parents[3]

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pyarrow", "pandas", "plotly", "numpy"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Blocked())
from tandembus.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line of who has installed `tandem` and nothing more."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "journal", "--out", "out"),
        ("pipeline", "run", "rates", "journal", "--out", "out"),
        ("pipeline", "run", "syphon", "--primary", "x", "--secondary", "y"),
    ],
)
def test_what_to_install_is_said(arguments: tuple[str, ...]) -> None:
    found = without_spark(*arguments)
    assert found.returncode == 2
    assert "pip install 'tandembus[spark]'" in found.stderr
    assert "Traceback" not in found.stderr


def test_lists_and_help_need_no_spark() -> None:
    found = without_spark("pipeline", "list", "--json")
    assert found.returncode == 0, found.stderr
    names = [each["name"] for each in json.loads(found.stdout)]
    assert names == [
        "rates", "latency", "states", "targets", "ledger", "autoscale", "dead-letters", "outage",
        "audit", "capture", "replay", "syphon",
    ]  # fmt: skip
    assert without_spark("pipeline", "run", "capture", "--help").returncode == 0


def test_the_list_is_that_of_the_pipelines() -> None:
    """The command line has its own list, because it must not import Spark for it."""
    from tandembus.spark.pipelines.view import PIPELINES

    assert {name: each.summary for name, each in PIPELINES.items()} == cli.JOURNAL


def test_prices_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "prices"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["currency"] == "USD"


def test_triggers() -> None:
    assert cli.trigger_of("available-now") == {"availableNow": True}
    assert cli.trigger_of("10s") == {"processingTime": "10 seconds"}
    assert cli.trigger_of("2m") == {"processingTime": "120 seconds"}
    with pytest.raises(ArgumentError, match="--trigger is available-now"):
        cli.trigger_of("soon")


def test_times_and_lengths() -> None:
    assert cli._seconds("90") == cli._seconds("90s") == 90
    assert cli._seconds("2h") == 7200
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert cli._time("2026-01-31T12:00:00") == cli._time("2026-01-31T13:00:00+01:00") == noon
    for read, text in ((cli._seconds, "0s"), (cli._seconds, "1y"), (cli._time, "noon")):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)
