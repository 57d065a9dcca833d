"""How long `tandem serve` takes to be ready, and what it holds while nobody asks for anything.

    python -m bench.start --count 5

Each time a new process on a new folder: until it says that it is ready, until the official SDK has
sent and received one message, and its resident memory after a second of rest. The first line is a
start with nothing compiled yet, as it is after an installation; it is no part of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandembus.client import Client

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Start:
    ready_s: float
    cpu_s: float
    """Of its own, until it was ready: what a busy machine does not change."""
    message_s: float
    """From the start of the process to the message that the SDK has received."""
    resident_mb: float


def measure(*, is_compiled: bool = True) -> Start:
    with tempfile.TemporaryDirectory(prefix="tandem-start-") as name:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        if not is_compiled:
            environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "tandembus.cli", "serve", str(folder / "data"), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            assert process.stdout is not None
            connection_string = ""
            for line in process.stdout:
                if line.startswith("Connection string: "):
                    connection_string = line.partition(": ")[2].strip()
                if line.startswith("Ctrl-C"):
                    break
            ready_s = time.perf_counter() - began
            cpu_s = _cpu_s(process.pid)
            Client(connection_string).entities.create_queue("q")
            _send_and_receive(connection_string)
            message_s = time.perf_counter() - began
            time.sleep(1)
            return Start(ready_s, cpu_s, message_s, _resident_mb(process.pid))
        finally:
            process.terminate()
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()


def _send_and_receive(connection_string: str) -> None:
    client = ServiceBusClient.from_connection_string(connection_string)
    sender, receiver = client.get_queue_sender("q"), client.get_queue_receiver("q")
    sender.send_messages(ServiceBusMessage("x"))
    (message,) = receiver.receive_messages(max_wait_time=5)
    receiver.complete_message(message)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the process has gone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=5)
    count = parser.parse_args().count
    first = measure(is_compiled=False)
    print(f"nothing compiled: ready in {first.ready_s:.2f} s")
    found = [measure() for _ in range(count)]
    for name, unit in (("ready_s", "s"), ("cpu_s", "s"), ("message_s", "s"), ("resident_mb", "MB")):
        values = [getattr(each, name) for each in found]
        print(
            f"{name.rpartition('_')[0]:9} median {statistics.median(values):6.2f} {unit}, "
            f"{min(values):.2f} to {max(values):.2f}, of {count}"
        )


if __name__ == "__main__":
    main()
