"""Outages in virtual time: a short slice of `make outage-hours`, and its canaries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from tandembus.pairing.ledger import Formula
from tandembus.pairing.moves import Hand
from tandembus.pairing.syphon import Syphon
from tests.pairing.audit import idle
from tests.pairing.hours import tell


@pytest.mark.req("N9")
@pytest.mark.parametrize("ordered", [True, False])
def test_an_hour_of_outages(ordered: bool) -> None:
    """Nothing is lost, nothing doubled where duplicates are detected; with `ordered_return` the
    order of each sender and session is kept, through failing queues and killed syphons. The ledgers
    agree with the namespaces."""
    report = tell(5 + ordered, 1.0, ordered=ordered)
    assert report.wrong == []
    assert report.through_backlog > 50
    assert report.kills > 1


def test_it_sees_a_lost_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: a syphon that does not look for earlier messages is found out."""
    monkeypatch.setattr(Hand, "must_look", property(lambda _: False))
    found: list[str] = []
    for seed in (4, 16, 14, 2):
        found += tell(seed, 1.0, ordered=True, kill_every_s=20.0).wrong
        if found:
            break
    assert any("came after" in wrong for wrong in found)


def test_it_sees_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: a syphon that takes some sends for done which it has not made is found out."""
    original = Syphon.send_home
    count = 0

    async def wrong(self: Syphon, path: str, payloads: Sequence[bytes]) -> None:
        nonlocal count
        count += 1
        if count % 5:
            await original(self, path, payloads)

    monkeypatch.setattr(Syphon, "send_home", wrong)
    assert any("lost" in each for each in tell(4, 1.0, ordered=True).wrong)


@pytest.mark.req("N11")
@pytest.mark.req("N9")
def test_what_an_idle_syphon_costs() -> None:
    """Ten backlog queues, all healthy: 40 receives an hour and 960 a day, as the formula says, and
    nothing else."""
    formula = Formula(10)
    assert idle(10, 1) == (40, 40)
    assert formula.idle_receives(timedelta(hours=1)) == 40
    assert idle(10, 24) == (960, 960)
    assert formula.idle_receives(timedelta(days=1)) == 960
