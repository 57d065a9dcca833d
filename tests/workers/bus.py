"""What the tests of workers share: queues, messages, and handlers that a test can watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from azure.servicebus.aio import ServiceBusClient

from tandembus.client import Client, OutgoingMessage, Sender, dead_letter_path
from tandembus.testing.broker import TestBroker
from tandembus.workers import GiveBack, Level, Outcome, Pool, PoolOptions, Work, Worker
from tandembus.workers.wire import connect

_numbers = count(1)
PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Left:
    """What was found in a queue."""

    body: str
    delivery_count: int
    reason: str | None = None


class Bus:
    """A test's way to its broker, beside the pools': short calls of the lean client."""

    def __init__(self, broker: TestBroker) -> None:
        self.broker = broker
        self.lean = Client(broker.connection_string)
        self._senders: dict[str, Sender] = {}

    def close(self) -> None:
        self.lean.close()

    def queue(self, **settings: str | int | bool) -> str:
        """A new one."""
        name = f"q{next(_numbers)}"
        self.broker.create_queue(name, **settings)
        return name

    def run(self, test: Callable[[ServiceBusClient], Coroutine[Any, Any, None]]) -> None:
        """With the SDK's client, as a pool has it."""

        async def whole() -> None:
            async with asyncio.timeout(2 * PATIENCE_S):
                async with self.client() as client:
                    await test(client)

        asyncio.run(whole())

    def client(self) -> ServiceBusClient:
        return connect(self.broker.connection_string)

    def send(self, path: str, bodies: Sequence[str], **more: Any) -> None:
        self.send_all(path, [OutgoingMessage(body.encode(), **more) for body in bodies])

    def send_all(self, path: str, messages: Sequence[OutgoingMessage]) -> None:
        if path not in self._senders:
            self._senders[path] = self.lean.sender(path)
        self._senders[path].send_all(messages)

    def left(self, path: str, *, dead: bool = False) -> list[Left]:
        """What nobody holds; it is not there any more then."""
        found: list[Left] = []
        with self.lean.receiver(dead_letter_path(path) if dead else path) as receiver:
            while messages := receiver.receive(100, wait_s=0):
                receiver.complete(messages)
                for each in messages:
                    reason = each.properties.get("DeadLetterReason")
                    why = None if reason is None else str(reason)
                    found.append(Left(each.body.decode(), each.delivery_count, why))
        return found

    def bodies(self, path: str) -> list[str]:
        return [each.body for each in self.left(path)]


async def until(is_true: Callable[[], object]) -> None:
    """No test waits longer than it must, and none fails because the machine is busy."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():
            await asyncio.sleep(0.005)


def options(*queues: str, **more: Any) -> PoolOptions:
    """A pool over queues, the highest first."""
    levels = tuple(Level(f"level{number}", queue=queue) for number, queue in enumerate(queues))
    return PoolOptions("pool", levels, **more)


@asynccontextmanager
async def running(worker: Worker, client: ServiceBusClient, how: PoolOptions, **more: Any) -> Any:
    async with Pool(worker, how, client, **more) as pool:
        yield pool


class Recorder(Worker):
    """Remembers what it gets."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.counts: list[int] = []

    async def process_message(self, message: Any) -> Outcome | None:
        self.seen.append(str(message))
        self.counts.append(self.work.delivery_count)
        return None


class Holding(Recorder):
    """Keeps each message until the test lets it go, or until it is asked to stop."""

    is_preemptible = True

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, asyncio.Event] = {}
        self.works: list[Work] = []
        self.states: list[bytes | None] = []
        self.is_open = False

    async def process_message(self, message: Any) -> Outcome | None:
        name = str(message)
        work = self.work
        self.works.append(work)
        self.states.append(work.state)
        await super().process_message(message)
        gate = self.gates.setdefault(name, asyncio.Event())
        while not gate.is_set() and not self.is_open:
            if await work.stop_requested(0.01):
                return GiveBack(f"{name} at {len(self.seen)}".encode())
        return None
