"""A stop that loses nothing: SIGTERM lets what is under way end, and says so (C5)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandembus.client import Client, ConnectionString
from tandembus.errors import ConnectionLostError
from tandembus.testing import LocalBroker

_PATIENCE_S = 60


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as running:
        running.create_queue("q")
        yield running


def begin_drain(broker: LocalBroker, seconds: float) -> threading.Thread:
    """In the broker's loop; a thread of the test waits for its end."""
    assert broker.server is not None
    draining = broker.server._listener.drain(seconds)
    thread = threading.Thread(target=lambda: broker.run(draining))
    thread.start()
    while not broker.server._listener.oversight.is_draining:
        broker.run(asyncio.sleep(0.005))
    return thread


@pytest.mark.req("C5")
def test_what_is_held_can_be_settled_and_nothing_more_is_handed_out(broker: LocalBroker) -> None:
    assert broker.server is not None
    oversight = broker.server._listener.oversight
    busy = Client(broker.connection_string).connect()
    with busy.sender("q") as sender:
        sender.send_all([b"one", b"two"])
    receiver = busy.receiver("q")
    (held,) = receiver.receive()
    draining = begin_drain(broker, _PATIENCE_S)
    assert oversight.why_not_ready() == ["The server is stopping."]
    assert receiver.receive(wait_s=0.2) == []
    receiver.complete(held)  # the broker has it on disk when this returns
    draining.join(_PATIENCE_S)
    assert not draining.is_alive()
    with pytest.raises(ConnectionLostError):
        receiver.receive(wait_s=5)
    (left,) = broker.server.broker.namespace.find("q").browse(0, 9, None)
    assert (left.sequence_number, left.delivery_count) == (2, 0)
    busy.close()


@pytest.mark.req("C5")
def test_who_holds_nothing_goes_at_once_and_nobody_comes_in(broker: LocalBroker) -> None:
    """With an error that the SDKs take for a reason to connect again."""
    idle = Client(broker.connection_string).connect()
    sender = idle.sender("q")
    sender.send(b"x")
    draining = begin_drain(broker, _PATIENCE_S)
    draining.join(_PATIENCE_S)
    assert not draining.is_alive(), "nothing was unsettled, so nothing is waited for"
    with pytest.raises(ConnectionLostError, match="stopping"):
        sender.send(b"y")
    with pytest.raises(ConnectionLostError):
        Client(broker.connection_string).connect()
    idle.close()


def test_a_drain_has_an_end(broker: LocalBroker) -> None:
    """What nobody settles comes back after the next start, as after any broken connection (T11)."""
    client = Client(broker.connection_string).connect()
    with client.sender("q") as sender:
        sender.send(b"x")
    receiver = client.receiver("q")
    (held,) = receiver.receive()
    draining = begin_drain(broker, 0.1)
    draining.join(_PATIENCE_S)
    assert not draining.is_alive()
    broker.stop()
    broker.restart()
    with Client(broker.connection_string) as again:
        (message,) = again.browse("q")
        assert message.delivery_count == held.delivery_count + 1
    client.close()


# --- a process ------------------------------------------------------------------------------------


class Serving:
    """`tandem serve`, with its log in a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "log.json"
        self._out = self.log.open("w", encoding="utf-8")
        command = [
            sys.executable, "-m", "tandembus.cli", "serve", str(folder / "data"),
            *(() if "--port" in arguments else ("--port", "0")),
            "--emulator", "--log-format", "json", "--verbose", *arguments,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._out, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Connection string: "):
                self.connection_string = line.partition(": ")[2].strip()
            if line.startswith("Ctrl-C"):
                break

    def wait_until_closed(self) -> None:
        """The port is closed as soon as the signal has come."""
        with contextlib.suppress(ConnectionLostError):
            while True:
                Client(self.connection_string).connect().close()

    def end(self) -> int:
        code = self.process.wait(_PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._out.close()
        return code


@pytest.mark.req("C5")
def test_sigterm_waits_for_what_is_held_and_exits_with_0(tmp_path: Path) -> None:
    """And its log is JSON from the first line to the last."""
    serving = Serving(tmp_path, "--drain-seconds", "60")
    with Client(serving.connection_string) as client:
        client.entities.create_queue("q")
        with client.sender("q") as sender:
            sender.send(b"x")
        receiver = client.receiver("q")
        (held,) = receiver.receive()
        serving.process.send_signal(signal.SIGTERM)
        serving.wait_until_closed()
        assert serving.process.poll() is None, "it waits"
        receiver.complete(held)
        assert serving.end() == 0
    lines = serving.log.read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        assert {"time", "level", "logger", "message"} <= json.loads(line).keys()
    again = Serving(tmp_path)
    with Client(again.connection_string) as client:
        assert client.browse("q") == [], "what was completed stays so"
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 0


@pytest.mark.req("C5")
def test_the_official_sdk_comes_back_by_itself(tmp_path: Path) -> None:
    """The same sender, without a word of its user: the error says that to try again helps."""
    sdk = pytest.importorskip("azure.servicebus")
    serving = Serving(tmp_path, "--drain-seconds", "60")
    port = ConnectionString.parse(serving.connection_string).amqp_port
    with Client(serving.connection_string) as lean:
        lean.entities.create_queue("q")
    client = sdk.ServiceBusClient.from_connection_string(serving.connection_string)
    with client, client.get_queue_sender("q") as sender:
        sender.send_messages(sdk.ServiceBusMessage("before"))
        serving.process.send_signal(signal.SIGTERM)
        assert serving.end() == 0
        again = Serving(tmp_path, "--port", str(port))
        sender.send_messages(sdk.ServiceBusMessage("after"))
    with Client(again.connection_string) as lean:
        assert [message.body for message in lean.browse("q")] == [b"before", b"after"]
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 0


@pytest.mark.req("C5")
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "--drain-seconds", "3600")
    with Client(serving.connection_string) as client:
        client.entities.create_queue("q")
        with client.sender("q") as sender:
            sender.send(b"x")
        receiver = client.receiver("q")
        assert receiver.receive()
        serving.process.send_signal(signal.SIGTERM)
        serving.wait_until_closed()
        serving.process.send_signal(signal.SIGTERM)
        assert serving.end() == 0
