"""Programs for Node.js against a real broker: `make test-js`, and half of `make test-interop`.

What they need from npm is installed into tests/interop/js/node_modules, once, exactly as the lock
file says. One broker on one free port serves plain TCP, TLS, WebSocket and HTTPS.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tandembus.testing import BrokerProcess
from tests.interop import certificates

FOLDER: Final = Path(__file__).parent / "js"
_INSTALL_S: Final = 300
_RUN_S: Final = 300
_OLDEST: Final = 18
"""The first Node.js whose test runner has all that our tests use."""
FILES: Final = (
    "administration.test.mjs",
    "queues.test.mjs",
    "rules.test.mjs",
    "sessions.test.mjs",
    "batches.test.mjs",
)
BATCHES: Final = "batches.test.mjs"
"""It is run on a namespace of each tier: their entities take messages of different sizes."""
PREMIUM: Final = ("--premium",)


def installed() -> str:
    """The path of `node`, with our dependencies in place. Raises SystemExit with the reason."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise SystemExit(
            "Node.js and npm are needed, and are not there (on Debian: apt install npm)"
        )
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < _OLDEST:
        raise SystemExit(f"Node.js {_OLDEST} or later is needed, not {version.strip()}")
    # One at a time: several tests may come here at once.
    with (FOLDER / "package-lock.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(npm, hashlib.sha256(lock.read()).hexdigest())
    return node


def _install(npm: str, wanted: str) -> None:
    marker = FOLDER / "node_modules" / ".ready"
    if marker.exists() and marker.read_text() == wanted:
        return
    print(f"installing from npm into {os.path.relpath(FOLDER / 'node_modules')} …", flush=True)
    command = [npm, "ci", "--loglevel=error"]
    try:
        # Its words are not for the standard output: that may be a program's answer.
        subprocess.run(command, cwd=FOLDER, check=True, stdout=sys.stderr, timeout=_INSTALL_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"npm cannot install what the tests need: {error}") from None
    marker.write_text(wanted)


def run(files: Sequence[str], arguments: Sequence[str] = (), serve: Sequence[str] = ()) -> int:
    """Run test files of ours against a broker that is started with the arguments `serve`; returns
    the exit code of Node's test runner."""
    node = installed()
    with tempfile.TemporaryDirectory(prefix="tandem-interop-") as folder:
        made = certificates.make(Path(folder), "localhost")
        with BrokerProcess.start(arguments=(*made.arguments, *serve)) as broker:
            environment = {
                **os.environ,
                "NODE_EXTRA_CA_CERTS": str(made.authority),
                "TANDEM_PORT": str(broker.port),
                "TANDEM_KEY": broker.key,
                "TANDEM_PLAIN": broker.connection_string,
                "TANDEM_TLS": broker.connection_string.replace("UseDevelopmentEmulator=true;", ""),
            }
            command = [
                node,
                "--test",
                "--test-reporter=spec",
                *arguments,
                *(str(FOLDER / file) for file in files),
            ]
            ended = subprocess.run(
                command, cwd=FOLDER, env=environment, timeout=_RUN_S, check=False
            )
            return ended.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="@azure/service-bus from npm against a broker")
    parser.add_argument("files", nargs="*", help="test files (all of the SDK's)")
    options, others = parser.parse_known_args()
    files = options.files or FILES
    try:
        code = run(files, others)
        if BATCHES in files:
            code = run([BATCHES], others, PREMIUM) or code
        return code
    except certificates.NoOpenSsl as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
