"""The asyncio client and a real broker: the same conversation in another shell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tandembus.client import (
    AsyncClient,
    NextSession,
    OutgoingMessage,
    ReceiveMode,
    Rule,
    Settlement,
    dead_letter_path,
    subscription_path,
)
from tandembus.errors import ConnectionLostError, NotAllowedError, UnauthorizedError
from tandembus.testing import LocalBroker


@pytest.fixture(params=["plain", "tls"])
def connection_string(request: pytest.FixtureRequest, broker: LocalBroker) -> str:
    direct = broker.connection_string
    return direct if request.param == "plain" else direct.replace("UseDevelopmentEmulator=true", "")


Work = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture
def run(connection_string: str, certificate: tuple[Path, Path]) -> Callable[[Work], None]:
    """Run a test's coroutine with a client."""

    def run(work: Work) -> None:
        async def main() -> None:
            ca_file = str(certificate[0])
            async with AsyncClient(connection_string, ca_file=ca_file, timeout_s=20) as client:
                await work(client)

        asyncio.run(main())

    return run


@pytest.mark.req("T2", "T3")
def test_overlapping_sends(run: Callable[[Work], None], queue: str) -> None:
    """A thousand at a time, no more in flight than allowed, in order, and all settled."""

    async def work(client: AsyncClient) -> None:
        async with await client.sender(queue, max_in_flight=16) as sender:
            await asyncio.gather(*(sender.send(b"%d" % number) for number in range(1_000)))
            assert (await sender.send_all([b"x"] * 1_000)).check().accepted == 1_000
        got: list[bytes] = []
        async with await client.receiver(queue, prefetch=500) as receiver:
            while len(got) < 2_000:
                page = await receiver.receive(500)
                got += [message.body for message in page]
                await receiver.complete(page)
        assert got == [b"%d" % number for number in range(1_000)] + [b"x"] * 1_000

    run(work)


def test_every_operation(run: Callable[[Work], None], broker: LocalBroker, queue: str) -> None:
    """Settling, deferring, scheduling, browsing, sessions, rules, entities."""
    talks, topic = f"{queue}-talks", f"{queue}-topic"
    broker.create_queue(talks, RequiresSession=True)
    broker.create_topic(topic)
    broker.create_subscription(topic, "all")

    async def work(client: AsyncClient) -> None:
        async with await client.sender(queue) as sender:
            await sender.send_all([b"0", b"1", b"2", b"3", b"4"])
        async with await client.receiver(queue) as receiver:
            first, *rest = await receiver.receive(5)
            assert await receiver.renew(first)
            await receiver.abandon(first)
            await receiver.defer(rest[0])
            await receiver.dead_letter(rest[1], reason="bad")
            await receiver.release(rest[2])
            await client.settle([rest[3].lock_token], Settlement.COMPLETE, queue)
            (deferred,) = await receiver.receive_deferred([rest[0].sequence_number])
            assert await client.renew_locks([deferred.lock_token], queue)
            await receiver.complete(deferred)
            assert {each.body for each in await receiver.receive(5)} == {b"0", b"3"}
        mode = ReceiveMode.RECEIVE_AND_DELETE
        async with await client.receiver(dead_letter_path(queue), mode=mode) as receiver:
            assert (await receiver.receive())[0].dead_letter_reason == "bad"
        due_ms = int(broker.clock.now().timestamp() * 1000) + 60_000
        (number,) = await client.schedule([b"later"], due_ms, queue)
        found = [message.sequence_number async for message in client.browse_all(queue)]
        assert number in found
        await client.cancel_scheduled([number], queue)
        assert await client.delete_messages(10, queue) == 0, "both are locked"

        async with await client.sender(talks) as sender:
            await sender.send(OutgoingMessage(b"x", session_id="s"))
        async with await client.receiver(talks, session=NextSession.AVAILABLE) as receiver:
            assert receiver.session_id == "s"
            await receiver.set_session_state(b"state")
            assert await receiver.get_session_state() == b"state"
            assert await receiver.renew_session() >= (receiver.session_locked_until_ms or 0)
        assert await client.list_sessions(talks) == ["s"]

        path = subscription_path(topic, "all")
        await client.add_rule(path, Rule("r", "a = 1"))
        await client.remove_rule(path, "$Default")
        assert [rule.name for rule in await client.list_rules(path)] == ["r"]
        made = await asyncio.to_thread(client.entities.get_queue, queue)
        assert made.counts["ActiveMessageCount"] == 2

    run(work)


def test_a_receive_that_is_cancelled(run: Callable[[Work], None], queue: str) -> None:
    """Nothing is lost: what comes later is there for the next call."""

    async def work(client: AsyncClient) -> None:
        async with await client.receiver(queue) as receiver:
            task = asyncio.create_task(receiver.receive(5, wait_s=60))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with await client.sender(queue) as sender:
                await sender.send(b"kept")
            assert [each.body for each in await receiver.receive(5)] == [b"kept"]

    run(work)


def test_errors(run: Callable[[Work], None], broker: LocalBroker, queue: str) -> None:
    """A refused message, a lost connection, and a client that connects again."""
    talks = f"{queue}-refused"
    broker.create_queue(talks, RequiresSession=True)

    async def work(client: AsyncClient) -> None:
        async with await client.sender(talks) as sender:
            with pytest.raises(NotAllowedError):
                await sender.send(b"no session")
        sender = await client.sender(queue)
        assert client._line is not None
        client._line._transport.abort()
        with pytest.raises(ConnectionLostError):
            await sender.send(b"x")
        async with await client.sender(queue) as sender:
            await sender.send(b"y")

    run(work)


def test_who_cannot_be_reached(broker: LocalBroker) -> None:
    """A certificate that is not trusted, and a port where nobody listens."""

    async def main() -> None:
        direct = broker.connection_string.replace("UseDevelopmentEmulator=true", "")
        with pytest.raises(UnauthorizedError, match="certificate"):
            await AsyncClient(direct, timeout_s=20).connect()
        with LocalBroker.start() as other:
            gone = other.connection_string
        with pytest.raises(ConnectionLostError, match="localhost"):
            await AsyncClient(gone, timeout_s=5).connect()

    asyncio.run(main())
