"""The state table of a message: every pair of state and trigger, and its picture."""

from __future__ import annotations

import re

import pytest

from tandembus.core import state as table
from tandembus.core.state import TRANSITIONS, State, Trigger, after

LEGAL = """
    WAITING          lock    LOCKED
    WAITING          remove  GONE
    WAITING          expire  GONE
    LOCKED           return  WAITING
    LOCKED           defer   DEFERRED
    LOCKED           remove  GONE
    LOCKED           delay   DELAYED
    DEFERRED         lock    DEFERRED_LOCKED
    DEFERRED         remove  GONE
    DEFERRED         activate  WAITING
    DEFERRED_LOCKED  return  DEFERRED
    DEFERRED_LOCKED  defer   DEFERRED
    DEFERRED_LOCKED  delay   DEFERRED
    DEFERRED_LOCKED  remove  GONE
    SCHEDULED        remove  GONE
    DELAYED          activate  WAITING
    DELAYED          remove  GONE
"""
FOLLOWING = {
    (State[before], Trigger[trigger.upper()]): State[then]
    for before, trigger, then in (line.split() for line in LEGAL.strip().splitlines())
}


@pytest.mark.parametrize("trigger", Trigger)
@pytest.mark.parametrize("before", State)
def test_every_pair(before: State, trigger: Trigger) -> None:
    """Has the one next state that is written here, or cannot happen: then it is a fault of ours and
    stops the broker before anything is changed."""
    if (before, trigger) in FOLLOWING:
        assert after(before, trigger) == FOLLOWING[before, trigger]
    else:
        with pytest.raises(AssertionError, match=f"{before.name} does not take {trigger.name}"):
            after(before, trigger)


def test_the_table_has_nothing_else() -> None:
    """As many rows as are written here."""
    assert TRANSITIONS == FOLLOWING


def test_gone_is_the_end() -> None:
    """No way leads out of it, and one leads there from everywhere else."""
    assert not [pair for pair in TRANSITIONS if pair[0] is State.GONE]
    ending = {before for (before, _), then in TRANSITIONS.items() if then is State.GONE}
    assert ending == set(State) - {State.GONE}


def test_a_lock_is_the_only_way_to_settle() -> None:
    """Returning and deferring are for what is locked; what is locked cannot be locked again, nor
    expire (T13), nor can what is deferred or scheduled."""
    locked = {State.LOCKED, State.DEFERRED_LOCKED}
    for before, trigger in TRANSITIONS:
        if trigger in (Trigger.RETURN, Trigger.DEFER):
            assert before in locked
        if trigger is Trigger.LOCK:
            assert before not in locked
        if trigger is Trigger.EXPIRE:
            assert before is State.WAITING


def test_the_picture_shows_every_state() -> None:
    """The drawing at the top of the module names the states of the table, and no others."""
    assert table.__doc__ is not None
    drawing = table.__doc__.split("A pair that is not")[0]
    named = set(re.findall(r"\b[A-Z]{4,}(?:_[A-Z]+)?\b", drawing))
    assert named == {each.name for each in State}
