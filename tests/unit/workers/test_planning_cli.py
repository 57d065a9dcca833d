"""`tandem priority simulate`: plans from files and flags, and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tandembus.cli import main
from tandembus.errors import ArgumentError
from tandembus.workers.options import Target
from tandembus.workers.planning import Plan, PlannedLevel, Service
from tandembus.workers.planning_file import read_plan

FILE = """
workers = 2
aging_s = 5
prefetch = 2
look_ms = 50
trip_ms = 1.5
seconds = 100
warm_s = 5
seed = 7
forms = ["strict", "aged"]

[[level]]
name = "high"
rate = 4
service = "exp:0.1"
weight = 3
target = { within_s = 1, percent = 95 }

[[level]]
name = "low"
rate = 3
service = [0.05, 0.25]
"""

FLAGS = [
    "--level",
    "high,rate=4,service=exp:0.1,weight=3,within_s=1,percent=95",
    "--level",
    "low,rate=3,service=0.15",
    "--workers=2",
    "--seconds=100",
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(FILE)
    return path


def test_every_key(file: Path) -> None:
    """What the file says is the plan; what is given beside it goes before."""
    high = PlannedLevel(
        "high", 4, Service((0.1,), True), weight=3, target=Target(within_s=1, percent=95)
    )
    low = PlannedLevel("low", 3, Service((0.05, 0.25)))
    plan = Plan((high, low), 2, 5, 2, 50, 1.5, 100, 5, 7, ("strict", "aged"))
    assert read_plan(file, [], {}) == plan
    other = read_plan(file, ["only,rate=1,service=2"], {"seed": 8, "workers": 3})
    assert other.levels == (PlannedLevel("only", 1, Service((2.0,))),)
    assert (other.seed, other.size, other.aging_s) == (8, 3, 5)


def test_measured_times_come_from_a_file_beside_it(file: Path) -> None:
    (file.parent / "times.txt").write_text("0.1\n0.2\n0.6\n")
    file.write_text(FILE.replace("[0.05, 0.25]", '"file:times.txt"'))
    assert read_plan(file, [], {}).levels[1].service == Service((0.1, 0.2, 0.6))
    (file.parent / "times.txt").write_text("0.1\nsoon\n")
    with pytest.raises(ArgumentError, match=r"times\.txt: could not convert"):
        read_plan(file, [], {})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "rate = 4",
            "rat = 4",
            r"plan.toml: level 'high': unknown key 'rat' \(did you mean",
        ),
        ("rate = 4", "", "plan.toml: level 'high': rate is missing"),
        ("rate = 4", "rate = 0", "plan.toml: level 'high': rate is above 0"),
        ("exp:0.1", "gauss:0.1", "plan.toml: level 'high': service is seconds"),
        ("[0.05, 0.25]", "true", "level 'low': service is a number, not True"),
        ("[0.05, 0.25]", "[]", "level 'low': service: no time is given"),
        ("within_s = 1", "within_s = -1", "level 'high': target: within_s is above 0"),
        ('"aged"', '"fair"', "plan.toml: there is no form 'fair': strict, weighted"),
        ("workers = 2", "", "plan.toml: workers is missing"),
        ("[[level]]", "[[", "plan.toml: "),
    ],
)
def test_what_is_wrong_is_named(file: Path, old: str, new: str, words: str) -> None:
    assert old in FILE
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ArgumentError, match=words):
        read_plan(file, [], {})


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("high,rate=x,service=1", "--level high: rate is a number, not 'x'"),
        ("rate=1,service=1", "--level rate=1,service=1: the name comes first"),
        ("high,rate", "--level high: 'rate' is no key=value"),
        ("high,rate=1", "--level 'high': service is missing"),
        ("high,rate=1,service=1,speed=3", "--level 'high': unknown key 'speed'"),
    ],
)
def test_what_is_wrong_in_a_flag_is_named(level: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        read_plan(None, [level], {"workers": 1})


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """All orders side by side, and both kinds of pools; the same again for the same seed."""
    assert main(["priority", "simulate", *FLAGS]) == 0
    output, warned = capsys.readouterr()
    assert warned == ""
    lines = output.splitlines()
    assert lines[0].startswith("7 messages/s keep 0.85 of 2 workers busy; simulated are 100 s")
    rows = [line.split() for line in lines[4:]]
    forms = [row[0] for row in rows[::2]]
    assert forms == ["strict", "weighted", "aged", "one-pool", "pool-a-level"]
    assert [row[0] for row in rows[1::2]] == ["low"] * 5
    assert all("/95" in line for line in lines[4::2])
    assert main(["priority", "simulate", *FLAGS]) == 0
    assert capsys.readouterr().out == output


def test_json_and_its_warnings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An overload is said beside the figures, and in them."""
    assert main(["priority", "simulate", str(file), "--json", "--workers=1", "--form=strict"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["seed"] == 7
    assert found["workers"] == 1
    (form,) = found["forms"]
    assert form["form"] == "strict"
    high, low = form["levels"]
    assert high["mean_s"] < low["mean_s"]
    assert {"p50_s", "p95_s", "p99_s", "max_s", "utilization", "attained_percent"} <= high.keys()
    assert found["warnings"] == []
    assert main(["priority", "simulate", str(file), "--level=a,rate=20,service=0.1"]) == 0
    assert "warning: overloaded: 2.00 workers are kept busy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no level: give a file, or --level for each"),
        ([*FLAGS, "--plot=x.pdf"], "a picture is .png or .svg, not 'x.pdf'"),
        ([*FLAGS, "--plot=/nowhere/x.png"], "there is no folder /nowhere"),
        ([*FLAGS, "--form=fair"], "there is no form 'fair'"),
    ],
)
def test_a_wrong_plan_is_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["priority", "simulate", *arguments]) == 2
    output, said = capsys.readouterr()
    assert output == ""
    assert said.startswith("tandem: ")
    assert words in said


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"waits.{suffix}"
    assert main(["priority", "simulate", *FLAGS, f"--plot={path}"]) == 0
    begin = path.read_bytes()[:100]
    assert begin.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_without_matplotlib_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "tandembus.workers.planning_plot", raising=False)
    assert main(["priority", "simulate", *FLAGS, f"--plot={tmp_path / 'x.png'}"]) == 2
    assert "pip install 'tandembus[plot]'" in capsys.readouterr().err
