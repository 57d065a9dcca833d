"""Auto-forwarding, and dead letters that are forwarded (T17)."""

from __future__ import annotations

from typing import Any

import pytest

from tandembus.core.commands import Attach, Loaded
from tandembus.core.effects import Load
from tandembus.errors import ArgumentError, EntityNotFoundError, NotAllowedError
from tandembus.limits import MAX_FORWARD_HOPS, RELAY_RETRY_MS
from tandembus.settings import EntityStatus
from tests.unit.core.world import HOUR, MINUTE, SECOND, World, heavy, rule

ROOMY_KB = 102_400


@pytest.mark.req("T17")
def test_a_message_goes_on(lived: World) -> None:
    """At once, with its first number as a mark; the body is stored once."""
    lived.queue("target")
    lived.queue("q", forward_to="target")
    lived.send("target", "already there")
    assert lived.send("q", "a", "b", properties={"n": 1}) == [1, 2]
    lived.lull()
    assert lived.waiting("q") == []
    _, first, second = lived.receive("target", 9)
    assert (first.sequence_number, second.sequence_number) == (2, 3)
    seen = lived.read(first)
    assert (seen.body, dict(seen.properties)) == ("a", {"n": 1})
    assert seen.marks["EnqueuedSequenceNumber"] == 1
    assert len(lived.payloads) == 3
    assert lived.freed == set()


@pytest.mark.req("T17")
def test_a_waiting_receiver_at_the_target(world: World) -> None:
    """Has it at once."""
    world.queue("target")
    world.queue("q", forward_to="target")
    at_target = world.attach("target")
    world.offer(at_target, 5)
    world.send("q", "a")
    assert world.texts(world.arrived(at_target)) == ["a"]


@pytest.mark.req("T20")
def test_fw4_a_receiver_at_a_queue_that_forwards_is_refused(world: World) -> None:
    """It would wait for ever. At its dead-letter queue one can receive."""
    world.queue("target")
    world.queue("q", forward_to="target")
    world.refused(NotAllowedError, Attach(99, "q"), match="auto-forwarding enabled")
    world.attach("q/$DeadLetterQueue")


@pytest.mark.req("T17")
def test_four_hops(lived: World) -> None:
    """A chain of four forwards works; a fifth does not: the message goes to a transfer dead-letter
    queue where it would have gone on, and says why."""
    assert MAX_FORWARD_HOPS == 4
    for n in range(5, -1, -1):
        lived.queue(f"q{n}", forward_to=f"q{n + 1}" if n < 5 else None)
    lived.send("q1", "four hops")
    lived.send("q0", "five hops")
    lived.lull()
    assert lived.waiting("q5") == ["four hops"]
    assert lived.dead_reasons("q4/$Transfer") == [("five hops", "MaxTransferHopCountExceeded")]
    assert [lived.waiting(f"q{n}") for n in range(5)] == [[]] * 5


@pytest.mark.req("T17")
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_circle_ends(lived: World, length: int) -> None:
    """A → B → A, or a queue that forwards to itself: after four hops in a transfer
    dead-letter queue."""
    names = [f"q{n}" for n in range(length)]
    for name in names:
        lived.queue(name)
    for at, name in enumerate(names):
        lived.update(name, forward_to=names[(at + 1) % length])
    lived.send("q0", "round")
    lived.settle_down()
    lived.lull()
    last = names[4 % length]
    assert lived.dead_reasons(f"{last}/$Transfer") == [("round", "MaxTransferHopCountExceeded")]
    assert [lived.waiting(name) for name in names] == [[]] * length


@pytest.mark.req("T17")
@pytest.mark.parametrize("why", ["disabled", "missing", "full", "too large", "without session"])
def test_a_target_that_cannot_take_it(lived: World, why: str) -> None:
    """The message goes to the transfer dead-letter queue of the source, with the reason; nothing is
    lost, and the sender is not told."""
    sessions = why == "without session"
    lived.queue("target", max_message_size_kb=ROOMY_KB, requires_session=sessions)
    lived.queue("q", forward_to="target", max_message_size_kb=ROOMY_KB)
    if why == "disabled":
        lived.update("target", status=EntityStatus.SEND_DISABLED)
    elif why == "missing":
        lived.delete("target")
    elif why == "full":
        lived.send("target", *[heavy(100 << 20)] * 10)
    elif why == "too large":
        lived.update("target", max_message_size_kb=1)
    lived.lull()
    sent = heavy(100 << 20, body="a")
    assert lived.send("q", sent) == [1]
    lived.lull()
    ((body, reason, description),) = lived.not_transferred("q")
    assert lived.dead("q") == []
    assert body == "a"
    assert (
        reason
        == {
            "disabled": "MessagingEntityDisabled",
            "missing": "MessagingEntityNotFound",
            "full": "QuotaExceeded",
            "too large": "MessageSizeExceeded",
            "without session": "Session ID is null.",
        }[why]
    )
    assert description
    assert lived.waiting("q") == []


def test_the_reason_is_the_true_one(world: World) -> None:
    """A target that refuses for something else than a missing session id does not say that."""
    world.queue("target", enable_partitioning=True)
    world.queue("q", forward_to="target")
    world.send("q", "a", session_id="s", partition_key="p")
    ((_, reason, description),) = world.not_transferred("q")
    assert description == "PartitionKey and SessionId must be the same when both are set."
    assert reason == "TransferRefused"


@pytest.mark.parametrize(
    ("status", "most_kb", "true"),
    [
        (EntityStatus.DISABLED, ROOMY_KB, "MessagingEntityDisabled"),
        (EntityStatus.ACTIVE, 1, "MessageSizeExceeded"),
        (EntityStatus.ACTIVE, ROOMY_KB, "Session ID is null."),
    ],
)
def test_a_missing_session_id_is_the_reason_only_if_it_is(
    world: World, status: EntityStatus, most_kb: int, true: str
) -> None:
    """Seed 663011962 of `make model`: the target has sessions and the message none, but that is
    not why it was refused."""
    world.queue("s", requires_session=True, status=status, max_message_size_kb=most_kb)
    world.queue("q", forward_to="s", max_message_size_kb=ROOMY_KB)
    world.send("q", heavy(2_000, body="a"))
    ((_, reason, _),) = world.not_transferred("q")
    assert reason == true


@pytest.mark.req("T17")
def test_through_topics(lived: World) -> None:
    """A queue forwards to a topic, its subscriptions forward to queues: rules and their changes go
    along."""
    lived.queue("end")
    lived.topic("t")
    acting = rule("act", "colour = 'red'", "SET seen = 1")
    lived.subscription("t", "s", acting, forward_to="end")
    lived.queue("start", forward_to="t")
    lived.send("start", "a", properties={"colour": "red"})
    lived.send("start", "b", properties={"colour": "blue"})
    lived.settle_down()
    lived.lull()
    (delivery,) = lived.receive("end", 9)
    seen = lived.read(delivery)
    assert seen.body == "a"
    assert (seen.properties["seen"], seen.properties["RuleName"]) == (1, "act")
    lived.complete("end", delivery)
    assert lived.freed == set(lived.payloads)


@pytest.mark.req("T17")
def test_switched_on_later(lived: World) -> None:
    """What waits goes on then, in order; what is locked goes when it comes back; what is deferred
    stays."""
    lived.queue("target")
    lived.queue("q")
    lived.send("q", *"abcd")
    completed, abandoned, deferred = lived.receive("q", 3)
    lived.update("q", forward_to="target")
    lived.settle_down()
    assert lived.waiting("target") == ["d"]
    lived.complete("q", completed)
    lived.abandon("q", abandoned)
    lived.defer("q", deferred)
    lived.settle_down()
    lived.lull()
    assert lived.waiting("target") == ["d", "b"]
    assert lived.waiting("q") == ["c"]


@pytest.mark.req("T17")
def test_stored_messages_are_read_first(world: World) -> None:
    """`Load` asks for a hundred at a time; they go on when `Loaded` brings them, in order."""
    world.queue("target")
    world.queue("q")
    world.send("q", *[str(n) for n in range(250)])
    world.answers_loads = False
    world.update("q", forward_to="target")
    world.settle_down()
    (load,) = world.loads
    assert isinstance(load, Load)
    assert list(load.bodies) == list(range(1, 101))
    world.tick(SECOND)
    assert len(world.loads) == 1
    assert world["target"].counts[0] == 0
    world.answer_load()
    world.settle_down()
    assert list(world.loads[0].bodies) == list(range(101, 201))
    world.answers_loads = True
    world.answer_load()
    world.settle_down()
    assert world.texts(world.receive("target", 999)) == [str(n) for n in range(250)]
    assert sum(world["q"].counts) == 0


@pytest.mark.req("T17")
def test_switched_off_meanwhile(world: World) -> None:
    """Messages that were being read stay where they are, in their places, and are delivered."""
    world.queue("target")
    world.queue("q")
    world.send("q", *"abc")
    world.answers_loads = False
    world.update("q", forward_to="target")
    world.settle_down()
    world.update("q", forward_to=None)
    world.answer_load()
    world.settle_down()
    assert world.consume("q") == ["a", "b", "c"]
    assert world.waiting("target") == []


@pytest.mark.req("T17", "T6")
def test_switched_off_and_on_while_reading(world: World) -> None:
    """A message that somebody locked meanwhile is not taken away from its holder."""
    world.queue("target")
    world.queue("q")
    world.send("q", *"abc")
    world.answers_loads = False
    world.update("q", forward_to="target")
    world.settle_down()
    world.update("q", forward_to=None)
    locked = world.receive_one("q")
    world.update("q", forward_to="target")
    world.settle_down()
    world.answers_loads = True
    world.answer_load()
    world.settle_down()
    assert world.waiting("q") == ["a"]
    world.complete("q", locked)
    assert world.waiting("target") == ["b", "c"]


@pytest.mark.req("T17")
def test_an_answer_that_comes_too_late(world: World) -> None:
    """For a message that expired, for a queue that is deleted, for a broker that was restarted:
    nothing happens, or it is asked for again."""
    world.queue("target")
    world.queue("q")
    world.send("q", "short", ttl_ms=MINUTE)
    world.send("q", "long")
    world.answers_loads = False
    world.update("q", forward_to="target")
    world.settle_down()
    world.wait(MINUTE)
    world.answer_load()
    world.settle_down()
    assert world.waiting("target") == ["long"]
    world.do(Loaded(999, {}))
    world.update("q", forward_to=None)
    world.send("q", "again")
    world.update("q", forward_to="target")
    world.settle_down()
    world.answers_loads = True
    world.restart()
    assert world.waiting("target") == ["long", "again"]


@pytest.mark.req("T17")
def test_scheduled_at_the_source(lived: World) -> None:
    """It waits there, and goes on at its time."""
    lived.queue("target")
    lived.queue("q", forward_to="target")
    lived.schedule("q", "a", after_ms=HOUR)
    lived.lull()
    assert lived.waiting("q") == ["a"]
    lived.wait(HOUR)
    assert lived.waiting("q") == []
    delivery = lived.receive_one("target")
    assert delivery.enqueued_ms == lived.now


# --- dead letters ---------------------------------------------------------------------------------


@pytest.mark.req("T17")
def test_dead_letters_go_on(lived: World) -> None:
    """With reason, description, and where they died."""
    lived.queue("graves")
    lived.queue("q", forward_dead_letters_to="graves")
    lived.topic("t")
    path = lived.subscription("t", "s", forward_dead_letters_to="graves", max_delivery_count=1)
    lived.send("q", "a")
    lived.send("t", "b")
    lived.dead_letter("q", lived.receive_one("q"), reason="why", description="because")
    lived.abandon(path, lived.receive_one(path))
    lived.settle_down()
    lived.lull()
    first, second = [lived.read(each) for each in lived.receive("graves", 9)]
    assert first.body == "a"
    assert first.properties["DeadLetterReason"] == "why"
    assert first.properties["DeadLetterErrorDescription"] == "because"
    assert first.marks["DeadLetterSource"] == "q"
    assert second.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert second.marks["DeadLetterSource"] == path
    assert lived.dead("q") == lived.dead(path) == []


@pytest.mark.req("T17")
def test_dead_letters_that_cannot_go_on_are_tried_again(world: World) -> None:
    """They stay in the dead-letter queue, nothing is lost; some seconds later it is tried again,
    and not all the time."""
    world.queue("graves")
    world.queue("q", forward_dead_letters_to="graves")
    world.update("graves", status=EntityStatus.DISABLED)
    world.send("q", "a")
    world.dead_letter("q", world.receive_one("q"), reason="why")
    world.settle_down()
    assert world.dead_reasons("q") == [("a", "why")]
    assert world.now < world.namespace.next_deadline() <= world.now + 10 * SECOND
    world.update("graves", status=EntityStatus.ACTIVE)
    world.wait(10 * SECOND)
    assert world.waiting("graves") == ["a"]


def dead_letters(world: World, *bodies: str, **fields: Any) -> None:
    """Messages of "q" that are dead-lettered."""
    world.send("q", *bodies, **fields)
    world.dead_letter("q", *world.receive("q", len(bodies)), reason="why")


@pytest.mark.req("T17")
def test_fk11_who_waits_at_the_dead_letter_queue_does_not_take_what_goes_on(world: World) -> None:
    """A dead letter is forwarded whether somebody listens or not, also while it is being read."""
    world.queue("graves")
    world.queue("q", forward_dead_letters_to="graves")
    link = world.attach("q/$DeadLetterQueue")
    world.offer(link, 500)
    world.answers_loads = False
    dead_letters(world, *(f"{number}" for number in range(150)))
    world.settle_down()  # the first hundred are being read
    world.offer(link, 400)
    assert world.arrived(link) == []
    world.answers_loads = True
    world.answer_load()
    world.settle_down()
    assert world.arrived(link) == []
    assert world.waiting("graves") == [f"{number}" for number in range(150)]


@pytest.mark.req("T17")
def test_fk11_what_cannot_go_on_is_for_who_waits_at_the_dead_letter_queue(world: World) -> None:
    """It is given to a receiver when it was tried, and tried again when nobody has it."""
    world.queue("graves")
    world.queue("q", forward_dead_letters_to="graves", lock_duration_ms=30 * SECOND)
    world.update("graves", status=EntityStatus.SEND_DISABLED)
    link = world.attach("q/$DeadLetterQueue")
    world.offer(link, 1)
    dead_letters(world, "a", "b")
    world.settle_down()
    (held,) = world.arrived(link)
    assert world.texts([held]) == ["a"]
    world.update("graves", status=EntityStatus.ACTIVE)
    world.wait(10 * SECOND)
    assert world.waiting("graves") == ["b"]
    world.wait(20 * SECOND)
    assert world.waiting("graves") == ["b", "a"]


@pytest.mark.req("T17")
def test_dead_letters_that_cannot_go_on_hold_up_nobody(world: World) -> None:
    """More of them than are read at a time: those behind them go on."""
    world.queue("graves", requires_session=True)
    world.queue("q", forward_dead_letters_to="graves")
    stuck = [f"{number}" for number in range(120)]
    dead_letters(world, *stuck)
    dead_letters(world, "x", "y", session_id="s")
    world.settle_down()
    assert world.waiting("graves") == ["x", "y"]
    assert [body for body, *_ in world.dead("q")] == stuck
    assert world.now < world.namespace.next_deadline() <= world.now + 10 * SECOND
    assert world.texts(world.receive("q/$DeadLetterQueue", 500)) == stuck


@pytest.mark.req("T17", "T21")
def test_a_target_that_takes_nothing_costs_no_reading(world: World) -> None:
    """None of its dead letters can go on, so none is read; they are there for receivers."""
    world.queue("graves")
    world.queue("q", forward_dead_letters_to="graves")
    world.update("graves", status=EntityStatus.SEND_DISABLED)
    world.answers_loads = False
    stuck = [f"{number}" for number in range(120)]
    dead_letters(world, *stuck)
    world.wait(30 * SECOND)
    dead_letters(world, "x")
    world.settle_down()
    assert world.loads == []
    assert world.texts(world.receive("q/$DeadLetterQueue", 500)) == [*stuck, "x"]


@pytest.mark.req("T17", "T21")
def test_a_new_dead_letter_has_only_itself_read(world: World) -> None:
    """Those that could not go on are tried again when it is time, not with each that comes or
    comes back."""
    world.queue("graves", requires_session=True)
    world.queue("q", forward_dead_letters_to="graves")
    dead_letters(world, *(f"{number}" for number in range(250)))
    world.settle_down()
    world.answers_loads = False
    dead_letters(world, "x", session_id="s")
    world.settle_down()
    assert [len(load.bodies) for load in world.loads] == [1]
    world.answer_load()
    world.settle_down()
    assert world.waiting("graves") == ["x"]
    world.abandon("q/$DeadLetterQueue", world.receive_one("q/$DeadLetterQueue"))
    world.settle_down()
    assert [len(load.bodies) for load in world.loads] == [1]


@pytest.mark.req("T17", "T21")
def test_many_dead_letters_that_cannot_go_on_are_tried_less_often(world: World) -> None:
    world.queue("graves", requires_session=True)
    world.queue("q", forward_dead_letters_to="graves")
    dead_letters(world, *(f"{number}" for number in range(2_500)))
    world.settle_down()
    assert world.namespace.next_deadline() == world.now + 3 * RELAY_RETRY_MS


@pytest.mark.req("T17")
def test_new_dead_letters_keep_nobody_from_going_on(world: World) -> None:
    """Whenever some were read the next ones are there. Still those that could not go on are tried
    again, all of them, and receivers get what could not go on."""
    world.queue("graves", max_message_size_kb=1)
    world.queue("q", forward_dead_letters_to="graves")
    large = [f"{number:04}".ljust(2_000, "x") for number in range(250)]
    dead_letters(world, *large)
    world.settle_down()
    world.answers_loads = False

    def one_more() -> None:
        dead_letters(world, "new".ljust(2_000, "x"))
        world.settle_down()
        if world.loads:
            world.answer_load()
        world.settle_down()

    one_more()
    link = world.attach("q/$DeadLetterQueue")
    world.offer(link, 5)
    assert world.texts(world.arrived(link)) == large[:5]
    world.update("graves", max_message_size_kb=ROOMY_KB)
    world.wait(2 * RELAY_RETRY_MS)
    for _ in range(10):
        one_more()
    gone = world.waiting("graves")
    assert set(large[5:]) <= set(gone)
    assert sum(each.startswith("new") for each in gone) >= 9


@pytest.mark.req("T17")
def test_forwarding_dead_letters_switched_on_later(lived: World) -> None:
    """What is there goes on then."""
    lived.queue("graves")
    lived.queue("q")
    lived.send("q", "a", "b")
    lived.dead_letter("q", *lived.receive("q", 2), reason="why")
    lived.lull()
    lived.update("q", forward_dead_letters_to="graves")
    lived.settle_down()
    assert lived.waiting("graves") == ["a", "b"]
    assert lived.dead("q") == []


@pytest.mark.req("T17")
def test_what_can_be_forwarded_to(world: World) -> None:
    """A queue or topic that exists; nothing out of a queue with sessions."""
    world.topic("t")
    path = world.subscription("t", "s")
    world.queue("plain")
    for target in ("unknown", path, "plain/$DeadLetterQueue", "/"):
        for name in ("forward_to", "forward_dead_letters_to"):
            settings: dict[str, Any] = {name: target}
            with pytest.raises((EntityNotFoundError, ArgumentError)):
                world.queue("q", **settings)
            assert "q" not in world.namespace
    world.queue("q", forward_to="t")


def test_with_sessions_nothing_is_forwarded(world: World) -> None:
    """The setting is kept, as the SDK's own tests want it; only dead letters are forwarded."""
    world.queue("target")
    world.queue("q", requires_session=True, forward_to="target", forward_dead_letters_to="target")
    assert world["q"].settings.forward_to == "target"  # type: ignore[union-attr]
    world.send("q", "a", session_id="s")
    accepted = world.accept_session("q", "s")
    world.dead_letter("q", *world.take(accepted.link))
    world.settle_down()
    assert world.waiting("target") == ["a"]


@pytest.mark.req("T17", "T21")
def test_fk11_thousands_of_dead_letters_go_on_in_order_when_their_target_takes_them(
    world: World,
) -> None:
    """However many wait for a target that is disabled: all go on within seconds of its return, and
    a new one does not overtake them."""
    world.queue("graves", status=EntityStatus.SEND_DISABLED)
    world.queue("q", forward_dead_letters_to="graves")
    old = [f"{number:04}" for number in range(2_500)]
    dead_letters(world, *old)
    world.wait(RELAY_RETRY_MS + SECOND)
    world.update("graves", status=EntityStatus.ACTIVE)
    world.answers_loads = False
    dead_letters(world, "new")
    for _ in range(30):
        world.settle_down()
        if world.loads:
            dead_letters(world, "newer")  # while the others are read
            world.answer_load()
    world.answers_loads = True
    world.wait(2 * RELAY_RETRY_MS)
    arrived = world.waiting("graves")
    assert arrived[:2_501] == [*old, "new"]
    assert set(arrived[2_501:]) == {"newer"}
