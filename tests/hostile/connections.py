"""Many connections that do nothing: what they cost, and that others are served beside them.

`python -m tests.hostile.connections [--count 5000] [--tls 1000] [--seconds 60]` opens them (SASL,
open, heartbeats in both directions), holds them, and prints the broker's resident memory, the
memory of one connection, the CPU that all of them take, and how a client fares beside them. Exit
code 1: one of them was lost, a heartbeat did not come, or the figures are over their caps.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import selectors
import ssl
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tandembus.amqp.frames import EMPTY_FRAME
from tandembus.testing import BrokerProcess
from tests.interop import certificates

from .calm import QUEUE, Calm
from .wire import Target, Wire

IDLE_TIMEOUT_MS = 60_000
"""What each client asks for: the broker then sends something every 15 s."""
HEARTBEAT_S = 20.0
CAP_PLAIN_KIB = 16.0
CAP_TLS_KIB = 96.0
CAP_CPU = 0.2
SPARE = 100
"""Connections that the broker may have beside those that are held."""


@dataclass(slots=True)
class Cost:
    count: int
    opened_s: float
    before_mib: float
    after_mib: float
    cpu: float
    """Of one core, while nothing happens."""
    lost: int
    silent: int
    """Connections that heard no heartbeat."""
    p50_ms: float
    p99_ms: float
    trouble: str | None

    @property
    def each_kib(self) -> float:
        return (self.after_mib - self.before_mib) * 1_024 / max(1, self.count)


class Idle:
    """Opened connections, and a thread that keeps their heartbeats."""

    def __init__(self, target: Target, count: int, *, tls: bool) -> None:
        self._selector = selectors.DefaultSelector()
        self._wires: list[Wire] = []
        self._heard: set[Wire] = set()
        self.lost = 0
        self._is_over = False
        for number in range(count):
            wire = Wire(target, tls=tls)
            wire.connection.idle_timeout_ms = IDLE_TIMEOUT_MS
            wire.open()
            wire.socket.setblocking(False)
            self._wires.append(wire)
            self._selector.register(wire.socket, selectors.EVENT_READ, wire)
            if number and number % 1_000 == 0:
                print(f"  {number:,} are open", flush=True)
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @property
    def silent(self) -> int:
        return len(self._wires) - len(self._heard) - self.lost

    def _keep(self) -> None:
        beat = time.monotonic() + HEARTBEAT_S
        while not self._is_over:
            for key, _ in self._selector.select(0.5):
                self._read(key.data)
            if time.monotonic() >= beat:
                beat += HEARTBEAT_S
                for wire in self._wires:
                    try:
                        wire.socket.send(EMPTY_FRAME)
                    except OSError:
                        continue  # it is counted when it is read
                    time.sleep(0)

    def _read(self, wire: Wire) -> None:
        try:
            data = wire.socket.recv(4_096)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        if data:
            self._heard.add(wire)
        else:
            self.lost += 1
            self._selector.unregister(wire.socket)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        for wire in self._wires:
            wire.socket.close()


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hold(broker: BrokerProcess, target: Target, count: int, seconds: float, *, tls: bool) -> Cost:
    """Open so many, hold them so long, and look at what that costs."""
    pid = broker.process.pid
    with Wire.opened(target, tls=tls):
        time.sleep(0.5)  # what the first one loads is not a connection's cost
    before = resident_mib(pid)
    began = time.monotonic()
    idle = Idle(target, count, tls=tls)
    opened = time.monotonic() - began
    try:
        time.sleep(1.0)
        used, since = cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        cpu = (cpu_s(pid) - used) / (time.monotonic() - since)
        after = resident_mib(pid)
        p50, p99, trouble = asyncio.run(_beside(target))
        return Cost(count, opened, before, after, cpu, idle.lost, idle.silent, p50, p99, trouble)
    finally:
        idle.close()


async def _beside(target: Target, seconds: float = 5.0) -> tuple[float, float, str | None]:
    """How a client fares beside them."""
    calm = Calm(target, 50)
    await calm.connect()
    running = asyncio.ensure_future(calm.run())
    with calm.measuring() as latencies:
        await asyncio.sleep(seconds)
    calm.stop()
    await running
    trouble = calm.trouble or (f"{calm.missing} messages are missing" if calm.missing else None)
    return latencies.p50_ms(), latencies.p99_ms(), trouble


def judge(cost: Cost, seconds: float, *, tls: bool) -> list[str]:
    wrongs = []
    cap = CAP_TLS_KIB if tls else CAP_PLAIN_KIB
    if cost.lost:
        wrongs.append(f"{cost.lost} connections were lost")
    if cost.silent and seconds > IDLE_TIMEOUT_MS / 1_000:
        wrongs.append(f"{cost.silent} connections heard no heartbeat")
    if cost.count >= 100 and cost.each_kib > cap:
        wrongs.append(f"{cost.each_kib:.1f} KiB each; the cap is {cap:g}")
    if cost.cpu > CAP_CPU:
        wrongs.append(f"{cost.cpu:.0%} of a core for doing nothing; the cap is {CAP_CPU:.0%}")
    if cost.trouble is not None:
        wrongs.append(cost.trouble)
    return wrongs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=5_000, help="plain connections")
    parser.add_argument("--tls", type=int, default=1_000, help="connections inside TLS")
    parser.add_argument("--seconds", type=float, default=60, help="how long they are held")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wanted = max(options.count, options.tls) + SPARE
    if wanted > most:
        print(f"this machine allows {most} descriptors, and {wanted} are needed", file=sys.stderr)
        return 1
    failed = False
    for count, tls in ((options.count, False), (options.tls, True)):
        if not count:
            continue
        name = "TLS" if tls else "plain"
        print(f"{count:,} {name} connections …", flush=True)
        with tempfile.TemporaryDirectory(prefix="connections-") as folder:
            arguments = ["--emulator", "--max-connections", str(wanted)]
            if tls:
                arguments += certificates.make(Path(folder), "localhost", "127.0.0.1").arguments
            with BrokerProcess.start(arguments=arguments) as broker:
                broker.create_queue(QUEUE)
                target = Target(broker.port, broker.key, tls)
                cost = hold(broker, target, count, options.seconds, tls=tls)
        wrongs = judge(cost, options.seconds, tls=tls)
        failed = failed or bool(wrongs)
        print(
            f"{count:,} idle {name} connections, opened in {cost.opened_s:.1f} s and held for "
            f"{options.seconds:g} s: {cost.after_mib:.0f} MiB resident ({cost.before_mib:.0f} "
            f"without them, {cost.each_kib:.1f} KiB each), {cost.cpu:.1%} of a core; {cost.lost} "
            f"lost, {cost.silent} without a heartbeat; beside them a client's round trip takes "
            f"{cost.p50_ms:.1f} ms (p50), {cost.p99_ms:.1f} ms (p99).",
            flush=True,
        )
        for wrong in wrongs:
            print(f"  - {wrong}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
