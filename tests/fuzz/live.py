"""F2: mutated frames against live connections, as server and as client.

A broker in memory serves a well-behaved peer all the time: every message that it sends must come
back to it, in order. Beside it, connection after connection opens as it should and then says
anything.

The rule: nothing is raised, no callback of the loop fails, what is written back are frames, and
when a connection is gone nothing of it is left in the broker.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import (
    Closed,
    Dispositions,
    Event,
    LinkAttached,
    LinkFlow,
    MessageReceived,
)
from tandembus.amqp.frames import AMQP_HEADER, SASL_HEADER, frame
from tandembus.amqp.link import Link
from tandembus.amqp.message import DATA, encode_message, sections
from tandembus.amqp.performatives import ACCEPTED
from tandembus.amqp.session import MAPPED
from tandembus.clock import ManualClock
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.server.broker import Broker
from tandembus.server.gateway import Gateway
from tandembus.settings import QueueSettings
from tandembus.store.memory import MemoryStore
from tests.fuzz import traffic
from tests.fuzz.judge import MAX_BYTES, MAX_CPU_S, Distinct, Finding, Violation, told

SERVER: Final = "live"
CLIENT: Final = "client"
_PATIENCE_S: Final = 60
_WORLD: Final = 400
"""Connections that one broker lives for: what they leave in its queues is not for ever."""


class World:
    """A broker in memory, its well-behaved peer, and all that has gone wrong."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.failures: list[str] = []
        self.broker: Broker
        self.friend: Friend

    async def open(self) -> World:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        self.broker = await Broker.open(
            "default",
            MemoryStore(),
            on_failure=lambda error: self.failures.append(told(error)),
            clock=self.clock,
        )
        for command in (
            c.CreateQueue(traffic.QUEUE),
            c.CreateQueue(traffic.SESSIONS, QueueSettings(requires_session=True)),
            c.CreateTopic(traffic.TOPIC),
            c.CreateSubscription(traffic.TOPIC, "all"),
            c.CreateQueue(traffic.QUIET),
        ):
            await self.broker.execute(command, everything())
        self.friend = Friend(self.broker)
        await self.friend.exchange()
        return self

    async def close(self) -> None:
        self.friend.gateway.lost()
        await turns(3)
        await self.broker.close()
        gc.collect()
        await turns(2)
        self.check()

    def check(self) -> None:
        if self.failures:
            raise Violation(self.failures[0])

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(told(error) if error is not None else str(context["message"]))


def _nothing() -> None:
    """Nobody has to be told."""


def receive(gateway: Gateway, data: bytes) -> None:
    """All of it, over as many turns as the gateway wants."""
    while gateway.receive(data):
        data = b""


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Friend:
    """A peer that behaves: sends numbered messages to itself and completes each."""

    def __init__(self, broker: Broker) -> None:
        self._client = Connection(Role.CLIENT, container_id="friend", use_sasl=False)
        self.gateway = Gateway(broker, self._heard, _nothing, peer="friend", on_open=_nothing)
        self._client.open()
        session = self._client.begin()
        self._out = session.attach(
            "out", is_sender=True, source=p.Source("x"), target=p.Target(traffic.QUIET)
        )
        self._in = session.attach(
            "in", is_sender=False, source=p.Source(traffic.QUIET), target=p.Target("x")
        )
        self.got = 0
        self.accepted = 0
        self.sent = 0
        self._changed = asyncio.Event()

    def _heard(self, data: Sequence[Any]) -> None:
        for event in self._client.receive_data(b"".join(bytes(each) for each in data)):
            self._on_event(event)
        self._changed.set()

    def _on_event(self, event: Event) -> None:
        match event:
            case LinkAttached(link) if not link.is_sender:
                link.grant(10)
            case MessageReceived(link, number, _, payload):
                (start,) = [at for code, at, _ in sections(payload) if code == DATA]
                body = payload[start + 5 :]
                if body != b"%d" % self.got:
                    raise Violation(f"the well-behaved peer got {body!r:.60}, not {self.got}")
                self.got += 1
                link.settle([number], ACCEPTED, settled=True)
                link.grant(10)
            case Dispositions(_, deliveries, p.Accepted()):
                self.accepted += len(deliveries)
            case Closed(error):
                raise Violation(f"the well-behaved peer was sent away: {error}")
            case _:
                pass

    def _say(self) -> None:
        for data in self._client.data_to_send():
            receive(self.gateway, bytes(data))

    async def exchange(self) -> None:
        """One message there and back."""
        self._say()
        async with asyncio.timeout(_PATIENCE_S):
            while not self._out.capacity:
                await self._next()
            self._out.deliver(b"t", [encode_message(body=b"%d" % self.sent)])
            self.sent += 1
            self._say()
            while self.got < self.sent or self.accepted < self.sent:
                await self._next()

    async def _next(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        self._say()


# --- the other peer -------------------------------------------------------------------------------


class Stranger:
    """One hostile connection to a broker. What it has said is kept, to be said again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.said: list[bytes] = []
        self.slowest_s = 0.0
        self._heard = bytearray()
        self._owners = set(world.broker._owners)
        self._is_sent_away = False
        self.gateway = Gateway(
            world.broker, self._hear, self._send_away, peer="stranger", on_open=_nothing
        )

    def _send_away(self) -> None:
        self._is_sent_away = True

    def _hear(self, data: Sequence[Any]) -> None:
        for each in data:
            self._heard += each

    @property
    def is_over(self) -> bool:
        connection = self.gateway.connection
        return self._is_sent_away or connection.is_finished

    @property
    def has_session(self) -> bool:
        """Whether anybody still looks at what it says."""
        return any(it.state is MAPPED for it in self.gateway.connection.sessions)

    def say(self, data: bytes) -> None:
        self.said.append(data)
        begin = time.thread_time()
        receive(self.gateway, data)
        self.slowest_s = max(self.slowest_s, time.thread_time() - begin)

    async def go(self) -> None:
        """Hang up, and look whether anything is left."""
        gateway = self.gateway
        limit = gateway.connection.max_partial_bytes
        if gateway.connection.partial_bytes > limit or gateway.connection.partial_bytes < 0:
            raise Violation(f"{gateway.connection.partial_bytes} bytes of unfinished messages")
        check_frames(bytes(self._heard))
        gateway.lost()
        for _ in range(10_000):  # what came before the end is still looked at
            if gateway not in self.world.broker.holders:
                break
            await turns(1)
        await turns(2)
        self.world.check()
        left = [owner for number, owner in self.world.broker._owners.items()
                if number not in self._owners]  # fmt: skip
        if left:
            link = getattr(left[0], "link", None)
            raise Violation(f"a link of a connection that is gone is left in the broker: {link!r}")


def check_frames(data: bytes) -> None:
    """What we write is well-formed, whatever was said to us."""
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += 8
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        if size < 8 or at + size > len(data) or data[at + 4] != 2:
            raise Violation(f"a frame of {size} bytes was written wrongly")
        at += size


async def talk(stranger: Stranger, chance_of: traffic.Talk, distinct: Distinct) -> int:
    """One connection from its opening to its end; how many mutants it was given."""
    chance = chance_of.chance
    fed = 0
    for data, counts in chance_of.opening():
        if counts and not stranger.is_over:
            fed += 1
            distinct.add(data)
        stranger.say(data)
    if chance.random() < 0.8:
        await turns(3)
    for _ in range(100):
        if stranger.is_over or (not stranger.has_session and chance.random() < 0.5):
            break
        data, counts = chance_of.next()
        if chance.random() < 0.1:  # several in one piece
            more, more_counts = chance_of.next()
            data += more
            counts = counts or more_counts
        if counts:
            fed += 1
            distinct.add(data)
        stranger.say(data)
        if chance.random() < 0.3:
            await turns(1 + int(chance.random() * 3))
        if chance.random() < 0.02:
            stranger.world.clock.advance(int(chance.random() * 2_000))
            stranger.gateway._tick()
    await turns(2)
    return fed


async def replay(said: Sequence[bytes], *, waits: bool = False) -> float:
    """The same bytes to a new broker; the slowest of them, in seconds of CPU. `waits`: until what
    they caused is on the disk, before the next."""
    world = await World().open()
    stranger = Stranger(world)
    for data in said:
        stranger.say(data)
        await (world.friend.exchange() if waits else turns(3))
    world.clock.advance(1_000)
    stranger.gateway._tick()
    await stranger.go()
    await world.friend.exchange()
    await world.close()
    return stranger.slowest_s


def replay_server(said: Sequence[bytes]) -> None:
    """Raises what it raised when it was found."""
    asyncio.run(replay(said, waits=True))
    slowest = asyncio.run(replay(said))
    if slowest > MAX_CPU_S:
        slowest = min(asyncio.run(replay(said)) for _ in range(3))
        if slowest > MAX_CPU_S:
            raise Violation(f"took {slowest * 1e3:.0f} ms")


def shrunk(said: Sequence[bytes]) -> tuple[bytes, ...]:
    """Fewer inputs that still do it, found by leaving out one after the other."""
    kept = list(said)
    for place in reversed(range(len(kept))):
        without = kept[:place] + kept[place + 1 :]
        try:
            replay_server(without)
        except Exception:  # noqa: BLE001 - it still happens without this one
            kept = without
    return tuple(kept)


class Live:
    """A run of so many mutants."""

    def __init__(self, seed: int) -> None:
        self._talk = traffic.Talk(seed)
        self.distinct = Distinct()
        self.connections = 0
        self.exchanged = 0
        self.fed = 0
        self.slowest_s = 0.0
        self.largest = 0
        self.findings: list[Finding] = []

    def run(self, count: int, most_findings: int = 5) -> None:
        logging.getLogger("tandembus").setLevel(logging.CRITICAL)
        while self.distinct.count < count and len(self.findings) < most_findings:
            asyncio.run(self._life(count))

    async def _life(self, count: int) -> None:
        world = await World().open()
        for number in range(_WORLD):
            if self.distinct.count >= count:
                break
            is_weighed = number % 100 == 99
            if is_weighed:
                gc.collect()
                tracemalloc.start()
            stranger = Stranger(world)
            try:
                await self._connection(stranger)
            except Exception as error:  # noqa: BLE001 - every kind is what we look for
                self.findings.append(Finding(SERVER, tuple(stranger.said), told(error)))
                if is_weighed:
                    tracemalloc.stop()
                return  # whatever is left of this broker
            if is_weighed:
                self.largest = max(self.largest, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
                if self.largest > MAX_BYTES:
                    why = f"took {self.largest} bytes"
                    self.findings.append(Finding(SERVER, tuple(stranger.said), why))
            if stranger.slowest_s > MAX_CPU_S:
                again = await asyncio.to_thread(_seconds_again, stranger.said)
                if again > MAX_CPU_S:
                    why = f"took {again * 1e3:.0f} ms"
                    self.findings.append(Finding(SERVER, tuple(stranger.said), why))
            else:
                self.slowest_s = max(self.slowest_s, stranger.slowest_s)
        try:
            await world.friend.exchange()
            self.exchanged += world.friend.got
            await world.close()
        except Exception as error:  # noqa: BLE001 - as above
            self.findings.append(Finding(SERVER, (), told(error)))

    async def _connection(self, stranger: Stranger) -> None:
        self.connections += 1
        self.fed += await talk(stranger, self._talk, self.distinct)
        await stranger.go()
        if self.connections % 4 == 0:
            await stranger.world.friend.exchange()


def _seconds_again(said: Sequence[bytes]) -> float:
    """In a thread and a loop of its own."""
    return min(asyncio.run(replay(said)) for _ in range(3))


# --- the client's role ----------------------------------------------------------------------------


def feed_client(data: bytes) -> None:
    """A client with sessions and links hears `data` from its server: events, and nothing raised."""
    client = Connection(Role.CLIENT, container_id="c", use_sasl=data[:8] == SASL_HEADER)
    client.open()
    session = client.begin()
    for name, _, is_receiver in traffic.NODES:
        session.attach(name, is_sender=not is_receiver)
    client.data_to_send()
    for event in client.receive_data(data):
        _answer(event)
    client.tick(0)
    client.tick(10**9)
    check_frames(b"".join(bytes(each) for each in client.data_to_send()))


def _answer(event: Event) -> None:
    """As a program would."""
    match event:
        case LinkAttached(link) | LinkFlow(link):
            _use(link)
        case MessageReceived(link, number, settled=False):
            link.settle([number], ACCEPTED)
        case Dispositions(session, deliveries, as_receiver=True):
            session.settle([it.id for it in deliveries], ACCEPTED, as_receiver=False)
        case _:
            pass


def _use(link: Link) -> None:
    if not link.is_sender:
        link.grant(10)
    elif link.capacity:
        link.deliver(b"t", [b"x" * 700])


def server_opening(chance: random.Random) -> bytes:
    """What a server says first."""
    return b"".join((*_SERVER, *(each for each in _GRANTED if chance.random() < 0.7)))


_SERVER: Final = (
    AMQP_HEADER,
    frame(p.encode_performative(p.Open("s", None, 512, 255, 60_000))),
    frame(p.encode_performative(p.Begin(0, 0, 5, 2_048, 255))),
)
_GRANTED: Final = [
    frame(p.encode_performative(traffic.attach(handle, name, address, not is_receiver)))
    for handle, (name, address, is_receiver) in enumerate(traffic.NODES)
]


class ClientStream:
    """A server's opening, then frames of the same mix as for the broker."""

    def __init__(self, seed: int) -> None:
        self._talk = traffic.Talk(seed)

    def next(self) -> tuple[str, bytes]:
        said = [server_opening(self._talk.chance)]
        for _ in range(1 + int(self._talk.chance.random() * 3)):
            said.append(self._talk.next()[0])
        return CLIENT, b"".join(said)
