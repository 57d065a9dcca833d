"""The README's first minute, as a stranger lives it: the wheel in an empty environment, a broker
with its defaults, the blocks pasted as they are.

It needs what tests/house/packages.py says: hatchling, and a package index or uv's cache.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from tests.house.packages import build_wheel, clean_environment, make_environment
from tests.house.pages import Block, blocks_of

ROOT = Path(__file__).resolve().parents[2]
PORT = 5672


def _first_blocks() -> tuple[Block, Block, Block]:
    """How to install and serve; the second terminal; the first program."""
    install, second, program = blocks_of(ROOT / "README.md")[:3]
    assert [install.kind, second.kind, program.kind] == ["console", "console", "python"]
    return install, second, program


def _port_is_free() -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return False
    return True


@contextmanager
def _served(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """While it serves; it must end well."""
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as server:  # fmt: skip
        guard = Timer(120, server.kill)
        guard.start()
        try:
            assert server.stdout is not None
            said = []
            for line in server.stdout:
                said.append(line)
                if line.startswith("Ctrl-C"):
                    break
            else:
                pytest.fail("".join(said))
            yield
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 0
        finally:
            guard.cancel()
            server.kill()


def test_fu5_the_first_minute_can_be_pasted(tmp_path: Path) -> None:
    """Install, serve, create a queue, and the first program: each line as the README has it, into a
    shell and into Python's prompt. Only the port is another where somebody has 5672."""
    install, second, program = _first_blocks()
    make, activate, pip, serve = install.commands.splitlines()
    assert (make, activate) == ("python3 -m venv venv", "source venv/bin/activate")
    assert pip.startswith("pip install . ")
    wheel = build_wheel(tmp_path / "dist")
    folder = tmp_path / "work"
    folder.mkdir()
    bin_folder = make_environment(folder / "venv", str(wheel), *pip.split()[3:])
    assert not (bin_folder / "pytest").exists()
    environment = clean_environment(bin_folder)
    environment["HOME"] = str(tmp_path)
    if not _port_is_free():
        environment["TANDEM_PORTS"] = "0"
    with _served([str(bin_folder / "tandem"), *serve.split()[1:]], folder, environment):
        # The block ends with `python`, and the program is pasted at its prompt. `-i` makes it
        # a prompt although its input is a pipe.
        commands = second.commands.rstrip()
        assert commands.endswith("\npython")
        pasted = subprocess.run(
            ["bash", "-e", "-c", f"{commands} -i"],
            cwd=folder, env=environment, input=f"{program.text}\n", capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        assert pasted.returncode == 0, pasted.stdout + pasted.stderr
        assert not re.search(r"Error|Traceback", pasted.stderr), pasted.stderr
        expected = [f"{number + 1} order {number}" for number in range(10)]
        assert re.findall(r"^\d+ order \d+$", pasted.stdout, re.MULTILINE) == expected
