"""What pairing costs (N11)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tandembus.pairing.ledger import Formula, Ledger, Operations


@pytest.mark.req("N11")
def test_the_formula() -> None:
    """The figures of the original: 40 receives an hour, 960 a day, 28,800 in 30 days; four
    operations for a message; one for a ping."""
    formula = Formula(10)
    assert formula.idle_receives(timedelta(hours=1)) == 40
    assert formula.idle_receives(timedelta(days=1)) == 960
    assert formula.idle_receives(timedelta(days=30)) == 28_800
    assert formula.syphoned(1_000) == 4_000
    assert formula.pings(20, timedelta(hours=1), timedelta(minutes=1)) == 1_200


@pytest.mark.req("N11")
def test_a_message_through_the_backlog_costs_four() -> None:
    """Send, receive, send, and the receive that the application makes."""
    ledger = Ledger()
    ledger.add("backlog_sends")
    ledger.add("backlog_receives")
    ledger.add("syphon_sends")
    total = ledger.total()
    assert total.expected_receives == 1
    assert total.total == 4 == Formula.syphoned(1)


@pytest.mark.req("N11")
def test_what_counts_and_what_does_not() -> None:
    """A poll that brings nothing is one; a send to the primary is not because of pairing."""
    ledger = Ledger()
    ledger.add("empty_receives")
    ledger.add("backlog_receives", 7)
    ledger.add("pings")
    ledger.add("primary_sends", 100)
    total = ledger.total()
    assert (total.empty_receives, total.backlog_receives, total.pings) == (1, 7, 1)
    assert total.total == 9


def test_written_and_read() -> None:
    """A kind of a later version is left out; a wrong value is not."""
    ledger = Ledger()
    ledger.add("peeks", 3)
    stored = json.loads(ledger.as_json())
    assert Operations.read({**stored, "later": 5}) == ledger.total()
    with pytest.raises(ValueError):
        Operations.read({"peeks": "many"})
    assert ledger.total().plus(Operations(peeks=1)).peeks == 4
