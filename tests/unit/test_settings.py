"""Entity settings: Azure's defaults, ranges and texts; the JSON form; updates."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from tandembus import limits
from tandembus.errors import ArgumentError
from tandembus.model import NEVER, Secret
from tandembus.settings import (
    AZURE_NAMES,
    AccessRight,
    AuthorizationRule,
    EntityStatus,
    PrioritySettings,
    QueueSettings,
    Settings,
    SubscriptionSettings,
    TopicSettings,
    check_update,
)

KINDS: list[type[Settings]] = [QueueSettings, TopicSettings, SubscriptionSettings]


def test_defaults_are_azures() -> None:
    """A queue that says nothing has the defaults of the Service Bus documentation."""
    queue = QueueSettings()
    assert queue.lock_duration_ms == 60_000
    assert queue.max_delivery_count == 10
    assert queue.duplicate_window_ms == 600_000
    assert queue.max_size_mb == 1024
    assert queue.max_message_size_kb == 256
    assert queue.default_ttl_ms == NEVER
    assert queue.auto_delete_on_idle_ms == NEVER
    assert queue.enable_batched_operations
    assert queue.status is EntityStatus.ACTIVE
    assert not queue.requires_session
    assert not queue.requires_duplicate_detection
    assert not queue.enable_partitioning
    assert not queue.dead_letter_on_expiration
    assert SubscriptionSettings().dead_letter_on_filter_error


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_valid_and_kept(kind: type[Settings]) -> None:
    """Validation changes nothing where nothing has to be changed."""
    assert kind().validate() == kind()


BAD: list[tuple[str, str, Any]] = [
    ("lock_duration_ms", "LockDuration", 4_999),
    ("lock_duration_ms", "LockDuration", 300_001),
    ("lock_duration_ms", "LockDuration", NEVER),
    ("max_delivery_count", "MaxDeliveryCount", 0),
    ("max_delivery_count", "MaxDeliveryCount", 2**31),
    ("max_size_mb", "MaxSizeInMegabytes", 1023),
    ("max_size_mb", "MaxSizeInMegabytes", 16384),
    ("max_message_size_kb", "MaxMessageSizeInKilobytes", 0),
    ("max_message_size_kb", "MaxMessageSizeInKilobytes", 102_401),
    ("duplicate_window_ms", "DuplicateDetectionHistoryTimeWindow", 19_999),
    ("duplicate_window_ms", "DuplicateDetectionHistoryTimeWindow", 25 * limits.DAY_MS),
    ("default_ttl_ms", "DefaultMessageTimeToLive", 999),
    ("default_ttl_ms", "DefaultMessageTimeToLive", -1),
    ("auto_delete_on_idle_ms", "AutoDeleteOnIdle", 299_999),
    ("user_metadata", "UserMetadata", "x" * 1025),
    ("forward_to", "ForwardTo", "not a name"),
    ("forward_to", "ForwardTo", ""),
    ("forward_to", "ForwardTo", "topic/subscriptions/s"),
    ("forward_dead_letters_to", "ForwardDeadLetteredMessagesTo", "../etc"),
]


@pytest.mark.parametrize(
    ("kind", "name", "azure", "value"),
    [(kind, *bad) for bad in BAD for kind in KINDS if bad[0] in kind.__dataclass_fields__],
)
def test_out_of_range_names_the_property(
    kind: type[Settings], name: str, azure: str, value: Any
) -> None:
    """Each bad value is refused, on each kind that has the property, naming it as Azure does."""
    with pytest.raises(ArgumentError, match=azure) as caught:
        kind.from_json({name: value}).validate()
    assert str(caught.value).startswith("SubCode=40000. ")


GOOD: list[tuple[str, Any]] = [
    ("lock_duration_ms", 5_000),
    ("lock_duration_ms", 300_000),
    ("max_delivery_count", 1),
    ("max_delivery_count", 2**31 - 1),
    ("max_size_mb", 5120),
    ("max_size_mb", 81_920),
    ("max_message_size_kb", 1),
    ("max_message_size_kb", 102_400),
    ("duplicate_window_ms", 20_000),
    ("duplicate_window_ms", 7 * limits.DAY_MS),
    ("default_ttl_ms", 1_000),
    ("auto_delete_on_idle_ms", 300_000),
    ("user_metadata", "x" * 1024),
    ("forward_to", "Orders/Late.v2"),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_the_edges_of_each_range_are_in_it(name: str, value: Any) -> None:
    """The smallest and largest legal value of each property is kept as it is."""
    assert getattr(QueueSettings.from_json({name: value}).validate(), name) == value


def test_lock_too_long_has_azures_text() -> None:
    """The text that people search the web for."""
    with pytest.raises(ArgumentError) as caught:
        QueueSettings(lock_duration_ms=600_000).validate()
    assert "The supplied lock time exceeds the allowed maximum of '5' minutes." in str(caught.value)


def test_bad_size_lists_the_good_ones() -> None:
    """Azure's text: the value, the property, the list."""
    with pytest.raises(ArgumentError) as caught:
        TopicSettings(max_size_mb=16384).validate()
    text = str(caught.value)
    assert "The specified value 16384 is invalid. The property 'MaxSizeInMegabytes'" in text
    assert "1024;2048;3072;4096;5120" in text


@pytest.mark.parametrize("kind", [QueueSettings, SubscriptionSettings])
def test_what_forwards_keeps_its_other_settings(
    kind: type[QueueSettings] | type[SubscriptionSettings],
) -> None:
    """The SDK's own tests read an idle time and sessions back beside ForwardTo: core gives them no
    effect, they are not refused or forced."""
    given = kind(requires_session=True, forward_to="b", auto_delete_on_idle_ms=300_000)
    assert given.validate() == given


RULE = AuthorizationRule(
    "mine", (AccessRight.SEND, AccessRight.LISTEN), Secret("one key"), Secret("two key"), 5, 6
)


@pytest.mark.parametrize("kind", [QueueSettings, TopicSettings])
def test_authorization_rules_come_back(kind: type[QueueSettings] | type[TopicSettings]) -> None:
    """Through the JSON of the log, keys and all; and show no key to a reader of a trace."""
    settings = kind(authorization_rules=(RULE,), enable_express=True).validate()
    again = kind.from_json(json.loads(json.dumps(settings.to_json())))
    assert again == settings
    assert type(again.authorization_rules[0].primary_key) is Secret
    assert "one key" not in repr(again)
    assert "two key" not in f"{again}"


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        ([replace(RULE, name=str(n)) for n in range(13)], "At most 12"),
        ([RULE, RULE], "the same name"),
        ([replace(RULE, name="")], "KeyName"),
        ([replace(RULE, name="n" * 257)], "KeyName"),
        ([replace(RULE, primary_key=Secret(""))], "PrimaryKey"),
        ([replace(RULE, secondary_key=Secret("k" * 257))], "SecondaryKey"),
        ([replace(RULE, rights=())], "Rights"),
        ([replace(RULE, rights=(AccessRight.SEND, AccessRight.SEND))], "Rights"),
        ([replace(RULE, rights=(AccessRight.MANAGE,))], "should also include Send and Listen"),
    ],
)
def test_authorization_rules_are_refused(rules: list[AuthorizationRule], what: str) -> None:
    """By what is wrong, and never with a key in the text."""
    with pytest.raises(ArgumentError, match=what) as caught:
        TopicSettings(authorization_rules=tuple(rules)).validate()
    assert "key" not in str(caught.value).replace("Key", "").replace("A key", "")


@pytest.mark.parametrize(
    "data",
    [
        {"authorization_rules": 5},
        {"authorization_rules": ["x"]},
        {"authorization_rules": [{"name": 5}]},
        {"authorization_rules": [{"rights": ["Fly"]}]},
        {"authorization_rules": [{"rights": None}]},
        {"authorization_rules": [{"primary_key": None}]},
        {"authorization_rules": [{"key": "k"}]},
        {"enable_express": 1},
    ],
)
def test_json_of_authorization_rules_is_read_strictly(data: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        QueueSettings.from_json(data)


def test_timespan_max_is_never() -> None:
    """The SDKs send .NET's longest duration for "infinite", rounded or not."""
    queue = QueueSettings(
        default_ttl_ms=limits.MAX_DURATION_MS, auto_delete_on_idle_ms=limits.MAX_DURATION_MS + 1
    ).validate()
    assert queue == QueueSettings()


@pytest.mark.parametrize(
    ("status", "send", "receive"),
    [
        (EntityStatus.ACTIVE, True, True),
        (EntityStatus.DISABLED, False, False),
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
    ],
)
def test_what_a_status_allows(status: EntityStatus, send: bool, receive: bool) -> None:
    """Each status allows what its name says."""
    assert (status.allows_send, status.allows_receive) == (send, receive)


def test_status_fits_the_kind() -> None:
    """Nobody receives from a topic, and nobody but its topic sends to a subscription."""
    with pytest.raises(ArgumentError, match="Status"):
        TopicSettings(status=EntityStatus.RECEIVE_DISABLED).validate()
    with pytest.raises(ArgumentError, match="Status"):
        SubscriptionSettings(status=EntityStatus.SEND_DISABLED).validate()
    for status in EntityStatus:
        QueueSettings(status=status).validate()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "requires_session",
            "The value for RequiresSession property of an existing Queue can't be changed.",
        ),
        (
            "requires_duplicate_detection",
            "The value for RequiresDuplicateDetection property of an existing Queue can't be "
            "changed.",
        ),
        ("enable_partitioning", "Partitioning can't be changed for Queue."),
    ],
)
def test_what_is_fixed_at_creation(name: str, text: str) -> None:
    """Changing it later is refused, both ways, with Azure's text."""
    on = QueueSettings.from_json({name: True})
    for old, new in ((QueueSettings(), on), (on, QueueSettings())):
        with pytest.raises(ArgumentError) as caught:
            check_update(old, new)
        assert text in str(caught.value)
    check_update(on, on)


def test_the_rest_can_be_updated() -> None:
    """Every other property of a queue may change."""
    check_update(
        QueueSettings(),
        QueueSettings(
            lock_duration_ms=5_000,
            max_size_mb=2048,
            default_ttl_ms=1_000,
            forward_to="b",
            status=EntityStatus.DISABLED,
            max_delivery_count=1,
            priority=PrioritySettings(),
        ),
    )
    check_update(TopicSettings(), TopicSettings(max_size_mb=2048))
    with pytest.raises(ArgumentError, match="existing Subscription"):
        check_update(SubscriptionSettings(), SubscriptionSettings(requires_session=True))


PRIORITIES = [
    PrioritySettings(),
    PrioritySettings(levels=2),
    PrioritySettings(levels=32, aging_ms_per_level=1),
    PrioritySettings(levels=3, source="property", property_name="Priority", weights=(1, 2, 1000)),
    PrioritySettings(
        levels=3,
        source="rules",
        rules=(("tier = 'paying'", 2), ("tier = 'trial'", 1)),
        aging_ms_per_level=limits.MAX_AGING_MS,
    ),
]


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize("partitioned", [False, True])
def test_priority_settings_that_are_fine(priority: PrioritySettings, partitioned: bool) -> None:
    """Levels by header, property or rules; with aging, with weights; partitioned or not."""
    QueueSettings(priority=priority, enable_partitioning=partitioned).validate()
    SubscriptionSettings(priority=priority).validate()
    assert PrioritySettings.from_json(json.loads(json.dumps(priority.to_json()))) == priority


@pytest.mark.parametrize(
    ("name", "priority"),
    [
        ("Levels", PrioritySettings(levels=1)),
        ("Levels", PrioritySettings(levels=33)),
        ("Source", PrioritySettings(source="magic")),  # type: ignore[arg-type]
        ("Property", PrioritySettings(source="property")),
        ("Property", PrioritySettings(property_name="p")),
        ("Property", PrioritySettings(source="property", property_name="p" * 129)),
        ("Rules", PrioritySettings(source="rules")),
        ("Rules", PrioritySettings(rules=(("TRUE", 1),))),
        ("Rules", PrioritySettings(levels=3, source="rules", rules=(("TRUE", 3),))),
        ("Rules", PrioritySettings(source="rules", rules=((" ", 1),))),
        ("Rules", PrioritySettings(source="rules", rules=(("x" * 1025, 1),))),
        ("Rules", PrioritySettings(source="rules", rules=(("TRUE", 1),) * 101)),
        ("AgingSeconds", PrioritySettings(aging_ms_per_level=0)),
        ("AgingSeconds", PrioritySettings(aging_ms_per_level=NEVER)),
        ("Weights", PrioritySettings(levels=3, weights=(1, 2))),
        ("Weights", PrioritySettings(levels=2, weights=(0, 1))),
        ("Weights", PrioritySettings(levels=2, weights=(1, 1001))),
    ],
)
def test_priority_settings_that_are_not(name: str, priority: PrioritySettings) -> None:
    """Each is refused, naming what is wrong, on its own and inside an entity."""
    with pytest.raises(ArgumentError, match=f"Priority{name}"):
        QueueSettings(priority=priority).validate()
    with pytest.raises(ArgumentError, match=f"Priority{name}"):
        SubscriptionSettings(priority=priority).validate()


@pytest.mark.parametrize("kind", KINDS)
def test_json_round_trip(kind: type[Settings]) -> None:
    """What is written is read back, through JSON's text too, and every property is in it."""
    settings = kind(default_ttl_ms=5_000, status=EntityStatus.DISABLED, user_metadata="ü")
    if not isinstance(settings, TopicSettings):
        settings = replace(
            settings,
            priority=PRIORITIES[-1],
            forward_to="Other",
            forward_to_scheme="https",
            forward_dead_letters_scheme="amqps",
        )
    plain = json.loads(json.dumps(settings.to_json()))
    assert kind.from_json(plain) == settings
    assert set(plain) == {field.name for field in fields(kind)}
    assert plain["auto_delete_on_idle_ms"] is None
    # Left out where there is none, so that an earlier version can read it.
    assert not any(name.endswith("_scheme") for name in kind().to_json())


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_keys_are_refused_by_name(kind: type[Settings]) -> None:
    """A misspelt property never becomes a silent default."""
    with pytest.raises(ArgumentError, match="lockDuration"):
        kind.from_json({"lockDuration": 5_000})
    with pytest.raises(ArgumentError, match="'level'"):
        PrioritySettings.from_json({"level": 2})
    with pytest.raises(ArgumentError, match="'priority'"):
        TopicSettings.from_json({"priority": None})


@pytest.mark.parametrize(
    ("data", "azure"),
    [
        ({"lock_duration_ms": "60000"}, "LockDuration"),
        ({"lock_duration_ms": True}, "LockDuration"),
        ({"lock_duration_ms": 5.5}, "LockDuration"),
        ({"requires_session": 1}, "RequiresSession"),
        ({"status": "Sleeping"}, "Status"),
        ({"status": []}, "Status"),
        ({"forward_to": 7}, "ForwardTo"),
        ({"priority": 3}, "Priority"),
        ({"priority": {"levels": None}}, "PriorityLevels"),
        ({"priority": {"source": 1}}, "PrioritySource"),
        ({"priority": {"rules": "x"}}, "PriorityRules"),
        ({"priority": {"rules": [["x"]]}}, "PriorityRules"),
        ({"priority": {"rules": [["x", "1"]]}}, "PriorityRules"),
        ({"priority": {"weights": 1}}, "PriorityWeights"),
        ({"priority": {"weights": [1.0]}}, "PriorityWeights"),
    ],
)
def test_wrong_types_are_refused_by_name(data: dict[str, object], azure: str) -> None:
    """A value of another type is an ArgumentError, never a TypeError somewhere later."""
    with pytest.raises(ArgumentError, match=azure):
        QueueSettings.from_json(data)


def test_every_property_has_azures_name() -> None:
    """The administration API and the error texts find a name for each."""
    names = {field.name for kind in KINDS for field in fields(kind)}
    assert names == set(AZURE_NAMES)
