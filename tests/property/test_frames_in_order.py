"""Frames that come together act in their order: the same frames, in one read and one at a time.

A client sends to and receives from several entities on several sessions, in transactions and
without, in one frame and in parts between which others come, by way of another entity, asks
`$management`, takes credit back and detaches. What it sends is made beforehand; once
the broker reads all of it at once, and once frame by frame. What is stored in the end, what each
delivery and each transfer was answered, and what each link was given must be the same.

    python -m tests.property.test_frames_in_order --reads 20000 [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Dispositions, LinkDetached, MessageReceived
from tandembus.amqp.fast import encode_transfer
from tandembus.amqp.frames import frame, frame_opening
from tandembus.amqp.link import Link
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.amqp.types import Array, Int, Long
from tandembus.clock import ManualClock
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.server import rows
from tandembus.server.broker import Broker
from tandembus.server.gateway import Gateway
from tandembus.server.links import DESTINATION, Inlet
from tandembus.settings import QueueSettings
from tandembus.store.memory import MemoryStore
from tests.repeat import repeat
from tests.unit.server.desk import encode_request

QUEUES: Final = ("a", "b", "forwards", "target")
VIA: Final = "b by way of a"
_MS: Final = "com.microsoft:"
_FIRST: Final = 12
"""Messages in each queue before the frames are read."""
_TRANSACTIONS: Final = 3
_STEPS: Final = 24
_PART: Final = 600
"""Bytes after which a message that goes on is stored in parts; of large ones here."""
_SMALL_FRAME: Final = 300
"""What a message in parts is sent in."""


class Client:
    """Makes the frames of one seed, and collects what came of them."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.clock = ManualClock()
        self.connection = Connection(Role.CLIENT, container_id="c", use_sasl=False)
        self.written: list[bytes] = []
        self.senders: dict[str, Link] = {}
        self.receivers: list[tuple[str, Link]] = []
        self.transactions: list[bytes] = []
        self.names: dict[tuple[int, int], str] = {}
        """What was sent, by session and delivery id."""
        self.told: dict[str, list[object]] = defaultdict(list)
        self.held: list[tuple[Link, int]] = []
        self.tokens: list[UUID] = []
        """Lock tokens of what was received from the queue whose `$management` is asked."""
        self.links_of: dict[tuple[int, int], str] = {}
        """The link on which something was received, by session and delivery id."""
        self.unfinished: dict[Link, list[bytes]] = {}
        """Frames that are still to be sent of a message in parts."""
        self.flowed: list[Link] = []
        self.decided: list[tuple[Link, int]] = []
        self.detached: set[str] = set()
        """What was asked on such a link just before has no answer any more, and nobody waits for
        one; only what became of the messages is compared."""

    async def begin(self) -> None:
        """The same for both ways: links, some deliveries, some open transactions."""
        self.broker = await Broker.open(
            "default",
            MemoryStore(),
            policies=None,
            on_failure=lambda error: pytest.fail(str(error)),
            clock=self.clock,
        )
        for name in ("a", "b", "target"):
            settings = QueueSettings(max_delivery_count=3)
            await self.broker.execute(c.CreateQueue(name, settings), everything())
        forwards = QueueSettings(forward_to="target", forward_dead_letters_to="a")
        await self.broker.execute(c.CreateQueue("forwards", forwards), everything())
        for name in ("a", "b", "target"):
            messages = [
                AmqpMessage(encode_message(body=f"{name}{n}", message_id=f"{name}{n}"))
                for n in range(_FIRST)
            ]
            await self.broker.execute(c.Send(name, messages), everything())
        self.gateway = Gateway(
            self.broker, self._heard, lambda: None, peer="p", on_open=lambda: None
        )
        self.connection.open()
        sessions = [self.connection.begin() for _ in range(2)]
        for at, name in enumerate(QUEUES):
            session = sessions[at % 2]
            self.senders[name] = session.attach(
                f"s-{name}", is_sender=True, target=p.Target(name), source=p.Source("here")
            )
        self.senders[VIA] = sessions[0].attach(
            VIA, is_sender=True, target=p.Target("a"), source=p.Source("here"),
            properties={DESTINATION: "b"},
        )  # fmt: skip
        for at, name in enumerate(("a", "b", "target", "a")):
            session = sessions[(at + 1) % 2]
            link = session.attach(
                f"r{at}", is_sender=False, source=p.Source(name), target=p.Target("here")
            )
            self.receivers.append((name, link))
        self.coordinator = sessions[0].attach(
            "coordinator", is_sender=True, source=p.Source("here"), target=p.Coordinator()
        )
        self.asks = sessions[1].attach(
            "asks", is_sender=True, source=p.Source("me"), target=p.Target("a/$management")
        )
        answers = sessions[1].attach(
            "answers", is_sender=False, source=p.Source("a/$management"), target=p.Target("me")
        )
        await self.talk()
        for session in self.gateway.connection.sessions:
            for link in session.links.values():
                if isinstance(link.context, Inlet):
                    link.part_bytes = _PART
        answers.grant(100)
        for _, link in self.receivers:
            link.grant(4)
        for number in range(_TRANSACTIONS):
            declare = p.encode_performative(p.Declare())
            self.coordinator.deliver(b"d%d" % number, [b"\x00\x53\x77" + declare])
        for event in await self.talk():
            if isinstance(event, MessageReceived) and not event.settled:
                self._receive(event)
                self.held.append((event.link, event.delivery_id))
                if event.link.name in ("r0", "r3"):
                    self.tokens.append(UUID(bytes_le=event.tag))
            elif isinstance(event, Dispositions) and isinstance(event.state, p.Declared):
                self.transactions.append(event.state.txn_id)
        assert len(self.transactions) == _TRANSACTIONS
        assert self.held

    def _receive(self, event: MessageReceived) -> None:
        self.links_of[event.link.session.channel, event.delivery_id] = event.link.name

    def _heard(self, data: Sequence[Any]) -> None:
        self.written += [bytes(each) for each in data]

    async def talk(self) -> list[Any]:
        """Both ends say what they have to say."""
        events: list[Any] = []
        is_quiet = 0
        while is_quiet < 3:
            is_quiet += 1
            for data in self.connection.data_to_send():
                await self.read(bytes(data))
                is_quiet = 0
            # The thread that commits needs a moment.
            await asyncio.sleep(0.0005)
            engine = self.broker.engine.engine
            written, self.written = self.written, []
            for each in written:
                events += self.connection.receive_data(each)
            if written or engine.is_writing:
                is_quiet = 0
        return events

    async def read(self, data: bytes) -> None:
        has_more = self.gateway.receive(data)
        while has_more:
            await asyncio.sleep(0)
            has_more = self.gateway.receive(b"")

    # --- what is sent -----------------------------------------------------------------------------

    def frames(self) -> list[bytes]:
        """All frames, one by one."""
        found: list[bytes] = []
        for number in range(_STEPS):
            self._step(number)
            found += self._written()
            found += self._next_parts(self.chance.randrange(3))
        while self.unfinished:
            found += self._next_parts(1)
        return found

    def _written(self) -> list[bytes]:
        data, found = b"".join(map(bytes, self.connection.data_to_send())), []
        while data:
            size = frame_opening(data, 0)[0]
            found.append(data[:size])
            data = data[size:]
        return found

    def _next_parts(self, count: int) -> list[bytes]:
        """Frames of messages that were begun: others came before them."""
        found = []
        for _ in range(count if self.unfinished else 0):
            link = self.chance.choice([*self.unfinished])
            frames = self.unfinished[link]
            found.append(frames.pop(0))
            if not frames:
                del self.unfinished[link]
            if not self.unfinished:
                break
        return found

    def _send_in_parts(self, link: Link, number: int) -> None:
        body = f"n{number}" + "x" * self.chance.randrange(300, 3 * _PART)
        usual, self.connection.remote_max_frame = self.connection.remote_max_frame, _SMALL_FRAME
        before = self._written()
        payload = encode_message(body=body, message_id=f"n{number}")
        link.deliver(b"%d" % number, [payload], state=self._state())
        self.connection.remote_max_frame = usual
        frames = self._written()
        assert not before
        assert len(frames) > 1
        if self.chance.random() < 0.2:
            ends = encode_transfer(link.handle, None, None, aborted=True)
            frames[-1] = frame(ends, link.session.channel)
        self.unfinished[link] = frames

    def _ask(self, number: int) -> None:
        """Something that changes nothing, or of which the transaction decides."""
        state = self._state()
        operation = "peek-message"
        asked: dict[str, object] = {"from-sequence-number": Long(1), "message-count": Int(50)}
        if state is not None or self.chance.random() < 0.3:
            if self.chance.random() < 0.5 and self.tokens:
                operation = "update-disposition"
                token = self.tokens.pop(self.chance.randrange(len(self.tokens)))
                how = self.chance.choice(("completed", "abandoned", "defered", "suspended"))
                asked = {"disposition-status": how, "lock-tokens": Array([token], 0x98)}
            else:
                operation = "schedule-message"
                due_ms = self.clock.now_ms() + 600_000
                payload = encode_message(
                    body=f"n{number}", message_id=f"n{number}", scheduled_ms=due_ms
                )
                asked = {"messages": [{"message-id": f"n{number}", "message": payload}]}
        request = encode_request(_MS + operation, asked, message_id=f"q{number}")
        if self.asks.credit:
            self.asks.deliver(b"q%d" % number, [request], settled=True, state=state)

    def _state(self, outcome: p.Outcome | None = None) -> p.TransactionalState | None:
        if not self.transactions or self.chance.random() < 0.6:
            return None
        return p.TransactionalState(self.chance.choice(self.transactions), outcome)

    def _step(self, number: int) -> None:
        chance = self.chance
        match chance.choice(
            ("send",) * 5
            + ("settle",) * 6
            + ("row", "row", "discharge", "flow", "ask", "ask", "end")
        ):
            case "send":
                link = self.senders[chance.choice((*QUEUES, VIA))]
                payload = encode_message(body=f"n{number}", message_id=f"n{number}")
                if not link.credit or link in self.unfinished:
                    return
                if chance.random() < 0.25:
                    self._send_in_parts(link, number)
                else:
                    link.deliver(b"%d" % number, [payload], state=self._state())
            case "row":
                # Nothing comes between them: this is what a gateway gathers.
                for at in range(chance.randrange(3, 8)):
                    link = self.senders[chance.choice(QUEUES)]
                    name = f"n{number}.{at}"
                    if link.credit and link not in self.unfinished:
                        link.deliver(name.encode(), [encode_message(body=name, message_id=name)])
            case "settle" if self.held:
                link, first = self.held.pop(chance.randrange(len(self.held)))
                outcome: p.Outcome = chance.choice(
                    (
                        p.ACCEPTED,
                        p.ACCEPTED,
                        p.RELEASED,
                        p.Modified(True, False),
                        p.Modified(True, True),
                        p.Rejected(p.Error("com.microsoft:dead-letter")),
                    )
                )
                state = self._state(outcome) or outcome
                # Whoever settles waits for no answer any more, also not for an earlier one.
                is_new = (link, first) not in self.decided
                self.decided.append((link, first))
                is_settled = chance.random() < 0.2 and is_new and state is outcome
                link.settle([first], state, settled=is_settled)
                if chance.random() < 0.3 and state is outcome:
                    self.held.append((link, first))  # once more
            case "discharge" if self.transactions:
                txn_id = chance.choice(self.transactions)
                fail = chance.random() < 0.3
                body = p.encode_performative(p.Discharge(txn_id, fail))
                if self.coordinator.credit:
                    self.coordinator.deliver(b"x%d" % number, [b"\x00\x53\x77" + body])
            case "flow":
                # Once for each link: two flows in one read are one, the later, as if the first
                # had come too late.
                _, link = chance.choice(self.receivers)
                if link.state.value == "attached" and link not in self.flowed:
                    self.flowed.append(link)
                    link.grant(chance.randrange(5), drain=chance.random() < 0.3)
            case "ask":
                self._ask(number)
            case "end" if chance.random() < 0.2:
                # Nothing is given on it any more, also not what it had asked for just before.
                _, link = chance.choice(self.receivers)
                if link not in self.flowed:
                    link.detach()
                    self.detached.add(link.name)

    # --- what came of it --------------------------------------------------------------------------

    async def outcome(self) -> dict[str, object]:
        for event in await self.talk():
            match event:
                case MessageReceived(link, _, _, payload):
                    self._receive(event)
                    message = AmqpMessage(payload)
                    what = message.message_id or _answer(payload)
                    self._tell(link.name, "given", what)
                case Dispositions(session, deliveries, state):
                    if event.as_receiver:
                        for each in deliveries:
                            what = event.settled, _shown(state)
                            self._tell(each.link.name, f"{each.id} on {session.channel}", what)
                    else:
                        for number in range(event.first, event.last + 1):
                            where = session.channel, number
                            name = self.links_of.get(where, "nobody's")
                            what = event.settled, _shown(state)
                            self._tell(name, f"ours {number} on {session.channel}", what)
                case LinkDetached(link, error):
                    self._tell(link.name, "detached", error and error.condition)
        # Of two answers to one delivery the refusal of the second may come first, and requests to
        # $management are answered as each is done. Messages come in one order.
        in_order = {f"{link.name}: given" for _, link in self.receivers}
        shown: dict[str, object] = {
            key: told if key in in_order else sorted(map(str, told))
            for key, told in self.told.items()
        }
        for name in ("a", "b", "forwards", "target", "a/$DeadLetterQueue", "b/$DeadLetterQueue"):
            reply = await self.broker.execute(c.Browse(name, 0, 250), everything())
            shown[f"in {name}"] = [
                (each.sequence_number, self._body(each.body), each.state, each.delivery_count)
                for each in reply
            ]
        self.gateway.lost()
        await self.broker.close()
        return shown

    def _tell(self, name: str, what: str, value: object) -> None:
        if name not in self.detached:
            self.told[f"{name}: {what}"].append(value)

    def _body(self, number: int) -> bytes:
        return bytes(self.broker.engine.body(number))


def _answer(payload: bytes) -> object:
    """What can be compared of an answer of `$management`."""
    properties = AmqpMessage(payload).properties
    return properties.get("statusCode"), properties.get("errorCondition"), len(payload)


def _shown(state: p.DeliveryState | None) -> object:
    match state:
        case p.TransactionalState(_, outcome):
            return "in a transaction", _shown(outcome)
        case p.Rejected(error):
            return "rejected", error and error.condition
        case _:
            return type(state).__name__


async def _played(seed: int, *, together: bool) -> dict[str, object]:
    client = Client(seed)
    await client.begin()
    frames = client.frames()
    if together:
        await client.read(b"".join(frames))
    else:
        for each in frames:
            await client.read(each)
            for _ in range(4):
                await asyncio.sleep(0)
    return await client.outcome()


def difference(seed: int) -> str | None:
    """What is not the same, if anything."""
    one = asyncio.run(_played(seed, together=False))
    other = asyncio.run(_played(seed, together=True))
    for key in one.keys() | other.keys():
        if one.get(key) != other.get(key):
            return f"{key}: one by one {one.get(key)}, together {other.get(key)}"
    return None


@pytest.mark.req("T23")
def test_fx5_frames_in_one_read_act_in_their_order() -> None:
    """Over all links and sessions of a connection (FW8 is the same)."""
    for seed in range(150):
        assert difference(seed) is None, f"seed {seed}"


def test_fx5_a_gateway_that_gathers_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: transactions are gathered like everything else, as they once were."""
    monkeypatch.setattr(rows.Rows, "_stands_alone", lambda *_: True)
    monkeypatch.setattr(rows, "TransactionalState", bytes)
    assert any(difference(seed) for seed in range(60))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    for seed in range(options.seed, options.seed + options.reads):
        if (wrong := difference(seed)) is not None:
            print(f"seed {seed}: {wrong}")
            return repeat("frames", "--seed", seed, READS=1)
        if (done := seed - options.seed + 1) % 1_000 == 0:
            print(f"  {done:,} of {options.reads:,}", flush=True)
    print(f"{options.reads:,} reads of {_STEPS} steps: 0 differences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
