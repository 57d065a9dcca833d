"""The element `Tandem` of a description (docs/wire-extensions.md): shown, read, kept, removed."""

from __future__ import annotations

import pytest

from tandembus.admin.descriptions import Shown, read_settings
from tandembus.atom import SERVICE_BUS, TANDEM, Element, read
from tandembus.core.commands import CreateQueue, CreateSubscription, CreateTopic
from tandembus.core.namespace import Namespace
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.settings import (
    PrioritySettings,
    QueueSettings,
    Rate,
    RateSettings,
    SubscriptionSettings,
    TopicSettings,
)

RICH = QueueSettings(
    priority=PrioritySettings(3, "rules", None, (("a < 1 AND b = '&'", 2), ("c > 2", 1)), 1_500),
    rates=RateSettings(Rate(5), None, Rate(1, 60_000, 9), "customer"),
)


def described(inside: str, kind: str = "QueueDescription") -> Element:
    return read(f'<{kind} xmlns="{SERVICE_BUS}">{inside}</{kind}>'.encode())


def queue_of(inside: str, kept: QueueSettings | None = None) -> QueueSettings:
    return read_settings(QueueSettings, described(inside), kept, 0, is_premium=False)


@pytest.mark.req("P1", "P10")
def test_what_is_shown_is_read_again() -> None:
    """With what XML has to escape, and the lines of the rules."""
    namespace = Namespace()
    namespace.apply(CreateQueue("q", RICH), 1)
    shown = Shown("host").queue(namespace.find("q"))
    assert read_settings(QueueSettings, read(shown.encode()), None, 0, is_premium=False) == RICH
    assert shown.endswith("</Tandem></QueueDescription>")


def test_nothing_is_shown_of_nothing() -> None:
    """Who has no extensions is described as Azure would."""
    namespace = Namespace()
    namespace.apply(CreateQueue("q"), 1)
    namespace.apply(CreateTopic("t", TopicSettings(rates=RateSettings(Rate(5)))), 1)
    namespace.apply(
        CreateSubscription("t", "s", SubscriptionSettings(priority=PrioritySettings(2))), 1
    )
    shown = Shown("host")
    assert "Tandem" not in shown.queue(namespace.find("q"))
    assert "<RateLimit>5/s</RateLimit>" in shown.topic(namespace.find("t"), (0, 0))
    subscription = shown.subscription(namespace.find("t/Subscriptions/s"))
    assert "<PriorityLevels>2</PriorityLevels>" in subscription


@pytest.mark.req("P1", "P10")
def test_an_update() -> None:
    """Without the element they stay; with it they are as it says, and no others; an empty one takes
    all away."""
    assert queue_of("<MaxDeliveryCount>5</MaxDeliveryCount>", RICH).priority == RICH.priority
    assert queue_of("", RICH).rates == RICH.rates
    changed = queue_of(
        f'<Tandem xmlns="{TANDEM}"><PriorityLevels>4</PriorityLevels></Tandem>', RICH
    )
    assert (changed.priority, changed.rates) == (PrioritySettings(4), None)
    cleared = queue_of(f'<Tandem xmlns="{TANDEM}"/>', RICH)
    assert (cleared.priority, cleared.rates) == (None, None)
    assert queue_of('<Tandem xmlns="urn:of-somebody-else"/>', RICH).rates == RICH.rates


@pytest.mark.parametrize(
    ("inside", "error", "words"),
    [
        ("<PriorityLevel>4</PriorityLevel>", ArgumentError, "'PriorityLevel'"),
        ("<PriorityLevels>four</PriorityLevels>", ArgumentError, "PriorityLevels"),
        ("<RateLimit>1</RateLimit><RateLimit>2</RateLimit>", ProtocolError, "twice"),
    ],
)
def test_what_is_wrong(inside: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        queue_of(f'<Tandem xmlns="{TANDEM}">{inside}</Tandem>')
