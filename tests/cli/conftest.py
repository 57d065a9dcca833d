"""Commands against a real broker, in the test's own process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tandembus.cli import main
from tandembus.testing import LocalBroker


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as broker:
        yield broker


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        """Fields of the lines of a pipe."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """`tandem …` as a script runs it: no terminal, the connection string in the environment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: str, stdin: str | bytes | None = None, code: int = 0) -> Ran:
        """Run a command; it must end with that exit code."""
        if stdin is not None:
            data = stdin if isinstance(stdin, bytes) else stdin.encode()
            self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        self._capsys.readouterr()
        try:
            found = main(words)
        except SystemExit as end:  # of argparse
            found = end.code if isinstance(end.code, int) else 1
        out, err = self._capsys.readouterr()
        assert found == code, f"{words}: {found}\n{out}{err}"
        assert "Traceback" not in err
        return Ran(found, out, err)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    for name in ("TANDEM_CONNECTION_STRING", "TANDEM_FOLDER", "TANDEM_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Shell(monkeypatch, capsys)


@pytest.fixture
def tandem(shell: Shell, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Against a broker."""
    monkeypatch.setenv("TANDEM_CONNECTION_STRING", broker.connection_string)
    return shell
