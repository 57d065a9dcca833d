"""Who is let in while nobody knows them."""

from __future__ import annotations

from tandembus.server.door import Answer, Door


def test_each_address_has_its_share() -> None:
    """One address that has filled its share waits; another comes in past it."""
    door: Door[str] = Door(most=3, most_per_address=2, most_waiting=2)
    assert [door.knock("a", name) for name in ("a1", "a2")] == [Answer.COME_IN] * 2
    assert door.knock("a", "a3") is Answer.WAIT
    assert door.knock("b", "b1") is Answer.COME_IN
    assert door.knock("b", "b2") is Answer.WAIT
    assert door.knock("c", "c1") is Answer.GO_AWAY
    assert (door.count, door.waiting, door.clear()) == (3, 2, ["a3", "b2"])


def test_the_first_that_finds_room_is_next() -> None:
    """In the order of their coming, but nobody waits for an address that is not theirs."""
    door: Door[str] = Door(most=2, most_per_address=1, most_waiting=9)
    for address, name in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("c", "c1")):
        door.knock(address, name)
    assert door.next() is None
    door.leave("b")
    assert door.next() == ("b", "b2")
    assert door.next() is None
    door.leave("a")
    assert door.next() == ("a", "a2")
    door.leave("a")
    assert door.next() == ("c", "c1")
    door.leave("b")
    door.leave("c")
    assert (door.count, door.waiting, door.next()) == (0, 0, None)


def test_addresses_come_in_by_turns() -> None:
    """However many of one wait."""
    door: Door[str] = Door(most=2, most_per_address=2, most_waiting=9)
    for address, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("a", "a4"), ("b", "b1")):
        door.knock(address, name)
    door.leave("a")
    door.leave("a")
    assert [door.next(), door.next(), door.next()] == [("a", "a3"), ("b", "b1"), None]
