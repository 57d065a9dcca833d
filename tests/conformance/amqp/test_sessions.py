"""AMQP 1.0 part 2, §2.5 and §2.7.2, §2.7.8: sessions, their windows and their ends."""

from __future__ import annotations

from tandembus.amqp.connection import Role
from tandembus.amqp.events import LinkFlow, SessionBegun, SessionEnded, WindowOpened
from tandembus.amqp.frames import frame
from tandembus.amqp.performatives import Attach, Begin, Detach, End, Error, Open
from tests.conformance.amqp.peer import AMQP_HEADER, Flow, Header, Peer, Transfer, closed_with


def test_begin_is_answered() -> None:
    """AMQP 1.0 §2.5.1: the answer names the peer's channel in remote-channel."""
    peer = Peer().opened()
    (begun,) = peer.send(Begin(None, 7, 100, 100), 3)
    assert isinstance(begun, SessionBegun)
    answer = peer.answer()
    assert isinstance(answer, Begin)
    assert answer.remote_channel == 3
    assert answer.incoming_window >= 5000
    assert answer.handle_max >= 255


def test_begin_on_a_used_channel() -> None:
    """AMQP 1.0 §2.5.1: a channel carries one session at a time."""
    peer = Peer().begun()
    assert closed_with(peer.send(Begin(None, 0, 1, 1), 0)) == "amqp:not-allowed"


def test_begin_lacks_a_field() -> None:
    """AMQP 1.0 §2.7.2: next-outgoing-id and both windows are mandatory."""
    peer = Peer().opened()
    assert closed_with(peer.raw(frame(b"\x00\x53\x11\xc0\x02\x01\x40"))) == "amqp:decode-error"


def test_our_begin() -> None:
    """AMQP 1.0 §2.5.1: our begin has no remote-channel; the peer's answer maps its channel."""
    peer = Peer(Role.CLIENT)
    peer.connection.open()
    session = peer.connection.begin()
    header, _, begin = peer.answers()
    assert isinstance(header, Header)
    assert begin.remote_channel is None
    peer.raw(AMQP_HEADER)
    peer.send(Open("server"))
    assert peer.send(Begin(0, 0, 10, 10), 5) == [SessionBegun(session)]
    assert session.remote_channel == 5


def test_answer_to_no_begin() -> None:
    """AMQP 1.0 §2.7.2 remote-channel: must name a begin of ours that waits."""
    peer = Peer().opened()
    assert closed_with(peer.send(Begin(0, 0, 1, 1), 0)) == "amqp:not-allowed"


def test_end_is_answered() -> None:
    """AMQP 1.0 §2.5.2: end is answered with end; the channel is free again."""
    peer = Peer().begun()
    (ended,) = peer.send(End())
    assert isinstance(ended, SessionEnded)
    assert ended.by_peer
    assert peer.answer() == End()
    assert isinstance(peer.send(Begin(None, 0, 1, 1))[0], SessionBegun)


def test_frames_after_end() -> None:
    """AMQP 1.0 §2.5.2: frames on an ended channel are read past; azure-servicebus sends them."""
    peer = Peer().begun()
    peer.sending()
    peer.send(End())
    peer.answers()
    assert peer.send(Detach(0, True)) == []
    assert peer.answers() == []


def test_end_takes_the_links() -> None:
    """AMQP 1.0 §2.5.2: ending a session detaches all its links."""
    peer = Peer().begun()
    one, other = peer.sending(handle=0), peer.receiving(handle=1)
    (ended,) = peer.send(End())
    assert isinstance(ended, SessionEnded)
    assert set(ended.links) == {one, other}
    assert one.capacity == 0
    assert peer.connection.link_count == 0


def test_our_end_discards() -> None:
    """AMQP 1.0 §2.5.3: after our end with an error all is discarded until the peer's end."""
    peer = Peer().begun()
    peer.receiving()
    session = peer.connection.sessions[0]
    session.end(Error("amqp:internal-error"))
    end = peer.answer()
    assert end.error.condition == "amqp:internal-error"
    assert peer.transfer(0) == []
    assert peer.flow(0, 1, 0, 1, echo=True) == []
    assert peer.answers() == []
    (ended,) = peer.send(End())
    assert isinstance(ended, SessionEnded)
    assert peer.answers() == []


def test_both_end_at_once() -> None:
    """AMQP 1.0 §2.5.4: simultaneous ends are each other's answers."""
    peer = Peer().begun()
    peer.connection.sessions[0].end()
    assert peer.answer() == End()
    assert len(peer.send(End())) == 1
    assert peer.answers() == []
    assert peer.connection.sessions == ()


def test_end_with_an_error() -> None:
    """AMQP 1.0 §2.7.8: end may carry the reason."""
    error = Error("amqp:session:window-violation", "x")
    (ended,) = Peer().begun().send(End(error))
    assert isinstance(ended, SessionEnded)
    assert ended.error == error


def test_an_error_ends_once() -> None:
    """AMQP 1.0 §2.5.3: a session that broke a rule is reported once, not again with its end."""
    peer = Peer().begun()
    (ended,) = peer.transfer(0, handle=4)
    assert isinstance(ended, SessionEnded)
    assert not ended.by_peer
    assert peer.send(End()) == []


def test_the_peers_window() -> None:
    """AMQP 1.0 §2.5.6: no more transfers than the peer's incoming-window allows."""
    peer = Peer().begun(window=2)
    link = peer.attach(is_sender=False)
    link.accept()
    peer.flow(0, 2, 0, 100, 0, 0, 10)
    peer.answers()
    assert [link.deliver(b"t", [b"m"]) for _ in range(4)] == [0, 1, None, None]
    assert len(peer.answers()) == 2
    assert link.capacity == 0
    assert link.session.is_blocked


def test_the_window_opens() -> None:
    """AMQP 1.0 §2.5.6: a flow moves the window; what waited goes first, in order."""
    peer = Peer().begun(window=1)
    link = peer.attach(is_sender=False)
    link.accept()
    peer.flow(0, 1, 0, 100, 0, 0, 10)
    peer.answers()
    for number in range(4):
        link.deliver(b"%d" % number, [b"m"])
    (first,) = peer.answers()
    assert first.tag == b"0"
    assert peer.flow(1, 2, 0, 100) == []
    assert [transfer.tag for transfer in peer.answers()] == [b"1", b"2"]
    events = peer.flow(3, 10, 0, 100)
    assert WindowOpened(link.session) in events
    assert [transfer.tag for transfer in peer.answers()] == [b"3"]
    assert link.capacity > 0


def test_window_arithmetic() -> None:
    """AMQP 1.0 §2.5.6: window = next-incoming-id + incoming-window - next-outgoing-id."""
    peer = Peer().begun(window=10)
    link = peer.sending(credit=100)
    for _ in range(6):
        link.deliver(b"t", [b"m"])
    peer.flow(4, 5, 0, 100)  # it has seen 4, two are under way
    assert link.session.window == 3


def test_flow_before_our_begin_was_seen() -> None:
    """AMQP 1.0 §2.7.4 next-incoming-id: null stands for our initial next-outgoing-id."""
    peer = Peer().begun(window=10)
    peer.flow(None, 7, 0, 100)
    assert peer.connection.sessions[0].window == 7


def test_window_smaller_than_what_is_under_way() -> None:
    """AMQP 1.0 §2.5.6: a window that has shrunk below what was sent is closed, not negative."""
    peer = Peer().begun(window=10)
    link = peer.sending(credit=100)
    for _ in range(6):
        link.deliver(b"t", [b"m"])
    peer.flow(0, 2, 0, 100)
    assert link.session.window == 0
    assert link.session.is_blocked


def test_echo_of_a_session() -> None:
    """AMQP 1.0 §2.7.4 echo: a flow without handle that asks for it is answered with our state."""
    peer = Peer().begun()
    peer.flow(0, 10, 5, 10, echo=True)
    flow = peer.answer()
    assert isinstance(flow, Flow)
    assert flow.handle is None
    assert flow.next_incoming_id == 5
    assert not flow.echo


def test_transfers_are_counted() -> None:
    """AMQP 1.0 §2.5.6: each transfer frame moves our next-incoming-id by one."""
    peer = Peer().begun()
    peer.receiving()
    peer.transfer(0, more=True)
    peer.transfer(0)
    peer.transfer(1)
    peer.connection.sessions[0].write_flow()
    assert peer.answer().next_incoming_id == 3


def test_our_window_is_never_violated() -> None:
    """AMQP 1.0 §2.8.17 window-violation: not raised; azure-servicebus miscounts its transfers."""
    peer = Peer().begun()
    peer.receiving()
    for number in range(200):
        assert len(peer.transfer(number)) == 1
    assert peer.answers() == []


def test_frames_of_one_message_count() -> None:
    """AMQP 1.0 §2.5.6: a message in several frames takes as many of the window."""
    peer = Peer()
    peer.opened(max_frame_size=512).begun(window=3)
    link = peer.attach(is_sender=False)
    link.accept()
    peer.flow(0, 3, 0, 100, 0, 0, 10)
    peer.answers()
    link.deliver(b"t", [b"x" * 3000])
    sent = peer.answers()
    assert [transfer.more for transfer in sent] == [True] * 3
    peer.flow(3, 100, 0, 100)
    sent += peer.answers()
    assert not sent[-1].more
    assert b"".join(transfer.payload for transfer in sent) == b"x" * 3000


def test_delivery_ids_are_the_sessions() -> None:
    """AMQP 1.0 §2.6.12: delivery ids are consecutive over all links of a session."""
    peer = Peer().begun()
    one, other = peer.sending(handle=0), peer.sending(handle=1)
    ids = [link.deliver(b"t", [b"m"]) for link in (one, other, one, other)]
    assert ids == [0, 1, 2, 3]
    assert [it.delivery_id for it in peer.answers() if isinstance(it, Transfer)] == [0, 1, 2, 3]


def test_ids_wrap() -> None:
    """AMQP 1.0 §2.8.10: sequence numbers are serial (RFC 1982): after 2^32-1 comes 0."""
    peer = Peer().begun()
    link = peer.sending(credit=10)
    session = link.session
    session.next_delivery_id = session.next_outgoing_id = session.initial_id = 2**32 - 2
    session.window = 100
    assert [link.deliver(b"t", [b"m"]) for _ in range(4)] == [2**32 - 2, 2**32 - 1, 0, 1]
    (event,) = peer.disposition(2**32 - 1, 0, settled=True)
    assert [it.id for it in event.deliveries] == [2**32 - 1, 0]  # type: ignore[union-attr]
    peer.flow(2, 50, 0, 100)
    assert session.window == 50


def test_handle_beyond_handle_max() -> None:
    """AMQP 1.0 §2.7.2 handle-max: a handle beyond it closes with a framing error."""
    peer = Peer().begun()
    events = peer.send(Attach("l", 10_001, True))
    assert closed_with(events) == "amqp:connection:framing-error"


def test_handle_in_use() -> None:
    """AMQP 1.0 §2.7.3 handle: attaching a used handle ends the session with handle-in-use."""
    peer = Peer().begun()
    peer.sending(handle=3)
    peer.send(Attach("other", 3, True))
    assert peer.answer().error.condition == "amqp:session:handle-in-use"


def test_unattached_handle() -> None:
    """AMQP 1.0 §2.8.17 unattached-handle: a transfer or flow on one ends the session."""
    peer = Peer().begun()
    peer.transfer(0, handle=2)
    assert peer.answer().error.condition == "amqp:session:unattached-handle"
    peer = Peer().begun()
    peer.flow(0, 1, 0, 1, 2, 0, 1)
    assert peer.answer().error.condition == "amqp:session:unattached-handle"


def test_handle_that_was_attached() -> None:
    """AMQP 1.0 §2.6.4: what was under way on a link that is gone is read past."""
    peer = Peer().begun()
    peer.receiving(handle=2)
    peer.send(Detach(2, True))
    peer.answers()
    assert peer.transfer(0, handle=2) == []
    assert peer.flow(0, 1, 0, 1, 2, 0, 1) == []
    assert peer.send(Detach(2, True)) == []
    assert peer.answers() == []


def test_the_peers_handle_max() -> None:
    """AMQP 1.0 §2.7.2 handle-max: we use no handle that the peer does not take."""
    peer = Peer().begun(handle_max=0)
    peer.sending(handle=0)
    (ended,) = peer.send(Attach("l", 1, True))
    assert isinstance(ended, SessionEnded)
    assert peer.answer().error.condition == "amqp:resource-limit-exceeded"


def test_flow_events_are_of_links() -> None:
    """AMQP 1.0 §2.7.4: a flow without handle says nothing of any link."""
    peer = Peer().begun()
    peer.sending()
    assert not [event for event in peer.flow(0, 10, 0, 10) if isinstance(event, LinkFlow)]
