"""A sender: bounded in flight, one outcome for every message (T3)."""

from __future__ import annotations

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.events import MessageReceived
from tandembus.amqp.message import AmqpMessage, batch_messages
from tandembus.client.messages import BATCH, OutgoingMessage
from tandembus.client.sending import SenderLink, SendReport
from tandembus.errors import (
    ArgumentError,
    ConnectionLostError,
    MessageSizeExceededError,
    OperationTimeoutError,
    QuotaExceededError,
    RemoteError,
)
from tests.unit.client.fake import FakeBroker


def opened(broker: FakeBroker, **bounds: int) -> SenderLink:
    broker.opened()
    return broker.run(SenderLink(broker.heart, "q", **bounds).open())


def undecided(broker: FakeBroker) -> list[MessageReceived]:
    """The broker takes messages and says nothing."""
    kept: list[MessageReceived] = []

    def keep(event: MessageReceived) -> None:
        kept.append(event)

    broker.on_send = keep
    return kept


def test_a_message_is_accepted() -> None:
    """With all the properties that Service Bus has."""
    broker = FakeBroker()
    sender = opened(broker)
    broker.run(
        sender.send(
            OutgoingMessage(
                b"body",
                message_id="m",
                correlation_id="c",
                session_id="s",
                partition_key="s",
                subject="label",
                content_type="text/plain",
                to="t",
                reply_to="r",
                reply_to_session_id="rs",
                properties={"a": 1, "b": "x", "c": True},
                ttl_ms=5_000,
                priority=7,
                scheduled_ms=1_800_000_000_000,
                via_partition_key="v",
            )
        )
    )
    message = AmqpMessage(broker.sent[0].payload)
    assert (message.message_id, message.correlation_id, message.session_id) == ("m", "c", "s")
    assert (message.partition_key, message.via_partition_key) == ("s", "v")
    assert (message.label, message.content_type, message.to) == ("label", "text/plain", "t")
    assert (message.reply_to, message.reply_to_session_id) == ("r", "rs")
    assert message.properties == {"a": 1, "b": "x", "c": True}
    assert (message.ttl_ms, message.priority) == (5_000, 7)
    assert message.scheduled_ms == 1_800_000_000_000


def test_a_message_is_refused() -> None:
    """With the condition's class and the broker's text; the sender lives on."""
    broker = FakeBroker()
    sender = opened(broker)
    full = p.Rejected(p.Error("amqp:resource-limit-exceeded", "full. TrackingId:1"))
    broker.on_send = lambda _: full
    with pytest.raises(QuotaExceededError, match=r"full\. TrackingId:1"):
        broker.run(sender.send(b"x"))
    broker.on_send = lambda _: p.Rejected()
    with pytest.raises(RemoteError, match="without a reason"):
        broker.run(sender.send(b"x"))
    broker.on_send = lambda _: p.RELEASED
    with pytest.raises(ConnectionLostError, match="not decided"):
        broker.run(sender.send(b"x"))
    broker.on_send = lambda _: p.ACCEPTED
    broker.run(sender.send(b"x"))
    assert sender.in_flight == 0


@pytest.mark.req("T2", "T3")
def test_sends_overlap_up_to_the_bound() -> None:
    """No more are under way than allowed; the others wait, in their order, and none is lost."""
    broker = FakeBroker()
    sender = opened(broker, max_in_flight=3)
    kept = undecided(broker)
    tasks = [broker.start(sender.send(b"%d" % number)) for number in range(7)]
    most = 0
    while kept:
        most = max(most, len(kept))
        assert sender.in_flight == len(kept)
        event = kept.pop(0)
        event.link.settle([event.delivery_id], p.ACCEPTED)
        broker.exchange()
    assert most == 3
    assert all(task.is_done and task.error is None for task in tasks)
    assert [event.payload[-1:] for event in broker.sent] == [b"%d" % number for number in range(7)]


@pytest.mark.req("T3")
def test_the_bound_counts_bytes_too() -> None:
    """A few large messages are as many as a lot of small ones."""
    broker = FakeBroker()
    sender = opened(broker, max_in_flight_bytes=10_000)
    kept = undecided(broker)
    for _ in range(9):
        broker.start(sender.send(bytes(4_000)))
    assert len(kept) == 3, "the one that crosses the bound is the last"


@pytest.mark.req("T3")
def test_credit_is_a_bound_too() -> None:
    """Without credit nothing is sent, whatever is allowed in flight."""
    broker = FakeBroker()
    broker.credit = 2
    broker.renews_credit = False
    sender = opened(broker)
    kept = undecided(broker)
    tasks = [broker.start(sender.send(b"x")) for _ in range(5)]
    assert len(kept) == 2
    for event in kept:
        event.link.settle([event.delivery_id], p.ACCEPTED)
    broker.exchange()
    assert sum(task.is_done for task in tasks) == len(kept) == 2
    kept[0].link.grant(10)
    broker.exchange()
    assert len(kept) == 5


@pytest.mark.req("T3")
def test_outcomes_are_told_one_by_one() -> None:
    """In any order, each to whoever sent that message."""
    broker = FakeBroker()
    sender = opened(broker)
    kept = undecided(broker)
    tasks = [broker.start(sender.send(b"%d" % number)) for number in range(3)]
    link = kept[0].link
    link.settle([kept[2].delivery_id], p.ACCEPTED)
    link.settle([kept[1].delivery_id], p.Rejected(p.Error("amqp:not-allowed", "no")))
    broker.exchange()
    assert [task.is_done for task in tasks] == [False, True, True]
    assert [task.error is None for task in tasks] == [True, False, True]


@pytest.mark.req("T3")
def test_a_loss_leaves_no_outcome_open() -> None:
    """What was under way is unknown, what waited was not sent; both hear of it."""
    broker = FakeBroker()
    sender = opened(broker, max_in_flight=2)
    undecided(broker)
    tasks = [broker.start(sender.send(b"x")) for _ in range(4)]
    broker.heart.lose(ConnectionLostError("the cable"))
    for task in tasks:
        with pytest.raises(ConnectionLostError):
            task.result()
    assert sender.in_flight == 0
    with pytest.raises(ConnectionLostError, match="the cable"):
        broker.run(sender.send(b"y"))


def test_a_link_that_the_broker_ends() -> None:
    """The entity was deleted: messages under way are unknown, later ones are refused as that."""
    broker = FakeBroker()
    sender = opened(broker)
    undecided(broker)
    task = broker.start(sender.send(b"x"))
    broker.links["q"].detach(p.Error("amqp:not-found", "The messaging entity 'q' ..."))
    broker.exchange()
    with pytest.raises(ConnectionLostError, match=r"outcome is unknown.*entity 'q'"):
        task.result()
    assert sender.gone is not None
    assert sender.gone.condition == "amqp:not-found"


def test_no_answer_in_time() -> None:
    """A send times out; its answer, when it comes, still frees its place."""
    broker = FakeBroker(timeout_ms=1_000)
    sender = opened(broker, max_in_flight=1)
    kept = undecided(broker)
    task = broker.start(sender.send(b"x"))
    waiting = broker.start(sender.send(b"y"))
    broker.pass_ms(1_000)
    for each, what in ((task, "Sending to q"), (waiting, "Waiting to send")):
        with pytest.raises(OperationTimeoutError, match=what):
            each.result()
    assert sender.in_flight == 1
    kept[0].link.settle([kept[0].delivery_id], p.ACCEPTED)
    broker.exchange()
    assert sender.in_flight == 0
    assert sender.has_room


def test_a_message_that_is_too_large() -> None:
    """Known before it is sent."""
    broker = FakeBroker()
    sender = opened(broker)
    with pytest.raises(MessageSizeExceededError, match="1048576"):
        broker.run(sender.send(bytes(1024 * 1024)))
    assert not broker.sent


def test_nothing_in_flight_is_no_bound() -> None:
    broker = FakeBroker()
    with pytest.raises(ArgumentError):
        opened(broker, max_in_flight=0)


# --- many -----------------------------------------------------------------------------------------


def test_many_travel_in_batches() -> None:
    """In few transfers, all of them, in their order."""
    broker = FakeBroker()
    sender = opened(broker)
    bodies = [b"%d" % number for number in range(10_000)]
    report = broker.run(sender.send_all(iter(bodies)))
    assert report == SendReport(accepted=10_000)
    assert report.check() is report
    assert 2 < len(broker.sent) < 10
    assert {event.message_format for event in broker.sent} == {BATCH}
    got = [inner[5:] for event in broker.sent for inner in batch_messages(event.payload)]
    assert got == bodies


@pytest.mark.req("T3")
def test_many_are_bounded_in_flight() -> None:
    """A source without an end would not fill the memory: it is read as outcomes come in."""
    broker = FakeBroker()
    sender = opened(broker, max_in_flight=1, max_in_flight_bytes=1)
    kept = undecided(broker)
    taken = 0

    def source() -> object:
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield bytes(400_000)

    task = broker.start(sender.send_all(source()))  # type: ignore[arg-type]
    while not task.is_done:
        assert len(kept) == 1
        assert taken <= len(broker.sent) * 3 + 5, "a batch or so ahead, no more"
        event = kept.pop()
        event.link.settle([event.delivery_id], p.ACCEPTED)
        broker.exchange()
    assert task.result().accepted == 50


def test_every_failure_is_reported() -> None:
    """By its number: the batch that was refused, and the message that no batch could take."""
    broker = FakeBroker()
    sender = opened(broker)
    refused = p.Rejected(p.Error("amqp:not-allowed", "no session"))
    broker.on_send = lambda event: refused if len(broker.sent) == 1 else p.ACCEPTED
    bodies = [bytes(600_000), bytes(600_000), bytes(2_000_000), b"last"]
    report = broker.run(sender.send_all(bodies))
    assert report.accepted == 2
    assert [(number, error.condition) for number, error in report.failures] == [
        (0, "amqp:not-allowed"),
        (2, "amqp:link:message-size-exceeded"),
    ]
    assert report.is_complete
    with pytest.raises(Exception, match="no session"):
        report.check()


def test_many_and_a_loss() -> None:
    """What was accepted is counted, what was under way is unknown, the rest was not taken."""
    broker = FakeBroker()
    sender = opened(broker, max_in_flight=2)
    kept = undecided(broker)
    task = broker.start(sender.send_all(bytes(600_000) for _ in range(10)))
    first = kept.pop(0)
    first.link.settle([first.delivery_id], p.ACCEPTED)
    broker.exchange()
    broker.heart.lose(ConnectionLostError("the cable"))
    report = task.result()
    assert not report.is_complete
    assert report.accepted == 1
    assert [number for number, _ in report.failures][:2] == [1, 2]
    assert all(isinstance(error, ConnectionLostError) for _, error in report.failures)


def test_close_waits_for_outcomes() -> None:
    """Nothing that was sent is left without its answer."""
    broker = FakeBroker()
    sender = opened(broker)
    kept = undecided(broker)
    sending = broker.start(sender.send(b"x"))
    closing = broker.start(sender.close())
    assert not closing.is_done
    kept[0].link.settle([kept[0].delivery_id], p.ACCEPTED)
    broker.exchange()
    sending.result()
    closing.result()
    with pytest.raises(ConnectionLostError, match="closed"):
        broker.run(sender.send(b"y"))


def test_a_broker_that_settles_in_two_steps() -> None:
    """Its decision is answered, and counts."""
    broker = FakeBroker()
    sender = opened(broker)
    kept = undecided(broker)
    task = broker.start(sender.send(b"x"))
    kept[0].link.settle([kept[0].delivery_id], p.ACCEPTED, settled=False)
    broker.exchange()
    assert task.is_done
    task.result()
