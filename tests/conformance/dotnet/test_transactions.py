"""Transactions as Azure has them: groups with one root, ids that are unknown, one partition
(docs/findings.md, FX20)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp import types as t
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Dispositions, LinkDetached
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.errors import NotAllowedError
from tandembus.limits import TRANSACTION_TIMEOUT_MS
from tests.unit.core.world import World, message
from tests.unit.server.desk import encode_request
from tests.unit.server.test_gateway import Scene, play

UNKNOWN = "amqp:transaction:unknown-id"


def coordinator(session: Any, name: str = "c") -> Any:
    return session.attach(name, is_sender=True, source=p.Source("me"), target=p.Coordinator())


def sender(session: Any, address: str) -> Any:
    return session.attach(
        f"s-{address}", is_sender=True, source=p.Source("me"), target=p.Target(address)
    )


def receiver(session: Any, address: str) -> Any:
    return session.attach(
        f"r-{address}", is_sender=False, source=p.Source(address), target=p.Target("me")
    )


def letter(text: str) -> bytes:
    return encode_message(body=text, message_id=text)


def asked(performative: Any) -> list[bytes]:
    return [b"\x00\x53\x77" + p.encode_performative(performative)]


async def declared(scene: Scene, link: Any) -> bytes:
    """The id of a new transaction."""
    link.deliver(b"d", asked(p.Declare()))
    await scene.talk()
    state = outcomes(scene)[-1]
    assert isinstance(state, p.Declared)
    return state.txn_id


def outcomes(scene: Scene) -> list[p.DeliveryState | None]:
    return [event.state for event in scene.events if isinstance(event, Dispositions)]


def condition(state: object) -> str | None:
    assert isinstance(state, p.Rejected), state
    return None if state.error is None else state.error.condition


def refusals(scene: Scene) -> dict[str, str]:
    """Links that the broker has ended, with the condition."""
    return {
        event.link.name: event.error.condition
        for event in scene.events
        if isinstance(event, LinkDetached) and event.error is not None
    }


async def entities(scene: Scene) -> None:
    for name in ("a", "b"):
        await scene.broker.execute(c.CreateQueue(name), everything())
    await scene.broker.execute(c.CreateTopic("t"), everything())
    for name in ("s1", "s2"):
        await scene.broker.execute(c.CreateSubscription("t", name), everything())


@pytest.mark.req("T23")
@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_fx20_a_group_receives_from_its_root_only(first: str) -> None:
    """The coordinator comes first, the entity of the next link is the root: it sends to all, and
    receives from the root and its dead-letter queue."""

    async def work(scene: Scene) -> None:
        await entities(scene)
        session = scene.client.begin()
        coordinator(session)
        root = sender(session, "a") if first == "sender" else receiver(session, "a")
        await scene.talk()
        allowed = [
            root,
            sender(session, "b"),
            sender(session, "t"),
            receiver(session, "A/$DeadLetterQueue"),
            sender(session, "a/$management"),
            sender(session, "b/$management"),
        ]
        others = [
            receiver(session, each) for each in ("b", "b/$DeadLetterQueue", "t/subscriptions/s1")
        ]
        await scene.talk()
        assert {link.state.value for link in allowed} == {"attached"}
        assert refusals(scene) == {link.name: "amqp:not-allowed" for link in others}
        elsewhere = receiver(scene.client.begin(), "b")
        await scene.talk()
        assert elsewhere.state.value == "attached"

    play(work)


@pytest.mark.req("T23")
def test_fx20_a_group_whose_root_is_a_subscription() -> None:
    """What belongs to the topic is one entity."""

    async def work(scene: Scene) -> None:
        await entities(scene)
        session = scene.client.begin()
        coordinator(session)
        links = [receiver(session, f"t/subscriptions/{name}") for name in ("s1", "s2")]
        other = receiver(session, "a")
        await scene.talk()
        assert {link.state.value for link in links} == {"attached"}
        assert refusals(scene) == {other.name: "amqp:not-allowed"}

    play(work)


@pytest.mark.req("T23")
def test_fx20_a_link_to_nothing_is_no_root() -> None:
    async def work(scene: Scene) -> None:
        await entities(scene)
        session = scene.client.begin()
        coordinator(session)
        nothing = [receiver(session, "none"), sender(session, "none")]
        link = receiver(session, "b")
        await scene.talk()
        assert refusals(scene) == {each.name: "amqp:not-found" for each in nothing}
        assert link.state.value == "attached"

    play(work)


@pytest.mark.req("T23")
@pytest.mark.parametrize("is_group", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_fx20_a_transaction_over_entities(is_group: bool, fail: bool) -> None:
    """In a group it settles in the root and sends to others. Without a group it may also settle in
    several entities: Azure refuses that, and docs/azure-differences.md says why we do not."""

    async def work(scene: Scene) -> None:
        await entities(scene)
        for name in ("a", "b"):
            await scene.broker.execute(c.Send(name, [AmqpMessage(letter(name))]), everything())
        session = scene.client.begin()
        if is_group:
            link = coordinator(session)
        settles = [receiver(session, "a")]
        sends = [sender(session, "b"), sender(session, "t")]
        if not is_group:
            settles.append(receiver(session, "b"))
            link = coordinator(session)
        await scene.talk()
        for each in settles:
            each.grant(1)
        await scene.talk()
        txn_id = await declared(scene, link)
        for event in scene.received():
            state = p.TransactionalState(txn_id, p.ACCEPTED)
            event.link.settle([event.delivery_id], state, settled=False)
        for each in sends:
            each.deliver(b"x", [letter("new")], state=p.TransactionalState(txn_id))
        await scene.talk()
        link.deliver(b"e", asked(p.Discharge(txn_id, fail)))
        await scene.talk()
        assert outcomes(scene)[-1] == p.ACCEPTED
        there: dict[str, list[str]] = {}
        for name in ("a", "b", "t/subscriptions/s1"):
            shown = await scene.broker.execute(c.Browse(name, 0, 9), everything())
            bodies = [AmqpMessage(scene.broker.engine.body(each.body)) for each in shown]
            there[name] = sorted(str(each.message_id) for each in bodies)
        if fail:
            assert there == {"a": ["a"], "b": ["b"], "t/subscriptions/s1": []}
        else:
            left = ["b", "new"] if is_group else ["new"]
            assert there == {"a": [], "b": left, "t/subscriptions/s1": ["new"]}

    play(work)


# --- ids that are unknown -------------------------------------------------------------------------


async def unknown_ids(scene: Scene) -> dict[str, bytes]:
    """Ids that nobody has, or that are over, or somebody else's."""
    link = coordinator(scene.client.begin())
    await scene.talk()
    over = await declared(scene, link)
    link.deliver(b"e", asked(p.Discharge(over, False)))
    late = await declared(scene, link)
    scene.clock.advance(TRANSACTION_TIMEOUT_MS)
    other = Scene(
        scene.broker, scene.clock, Connection(Role.CLIENT, container_id="o", use_sasl=False)
    )
    other.client.open()
    foreign_link = coordinator(other.client.begin())
    await other.talk()
    return {
        "nobody's": b"\0" * 7 + b"\x63",
        "empty": b"",
        "longer": b"\x01" * 32,
        "over": over,
        "too late": late,
        "foreign": await declared(other, foreign_link),
    }


KINDS = ("nobody's", "empty", "longer", "over", "too late", "foreign")


@pytest.mark.req("T23")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("road", ["transfer", "disposition", "schedule", "update", "discharge"])
def test_fx20_an_unknown_id_is_told_so_on_every_road(kind: str, road: str) -> None:
    """With the condition that the standard has, and nothing of what was asked is done."""

    async def work(scene: Scene) -> None:
        await entities(scene)
        await scene.broker.execute(c.Send("a", [AmqpMessage(letter("a"))]), everything())
        session = scene.client.begin()
        ids = await unknown_ids(scene)
        sends, takes, link = sender(session, "a"), receiver(session, "a"), coordinator(session)
        asks, answers = sender(session, "a/$management"), receiver(session, "a/$management")
        await scene.talk()
        answers.grant(10)
        takes.grant(1)
        await scene.talk()
        (given,) = scene.received()
        scene.events.clear()
        state = p.TransactionalState(ids[kind])
        if road == "transfer":
            sends.deliver(b"x", [letter("x")], state=state)
        elif road == "disposition":
            settled = p.TransactionalState(ids[kind], p.ACCEPTED)
            takes.settle([given.delivery_id], settled, settled=False)
        elif road == "discharge":
            link.deliver(b"e", asked(p.Discharge(ids[kind], False)))
        else:
            payload = encode_message(body=b"x", scheduled_ms=scene.clock.now_ms() + 60_000)
            body: object = {"messages": [{"message": payload, "message-id": "m"}]}
            operation = "com.microsoft:schedule-message"
            if road == "update":
                operation = "com.microsoft:update-disposition"
                token = UUID(bytes_le=given.tag)
                body = {"disposition-status": "completed", "lock-tokens": t.Array([token], 0x98)}
            request = encode_request(operation, body, reply_to="me")
            asks.deliver(b"a", [request], settled=True, state=state)
        await scene.talk(40)
        if road in ("schedule", "update"):
            (answer,) = scene.received()
            said = AmqpMessage(answer.payload).properties
            assert (said["statusCode"], said["errorCondition"]) == (404, UNKNOWN)
        else:
            (told,) = outcomes(scene)
            assert condition(told) == UNKNOWN
        shown = await scene.broker.execute(c.Browse("a", 0, 9), everything())
        assert [each.sequence_number for each in shown] == [1]

    play(work)


# --- partitions -----------------------------------------------------------------------------------


def keyed(*keys: str | None) -> list[AmqpMessage]:
    return [message("x", partition_key=key) for key in keys]


def _by_partition(world: World) -> Iterator[tuple[int, Any]]:
    for delivery in world.receive("q", 99):
        yield delivery.sequence_number >> 48, delivery


@pytest.mark.req("T23")
def test_fx20_a_transaction_is_in_one_partition() -> None:
    """Of each entity: sends with two keys, settlements of two partitions, or one of each, are
    refused at once, and the rest of the transaction stands."""
    world = World()
    world.queue("q", enable_partitioning=True, requires_duplicate_detection=False)
    world.queue("other", enable_partitioning=True)
    world.send("q", *keyed("1", "1", "2"))
    there: dict[int, list[Any]] = {}
    for partition, delivery in _by_partition(world):
        there.setdefault(partition, []).append(delivery)
    (of_2,), of_1 = sorted(there.values(), key=len)
    assert len(of_1) == 2

    def send(number: int, *keys: str | None, to: str = "q") -> c.Command:
        return c.Send(to, keyed(*keys), transaction=number)

    def settle(number: int, *deliveries: Any) -> c.Command:
        tokens = [each.token for each in deliveries]
        return c.Settle("q", tokens, c.Disposition.COMPLETE, transaction=number)

    cases: list[tuple[Any, Any]] = [
        (lambda n: send(n, "1"), lambda n: send(n, "2")),
        (lambda n: send(n, "1"), lambda n: settle(n, of_2)),
        (lambda n: settle(n, of_1[0]), lambda n: settle(n, of_2)),
        (lambda n: settle(n, of_1[0]), lambda n: send(n, "2")),
        (lambda n: send(n, None), lambda n: send(n, "1", "2")),
        (lambda n: send(n, None), lambda n: settle(n, of_1[0], of_2)),
    ]
    for allowed, refused in cases:
        number = world.do(c.Declare())
        world.do(allowed(number))
        world.refused(NotAllowedError, refused(number), match="one partition of 'q'")
        world.do(send(number, "1"))
        world.do(send(number, "2", to="other"))
        world.do(c.Discharge(number, fail=True))
    number = world.do(c.Declare())
    world.do(settle(number, *of_1))
    world.do(send(number, "1", None, "1"))
    world.do(send(number, "2", "2", to="other"))
    world.do(c.Discharge(number))
    assert (world["q"].active_count, world["other"].active_count) == (4, 2)


@pytest.mark.req("T23")
def test_fx20_what_is_scheduled_in_a_transaction_is_in_one_partition() -> None:
    """Also where it has its number at once, and what is cancelled."""
    world = World(restarts=True)
    world.queue("q", enable_partitioning=True)
    soon = world.now + 1_000

    def schedule(number: int, *keys: str | None) -> c.Command:
        letters = [message("x", partition_key=key, scheduled_ms=soon) for key in keys]
        return c.Send("q", letters, transaction=number, is_numbered=True)

    (kept,) = world.do(c.Send("q", [message("k", partition_key="2", scheduled_ms=soon)]))
    number = world.do(c.Declare())
    first = world.do(schedule(number, "1"))
    world.refused(NotAllowedError, schedule(number, "2"))
    world.refused(NotAllowedError, c.CancelScheduled("q", [kept], number))
    # Without a key each goes where there is room.
    numbers = world.do(schedule(number, *[None] * 8))
    assert len({each >> 48 for each in numbers}) > 1
    world.do(c.CancelScheduled("q", first))
    world.do(c.Discharge(number, fail=True))
    world.tick()
    world.wait(5_000)
    assert world.waiting("q") == ["k"]


def test_fx20_sessions_of_a_partitioned_queue_are_in_their_partition() -> None:
    world = World()
    world.queue("q", enable_partitioning=True, requires_session=True)
    number = world.do(c.Declare())
    world.do(c.Send("q", [message("x", session_id="1")], transaction=number))
    other = c.Send("q", [message("x", session_id="2")], transaction=number)
    world.refused(NotAllowedError, other)
    world.do(c.Send("q", [message("y", session_id="1")], transaction=number))
    world.do(c.Discharge(number))
    assert world["q"].active_count == 2
