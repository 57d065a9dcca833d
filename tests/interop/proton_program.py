"""Apache Qpid Proton as a plain AMQP 1.0 client: what a program that knows nothing of Azure can do.

Run by `tests.interop.plain_amqp` with a Python that has Proton; there is nothing for pytest here.
Every test has a queue of its own, on one broker.
"""

# ruff: noqa: PT027 - there is no pytest where this runs

from __future__ import annotations

import time
import unittest
from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID, uuid4

import proton  # type: ignore[import-not-found]
from proton import ConnectionException, Delivery, Message, symbol
from proton.handlers import (  # type: ignore[import-not-found]
    MessagingHandler,
    TransactionHandler,
)
from proton.reactor import (  # type: ignore[import-not-found]
    AtMostOnce,
    Container,
    Filter,
    LinkOption,
    Selector,
)
from proton.utils import (  # type: ignore[import-not-found]
    BlockingConnection,
    LinkDetached,
)

from tandembus.core.sas import sign
from tandembus.testing import BrokerProcess
from tandembus.testing.process import ROOT

_TIMEOUT_S = 30


class PeekLock(LinkOption):  # type: ignore[misc]
    """Peek-lock, as Service Bus's own clients attach: the second settlement is the broker's."""

    def apply(self, link: Any) -> None:
        link.snd_settle_mode = proton.Link.SND_UNSETTLED
        link.rcv_settle_mode = proton.Link.RCV_SECOND


class Connection(BlockingConnection):  # type: ignore[misc]
    """Names links itself: Proton's own names are the same for two links to one address."""

    def create_sender(self, address: str, **options: Any) -> Any:
        return super().create_sender(address, name=str(uuid4()), **options)

    def create_receiver(self, address: str | None, **options: Any) -> Any:
        return super().create_receiver(address, name=str(uuid4()), **options)


class ProtonTest(unittest.TestCase):
    broker: ClassVar[BrokerProcess]

    @classmethod
    def setUpClass(cls) -> None:
        cls.broker = BrokerProcess.start()

    @classmethod
    def tearDownClass(cls) -> None:
        if cls.broker.stop() != 0:
            raise AssertionError("the broker did not stop cleanly")

    def setUp(self) -> None:
        self.queue = self._testMethodName

    # --- ways in ----------------------------------------------------------------------------------

    def connect(self, key: str | None = None, **options: Any) -> Any:
        """By SASL PLAIN: the policy's name and key."""
        options = {"allowed_mechs": "PLAIN", "user": ROOT, **options}
        options["password"] = self.broker.key if key is None else key
        return self.open(**options)

    def open(self, **options: Any) -> Any:
        connection = Connection(
            f"amqp://{self.broker.address}",
            timeout=_TIMEOUT_S,
            allow_insecure_mechs=True,
            reconnect=False,
            **options,
        )
        self.addCleanup(connection.close)
        return connection

    def created(self, **settings: Any) -> Any:
        """A connection, and a queue for this test."""
        self.broker.create_queue(self.queue, **settings)
        return self.connect()

    def left(self, connection: Any, path: str | None = None) -> list[Any]:
        """All that can be received now, and is taken: what a drain brings."""
        receiver = connection.create_receiver(path or self.queue, credit=0, options=[AtMostOnce()])
        receiver.link.drain(100)
        connection.wait(lambda: not receiver.link.credit and not receiver.link.queued, msg="drain")
        messages = []
        while receiver.fetcher.has_message:
            messages.append(receiver.fetcher.pop().body)
        receiver.close()
        return messages


class Login(ProtonTest):
    def test_plain_with_a_wrong_key(self) -> None:
        """Refused by SASL, before anything is opened."""
        with self.assertRaises(ConnectionException) as caught:
            self.connect(key="wrong")
        assert "unauthorized" in str(caught.exception).lower()

    def test_anonymous_and_a_token(self) -> None:
        """Nothing without a token; with one on $cbs what its policy allows."""
        self.broker.create_queue(self.queue)
        connection = self.open(allowed_mechs="ANONYMOUS")
        with self.assertRaises(LinkDetached) as caught:
            connection.create_sender(self.queue)
        assert caught.exception.condition == "amqp:unauthorized-access"
        audience = f"sb://{self.broker.address}/{self.queue}"
        answers = connection.create_receiver("$cbs", credit=1)
        properties = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": audience,
        }
        token = sign(audience, ROOT, self.broker.key, int(time.time()) + 600)
        request = Message(id="1", properties=properties, body=token, reply_to="answers")
        connection.create_sender("$cbs").send(request)
        answer = answers.receive()
        assert answer.properties["status-code"] in (200, 202)
        assert answer.correlation_id == "1"
        connection.create_sender(self.queue).send(Message("allowed"))
        assert self.left(connection) == ["allowed"]


class Transfers(ProtonTest):
    def test_what_was_sent_comes_back(self) -> None:
        """Header, properties, annotations, application properties and body, types included."""
        connection = self.created()
        sent = Message(
            id=UUID(int=7),
            user_id=b"somebody",
            address="there",
            subject="label",
            reply_to="here",
            correlation_id=proton.ulong(5),
            content_type=symbol("text/plain"),
            group_id="group",
            group_sequence=3,
            reply_to_group_id="back",
            durable=True,
            priority=9,
            ttl=60,
            annotations={symbol("x-own"): "kept"},
            properties={
                "text": "ü",
                "int": proton.int32(-3),
                "long": 1 << 40,
                "ubyte": proton.ubyte(200),
                "double": 0.5,
                "float": proton.float32(0.25),
                "yes": True,
                "none": None,
                "char": proton.char("c"),
                "uuid": UUID(int=9),
                "time": proton.timestamp(1_700_000_000_000),
                "symbol": symbol("s"),
            },
            body={"list": [1, "two", 3.5], "map": {"inner": b"bytes"}},
        )
        connection.create_sender(self.queue).send(sent)
        got = connection.create_receiver(self.queue, options=[AtMostOnce()]).receive()
        for name in (
            "id", "user_id", "address", "subject", "reply_to", "correlation_id", "content_type",
            "group_id", "group_sequence", "reply_to_group_id", "durable", "priority", "ttl",
            "properties", "body",
        ):  # fmt: skip
            assert getattr(got, name) == getattr(sent, name), name
        for name, value in sent.properties.items():
            assert type(got.properties[name]) is type(value), name
        assert got.annotations["x-own"] == "kept"
        assert got.annotations["x-opt-sequence-number"] == 1
        assert got.delivery_count == 0

    def test_priorities(self) -> None:
        """Every priority comes back as it was sent, and none as none: the field's default, 4."""
        connection = self.created()
        sender = connection.create_sender(self.queue)
        for priority in (0, 4, 5, 9, 255):
            sender.send(Message(priority, priority=priority))
        sender.send(Message("none"))
        receiver = connection.create_receiver(self.queue, options=[AtMostOnce()])
        got = [receiver.receive() for _ in range(6)]
        assert [message.priority for message in got] == [0, 4, 5, 9, 255, 4]

    def test_settled_and_unsettled_sends(self) -> None:
        """An unsettled one is accepted; a settled one is stored without an answer."""
        connection = self.created()
        delivery = connection.create_sender(self.queue).send(Message("unsettled"))
        assert delivery.remote_state == Delivery.ACCEPTED
        connection.create_sender(self.queue, options=[AtMostOnce()]).send(Message("settled"))
        receiver = connection.create_receiver(self.queue, options=[AtMostOnce()])
        assert [receiver.receive().body for _ in range(2)] == ["unsettled", "settled"]

    def test_many_in_order(self) -> None:
        """1,000 messages, sent without waiting for each other's answers."""
        self.broker.create_queue(self.queue)
        sent = Sending(self, [Message(n) for n in range(1_000)])
        sent.run()
        assert sent.outcomes == {Delivery.ACCEPTED: 1000}
        connection = self.connect()
        receiver = connection.create_receiver(self.queue, credit=100)
        for n in range(1_000):
            assert receiver.receive().body == n
            receiver.accept()
        assert self.left(connection) == []

    def test_many_frames(self) -> None:
        """A message of 200 KB in frames of 1 KiB, both ways."""
        self.broker.create_queue(self.queue)
        connection = self.connect(max_frame_size=1_024)
        assert connection.conn.transport.max_frame_size == 1_024
        body = bytes(range(256)) * 800
        connection.create_sender(self.queue).send(Message(body, inferred=True))
        got = connection.create_receiver(self.queue).receive()
        assert got.body == body

    def test_too_large(self) -> None:
        """Refused with the condition for it; the link's limit says so before."""
        connection = self.created()
        sender = connection.create_sender(self.queue)
        assert sender.link.remote_max_message_size == 262144
        delivery = sender.link.send(Message(b"x" * 300_000))
        connection.wait(lambda: delivery.settled, msg="the outcome")
        assert delivery.remote_state == Delivery.REJECTED
        assert delivery.remote.condition.name == "amqp:link:message-size-exceeded"

    def test_receive_and_delete(self) -> None:
        """A link that is settled by its sender takes messages away."""
        connection = self.created()
        connection.create_sender(self.queue).send(Message("once"))
        receiver = connection.create_receiver(self.queue, options=[AtMostOnce()])
        assert receiver.receive().body == "once"
        assert self.left(connection) == []

    def test_drain(self) -> None:
        """Drain brings what is there, and ends when there is nothing."""
        connection = self.created()
        sender = connection.create_sender(self.queue)
        for n in range(3):
            sender.send(Message(n))
        assert self.left(connection) == [0, 1, 2]
        assert self.left(connection) == []

    def test_time_to_live(self) -> None:
        """A message that is over is not delivered."""
        connection = self.created()
        sender = connection.create_sender(self.queue)
        sender.send(Message("short", ttl=0.05))
        sender.send(Message("long", ttl=600))
        time.sleep(0.2)
        assert self.left(connection) == ["long"]


class Outcomes(ProtonTest):
    def test_accepted(self) -> None:
        """Gone."""
        connection = self.created()
        connection.create_sender(self.queue).send(Message("m"))
        receiver = connection.create_receiver(self.queue, options=[PeekLock()])
        receiver.receive()
        receiver.accept()
        assert self.left(connection) == []

    def test_released(self) -> None:
        """There again at once, and not counted."""
        connection = self.created()
        connection.create_sender(self.queue).send(Message("m"))
        receiver = connection.create_receiver(self.queue)
        for _ in range(3):
            assert receiver.receive().delivery_count == 0
            receiver.release(delivered=False)

    def test_modified(self) -> None:
        """Abandoned: there again at once, counted, and dead when it was too often."""
        connection = self.created(MaxDeliveryCount=2)
        connection.create_sender(self.queue).send(Message("m"))
        receiver = connection.create_receiver(self.queue)
        for count in range(2):
            assert receiver.receive().delivery_count == count
            receiver.release(delivered=True)
        dead = connection.create_receiver(f"{self.queue}/$DeadLetterQueue").receive()
        assert dead.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"

    def test_modified_and_undeliverable_here(self) -> None:
        """Deferred: no receiver gets it any more."""
        connection = self.created()
        connection.create_sender(self.queue).send(Message("m"))
        receiver = connection.create_receiver(self.queue)
        receiver.receive()
        delivery = receiver.fetcher.unsettled.popleft()
        delivery.local.undeliverable = True
        delivery.update(Delivery.MODIFIED)
        delivery.settle()
        assert self.left(connection) == []

    def test_rejected(self) -> None:
        """Dead-lettered."""
        connection = self.created()
        connection.create_sender(self.queue).send(Message("m"))
        receiver = connection.create_receiver(self.queue)
        receiver.receive()
        receiver.reject()
        assert self.left(connection) == []
        assert self.left(connection, f"{self.queue}/$DeadLetterQueue") == ["m"]

    def test_a_lock_outlives_its_link(self) -> None:
        """What was not settled is nobody else's until the lock runs out."""
        connection = self.created(LockDuration="PT5S")
        connection.create_sender(self.queue).send(Message("m"))
        receiver = connection.create_receiver(self.queue, credit=1)
        receiver.receive()
        receiver.close()
        assert self.left(connection) == []
        again = connection.create_receiver(self.queue).receive()
        assert (again.body, again.delivery_count) == ("m", 1)


class Refusals(ProtonTest):
    def refused(self, condition: str, attempt: Callable[[], Any]) -> None:
        with self.assertRaises(LinkDetached) as caught:
            attempt()
        assert caught.exception.condition == condition

    def test_what_is_not_there(self) -> None:
        """Sender and receiver are refused by their link; the connection goes on."""
        connection = self.created()
        self.refused("amqp:not-found", lambda: connection.create_sender("no-such-queue"))
        self.refused("amqp:not-found", lambda: connection.create_receiver("no-such-queue"))
        connection.create_sender(self.queue).send(Message("still here"))

    def test_a_dynamic_node(self) -> None:
        """Nobody makes entities by attaching: refused, and the connection goes on."""
        connection = self.created()
        with self.assertRaises(LinkDetached) as caught:
            connection.create_receiver(None, dynamic=True)
        assert caught.exception.condition in ("amqp:not-allowed", "amqp:not-implemented")
        connection.create_sender(self.queue).send(Message("still here"))

    def test_sessions(self) -> None:
        """A queue with sessions wants a filter, and gives the session that it names."""
        connection = self.created(RequiresSession=True)
        self.refused("amqp:not-allowed", lambda: connection.create_receiver(self.queue))
        with self.assertRaises(proton.utils.SendException):
            connection.create_sender(self.queue).send(Message("no session"))
        for session in ("a", "b"):
            connection.create_sender(self.queue).send(Message(session, group_id=session))
        wanted = Filter({symbol("com.microsoft:session-filter"): "b"})
        receiver = connection.create_receiver(self.queue, options=[wanted])
        assert receiver.receive().body == "b"
        self.refused(
            "com.microsoft:session-cannot-be-locked",
            lambda: connection.create_receiver(self.queue, options=[wanted]),
        )

    def test_a_selector(self) -> None:
        """A filter that the broker does not have is not confirmed: the client can see that."""
        connection = self.created()
        receiver = connection.create_receiver(self.queue, options=[Selector("colour = 'red'")])
        assert "selector" in str(receiver.link.source.filter.format())
        assert "selector" not in str(receiver.link.remote_source.filter.format())


class Sending(MessagingHandler):  # type: ignore[misc]
    """Sends all it has as fast as credit allows; counts the outcomes."""

    def __init__(self, test: ProtonTest, messages: list[Any]) -> None:
        super().__init__()
        self._test = test
        self._left = list(reversed(messages))
        self._wanted = len(messages)
        self.outcomes: dict[Any, int] = {}

    def run(self) -> None:
        Container(self).run()

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(
            f"amqp://{self._test.broker.address}",
            user=ROOT,
            password=self._test.broker.key,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
        )
        event.container.create_sender(connection, self._test.queue)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._left:
            event.sender.send(self._left.pop())

    def on_settled(self, event: Any) -> None:
        state = event.delivery.remote_state
        self.outcomes[state] = self.outcomes.get(state, 0) + 1
        if sum(self.outcomes.values()) == self._wanted:
            event.connection.close()


class Transacting(MessagingHandler, TransactionHandler):  # type: ignore[misc]
    """Declares a transaction, receives and accepts `takes` messages in it, sends `posts`, and
    discharges. `said` is what came back."""

    def __init__(self, test: ProtonTest, *, takes: int, posts: list[str], is_commit: bool) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._test = test
        self._takes = takes
        self._posts = posts
        self._is_commit = is_commit
        self._transaction: Any = None
        self._taken = 0
        self._open = len(posts)
        self.said: list[str] = []

    def run(self) -> list[str]:
        Container(self).run()
        return self.said

    def on_start(self, event: Any) -> None:
        self.connection = event.container.connect(
            f"amqp://{self._test.broker.address}",
            user=ROOT,
            password=self._test.broker.key,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
        )
        self.sender = event.container.create_sender(self.connection, self._test.queue)
        self.receiver = event.container.create_receiver(self.connection, self._test.queue)
        event.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        self.said.append("declared")
        for body in self._posts:
            self._transaction.send(self.sender, Message(body))
        self.receiver.flow(self._takes)
        self._discharge_if_done()

    def on_message(self, event: Any) -> None:
        self._transaction.accept(event.delivery)
        self._taken += 1
        self._discharge_if_done()

    def on_settled(self, event: Any) -> None:
        if event.link == self.sender:
            self.said.append(f"state {int(event.delivery.remote_state):#x}")
            self._open -= 1
            self._discharge_if_done()

    def _discharge_if_done(self) -> None:
        if self._taken == self._takes and not self._open:
            if self._is_commit:
                self._transaction.commit()
            else:
                self._transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        self._end("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self._end("aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._end("commit failed")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self._end("declare failed")

    def on_link_error(self, event: Any) -> None:
        self._end(f"link error {event.link.remote_condition}")

    def on_transport_error(self, event: Any) -> None:
        self._end(f"transport error {event.transport.condition}")

    def _end(self, word: str) -> None:
        self.said.append(word)
        self.connection.close()


class Transactions(ProtonTest):
    """AMQP 1.0 part 4, with Proton's own transaction classes."""

    def transact(
        self, *, takes: int = 0, posts: tuple[str, ...] = (), is_commit: bool
    ) -> list[str]:
        return Transacting(self, takes=takes, posts=list(posts), is_commit=is_commit).run()

    def test_commit_of_posts(self) -> None:
        """All are there after the commit; each was answered within the transaction (0x34)."""
        self.broker.create_queue(self.queue)
        said = self.transact(posts=("one", "two"), is_commit=True)
        assert said == ["declared", "state 0x34", "state 0x34", "committed"]
        assert self.left(self.connect()) == ["one", "two"]

    def test_rollback_of_posts(self) -> None:
        """Nothing is there."""
        self.broker.create_queue(self.queue)
        said = self.transact(posts=("one", "two"), is_commit=False)
        assert said[-1] == "aborted"
        assert self.left(self.connect()) == []

    def test_commit_of_settlements_and_posts(self) -> None:
        """What was received is gone and what was sent is there."""
        connection = self.created()
        connection.create_sender(self.queue).send(Message("old"))
        said = self.transact(takes=1, posts=("new",), is_commit=True)
        assert said[-1] == "committed"
        assert self.left(connection) == ["new"]

    def test_rollback_of_settlements(self) -> None:
        """The message is not gone: it is locked as before, and Proton then releases it, which does
        not count as a delivery."""
        connection = self.created(LockDuration="PT1M")
        connection.create_sender(self.queue).send(Message("old"))
        said = self.transact(takes=1, posts=("new",), is_commit=False)
        assert said[-1] == "aborted"
        again = connection.create_receiver(self.queue).receive()
        assert (again.body, again.delivery_count) == ("old", 0)
        assert self.left(connection) == []


if __name__ == "__main__":
    unittest.main(verbosity=2)
