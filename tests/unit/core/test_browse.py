"""Browsing: looking without touching (T15)."""

from __future__ import annotations

import pytest

from tandembus.changes import Note, Noted
from tandembus.core.commands import Browse
from tandembus.core.state import State
from tandembus.core.tokens import PARTITION_SHIFT
from tandembus.errors import ArgumentError, EntityNotFoundError
from tandembus.limits import MAX_BROWSE
from tandembus.model import Edits
from tests.unit.core.world import HOUR, World, facts, message, numbers, states


@pytest.fixture
def mixed(lived: World) -> World:
    """A queue with a message in each state: 1 locked, 2 deferred, 3 waiting again, 4 deferred and
    locked, 5 scheduled, 6 waiting."""
    lived.queue("q")
    lived.send("q", *"abcd")
    lived.schedule("q", "e", after_ms=HOUR)
    lived.send("q", "f")
    lived.lull()
    _, second, third, fourth = lived.receive("q", 4)
    lived.defer("q", second, fourth)
    lived.abandon("q", third, edits=Edits({"n": 1}))
    lived.receive_deferred("q", 4)
    return lived


@pytest.mark.req("T15")
def test_all_states_by_number(mixed: World) -> None:
    """Nothing is left out, nothing is locked, tokens are not shown, counts and changes are."""
    before = facts(mixed.namespace)
    shown = mixed.browse("q")
    assert numbers(shown) == [1, 2, 3, 4, 5, 6]
    assert states(shown) == [
        State.LOCKED,
        State.DEFERRED,
        State.WAITING,
        State.DEFERRED_LOCKED,
        State.SCHEDULED,
        State.WAITING,
    ]
    assert mixed.texts(shown) == list("abcdef")
    assert all(each.token is None for each in shown)
    assert [each.delivery_count for each in shown] == [0, 1, 1, 1, 0, 0]
    assert mixed.read(shown[2]).properties["n"] == 1
    assert facts(mixed.namespace) == before


@pytest.mark.req("T15")
def test_from_any_number(mixed: World) -> None:
    """That number or the next there is; as many as asked; beyond the last, nothing."""
    assert numbers(mixed.browse("q", start=3, count=2)) == [3, 4]
    assert numbers(mixed.browse("q", start=5)) == [5, 6]
    assert mixed.browse("q", start=7) == []
    mixed.complete("q", *[each for each in mixed.receive("q", 2) if each.sequence_number == 3])
    assert numbers(mixed.browse("q", start=3, count=1)) == [4]


@pytest.mark.req("T15")
def test_page_by_page(world: World) -> None:
    """At most 250 in one answer; the next page begins behind the last number."""
    world.queue("q")
    each = message("a")
    world.send("q", *[each] * 600)
    pages, start = [], 1
    while page := world.browse("q", start, count=10_000):
        pages.append(len(page))
        start = page[-1].sequence_number + 1
    assert pages == [MAX_BROWSE, MAX_BROWSE, 100]
    assert MAX_BROWSE == 250


@pytest.mark.req("T15", "S2")
def test_partitions_one_behind_the_other(lived: World) -> None:
    """By number: the partition's bits are its upper ones."""
    lived.queue("q", enable_partitioning=True)
    sent = sorted(lived.send("q", *[str(n) for n in range(40)]))
    lived.lull()
    assert numbers(lived.browse("q")) == sent
    for at in (0, 7, 20, 39):
        assert numbers(lived.browse("q", start=sent[at])) == sent[at:]
        assert numbers(lived.browse("q", start=sent[at] + 1)) == sent[at + 1 :]
    assert numbers(lived.browse("q", start=5 << PARTITION_SHIFT)) == [
        n for n in sent if n >> PARTITION_SHIFT >= 5
    ]


@pytest.mark.req("T15", "T14")
def test_sessions(lived: World) -> None:
    """All of them, or the one that is asked for; its lock does not matter."""
    lived.queue("q", requires_session=True)
    for session, body in (("x", "a"), ("y", "b"), ("x", "c")):
        lived.send("q", body, session_id=session)
    lived.lull()
    lived.take(lived.accept_session("q", "x").link)
    assert lived.texts(lived.browse("q")) == ["a", "b", "c"]
    assert lived.texts(lived.browse("q", session="x")) == ["a", "c"]
    assert lived.texts(lived.browse("q", start=2, session="x")) == ["c"]
    assert lived.browse("q", session="unknown") == []
    assert [each.session_id for each in lived.browse("q")] == ["x", "y", "x"]


@pytest.mark.req("T15")
def test_every_kind_of_entity(lived: World) -> None:
    """A dead-letter queue, a subscription, its dead-letter queue, and what is scheduled on a
    topic."""
    lived.topic("t")
    path = lived.subscription("t", "s")
    lived.send("t", "a", "b")
    lived.dead_letter(path, lived.receive_one(path), reason="why")
    lived.schedule("t", "c", after_ms=HOUR)
    lived.lull()
    assert lived.texts(lived.browse(path)) == ["b"]
    (dead,) = lived.browse(f"{path}/$DeadLetterQueue")
    assert lived.read(dead).properties["DeadLetterReason"] == "why"
    assert states(lived.browse("t")) == [State.SCHEDULED]


def test_an_empty_queue(world: World) -> None:
    """Shows nothing, and that is no error; the look is in the journal."""
    world.queue("q")
    assert world.browse("q") == []
    noted = world.changes[-1]
    assert isinstance(noted, Noted)
    assert (noted.note, noted.number) == (Note.BROWSED, 0)


def test_what_cannot_be_browsed(world: World) -> None:
    """An unknown entity; no messages at all."""
    world.queue("q")
    world.refused(EntityNotFoundError, Browse("unknown"))
    world.refused(ArgumentError, Browse("q", count=0))
