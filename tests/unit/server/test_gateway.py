"""A connection as the gateway sees it: storms are ended, tokens are awaited, credit is given out by
the handful."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Closed, Event, MessageReceived, Opened
from tandembus.amqp.frames import frame
from tandembus.amqp.message import encode_message
from tandembus.clock import ManualClock
from tandembus.core import commands as c
from tandembus.core.access import Policy, Right, Secret, everything
from tandembus.limits import MAX_CHURN, MAX_HANDED_OUT, TOKEN_TIMEOUT_MS
from tandembus.server.broker import Broker
from tandembus.server.gateway import Gateway
from tandembus.server.incoming import messages_of
from tandembus.store.memory import MemoryStore

KEY = Secret("k" * 32)
POLICIES = (Policy("root", Right.ALL, KEY, KEY),)


class Scene:
    """A client and a gateway, mouth to ear."""

    def __init__(self, broker: Broker, clock: ManualClock, client: Connection) -> None:
        self.broker = broker
        self.clock = clock
        self.client = client
        self.events: list[Event] = []
        self.written: list[bytes] = []
        self._hung_up = 0
        self.opened = 0
        self.gateway = Gateway(broker, self._heard, self._hang_up, peer="p", on_open=self._on_open)

    def _on_open(self) -> None:
        self.opened += 1

    def _heard(self, data: Sequence[Any]) -> None:
        for each in data:
            self.written.append(bytes(each))
            self.events += self.client.receive_data(bytes(each))

    def _hang_up(self) -> None:
        self._hung_up += 1

    def is_hung_up(self) -> bool:
        return bool(self._hung_up)

    async def talk(self, turns: int = 20) -> None:
        """Say all there is to say, for so many turns; one in which the thread that commits is at
        work does not count, because a busy machine can hold that up."""
        engine = self.broker.engine.engine
        patience = 2_000
        while turns:
            for data in self.client.data_to_send():
                has_more = self.gateway.receive(bytes(data))
                while has_more:
                    has_more = self.gateway.receive(b"")
            await asyncio.sleep(0)
            if engine.is_writing and patience:
                patience -= 1
                await asyncio.sleep(0.0005)
            else:
                turns -= 1

    def received(self) -> list[MessageReceived]:
        return [event for event in self.events if isinstance(event, MessageReceived)]

    def closed_with(self) -> str | None:
        for event in self.events:
            if isinstance(event, Closed) and event.error is not None:
                return event.error.condition
        return None


def play(
    work: Callable[[Scene], Awaitable[None]],
    *,
    policies: tuple[Policy, ...] | None = None,
    username: str | None = None,
) -> None:
    async def run() -> None:
        clock = ManualClock()
        broker = await Broker.open(
            "default",
            MemoryStore(),
            policies=policies,
            on_failure=lambda error: pytest.fail(str(error)),
            clock=clock,
        )
        await broker.execute(c.CreateQueue("q"), everything())
        client = Connection(
            Role.CLIENT,
            container_id="c",
            use_sasl=policies is not None,
            username=username,
            password=str.__str__(KEY),
        )
        scene = Scene(broker, clock, client)
        client.open()
        await scene.talk()
        assert any(isinstance(event, Opened) for event in scene.events)
        assert scene.opened == 1
        try:
            async with asyncio.timeout(60):
                await work(scene)
        finally:
            scene.gateway.lost()
            await broker.close()

    asyncio.run(run())


def test_a_storm_of_sessions_is_ended() -> None:
    """Begin and end without end: the connection is closed, and told why."""

    async def work(scene: Scene) -> None:
        begin = frame(p.encode_performative(p.Begin(None, 0, 10, 10)), 1)
        end = frame(p.encode_performative(p.End()), 1)
        for _ in range(MAX_CHURN // 500):
            assert not scene.is_hung_up()
            has_more = scene.gateway.receive((begin + end) * 500)
            while has_more:
                has_more = scene.gateway.receive(b"")
        scene.gateway.receive((begin + end) * 2)
        assert scene.is_hung_up()
        assert b"amqp:resource-limit-exceeded" in b"".join(scene.written)

    play(work)


def test_honest_churn_is_not_ended() -> None:
    """A hundred links a second, for as long as one likes."""

    async def work(scene: Scene) -> None:
        begin = frame(p.encode_performative(p.Begin(None, 0, 10, 10)), 1)
        end = frame(p.encode_performative(p.End()), 1)
        for _ in range(MAX_CHURN // 100 + 50):
            has_more = scene.gateway.receive((begin + end) * 100)
            while has_more:
                has_more = scene.gateway.receive(b"")
            scene.clock.advance(1_000)
        assert not scene.is_hung_up()

    play(work)


def test_a_peer_without_a_token_goes() -> None:
    """SASL ANONYMOUS proves nothing: who brings no token to $cbs is not kept."""

    async def work(scene: Scene) -> None:
        scene.clock.advance(TOKEN_TIMEOUT_MS - 1)
        scene.gateway._tick()
        assert not scene.is_hung_up()
        scene.clock.advance(2)
        scene.gateway._tick()
        assert scene.is_hung_up()
        assert scene.closed_with() == "amqp:connection:forced"

    play(work, policies=POLICIES)


def test_a_peer_with_a_policy_stays() -> None:
    """SASL PLAIN with the name and key of a policy is proof enough."""

    async def work(scene: Scene) -> None:
        scene.clock.advance(TOKEN_TIMEOUT_MS + 1)
        scene.gateway._tick()
        assert not scene.is_hung_up()

    play(work, policies=POLICIES, username="root")


async def _filled(scene: Scene, count: int) -> Any:
    payload = encode_message(body=b"x" * 100, message_id="m")
    messages = messages_of(payload, 0, scene.broker.clock.random_bits)
    for _ in range(count):
        await scene.broker.execute(c.Send("q", messages), everything())
    link = scene.client.begin().attach(
        "r", is_sender=False, source=p.Source("q"), target=p.Target("here")
    )
    await scene.talk()
    return link


@pytest.mark.req("T6")
def test_credit_is_used_by_the_handful_and_in_full() -> None:
    """However much credit there is, a turn hands out a bounded number; in the end all of it."""

    async def work(scene: Scene) -> None:
        count = 3 * MAX_HANDED_OUT
        link = await _filled(scene, count)
        link.grant(count - 10)
        for data in scene.client.data_to_send():
            scene.gateway.receive(bytes(data))
        scene.gateway._write_now()
        assert 0 < len(scene.received()) <= MAX_HANDED_OUT
        await scene.talk(100)
        assert len(scene.received()) == count - 10
        numbers = [event.delivery_id for event in scene.received()]
        assert numbers == sorted(numbers)

    play(work)


def test_a_drain_waits_for_all_that_there_is() -> None:
    """A drain with more credit than there are messages: first all of them, then the answer."""

    async def work(scene: Scene) -> None:
        count = 2 * MAX_HANDED_OUT + 5
        link = await _filled(scene, count)
        link.grant(4_000, drain=True)
        await scene.talk(100)
        assert len(scene.received()) == count
        assert link.credit == 0
        assert not link.is_draining

    play(work)


def test_nothing_is_handed_to_a_peer_that_does_not_read() -> None:
    """While its output is clogged it gets no more; then it goes on where it was."""

    async def work(scene: Scene) -> None:
        link = await _filled(scene, 50)
        scene.gateway.is_stalled = True
        link.grant(50)
        await scene.talk(50)
        assert scene.received() == []
        scene.gateway.unclogged()
        await scene.talk(50)
        assert len(scene.received()) == 50

    play(work)


def test_fx10_unsettled_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who settles nothing gets so many, whatever its credit; more when it has settled some, and
    when locks are over: what cannot be settled any more does not count."""
    most = 500
    monkeypatch.setattr("tandembus.server.outlet.MAX_UNSETTLED_OUT", most)

    async def work(scene: Scene) -> None:
        link = await _filled(scene, most + 800)

        async def get(count: int) -> None:
            """So many, and no more, however long one waits."""
            while len(scene.received()) < count:
                await scene.talk(10)
            await scene.talk(100)
            assert len(scene.received()) == count

        for _ in range(3):
            link.grant(most)
            await get(most)
        link.settle([event.delivery_id for event in scene.received()[:200]], p.ACCEPTED)
        await get(most + 200)
        scene.clock.advance(61_000)
        scene.broker.engine.engine.tick()
        link.grant(most)
        await get(2 * most + 200)

    play(work)
