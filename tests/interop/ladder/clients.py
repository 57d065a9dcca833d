"""The clients of the ladder: which there are, over which transports, and their running programs.

The rule: a client runs in a process of its own, so that one that hangs or ends is one failed
combination, and its memory is not the harness's.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandembus.testing import BrokerProcess
from tests.interop import nodejs
from tests.interop.certificates import Certificates

ROADS: Final = ("plain", "tls", "websocket")


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    program: str
    """Of `program`; `node` is ../js/ladder.mjs."""
    encodes_as: str
    """The client whose messages have as many bytes around the body as its own."""
    has_websocket: bool = True


CLIENTS: Final = {
    client.name: client
    for client in (
        Client("python", "azure", "python"),
        Client("javascript", "node", "javascript"),
        Client("lean", "lean", "lean", has_websocket=False),
        Client("cli", "cli", "lean", has_websocket=False),
    )
}


class CannotRun(Exception):
    """The client does not run on this machine, or not over this transport; says why."""


class Program:
    """A client over one transport. It is started when it is asked, and again after it was ended."""

    def __init__(
        self, client: Client, road: str, broker: BrokerProcess, certificates: Certificates | None
    ) -> None:
        """Raises CannotRun."""
        if road != "plain" and certificates is None:
            raise CannotRun("there is no `openssl` program, which makes the certificates")
        if road == "websocket" and not client.has_websocket:
            raise CannotRun("this client has no WebSocket")
        if client.program == "node":
            try:
                self._command = [nodejs.installed(), str(nodejs.FOLDER / "ladder.mjs")]
            except SystemExit as reason:
                raise CannotRun(str(reason)) from None
        else:
            module = "tests.interop.ladder.program"
            self._command = [sys.executable, "-m", module, client.program]
        plain = broker.connection_string
        authority = "" if certificates is None else str(certificates.authority)
        self._environment = {
            **os.environ,
            "NODE_EXTRA_CA_CERTS": authority,
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
            "TANDEM_CA": authority,
            "TANDEM_PLAIN": plain,
            "TANDEM_PORT": str(broker.port),
            "TANDEM_ROAD": road,
            "TANDEM_TLS": plain.replace("UseDevelopmentEmulator=true;", ""),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this

    def ask(self, request: Mapping[str, object], within_s: float) -> dict[str, Any]:
        """Its reply; one with an error if there is none in time, or the program ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # so that it ends with all that it started
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # then it says nothing, either
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], within_s)
        line = process.stdout.readline() if ready else b""
        if line.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(line)
            return reply
        code = self.close()
        if not ready:
            return {"error": f"no answer within {within_s:.0f} s", "is_too_large": False}
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        text = f"the program ended with {code}: {said[-1] if said else 'it said nothing'}"
        return {"error": text, "is_too_large": False}

    def close(self) -> int | None:
        """End it; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            return process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()
        finally:
            process.stdout.close()

    def end(self) -> None:
        self.close()
        self._errors.close()
