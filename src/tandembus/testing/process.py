"""`tandem serve` as a subprocess. What a test asks of it goes over the wire, as a user's would."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from tandembus.testing.broker import PATIENCE_S, ROOT, BrokerClock, TestBroker

__all__ = ["ROOT", "BrokerProcess"]

TEST_CLOCK: Final = "--test-clock"


class BrokerProcess(TestBroker):
    """A running `tandem serve`. Use `start`; as a context it stops at the end."""

    def __init__(self, command: Sequence[str], owned: tempfile.TemporaryDirectory[str] | None):
        self._command = command
        self._owned = owned
        self.process: subprocess.Popen[str]
        self._begin()

    @classmethod
    def start(cls, folder: Path | None = None, arguments: Sequence[str] = ()) -> Self:
        """Serve `folder` (one of its own, removed at the end, when None). `arguments` are those of
        `tandem serve`; without --port it takes a free one. With --test-clock its `clock` can be
        moved."""
        owned = None
        if folder is None:
            owned = tempfile.TemporaryDirectory(prefix="tandem-")
            folder = Path(owned.name)
        port = () if "--port" in arguments else ("--port", "0")
        command = [sys.executable, "-m", "tandembus.cli", "serve", str(folder), *port, *arguments]
        return cls(command, owned)

    def _begin(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Connection string: "):
                self.connection_string = line.partition(": ")[2].strip()
            if line.startswith("Ctrl-C"):
                return
        self.process.stdout.close()
        raise RuntimeError(f"tandem serve ended with {self.process.wait()} before it was ready")

    @property
    def clock(self) -> BrokerClock:
        if TEST_CLOCK not in self._command:
            raise RuntimeError(f"the clock of a process can be moved with {TEST_CLOCK} only")
        return BrokerClock(self._move_remotely)

    def reset(self, *, keep_entities: bool = False) -> None:
        if TEST_CLOCK not in self._command:
            raise RuntimeError(f"a process can be reset with {TEST_CLOCK} only")
        self._reset_remotely(keep_entities)

    # --- its end ----------------------------------------------------------------------------------

    def stop(self) -> int:
        """Ctrl-C, as a user would; returns the exit code."""
        return self._end(signal.SIGINT)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Again on the same folder, after `stop` or `kill`."""
        self._begin()

    def _end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop()
        if self._owned is not None:
            self._owned.cleanup()
