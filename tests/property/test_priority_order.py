"""The order of a priority queue, for any arrivals, priorities, aging, weights and clock (P1-P3).

What should come next is said here from the definition, over a plain list of what waits; the core is
asked through its door, by one receiver, by several at once, and again after a restart. Short in
pytest, long as `python -m tests.property.test_priority_order --runs 10000`.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tandembus.changes import Change, Mode
from tandembus.core import commands as c
from tandembus.core import effects as e
from tandembus.core.namespace import Namespace
from tandembus.core.ready import Head, Ready
from tandembus.model import NEVER
from tandembus.settings import PrioritySettings, QueueSettings
from tests.property.judge import Letter
from tests.repeat import repeat

Step: TypeAlias = tuple[str, int, int]
LINKS: Final = (1, 2, 3)
MET: Counter[str] = Counter()
"""What the runs have met, for the figures of a long one."""


@dataclass(eq=False)
class Waiting:
    number: int
    level: int
    enqueued: int
    expires: int


@dataclass
class Definition:
    """What docs/priority.md says, without a thought of speed."""

    priority: PrioritySettings
    waiting: list[Waiting] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = [0] * self.priority.levels

    def rank(self, message: Waiting, now: int) -> int:
        """The level as it counts now."""
        aging, top = self.priority.aging_ms_per_level, self.priority.levels - 1
        aged = 0 if aging is None else (now - message.enqueued) // aging
        return min(top, message.level + aged)

    def take(self, now: int) -> Waiting | None:
        """The next one, which waits no longer."""
        self.waiting = [each for each in self.waiting if each.expires > now]
        if not self.waiting:
            return None
        weights = self.priority.weights
        if weights is None:
            best = max(self.waiting, key=lambda each: (self.rank(each, now), -each.number))
        else:
            best = self.next_by_shares(weights, now)
        self.waiting.remove(best)
        return best

    def next_by_shares(self, weights: tuple[int, ...], now: int) -> Waiting:
        oldest: dict[int, Waiting] = {}
        for each in sorted(self.waiting, key=lambda each: each.number):
            oldest.setdefault(each.level, each)
        ranks = {self.rank(each, now) for each in oldest.values()}
        for rank in range(len(self.turns)):
            self.turns[rank] = self.turns[rank] + weights[rank] if rank in ranks else 0
        served = max(ranks, key=lambda rank: (self.turns[rank], rank))
        self.turns[served] -= sum(weights[rank] for rank in ranks)
        of_rank = (each for each in oldest.values() if self.rank(each, now) == served)
        return min(of_rank, key=lambda each: each.number)


class Run:
    """One queue, its clock, and what is expected of it."""

    def __init__(self, priority: PrioritySettings, mode: Mode) -> None:
        self.namespace = Namespace()
        self.changes: list[Change] = []
        self.now = 1_000
        self.mode = mode
        self.asked = 0
        self.expected = Definition(priority)
        self.do(c.CreateQueue("q", self.described(priority)))
        self.attach()

    @staticmethod
    def described(priority: PrioritySettings) -> QueueSettings:
        return QueueSettings(priority=priority, max_delivery_count=10_000)

    def do(self, command: c.Command) -> e.Outcome:
        outcome = self.namespace.apply(command, self.now)
        self.changes += outcome.changes
        return outcome

    def attach(self) -> None:
        for link in LINKS:
            self.do(c.Attach(link, "q", self.mode))

    # --- steps ------------------------------------------------------------------------------------

    def step(self, kind: str, first: int, second: int) -> None:
        match kind:
            case "send":
                self.send([first])
            case "send for a time":
                self.send([first], ttl=1 + second)
            case "batch":
                self.send([(first + at * second) % 12 for at in range(1 + second % 8)])
            case "wait":
                self.now += first * second
            case "receive":
                self.receive(1 + first)
            case "receive and abandon":
                self.receive(1 + first % 3, abandons=True)
            case "several receive":
                self.several([1 + first % 3, 1 + second % 3, first % 2])
            case "change":
                self.change(first, second)
            case "restart":
                self.restart(is_dumped=bool(first % 2))
            case _:
                self.update(first, second)

    def send(self, levels: list[int], ttl: int | None = None) -> None:
        # Above the top and below the bottom, too: the nearest level is meant.
        letters = [Letter(b"m", properties={"level": at - 1}, ttl_ms=ttl) for at in levels]
        numbers = self.do(c.Send("q", letters)).reply
        assert isinstance(numbers, list | tuple)
        top = self.expected.priority.levels - 1
        for number, at in zip(numbers, levels, strict=True):
            level = max(0, min(at - 1, top))
            expires = NEVER if ttl is None else self.now + ttl
            self.expected.waiting.append(Waiting(number, level, self.now, expires))

    def receive(self, count: int, *, abandons: bool = False) -> None:
        (deliveries,) = self.ask({1: count})
        back: list[Waiting] = []
        for delivery in deliveries:
            wanted = self.expected.take(self.now)
            assert wanted is not None
            assert (delivery.sequence_number, delivery.level) == (wanted.number, wanted.level)
            MET["received"] += 1
            MET["received over its own level"] += (
                self.expected.rank(wanted, self.now) > wanted.level
            )
            if abandons and delivery.token is not None:
                MET["abandoned"] += 1
                back.append(wanted)
            self.settle(delivery, c.Disposition.ABANDON if abandons else c.Disposition.COMPLETE)
        if len(deliveries) < count:
            assert self.expected.take(self.now) is None
        self.expected.waiting += back

    def settle(self, delivery: e.Delivery, how: c.Disposition = c.Disposition.COMPLETE) -> None:
        if delivery.token is not None:
            self.do(c.Settle("q", [delivery.token], how))

    def ask(self, credits: dict[int, int]) -> list[list[e.Delivery]]:
        """What each link is given, at once, for its credit; none is left behind."""
        found = []
        for link, credit in credits.items():
            self.asked += 100
            outcome = self.do(c.Flow(link, credit, self.asked, drain=True))
            found.append(
                [d for f in outcome.effects if isinstance(f, e.Deliver) for d in f.deliveries]
            )
        return found

    def several(self, credits: list[int]) -> None:
        """Receivers that wait when a batch comes: they get the highest of it, in turn."""
        self.receive(1_000)
        for link, credit in zip(LINKS, credits, strict=True):
            self.asked += 100
            if credit:
                self.do(c.Flow(link, credit, self.asked))
        before = len(self.changes)
        levels = [(each * 7 + self.now) % 12 for each in range(5)]
        letters = [Letter(b"m", properties={"level": at - 1}) for at in levels]
        outcome = self.do(c.Send("q", letters))
        assert len(self.changes) > before
        numbers = outcome.reply
        assert isinstance(numbers, list | tuple)
        top = self.expected.priority.levels - 1
        for number, at in zip(numbers, levels, strict=True):
            self.expected.waiting.append(Waiting(number, max(0, min(at - 1, top)), self.now, NEVER))
        given = {f.link: list(f.deliveries) for f in outcome.effects if isinstance(f, e.Deliver)}
        left = dict(zip(LINKS, credits, strict=True))
        while any(left.values()) and self.expected.waiting:
            for link in [link for link in LINKS if left[link]]:
                wanted = self.expected.take(self.now)
                if wanted is None:
                    break
                left[link] -= 1
                delivery = given[link].pop(0)
                assert delivery.sequence_number == wanted.number
                self.settle(delivery)
                MET["received by one of several"] += 1
        assert not any(given.values())
        self.ask(dict.fromkeys(LINKS, 0))

    def change(self, which: int, level: int) -> None:
        alive = [each for each in self.expected.waiting if each.expires > self.now]
        if alive:
            chosen = alive[which % len(alive)]
            chosen.level = level % self.expected.priority.levels
            self.do(c.ChangePriority("q", chosen.number, chosen.level))
            MET["levels changed"] += 1

    def restart(self, *, is_dumped: bool) -> None:
        """Nothing of the order is forgotten but the turns; a lock ends, so nothing is locked."""
        MET["restarts"] += 1
        if is_dumped:
            self.namespace = Namespace.load(b"".join(self.namespace.dump()))
        else:
            self.namespace = Namespace()
            for change in self.changes:
                self.namespace.replay(change)
        outcome = self.namespace.restart(self.now)
        self.changes += outcome.changes
        self.expected.turns = [0] * self.expected.priority.levels
        self.attach()

    def update(self, first: int, second: int) -> None:
        """Another aging, the same levels: it counts for what waits already."""
        old = self.expected.priority
        priority = PrioritySettings(
            old.levels,
            old.source,
            old.property_name,
            aging_ms_per_level=first * second or None,
            weights=old.weights,
        )
        self.do(c.UpdateEntity("q", self.described(priority)))
        if priority != old:
            self.expected.priority = priority
            self.expected.turns = [0] * old.levels


small = st.integers(0, 12)
kinds = st.sampled_from(
    ["send"] * 4
    + ["send for a time", "batch", "batch", "wait", "wait", "receive", "receive"]
    + ["receive and abandon", "several receive", "change", "restart", "update"]
)
steps = st.lists(st.tuples(kinds, small, st.integers(0, 60)), min_size=12, max_size=60)


@st.composite
def priorities(draw: st.DrawFn) -> PrioritySettings:
    levels = draw(st.integers(2, 10))
    weights = draw(st.none() | st.tuples(*[st.integers(1, 9)] * levels))
    aging = draw(st.none() | st.integers(1, 300))
    return PrioritySettings(levels, "property", "level", (), aging, weights)


def check(priority: PrioritySettings, mode: Mode, steps: list[Step]) -> None:
    run = Run(priority, mode)
    for step in steps:
        run.step(*step)
    run.receive(1_000)
    assert not run.expected.waiting


def check_many(runs: int, number: int, *, shrinks: bool = True) -> None:
    """Raises at the first counterexample, shrunk to the few steps that show it."""
    many = settings(
        max_examples=runs,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )

    @seed(number)
    @many
    @given(priority=priorities(), mode=st.sampled_from(Mode), steps=steps)
    def one(priority: PrioritySettings, mode: Mode, steps: list[Step]) -> None:
        MET["runs"] += 1
        check(priority, mode, steps)

    one()


@pytest.mark.req("P1", "P3")
@settings(max_examples=150, deadline=None)
@given(priority=priorities(), mode=st.sampled_from(Mode), steps=steps)
def test_what_is_received_is_the_highest(
    priority: PrioritySettings, mode: Mode, steps: list[Step]
) -> None:
    """The maximum of effective priority, first in first out among equals; with weights, the share's
    turn. Also for what came back, was changed while it waited, or survived a restart."""
    check(priority, mode, steps)


class Ageless(Ready):
    """Wrong: nothing rises."""

    __slots__ = ()

    def effective(self, level: int, enqueued: int, now: int) -> int:
        return level


class Unfair(Ready):
    """Wrong: who was served does not pay."""

    __slots__ = ()

    def _share(self, heads: list[Head], now: int) -> int:
        self._turns = [0] * len(self._turns)
        return super()._share(heads, now)


@pytest.mark.parametrize("wrong", [Ageless, Unfair])
def test_a_wrong_order_is_found(wrong: type[Ready], monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: queues that are wrong on purpose."""
    monkeypatch.setattr("tandembus.core.queue.Ready", wrong)
    with pytest.raises(AssertionError):
        check_many(300, 1, shrinks=False)


SLICE: Final = 500
"""Runs of one seed."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    began, number = time.monotonic(), options.seed
    MET.clear()
    while MET["runs"] < options.runs:
        count = min(SLICE, options.runs - MET["runs"])
        try:
            check_many(count, number)
        except Exception:  # noqa: BLE001 - whatever core raises is reported, with its seed
            traceback.print_exc()
            print(f"COUNTEREXAMPLE, seed {number}", file=sys.stderr)
            return repeat("priority-order", "--seed", number, ORDERS=count)
        number += 1
        seconds = time.monotonic() - began
        print(f"{MET['runs']:,} of {options.runs:,} runs, {seconds:.0f} s", flush=True)
    for what, count in sorted(MET.items()):
        print(f"{count:>12,}  {what}")
    print(f"{MET['runs']:,} runs, 0 counterexamples")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
