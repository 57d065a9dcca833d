"""What ends in the middle: connections under a large message, entities under deliveries,
transactions whose time is over. Nobody else is harmed, and nothing is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Dispositions, Event, LinkDetached
from tandembus.amqp.fast import decode_disposition, disposition_frame, encode_state
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.amqp.states import LinkState
from tandembus.amqp.types import Described, ULong
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.core.state import State
from tandembus.errors import (
    EntityNotFoundError,
    MessageSizeExceededError,
    ServerBusyError,
    TandemError,
)
from tandembus.limits import (
    MAX_PIECES,
    MAX_UNPROVEN_PER_CONNECTION,
    MIB,
    MIN_PIECE_COST,
    PIECE_BYTES,
    PIECES_IN_MEMORY,
    READ_BYTES,
    TRANSACTION_TIMEOUT_MS,
)
from tandembus.model import Millis
from tandembus.server.arrival import Arrival, Unfinished
from tandembus.server.links import Inlet
from tandembus.server.management import _check_size
from tandembus.server.outlet import SESSION_FILTER
from tandembus.server.stored import PieceReader
from tandembus.server.turns import Turns
from tandembus.settings import QueueSettings
from tests.conformance.dotnet.test_findings import receiver, sender
from tests.unit.core.world import message
from tests.unit.server.desk import encode_request
from tests.unit.server.test_gateway import POLICIES, Scene, play

LARGE = QueueSettings(max_message_size_kb=10_240)
BODY = bytes(range(256)) * 16 * 1_024
"""4 MiB, so eight pieces."""


async def until(scene: Scene, is_so: Callable[[], object]) -> None:
    """Talk until it is so: commits are another thread's, which a busy machine can hold up."""
    for _ in range(5_000):
        if is_so():
            return
        await scene.talk(1)
        await asyncio.sleep(0.001)
    pytest.fail("it never was so")


async def settle_down(scene: Scene) -> None:
    """Talk until all that was asked is answered."""
    engine = scene.broker.engine.engine
    for _ in range(3):
        await scene.talk(5)
        await until(scene, lambda: not engine._waiting and not engine.is_writing)
    await scene.talk(5)


async def with_large(scene: Scene, count: int = 1) -> None:
    """A queue with large messages, which the client takes."""
    scene.client.max_message_size = scene.client.max_partial_bytes = 1_024 * MIB
    await scene.broker.execute(c.CreateQueue("large", LARGE), everything())
    link = sender(scene, "large")
    await settle_down(scene)
    for number in range(count):
        link.deliver(b"t", [encode_message(body=BODY, message_id=str(number))])
        await settle_down(scene)
    assert scene.broker.namespace.find("large").active_count == count


def pieces_of(scene: Scene) -> int:
    return scene.gateway.unfinished.bytes


@pytest.mark.req("T19")
def test_a_peer_that_goes_under_a_large_message_stops_nobody() -> None:
    """What was about to be written of it is not read any more: its pieces may be freed already."""

    async def work(scene: Scene) -> None:
        await with_large(scene)
        link = receiver(scene, "large")
        await settle_down(scene)
        link.grant(1)
        for data in scene.client.data_to_send():
            scene.gateway.receive(bytes(data))
        while not scene.gateway.connection.streaming.sessions:
            await asyncio.sleep(0)
        scene.gateway.lost()
        written = len(scene.written)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(scene.written) == written
        assert not scene.broker.engine.engine._pinned

    play(work)


def test_a_reader_that_was_closed_reads_nothing() -> None:
    async def work(scene: Scene) -> None:
        await with_large(scene)
        (shown,) = await scene.broker.execute(c.Browse("large", 0, 1), everything())
        engine = scene.broker.engine.engine
        (body,) = engine.bodies((shown.body,))
        reader = PieceReader(engine, shown.body, body)  # type: ignore[arg-type]
        assert reader.read(10, 5) == (b"\x00\x53\x75\xb0\x00\x40\x00\x00" + BODY)[10:15]
        reader.close()
        reader.close()
        with pytest.raises(AssertionError):
            reader.read(0, 1)

    play(work)


@pytest.mark.req("T19", "P11")
def test_receivers_that_take_nothing_cost_no_pieces() -> None:
    """However many have begun a large message: a namespace keeps a few of their pieces."""

    async def work(scene: Scene) -> None:
        count = PIECES_IN_MEMORY + 14
        await with_large(scene, count)
        for number in range(count):
            link = receiver(scene, "large", f"r{number}")
            await settle_down(scene)
            link.grant(1)
        await until(scene, lambda: len(scene.received()) == count)
        assert len(scene.broker.engine.engine._pieces) <= PIECES_IN_MEMORY

    play(work)


@pytest.mark.req("T18")
@pytest.mark.parametrize("what", ["delete", "update", "disable"])
@pytest.mark.parametrize("first", ["send", "attach", "settle", "browse", "schedule"])
def test_answers_come_whatever_becomes_of_their_entity(first: str, what: str) -> None:
    """In one group: something of a queue, its end or another setting, and commands of others. Each
    is answered, with what is true for it."""

    async def work(scene: Scene) -> None:
        link = receiver(scene, "q")
        await settle_down(scene)
        if first == "settle":
            await scene.broker.execute(c.Send("q", [message("m")]), everything())
        link.grant(100)
        await settle_down(scene)
        answers: list[Any] = []
        engine = scene.broker.engine
        engine.begin_turn()

        def ask(command: Any) -> None:
            scene.broker.submit(command, everything(), answers.append)

        match first:
            case "send":
                ask(c.Send("q", [message(str(n)) for n in range(5)]))
            case "attach":
                receiver(scene, "q", "other").grant(5)
                for data in scene.client.data_to_send():
                    scene.gateway.receive(bytes(data))
                engine.begin_turn()
                ask(c.Send("q", [message("x")]))
            case "settle":
                (event,) = scene.received()
                ask(c.Settle("q", (event.tag,), c.Disposition.ABANDON))
            case "browse":
                ask(c.Browse("q", 0, 10))
            case "schedule":
                due: Millis = scene.clock.now_ms() + 60_000
                ask(c.Send("q", [message("later", scheduled_ms=due)]))
        match what:
            case "delete":
                ask(c.DeleteEntity("q"))
            case "update":
                ask(c.UpdateEntity("q", QueueSettings(lock_duration_ms=30_000)))
            case "disable":
                ask(c.UpdateEntity("q", QueueSettings(status="Disabled")))  # type: ignore[arg-type]
        ask(c.CreateQueue("w"))
        engine.end_turn()
        await settle_down(scene)
        assert len(answers) == 3
        assert not isinstance(answers[-1], TandemError)
        assert "w" in scene.broker.namespace

    play(work)


@pytest.mark.req("T18")
def test_a_peer_that_cannot_be_told_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in one answer and in one delivery: the log has it, the connection whose delivery it was
    ends, all others get their answers."""

    async def work(scene: Scene) -> None:
        link = receiver(scene, "q")
        await settle_down(scene)
        link.grant(5)
        await settle_down(scene)
        (owner,) = scene.broker._owners.values()
        owner._deliver = lambda deliveries: 1 / 0  # type: ignore[attr-defined]
        answers: list[Any] = []
        scene.broker.engine.begin_turn()

        def broken(reply: Any) -> None:
            raise RuntimeError("on purpose")

        scene.broker.submit(c.CreateQueue("a"), everything(), broken)
        scene.broker.submit(c.Send("q", [message("x")]), everything(), answers.append)
        scene.broker.submit(c.CreateQueue("b"), everything(), answers.append)
        scene.broker.engine.end_turn()
        await settle_down(scene)
        assert len(answers) == 2
        assert scene.is_hung_up()
        assert scene.broker.engine.engine.failure is None

    play(work)
    assert [record.levelname for record in caplog.records].count("ERROR") == 2
    caplog.clear()


@pytest.mark.req("T19")
def test_small_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece counts more than it has, a message has so many at most, and all connections together
    have a bound; what was counted is given back."""

    async def work(scene: Scene) -> None:
        unfinished = scene.gateway.unfinished
        head = encode_message(body=None, message_id="m") + b"\x00\x53\x75\xb0\x7f\xff\xff\xff"
        arrival = Arrival(unfinished)
        arrival.take(head)
        for _ in range(100):
            arrival.take(b"x")
        assert unfinished.bytes == 101 * MIN_PIECE_COST == scene.broker.unfinished_bytes
        for _ in range(MAX_PIECES):
            arrival.take(b"x")
        with pytest.raises(ServerBusyError, match="too many small parts"):
            arrival.whole(b"x")
        assert unfinished.bytes == 0 == scene.broker.unfinished_bytes
        monkeypatch.setattr("tandembus.server.arrival.MAX_ALL_UNFINISHED_BYTES", MIB)
        arrivals = [Arrival(Unfinished(scene.gateway)) for _ in range(3)]
        for each in arrivals:
            each.take(head + bytes(PIECE_BYTES))
        with pytest.raises(ServerBusyError):
            arrivals[2].whole(b"")
        arrivals[0].drop()
        arrivals[1].release()
        assert scene.broker.unfinished_bytes == 0

    play(work)


@pytest.mark.req("T19", "T23")
def test_a_transaction_whose_time_is_over_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its large messages are dropped, and its place among those of unproven peers is free."""
    monkeypatch.setattr("tandembus.server.transactions.SECOND_MS", -TRANSACTION_TIMEOUT_MS)

    async def work(scene: Scene) -> None:
        await scene.broker.execute(c.CreateQueue("large", LARGE), everything())
        session = scene.client.begin()
        coordinator = session.attach(
            "c", is_sender=True, source=p.Source("me"), target=p.Coordinator()
        )
        link = sender(scene, "large")
        await settle_down(scene)
        coordinator.deliver(b"d", [encode_message(body=None)[:0] + DECLARE])
        await settle_down(scene)
        (declared,) = [it.state for it in scene.events if isinstance(it, Dispositions)]
        assert isinstance(declared, p.Declared)
        state = p.TransactionalState(declared.txn_id)
        link.deliver(b"x", [encode_message(body=BODY, message_id="m")], state=state)
        await settle_down(scene)
        assert pieces_of(scene) > len(BODY)
        assert len(scene.gateway.transactions) == 1
        scene.clock.advance(TRANSACTION_TIMEOUT_MS + 1)
        scene.broker.engine.engine.tick()
        handler = scene.gateway.connection.sessions[0].links[0].context
        handler._end_overdue()
        assert pieces_of(scene) == 0
        assert len(scene.gateway.transactions) == 0

    play(work)


DECLARE = b"\x00\x53\x77\x00\x53\x31\x45"


@pytest.mark.req("T23")
def test_fx6_one_peer_does_not_take_the_place_of_all() -> None:
    """Of transactions before any token a connection has some, on however many links it declares
    them and however many at once, and the others can be declared by others; those whose time is
    over do not count."""

    async def work(scene: Scene) -> None:
        scene.gateway.claims = scene.broker.new_claims()
        session = scene.client.begin()
        links = [
            session.attach(name, is_sender=True, source=p.Source("me"), target=p.Coordinator())
            for name in "cde"
        ]
        await settle_down(scene)
        for number in range(MAX_UNPROVEN_PER_CONNECTION + 5):
            links[number % 3].deliver(b"d", [DECLARE])
        await settle_down(scene)
        assert scene.broker.unproven_transactions == MAX_UNPROVEN_PER_CONNECTION
        assert scene.gateway.transactions.unproven == MAX_UNPROVEN_PER_CONNECTION
        scene.clock.advance(TRANSACTION_TIMEOUT_MS + 1)
        scene.broker.engine.engine.tick()
        for link in scene.gateway.connection.sessions[0].links.values():
            link.context._end_overdue()
        assert scene.broker.unproven_transactions == 0 == scene.gateway.transactions.unproven

    play(work, policies=POLICIES)


def discharge(txn_id: bytes, *, fail: bool) -> bytes:
    inside = b"\xa0" + bytes((len(txn_id),)) + txn_id + (b"\x41" if fail else b"\x42")
    return b"\x00\x53\x77\x00\x53\x32\xc0" + bytes((len(inside) + 1, 2)) + inside


async def declared(scene: Scene) -> tuple[Any, bytes]:
    session = scene.client.begin()
    link = session.attach("c", is_sender=True, source=p.Source("me"), target=p.Coordinator())
    await settle_down(scene)
    link.deliver(b"d", [DECLARE])
    await settle_down(scene)
    state = [it.state for it in scene.events if isinstance(it, Dispositions)][-1]
    assert isinstance(state, p.Declared)
    return link, state.txn_id


IN_A_TURN_OF_ITS_OWN = ("cancel", "unknown", "bad argument", "batch-delete", "too large a request")
"""Requests."""


@pytest.mark.req("T23")
@pytest.mark.parametrize(
    "what",
    [
        "no session", "too large", "too large and settled", "not a message", "lock lost",
        "settled twice", "cancel", "unknown", "bad argument", "batch-delete",
        "too large a request",
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_together", [False, True])
def test_a_transaction_with_a_refused_operation_is_not_committed(
    what: str, is_together: bool
) -> None:
    """Some clients do not show the refusal of an operation: the commit says it, and nothing of the
    transaction is done. Also when all of it came in one read."""

    async def work(scene: Scene) -> None:
        settings = QueueSettings(requires_session=True)
        await scene.broker.execute(c.CreateQueue("s", settings), everything())
        await scene.broker.execute(c.Send("q", [message("held")]), everything())
        coordinator, txn_id = await declared(scene)
        state = p.TransactionalState(txn_id, p.ACCEPTED)
        sends, sends_s = sender(scene, "q"), sender(scene, "s")
        receives = receiver(scene, "q")
        asks = sender(scene, "q/$management")
        await settle_down(scene)
        receives.grant(1)
        await settle_down(scene)
        (event,) = scene.received()
        sends.deliver(b"a", [encode_message(body="good", message_id="good")], state=state)
        match what:
            case "no session":
                sends_s.deliver(b"b", [encode_message(body="x", message_id="x")], state=state)
            case "too large":
                large = encode_message(body=b"x" * 300_000, message_id="x")
                sends.deliver(b"b", [large], state=state)
            case "too large and settled":
                large = encode_message(body=b"x" * 300_000, message_id="x")
                other = sender(scene, "q")
                await settle_down(scene)
                other.deliver(b"b", [large], state=state, settled=True)
            case "unknown" | "bad argument" | "batch-delete" | "too large a request":
                operation, body = {
                    "unknown": ("cancel-everything", {}),
                    "bad argument": ("cancel-scheduled-message", {"sequence-numbers": "x"}),
                    "batch-delete": ("batch-delete-messages", {"message-count": 1}),
                    "too large a request": ("schedule-message", {"x": bytes(5_000_000)}),
                }[what]
                request = encode_request(f"com.microsoft:{operation}", body)
                asks.deliver(b"b", [request], settled=True, state=state)
            case "settled twice":
                receives.settle([event.delivery_id], p.RELEASED, settled=False)
                scene.gateway.receive(b"".join(map(bytes, scene.client.data_to_send())))
                channel = receives.session.channel
                encoded = encode_state(state)
                first = event.delivery_id
                scene.gateway.receive(
                    disposition_frame(channel, True, first, first, False, encoded)
                )
            case "not a message":
                sends.deliver(b"b", [b"\x00\x53\x11"], state=state)
            case "lock lost":
                scene.clock.advance(61_000)
                scene.broker.engine.engine.tick()
                receives.settle(
                    [event.delivery_id], p.TransactionalState(txn_id, p.ACCEPTED), settled=False
                )
            case "cancel":
                body = {"sequence-numbers": [99]}
                request = encode_request("com.microsoft:cancel-scheduled-message", body)
                asks.deliver(b"b", [request], settled=True, state=state)
        together = b"".join(map(bytes, scene.client.data_to_send()))
        if not is_together or what in IN_A_TURN_OF_ITS_OWN:
            scene.gateway.receive(together)
            await settle_down(scene)
            together = b""
        scene.events.clear()
        coordinator.deliver(b"e", [discharge(txn_id, fail=False)])
        scene.gateway.receive(together + b"".join(map(bytes, scene.client.data_to_send())))
        await settle_down(scene)
        (answer,) = [
            it.state
            for it in scene.events
            if isinstance(it, Dispositions)
            and it.deliveries
            and it.deliveries[0].link is coordinator
        ]
        assert isinstance(answer, p.Rejected)
        assert answer.error is not None
        assert answer.error.condition == "amqp:transaction:rollback"
        assert "refused" in str(answer.error.description)
        assert scene.broker.namespace.find("q").active_count <= 1, "nothing was sent"

    play(work)


@pytest.mark.req("T23", "T14")
@pytest.mark.parametrize("fail", [False, True])
def test_a_session_state_is_part_of_a_transaction(fail: bool) -> None:
    """It is set by the commit."""

    async def work(scene: Scene) -> None:
        settings = QueueSettings(requires_session=True)
        await scene.broker.execute(c.CreateQueue("s", settings), everything())
        coordinator, txn_id = await declared(scene)
        receiver(scene, "s", filter={SESSION_FILTER: "a"})
        asks = sender(scene, "s/$management")
        await settle_down(scene)
        owners = scene.gateway.broker._owners.values()
        (link,) = (it for it in owners if hasattr(it, "session_id"))
        body = {"session-id": "a", "session-state": b"new"}
        request = encode_request(
            "com.microsoft:set-session-state", body, associated_link_name="r-s"
        )
        asks.deliver(b"a", [request], settled=True, state=p.TransactionalState(txn_id))
        await settle_down(scene)
        get = c.GetSessionState("s", "a", link.number)  # type: ignore[attr-defined]
        assert await scene.broker.execute(get, everything()) is None
        coordinator.deliver(b"e", [discharge(txn_id, fail=fail)])
        await settle_down(scene)
        assert await scene.broker.execute(get, everything()) == (None if fail else b"new")

    play(work)


@pytest.mark.req("T23")
@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": 0}),
        ("batch-delete-messages", {"message-count": 10}),
        ("add-rule", {"rule-name": "r", "rule-description": {}}),
        ("remove-rule", {"rule-name": "r"}),
    ],
)
def test_what_cannot_be_undone_is_no_part_of_a_transaction(operation: str, body: Any) -> None:
    async def work(scene: Scene) -> None:
        _, txn_id = await declared(scene)
        session = scene.client.begin()
        node = "q/$management"
        asks = session.attach("asks", is_sender=True, source=p.Source("me"), target=p.Target(node))
        answers = session.attach(
            "ans", is_sender=False, source=p.Source(node), target=p.Target("me")
        )
        await settle_down(scene)
        answers.grant(1)
        request = encode_request(f"com.microsoft:{operation}", body, reply_to="me")
        asks.deliver(b"a", [request], settled=True, state=p.TransactionalState(txn_id))
        await settle_down(scene)
        (event,) = scene.received()
        assert b"cannot be part of a transaction" in event.payload

    play(work)


def test_an_answer_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deferred messages that are received at once: more than that are refused before they are
    locked; messages in pieces do not count."""
    monkeypatch.setattr("tandembus.limits.MAX_REPLY_IN_MEMORY", 1_000)

    async def work(scene: Scene) -> None:
        for number in range(3):
            letter = encode_message(body=b"x" * 400, message_id=str(number))
            link = sender(scene, "q")
            await settle_down(scene)
            link.deliver(b"t", [letter])
            await settle_down(scene)
        queue = scene.broker.namespace.find("q")
        _check_size(queue, [1, 2])
        with pytest.raises(MessageSizeExceededError):
            _check_size(queue, [1, 2, 3])

    play(work)


def test_the_sdk_for_javascript_is_told_the_limit_of_a_batch() -> None:
    """It fills its batches by the limit of messages. Others are told both."""

    async def work(scene: Scene) -> None:
        await scene.broker.execute(c.CreateQueue("large", LARGE), everything())
        sizes = []
        for is_javascript in (False, True):
            scene.gateway.is_javascript = is_javascript
            link = sender(scene, "large")
            await settle_down(scene)
            sizes.append(link.remote.max_message_size)
        assert sizes == [10 * MIB, MIB]

    play(work)


def test_tags_of_the_old_sdk_for_java_are_different_texts() -> None:
    """It reads them as UTF-8, where all bytes that are none look alike, and uses that as a key."""

    async def work(scene: Scene) -> None:
        scene.gateway.reads_tags_as_text = True
        count = 600
        messages = [message(str(number)) for number in range(count)]
        await scene.broker.execute(c.Send("q", messages), everything())
        link = receiver(scene, "q")
        await settle_down(scene)
        link.grant(count)
        await until(scene, lambda: len(scene.received()) == count)
        texts = {event.tag.decode("utf-8", "replace") for event in scene.received()}
        assert len(texts) == count

    play(work)


@pytest.mark.req("T23", "C3")
def test_a_group_tells_nothing_to_whoever_has_no_right() -> None:
    """Neither which entities there are, nor which is the root; and what was refused is no root."""

    async def work(scene: Scene) -> None:
        await scene.broker.execute(c.CreateQueue("secret", QueueSettings()), everything())
        scene.gateway.claims = scene.broker.new_claims()
        session = scene.client.begin()
        session.attach("c", is_sender=True, source=p.Source("me"), target=p.Coordinator())
        await settle_down(scene)
        for path in ("q", "secret", "nothere"):
            scene.events.clear()
            session.attach(f"r-{path}", is_sender=False, source=p.Source(path), target=p.Target())
            await settle_down(scene)
            (ended,) = [it.error for it in scene.events if isinstance(it, LinkDetached)]
            assert ended is not None
            assert ended.condition == "amqp:unauthorized-access"
            assert "root" not in str(ended.description)
        scene.gateway.claims = everything()
        scene.events.clear()
        session.attach("mine", is_sender=False, source=p.Source("secret"), target=p.Target())
        await settle_down(scene)
        assert not [it for it in scene.events if isinstance(it, LinkDetached)]

    play(work, policies=POLICIES)


@pytest.mark.req("T23")
def test_a_discharge_after_its_time_is_told_so_on_the_link_that_declared() -> None:
    """The transaction is unknown, not rolled back by something that was refused."""

    async def work(scene: Scene) -> None:
        coordinator, txn_id = await declared(scene)
        scene.clock.advance(TRANSACTION_TIMEOUT_MS + 1)
        scene.broker.engine.engine.tick()
        scene.events.clear()
        coordinator.deliver(b"e", [discharge(txn_id, fail=False)])
        await settle_down(scene)
        (told,) = [it.state for it in scene.events if isinstance(it, Dispositions)]
        assert isinstance(told, p.Rejected)
        assert told.error is not None
        assert told.error.condition == "amqp:transaction:unknown-id"

    play(work)


@pytest.mark.parametrize("how", ["single", "settled", "batch", "transaction"])
def test_fx23_a_sender_to_a_deleted_entity_is_detached(how: str) -> None:
    """However it sends: its answer first, where it has one, then the end of its link."""

    async def work(scene: Scene) -> None:
        _, txn_id = await declared(scene)
        sender(scene, "q")
        await settle_down(scene)
        inlet = next(it for it in scene.broker._owners.values() if isinstance(it, Inlet))
        await scene.broker.execute(c.DeleteEntity("q"), everything())
        scene.broker._owners[inlet.number] = inlet  # it sends before it hears of the deletion
        scene.events.clear()
        refused = EntityNotFoundError("q")
        match how:
            case "single" | "settled":
                ids = [None if how == "settled" else 1]
                inlet._row_done([message("x")], ids, refused)
            case "batch":
                inlet._done(1, False, None, refused)
            case "transaction":
                inlet._done(1, False, p.TransactionalState(txn_id), refused)
        await settle_down(scene)
        assert [it for it in scene.events if isinstance(it, LinkDetached)]

    play(work)


def test_an_oversized_request_does_not_answer_for_another_message_of_its_id() -> None:
    """Threads of azure-servicebus that share a session can give one delivery id twice."""

    async def work(scene: Scene) -> None:
        session = scene.client.begin()
        sends = session.attach("s", is_sender=True, source=p.Source("me"), target=p.Target("q"))
        asks = session.attach(
            "m", is_sender=True, source=p.Source("me"), target=p.Target("q/$management")
        )
        await settle_down(scene)
        its_session = scene.gateway.connection.sessions[-1]
        sends.deliver(b"a", [encode_message(body=b"x", message_id="x")])
        session.next_delivery_id -= 1
        request = encode_request("com.microsoft:schedule-message", {"x": bytes(5_000_000)})
        asks.deliver(b"b", [request])
        together = b"".join(map(bytes, scene.client.data_to_send()))
        while scene.gateway.receive(together):
            together = b""
        await settle_down(scene)
        (told,) = [it for it in scene.events if isinstance(it, Dispositions)]
        assert told.state == p.ACCEPTED
        assert [link.unsettled for link in its_session.links.values()] == [0, 0]
        assert scene.broker.namespace.find("q").active_count == 1

    play(work)


def together(scene: Scene) -> bytes:
    """What the client has to say, in one piece."""
    return b"".join(map(bytes, scene.client.data_to_send()))


def discharged(scene: Scene, coordinator: Any) -> p.DeliveryState | None:
    """The answer to the discharge."""
    answers = [
        it.state
        for it in scene.events
        if isinstance(it, Dispositions) and it.deliveries and it.deliveries[0].link is coordinator
    ]
    return answers[-1]


def is_rolled_back(state: p.DeliveryState | None) -> bool:
    return (
        isinstance(state, p.Rejected)
        and state.error is not None
        and state.error.condition == "amqp:transaction:rollback"
    )


class Eager:
    """A peer whose rest is served in the next turn, as that of a listener."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def go_on(self) -> None:
        if self.scene.gateway.receive(b""):
            self.scene.gateway.turns.add(self)


@pytest.mark.req("T23")
@pytest.mark.parametrize("is_detached", [False, True])
def test_a_commit_does_not_overtake_a_request_before_it(is_detached: bool) -> None:
    """Also if a turn is due before the task of the request begins; and if the links of the request
    go in between."""

    async def work(scene: Scene) -> None:
        coordinator, txn_id = await declared(scene)
        asks = sender(scene, "q/$management")
        await settle_down(scene)
        payload = encode_message(body=b"x", scheduled_ms=scene.clock.now_ms() + 60_000)
        body = {"messages": [{"message": payload, "message-id": "m"}]}
        request = encode_request("com.microsoft:schedule-message", body)
        asks.deliver(b"a", [request], settled=True, state=p.TransactionalState(txn_id))
        if is_detached:
            asks.detach()
        coordinator.deliver(b"e", [discharge(txn_id, fail=False)])
        scene.events.clear()
        scene.gateway.turns.add(Eager(scene))
        scene.gateway.receive(together(scene))
        await settle_down(scene)
        assert discharged(scene, coordinator) == p.ACCEPTED
        shown = await scene.broker.execute(c.Browse("q", 0, 9), everything())
        assert [each.state for each in shown] == [State.SCHEDULED]

    play(work)


@pytest.mark.req("T23")
@pytest.mark.parametrize("what", ["link", "session", "rule", "peer"])
def test_a_transaction_whose_link_ends_under_a_message_is_not_committed(what: str) -> None:
    """The message is a part of it that has no effect: whoever ended the link or the session, and
    whether by a rule that was broken."""

    async def work(scene: Scene) -> None:
        coordinator, txn_id = await declared(scene)
        state = p.TransactionalState(txn_id)
        session = scene.client.begin()
        sends = session.attach("x", is_sender=True, source=p.Source("me"), target=p.Target("q"))
        good = sender(scene, "q")
        await settle_down(scene)
        good.deliver(b"g", [encode_message(body=b"good", message_id="g")], state=state)
        await settle_down(scene)
        large = encode_message(body=bytes(200_000), message_id="x")
        sends.deliver(b"a", [large], state=state)
        data = together(scene)
        first = int.from_bytes(data[:4], "big")
        assert first < len(data), "several frames"
        scene.gateway.receive(data[:first])
        sessions = scene.gateway.connection.sessions
        (link,) = [it for each in sessions for it in each.links.values() if it.name == "x"]
        its_session = link.session
        events: list[Event] = []
        match what:
            case "link":
                link.context.end(ServerBusyError("why"))
            case "session":
                its_session.fail(p.Error("amqp:internal-error"), events)
                scene.gateway._on_events(events)
            case "rule":
                link.fail(p.Error("amqp:invalid-field"), events)
                scene.gateway._on_events(events)
            case "peer":
                its_session.on_detach(p.Detach(sends.handle, True), events)
                scene.gateway._on_events(events)
        scene.gateway.receive(data[first:])
        await settle_down(scene)
        scene.events.clear()
        coordinator.deliver(b"e", [discharge(txn_id, fail=False)])
        await settle_down(scene)
        assert is_rolled_back(discharged(scene, coordinator))
        assert scene.broker.namespace.find("q").active_count == 0

    play(work)


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_came_before_a_detach_is_answered_before_it(is_closed: bool) -> None:
    """The SDK for Java settles and detaches at once, and takes a settlement that is not answered
    then for one that failed. The same for sends and discharges, also with a close behind it."""

    async def work(scene: Scene) -> None:
        for number in range(5):
            await scene.broker.execute(c.Send("q", [message(str(number))]), everything())
        coordinator, txn_id = await declared(scene)
        takes, sends = receiver(scene, "q"), sender(scene, "q")
        await settle_down(scene)
        takes.grant(5)
        await settle_down(scene)
        given = scene.received()
        assert len(given) == 5
        for event in given:
            takes.settle([event.delivery_id], p.ACCEPTED, settled=False)
        sends.deliver(b"s", [encode_message(body=b"x", message_id="x")])
        coordinator.deliver(b"e", [discharge(txn_id, fail=False)])
        for link in (takes, sends, coordinator):
            link.detach()
        if is_closed:
            scene.client.close()
        codes: list[int] = []
        told: list[Any] = []

        def written(data: Sequence[Any]) -> None:
            left = b"".join(map(bytes, data))
            while left:
                size = int.from_bytes(left[:4], "big")
                codes.append(left[10])
                if left[10] == p.DISPOSITION:
                    told.append(decode_disposition(left, 11, size))
                left = left[size:]

        scene.gateway._write = written
        if scene.gateway.receive(together(scene)):
            scene.gateway.turns.add(Eager(scene))
        await until(scene, lambda: codes.count(p.DETACH) == 3)
        await scene.talk()
        assert sum(last - first + 1 for _, first, last, _, _ in told) == 7
        assert all(state == p.ACCEPTED for *_, state in told)
        order = [code for code in codes if code != p.FLOW]
        last = max(at for at, code in enumerate(order) if code == p.DISPOSITION)
        assert last < max(at for at, code in enumerate(order) if code == p.DETACH)
        assert order[0] == p.DISPOSITION
        assert order[-1] == (p.CLOSE if is_closed else p.DETACH)

    play(work)


@pytest.mark.req("T14", "C7")
@pytest.mark.parametrize("asked", ["one", None])
@pytest.mark.parametrize("is_described", [False, True])
def test_a_session_filter_is_answered_in_the_form_in_which_it_came(
    asked: str | None, is_described: bool
) -> None:
    """The SDK for Go sends and reads described filters; those for Java and Python read others."""

    async def work(scene: Scene) -> None:
        settings = QueueSettings(requires_session=True)
        await scene.broker.execute(c.CreateQueue("s", settings), everything())
        letter = AmqpMessage(encode_message(body=b"x", message_id="x", session_id="one"))
        await scene.broker.execute(c.Send("s", [letter]), everything())
        code = ULong(0x137000000C)
        value = Described(code, asked) if is_described else asked
        link = receiver(scene, "s", filter={SESSION_FILTER: value})
        await settle_down(scene)
        assert link.remote is not None
        assert isinstance(link.remote.source, p.Source)
        told = (link.remote.source.filter or {})[SESSION_FILTER]
        assert told == (Described(code, "one") if is_described else "one")

    play(work)


def test_a_commit_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be a hundred messages to many subscriptions: others are served between two."""

    async def work(scene: Scene) -> None:
        coordinator, _ = await declared(scene)
        ids = []
        for _ in range(9):
            scene.events.clear()
            coordinator.deliver(b"d", [DECLARE])
            await settle_down(scene)
            (told,) = [it.state for it in scene.events if isinstance(it, Dispositions)]
            assert isinstance(told, p.Declared)
            ids.append(told.txn_id)
        for txn_id in ids:
            coordinator.deliver(b"e", [discharge(txn_id, fail=False)])
        monkeypatch.setattr(Turns, "pace", lambda self, now: (1_000, 0.0))
        turns, has_more = 1, scene.gateway.receive(together(scene))
        while has_more:
            turns, has_more = turns + 1, scene.gateway.receive(b"")
        assert turns >= len(ids)

    play(work)


def test_a_peer_whose_rest_is_held_is_not_read_without_bound() -> None:
    """The disk can stand still while a detach waits for it. Nothing turns in circles meanwhile."""

    async def work(scene: Scene) -> None:
        scene.gateway.hold()
        frame = b"\0\0\0\x08\x02\0\0\0" * 1_000
        reads = 0
        while scene.gateway.can_read:
            assert not scene.gateway.receive(frame)
            reads += 1
            assert reads * len(frame) <= READ_BYTES + 2 * len(frame)
        assert not scene.gateway.turns.has_waiting
        scene.gateway.release()
        await until(scene, lambda: not scene.gateway.connection.has_more)
        assert not scene.is_hung_up()

    play(work)


@pytest.mark.req("T23", "T14")
def test_a_receiver_that_another_link_has_overtaken_leaves_nothing() -> None:
    """Two receivers of a transaction group are attached at once, and the answers wait for a commit:
    the second one is refused after core has attached it. Core forgets it, and its session."""

    async def work(scene: Scene) -> None:
        settings = QueueSettings(requires_session=True)
        await scene.broker.execute(c.CreateQueue("s", settings), everything())
        sends = sender(scene, "q")
        await settle_down(scene)
        session = scene.client.begin()
        session.attach("c", is_sender=True, source=p.Source("me"), target=p.Coordinator())
        await settle_down(scene)
        scene.events.clear()
        sends.deliver(b"t", [encode_message(body=b"x", message_id="x")])
        session.attach("r1", is_sender=False, source=p.Source("q"), target=p.Target("me"))
        source = p.Source("s", filter={SESSION_FILTER: "one"})
        session.attach("r2", is_sender=False, source=source, target=p.Target("me"))
        scene.gateway.receive(together(scene))
        await settle_down(scene)
        (ended,) = [it for it in scene.events if isinstance(it, LinkDetached)]
        assert ended.link.name == "r2"
        links = scene.broker.namespace._registry.links
        assert [queue.path for queue in links.values()] == ["q"]
        other = receiver(scene, "s", filter={SESSION_FILTER: "one"})
        await settle_down(scene)
        assert other.state is LinkState.ATTACHED, "the session is free"

    play(work)


@pytest.mark.req("T4")
def test_what_came_before_the_end_of_the_transport_is_looked_at() -> None:
    """Also what was held behind a detach, or left for another turn, when the peer hung up."""

    async def work(scene: Scene) -> None:
        await scene.broker.execute(c.CreateQueue("other"), everything())
        first, second = sender(scene, "q"), sender(scene, "other")
        await settle_down(scene)
        first.deliver(b"a", [encode_message(body=b"x", message_id="a")])
        first.detach()
        for number in range(20):
            letter = encode_message(body=b"x", message_id=str(number))
            second.deliver(b"%d" % number, [letter], settled=True)
        scene.client.close()
        scene.gateway.receive(together(scene))
        scene.gateway.lost()
        for _ in range(2_000):
            if scene.gateway._is_lost:
                break
            await asyncio.sleep(0.001)
        assert scene.broker.namespace.find("q").active_count == 1
        assert scene.broker.namespace.find("other").active_count == 20
        assert scene.gateway not in scene.broker.holders

    play(work)


def test_a_peer_whose_detach_is_to_be_answered_is_not_at_rest() -> None:
    """A drain waits for it."""

    async def work(scene: Scene) -> None:
        sender(scene, "q")
        await settle_down(scene)
        rests = [scene.gateway.is_at_rest]
        scene.gateway.hold()
        rests.append(scene.gateway.is_at_rest)
        scene.gateway.release()
        rests.append(scene.gateway.is_at_rest)
        assert rests == [True, False, True]

    play(work)


@pytest.mark.req("T23")
def test_a_transaction_is_told_what_was_refused() -> None:
    """A message that is too large and was sent settled ends its link: the size is the reason."""

    async def work(scene: Scene) -> None:
        coordinator, txn_id = await declared(scene)
        link = sender(scene, "q")
        await settle_down(scene)
        large = encode_message(body=bytes(400_000), message_id="x")
        link.deliver(b"a", [large], settled=True, state=p.TransactionalState(txn_id))
        await settle_down(scene)
        scene.events.clear()
        coordinator.deliver(b"e", [discharge(txn_id, fail=False)])
        await settle_down(scene)
        told = discharged(scene, coordinator)
        assert isinstance(told, p.Rejected)
        assert told.error is not None
        assert "larger than" in str(told.error.description)

    play(work)


@pytest.mark.req("T23")
def test_a_link_that_was_never_there_is_no_root() -> None:
    """It was detached before it was answered."""

    async def work(scene: Scene) -> None:
        await scene.broker.execute(c.CreateQueue("other"), everything())
        session = scene.client.begin()
        session.attach("c", is_sender=True, source=p.Source("me"), target=p.Coordinator())
        await settle_down(scene)
        session.attach("r1", is_sender=False, source=p.Source("q"), target=p.Target("me")).detach()
        scene.gateway.receive(together(scene))
        await settle_down(scene)
        link = session.attach(
            "r2", is_sender=False, source=p.Source("other"), target=p.Target("me")
        )
        await settle_down(scene)
        assert link.state is LinkState.ATTACHED

    play(work)


@pytest.mark.req("T23")
@pytest.mark.parametrize("what", ["message", "settlement"])
def test_what_comes_for_a_session_that_ended_spoils_its_transaction(what: str) -> None:
    """However it ended; a transaction that has nothing in it can be committed."""

    async def work(scene: Scene) -> None:
        await scene.broker.execute(c.Send("q", [message("there")]), everything())
        coordinator, txn_id = await declared(scene)
        other, other_id = await declared(scene)
        sends, takes = sender(scene, "q"), receiver(scene, "q")
        await settle_down(scene)
        takes.grant(1)
        await settle_down(scene)
        (event,) = scene.received()
        state = p.TransactionalState(txn_id, p.ACCEPTED)
        if what == "message":
            link = sends
            sends.deliver(b"x", [encode_message(body=b"x", message_id="x")], state=state)
        else:
            link = takes
            takes.settle([event.delivery_id], state, settled=False)
        late = together(scene)
        channel = link.session.channel
        scene.gateway.connection.incoming[channel].end(p.Error("amqp:internal-error"))
        scene.gateway.receive(late)
        await settle_down(scene)
        for each, number in ((coordinator, txn_id), (other, other_id)):
            scene.events.clear()
            each.deliver(b"e", [discharge(number, fail=False)])
            await settle_down(scene)
            assert is_rolled_back(discharged(scene, each)) is (each is coordinator)

    play(work)
