"""Hours in seconds: an event loop whose time jumps to what is due next, and namespaces in memory
that the pair takes for the SDK's.

The shell, the syphon and all that they stand on are the real ones; only the network, the brokers
and the time are not. A namespace can refuse, hang (with what was sent stored, or not), and a client
can die at any of its calls, as a process does.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
)

from tandembus.amqp.message import AmqpMessage, sections
from tandembus.amqp.types import (
    Long,
    UInt,
    encode,
    encode_composite,
    encode_described,
    encode_map,
    encode_symbol,
)
from tandembus.model import PING_CONTENT_TYPE, Timestamp
from tandembus.pairing import wire
from tandembus.pairing.namespaces import Namespace

T = TypeVar("T")
EPOCH_MS = 1_900_000_000_000
LATENCY_S = 0.005
LOCK_S = 60.0
HANG_S = 60.0
"""How long a call hangs that has no time-out of its own."""


class _Jump(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("nothing is due: the simulated world stands still")
        if timeout > 0:
            self.passed_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.passed_s


class LoopClock:
    """The time of the virtual loop; chance comes from a seed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int) -> None:
        self._loop = loop
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000)

    def not_before(self, now_ms: int) -> None:
        raise NotImplementedError

    def random_bits(self, count: int) -> int:
        return self._random.getrandbits(count)

    def stopwatch_ns(self) -> int:
        return round(self._loop.time() * 1e9)


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


# --- a namespace ----------------------------------------------------------------------------------


class Mood(Enum):
    UP = auto()
    REFUSES = auto()
    HANGS = auto()
    """Sends are stored, but not answered, half of the time."""


@dataclass
class Stored:
    number: int
    payload: bytes
    locked_until: float = 0.0
    token: UUID | None = None
    count: int = 0


@dataclass
class Queue:
    detects_duplicates: bool = True
    mood: Mood = Mood.UP
    messages: dict[int, Stored] = field(default_factory=dict)
    arrived: list[bytes] = field(default_factory=list)
    """All that was ever stored, in order."""
    ids: set[Any] = field(default_factory=set)
    dead: list[tuple[bytes, str]] = field(default_factory=list)
    next_number: int = 1
    news: asyncio.Event = field(default_factory=asyncio.Event)


class World:
    """One namespace. `counts` is its own account of billed operations."""

    def __init__(self, seed: int) -> None:
        self.queues: dict[str, Queue] = {}
        self.mood = Mood.UP
        self.counts: Counter[str] = Counter()
        self.random = random.Random(seed)

    def queue(self, path: str, **settings: Any) -> Queue:
        if path not in self.queues:
            self.queues[path] = Queue(**settings)
        return self.queues[path]

    def mood_of(self, path: str) -> Mood:
        return self.mood if self.mood is not Mood.UP else self.queue(path).mood

    def store(self, path: str, payloads: Sequence[bytes], *, is_answered: bool) -> None:
        queue = self.queue(path)
        for payload in payloads:
            message = AmqpMessage(payload)
            if message.content_type == PING_CONTENT_TYPE:
                self.counts["pings" if is_answered else "unanswered pings"] += 1
                continue
            self.counts["sends" if is_answered else "unanswered sends"] += 1
            if queue.detects_duplicates and message.message_id in queue.ids:
                continue
            queue.ids.add(message.message_id)
            queue.messages[queue.next_number] = Stored(queue.next_number, payload)
            queue.arrived.append(payload)
            queue.next_number += 1
        queue.news.set()

    def namespace(self, name: str, life: Life) -> Namespace:
        return Namespace(name, connect_async=lambda **_: cast(Any, Client(self, life)))


@dataclass
class Life:
    """Of a process: when it is over, no call of its clients goes through. It may end by itself, in
    the middle of its work, after so many calls."""

    is_over: bool = False
    calls: int | None = None

    def check(self) -> None:
        if self.calls is not None:
            self.calls -= 1
            self.is_over = self.is_over or self.calls <= 0
        if self.is_over:
            raise ServiceBusConnectionError(message="the process is dead")


class Client:
    fully_qualified_namespace = "virtual"

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life

    def get_queue_sender(self, path: str, **_: Any) -> Sender:
        return Sender(self._world, self._life, path)

    get_topic_sender = get_queue_sender

    def get_queue_receiver(self, path: str, **_: Any) -> Receiver:
        return Receiver(self._world, self._life, path)

    async def close(self) -> None:
        await asyncio.sleep(0)


class _Handler:
    def __init__(self, world: World, life: Life, path: str) -> None:
        self._world = world
        self._life = life
        self._path = path
        self._amqp_transport: Any = PyamqpTransportAsync

    async def _answered(self, timeout: float | None) -> bool:
        """Whether the call comes through; hangs or raises as the mood is."""
        self._life.check()
        await asyncio.sleep(LATENCY_S)
        self._life.check()
        match self._world.mood_of(self._path):
            case Mood.REFUSES:
                raise ServiceBusConnectionError(message="refused")
            case Mood.HANGS:
                return False
        return True

    async def close(self) -> None:
        await asyncio.sleep(0)


class Sender(_Handler):
    _max_message_size_on_link = 0
    _max_batch_size_on_link = 0

    async def create_message_batch(self, max_size: int | None = None) -> ServiceBusMessageBatch:
        if not self._max_message_size_on_link:
            await self._open(HANG_S)
        return ServiceBusMessageBatch(max_size)

    async def _open(self, timeout: float) -> None:
        if not await self._answered(timeout):
            await asyncio.sleep(timeout)
            raise OperationTimeoutError()
        self._max_message_size_on_link = self._max_batch_size_on_link = 262_144

    async def _do_retryable_operation(self, operation: Any, timeout: float | None, **_: Any) -> Any:
        return await operation(timeout or HANG_S)

    async def send_messages(self, message: Any, timeout: float | None = None) -> None:
        if not isinstance(message, ServiceBusMessageBatch):
            payloads = wire.encoded([message])
        elif isinstance(message._message, list):
            payloads = wire.payloads_of(message)
        else:
            payloads = [message._message.ready]
        if await self._answered(timeout):
            self._world.store(self._path, payloads, is_answered=True)
            return
        if self._world.random.random() < 0.5:
            self._world.store(self._path, payloads, is_answered=False)
        await asyncio.sleep(timeout or HANG_S)
        raise OperationTimeoutError()


class Receiver(_Handler):
    def __init__(self, world: World, life: Life, path: str) -> None:
        super().__init__(world, life, path)

        async def ignored(_: Any) -> None:
            return None

        session = SimpleNamespace(_outgoing_disposition=ignored)
        link = SimpleNamespace(
            _session=session, _received_delivery_tags=set(), current_link_credit=0
        )
        self._handler = SimpleNamespace(_link=link, _received_messages=SimpleQueue())

    async def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait_time
        while True:
            if not await self._answered(None):
                await asyncio.sleep(max(0.0, min(deadline - loop.time(), HANG_S)))
                raise OperationTimeoutError()
            found = self._lock(max_message_count)
            left_s = deadline - loop.time()
            if found or left_s <= 0:
                self._world.counts["receives" if found else "empty receives"] += len(found) or 1
                self._amqp_transport.counted[0] += len(found)
                return found
            queue = self._world.queue(self._path)
            queue.news.clear()
            locks = [each.locked_until - loop.time() for each in queue.messages.values()]
            wait_s = min([left_s, *(lock + 0.001 for lock in locks if lock > 0)])
            with suppress(TimeoutError):
                await asyncio.wait_for(queue.news.wait(), wait_s)

    def _lock(self, most: int) -> list[Any]:
        now = asyncio.get_running_loop().time()
        found: list[Any] = []
        for stored in sorted(self._world.queue(self._path).messages.values(), key=_number):
            if stored.locked_until <= now and len(found) < most:
                stored.locked_until = now + LOCK_S
                stored.token = UUID(int=self._world.random.getrandbits(128))
                found.append(
                    SimpleNamespace(
                        lock_token=stored.token,
                        body=[_delivered(stored)],
                        _delivery_id=stored.number,
                        _delivery_tag=stored.token.bytes_le,
                        _receiver=self,
                    )
                )
        return found

    async def peek_messages(
        self, max_message_count: int, sequence_number: int, timeout: float | None = None
    ) -> list[Any]:
        if not await self._answered(timeout):
            await asyncio.sleep(timeout or HANG_S)
            raise OperationTimeoutError()
        self._world.counts["peeks"] += 1
        messages = sorted(self._world.queue(self._path).messages.values(), key=_number)
        return [
            SimpleNamespace(
                sequence_number=stored.number,
                application_properties={
                    name.encode(): value.encode() if isinstance(value, str) else value
                    for name, value in AmqpMessage(stored.payload).properties.items()
                },
            )
            for stored in messages
            if stored.number >= sequence_number
        ][:max_message_count]

    async def _do_retryable_operation(self, operation: Any) -> None:
        await operation()

    async def _settle_message_via_mgmt_link(
        self, how: str, tokens: Sequence[UUID], details: dict[str, str] | None
    ) -> None:
        if not await self._answered(None):
            await asyncio.sleep(HANG_S)
            raise OperationTimeoutError()
        queue = self._world.queue(self._path)
        now = asyncio.get_running_loop().time()
        held = {each.token: each for each in queue.messages.values() if each.locked_until > now}
        if not all(token in held for token in tokens):
            raise MessageLockLostError()
        for token in tokens:
            stored = held[token]
            if how == "abandoned":
                stored.locked_until, stored.token = 0.0, None
            else:
                del queue.messages[stored.number]
                if details is not None:
                    queue.dead.append((stored.payload, details["deadletter-description"]))
        queue.news.set()


def _number(stored: Stored) -> int:
    return stored.number


def _delivered(stored: Stored) -> bytes:
    """With the header and the annotations of a broker."""
    parts = [(code, stored.payload[a:b]) for code, a, b in sections(stored.payload)]
    null = encode(None)
    header = encode_composite(0x70, [null, null, null, null, encode(UInt(stored.count))])
    marks = encode_map(
        [
            encode_symbol("x-opt-sequence-number"), encode(Long(stored.number)),
            encode_symbol("x-opt-enqueued-time"), encode(Timestamp(EPOCH_MS)),
        ]
    )  # fmt: skip
    rest = b"".join(part for code, part in parts if code not in (0x70, 0x72))
    return header + encode_described(0x72, marks) + rest
