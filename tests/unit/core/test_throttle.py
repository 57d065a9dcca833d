"""Rates (P10): buckets by the clock that is handed in, and sends that are refused by them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus.changes import Enqueued
from tandembus.core.access import Authority, Claims, Grant, Policy, Right, Secret
from tandembus.core.commands import Declare, Discharge, Send
from tandembus.core.jwt import Jwt
from tandembus.core.throttle import Buckets
from tandembus.errors import EntityDisabledError, ThrottledError
from tandembus.model import NEVER, PING_CONTENT_TYPE
from tandembus.settings import EntityStatus, Rate, RateSettings
from tests.unit.core.world import MINUTE, SECOND, World, message

TEN = RateSettings(entity=Rate(10))


def send(world: World, path: str, *bodies: str, sender: str = "", **fields: object) -> None:
    batch = [message(body, **fields) for body in bodies]
    world.do(Send(path, batch, sender=sender))


# --- buckets --------------------------------------------------------------------------------------


@pytest.mark.req("P10")
@settings(max_examples=300, deadline=None)
@given(
    messages=st.integers(1, 50),
    per_ms=st.sampled_from([1_000, 60_000]),
    burst=st.integers(0, 30),
    asks=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 40)), max_size=40),
)
def test_a_rate_is_kept(
    messages: int, per_ms: int, burst: int, asks: list[tuple[int, int]]
) -> None:
    """Against a plain bucket of exact tokens: the same is taken and the same refused; the time to
    wait is enough, and a millisecond less is not."""
    rate = Rate(messages, per_ms, burst)
    buckets, tokens, now, filled = Buckets(rate), Fraction(rate.most_at_once), 1_000, 1_000
    most, speed = Fraction(rate.most_at_once), Fraction(messages, per_ms)
    # The interval is whole nanoseconds: that is all by which the two may differ.
    slack = Fraction(1, 1_000)
    for passed, count in asks:
        now += passed
        tokens, filled = min(most, tokens + (now - filled) * speed), now
        needed = min(Fraction(count), most)
        wait = buckets.wait_ms("k", count, now)
        if wait == 0:
            assert tokens >= needed - slack
            buckets.take("k", count, now)
            tokens -= count
            continue
        assert tokens < needed
        assert buckets.wait_ms("k", count, now + wait) == 0
        assert buckets.wait_ms("k", count, now + wait - 1) > 0
        assert abs(wait - (needed - tokens) / speed) <= 1 + slack / speed


@pytest.mark.req("P10")
def test_a_batch_larger_than_the_burst() -> None:
    """A full bucket takes it, and the rest has to be waited for: it is neither refused for ever nor
    a way around the rate."""
    buckets = Buckets(Rate(10, burst=5))
    assert buckets.wait_ms("", 50, 0) == 0
    buckets.take("", 50, 0)
    assert buckets.wait_ms("", 1, 0) == 4_600
    assert buckets.wait_ms("", 50, 0) == 5_000


@pytest.mark.req("P10")
def test_the_memory_of_keys_is_bounded() -> None:
    """Who has been quiet is forgotten, which changes nothing; those for whom there is no place
    share one rate, so that a made-up name is no way around it."""
    buckets = Buckets(Rate(1), most_keys=100)
    for number in range(100):
        buckets.take(f"tenant {number}", 1, 0)
    for number in range(10_000):
        wait = buckets.wait_ms(f"made up {number}", 1, 0)
        assert wait == (0 if number == 0 else 1_000)
        if wait == 0:
            buckets.take(f"made up {number}", 1, 0)
    assert len(buckets) == 101
    assert buckets.wait_ms("tenant 5", 1, 0) == 1_000
    for number in range(50):
        assert buckets.wait_ms(f"late {number}", 1, 1_000) == 0
        buckets.take(f"late {number}", 1, 1_000)
    assert len(buckets) == 50


# --- sends ----------------------------------------------------------------------------------------


@pytest.mark.req("P10", "S1")
def test_a_queue_has_a_rate(lived: World) -> None:
    """Over it a send is refused as retryable and says how long; then it succeeds. Nothing is lost,
    and the refused ones leave no gap."""
    lived.queue("q", rates=TEN)
    for number in range(10):
        send(lived, "q", str(number))
    with pytest.raises(ThrottledError, match=r"'q' takes 10/s.*Please wait 0\.1 seconds") as caught:
        send(lived, "q", "10")
    assert caught.value.is_retryable
    assert (caught.value.status, caught.value.retry_after_ms) == (429, 100)
    lived.now += caught.value.retry_after_ms
    send(lived, "q", "10")
    lived.lull()
    received = lived.receive("q", 99)
    assert lived.texts(received) == [str(number) for number in range(11)]
    assert [each.sequence_number for each in received] == list(range(1, 12))


@pytest.mark.req("P10")
def test_a_batch_is_taken_or_refused_as_a_whole(world: World) -> None:
    world.queue("q", rates=TEN)
    send(world, "q", *"abcdefgh")
    with pytest.raises(ThrottledError) as caught:
        send(world, "q", "i", "j", "k")
    assert caught.value.retry_after_ms == 100
    send(world, "q", "i", "j")  # what was refused has cost nothing
    assert world.consume("q") == list("abcdefghij")


@pytest.mark.req("P10")
def test_a_row_of_sends_is_judged_one_by_one(world: World) -> None:
    """What a link has sent together: as much as fits is taken, in order, the rest refused."""
    world.queue("q", rates=TEN)
    row = [message(str(number)) for number in range(12)]
    replies = world.do(Send("q", row, each=True))
    assert isinstance(replies, list)
    assert replies[:10] == list(range(1, 11))
    assert [type(each) for each in replies[10:]] == [ThrottledError] * 2
    assert world.consume("q") == [str(number) for number in range(10)]


@pytest.mark.req("P10")
def test_each_sender_and_each_tenant(world: World) -> None:
    """One that sends too much takes nothing from the others; a batch of several tenants is charged
    to each of them, or to nobody."""
    rates = RateSettings(sender=Rate(3), tenant=Rate(2), tenant_property="customer")
    world.queue("q", rates=rates)
    send(world, "q", "a", "b", sender="one", properties={"customer": "x"})
    with pytest.raises(ThrottledError, match="where customer is 'x'"):
        send(world, "q", "c", sender="two", properties={"customer": "x"})
    mixed = [message("c", properties={"customer": at}) for at in ("y", "x")]
    with pytest.raises(ThrottledError, match="'x'"):
        world.do(Send("q", mixed, sender="two"))
    send(world, "q", "c", sender="one", properties={"customer": "y"})
    with pytest.raises(ThrottledError, match="3/s from 'one'"):
        send(world, "q", "d", sender="one", properties={"customer": "z"})
    send(world, "q", "d", sender="two", properties={"customer": "z"})
    send(world, "q", "e", "f", sender="two")  # without a customer they are one
    with pytest.raises(ThrottledError, match="customer is ''"):
        send(world, "q", "g", sender="three", properties={"customer": None})
    assert world.consume("q") == list("abcdef")


@pytest.mark.req("P10")
def test_a_topic_has_a_rate_too(world: World) -> None:
    world.topic("t", rates=RateSettings(entity=Rate(1, MINUTE)))
    path = world.subscription("t", "s")
    send(world, "t", "a")
    with pytest.raises(ThrottledError) as caught:
        send(world, "t", "b")
    assert caught.value.retry_after_ms == MINUTE
    assert world.consume(path) == ["a"]


@pytest.mark.req("P10")
def test_what_is_no_message_costs_nothing(world: World) -> None:
    """A ping asks whether the entity would take a message; a send that is refused for another
    reason is none."""
    world.queue("q", rates=RateSettings(entity=Rate(1)))
    for _ in range(3):
        send(world, "q", "", content_type=PING_CONTENT_TYPE)
    world.update("q", status=EntityStatus.SEND_DISABLED)
    with pytest.raises(EntityDisabledError):
        send(world, "q", "a")
    world.update("q", status=EntityStatus.ACTIVE)
    send(world, "q", "a")
    with pytest.raises(ThrottledError):
        send(world, "q", "b")


@pytest.mark.req("P10")
def test_within_a_transaction(world: World) -> None:
    """The send itself is refused, while it can still be tried again; what was taken is carried out
    whole."""
    world.queue("q", rates=RateSettings(entity=Rate(2)))
    number = world.do(Declare())
    assert isinstance(number, int)
    for body in ("a", "b"):
        world.do(Send("q", [message(body)], transaction=number))
    with pytest.raises(ThrottledError):
        world.do(Send("q", [message("c")], transaction=number))
    world.do(Discharge(number))
    assert world.consume("q") == ["a", "b"]


@pytest.mark.req("P10")
def test_an_update_keeps_what_was_used(world: World) -> None:
    """Another setting does not fill the buckets; another rate begins anew; none is none."""
    world.queue("q", rates=TEN)
    send(world, "q", *"abcdefghij")
    world.update("q", max_delivery_count=5)
    with pytest.raises(ThrottledError):
        send(world, "q", "k")
    world.update("q", rates=RateSettings(entity=Rate(5)))
    send(world, "q", *"klmno")
    world.update("q", rates=None)
    send(world, "q", *"pqrst")
    assert len(world.consume("q")) == 20


@pytest.mark.req("P10")
def test_a_queue_that_forwards_is_not_refused(world: World) -> None:
    """What a broker moves by itself has nobody who could try again: rates are for senders."""
    world.queue("target", rates=RateSettings(entity=Rate(1)))
    world.queue("source", forward_to="target")
    for body in "abc":
        send(world, "source", body)
    world.lull()
    assert world.consume("target") == list("abc")


def test_a_refused_send_writes_nothing(world: World) -> None:
    world.queue("q", rates=RateSettings(entity=Rate(1)))
    send(world, "q", "a")
    before = len(world.changes)
    with pytest.raises(ThrottledError):
        send(world, "q", "b")
    assert len(world.changes) == before
    assert sum(isinstance(each, Enqueued) for each in world.changes) == 1
    world.now += SECOND
    send(world, "q", "b")


# --- who a sender is ------------------------------------------------------------------------------


@pytest.mark.req("P10", "C3")
def test_a_sender_is_known_by_what_it_has_shown() -> None:
    """The policy whose key it has, on the path or above it; nobody has another name."""
    policies = [Policy("app", Right.SEND, Secret("k" * 44), Secret("s" * 44))]
    authority = Authority(policies)
    claims = Claims()
    assert claims.who("orders") == ""
    for grant in authority.login("app", "s" * 44):
        claims.add(grant)
    assert claims.who("orders") == "app"
    claims.add(Grant("orders", Right.SEND, NEVER, who="other"))
    assert (claims.who("orders"), claims.who("orders/$management")) == ("other", "other")
    assert claims.who("bills") == "app"


@pytest.mark.parametrize(
    ("said", "who"),
    [
        ({"sub": "alice"}, "alice"),
        ({"sub": "alice", "appid": "billing"}, "billing"),
        ({"azp": "billing"}, "billing"),
        ({"sub": 5}, ""),
        ({}, ""),
    ],
)
def test_the_subject_of_a_token(said: dict[str, object], who: str) -> None:
    """The application first, as directories name it: its users share its rate."""
    assert Jwt("RS256", None, said, b"", b"").subject == who
