"""The memory of a broker: what it has, the most that it had, and what several senders cost it.

Only on Linux, which tells it in /proc.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from tandembus.client import Client
from tandembus.errors import TandemError
from tandembus.limits import MIB
from tandembus.testing import BrokerProcess

PREMIUM: Final = ("--premium",)
QUEUE: Final = "memory"
_BUSY_S: Final = 0.5
"""Between two tries of a send that was refused because the broker was busy: an SDK tries again."""
_PATIENCE_S: Final = 600


class Memory:
    """Of one process, in MiB."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self.idle = self._status("VmRSS:")

    def forget_peak(self) -> None:
        """From now on only a new peak counts, where the kernel allows it."""
        with suppress(OSError):
            (self._folder / "clear_refs").write_text("5")

    def peak(self) -> float:
        """Above what it had at the beginning; since `forget_peak`."""
        return max(0.0, self._status("VmHWM:") - self.idle)

    def _status(self, name: str) -> float:
        text = ""  # a process that has ended has no such line, or no such file
        with suppress(OSError):
            text = (self._folder / "status").read_text(encoding="utf-8")
        found = [line for line in text.splitlines() if line.startswith(name)]
        return int(found[0].split()[1]) / 1_024 if found else 0.0


def settings(limit_mb: int) -> dict[str, str | int | bool]:
    """Of an entity that takes messages of so many MB, and ten of the largest ones."""
    return {
        "MaxMessageSizeInKilobytes": limit_mb * 1_024,
        "MaxSizeInMegabytes": 5_120,
        "LockDuration": "PT5M",
    }


@contextmanager
def _fresh(limit_mb: int) -> Iterator[tuple[BrokerProcess, Memory]]:
    with BrokerProcess.start(arguments=PREMIUM) as broker:
        broker.create_queue(QUEUE, **settings(limit_mb))
        yield broker, Memory(broker.process.pid)


def measure(body: bytes, limit_mb: int, count: int) -> tuple[list[str], list[str]]:
    """Lines with figures, and what went wrong. One message at a time, then `count` senders at the
    same time and as many receivers: each on a broker that was just started, with lean clients."""
    lines: list[str] = []
    wrong: list[str] = []
    size = len(body) / MIB
    with _fresh(limit_mb) as (broker, memory):
        for _ in range(3):
            wrong += _send(broker, body) or _receive(broker, body)
        lines.append(
            f"memory: one message of {size:.1f} MB at a time, 3 times: the broker's peak is "
            f"{memory.peak():.0f} MB over idle ({memory.idle:.0f} MB)"
        )
    with _fresh(limit_mb) as (broker, memory), ThreadPoolExecutor(count) as pool:
        for verb, call in (("senders", _send), ("receivers", _receive)):
            memory.forget_peak()
            begin = time.monotonic()
            for failed in pool.map(lambda _, call=call: call(broker, body), range(count)):
                wrong += failed
            seconds = time.monotonic() - begin
            lines.append(
                f"memory: {count} {verb} of {size:.1f} MB at the same time, {seconds:.1f} s: the "
                f"broker's peak is {memory.peak():.0f} MB over idle ({memory.idle:.0f} MB)"
            )
    return lines, wrong


def _send(broker: BrokerProcess, body: bytes) -> list[str]:
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with (
                Client(broker.connection_string, timeout_s=_PATIENCE_S) as client,
                client.sender(QUEUE) as sender,
            ):
                sender.send(body)
            return []
        except TandemError as error:
            if not error.is_retryable or time.monotonic() > until:
                return [f"memory: send: {type(error).__name__}: {error}"]
            time.sleep(_BUSY_S)


def _receive(broker: BrokerProcess, body: bytes) -> list[str]:
    try:
        with (
            Client(broker.connection_string, timeout_s=_PATIENCE_S) as client,
            client.receiver(QUEUE) as receiver,
        ):
            (found,) = receiver.receive(1, wait_s=_PATIENCE_S)
            receiver.complete(found)
            is_same = sha256(found.body).digest() == sha256(body).digest()
        return [] if is_same else ["memory: receive: another body"]
    except (TandemError, ValueError) as error:
        return [f"memory: receive: {type(error).__name__}: {error}"]
