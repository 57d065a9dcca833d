"""Priority queues: levels, where they come from, aging and its bound, shares (P1-P3).

The bound. A message of level l in a queue of L levels, aging one level per A, is at the top level
after (L-1-l)·A of waiting, and stays there. At one level the lower sequence number goes first. So
from then on only messages that were there before it go before it, and no new one ever does: with n
of them and a consumer that takes one message each s, it waits at most

    (L-1-l)·A + (n+1)·s

whatever is sent meanwhile, at any rate and any level.
"""

from __future__ import annotations

from random import Random

import pytest

from tandembus.core.commands import ChangePriority
from tandembus.errors import ArgumentError, MessageNotFoundError
from tandembus.settings import PrioritySettings
from tests.unit.core.world import HOUR, MINUTE, SECOND, World, message, numbers, rule

HEADER = PrioritySettings()
THREE = PrioritySettings(levels=3, source="property", property_name="level")


def send_levels(world: World, path: str, *levels: int) -> None:
    """One message for each, its body its place and level."""
    for at, level in enumerate(levels):
        world.send(path, f"{at}:{level}", properties={"level": level})


# --- where a level comes from ---------------------------------------------------------------------


@pytest.mark.req("P1")
def test_the_header_decides(lived: World) -> None:
    """Priority 9 before 8 …; first in, first out within one; 4 where the header says nothing (AMQP
    1.0 §3.2.1)."""
    lived.queue("q", priority=HEADER)
    for body, priority in (("a", 1), ("b", 9), ("c", None), ("d", 9), ("e", 1), ("f", 4), ("g", 0)):
        lived.send("q", body, priority=priority)
    lived.lull()
    received = lived.receive("q", 9)
    assert lived.texts(received) == ["b", "d", "c", "f", "a", "e", "g"]
    assert [each.level for each in received] == [9, 9, 4, 4, 1, 1, 0]


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    ("levels", "expected"),
    [(2, [0, 0, 0, 1, 1]), (3, [0, 0, 1, 1, 2]), (5, [0, 1, 2, 2, 4]), (20, [0, 3, 4, 5, 9])],
)
def test_fewer_or_more_levels_than_ten(world: World, levels: int, expected: list[int]) -> None:
    """Fewer share the ten priorities among them, in order; more leave the upper ones to
    `ChangePriority`. Above 9 is 9."""
    world.queue("q", priority=PrioritySettings(levels=levels))
    given = [0, 3, 4, 5, 200]
    for priority in given:
        world.send("q", "a", priority=priority)
    assert [each.level for each in world.browse("q")] == expected


@pytest.mark.req("P1")
def test_a_property_decides(lived: World) -> None:
    """A number out of range is the nearest level; what is not a number is the lowest."""
    lived.queue("q", priority=THREE)
    values = [1, 2, 7, -3, "2", None, True, 2.0]
    for at, value in enumerate(values):
        lived.send("q", str(at), properties={"level": value})
    lived.send("q", "none")
    lived.lull()
    assert lived.consume("q") == ["1", "2", "0", "3", "4", "5", "6", "7", "none"]


@pytest.mark.req("P2")
def test_rules_decide(lived: World) -> None:
    """Senders know no levels: the first rule that matches gives one; none: the lowest. A rule that
    cannot be evaluated does not match."""
    rules = (
        ("tier = 'paying' AND age / months > 1", 3),
        ("tier = 'paying'", 2),
        ("sys.Label LIKE 'urgent%'", 3),
        ("tier IS NOT NULL", 1),
    )
    lived.queue("q", priority=PrioritySettings(levels=4, source="rules", rules=rules))
    lived.send("q", "plain")
    lived.send("q", "free", properties={"tier": "free"})
    lived.send("q", "paying", properties={"tier": "paying"})
    lived.send("q", "paying, months 0", properties={"tier": "paying", "age": 9, "months": 0})
    lived.send("q", "loyal", properties={"tier": "paying", "age": 9, "months": 3})
    lived.send("q", "urgent", label="urgent: now")
    lived.lull()
    received = lived.receive("q", 9)
    assert [(lived.read(each).body, each.level) for each in received] == [
        ("loyal", 3),
        ("urgent", 3),
        ("paying", 2),
        ("paying, months 0", 2),
        ("free", 1),
        ("plain", 0),
    ]


@pytest.mark.req("P1", "P2", "T16")
def test_a_subscription_is_a_priority_queue_too(lived: World) -> None:
    """With levels of its own, from the message as its rule's action left it."""
    lived.topic("t")
    raised = rule("raise", "vip = TRUE", "SET level = 2")
    path = lived.subscription("t", "s", raised, priority=THREE)
    lived.add_rule(path, rule("rest", "vip IS NULL"))
    plain = lived.subscription("t", "plain")
    lived.send("t", "a", properties={"level": 0})
    lived.send("t", "b", properties={"level": 1})
    lived.send("t", "c", properties={"level": 0, "vip": True})
    lived.lull()
    assert lived.consume(path) == ["c", "b", "a"]
    assert lived.consume(plain) == ["a", "b", "c"]


def test_without_priority_the_header_means_nothing(world: World) -> None:
    """As in Azure: first in, first out."""
    world.queue("q")
    for body, priority in (("a", 0), ("b", 9), ("c", 5)):
        world.send("q", body, priority=priority)
    assert world.consume("q") == ["a", "b", "c"]


# --- the order ------------------------------------------------------------------------------------


@pytest.mark.req("P1", "T7")
def test_what_comes_back_goes_to_its_place(lived: World) -> None:
    """Abandoned, expired or released: before the younger ones of its level, behind the higher
    levels."""
    lived.queue("q", priority=THREE)
    send_levels(lived, "q", 1, 0, 1, 1)
    first, second = lived.receive("q", 2)
    lived.abandon("q", second)
    lived.abandon("q", first)
    lived.send("q", "4:2", properties={"level": 2})
    lived.lull()
    assert lived.consume("q") == ["4:2", "0:1", "2:1", "3:1", "1:0"]


@pytest.mark.req("P1")
def test_a_waiting_receiver_gets_the_highest(world: World) -> None:
    """Of what came in one batch."""
    world.queue("q", priority=HEADER)
    link = world.attach("q")
    world.offer(link, 2)
    world.send("q", *[message(str(p), priority=p) for p in (1, 5, 9, 3)])
    assert world.texts(world.arrived(link)) == ["9", "5"]


@pytest.mark.req("P1")
def test_deferred_and_dead_letters(lived: World) -> None:
    """A deferred message is received by number; a dead-letter queue is in the order of its
    numbers."""
    lived.queue("q", priority=THREE)
    send_levels(lived, "q", 0, 2, 1)
    high, middle, low = lived.receive("q", 3)
    lived.defer("q", high)
    lived.dead_letter("q", middle, low)
    lived.lull()
    assert lived.consume("q/$DeadLetterQueue") == ["0:0", "2:1"]
    (deferred,) = lived.receive_deferred("q", 2)
    assert deferred.level == 2


@pytest.mark.req("P1")
def test_changing_the_level_of_a_waiting_message(lived: World) -> None:
    """It takes its place there by its number, and keeps it through a restart; only levels that are
    there, only messages that wait."""
    lived.queue("q", priority=THREE)
    send_levels(lived, "q", 0, 1, 0, 2)
    lived.do(ChangePriority("q", 3, 2))
    lived.do(ChangePriority("q", 2, 0))
    lived.lull()
    lived.refused(ArgumentError, ChangePriority("q", 1, 3))
    lived.refused(ArgumentError, ChangePriority("q", 1, -1))
    lived.refused(MessageNotFoundError, ChangePriority("q", 99, 1))
    locked = lived.receive_one("q")
    assert locked.sequence_number == 3
    lived.refused(MessageNotFoundError, ChangePriority("q", 3, 1))
    lived.abandon("q", locked)
    assert numbers(lived.receive("q", 9)) == [3, 4, 1, 2]


@pytest.mark.req("P1")
def test_changing_a_queue_into_a_priority_queue_and_back(lived: World) -> None:
    """What waits has the lowest level, what comes has its own; with fewer levels the higher ones
    become the top."""
    lived.queue("q")
    send_levels(lived, "q", 2, 2)
    lived.update("q", priority=THREE)
    lived.send("q", "high", properties={"level": 2})
    lived.lull()
    assert lived.texts(lived.browse("q")) == ["0:2", "1:2", "high"]
    lived.complete("q", lived.receive_one("q"))
    lived.send("q", "high", properties={"level": 2})
    lived.send("q", "middle", properties={"level": 1})
    lived.update("q", priority=PrioritySettings(levels=2))
    lived.lull()
    first, second = lived.receive("q", 2)
    assert lived.texts([first, second]) == ["high", "middle"]
    lived.release("q", first, second)
    lived.update("q", priority=None)
    lived.lull()
    assert lived.consume("q") == ["0:2", "1:2", "high", "middle"]


@pytest.mark.req("P1")
@pytest.mark.parametrize("fewer", [PrioritySettings(levels=2), None])
@pytest.mark.parametrize("sessions", [False, True])
def test_fewer_levels_while_messages_are_under_way(
    lived: World, fewer: PrioritySettings | None, sessions: bool
) -> None:
    """Messages of a level that is no longer there, locked, deferred or scheduled meanwhile, come
    back to the top level that is left."""
    lived.queue("q", priority=THREE, requires_session=sessions)
    for body in ("abandoned", "run out", "deferred"):
        lived.send("q", body, session_id="s", properties={"level": 2})
    lived.schedule("q", "later", after_ms=30 * SECOND, session_id="s", properties={"level": 2})
    link = lived.attach("q", session="s" if sessions else None)
    abandoned, _, deferred = lived.take(link, 3)
    lived.defer("q", deferred)
    lived.update("q", priority=fewer)
    lived.abandon("q", abandoned)
    lived.wait(MINUTE)
    lived.lull()
    link = lived.attach("q", session="s" if sessions else None)
    assert lived.texts(lived.take(link, 9)) == ["abandoned", "run out", "later"]
    (again,) = lived.receive_deferred("q", 3, session="s" if sessions else None, link=link)
    lived.release("q", again)


@pytest.mark.req("P1", "T14")
def test_with_sessions(lived: World) -> None:
    """Within a session the higher goes first; other sessions are not touched."""
    lived.queue("q", priority=THREE, requires_session=True)
    for body, session, level in (("a", "x", 0), ("b", "y", 2), ("c", "x", 2), ("d", "x", 0)):
        lived.send("q", body, session_id=session, properties={"level": level})
    lived.lull()
    accepted = lived.accept_session("q", "x")
    assert lived.texts(lived.take(accepted.link, 9)) == ["c", "a", "d"]


@pytest.mark.req("P1", "S2")
def test_with_partitions(lived: World) -> None:
    """The highest level of all partitions goes first; within one the earliest."""
    lived.queue("q", priority=THREE, enable_partitioning=True)
    levels = [0, 1, 2] * 12
    for at, level in enumerate(levels):
        lived.send("q", f"{at}:{level}", properties={"level": level})
        lived.tick(1)
    lived.lull()
    expected = sorted(range(len(levels)), key=lambda at: (-levels[at], at))
    assert lived.consume("q") == [f"{at}:{levels[at]}" for at in expected]


# --- aging ----------------------------------------------------------------------------------------


@pytest.mark.req("P3")
def test_without_aging_the_low_starve(world: World) -> None:
    """Which is why there is aging: as long as higher ones come, a low one does not."""
    world.queue("q", priority=THREE)
    world.send("q", "low")
    for _ in range(200):
        world.send("q", "high", properties={"level": 2})
        assert world.consume("q", 1) == ["high"]
        world.wait(HOUR)
    assert world.consume("q") == ["low"]


@pytest.mark.req("P3")
def test_waiting_raises(lived: World) -> None:
    """One level for each time: the middle one has reached the top before the high one came, the low
    one has reached the middle."""
    aging = PrioritySettings(
        levels=3, source="property", property_name="level", aging_ms_per_level=MINUTE
    )
    lived.queue("q", priority=aging)
    lived.send("q", "low")
    lived.wait(MINUTE - 1)
    lived.send("q", "middle", properties={"level": 1})
    assert lived.texts(lived.receive("q", 1)) == ["middle"]
    lived.wait(MINUTE)  # the lock of the middle one is over, too
    lived.send("q", "high", properties={"level": 2})
    lived.lull()
    assert lived.consume("q") == ["middle", "high", "low"]


@pytest.mark.req("P3")
def test_a_raised_message_goes_before_younger_ones_of_the_top(lived: World) -> None:
    """At the top level for good: nothing that comes later is received before it."""
    aging = PrioritySettings(
        levels=3, source="property", property_name="level", aging_ms_per_level=MINUTE
    )
    lived.queue("q", priority=aging)
    lived.send("q", "low")
    lived.wait(2 * MINUTE)
    for _ in range(5):
        lived.send("q", "high", properties={"level": 2})
    lived.lull()
    assert lived.receive_one("q").sequence_number == 1


@pytest.mark.req("P3")
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_on_waiting(seed: int) -> None:
    """No message waits longer than the bound at the top of this file, under more load than the
    consumer can serve, most of it of the highest level; and the bound is not far off."""
    random = Random(seed)
    levels, aging, service = 4, 20 * SECOND, 1 * SECOND
    world = World()
    world.queue(
        "q",
        priority=PrioritySettings(
            levels=levels, source="property", property_name="level", aging_ms_per_level=aging
        ),
    )
    bound: dict[int, int] = {}
    sent_at: dict[int, int] = {}
    slack = []
    for _ in range(400):
        for _ in range(random.choice((0, 1, 1, 2))):
            level = random.choice((0, 1, 2, 3, 3, 3, 3, 3))
            before = sum(world["q"].counts)
            (number,) = world.send("q", "x", properties={"level": level})
            bound[number] = (levels - 1 - level) * aging + (before + 1) * service
            sent_at[number] = world.now
        world.wait(service)
        for delivery in world.receive("q", 1):
            number = delivery.sequence_number
            waited = world.now - sent_at.pop(number)
            assert waited <= bound[number]
            slack.append(waited / bound[number])
            world.complete("q", delivery)
    for number, time in sent_at.items():
        assert world.now - time <= bound[number]
    assert max(slack) > 0.4


@pytest.mark.req("P3")
def test_aging_counts_from_the_enqueue_time(lived: World) -> None:
    """A restart, an abandon or a renewed place does not make a message young again."""
    aging = PrioritySettings(
        levels=2, source="property", property_name="level", aging_ms_per_level=10 * MINUTE
    )
    lived.queue("q", priority=aging)
    lived.send("q", "low")
    lived.wait(9 * MINUTE)
    lived.abandon("q", lived.receive_one("q"))
    lived.lull()
    lived.wait(MINUTE)
    lived.send("q", "high", properties={"level": 1})
    assert lived.consume("q") == ["low", "high"]


# --- shares ---------------------------------------------------------------------------------------


@pytest.mark.req("P3")
def test_weights_share(lived: World) -> None:
    """With all levels busy, 1 : 3 : 6; the lowest gets its tenth and does not starve."""
    shared = PrioritySettings(levels=3, source="property", property_name="level", weights=(1, 3, 6))
    lived.queue("q", priority=shared)
    for level in (0, 1, 2):
        for _ in range(30):
            lived.send("q", str(level), properties={"level": level})
    lived.lull()
    for _ in range(4):
        batch = lived.consume("q", 10)
        assert sorted(batch) == ["0"] + ["1"] * 3 + ["2"] * 6


@pytest.mark.req("P3")
def test_weights_share_what_is_there(lived: World) -> None:
    """A level without messages leaves its share to the others; first in, first out in each."""
    shared = PrioritySettings(levels=3, source="property", property_name="level", weights=(1, 1, 8))
    lived.queue("q", priority=shared)
    for at in range(10):
        for level in (0, 1):
            lived.send("q", f"{level}-{at}", properties={"level": level})
    lived.lull()
    received = lived.consume("q", 20)
    for digit in "01":
        own = [body for body in received if body[0] == digit]
        assert own == [f"{digit}-{at}" for at in range(10)]
    assert {body[0] for body in received[:2]} == {"0", "1"}
