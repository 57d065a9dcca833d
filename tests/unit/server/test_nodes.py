"""`$cbs` and `$management` as links: what a request is told at once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tandembus.amqp.events import MessageReceived
from tandembus.amqp.performatives import ACCEPTED, RECEIVER
from tandembus.server.gateway import Gateway
from tandembus.server.nodes import Node, NodePair
from tandembus.server.turns import Turns
from tests.conformance.amqp.peer import Disposition, Peer


class Desk:
    """The part of a gateway that a pair of links knows."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.turns = Turns()

    async def answer(self, _: Node, payload: bytes, state: object) -> tuple[None, None]:
        self.asked.append(payload)
        return None, None


def test_every_request_has_a_disposition_and_a_flow() -> None:
    """Before it is worked on, and never one for several, though they came together: threads of
    azure-servicebus that share the link each need a frame to read (`NodePair.request`)."""

    async def ask() -> tuple[list[bytes], list[Any]]:
        peer, desk = Peer().begun(), Desk()
        link = peer.attach(is_sender=True, handle=0)
        pair = NodePair(cast(Gateway, desk), Node("$management", "q"), lambda: None)
        pair.add(link)
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
