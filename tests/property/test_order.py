"""The order of receiving (P1-P3), through the door: what a receiver gets is what it should get.

The expectation is computed from the definition, over a plain list of what waits: highest effective
level first (level + time waited / aging, never above the top), lowest sequence number among equals;
with weights, shares instead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.changes import Mode
from tandembus.core import commands as c
from tandembus.core import effects as e
from tandembus.core.namespace import Namespace
from tandembus.model import Value
from tandembus.settings import PrioritySettings, QueueSettings
from tests.property.judge import Letter

Step: TypeAlias = tuple[str, int]


@dataclass
class Waiting:
    number: int
    level: int
    enqueued: int

    def rank(self, now: int, top: int, aging: int | None) -> tuple[int, int]:
        aged = 0 if aging is None else (now - self.enqueued) // aging
        return (min(top, self.level + aged), -self.number)


class Consumer:
    """A priority queue with one receiver that takes one message at a time."""

    def __init__(self, priority: PrioritySettings, mode: Mode = Mode.PEEK_LOCK) -> None:
        self.namespace = Namespace()
        self.now = 1_000
        if priority.source == "header":
            priority = replace(priority, source="property", property_name="level")
        self.do(c.CreateQueue("q", QueueSettings(priority=priority, max_delivery_count=1_000)))
        self.do(c.Attach(1, "q", mode))
        self.asked = 0

    def do(self, command: c.Command) -> e.Outcome:
        return self.namespace.apply(command, self.now)

    def send(self, *levels: int) -> list[int]:
        letters = [Letter(b"m", properties={"level": level}) for level in levels]
        reply = self.do(c.Send("q", letters)).reply
        assert isinstance(reply, list | tuple)
        return list(reply)

    def receive(self, count: int = 1) -> list[e.Delivery]:
        """Up to so many, and no credit left behind."""
        self.asked += 1
        outcome = self.do(c.Flow(1, count, self.asked, drain=True))
        return [d for f in outcome.effects if isinstance(f, e.Deliver) for d in f.deliveries]

    def settle(self, delivery: e.Delivery, disposition: c.Disposition) -> None:
        assert delivery.token is not None
        self.do(c.Settle("q", [delivery.token], disposition))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(0, 400)),
        st.tuples(st.just("receive"), st.integers(1, 3)),
        st.tuples(st.just("abandon"), st.just(1)),
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.req("P1", "P3")
@settings(max_examples=150, deadline=None)
@given(
    steps=steps,
    levels=st.integers(2, 10),
    aging=st.one_of(st.none(), st.integers(1, 300)),
)
def test_the_highest_effective_level_is_received_first(
    steps: list[Step], levels: int, aging: int | None
) -> None:
    """For any arrivals, priorities, aging and clock: the maximum, first in first out among equals;
    an abandoned message is back in its own place. And the bound on waiting: a message that has
    waited `aging` for each level above its own is passed by no later one."""
    consumer = Consumer(PrioritySettings(levels=levels, aging_ms_per_level=aging))
    waiting: list[Waiting] = []
    top = levels - 1
    for kind, amount in steps:
        match kind:
            case "wait":
                consumer.now += amount
                consumer.namespace.tick(consumer.now)
            case "send":
                level = min(amount, top)
                (number,) = consumer.send(level)
                waiting.append(Waiting(number, level, consumer.now))
            case _:
                received = consumer.receive(amount)
                assert len(received) == min(amount, len(waiting))
                for delivery in received:
                    best = max(waiting, key=lambda w: w.rank(consumer.now, top, aging))
                    assert delivery.sequence_number == best.number
                    assert delivery.level == best.level
                    waiting.remove(best)
                    for other in waiting if aging is not None else ():
                        if other.number < best.number:
                            waited = consumer.now - other.enqueued
                            assert waited < (top - other.level) * (aging or 0)
                    if kind == "abandon":
                        consumer.settle(delivery, c.Disposition.ABANDON)
                        waiting.append(best)


@pytest.mark.req("P1")
@settings(max_examples=100, deadline=None)
@given(
    priorities=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    changes=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 2)), max_size=10),
)
def test_a_changed_level_counts_at_once(
    priorities: list[int], changes: list[tuple[int, int]]
) -> None:
    """A message whose level is changed while it waits is received as if it had been sent so."""
    consumer = Consumer(PrioritySettings(levels=3), Mode.RECEIVE_AND_DELETE)
    numbers = consumer.send(*priorities)
    level_of = dict(zip(numbers, priorities, strict=True))
    for number, level in changes:
        if number in level_of:
            consumer.do(c.ChangePriority("q", number, level))
            level_of[number] = level
    received = [d.sequence_number for d in consumer.receive(len(numbers) + 1)]
    assert received == sorted(numbers, key=lambda n: (-level_of[n], n))


@pytest.mark.req("P3")
@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=5), data=st.data())
def test_shares_follow_the_weights(weights: list[int], data: st.DataObject) -> None:
    """Over a long backlog each level has its exact share after every full round, is never more than
    one round's share off in between, and is first in first out in itself: nothing starves."""
    rounds = 4
    total = sum(weights)
    consumer = Consumer(
        PrioritySettings(levels=len(weights), weights=tuple(weights)), Mode.RECEIVE_AND_DELETE
    )
    backlog = [level for level, weight in enumerate(weights) for _ in range(weight * (rounds + 1))]
    numbers = consumer.send(*data.draw(st.permutations(backlog)))
    assert len(numbers) == total * (rounds + 1)
    served: Counter[int] = Counter()
    last: dict[int, int] = {}
    for step in range(1, total * rounds + 1):
        (delivery,) = consumer.receive()
        served[delivery.level] += 1
        assert last.get(delivery.level, 0) < delivery.sequence_number
        last[delivery.level] = delivery.sequence_number
        for level, weight in enumerate(weights):
            assert abs(served[level] - step * weight / total) <= weight
            if step % total == 0:
                assert served[level] == weight * step // total


@pytest.mark.req("P3")
@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    gaps=st.lists(st.integers(0, 12), min_size=1, max_size=6),
)
def test_with_weights_a_level_that_waits_is_served_within_a_round(
    weights: list[int], gaps: list[int]
) -> None:
    """However levels come and go, one that has something waiting gets a turn within one round."""
    total = sum(weights)
    consumer = Consumer(
        PrioritySettings(levels=len(weights), weights=tuple(weights)), Mode.RECEIVE_AND_DELETE
    )
    top = len(weights) - 1
    for gap in gaps:
        consumer.send(*[top] * gap)
        consumer.receive(gap)
        consumer.send(0, *[top] * (2 * total))
        levels = [delivery.level for delivery in consumer.receive(total)]
        assert 0 in levels
        while consumer.receive(100):
            pass


@pytest.mark.req("P2")
def test_rules_decide_the_level() -> None:
    """Senders need not know levels: the first rule that matches gives it, none gives the lowest."""
    rules = (("tier = 'paying'", 2), ("tier = 'trial' OR size > 3", 1))
    consumer = Consumer(PrioritySettings(levels=3, source="rules", rules=rules))
    properties: list[dict[str, Value]] = [
        {},
        {"tier": "trial"},
        {"tier": "paying", "size": 9},
        {"size": 4},
        {"size": 3},
    ]
    letters = [Letter(b"m", priority=9, properties=p) for p in properties]
    consumer.do(c.Send("q", letters))
    received = [(d.sequence_number, d.level) for d in consumer.receive(9)]
    assert received == [(3, 2), (2, 1), (4, 1), (1, 0), (5, 0)]
