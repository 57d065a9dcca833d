"""Sessions: one holder at a time, in order, with a state (T14)."""

from __future__ import annotations

import pytest

from tandembus.changes import Mode
from tandembus.core.commands import (
    NEXT_SESSION,
    Attach,
    Disposition,
    Flow,
    GetSessionState,
    ListSessions,
    RenewSession,
    SetSessionState,
)
from tandembus.core.session_rows import key_of
from tandembus.core.state import State
from tandembus.errors import (
    ArgumentError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    NotAllowedError,
    OperationTimeoutError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from tandembus.limits import MAX_SESSION_STATE
from tests.unit.core.world import HOUR, MINUTE, SECOND, World, numbers, settling, states

LOST = (MessageLockLostError, SessionLockLostError)


@pytest.fixture
def sessions(lived: World) -> World:
    """A queue with a1 b1 a2 b2 a3, of the sessions a and b."""
    lived.queue("q", requires_session=True)
    for body in ("a1", "b1", "a2", "b2", "a3"):
        lived.send("q", body, session_id=body[0])
    lived.lull()
    return lived


# --- who holds it ---------------------------------------------------------------------------------


@pytest.mark.req("T14")
def test_fifo_within_the_session(sessions: World) -> None:
    """A holder gets its session's messages in order, and no other's."""
    accepted = sessions.accept_session("q", "a")
    assert accepted.locked_until_ms == sessions.now + MINUTE
    received = sessions.take(accepted.link, 9)
    assert sessions.texts(received) == ["a1", "a2", "a3"]
    assert {each.session_id for each in received} == {"a"}
    assert {each.locked_until_ms for each in received} == {accepted.locked_until_ms}
    sessions.send("q", "a4", session_id="a")
    assert sessions.texts(sessions.take(accepted.link, 9)) == ["a4"]


@pytest.mark.req("T14")
def test_one_holder_at_a_time(sessions: World) -> None:
    """Another link cannot have it until the holder gives it up; other sessions it can."""
    first = sessions.accept_session("q", "a")
    sessions.refused(SessionCannotBeLockedError, Attach(99, "q", session="a"))
    assert sessions.accept_session("q", "b").session_id == "b"
    sessions.detach(first.link)
    assert sessions.accept_session("q", "a").session_id == "a"


@pytest.mark.req("T14")
def test_closing_gives_back_without_penalty(sessions: World) -> None:
    """What the holder had unsettled is there for the next one at once, in order, uncounted."""
    accepted = sessions.accept_session("q", "a")
    first, second, _ = sessions.take(accepted.link, 3)
    sessions.complete("q", first)
    sessions.detach(accepted.link)
    with pytest.raises(LOST):
        sessions.complete("q", second)
    again = sessions.accept_session("q", "a")
    received = sessions.take(again.link, 9)
    assert sessions.texts(received) == ["a2", "a3"]
    assert [each.delivery_count for each in received] == [0, 0]


@pytest.mark.req("T14", "T11")
def test_a_lock_that_runs_out(sessions: World) -> None:
    """The holder's link is closed with session-lock-lost; its messages count one delivery more; the
    holder can settle nothing any more."""
    accepted = sessions.accept_session("q", "a")
    first, second = sessions.take(accepted.link, 2)
    sessions.complete("q", first)
    sessions.wait(MINUTE)
    (closed,) = sessions.closed
    assert closed.link == accepted.link
    assert isinstance(closed.error, SessionLockLostError)
    with pytest.raises(LOST):
        sessions.complete("q", second)
    sessions.refused(NotAllowedError, Flow(accepted.link, 1, 1))
    received = sessions.take(sessions.accept_session("q", "a").link, 9)
    assert sessions.texts(received) == ["a2", "a3"]
    assert [each.delivery_count for each in received] == [1, 0]


@pytest.mark.req("T14")
def test_a_late_tick(sessions: World) -> None:
    """The lock is over at its time even if the broker looks later: another link can have the
    session, and the old holder is told."""
    accepted = sessions.accept_session("q", "a")
    (first,) = sessions.take(accepted.link)
    sessions.now += MINUTE
    sessions.refused(SessionLockLostError, settling("q", Disposition.COMPLETE, first))
    sessions.refused(SessionLockLostError, RenewSession("q", "a", accepted.link))
    other = sessions.accept_session("q", "a")
    assert [closed.link for closed in sessions.closed] == [accepted.link]
    received = sessions.take(other.link, 9)
    assert sessions.texts(received) == ["a1", "a2", "a3"]
    assert [each.delivery_count for each in received] == [1, 0, 0]
    with pytest.raises(LOST):
        sessions.complete("q", first)


@pytest.mark.req("T14")
def test_renewing(sessions: World) -> None:
    """Only by the link that holds it; it prolongs the hold on the messages too."""
    accepted = sessions.accept_session("q", "a")
    (first,) = sessions.take(accepted.link)
    for _ in range(10):
        sessions.wait(59 * SECOND)
        until = sessions.do(RenewSession("q", "a", accepted.link))
        assert until == sessions.now + MINUTE
    for session, link in (("a", 99), ("b", accepted.link), ("unknown", accepted.link)):
        sessions.refused(SessionLockLostError, RenewSession("q", session, link))
    sessions.complete("q", first)
    sessions.wait(MINUTE)
    sessions.refused(SessionLockLostError, RenewSession("q", "a", accepted.link))


@pytest.mark.req("T14", "T9")
def test_settling_under_the_sessions_lock(sessions: World) -> None:
    """Every way of settling; an abandoned message is the next one again."""
    accepted = sessions.accept_session("q", "a")
    first, second, third = sessions.take(accepted.link, 3)
    sessions.abandon("q", first)
    (again,) = sessions.take(accepted.link)
    assert sessions.read(again).body == "a1"
    assert again.delivery_count == 1
    sessions.release("q", again)
    sessions.complete("q", *sessions.take(accepted.link))
    sessions.dead_letter("q", second, reason="why")
    sessions.defer("q", third)
    sessions.lull()
    assert sessions.dead_reasons("q") == [("a2", "why")]
    assert sessions.texts(sessions.browse("q", session="a")) == ["a3"]


@pytest.mark.req("T14", "T8")
def test_dead_letters_of_sessions_need_none(sessions: World) -> None:
    """The dead-letter queue is read by a receiver without a session (PRODUCT.md B.4); the session
    id is still on the message."""
    accepted = sessions.accept_session("q", "a")
    for _ in range(10):
        sessions.abandon("q", *sessions.take(accepted.link))
    sessions.detach(accepted.link)
    sessions.lull()
    (dead,) = sessions.receive("q/$DeadLetterQueue")
    seen = sessions.read(dead)
    assert (seen.body, seen.message.session_id) == ("a1", "a")
    assert seen.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    with pytest.raises(NotAllowedError):
        sessions.accept_session("q/$DeadLetterQueue", "a")


@pytest.mark.req("T14", "T10")
def test_deferred_in_a_session(sessions: World) -> None:
    """Received by number, but only by the session's holder."""
    accepted = sessions.accept_session("q", "a")
    sessions.defer("q", *sessions.take(accepted.link))
    sessions.detach(accepted.link)
    sessions.lull()
    holder = sessions.accept_session("q", "a")
    other = sessions.accept_session("q", "b")
    for command in (
        sessions.receiving_deferred("q", 1),
        sessions.receiving_deferred("q", 1, session="b", link=other.link),
    ):
        sessions.refused(MessageNotFoundError, command)
    sessions.refused(
        SessionLockLostError, sessions.receiving_deferred("q", 1, session="a", link=other.link)
    )
    (deferred,) = sessions.receive_deferred("q", 1, session="a", link=holder.link)
    assert deferred.locked_until_ms == holder.locked_until_ms
    sessions.detach(holder.link)
    assert sessions.browse("q")[0].state is State.DEFERRED
    again = sessions.accept_session("q", "a")
    (deferred,) = sessions.receive_deferred("q", 1, session="a", link=again.link)
    assert deferred.delivery_count == 1
    sessions.complete("q", deferred)


@pytest.mark.req("T14", "T5")
def test_receive_and_delete_in_a_session(sessions: World) -> None:
    """Gone as they are sent."""
    link = sessions.attach("q", Mode.RECEIVE_AND_DELETE, session="a")
    assert sessions.texts(sessions.take(link, 2)) == ["a1", "a2"]
    sessions.lull()
    assert sessions.waiting("q") == ["b1", "b2", "a3"]


@pytest.mark.req("T14")
def test_a_restart_ends_every_session_lock(world: World) -> None:
    """As if it ran out; the state stays."""
    world.queue("q", requires_session=True)
    world.send("q", "a1", "a2", session_id="a")
    accepted = world.accept_session("q", "a")
    world.take(accepted.link)
    world.do(SetSessionState("q", "a", b"state", accepted.link))
    for life in range(1, 4):
        world.restart()
        world.refused(SessionLockLostError, RenewSession("q", "a", accepted.link))
        accepted = world.accept_session("q", "a")
        assert world.do(GetSessionState("q", "a", accepted.link)) == b"state"
        received = world.take(accepted.link)
        assert world.texts(received) == ["a1"]
        assert received[0].delivery_count == life


# --- which session --------------------------------------------------------------------------------


@pytest.mark.req("T14")
def test_the_next_available_session(sessions: World) -> None:
    """Unlocked, with something to deliver; those that wait longest first."""
    first, second = sessions.accept_session("q"), sessions.accept_session("q")
    assert (first.session_id, second.session_id) == ("a", "b")
    sessions.send("q", "c1", session_id="c")
    assert sessions.accept_session("q").session_id == "c"
    sessions.complete("q", *sessions.take(second.link, 9))
    sessions.detach(second.link)
    sessions.detach(first.link)
    assert sessions.accept_session("q").session_id == "a"


@pytest.mark.req("T14")
def test_waiting_for_a_session(sessions: World) -> None:
    """A link that waits gets the first session that becomes available, in the order of waiting."""
    holders = [sessions.accept_session("q"), sessions.accept_session("q")]
    waiting = [sessions.attach("q", session=NEXT_SESSION) for _ in range(3)]
    assert sessions.granted == []
    sessions.send("q", "c1", session_id="c")
    sessions.detach(holders[0].link)
    sessions.wait(30 * SECOND)
    assert [(g.link, g.session_id) for g in sessions.granted] == [
        (waiting[0], "c"),
        (waiting[1], "a"),
    ]
    assert sessions.granted[1].locked_until_ms == sessions.now - 30 * SECOND + MINUTE
    assert sessions.texts(sessions.take(waiting[1], 9)) == ["a1", "a2", "a3"]
    for session, link in (("c", waiting[0]), ("a", waiting[1])):
        sessions.do(RenewSession("q", session, link))
    sessions.wait(30 * SECOND)
    assert (sessions.granted[2].link, sessions.granted[2].session_id) == (waiting[2], "b")


@pytest.mark.req("T14")
def test_waiting_in_vain(world: World) -> None:
    """After its time the link is closed with a timeout; one that is gone is forgotten."""
    world.queue("q", requires_session=True)
    first = world.attach("q", session=NEXT_SESSION, timeout_ms=10 * SECOND)
    gone = world.attach("q", session=NEXT_SESSION, timeout_ms=10 * SECOND)
    world.detach(gone)
    world.wait(10 * SECOND - 1)
    assert world.closed == []
    world.wait(1)
    (closed,) = world.closed
    assert closed.link == first
    assert isinstance(closed.error, OperationTimeoutError)
    world.send("q", "a", session_id="s")
    assert world.granted == []
    assert world.accept_session("q").session_id == "s"


@pytest.mark.req("T14")
def test_an_empty_session_can_be_accepted_by_name(lived: World) -> None:
    """It has nothing to deliver yet; what comes goes to its holder. Unheld, it leaves no trace."""
    lived.queue("q", requires_session=True)
    accepted = lived.accept_session("q", "new")
    lived.offer(accepted.link, 1)
    lived.send("q", "a", session_id="new")
    (delivery,) = lived.arrived(accepted.link)
    lived.complete("q", delivery)
    lived.detach(accepted.link)
    lived.lull()
    assert lived.do(ListSessions("q")) == ()
    sessions = lived["q"].sessions
    assert sessions is not None
    assert len(sessions) == 0


@pytest.mark.req("T14")
def test_the_empty_text_is_a_session_id(lived: World) -> None:
    """Only no id is no session (WIRE.md §4.3)."""
    lived.queue("q", requires_session=True)
    lived.send("q", "a", session_id="")
    lived.lull()
    accepted = lived.accept_session("q")
    assert accepted.session_id == ""
    assert lived.texts(lived.take(accepted.link)) == ["a"]


@pytest.mark.req("T14")
def test_sessions_and_receivers_must_match(world: World) -> None:
    """No plain receiver on a session queue, no session receiver on a plain one."""
    world.queue("s", requires_session=True)
    world.queue("plain")
    world.refused(NotAllowedError, Attach(1, "s"), "non-sessionful")
    world.refused(NotAllowedError, Attach(1, "plain", session="a"), "sessionful")
    world.refused(NotAllowedError, Attach(1, "plain", session=NEXT_SESSION))
    world.refused(NotAllowedError, world.sending("s", "a"), "session identifier is null")
    world.refused(ArgumentError, world.sending("s", "a", session_id="x" * 129), "SessionId")
    world.send("plain", "a", session_id="just data")
    assert world.read(world.receive_one("plain")).message.session_id == "just data"


@pytest.mark.req("T14")
def test_session_in_a_partitioned_queue(lived: World) -> None:
    """All its messages are in one partition, so in order."""
    lived.queue("q", requires_session=True, enable_partitioning=True)
    for n in range(30):
        lived.send("q", str(n), session_id=f"s{n % 3}")
    lived.lull()
    for at in range(3):
        accepted = lived.accept_session("q")
        received = lived.take(accepted.link, 99)
        assert lived.texts(received) == [str(n) for n in range(at, 30, 3)]
        assert numbers(received) == sorted(numbers(received))


@pytest.mark.req("T14", "T16")
def test_a_subscription_with_sessions(lived: World) -> None:
    """The same; what has no session id goes to its dead-letter queue and says why."""
    lived.topic("t")
    path = lived.subscription("t", "s", requires_session=True)
    lived.send("t", "a", session_id="x")
    lived.send("t", "b")
    lived.lull()
    accepted = lived.accept_session(path)
    assert lived.texts(lived.take(accepted.link, 9)) == ["a"]
    ((body, reason, description),) = lived.dead(path)
    assert (body, reason) == ("b", "Session ID is null.")
    assert description == (
        "Session enabled entity doesn't allow a message whose session identifier is null."
    )


@pytest.mark.req("T14", "T17")
def test_request_and_reply(lived: World) -> None:
    """Each asker waits in a session of its own; the answerer needs only what is on the request:
    ReplyTo, ReplyToSessionId and MessageId, which becomes the CorrelationId."""
    lived.queue("requests")
    lived.queue("replies", requires_session=True)
    for asker in ("x", "y"):
        lived.send(
            "requests",
            f"question of {asker}",
            message_id=f"id of {asker}",
            reply_to="replies",
            reply_to_session_id=asker,
        )
    lived.lull()
    for delivery in reversed(lived.receive("requests", 9)):
        asked = lived.read(delivery)
        assert asked.message.reply_to is not None
        lived.send(
            asked.message.reply_to,
            asked.body.replace("question of", "answer for"),
            correlation_id=asked.message.message_id,
            session_id=asked.message.reply_to_session_id,
        )
        lived.complete("requests", delivery)
    lived.lull()
    for asker in ("x", "y"):
        accepted = lived.accept_session("replies", asker)
        (delivery,) = lived.take(accepted.link, 9)
        answer = lived.read(delivery)
        assert answer.body == f"answer for {asker}"
        assert answer.message.correlation_id == f"id of {asker}"


# --- the state ------------------------------------------------------------------------------------


@pytest.mark.req("T14")
def test_the_state(sessions: World) -> None:
    """Set and read by the holder alone; it outlives holders, messages and restarts; None clears
    it."""
    accepted = sessions.accept_session("q", "a")
    assert sessions.do(GetSessionState("q", "a", accepted.link)) is None
    sessions.do(SetSessionState("q", "a", b"\x00step 1", accepted.link))
    sessions.complete("q", *sessions.take(accepted.link, 9))
    sessions.detach(accepted.link)
    sessions.lull()
    sessions.refused(SessionLockLostError, GetSessionState("q", "a", accepted.link))
    sessions.refused(SessionLockLostError, SetSessionState("q", "a", b"x", accepted.link))
    again = sessions.accept_session("q", "a")
    assert sessions.do(GetSessionState("q", "a", again.link)) == b"\x00step 1"
    sessions.refused(SessionLockLostError, GetSessionState("q", "a", 99))
    sessions.do(SetSessionState("q", "a", b"", again.link))
    assert sessions.do(GetSessionState("q", "a", again.link)) == b""
    sessions.do(SetSessionState("q", "a", None, again.link))
    sessions.detach(again.link)
    sessions.lull()
    assert sessions.do(ListSessions("q")) == ("b",)


@pytest.mark.req("T14")
def test_the_state_has_a_size(sessions: World) -> None:
    """256 KB: what a message can have."""
    accepted = sessions.accept_session("q", "a")
    largest = b"x" * MAX_SESSION_STATE
    sessions.do(SetSessionState("q", "a", largest, accepted.link))
    sessions.refused(
        MessageSizeExceededError, SetSessionState("q", "a", largest + b"x", accepted.link)
    )
    assert sessions.do(GetSessionState("q", "a", accepted.link)) == largest


@pytest.mark.req("T14")
def test_listing_sessions(sessions: World) -> None:
    """By name, page by page: those with messages or a state; or those whose state was set after a
    time."""
    for session in ("c", "d"):
        accepted = sessions.accept_session("q", session)
        sessions.do(SetSessionState("q", session, b"x", accepted.link))
        sessions.detach(accepted.link)
        sessions.wait(HOUR)
    sessions.lull()
    assert sessions.do(ListSessions("q")) == ("a", "b", "c", "d")
    assert sessions.do(ListSessions("q", skip=1, top=2)) == ("b", "c")
    assert sessions.do(ListSessions("q", updated_after_ms=0)) == ("c", "d")
    late = sessions.now - HOUR - 1
    assert sessions.do(ListSessions("q", updated_after_ms=late)) == ("d",)
    sessions.queue("plain")
    sessions.refused(NotAllowedError, ListSessions("plain"))


def test_a_session_with_only_a_locked_message_is_listed(sessions: World) -> None:
    """An active message is one that waits or is locked."""
    accepted = sessions.accept_session("q", "b")
    sessions.take(accepted.link, 9)
    assert sessions.do(ListSessions("q")) == ("a", "b")
    assert states(sessions.browse("q", session="b")) == [State.LOCKED, State.LOCKED]


@pytest.mark.req("T14")
@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("Abc", "aBC", True),
        ("\u00c4", "\u00e4", True),
        ("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c2", True),
        ("\u0130", "i\u0307", False),
        ("\u0131", "i", False),
        ("\u212a", "k", False),
        ("stra\u00dfe", "STRASSE", False),
    ],
)
def test_fx19_ids_are_compared_letter_by_letter(one: str, other: str, are_same: bool) -> None:
    """As .NET does it, without regard to case: no letter is two, and none beyond ASCII is one of
    ASCII."""
    assert (key_of(one) == key_of(other)) is are_same
