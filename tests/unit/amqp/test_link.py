"""A link: calls at the wrong time, what capacity means, and the two ends of a detach."""

from __future__ import annotations

import pytest

from tandembus.amqp.connection import Role
from tandembus.amqp.events import LinkAttached, LinkDetached, LinkFlow
from tandembus.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Detach,
    Error,
    Source,
    Target,
    TransactionalState,
)
from tandembus.errors import ArgumentError
from tandembus.limits import MAX_UNSETTLED_OUT
from tests.conformance.amqp.peer import Peer


def test_repr() -> None:
    """What a log shows of a link."""
    link = Peer().begun().sending(name="orders")
    assert repr(link) == "<Link 'orders' sender attached credit=100>"


def test_capacity_is_bounded_by_the_unsettled() -> None:
    """A receiver that settles nothing is not fed for ever."""
    peer = Peer().begun(window=2**31 - 1)
    link = peer.sending(credit=MAX_UNSETTLED_OUT)
    for _ in range(MAX_UNSETTLED_OUT):
        link.deliver(b"t", [b"m"], settled=False)
    peer.flow(MAX_UNSETTLED_OUT, 2**31 - 1, 0, 1, 0, MAX_UNSETTLED_OUT, 5_000)
    assert link.credit == 5_000
    assert link.capacity == 0
    peer.disposition(0, 9, settled=True, state=ACCEPTED)
    assert link.capacity == 10


def test_settled_deliveries_do_not_count() -> None:
    """Receive-and-delete has credit alone."""
    peer = Peer().begun(window=2**31 - 1)
    link = peer.sending(credit=10)
    link.deliver(b"", [b"m"], settled=True)
    assert link.capacity == 9


def test_calls_at_the_wrong_time() -> None:
    """A link that is not waiting is neither accepted nor refused again; nor drained unasked."""
    peer = Peer().begun()
    link = peer.sending()
    assert not link.accept()
    link.refuse(Error("a:b"))
    link.drained()
    assert peer.answers() == []
    with pytest.raises(AssertionError):
        link.grant(1)


def test_deliver_on_a_receiver() -> None:
    """It is the other end that sends."""
    link = Peer().begun().receiving()
    with pytest.raises(ArgumentError):
        link.deliver(b"t", [b"m"])


def test_deliver_after_detach() -> None:
    """A message that comes too late stays with its owner."""
    peer = Peer().begun()
    link = peer.sending()
    peer.send(Detach(0, True))
    with pytest.raises(ArgumentError):
        link.deliver(b"t", [b"m"])


def test_deliver_with_a_long_state() -> None:
    """It would not leave room for the message."""
    link = Peer().begun().sending()
    with pytest.raises(ArgumentError):
        link.deliver(b"t", [b"m"], state=TransactionalState(b"x" * 300))
    assert link.credit == 100


def test_detach_of_an_undecided_link() -> None:
    """Is a refusal."""
    peer = Peer().begun()
    peer.attach(is_sender=False).detach()
    attach, detach = peer.answers()
    assert attach.source is None
    assert detach.error.condition == "amqp:link:detach-forced"


def test_detach_twice() -> None:
    """The second call has nothing to say."""
    peer = Peer().begun()
    link = peer.sending()
    link.detach()
    link.detach(Error("a:b"))
    assert len(peer.answers()) == 1


def test_both_detach_at_once() -> None:
    """Each is the other's answer, and the link is reported once."""
    peer = Peer().begun()
    link = peer.sending()
    link.detach()
    error = Error("a:b")
    assert peer.send(Detach(0, True, error)) == [LinkDetached(link, error, True, True)]
    assert len(peer.answers()) == 1


def test_refused_by_our_own_rule_is_reported_once() -> None:
    """A link that failed is not reported again when the peer answers."""
    peer = Peer().begun()
    link = peer.receiving()
    (event,) = peer.transfer(None)
    assert isinstance(event, LinkDetached)
    assert event.link is link
    assert peer.send(Detach(0, True)) == []


def test_grant_of_an_undecided_link() -> None:
    """No credit before the attach is answered."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True)
    link.grant(10)
    assert peer.answers() == []
    assert link.credit == 0


def test_max_message_size_of_the_peer() -> None:
    """A sending client learns what the peer takes."""
    peer = Peer(Role.CLIENT).opened()
    session = peer.connection.begin()
    peer.send(Begin(0, 0, 100, 100))
    link = session.attach("l", is_sender=True, target=Target("q"))
    events = peer.send(
        Attach("l", 0, RECEIVER, source=Source(), target=Target("q"), max_message_size=262144)
    )
    assert events == [LinkAttached(link)]
    assert link.max_message_size == 262144


def test_empty_messages() -> None:
    """A message without bytes is a message, both ways."""
    peer = Peer().begun()
    peer.receiving(handle=0)
    (event,) = peer.transfer(0, b"")
    assert event.payload == b""  # type: ignore[union-attr]
    peer.sending(handle=1).deliver(b"t", [])
    assert peer.answer().payload == b""


def test_echo_of_an_undecided_link() -> None:
    """There is no handle to answer with yet."""
    peer = Peer().begun()
    link = peer.attach(is_sender=False)
    assert peer.flow(0, 10, 0, 10, 0, None, 5, echo=True) == [LinkFlow(link, 5, False, True)]
    assert peer.answers() == []


def test_context_is_the_owners() -> None:
    """Connection, session and link each have room for whoever drives them."""
    peer = Peer().begun()
    link = peer.sending()
    link.context = link.session.context = peer.connection.context = object()
    assert link.context is peer.connection.context


def test_unsolicited_role() -> None:
    """A peer may attach in either role to a client, too."""
    peer = Peer(Role.CLIENT).opened()
    peer.connection.begin()
    peer.send(Begin(0, 0, 100, 100))
    (event,) = peer.send(Attach("x", 3, SENDER, target=Target("t")))
    assert isinstance(event, LinkAttached)
    event.link.refuse(Error("amqp:not-allowed"))
    assert len([it for it in peer.answers() if not isinstance(it, Begin)]) == 2


def test_an_answer_that_does_not_fit_is_heard_of() -> None:
    """Its owner wanted the link, so it is told of the end; one that it refused itself is not
    reported."""
    reported = []
    for is_wanted in (True, False):
        peer = Peer().opened(max_frame_size=512).begun()
        link = peer.attach(is_sender=False, name="n" * 200, source=Source("q" * 300))
        if is_wanted:
            assert not link.accept()
        else:
            link.refuse(Error("amqp:not-found"))
        reported.append([type(event) for event in peer.send(Detach(link.remote_handle, True))])
    assert reported == [[LinkDetached], []]
