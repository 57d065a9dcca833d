"""Sessions that an older broker wrote, which compared their ids with the case (FX19)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tandembus.core import commands as c
from tandembus.core.effects import Delivery
from tandembus.core.namespace import Namespace
from tandembus.store.records import decode_group
from tests.unit.core.world import HOUR, START, World, facts

HERE = Path(__file__).parent
LATER = START + 2_000


def old(name: str) -> bytes:
    """A queue `s` with A1 a1 b1 A2 a2 A3 of the sessions `A`, `a` and `b`, of which A1 and a1 are
    deferred, and one of `a` that is scheduled; `p`, which is partitioned, with A3 of the session
    `A` and a2 a3 a4 of `a`, in another partition. Each `A` and `a` has a state."""
    return zlib.decompress((HERE / name).read_bytes())


def of_index() -> Namespace:
    return Namespace.load(old("index_version_3.zlib"))


def of_log() -> Namespace:
    namespace = Namespace()
    for change, _ in decode_group(old("log_of_index_version_3.zlib")):
        namespace.replay(change)
    return namespace


def of_what_is_written_now() -> Namespace:
    return Namespace.load(b"".join(of_index().dump()))


OPENED = pytest.mark.parametrize("opened", [of_index, of_log, of_what_is_written_now])


def comparable(namespace: Namespace) -> object:
    """Without the count of deliveries: when that index was written, a deferral did not count."""
    return {path: [_uncounted(each) for each in found] for path, found in facts(namespace).items()}


def _uncounted(found: object) -> object:
    if isinstance(found, tuple) and found and isinstance(found[0], Delivery):
        return [each._replace(delivery_count=0) for each in found]
    return found


def world_of(opened: Callable[[], Namespace]) -> World:
    world = World()
    world.namespace, world.now = opened(), LATER
    world.namespace.restart(LATER)
    world._check = lambda: None  # type: ignore[method-assign]  # it knows no payload of before
    return world


@pytest.mark.req("T14")
def test_fx19_an_index_says_what_the_log_says() -> None:
    """Rows of one session in two spellings are one session, the one that came first."""
    assert comparable(of_index()) == comparable(of_log()) == comparable(of_what_is_written_now())
    restarted = [of_index(), of_log()]
    for each in restarted:
        each.restart(LATER)
    assert comparable(restarted[0]) == comparable(restarted[1])


@pytest.mark.req("T14")
@OPENED
def test_fx19_no_message_of_a_merged_session_is_lost(opened: Callable[[], Namespace]) -> None:
    """In order under either spelling, with the state that was set last; deferred ones by number."""
    world = world_of(opened)
    held = world.accept_session("s", "a")
    assert held.session_id == "A"
    assert world.do(c.GetSessionState("s", "a", held.link)) == b"of a"
    assert [each.sequence_number for each in world.take(held.link, 9)] == [4, 5, 6]
    found = world.receive_deferred("s", 1, 2, session="a", link=held.link)
    assert [each.sequence_number for each in found] == [1, 2]
    world.complete("s", *found)
    assert sorted(each.id for each in world["s"].sessions or ()) == ["A", "b"]
    world.wait(HOUR)
    world.detach(held.link)
    again = world.accept_session("s", "A")
    assert [each.body for each in world.take(again.link, 9)] == [4, 5, 6, 7]


@pytest.mark.req("T14")
@OPENED
def test_fx19_in_two_partitions_they_end_as_two(opened: Callable[[], Namespace]) -> None:
    """The order of a session is within a partition, so both stay, each under its own name, until
    one of them is over. Then every spelling is the other one."""
    world = world_of(opened)
    names = {}
    for name, count, state in (("a", 3, b"of a"), ("A", 1, b"of A")):
        held = world.accept_session("p", name)
        names[name] = held.link
        assert held.session_id == name
        assert world.do(c.GetSessionState("p", name, held.link)) == state
        found = world.take(held.link, 9)
        assert len(found) == count
        if name == "A":
            world.complete("p", *found)
            world.do(c.SetSessionState("p", name, None, held.link))
    for link in names.values():
        world.detach(link)
    assert [each.id for each in world["p"].sessions or ()] == ["a"]
    (number,) = world.send("p", "more", session_id="A")
    held = world.accept_session("p", "A")
    assert held.session_id == "a"
    assert world.take(held.link, 9)[-1].sequence_number == number
    world.detach(held.link)
    again = Namespace.load(b"".join(world.namespace.dump()))
    assert facts(again)["p"] == facts(world.namespace)["p"]
