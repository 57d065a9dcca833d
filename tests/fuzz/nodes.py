"""F3: requests, tokens, messages and batches through the gateway and the engine.

The rule: every request is answered and nothing is raised past the gateway; what was stored can be
shown, and is there after a restart.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from tandembus.amqp.message import APPLICATION_PROPERTIES, AmqpMessage, sections
from tandembus.amqp.types import decode
from tandembus.clock import ManualClock
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.errors import Refused, TandemError
from tandembus.server.asking import Asking
from tandembus.server.broker import Broker
from tandembus.server.gateway import Gateway
from tandembus.server.incoming import messages_of
from tandembus.server.nodes import Node
from tandembus.server.stored import as_bytes
from tandembus.settings import QueueSettings
from tandembus.store.memory import MemoryStore
from tests.fuzz import seeds, traffic
from tests.fuzz.judge import Violation, told
from tests.fuzz.mutate import Mutator

NODES: Final = (
    Node("$cbs", None),
    *(
        Node("$management", path)
        for path in (
            traffic.QUEUE,
            traffic.SESSIONS,
            traffic.SUBSCRIPTION.lower(),
            traffic.TOPIC,
            f"{traffic.QUEUE}/$deadletterqueue",
        )
    ),
)
ENTITIES: Final = (traffic.QUEUE, traffic.SESSIONS, traffic.TOPIC)
_PATIENCE_S: Final = 20


class Desk:
    """One broker in memory after the other, each with the gateway of one peer."""

    LIFE: Final = 1_500

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._failures: list[str] = []
        self._broker: Broker | None = None
        self._store: MemoryStore
        self._gateway: Gateway
        self._age = 0
        self.recovered = 0

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        known = isinstance(error, BaseException)
        self._failures.append(told(error) if known else str(context["message"]))  # type: ignore[arg-type]

    def feed(self, data: bytes) -> None:
        """The first byte says where it goes: a node, or an entity as a message or a batch."""
        self._loop.run_until_complete(self._feed(data))
        if self._failures:
            why = self._failures[0]
            self._failures.clear()
            raise Violation(why)

    async def _feed(self, data: bytes) -> None:
        if self._broker is None:
            await self._open(MemoryStore())
        elif self._age >= self.LIFE:
            await self._restart()
        self._age += 1
        where = data[0] if data else 0
        async with asyncio.timeout(_PATIENCE_S):
            if where < 128:
                await self._ask(NODES[where % len(NODES)], data[1:])
            else:
                await self._send(ENTITIES[where % len(ENTITIES)], where & 8 != 0, data[1:])

    async def _ask(self, node: Node, payload: bytes) -> None:
        reply, _ = await self._gateway.answer(node, payload, None)
        if reply is None:
            return
        reply = as_bytes(reply)
        for code, start, _ in sections(reply):
            if code == APPLICATION_PROPERTIES:
                said, _ = decode(reply, start + 3)
                assert isinstance(said, dict)
                status = said.get("statusCode", said.get("status-code"))
                if not isinstance(status, int) or (status >= 500 and status not in (501, 503)):
                    raise Violation(f"answered with {status}: {said}")
                return
        raise Violation("a reply says no status")

    async def _send(self, path: str, is_batch: bool, payload: bytes) -> None:
        assert self._broker is not None
        form = seeds.BATCH if is_batch else 0
        try:
            messages = messages_of(payload, form, self._broker.clock.random_bits)
        except TandemError:
            return
        try:
            await self._broker.execute(c.Send(path, messages), everything())
        except Refused:
            return

    async def _open(self, store: MemoryStore) -> None:
        self._store = store
        self._age = 0
        self._broker = await Broker.open(
            "default", store, on_failure=self._failed, clock=ManualClock()
        )
        if traffic.QUEUE not in self._broker.namespace:
            for command in (
                c.CreateQueue(traffic.QUEUE),
                c.CreateQueue(traffic.SESSIONS, QueueSettings(requires_session=True)),
                c.CreateTopic(traffic.TOPIC),
                c.CreateSubscription(traffic.TOPIC, "all"),
            ):
                await self._broker.execute(command, everything())
        self._gateway = Gateway(
            self._broker, lambda _: None, lambda: None, peer="fuzz", on_open=lambda: None
        )

    def _failed(self, error: Exception) -> None:
        self._failures.append(told(error))

    async def _restart(self) -> None:
        """Kill it, recover from its log, and look at all that is there."""
        assert self._broker is not None
        store = self._store.reopened()
        await self._end()
        await self._open(store)
        assert self._broker is not None
        claims = everything()
        for path in (traffic.QUEUE, traffic.SESSIONS, traffic.SUBSCRIPTION):
            shown = await self._broker.execute(c.Browse(path, 0, 250), claims)
            for delivery in shown:
                AmqpMessage(as_bytes(Asking(self._gateway).render(path, delivery))).check()
                self.recovered += 1
        await self._end()
        await self._open(MemoryStore())

    async def _end(self) -> None:
        if self._broker is not None:
            self._gateway.lost()
            broker, self._broker = self._broker, None
            try:
                await broker.close()
            except TandemError:
                self._failures.clear()  # its store was taken away, as by a kill

    def close(self) -> None:
        self._loop.run_until_complete(self._end())
        self._loop.close()


def requests() -> list[bytes]:
    """Requests to each node that knows them, and messages."""
    chance = random.Random(5)
    made = []
    for payload in traffic.requests():
        for place in range(len(NODES)):
            made.append(bytes((place,)) + payload)
    for payload in seeds.messages():
        if len(payload) < 5_000:
            made.append(bytes((128 + chance.randrange(128),)) + payload)
    return made


def stream(seed: int) -> Mutator:
    return Mutator(requests(), seed)
