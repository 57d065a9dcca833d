"""The brokers of the testing kit: both have one face, start at once, and have a clock to move."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandembus.client import Client, OutgoingMessage
from tandembus.config import ServerConfig
from tandembus.errors import ArgumentError
from tandembus.testing import BrokerProcess, LocalBroker, TestBroker


def _process() -> TestBroker:
    return BrokerProcess.start(arguments=["--emulator", "--test-clock"])


@pytest.fixture(scope="module", params=[LocalBroker.start, _process], ids=["local", "process"])
def broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    start: Callable[[], TestBroker] = request.param
    with start() as running:
        yield running


def test_entities_are_made(broker: TestBroker) -> None:
    """With Azure's names for their settings; what is refused raises."""
    broker.create_queue("made", LockDuration="PT30S", RequiresSession=True)
    broker.create_topic("news")
    broker.create_subscription("news", "all", MaxDeliveryCount=3)
    with Client(broker.connection_string) as client:
        assert client.entities.get_queue("made").settings["RequiresSession"] == "true"
        assert client.entities.get_subscription("news", "all").settings["MaxDeliveryCount"] == "3"
    with pytest.raises(RuntimeError, match="409"):
        broker.create_queue("made")


@pytest.mark.req("T6", "T7")
def test_a_lock_runs_out_when_the_test_says_so(broker: TestBroker) -> None:
    """After `advance` it has happened; before, it has not."""
    broker.create_queue("locks", LockDuration="PT1M")
    with Client(broker.connection_string) as client:
        with client.sender("locks") as sender:
            sender.send(b"x")
        with client.receiver("locks") as receiver:
            (first,) = receiver.receive()
            broker.clock.advance(seconds=50)
            assert receiver.receive(wait_s=0) == []
            broker.clock.advance(seconds=11)
            (again,) = receiver.receive(wait_s=20)
            assert again.delivery_count == first.delivery_count + 1


@pytest.mark.req("T13", "S8")
def test_schedules_and_lifetimes_follow_the_clock(broker: TestBroker) -> None:
    """A day passes in no time: one message has come, the other has gone."""
    broker.create_queue("times")
    with Client(broker.connection_string) as client:
        with client.sender("times") as sender:
            sender.send(OutgoingMessage(b"old", ttl_ms=3_600_000))
        tomorrow_ms = int(broker.clock.now().timestamp() * 1000) + 24 * 3_600_000
        client.schedule([b"due"], tomorrow_ms, "times")
        broker.clock.advance(days=1)
        assert [message.body for message in client.browse_all("times")] == [b"due"]
        assert client.entities.get_queue("times").counts["ActiveMessageCount"] == 1


def test_timers_of_before_are_early_enough(broker: TestBroker) -> None:
    """A move shortens what was left of the wait, also for a timer that was set before."""
    broker.create_queue("timers", LockDuration="PT5S")
    with Client(broker.connection_string) as client:
        with client.sender("timers") as sender:
            sender.send(b"x")
        with client.receiver("timers") as receiver:
            receiver.receive()
            broker.clock.advance(seconds=4.9)
            (again,) = receiver.receive(wait_s=20)
            assert again.delivery_count == 1


def test_tokens_live_on_when_years_pass(broker: TestBroker) -> None:
    """A client signs by the real time; a broker in the future takes it all the same."""
    broker.create_queue("future")
    with Client(broker.connection_string) as client, client.sender("future") as sender:
        sender.send(b"before")
        broker.clock.advance(days=400)
        sender.send(b"after")
    with Client(broker.connection_string) as client:
        assert [message.body for message in client.browse("future")] == [b"before", b"after"]


def test_time_does_not_run_backwards(broker: TestBroker) -> None:
    before = broker.clock.now()
    with pytest.raises(ValueError, match="backwards"):
        broker.clock.advance(seconds=-1)
    assert broker.clock.now() >= before


def test_the_official_sdk(broker: TestBroker) -> None:
    """With a moved clock, too: its own time-outs go by the real time."""
    sdk = pytest.importorskip("azure.servicebus")
    broker.create_queue("sdk")
    with sdk.ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender("sdk") as sender:
            sender.send_messages(sdk.ServiceBusMessage("x"))
        broker.clock.advance(days=3)
        with client.get_queue_receiver("sdk", max_wait_time=5) as receiver:
            (message,) = receiver.receive_messages()
            receiver.complete_message(message)


def test_what_was_kept_is_there_after_a_restart(broker: TestBroker) -> None:
    """On disk or in memory; and the moved time goes on."""
    broker.create_queue("kept")
    with Client(broker.connection_string) as client, client.sender("kept") as sender:
        sender.send(b"x")
    moved = broker.clock.advance(days=30)
    with Client(broker.connection_string) as client, client.sender("kept") as sender:
        sender.send(b"y")
    broker.stop()
    broker.restart()
    assert broker.clock.now() >= moved
    with Client(broker.connection_string) as client:
        assert [message.body for message in client.browse("kept")] == [b"x", b"y"]


# --- refused outside of test mode -----------------------------------------------------------------


def test_there_is_no_clock_to_move_without_test_mode() -> None:
    """The path is not there, whoever asks; and the kit says how to get it."""
    with BrokerProcess.start(arguments=["--emulator"]) as broker:
        with pytest.raises(RuntimeError, match="--test-clock"):
            broker.clock.advance(seconds=1)
        with pytest.raises(RuntimeError, match="404"):
            broker._request("GET", "$test/clock", b"", "application/json")
        with pytest.raises(RuntimeError, match="405"):
            broker._move_remotely(1_000)


def test_the_control_needs_the_right_to_manage() -> None:
    """Also on loopback, also in test mode."""
    with BrokerProcess.start(arguments=["--emulator", "--test-clock"]) as broker:
        right = broker.connection_string
        broker.connection_string = right.replace(broker.key, "d3Jvbmc=")
        with pytest.raises(RuntimeError, match="401"):
            broker.clock.advance(seconds=1)
        broker.connection_string = right
        for body in (b"", b"[]", b'{"advance_ms": -1}', b'{"advance_ms": true}', b"{" * 9_000):
            with pytest.raises(RuntimeError, match="400"):
                broker._request("POST", "$test/clock", body, "application/json")
        with pytest.raises(RuntimeError, match="405"):
            broker._request("DELETE", "$test/clock", b"", "application/json")


def test_test_mode_is_for_this_machine_only() -> None:
    with pytest.raises(ArgumentError, match="--test-clock"):
        ServerConfig(Path("x"), host="0.0.0.0", has_test_clock=True).validate()


def test_test_mode_is_announced(tmp_path: Path) -> None:
    """Nobody runs it by mistake."""
    command = [sys.executable, "-m", "tandembus.cli", "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen([*command, "--test-clock"], stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        lines = [serving.stdout.readline() for _ in range(3)]
        serving.terminate()
        assert any("WARNING: --test-clock" in line for line in lines)


def test_a_broker_that_cannot_start(tmp_path: Path) -> None:
    """It is said, and nothing is left behind."""
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.raises(ArgumentError, match="it is a file"):
        LocalBroker.start(file)
    with pytest.raises(RuntimeError, match="before it was ready"):
        BrokerProcess.start(file)
