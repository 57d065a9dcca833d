"""Sequence numbers and enqueue times (S1-S5)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tandembus.core.commands import Declare, DeleteMessages, Discharge, Disposition
from tandembus.core.state import State
from tandembus.core.tokens import COUNT_MASK, PARTITION_SHIFT
from tandembus.errors import (
    EntityDisabledError,
    MessageLockLostError,
    MessageSizeExceededError,
    NotAllowedError,
    QuotaExceededError,
)
from tandembus.limits import MAX_PARTITIONS
from tandembus.model import Timestamp
from tandembus.settings import EntityStatus
from tests.unit.core.world import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    World,
    heavy,
    message,
    numbers,
    settling,
)

BIG = message(b"x" * (256 * 1024))
ROOMY_KB = 102_400


# --- one count ------------------------------------------------------------------------------------


@pytest.mark.req("S1")
def test_numbers_count_in_order_of_arrival(world: World) -> None:
    """1, 2, 3, … over batches, senders and other queues between them; the same on reception."""
    world.queue("q")
    world.queue("other")
    sent = world.send("q", "a")
    world.send("other", "x", "y")
    sent += world.send("q", "b", "c", "d")
    sent += world.send("q", "e")
    assert sent == [1, 2, 3, 4, 5]
    received = world.receive("q", 9)
    assert numbers(received) == sent
    assert world.texts(received) == ["a", "b", "c", "d", "e"]


@pytest.mark.req("S1")
def test_a_refused_send_uses_no_number(world: World) -> None:
    """Too large, in a batch or alone, disabled, full: the next accepted message has the next
    number."""
    world.queue("q", max_message_size_kb=ROOMY_KB)
    world.send("q", "a")
    world.update("q", max_message_size_kb=256)
    world.refused(MessageSizeExceededError, world.sending("q", BIG))
    world.refused(MessageSizeExceededError, world.sending("q", "b", "c", BIG))
    world.update("q", status=EntityStatus.SEND_DISABLED)
    world.refused(EntityDisabledError, world.sending("q", "b"))
    world.update("q", status=EntityStatus.ACTIVE, max_message_size_kb=ROOMY_KB)
    world.refused(QuotaExceededError, world.sending("q", *[heavy(100 << 20)] * 11))
    assert world.send("q", "b", "c") == [2, 3]
    world.restart()
    assert world.send("q", "d") == [4]


@pytest.mark.req("S1", "T14")
def test_a_message_without_session_uses_no_number(world: World) -> None:
    """A batch with one message that a session queue cannot take is refused as a whole."""
    world.queue("q", requires_session=True)
    with_session = message("a", session_id="s")
    world.refused(NotAllowedError, world.sending("q", with_session, message("b")))
    assert world.send("q", with_session) == [1]


@pytest.mark.req("S1", "T17")
def test_a_transaction_that_did_not_happen_uses_no_number(world: World) -> None:
    """Rolled back, timed out, or refused at the end: no gap."""
    world.queue("q")
    rolled_back = world.do(Declare())
    world.do(world.sending("q", "a", "b", transaction=rolled_back))
    world.do(Discharge(rolled_back, fail=True))
    world.do(world.sending("q", "c", transaction=world.do(Declare())))
    world.wait(2 * MINUTE)
    refused = world.do(Declare())
    world.send("q", "first")
    locked = world.receive_one("q")
    world.do(world.sending("q", "d", transaction=refused))
    world.do(settling("q", Disposition.COMPLETE, locked, transaction=refused))
    world.wait(MINUTE)
    with pytest.raises(MessageLockLostError):
        world.do(Discharge(refused))
    done = world.do(Declare())
    assert world.send("q", "between") == [2]
    world.do(world.sending("q", "e", "f", transaction=done))
    world.do(Discharge(done))
    assert numbers(world.browse("q")) == [1, 2, 3, 4]


@pytest.mark.req("S1")
def test_a_number_is_not_used_again(world: World) -> None:
    """Completed, cancelled, purged, dead-lettered: also when the youngest message is gone before a
    restart, the count goes on behind it."""
    world.queue("q")
    world.send("q", "a", "b")
    assert world.consume("q") == ["a", "b"]
    world.restart()
    assert world.schedule("q", "c", after_ms=HOUR) == [3]
    world.cancel("q", 3)
    world.restart()
    assert world.send("q", "d") == [4]
    assert world.do(DeleteMessages("q", 10, world.now + 1)) == 1
    world.restart()
    assert world.send("q", "e") == [5]
    world.dead_letter("q", world.receive_one("q"))
    world.restart()
    world.restart()
    assert world.send("q", "f") == [6]


@pytest.mark.req("S1")
def test_a_duplicate_uses_no_number(world: World) -> None:
    """What is dropped was never there: it is answered with 0."""
    world.queue("q", requires_duplicate_detection=True)
    assert world.send("q", message("a", message_id="1"), message("b", message_id="2")) == [1, 2]
    assert world.send("q", message("c", message_id="1"), message("d", message_id="3")) == [0, 3]


@pytest.mark.req("S1")
def test_topic_and_subscription_count_for_themselves(lived: World) -> None:
    """A topic numbers what it takes; each subscription numbers its copies, both without gaps."""
    lived.topic("t")
    everything = lived.subscription("t", "everything")
    assert lived.send("t", "a") == [1]
    late = lived.subscription("t", "late")
    lived.lull()
    assert lived.send("t", "b", "c") == [2, 3]
    assert numbers(lived.browse(everything)) == [1, 2, 3]
    assert numbers(lived.browse(late)) == [1, 2]


def test_a_dead_letter_keeps_its_number(lived: World) -> None:
    """So it can be told which message of the queue it was (WIRE.md §5.3)."""
    lived.queue("q")
    lived.send("q", "a", "b", "c")
    first, second, third = lived.receive("q", 3)
    lived.dead_letter("q", third)
    lived.dead_letter("q", first)
    lived.complete("q", second)
    lived.lull()
    assert numbers(lived.browse("q/$DeadLetterQueue")) == [1, 3]
    assert lived.consume("q/$DeadLetterQueue") == ["a", "c"]


# --- partitions -----------------------------------------------------------------------------------


def partition(number: int) -> int:
    return number >> PARTITION_SHIFT


def count(number: int) -> int:
    return number & COUNT_MASK


@pytest.mark.req("S2")
def test_a_partition_key_decides_the_partition(lived: World) -> None:
    """The same key, the same upper 16 bits, always; the lower 48 count without gaps."""
    lived.queue("q", enable_partitioning=True)
    keys = [f"key {n}" for n in range(40)]
    first = {key: lived.send("q", key, partition_key=key)[0] for key in keys}
    lived.lull()
    second = {key: lived.send("q", key, partition_key=key)[0] for key in keys}
    for key in keys:
        assert partition(first[key]) == partition(second[key]) < MAX_PARTITIONS
    assert len({partition(number) for number in first.values()}) > 8
    sent = [*first.values(), *second.values()]
    for each in range(MAX_PARTITIONS):
        counts = [count(number) for number in sent if partition(number) == each]
        assert counts == list(range(1, len(counts) + 1))


@pytest.mark.req("S2")
def test_a_session_id_decides_the_partition(lived: World) -> None:
    """In a session queue and in a plain one; a partition key that differs from it is refused."""
    lived.queue("sessions", enable_partitioning=True, requires_session=True)
    lived.queue("plain", enable_partitioning=True)
    for n in range(20):
        by_session = lived.send("sessions", "a", session_id=f"s{n}")[0]
        again = lived.send("sessions", "a", session_id=f"s{n}")[0]
        plain = lived.send("plain", "a", session_id=f"s{n}")[0]
        keyed = lived.send("plain", "a", partition_key=f"s{n}", session_id=f"s{n}")[0]
        assert len({partition(each) for each in (by_session, again, plain, keyed)}) == 1
    different = message("a", session_id="s", partition_key="p")
    lived.refused(NotAllowedError, lived.sending("sessions", different))
    lived.refused(NotAllowedError, lived.sending("plain", different))
    lived.lull()
    for n in range(20):
        accepted = lived.accept_session("sessions", f"s{n}")
        assert len(lived.take(accepted.link, 9)) == 2


@pytest.mark.req("S2")
def test_without_a_key_the_partitions_take_turns(world: World) -> None:
    """Three rounds give each of the sixteen three messages, and they are received in the order in
    which they came."""
    world.queue("q", enable_partitioning=True)
    sent: list[int] = []
    for n in range(3 * MAX_PARTITIONS):
        sent += world.send("q", str(n))
        world.tick(1)
    assert sorted(sent) == [
        each << PARTITION_SHIFT | n for each in range(MAX_PARTITIONS) for n in (1, 2, 3)
    ]
    assert all(partition(one) != partition(other) for one, other in pairwise(sent))
    received = world.receive("q", 100)
    assert numbers(received) == sent
    world.abandon("q", *received)
    world.restart()
    sent += world.send("q", *[str(n) for n in range(MAX_PARTITIONS)])
    assert sorted(count(number) for number in sent) == sorted([1, 2, 3, 4] * MAX_PARTITIONS)


@pytest.mark.req("S2")
def test_a_partitioned_topic(lived: World) -> None:
    """Its subscriptions are partitioned too, by the same key."""
    lived.topic("t", enable_partitioning=True)
    path = lived.subscription("t", "s")
    on_topic = [lived.send("t", key, partition_key=key)[0] for key in "abcdefgh"]
    lived.lull()
    copies = {lived.read(each).body: each.sequence_number for each in lived.browse(path)}
    assert [partition(copies[key]) for key in "abcdefgh"] == [partition(n) for n in on_topic]


# --- roll-over ------------------------------------------------------------------------------------


@pytest.mark.req("S3")
def test_64_bits_roll_over_to_0(lived: World) -> None:
    """Behind the largest number comes 0, and everything goes on: receiving in order, settling by
    token, deferring and dead-lettering by number, browsing, restarting."""
    lived.queue("q", origin=(1 << 64) - 3)
    top = (1 << 64) - 1
    sent = [lived.send("q", body)[0] for body in "abcd"]
    assert sent == [top - 1, top, 0, 1]
    lived.lull()
    assert numbers(lived.browse("q")) == sent
    assert numbers(lived.browse("q", start=1)) == [1]
    received = lived.receive("q", 9)
    assert lived.texts(received) == ["a", "b", "c", "d"]
    lived.defer("q", received[2])
    lived.abandon("q", received[1])
    lived.dead_letter("q", received[3])
    lived.complete("q", received[0])
    lived.lull()
    (deferred,) = lived.receive_deferred("q", 0)
    assert lived.read(deferred).body == "c"
    lived.complete("q", deferred)
    assert numbers(lived.browse("q/$DeadLetterQueue")) == [1]
    assert lived.send("q", "e") == [2]
    assert lived.consume("q") == ["b", "e"]


@pytest.mark.req("S3")
def test_48_bits_roll_over_to_0_within_the_partition(lived: World) -> None:
    """The partition's bits stay."""
    lived.queue("q", origin=(1 << 48) - 2, enable_partitioning=True)
    sent = [lived.send("q", body, partition_key="k")[0] for body in "abc"]
    high = partition(sent[0]) << PARTITION_SHIFT
    assert sent == [high | COUNT_MASK, high, high | 1]
    lived.lull()
    assert lived.consume("q") == ["a", "b", "c"]
    assert lived.send("q", "d", partition_key="k") == [high | 2]


@pytest.mark.req("S3")
def test_a_scheduled_message_with_number_0(lived: World) -> None:
    """The number 0 is a number: it can be cancelled, or come due."""
    lived.queue("q", origin=(1 << 64) - 1)
    assert lived.schedule("q", "a", after_ms=HOUR) == [0]
    assert lived.schedule("q", "b", after_ms=HOUR) == [1]
    lived.lull()
    lived.cancel("q", 0)
    lived.wait(HOUR)
    assert lived.consume("q") == ["b"]


@pytest.mark.req("S3", "T17")
def test_a_message_with_number_0_is_forwarded(world: World) -> None:
    """Out of the queue that gave the number 0, at once like any other."""
    world.queue("target")
    world.queue("q", origin=(1 << 64) - 1, forward_to="target")
    link = world.attach("target")
    world.offer(link, 5)
    world.send("q", "a")
    world.send("q", "b")
    world.settle_down()
    assert world.texts(world.arrived(link)) == ["a", "b"]


@pytest.mark.req("S3", "T17")
def test_a_message_that_gets_number_0_by_forwarding_is_delivered(world: World) -> None:
    """A receiver that waits at the target has it at once."""
    world.queue("target", origin=(1 << 64) - 1)
    world.queue("q", forward_to="target")
    link = world.attach("target")
    world.offer(link, 5)
    world.send("q", "a")
    assert world.texts(world.arrived(link)) == ["a"]


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.req("S4")
def test_the_enqueue_time_is_the_brokers(lived: World) -> None:
    """What a client writes into the annotations of a message counts for nothing."""
    lived.queue("q")
    forged = {"x-opt-enqueued-time": Timestamp(1), "x-opt-sequence-number": 77}
    lived.now += 1_234
    lived.send("q", message("a", annotations=forged))
    lived.lull()
    delivery = lived.receive_one("q")
    assert delivery.enqueued_ms == START + 1_234
    assert delivery.sequence_number == 1


@pytest.mark.req("S4")
def test_a_clock_that_steps_back(lived: World) -> None:
    """The times of an entity never run backwards, through a restart with the clock behind too; when
    the clock has caught up they are its own again."""
    lived.queue("q")
    lived.topic("t")
    copy = lived.subscription("t", "s")
    lived.send("q", "a")
    lived.send("t", "a")
    lived.now -= HOUR
    lived.lull()
    for path in ("q", "t"):
        lived.send(path, "b")
    lived.now += HOUR + 5
    for path in ("q", "t"):
        lived.send(path, "c")
    for path in ("q", copy):
        times = [each.enqueued_ms for each in lived.browse(path)]
        assert times == [START, START, START + 5]


@pytest.mark.req("S4")
def test_a_clock_that_steps_back_ends_no_lock_early(world: World) -> None:
    """A lock lasts at least as long as was promised."""
    world.queue("q")
    world.send("q", "a")
    locked = world.receive_one("q")
    world.tick(-HOUR)
    world.complete("q", locked)
    assert world.waiting("q") == []


@pytest.mark.req("S5")
def test_number_and_time_are_on_every_message(lived: World) -> None:
    """Received or browsed; in a queue, a partitioned one, one with sessions, a subscription, a
    dead-letter queue; waiting, locked, deferred and scheduled."""
    lived.queue("plain")
    lived.queue("partitioned", enable_partitioning=True)
    lived.queue("sessions", requires_session=True)
    lived.topic("t")
    copy = lived.subscription("t", "s")
    lived.now += SECOND
    sent_at = lived.now
    for path in ("plain", "partitioned", "sessions", "t"):
        lived.send(path, "a", session_id="s")
    lived.send("plain", "b", "c")
    lived.now += MINUTE
    lived.lull()
    for path in ("plain", "partitioned", "sessions", copy):
        for shown in lived.browse(path):
            assert shown.enqueued_ms == sent_at
            assert count(shown.sequence_number) in (1, 2, 3)
    (in_session,) = lived.take(lived.accept_session("sessions", "s").link)
    (partitioned,) = lived.receive("partitioned")
    (subscribed,) = lived.receive(copy)
    first, second, _ = lived.receive("plain", 3)
    for each in (in_session, partitioned, subscribed, first, second):
        assert each.enqueued_ms == sent_at
    lived.dead_letter("plain", first)
    lived.defer("plain", second)
    (dead,) = lived.receive("plain/$DeadLetterQueue")
    (deferred,) = lived.receive_deferred("plain", 2)
    assert (dead.sequence_number, dead.enqueued_ms) == (1, sent_at)
    assert (deferred.sequence_number, deferred.enqueued_ms) == (2, sent_at)
    lived.schedule("plain", "d", after_ms=HOUR)
    assert [(each.sequence_number, each.state) for each in lived.browse("plain")] == [
        (2, State.DEFERRED_LOCKED),
        (3, State.LOCKED),
        (4, State.SCHEDULED),
    ]
