"""Transactions over several entities (T17)."""

from __future__ import annotations

import pytest

from tandembus import limits
from tandembus.core.commands import Declare, Discharge, Disposition, Settle
from tandembus.core.state import State
from tandembus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    MessageLockLostError,
    MessageSizeExceededError,
    NotAllowedError,
    QuotaExceededError,
    Refused,
    ServerBusyError,
    TransactionUnknownError,
)
from tandembus.model import Edits
from tandembus.settings import EntityStatus
from tests.unit.core.world import MINUTE, World, facts, heavy, message, settling, states

ROOMY_KB = 102_400
PIECE = heavy(100 << 20)


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of `heavy` only say that they are large, and so take no memory."""
    monkeypatch.setattr(limits, "MAX_TRANSACTION_BYTES", 1 << 40)
    monkeypatch.setattr(limits, "MAX_ALL_TRANSACTION_BYTES", 1 << 40)


@pytest.fixture
def busy(lived: World) -> World:
    """A queue `in` with three messages, a queue `out`, a topic `t` with one subscription."""
    lived.queue("in")
    lived.queue("out")
    lived.topic("t")
    lived.subscription("t", "s")
    lived.send("in", *"abc")
    return lived


@pytest.mark.req("T17")
def test_all_of_it_at_once(busy: World) -> None:
    """Receive, settle in every way, send to two entities: before the end nothing shows, then
    everything does, in the order in which it was asked."""
    first, second, third = busy.receive("in", 3)
    transaction = busy.do(Declare())
    before = facts(busy.namespace)
    for command in (
        settling("in", Disposition.COMPLETE, first, transaction=transaction),
        busy.sending("out", "x", "y", transaction=transaction),
        settling("in", Disposition.ABANDON, second, edits=Edits({"n": 1}), transaction=transaction),
        busy.sending("t", "z", transaction=transaction),
        settling("in", Disposition.DEAD_LETTER, third, transaction=transaction),
        busy.sending("out", "later", scheduled_ms=busy.now + MINUTE, transaction=transaction),
    ):
        busy.do(command)
    assert facts(busy.namespace) == before
    busy.do(Discharge(transaction))
    busy.lull()
    assert busy.waiting("in") == ["b"]
    assert busy.read(busy.receive_one("in")).properties["n"] == 1
    assert [body for body, _ in busy.dead_reasons("in")] == ["c"]
    assert busy.waiting("out") == ["x", "y", "later"]
    assert busy.waiting("t/Subscriptions/s") == ["z"]


@pytest.mark.req("T17")
def test_rolled_back(busy: World) -> None:
    """Nothing has happened; what was locked is still locked, and can be settled."""
    locked = busy.receive_one("in")
    transaction = busy.do(Declare())
    before = facts(busy.namespace)
    busy.do(busy.sending("out", "x", transaction=transaction))
    busy.do(settling("in", Disposition.COMPLETE, locked, transaction=transaction))
    busy.do(Discharge(transaction, fail=True))
    assert facts(busy.namespace) == before
    assert states(busy.browse("in"))[0] is State.LOCKED
    busy.complete("in", locked)
    busy.lull()
    assert busy.waiting("in") == ["b", "c"]
    assert busy.send("out", "y") == [1]


@pytest.mark.req("T17")
def test_a_lock_lost_before_the_end(busy: World) -> None:
    """Refuses the whole: no message is sent for a message that somebody else may have now."""
    locked = busy.receive_one("in")
    transaction = busy.do(Declare())
    busy.do(busy.sending("out", "x", transaction=transaction))
    busy.do(settling("in", Disposition.COMPLETE, locked, transaction=transaction))
    busy.wait(MINUTE)
    busy.refused(MessageLockLostError, Discharge(transaction))
    busy.lull()
    assert busy.waiting("out") == []
    assert busy.waiting("in") == ["a", "b", "c"]
    busy.refused(TransactionUnknownError, Discharge(transaction))


@pytest.mark.req("T17", "T11")
def test_settled_elsewhere_before_the_end(world: World) -> None:
    """Outside of it, or in another transaction: the first one wins, the other is refused."""
    world.queue("q")
    world.send("q", "a", "b")
    first, second = world.receive("q", 2)
    one, other = world.do(Declare()), world.do(Declare())
    for transaction in (one, other):
        world.do(settling("q", Disposition.COMPLETE, first, transaction=transaction))
    world.do(settling("q", Disposition.COMPLETE, second, transaction=other))
    world.do(Discharge(one))
    world.refused(MessageLockLostError, Discharge(other))
    assert world.waiting("q") == ["b"]


@pytest.mark.req("T17", "T11")
def test_settled_twice_within(world: World) -> None:
    """Refused as a whole."""
    world.queue("q")
    world.send("q", "a")
    locked = world.receive_one("q")
    transaction = world.do(Declare())
    for disposition in (Disposition.COMPLETE, Disposition.ABANDON):
        world.do(settling("q", disposition, locked, transaction=transaction))
    world.refused(Refused, Discharge(transaction))
    assert states(world.browse("q")) == [State.LOCKED]


@pytest.mark.req("T17", "T11")
def test_settled_twice_and_a_lock_lost(world: World) -> None:
    """Of two reasons to refuse it, the one that no retry mends is told (seed 284085540)."""
    world.queue("q")
    world.send("q", "a", "b")
    first, second = world.receive("q", 2)
    transaction = world.do(Declare())
    world.do(settling("q", Disposition.DEFER, first, transaction=transaction))
    world.do(settling("q", Disposition.COMPLETE, first, second, transaction=transaction))
    world.do(settling("q", Disposition.COMPLETE, second))
    world.refused(NotAllowedError, Discharge(transaction))


@pytest.mark.req("T17")
def test_two_minutes(busy: World) -> None:
    """Then it is over, as if rolled back, and can be neither added to nor discharged."""
    early, late = busy.do(Declare()), None
    busy.do(busy.sending("out", "x", transaction=early))
    busy.wait(MINUTE)
    late = busy.do(Declare())
    busy.do(busy.sending("out", "y", transaction=late))
    busy.wait(MINUTE - 1)
    busy.do(busy.sending("out", "x", transaction=early))
    busy.now += 1
    busy.refused(TransactionUnknownError, busy.sending("out", "x", transaction=early))
    busy.refused(TransactionUnknownError, Discharge(early))
    busy.tick()
    busy.refused(TransactionUnknownError, Discharge(early))
    busy.do(Discharge(late))
    assert busy.waiting("out") == ["y"]


@pytest.mark.req("T17")
def test_a_hundred_messages(busy: World) -> None:
    """Sent and settled together; one more is refused, and the hundred can still be done."""
    transaction = busy.do(Declare())
    locked = busy.receive("in", 3)
    each = message("x")
    busy.do(settling("in", Disposition.COMPLETE, *locked, transaction=transaction))
    busy.do(busy.sending("out", *[each] * 97, transaction=transaction))
    error = busy.refused(NotAllowedError, busy.sending("out", "y", transaction=transaction))
    assert "Can't send more than 100 messages in a single transaction" in str(error)
    busy.do(Discharge(transaction))
    busy.lull()
    assert busy.waiting("out") == ["x"] * 97
    assert busy.waiting("in") == []


@pytest.mark.req("T17")
def test_what_is_refused_at_once_does_not_spoil_it(world: World) -> None:
    """A part that cannot be is refused when it is asked for; the other parts stay."""
    world.queue("q")
    transaction = world.do(Declare())
    world.do(world.sending("q", "a", transaction=transaction))
    too_large = world.sending("q", heavy(1 << 20), transaction=transaction)
    world.refused(MessageSizeExceededError, too_large)
    world.refused(EntityNotFoundError, world.sending("unknown", "x", transaction=transaction))
    world.refused(TransactionUnknownError, world.sending("q", "x", transaction=99))
    world.do(Discharge(transaction))
    assert world.waiting("q") == ["a"]


@pytest.mark.req("T17")
@pytest.mark.parametrize("why", ["deleted", "disabled", "full", "too full together"])
def test_refused_at_the_end(world: World, why: str) -> None:
    """What changed meanwhile refuses the whole; nothing of it is done."""
    world.queue("fine")
    world.queue("q", max_message_size_kb=ROOMY_KB)
    transaction = world.do(Declare())
    world.do(world.sending("fine", "a", transaction=transaction))
    for _ in range(6 if why == "too full together" else 1):
        world.do(world.sending("q", PIECE, PIECE, transaction=transaction))
    error: type[Refused] = QuotaExceededError
    if why == "deleted":
        world.delete("q")
        error = EntityNotFoundError
    elif why == "disabled":
        world.update("q", status=EntityStatus.DISABLED)
        error = EntityDisabledError
    elif why == "full":
        world.send("q", *[PIECE] * 9)
    world.refused(error, Discharge(transaction))
    assert world.waiting("fine") == []
    assert world.send("fine", "b") == [1]


@pytest.mark.req("T17")
def test_a_forward_inside_the_transaction_fills_the_target(world: World) -> None:
    """All or nothing also if one part makes another one's target full: it must not stop in the
    middle."""
    world.queue("b", max_message_size_kb=ROOMY_KB)
    world.queue("a", max_message_size_kb=ROOMY_KB, forward_to="b")
    world.send("b", *[PIECE] * 9)
    transaction = world.do(Declare())
    world.do(world.sending("a", PIECE, transaction=transaction))
    world.do(world.sending("b", PIECE, transaction=transaction))
    try:
        world.do(Discharge(transaction))
    except QuotaExceededError:
        assert len(world.waiting("b")) == 9
        assert world.dead("a") == []
    else:
        assert len(world.waiting("b")) + len(world.dead("a")) == 11
    world.restart()


@pytest.mark.req("T17")
def test_forgotten_by_a_restart(world: World) -> None:
    """An open transaction leaves no trace."""
    world.queue("q")
    transaction = world.do(Declare())
    world.do(world.sending("q", "a", transaction=transaction))
    world.restart()
    world.refused(TransactionUnknownError, Discharge(transaction))
    assert world.waiting("q") == []
    assert world.send("q", "b") == [1]


@pytest.mark.req("T17", "T14")
def test_under_a_sessions_lock(world: World) -> None:
    """A session's messages can be settled in a transaction while the session is held."""
    world.queue("q", requires_session=True)
    world.send("q", "a", "b", session_id="s")
    accepted = world.accept_session("q", "s")
    first, second = world.take(accepted.link, 2)
    done, lost = world.do(Declare()), world.do(Declare())
    world.do(settling("q", Disposition.COMPLETE, first, transaction=done))
    world.do(settling("q", Disposition.COMPLETE, second, transaction=lost))
    world.do(Discharge(done))
    world.detach(accepted.link)
    world.refused(Refused, Discharge(lost))
    assert world.waiting("q") == ["b"]


def test_the_number_of_transactions_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgotten ones are dropped after two minutes, and make room."""
    monkeypatch.setattr(limits, "MAX_OPEN_TRANSACTIONS", 3)
    for _ in range(3):
        world.do(Declare())
    world.refused(QuotaExceededError, Declare())
    world.wait(2 * MINUTE)
    world.do(Declare())


def test_an_unknown_transaction(world: World) -> None:
    """Is over, or never was."""
    world.refused(TransactionUnknownError, Discharge(1))
    transaction = world.do(Declare())
    world.do(Discharge(transaction))
    world.refused(TransactionUnknownError, Discharge(transaction))


@pytest.mark.req("T17", "P11")
def test_what_open_transactions_hold_has_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one owner, and of all; bodies, session states, properties to modify. What is discharged,
    or whose time is over, does not count any more."""
    monkeypatch.setattr(limits, "MAX_TRANSACTION_BYTES", 20_000)
    monkeypatch.setattr(limits, "MAX_ALL_TRANSACTION_BYTES", 50_000)
    world.queue("q")
    world.queue("s", requires_session=True)
    world.send("q", "x")
    (delivery,) = world.receive("q", 1)
    assert delivery.token is not None
    large = "x" * 9_000
    one, other = world.do(Declare(1)), world.do(Declare(1))
    world.do(world.sending("q", large, transaction=one))
    world.do(world.sending("q", large, transaction=other))
    world.refused(ServerBusyError, world.sending("q", large, transaction=other))
    edits = Edits({"p": large})
    settle = Settle("q", [delivery.token], Disposition.ABANDON, edits, transaction=one)
    world.refused(ServerBusyError, settle)
    others = [world.do(Declare(owner)) for owner in (2, 3, 4)]
    for number in others:
        world.do(world.sending("q", large, transaction=number))
    world.refused(ServerBusyError, world.sending("q", large, transaction=others[0]))
    world.do(Discharge(one, fail=True))
    world.do(Settle("q", [delivery.token], Disposition.ABANDON, transaction=other))
    world.do(world.sending("q", large, transaction=others[0]))
    world.wait(limits.TRANSACTION_TIMEOUT_MS + 1)
    world.do(Declare(1))
    assert not world.namespace._transactions._bytes
