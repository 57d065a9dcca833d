"""F2 over TCP: a real broker process, the official SDK at work, and strangers who say anything.

The rule: the process lives, has logged no traceback, and every message of the SDK's client came,
in order. What a stranger sent after it was hung up on is not counted.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.fast import encode_flow
from tandembus.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from tandembus.testing import BrokerProcess
from tandembus.testing.process import ROOT
from tests.fuzz import traffic
from tests.fuzz.judge import Finding, told

TARGET: Final = "wire"
_PATIENCE_S: Final = 60
_SILENCE_S: Final = 0.01
_ECHO: Final = frame(encode_flow(0, 2_048, 0, 2_048, echo=True))
"""Asks for an answer: the next frame meets a connection that has read the last."""
_MAX_GROWTH: Final = 64 * 1024 * 1024
"""Resident bytes that all strangers together may leave: what they stored has an index in memory."""


class Client(threading.Thread):
    """A program with the official SDK that sends to itself, message by message."""

    def __init__(self, connection_string: str) -> None:
        super().__init__(daemon=True)
        self._connection_string = connection_string
        self._is_over = threading.Event()
        self.came = 0
        self.failure: str | None = None

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - told to the main thread
            self.failure = told(error)

    def _work(self) -> None:
        from azure import servicebus as sdk

        client: Any = sdk.ServiceBusClient.from_connection_string(self._connection_string)
        with (
            client,
            client.get_queue_sender(traffic.QUIET) as sender,
            client.get_queue_receiver(traffic.QUIET, max_wait_time=_PATIENCE_S) as receiver,
        ):
            while not self._is_over.is_set():
                sender.send_messages(sdk.ServiceBusMessage(f"m{self.came}"))
                (got,) = receiver.receive_messages(max_wait_time=_PATIENCE_S)
                if str(got) != f"m{self.came}":
                    raise AssertionError(f"{got} came instead of m{self.came}")
                receiver.complete_message(got)
                self.came += 1
                self._is_over.wait(0.02)

    def wait_for(self, count: int) -> None:
        """Until so many have come, or none come any more."""
        begin = time.monotonic()
        while self.came < count and self.is_alive() and time.monotonic() - begin < _PATIENCE_S:
            time.sleep(0.01)
        if self.came < count:
            self.failure = self.failure or f"only {self.came} messages came"

    def end(self) -> None:
        self._is_over.set()
        self.join(2 * _PATIENCE_S)
        if self.is_alive():
            self.failure = self.failure or "the well-behaved client hangs"


@contextlib.contextmanager
def logged(file: Path) -> Iterator[None]:
    """What processes that are started here write to their standard error goes to `file`."""
    kept = os.dup(2)
    with file.open("wb") as out:
        os.dup2(out.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class Wire:
    def __init__(self, seed: int) -> None:
        self._talk = traffic.Talk(seed)
        self.sent = 0
        self.connections = 0
        self.came = 0
        self.growth = 0
        self.cpu_s = 0.0
        self.findings: list[Finding] = []

    def run(self, count: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
            errors = Path(folder) / "errors"
            with logged(errors):
                broker = BrokerProcess.start(Path(folder) / "data", ["--emulator"])
            with broker:
                self._serve(broker, count, errors)

    def _serve(self, broker: BrokerProcess, count: int, errors: Path) -> None:
        broker.create_queue(traffic.QUIET)
        broker.create_queue(traffic.QUEUE)
        broker.create_queue(traffic.SESSIONS, RequiresSession=True)
        broker.create_topic(traffic.TOPIC)
        broker.create_subscription(traffic.TOPIC, "all")
        client = Client(broker.connection_string)
        client.start()
        client.wait_for(1)
        before, begin_s = resident(broker.process.pid), cpu(broker.process.pid)
        said: list[bytes] = []
        while self.sent < count and broker.process.poll() is None and not client.failure:
            said = self._stranger(broker)
            if b"Traceback" in errors.read_bytes():
                break
        self.cpu_s = cpu(broker.process.pid) - begin_s
        self.growth = resident(broker.process.pid) - before
        client.wait_for(client.came + 1)
        client.end()
        self.came = client.came
        text = errors.read_text(errors="replace")
        if broker.process.poll() is not None:
            self._found(said, f"the broker ended with {broker.process.poll()}: {text[-600:]}")
        elif "Traceback" in text:
            self._found(said, text[text.index("Traceback") :][-900:])
        elif client.failure or not client.came:
            self._found(said, f"the well-behaved client: {client.failure}")
        elif self.growth > _MAX_GROWTH:
            self._found(said, f"the broker has grown by {self.growth} bytes")
        elif broker.stop() != 0:
            self._found(said, "the broker did not stop cleanly")

    def _found(self, said: list[bytes], why: str) -> None:
        self.findings.append(Finding(TARGET, tuple(said), why))

    def _stranger(self, broker: BrokerProcess) -> list[bytes]:
        """One connection; what it said."""
        self.connections += 1
        chance = self._talk.chance
        login = p.SaslInit("PLAIN", f"\0{ROOT}\0{broker.key}".encode(), "host")
        opening = [each for each in traffic.opening(chance) if each[:4] != b"AMQP"]
        opening = [each for each in opening if each[5] != SASL_FRAME]
        said = [
            SASL_HEADER, frame(p.encode_performative(login), 0, SASL_FRAME), AMQP_HEADER, *opening,
        ]  # fmt: skip
        with socket.create_connection(("127.0.0.1", broker.port), _PATIENCE_S) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                sock.sendall(b"".join(said) + _ECHO)
                while len(said) < 80 and _answers(sock):
                    data, counts = self._talk.next()
                    said.append(data)
                    self.sent += counts
                    sock.sendall(data + _ECHO)
            except OSError:
                pass  # the broker has hung up
        return said


def _answers(sock: socket.socket) -> bool:
    """Whether the broker says something: a connection, or a session, that is over does not."""
    if not select.select([sock], [], [], _SILENCE_S)[0]:
        return False
    return len(sock.recv(65_536)) > 0


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
