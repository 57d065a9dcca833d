"""`$cbs` and `$management` as links: what a request is told at once, where its answer goes, and
what is kept for a link that has gone. And, of the connection around them, what waits behind a
request, and what is told of a range of deliveries."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Dispositions, MessageReceived
from tandembus.amqp.link import Link
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.amqp.performatives import ACCEPTED, RECEIVER, Target
from tandembus.amqp.session import Session
from tandembus.amqp.types import Int, Long
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.limits import MAX_WAITING_ANSWERS_BYTES
from tandembus.server.gateway import Gateway
from tandembus.server.nodes import Node, NodeEnd, NodePairs
from tandembus.server.stored import Stream
from tandembus.server.turns import Turns
from tests.conformance.amqp.peer import Disposition, Peer, Transfer
from tests.unit.server.desk import encode_request
from tests.unit.server.test_gateway import Scene, play

NODE = Node("$management", "q")


class Desk:
    """The part of a gateway that a pair of links knows. A request that has a / is answered with
    what is before it, to the link that is named behind it."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.turns = Turns()

    async def answer(
        self, _: Node, payload: bytes, state: object
    ) -> tuple[bytes | None, str | None]:
        self.asked.append(payload)
        reply, _slash, reply_to = payload.partition(b"/")
        return (reply, reply_to.decode() or None) if _slash else (None, None)

    def write_soon(self) -> None:
        """It is read without that."""

    def hold(self) -> None:
        """Nothing comes behind."""

    release = hold


def test_every_request_has_a_disposition_and_a_flow() -> None:
    """Before it is worked on, and never one for several, though they came together: threads of
    azure-servicebus that share the link each need a frame to read (`NodePair.request`)."""

    async def ask() -> tuple[list[bytes], list[Any]]:
        peer, desk = Peer().begun(), Desk()
        link = peer.attach(is_sender=True, handle=0)
        NodePairs(cast(Gateway, desk)).add(link, NODE)
        pair = link.context.pair
        peer.answers()
        events = [event for number in range(3) for event in peer.transfer(number, b"%d" % number)]
        for event in events:
            assert isinstance(event, MessageReceived)
            pair.request(event)
        answers = peer.answers()
        assert desk.asked == []
        await asyncio.sleep(0)
        return desk.asked, answers

    asked, answers = asyncio.run(ask())
    assert asked == [b"0", b"1", b"2"]
    assert answers[0::2] == [Disposition(RECEIVER, it, it, True, ACCEPTED) for it in range(3)]
    assert [(type(it).__name__, it.link_credit) for it in answers[1::2]] == [("Flow", 100)] * 3


class Room:
    """A peer with sessions on channels 0 to 2, and links to `$management`."""

    def __init__(self) -> None:
        self.peer = Peer().opened()
        for channel in range(3):
            self.peer.begun(channel)
        self.pairs = NodePairs(cast(Gateway, Desk()))

    def asks_on(self, channel: int, handle: int = 0, node: Node = NODE) -> Link:
        link = self.peer.attach(is_sender=True, handle=handle, channel=channel, name="asks")
        self.pairs.add(link, node)
        self.peer.answers()
        return link

    def hears_on(
        self, channel: int, handle: int, target: str, node: Node = NODE, credit: int = 9
    ) -> Link:
        link = self.peer.attach(
            is_sender=False, handle=handle, channel=channel, target=Target(target)
        )
        self.pairs.add(link, node)
        if credit:
            self.peer.flow(0, 99, 0, 99, handle, 0, credit, channel=channel)
        self.peer.answers()
        return link

    async def ask(self, link: Link, payload: bytes) -> list[tuple[Link, bytes]]:
        """Which links are given what."""
        channel = link.session.remote_channel
        for event in self.peer.transfer(0, payload, settled=True, channel=channel):
            assert isinstance(event, MessageReceived)
            link.context.on_messages([event])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        given = [it for it in self.peer.answers() if isinstance(it, Transfer)]
        sending = {
            each.handle: each
            for session in self.peer.connection.sessions
            for each in session.links.values()
            if each.is_sender
        }
        return [(sending[it.handle], it.payload) for it in given]


def test_an_answer_goes_to_the_link_that_is_named_on_any_session() -> None:
    """The old SDK for Java (azure-servicebus 3.6.7) asks on one session and hears on another."""

    async def work() -> None:
        room = Room()
        asks = room.asks_on(0)
        assert await room.ask(asks, b"nobody/there") == []
        there = room.hears_on(1, 5, "there")
        room.hears_on(1, 6, "elsewhere")
        room.hears_on(2, 7, "other", Node("$management", "other"))
        assert await room.ask(asks, b"a/there") == [(there, b"a")]
        assert await room.ask(asks, b"b/link-5") == [(there, b"b")]
        assert await room.ask(asks, b"c/other") == [], "it belongs to another entity"
        assert await room.ask(asks, b"d/") == [], "nothing is named, and this session has none"
        here = room.hears_on(0, 8, "here")
        assert await room.ask(asks, b"e/nobody") == [(here, b"e")]
        mine = room.hears_on(0, 9, "there")
        assert await room.ask(asks, b"f/there") == [(mine, b"f")], "its own session comes first"
        NodeEnd.on_gone(mine.context)
        assert await room.ask(asks, b"g/there") == [(there, b"g")]
        for link in (there, here):
            link.context.on_gone()
        assert await room.ask(asks, b"h/there") == []

    asyncio.run(work())


def test_nothing_is_kept_of_links_that_have_gone() -> None:
    """Neither a pair nor a name."""

    async def work() -> None:
        room = Room()
        links = [room.asks_on(0), room.hears_on(0, 3, "x"), room.hears_on(1, 4, "x")]
        for link in links:
            link.context.on_gone()
        assert not room.pairs._pairs
        assert not room.pairs._named

    asyncio.run(work())


class Row:
    """A large answer."""

    is_open = True

    def __len__(self) -> int:
        return 3

    def close(self) -> None:
        self.is_open = False


def test_answers_for_a_link_that_has_gone_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took the room of those that wait for a link that is there."""
    monkeypatch.setattr("tandembus.server.nodes.Stream", Row)

    async def work() -> None:
        room = Room()
        room.asks_on(0)
        gone = room.hears_on(0, 3, "gone", credit=0)
        stays = room.hears_on(0, 4, "stays", credit=0)
        pair = gone.context.pair
        rows = [Row() for _ in range(5)]
        for row in rows:
            pair.send(gone, cast(Stream, row))
        pair.send(gone, b"small")
        assert (room.pairs.waiting, room.pairs.waiting_bytes) == (6, 5)
        gone.context.on_gone()
        assert not any(row.is_open for row in rows)
        assert not pair._streams
        assert (room.pairs.waiting, room.pairs.waiting_bytes) == (0, 0)
        for number in range(5):
            pair.send(stays, b"%d" % number)
        room.peer.flow(0, 99, 0, 99, 4, 0, 3)
        pair.flow(stays, False)
        given = [it.payload for it in room.peer.answers() if isinstance(it, Transfer)]
        assert given == [b"0", b"1", b"2"]
        assert (room.pairs.waiting, room.pairs.waiting_bytes) == (2, 2)

    asyncio.run(work())


@pytest.mark.req("P11")
@pytest.mark.parametrize("what", ["no credit", "no window"])
def test_a_peer_that_takes_no_answers_is_not_served(what: str) -> None:
    """Answers for it are bounded in bytes, whether its links give no credit or its session no
    window. Then requests have no effect; they are served again once it has taken what waits."""

    async def work(scene: Scene) -> None:
        for number in range(20):
            large = AmqpMessage(encode_message(body=bytes(200_000), message_id=str(number)))
            await scene.broker.execute(c.Send("q", [large]), everything())
        session = scene.client.begin()
        asks = _attach(session, "q/$management", is_sender=True)
        hears = _attach(session, "q/$management", is_sender=False, target="me")
        await scene.talk()
        its_session = scene.gateway.connection.sessions[-1]
        if what == "no window":
            hears.grant(1_000)
            await scene.talk()
            its_session.window = 0
        asked = {"from-sequence-number": Long(1), "message-count": Int(1)}
        request = encode_request("com.microsoft:peek-message", asked, reply_to="me")
        cancel = encode_request(
            "com.microsoft:cancel-scheduled-message", {"sequence-numbers": [99]}, reply_to="me"
        )
        pairs = scene.gateway.nodes
        for number in range(60):
            asks.credit = 9
            asks.deliver(b"a%d" % number, [request], settled=True)
            await scene.talk()
        full = MAX_WAITING_ANSWERS_BYTES
        assert full <= pairs.waiting_bytes < full + 300_000
        waiting = pairs.waiting
        asks.deliver(b"b", [cancel], settled=True)
        await scene.talk()
        assert pairs.waiting == waiting
        assert "com.microsoft:server-busy" in scene.broker.refusals
        if what == "no window":
            session.write_flow()
        else:
            hears.grant(1_000)
        await scene.talk()
        assert (pairs.waiting, pairs.waiting_bytes) == (0, 0)
        assert len(scene.received()) == waiting
        asks.deliver(b"c", [cancel], settled=True)
        await scene.talk()
        assert len(scene.received()) == waiting + 1

    play(work)


def _attach(session: Session, node: str, **ends: Any) -> Link:
    return session.attach(
        f"{node} {ends}", source=p.Source(node), target=p.Target(ends.pop("target", node)), **ends
    )


def test_the_old_java_sdk_is_answered() -> None:
    """A session for the request link and one for the link of its answers, tags of 36 bytes; `$cbs`
    and `$management`."""

    async def work(scene: Scene) -> None:
        one, other = scene.client.begin(), scene.client.begin()
        for number, node in enumerate(("$cbs", "q/$management")):
            reply_to = f"reply-{number}"
            asks = _attach(one, node, is_sender=True)
            hears = _attach(other, node, is_sender=False, target=reply_to)
            await scene.talk()
            hears.grant(5)
            await scene.talk()
            asked = encode_request("com.microsoft:peek-message", reply_to=reply_to)
            # Our own client would not send such a tag.
            asks.session.deliver(asks, ((b"5" * 36, [asked]),), True)
            await scene.talk()
            assert not scene.is_hung_up()
            (answer,) = [it for it in scene.received() if it.link is hears]
            assert b"statusCode" in answer.payload or b"status-code" in answer.payload

    play(work)


@pytest.mark.parametrize("messages", [5, 300])
def test_what_comes_behind_requests_waits_and_keeps_its_order(messages: int) -> None:
    """One request ends a turn: what came behind it is not even decoded, however much it is."""

    async def work(scene: Scene) -> None:
        session = scene.client.begin()
        asks = _attach(session, "q/$management", is_sender=True)
        hears = _attach(session, "q/$management", is_sender=False, target="me")
        sends = _attach(session, "q", is_sender=True)
        await scene.talk()
        hears.grant(2_000)
        await scene.talk()
        asked = {"from-sequence-number": Long(1), "message-count": Int(1_000)}
        request = encode_request("com.microsoft:peek-message", asked, reply_to="me")
        sent = 0
        for number in range(messages):
            asks.credit = sends.credit = 9
            if number % 3:
                payload = encode_message(body=b"b", message_id=str(sent))
                sends.deliver(b"s%d" % number, [payload], settled=True)
                sent += 1
            else:
                asks.deliver(b"a%d" % number, [request], settled=True)
        data = b"".join(map(bytes, scene.client.data_to_send()))
        decoded: list[int] = []
        receive = scene.gateway.connection.receive_data

        def counted(data: bytes, most: int) -> Any:
            events = receive(data, most)
            decoded.append(len(events))
            return events

        scene.gateway.connection = cast(Any, Counting(scene.gateway.connection, counted))
        has_more = scene.gateway.receive(data)
        while sum(decoded) < messages:
            await asyncio.sleep(0)
            has_more = has_more and scene.gateway.receive(b"")
        assert max(decoded) <= 4
        assert sum(decoded) == messages
        await scene.talk()
        reply = await scene.broker.execute(c.Browse("q", 0, 1_000), everything())
        ids = [AmqpMessage(bytes(scene.broker.engine.body(it.body))).message_id for it in reply]
        assert ids == [str(number) for number in range(sent)]

    play(work)


class Counting:
    """A connection whose `receive_data` is another."""

    def __init__(self, connection: Any, receive_data: Any) -> None:
        self._connection = connection
        self.receive_data = receive_data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("base", [0, 2**32 - 4])
def test_the_unknown_of_a_range_are_told_too(base: int) -> None:
    """Five of nine deliveries are let go of here; then all are completed by one disposition, whose
    range is wider. Each id is answered once, and in no more ranges than are needed."""

    async def work(scene: Scene) -> None:
        for number in range(9):
            message = AmqpMessage(encode_message(body=b"x", message_id=str(number)))
            await scene.broker.execute(c.Send("q", [message]), everything())
        session = scene.client.begin()
        link = _attach(session, "q", is_sender=False)
        await scene.talk()
        (here,) = scene.gateway.connection.sessions
        here.next_delivery_id = base
        link.grant(9)
        await scene.talk()
        ids = [it.delivery_id for it in scene.received()]
        assert ids == [base + number & 0xFFFF_FFFF for number in range(9)]
        here.let_go([ids[0], ids[3], ids[4], ids[7], ids[8]])
        last = base + 2**30 & 0xFFFF_FFFF
        session.answer(base, last, ACCEPTED, as_receiver=True, settled=False)
        await scene.talk()
        answers = [it for it in scene.events if isinstance(it, Dispositions)]
        found = {}
        for it in answers:
            state = (
                it.state.error.condition
                if isinstance(it.state, p.Rejected) and it.state.error
                else it.state
            )
            found[it.first - base & 0xFFFF_FFFF, it.last - base & 0xFFFF_FFFF] = state
        lost = "com.microsoft:message-lock-lost"
        assert found == {
            (0, 0): lost, (3, 4): lost, (7, 2**30): lost, (1, 2): ACCEPTED, (5, 6): ACCEPTED,
        }  # fmt: skip
        assert len(answers) == 5

    play(work)


def test_a_range_that_is_settled_is_not_answered() -> None:
    """Nobody waits for it."""

    async def work(scene: Scene) -> None:
        message = AmqpMessage(encode_message(body=b"x", message_id="m"))
        await scene.broker.execute(c.Send("q", [message]), everything())
        session = scene.client.begin()
        link = _attach(session, "q", is_sender=False)
        await scene.talk()
        link.grant(9)
        await scene.talk()
        session.answer(0, 2**30, ACCEPTED, as_receiver=True, settled=True)
        await scene.talk()
        assert not [it for it in scene.events if isinstance(it, Dispositions)]
        assert not scene.gateway.connection.unsettled_out

    play(work)
