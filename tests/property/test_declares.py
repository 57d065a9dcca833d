"""Every declare is answered with the id of its transaction, and with nothing else.

One session has coordinators, senders and receivers. A client declares, sends, settles, discharges
and takes messages in any order, without waiting; what it writes reaches the broker cut anywhere,
and the broker's commits end anywhere in between. The answers of all links go out as dispositions of
one session, and neighbours are merged: none may get the outcome of another. At the end all that was
committed is there, once, and nothing else.

    python -m tests.property.test_declares --rounds 100000 [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Dispositions, MessageReceived
from tandembus.amqp.link import Link
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.amqp.pending import Pending
from tandembus.amqp.session import Session
from tandembus.clock import ManualClock
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.server.broker import Broker
from tandembus.server.gateway import Gateway
from tandembus.settings import QueueSettings
from tandembus.store.memory import MemoryStore

QUEUES: Final = ("a", "b")
_ROUNDS: Final = 400
"""With one broker."""
_MOST_OPEN: Final = 6


class WrongAnswerError(AssertionError):
    """The broker has answered what cannot be right."""


@dataclass
class Transaction:
    sent: list[str] = field(default_factory=list)
    settled: list[tuple[str, str]] = field(default_factory=list)
    """Queue and name of messages that were received."""


class Run:
    """One connection and its session, for some rounds."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.client = Connection(Role.CLIENT, container_id="c", use_sasl=False)
        self.written: list[bytes] = []
        self.frames: list[bytes] = []
        """What the client has written, step by step: a disposition waits for its neighbours, and a
        transfer of the next step does not wait for it."""
        self.asked: dict[int, tuple[str, Any]] = {}
        """By delivery id, what was sent on any link and not answered yet."""
        self.open: dict[bytes, Transaction] = {}
        self.ending: dict[bytes, Transaction] = {}
        """Those whose discharge is on its way."""
        self.links: dict[bytes, Link] = {}
        """Where each was declared."""
        self.given: list[tuple[Link, int, str]] = []
        self.expected: Counter[str] = Counter()
        """Names of messages that have to be there at the end."""
        self.answered = Counter[str]()
        self._names = 0

    # --- the two ends -----------------------------------------------------------------------------

    async def begin(self) -> None:
        self.broker = await Broker.open(
            "default",
            MemoryStore(),
            policies=None,
            on_failure=lambda error: pytest.fail(str(error)),
            clock=ManualClock(),
        )
        for name in QUEUES:
            settings = QueueSettings(max_delivery_count=1_000)
            await self.broker.execute(c.CreateQueue(name, settings), everything())
        self.gateway = Gateway(
            self.broker, self._heard, lambda: None, peer="p", on_open=lambda: None
        )
        self.client.open()
        # Delivery ids that wrap, now and then.
        first = self.chance.choice((0, 1, 0xFFFF_FFFF - self.chance.randrange(300)))
        self.session = session = self.client.begin(initial_id=first)
        self.senders = [
            session.attach(f"s-{at}", is_sender=True, source=p.Source("me"), target=p.Target(name))
            for at, name in enumerate((*QUEUES, *QUEUES))
        ]
        self.receivers = [
            session.attach(
                f"r-{name}", is_sender=False, source=p.Source(name), target=p.Target("me")
            )
            for name in QUEUES
        ]
        self.coordinators = [
            session.attach(f"c-{at}", is_sender=True, source=p.Source("me"), target=p.Coordinator())
            for at in range(2)
        ]
        await self._settle_down()

    def _heard(self, data: Sequence[Any]) -> None:
        self.written += [bytes(each) for each in data]

    async def _exchange(self) -> None:
        """What the client has written, cut anywhere, with what comes back in between."""
        chance = self.chance
        data = b"".join(self.frames)
        self.frames.clear()
        while data:
            size = len(data) if chance.random() < 0.5 else chance.randint(1, len(data))
            has_more = self.gateway.receive(data[:size])
            data = data[size:]
            while has_more:
                has_more = self.gateway.receive(b"")
            for _ in range(chance.choice((0, 0, 1, 2, 5))):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                await asyncio.sleep(0.0003)  # a commit ends
            if chance.random() < 0.5:
                self._listen()

    def _listen(self) -> None:
        written, self.written = self.written, []
        for each in written:
            for event in self.client.receive_data(each):
                if isinstance(event, MessageReceived):
                    name = str(AmqpMessage(event.payload).message_id)
                    self.given.append((event.link, event.delivery_id, name))
                elif isinstance(event, Dispositions) and event.as_receiver:
                    self._answered(event)
                elif isinstance(event, Dispositions) and isinstance(event.state, p.Rejected):
                    raise WrongAnswerError(f"a settlement was refused: {event.state}")

    async def _settle_down(self) -> None:
        quiet = 0
        while quiet < 4:
            quiet += 1
            if self.written:
                quiet = 0
            self._listen()
            data = b"".join(map(bytes, self.client.data_to_send()))
            if data:
                quiet = 0
                has_more = self.gateway.receive(data)
                while has_more:
                    has_more = self.gateway.receive(b"")
            await asyncio.sleep(0.0003)
            if self.broker.engine.engine.is_writing:
                quiet = 0

    # --- what the client does ---------------------------------------------------------------------

    def _deliver(
        self, link: Link, payload: bytes, kind: str, about: Any, state: Any = None
    ) -> None:
        if not link.credit or self.session.is_blocked:
            return
        delivery_id = link.deliver(b"%d" % len(self.asked), [payload], state=state)
        assert delivery_id is not None
        assert delivery_id not in self.asked
        self.asked[delivery_id] = (kind, about)

    def _step(self) -> None:
        chance = self.chance
        match chance.choice(("declare", "send", "send", "send", "settle", "settle", "end", "take")):
            case "declare" if len(self.open) < _MOST_OPEN:
                link = chance.choice(self.coordinators)
                self._deliver(link, _asked(p.Declare()), "declare", link)
            case "send":
                self._names += 1
                name = f"m{self._names}"
                txn_id = self._transaction()
                state = None if txn_id is None else p.TransactionalState(txn_id)
                size = chance.choice((1, 1, 1, 70_000))  # in several frames
                payload = encode_message(body=b"x" * size, message_id=name)
                self._deliver(chance.choice(self.senders), payload, "send", (name, txn_id), state)
            case "settle" if self.given:
                link, delivery_id, name = self.given.pop(chance.randrange(len(self.given)))
                txn_id = self._transaction()
                outcome: p.Outcome = chance.choice((p.ACCEPTED, p.ACCEPTED, p.Modified(True)))
                decided: p.DeliveryState = outcome
                if txn_id is not None:
                    decided = p.TransactionalState(txn_id, outcome)
                link.settle([delivery_id], decided, settled=False)
                if outcome is p.ACCEPTED:
                    if txn_id is None:
                        self.expected[name] -= 1
                    else:
                        self.open[txn_id].settled.append((link.name, name))
            case "end" if self.open:
                txn_id = chance.choice([*self.open])
                link = self.links[txn_id]
                if not link.credit:
                    return
                fail = chance.random() < 0.3
                self.ending[txn_id] = self.open.pop(txn_id)
                self._deliver(link, _asked(p.Discharge(txn_id, fail)), "discharge", (txn_id, fail))
            case "take":
                link = chance.choice(self.receivers)
                link.grant(chance.randrange(1, 5))

    def _transaction(self) -> bytes | None:
        if not self.open or self.chance.random() < 0.4:
            return None
        return self.chance.choice([*self.open])

    # --- what it hears ----------------------------------------------------------------------------

    def _answered(self, event: Dispositions) -> None:
        count = (event.last - event.first & 0xFFFF_FFFF) + 1
        for at in range(count):
            delivery_id = event.first + at & 0xFFFF_FFFF
            if delivery_id not in self.asked:
                raise WrongAnswerError(
                    f"{delivery_id} is answered, and nothing waits: {event.state}"
                )
            kind, about = self.asked.pop(delivery_id)
            self.answered[kind] += 1
            self._check(kind, about, event.state)

    def _check(self, kind: str, about: Any, state: p.DeliveryState | None) -> None:
        match kind, state:
            case "declare", p.Declared(txn_id):
                if txn_id in self.open or txn_id in self.ending:
                    raise WrongAnswerError(f"{txn_id.hex()} was declared twice")
                self.open[txn_id] = Transaction()
                self.links[txn_id] = about
            case "send", p.Accepted() if about[1] is None:
                self.expected[about[0]] += 1
            case "send", p.TransactionalState(txn_id, p.Accepted()) if txn_id == about[1]:
                transaction = self.open.get(txn_id) or self.ending.get(txn_id)
                if transaction is None:
                    raise WrongAnswerError(f"{about[0]} was answered after its discharge")
                transaction.sent.append(about[0])
            case "discharge", p.Accepted():
                transaction = self.ending.pop(about[0])
                if not about[1]:
                    for name in transaction.sent:
                        self.expected[name] += 1
                    for _, name in transaction.settled:
                        self.expected[name] -= 1
            case _:
                raise WrongAnswerError(f"a {kind} was answered {state}")

    # --- the whole --------------------------------------------------------------------------------

    async def play(self, rounds: int) -> Counter[str]:
        await self.begin()
        try:
            for _ in range(rounds):
                for _ in range(self.chance.randint(1, 8)):
                    self._step()
                    self.frames += map(bytes, self.client.data_to_send())
                await self._exchange()
                self._listen()
            await self._settle_down()
            if self.asked:
                raise WrongAnswerError(f"without an answer: {[*self.asked.values()][:5]}")
            await self._compare()
        finally:
            self.gateway.lost()
            await self.broker.close()
        return self.answered

    async def _compare(self) -> None:
        there: Counter[str] = Counter()
        for name in QUEUES:
            start = 0
            while shown := await self.broker.execute(c.Browse(name, start, 250), everything()):
                for each in shown:
                    body = bytes(self.broker.engine.body(each.body))
                    there[str(AmqpMessage(body).message_id)] += 1
                start = shown[-1].sequence_number + 1
        if there != +self.expected or any(count < 0 for count in self.expected.values()):
            raise WrongAnswerError(
                f"too much: {there - self.expected}, missing: {self.expected - there}"
            )


def _asked(performative: Any) -> bytes:
    return b"\x00\x53\x77" + p.encode_performative(performative)


def played(rounds: int, seed: int, *, is_told: bool = False) -> Counter[str]:
    """How many of each kind were answered, as they should be."""
    answered: Counter[str] = Counter()
    done = 0
    while done < rounds:
        count = min(_ROUNDS, rounds - done)
        answered += asyncio.run(Run(seed + done).play(count))
        done += count
        if is_told and done % (10 * _ROUNDS) == 0:
            print(f"  {done:,} of {rounds:,} rounds: {dict(answered)}", flush=True)
    return answered


@pytest.mark.req("T23")
def test_fx24_a_declare_is_answered_with_a_transaction() -> None:
    """The slice of every day."""
    answered = played(1_600, 1)
    assert min(answered[kind] for kind in ("declare", "send", "discharge")) > 300, answered


@pytest.mark.long
@pytest.mark.req("T23")
def test_fx24_a_hundred_thousand_interleavings() -> None:
    print(dict(played(100_000, 1_000_000, is_told=True)))


@pytest.mark.parametrize("what", ["outcome", "ids"])
def test_fx24_dispositions_that_are_merged_wrongly_are_found(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: outcomes are taken for the same, or ranges for whole."""
    settle, flush = Session.settle, Session.flush

    def settle_by_type(self: Session, ids: Any, outcome: Any, **more: Any) -> None:
        pending = self._pending
        if pending is not None and type(pending.outcome) in (p.Accepted, p.Declared):
            if type(outcome) in (p.Accepted, p.Declared):
                outcome = pending.outcome
        settle(self, ids, outcome, **more)

    def flush_whole(self: Session) -> None:
        pending: Pending | None = self._pending
        if pending is not None and pending.ids and max(pending.ids) - min(pending.ids) < 1_000:
            pending.ids = [*range(min(pending.ids), max(pending.ids) + 1)]
        flush(self)

    if what == "outcome":
        monkeypatch.setattr(Session, "settle", settle_by_type)
    else:
        monkeypatch.setattr(Session, "flush", flush_whole)
    with pytest.raises(WrongAnswerError):
        played(4_000, 1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    options = parser.parse_args(arguments)
    try:
        answered = played(options.rounds, options.seed, is_told=True)
    except WrongAnswerError as error:
        print(error)
        again = f"python -m tests.property.test_declares --rounds {options.rounds}"
        print(f"repeat: {again} --seed {options.seed}")
        return 1
    print(f"{options.rounds:,} rounds: {dict(answered)}, each answered as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
