"""A session: what waits for the window, answers that are merged, and what its end leaves."""

from __future__ import annotations

from itertools import permutations

import pytest

from tandembus.amqp.connection import Role
from tandembus.amqp.events import Dispositions, LinkDetached, SessionEnded
from tandembus.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SENDER,
    Attach,
    Begin,
    Declared,
    Detach,
    End,
    Error,
    Rejected,
    Source,
    Target,
)
from tandembus.errors import ArgumentError
from tests.conformance.amqp.peer import Disposition, Peer


def blocked() -> tuple[Peer, list[bytes]]:
    """A session whose window is closed, with two links that wait; and the tags that went out."""
    peer = Peer().begun(window=1)
    one, other = (peer.attach(is_sender=False, handle=handle) for handle in (0, 1))
    for link in (one, other):
        link.accept()
        peer.flow(0, 1, 0, 100, link.remote_handle, 0, 10)
    for number, link in enumerate((one, other, one, other)):
        link.deliver(b"%d" % number, [b"m"])
    return peer, [it.tag for it in peer.answers() if type(it).__name__ == "Transfer"]


def test_repr() -> None:
    """What a log shows of a session."""
    peer = Peer().begun()
    peer.sending()
    assert repr(peer.connection.sessions[0]) == "<Session 0 mapped 1 links>"


def test_a_link_that_ends_takes_back_what_waits() -> None:
    """Ids stay consecutive, because what waits has none yet."""
    peer, tags = blocked()
    assert tags == [b"0"]
    peer.send(Detach(0, True))
    peer.answers()
    peer.flow(1, 10, 0, 100)
    assert [(it.delivery_id, it.tag) for it in peer.answers()] == [(1, b"1"), (2, b"3")]


def test_end_takes_back_what_waits() -> None:
    """Nothing is written for a session that is over."""
    peer, _ = blocked()
    peer.send(End())
    assert [type(it) for it in peer.answers()] == [End]


def test_deliveries_keep_their_order_while_blocked() -> None:
    """What comes later waits behind, even if it would fit."""
    peer, _ = blocked()
    session = peer.connection.sessions[0]
    assert session.is_blocked
    assert peer.flow(1, 3, 0, 100) == []
    assert [it.tag for it in peer.answers()] == [b"1", b"2", b"3"]
    assert session.is_blocked  # all of it is used up
    assert session.window == 0


def test_a_row_of_deliveries() -> None:
    """Ids and tags in their order, a credit for each; what the window does not take waits, and what
    has no credit is refused as a whole."""
    peer = Peer().begun(window=5)
    link = peer.attach(is_sender=False, handle=0)
    link.accept()
    peer.flow(0, 5, 0, 100, 0, 0, 7)
    peer.answers()
    link.deliver_row([(b"%d" % number, [b"m", b"n"]) for number in range(3)])
    link.deliver_row([])
    assert [(it.delivery_id, it.tag) for it in peer.answers()] == [(0, b"0"), (1, b"1"), (2, b"2")]
    link.deliver_row([(b"%d" % number, [b"m"]) for number in range(3, 7)])
    assert [it.tag for it in peer.answers()] == [b"3", b"4"]
    assert (link.credit, link.unsettled) == (0, 5)
    with pytest.raises(ArgumentError):
        link.deliver_row([(b"7", [b"m"])])
    peer.flow(5, 5, 0, 100)
    assert [(it.delivery_id, it.tag) for it in peer.answers()] == [(5, b"5"), (6, b"6")]
    assert link.unsettled == 7


def test_answers_are_merged_across_calls() -> None:
    """One disposition for a run of equal outcomes, also when an owner settles one by one."""
    peer = Peer().begun()
    link = peer.receiving()
    for number in range(10):
        peer.transfer(number)
    for number in (0, 1, 2, 5, 6, 4):
        link.settle([number], ACCEPTED)
    link.settle([7], RELEASED)
    link.settle([8], RELEASED, settled=False)
    assert [(it.first, it.last, it.settled) for it in peer.answers()] == [
        (0, 2, True), (4, 6, True), (7, 7, True), (8, 8, False),
    ]  # fmt: skip
    assert link.unsettled == 3


def test_deliveries_that_share_an_id() -> None:
    """Coroutines of azure-servicebus that send at once take the same id, and end all that have it
    by one disposition: it comes when the last of them has its outcome, and not for less."""
    peer = Peer().begun()
    one, other = peer.receiving(), peer.receiving(handle=1)
    for handle in (0, 0, 1):
        peer.transfer(7, handle=handle)
    assert (one.unsettled, other.unsettled) == (2, 1)
    one.settle([7], ACCEPTED)
    other.settle([7], ACCEPTED)
    assert peer.answers() == []
    one.settle([7], ACCEPTED)
    assert peer.answer() == Disposition(RECEIVER, 7, 7, True, ACCEPTED)
    assert (one.unsettled, other.unsettled) == (0, 0)
    one.settle([7], ACCEPTED)
    assert peer.answers() == []


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_of_those_that_share_an_id_one_fails(order: tuple[int, ...]) -> None:
    """Then the id failed: its sender sends again what may have been stored, and loses nothing."""
    peer = Peer().begun()
    link = peer.receiving()
    for number in (7, 7, 7, 9):
        peer.transfer(number)
    outcomes = (Rejected(Error("amqp:internal-error")), ACCEPTED, ACCEPTED)
    for which in order:
        link.settle([7, 9] if which == order[-1] else [7], outcomes[which])
    first, second = peer.answers()
    assert first == Disposition(RECEIVER, 7, 7, True, outcomes[0])
    assert second == Disposition(RECEIVER, 9, 9, True, outcomes[order[-1]])


@pytest.mark.parametrize("order", [*permutations(range(3))])
@pytest.mark.parametrize("is_refused", [False, True])
def test_fx24_a_declare_that_shares_its_id(order: tuple[int, ...], is_refused: bool) -> None:
    """Whatever comes first, `accepted` does not stand for the id of a transaction, and that does
    not hide that a message was refused."""
    peer = Peer().begun()
    one, other = peer.receiving(), peer.receiving(handle=1)
    for handle in (0, 1, 0):
        peer.transfer(7, handle=handle)
    declared, refusal = Declared(b"t"), Rejected(Error("amqp:internal-error"))
    outcomes = ((one, ACCEPTED), (other, declared), (one, refusal if is_refused else ACCEPTED))
    for which in order:
        link, outcome = outcomes[which]
        link.settle([7], outcome)
    answer = peer.answer()
    assert (answer.first, answer.last) == (7, 7)
    assert answer.state == (refusal if is_refused else declared)


def test_a_link_that_ends_leaves_those_of_others_that_share_an_id() -> None:
    """The rest of them still gets its answer; and so does the id when it comes again."""
    peer = Peer().begun()
    peer.receiving()
    other = peer.receiving(handle=1)
    for handle in (0, 0, 1):
        peer.transfer(7, handle=handle)
    peer.transfer(8)
    peer.transfer(8)
    peer.send(Detach(0, True))
    peer.answers()
    other.settle([7, 8], ACCEPTED)
    assert peer.answer() == Disposition(RECEIVER, 7, 7, True, ACCEPTED)
    for number in (7, 8):
        peer.transfer(number, handle=1)
    other.settle([7, 8], ACCEPTED)
    assert peer.answer() == Disposition(RECEIVER, 7, 8, True, ACCEPTED)


def test_a_sender_settles_all_that_share_an_id() -> None:
    """Nothing is left unsettled, and nothing is answered."""
    peer = Peer().begun()
    link = peer.receiving()
    for _ in range(3):
        peer.transfer(7)
    peer.disposition(7, role=SENDER, settled=True, state=ACCEPTED)
    assert link.unsettled == 0
    link.settle([7], ACCEPTED)
    assert peer.answers() == []


def test_merging_over_the_wrap() -> None:
    """Ids that wrap are two rows: what counts is that each id is answered once."""
    peer = Peer().begun()
    link = peer.receiving()
    for number in (2**32 - 1, 0, 1):
        peer.transfer(number)
    link.settle([2**32 - 1, 0, 1], ACCEPTED)
    assert peer.answers() == [
        Disposition(RECEIVER, 0, 1, True, ACCEPTED),
        Disposition(RECEIVER, 2**32 - 1, 2**32 - 1, True, ACCEPTED),
    ]


def test_both_roles_do_not_merge() -> None:
    """Equal ids of the two directions are different deliveries."""
    peer = Peer().begun()
    receiving, sending = peer.receiving(handle=0), peer.sending(handle=1)
    peer.transfer(0)
    sending.deliver(b"t", [b"m"])
    sending.deliver(b"t", [b"m"])
    peer.answers()
    receiving.settle([0], ACCEPTED)
    sending.settle([1], ACCEPTED)
    assert [it.role for it in peer.answers()] == [RECEIVER, SENDER]


def test_settling_after_the_end() -> None:
    """An outcome that comes too late is no harm."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(0)
    peer.send(End())
    peer.answers()
    link.settle([0], ACCEPTED)
    link.grant(5)
    link.drained()
    link.detach()
    link.session.end()
    assert peer.answers() == []


def test_receiver_settles_what_waits_for_our_answer() -> None:
    """It does not want to hear from us any more."""
    peer = Peer().begun()
    link = peer.sending()
    for _ in range(3):
        link.deliver(b"t", [b"m"])
    peer.disposition(0, 2, state=ACCEPTED)
    assert len(link.session.answering) == 3
    (event,) = peer.disposition(0, 1, settled=True, state=ACCEPTED)
    assert isinstance(event, Dispositions)
    assert event.deliveries == []
    assert link.unsettled == 1
    peer.disposition(0, 1000, settled=True, state=ACCEPTED)
    assert link.unsettled == 1  # a wide range does not look for it; our answer will come
    peer.answers()
    link.settle([2], ACCEPTED)
    assert link.unsettled == 0
    assert peer.answer().settled


def test_senders_wish_is_noted() -> None:
    """A sender's unsettled disposition changes nothing here."""
    peer = Peer().begun()
    link = peer.receiving()
    peer.transfer(0)
    (event,) = peer.disposition(0, role=SENDER, state=RELEASED)
    assert isinstance(event, Dispositions)
    assert event.deliveries == []
    assert link.unsettled == 1


def test_attach_after_the_end() -> None:
    """A session that is over gives no links."""
    peer = Peer(Role.CLIENT).opened()
    session = peer.connection.begin()
    session.end()
    with pytest.raises(ArgumentError):
        session.attach("x", is_sender=True)


def test_attach_larger_than_the_peers_frames() -> None:
    """A client that does not wait for open has 512 bytes."""
    peer = Peer(Role.CLIENT)
    peer.connection.open()
    session = peer.connection.begin()
    with pytest.raises(ArgumentError):
        session.attach("n" * 600, is_sender=True)
    assert not session.attaching
    assert session.attach("n", is_sender=True).handle == 0


def test_detach_before_the_attach_is_answered() -> None:
    """A client changes its mind; the answer to its attach then opens nothing."""
    peer = Peer(Role.CLIENT).opened()
    session = peer.connection.begin()
    peer.send(Begin(0, 0, 100, 100))
    link = session.attach("l", is_sender=True, target=Target("q"), max_message_size=5)
    link.detach()
    peer.answers()
    assert peer.send(Attach("l", 0, RECEIVER, source=Source(), target=Target("q"))) == []
    assert peer.send(Detach(0, True)) == [LinkDetached(link, None, True, True)]
    assert peer.answers() == []
    assert peer.connection.link_count == 0


def test_end_before_the_attach_is_answered() -> None:
    """The peer ends a session with a link of ours under way."""
    peer = Peer(Role.CLIENT).opened()
    session = peer.connection.begin()
    peer.send(Begin(0, 0, 100, 100))
    link = session.attach("l", is_sender=True)
    peer.send(End())
    assert link.capacity == 0
    assert peer.connection.link_count == 0


def test_handles_are_reused() -> None:
    """The lowest free handle, where the peer's own is taken."""
    peer = Peer(Role.CLIENT).opened()
    session = peer.connection.begin()
    peer.send(Begin(0, 0, 100, 100))
    mine = session.attach("mine", is_sender=True)
    theirs = peer.attach(is_sender=True, handle=0)
    assert (mine.handle, theirs.handle) == (0, 1)


def test_partial_messages_of_an_ended_session() -> None:
    """Their bytes are given back."""
    peer = Peer().begun()
    peer.receiving()
    peer.transfer(0, b"x" * 100, more=True)
    assert peer.connection.partial_bytes == 100
    peer.send(End(Error("a:b")))
    assert peer.connection.partial_bytes == 0


def test_long_reason_of_a_rejection() -> None:
    """It is cut to the peer's frames."""
    peer = Peer()
    peer.opened(max_frame_size=512).begun()
    link = peer.receiving()
    peer.transfer(0)
    link.settle([0], Rejected(Error("com.microsoft:timeout", "x" * 900)))
    assert peer.answer().state == Rejected(Error("com.microsoft:timeout", "x" * 60))


def test_links_of_a_session_that_we_ended_are_reported() -> None:
    """An attach whose refusal does not fit the peer's frames ends the session. The other links of
    it are told about with the peer's end, and can be found until then."""
    peer = Peer().opened(max_frame_size=512)
    peer.send(Begin(None, 0, 10, 10))
    link = peer.receiving()
    peer.send(Attach("n" * 480, 7, RECEIVER, source=Source("q"), target=Target("x")))
    (session,) = peer.connection.sessions
    session.links[7].refuse(Error("amqp:not-found", "text"))
    assert link in session.links.values()
    (ended,) = peer.send(End())
    assert isinstance(ended, SessionEnded)
    assert link in ended.links
    assert not session.links
