"""The `repeat:` line of a harness: the command in it finds the same failure, alone."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.powercut import main as powercut
from tests.repeat import repeat
from tools.harnesses import REPEAT
from tools.search import SEARCHED

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


def expanded(command: str) -> list[str]:
    """What `make` would run for it, on the Python that runs the tests."""
    dry = [*shlex.split(command), "-n", "-o", ".venv/.ready"]
    printed = subprocess.run(
        dry, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    line = next(line for line in printed.stdout.splitlines() if " -m tests." in line)
    return [sys.executable, *shlex.split(line)[1:]]


def output(command: list[str]) -> tuple[int, str]:
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def failing(text: str, pattern: str) -> list[str]:
    return re.findall(pattern, text, re.MULTILINE)


MOST_SEEDS = 30
"""Seeds that are tried until one meets the fault: which do changes with the code."""


def met(command: str, parts: str) -> tuple[str, str]:
    """The output of the first seed that meets the fault and names a command with these parts, and
    the command. A failure that names none is not passed over."""
    for seed in range(1, MOST_SEEDS + 1):
        code, text = output(expanded(command.format(seed=seed)))
        assert code in (0, 1), text
        if code == 0:
            continue
        named = text.splitlines()[-1]
        assert named.startswith(REPEAT), text
        if re.search(parts.format(seed=seed), named):
            return text, named
    pytest.fail(f"{MOST_SEEDS} seeds did not meet the fault as wanted; the last:\n{text}")


@pytest.mark.parametrize(
    ("command", "failure", "parts"),
    [
        (
            'make model RUNS=4 STEPS=50 ARGS="--seed {seed} --canary aging_is_forgotten"',
            r"^(?:.*Divergence: .*|DIVERGENCE, seed .*|  +core: .*|  +model: .*|  \d+: .*)$",
            r"RUNS=1 STEPS=50 .*--seed \d+ --canary aging_is_forgotten",
        ),
        (
            'make powercut IMAGES=40 FLIPS=0 ARGS="--seed {seed} --no-sync --only engine"',
            r"^  (seed \d+, number \d+: .*)$",
            # Not the first image, which any command with this seed would find.
            r"IMAGES=1 FLIPS=0 .*--seed {seed} --only engine --number [1-9]\d* --no-sync",
        ),
        (
            'make powercut IMAGES=60 FLIPS=0 ARGS="--seed {seed} --no-sync --only store"',
            r"^  (seed \d+, number \d+: .*)$",
            r"IMAGES=1 FLIPS=0 .*--seed {seed} --only store --number [1-9]\d* --no-sync",
        ),
        (
            'make simulate SEEDS=8 HOURS=0.3 ARGS="--seed {seed} --no-sync"',
            r"^seed \d+ .*\n  .*$",
            r"SEEDS=1 HOURS=0.3 .*--seed \d+ --no-sync",
        ),
    ],
    ids=["model", "engine images", "store images", "simulate"],
)
def test_the_command_finds_the_same_failure(command: str, failure: str, parts: str) -> None:
    """A run with a fault in it fails and names a command; that one fails in the same way, with
    nothing else in it, and names itself."""
    text, named = met(command, parts)
    code, again = output(expanded(named.removeprefix(REPEAT)))
    assert code == 1, again
    assert again.splitlines()[-1] == named
    found = failing(again, failure)
    assert found
    assert found == failing(text, failure)[: len(found)]


@pytest.mark.parametrize("target", [each.target for each in SEARCHED])
def test_every_harness_takes_the_first_seed(target: str) -> None:
    """`--seed`, one name with one meaning; and all of the variables of the line exist."""
    code, text = output([*expanded(f'make {target} ARGS="--seed 1 --help"')])
    assert code == 0, text
    assert re.search(r"--seed SEED +the first seed", text), text


def test_a_blind_harness_names_its_canaries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A canary that is not found is a failure, too."""
    monkeypatch.setattr("tests.crash.powercut.CANARIES", (("image", 1, "without a fault"),))
    assert powercut(["--images", "0", "--flips", "0", "--seed", "5"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == 'repeat: make powercut IMAGES=0 FLIPS=0 ARGS="--seed 5"'


def test_the_line_survives_a_shell() -> None:
    """It is pasted as it stands."""
    with pytest.raises(ValueError, match="quotes"):
        repeat("model", "--canary", "two words")
