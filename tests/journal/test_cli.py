"""`tandem journal`: as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.journal_log import write_log
from tandembus.cli import main
from tests.journal.reading import table


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's data folder."""
    folder = tmp_path_factory.mktemp("data")
    write_log(folder / "log", 50, size=20, group=10)
    return folder


def test_run_once_and_status(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    command = ["journal", "run", str(data), "--out", out, "--namespace", "shop", "--once"]
    assert main(command) == 0
    assert "156 events" in capsys.readouterr().err
    assert main(["journal", "status", str(data), "--out", out, "--namespace", "shop"]) == 0
    said = capsys.readouterr().out
    assert "156 events in 1 files of 1 hours" in said
    assert ": 0 bytes behind" in said
    assert "held back from" in said
    assert main([*command, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    arguments = ["journal", "status", str(data), "--out", out, "--namespace", "shop", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == table(tmp_path / "out", "shop").num_rows == 156
    assert found["position"] == found["end"] == found["held"]


@pytest.mark.parametrize("tool", ["run", "status"])
def test_a_wrong_folder_is_one_line(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nothing")
    assert main(["journal", tool, missing, "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"tandem: there is no log in {missing}\n"


def test_status_without_a_journal(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["journal", "status", str(data), "--out", str(tmp_path)]) == 1
    assert "there is no journal of 'default'" in capsys.readouterr().err


def test_without_pyarrow_it_says_what_to_install(data: Path, tmp_path: Path) -> None:
    """And the help works."""
    code = (
        "import sys; sys.modules['pyarrow'] = None; from tandembus.cli import main; "
        f"sys.exit(main(['journal', 'run', {str(data)!r}, '--out', {str(tmp_path)!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == "tandem: This needs pyarrow: pip install 'tandembus[journal]'\n"
