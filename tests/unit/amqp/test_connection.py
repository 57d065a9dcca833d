"""A connection: its ends, its output, slow ways of saying usual things, and its deadlines."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.deadlines import Deadlines
from tandembus.amqp.events import (
    Closed,
    Dispositions,
    Event,
    LinkDetached,
    MessageAborted,
    MessageCut,
    MessagePart,
    MessageReceived,
    SessionBegun,
    SessionEnded,
)
from tandembus.amqp.fast import encode_transfer
from tandembus.amqp.frames import LARGE, frame
from tandembus.amqp.performatives import (
    ACCEPTED,
    RETRY_AFTER,
    SENDER,
    Attach,
    Begin,
    Detach,
    End,
    Error,
    Open,
    Source,
    Target,
)
from tandembus.amqp.states import ConnectionState
from tandembus.limits import BATCH_ENVELOPE, MAX_BATCH_BYTES, MAX_UNSETTLED, STREAM_BYTES
from tests.conformance.amqp.peer import AMQP_HEADER, SASL_HEADER, Peer, closed_with

BATCH = 0x8001_3700


def test_repr() -> None:
    """What a log shows of a connection."""
    assert repr(Peer().opened().connection) == "<Connection server waits for anything>"


def test_close_before_anything() -> None:
    """Nothing was agreed on: nothing is said."""
    for peer in (Peer(Role.CLIENT), Peer(Role.CLIENT, use_sasl=True), Peer()):
        peer.connection.open()
        peer.connection.close(Error("x:y"))
        assert peer.connection.is_finished
        peer.connection.open()


def test_close_before_the_peers_open() -> None:
    """Our open, our close, and no waiting."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    peer.connection.close()
    assert [type(it).__name__ for it in peer.answers()] == ["Header", "Open", "Close"]
    assert peer.connection.is_finished


def test_any_buffer_is_taken() -> None:
    """What a transport hands over may be a bytearray or a view."""
    peer = Peer()
    assert peer.connection.receive_data(bytearray(AMQP_HEADER)) == []
    assert peer.connection.receive_data(memoryview(frame(b""))) != []


def test_reading_stops_while_too_many_are_unsettled() -> None:
    """Back-pressure: the owner reads again when it has settled."""
    peer = Peer().begun()
    link = peer.receiving()
    readable = [peer.connection.can_read]
    for number in range(MAX_UNSETTLED + 1):
        peer.transfer(number)
    readable.append(peer.connection.can_read)
    link.settle(range(MAX_UNSETTLED + 1), ACCEPTED)
    readable.append(peer.connection.can_read)
    assert readable == [True, False, True]
    (disposition,) = peer.answers()
    assert (disposition.first, disposition.last) == (0, MAX_UNSETTLED)


def test_unsettled_has_a_hard_end() -> None:
    """A peer that is read in spite of that loses its link, not our memory."""
    peer = Peer().begun()
    link = peer.receiving()
    events = []
    for number in range(4 * MAX_UNSETTLED + 5):
        events += peer.transfer(number)
    assert not isinstance(events[-1], MessageReceived)
    assert link.unsettled == 0
    assert peer.answer().error.condition == "amqp:link:transfer-limit-exceeded"
    peer = Peer().begun()
    link = peer.receiving()
    link.unsettled = 4 * MAX_UNSETTLED
    peer.transfer(0, more=True)
    peer.transfer(0)
    assert peer.answer().error.condition == "amqp:link:transfer-limit-exceeded"


def test_unfinished_messages_share_a_budget() -> None:
    """Many links, each with a message in many frames: some are rejected at their end, as what can
    be tried again; the others come through, and so does what comes next on any link."""
    peer = Peer(max_message_size=1024 * 1024).begun()
    for handle in range(30):
        peer.receiving(handle=handle)
    chunk = b"x" * 60_000
    for _ in range(15):
        for handle in range(30):
            assert peer.transfer(handle, chunk, handle=handle, more=True) == []
            assert peer.connection.partial_bytes <= peer.connection.max_partial_bytes
    assert peer.answers() == []
    whole, busy = [], []
    for handle in range(30):
        whole += peer.transfer(handle, b"x", handle=handle)
        busy += peer.answers()
    assert len(whole) + len(busy) == 30
    assert whole
    assert all(isinstance(it, MessageReceived) and len(it.payload) == 900_001 for it in whole)
    assert {it.state.error.condition for it in busy} == {"com.microsoft:server-busy"}
    assert {it.state.error.info[RETRY_AFTER] for it in busy} == {2_000}
    assert peer.connection.partial_bytes == 0
    for handle in range(30):
        (event,) = peer.transfer(100 + handle, handle=handle)
        assert isinstance(event, MessageReceived)


def test_a_settled_message_for_which_there_is_no_room_ends_its_link() -> None:
    """There is no other answer to it."""
    peer = Peer(max_message_size=30_000_000).begun()
    peer.connection.max_partial_bytes = 100_000
    peer.receiving(handle=0)
    for _ in range(5):
        assert peer.transfer(0, b"x" * 60_000, more=True, settled=True) == []
    (event,) = peer.transfer(0, b"x")
    assert isinstance(event, LinkDetached)
    assert peer.answer().error.condition == "com.microsoft:server-busy"


def test_a_client_without_room_does_not_make_dead_letters() -> None:
    """A message that a receiver rejects is a dead letter; so its link ends instead."""
    peer = Peer(Role.CLIENT, max_message_size=30_000_000).opened()
    peer.connection.open()
    session = peer.connection.begin()
    peer.send(Begin(session.channel, 0, 100, 100))
    link = session.attach("l", is_sender=False, source=Source("q"))
    peer.send(Attach("l", 0, SENDER, source=Source("q"), target=Target(), initial_delivery_count=0))
    link.grant(10)
    peer.connection.max_partial_bytes = 100_000
    peer.answers()
    peer.transfer(0, b"x" * 60_000, more=True)
    (event,) = peer.transfer(0, b"x" * 60_000, more=True)
    assert isinstance(event, LinkDetached)
    assert [type(it) for it in peer.answers()] == [Detach]


def test_a_request_for_which_there_is_no_room_is_rejected() -> None:
    """On a link that keeps the beginning of what is too large, this one is not: it is not that."""
    peer = Peer(max_message_size=30_000_000).begun()
    peer.connection.max_partial_bytes = 100_000
    peer.receiving(handle=0).keeps_head = 1_000
    for _ in range(5):
        assert peer.transfer(0, b"x" * 60_000, more=True) == []
    assert peer.transfer(0, b"x") == []
    assert peer.answer().state.error.condition == "com.microsoft:server-busy"
    assert peer.connection.partial_bytes == 0


@pytest.mark.parametrize("keeps_head", [0, 1_000])
def test_what_is_kept_of_a_message_that_is_too_large_counts(keeps_head: int) -> None:
    """Each of thousands of links could keep a beginning."""
    peer = Peer(max_message_size=100_000).begun()
    peer.receiving(handle=0).keeps_head = keeps_head
    for _ in range(3):
        assert peer.transfer(0, b"x" * 60_000, more=True) == []
    assert peer.connection.partial_bytes == keeps_head
    events = peer.transfer(0, b"x")
    assert [type(it) for it in events] == [MessageCut] * (keeps_head > 0)
    assert all(isinstance(it, MessageCut) and len(it.head) == keeps_head for it in events)
    assert peer.connection.partial_bytes == 0


def _batch(peer: Peer, frames: int, delivery_id: int, *, settled: bool = False) -> list[Event]:
    events: list[Event] = []
    for at in range(frames):
        more = at < frames - 1
        events += peer.transfer(
            delivery_id, b"x" * 60_000, message_format=BATCH, more=more, settled=settled
        )
        assert peer.connection.partial_bytes <= MAX_BATCH_BYTES + BATCH_ENVELOPE
    return events


def test_a_batch_is_never_larger_than_a_batch() -> None:
    """Also on a link that takes messages of 100 MB in parts: a batch would be in memory as a whole.
    It is told how large it was, and the link goes on."""
    peer = Peer(max_message_size=100 * 1024 * 1024).begun()
    peer.receiving(handle=0).part_bytes = 512 * 1024
    assert _batch(peer, 30, 0) == []
    error = peer.answer().state.error
    assert error.condition == "amqp:link:message-size-exceeded"
    assert error.description == "The batch has 1800000 bytes; at most 1048576 are allowed."
    (event,) = _batch(peer, 17, 1)
    assert isinstance(event, MessageReceived)
    assert len(event.payload) == 17 * 60_000
    assert isinstance(_batch(peer, 30, 2, settled=True)[-1], LinkDetached)


def test_a_sender_that_is_refused_again_and_again_keeps_its_credit() -> None:
    """Its owner hears nothing of what is refused, and so grants none."""
    peer = Peer(max_message_size=100).begun()
    link = peer.receiving(handle=0)
    for number in range(1_000):
        assert link.credit > 0
        assert peer.transfer(number, b"x" * 101) == []
        disposition, *flow = peer.answers()
        assert disposition.state.error.condition == "amqp:link:message-size-exceeded"
        assert all(it.link_credit <= 100 for it in flow)


def test_what_comes_behind_a_link_that_pauses_waits() -> None:
    """In order, and without being copied again and again: nothing is decoded meanwhile."""
    peer = Peer().begun()
    peer.receiving(handle=0).pauses = True
    peer.receiving(handle=1)
    connection = peer.connection
    kept = [
        frame(encode_transfer(number % 3 // 2, number, b"t", message_format=0) + b"%d" % number)
        for number in range(9)
    ]
    for symbolic in (False, True):
        sent = [_extended(each[8:]) if symbolic else each for each in kept]
        events = connection.receive_data(b"".join(sent[:6]) + sent[6][:20])
        found = []
        for _ in range(4):
            assert connection.is_paused
            assert connection.has_more
            found.append([it.payload for it in events if isinstance(it, MessageReceived)])
            events = connection.receive_data(b"")
        assert found == [[b"0"], [b"1"], [b"2", b"3"], [b"4"]]
        assert [it.payload for it in events if isinstance(it, MessageReceived)] == [b"5"]
        assert not connection.is_paused
        assert not connection.has_more
        data, pauses = b"".join(sent[6:])[20:], []
        for _ in range(3):
            events = connection.receive_data(data)
            data = b""
            pauses.append((len(events), connection.is_paused, connection.has_more))
        assert pauses == [(1, True, True), (1, True, True), (1, False, False)]
        for session in connection.sessions:
            session.settle(range(9), ACCEPTED, as_receiver=True)


def test_frames_with_an_extended_header() -> None:
    """Transfers and dispositions that do not take the short way mean the same."""
    peer = Peer().begun()
    peer.receiving(handle=0)
    peer.sending(handle=1).deliver(b"t", [b"m"])
    transfer = encode_transfer(0, 0, b"t", message_format=0)
    (event,) = peer.raw(_extended(transfer + b"payload"))
    assert isinstance(event, MessageReceived)
    assert event.payload == b"payload"
    disposition = b"\x00\x53\x15\xc0\x0a\x05\x41\x52\x00\x40\x41\x00\x53\x24\x45"
    (event,) = peer.raw(_extended(disposition))
    assert isinstance(event, Dispositions)
    assert len(event.deliveries) == 1


def _extended(body: bytes) -> bytes:
    return (12 + len(body)).to_bytes(4, "big") + b"\x03\x00\x00\x00" + b"\xee" * 4 + body


def test_symbolic_transfer() -> None:
    """The same for a symbolic descriptor."""
    peer = Peer().begun()
    peer.receiving()
    body = b"\x00\xa3\x12amqp:transfer:list" + encode_transfer(0, 0, b"t")[3:]
    (event,) = peer.raw(frame(body + b"m"))
    assert isinstance(event, MessageReceived)


def test_bytes_behind_a_sasl_frame() -> None:
    """Only a transfer has a payload."""
    peer = Peer(use_sasl=True)
    peer.raw(SASL_HEADER)
    init = b"\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS"
    assert closed_with(peer.raw(frame(init + b"\x40", kind=1))) == "amqp:decode-error"


def test_session_that_ended_before_it_was_there() -> None:
    """A client may begin and end without waiting for the answer to either."""
    peer = Peer(Role.CLIENT).opened()
    session = peer.connection.begin()
    session.end()
    assert peer.send(Begin(0, 0, 1, 1)) == []
    (ended,) = peer.send(End())
    assert isinstance(ended, SessionEnded)
    assert peer.connection.sessions == ()


def test_server_has_no_channel_left() -> None:
    """The peer begins on a channel that it would not take itself."""
    peer = Peer()
    peer.raw(AMQP_HEADER)
    peer.send(Open("peer", channel_max=0))
    (begun,) = peer.send(Begin(None, 0, 1, 1), 5)
    assert isinstance(begun, SessionBegun)
    assert begun.session.channel == 0
    events = peer.send(Begin(None, 0, 1, 1), 6)
    assert closed_with(events) == "amqp:resource-limit-exceeded"


def test_large_payloads_are_not_copied() -> None:
    """What an owner delivers in one large piece goes out as that very piece."""
    peer = Peer().begun()
    link = peer.sending()
    body = b"x" * (LARGE + 1)
    link.deliver(b"t", [b"head", body])
    link.deliver(b"t", [b"small"])
    chunks = peer.connection.data_to_send()
    assert any(chunk is body for chunk in chunks)
    assert len(chunks) == 3
    link.deliver(b"t", [b"y" * 200_000])
    views = [it for it in peer.connection.data_to_send() if isinstance(it, memoryview)]
    assert len(views) == 3


def test_nothing_to_send() -> None:
    """An idle connection has no output, and says so with an empty list."""
    peer = Peer().opened()
    assert peer.connection.data_to_send() == []


def test_idle_and_handshake_deadlines() -> None:
    """The pure arithmetic of `Deadlines`."""
    deadlines = Deadlines()
    assert deadlines.handshake(100, ConnectionState.HEADER) == 10_100
    assert deadlines.handshake(5_000, ConnectionState.OPEN) == 30_100
    assert deadlines.idle(0, None, None) is None
    assert deadlines.idle(0, 1_000, 400) == 100
    assert not deadlines.is_peer_silent(999, 1_000)
    assert not deadlines.is_peer_silent(1_000, 1_000)
    assert deadlines.is_peer_silent(2_000, 1_000)
    assert not deadlines.is_heartbeat_due(99, 400)
    assert deadlines.is_heartbeat_due(100, 400)
    deadlines.has_sent = True
    assert not deadlines.is_heartbeat_due(200, 400)
    assert deadlines.is_heartbeat_due(300, 400)


def test_tick_before_its_time() -> None:
    """Nothing happens, however often it is called."""
    peer = Peer().opened(idle_time_out=60_000)
    for now in range(1_000):
        assert peer.connection.tick(now) == []
    assert peer.answers() == []


def test_both_deadlines_at_once() -> None:
    """A heartbeat is not lost because the peer was looked at in the same tick."""
    peer = Peer(idle_timeout_ms=1_000).opened(idle_time_out=4_000)
    assert peer.connection.next_deadline(0) == 1_000
    assert peer.connection.tick(1_000) == []
    peer.connection.receive_data(frame(b""))
    assert peer.connection.tick(2_000) == []
    assert len(peer.answers()) == 1


def test_peer_that_never_answers_our_close() -> None:
    """The idle time-out ends the wait."""
    peer = Peer(idle_timeout_ms=1_000).opened()
    peer.connection.close()
    peer.connection.next_deadline(0)
    peer.connection.tick(1_000)
    (closed,) = peer.connection.tick(2_000)
    assert isinstance(closed, Closed)
    assert peer.connection.is_finished


@pytest.mark.parametrize("size", [1, 7, 64])
def test_small_pieces_are_linear(size: int) -> None:
    """A large frame that dribbles in is not copied with each piece."""
    peer = Peer(max_frame_size=1024 * 1024, max_message_size=2**30).begun()
    peer.receiving()
    data = frame(encode_transfer(0, 0, b"t") + b"x" * 200_000)
    events = []
    for at in range(0, len(data), size):
        events += peer.connection.receive_data(data[at : at + size])
    (event,) = events
    assert isinstance(event, MessageReceived)
    assert len(event.payload) == 200_000


def test_memory_of_an_idle_connection() -> None:
    """Open, with one session and a few links: a few kilobytes."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        peers = []
        for _ in range(20):
            peer = Peer().begun()
            for handle in range(3):
                peer.sending(handle=handle)
            peer.sent = b""
            peers.append(peer)
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / 20
    finally:
        tracemalloc.stop()
    assert each < 16_000, each


def test_server_by_default_wants_sasl() -> None:
    """Who forgets the argument is on the safe side."""
    connection = Connection(Role.SERVER, container_id="x")
    assert closed_with(connection.receive_data(AMQP_HEADER)) is not None


def test_a_number_of_frames_at_a_time() -> None:
    """With a limit the rest waits, in its order, and new bytes come behind it; begin and end count
    for many."""
    whole, pieces = Peer().begun(), Peer().begun()
    for peer in (whole, pieces):
        peer.receiving()
        peer.answers()
    data = b"".join(
        frame(encode_transfer(0, number, b"t", message_format=0) + b"x") for number in range(20)
    )
    expected = whole.connection.receive_data(data)
    events = pieces.connection.receive_data(data[:-3], 5)
    assert len(events) == 5
    assert pieces.connection.has_more
    events += pieces.connection.receive_data(b"", 5)
    events += pieces.connection.receive_data(data[-3:], 5)
    assert len(events) == 15
    for _ in range(2):
        events += pieces.connection.receive_data(b"", 5)
    ids = [event.delivery_id for event in events if isinstance(event, MessageReceived)]
    assert ids == [event.delivery_id for event in expected if isinstance(event, MessageReceived)]
    assert ids == list(range(20))


def test_a_rest_is_forgotten_with_the_connection() -> None:
    """After an error nothing of what is left is looked at."""
    peer = Peer().begun()
    peer.connection.receive_data(frame(b"") * 3 + b"\x00\x00\x00\x01" * 2 + frame(b"") * 9, 8)
    while peer.connection.has_more:
        peer.connection.receive_data(b"", 8)
    assert peer.connection.is_finished
    assert peer.connection.is_over
    assert not peer.connection.has_more


def test_fw1_a_large_message_is_reported_in_parts() -> None:
    """A link that passes parts on keeps no more than one of them; all parts are the message."""
    peer = Peer(max_message_size=1024 * 1024).begun()
    peer.receiving(handle=0).part_bytes = 150_000
    chunks = [bytes((n,)) * 60_000 for n in range(10)]
    events: list[object] = []
    for n, chunk in enumerate(chunks):
        events += peer.transfer(0, chunk, handle=0, more=n < 9)
        assert peer.connection.partial_bytes < 180_000 + 60_000
    *parts, last = events
    assert [type(part) for part in parts] == [MessagePart] * 3
    assert isinstance(last, MessageReceived)
    payloads = [part.payload for part in parts if isinstance(part, MessagePart)]
    assert b"".join([*payloads, last.payload]) == b"".join(chunks)
    assert peer.connection.partial_bytes == 0


def test_fw1_where_much_is_unfinished_parts_are_smaller() -> None:
    """A thousand senders on one connection, whose frames come in turns: nothing is refused, and
    what is in memory has its bound."""
    peer = Peer(max_message_size=1024 * 1024).begun()
    for handle in range(100):
        peer.receiving(handle=handle).part_bytes = 512 * 1024
    most = 0
    for _ in range(6):
        for handle in range(100):
            events = peer.transfer(handle, b"x" * 60_000, handle=handle, more=True)
            assert all(isinstance(event, MessagePart) for event in events)
            most = max(most, peer.connection.partial_bytes)
    assert most <= peer.connection.max_partial_bytes


@pytest.mark.parametrize("how", ["aborted", "too large"])
def test_fw1_parts_of_what_ends_are_taken_back(how: str) -> None:
    peer = Peer(max_message_size=300_000).begun()
    peer.receiving(handle=0).part_bytes = 100_000
    assert not peer.transfer(0, b"x" * 60_000, handle=0, more=True)
    (part,) = peer.transfer(0, b"x" * 60_000, handle=0, more=True)
    assert isinstance(part, MessagePart)
    if how == "aborted":
        events = peer.transfer(0, b"", handle=0, aborted=True)
    else:
        events = []
        for _ in range(3):
            events += peer.transfer(0, b"x" * 62_000, handle=0, more=True)
        events += peer.transfer(0, b"x" * 62_000, handle=0)
    assert sum(isinstance(event, MessageAborted) for event in events) == 1
    assert not any(isinstance(event, MessageReceived) for event in events)
    assert peer.connection.partial_bytes == 0


class Long:
    """A message that is not in memory."""

    def __len__(self) -> int:
        return 2 * STREAM_BYTES

    def read(self, at: int, size: int) -> bytes:
        return b"x" * size


def test_sessions_that_stream_wait_in_their_order_and_once() -> None:
    """Thousands of sessions of one connection can each have a large message to send: looking
    whether one waits already takes no longer for that, and none keeps the others waiting."""
    peer = Peer()
    links = [peer.begun(channel).sending(channel=channel) for channel in range(30)]
    for _ in range(2):
        for link in links:
            link.deliver_streamed(b"t", Long(), settled=True)
    streaming = peer.connection.streaming
    assert list(streaming.sessions) == [link.session for link in links]
    order = []
    while streaming.sessions:
        assert sum(map(len, peer.connection.data_to_send())) < 2 * STREAM_BYTES
        order += [session.channel for session in streaming.go_on()]
    assert order[:60] == [*range(30)] * 2
    assert peer.connection.data_to_send()
    assert not any(session.is_blocked for session in peer.connection.sessions)
