"""`engine/engine.py`: what leaves when, back-pressure, failure."""

from __future__ import annotations

import pytest

from tandembus.changes import Delivered, Enqueued, Mode, Removed, Started
from tandembus.core.commands import (
    Browse,
    CreateQueue,
    Declare,
    DeleteEntity,
    Discharge,
    Disposition,
    Flow,
    Send,
    Settle,
    UpdateEntity,
)
from tandembus.core.effects import Deliver
from tandembus.engine.engine import LATE_READ_MS, RIDE_ALONG_MS, Tuning
from tandembus.engine.recovery import recover
from tandembus.errors import (
    CorruptLogError,
    EntityNotFoundError,
    MessageLockLostError,
    ProtocolError,
    Refused,
    ServerBusyError,
    StoreError,
)
from tandembus.limits import KIB
from tandembus.model import NEVER
from tandembus.settings import QueueSettings
from tandembus.store.memory import MemoryStore
from tandembus.store.records import decode_group
from tests.unit.engine.world import FaultyStore, Plain, World


def groups(world: World) -> list[list[object]]:
    """The changes in the log, group by group."""
    return [
        [change for change, _ in decode_group(group.body, place=group.place)]
        for group in world.store.replay(world.store.start)
    ]


# --- nothing leaves before it is on disk ----------------------------------------------------------


@pytest.mark.req("T1")
def test_an_answer_waits_for_its_group() -> None:
    world = World()
    world.queue()
    replies = world.submit(Send("q", [Plain(b"hello")]))
    assert not replies
    world.engine.flush()
    assert not replies, "handed to the disk is not durable"
    world.commits.step()
    assert replies == [[1]]


def test_nothing_is_served_before_the_start_is_durable() -> None:
    """Even a refusal waits for the record that ends the locks of the former life."""
    world = World()
    replies = world.submit(DeleteEntity("nowhere"))
    assert not replies
    world.commit()
    assert isinstance(replies[0], EntityNotFoundError)
    assert type(groups(world)[0][0]) is Started


def test_a_delivery_of_a_message_waits_until_that_message_is_durable() -> None:
    """A waiting receiver does not get what a power cut could still take back."""
    world = World()
    world.queue()
    world.attach(1)
    world.flow(1, 10)
    world.submit(Send("q", [Plain(b"hello")]))
    assert not world.effects
    world.commit()
    (delivery,) = world.delivered()
    assert world.engine.body(delivery.body) == b"hello"


def test_a_delivery_of_durable_messages_wakes_nobody() -> None:
    """It goes out at once; its record rides along with the next group."""
    world = World()
    world.queue()
    world.send(b"one", b"two")
    world.attach(1)
    commits = world.engine.metrics.commits
    world.flow(1, 1)
    assert len(world.delivered()) == 1, "at once, without a step of the lane"
    world.engine.flush()
    assert not world.commits, "and nothing was handed to the disk"
    world.send(b"three")
    assert world.engine.metrics.commits == commits + 1
    assert [type(change) for change in groups(world)[-1]][-2:] == [Delivered, Enqueued]


class LeasedStore(MemoryStore):
    """One that another process could have taken over."""

    is_sure = True


@pytest.mark.req("C6")
def test_what_rides_along_waits_where_another_may_have_taken_over() -> None:
    """A process that was stopped for longer than its lease hands out nothing before an append has
    shown that the log still is its own: another one may have had the same message completed."""
    store = LeasedStore()
    world = World(store)
    world.queue()
    world.send(b"one", b"two", b"three")
    world.attach(1)
    world.flow(1, 1)
    assert len(world.delivered()) == 1, "at once, while it is sure"
    store.is_sure = False
    world.flow(1, 1)
    assert not world.delivered()
    world.engine.flush()
    world.settle()
    assert len(world.delivered()) == 1, "the append was not refused"
    store.fail("taken over")
    world.flow(1, 1)
    world.engine.flush()
    world.settle()
    assert world.failures
    assert not world.delivered()


def test_what_rides_along_is_written_soon() -> None:
    world = World()
    world.queue()
    world.send(b"one")
    world.attach(1)
    world.engine.tick()
    world.settle()
    world.flow(1, 1)
    begun = world.clock.now_ms()
    assert world.engine.next_deadline() == begun + RIDE_ALONG_MS
    world.clock.advance(RIDE_ALONG_MS - 1)
    world.engine.tick()
    assert not world.commits
    world.clock.advance(1)
    world.engine.tick()
    world.settle()
    assert type(groups(world)[-1][-1]) is Delivered
    assert world.engine.next_deadline() > world.clock.now_ms()


def test_who_has_settled_itself_waits_for_no_disk() -> None:
    """A complete that nobody waits for wakes nobody; until it is durable its body stays, because a
    crash may bring the message back."""
    world = World()
    world.queue()
    world.send(b"one")
    world.attach(1)
    (delivery,) = world.receive(1, 1)
    assert delivery.token is not None
    command = Settle("q", (delivery.token,), Disposition.COMPLETE, is_awaited=False)
    assert world.submit(command) == [None], "at once"
    world.engine.flush()
    assert not world.commits
    world.clock.advance(LATE_READ_MS)
    assert world.engine.body(delivery.body) == b"one"

    assert recover(world.store).namespace.find("q").active_count == 1, "as after a crash"

    world.engine.tick()
    world.settle()
    assert type(groups(world)[-1][-1]) is Removed
    assert world.engine._freed_numbers() == [delivery.body]
    world.clock.advance(LATE_READ_MS)
    world.send(b"two")
    with pytest.raises(KeyError):
        world.engine.body(delivery.body)


@pytest.mark.req("T5")
def test_receive_and_delete_waits_for_the_disk() -> None:
    """At most once: what is handed out must not come back after a crash."""
    world = World()
    world.queue()
    world.send(b"one")
    world.attach(1, mode=Mode.RECEIVE_AND_DELETE)
    world.flow(1, 1)
    assert not world.effects
    world.commit()
    (delivery,) = world.delivered()
    assert world.engine.body(delivery.body) == b"one", "it is gone, but it can be read for a while"
    world.clock.advance(LATE_READ_MS)
    world.send(b"two")
    with pytest.raises(KeyError):
        world.engine.body(delivery.body)


def test_answers_and_effects_leave_in_the_order_of_the_commands() -> None:
    world = World()
    world.queue()
    world.attach(1)
    world.happened.clear()
    for n in range(20):
        world.submit(Send("q", [Plain(b"%d" % n)]))
        if n % 3 == 0:
            world.submit(DeleteEntity("nowhere"))
        if n % 5 == 0:
            world.submit(Flow(1, 1, n))
        if n % 7 == 0:
            world.commit()
    world.settle()
    sent = [reply[0] for reply in world.happened if type(reply) is list]
    assert sent == list(range(1, 21))
    kinds = ["refused" if isinstance(r, Refused) else type(r).__name__ for r in world.happened]
    assert kinds.count("refused") == 7
    # The refusal after the first send comes right behind its reply, though it waited for no disk.
    assert kinds[1] == "refused"


def test_the_effects_of_a_command_come_before_its_answer() -> None:
    """A drained link gets its messages first, and then the credit that is left."""
    world = World()
    world.queue()
    world.send(b"one")
    world.attach(1)
    world.happened.clear()
    world.submit(Flow(1, 5, 9, drain=True))
    deliver, left = world.happened
    assert isinstance(deliver, Deliver)
    assert left == 4


def test_a_done_may_submit() -> None:
    """What it submits comes out after everything before it."""
    world = World()
    world.queue()
    order: list[str] = []

    def again(reply: object) -> None:
        order.append("first")
        world.engine.submit(DeleteEntity("nowhere"), lambda _: order.append("inner"))

    world.engine.submit(Browse("q"), again)
    assert order == ["first", "inner"]
    order.clear()
    world.engine.submit(Send("q", [Plain(b"a")]), again)
    world.engine.submit(Send("q", [Plain(b"b")]), lambda _: order.append("second"))
    world.settle()
    assert order == ["first", "second", "inner"]


# --- groups ---------------------------------------------------------------------------------------


@pytest.mark.req("T17")
def test_an_outcome_is_never_split() -> None:
    """A batch far larger than a group, and a transaction over two queues: each in one group."""
    world = World(tuning=Tuning(group_bytes=500))
    world.queue("q")
    world.queue("r")
    before = len(groups(world))
    world.submit(Send("q", [Plain(b"x" * 100) for _ in range(50)]))
    transaction = world.execute(Declare())
    world.submit(Send("q", [Plain(b"y" * 600)], transaction=transaction))
    world.submit(Send("r", [Plain(b"z" * 600)], transaction=transaction))
    world.execute(Discharge(transaction))
    batch, both = groups(world)[before:]
    assert len([c for c in batch if type(c) is Enqueued]) == 50
    assert len([c for c in both if type(c) is Enqueued]) == 2


def test_a_group_closes_at_its_size() -> None:
    world = World(tuning=Tuning(group_bytes=4 * KIB))
    world.queue()
    commits = world.engine.metrics.commits
    for _ in range(20):
        world.submit(Send("q", [Plain(b"x" * 1_000)]))
    assert len(world.commits) == 1, "a full group needs no flush"
    world.settle()
    assert world.engine.metrics.commits - commits == 5
    assert world.engine.metrics.released >= 20


# --- bodies ---------------------------------------------------------------------------------------


def test_a_body_is_read_where_it_is() -> None:
    """Staged, cached, and from the log: the same bytes."""
    world = World(tuning=Tuning(cache_bytes=0))
    world.queue()
    world.submit(Send("q", [Plain(b"a" * 3_000), Plain(b"b")]))
    assert world.engine.body(1) == b"a" * 3_000
    assert world.engine.metrics.bodies_read == 0
    world.settle()
    assert world.engine.body(1) == b"a" * 3_000
    assert world.engine.body(2) == b"b"
    assert world.engine.metrics.bodies_read == 2
    with pytest.raises(KeyError):
        world.engine.body(3)


def test_the_cache_has_a_bound() -> None:
    world = World(tuning=Tuning(cache_bytes=10 * KIB))
    world.queue()
    for n in range(1, 31):
        world.send(b"%d" % n * 500)
    for n in range(1, 31):
        assert world.engine.body(n) == b"%d" % n * 500
    assert 20 <= world.engine.metrics.bodies_read <= 25


def test_a_body_that_rotted_ends_the_engine() -> None:
    """A failed checksum is never served (P13): everybody who waits is told, and nobody gets
    more."""
    store = MemoryStore()
    world = World(store, tuning=Tuning(cache_bytes=0))
    world.queue()
    world.send(b"precious")
    at = bytes(store._log).index(b"precious")
    store._log[at] ^= 1
    waiting = world.submit(Send("q", [Plain(b"more")]))
    with pytest.raises(CorruptLogError):
        world.engine.body(1)
    assert isinstance(waiting[0], CorruptLogError)
    assert len(world.failures) == 1
    with pytest.raises(StoreError):
        world.submit(Send("q", [Plain(b"more")]))


def test_rot_found_while_answers_go_out() -> None:
    """Nobody is answered twice, and nothing is written any more."""
    store = MemoryStore()
    world = World(store, tuning=Tuning(cache_bytes=0))
    world.queue()
    world.send(b"precious")
    store._log[bytes(store._log).index(b"precious")] ^= 1

    def look(_: object) -> None:
        with pytest.raises(CorruptLogError):
            world.engine.body(1)

    world.engine.submit(Send("q", [Plain(b"a")]), look)
    after = [world.submit(Send("q", [Plain(b"b")])) for _ in range(3)]
    world.engine.flush()
    later = world.submit(Send("q", [Plain(b"c")]))
    commits = world.engine.metrics.commits
    world.settle()
    assert [[type(r) for r in replies] for replies in (*after, later)] == [[CorruptLogError]] * 4
    assert world.engine.metrics.commits == commits + 1
    assert len(world.failures) == 1


# --- loading --------------------------------------------------------------------------------------


def test_what_core_needs_of_the_log_is_loaded() -> None:
    """A backlog that is forwarded later is read back from the log, in turns."""
    world = World(tuning=Tuning(cache_bytes=0))
    world.queue("to")
    world.queue("from")
    for n in range(250):
        world.submit(Send("from", [Plain(b"%d" % n)]))
    world.settle()
    world.execute(UpdateEntity("from", QueueSettings(forward_to="to")))
    turns = 0
    while world.engine.next_deadline() <= world.clock.now_ms():
        world.engine.tick()
        turns += 1
    world.settle()
    assert turns > 2
    world.attach(1, "to")
    found = world.receive(1, 300)
    assert [world.engine.body(d.body) for d in found] == [b"%d" % n for n in range(250)]


def test_what_is_gone_before_it_is_loaded() -> None:
    """The queue is deleted while its messages wait to be read: nothing happens."""
    world = World(tuning=Tuning(cache_bytes=0))
    world.queue("to")
    world.queue("from")
    for _ in range(250):
        world.submit(Send("from", [Plain(b"x")]))
    world.settle()
    world.execute(UpdateEntity("from", QueueSettings(forward_to="to")))
    world.engine.tick()
    world.submit(DeleteEntity("from"))
    while world.engine.next_deadline() <= world.clock.now_ms():
        world.engine.tick()
    world.settle()
    assert not world.failures


def test_a_stored_message_that_cannot_be_read_ends_the_engine() -> None:
    def undecodable(payload: bytes) -> Plain:
        raise ProtocolError("what is this")

    world = World()
    world.queue("to")
    world.queue("from")
    world.send(b"x", path="from")
    world.engine._decode = undecodable
    world.submit(UpdateEntity("from", QueueSettings(forward_to="to")))
    with pytest.raises(ProtocolError):
        world.engine.tick()
    assert "what is this" in str(world.failures[0])


# --- back-pressure --------------------------------------------------------------------------------


def test_beyond_the_bound_sends_are_refused_and_settling_goes_on() -> None:
    world = World(tuning=Tuning(staged_bytes=100 * KIB))
    world.queue()
    world.send(b"early")
    world.attach(1)
    (delivery,) = world.receive(1, 1)
    assert delivery.token is not None
    replies = []
    for _ in range(200):
        replies.append(world.submit(Send("q", [Plain(b"x" * 1_000)])))
    assert world.engine.staged_bytes < 102 * KIB
    settled = world.submit(Settle("q", [delivery.token], Disposition.COMPLETE))
    world.settle()
    refused = [r[0] for r in replies if isinstance(r[0], Refused)]
    assert 80 <= len(refused) <= 120
    assert all(isinstance(r, ServerBusyError) and r.is_retryable for r in refused)
    assert settled == [None]
    assert world.engine.metrics.refused["com.microsoft:server-busy"] == len(refused)
    world.send(b"again")


def test_a_nearly_full_disk_refuses_sends_and_nothing_else() -> None:
    store = MemoryStore()
    world = World(store)
    world.queue()
    world.send(b"early")
    store.free = 1_000_000
    world.send(b"looked at once a second only")
    world.clock.advance(1_000)
    with pytest.raises(ServerBusyError, match="disk"):
        world.send(b"late")
    world.attach(1)
    found = world.receive(1, 2)
    world.complete(found)
    store.free = 1 << 40
    world.clock.advance(1_000)
    world.send(b"later")


# --- failure --------------------------------------------------------------------------------------


def test_a_failed_commit_is_the_end() -> None:
    """Everyone who waits gets the error, the last word is said once, nothing is tried again."""
    world = World(FaultyStore(fails_at=3))
    world.queue()
    first = world.submit(Send("q", [Plain(b"a")]))
    world.engine.flush()
    second = world.submit(Send("q", [Plain(b"b")]))
    refusal = world.submit(DeleteEntity("nowhere"))
    world.settle()
    assert [type(r[0]) for r in (first, second, refusal)] == [StoreError] * 3
    assert [str(f) for f in world.failures] == ["the disk is gone"]
    with pytest.raises(StoreError, match="gone"):
        world.submit(CreateQueue("r"))
    with pytest.raises(StoreError, match="gone"):
        world.engine.tick()
    assert not world.commits


def test_after_a_failure_the_next_life_has_what_was_durable() -> None:
    store = FaultyStore(fails_at=4)
    world = World(store)
    world.queue()
    world.send(b"kept")
    with pytest.raises(StoreError):
        world.send(b"lost")
    again = World(store)
    again.attach(1)
    assert [again.engine.body(d.body) for d in again.receive(1, 5)] == [b"kept"]


def test_an_unexpected_exception_in_core_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a decision may be in memory. It must not reach the disk."""
    world = World()
    world.queue()
    waiting = world.submit(Send("q", [Plain(b"a")]))

    def broken(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(world.namespace, "apply", broken)
    with pytest.raises(AssertionError):
        world.submit(Send("q", [Plain(b"b")]))
    assert isinstance(waiting[0], StoreError)
    assert "a bug" in str(world.failures[0])


def test_closed_is_closed() -> None:
    world = World()
    world.queue()
    world.stop()
    with pytest.raises(StoreError, match="closed"):
        world.submit(CreateQueue("r"))


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.req("T7", "T11")
def test_a_lock_that_runs_out_takes_the_same_road() -> None:
    world = World()
    world.queue()
    world.send(b"one")
    world.attach(1)
    (first,) = world.receive(1, 1)
    world.settle()
    while (deadline := world.engine.next_deadline()) < first.locked_until_ms:
        world.clock.advance(max(0, deadline - world.clock.now_ms()))
        world.engine.tick()
        world.settle()
    assert deadline != NEVER
    world.clock.advance(deadline - world.clock.now_ms())
    world.flow(1, 1)
    world.settle()
    world.delivered()
    world.engine.tick()
    assert not world.effects, "its return must be durable first"
    world.settle()
    (second,) = world.delivered()
    assert second.delivery_count == 1
    assert first.token is not None
    with pytest.raises(MessageLockLostError):
        world.execute(Settle("q", [first.token], Disposition.COMPLETE))
