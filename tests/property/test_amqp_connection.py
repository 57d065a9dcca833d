"""AMQP connections under Hypothesis: any split, two of ours talking, and bytes nobody sends."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import (
    Closed,
    Dispositions,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    MessageReceived,
)
from tandembus.amqp.link import Link
from tandembus.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Error,
    Modified,
    Rejected,
    Source,
    Target,
)
from tandembus.amqp.session import Session
from tandembus.amqp.states import LinkState
from tests.conformance.amqp.peer import Peer, read

FEW = settings(max_examples=60, deadline=None)


def recorded(seed: int, steps: int = 60) -> tuple[bytes, bytes]:
    """What a client and a server say to each other in a random conversation."""
    talk = Conversation(random.Random(seed), max_frame_size=1024)
    talk.run(steps)
    return talk.said[0], talk.said[1]


def shape(event: Event) -> tuple[object, ...]:
    """An event with links and sessions by their numbers, so that two runs compare."""
    parts: list[object] = [type(event).__name__]
    values: Any = (
        event
        if isinstance(event, tuple)
        else (getattr(event, name) for name in event.__dataclass_fields__)
    )
    parts += [named(value) for value in values]
    return tuple(parts)


def named(value: object) -> object:
    if isinstance(value, Link):
        return ("link", value.name, value.is_sender, value.remote_handle)
    if isinstance(value, Session):
        return ("session", value.channel)
    if isinstance(value, list | tuple):
        return tuple(named(item) for item in value)
    return value


def replay(role: Role, data: bytes, cuts: list[int], **options: Any) -> list[tuple[object, ...]]:
    connection = Connection(role, container_id="x", use_sasl=False, max_frame_size=1024, **options)
    events: list[Event] = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        for event in connection.receive_data(data[at:cut]):
            events.append(event)
            if isinstance(event, LinkAttached):
                event.link.accept()
        at = cut
    return [shape(event) for event in events]


@FEW
@given(st.integers(0, 10_000), st.data())
def test_any_split_gives_the_same_events(seed: int, data: st.DataObject) -> None:
    """How the bytes arrive changes nothing, also where some of them are wrong."""
    said, _ = recorded(seed, 30)
    raw = bytearray(said)
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    whole = bytes(raw)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=20))
    expected = replay(Role.SERVER, whole, _at_frames(whole))
    assert replay(Role.SERVER, whole, cuts + _at_frames(whole)) == expected


def _at_frames(data: bytes) -> list[int]:
    """The ends of the frames, as far as they can be told: links are accepted between them."""
    cuts = [8]
    at = 8
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size < 8:
            break
        at += size
        cuts.append(min(at, len(data)))
    return cuts


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_byte_by_byte(seed: int) -> None:
    """The extreme split."""
    said, _ = recorded(seed, 20)
    expected = replay(Role.SERVER, said, _at_frames(said))
    assert replay(Role.SERVER, said, list(range(len(said)))) == expected


class Conversation:
    """A client and a server of ours, joined by two pipes that deliver in random pieces."""

    def __init__(self, chance: random.Random, **options: Any) -> None:
        self.chance = chance
        self.server = Connection(
            Role.SERVER, container_id="s", use_sasl=False, max_message_size=8000, **options
        )
        self.client = Connection(
            Role.CLIENT, container_id="c", use_sasl=False, max_message_size=8000, **options
        )
        self.pipes = [b"", b""]
        self.said = [b"", b""]
        self.sent: Counter[tuple[str, bytes]] = Counter()
        self.got: Counter[tuple[str, bytes]] = Counter()
        self.server_links: dict[tuple[str, bool], Link] = {}
        self.links: list[Link] = []
        self.number = 0
        self.outcomes: dict[tuple[str, int], object] = {}
        self.client.open()
        first_id = chance.choice((0, 2**32 - 5))
        self.open_sessions = [self.client.begin(initial_id=first_id) for _ in range(2)]
        self.detached: set[str] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.carry(everything=self.chance.random() < 0.3)
        self.settle_down()

    def settle_down(self) -> None:
        for _ in range(50):
            if not self.carry(everything=True):
                return
        raise AssertionError("the two never fall silent")

    def carry(self, *, everything: bool) -> bool:
        self.pipes[0] += b"".join(bytes(it) for it in self.client.data_to_send())
        self.pipes[1] += b"".join(bytes(it) for it in self.server.data_to_send())
        moved = False
        for which, reader in ((0, self.server), (1, self.client)):
            data = self.pipes[which]
            size = len(data) if everything else self.chance.randint(0, len(data))
            if size:
                moved = True
                self.pipes[which] = data[size:]
                self.said[which] += data[:size]
                for event in reader.receive_data(data[:size]):
                    self.on_event(event, is_server=which == 0)
        return moved

    def on_event(self, event: Event, *, is_server: bool) -> None:
        match event:
            case LinkAttached(link=link) if is_server:
                if link.name.startswith("no"):
                    link.refuse(Error("amqp:not-found", "no such node"))
                    return
                if not link.accept():  # it was detached in the same piece
                    return
                if not link.is_sender:
                    link.grant(20)
                self.server_links[link.name, link.is_sender] = link
            case MessageReceived(link=link, payload=payload, settled=settled):
                self.got[link.name, payload] += 1
                if not settled and self.chance.random() < 0.7:
                    outcome = self.chance.choice((ACCEPTED, RELEASED, Modified(True, False)))
                    link.settle(
                        [event.delivery_id], outcome, settled=link.session.connection is self.server
                    )
                if not is_server or link.credit < 5:
                    link.grant(20)
            case Dispositions(settled=False, as_receiver=True):
                for delivery in event.deliveries:
                    delivery.link.settle([delivery.id], Rejected())
            case LinkFlow(link=link, drain=True) if link.is_sender:
                link.drained()
            case LinkDetached(link=link):
                self.detached.add(link.name)
            case Closed():
                raise AssertionError(event)
            case _:
                pass

    def step(self) -> None:
        chance = self.chance
        what = chance.random()
        if what < 0.12 or not self.links:
            self.number += 1
            name = f"{'no' if chance.random() < 0.1 else 'ok'}-{self.number}"
            session = chance.choice(self.open_sessions)
            self.links.append(
                session.attach(
                    name,
                    is_sender=chance.random() < 0.5,
                    source=Source("q"),
                    target=Target("q"),
                    snd_settle_mode=chance.randint(0, 1),
                )
            )
        elif what < 0.2:
            link = chance.choice(self.links)
            if link.state is LinkState.ATTACHED and not link.is_sender:
                link.grant(chance.randint(0, 30), drain=chance.random() < 0.3)
        elif what < 0.23:
            self.links.pop(chance.randrange(len(self.links))).detach()
        else:
            links = [*self.links, *self.server_links.values()]
            able = [it for it in links if it.is_sender and it.capacity > 0]
            if able:
                link = chance.choice(able)
                size = chance.choice((0, 1, 100, 900, 1024, 3000))
                body = chance.randbytes(size)
                tag = self.number.to_bytes(4, "big")
                self.number += 1
                parts = [body[: size // 3], body[size // 3 :]]
                link.deliver(tag, parts, settled=chance.random() < 0.3)
                self.sent[link.name, body] += 1


@FEW
@given(st.integers(0, 2**32))
def test_two_of_ours(seed: int) -> None:
    """Everything that was sent on a link that lived arrives once; ids wrap; memory goes back."""
    talk = Conversation(random.Random(seed), max_frame_size=1024)
    talk.run(150)
    lost = talk.sent - talk.got
    assert not [name for name, _ in lost if name not in talk.detached]
    assert not talk.got - talk.sent
    assert talk.server.partial_bytes == talk.client.partial_bytes == 0
    for connection in (talk.server, talk.client):
        for session in connection.sessions:
            assert not session.answering
            links = session.links.values()
            assert sum(it.unsettled for it in links) == len(session.outgoing) + len(
                session.incoming
            )
    talk.client.close()
    assert any(isinstance(it, Closed) for it in _last_words(talk))
    assert talk.client.is_finished
    assert talk.server.is_finished


def _last_words(talk: Conversation) -> list[Event]:
    events: list[Event] = []
    for _ in range(3):
        for chunk in talk.client.data_to_send():
            events += talk.server.receive_data(bytes(chunk))
        for chunk in talk.server.data_to_send():
            events += talk.client.receive_data(bytes(chunk))
    return events


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_mutated_bytes(seed: int) -> None:
    """Flipped, cut, doubled and inserted bytes: events or a close, never an exception; what is
    written stays well-formed; what is kept stays small."""
    chance = random.Random(seed)
    said, heard = recorded(seed % 50, 40)
    for role, words in ((Role.SERVER, said), (Role.CLIENT, heard)):
        raw = bytearray(words)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(raw))
            match chance.randrange(4):
                case 0:
                    raw[at] = chance.randrange(256)
                case 1:
                    del raw[at : at + chance.randint(1, 20)]
                case 2:
                    raw[at:at] = chance.randbytes(chance.randint(1, 20))
                case _:
                    raw[at:at] = raw[max(0, at - 60) : at]
            if not raw:
                break
        peer = Peer(role, max_frame_size=1024)
        if role is Role.CLIENT:
            peer.connection.open()
            session = peer.connection.begin()
            for number in range(1, 5):
                for is_sender in (False, True):
                    session.attach(f"ok-{number}", is_sender=is_sender)
        for event in peer.raw(bytes(raw)):
            if isinstance(event, LinkAttached):
                event.link.accept()
                if event.link.is_sender and event.link.capacity:
                    event.link.deliver(b"t", [b"x" * 2000])
                elif not event.link.is_sender:
                    event.link.grant(10)
            elif isinstance(event, MessageReceived) and not event.settled:
                event.link.settle([event.delivery_id], ACCEPTED)
            elif isinstance(event, Dispositions) and event.as_receiver:
                event.session.settle(
                    [it.id for it in event.deliveries], ACCEPTED, as_receiver=False
                )
        read(peer.bytes())
        assert len(peer.connection._buffer) <= 1024
        assert peer.connection.partial_bytes <= len(raw)
        peer.connection.tick(0)
        peer.connection.tick(10**9)
