"""A table on a terminal, plain lines in a pipe, JSON when asked; questions before what is final."""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tandembus.cli.output import confirm, counted, print_pairs, print_rows, progress
from tandembus.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import argparse
from tandembus.cli.output import print_rows, progress
options = argparse.Namespace(json=False)
with progress("working", 3) as step:
    step(3)
print_rows(options, ("name", "active_messages"), [("orders", 1234567), ("mail", None)])
"""


def on_terminal(program: str) -> str:
    """What a program writes to a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65_536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(master)
    assert process.wait(60) == 0
    return b"".join(chunks).decode()


@pytest.mark.parametrize(
    ("count", "message", "entity"),
    [
        (0, "0 messages", "0 entities"),
        (1, "1 message", "1 entity"),
        (2_000, "2,000 messages", "2,000 entities"),
    ],
)
def test_one_and_many(count: int, message: str, entity: str) -> None:
    assert counted(count, "message") == message
    assert counted(count, "entity", "entities") == entity


@pytest.mark.req("C1")
def test_on_a_terminal() -> None:
    shown = on_terminal(PROGRAM)
    assert "working" in shown
    assert "active messages" in shown
    assert "1,234,567" in shown
    assert "─" in shown


def test_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Tabs, no heading, no commas in numbers; a tab or a new line in a value makes no new field."""
    plain = argparse.Namespace(json=False)
    print_rows(plain, ("name", "count"), [("a\tb\nc", 1_234), (None, True)])
    with progress("working", None) as step:
        step(5)
    out, err = capsys.readouterr()
    assert out == "a b c\t1234\n-\ttrue\n"
    assert err == "", "short work says nothing"
    print_pairs(plain, {"name": "a", "count": 2})
    assert capsys.readouterr().out == "name\ta\ncount\t2\n"


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(argparse.Namespace(json=True), ("name", "count"), [("ä", 1)])
    assert capsys.readouterr().out == '[\n  {\n    "name": "ä",\n    "count": 1\n  }\n]\n'


def test_long_work_in_a_pipe_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 1.0, 6.0, 6.0, 7.0])
    monkeypatch.setattr("tandembus.cli.output.time.monotonic", lambda: next(now))
    with progress("sending", 1_000) as step:
        step(10)
        step(20)
        step(30)
    assert capsys.readouterr().err == "sending: 30 of 1,000\n"


def test_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal nobody can be asked: then --yes is needed."""
    with pytest.raises(ArgumentError, match="Delete it\\? Say --yes"):
        confirm(argparse.Namespace(yes=False), "Delete it?")
    confirm(argparse.Namespace(yes=True), "Delete it?")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, agrees in (("y", True), ("", False), ("no", False)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        if agrees:
            confirm(argparse.Namespace(yes=False), "Delete it?")
        else:
            with pytest.raises(ArgumentError, match="Nothing was done"):
                confirm(argparse.Namespace(yes=False), "Delete it?")
