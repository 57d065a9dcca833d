"""Azure's descriptions: the order of the elements, what comes back, what is refused."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from decimal import Decimal
from uuid import UUID

import pytest

from tandembus.admin.descriptions import (
    Shown,
    namespace_info,
    read_rule,
    read_settings,
    rule_description,
)
from tandembus.atom import INSTANCE, SERVICE_BUS, Element, read
from tandembus.core.commands import CreateQueue, CreateSubscription, CreateTopic
from tandembus.core.namespace import Namespace
from tandembus.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from tandembus.errors import ArgumentError, ProtocolError, TandemError
from tandembus.model import NEVER, Duration, Int, Secret, Symbol, Timestamp, Value
from tandembus.settings import (
    AccessRight,
    AuthorizationRule,
    EntityStatus,
    PrioritySettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)

NOW = 1_700_000_000_000
OWN = AuthorizationRule(
    "own", (AccessRight.SEND,), Secret("one & only"), Secret("two"), NOW, NOW + 1
)
FULL = QueueSettings(
    lock_duration_ms=5_000,
    max_size_mb=2048,
    requires_duplicate_detection=True,
    duplicate_window_ms=20_000,
    default_ttl_ms=90_061_001,
    dead_letter_on_expiration=True,
    max_delivery_count=3,
    enable_partitioning=True,
    auto_delete_on_idle_ms=300_000,
    forward_to="Target/One",
    forward_dead_letters_to="Target/One",
    status=EntityStatus.RECEIVE_DISABLED,
    enable_batched_operations=False,
    user_metadata="<é>",
    authorization_rules=(OWN,),
    enable_express=True,
)
QUEUE = """LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession
    DefaultMessageTimeToLive DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow
    MaxDeliveryCount EnableBatchedOperations SizeInBytes MessageCount IsAnonymousAccessible
    AuthorizationRules Status ForwardTo UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering
    CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableExpress
    ForwardDeadLetteredMessagesTo MaxMessageSizeInKilobytes""".split()
TOPIC = """DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection
    DuplicateDetectionHistoryTimeWindow EnableBatchedOperations SizeInBytes
    FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules Status CreatedAt
    UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount SqlFilterCount
    CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus
    EnableSubscriptionPartitioning EnableExpress UserMetadata MaxMessageSizeInKilobytes""".split()
SUBSCRIPTION = """LockDuration RequiresSession DefaultMessageTimeToLive
    DeadLetteringOnMessageExpiration DeadLetteringOnFilterEvaluationExceptions MessageCount
    MaxDeliveryCount EnableBatchedOperations Status ForwardTo CreatedAt UpdatedAt AccessedAt
    CountDetails UserMetadata ForwardDeadLetteredMessagesTo AutoDeleteOnIdle
    EntityAvailabilityStatus""".split()


@pytest.fixture
def namespace() -> Namespace:
    namespace = Namespace()
    for command in (
        CreateQueue("Target/One"),
        CreateQueue("q", FULL),
        CreateTopic("t", TopicSettings(user_metadata="m", authorization_rules=(OWN,))),
        CreateSubscription(
            "t",
            "s",
            SubscriptionSettings(
                forward_to="q", forward_dead_letters_to="q", user_metadata="x", max_delivery_count=2
            ),
        ),
    ):
        namespace.apply(command, NOW)
    return namespace


def described(text: str) -> Element:
    return read(text.encode())


def names(element: Element) -> list[str]:
    return [child.name for child in element.children]


def test_the_order_of_the_elements(namespace: Namespace) -> None:
    """Azure's; the size of messages is shown from api-version 2021-05 on."""
    new, old = Shown("h"), Shown("h", "2017-04")
    queue, topic = namespace.find("q"), namespace.find("t")
    assert names(described(new.queue(queue))) == QUEUE
    assert names(described(old.queue(queue))) == QUEUE[:-1]
    assert names(described(new.topic(topic, (2, 1)))) == TOPIC
    assert names(described(old.topic(topic, (2, 1)))) == TOPIC[:-1]
    subscription = namespace.find("t/subscriptions/s")
    assert names(described(new.subscription(subscription))) == SUBSCRIPTION


def test_the_literal_words_that_the_javascript_sdk_needs(namespace: Namespace) -> None:
    """It reads without namespaces: prefixes and attributes are part of the contract."""
    text = Shown("h:1").queue(namespace.find("q"))
    assert text.startswith(f'<QueueDescription xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"><Lock')
    assert (
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        "<d2p1:ActiveMessageCount>0</d2p1:ActiveMessageCount>"
    ) in text
    assert (
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        "<Rights><AccessRights>Send</AccessRights></Rights>"
        "<CreatedTime>2023-11-14T22:13:20.000Z</CreatedTime>"
        "<ModifiedTime>2023-11-14T22:13:20.001Z</ModifiedTime><KeyName>own</KeyName>"
        "<PrimaryKey>one &amp; only</PrimaryKey><SecondaryKey>two</SecondaryKey>"
    ) in text
    assert "<ForwardTo>sb://h:1/Target/One</ForwardTo>" in text
    assert "<AccessedAt>0001-01-01T00:00:00Z</AccessedAt>" in text
    assert "<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>" in text


def test_what_is_shown_can_be_sent_back(namespace: Namespace) -> None:
    """The settings are the same, with the elements that only the broker fills in."""
    shown = Shown("h")
    text = shown.queue(namespace.find("q"))
    read_back = read_settings(QueueSettings, described(text), FULL, NOW + 9, is_premium=False)
    # One that forwards is never idle, and says so.
    assert read_back == replace(FULL, auto_delete_on_idle_ms=NEVER)
    topic = namespace.find("t")
    kept = topic.settings
    assert isinstance(kept, TopicSettings)
    text = shown.topic(topic, (1, 0))
    assert read_settings(TopicSettings, described(text), kept, NOW, is_premium=False) == kept
    subscription = namespace.find("t/subscriptions/s")
    assert isinstance(subscription.settings, SubscriptionSettings)
    text = shown.subscription(subscription)
    again = read_settings(
        SubscriptionSettings, described(text), subscription.settings, NOW, is_premium=False
    )
    assert again == subscription.settings


def description(kind: str, inside: str = "") -> Element:
    return described(f'<{kind} xmlns="{SERVICE_BUS}" xmlns:x="{INSTANCE}">{inside}</{kind}>')


def test_an_update_replaces_the_whole() -> None:
    """What is absent gets its default, but what is fixed, and what Azure has no word for, stays."""
    kept = QueueSettings(
        requires_session=True,
        max_delivery_count=3,
        user_metadata="x",
        authorization_rules=(OWN,),
        priority=PrioritySettings(),
        max_message_size_kb=512,
    )
    empty = description("QueueDescription")
    assert read_settings(QueueSettings, empty, kept, NOW, is_premium=False) == QueueSettings(
        requires_session=True, priority=PrioritySettings(), max_message_size_kb=512
    )
    assert read_settings(QueueSettings, empty, None, NOW, is_premium=False) == QueueSettings()
    premium = read_settings(QueueSettings, empty, None, NOW, is_premium=True)
    assert premium.max_message_size_kb == 1024


def test_keys_keep_the_time_of_their_creation() -> None:
    """The time of change moves when a key or a right does."""
    for key, modified in (("one &amp; only", OWN.modified_ms), ("new", NOW + 9)):
        element = description(
            "QueueDescription",
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights>"
            f"</Rights><KeyName>own</KeyName><PrimaryKey>{key}</PrimaryKey>"
            "<SecondaryKey>two</SecondaryKey></AuthorizationRule></AuthorizationRules>",
        )
        settings = read_settings(QueueSettings, element, FULL, NOW + 9, is_premium=False)
        (rule,) = settings.authorization_rules
        assert (rule.created_ms, rule.modified_ms) == (NOW, modified)


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ("<LockDuration>1 minute</LockDuration>", "not a duration"),
        ("<MaxDeliveryCount>many</MaxDeliveryCount>", "not an integer"),
        ("<RequiresSession>maybe</RequiresSession>", "neither true nor false"),
        ("<Status>Sleeping</Status>", "not a status"),
        ("<ForwardTo>sb://[x/y</ForwardTo>", "not a URI"),
        ("<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>", "Standard"),
        (
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Fly</AccessRights>"
            "</Rights></AuthorizationRule></AuthorizationRules>",
            "Manage, Send and Listen",
        ),
    ],
)
def test_values_that_are_refused(inside: str, words: str) -> None:
    element = description("QueueDescription", inside)
    with pytest.raises(TandemError, match=words) as caught:
        read_settings(QueueSettings, element, None, NOW, is_premium=False)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sb://h/a/b", "a/b"),
        ("sb://h:5671/a%2Fb", "a/b"),
        ("https://h/Name/", "Name"),
        ("a/b", "a/b"),
    ],
)
def test_where_is_forwarded_to(text: str, name: str) -> None:
    """By name or by URI; the host does not count."""
    element = description("QueueDescription", f"<ForwardTo>{text}</ForwardTo>")
    settings = read_settings(QueueSettings, element, None, NOW, is_premium=False)
    assert settings.forward_to == name


def test_the_namespace_of_each_tier() -> None:
    standard = described(namespace_info("n", NOW, is_premium=False))
    assert (standard.value("MessagingSKU"), standard.value("MessagingUnits")) == ("Standard", None)
    premium = described(namespace_info("n", NOW, is_premium=True))
    assert (premium.value("MessagingSKU"), premium.value("MessagingUnits")) == ("Premium", "1")


# --- rules ----------------------------------------------------------------------------------------

VALUES: dict[str, Value] = {
    "text": "<x>",
    "none": None,
    "yes": True,
    "int": -(2**31),
    "long": 2**31,
    "double": 1.5,
    "infinite": float("-inf"),
    "decimal": Decimal("1.10"),
    "time": Timestamp(NOW),
    "duration": Duration(-15),
    "uuid": UUID(int=5),
    "bytes": b"\0\xff",
}
RULES: list[tuple[RuleFilter, SqlAction | None]] = [
    (TrueFilter(), None),
    (FalseFilter(), SqlAction("SET a = 1")),
    (SqlFilter("a = @text", VALUES), SqlAction("SET a = @text", VALUES)),
    (CorrelationFilter("c", "m", "t", "r", "l", "s", "rs", "ct", VALUES), None),
    (CorrelationFilter(label="", properties={}), None),
]


@pytest.mark.parametrize(("filter_", "action"), RULES)
def test_rules_come_back(filter_: RuleFilter, action: SqlAction | None) -> None:
    text = rule_description(Rule("r", filter_, action, NOW))
    element = described(text)
    assert names(element) == ["Filter", "Action", "CreatedAt", "Name"]
    again = read_rule(element, "r", NOW)
    assert (again.filter, again.action) == (filter_, action)
    assert rule_description(again) == text


def test_the_literal_words_of_a_rule() -> None:
    rule = Rule("r", SqlFilter("a", {"k": Int(3), "s": Symbol("y")}), None, NOW)
    text = rule_description(rule)
    assert '<Action i:type="EmptyRuleAction"/>' in text
    assert '<Filter i:type="SqlFilter"><SqlExpression>a</SqlExpression>' in text
    assert (
        '<KeyValueOfstringanyType><Key>k</Key><Value i:type="d6p1:int" '
        'xmlns:d6p1="http://www.w3.org/2001/XMLSchema">3</Value></KeyValueOfstringanyType>'
    ) in text
    assert '"d6p1:string"' in text


@pytest.mark.parametrize(
    "when", ["2020-07-05T11:12:13", "2020-07-05T11:12:13Z", "2020-07-05T13:12:13+02:00"]
)
def test_a_time_is_shown_as_it_was_written(when: str) -> None:
    """Python's SDK compares a time without a zone; the meaning is the same."""
    properties = f"<Properties>{pair('dateTime', when)}</Properties>"
    element = rule_element(f'<Filter x:type="CorrelationFilter">{properties}</Filter>')
    rule = read_rule(element, "r", NOW)
    assert isinstance(rule.filter, CorrelationFilter)
    assert rule.filter.properties == {"k": 1_593_947_533_000}
    assert f">{when}<" in rule_description(Rule.from_json(rule.to_json()))


def pair(kind: str, text: str) -> str:
    return (
        f'<KeyValueOfstringanyType><Key>k</Key><Value x:type="d:{kind}">{text}</Value>'
        "</KeyValueOfstringanyType>"
    )


def rule_element(inside: str) -> Element:
    return description("RuleDescription", inside)


def test_a_rule_that_says_nothing() -> None:
    """Takes every message."""
    assert read_rule(rule_element(""), "r", NOW) == Rule("r", TrueFilter(), None, NOW)
    nil = '<Filter x:nil="true"/><Action x:nil="true"/>'
    assert read_rule(rule_element(nil), "r", NOW) == Rule("r", TrueFilter(), None, NOW)


@pytest.mark.parametrize(
    "inside",
    [
        '<Filter x:type="LuaFilter"/>',
        '<Filter x:type="SqlFilter"/>',
        '<Action x:type="Explode"/>',
        '<Action x:type="SqlRuleAction"/>',
        *(
            f'<Filter x:type="CorrelationFilter"><Properties>{each}</Properties></Filter>'
            for each in (
                "<KeyValueOfstringanyType/>",
                "<KeyValueOfstringanyType><Key/><Value/></KeyValueOfstringanyType>",
                pair("object", "x"),
                pair("int", "x"),
                pair("double", "x"),
                pair("decimal", "x"),
                pair("decimal", "1e999999999"),
                pair("decimal", "NaN"),
                pair("long", "9" * 19),
                pair("unsignedByte", "256"),
                pair("unsignedShort", "-1"),
                pair("byte", "-129"),
                pair("short", "32768"),
                pair("int", "2147483648"),
                pair("unsignedInt", "4294967296"),
                pair("unsignedLong", "18446744073709551616"),
                pair("char", "55296"),
                pair("char", "99999999"),
                pair("boolean", "x"),
                pair("dateTime", "x"),
                pair("duration", "x"),
                pair("guid", "x"),
                pair("base64Binary", "!"),
            )
        ),
    ],
)
def test_rules_that_are_refused(inside: str) -> None:
    with pytest.raises((ArgumentError, ProtocolError)):
        read_rule(rule_element(inside), "r", NOW)


def test_any_description_gives_settings_or_an_error() -> None:
    """2,000 mutated ones (F5): nothing but what the API turns into an answer."""
    chance = random.Random(7)
    texts = [
        *(
            f"<{name}>{text}</{name}>"
            for name in QUEUE
            for text in ("P1D", "true", "5", "sb://h/q")
        ),
        *(rule_description(Rule("r", *each, NOW)) for each in RULES),
    ]
    for _ in range(2_000):
        data = list("".join(chance.choices(texts, k=3)))
        for _ in range(chance.randint(0, 3)):
            data[chance.randrange(len(data))] = chance.choice("PT0919-:.%[]<>eE+/ §\u0663")
        with contextlib.suppress(ArgumentError, ProtocolError):
            element = description("QueueDescription", "".join(data))
            read_settings(QueueSettings, element, FULL, NOW, is_premium=chance.random() < 0.5)
        with contextlib.suppress(ArgumentError, ProtocolError):
            for each in description("Several", "".join(data)).every("RuleDescription"):
                read_rule(each, "r", NOW)
