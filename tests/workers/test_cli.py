"""`tandem workers`, as a user runs it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tandembus.testing import LocalBroker
from tests.workers.bus import Bus

PATIENCE_S = 120

WORKERS = """
import os
import sys
from tandembus.workers import Worker

class Printing(Worker):
    def process_message(self, message):
        # In one piece: a print writes the end of the line apart, and other threads come between.
        os.write(1, f"got {message} in {os.getpid()}\\n".encode())
"""

POOL = """
look_every_s = 0.2
[[pool]]
name = "mail"
worker = "printing_workers:Printing"
size = 2
{more}
[[pool.level]]
name = "high"
queue = "{high}"
target = {{ within_s = 30, percent = 90 }}
[[pool.level]]
name = "low"
queue = "{low}"
"""


def start(bus: Bus, file: Path, *more: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tandembus.cli", "workers", "run", str(file), "--every", "0.1"]
    environment = {**os.environ, "TANDEM_CONNECTION_STRING": bus.broker.connection_string}
    return subprocess.Popen(
        [*command, *more],
        env=environment,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    """The first line that has it; one that never comes ends the process."""
    assert process.stdout is not None
    lines = []
    patience = threading.Timer(PATIENCE_S, process.kill)
    patience.start()
    try:
        for line in process.stdout:
            lines.append(line)
            if re.search(pattern, line):
                return line
    finally:
        patience.cancel()
    raise AssertionError("".join(lines))


def end(process: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(how)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """One whose clock nobody moves: these processes have the real one."""
    with LocalBroker.start() as found:
        yield found


@pytest.fixture
def file(bus: Bus, tmp_path: Path) -> Path:
    (tmp_path / "printing_workers.py").write_text(WORKERS)
    return write(tmp_path, bus.queue(), bus.queue(), "")


def write(folder: Path, high: str, low: str, more: str) -> Path:
    path = folder / "pools.toml"
    path.write_text(POOL.format(high=high, low=low, more=more))
    return path


def queues_of(file: Path) -> list[str]:
    return re.findall(r'queue = "(.*)"', file.read_text())


@pytest.mark.req("P5")
@pytest.mark.req("P7")
def test_run_shows_a_line_for_each_level(bus: Bus, file: Path) -> None:
    """In a pipe; Ctrl-C ends it well, and a signal makes it read the file again."""
    high, low = queues_of(file)
    process = start(bus, file)
    bus.send(high, ["h"])
    bus.send(low, ["l"])
    wait_for(process, "got h")
    wait_for(process, "got l")
    line = wait_for(process, r"mail/high .*target=100")
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d mail/high waiting=\d+ oldest=\S+ rate=\S+/s p50=\S+ p99=\S+ "
        r"target=100\.0/90% size=2 busy=\d\n",
        line,
    )
    file.write_text(file.read_text().replace("size = 2", "size = 3\nsuspended = true"))
    process.send_signal(signal.SIGHUP)
    wait_for(process, "target=suspended size=3")
    file.write_text(file.read_text().replace("suspended = true", ""))
    process.send_signal(signal.SIGHUP)
    wait_for(process, "mail/low .*target=- size=3")
    code, _ = end(process, signal.SIGINT)
    assert code == 0


@pytest.mark.req("P7")
def test_a_terminal_shows_a_table(bus: Bus, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn over the last one, and never wider than the terminal is."""
    monkeypatch.delenv("COLUMNS", raising=False)  # it would count more than the terminal
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = start(bus, file, stdout=its_end)
    os.close(its_end)
    output = ""
    while output.count("\x1b[3A") < 3:
        output += os.read(terminal, 4_096).decode()
    process.send_signal(signal.SIGTERM)
    with suppress(OSError):  # a terminal whose other side is closed says so
        while os.read(terminal, 4_096):
            pass
    assert process.wait(60) == 0
    os.close(terminal)
    head, high, low = output.split("\x1b[3A")[1].splitlines()
    assert head.startswith("pool         level         waiting   oldest   rate/s")
    assert high.startswith("mail         high  ")
    assert low.startswith("             low  ")
    assert all(len(line.removesuffix("\x1b[K")) <= 60 for line in (head, high, low))


@pytest.mark.req("P7")
@pytest.mark.parametrize("how", ["--fail-on-alert", "--for=2"])
def test_a_missed_target_is_the_exit_code(bus: Bus, file: Path, how: str) -> None:
    """3: at the end, or at once; for whoever runs it from a script."""
    high, _ = queues_of(file)
    file.write_text(file.read_text().replace("size = 2", "size = 0").replace("30", "0.001"))
    bus.send(high, ["late"])
    process = start(bus, file, how)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    assert "mail/high: target missed" in output
    assert bus.bodies(high) == ["late"]


@pytest.mark.req("P8")
def test_workers_can_be_processes(bus: Bus, file: Path) -> None:
    """Each message is worked on in one of them; one that is killed is replaced; all end with their
    parent."""
    high, low = queues_of(file)
    write(file.parent, high, low, "processes = true")
    process = start(bus, file)
    pids: set[int] = set()
    deadline = time.monotonic() + 60
    while len(pids) < 2 and time.monotonic() < deadline:
        bus.send(high, ["h"] * 4)
        for _ in range(4):
            pids.add(int(wait_for(process, "got h").split()[-1]))
    assert process.pid not in pids
    assert len(pids) == 2
    wait_for(process, r"mail/high .*target=100")
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    wait_for(process, "ended by itself")
    bus.send(low, ["l"] * 20)
    for _ in range(20):
        wait_for(process, "got l")
    code, output = end(process)
    assert code == 0, output
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert bus.bodies(low) == []


def test_check_says_what_is_wrong(bus: Bus, file: Path) -> None:
    """2 and a sentence; or 0 and what would be run."""
    command = [sys.executable, "-m", "tandembus.cli", "workers", "check", str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    high, low = queues_of(file)
    assert found.stdout == f"mail: 2 workers; high ({high}) > low ({low})\n"
    file.write_text(file.read_text().replace("size", "seize"))
    for command[4] in ("check", "run"):
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 2
        assert found.stderr == (
            "tandem: pools.toml: pool 'mail': unknown key 'seize' (did you mean 'size'?)\n"
        )
    file.write_text(file.read_text().replace("seize", "size").replace(":Printing", ":Missing"))
    for command[4] in ("check", "run"):
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 2
        assert "there is no worker 'printing_workers:Missing'" in found.stderr
