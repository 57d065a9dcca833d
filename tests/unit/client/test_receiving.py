"""A receiver: credit as it is asked for, and settlements that the broker answers."""

from __future__ import annotations

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.link import Link
from tandembus.amqp.message import encode_message
from tandembus.amqp.types import Long
from tandembus.client.messages import ReceivedMessage
from tandembus.client.operations import Settlement
from tandembus.client.receiving import (
    DRAIN_MS,
    NextSession,
    ReceiveMode,
    ReceiverLink,
)
from tandembus.errors import (
    ArgumentError,
    ConnectionLostError,
    MessageLockLostError,
    NotAllowedError,
    OperationTimeoutError,
    PartlySettledError,
    SessionLockLostError,
)
from tandembus.model import Symbol
from tests.unit.client.fake import FakeBroker


def opened(broker: FakeBroker, **options: object) -> ReceiverLink:
    broker.opened()
    return broker.run(ReceiverLink(broker.heart, "q", **options).open())  # type: ignore[arg-type]


def received(broker: FakeBroker, count: int) -> tuple[ReceiverLink, list[ReceivedMessage]]:
    receiver = opened(broker)
    broker.enqueue(*(b"%d" % number for number in range(count)))
    return receiver, broker.run(receiver.receive(count, 1_000))


# --- receiving ------------------------------------------------------------------------------------


def test_what_is_there_comes_at_once() -> None:
    """Up to the number that was asked for; credit is for no more, and is taken back."""
    broker = FakeBroker()
    receiver = opened(broker)
    broker.enqueue(*(b"%d" % number for number in range(5)))
    assert [each.body for each in broker.run(receiver.receive(3, 1_000))] == [b"0", b"1", b"2"]
    assert [each.body for each in broker.run(receiver.receive(10, 1_000))] == [b"3", b"4"]
    assert broker.flows == [(3, False), (10, False), (8, True)]
    broker.enqueue(b"later")
    assert broker.queue, "nobody has asked for it"


def test_a_wait_ends_with_the_first_message() -> None:
    broker = FakeBroker()
    receiver = opened(broker)
    task = broker.start(receiver.receive(10, 60_000))
    broker.pass_ms(20_000)
    assert not task.is_done
    broker.enqueue(b"a", b"b")
    assert [each.body for each in task.result()] == [b"a", b"b"]


def test_a_wait_ends_without_one() -> None:
    """Then the credit is taken back: nothing is locked that nobody waits for."""
    broker = FakeBroker()
    receiver = opened(broker)
    task = broker.start(receiver.receive(10, 60_000))
    broker.pass_ms(60_000)
    assert task.result() == []
    assert broker.flows[-1] == (10, True)
    assert broker.links["q"].credit == 0


def test_a_message_that_crosses_the_drain_is_not_lost() -> None:
    """It was sent before the broker heard that nobody waits any more."""
    broker = FakeBroker()
    receiver = opened(broker)
    task = broker.start(receiver.receive(10, 1_000))
    broker.clock.advance(1_000)
    broker.links["q"].deliver(bytes(16), [encode_message(body=b"late")])
    broker.heart.tick()
    broker.exchange()
    assert [each.body for each in task.result()] == [b"late"]


def test_a_broker_that_does_not_know_drain() -> None:
    """It is lived without, after a while."""
    broker = FakeBroker()
    receiver = opened(broker)
    task = broker.heart.run(receiver.receive(10, 0))
    broker.heart.tick()
    broker.heart.data_to_send()  # to nobody
    broker.clock.advance(DRAIN_MS)
    broker.heart.tick()
    assert task.result() == []


def test_one_call_at_a_time() -> None:
    """Two would take each other's messages."""
    broker = FakeBroker()
    receiver = opened(broker)
    broker.start(receiver.receive(1, 60_000))
    with pytest.raises(NotAllowedError):
        broker.run(receiver.receive(1, 60_000))


def test_a_call_that_is_cancelled_takes_nothing() -> None:
    """What comes then stays for the next one."""
    broker = FakeBroker()
    receiver = opened(broker)
    task = broker.start(receiver.receive(5, 60_000))
    task.cancel()
    broker.enqueue(b"kept")
    assert [each.body for each in broker.run(receiver.receive(5, 1_000))] == [b"kept"]


def test_prefetch_keeps_a_window() -> None:
    """Messages are here before they are asked for; the credit is renewed by halves."""
    broker = FakeBroker()
    receiver = opened(broker, prefetch=10)
    broker.enqueue(*(b"%d" % number for number in range(25)))
    assert len(broker.queue) == 15
    got: list[ReceivedMessage] = []
    while len(got) < 25:
        got += broker.run(receiver.receive(4, 1_000))
    assert [each.body for each in got] == [b"%d" % number for number in range(25)]
    assert not any(drain for _, drain in broker.flows)
    with pytest.raises(ArgumentError):
        opened(FakeBroker(), prefetch=100_000)


def test_receive_and_delete() -> None:
    """Settled as it is sent: there is no lock, and nothing to settle."""
    broker = FakeBroker()
    receiver = opened(broker, mode=ReceiveMode.RECEIVE_AND_DELETE)
    broker.enqueue(b"x")
    (message,) = broker.run(receiver.receive(1, 1_000))
    assert message.body == b"x"
    with pytest.raises(NotAllowedError):
        broker.run(receiver.settle([message], Settlement.COMPLETE))
    with pytest.raises(NotAllowedError):
        _ = message.lock_token


def test_close_gives_back_what_nobody_took() -> None:
    """Released, so that its delivery count stays."""
    broker = FakeBroker()
    receiver = opened(broker, prefetch=10)
    broker.enqueue(b"a", b"b")
    broker.run(receiver.close())
    (released,) = broker.dispositions
    assert released.state == p.RELEASED
    assert len(released.deliveries) == 2
    assert "q" not in broker.links
    with pytest.raises(ConnectionLostError, match="closed"):
        broker.run(receiver.receive(1, 1_000))


def test_the_broker_ends_the_link() -> None:
    """What is here already can still be taken; then the reason is told."""
    broker = FakeBroker()
    receiver = opened(broker, prefetch=10)
    broker.enqueue(b"a")
    broker.links["q"].detach(p.Error("com.microsoft:session-lock-lost", "too late"))
    broker.exchange()
    assert len(broker.run(receiver.receive(5, 1_000))) == 1
    with pytest.raises(SessionLockLostError, match="too late"):
        broker.run(receiver.receive(5, 1_000))


# --- settling -------------------------------------------------------------------------------------


@pytest.mark.req("T9")
def test_many_are_settled_with_one_frame() -> None:
    """Neighbours are a range, there and back."""
    broker = FakeBroker()
    receiver, messages = received(broker, 50)
    broker.run(receiver.settle(messages, Settlement.COMPLETE))
    (disposition,) = broker.dispositions
    assert (disposition.first, disposition.last) == (
        messages[0].delivery_id,
        messages[-1].delivery_id,
    )
    assert disposition.state == p.ACCEPTED
    assert not disposition.settled


@pytest.mark.req("T9")
def test_outcomes_as_the_sdks_write_them() -> None:
    """Abandon, defer and dead-letter, with properties to modify (WIRE §6.1)."""
    broker = FakeBroker()
    receiver, messages = received(broker, 4)
    edits = {"tries": 2}
    broker.run(receiver.settle(messages[:1], Settlement.ABANDON, properties=edits))
    broker.run(receiver.settle(messages[1:2], Settlement.DEFER))
    broker.run(
        receiver.settle(
            messages[2:3],
            Settlement.DEAD_LETTER,
            reason="bad",
            description="very bad",
            properties=edits,
        )
    )
    broker.run(receiver.settle(messages[3:], Settlement.RELEASE))
    abandoned, deferred, dead, released = (each.state for each in broker.dispositions)
    assert abandoned == p.Modified(True, False, {"tries": 2})
    assert deferred == p.Modified(True, True)
    assert released == p.RELEASED
    assert isinstance(dead, p.Rejected)
    assert dead.error is not None
    assert dead.error.condition == "com.microsoft:dead-letter"
    assert dead.error.info == {
        "tries": 2,
        "DeadLetterReason": "bad",
        "DeadLetterErrorDescription": "very bad",
    }


@pytest.mark.req("T11")
def test_a_lost_lock() -> None:
    """One message raises its error; of many, those that failed are named, the others are done."""
    broker = FakeBroker()
    receiver, messages = received(broker, 5)
    lost = p.Rejected(p.Error("com.microsoft:message-lock-lost", "the lock expired"))
    bad = {messages[1].delivery_id, messages[3].delivery_id}
    broker.on_settle = lambda number: lost if number in bad else p.ACCEPTED
    with pytest.raises(PartlySettledError, match="2 messages") as caught:
        broker.run(receiver.settle(messages, Settlement.COMPLETE))
    assert [message for message, _ in caught.value.failures] == [messages[1], messages[3]]
    assert {type(error) for _, error in caught.value.failures} == {MessageLockLostError}

    receiver, (only,) = received(broker := FakeBroker(), 1)
    broker.on_settle = lambda _: lost
    with pytest.raises(MessageLockLostError, match="the lock expired"):
        broker.run(receiver.settle([only], Settlement.COMPLETE))


@pytest.mark.req("T11")
def test_nothing_is_settled_twice() -> None:
    broker = FakeBroker()
    receiver, (message,) = received(broker, 1)
    broker.run(receiver.settle([message], Settlement.COMPLETE))
    with pytest.raises(NotAllowedError, match="already"):
        broker.run(receiver.settle([message], Settlement.ABANDON))


@pytest.mark.req("T11")
def test_after_the_link_is_gone_the_lock_token_serves() -> None:
    """Through $management, as the lock outlives its link."""
    broker = FakeBroker()
    receiver, messages = received(broker, 2)
    broker.links["q"].detach(p.Error("amqp:link:detach-forced", "idle"))
    broker.exchange()
    broker.run(receiver.settle(messages, Settlement.DEAD_LETTER, reason="old"))
    (request,) = broker.requests
    assert request.properties["operation"] == "com.microsoft:update-disposition"
    assert request.body["disposition-status"] == "suspended"
    assert request.body["deadletter-reason"] == "old"
    assert list(request.body["lock-tokens"]) == [each.lock_token for each in messages]
    broker.on_request = lambda it: it.reply(410, condition="com.microsoft:message-lock-lost")
    with pytest.raises(MessageLockLostError):
        broker.run(receiver.settle(messages[:1], Settlement.COMPLETE))


def test_a_settlement_and_a_loss() -> None:
    """Its outcome is unknown, and it says so."""
    broker = FakeBroker()
    receiver, (message,) = received(broker, 1)
    broker.on_settle = lambda _: None
    task = broker.start(receiver.settle([message], Settlement.COMPLETE))
    broker.heart.lose(ConnectionLostError("the cable"))
    with pytest.raises(ConnectionLostError, match="the cable"):
        task.result()


def test_a_settlement_that_is_not_answered() -> None:
    broker = FakeBroker(timeout_ms=1_000)
    receiver, (message,) = received(broker, 1)
    broker.on_settle = lambda _: None
    task = broker.start(receiver.settle([message], Settlement.COMPLETE))
    broker.pass_ms(1_000)
    with pytest.raises(OperationTimeoutError, match="Settling messages of q"):
        task.result()


# --- sessions -------------------------------------------------------------------------------------


def _grant_session(broker: FakeBroker, session_id: str) -> None:
    def attach(link: Link) -> bool:
        assert link.remote is not None
        source = link.remote.source
        if not link.is_sender or source is None or source.filter is None:
            return False
        key = Symbol("com.microsoft:session-filter")
        until = Symbol("com.microsoft:locked-until-utc")
        ticks = 621_355_968_000_000_000 + 1_700_000_060_000 * 10_000
        broker.accept(
            link,
            source=p.Source(source.address, filter={key: session_id}),
            properties={until: Long(ticks)},
        )
        return True

    broker.on_attach = attach


@pytest.mark.req("T14")
@pytest.mark.parametrize("asked", ["green", NextSession.AVAILABLE])
def test_a_session_is_accepted(asked: str | NextSession) -> None:
    """By its name, or the next that is there: the broker says which, and until when."""
    broker = FakeBroker().opened()
    _grant_session(broker, "green")
    receiver = broker.run(ReceiverLink(broker.heart, "q", session=asked).open())
    assert receiver.session_id == "green"
    assert receiver.session_locked_until_ms == 1_700_000_060_000
    remote = broker.links["q"].remote
    assert remote is not None
    assert remote.source is not None
    wanted = (remote.source.filter or {})[Symbol("com.microsoft:session-filter")]
    assert wanted == (None if isinstance(asked, NextSession) else "green")


def test_a_session_that_does_not_come_is_not_taken_later() -> None:
    """An attach that nobody waits for is withdrawn, or it would hold the session."""
    broker = FakeBroker(timeout_ms=1_000).opened()
    attached: list[Link] = []

    def hold(link: Link) -> bool:
        is_receiver = link.is_sender and "$" not in str(link.remote)
        if is_receiver:
            attached.append(link)
        return is_receiver

    broker.on_attach = hold
    task = broker.start(
        ReceiverLink(broker.heart, "q", session=NextSession.AVAILABLE, session_wait_ms=5_000).open()
    )
    broker.pass_ms(5_999)
    assert not task.is_done
    broker.pass_ms(1)
    with pytest.raises(OperationTimeoutError):
        task.result()
    assert attached[0].state.value == "detached"


def test_operations_of_a_session_need_one() -> None:
    broker = FakeBroker()
    receiver = opened(broker)
    for operation in (receiver.renew_session(), receiver.get_session_state()):
        with pytest.raises(NotAllowedError):
            broker.run(operation)
