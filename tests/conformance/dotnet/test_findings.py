"""What kept .NET from working, finding by finding: in the recorded scenario that shows it, or by a
client that talks as the SDK does (docs/findings.md, FX)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp import types as t
from tandembus.amqp.events import Dispositions, LinkDetached
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.core import commands as c
from tandembus.core.access import Claims, Grant, Right, everything
from tandembus.errors import ArgumentError, MessageNotFoundError
from tandembus.model import NEVER, Symbol, Timestamp
from tandembus.names import split
from tandembus.server.asking import Asking
from tandembus.server.links import DESTINATION
from tandembus.server.outlet import SESSION_FILTER
from tandembus.server.stored import as_bytes
from tandembus.settings import QueueSettings
from tests.conformance.dotnet.replay import Player
from tests.conformance.dotnet.test_replay import frames_of, premium
from tests.unit.core.world import World, message
from tests.unit.server.desk import encode_request
from tests.unit.server.test_gateway import POLICIES, Scene, play


def replayed(name: str) -> None:
    with premium(name) as broker:
        Player(broker, frames_of(name)).play()


def attached(scene: Scene, name: str, **options: Any) -> Any:
    return scene.client.begin().attach(name, **options)


def sender(scene: Scene, address: str, **options: Any) -> Any:
    return attached(
        scene,
        f"s-{address}",
        is_sender=True,
        source=p.Source("me"),
        target=p.Target(address),
        **options,
    )


def receiver(scene: Scene, address: str, name: str = "r", **options: Any) -> Any:
    source = p.Source(address, filter=options.pop("filter", None))
    return attached(
        scene, f"{name}-{address}", is_sender=False, source=source, target=p.Target("me"), **options
    )


@pytest.mark.req("C7")
@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/orders", "orders"),
        ("orders", "orders"),
        ("/a/b/Subscriptions/s", "a/b/subscriptions/s"),
        ("/orders/$DeadLetterQueue", "orders/$deadletterqueue"),
        ("/orders/%24DeadLetterQueue", "orders/$deadletterqueue"),
        ("/or%64ers", "orders"),
        ("amqps://host/orders", "orders"),
        ("amqps://host:5671/orders/", None),
        ("sb://host/orders/$management", "orders"),
        ("amqp:/orders", "orders"),
        ("//orders", None),
        ("/", None),
        ("/or%2525ders", None),
    ],
)
def test_fx1_every_legal_form_of_an_address(address: str, path: str | None) -> None:
    """A slash in front, percent-encoding, a URI with or without authority; decoded once."""
    if path is None:
        with pytest.raises(ArgumentError):
            split(address)
    else:
        assert split(address).path == path


@pytest.mark.req("T19")
def test_fx3_no_limit_is_announced_where_the_broker_sends() -> None:
    """.NET takes it for what it may receive: what is larger would be lost."""

    async def work(scene: Scene) -> None:
        links = [receiver(scene, "q"), receiver(scene, "q/$management")]
        sends = sender(scene, "q")
        await scene.talk()
        assert [link.remote.max_message_size for link in links] == [None, None]
        assert sends.remote.max_message_size == 256 * 1024

    play(work)


@pytest.mark.req("T23")
def test_fx4_requests_wait_for_the_discharge_of_their_transaction() -> None:
    """Settling a deferred message, scheduling, cancelling: rolled back, nothing has happened."""
    replayed("transaction-management")


@pytest.mark.req("T23")
@pytest.mark.parametrize("is_committed", [True, False])
def test_fx4_what_is_scheduled_in_a_transaction_has_its_number_at_once(is_committed: bool) -> None:
    """It becomes active only if that is committed; a rollback cancels it, and so does a restart."""
    world = World(restarts=True)
    world.queue("q")
    letters = [message("later", scheduled_ms=world.now + 1_000)]
    (kept,) = world.do(c.Send("q", [message("kept", scheduled_ms=world.now + 60_000)]))
    number = world.do(c.Declare())
    assert world.do(c.Send("q", letters, transaction=number, is_numbered=True)) == [2]
    world.do(c.CancelScheduled("q", [kept], number))
    world.wait(5_000)
    assert world["q"].active_count == 0, "the transaction is open"
    world.do(c.Discharge(number, fail=not is_committed))
    world.tick()
    assert world["q"].active_count == is_committed
    world.wait(60_000)
    assert world.waiting("q") == (["later"] if is_committed else ["kept"])


@pytest.mark.req("T23")
def test_fx4_a_restart_cancels_what_an_open_transaction_has_scheduled() -> None:
    world = World()
    world.queue("q")
    number = world.do(c.Declare())
    letters = [message("never", scheduled_ms=world.now + 1_000)]
    world.do(c.Send("q", letters, transaction=number, is_numbered=True))
    world.restart()
    world.wait(5_000)
    assert world.waiting("q") == []
    assert world.browse("q") == []
    world.refused(MessageNotFoundError, c.CancelScheduled("q", [1]))


@pytest.mark.req("T23")
def test_fx6_a_transaction_is_declared_before_any_token() -> None:
    replayed("transaction-first")


def test_fx6_declaring_without_a_token_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all connections; what was discharged makes room, and so does a link that ends."""
    monkeypatch.setattr("tandembus.server.transactions.MAX_UNPROVEN_TRANSACTIONS", 3)

    async def work(scene: Scene) -> None:
        def coordinator() -> Any:
            source = p.Source("me")
            return attached(scene, "c", is_sender=True, source=source, target=p.Coordinator())

        link = coordinator()
        await scene.talk()
        declare = b"\x00\x53\x77" + p.encode_performative(p.Declare())
        for _ in range(4):
            link.deliver(b"d", [declare])
        await scene.talk()
        states = [event.state for event in scene.events if isinstance(event, Dispositions)]
        assert sum(isinstance(state, p.Declared) for state in states) == 3
        assert isinstance(states[-1], p.Rejected)
        assert states[-1].error is not None
        assert states[-1].error.condition == "com.microsoft:server-busy"
        link.detach()
        await scene.talk()
        assert scene.broker.unproven_transactions == 0

    play(work, policies=POLICIES)


def test_fx7_credit_that_comes_before_the_answer_counts() -> None:
    replayed("session-prefetch")


@pytest.mark.req("T23")
def test_fx8_a_settlement_in_a_transaction_is_provisional() -> None:
    """After a rollback the same delivery is completed by itself."""
    replayed("transaction-rollback-settle")
    replayed("transaction")


@pytest.mark.req("T20")
def test_fx9_a_connection_has_thousands_of_sessions_and_links() -> None:
    """.NET has a session for each link: 300 session receivers and 1,000 senders on one."""

    async def work(scene: Scene) -> None:
        settings = QueueSettings(requires_session=True)
        await scene.broker.execute(c.CreateQueue("s", settings), everything())
        receivers = [
            receiver(scene, "s", f"r{n}", filter={SESSION_FILTER: f"session-{n}"})
            for n in range(300)
        ]
        senders = [sender(scene, "q") for _ in range(1_000)]
        await scene.talk(60)
        assert all(link.state.value == "attached" for link in (*receivers, *senders))
        for number, link in enumerate(senders):
            link.deliver(b"%d" % number, [encode_message(body="x", message_id=f"{number}")])
        await scene.talk(60)
        assert scene.broker.namespace.find("q").active_count == 1_000

    play(work)


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("94 0c 3e 00 00 00 00 00 00 00 00 00 00 00 00 00 23", "3.5"),
        ("94 8c 3e 00 00 00 00 00 00 00 00 00 00 00 00 00 23", "-3.5"),
        ("94 b0 04 00 00 00 00 00 00 00 00 00 00 00 00 00 23", "-3.5E-29"),
        ("94 30 3e 00 00 00 00 00 00 00 00 00 00 00 00 00 23", "3.5"),
    ],
)
def test_fx11_decimals_in_both_layouts(encoded: str, value: str) -> None:
    """The standard's, and that of Microsoft's library, which lacks two bits of the exponent."""
    decoded, _ = t.decode(bytes.fromhex(encoded))
    assert decoded == Decimal(value)


def test_fx11_a_decimal_of_net_matches_a_filter() -> None:
    replayed("decimal-filter")


@pytest.mark.req("T22")
def test_fx12_properties_to_modify_keep_their_types() -> None:
    replayed("modify-types")


ALL_TYPES: dict[str, object] = {
    "ubyte": t.UByte(7), "ushort": t.UShort(6), "uint": t.UInt(3), "ulong": t.ULong(4),
    "byte": t.Byte(-8), "short": t.Short(5), "int": t.Int(1), "long": t.Long(2),
    "float": t.Float(1.5), "double": 2.5, "decimal": Decimal("19.99"), "boolean": True,
    "char": t.Char("x"), "uuid": UUID(int=5), "timestamp": Timestamp(1_700_000_000_000),
    "string": "é", "symbol": Symbol("y"), "binary": b"\x01\x02", "null": None,
    "uri": t.Described(Symbol("com.microsoft:uri"), "http://example/x"),
    "offset": t.Described(Symbol("com.microsoft:datetime-offset"), t.Long(638_000_000_000_000_000)),
}  # fmt: skip


@pytest.mark.req("T22")
@pytest.mark.parametrize("road", ["link", "management"])
@pytest.mark.parametrize("how", ["abandoned", "defered", "suspended"])
def test_fx12_every_type_comes_back(road: str, how: str) -> None:
    """From the link and from `$management`; abandoned, deferred and dead-lettered. The roads with
    a restart in them are in test_types."""

    async def work(scene: Scene) -> None:
        payload = encode_message(body="x", message_id="m")
        messages = [AmqpMessage(payload)]
        await scene.broker.execute(c.Send("q", messages), everything())
        link = receiver(scene, "q")
        asks = sender(scene, "q/$management")
        await scene.talk()
        link.grant(1)
        await scene.talk()
        (event,) = scene.received()
        if road == "link":
            fields: dict[object, object] = {Symbol(k): v for k, v in ALL_TYPES.items()}
            outcome: p.Outcome = p.Modified(None, how == "defered", fields)
            if how == "suspended":
                info = {**fields, Symbol("DeadLetterReason"): "why"}
                outcome = p.Rejected(p.Error("com.microsoft:dead-letter", None, info))
            link.settle([event.delivery_id], outcome, settled=False)
        else:
            token = UUID(bytes_le=event.tag)
            body = {
                "disposition-status": how,
                "lock-tokens": t.Array([token], 0x98),
                "properties-to-modify": ALL_TYPES,
            }
            request = encode_request("com.microsoft:update-disposition", body)
            asks.deliver(b"a", [request], settled=True)
        await scene.talk()
        path = "q/$DeadLetterQueue" if how == "suspended" else "q"
        (shown,) = await scene.broker.execute(c.Browse(path, 0, 1), everything())
        scene.gateway.reads_all_types = True
        rendered = as_bytes(Asking(scene.gateway).render(path, shown))
        told = AmqpMessage(rendered)
        found, _ = t.decode(rendered, told._starts[4], typed=True)
        assert isinstance(found, dict)
        for name, value in ALL_TYPES.items():
            assert found[name] == value, name
            wanted = int if type(value) is int else type(value)
            assert type(found[name]) in (wanted, t.Long if wanted is int else wanted), name

    play(work)


def test_fx13_what_pythons_decoder_needs_is_done_for_it_alone() -> None:
    """A character comes to .NET as one."""
    replayed("properties")


@pytest.mark.req("T23")
def test_fx15_send_via_goes_to_the_destination_and_needs_both_rights() -> None:
    async def work(scene: Scene) -> None:
        await scene.broker.execute(c.CreateQueue("to"), everything())
        link = sender(scene, "q", properties={DESTINATION: "to"})
        await scene.talk()
        link.deliver(b"x", [encode_message(body="x", message_id="m")])
        await scene.talk()
        counts = [scene.broker.namespace.find(path).active_count for path in ("q", "to")]
        assert counts == [0, 1]
        for path in ("q", "to"):  # the right on one of them is not enough
            scene.gateway.claims = Claims({path: Grant(path, Right.SEND, NEVER)})
            other = sender(scene, "q", properties={DESTINATION: "to"})
            await scene.talk()
            assert other.state.value != "attached"

    play(work)


def test_fx16_a_deferral_counts_as_a_delivery() -> None:
    world = World(restarts=True)
    world.queue("q")
    world.send("q", "x")
    world.defer("q", world.receive_one("q"))
    for count in (1, 2, 3):
        (deferred,) = world.receive_deferred("q", 1)
        assert deferred.delivery_count == count
        world.defer("q", deferred)


def test_fx17_rules_keep_the_types_of_their_values_and_are_listed_by_name() -> None:
    replayed("topic-rules")


@pytest.mark.req("T14")
def test_fx19_session_ids_differ_in_more_than_case() -> None:
    """One session, shown as it was first spelled; by whatever spelling it is asked for."""
    world = World(restarts=True)
    world.queue("q", requires_session=True)
    world.send("q", message("1", session_id="Order-Ä"), message("2", session_id="ORDER-ä"))
    taken = world.accept_session("q", "order-ä")
    assert taken.session_id == "Order-Ä"
    assert len(world["q"].sessions or ()) == 1


def test_fx20_a_transaction_of_somebody_else_is_unknown() -> None:
    """With the condition that the standard has for it."""

    async def work(scene: Scene) -> None:
        link = sender(scene, "q")
        await scene.talk()
        payload = encode_message(body="x", message_id="m")
        link.deliver(b"x", [payload], state=p.TransactionalState(b"\0" * 7 + b"\x63"))
        await scene.talk()
        (event,) = [event for event in scene.events if isinstance(event, Dispositions)]
        assert isinstance(event.state, p.Rejected)
        assert event.state.error is not None
        assert event.state.error.condition == "amqp:transaction:unknown-id"

    play(work)


def test_fx22_annotations_of_what_is_peeked_at() -> None:
    replayed("peek")
    replayed("schedule")


def test_fx23_attach_and_detach_in_one_read_are_no_error() -> None:
    async def work(scene: Scene) -> None:
        settings = QueueSettings(requires_session=True)
        await scene.broker.execute(c.CreateQueue("s", settings), everything())
        link = receiver(scene, "s", filter={SESSION_FILTER: None})
        link.detach()
        await scene.talk()
        (event,) = [event for event in scene.events if isinstance(event, LinkDetached)]
        assert event.error is None

    play(work)


def test_fx23_a_senders_link_ends_with_its_entity() -> None:
    """When it is used the next time: the message is refused by its name, then the link ends."""

    async def work(scene: Scene) -> None:
        link = sender(scene, "q")
        await scene.talk()
        await scene.broker.execute(c.DeleteEntity("q"), everything())
        link.deliver(b"x", [encode_message(body="x", message_id="m")])
        await scene.talk()
        states = [event.state for event in scene.events if isinstance(event, Dispositions)]
        assert [state.error.condition for state in states] == ["amqp:not-found"]  # type: ignore[union-attr]
        assert any(isinstance(event, LinkDetached) for event in scene.events)

    play(work)


@pytest.mark.req("T19")
def test_fw3_an_oversized_request_is_answered_and_its_link_goes_on() -> None:
    """It says what is wrong; a small one behind it on the same link is carried out."""

    async def work(scene: Scene) -> None:
        session = scene.client.begin()
        node = "q/$management"
        asks = session.attach("asks", is_sender=True, source=p.Source("me"), target=p.Target(node))
        answers = session.attach(
            "answers", is_sender=False, source=p.Source(node), target=p.Target("me")
        )
        await scene.talk()
        answers.grant(10)
        for size in (2_000_000, 10):
            payload = encode_message(body=b"x" * size, scheduled_ms=scene.clock.now_ms() + 60_000)
            body = {"messages": [{"message": payload, "message-id": "m"}]}
            request = encode_request("com.microsoft:schedule-message", body, reply_to="me")
            asks.deliver(b"a", [request], settled=True)
            await scene.talk(80)
        statuses = []
        for event in scene.received():
            said = AmqpMessage(event.payload).properties
            statuses.append((said["statusCode"], said.get("errorCondition")))
        assert statuses == [(413, "amqp:link:message-size-exceeded"), (200, None)]

    play(work)


def test_fw5_declare_with_any_legal_descriptor() -> None:
    async def work(scene: Scene) -> None:
        source = p.Source("me")
        link = attached(scene, "c", is_sender=True, source=source, target=p.Coordinator())
        await scene.talk()
        wide = b"\x00\x80" + (0x77).to_bytes(8, "big")
        link.deliver(b"d", [wide + p.encode_performative(p.Declare())])
        await scene.talk()
        (event,) = [event for event in scene.events if isinstance(event, Dispositions)]
        assert isinstance(event.state, p.Declared)

    play(work)


@pytest.mark.req("T13")
@pytest.mark.parametrize("sent_ms", [None, 3_600_000, 60 * 86_400_000])
def test_fx18_the_lifetime_that_counts_is_told_in_both_places(sent_ms: int | None) -> None:
    """Where the entity allows less than the sender wanted, header, creation-time and
    absolute-expiry-time say what it allows: .NET reads the difference of the latter two."""

    async def work(scene: Scene) -> None:
        entity_ttl_ms = 600_000
        settings = QueueSettings(default_ttl_ms=entity_ttl_ms)
        await scene.broker.execute(c.CreateQueue("short", settings), everything())
        link = sender(scene, "short")
        takes = receiver(scene, "short")
        await scene.talk()
        begins = 1_700_000_000_000
        payload = encode_message(body="x", message_id="m")
        if sent_ms is not None:  # as .NET writes it
            fields = [t.NULL] * 8 + [
                t.encode_timestamp(begins + sent_ms),
                t.encode_timestamp(begins),
            ]
            fields[0] = t.encode_string("m")
            header = t.encode_composite(
                0x70, [t.NULL, t.NULL, t.encode_uint(min(sent_ms, 2**32 - 1))]
            )
            payload = header + t.encode_composite(0x73, fields) + b"\x00\x53\x75\xa0\x01x"
        link.deliver(b"x", [payload])
        takes.grant(1)
        await scene.talk()
        (event,) = scene.received()
        found = AmqpMessage(event.payload)
        assert found.ttl_ms == entity_ttl_ms
        properties, _ = t.decode(event.payload, found._starts[3], typed=True)
        assert isinstance(properties, list)
        assert properties[8] - properties[9] == entity_ttl_ms

    play(work)


def test_fx18_a_time_to_live_above_49_days_is_kept() -> None:
    """The header has no room for it; the difference of the two times has."""
    begins, sixty_days = 1_700_000_000_000, 60 * 86_400_000
    fields = [t.NULL] * 8 + [t.encode_timestamp(begins + sixty_days), t.encode_timestamp(begins)]
    header = t.encode_composite(0x70, [t.NULL, t.NULL, t.encode_uint(2**32 - 1)])
    assert AmqpMessage(header + t.encode_composite(0x73, fields)).ttl_ms == sixty_days


@pytest.mark.req("T23")
def test_fw8_a_settlement_just_before_a_discharge_is_part_of_the_commit() -> None:
    """In one read, the settlement on one session and the discharge on another."""

    async def work(scene: Scene) -> None:
        messages = [AmqpMessage(encode_message(body="x", message_id=str(n))) for n in range(5)]
        await scene.broker.execute(c.Send("q", messages), everything())
        link = receiver(scene, "q")
        source = p.Source("me")
        coordinator = attached(scene, "c", is_sender=True, source=source, target=p.Coordinator())
        await scene.talk()
        link.grant(5)
        coordinator.deliver(b"d", [b"\x00\x53\x77" + p.encode_performative(p.Declare())])
        await scene.talk()
        (declared,) = [it.state for it in scene.events if isinstance(it, Dispositions)]
        assert isinstance(declared, p.Declared)
        state = p.TransactionalState(declared.txn_id, p.ACCEPTED)
        link.settle([event.delivery_id for event in scene.received()], state, settled=False)
        together = b"".join(map(bytes, scene.client.data_to_send()))
        discharge = p.encode_performative(p.Discharge(declared.txn_id, False))
        coordinator.deliver(b"e", [b"\x00\x53\x77" + discharge])
        together += b"".join(map(bytes, scene.client.data_to_send()))
        scene.gateway.receive(together)
        await scene.talk()
        assert sum(scene.broker.namespace.find("q").counts) == 0

    play(work)


def test_fw6_a_ping_has_no_body() -> None:
    """A message with a body is no ping, whatever its content type says."""
    ping = "application/vnd.ms-servicebus-ping"
    assert AmqpMessage(encode_message(content_type=ping, body=b"")).is_ping
    assert AmqpMessage(encode_message(content_type=ping, body=None)).is_ping
    assert not AmqpMessage(encode_message(content_type=ping, body=b"x")).is_ping


@pytest.mark.req("T19", "T23")
def test_fx15_a_message_in_parts_goes_by_way_of_its_queue_too() -> None:
    """What the destination refuses of it stays in the queue in between, as with a small one."""

    async def work(scene: Scene) -> None:
        large = QueueSettings(max_message_size_kb=2_048)
        for path in ("between", "to"):
            await scene.broker.execute(c.CreateQueue(path, large), everything())
        link = sender(scene, "between", properties={DESTINATION: "to"})
        await scene.talk()
        await scene.broker.execute(c.DeleteEntity("to"), everything())
        link.deliver(b"x", [encode_message(body=b"x" * 1_500_000, message_id="m")])
        await scene.talk(80)
        queue = scene.broker.namespace.find("between")
        assert (queue.active_count, *queue.dead_letter_counts) == (0, 0, 1)

    play(work)


@pytest.mark.req("T20", "T23")
def test_fw7_what_was_sent_via_a_queue_and_is_refused_stays_there() -> None:
    """The sender is told that the message was accepted. When the right on the queue in between
    ends, so does the link."""

    async def work(scene: Scene) -> None:
        await scene.broker.execute(c.CreateQueue("to"), everything())
        link = sender(scene, "q", properties={DESTINATION: "to"})
        await scene.talk()
        await scene.broker.execute(c.DeleteEntity("to"), everything())
        link.deliver(b"x", [encode_message(body="x", message_id="m")])
        await scene.talk()
        assert link.state.value == "attached"
        queue = scene.broker.namespace.find("q")
        assert (queue.active_count, *queue.dead_letter_counts) == (0, 0, 1)
        scene.gateway.claims = Claims({"to": Grant("to", Right.SEND, NEVER)})
        scene.gateway._end_links("over")
        await scene.talk()
        assert link.state.value != "attached"

    play(work)
