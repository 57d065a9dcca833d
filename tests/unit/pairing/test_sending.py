"""The steps of a send, with senders that only write down what they are asked (N3, N4, N5, N7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus import exceptions as sdk
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tandembus.amqp.message import AmqpMessage
from tandembus.clock import ManualClock
from tandembus.pairing import wire
from tandembus.pairing.failures import BacklogMessageSizeError, BacklogUnavailableError
from tandembus.pairing.heart import BacklogQueue, Health, Heart
from tandembus.pairing.ledger import Ledger
from tandembus.pairing.options import PairingOptions
from tandembus.pairing.sending import Course, run_async, run_blocking

DOWN = sdk.ServiceBusConnectionError()


class Sender:
    """One of the SDK's, as far as a course asks."""

    _amqp_transport = PyamqpTransport

    def __init__(self, name: str, log: list[tuple[str, Any]], limit: int = 262_144) -> None:
        self._name = name
        self._log = log
        self._max_message_size_on_link = self._max_batch_size_on_link = limit
        self.error: Exception | None = None

    def _do(self, what: str, payload: Any = None) -> None:
        self._log.append((f"{self._name}.{what}", payload))
        if self.error is not None:
            raise self.error

    def send_messages(self, message: Any, timeout: float | None = None) -> None:
        self._do("send", _ids(message))

    def schedule_messages(self, messages: Any, time: datetime, timeout: float | None) -> list[int]:
        self._do("schedule")
        return [7] * len(messages)

    def cancel_scheduled_messages(self, numbers: Any, timeout: float | None) -> None:
        self._do("cancel", numbers)

    def create_message_batch(self, size: int | None = None) -> ServiceBusMessageBatch:
        self._do("batch")
        return ServiceBusMessageBatch(size)


def _ids(message: Any) -> list[str]:
    if isinstance(message, ServiceBusMessageBatch):
        if not isinstance(message._message, list):
            payloads = [message._message.ready]
        else:
            payloads = wire.payloads_of(message)
    else:
        payloads = wire.encoded(message if isinstance(message, list) else [message])
    return [str(AmqpMessage(payload).message_id) for payload in payloads]


class World:
    def __init__(self, queues: int = 2, **options: Any) -> None:
        self.log: list[tuple[str, Any]] = []
        self.ledger = Ledger()
        self.clock = ManualClock()
        options = {"failover_interval": timedelta(), "backlog_queue_count": queues, **options}
        self.heart = Heart(PairingOptions(**options), self.clock)
        self.primary = Sender("primary", self.log)
        self.backlogs = {
            BacklogQueue(0, place): Sender(f"b{place}", self.log) for place in range(queues)
        }
        self.course = Course("orders", self.heart, self.ledger, self)

    def primary_sender(self) -> Sender:
        return self.primary

    def backlog_sender(self, queue: BacklogQueue) -> Sender:
        return self.backlogs[queue]

    def drop_backlog_sender(self, queue: BacklogQueue) -> None:
        self.log.append((f"b{queue.place}.drop", None))

    def sleep(self, seconds: float) -> None:
        self.heart.gate(self.course.entity, is_shut=False)

    def send(self, messages: Any) -> list[tuple[str, Any]]:
        self.log.clear()
        run_blocking(self.course.send(messages, None))
        return self.log


def one(name: str, **more: Any) -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id=name, **more)


@pytest.mark.req("N3")
def test_healthy_is_one_call() -> None:
    """A send of the pair is one call of the SDK's sender with what it was given, and no other call
    of anything: no round trip more."""
    world = World()
    assert world.send(one("1")) == [("primary.send", ["1"])]
    assert world.send([one("2"), one("3")]) == [("primary.send", ["2", "3"])]
    batch = ServiceBusMessageBatch()
    batch.add_message(one("4"))
    assert world.send(batch) == [("primary.send", ["4"])]
    assert world.send([]) == []
    assert world.ledger.total().primary_sends == 4


@pytest.mark.req("N4")
def test_the_send_that_engages_is_not_lost() -> None:
    """Interval 0: tried at the primary, then sent to the backlog; the next go there at once."""
    world = World(queues=1)
    world.primary.error = DOWN
    assert world.send(one("1")) == [("primary.send", ["1"]), ("b0.send", ["1"])]
    assert world.send([one("2"), one("3")]) == [("b0.send", ["2", "3"])]
    assert world.ledger.total().backlog_sends == 3


@pytest.mark.req("N4")
def test_before_the_interval_the_caller_sees_it() -> None:
    world = World(failover_interval=timedelta(minutes=1))
    world.primary.error = DOWN
    with pytest.raises(sdk.ServiceBusConnectionError):
        world.send(one("1"))
    world.clock.advance(60_000)
    assert world.send(one("1"))[0] == ("primary.send", ["1"])
    assert world.course.entity.health is Health.FAILED_OVER


@pytest.mark.req("N5")
def test_a_queue_that_fails() -> None:
    """Another is picked, and what was sent already is not sent again; none left: an error."""
    world = World()
    world.heart.engage("orders", hold=True)
    world.send(one("1"))
    chosen = world.course.queue
    assert chosen is not None
    world.backlogs[chosen].error = DOWN
    other = 1 - chosen.place
    assert world.send(one("2")) == [
        (f"b{chosen.place}.send", ["2"]),
        (f"b{chosen.place}.drop", None),
        (f"b{other}.send", ["2"]),
    ]
    world.backlogs[BacklogQueue(0, other)].error = DOWN
    with pytest.raises(BacklogUnavailableError):
        world.send(one("3"))
    assert world.course.entity.under_way == 0


def test_in_parts() -> None:
    """What does not fit one transfer goes in several; when the second fails, only the rest goes
    elsewhere."""
    world = World()
    world.heart.engage("orders", hold=True)
    world.send(one("0"))
    chosen = world.course.queue
    assert chosen is not None
    sender = world.backlogs[chosen]
    sends = 0

    def second_fails(message: Any, timeout: float | None = None) -> None:
        nonlocal sends
        sends += 1
        if sends == 2:
            raise DOWN
        world.log.append(("first", _ids(message)))

    sender.send_messages = second_fails  # type: ignore[method-assign]
    large = [ServiceBusMessage(b"x" * 90_000, message_id=f"{n}") for n in range(1, 4)]
    batch = ServiceBusMessageBatch(300_000)
    for message in large:
        batch.add_message(message)
    world.log.clear()
    sender._max_batch_size_on_link = 200_000
    run_blocking(world.course.send(batch, None))
    assert world.log == [
        ("first", ["1", "2"]),
        (f"b{chosen.place}.drop", None),
        (f"b{1 - chosen.place}.send", ["3"]),
    ]


@pytest.mark.req("N7")
def test_too_large_before_anything_is_sent() -> None:
    """One message of a list is too large with its properties: none is sent."""
    world = World(queues=1)
    world.heart.engage("orders", hold=True)
    world.backlogs[BacklogQueue(0, 0)]._max_message_size_on_link = 1_000
    with pytest.raises(BacklogMessageSizeError, match="fits the limit of 1000"):
        world.send([one("1"), ServiceBusMessage(b"x" * 950, message_id="2")])
    assert world.log == []


def test_a_generator_is_gone_through_once() -> None:
    """By the primary in vain, and for the backlog again."""
    world = World(queues=1)
    world.primary.error = DOWN

    def made() -> Iterator[ServiceBusMessage]:
        yield one("1")
        yield one("2")

    assert world.send(made())[-1] == ("b0.send", ["1", "2"])


def test_schedules() -> None:
    """Straight with numbers; through the backlog with 0, and a time."""
    world = World(queues=1)
    due = datetime.now(UTC) + timedelta(hours=1)
    assert run_blocking(world.course.schedule([one("1"), one("2")], due, None)) == [7, 7]
    assert run_blocking(world.course.schedule([], due, None)) == []
    world.primary.error = DOWN
    assert run_blocking(world.course.schedule(one("3"), due, None)) == [0]
    raw = AmqpAnnotatedMessage(data_body=b"x")
    assert run_blocking(world.course.schedule((raw, one("4")), due, None)) == [0, 0]
    assert AmqpMessage(wire.encoded([raw])[0]).scheduled_ms == int(due.timestamp() * 1000)
    with pytest.raises(sdk.MessageNotFoundError):
        run_blocking(world.course.cancel(0, None))
    with pytest.raises(sdk.ServiceBusConnectionError):
        run_blocking(world.course.cancel([7], None))


def test_behind_the_gate() -> None:
    """A send waits while the backlog is looked through; if the primary is used then, it goes
    there."""
    world = World(queues=1, ordered_return=True)
    world.heart.engage("orders", hold=True)
    world.send(one("1"))
    world.heart.gate(world.course.entity, is_shut=True)
    assert world.send(one("2")) == [("b0.send", ["2"])]
    world.heart.gate(world.course.entity, is_shut=True)

    def back(seconds: float) -> None:
        world.heart.mark_healthy("orders")

    world.sleep = back  # type: ignore[method-assign]
    assert world.send(one("3")) == [("primary.send", ["3"])]


def test_a_batch_from_the_side_in_use() -> None:
    world = World(queues=1)
    run_blocking(world.course.batch(None))
    world.primary.error = DOWN
    run_blocking(world.course.batch(None))
    assert [name for name, _ in world.log] == ["primary.batch", "primary.batch", "b0.batch"]


def test_what_the_caller_did_wrong_is_his() -> None:
    """It is raised as the SDK raises it, and nobody fails over."""
    world = World()
    for error in (sdk.MessageSizeExceededError(), ValueError("closed"), TypeError("what?")):
        world.primary.error = error
        with pytest.raises(type(error)):
            world.send(one("1"))
    assert world.course.entity.health is Health.HEALTHY


def test_both_drivers_do_the_same() -> None:
    """Values, errors and the end of the steps."""

    def steps(call: Callable[[int], Any]) -> Any:
        first = yield call(1)
        try:
            yield call(-1)
        except ValueError as error:
            return first, str(error)

    def blocking(value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value

    async def slow(value: int) -> int:
        await asyncio.sleep(0)
        return blocking(value)

    assert run_blocking(steps(blocking)) == (1, "negative")
    assert asyncio.run(run_async(steps(slow))) == (1, "negative")
