"""The client's heart against the server's half of our AMQP code, in memory and without a clock."""

from __future__ import annotations

from typing import Any

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.link import Link
from tandembus.client import operations
from tandembus.client.conversation import IDLE_TIMEOUT_MS, RENEW_MS, RETRY_RENEWAL_MS
from tandembus.client.pending import Task
from tandembus.client.receiving import ReceiverLink
from tandembus.client.sending import SenderLink
from tandembus.core import sas
from tandembus.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    NotAllowedError,
    OperationTimeoutError,
    RemoteError,
    ServerBusyError,
    UnauthorizedError,
)
from tests.unit.client.fake import CONNECTION_STRING, FakeBroker, Request

MINUTE = 60_000


def test_it_opens_as_azure_wants_it() -> None:
    """SASL ANONYMOUS, and an open with the host name of the namespace."""
    broker = FakeBroker().opened()
    assert not broker.heart.is_over
    assert broker.heart.connection.remote_max_frame >= 512
    assert len(broker.connection.sessions) == 1


def test_a_broker_that_does_not_answer() -> None:
    """The connection is given up at the time-out, with a text that names the host."""
    broker = FakeBroker(timeout_ms=5_000)
    task = broker.heart.run(broker.heart.open())
    broker.heart.data_to_send()
    broker.clock.advance(5_000)
    broker.heart.tick()
    with pytest.raises(OperationTimeoutError, match=r"broker\.test"):
        task.result()


def test_a_token_comes_before_the_link() -> None:
    """For the very entity, signed with the key, good for an hour; one serves all its links."""
    broker = FakeBroker().opened()
    broker.run(SenderLink(broker.heart, "orders").open())
    broker.run(SenderLink(broker.heart, "orders").open())
    (token,) = broker.tokens
    assert token.properties["operation"] == "put-token"
    assert token.properties["name"] == "sb://broker.test/orders"
    parsed = sas.parse(token.body)
    assert parsed.is_signed_with("c2VjcmV0")
    assert parsed.key_name == "root"
    assert parsed.expires_ms - broker.clock.now_ms() == pytest.approx(60 * MINUTE, abs=1_000)


def test_a_token_is_renewed_before_it_expires() -> None:
    """On the same links, again and again, also when a renewal fails once."""
    broker = FakeBroker().opened()
    broker.run(SenderLink(broker.heart, "orders").open())
    broker.pass_ms(RENEW_MS + 1)
    assert len(broker.tokens) == 2
    broker.on_token = lambda request: request.reply(500, description="not now")
    broker.pass_ms(RENEW_MS + 1)
    assert len(broker.tokens) == 3
    broker.on_token = lambda request: request.reply(202)
    broker.pass_ms(RETRY_RENEWAL_MS + 1)
    assert len(broker.tokens) == 4
    assert sas.parse(broker.tokens[3].body).expires_ms > broker.clock.now_ms() + 59 * MINUTE


def test_a_signature_that_was_given_is_used_as_it_is() -> None:
    """And never renewed: nobody here has the key."""
    broker = FakeBroker()
    signed = sas.sign("sb://broker.test/", "root", "key", broker.clock.now_ms() // 1000 + 3_600)
    broker = FakeBroker(target=f"Endpoint=sb://broker.test;SharedAccessSignature={signed}")
    broker.opened()
    broker.run(SenderLink(broker.heart, "orders").open())
    broker.pass_ms(2 * RENEW_MS)
    assert [request.body for request in broker.tokens] == [signed]


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, UnauthorizedError), (404, EntityNotFoundError), (500, RemoteError)],
)
def test_a_refused_token(status: int, error: type[Exception]) -> None:
    """The status tells the error, the text is the broker's; the next attempt asks again."""
    broker = FakeBroker().opened()
    broker.on_token = lambda request: request.reply(status, description="because of this")
    with pytest.raises(error, match="because of this"):
        broker.run(SenderLink(broker.heart, "orders").open())
    broker.on_token = lambda request: request.reply(202)
    broker.run(SenderLink(broker.heart, "orders").open())


def test_a_refused_link() -> None:
    """The detach that follows tells why, sender and receiver alike."""
    broker = FakeBroker().opened()

    def refuse(link: Link) -> p.Error | None:
        assert link.remote is not None
        is_node = "$" in str(link.remote.source) + str(link.remote.target)
        return None if is_node else p.Error("amqp:not-allowed", "sessions only")

    broker.on_attach = refuse
    for open_link in (SenderLink(broker.heart, "a").open, ReceiverLink(broker.heart, "a").open):
        with pytest.raises(NotAllowedError, match="sessions only"):
            broker.run(open_link())


# --- requests -------------------------------------------------------------------------------------


def test_requests_that_overlap_find_their_answers() -> None:
    """By their id, in whatever order they are answered."""
    broker = FakeBroker().opened()
    kept: list[Request] = []
    broker.on_request = lambda request: kept.append(request)
    tasks = [
        broker.start(operations.renew_session(broker.heart, "q", name, "link")) for name in "abc"
    ]
    for request in reversed(kept):
        number = {"a": 1, "b": 2, "c": 3}[request.body["session-id"]]
        broker.links["q/$management"].deliver(
            b"", [request.reply(200, {"expiration": number})], settled=True
        )
    broker.exchange()
    assert [task.result() for task in tasks] == [1, 2, 3]
    assert {request.properties["associated-link-name"] for request in kept} == {"link"}


def test_a_request_that_is_refused() -> None:
    """The condition is what counts, where there is one."""
    broker = FakeBroker().opened()
    broker.on_request = lambda request: request.reply(
        503, condition="com.microsoft:server-busy", description="later"
    )
    with pytest.raises(ServerBusyError, match="later") as caught:
        broker.run(operations.cancel_scheduled(broker.heart, "q", [1]))
    assert caught.value.is_retryable
    broker.on_request = lambda request: request.reply(400, condition="x:odd", description="hm")
    with pytest.raises(RemoteError, match="hm") as odd:
        broker.run(operations.cancel_scheduled(broker.heart, "q", [1]))
    assert odd.value.said == "x:odd"


def test_a_request_that_is_not_answered() -> None:
    """It times out, and a late answer is nobody's."""
    broker = FakeBroker(timeout_ms=10_000).opened()
    kept: list[Request] = []
    broker.on_request = lambda request: kept.append(request)
    task = broker.start(operations.cancel_scheduled(broker.heart, "q", [1]))
    broker.pass_ms(10_000)
    with pytest.raises(OperationTimeoutError, match="cancel-scheduled-message on q"):
        task.result()
    broker.links["q/$management"].deliver(b"", [kept[0].reply(200)], settled=True)
    broker.exchange()
    assert not broker.heart.is_over


def test_a_request_that_is_rejected() -> None:
    """A broker may refuse the transfer itself; then no reply comes."""
    broker = FakeBroker().opened()
    broker.rejects_requests = p.Error("amqp:not-allowed", "not here")
    with pytest.raises(NotAllowedError, match="not here"):
        broker.run(operations.cancel_scheduled(broker.heart, "q", [1]))


def test_a_reply_that_is_no_reply() -> None:
    """A broker that breaks the protocol is left."""
    broker = FakeBroker().opened()
    broker.on_request = lambda request: b"\x00\x53\x77\x40"
    task = broker.start(operations.cancel_scheduled(broker.heart, "q", [1]))
    with pytest.raises(ConnectionLostError, match="protocol"):
        task.result()


# --- the end --------------------------------------------------------------------------------------


def test_a_clean_close() -> None:
    """Close is answered; then everything is refused."""
    broker = FakeBroker().opened()
    broker.run(broker.heart.close())
    assert broker.heart.is_over
    assert broker.connection.is_finished
    with pytest.raises(ConnectionLostError):
        broker.run(SenderLink(broker.heart, "q").open())


def test_a_close_that_is_not_answered() -> None:
    """It is waited for a short time only."""
    broker = FakeBroker().opened()
    task = broker.heart.run(broker.heart.close())
    broker.heart.data_to_send()
    assert not task.is_done
    broker.clock.advance(2_000)
    broker.heart.tick()
    assert task.is_done


def test_everybody_hears_of_a_loss() -> None:
    """Opening, requests and receivers: each gets the reason, and can try again."""
    broker = FakeBroker().opened()
    receiver = broker.run(ReceiverLink(broker.heart, "q").open())
    broker.on_attach = lambda link: True
    broker.on_request = lambda request: None
    tasks: list[Task[Any]] = [
        broker.start(SenderLink(broker.heart, "other").open()),
        broker.start(operations.renew_session(broker.heart, "q", "s", "link")),
        broker.start(receiver.receive(1, MINUTE)),
    ]
    broker.heart.lose(ConnectionLostError("the cable"))
    for task in tasks:
        with pytest.raises(ConnectionLostError, match="the cable") as caught:
            task.result()
        assert caught.value.is_retryable


def test_the_broker_closes() -> None:
    """Its condition and its text are told."""
    broker = FakeBroker().opened()
    receiver = broker.run(ReceiverLink(broker.heart, "q").open())
    task = broker.start(receiver.receive(1, MINUTE))
    broker.connection.close(p.Error("amqp:connection:forced", "The broker is stopping."))
    broker.exchange()
    with pytest.raises(ConnectionLostError, match="stopping"):
        task.result()


def test_the_broker_ends_the_session() -> None:
    """Nothing lives without it: the connection is given up."""
    broker = FakeBroker().opened()
    broker.connection.sessions[0].end(p.Error("amqp:internal-error", "odd"))
    broker.exchange()
    assert broker.heart.is_over


def test_a_silent_broker_is_given_up() -> None:
    """After one to two idle time-outs without a byte; heartbeats are sent meanwhile."""
    broker = FakeBroker().opened()
    broker.run(SenderLink(broker.heart, "q").open())
    beats = 0
    for _ in range(2 * IDLE_TIMEOUT_MS // 1000 + 2):
        broker.clock.advance(1_000)
        broker.heart.tick()
        beats += sum(map(len, broker.heart.data_to_send())) > 0
        if broker.heart.is_over:
            break
    assert broker.heart.is_over
    assert beats >= 2
    assert CONNECTION_STRING.count("broker.test") == 1
