"""AMQP 1.0 part 2, §2.4 and §2.7.1, §2.7.9: connections are opened, kept alive and closed."""

from __future__ import annotations

import pytest

from tandembus.amqp.connection import Role
from tandembus.amqp.events import Closed, Opened, SessionBegun
from tandembus.amqp.frames import EMPTY_FRAME, frame
from tandembus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Error,
    Open,
    Target,
    encode_performative,
)
from tandembus.errors import ArgumentError
from tests.conformance.amqp.peer import AMQP_HEADER, Empty, Header, Peer, closed_with


def test_open_is_answered() -> None:
    """AMQP 1.0 §2.4.1: each peer sends exactly one open."""
    peer = Peer()
    (opened,) = peer.raw(AMQP_HEADER) + peer.send(Open("peer", "host"))
    assert opened == Opened(Open("peer", "host"))
    _, answer = peer.answers()
    assert isinstance(answer, Open)
    assert answer.container_id == "tandem"


def test_second_open() -> None:
    """AMQP 1.0 §2.4.1: a second open is an error."""
    assert closed_with(Peer().opened().send(Open("peer"))) == "amqp:illegal-state"


def test_begin_before_open() -> None:
    """AMQP 1.0 §2.4.1: open is the first frame."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    assert closed_with(peer.send(Begin(None, 0, 1, 1))) == "amqp:illegal-state"


def test_open_lacks_its_container() -> None:
    """AMQP 1.0 §2.7.1 container-id: mandatory."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    assert closed_with(peer.raw(frame(b"\x00\x53\x10\x45"))) == "amqp:decode-error"


def test_open_defaults() -> None:
    """AMQP 1.0 §2.7.1: max-frame-size 4294967295, channel-max 65535 and no idle time-out."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    (opened,) = peer.raw(frame(b"\x00\x53\x10\xc0\x04\x01\xa1\x01p"))
    assert isinstance(opened, Opened)
    assert opened.open.max_frame_size == 0xFFFF_FFFF
    assert opened.open.channel_max == 65535
    assert opened.open.idle_time_out is None


def test_max_frame_size_below_the_floor() -> None:
    """AMQP 1.0 §2.7.1 max-frame-size: must not be below 512."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    assert closed_with(peer.send(Open("peer", None, 511))) == "amqp:invalid-field"


def test_frames_fit_the_peer() -> None:
    """AMQP 1.0 §2.7.1 max-frame-size: we never write a larger frame than the peer takes."""
    peer = Peer()
    peer.opened(max_frame_size=512).begun()
    link = peer.sending()
    link.deliver(b"t", [b"x" * 2000])
    data = peer.bytes()
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        assert size <= 512
        at += size


def test_long_error_text_is_cut() -> None:
    """AMQP 1.0 §2.7.1 max-frame-size: the text of an error gives way, its condition does not."""
    peer = Peer()
    peer.opened(max_frame_size=512).begun()
    link = peer.sending()
    link.detach(Error("amqp:not-found", "x" * 5000, {"y": "z" * 5000}))
    detach = peer.answer()
    assert detach.error.condition == "amqp:not-found"
    assert len(detach.error.description) == 60


def test_pipelined_open() -> None:
    """AMQP 1.0 §2.4.2: header, open, begin and attach may come in one piece, unanswered."""
    peer = Peer()
    data = AMQP_HEADER
    for performative in (
        Open("peer"),
        Begin(None, 0, 1, 1),
        Attach("l", 0, True, target=Target("x")),
        Detach(0, True),
        End(),
        Close(),
    ):
        data += frame(encode_performative(performative))
    events = peer.raw(data)
    assert [type(event).__name__ for event in events] == [
        "Opened", "SessionBegun", "LinkAttached", "LinkDetached", "SessionEnded", "Closed",
    ]  # fmt: skip
    answers = [type(answer) for answer in peer.answers()]
    assert answers == [Header, Open, Begin, Attach, Detach, End, Close]


def test_close_is_answered() -> None:
    """AMQP 1.0 §2.4.3: a close is answered with a close, and nothing after it."""
    peer = Peer().begun()
    assert peer.send(Close()) == [Closed(None, True)]
    assert peer.answer() == Close()
    assert peer.connection.is_finished
    assert peer.send(Begin(None, 0, 1, 1), 1) == []
    assert peer.answers() == []


def test_close_with_an_error() -> None:
    """AMQP 1.0 §2.7.9: close may carry the reason."""
    error = Error("amqp:connection:forced", "bye", {"a": "b"})
    assert Peer().opened().send(Close(error)) == [Closed(error, True)]


def test_our_close_waits() -> None:
    """AMQP 1.0 §2.4.6 CLOSE SENT: after our close all but the peer's close is discarded."""
    peer = Peer().begun()
    peer.connection.close(Error("amqp:connection:forced"))
    assert isinstance(peer.answer(), Close)
    assert not peer.connection.is_finished
    assert peer.send(Begin(None, 0, 1, 1), 5) == []
    assert peer.send(Close()) == [Closed(None, True)]
    assert peer.answers() == []
    assert peer.connection.is_finished


def test_close_twice() -> None:
    """AMQP 1.0 §2.4.3: a peer sends one close at most."""
    peer = Peer().opened()
    peer.connection.close()
    peer.connection.close()
    assert len(peer.answers()) == 1


def test_nothing_is_read_after_an_error() -> None:
    """AMQP 1.0 §2.4.6 END: after an error of the connection every byte is ignored."""
    peer = Peer().opened()
    assert peer.raw(b"\xff" * 8) != []
    assert peer.raw(frame(encode_performative(Close()))) == []


def test_idle_time_out_is_offered() -> None:
    """AMQP 1.0 §2.7.1 idle-time-out: ours is in our open."""
    peer = Peer(idle_timeout_ms=1000)
    peer.raw(AMQP_HEADER)
    peer.send(Open("peer"))
    assert peer.answers()[1].idle_time_out == 1000


def test_heartbeats_for_the_peer() -> None:
    """AMQP 1.0 §2.4.5: an idle connection sends empty frames within the peer's time-out."""
    peer = Peer(idle_timeout_ms=None).opened(idle_time_out=60_000)
    now = 1_000
    last = now
    for _ in range(40):
        due = peer.connection.next_deadline(now)
        assert due is not None
        now = due
        assert peer.connection.tick(now) == []
        if peer.answers() == [Empty()]:
            assert now - last <= 30_000
            last = now
    assert now - last <= 30_000


def test_no_heartbeat_while_there_is_traffic() -> None:
    """AMQP 1.0 §2.4.5: any frame counts as a sign of life."""
    peer = Peer(idle_timeout_ms=None).begun()
    peer = Peer(idle_timeout_ms=None).opened(idle_time_out=4_000).begun()
    peer.connection.next_deadline(0)
    peer.connection.tick(1_000)
    peer.answers()
    peer.connection.sessions[0].write_flow()
    assert len(peer.answers()) == 1
    assert peer.connection.tick(2_000) == []
    assert peer.answers() == []


def test_silent_peer_is_given_up() -> None:
    """AMQP 1.0 §2.4.5: a peer that exceeds our time-out gets a close with an error."""
    peer = Peer(idle_timeout_ms=1_000).opened()
    assert peer.connection.next_deadline(0) == 1_000
    assert peer.connection.tick(1_000) == []
    events = peer.connection.tick(2_000)
    assert closed_with(events) == "amqp:resource-limit-exceeded"
    assert isinstance(peer.answer(), Close)


def test_empty_frames_keep_a_connection() -> None:
    """AMQP 1.0 §2.4.5: an empty frame resets our time-out."""
    peer = Peer(idle_timeout_ms=1_000).opened()
    for now in range(0, 20_000, 500):
        peer.raw(EMPTY_FRAME)
        assert peer.connection.tick(now) == []


def test_zero_means_no_time_out() -> None:
    """AMQP 1.0 §2.7.1 idle-time-out: zero is the same as none."""
    peer = Peer(idle_timeout_ms=None).opened(idle_time_out=0)
    assert peer.connection.next_deadline(5) is None
    assert peer.connection.tick(10**9) == []


@pytest.mark.parametrize("data", [b"", AMQP_HEADER], ids=["nothing", "a header"])
def test_handshake_takes_too_long(data: bytes) -> None:
    """AMQP 1.0 §2.4.5: who does not open in time is cut off without ceremony."""
    peer = Peer()
    peer.raw(data)
    due = peer.connection.next_deadline(100)
    assert due is not None
    assert peer.connection.tick(due - 1) == []
    assert closed_with(peer.connection.tick(due)) == "amqp:connection:forced"
    assert peer.connection.next_deadline(due) is None


def test_channel_max_is_offered_and_held() -> None:
    """AMQP 1.0 §2.7.1 channel-max: a channel beyond it closes with a framing error."""
    peer = Peer(max_channels=4)
    peer.raw(AMQP_HEADER)
    peer.send(Open("peer"))
    assert peer.answers()[1].channel_max == 3
    assert isinstance(peer.send(Begin(None, 0, 1, 1), 3)[0], SessionBegun)
    assert closed_with(peer.send(Begin(None, 0, 1, 1), 4)) == "amqp:connection:framing-error"


def test_the_peers_channel_max() -> None:
    """AMQP 1.0 §2.7.1 channel-max: we use no channel that the peer does not take."""
    peer = Peer(Role.CLIENT)
    peer.connection.open()
    peer.raw(AMQP_HEADER)
    peer.send(Open("peer", channel_max=1))
    assert [peer.connection.begin().channel for _ in range(2)] == [0, 1]
    with pytest.raises(ArgumentError):
        peer.connection.begin()


def test_frame_on_a_channel_without_a_session() -> None:
    """AMQP 1.0 §2.5.1: such a frame is read past here: azure-servicebus detaches after its end."""
    peer = Peer().begun()
    assert peer.send(Detach(3, True), 7) == []
    assert peer.transfer(0, channel=9) == []
    assert peer.answers() == []


def test_a_sessions_error_spares_the_others() -> None:
    """AMQP 1.0 §2.8.16: an error of one session leaves the connection and its other sessions."""
    peer = Peer().begun(0).begun(1)
    peer.transfer(0, handle=9, channel=0)
    assert isinstance(peer.answer(), End)
    assert peer.sending(channel=1).capacity > 0


def test_client_does_not_begin_before_open() -> None:
    """AMQP 1.0 §2.4.1: our own first frame is open, too."""
    with pytest.raises(ArgumentError):
        Peer(Role.CLIENT).connection.begin()
