"""A row of sends or settlements is what its members would be one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.core.commands import Disposition, Flow, Send, Settle
from tandembus.errors import (
    MessageLockLostError,
    MessageSizeExceededError,
    QuotaExceededError,
    Refused,
)
from tandembus.limits import KIB
from tandembus.settings import PrioritySettings
from tests.unit.core.world import World, message


def test_a_refusal_stays_with_its_message(world: World) -> None:
    """The others are stored, in their order."""
    world.queue("q", max_message_size_kb=1)
    row = [message("a"), message("b" * 2 * KIB), message("c")]
    first, refused, last = world.do(Send("q", row, each=True))
    assert (first, last) == (1, 2)
    assert isinstance(refused, MessageSizeExceededError)
    assert world.waiting("q") == ["a", "c"]


def test_a_row_of_one_is_refused_as_it_is(world: World) -> None:
    world.queue("q", max_message_size_kb=1)
    world.refused(MessageSizeExceededError, Send("q", [message("b" * 2 * KIB)], each=True))


def test_the_quota_is_reached_within_a_row(world: World) -> None:
    """As one by one: what still fits is taken."""
    world.queue("q", max_size_mb=1024)
    world["q"].max_bytes = 2_500  # a gigabyte would take a while
    replies = world.do(Send("q", [message("x" * 1_000) for _ in range(4)], each=True))
    assert [isinstance(it, QuotaExceededError) for it in replies] == [False, False, True, True]


@given(st.lists(st.sampled_from([1, 400, 900, 2_000]), min_size=1, max_size=12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_sending_a_row_is_sending_one_by_one(sizes: list[int], detects: bool) -> None:
    """Same replies, same state, byte for byte."""
    worlds = World(), World()
    for world in worlds:
        world.queue("q", max_message_size_kb=1, requires_duplicate_detection=detects)
        world["q"].max_bytes = 4_000
    row = [message("x" * size, message_id=str(size)) for size in sizes]
    together = worlds[0]
    try:
        replies = list(together.do(Send("q", row, each=True)))
    except Refused as refusal:
        replies = [refusal]
    singly: list[object] = []
    for each in row:
        try:
            singly += worlds[1].do(Send("q", [each]))
        except Refused as refusal:
            singly.append(refusal)
    assert [repr(it) for it in replies] == [repr(it) for it in singly]
    assert worlds[0].namespace.dump() == worlds[1].namespace.dump()
    assert worlds[0].changes == worlds[1].changes


@pytest.mark.parametrize("how", list(Disposition))
def test_a_lost_lock_does_not_spoil_the_others(world: World, how: Disposition) -> None:
    world.queue("q")
    world.send("q", "a", "b", "c")
    tokens = [it.token for it in world.receive("q", 3)]
    assert all(tokens)
    world.do(Settle("q", [tokens[1]], Disposition.COMPLETE))  # type: ignore[list-item]
    replies = world.do(Settle("q", tokens, how, each=True))  # type: ignore[arg-type]
    assert [type(it) for it in replies] == [type(None), MessageLockLostError, type(None)]
    assert not world["q"].locks


def test_a_row_that_is_carried_out_says_nothing(world: World) -> None:
    world.queue("q")
    world.send("q", "a", "b")
    tokens = [it.token or b"" for it in world.receive("q", 2)]
    assert world.do(Settle("q", tokens, Disposition.COMPLETE, each=True)) is None
    assert world.waiting("q") == []


def test_what_is_on_its_way_uses_up_credit(world: World) -> None:
    """A link tells its credit before it has got what was handed out meanwhile: no message is handed
    out twice for the same credit."""
    world.queue("q")
    link = world.attach("q")
    world.offer(link, 3)
    world.send("q", "a", "b", "c", "d", "e", "f")
    assert len(world.arrived(link)) == 3
    world.do(Flow(link, 3, 1, received=1))  # two of the three are still on their way
    assert len(world.arrived(link)) == 1
    world.do(Flow(link, 1, 1, received=0))
    assert world.arrived(link) == []
    world.do(Flow(link, 2, 1, received=4))
    assert len(world.arrived(link)) == 2


@given(
    st.lists(st.tuples(st.integers(1, 9_000), st.sampled_from(["", "ttl", "due"])), max_size=6),
    st.sampled_from(["plain", "levels", "ttl", "partitions"]),
)
@settings(max_examples=40, deadline=None)
def test_long_rows_of_any_kind(rows: list[tuple[int, str]], kind: str) -> None:
    """Over the border of a chunk, and with messages among them that have to go the long way."""
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "levels": {"priority": PrioritySettings(levels=3)},
        "ttl": {"default_ttl_ms": 60_000},
        "partitions": {"enable_partitioning": True},
    }
    worlds = World(), World()
    for world in worlds:
        world.queue("q", **kinds[kind])
    for count, odd in rows:
        fields = {"ttl": {"ttl_ms": 5_000}, "due": {"scheduled_ms": 2**50}}.get(odd, {})
        row = [message("x", message_id="m") for _ in range(count % 50 if odd else count)]
        row += [message("y", message_id="n", **fields)]
        worlds[0].do(Send("q", row, each=True))
        for each in row:
            worlds[1].do(Send("q", [each]))
    assert worlds[0].namespace.dump() == worlds[1].namespace.dump()
    assert worlds[0].changes == worlds[1].changes
