"""AMQP 1.0 part 2, §2.6 and §2.7.3-7: links, credit, deliveries and how they are settled."""

from __future__ import annotations

from typing import Any

import pytest

from tandembus.amqp.connection import Role
from tandembus.amqp.events import (
    Dispositions,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    MessageReceived,
)
from tandembus.amqp.frames import frame
from tandembus.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Detach,
    End,
    Error,
    Modified,
    Open,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from tandembus.errors import ArgumentError
from tandembus.limits import MAX_CREDIT, MAX_DELIVERY_TAG
from tests.conformance.amqp.peer import AMQP_HEADER, Disposition, Flow, Peer, closed_with


def only(events: list[Event]) -> Any:
    (event,) = events
    return event


# --- attach, detach (§2.6.1-6) --------------------------------------------------------------------


def test_attach_is_answered() -> None:
    """AMQP 1.0 §2.6.3: the answer has the same name, the other role, and source and target."""
    peer = Peer().begun()
    link = peer.attach(is_sender=False, name="reader", snd_settle_mode=0, rcv_settle_mode=1)
    assert link.accept(properties={"a": 1})
    answer = peer.answer()
    assert isinstance(answer, Attach)
    assert (answer.name, answer.role) == ("reader", SENDER)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (0, 1)
    assert (answer.source, answer.target) == (Source("from"), Target("to"))
    assert answer.properties == {"a": 1}


def test_initial_delivery_count() -> None:
    """AMQP 1.0 §2.7.3 initial-delivery-count: must be there if the role is sender."""
    peer = Peer().begun()
    peer.attach(is_sender=False).accept()
    assert peer.answer().initial_delivery_count == 0
    peer.attach(is_sender=True, handle=1).accept()
    assert peer.answer().initial_delivery_count is None


def test_attach_may_wait() -> None:
    """AMQP 1.0 §2.6.3: nothing is said until the attach has been decided."""
    peer = Peer().begun()
    link = peer.attach(is_sender=False)
    assert peer.answers() == []
    link.accept()
    assert len(peer.answers()) == 1


def test_attach_is_refused() -> None:
    """AMQP 1.0 §2.6.3: a refusal is an attach without source and target, then a detach."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True)
    link.refuse(Error("amqp:not-found", "no such queue"))
    attach, detach = peer.answers()
    assert (attach.source, attach.target) == (None, None)
    assert detach.closed
    assert detach.error == Error("amqp:not-found", "no such queue")
    assert peer.transfer(0) == []
    assert peer.send(Detach(0, True)) == []
    assert peer.answers() == []


def test_attach_without_nodes() -> None:
    """AMQP 1.0 §2.7.3: source and target may be absent or empty lists, as rhea sends them."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True, source=None, target=Target())
    assert link.remote is not None
    assert link.remote.source is None
    assert link.accept()
    assert peer.answer().source == Source()


def test_our_attach() -> None:
    """AMQP 1.0 §2.6.3: the peer's attach of the same name answers ours, under any handle."""
    peer = begun_client()
    session = peer.connection.sessions[0]
    link = session.attach("mine", is_sender=True, target=Target("q"))
    assert peer.answer().handle == link.handle
    events = peer.send(Attach("mine", 9, RECEIVER, target=Target("q"), source=Source()))
    assert events == [LinkAttached(link)]
    assert link.remote_handle == 9


def test_our_attach_is_refused() -> None:
    """AMQP 1.0 §2.6.3: a refused attach is reported with the detach that gives the reason."""
    peer = begun_client()
    link = peer.connection.sessions[0].attach("mine", is_sender=True, target=Target("q"))
    peer.answers()
    assert peer.send(Attach("mine", 0, RECEIVER)) == []
    error = Error("amqp:not-found")
    assert peer.send(Detach(0, True, error)) == [LinkDetached(link, error, True, True)]
    assert peer.answer() == Detach(0, True)


def test_two_links_of_one_name() -> None:
    """AMQP 1.0 §2.6.1: a name may be used once in each direction."""
    peer = begun_client()
    session = peer.connection.sessions[0]
    one = session.attach("pair", is_sender=True, target=Target("$cbs"))
    other = session.attach("pair", is_sender=False, source=Source("$cbs"))
    assert one.handle != other.handle
    with pytest.raises(ArgumentError):
        session.attach("pair", is_sender=True)
    peer.send(Attach("pair", 0, SENDER, source=Source("$cbs")))
    assert other.state.value == "attached"
    assert one.state.value == "attach sent"


def test_detach_is_answered() -> None:
    """AMQP 1.0 §2.6.6: a closing detach is answered with a closing detach."""
    peer = Peer().begun()
    link = peer.sending()
    assert peer.send(Detach(0, True)) == [LinkDetached(link, None, True, True)]
    assert peer.answer() == Detach(0, True)


def test_detach_without_closing() -> None:
    """AMQP 1.0 §2.6.4: a detach that does not close is answered in kind; nobody resumes here."""
    peer = Peer().begun()
    link = peer.sending()
    assert peer.send(Detach(0)) == [LinkDetached(link, None, False, True)]
    assert peer.answer() == Detach(0, False)
    assert peer.connection.link_count == 0


def test_our_detach() -> None:
    """AMQP 1.0 §2.6.6: after our detach what is under way is ignored until the peer's."""
    peer = Peer().begun()
    link = peer.receiving()
    link.detach(Error("amqp:link:detach-forced"))
    assert peer.answer().error.condition == "amqp:link:detach-forced"
    assert peer.transfer(0) == []
    assert peer.flow(0, 1, 0, 1, 0, 0, 1, echo=True) == []
    assert only(peer.send(Detach(0, True))) == LinkDetached(link, None, True, True)
    assert peer.answers() == []


def test_handle_is_free_after_detach() -> None:
    """AMQP 1.0 §2.6.2: a handle may be used again once both have detached."""
    peer = Peer().begun()
    peer.sending(handle=0)
    peer.send(Detach(0, True))
    peer.answers()
    assert peer.sending(handle=0, name="second").capacity > 0


def test_detach_of_an_undecided_attach() -> None:
    """AMQP 1.0 §2.6.3: who withdraws an attach gets ours without nodes, then the detach."""
    peer = Peer().begun()
    link = peer.attach(is_sender=False)
    assert only(peer.send(Detach(0, True))) == LinkDetached(link, None, True, True)
    attach, detach = peer.answers()
    assert attach.source is None
    assert detach.closed
    assert not link.accept()
    assert peer.answers() == []


def test_too_many_links() -> None:
    """AMQP 1.0 §2.8.15 resource-limit-exceeded: one link too many is refused, the rest live."""
    peer = Peer(max_links=2).begun()
    one = peer.sending(handle=0)
    peer.sending(handle=1)
    assert peer.send(Attach("third", 2, RECEIVER, source=Source("q"))) == []
    attach, detach = peer.answers()
    assert attach.source is None
    assert detach.error.condition == "amqp:resource-limit-exceeded"
    assert one.capacity > 0


def test_attach_answer_too_large() -> None:
    """AMQP 1.0 §2.8.15 frame-size-too-small: an answer that does not fit becomes a refusal."""
    peer = Peer()
    peer.opened(max_frame_size=512).begun()
    link = peer.attach(is_sender=False)
    assert not link.accept(properties={"pad": "x" * 600})
    _, detach = peer.answers()
    assert detach.error.condition == "amqp:frame-size-too-small"


def test_name_too_large_for_the_peer() -> None:
    """AMQP 1.0 §2.8.15 frame-size-too-small: where not even the name fits, the session ends."""
    peer = Peer()
    peer.opened(max_frame_size=512).begun()
    peer.attach(is_sender=False, name="n" * 600).accept()
    assert isinstance(peer.answer(), End)


# --- credit (§2.6.7-10) ---------------------------------------------------------------------------


def test_credit_is_granted() -> None:
    """AMQP 1.0 §2.6.7: flow with handle, delivery-count and link-credit, none of them null."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True, handle=4)
    link.accept()
    peer.answers()
    link.grant(50)
    flow = peer.answer()
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (4, 0, 50)
    assert flow.next_incoming_id is not None


def test_no_delivery_without_credit() -> None:
    """AMQP 1.0 §2.6.7: a sender without credit does not send."""
    peer = Peer().begun()
    link = peer.sending(credit=1)
    link.deliver(b"t", [b"m"])
    with pytest.raises(ArgumentError):
        link.deliver(b"t", [b"m"])


def test_credit_is_absolute() -> None:
    """AMQP 1.0 §2.6.7: credit = delivery-count + link-credit of the receiver - ours."""
    peer = Peer().begun()
    link = peer.sending(credit=10)
    for _ in range(4):
        link.deliver(b"t", [b"m"])
    assert only(peer.flow(2, 100, 0, 100, 0, 2, 5)) == LinkFlow(link, 3, False, False)


def test_credit_is_taken_back() -> None:
    """AMQP 1.0 §2.6.7: a receiver may lower the credit, below what is under way too."""
    peer = Peer().begun()
    link = peer.sending(credit=10)
    for _ in range(4):
        link.deliver(b"t", [b"m"])
    assert only(peer.flow(4, 100, 0, 100, 0, 4, 0)).credit == 0
    assert only(peer.flow(2, 100, 0, 100, 0, 0, 2)).credit == 0


def test_flow_without_delivery_count() -> None:
    """AMQP 1.0 §2.7.4 delivery-count: null before the sender's attach was seen; the initial one."""
    peer = Peer().begun()
    link = peer.attach(is_sender=False)
    link.accept()
    assert only(peer.flow(None, 100, 0, 100, 0, None, 7)).credit == 7


def test_flow_before_the_attach_is_answered() -> None:
    """AMQP 1.0 §2.6.3: credit that comes with the attach counts once the link is accepted."""
    peer = Peer().begun()
    link = peer.attach(is_sender=False)
    peer.flow(0, 100, 0, 100, 0, None, 7)
    assert link.capacity == 0
    link.accept()
    assert link.capacity == 7


def test_credit_is_bounded() -> None:
    """AMQP 1.0 §2.6.7: we honour no more than our limit of what a peer grants."""
    peer = Peer().begun(window=2**31 - 1)
    assert peer.sending(credit=2**31 - 1).credit == MAX_CREDIT


def test_transfer_takes_credit() -> None:
    """AMQP 1.0 §2.6.7: each delivery moves delivery-count by one and takes one credit."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(0)
    peer.transfer(1, more=True)
    peer.transfer(None, tag=None)
    assert (link.credit, link.delivery_count) == (98, 2)


def test_transfer_without_credit() -> None:
    """AMQP 1.0 §2.8.18 transfer-limit-exceeded: not raised; azure-servicebus invents its credit."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True)
    link.accept()
    assert isinstance(only(peer.transfer(0)), MessageReceived)
    assert link.credit == 0


def test_senders_flow_is_ignored() -> None:
    """AMQP 1.0 §2.6.7: a sender's flow does not change the credit that we gave."""
    peer = Peer().begun()
    link = peer.receiving()
    assert peer.flow(0, 100, 0, 100, 0, 5, 9999) == []
    assert link.credit == 100
    assert peer.answers() == []


def test_echo_of_a_link() -> None:
    """AMQP 1.0 §2.7.4 echo: answered with the state of the link."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.flow(0, 100, 0, 100, 0, 0, 0, echo=True)
    flow = peer.answer()
    assert (flow.handle, flow.link_credit) == (link.handle, 100)


def test_drain() -> None:
    """AMQP 1.0 §2.6.10: drain uses up the credit: delivery-count advances, link-credit is 0."""
    peer = Peer().begun()
    link = peer.sending(credit=10)
    link.deliver(b"t", [b"m"])
    peer.answers()
    assert only(peer.flow(1, 100, 0, 100, 0, 1, 9, drain=True)) == LinkFlow(link, 9, True, False)
    link.deliver(b"t", [b"m"])
    link.drained()
    _, flow = peer.answers()
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)
    link.drained()
    assert peer.answers() == []


def test_drain_with_echo_is_answered_once() -> None:
    """AMQP 1.0 §2.6.10: the drain's answer is the echo as well."""
    peer = Peer().begun()
    link = peer.sending(credit=3)
    peer.flow(0, 100, 0, 100, 0, 0, 3, drain=True, echo=True)
    assert peer.answers() == []
    link.drained()
    assert peer.answer().link_credit == 0


def test_drain_of_an_empty_link() -> None:
    """AMQP 1.0 §2.6.10: drain with credit 0 is answered, too; azure-servicebus closes so."""
    peer = Peer().begun()
    link = peer.sending(credit=0)
    peer.flow(0, 100, 0, 100, 0, 0, 0, drain=True)
    link.drained()
    flow = peer.answer()
    assert (flow.drain, flow.delivery_count) == (True, 0)


def test_our_drain() -> None:
    """AMQP 1.0 §2.6.10: the sender's answer ends our drain, and its count is the new one."""
    peer = begun_client()
    link = peer.connection.sessions[0].attach("r", is_sender=False, source=Source("q"))
    peer.send(Attach("r", 0, SENDER, source=Source("q"), initial_delivery_count=5))
    link.grant(10, drain=True)
    assert peer.answers()[-1].drain
    events = peer.flow(0, 100, 0, 100, 0, 15, 0, drain=True)
    assert only(events) == LinkFlow(link, 0, True, False)
    assert (link.delivery_count, link.credit) == (15, 0)


def test_stopping() -> None:
    """AMQP 1.0 §2.6.8: credit 0 stops a sender."""
    peer = Peer().begun()
    link = peer.sending(credit=10)
    peer.flow(0, 100, 0, 100, 0, 0, 0)
    assert link.capacity == 0


# --- transfers (§2.6.11-14, §2.7.5) ---------------------------------------------------------------


def test_message_in_one_frame() -> None:
    """AMQP 1.0 §2.7.5: handle, delivery-id, tag, format, settled; the payload is what follows."""
    peer = Peer().begun()
    link = peer.receiving()
    event = only(peer.transfer(7, b"payload", tag=b"tag"))
    assert event == MessageReceived(link, 7, b"tag", b"payload", 0, False, None)


def test_message_in_frames() -> None:
    """AMQP 1.0 §2.6.14: frames with more=true are joined; id and tag only needed in the first."""
    peer = Peer().begun()
    peer.receiving()
    assert peer.transfer(0, b"a", more=True) == []
    assert peer.transfer(None, b"b", tag=None, message_format=None, more=True) == []
    event = only(peer.transfer(None, b"c", tag=None, message_format=None))
    assert (event.delivery_id, event.tag, event.payload) == (0, b"t", b"abc")


def test_frames_that_repeat() -> None:
    """AMQP 1.0 §2.7.5: id, tag and format may be repeated in each frame."""
    peer = Peer().begun()
    peer.receiving()
    peer.transfer(0, b"a", more=True)
    peer.transfer(0, b"b", more=True)
    assert only(peer.transfer(0, b"c")).payload == b"abc"


def test_interleaved_links() -> None:
    """AMQP 1.0 §2.6.14: frames of messages on different links may be mixed."""
    peer = Peer().begun()
    peer.receiving(handle=0)
    peer.receiving(handle=1)
    peer.transfer(0, b"a", handle=0, more=True)
    peer.transfer(1, b"x", handle=1, more=True)
    assert only(peer.transfer(0, b"b", handle=0)).payload == b"ab"
    assert only(peer.transfer(1, b"y", handle=1)).payload == b"xy"


def test_next_delivery_before_the_last_ended() -> None:
    """AMQP 1.0 §2.7.5 delivery-id: another id in a continuation is an error of the link."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(0, b"a", more=True)
    event = only(peer.transfer(1, b"b"))
    assert isinstance(event, LinkDetached)
    assert event.link is link
    assert not event.by_peer


def test_delivery_id_is_missing() -> None:
    """AMQP 1.0 §2.7.5 delivery-id: must be there in the first frame of a delivery."""
    peer = Peer().begun()
    peer.receiving()
    assert only(peer.transfer(None)).error.condition == "amqp:invalid-field"
    assert peer.answer().error.condition == "amqp:invalid-field"


def test_delivery_id_again() -> None:
    """AMQP 1.0 §2.6.12: an id is that of one delivery. azure-servicebus gives one to several that
    are sent at once, so each is taken, and the id has one outcome, when all of them have theirs."""
    peer = Peer().begun()
    link = peer.receiving()
    for payload in (b"a", b"b"):
        assert only(peer.transfer(5, payload)).payload == payload
    link.settle([5], ACCEPTED)
    assert peer.answers() == []
    link.settle([5], ACCEPTED)
    assert peer.answer() == Disposition(RECEIVER, 5, 5, True, ACCEPTED)


def test_aborted() -> None:
    """AMQP 1.0 §2.7.5 aborted: what came of the delivery is thrown away; the next one is whole."""
    peer = Peer().begun()
    peer.receiving()
    peer.transfer(0, b"a", more=True)
    assert peer.transfer(0, b"b", aborted=True) == []
    assert only(peer.transfer(1, b"c")).payload == b"c"
    assert peer.connection.partial_bytes == 0


def test_aborted_at_once() -> None:
    """AMQP 1.0 §2.7.5 aborted: also in the first frame."""
    peer = Peer().begun()
    peer.receiving()
    assert peer.transfer(0, b"a", aborted=True) == []
    assert only(peer.transfer(1)).delivery_id == 1


def test_settled_in_any_frame() -> None:
    """AMQP 1.0 §2.7.5 settled: true in one frame of a delivery settles it."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(0, b"a", more=True, settled=True)
    assert only(peer.transfer(0, b"b")).settled
    assert link.unsettled == 0


def test_tag_too_long() -> None:
    """AMQP 1.0 §2.8.7 delivery-tag: at most 32 bytes, and we send no more. We take up to 128."""
    peer = Peer().begun()
    peer.receiving()
    assert closed_with(peer.transfer(0, tag=b"x" * 129)) == "amqp:decode-error"
    sending = Peer().begun().sending()
    with pytest.raises(ArgumentError):
        sending.deliver(b"x" * 33, [b"m"])


@pytest.mark.parametrize("size", [33, 36, MAX_DELIVERY_TAG])
@pytest.mark.parametrize("state", [None, TransactionalState(b"txn")])
def test_the_tags_of_the_old_java_sdk_are_taken(
    size: int, state: TransactionalState | None
) -> None:
    """AMQP 1.0 §2.8.7 allows 32 bytes; azure-servicebus 3.6.7 tags with a UUID's 36 characters.
    In one frame and in several, the short way and the general one."""
    tag = b"x" * size
    peer = Peer().begun()
    peer.receiving()
    assert only(peer.transfer(0, tag=tag, state=state)).tag == tag
    assert peer.transfer(1, b"a", tag=tag, more=True, state=state) == []
    message = only(peer.transfer(1, b"b", tag=tag, state=state))
    assert (message.tag, message.payload, message.state) == (tag, b"ab", state)


def test_message_format() -> None:
    """AMQP 1.0 §2.8.11 message-format: handed on, both ways."""
    peer = Peer().begun()
    peer.receiving(handle=0)
    assert only(peer.transfer(0, message_format=0x80013700)).message_format == 0x80013700
    peer.sending(handle=1).deliver(b"t", [b"m"], message_format=0x80013700)
    assert peer.answer().message_format == 0x80013700


def test_transfer_to_a_sender() -> None:
    """AMQP 1.0 §2.7.5: a transfer on a link whose peer sends is an error of the link."""
    peer = Peer().begun()
    peer.sending()
    assert only(peer.transfer(0)).error.condition == "amqp:not-allowed"


def test_transfer_before_the_attach_is_answered() -> None:
    """AMQP 1.0 §2.6.3: nobody has allowed it; the attach is refused."""
    peer = Peer().begun()
    peer.attach(is_sender=True)
    assert isinstance(only(peer.transfer(0)), LinkDetached)
    attach, detach = peer.answers()
    assert attach.target is None
    assert detach.error.condition == "amqp:illegal-state"


def test_message_too_large() -> None:
    """AMQP 1.0 §2.8.18 message-size-exceeded: rejected with it; the link lives."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True)
    link.accept(max_message_size=100)
    assert peer.answer().max_message_size == 100
    assert len(peer.transfer(0, b"x" * 100)) == 1
    assert peer.transfer(1, b"x" * 101) == []
    disposition = peer.answer()
    assert (disposition.role, disposition.first, disposition.settled) == (RECEIVER, 1, True)
    assert disposition.state.error.condition == "amqp:link:message-size-exceeded"
    assert only(peer.transfer(2)).delivery_id == 2


def test_message_grows_too_large() -> None:
    """AMQP 1.0 §2.8.18 message-size-exceeded: counted while the frames come; none is kept."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True)
    link.accept(max_message_size=100)
    peer.answers()
    for _ in range(1000):
        assert peer.transfer(0, b"x" * 60, more=True) == []
        assert peer.connection.partial_bytes <= 100
    assert peer.answers() == []
    assert peer.transfer(0, b"x" * 60) == []
    assert peer.answer().state.error.condition == "amqp:link:message-size-exceeded"
    assert only(peer.transfer(1)).payload == b"m"


def test_settled_message_too_large() -> None:
    """AMQP 1.0 §2.8.18 message-size-exceeded: one sent settled can only be told by a detach."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True)
    link.accept(max_message_size=100)
    peer.answers()
    peer.transfer(0, b"x" * 60, more=True, settled=True)
    peer.transfer(0, b"x" * 60, more=True)
    event = only(peer.transfer(0, b"x" * 60))
    assert event.error.condition == "amqp:link:message-size-exceeded"
    assert peer.answer().error.condition == "amqp:link:message-size-exceeded"
    assert peer.transfer(1, b"x") == []
    assert peer.send(Detach(0, True)) == []


def test_aborted_while_too_large() -> None:
    """AMQP 1.0 §2.7.5 aborted: also of a message that would have been rejected."""
    peer = Peer().begun()
    link = peer.attach(is_sender=True)
    link.accept(max_message_size=100)
    peer.answers()
    peer.transfer(0, b"x" * 101, more=True)
    assert peer.transfer(0, aborted=True) == []
    assert peer.answers() == []
    assert only(peer.transfer(1)).payload == b"m"


def test_receive_and_delete() -> None:
    """AMQP 1.0 §2.6.12: what is sent settled is over for both; an empty tag is allowed."""
    peer = Peer().begun()
    link = peer.sending(snd_settle_mode=1)
    link.deliver(b"", [b"m"], settled=True)
    transfer = peer.answer()
    assert (transfer.settled, transfer.tag) == (True, b"")
    assert link.unsettled == 0
    assert only(peer.disposition(0, settled=True, state=ACCEPTED)).deliveries == []


# --- dispositions (§2.6.12, §2.7.6) ---------------------------------------------------------------


def test_settling_what_we_received() -> None:
    """AMQP 1.0 §2.7.6: role receiver, first and last, settled and the outcome."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(3)
    link.settle([3], ACCEPTED)
    assert peer.answer() == Disposition(RECEIVER, 3, 3, True, ACCEPTED)
    assert link.unsettled == 0


def test_ranges_are_merged() -> None:
    """AMQP 1.0 §2.7.6 last: neighbours with the same outcome are one disposition."""
    peer = Peer().begun()
    link = peer.receiving()
    for number in range(6):
        peer.transfer(number)
    link.settle([0, 1], ACCEPTED)
    link.settle([2], ACCEPTED)
    link.settle([4, 5], Rejected())
    ranges = [(it.first, it.last) for it in peer.answers()]
    assert ranges == [(0, 2), (4, 5)]


def test_settling_twice() -> None:
    """AMQP 1.0 §2.6.12: a settled delivery is forgotten; nothing is said of it again."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(0)
    link.settle([0], ACCEPTED)
    link.settle([0, 1, 99], ACCEPTED)
    assert len(peer.answers()) == 1


def test_decision_of_the_receiver() -> None:
    """AMQP 1.0 §2.6.12: an unsettled outcome waits for our settlement, with role sender."""
    peer = Peer().begun()
    link = peer.sending()
    link.deliver(b"tag", [b"m"])
    peer.answers()
    event = only(peer.disposition(0, state=ACCEPTED))
    assert isinstance(event, Dispositions)
    assert [(it.id, it.link, it.tag) for it in event.deliveries] == [(0, link, b"tag")]
    assert (event.settled, event.as_receiver, event.state) == (False, True, ACCEPTED)
    link.settle([0], ACCEPTED)
    assert peer.answer() == Disposition(SENDER, 0, 0, True, ACCEPTED)


def test_decided_only_once() -> None:
    """AMQP 1.0 §2.6.12: a second decision before our answer finds nothing to decide."""
    peer = Peer().begun()
    peer.sending().deliver(b"t", [b"m"])
    assert len(only(peer.disposition(0, state=ACCEPTED)).deliveries) == 1
    assert only(peer.disposition(0, state=Rejected())).deliveries == []


def test_settled_by_the_receiver() -> None:
    """AMQP 1.0 §2.6.12: a settled outcome is final; no answer is due."""
    peer = Peer().begun()
    link = peer.sending()
    link.deliver(b"t", [b"m"])
    peer.answers()
    assert only(peer.disposition(0, settled=True, state=ACCEPTED)).settled
    link.settle([0], ACCEPTED)
    assert peer.answers() == []


def test_disposition_of_a_range() -> None:
    """AMQP 1.0 §2.7.6: first to last, over all links of the session, in order."""
    peer = Peer().begun()
    one, other = peer.sending(handle=0), peer.sending(handle=1)
    for number in range(6):
        (one, other)[number % 2].deliver(b"%d" % number, [b"m"])
    event = only(peer.disposition(1, 4, settled=True, state=ACCEPTED))
    assert [it.tag for it in event.deliveries] == [b"1", b"2", b"3", b"4"]
    assert (one.unsettled, other.unsettled) == (1, 1)


def test_disposition_without_last() -> None:
    """AMQP 1.0 §2.7.6 last: null means first."""
    peer = Peer().begun()
    peer.sending().deliver(b"t", [b"m"])
    raw = b"\x00\x53\x15\xc0\x09\x05\x41\x43\x40\x42\x00\x53\x24\x45"
    assert len(only(peer.raw(frame(raw))).deliveries) == 1


def test_disposition_backwards() -> None:
    """AMQP 1.0 §2.7.6: a last before its first ends the session."""
    peer = Peer().begun()
    peer.disposition(5, 4)
    assert peer.answer().error.condition == "amqp:invalid-field"


def test_disposition_of_an_enormous_range() -> None:
    """AMQP 1.0 §2.7.6: the cost is that of what is found, not of what is named."""
    peer = Peer().begun()
    link = peer.sending()
    for _ in range(3):
        link.deliver(b"t", [b"m"])
    for _ in range(1000):
        peer.disposition(100, 100 + 2**31 - 1)
    assert len(only(peer.disposition(0, 2**31 - 1)).deliveries) == 3


def test_disposition_of_nothing() -> None:
    """AMQP 1.0 §2.7.6: unknown ids are not an error; the event names them for an answer."""
    peer = Peer().begun()
    event = only(peer.disposition(7, 9, state=ACCEPTED))
    assert (event.deliveries, event.first, event.last) == ([], 7, 9)
    event.session.answer(
        7, 9, Rejected(Error("com.microsoft:message-lock-lost")), as_receiver=False
    )
    answer = peer.answer()
    assert (answer.role, answer.first, answer.last) == (SENDER, 7, 9)


def test_sender_settles() -> None:
    """AMQP 1.0 §2.6.12: a sender may settle what we have not; then it is over."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(0)
    event = only(peer.disposition(0, role=SENDER, settled=True))
    assert [it.id for it in event.deliveries] == [0]
    assert not event.as_receiver
    link.settle([0], ACCEPTED)
    assert peer.answers() == []


def test_settlement_survives_order() -> None:
    """AMQP 1.0 §2.6.12: a disposition may wait for its neighbours while messages go out, but is
    written before its link ends."""
    peer = Peer().begun()
    receiving, sending = peer.receiving(handle=0), peer.sending(handle=1)
    peer.transfer(0)
    receiving.settle([0], ACCEPTED)
    sending.deliver(b"t", [b"m"])
    receiving.detach()
    assert [type(it).__name__ for it in peer.answers()] == ["Transfer", "Disposition", "Detach"]


def test_detach_forgets_unsettled() -> None:
    """AMQP 1.0 §2.6.6: closing a link forgets its deliveries; later dispositions find nothing."""
    peer = Peer().begun()
    link = peer.sending()
    link.deliver(b"t", [b"m"])
    peer.send(Detach(0, True))
    assert link.unsettled == 0
    assert only(peer.disposition(0, settled=True)).deliveries == []


def test_outcome_with_fields() -> None:
    """AMQP 1.0 §2.7.6 state: any delivery state, with the types of its values."""
    peer = Peer().begun()
    peer.sending().deliver(b"t", [b"m"])
    state = Modified(True, False, {"n": 3})
    assert only(peer.disposition(0, state=state)).state == state


def begun_client() -> Peer:
    peer = Peer(Role.CLIENT)
    peer.connection.open()
    peer.connection.begin()
    peer.raw(AMQP_HEADER)
    peer.send(Open("server"))
    peer.send(Begin(0, 0, 1000, 1000))
    peer.answers()
    return peer
