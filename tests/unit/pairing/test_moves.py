"""What the syphon may send when: no message before an earlier one of its group (N9)."""

from __future__ import annotations

import pytest

from tandembus.pairing.aliases import Restored, Stamp
from tandembus.pairing.moves import STALE_MS, Elsewhere, Flow, Hand, Holds, Item, Seen


def item(number: int, session: str | None = None, path: str = "q", since_ms: int = 0) -> Item:
    return Item(None, Restored(path, b"", session, number, 0), since_ms)


def stamped(number: int, sender: str, count: int, *after: str) -> Item:
    found = Restored("q", b"", None, number, 0, Stamp(sender, count, after))
    return Item(None, found, 0)


def hand(*items: Item, gone_below: int = 0) -> Hand:
    made = Hand(gone_below=gone_below)
    made.take(items)
    return made


def numbers(made: Hand, held: frozenset[str] = frozenset()) -> list[int]:
    ready = made.ready(lambda each: each.restored.path in held)
    return sorted(each.number for items in ready.values() for each in items)


def seen(number: int, session: str | None = None, path: str = "q") -> Seen:
    return Seen(number, (path, session))


@pytest.mark.req("N9")
def test_nothing_to_ask_when_the_numbers_follow() -> None:
    """What is in hand follows on what has gone: nobody else can have an earlier one."""
    made = hand(item(5), item(6), gone_below=5)
    assert not made.must_look
    assert numbers(made) == [5, 6]
    made.settled([made.items[5], made.items[6]])
    made.take([item(7)])
    assert (made.gone_below, made.must_look) == (7, False)


@pytest.mark.req("N9")
def test_a_gap_must_be_looked_at() -> None:
    """Somebody has 5 and 6, of session a: what is of session a here waits, b goes."""
    made = hand(item(7, "a"), item(8, "b"), item(9, "a"), gone_below=5)
    assert made.must_look
    made.look([seen(5, "a"), seen(6, "c"), seen(7, "a"), seen(8, "b"), seen(9, "a")])
    assert numbers(made) == [8]
    assert made.gone_below == 5
    made.look([seen(6, "c"), seen(7, "a"), seen(8, "b"), seen(9, "a")])
    assert numbers(made) == [7, 8, 9]
    assert made.gone_below == 6


@pytest.mark.req("N9")
def test_one_backlog_queue_keeps_the_order_of_senders() -> None:
    """Then a destination is one group, whatever its sessions; another destination is not held."""
    made = hand(item(7, "a"), item(8, "b"), item(9, None, "other"), gone_below=5)
    made.is_whole = True
    made.look([seen(5, "c"), seen(7, "a"), seen(8, "b"), seen(9, None, "other")])
    assert numbers(made) == [9]
    assert sorted(each.number for each in made.stale(STALE_MS)) == [7, 8, 9]
    made.look([seen(7, "a"), seen(8, "b"), seen(9, None, "other")])
    assert numbers(made) == [7, 8, 9]


@pytest.mark.req("N9")
def test_a_later_one_elsewhere_does_not_hold() -> None:
    """Somebody has 8 of session a: 7 goes, 9 waits."""
    made = hand(item(7, "a"), item(9, "a"), gone_below=7)
    made.look([seen(7, "a"), seen(8, "a"), seen(9, "a")])
    assert numbers(made) == [7]


@pytest.mark.req("N9")
def test_numbers_that_have_gone_are_not_asked_for_again() -> None:
    made = hand(item(10), item(14), gone_below=0)
    made.look([seen(10), seen(14)])
    assert (made.gone_below, made.must_look, numbers(made)) == (10, False, [10, 14])
    made.settled([made.items[10], made.items[14]])
    assert made.gone_below == 15


def test_numbers_that_lie_far_apart() -> None:
    """Of a partitioned queue: they are not counted one by one."""
    made = hand(item(1), item(1 << 48), gone_below=0)
    made.look([seen(1), seen(1 << 48)])
    assert numbers(made) == [1, 1 << 48]


@pytest.mark.req("N9")
def test_a_look_grows_old() -> None:
    """Somebody had 1, at the last look; then it came to this hand: 2 waits for nobody any more.
    (Found by the simulated hours: a backlog that did not come home.)"""
    made = hand(item(2, "a"), gone_below=1)
    made.look([seen(1, "a"), seen(2, "a")])
    assert numbers(made) == []
    made.take([item(1, "a")])
    assert numbers(made) == [1, 2]


@pytest.mark.req("N9")
def test_what_has_gone_above_fills_no_gap_below() -> None:
    """3 has gone; that says nothing about 1. (Found by the simulated hours: two syphons sent one
    session in the wrong order.)"""
    made = hand(item(2, "a"), item(3, "b"), gone_below=1)
    made.look([seen(1, "a"), seen(2, "a"), seen(3, "b")])
    made.settled([made.items[3]])
    assert made.must_look
    assert numbers(made) == []


@pytest.mark.req("N9")
def test_a_destination_that_fails_holds_its_own_only() -> None:
    made = hand(item(1, "a", "q"), item(2, "a", "r"), item(3, "b", "q"), gone_below=1)
    assert numbers(made, frozenset({"q"})) == [2]


@pytest.mark.req("N9")
def test_one_that_is_held_holds_what_follows() -> None:
    """Within its group: 2 may not go, so 4 may not."""
    made = hand(item(1, "a"), item(2, "b"), item(3, "a"), item(4, "b"), gone_below=1)
    ready = made.ready(lambda each: each.number == 2)
    assert [each.number for each in ready["q"]] == [1, 3]


@pytest.mark.req("N9")
def test_what_is_old_goes_back_with_what_follows() -> None:
    """The lock of 1 is about to end; 3 is of the same group, and could not go before it."""
    made = hand(item(1, "a"), item(2, "b", since_ms=5), item(3, "a", since_ms=5), gone_below=1)
    assert made.stale(STALE_MS - 1) == []
    stale = made.stale(STALE_MS)
    assert sorted(each.number for each in stale) == [1, 3]
    made.dropped(stale)
    assert sorted(made.items) == [2]
    assert made.must_look, "1 and 3 are somebody's again"


@pytest.mark.req("N9")
def test_other_queues_of_a_sender() -> None:
    """With `ordered_return`: a sender that changed its queue says so, and the syphon looks there
    until nothing earlier of it is left. What is of others, or later, does not matter."""
    elsewhere = Elsewhere()
    items = [stamped(1, "me", 10, "0.3"), stamped(2, "me", 11, "0.3"), stamped(3, "you", 1)]
    key = ("0.3", "me")
    assert elsewhere.unclear(items) == {key: 11}
    assert elsewhere.is_before(items[0])
    assert not elsewhere.is_before(items[2])
    page = [Seen(50, ("q", None), Stamp("you", 3)), Seen(51, ("q", None), Stamp("me", 9))]
    assert elsewhere.looked(key, 11, page)
    assert elsewhere.start(key) == 51
    assert elsewhere.is_before(items[0])
    assert not elsewhere.looked(key, 11, [Seen(51, ("q", None), Stamp("you", 4))])
    assert elsewhere.start(key) == 52
    assert elsewhere.looked(key, 11, [Seen(52, ("q", None), Stamp("me", 12))])
    assert not any(elsewhere.is_before(each) for each in items)
    assert elsewhere.unclear(items) == {}
    assert not elsewhere.looked(key, 30, [Seen(40, ("q", None), Stamp("you", 2))]), "before it"
    assert elsewhere.start(key) == 52
    later = stamped(9, "me", 20, "0.3")
    assert elsewhere.is_before(later), "it has been there again in between"
    assert elsewhere.start(key) == 52, "and that is not passed over"
    assert elsewhere.looked(key, 20, [Seen(52, ("q", None), Stamp("me", 12))])
    assert elsewhere.is_before(later)
    assert elsewhere.looked(key, 20, [])
    assert not elsewhere.is_before(later)


@pytest.mark.req("N9")
def test_what_comes_before_the_first_elsewhere_may_go() -> None:
    """A sender has used two queues in turns: 1 to 3 here, 4 and 5 there, 6 here. What it sent first
    need not wait for what it sent there later. (Found by the outages: a backlog that came
    home at a crawl, because all in hand waited for 4.)"""
    here = [stamped(n, "me", n, "0.1") for n in (1, 2, 3, 6)]
    there = [stamped(n, "me", n, "0.0") for n in (4, 5)]
    mine, theirs = Elsewhere(), Elsewhere()
    assert mine.unclear(here) == {("0.1", "me"): 6}
    assert mine.looked(("0.1", "me"), 6, [Seen(7, ("q", None), Stamp("me", 4))])
    assert [mine.is_before(each) for each in here] == [False, False, False, True]
    assert theirs.looked(("0.0", "me"), 5, [Seen(1, ("q", None), Stamp("me", 1))])
    assert all(map(theirs.is_before, there))
    assert theirs.looked(("0.0", "me"), 5, [Seen(8, ("q", None), Stamp("me", 6))])
    assert not any(map(theirs.is_before, there))


def test_holds() -> None:
    """Ever more rarely, up to a bound; a success forgets it."""
    holds = Holds()
    waits = []
    now_ms = 0
    for _ in range(8):
        holds.failed("q", now_ms, "down")
        waits.append(holds.wait_ms(["q"], now_ms))
        now_ms += waits[-1]
    assert waits == [500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000, 15_000]
    assert not holds.is_held("q", now_ms)
    assert holds.wait_ms(["q", "other"], 0) == 0
    assert holds.why == {"q": "down"}
    holds.succeeded("q")
    assert holds.why == {}


def test_flow_adds_up() -> None:
    flow = Flow(received=10, sent=6, completed=5, dead_lettered=1, returned=1, lost=1)
    assert flow.in_hand == 2
    assert flow.plus(flow) == Flow(20, 12, 10, 2, 2, 2)
